//! Races of two candidates: interleaved pairs of times, until the difference is clear or hopeless.
//!
//! The statistics are those of all measurements ([`millstream_lab::stats`]): a difference counts if its 99 %
//! interval excludes none, and it exceeds a quarter of a percent.

use millstream_lab::stats::{LEAST_GENERATIONS, RatioEstimate, TimingVerdict, judge};
use millstream_rng::Rng;

/// Length of a race.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RaceRules {
    /// Pairs after which a candidate that is slower in all of them, by [`RaceRules::hopeless`], is out.
    pub first_look: usize,
    /// Ratio of times from which a candidate is hopeless.
    pub hopeless: f64,
    /// Pairs in all.
    pub most: usize,
}

impl Default for RaceRules {
    fn default() -> RaceRules {
        RaceRules { first_look: 3, hopeless: 1.05, most: 2 * LEAST_GENERATIONS }
    }
}

/// Result of a race.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RaceOutcome {
    /// Time of the candidate over that of the reference; its interval is too narrow if there are few pairs.
    pub estimate: RatioEstimate,
    /// Pairs that were measured.
    pub pairs: usize,
}

impl RaceOutcome {
    /// True if the candidate is faster, beyond doubt.
    pub fn is_better(&self) -> bool {
        self.estimate.verdict == TimingVerdict::Faster
    }
}

/// Races a candidate against a reference. `pair` measures one pair of times, of the reference and of the
/// candidate; `None` ends the race.
///
/// # Errors
/// That of `pair`.
pub fn race<E>(
    rules: RaceRules,
    rng: &mut Rng,
    mut pair: impl FnMut() -> Result<Option<(f64, f64)>, E>,
) -> Result<RaceOutcome, E> {
    let mut pairs: Vec<(f64, f64)> = Vec::new();
    while pairs.len() < rules.most {
        let Some(times) = pair()? else { break };
        pairs.push(times);
        let is_hopeless = |(reference, candidate): &(f64, f64)| *candidate > reference * rules.hopeless;
        if pairs.len() == rules.first_look && pairs.iter().all(is_hopeless) {
            break;
        }
        // Looks in between are few, since each one is a chance to be wrong.
        if pairs.len() == LEAST_GENERATIONS {
            let verdict = judge(&pairs, rng).verdict;
            if matches!(verdict, TimingVerdict::Faster | TimingVerdict::Slower) {
                break;
            }
        }
    }
    let estimate = judge(&pairs, rng);
    Ok(RaceOutcome { estimate, pairs: pairs.len() })
}

/// The default twice and the best candidate, interleaved in one series.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GainCheck {
    /// The second default against the first one.
    pub same: RatioEstimate,
    /// The best candidate against both.
    pub best: RatioEstimate,
}

/// Ratios of the default with itself that show that the series is worthless.
const DIFFERENT: f64 = 0.005;

impl GainCheck {
    /// True if the default differs from itself: then nothing of the series counts.
    pub fn is_disturbed(&self) -> bool {
        let [low, high] = self.same.interval;
        let apart = low > 1.0 + DIFFERENT || high < 1.0 - DIFFERENT;
        apart || self.same.verdict == TimingVerdict::TooFewGenerations
    }

    /// True if the best candidate is faster, by more than the default differs from itself.
    pub fn is_gain(&self) -> bool {
        let noise = (self.same.ratio - 1.0).abs();
        let faster = self.best.verdict == TimingVerdict::Faster && self.best.interval[1] < 1.0 - DIFFERENT;
        !self.is_disturbed() && faster && self.best.ratio < 1.0 - noise
    }
}

/// Judges triples of times: of the default, of the default in another process, and of the best candidate.
pub fn check_gain(triples: &[[f64; 3]], rng: &mut Rng) -> GainCheck {
    let same: Vec<(f64, f64)> = triples.iter().map(|[a, b, _]| (*a, *b)).collect();
    // The geometric mean, since logarithms are averaged.
    let best: Vec<(f64, f64)> = triples.iter().map(|[a, b, c]| ((a * b).sqrt(), *c)).collect();
    GainCheck { same: judge(&same, rng), best: judge(&best, rng) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times that scatter by 1 % around a level that moves by up to 80 %.
    fn noisy(rng: &mut Rng) -> impl FnMut(f64) -> f64 + '_ {
        let mut normal = move || (0..12).map(|_| rng.unit()).sum::<f64>() - 6.0;
        let level = 100.0 * (1.0 + normal().abs() * 0.2);
        move |factor| level * factor * (0.01 * normal()).exp()
    }

    fn triples(count: usize, gain: f64, seed: u64) -> Vec<[f64; 3]> {
        let mut rng = Rng::new(seed);
        let triple = |_| {
            let mut time = noisy(&mut rng);
            [time(1.0), time(1.0), time(gain)]
        };
        (0..count).map(triple).collect()
    }

    #[test]
    fn identical_candidates_are_never_a_gain() {
        let gains =
            (0..400).filter(|&seed| check_gain(&triples(20, 1.0, seed), &mut Rng::new(seed)).is_gain());
        assert_eq!(gains.count(), 0);
    }

    #[test]
    fn a_clear_gain_is_one() {
        let gains =
            (0..100).filter(|&seed| check_gain(&triples(20, 0.95, seed), &mut Rng::new(seed)).is_gain());
        assert!(gains.count() > 95);
    }

    #[test]
    fn a_series_in_which_the_default_differs_from_itself_is_worthless() {
        let shifted: Vec<[f64; 3]> =
            triples(20, 0.9, 1).into_iter().map(|[a, b, c]| [a, b * 1.04, c]).collect();
        let check = check_gain(&shifted, &mut Rng::new(1));
        assert!(check.is_disturbed() && !check.is_gain());
        assert!(check_gain(&triples(4, 0.5, 1), &mut Rng::new(1)).is_disturbed(), "too few to tell");
    }

    #[test]
    fn hopeless_candidates_are_out_early_and_equal_ones_run_to_the_end() {
        let run = |factor: f64| {
            let mut rng = Rng::new(7);
            let pair = || {
                let mut time = noisy(&mut rng);
                Ok::<_, ()>(Some((time(1.0), time(factor))))
            };
            race(RaceRules::default(), &mut Rng::new(1), pair).unwrap()
        };
        assert_eq!((run(1.5).pairs, run(1.5).is_better()), (3, false));
        assert_eq!((run(1.0).pairs, run(1.0).is_better()), (20, false));
        assert_eq!((run(0.9).pairs, run(0.9).is_better()), (10, true));
    }
}
