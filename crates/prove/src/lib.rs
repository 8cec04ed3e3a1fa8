//! Proves that two BPF programs do the same.
//!
//! Both are run on terms: registers, stack, packet, context and map values are functions of the inputs: the
//! packet, the context, the contents of maps, the answers of helpers. Each program ends in one state, the
//! join over all its paths. The programs are equivalent if these states agree in all observables: the result,
//! the packet and its bounds, the context, the values of all maps, and the order of calls that others can
//! see, with their arguments. Mostly an observable is the same term in both; otherwise a solver compares the
//! two terms.
//!
//! Assumptions about both: the kernel's verifier accepts them, so that every access is within its object and
//! none goes through null. Nobody else writes a map or the packet while the program runs. A lookup changes
//! nothing (it may refresh an entry of an LRU map, which is not modelled).
//!
//! Anything not modelled ends in [`ProofVerdict::Unknown`], with the reason; never in a proof.
//!
//! Architecture Invariant: the meaning of an instruction is `isa::semantics`, at terms; there is no second
//! description.

mod ablation;
mod access;
mod args;
mod cache;
mod call;
mod call_builder;
mod callback;
mod check;
mod counterexample;
mod cut;
mod evaluate;
mod exec;
mod explain;
mod explore;
mod flow;
mod frontier;
mod join;
mod library;
mod localization;
mod lockstep;
mod model;
mod program;
mod query;
mod range;
mod regions;
mod replay;
mod sizes;
mod solver;
mod stack;
mod state;
mod sweep;
mod term;
mod uninitialized;
mod value;
pub mod window;

use std::time::Duration;

pub use ablation::ProofAblation;
pub use cache::{
    CacheHit, CacheStats, CachedAnswer as CacheEntry, CachedVerdict, ProofCache, QueryDigest as CacheKey,
    RedisError, RedisValue, StoreKey, StoreKeyError, TrustLevel,
};
pub use check::{ProofResult, ProofVerdict, compare_instructions, differ, prove};
pub use counterexample::{Counterexample, CounterexampleSource};
pub use evaluate::{EvaluationResult, SymbolicProgram};
pub use localization::{InsnLocation, SourceLineText};
pub use query::{BitVecTerm, BoolTerm, QueryResult, SmtQuery};
pub use solver::{BackendStats, Solver, SolverError, SolverUsage};

/// Reason why a proof could not be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ProofError(String);

impl ProofError {
    pub(crate) fn new(why: impl Into<String>) -> ProofError {
        ProofError(why.into())
    }
}

/// Limits of a proof of a pair of programs.
#[derive(Clone, Debug)]
pub struct ProofLimits {
    /// Time of a proof, without the search for a counterexample.
    pub time: Duration,
    /// Memory of the solver, in MiB.
    pub memory: u64,
    /// Instructions on all paths of one program, loops unrolled.
    pub instructions: u64,
    /// Distinct terms.
    pub terms: usize,
    /// Made-up packets that two programs are run on if no proof is found.
    pub tries: usize,
    /// Accelerations that are switched off, to measure their worth.
    pub without: Vec<ProofAblation>,
    /// Names of maps whose contents after a run do not count: nothing reads what a run leaves there.
    pub scratch: Vec<String>,
}

impl Default for ProofLimits {
    fn default() -> ProofLimits {
        ProofLimits {
            time: Duration::from_secs(20),
            memory: 2048,
            instructions: 200_000,
            terms: 600_000,
            tries: 200,
            without: Vec::new(),
            scratch: Vec::new(),
        }
    }
}
