//! Truth values and choices: decision diagrams over atoms.
//!
//! An atom is a truth value that is not composed of others: a comparison, or an uninterpreted one. A term
//! that depends on atoms tests them in the order in which they were made, each at most once on a path, and
//! never redundantly: so equal functions of the same atoms are one term, however the paths of two programs
//! were divided. Diagrams of truth values end in `true` and `false`; those of vectors, memories and tokens
//! end in terms that are not choices.

use std::rc::Rc;

use millstream_isa::semantics::{Pred, Prim};

use super::{Sort, TermId, TermNode, TermPool};

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
