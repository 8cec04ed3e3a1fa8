//! Entries that no packet hits for a while. Source: P4Runtime specification 1.4, section 9.1.8.
//!
//! The lookup of a table counts each hit in the entry's value, so an entry whose counter has not moved was not
//! hit. Times are as exact as the interval between two looks.

use millstream_p4runtime::entities::{EntityStore, EntryKey};
use millstream_p4runtime::proto::v1::TableEntry;
use rustc_hash::FxHashMap;

/// An entry with a timeout.
#[derive(Clone, Copy, Debug)]
struct WatchedEntry {
    /// Packets at the last look.
    packets: i64,
    /// Time of the last look at which the packets had changed, in nanoseconds.
    hit: u64,
    /// Time from which the timeout runs: that of the last hit or notification.
    since: u64,
    timeout: u64,
}

/// Entries with timeouts.
#[derive(Default, Debug)]
pub(crate) struct IdleTracker {
    entries: FxHashMap<(u32, EntryKey), WatchedEntry>,
    now: u64,
}

impl IdleTracker {
    /// Watches an entry that was written, or forgets one that is gone or has no timeout.
    pub(crate) fn update(&mut self, store: &EntityStore, table: u32, key: &EntryKey) {
        let timeout = store.entry(table, key).map_or(0, |entry| entry.idle_timeout_ns);
        let place = (table, key.clone());
        if timeout <= 0 {
            self.entries.remove(&place);
            return;
        }
        let (hit, since) = (self.now, self.now);
        let timeout = timeout.unsigned_abs();
        self.entries.insert(place, WatchedEntry { packets: 0, hit, since, timeout });
    }

    /// Sets the time, in nanoseconds.
    pub(crate) fn set_time(&mut self, now: u64) {
        self.now = now;
    }

    /// Time since the last hit of an entry, in nanoseconds.
    pub(crate) fn elapsed(&self, table: u32, key: &EntryKey) -> Option<i64> {
        let entry = self.entries.get(&(table, key.clone()))?;
        i64::try_from(self.now.saturating_sub(entry.hit)).ok()
    }

    /// Looks at all entries; `packets` counts the hits of one. Gives those whose timeout is over; it begins
    /// again for them.
    pub(crate) fn look(
        &mut self,
        store: &EntityStore,
        mut packets: impl FnMut(&TableEntry) -> Option<i64>,
    ) -> Vec<TableEntry> {
        let now = self.now;
        let mut idle = Vec::new();
        for ((table, key), entry) in &mut self.entries {
            let Some(mut named) = store.named(*table, key) else { continue };
            let count = packets(&named).unwrap_or(entry.packets);
            if count != entry.packets {
                (entry.packets, entry.hit, entry.since) = (count, now, now);
            } else if now.saturating_sub(entry.since) >= entry.timeout {
                entry.since = now;
                if let Some(state) = store.entry(*table, key) {
                    named.action = state.action.cloned();
                    named.idle_timeout_ns = state.idle_timeout_ns;
                }
                idle.push(named);
            }
        }
        idle
    }

    /// Tells if no entry has a timeout.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
