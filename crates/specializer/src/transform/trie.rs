//! A twin of a longest-prefix map of 4-byte keys: a multibit trie of 16, 8 and 8 bits in one array.
//!
//! It holds 16-bit cells: 65,536 by the first two bytes of the key, then groups of 256 by the third or fourth
//! byte. A cell is a value, says that there is none, or names a group. A lookup is one to three loads,
//! whatever the number of prefixes (compare Gupta, Lin and McKeown, "Routing Lookups in Hardware at Memory
//! Access Speeds", INFOCOM 1998). Values of other than 4 bytes lie in front of the cells, each as often as it
//! differs in what programs read ([`ValuePool`]), and cells hold their numbers.
//!
//! The prefixes are kept beside the cells, so that adding or removing one costs work for what lies below one
//! cell of the first level, or below as many as the prefix covers. Groups that no cell names any more are
//! used again.

use std::collections::BTreeSet;

use millstream_ir::usage::AccessRange;
use rustc_hash::FxHashMap;

use super::value_pool::{SMALL, ValuePool, stride, values_bytes};

/// Cells of the first level, indexed by the first two bytes as a little-endian number.
const FIRST: usize = 1 << 16;
/// Bytes of the first level.
pub(super) const FIRST_BYTES: u32 = 2 * FIRST as u32;
/// Cells of a group.
const GROUP: usize = 256;
/// Bytes of a group.
pub(super) const GROUP_BYTES: u32 = 2 * GROUP as u32;
/// Marks a cell that names a group.
pub(super) const IS_GROUP: u16 = 0x8000;
/// Marks the number of a chunk that is a value.
const IS_VALUE: u32 = 1 << 31;
/// The cell of keys without a prefix.
pub(super) const ABSENT: u16 = 0x7fff;

/// A twin of a longest-prefix map.
#[derive(Clone, Debug)]
pub struct MultibitTrie {
    /// `None` if the cells are the values themselves.
    values: Option<ValuePool>,
    cells: Vec<u16>,
    /// Values of prefixes of at most 16 bits, by length and bits.
    short: FxHashMap<(u8, u16), u16>,
    /// Value by first 16 bits that results from the short prefixes, in the order of addresses.
    base: Vec<u16>,
    /// Longer prefixes by their first 16 bits, the shorter ones first.
    long: Vec<Vec<LongPrefix>>,
    /// Groups that no cell names.
    free: Vec<u16>,
    /// Chunks of 256 cells that were written since the last call of [`MultibitTrie::take_changed`].
    changed: BTreeSet<u32>,
}

/// A prefix of more than 16 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct LongPrefix {
    length: u8,
    /// The bits behind the first 16.
    rest: u16,
    value: u16,
}

impl LongPrefix {
    fn order(&self) -> (u8, u16) {
        (self.length, self.rest)
    }
}

/// A prefix as maps have it: a length and four bytes, of which bits beyond the length mean nothing.
fn prefix(key: &[u8]) -> Option<(u8, u32)> {
    let (length, address) = key.split_at_checked(4)?;
    let length = u32::from_ne_bytes(length.try_into().ok()?);
    let address = u32::from_be_bytes(address.try_into().ok()?);
    let mask = u32::MAX.checked_shl(32u32.checked_sub(length)?).unwrap_or(0);
    Some((length as u8, address & mask))
}

fn small(value: &[u8]) -> Option<u16> {
    let value = u32::from_ne_bytes(value.try_into().ok()?);
    (value < u32::from(ABSENT)).then_some(value as u16)
}

/// The cell for a value; `None` if there is no such twin.
fn cell(values: &mut Option<ValuePool>, value: &[u8]) -> Option<u16> {
    match values {
        Some(values) => values.number(value),
        None => small(value),
    }
}

/// Writes all cells below a byte's first `length` bits.
fn fill(cells: &mut [u16; GROUP], at: usize, length: u32, value: u16) {
    let count = 1usize << (8 - length);
    let at = at & !(count - 1);
    cells[at..at + count].fill(value);
}

impl MultibitTrie {
    /// Bytes of the keys of maps that can have one: a length and an address.
    pub const KEY: u32 = 8;

    /// Loads that find out about an address where prefixes have this length, that of its value among them.
    pub fn levels(&self, length: u32) -> u32 {
        length.div_ceil(8).clamp(2, 4) - 1 + u32::from(self.values.is_some())
    }

