//! The algorithm of look-ups that fits prefixes known at compile time.
//!
//! Measured (`examples/tables`, `drawn`): as many prefixes as are compared at once are found in less than
//! half the time of a walk beyond the root, and twice as many are not. A search of a hash table takes as long
//! as six nodes of a walk, whatever the caches hold. Nodes with a word for each place need the fewest
//! instructions, until they exceed the caches: then packed ones are read in a quarter to three quarters of
//! the time, unless lines are fetched ahead, as for tables with a root of 24 bits.

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;

use super::list::LANES;
use super::{LpmTable, LpmTemplate, MANY, length, root_bits};

/// Properties of the prefixes that a table will hold.
#[derive(Clone, Debug, Default)]
pub struct PrefixStats {
    /// Number of prefixes of each length.
    lengths: BTreeMap<u32, u64>,
    /// Nodes below the root, if they are few enough to be counted.
    nodes: usize,
    /// Bits of an address.
    bits: u32,
}

/// Nodes of a walk that take as long as the search of a hash table.
const STEPS_A_SEARCH: f64 = 6.0;
/// Bytes of lines read by walks that still fit in the caches next to the processor.
const CACHED: usize = 1 << 20;
const LINE: usize = 64;
/// Walks through at least this many nodes read lines that belong to one prefix each.
const LONG: f64 = 3.0;

impl PrefixStats {
    /// Properties of the keys of a map: length and address each.
    pub fn of<'k>(keys: impl Iterator<Item = &'k [u8]> + Clone) -> PrefixStats {
        let mut known = PrefixStats::default();
        for key in keys.clone() {
            *known.lengths.entry(length(key)).or_default() += 1;
            known.bits = 8 * (key.len() as u32).saturating_sub(4);
        }
        if known.count() < u64::from(MANY) {
            let mut nodes = FxHashSet::default();
            for key in keys {
                let ends = (known.root()..length(key)).step_by(8);
                nodes.extend(ends.map(|bits| LpmTable::cut(key, bits)));
            }
            known.nodes = nodes.len();
        }
        known
    }

    fn count(&self) -> u64 {
        self.lengths.values().sum()
    }

    fn root(&self) -> u32 {
        root_bits(self.bits, self.count().min(u64::from(u32::MAX)) as u32)
    }

    /// Nodes of a walk below the root, on average over prefixes.
    fn steps(&self) -> f64 {
        let steps =
            |(bits, count): (&u32, &u64)| u64::from(bits.saturating_sub(self.root()).div_ceil(8)) * count;
        self.lengths.iter().map(steps).sum::<u64>() as f64 / self.count().max(1) as f64
    }
}

impl LpmTemplate {
    /// Its name for pinning.
    pub const fn name(self) -> &'static str {
        match self {
            LpmTemplate::Multibit => "multibit",
            LpmTemplate::Packed => "packed",
            LpmTemplate::Lengths => "lengths",
            LpmTemplate::List => "list",
        }
    }

    /// Number of prefixes that are compared at once, beside the end of the list.
    pub const AT_ONCE: u32 = LANES as u32 - 1;

    /// The algorithm for these prefixes, in a table for this many, and the reason.
    pub fn fitting(known: &PrefixStats, entries: u32) -> (LpmTemplate, String) {
        let (count, lengths, steps) = (known.count(), known.lengths.len(), known.steps());
        // If all walks end at the root, they are one load.
        if entries <= LpmTemplate::AT_ONCE && steps > 0.0 {
            return (LpmTemplate::List, format!("{count} prefixes, compared at once"));
        }
        let bytes = known.nodes * LINE;
        if count > 0 && steps >= STEPS_A_SEARCH * lengths as f64 {
            let why =
                format!("{count} prefixes of {lengths} lengths, {steps:.1} nodes of a trie away on average");
            return (LpmTemplate::Lengths, why);
        }
        if steps >= LONG && bytes >= CACHED {
            let why = format!("{count} prefixes in {} nodes, more than caches hold", known.nodes);
            return (LpmTemplate::Packed, why);
        }
        (LpmTemplate::Multibit, format!("{count} prefixes, {steps:.1} nodes below the root on average"))
    }
}

#[cfg(test)]
mod tests {
    use super::{LpmTemplate, PrefixStats};

    /// Prefixes that take these lengths in turn and differ in their first bits.
    fn drawn(bytes: usize, count: u32, lengths: &[u32]) -> (LpmTemplate, String) {
        let key = |at: u32| {
            let mut key = lengths[at as usize % lengths.len()].to_ne_bytes().to_vec();
            key.extend(at.wrapping_mul(0x9e37_79b1).to_be_bytes());
            key.resize(4 + bytes, 0);
            key
        };
        let keys: Vec<Vec<u8>> = (0..count).map(key).collect();
        LpmTemplate::fitting(&PrefixStats::of(keys.iter().map(Vec::as_slice)), count)
    }

    #[test]
    fn the_way_follows_from_lengths_and_nodes() {
        for (bytes, count, lengths, expected) in [
            (4, 7, &[8, 16][..], LpmTemplate::Multibit),
            (4, 7, &[8, 16, 24], LpmTemplate::List),
            (16, 7, &[32, 48, 64], LpmTemplate::List),
            (16, 8, &[32, 48, 64], LpmTemplate::Multibit),
            (4, 500, &[8, 16, 24], LpmTemplate::Multibit),
            (4, 40_000, &[24, 32], LpmTemplate::Multibit),
            (4, 900_000, &[24], LpmTemplate::Multibit),
            (16, 1_000, &[48], LpmTemplate::Multibit),
            (16, 10_000, &[32, 48], LpmTemplate::Packed),
            (16, 10_000, &[48], LpmTemplate::Packed),
            (16, 160_000, &[32, 48], LpmTemplate::Multibit),
            (16, 1_000, &[64], LpmTemplate::Lengths),
            (16, 1_000, &[48, 64], LpmTemplate::Multibit),
            (16, 60_000, &[128], LpmTemplate::Lengths),
            (16, 60_000, &[96, 128], LpmTemplate::Lengths),
        ] {
            let (trie, why) = drawn(bytes, count, lengths);
            assert_eq!(trie, expected, "{count} prefixes of {bytes} bytes, {lengths:?}: {why}");
        }
        assert_eq!(LpmTemplate::fitting(&PrefixStats::default(), 100).0, LpmTemplate::Multibit);
    }
}
