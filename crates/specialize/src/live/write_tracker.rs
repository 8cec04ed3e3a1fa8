//! Writes and new holders of maps, as the guard reports them.

use std::time::Duration;

use millstream_ir::Map as IrMap;
use millstream_lab::os::monotonic_ns;
use millstream_specializer::changes::DirtyKeys;
use millstream_specializer::guard_state::DeoptMask;

use super::deopt_maps::DeoptMaps;
use super::session_tables::SessionTables;
use super::tail_calls::ProgArrays;
use crate::guard::{EventKind, Guard};

/// Delay before maps that were left behind are looked at again.
pub(super) const AGAIN: Duration = Duration::from_micros(200);
/// Longest wait for an event of the guard.
const IDLE_WAIT: Duration = Duration::from_millis(50);

/// Events of the guard that nobody has answered yet.
#[derive(Debug, Default)]
pub(super) struct PendingWrites {
    /// Time of the first of them.
    pub(super) first: Option<u64>,
    /// True if somebody new may write maps, once the call that brings him has returned.
    pub(super) foreign: bool,
    /// Number of times that happened, so far.
    pub(super) strangers: u64,
    /// Contents that may have changed since they were last compared with the running variant.
    pub(super) dirty: DirtyKeys,
    /// Contents that may have changed since the tables of the standby variant were read, or its twins brought
    /// up to date.
    pub(super) aside: DirtyKeys,
    /// Contents that may have changed since the tables of the variant that is being made were read.
    pub(super) making: DirtyKeys,
    /// Events lost, so far.
    pub(super) unsent: u64,
}

impl PendingWrites {
    /// Records that anything may have changed.
    fn anything(&mut self) {
        for dirty in [&mut self.dirty, &mut self.aside, &mut self.making] {
            *dirty = DirtyKeys::everything();
        }
    }

    /// Records that this key of a map may have changed; `None` if the key is unknown.
    fn note(&mut self, map: IrMap, key: Option<Vec<u8>>) {
        for dirty in [&mut self.dirty, &mut self.aside, &mut self.making] {
            dirty.note(map, key.clone());
        }
    }
}

/// The guard, and the events that are not answered yet.
#[derive(Debug)]
pub(super) struct WriteTracker {
    pub(super) guard: Guard,
    pub(super) seen: PendingWrites,
    /// Time of the first write that the running variant could not follow, while something else was under way.
    pub(super) unanswered: Option<u64>,
    /// True if something else is under way.
    pub(super) is_busy: bool,
}

impl WriteTracker {
    pub(super) fn new(guard: Guard) -> WriteTracker {
        WriteTracker { guard, seen: PendingWrites::default(), unanswered: None, is_busy: false }
    }

    /// Returns true if something must be answered that cannot wait for the current work.
    pub(super) fn is_urgent(&self) -> bool {
        self.unanswered.is_some() || self.seen.foreign
    }

    /// Time until the guard is asked again, at most.
    pub(super) fn longest_wait(&self) -> Duration {
        match self.seen.first {
            _ if self.unanswered.is_some() => Duration::ZERO,
            Some(_) => AGAIN,
            None => IDLE_WAIT,
        }
    }

    /// Records the events that the guard has seen. After a snapshot has begun, these are all writes before
    /// it.
    pub(super) fn take_note(&mut self, tables: &SessionTables, arrays: &ProgArrays) {
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
            let inner = tables.nested.iter().filter(|(_, n)| n.is_known && n.index == index);
            inner.for_each(|(template, _)| self.seen.note(*template, event.key.clone()));
            let written = tables.sources.iter().find(|(_, s)| s.index == index);
            let key = event.key.filter(|_| !written.is_some_and(|(_, s)| s.evicts()));
            if let Some(map) = written.map(|(map, _)| *map).or_else(|| arrays.of_index(index)) {
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

    /// Schedules another look at maps that were left behind by an approval: their contents may have changed.
    pub(super) fn left_behind(
        &mut self,
        spared: &DeoptMaps,
        behind: DeoptMask,
        dirty: &DirtyKeys,
        write: Option<u64>,
    ) {
        if behind.is_empty() {
            return;
        }
        match dirty.split(&spared.maps(behind)) {
            Some((of_those, _)) => self.seen.dirty.merge(of_those),
            None => self.seen.dirty.merge(dirty.clone()),
        }
        self.seen.first.get_or_insert_with(|| write.unwrap_or_else(monotonic_ns));
    }
}
