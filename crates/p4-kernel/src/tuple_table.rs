//! The control plane's side of tuple-space search: from entries with masks, ranges and priorities to the maps
//! of a table.

use std::collections::BTreeMap;

use millstream_interp::maps::{ByteRange, PriorityEntry};
use millstream_ir::Map;
use millstream_kernel::{KernelMap, UpdateMode};
use millstream_p4_lower::TableSpec;
use millstream_p4_switch::ExecutorError;
use rustc_hash::FxHashMap;

use crate::error::ENOENT;
use crate::tuple_search::{ENTRY_PREFIX, MASK_BYTES, MOST_MASKS, TupleMaps};

const ENOSPC: i32 = 28;
const EINVAL: i32 = 22;

/// Value and mask of a part of an entry.
type MaskedKey = (Vec<u8>, Vec<u8>);

/// An entry as the control plane sees it.
struct TableEntry {
    value: Vec<u8>,
    /// Priority, and behind it the age: the greatest wins.
    rank: u64,
    parts: Vec<MaskedKey>,
}

/// Entries of a table, and what the kernel's maps hold of them.
pub(crate) struct TupleTable {
    maps: TupleMaps,
    key_size: usize,
    entries: BTreeMap<Vec<u8>, TableEntry>,
    /// Masks by number; `None` is free.
    numbers: Vec<Option<Vec<u8>>>,
    /// Keys and values in the kernel's hash map.
    written: BTreeMap<Vec<u8>, (u64, Vec<u8>)>,
    made: u32,
}

impl TupleTable {
    pub(crate) fn new(maps: TupleMaps, table: Option<&TableSpec>) -> TupleTable {
        let key_size = table.map_or(1, |table| table.key_size as usize);
        TupleTable {
            maps,
            key_size,
            entries: BTreeMap::new(),
            numbers: vec![None; MOST_MASKS as usize],
            written: BTreeMap::new(),
            made: 0,
        }
    }

    pub(crate) fn maps(&self) -> TupleMaps {
        self.maps
    }

    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        self.entries.keys().cloned().collect()
    }

    /// Key in the hash map of the first part of an entry.
    pub(crate) fn kernel_key(&self, name: &[u8]) -> Option<Vec<u8>> {
        let (value, mask) = self.entries.get(name)?.parts.first()?;
        let number = self.numbers.iter().position(|known| known.as_ref() == Some(mask))?;
        Some(self.hash_key(number, value))
    }

    fn hash_key(&self, number: usize, value: &[u8]) -> Vec<u8> {
        let mut key = (number as u64).to_le_bytes().to_vec();
        key.extend_from_slice(value);
        key.resize(ENTRY_PREFIX as usize + self.key_size.next_multiple_of(8), 0);
        key
    }

    /// Inserts or replaces an entry.
    pub(crate) fn set(
        &mut self,
        maps: &FxHashMap<Map, KernelMap>,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), ExecutorError> {
        let entry = PriorityEntry::decode(name, self.key_size);
        let entry = entry.ok_or(ExecutorError::Map(-i64::from(EINVAL)))?;
        let rank = match self.entries.get(name) {
            Some(old) => old.rank,
            None => {
                self.made += 1;
                u64::from(entry.priority) << 32 | u64::from(u32::MAX - self.made)
            }
        };
        let parts = parts_of(&entry);
        let new = TableEntry { value: value.to_vec(), rank, parts };
        let old = self.entries.insert(name.to_vec(), new);
        let result = self.write(maps);
        if result.is_err() {
            match old {
                Some(old) => self.entries.insert(name.to_vec(), old),
                None => self.entries.remove(name),
            };
        }
        result
    }

    /// Removes an entry.
    pub(crate) fn delete(
        &mut self,
        maps: &FxHashMap<Map, KernelMap>,
        name: &[u8],
    ) -> Result<(), ExecutorError> {
        match self.entries.remove(name) {
            Some(_) => self.write(maps),
            None => Err(ExecutorError::Map(-i64::from(ENOENT))),
        }
    }

    /// Gives each mask in use a number, and each the greatest rank of its entries.
    fn number_masks(&mut self) -> Result<BTreeMap<Vec<u8>, (usize, u64)>, ExecutorError> {
        let mut ranks: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for entry in self.entries.values() {
            for (_, mask) in &entry.parts {
                let rank = ranks.entry(mask.clone()).or_default();
                *rank = (*rank).max(entry.rank);
            }
        }
        for slot in &mut self.numbers {
            if slot.as_ref().is_some_and(|mask| !ranks.contains_key(mask)) {
                *slot = None;
            }
        }
        let mut masks = BTreeMap::new();
        for (mask, rank) in ranks {
            let known = self.numbers.iter().position(|slot| slot.as_ref() == Some(&mask));
            let number = known.or_else(|| self.numbers.iter().position(Option::is_none));
            let number = number.ok_or(ExecutorError::Map(-i64::from(ENOSPC)))?;
            self.numbers[number] = Some(mask.clone());
            masks.insert(mask, (number, rank));
        }
        Ok(masks)
    }

    /// Brings the kernel's maps up to date: new entries, then masks, then entries that go.
    fn write(&mut self, maps: &FxHashMap<Map, KernelMap>) -> Result<(), ExecutorError> {
        let find = |map: Map| maps.get(&map).ok_or(ExecutorError::NoMap(map));
        let (hash, array) = (find(self.maps.entries)?, find(self.maps.masks)?);
        let masks = self.number_masks()?;
        let mut wanted: BTreeMap<Vec<u8>, (u64, Vec<u8>)> = BTreeMap::new();
        for entry in self.entries.values() {
            for (value, mask) in &entry.parts {
                let Some((number, _)) = masks.get(mask) else { continue };
                let found = wanted.entry(self.hash_key(*number, value)).or_default();
                if entry.rank > found.0 {
                    *found = (entry.rank, entry.value.clone());
                }
            }
        }
        let failed = |error: millstream_kernel::KernelError| match error.errno() {
            Some(number) => ExecutorError::Map(-i64::from(number)),
            None => ExecutorError::Fault(error.to_string()),
        };
        for (key, (rank, value)) in &wanted {
            if self.written.get(key) != Some(&(*rank, value.clone())) {
                let bytes = [value.as_slice(), &rank.to_le_bytes()].concat();
                hash.update(key, &bytes, UpdateMode::Any).map_err(failed)?;
            }
        }
        for (index, bytes) in self.mask_elements(&masks).into_iter().enumerate() {
            array.update(&(index as u32).to_le_bytes(), &bytes, UpdateMode::Any).map_err(failed)?;
        }
        for key in self.written.keys().filter(|key| !wanted.contains_key(*key)) {
            hash.delete(key).map_err(failed)?;
        }
        self.written = wanted;
        Ok(())
    }

    /// Elements of the array of masks, the greatest rank first; zeros behind the last one.
    fn mask_elements(&self, masks: &BTreeMap<Vec<u8>, (usize, u64)>) -> Vec<Vec<u8>> {
        let size = MASK_BYTES as usize + self.key_size.next_multiple_of(8);
        let mut list: Vec<(&Vec<u8>, &(usize, u64))> = masks.iter().collect();
        list.sort_by_key(|(_, (_, rank))| std::cmp::Reverse(*rank));
        let mut elements: Vec<Vec<u8>> = list
            .into_iter()
            .map(|(mask, (number, rank))| {
                let mut bytes = rank.to_le_bytes().to_vec();
                bytes.extend((*number as u64).to_le_bytes());
                bytes.extend_from_slice(mask);
                bytes.resize(size, 0);
                bytes
            })
            .collect();
        elements.resize(MOST_MASKS as usize, vec![0; size]);
        elements
    }
}

