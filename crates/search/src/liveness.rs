//! Liveness after each instruction: bits of registers, bytes of the stack. A backward dataflow analysis.

use millstream_isa::{AluOp, AtomicOp, Callee, Insn, LegacyMode, Operand, Reg, Size, Width};
use millstream_prove::window::LiveOut;

use crate::code::FunctionCode;
use crate::facts::{AbstractState, FRAME, FunctionContext};
use crate::transfer;

const ALL: u64 = u64::MAX;
const LOW: u64 = 0xffff_ffff;

/// Live values at one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LiveValues {
    pub(crate) regs: [u64; 11],
    /// A bit for each byte of the stack.
    stack: [u64; FRAME / 64],
}

impl LiveValues {
    const NONE: LiveValues = LiveValues { regs: [0; 11], stack: [0; FRAME / 64] };

    fn join(&mut self, other: &LiveValues) {
        self.regs.iter_mut().zip(other.regs).for_each(|(a, b)| *a |= b);
        self.stack.iter_mut().zip(other.stack).for_each(|(a, b)| *a |= b);
    }

    fn see(&mut self, r: Reg, bits: u64) {
        self.regs[r.index()] |= bits;
    }

    fn see_operand(&mut self, o: Operand, bits: u64) {
        if let Operand::Reg(r) = o {
            self.see(r, bits);
        }
    }

    /// Removes and returns the live bits of a register that is written.
    fn take(&mut self, r: Reg) -> u64 {
        std::mem::take(&mut self.regs[r.index()])
    }

    fn bytes(&mut self, from: i64, to: i64, live: bool) {
        for at in from.max(-(FRAME as i64))..to.min(0) {
            let n = (at + FRAME as i64) as usize;
            let bit = 1 << (n % 64);
            self.stack[n / 64] = if live { self.stack[n / 64] | bit } else { self.stack[n / 64] & !bit };
        }
    }

    /// As live registers and bytes of the stack, by their offset from its upper end.
    pub(crate) fn live(&self) -> LiveOut {
        let set = |n: &usize| self.stack[n / 64] >> (n % 64) & 1 == 1;
        LiveOut { regs: self.regs, stack: (0..FRAME).filter(set).map(|n| n as i16 - FRAME as i16).collect() }
    }
}

/// The bits up to the highest of these: sums and products depend on them.
fn below(bits: u64) -> u64 {
    if bits == 0 { 0 } else { ALL >> bits.leading_zeros() }
}

/// Live values before an instruction, from those after it and the state before it.
fn before(insn: Insn, l: &mut LiveValues, s: &AbstractState, world: &FunctionContext) {
    match insn {
        Insn::Alu { width, op, dst, src } => alu(width, op, dst, src, l),
        Insn::Mov { width, dst, src } => {
            let seen = l.take(dst) & if width == Width::W32 { LOW } else { ALL };
            l.see_operand(src, seen);
        }
        Insn::MovSx { bits, dst, src, .. } => {
            let seen = l.take(dst);
            let low = ALL >> (64 - u32::from(bits));
            let sign = if seen & !low != 0 { 1 << (bits - 1) } else { 0 };
            l.see(src, seen & low | sign);
        }
        Insn::Neg { width, dst } => {
            let seen = l.take(dst) & if width == Width::W32 { LOW } else { ALL };
            l.see(dst, below(seen));
        }
        Insn::Swap { bits, dst, .. } => {
            let seen = l.take(dst);
            l.see(dst, if seen == 0 { 0 } else { ALL >> (64 - u32::from(bits)) });
        }
        Insn::AddrSpaceCast { dst, src, .. } => {
            l.take(dst);
            l.see(src, ALL);
        }
        Insn::LoadImm64 { dst, .. } => {
            l.take(dst);
        }
        Insn::Load { .. }
        | Insn::LoadAcquire { .. }
        | Insn::Store { .. }
        | Insn::StoreRelease { .. }
        | Insn::Atomic { .. } => access(insn, l, s),
        Insn::Call(callee) => call(l, s, callee, world),
        Insn::LegacyLoad { mode, .. } => {
            l.regs[..6].fill(0);
            l.see(Reg::R6, ALL);
            if let LegacyMode::Ind(r) = mode {
                l.see(r, ALL);
            }
        }
        Insn::Branch { width, dst, src, .. } => {
            let bits = if width == Width::W32 { LOW } else { ALL };
            l.see(dst, bits);
            l.see_operand(src, bits);
        }
        Insn::Exit => {
            *l = LiveValues::NONE;
            l.see(Reg::R0, if world.program { LOW } else { ALL });
        }
        Insn::Jump { .. } | Insn::MayGoto { .. } => {}
    }
    l.regs[10] = ALL;
}

