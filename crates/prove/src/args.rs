//! Arguments of calls: the inputs that a call takes through each, and the memory that it changes there.

use millstream_isa::helpers::ArgKind;
use millstream_isa::semantics::Pred;

use crate::ProofError;
use crate::access::offset_by;
use crate::call::{CallBuilder, CallOutput, MapHandle};
use crate::exec::SymbolicExecutor;
use crate::sizes::MOST_BYTES;
use crate::state::{EventChain, SymbolicState};
use crate::term::TermId;
use crate::value::{MemorySpace, PointerRegion, ValueId, ValueKind};

impl SymbolicExecutor<'_, '_> {
    pub(crate) fn arguments(
        &mut self,
        state: &mut SymbolicState,
        kinds: &[ArgKind],
        call: &mut CallBuilder,
    ) -> Result<(), ProofError> {
        let asked = kinds.contains(&ArgKind::Optional).then(|| self.asked_by_format(state)).flatten();
        for (at, kind) in kinds.iter().enumerate() {
            if *kind == ArgKind::Optional && asked.is_some_and(|count| at >= 2 + count) {
                continue;
            }
            let v = self.w.values.on_path(&mut self.w.terms, state.path, state.regs[at + 1]);
            self.argument(state, *kind, v, at, call)?;
        }
        Ok(())
    }

    /// Number of arguments that a format string asks for, if the string and its size are known: one for each
    /// `%`, but none for `%%` (`bpf_bprintf_prepare`). Arguments beyond these are ignored.
    fn asked_by_format(&mut self, state: &SymbolicState) -> Option<usize> {
        let [at, size] = [1, 2].map(|r| self.w.values.on_path(&mut self.w.terms, state.path, state.regs[r]));
        let size = self.w.values.numeric(&mut self.w.terms, size)?;
        let size = self.w.terms.value(size).filter(|size| *size <= MOST_BYTES)?;
        let bytes = self.read(state, at, size).ok()?;
        let text: Option<Vec<u8>> =
            bytes.into_iter().map(|t| self.w.terms.value(t).map(|b| b as u8)).collect();
        let text = text?;
        let text = text.split(|b| *b == 0).next()?;
        let (mut rest, mut count) = (text.iter().peekable(), 0);
        while rest.any(|b| *b == b'%') {
            count += usize::from(rest.next_if(|b| **b == b'%').is_none());
        }
        Some(count)
    }

    fn argument(
        &mut self,
        state: &mut SymbolicState,
        kind: ArgKind,
        v: ValueId,
        at: usize,
        call: &mut CallBuilder,
    ) -> Result<(), ProofError> {
        match kind {
            ArgKind::Ctx => {}
            ArgKind::CtxOrNull | ArgKind::CtxOrSock if self.is_context(v) => {}
            ArgKind::ConstMap => {
                let handle = self.handle(v)?;
                if let MapHandle::Map(map) = handle {
                    let number = self.w.terms.constant(32, u64::from(map));
                    call.inputs.push(number);
                } else if let MapHandle::Inner(_, t) = handle {
                    call.inputs.push(t);
                }
                call.map = Some(handle);
            }
            ArgKind::MapKey | ArgKind::MapValue if call.map.is_some_and(|m| self.is_open(m)) => {
                self.open_bytes(state, v, None, call)?;
            }
            ArgKind::MapKey => {
                let (key, _) = self.sizes(call)?;
                self.input_bytes(state, v, u64::from(key), call)?;
            }
            ArgKind::MapValue | ArgKind::MapValueOrNull => {
                let (_, value) = self.sizes(call)?;
                let v = if kind == ArgKind::MapValue { v } else { self.unless_null(v, call) };
                self.input_bytes_or_null(state, v, u64::from(value), call)?;
            }
            ArgKind::MapValueOut => {
                let (_, value) = self.sizes(call)?;
                call.outs.push(CallOutput::Bytes(v, u64::from(value)));
            }
            ArgKind::Mem { read, write, null } => {
                let v = if null { self.unless_null(v, call) } else { v };
                let size = self.w.values.on_path(&mut self.w.terms, state.path, state.regs[at + 2]);
                let size = self.w.values.numeric(&mut self.w.terms, size);
                let size =
                    size.ok_or_else(|| ProofError::new(format!("{} is given an undefined size", call.name)))?;
                self.memory_argument(state, v, size, (read, write), call)?;
            }
            ArgKind::Fixed { bytes, read, write } => {
                if read {
                    self.input_bytes_or_null(state, v, u64::from(bytes), call)?;
                }
                if write {
                    call.outs.push(CallOutput::Bytes(v, u64::from(bytes)));
                }
            }
            ArgKind::Dynptr | ArgKind::DynptrOut => {
                return Err(ProofError::new(format!("{} takes a dynptr, which is not modelled", call.name)));
            }
            // Beyond what the format asks for: may hold nothing.
            ArgKind::Optional if self.w.values.kind(v) == ValueKind::Undefined => {}
            ArgKind::Func | ArgKind::StackOrNull => {
                return Err(ProofError::new(format!("{} calls back", call.name)));
            }
            ArgKind::RingbufRecord | ArgKind::SpinLock | ArgKind::Timer | ArgKind::KptrSlot => {
                self.object_argument(state, v, call)?;
            }
            ArgKind::ConstStr => {
                let ValueKind::Pointer(PointerRegion::In(space, object), offset) = self.w.values.kind(v)
                else {
                    return Err(ProofError::new(format!(
                        "{} is given a string that is not in a map",
                        call.name
                    )));
                };
                let memory = state.memory(&mut self.w.terms, space);
                call.inputs.extend([memory, object, offset]);
            }
            _ => self.plain_argument(state, v, call)?,
        }
        Ok(())
    }

