//! Writes are answered while something else takes long.
//!
//! The kernel follows all ways through a program in one call, up to half a second for a large one; swaps and caches wait for grace periods;
//! measuring waits for packets. None of it may keep a write from being looked at. So the session's thread does nothing itself that
//! takes long: it has another thread do it ([`Live::beside`]), or lets the time pass ([`Live::pass`]), and attends to writes meanwhile. Twins
//! are brought up to date, and what stands by takes over. What needs other code waits until that can be made.
//!
//! What works beside gets all that it needs, and shares nothing with the session that changes but maps. What may have changed since
//! *it* read them is noted for it (`Seen::making`, `Seen::aside`), whatever is answered meanwhile; it comes onto the hook by a look
//! at the tables of its own.
//!
//! Invariant: while somebody works beside, he alone loads programs, and who else holds maps is not asked, for what he has just
//! loaded is not known yet: what somebody new may write revokes until that is over.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{AGAIN, Live, LiveError};
use crate::policy::Tier;
use crate::report::{Reason, Report};

/// From one look whether it is over to the next.
const STEP: Duration = Duration::from_micros(500);

/// A variant that is being made.
#[derive(Debug)]
pub(super) struct Task {
    tier: Tier,
    reason: Reason,
    /// It is of no use any more.
    is_called_off: AtomicBool,
}

impl Task {
    pub(super) fn new(tier: Tier, reason: Reason) -> Task {
        Task { tier, reason, is_called_off: AtomicBool::new(false) }
    }

    pub(super) fn is_called_off(&self) -> bool {
        self.is_called_off.load(Ordering::SeqCst)
    }

    fn call_off(&self) {
        self.is_called_off.store(true, Ordering::SeqCst);
    }

    /// What stood by has taken over. What was to have whole tables in code was made of others.
    fn another_runs(&self) {
        if self.tier != Tier::Quick {
            self.call_off();
        }
    }

    /// Nothing specialised runs until there is other code; this is it, or must make room for it.
    fn nothing_runs(&self) {
        if self.reason != Reason::Write {
            self.call_off();
        }
    }
}

/// What is done about writes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Duty<'t> {
    /// What runs follows them, or what stands by goes ahead: something is being done to the hook, or it is measured.
    Follow,
    /// What stands by takes over as well, while a variant is made.
    Serve(&'t Task),
}

impl<'c> Live<'c> {
    /// Has another thread do something, and attends to writes until it is done.
    ///
    /// # Errors
    /// As for [`Live::run`].
    pub(super) fn beside<R: Send>(
        &mut self,
        duty: Duty<'_>,
        work: impl FnOnce() -> R + Send,
        tell: &mut dyn FnMut(&Report),
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

    /// Lets time pass, and attends to writes. `false`, early, if there is one that what runs cannot follow.
    pub(super) fn pass(&mut self, time: Duration, tell: &mut dyn FnMut(&Report)) -> Result<bool, LiveError> {
        let end = Instant::now() + time;
        // What came before has waited long enough.
        while !self.is_wanted() {
            let left = end.saturating_duration_since(Instant::now());
            if !self.attend_for(left, Duty::Follow, tell)? || left.is_zero() {
                break;
            }
        }
        Ok(!self.is_wanted())
    }

    /// Whether there is something to be answered that cannot wait for what is done now.
    pub(super) fn is_wanted(&self) -> bool {
        self.unanswered.is_some() || self.seen.foreign
    }

    /// Has what stands by answer a write that came while something was done to the hook, which is about to change in any case: one change
    /// is enough. `false` if there is no such write, or nothing that could answer it.
    pub(super) fn stand_in_at_once(&mut self, tell: &mut dyn FnMut(&Report)) -> Result<bool, LiveError> {
        self.attend_for(Duration::ZERO, Duty::Follow, tell)?;
        // What could answer it must not be lost to somebody who is not known yet.
        let is_ready = !self.is_busy && !self.seen.foreign && self.standby.is_some();
        let Some(first) = self.unanswered.filter(|_| is_ready) else { return Ok(false) };
        let stands_in = self.stand_in(Some(first), tell)?;
        if stands_in {
            self.unanswered = None;
        }
        Ok(stands_in)
    }

    /// Waits for a write, for so long, and attends to it. `false` if there is more to be done.
    fn attend_for(
        &mut self,
        time: Duration,
        duty: Duty<'_>,
        tell: &mut dyn FnMut(&Report),
    ) -> Result<bool, LiveError> {
        let is_behind = self.seen.first.is_some() && !self.seen.foreign;
        self.guard.wait(if is_behind { time.min(AGAIN) } else { time })?;
        let is_busy = std::mem::replace(&mut self.is_busy, true);
        let attended = self.attend(duty, tell);
        self.is_busy = is_busy;
        attended?;
        Ok(!self.is_wanted())
    }

    /// Answers what the guard has seen, as far as that can be done now.
    fn attend(&mut self, duty: Duty<'_>, tell: &mut dyn FnMut(&Report)) -> Result<(), LiveError> {
        self.take_note();
        let Some(first) = self.seen.first.filter(|_| !self.seen.foreign) else {
            self.leave_strangers(duty);
            return Ok(());
        };
        self.seen.first = None;
        self.put_off_thoroughness();
        if self.is_ahead {
            self.go_ahead();
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
            Duty::Follow => self.go_ahead(),
            Duty::Serve(task) => {
                if self.stand_in(Some(first), tell)? {
                    self.unanswered = None;
                    task.another_runs();
                } else {
                    task.nothing_runs();
                }
            }
        }
        Ok(())
    }

    /// Who else may write maps is not asked now; what is being made must not keep that waiting.
    fn leave_strangers(&self, duty: Duty<'_>) {
        if let (true, Duty::Serve(task)) = (self.seen.foreign, duty) {
            task.call_off();
        }
    }

    /// A write came: it must be quiet for as long again.
    pub(super) fn put_off_thoroughness(&mut self) {
        if self.thorough_at.is_some() {
            self.thorough_at = Some(Instant::now() + self.quiet);
        }
    }
}
