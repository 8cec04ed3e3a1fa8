//! Runs a program on terms: all paths at once, joined where they meet.
//!
//! Blocks are visited in reverse postorder, so that a block is entered once, with the join of the states of
//! all its predecessors; blocks of a called function come before those that follow the call. A backward jump
//! puts a state at an earlier block, which is visited next: loops are unrolled until no state goes round
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Instant;

use millstream_isa::semantics;
use millstream_isa::semantics::Prim;
use millstream_isa::{Callee, Cond, Insn, LegacyMode, Operand, Pseudo, Reg, Size, Width};
use rustc_hash::FxHashMap;

use crate::flow::{FunctionCfg, ProgramPoint};
use crate::program::{InsnReference, ProofProgram};
use crate::range::{RangeTest, ValueRanges};
use crate::sizes::STACK_SIZE;
use crate::state::{EventChain, SymbolicByte, SymbolicFrame, SymbolicState};
use crate::term::{Sort, TermId, TermPool, mask};
use crate::uninitialized::ProofContext;
use crate::value::{MemorySpace, PointerRegion, ValueId, ValueKind};
use crate::{ProofError, ProofLimits};

/// Nested frames: twice as many as in the kernel, so that programs can be repaired that have too many for it.
pub(crate) const MAX_FRAMES: usize = 16;

/// One of the programs of a proof, and the data kept from one run to the next.
pub(crate) struct ComparedProgram<'a> {
    pub(crate) p: &'a ProofProgram,
    /// Letter that distinguishes it from the other program.
    pub(crate) name: char,
    /// Number of unknown values so far, to name the next one.
    pub(crate) fresh: u32,
    flows: FxHashMap<usize, Rc<FunctionCfg>>,
}

impl<'a> ComparedProgram<'a> {
    /// A program that has not run yet.
    pub(crate) fn new(p: &'a ProofProgram, name: char) -> ComparedProgram<'a> {
        ComparedProgram { p, name, fresh: 0, flows: FxHashMap::default() }
    }

    /// Returns true if this is the first of the two.
    pub(crate) fn is_first(&self) -> bool {
        self.name == 'A'
    }

    /// Control flow of the function at `entry`.
    pub(crate) fn flow(&mut self, entry: usize) -> Result<Rc<FunctionCfg>, ProofError> {
        if let Some(flow) = self.flows.get(&entry) {
            return Ok(flow.clone());
        }
        let flow = Rc::new(FunctionCfg::new(self.p, entry)?);
        self.flows.insert(entry, flow.clone());
        Ok(flow)
    }
}

/// One run of one program.
pub(crate) struct SymbolicExecutor<'a, 'p> {
    pub(crate) w: &'a mut ProofContext,
    pub(crate) p: &'p ProofProgram,
    pub(crate) side: &'a mut ComparedProgram<'p>,
    pub(crate) limits: &'a ProofLimits,
    deadline: Instant,
    executed: u64,
    /// Outer runs that wait for this one, which runs a callback.
    pub(crate) nesting: u32,
    /// Join of the states in which the program ended: by its exit, or in another program.
    ended: Option<SymbolicState>,
}

/// Reason for the end of a proof that makes too many terms.
pub(crate) const TERMS: &str = "more terms than the limit";

/// Waiting states, by the place in each active function, the outermost first.
pub(crate) type PendingStates = BTreeMap<StateLocation, SymbolicState>;

/// Location of a state: the active calls, and the place in the innermost function.
pub(crate) type StateLocation = Vec<ProgramPoint>;

/// Continuation after an instruction.
pub(crate) enum ControlTransfer {
    Fall,
    /// To the start of this function.
    Enter(usize),
    /// To each of these slots, in its state.
    Branch(Vec<(usize, SymbolicState)>),
    Return,
    /// Nothing: the path ends here.
    Dead,
}

impl<'a, 'p> SymbolicExecutor<'a, 'p> {
    /// A new run.
    pub(crate) fn new(
        w: &'a mut ProofContext,
        side: &'a mut ComparedProgram<'p>,
        limits: &'a ProofLimits,
        deadline: Instant,
    ) -> SymbolicExecutor<'a, 'p> {
        SymbolicExecutor { w, p: side.p, side, limits, deadline, executed: 0, nesting: 0, ended: None }
    }

