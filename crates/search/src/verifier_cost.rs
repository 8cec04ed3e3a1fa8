//! Estimate of the effort of the kernel's verifier for a program.
//!
//! The program is walked path by path as in the verifier: the fall-through successor first, static functions
//! in the context of each caller, global ones once. A path ends early if an explored state covers the new
//! one. For that, numbers count only if an address, a size or a decided branch depends on them; these places
//! are found in rounds.
//!
//! The walk knows less than the verifier (bounds of the packet, types of kernel objects, callbacks), so the
//! number is not a prediction. It is meant for comparison with that of another form of the same program.
//!
//! Source: `is_state_visited`, `states_equal` and `mark_chain_precision` of `kernel/bpf/verifier.c`.

use std::collections::BTreeSet;
use std::rc::Rc;

use millstream_isa::absint::Scalar;
use millstream_isa::helpers::Helper;
use millstream_isa::{AluOp, AtomicOp, Callee, Cond, Insn, LegacyMode, Operand, Reg, Size, Width};
use millstream_object::{FuncId, Linkage, Object, RelocKind};
use millstream_prove::window::AddressSpace;
use rustc_hash::FxHashMap;

use crate::code::{CodeLine, FunctionCode};
use crate::facts::{AbstractState, FunctionContext, RegisterFact, RegisterKind};
use crate::transfer;

/// Rounds in which the numbers that matter are found.
const ROUNDS: usize = 3;
/// Most nested frames of calls.
const FRAMES: usize = 8;
/// Jumps and instructions after which a state is kept, outside of loops and in them.
const SPACING: [(u64, u64); 2] = [(2, 8), (20, 100)];

/// Registers that a call changes.
const SCRATCH: [Reg; 6] = [Reg::R0, Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5];

/// Effort of verification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerificationEffort {
    /// Instructions visited; at least, if the estimate is not certain.
    pub instructions: u64,
    /// True if the walk was complete and met nothing that it does not model.
    pub certain: bool,
}

/// Estimates the effort of verifying a program and all functions that it calls; gives up after `most`
/// instructions.
pub fn verification_effort(object: &Object, program: FuncId, most: u64) -> VerificationEffort {
    let mut walker = VerifierWalker {
        object,
        bodies: FxHashMap::default(),
        marks: BTreeSet::new(),
        globals: BTreeSet::new(),
        run: WalkState::default(),
        most,
    };
    let mut effort = walker.settled(program.0);
    let mut done = BTreeSet::from([program.0]);
    while let Some(next) = walker.globals.iter().copied().find(|f| !done.contains(f)) {
        done.insert(next);
        let part = walker.settled(next);
        effort.instructions += part.instructions;
        effort.certain &= part.certain;
    }
    effort
}

/// Live registers and stack slots, one bit each, and those whose exact number counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct LivePrecision {
    regs: u16,
    exact_regs: u16,
    slots: u64,
    exact_slots: u64,
}

impl LivePrecision {
    fn join(&mut self, other: LivePrecision) {
        self.regs |= other.regs;
        self.exact_regs |= other.exact_regs;
        self.slots |= other.slots;
        self.exact_slots |= other.exact_slots;
    }

    fn read(&mut self, r: Reg, exact: bool) {
        self.regs |= 1 << r.index();
        self.exact_regs |= u16::from(exact) << r.index();
    }

    fn read_operand(&mut self, o: Operand, exact: bool) {
        if let Operand::Reg(r) = o {
            self.read(r, exact);
        }
    }

    /// Forgets a register that is written; returns true if its exact number counted.
    fn write(&mut self, r: Reg) -> bool {
        let bit = 1 << r.index();
        let exact = self.exact_regs & bit != 0;
        self.regs &= !bit;
        self.exact_regs &= !bit;
        exact
    }
}

/// The bit of the stack slot at an offset from the frame's upper end.
fn slot_bit(off: i64) -> u64 {
    if (-512..0).contains(&off) { 1 << ((-off - 1) / 8) } else { 0 }
}

