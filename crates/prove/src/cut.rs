//! Cuts two runs at places where they agree: every value that both compute alike becomes a variable.
//!
//! The largest terms that both sets of states share are replaced by new variables, in both alike. A property
//! that holds for all values of these variables holds for the values that the terms take. So a proof about
//! the rest is a proof about the whole; a proof may fail because of the facts forgotten about the variables.
//! Small terms are kept unchanged. Of the conditions under which a state is reached, the atoms that always
//! hold there are kept.
//!
//! Architecture Invariant: a cut only forgets. Every state before it is an instance of the one after it.

use std::collections::BTreeSet;
use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::state::{SymbolicByte, SymbolicFrame, SymbolicState};
use crate::sweep::cone;
use crate::term::{ADDRESS, Sort, TermId, TermNode, TermPool, facts};
use crate::value::{PointerRegion, SymbolicValues, ValueId, ValueKind};

/// Largest terms that are kept, in distinct subterms.
const SMALL: usize = 10;
/// Most stores above a memory that is kept.
const MOST_STORES: usize = 96;
/// Most subterms of a fact that is kept.
const MOST_OF_FACT: usize = 32;
/// Most atoms of a condition that are kept.
const MOST_ATOMS: usize = 40;

/// Infix in the names of conditions that record the way taken.
const WAY: &str = " way ";

/// A cut under way.
pub(crate) struct Cut<'a> {
    old: &'a mut TermPool,
    old_values: &'a SymbolicValues,
    pub(crate) new: TermPool,
    pub(crate) values: SymbolicValues,
    shared: FxHashSet<TermId>,
    images: FxHashMap<TermId, TermId>,
    /// Known values of numbers wherever the states are reached, and the images of terms after these are
    /// substituted.
    known: FxHashMap<TermId, u64>,
    settled: FxHashMap<TermId, TermId>,
    variables: FxHashMap<TermId, TermId>,
    value_images: FxHashMap<ValueId, ValueId>,
    /// Prefix of the names of new variables.
    name: String,
    made: usize,
}

