//! Joins the states of two ways to one place, of both programs: terms that agree on both ways stay, all
//! others become variables.
//!
//! A way brings a state of each program ([`StatePair`]), over terms of its own. A position holds one term on
//! the first way and one on the second. Positions with the same two terms get the same variable, in either
//! program, so that terms that the two programs share on each way are shared afterwards (the least general
//! generalisation of G. Plotkin).
//!
//! Architecture Invariant: either pair is an instance of the joined one, under a substitution of its
//! variables by terms, and the condition of the joined pair holds on either way.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::explain::shown;
use crate::range::ValueRanges;
use crate::state::{
    SymbolicByte, SymbolicFrame, SymbolicState, byte, initial_chain, initial_memory, put, where_put, whole,
};
use crate::term::{ADDRESS, Literal, MOST_LITERALS, Sort, TermId, TermNode, TermPool, facts};
use crate::uninitialized::{UninitializedJoin, UninitializedStack};
use crate::value::{PointerRegion, SymbolicValues, ValueId, ValueKind};

/// Most constants that are kept as a choice between them.
const MOST_CONSTANTS: usize = 4;

/// A state of each program, under one condition, with the terms that they refer to.
#[derive(Debug)]
pub(crate) struct StatePair {
    pub(crate) terms: TermPool,
    pub(crate) values: SymbolicValues,
    pub(crate) states: [SymbolicState; 2],
}

/// Result of a join.
pub(crate) struct JoinResult {
    pub(crate) pair: StatePair,
    /// True if the second is an instance of the first: nothing was forgotten.
    pub(crate) instance: bool,
    /// Unwritten bytes of the two frames that were seen to correspond.
    pub(crate) met: Vec<(i64, i64)>,
}

/// Terms and values of one of the two ways.
struct JoinSide<'a> {
    terms: &'a mut TermPool,
    values: &'a mut SymbolicValues,
}

/// Terms and values of the join that stand for those of the two ways.
#[derive(Default)]
struct JoinImages {
    terms: FxHashMap<(TermId, TermId), TermId>,
    values: FxHashMap<(ValueId, ValueId), ValueId>,
    /// Copies of terms of one way alone.
    copies: [FxHashMap<TermId, TermId>; 2],
}

/// A join under way. "Ours" is the first way.
struct StateJoin<'a> {
    ours: JoinSide<'a>,
    theirs: JoinSide<'a>,
    new: TermPool,
    values: SymbolicValues,
    images: JoinImages,
    /// Literals that always hold on each way.
    literals: [Rc<BTreeSet<Literal>>; 2],
    way: Option<TermId>,
    /// Term on the second way for each variable of the first.
    bound: FxHashMap<TermId, TermId>,
    instance: bool,
    /// True while no variable may be made: a term that needs one is given up.
    frozen: bool,
    /// True if bit vectors are widened more than needed, so that the fixed point is reached.
    widen: bool,
    /// True if a few constants stay a choice between them.
    keeps: bool,
    name: String,
    count: usize,
    unwritten: &'a UninitializedStack,
    beside: UninitializedJoin,
}

/// Relation between the two ways to a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PathRelation {
    /// The two come from different places.
    Meet,
    /// Like `Meet`, and the way of each constant is recorded.
    Kept,
    /// The second has come round from the first.
    Again,
}

