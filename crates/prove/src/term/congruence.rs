//! Sufficient conditions for memories and chains of calls to be equal, on vectors and truth values.
//!
//! Choices are compared alternative by alternative, calls argument by argument, memories byte by byte above
//! their common base. If there is no such reason for equality, the result is the plain equation, which
//! nothing proves.

use rustc_hash::FxHashMap;

use super::{Sort, TermId, TermNode, TermPool};

/// A condition under which `a` and `b` are equal.
pub(crate) fn congruent(pool: &mut TermPool, a: TermId, b: TermId) -> TermId {
    congruent_with(pool, a, b, &mut FxHashMap::default())
}

fn congruent_with(
    pool: &mut TermPool,
    a: TermId,
    b: TermId,
    known: &mut FxHashMap<(TermId, TermId), TermId>,
) -> TermId {
    if a == b {
        return pool.truth(true);
    }
    if !matches!(pool.sort(a), Sort::Memory | Sort::Token) || pool.is_full() {
        return pool.equal(a, b);
    }
    if let Some(t) = known.get(&(a, b)) {
        return *t;
    }
    let out = congruent_now(pool, a, b, known);
    known.insert((a, b), out);
    out
}

fn congruent_now(
    pool: &mut TermPool,
    a: TermId,
    b: TermId,
    known: &mut FxHashMap<(TermId, TermId), TermId>,
) -> TermId {
    let atom = |t: TermId, terms: &TermPool| match terms.node(t) {
        TermNode::Ite(x, ..) => Some(*x),
        _ => None,
    };
    if let Some(x) = [atom(a, pool), atom(b, pool)].into_iter().flatten().min() {
        let ((a1, a0), (b1, b0)) = (pool.cofactors(a, x), pool.cofactors(b, x));
        let (high, low) = (congruent_with(pool, a1, b1, known), congruent_with(pool, a0, b0, known));
        return pool.ite(x, high, low);
    }
    if pool.sort(a) == Sort::Memory && (is_store(pool, a) || is_store(pool, b)) {
        return congruent_stores(pool, a, b, known);
    }
    match (pool.node(a).clone(), pool.node(b).clone()) {
        (TermNode::App(f, x), TermNode::App(g, y)) if f == g && alike(pool, &x, &y) => {
            let all: Vec<TermId> =
                x.iter().zip(&y).map(|(x, y)| congruent_with(pool, *x, *y, known)).collect();
            pool.and(&all)
        }
        _ => pool.equal(a, b),
    }
}

/// Memories with stores above a base: equal if the bases are, and every byte stored in either.
fn congruent_stores(
    pool: &mut TermPool,
    a: TermId,
    b: TermId,
    known: &mut FxHashMap<(TermId, TermId), TermId>,
) -> TermId {
    let (x, y) = (pool.base(a), pool.base(b));
    let mut places = pool.places_above(a, x);
    places.extend(pool.places_above(b, y));
    places.sort_unstable();
    places.dedup();
    let mut all = congruent_with(pool, x, y, known);
    for (object, offset) in places {
        let (p, q) = (pool.select(a, object, offset), pool.select(b, object, offset));
        let same = pool.equal(p, q);
        all = pool.and(&[all, same]);
    }
    all
}

fn is_store(pool: &TermPool, t: TermId) -> bool {
    matches!(pool.node(t), TermNode::Store(..))
}

fn alike(pool: &TermPool, a: &[TermId], b: &[TermId]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| pool.sort(*a) == pool.sort(*b))
}
