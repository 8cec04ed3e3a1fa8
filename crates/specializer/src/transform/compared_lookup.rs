//! Lookups as comparisons of their keys with those of entries: each entry leads to a copy of what follows the
//! lookup, for its value.

use millstream_ir::{Block, BlockCall, Op, SwapKind, Type};
use rustc_hash::{FxHashMap, FxHashSet};

use super::decision_tree::{self, DecisionCase};
use super::eval::{AbstractValue, LookupValue, ValueAddress, ValueBytes, read};
use super::lookup_plan::LookupEntry;
use super::matcher::{KeyGroup, KeyMatcher, MatchMethod, groups, indices};
use super::partial_eval::{AbstractEnv, BlockContinuation, MergePoint, PartialEvaluator, is_single};
use super::plan::SiteReport;
use super::planned_lookup::PlannedLookup;
use super::shadow_access::{ShadowAccess, emit_shadow_lookup};
use super::{lpm, partial_deopt};

/// Copies of what follows one lookup.
const COPIES: usize = 64;

/// Treatment of keys that are not among those compared.
pub(super) enum UnknownKeys {
    /// The map has no entry for them.
    Absent,
    /// They are looked up in the map.
    Map,
    /// They are looked up in a shadow table.
    Shadow(ShadowAccess),
}

/// Emits code for entries. `None` if the key cannot be compared with them.
pub(super) fn emit_compared(
    evaluator: &mut PartialEvaluator<'_>,
    lookup: &PlannedLookup<'_>,
    entries: &[LookupEntry],
    others: &UnknownKeys,
    env: &mut AbstractEnv,
) -> Option<BlockContinuation> {
    let &PlannedLookup { site, inst, map, layout, args, at, .. } = lookup;
    let (decl, most) = (&evaluator.original.module.maps[map], evaluator.plans.plan.budget.tests);
    let whole = matches!(others, UnknownKeys::Absent);
    let matcher = KeyMatcher::new(decl, layout, args, whole, entries, most)?;
    let asked = match others {
        UnknownKeys::Shadow(_) => partial_deopt::emit_deopt_test(evaluator, map, at.out),
        UnknownKeys::Absent | UnknownKeys::Map => None,
    };
    let lookup = &asked.map_or(*lookup, |[in_step, _]| lookup.in_block(in_step));
    let mut report = SiteReport { entries: matcher.entries.len() as u32, ..SiteReport::default() };
    let groups = groups(&matcher.entries);
    let leaves = leaves(evaluator, lookup, &groups, env, &mut report);
    let default = evaluator.new_block();
    comparisons(evaluator, &matcher, (&groups, &leaves), lookup.at.out, default);
    evaluator.note(site, report);
    // Misses are those of keys that were expected.
    let counts = match others {
        UnknownKeys::Absent => false,
        UnknownKeys::Map => true,
        UnknownKeys::Shadow(_) => !entries.is_empty(),
    };
    let default = if counts { evaluator.count_miss(site, default) } else { default };
    let outdated = asked.map(|[_, outdated]| outdated);
    if let UnknownKeys::Shadow(shadow) = others
        && let Some(found) = emit_shadow_lookup(evaluator, shadow, &lookup.in_block(default), outdated, env)
    {
        return Some(BlockContinuation::On(found));
    }
    if let Some(outdated) = outdated {
        evaluator.emit(outdated, Op::Jump {}, &[], &[BlockCall::new(default)], Type::Any);
    }
    // Keys without a leaf: absent for certain, or to be looked up.
    let abs = match whole && report.dropped == 0 {
        true => AbstractValue::Const(0),
        false => AbstractValue::Val(lookup.emit(evaluator, default)),
    };
    evaluator.define(inst, abs, env);
    Some(BlockContinuation::On(default))
}

