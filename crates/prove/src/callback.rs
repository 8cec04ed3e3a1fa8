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

use crate::ProofError;
use crate::call::{CallBuilder, MapHandle, signature};
use crate::exec::{MAX_FRAMES, PendingStates, SymbolicExecutor};
use crate::range::ValueRanges;
use crate::state::{EventChain, SymbolicByte, SymbolicFrame, SymbolicState, byte};
use crate::sweep::cone;
use crate::term::{Sort, TermId};
use crate::value::{MemorySpace, PointerRegion, ValueId, ValueKind};

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

impl SymbolicExecutor<'_, '_> {
    /// Runs `bpf_loop(count, function, context, flags)`.
    pub(crate) fn bpf_loop(&mut self, state: &mut SymbolicState) -> Result<(), ProofError> {
        const NAME: &str = "bpf_loop";
        let [count, function, context, flags] = self.first_arguments(state);
        if !self.is_number(context)
            && let Some(count) = self.few_rounds(count, flags)
        {
            let entry = self.entry(function, NAME)?;
            return self.rounds(state, count, entry, context);
        }
        let mut f = self.function(function, context, NAME)?;
        let number = self.w.terms.var(&format!("{}number", f.with), Sort::Bits(32));
        let number = self.w.terms.zero_extend_to(number, 64);
        f.given = vec![self.w.values.number(number), context];
        let inputs = self.numbers(&[count, flags], NAME)?;
        self.again_and_again(state, NAME, &f, inputs)
    }

    /// Runs `bpf_for_each_map_elem(map, function, context, flags)`.
    pub(crate) fn for_each_map_elem(&mut self, state: &mut SymbolicState) -> Result<(), ProofError> {
        const NAME: &str = "bpf_for_each_map_elem";
        let [map, function, context, flags] = self.first_arguments(state);
        let mut f = self.function(function, context, NAME)?;
        let MapHandle::Map(number) = self.handle(map)? else {
            return Err(ProofError::new(format!("{NAME} is given an inner map")));
        };
        f.given = self.entry_of(number, &f.with);
        f.given.push(context);
        let mut inputs = self.numbers(&[flags], NAME)?;
        inputs.push(self.w.terms.constant(32, u64::from(number)));
        self.again_and_again(state, NAME, &f, inputs)
    }

    /// Runs `bpf_timer_set_callback(timer, function)`: others see the outcome of the function from an
    /// arbitrary state.
    pub(crate) fn timer_set_callback(
        &mut self,
        state: &mut SymbolicState,
        helper: &Helper,
    ) -> Result<(), ProofError> {
        let [timer, function, ..] = self.first_arguments(state);
        let zero = self.constant_number(0);
        let mut f = self.function(function, zero, "bpf_timer_set_callback")?;
        let ValueKind::Pointer(PointerRegion::In(MemorySpace::Map(map), _), _) = self.w.values.kind(timer)
        else {
            return Err(ProofError::new("bpf_timer_set_callback is given a timer that cannot be followed"));
        };
        f.given = self.entry_of(map, &f.with);
        let mut call = CallBuilder { name: "bpf_timer_set_callback".to_owned(), ..CallBuilder::default() };
        self.arguments(state, &helper.args[..1], &mut call)?;
        call.inputs.extend(self.run_on_any_state(state, &f)?.makes);
        self.done(state, helper, &call)
    }

    fn first_arguments(&mut self, state: &SymbolicState) -> [ValueId; 4] {
        [1, 2, 3, 4].map(|r| self.w.values.on_path(&mut self.w.terms, state.path, state.regs[r]))
    }

    /// First slot of the function passed to a helper.
    fn entry(&self, function: ValueId, name: &str) -> Result<usize, ProofError> {
        match self.w.values.kind(function) {
            ValueKind::Pointer(PointerRegion::Func(entry), _) => Ok(entry as usize),
            _ => Err(ProofError::new(format!("{name} is given a function that cannot be followed"))),
        }
    }

    /// The function passed to a helper, and its context: a number, or a place on the stack.
    fn function(
        &mut self,
        function: ValueId,
        context: ValueId,
        name: &str,
    ) -> Result<CallbackFunction, ProofError> {
        let entry = self.entry(function, name)?;
        let place = match self.w.values.kind(context) {
            ValueKind::Pointer(PointerRegion::Stack(frame), at) => {
                self.w.terms.value(at).map(|at| (frame, at as i64))
            }
            _ => None,
        };
        if place.is_none() && !self.is_number(context) {
            return Err(ProofError::new(format!(
                "{name} gives its function a pointer that cannot be followed"
            )));
        }
        // If such a function itself calls a helper with a callback, the inner callback's variables have other
        // names.
        let with = format!("called {} deep with ", self.nesting);
        Ok(CallbackFunction { entry, given: Vec::new(), context: place, with })
    }

