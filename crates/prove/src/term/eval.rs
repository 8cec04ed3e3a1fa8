//! The value of a term, given the values of its parts.

use millstream_isa::semantics::{ConcreteDomain, Domain};

use super::{TermId, TermNode, TermPool, mask, signed};

/// The value of `t` for these values of its parts: truth values are 0 and 1, memories and tokens any
/// numbers. [`None`] for a term without a meaning of its own.
pub(crate) fn combine(pool: &TermPool, t: TermId, v: impl Fn(TermId) -> u64) -> Option<u64> {
    let bits = pool.bits(t);
    Some(match pool.node(t) {
        TermNode::App(..) | TermNode::Select(..) | TermNode::Store(..) => return None,
        TermNode::Truth(b) => u64::from(*b),
        TermNode::Const(k) => *k,
        TermNode::Prim(op, a, b) => ConcreteDomain.prim(*op, bits, &v(*a), &v(*b)),
        TermNode::Sum(list, k) => {
            list.iter().fold(*k, |sum, (t, c)| sum.wrapping_add(v(*t).wrapping_mul(*c))) & mask(bits)
        }
        TermNode::Concat(list) => list.iter().fold(0, |all, p| match pool.bits(*p) {
            64 => v(*p),
            n => all << n | v(*p),
        }),
        TermNode::Extract(a, hi, lo) => v(*a) >> lo & mask(u32::from(hi - lo) + 1),
        TermNode::SignExtend(a) => signed(pool.bits(*a), v(*a)) as u64 & mask(bits),
        TermNode::Compare(p, a, b) => {
            let n = match pool.bits(*a) {
                0 => 64,
                n => n,
            };
            u64::from(ConcreteDomain.compare(*p, n, &v(*a), &v(*b)))
        }
        TermNode::Ite(c, a, b) => v(if v(*c) != 0 { *a } else { *b }),
    })
}