/// Joins two pairs at one place. `number` distinguishes the variables from those of other joins.
pub(crate) fn join(
    ours: &mut StatePair,
    theirs: &mut StatePair,
    unwritten: &UninitializedStack,
    number: usize,
    limit: usize,
    ways: PathRelation,
) -> JoinResult {
    let forms = ours.terms.forms();
    let literals = [&*ours, &*theirs].map(|p| Rc::new(facts::implied(&p.terms, p.states[0].path)));
    let mut join = StateJoin {
        new: TermPool::of(limit, forms),
        values: SymbolicValues::default(),
        ours: JoinSide { terms: &mut ours.terms, values: &mut ours.values },
        theirs: JoinSide { terms: &mut theirs.terms, values: &mut theirs.values },
        images: JoinImages::default(),
        bound: FxHashMap::default(),
        literals,
        way: None,
        instance: true,
        frozen: false,
        widen: ways == PathRelation::Again,
        keeps: ways == PathRelation::Kept,
        name: format!("join {number}"),
        count: 0,
        unwritten,
        beside: UninitializedJoin::default(),
    };
    let [a, b] = [0, 1].map(|side| join.state(side, &ours.states[side], &theirs.states[side]));
    let facts = join.facts(&ours.states[0].facts, &theirs.states[0].facts);
    let ranges = join.ranges(&ours.states[0].ranges, &theirs.states[0].ranges);
    let mut path = join.condition();
    for fact in &facts {
        path = join.new.and(&[path, *fact]);
    }
    let instance = join.instance;
    let states = [a, b].map(|s| SymbolicState { path, facts: facts.clone(), ranges: ranges.clone(), ..s });
    let met = join.beside.pairs();
    JoinResult { pair: StatePair { terms: join.new, values: join.values, states }, instance, met }
}

