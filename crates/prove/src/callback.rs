//! `bpf_loop`: a function of the program that a helper calls for each number below one that it is given.
//!
//! The function is run once, on a number and a state of which nothing is known. What comes out of that is all that the loop
//! depends on, with what there is when it begins: two loops over functions that do the same do the same. That does not hold where
//! the function is given more than a number: a pointer into the stack, where the two programs may keep other things. There
//! it is run round by round, if the number of rounds is known and small.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use millstream_isa::{Cond, Width};

use crate::Unknown;
use crate::exec::{Exec, Waiting};
use crate::range::Ranges;
use crate::state::{Chain, State};
use crate::term::{Sort, T};
use crate::value::{Kind, Region, Space, V};

/// Rounds that are run one by one.
const MOST_ROUNDS: u64 = 64;

/// What names of variables have that stand for what a function is called with.
const CALLED_WITH: &str = "called with ";

impl Exec<'_, '_> {
    /// Runs `bpf_loop(count, function, context, flags)`.
    pub(crate) fn bpf_loop(&mut self, state: &mut State) -> Result<(), Unknown> {
        let [count, function, context, flags] =
            [1, 2, 3, 4].map(|r| self.w.values.on_path(&mut self.w.terms, state.path, state.regs[r]));
        let Kind::Pointer(Region::Func(entry), _) = self.w.values.kind(function) else {
            return Err(Unknown::new("bpf_loop is given a function that cannot be followed"));
        };
        let mut inputs = Vec::new();
        for v in [count, context, flags] {
            match self.w.values.kind(v) {
                Kind::Number(t) if !self.w.terms.has_address(t) => inputs.push(t),
                _ => return self.rounds(state, [count, flags], entry as usize, context),
            }
        }
        let (begin, end) = self.called(entry as usize, context)?;
        if (begin.length, begin.metadata) != (end.length, end.metadata) {
            return Err(Unknown::new("bpf_loop calls a function that moves the packet"));
        }
        let result = self.w.values.numeric(&mut self.w.terms, end.regs[0]);
        inputs.push(result.ok_or_else(|| Unknown::new("a function without a result"))?);
        inputs.extend([state.length, state.metadata]);
        // What a round makes of all that there is, and what there is when the loop begins.
        for (space, t) in &end.memory {
            inputs.extend([*t, state.memory(&mut self.w.terms, *space)]);
        }
        for (chain, t) in &end.chains {
            inputs.extend([*t, state.chain(&mut self.w.terms, *chain)]);
        }
        for t in &mut inputs {
            *t = self.w.terms.under(*t, state.path);
        }
        let event = self.w.terms.app("bpf_loop", &inputs, Sort::Token);
        self.after_loop(state, [&begin, &end], event);
        let t = self.w.terms.app("result", &[event], Sort::Bits(64));
        let value = self.w.values.number(t);
        self.returned(state, value);
        Ok(())
    }

