//! Times at which packets may leave: token buckets, delays, links, ticks.
//!
//! All quantities are integers, so that the same arrivals give the same departures. A bucket counts tokens
//! times nanoseconds: its inflow in any time is a whole number.

use super::stored::ReplayPolicy;

/// Nanoseconds in a second.
const SECOND: i128 = 1_000_000_000;

/// Rule for the departure of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacingPolicy {
    /// A rate of packets, or bytes, by a token bucket, which is full at first. Without tokens no packet
    /// leaves.
    Rate {
        /// Tokens per second.
        rate: u64,
        /// Size of the bucket; at least one packet's token.
        burst: BucketSize,
        /// True if a token is a byte.
        bytes: bool,
    },
    /// This many nanoseconds after their arrival.
    Delay(u64),
    /// A link: one packet after the other at its bandwidth, and all of them later by its latency.
    Link {
        /// Nanoseconds.
        latency: u64,
        /// Bytes per second.
        bandwidth: u64,
    },
    /// As soon as they arrive, until this many have left.
    Upto(u64),
    /// This many at once, at multiples of an interval.
    Every {
        /// Nanoseconds.
        interval: u64,
        /// Packets at a time.
        burst: u64,
    },
    /// Round after round, copies of all that arrived first.
    Replay(ReplayPolicy),
}

/// Size of a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BucketSize {
    /// The tokens of this many nanoseconds.
    Nanoseconds(u64),
    /// This many tokens.
    Tokens(u64),
}

impl BucketSize {
    /// Size of a bucket that is filled at a rate, in tokens times nanoseconds.
    fn room(self, rate: u64) -> i128 {
        let room = match self {
            BucketSize::Nanoseconds(time) => i128::from(rate) * i128::from(time),
            BucketSize::Tokens(tokens) => i128::from(tokens) * SECOND,
        };
        room.max(SECOND)
    }
}

/// State of a [`PacingPolicy`].
#[derive(Clone, Debug)]
pub(super) struct PacingState {
    pace: PacingPolicy,
    /// Tokens times nanoseconds in the bucket, and the time at which that was so.
    left: i128,
    since: u64,
    /// Time at which the link is free.
    free: u64,
    /// The first tick, the last one, and the number of packets that may still leave at the last one.
    origin: u64,
    tick: Option<u64>,
    rest: u64,
    /// Packets that have left.
    count: u64,
}

impl PacingState {
    /// Time begins at `origin`.
    pub(super) fn new(pace: PacingPolicy, origin: u64) -> PacingState {
        let left = match pace {
            PacingPolicy::Rate { rate, burst, .. } => burst.room(rate),
            _ => 0,
        };
        PacingState { pace, left, since: origin, free: origin, origin, tick: None, rest: 0, count: 0 }
    }

    /// Sets another pace from now on; the contents of the bucket stay.
    pub(super) fn set(&mut self, pace: PacingPolicy, now: u64) {
        self.fill(now);
        self.pace = pace;
    }

    pub(super) fn pace(&self) -> PacingPolicy {
        self.pace
    }

    fn fill(&mut self, now: u64) {
        let PacingPolicy::Rate { rate, burst, .. } = self.pace else { return };
        let passed = i128::from(now.saturating_sub(self.since));
        // A packet that waited for a whole nanosecond, when a part of one was enough, is credited the tokens
        // of the rest, though the bucket is full.
        let rest = i128::from(rate.saturating_sub(1));
        self.left = (self.left + passed * i128::from(rate)).min(burst.room(rate) + rest);
        self.since = self.since.max(now);
    }

    /// Time at which a packet of this length that arrived at `came` may leave, if no other one leaves before
    /// it; `None` without tokens.
    pub(super) fn departure_time(&self, came: u64, length: usize) -> Option<u64> {
        match self.pace {
            PacingPolicy::Rate { rate, burst, bytes } => {
                let missing = needed(burst.room(rate), bytes, length) - self.left;
                let wait = match (missing, rate) {
                    (..=0, _) => 0,
                    (_, 0) => return None,
                    (missing, rate) => u64::try_from((missing as u128).div_ceil(u128::from(rate))).ok()?,
                };
                Some(self.since.checked_add(wait)?.max(came))
            }
            PacingPolicy::Delay(time) => came.checked_add(time),
            PacingPolicy::Upto(most) => (self.count < most).then_some(came),
            PacingPolicy::Replay(_) => Some(came),
            PacingPolicy::Link { .. } => Some(self.free.max(came)),
            PacingPolicy::Every { interval, .. } => {
                let at = came.max(self.tick.unwrap_or(self.origin)) - self.origin;
                let tick = at.div_ceil(interval.max(1)).checked_mul(interval.max(1))?;
                let tick = self.origin.checked_add(tick)?;
                if self.tick == Some(tick) && self.rest == 0 {
                    return tick.checked_add(interval);
                }
                Some(tick)
            }
        }
    }

