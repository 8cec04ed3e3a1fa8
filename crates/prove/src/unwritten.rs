//! Bytes of the stack that are read before anything was put there.
//!
//! The verifier lets privileged programs do so. Such a byte is arbitrary, and stays what it is until it is written. Two
//! programs may lay out their frames in different ways, so which byte of the one is which of the other is open: they do
//! the same if, for some one-to-one correspondence, they do the same whenever corresponding bytes are equal. Then whatever
//! the one may do the other may do, too. A correspondence is chosen before a proof and holds for all of it: at first bytes
//! at the same places, and then those that were seen to stand for each other.
//!
//! Most programs read no such byte, and then it is less work not to follow them: only after a proof came by one are they
//! there from the start. Where they are not followed each is anything, each time anew.
//!
//! Architecture Invariant: no two bytes of one frame correspond to the same byte of the other.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;

use rustc_hash::FxHashSet;

use crate::access::STACK_SIZE;
use crate::exec::World;
use crate::state::State;
use crate::term::{Node, Sort, T, Terms};
use crate::value::{Kind, V, Values};

/// What the names of such bytes begin with.
const NAME: &str = "unwritten ";
/// What tells those of the second frame that correspond to none of the first.
const OWN: &str = "B ";
/// Pairs of terms that are looked at for bytes that stand for each other.
const MOST_PAIRS: usize = 4096;
/// How far a pair of bytes speaks for those beside them.
const NEIGHBOURS: i64 = 16;

/// Which byte of the second frame is which of the first; and what was seen that speaks for another choice.
#[derive(Debug)]
pub(crate) struct Unwritten {
    /// By place in the second frame the place in the first.
    partners: BTreeMap<i64, i64>,
    /// How often a byte of the first and one of the second were seen to stand for each other.
    seen: BTreeMap<(i64, i64), usize>,
    /// Whether they are followed.
    pub(crate) followed: bool,
    /// Whether one was looked at where they were not followed.
    pub(crate) missed: bool,
}

impl Default for Unwritten {
    fn default() -> Unwritten {
        Unwritten {
            partners: (-STACK_SIZE..0).map(|at| (at, at)).collect(),
            seen: BTreeMap::new(),
            followed: false,
            missed: false,
        }
    }
}

impl Unwritten {
    /// The byte at a place of the first frame or of the second.
    pub(crate) fn byte(&self, terms: &mut Terms, first: bool, at: i64) -> T {
        let name = match self.partners.get(&at) {
            _ if first => format!("{NAME}{at}"),
            Some(partner) => format!("{NAME}{partner}"),
            None => format!("{NAME}{OWN}{at}"),
        };
        terms.var(&name, Sort::Bits(8))
    }

    /// Which byte of the first frame or of the second a term is.
    pub(crate) fn place(&self, terms: &Terms, first: bool, t: T) -> Option<i64> {
        let Node::App(f, args) = terms.node(t) else { return None };
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

    /// Bytes of the first frame and of the second that were seen to stand for each other.
    pub(crate) fn meet(&mut self, pairs: impl IntoIterator<Item = (i64, i64)>) {
        for pair in pairs {
            *self.seen.entry(pair).or_insert(0) += 1;
        }
    }

    /// Chooses the correspondence that what was seen speaks for most; `false` if that is the one there is.
    pub(crate) fn learn(&mut self) -> bool {
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
        // What was not seen: as what lies nearest, or where it is.
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

impl World {
    /// Looks for bytes that stand for each other where two states differ.
    pub(crate) fn meet_in(&mut self, a: &State, b: &State) {
        if !self.unwritten.followed {
            return;
        }
        let mut todo: Vec<(T, T)> = vec![(a.path, b.path), (a.length, b.length)];
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
                // Operands may be the other way around; which way they are need not be seen yet.
                if matches!(self.terms.node(x), Node::Prim(..))
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
        self.unwritten.meet(met);
    }

    /// Which byte of the first frame one term is, and which of the second the other.
    fn places(&self, x: T, y: T) -> (Option<i64>, Option<i64>) {
        (self.unwritten.place(&self.terms, true, x), self.unwritten.place(&self.terms, false, y))
    }

    /// Whether two terms may stand for each other: none, if they are no bytes of the frames and not the same operation on as
    /// many parts; most, if they are the same.
    fn likeness(&self, x: T, y: T) -> u32 {
        match self.places(x, y) {
            _ if x == y => 2,
            (Some(_), Some(_)) => 1,
            (None, None) => u32::from(is_alike(&self.terms, x, y)),
            _ => 0,
        }
    }
}

/// Two values as numbers, if they are.
fn numbers(values: &Values, x: V, y: V) -> Option<(T, T)> {
    match (values.kind(x), values.kind(y)) {
        (Kind::Number(x), Kind::Number(y)) => Some((x, y)),
        _ => None,
    }
}

/// What a term is made of; of a sum by their factors, which say more than their order.
fn parts(terms: &Terms, t: T) -> Vec<T> {
    match terms.node(t) {
        Node::Sum(summands, _) => {
            let mut summands = summands.to_vec();
            summands.sort_by_key(|(_, factor)| *factor);
            summands.into_iter().map(|(t, _)| t).collect()
        }
        _ => terms.parts_of(t),
    }
}

/// Whether two terms are the same operation, on as many parts.
fn is_alike(terms: &Terms, x: T, y: T) -> bool {
    let (a, b) = (terms.node(x), terms.node(y));
    let same = match (a, b) {
        (Node::App(f, _), Node::App(g, _)) => f == g,
        (Node::Prim(p, ..), Node::Prim(q, ..)) => p == q,
        _ => discriminant(a) == discriminant(b),
    };
    same && terms.parts_of(x).len() == terms.parts_of(y).len()
}

/// Bytes of both frames that two ways were joined at, by what stands there on the other way.
#[derive(Default)]
pub(crate) struct Beside(BTreeMap<(usize, T), [Vec<i64>; 2]>);

impl Beside {
    /// Notes an unwritten byte of a side's frame on one of the ways, and what stands there on the other way.
    pub(crate) fn note(&mut self, way: usize, other: T, side: usize, at: i64) {
        self.0.entry((way, other)).or_default()[side].push(at);
    }

    /// Which stand for each other: those that are beside the same, as many in both.
    pub(crate) fn pairs(self) -> Vec<(i64, i64)> {
        let lists = self.0.into_values().filter(|[a, b]| a.len() == b.len());
        lists.flat_map(|[a, b]| a.into_iter().zip(b)).collect()
    }
}
