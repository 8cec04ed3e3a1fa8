//! Programs that were compiled ahead of time: their format, shared by the compiler and the runtimes.
//!
//! [`ProgramPayload`] is the serialized form of a program, behind the end of an executable or in an object
//! file. [`handlers`] reads and writes the state of a graph by Click's handler names. [`script`] executes its
//! scripts, [`queueing`] holds its waiting packets, [`hot_swap`] carries settings over to another graph.
//! [`printing`] prints the output of elements. [`header`] is the interface of an object file, in C.
//!
//! Architecture Invariant: nothing here compiles, and nothing but [`printing`] prints.

pub mod handlers;
pub mod header;
pub mod hot_swap;
mod payload;
pub mod printing;
pub mod queueing;
mod samples;
pub mod script;
mod tables;
mod time_range;
mod values;

pub use payload::{PayloadKind, ProgramPayload, TableFillError, fill};
