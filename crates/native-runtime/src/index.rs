//! The index of a hash table, which maps keys to slots. Three templates of it, each with hashes, with keys or
//! with neither in its places.
//!
//! A place is a 64-bit word: the low half is the slot plus one, the high half the *tag*; zero is an empty
//! place. The tag is the key's hash or, for keys of up to [`MOST_KEY`] bytes, the key itself
//! ([`HashTemplate::has_keys`]). So entries move without access to their elements: a hash that is not stored
//! is computed from the word. If the tag is the key, an entry with the tag is the sought one, and elements
//! need no keys.
//!
//! In a *bare* template ([`HashTemplate::is_bare`]) places have 32 bits, the slot plus one: half the memory,
//! for keys of any length. Every entry that a search visits is compared by its element's key; when an entry
//! moves, its hash is computed from that key.
//!
//! [`HashTemplate::Open`] is open addressing: a power of two of places, at most half of them used; the hash's
//! low bits give the start of the search, and an empty place ends it. Removal shifts back the following
//! entries, so there are no tombstones.
//!
//! [`HashTemplate::RobinHood`] is the same with up to seven eighths of the places used (Celis, 1986). Entries
//! lie in the order of the places where their searches begin, so none is much further from its own than
//! others are, and a search ends at an entry that is nearer to its own than the search has come.
//!
//! [`HashTemplate::Cuckoo`] has buckets of eight places, a cache line each (Pagh and Rodler, 2001;
//! Dietzfelbinger and Weidling, 2007). A key is in one of two buckets, both given by its hash, so a search
//! reads at most two lines, and neither depends on the other. An entry that finds both full makes others move
//! to their other bucket, along the shortest path to an empty place. At most four fifths of the places are
//! used; for all practical purposes such a path then exists. If there is none, the table counts as full.
//!
//! `emit::hash` has the same searches as LLVM's IR: both must change together.

use std::io;

use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

use super::hash_function;
use super::region::{AddressAllocator, MemoryRegion};

/// Template of a hash table's index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum HashTemplate {
    /// Open addressing with linear probing.
    #[default]
    Open,
    /// The same, with a higher load, and entries in order.
    RobinHood,
    /// Two buckets per key.
    Cuckoo,
    /// As [`HashTemplate::Open`], with keys instead of hashes.
    OpenKeys,
    /// As [`HashTemplate::RobinHood`], with keys instead of hashes.
    RobinHoodKeys,
    /// As [`HashTemplate::Cuckoo`], with keys instead of hashes.
    CuckooKeys,
    /// As [`HashTemplate::Open`], with slots only.
    OpenSlots,
    /// As [`HashTemplate::RobinHood`], with slots only.
    RobinHoodSlots,
    /// As [`HashTemplate::Cuckoo`], with slots only.
    CuckooSlots,
}

/// Search algorithm of an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProbingScheme {
    /// Linear probing.
    Open,
    /// Linear probing, with elements in the order of their distance from home.
    RobinHood,
    /// Two buckets for each key.
    Cuckoo,
}

/// Maximum size of a key in a place, in bytes.
pub const MOST_KEY: u32 = 4;

/// A key, prepared for a search in an index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashedKey<'k> {
    key: &'k [u8],
    hash: u32,
    tag: u32,
}

/// The keys of elements, by slot, if elements have keys.
pub(crate) trait SlotKeys {
    /// The key of an entry.
    fn of(&self, slot: u32) -> &[u8];
}

/// Places of a bucket.
pub const WAYS: u32 = 8;
/// Odd; the high bits of the product give the other bucket of a hash.
pub const OTHER: u32 = 0x9e37_79b1;
/// An index of at least this many words, 2 MiB, should lie in large pages.
const LARGE: u64 = 1 << 18;
/// An index of more words, 32 MiB, is larger than the caches of common servers.
const CACHED: u64 = 1 << 22;
/// Maximum number of buckets that are searched for one with an empty place.
const MOST_LOOKED_AT: usize = 4096;

/// An index.
#[derive(Debug)]
pub(crate) struct HashTableIndex {
    words: MemoryRegion,
    template: HashTemplate,
    /// Seed of the hash.
    seed: u64,
    /// Number of places, or of buckets, minus one.
    mask: u32,
}

