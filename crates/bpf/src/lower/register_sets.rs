//! Registers of emitted blocks: live sets, and the constants that they hold.

use millstream_ir::Cond;
use millstream_isa::helpers::{Helper, RetKind};
use millstream_isa::{AluOp, Callee, Insn, Operand, Reg, Size, Width};

use super::code::{EmittedBlock, EmittedInsn, SrcOperand, Terminator, successors};
use crate::cost::operands;

pub(super) type RegSet = u16;

/// The frame pointer, which never changes.
const FRAME: u16 = 1 << 10;

pub(super) fn bit(r: Reg) -> RegSet {
    if r == Reg::R10 { 0 } else { 1 << r.index() }
}

/// Registers that an instruction reads, and those that it writes or leaves undefined.
pub(super) fn effect(e: &EmittedInsn) -> (RegSet, RegSet) {
    match e.insn {
        Insn::Call(_) | Insn::LegacyLoad { .. } => (e.args, 0b11_1111),
        // The operands of a block's last comparison are part of its terminator.
        Insn::Branch { .. } => (0, 0),
        insn => {
            let (reads, writes) = operands(insn);
            (reads & !FRAME, writes & !FRAME)
        }
    }
}

pub(super) fn term_reads(term: Terminator) -> RegSet {
    match term {
        Terminator::Return => 1,
        Terminator::Branch { dst, src, .. } => {
            bit(dst) | if let SrcOperand::Reg(r) = src { bit(r) } else { 0 }
        }
        Terminator::Jump(_) | Terminator::MayGoto { .. } => 0,
    }
}

/// Registers live on entry of each block.
pub(super) fn live_in(blocks: &[EmittedBlock]) -> Vec<RegSet> {
    let sums: Vec<(RegSet, RegSet)> = blocks.iter().map(register_summary).collect();
    live_in_sets(blocks, &sums)
}

/// Registers that a block reads on entry, and those that it writes; without the reads of its terminator.
pub(super) fn register_summary(block: &EmittedBlock) -> (RegSet, RegSet) {
    block.body.iter().rev().fold((0, 0), |(before, written), e| {
        let (reads, writes) = effect(e);
        (before & !writes | reads, written | writes)
    })
}

/// Registers live on entry of each block, given the sums of all.
pub(super) fn live_in_sets(blocks: &[EmittedBlock], sums: &[(RegSet, RegSet)]) -> Vec<RegSet> {
    let mut live = vec![0; blocks.len()];
    loop {
        let mut changed = false;
        for b in (0..blocks.len()).rev() {
            let (reads, writes) = sums[b];
            let now = live_out(blocks, &live, b) & !writes | reads;
            changed |= live[b] != now;
            live[b] = now;
        }
        if !changed {
            return live;
        }
    }
}

pub(super) fn live_out(blocks: &[EmittedBlock], live: &[RegSet], b: usize) -> RegSet {
    successors(blocks[b].term).fold(term_reads(blocks[b].term), |acc, s| acc | live[s])
}

/// The register and the value of a move of a constant.
pub(super) fn constant(e: &EmittedInsn) -> Option<(Reg, i64)> {
    match e.insn {
        Insn::Mov { width, dst, src: Operand::Imm(imm) } if e.core.is_none() => {
            Some((dst, if width == Width::W64 { i64::from(imm) } else { i64::from(imm as u32) }))
        }
        _ => None,
    }
}

pub(super) type RegisterConstants = [Option<i64>; 10];

fn step(known: &mut RegisterConstants, e: &EmittedInsn) {
    match constant(e) {
        Some((dst, value)) => known[dst.index()] = Some(value),
        None => {
            let (_, writes) = effect(e);
            for (r, slot) in known.iter_mut().enumerate() {
                if writes & (1 << r) != 0 {
                    *slot = None;
                }
            }
        }
    }
}

/// The constants that a block leaves in the registers that it writes, with these.
pub(super) fn constants_on_exit(block: &EmittedBlock) -> (RegisterConstants, RegSet) {
    let (mut known, mut written) = ([None; 10], 0);
    for e in &block.body {
        step(&mut known, e);
        written |= effect(e).1;
    }
    (known, written)
}

/// Constants that every register holds on entry of each block; `None` for blocks not reached.
fn known_in(blocks: &[EmittedBlock]) -> Vec<Option<RegisterConstants>> {
    let left: Vec<(RegisterConstants, RegSet)> = blocks.iter().map(constants_on_exit).collect();
    constants_on_entry(blocks, &left)
}

/// The same, given what each block leaves in registers.
pub(super) fn constants_on_entry(
    blocks: &[EmittedBlock],
    left: &[(RegisterConstants, RegSet)],
) -> Vec<Option<RegisterConstants>> {
    let mut known: Vec<Option<RegisterConstants>> = vec![None; blocks.len()];
    known[0] = Some([None; 10]);
    let mut work = vec![0];
    while let Some(b) = work.pop() {
        let Some(before) = known[b] else { continue };
        let (own, written) = &left[b];
        let now: RegisterConstants =
            std::array::from_fn(|r| if written & 1 << r != 0 { own[r] } else { before[r] });
        for s in successors(blocks[b].term) {
            let mut now = now;
            if let Some((r, value)) = taught(&blocks[b], s) {
                now[r.index()] = Some(value);
            }
            let met = match known[s] {
                None => now,
                Some(old) => std::array::from_fn(|r| old[r].filter(|v| now[r] == Some(*v))),
            };
            if known[s] != Some(met) {
                known[s] = Some(met);
                work.push(s);
            }
        }
    }
    known
}

/// Fact that the branch at the end of a block establishes on the edge to another: a register is a constant.
/// An instruction that gives a number, or null, must write the register in the block: the verifier knows such
/// a value to be that constant.
fn taught(block: &EmittedBlock, to: usize) -> Option<(Reg, i64)> {
    let Terminator::Branch { cond, width: Width::W64, dst, src: SrcOperand::Imm(imm), taken, fall } =
        block.term
    else {
        return None;
    };
    let equal = match cond {
        Cond::Eq => taken,
        Cond::Ne => fall,
        _ => return None,
    };
    let last = block.body.iter().rev().find(|e| effect(e).1 & bit(dst) != 0)?;
    let plain = match last.insn {
        Insn::Call(Callee::Helper(id)) => {
            Helper::get(id).is_some_and(|h| h.ret == RetKind::Int || h.ret.nullable())
        }
        Insn::Load { size, .. } => size != Size::Dw,
        Insn::Alu { op, width, .. } => width == Width::W32 || !matches!(op, AluOp::Add | AluOp::Sub),
        _ => false,
    };
    (plain && taken != fall && equal == to && last.core.is_none()).then_some((dst, i64::from(imm)))
}

pub(super) fn drop_redundant_constants(blocks: &mut [EmittedBlock]) {
    let known = known_in(blocks);
    for (b, block) in blocks.iter_mut().enumerate() {
        let Some(mut now) = known[b] else { continue };
        block.body.retain(|e| !redundant(&mut now, e));
    }
}

/// Returns true if an instruction makes a constant that is there already, given the contents of registers
/// before it; updates them to those after it.
pub(super) fn redundant(known: &mut RegisterConstants, e: &EmittedInsn) -> bool {
    let there = constant(e).is_some_and(|(dst, value)| known[dst.index()] == Some(value));
    step(known, e);
    there
}
