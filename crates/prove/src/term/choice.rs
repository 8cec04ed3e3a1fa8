//! Truth values and choices: decision diagrams over atoms.
//!
//! An atom is a truth value that is not composed of others: a comparison, or an uninterpreted one. A term
//! that depends on atoms tests them in the order in which they were made, each at most once on a path, and
//! never redundantly: so equal functions of the same atoms are one term, however the paths of two programs
//! were divided. Diagrams of truth values end in `true` and `false`; those of vectors, memories and tokens
//! end in terms that are not choices.

use std::rc::Rc;

use millstream_isa::semantics::{ConcreteDomain, Domain, Pred, Prim};

use super::{Sort, TermId, TermNode, TermPool, mask, signed, sum};

/// Most terms of a choice that is carried through operations.
const MOST_LEAVES: usize = 16;

/// An operation that is carried into choices.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum LiftedOp {
    Prim(Prim),
    Compare(Pred),
    Concat,
    Extract(u8, u8),
    SignExtend(u8),
}

impl TermPool {
    /// The first atom that a term depends on.
    fn top(&self, t: TermId) -> Option<TermId> {
        match self.node(t) {
            TermNode::Ite(x, ..) => Some(*x),
            TermNode::Truth(_) => None,
            _ => (self.sort(t) == Sort::Bool).then_some(t),
        }
    }

    /// The two cofactors of a term: its values if an atom holds and if not. The atom must not come after the
    /// term's first.
    pub(super) fn cofactors(&mut self, t: TermId, x: TermId) -> (TermId, TermId) {
        match *self.node(t) {
            TermNode::Ite(y, a, b) if y == x => (a, b),
            _ if t == x => (self.truth(true), self.truth(false)),
            _ => (t, t),
        }
    }

    /// `a` if `c` holds, else `b`.
    pub(crate) fn ite(&mut self, c: TermId, a: TermId, b: TermId) -> TermId {
        match self.known(c) {
            Some(true) => return a,
            Some(false) => return b,
            None if a == b => return a,
            None => {}
        }
        if self.known(a) == Some(true) && self.known(b) == Some(false) {
            return c;
        }
        if let Some(t) = self.chosen.get(&(c, a, b)) {
            return *t;
        }
        if self.is_full() {
            return a;
        }
        let tops = [self.top(c), self.top(a), self.top(b)];
        let x = tops.into_iter().flatten().min().expect("a condition that is not known has an atom");
        let ((c1, c0), (a1, a0), (b1, b0)) =
            (self.cofactors(c, x), self.cofactors(a, x), self.cofactors(b, x));
        let high = self.ite(c1, a1, b1);
        let low = self.ite(c0, a0, b0);
        let t = self.decide(x, high, low);
        self.chosen.insert((c, a, b), t);
        t
    }

    /// One term if an atom holds, the other if not; both test later atoms only.
    fn decide(&mut self, x: TermId, high: TermId, low: TermId) -> TermId {
        if high == low {
            return high;
        }
        let sort = self.sort(high);
        if sort == Sort::Bool && self.known(high) == Some(true) && self.known(low) == Some(false) {
            return x;
        }
        if sort == Sort::Memory
            && let Some(merged) = self.decide_memory(x, high, low)
        {
            return merged;
        }
        self.make(TermNode::Ite(x, high, low), sort)
    }

    /// The negation.
    pub(crate) fn not(&mut self, t: TermId) -> TermId {
        let (yes, no) = (self.truth(true), self.truth(false));
        self.ite(t, no, yes)
    }

    /// The conjunction.
    pub(crate) fn and(&mut self, parts: &[TermId]) -> TermId {
        let no = self.truth(false);
        let mut all = self.truth(true);
        for p in parts {
            all = self.ite(all, *p, no);
        }
        all
    }

    /// The disjunction.
    pub(crate) fn or(&mut self, parts: &[TermId]) -> TermId {
        let yes = self.truth(true);
        let mut any = self.truth(false);
        for p in parts {
            any = self.ite(any, yes, *p);
        }
        any
    }

