//! Runs a program on terms: all paths at once, joined where they meet.
//!
//! Blocks are visited in reverse postorder, so that a block is entered once with the join of all that lead to it. A
//! jump backward puts a state at a block that comes earlier, which is visited next: loops are unrolled until no state
//! goes round again.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use millstream_isa::semantics;
use millstream_isa::{Callee, Cond, Insn, Operand, Pseudo, Reg, Width};
use rustc_hash::FxHashMap;

use crate::program::{MapInfo, Program, Target};
use crate::state::State;
use crate::term::{Sort, Terms};
use crate::value::{Region, Space, V, Values};
use crate::{Limits, Unknown};

/// Nested frames, as in the kernel.
const MAX_FRAMES: usize = 8;

/// What both programs of a proof share.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) terms: Terms,
    pub(crate) values: Values,
    pub(crate) maps: Vec<MapInfo>,
}

/// One run of one program.
pub(crate) struct Exec<'a> {
    pub(crate) w: &'a mut World,
    pub(crate) p: &'a Program,
    limits: &'a Limits,
    deadline: Instant,
    executed: u64,
    /// States in which the program ended: by leaving, or in another program.
    ended: Option<State>,
    orders: FxHashMap<usize, Rc<Order>>,
    /// Values that nothing is known of, so far.
    pub(crate) fresh: u32,
    /// Whose they are.
    pub(crate) side: char,
}

/// Where each block of a function stands in reverse postorder, by its first slot.
type Order = FxHashMap<usize, usize>;

/// What follows an instruction.
enum Next {
    Fall,
    /// To each of these, with what holds there.
    Branch(Vec<(usize, State)>),
    Return,
    /// Nothing: the path ends here.
    Dead,
}

impl<'a> Exec<'a> {
    /// The state after `p` has run, from the one that every program starts in.
    pub(crate) fn run(
        w: &'a mut World,
        p: &'a Program,
        limits: &'a Limits,
        deadline: Instant,
        side: char,
    ) -> Result<State, Unknown> {
        Exec::run_from(w, p, limits, deadline, side, |_, _| ())
    }

    /// The state after `p` has run, from that one changed by `begin`.
    pub(crate) fn run_from(
        w: &'a mut World,
        p: &'a Program,
        limits: &'a Limits,
        deadline: Instant,
        side: char,
        begin: impl FnOnce(&mut World, &mut State),
    ) -> Result<State, Unknown> {
        let mut exec = Exec {
            w,
            p,
            limits,
            deadline,
            executed: 0,
            ended: None,
            orders: FxHashMap::default(),
            fresh: 0,
            side,
        };
        let mut start = exec.start();
        begin(exec.w, &mut start);
        if let Some(state) = exec.function(0, start)? {
            exec.end(state);
        }
        if exec.w.terms.is_full() {
            return Err(Unknown::new("more terms than the limit"));
        }
        let ended = exec.ended.take().ok_or_else(|| Unknown::new("no path of the program ends"))?;
        // Where no path leads the two would be compared in nothing.
        match exec.w.terms.known(ended.path) {
            Some(true) => Ok(ended),
            _ => Err(Unknown::new("some paths of the program do not end")),
        }
    }

    fn start(&mut self) -> State {
        let (terms, values) = (&mut self.w.terms, &mut self.w.values);
        let path = terms.truth(true);
        let undefined = values.undefined();
        let zero = terms.constant(64, 0);
        let mut regs = [undefined; 11];
        regs[1] = values.pointer(Region::In(Space::Context, zero), zero);
        regs[10] = values.pointer(Region::Stack(0), zero);
        let short = terms.var("packet length", Sort::Bits(16));
        let length = terms.zero_extend_to(short, 64);
        let short = terms.var("metadata length", Sort::Bits(8));
        let metadata = terms.zero_extend_to(short, 64);
        State {
            path,
            regs,
            frames: vec![Rc::default()],
            memory: BTreeMap::new(),
            chains: BTreeMap::new(),
            length,
            metadata,
        }
    }

