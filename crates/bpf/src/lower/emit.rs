//! Emission: allocated machine instructions to bytecode, with stack frame, block layout and jumps.

use cranelift_entity::SecondaryMap;
use millstream_ir::{Cond, Core, Function, Slot, Width};
use millstream_isa::{AluOp, AtomicOp, Callee, Insn, LegacyMode, Operand, Pseudo, Reg, Size};
use regalloc2::{Allocation, Block, Edit, Function as _, InstOrEdit, Output};

use super::code::{Code, Emitted, Src, Term, successors};
use super::mir::*;
use super::tidy;
use super::{LowerError, Lowered};
use crate::lift::Sym;

pub(super) fn emit(func: &Function, mir: &MFunc, out: &Output) -> Result<Lowered, LowerError> {
    let frame = Frame::new(func, mir, out.num_spillslots);
    if frame.size > 512 {
        return Err(LowerError::Stack { function: func.name.clone(), bytes: frame.size });
    }
    let mut blocks = Vec::with_capacity(mir.blocks.len());
    for b in 0..mir.blocks.len() {
        blocks.push(translate(mir, out, &frame, b));
    }
    settle_undef(&mut blocks);
    thread_empty(&mut blocks);
    merge_equal(&mut blocks);
    let cost = |blocks: &[Code]| {
        let code = assemble(func, blocks, &layout(blocks));
        code.map_or(usize::MAX, |c| c.cost())
    };
    tidy::tidy(&mut blocks, &cost);
    thread_empty(&mut blocks);
    merge_equal(&mut blocks);
    let order = layout(&blocks);
    let mut lowered = assemble(func, &blocks, &order)?;
    lowered.stack = frame.size;
    Ok(lowered)
}

/// Where stack objects and spills lie, as offsets from the frame pointer.
struct Frame {
    slots: SecondaryMap<Slot, i32>,
    spills: i32,
    size: u32,
}

impl Frame {
    fn new(func: &Function, mir: &MFunc, spills: usize) -> Frame {
        let mut uses: SecondaryMap<Slot, u32> = SecondaryMap::new();
        for inst in &mir.insts {
            let base = match inst.op {
                MOp::Load { base, .. }
                | MOp::Store { base, .. }
                | MOp::Atomic { base, .. }
                | MOp::AtomicFetch { base, .. }
                | MOp::CmpXchg { base, .. }
                | MOp::LoadAcquire { base, .. }
                | MOp::StoreRelease { base, .. } => base,
                MOp::Lea { slot, .. } => Base::Frame(slot, 0),
                _ => continue,
            };
            if let Base::Frame(slot, _) = base {
                uses[slot] += 1;
            }
        }
        let mut slots = SecondaryMap::new();
        let mut low = 0;
        for (slot, data) in &func.slots {
            if let (true, Some(at)) = (uses[slot] > 0, data.fixed) {
                slots[slot] = at;
                low = low.min(at);
            }
        }
        low = low.div_euclid(8) * 8;
        low -= 8 * spills as i32;
        let spill_base = low;
        // Near the frame pointer displacements take one byte: small and busy objects first.
        let mut free: Vec<Slot> =
            func.slots.keys().filter(|&s| uses[s] > 0 && func.slots[s].fixed.is_none()).collect();
        free.sort_by_key(|&s| (func.slots[s].size.max(8) / uses[s], s));
        for slot in free {
            let data = &func.slots[slot];
            let align = data.align.max(8) as i32;
            low = (low - data.size as i32).div_euclid(align) * align;
            slots[slot] = low;
        }
        Frame { slots, spills: spill_base, size: -low as u32 }
    }

    fn spill(&self, alloc: Allocation) -> Option<i16> {
        let slot = alloc.as_stack()?;
        Some((self.spills + 8 * slot.index() as i32) as i16)
    }
}

fn reg(alloc: Allocation) -> Reg {
    // Every operand demands a register, so the allocator gave one of r0 to r9.
    alloc.as_reg().and_then(|p| Reg::new(p.hw_enc() as u8)).unwrap_or(Reg::R10)
}

