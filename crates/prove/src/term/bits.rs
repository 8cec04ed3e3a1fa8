//! Operations that move bits or combine them one by one, as concatenations of slices.

use super::choice::LiftedOp;
use super::{Sort, TermId, TermNode, TermPool, facts, mask, quotient, signed, sum};
use millstream_isa::semantics::{ConcreteDomain, Domain, Prim};

/// Most slices of a bitwise operation that is split.
const MOST_SLICES: usize = 17;

impl TermPool {
    /// Bit vectors side by side, the most significant first. At most 64 bits.
    pub(crate) fn concat(&mut self, parts: &[TermId]) -> TermId {
        if parts.iter().any(|p| matches!(self.node(*p), TermNode::Ite(..)))
            && let Some(lifted) = self.concat_choices(parts)
        {
            return lifted;
        }
        let mut out: Vec<TermId> = Vec::with_capacity(parts.len());
        for p in parts {
            let inner: Vec<TermId> = match self.node(*p) {
                TermNode::Concat(inner) => inner.to_vec(),
                _ => vec![*p],
            };
            for piece in inner {
                match out.last().and_then(|last| self.join(*last, piece)) {
                    Some(joined) => *out.last_mut().expect("there is a last") = joined,
                    None => out.push(piece),
                }
            }
        }
        if let [one] = out[..] {
            return one;
        }
        let bits = out.iter().map(|p| self.bits(*p)).sum();
        self.vector(bits, TermNode::Concat(out.into()))
    }

    /// A concatenation in which some parts are choices, two by two.
    fn concat_choices(&mut self, parts: &[TermId]) -> Option<TermId> {
        let (last, rest) = parts.split_last()?;
        let mut out = *last;
        for p in rest.iter().rev() {
            out = match self.lift(LiftedOp::Concat, *p, out) {
                Some(lifted) => lifted,
                None if matches!(self.node(*p), TermNode::Ite(..))
                    || matches!(self.node(out), TermNode::Ite(..)) =>
                {
                    return None;
                }
                None => self.concat(&[*p, out]),
            };
        }
        Some(out)
    }

    /// Joins two neighbours, if they are constants or adjacent slices of one term.
    fn join(&mut self, high: TermId, low: TermId) -> Option<TermId> {
        let (n, m) = (self.bits(high), self.bits(low));
        if let (Some(h), Some(l)) = (self.value(high), self.value(low)) {
            return Some(self.constant(n + m, h << m | l));
        }
        if let TermNode::Extract(t, hi, lo) = *self.node(high) {
            let (hi, lo) = (u32::from(hi), u32::from(lo));
            // The low bits of a sum are another sum: compute it.
            if lo >= m && self.extract(t, lo - 1, lo - m) == low {
                return Some(self.extract(t, hi, lo - m));
            }
        }
        None
    }

    /// Bits `lo` to `hi`, both included.
    pub(crate) fn extract(&mut self, t: TermId, hi: u32, lo: u32) -> TermId {
        let (bits, width) = (self.bits(t), hi - lo + 1);
        if width == bits {
            return t;
        }
        match self.node(t).clone() {
            TermNode::Const(v) => self.constant(width, v >> lo),
            TermNode::Extract(inner, _, base) => {
                let base = u32::from(base);
                self.extract(inner, hi + base, lo + base)
            }
            TermNode::Concat(parts) => self.extract_concat(&parts, bits, hi, lo),
            TermNode::Sum(terms, k) if lo == 0 => {
                let terms = terms.iter().map(|(t, c)| (self.extract(*t, hi, 0), *c)).collect::<Vec<_>>();
                // A slice of a term may be a constant or a sum itself.
                let mut sum = self.constant(width, k);
                for (t, c) in terms {
                    sum = sum::sum(self, width, sum, t, c);
                }
                sum
            }
            TermNode::Prim(op @ (Prim::And | Prim::Or | Prim::Xor), a, b) => {
                let (a, b) = (self.extract(a, hi, lo), self.extract(b, hi, lo));
                self.bitwise(op, width, a, b)
            }
            TermNode::Prim(Prim::Mul, a, b) if lo == 0 => {
                let (a, b) = (self.extract(a, hi, 0), self.extract(b, hi, 0));
                sum::mul(self, width, a, b)
            }
            TermNode::Sum(..) if let Some(quotient) = quotient::product_as_quotient(self, t, hi, lo) => {
                quotient
            }
            TermNode::SignExtend(inner) if hi < self.bits(inner) => self.extract(inner, hi, lo),
            TermNode::SignExtend(inner) if lo == 0 => self.sign_extend_to(inner, width),
            _ => match self.lift(LiftedOp::Extract(hi as u8, lo as u8), t, t) {
                Some(lifted) => lifted,
                None => self.extract_possible(t, hi, lo),
            },
        }
    }

