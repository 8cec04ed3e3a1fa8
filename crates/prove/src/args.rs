//! Arguments of calls: the inputs that a call takes through each, and the memory that it changes there.

use millstream_isa::helpers::ArgKind;
use millstream_isa::semantics::Pred;

use crate::ProofError;
use crate::access::offset_by;
use crate::call_builder::{CallBuilder, CallOutput, MapHandle};
use crate::exec::SymbolicExecutor;
use crate::sizes::MOST_BYTES;
use crate::state::{EventChain, SymbolicState};
use crate::term::TermId;
use crate::value::{MemorySpace, PointerRegion, ValueId, ValueKind};

pub(crate) fn arguments(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &mut SymbolicState,
    kinds: &[ArgKind],
    call: &mut CallBuilder,
) -> Result<(), ProofError> {
    let asked = kinds.contains(&ArgKind::Optional).then(|| asked_by_format(executor, state)).flatten();
    for (at, kind) in kinds.iter().enumerate() {
        if *kind == ArgKind::Optional && asked.is_some_and(|count| at >= 2 + count) {
            continue;
        }
        let v = executor.w.values.on_path(&mut executor.w.terms, state.path, state.regs[at + 1]);
        argument(executor, state, *kind, v, at, call)?;
    }
    Ok(())
}

/// Number of arguments that a format string asks for, if the string and its size are known: one for each
/// `%`, but none for `%%` (`bpf_bprintf_prepare`). Arguments beyond these are ignored.
fn asked_by_format(executor: &mut SymbolicExecutor<'_, '_>, state: &SymbolicState) -> Option<usize> {
    let [at, size] =
        [1, 2].map(|r| executor.w.values.on_path(&mut executor.w.terms, state.path, state.regs[r]));
    let size = executor.w.values.numeric(&mut executor.w.terms, size)?;
    let size = executor.w.terms.value(size).filter(|size| *size <= MOST_BYTES)?;
    let bytes = executor.read(state, at, size).ok()?;
    let text: Option<Vec<u8>> =
        bytes.into_iter().map(|t| executor.w.terms.value(t).map(|b| b as u8)).collect();
    let text = text?;
    let text = text.split(|b| *b == 0).next()?;
    let (mut rest, mut count) = (text.iter().peekable(), 0);
    while rest.any(|b| *b == b'%') {
        count += usize::from(rest.next_if(|b| **b == b'%').is_none());
    }
    Some(count)
}

fn argument(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &mut SymbolicState,
    kind: ArgKind,
    v: ValueId,
    at: usize,
    call: &mut CallBuilder,
) -> Result<(), ProofError> {
    match kind {
        ArgKind::Ctx => {}
        ArgKind::CtxOrNull | ArgKind::CtxOrSock if executor.is_context(v) => {}
        ArgKind::ConstMap => {
            let handle = executor.handle(v)?;
            if let MapHandle::Map(map) = handle {
                let number = executor.w.terms.constant(32, u64::from(map));
                call.inputs.push(number);
            } else if let MapHandle::Inner(_, t) = handle {
                call.inputs.push(t);
            }
            call.map = Some(handle);
        }
        ArgKind::MapKey | ArgKind::MapValue if call.map.is_some_and(|m| executor.is_open(m)) => {
            open_bytes(executor, state, v, None, call)?;
        }
        ArgKind::MapKey => {
            let (key, _) = executor.sizes(call)?;
            input_bytes(executor, state, v, u64::from(key), call)?;
        }
        ArgKind::MapValue | ArgKind::MapValueOrNull => {
            let (_, value) = executor.sizes(call)?;
            let v = if kind == ArgKind::MapValue { v } else { unless_null(executor, v, call) };
            input_bytes_or_null(executor, state, v, u64::from(value), call)?;
        }
        ArgKind::MapValueOut => {
            let (_, value) = executor.sizes(call)?;
            call.outs.push(CallOutput::Bytes(v, u64::from(value)));
        }
        ArgKind::Mem { read, write, null } => {
            let v = if null { unless_null(executor, v, call) } else { v };
            let size = executor.w.values.on_path(&mut executor.w.terms, state.path, state.regs[at + 2]);
            let size = executor.w.values.numeric(&mut executor.w.terms, size);
            let size =
                size.ok_or_else(|| ProofError::new(format!("{} is given an undefined size", call.name)))?;
            memory_argument(executor, state, v, size, (read, write), call)?;
        }
        ArgKind::Fixed { bytes, read, write } => {
            if read {
                input_bytes_or_null(executor, state, v, u64::from(bytes), call)?;
            }
            if write {
                call.outs.push(CallOutput::Bytes(v, u64::from(bytes)));
            }
        }
        ArgKind::Dynptr | ArgKind::DynptrOut => {
            return Err(ProofError::new(format!("{} takes a dynptr, which is not modelled", call.name)));
        }
        // Beyond what the format asks for: may hold nothing.
        ArgKind::Optional if executor.w.values.kind(v) == ValueKind::Undefined => {}
        ArgKind::Func | ArgKind::StackOrNull => {
            return Err(ProofError::new(format!("{} calls back", call.name)));
        }
        ArgKind::RingbufRecord | ArgKind::SpinLock | ArgKind::Timer | ArgKind::KptrSlot => {
            object_argument(executor, state, v, call)?;
        }
        ArgKind::ConstStr => {
            let ValueKind::Pointer(PointerRegion::In(space, object), offset) = executor.w.values.kind(v)
            else {
                return Err(ProofError::new(format!("{} is given a string that is not in a map", call.name)));
            };
            let memory = state.memory(&mut executor.w.terms, space);
            call.inputs.extend([memory, object, offset]);
        }
        _ => plain_argument(executor, state, v, call)?,
    }
    Ok(())
}

