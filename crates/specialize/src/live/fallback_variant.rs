//! A variant that stands by, to answer writes that the active one cannot follow.
//!
//! Constants are the fastest code as long as they hold; when they do not, making and verifying new code takes
//! tens to hundreds of milliseconds. So beside a variant with tables in code there is a second one, made and
//! judged in a quiet moment, with no table in code that somebody may write: tables are twins, or are looked
//! up. It can follow every write without new code, as long as its twins have room. It answers writes that
//! change tables in code, and constants come back when it has been quiet for a while.
//!
//! Changes since its twins were last brought up to date are noted in `PendingWrites::aside`, beside those
//! with which the active variant has not been brought up to date, from before its tables are read; a write is
//! in both, whichever variant is active. It comes onto the hook as any variant does: by a look at the tables
//! that approves its generation. It keeps its number when it stands by again: its token was approved for the
//! contents of its twins, so a token that comes back still means the same.
//!
//! A change of the hook takes the kernel tens of milliseconds, and until it is done there can be no other. So
//! the standby variant is also in a slot of a program array (`ms.standby`), to which a variant with tables in
//! code passes packets once the standby variant may run
//! ([`millstream_specializer::transform::FallbackTailCall`]). If a write comes while the hook changes, the
//! standby variant is approved at once ([`LiveSession::redirect_to_fallback`]), and handles packets from
//! there until it can be put onto the hook. Until then nobody keeps the variant that was active before up to
//! date. The standby variant checks the token as always, and writes are counted for its caches as always, for
//! these are empty until it has been put onto the hook.
//!
//! Invariant: the changes noted for it are all that may have been written since its tables were read, or its
//! twins brought up to date.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::time::Instant;

use millstream_ir::Map;
use millstream_specializer::changes::DirtyKeys;
use millstream_specializer::policy::Tier;

use super::admission::AdmissionDecision;
use super::background::PendingCompile;
use super::compile_job::{CompileRequest, CompileResult};
use super::deopt_maps::DeoptMaps;
use super::make::{ActivationError, CompileCause, CompileStats};
use super::{LiveError, LiveSession, LoadedVariant};
use crate::report::{CompileReason, SessionReport};
use crate::snapshot::Assumptions;

/// Slot of the standby variant.
const SLOT: [u8; 4] = [0; 4];

/// A variant that is inactive and could become active at once.
#[derive(Debug)]
pub(super) struct FallbackVariant(LoadedVariant);

