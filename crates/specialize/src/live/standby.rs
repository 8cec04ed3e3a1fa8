//! A variant that stands by, to answer writes that the one at work cannot follow.
//!
//! Constants are the fastest code as long as they hold; when they do not, other code takes tens to hundreds of milliseconds to be made and
//! verified. So beside a variant with tables in code there is one, made and judged in a quiet moment, in which nothing is that somebody
//! may write: tables are twins, or are looked up. It can follow every write without other code, as long as its twins have room. A write that changes
//! what is in code is answered by it, and constants come back when it has been quiet for a while.
//!
//! What may have changed since its twins were last brought up to date is noted beside what the variant at work has not been brought up to date with
//! (`Seen::aside`), from before its tables are read; a write is in both, whichever of them is at work. It comes onto the hook as any variant does: by a look
//! at the tables that approves its generation. It keeps its number when it stands by again: by its token it was approved for what its twins hold, so
//! a token that comes back says what it said.
//!
//! A change of the hook takes the kernel tens of milliseconds, and until it is done there can be no other. So what stands by is also in a slot of a program
//! array (`ms.standby`), to which whatever has tables in code leaves packets once that which stands by may run
//! ([`crate::transform::StandIn`]). Where a write comes while the hook changes, it is approved at once ([`Live::go_ahead`]), and handles packets
//! from there until it can be put onto the hook. Until then what was at work before is followed by nobody. It asks for the token as always; and what
//! its caches need is counted as always, for they are empty until it has been put onto the hook.
//!
//! Invariant: what is noted for it is all that may have been written since its tables were read, or its twins brought up to date.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::time::Instant;

use millstream_ir::Map;

use super::admit::Admission;
use super::beside::Task;
use super::make::{Cause, Late, Making};
use super::spared::Spared;
use super::workshop::{Made, Order};
use super::{Active, Live, LiveError};
use crate::contents::{Dirty, Record};
use crate::policy::Tier;
use crate::report::{Reason, Report};

/// The slot of what stands by.
const SLOT: [u8; 4] = [0; 4];

/// A variant that is not at work and could be at once.
#[derive(Debug)]
pub(super) struct Standby(Active);

