//! Callbacks: functions of the program that a helper calls: `bpf_loop` for each number below a given one,
//! `bpf_for_each_map_elem` for each entry of a map, a timer some time later.
//!
//! The function is run once, from an arbitrary state and with arbitrary arguments. The helper depends on the
//! outcome of that run and on the state when it begins, and on nothing else: two loops over functions that do
//! the same do the same. If the function is given a pointer into the stack, where the two programs may keep
//! different data, `bpf_loop` runs it round by round if the number of rounds is known and small. Otherwise
//! bytes of the stack are named by their distance from that pointer, and the helper depends on those that the
//! function reads or writes, and on how it changes them. Pointers stored there stay the same: a function that
//! changes one, or that writes where nothing was put, is not modelled.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use millstream_isa::helpers::Helper;
use millstream_isa::{Cond, Width};

use crate::call_builder::{CallBuilder, MapHandle, signature};
use crate::exec::{MAX_FRAMES, PendingStates, SymbolicExecutor};
use crate::range::ValueRanges;
use crate::state::{EventChain, SymbolicByte, SymbolicFrame, SymbolicState, byte};
use crate::sweep::cone;
use crate::term::{Sort, TermId};
use crate::value::{MemorySpace, PointerRegion, ValueId, ValueKind};
use crate::{ProofError, args};

/// Most rounds that are run one by one.
const MOST_ROUNDS: u64 = 64;

/// A function of the program, and its arguments.
struct CallbackFunction {
    entry: usize,
    /// From `r1` on.
    given: Vec<ValueId>,
    /// Frame and offset that its context points to, if it points into the stack.
    context: Option<(u8, i64)>,
    /// Prefix of the names of variables that stand for its inputs.
    with: String,
}

/// A function that was run from an arbitrary state.
struct CallbackSummary {
    begin: SymbolicState,
    end: SymbolicState,
    /// Its outcome: the result, all memories, all chains.
    makes: Vec<TermId>,
    /// Bytes of the stack that it reads or writes, by their distance from the context.
    looks_at: BTreeSet<i64>,
    /// Bytes of the stack that it changes, with their new values.
    changes: BTreeMap<i64, TermId>,
}

/// Runs `bpf_loop(count, function, context, flags)`.
pub(crate) fn bpf_loop(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &mut SymbolicState,
) -> Result<(), ProofError> {
    const NAME: &str = "bpf_loop";
    let [count, function, context, flags] = first_arguments(executor, state);
    if !is_number(executor, context)
        && let Some(count) = few_rounds(executor, count, flags)
    {
        let entry = entry(executor, function, NAME)?;
        return rounds(executor, state, count, entry, context);
    }
    let mut f = callback_of(executor, function, context, NAME)?;
    let number = executor.w.terms.var(&format!("{}number", f.with), Sort::Bits(32));
    let number = executor.w.terms.zero_extend_to(number, 64);
    f.given = vec![executor.w.values.number(number), context];
    let inputs = numbers(executor, &[count, flags], NAME)?;
    again_and_again(executor, state, NAME, &f, inputs)
}

/// Runs `bpf_for_each_map_elem(map, function, context, flags)`.
pub(crate) fn for_each_map_elem(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &mut SymbolicState,
) -> Result<(), ProofError> {
    const NAME: &str = "bpf_for_each_map_elem";
    let [map, function, context, flags] = first_arguments(executor, state);
    let mut f = callback_of(executor, function, context, NAME)?;
    let MapHandle::Map(number) = executor.handle(map)? else {
        return Err(ProofError::new(format!("{NAME} is given an inner map")));
    };
    f.given = entry_of(executor, number, &f.with);
    f.given.push(context);
    let mut inputs = numbers(executor, &[flags], NAME)?;
    inputs.push(executor.w.terms.constant(32, u64::from(number)));
    again_and_again(executor, state, NAME, &f, inputs)
}