/// A number, or a pointer taken as one, through which the call may read.
fn plain_argument(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &mut SymbolicState,
    v: ValueId,
    call: &mut CallBuilder,
) -> Result<(), ProofError> {
    // These read the memory that it points to, and do nothing else with it.
    if call.name.starts_with("bpf_probe_read") {
        match executor.w.values.kind(v) {
            ValueKind::Pointer(PointerRegion::Stack(_), _) => {
                let size = executor.w.values.numeric(&mut executor.w.terms, state.regs[2]);
                let size = size.and_then(|size| executor.w.terms.value(size));
                return open_bytes(executor, state, v, size, call);
            }
            ValueKind::Choice(c, a, b) if is_on_stack(executor, a) || is_on_stack(executor, b) => {
                call.inputs.push(c);
                plain_argument(executor, state, a, call)?;
                return plain_argument(executor, state, b, call);
            }
            _ => {}
        }
    }
    let t = executor.w.values.numeric(&mut executor.w.terms, v);
    let t = t.ok_or_else(|| ProofError::new(format!("{} is given what is not defined", call.name)))?;
    let mut memories = Vec::new();
    if !reachable(executor, v, &mut memories) {
        return Err(ProofError::new(format!("{} is given a pointer as a number", call.name)));
    }
    memories.sort_unstable();
    memories.dedup();
    call.inputs.push(t);
    for space in memories {
        let memory = state.memory(&mut executor.w.terms, space);
        call.inputs.push(memory);
    }
    Ok(())
}

/// Returns true if a value may be a pointer into the stack.
pub(crate) fn is_on_stack(executor: &SymbolicExecutor<'_, '_>, v: ValueId) -> bool {
    match executor.w.values.kind(v) {
        ValueKind::Pointer(PointerRegion::Stack(_), _) => true,
        ValueKind::Choice(_, a, b) => is_on_stack(executor, a) || is_on_stack(executor, b),
        _ => false,
    }
}

/// Collects the memories that a value may point into; `false` if they are not known.
fn reachable(executor: &mut SymbolicExecutor<'_, '_>, v: ValueId, memories: &mut Vec<MemorySpace>) -> bool {
    match executor.w.values.kind(v) {
        ValueKind::Pointer(PointerRegion::In(space, _), _) => {
            memories.push(space);
            true
        }
        ValueKind::Choice(_, a, b) => reachable(executor, a, memories) && reachable(executor, b, memories),
        ValueKind::Number(t) => !executor.w.terms.has_address(t),
        ValueKind::Pointer(..) | ValueKind::Undefined => false,
    }
}

