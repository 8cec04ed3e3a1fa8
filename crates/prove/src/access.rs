//! Accesses to memory: of packet, context, map values and the kernel as terms, of the stack byte by byte.

use std::rc::Rc;

use millstream_isa::semantics;
use millstream_isa::{AluOp, AtomicOp, Reg, Size, Width};

use crate::exec::SymbolicExecutor;
use crate::program::ContextLayout;
use crate::sizes::STACK_SIZE;
use crate::state::{EventChain, SymbolicByte, SymbolicFrame, SymbolicState, byte};
use crate::term::{Sort, TermId, TermPool};
use crate::value::{MemorySpace, PointerRegion, ValueId, ValueKind};
use crate::{ProofAblation, ProofError};

impl SymbolicExecutor<'_, '_> {
    /// The address of an access: base and displacement.
    fn address(&mut self, slot: usize, state: &SymbolicState, base: Reg, off: i16) -> ValueId {
        let v = self.get(state, base);
        let mut displacement = self.w.terms.constant(64, i64::from(off) as u64);
        if let Some(core) = self.p.core.get(&slot)
            && !self.is_context(v)
        {
            let low = self.w.terms.var(&core.name, Sort::Bits(16));
            displacement = self.w.terms.zero_extend_to(low, 64);
        }
        let displacement = self.w.values.number(displacement);
        self.w.values.alu(&mut self.w.terms, AluOp::Add, Width::W64, v, displacement)
    }

    /// The memory that holds a space: the space itself, unless spaces are not distinguished.
    pub(crate) fn memory_of(&self, space: MemorySpace) -> MemorySpace {
        let mixed = match space {
            MemorySpace::Map(_) | MemorySpace::Inner(_) => {
                !self.limits.uses(ProofAblation::Maps) || !self.limits.uses(ProofAblation::Spaces)
            }
            MemorySpace::Packet | MemorySpace::Allocated => !self.limits.uses(ProofAblation::Spaces),
            MemorySpace::Context | MemorySpace::Kernel | MemorySpace::Mixed => false,
        };
        if mixed { MemorySpace::Mixed } else { space }
    }

    /// An object of a space.
    pub(crate) fn place(&mut self, space: MemorySpace, object: TermId) -> PointerRegion {
        match self.memory_of(space) {
            MemorySpace::Mixed => {
                let object = self.w.terms.app(&format!("object of {space:?}"), &[object], Sort::Bits(64));
                PointerRegion::In(MemorySpace::Mixed, object)
            }
            own => PointerRegion::In(own, object),
        }
    }

    pub(crate) fn is_context(&self, v: ValueId) -> bool {
        matches!(self.w.values.kind(v), ValueKind::Pointer(PointerRegion::In(MemorySpace::Context, _), _))
    }

    pub(crate) fn load(
        &mut self,
        slot: usize,
        state: &SymbolicState,
        src: Reg,
        off: i16,
        size: Size,
        sext: bool,
    ) -> Result<ValueId, ProofError> {
        let at = self.address(slot, state, src, off);
        if !sext && let Some(v) = self.special(state, at, size) {
            return Ok(v);
        }
        if size == Size::Dw
            && let Some(v) = self.whole(state, at)
        {
            return Ok(v);
        }
        let mut bytes = match self.relocated(slot, state, src, size) {
            Some(places) => self.read_one_of(state, &places, u64::from(size.bytes()))?,
            None => self.read(state, at, u64::from(size.bytes()))?,
        };
        for byte in &mut bytes {
            *byte = state.ranges.put_in(&mut self.w.terms, *byte);
        }
        let t = self.assemble(&bytes);
        let t = semantics::loaded(&mut self.w.terms, size, sext, &t);
        Ok(self.w.values.number(t))
    }

    /// Possible addresses of a stack access whose displacement comes from a relocation: each address, and the
    /// condition under which it applies. The access is aligned and stays within the object whose field offset
    /// the relocation asks for.
    fn relocated(
        &mut self,
        slot: usize,
        state: &SymbolicState,
        base: Reg,
        size: Size,
    ) -> Option<Vec<(TermId, ValueId)>> {
        let core = self.p.core.get(&slot)?;
        let v = self.get(state, base);
        let ValueKind::Pointer(region @ PointerRegion::Stack(_), start) = self.w.values.kind(v) else {
            return None;
        };
        let from = self.w.terms.value(start)?;
        let bytes = u64::from(size.bytes());
        let last = core.object?.checked_sub(bytes)?.min(STACK_SIZE as u64);
        let field = self.w.terms.var(&core.name, Sort::Bits(16));
        let aligned = (0..=last).filter(|at| from.wrapping_add(*at).is_multiple_of(bytes));
        let places = aligned.map(|at| {
            let k = self.w.terms.constant(16, at);
            let (here, offset) = (self.w.terms.equal(field, k), offset_by(&mut self.w.terms, start, at));
            (here, self.w.values.pointer(region, offset))
        });
        Some(places.collect())
    }

