//! Maps whose entries match by mask and by range, with priorities.
//!
//! A program looks up plain keys. A control program names an entry by [`PriorityEntry::encode`]. The kernel
//! has no such map.

mod blocks;
#[cfg(test)]
mod tests;
mod tuples;

use std::cmp::Reverse;

use blocks::BlockIndex;
use tuples::TupleIndex;

/// Condition on a run of bytes of a key, as numbers in network order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ByteRange {
    /// First byte of the key.
    pub offset: u16,
    /// Lower bound, inclusive; its length is that of the run.
    pub low: Vec<u8>,
    /// Upper bound, inclusive, of the same length.
    pub high: Vec<u8>,
}

/// An entry: the key under the mask equals the value, and every range holds. The greatest priority wins;
/// among equal ones the oldest entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PriorityEntry {
    /// Priority.
    pub priority: u32,
    /// Value, as long as a key; zero where the mask is zero.
    pub value: Vec<u8>,
    /// Mask, as long as a key.
    pub mask: Vec<u8>,
    /// Ranges.
    pub ranges: Vec<ByteRange>,
}

impl PriorityEntry {
    /// The bytes that name the entry: priority (32 bits), value, mask, and for each range its offset and
    /// length (16 bits each, host order) and the bounds.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.priority.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.value);
        bytes.extend_from_slice(&self.mask);
        for range in &self.ranges {
            bytes.extend_from_slice(&range.offset.to_le_bytes());
            bytes.extend_from_slice(&(range.low.len() as u16).to_le_bytes());
            bytes.extend_from_slice(&range.low);
            bytes.extend_from_slice(&range.high);
        }
        bytes
    }

    /// Reads the name of an entry of a map with keys of `key_size` bytes; `None` if it is malformed.
    pub fn decode(bytes: &[u8], key_size: usize) -> Option<PriorityEntry> {
        let (priority, rest) = bytes.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(key_size)?;
        let (mask, mut rest) = rest.split_at_checked(key_size)?;
        let mut ranges = Vec::new();
        while !rest.is_empty() {
            let (offset, tail) = rest.split_first_chunk()?;
            let (len, tail) = tail.split_first_chunk()?;
            let (offset, len) = (u16::from_le_bytes(*offset), usize::from(u16::from_le_bytes(*len)));
            let (low, tail) = tail.split_at_checked(len)?;
            let (high, tail) = tail.split_at_checked(len)?;
            if usize::from(offset) + len > key_size {
                return None;
            }
            ranges.push(ByteRange { offset, low: low.to_vec(), high: high.to_vec() });
            rest = tail;
        }
        let value = value.iter().zip(mask).map(|(v, m)| v & m).collect();
        Some(PriorityEntry { priority: u32::from_le_bytes(*priority), value, mask: mask.to_vec(), ranges })
    }
}

/// Entry of a [`PriorityIndex`], without value and mask.
#[derive(Clone, Debug)]
struct RankedEntry {
    priority: u32,
    /// Number of entries that were added before.
    age: u64,
    ranges: Vec<ByteRange>,
    slot: u32,
}

impl RankedEntry {
    fn is_before(&self, other: &RankedEntry) -> bool {
        (other.priority, self.age) < (self.priority, other.age)
    }

    fn has_in_ranges(&self, key: &[u8]) -> bool {
        self.ranges.iter().all(|range| {
            let from = usize::from(range.offset);
            let part = key.get(from..from + range.low.len());
            part.is_some_and(|part| range.low.as_slice() <= part && part <= range.high.as_slice())
        })
    }
}

/// Entry with all its conditions, as it is stored.
#[derive(Clone, Debug)]
struct StoredEntry {
    value: Box<[u8]>,
    mask: Box<[u8]>,
    ranked: RankedEntry,
}

impl StoredEntry {
    /// The name of the entry.
    fn encode(&self) -> Vec<u8> {
        let RankedEntry { priority, ranges, .. } = &self.ranked;
        let (value, mask) = (self.value.to_vec(), self.mask.to_vec());
        PriorityEntry { priority: *priority, value, mask, ranges: ranges.clone() }.encode()
    }
}