impl HashTemplate {
    /// All templates.
    pub const ALL: [HashTemplate; 9] = [
        HashTemplate::Open,
        HashTemplate::RobinHood,
        HashTemplate::Cuckoo,
        HashTemplate::OpenKeys,
        HashTemplate::RobinHoodKeys,
        HashTemplate::CuckooKeys,
        HashTemplate::OpenSlots,
        HashTemplate::RobinHoodSlots,
        HashTemplate::CuckooSlots,
    ];

    /// Its name for pinning.
    pub const fn name(self) -> &'static str {
        match self {
            HashTemplate::Open => "open",
            HashTemplate::RobinHood => "robin-hood",
            HashTemplate::Cuckoo => "cuckoo",
            HashTemplate::OpenKeys => "open-keys",
            HashTemplate::RobinHoodKeys => "robin-hood-keys",
            HashTemplate::CuckooKeys => "cuckoo-keys",
            HashTemplate::OpenSlots => "open-slots",
            HashTemplate::RobinHoodSlots => "robin-hood-slots",
            HashTemplate::CuckooSlots => "cuckoo-slots",
        }
    }

    /// The template for a table of this many entries, and the reason. Two buckets per key are chosen if they
    /// take no more memory than places in a row: a line of a bucket is compared at once, so that a search has
    /// fewer branches to predict, above all for missing keys (`examples/tables`: 0.4 to 0.9 of the time). If
    /// they take half as much, more keys are in the other bucket: that pays if the index is larger than the
    /// caches. Keys that fit into places are stored there: there is no other key to load and compare, and
    /// elements need no room for it.
    pub fn fitting(entries: u32, key_size: u32) -> (HashTemplate, String) {
        let (template, why) = HashTemplate::by_size(entries);
        match HashTemplate::fits(key_size) {
            true => (template.with_keys(), format!("{why}; of {key_size} bytes a key is in its place")),
            false => (template, why),
        }
    }

    /// Returns true if keys of this many bytes fit into places.
    pub fn fits(key_size: u32) -> bool {
        (1..=MOST_KEY).contains(&key_size)
    }

    fn by_size(entries: u32) -> (HashTemplate, String) {
        let [open, cuckoo] =
            [HashTemplate::Open, HashTemplate::Cuckoo].map(|template| size(template, entries));
        let used = |words: u64| {
            format!("{entries} entries, at most {}% of the places", 100 * u64::from(entries) / words)
        };
        match (open >= CACHED, cuckoo < open) {
            (_, false) => (HashTemplate::Cuckoo, used(cuckoo)),
            (true, true) => (HashTemplate::Cuckoo, format!("{}, and more than caches hold", used(cuckoo))),
            (false, true) => (HashTemplate::Open, used(open)),
        }
    }

    /// Search algorithm of its indices.
    pub fn search(self) -> ProbingScheme {
        match self {
            HashTemplate::Open | HashTemplate::OpenKeys | HashTemplate::OpenSlots => ProbingScheme::Open,
            HashTemplate::RobinHood | HashTemplate::RobinHoodKeys | HashTemplate::RobinHoodSlots => {
                ProbingScheme::RobinHood
            }
            HashTemplate::Cuckoo | HashTemplate::CuckooKeys | HashTemplate::CuckooSlots => {
                ProbingScheme::Cuckoo
            }
        }
    }

    /// Returns true if places have keys instead of hashes.
    pub fn has_keys(self) -> bool {
        matches!(self, HashTemplate::OpenKeys | HashTemplate::RobinHoodKeys | HashTemplate::CuckooKeys)
    }

    /// Returns true if places have only slots.
    pub fn is_bare(self) -> bool {
        matches!(self, HashTemplate::OpenSlots | HashTemplate::RobinHoodSlots | HashTemplate::CuckooSlots)
    }

    /// Bytes of a place.
    pub fn place(self) -> u32 {
        if self.is_bare() { 4 } else { 8 }
    }

    /// The same with hashes in its places.
    pub fn with_hashes(self) -> HashTemplate {
        match self.search() {
            ProbingScheme::Open => HashTemplate::Open,
            ProbingScheme::RobinHood => HashTemplate::RobinHood,
            ProbingScheme::Cuckoo => HashTemplate::Cuckoo,
        }
    }

    /// The same with only slots in its places.
    pub fn with_slots(self) -> HashTemplate {
        match self.search() {
            ProbingScheme::Open => HashTemplate::OpenSlots,
            ProbingScheme::RobinHood => HashTemplate::RobinHoodSlots,
            ProbingScheme::Cuckoo => HashTemplate::CuckooSlots,
        }
    }

    /// The same with keys in its places.
    pub(crate) fn with_keys(self) -> HashTemplate {
        match self.search() {
            ProbingScheme::Open => HashTemplate::OpenKeys,
            ProbingScheme::RobinHood => HashTemplate::RobinHoodKeys,
            ProbingScheme::Cuckoo => HashTemplate::CuckooKeys,
        }
    }
}