    /// Bytes that hold something.
    pub fn held_bytes(&self) -> u64 {
        let values = self.values.as_ref().map_or(0, |v| v.held.len() * stride(v.size as u32) as usize);
        u64::from(FIRST_BYTES + self.groups() * GROUP_BYTES) + values as u64
    }

    /// More groups no twin has.
    pub const MOST_GROUPS: u32 = IS_GROUP as u32;

    /// The twin of these prefixes, given as keys and values of their map; `read` are the bytes of values that
    /// programs read. `None` if keys are not of 4 bytes, values of 4 bytes not small, other values too many,
    /// or the groups too many.
    pub fn of<'e>(
        entries: impl IntoIterator<Item = (&'e [u8], &'e [u8])>,
        value_size: u32,
        read: &[AccessRange],
    ) -> Option<MultibitTrie> {
        let mut twin = MultibitTrie {
            values: ValuePool::of(value_size, read),
            cells: vec![ABSENT; FIRST],
            short: FxHashMap::default(),
            base: vec![ABSENT; FIRST],
            long: vec![Vec::new(); FIRST],
            free: Vec::new(),
            changed: BTreeSet::new(),
        };
        for (key, value) in entries {
            let ((length, address), value) = (prefix(key)?, cell(&mut twin.values, value)?);
            let first = (address >> 16) as u16;
            if length <= 16 {
                twin.short.insert((length, first), value);
            } else {
                twin.long[usize::from(first)].push(LongPrefix { length, rest: address as u16, value });
            }
        }
        let mut short: Vec<_> =
            twin.short.iter().map(|(&(length, first), &value)| (length, first, value)).collect();
        short.sort_unstable();
        for (length, first, value) in short {
            let start = usize::from(first);
            twin.base[start..start + (1 << (16 - length))].fill(value);
        }
        for first in 0..=u16::MAX {
            let long = &mut twin.long[usize::from(first)];
            // Of a map that was changed while it was read, a prefix may come twice: the later counts.
            long.reverse();
            long.sort_by_key(LongPrefix::order);
            long.dedup_by_key(|l| l.order());
            twin.build(first)?;
        }
        twin.take_changed();
        Some(twin)
    }

    /// Sets the value of a prefix, or removes the prefix. `None` if no twin can represent the map then: this
    /// one is useless from then on.
    pub fn set(&mut self, key: &[u8], value: Option<&[u8]>) -> Option<()> {
        let Some((length, address)) = prefix(key) else { return value.is_none().then_some(()) };
        let value = value.map(|v| cell(&mut self.values, v));
        let first = (address >> 16) as u16;
        if length <= 16 {
            match value {
                Some(value) => drop(self.short.insert((length, first), value?)),
                None => drop(self.short.remove(&(length, first))),
            }
            return self.cover(first..=first | (u32::from(u16::MAX) >> length) as u16);
        }
        let long = &mut self.long[usize::from(first)];
        let rest = address as u16;
        match (long.binary_search_by_key(&(length, rest), LongPrefix::order), value) {
            (Ok(at), Some(value)) => long[at].value = value?,
            (Ok(at), None) => drop(long.remove(at)),
            (Err(at), Some(value)) => long.insert(at, LongPrefix { length, rest, value: value? }),
            (Err(_), None) => return Some(()),
        }
        self.build(first)
    }

    /// Recomputes the result of the short prefixes for these first 16 bits.
    fn cover(&mut self, firsts: std::ops::RangeInclusive<u16>) -> Option<()> {
        let mask = |length: u8| (u32::from(u16::MAX) << (16 - length)) as u16;
        for first in firsts {
            let longest = (0..=16).rev().find_map(|l| self.short.get(&(l, first & mask(l))).copied());
            let base = longest.unwrap_or(ABSENT);
            if std::mem::replace(&mut self.base[usize::from(first)], base) != base {
                self.build(first)?;
            }
        }
        Some(())
    }

    /// Writes a cell of the first level, and the groups below it.
    fn build(&mut self, first: u16) -> Option<()> {
        let cell = usize::from(first.swap_bytes());
        let base = self.base[usize::from(first)];
        let held = self.held(cell);
        if self.long[usize::from(first)].is_empty() {
            self.free.extend(held.iter().map(|(_, group)| group));
            self.put(cell, base);
            return Some(());
        }
        let (mut second, thirds) = below(base, &self.long[usize::from(first)]);
        let find = |at: Option<u8>| held.iter().find(|(c, _)| *c == at).map(|(_, group)| *group);
        let mut used = BTreeSet::new();
        for (byte, third) in thirds {
            let group = find(Some(byte)).or_else(|| self.group())?;
            used.insert(group);
            self.write(group, &third);
            second[usize::from(byte)] = IS_GROUP | group;
        }
        let group = find(None).or_else(|| self.group())?;
        used.insert(group);
        self.free.extend(held.iter().map(|(_, group)| group).filter(|group| !used.contains(group)));
        self.write(group, &second);
        self.put(cell, IS_GROUP | group);
        Some(())
    }

    /// The groups below a cell of the first level: its own, and those by third bytes.
    fn held(&self, cell: usize) -> Vec<(Option<u8>, u16)> {
        let group = |cell: u16| (cell & IS_GROUP != 0).then_some(cell & !IS_GROUP);
        let Some(own) = group(self.cells[cell]) else { return Vec::new() };
        let cells = &self.cells[start(own)..start(own) + GROUP];
        let below = (0..=u8::MAX).zip(cells).filter_map(|(byte, cell)| Some((Some(byte), group(*cell)?)));
        std::iter::once((None, own)).chain(below).collect()
    }

    /// A group that no cell names.
    fn group(&mut self) -> Option<u16> {
        if let Some(group) = self.free.pop() {
            return Some(group);
        }
        let group = self.groups();
        self.cells.resize(self.cells.len() + GROUP, ABSENT);
        (group < MultibitTrie::MOST_GROUPS).then_some(group as u16)
    }

    fn write(&mut self, group: u16, new: &[u16; GROUP]) {
        let at = start(group);
        if self.cells[at..at + GROUP] != new[..] {
            self.cells[at..at + GROUP].copy_from_slice(new);
            self.changed.insert((at / GROUP) as u32);
        }
    }

    fn put(&mut self, cell: usize, new: u16) {
        if std::mem::replace(&mut self.cells[cell], new) != new {
            self.changed.insert((cell / GROUP) as u32);
        }
    }

    /// Groups for which it needs room.
    pub fn groups(&self) -> u32 {
        ((self.cells.len() - FIRST) / GROUP) as u32
    }

    /// Bytes of a twin of a map with values of this size that has room for so many groups, a power of two.
    pub fn size(groups: u32, value_size: u32) -> u32 {
        values_bytes(value_size) + FIRST_BYTES + groups * GROUP_BYTES
    }

    /// The size of the values of the map that it is a twin of.
    pub fn value_size(&self) -> u32 {
        self.values.as_ref().map_or(SMALL, |v| v.size as u32)
    }

    /// All chunks.
    pub fn chunks(&self) -> BTreeSet<u32> {
        let values = self.values.iter().flat_map(|v| (0..v.held.len() as u32).map(|n| n | IS_VALUE));
        (0..(self.cells.len() / GROUP) as u32).chain(values).collect()
    }

    /// Offset of a chunk in memory, and its bytes.
    pub fn chunk(&self, number: u32) -> (usize, Vec<u8>) {
        if let (Some(values), true) = (&self.values, number & IS_VALUE != 0) {
            let number = (number & !IS_VALUE) as usize;
            return (number * stride(values.size as u32) as usize, values.held[number].clone());
        }
        let at = number as usize * GROUP;
        let cells = self.cells.get(at..at + GROUP).unwrap_or_default();
        let start = values_bytes(self.value_size()) as usize;
        (start + 2 * at, cells.iter().flat_map(|c| c.to_ne_bytes()).collect())
    }

    /// The chunks that have changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<u32> {
        let values = self.values.as_mut().map(|v| std::mem::replace(&mut v.told, v.held.len())..v.held.len());
        let mut changed = std::mem::take(&mut self.changed);
        changed.extend(values.into_iter().flatten().map(|n| n as u32 | IS_VALUE));
        changed
    }
}