/// A mask with more entries gets a hash table of its own. Searching that takes about as long as searching a block.
const MOST_SHARED: usize = 32;
/// A mask with fewer entries loses its hash table.
const FEWEST_HASHED: usize = 8;

/// The index of a map with priorities: slots by entry.
///
/// Masks with many entries have a hash table each (`tuples`); entries of all other masks share blocks of 64
/// entries, which are compared at once (`blocks`). Both are searched by descending priority only as long as
/// something may still win.
#[derive(Clone, Debug)]
pub struct PriorityIndex {
    key_size: usize,
    blocks: BlockIndex,
    tuples: TupleIndex,
    len: usize,
    /// Number of entries that were ever added.
    added: u64,
}

impl PriorityIndex {
    /// An empty index for keys of `key_size` bytes.
    pub fn new(key_size: u32) -> PriorityIndex {
        let (blocks, tuples) = (BlockIndex::default(), TupleIndex::default());
        PriorityIndex { key_size: key_size as usize, blocks, tuples, len: 0, added: 0 }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Slot of the first entry that a key matches.
    pub fn best(&self, key: &[u8]) -> Option<u32> {
        if key.len() != self.key_size {
            return None;
        }
        let best = self.blocks.best(key);
        self.tuples.best(key, best).map(|entry| entry.slot)
    }

    /// Tells if the name of an entry is well formed.
    pub fn accepts(&self, name: &[u8]) -> bool {
        PriorityEntry::decode(name, self.key_size).is_some()
    }

    fn find(&mut self, entry: &PriorityEntry) -> Option<&mut RankedEntry> {
        self.tuples.find(entry).or_else(|| self.blocks.find(entry))
    }

    /// Slot of the entry of this name.
    pub fn named(&self, name: &[u8]) -> Option<u32> {
        let entry = PriorityEntry::decode(name, self.key_size)?;
        self.tuples.slot(&entry).or_else(|| self.blocks.slot(&entry))
    }

    /// Adds an entry that is not there. A name that is not well formed is ignored.
    pub fn put(&mut self, name: &[u8], slot: u32) {
        let Some(entry) = PriorityEntry::decode(name, self.key_size) else { return };
        let PriorityEntry { priority, value, mask, ranges } = entry;
        (self.len, self.added) = (self.len + 1, self.added + 1);
        let ranked = RankedEntry { priority, age: self.added, ranges, slot };
        let stored = StoredEntry { value: value.into(), mask: mask.into(), ranked };
        let mask = stored.mask.clone();
        if self.tuples.has(&mask) {
            self.tuples.add(vec![stored]);
        } else if self.blocks.add(stored) > MOST_SHARED {
            self.tuples.add(self.blocks.take_all(&mask));
        }
    }

    /// Points an entry to another slot.
    pub fn redirect(&mut self, name: &[u8], slot: u32) {
        let Some(entry) = PriorityEntry::decode(name, self.key_size) else { return };
        if let Some(found) = self.find(&entry) {
            found.slot = slot;
        }
    }

    /// Removes an entry and gives its slot.
    pub fn remove(&mut self, name: &[u8]) -> Option<u32> {
        let entry = PriorityEntry::decode(name, self.key_size)?;
        let removed = match self.tuples.remove(&entry) {
            Some((removed, left)) => {
                if left < FEWEST_HASHED {
                    for entry in self.tuples.take_all(&entry.mask) {
                        self.blocks.add(entry);
                    }
                }
                removed
            }
            None => self.blocks.remove(&entry)?,
        };
        self.len -= 1;
        Some(removed.slot)
    }

    /// Names of all entries, greatest priority first, among equal ones the oldest.
    pub fn names(&self) -> Vec<Vec<u8>> {
        let mut all: Vec<StoredEntry> = self.tuples.entries().chain(self.blocks.entries().cloned()).collect();
        all.sort_unstable_by_key(|entry| (Reverse(entry.ranked.priority), entry.ranked.age));
        all.iter().map(StoredEntry::encode).collect()
    }
}
