//! Values of registers: numbers, and pointers with their regions.

use crate::access::STACK_SIZE;
use crate::term::{ADDRESS, Sort, T, Terms};
use millstream_isa::semantics;
use millstream_isa::{AluOp, Cond, Width};
use rustc_hash::FxHashMap;

/// A value: an index into [`Values`]. Equal indices, equal values.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct V(u32);

/// Memory that programs can address, each space disjoint from all others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Space {
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
pub(crate) enum Region {
    /// An object of a space.
    In(Space, T),
    /// A frame of the stack, outermost first; offset 0 is its upper end.
    Stack(u8),
    /// A map.
    Map(u32),
    /// An inner map of a map of maps.
    InnerMap(u32, T),
    /// A function of the program, by slot.
    Func(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Kind {
    /// Nothing was ever put there.
    Undefined,
    /// A number of 64 bits.
    Number(T),
    /// A pointer: region and offset.
    Pointer(Region, T),
    /// The first if the condition holds, else the second.
    Choice(T, V, V),
}

/// All values of one proof.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values {
    kinds: Vec<Kind>,
    index: FxHashMap<Kind, V>,
}

impl Values {
    pub(crate) fn kind(&self, v: V) -> Kind {
        self.kinds[v.0 as usize]
    }

    fn make(&mut self, kind: Kind) -> V {
        if let Some(v) = self.index.get(&kind) {
            return *v;
        }
        let v = V(self.kinds.len() as u32);
        self.kinds.push(kind);
        self.index.insert(kind, v);
        v
    }

    pub(crate) fn undefined(&mut self) -> V {
        self.make(Kind::Undefined)
    }

    pub(crate) fn number(&mut self, t: T) -> V {
        self.make(Kind::Number(t))
    }

    pub(crate) fn pointer(&mut self, region: Region, offset: T) -> V {
        self.make(Kind::Pointer(region, offset))
    }

    pub(crate) fn choice(&mut self, terms: &mut Terms, c: T, a: V, b: V) -> V {
        if a == b {
            return a;
        }
        match terms.known(c) {
            Some(true) => return a,
            Some(false) => return b,
            None => {}
        }
        match (self.kind(a), self.kind(b)) {
            (Kind::Number(x), Kind::Number(y)) => {
                let t = terms.ite(c, x, y);
                self.number(t)
            }
            (Kind::Pointer(r, x), Kind::Pointer(s, y)) if r == s => {
                let t = terms.ite(c, x, y);
                self.pointer(r, t)
            }
            (Kind::Pointer(Region::In(s, o), x), Kind::Pointer(Region::In(t, p), y)) if s == t => {
                let (object, offset) = (terms.ite(c, o, p), terms.ite(c, x, y));
                self.pointer(Region::In(s, object), offset)
            }
            (Kind::Choice(d, then, _), _) if d == c => self.choice(terms, c, then, b),
            (_, Kind::Choice(d, _, other)) if d == c => self.choice(terms, c, a, other),
            _ => self.make(Kind::Choice(c, a, b)),
        }
    }