/// An argument that points to memory of which the call reads and writes an unknown part: on the stack
/// everything above the pointer, elsewhere the whole memory.
pub(crate) fn unknown_argument(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &mut SymbolicState,
    v: ValueId,
    call: &mut CallBuilder,
) -> Result<(), ProofError> {
    match executor.w.values.kind(v) {
        ValueKind::Pointer(PointerRegion::In(..), _) | ValueKind::Choice(..) => {
            let v = unless_null(executor, v, call);
            object_argument(executor, state, v, call)
        }
        ValueKind::Pointer(PointerRegion::Map(map), _) => {
            let number = executor.w.terms.constant(32, u64::from(map));
            call.inputs.push(number);
            for space in [MemorySpace::Map(map), MemorySpace::Inner(map)] {
                let memory = executor.memory_of(space);
                let memory = state.memory(&mut executor.w.terms, memory);
                let entries = state.chain(&mut executor.w.terms, EventChain::Entries(space));
                call.inputs.extend([memory, entries]);
                call.outs.push(CallOutput::Map(space));
            }
            Ok(())
        }
        ValueKind::Pointer(PointerRegion::Stack(_), offset) => {
            open_bytes(executor, state, v, None, call)?;
            let start = executor.w.terms.value(offset).map_or(0, |o| o as i64);
            call.outs.push(CallOutput::Some(v, start.min(0).unsigned_abs()));
            Ok(())
        }
        _ => Err(ProofError::new(format!("{} is given what it does something unknown with", call.name))),
    }
}

/// An argument that points into a map value or a record, which the call may change.
fn object_argument(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &mut SymbolicState,
    v: ValueId,
    call: &mut CallBuilder,
) -> Result<(), ProofError> {
    let v = executor.w.values.on_path(&mut executor.w.terms, state.path, v);
    match objects(executor, state, v, true, call) {
        true => Ok(()),
        false => Err(ProofError::new(format!("{} is given an object that cannot be followed", call.name))),
    }
}

/// Strips null from an argument that is a pointer or null, where null is allowed. The call then also
/// depends on which of the two it is.
fn unless_null(executor: &mut SymbolicExecutor<'_, '_>, v: ValueId, call: &mut CallBuilder) -> ValueId {
    let (there, condition) = match executor.w.values.kind(v) {
        ValueKind::Choice(c, a, b) if executor.is_null(b) => (a, c),
        ValueKind::Choice(c, a, b) if executor.is_null(a) => (b, executor.w.terms.not(c)),
        _ => return v,
    };
    call.inputs.push(condition);
    unless_null(executor, there, call)
}

