//! BPF as a front end and a back end: [`lift`] bytecode to the IR, [`lower`] it back.
//!
//! Architecture Invariant: whatever the kernel's verifier must be able to see after a rewrite is the business
//! of this crate and of nothing above it. No I/O here; nothing here calls the kernel.

pub mod cost;
pub mod jit;
pub mod lift;
pub mod lower;
pub mod module;
pub mod raw;
mod settings;
