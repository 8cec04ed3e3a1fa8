//! Traces of packets, made of samples of live traffic.
//!
//! A sample is a number of windows, each of packets that came one behind the other ([`SampledWindow`]). So it has the
//! run lengths and the near reuse of flows as they were. [`TraceBuilder`] makes a trace of any length of it: windows
//! are repeated in random order, and flows that were seen in one window only become other ones each time, as many as
//! the whole traffic is estimated to have. [`TrafficShape`] measures what caches see of a trace, so that trace and
//! traffic can be compared. [`PacketAnonymizer`] makes a trace that may be given to others.
//!
//! Architecture Invariant: no I/O, no clock, and nothing of programs. Packets are hostile: each byte is
//! bounds-checked, and memory is linear in the number of packets.

mod anonymize;
mod builder;
mod checksum;
mod flow;
mod headers;
mod shape;

pub use anonymize::{AnonymizerKey, PacketAnonymizer};
pub use builder::{SampledWindow, TraceBuilder, TraceEstimate};
pub use flow::FlowKey;
pub use shape::TrafficShape;
