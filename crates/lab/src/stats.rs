//! The statistics of a comparison: low percentiles, trimmed means of log ratios, bootstrap intervals,
//! verdicts.
//!
//! A difference is claimed only if its 99 % interval excludes none and it exceeds 0.1 ns and 0.25 %: a
//! latency-bound program gives intervals of a hundredth of a percent, within which placement of code decides.

use millstream_rng::Rng;
use serde::Serialize;

/// Resamples of a bootstrap interval.
const RESAMPLES: usize = 4000;
/// Fewer generations than this decide nothing.
pub const LEAST_GENERATIONS: usize = 10;
/// No difference below this share of a program's time is claimed.
const LEAST_SHARE: f64 = 0.0025;
/// Nor one of fewer nanoseconds.
const LEAST_NS: f64 = 0.1;

/// The `q` quantile (0 to 1) without interpolation, the lower neighbour; 0 of nothing. Sorts the values.
pub fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get((q * last as f64) as usize).copied().unwrap_or(0.0)
}

/// The mean without the lowest and the highest tenth; 0 of nothing. Sorts the values.
pub fn trimmed_mean(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let cut = values.len() / 10;
    let kept = &values[cut..values.len() - cut];
    if kept.is_empty() { 0.0 } else { kept.iter().sum::<f64>() / kept.len() as f64 }
}

/// The trimmed mean of a sample, with its 99 % bootstrap interval.
pub fn interval(sample: &[f64], rng: &mut Rng) -> (f64, [f64; 2]) {
    let mean = trimmed_mean(&mut sample.to_vec());
    let mut resample = vec![0.0; sample.len()];
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            resample.iter_mut().for_each(|v| *v = sample[rng.below(sample.len() as u64) as usize]);
            trimmed_mean(&mut resample)
        })
        .collect();
    (mean, [quantile(&mut means, 0.005), quantile(&mut means, 0.995)])
}

/// Verdict of a comparison on B.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TimingVerdict {
    /// B takes less time than A.
    Faster,
    /// B takes more time than A.
    Slower,
    /// None that this run can show; its limit says how large one could hide.
    NoDifferenceMeasurable,
    /// The run was too short to say anything.
    TooFewGenerations,
}

/// B against A, from one pair of times per generation.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct RatioEstimate {
    /// B / A.
    pub ratio: f64,
    /// Its 99 % interval.
    pub interval: [f64; 2],
    /// B - A in nanoseconds, at the level of A.
    pub difference_ns: f64,
    /// Differences below this cannot be told from none.
    pub limit_ns: f64,
    /// Verdict that follows.
    pub verdict: TimingVerdict,
}

/// Judges pairs (time of A, time of B), one a generation, in nanoseconds.
pub fn judge(pairs: &[(f64, f64)], rng: &mut Rng) -> RatioEstimate {
    let logs: Vec<f64> = pairs.iter().map(|(a, b)| (b / a).ln()).collect();
    let level = quantile(&mut pairs.iter().map(|p| p.0).collect::<Vec<_>>(), 0.5);
    let (mean, bounds) = interval(&logs, rng);
    let (ratio, interval) = (mean.exp(), bounds.map(f64::exp));
    let least = LEAST_SHARE.max(LEAST_NS / level);
    let verdict = if pairs.len() < LEAST_GENERATIONS {
        TimingVerdict::TooFewGenerations
    } else if interval[1] < 1.0 && ratio < 1.0 - least {
        TimingVerdict::Faster
    } else if interval[0] > 1.0 && ratio > 1.0 + least {
        TimingVerdict::Slower
    } else {
        TimingVerdict::NoDifferenceMeasurable
    };
    let limit_ns = least.max((interval[1] - interval[0]) / 2.0) * level;
    RatioEstimate { ratio, interval, difference_ns: (ratio - 1.0) * level, limit_ns, verdict }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Generations as they come: 22 ns, ratios that scatter by 0.9 %, levels that move by up to 80 %.
    fn generations(n: usize, planted: f64, seed: u64) -> Vec<(f64, f64)> {
        let mut rng = Rng::new(seed);
        // A sum of twelve uniforms has variance one: normal enough.
        let mut normal = move || (0..12).map(|_| rng.unit()).sum::<f64>() - 6.0;
        (0..n)
            .map(|_| {
                let level = 22.0 * (1.0 + normal().abs() * 0.25);
                (level, level * (1.0 + planted) * (0.009 * normal()).exp())
            })
            .collect()
    }

    fn verdicts(n: usize, planted: f64) -> Vec<TimingVerdict> {
        (0..60).map(|s| judge(&generations(n, planted, s), &mut Rng::new(s)).verdict).collect()
    }

    #[test]
    fn quantiles_and_means_of_known_samples() {
        let mut v: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        assert_eq!(
            (quantile(&mut v, 0.05), quantile(&mut v, 0.5), quantile(&mut v, 1.0)),
            (5.0, 50.0, 100.0)
        );
        let mut outliers = vec![1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1e9];
        assert_eq!(trimmed_mean(&mut outliers), 1.0);
        assert_eq!((trimmed_mean(&mut []), quantile(&mut [], 0.5)), (0.0, 0.0));
    }

    #[test]
    fn the_same_program_twice_is_not_told_apart() {
        let all = verdicts(33, 0.0);
        let wrong = all.iter().filter(|v| **v != TimingVerdict::NoDifferenceMeasurable).count();
        assert!(wrong <= 2, "{wrong} of 60 at 99 %");
    }

    #[test]
    fn a_planted_difference_is_found_with_its_sign_and_size() {
        assert!(verdicts(33, 0.025).iter().all(|v| *v == TimingVerdict::Slower));
        assert!(verdicts(33, -0.062).iter().all(|v| *v == TimingVerdict::Faster));
        let r = judge(&generations(200, 0.025, 1), &mut Rng::new(1));
        assert!((r.ratio - 1.025).abs() < 0.005, "{r:?}");
        assert!(r.interval[0] < 1.025 && 1.025 < r.interval[1], "{r:?}");
    }

    #[test]
    fn a_certain_difference_below_the_rule_is_not_claimed() {
        let pairs = vec![(72.0, 72.1); 40];
        let r = judge(&pairs, &mut Rng::new(1));
        assert_eq!(r.verdict, TimingVerdict::NoDifferenceMeasurable);
        assert!(r.interval[0] > 1.0, "although the interval excludes one");
        assert!((r.limit_ns - 0.18).abs() < 1e-9, "0.25 % of 72 ns");
    }

    #[test]
    fn a_short_run_decides_nothing() {
        assert_eq!(
            judge(&generations(9, 0.5, 1), &mut Rng::new(1)).verdict,
            TimingVerdict::TooFewGenerations
        );
    }
}