impl LiveSession<'_> {
    /// Maps in code that somebody may write.
    fn at_risk(&self, record: &Assumptions) -> BTreeSet<Map> {
        // Inner maps are none of the sources.
        let may_change = |map: &Map| self.sources.get(map).is_none_or(|source| !source.is_constant);
        record.in_code().into_iter().filter(may_change).collect()
    }

    /// Returns true if a standby variant is to be made.
    pub(super) fn needs_fallback(&self) -> bool {
        let Some(active) = self.active.as_ref().filter(|a| a.tier != Tier::Standby) else { return false };
        self.standby.is_none() && !self.alone && !self.at_risk(&active.record).is_empty()
    }

    /// Returns true if a variant with tables in code would equal the active one, which stood by before.
    pub(super) fn is_fully_churning(&self) -> bool {
        let restless = self.restless.maps();
        self.active.as_ref().is_some_and(|a| a.tier == Tier::Standby) && self.risked.is_subset(&restless)
    }

    /// Makes a standby variant, and compares it with the original. If none is possible, that is remembered.
    pub(super) fn make_fallback(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        let Some(active) = &self.active else { return Ok(()) };
        let profiles = active.profiles.clone();
        // Begins before anything is read.
        self.seen.aside = DirtyKeys::default();
        let Some(snapshot) = self.begin(&DeoptMaps::default(), tell)? else {
            self.interrupted();
            return Ok(());
        };
        let order = CompileRequest { generation: self.generation + 1, tier: Tier::Standby, profiles };
        let task = PendingCompile::new(Tier::Standby, CompileReason::Quiet);
        let CompileResult { candidate, judged, .. } = self.make(&order, &task, tell)?;
        if task.is_called_off() {
            self.interrupted();
            return Ok(());
        }
        let mut candidate = match candidate {
            Ok(Some(candidate)) => candidate,
            nothing => {
                tracing::debug!("nothing stands by: {:?}", nothing.err());
                self.alone = true;
                return Ok(());
            }
        };
        let admission = self.admits(&mut candidate, judged, &snapshot, tell);
        self.alone = admission == AdmissionDecision::Refused;
        if admission == AdmissionDecision::Void {
            self.interrupted();
        }
        if admission != AdmissionDecision::Granted || self.active.is_none() {
            return Ok(());
        }
        self.generation = order.generation;
        tell(&candidate.fallback_report());
        self.stand_by(candidate.active);
        Ok(())
    }

    /// Makes the standby variant answer a write that the active one cannot follow. `false` if there is none,
    /// or it cannot either, or not now.
    pub(super) fn activate_fallback(
        &mut self,
        write: Option<u64>,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<bool, LiveError> {
        let Some(FallbackVariant(mut active)) = self.standby.take() else { return Ok(false) };
        if !self.is_ahead {
            self.guard.clear_first_packet(active.generation);
        }
        let dirty = match self.catch_up(&mut active, |seen| &mut seen.aside) {
            Ok(dirty) => dirty,
            Err(ActivationError::Busy) => {
                self.standby = Some(FallbackVariant(active));
                return Ok(false);
            }
            Err(ActivationError::Other) => {
                self.vacate();
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
        let Some(FallbackVariant(mut active)) = self.standby.take() else { return };
        if !self.is_ahead {
            self.guard.clear_first_packet(active.generation);
        }
        if let Ok(before) = self.catch_up(&mut active, |seen| &mut seen.aside) {
            // The nominally active variant has not been brought up to date, and does not count writers now.
            self.seen.dirty.merge(before);
            self.open();
            self.is_ahead = true;
        }
        self.standby = Some(FallbackVariant(active));
    }

    /// Makes a variant stand by from now on, in its slot.
    fn stand_by(&mut self, active: LoadedVariant) {
        let slot = self.compiler.standby().and_then(|at| self.session.map(at));
        let filled = slot.map(|slot| slot.update_fd(&SLOT, active.program.as_fd()));
        if let Some(Err(e)) = &filled {
            tracing::debug!("what stands by is on the hook or nowhere: {e}");
        }
        let is_there = matches!(filled, Some(Ok(())));
        self.guard.set_fallback(is_there.then_some(active.generation));
        self.standby = Some(FallbackVariant(active));
    }

    /// Empties the slot. Its variant no longer handles packets from there.
    fn vacate(&mut self) {
        if std::mem::take(&mut self.is_ahead) {
            self.guard.revoke();
        }
        self.guard.set_fallback(None);
        let slot = self.compiler.standby().and_then(|at| self.session.map(at));
        if let Some(Err(e)) = slot.map(|slot| slot.delete(&SLOT)) {
            tracing::debug!("what stood by stays in its slot: {e}");
        }
    }

    /// Makes the variant that was active before stand by from now on, if it can; `dirty` has the contents
    /// that may have changed since they were last compared with it. Returns it if it cannot.
    pub(super) fn keep_as_fallback(
        &mut self,
        before: Option<LoadedVariant>,
        reason: CompileReason,
        dirty: DirtyKeys,
    ) -> Option<LoadedVariant> {
        let Some(now) = &self.active else { return before };
        if now.tier == Tier::Standby {
            return before;
        }
        self.risked = self.at_risk(&now.record);
        match before {
            Some(active) if active.tier == Tier::Standby && reason != CompileReason::Write => {
                self.seen.aside = dirty;
                self.stand_by(active);
                None
            }
            before => {
                if self.standby.is_none() {
                    self.vacate();
                }
                self.alone &= reason == CompileReason::Write;
                before
            }
        }
    }

    /// Drops the standby variant.
    pub(super) fn drop_fallback(&mut self) {
        self.standby = None;
        self.vacate();
        self.alone = false;
    }

    /// Allows maps in code again that have not been written for long enough.
    pub(super) fn reconsider(&mut self) {
        let now = Instant::now();
        if self.restless.is_over(now)
            && let Some(active) = &mut self.active
        {
            if active.tier == Tier::Thorough {
                active.tier = Tier::Quick;
            }
            self.thorough_at.get_or_insert(now + self.quiet);
        }
    }
}