/// A function of the program.
struct WalkedFunction {
    code: FunctionCode,
    world: FunctionContext,
    /// Needs at the beginning of each block.
    needs: Vec<LivePrecision>,
    /// True if it passes functions to others, which call them back.
    callbacks: bool,
}

/// A function on a path, with the place of its next instruction.
#[derive(Clone)]
struct WalkFrame {
    func: u32,
    block: usize,
    line: usize,
    state: AbstractState,
}

/// A path, and the last state that was kept on it.
struct VerifierPath {
    frames: Vec<WalkFrame>,
    parent: Option<usize>,
}

/// A kept state.
struct ExploredState {
    frames: Vec<WalkFrame>,
    parent: Option<usize>,
    /// Unfinished paths from it.
    branches: u32,
    hits: u32,
    misses: u32,
}

/// Location of a kept state: the functions on the path and the places in them.
type PrunePoint = Vec<(u32, usize, usize)>;

/// One walk.
#[derive(Default)]
struct WalkState {
    kept: Vec<ExploredState>,
    at: FxHashMap<PrunePoint, Vec<usize>>,
    pending: Vec<VerifierPath>,
    instructions: u64,
    jumps: u64,
    /// Numbers of instructions and jumps when the last state was kept.
    last: (u64, u64),
    names: u32,
    uncertain: bool,
}

struct VerifierWalker<'a> {
    object: &'a Object,
    bodies: FxHashMap<u32, Option<Rc<WalkedFunction>>>,
    /// Lines of functions at which the exact number in a register counts.
    marks: BTreeSet<(u32, u32, u8)>,
    /// Global functions that are called.
    globals: BTreeSet<u32>,
    run: WalkState,
    most: u64,
}

