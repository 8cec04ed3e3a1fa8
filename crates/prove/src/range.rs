//! Ranges of numbers on a path: intervals, from comparisons with constants.
//!
//! A chain of comparisons of one number decides later ones, which a compiler then leaves out: a number above
//! 3, not above 5 and not 4 is 5; if six bits are all zero, so are three of them. The same holds for the difference
//! of two numbers: a packet with six bytes behind an offset has five. Decision diagrams treat atoms as independent,
//! and would follow a path there that does not exist.
//!
//! Architecture Invariant: whenever a state is reached, its numbers are within its ranges.

use std::collections::BTreeMap;
use std::rc::Rc;

use millstream_isa::Cond;
use millstream_isa::semantics::Pred;
use rustc_hash::FxHashMap;

use crate::term::{TermId, TermNode, TermPool, facts, mask, sum};

/// Disjoint intervals, both ends included, in ascending order.
type IntervalSet = Vec<(u64, u64)>;

/// Most intervals of one number; beyond that it is not tracked any more.
const MOST_INTERVALS: usize = 64;
/// Most numbers that are tracked.
const MOST_NUMBERS: usize = 256;

/// Possible values of numbers.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct ValueRanges(BTreeMap<TermId, Rc<IntervalSet>>);

/// A comparison of a number with a constant: the values for which it holds, and those for which it does not.
pub(crate) struct RangeTest {
    number: TermId,
    sets: [IntervalSet; 2],
}

impl RangeTest {
    /// A test of a vector.
    pub(crate) fn new(terms: &mut TermPool, cond: Cond, t: TermId, k: u64) -> Option<RangeTest> {
        let top = mask(terms.bits(t));
        let sign = top ^ top >> 1;
        // Signed order, mapped to unsigned order.
        let ordered = |k: u64, is_signed: bool| if is_signed { k ^ sign } else { k };
        let below = |bound: u64, is_signed: bool| -> IntervalSet {
            let set = bound.checked_sub(1).map(|last| (0, last));
            if is_signed { less(&Vec::from_iter(set), sign, top) } else { Vec::from_iter(set) }
        };
        let not_above = |k: u64, is_signed: bool| {
            let k = ordered(k, is_signed);
            if k == top { vec![(0, top)] } else { below(k + 1, is_signed) }
        };
        let (set, holds) = match cond {
            Cond::Eq => (vec![(k, k)], true),
            Cond::Ne => (vec![(k, k)], false),
            Cond::Lt => (below(k, false), true),
            Cond::Ge => (below(k, false), false),
            Cond::Le => (not_above(k, false), true),
            Cond::Gt => (not_above(k, false), false),
            Cond::Slt => (below(ordered(k, true), true), true),
            Cond::Sge => (below(ordered(k, true), true), false),
            Cond::Sle => (not_above(k, true), true),
            Cond::Sgt => (not_above(k, true), false),
            Cond::Set => return None,
        };
        let (number, within) = base(terms, t, set.clone());
        let (_, outside) = base(terms, t, complement(&set, top));
        Some(RangeTest { number, sets: if holds { [within, outside] } else { [outside, within] } })
    }

    /// The same test of a wider number, if this one is the upper part of it.
    fn of_whole(&self, terms: &mut TermPool) -> Option<RangeTest> {
        let TermNode::Extract(whole, hi, lo) = *terms.node(self.number) else { return None };
        if u32::from(hi) + 1 != terms.bits(whole) || lo == 0 {
            return None;
        }
        let wider =
            |set: &IntervalSet| set.iter().map(|(a, b)| (a << lo, b << lo | mask(u32::from(lo)))).collect();
        let [holds, fails]: [IntervalSet; 2] = self.sets.each_ref().map(wider);
        let ((number, holds), (_, fails)) = (base(terms, whole, holds), base(terms, whole, fails));
        Some(RangeTest { number, sets: [holds, fails] })
    }
}

/// A mask of known bits, and their values.
type MaskedBits = (u64, u64);