impl<'a> Cut<'a> {
    /// A cut of the terms that both sides share; `number` distinguishes it from other cuts.
    pub(crate) fn new(
        old: &'a mut TermPool,
        old_values: &'a SymbolicValues,
        sides: [&[SymbolicState]; 2],
        number: usize,
        limit: usize,
    ) -> Cut<'a> {
        let [ours, theirs] = sides.map(|states| {
            let roots: Vec<TermId> = states.iter().flat_map(|s| roots(old_values, s)).collect();
            cone(old, &roots).into_iter().collect::<FxHashSet<TermId>>()
        });
        let shared = ours.intersection(&theirs).copied().collect();
        let forms = old.forms();
        Cut {
            old,
            old_values,
            new: TermPool::of(limit, forms),
            values: SymbolicValues::default(),
            shared,
            images: FxHashMap::default(),
            known: FxHashMap::default(),
            settled: FxHashMap::default(),
            variables: FxHashMap::default(),
            value_images: FxHashMap::default(),
            name: format!("cut {number}"),
            made: 0,
        }
    }

    /// A state after the cut, under the condition `path`.
    pub(crate) fn state(&mut self, s: &SymbolicState, path: TermId) -> SymbolicState {
        let regs = s.regs.map(|v| self.value(v));
        let saved = s.saved.iter().map(|f| f.map(|v| self.value(v))).collect();
        let frames = s.frames.iter().map(|f| Rc::new(self.frame(f))).collect();
        SymbolicState {
            path,
            facts: BTreeSet::new(),
            ranges: s.ranges.image(|t| (self.size(t, MOST_OF_FACT) <= MOST_OF_FACT).then(|| self.image(t))),
            regs,
            frames,
            saved,
            memory: s.memory.iter().map(|(k, t)| (*k, self.term(*t))).collect(),
            chains: s.chains.iter().map(|(k, t)| (*k, self.term(*t))).collect(),
            length: self.term(s.length),
            metadata: self.term(s.metadata),
        }
    }

    /// Conditions for the states of both sides, which are equal group by group. A state in a group by itself
    /// keeps at most the facts that always hold under its condition.
    pub(crate) fn conditions(
        &mut self,
        paths: &[Vec<TermId>; 2],
        groups: &[[Vec<usize>; 2]],
    ) -> [Vec<TermId>; 2] {
        let mut rest = self.new.truth(true);
        let mut out = paths.each_ref().map(|list| vec![rest; list.len()]);
        for (n, group) in groups.iter().enumerate() {
            let mut here = rest;
            if n + 1 < groups.len() {
                let way = self.new.var(&format!("{}{WAY}{n}", self.name), Sort::Bool);
                here = self.new.and(&[rest, way]);
                let elsewhere = self.new.not(way);
                rest = self.new.and(&[rest, elsewhere]);
            }
            let all: Vec<TermId> = group[0].iter().map(|n| paths[0][*n]).collect();
            let union = self.old.or(&all);
            here = self.literals(here, union);
            for side in [0, 1] {
                let mut left = here;
                for (n, at) in group[side].iter().enumerate() {
                    out[side][*at] = left;
                    if n + 1 < group[side].len() {
                        let part = self.old.under(paths[side][*at], union);
                        let part = self.image(part);
                        out[side][*at] = self.new.and(&[left, part]);
                        let other = self.new.not(part);
                        left = self.new.and(&[left, other]);
                    }
                }
            }
        }
        out
    }

    /// The small facts among those under which two states are reached: they hold for both.
    pub(crate) fn facts(&mut self, facts: &BTreeSet<TermId>) -> BTreeSet<TermId> {
        let small: Vec<TermId> =
            facts.iter().copied().filter(|f| self.size(*f, MOST_OF_FACT) <= MOST_OF_FACT).collect();
        small.into_iter().take(MOST_ATOMS).map(|f| self.image(f)).collect()
    }

    /// A condition, and the literals that another condition implies.
    fn literals(&mut self, mut all: TermId, condition: TermId) -> TermId {
        let mut kept = 0;
        for (atom, holds) in facts::implied(self.old, condition) {
            if self.is_way(atom) || self.size(atom, MOST_OF_FACT) > MOST_OF_FACT || kept == MOST_ATOMS {
                continue;
            }
            kept += 1;
            let atom = self.image(atom);
            let literal = if holds { atom } else { self.new.not(atom) };
            all = self.new.and(&[all, literal]);
        }
        all
    }

    /// Returns true if an atom records the way taken at an earlier cut, which has no meaning any more.
    fn is_way(&self, atom: TermId) -> bool {
        matches!(self.old.node(atom), TermNode::App(f, args) if args.is_empty() && self.old.name(*f).contains(WAY))
    }

    fn frame(&mut self, frame: &SymbolicFrame) -> SymbolicFrame {
        let cell = |c: SymbolicByte, this: &mut Self| match c {
            SymbolicByte::Byte(t) => SymbolicByte::Byte(this.term(t)),
            SymbolicByte::Part(v, i) => SymbolicByte::Part(this.value(v), i),
            SymbolicByte::Half(defined, t) => SymbolicByte::Half(this.term(defined), this.term(t)),
        };
        frame.iter().map(|(at, c)| (*at, cell(*c, self))).collect()
    }

    fn value(&mut self, v: ValueId) -> ValueId {
        if let Some(image) = self.value_images.get(&v) {
            return *image;
        }
        let out = match self.old_values.kind(v) {
            ValueKind::Undefined => self.values.undefined(),
            ValueKind::Number(t) => {
                let t = self.term(t);
                self.values.number(t)
            }
            ValueKind::Pointer(region, offset) => {
                let region = match region {
                    PointerRegion::In(space, object) => PointerRegion::In(space, self.term(object)),
                    PointerRegion::InnerMap(map, t) => PointerRegion::InnerMap(map, self.term(t)),
                    other => other,
                };
                let offset = self.term(offset);
                self.values.pointer(region, offset)
            }
            ValueKind::Choice(c, a, b) => {
                let (c, a, b) = (self.term(c), self.value(a), self.value(b));
                self.values.choice(&mut self.new, c, a, b)
            }
        };
        self.value_images.insert(v, out);
        out
    }

    /// Substitutes the known values of numbers in states. Conditions stay unchanged.
    pub(crate) fn put_in(&mut self, known: FxHashMap<TermId, u64>) {
        self.known = known;
    }

    /// Image of a term in a condition.
    pub(crate) fn image(&mut self, root: TermId) -> TermId {
        let mut images = std::mem::take(&mut self.images);
        let out = self.rebuilt(root, &mut images, false);
        self.images = images;
        out
    }

    /// Image of a term in a state.
    fn term(&mut self, root: TermId) -> TermId {
        if self.known.is_empty() {
            return self.image(root);
        }
        let mut settled = std::mem::take(&mut self.settled);
        let out = self.rebuilt(root, &mut settled, true);
        self.settled = settled;
        out
    }

    fn rebuilt(&mut self, root: TermId, images: &mut FxHashMap<TermId, TermId>, settles: bool) -> TermId {
        let mut stack = vec![(root, false)];
        while let Some((t, parts_done)) = stack.pop() {
            if images.contains_key(&t) {
                continue;
            }
            let known = self.known.get(&t).copied().filter(|_| settles);
            if let Some(value) = known {
                let value = self.new.constant(self.old.bits(t), value);
                images.insert(t, value);
            } else if !parts_done && self.is_cut(t) {
                let image = self.variable(t);
                images.insert(t, image);
            } else if parts_done {
                let image = self.new.copy(self.old, t, |part| images[&part]);
                images.insert(t, image);
            } else {
                stack.push((t, true));
                stack.extend(self.old.parts_of(t).into_iter().map(|p| (p, false)));
            }
        }
        images[&root]
    }

    /// Returns true if a term becomes a variable; otherwise it is rebuilt over the images of its parts.
    fn is_cut(&self, t: TermId) -> bool {
        if !self.shared.contains(&t) {
            return false;
        }
        match self.old.node(t) {
            TermNode::Truth(_) | TermNode::Const(_) => false,
            // A later comparison may ask for a small term again.
            TermNode::App(_, args) => !args.is_empty() && self.depth(t, SMALL) > SMALL,
            TermNode::Extract(..) | TermNode::SignExtend(_) | TermNode::Concat(_) | TermNode::Select(..) => {
                false
            }
            TermNode::Compare(..) => false,
            TermNode::Sum(list, _) if list.len() <= 2 => false,
            TermNode::Store(..) => self.stores(t) > MOST_STORES,
            TermNode::Ite(..) | TermNode::Prim(..) | TermNode::Sum(..) => self.size(t, SMALL) > SMALL,
        }
    }

    fn stores(&self, mut t: TermId) -> usize {
        let mut count = 0;
        while let TermNode::Store(below, ..) = self.old.node(t) {
            count += 1;
            t = *below;
        }
        count
    }

    /// Number of distinct subterms, counted up to little more than `most`.
    fn depth(&self, t: TermId, most: usize) -> usize {
        self.count(t, most, |_| false)
    }

    /// Number of distinct subterms, counted up to little more than `most`. A term that may become a variable
    /// counts as one.
    fn size(&self, t: TermId, most: usize) -> usize {
        self.count(t, most, |node| matches!(node, TermNode::App(..) | TermNode::Select(..)))
    }

    fn count(&self, t: TermId, most: usize, is_leaf: impl Fn(&TermNode) -> bool) -> usize {
        let mut seen = FxHashSet::default();
        let mut todo = vec![t];
        while let Some(t) = todo.pop() {
            if !seen.insert(t) {
                continue;
            }
            if seen.len() > most {
                break;
            }
            if !is_leaf(self.old.node(t)) {
                todo.extend(self.old.parts_of(t));
            }
        }
        seen.len()
    }

    /// The variable for a term, with as many bits as the term may have set.
    fn variable(&mut self, t: TermId) -> TermId {
        if let Some(variable) = self.variables.get(&t) {
            return *variable;
        }
        let variable = self.new_variable(t);
        self.variables.insert(t, variable);
        variable
    }

    fn new_variable(&mut self, t: TermId) -> TermId {
        self.made += 1;
        let address = if self.old.has_address(t) { ADDRESS } else { "" };
        let name = format!("{address}{}, {}", self.name, self.made);
        let sort = self.old.sort(t);
        let Sort::Bits(bits) = sort else { return self.new.var(&name, sort) };
        let possible = facts::possible(self.old, t);
        if possible == 0 {
            return self.new.constant(u32::from(bits), 0);
        }
        let (high, low) = (possible.leading_zeros() - (64 - u32::from(bits)), possible.trailing_zeros());
        let middle = self.new.var(&name, Sort::Bits(bits - (high + low) as u8));
        self.new.between_zeros(high, middle, low)
    }
}

/// The terms that a state refers to, except for its condition.
fn roots(values: &SymbolicValues, s: &SymbolicState) -> Vec<TermId> {
    let mut out = vec![s.length, s.metadata];
    out.extend(s.memory.values().chain(s.chains.values()));
    let mut todo: Vec<ValueId> = s.regs.iter().chain(s.saved.iter().flatten()).copied().collect();
    for cell in s.frames.iter().flat_map(|f| f.values()) {
        match cell {
            SymbolicByte::Byte(t) => out.push(*t),
            SymbolicByte::Part(v, _) => todo.push(*v),
            SymbolicByte::Half(defined, t) => out.extend([*defined, *t]),
        }
    }
    let mut seen = FxHashSet::default();
    while let Some(v) = todo.pop() {
        if !seen.insert(v) {
            continue;
        }
        match values.kind(v) {
            ValueKind::Undefined => {}
            ValueKind::Number(t) => out.push(t),
            ValueKind::Pointer(region, offset) => {
                out.push(offset);
                if let PointerRegion::In(_, t) | PointerRegion::InnerMap(_, t) = region {
                    out.push(t);
                }
            }
            ValueKind::Choice(c, a, b) => {
                out.push(c);
                todo.extend([a, b]);
            }
        }
    }
    out
}
