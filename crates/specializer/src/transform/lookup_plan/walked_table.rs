//! Lookups by which a loop goes through a table.

use millstream_isa::MapType;

use super::LookupPlan;
use super::specialization::LookupSpecialization;
use crate::policy::{LookupStrategy, SiteInputs};
use crate::transform::partial_eval::{AbstractEnv, BlockContinuation, PartialEvaluator};
use crate::transform::planned_lookup::PlannedLookup;

/// The map, an array, is gone through by a loop: which of its entries matter is decided ahead of the loop, by
/// `partial_eval/table_loop_decisions.rs`.
pub(super) struct WalkedTable;

impl LookupSpecialization for WalkedTable {
    /// Without it nothing is gained, even if there is little time.
    fn propose(site: &mut SiteInputs<'_>) -> Option<LookupPlan> {
        let (inputs, decl) = (site.inputs, site.declaration());
        let is_small = site.kind() == MapType::ARRAY && decl.max_entries as usize <= crate::policy::WHOLE;
        let is_walked =
            || !inputs.observed.is_churning(site.site.map) && inputs.compiler.is_walked(site.site);
        (is_small && is_walked()).then_some(LookupPlan::Walked)
    }

    /// Makes the lookup, where one remains.
    fn emit(
        &self,
        _: &mut PartialEvaluator<'_>,
        _: &PlannedLookup<'_>,
        _: &mut AbstractEnv,
    ) -> Option<BlockContinuation> {
        None
    }

    fn strategy(&self) -> LookupStrategy {
        LookupStrategy::Whole
    }

    /// One iteration of the loop remains, as a rule without lookups.
    fn cost_ns(&self, _: MapType, _: &[f64], _: f64) -> f64 {
        0.0
    }

    fn decides_loop(&self) -> bool {
        true
    }
}
