//! Calls of helpers and kernel functions.
//!
//! The effect of a helper is not modelled. Its row in `isa::helpers` says what it may depend on and what it
//! may change. A call is an *event*: an uninterpreted function of the chain of events before it, its
//! arguments and the memory that it reads. Its result and the memory that it leaves are functions of the
//! event. So two programs that make the same calls with the same arguments in the same order get the same
//! answers, whatever these are.

use millstream_isa::helpers::{ArgKind, Helper, HelperEffects, RetKind, id};
use millstream_isa::{AluOp, Width};

use crate::call_builder::{CallBuilder, CallOutput, MapHandle, signature};
use crate::exec::SymbolicExecutor;
use crate::sizes::MOST_BYTES;
use crate::state::{EventChain, SymbolicState};
use crate::term::{ADDRESS, ENTRY, FILLED, FOUND, MATCH, Sort, TermId};
use crate::value::{MemorySpace, PointerRegion, ValueId, ValueKind};
use crate::{ProofError, args, callback, library};

/// Most bytes of memory written by a call that are tracked one by one.
const LONG: u64 = 64;

/// Helpers whose result is a number of 32 bits, zero-extended (`kernel/bpf/core.c`, `kernel/bpf/helpers.c`).
const NARROW: [&str; 2] = ["bpf_get_prandom_u32", "bpf_get_smp_processor_id"];

/// Map types whose entries are always there and do not change: arrays.
fn is_array(number: u32) -> bool {
    matches!(number, 2 | 6)
}

/// Map types with one entry per key: in a trie many keys find one entry.
fn is_hash(number: u32) -> bool {
    matches!(number, 1 | 5 | 9 | 10)
}

/// Maps of maps.
fn is_outer(number: u32) -> bool {
    matches!(number, 12 | 13)
}

impl SymbolicExecutor<'_, '_> {
    /// Runs a helper.
    pub(crate) fn helper(&mut self, state: &mut SymbolicState, id: i32) -> Result<(), ProofError> {
        let helper = Helper::get(id).ok_or_else(|| ProofError::new(format!("helper {id} is unknown")))?;
        match id {
            id::LOOP => return callback::bpf_loop(self, state),
            id::FOR_EACH_MAP_ELEM => return callback::for_each_map_elem(self, state),
            id::TIMER_SET_CALLBACK => return callback::timer_set_callback(self, state, helper),
            _ => {}
        }
        if helper.effects.intersects(HelperEffects::CALLBACK) {
            return Err(ProofError::new(format!("bpf_{} calls back", helper.name)));
        }
        if let Some(at) = helper.args.iter().position(|k| *k == ArgKind::ConstMap)
            && let Some(choice) = self.which_map(state, at + 1)
        {
            return self.either(state, id, at + 1, choice);
        }
        let name = format!("bpf_{}", helper.name);
        let mut call = CallBuilder { name, fills: helper.fills_memory(), ..CallBuilder::default() };
        args::arguments(self, state, helper.args, &mut call)?;
        if id == id::MAP_LOOKUP_ELEM {
            return self.lookup(state, &call);
        }
        if helper.effects.intersects(HelperEffects::TAIL_CALL) {
            return self.tail_call(state, &call);
        }
        self.done(state, helper, &call)
    }

    /// Completes a call: its changes to memory, and its result.
    pub(crate) fn done(
        &mut self,
        state: &mut SymbolicState,
        helper: &Helper,
        call: &CallBuilder,
    ) -> Result<(), ProofError> {
        let event = self.event(state, helper.effects, call)?;
        self.changes(state, helper.effects, call, event)?;
        let value = self.result(helper.ret, call, event);
        self.returned(state, value);
        Ok(())
    }

    /// If a register may hold one of several maps: the condition that decides between them, and the values if
    /// it holds and if not.
    fn which_map(&mut self, state: &SymbolicState, reg: usize) -> Option<(TermId, ValueId, ValueId)> {
        let v = self.w.values.on_path(&mut self.w.terms, state.path, state.regs[reg]);
        match self.w.values.kind(v) {
            ValueKind::Choice(c, a, b) => match (self.handle(a), self.handle(b)) {
                (Ok(x), Ok(y)) if x == y => None,
                (Err(_), _) if self.is_null(a) => None,
                (_, Err(_)) if self.is_null(b) => None,
                _ => Some((c, a, b)),
            },
            _ => None,
        }
    }

