//! Lookups in a shadow table of a longest-prefix map whose prefixes all have one length: a hash table.

use millstream_ir::{Map, Module};
use millstream_isa::MapType;

use super::LookupPlan;
use super::specialization::{LookupSpecialization, check_shadow_map};
use crate::policy::{LookupStrategy, SiteInputs, cost};
use crate::transform::cache_layout::whole_words;
use crate::transform::compared_lookup::{UnknownKeys, emit_compared};
use crate::transform::error::TransformError;
use crate::transform::fixed_length_prefixes::shortened;
use crate::transform::partial_eval::{AbstractEnv, BlockContinuation, PartialEvaluator};
use crate::transform::plan::SpecializationPlan;
use crate::transform::planned_lookup::PlannedLookup;
use crate::transform::shadow_access::{ShadowAccess, capacity};
use crate::transform::shadow_table::{ShadowCapacity, ShadowTable};
use crate::transform::site::LookupSite;

/// The map, of longest prefixes, all of one length, has a shadow table for that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FixedLengthLookup {
    /// An array of one entry, whose value holds a [`ShadowTable`] of the map for each of the guard's sides.
    pub map: Map,
    /// The length.
    pub length: u32,
}

impl LookupSpecialization for FixedLengthLookup {
    fn propose(site: &mut SiteInputs<'_>) -> Option<LookupPlan> {
        match site.shadow_table()? {
            (map, ShadowTable::OneLength(table)) => {
                Some(LookupPlan::OneLength(FixedLengthLookup { map, length: table.length() }))
            }
            _ => None,
        }
    }

    fn check(
        &self,
        module: &Module,
        site: &LookupSite,
        plan: &SpecializationPlan,
    ) -> Result<(), TransformError> {
        check_shadow_map(module, site, plan, (self.map, Some(self.length)))
    }

    fn emit(
        &self,
        evaluator: &mut PartialEvaluator<'_>,
        lookup: &PlannedLookup<'_>,
        env: &mut AbstractEnv,
    ) -> Option<BlockContinuation> {
        let capacity = capacity(evaluator, lookup, self.map, Some(self.length))?;
        let ShadowCapacity::OneLength(shape, length) = capacity else { return None };
        if !whole_words(lookup.layout) {
            return None;
        }
        let sizes = (evaluator.original.module.maps[lookup.map].key_size, length);
        let pieces = shortened(evaluator, lookup.layout, lookup.args, sizes, lookup.at.out)?;
        let shadow = ShadowAccess::Rows(self.map, shape, pieces);
        emit_compared(evaluator, lookup, &[], &UnknownKeys::Shadow(shadow), env)
    }

    fn strategy(&self) -> LookupStrategy {
        LookupStrategy::Twin
    }

    fn cost_ns(&self, _: MapType, _: &[f64], _: f64) -> f64 {
        cost::TWIN
    }

    fn shadow_map(&self) -> Option<Map> {
        Some(self.map)
    }
}
