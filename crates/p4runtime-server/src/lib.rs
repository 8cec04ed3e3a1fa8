//! Control plane of a running P4 switch.
//!
//! [`ControlledSwitch`] joins the entities that controllers write with the switch that packets pass:
//! each update is validated, carried out on the switch, and taken back in both if either refuses. A
//! [`SwitchHandle`] shares it between the thread that moves packets and controllers; a batch is written
//! between two packets, so that none sees a part of it, or an old entry after the call has returned.
//! [`serve_p4runtime()`] serves P4Runtime 1.4 over gRPC, [`run_command()`] the words of the reference switch's
//! command line.
//!
//! Architecture Invariant: the packets' thread does no I/O here: what controllers get goes through queues
//! with limits.
//!
//! Architecture Invariant: what a controller sends is hostile, and is validated before it changes anything.

mod bindings;
mod controlled;
mod digests;
mod driver;
mod executor;
mod handle;
mod idle;
mod journal;
mod live_reads;
mod moves;
mod names;
mod packet_headers;
mod program;
mod reconcile;
mod runtime_file;
mod server;
mod service;
mod streams;
mod traced_packets;
mod tracer;
mod values;
mod words;

pub use controlled::{ControlledSwitch, CounterFigure, SwitchSettings};
pub use executor::ExecutorFactory;
pub use handle::{PacketSink, SwitchHandle};
pub use moves::MovedPackets;
pub use program::{ControlProgram, ProgramError, encode_config};
pub use reconcile::ReconcileReport;
pub use runtime_file::{RuntimeFileError, load_runtime_file};
pub use server::{ServerError, ServerOptions, TlsFiles, serve_p4runtime};
pub use words::{CommandOutcome, run_command};
