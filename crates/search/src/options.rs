//! Options and limits of a search.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millstream_bpf::cost::OptimizationGoal;
use millstream_prove::Solver;

use crate::ablation::SearchAblation;
use crate::rules::PeepholeRuleSet;

/// Most rounds over all windows.
pub(crate) const MOST_ROUNDS: usize = 60;

/// Options of a search.
#[derive(Clone, Debug)]
pub struct SearchOptions {
    /// Goal by which code is compared.
    pub goal: OptimizationGoal,
    /// Instruction set version that may be used, 1 to 4.
    pub isa: u8,
    /// Threads.
    pub jobs: usize,
    /// Seed of all random choices.
    pub seed: u64,
    /// Solver for replacements that are not equal by form; without it these are not made.
    pub solver: Option<Solver>,
    /// Parts that are switched off, to measure their worth.
    pub without: Vec<SearchAblation>,
    /// Rules that are tried first.
    pub rules: Arc<PeepholeRuleSet>,
    /// True if replacements are kept as lessons.
    pub learn: bool,
    /// Most versions of a function from before its last replacements that are kept.
    pub keep: usize,
}

impl SearchOptions {
    /// Returns true if a part is switched off.
    pub fn is_ablated(&self, part: SearchAblation) -> bool {
        self.without.contains(&part)
    }
}

/// Limits of a search.
#[derive(Clone, Debug)]
pub struct SearchBudget {
    /// Deadline.
    pub until: Instant,
    /// Most rounds of growing effort.
    pub rounds: usize,
    /// Set to end the search early with its results so far.
    pub stop: Option<&'static AtomicBool>,
}

impl SearchBudget {
    /// A budget of so much time from now.
    pub fn of(time: Duration) -> SearchBudget {
        SearchBudget { until: Instant::now() + time, rounds: MOST_ROUNDS, stop: None }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stop.is_some_and(|s| s.load(Ordering::Relaxed)) || Instant::now() >= self.until
    }
}