    /// Runs a helper once where a condition holds and once where it does not, each time with that case's
    /// value of the register.
    fn either(
        &mut self,
        state: &mut SymbolicState,
        id: i32,
        reg: usize,
        (condition, then, otherwise): (TermId, ValueId, ValueId),
    ) -> Result<(), ProofError> {
        let opposite = self.w.terms.not(condition);
        let mut joined: Option<SymbolicState> = None;
        for (c, value) in [(condition, then), (opposite, otherwise)] {
            let mut part = state.clone();
            if !part.assume(&mut self.w.terms, c) {
                continue;
            }
            // The facts on the path need not decide it by themselves.
            part.regs[reg] = value;
            self.helper(&mut part, id)?;
            joined = Some(match joined {
                None => part,
                Some(before) => before.join(&mut self.w.terms, &mut self.w.values, part),
            });
        }
        *state = joined.ok_or_else(|| ProofError::new("a call on no path"))?;
        Ok(())
    }

    /// Runs a kernel function. Only its arguments are known of it: it may change memory that others see, and
    /// all memory that it reaches through the context and its arguments. Exceptions, and memory reached
    /// through a dynptr, are not modelled.
    pub(crate) fn kfunc(&mut self, state: &mut SymbolicState, name: &str) -> Result<(), ProofError> {
        if library::c_function(self, state, name)? {
            return Ok(());
        }
        if name == "bpf_throw" || name.starts_with("bpf_dynptr") {
            return Err(ProofError::new(format!("{name} is not modelled")));
        }
        let mut call = CallBuilder { name: name.to_owned(), ..CallBuilder::default() };
        let (mut effects, mut given) = (HelperEffects::EXTERNAL, false);
        let count = self.p.parameters.get(name).copied().unwrap_or(5);
        for r in 1..=count {
            let v = self.w.values.on_path(&mut self.w.terms, state.path, state.regs[r]);
            match self.w.values.kind(v) {
                ValueKind::Undefined => break, // never read
                ValueKind::Number(t) => call.inputs.push(t),
                ValueKind::Pointer(PointerRegion::In(MemorySpace::Context, _), _) => {
                    effects = effects.or(HelperEffects::MOVES_PACKET).or(HelperEffects::WRITES_PACKET);
                }
                _ => {
                    args::unknown_argument(self, state, v, &mut call)?;
                    given = true;
                }
            }
        }
        let event = self.event(state, effects, &call)?;
        self.changes(state, effects, &call, event)?;
        let value = match given {
            false => self.result(RetKind::Int, &call, event),
            // It may point into the memory that was passed: nobody may read through it.
            true => {
                let t = self.w.terms.app(&format!("{ADDRESS}result"), &[event], Sort::Bits(64));
                self.w.values.number(t)
            }
        };
        self.returned(state, value);
        Ok(())
    }

    pub(crate) fn handle(&mut self, v: ValueId) -> Result<MapHandle, ProofError> {
        match self.w.values.kind(v) {
            ValueKind::Pointer(PointerRegion::Map(map), _) => Ok(MapHandle::Map(map)),
            ValueKind::Pointer(PointerRegion::InnerMap(map, t), _) => Ok(MapHandle::Inner(map, t)),
            ValueKind::Choice(_, a, b) => match (self.handle(a), self.handle(b)) {
                (Ok(x), Ok(y)) if x == y => Ok(x),
                (Ok(x), Err(_)) if self.is_null(b) => Ok(x),
                (Err(_), Ok(y)) if self.is_null(a) => Ok(y),
                _ => Err(ProofError::new("a call takes one of several maps")),
            },
            _ => Err(ProofError::new("a call takes a map that cannot be followed")),
        }
    }

