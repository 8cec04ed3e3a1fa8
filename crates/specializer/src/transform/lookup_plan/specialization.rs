//! The interface of the kinds of [`LookupPlan`].

use millstream_ir::{Map, Module};
use millstream_isa::MapType;

use super::{LookupEntry, LookupPlan};
use crate::policy::{LookupStrategy, SiteInputs};
use crate::transform::error::TransformError;
use crate::transform::partial_eval::{AbstractEnv, BlockContinuation, PartialEvaluator};
use crate::transform::plan::SpecializationPlan;
use crate::transform::planned_lookup::PlannedLookup;
use crate::transform::shadow_table::ShadowCapacity;
use crate::transform::site::LookupSite;

/// Choice of a kind for a lookup; `None` if it is impossible there, or does not pay.
pub(crate) type LookupProposal = fn(&mut SiteInputs<'_>) -> Option<LookupPlan>;

/// A way to answer a lookup.
///
/// Invariant: the code relies on nothing but the plan, what [`SiteInputs`] has read, which the snapshot records
/// as an assumption of the variant, and [`MapContents`](crate::transform::MapContents).
pub(crate) trait LookupSpecialization {
    /// Proposes it for a lookup. Kinds that depend on the plans of other lookups propose nothing here.
    fn propose(_: &mut SiteInputs<'_>) -> Option<LookupPlan>
    where
        Self: Sized,
    {
        None
    }

    /// Checks that the module and the rest of the plan have what it needs at a site. Entries are checked for all
    /// kinds alike.
    ///
    /// # Errors
    /// The reason why it does not fit.
    fn check(
        &self,
        _module: &Module,
        site: &LookupSite,
        _plan: &SpecializationPlan,
    ) -> Result<(), TransformError> {
        check_not_inner(site)
    }

    /// Emits the code. `None`, with nothing emitted, if it does not suit the lookup, which is made then.
    fn emit(
        &self,
        evaluator: &mut PartialEvaluator<'_>,
        lookup: &PlannedLookup<'_>,
        env: &mut AbstractEnv,
    ) -> Option<BlockContinuation>;

    /// Summary for reports and for the choice of the traffic to watch.
    fn strategy(&self) -> LookupStrategy;

    /// Predicts the time of a lookup in nanoseconds. `shares` are those of the hottest keys, `behind` is the time
    /// of a lookup in the map.
    fn cost_ns(&self, kind: MapType, shares: &[f64], behind: f64) -> f64;

    /// The entries with which it compares keys; `None` if it compares none, so that keys may have any form.
    fn entries(&self) -> Option<&[LookupEntry]> {
        None
    }

    /// The map that holds the shadow table which answers the lookup.
    fn shadow_map(&self) -> Option<Map> {
        None
    }

    /// Returns true if no lookup is ever made in the map.
    fn answers_all(&self) -> bool {
        false
    }

    /// Returns true if the loop around the lookup becomes decisions.
    fn decides_loop(&self) -> bool {
        false
    }
}

/// Checks that a lookup is made in a map of the object, and in no inner one.
pub(super) fn check_not_inner(site: &LookupSite) -> Result<(), TransformError> {
    match site.is_inner {
        true => Err(TransformError::UnfitMap { map: site.map, what: "it stands for inner maps" }),
        false => Ok(()),
    }
}

/// Checks that a map can hold shadow tables for a site. `length` is that of all prefixes, if there is only one.
pub(super) fn check_shadow_map(
    module: &Module,
    site: &LookupSite,
    plan: &SpecializationPlan,
    (map, length): (Map, Option<u32>),
) -> Result<(), TransformError> {
    let (decl, sides) = (&module.maps[site.map], plan.guard.map_or(1, |g| g.sides));
    if module.maps.get(map).and_then(|d| ShadowCapacity::of(decl, d, sides, length)).is_none() {
        return Err(TransformError::UnfitMap { map, what: "it has no room for a twin" });
    }
    check_not_inner(site)
}
