//! Hash tables: an index ([`super::index`]), elements in `ValueStorage`. `emit::hash` has hash and search
//! as LLVM's IR: both must change together.
//!
//! LRU tables evict by the second-chance rule when they are full: a look-up marks its element; the hand,
//! which cycles through the slots, skips marked ones and clears their marks. The kernel uses another
//! approximation of the same order.

use std::io;

use super::index::{HashTableIndex, HashTemplate, SlotKeys};
use super::region::AddressAllocator;
use super::values::ValueStorage;

/// Bytes in front of the key in LRU tables: the mark, a byte that is set if an entry is there, and padding,
/// which holds keys that are also in the index.
const MARK: usize = 8;
/// Offset of these keys.
const IN_MARK: usize = 4;
/// Offset of the second byte: 1 while the table has the entry.
const LIVE: usize = 1;

/// Parameters of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashTableParams {
    /// True if it evicts when it is full.
    pub(crate) lru: bool,
    /// Seed of its hash.
    pub(crate) seed: u64,
    pub(crate) template: HashTemplate,
    /// Slots in addition to those of the entries.
    pub(crate) spare: u32,
}

/// A hash table.
#[derive(Debug)]
pub(crate) struct HashTable {
    index: HashTableIndex,
    key_size: usize,
    /// Offset of the key in an element; `None` if the index has keys and elements need none.
    key: Option<usize>,
    pub(crate) values: ValueStorage,
    len: u32,
    max_entries: u32,
    lru: bool,
    hand: u32,
}

impl HashTable {
    pub(crate) fn new(
        key_size: u32,
        value_size: u32,
        copies: u32,
        max_entries: u32,
        HashTableParams { lru, seed, template, spare }: HashTableParams,
        place: &mut AddressAllocator,
    ) -> io::Result<HashTable> {
        let key_size = key_size as usize;
        let index = HashTableIndex::new(template, seed, max_entries, place)?;
        let (mark, in_index) = (if lru { MARK } else { 0 }, template.has_keys());
        let header = mark + if in_index { 0 } else { key_size.next_multiple_of(8) };
        let key = match (in_index, lru) {
            (true, false) => None,
            (true, true) => Some(IN_MARK),
            (false, _) => Some(mark),
        };
        let values = ValueStorage::new(header, value_size, copies, max_entries, spare, place)?;
        index.prefer_large_pages();
        Ok(HashTable { index, key_size, key, values, len: 0, max_entries, lru, hand: 0 })
    }

    /// Layout for the search in native code.
    pub(crate) fn layout(&self) -> HashLayout {
        HashLayout {
            index: self.index.address(),
            template: self.index.template(),
            mask: self.index.mask(),
            seed: self.index.seed(),
            elements: self.values.base(),
            stride: self.values.stride() as u64,
            key: self.key.unwrap_or_default() as u64,
            value: self.values.header() as u64,
            marks: self.lru,
        }
    }

    /// Bytes of index and elements, when full.
    pub(crate) fn bytes(&self) -> u64 {
        self.index.bytes() + u64::from(self.max_entries) * self.values.stride() as u64
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// The keys of elements.
    fn elements(&self) -> ElementKeys<'_> {
        ElementKeys { key: self.key, key_size: self.key_size, values: &self.values }
    }

    /// The index, mutably, and the keys of elements.
    fn parts(&mut self) -> (&mut HashTableIndex, ElementKeys<'_>) {
        let HashTable { index, key, key_size, values, .. } = self;
        (index, ElementKeys { key: *key, key_size: *key_size, values })
    }

    /// The key of an element, if elements have keys.
    fn key_at(&self, slot: u32) -> Option<&[u8]> {
        self.elements().key_at(slot)
    }

    /// Place in the index, and slot of a key.
    fn search(&self, key: &[u8]) -> Option<(u32, u32)> {
        self.index.find(self.index.sought(key), &self.elements())
    }

    /// The slot of a key. `touch` for look-ups of programs.
    pub(crate) fn find(&mut self, key: &[u8], touch: bool) -> Option<u32> {
        let (_, slot) = self.search(key)?;
        if touch && self.lru {
            self.values.head_mut(slot)[0] = 1;
        }
        Some(slot)
    }