impl StateJoin<'_> {
    /// Joins the states of one side, except for their conditions.
    fn state(&mut self, side: usize, a: &SymbolicState, b: &SymbolicState) -> SymbolicState {
        if let (Some(x), Some(y)) = (a.frames.first(), b.frames.first()) {
            self.note_unwritten(side, x, y);
        }
        let mut regs = a.regs;
        for (r, other) in regs.iter_mut().zip(b.regs) {
            *r = self.value(*r, other);
        }
        let mut saved = a.saved.clone();
        for (x, y) in saved.iter_mut().flatten().zip(b.saved.iter().flatten()) {
            *x = self.value(*x, *y);
        }
        let frames = a.frames.iter().zip(&b.frames).map(|(x, y)| Rc::new(self.frame(x, y))).collect();
        let memory = self.by_key(&a.memory, &b.memory, initial_memory);
        let chains = self.by_key(&a.chains, &b.chains, initial_chain);
        let length = self.any(a.length, b.length);
        let metadata = self.any(a.metadata, b.metadata);
        let path = self.new.truth(true);
        SymbolicState {
            path,
            facts: BTreeSet::new(),
            ranges: ValueRanges::default(),
            regs,
            frames,
            saved,
            memory,
            chains,
            length,
            metadata,
        }
    }

    fn by_key<K: Ord + Copy>(
        &mut self,
        a: &BTreeMap<K, TermId>,
        b: &BTreeMap<K, TermId>,
        initial: fn(&mut TermPool, K) -> TermId,
    ) -> BTreeMap<K, TermId> {
        let keys: BTreeSet<K> = a.keys().chain(b.keys()).copied().collect();
        let mut out = BTreeMap::new();
        for key in keys {
            let x = a.get(&key).copied().unwrap_or_else(|| initial(self.ours.terms, key));
            let y = b.get(&key).copied().unwrap_or_else(|| initial(self.theirs.terms, key));
            out.insert(key, self.any(x, y));
        }
        out
    }

    /// Notes the unwritten bytes of a side's frame on one way, and the cells there on the other.
    fn note_unwritten(&mut self, side: usize, a: &SymbolicFrame, b: &SymbolicFrame) {
        for (at, x) in a {
            let Some(y) = b.get(at) else { continue };
            let x = byte(self.ours.terms, self.ours.values, *x);
            let y = byte(self.theirs.terms, self.theirs.values, *y);
            let (Some(x), Some(y)) = (x, y) else { continue };
            let first = side == 0;
            let place = self.unwritten.place(self.ours.terms, first, x);
            let other = self.unwritten.place(self.theirs.terms, first, y);
            match (place, other) {
                (Some(place), None) => self.beside.note(0, y, side, place),
                (None, Some(place)) => self.beside.note(1, x, side, place),
                _ => {}
            }
        }
    }

    /// Joins the bytes that were put on either way.
    fn frame(&mut self, a: &SymbolicFrame, b: &SymbolicFrame) -> SymbolicFrame {
        let mut out = SymbolicFrame::new();
        let starts = |f: &SymbolicFrame| -> Vec<i64> {
            f.iter().filter(|(_, c)| matches!(c, SymbolicByte::Part(_, 0))).map(|(at, _)| *at).collect()
        };
        for at in starts(a).into_iter().chain(starts(b)) {
            if !out.contains_key(&at)
                && let Some(v) = whole(self.ours.terms, self.ours.values, a, at)
                && let Some(w) = whole(self.theirs.terms, self.theirs.values, b, at)
            {
                let v = self.value(v, w);
                out.extend((0..8u8).map(|i| (at + i64::from(i), SymbolicByte::Part(v, i))));
            }
        }
        let mut at = a.keys().next().copied().unwrap_or(0);
        while let Some(start) = a.range(at..).next().map(|(at, _)| *at) {
            at = start + 1;
            if out.contains_key(&start) {
                continue;
            }
            // A value stored as a whole is joined as a whole: the other program may hold it in a register.
            let size = [8, 4, 2, 1].into_iter().find(|n| {
                start.rem_euclid(*n) == 0
                    && (start..start + n).all(|i| is_there(a, i) && is_there(b, i) && !out.contains_key(&i))
            });
            let Some(size) = size else { continue };
            at = start + size;
            let (x, y) = (self.stacked(0, a, start, size), self.stacked(1, b, start, size));
            if let (Some(x), Some(y)) = (x, y) {
                let t = self.any(x, y);
                let byte = |i: i64| SymbolicByte::Byte(self.new.byte_of(t, size as u32, i as u32));
                let cells: Vec<SymbolicByte> = (0..size).map(byte).collect();
                out.extend((start..).zip(cells));
            }
        }
        self.halves(a, b, &mut out);
        out
    }

    /// Joins bytes that were put on a way only under some condition.
    fn halves(&mut self, a: &SymbolicFrame, b: &SymbolicFrame, out: &mut SymbolicFrame) {
        let places: BTreeSet<i64> = a.keys().chain(b.keys()).copied().collect();
        for at in places.into_iter().filter(|at| !out.contains_key(at)).collect::<Vec<i64>>() {
            let (d, x) = put(self.ours.terms, self.ours.values, a.get(&at).copied());
            let (e, y) = put(self.theirs.terms, self.theirs.values, b.get(&at).copied());
            let t = match (x, y) {
                (Some(x), Some(y)) => self.any(x, y),
                (Some(x), None) => self.copy(0, x),
                // Not for a byte put only in a later round of a loop, which would be special to that round.
                (None, Some(y)) if !self.widen => self.copy(1, y),
                _ => {
                    self.instance &= !a.contains_key(&at);
                    continue;
                }
            };
            let defined = self.any(d, e);
            out.extend(where_put(&self.new, defined, t).map(|cell| (at, cell)));
        }
    }

    /// Bytes of the stack on one of the ways as one vector.
    fn stacked(&mut self, which: usize, frame: &SymbolicFrame, at: i64, size: i64) -> Option<TermId> {
        let (terms, values) = match which {
            0 => (&mut *self.ours.terms, &mut *self.ours.values),
            _ => (&mut *self.theirs.terms, &mut *self.theirs.values),
        };
        let bytes: Option<Vec<TermId>> =
            (at..at + size).map(|i| byte(terms, values, *frame.get(&i)?)).collect();
        Some(terms.word(&bytes?))
    }

    fn value(&mut self, a: ValueId, b: ValueId) -> ValueId {
        if let Some(v) = self.images.values.get(&(a, b)) {
            return *v;
        }
        let out = match (self.ours.values.kind(a), self.theirs.values.kind(b)) {
            (ValueKind::Undefined, _) => self.values.undefined(),
            (_, ValueKind::Undefined) => {
                self.instance = false;
                self.values.undefined()
            }
            (ValueKind::Number(x), ValueKind::Number(y)) => {
                let t = self.any(x, y);
                self.values.number(t)
            }
            (ValueKind::Pointer(r, x), ValueKind::Pointer(s, y)) if self.same_region(r, s) => {
                let region = match (r, s) {
                    (PointerRegion::In(space, o), PointerRegion::In(_, p)) => {
                        PointerRegion::In(space, self.any(o, p))
                    }
                    (PointerRegion::InnerMap(map, o), PointerRegion::InnerMap(_, p)) => {
                        PointerRegion::InnerMap(map, self.any(o, p))
                    }
                    _ => r,
                };
                let t = self.any(x, y);
                self.values.pointer(region, t)
            }
            _ => self.choices(a, b),
        };
        self.images.values.insert((a, b), out);
        out
    }

    /// Joins values of which at least one is a choice, or that are of different kinds.
    fn choices(&mut self, a: ValueId, b: ValueId) -> ValueId {
        match (self.ours.values.kind(a), self.theirs.values.kind(b)) {
            (ValueKind::Choice(c, x, y), ValueKind::Choice(mut d, mut z, mut w)) => {
                if !self.fits(x, z) && self.fits(x, w) {
                    (d, z, w) = (self.theirs.terms.not(d), w, z);
                }
                let (c, x, y) = (self.any(c, d), self.value(x, z), self.value(y, w));
                self.values.choice(&mut self.new, c, x, y)
            }
            // One of the alternatives, always.
            (ValueKind::Choice(c, x, y), _) if self.fits(x, b) || self.fits(y, b) => {
                let first = self.fits(x, b);
                let always = self.theirs.terms.truth(first);
                let c = self.any(c, always);
                let (x, y) = match first {
                    true => (self.value(x, b), self.copy_value(0, y)),
                    false => (self.copy_value(0, x), self.value(y, b)),
                };
                self.values.choice(&mut self.new, c, x, y)
            }
            (_, ValueKind::Choice(d, z, w)) if self.fits(a, z) || self.fits(a, w) => {
                self.instance = false;
                let first = self.fits(a, z);
                let always = self.ours.terms.truth(first);
                let c = self.any(always, d);
                let (x, y) = match first {
                    true => (self.value(a, z), self.copy_value(1, w)),
                    false => (self.copy_value(1, z), self.value(a, w)),
                };
                self.values.choice(&mut self.new, c, x, y)
            }
            _ => {
                self.instance = false;
                let way = self.way();
                let (x, y) = (self.copy_value(0, a), self.copy_value(1, b));
                self.values.choice(&mut self.new, way, x, y)
            }
        }
    }

    /// Returns true if a value of the second way has the kind of one of the first, or of one of its
    /// alternatives.
    fn fits(&self, a: ValueId, b: ValueId) -> bool {
        match (self.ours.values.kind(a), self.theirs.values.kind(b)) {
            (ValueKind::Choice(_, x, y), _) => self.fits(x, b) || self.fits(y, b),
            (_, ValueKind::Choice(_, z, w)) => self.fits(a, z) || self.fits(a, w),
            (ValueKind::Number(_), ValueKind::Number(_)) => true,
            (ValueKind::Pointer(r, _), ValueKind::Pointer(s, _)) => self.same_region(r, s),
            _ => false,
        }
    }

    /// A condition that holds on the first way and not on the second: an atom if there is one, else a
    /// variable.
    fn way(&mut self) -> TermId {
        if let Some(way) = self.way {
            return way;
        }
        let [ours, theirs] = self.literals.clone();
        self.frozen = true;
        let apart = ours.iter().find_map(|(x, holds)| {
            let other = theirs.iter().filter(|(_, h)| h != holds);
            other.into_iter().find_map(|(y, _)| self.term(*x, *y)).map(|atom| (atom, *holds))
        });
        self.frozen = false;
        let way = match apart {
            Some((atom, true)) => atom,
            Some((atom, false)) => self.new.not(atom),
            None => self.new.var(&format!("{} way", self.name), Sort::Bool),
        };
        self.way = Some(way);
        way
    }

    /// Returns true if two regions differ at most in the object of a space.
    fn same_region(&self, a: PointerRegion, b: PointerRegion) -> bool {
        match (a, b) {
            (PointerRegion::In(s, _), PointerRegion::In(t, _)) => s == t,
            (PointerRegion::InnerMap(m, _), PointerRegion::InnerMap(n, _)) => m == n,
            _ => a == b,
        }
    }

    /// A value of one of the two ways, unchanged: on the other way it does not matter.
    fn copy_value(&mut self, which: usize, v: ValueId) -> ValueId {
        let kind = [&*self.ours.values, &*self.theirs.values][which].kind(v);
        match kind {
            ValueKind::Undefined => self.values.undefined(),
            ValueKind::Number(t) => {
                let t = self.copy(which, t);
                self.values.number(t)
            }
            ValueKind::Pointer(region, offset) => {
                let region = match region {
                    PointerRegion::In(space, o) => PointerRegion::In(space, self.copy(which, o)),
                    PointerRegion::InnerMap(map, o) => PointerRegion::InnerMap(map, self.copy(which, o)),
                    other => other,
                };
                let offset = self.copy(which, offset);
                self.values.pointer(region, offset)
            }
            ValueKind::Choice(c, a, b) => {
                let (c, a, b) = (self.copy(which, c), self.copy_value(which, a), self.copy_value(which, b));
                self.values.choice(&mut self.new, c, a, b)
            }
        }
    }

    fn copy(&mut self, which: usize, t: TermId) -> TermId {
        if let Some(image) = self.images.copies[which].get(&t) {
            return *image;
        }
        let parts = [&*self.ours.terms, &*self.theirs.terms][which].parts_of(t);
        for part in parts {
            self.copy(which, part);
        }
        let (from, images) = ([&*self.ours.terms, &*self.theirs.terms][which], &self.images.copies[which]);
        let image = self.new.copy(from, t, |part| images[&part]);
        self.images.copies[which].insert(t, image);
        image
    }

    /// Literals that always hold on both ways, as far as they need no new variable.
    fn condition(&mut self) -> TermId {
        let [ours, theirs] = self.literals.clone();
        let mut all = self.new.truth(true);
        // There may be more than are listed.
        self.instance &= ours.len() < MOST_LITERALS;
        self.frozen = true;
        for (x, holds) in ours.iter().copied() {
            let image = theirs.iter().filter(|(_, h)| *h == holds).find_map(|(y, _)| self.term(x, *y));
            match image {
                Some(atom) => {
                    let literal = if holds { atom } else { self.new.not(atom) };
                    all = self.new.and(&[all, literal]);
                }
                None => self.instance = false,
            }
        }
        self.frozen = false;
        all
    }

    /// Facts of both ways, as far as they need no new variable.
    fn facts(&mut self, ours: &BTreeSet<TermId>, theirs: &BTreeSet<TermId>) -> BTreeSet<TermId> {
        self.frozen = true;
        let images: Vec<Option<TermId>> =
            ours.iter().map(|x| theirs.iter().find_map(|y| self.term(*x, *y))).collect();
        self.frozen = false;
        self.instance &= images.iter().all(Option::is_some);
        images.into_iter().flatten().filter(|t| self.new.known(*t).is_none()).collect()
    }

    /// Ranges of numbers of both ways, as far as that needs no new variable.
    fn ranges(&mut self, ours: &ValueRanges, theirs: &ValueRanges) -> ValueRanges {
        self.frozen = true;
        let (ranges, all) = ours.generalized(theirs, self.widen, |x, y| self.term(x, y));
        self.frozen = false;
        self.instance &= all;
        ranges
    }

    fn any(&mut self, a: TermId, b: TermId) -> TermId {
        self.term(a, b).expect("only what is frozen is given up")
    }

    /// Generalisation of two terms; [`None`] if that needs a variable and none may be made.
    fn term(&mut self, a: TermId, b: TermId) -> Option<TermId> {
        if let Some(t) = self.images.terms.get(&(a, b)) {
            return Some(*t);
        }
        let out = match self.alike(a, b) {
            true => self.structure(a, b)?,
            false => self.variable(a, b)?,
        };
        self.images.terms.insert((a, b), out);
        Some(out)
    }

    /// Returns true if two terms are the same operation on parts of the same sorts.
    fn alike(&self, a: TermId, b: TermId) -> bool {
        if self.ours.terms.sort(a) != self.theirs.terms.sort(b) {
            return false;
        }
        let same = match (self.ours.terms.node(a), self.theirs.terms.node(b)) {
            (TermNode::Truth(x), TermNode::Truth(y)) => x == y,
            (TermNode::Const(x), TermNode::Const(y)) => x == y,
            (TermNode::App(f, x), TermNode::App(g, y)) => {
                x.len() == y.len() && self.ours.terms.name(*f) == self.theirs.terms.name(*g)
            }
            (TermNode::Prim(x, ..), TermNode::Prim(y, ..)) => x == y,
            (TermNode::Sum(x, k), TermNode::Sum(y, l)) => {
                k == l && x.len() == y.len() && x.iter().zip(y.iter()).all(|((_, c), (_, d))| c == d)
            }
            (TermNode::Concat(x), TermNode::Concat(y)) => x.len() == y.len(),
            (TermNode::Extract(_, h, l), TermNode::Extract(_, i, m)) => (h, l) == (i, m),
            (TermNode::SignExtend(_), TermNode::SignExtend(_)) => true,
            (TermNode::Compare(p, ..), TermNode::Compare(q, ..)) => p == q,
            (TermNode::Ite(..), TermNode::Ite(..))
            | (TermNode::Select(..), TermNode::Select(..))
            | (TermNode::Store(..), TermNode::Store(..)) => true,
            _ => false,
        };
        let sorts = |terms: &TermPool, t: TermId| -> Vec<Sort> {
            terms.parts_of(t).into_iter().map(|p| terms.sort(p)).collect()
        };
        same && sorts(self.ours.terms, a) == sorts(self.theirs.terms, b)
    }

    /// The same operation on the generalisations of the parts.
    fn structure(&mut self, a: TermId, b: TermId) -> Option<TermId> {
        let (ours, theirs) = (self.ours.terms.parts_of(a), self.theirs.terms.parts_of(b));
        if ours.is_empty() && matches!(self.ours.terms.node(a), TermNode::App(..)) {
            self.bind(a, b)?;
        }
        let mut images = FxHashMap::default();
        for (x, y) in ours.into_iter().zip(theirs) {
            // A part that occurs twice on one way may be two different terms on the other.
            let image = self.term(x, y)?;
            if images.insert(x, image).is_some_and(|before| before != image) {
                return self.variable(a, b);
            }
        }
        let ours = &*self.ours.terms;
        Some(self.new.copy(ours, a, |part| images[&part]))
    }

    /// Binds a variable of the first way to a term of the second. The second is an instance only if each
    /// variable is bound to one term. [`None`] if it is bound to another and the join is frozen.
    fn bind(&mut self, a: TermId, b: TermId) -> Option<()> {
        if *self.bound.entry(a).or_insert(b) != b {
            if self.frozen {
                return None;
            }
            self.instance = false;
        }
        Some(())
    }

    /// A variable for two terms, of as many bits as either may have set.
    fn variable(&mut self, a: TermId, b: TermId) -> Option<TermId> {
        let sort = self.ours.terms.sort(a);
        if let Sort::Bits(bits) = sort
            && !self.frozen
        {
            let bits = u32::from(bits);
            let (high, low) = self.bounds(a, b, bits);
            if high > 0 || low > 0 {
                let (top, bottom) = (bits - 1 - high, low);
                let (x, y) =
                    (self.ours.terms.extract(a, top, bottom), self.theirs.terms.extract(b, top, bottom));
                let middle = self.term(x, y)?;
                return Some(self.new.between_zeros(high, middle, low));
            }
        }
        if let Some(pieces) = self.pieces(a, b) {
            let parts: Option<Vec<TermId>> = pieces.into_iter().map(|(x, y)| self.term(x, y)).collect();
            return Some(self.new.concat(&parts?));
        }
        if self.frozen {
            return None;
        }
        match self.ours.terms.node(a) {
            TermNode::App(_, args) if args.is_empty() => self.bind(a, b)?,
            _ => self.instance = false,
        }
        if let Some(chosen) = self.chosen(a, b) {
            return Some(chosen);
        }
        self.count += 1;
        let address =
            if self.ours.terms.has_address(a) || self.theirs.terms.has_address(b) { ADDRESS } else { "" };
        let name = format!("{address}{}, {}", self.name, self.count);
        if tracing::enabled!(tracing::Level::TRACE) {
            let (x, y) = (shown(self.ours.terms, a, 8), shown(self.theirs.terms, b, 8));
            tracing::trace!("{name} is {x:.400} or {y:.400}");
        }
        Some(self.new.var(&name, sort))
    }

    /// A choice between a few constants. Its condition tells the ways apart, along with other values that
    /// differ.
    fn chosen(&mut self, a: TermId, b: TermId) -> Option<TermId> {
        let few = |terms: &TermPool, t| constants(terms, t, MOST_CONSTANTS);
        if !self.keeps || few(self.ours.terms, a)? + few(self.theirs.terms, b)? > MOST_CONSTANTS {
            return None;
        }
        let (way, x, y) = (self.way(), self.copy(0, a), self.copy(1, b));
        Some(self.new.ite(way, x, y))
    }

    /// Splits two vectors into pieces, the most significant first, at the seams that both have.
    fn pieces(&mut self, a: TermId, b: TermId) -> Option<Vec<(TermId, TermId)>> {
        let (x, y) = (seams(self.ours.terms, a)?, seams(self.theirs.terms, b)?);
        let bits = self.ours.terms.bits(a);
        let mut cuts: Vec<u32> = (1..bits).filter(|n| (x & y) >> n & 1 != 0).collect();
        if cuts.is_empty() {
            return None;
        }
        cuts.push(bits);
        let mut low = 0;
        let mut out = Vec::with_capacity(cuts.len());
        for high in cuts {
            out.push((
                self.ours.terms.extract(a, high - 1, low),
                self.theirs.terms.extract(b, high - 1, low),
            ));
            low = high;
        }
        out.reverse();
        Some(out)
    }

    /// Numbers of bits that are zero in both terms at the top and at the bottom.
    fn bounds(&mut self, a: TermId, b: TermId, bits: u32) -> (u32, u32) {
        let (x, y) = (facts::possible(self.ours.terms, a), facts::possible(self.theirs.terms, b));
        let possible = x | y;
        if possible == 0 {
            return (0, 0);
        }
        let (mut used, mut low) = (64 - possible.leading_zeros(), possible.trailing_zeros());
        // A value that grows in each round is widened at once.
        if self.widen && y & !x != 0 {
            used = [1, 8, 16, 32, 64].into_iter().find(|n| used <= *n).unwrap_or(64).min(bits);
            low = 0;
        }
        (bits - used, low)
    }
}

