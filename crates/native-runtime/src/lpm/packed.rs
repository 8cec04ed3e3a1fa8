//! Nodes of a trie with each run of equal places as one word (Degermark, Brodnik, Carlsson and Pink, 1997).
//!
//! A node is a cache line: 256 bits, set where a run of equal places begins; the numbers of runs that begin
//! in front of each 64 of them; the position of the words of its runs, minus one, so that a node that was
//! never written leads to no other memory; and the words themselves, if they are few. Words of more runs lie
//! behind the nodes, in blocks of a power of two. A place's word is that of the last run that begins at it or
//! before.
//!
//! Few prefixes share a node of a large table, so that most nodes have a sixteenth of the size with all
//! places.

use std::io;

use crate::region::{AddressAllocator, MemoryRegion};

/// Words of a node, and the index in it of the first word of its own runs.
const NODE_WORDS: usize = 16;
pub(crate) const OWN_RUNS: usize = 10;
/// Maximum number of runs within a node.
const FEW: usize = NODE_WORDS - OWN_RUNS;
/// Offset in a node of the word with the position of its runs.
pub const RUNS_AT: u64 = 32;
/// Offset in a node of the bytes of its counts.
pub const COUNTS_AT: u64 = 36;
/// Words of the smallest block for runs, and the number of block sizes.
const LEAST: usize = 8;
const SIZES: usize = 6;
/// Maximum number of words that a node takes in all, if it grew through all block sizes.
const MOST_WORDS: usize = NODE_WORDS + LEAST * ((1 << SIZES) - 1);
/// Maximum number of nodes: their words are numbered by 32 bits.
pub(crate) const MOST_NODES: usize = 8_000_000;

/// Packed nodes, by number.
#[derive(Debug)]
pub(crate) struct PackedNodes {
    words: MemoryRegion,
    /// The first word behind those in use.
    used: usize,
    /// Free blocks of each size.
    free: [Vec<u32>; SIZES],
}

impl PackedNodes {
    /// Packed nodes with room for this many, at most [`MOST_NODES`]: numbered from 1 on, 0 is one without
    /// nodes below, for walks that have ended.
    pub(crate) fn new(nodes: usize, place: &mut AddressAllocator) -> io::Result<PackedNodes> {
        let words = MemoryRegion::new(4 * MOST_WORDS * (nodes + 1), place)?;
        let mut packed = PackedNodes { words, used: NODE_WORDS * (nodes + 1), free: Default::default() };
        packed.set(0, std::iter::repeat_n(0, 256));
        Ok(packed)
    }

    pub(crate) fn prefer_large_pages(&self) {
        self.words.prefer_large_pages(self.words.bytes().len());
    }

    pub(crate) fn address(&self) -> u64 {
        self.words.address()
    }

    /// The word of a node's place, as code finds it (`emit::lpm`).
    #[cfg(test)]
    fn get(&self, node: usize, place: usize) -> u32 {
        let at = NODE_WORDS * node;
        let before = self.words.half(at + RUNS_AT as usize / 4) as usize;
        let count = self.words.half(at + COUNTS_AT as usize / 4).to_le_bytes()[place / 64];
        let bits = self.words.word(at / 2 + place / 64) << (63 - place % 64);
        self.words.half(before + usize::from(count) + bits.count_ones() as usize)
    }

    /// Sets all places of a node.
    pub(crate) fn set(&mut self, node: usize, places: impl Iterator<Item = u32>) {
        let (mut bits, mut runs) = ([0u64; 4], Vec::with_capacity(256));
        for (at, word) in places.enumerate() {
            if runs.last() != Some(&word) {
                runs.push(word);
                bits[at / 64] |= 1 << (at % 64);
            }
        }
        let at = NODE_WORDS * node;
        let before = self.words.half(at + RUNS_AT as usize / 4) as usize + 1;
        let had: u32 = (0..4).map(|part| self.words.word(at / 2 + part).count_ones()).sum();
        let to = match (size(had as usize), size(runs.len())) {
            (old, new) if old == new && had > 0 => before,
            (old, new) => {
                if let Some(old) = old {
                    self.free[old].push(before as u32);
                }
                new.map_or(at + OWN_RUNS, |new| self.take(new))
            }
        };
        for (place, word) in runs.iter().enumerate() {
            self.words.set_half(to + place, *word);
        }
        let mut counts = [0u8; 4];
        for part in 0..4 {
            self.words.set_word(at / 2 + part, bits[part]);
            if part > 0 {
                counts[part] = counts[part - 1] + bits[part - 1].count_ones() as u8;
            }
        }
        self.words.set_half(at + RUNS_AT as usize / 4, to as u32 - 1);
        self.words.set_half(at + COUNTS_AT as usize / 4, u32::from_le_bytes(counts));
    }

    /// A block of a size.
    fn take(&mut self, size: usize) -> usize {
        if let Some(block) = self.free[size].pop() {
            return block as usize;
        }
        self.used += LEAST << size;
        self.used - (LEAST << size)
    }
}

/// The block size for this many runs; `None` if they lie in the node.
fn size(runs: usize) -> Option<usize> {
    let blocks = runs.div_ceil(LEAST).next_power_of_two();
    (runs > FEW).then(|| blocks.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_has_its_word_however_many_runs_there_are() {
        let mut packed = PackedNodes::new(2, &mut AddressAllocator::Anywhere).unwrap();
        let words = |step: usize| (0..256).map(move |at| (at / step) as u32 * 7 + 1);
        for step in [256, 64, 50, 40, 9, 2, 1, 1, 3, 100, 256, 1] {
            packed.set(1, words(step));
            packed.set(2, words(3));
            for (at, word) in words(step).enumerate() {
                assert_eq!((packed.get(1, at), packed.get(2, at)), (word, (at / 3) as u32 * 7 + 1), "{step}");
            }
        }
    }

    #[test]
    fn blocks_are_used_again() {
        let mut packed = PackedNodes::new(1, &mut AddressAllocator::Anywhere).unwrap();
        let mut most = 0;
        for round in 0..100 {
            for step in [1, 2, 9, 30, 256] {
                packed.set(0, (0..256).map(|at| at / step));
                packed.set(1, (0..256).map(|at| at / (257 - step)));
            }
            most = if round < 2 { packed.used } else { most };
        }
        assert_eq!(packed.used, most);
        assert!(4 * packed.used <= packed.words.bytes().len());
    }
}