    /// Reads the bytes at the one of these addresses whose condition holds.
    fn read_one_of(
        &mut self,
        state: &SymbolicState,
        places: &[(TermId, ValueId)],
        count: u64,
    ) -> Result<Vec<TermId>, ProofError> {
        let mut out: Option<Vec<TermId>> = None;
        for (here, at) in places {
            let bytes = self.read(state, *at, count)?;
            out = Some(match out {
                None => bytes,
                Some(others) => {
                    bytes.into_iter().zip(others).map(|(a, b)| self.w.terms.ite(*here, a, b)).collect()
                }
            });
        }
        out.ok_or_else(|| ProofError::new("an access within nothing"))
    }

    /// Bytes in memory order as one vector.
    pub(crate) fn assemble(&mut self, bytes: &[TermId]) -> TermId {
        self.w.terms.word(bytes)
    }

    /// Reads the fields of the context that are pointers.
    fn special(&mut self, state: &SymbolicState, at: ValueId, size: Size) -> Option<ValueId> {
        let ValueKind::Pointer(PointerRegion::In(MemorySpace::Context, _), offset) = self.w.values.kind(at)
        else {
            return None;
        };
        let offset = self.w.terms.value(offset)?;
        let (data, end, meta) = match self.p.context {
            ContextLayout::Xdp => (0, 4, 8),
            ContextLayout::Skb => (76, 80, 140),
            ContextLayout::Other => return None,
        };
        if size != Size::W {
            return None;
        }
        let zero = self.w.terms.constant(64, 0);
        let place = match offset {
            o if o == data => zero,
            o if o == end => state.length,
            o if o == meta => semantics::neg(&mut self.w.terms, Width::W64, &state.metadata),
            _ => return None,
        };
        let packet = self.place(MemorySpace::Packet, zero);
        Some(self.w.values.pointer(packet, place))
    }

    /// A value of 8 bytes that was put on the stack as a whole.
    fn whole(&mut self, state: &SymbolicState, at: ValueId) -> Option<ValueId> {
        let ValueKind::Pointer(PointerRegion::Stack(frame), offset) = self.w.values.kind(at) else {
            return None;
        };
        let offset = self.w.terms.value(offset)? as i64;
        let frame = &state.frames[usize::from(frame)];
        let Some(SymbolicByte::Part(v, 0)) = frame.get(&offset) else { return None };
        (1..8u8)
            .all(|i| frame.get(&(offset + i64::from(i))) == Some(&SymbolicByte::Part(*v, i)))
            .then_some(*v)
    }

    /// The bytes at an address, in memory order.
    pub(crate) fn read(
        &mut self,
        state: &SymbolicState,
        at: ValueId,
        count: u64,
    ) -> Result<Vec<TermId>, ProofError> {
        match self.w.values.kind(at) {
            ValueKind::Undefined => Err(ProofError::new("reads through what is not defined")),
            ValueKind::Number(address) => {
                if self.w.terms.has_address(address) {
                    return Err(ProofError::new("reads through a pointer that was taken apart"));
                }
                self.read_space(state, MemorySpace::Kernel, None, address, count)
            }
            ValueKind::Pointer(PointerRegion::In(space, object), offset) => {
                match self.read_settled(space, object, offset, count) {
                    Some(bytes) => Ok(bytes),
                    None => self.read_space(state, space, Some(object), offset, count),
                }
            }
            ValueKind::Pointer(PointerRegion::Stack(frame), offset) => {
                self.read_stack(state, frame, offset, count)
            }
            ValueKind::Pointer(region, _) => Err(ProofError::new(format!("reads from {region:?}"))),
            ValueKind::Choice(c, a, b) => {
                // Accepted programs do not read through null: that alternative is not there.
                match (self.is_null(a), self.is_null(b)) {
                    (true, _) => self.read(state, b, count),
                    (_, true) => self.read(state, a, count),
                    _ => {
                        let (a, b) = (self.read(state, a, count)?, self.read(state, b, count)?);
                        Ok(a.into_iter().zip(b).map(|(a, b)| self.w.terms.ite(c, a, b)).collect())
                    }
                }
            }
        }
    }

