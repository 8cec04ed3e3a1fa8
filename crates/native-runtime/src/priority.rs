//! Maps whose entries match by mask and range, with priorities: the interpreter's index, and values at fixed
//! addresses.

use std::io;

use millstream_interp::maps::PriorityIndex;

use super::region::AddressAllocator;
use super::values::ValueStorage;

/// A map with priorities. An entry is named as `PriorityEntry::encode` says.
#[derive(Debug)]
pub(crate) struct PriorityTable {
    index: PriorityIndex,
    pub(crate) values: ValueStorage,
    max_entries: u32,
}

impl PriorityTable {
    pub(crate) fn new(
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        spare: u32,
        place: &mut AddressAllocator,
    ) -> io::Result<PriorityTable> {
        let values = ValueStorage::new(0, value_size, 1, max_entries, spare, place)?;
        Ok(PriorityTable { index: PriorityIndex::new(key_size), values, max_entries })
    }

    /// Slot of the entry that wins for a key.
    pub(crate) fn best(&self, key: &[u8]) -> Option<u32> {
        self.index.best(key)
    }

    /// Slot of the entry of this name.
    pub(crate) fn named(&self, name: &[u8]) -> Option<u32> {
        self.index.named(name)
    }

    /// Returns true if the name of an entry is well formed.
    pub(crate) fn accepts(&self, name: &[u8]) -> bool {
        self.index.accepts(name)
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns true if there is no room for another entry.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.max_entries as usize
    }

    /// Adds an entry that is not there; its slot, cleared.
    pub(crate) fn insert(&mut self, name: &[u8]) -> Option<u32> {
        let slot = self.values.take()?;
        self.values.clear(slot);
        self.index.put(name, slot);
        Some(slot)
    }

    /// Gives an entry another slot, and retires the old one.
    pub(crate) fn renew(&mut self, name: &[u8]) -> Option<u32> {
        let old = self.index.named(name)?;
        let new = self.values.take()?;
        self.index.redirect(name, new);
        self.values.retire(old);
        Some(new)
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, name: &[u8]) -> bool {
        let Some(slot) = self.index.remove(name) else { return false };
        self.values.retire(slot);
        true
    }

    /// Names of all entries.
    pub(crate) fn names(&self) -> Vec<Vec<u8>> {
        self.index.names()
    }
}