/// The same for an access to memory.
fn access(insn: Insn, l: &mut LiveValues, s: &AbstractState) {
    match insn {
        Insn::Load { size, dst, src, off, .. } | Insn::LoadAcquire { size, dst, src, off } => {
            l.take(dst);
            l.see(src, ALL);
            reads(l, s, src, off, size);
        }
        Insn::Store { size, dst, off, src } => {
            let live = writes(l, s, dst, off, size);
            l.see(dst, ALL);
            let bits = if size == Size::Dw { ALL } else { ALL >> (64 - size.bits()) };
            // This analysis never removes a store: the stored value must be defined.
            l.see_operand(src, if live { bits } else { 1 });
        }
        Insn::StoreRelease { dst, src, .. } => {
            l.see(dst, ALL);
            l.see(src, ALL);
        }
        Insn::Atomic { op, dst, src, off, size, .. } => {
            l.see(dst, ALL);
            l.see(src, ALL);
            if op == AtomicOp::CmpXchg {
                l.see(Reg::R0, ALL);
            }
            reads(l, s, dst, off, size);
        }
        _ => {}
    }
}

fn alu(width: Width, op: AluOp, dst: Reg, src: Operand, l: &mut LiveValues) {
    let whole = if width == Width::W32 { LOW } else { ALL };
    let seen = l.take(dst) & whole;
    if seen == 0 {
        // It is computed all the same, from operands that must be defined.
        l.see(dst, 1);
        return l.see_operand(src, 1);
    }
    let (a, b) = match (op, src) {
        (AluOp::And, Operand::Imm(k)) => (seen & k as i64 as u64, 0),
        (AluOp::Or, Operand::Imm(k)) => (seen & !(k as i64 as u64), 0),
        (AluOp::And | AluOp::Or | AluOp::Xor, _) => (seen, seen),
        (AluOp::Add | AluOp::Sub | AluOp::Mul, _) => (below(seen), below(seen)),
        (AluOp::Lsh, Operand::Imm(k)) => (seen >> (k as u32 & (width.bits() - 1)), 0),
        (AluOp::Rsh, Operand::Imm(k)) => (seen << (k as u32 & (width.bits() - 1)) & whole, 0),
        _ => (whole, whole),
    };
    l.see(dst, a.max(1));
    l.see_operand(src, b.max(1));
}

fn reads(l: &mut LiveValues, s: &AbstractState, base: Reg, off: i16, size: Size) {
    match transfer::in_frame(s.get(base).kind, off) {
        Ok(Some(at)) => l.bytes(at, at + i64::from(size.bytes()), true),
        Ok(None) => {}
        Err(()) => l.bytes(-(FRAME as i64), 0, true),
    }
}

/// Returns true if a store writes live bytes.
fn writes(l: &mut LiveValues, s: &AbstractState, base: Reg, off: i16, size: Size) -> bool {
    let Ok(Some(at)) = transfer::in_frame(s.get(base).kind, off) else { return true };
    let was = l.stack;
    l.bytes(at, at + i64::from(size.bytes()), false);
    l.stack != was
}

fn call(l: &mut LiveValues, s: &AbstractState, callee: Callee, world: &FunctionContext) {
    l.regs[..6].fill(0);
    let arguments = match callee {
        Callee::Helper(n) => millstream_isa::helpers::Helper::get(n).map_or(5, |h| h.args.len()),
        Callee::Register(r) => {
            l.see(r, ALL);
            5
        }
        _ => 5,
    };
    for (n, slot) in l.regs.iter_mut().enumerate().take(arguments + 1).skip(1) {
        // A register that the verifier would refuse to read is no argument.
        if s.regs[n].kind != crate::facts::RegisterKind::Uninit {
            *slot = ALL;
        }
    }
    match transfer::read_by_call(s, callee, world) {
        None => l.bytes(-(FRAME as i64), 0, true),
        Some(ranges) => ranges.into_iter().for_each(|(from, to)| l.bytes(from, to, true)),
    }
}

/// Live values before each instruction, and after the last, of each block.
pub(crate) fn analyze(
    code: &FunctionCode,
    facts: &[Option<AbstractState>],
    world: &FunctionContext,
) -> Vec<Vec<LiveValues>> {
    let mut states: Vec<Vec<AbstractState>> = Vec::with_capacity(code.blocks.len());
    for (n, block) in code.blocks.iter().enumerate() {
        let mut list = Vec::new();
        if let Some(mut s) = facts[n].clone() {
            for (i, line) in block.lines.iter().enumerate() {
                list.push(s.clone());
                transfer::step(&mut s, line, world, code.blocks[n].first + i as u32);
            }
        }
        states.push(list);
    }
    let mut out: Vec<Vec<LiveValues>> =
        code.blocks.iter().map(|b| vec![LiveValues::NONE; b.lines.len() + 1]).collect();
    let mut changed = true;
    while changed {
        changed = false;
        for (n, block) in code.blocks.iter().enumerate().rev() {
            let mut l = LiveValues::NONE;
            for &to in &block.next {
                l.join(&out[to][0]);
            }
            let end = block.lines.len();
            out[n][end] = l;
            for (i, line) in block.lines.iter().enumerate().rev() {
                if let Some(s) = states[n].get(i) {
                    before(line.insn, &mut l, s, world);
                }
                if out[n][i] != l {
                    out[n][i] = l;
                    changed = true;
                }
            }
        }
    }
    out
}