    /// Constants that have their final value.
    fn read_settled(
        &mut self,
        space: MemorySpace,
        object: TermId,
        offset: TermId,
        count: u64,
    ) -> Option<Vec<TermId>> {
        let MemorySpace::Map(map) = space else { return None };
        let place = self.w.terms.value(object).zip(self.w.terms.value(offset));
        let (_, offset) = place.filter(|(object, _)| *object == 0)?;
        let bytes = self.w.maps.get(map as usize)?.settled_bytes(offset, count)?.to_vec();
        Some(bytes.into_iter().map(|byte| self.w.terms.constant(8, byte.into())).collect())
    }

    /// Returns true for a small number, through which no access can go.
    pub(crate) fn is_null(&self, v: ValueId) -> bool {
        match self.w.values.kind(v) {
            ValueKind::Number(t) => self.w.terms.value(t).is_some_and(|n| n < 1 << 16),
            ValueKind::Undefined => true,
            _ => false,
        }
    }

    fn read_space(
        &mut self,
        state: &SymbolicState,
        space: MemorySpace,
        object: Option<TermId>,
        offset: TermId,
        count: u64,
    ) -> Result<Vec<TermId>, ProofError> {
        let terms = &mut self.w.terms;
        let memory = state.memory(terms, space);
        let object = object.unwrap_or_else(|| terms.constant(64, 0));
        Ok((0..count)
            .map(|i| {
                let at = offset_by(terms, offset, i);
                terms.select(memory, object, at)
            })
            .collect())
    }

    fn read_stack(
        &mut self,
        state: &SymbolicState,
        frame: u8,
        offset: TermId,
        count: u64,
    ) -> Result<Vec<TermId>, ProofError> {
        let mut out = Vec::with_capacity(count as usize);
        for i in 0..count {
            let at = offset_by(&mut self.w.terms, offset, i);
            let cells = &state.frames[usize::from(frame)];
            out.push(match self.w.terms.value(at) {
                Some(at) => self.stack_byte(state, cells, at as i64),
                None => self.stack_byte_somewhere(state, cells, at)?,
            });
        }
        Ok(out)
    }

    fn stack_byte(&mut self, state: &SymbolicState, frame: &SymbolicFrame, at: i64) -> TermId {
        self.stack_byte_there(state, frame, at).unwrap_or_else(|| self.anything(Sort::Bits(8)))
    }

    /// A byte that has been put on the stack; an arbitrary one if none was put there.
    fn stack_byte_there(&mut self, state: &SymbolicState, frame: &SymbolicFrame, at: i64) -> Option<TermId> {
        let Some(cell) = frame.get(&at).copied() else {
            self.w.unwritten.missed = true;
            return None;
        };
        let SymbolicByte::Half(defined, t) = cell else {
            return byte(&mut self.w.terms, &mut self.w.values, cell);
        };
        let defined = self.w.terms.under(defined, state.path);
        let defined = state.ranges.settle(&mut self.w.terms, defined);
        let known = self.w.terms.known(defined);
        self.w.unwritten.missed |= known != Some(true);
        match known {
            Some(there) => there.then_some(t),
            None => {
                let anything = self.anything(Sort::Bits(8));
                Some(self.w.terms.ite(defined, t, anything))
            }
        }
    }

    /// A byte of the stack at an offset that varies; an arbitrary one where none was put.
    fn stack_byte_somewhere(
        &mut self,
        state: &SymbolicState,
        frame: &SymbolicFrame,
        at: TermId,
    ) -> Result<TermId, ProofError> {
        let (mut bytes, mut out) = (Vec::new(), None);
        for (place, here) in self.places(state, at) {
            match self.stack_byte_there(state, frame, place) {
                Some(byte) => bytes.push((here, byte)),
                None => out = out.or_else(|| Some(self.anything(Sort::Bits(8)))),
            }
        }
        if bytes.is_empty() {
            return Err(ProofError::new("reads the stack where nothing was put"));
        }
        for (here, byte) in bytes {
            out = Some(out.map_or(byte, |other| self.w.terms.ite(here, byte, other)));
        }
        out.ok_or_else(|| ProofError::new("reads the stack where nothing was put"))
    }