impl ValueRanges {
    /// Simplifies a condition by all comparisons with constants that the ranges decide.
    pub(crate) fn settle(&self, terms: &mut TermPool, condition: TermId) -> TermId {
        if self.0.is_empty() || terms.is_full() {
            return condition;
        }
        let mut known = FxHashMap::default();
        self.settled(terms, condition, &mut known)
    }

    fn settled(
        &self,
        terms: &mut TermPool,
        condition: TermId,
        known: &mut FxHashMap<TermId, TermId>,
    ) -> TermId {
        if let Some(out) = known.get(&condition) {
            return *out;
        }
        let out = match *terms.node(condition) {
            TermNode::Truth(_) => condition,
            TermNode::Ite(atom, yes, no) => match self.decide_atom(terms, atom) {
                Some(true) => self.settled(terms, yes, known),
                Some(false) => self.settled(terms, no, known),
                None => {
                    let (yes, no) = (self.settled(terms, yes, known), self.settled(terms, no, known));
                    terms.ite(atom, yes, no)
                }
            },
            _ => match self.decide_atom(terms, condition) {
                Some(holds) => terms.truth(holds),
                None => condition,
            },
        };
        known.insert(condition, out);
        out
    }

    /// Narrows the ranges by all comparisons with constants that a condition implies.
    pub(crate) fn assume_literals(&mut self, terms: &mut TermPool, condition: TermId) {
        for (atom, holds) in facts::implied(terms, condition) {
            for test in of_atom(terms, atom) {
                self.assume(&test, holds);
            }
        }
    }

    /// The value of a number if the ranges leave only one, else the number itself.
    pub(crate) fn put_in(&self, terms: &mut TermPool, t: TermId) -> TermId {
        let (bits, spare) = (terms.bits(t), terms.leading_zeros(t));
        let number = if spare > 0 && spare < bits { terms.extract(t, bits - spare - 1, 0) } else { t };
        match self.0.get(&number).map(|set| &set[..]) {
            Some([(a, b)]) if a == b && is_variable(terms, number) => terms.constant(bits, *a),
            _ => t,
        }
    }

    /// Numbers with one possible value under a condition and these ranges, with that value.
    pub(crate) fn values(&self, terms: &mut TermPool, condition: TermId) -> FxHashMap<TermId, u64> {
        let mut all = self.clone();
        all.assume_literals(terms, condition);
        let single = all.0.iter().filter_map(|(t, set)| match set[..] {
            [(a, b)] if a == b && (is_variable(terms, *t) || is_flag(terms, *t)) => Some((*t, a)),
            _ => None,
        });
        single.collect()
    }

    fn decide_atom(&self, terms: &mut TermPool, atom: TermId) -> Option<bool> {
        let tests = of_atom(terms, atom);
        if let Some(holds) = tests.iter().find_map(|test| self.decide(test)) {
            return Some(holds);
        }
        let test = tests.first()?;
        let all = mask(terms.bits(test.number));
        let (known, value) = self.bits(terms, test.number);
        if known == 0 {
            return None;
        }
        let may = [(value, value | all & !known)];
        let possible = |set: &IntervalSet| match intersection(&may, set)[..] {
            [(a, b)] if a == b => a & known == value,
            [] => false,
            _ => true,
        };
        let [holds, fails] = [0, 1].map(|n| possible(&test.sets[n]));
        (holds != fails).then_some(holds)
    }

    /// Known bits of a number, from the ranges of numbers that share bits with it.
    fn bits(&self, terms: &TermPool, number: TermId) -> MaskedBits {
        let (whole, low, width) = slice(terms, number);
        let (mut known, mut value) = (0, 0);
        for (other, set) in &self.0 {
            let (same, from, _) = slice(terms, *other);
            let (Some(first), Some(last)) = (set.first(), set.last()) else { continue };
            if same != whole {
                continue;
            }
            // All bits from the first one in which the ends differ.
            let differ = first.0 ^ last.1;
            let open = if differ == 0 { 0 } else { u64::MAX >> differ.leading_zeros() };
            let here = mask(terms.bits(*other)) & !open;
            let shifted = |bits: u64| if from >= low { bits << (from - low) } else { bits >> (low - from) };
            let fits = shifted(here) & mask(width);
            known |= fits;
            value |= shifted(first.0) & fits;
        }
        (known, value & known)
    }