    /// A path that is over.
    pub(crate) fn end(&mut self, mut state: State) {
        state.frames.clear();
        let undefined = self.w.values.undefined();
        for r in 1..11 {
            state.regs[r] = undefined;
        }
        self.ended = Some(match self.ended.take() {
            None => state,
            Some(before) => before.join(&mut self.w.terms, &mut self.w.values, state),
        });
    }

    /// Runs the function at `entry`; gives the join of the states in which it returns.
    pub(crate) fn function(&mut self, entry: usize, state: State) -> Result<Option<State>, Unknown> {
        if state.frames.len() > MAX_FRAMES {
            return Err(Unknown::new("calls nest too deep"));
        }
        let order = self.order(entry)?;
        let mut waiting: BTreeMap<usize, (usize, State)> = BTreeMap::new();
        waiting.insert(order[&entry], (entry, state));
        let mut returned: Option<State> = None;
        while let Some((_, (slot, state))) = waiting.pop_first() {
            for (target, state) in self.block(slot, state, &order, &mut returned)? {
                let at = order[&target];
                let state = match waiting.remove(&at) {
                    None => state,
                    Some((_, before)) => before.join(&mut self.w.terms, &mut self.w.values, state),
                };
                waiting.insert(at, (target, state));
            }
        }
        Ok(returned)
    }

    /// Runs from `slot` to the end of its block.
    fn block(
        &mut self,
        mut slot: usize,
        mut state: State,
        order: &Order,
        returned: &mut Option<State>,
    ) -> Result<Vec<(usize, State)>, Unknown> {
        loop {
            let insn = self.insn(slot)?;
            self.executed += 1;
            if self.executed > self.limits.instructions {
                return Err(Unknown::new("more instructions on its paths than the limit"));
            }
            if self.w.terms.is_full() {
                return Err(Unknown::new("more terms than the limit"));
            }
            if self.executed.is_multiple_of(64) && Instant::now() >= self.deadline {
                return Err(Unknown::new("the time was over before all paths were"));
            }
            match self.step(slot, insn, &mut state)? {
                Next::Fall => {
                    slot += insn.slots();
                    if order.contains_key(&slot) {
                        return Ok(vec![(slot, state)]);
                    }
                }
                Next::Branch(targets) => return Ok(targets),
                Next::Dead => return Ok(Vec::new()),
                Next::Return => {
                    *returned = Some(match returned.take() {
                        None => state,
                        Some(before) => before.join(&mut self.w.terms, &mut self.w.values, state),
                    });
                    return Ok(Vec::new());
                }
            }
        }
    }

    fn insn(&self, slot: usize) -> Result<Insn, Unknown> {
        self.p
            .insns
            .get(slot)
            .copied()
            .flatten()
            .ok_or_else(|| Unknown::new(format!("no instruction at slot {slot}")))
    }

    /// Reverse postorder of the blocks of the function at `entry`.
    fn order(&mut self, entry: usize) -> Result<Rc<Order>, Unknown> {
        if let Some(order) = self.orders.get(&entry) {
            return Ok(order.clone());
        }
        // All slots that some jump leads to begin a block; so do those after a branch.
        let mut seen: FxHashMap<usize, bool> = FxHashMap::default();
        let mut leaders = vec![entry];
        let mut todo = vec![entry];
        while let Some(slot) = todo.pop() {
            if seen.insert(slot, true).is_some() {
                continue;
            }
            let (targets, jumps) = self.targets(slot)?;
            if jumps {
                leaders.extend(&targets);
            }
            todo.extend(targets);
        }
        let leader: std::collections::BTreeSet<usize> = leaders.into_iter().collect();
        let mut post = Vec::new();
        let mut visited = std::collections::BTreeSet::from([entry]);
        let mut stack = vec![(entry, self.leave(entry, &leader)?)];
        while let Some((block, targets)) = stack.last_mut() {
            match targets.pop() {
                Some(t) => {
                    if visited.insert(t) {
                        let next = self.leave(t, &leader)?;
                        stack.push((t, next));
                    }
                }
                None => {
                    post.push(*block);
                    stack.pop();
                }
            }
        }
        let order: Order = post.into_iter().rev().enumerate().map(|(at, slot)| (slot, at)).collect();
        let order = Rc::new(order);
        self.orders.insert(entry, order.clone());
        Ok(order)
    }