/// Collects the memories that a pointer may point into: the call depends on them and, if `write`, may
/// change them. `false` if it may point elsewhere than into map values, records, the kernel and the like.
/// For a choice, all alternatives and the condition count, except null, which accepted programs pass only
/// where it is allowed ([`unless_null`]).
fn objects(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &SymbolicState,
    v: ValueId,
    write: bool,
    call: &mut CallBuilder,
) -> bool {
    match executor.w.values.kind(v) {
        ValueKind::Choice(_, a, b) if executor.is_null(b) => objects(executor, state, a, write, call),
        ValueKind::Choice(_, a, b) if executor.is_null(a) => objects(executor, state, b, write, call),
        ValueKind::Choice(c, a, b) => {
            call.inputs.push(c);
            objects(executor, state, a, write, call) && objects(executor, state, b, write, call)
        }
        ValueKind::Pointer(PointerRegion::In(space, object), offset) => {
            let memory = state.memory(&mut executor.w.terms, space);
            call.inputs.extend([memory, object, offset]);
            if write {
                call.outs.push(CallOutput::Space(space));
            }
            true
        }
        ValueKind::Number(address) if !executor.w.terms.has_address(address) => {
            let memory = state.memory(&mut executor.w.terms, MemorySpace::Kernel);
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
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &mut SymbolicState,
    v: ValueId,
    size: TermId,
    (read, write): (bool, bool),
    call: &mut CallBuilder,
) -> Result<(), ProofError> {
    let stack = matches!(executor.w.values.kind(v), ValueKind::Pointer(PointerRegion::Stack(_), _));
    if let Some(bytes) = executor.w.terms.value(size).filter(|bytes| *bytes <= MOST_BYTES || stack) {
        if read {
            input_bytes_or_null(executor, state, v, bytes, call)?;
        }
        if write {
            call.outs.push(CallOutput::Bytes(v, bytes));
        }
        return Ok(());
    }
    // Of unknown size: the call depends on the whole memory.
    match executor.w.values.kind(v) {
        ValueKind::Pointer(PointerRegion::Stack(frame), offset) => {
            stack_argument(executor, state, (frame, offset), size, (read, write), call)
        }
        _ if objects(executor, state, v, write, call) => {
            call.inputs.push(size);
            Ok(())
        }
        _ => Err(ProofError::new(format!("{} is given memory of a size that varies", call.name))),
    }
}

/// Stack memory of a size that varies: the call reads all bytes that have been put there, and may write
/// all up to the end of the frame.
fn stack_argument(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &mut SymbolicState,
    (frame, offset): (u8, TermId),
    size: TermId,
    (read, write): (bool, bool),
    call: &mut CallBuilder,
) -> Result<(), ProofError> {
    let Some(start) = executor.w.terms.value(offset).map(|o| o as i64).filter(|o| *o < 0) else {
        return Err(ProofError::new(format!("{} is given stack memory at an offset that varies", call.name)));
    };
    let count = start.unsigned_abs();
    call.inputs.push(size);
    let zero = executor.w.terms.constant(8, 0);
    let mut bytes = Vec::new();
    for i in (0..count).take_while(|_| read) {
        let within = within(executor, i, size);
        let within = executor.w.terms.under(within, state.path);
        let within = state.ranges.settle(&mut executor.w.terms, within);
        if executor.w.terms.known(within) == Some(false) {
            break;
        }
        let here = start + i as i64;
        if !state.is_put(frame, here) {
            rest_is_empty(executor, state, frame, here, 0)?;
            break;
        }
        let at = executor
            .w
            .values
            .pointer(PointerRegion::Stack(frame), offset_by(&mut executor.w.terms, offset, i));
        let byte = executor.read(state, at, 1)?[0];
        bytes.push(executor.w.terms.ite(within, byte, zero));
    }
    let used = bytes.iter().rposition(|t| *t != zero).map_or(0, |last| last + 1);
    call.inputs.extend_from_slice(&bytes[..used]);
    if write {
        let at = executor.w.values.pointer(PointerRegion::Stack(frame), offset);
        call.outs.push(CallOutput::Upto(at, count, size));
    }
    Ok(())
}

/// Condition that a byte is one of the first `size`.
pub(crate) fn within(executor: &mut SymbolicExecutor<'_, '_>, i: u64, size: TermId) -> TermId {
    let i = executor.w.terms.constant(64, i);
    executor.w.terms.compare_terms(Pred::Ult, i, size)
}

/// Stack memory of an unknown size, or of which at most `most` bytes are read: the call depends on all
/// bytes that have been put there from the pointer on, which are at least those that it reads.
fn open_bytes(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &SymbolicState,
    v: ValueId,
    most: Option<u64>,
    call: &mut CallBuilder,
) -> Result<(), ProofError> {
    let ValueKind::Pointer(PointerRegion::Stack(frame), offset) = executor.w.values.kind(v) else {
        return Err(ProofError::new(format!("{} is given memory of a size that nobody says", call.name)));
    };
    let start = executor.w.terms.value(offset).map(|o| o as i64);
    let start = start.ok_or_else(|| ProofError::new("stack memory at an offset that varies"))?;
    let end = most.map_or(0, |most| start.saturating_add_unsigned(most).min(0));
    let count = (start..end).take_while(|at| state.is_put(frame, *at)).count() as u64;
    rest_is_empty(executor, state, frame, start + count as i64, end)?;
    let counted = executor.w.terms.constant(32, count);
    call.inputs.push(counted);
    input_bytes(executor, state, v, count, call)
}

/// Makes sure that nothing was put in a frame between the first unwritten place and `end`: otherwise a
/// call may read the bytes on both sides of the gap.
fn rest_is_empty(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &SymbolicState,
    frame: u8,
    at: i64,
    end: i64,
) -> Result<(), ProofError> {
    if state.frames[usize::from(frame)].range(at.min(end)..end).next().is_none() {
        return Ok(());
    }
    executor.w.unwritten.missed = true;
    Err(ProofError::new("a call may read what was not put on the stack"))
}

fn input_bytes(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &SymbolicState,
    v: ValueId,
    count: u64,
    call: &mut CallBuilder,
) -> Result<(), ProofError> {
    if count > MOST_BYTES {
        return Err(ProofError::new(format!("{} is given {count} bytes", call.name)));
    }
    let bytes = executor.read(state, v, count)?;
    for chunk in bytes.chunks(8) {
        let t = executor.assemble(chunk);
        call.inputs.push(t);
    }
    Ok(())
}

fn input_bytes_or_null(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &SymbolicState,
    v: ValueId,
    count: u64,
    call: &mut CallBuilder,
) -> Result<(), ProofError> {
    if let ValueKind::Number(t) = executor.w.values.kind(v)
        && executor.w.terms.value(t) == Some(0)
    {
        call.inputs.push(t);
        return Ok(());
    }
    input_bytes(executor, state, v, count, call)
}