    /// A slice of a term that is not a concatenation; without bits that are never set, if `zeros` is on.
    fn extract_possible(&mut self, t: TermId, hi: u32, lo: u32) -> TermId {
        let width = hi - lo + 1;
        if !self.forms.zeros {
            return self.vector(width, TermNode::Extract(t, hi as u8, lo as u8));
        }
        let possible = facts::possible(self, t) >> lo & mask(width);
        let used = 64 - possible.leading_zeros();
        if possible == 0 {
            return self.constant(width, 0);
        }
        let low = self.vector(used, TermNode::Extract(t, (lo + used - 1) as u8, lo as u8));
        self.zero_extend_to(low, width)
    }

    fn extract_concat(&mut self, parts: &[TermId], bits: u32, hi: u32, lo: u32) -> TermId {
        let mut out = Vec::new();
        let mut top = bits;
        for p in parts {
            let n = self.bits(*p);
            let base = top - n;
            if base <= hi && lo < top {
                let to = hi.min(top - 1) - base;
                let from = lo.max(base) - base;
                out.push(self.extract(*p, to, from));
            }
            top = base;
        }
        self.concat(&out)
    }

    /// Zero extension.
    pub(crate) fn zero_extend_to(&mut self, t: TermId, bits: u32) -> TermId {
        let n = self.bits(t);
        if n == bits {
            return t;
        }
        let zeros = self.constant(bits - n, 0);
        self.concat(&[zeros, t])
    }

    /// A vector with so many zeros above and below it.
    pub(crate) fn between_zeros(&mut self, high: u32, t: TermId, low: u32) -> TermId {
        let mut parts = Vec::with_capacity(3);
        if high > 0 {
            parts.push(self.constant(high, 0));
        }
        parts.push(t);
        if low > 0 {
            parts.push(self.constant(low, 0));
        }
        self.concat(&parts)
    }

    /// Sign extension.
    pub(crate) fn sign_extend_to(&mut self, t: TermId, bits: u32) -> TermId {
        let n = self.bits(t);
        if n == bits {
            return t;
        }
        if let Some(v) = self.value(t) {
            return self.constant(bits, signed(n, v) as u64);
        }
        if self.leading_zeros(t) > 0 {
            return self.zero_extend_to(t, bits);
        }
        if let TermNode::SignExtend(inner) = *self.node(t) {
            return self.sign_extend_to(inner, bits);
        }
        match self.lift(LiftedOp::SignExtend(bits as u8), t, t) {
            Some(lifted) => lifted,
            None => self.vector(bits, TermNode::SignExtend(t)),
        }
    }

    /// Number of leading bits that are known to be zero.
    pub(crate) fn leading_zeros(&self, t: TermId) -> u32 {
        let bits = self.bits(t);
        match self.node(t) {
            TermNode::Const(v) => bits - (64 - v.leading_zeros()),
            TermNode::Concat(parts) => match self.value(parts[0]) {
                Some(0) => self.bits(parts[0]),
                Some(_) => self.leading_zeros(parts[0]),
                None => 0,
            },
            _ => 0,
        }
    }

    pub(super) fn shl_const(&mut self, bits: u32, t: TermId, by: u32) -> TermId {
        if by == 0 {
            return t;
        }
        let zeros = self.constant(by, 0);
        let kept = self.extract(t, bits - 1 - by, 0);
        self.concat(&[kept, zeros])
    }

    fn shift_const(&mut self, op: Prim, bits: u32, t: TermId, by: u32) -> TermId {
        if by == 0 {
            return t;
        }
        match op {
            Prim::Shl => self.shl_const(bits, t, by),
            Prim::LShr => {
                let kept = self.extract(t, bits - 1, by);
                self.zero_extend_to(kept, bits)
            }
            _ => {
                let kept = self.extract(t, bits - 1, by);
                self.sign_extend_to(kept, bits)
            }
        }
    }

    /// Offsets of the slices of a term, from the top: the seams of concatenations, and for constants the ends
    /// of runs of equal bits.
    fn cuts(&self, t: TermId, out: &mut Vec<u32>) {
        let bits = self.bits(t);
        match self.node(t) {
            TermNode::Const(v) => out.extend((1..bits).filter(|i| v >> i & 1 != v >> (i - 1) & 1)),
            TermNode::Concat(parts) => {
                let mut top = bits;
                for p in parts {
                    let base = top - self.bits(*p);
                    if let TermNode::Const(v) = self.node(*p) {
                        let n = self.bits(*p);
                        out.extend((1..n).filter(|i| v >> i & 1 != v >> (i - 1) & 1).map(|i| i + base));
                    }
                    if base > 0 {
                        out.push(base);
                    }
                    top = base;
                }
            }
            _ => {}
        }
    }

