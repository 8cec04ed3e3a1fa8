//! Quotients of numbers by constants: compilers turn them into products, whose upper bits are the quotient.

use millstream_isa::semantics::Prim;

use super::{TermId, TermNode, TermPool, facts, mask};

/// The quotient of a number and a constant, of as few bits as the number may have set.
pub(super) fn quotient(pool: &mut TermPool, bits: u32, t: TermId, by: u64) -> TermId {
    let used = 64 - facts::possible(pool, t).leading_zeros();
    if by > facts::possible(pool, t) {
        return pool.constant(bits, 0);
    }
    let number = pool.extract(t, used - 1, 0);
    let by = pool.constant(used, by);
    let quotient = pool.vector(used, TermNode::Prim(Prim::UDiv, number, by));
    let used = 64 - facts::possible(pool, quotient).leading_zeros();
    let low = pool.extract(quotient, used - 1, 0);
    pool.zero_extend_to(low, bits)
}

/// The bits from `lo` up to `hi` of a product with a constant, if they are those of a quotient.
///
/// With `c * d = 2^lo + e` the product `c * t`, divided by `2^lo`, is `t / d + e * t / (d * 2^lo)`: as
/// long as `e * t` is less than `2^lo` this has the same integer part as `t / d`.
pub(super) fn product_as_quotient(pool: &mut TermPool, t: TermId, hi: u32, lo: u32) -> Option<TermId> {
    let TermNode::Sum(list, 0) = pool.node(t) else { return None };
    let [(number, factor)] = list[..] else { return None };
    let (bits, one) = (pool.bits(t), 1u128 << lo);
    let (c, most) = (u128::from(factor), u128::from(facts::possible(pool, number)));
    let by = one.div_ceil(c);
    if lo == 0 || by < 3 || c * most > u128::from(mask(bits)) || (c * by - one) * most >= one {
        return None;
    }
    let quotient = quotient(pool, bits, number, by as u64);
    Some(pool.extract(quotient, hi - lo, 0))
}
