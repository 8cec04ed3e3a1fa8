//! The canonical form of a question: its content without names.
//!
//! Terms come in the order in which they are first needed, each by its operation and the places of its parts
//! in that order; functions by the order of their first use. Two questions of one form are the same up to
//! names, to which no solver attaches a meaning. The form covers everything that the solver is told, so that
//! equal forms have equal answers.

use rustc_hash::{FxHashMap, FxHashSet};
use sha2::{Digest as _, Sha256};

use super::smt;
use crate::cache::QueryDigest;
use crate::term::{Sort, TermId, TermNode, TermPool, TermSymbol};

/// Most terms of a question that is worth a look-up: it takes as long as a solver needs to read some thousand
/// terms.
const MOST: usize = 100_000;

/// A question's form, and its terms in order.
pub(super) struct CanonicalQuery {
    pub(super) key: QueryDigest,
    pub(super) order: Vec<TermId>,
}

/// The form of the question whether a claim always holds, and for which values of these terms it does not.
pub(super) fn canonical(terms: &TermPool, claim: TermId, wanted: &[TermId]) -> Option<CanonicalQuery> {
    let mut form = CanonicalBuilder {
        terms,
        order: Vec::new(),
        places: FxHashMap::default(),
        symbols: FxHashMap::default(),
    };
    let mut seen = FxHashSet::default();
    let mut hash = Sha256::new();
    hash.update(smt::TRANSLATION);
    hash.update(smt::PRELUDE);
    let mut bytes = Vec::with_capacity(1 << 12);
    for t in [claim].iter().chain(wanted) {
        form.visit(*t, &mut seen, &mut bytes);
        if form.order.len() > MOST {
            return None;
        }
        hash.update(&bytes);
        bytes.clear();
    }
    bytes.push(b'?');
    for t in [claim].iter().chain(wanted) {
        form.part(*t, &mut bytes);
    }
    hash.update(&bytes);
    Some(CanonicalQuery { key: QueryDigest(hash.finalize().into()), order: form.order })
}

struct CanonicalBuilder<'a> {
    terms: &'a TermPool,
    order: Vec<TermId>,
    places: FxHashMap<TermId, u32>,
    symbols: FxHashMap<(TermSymbol, Sort), u32>,
}

impl CanonicalBuilder<'_> {
    fn visit(&mut self, root: TermId, seen: &mut FxHashSet<TermId>, out: &mut Vec<u8>) {
        let mut stack = vec![(root, false)];
        while let Some((t, done)) = stack.pop() {
            if done {
                self.places.insert(t, self.order.len() as u32);
                self.order.push(t);
                self.write(t, out);
            } else if self.order.len() <= MOST && seen.insert(t) {
                stack.push((t, true));
                stack.extend(self.terms.parts_of(t).into_iter().rev().map(|p| (p, false)));
            }
        }
    }

    fn part(&self, t: TermId, out: &mut Vec<u8>) {
        // A part without a place is beyond the limit, and then there is no form.
        out.extend(self.places.get(&t).copied().unwrap_or(u32::MAX).to_le_bytes());
    }

    fn write(&mut self, t: TermId, out: &mut Vec<u8>) {
        let terms = self.terms;
        let sort = terms.sort(t);
        out.push(match sort {
            Sort::Bool => 0,
            Sort::Bits(n) => n,
            Sort::Memory => 254,
            Sort::Token => 255,
        });
        // Each kind has a distinct word and number, so that no two terms are written alike.
        let (kind, number) = match terms.node(t) {
            TermNode::Truth(b) => ("truth", u64::from(*b)),
            TermNode::Const(v) => ("constant", *v),
            TermNode::App(f, _) => {
                let next = self.symbols.len() as u32;
                ("function", u64::from(*self.symbols.entry((*f, sort)).or_insert(next)))
            }
            TermNode::Prim(op, ..) => (smt::prim(*op), 0),
            TermNode::Sum(_, k) => ("sum", *k),
            TermNode::Concat(_) => ("concat", 0),
            TermNode::Extract(_, hi, lo) => ("extract", u64::from(*hi) << 8 | u64::from(*lo)),
            TermNode::SignExtend(_) => ("extend", 0),
            TermNode::Compare(p, ..) => (smt::predicate(*p), 0),
            TermNode::Ite(..) => ("choice", 0),
            TermNode::Select(..) => ("select", 0),
            TermNode::Store(..) => ("store", 0),
        };
        out.push(kind.len() as u8);
        out.extend(kind.as_bytes());
        out.extend(number.to_le_bytes());
        let parts = terms.parts_of(t);
        out.extend((parts.len() as u32).to_le_bytes());
        for p in parts {
            self.part(p, out);
        }
        if let TermNode::Sum(list, _) = terms.node(t) {
            for (_, c) in list {
                out.extend(c.to_le_bytes());
            }
        }
    }
}
