//! Bytes of the stack that are read before they are written.
//!
//! The verifier lets privileged programs do so. Such a byte is arbitrary, and keeps its value until it is
//! written. Two programs may lay out their frames in different ways, so the correspondence between their
//! bytes is open: the programs do the same if, for some one-to-one correspondence, they do the same whenever
//! corresponding bytes are equal. Then every behaviour of the one is possible for the other, too. A
//! correspondence is chosen before a proof and holds for all of it: at first between bytes at the same
//! places, and then between those that were seen in matching positions.
//!
//! Most programs read no such byte, and then it is less work not to track them: they are tracked from the
//! start only after a proof met one. If they are not tracked, each read returns a fresh arbitrary value.
//!
//! Architecture Invariant: no two bytes of one frame correspond to the same byte of the other.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;

use rustc_hash::FxHashSet;

use crate::program::MapSignature;
use crate::sizes::STACK_SIZE;
use crate::state::SymbolicState;
use crate::term::{Sort, TermId, TermNode, TermPool};
use crate::value::{SymbolicValues, ValueId, ValueKind};

/// Prefix of the names of such bytes.
const NAME: &str = "unwritten ";
/// Mark of bytes of the second frame that correspond to none of the first.
const OWN: &str = "B ";
/// Most pairs of terms that are searched for corresponding bytes.
const MOST_PAIRS: usize = 4096;
/// Distance in bytes within which a pair of bytes supports its neighbours.
const NEIGHBOURS: i64 = 16;

/// Correspondence of the bytes of the two frames, and the evidence for another one.
#[derive(Debug)]
pub(crate) struct UninitializedStack {
    /// Place in the first frame, by place in the second.
    partners: BTreeMap<i64, i64>,
    /// Times that a byte of the first and one of the second were seen in matching positions.
    seen: BTreeMap<(i64, i64), usize>,
    /// True if such bytes are tracked.
    pub(crate) followed: bool,
    /// True if one was read while they were not tracked.
    pub(crate) missed: bool,
}

impl Default for UninitializedStack {
    fn default() -> UninitializedStack {
        UninitializedStack {
            partners: (-STACK_SIZE..0).map(|at| (at, at)).collect(),
            seen: BTreeMap::new(),
            followed: false,
            missed: false,
        }
    }
}

impl UninitializedStack {
    /// The byte at a place of the first frame or of the second.
    pub(crate) fn byte(&self, terms: &mut TermPool, first: bool, at: i64) -> TermId {
        let name = match self.partners.get(&at) {
            _ if first => format!("{NAME}{at}"),
            Some(partner) => format!("{NAME}{partner}"),
            None => format!("{NAME}{OWN}{at}"),
        };
        terms.var(&name, Sort::Bits(8))
    }

    /// The place of the byte of the first or the second frame that a term stands for.
    pub(crate) fn place(&self, terms: &TermPool, first: bool, t: TermId) -> Option<i64> {
        let TermNode::App(f, args) = terms.node(t) else { return None };
        let name = terms.name(*f).strip_prefix(NAME).filter(|_| args.is_empty())?;
        match name.strip_prefix(OWN) {
            Some(own) => own.parse().ok().filter(|_| !first),
            None if first => name.parse().ok(),
            None => {
                let partner = name.parse().ok()?;
                self.partners.iter().find(|(_, p)| **p == partner).map(|(at, _)| *at)
            }
        }
    }

    /// Counts bytes of the two frames that were seen in matching positions.
    pub(crate) fn count_matches(&mut self, pairs: impl IntoIterator<Item = (i64, i64)>) {
        for pair in pairs {
            *self.seen.entry(pair).or_insert(0) += 1;
        }
    }

    /// Chooses the correspondence with the most evidence; `false` if that is the current one.
    pub(crate) fn update_correspondence(&mut self) -> bool {
        let mut scored: Vec<(usize, (i64, i64))> = Vec::new();
        for (a, b) in self.seen.keys() {
            let beside = (-NEIGHBOURS..=NEIGHBOURS).filter_map(|n| self.seen.get(&(a + n, b + n)));
            scored.push((beside.sum(), (*a, *b)));
        }
        scored.sort_unstable_by(|x, y| y.0.cmp(&x.0).then(x.1.cmp(&y.1)));
        let (mut partners, mut taken) = (BTreeMap::new(), BTreeSet::new());
        for (_, (a, b)) in scored {
            if !partners.contains_key(&b) && taken.insert(a) {
                partners.insert(b, a);
            }
        }
        // Bytes without evidence: as the nearest pair, or at the same place.
        let known: Vec<(i64, i64)> = partners.iter().map(|(b, a)| (*b, *a)).collect();
        for b in (-STACK_SIZE..0).filter(|b| !self.seen.keys().any(|(_, other)| other == b)) {
            let nearest = known.iter().min_by_key(|(other, _)| (other - b).abs());
            let beside =
                nearest.filter(|(other, _)| (other - b).abs() <= NEIGHBOURS).map(|(other, a)| a + b - other);
            let guess = beside.filter(|a| (-STACK_SIZE..0).contains(a) && !taken.contains(a));
            if let Some(a) = guess.or_else(|| (!taken.contains(&b)).then_some(b)) {
                taken.insert(a);
                partners.insert(b, a);
            }
        }
        let changed = !self.seen.is_empty() && partners != self.partners;
        if changed {
            tracing::debug!("bytes that were seen to stand for each other: {:?}", self.seen);
            self.partners = partners;
        }
        changed
    }
}