    /// Where the block at `slot` leads.
    fn leave(
        &self,
        mut slot: usize,
        leaders: &std::collections::BTreeSet<usize>,
    ) -> Result<Vec<usize>, Unknown> {
        loop {
            let (targets, jumps) = self.targets(slot)?;
            if jumps || targets.is_empty() {
                return Ok(targets);
            }
            slot = targets[0];
            if leaders.contains(&slot) {
                return Ok(vec![slot]);
            }
        }
    }

    /// What may follow a slot, and whether it is a jump.
    fn targets(&self, slot: usize) -> Result<(Vec<usize>, bool), Unknown> {
        let insn = self.insn(slot)?;
        let after = slot + insn.slots();
        let to = |off: i64| {
            usize::try_from(after as i64 + off)
                .map_err(|_| Unknown::new(format!("a jump out of the program at {slot}")))
        };
        Ok(match insn {
            Insn::Exit => (Vec::new(), true),
            Insn::Jump { off, .. } => (vec![to(i64::from(off))?], true),
            Insn::Branch { off, .. } | Insn::MayGoto { off } => (vec![after, to(i64::from(off))?], true),
            _ => (vec![after], false),
        })
    }

    fn step(&mut self, slot: usize, insn: Insn, state: &mut State) -> Result<Next, Unknown> {
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
                let f = move |t: &mut Terms, a| semantics::movsx(t, width, u32::from(bits), &a);
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
                let f = move |t: &mut Terms, a| semantics::swap(t, kind, u32::from(bits), &a);
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
            Insn::AddrSpaceCast { .. } => return Err(Unknown::new("arenas are not modelled")),
            Insn::LegacyLoad { .. } => return Err(Unknown::new("legacy packet loads are not modelled")),
            Insn::MayGoto { .. } => return Err(Unknown::new("may_goto is not modelled")),
            Insn::Jump { off, .. } => {
                let target = (slot + insn.slots()) as i64 + i64::from(off);
                return Ok(Next::Branch(vec![(target as usize, state.clone())]));
            }
            Insn::Branch { width, cond, dst, src, off } => {
                let (a, b) = (self.get(state, dst), self.operand(slot, state, src));
                return self.branch(slot, state, cond, width, (a, b), off);
            }
            Insn::Call(callee) => return self.call(slot, state, callee),
            Insn::Exit => return Ok(Next::Return),
        }
        Ok(Next::Fall)
    }

    fn branch(
        &mut self,
        slot: usize,
        state: &State,
        cond: Cond,
        width: Width,
        (a, b): (V, V),
        off: i16,
    ) -> Result<Next, Unknown> {
        let taken = self.w.values.compare(&mut self.w.terms, cond, width, a, b).ok_or_else(|| {
            Unknown::new(format!("the branch at slot {slot} compares what is not modelled"))
        })?;
        let target = ((slot + 1) as i64 + i64::from(off)) as usize;
        let mut out = Vec::with_capacity(2);
        let mut yes = state.clone();
        if yes.assume(&mut self.w.terms, taken) {
            out.push((target, yes));
        }
        let opposite = self.w.terms.not(taken);
        let mut no = state.clone();
        if no.assume(&mut self.w.terms, opposite) {
            out.push((slot + 1, no));
        }
        if out.is_empty() {
            return Ok(Next::Dead);
        }
        // Both ways to one place are one state.
        if out.len() == 2 && out[0].0 == out[1].0 {
            return Ok(Next::Branch(vec![(target, state.clone())]));
        }
        Ok(Next::Branch(out))
    }

    fn call(&mut self, slot: usize, state: &mut State, callee: Callee) -> Result<Next, Unknown> {
        match callee {
            Callee::Local(off) => {
                let target = (slot as i64 + 1 + i64::from(off)) as usize;
                return self.call_local(target, state);
            }
            Callee::Helper(id) => {
                if let Some(Target::Extern(name)) = self.p.targets.get(&slot).cloned() {
                    self.kfunc(state, &name)?;
                } else {
                    self.helper(state, id)?;
                }
            }
            Callee::Kfunc { btf_id, .. } => {
                let name = match self.p.targets.get(&slot) {
                    Some(Target::Extern(name)) => name.clone(),
                    _ => format!("kernel function {btf_id}"),
                };
                self.kfunc(state, &name)?;
            }
            Callee::Register(_) => return Err(Unknown::new("calls through registers are not modelled")),
        }
        Ok(Next::Fall)
    }

    fn call_local(&mut self, target: usize, state: &mut State) -> Result<Next, Unknown> {
        let saved: [V; 4] = [state.regs[6], state.regs[7], state.regs[8], state.regs[9]];
        let pointer = state.regs[10];
        let mut inner = state.clone();
        let depth = inner.frames.len();
        inner.frames.push(Rc::default());
        let undefined = self.w.values.undefined();
        inner.regs[0] = undefined;
        for r in 6..10 {
            inner.regs[r] = undefined;
        }
        let zero = self.w.terms.constant(64, 0);
        inner.regs[10] = self.w.values.pointer(Region::Stack(depth as u8), zero);
        let Some(mut after) = self.function(target, inner)? else { return Ok(Next::Dead) };
        after.frames.truncate(depth);
        after.regs[1..6].fill(undefined);
        after.regs[6..10].copy_from_slice(&saved);
        after.regs[10] = pointer;
        *state = after;
        Ok(Next::Fall)
    }

    pub(crate) fn get(&mut self, state: &State, reg: Reg) -> V {
        let v = state.regs[reg.index()];
        self.w.values.on_path(&mut self.w.terms, state.path, v)
    }

    pub(crate) fn set(&mut self, state: &mut State, reg: Reg, v: V) {
        state.regs[reg.index()] = v;
    }

    fn operand(&mut self, slot: usize, state: &State, src: Operand) -> V {
        match src {
            Operand::Reg(r) => self.get(state, r),
            Operand::Imm(imm) => {
                let t = match self.p.core.get(&slot) {
                    Some(name) => {
                        let low = self.w.terms.var(name, Sort::Bits(32));
                        self.w.terms.sign_extend_to(low, 64)
                    }
                    None => semantics::immediate(&mut self.w.terms, imm),
                };
                self.w.values.number(t)
            }
        }
    }

    fn constant(&mut self, slot: usize, pseudo: Pseudo, imm: u64) -> Result<V, Unknown> {
        let zero = self.w.terms.constant(64, 0);
        if let Some(target) = self.p.targets.get(&slot) {
            return Ok(match target.clone() {
                Target::Map(map) => self.w.values.pointer(Region::Map(map), zero),
                Target::Value(map, offset) => {
                    let offset = self.w.terms.constant(64, u64::from(offset));
                    self.w.values.pointer(Region::In(Space::Map(map), zero), offset)
                }
                Target::Extern(name) => {
                    let t = self.w.terms.var(&format!("extern {name}"), Sort::Bits(64));
                    self.w.values.number(t)
                }
            });
        }
        match pseudo {
            Pseudo::None => {
                let t = match self.p.core.get(&slot) {
                    Some(name) => self.w.terms.var(name, Sort::Bits(64)),
                    None => self.w.terms.constant(64, imm),
                };
                Ok(self.w.values.number(t))
            }
            Pseudo::Func => {
                let target = slot as i64 + 1 + i64::from(imm as i32);
                Ok(self.w.values.pointer(Region::Func(target as u32), zero))
            }
            _ => Err(Unknown::new(format!("the constant at slot {slot} stands for something unnamed"))),
        }
    }
}
