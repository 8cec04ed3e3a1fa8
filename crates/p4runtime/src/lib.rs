//! P4Info of P4_16 programs, and the entities that controllers write and read through P4Runtime.
//!
//! [`describe_program()`] describes a checked program to controllers, with the ids, names and order that p4c
//! gives. [`entities`] validates and stores what controllers write. [`mod@proto`] has the messages and the
//! service of P4Runtime 1.4.
//!
//! Architecture Invariant: no sockets and no threads here; a server is made of these pure functions.
//!
//! Architecture Invariant: programs and messages are hostile: nothing panics, and memory is linear in them.

pub mod entities;
mod info;
mod printer;
pub mod proto;
mod text;

pub use info::{InfoError, ProgramDescription, TargetArchitecture, describe_program};
pub use text::{FormatError, MessageFormat, decode_message, encode_message};
