//! Blocks of 64 entries with any masks, which are compared with a key at once: a set of bits for each value of
//! four bits of the key says which entries accept it (bit vectors: Lakshman and Stiliadis, "High-Speed
//! Policy-based Packet Forwarding Using Efficient Multi-dimensional Range Matching", 1998).
//!
//! Invariant: the bits of a place without an entry are set in each column, and clear in `occupied`.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::{PriorityEntry, RankedEntry, StoredEntry};

/// Entries of a block: the bits of a word.
const BLOCK: usize = u64::BITS as usize;
/// Columns that are compared before the search looks if anything is left.
const STEP: usize = 4;

/// Values of four bits, as a set.
type NibbleSet = u16;

/// Acceptance of one byte of keys: the entries that accept each value of its upper and its lower four bits.
#[derive(Clone, Debug)]
struct ByteColumn {
    byte: usize,
    halves: [[u64; 16]; 2],
}

impl ByteColumn {
    fn accepting(&self, byte: u8) -> u64 {
        let [high, low] = &self.halves;
        high[usize::from(byte >> 4)] & low[usize::from(byte & 15)]
    }

    fn is_unused(&self) -> bool {
        self.halves.iter().flatten().all(|bits| *bits == u64::MAX)
    }
}

/// Values that the upper and the lower four bits of a byte must have.
fn accepted_values(entry: &StoredEntry, byte: usize) -> [NibbleSet; 2] {
    let (value, mask) = (entry.value[byte], entry.mask[byte]);
    let equal = |value: u8, mask: u8| -> NibbleSet {
        (0..16).filter(|nibble| nibble & mask == value).fold(0, |set, nibble| set | 1 << nibble)
    };
    let mut sets = [equal(value >> 4, mask >> 4), equal(value & 15, mask & 15)];
    for range in &entry.ranked.ranges {
        let Some(at) = byte.checked_sub(usize::from(range.offset)) else { continue };
        // Bytes behind the first one in which the bounds differ are compared later.
        if at < range.low.len() && range.low[..at] == range.high[..at] {
            let (low, high) = (range.low[at], range.high[at]);
            let between =
                |low: u8, high: u8| (low..=high).fold(0, |set: NibbleSet, nibble| set | 1 << nibble);
            sets[0] &= between(low >> 4, high >> 4);
            if low >> 4 == high >> 4 {
                sets[1] &= between(low & 15, high & 15);
            }
        }
    }
    sets
}

/// Up to 64 entries.
#[derive(Clone, Debug)]
struct EntryBlock {
    occupied: u64,
    /// Upper bound of the priorities.
    greatest: u32,
    /// Bytes that any entry restricts.
    columns: Vec<ByteColumn>,
    entries: Vec<Option<StoredEntry>>,
}

impl EntryBlock {
    fn new() -> EntryBlock {
        EntryBlock { occupied: 0, greatest: 0, columns: Vec::new(), entries: vec![None; BLOCK] }
    }

    /// Entries that a key matches, but for ranges.
    fn matching(&self, key: &[u8]) -> u64 {
        let mut matching = self.occupied;
        for columns in self.columns.chunks(STEP) {
            for column in columns {
                matching &= key.get(column.byte).map_or(0, |byte| column.accepting(*byte));
            }
            if matching == 0 {
                break;
            }
        }
        matching
    }

    /// The entry that wins for a key, if it comes before the best one so far.
    fn best<'a>(&'a self, key: &[u8], mut best: Option<&'a RankedEntry>) -> Option<&'a RankedEntry> {
        let mut matching = self.matching(key);
        while matching != 0 {
            let at = matching.trailing_zeros() as usize;
            matching &= matching - 1;
            let Some(Some(StoredEntry { ranked, .. })) = self.entries.get(at) else { continue };
            if best.is_none_or(|best| ranked.is_before(best)) && ranked.has_in_ranges(key) {
                best = Some(ranked);
            }
        }
        best
    }

    fn add(&mut self, at: usize, entry: StoredEntry) {
        let bit = 1 << at;
        for byte in 0..entry.mask.len() {
            let sets = accepted_values(&entry, byte);
            if sets == [NibbleSet::MAX; 2] {
                continue;
            }
            let column = self.column(byte);
            for (half, set) in column.halves.iter_mut().zip(sets) {
                half.iter_mut()
                    .enumerate()
                    .filter(|(nibble, _)| set >> nibble & 1 == 0)
                    .for_each(|(_, bits)| *bits &= !bit);
            }
        }
        self.occupied |= bit;
        self.greatest = self.greatest.max(entry.ranked.priority);
        self.entries[at] = Some(entry);
    }

