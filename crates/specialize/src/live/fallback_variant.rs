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
//! standby variant is approved at once (`GuardedProgram::redirect_to_fallback`), and handles packets from
//! there until it can be put onto the hook. Until then nobody keeps the variant that was active before up to
//! date. The standby variant checks the token as always, and writes are counted for its caches as always, for
//! these are empty until it has been put onto the hook.
//!
//! Invariant: the changes noted for it are all that may have been written since its tables were read, or its
//! twins brought up to date.

use std::os::fd::AsFd;

use millstream_kernel::KernelMap;
use millstream_specializer::changes::DirtyKeys;
use millstream_specializer::policy::Tier;

use super::churn::ChurnTracker;
use super::generations::{Generations, LoadedVariant};
use super::loaded_programs::LoadedPrograms;
use super::session_tables::SessionTables;
use crate::guard::Guard;
use crate::report::CompileReason;

/// Slot of the standby variant.
const SLOT: [u8; 4] = [0; 4];

/// Slot from which the standby variant handles packets while the hook cannot be changed.
#[derive(Clone, Copy)]
pub(super) struct FallbackSlot<'s> {
    /// `None` on kernels without such slots.
    array: Option<&'s KernelMap>,
    guard: &'s Guard,
}

impl<'s> FallbackSlot<'s> {
    pub(super) fn new(programs: &'s LoadedPrograms<'_>, guard: &'s Guard) -> FallbackSlot<'s> {
        FallbackSlot { array: programs.standby_slot(), guard }
    }

    fn fill(&self, variant: &LoadedVariant) {
        let filled = self.array.map(|slot| slot.update_fd(&SLOT, variant.program.as_fd()));
        if let Some(Err(e)) = &filled {
            tracing::debug!("what stands by is on the hook or nowhere: {e}");
        }
        let is_there = matches!(filled, Some(Ok(())));
        self.guard.set_fallback(is_there.then_some(variant.generation));
    }

    fn clear(&self) {
        self.guard.set_fallback(None);
        if let Some(Err(e)) = self.array.map(|slot| slot.delete(&SLOT)) {
            tracing::debug!("what stood by stays in its slot: {e}");
        }
    }
}

impl Generations {
    /// Returns true if a standby variant is to be made.
    pub(super) fn needs_fallback(&self, tables: &SessionTables) -> bool {
        let Some(active) = self.active.as_ref().filter(|a| a.tier != Tier::Standby) else { return false };
        self.standby.is_none() && !self.alone && !tables.at_risk(&active.record).is_empty()
    }

    /// Returns true if a variant with tables in code would equal the active one, which stood by before.
    pub(super) fn is_fully_churning(&self, churn: &ChurnTracker) -> bool {
        let restless = churn.maps();
        self.active.as_ref().is_some_and(|a| a.tier == Tier::Standby) && self.risked.is_subset(&restless)
    }

    /// Makes a variant stand by from now on, in its slot.
    pub(super) fn stand_by(&mut self, variant: LoadedVariant, slot: FallbackSlot<'_>) {
        slot.fill(&variant);
        self.standby = Some(variant);
    }

    /// Empties the slot. Its variant no longer handles packets from there.
    pub(super) fn vacate(&mut self, slot: FallbackSlot<'_>) {
        if std::mem::take(&mut self.is_ahead) {
            slot.guard.revoke();
        }
        slot.clear();
    }

    /// Makes the variant that was active before stand by from now on, if it can; `dirty` has the contents
    /// that may have changed since they were last compared with it, and becomes `aside`. Returns it if it
    /// cannot.
    pub(super) fn keep_as_fallback(
        &mut self,
        before: Option<LoadedVariant>,
        reason: CompileReason,
        (dirty, aside): (DirtyKeys, &mut DirtyKeys),
        tables: &SessionTables,
        slot: FallbackSlot<'_>,
    ) -> Option<LoadedVariant> {
        let Some(now) = self.active.as_ref().filter(|now| now.tier != Tier::Standby) else { return before };
        self.risked = tables.at_risk(&now.record);
        match before {
            Some(variant) if variant.tier == Tier::Standby && reason != CompileReason::Write => {
                *aside = dirty;
                self.stand_by(variant, slot);
                None
            }
            before => {
                if self.standby.is_none() {
                    self.vacate(slot);
                }
                self.alone &= reason == CompileReason::Write;
                before
            }
        }
    }

    /// Drops the standby variant.
    pub(super) fn drop_fallback(&mut self, slot: FallbackSlot<'_>) {
        self.standby = None;
        self.vacate(slot);
        self.alone = false;
    }
}