/// Number of places for this many entries.
fn size(template: HashTemplate, entries: u32) -> u64 {
    let entries = u64::from(entries);
    match template.search() {
        ProbingScheme::Open => (entries * 2).next_power_of_two().max(16),
        ProbingScheme::RobinHood => (entries + entries.div_ceil(7)).next_power_of_two().max(16),
        ProbingScheme::Cuckoo if entries <= 2 * u64::from(WAYS) => 2 * u64::from(WAYS),
        // Few buckets fill unevenly.
        ProbingScheme::Cuckoo if entries < 1024 => (entries * 2).next_power_of_two(),
        ProbingScheme::Cuckoo => (entries + entries / 4).next_power_of_two(),
    }
}

impl HashTableIndex {
    /// An index for a table of this many entries. `seed` is that of the hash of their keys.
    pub(crate) fn new(
        template: HashTemplate,
        seed: u64,
        entries: u32,
        place: &mut AddressAllocator,
    ) -> io::Result<HashTableIndex> {
        let words = size(template, entries);
        let places = u32::try_from(words).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let mask = if template.search() == ProbingScheme::Cuckoo { places / WAYS } else { places } - 1;
        let bytes = template.place() as usize * words as usize;
        Ok(HashTableIndex { words: MemoryRegion::new(bytes, place)?, template, seed, mask })
    }

    /// Asks for large pages, if it is at least as large as one.
    pub(crate) fn prefer_large_pages(&self) {
        if self.bytes() >= 8 * LARGE {
            self.words.prefer_large_pages(self.bytes() as usize);
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.template.place()) * u64::from(self.places())
    }

    pub(crate) fn address(&self) -> u64 {
        self.words.address()
    }

