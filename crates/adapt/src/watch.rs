//! Decisions while specialised code runs: does it pay, and may there be another swap.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use millstream_native::TrialTimes;

use crate::status::LiveGain;

/// Timed batches of each code before anything follows from them.
const LEAST_TIMES: usize = 24;
/// Looks in a row that must agree.
const LOOKS: u32 = 3;

/// Medians of live batches, in nanoseconds per packet; `None` if there are too few.
pub(crate) fn live_gain(times: &TrialTimes) -> Option<LiveGain> {
    let median = |times: &[u32]| {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).map(|middle| f64::from(*middle) / 1e3)
    };
    let enough = times.program.len() >= LEAST_TIMES && times.variant.len() >= LEAST_TIMES;
    let (program_ns, specialized_ns) = (median(&times.program)?, median(&times.variant)?);
    enough.then_some(LiveGain { program_ns, specialized_ns })
}

/// Number of looks in a row at which installed code did not pay.
#[derive(Debug, Default)]
pub(crate) struct GainWatch {
    looks: u32,
}

impl GainWatch {
    /// Looks at the times; returns true if the code is to be withdrawn.
    /// At `most` of the program's time, it does not pay.
    pub(crate) fn ends(&mut self, gain: Option<LiveGain>, most: f64) -> bool {
        match gain {
            Some(gain) if gain.specialized_ns >= most * gain.program_ns => self.looks += 1,
            Some(_) => self.looks = 0,
            None => {}
        }
        self.looks >= LOOKS
    }
}

/// Times of the latest swaps.
#[derive(Debug)]
pub(crate) struct SwapLimit {
    most: usize,
    swaps: VecDeque<Instant>,
}

impl SwapLimit {
    /// Permits so many swaps in a minute.
    pub(crate) fn new(most: u32) -> SwapLimit {
        SwapLimit { most: most as usize, swaps: VecDeque::new() }
    }

    /// Returns true if there may be another swap.
    pub(crate) fn permits(&mut self, now: Instant) -> bool {
        let minute = Duration::from_secs(60);
        while self.swaps.pop_front_if(|swap| now.duration_since(*swap) >= minute).is_some() {}
        self.swaps.len() < self.most
    }

    /// Counts a swap.
    pub(crate) fn record(&mut self, now: Instant) {
        self.swaps.push_back(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(program: u32, variant: u32) -> TrialTimes {
        TrialTimes { program: vec![program; LEAST_TIMES], variant: vec![variant; LEAST_TIMES] }
    }

    #[test]
    fn code_that_does_not_pay_for_three_looks_is_withdrawn() {
        let mut watch = GainWatch::default();
        let (slow, fast) = (live_gain(&times(1000, 1000)), live_gain(&times(1000, 900)));
        let mut ends = |gain| watch.ends(gain, 1.0);
        assert!(!ends(slow) && !ends(slow) && !ends(fast));
        assert!(!ends(slow) && !ends(None) && !ends(slow) && ends(slow));
    }

    #[test]
    fn few_batches_say_nothing() {
        let few = TrialTimes { program: vec![1; LEAST_TIMES - 1], variant: vec![9; LEAST_TIMES] };
        assert_eq!(live_gain(&few), None);
    }

    #[test]
    fn swaps_of_a_minute_are_bounded() {
        let mut limit = SwapLimit::new(2);
        let start = Instant::now();
        for _ in 0..2 {
            assert!(limit.permits(start));
            limit.record(start);
        }
        assert!(!limit.permits(start + Duration::from_secs(59)));
        assert!(limit.permits(start + Duration::from_secs(60)));
    }
}
