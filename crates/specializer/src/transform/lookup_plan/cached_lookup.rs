//! Lookups in a cache of a map that the program writes.

use millstream_ir::Module;
use millstream_isa::MapType;

use super::LookupPlan;
use super::specialization::LookupSpecialization;
use crate::policy::{LookupStrategy, PlanInputs, cacheable, cost};
use crate::transform::cache_layout::EntryCache;
use crate::transform::error::TransformError;
use crate::transform::partial_eval::{AbstractEnv, BlockContinuation, PartialEvaluator};
use crate::transform::plan::{InnerSitePlan, NamedInnerMap, SitePlan, SpecializationPlan};
use crate::transform::planned_lookup::PlannedLookup;
use crate::transform::site::{LookupSite, SiteId};

/// A site gets a cache if it makes at least one in so many of the lookups of the busiest site.
const CACHED: u64 = 16;

/// The map has an [`EntryCache`] in the plan.
pub(super) struct CachedLookup;

impl LookupSpecialization for CachedLookup {
    fn check(&self, _: &Module, site: &LookupSite, plan: &SpecializationPlan) -> Result<(), TransformError> {
        if !plan.caches.iter().any(|c| c.of == site.map) {
            return Err(TransformError::UnfitMap { map: site.map, what: "it has no cache" });
        }
        if site.is_comparable() { Ok(()) } else { Err(TransformError::NotComparable(site.id)) }
    }

    fn emit(
        &self,
        evaluator: &mut PartialEvaluator<'_>,
        lookup: &PlannedLookup<'_>,
        env: &mut AbstractEnv,
    ) -> Option<BlockContinuation> {
        evaluator.cached(lookup, env)
    }

    fn strategy(&self) -> LookupStrategy {
        LookupStrategy::Cached
    }

    fn cost_ns(&self, _: MapType, _: &[f64], _: f64) -> f64 {
        cost::CACHE
    }
}

impl PlanInputs<'_> {
    /// Caches for the lookups that are made often in maps that may have them. The plans of all other lookups are
    /// known by then.
    pub(crate) fn caches(
        &self,
        plans: &mut Vec<SitePlan>,
        inside: &[NamedInnerMap],
        within: &[InnerSitePlan],
    ) -> Vec<EntryCache> {
        let often = self.profiles.iter().map(|p| p.total).max().unwrap_or(0) / CACHED;
        let busy = |site: &&LookupSite| {
            self.compiler.may_cache(site)
                && cacheable(site, self.cached)
                && self.profiles.iter().any(|p| p.site == site.id && p.total > often)
        };
        let caches = self.cached.iter().filter_map(|&map| {
            let is_known = |s: &&LookupSite| s.is_inner && self.is_known_within(s, (plans, inside, within));
            let sites = self.compiler.sites().iter().filter(|s| s.map == map).filter(busy);
            let sites: Vec<SiteId> = sites.filter(|s| !is_known(s)).map(|s| s.id).collect();
            let cache = (!sites.is_empty()).then(|| self.compiler.cache_for(map))??;
            plans.extend(sites.into_iter().map(|site| SitePlan { site, lookup: LookupPlan::Cached }));
            Some(cache)
        });
        caches.collect()
    }
}
