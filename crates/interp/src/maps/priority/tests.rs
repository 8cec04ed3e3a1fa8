//! Maps with priorities beside a search through all entries.

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

/// Kind of entries that a random test makes.
struct RandomEntries {
    key_size: usize,
    /// Masks of a byte, each as likely.
    masks: &'static [u8],
    /// Bound of the bytes of values and keys.
    values: u64,
    priorities: u64,
    /// One entry of so many has a range; 0 for none.
    ranged: u64,
    /// Most entries at once.
    most: usize,
}

impl RandomEntries {
    /// Adds and removes entries, and compares each look-up with that of a linear search.
    fn compare(&self, rounds: u32) {
        let mut state = 7u64;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        let mut index = PriorityIndex::new(self.key_size as u32);
        let mut entries: Vec<(PriorityEntry, u32)> = Vec::new();
        // Times in which entries become more, and times in which they become fewer.
        let mut grows = true;
        for round in 0..rounds {
            grows = if grows { entries.len() < self.most } else { entries.is_empty() };
            let mask: Vec<u8> =
                (0..self.key_size).map(|_| self.masks[below(self.masks.len() as u64) as usize]).collect();
            let value = mask.iter().map(|mask| below(self.values) as u8 & mask).collect();
            let ranges = if self.ranged > 0 && below(self.ranged) == 0 {
                let len = 1 + below(self.key_size as u64 - 1);
                let offset = below(self.key_size as u64 - len + 1) as u16;
                let mut bound = || (0..len).map(|_| below(self.values + 1) as u8).collect::<Vec<u8>>();
                vec![ByteRange { offset, low: bound(), high: bound() }]
            } else {
                Vec::new()
            };
            let entry = PriorityEntry { priority: below(self.priorities) as u32, value, mask, ranges };
            let known = entries.iter().position(|(other, _)| *other == entry);
            match known {
                Some(at) if below(2) == 0 => {
                    index.redirect(&entry.encode(), round);
                    entries[at].1 = round;
                }
                Some(at) => assert_eq!(index.named(&entry.encode()), Some(entries[at].1)),
                None if grows || entries.is_empty() => {
                    assert_eq!(index.named(&entry.encode()), None);
                    assert_eq!(index.remove(&entry.encode()), None);
                    index.put(&entry.encode(), round);
                    entries.push((entry, round));
                }
                None => {
                    let at = below(entries.len() as u64) as usize;
                    let (gone, slot) = entries.remove(at);
                    assert_eq!(index.remove(&gone.encode()), Some(slot));
                }
            }
            let key: Vec<u8> = match entries.get(below(entries.len() as u64 + 1) as usize) {
                Some((entry, _)) if below(2) == 0 => {
                    let random = |(value, mask): (&u8, &u8)| value | below(self.values + 1) as u8 & !mask;
                    entry.value.iter().zip(&entry.mask).map(random).collect()
                }
                _ => (0..self.key_size).map(|_| below(self.values + 1) as u8).collect(),
            };
            assert_eq!(index.best(&key), winner(&entries, &key), "{key:?}");
            if round % 512 == 0 {
                self.compare_names(&index, &entries);
            }
        }
        self.compare_names(&index, &entries);
    }

    fn compare_names(&self, index: &PriorityIndex, entries: &[(PriorityEntry, u32)]) {
        let mut entries: Vec<&(PriorityEntry, u32)> = entries.iter().collect();
        entries.sort_by_key(|(entry, _)| Reverse(entry.priority));
        let names: Vec<_> = entries.iter().map(|(entry, _)| entry.encode()).collect();
        assert_eq!((names.len(), names), (index.len(), index.names()));
    }
}

#[test]
fn few_masks_with_many_entries_find_what_a_linear_search_finds() {
    let entries =
        RandomEntries { key_size: 4, masks: &[0, 0xff], values: 6, priorities: 40, ranged: 0, most: 700 };
    entries.compare(8000);
}

#[test]
fn many_masks_find_what_a_linear_search_finds() {
    let masks = &[0, 0, 3, 0xf0, 0x81, 0xff];
    RandomEntries { key_size: 7, masks, values: 255, priorities: 9, ranged: 0, most: 300 }.compare(6000);
}

#[test]
fn ranges_find_what_a_linear_search_finds() {
    let masks = &[0, 0, 0, 3, 0xff];
    RandomEntries { key_size: 3, masks, values: 40, priorities: 5, ranged: 2, most: 200 }.compare(6000);
    RandomEntries { key_size: 2, masks: &[0], values: 255, priorities: 5, ranged: 1, most: 100 }
        .compare(4000);
}

#[test]
fn equal_priorities_find_what_a_linear_search_finds() {
    let entries =
        RandomEntries { key_size: 3, masks: &[0, 1, 0xff], values: 4, priorities: 1, ranged: 3, most: 250 };
    entries.compare(6000);
}

#[test]
fn keys_longer_than_the_stack_buffer_find_what_a_linear_search_finds() {
    let entries = RandomEntries {
        key_size: 70,
        masks: &[0, 0, 0, 0xff],
        values: 2,
        priorities: 50,
        ranged: 2,
        most: 90,
    };
    entries.compare(1000);
}