/// Targets of the groups: a copy of the code after the lookup for each of the hottest, one for the rest.
/// `None` for groups that are left to the real lookup.
fn leaves(
    evaluator: &mut PartialEvaluator<'_>,
    lookup: &PlannedLookup<'_>,
    groups: &[KeyGroup<'_>],
    env: &AbstractEnv,
    report: &mut SiteReport,
) -> Vec<Option<Block>> {
    let mut leaves = vec![None; groups.len()];
    let mut heat: u64 = groups.iter().map(|g| g.heat + 1).sum();
    let limit = evaluator.limit;
    let mut rest = Vec::new();
    for (n, group) in groups.iter().enumerate() {
        let made = evaluator.out.insts.len();
        if n >= COPIES || made >= limit {
            rest.push(n);
            continue;
        }
        // Nested copies may use the share of this group.
        let share = (limit - made) as u128 * u128::from(group.heat + 1) / u128::from(heat.max(1));
        heat -= (group.heat + 1).min(heat);
        evaluator.limit = made + (share as usize).max((limit - made) / (2 * (groups.len() - n)));
        leaves[n] = Some(leaf(evaluator, lookup, group, env));
        evaluator.limit = limit;
        report.copies += 1;
    }
    let mergeable = |n: &usize| groups[*n].value.is_some();
    // Calls with one of several maps are slower, each by a table of functions, than with one that is
    // known.
    let keeps_lookup = evaluator.is_outer(lookup.map)
        || lookup.needs_address(evaluator) && !is_single(evaluator.original.module, lookup.map);
    let (merged, dropped): (Vec<usize>, Vec<usize>) =
        rest.into_iter().partition(|n| mergeable(n) && !keeps_lookup);
    report.merged = merged.iter().map(|&n| groups[n].entries.len() as u32).sum();
    report.dropped = dropped.iter().map(|&n| groups[n].entries.len() as u32).sum();
    if !merged.is_empty() {
        merge(evaluator, lookup, (groups, &merged), env, &mut leaves);
    }
    leaves
}

/// A copy of what follows for one value.
fn leaf(
    evaluator: &mut PartialEvaluator<'_>,
    lookup: &PlannedLookup<'_>,
    group: &KeyGroup<'_>,
    env: &AbstractEnv,
) -> Block {
    let &PlannedLookup { inst, map, key, .. } = lookup;
    let start = evaluator.new_block();
    let mut env = env.clone();
    let Some(value) = group.value else {
        evaluator.define(inst, AbstractValue::Const(0), &mut env);
        evaluator.region(lookup.behind(start), env);
        return start;
    };
    let (address, out) = evaluator.address_of(inst, map, value, key, lookup.in_block(start).at, &env);
    let known = LookupValue { map, origin: inst, bytes: ValueBytes::One(value.to_vec()), address };
    let known = evaluator.lookups.known.push(known);
    evaluator.define(inst, AbstractValue::Ptr(known, 0), &mut env);
    evaluator.region(lookup.behind(out), env);
    start
}

/// One copy of what follows for several values, whose fields are its parameters.
fn merge(
    evaluator: &mut PartialEvaluator<'_>,
    lookup: &PlannedLookup<'_>,
    (groups, merged): (&[KeyGroup<'_>], &[usize]),
    env: &AbstractEnv,
    leaves: &mut [Option<Block>],
) {
    let &PlannedLookup { inst, map, .. } = lookup;
    let head = evaluator.new_block();
    let merge = evaluator.lookups.merges.push(MergePoint { head });
    let values = merged.iter().map(|&n| groups[n].value.unwrap_or_default().to_vec()).collect();
    let address =
        if is_single(evaluator.original.module, map) { ValueAddress::Direct } else { ValueAddress::None };
    let known = LookupValue { map, origin: inst, bytes: ValueBytes::Merged(merge, values), address };
    let known = evaluator.lookups.known.push(known);
    let mut env = env.clone();
    evaluator.define(inst, AbstractValue::Ptr(known, 0), &mut env);
    // No room is left: lookups inside stay as they are unless their keys are known.
    let limit = std::mem::replace(&mut evaluator.limit, 0);
    evaluator.region(lookup.behind(head), env);
    evaluator.limit = limit;
    let starts: Vec<Block> = merged.iter().map(|_| evaluator.new_block()).collect();
    evaluator.lead_to(head, &starts);
    merged.iter().zip(starts).for_each(|(&group, start)| leaves[group] = Some(start));
}

/// Comparisons that lead each entry to its leaf.
fn comparisons(
    evaluator: &mut PartialEvaluator<'_>,
    matcher: &KeyMatcher<'_>,
    (groups, leaves): (&[KeyGroup<'_>], &[Option<Block>]),
    out: Block,
    default: Block,
) {
    let by_value: FxHashMap<Option<&[u8]>, Option<Block>> =
        groups.iter().zip(leaves).map(|(g, leaf)| (g.value, *leaf)).collect();
    let target = |entry: &LookupEntry| by_value.get(&entry.value.as_deref()).copied().flatten();
    let words = decision_tree::words(evaluator, &matcher.words, out);
    if let MatchMethod::Prefixes = matcher.how {
        let prefixes = matcher.entries.iter().map(|e| (*e, target(e).unwrap_or(default)));
        let intervals = lpm::intervals(prefixes, default);
        let (word, size) = words[0];
        let op = Op::Swap { kind: SwapKind::ToBe, bits: size.bits() as u8 };
        let word = evaluator.value(out, op, &[word], Type::int(size.bits()));
        return decision_tree::intervals(evaluator, (word, size), &intervals, out);
    }
    let rows = matcher.entries.iter().filter_map(|e| {
        let key = matcher
            .pieces
            .iter()
            .map(|p| read(&e.key, u32::from(p.offset), p.size, false).unwrap_or(0) as u64);
        Some(DecisionCase { key: key.collect(), heat: e.heat, target: target(e)? })
    });
    let mut rows: Vec<DecisionCase> = rows.collect();
    if let MatchMethod::Indices = matcher.how {
        rows.sort_by_key(|r| r.key[0]);
        let intervals = indices(&rows, default);
        return decision_tree::intervals(evaluator, words[0], &intervals, out);
    }
    let mut seen = FxHashSet::default();
    rows.retain(|r| seen.insert(r.key.clone()));
    decision_tree::exact(evaluator, &words, rows, out, default);
}
