//! Maps whose entries match by mask and by range, with priorities.
//!
//! A program looks up plain keys. A control program names an entry by [`PriorityEntry::encode`]. The kernel
//! has no such map.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

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

/// An entry of a [`PriorityIndex`], without value and mask.
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

/// Entries with the same mask.
#[derive(Clone, Debug)]
struct MaskTuple {
    mask: Box<[u8]>,
    /// Number of entries of each priority.
    priorities: BTreeMap<u32, u32>,
    /// Entries by value, the greatest priority and the oldest first.
    entries: FxHashMap<Box<[u8]>, Vec<RankedEntry>>,
}

impl MaskTuple {
    fn greatest(&self) -> u32 {
        self.priorities.last_key_value().map_or(0, |(priority, _)| *priority)
    }

    /// The first entry that a key matches.
    fn best(&self, key: &[u8]) -> Option<&RankedEntry> {
        let mut short = [0; SHORT_KEY];
        let mut long = Vec::new();
        let masked = match short.get_mut(..key.len()) {
            Some(masked) => masked,
            None => {
                long.resize(key.len(), 0);
                &mut long[..]
            }
        };
        for (to, (byte, mask)) in masked.iter_mut().zip(key.iter().zip(&self.mask)) {
            *to = byte & mask;
        }
        self.entries.get(&*masked)?.iter().find(|entry| entry.has_in_ranges(key))
    }
}

/// Bytes of keys that are masked on the stack.
const SHORT_KEY: usize = 64;

/// The index of a map with priorities: slots by entry.
///
/// Entries with the same mask share a hash table (tuple space search: Srinivasan, Suri and Varghese, "Packet
/// Classification using Tuple Space Search", 1999). Masks are tried by descending priority, until no later
/// one can win. Entries that differ only in ranges are tried one after the other.
#[derive(Clone, Debug)]
pub struct PriorityIndex {
    key_size: usize,
    /// By descending greatest priority.
    tuples: Vec<MaskTuple>,
    len: usize,
    /// Number of entries that were ever added.
    added: u64,
}

impl PriorityIndex {
    /// An empty index for keys of `key_size` bytes.
    pub fn new(key_size: u32) -> PriorityIndex {
        PriorityIndex { key_size: key_size as usize, tuples: Vec::new(), len: 0, added: 0 }
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
        let mut best: Option<&RankedEntry> = None;
        for tuple in &self.tuples {
            if best.is_some_and(|best| best.priority > tuple.greatest()) {
                break;
            }
            match tuple.best(key) {
                Some(found) if best.is_none_or(|best| found.is_before(best)) => best = Some(found),
                _ => {}
            }
        }
        best.map(|entry| entry.slot)
    }

    /// Tells if the name of an entry is well formed.
    pub fn accepts(&self, name: &[u8]) -> bool {
        PriorityEntry::decode(name, self.key_size).is_some()
    }

    /// Places of an entry: tuple, and number among the entries of its value.
    fn position(&self, entry: &PriorityEntry) -> Option<(usize, usize)> {
        let at = self.tuples.iter().position(|tuple| *tuple.mask == *entry.mask)?;
        let same = self.tuples[at].entries.get(&*entry.value)?;
        let is_it = |other: &RankedEntry| other.priority == entry.priority && other.ranges == entry.ranges;
        same.iter().position(is_it).map(|number| (at, number))
    }

    /// Slot of the entry of this name.
    pub fn named(&self, name: &[u8]) -> Option<u32> {
        let entry = PriorityEntry::decode(name, self.key_size)?;
        let (at, number) = self.position(&entry)?;
        self.tuples[at].entries.get(&*entry.value)?.get(number).map(|entry| entry.slot)
    }