    /// A fresh value of which nothing is known.
    pub(crate) fn anything(&mut self, sort: Sort) -> TermId {
        self.side.fresh += 1;
        self.w.terms.var(&format!("{} undefined {}", self.side.name, self.side.fresh), sort)
    }

    pub(crate) fn store_insn(
        &mut self,
        slot: usize,
        state: &mut SymbolicState,
        dst: Reg,
        off: i16,
        size: Size,
        v: ValueId,
    ) -> Result<(), ProofError> {
        let at = self.address(slot, state, dst, off);
        if size == Size::Dw
            && let ValueKind::Pointer(PointerRegion::Stack(frame), offset) = self.w.values.kind(at)
            && !matches!(self.w.values.kind(v), ValueKind::Number(_))
            && let Some(offset) = self.w.terms.value(offset)
        {
            let frame = Rc::make_mut(&mut state.frames[usize::from(frame)]);
            for i in 0..8u8 {
                frame.insert(offset as i64 + i64::from(i), SymbolicByte::Part(v, i));
            }
            return Ok(());
        }
        let bytes = match self.w.values.numeric(&mut self.w.terms, v) {
            Some(t) => (0..size.bytes()).map(|i| self.w.terms.byte_of(t, size.bytes(), i)).collect(),
            None => (0..size.bytes()).map(|_| self.anything(Sort::Bits(8))).collect::<Vec<_>>(),
        };
        let Some(places) = self.relocated(slot, state, dst, size) else {
            return self.write(state, at, &bytes, None);
        };
        places.into_iter().try_for_each(|(here, at)| self.write(state, at, &bytes, Some(here)))
    }

    /// Writes bytes; under the condition `only`, if it is given.
    pub(crate) fn write(
        &mut self,
        state: &mut SymbolicState,
        at: ValueId,
        bytes: &[TermId],
        only: Option<TermId>,
    ) -> Result<(), ProofError> {
        match self.w.values.kind(at) {
            ValueKind::Pointer(PointerRegion::In(space, object), offset) => {
                let terms = &mut self.w.terms;
                let mut memory = state.memory(terms, space);
                for (i, b) in bytes.iter().enumerate() {
                    let at = offset_by(terms, offset, i as u64);
                    let value = match only {
                        None => *b,
                        Some(c) => {
                            let old = terms.select(memory, object, at);
                            terms.ite(c, *b, old)
                        }
                    };
                    memory = terms.store(memory, object, at, value);
                }
                state.memory.insert(space, memory);
                Ok(())
            }
            ValueKind::Pointer(PointerRegion::Stack(frame), offset) => {
                self.write_stack(state, frame, offset, bytes, only)
            }
            ValueKind::Choice(c, a, b) => match (self.is_null(a), self.is_null(b)) {
                (true, _) => self.write(state, b, bytes, only),
                (_, true) => self.write(state, a, bytes, only),
                _ => {
                    let opposite = self.w.terms.not(c);
                    let (here, there) = match only {
                        None => (c, opposite),
                        Some(d) => (self.w.terms.and(&[c, d]), self.w.terms.and(&[opposite, d])),
                    };
                    self.write(state, a, bytes, Some(here))?;
                    self.write(state, b, bytes, Some(there))
                }
            },
            other => Err(ProofError::new(format!("writes through {}", describe(other)))),
        }
    }

    fn write_stack(
        &mut self,
        state: &mut SymbolicState,
        frame: u8,
        offset: TermId,
        bytes: &[TermId],
        only: Option<TermId>,
    ) -> Result<(), ProofError> {
        for (i, b) in bytes.iter().enumerate() {
            let at = offset_by(&mut self.w.terms, offset, i as u64);
            let places = match self.w.terms.value(at) {
                Some(at) => vec![(at as i64, only)],
                None => {
                    let places = self.places(state, at).into_iter();
                    let mut both = |here| only.map_or(here, |c| self.w.terms.and(&[here, c]));
                    places.map(|(at, here)| (at, Some(both(here)))).collect()
                }
            };
            for (at, only) in places {
                let value = match only {
                    None => *b,
                    Some(c) => {
                        let old = state.frames[usize::from(frame)].clone();
                        let old = self.stack_byte(state, &old, at);
                        self.w.terms.ite(c, *b, old)
                    }
                };
                Rc::make_mut(&mut state.frames[usize::from(frame)]).insert(at, SymbolicByte::Byte(value));
            }
        }
        Ok(())
    }

