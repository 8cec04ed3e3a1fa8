//! Answers to control-plane writes, to new holders of maps, and to their absence.

use std::sync::Arc;
use std::time::Instant;

use millstream_lab::os::monotonic_ns;
use millstream_specializer::changes::{DirtyKeys, ShadowUpdates};
use millstream_specializer::guard_state::{DeoptMask, token};
use millstream_specializer::policy::Tier;

use super::deopt_maps::DeoptMaps;
use super::step::SessionStep;
use super::{ATTEMPTS, LiveError, LiveSession, LoadedVariant, PATIENCE, micros};
use crate::guard::{EventKind, GuardSnapshot};
use crate::hook_search::is_attached;
use crate::map_users::MapUsers;
use crate::report::{CompileReason, SessionReport};
use crate::shadow_tables::ShadowWriteError;
use crate::snapshot::{Revalidation, SpecializableMap};

/// Attempts to find the first packet before it is left out of the report.
const LOOKS: u32 = 10;

impl LiveSession<'_> {
    /// Answers what the guard has seen since the last time.
    pub(super) fn answer(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        self.take_note();
        // New holders can be seen only when the call that brings them has returned.
        if self.seen.foreign && self.begin(&DeoptMaps::default(), tell)?.is_none() {
            return Ok(());
        }
        // The running variant could not follow some writes, when that was tried while something else was
        // under way.
        let (tried, new) = (self.unanswered.take(), self.seen.first.take());
        let Some(first) = tried.or(new) else { return Ok(()) };
        self.put_off_thoroughness();
        let Some(active) = &self.active else { return Ok(()) };
        if self.guard.approved() == Some(active.token())
            || (new.is_some() && self.follow(Some(first), tell)?)
            || self.activate_fallback(Some(first), tell)?
        {
            return Ok(());
        }
        let Some(active) = &self.active else { return Ok(()) };
        let profiles = active.profiles.clone();
        self.respecialise(profiles, Tier::Quick, CompileReason::Write, Some(first), tell)
    }

    /// Records the events that the guard has seen. After a snapshot has begun, these are all writes before
    /// it.
    pub(super) fn take_note(&mut self) {
        for event in self.guard.events() {
            self.seen.first = Some(self.seen.first.map_or(event.time, |first| first.min(event.time)));
            let index = match event.kind {
                EventKind::Write(index) => index,
                EventKind::Any | EventKind::Foreign => {
                    self.seen.anything();
                    continue;
                }
            };
            // The event does not say which inner map it is.
            let inner = self.nested.iter().filter(|(_, n)| n.is_known && n.index == index);
            inner.for_each(|(template, _)| self.seen.note(*template, event.key.clone()));
            let written = self.sources.iter().find(|(_, s)| s.index == index);
            let key = event.key.filter(|_| !written.is_some_and(|(_, s)| s.evicts()));
            if let Some(map) = written.map(|(map, _)| *map).or_else(|| self.links.of_index(index)) {
                self.seen.note(map, key);
            }
        }
        let unsent = self.guard.noticed().unsent;
        let is_lost = std::mem::replace(&mut self.seen.unsent, unsent) != unsent;
        let strangers = self.guard.strangers();
        let has_come = std::mem::replace(&mut self.seen.strangers, strangers) != strangers;
        self.seen.foreign |= has_come;
        if is_lost || has_come {
            self.seen.anything();
            self.seen.first.get_or_insert_with(monotonic_ns);
        }
    }

    /// Begins a snapshot: all earlier events are noted, and all writers are known. `None` if a writer stays
    /// inside, or new ones come all the time. Writers may stay inside the `spared` maps.
    pub(super) fn begin(
        &mut self,
        spared: &DeoptMaps,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<Option<GuardSnapshot>, LiveError> {
        for _ in 0..ATTEMPTS {
            let Some(snapshot) = self.guard.begin(PATIENCE, &spared.places()) else { return Ok(None) };
            self.take_note();
            if !self.seen.foreign {
                return Ok(Some(snapshot));
            }
            if self.is_busy {
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
        if self.is_ahead {
            return Ok(false);
        }
        for _ in 0..ATTEMPTS {
            let start = Instant::now();
            let spared = self.active.as_ref().map(|a| a.spared.clone()).unwrap_or_default();
            let Some(snapshot) = self.begin(&spared, tell)? else { return Ok(false) };
            let Some(active) = &self.active else { return Ok(false) };
            let dirty = std::mem::take(&mut self.seen.dirty);
            let runs = self.guard.approved().is_some_and(|token| token >> 32 == active.token() >> 32);
            let (behind, now) = put_off(active, &snapshot, &dirty, runs);
            if runs && !behind.is_empty() && now.is_empty() {
                self.left(&spared, behind, &dirty, write);
                return Ok(true);
            }
            let present = active.record.present(&self.sources, &now);
            let present = if self.active_keeps_up(&now) { present } else { Revalidation::Other };
            self.settings.steps.at(SessionStep::Followed);
            // No cache has entries that were written while the generation ran.
            if let Some(active) = self.active.as_mut().filter(|_| !runs) {
                active.caches.forget();
            }
            let done = match present {
                Revalidation::Other => {
                    let changed = self.active.as_ref().map(|a| a.record.changed(&self.sources, &now));
                    let noticed = Instant::now();
                    changed.into_iter().flatten().for_each(|map| self.restless.note(map, noticed));
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
                self.left(&spared, behind, &dirty, write);
                return Ok(true);
            }
            // The recorded events are not answered yet.
            self.seen.dirty.merge(dirty);
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
        let active = self.active.as_mut()?;
        let generation = active.generation;
        let behind = self.guard.approve(snapshot, active.token(), active.spared.slots(), behind)?;
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
        let Some(active) = &mut self.active else { return Ok(None) };
        let read = start.elapsed();
        let (side, bytes) = active.twins.write(changes)?;
        let made = start.elapsed() - read;
        let generation = active.generation;
        self.guard.clear_first_packet(generation);
        let spared = active.spared.slots();
        let Some(behind) = self.guard.approve(snapshot, token(generation, side), spared, behind) else {
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
            self.guard.first_packet(generation)
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

    /// Makes a variant that can follow writes, and then puts whole tables into code, now that there is time.
    pub(super) fn be_thorough(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        if self.needs_fallback() {
            // Writes that come meanwhile are answered first.
            self.thorough_at = Some(Instant::now());
            return self.make_fallback(tell);
        }
        if self.is_fully_churning() {
            self.thorough_at = Some(Instant::now() + self.quiet);
            return Ok(());
        }
        let Some(active) = self.active.as_ref().filter(|a| a.tier != Tier::Thorough) else { return Ok(()) };
        let profiles = active.profiles.clone();
        self.respecialise(profiles, Tier::Thorough, CompileReason::Quiet, None, tell)
    }

    /// Checks again who may write the maps, and gives up those that others may write. All new holders that
    /// were noted must have come.
    pub(super) fn review(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        let mut lost = Vec::new();
        // Succeeds if no other thread has them.
        let Some(sources) = Arc::get_mut(&mut self.sources) else {
            self.seen.foreign = true;
            return Ok(());
        };
        let name = |template| self.compiler.declaration(template).name.clone();
        let guard = &mut self.guard;
        self.nested.retain(|template, nested| match nested.look(guard) {
            Ok(()) => true,
            Err(why) => {
                lost.push((name(*template), why.to_string()));
                false
            }
        });
        let holders = MapUsers::look()?;
        self.nested.retain(|template, nested| match nested.foreign(&holders, &self.ours) {
            Some(why) => {
                lost.push((name(*template), why.to_string()));
                false
            }
            None => true,
        });
        for (map, source) in &mut *sources {
            let template = self.compiler.declaration(*map).inner;
            let nested = template.and_then(|template| self.nested.get(&template));
            source.knows_inside = nested.is_some_and(|nested| nested.is_known);
        }
        let uncounted = |source: &SpecializableMap| holders.uncounted(source.map.id(), &self.ours);
        for (sources, has_caches) in [(sources, false), (&mut self.stateful, true)] {
            sources.retain(|_, source| {
                let foreign = source.foreign(&holders, &self.ours);
                match foreign.or_else(|| if has_caches { uncounted(source) } else { None }) {
                    Some(why) => {
                        lost.push((source.map.info().name.clone(), why.to_string()));
                        false
                    }
                    None => true,
                }
            });
        }
        self.seen.foreign = false;
        let written = self.stateful.values().flat_map(|s| holders.copies(s.map.id(), &self.ours));
        let inside = self.nested.values().flat_map(|n| n.copies(&holders, &self.ours));
        self.copies = written.chain(inside).collect();
        if lost.is_empty() {
            return Ok(());
        }
        self.watched.retain(|name| !lost.iter().any(|(l, _)| l == name));
        self.instrumented = None;
        self.drop_fallback();
        let reason =
            lost.iter().map(|(name, why)| format!("map {name:?}: {why}")).collect::<Vec<_>>().join("; ");
        self.refused.extend(lost);
        self.withdraw(reason, tell)
    }

    /// Gives up caches whose maps are written without being counted: by a program with the session's code, on
    /// another hook. It may have been attached by a call that no guard sees.
    pub(super) fn review_copies(&mut self, tell: &mut dyn FnMut(&SessionReport)) -> Result<(), LiveError> {
        if self.copies.is_empty() || !is_attached(&self.copies).unwrap_or(true) {
            return Ok(());
        }
        self.guard.revoke();
        self.review(tell)
    }

    /// Puts the original back.
    pub(super) fn withdraw(
        &mut self,
        reason: String,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> Result<(), LiveError> {
        self.drop_fallback();
        let Some(active) = self.active.take() else { return Ok(()) };
        self.guard.revoke();
        let original = self.original.try_clone()?;
        self.swap(original, false)?;
        self.now_ns = None;
        self.thorough_at = None;
        tell(&SessionReport::Withdrawn { generation: active.generation, reason });
        Ok(())
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
