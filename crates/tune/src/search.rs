//! The search: evolutionary (NFMorph, section 3.2), and for comparison random and greedy.

use std::collections::BTreeMap;

use millstream_rng::Rng;
use serde::Serialize;

use crate::space::{Candidate, SearchSpace};

/// Order in which candidates are tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SearchMethod {
    /// Selection, crossover and mutation.
    Evolution,
    /// Uniformly random candidates.
    Random,
    /// One knob after the other, each value; what is better is kept.
    Greedy,
}

/// Result of measuring a candidate.
#[derive(Clone, PartialEq, Debug)]
pub enum CandidateResult {
    /// Time over that of the best one so far, and true if it is faster beyond doubt.
    Compared(f64, bool),
    /// It cannot be used; the reason.
    Failed(String),
    /// The budget is used up.
    Over,
}

/// Measures candidates.
pub trait CandidateJudge {
    /// Compares a candidate with the best one so far. If the result is better, the candidate becomes the best
    /// one.
    fn compare(&mut self, candidate: &Candidate, best: &Candidate) -> CandidateResult;
}

/// A candidate that was tried.
#[derive(Clone, PartialEq, Debug)]
pub struct TrialRecord {
    /// The candidate.
    pub candidate: Candidate,
    /// Time over that of the default, by the chain of comparisons; or the reason of a failure.
    pub result: Result<f64, String>,
    /// True if it became the best one.
    pub became_best: bool,
}

/// Result of a search.
#[derive(Clone, PartialEq, Debug)]
pub struct SearchResult {
    /// The best candidate; the default if none was better.
    pub best: Candidate,
    /// Candidates in the order of their trials, without the default.
    pub trials: Vec<TrialRecord>,
}

/// Individuals that survive a generation.
const POPULATION: usize = 8;
/// Children in 10 that have two parents.
const CROSSED: u64 = 6;
/// Attempts to find a candidate that was not tried yet.
const ATTEMPTS: u32 = 200;

/// Searches a space, from these candidates on, by at most so many trials.
pub fn search(
    space: &SearchSpace,
    (method, seeds): (SearchMethod, &[Candidate]),
    rng: &mut Rng,
    judge: &mut dyn CandidateJudge,
    trials: u64,
) -> SearchResult {
    let mut state = SearchState::new(space, judge, trials);
    // The same start for all, so that methods can be compared.
    for seed in seeds {
        if state.on {
            state.evaluate(seed);
        }
    }
    match method {
        SearchMethod::Evolution => state.evolve(rng),
        SearchMethod::Random => state.draw(rng),
        SearchMethod::Greedy => state.descend(),
    }
    SearchResult { best: state.best, trials: state.records }
}

struct SearchState<'s> {
    space: &'s SearchSpace,
    judge: &'s mut dyn CandidateJudge,
    left: u64,
    /// True until the budget is used up.
    on: bool,
    best: Candidate,
    /// Time over that of the default; infinite after a failure.
    fitness: BTreeMap<Candidate, f64>,
    records: Vec<TrialRecord>,
}

