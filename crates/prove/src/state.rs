//! The state of a program during a run, and the join of two states at a merge point of paths.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::range::ValueRanges;
use crate::term::{Sort, TermId, TermPool};
use crate::value::{MemorySpace, SymbolicValues, ValueId};

/// A byte of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SymbolicByte {
    /// A byte of a number.
    Byte(TermId),
    /// Byte N of a value that is 8 bytes long.
    Part(ValueId, u8),
    /// A byte of a number under a condition; otherwise nothing was put.
    Half(TermId, TermId),
}

impl SymbolicByte {
    /// Returns true if something was put there unconditionally.
    pub(crate) fn is_whole(&self) -> bool {
        !matches!(self, SymbolicByte::Half(..))
    }
}

/// A frame: bytes by offset from its upper end.
pub(crate) type SymbolicFrame = BTreeMap<i64, SymbolicByte>;

/// Chains of events, by the inputs that an event may depend on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum EventChain {
    /// Events that others can see, in order.
    Effects,
    /// Time, randomness and the like.
    Volatile,
    /// Requests for the budget of a loop.
    Budget,
    /// Atomic operations on memory that others see.
    Atomics,
    /// Events that change the set of a map's entries.
    Entries(MemorySpace),
}

/// A state.
#[derive(Clone, Debug)]
pub(crate) struct SymbolicState {
    /// Path condition.
    pub(crate) path: TermId,
    /// Conditions that were assumed one by one and are not single atoms: each follows from the path.
    pub(crate) facts: BTreeSet<TermId>,
    /// Ranges of numbers under the path condition.
    pub(crate) ranges: ValueRanges,
    pub(crate) regs: [ValueId; 11],
    pub(crate) frames: Vec<Rc<SymbolicFrame>>,
    /// Values of `r6` to `r9` in each of the functions that wait for a callee to return.
    pub(crate) saved: Vec<[ValueId; 4]>,
    pub(crate) memory: BTreeMap<MemorySpace, TermId>,
    pub(crate) chains: BTreeMap<EventChain, TermId>,
    /// Bytes from `data` to `data_end`, and from `data_meta` to `data`.
    pub(crate) length: TermId,
    pub(crate) metadata: TermId,
}

/// The initial memory of a space.
pub(crate) fn initial_memory(terms: &mut TermPool, space: MemorySpace) -> TermId {
    terms.var(&format!("memory {space:?}"), Sort::Memory)
}

/// The initial event of a chain.
pub(crate) fn initial_chain(terms: &mut TermPool, _: EventChain) -> TermId {
    terms.var("start", Sort::Token)
}

impl SymbolicState {
    pub(crate) fn memory(&self, terms: &mut TermPool, space: MemorySpace) -> TermId {
        self.memory.get(&space).copied().unwrap_or_else(|| initial_memory(terms, space))
    }

    /// Returns true if a byte was put at a place of a frame unconditionally.
    pub(crate) fn is_put(&self, frame: u8, at: i64) -> bool {
        self.frames[usize::from(frame)].get(&at).is_some_and(SymbolicByte::is_whole)
    }

    pub(crate) fn chain(&self, terms: &mut TermPool, chain: EventChain) -> TermId {
        self.chains.get(&chain).copied().unwrap_or_else(|| initial_chain(terms, chain))
    }

    /// Adds an assumption; `false` if it contradicts the path condition.
    pub(crate) fn assume(&mut self, terms: &mut TermPool, condition: TermId) -> bool {
        self.path = terms.and(&[self.path, condition]);
        if terms.is_choice(condition) {
            self.facts.insert(condition);
        }
        terms.known(self.path) != Some(false)
    }

    /// Joins a state of another path that arrives at the same place: the paths exclude each other.
    pub(crate) fn join(
        self,
        terms: &mut TermPool,
        values: &mut SymbolicValues,
        other: SymbolicState,
    ) -> SymbolicState {
        let either = terms.or(&[self.path, other.path]);
        let c = terms.under(self.path, either);
        let facts = self.facts.intersection(&other.facts).copied().collect();
        let ranges = self.ranges.join(&other.ranges);
        let mut out = SymbolicState { path: either, facts, ranges, ..self };
        for (a, b) in out.regs.iter_mut().zip(other.regs) {
            *a = values.choice(terms, c, *a, b);
        }
        for (a, b) in out.saved.iter_mut().flatten().zip(other.saved.iter().flatten()) {
            *a = values.choice(terms, c, *a, *b);
        }
        for (a, b) in out.frames.iter_mut().zip(&other.frames) {
            if !Rc::ptr_eq(a, b) {
                *a = Rc::new(join_frames(terms, values, c, a, b));
            }
        }
        join_terms(terms, c, &mut out.memory, &other.memory, initial_memory);
        join_terms(terms, c, &mut out.chains, &other.chains, initial_chain);
        out.length = terms.ite(c, out.length, other.length);
        out.metadata = terms.ite(c, out.metadata, other.metadata);
        out
    }
}

