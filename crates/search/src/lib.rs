//! The superoptimizer.
//!
//! Searches the bytecode of a function, window by window, for instructions that do the same at less cost. A window is a
//! sequence of instructions with the branches out of it, within a chain of blocks that are entered from one place
//! only. What is known where it begins (`facts`: known bits, ranges, kinds of pointers, bytes of the stack) is its
//! precondition; what is looked at after it and at its exits (`liveness`: bits of registers, bytes of the stack, all other
//! memory) its postcondition.
//!
//! First come rules of windows (`rules`), proven and shipped. Then engines look for replacements: a store of what was found
//! before (`store`), enumeration of short sequences (`enumerate`), sketches that a solver completes (`synthesis`), and
//! Metropolis-Hastings with the proposal rules of K2 (`chain`). A candidate is run on tests first
//! (`machine`), then looked at with the eyes of the kernel's verifier (`valid`), then proven by
//! [`millstream_prove::window`]. What a proof refutes becomes a test.
//!
//! Architecture Invariant: nothing is replaced that was not proven equal under its preconditions. The crate does no
//! I/O but to the solver, and all that it chooses at random follows from a seed.

mod chain;
mod code;
mod driver;
mod engines;
mod enumerate;
mod facts;
mod liveness;
mod machine;
mod part;
mod pool;
mod rules;
mod splice;
mod store;
mod synthesis;
#[cfg(test)]
mod tests;
mod transfer;
mod trial;
mod valid;
mod walk;
mod window;

pub use driver::{Budget, Found, Improved, Options, Search, Tally};
pub use engines::Engine;
pub use millstream_bpf::cost::Goal;
pub use part::Part;
pub use rules::{Lesson, Rule, Rules};
pub use walk::{Effort, verification_effort};