impl VerifierWalker<'_> {
    /// The effort for one function with its callees, after the numbers that matter have been found.
    fn settled(&mut self, func: u32) -> VerificationEffort {
        let mut effort = VerificationEffort { instructions: 0, certain: false };
        for _ in 0..ROUNDS {
            let known = self.marks.len();
            self.bodies.clear();
            self.run = WalkState::default();
            self.walk(func);
            effort = VerificationEffort { instructions: self.run.instructions, certain: !self.run.uncertain };
            if self.marks.len() == known || self.run.instructions > self.most {
                break;
            }
        }
        effort
    }

    fn body(&mut self, func: u32) -> Option<Rc<WalkedFunction>> {
        if let Some(body) = self.bodies.get(&func) {
            return body.clone();
        }
        let function = self.object.functions.get(func as usize);
        let body = function.and_then(FunctionCode::new).map(|code| {
            let world = FunctionContext::new(self.object, FuncId(func));
            let callbacks = code.lines().any(|l| matches!(l.reloc, Some(RelocKind::FuncAddr(_))));
            let needs = needs(&code, func, &self.marks);
            Rc::new(WalkedFunction { code, world, needs, callbacks })
        });
        self.bodies.insert(func, body.clone());
        body
    }

    fn walk(&mut self, func: u32) {
        let Some(body) = self.body(func) else {
            self.run.uncertain = true;
            return;
        };
        let state = AbstractState::entry(&body.world);
        let frames = vec![WalkFrame { func, block: 0, line: 0, state }];
        self.run.names = 1 << 8;
        self.run.pending.push(VerifierPath { frames, parent: None });
        while let Some(mut path) = self.run.pending.pop() {
            self.follow(&mut path);
            self.run.end(path.parent);
            if self.run.instructions > self.most {
                self.run.uncertain = true;
                return;
            }
        }
    }

    /// Walks a path to its end.
    fn follow(&mut self, path: &mut VerifierPath) {
        loop {
            let Some(frame) = path.frames.last() else { return };
            let (func, block, at) = (frame.func, frame.block, frame.line);
            let Some(body) = self.body(func).filter(|b| block < b.code.blocks.len()) else {
                self.run.uncertain = true;
                return;
            };
            self.run.uncertain |= body.callbacks;
            if at == 0
                && body.code.blocks[block].before.len() > usize::from(block > 0)
                && self.is_covered(path)
            {
                return;
            }
            let Some(frame) = path.frames.last_mut() else { return };
            let Some(line) = body.code.blocks[block].lines.get(at) else {
                (frame.block, frame.line) = (block + 1, 0);
                continue;
            };
            self.run.instructions += 1;
            if self.run.instructions > self.most {
                return;
            }
            let number = body.code.blocks[block].first + at as u32;
            self.run.names += 1;
            let name = self.run.names & 0x1fff_ffff;
            match line.insn {
                Insn::Exit => {
                    let Some(done) = path.frames.pop() else { return };
                    let Some(caller) = path.frames.last_mut() else { return };
                    transfer::apply_return(&mut caller.state, done.state.get(Reg::R0));
                }
                Insn::Call(callee) => match (line.reloc, callee) {
                    (Some(RelocKind::Call(to)), _) if self.is_static(to) => {
                        frame.line += 1;
                        if !self.enter(path, to) {
                            return;
                        }
                    }
                    (reloc, callee) => {
                        if let Some(RelocKind::Call(to)) = reloc {
                            self.globals.insert(to.0);
                        }
                        let sized = matches!(callee, Callee::Helper(_));
                        for r in [Reg::R2, Reg::R3, Reg::R4, Reg::R5].into_iter().filter(|_| sized) {
                            if matches!(frame.state.get(r).kind, RegisterKind::Number(_)) {
                                self.marks.insert((func, number, r.index() as u8));
                            }
                        }
                        transfer::step(&mut frame.state, line, &body.world, name);
                        frame.line += 1;
                    }
                },
                Insn::Jump { .. } => {
                    self.run.jumps += 1;
                    (frame.block, frame.line) = (line.target.unwrap_or(usize::MAX), 0);
                }
                Insn::Branch { .. } | Insn::MayGoto { .. } => {
                    self.run.jumps += 1;
                    self.run.uncertain |= matches!(line.insn, Insn::MayGoto { .. });
                    if !self.branch(path, line, number) {
                        return;
                    }
                }
                _ => {
                    self.arithmetic(&mut frame.state, line, func, number);
                    transfer::step(&mut frame.state, line, &body.world, name);
                    frame.line += 1;
                }
            }
        }
    }

    fn is_static(&self, func: FuncId) -> bool {
        self.object.functions.get(func.index()).is_some_and(|f| f.linkage == Linkage::Static)
    }

    /// Enters a function; `false` if calls nest too deep.
    fn enter(&mut self, path: &mut VerifierPath, to: FuncId) -> bool {
        let (Some(body), Some(caller)) = (self.body(to.0), path.frames.last()) else {
            self.run.uncertain = true;
            return false;
        };
        let mut state = AbstractState::entry(&body.world);
        for (own, passed) in state.regs[1..6].iter_mut().zip(&caller.state.regs[1..6]) {
            // An address in another frame is no place in this one.
            let foreign =
                matches!(passed.kind, RegisterKind::Address(AddressSpace::Stack, _) | RegisterKind::Frame);
            *own = if foreign { RegisterFact { kind: RegisterKind::Other, ..*passed } } else { *passed };
        }
        if path.frames.len() == FRAMES {
            self.run.uncertain = true;
            return false;
        }
        path.frames.push(WalkFrame { func: to.0, block: 0, line: 0, state });
        true
    }

    /// Treats operands of unknown kind as numbers, and marks the numbers that are added to addresses.
    fn arithmetic(&mut self, state: &mut AbstractState, line: &CodeLine, func: u32, number: u32) {
        let Insn::Alu { width, op, dst, src } = line.insn else { return };
        let sum = width == Width::W64 && matches!(op, AluOp::Add | AluOp::Sub);
        let is_address = |f: RegisterFact| matches!(f.kind, RegisterKind::Address(..) | RegisterKind::Frame);
        let (a, b) = (state.get(dst), transfer::operand(state, src));
        if !sum {
            let numbers = [Some(dst), if let Operand::Reg(r) = src { Some(r) } else { None }];
            for r in numbers.into_iter().flatten() {
                as_number(state, r);
            }
        } else if is_address(a) {
            if let (Operand::Reg(r), RegisterKind::Number(_)) = (src, b.kind) {
                self.marks.insert((func, number, r.index() as u8));
            }
        } else if is_address(b) && matches!(a.kind, RegisterKind::Number(_)) {
            self.marks.insert((func, number, dst.index() as u8));
        }
    }

    /// Continues after a branch, and queues its other successor; `false` if neither can be taken.
    fn branch(&mut self, path: &mut VerifierPath, line: &CodeLine, number: u32) -> bool {
        let Some(frame) = path.frames.last_mut() else { return false };
        let target = line.target.unwrap_or(usize::MAX);
        let mut sides = [Some(frame.state.clone()), Some(frame.state.clone())];
        if let Insn::Branch { cond, width, dst, src, .. } = line.insn {
            let (a, b) = (frame.state.get(dst), transfer::operand(&frame.state, src));
            let constant = if let RegisterKind::Number(x) = b.kind { x.as_constant() } else { None };
            let equality = matches!(cond, Cond::Eq | Cond::Ne);
            let is_address = matches!(a.kind, RegisterKind::Address(..) | RegisterKind::Frame);
            if is_address && constant == Some(0) && equality && width == Width::W64 {
                // An address is not null, which decides the test.
                sides[usize::from(cond == Cond::Ne)] = None;
            } else {
                for (n, side) in sides.iter_mut().enumerate() {
                    let Some(state) = side else { continue };
                    if constant.is_some_and(|c| c != 0) || !equality {
                        as_number(state, dst);
                        if let Operand::Reg(r) = src {
                            as_number(state, r);
                        }
                    }
                    if transfer::branch(state, &line.insn, n == 0).is_none() {
                        *side = None;
                    }
                }
                if sides.iter().flatten().count() == 1 {
                    let func = frame.func;
                    self.marks.insert((func, number, dst.index() as u8));
                    if let Operand::Reg(r) = src {
                        self.marks.insert((func, number, r.index() as u8));
                    }
                }
            }
        }
        let [taken, other] = sides;
        let through = (frame.block + 1, 0);
        match (taken, other) {
            (Some(taken), Some(other)) => {
                let mut frames = path.frames.clone();
                if let Some(last) = frames.last_mut() {
                    (last.block, last.line, last.state) = (target, 0, taken);
                }
                if let Some(parent) = path.parent {
                    self.run.kept[parent].branches += 1;
                }
                self.run.pending.push(VerifierPath { frames, parent: path.parent });
                if let Some(last) = path.frames.last_mut() {
                    ((last.block, last.line), last.state) = (through, other);
                }
            }
            (Some(taken), None) => (frame.block, frame.line, frame.state) = (target, 0, taken),
            (None, Some(other)) => ((frame.block, frame.line), frame.state) = (through, other),
            (None, None) => return false,
        }
        true
    }

    /// Returns true if an explored state covers this one; if not, this one may be kept.
    fn is_covered(&mut self, path: &mut VerifierPath) -> bool {
        let place: PrunePoint = path.frames.iter().map(|f| (f.func, f.block, f.line)).collect();
        let bodies: Vec<Rc<WalkedFunction>> = path.frames.iter().filter_map(|f| self.body(f.func)).collect();
        let mut looping = false;
        let known = self.run.at.entry(place.clone()).or_default();
        let mut covered = false;
        let kept = &mut self.run.kept;
        let mut n = known.len();
        while n > 0 && !covered {
            n -= 1;
            let state = &mut kept[known[n]];
            if state.branches > 0 {
                looping = true;
                continue;
            }
            covered = covers(&state.frames, &path.frames, &bodies);
            if covered {
                state.hits += 1;
            } else {
                state.misses += 1;
                if state.misses > state.hits * 3 + 3 {
                    known.remove(n);
                }
            }
        }
        if covered {
            return true;
        }
        let (jumps, instructions) = SPACING[usize::from(looping)];
        let (last_instructions, last_jumps) = self.run.last;
        let far =
            self.run.jumps - last_jumps >= jumps && self.run.instructions - last_instructions >= instructions;
        if far || looping && self.run.instructions - last_instructions >= instructions {
            self.run.last = (self.run.instructions, self.run.jumps);
            known.push(kept.len());
            kept.push(ExploredState {
                frames: path.frames.clone(),
                parent: path.parent,
                branches: 1,
                hits: 0,
                misses: 0,
            });
            path.parent = Some(kept.len() - 1);
        }
        false
    }
}

