//! A program on a hook whose variants run only while the guard lets them.
//!
//! The part of a session that answers writes by itself: it brings variants up to date, exchanges them, and
//! takes them back. `write_response`, `activation` and `background` are its answers. It makes no code.
//!
//! Invariant: a variant is put onto the hook only after a snapshot has approved it.

use std::time::{Duration, Instant};

use millstream_kernel::{KernelProgram, grace_period};
use millstream_specializer::policy::Tier;

use super::LiveError;
use super::fallback_variant::FallbackSlot;
use super::generations::Generations;
use super::loaded_programs::LoadedPrograms;
use super::schedule::SessionSchedule;
use super::session_hook::SessionHook;
use super::session_tables::SessionTables;
use super::settings::SessionSettings;
use super::state_machine::SessionState;
use super::step::SessionStep;
use super::write_handling::WriteHandling;
use super::write_tracker::WriteTracker;
use crate::attachment::{DetachPolicy, HookAttachments};
use crate::hook_search::is_attached;
use crate::report::SessionReport;
use crate::stats::ProgramTimer;

/// Longest wait for a writer inside bpf(2).
pub(super) const PATIENCE: Duration = Duration::from_millis(200);
/// Attempts to make a generation whose maps change meanwhile.
pub(super) const ATTEMPTS: u32 = 3;
/// Time for which a program is measured, if enough packets come.
pub(super) const MEASURE: Duration = Duration::from_millis(5);

/// Times of the program on the hook.
#[derive(Debug)]
pub(super) struct ProgramTimes {
    pub(super) clock: ProgramTimer,
    /// Nanoseconds per packet of the original, as last measured.
    pub(super) before_ns: Option<f64>,
    /// Nanoseconds per packet of the active variant, as last measured.
    pub(super) now_ns: Option<f64>,
}

impl ProgramTimes {
    pub(super) fn new(clock: ProgramTimer) -> ProgramTimes {
        ProgramTimes { clock, before_ns: None, now_ns: None }
    }
}

/// A program on a hook, and what may run in its place.
#[derive(Debug)]
pub(super) struct GuardedProgram<'c> {
    pub(super) settings: SessionSettings,
    pub(super) programs: LoadedPrograms<'c>,
    pub(super) tables: SessionTables,
    pub(super) writes: WriteTracker,
    // After the guard: whoever claims the pins next finds no guard of this session.
    pub(super) hook: SessionHook,
    pub(super) generations: Generations,
    pub(super) schedule: SessionSchedule,
    pub(super) times: ProgramTimes,
}