    /// The value, simplified under a path condition.
    pub(crate) fn on_path(&mut self, terms: &mut Terms, path: T, v: V) -> V {
        match self.kind(v) {
            Kind::Undefined => v,
            Kind::Number(t) => {
                let t = terms.under(t, path);
                self.number(t)
            }
            Kind::Pointer(Region::In(space, object), offset) => {
                let (object, offset) = (terms.under(object, path), terms.under(offset, path));
                self.pointer(Region::In(space, object), offset)
            }
            Kind::Pointer(region, offset) => {
                let offset = terms.under(offset, path);
                self.pointer(region, offset)
            }
            Kind::Choice(c, a, b) => {
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
    pub(crate) fn numeric(&mut self, terms: &mut Terms, v: V) -> Option<T> {
        Some(match self.kind(v) {
            Kind::Undefined => return None,
            Kind::Number(t) => t,
            Kind::Pointer(region, offset) => {
                let base = base(terms, region);
                semantics::alu(terms, AluOp::Add, Width::W64, &base, &offset)
            }
            Kind::Choice(c, a, b) => match (self.numeric(terms, a), self.numeric(terms, b)) {
                (Some(a), Some(b)) => terms.ite(c, a, b),
                _ => return None,
            },
        })
    }

    pub(crate) fn alu(&mut self, terms: &mut Terms, op: AluOp, width: Width, a: V, b: V) -> V {
        match (self.kind(a), self.kind(b)) {
            (Kind::Undefined, _) | (_, Kind::Undefined) => self.undefined(),
            (Kind::Choice(c, x, y), _) => {
                let (x, y) = (self.alu(terms, op, width, x, b), self.alu(terms, op, width, y, b));
                self.choice(terms, c, x, y)
            }
            (_, Kind::Choice(c, x, y)) => {
                let (x, y) = (self.alu(terms, op, width, a, x), self.alu(terms, op, width, a, y));
                self.choice(terms, c, x, y)
            }
            (Kind::Pointer(r, o), Kind::Number(n))
                if width == Width::W64 && matches!(op, AluOp::Add | AluOp::Sub) =>
            {
                let t = semantics::alu(terms, op, width, &o, &n);
                self.pointer(r, t)
            }
            (Kind::Number(n), Kind::Pointer(r, o)) if width == Width::W64 && op == AluOp::Add => {
                let t = semantics::alu(terms, op, width, &o, &n);
                self.pointer(r, t)
            }
            (Kind::Pointer(r, o), Kind::Pointer(s, p)) if r == s && op == AluOp::Sub => {
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
    pub(crate) fn map(&mut self, terms: &mut Terms, v: V, f: &dyn Fn(&mut Terms, T) -> T) -> V {
        match self.kind(v) {
            Kind::Undefined => v,
            Kind::Choice(c, a, b) => {
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
    pub(crate) fn compare(&mut self, terms: &mut Terms, cond: Cond, width: Width, a: V, b: V) -> Option<T> {
        match (self.kind(a), self.kind(b)) {
            (Kind::Undefined, _) | (_, Kind::Undefined) => None,
            (Kind::Choice(c, x, y), _) => {
                let (x, y) =
                    (self.compare(terms, cond, width, x, b)?, self.compare(terms, cond, width, y, b)?);
                Some(terms.ite(c, x, y))
            }
            (_, Kind::Choice(c, x, y)) => {
                let (x, y) =
                    (self.compare(terms, cond, width, a, x)?, self.compare(terms, cond, width, a, y)?);
                Some(terms.ite(c, x, y))
            }
            // No object lies at address 0, or wraps around the end of the address space.
            (Kind::Pointer(..), Kind::Number(n)) if terms.value(n) == Some(0) && width == Width::W64 => {
                not_null(terms, cond)
            }
            (Kind::Pointer(r, o), Kind::Pointer(s, p)) if r == s && width == Width::W64 => {
                Some(semantics::cond(terms, signed(cond), width, &o, &p))
            }
            (Kind::Pointer(r, o), Kind::Pointer(s, p))
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
fn is_on_stack(terms: &Terms, region: Region, offset: T) -> bool {
    let offset = terms.value(offset).map(|o| o as i64);
    matches!(region, Region::Stack(_)) && offset.is_some_and(|o| (-STACK_SIZE..0).contains(&o))
}

/// Returns true if a pointer points to the first byte of an object outside the stack.
fn begins(terms: &Terms, region: Region, offset: T) -> bool {
    matches!(region, Region::In(Space::Map(_) | Space::Inner(_) | Space::Allocated, _))
        && terms.value(offset) == Some(0)
}

/// The comparison of a pointer with 0.
fn not_null(terms: &mut Terms, cond: Cond) -> Option<T> {
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
fn base(terms: &mut Terms, region: Region) -> T {
    let bits = Sort::Bits(64);
    match region {
        Region::In(space, object) => terms.app(&format!("{ADDRESS}{space:?}"), &[object], bits),
        Region::Stack(frame) => terms.var(&format!("{ADDRESS}frame {frame}"), bits),
        Region::Map(map) => terms.var(&format!("{ADDRESS}map {map}"), bits),
        Region::InnerMap(map, handle) => terms.app(&format!("{ADDRESS}inner map {map}"), &[handle], bits),
        Region::Func(slot) => terms.var(&format!("{ADDRESS}function {slot}"), bits),
    }
}