impl<'s> SearchState<'s> {
    fn new(space: &'s SearchSpace, judge: &'s mut dyn CandidateJudge, left: u64) -> SearchState<'s> {
        let best = space.usual();
        let fitness = BTreeMap::from([(best.clone(), 1.0)]);
        SearchState { space, judge, left, on: left > 0, best, fitness, records: Vec::new() }
    }

    /// Tries a candidate, unless it was tried. Returns true if it became the best one.
    fn evaluate(&mut self, candidate: &Candidate) -> bool {
        if self.fitness.contains_key(candidate) {
            return false;
        }
        let level = self.fitness.get(&self.best).copied().unwrap_or(1.0);
        let (result, became_best) = match self.judge.compare(candidate, &self.best) {
            CandidateResult::Over => {
                self.on = false;
                return false;
            }
            CandidateResult::Failed(why) => (Err(why), false),
            CandidateResult::Compared(ratio, better) => (Ok(level * ratio), better),
        };
        self.fitness.insert(candidate.clone(), result.as_ref().map_or(f64::INFINITY, |fitness| *fitness));
        self.records.push(TrialRecord { candidate: candidate.clone(), result, became_best });
        if became_best {
            self.best = candidate.clone();
        }
        self.left -= 1;
        self.on = self.left > 0;
        became_best
    }

    /// The fittest candidates so far.
    fn survivors(&self) -> Vec<Candidate> {
        let mut all: Vec<(&Candidate, f64)> =
            self.fitness.iter().map(|(candidate, fitness)| (candidate, *fitness)).collect();
        all.sort_by(|a, b| a.1.total_cmp(&b.1));
        let fit = all.into_iter().filter(|(_, fitness)| fitness.is_finite());
        fit.take(POPULATION).map(|(candidate, _)| candidate.clone()).collect()
    }

    /// A candidate that was not tried, by `draw`; `None` if there seems to be none.
    fn untried(&self, mut draw: impl FnMut() -> Candidate) -> Option<Candidate> {
        (0..ATTEMPTS).map(|_| draw()).find(|candidate| !self.fitness.contains_key(candidate))
    }

    fn evolve(&mut self, rng: &mut Rng) {
        while self.on {
            let parents = self.survivors();
            // The first ones are the fittest: the smaller of two numbers is a tournament of two.
            let count = parents.len().max(1) as u64;
            let child = self.untried(|| {
                let pick = |rng: &mut Rng| {
                    let at = rng.below(count).min(rng.below(count)) as usize;
                    parents.get(at).unwrap_or(&self.best).clone()
                };
                let parent = pick(rng);
                match rng.below(10) < CROSSED {
                    true => {
                        let crossed = self.space.crossed(&parent, &pick(rng), rng);
                        if crossed == parent { self.space.mutated(&parent, rng) } else { crossed }
                    }
                    false => self.space.mutated(&parent, rng),
                }
            });
            let child = child.or_else(|| self.untried(|| self.space.random(rng)));
            let Some(child) = child else { return };
            self.evaluate(&child);
        }
    }

    fn draw(&mut self, rng: &mut Rng) {
        while self.on {
            let Some(candidate) = self.untried(|| self.space.random(rng)) else { return };
            self.evaluate(&candidate);
        }
    }

    fn descend(&mut self) {
        let mut improved = true;
        while improved && self.on {
            improved = false;
            for knob in 0..self.space.knobs.len() {
                for value in 0..self.space.knobs[knob].values.len() {
                    if !self.on {
                        return;
                    }
                    if self.space.number(&self.best, knob) != Some(value) {
                        let candidate = self.space.changed(&self.best, knob, value);
                        improved |= self.evaluate(&candidate);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::TuningKnob;

    /// A landscape with interactions: knobs pay only together, so one at a time sticks.
    struct SyntheticJudge {
        space: SearchSpace,
        noise: Rng,
        /// Times of the candidates asked for.
        asked: usize,
    }

    fn space() -> SearchSpace {
        let knob = |name: &str| TuningKnob::new(name, ["0", "1", "2", "3", "4", "5"], "2");
        SearchSpace { knobs: ["a", "b", "c", "d"].map(knob).to_vec() }
    }

    /// Time of a candidate: the least is 0.6, at 5, 5, 0, 4.
    fn time(space: &SearchSpace, candidate: &Candidate) -> f64 {
        let value = |name: &str| space.value(candidate, name).and_then(|v| v.parse().ok()).unwrap_or(0.0);
        let (a, b, c, d): (f64, f64, f64, f64) = (value("a"), value("b"), value("c"), value("d"));
        let together = 0.02 * (a - b).abs() + 0.03 * (10.0 - a - b) / 2.0;
        0.6 + together + 0.02 * c + 0.02 * (d - 4.0).abs()
    }

    impl CandidateJudge for SyntheticJudge {
        fn compare(&mut self, candidate: &Candidate, best: &Candidate) -> CandidateResult {
            self.asked += 1;
            if self.space.value(candidate, "d") == Some("0") {
                return CandidateResult::Failed("does not compile".to_owned());
            }
            let ratio = time(&self.space, candidate) / time(&self.space, best);
            let measured = ratio * (1.0 + 0.004 * (self.noise.unit() - 0.5));
            CandidateResult::Compared(measured, measured < 0.995)
        }
    }

    fn run(method: SearchMethod, seed: u64, trials: u64) -> (f64, SearchResult) {
        let mut judge = SyntheticJudge { space: space(), noise: Rng::new(seed ^ 99), asked: 0 };
        let found = search(&space(), (method, &[]), &mut Rng::new(seed), &mut judge, trials);
        assert_eq!(judge.asked, found.trials.len());
        (time(&space(), &found.best), found)
    }

    #[test]
    fn evolution_finds_the_optimum_in_a_fraction_of_the_trials() {
        // 15 % of 1,296 candidates.
        let within = (0..10).filter(|&seed| run(SearchMethod::Evolution, seed, 194).0 <= 0.6 * 1.02);
        assert!(within.count() >= 9);
    }

    #[test]
    fn evolution_is_better_than_random_search_with_as_many_trials() {
        let better = (0..10).filter(|&seed| {
            run(SearchMethod::Evolution, seed, 100).0 <= run(SearchMethod::Random, seed, 100).0
        });
        assert!(better.count() >= 8);
    }

    #[test]
    fn greedy_search_ends_where_no_single_change_helps() {
        let (found, result) = run(SearchMethod::Greedy, 1, 10_000);
        assert!(result.trials.len() < 200 && found < time(&space(), &space().usual()));
    }

    #[test]
    fn small_spaces_are_searched_whole_and_no_candidate_twice() {
        let tiny = SearchSpace { knobs: vec![TuningKnob::new("d", ["1", "2", "3"], "1")] };
        for method in [SearchMethod::Evolution, SearchMethod::Random, SearchMethod::Greedy] {
            let mut judge = SyntheticJudge { space: tiny.clone(), noise: Rng::new(1), asked: 0 };
            let found = search(&tiny, (method, &[]), &mut Rng::new(1), &mut judge, 1000);
            assert_eq!(found.trials.len(), 2, "{method:?}");
        }
    }

    #[test]
    fn failures_are_kept_apart_and_a_seed_repeats() {
        let (_, one) = run(SearchMethod::Random, 5, 60);
        let (_, again) = run(SearchMethod::Random, 5, 60);
        assert_eq!(one, again);
        assert!(one.trials.iter().any(|trial| trial.result.is_err()));
    }
}