impl GuardedProgram<'_> {
    /// State of the code on the hook.
    pub(super) fn state(&self) -> SessionState {
        self.generations.state(self.writes.guard.approved())
    }

    pub(super) fn variant_runs(&self) -> bool {
        self.generations.active.as_ref().is_some_and(|a| self.writes.guard.approved() == Some(a.token()))
    }

    /// The program on the hook now.
    pub(super) fn current(&self) -> &KernelProgram {
        self.hook.attachments.as_ref().map_or(&self.programs.original, HookAttachments::current)
    }

    /// The program to which the kernel accounts the runs of the one on the hook.
    pub(super) fn accounted(&self) -> &KernelProgram {
        self.hook.attachments.as_ref().map_or(&self.programs.original, HookAttachments::accounted)
    }

    /// Packets received since the program was attached, and of these, those that specialised code took (which
    /// needs [`SessionSettings::count`]).
    pub(super) fn packets(&self) -> (u64, u64) {
        let all = self.hook.received.since_start();
        let missed = self.writes.guard.missed() - self.hook.missed_before;
        (all, all.saturating_sub(self.hook.received.elsewhere() + missed))
    }

    pub(super) fn moved(&mut self, tell: &mut dyn FnMut(&SessionReport)) {
        let interfaces = self.hook.interfaces();
        self.hook.received.follow(interfaces.iter().map(|i| i.interface.clone()).collect());
        tell(&SessionReport::Moved { interfaces });
    }

    /// Checks that the program is still where it was put. One interface of several that no longer exists is
    /// given up.
    ///
    /// # Errors
    /// [`LiveError::Gone`] if none is left, [`LiveError::Replaced`].
    pub(super) fn check_place(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        let before = self.hook.held();
        self.hook.attached()?.check()?;
        if self.hook.held() != before {
            self.moved(tell);
        }
        self.review_copies(tell)
    }

    /// Puts a program onto the hook in the place of the present one.
    pub(super) fn swap(&mut self, new: KernelProgram, specialised: bool) -> Result<(), LiveError> {
        self.generations.open_caches();
        self.hook.swap(new, specialised)
    }

    /// As [`GuardedProgram::swap`], while writes are attended to: the kernel waits for a grace period.
    pub(super) fn change(
        &mut self,
        new: KernelProgram,
        specialised: bool,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<(), LiveError> {
        self.generations.open_caches();
        let mut attachments = self.hook.attachments.take().ok_or(LiveError::NotAttached)?;
        let steps = self.settings.steps.clone();
        let swap = || {
            steps.at(SessionStep::Swapping);
            attachments.swap(new)
        };
        let changed = self.run_in_background(WriteHandling::Follow, swap, tell);
        self.hook.attachments = Some(attachments);
        changed??;
        self.hook.received.turn(specialised);
        Ok(())
    }

    /// Makes the variant's caches usable again, after a grace period.
    pub(super) fn settle_beside(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        if self.generations.active.as_ref().is_some_and(|active| active.caches.is_open()) {
            let has_passed =
                self.run_in_background(WriteHandling::Follow, || grace_period().is_ok(), tell)?;
            if let Some(active) =
                self.generations.active.as_mut().filter(|_| has_passed && !self.generations.is_ahead)
            {
                active.caches.close();
            }
        }
        Ok(())
    }

    /// Measures the nanoseconds per packet of the program on the hook, with its caches as full as they are in
    /// use: each write and each measurement empties them.
    pub(super) fn variant_ns(
        &mut self,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<Option<f64>, LiveError> {
        let cold = self.generations.active.as_ref().map_or(Duration::ZERO, |active| active.caches.cold());
        if !self.pass(cold, tell)? {
            return Ok(None);
        }
        self.measured(tell)
    }

    /// Measures the nanoseconds per packet of the program on the hook. `None` if too few packets came, or a
    /// write must be answered first.
    pub(super) fn measured(
        &mut self,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<Option<f64>, LiveError> {
        let (clock, program) = (self.times.clock, self.accounted().try_clone()?);
        clock.measure(&program, MEASURE, |time| self.pass(time, tell))
    }

    /// Gives programs that are loaded from now on the maps of the active variant.
    pub(super) fn load_beside_active(&mut self) -> Result<(), LiveError> {
        match &self.generations.active {
            Some(active) => Ok(self.programs.load_beside(active)?),
            None => Ok(()),
        }
    }

    /// Allows maps in code again that have not been written for long enough.
    pub(super) fn reconsider(&mut self) {
        let now = Instant::now();
        if self.tables.churn.is_over(now)
            && let Some(active) = &mut self.generations.active
        {
            if active.tier == Tier::Thorough {
                active.tier = Tier::Quick;
            }
            self.schedule.await_quiet_from(now);
        }
    }

    /// Drops the standby variant.
    pub(super) fn drop_fallback(&mut self) {
        self.generations.drop_fallback(FallbackSlot::new(&self.programs, &self.writes.guard));
    }

    /// Checks who may write the maps, for the first time. A process that was killed a moment ago may still be
    /// releasing its programs.
    pub(super) fn first_review(&mut self) -> Result<(), LiveError> {
        let end = Instant::now() + PATIENCE;
        while self.tables.is_held_elsewhere(&self.programs)? && Instant::now() <= end {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.review(&mut |_| {})
    }

    /// Checks again who may write the maps, and gives up those that others may write. All new holders that
    /// were noted must have come.
    pub(super) fn review(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        let Some(lost) = self.tables.review(&self.programs, &mut self.writes.guard)? else {
            self.writes.seen.foreign = true;
            return Ok(());
        };
        self.writes.seen.foreign = false;
        if lost.is_empty() {
            return Ok(());
        }
        self.programs.profiling = None;
        self.drop_fallback();
        let reason =
            lost.iter().map(|(name, why)| format!("map {name:?}: {why}")).collect::<Vec<_>>().join("; ");
        self.withdraw(reason, tell)
    }

    /// Gives up caches whose maps are written without being counted: by a program with the session's code, on
    /// another hook. It may have been attached by a call that no guard sees.
    pub(super) fn review_copies(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        if self.tables.copies.is_empty() || !is_attached(&self.tables.copies).unwrap_or(true) {
            return Ok(());
        }
        self.writes.guard.revoke();
        self.review(tell)
    }

    /// Puts the original back.
    pub(super) fn withdraw(
        &mut self,
        reason: String,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<(), LiveError> {
        self.drop_fallback();
        let Some(active) = self.generations.active.take() else { return Ok(()) };
        self.writes.guard.revoke();
        let original = self.programs.original.try_clone()?;
        self.swap(original, false)?;
        self.times.now_ns = None;
        self.schedule.thorough_at = None;
        tell(&SessionReport::Withdrawn { generation: active.generation, reason });
        Ok(())
    }

    pub(super) fn end(&mut self, leave: DetachPolicy) -> Result<Option<String>, LiveError> {
        self.writes.guard.revoke();
        self.hook.attachments.take().map(|place| place.leave(&self.programs.original, leave)).transpose()
    }
}

/// A session that ends by an error leaves a program that handles packets unattended.
impl Drop for GuardedProgram<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.end(DetachPolicy::Unattended) {
            tracing::warn!("putting the original back: {error}");
        }
    }
}

/// Time in whole microseconds.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
