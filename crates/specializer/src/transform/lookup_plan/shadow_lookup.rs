//! Lookups in a shadow table: a trie of a longest-prefix map, or rows of a hash map, which follow every write.
//!
//! A longest-prefix map gets one whatever the traffic: it is faster than hot keys in front of the trie or of the
//! shadow table itself (a mispredicted comparison costs more than the loads), and the code does not depend on the
//! contents of the map. A hash map has as many hot keys before it as pay.

use millstream_ir::{AluOp, Block, KeyPiece, Map, Module, Op, Size, Type, Value, Width};
use millstream_isa::MapType;

use super::hot_entries::{hot_strategy, hottest};
use super::specialization::{LookupSpecialization, check_shadow_map};
use super::{LookupEntry, LookupPlan};
use crate::policy::{LookupStrategy, SiteInputs, cost};
use crate::transform::cache_layout::whole_words;
use crate::transform::compared_lookup::{UnknownKeys, emit_compared};
use crate::transform::error::TransformError;
use crate::transform::eval::AbstractValue;
use crate::transform::matcher::full_length;
use crate::transform::partial_eval::{AbstractEnv, BlockContinuation, PartialEvaluator};
use crate::transform::plan::SpecializationPlan;
use crate::transform::planned_lookup::PlannedLookup;
use crate::transform::shadow_access::{ShadowAccess, capacity};
use crate::transform::shadow_table::{ShadowCapacity, ShadowTable, TrieAccess};
use crate::transform::site::LookupSite;

/// The map, of longest prefixes or a hash map, has this shadow table; the keys are tried before it, hottest first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShadowLookup {
    /// An array of one entry, whose value holds a [`ShadowTable`] of the map for each of the guard's sides.
    pub map: Map,
    /// Keys that are tried before it; may be empty.
    pub hot: Vec<LookupEntry>,
}

impl LookupSpecialization for ShadowLookup {
    fn propose(site: &mut SiteInputs<'_>) -> Option<LookupPlan> {
        let (map, table) = site.shadow_table()?;
        let hot = match table {
            ShadowTable::OneLength(_) => return None,
            ShadowTable::Trie(_) => Vec::new(),
            ShadowTable::Rows(_) => {
                let value = |key: &[u8]| site.inputs.observed.before_twin(site.site.map, key);
                hottest(site.profile, cost::TWIN, value)
            }
        };
        Some(LookupPlan::Twin(ShadowLookup { map, hot }))
    }

    fn check(
        &self,
        module: &Module,
        site: &LookupSite,
        plan: &SpecializationPlan,
    ) -> Result<(), TransformError> {
        check_shadow_map(module, site, plan, (self.map, None))
    }

    fn emit(
        &self,
        evaluator: &mut PartialEvaluator<'_>,
        lookup: &PlannedLookup<'_>,
        env: &mut AbstractEnv,
    ) -> Option<BlockContinuation> {
        let map = self.map;
        let shadow = match capacity(evaluator, lookup, map, None)? {
            ShadowCapacity::Trie { groups, value_size } => {
                let decl = &evaluator.original.module.maps[lookup.map];
                let pieces = full_length(decl, lookup.layout, lookup.args)?;
                let word = joined(evaluator, &pieces, lookup.at.out);
                ShadowAccess::Trie(TrieAccess { map, groups, word, value_size })
            }
            ShadowCapacity::Rows(shape) if whole_words(lookup.layout) => {
                ShadowAccess::Rows(map, shape, lookup.args.into())
            }
            ShadowCapacity::Rows(_) | ShadowCapacity::OneLength(..) => return None,
        };
        emit_compared(evaluator, lookup, &self.hot, &UnknownKeys::Shadow(shadow), env)
    }

    fn strategy(&self) -> LookupStrategy {
        if self.hot.is_empty() { LookupStrategy::Twin } else { hot_strategy(&self.hot) }
    }

    fn cost_ns(&self, _: MapType, shares: &[f64], _: f64) -> f64 {
        cost::compare_cost(&shares[..self.hot.len().min(shares.len())], cost::TWIN)
    }

    fn entries(&self) -> Option<&[LookupEntry]> {
        Some(&self.hot)
    }

    fn shadow_map(&self) -> Option<Map> {
        Some(self.map)
    }
}

/// The word that pieces make, the lowest first.
fn joined(evaluator: &mut PartialEvaluator<'_>, pieces: &[(KeyPiece, AbstractValue)], out: Block) -> Value {
    let mut word: Option<Value> = None;
    let first = pieces.first().map_or(0, |(p, _)| p.offset);
    for &(piece, abs) in pieces {
        let mut part = evaluator.materialize(abs, out);
        if piece.size != Size::W {
            // Stores take the lowest bytes of what may be more.
            let mask = i64::from(u32::MAX >> (32 - piece.size.bits()));
            let mask = evaluator.value(out, Op::Const { value: mask }, &[], Type::I64);
            part =
                evaluator.value(out, Op::Alu { op: AluOp::And, width: Width::W32 }, &[part, mask], Type::I32);
        }
        let by = 8 * i64::from(piece.offset - first);
        if by > 0 {
            let by = evaluator.value(out, Op::Const { value: by }, &[], Type::I64);
            part =
                evaluator.value(out, Op::Alu { op: AluOp::Lsh, width: Width::W32 }, &[part, by], Type::I32);
        }
        let or = Op::Alu { op: AluOp::Or, width: Width::W32 };
        word = Some(match word {
            Some(word) => evaluator.value(out, or, &[word, part], Type::I32),
            None => part,
        });
    }
    word.unwrap_or_else(|| evaluator.value(out, Op::Undef {}, &[], Type::I32))
}