    /// And, or, exclusive or: slice by slice if that simplifies something.
    pub(super) fn bitwise(&mut self, op: Prim, bits: u32, a: TermId, b: TermId) -> TermId {
        let (a, b) = if a <= b { (a, b) } else { (b, a) };
        if let Some(t) = self.bitwise_known(op, bits, a, b) {
            return t;
        }
        let mut cuts = vec![0];
        self.cuts(a, &mut cuts);
        self.cuts(b, &mut cuts);
        cuts.sort_unstable();
        cuts.dedup();
        if cuts.len() == 1 || cuts.len() > MOST_SLICES {
            return self.vector(bits, TermNode::Prim(op, a, b));
        }
        cuts.push(bits);
        let mut decided = false;
        let mut out = Vec::with_capacity(cuts.len());
        for pair in cuts.windows(2).rev() {
            let (lo, hi) = (pair[0], pair[1] - 1);
            let (x, y) = (self.extract(a, hi, lo), self.extract(b, hi, lo));
            out.push(match self.bitwise_known(op, hi - lo + 1, x, y) {
                Some(t) => {
                    decided = true;
                    t
                }
                None => {
                    let (x, y) = if x <= y { (x, y) } else { (y, x) };
                    self.vector(hi - lo + 1, TermNode::Prim(op, x, y))
                }
            });
        }
        if decided { self.concat(&out) } else { self.vector(bits, TermNode::Prim(op, a, b)) }
    }

    fn bitwise_known(&mut self, op: Prim, bits: u32, a: TermId, b: TermId) -> Option<TermId> {
        if a == b {
            return Some(if op == Prim::Xor { self.constant(bits, 0) } else { a });
        }
        let (x, y) = (self.value(a), self.value(b));
        if let (Some(x), Some(y)) = (x, y) {
            let value = ConcreteDomain.prim(op, bits, &x, &y);
            return Some(self.constant(bits, value));
        }
        let (k, other) = match (x, y) {
            (Some(k), _) => (k, b),
            (_, Some(k)) => (k, a),
            _ => return None,
        };
        match (op, k) {
            (Prim::And, 0) => Some(self.constant(bits, 0)),
            (Prim::Or | Prim::Xor, 0) => Some(other),
            (Prim::And, k) if k == mask(bits) => Some(other),
            (Prim::Or, k) if k == mask(bits) => Some(self.constant(bits, k)),
            _ => None,
        }
    }
}

/// The semantics of instructions, at terms.
impl Domain for TermPool {
    type V = TermId;
    type B = TermId;

    fn constant(&mut self, bits: u32, value: u64) -> TermId {
        TermPool::constant(self, bits, value)
    }

    fn prim(&mut self, op: Prim, bits: u32, a: &TermId, b: &TermId) -> TermId {
        let (a, b) = (*a, *b);
        if let (Some(x), Some(y)) = (self.value(a), self.value(b)) {
            let value = ConcreteDomain.prim(op, bits, &x, &y);
            return TermPool::constant(self, bits, value);
        }
        if let Some(lifted) = self.lift(LiftedOp::Prim(op), a, b) {
            return lifted;
        }
        if !self.forms.normal {
            return self.vector(bits, TermNode::Prim(op, a, b));
        }
        match op {
            Prim::Add => sum::sum(self, bits, a, b, 1),
            Prim::Sub => sum::sum(self, bits, a, b, u64::MAX),
            Prim::Mul => sum::mul(self, bits, a, b),
            Prim::And | Prim::Or | Prim::Xor => self.bitwise(op, bits, a, b),
            Prim::Shl | Prim::LShr | Prim::AShr => match self.value(b) {
                Some(by) if by < u64::from(bits) => self.shift_const(op, bits, a, by as u32),
                _ => self.vector(bits, TermNode::Prim(op, a, b)),
            },
            Prim::UDiv | Prim::URem => match self.value(b) {
                Some(k) if k.is_power_of_two() => {
                    let by = k.trailing_zeros();
                    if op == Prim::UDiv {
                        self.shift_const(Prim::LShr, bits, a, by)
                    } else {
                        let low = TermPool::constant(self, bits, k - 1);
                        self.bitwise(Prim::And, bits, a, low)
                    }
                }
                Some(k) if k > 0 && op == Prim::UDiv => quotient::quotient(self, bits, a, k),
                _ => self.vector(bits, TermNode::Prim(op, a, b)),
            },
            Prim::SDiv | Prim::SRem => self.vector(bits, TermNode::Prim(op, a, b)),
        }
    }

    fn compare(
        &mut self,
        pred: millstream_isa::semantics::Pred,
        _bits: u32,
        a: &TermId,
        b: &TermId,
    ) -> TermId {
        self.compare_terms(pred, *a, *b)
    }

    fn not(&mut self, a: &TermId) -> TermId {
        TermPool::not(self, *a)
    }

    fn select(&mut self, _bits: u32, c: &TermId, then: &TermId, other: &TermId) -> TermId {
        self.ite(*c, *then, *other)
    }

    fn truncate(&mut self, _from: u32, to: u32, a: &TermId) -> TermId {
        debug_assert!(matches!(self.sort(*a), Sort::Bits(_)));
        self.extract(*a, to - 1, 0)
    }

    fn zero_extend(&mut self, _from: u32, to: u32, a: &TermId) -> TermId {
        self.zero_extend_to(*a, to)
    }

    fn sign_extend(&mut self, _from: u32, to: u32, a: &TermId) -> TermId {
        self.sign_extend_to(*a, to)
    }
}