    fn is_number(&mut self, v: ValueId) -> bool {
        matches!(self.w.values.kind(v), ValueKind::Number(t) if !self.w.terms.has_address(t))
    }

    /// An arbitrary entry of a map, as functions receive it: the map, its key, its value.
    fn entry_of(&mut self, map: u32, with: &str) -> Vec<ValueId> {
        let zero = self.w.terms.constant(64, 0);
        // The key lies somewhere in the kernel.
        let key = self.w.terms.var(&format!("{with}key"), Sort::Bits(64));
        let entry = self.w.terms.var(&format!("{with}entry"), Sort::Bits(64));
        let value = self.place(MemorySpace::Map(map), entry);
        let values = &mut self.w.values;
        vec![values.pointer(PointerRegion::Map(map), zero), values.number(key), values.pointer(value, zero)]
    }

    /// Arguments that are numbers.
    fn numbers(&mut self, given: &[ValueId], name: &str) -> Result<Vec<TermId>, ProofError> {
        let number = |v: &ValueId| match self.w.values.kind(*v) {
            ValueKind::Number(t) if !self.w.terms.has_address(t) => Ok(t),
            _ => Err(ProofError::new(format!("{name} is given a pointer as a number"))),
        };
        given.iter().map(number).collect()
    }

    /// Number of rounds of a loop, if it is known and small.
    fn few_rounds(&mut self, count: ValueId, flags: ValueId) -> Option<u64> {
        let mut known = |v| self.w.values.numeric(&mut self.w.terms, v).and_then(|t| self.w.terms.value(t));
        let (count, flags) = (known(count)? & u64::from(u32::MAX), known(flags)?);
        (count <= MOST_ROUNDS && flags == 0).then_some(count)
    }

    /// A helper that calls a function until the function asks it to stop.
    fn again_and_again(
        &mut self,
        state: &mut SymbolicState,
        name: &str,
        f: &CallbackFunction,
        mut inputs: Vec<TermId>,
    ) -> Result<(), ProofError> {
        let ran = self.run_on_any_state(state, f)?;
        if f.context.is_none() {
            // A number that is passed to each round.
            inputs.extend(f.given.last().map(|v| self.numbers(&[*v], name)).transpose()?.unwrap_or_default());
        }
        inputs.extend([state.length, state.metadata]);
        inputs.extend(&ran.makes);
        // The state when it begins.
        for space in ran.end.memory.keys() {
            inputs.push(state.memory(&mut self.w.terms, *space));
        }
        for chain in ran.end.chains.keys() {
            inputs.push(state.chain(&mut self.w.terms, *chain));
        }
        inputs.push(self.w.terms.constant(32, ran.looks_at.len() as u64));
        for at in &ran.looks_at {
            inputs.push(self.w.terms.constant(64, *at as u64));
            inputs.push(self.context_byte(state, f, *at)?);
        }
        for (at, becomes) in &ran.changes {
            inputs.push(self.w.terms.constant(64, *at as u64));
            inputs.push(*becomes);
        }
        for t in &mut inputs {
            *t = self.w.terms.under(*t, state.path);
        }
        let sorts: String = inputs.iter().map(|t| signature(self.w.terms.sort(*t))).collect();
        let event = self.w.terms.app(&format!("{name} {sorts}"), &inputs, Sort::Token);
        self.after_loop(state, f, &ran, event);
        let t = self.w.terms.app("result", &[event], Sort::Bits(64));
        let value = self.w.values.number(t);
        self.returned(state, value);
        Ok(())
    }

    /// The byte of the stack at a distance from the address that the context points to.
    fn context_byte(
        &mut self,
        state: &SymbolicState,
        f: &CallbackFunction,
        at: i64,
    ) -> Result<TermId, ProofError> {
        let cell =
            f.context.and_then(|(frame, start)| state.frames[usize::from(frame)].get(&(start + at)).copied());
        let t = cell.and_then(|cell| byte(&mut self.w.terms, &mut self.w.values, cell));
        self.w.unwritten.missed |= t.is_none();
        t.ok_or_else(|| ProofError::new("a function looks at what was not put on the stack"))
    }