    /// Adds an entry that is not there. A name that is not well formed is ignored.
    pub fn put(&mut self, name: &[u8], slot: u32) {
        let Some(entry) = PriorityEntry::decode(name, self.key_size) else { return };
        let PriorityEntry { priority, value, mask, ranges } = entry;
        let mut tuple = match self.tuples.iter().position(|tuple| *tuple.mask == *mask) {
            Some(at) if self.tuples[at].greatest() >= priority => {
                let tuple = &mut self.tuples[at];
                (self.len, self.added) = (self.len + 1, self.added + 1);
                return tuple.add(value, RankedEntry { priority, age: self.added, ranges, slot });
            }
            Some(at) => self.tuples.remove(at),
            None => {
                let (priorities, entries) = (BTreeMap::new(), FxHashMap::default());
                MaskTuple { mask: mask.into(), priorities, entries }
            }
        };
        (self.len, self.added) = (self.len + 1, self.added + 1);
        tuple.add(value, RankedEntry { priority, age: self.added, ranges, slot });
        self.insert_tuple(tuple);
    }

    fn insert_tuple(&mut self, tuple: MaskTuple) {
        let at = self.tuples.partition_point(|other| other.greatest() >= tuple.greatest());
        self.tuples.insert(at, tuple);
    }

    /// Points an entry to another slot.
    pub fn redirect(&mut self, name: &[u8], slot: u32) {
        let Some(entry) = PriorityEntry::decode(name, self.key_size) else { return };
        let Some((at, number)) = self.position(&entry) else { return };
        let same = self.tuples[at].entries.get_mut(&*entry.value);
        if let Some(entry) = same.and_then(|same| same.get_mut(number)) {
            entry.slot = slot;
        }
    }

    /// Removes an entry and gives its slot.
    pub fn remove(&mut self, name: &[u8]) -> Option<u32> {
        let entry = PriorityEntry::decode(name, self.key_size)?;
        let (at, number) = self.position(&entry)?;
        let tuple = &mut self.tuples[at];
        let greatest = tuple.greatest();
        let same = tuple.entries.get_mut(&*entry.value)?;
        let removed = same.remove(number);
        if same.is_empty() {
            tuple.entries.remove(&*entry.value);
        }
        if let Some(count) = tuple.priorities.get_mut(&entry.priority) {
            *count -= 1;
            if *count == 0 {
                tuple.priorities.remove(&entry.priority);
            }
        }
        self.len -= 1;
        if tuple.entries.is_empty() {
            self.tuples.remove(at);
        } else if tuple.greatest() < greatest {
            let tuple = self.tuples.remove(at);
            self.insert_tuple(tuple);
        }
        Some(removed.slot)
    }

    /// Names of all entries, greatest priority first, among equal ones the oldest.
    pub fn names(&self) -> Vec<Vec<u8>> {
        let mut ranked = Vec::new();
        for tuple in &self.tuples {
            for (value, same) in &tuple.entries {
                ranked.extend(same.iter().map(|entry| (tuple, &**value, entry)));
            }
        }
        ranked.sort_unstable_by_key(|(_, _, entry)| (Reverse(entry.priority), entry.age));
        let name = |(tuple, value, entry): (&MaskTuple, &[u8], &RankedEntry)| {
            let (value, mask) = (value.to_vec(), tuple.mask.to_vec());
            PriorityEntry { priority: entry.priority, value, mask, ranges: entry.ranges.clone() }.encode()
        };
        ranked.into_iter().map(name).collect()
    }
}