impl WalkState {
    /// Ends a path that began at a kept state.
    fn end(&mut self, parent: Option<usize>) {
        let mut at = parent;
        while let Some(n) = at {
            self.kept[n].branches -= 1;
            if self.kept[n].branches > 0 {
                return;
            }
            at = self.kept[n].parent;
        }
    }
}

/// Treats a register of unknown kind as a number.
fn as_number(state: &mut AbstractState, r: Reg) {
    let fact = &mut state.regs[r.index()];
    if fact.kind == RegisterKind::Other {
        fact.kind = RegisterKind::Number(Scalar::UNKNOWN);
    }
}

/// Returns true if everything that can happen from a state can happen from an older one at the same place.
fn covers(old: &[WalkFrame], new: &[WalkFrame], bodies: &[Rc<WalkedFunction>]) -> bool {
    let mut names: FxHashMap<u32, u32> = FxHashMap::default();
    let innermost = new.len() - 1;
    old.iter().zip(new).zip(bodies).enumerate().all(|(depth, ((old, new), body))| {
        let mut needs = body.needs[new.block.min(body.needs.len() - 1)];
        if depth < innermost {
            // Registers live after a call are at most those that outlive it.
            needs.regs = 0b111_1100_0000;
            needs.slots = u64::MAX;
        }
        let (old, new) = (&old.state, &new.state);
        let regs = (0..11).filter(|n| needs.regs >> n & 1 == 1);
        let mut same = |a: RegisterFact, b: RegisterFact, exact: bool| is_within(a, b, exact, &mut names);
        let whole = |n: usize, same: &mut dyn FnMut(RegisterFact, RegisterFact, bool) -> bool| {
            let off = -8 * (n as i16 + 1);
            let exact = needs.exact_slots >> n & 1 == 1;
            match (old.spills.get(&off), new.spills.get(&off)) {
                (Some(a), Some(b)) => same(*a, *b, exact),
                (Some(a), None) => !exact && matches!(a.kind, RegisterKind::Number(_) | RegisterKind::Other),
                (None, _) => {
                    let from = (512 + i32::from(off)) as usize;
                    !exact || old.stack[from..from + 8] == new.stack[from..from + 8]
                }
            }
        };
        regs.into_iter().all(|n| same(old.regs[n], new.regs[n], needs.exact_regs >> n & 1 == 1))
            && (0..64).filter(|n| needs.slots >> n & 1 == 1).all(|n| whole(n, &mut same))
    })
}

