//! What to specialise: from profiles and tables to plans.

use std::collections::BTreeMap;
use std::collections::HashMap;

use millstream_ir::usage::Access;
use millstream_ir::{Map, MapDecl};
use millstream_kernel::MapType;
use rustc_hash::FxHashMap;

use crate::contents::{Observed, Source};
use crate::profile::SiteProfile;
use crate::transform::{Budget, Contents, Entry, Fallback, Guard, Lookup, Plan, Site, SiteId, SitePlan};

/// Maps of at most so many entries become code as a whole, if time allows.
const WHOLE: usize = 4096;
/// Maps that can hold no more than so many always do.
const TINY: u32 = 64;
/// Arrays, whose elements all exist and mostly are not used, only if they are tiny.
const WHOLE_ARRAY: u32 = 16;
/// Hot keys of a site at most.
const HOT: usize = 48;
/// A key is hot if it has at least this share of the lookups.
const HOT_SHARE: f64 = 0.002;

/// Whether lookups at this site can be specialised at all.
pub fn eligible(site: &Site, sources: &FxHashMap<Map, Source>) -> bool {
    let useful = |s: &Source| !matches!(s.access, Access::Written);
    site.is_comparable() && sources.get(&site.map).is_some_and(useful)
}

/// The keys that a plan puts into code, by site; `None` where all entries are.
pub type Keys = BTreeMap<SiteId, Option<Vec<Vec<u8>>>>;

/// How much time there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    /// Packets wait in the original code: hot keys only, within milliseconds.
    Quick,
    /// Whole tables.
    Thorough,
}

/// A plan for these profiles, and what it puts into code. Sites of which nothing is known are left alone.
pub fn plan(
    sites: &[Site],
    profiles: &[SiteProfile],
    declaration: impl Fn(Map) -> MapDecl,
    observed: &Observed<'_>,
    guard: Guard,
    tier: Tier,
) -> (Plan, Keys) {
    let mut plans = Vec::new();
    let mut keys = Keys::new();
    for profile in profiles {
        let Some(site) = sites.iter().find(|s| s.id == profile.site) else { continue };
        let decl = declaration(site.map);
        let Some(lookup) = lookup(site, profile, &decl, observed, tier) else { continue };
        let put = match &lookup {
            Lookup::Hot(entries) => Some(entries.iter().map(|e| e.key.clone()).collect()),
            Lookup::Whole(_) | Lookup::Empty | Lookup::Twin { .. } => None,
        };
        keys.insert(site.id, put);
        plans.push(SitePlan { site: site.id, lookup });
    }
    let plan = Plan {
        guard: Some(guard),
        fallback: Fallback::InPlace,
        sites: plans,
        fields: Vec::new(),
        budget: Budget::default(),
    };
    (plan, keys)
}

fn lookup(
    site: &Site,
    profile: &SiteProfile,
    decl: &MapDecl,
    observed: &Observed<'_>,
    tier: Tier,
) -> Option<Lookup> {
    let kind = MapType(decl.kind);
    let limit = if kind == MapType::ARRAY { WHOLE_ARRAY } else { u32::MAX };
    let in_time = tier == Tier::Thorough || decl.max_entries <= TINY;
    if in_time
        && decl.max_entries <= limit
        && let Some(table) = observed.table(site.map).filter(|t| t.len() <= WHOLE)
    {
        if table.is_empty() {
            return Some(Lookup::Empty);
        }
        let heat = if kind == MapType::LPM_TRIE { prefix_heat(&table, profile) } else { exact_heat(profile) };
        let entries = table.into_iter().map(|(key, value)| {
            let heat = heat.get(&key).copied().unwrap_or(0);
            Entry { key, value: Some(value), heat }
        });
        return Some(Lookup::Whole(entries.collect()));
    }
    let counted: u64 = profile.keys.iter().map(|(_, n)| n).sum();
    let hot = profile.keys.iter().take(HOT).filter(|(_, n)| *n as f64 >= HOT_SHARE * counted as f64);
    let entries: Vec<Entry> = hot
        .filter_map(|(key, heat)| {
            let value = observed.lookup(site.map, key)?;
            Some(Entry { key: key.clone(), value, heat: *heat })
        })
        .collect();
    (!entries.is_empty()).then_some(Lookup::Hot(entries))
}

fn exact_heat(profile: &SiteProfile) -> HashMap<Vec<u8>, u64> {
    profile.keys.iter().cloned().collect()
}

/// How often each prefix of a table is the longest match.
fn prefix_heat(table: &BTreeMap<Vec<u8>, Vec<u8>>, profile: &SiteProfile) -> HashMap<Vec<u8>, u64> {
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

/// The key of the prefix of this many bits.
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
