//! Keys of generated entries.
//!
//! Keys of exact matches are computed from their number and not stored: memory is for tables. Distinct numbers give
//! distinct keys, because each step of the computation can be undone.

use std::collections::HashSet;

use millstream_p4_lower::{KeyMatch, KeySpec, TableSpec, TableStorage};
use millstream_rng::Rng;

use super::{EntrySource, WorkloadError};

/// Most generated entries of a table.
const MOST_ENTRIES: u64 = 1 << 26;
/// Bytes of the length in front of a prefix.
const LENGTH: usize = 4;
/// Odd factors of the computation.
const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9];

/// Keys of a table's entries.
pub(super) enum TableKeys {
    /// Computed ones.
    Numbered {
        /// Number of keys.
        count: u64,
        /// Bytes of a key.
        size: usize,
        /// Elements of the key.
        elements: Vec<KeySpec>,
    },
    /// Prefixes in the form of the map.
    Listed(Vec<Vec<u8>>),
}

impl TableKeys {
    pub(super) fn new(table: &TableSpec, source: EntrySource) -> Result<TableKeys, WorkloadError> {
        let name = || table.name.clone();
        let widest = table.keys.iter().map(|key| key.bits).max().unwrap_or(0);
        let values = 1u64.checked_shl(widest.min(63)).unwrap_or(u64::MAX);
        let most = u64::from(table.size).min(values).min(MOST_ENTRIES);
        let keys = match (table.storage, source) {
            (TableStorage::Hash, EntrySource::Generated(count)) => {
                let (size, elements) = (table.key_size as usize, table.keys.clone());
                TableKeys::Numbered { count, size, elements }
            }
            (TableStorage::Prefix, EntrySource::Generated(count)) if count <= most => {
                TableKeys::Listed(generated_prefixes(table, count))
            }
            (TableStorage::Prefix, EntrySource::Generated(count)) => {
                return Err(WorkloadError::Count { table: name(), count, most });
            }
            (TableStorage::Prefix, EntrySource::Prefixes(prefixes)) => {
                TableKeys::Listed(listed_prefixes(table, prefixes)?)
            }
            _ => return Err(WorkloadError::Kind { table: name() }),
        };
        match keys.len() {
            count if count == 0 || count > most => Err(WorkloadError::Count { table: name(), count, most }),
            _ => Ok(keys),
        }
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            TableKeys::Numbered { count, .. } => *count,
            TableKeys::Listed(keys) => keys.len() as u64,
        }
    }

    /// The stored keys, if they are.
    pub(super) fn listed(&self) -> Option<&[Vec<u8>]> {
        match self {
            TableKeys::Numbered { .. } => None,
            TableKeys::Listed(keys) => Some(keys),
        }
    }

    /// The key with a number below the number of keys.
    pub(super) fn get(&self, at: u64) -> Vec<u8> {
        match self {
            TableKeys::Numbered { size, elements, .. } => numbered_key(at, *size, elements),
            TableKeys::Listed(keys) => keys.get(at as usize).cloned().unwrap_or_default(),
        }
    }

    /// A key to look up: that of an entry, or an address below a prefix.
    pub(super) fn draw(&self, rng: &mut Rng) -> Vec<u8> {
        let mut key = self.get(rng.below(self.len().max(1)));
        if let (TableKeys::Listed(_), Some((length, address))) = (self, key.split_first_chunk_mut::<LENGTH>())
        {
            let bits = u32::from_le_bytes(*length);
            for (at, byte) in address.iter_mut().enumerate() {
                let kept = bits.saturating_sub(8 * at as u32).min(8);
                *byte |= (rng.below(256) as u32 & (0xff >> kept)) as u8;
            }
        }
        key
    }
}

/// A number below 2^bits that differs for distinct numbers below that.
fn mixed(number: u64, bits: u32) -> u64 {
    let mask = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
    let half = (bits.min(64) / 2).max(1);
    FACTORS.iter().fold(number & mask, |value, factor| {
        let value = value.wrapping_mul(*factor) & mask;
        value ^ (value >> half)
    })
}

fn numbered_key(number: u64, size: usize, elements: &[KeySpec]) -> Vec<u8> {
    let mut key = vec![0; size];
    for (at, element) in elements.iter().enumerate() {
        let Some(place) = key.get_mut(element.offset as usize..(element.offset + element.size) as usize)
        else {
            continue;
        };
        // Each element is a function of the number; the widest one of it alone.
        let mut rng = Rng::new(number.wrapping_add(at as u64 + 1));
        let mut left = element.bits;
        let mut word = mixed(number, left);
        for to in place.chunks_mut(8) {
            let bytes = word.to_le_bytes();
            let kept = left.min(64).div_ceil(8) as usize;
            for (to, from) in to.iter_mut().zip(&bytes[..kept.min(8)]) {
                *to = *from;
            }
            left = left.saturating_sub(64);
            word = if left >= 64 { rng.next_u64() } else { rng.next_u64() & ((1 << left) - 1) };
        }
    }
    key
}

