//! Maps whose entries match by mask and by range, with priorities.
//!
//! A program looks up plain keys. A control program names an entry by [`PriorityEntry::encode`]. The kernel
//! has no such map.

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

    fn matches(&self, key: &[u8]) -> bool {
        let masked = key.iter().zip(&self.value).zip(&self.mask).all(|((k, v), m)| (k ^ v) & m == 0);
        masked
            && self.ranges.iter().all(|range| {
                let from = usize::from(range.offset);
                let part = key.get(from..from + range.low.len());
                part.is_some_and(|part| range.low.as_slice() <= part && part <= range.high.as_slice())
            })
    }
}

/// Entries with their slots, greatest priority first.
#[derive(Clone, Debug)]
pub(super) struct PriorityList {
    key_size: usize,
    entries: Vec<(PriorityEntry, u32)>,
}

impl PriorityList {
    pub(super) fn new(key_size: u32) -> PriorityList {
        PriorityList { key_size: key_size as usize, entries: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Slot of the first entry that a key matches.
    pub(super) fn best(&self, key: &[u8]) -> Option<u32> {
        self.entries.iter().find(|(entry, _)| entry.matches(key)).map(|(_, slot)| *slot)
    }

    /// Tells if the name of an entry is well formed.
    pub(super) fn accepts(&self, name: &[u8]) -> bool {
        PriorityEntry::decode(name, self.key_size).is_some()
    }

    fn position(&self, name: &[u8]) -> Option<usize> {
        let wanted = PriorityEntry::decode(name, self.key_size)?;
        self.entries.iter().position(|(entry, _)| *entry == wanted)
    }

    /// Slot of the entry of this name.
    pub(super) fn named(&self, name: &[u8]) -> Option<u32> {
        self.position(name).map(|at| self.entries[at].1)
    }

    pub(super) fn put(&mut self, name: &[u8], slot: u32) {
        let Some(entry) = PriorityEntry::decode(name, self.key_size) else { return };
        let at = self.entries.partition_point(|(other, _)| other.priority >= entry.priority);
        self.entries.insert(at, (entry, slot));
    }

    pub(super) fn redirect(&mut self, name: &[u8], slot: u32) {
        if let Some(at) = self.position(name) {
            self.entries[at].1 = slot;
        }
    }

    pub(super) fn remove(&mut self, name: &[u8]) -> Option<u32> {
        self.position(name).map(|at| self.entries.remove(at).1)
    }

    pub(super) fn names(&self) -> Vec<Vec<u8>> {
        self.entries.iter().map(|(entry, _)| entry.encode()).collect()
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
        let mut list = PriorityList::new(2);
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
        let mut list = PriorityList::new(2);
        list.put(&entry.encode(), 1);
        for (key, expected) in [([0, 199], None), ([0, 200], Some(1)), ([1, 10], Some(1)), ([1, 11], None)] {
            assert_eq!(list.best(&key), expected);
        }
    }

    #[test]
    fn malformed_names_are_refused() {
        let list = PriorityList::new(2);
        assert!(!list.accepts(&[0; 7]));
        assert!(list.accepts(&[0; 8]));
        assert!(!list.accepts(&[0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0]));
    }
}