    pub(crate) fn template(&self) -> HashTemplate {
        self.template
    }

    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    /// Seed of the hash of keys.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    fn places(&self) -> u32 {
        match self.template.search() {
            ProbingScheme::Open | ProbingScheme::RobinHood => self.mask + 1,
            ProbingScheme::Cuckoo => (self.mask + 1) * WAYS,
        }
    }

    /// The word in a place; that of a bare index lacks the high half.
    fn word(&self, place: u32) -> u64 {
        match self.template.is_bare() {
            true => u64::from(self.words.half(place as usize)),
            false => self.words.word(place as usize),
        }
    }

    fn set_word(&mut self, place: u32, word: u64) {
        match self.template.is_bare() {
            true => self.words.set_half(place as usize, word as u32),
            false => self.words.set_word(place as usize, word),
        }
    }

    /// Tags and slots of all entries.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let words = (0..self.places()).map(|place| self.word(place));
        words.filter(|word| *word != 0).map(|word| (tag_of(word), slot_of(word)))
    }

    /// Prepares a key, which has as many bytes as all others, for a search.
    pub(crate) fn sought<'k>(&self, key: &'k [u8]) -> HashedKey<'k> {
        let hash = hash_function::hash(self.seed, key);
        let word = || hash_function::words(key).next().unwrap_or_default() as u32;
        let tag = match (self.template.has_keys(), self.template.is_bare()) {
            (true, _) => word(),
            (false, true) => 0,
            (false, false) => hash,
        };
        HashedKey { key, hash, tag }
    }

    /// The hash of the key in a place that is not empty.
    fn hash_of(&self, word: u64, keys: &impl SlotKeys) -> u32 {
        match (self.template.has_keys(), self.template.is_bare()) {
            (true, _) => hash_function::hash(self.seed, &tag_of(word).to_le_bytes()),
            (false, true) => hash_function::hash(self.seed, keys.of(slot_of(word))),
            (false, false) => tag_of(word),
        }
    }

    /// Place and slot of a key's entry. Elements are asked for their keys if the tag is equal but is not the
    /// key.
    pub(crate) fn find(&self, sought: HashedKey<'_>, keys: &impl SlotKeys) -> Option<(u32, u32)> {
        let HashedKey { key, hash, tag } = sought;
        let fits = |place: u32| {
            let word = self.word(place);
            let is_it = word != 0 && tag_of(word) == tag;
            let same = || self.template.has_keys() || keys.of(slot_of(word)) == key;
            (is_it && same()).then(|| (place, slot_of(word)))
        };
        match self.template.search() {
            ProbingScheme::Open => {
                let probes = (0..).map(|n| hash.wrapping_add(n) & self.mask);
                probes.take_while(|&place| self.word(place) != 0).find_map(fits)
            }
            ProbingScheme::RobinHood => self.poorer(hash, keys).find_map(fits),
            ProbingScheme::Cuckoo => self.buckets(hash).into_iter().flat_map(ways).find_map(fits),
        }
    }

    /// Distance of an entry with this hash in this place from the beginning of its search.
    fn distance(&self, hash: u32, place: u32) -> u32 {
        place.wrapping_sub(hash) & self.mask
    }

    /// Places, from the hash's own on, whose entries are at least as far from their own.
    fn poorer<'i>(&'i self, hash: u32, keys: &'i impl SlotKeys) -> impl Iterator<Item = u32> + 'i {
        (0..).map(move |n| (n, hash.wrapping_add(n) & self.mask)).map_while(move |(n, place)| {
            let word = self.word(place);
            (word != 0 && self.distance(self.hash_of(word, keys), place) >= n).then_some(place)
        })
    }

    /// Moves entries that are nearer to their own place than an entry with this hash would be, up to the next
    /// empty place; returns the place that is empty then. Every entry is in some place at every moment.
    fn step_aside(&mut self, hash: u32, keys: &impl SlotKeys) -> u32 {
        let first = hash.wrapping_add(self.poorer(hash, keys).count() as u32) & self.mask;
        let mut hole = first;
        while self.word(hole) != 0 {
            hole = (hole + 1) & self.mask;
        }
        while hole != first {
            let before = hole.wrapping_sub(1) & self.mask;
            self.set_word(hole, self.word(before));
            hole = before;
        }
        first
    }

    /// The two buckets of a hash.
    fn buckets(&self, hash: u32) -> [u32; 2] {
        let first = hash & self.mask;
        [first, self.other(hash, first)]
    }

    /// The other of a hash's two buckets.
    fn other(&self, hash: u32, bucket: u32) -> u32 {
        bucket ^ (hash.wrapping_mul(OTHER) >> self.mask.leading_zeros() | 1)
    }

    /// Inserts a missing entry; `false` if there is no room.
    pub(crate) fn insert(&mut self, sought: HashedKey<'_>, slot: u32, keys: &impl SlotKeys) -> bool {
        let HashedKey { hash, tag, .. } = sought;
        let place = match self.template.search() {
            ProbingScheme::Open => {
                let mut place = hash & self.mask;
                while self.word(place) != 0 {
                    place = (place + 1) & self.mask;
                }
                Some(place)
            }
            ProbingScheme::RobinHood => Some(self.step_aside(hash, keys)),
            ProbingScheme::Cuckoo => self.make_room(hash, keys),
        };
        if let Some(place) = place {
            self.set_word(place, u64::from(tag) << 32 | u64::from(slot + 1));
        }
        place.is_some()
    }

    /// Sets the slot of an entry.
    pub(crate) fn set_slot(&mut self, place: u32, slot: u32) {
        let word = self.word(place);
        self.set_word(place, word & !0xffff_ffff | u64::from(slot + 1));
    }

    /// An empty place in one of a hash's buckets, in the first one if it has any, so that few searches read
    /// two; or one that is freed by moving entries, found breadth first.
    fn make_room(&mut self, hash: u32, keys: &impl SlotKeys) -> Option<u32> {
        let empty = |bucket: u32| ways(bucket).filter(|&place| self.word(place) == 0);
        let [a, b] = self.buckets(hash);
        if let Some(place) = empty(a).chain(empty(b)).next() {
            return Some(place);
        }
        // Visited buckets, each with the place whose entry would move there, and the index of the bucket of
        // that place.
        let mut reached: Vec<(u32, Option<(u32, usize)>)> = vec![(a, None), (b, None)];
        let mut known: FxHashSet<u32> = [a, b].into_iter().collect();
        let mut at = 0;
        while at < reached.len() && reached.len() < MOST_LOOKED_AT {
            for place in ways(reached[at].0) {
                let to = self.other(self.hash_of(self.word(place), keys), place / WAYS);
                // A path that visits a bucket twice would move one entry twice.
                if !known.insert(to) {
                    continue;
                }
                reached.push((to, Some((place, at))));
                if let Some(hole) = empty(to).next() {
                    return Some(self.shift(hole, &reached));
                }
            }
            at += 1;
        }
        None
    }

    /// Moves entries along the path that ends with the last visited bucket, whose empty place is `hole`;
    /// returns the place that is empty then.
    fn shift(&mut self, mut hole: u32, reached: &[(u32, Option<(u32, usize)>)]) -> u32 {
        let mut at = reached.len() - 1;
        while let Some((from, before)) = reached[at].1 {
            let word = self.word(from);
            self.set_word(hole, word);
            self.set_word(from, 0);
            (hole, at) = (from, before);
        }
        hole
    }

    /// Clears a place; without buckets, entries that were pushed beyond it move back.
    pub(crate) fn remove(&mut self, place: u32, keys: &impl SlotKeys) {
        let (mut hole, mut next) = (place, place);
        while self.template.search() != ProbingScheme::Cuckoo {
            next = (next + 1) & self.mask;
            let word = self.word(next);
            if word == 0 {
                break;
            }
            let home = self.hash_of(word, keys) & self.mask;
            // It may move back unless its search begins behind the hole.
            if next.wrapping_sub(home) & self.mask >= next.wrapping_sub(hole) & self.mask {
                self.set_word(hole, word);
                hole = next;
            }
        }
        self.set_word(hole, 0);
    }
}