    /// Returns true if there is only room by eviction.
    pub(crate) fn is_full(&self) -> bool {
        self.len >= self.max_entries
    }

    /// Inserts a missing key, and returns its slot, cleared; `None` if there is no room.
    pub(crate) fn insert(&mut self, key: &[u8]) -> Option<u32> {
        if self.is_full() && !self.evict() {
            return None;
        }
        let slot = self.values.take()?;
        let head = self.values.head_mut(slot);
        head.fill(0);
        if let Some(start) = self.key {
            head[start..start + key.len()].copy_from_slice(key);
        }
        if self.lru {
            head[LIVE] = 1;
        }
        self.values.clear(slot);
        let (index, elements) = self.parts();
        if !index.insert(index.sought(key), slot, &elements) {
            self.leaves(slot);
            self.values.retire_now(slot);
            return None;
        }
        self.len += 1;
        Some(slot)
    }

    /// Gives the element of a key another slot, with the same header, and retires the old one.
    pub(crate) fn renew(&mut self, key: &[u8]) -> Option<u32> {
        let (at, old) = self.search(key)?;
        let new = self.values.take()?;
        let head = self.values.head(old).to_vec();
        self.values.head_mut(new).copy_from_slice(&head);
        self.index.set_slot(at, new);
        self.leaves(old);
        self.values.retire(old);
        Some(new)
    }

    /// Removes a key.
    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        let Some((at, slot)) = self.search(key) else { return false };
        self.unlink(at, slot);
        self.values.retire(slot);
        true
    }

    /// Clears a place of the index.
    fn unlink(&mut self, at: u32, slot: u32) {
        let (index, elements) = self.parts();
        index.remove(at, &elements);
        self.leaves(slot);
        self.len -= 1;
    }

    /// Records that a slot has no entry any more, so that eviction skips it.
    fn leaves(&mut self, slot: u32) {
        if self.lru {
            self.values.head_mut(slot)[LIVE] = 0;
        }
    }

    /// Evicts one element of an LRU table.
    fn evict(&mut self) -> bool {
        if !self.lru || self.len == 0 {
            return false;
        }
        // The second round finds the slots whose marks the first one cleared.
        let used = self.values.used();
        for _ in 0..2 * u64::from(used) {
            let slot = self.hand;
            self.hand = if slot + 1 >= used { 0 } else { slot + 1 };
            let head = self.values.head_mut(slot);
            if head[LIVE] == 0 || std::mem::take(&mut head[0]) != 0 {
                continue;
            }
            let Some((at, _)) = self.key_at(slot).and_then(|key| self.search(key)) else { continue };
            self.unlink(at, slot);
            self.values.retire_now(slot);
            return true;
        }
        false
    }

    /// The keys of all entries, in order of their places in the index.
    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        let key = |(tag, slot): (u32, u32)| match self.index.template().has_keys() {
            true => tag.to_le_bytes()[..self.key_size].to_vec(),
            false => self.key_at(slot).unwrap_or_default().to_vec(),
        };
        self.index.entries().map(key).collect()
    }
}

/// The keys in elements.
struct ElementKeys<'v> {
    key: Option<usize>,
    key_size: usize,
    values: &'v ValueStorage,
}

impl<'v> ElementKeys<'v> {
    fn key_at(&self, slot: u32) -> Option<&'v [u8]> {
        self.key.map(|start| &self.values.head(slot)[start..start + self.key_size])
    }
}

impl SlotKeys for ElementKeys<'_> {
    fn of(&self, slot: u32) -> &[u8] {
        self.key_at(slot).unwrap_or_default()
    }
}

/// Addresses and parameters of a hash table.
#[derive(Clone, Copy, Debug)]
pub struct HashLayout {
    /// Address of the index.
    pub index: u64,
    /// Kind of the index.
    pub template: HashTemplate,
    /// Mask of places, or of buckets.
    pub mask: u32,
    /// Seed of the hash function.
    pub seed: u64,
    /// Address of the elements, and the distance of two, in bytes.
    pub elements: u64,
    /// See [`HashLayout::elements`].
    pub stride: u64,
    /// Offset of the key in an element; meaningless if the index has keys.
    pub key: u64,
    /// Offset of the value in an element.
    pub value: u64,
    /// True if a look-up writes 1 to the element's first byte.
    pub marks: bool,
}
