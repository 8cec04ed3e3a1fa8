//! Longest prefix match: a multi-bit trie over a table of the exact prefixes.
//!
//! Nodes cover 8 bits, the root 16 where keys have as many. A prefix is spread over all places of the node in which it ends
//! (controlled prefix expansion, Srinivasan and Varghese, 1999); the longest of one node wins its place, and a
//! look-up remembers the last that it passed. So an IPv4 address takes at most three loads. A place is a 64-bit word: slot
//! plus one below, number of the next node above.
//!
//! The table of exact prefixes is what counts: the trie follows it, and a look-up for fewer bits than a key has,
//! which the trie cannot answer, goes there. `emit::maps` has the walk through the trie as LLVM's IR: both must
//! change together.

use std::collections::BTreeMap;
use std::io;

use rustc_hash::FxHashMap;

use super::region::Region;
use super::values::Values;

/// A trie with its values.
#[derive(Debug)]
pub(crate) struct Lpm {
    bits: u32,
    /// Prefixes with all bits behind them zero, and their slots.
    exact: FxHashMap<Box<[u8]>, u32>,
    /// How many prefixes there are of each length.
    lengths: BTreeMap<u32, u32>,
    /// Length of the prefix in each slot.
    slot_length: Vec<u32>,
    nodes: Region,
    /// Words of `nodes` in use, and those there are.
    used: usize,
    room: usize,
    pub(crate) values: Values,
    max_entries: u32,
}

/// Words of a trie, at most: addresses, of which only those in use cost memory.
const MOST_WORDS: usize = 1 << 31;

/// Where things lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LpmLayout {
    /// The trie's words.
    pub(crate) nodes: u64,
    /// Bits of an address; a multiple of 8.
    pub(crate) bits: u32,
    /// Bits that the root covers.
    pub(crate) root: u32,
    pub(crate) values: u64,
    pub(crate) stride: u64,
}

/// Prefix length of a key, its first word.
fn length(key: &[u8]) -> u32 {
    key.first_chunk().map_or(u32::MAX, |word| u32::from_ne_bytes(*word))
}

impl Lpm {
    pub(crate) fn new(key_size: u32, value_size: u32, max_entries: u32) -> io::Result<Lpm> {
        let bits = key_size.saturating_sub(4) * 8;
        let root = if bits >= 16 { 1 << 16 } else { 1 << 8 };
        // A prefix adds a node a level at most.
        let levels = (bits / 8).saturating_sub(1) as usize;
        let nodes = (max_entries as usize).saturating_mul(levels).saturating_mul(256);
        let room = nodes.saturating_add(root).min(MOST_WORDS);
        Ok(Lpm {
            bits,
            exact: FxHashMap::default(),
            lengths: BTreeMap::new(),
            slot_length: Vec::new(),
            nodes: Region::new(8 * room)?,
            used: root,
            room,
            values: Values::new(0, value_size, 1, max_entries, true)?,
            max_entries,
        })
    }