/// The places of a bucket.
fn ways(bucket: u32) -> std::ops::Range<u32> {
    bucket * WAYS..(bucket + 1) * WAYS
}

fn tag_of(word: u64) -> u32 {
    (word >> 32) as u32
}

fn slot_of(word: u64) -> u32 {
    (word as u32).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An index, and the keys of its elements.
    struct Table {
        index: HashTableIndex,
        keys: Vec<[u8; 4]>,
    }

    impl SlotKeys for Vec<[u8; 4]> {
        fn of(&self, slot: u32) -> &[u8] {
            &self[slot as usize]
        }
    }

    impl Table {
        fn new(template: HashTemplate, entries: u32) -> Table {
            let index = HashTableIndex::new(template, 7, entries, &mut AddressAllocator::Anywhere).unwrap();
            Table { index, keys: vec![[0; 4]; entries as usize] }
        }

        /// Adds a key.
        fn insert(&mut self, key: u32, slot: u32) -> bool {
            self.keys[slot as usize] = key.to_le_bytes();
            self.index.insert(self.index.sought(&key.to_le_bytes()), slot, &self.keys)
        }

        fn find(&self, key: u32) -> Option<(u32, u32)> {
            self.index.find(self.index.sought(&key.to_le_bytes()), &self.keys)
        }

        /// Removes a key that is there.
        fn remove(&mut self, key: u32) {
            let (place, _) = self.find(key).expect("it is there");
            self.index.remove(place, &self.keys);
        }

        fn slots(&self) -> Vec<u32> {
            let mut slots: Vec<u32> = self.index.entries().map(|(_, slot)| slot).collect();
            slots.sort_unstable();
            slots
        }
    }

    #[test]
    fn as_many_entries_as_declared_find_room_and_are_found() {
        for template in HashTemplate::ALL {
            for entries in [1, 16, 17, 100, 1000, 1024, 6553, 100_000] {
                let mut table = Table::new(template, entries);
                for slot in 0..entries {
                    assert!(table.insert(slot + 1, slot), "{template:?}: {slot} of {entries}");
                }
                for slot in 0..entries {
                    assert_eq!(table.find(slot + 1).map(|(_, slot)| slot), Some(slot));
                    assert_eq!(table.find(entries + slot + 1), None);
                }
                assert_eq!(table.slots(), (0..entries).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn buckets_are_for_tables_that_they_are_half_full_of_and_for_large_ones() {
        for (entries, expected) in [
            (1_000, HashTemplate::Cuckoo),
            (65_536, HashTemplate::Cuckoo),
            (7_000, HashTemplate::Cuckoo),
            (10_000, HashTemplate::Open),
            (200_000, HashTemplate::Open),
            (3_200_000, HashTemplate::Cuckoo),
            (12_000_000, HashTemplate::Cuckoo),
        ] {
            let (template, why) = HashTemplate::fitting(entries, 16);
            assert_eq!(template, expected, "{why}");
            assert_eq!(HashTemplate::fitting(entries, 4).0, expected.with_keys());
        }
        assert_eq!(HashTemplate::fitting(10_000, 16).1, "10000 entries, at most 30% of the places");
        assert_eq!(
            HashTemplate::fitting(10_000, 5).0,
            HashTemplate::Open,
            "a place has no room for such keys"
        );
        let why = "10000 entries, at most 30% of the places; of 2 bytes a key is in its place";
        assert_eq!(HashTemplate::fitting(10_000, 2).1, why);
    }

    #[test]
    fn an_index_of_more_places_than_it_can_number_is_refused() {
        for (template, most) in [
            (HashTemplate::Open, 1 << 30),
            (HashTemplate::RobinHood, 1 << 31),
            (HashTemplate::Cuckoo, 1 << 31),
        ] {
            assert!(
                HashTableIndex::new(template, 7, most + 1, &mut AddressAllocator::Anywhere).is_err(),
                "{template:?}"
            );
        }
        assert!(
            HashTableIndex::new(HashTemplate::Open, 7, u32::MAX, &mut AddressAllocator::Anywhere).is_err()
        );
    }

    #[test]
    fn entries_of_one_hash_fill_two_buckets_and_no_more() {
        let keys: Vec<[u8; 4]> = (0..100u32).map(u32::to_le_bytes).collect();
        let of = |slot: u32| HashedKey { key: &keys[slot as usize], hash: 77, tag: 77 };
        let mut index = Table::new(HashTemplate::Cuckoo, 1 << 12).index;
        assert!((0..2 * WAYS).all(|slot| index.insert(of(slot), slot, &keys)));
        assert!(!index.insert(of(99), 99, &keys), "nobody can move");
        let (place, _) = index.find(of(5), &keys).expect("it is there");
        index.remove(place, &keys);
        assert!(index.insert(of(99), 99, &keys) && index.find(of(5), &keys).is_none());
    }

    #[test]
    fn entries_stay_in_the_order_of_their_own_places_and_searches_end_early() {
        for template in [HashTemplate::RobinHood, HashTemplate::RobinHoodKeys, HashTemplate::RobinHoodSlots] {
            in_order(template);
        }
    }

    fn in_order(template: HashTemplate) {
        let entries = 14 << 10;
        let mut table = Table::new(template, entries);
        (0..entries).for_each(|slot| assert!(table.insert(slot + 1, slot)));
        for slot in 0..entries / 2 {
            table.remove(slot + 1);
            assert!(table.insert(entries + slot + 1, slot));
        }
        let Table { index, keys } = &table;
        assert_eq!(index.places(), 16 << 10, "seven eighths of the places are used");
        for place in 0..index.places() {
            let (here, next) = (index.word(place), index.word((place + 1) & index.mask));
            if next == 0 {
                continue;
            }
            let far = index.distance(index.hash_of(next, keys), place + 1);
            match here {
                0 => assert_eq!(far, 0, "nobody is pushed beyond an empty place"),
                _ => assert!(far <= index.distance(index.hash_of(here, keys), place) + 1),
            }
        }
        let others =
            || (100_001..101_001u32).map(|key| hash_function::hash(index.seed(), &key.to_le_bytes()));
        let looked_at: usize = others().map(|hash| index.poorer(hash, keys).count()).sum();
        let until_empty =
            |hash: u32| (0..).take_while(|n| index.word(hash.wrapping_add(*n) & index.mask) != 0).count();
        let without: usize = others().map(until_empty).sum();
        assert!(3 * looked_at < without, "{looked_at} places, {without} without an end before");
    }

    #[test]
    fn what_is_removed_and_added_again_is_what_there_is() {
        for template in HashTemplate::ALL {
            let mut table = Table::new(template, 4000);
            (0..4000).for_each(|slot| assert!(table.insert(slot + 1, slot)));
            for slot in 0..4000 {
                table.remove(slot + 1);
                assert!(table.insert(slot + 4001, slot));
            }
            assert_eq!(table.slots(), (0..4000).collect::<Vec<_>>());
        }
    }
}