    /// A run of a function within this one: the frames of waiting functions stay.
    pub(crate) fn inner(&mut self) -> SymbolicExecutor<'_, 'p> {
        let nesting = self.nesting + 1;
        let mut inner = SymbolicExecutor::new(self.w, self.side, self.limits, self.deadline);
        inner.nesting = nesting;
        inner
    }

    /// State after a complete run of a program, whose initial state `begin` may change.
    pub(crate) fn run_from(
        w: &'a mut ProofContext,
        side: &'a mut ComparedProgram<'p>,
        limits: &'a ProofLimits,
        deadline: Instant,
        begin: impl FnOnce(&mut ProofContext, &mut SymbolicState),
    ) -> Result<SymbolicState, ProofError> {
        let mut exec = SymbolicExecutor::new(w, side, limits, deadline);
        let mut waiting = exec.begin()?;
        if let Some(mut first) = waiting.first_entry() {
            begin(exec.w, first.get_mut());
        }
        while exec.advance(&mut waiting)? {}
        if exec.w.terms.is_full() {
            return Err(ProofError::new(TERMS));
        }
        let ended = exec.ended.take().ok_or_else(|| ProofError::new("no path of the program ends"))?;
        match exec.w.terms.known(ended.path) {
            Some(true) => Ok(ended),
            _ => Err(ProofError::new("some paths of the program do not end")),
        }
    }

    /// Start of the program, in the initial state of all programs.
    pub(crate) fn begin(&mut self) -> Result<PendingStates, ProofError> {
        let flow = self.side.flow(0)?;
        let place = flow.start()?;
        let mut state = self.start();
        let ProofContext { terms, unwritten, .. } = &mut *self.w;
        let read = (-STACK_SIZE..0).filter(|at| unwritten.followed && flow.is_byte_live(place.slot, *at));
        let cells = read.map(|at| (at, SymbolicByte::Byte(unwritten.byte(terms, self.side.is_first(), at))));
        state.frames = vec![Rc::new(cells.collect::<SymbolicFrame>())];
        Ok(PendingStates::from([(vec![place], state)]))
    }

    /// Sets the join of the states in which the program has ended before.
    pub(crate) fn has_ended(&mut self, ended: Option<SymbolicState>) {
        self.ended = ended;
    }

    /// The join of the states in which the program has ended.
    pub(crate) fn ended(&self) -> Option<&SymbolicState> {
        self.ended.as_ref()
    }

    fn start(&mut self) -> SymbolicState {
        let (terms, values) = (&mut self.w.terms, &mut self.w.values);
        let path = terms.truth(true);
        let undefined = values.undefined();
        let zero = terms.constant(64, 0);
        let mut regs = [undefined; 11];
        regs[1] = values.pointer(PointerRegion::In(MemorySpace::Context, zero), zero);
        regs[10] = values.pointer(PointerRegion::Stack(0), zero);
        let short = terms.var("packet length", Sort::Bits(16));
        let length = terms.zero_extend_to(short, 64);
        let short = terms.var("metadata length", Sort::Bits(8));
        let metadata = terms.zero_extend_to(short, 64);
        SymbolicState {
            path,
            facts: BTreeSet::new(),
            ranges: ValueRanges::default(),
            regs,
            frames: vec![Rc::default()],
            saved: Vec::new(),
            memory: BTreeMap::new(),
            chains: BTreeMap::new(),
            length,
            metadata,
        }
    }

    /// Ends a path.
    pub(crate) fn end(&mut self, mut state: SymbolicState) {
        if self.nesting == 0 {
            state.frames.clear();
            state.saved.clear();
        }
        let undefined = self.w.values.undefined();
        for r in 1..11 {
            state.regs[r] = undefined;
        }
        self.ended = Some(match self.ended.take() {
            None => state,
            Some(before) => before.join(&mut self.w.terms, &mut self.w.values, state),
        });
    }

    /// Puts a state at its location, joined with the state that waits there already. A state from which the
    /// program soon ends goes there at once.
    pub(crate) fn merge_pending(
        &mut self,
        waiting: &mut PendingStates,
        key: StateLocation,
        state: SymbolicState,
    ) -> Result<(), ProofError> {
        if let [place] = key[..]
            && self.side.flow(place.entry)?.is_tail(place.slot)
        {
            let mut rest = PendingStates::from([(key, state)]);
            while let Some((key, state)) = rest.pop_first() {
                for (key, state) in self.block(key, state)? {
                    self.wait(&mut rest, key, state);
                }
            }
            return Ok(());
        }
        self.wait(waiting, key, state);
        Ok(())
    }