/// Number of constants that a term chooses between; [`None`] if there are more than `most`, or other terms.
fn constants(terms: &TermPool, t: TermId, most: usize) -> Option<usize> {
    match *terms.node(t) {
        TermNode::Const(_) | TermNode::Truth(_) if most > 0 => Some(1),
        TermNode::Ite(_, a, b) => {
            let first = constants(terms, a, most)?;
            Some(first + constants(terms, b, most - first)?)
        }
        _ => None,
    }
}

/// Returns true if a byte was put there unconditionally.
fn is_there(frame: &SymbolicFrame, at: i64) -> bool {
    frame.get(&at).is_some_and(SymbolicByte::is_whole)
}

/// Bits at which a vector may be split without splitting a part; a constant between any two bytes.
fn seams(terms: &TermPool, t: TermId) -> Option<u64> {
    match terms.node(t) {
        TermNode::Const(_) => Some(0x0101_0101_0101_0101),
        TermNode::Concat(parts) => {
            let mut at = 0;
            let mut out = 0u64;
            for p in parts.iter().rev() {
                out |= 1 << at;
                if matches!(terms.node(*p), TermNode::Const(_)) {
                    let inner = (at..at + terms.bits(*p)).filter(|n| n % 8 == 0);
                    out |= inner.fold(0, |all, n| all | 1u64 << n);
                }
                at += terms.bits(*p);
            }
            Some(out)
        }
        _ => None,
    }
}