    fn column(&mut self, byte: usize) -> &mut ByteColumn {
        let at = match self.columns.binary_search_by_key(&byte, |column| column.byte) {
            Ok(at) => at,
            Err(at) => {
                self.columns.insert(at, ByteColumn { byte, halves: [[u64::MAX; 16]; 2] });
                at
            }
        };
        &mut self.columns[at]
    }

    fn remove(&mut self, at: usize) -> Option<StoredEntry> {
        let removed = self.entries[at].take()?;
        let bit = 1 << at;
        self.occupied &= !bit;
        for column in &mut self.columns {
            column.halves.iter_mut().flatten().for_each(|bits| *bits |= bit);
        }
        self.columns.retain(|column| !column.is_unused());
        self.greatest = self.entries.iter().flatten().map(|entry| entry.ranked.priority).max().unwrap_or(0);
        Some(removed)
    }
}

/// Place of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BlockPlace {
    block: usize,
    at: usize,
}

/// Entries in blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockIndex {
    blocks: Vec<EntryBlock>,
    /// Blocks that are not full.
    with_room: BTreeSet<usize>,
    /// Places of the entries of each mask.
    places: FxHashMap<Box<[u8]>, Vec<BlockPlace>>,
}

impl BlockIndex {
    /// The first entry that a key matches.
    pub(super) fn best(&self, key: &[u8]) -> Option<&RankedEntry> {
        let mut best: Option<&RankedEntry> = None;
        for block in &self.blocks {
            if best.is_none_or(|best| best.priority <= block.greatest) {
                best = block.best(key, best);
            }
        }
        best
    }

    fn place(&self, name: &PriorityEntry) -> Option<BlockPlace> {
        let is_named = |place: &&BlockPlace| {
            let found = self.blocks[place.block].entries[place.at].as_ref();
            found.is_some_and(|entry| {
                let RankedEntry { priority, ranges, .. } = &entry.ranked;
                *priority == name.priority && *entry.value == *name.value && *ranges == name.ranges
            })
        };
        self.places.get(&*name.mask)?.iter().find(is_named).copied()
    }

    /// Slot of the entry of this name.
    pub(super) fn slot(&self, name: &PriorityEntry) -> Option<u32> {
        let BlockPlace { block, at } = self.place(name)?;
        self.blocks[block].entries[at].as_ref().map(|entry| entry.ranked.slot)
    }

    /// The entry of this name.
    pub(super) fn find(&mut self, name: &PriorityEntry) -> Option<&mut RankedEntry> {
        let BlockPlace { block, at } = self.place(name)?;
        self.blocks[block].entries[at].as_mut().map(|entry| &mut entry.ranked)
    }

    /// Adds an entry; gives the number of entries that its mask has now.
    pub(super) fn add(&mut self, entry: StoredEntry) -> usize {
        let block = self.with_room.first().copied().unwrap_or_else(|| {
            self.blocks.push(EntryBlock::new());
            self.with_room.insert(self.blocks.len() - 1);
            self.blocks.len() - 1
        });
        let at = self.blocks[block].occupied.trailing_ones() as usize;
        let places = self.places.entry(entry.mask.clone()).or_default();
        places.push(BlockPlace { block, at });
        let count = places.len();
        self.blocks[block].add(at, entry);
        if self.blocks[block].occupied == u64::MAX {
            self.with_room.remove(&block);
        }
        count
    }

    fn remove_at(&mut self, BlockPlace { block, at }: BlockPlace) -> Option<StoredEntry> {
        let removed = self.blocks[block].remove(at);
        self.with_room.insert(block);
        while self.blocks.last().is_some_and(|block| block.occupied == 0) {
            self.blocks.pop();
            self.with_room.remove(&self.blocks.len());
        }
        removed
    }

    /// Removes the entry of this name.
    pub(super) fn remove(&mut self, name: &PriorityEntry) -> Option<RankedEntry> {
        let place = self.place(name)?;
        let places = self.places.get_mut(&*name.mask)?;
        places.retain(|other| *other != place);
        if places.is_empty() {
            self.places.remove(&*name.mask);
        }
        self.remove_at(place).map(|entry| entry.ranked)
    }

    /// Removes all entries of a mask, and gives them.
    pub(super) fn take_all(&mut self, mask: &[u8]) -> Vec<StoredEntry> {
        let places = self.places.remove(mask).unwrap_or_default();
        places.into_iter().filter_map(|place| self.remove_at(place)).collect()
    }

    /// All entries.
    pub(super) fn entries(&self) -> impl Iterator<Item = &StoredEntry> {
        self.blocks.iter().flat_map(|block| block.entries.iter().flatten())
    }
}