fn translate(mir: &MFunc, out: &Output, frame: &Frame, b: usize) -> Code {
    let block = &mir.blocks[b];
    let mut code = Code { body: Vec::new(), term: Term::Return, loc: u32::MAX };
    let ids = mir.block_insns(Block::new(b));
    let mut loc = mir.insts.get(ids.first().index()).map_or(u32::MAX, |i| i.loc);
    for step in out.block_insts_and_edits(mir, Block::new(b)) {
        match step {
            InstOrEdit::Edit(Edit::Move { from, to }) => {
                if let Some(insn) = move_insn(frame, *from, *to) {
                    code.body.push(Emitted { insn, sym: None, core: None, loc, args: 0, undef: false });
                }
            }
            InstOrEdit::Inst(inst) => {
                let data = &mir.insts[inst.index()];
                loc = data.loc;
                let regs: Vec<Reg> = out.inst_allocs(inst).iter().map(|&a| reg(a)).collect();
                let succs: Vec<usize> = block.succs.iter().map(|s| s.index()).collect();
                let mut sink = Sink { body: &mut code.body, frame, loc };
                if let Some(term) = sink.inst(&data.op, &regs, &succs) {
                    code.term = term;
                    code.loc = loc;
                }
            }
        }
    }
    code
}

fn move_insn(frame: &Frame, from: Allocation, to: Allocation) -> Option<Insn> {
    match (frame.spill(from), frame.spill(to)) {
        (None, None) if from == to => None,
        (None, None) => Some(Insn::Mov { width: Width::W64, dst: reg(to), src: Operand::Reg(reg(from)) }),
        (Some(off), _) => Some(Insn::Load { size: Size::Dw, sext: false, dst: reg(to), src: Reg::R10, off }),
        (None, Some(off)) => {
            Some(Insn::Store { size: Size::Dw, dst: Reg::R10, off, src: Operand::Reg(reg(from)) })
        }
    }
}

struct Sink<'a> {
    body: &'a mut Vec<Emitted>,
    frame: &'a Frame,
    loc: u32,
}

