//! Finds rules: left sides one after the other, for each the cheaper right sides, for each the constants and
//! the weakest condition that make it right, and a proof.
//!
//! Left sides are enumerated (`lhs`) or harvested from programs. Both sides are compared on samples of
//! constants and values first; candidates that agree are proven, and counterexamples of the solver become
//! samples. The same seed gives the same rules, however many threads there are; only the budget decides how
//! far it gets.

mod consts;
mod eval;
mod harvest;
mod instance;
mod lhs;
mod reduce;
mod sample;
mod skeleton;
mod synthesis;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millstream_ir::random::SeededRng;
use millstream_passes::rules::{RewriteRule, RuleOrigin, RuleSet};
use millstream_prove::{ProofLimits, Solver, SolverError};

use crate::check::RuleProver;
pub use harvest::PatternHarvest;
use instance::RuleSimplifier;
use lhs::{LeftHandSide, LhsGroup};
pub use reduce::{is_superfluous, reduce};
use synthesis::RuleSynthesizer;

/// Least number of times that a left side must stand in programs to be looked at.
const LEAST: u64 = 2;

/// Failures of the solver that a thread bears.
const MOST_FAILURES: usize = 8;

/// Settings of a search for rules.
#[derive(Clone, Debug)]
pub struct RuleSearch {
    /// Decides samples, and the order in which left sides are looked at.
    pub seed: u64,
    /// Threads.
    pub jobs: usize,
    /// Most operations of a left side that is enumerated, up to 3.
    pub depth: usize,
    /// Groups of left sides are begun for so long.
    pub budget: Duration,
    /// Only each so many-th group, for a look at what would come.
    pub stride: usize,
    /// Time for one proof.
    pub proof: Duration,
    /// Groups that were looked at before, by number.
    pub done: BTreeSet<usize>,
}

/// Result of the search at a group of left sides.
#[derive(Clone, Debug)]
pub struct GroupResult<'r> {
    /// Its number: the same for the same seed, depth, stride and programs.
    pub group: usize,
    /// Origin of its left sides.
    pub origin: RuleOrigin,
    /// Groups looked at so far.
    pub done: usize,
    /// Of so many.
    pub groups: usize,
    /// Rules, proven; superfluous ones among them.
    pub rules: &'r [RewriteRule],
}

/// Looks for rules: at the left sides that were harvested, then at those that are enumerated. `tell` is
/// called with the results of each group of left sides.
///
/// # Errors
/// If the solver cannot be used.
pub fn search(
    search: &RuleSearch,
    harvest: &PatternHarvest,
    solver: &Solver,
    stop: &AtomicBool,
    tell: impl Fn(&GroupResult<'_>) + Sync,
) -> Result<(), SolverError> {
    let mut groups: Vec<LhsGroup> = match search.depth {
        0 => Vec::new(),
        depth => lhs::all(depth).into_iter().step_by(search.stride.max(1)).collect(),
    };
    shuffle(&mut groups, &mut SeededRng::new(search.seed));
    // Those without constants are soon done with.
    groups.sort_by_key(|group| group.first().map_or(0, LeftHandSide::consts));
    let harvested = harvest.groups(LEAST);
    let first = harvested.len();
    let groups = [harvested, groups].concat();
    let written = RuleSet::written();
    let start = Instant::now();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(search.done.len()));
    let work = || -> Result<(), SolverError> {
        let limits = ProofLimits { time: search.proof, ..ProofLimits::default() };
        let mut prover = RuleProver::new(Some(solver), &limits);
        let mut failures = 0;
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(group) = groups.get(at) else { return Ok(()) };
            if start.elapsed() > search.budget || stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            if search.done.contains(&at) {
                continue;
            }
            let rules = match one(group, &written, search.seed ^ (at as u64) << 20, &mut prover) {
                Ok(rules) => rules,
                // A solver that dies once is started again; the group is left for the next time.
                Err(_) if failures < MOST_FAILURES => {
                    failures += 1;
                    prover = RuleProver::new(Some(solver), &limits);
                    continue;
                }
                Err(e) => return Err(e),
            };
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            let origin = if at < first { RuleOrigin::Harvested } else { RuleOrigin::Enumerated };
            tell(&GroupResult { group: at, origin, done, groups: groups.len(), rules: &rules });
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..search.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|t| match t.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

/// So that a search that ends early has seen some of everything.
fn shuffle(groups: &mut [LhsGroup], random: &mut SeededRng) {
    for i in (1..groups.len()).rev() {
        groups.swap(i, random.below(i as u64 + 1) as usize);
    }
}

/// The rules for a group of left sides.
fn one(
    group: &LhsGroup,
    written: &[RewriteRule],
    seed: u64,
    prover: &mut RuleProver,
) -> Result<Vec<RewriteRule>, SolverError> {
    let mut found: Vec<RewriteRule> = Vec::new();
    let mut known = RuleSimplifier::new(written.to_vec());
    for (at, shape) in group.iter().enumerate() {
        let random = SeededRng::new(seed ^ at as u64);
        let new = RuleSynthesizer { shape, random, prover }.run(&known)?;
        if !new.is_empty() {
            found.extend(new);
            known = RuleSimplifier::new([written, &found].concat());
        }
    }
    Ok(found)
}
