//! Hash tables of entries with the same mask: tuple space search (Srinivasan, Suri and Varghese, "Packet
//! Classification using Tuple Space Search", 1999).
//!
//! Entries that differ only in ranges are tried one after the other.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::{PriorityEntry, RankedEntry, StoredEntry};

/// Bytes of keys that are masked on the stack.
const SHORT_KEY: usize = 64;

/// Entries with the same mask.
#[derive(Clone, Debug)]
struct MaskTuple {
    mask: Box<[u8]>,
    /// Number of entries of each priority.
    priorities: BTreeMap<u32, u32>,
    len: usize,
    /// Entries by value, the greatest priority and the oldest first.
    entries: FxHashMap<Box<[u8]>, Vec<RankedEntry>>,
}

impl MaskTuple {
    fn greatest(&self) -> u32 {
        self.priorities.last_key_value().map_or(0, |(priority, _)| *priority)
    }

    /// The first entry that a key matches.
    fn best(&self, key: &[u8]) -> Option<&RankedEntry> {
        let mut short = [0; SHORT_KEY];
        let mut long = Vec::new();
        let masked = match short.get_mut(..key.len()) {
            Some(masked) => masked,
            None => {
                long.resize(key.len(), 0);
                &mut long[..]
            }
        };
        for (to, (byte, mask)) in masked.iter_mut().zip(key.iter().zip(&self.mask)) {
            *to = byte & mask;
        }
        self.entries.get(&*masked)?.iter().find(|entry| entry.has_in_ranges(key))
    }

    fn add(&mut self, value: Box<[u8]>, entry: RankedEntry) {
        *self.priorities.entry(entry.priority).or_default() += 1;
        self.len += 1;
        let same = self.entries.entry(value).or_default();
        let at = same.partition_point(|other| !entry.is_before(other));
        same.insert(at, entry);
    }

    fn remove(&mut self, entry: &PriorityEntry) -> Option<RankedEntry> {
        let same = self.entries.get_mut(&*entry.value)?;
        let at = same.iter().position(|other| is_named(other, entry))?;
        let removed = same.remove(at);
        if same.is_empty() {
            self.entries.remove(&*entry.value);
        }
        if let Some(count) = self.priorities.get_mut(&entry.priority) {
            *count -= 1;
            if *count == 0 {
                self.priorities.remove(&entry.priority);
            }
        }
        self.len -= 1;
        Some(removed)
    }
}

fn is_named(entry: &RankedEntry, name: &PriorityEntry) -> bool {
    entry.priority == name.priority && entry.ranges == name.ranges
}

/// Masks with a hash table each.
#[derive(Clone, Debug, Default)]
pub(super) struct TupleIndex {
    /// By descending greatest priority.
    tuples: Vec<MaskTuple>,
}

impl TupleIndex {
    fn position(&self, mask: &[u8]) -> Option<usize> {
        self.tuples.iter().position(|tuple| *tuple.mask == *mask)
    }

    /// Returns true if a mask has a hash table.
    pub(super) fn has(&self, mask: &[u8]) -> bool {
        self.position(mask).is_some()
    }

    /// The first entry that a key matches, unless an entry that was found elsewhere comes before it.
    pub(super) fn best<'a>(
        &'a self,
        key: &[u8],
        mut best: Option<&'a RankedEntry>,
    ) -> Option<&'a RankedEntry> {
        for tuple in &self.tuples {
            if best.is_some_and(|best| best.priority > tuple.greatest()) {
                break;
            }
            match tuple.best(key) {
                Some(found) if best.is_none_or(|best| found.is_before(best)) => best = Some(found),
                _ => {}
            }
        }
        best
    }

    /// Slot of the entry of this name.
    pub(super) fn slot(&self, name: &PriorityEntry) -> Option<u32> {
        let same = self.tuples[self.position(&name.mask)?].entries.get(&*name.value)?;
        same.iter().find(|entry| is_named(entry, name)).map(|entry| entry.slot)
    }

    /// The entry of this name.
    pub(super) fn find(&mut self, name: &PriorityEntry) -> Option<&mut RankedEntry> {
        let at = self.position(&name.mask)?;
        let same = self.tuples[at].entries.get_mut(&*name.value)?;
        same.iter_mut().find(|entry| is_named(entry, name))
    }

    /// Adds entries with the same mask.
    pub(super) fn add(&mut self, entries: Vec<StoredEntry>) {
        let Some(first) = entries.first() else { return };
        let mut tuple = match self.position(&first.mask) {
            Some(at) => self.tuples.remove(at),
            None => {
                let (priorities, entries) = (BTreeMap::new(), FxHashMap::default());
                MaskTuple { mask: first.mask.clone(), priorities, len: 0, entries }
            }
        };
        for StoredEntry { value, ranked, .. } in entries {
            tuple.add(value, ranked);
        }
        self.insert(tuple);
    }

    fn insert(&mut self, tuple: MaskTuple) {
        let at = self.tuples.partition_point(|other| other.greatest() >= tuple.greatest());
        self.tuples.insert(at, tuple);
    }

    /// Removes the entry of this name; gives also the number of entries that its mask still has.
    pub(super) fn remove(&mut self, name: &PriorityEntry) -> Option<(RankedEntry, usize)> {
        let at = self.position(&name.mask)?;
        let greatest = self.tuples[at].greatest();
        let removed = self.tuples[at].remove(name)?;
        let (now, left) = (self.tuples[at].greatest(), self.tuples[at].len);
        if now < greatest {
            let tuple = self.tuples.remove(at);
            self.insert(tuple);
        }
        Some((removed, left))
    }

    /// Removes a mask, and gives its entries.
    pub(super) fn take_all(&mut self, mask: &[u8]) -> Vec<StoredEntry> {
        let Some(at) = self.position(mask) else { return Vec::new() };
        let MaskTuple { mask, entries, .. } = self.tuples.remove(at);
        let stored = |(value, same): (Box<[u8]>, Vec<RankedEntry>)| {
            let mask = mask.clone();
            same.into_iter().map(move |ranked| StoredEntry {
                value: value.clone(),
                mask: mask.clone(),
                ranked,
            })
        };
        entries.into_iter().flat_map(stored).collect()
    }

    /// Copies of all entries.
    pub(super) fn entries(&self) -> impl Iterator<Item = StoredEntry> {
        self.tuples.iter().flat_map(|tuple| {
            tuple.entries.iter().flat_map(|(value, same)| {
                same.iter().map(|ranked| StoredEntry {
                    value: value.clone(),
                    mask: tuple.mask.clone(),
                    ranked: ranked.clone(),
                })
            })
        })
    }
}