/// Runs `bpf_timer_set_callback(timer, function)`: others see the outcome of the function from an
/// arbitrary state.
pub(crate) fn timer_set_callback(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &mut SymbolicState,
    helper: &Helper,
) -> Result<(), ProofError> {
    let [timer, function, ..] = first_arguments(executor, state);
    let zero = constant_number(executor, 0);
    let mut f = callback_of(executor, function, zero, "bpf_timer_set_callback")?;
    let ValueKind::Pointer(PointerRegion::In(MemorySpace::Map(map), _), _) = executor.w.values.kind(timer)
    else {
        return Err(ProofError::new("bpf_timer_set_callback is given a timer that cannot be followed"));
    };
    f.given = entry_of(executor, map, &f.with);
    let mut call = CallBuilder { name: "bpf_timer_set_callback".to_owned(), ..CallBuilder::default() };
    args::arguments(executor, state, &helper.args[..1], &mut call)?;
    call.inputs.extend(run_on_any_state(executor, state, &f)?.makes);
    executor.done(state, helper, &call)
}

fn first_arguments(executor: &mut SymbolicExecutor<'_, '_>, state: &SymbolicState) -> [ValueId; 4] {
    [1, 2, 3, 4].map(|r| executor.w.values.on_path(&mut executor.w.terms, state.path, state.regs[r]))
}

/// First slot of the function passed to a helper.
fn entry(executor: &SymbolicExecutor<'_, '_>, function: ValueId, name: &str) -> Result<usize, ProofError> {
    match executor.w.values.kind(function) {
        ValueKind::Pointer(PointerRegion::Func(entry), _) => Ok(entry as usize),
        _ => Err(ProofError::new(format!("{name} is given a function that cannot be followed"))),
    }
}

/// The function passed to a helper, and its context: a number, or a place on the stack.
fn callback_of(
    executor: &mut SymbolicExecutor<'_, '_>,
    function: ValueId,
    context: ValueId,
    name: &str,
) -> Result<CallbackFunction, ProofError> {
    let entry = entry(executor, function, name)?;
    let place = match executor.w.values.kind(context) {
        ValueKind::Pointer(PointerRegion::Stack(frame), at) => {
            executor.w.terms.value(at).map(|at| (frame, at as i64))
        }
        _ => None,
    };
    if place.is_none() && !is_number(executor, context) {
        return Err(ProofError::new(format!("{name} gives its function a pointer that cannot be followed")));
    }
    // If such a function itself calls a helper with a callback, the inner callback's variables have other
    // names.
    let with = format!("called {} deep with ", executor.nesting);
    Ok(CallbackFunction { entry, given: Vec::new(), context: place, with })
}

fn is_number(executor: &mut SymbolicExecutor<'_, '_>, v: ValueId) -> bool {
    matches!(executor.w.values.kind(v), ValueKind::Number(t) if !executor.w.terms.has_address(t))
}

/// An arbitrary entry of a map, as functions receive it: the map, its key, its value.
fn entry_of(executor: &mut SymbolicExecutor<'_, '_>, map: u32, with: &str) -> Vec<ValueId> {
    let zero = executor.w.terms.constant(64, 0);
    // The key lies somewhere in the kernel.
    let key = executor.w.terms.var(&format!("{with}key"), Sort::Bits(64));
    let entry = executor.w.terms.var(&format!("{with}entry"), Sort::Bits(64));
    let value = executor.place(MemorySpace::Map(map), entry);
    let values = &mut executor.w.values;
    vec![values.pointer(PointerRegion::Map(map), zero), values.number(key), values.pointer(value, zero)]
}

/// Arguments that are numbers.
fn numbers(
    executor: &mut SymbolicExecutor<'_, '_>,
    given: &[ValueId],
    name: &str,
) -> Result<Vec<TermId>, ProofError> {
    let number = |v: &ValueId| match executor.w.values.kind(*v) {
        ValueKind::Number(t) if !executor.w.terms.has_address(t) => Ok(t),
        _ => Err(ProofError::new(format!("{name} is given a pointer as a number"))),
    };
    given.iter().map(number).collect()
}

/// Number of rounds of a loop, if it is known and small.
fn few_rounds(executor: &mut SymbolicExecutor<'_, '_>, count: ValueId, flags: ValueId) -> Option<u64> {
    let mut known =
        |v| executor.w.values.numeric(&mut executor.w.terms, v).and_then(|t| executor.w.terms.value(t));
    let (count, flags) = (known(count)? & u64::from(u32::MAX), known(flags)?);
    (count <= MOST_ROUNDS && flags == 0).then_some(count)
}