    fn wait(&mut self, waiting: &mut PendingStates, key: StateLocation, state: SymbolicState) {
        let state = match waiting.remove(&key) {
            None => state,
            Some(before) => {
                let [before, state] = [before, state].map(|mut s| {
                    self.forget_dead(&key, &mut s);
                    s
                });
                before.join(&mut self.w.terms, &mut self.w.values, state)
            }
        };
        waiting.insert(key, state);
    }

    /// Runs the first of the waiting states to the end of its block; `false` if there is none.
    pub(crate) fn advance(&mut self, waiting: &mut PendingStates) -> Result<bool, ProofError> {
        let Some((key, state)) = waiting.pop_first() else { return Ok(false) };
        for (key, state) in self.block(key, state)? {
            self.merge_pending(waiting, key, state)?;
        }
        Ok(true)
    }

    /// Like [`SymbolicExecutor::advance`], but no state goes further than to the end of its block.
    pub(crate) fn advance_by_block(&mut self, waiting: &mut PendingStates) -> Result<(), ProofError> {
        if let Some((key, state)) = waiting.pop_first() {
            for (key, state) in self.block(key, state)? {
                self.wait(waiting, key, state);
            }
        }
        Ok(())
    }

    /// Runs from a place to the end of its block.
    fn block(
        &mut self,
        mut key: StateLocation,
        mut state: SymbolicState,
    ) -> Result<Vec<(StateLocation, SymbolicState)>, ProofError> {
        let Some(place) = key.last().copied() else { return Err(ProofError::new("a place in no function")) };
        let flow = self.side.flow(place.entry)?;
        let mut slot = place.slot;
        loop {
            let insn = self.p.insn(slot)?;
            self.within_limits()?;
            match self.step(slot, insn, &mut state)? {
                ControlTransfer::Fall => {
                    slot += insn.slots();
                    if flow.order.contains_key(&slot) {
                        key.pop();
                        key.push(flow.place(slot, place)?);
                        return Ok(vec![(key, state)]);
                    }
                }
                ControlTransfer::Branch(targets) => {
                    key.pop();
                    let to = |(slot, state)| {
                        let mut key = key.clone();
                        key.push(flow.place(slot, place)?);
                        Ok((key, state))
                    };
                    return targets.into_iter().map(to).collect();
                }
                ControlTransfer::Enter(entry) => {
                    key.pop();
                    key.push(ProgramPoint { slot, ..place });
                    key.push(self.side.flow(entry)?.start()?);
                    return Ok(vec![(key, state)]);
                }
                ControlTransfer::Dead => return Ok(Vec::new()),
                ControlTransfer::Return => {
                    key.pop();
                    return self.leave(key, state);
                }
            }
        }
    }

    fn within_limits(&mut self) -> Result<(), ProofError> {
        self.executed += 1;
        if self.executed > self.limits.instructions {
            return Err(ProofError::new("more instructions on its paths than the limit"));
        }
        if self.w.terms.is_full() {
            return Err(ProofError::new(TERMS));
        }
        if self.executed.is_multiple_of(64) && Instant::now() >= self.deadline {
            return Err(ProofError::new("the time was over before all paths were"));
        }
        Ok(())
    }

    /// Returns from a function to its caller, where `key` is the place of the exit.
    fn leave(
        &mut self,
        mut key: StateLocation,
        state: SymbolicState,
    ) -> Result<Vec<(StateLocation, SymbolicState)>, ProofError> {
        let Some(place) = key.pop() else {
            self.end(state);
            return Ok(Vec::new());
        };
        let state = self.return_to_caller(state)?;
        key.push(self.side.flow(place.entry)?.place(place.slot + 1, place)?);
        Ok(vec![(key, state)])
    }

    /// State of a function that has returned, converted to the state of the waiting caller.
    pub(crate) fn return_to_caller(&mut self, mut state: SymbolicState) -> Result<SymbolicState, ProofError> {
        let undefined = self.w.values.undefined();
        let saved = state.saved.pop().ok_or_else(|| ProofError::new("a return without a call"))?;
        state.frames.truncate(state.saved.len() + 1);
        state.regs[1..6].fill(undefined);
        state.regs[6..10].copy_from_slice(&saved);
        let zero = self.w.terms.constant(64, 0);
        state.regs[10] = self.w.values.pointer(PointerRegion::Stack(state.saved.len() as u8), zero);
        Ok(state)
    }

