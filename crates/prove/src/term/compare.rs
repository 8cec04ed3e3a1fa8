//! Comparisons.

use super::choice::LiftedOp;
use super::{Sort, TermId, TermNode, TermPool, mask, signed};
use millstream_isa::semantics::{ConcreteDomain, Domain, Pred, Prim};

/// Prefix of the names of functions that return the entry of a map for a state of its entries and a key: they
/// are injective in the key.
pub(crate) const ENTRY: &str = "entry of ";
/// The same prefix for maps in which several keys find one entry.
pub(crate) const MATCH: &str = "match in ";
/// Prefix of the names of functions that tell if there is an entry.
pub(crate) const FOUND: &str = "found in ";
/// Prefix of the names of addresses.
pub(crate) const ADDRESS: &str = "address of ";

impl TermPool {
    /// Equality of `a` and `b`, of any sort.
    pub(crate) fn equal(&mut self, a: TermId, b: TermId) -> TermId {
        if a == b {
            return self.truth(true);
        }
        match self.sort(a) {
            Sort::Bits(_) => self.compare_terms(Pred::Eq, a, b),
            Sort::Bool => {
                let opposite = self.not(b);
                self.ite(a, b, opposite)
            }
            Sort::Memory | Sort::Token => {
                let (a, b) = if a <= b { (a, b) } else { (b, a) };
                self.make(TermNode::Compare(Pred::Eq, a, b), Sort::Bool)
            }
        }
    }

    /// A comparison of two vectors of one width.
    pub(crate) fn compare_terms(&mut self, pred: Pred, a: TermId, b: TermId) -> TermId {
        let bits = self.bits(a);
        if let (Some(x), Some(y)) = (self.value(a), self.value(b)) {
            let answer = ConcreteDomain.compare(pred, bits, &x, &y);
            return self.truth(answer);
        }
        if let Some(t) = self.lift(LiftedOp::Compare(pred), a, b) {
            return t;
        }
        if !self.forms.normal && a != b {
            return self.make(TermNode::Compare(pred, a, b), Sort::Bool);
        }
        match pred {
            Pred::Eq => self.eq(bits, a, b),
            Pred::Ult => self.ult(bits, a, b),
            Pred::Ule => {
                let more = self.ult(bits, b, a);
                self.not(more)
            }
            Pred::Slt => self.slt(bits, a, b),
            Pred::Sle => {
                let more = self.slt(bits, b, a);
                self.not(more)
            }
        }
    }

    fn eq(&mut self, bits: u32, a: TermId, b: TermId) -> TermId {
        if let Some(d) = self.distance(a, b) {
            return self.truth(d == 0);
        }
        if let Some(t) = self.eq_entries(a, b) {
            return t;
        }
        let (a, b) = if self.value(a).is_some() { (b, a) } else { (a, b) };
        if let Some(k) = self.value(b)
            && let Some(t) = self.eq_const(bits, a, k)
        {
            return t;
        }
        if let Some(t) = self.eq_pieces(bits, a, b) {
            return t;
        }
        let (a, b) = if a <= b { (a, b) } else { (b, a) };
        self.make(TermNode::Compare(Pred::Eq, a, b), Sort::Bool)
    }

    /// Entries of a map at one time are equal if their keys are.
    fn eq_entries(&mut self, a: TermId, b: TermId) -> Option<TermId> {
        let (TermNode::App(f, x), TermNode::App(g, y)) = (self.node(a), self.node(b)) else { return None };
        if f != g || x.len() < 2 || x[0] != y[0] || !self.name(*f).starts_with(ENTRY) {
            return None;
        }
        let pairs: Vec<(TermId, TermId)> = x.iter().copied().zip(y.iter().copied()).skip(1).collect();
        let same: Vec<TermId> = pairs.into_iter().map(|(x, y)| self.equal(x, y)).collect();
        Some(self.and(&same))
    }

    fn eq_const(&mut self, bits: u32, a: TermId, k: u64) -> Option<TermId> {
        match self.node(a).clone() {
            TermNode::Sum(terms, l) if l != 0 => {
                let rest = self.collect(bits, terms.to_vec(), 0);
                let k = self.constant(bits, k.wrapping_sub(l));
                Some(self.eq(bits, rest, k))
            }
            // A difference: the order of the operands does not matter.
            TermNode::Sum(terms, 0)
                if k == 0
                    && terms.len() == 2
                    && terms[0].1.wrapping_add(terms[1].1) & mask(bits) == 0
                    && (terms[0].1 == 1 || terms[1].1 == 1) =>
            {
                Some(self.eq(bits, terms[0].0, terms[1].0))
            }
            TermNode::Prim(Prim::Or, x, y) if k == 0 => {
                let zero = self.constant(bits, 0);
                let (x, y) = (self.eq(bits, x, zero), self.eq(bits, y, zero));
                Some(self.and(&[x, y]))
            }
            TermNode::Prim(Prim::Xor, x, y) => match (self.value(x), self.value(y)) {
                (Some(l), _) => {
                    let k = self.constant(bits, k ^ l);
                    Some(self.eq(bits, y, k))
                }
                (_, Some(l)) => {
                    let k = self.constant(bits, k ^ l);
                    Some(self.eq(bits, x, k))
                }
                _ if k == 0 => Some(self.eq(bits, x, y)),
                _ => None,
            },
            TermNode::SignExtend(inner) => {
                let n = self.bits(inner);
                if signed(n, k & mask(n)) as u64 & mask(bits) != k {
                    return Some(self.truth(false));
                }
                let k = self.constant(n, k);
                Some(self.eq(n, inner, k))
            }
            _ => None,
        }
    }