    /// Runs a loop of a known number of rounds one by one.
    fn rounds(
        &mut self,
        state: &mut State,
        [count, flags]: [V; 2],
        entry: usize,
        context: V,
    ) -> Result<(), Unknown> {
        let mut known = |v| self.w.values.numeric(&mut self.w.terms, v).and_then(|t| self.w.terms.value(t));
        let (count, flags) = (known(count).map(|n| n & u64::from(u32::MAX)), known(flags));
        let (Some(count @ ..=MOST_ROUNDS), Some(0)) = (count, flags) else {
            let most = format!(
                "bpf_loop gives its function a pointer, and may go round more than {MOST_ROUNDS} times"
            );
            return Err(Unknown::new(most));
        };
        // What has left the loop, and what goes round.
        let (mut left, mut goes) = (None, Some(state.clone()));
        for round in 0..count {
            let Some(begin) = goes.take() else { break };
            let mut end = self.round(begin, entry, round, context)?;
            let zero = self.constant_number(0);
            let (terms, values) = (&mut self.w.terms, &mut self.w.values);
            let on = values.compare(terms, Cond::Eq, Width::W64, end.regs[0], zero);
            let on = on.ok_or_else(|| Unknown::new("a function without a result"))?;
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
        *state = left.ok_or_else(|| Unknown::new("a loop that does not end"))?;
        let rounds = state.regs[0];
        self.returned(state, rounds);
        Ok(())
    }

    /// The state after one round, as it is where the loop is called but for the function's result.
    fn round(&mut self, mut state: State, entry: usize, round: u64, context: V) -> Result<State, Unknown> {
        self.enter(entry, &mut state)?;
        let undefined = self.w.values.undefined();
        state.regs[1] = self.constant_number(round);
        state.regs[2] = context;
        state.regs[3..6].fill(undefined);
        let place = self.side.flow(entry)?.start()?;
        let mut waiting = Waiting::from([(vec![place], state)]);
        let mut exec = self.inner();
        while exec.advance(&mut waiting)? {}
        let ended = exec.ended().cloned().ok_or_else(|| Unknown::new("a function that does not end"))?;
        self.back(ended)
    }

    fn constant_number(&mut self, n: u64) -> V {
        let t = self.w.terms.constant(64, n);
        self.w.values.number(t)
    }

    fn either_way(&mut self, before: Option<State>, state: State) -> State {
        match before {
            None => state,
            Some(before) => before.join(&mut self.w.terms, &mut self.w.values, state),
        }
    }

    /// All memories that there may be, and all chains, as variables that stand for nothing else.
    fn everything(&mut self) -> (BTreeMap<Space, T>, BTreeMap<Chain, T>) {
        let maps = (0..self.w.maps.len() as u32).flat_map(|m| [Space::Map(m), Space::Inner(m)]);
        let others = [Space::Packet, Space::Context, Space::Allocated, Space::Kernel];
        let spaces: Vec<Space> = maps.chain(others).collect();
        let chains = [Chain::Effects, Chain::Volatile, Chain::Budget, Chain::Atomics];
        let chains = chains.into_iter().chain(spaces.iter().map(|s| Chain::Entries(*s)));
        let memories: BTreeSet<Space> = spaces.iter().map(|s| self.memory_of(*s)).collect();
        let terms = &mut self.w.terms;
        let memory =
            memories.into_iter().map(|s| (s, terms.var(&format!("{CALLED_WITH}memory {s:?}"), Sort::Memory)));
        let memory = memory.collect();
        let chains = chains.map(|c| (c, terms.var(&format!("{CALLED_WITH}{c:?}"), Sort::Token)));
        (memory, chains.collect())
    }

    /// The states in which a function of the program begins that is called with any number and any state, and ends.
    fn called(&mut self, entry: usize, context: V) -> Result<(State, State), Unknown> {
        let (memory, chains) = self.everything();
        let (terms, values) = (&mut self.w.terms, &mut self.w.values);
        let path = terms.truth(true);
        let mut regs = [values.undefined(); 11];
        let number = terms.var(&format!("{CALLED_WITH}number"), Sort::Bits(32));
        let number = terms.zero_extend_to(number, 64);
        regs[1] = values.number(number);
        regs[2] = context;
        let zero = terms.constant(64, 0);
        // Of a function that was called: another waits.
        regs[10] = values.pointer(Region::Stack(1), zero);
        let saved = vec![[values.undefined(); 4]];
        let [length, metadata] = ["length", "metadata"].map(|what| {
            let any = terms.var(&format!("{CALLED_WITH}{what}"), Sort::Bits(16));
            terms.zero_extend_to(any, 64)
        });
        let first = State {
            path,
            facts: BTreeSet::new(),
            ranges: Ranges::default(),
            regs,
            frames: vec![Rc::default(), Rc::default()],
            saved,
            memory,
            chains,
            length,
            metadata,
        };
        let place = self.side.flow(entry)?.start()?;
        let mut waiting = Waiting::from([(vec![place], first.clone())]);
        let mut exec = self.inner();
        while exec.advance(&mut waiting)? {}
        let ended = exec.ended().cloned().ok_or_else(|| Unknown::new("a function that does not end"))?;
        match self.w.terms.known(ended.path) {
            Some(true) => Ok((first, ended)),
            _ => Err(Unknown::new("some paths of a function do not end")),
        }
    }

    /// What is changed in a round is something else after the loop.
    fn after_loop(&mut self, state: &mut State, [begin, end]: [&State; 2], event: T) {
        for (space, _) in end.memory.iter().filter(|(space, t)| begin.memory.get(space) != Some(t)) {
            let before = state.memory(&mut self.w.terms, *space);
            let after = self.w.terms.app(&format!("memory {space:?} after"), &[event, before], Sort::Memory);
            state.memory.insert(*space, after);
        }
        for (chain, _) in end.chains.iter().filter(|(chain, t)| begin.chains.get(chain) != Some(t)) {
            let after = self.w.terms.app(&format!("{chain:?} after"), &[event], Sort::Token);
            state.chains.insert(*chain, after);
        }
    }
}