fn join_terms<K: Ord + Copy>(
    terms: &mut TermPool,
    c: TermId,
    ours: &mut BTreeMap<K, TermId>,
    theirs: &BTreeMap<K, TermId>,
    initial: fn(&mut TermPool, K) -> TermId,
) {
    let keys: Vec<K> = ours.keys().chain(theirs.keys()).copied().collect();
    for key in keys {
        let a = ours.get(&key).copied().unwrap_or_else(|| initial(terms, key));
        let b = theirs.get(&key).copied().unwrap_or_else(|| initial(terms, key));
        let joined = terms.ite(c, a, b);
        ours.insert(key, joined);
    }
}

fn join_frames(
    terms: &mut TermPool,
    values: &mut SymbolicValues,
    c: TermId,
    a: &SymbolicFrame,
    b: &SymbolicFrame,
) -> SymbolicFrame {
    let mut out = SymbolicFrame::new();
    // A pointer on one path and a number on the other stay a value.
    for at in
        a.iter().chain(b).filter(|(_, cell)| matches!(cell, SymbolicByte::Part(_, 0))).map(|(at, _)| *at)
    {
        if let (Some(v), Some(w)) = (whole(terms, values, a, at), whole(terms, values, b, at)) {
            let v = values.choice(terms, c, v, w);
            out.extend((0..8u8).map(|i| (at + i64::from(i), SymbolicByte::Part(v, i))));
        }
    }
    let places: BTreeSet<i64> = a.keys().chain(b.keys()).copied().collect();
    for at in places {
        if out.contains_key(&at) {
            continue;
        }
        let cell = match (a.get(&at).copied(), b.get(&at).copied()) {
            (x, y) if x == y => x,
            (Some(SymbolicByte::Part(v, i)), Some(SymbolicByte::Part(w, j))) if i == j => {
                Some(SymbolicByte::Part(values.choice(terms, c, v, w), i))
            }
            (x, y) => {
                let [(d, x), (e, y)] = [x, y].map(|cell| put(terms, values, cell));
                let defined = terms.ite(c, d, e);
                let t = match (x, y) {
                    (Some(x), Some(y)) => Some(terms.ite(c, x, y)),
                    (x, y) => x.or(y),
                };
                t.and_then(|t| where_put(terms, defined, t))
            }
        };
        out.extend(cell.map(|cell| (at, cell)));
    }
    out
}

/// Condition under which something was put in a cell, and its byte.
pub(crate) fn put(
    terms: &mut TermPool,
    values: &mut SymbolicValues,
    cell: Option<SymbolicByte>,
) -> (TermId, Option<TermId>) {
    let (defined, t) = match cell {
        None => (None, None),
        Some(SymbolicByte::Half(defined, t)) => (Some(defined), Some(t)),
        Some(cell) => (None, byte(terms, values, cell)),
    };
    (defined.unwrap_or_else(|| terms.truth(t.is_some())), t)
}

/// Cell of a byte that was put there under a condition.
pub(crate) fn where_put(terms: &TermPool, defined: TermId, t: TermId) -> Option<SymbolicByte> {
    match terms.known(defined) {
        Some(true) => Some(SymbolicByte::Byte(t)),
        Some(false) => None,
        None => Some(SymbolicByte::Half(defined, t)),
    }
}

/// The 8 bytes at an offset as one value, if all were put.
pub(crate) fn whole(
    terms: &mut TermPool,
    values: &mut SymbolicValues,
    frame: &SymbolicFrame,
    at: i64,
) -> Option<ValueId> {
    if let Some(SymbolicByte::Part(v, 0)) = frame.get(&at)
        && (1..8u8).all(|i| frame.get(&(at + i64::from(i))) == Some(&SymbolicByte::Part(*v, i)))
    {
        return Some(*v);
    }
    let cells: Option<Vec<SymbolicByte>> = (0..8).map(|i| frame.get(&(at + i)).copied()).collect();
    let bytes: Option<Vec<TermId>> = cells?.into_iter().map(|c| byte(terms, values, c)).collect();
    let t = terms.word(&bytes?);
    Some(values.number(t))
}

/// A cell as a byte, if it was put unconditionally.
pub(crate) fn byte(terms: &mut TermPool, values: &mut SymbolicValues, cell: SymbolicByte) -> Option<TermId> {
    match cell {
        SymbolicByte::Half(..) => None,
        SymbolicByte::Byte(t) => Some(t),
        SymbolicByte::Part(v, i) => {
            let t = values.numeric(terms, v)?;
            Some(terms.byte_of(t, 8, i.into()))
        }
    }
}
