//! Sending times of a source that makes its packets up: at a rate, or at a fixed interval.
//!
//! All times are integers relative to the beginning, so that fractions of a nanosecond do not accumulate over
//! many packets.

/// Nanoseconds in a second.
const SECOND: u128 = 1_000_000_000;

/// The times between packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendSchedule {
    /// This many packets per second, evenly spaced, the first one at once; 0 is never.
    Rate(u64),
    /// One packet after each interval, in nanoseconds.
    Every(u64),
}

impl SendSchedule {
    /// Time of packet `number` since the beginning, in nanoseconds, if it ever comes.
    fn at(self, number: u64) -> Option<u64> {
        match self {
            SendSchedule::Rate(0) => None,
            SendSchedule::Rate(rate) => {
                u64::try_from((u128::from(number) * SECOND).div_ceil(u128::from(rate))).ok()
            }
            SendSchedule::Every(time) => time.checked_mul(number.checked_add(1)?),
        }
    }

    /// Number of packets that come within this time from the beginning.
    fn within(self, time: u64) -> u64 {
        let count = match self {
            SendSchedule::Rate(0) => 0,
            SendSchedule::Rate(rate) => u128::from(time) * u128::from(rate) / SECOND + 1,
            SendSchedule::Every(0) => u128::from(u64::MAX),
            SendSchedule::Every(every) => u128::from(time / every),
        };
        u64::try_from(count).unwrap_or(u64::MAX)
    }
}

/// The times of a source's packets; the source may be stopped, and the times changed.
#[derive(Clone, Copy, Debug)]
pub struct SendTimer {
    beat: SendSchedule,
    /// Beginning of the current times, and the number of the first packet that they apply to.
    since: u64,
    from: u64,
    /// True if it must not send.
    stopped: bool,
}

impl SendTimer {
    /// A sender that begins at `since`.
    pub fn new(beat: SendSchedule, since: u64) -> SendTimer {
        SendTimer { beat, since, from: 0, stopped: false }
    }

    /// Sets the state at `now`: its times, whether it may send, and the number of its next packet. Nothing is
    /// made up for: packets that it did not send meanwhile do not come at once afterwards.
    pub fn renew(&mut self, beat: SendSchedule, may: bool, (next, now): (u64, u64)) {
        if beat != self.beat {
            // A sender that has sent a packet waits for the new interval before the next one.
            let sent = u64::from(next > self.from);
            *self = SendTimer { beat, since: now, from: next - sent, stopped: self.stopped };
        } else if self.stopped && may {
            *self = SendTimer { since: now, from: next, ..*self };
        }
        self.stopped = !may;
    }

    /// Time of packet `number`, if it ever comes.
    pub fn send_time(&self, number: u64) -> Option<u64> {
        self.since.checked_add(self.beat.at(number.saturating_sub(self.from))?)
    }

    /// The first packet that comes later than `now`.
    pub fn until(&self, now: u64) -> u64 {
        self.from.saturating_add(self.beat.within(now.saturating_sub(self.since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_exact_and_begin_at_once_and_intervals_with_one() {
        let thirds = SendTimer::new(SendSchedule::Rate(3), 1000);
        assert_eq!(
            [0, 1, 2, 3].map(|n| thirds.send_time(n)),
            [1000, 333_334_334, 666_667_667, 1_000_001_000].map(Some)
        );
        assert_eq!(thirds.send_time(3_000_000_000), Some(1_000_000_000_000_001_000), "nothing has added up");
        let every = SendTimer::new(SendSchedule::Every(50), 1000);
        assert_eq!([0, 1, 2].map(|n| every.send_time(n)), [1050, 1100, 1150].map(Some));
        assert_eq!(SendTimer::new(SendSchedule::Rate(0), 1000).send_time(0), None);
        for sender in [thirds, every, SendTimer::new(SendSchedule::Rate(7_000_000_000), 3)] {
            for number in 0..20 {
                let at = sender.send_time(number).expect("some time");
                assert!(
                    sender.until(at) > number && (at == 1000 || at == 3 || sender.until(at - 1) <= number)
                );
            }
        }
    }

    #[test]
    fn what_was_not_sent_is_not_made_up_for() {
        let mut sender = SendTimer::new(SendSchedule::Rate(10), 0);
        sender.renew(SendSchedule::Rate(10), false, (3, 250_000_000));
        sender.renew(SendSchedule::Rate(10), true, (3, 5_000_000_000));
        assert_eq!([3, 4].map(|n| sender.send_time(n)), [5_000_000_000, 5_100_000_000].map(Some));
        sender.renew(SendSchedule::Rate(1000), true, (5, 6_000_000_000));
        assert_eq!([5, 6].map(|n| sender.send_time(n)), [6_001_000_000, 6_002_000_000].map(Some));
        assert_eq!(sender.until(6_001_000_000), 6);
    }
}