    /// Equality of concatenations, piece by piece.
    fn eq_pieces(&mut self, bits: u32, a: TermId, b: TermId) -> Option<TermId> {
        let lengths = |terms: &TermPool, t: TermId| match terms.node(t) {
            TermNode::Concat(parts) => parts.iter().map(|p| terms.bits(*p)).collect(),
            _ => vec![bits],
        };
        let (x, y) = (lengths(self, a), lengths(self, b));
        if x.len() == 1 && y.len() == 1 {
            return None;
        }
        let mut cuts: Vec<u32> = Vec::new();
        for list in [x, y] {
            let mut at = bits;
            for n in list {
                cuts.push(at);
                at -= n;
            }
        }
        cuts.push(0);
        cuts.sort_unstable_by(|a, b| b.cmp(a));
        cuts.dedup();
        let mut all = Vec::with_capacity(cuts.len());
        for pair in cuts.windows(2) {
            let (p, q) = (self.extract(a, pair[0] - 1, pair[1]), self.extract(b, pair[0] - 1, pair[1]));
            let n = pair[0] - pair[1];
            // A slice of an indivisible term is not split again.
            let same = match (self.value(p), self.value(q)) {
                (Some(v), Some(w)) => self.truth(v == w),
                _ => self.eq(n, p, q),
            };
            all.push(same);
        }
        Some(self.and(&all))
    }

    fn ult(&mut self, bits: u32, a: TermId, b: TermId) -> TermId {
        if a == b {
            return self.truth(false);
        }
        if let Some(t) = self.ult_const(bits, a, b) {
            return t;
        }
        let spare = self.leading_zeros(a).min(self.leading_zeros(b));
        if spare > 0 && spare < bits {
            let (a, b) = (self.extract(a, bits - 1 - spare, 0), self.extract(b, bits - 1 - spare, 0));
            return self.compare_terms(Pred::Ult, a, b);
        }
        self.make(TermNode::Compare(Pred::Ult, a, b), Sort::Bool)
    }

    fn ult_const(&mut self, bits: u32, a: TermId, b: TermId) -> Option<TermId> {
        if let Some(k) = self.value(b) {
            let (zero, spare) = (self.constant(bits, 0), self.leading_zeros(a));
            return match k {
                0 => Some(self.truth(false)),
                1 => Some(self.eq(bits, a, zero)),
                // All possible values are less.
                k if spare > 0 && spare < bits && k > mask(bits - spare) => Some(self.truth(true)),
                k if spare == bits => Some(self.truth(k > 0)),
                // The upper bits decide alone.
                k if k.is_power_of_two() => {
                    let by = k.trailing_zeros();
                    let high = self.extract(a, bits - 1, by);
                    let zero = self.constant(bits - by, 0);
                    Some(self.eq(bits - by, high, zero))
                }
                _ => None,
            };
        }
        let k = self.value(a)?;
        if k == mask(bits) {
            return Some(self.truth(false));
        }
        let next = self.constant(bits, k + 1);
        let less = self.compare_terms(Pred::Ult, b, next);
        Some(self.not(less))
    }

    fn slt(&mut self, bits: u32, a: TermId, b: TermId) -> TermId {
        if a == b {
            return self.truth(false);
        }
        if self.leading_zeros(a) > 0 && self.leading_zeros(b) > 0 {
            return self.compare_terms(Pred::Ult, a, b);
        }
        if let Some(k) = self.value(a) {
            if k == mask(bits) >> 1 {
                return self.truth(false);
            }
            let next = self.constant(bits, k.wrapping_add(1));
            let less = self.slt(bits, b, next);
            return self.not(less);
        }
        if let (TermNode::SignExtend(x), Some(k)) = (self.node(a).clone(), self.value(b)) {
            let n = self.bits(x);
            if signed(n, k & mask(n)) == signed(bits, k) {
                let k = self.constant(n, k);
                return self.slt(n, x, k);
            }
        }
        if self.value(b) == Some(0) {
            let sign = self.extract(a, bits - 1, bits - 1);
            let one = self.constant(1, 1);
            return self.eq(1, sign, one);
        }
        self.make(TermNode::Compare(Pred::Slt, a, b), Sort::Bool)
    }
}
