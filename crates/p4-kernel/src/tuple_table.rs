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

/// A mask that entries have.
struct UsedMask {
    number: usize,
    /// Ranks of its entries, and how many parts have each.
    ranks: BTreeMap<u64, u32>,
}

/// Entries of a table, and what the kernel's maps hold of them. The time of a change does not depend on the
/// number of entries.
pub(crate) struct TupleTable {
    maps: TupleMaps,
    key_size: usize,
    entries: BTreeMap<Vec<u8>, TableEntry>,
    masks: BTreeMap<Vec<u8>, UsedMask>,
    /// Numbers of masks that are in use.
    numbers: Vec<bool>,
    /// Values by rank for each key of the kernel's hash map, which holds that of the greatest rank.
    candidates: FxHashMap<Vec<u8>, BTreeMap<u64, Vec<u8>>>,
    /// Elements of the kernel's array of masks.
    written: Vec<Vec<u8>>,
    made: u32,
}

fn failed(error: &millstream_kernel::KernelError) -> ExecutorError {
    match error.errno() {
        Some(number) => ExecutorError::Map(-i64::from(number)),
        None => ExecutorError::Fault(error.to_string()),
    }
}

fn find(maps: &FxHashMap<Map, KernelMap>, map: Map) -> Result<&KernelMap, ExecutorError> {
    maps.get(&map).ok_or(ExecutorError::NoMap(map))
}

impl TupleTable {
    pub(crate) fn new(maps: TupleMaps, table: Option<&TableSpec>) -> TupleTable {
        let key_size = table.map_or(1, |table| table.key_size as usize);
        TupleTable {
            maps,
            key_size,
            entries: BTreeMap::new(),
            masks: BTreeMap::new(),
            numbers: vec![false; MOST_MASKS as usize],
            candidates: FxHashMap::default(),
            written: Vec::new(),
            made: 0,
        }
    }