    /// What the walk in native code needs to know.
    pub(crate) fn layout(&self) -> LpmLayout {
        LpmLayout {
            nodes: self.nodes.address(),
            bits: self.bits,
            root: self.root_bits(),
            values: self.values.base(),
            stride: self.values.stride() as u64,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.exact.len() as u32
    }

    /// Whether the prefix length is possible.
    pub(crate) fn accepts(&self, key: &[u8]) -> bool {
        length(key) <= self.bits
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.max_entries
    }

    fn root_bits(&self) -> u32 {
        if self.bits >= 16 { 16 } else { 8 }
    }

    /// The key cut to `bits` bits of prefix.
    fn cut(key: &[u8], bits: u32) -> Box<[u8]> {
        let mut out = key.to_vec();
        for (i, byte) in out.iter_mut().enumerate().skip(4) {
            let keep = bits.saturating_sub((i as u32 - 4) * 8).min(8);
            *byte &= !(0xffu32 >> keep) as u8;
        }
        if let Some(word) = out.first_chunk_mut() {
            *word = bits.to_ne_bytes();
        }
        out.into()
    }

    /// The slot of a prefix.
    pub(crate) fn exact(&self, key: &[u8]) -> Option<u32> {
        self.exact.get(&Lpm::cut(key, length(key))).copied()
    }

    /// The slot of the longest prefix that matches.
    pub(crate) fn longest(&self, key: &[u8]) -> Option<u32> {
        let most = length(key);
        if most != self.bits {
            let known = self.lengths.range(..=most.min(self.bits)).rev();
            let mut slots = known.filter_map(|(bits, _)| self.exact.get(&Lpm::cut(key, *bits)));
            return if most < self.bits { slots.next().copied() } else { None };
        }
        let data = &key[4..];
        let (first, mut at) = match data {
            [a, b, ..] => ((usize::from(*a) << 8) | usize::from(*b), 2),
            [a] => (usize::from(*a), 1),
            [] => return self.exact(key),
        };
        let mut place = self.nodes.word(first);
        let mut best = place as u32;
        while place >> 32 != 0 {
            place = self.nodes.word((place >> 32) as usize + usize::from(data[at]));
            at += 1;
            if place as u32 != 0 {
                best = place as u32;
            }
        }
        best.checked_sub(1)
    }

    /// Adds a prefix that is not there, and gives its slot; `None` if there is no room.
    pub(crate) fn insert(&mut self, key: &[u8]) -> Option<u32> {
        let bits = length(key);
        let (range, _) = self.places(key, bits)?;
        let slot = self.values.take()?;
        self.values.clear(slot);
        self.exact.insert(Lpm::cut(key, bits), slot);
        *self.lengths.entry(bits).or_default() += 1;
        self.set_length(slot, bits);
        self.spread(range, bits, slot);
        Some(slot)
    }

    /// Gives a prefix another slot and retires the old one.
    pub(crate) fn renew(&mut self, key: &[u8]) -> Option<u32> {
        let old = self.exact(key)?;
        let bits = length(key);
        let (range, _) = self.places(key, bits)?;
        let new = self.values.take()?;
        self.exact.insert(Lpm::cut(key, bits), new);
        self.set_length(new, bits);
        self.spread(range, bits, new);
        self.values.retire(old);
        Some(new)
    }

    fn set_length(&mut self, slot: u32, bits: u32) {
        let slot = slot as usize;
        if self.slot_length.len() <= slot {
            self.slot_length.resize(slot + 1, 0);
        }
        self.slot_length[slot] = bits;
    }

    /// Removes a prefix.
    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        let bits = length(key);
        let Some(slot) = self.exact.remove(&Lpm::cut(key, bits)) else { return false };
        if let Some(count) = self.lengths.get_mut(&bits) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&bits);
            }
        }
        self.values.retire(slot);
        let Some((range, base)) = self.places(key, bits) else { return true };
        // What shorter prefix of the same node takes the places over.
        let shorter = (base..bits).rev().filter(|b| self.lengths.contains_key(b));
        let heir = shorter.filter_map(|b| self.exact.get(&Lpm::cut(key, b))).next().map_or(0, |s| s + 1);
        for at in range {
            let place = self.nodes.word(at);
            if place as u32 == slot + 1 {
                self.nodes.set_word(at, place & !0xffff_ffff | u64::from(heir));
            }
        }
        true
    }

    /// Puts a slot at all places of its prefix where no longer one is.
    fn spread(&mut self, places: std::ops::Range<usize>, bits: u32, slot: u32) {
        for at in places {
            let place = self.nodes.word(at);
            let there = place as u32;
            if there == 0 || self.slot_length[there as usize - 1] <= bits {
                self.nodes.set_word(at, place & !0xffff_ffff | u64::from(slot + 1));
            }
        }
    }

    /// The places of a prefix in the node where it ends, which is made if it is not there, and the length of the
    /// shortest prefix that ends there, too; `None` if there is no room for a node.
    fn places(&mut self, key: &[u8], bits: u32) -> Option<(std::ops::Range<usize>, u32)> {
        let data = &key[4..];
        let byte = |at: u32| usize::from(data.get(at as usize).copied().unwrap_or(0));
        let root = self.root_bits();
        let (mut base, mut covered, mut width) = (0usize, 0, root);
        let mut index = if root == 16 { byte(0) << 8 | byte(1) } else { byte(0) };
        while bits > covered + width {
            let at = base + index;
            let mut place = self.nodes.word(at);
            if place >> 32 == 0 {
                if self.used + 256 > self.room {
                    return None;
                }
                place |= (self.used as u64) << 32;
                self.nodes.set_word(at, place);
                self.used += 256;
            }
            base = (place >> 32) as usize;
            covered += width;
            width = 8;
            index = byte(covered / 8);
        }
        let free = covered + width - bits;
        let start = base + (index >> free << free);
        // A prefix as long as the levels above is spread there, except the one of length 0, which only the root has.
        Some((start..start + (1 << free), if covered == 0 { 0 } else { covered + 1 }))
    }

    /// All prefixes.
    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        self.exact.keys().map(|key| key.to_vec()).collect()
    }
}
