//! Programs that were compiled ahead of time, between whoever makes them and whoever runs them.
//!
//! [`Payload`] is what is written down of a program: behind the end of an executable, or in an object file. [`handlers`] is how the state of a
//! graph is read and written by the names that Click has for it. [`script`] carries out what its scripts say, [`room`] where its packets wait, [`keep`] has another graph keep
//! what was set. [`printing`] prints what elements print. [`header`] is the interface of an object file, in C.
//!
//! Architecture Invariant: nothing here compiles, and nothing but [`printing`] prints.

pub mod handlers;
pub mod header;
pub mod keep;
mod payload;
pub mod printing;
pub mod room;
pub mod script;
mod tables;

pub use payload::{Kind, Payload, Refused, fill};