    pub(crate) fn maps(&self) -> TupleMaps {
        self.maps
    }

    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        self.entries.keys().cloned().collect()
    }

    /// Value of an entry as it was set.
    pub(crate) fn value(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.entries.get(name).map(|entry| entry.value.clone())
    }

    /// Key in the hash map of the first part of an entry; none if an entry of a greater rank has it.
    pub(crate) fn kernel_key(&self, name: &[u8]) -> Option<Vec<u8>> {
        let entry = self.entries.get(name)?;
        let key = self.hash_key(entry.parts.first()?)?;
        let (rank, _) = self.candidates.get(&key)?.last_key_value()?;
        (*rank == entry.rank).then_some(key)
    }

    fn hash_key(&self, (value, mask): &MaskedKey) -> Option<Vec<u8>> {
        let mut key = (self.masks.get(mask)?.number as u64).to_le_bytes().to_vec();
        key.extend_from_slice(value);
        key.resize(ENTRY_PREFIX as usize + self.key_size.next_multiple_of(8), 0);
        Some(key)
    }

    /// Inserts or replaces an entry.
    pub(crate) fn set(
        &mut self,
        maps: &FxHashMap<Map, KernelMap>,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), ExecutorError> {
        let (rank, parts, is_new) = match self.entries.get(name) {
            Some(old) => (old.rank, old.parts.clone(), false),
            None => {
                let entry = PriorityEntry::decode(name, self.key_size);
                let entry = entry.ok_or(ExecutorError::Map(-i64::from(EINVAL)))?;
                self.made += 1;
                let rank = u64::from(entry.priority) << 32 | u64::from(u32::MAX - self.made);
                (rank, parts_of(&entry), true)
            }
        };
        if is_new {
            self.add_masks(&parts, rank)?;
        }
        let keys: Vec<Vec<u8>> = parts.iter().filter_map(|part| self.hash_key(part)).collect();
        for key in &keys {
            self.candidates.entry(key.clone()).or_default().insert(rank, value.to_vec());
        }
        // An entry is there before its mask is looked at.
        let written = self.write_keys(maps, &keys).and_then(|()| self.write_masks(maps));
        if let Err(error) = written {
            self.take_back(maps, (&keys, &parts), (name, rank));
            return Err(error);
        }
        self.entries.insert(name.to_vec(), TableEntry { value: value.to_vec(), rank, parts });
        Ok(())
    }

    /// Makes the maps as they were in front of a change that the kernel refused.
    fn take_back(
        &mut self,
        maps: &FxHashMap<Map, KernelMap>,
        (keys, parts): (&[Vec<u8>], &[MaskedKey]),
        (name, rank): (&[u8], u64),
    ) {
        let old = self.value(name);
        for key in keys {
            let values = self.candidates.entry(key.clone()).or_default();
            match &old {
                Some(old) => _ = values.insert(rank, old.clone()),
                None => _ = values.remove(&rank),
            }
        }
        if old.is_none() {
            self.remove_masks(parts, rank);
        }
        // What was written before the refusal can be written again; a second refusal changes nothing.
        _ = self.write_masks(maps);
        for key in keys {
            _ = self.write_keys(maps, std::slice::from_ref(key));
        }
    }

    /// Removes an entry: first its mask, then the entry.
    pub(crate) fn delete(
        &mut self,
        maps: &FxHashMap<Map, KernelMap>,
        name: &[u8],
    ) -> Result<(), ExecutorError> {
        let entry = self.entries.remove(name).ok_or(ExecutorError::Map(-i64::from(ENOENT)))?;
        let keys: Vec<Vec<u8>> = entry.parts.iter().filter_map(|part| self.hash_key(part)).collect();
        for key in &keys {
            if let Some(values) = self.candidates.get_mut(key) {
                values.remove(&entry.rank);
            }
        }
        self.remove_masks(&entry.parts, entry.rank);
        self.write_masks(maps)?;
        self.write_keys(maps, &keys)
    }

    /// Gives the masks of an entry numbers, or none of them.
    fn add_masks(&mut self, parts: &[MaskedKey], rank: u64) -> Result<(), ExecutorError> {
        for (at, (_, mask)) in parts.iter().enumerate() {
            let known = self.masks.get(mask).map(|used| used.number);
            let Some(number) = known.or_else(|| self.numbers.iter().position(|is_used| !is_used)) else {
                self.remove_masks(&parts[..at], rank);
                return Err(ExecutorError::Map(-i64::from(ENOSPC)));
            };
            self.numbers[number] = true;
            let new = || UsedMask { number, ranks: BTreeMap::new() };
            let used = self.masks.entry(mask.clone()).or_insert_with(new);
            *used.ranks.entry(rank).or_default() += 1;
        }
        Ok(())
    }

    fn remove_masks(&mut self, parts: &[MaskedKey], rank: u64) {
        for (_, mask) in parts {
            let Some(used) = self.masks.get_mut(mask) else { continue };
            if let Some(count) = used.ranks.get_mut(&rank) {
                *count -= 1;
                if *count == 0 {
                    used.ranks.remove(&rank);
                }
            }
            if used.ranks.is_empty() {
                self.numbers[used.number] = false;
                self.masks.remove(mask);
            }
        }
    }

    /// Makes the hash map equal to the candidates of these keys.
    fn write_keys(
        &mut self,
        maps: &FxHashMap<Map, KernelMap>,
        keys: &[Vec<u8>],
    ) -> Result<(), ExecutorError> {
        let hash = find(maps, self.maps.entries)?;
        for key in keys {
            match self.candidates.get(key).and_then(BTreeMap::last_key_value) {
                Some((rank, value)) => {
                    let bytes = [value.as_slice(), &rank.to_le_bytes()].concat();
                    hash.update(key, &bytes, UpdateMode::Any).map_err(|error| failed(&error))?;
                }
                None => {
                    self.candidates.remove(key);
                    hash.delete(key).map_err(|error| failed(&error))?;
                }
            }
        }
        Ok(())
    }

    /// Writes the elements of the array of masks that changed.
    fn write_masks(&mut self, maps: &FxHashMap<Map, KernelMap>) -> Result<(), ExecutorError> {
        let array = find(maps, self.maps.masks)?;
        let elements = self.mask_elements();
        for (index, bytes) in elements.iter().enumerate() {
            if self.written.get(index) != Some(bytes) {
                let key = (index as u32).to_le_bytes();
                array.update(&key, bytes, UpdateMode::Any).map_err(|error| failed(&error))?;
            }
        }
        self.written = elements;
        Ok(())
    }

    /// Elements of the array of masks, the greatest rank first; zeros behind the last one.
    fn mask_elements(&self) -> Vec<Vec<u8>> {
        let size = MASK_BYTES as usize + self.key_size.next_multiple_of(8);
        let rank = |used: &UsedMask| used.ranks.last_key_value().map_or(0, |(rank, _)| *rank);
        let mut list: Vec<(&Vec<u8>, &UsedMask)> = self.masks.iter().collect();
        list.sort_by_key(|(_, used)| std::cmp::Reverse(rank(used)));
        let mut elements: Vec<Vec<u8>> = list
            .into_iter()
            .map(|(mask, used)| {
                let mut bytes = rank(used).to_le_bytes().to_vec();
                bytes.extend((used.number as u64).to_le_bytes());
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