    /// All places in a frame that an offset may refer to, each with the condition under which it does.
    fn places(&mut self, state: &SymbolicState, at: TermId) -> Vec<(i64, TermId)> {
        let mut out = Vec::new();
        for place in -STACK_SIZE..0 {
            let k = self.w.terms.constant(64, place as u64);
            let here = self.w.terms.equal(at, k);
            let here = state.ranges.settle(&mut self.w.terms, here);
            if self.w.terms.known(here) != Some(false) {
                out.push((place, here));
            }
        }
        out
    }

    pub(crate) fn atomic(
        &mut self,
        slot: usize,
        state: &mut SymbolicState,
        op: AtomicOp,
        fetch: bool,
        size: Size,
        (dst, src, off): (Reg, Reg, i16),
    ) -> Result<(), ProofError> {
        let at = self.address(slot, state, dst, off);
        let bytes = self.read(state, at, u64::from(size.bytes()))?;
        let old = self.assemble(&bytes);
        let (v, r0) = (self.get(state, src), self.get(state, Reg::R0));
        let Some(v) = self.w.values.numeric(&mut self.w.terms, v) else {
            return Err(ProofError::new("an atomic operation with an undefined operand"));
        };
        let expected = match op {
            AtomicOp::CmpXchg => self.w.values.numeric(&mut self.w.terms, r0),
            _ => Some(v),
        };
        let expected = expected.ok_or_else(|| ProofError::new("an exchange with an undefined operand"))?;
        let before = state.chain(&mut self.w.terms, EventChain::Atomics);
        let event = self.atomic_event(at, before, &format!("{op:?} {size:?}"), &[v, expected]);
        state.chains.insert(EventChain::Atomics, event);
        let result = semantics::atomic(&mut self.w.terms, op, size, &old, &v, &expected);
        let new: Vec<TermId> =
            (0..size.bytes()).map(|i| self.w.terms.byte_of(result.memory, size.bytes(), i)).collect();
        self.write(state, at, &new, None)?;
        if fetch {
            let fetched = self.w.values.number(result.fetched);
            self.set(state, if op == AtomicOp::CmpXchg { Reg::R0 } else { src }, fetched);
        }
        Ok(())
    }

    /// The chain of atomic operations after one more. Others see them in order, unless the memory is the
    /// program's own: its stack, or its CPU's copy of a value.
    fn atomic_event(&mut self, at: ValueId, before: TermId, name: &str, operands: &[TermId]) -> TermId {
        match self.w.values.kind(at) {
            ValueKind::Choice(c, a, b) => {
                let (a, b) = (
                    self.atomic_event(a, before, name, operands),
                    self.atomic_event(b, before, name, operands),
                );
                self.w.terms.ite(c, a, b)
            }
            ValueKind::Pointer(PointerRegion::In(space, object), offset) if self.is_shared(space) => {
                let mut inputs = vec![before, object, offset];
                inputs.extend(operands);
                self.w.terms.app(&format!("atomic {name} {space:?}"), &inputs, Sort::Token)
            }
            _ => before,
        }
    }

    /// Returns true if programs on other CPUs can access this memory.
    fn is_shared(&self, space: MemorySpace) -> bool {
        match space {
            MemorySpace::Map(map) => !is_percpu(self.w.maps[map as usize].number),
            MemorySpace::Inner(map) => !self.w.maps[map as usize].inner.is_some_and(|i| is_percpu(i.0)),
            _ => true,
        }
    }
}

/// Map types with a copy of each value for each CPU.
fn is_percpu(number: u32) -> bool {
    matches!(number, 5 | 6 | 10)
}

fn describe(kind: ValueKind) -> String {
    match kind {
        ValueKind::Undefined => "what is not defined".to_owned(),
        ValueKind::Number(_) => "a number".to_owned(),
        ValueKind::Pointer(region, _) => format!("a pointer to {region:?}"),
        ValueKind::Choice(..) => "one of several".to_owned(),
    }
}

/// An offset plus `by`.
pub(crate) fn offset_by(terms: &mut TermPool, offset: TermId, by: u64) -> TermId {
    let by = terms.constant(64, by);
    semantics::alu(terms, AluOp::Add, Width::W64, &offset, &by)
}
