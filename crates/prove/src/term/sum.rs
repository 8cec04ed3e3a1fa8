//! Sums: addition, subtraction, multiplication by constants.

use super::{TermId, TermNode, TermPool, mask};

/// A sum being put together: terms with coefficients, and a constant.
type LinearSum = (Vec<(TermId, u64)>, u64);

impl TermPool {
    fn parts(&mut self, t: TermId) -> LinearSum {
        let (bits, whole) = (self.bits(t), (vec![(t, 1)], 0));
        match self.node(t) {
            TermNode::Const(k) => (Vec::new(), *k),
            TermNode::Sum(terms, k) => (terms.to_vec(), *k),
            // A narrowed sum is a sum of its original width here.
            TermNode::Concat(list) if list.len() == 2 && self.value(list[0]) == Some(0) => {
                let TermNode::Sum(terms, k) = self.node(list[1]) else { return whole };
                let (inner, terms, k) = (self.bits(list[1]), terms.to_vec(), *k);
                if self.bound(&terms, k).is_none_or(|bound| bound > mask(inner)) {
                    return whole;
                }
                (terms.into_iter().map(|(t, c)| (self.zero_extend_to(t, bits), c)).collect(), k)
            }
            _ => whole,
        }
    }

    /// Upper bound of a sum, if it is less than 2^64; no coefficient counts as negative.
    fn bound(&mut self, terms: &[(TermId, u64)], k: u64) -> Option<u64> {
        terms.iter().try_fold(k, |sum, (t, c)| self.possible(*t).checked_mul(*c)?.checked_add(sum))
    }

    /// A sum with few possible bits as a sum of just that width, so that it is the same in whatever width it
    /// was computed.
    fn narrowed(&mut self, bits: u32, terms: &[(TermId, u64)], k: u64) -> Option<TermId> {
        let width = 64 - self.bound(terms, k)?.leading_zeros();
        if width == 0 || width >= bits || terms.iter().any(|(t, _)| self.leading_zeros(*t) < bits - width) {
            return None;
        }
        let terms = terms.iter().map(|(t, c)| (self.extract(*t, width - 1, 0), *c)).collect();
        let sum = self.collect(width, terms, k);
        Some(self.zero_extend_to(sum, bits))
    }

    /// The sum of `a` and `factor` times `b`.
    pub(super) fn sum(&mut self, bits: u32, a: TermId, b: TermId, factor: u64) -> TermId {
        let (mut terms, mut k) = self.parts(a);
        let (more, l) = self.parts(b);
        terms.extend(more.into_iter().map(|(t, c)| (t, c.wrapping_mul(factor))));
        k = k.wrapping_add(l.wrapping_mul(factor));
        self.collect(bits, terms, k)
    }

    /// A sum from its parts, in any order.
    pub(super) fn collect(&mut self, bits: u32, mut terms: Vec<(TermId, u64)>, k: u64) -> TermId {
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
            [] => self.constant(bits, k),
            [(t, 1)] if k == 0 => t,
            // Multiplications by powers of two only move bits.
            [(t, c)] if k == 0 && c.is_power_of_two() => self.shl_const(bits, t, c.trailing_zeros()),
            _ => match self.narrowed(bits, &out, k) {
                Some(narrow) => narrow,
                None => self.vector(bits, TermNode::Sum(out.into(), k)),
            },
        }
    }

    /// The product.
    pub(super) fn mul(&mut self, bits: u32, a: TermId, b: TermId) -> TermId {
        let (a, b) = if self.value(a).is_some() { (b, a) } else { (a, b) };
        if let Some(c) = self.value(b) {
            let (terms, k) = self.parts(a);
            let terms = terms.into_iter().map(|(t, d)| (t, d.wrapping_mul(c))).collect();
            return self.collect(bits, terms, k.wrapping_mul(c));
        }
        let (a, b) = if a <= b { (a, b) } else { (b, a) };
        self.vector(bits, TermNode::Prim(millstream_isa::semantics::Prim::Mul, a, b))
    }

    /// The difference of two vectors, if it is the same under every assignment.
    pub(crate) fn distance(&mut self, a: TermId, b: TermId) -> Option<u64> {
        if a == b {
            return Some(0);
        }
        let bits = self.bits(a);
        let (mut terms, mut k) = self.parts(a);
        let (more, l) = self.parts(b);
        if terms.len() != more.len() {
            return None;
        }
        terms.extend(more.into_iter().map(|(t, c)| (t, c.wrapping_neg())));
        k = k.wrapping_sub(l);
        let difference = self.collect(bits, terms, k);
        self.value(difference)
    }
}