    fn step(
        &mut self,
        slot: usize,
        insn: Insn,
        state: &mut SymbolicState,
    ) -> Result<ControlTransfer, ProofError> {
        match insn {
            Insn::Alu { width, op, dst, src } => {
                let (a, b) = (self.get(state, dst), self.operand(slot, state, src));
                let v = self.w.values.alu(&mut self.w.terms, op, width, a, b);
                self.set(state, dst, v);
            }
            Insn::Mov { width, dst, src } => {
                let v = self.operand(slot, state, src);
                let v = match width {
                    Width::W64 => v,
                    Width::W32 => {
                        self.w.values.map(&mut self.w.terms, v, &|t, a| semantics::mov(t, Width::W32, &a))
                    }
                };
                self.set(state, dst, v);
            }
            Insn::MovSx { width, bits, dst, src } => {
                let v = self.get(state, src);
                let f = move |t: &mut TermPool, a| semantics::movsx(t, width, u32::from(bits), &a);
                let v = self.w.values.map(&mut self.w.terms, v, &f);
                self.set(state, dst, v);
            }
            Insn::Neg { width, dst } => {
                let v = self.get(state, dst);
                let v = self.w.values.map(&mut self.w.terms, v, &|t, a| semantics::neg(t, width, &a));
                self.set(state, dst, v);
            }
            Insn::Swap { kind, bits, dst } => {
                let v = self.get(state, dst);
                let f = move |t: &mut TermPool, a| semantics::swap(t, kind, u32::from(bits), &a);
                let v = self.w.values.map(&mut self.w.terms, v, &f);
                self.set(state, dst, v);
            }
            Insn::LoadImm64 { dst, pseudo, imm, .. } => {
                let v = self.constant(slot, pseudo, imm)?;
                self.set(state, dst, v);
            }
            Insn::Load { size, sext, dst, src, off } => {
                let v = self.load(slot, state, src, off, size, sext)?;
                self.set(state, dst, v);
            }
            Insn::LoadAcquire { size, dst, src, off } => {
                let v = self.load(slot, state, src, off, size, false)?;
                self.set(state, dst, v);
            }
            Insn::Store { size, dst, off, src } => {
                let v = self.operand(slot, state, src);
                self.store_insn(slot, state, dst, off, size, v)?;
            }
            Insn::StoreRelease { size, dst, src, off } => {
                let v = self.get(state, src);
                self.store_insn(slot, state, dst, off, size, v)?;
            }
            Insn::Atomic { op, fetch, size, dst, src, off } => {
                self.atomic(slot, state, op, fetch, size, (dst, src, off))?;
            }
            Insn::AddrSpaceCast { .. } => return Err(ProofError::new("arenas are not modelled")),
            Insn::LegacyLoad { size, mode, imm } => return self.legacy_load(state, size, mode, imm),
            Insn::MayGoto { off } => {
                // Nobody knows when the budget is spent, but the n-th test is the same in both.
                let before = state.chain(&mut self.w.terms, EventChain::Budget);
                let spent = self.w.terms.app("budget is spent", &[before], Sort::Bool);
                let after = self.w.terms.app("budget after", &[before], Sort::Token);
                state.chains.insert(EventChain::Budget, after);
                return Ok(self.fork(slot, state, spent, None, off));
            }
            Insn::Jump { off, .. } => {
                let target = (slot + insn.slots()) as i64 + i64::from(off);
                return Ok(ControlTransfer::Branch(vec![(target as usize, state.clone())]));
            }
            Insn::Branch { width, cond, dst, src, off } => {
                let (a, b) = (self.get(state, dst), self.operand(slot, state, src));
                return self.branch(slot, state, cond, width, (a, b), off);
            }
            Insn::Call(callee) => return self.call(slot, state, callee),
            Insn::Exit => return Ok(ControlTransfer::Return),
        }
        Ok(ControlTransfer::Fall)
    }

    fn branch(
        &mut self,
        slot: usize,
        state: &SymbolicState,
        cond: Cond,
        width: Width,
        (a, b): (ValueId, ValueId),
        off: i16,
    ) -> Result<ControlTransfer, ProofError> {
        let taken = self.w.values.compare(&mut self.w.terms, cond, width, a, b).ok_or_else(|| {
            ProofError::new(format!("the branch at slot {slot} compares what is not modelled"))
        })?;
        let test = self.test(cond, width, a, b);
        Ok(self.fork(slot, state, taken, test, off))
    }

