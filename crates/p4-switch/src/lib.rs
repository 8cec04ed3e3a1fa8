//! A switch that runs lowered P4_16 programs.
//!
//! [`Switch`] holds what a control plane sets (entries, mirror sessions, multicast groups) and moves packets
//! between the functions of a program; a [`SwitchExecutor`] runs the functions. [`InterpreterExecutor`] is
//! the IR's interpreter. [`stf`] reads and runs tests in the language of the reference compiler's simple test
//! framework.
//!
//! Architecture Invariant: no I/O, and no knowledge of P4 beyond the program's description.

mod buffers;
mod entries;
mod executor;
mod filters;
mod portable;
mod receive;
mod state_fields;
pub mod stf;
mod switch;
mod trace;
mod trace_filter;
mod v1model;

pub use entries::{EntryError, entry_key, entry_value, group_value, value_set_key};
pub use executor::{ExecutorError, ExecutorLookup, InterpreterExecutor, SwitchExecutor, UnicastOutcome};
pub use millstream_p4_lower::DROP_PORT;
pub use switch::{MirrorTarget, MulticastNode, SentPacket, Switch, SwitchClock, SwitchError, SwitchEvent};
pub use trace::{TraceEvent, TracedAction};
pub use trace_filter::TraceCondition;
