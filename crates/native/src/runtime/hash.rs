//! Hash tables: an index by open addressing, elements in [`Values`].
//!
//! The index is a power of two of 64-bit words, at most half of them used: the low half of a word is the slot plus one, the
//! high half the hash, whose low bits say where the search begins; zero ends it. Removal shifts back what follows, so there are
//! no tombstones. `emit::maps` has the same search as LLVM's IR: both must change together.
//!
//! LRU tables evict by the second-chance rule when they are full: a look-up marks its element, and the hand, which goes
//! round the slots, passes over marked ones and takes the mark. The kernel's is another approximation of the same order.

use std::io;

use super::region::{Place, Region};
use super::values::Values;

/// Odd, with about as many ones as zeros: the golden ratio's fraction.
pub(crate) const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
/// An index of as many words, 2 MiB, is to lie in large pages.
const LARGE: u64 = 1 << 18;
/// Bytes in front of the key: the mark of LRU tables.
const MARK: usize = 8;

/// A key as the 64-bit words that are hashed and compared: little-endian, the last one padded with zeros.
pub(crate) fn words(key: &[u8]) -> impl Iterator<Item = u64> + '_ {
    key.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    })
}

/// The hash of a key: a folded multiplication a word.
pub(crate) fn hash(seed: u64, key: &[u8]) -> u32 {
    let mixed = words(key).fold(seed, |state, word| {
        let product = u128::from(state ^ word) * u128::from(MULTIPLIER);
        product as u64 ^ (product >> 64) as u64
    });
    (mixed ^ mixed >> 32) as u32
}

/// A hash table.
#[derive(Debug)]
pub(crate) struct Hash {
    index: Region,
    mask: u32,
    seed: u64,
    key_size: usize,
    pub(crate) values: Values,
    len: u32,
    max_entries: u32,
    lru: bool,
    hand: u32,
}

impl Hash {
    pub(crate) fn new(
        key_size: u32,
        value_size: u32,
        copies: u32,
        max_entries: u32,
        (lru, seed): (bool, u64),
        place: &mut Place,
    ) -> io::Result<Hash> {
        let words = (u64::from(max_entries) * 2).next_power_of_two().max(16);
        let mask = u32::try_from(words - 1).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let key_size = key_size as usize;
        let index = Region::new(8 * words as usize, place)?;
        let header = if lru { MARK } else { 0 } + key_size.next_multiple_of(8);
        let values = Values::new(header, value_size, copies, max_entries, true, place)?;
        if words >= LARGE {
            index.prefer_large_pages(8 * words as usize);
            values.prefer_large_pages();
        }
        Ok(Hash { index, mask, seed, key_size, values, len: 0, max_entries, lru, hand: 0 })
    }

    /// What the search in native code needs to know.
    pub(crate) fn layout(&self) -> HashLayout {
        HashLayout {
            index: self.index.address(),
            mask: self.mask,
            seed: self.seed,
            elements: self.values.base(),
            stride: self.values.stride() as u64,
            key: if self.lru { MARK as u64 } else { 0 },
            value: self.values.header() as u64,
            marks: self.lru,
        }
    }