impl Sink<'_> {
    fn put(&mut self, insn: Insn) {
        self.put_with(insn, None, None);
    }

    fn put_with(&mut self, insn: Insn, sym: Option<Sym>, core: Option<Core>) {
        self.body.push(Emitted { insn, sym, core, loc: self.loc, args: 0, undef: false });
    }

    /// Base register and displacement; takes the base from the front of `regs` if it is in one.
    fn address(&self, base: Base, offset: i32, regs: &mut &[Reg]) -> (Reg, i16) {
        match base {
            Base::Reg => {
                let r = regs[0];
                *regs = &regs[1..];
                (r, offset as i16)
            }
            Base::Frame(slot, at) => (Reg::R10, (self.frame.slots[slot] + at + offset) as i16),
        }
    }

    /// Emits an instruction, or says how the block ends.
    fn inst(&mut self, op: &MOp, regs: &[Reg], succs: &[usize]) -> Option<Term> {
        let mut regs = regs;
        match *op {
            MOp::Args => {}
            MOp::Undef => {
                let insn = Insn::Mov { width: Width::W64, dst: regs[0], src: Operand::Imm(0) };
                self.body.push(Emitted { insn, sym: None, core: None, loc: self.loc, args: 0, undef: true });
            }
            MOp::Alu { op, width, imm, core } => {
                let src = imm.map_or_else(|| Operand::Reg(regs[1]), Operand::Imm);
                self.put_with(Insn::Alu { width, op, dst: regs[0], src }, None, core);
            }
            MOp::Neg { width } => self.put(Insn::Neg { width, dst: regs[0] }),
            MOp::Swap { kind, bits } => self.put(Insn::Swap { kind, bits, dst: regs[0] }),
            MOp::Copy => {
                if regs[0] != regs[1] {
                    self.put(Insn::Mov { width: Width::W64, dst: regs[1], src: Operand::Reg(regs[0]) });
                }
            }
            MOp::Zext => {
                self.put(Insn::Mov { width: Width::W32, dst: regs[1], src: Operand::Reg(regs[0]) });
            }
            MOp::Sext { bits, width } => self.put(Insn::MovSx { width, bits, dst: regs[1], src: regs[0] }),
            MOp::Cast { spaces } => self.put(Insn::AddrSpaceCast { dst: regs[1], src: regs[0], imm: spaces }),
            MOp::Imm { value } => self.put(imm_insn(regs[0], value)),
            MOp::Sym { sym } => {
                let insn = Insn::LoadImm64 { dst: regs[0], pseudo: Pseudo::None, imm: 0, off: 0 };
                self.put_with(insn, Some(sym), None);
            }
            MOp::CoreImm { core, local, wide } => {
                let insn = if wide {
                    Insn::LoadImm64 { dst: regs[0], pseudo: Pseudo::None, imm: local as u64, off: 0 }
                } else {
                    Insn::Mov { width: Width::W64, dst: regs[0], src: Operand::Imm(local as i32) }
                };
                self.put_with(insn, None, Some(core));
            }
            MOp::Lea { slot, offset } => {
                let imm = self.frame.slots[slot] + offset;
                let dst = regs[0];
                self.put(Insn::Mov { width: Width::W64, dst, src: Operand::Reg(Reg::R10) });
                if imm != 0 {
                    self.put(Insn::Alu { width: Width::W64, op: AluOp::Add, dst, src: Operand::Imm(imm) });
                }
            }
            MOp::Load { size, sext, base, offset, core } => {
                let (src, off) = self.address(base, offset, &mut regs);
                self.put_with(Insn::Load { size, sext, dst: regs[0], src, off }, None, core);
            }
            MOp::Store { size, base, offset, imm, core } => {
                let (dst, off) = self.address(base, offset, &mut regs);
                let src = imm.map_or_else(|| Operand::Reg(regs[0]), Operand::Imm);
                self.put_with(Insn::Store { size, dst, off, src }, None, core);
            }
            MOp::Atomic { op, size, base, offset } | MOp::AtomicFetch { op, size, base, offset } => {
                let (dst, off) = self.address(base, offset, &mut regs);
                let fetch = regs.len() > 1;
                self.put(Insn::Atomic { op, fetch, size, dst, src: regs[0], off });
            }
            MOp::CmpXchg { size, base, offset } => {
                let (dst, off) = self.address(base, offset, &mut regs);
                self.put(Insn::Atomic { op: AtomicOp::CmpXchg, fetch: true, size, dst, src: regs[0], off });
            }
            MOp::LoadAcquire { size, base, offset } => {
                let (src, off) = self.address(base, offset, &mut regs);
                self.put(Insn::LoadAcquire { size, dst: regs[0], src, off });
            }
            MOp::StoreRelease { size, base, offset } => {
                let (dst, off) = self.address(base, offset, &mut regs);
                self.put(Insn::StoreRelease { size, dst, src: regs[0], off });
            }
            MOp::Legacy { size, offset, indexed } => {
                let mode = if indexed { LegacyMode::Ind(regs[1]) } else { LegacyMode::Abs };
                let args = regs[..1 + usize::from(indexed)].iter().fold(0, |set, r| set | 1 << r.index());
                let insn = Insn::LegacyLoad { size, mode, imm: offset };
                self.body.push(Emitted { insn, sym: None, core: None, loc: self.loc, args, undef: false });
            }
            MOp::Call { target } => self.call(target, regs),
            MOp::Jump => return Some(Term::Jump(succs[0])),
            MOp::Branch { cond, width, imm } => {
                let src = imm.map_or_else(|| Src::Reg(regs[1]), Src::Imm);
                return Some(Term::Branch {
                    cond,
                    width,
                    dst: regs[0],
                    src,
                    taken: succs[0],
                    fall: succs[1],
                });
            }
            MOp::MayGoto => return Some(Term::MayGoto { taken: succs[0], fall: succs[1] }),
            MOp::Return => return Some(Term::Return),
            MOp::Unreachable => {
                self.put(imm_insn(Reg::R0, 0));
                return Some(Term::Return);
            }
        }
        None
    }

    fn call(&mut self, target: Target, regs: &[Reg]) {
        let (callee, sym) = match target {
            Target::Helper(id) => (Callee::Helper(id), None),
            Target::Sym(sym @ Sym::Extern(_)) => (Callee::Kfunc { btf_id: -1, fd_idx: 0 }, Some(sym)),
            Target::Sym(sym) => (Callee::Local(-1), Some(sym)),
            Target::Indirect => (Callee::Register(regs[0]), None),
        };
        let args = regs.iter().filter(|r| **r != Reg::R0 || target == Target::Indirect);
        let args = args.fold(0, |set, r| set | 1 << r.index());
        let insn = Insn::Call(callee);
        self.body.push(Emitted { insn, sym, core: None, loc: self.loc, args, undef: false });
    }
}