/// An entry without ranges: each range becomes prefixes.
fn parts_of(entry: &PriorityEntry) -> Vec<MaskedKey> {
    let mut parts = vec![(entry.value.clone(), entry.mask.clone())];
    for range in &entry.ranges {
        let prefixes = prefixes_of(range);
        let at = usize::from(range.offset);
        parts = parts
            .iter()
            .flat_map(|(value, mask)| {
                prefixes.iter().map(move |(low, bits)| {
                    let (mut value, mut mask) = (value.clone(), mask.clone());
                    value[at..at + low.len()].copy_from_slice(low);
                    mask[at..at + bits.len()].copy_from_slice(bits);
                    (value, mask)
                })
            })
            .collect();
    }
    parts
}

/// Prefixes that together are a range, as values and masks in network order.
fn prefixes_of(range: &ByteRange) -> Vec<MaskedKey> {
    let bits = 8 * range.low.len();
    let (mut low, high) = (range.low.clone(), &range.high);
    let mut prefixes = Vec::new();
    while low <= *high {
        // The largest block that begins here and does not go beyond the end.
        let mut free = 0;
        while free < bits && !bit(&low, free) && last_of(&low, free + 1) <= *high {
            free += 1;
        }
        let mask = (0..range.low.len()).map(|byte| mask_byte(bits, free, byte)).collect();
        prefixes.push((low.clone(), mask));
        let mut next = last_of(&low, free);
        if !increment(&mut next) {
            break;
        }
        low = next;
    }
    prefixes
}

/// A bit of a number in network order, by its weight.
fn bit(number: &[u8], weight: usize) -> bool {
    number[number.len() - 1 - weight / 8] >> (weight % 8) & 1 == 1
}

/// The number with this many low bits set.
fn last_of(number: &[u8], free: usize) -> Vec<u8> {
    let mut last = number.to_vec();
    for weight in 0..free {
        let at = last.len() - 1 - weight / 8;
        last[at] |= 1 << (weight % 8);
    }
    last
}

fn mask_byte(bits: usize, free: usize, byte: usize) -> u8 {
    // Weight of the lowest bit of this byte.
    let lowest = bits - 8 * (byte + 1);
    match free.saturating_sub(lowest) {
        8.. => 0,
        clear => 0xff << clear,
    }
}

/// Adds 1; false if the number was the greatest one.
fn increment(number: &mut [u8]) -> bool {
    for byte in number.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_a_range_cover_its_numbers_and_no_others() {
        for (low, high) in [(0u16, 65535u16), (1, 65534), (5, 5), (80, 443), (1024, 2047), (65535, 65535)] {
            let range =
                ByteRange { offset: 0, low: low.to_be_bytes().to_vec(), high: high.to_be_bytes().to_vec() };
            let prefixes = prefixes_of(&range);
            for number in 0..=u16::MAX {
                let bytes = number.to_be_bytes();
                let matches = |(value, mask): &&MaskedKey| {
                    bytes.iter().zip(value).zip(mask).all(|((byte, value), mask)| byte & mask == *value)
                };
                let count = prefixes.iter().filter(matches).count();
                assert_eq!(count, usize::from((low..=high).contains(&number)), "{number} in {low}..={high}");
            }
        }
    }
}
