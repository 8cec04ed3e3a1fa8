//! Whole maps as code.

use std::collections::HashMap;

use millstream_isa::MapType;

use super::specialization::LookupSpecialization;
use super::{LookupEntry, LookupPlan};
use crate::policy::{LookupStrategy, SiteInputs, cost};
use crate::profile::SiteProfile;
use crate::snapshot::MapEntries;
use crate::transform::compared_lookup::{UnknownKeys, emit_compared};
use crate::transform::partial_eval::{AbstractEnv, BlockContinuation, PartialEvaluator};
use crate::transform::planned_lookup::PlannedLookup;

/// The map has these entries and no others: the lookup becomes code. For a longest-prefix map, keys that are looked
/// up often may be named too, as prefixes of full length with the values that they have by others: they cost
/// nothing, and their heat says where the search should be short.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WholeMap {
    /// All entries.
    pub entries: Vec<LookupEntry>,
}

impl WholeMap {
    /// Makes code of a map of this type, if that finds an entry faster than the lookup does.
    pub(crate) fn of_table(table: MapEntries, kind: MapType, profile: &SiteProfile) -> Option<WholeMap> {
        let heat = if kind == MapType::LPM_TRIE { prefix_heat(&table, profile) } else { exact_heat(profile) };
        let entries = table.into_iter().map(|(key, value)| {
            let heat = heat.get(&key).copied().unwrap_or(0);
            LookupEntry { key, value: Some(value), heat }
        });
        let entries: Vec<LookupEntry> = entries.collect();
        let pays = cost::whole(kind, &entries) < cost::lookup(kind, entries.len());
        pays.then_some(WholeMap { entries })
    }
}

impl LookupSpecialization for WholeMap {
    fn propose(site: &mut SiteInputs<'_>) -> Option<LookupPlan> {
        let whole = WholeMap::of_table(site.take_table()?, site.kind(), site.profile)?;
        let is_named = whole.entries.iter().all(|entry| site.can_name(entry.value.as_deref()));
        is_named.then_some(LookupPlan::Whole(whole))
    }

    fn emit(
        &self,
        evaluator: &mut PartialEvaluator<'_>,
        lookup: &PlannedLookup<'_>,
        env: &mut AbstractEnv,
    ) -> Option<BlockContinuation> {
        emit_compared(evaluator, lookup, &self.entries, &UnknownKeys::Absent, env)
    }

    fn strategy(&self) -> LookupStrategy {
        LookupStrategy::Whole
    }

    fn cost_ns(&self, kind: MapType, _: &[f64], _: f64) -> f64 {
        cost::whole(kind, &self.entries)
    }

    fn entries(&self) -> Option<&[LookupEntry]> {
        Some(&self.entries)
    }

    fn answers_all(&self) -> bool {
        true
    }
}

fn exact_heat(profile: &SiteProfile) -> HashMap<Vec<u8>, u64> {
    profile.keys.iter().cloned().collect()
}

/// Number of lookups for which each prefix of a table is the longest match.
fn prefix_heat(table: &MapEntries, profile: &SiteProfile) -> HashMap<Vec<u8>, u64> {
    let mut heat = HashMap::new();
    for (key, n) in &profile.keys {
        let Some((length, data)) = key.split_first_chunk::<4>() else { continue };
        let longest = u32::from_ne_bytes(*length).min(8 * data.len() as u32);
        let matching = (0..=longest).rev().map(|l| prefix(data, l)).find(|p| table.contains_key(p));
        if let Some(found) = matching {
            *heat.entry(found).or_default() += n;
        }
    }
    heat
}

/// Builds the key of the prefix with this many bits.
fn prefix(data: &[u8], bits: u32) -> Vec<u8> {
    let mut key = bits.to_ne_bytes().to_vec();
    key.extend(data.iter().enumerate().map(|(i, byte)| {
        let kept = bits.saturating_sub(8 * i as u32).min(8);
        if kept == 0 { 0 } else { byte & (0xff << (8 - kept)) as u8 }
    }));
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::SiteId;

    fn key(bits: u32, address: [u8; 4]) -> Vec<u8> {
        [&bits.to_ne_bytes()[..], &address].concat()
    }

    #[test]
    fn prefixes_keep_their_leading_bits() {
        assert_eq!(prefix(&[10, 255, 3, 4], 9), key(9, [10, 128, 0, 0]));
        assert_eq!(prefix(&[10, 255, 3, 4], 0), key(0, [0; 4]));
        assert_eq!(prefix(&[10, 255, 3, 4], 32), key(32, [10, 255, 3, 4]));
    }

    #[test]
    fn heat_goes_to_the_longest_match() {
        let table = [key(0, [0; 4]), key(8, [10, 0, 0, 0]), key(24, [10, 1, 2, 0])];
        let table = table.into_iter().map(|k| (k, vec![0])).collect();
        let keys = vec![
            (key(32, [10, 1, 2, 9]), 5),
            (key(32, [10, 1, 2, 8]), 4),
            (key(32, [10, 9, 9, 9]), 2),
            (key(32, [9, 9, 9, 9]), 1),
        ];
        let heat = prefix_heat(&table, &SiteProfile { site: SiteId(0), total: 12, keys });
        let of = |k| heat.get(&k).copied();
        assert_eq!(of(key(24, [10, 1, 2, 0])), Some(9));
        assert_eq!(of(key(8, [10, 0, 0, 0])), Some(2));
        assert_eq!(of(key(0, [0; 4])), Some(1));
    }
}
