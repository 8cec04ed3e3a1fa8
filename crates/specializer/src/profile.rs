//! Traffic of the lookups: the keys that are looked up, with their counts.

use std::collections::HashMap;

use crate::transform::SiteId;

/// The keys of one lookup, hottest first.
#[derive(Clone, Debug, PartialEq)]
pub struct SiteProfile {
    /// The lookup.
    pub site: SiteId,
    /// Lookups counted.
    pub total: u64,
    /// Keys, with at least so many lookups each.
    pub keys: Vec<(Vec<u8>, u64)>,
}

impl SiteProfile {
    /// Share of each key in the lookups, hottest first; a lower bound.
    pub fn shares(&self) -> impl Iterator<Item = f64> {
        self.keys.iter().map(|(_, n)| *n as f64 / self.total.max(1) as f64)
    }

    /// Share of the lookups that were for these keys, from 0 to 1.
    pub fn share<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> f64 {
        let heat: HashMap<&[u8], u64> = self.keys.iter().map(|(k, n)| (k.as_slice(), *n)).collect();
        let counted: u64 = self.keys.iter().map(|(_, n)| n).sum();
        let hit: u64 = keys.filter_map(|k| heat.get(k)).sum();
        hit as f64 / counted.max(1) as f64
    }
}