    /// A term that equals `t` wherever `care` holds; elsewhere it has whatever value makes it simple. Depends
    /// only on the values of the term where `care` holds, and on `care`.
    ///
    /// Source: the generalised cofactor of O. Coudert and J. C. Madre.
    pub(crate) fn under(&mut self, t: TermId, care: TermId) -> TermId {
        if self.known(care).is_some() {
            return t;
        }
        let Some(y) = self.top(t) else { return t };
        if let Some(known) = self.restricted.get(&(t, care)) {
            return *known;
        }
        if self.is_full() {
            return t;
        }
        let x = self.top(care).map_or(y, |z| z.min(y));
        let ((t1, t0), (c1, c0)) = (self.cofactors(t, x), self.cofactors(care, x));
        let out = match (self.known(c1), self.known(c0)) {
            (Some(false), _) => self.under(t0, c0),
            (_, Some(false)) => self.under(t1, c1),
            _ => {
                let (high, low) = (self.under(t1, c1), self.under(t0, c0));
                self.decide(x, high, low)
            }
        };
        self.restricted.insert((t, care), out);
        out
    }

    /// Possible leaves of a term, if they are few.
    fn leaves(&mut self, t: TermId) -> Option<Rc<[TermId]>> {
        let TermNode::Ite(_, a, b) = *self.node(t) else { return Some([t].into()) };
        if let Some(known) = self.leaves.get(&t) {
            return known.clone();
        }
        let out = match (self.leaves(a), self.leaves(b)) {
            (Some(a), Some(b)) => {
                let mut all: Vec<TermId> = a.iter().chain(b.iter()).copied().collect();
                all.sort_unstable();
                all.dedup();
                (all.len() <= MOST_LEAVES).then(|| all.into())
            }
            _ => None,
        };
        self.leaves.insert(t, out.clone());
        out
    }

    /// Returns true if a term depends on an atom and is not itself an atom.
    pub(crate) fn is_choice(&self, t: TermId) -> bool {
        matches!(self.node(t), TermNode::Ite(..))
    }

    /// Carries an operation on one or two vectors into the choices that they are; [`None`] if neither is one,
    /// or there are too many leaves.
    pub(super) fn lift(&mut self, op: LiftedOp, a: TermId, b: TermId) -> Option<TermId> {
        if self.is_full() || !self.forms.choices || !self.is_choice(a) && !self.is_choice(b) {
            return None;
        }
        if let Some(t) = self.lifted.get(&(op, a, b)) {
            return Some(*t);
        }
        let (x, y) = (self.leaves(a)?, self.leaves(b)?);
        if x.len() * y.len() > MOST_LEAVES {
            return None;
        }
        let tops = [a, b].map(|t| match self.node(t) {
            TermNode::Ite(x, ..) => Some(*x),
            _ => None,
        });
        let x = tops.into_iter().flatten().min()?;
        let ((a1, a0), (b1, b0)) = (self.cofactors(a, x), self.cofactors(b, x));
        let high = self.apply(op, a1, b1);
        let low = self.apply(op, a0, b0);
        // The operation may have made atoms that come before this one.
        let out = self.ite(x, high, low);
        self.lifted.insert((op, a, b), out);
        Some(out)
    }

    fn apply(&mut self, op: LiftedOp, a: TermId, b: TermId) -> TermId {
        let bits = self.bits(a);
        match op {
            LiftedOp::Prim(op) => millstream_isa::semantics::Domain::prim(self, op, bits, &a, &b),
            LiftedOp::Compare(p) => self.compare_terms(p, a, b),
            LiftedOp::Concat => self.concat(&[a, b]),
            LiftedOp::Extract(hi, lo) => self.extract(a, u32::from(hi), u32::from(lo)),
            LiftedOp::SignExtend(bits) => self.sign_extend_to(a, u32::from(bits)),
        }
    }
}

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
        if let Some(d) = sum::distance(self, a, b) {
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
                let rest = sum::collect(self, bits, terms.to_vec(), 0);
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
