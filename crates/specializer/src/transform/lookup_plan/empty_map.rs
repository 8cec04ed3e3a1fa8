//! Lookups in a map that is empty.

use millstream_isa::MapType;

use super::LookupPlan;
use super::specialization::LookupSpecialization;
use crate::policy::{LookupStrategy, SiteInputs};
use crate::transform::eval::AbstractValue;
use crate::transform::partial_eval::{AbstractEnv, BlockContinuation, PartialEvaluator};
use crate::transform::planned_lookup::PlannedLookup;

/// The map has no entries: nothing is found.
pub(super) struct EmptyMap;

impl LookupSpecialization for EmptyMap {
    fn propose(site: &mut SiteInputs<'_>) -> Option<LookupPlan> {
        site.table()?.is_empty().then_some(LookupPlan::Empty)
    }

    fn emit(
        &self,
        evaluator: &mut PartialEvaluator<'_>,
        lookup: &PlannedLookup<'_>,
        env: &mut AbstractEnv,
    ) -> Option<BlockContinuation> {
        evaluator.define(lookup.inst, AbstractValue::Const(0), env);
        Some(BlockContinuation::On(lookup.at.out))
    }

    fn strategy(&self) -> LookupStrategy {
        LookupStrategy::Whole
    }

    fn cost_ns(&self, _: MapType, _: &[f64], _: f64) -> f64 {
        0.0
    }

    fn answers_all(&self) -> bool {
        true
    }
}
