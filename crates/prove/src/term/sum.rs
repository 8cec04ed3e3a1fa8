//! Sums: addition, subtraction, multiplication by constants.

use millstream_isa::Cond;

use super::{TermId, TermNode, TermPool, facts, mask};

/// A sum being put together: terms with coefficients, and a constant.
type LinearSum = (Vec<(TermId, u64)>, u64);

fn parts(pool: &mut TermPool, t: TermId) -> LinearSum {
    let (bits, whole) = (pool.bits(t), (vec![(t, 1)], 0));
    match pool.node(t) {
        TermNode::Const(k) => (Vec::new(), *k),
        TermNode::Sum(terms, k) => (terms.to_vec(), *k),
        // A narrowed sum is a sum of its original width here.
        TermNode::Concat(list) if list.len() == 2 && pool.value(list[0]) == Some(0) => {
            let TermNode::Sum(terms, k) = pool.node(list[1]) else { return whole };
            let (inner, terms, k) = (pool.bits(list[1]), terms.to_vec(), *k);
            if bound(pool, &terms, k).is_none_or(|bound| bound > mask(inner)) {
                return whole;
            }
            (terms.into_iter().map(|(t, c)| (pool.zero_extend_to(t, bits), c)).collect(), k)
        }
        _ => whole,
    }
}

/// Upper bound of a sum, if it is less than 2^64; no coefficient counts as negative.
fn bound(pool: &mut TermPool, terms: &[(TermId, u64)], k: u64) -> Option<u64> {
    terms.iter().try_fold(k, |sum, (t, c)| facts::possible(pool, *t).checked_mul(*c)?.checked_add(sum))
}

/// A sum with few possible bits as a sum of just that width, so that it is the same in whatever width it
/// was computed.
fn narrowed(pool: &mut TermPool, bits: u32, terms: &[(TermId, u64)], k: u64) -> Option<TermId> {
    let width = 64 - bound(pool, terms, k)?.leading_zeros();
    if width == 0 || width >= bits || terms.iter().any(|(t, _)| pool.leading_zeros(*t) < bits - width) {
        return None;
    }
    let terms = terms.iter().map(|(t, c)| (pool.extract(*t, width - 1, 0), *c)).collect();
    let sum = collect(pool, width, terms, k);
    Some(pool.zero_extend_to(sum, bits))
}

/// The sum of `a` and `factor` times `b`.
pub(super) fn sum(pool: &mut TermPool, bits: u32, a: TermId, b: TermId, factor: u64) -> TermId {
    let (mut terms, mut k) = parts(pool, a);
    let (more, l) = parts(pool, b);
    terms.extend(more.into_iter().map(|(t, c)| (t, c.wrapping_mul(factor))));
    k = k.wrapping_add(l.wrapping_mul(factor));
    collect(pool, bits, terms, k)
}

/// A sum from its parts, in any order.
pub(super) fn collect(pool: &mut TermPool, bits: u32, mut terms: Vec<(TermId, u64)>, k: u64) -> TermId {
    terms.sort_unstable_by_key(|(t, _)| *t);
    let mut out: Vec<(TermId, u64)> = Vec::with_capacity(terms.len());
    for (t, c) in terms {
        match out.last_mut() {
            Some((last, sum)) if *last == t => *sum = sum.wrapping_add(c),
            _ => out.push((t, c)),
        }
    }
    for (_, c) in &mut out {
        *c &= mask(bits);
    }
    out.retain(|(_, c)| *c != 0);
    let k = k & mask(bits);
    match out[..] {
        [] => pool.constant(bits, k),
        [(t, 1)] if k == 0 => t,
        // Multiplications by powers of two only move bits.
        [(t, c)] if k == 0 && c.is_power_of_two() => pool.shl_const(bits, t, c.trailing_zeros()),
        _ => match narrowed(pool, bits, &out, k) {
            Some(narrow) => narrow,
            None => pool.vector(bits, TermNode::Sum(out.into(), k)),
        },
    }
}

/// The product.
pub(super) fn mul(pool: &mut TermPool, bits: u32, a: TermId, b: TermId) -> TermId {
    let (a, b) = if pool.value(a).is_some() { (b, a) } else { (a, b) };
    if let Some(c) = pool.value(b) {
        let (terms, k) = parts(pool, a);
        let terms = terms.into_iter().map(|(t, d)| (t, d.wrapping_mul(c))).collect();
        return collect(pool, bits, terms, k.wrapping_mul(c));
    }
    let (a, b) = if a <= b { (a, b) } else { (b, a) };
    pool.vector(bits, TermNode::Prim(millstream_isa::semantics::Prim::Mul, a, b))
}

/// The difference of two vectors, if it is the same under every assignment.
pub(crate) fn distance(pool: &mut TermPool, a: TermId, b: TermId) -> Option<u64> {
    if a == b {
        return Some(0);
    }
    let bits = pool.bits(a);
    let (mut terms, mut k) = parts(pool, a);
    let (more, l) = parts(pool, b);
    if terms.len() != more.len() {
        return None;
    }
    terms.extend(more.into_iter().map(|(t, c)| (t, c.wrapping_neg())));
    k = k.wrapping_sub(l);
    let difference = collect(pool, bits, terms, k);
    pool.value(difference)
}

/// Bound of numbers whose differences never overflow 64 bits.
const LARGE: u64 = 1 << 62;

/// The unsigned comparison `a < b` as a signed comparison of one number of 64 bits with a constant: of the
/// difference without its constant part. Comparisons that differ only in constants have the same number. `None` if
/// the difference may overflow, or is constant.
pub(crate) fn order(pool: &mut TermPool, a: TermId, b: TermId) -> Option<(Cond, TermId, u64)> {
    if [a, b].iter().any(|t| facts::possible(pool, *t) >= LARGE) {
        return None;
    }
    let [a, b] = [a, b].map(|t| pool.zero_extend_to(t, 64));
    let (mut terms, k) = parts(pool, a);
    let (more, l) = parts(pool, b);
    let k = k.wrapping_sub(l);
    if k.cast_signed().unsigned_abs() >= LARGE {
        return None;
    }
    terms.extend(more.into_iter().map(|(t, c)| (t, c.wrapping_neg())));
    let number = collect(pool, 64, terms, 0);
    if pool.value(number).is_some() {
        return None;
    }
    match pool.node(number) {
        // Of a number and its negation, the one whose first coefficient is positive.
        TermNode::Sum(list, 0) if list[0].1.cast_signed() < 0 => {
            let terms = list.iter().map(|(t, c)| (*t, c.wrapping_neg())).collect();
            Some((Cond::Sgt, collect(pool, 64, terms, 0), k))
        }
        _ => Some((Cond::Slt, number, k.wrapping_neg())),
    }
}
