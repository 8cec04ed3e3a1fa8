//! Prefixes in a hash table, for look-ups that try all lengths in use, the longest first.
//!
//! A key of the table is a prefix with all bits behind it zero, and its length in front of it. The list of
//! lengths has a mask for each, so that code makes a key by one operation on the address. `emit::lpm` has the
//! look-up as LLVM's IR: both must change together.

use std::io;

use crate::hash::{HashLayout, HashTable, HashTableParams};
use crate::index::HashTemplate;
use crate::region::{AddressAllocator, MemoryRegion};

/// Offset of the list's entries, behind their number.
pub const LIST: u64 = 8;

/// Prefixes by length.
#[derive(Debug)]
pub(crate) struct ByLength {
    /// Value: the slot plus one.
    table: HashTable,
    /// Number of lengths, then for each a key of the length with all bits of prefixes set.
    list: MemoryRegion,
    key_size: usize,
}

/// Addresses and parameters of the table and the list.
#[derive(Clone, Copy, Debug)]
pub struct ByLengthLayout {
    /// The table of all prefixes.
    pub table: HashLayout,
    /// Address of the list of lengths.
    pub list: u64,
    /// Distance of the list's entries.
    pub stride: u64,
}

impl ByLength {
    pub(crate) fn new(
        key_size: u32,
        max_entries: u32,
        seed: u64,
        place: &mut AddressAllocator,
    ) -> io::Result<ByLength> {
        let making = HashTableParams {
            lru: false,
            seed,
            template: HashTemplate::fitting(max_entries, key_size).0,
            spare: 0,
        };
        let table = HashTable::new(key_size, 8, 1, max_entries, making, place)?;
        let key_size = key_size as usize;
        let lengths = 8 * key_size.saturating_sub(4) + 1;
        let list = MemoryRegion::new(LIST as usize + stride(key_size) * lengths, place)?;
        Ok(ByLength { table, list, key_size })
    }

    pub(crate) fn layout(&self) -> ByLengthLayout {
        ByLengthLayout {
            table: self.table.layout(),
            list: self.list.address(),
            stride: stride(self.key_size) as u64,
        }
    }

    /// Sets the slot of a prefix; `false` if there is no room.
    pub(crate) fn set(&mut self, prefix: &[u8], slot: u32) -> bool {
        let Some(at) = self.table.find(prefix, false).or_else(|| self.table.insert(prefix)) else {
            return false;
        };
        self.table.values.set(at, &u64::from(slot + 1).to_ne_bytes(), None);
        true
    }

    pub(crate) fn remove(&mut self, prefix: &[u8]) {
        self.table.remove(prefix);
    }

    /// Sets the lengths in use, the longest first; `mask` gives the key with all bits of a length set.
    pub(crate) fn set_lengths(
        &mut self,
        lengths: impl Iterator<Item = u32>,
        mask: impl Fn(u32) -> Box<[u8]>,
    ) {
        let (stride, mut count) = (stride(self.key_size), 0);
        for bits in lengths {
            let at = LIST as usize + stride * count;
            self.list.bytes_mut()[at..at + self.key_size].copy_from_slice(&mask(bits));
            count += 1;
        }
        self.list.set_word(0, count as u64);
    }
}

fn stride(key_size: usize) -> usize {
    key_size.next_multiple_of(8)
}
