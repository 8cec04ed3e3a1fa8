//! Activation of variants: brought up to date, approved, and put onto the hook.

use std::time::Instant;

use millstream_specializer::changes::DirtyKeys;
use millstream_specializer::guard_state::{DeoptMask, token};
use millstream_specializer::policy::Tier;

use super::LiveError;
use super::candidate::CompileStats;
use super::fallback_variant::FallbackSlot;
use super::generations::LoadedVariant;
use super::guarded_program::{GuardedProgram, PATIENCE, micros};
use super::step::SessionStep;
use super::write_tracker::PendingWrites;
use crate::report::{CompileReason, SessionReport};
use crate::snapshot::Revalidation;

/// Attempts to bring a candidate up to date before it is made anew.
const CATCHING_UP: u32 = 10;

/// Reason for making a generation.
#[derive(Clone, Copy)]
pub(super) struct CompileCause {
    pub(super) reason: CompileReason,
    /// The write that it answers.
    pub(super) write: Option<u64>,
}

/// Reasons why an inactive variant cannot become active at once.
pub(super) enum ActivationError {
    /// A writer stays inside, others come all the time, or somebody has come who is not known yet.
    Busy,
    /// Its code depends on tables that have changed, and cannot follow.
    Other,
}

impl GuardedProgram<'_> {
    /// Lets an inactive variant run, if it can follow the contents that may have changed since its tables
    /// were read (`since`): it does not depend on them, or its twins can take them over. Returns the contents
    /// that may have changed since they were last compared with the running variant.
    pub(super) fn catch_up(
        &mut self,
        active: &mut LoadedVariant,
        since: impl Fn(&mut PendingWrites) -> &mut DirtyKeys,
    ) -> Result<DirtyKeys, ActivationError> {
        let spared = active.spared.slots();
        for _ in 0..CATCHING_UP {
            let again = self.writes.guard.begin(PATIENCE, &[]).ok_or(ActivationError::Busy)?;
            self.take_note();
            if self.writes.seen.foreign {
                return Err(ActivationError::Busy);
            }
            // If it is not approved, the same contents are looked at once more. A writer that was noted
            // before the tables were read may have written afterwards.
            let dirty = since(&mut self.writes.seen).clone();
            if !self.programs.keeps_up(&mut active.chain, &dirty, &self.settings.steps) {
                return Err(ActivationError::Other);
            }
            let side = match active.record.present(&self.tables.sources, &dirty) {
                Revalidation::Same => None,
                Revalidation::Other => return Err(ActivationError::Other),
                Revalidation::Twinned(changes) => {
                    Some(active.twins.write(changes).map_err(|_| ActivationError::Other)?.0)
                }
            };
            self.settings.steps.at(SessionStep::CaughtUp);
            let new = token(active.generation, side.unwrap_or(active.twins.side()));
            if let Some(behind) = self.writes.guard.approve(again, new, spared, DeoptMask::NONE) {
                active.twins.switch_side(side.unwrap_or(active.twins.side()));
                *since(&mut self.writes.seen) = DirtyKeys::default();
                return Ok(self.approved(active, behind, &dirty));
            }
        }
        Err(ActivationError::Busy)
    }

    /// Marks a variant as approved, with maps behind whose contents in `dirty` may have changed: from now on
    /// writes to maps that it can do without stop nothing else. Returns the contents that may have changed
    /// since they were last compared with the variant that ran before.
    pub(super) fn approved(
        &mut self,
        active: &LoadedVariant,
        behind: DeoptMask,
        dirty: &DirtyKeys,
    ) -> DirtyKeys {
        self.writes.guard.mark(active.generation, &active.spared.places());
        let before = std::mem::take(&mut self.writes.seen.dirty);
        self.writes.left_behind(&active.spared, behind, dirty, None);
        before
    }

    /// Puts an approved variant onto the hook. `dirty` has the contents that may have changed since they were
    /// last compared with the variant before. Returns true if it was measured, and is to be judged.
    pub(super) fn install(
        &mut self,
        active: LoadedVariant,
        making: CompileStats,
        cause: CompileCause,
        dirty: DirtyKeys,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<bool, LiveError> {
        let CompileStats { compile, load, entries } = making;
        let (generation, slots, tier) = (active.generation, active.linked.insns.len(), active.tier);
        self.generations.last = self.generations.last.max(generation);
        self.generations.open_caches();
        // The guard has its token: from here on this variant follows writes.
        let before = self.generations.active.replace(active);
        self.generations.is_ahead = false;
        let gone = self.generations.keep_as_fallback(
            before,
            cause.reason,
            (dirty, &mut self.writes.seen.aside),
            &self.tables,
            FallbackSlot::new(&self.programs, &self.writes.guard),
        );
        self.settings.steps.at(SessionStep::Approved);
        // A write is answered as fast as possible; the result is judged at the next look at the traffic.
        let judged = self.settings.measure && cause.reason != CompileReason::Write;
        if judged {
            // The program on the hook is the original, or turns every packet away to it.
            self.times.before_ns = self.measured(tell)?;
        }
        if cause.reason != CompileReason::Write && self.activate_fallback_now(tell)? {
            if cause.reason == CompileReason::Quiet {
                self.schedule.interrupted();
            }
            tell(&SessionReport::Dropped { reason: "a write came before it was at work".into() });
            return Ok(false);
        }
        let start = Instant::now();
        self.come_onto_hook(tell)?;
        let swap = start.elapsed();
        // Its own arrays are emptied only now that no packet begins there any more.
        drop(gone);
        self.load_beside_active()?;
        if matches!(cause.reason, CompileReason::Start | CompileReason::Profile | CompileReason::Traffic) {
            self.schedule.fruitless = 0;
        }
        let is_last = tier == Tier::Thorough && !self.generations.needs_fallback(&self.tables);
        if cause.reason == CompileReason::Quiet {
            self.schedule.reset_quiet();
        }
        self.schedule.thorough_at = None;
        if !is_last {
            self.schedule.await_quiet();
        }
        // Measurements of the variant before say nothing about this one.
        (self.times.before_ns, self.times.now_ns) =
            if judged { (self.times.before_ns, self.variant_ns(tell)?) } else { (None, None) };
        let first = self.writes.guard.first_packet(generation);
        tell(&SessionReport::Specialised {
            generation,
            reason: cause.reason,
            write_ns: cause.write,
            latency_us: cause.write.zip(first).map(|(w, f)| f.saturating_sub(w) / 1000),
            compile_us: micros(compile),
            load_us: micros(load),
            swap_us: micros(swap),
            entries,
            slots,
            ns: self.times.now_ns,
        });
        Ok(judged)
    }

    /// Puts the variant that was just approved onto the hook.
    fn come_onto_hook(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        let Some(active) = &self.generations.active else { return Ok(()) };
        let program = active.program.try_clone()?;
        // A variant that answers a write while something is made beside must be swapped in by this thread.
        let done =
            if self.writes.is_busy { self.swap(program, true) } else { self.change(program, true, tell) };
        if done.is_err() {
            self.writes.guard.revoke();
            self.generations.active = None;
            self.drop_fallback();
        }
        done?;
        if self.writes.is_busy {
            self.generations.settle_caches();
            return Ok(());
        }
        if self.writes.unanswered.is_some() {
            // It will hardly stay; if it does, the next look at the traffic makes up for it.
            return Ok(());
        }
        self.settle_beside(tell)
    }

    /// Makes the standby variant answer a write that the active one cannot follow. `false` if there is none,
    /// or it cannot either, or not now.
    pub(super) fn activate_fallback(
        &mut self,
        write: Option<u64>,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<bool, LiveError> {
        let Some(mut active) = self.generations.standby.take() else { return Ok(false) };
        if !self.generations.is_ahead {
            self.writes.guard.clear_first_packet(active.generation);
        }
        let dirty = match self.catch_up(&mut active, |seen| &mut seen.aside) {
            Ok(dirty) => dirty,
            Err(ActivationError::Busy) => {
                self.generations.standby = Some(active);
                return Ok(false);
            }
            Err(ActivationError::Other) => {
                self.generations.vacate(FallbackSlot::new(&self.programs, &self.writes.guard));
                return Ok(false);
            }
        };
        let cause = CompileCause { reason: CompileReason::Write, write };
        self.install(active, CompileStats::default(), cause, dirty, tell)?;
        Ok(true)
    }

    /// Lets the standby variant handle packets that come to the program on the hook, which cannot be changed
    /// now, if it can follow the write.
    pub(super) fn redirect_to_fallback(&mut self) {
        let Some(mut active) = self.generations.standby.take() else { return };
        if !self.generations.is_ahead {
            self.writes.guard.clear_first_packet(active.generation);
        }
        if let Ok(before) = self.catch_up(&mut active, |seen| &mut seen.aside) {
            // The nominally active variant has not been brought up to date, and does not count writers now.
            self.writes.seen.dirty.merge(before);
            self.generations.open_caches();
            self.generations.is_ahead = true;
        }
        self.generations.standby = Some(active);
    }
}