    /// Returns true if nothing is known of a map: neither its type nor the sizes of its keys and values.
    pub(crate) fn is_open(&self, handle: MapHandle) -> bool {
        matches!(handle, MapHandle::Inner(map, _) if self.w.maps[map as usize].inner.is_none())
    }

    /// Type, key size, value size, entries of a map.
    fn shape(&self, handle: MapHandle) -> Result<(u32, u32, u32, u32), ProofError> {
        match handle {
            MapHandle::Map(map) => {
                let m = &self.w.maps[map as usize];
                Ok((m.number, m.key_size, m.value_size, m.max_entries))
            }
            MapHandle::Inner(map, _) => self.w.maps[map as usize]
                .inner
                .ok_or_else(|| ProofError::new("an inner map of unknown shape")),
        }
    }

    pub(crate) fn sizes(&self, call: &CallBuilder) -> Result<(u32, u32), ProofError> {
        let handle =
            call.map.ok_or_else(|| ProofError::new(format!("{} takes a key of no map", call.name)))?;
        let (_, key, value, _) = self.shape(handle)?;
        Ok((key, value))
    }

    /// `bpf_map_lookup_elem`: the entry is a function of the key and of all earlier changes to the map's
    /// entries.
    fn lookup(&mut self, state: &mut SymbolicState, call: &CallBuilder) -> Result<(), ProofError> {
        let handle = call.map.ok_or_else(|| ProofError::new("a lookup without a map"))?;
        let (number, key_size, _, entries) =
            if self.is_open(handle) { (u32::MAX, 0, 0, 0) } else { self.shape(handle)? };
        let space = handle.space();
        // Without the map's number or handle, which comes first.
        let key = &call.inputs[1..];
        let zero = self.w.terms.constant(64, 0);
        let (found, object) = if let (MapHandle::Map(map), true, 4) = (handle, is_array(number), key_size) {
            let first = self.w.terms.constant(32, 0) == key[0];
            let limit = match entries {
                // To be set by the loader, but no array is empty.
                0 if first => self.w.terms.constant(32, 1),
                0 => self.w.terms.var(&format!("entries of map {map}"), Sort::Bits(32)),
                n => self.w.terms.constant(32, u64::from(n)),
            };
            let found = self.w.terms.compare_terms(millstream_isa::semantics::Pred::Ult, key[0], limit);
            (found, self.w.terms.zero_extend_to(key[0], 64))
        } else {
            let mut inputs = vec![state.chain(&mut self.w.terms, EventChain::Entries(space))];
            if let MapHandle::Inner(_, t) = handle {
                inputs.push(t);
            }
            inputs.extend(key);
            let found = self.w.terms.app(&format!("{FOUND}{space:?}"), &inputs, Sort::Bool);
            let name = if is_array(number) || is_hash(number) { ENTRY } else { MATCH };
            (found, self.w.terms.app(&format!("{name}{space:?}"), &inputs, Sort::Bits(64)))
        };
        let there = match handle {
            // Two slots may hold one map.
            MapHandle::Map(map) if is_outer(number) => {
                let mut inputs = vec![state.chain(&mut self.w.terms, EventChain::Entries(space))];
                inputs.extend(key);
                let inner = self.w.terms.app(&format!("inner map of {space:?}"), &inputs, Sort::Bits(64));
                self.w.values.pointer(PointerRegion::InnerMap(map, inner), zero)
            }
            _ => {
                let entry = self.place(space, object);
                self.w.values.pointer(entry, zero)
            }
        };
        let null = self.w.values.number(zero);
        let value = self.w.values.choice(&mut self.w.terms, found, there, null);
        self.returned(state, value);
        Ok(())
    }