    /// A number, or a pointer taken as one, through which the call may read.
    fn plain_argument(
        &mut self,
        state: &mut SymbolicState,
        v: ValueId,
        call: &mut CallBuilder,
    ) -> Result<(), ProofError> {
        // These read the memory that it points to, and do nothing else with it.
        if call.name.starts_with("bpf_probe_read") {
            match self.w.values.kind(v) {
                ValueKind::Pointer(PointerRegion::Stack(_), _) => {
                    let size = self.w.values.numeric(&mut self.w.terms, state.regs[2]);
                    let size = size.and_then(|size| self.w.terms.value(size));
                    return self.open_bytes(state, v, size, call);
                }
                ValueKind::Choice(c, a, b) if self.is_on_stack(a) || self.is_on_stack(b) => {
                    call.inputs.push(c);
                    self.plain_argument(state, a, call)?;
                    return self.plain_argument(state, b, call);
                }
                _ => {}
            }
        }
        let t = self.w.values.numeric(&mut self.w.terms, v);
        let t = t.ok_or_else(|| ProofError::new(format!("{} is given what is not defined", call.name)))?;
        let mut memories = Vec::new();
        if !self.reachable(v, &mut memories) {
            return Err(ProofError::new(format!("{} is given a pointer as a number", call.name)));
        }
        memories.sort_unstable();
        memories.dedup();
        call.inputs.push(t);
        for space in memories {
            let memory = state.memory(&mut self.w.terms, space);
            call.inputs.push(memory);
        }
        Ok(())
    }

    /// Returns true if a value may be a pointer into the stack.
    pub(crate) fn is_on_stack(&self, v: ValueId) -> bool {
        match self.w.values.kind(v) {
            ValueKind::Pointer(PointerRegion::Stack(_), _) => true,
            ValueKind::Choice(_, a, b) => self.is_on_stack(a) || self.is_on_stack(b),
            _ => false,
        }
    }

    /// Collects the memories that a value may point into; `false` if they are not known.
    fn reachable(&mut self, v: ValueId, memories: &mut Vec<MemorySpace>) -> bool {
        match self.w.values.kind(v) {
            ValueKind::Pointer(PointerRegion::In(space, _), _) => {
                memories.push(space);
                true
            }
            ValueKind::Choice(_, a, b) => self.reachable(a, memories) && self.reachable(b, memories),
            ValueKind::Number(t) => !self.w.terms.has_address(t),
            ValueKind::Pointer(..) | ValueKind::Undefined => false,
        }
    }

    /// An argument that points to memory of which the call reads and writes an unknown part: on the stack
    /// everything above the pointer, elsewhere the whole memory.
    pub(crate) fn unknown_argument(
        &mut self,
        state: &mut SymbolicState,
        v: ValueId,
        call: &mut CallBuilder,
    ) -> Result<(), ProofError> {
        match self.w.values.kind(v) {
            ValueKind::Pointer(PointerRegion::In(..), _) | ValueKind::Choice(..) => {
                let v = self.unless_null(v, call);
                self.object_argument(state, v, call)
            }
            ValueKind::Pointer(PointerRegion::Map(map), _) => {
                let number = self.w.terms.constant(32, u64::from(map));
                call.inputs.push(number);
                for space in [MemorySpace::Map(map), MemorySpace::Inner(map)] {
                    let memory = self.memory_of(space);
                    let memory = state.memory(&mut self.w.terms, memory);
                    let entries = state.chain(&mut self.w.terms, EventChain::Entries(space));
                    call.inputs.extend([memory, entries]);
                    call.outs.push(CallOutput::Map(space));
                }
                Ok(())
            }
            ValueKind::Pointer(PointerRegion::Stack(_), offset) => {
                self.open_bytes(state, v, None, call)?;
                let start = self.w.terms.value(offset).map_or(0, |o| o as i64);
                call.outs.push(CallOutput::Some(v, start.min(0).unsigned_abs()));
                Ok(())
            }
            _ => Err(ProofError::new(format!("{} is given what it does something unknown with", call.name))),
        }
    }

