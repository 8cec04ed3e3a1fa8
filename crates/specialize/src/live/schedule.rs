//! Times of the next look at the traffic and of the next quiet moment.

use std::time::{Duration, Instant};

/// Time without a write after which whole tables are put into code.
const QUIET: Duration = Duration::from_millis(500);
/// Time that must pass without a write after writes came again and again while code was made.
const LONG_QUIET: Duration = Duration::from_secs(8);

/// Schedule of a session's work.
#[derive(Debug)]
pub(super) struct SessionSchedule {
    /// Time of the next look at the traffic, if there was one before.
    pub(super) next_look: Option<Instant>,
    /// Time at which there will have been no write for long enough to put whole tables into code.
    pub(super) thorough_at: Option<Instant>,
    /// Length of that time without a write.
    quiet: Duration,
    /// Consecutive looks at the traffic that led to nothing.
    pub(super) fruitless: u32,
}

impl SessionSchedule {
    pub(super) fn new() -> SessionSchedule {
        SessionSchedule { next_look: None, thorough_at: None, quiet: QUIET, fruitless: 0 }
    }

    /// Postpones optional work that a write has interrupted. The next quiet moment will do, and after that a
    /// longer one: packets have waited for the answer.
    pub(super) fn interrupted(&mut self) {
        self.quiet = (2 * self.quiet).min(LONG_QUIET);
        self.await_quiet();
    }

    /// Schedules optional work for the end of a quiet time that begins now.
    pub(super) fn await_quiet(&mut self) {
        self.thorough_at = Some(Instant::now() + self.quiet);
    }

    /// As [`SessionSchedule::await_quiet`], unless optional work is scheduled already.
    pub(super) fn await_quiet_from(&mut self, now: Instant) {
        self.thorough_at.get_or_insert(now + self.quiet);
    }

    /// Restarts the quiet time after a write.
    pub(super) fn put_off_thoroughness(&mut self) {
        if self.thorough_at.is_some() {
            self.await_quiet();
        }
    }

    /// Returns to the usual quiet time: optional work was done undisturbed.
    pub(super) fn reset_quiet(&mut self) {
        self.quiet = QUIET;
    }

    /// Takes the time of optional work, if it has come.
    pub(super) fn take_due_quiet(&mut self) -> bool {
        self.thorough_at.take_if(|at| Instant::now() >= *at).is_some()
    }

    /// Interval until the next look at the traffic: doubled after each one that led to nothing, `calm` times
    /// at most.
    pub(super) fn look_interval(&self, interval: Duration, calm: u32) -> Duration {
        interval * (1 << self.fruitless.min(calm))
    }
}
