//! Lookups in shadow tables, and in the map itself where its shadow table is out of date.

use millstream_ir::{AluOp, Block, BlockCall, Map, MemFlags, Op, Prov, Size, Type, Value, Width};
use smallvec::SmallVec;

use super::eval::{AbstractValue, LookupValue, ValueAddress, ValueBytes};
use super::partial_deopt;
use super::partial_eval::{AbstractEnv, CopyPosition, PartialEvaluator};
use super::perfect_hash::PerfectHashLayout;
use super::planned_lookup::PlannedLookup;
use super::shadow_table::{ShadowCapacity, TrieAccess};

/// A shadow table, as seen by the code of one lookup.
pub(super) enum ShadowAccess {
    Trie(TrieAccess),
    /// Rows in a map, and the pieces of the key with which they are searched.
    Rows(Map, PerfectHashLayout, SmallVec<[AbstractValue; 4]>),
}

/// The capacity of the shadow table that a map holds for a lookup. `None` if the lookup cannot do with a copy of
/// an entry. `length` is that of all prefixes, if there is only one.
pub(super) fn capacity(
    evaluator: &PartialEvaluator<'_>,
    lookup: &PlannedLookup<'_>,
    place: Map,
    length: Option<u32>,
) -> Option<ShadowCapacity> {
    let maps = &evaluator.original.module.maps;
    let sides = evaluator.plans.plan.guard.map_or(1, |g| g.sides);
    let fits = !lookup.needs_address(evaluator);
    fits.then(|| ShadowCapacity::of(&maps[lookup.map], &maps[place], sides, length))?
}

/// Emits a lookup in a shadow table; returns the block to continue in if it finds something. `None` if the key
/// is not known in pieces. In the block `outdated`, if there is one, the lookup is made in the map itself.
pub(super) fn emit_shadow_lookup(
    evaluator: &mut PartialEvaluator<'_>,
    shadow: &ShadowAccess,
    lookup: &PlannedLookup<'_>,
    outdated: Option<Block>,
    env: &mut AbstractEnv,
) -> Option<Block> {
    let &PlannedLookup { inst, map, at, .. } = lookup;
    let words = match shadow {
        ShadowAccess::Trie(_) => Vec::new(),
        ShadowAccess::Rows(_, shape, pieces) => {
            evaluator.key_words(lookup.layout, pieces, shape.row.key, at.out)?
        }
    };
    let [held, found, absent] = std::array::from_fn(|_| evaluator.new_block());
    let (value, ty) = match *shadow {
        ShadowAccess::Trie(trie) => {
            let cell = evaluator.out.add_param(held, Type::I32);
            evaluator.trie(trie, at.out, held, absent);
            match trie.has_values() {
                true => (evaluator.value_in_trie(trie, map, cell, held), Type::Ptr(Prov::MapValue(map))),
                false => (cell, Type::I32),
            }
        }
        ShadowAccess::Rows(place, shape, _) => {
            (evaluator.rows(place, shape, &words, [at.out, held, absent]), Type::Ptr(Prov::MapValue(place)))
        }
    };
    let it = evaluator.out.add_param(found, ty);
    evaluator.emit(held, Op::Jump {}, &[], &[BlockCall::with(found, [value])], Type::Any);
    if let Some(out) = outdated {
        let at = CopyPosition { out, ..at };
        let (entry, there) =
            partial_deopt::emit_map_lookup(evaluator, inst, map, lookup.key, absent, at, env);
        let entry = as_in_shadow(evaluator, shadow, entry, ty, there);
        evaluator.emit(there, Op::Jump {}, &[], &[BlockCall::with(found, [entry])], Type::Any);
    }
    let mut without = env.clone();
    evaluator.define(inst, AbstractValue::Const(0), &mut without);
    evaluator.region(lookup.behind(absent), without);
    let (bytes, address) = match shadow {
        ShadowAccess::Trie(trie) if trie.has_values() => (ValueBytes::There, ValueAddress::Held(it)),
        ShadowAccess::Trie(_) => (ValueBytes::Held(it), ValueAddress::None),
        ShadowAccess::Rows(..) => (ValueBytes::Copy(it), ValueAddress::None),
    };
    let known = evaluator.lookups.known.push(LookupValue { map, origin: inst, bytes, address });
    evaluator.define(inst, AbstractValue::Ptr(known, 0), env);
    Some(found)
}

/// An entry of the map itself, as a shadow table would give it.
fn as_in_shadow(
    evaluator: &mut PartialEvaluator<'_>,
    shadow: &ShadowAccess,
    entry: Value,
    ty: Type,
    out: Block,
) -> Value {
    match shadow {
        ShadowAccess::Trie(trie) if trie.has_values() => entry,
        ShadowAccess::Trie(_) => {
            let load = Op::Load { size: Size::W, sext: false, offset: 0, flags: MemFlags::default() };
            evaluator.value(out, load, &[entry], Type::I32)
        }
        // Where the row would begin.
        ShadowAccess::Rows(_, shape, _) => {
            let before = evaluator.constant(-i64::from(shape.row.value_at()), out);
            evaluator.value(out, Op::Alu { op: AluOp::Add, width: Width::W64 }, &[entry, before], ty)
        }
    }
}