    /// A tail call ends the program if it succeeds.
    fn tail_call(&mut self, state: &mut SymbolicState, call: &CallBuilder) -> Result<(), ProofError> {
        // In a function, the other program returns to the caller.
        if !state.saved.is_empty() {
            return Err(ProofError::new("a tail call in a function that was called is not modelled"));
        }
        let event = self.event(state, HelperEffects::EXTERNAL.or(HelperEffects::READS_PACKET), call)?;
        let taken = self.w.terms.app("tail call succeeds", &[event], Sort::Bool);
        let mut gone = state.clone();
        if gone.assume(&mut self.w.terms, taken) {
            let t = self.w.terms.app("result of tail call", &[event], Sort::Bits(64));
            gone.regs[0] = self.w.values.number(t);
            gone.chains.insert(EventChain::Effects, event);
            self.end(gone);
        }
        let failed = self.w.terms.not(taken);
        state.assume(&mut self.w.terms, failed);
        let undefined = self.w.values.undefined();
        self.returned(state, undefined);
        Ok(())
    }

    /// The call as a term: a function of the chain before it and of all memory that it reads.
    fn event(
        &mut self,
        state: &mut SymbolicState,
        effects: HelperEffects,
        call: &CallBuilder,
    ) -> Result<TermId, ProofError> {
        let mut inputs = call.inputs.clone();
        let chain = chain(effects);
        if let Some(chain) = chain {
            inputs.push(state.chain(&mut self.w.terms, chain));
        }
        if chain == Some(EventChain::Volatile) {
            // Others may change the state that it reads, and so may calls.
            inputs.push(state.chain(&mut self.w.terms, EventChain::Effects));
        }
        if effects.intersects(HelperEffects::READS_MAP.or(HelperEffects::WRITES_MAP)) {
            for space in self.spaces(call) {
                let memory = self.memory_of(space);
                inputs.push(state.memory(&mut self.w.terms, memory));
                inputs.push(state.chain(&mut self.w.terms, EventChain::Entries(space)));
            }
        }
        if effects.intersects(HelperEffects::READS_PACKET.or(HelperEffects::WRITES_PACKET)) {
            for space in [MemorySpace::Packet, MemorySpace::Context].map(|s| self.memory_of(s)) {
                inputs.push(state.memory(&mut self.w.terms, space));
            }
            inputs.extend([state.length, state.metadata]);
        }
        for t in &mut inputs {
            *t = self.w.terms.under(*t, state.path);
        }
        // The shape of the inputs is part of the name: one function, one signature.
        let sorts: String = inputs.iter().map(|t| signature(self.w.terms.sort(*t))).collect();
        Ok(self.w.terms.app(&format!("{} {sorts}", call.name), &inputs, Sort::Token))
    }

    /// The maps that a call may read and write.
    fn spaces(&self, call: &CallBuilder) -> Vec<MemorySpace> {
        match call.map {
            Some(handle) => vec![handle.space()],
            None => (0..self.w.maps.len() as u32)
                .flat_map(|m| [MemorySpace::Map(m), MemorySpace::Inner(m)])
                .collect(),
        }
    }

    /// Applies the effects of the call to the state.
    fn changes(
        &mut self,
        state: &mut SymbolicState,
        effects: HelperEffects,
        call: &CallBuilder,
        event: TermId,
    ) -> Result<(), ProofError> {
        if let Some(chain) = chain(effects) {
            state.chains.insert(chain, event);
        }
        if effects.intersects(HelperEffects::WRITES_MAP) {
            for space in self.spaces(call) {
                self.forget(state, space, event);
                state.chains.insert(EventChain::Entries(space), event);
            }
        }
        if effects.intersects(
            HelperEffects::EXTERNAL.or(HelperEffects::WRITES_PACKET).or(HelperEffects::MOVES_PACKET),
        ) {
            self.forget(state, MemorySpace::Kernel, event);
        }
        if effects.intersects(HelperEffects::WRITES_PACKET.or(HelperEffects::MOVES_PACKET)) {
            self.forget(state, MemorySpace::Packet, event);
            self.forget(state, MemorySpace::Context, event);
            if effects.intersects(HelperEffects::MOVES_PACKET) {
                let short = self.w.terms.app("packet length after", &[event], Sort::Bits(16));
                state.length = self.w.terms.zero_extend_to(short, 64);
                let short = self.w.terms.app("metadata length after", &[event], Sort::Bits(8));
                state.metadata = self.w.terms.zero_extend_to(short, 64);
            }
        }
        for (n, out) in call.outs.iter().enumerate() {
            match *out {
                CallOutput::Space(space) => self.forget(state, space, event),
                CallOutput::Map(space) => {
                    self.forget(state, space, event);
                    state.chains.insert(EventChain::Entries(space), event);
                }
                CallOutput::Bytes(at, count) => {
                    self.write_out(state, at, (count, None, call.fills), n, event)?
                }
                CallOutput::Upto(at, count, size) => {
                    self.write_out(state, at, (count, Some(size), call.fills), n, event)?;
                }
                CallOutput::Some(at, count) => self.write_some(state, at, count, n, event)?,
            }
        }
        Ok(())
    }