    /// A comparison of a number with a constant.
    fn test(&mut self, cond: Cond, width: Width, a: ValueId, b: ValueId) -> Option<RangeTest> {
        let (ValueKind::Number(a), ValueKind::Number(b)) = (self.w.values.kind(a), self.w.values.kind(b))
        else {
            return None;
        };
        let bits = if width == Width::W64 { 64 } else { 32 };
        let k = self.w.terms.value(b)? & mask(bits);
        let number = self.w.terms.extract(a, bits - 1, 0);
        RangeTest::new(&mut self.w.terms, cond, number, k)
    }

    /// Both successors of a branch, as far as they can be reached.
    fn fork(
        &mut self,
        slot: usize,
        state: &SymbolicState,
        taken: TermId,
        test: Option<RangeTest>,
        off: i16,
    ) -> ControlTransfer {
        let target = ((slot + 1) as i64 + i64::from(off)) as usize;
        let taken = state.ranges.settle(&mut self.w.terms, taken);
        if let Some(taken) = test.as_ref().and_then(|test| state.ranges.decide(test)) {
            return ControlTransfer::Branch(vec![(if taken { target } else { slot + 1 }, state.clone())]);
        }
        let mut out = Vec::with_capacity(2);
        let mut yes = state.clone();
        if yes.assume(&mut self.w.terms, taken) {
            yes.ranges.assume_literals(&mut self.w.terms, taken);
            if let Some(test) = &test {
                yes.ranges.assume(test, true);
            }
            out.push((target, yes));
        }
        let opposite = self.w.terms.not(taken);
        let mut no = state.clone();
        if no.assume(&mut self.w.terms, opposite) {
            no.ranges.assume_literals(&mut self.w.terms, opposite);
            if let Some(test) = &test {
                no.ranges.assume(test, false);
            }
            out.push((slot + 1, no));
        }
        if out.is_empty() {
            return ControlTransfer::Dead;
        }
        // Two edges to one place are one state.
        if out.len() == 2 && out[0].0 == out[1].0 {
            return ControlTransfer::Branch(vec![(target, state.clone())]);
        }
        ControlTransfer::Branch(out)
    }

    /// A load from the packet through the kernel: beyond the packet's end the program ends with 0. The loaded
    /// value depends only on the packet, its length, its linear part, and the offset.
    fn legacy_load(
        &mut self,
        state: &mut SymbolicState,
        size: Size,
        mode: LegacyMode,
        imm: i32,
    ) -> Result<ControlTransfer, ProofError> {
        if !state.saved.is_empty() {
            return Err(ProofError::new("a packet load in a function that was called is not modelled"));
        }
        let mut offset = self.w.terms.constant(32, u64::from(imm as u32));
        if let LegacyMode::Ind(r) = mode {
            let v = self.get(state, r);
            let t = self.w.values.numeric(&mut self.w.terms, v);
            let t = t.ok_or_else(|| ProofError::new("a packet load at an offset that is not defined"))?;
            let low = self.w.terms.extract(t, 31, 0);
            offset = semantics::Domain::prim(&mut self.w.terms, Prim::Add, 32, &offset, &low);
        }
        let mut inputs = vec![offset, state.length, state.metadata];
        for space in [MemorySpace::Packet, MemorySpace::Context].map(|s| self.memory_of(s)) {
            inputs.push(state.memory(&mut self.w.terms, space));
        }
        for t in &mut inputs {
            *t = self.w.terms.under(*t, state.path);
        }
        let within = self.w.terms.app(&format!("packet load {size:?} within"), &inputs, Sort::Bool);
        let mut outside = state.clone();
        let beyond = self.w.terms.not(within);
        if outside.assume(&mut self.w.terms, beyond) {
            let zero = self.w.terms.constant(64, 0);
            outside.regs[0] = self.w.values.number(zero);
            self.end(outside);
        }
        if !state.assume(&mut self.w.terms, within) {
            return Ok(ControlTransfer::Dead);
        }
        let bits = size.bits();
        let loaded = self.w.terms.app(&format!("packet load {size:?}"), &inputs, Sort::Bits(bits as u8));
        let loaded = self.w.terms.zero_extend_to(loaded, 64);
        let undefined = self.w.values.undefined();
        state.regs[1..6].fill(undefined);
        state.regs[0] = self.w.values.number(loaded);
        Ok(ControlTransfer::Fall)
    }

