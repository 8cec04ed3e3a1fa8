//! Sufficient conditions for memories and chains of calls to be equal, on vectors and truth values.
//!
//! Choices are compared alternative by alternative, calls argument by argument, memories byte by byte above
//! their common base. If there is no such reason for equality, the result is the plain equation, which
//! nothing proves.

use rustc_hash::FxHashMap;

use super::{Sort, TermId, TermNode, TermPool};

impl TermPool {
    /// A condition under which `a` and `b` are equal.
    pub(crate) fn congruent(&mut self, a: TermId, b: TermId) -> TermId {
        self.congruent_with(a, b, &mut FxHashMap::default())
    }

    fn congruent_with(
        &mut self,
        a: TermId,
        b: TermId,
        known: &mut FxHashMap<(TermId, TermId), TermId>,
    ) -> TermId {
        if a == b {
            return self.truth(true);
        }
        if !matches!(self.sort(a), Sort::Memory | Sort::Token) || self.is_full() {
            return self.equal(a, b);
        }
        if let Some(t) = known.get(&(a, b)) {
            return *t;
        }
        let out = self.congruent_now(a, b, known);
        known.insert((a, b), out);
        out
    }

    fn congruent_now(
        &mut self,
        a: TermId,
        b: TermId,
        known: &mut FxHashMap<(TermId, TermId), TermId>,
    ) -> TermId {
        let atom = |t: TermId, terms: &TermPool| match terms.node(t) {
            TermNode::Ite(x, ..) => Some(*x),
            _ => None,
        };
        if let Some(x) = [atom(a, self), atom(b, self)].into_iter().flatten().min() {
            let ((a1, a0), (b1, b0)) = (self.cofactors(a, x), self.cofactors(b, x));
            let (high, low) = (self.congruent_with(a1, b1, known), self.congruent_with(a0, b0, known));
            return self.ite(x, high, low);
        }
        if self.sort(a) == Sort::Memory && (self.is_store(a) || self.is_store(b)) {
            return self.congruent_stores(a, b, known);
        }
        match (self.node(a).clone(), self.node(b).clone()) {
            (TermNode::App(f, x), TermNode::App(g, y)) if f == g && self.alike(&x, &y) => {
                let all: Vec<TermId> =
                    x.iter().zip(&y).map(|(x, y)| self.congruent_with(*x, *y, known)).collect();
                self.and(&all)
            }
            _ => self.equal(a, b),
        }
    }

    /// Memories with stores above a base: equal if the bases are, and every byte stored in either.
    fn congruent_stores(
        &mut self,
        a: TermId,
        b: TermId,
        known: &mut FxHashMap<(TermId, TermId), TermId>,
    ) -> TermId {
        let (x, y) = (self.base(a), self.base(b));
        let mut places = self.places_above(a, x);
        places.extend(self.places_above(b, y));
        places.sort_unstable();
        places.dedup();
        let mut all = self.congruent_with(x, y, known);
        for (object, offset) in places {
            let (p, q) = (self.select(a, object, offset), self.select(b, object, offset));
            let same = self.equal(p, q);
            all = self.and(&[all, same]);
        }
        all
    }

    fn is_store(&self, t: TermId) -> bool {
        matches!(self.node(t), TermNode::Store(..))
    }

    fn alike(&self, a: &[TermId], b: &[TermId]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| self.sort(*a) == self.sort(*b))
    }
}
