//! Map entries that a loader writes.

use crate::fnv::{FNV_OFFSET, fnv1a};

/// One entry of one map. Fields are in the machine's byte order and layout, as bpf(2) takes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// The map's name in the object.
    pub map: &'static str,
    /// The key, exactly as long as the map's keys.
    pub key: Vec<u8>,
    /// The value, exactly as long as the map's values (for per-CPU maps: as one CPU's value).
    pub value: Vec<u8>,
}

impl MapEntry {
    /// An entry of the map `map`.
    pub fn new(map: &'static str, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        Self { map, key: key.into(), value: value.into() }
    }
}

/// FNV-1a over names, lengths, keys and values, in their order: the name of a table in a report.
pub fn hash(entries: &[MapEntry]) -> u64 {
    entries.iter().fold(FNV_OFFSET, |h, entry| {
        [entry.map.as_bytes(), &entry.key, &entry.value].into_iter().fold(h, |h, part| {
            let h = fnv1a(h, &(part.len() as u64).to_le_bytes());
            fnv1a(h, part)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{MapEntry, hash};

    #[test]
    fn the_hash_sees_where_names_keys_and_values_end() {
        let of = |map, key: &[u8], value: &[u8]| hash(&[MapEntry::new(map, key, value)]);
        let all =
            [of("m", &[1, 2], &[3]), of("m", &[1], &[2, 3]), of("n", &[1, 2], &[3]), of("m", &[1, 2], &[4])];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b), "{i}");
        }
    }
}