fn is_within(old: RegisterFact, new: RegisterFact, exact: bool, names: &mut FxHashMap<u32, u32>) -> bool {
    let mut named = || *names.entry(old.id).or_insert(new.id) == new.id;
    match (old.kind, new.kind) {
        (RegisterKind::Uninit, _)
        | (RegisterKind::Frame, RegisterKind::Frame)
        | (RegisterKind::Other, RegisterKind::Other) => true,
        (RegisterKind::Number(a), RegisterKind::Number(b)) => !exact || is_subset(&b, &a),
        (RegisterKind::Number(_), RegisterKind::Other) | (RegisterKind::Other, RegisterKind::Number(_)) => {
            !exact
        }
        (RegisterKind::Address(s, x), RegisterKind::Address(t, y)) => s == t && x == y && named(),
        (RegisterKind::Maybe(s), RegisterKind::Maybe(t)) => s == t && named(),
        (RegisterKind::Map(a), RegisterKind::Map(b)) => a == b,
        _ => false,
    }
}

fn is_subset(a: &Scalar, b: &Scalar) -> bool {
    a.join(b) == *b
}

/// Needs at the beginning of each block, by a backward dataflow.
fn needs(code: &FunctionCode, func: u32, marks: &BTreeSet<(u32, u32, u8)>) -> Vec<LivePrecision> {
    let escaping = escaping_slots(code);
    let mut at = vec![LivePrecision::default(); code.blocks.len()];
    loop {
        let mut changed = false;
        for n in (0..code.blocks.len()).rev() {
            let block = &code.blocks[n];
            let mut now = LivePrecision { slots: escaping, ..LivePrecision::default() };
            block.next.iter().for_each(|&to| now.join(at[to]));
            for (i, line) in block.lines.iter().enumerate().rev() {
                before(line.insn, &mut now);
                let number = block.first + i as u32;
                for (.., r) in marks.range((func, number, 0)..=(func, number, u8::MAX)) {
                    now.exact_regs |= 1 << r;
                }
            }
            now.join(at[n]);
            changed |= now != at[n];
            at[n] = now;
        }
        if !changed {
            return at;
        }
    }
}

