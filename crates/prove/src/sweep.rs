//! Finds terms that are equal though they are built differently, from the leaves up.
//!
//! Every term is evaluated under some hundred assignments. Terms that agree in all are candidates for
//! equality. The solver is asked about them in the order in which they were made, with known equal terms
//! merged: so each question is small, and terms above merged ones mostly become the same by themselves
//! (equivalence checkers of circuits call it sweeping). Memories and calls are merged, too: the value of a
//! memory under an assignment is computed from its bytes, in whatever order they were stored.

use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHasher};

use crate::solver::{SolverAnswer, SolverSession};
use crate::term::{Sort, TermId, TermNode, TermPool, congruence, eval, mask};

/// Assignments.
const ROUNDS: usize = 192;
/// Most stores above a memory that are searched for a byte.
const MOST_STORES: usize = 256;
/// Most terms of one signature that a new one is compared with.
const MOST_CANDIDATES: usize = 4;

/// Equal terms, so far.
pub(crate) struct SatSweeper<'a> {
    terms: &'a mut TermPool,
    session: &'a mut SolverSession,
    /// Image of each term.
    image: FxHashMap<TermId, TermId>,
    values: FxHashMap<TermId, Box<[u64]>>,
    classes: FxHashMap<(u64, Sort), Vec<TermId>>,
    /// Constants of the programs, which tests are likely to compare with.
    constants: Vec<u64>,
    deadline: Instant,
    each: Duration,
    pub(crate) merged: usize,
    pub(crate) asked: usize,
}