/// State shared by both programs of a proof.
#[derive(Debug)]
pub(crate) struct ProofContext {
    pub(crate) terms: TermPool,
    pub(crate) values: SymbolicValues,
    pub(crate) maps: Vec<MapSignature>,
    pub(crate) unwritten: UninitializedStack,
}

impl ProofContext {
    /// Looks for bytes in matching positions where two states differ.
    pub(crate) fn match_states(&mut self, a: &SymbolicState, b: &SymbolicState) {
        if !self.unwritten.followed {
            return;
        }
        let mut todo: Vec<(TermId, TermId)> = vec![(a.path, b.path), (a.length, b.length)];
        todo.extend(a.chains.iter().filter_map(|(chain, x)| Some((*x, *b.chains.get(chain)?))));
        todo.extend(a.memory.iter().filter_map(|(space, x)| Some((*x, *b.memory.get(space)?))));
        for (x, y) in a.regs.iter().zip(&b.regs) {
            todo.extend(numbers(&self.values, *x, *y));
        }
        let (mut looked, mut met) = (FxHashSet::default(), BTreeSet::new());
        while let Some((x, y)) = todo.pop() {
            if x == y || looked.len() == MOST_PAIRS || !looked.insert((x, y)) {
                continue;
            }
            let places = self.places(x, y);
            if let (Some(at), Some(other)) = places {
                met.insert((at, other));
            } else if self.likeness(x, y) > 0 {
                let (ours, mut theirs) = (parts(&self.terms, x), parts(&self.terms, y));
                // Operands may be swapped; it may not be known yet if they are.
                if matches!(self.terms.node(x), TermNode::Prim(..))
                    && let ([a, b], [c, d]) = (&ours[..], &theirs[..])
                {
                    let straight = self.likeness(*a, *c) * self.likeness(*b, *d);
                    let turned = self.likeness(*a, *d) * self.likeness(*b, *c);
                    if straight == turned && self.places(*a, *d).0.is_some() {
                        continue;
                    }
                    if turned > straight {
                        theirs.reverse();
                    }
                }
                todo.extend(ours.into_iter().zip(theirs));
            }
        }
        self.unwritten.count_matches(met);
    }

    /// The place of the byte of the first frame that one term stands for, and of the byte of the second frame
    /// for the other.
    fn places(&self, x: TermId, y: TermId) -> (Option<i64>, Option<i64>) {
        (self.unwritten.place(&self.terms, true, x), self.unwritten.place(&self.terms, false, y))
    }

    /// Degree to which two terms match: zero if they are neither bytes of the frames nor the same operation
    /// on as many parts; highest if they are the same.
    fn likeness(&self, x: TermId, y: TermId) -> u32 {
        match self.places(x, y) {
            _ if x == y => 2,
            (Some(_), Some(_)) => 1,
            (None, None) => u32::from(is_alike(&self.terms, x, y)),
            _ => 0,
        }
    }
}

/// Two values as numbers, if both are.
fn numbers(values: &SymbolicValues, x: ValueId, y: ValueId) -> Option<(TermId, TermId)> {
    match (values.kind(x), values.kind(y)) {
        (ValueKind::Number(x), ValueKind::Number(y)) => Some((x, y)),
        _ => None,
    }
}

/// Parts of a term; those of a sum by their factors, which say more than their order.
fn parts(terms: &TermPool, t: TermId) -> Vec<TermId> {
    match terms.node(t) {
        TermNode::Sum(summands, _) => {
            let mut summands = summands.to_vec();
            summands.sort_by_key(|(_, factor)| *factor);
            summands.into_iter().map(|(t, _)| t).collect()
        }
        _ => terms.parts_of(t),
    }
}

/// Returns true if two terms are the same operation, on as many parts.
fn is_alike(terms: &TermPool, x: TermId, y: TermId) -> bool {
    let (a, b) = (terms.node(x), terms.node(y));
    let same = match (a, b) {
        (TermNode::App(f, _), TermNode::App(g, _)) => f == g,
        (TermNode::Prim(p, ..), TermNode::Prim(q, ..)) => p == q,
        _ => discriminant(a) == discriminant(b),
    };
    same && terms.parts_of(x).len() == terms.parts_of(y).len()
}

/// Unwritten bytes of both frames at joins of two ways, by the term in their place on the other way.
#[derive(Default)]
pub(crate) struct UninitializedJoin(BTreeMap<(usize, TermId), [Vec<i64>; 2]>);

impl UninitializedJoin {
    /// Notes an unwritten byte of a side's frame on one of the ways, and the term in its place on the other
    /// way.
    pub(crate) fn note(&mut self, way: usize, other: TermId, side: usize, at: i64) {
        self.0.entry((way, other)).or_default()[side].push(at);
    }

    /// Corresponding bytes: those joined with the same term, if there are as many in both frames.
    pub(crate) fn pairs(self) -> Vec<(i64, i64)> {
        let lists = self.0.into_values().filter(|[a, b]| a.len() == b.len());
        lists.flat_map(|[a, b]| a.into_iter().zip(b)).collect()
    }
}
