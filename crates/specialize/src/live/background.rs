//! Answering writes while something else takes long.
//!
//! The kernel follows all paths through a program in one call, up to half a second for a large one; swaps and
//! caches wait for grace periods; measuring waits for packets. None of these may delay the answer to a write.
//! So the session's thread does nothing itself that takes long: it makes another thread do it
//! ([`GuardedProgram::run_in_background`]), or lets the time pass ([`GuardedProgram::pass`]), and attends to writes
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
use std::thread;
use std::time::{Duration, Instant};

use super::LiveError;
use super::guarded_program::GuardedProgram;
use super::state_machine::{SessionResponse, responses};
use super::write_handling::WriteHandling;
use super::write_tracker::AGAIN;
use crate::report::SessionReport;

/// Interval at which the other thread's progress is checked.
const STEP: Duration = Duration::from_micros(500);

impl GuardedProgram<'_> {
    /// Makes another thread do something, and attends to writes until it is done.
    ///
    /// # Errors
    /// As for [`LiveSession::run`](super::LiveSession::run).
    pub(super) fn run_in_background<R: Send>(
        &mut self,
        duty: WriteHandling<'_>,
        work: impl FnOnce() -> R + Send,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<R, LiveError> {
        let (owner, own) = (self.writes.guard.owner(), self.writes.guard.owner());
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
        while !self.writes.is_urgent() {
            let left = end.saturating_duration_since(Instant::now());
            if !self.attend_for(left, WriteHandling::Follow, tell)? || left.is_zero() {
                break;
            }
        }
        Ok(!self.writes.is_urgent())
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
        let is_ready =
            !self.writes.is_busy && !self.writes.seen.foreign && self.generations.standby.is_some();
        let Some(first) = self.writes.unanswered.filter(|_| is_ready) else { return Ok(false) };
        let stands_in = self.activate_fallback(Some(first), tell)?;
        if stands_in {
            self.writes.unanswered = None;
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
        let is_behind = self.writes.seen.first.is_some() && !self.writes.seen.foreign;
        self.writes.guard.wait(if is_behind { time.min(AGAIN) } else { time })?;
        let is_busy = std::mem::replace(&mut self.writes.is_busy, true);
        let attended = self.attend(duty, tell);
        self.writes.is_busy = is_busy;
        attended?;
        Ok(!self.writes.is_urgent())
    }

    /// Answers events of the guard, as far as that is possible now.
    fn attend(
        &mut self,
        duty: WriteHandling<'_>,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<(), LiveError> {
        self.take_note();
        let Some(first) = self.writes.seen.first.filter(|_| !self.writes.seen.foreign) else {
            self.leave_strangers(duty);
            return Ok(());
        };
        self.writes.seen.first = None;
        self.schedule.put_off_thoroughness();
        for response in responses(self.state(), duty.event()) {
            let is_answered = match (response, duty) {
                (SessionResponse::Follow, _) => {
                    let follows = self.follow(Some(first), tell)?;
                    if !follows && self.writes.seen.foreign {
                        self.writes.seen.first = Some(first);
                        self.leave_strangers(duty);
                        return Ok(());
                    }
                    if !follows {
                        self.writes.unanswered.get_or_insert(first);
                    }
                    follows
                }
                (SessionResponse::ActivateFallback, WriteHandling::Serve(task)) => {
                    let stands_in = self.activate_fallback(Some(first), tell)?;
                    if stands_in {
                        self.writes.unanswered = None;
                        task.another_runs();
                    } else {
                        task.nothing_runs();
                    }
                    stands_in
                }
                (SessionResponse::RedirectToFallback, _) => {
                    self.redirect_to_fallback();
                    true
                }
                // Whatever needs new code waits.
                _ => false,
            };
            if is_answered {
                break;
            }
        }
        Ok(())
    }

    /// Holders of maps are not reviewed now; the variant that is being made must not delay that.
    fn leave_strangers(&self, duty: WriteHandling<'_>) {
        if let (true, WriteHandling::Serve(task)) = (self.writes.seen.foreign, duty) {
            task.call_off();
        }
    }
}