    /// Result of a comparison, if the ranges decide it.
    pub(crate) fn decide(&self, test: &RangeTest) -> Option<bool> {
        let may = self.0.get(&test.number)?;
        let [holds, fails] = [0, 1].map(|n| !intersection(may, &test.sets[n]).is_empty());
        (holds != fails).then_some(holds)
    }

    /// Narrows the ranges by the result of a comparison.
    pub(crate) fn assume(&mut self, test: &RangeTest, holds: bool) {
        self.narrow(test.number, &test.sets[usize::from(!holds)]);
    }

    fn narrow(&mut self, number: TermId, set: &[(u64, u64)]) {
        let all = match self.0.get(&number) {
            Some(before) => intersection(before, set),
            None if self.0.len() < MOST_NUMBERS => set.to_vec(),
            None => return,
        };
        if all.len() <= MOST_INTERVALS {
            self.0.insert(number, Rc::new(all));
        }
    }

    /// Union: ranges that hold if either does.
    pub(crate) fn join(&self, other: &ValueRanges) -> ValueRanges {
        let both = self.0.iter().filter_map(|(t, ours)| {
            let theirs = other.0.get(t)?;
            let all = if ours == theirs { ours.clone() } else { Rc::new(union(ours, theirs)) };
            (all.len() <= MOST_INTERVALS).then_some((*t, all))
        });
        ValueRanges(both.collect())
    }

    /// Intersection: ranges that hold if both do.
    pub(crate) fn meet(&self, other: &ValueRanges) -> ValueRanges {
        let mut out = self.clone();
        for (number, set) in &other.0 {
            out.narrow(*number, set);
        }
        out
    }

    /// The same ranges of other terms: of those for which `image` returns one.
    pub(crate) fn image(&self, mut image: impl FnMut(TermId) -> Option<TermId>) -> ValueRanges {
        let mut out = ValueRanges::default();
        for (number, set) in &self.0 {
            if let Some(number) = image(*number) {
                out.narrow(number, set);
            }
        }
        out
    }

    /// Union of two ranges over other terms: `image` returns the term for one of each, if there is one. Also
    /// returns true if all ranges of the first hold for the second; if `again`, ranges that do not are
    /// dropped at once, so that the fixed point is reached.
    pub(crate) fn generalized(
        &self,
        other: &ValueRanges,
        again: bool,
        mut image: impl FnMut(TermId, TermId) -> Option<TermId>,
    ) -> (ValueRanges, bool) {
        let (mut out, mut all) = (ValueRanges::default(), true);
        for (x, ours) in &self.0 {
            let found = other.0.iter().find_map(|(y, theirs)| Some((image(*x, *y)?, theirs)));
            let Some((number, theirs)) = found else {
                all = false;
                continue;
            };
            let either = union(ours, theirs);
            all &= either == **ours;
            if !again || either == **ours {
                out.narrow(number, &either);
            }
        }
        (out, all)
    }
}

/// The number that a term is a slice of, the first bit of the slice, and its width in bits.
fn slice(terms: &TermPool, t: TermId) -> (TermId, u32, u32) {
    match *terms.node(t) {
        TermNode::Extract(whole, _, low) => (whole, u32::from(low), terms.bits(t)),
        _ => (t, 0, terms.bits(t)),
    }
}

/// Returns true if a number is a variable or a slice of one. A loaded number may be loaded again and should
/// stay the same term.
fn is_variable(terms: &TermPool, t: TermId) -> bool {
    let (whole, ..) = slice(terms, t);
    matches!(terms.node(whole), TermNode::App(_, args) if args.is_empty())
}

/// Returns true if a number is a few bits of a loaded byte: once tested, they are more often stored than
/// loaded again.
fn is_flag(terms: &TermPool, t: TermId) -> bool {
    let (whole, _, width) = slice(terms, t);
    width < 8 && matches!(terms.node(whole), TermNode::Select(..))
}