/// The shortest instruction that sets a register to a constant.
fn imm_insn(dst: Reg, value: i64) -> Insn {
    if let Ok(imm) = i32::try_from(value) {
        Insn::Mov { width: Width::W64, dst, src: Operand::Imm(imm) }
    } else if let Ok(imm) = u32::try_from(value) {
        Insn::Mov { width: Width::W32, dst, src: Operand::Imm(imm as i32) }
    } else {
        Insn::LoadImm64 { dst, pseudo: Pseudo::None, imm: value as u64, off: 0 }
    }
}

/// The kernel rejects a read of a register that no path has written, even where the value does not matter. Undefined
/// values whose register is read become zeros, the others vanish.
fn settle_undef(blocks: &mut [Code]) {
    if !blocks.iter().any(|b| b.body.iter().any(|e| e.undef)) {
        return;
    }
    let read = reads_uninitialised(blocks);
    for block in blocks {
        if read {
            block.body.iter_mut().for_each(|e| e.undef = false);
        } else {
            block.body.retain(|e| !e.undef);
        }
    }
}

fn reads_uninitialised(blocks: &[Code]) -> bool {
    let mut init = vec![u16::MAX; blocks.len()];
    init[0] = 0b11_1110;
    let mut work = vec![0];
    let mut seen = vec![false; blocks.len()];
    while let Some(b) = work.pop() {
        seen[b] = true;
        let mut have = init[b];
        for e in blocks[b].body.iter().filter(|e| !e.undef) {
            let (uses, defs, gone) = reads_and_writes(e.insn);
            if uses & !have != 0 {
                return true;
            }
            have = have & !gone | defs;
        }
        if let Term::Branch { dst, src, .. } = blocks[b].term {
            let other = if let Src::Reg(r) = src { 1 << r.index() } else { 0 };
            if (1 << dst.index() | other) & !(have | 1 << 10) != 0 {
                return true;
            }
        }
        for s in successors(blocks[b].term) {
            let met = init[s] & have;
            if met != init[s] || !seen[s] {
                init[s] = met;
                work.push(s);
            }
        }
    }
    false
}

/// Registers that an instruction reads (the frame pointer apart), writes, and leaves undefined. A call's arguments are
/// not counted as read: they were put there for it.
fn reads_and_writes(insn: Insn) -> (u16, u16, u16) {
    let bit = |r: Reg| if r == Reg::R10 { 0 } else { 1u16 << r.index() };
    let op = |o: Operand| if let Operand::Reg(r) = o { bit(r) } else { 0 };
    match insn {
        Insn::Alu { dst, src, .. } => (bit(dst) | op(src), bit(dst), 0),
        Insn::Mov { dst, src, .. } => (op(src), bit(dst), 0),
        Insn::MovSx { dst, src, .. } | Insn::AddrSpaceCast { dst, src, .. } => (bit(src), bit(dst), 0),
        Insn::Neg { dst, .. } | Insn::Swap { dst, .. } => (bit(dst), bit(dst), 0),
        Insn::LoadImm64 { dst, .. } => (0, bit(dst), 0),
        Insn::Load { dst, src, .. } | Insn::LoadAcquire { dst, src, .. } => (bit(src), bit(dst), 0),
        Insn::Store { dst, src, .. } => (bit(dst) | op(src), 0, 0),
        Insn::StoreRelease { dst, src, .. } => (bit(dst) | bit(src), 0, 0),
        Insn::Atomic { fetch, dst, src, .. } => {
            (bit(dst) | bit(src), if fetch { bit(src) | 1 } else { 0 }, 0)
        }
        Insn::Call(_) | Insn::LegacyLoad { .. } => (0, 1, 0b11_1110),
        Insn::Jump { .. } | Insn::Branch { .. } | Insn::MayGoto { .. } | Insn::Exit => (0, 0, 0),
    }
}