impl<'a> SatSweeper<'a> {
    pub(crate) fn new(
        terms: &'a mut TermPool,
        session: &'a mut SolverSession,
        time: Duration,
        each: Duration,
    ) -> SatSweeper<'a> {
        SatSweeper {
            terms,
            session,
            image: FxHashMap::default(),
            values: FxHashMap::default(),
            classes: FxHashMap::default(),
            constants: Vec::new(),
            deadline: Instant::now() + time,
            each,
            merged: 0,
            asked: 0,
        }
    }

    /// The claims with equal terms merged.
    pub(crate) fn run(&mut self, claims: &[TermId]) -> Vec<TermId> {
        let cone = cone(self.terms, claims);
        self.harvest(&cone);
        for t in cone {
            let rebuilt = self.rebuild(t);
            let image = self.place(rebuilt);
            self.image.insert(t, image);
        }
        claims.iter().map(|c| self.image[c]).collect()
    }

    fn harvest(&mut self, cone: &[TermId]) {
        for t in cone {
            if let TermNode::Const(v) = self.terms.node(*t) {
                self.constants.push(*v);
            }
        }
        self.constants.sort_unstable();
        self.constants.dedup();
        if self.constants.is_empty() {
            self.constants.push(0);
        }
    }

    fn rebuild(&mut self, t: TermId) -> TermId {
        let image = &self.image;
        self.terms.rebuild(t, |part| image.get(&part).copied().unwrap_or(part))
    }

    /// The representative of `t`: an earlier equal term, or itself.
    fn place(&mut self, t: TermId) -> TermId {
        if let Some(known) = self.image.get(&t) {
            return *known;
        }
        // Rebuilding may make terms that are not part of the claims.
        for part in cone(self.terms, &[t]) {
            self.evaluate(part);
        }
        let sort = self.terms.sort(t);
        if self.terms.value(t).is_some() || self.terms.known(t).is_some() {
            return t;
        }
        let signature = (hash(&self.values[&t]), sort);
        let candidates = self.classes.get(&signature).cloned().unwrap_or_default();
        if candidates.contains(&t) {
            return t;
        }
        if let Some(constant) = self.constant(t, sort)
            && self.proven_equal(t, constant)
        {
            return constant;
        }
        for c in candidates.iter().take(MOST_CANDIDATES) {
            if self.proven_equal(t, *c) {
                return *c;
            }
        }
        self.classes.entry(signature).or_default().push(t);
        t
    }

    /// The constant that a term seems to be equal to.
    fn constant(&mut self, t: TermId, sort: Sort) -> Option<TermId> {
        let values = &self.values[&t];
        let first = values[0];
        if values.iter().any(|v| *v != first) {
            return None;
        }
        match sort {
            Sort::Bool => Some(self.terms.truth(first != 0)),
            Sort::Bits(bits) => Some(self.terms.constant(u32::from(bits), first)),
            Sort::Memory | Sort::Token => None,
        }
    }

    fn proven_equal(&mut self, a: TermId, b: TermId) -> bool {
        // To a solver a store is a function like any other: memories are equal if their parts are.
        let claim = congruence::congruent(self.terms, a, b);
        if let Some(known) = self.terms.known(claim) {
            self.merged += usize::from(known);
            return known;
        }
        if Instant::now() >= self.deadline {
            return false;
        }
        self.asked += 1;
        let valid = matches!(self.session.valid(self.terms, claim, &[], self.each), Ok(SolverAnswer::Valid));
        self.merged += usize::from(valid);
        valid
    }

    fn evaluate(&mut self, t: TermId) {
        if self.values.contains_key(&t) {
            return;
        }
        let mut out = vec![0u64; ROUNDS].into_boxed_slice();
        for (round, slot) in out.iter_mut().enumerate() {
            let v = |x: TermId| self.values[&x][round];
            *slot = eval::combine(self.terms, t, v).unwrap_or_else(|| self.invented(t, round));
        }
        self.values.insert(t, out);
    }

    /// The value of a term without a meaning of its own: a function of the values of its parts, or of the
    /// bytes and their places.
    fn invented(&self, t: TermId, round: usize) -> u64 {
        let value = |t: TermId| self.values[&t][round];
        match *self.terms.node(t) {
            TermNode::Select(memory, object, offset) => {
                if let Some((byte, _)) = self.byte_at(memory, (value(object), value(offset)), round) {
                    return byte;
                }
            }
            TermNode::Store(below, object, offset, byte) => {
                let place = (value(object), value(offset));
                if let Some((was, own)) = self.byte_at(below, place, round) {
                    let without = value(below).wrapping_sub(share(place, was, own));
                    return without.wrapping_add(share(place, value(byte), own));
                }
            }
            _ => {}
        }
        let mut h = FxHasher::default();
        if let TermNode::App(f, _) = self.terms.node(t) {
            f.hash(&mut h);
        }
        for part in self.terms.parts_of(t) {
            self.values[&part][round].hash(&mut h);
        }
        self.answer(h.finish(), self.terms.sort(t), round)
    }

    /// The byte of a memory at a place, and the byte there before all stores; [`None`] if there are too many
    /// stores.
    fn byte_at(&self, mut memory: TermId, place: (u64, u64), round: usize) -> Option<(u64, u64)> {
        let value = |t: TermId| self.values[&t][round];
        let (mut stored, mut stores) = (None, 0);
        loop {
            match *self.terms.node(memory) {
                TermNode::Store(below, object, offset, byte) => {
                    stores += 1;
                    if stores > MOST_STORES {
                        return None;
                    }
                    if (value(object), value(offset)) == place {
                        stored = stored.or(Some(value(byte)));
                    }
                    memory = below;
                }
                TermNode::Ite(c, then, other) => memory = if value(c) != 0 { then } else { other },
                _ => break,
            }
        }
        let mut h = FxHasher::default();
        [value(memory), place.0, place.1].hash(&mut h);
        let own = self.answer(h.finish(), Sort::Bits(8), round);
        Some((stored.unwrap_or(own), own))
    }

    /// Value of an uninterpreted function, the same for the same arguments in one round: often a constant of
    /// the programs, so that their tests go both ways.
    fn answer(&self, seed: u64, sort: Sort, round: usize) -> u64 {
        let mut h = FxHasher::default();
        (seed, round).hash(&mut h);
        let mut r = h.finish();
        r ^= r >> 29;
        r = r.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        r ^= r >> 32;
        match sort {
            // In some rounds most questions are answered one way.
            Sort::Bool => match round % 3 {
                0 => r & 1,
                1 => u64::from(!r.is_multiple_of(8)),
                _ => u64::from(r.is_multiple_of(8)),
            },
            Sort::Bits(n) => {
                let value = match r % 4 {
                    0 => r >> 8,
                    1 => (r >> 8) % 64,
                    _ => {
                        // A byte of a constant if a byte is asked for.
                        let k = self.constants[(r >> 8) as usize % self.constants.len()];
                        if n == 8 { k >> (8 * (r >> 60 & 3)) } else { k }
                    }
                };
                value & mask(u32::from(n))
            }
            Sort::Memory | Sort::Token => r,
        }
    }
}

/// Contribution of a byte to the value of a memory: zero if it equals the byte before all stores.
fn share(place: (u64, u64), byte: u64, own: u64) -> u64 {
    if byte == own {
        return 0;
    }
    hash(&[place.0, place.1, byte])
}

fn hash(values: &[u64]) -> u64 {
    let mut h = FxHasher::default();
    values.hash(&mut h);
    h.finish()
}

/// All subterms of claims, each after its parts.
pub(crate) fn cone(terms: &TermPool, claims: &[TermId]) -> Vec<TermId> {
    let mut out = Vec::new();
    let mut seen = rustc_hash::FxHashSet::default();
    let mut todo: Vec<TermId> = claims.to_vec();
    while let Some(t) = todo.pop() {
        if seen.insert(t) {
            out.push(t);
            todo.extend(terms.parts_of(t));
        }
    }
    out.sort_unstable();
    out
}