/// An atom as comparisons with constants, if it is one: of a number, and, if that is the upper part of
/// another, of that one, too. A comparison of two numbers is one of their difference.
fn of_atom(terms: &mut TermPool, atom: TermId) -> Vec<RangeTest> {
    let TermNode::Compare(pred, a, b) = *terms.node(atom) else { return Vec::new() };
    if terms.bits(a) == 0 {
        return Vec::new();
    }
    let (x, y) = (terms.value(a), terms.value(b));
    let (cond, number, k) = match (pred, x, y) {
        (Pred::Eq, Some(k), None) => (Cond::Eq, b, k),
        (Pred::Eq, None, Some(k)) => (Cond::Eq, a, k),
        (Pred::Ult, None, Some(k)) => (Cond::Lt, a, k),
        (Pred::Ult, Some(k), None) => (Cond::Gt, b, k),
        (Pred::Slt, None, Some(k)) => (Cond::Slt, a, k),
        (Pred::Slt, Some(k), None) => (Cond::Sgt, b, k),
        (Pred::Ult, None, None) => match sum::order(terms, a, b) {
            Some(comparison) => comparison,
            None => return Vec::new(),
        },
        _ => return Vec::new(),
    };
    let Some(test) = RangeTest::new(terms, cond, number, k) else { return Vec::new() };
    let whole = test.of_whole(terms);
    std::iter::once(test).chain(whole).collect()
}

/// The number below the invertible operations of a term, and the values of that number for which the term is
/// in the set.
fn base(terms: &mut TermPool, mut t: TermId, mut set: IntervalSet) -> (TermId, IntervalSet) {
    loop {
        let (bits, spare) = (terms.bits(t), terms.leading_zeros(t));
        if spare > 0 && spare < bits {
            set = intersection(&set, &[(0, mask(bits - spare))]);
            t = terms.extract(t, bits - spare - 1, 0);
        }
        match terms.node(t) {
            TermNode::Sum(list, k) if list.len() == 1 && list[0].1 == 1 => {
                set = less(&set, *k, mask(terms.bits(t)));
                t = list[0].0;
            }
            _ => return (t, set),
        }
    }
}

/// All values minus `k`, modulo `top` + 1.
fn less(set: &[(u64, u64)], k: u64, top: u64) -> IntervalSet {
    let mut out = IntervalSet::new();
    for (a, b) in set {
        let (a, b) = (a.wrapping_sub(k) & top, b.wrapping_sub(k) & top);
        if a <= b {
            out.push((a, b));
        } else {
            out.extend([(0, b), (a, top)]);
        }
    }
    tidy(out)
}

fn tidy(mut set: IntervalSet) -> IntervalSet {
    set.sort_unstable();
    let mut out = IntervalSet::with_capacity(set.len());
    for (a, b) in set {
        match out.last_mut() {
            Some((_, end)) if a <= end.saturating_add(1) => *end = b.max(*end),
            _ => out.push((a, b)),
        }
    }
    out
}

fn union(a: &[(u64, u64)], b: &[(u64, u64)]) -> IntervalSet {
    tidy(a.iter().chain(b).copied().collect())
}

fn intersection(a: &[(u64, u64)], b: &[(u64, u64)]) -> IntervalSet {
    let pairs = a.iter().flat_map(|x| b.iter().map(move |y| (x.0.max(y.0), x.1.min(y.1))));
    tidy(pairs.filter(|(low, high)| low <= high).collect())
}

fn complement(set: &[(u64, u64)], top: u64) -> IntervalSet {
    let mut out = IntervalSet::new();
    let mut next = Some(0);
    for (a, b) in set {
        if let Some(from) = next
            && from < *a
        {
            out.push((from, a - 1));
        }
        next = b.checked_add(1).filter(|n| *n <= top);
    }
    out.extend(next.map(|from| (from, top)));
    out
}

#[cfg(test)]
mod tests;