impl Live<'_> {
    /// The maps in code that somebody may write.
    fn at_risk(&self, record: &Record) -> BTreeSet<Map> {
        // Inner maps are none of the sources.
        let may_change = |map: &Map| self.sources.get(map).is_none_or(|source| !source.is_constant);
        record.in_code().into_iter().filter(may_change).collect()
    }

    /// Whether a variant is to be made that stands by.
    pub(super) fn wants_standby(&self) -> bool {
        let Some(active) = self.active.as_ref().filter(|a| a.tier != Tier::Standby) else { return false };
        self.standby.is_none() && !self.alone && !self.at_risk(&active.record).is_empty()
    }

    /// Whether a variant with tables in code would be no other than the one that is at work, which stood by before.
    pub(super) fn is_all_restless(&self) -> bool {
        let restless = self.restless.maps();
        self.active.as_ref().is_some_and(|a| a.tier == Tier::Standby) && self.risked.is_subset(&restless)
    }

    /// Makes a variant that stands by, and holds it against the original. That there can be none is remembered.
    pub(super) fn make_standby(&mut self, tell: &mut dyn FnMut(&Report)) -> Result<(), LiveError> {
        let Some(active) = &self.active else { return Ok(()) };
        let profiles = active.profiles.clone();
        // From before anything is read.
        self.seen.aside = Dirty::default();
        let Some(snapshot) = self.begin(&Spared::default(), tell)? else {
            self.interrupted();
            return Ok(());
        };
        let order = Order { generation: self.generation + 1, tier: Tier::Standby, profiles };
        let task = Task::new(Tier::Standby, Reason::Quiet);
        let Made { candidate, judged, .. } = self.make(&order, &task, tell)?;
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
        self.alone = admission == Admission::Refused;
        if admission == Admission::Void {
            self.interrupted();
        }
        if admission != Admission::Granted || self.active.is_none() {
            return Ok(());
        }
        self.generation = order.generation;
        tell(&candidate.stands_by());
        self.stand_by(candidate.active);
        Ok(())
    }

    /// Has the variant that stands by answer a write that the one at work cannot follow. `false` if there is none, or it cannot either, or not now.
    pub(super) fn stand_in(
        &mut self,
        write: Option<u64>,
        tell: &mut dyn FnMut(&Report),
    ) -> Result<bool, LiveError> {
        let Some(Standby(mut active)) = self.standby.take() else { return Ok(false) };
        if !self.is_ahead {
            self.guard.clear_first_packet(active.generation);
        }
        let dirty = match self.catch_up(&mut active, |seen| &mut seen.aside) {
            Ok(dirty) => dirty,
            Err(Late::Busy) => {
                self.standby = Some(Standby(active));
                return Ok(false);
            }
            Err(Late::Other) => {
                self.vacate();
                return Ok(false);
            }
        };
        let cause = Cause { reason: Reason::Write, write };
        self.install(active, Making::default(), cause, dirty, tell)?;
        Ok(true)
    }

    /// Lets what stands by handle packets that come to what is on the hook, which cannot be changed now, if it can follow what was written.
    pub(super) fn go_ahead(&mut self) {
        let Some(Standby(mut active)) = self.standby.take() else { return };
        if !self.is_ahead {
            self.guard.clear_first_packet(active.generation);
        }
        if let Ok(before) = self.catch_up(&mut active, |seen| &mut seen.aside) {
            // What is at work in name has not been brought up to date with it, and does not count who writes now.
            self.seen.dirty.merge(before);
            self.open();
            self.is_ahead = true;
        }
        self.standby = Some(Standby(active));
    }

    /// A variant stands by from now on, in its slot.
    fn stand_by(&mut self, active: Active) {
        let slot = self.compiler.standby().and_then(|at| self.session.map(at));
        let filled = slot.map(|slot| slot.update_fd(&SLOT, active.program.as_fd()));
        if let Some(Err(e)) = &filled {
            tracing::debug!("what stands by is on the hook or nowhere: {e}");
        }
        let is_there = matches!(filled, Some(Ok(())));
        self.guard.name_standby(is_there.then_some(active.generation));
        self.standby = Some(Standby(active));
    }

    /// Nothing is in the slot any more. What handled packets from there does so no longer.
    fn vacate(&mut self) {
        if std::mem::take(&mut self.is_ahead) {
            self.guard.revoke();
        }
        self.guard.name_standby(None);
        let slot = self.compiler.standby().and_then(|at| self.session.map(at));
        if let Some(Err(e)) = slot.map(|slot| slot.delete(&SLOT)) {
            tracing::debug!("what stood by stays in its slot: {e}");
        }
    }

    /// What was at work before stands by from now on, if it can; `dirty` is what may have changed since it was found to hold. Gives it back if
    /// it cannot.
    pub(super) fn put_aside(
        &mut self,
        before: Option<Active>,
        reason: Reason,
        dirty: Dirty,
    ) -> Option<Active> {
        let Some(now) = &self.active else { return before };
        if now.tier == Tier::Standby {
            return before;
        }
        self.risked = self.at_risk(&now.record);
        match before {
            Some(active) if active.tier == Tier::Standby && reason != Reason::Write => {
                self.seen.aside = dirty;
                self.stand_by(active);
                None
            }
            before => {
                if self.standby.is_none() {
                    self.vacate();
                }
                self.alone &= reason == Reason::Write;
                before
            }
        }
    }

    /// Nothing stands by any more.
    pub(super) fn stand_down(&mut self) {
        self.standby = None;
        self.vacate();
        self.alone = false;
    }

    /// Lets maps into code again that have been left alone for long enough.
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