impl MaskTuple {
    fn add(&mut self, value: Vec<u8>, entry: RankedEntry) {
        *self.priorities.entry(entry.priority).or_default() += 1;
        let same = self.entries.entry(value.into()).or_default();
        let at = same.partition_point(|other| other.priority >= entry.priority);
        same.insert(at, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(priority: u32, value: &[u8], mask: &[u8]) -> PriorityEntry {
        PriorityEntry { priority, value: value.to_vec(), mask: mask.to_vec(), ranges: Vec::new() }
    }

    #[test]
    fn the_greatest_priority_wins_and_among_equals_the_oldest() {
        let mut list = PriorityIndex::new(2);
        list.put(&entry(1, &[1, 0], &[0xff, 0]).encode(), 10);
        list.put(&entry(2, &[1, 2], &[0xff, 0xff]).encode(), 11);
        list.put(&entry(1, &[0, 0], &[0, 0]).encode(), 12);
        assert_eq!(list.best(&[1, 2]), Some(11));
        assert_eq!(list.best(&[1, 3]), Some(10));
        assert_eq!(list.best(&[2, 3]), Some(12));
        assert_eq!(list.remove(&entry(2, &[1, 2], &[0xff, 0xff]).encode()), Some(11));
        assert_eq!(list.best(&[1, 2]), Some(10));
    }

    #[test]
    fn ranges_compare_as_numbers() {
        let range = ByteRange { offset: 0, low: vec![0, 200], high: vec![1, 10] };
        let entry = PriorityEntry { ranges: vec![range], ..entry(0, &[0, 0], &[0, 0]) };
        let mut list = PriorityIndex::new(2);
        list.put(&entry.encode(), 1);
        for (key, expected) in [([0, 199], None), ([0, 200], Some(1)), ([1, 10], Some(1)), ([1, 11], None)] {
            assert_eq!(list.best(&key), expected);
        }
    }

    #[test]
    fn malformed_names_are_refused() {
        let list = PriorityIndex::new(2);
        assert!(!list.accepts(&[0; 7]));
        assert!(list.accepts(&[0; 8]));
        assert!(!list.accepts(&[0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0]));
    }

    /// The entry that wins among all, one by one.
    fn winner(entries: &[(PriorityEntry, u32)], key: &[u8]) -> Option<u32> {
        let matches = |entry: &PriorityEntry| {
            let masked = key.iter().zip(&entry.value).zip(&entry.mask).all(|((k, v), m)| (k ^ v) & m == 0);
            let in_range = |range: &ByteRange| {
                let from = usize::from(range.offset);
                let part = &key[from..from + range.low.len()];
                *range.low <= *part && *part <= *range.high
            };
            masked && entry.ranges.iter().all(in_range)
        };
        let mut best: Option<&(PriorityEntry, u32)> = None;
        for entry in entries.iter().filter(|(entry, _)| matches(entry)) {
            if best.is_none_or(|(best, _)| best.priority < entry.0.priority) {
                best = Some(entry);
            }
        }
        best.map(|(_, slot)| *slot)
    }

    #[test]
    fn the_search_by_masks_finds_what_a_linear_one_finds() {
        let mut state = 7u64;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        let mut index = PriorityIndex::new(3);
        let mut entries: Vec<(PriorityEntry, u32)> = Vec::new();
        for round in 0..4000 {
            let mask: Vec<u8> = (0..3).map(|_| [0, 0, 3, 0xff][below(4) as usize]).collect();
            let value = mask.iter().map(|mask| below(4) as u8 & mask).collect();
            let (low, high) = (vec![below(3) as u8], vec![below(4) as u8]);
            let ranges = if below(3) == 0 { vec![ByteRange { offset: 1, low, high }] } else { Vec::new() };
            let entry = PriorityEntry { priority: below(5) as u32, value, mask, ranges };
            match entries.iter().position(|(other, _)| *other == entry) {
                Some(at) if below(2) == 0 => {
                    assert_eq!(index.remove(&entry.encode()), Some(entries.remove(at).1));
                }
                Some(at) => assert_eq!(index.named(&entry.encode()), Some(entries[at].1)),
                None if entries.len() < 200 => {
                    index.put(&entry.encode(), round);
                    entries.push((entry, round));
                }
                None => {
                    let at = below(entries.len() as u64) as usize;
                    let (gone, slot) = entries.remove(at);
                    assert_eq!(index.remove(&gone.encode()), Some(slot));
                }
            }
            let key: Vec<u8> = (0..3).map(|_| below(5) as u8).collect();
            assert_eq!(index.best(&key), winner(&entries, &key), "{key:?}");
        }
        let mut names: Vec<_> = entries.iter().map(|(entry, _)| entry.encode()).collect();
        let mut listed = index.names();
        names.sort();
        listed.sort();
        assert_eq!((names.len(), names), (index.len(), listed));
    }
}
