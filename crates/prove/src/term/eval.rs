//! The value of a term, given the values of its parts.

use millstream_isa::semantics::{Concrete, Domain};

use super::{Node, T, Terms, mask, signed};

impl Terms {
    /// The value of `t` for these values of its parts: truth values are 0 and 1, memories and tokens any
    /// numbers. [`None`] for a term without a meaning of its own.
    pub(crate) fn combine(&self, t: T, v: impl Fn(T) -> u64) -> Option<u64> {
        let bits = self.bits(t);
        Some(match self.node(t) {
            Node::App(..) | Node::Select(..) | Node::Store(..) => return None,
            Node::Truth(b) => u64::from(*b),
            Node::Const(k) => *k,
            Node::Prim(op, a, b) => Concrete.prim(*op, bits, &v(*a), &v(*b)),
            Node::Sum(list, k) => {
                list.iter().fold(*k, |sum, (t, c)| sum.wrapping_add(v(*t).wrapping_mul(*c))) & mask(bits)
            }
            Node::Concat(list) => list.iter().fold(0, |all, p| match self.bits(*p) {
                64 => v(*p),
                n => all << n | v(*p),
            }),
            Node::Extract(a, hi, lo) => v(*a) >> lo & mask(u32::from(hi - lo) + 1),
            Node::SignExtend(a) => signed(self.bits(*a), v(*a)) as u64 & mask(bits),
            Node::Compare(p, a, b) => {
                let n = match self.bits(*a) {
                    0 => 64,
                    n => n,
                };
                u64::from(Concrete.compare(*p, n, &v(*a), &v(*b)))
            }
            Node::Ite(c, a, b) => v(if v(*c) != 0 { *a } else { *b }),
        })
    }
}