    /// Runs a loop with a known number of rounds one by one.
    fn rounds(
        &mut self,
        state: &mut SymbolicState,
        count: u64,
        entry: usize,
        context: ValueId,
    ) -> Result<(), ProofError> {
        // The states that have left the loop, and those that go on.
        let (mut left, mut goes) = (None, Some(state.clone()));
        for round in 0..count {
            let Some(begin) = goes.take() else { break };
            let mut end = self.round(begin, entry, round, context)?;
            let zero = self.constant_number(0);
            let (terms, values) = (&mut self.w.terms, &mut self.w.values);
            let on = values.compare(terms, Cond::Eq, Width::W64, end.regs[0], zero);
            let on = on.ok_or_else(|| ProofError::new("a function without a result"))?;
            let over = terms.not(on);
            let mut leaves = end.clone();
            if leaves.assume(terms, over) {
                leaves.regs[0] = self.constant_number(round + 1);
                left = Some(self.either_way(left, leaves));
            }
            goes = end.assume(&mut self.w.terms, on).then_some(end);
        }
        if let Some(mut goes) = goes {
            goes.regs[0] = self.constant_number(count);
            left = Some(self.either_way(left, goes));
        }
        *state = left.ok_or_else(|| ProofError::new("a loop that does not end"))?;
        let rounds = state.regs[0];
        self.returned(state, rounds);
        Ok(())
    }

    /// The state after one round, equal to that at the call of the loop but for the function's result.
    fn round(
        &mut self,
        mut state: SymbolicState,
        entry: usize,
        round: u64,
        context: ValueId,
    ) -> Result<SymbolicState, ProofError> {
        self.enter(entry, &mut state)?;
        let undefined = self.w.values.undefined();
        state.regs[1] = self.constant_number(round);
        state.regs[2] = context;
        state.regs[3..6].fill(undefined);
        let place = self.side.flow(entry)?.start()?;
        let mut waiting = PendingStates::from([(vec![place], state)]);
        let mut exec = self.inner();
        while exec.advance(&mut waiting)? {}
        let ended = exec.ended().cloned().ok_or_else(|| ProofError::new("a function that does not end"))?;
        self.return_to_caller(ended)
    }

    fn constant_number(&mut self, n: u64) -> ValueId {
        let t = self.w.terms.constant(64, n);
        self.w.values.number(t)
    }

    fn either_way(&mut self, before: Option<SymbolicState>, state: SymbolicState) -> SymbolicState {
        match before {
            None => state,
            Some(before) => before.join(&mut self.w.terms, &mut self.w.values, state),
        }
    }

    /// All memories and all chains, as fresh variables.
    fn everything(&mut self, with: &str) -> (BTreeMap<MemorySpace, TermId>, BTreeMap<EventChain, TermId>) {
        let maps = (0..self.w.maps.len() as u32).flat_map(|m| [MemorySpace::Map(m), MemorySpace::Inner(m)]);
        let others = [MemorySpace::Packet, MemorySpace::Context, MemorySpace::Allocated, MemorySpace::Kernel];
        let spaces: Vec<MemorySpace> = maps.chain(others).collect();
        let chains = [EventChain::Effects, EventChain::Volatile, EventChain::Budget, EventChain::Atomics];
        let chains = chains.into_iter().chain(spaces.iter().map(|s| EventChain::Entries(*s)));
        let memories: BTreeSet<MemorySpace> = spaces.iter().map(|s| self.memory_of(*s)).collect();
        let terms = &mut self.w.terms;
        let memory =
            memories.into_iter().map(|s| (s, terms.var(&format!("{with}memory {s:?}"), Sort::Memory)));
        let memory = memory.collect();
        let chains = chains.map(|c| (c, terms.var(&format!("{with}{c:?}"), Sort::Token)));
        (memory, chains.collect())
    }

    /// The part of the frame that its context points into which a function can see: an arbitrary byte
    /// wherever a number was put, and the pointers stored there. Other cells, and other frames, are empty.
    fn seen(&mut self, state: &SymbolicState, (frame, start): (u8, i64), with: &str) -> SymbolicFrame {
        let mut out = SymbolicFrame::new();
        for (at, cell) in state.frames[usize::from(frame)].iter() {
            let (at, cell) = (*at, *cell);
            let cell = match cell {
                SymbolicByte::Part(v, _) if !matches!(self.w.values.kind(v), ValueKind::Number(_)) => {
                    (!self.is_on_stack(v)).then_some(cell)
                }
                _ => {
                    let number = byte(&mut self.w.terms, &mut self.w.values, cell);
                    let number = number.filter(|t| !self.w.terms.has_address(*t));
                    let name = format!("{with}byte {}", at - start);
                    number.map(|_| SymbolicByte::Byte(self.w.terms.var(&name, Sort::Bits(8))))
                }
            };
            out.extend(cell.map(|cell| (at, cell)));
        }
        out
    }