    fn call(
        &mut self,
        slot: usize,
        state: &mut SymbolicState,
        callee: Callee,
    ) -> Result<ControlTransfer, ProofError> {
        match callee {
            Callee::Local(off) => {
                let target = (slot as i64 + 1 + i64::from(off)) as usize;
                return self.enter(target, state);
            }
            Callee::Helper(id) => {
                if let Some(InsnReference::Extern(name)) = self.p.targets.get(&slot).cloned() {
                    self.kfunc(state, &name)?;
                } else {
                    self.helper(state, id)?;
                }
            }
            Callee::Kfunc { btf_id, .. } => {
                let name = match self.p.targets.get(&slot) {
                    Some(InsnReference::Extern(name)) => name.clone(),
                    _ => format!("kernel function {btf_id}"),
                };
                self.kfunc(state, &name)?;
            }
            Callee::Register(_) => return Err(ProofError::new("calls through registers are not modelled")),
        }
        Ok(ControlTransfer::Fall)
    }

    /// Makes the initial state of a function of the program.
    pub(crate) fn enter(
        &mut self,
        target: usize,
        state: &mut SymbolicState,
    ) -> Result<ControlTransfer, ProofError> {
        let depth = state.frames.len();
        if depth >= MAX_FRAMES {
            return Err(ProofError::new("calls nest too deep"));
        }
        state.saved.push([state.regs[6], state.regs[7], state.regs[8], state.regs[9]]);
        state.frames.push(Rc::default());
        let undefined = self.w.values.undefined();
        state.regs[0] = undefined;
        state.regs[6..10].fill(undefined);
        let zero = self.w.terms.constant(64, 0);
        state.regs[10] = self.w.values.pointer(PointerRegion::Stack(depth as u8), zero);
        Ok(ControlTransfer::Enter(target))
    }

    pub(crate) fn get(&mut self, state: &SymbolicState, reg: Reg) -> ValueId {
        let v = state.regs[reg.index()];
        let v = self.w.values.on_path(&mut self.w.terms, state.path, v);
        match self.w.values.kind(v) {
            ValueKind::Number(t) => {
                let t = state.ranges.put_in(&mut self.w.terms, t);
                self.w.values.number(t)
            }
            _ => v,
        }
    }

    pub(crate) fn set(&mut self, state: &mut SymbolicState, reg: Reg, v: ValueId) {
        state.regs[reg.index()] = v;
    }

    fn operand(&mut self, slot: usize, state: &SymbolicState, src: Operand) -> ValueId {
        match src {
            Operand::Reg(r) => self.get(state, r),
            Operand::Imm(imm) => {
                let t = match self.p.core.get(&slot) {
                    Some(core) => {
                        let low = self.w.terms.var(&core.name, Sort::Bits(32));
                        self.w.terms.sign_extend_to(low, 64)
                    }
                    None => semantics::immediate(&mut self.w.terms, imm),
                };
                self.w.values.number(t)
            }
        }
    }

    fn constant(&mut self, slot: usize, pseudo: Pseudo, imm: u64) -> Result<ValueId, ProofError> {
        let zero = self.w.terms.constant(64, 0);
        if let Some(target) = self.p.targets.get(&slot) {
            return Ok(match target.clone() {
                InsnReference::Map(map) => self.w.values.pointer(PointerRegion::Map(map), zero),
                InsnReference::Value(map, offset) => {
                    let offset = self.w.terms.constant(64, u64::from(offset));
                    let data = self.place(MemorySpace::Map(map), zero);
                    self.w.values.pointer(data, offset)
                }
                InsnReference::Extern(name) => {
                    let t = self.w.terms.var(&format!("extern {name}"), Sort::Bits(64));
                    self.w.values.number(t)
                }
            });
        }
        match pseudo {
            Pseudo::None => {
                let t = match self.p.core.get(&slot) {
                    Some(core) => self.w.terms.var(&core.name, Sort::Bits(64)),
                    None => self.w.terms.constant(64, imm),
                };
                Ok(self.w.values.number(t))
            }
            Pseudo::Func => {
                let target = slot as i64 + 1 + i64::from(imm as i32);
                Ok(self.w.values.pointer(PointerRegion::Func(target as u32), zero))
            }
            _ => Err(ProofError::new(format!("the constant at slot {slot} stands for something unnamed"))),
        }
    }
}
