//! Answers to control-plane writes that need no new code.

use std::time::Instant;

use millstream_lab::os::monotonic_ns;
use millstream_specializer::changes::{DirtyKeys, ShadowUpdates};
use millstream_specializer::guard_state::{DeoptMask, token};

use super::LiveError;
use super::deopt_maps::DeoptMaps;
use super::generations::LoadedVariant;
use super::guarded_program::{ATTEMPTS, GuardedProgram, PATIENCE, micros};
use super::step::SessionStep;
use crate::guard::GuardSnapshot;
use crate::report::SessionReport;
use crate::shadow_tables::ShadowWriteError;
use crate::snapshot::Revalidation;

/// Attempts to find the first packet before it is left out of the report.
const LOOKS: u32 = 10;

impl GuardedProgram<'_> {
    /// Records the events that the guard has seen. After a snapshot has begun, these are all writes before
    /// it.
    pub(super) fn take_note(&mut self) {
        self.writes.take_note(&self.tables, &self.programs.arrays);
    }

    /// Begins a snapshot: all earlier events are noted, and all writers are known. `None` if a writer stays
    /// inside, or new ones come all the time. Writers may stay inside the `spared` maps.
    pub(super) fn begin(
        &mut self,
        spared: &DeoptMaps,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<Option<GuardSnapshot>, LiveError> {
        for _ in 0..ATTEMPTS {
            let Some(snapshot) = self.writes.guard.begin(PATIENCE, &spared.places()) else { return Ok(None) };
            self.take_note();
            if !self.writes.seen.foreign {
                return Ok(Some(snapshot));
            }
            if self.writes.is_busy {
                return Ok(None);
            }
            self.review(tell)?;
        }
        Ok(None)
    }

    /// Lets the running generation go on, its twins brought up to date, or soon those of maps that it can do
    /// without. `false` if that needs new code.
    pub(super) fn follow(
        &mut self,
        write: Option<u64>,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<bool, LiveError> {
        if self.generations.is_ahead {
            return Ok(false);
        }
        for _ in 0..ATTEMPTS {
            let start = Instant::now();
            let spared = self.generations.active.as_ref().map(|a| a.spared.clone()).unwrap_or_default();
            let Some(snapshot) = self.begin(&spared, tell)? else { return Ok(false) };
            let Some(active) = &self.generations.active else { return Ok(false) };
            let dirty = std::mem::take(&mut self.writes.seen.dirty);
            let runs = self.writes.guard.approved().is_some_and(|token| token >> 32 == active.token() >> 32);
            let (behind, now) = put_off(active, &snapshot, &dirty, runs);
            if runs && !behind.is_empty() && now.is_empty() {
                self.writes.left_behind(&spared, behind, &dirty, write);
                return Ok(true);
            }
            let present = active.record.present(&self.tables.sources, &now);
            let present = if self.active_keeps_up(&now) { present } else { Revalidation::Other };
            self.settings.steps.at(SessionStep::Followed);
            // No cache has entries that were written while the generation ran.
            if let Some(active) = self.generations.active.as_mut().filter(|_| !runs) {
                active.caches.forget();
            }
            let done = match present {
                Revalidation::Other => {
                    let changed = self
                        .generations
                        .active
                        .as_ref()
                        .map(|a| a.record.changed(&self.tables.sources, &now));
                    let noticed = Instant::now();
                    changed.into_iter().flatten().for_each(|map| self.tables.churn.note(map, noticed));
                    None
                }
                Revalidation::Same => Some(self.confirm(snapshot, behind, write, tell)),
                Revalidation::Twinned(changes) => {
                    match self.refresh(snapshot, behind, changes, start, write, tell) {
                        Ok(done) => Some(done),
                        Err(reason) => {
                            tracing::debug!("other code is needed: {reason}");
                            None
                        }
                    }
                }
            };
            if let Some(Some(behind)) = done {
                self.writes.left_behind(&spared, behind, &dirty, write);
                return Ok(true);
            }
            // The recorded events are not answered yet.
            self.writes.seen.dirty.merge(dirty);
            if done.is_none() {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Confirms the running generation: most writes change nothing that the code was made from. Returns the
    /// maps that are behind, `None` if a write came meanwhile.
    fn confirm(
        &mut self,
        snapshot: GuardSnapshot,
        behind: DeoptMask,
        write: Option<u64>,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Option<DeoptMask> {
        let active = self.generations.active.as_mut()?;
        let generation = active.generation;
        let behind = self.writes.guard.approve(snapshot, active.token(), active.spared.slots(), behind)?;
        if let (Some(write_ns), true) = (write, behind.is_empty()) {
            let latency_us = monotonic_ns().saturating_sub(write_ns) / 1000;
            tell(&SessionReport::Confirmed { generation, write_ns, latency_us });
        }
        Some(behind)
    }

    /// Gives the generation twins of the current contents of the maps. Returns the maps that are behind,
    /// `None` if a write came meanwhile.
    fn refresh(
        &mut self,
        snapshot: GuardSnapshot,
        behind: DeoptMask,
        changes: ShadowUpdates,
        start: Instant,
        write: Option<u64>,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<Option<DeoptMask>, ShadowWriteError> {
        let Some(active) = &mut self.generations.active else { return Ok(None) };
        let read = start.elapsed();
        let (side, bytes) = active.twins.write(changes)?;
        let made = start.elapsed() - read;
        let generation = active.generation;
        self.writes.guard.clear_first_packet(generation);
        let spared = active.spared.slots();
        let Some(behind) = self.writes.guard.approve(snapshot, token(generation, side), spared, behind)
        else {
            return Ok(None);
        };
        let approved = monotonic_ns();
        active.twins.switch_side(side);
        if !behind.is_empty() {
            return Ok(Some(behind));
        }
        let first = (0..LOOKS).find_map(|n| {
            if n > 0 {
                std::thread::sleep(std::time::Duration::from_micros(10));
            }
            self.writes.guard.first_packet(generation)
        });
        tell(&SessionReport::Refreshed {
            generation,
            write_ns: write,
            in_step_us: write.map(|w| approved.saturating_sub(w) / 1000),
            // The first packet may have begun before the approval: it does not count.
            latency_us: write.zip(first).map(|(w, f)| f.max(approved).saturating_sub(w) / 1000),
            read_us: micros(read),
            write_us: micros(made),
            bytes: bytes as u64,
        });
        Ok(Some(behind))
    }

    /// Lets the chain of the active variant follow the user's program arrays; `false` if it cannot.
    fn active_keeps_up(&mut self, dirty: &DirtyKeys) -> bool {
        let steps = &self.settings.steps;
        let active = self.generations.active.as_mut();
        active.is_none_or(|active| self.programs.keeps_up(&mut active.chain, dirty, steps))
    }
}

/// Splits off the maps that are not looked at now; returns their slots, and the changes in the others. While
/// nothing runs (`runs`), every map that the variant can do without waits until the rest is active again;
/// while the twins have no side to be written, they wait for that.
fn put_off(
    active: &LoadedVariant,
    snapshot: &GuardSnapshot,
    dirty: &DirtyKeys,
    runs: bool,
) -> (DeoptMask, DirtyKeys) {
    let mut behind = snapshot.busy();
    if !runs || !active.twins.is_free() {
        behind = behind.and(active.spared.touched(dirty));
    }
    match dirty.split(&active.spared.maps(behind)) {
        Some((_, now)) => (behind, now),
        // The written maps are unknown, so everything is looked at.
        None => (snapshot.busy(), dirty.clone()),
    }
}
