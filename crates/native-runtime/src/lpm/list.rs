//! A few prefixes in a row, the longest first: the first match is the longest.
//!
//! [`LANES`] of them are compared at once. A chunk has, for each 64-bit word of a key (without the length in
//! front of the address), values and masks, then the slots plus one. Behind the last prefix is an entry that
//! matches everything and stands for no match; so a search ends there. `emit::lpm` has the search as LLVM's
//! IR: both must change together.
//!
//! Invariant: prefixes lie in the order of `order`, and there is one lane more than the maximum number of
//! prefixes.

use std::cmp::Reverse;
use std::io;

use super::length;
use crate::hash_function::words;
use crate::region::{AddressAllocator, MemoryRegion};

/// Prefixes that are compared at once.
pub const LANES: usize = 8;

/// The prefixes.
#[derive(Debug)]
pub(crate) struct PrefixList {
    chunks: MemoryRegion,
    order: Vec<(Reverse<u32>, Box<[u8]>)>,
    /// Words of a key.
    words: usize,
    most: usize,
}

/// Address and parameters of the list.
#[derive(Clone, Copy, Debug)]
pub struct ListLayout {
    /// Address of the first chunk.
    pub chunks: u64,
    /// Number of chunks.
    pub count: u64,
    /// Bytes of a chunk.
    pub bytes: u64,
}

/// 64-bit words of a chunk, for keys of this many words.
fn chunk(words: usize) -> usize {
    LANES * 2 * words + LANES / 2
}

impl PrefixList {
    pub(crate) fn new(
        key_size: u32,
        max_entries: u32,
        place: &mut AddressAllocator,
    ) -> io::Result<PrefixList> {
        let (words, most) = ((key_size as usize).div_ceil(8), max_entries as usize);
        let bytes = (most + 1).div_ceil(LANES).checked_mul(8 * chunk(words));
        let bytes = bytes.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(PrefixList { chunks: MemoryRegion::new(bytes, place)?, order: Vec::new(), words, most })
    }

    pub(crate) fn layout(&self) -> ListLayout {
        let count = (self.most + 1).div_ceil(LANES) as u64;
        ListLayout { chunks: self.chunks.address(), count, bytes: 8 * chunk(self.words) as u64 }
    }

    /// Places of the values and masks of a prefix, as words, and of its slot, as half a word.
    fn places(&self, at: usize) -> (impl Iterator<Item = usize> + use<>, usize) {
        let (first, lane) = (at / LANES * chunk(self.words), at % LANES);
        let slot = 2 * (first + LANES * 2 * self.words) + lane;
        ((0..2 * self.words).map(move |row| first + LANES * row + lane), slot)
    }

    /// Copies the prefix at one place to another.
    fn copy(&mut self, from: usize, to: usize) {
        let ((sources, slot), (places, to)) = (self.places(from), self.places(to));
        for (source, place) in sources.zip(places) {
            self.chunks.set_word(place, self.chunks.word(source));
        }
        self.chunks.set_half(to, self.chunks.half(slot));
    }

    /// Sets the slot of a prefix, whose bits behind it are zero; `false` if there is no room.
    pub(crate) fn set(&mut self, prefix: &[u8], slot: u32) -> bool {
        let key = (Reverse(length(prefix)), prefix.into());
        let at = match self.order.binary_search(&key) {
            Ok(at) => at,
            Err(_) if self.order.len() >= self.most => return false,
            Err(at) => {
                (at..self.order.len()).rev().for_each(|before| self.copy(before, before + 1));
                self.write(at, prefix);
                self.order.insert(at, key);
                at
            }
        };
        let (_, place) = self.places(at);
        self.chunks.set_half(place, slot + 1);
        true
    }

    fn write(&mut self, at: usize, prefix: &[u8]) {
        let (mut value, mut mask) = (prefix.to_vec(), vec![0; prefix.len()]);
        for (byte, to) in mask.iter_mut().skip(4).enumerate() {
            let kept = length(prefix).saturating_sub(8 * byte as u32).min(8);
            *to = !(0xffu32 >> kept) as u8;
        }
        value.iter_mut().take(4).for_each(|byte| *byte = 0);
        let rows = words(&value).zip(words(&mask)).flat_map(|(value, mask)| [value, mask]);
        let (places, _) = self.places(at);
        for (place, row) in places.zip(rows) {
            self.chunks.set_word(place, row);
        }
    }

    pub(crate) fn remove(&mut self, prefix: &[u8]) {
        let key = (Reverse(length(prefix)), prefix.into());
        let Ok(at) = self.order.binary_search(&key) else { return };
        self.order.remove(at);
        // The place behind the last one is empty.
        (at..=self.order.len()).for_each(|place| self.copy(place + 1, place));
    }
}
