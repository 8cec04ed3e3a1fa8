//! The keys that are looked up most, as code in front of the lookup.

use millstream_isa::MapType;

use super::specialization::LookupSpecialization;
use super::{LookupEntry, LookupPlan};
use crate::policy::{LookupStrategy, SiteInputs, cost};
use crate::profile::SiteProfile;
use crate::transform::compared_lookup::{UnknownKeys, emit_compared};
use crate::transform::partial_eval::{AbstractEnv, BlockContinuation, PartialEvaluator};
use crate::transform::planned_lookup::PlannedLookup;

/// These keys are tried, hottest first, before the real lookup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HotEntries {
    /// The keys, with what a lookup of each finds.
    pub entries: Vec<LookupEntry>,
}

impl LookupSpecialization for HotEntries {
    fn propose(site: &mut SiteInputs<'_>) -> Option<LookupPlan> {
        let (observed, map) = (site.inputs.observed, site.site.map);
        let mut entries = hottest(site.profile, site.lookup_cost(), |key| observed.lookup(map, key));
        entries.retain(|entry| site.can_name(entry.value.as_deref()));
        (!entries.is_empty()).then_some(LookupPlan::Hot(HotEntries { entries }))
    }

    fn emit(
        &self,
        evaluator: &mut PartialEvaluator<'_>,
        lookup: &PlannedLookup<'_>,
        env: &mut AbstractEnv,
    ) -> Option<BlockContinuation> {
        emit_compared(evaluator, lookup, &self.entries, &UnknownKeys::Map, env)
    }

    fn strategy(&self) -> LookupStrategy {
        hot_strategy(&self.entries)
    }

    fn cost_ns(&self, _: MapType, shares: &[f64], behind: f64) -> f64 {
        cost::compare_cost(&shares[..self.entries.len().min(shares.len())], behind)
    }

    fn entries(&self) -> Option<&[LookupEntry]> {
        Some(&self.entries)
    }
}

/// Chooses as many of the hottest keys as pay in front of code that takes `behind`.
pub(super) fn hottest(
    profile: &SiteProfile,
    behind: f64,
    value: impl Fn(&[u8]) -> Option<Option<Vec<u8>>>,
) -> Vec<LookupEntry> {
    let shares: Vec<f64> = profile.shares().take(cost::HOT).collect();
    let most = cost::worthwhile(&shares, behind);
    let entry = |(key, heat): &(Vec<u8>, u64)| {
        Some(LookupEntry { key: key.clone(), value: value(key)?, heat: *heat })
    };
    profile.keys.iter().take(most).filter_map(entry).collect()
}

/// Summary of these keys.
pub(super) fn hot_strategy(entries: &[LookupEntry]) -> LookupStrategy {
    LookupStrategy::Hot(entries.iter().map(|e| e.key.clone()).collect())
}
