//! A laboratory without a NIC: namespaces, live-frame traffic, measurement.
//!
//! [`TestRig`] is a veth pair in a network namespace of its own, with a generator in the kernel: real frames,
//! drawn from a table of templates in an order that was drawn beforehand, on the interface of the program
//! under test. [`measure`] times programs against one another, by test runs or on the rig, and [`stats`]
//! judges the times. [`differential`] compares two objects on random packets and tables. [`stale_resources`]
//! finds and removes the leftovers of a killed laboratory.
//!
//! Architecture Invariant: bpf(2) is left to `millstream-kernel`. `unsafe` is allowed in the module `os`
//! only: clocks, CPU affinity, signals and the mount of a namespace's name.

pub mod calibrate;
mod code;
pub mod code_range;
pub mod compare;
pub mod curve;
pub mod differential;
pub mod environment;
mod error;
pub mod image;
mod machine;
pub mod measure;
pub mod os;
pub mod pcap;
mod peer;
pub mod rig;
pub mod stale_resources;
pub mod stats;
pub mod subject;
mod unpack;
pub mod verify;
pub mod virtual_kernel;
pub mod workload;

pub use error::{Error, Result};
pub use peer::{StalenessCounts, StalenessMonitor};
pub use rig::{CaptureResult, FrameCounts, FrameLatencies, RigConfig, SendResult, TestRig, TrafficSequence};
pub use unpack::unpack;