    /// Bytes of index and elements, when full.
    pub(crate) fn bytes(&self) -> u64 {
        8 * (u64::from(self.mask) + 1) + u64::from(self.max_entries) * self.values.stride() as u64
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    fn key_at(&self, slot: u32) -> &[u8] {
        let start = if self.lru { MARK } else { 0 };
        &self.values.head(slot)[start..start + self.key_size]
    }

    /// Place in the index and slot of a key.
    fn search(&self, key: &[u8]) -> Option<(u32, u32)> {
        let hash = hash(self.seed, key);
        let mut at = hash & self.mask;
        loop {
            let entry = self.index.word(at as usize);
            if entry == 0 {
                return None;
            }
            let slot = entry as u32 - 1;
            if (entry >> 32) as u32 == hash && self.key_at(slot) == key {
                return Some((at, slot));
            }
            at = (at + 1) & self.mask;
        }
    }

    /// The slot of a key. `touch` where a program looks.
    pub(crate) fn find(&mut self, key: &[u8], touch: bool) -> Option<u32> {
        let (_, slot) = self.search(key)?;
        if touch && self.lru {
            self.values.head_mut(slot)[0] = 1;
        }
        Some(slot)
    }

    /// Whether there is no room but by eviction.
    pub(crate) fn is_full(&self) -> bool {
        self.len >= self.max_entries
    }

    /// Adds a key that is not there, and gives its slot, cleared; `None` if there is no room.
    pub(crate) fn insert(&mut self, key: &[u8]) -> Option<u32> {
        if self.is_full() && !self.evict() {
            return None;
        }
        let slot = self.values.take()?;
        let start = if self.lru { MARK } else { 0 };
        let head = self.values.head_mut(slot);
        head.fill(0);
        head[start..start + key.len()].copy_from_slice(key);
        self.values.clear(slot);
        let hash = hash(self.seed, key);
        let mut at = hash & self.mask;
        while self.index.word(at as usize) != 0 {
            at = (at + 1) & self.mask;
        }
        self.index.set_word(at as usize, u64::from(hash) << 32 | u64::from(slot + 1));
        self.len += 1;
        Some(slot)
    }

    /// Gives the element of a key another slot, with the same header, and retires the old one.
    pub(crate) fn renew(&mut self, key: &[u8]) -> Option<u32> {
        let (at, old) = self.search(key)?;
        let new = self.values.take()?;
        let head = self.values.head(old).to_vec();
        self.values.head_mut(new).copy_from_slice(&head);
        let entry = self.index.word(at as usize);
        self.index.set_word(at as usize, entry & !0xffff_ffff | u64::from(new + 1));
        self.values.retire(old);
        Some(new)
    }

    /// Removes a key.
    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        let Some((at, slot)) = self.search(key) else { return false };
        self.unlink(at);
        self.values.retire(slot);
        true
    }

    /// Empties a place of the index, shifting back those that were pushed beyond it.
    fn unlink(&mut self, at: u32) {
        let (mut hole, mut next) = (at, at);
        loop {
            next = (next + 1) & self.mask;
            let entry = self.index.word(next as usize);
            if entry == 0 {
                break;
            }
            let home = (entry >> 32) as u32 & self.mask;
            // It may move back unless its search begins behind the hole.
            if next.wrapping_sub(home) & self.mask >= next.wrapping_sub(hole) & self.mask {
                self.index.set_word(hole as usize, entry);
                hole = next;
            }
        }
        self.index.set_word(hole as usize, 0);
        self.len -= 1;
    }

    /// Evicts one element of an LRU table.
    fn evict(&mut self) -> bool {
        if !self.lru || self.len == 0 {
            return false;
        }
        // The second round finds what the first took the marks of.
        let used = self.values.used();
        for _ in 0..2 * u64::from(used) {
            let slot = self.hand;
            self.hand = if slot + 1 >= used { 0 } else { slot + 1 };
            let key = self.key_at(slot).to_vec();
            let Some((at, found)) = self.search(&key) else { continue };
            if found != slot {
                continue;
            }
            let head = self.values.head_mut(slot);
            if std::mem::take(&mut head[0]) == 0 {
                self.unlink(at);
                self.values.retire_now(slot);
                return true;
            }
        }
        false
    }

    /// The keys that are there, in order of their places in the index.
    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        let all = (0..=self.mask).map(|at| self.index.word(at as usize)).filter(|entry| *entry != 0);
        all.map(|entry| self.key_at(entry as u32 - 1).to_vec()).collect()
    }
}

/// Where things lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashLayout {
    pub(crate) index: u64,
    pub(crate) mask: u32,
    pub(crate) seed: u64,
    pub(crate) elements: u64,
    pub(crate) stride: u64,
    /// Offset of the key in an element.
    pub(crate) key: u64,
    /// Offset of the value in an element.
    pub(crate) value: u64,
    /// A look-up writes 1 to the element's first byte.
    pub(crate) marks: bool,
}
