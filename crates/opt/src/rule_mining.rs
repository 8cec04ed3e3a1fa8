//! Results of the search in an object by itself, without static passes, the kernel and proofs of whole
//! programs: for learning rules of windows, and for counting how often these are applied.

use std::time::Duration;

use millstream_object::{FuncId, Object};
use millstream_search::{RuleCandidate, SearchBudget, Superoptimizer, WindowReplacement};

use crate::SuperOptions;
use crate::superopt::search_options;

/// Searches all functions of an object as they are, each for the budget that is given.
pub fn mine_rules(object: &Object, options: &SuperOptions) -> (Vec<WindowReplacement>, Vec<RuleCandidate>) {
    let mut search = Superoptimizer::new(search_options(object, false, options));
    let mut found = Vec::new();
    for f in 0..object.functions.len() {
        let mut budget = SearchBudget::of(options.budget.unwrap_or(Duration::from_secs(10)));
        budget.stop = options.stop;
        budget.rounds = options.rounds.unwrap_or(budget.rounds);
        let improved = search.improve(object, FuncId(f as u32), &budget, &mut |_| true);
        found.extend(improved.into_iter().flat_map(|i| i.found));
    }
    (found, search.take_rule_candidates())
}