/// Index of a group's first cell.
fn start(group: u16) -> usize {
    FIRST + usize::from(group) * GROUP
}

/// The cells of a second level, without the names of groups, and those of the third level by the byte that
/// leads there.
fn below(base: u16, long: &[LongPrefix]) -> ([u16; GROUP], Vec<(u8, [u16; GROUP])>) {
    let mut second = [base; GROUP];
    let mut thirds: Vec<(u8, [u16; GROUP])> = Vec::new();
    for &LongPrefix { length, rest, value } in long {
        let [byte, last] = rest.to_be_bytes();
        if length <= 24 {
            fill(&mut second, byte.into(), u32::from(length) - 16, value);
            continue;
        }
        let at = thirds.iter().position(|(b, _)| *b == byte).unwrap_or_else(|| {
            thirds.push((byte, [second[usize::from(byte)]; GROUP]));
            thirds.len() - 1
        });
        fill(&mut thirds[at].1, last.into(), u32::from(length) - 24, value);
    }
    (second, thirds)
}

/// The cell that a twin gives for an address: for tests, the lookup that variants do in code.
#[cfg(test)]
fn lookup(twin: &MultibitTrie, address: u32) -> Option<u16> {
    let [a, b, c, d] = address.to_be_bytes().map(usize::from);
    let mut value = twin.cells[a | b << 8];
    for byte in [c, d] {
        if value & IS_GROUP != 0 {
            value = twin.cells[start(value & !IS_GROUP) + byte];
        }
    }
    (value != ABSENT).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::super::value_pool::places;
    use super::*;

    type Entry = (Vec<u8>, Vec<u8>);

    fn key(length: u32, address: [u8; 4]) -> Vec<u8> {
        [&length.to_ne_bytes()[..], &address].concat()
    }

    fn entry(length: u32, address: [u8; 4], value: u32) -> Entry {
        (key(length, address), value.to_ne_bytes().to_vec())
    }

    fn twin_of(table: &[Entry]) -> Option<MultibitTrie> {
        MultibitTrie::of(table.iter().map(|(k, v)| (k.as_slice(), v.as_slice())), SMALL, &[])
    }

    /// Numbers that look random.
    fn numbers() -> impl FnMut() -> u32 {
        let mut state = 1u64;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        }
    }

    #[test]
    fn lookups_find_the_longest_prefix() {
        let table = [
            entry(8, [10, 0, 0, 0], 1),
            entry(32, [10, 1, 2, 3], 2),
            entry(24, [10, 1, 2, 0], 3),
            entry(16, [10, 1, 0, 0], 4),
            entry(28, [10, 1, 2, 16], 5),
            entry(20, [10, 1, 16, 0], 6),
            entry(1, [128, 0, 0, 0], 7),
        ];
        let twin = twin_of(&table).unwrap();
        let expect: [([u8; 4], Option<u16>); 10] = [
            ([9, 255, 255, 255], None),
            ([10, 0, 0, 0], Some(1)),
            ([10, 1, 0, 0], Some(4)),
            ([10, 1, 2, 3], Some(2)),
            ([10, 1, 2, 4], Some(3)),
            ([10, 1, 2, 31], Some(5)),
            ([10, 1, 2, 32], Some(3)),
            ([10, 1, 31, 1], Some(6)),
            ([10, 1, 32, 1], Some(4)),
            ([255; 4], Some(7)),
        ];
        for (address, value) in expect {
            assert_eq!(lookup(&twin, u32::from_be_bytes(address)), value, "{address:?}");
        }
    }

    /// Prefixes are added and removed, with bits beyond their length set or not. After each change,
    /// everything agrees with a search for the longest, and the chunks reported as changed cover all changes.
    #[test]
    fn prefixes_come_and_go_one_by_one() {
        let mut random = numbers();
        let mask = |length: u32| u32::MAX.checked_shl(32 - length).unwrap_or(0);
        let mut table: FxHashMap<(u32, u32), u32> = FxHashMap::default();
        let mut twin = twin_of(&[]).unwrap();
        let mut memory: Vec<u8> = twin.chunks().into_iter().flat_map(|n| twin.chunk(n).1).collect();
        for n in 0..2_000 {
            // Short ones change much.
            let length = if random().is_multiple_of(50) { random() % 12 } else { 12 + random() % 21 };
            let address = random() & 0x0303_0303;
            let at = (length, address & mask(length));
            let value = random() % 1000;
            let gone = n > 100 && random().is_multiple_of(2);
            let value = (!gone).then(|| value.to_ne_bytes());
            match value {
                None => drop(table.remove(&at)),
                Some(v) => drop(table.insert(at, u32::from_ne_bytes(v))),
            }
            twin.set(&key(length, address.to_be_bytes()), value.as_ref().map(|v| v.as_slice())).unwrap();
            for chunk in twin.take_changed() {
                let (at, bytes) = twin.chunk(chunk);
                memory.resize(memory.len().max(at + bytes.len()), 0);
                memory[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            for _ in 0..20 {
                let address = random() & 0x0303_0303;
                let longest = (0..=32u32).rev().find_map(|l| table.get(&(l, address & mask(l))));
                assert_eq!(lookup(&twin, address).map(u32::from), longest.copied(), "{address:#x}");
            }
        }
        let whole: Vec<u8> = twin.chunks().into_iter().flat_map(|n| twin.chunk(n).1).collect();
        assert!(memory == whole, "all changes were told");
        let entries: Vec<Entry> = table.iter().map(|((l, a), v)| entry(*l, a.to_be_bytes(), *v)).collect();
        let anew = twin_of(&entries).unwrap();
        assert!(
            twin.groups() >= anew.groups() && twin.groups() < 2 * anew.groups() + 16,
            "groups are used again"
        );
        assert!((0..1 << 16).all(|n: u32| {
            let address = n << 16 | n & 0x0303;
            lookup(&twin, address) == lookup(&anew, address)
        }));
    }

    #[test]
    fn one_prefix_changes_little() {
        let mut twin = twin_of(&[entry(8, [10, 0, 0, 0], 1), entry(25, [10, 1, 2, 0], 4)]).unwrap();
        twin.set(&key(24, [10, 1, 2, 0]), Some(&5u32.to_ne_bytes())).unwrap();
        assert!(twin.take_changed().len() <= 2);
        twin.set(&key(24, [10, 1, 2, 0]), Some(&5u32.to_ne_bytes())).unwrap();
        assert!(twin.take_changed().is_empty(), "nothing is new");
    }

    #[test]
    fn values_that_do_not_fit_a_cell_have_no_twin() {
        assert!(twin_of(&[entry(8, [10, 0, 0, 0], 0x7fff)]).is_none());
        let mut twin = twin_of(&[]).unwrap();
        assert_eq!(twin.set(&key(8, [10, 0, 0, 0]), Some(&0x7fffu32.to_ne_bytes())), None);
        assert_eq!(twin.set(&key(33, [10, 0, 0, 0]), None), Some(()), "it never is there");
    }

    /// Values that differ only in bytes that nobody reads are stored once; the bytes that are read are those
    /// in the memory of a side.
    #[test]
    fn larger_values_lie_in_front_of_the_cells() {
        let value = |hop: u8, metric: u8| [[hop; 8], [metric; 8], [7; 8]].concat();
        let read = [AccessRange { start: 0, end: 8 }, AccessRange { start: 18, end: 20 }];
        let table = [
            (key(8, [10, 0, 0, 0]), value(1, 1)),
            (key(24, [10, 1, 2, 0]), value(2, 1)),
            (key(32, [10, 1, 2, 3]), value(1, 9)),
        ];
        let entries = table.iter().map(|(k, v)| (k.as_slice(), v.as_slice()));
        let mut twin = MultibitTrie::of(entries, 24, &read).unwrap();
        let of = |twin: &MultibitTrie, address: [u8; 4]| {
            let (at, bytes) = twin.chunk(IS_VALUE | u32::from(lookup(twin, u32::from_be_bytes(address))?));
            Some((at, bytes))
        };
        let [first, second] = [1, 2].map(|hop: u8| [&[hop; 8][..], &[0; 10], &[7; 2], &[0; 4]].concat());
        assert_eq!(of(&twin, [10, 9, 9, 9]), Some((0, first.clone())));
        assert_eq!(of(&twin, [10, 1, 2, 3]), Some((0, first)), "the metric is not read");
        assert_eq!(of(&twin, [10, 1, 2, 4]), Some((24, second)));
        assert_eq!(of(&twin, [11, 0, 0, 0]), None);
        twin.set(&key(32, [10, 1, 2, 3]), Some(&value(3, 0))).unwrap();
        let changed = twin.take_changed();
        assert!(changed.contains(&(IS_VALUE | 2)) && changed.len() == 2, "{changed:?}");
        assert_eq!(of(&twin, [10, 1, 2, 3]).unwrap().0, 48);
        let cells: usize = twin.chunk(0).0;
        assert_eq!(cells as u32, values_bytes(24), "cells lie behind the room for values");
    }

    #[test]
    fn there_is_room_for_so_many_values_and_no_more() {
        for (size, most) in [(8, 1 << 14), (32, 1 << 14), (1280, 1024), (2048, 1024)] {
            assert_eq!(places(size), most);
            let mut twin = MultibitTrie::of([], size, &[AccessRange { start: 0, end: 4 }]).unwrap();
            let value = |n: u32| [&n.to_ne_bytes()[..], &vec![0; size as usize - 4]].concat();
            let mut set = |n: u32| twin.set(&key(24, [10, 0, n as u8, 0]), Some(&value(n)));
            assert!((0..most).all(|n| set(n).is_some()));
            assert_eq!(set(most), None);
        }
    }
}
