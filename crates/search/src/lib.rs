//! The superoptimizer.
//!
//! Searches the bytecode of a function, window by window, for instructions that do the same at less cost. A
//! window is a sequence of instructions with the branches out of it, within a chain of blocks that are
//! entered from one place only. The facts at its beginning (`facts`: known bits, ranges, kinds of pointers,
//! bytes of the stack) are its precondition; the live values after it and at its exits (`liveness`: bits of
//! registers, bytes of the stack, all other memory) its postcondition.
//!
//! First come rules for windows (`rules`), proven and shipped. Then engines look for replacements: a store of
//! earlier results (`store`), enumeration of short sequences (`enumerate`), sketches that a solver completes
//! (`synthesis`), and Metropolis-Hastings with the proposal rules of K2 (`mcmc`). A candidate is first run on
//! tests (`machine`), then checked against the rules of the kernel's verifier (`verifier_rules`), then proven
//! by [`millstream_prove::window`]. A counterexample of a failed proof becomes a test.
//!
//! Architecture Invariant: no window is replaced without a proof of equality under its preconditions. The
//! crate does no I/O except to the solver, and all random choices follow from a seed.

mod ablation;
mod candidate;
mod code;
mod driver;
mod engines;
mod enumerate;
mod facts;
mod liveness;
mod machine;
mod mcmc;
mod options;
mod pool;
mod repair;
mod rules;
mod splice;
mod store;
mod synthesis;
#[cfg(test)]
mod tests;
mod transfer;
mod verifier_edits;
mod verifier_model;
mod verifier_rules;
mod window;

pub use ablation::{SearchAblation, SearchEngine};
pub use driver::{ImprovedFunction, SearchStats, Superoptimizer, WindowReplacement};
pub use options::{SearchBudget, SearchOptions};
pub use repair::{GuardExit, PacketEndField, RangeCheckSite, RepairEdit, loop_headers, slot_line};
pub use rules::{PeepholeRule, PeepholeRuleSet, RuleCandidate};
pub use verifier_edits::{EditableFunction, VerifierEdit};
pub use verifier_model::{
    StateDifference, StateMiss, VerificationEffort, verification_effort, verification_profile,
};