    /// Replaces the memory of a space by an unknown one that depends on the old one.
    fn forget(&mut self, state: &mut SymbolicState, space: MemorySpace, event: TermId) {
        let space = self.memory_of(space);
        let before = state.memory(&mut self.w.terms, space);
        let after = self.w.terms.app(&format!("memory {space:?} after"), &[event, before], Sort::Memory);
        state.memory.insert(space, after);
    }

    fn write_out(
        &mut self,
        state: &mut SymbolicState,
        at: ValueId,
        (count, size, fills): (u64, Option<TermId>, bool),
        n: usize,
        event: TermId,
    ) -> Result<(), ProofError> {
        let at = self.given(at);
        if let ValueKind::Number(t) = self.w.values.kind(at)
            && self.w.terms.value(t) == Some(0)
        {
            return Ok(());
        }
        if count > LONG && size.is_none() && self.fill(state, at, count, n, event, None) {
            return Ok(());
        }
        if count > MOST_BYTES {
            return Err(ProofError::new(format!("a helper writes {count} bytes")));
        }
        // Some of the bytes may keep their values if the helper fails: whether they do is a function of the
        // event, too.
        let written = match fills {
            true => self.w.terms.truth(true),
            false => self.w.terms.app(&format!("output {n} written"), &[event], Sort::Bool),
        };
        for i in 0..count {
            let new = self.w.terms.app(&format!("output {n} byte {i}"), &[event], Sort::Bits(8));
            let by = self.w.terms.constant(64, i);
            let by = self.w.values.number(by);
            let place = self.w.values.alu(&mut self.w.terms, AluOp::Add, Width::W64, at, by);
            let here = match size {
                None => written,
                Some(size) => {
                    let within = args::within(self, i, size);
                    self.w.terms.and(&[written, within])
                }
            };
            let always = self.w.terms.known(here) == Some(true);
            let byte = if !always && self.is_defined(state, place) {
                let old = self.read(state, place, 1)?[0];
                self.w.terms.ite(here, new, old)
            } else {
                new
            };
            self.write(state, place, &[byte], None)?;
        }
        Ok(())
    }

    /// Replaces memory in which a call has left many bytes in a row, under the condition `only` if it is
    /// given; `false` if it is on the stack.
    fn fill(
        &mut self,
        state: &mut SymbolicState,
        at: ValueId,
        count: u64,
        n: usize,
        event: TermId,
        only: Option<TermId>,
    ) -> bool {
        match self.w.values.kind(at) {
            ValueKind::Pointer(PointerRegion::In(space, object), offset) => {
                let terms = &mut self.w.terms;
                let before = state.memory(terms, space);
                let inputs = [event, before, object, offset, terms.constant(64, count)];
                let filled = terms.app(&format!("{FILLED}by output {n}"), &inputs, Sort::Memory);
                let after = only.map_or(filled, |c| terms.ite(c, filled, before));
                state.memory.insert(space, after);
                true
            }
            ValueKind::Choice(c, a, b) => {
                let spaces =
                    |v| matches!(self.w.values.kind(v), ValueKind::Pointer(PointerRegion::In(..), _));
                if !spaces(a) || !spaces(b) {
                    return false;
                }
                let opposite = self.w.terms.not(c);
                let all = only.unwrap_or_else(|| self.w.terms.truth(true));
                for (v, here) in [(a, c), (b, opposite)] {
                    let here = self.w.terms.and(&[all, here]);
                    self.fill(state, v, count, n, event, Some(here));
                }
                true
            }
            _ => false,
        }
    }

