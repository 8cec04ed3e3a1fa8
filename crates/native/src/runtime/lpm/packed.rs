//! Nodes of a trie with each run of equal places as one word (Degermark, Brodnik, Carlsson and Pink, 1997).
//!
//! A node is a cache line: 256 bits, of which those are set where a run of equal places begins; how many runs begin in front of each 64 of them; where the
//! words of its runs are, less one, so that a node that was never written leads to no other memory; and the words themselves, if they are few. Words of more runs lie behind the nodes, in blocks of a power of two. A place's
//! word is that of the last run that begins at it or before.
//!
//! Few prefixes share a node of a large table, so that most are a sixteenth of what they are with all places.

use std::io;

use crate::runtime::region::{Place, Region};

/// Words of a node, and of which place in it the first of its own runs is.
const NODE_WORDS: usize = 16;
pub(crate) const OWN_RUNS: usize = 10;
/// Runs that a node has room for itself.
const FEW: usize = NODE_WORDS - OWN_RUNS;
/// In a node: its word that says where its runs are, and the byte of its counts.
pub(crate) const RUNS_AT: u64 = 32;
pub(crate) const COUNTS_AT: u64 = 36;
/// Words of the smallest block for runs, and how many sizes there are.
const LEAST: usize = 8;
const SIZES: usize = 6;
/// Words that a node may have taken in all, when it grew from one size of blocks to the next.
const MOST_WORDS: usize = NODE_WORDS + LEAST * ((1 << SIZES) - 1);
/// Nodes, at most: their words are numbered by 32 bits.
pub(crate) const MOST_NODES: usize = 8_000_000;

/// Packed nodes, by number.
#[derive(Debug)]
pub(crate) struct Packed {
    words: Region,
    /// The first word behind those in use.
    used: usize,
    /// Blocks of each size that are not in use.
    free: [Vec<u32>; SIZES],
}

impl Packed {
    /// Room for so many nodes, not more than [`MOST_NODES`]: from number 1 on, 0 is one without nodes below, for walks that have ended.
    pub(crate) fn new(nodes: usize, place: &mut Place) -> io::Result<Packed> {
        let words = Region::new(4 * MOST_WORDS * (nodes + 1), place)?;
        let mut packed = Packed { words, used: NODE_WORDS * (nodes + 1), free: Default::default() };
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

/// The size of blocks that so many runs take; none if they lie in the node.
fn size(runs: usize) -> Option<usize> {
    let blocks = runs.div_ceil(LEAST).next_power_of_two();
    (runs > FEW).then(|| blocks.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_has_its_word_however_many_runs_there_are() {
        let mut packed = Packed::new(2, &mut Place::Anywhere).unwrap();
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
        let mut packed = Packed::new(1, &mut Place::Anywhere).unwrap();
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