    /// Records that a packet leaves at `at`. Returns its arrival time, for a link.
    pub(super) fn record_departure(&mut self, at: u64, length: usize) -> Option<u64> {
        self.count += 1;
        match self.pace {
            PacingPolicy::Rate { bytes, .. } => {
                self.fill(at);
                self.left -= tokens(bytes, length);
                None
            }
            PacingPolicy::Delay(_) | PacingPolicy::Upto(_) | PacingPolicy::Replay(_) => None,
            PacingPolicy::Link { latency, bandwidth } => {
                let time = (length as u128 * SECOND as u128).div_ceil(u128::from(bandwidth.max(1)));
                self.free = at.saturating_add(u64::try_from(time).unwrap_or(u64::MAX));
                Some(self.free.saturating_add(latency))
            }
            PacingPolicy::Every { burst, .. } => {
                if self.tick != Some(at) {
                    (self.tick, self.rest) = (Some(at), burst);
                }
                self.rest = self.rest.saturating_sub(1);
                None
            }
        }
    }
}

/// Tokens times nanoseconds that a packet takes.
fn tokens(bytes: bool, length: usize) -> i128 {
    if bytes { length as i128 * SECOND } else { SECOND }
}

/// Tokens times nanoseconds that must be in the bucket for a packet: at most the size of the bucket. (The
/// bucket owes the rest of a longer one.)
fn needed(room: i128, bytes: bool, length: usize) -> i128 {
    tokens(bytes, length).min(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Departure times of packets that all arrive at `came`.
    fn times(pace: PacingPolicy, came: u64, lengths: &[usize]) -> Vec<u64> {
        let mut clocked = PacingState::new(pace, 1_000);
        let mut last = 0;
        let go = |length: &usize| {
            let at = clocked.departure_time(came, *length).expect("it goes").max(last);
            last = at;
            clocked.record_departure(at, *length).unwrap_or(at)
        };
        lengths.iter().map(go).collect()
    }

    #[test]
    fn a_bucket_lets_its_burst_go_at_once_and_then_one_by_one() {
        let pace = |rate, burst, bytes| PacingPolicy::Rate { rate, burst: BucketSize::Tokens(burst), bytes };
        assert_eq!(times(pace(1_000_000, 2, false), 5_000, &[60; 5]), [5_000, 5_000, 6_000, 7_000, 8_000]);
        // A third of a microsecond is no whole number: none of the three packets per millisecond is lost.
        let thirds = times(pace(3_000, 1, false), 1_000, &[60; 3_001]);
        assert_eq!(thirds[3_000] - thirds[0], 1_000_000_000);
        // Bytes: 100 are there; the second packet waits for 50 more.
        assert_eq!(times(pace(1_000_000_000, 100, true), 1_000, &[80, 70, 100]), [1_000, 1_050, 1_150]);
        // Longer than the bucket: it leaves when the bucket is full, and the debt is waited for.
        assert_eq!(times(pace(1_000_000_000, 100, true), 1_000, &[300, 100, 100]), [1_000, 1_300, 1_400]);
    }

    #[test]
    fn without_tokens_nothing_goes_until_there_are_some() {
        let rate = |rate| PacingPolicy::Rate { rate, burst: BucketSize::Tokens(1), bytes: false };
        let mut clocked = PacingState::new(rate(0), 0);
        assert_eq!(clocked.departure_time(10, 60), Some(10));
        clocked.record_departure(10, 60);
        assert_eq!(clocked.departure_time(20, 60), None);
        clocked.set(rate(1_000_000_000), 500);
        assert_eq!(clocked.departure_time(20, 60), Some(501));
    }

    #[test]
    fn so_many_packets_go_as_soon_as_they_are_there() {
        let mut clocked = PacingState::new(PacingPolicy::Upto(2), 1_000);
        for came in [2_000, 2_005] {
            assert_eq!(clocked.departure_time(came, 60), Some(came));
            clocked.record_departure(came, 60);
        }
        assert_eq!(clocked.departure_time(2_010, 60), None);
        clocked.set(PacingPolicy::Upto(3), 2_020);
        assert_eq!(clocked.departure_time(2_010, 60), Some(2_010));
    }

    #[test]
    fn delays_links_and_ticks() {
        assert_eq!(times(PacingPolicy::Delay(70), 2_000, &[60; 2]), [2_070, 2_070]);
        let link = PacingPolicy::Link { latency: 500, bandwidth: 1_000_000_000 };
        assert_eq!(times(link, 2_000, &[60, 40]), [2_560, 2_600]);
        let every = PacingPolicy::Every { interval: 300, burst: 2 };
        assert_eq!(times(every, 1_001, &[60; 5]), [1_300, 1_300, 1_600, 1_600, 1_900]);
        assert_eq!(times(every, 1_000, &[60; 3]), [1_000, 1_000, 1_300]);
    }
}