/// A helper that calls a function until the function asks it to stop.
fn again_and_again(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &mut SymbolicState,
    name: &str,
    f: &CallbackFunction,
    mut inputs: Vec<TermId>,
) -> Result<(), ProofError> {
    let ran = run_on_any_state(executor, state, f)?;
    if f.context.is_none() {
        // A number that is passed to each round.
        inputs
            .extend(f.given.last().map(|v| numbers(executor, &[*v], name)).transpose()?.unwrap_or_default());
    }
    inputs.extend([state.length, state.metadata]);
    inputs.extend(&ran.makes);
    // The state when it begins.
    for space in ran.end.memory.keys() {
        inputs.push(state.memory(&mut executor.w.terms, *space));
    }
    for chain in ran.end.chains.keys() {
        inputs.push(state.chain(&mut executor.w.terms, *chain));
    }
    inputs.push(executor.w.terms.constant(32, ran.looks_at.len() as u64));
    for at in &ran.looks_at {
        inputs.push(executor.w.terms.constant(64, *at as u64));
        inputs.push(context_byte(executor, state, f, *at)?);
    }
    for (at, becomes) in &ran.changes {
        inputs.push(executor.w.terms.constant(64, *at as u64));
        inputs.push(*becomes);
    }
    for t in &mut inputs {
        *t = executor.w.terms.under(*t, state.path);
    }
    let sorts: String = inputs.iter().map(|t| signature(executor.w.terms.sort(*t))).collect();
    let event = executor.w.terms.app(&format!("{name} {sorts}"), &inputs, Sort::Token);
    after_loop(executor, state, f, &ran, event);
    let t = executor.w.terms.app("result", &[event], Sort::Bits(64));
    let value = executor.w.values.number(t);
    executor.returned(state, value);
    Ok(())
}

/// The byte of the stack at a distance from the address that the context points to.
fn context_byte(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &SymbolicState,
    f: &CallbackFunction,
    at: i64,
) -> Result<TermId, ProofError> {
    let cell =
        f.context.and_then(|(frame, start)| state.frames[usize::from(frame)].get(&(start + at)).copied());
    let t = cell.and_then(|cell| byte(&mut executor.w.terms, &mut executor.w.values, cell));
    executor.w.unwritten.missed |= t.is_none();
    t.ok_or_else(|| ProofError::new("a function looks at what was not put on the stack"))
}

/// Runs a loop with a known number of rounds one by one.
fn rounds(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &mut SymbolicState,
    count: u64,
    entry: usize,
    context: ValueId,
) -> Result<(), ProofError> {
    // The states that have left the loop, and those that go on.
    let (mut left, mut goes) = (None, Some(state.clone()));
    for round in 0..count {
        let Some(begin) = goes.take() else { break };
        let mut end = one_round(executor, begin, entry, round, context)?;
        let zero = constant_number(executor, 0);
        let (terms, values) = (&mut executor.w.terms, &mut executor.w.values);
        let on = values.compare(terms, Cond::Eq, Width::W64, end.regs[0], zero);
        let on = on.ok_or_else(|| ProofError::new("a function without a result"))?;
        let over = terms.not(on);
        let mut leaves = end.clone();
        if leaves.assume(terms, over) {
            leaves.regs[0] = constant_number(executor, round + 1);
            left = Some(either_way(executor, left, leaves));
        }
        goes = end.assume(&mut executor.w.terms, on).then_some(end);
    }
    if let Some(mut goes) = goes {
        goes.regs[0] = constant_number(executor, count);
        left = Some(either_way(executor, left, goes));
    }
    *state = left.ok_or_else(|| ProofError::new("a loop that does not end"))?;
    let rounds = state.regs[0];
    executor.returned(state, rounds);
    Ok(())
}

/// The state after one round, equal to that at the call of the loop but for the function's result.
fn one_round(
    executor: &mut SymbolicExecutor<'_, '_>,
    mut state: SymbolicState,
    entry: usize,
    round: u64,
    context: ValueId,
) -> Result<SymbolicState, ProofError> {
    executor.enter(entry, &mut state)?;
    let undefined = executor.w.values.undefined();
    state.regs[1] = constant_number(executor, round);
    state.regs[2] = context;
    state.regs[3..6].fill(undefined);
    let place = executor.side.flow(entry)?.start()?;
    let mut waiting = PendingStates::from([(vec![place], state)]);
    let mut exec = executor.inner();
    while exec.advance(&mut waiting)? {}
    let ended = exec.ended().cloned().ok_or_else(|| ProofError::new("a function that does not end"))?;
    executor.return_to_caller(ended)
}