    /// Strips null from a value that is a pointer or null: accepted programs pass no null where memory is
    /// asked for.
    fn given(&self, v: ValueId) -> ValueId {
        match self.w.values.kind(v) {
            ValueKind::Choice(_, a, b) if self.is_null(a) => b,
            ValueKind::Choice(_, a, b) if self.is_null(b) => a,
            _ => v,
        }
    }

    /// Any of the bytes may have changed, each independently of the others.
    fn write_some(
        &mut self,
        state: &mut SymbolicState,
        at: ValueId,
        count: u64,
        n: usize,
        event: TermId,
    ) -> Result<(), ProofError> {
        for i in 0..count {
            let new = self.w.terms.app(&format!("output {n} byte {i}"), &[event], Sort::Bits(8));
            let by = self.w.terms.constant(64, i);
            let by = self.w.values.number(by);
            let place = self.w.values.alu(&mut self.w.terms, AluOp::Add, Width::W64, at, by);
            let mut byte = new;
            if self.is_defined(state, place) {
                let written = self.w.terms.app(&format!("output {n} byte {i} written"), &[event], Sort::Bool);
                let old = self.read(state, place, 1)?[0];
                byte = self.w.terms.ite(written, new, old);
            }
            self.write(state, place, &[byte], None)?;
        }
        Ok(())
    }

    /// Returns true if a byte has been put there. Memory outside the stack always counts as put.
    fn is_defined(&self, state: &SymbolicState, at: ValueId) -> bool {
        match self.w.values.kind(at) {
            ValueKind::Pointer(PointerRegion::Stack(frame), offset) => {
                // If the offset varies, it may be any of several bytes.
                let offset = self.w.terms.value(offset).map(|o| o as i64);
                offset.is_none_or(|o| state.is_put(frame, o))
            }
            _ => true,
        }
    }

    fn result(&mut self, ret: RetKind, call: &CallBuilder, event: TermId) -> ValueId {
        let zero = self.w.terms.constant(64, 0);
        let t = self.w.terms.app("result", &[event], Sort::Bits(64));
        match ret {
            RetKind::Void => self.w.values.undefined(),
            RetKind::MapValueOrNull | RetKind::MapValue => {
                let Some(handle) = call.map else { return self.w.values.number(t) };
                let entry = self.place(handle.space(), t);
                let there = self.w.values.pointer(entry, zero);
                if ret == RetKind::MapValue {
                    return there;
                }
                self.or_null(there, event)
            }
            RetKind::MemOrNull => {
                let record = self.place(MemorySpace::Allocated, t);
                let there = self.w.values.pointer(record, zero);
                self.or_null(there, event)
            }
            _ if NARROW.contains(&call.name.as_str()) => {
                let low = self.w.terms.app("result of 32 bits", &[event], Sort::Bits(32));
                let t = self.w.terms.zero_extend_to(low, 64);
                self.w.values.number(t)
            }
            _ => self.w.values.number(t),
        }
    }

    fn or_null(&mut self, there: ValueId, event: TermId) -> ValueId {
        let zero = self.w.terms.constant(64, 0);
        let null = self.w.values.number(zero);
        let found = self.w.terms.app("result is there", &[event], Sort::Bool);
        self.w.values.choice(&mut self.w.terms, found, there, null)
    }

    pub(crate) fn returned(&mut self, state: &mut SymbolicState, value: ValueId) {
        let undefined = self.w.values.undefined();
        state.regs[1..6].fill(undefined);
        state.regs[0] = value;
    }
}

/// The chain of events that a call with these effects belongs to; none if it depends on its inputs alone.
fn chain(effects: HelperEffects) -> Option<EventChain> {
    if effects.intersects(HelperEffects::OBSERVABLE) {
        Some(EventChain::Effects)
    } else if effects.intersects(HelperEffects::VOLATILE) {
        Some(EventChain::Volatile)
    } else {
        None
    }
}