    /// An argument that points into a map value or a record, which the call may change.
    fn object_argument(
        &mut self,
        state: &mut SymbolicState,
        v: ValueId,
        call: &mut CallBuilder,
    ) -> Result<(), ProofError> {
        let v = self.w.values.on_path(&mut self.w.terms, state.path, v);
        match self.objects(state, v, true, call) {
            true => Ok(()),
            false => {
                Err(ProofError::new(format!("{} is given an object that cannot be followed", call.name)))
            }
        }
    }

    /// Strips null from an argument that is a pointer or null, where null is allowed. The call then also
    /// depends on which of the two it is.
    fn unless_null(&mut self, v: ValueId, call: &mut CallBuilder) -> ValueId {
        let (there, condition) = match self.w.values.kind(v) {
            ValueKind::Choice(c, a, b) if self.is_null(b) => (a, c),
            ValueKind::Choice(c, a, b) if self.is_null(a) => (b, self.w.terms.not(c)),
            _ => return v,
        };
        call.inputs.push(condition);
        self.unless_null(there, call)
    }

    /// Collects the memories that a pointer may point into: the call depends on them and, if `write`, may
    /// change them. `false` if it may point elsewhere than into map values, records, the kernel and the like.
    /// For a choice, all alternatives and the condition count, except null, which accepted programs pass only
    /// where it is allowed ([`SymbolicExecutor::unless_null`]).
    fn objects(&mut self, state: &SymbolicState, v: ValueId, write: bool, call: &mut CallBuilder) -> bool {
        match self.w.values.kind(v) {
            ValueKind::Choice(_, a, b) if self.is_null(b) => self.objects(state, a, write, call),
            ValueKind::Choice(_, a, b) if self.is_null(a) => self.objects(state, b, write, call),
            ValueKind::Choice(c, a, b) => {
                call.inputs.push(c);
                self.objects(state, a, write, call) && self.objects(state, b, write, call)
            }
            ValueKind::Pointer(PointerRegion::In(space, object), offset) => {
                let memory = state.memory(&mut self.w.terms, space);
                call.inputs.extend([memory, object, offset]);
                if write {
                    call.outs.push(CallOutput::Space(space));
                }
                true
            }
            ValueKind::Number(address) if !self.w.terms.has_address(address) => {
                let memory = state.memory(&mut self.w.terms, MemorySpace::Kernel);
                call.inputs.extend([memory, address]);
                if write {
                    call.outs.push(CallOutput::Space(MemorySpace::Kernel));
                }
                true
            }
            _ => false,
        }
    }

    fn memory_argument(
        &mut self,
        state: &mut SymbolicState,
        v: ValueId,
        size: TermId,
        (read, write): (bool, bool),
        call: &mut CallBuilder,
    ) -> Result<(), ProofError> {
        let stack = matches!(self.w.values.kind(v), ValueKind::Pointer(PointerRegion::Stack(_), _));
        if let Some(bytes) = self.w.terms.value(size).filter(|bytes| *bytes <= MOST_BYTES || stack) {
            if read {
                self.input_bytes_or_null(state, v, bytes, call)?;
            }
            if write {
                call.outs.push(CallOutput::Bytes(v, bytes));
            }
            return Ok(());
        }
        // Of unknown size: the call depends on the whole memory.
        match self.w.values.kind(v) {
            ValueKind::Pointer(PointerRegion::Stack(frame), offset) => {
                self.stack_argument(state, (frame, offset), size, (read, write), call)
            }
            _ if self.objects(state, v, write, call) => {
                call.inputs.push(size);
                Ok(())
            }
            _ => Err(ProofError::new(format!("{} is given memory of a size that varies", call.name))),
        }
    }