fn constant_number(executor: &mut SymbolicExecutor<'_, '_>, n: u64) -> ValueId {
    let t = executor.w.terms.constant(64, n);
    executor.w.values.number(t)
}

fn either_way(
    executor: &mut SymbolicExecutor<'_, '_>,
    before: Option<SymbolicState>,
    state: SymbolicState,
) -> SymbolicState {
    match before {
        None => state,
        Some(before) => before.join(&mut executor.w.terms, &mut executor.w.values, state),
    }
}

/// All memories and all chains, as fresh variables.
fn everything(
    executor: &mut SymbolicExecutor<'_, '_>,
    with: &str,
) -> (BTreeMap<MemorySpace, TermId>, BTreeMap<EventChain, TermId>) {
    let maps = (0..executor.w.maps.len() as u32).flat_map(|m| [MemorySpace::Map(m), MemorySpace::Inner(m)]);
    let others = [MemorySpace::Packet, MemorySpace::Context, MemorySpace::Allocated, MemorySpace::Kernel];
    let spaces: Vec<MemorySpace> = maps.chain(others).collect();
    let chains = [EventChain::Effects, EventChain::Volatile, EventChain::Budget, EventChain::Atomics];
    let chains = chains.into_iter().chain(spaces.iter().map(|s| EventChain::Entries(*s)));
    let memories: BTreeSet<MemorySpace> = spaces.iter().map(|s| executor.memory_of(*s)).collect();
    let terms = &mut executor.w.terms;
    let memory = memories.into_iter().map(|s| (s, terms.var(&format!("{with}memory {s:?}"), Sort::Memory)));
    let memory = memory.collect();
    let chains = chains.map(|c| (c, terms.var(&format!("{with}{c:?}"), Sort::Token)));
    (memory, chains.collect())
}

/// The part of the frame that its context points into which a function can see: an arbitrary byte
/// wherever a number was put, and the pointers stored there. Other cells, and other frames, are empty.
fn seen(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &SymbolicState,
    (frame, start): (u8, i64),
    with: &str,
) -> SymbolicFrame {
    let mut out = SymbolicFrame::new();
    for (at, cell) in state.frames[usize::from(frame)].iter() {
        let (at, cell) = (*at, *cell);
        let cell = match cell {
            SymbolicByte::Part(v, _) if !matches!(executor.w.values.kind(v), ValueKind::Number(_)) => {
                (!args::is_on_stack(executor, v)).then_some(cell)
            }
            _ => {
                let number = byte(&mut executor.w.terms, &mut executor.w.values, cell);
                let number = number.filter(|t| !executor.w.terms.has_address(*t));
                let name = format!("{with}byte {}", at - start);
                number.map(|_| SymbolicByte::Byte(executor.w.terms.var(&name, Sort::Bits(8))))
            }
        };
        out.extend(cell.map(|cell| (at, cell)));
    }
    out
}

/// Runs a function from an arbitrary state to its end.
fn run_on_any_state(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &SymbolicState,
    f: &CallbackFunction,
) -> Result<CallbackSummary, ProofError> {
    if state.frames.len() >= MAX_FRAMES {
        return Err(ProofError::new("calls nest too deep"));
    }
    let (memory, chains) = everything(executor, &f.with);
    // A called function has the frames of its callers below its own.
    let mut frames = vec![Rc::default(); if f.context.is_some() { state.frames.len() } else { 1 }];
    if let Some((frame, start)) = f.context {
        frames[usize::from(frame)] = Rc::new(seen(executor, state, (frame, start), &f.with));
    }
    let own = frames.len();
    frames.push(Rc::default());
    let (terms, values) = (&mut executor.w.terms, &mut executor.w.values);
    let path = terms.truth(true);
    let mut regs = [values.undefined(); 11];
    regs[1..=f.given.len()].copy_from_slice(&f.given);
    let zero = terms.constant(64, 0);
    regs[10] = values.pointer(PointerRegion::Stack(own as u8), zero);
    let saved = vec![[values.undefined(); 4]; own];
    let [length, metadata] = ["length", "metadata"].map(|what| {
        let any = terms.var(&format!("{}{what}", f.with), Sort::Bits(16));
        terms.zero_extend_to(any, 64)
    });
    let (facts, ranges) = (BTreeSet::new(), ValueRanges::default());
    let begin = SymbolicState { path, facts, ranges, regs, frames, saved, memory, chains, length, metadata };
    let place = executor.side.flow(f.entry)?.start()?;
    let mut waiting = PendingStates::from([(vec![place], begin.clone())]);
    let mut exec = executor.inner();
    while exec.advance(&mut waiting)? {}
    let end = exec.ended().cloned().ok_or_else(|| ProofError::new("a function that does not end"))?;
    if executor.w.terms.known(end.path) != Some(true) {
        return Err(ProofError::new("some paths of a function do not end"));
    }
    if (begin.length, begin.metadata) != (end.length, end.metadata) {
        return Err(ProofError::new("a helper calls a function that moves the packet"));
    }
    let result = executor.w.values.numeric(&mut executor.w.terms, end.regs[0]);
    let mut makes = vec![result.ok_or_else(|| ProofError::new("a function without a result"))?];
    makes.extend(end.memory.values().chain(end.chains.values()));
    let changes = changed(executor, f, own, &begin, &end)?;
    let looks_at = looked_at(executor, f, &begin, &makes, &changes);
    Ok(CallbackSummary { begin, end, makes, looks_at, changes })
}