/// Slots whose addresses escape, so that they may be read elsewhere.
fn escaping_slots(code: &FunctionCode) -> u64 {
    let mut slots = 0;
    for block in &code.blocks {
        let mut copies = [false; 11];
        for line in &block.lines {
            match line.insn {
                Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) } => {
                    copies[dst.index()] = src == Reg::R10 || copies[src.index()];
                }
                Insn::Alu { op: AluOp::Add, dst, src: Operand::Imm(k), .. } if copies[dst.index()] => {
                    (0..8).for_each(|n| slots |= slot_bit(i64::from(k) + 8 * n));
                    copies[dst.index()] = false;
                }
                _ => {}
            }
        }
    }
    slots
}

/// Needs before an instruction, from those after it.
fn before(insn: Insn, needs: &mut LivePrecision) {
    match insn {
        Insn::Alu { dst, src, .. } => {
            let exact = needs.write(dst);
            needs.read(dst, exact);
            needs.read_operand(src, exact);
        }
        Insn::Mov { dst, src, .. } => {
            let exact = needs.write(dst);
            needs.read_operand(src, exact);
        }
        Insn::MovSx { dst, src, .. } | Insn::AddrSpaceCast { dst, src, .. } => {
            let exact = needs.write(dst);
            needs.read(src, exact);
        }
        Insn::Neg { dst, .. } | Insn::Swap { dst, .. } => {
            let exact = needs.write(dst);
            needs.read(dst, exact);
        }
        Insn::LoadImm64 { dst, .. } => _ = needs.write(dst),
        Insn::Load { dst, src, off, .. } | Insn::LoadAcquire { dst, src, off, .. } => {
            let exact = needs.write(dst);
            needs.read(src, false);
            if src == Reg::R10 {
                needs.slots |= slot_bit(off.into());
                needs.exact_slots |= if exact { slot_bit(off.into()) } else { 0 };
            }
        }
        Insn::Store { size, dst, off, src } => {
            let bit = if dst == Reg::R10 { slot_bit(off.into()) } else { 0 };
            let exact = needs.exact_slots & bit != 0;
            if size == Size::Dw {
                needs.slots &= !bit;
                needs.exact_slots &= !bit;
            }
            needs.read(dst, false);
            needs.read_operand(src, exact);
        }
        Insn::StoreRelease { dst, src, .. } => {
            needs.read(dst, false);
            needs.read(src, false);
        }
        Insn::Atomic { op, fetch, dst, src, .. } => {
            if op == AtomicOp::CmpXchg {
                needs.write(Reg::R0);
                needs.read(Reg::R0, false);
            } else if fetch {
                needs.write(src);
            }
            needs.read(dst, false);
            needs.read(src, false);
        }
        Insn::LegacyLoad { mode, .. } => {
            (0..6).for_each(|n| _ = needs.write(SCRATCH[n]));
            needs.read(Reg::R6, false);
            if let LegacyMode::Ind(r) = mode {
                needs.read(r, false);
            }
        }
        Insn::Call(callee) => {
            (0..6).for_each(|n| _ = needs.write(SCRATCH[n]));
            let helper = if let Callee::Helper(id) = callee { Helper::get(id) } else { None };
            let arguments = helper.map_or(5, |h| h.args.len());
            (1..=arguments.min(5)).for_each(|n| needs.read(SCRATCH[n], false));
        }
        Insn::Branch { dst, src, .. } => {
            needs.read(dst, false);
            needs.read_operand(src, false);
        }
        Insn::Exit => *needs = LivePrecision { regs: 1, ..LivePrecision::default() },
        Insn::Jump { .. } | Insn::MayGoto { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use millstream_isa::asm::assemble;
    use millstream_isa::{RawInsn, encode_all};
    use millstream_object::RawInput;

    use super::*;

    fn effort(text: &str) -> VerificationEffort {
        let insns = encode_all(&assemble(text).expect("it assembles"));
        let insns: Vec<u8> = insns.into_iter().flat_map(RawInsn::to_bytes).collect();
        let files = RawInput { insns: &insns, ..RawInput::default() };
        let object = Object::parse_raw("walk_xdp.insns", files, None).expect("a program");
        verification_effort(&object, FuncId(0), 10_000)
    }

    #[test]
    fn each_side_of_an_open_branch_is_walked() {
        let text = "call get_prandom_u32\n if r0 > 5 goto high\n r0 = 1\n exit\n high:\n r0 = 2\n exit";
        assert_eq!(effort(text), VerificationEffort { instructions: 6, certain: true });
        let decided = "r0 = 7\n if r0 > 5 goto high\n r0 = 1\n exit\n high:\n r0 = 2\n exit";
        assert_eq!(effort(decided), VerificationEffort { instructions: 4, certain: true });
    }

    #[test]
    fn loops_are_walked_round_by_round() {
        let text = "r1 = 0\n again:\n r1 += 1\n if r1 < 100 goto again\n r0 = 0\n exit";
        assert_eq!(effort(text), VerificationEffort { instructions: 203, certain: true });
        let endless =
            "call get_prandom_u32\n r6 = r0\n again:\n r6 += 1\n if r6 != 7 goto again\n r0 = 0\n exit";
        assert!(!effort(endless).certain);
    }

    /// Diamonds whose results nobody needs exactly are walked once; if an address depends on them, each way
    /// counts.
    #[test]
    fn ways_that_differ_in_nothing_that_matters_are_walked_once() {
        let diamond = |n: usize| {
            format!(
                "call get_prandom_u32\n if r0 > 5 goto other{n}\n r6 += {}\n other{n}:\n r6 += 0\n r6 += 0\n r6 += 0\n \
                 r6 += 0\n r6 += 0\n r6 += 0\n",
                1 << n
            )
        };
        let all: String = (0..8).map(diamond).collect();
        let without = effort(&format!("r6 = 0\n {all} r0 = 0\n exit"));
        let with = effort(&format!(
            "r6 = 0\n {all} r6 &= 7\n r1 = r10\n r1 += -8\n r1 += r6\n r2 = 0\n *(u8 *)(r1 +0) = r2\n r0 = 0\n exit"
        ));
        assert!(without.certain && with.certain);
        assert!(without.instructions < 300, "{without:?}");
        assert!(with.instructions > 3 * without.instructions, "{with:?} {without:?}");
    }
}
