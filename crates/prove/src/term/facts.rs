//! Facts about terms without a solver: bits that are always zero, and the literals that a condition implies.

use std::collections::BTreeSet;

use millstream_isa::semantics::Prim;
use rustc_hash::FxHashMap;

use super::{Sort, TermId, TermNode, TermPool, mask};

/// Most literals of a condition that are collected.
pub(crate) const MOST_LITERALS: usize = 64;

/// An atom, and true if it holds.
pub(crate) type Literal = (TermId, bool);

/// Bits that may be set.
pub(crate) fn possible(pool: &mut TermPool, root: TermId) -> u64 {
    let mut stack = vec![(root, false)];
    while let Some((t, parts_done)) = stack.pop() {
        if pool.possible.contains_key(&t) {
            continue;
        }
        if parts_done {
            let bits = possible_now(pool, t);
            pool.possible.insert(t, bits);
            continue;
        }
        stack.push((t, true));
        if matches!(pool.sort(t), Sort::Bits(_))
            && !matches!(pool.node(t), TermNode::App(..) | TermNode::Select(..))
        {
            stack.extend(pool.parts_of(t).into_iter().map(|p| (p, false)));
        }
    }
    pool.possible[&root]
}

/// The same for a term whose parts are known.
fn possible_now(pool: &TermPool, t: TermId) -> u64 {
    let Sort::Bits(bits) = pool.sort(t) else { return 0 };
    let all = mask(u32::from(bits));
    let of = |t: TermId| pool.possible.get(&t).copied().unwrap_or(u64::MAX);
    match pool.node(t) {
        TermNode::Const(k) => *k,
        TermNode::Ite(_, a, b) => of(*a) | of(*b),
        TermNode::Concat(parts) => parts.iter().fold(0, |sum, p| match pool.bits(*p) {
            64 => of(*p),
            n => sum << n | of(*p),
        }),
        TermNode::Extract(a, hi, lo) => of(*a) >> lo & mask(u32::from(hi - lo) + 1),
        TermNode::Sum(list, k) => {
            // As long as nothing overflows, the sum is no larger than the sum of the bounds.
            let bound = list.iter().try_fold(*k, |sum, (t, c)| of(*t).checked_mul(*c)?.checked_add(sum));
            match bound {
                Some(bound) if bound <= all => all_below(bound),
                _ => all,
            }
        }
        TermNode::Prim(Prim::UDiv, a, b) if pool.value(*b).is_some_and(|k| k > 0) => {
            all_below(of(*a) / pool.value(*b).unwrap_or(1))
        }
        TermNode::Prim(Prim::And, a, b) => of(*a) & of(*b),
        TermNode::Prim(Prim::Or | Prim::Xor, a, b) => of(*a) | of(*b),
        _ => all,
    }
}

/// Literals that a condition implies.
pub(crate) fn implied(pool: &TermPool, condition: TermId) -> BTreeSet<Literal> {
    implied_by(pool, condition, &mut FxHashMap::default()).unwrap_or_default()
}

/// [`None`] if the condition never holds: it implies everything.
fn implied_by(
    pool: &TermPool,
    c: TermId,
    known: &mut FxHashMap<TermId, Option<BTreeSet<Literal>>>,
) -> Option<BTreeSet<Literal>> {
    match pool.node(c) {
        TermNode::Truth(true) => return Some(BTreeSet::new()),
        TermNode::Truth(false) => return None,
        TermNode::Ite(..) => {}
        _ => return Some(BTreeSet::from([(c, true)])),
    }
    if let Some(out) = known.get(&c) {
        return out.clone();
    }
    let TermNode::Ite(x, yes, no) = *pool.node(c) else { return None };
    debug_assert_eq!(pool.sort(c), Sort::Bool);
    let with = |mut set: BTreeSet<Literal>, literal| {
        if set.len() < MOST_LITERALS {
            set.insert(literal);
        }
        set
    };
    let out = match (implied_by(pool, yes, known), implied_by(pool, no, known)) {
        (None, None) => None,
        (Some(set), None) => Some(with(set, (x, true))),
        (None, Some(set)) => Some(with(set, (x, false))),
        (Some(a), Some(b)) => Some(a.intersection(&b).copied().collect()),
    };
    known.insert(c, out.clone());
    out
}

/// All bits up to the highest one of a number.
fn all_below(n: u64) -> u64 {
    if n == 0 { 0 } else { u64::MAX >> n.leading_zeros() }
}