/// Jumps to a block that only jumps on go to its target.
fn thread_empty(blocks: &mut [Code]) {
    let resolve = |blocks: &[Code], start: usize| {
        let mut b = start;
        for _ in 0..blocks.len() {
            match blocks[b] {
                Code { ref body, term: Term::Jump(next), .. } if body.is_empty() && next != b => b = next,
                _ => break,
            }
        }
        b
    };
    for b in 0..blocks.len() {
        let mut term = blocks[b].term;
        match &mut term {
            Term::Return => {}
            Term::Jump(t) => *t = resolve(blocks, *t),
            Term::Branch { taken, fall, .. } | Term::MayGoto { taken, fall } => {
                *taken = resolve(blocks, *taken);
                *fall = resolve(blocks, *fall);
            }
        }
        if let Term::Branch { taken, fall, .. } = term
            && taken == fall
        {
            term = Term::Jump(taken);
        }
        blocks[b].term = term;
    }
}

/// Blocks that are equal but for their place become one. Source lines may differ: the first one's are kept.
fn merge_equal(blocks: &mut [Code]) {
    let same = |a: &Code, b: &Code| {
        let insn = |e: &Emitted| (e.insn, e.sym, e.core);
        a.term == b.term
            && a.body.len() == b.body.len()
            && a.body.iter().zip(&b.body).all(|(x, y)| insn(x) == insn(y) && !touches_memory(x.insn))
    };
    for b in 1..blocks.len() {
        if blocks[b].body.is_empty() && !matches!(blocks[b].term, Term::Return) {
            continue;
        }
        if let Some(first) = (1..b).find(|&a| same(&blocks[a], &blocks[b])) {
            blocks[b] = Code { body: Vec::new(), term: Term::Jump(first), loc: blocks[b].loc };
        }
    }
    thread_empty(blocks);
}

/// Loads, stores and calls may see other kinds of pointers on other paths, which the verifier forbids.
fn touches_memory(insn: Insn) -> bool {
    matches!(
        insn,
        Insn::Load { .. }
            | Insn::Store { .. }
            | Insn::Atomic { .. }
            | Insn::LoadAcquire { .. }
            | Insn::StoreRelease { .. }
            | Insn::Call(_)
            | Insn::LegacyLoad { .. }
    )
}

/// An order of the reachable blocks in which as few jumps as possible are needed: each block is followed by the one
/// it falls or jumps to, if that is still free and nobody else must fall into it.
fn layout(blocks: &[Code]) -> Vec<usize> {
    let mut reachable = vec![false; blocks.len()];
    let mut work = vec![0];
    reachable[0] = true;
    let mut fallers = vec![0u32; blocks.len()];
    while let Some(b) = work.pop() {
        if let Term::Branch { fall, .. } | Term::MayGoto { fall, .. } = blocks[b].term {
            fallers[fall] += 1;
        }
        for s in successors(blocks[b].term) {
            if !std::mem::replace(&mut reachable[s], true) {
                work.push(s);
            }
        }
    }
    let mut order = Vec::with_capacity(blocks.len());
    let mut placed = vec![false; blocks.len()];
    for start in 0..blocks.len() {
        let mut b = start;
        while reachable[b] && !placed[b] {
            placed[b] = true;
            order.push(b);
            b = match blocks[b].term {
                Term::Return => break,
                Term::Jump(t) if fallers[t] > 0 => break,
                Term::Jump(t) => t,
                Term::Branch { fall, .. } | Term::MayGoto { fall, .. } => {
                    fallers[fall] -= 1;
                    fall
                }
            };
        }
    }
    order
}

/// What ends a block in its place: instructions with the block they jump to.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Exit,
    Goto(usize),
    If { cond: Cond, width: Width, dst: Reg, src: Src, to: usize },
    May(usize),
}

fn endings(term: Term, next: Option<usize>, far: bool) -> Vec<Ending> {
    match term {
        Term::Return => vec![Ending::Exit],
        Term::Jump(t) if Some(t) == next => vec![],
        Term::Jump(t) => vec![Ending::Goto(t)],
        Term::MayGoto { taken, fall } => {
            let mut out = vec![Ending::May(taken)];
            out.extend((Some(fall) != next).then_some(Ending::Goto(fall)));
            out
        }
        Term::Branch { cond, width, dst, src, taken, fall } => {
            let branch = |cond, to| Ending::If { cond, width, dst, src, to };
            match (cond.negated(), far) {
                // Over a long jump: the near side is the one that is skipped to.
                (_, true) => vec![branch(cond, taken), Ending::Goto(fall), Ending::Goto(taken)],
                (Some(not), false) if Some(taken) == next => vec![branch(not, fall)],
                _ if Some(fall) == next => vec![branch(cond, taken)],
                _ => vec![branch(cond, taken), Ending::Goto(fall)],
            }
        }
    }
}