/// The bytes of the stack that a function changes, which must be numbers before and after.
fn changed(
    executor: &mut SymbolicExecutor<'_, '_>,
    f: &CallbackFunction,
    own: usize,
    begin: &SymbolicState,
    end: &SymbolicState,
) -> Result<BTreeMap<i64, TermId>, ProofError> {
    let mut out = BTreeMap::new();
    for n in 0..own {
        let (before, after) = (&begin.frames[n], &end.frames[n]);
        for (at, cell) in after.iter().filter(|(at, cell)| before.get(at) != Some(cell)) {
            let start = f.context.filter(|(frame, _)| usize::from(*frame) == n).map(|(_, start)| start);
            let number = byte(&mut executor.w.terms, &mut executor.w.values, *cell);
            let number = number.filter(|t| !executor.w.terms.has_address(*t));
            let (Some(start), Some(SymbolicByte::Byte(_)), Some(t)) = (start, before.get(at), number) else {
                return Err(ProofError::new("a function that a helper calls changes what is on the stack"));
            };
            out.insert(at - start, t);
        }
    }
    Ok(out)
}

/// The bytes of the stack on which the outcome of a function depends, and those that it changes, since it
/// need not be called at all.
fn looked_at(
    executor: &SymbolicExecutor<'_, '_>,
    f: &CallbackFunction,
    begin: &SymbolicState,
    makes: &[TermId],
    changes: &BTreeMap<i64, TermId>,
) -> BTreeSet<i64> {
    let Some((frame, start)) = f.context else { return BTreeSet::new() };
    let all: Vec<TermId> = makes.iter().chain(changes.values()).copied().collect();
    let needed: BTreeSet<TermId> = cone(&executor.w.terms, &all).into_iter().collect();
    let cells = begin.frames[usize::from(frame)].iter();
    let needed = cells.filter(|(_, cell)| matches!(cell, SymbolicByte::Byte(t) if needed.contains(t)));
    needed.map(|(at, _)| at - start).chain(changes.keys().copied()).collect()
}

/// Replaces all state that a round changes by unknown values after the loop.
fn after_loop(
    executor: &mut SymbolicExecutor<'_, '_>,
    state: &mut SymbolicState,
    f: &CallbackFunction,
    ran: &CallbackSummary,
    event: TermId,
) {
    let (begin, end) = (&ran.begin, &ran.end);
    for (space, _) in end.memory.iter().filter(|(space, t)| begin.memory.get(space) != Some(t)) {
        let before = state.memory(&mut executor.w.terms, *space);
        let after = executor.w.terms.app(&format!("memory {space:?} after"), &[event, before], Sort::Memory);
        state.memory.insert(*space, after);
    }
    for (chain, _) in end.chains.iter().filter(|(chain, t)| begin.chains.get(chain) != Some(t)) {
        let after = executor.w.terms.app(&format!("{chain:?} after"), &[event], Sort::Token);
        state.chains.insert(*chain, after);
    }
    let Some((frame, start)) = f.context else { return };
    for at in ran.changes.keys() {
        let after = executor.w.terms.app(&format!("byte {at} after"), &[event], Sort::Bits(8));
        Rc::make_mut(&mut state.frames[usize::from(frame)]).insert(start + at, SymbolicByte::Byte(after));
    }
}
