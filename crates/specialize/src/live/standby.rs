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
//! Invariant: what is noted for it is all that may have been written since its tables were read, or its twins brought up to date.

use std::collections::BTreeSet;
use std::time::Instant;

use millstream_ir::Map;

use super::admit::Admission;
use super::beside::Task;
use super::make::{Cause, Making};
use super::spared::Spared;
use super::workshop::{Made, Order};
use super::{Active, Live, LiveError};
use crate::contents::{Dirty, Record};
use crate::policy::Tier;
use crate::report::{Reason, Report};

/// A variant that is not at work and could be at once.
#[derive(Debug)]
pub(super) struct Standby(Active);

impl Live<'_> {
    /// The maps in code that somebody may write.
    fn at_risk(&self, record: &Record) -> BTreeSet<Map> {
        let may_change = |map: &Map| self.sources.get(map).is_some_and(|source| !source.is_constant);
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
        let candidate = match candidate {
            Ok(Some(candidate)) => candidate,
            nothing => {
                tracing::debug!("nothing stands by: {:?}", nothing.err());
                self.alone = true;
                return Ok(());
            }
        };
        let admission = self.admits(&candidate, judged, &snapshot, tell);
        self.alone = admission == Admission::Refused;
        if admission == Admission::Void {
            self.interrupted();
        }
        if admission != Admission::Granted || self.active.is_none() {
            return Ok(());
        }
        self.generation = order.generation;
        tell(&candidate.stands_by());
        self.standby = Some(Standby(candidate.active));
        Ok(())
    }

    /// Has the variant that stands by answer a write that the one at work cannot follow. `false` if there is none, or it cannot either.
    pub(super) fn stand_in(
        &mut self,
        write: Option<u64>,
        tell: &mut dyn FnMut(&Report),
    ) -> Result<bool, LiveError> {
        let Some(Standby(mut active)) = self.standby.take() else { return Ok(false) };
        self.guard.clear_first_packet(active.generation);
        let Some(dirty) = self.catch_up(&mut active, |seen| &mut seen.aside) else { return Ok(false) };
        let cause = Cause { reason: Reason::Write, write };
        self.install(active, Making::default(), cause, dirty, tell)?;
        Ok(true)
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
                self.standby = Some(Standby(active));
                None
            }
            before => {
                self.alone &= reason == Reason::Write;
                before
            }
        }
    }

    /// Nothing stands by any more.
    pub(super) fn stand_down(&mut self) {
        self.standby = None;
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