fn ending_slots(term: Term, next: Option<usize>, far: bool) -> i64 {
    endings(term, next, far).len() as i64
}

fn assemble(func: &Function, blocks: &[Code], order: &[usize]) -> Result<Lowered, LowerError> {
    let body_slots: Vec<i64> =
        blocks.iter().map(|b| b.body.iter().map(|e| e.insn.slots() as i64).sum()).collect();
    let mut far = vec![false; blocks.len()];
    let mut start = vec![0i64; blocks.len()];
    loop {
        let mut at = 0;
        for (i, &b) in order.iter().enumerate() {
            start[b] = at;
            at += body_slots[b] + ending_slots(blocks[b].term, order.get(i + 1).copied(), far[b]);
        }
        let mut changed = false;
        for (i, &b) in order.iter().enumerate() {
            let Term::Branch { taken, fall, .. } = blocks[b].term else { continue };
            let from = start[b] + body_slots[b] + 1;
            let next = order.get(i + 1).copied();
            let reach = |t: usize| i16::try_from(start[t] - from).is_ok();
            let near = if Some(taken) == next { reach(fall) } else { reach(taken) };
            if !far[b] && !near {
                far[b] = true;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    let mut out = Lowered::default();
    let mut at = 0u32;
    let mut line = Lines { first: blocks.iter().find_map(first_loc), last: u32::MAX };
    for (i, &b) in order.iter().enumerate() {
        for e in &blocks[b].body {
            line.note(&mut out, at, e.loc);
            out.syms.extend(e.sym.map(|s| (at, s)));
            out.cores.extend(e.core.map(|c| (at, c)));
            out.insns.push(e.insn);
            at += e.insn.slots() as u32;
        }
        let ends = endings(blocks[b].term, order.get(i + 1).copied(), far[b]);
        for (n, end) in ends.iter().enumerate() {
            line.note(&mut out, at, blocks[b].loc);
            let off = |t: usize| start[t] - i64::from(at) - 1;
            let skip = far[b] && n == 0;
            out.insns.push(jump(*end, &off, skip, func)?);
            at += 1;
        }
    }
    Ok(out)
}

fn jump(end: Ending, off: &dyn Fn(usize) -> i64, skip: bool, func: &Function) -> Result<Insn, LowerError> {
    let too_far = || LowerError::TooFar { function: func.name.clone() };
    let short = |to: usize| i16::try_from(off(to)).map_err(|_| too_far());
    Ok(match end {
        Ending::Exit => Insn::Exit,
        Ending::Goto(t) => {
            let off = i32::try_from(off(t)).map_err(|_| too_far())?;
            Insn::Jump { off, long: i16::try_from(off).is_err() }
        }
        Ending::May(t) => Insn::MayGoto { off: short(t)? },
        Ending::If { cond, width, dst, src, to } => {
            let src = match src {
                Src::Reg(r) => Operand::Reg(r),
                Src::Imm(i) => Operand::Imm(i),
            };
            let off = if skip { 1 } else { short(to)? };
            Insn::Branch { width, cond, dst, src, off }
        }
    })
}

fn first_loc(code: &Code) -> Option<u32> {
    code.body.iter().map(|e| e.loc).chain([code.loc]).find(|&l| l != u32::MAX)
}

/// Source lines: a record wherever the line changes, and at the first instruction.
struct Lines {
    first: Option<u32>,
    last: u32,
}

impl Lines {
    fn note(&mut self, out: &mut Lowered, at: u32, loc: u32) {
        let loc = if loc == u32::MAX { self.first.take().unwrap_or(self.last) } else { loc };
        self.first = None;
        if loc != self.last {
            out.lines.push((at, loc));
            self.last = loc;
        }
    }
}