/// The element of a key that is a prefix.
fn prefix_element(table: &TableSpec) -> Option<&KeySpec> {
    table.keys.iter().find(|key| key.kind == KeyMatch::Prefix)
}

/// Distinct random prefixes. Lengths are uniform: of addresses of 32 bits from 16 to 24, of wider ones from three
/// eighths to a half of the width, which is /48 to /64 for IPv6.
fn generated_prefixes(table: &TableSpec, count: u64) -> Vec<Vec<u8>> {
    let (mut rng, mut seen, mut keys) = (Rng::new(5), HashSet::new(), Vec::new());
    let bits = prefix_element(table).map_or(0, |element| element.bits);
    let exact = 8 * table.key_size.saturating_sub(LENGTH as u32 + bits.div_ceil(8));
    let lengths = if bits <= 32 { bits / 2..=bits * 3 / 4 } else { bits * 3 / 8..=bits / 2 };
    // Short keys have few prefixes: the tries are bounded.
    for _ in 0..count.saturating_mul(64) {
        if keys.len() as u64 == count {
            break;
        }
        let span = u64::from(lengths.end() - lengths.start()) + 1;
        let length = exact + lengths.start() + rng.below(span) as u32;
        let address: Vec<u8> = (LENGTH..table.key_size as usize).map(|_| rng.below(256) as u8).collect();
        let key = prefix_key(length, &address);
        if seen.insert(key.clone()) {
            keys.push(key);
        }
    }
    keys
}

fn listed_prefixes(table: &TableSpec, prefixes: Vec<(Vec<u8>, u32)>) -> Result<Vec<Vec<u8>>, WorkloadError> {
    let bits = 8 * table.key_size.saturating_sub(LENGTH as u32);
    let mut seen = HashSet::new();
    let fitting = prefixes.into_iter().filter(|(address, _)| 8 * address.len() as u32 == bits);
    let keys = fitting.map(|(address, length)| prefix_key(length.min(bits), &address));
    let keys: Vec<Vec<u8>> = keys.filter(|key| seen.insert(key.clone())).collect();
    match keys.is_empty() || table.keys.len() != 1 {
        true => Err(WorkloadError::Prefix { table: table.name.clone(), bits }),
        false => Ok(keys),
    }
}

/// A prefix in the form of the map: length, then the address without what is beyond.
fn prefix_key(length: u32, address: &[u8]) -> Vec<u8> {
    let mut key = length.to_le_bytes().to_vec();
    key.extend(address.iter().enumerate().map(|(at, byte)| {
        let kept = length.saturating_sub(8 * at as u32).min(8);
        byte & !(0xffu32 >> kept) as u8
    }));
    key
}

/// The IPv4 or IPv6 prefix that a line begins with.
pub fn parse_prefix(line: &str) -> Option<(Vec<u8>, u32)> {
    let (address, length) = line.split_whitespace().next()?.split_once('/')?;
    let length = length.parse().ok()?;
    let bytes = match address.parse().ok()? {
        std::net::IpAddr::V4(address) => address.octets().to_vec(),
        std::net::IpAddr::V6(address) => address.octets().to_vec(),
    };
    (length <= 8 * bytes.len() as u32).then_some((bytes, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_give_distinct_keys_of_the_right_width() {
        for bits in [1, 2, 7, 9, 16] {
            let values: HashSet<u64> = (0..1 << bits).map(|number| mixed(number, bits)).collect();
            assert_eq!(values.len(), 1 << bits, "{bits} bits");
            assert!(values.iter().all(|value| *value < 1 << bits));
        }
        let element =
            |bits, offset, size| KeySpec { name: String::new(), bits, kind: KeyMatch::Exact, offset, size };
        let key = numbered_key(5, 48, &[element(48, 0, 8), element(256, 8, 32), element(9, 40, 2)]);
        assert_eq!(&key[6..8], &[0, 0], "48 bits of 8 bytes");
        assert!(key[8..40].iter().filter(|byte| **byte != 0).count() > 20);
        assert!(key[41] < 2 && key[42..] == [0; 6]);
    }

    #[test]
    fn prefixes_are_read_from_the_beginning_of_lines() {
        assert_eq!(parse_prefix("1.2.3.0/24\t15169"), Some((vec![1, 2, 3, 0], 24)));
        assert_eq!(parse_prefix("2001::/16").map(|(bytes, length)| (bytes.len(), length)), Some((16, 16)));
        for line in ["", "; a comment", "1.2.3.4", "1.2.3.0/33", "a/3"] {
            assert_eq!(parse_prefix(line), None, "{line}");
        }
        assert_eq!(prefix_key(9, &[0xff; 4]), [9, 0, 0, 0, 0xff, 0x80, 0, 0]);
    }
}
