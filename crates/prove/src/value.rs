//! Values of registers: numbers, and pointers with their regions.

use crate::sizes::STACK_SIZE;
use crate::term::{ADDRESS, Sort, TermId, TermPool};
use millstream_isa::semantics;
use millstream_isa::{AluOp, Cond, Width};
use rustc_hash::FxHashMap;

/// A value: an index into [`SymbolicValues`]. Equal indices, equal values.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ValueId(u32);

/// Memory that programs can address, each space disjoint from all others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum MemorySpace {
    /// The packet; offsets count from `data`.
    Packet,
    /// The context.
    Context,
    /// The values of a map, by entry.
    Map(u32),
    /// The values of all inner maps of a map of maps, by entry.
    Inner(u32),
    /// Memory that helpers return.
    Allocated,
    /// Memory of the kernel, by address.
    Kernel,
    /// Several of the others together, if they are not distinguished.
    Mixed,
}

/// Target of a pointer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum PointerRegion {
    /// An object of a space.
    In(MemorySpace, TermId),
    /// A frame of the stack, outermost first; offset 0 is its upper end.
    Stack(u8),
    /// A map.
    Map(u32),
    /// An inner map of a map of maps.
    InnerMap(u32, TermId),
    /// A function of the program, by slot.
    Func(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ValueKind {
    /// Nothing was ever put there.
    Undefined,
    /// A number of 64 bits.
    Number(TermId),
    /// A pointer: region and offset.
    Pointer(PointerRegion, TermId),
    /// The first if the condition holds, else the second.
    Choice(TermId, ValueId, ValueId),
}

/// All values of one proof.
#[derive(Clone, Debug, Default)]
pub(crate) struct SymbolicValues {
    kinds: Vec<ValueKind>,
    index: FxHashMap<ValueKind, ValueId>,
}

impl SymbolicValues {
    pub(crate) fn kind(&self, v: ValueId) -> ValueKind {
        self.kinds[v.0 as usize]
    }

    fn make(&mut self, kind: ValueKind) -> ValueId {
        if let Some(v) = self.index.get(&kind) {
            return *v;
        }
        let v = ValueId(self.kinds.len() as u32);
        self.kinds.push(kind);
        self.index.insert(kind, v);
        v
    }

    pub(crate) fn undefined(&mut self) -> ValueId {
        self.make(ValueKind::Undefined)
    }

    pub(crate) fn number(&mut self, t: TermId) -> ValueId {
        self.make(ValueKind::Number(t))
    }

    pub(crate) fn pointer(&mut self, region: PointerRegion, offset: TermId) -> ValueId {
        self.make(ValueKind::Pointer(region, offset))
    }

    pub(crate) fn choice(&mut self, terms: &mut TermPool, c: TermId, a: ValueId, b: ValueId) -> ValueId {
        if a == b {
            return a;
        }
        match terms.known(c) {
            Some(true) => return a,
            Some(false) => return b,
            None => {}
        }
        match (self.kind(a), self.kind(b)) {
            (ValueKind::Number(x), ValueKind::Number(y)) => {
                let t = terms.ite(c, x, y);
                self.number(t)
            }
            (ValueKind::Pointer(r, x), ValueKind::Pointer(s, y)) if r == s => {
                let t = terms.ite(c, x, y);
                self.pointer(r, t)
            }
            (
                ValueKind::Pointer(PointerRegion::In(s, o), x),
                ValueKind::Pointer(PointerRegion::In(t, p), y),
            ) if s == t => {
                let (object, offset) = (terms.ite(c, o, p), terms.ite(c, x, y));
                self.pointer(PointerRegion::In(s, object), offset)
            }
            (ValueKind::Choice(d, then, _), _) if d == c => self.choice(terms, c, then, b),
            (_, ValueKind::Choice(d, _, other)) if d == c => self.choice(terms, c, a, other),
            _ => self.make(ValueKind::Choice(c, a, b)),
        }
    }

    /// The value, simplified under a path condition.
    pub(crate) fn on_path(&mut self, terms: &mut TermPool, path: TermId, v: ValueId) -> ValueId {
        match self.kind(v) {
            ValueKind::Undefined => v,
            ValueKind::Number(t) => {
                let t = terms.under(t, path);
                self.number(t)
            }
            ValueKind::Pointer(PointerRegion::In(space, object), offset) => {
                let (object, offset) = (terms.under(object, path), terms.under(offset, path));
                self.pointer(PointerRegion::In(space, object), offset)
            }
            ValueKind::Pointer(region, offset) => {
                let offset = terms.under(offset, path);
                self.pointer(region, offset)
            }
            ValueKind::Choice(c, a, b) => {
                let c = terms.under(c, path);
                let opposite = terms.not(c);
                let (here, there) = (terms.and(&[path, c]), terms.and(&[path, opposite]));
                match (terms.known(here), terms.known(there)) {
                    (_, Some(false)) => self.on_path(terms, path, a),
                    (Some(false), _) => self.on_path(terms, path, b),
                    _ => {
                        let (a, b) = (self.on_path(terms, here, a), self.on_path(terms, there, b));
                        self.choice(terms, c, a, b)
                    }
                }
            }
        }
    }

    /// The value as a number: of a pointer, its address. [`None`] if nothing was ever put there.
    pub(crate) fn numeric(&mut self, terms: &mut TermPool, v: ValueId) -> Option<TermId> {
        Some(match self.kind(v) {
            ValueKind::Undefined => return None,
            ValueKind::Number(t) => t,
            ValueKind::Pointer(region, offset) => {
                let base = base(terms, region);
                semantics::alu(terms, AluOp::Add, Width::W64, &base, &offset)
            }
            ValueKind::Choice(c, a, b) => match (self.numeric(terms, a), self.numeric(terms, b)) {
                (Some(a), Some(b)) => terms.ite(c, a, b),
                _ => return None,
            },
        })
    }

    pub(crate) fn alu(
        &mut self,
        terms: &mut TermPool,
        op: AluOp,
        width: Width,
        a: ValueId,
        b: ValueId,
    ) -> ValueId {
        match (self.kind(a), self.kind(b)) {
            (ValueKind::Undefined, _) | (_, ValueKind::Undefined) => self.undefined(),
            (ValueKind::Choice(c, x, y), _) => {
                let (x, y) = (self.alu(terms, op, width, x, b), self.alu(terms, op, width, y, b));
                self.choice(terms, c, x, y)
            }
            (_, ValueKind::Choice(c, x, y)) => {
                let (x, y) = (self.alu(terms, op, width, a, x), self.alu(terms, op, width, a, y));
                self.choice(terms, c, x, y)
            }
            (ValueKind::Pointer(r, o), ValueKind::Number(n))
                if width == Width::W64 && matches!(op, AluOp::Add | AluOp::Sub) =>
            {
                let t = semantics::alu(terms, op, width, &o, &n);
                self.pointer(r, t)
            }
            (ValueKind::Number(n), ValueKind::Pointer(r, o)) if width == Width::W64 && op == AluOp::Add => {
                let t = semantics::alu(terms, op, width, &o, &n);
                self.pointer(r, t)
            }
            (ValueKind::Pointer(r, o), ValueKind::Pointer(s, p)) if r == s && op == AluOp::Sub => {
                let t = semantics::alu(terms, op, width, &o, &p);
                self.number(t)
            }
            _ => {
                let (Some(x), Some(y)) = (self.numeric(terms, a), self.numeric(terms, b)) else {
                    return self.undefined();
                };
                let t = semantics::alu(terms, op, width, &x, &y);
                self.number(t)
            }
        }
    }

    /// Applies a function of one number.
    pub(crate) fn map(
        &mut self,
        terms: &mut TermPool,
        v: ValueId,
        f: &dyn Fn(&mut TermPool, TermId) -> TermId,
    ) -> ValueId {
        match self.kind(v) {
            ValueKind::Undefined => v,
            ValueKind::Choice(c, a, b) => {
                let (a, b) = (self.map(terms, a, f), self.map(terms, b, f));
                self.choice(terms, c, a, b)
            }
            _ => {
                let Some(t) = self.numeric(terms, v) else { return self.undefined() };
                let t = f(terms, t);
                self.number(t)
            }
        }
    }

    /// Condition under which a branch is taken; [`None`] if it depends on an undefined value.
    pub(crate) fn compare(
        &mut self,
        terms: &mut TermPool,
        cond: Cond,
        width: Width,
        a: ValueId,
        b: ValueId,
    ) -> Option<TermId> {
        match (self.kind(a), self.kind(b)) {
            (ValueKind::Undefined, _) | (_, ValueKind::Undefined) => None,
            (ValueKind::Choice(c, x, y), _) => {
                let (x, y) =
                    (self.compare(terms, cond, width, x, b)?, self.compare(terms, cond, width, y, b)?);
                Some(terms.ite(c, x, y))
            }
            (_, ValueKind::Choice(c, x, y)) => {
                let (x, y) =
                    (self.compare(terms, cond, width, a, x)?, self.compare(terms, cond, width, a, y)?);
                Some(terms.ite(c, x, y))
            }
            // No object lies at address 0, or wraps around the end of the address space.
            (ValueKind::Pointer(..), ValueKind::Number(n))
                if terms.value(n) == Some(0) && width == Width::W64 =>
            {
                not_null(terms, cond)
            }
            (ValueKind::Pointer(r, o), ValueKind::Pointer(s, p)) if r == s && width == Width::W64 => {
                Some(semantics::cond(terms, signed(cond), width, &o, &p))
            }
            (ValueKind::Pointer(r, o), ValueKind::Pointer(s, p))
                if width == Width::W64
                    && matches!(cond, Cond::Eq | Cond::Ne)
                    && (is_on_stack(terms, r, o) && begins(terms, s, p)
                        || is_on_stack(terms, s, p) && begins(terms, r, o)) =>
            {
                Some(terms.truth(cond == Cond::Ne))
            }
            _ => {
                let (x, y) = (self.numeric(terms, a)?, self.numeric(terms, b)?);
                Some(semantics::cond(terms, cond, width, &x, &y))
            }
        }
    }
}

/// Returns true if a pointer points to a byte of the stack.
fn is_on_stack(terms: &TermPool, region: PointerRegion, offset: TermId) -> bool {
    let offset = terms.value(offset).map(|o| o as i64);
    matches!(region, PointerRegion::Stack(_)) && offset.is_some_and(|o| (-STACK_SIZE..0).contains(&o))
}

/// Returns true if a pointer points to the first byte of an object outside the stack.
fn begins(terms: &TermPool, region: PointerRegion, offset: TermId) -> bool {
    matches!(
        region,
        PointerRegion::In(MemorySpace::Map(_) | MemorySpace::Inner(_) | MemorySpace::Allocated, _)
    ) && terms.value(offset) == Some(0)
}

/// The comparison of a pointer with 0.
fn not_null(terms: &mut TermPool, cond: Cond) -> Option<TermId> {
    let holds = matches!(cond, Cond::Ne | Cond::Gt | Cond::Ge);
    if matches!(cond, Cond::Slt | Cond::Sle | Cond::Sgt | Cond::Sge | Cond::Set) {
        return None;
    }
    Some(terms.truth(holds))
}

/// Offsets into one object are small and may be negative: addresses compare like their offsets.
fn signed(cond: Cond) -> Cond {
    match cond {
        Cond::Gt => Cond::Sgt,
        Cond::Ge => Cond::Sge,
        Cond::Lt => Cond::Slt,
        Cond::Le => Cond::Sle,
        other => other,
    }
}

/// The address of a region, as an unknown number.
fn base(terms: &mut TermPool, region: PointerRegion) -> TermId {
    let bits = Sort::Bits(64);
    match region {
        PointerRegion::In(space, object) => terms.app(&format!("{ADDRESS}{space:?}"), &[object], bits),
        PointerRegion::Stack(frame) => terms.var(&format!("{ADDRESS}frame {frame}"), bits),
        PointerRegion::Map(map) => terms.var(&format!("{ADDRESS}map {map}"), bits),
        PointerRegion::InnerMap(map, handle) => {
            terms.app(&format!("{ADDRESS}inner map {map}"), &[handle], bits)
        }
        PointerRegion::Func(slot) => terms.var(&format!("{ADDRESS}function {slot}"), bits),
    }
}