    /// Runs a function from an arbitrary state to its end.
    fn run_on_any_state(
        &mut self,
        state: &SymbolicState,
        f: &CallbackFunction,
    ) -> Result<CallbackSummary, ProofError> {
        if state.frames.len() >= MAX_FRAMES {
            return Err(ProofError::new("calls nest too deep"));
        }
        let (memory, chains) = self.everything(&f.with);
        // A called function has the frames of its callers below its own.
        let mut frames = vec![Rc::default(); if f.context.is_some() { state.frames.len() } else { 1 }];
        if let Some((frame, start)) = f.context {
            frames[usize::from(frame)] = Rc::new(self.seen(state, (frame, start), &f.with));
        }
        let own = frames.len();
        frames.push(Rc::default());
        let (terms, values) = (&mut self.w.terms, &mut self.w.values);
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
        let begin =
            SymbolicState { path, facts, ranges, regs, frames, saved, memory, chains, length, metadata };
        let place = self.side.flow(f.entry)?.start()?;
        let mut waiting = PendingStates::from([(vec![place], begin.clone())]);
        let mut exec = self.inner();
        while exec.advance(&mut waiting)? {}
        let end = exec.ended().cloned().ok_or_else(|| ProofError::new("a function that does not end"))?;
        if self.w.terms.known(end.path) != Some(true) {
            return Err(ProofError::new("some paths of a function do not end"));
        }
        if (begin.length, begin.metadata) != (end.length, end.metadata) {
            return Err(ProofError::new("a helper calls a function that moves the packet"));
        }
        let result = self.w.values.numeric(&mut self.w.terms, end.regs[0]);
        let mut makes = vec![result.ok_or_else(|| ProofError::new("a function without a result"))?];
        makes.extend(end.memory.values().chain(end.chains.values()));
        let changes = self.changed(f, own, &begin, &end)?;
        let looks_at = self.looked_at(f, &begin, &makes, &changes);
        Ok(CallbackSummary { begin, end, makes, looks_at, changes })
    }

    /// The bytes of the stack that a function changes, which must be numbers before and after.
    fn changed(
        &mut self,
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
                let number = byte(&mut self.w.terms, &mut self.w.values, *cell);
                let number = number.filter(|t| !self.w.terms.has_address(*t));
                let (Some(start), Some(SymbolicByte::Byte(_)), Some(t)) = (start, before.get(at), number)
                else {
                    return Err(ProofError::new(
                        "a function that a helper calls changes what is on the stack",
                    ));
                };
                out.insert(at - start, t);
            }
        }
        Ok(out)
    }

    /// The bytes of the stack on which the outcome of a function depends, and those that it changes, since it
    /// need not be called at all.
    fn looked_at(
        &self,
        f: &CallbackFunction,
        begin: &SymbolicState,
        makes: &[TermId],
        changes: &BTreeMap<i64, TermId>,
    ) -> BTreeSet<i64> {
        let Some((frame, start)) = f.context else { return BTreeSet::new() };
        let all: Vec<TermId> = makes.iter().chain(changes.values()).copied().collect();
        let needed: BTreeSet<TermId> = cone(&self.w.terms, &all).into_iter().collect();
        let cells = begin.frames[usize::from(frame)].iter();
        let needed = cells.filter(|(_, cell)| matches!(cell, SymbolicByte::Byte(t) if needed.contains(t)));
        needed.map(|(at, _)| at - start).chain(changes.keys().copied()).collect()
    }

    /// Replaces all state that a round changes by unknown values after the loop.
    fn after_loop(
        &mut self,
        state: &mut SymbolicState,
        f: &CallbackFunction,
        ran: &CallbackSummary,
        event: TermId,
    ) {
        let (begin, end) = (&ran.begin, &ran.end);
        for (space, _) in end.memory.iter().filter(|(space, t)| begin.memory.get(space) != Some(t)) {
            let before = state.memory(&mut self.w.terms, *space);
            let after = self.w.terms.app(&format!("memory {space:?} after"), &[event, before], Sort::Memory);
            state.memory.insert(*space, after);
        }
        for (chain, _) in end.chains.iter().filter(|(chain, t)| begin.chains.get(chain) != Some(t)) {
            let after = self.w.terms.app(&format!("{chain:?} after"), &[event], Sort::Token);
            state.chains.insert(*chain, after);
        }
        let Some((frame, start)) = f.context else { return };
        for at in ran.changes.keys() {
            let after = self.w.terms.app(&format!("byte {at} after"), &[event], Sort::Bits(8));
            Rc::make_mut(&mut state.frames[usize::from(frame)]).insert(start + at, SymbolicByte::Byte(after));
        }
    }
}