    /// Stack memory of a size that varies: the call reads all bytes that have been put there, and may write
    /// all up to the end of the frame.
    fn stack_argument(
        &mut self,
        state: &mut SymbolicState,
        (frame, offset): (u8, TermId),
        size: TermId,
        (read, write): (bool, bool),
        call: &mut CallBuilder,
    ) -> Result<(), ProofError> {
        let Some(start) = self.w.terms.value(offset).map(|o| o as i64).filter(|o| *o < 0) else {
            return Err(ProofError::new(format!(
                "{} is given stack memory at an offset that varies",
                call.name
            )));
        };
        let count = start.unsigned_abs();
        call.inputs.push(size);
        let zero = self.w.terms.constant(8, 0);
        let mut bytes = Vec::new();
        for i in (0..count).take_while(|_| read) {
            let within = self.within(i, size);
            let within = self.w.terms.under(within, state.path);
            let within = state.ranges.settle(&mut self.w.terms, within);
            if self.w.terms.known(within) == Some(false) {
                break;
            }
            let here = start + i as i64;
            if !state.is_put(frame, here) {
                self.rest_is_empty(state, frame, here, 0)?;
                break;
            }
            let at =
                self.w.values.pointer(PointerRegion::Stack(frame), offset_by(&mut self.w.terms, offset, i));
            let byte = self.read(state, at, 1)?[0];
            bytes.push(self.w.terms.ite(within, byte, zero));
        }
        let used = bytes.iter().rposition(|t| *t != zero).map_or(0, |last| last + 1);
        call.inputs.extend_from_slice(&bytes[..used]);
        if write {
            let at = self.w.values.pointer(PointerRegion::Stack(frame), offset);
            call.outs.push(CallOutput::Upto(at, count, size));
        }
        Ok(())
    }

    /// Condition that a byte is one of the first `size`.
    pub(crate) fn within(&mut self, i: u64, size: TermId) -> TermId {
        let i = self.w.terms.constant(64, i);
        self.w.terms.compare_terms(Pred::Ult, i, size)
    }

    /// Stack memory of an unknown size, or of which at most `most` bytes are read: the call depends on all
    /// bytes that have been put there from the pointer on, which are at least those that it reads.
    fn open_bytes(
        &mut self,
        state: &SymbolicState,
        v: ValueId,
        most: Option<u64>,
        call: &mut CallBuilder,
    ) -> Result<(), ProofError> {
        let ValueKind::Pointer(PointerRegion::Stack(frame), offset) = self.w.values.kind(v) else {
            return Err(ProofError::new(format!("{} is given memory of a size that nobody says", call.name)));
        };
        let start = self.w.terms.value(offset).map(|o| o as i64);
        let start = start.ok_or_else(|| ProofError::new("stack memory at an offset that varies"))?;
        let end = most.map_or(0, |most| start.saturating_add_unsigned(most).min(0));
        let count = (start..end).take_while(|at| state.is_put(frame, *at)).count() as u64;
        self.rest_is_empty(state, frame, start + count as i64, end)?;
        let counted = self.w.terms.constant(32, count);
        call.inputs.push(counted);
        self.input_bytes(state, v, count, call)
    }

    /// Makes sure that nothing was put in a frame between the first unwritten place and `end`: otherwise a
    /// call may read the bytes on both sides of the gap.
    fn rest_is_empty(
        &mut self,
        state: &SymbolicState,
        frame: u8,
        at: i64,
        end: i64,
    ) -> Result<(), ProofError> {
        if state.frames[usize::from(frame)].range(at.min(end)..end).next().is_none() {
            return Ok(());
        }
        self.w.unwritten.missed = true;
        Err(ProofError::new("a call may read what was not put on the stack"))
    }

    fn input_bytes(
        &mut self,
        state: &SymbolicState,
        v: ValueId,
        count: u64,
        call: &mut CallBuilder,
    ) -> Result<(), ProofError> {
        if count > MOST_BYTES {
            return Err(ProofError::new(format!("{} is given {count} bytes", call.name)));
        }
        let bytes = self.read(state, v, count)?;
        for chunk in bytes.chunks(8) {
            let t = self.assemble(chunk);
            call.inputs.push(t);
        }
        Ok(())
    }

    fn input_bytes_or_null(
        &mut self,
        state: &SymbolicState,
        v: ValueId,
        count: u64,
        call: &mut CallBuilder,
    ) -> Result<(), ProofError> {
        if let ValueKind::Number(t) = self.w.values.kind(v)
            && self.w.terms.value(t) == Some(0)
        {
            call.inputs.push(t);
            return Ok(());
        }
        self.input_bytes(state, v, count, call)
    }
}
