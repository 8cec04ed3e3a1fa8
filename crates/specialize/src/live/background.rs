//! Answering writes while something else takes long.
//!
//! The kernel follows all paths through a program in one call, up to half a second for a large one; swaps and
//! caches wait for grace periods; measuring waits for packets. None of these may delay the answer to a write.
//! So the session's thread does nothing itself that takes long: it makes another thread do it
//! ([`LiveSession::run_in_background`]), or lets the time pass ([`LiveSession::pass`]), and attends to writes
//! meanwhile. Twins are brought up to date, and the standby variant takes over. Work that needs new code
//! waits until that can be made.
//!
//! The other thread gets everything that it needs, and shares no changing state with the session but maps.
//! Changes since *it* read them are noted for it (`PendingWrites::making`, `PendingWrites::aside`), whatever
//! is answered meanwhile; its variant comes onto the hook by a look at the tables of its own.
//!
//! Invariant: while another thread works, it alone loads programs, and the holders of maps are not reviewed,
//! because the programs that it has just loaded are not known yet: writes that somebody new may make revoke
//! until that is over.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millstream_specializer::policy::Tier;

use super::{AGAIN, LiveError, LiveSession};
use crate::report::{CompileReason, SessionReport};

/// Interval at which the other thread's progress is checked.
const STEP: Duration = Duration::from_micros(500);

/// A variant that is being made.
#[derive(Debug)]
pub(super) struct PendingCompile {
    tier: Tier,
    reason: CompileReason,
    /// True if it is no longer needed.
    is_called_off: AtomicBool,
}

impl PendingCompile {
    pub(super) fn new(tier: Tier, reason: CompileReason) -> PendingCompile {
        PendingCompile { tier, reason, is_called_off: AtomicBool::new(false) }
    }

    pub(super) fn is_called_off(&self) -> bool {
        self.is_called_off.load(Ordering::SeqCst)
    }

    fn call_off(&self) {
        self.is_called_off.store(true, Ordering::SeqCst);
    }

    /// Notes that the standby variant has taken over. A variant with whole tables in code was made from
    /// others.
    fn another_runs(&self) {
        if self.tier != Tier::Quick {
            self.call_off();
        }
    }

    /// Notes that nothing specialised runs until there is new code; this task makes it, or must make room for
    /// it.
    fn nothing_runs(&self) {
        if self.reason != CompileReason::Write {
            self.call_off();
        }
    }
}

/// Duties towards writes while something else is under way.
#[derive(Clone, Copy, Debug)]
pub(super) enum WriteHandling<'t> {
    /// The running variant follows them, or the standby variant goes ahead: the hook is being changed, or
    /// measured.
    Follow,
    /// The standby variant takes over as well, while a variant is made.
    Serve(&'t PendingCompile),
}

impl<'c> LiveSession<'c> {
    /// Makes another thread do something, and attends to writes until it is done.
    ///
    /// # Errors
    /// As for [`LiveSession::run`].
    pub(super) fn run_in_background<R: Send>(
        &mut self,
        duty: WriteHandling<'_>,
        work: impl FnOnce() -> R + Send,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<R, LiveError> {
        let (owner, own) = (self.guard.owner(), self.guard.owner());
        let (result, attended) = thread::scope(|scope| {
            let worker = scope.spawn(move || owner.is_this_thread().map(|()| work()));
            let mut attended = Ok(());
            while !worker.is_finished() {
                attended = attended.and_then(|()| self.attend_for(STEP, duty, tell).map(|_| ()));
                if attended.is_err() {
                    break;
                }
            }
            (worker.join().unwrap_or_else(|panic| resume_unwind(panic)), attended)
        });
        own.is_this_thread()?;
        attended?;
        Ok(result?)
    }

    /// Lets time pass, and attends to writes. `false`, early, if there is one that the running variant cannot
    /// follow.
    pub(super) fn pass(
        &mut self,
        time: Duration,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<bool, LiveError> {
        let end = Instant::now() + time;
        // Earlier events have waited long enough.
        while !self.is_wanted() {
            let left = end.saturating_duration_since(Instant::now());
            if !self.attend_for(left, WriteHandling::Follow, tell)? || left.is_zero() {
                break;
            }
        }
        Ok(!self.is_wanted())
    }

    /// Returns true if something must be answered that cannot wait for the current work.
    pub(super) fn is_wanted(&self) -> bool {
        self.unanswered.is_some() || self.seen.foreign
    }

    /// Makes the standby variant answer a write that came while the hook was busy, and the hook is about to
    /// change in any case: one change is enough. `false` if there is no such write, or no variant that could
    /// answer it.
    pub(super) fn activate_fallback_now(
        &mut self,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<bool, LiveError> {
        self.attend_for(Duration::ZERO, WriteHandling::Follow, tell)?;
        // The standby variant must not be lost to somebody who is not known yet.
        let is_ready = !self.is_busy && !self.seen.foreign && self.standby.is_some();
        let Some(first) = self.unanswered.filter(|_| is_ready) else { return Ok(false) };
        let stands_in = self.activate_fallback(Some(first), tell)?;
        if stands_in {
            self.unanswered = None;
        }
        Ok(stands_in)
    }

    /// Waits for a write, for at most `time`, and attends to it. `false` if there is more to be done.
    fn attend_for(
        &mut self,
        time: Duration,
        duty: WriteHandling<'_>,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<bool, LiveError> {
        let is_behind = self.seen.first.is_some() && !self.seen.foreign;
        self.guard.wait(if is_behind { time.min(AGAIN) } else { time })?;
        let is_busy = std::mem::replace(&mut self.is_busy, true);
        let attended = self.attend(duty, tell);
        self.is_busy = is_busy;
        attended?;
        Ok(!self.is_wanted())
    }

    /// Answers events of the guard, as far as that is possible now.
    fn attend(
        &mut self,
        duty: WriteHandling<'_>,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<(), LiveError> {
        self.take_note();
        let Some(first) = self.seen.first.filter(|_| !self.seen.foreign) else {
            self.leave_strangers(duty);
            return Ok(());
        };
        self.seen.first = None;
        self.put_off_thoroughness();
        if self.is_ahead {
            self.redirect_to_fallback();
            return Ok(());
        }
        let Some(active) = &self.active else { return Ok(()) };
        if self.guard.approved() == Some(active.token()) || self.follow(Some(first), tell)? {
            return Ok(());
        }
        if self.seen.foreign {
            self.seen.first = Some(first);
            self.leave_strangers(duty);
            return Ok(());
        }
        self.unanswered.get_or_insert(first);
        match duty {
            WriteHandling::Follow => self.redirect_to_fallback(),
            WriteHandling::Serve(task) => {
                if self.activate_fallback(Some(first), tell)? {
                    self.unanswered = None;
                    task.another_runs();
                } else {
                    task.nothing_runs();
                }
            }
        }
        Ok(())
    }

    /// Holders of maps are not reviewed now; the variant that is being made must not delay that.
    fn leave_strangers(&self, duty: WriteHandling<'_>) {
        if let (true, WriteHandling::Serve(task)) = (self.seen.foreign, duty) {
            task.call_off();
        }
    }

    /// Restarts the quiet time after a write.
    pub(super) fn put_off_thoroughness(&mut self) {
        if self.thorough_at.is_some() {
            self.thorough_at = Some(Instant::now() + self.quiet);
        }
    }
}
