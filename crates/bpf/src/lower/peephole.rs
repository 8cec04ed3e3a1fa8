//! Small repairs after register allocation, on blocks of bytecode that are not laid out yet: moves that do
//! nothing, constants that are there already, equal ends of blocks, names of registers.

use millstream_ir::Cond;
use millstream_isa::helpers::{Helper, RetKind};
use millstream_isa::{AluOp, Callee, Insn, Operand, Reg, Size, Width};

use crate::cost::operands;

use super::code::{EmittedBlock, EmittedInsn, SrcOperand, Terminator, successors};
use super::hoist::hoist_constants;
use super::layout::quick_length;
use super::reassign_registers::reassign_webs;
use super::{CodeLimits, copy_propagation};

pub(super) type RegSet = u16;

/// Beyond so many blocks what takes long is done once instead of twice.
const MANY: usize = 150;

/// Runs all repairs, to keep within limits.
pub(super) fn run_peepholes(blocks: &mut Vec<EmittedBlock>, limits: CodeLimits) {
    let cost = &|blocks: &[EmittedBlock]| limits.cost(quick_length(blocks));
    join_chains(blocks);
    drop_redundant_constants(blocks);
    drop_redundant_copies(blocks);
    drop_dead_moves(blocks);
    copy_propagation::share_addresses(blocks);
    let many = blocks.len() > MANY;
    if !many {
        hoist_constants(blocks, limits);
    }
    let mut other = blocks.clone();
    copy_propagation::forward(&mut other);
    drop_dead_moves(&mut other);
    copy_propagation::sink(&mut other);
    if !many {
        reassign_webs(blocks);
        reassign_webs(&mut other);
    }
    if cost(&other) <= cost(blocks) {
        *blocks = other;
    }
    if many {
        reassign_webs(blocks);
    }
    drop_redundant_copies(blocks);
    merge_tails(blocks);
    hoist_constants(blocks, limits);
    rename_saved(blocks);
}

/// A block that only one other jumps to, and which nothing else reaches, becomes its continuation.
fn join_chains(blocks: &mut [EmittedBlock]) {
    let mut preds = vec![0u32; blocks.len()];
    preds[0] = 1;
    for block in blocks.iter() {
        successors(block.term).for_each(|s| preds[s] += 1);
    }
    for b in 0..blocks.len() {
        while let Terminator::Jump(next) = blocks[b].term
            && preds[next] == 1
            && next != b
            && next != 0
        {
            let rest = std::mem::take(&mut blocks[next].body);
            blocks[b].body.extend(rest);
            blocks[b].term = blocks[next].term;
            blocks[b].loc = blocks[next].loc;
            // Unreachable from here on.
            blocks[next].term = Terminator::Jump(next);
        }
    }
}

/// Instructions at the end of blocks that go on to the same place become one block. Accesses to memory other
/// than the own stack are left alone, as are calls: the verifier forbids that one instruction sees different
/// kinds of pointers.
fn merge_tails(blocks: &mut Vec<EmittedBlock>) {
    let mergeable = |e: &EmittedInsn| match e.insn {
        Insn::Load { src, .. } => src == Reg::R10,
        Insn::Store { dst, .. } => dst == Reg::R10,
        Insn::Atomic { .. } | Insn::LoadAcquire { .. } | Insn::StoreRelease { .. } => false,
        Insn::Call(_) | Insn::LegacyLoad { .. } => false,
        _ => true,
    };
    let common = |a: &EmittedBlock, b: &EmittedBlock| {
        let pairs = a.body.iter().rev().zip(b.body.iter().rev());
        pairs
            .take_while(|(x, y)| x.insn == y.insn && x.sym == y.sym && x.core == y.core && mergeable(x))
            .count()
    };
    for a in 1..blocks.len() {
        if matches!(blocks[a].term, Terminator::Branch { .. } | Terminator::MayGoto { .. })
            || blocks[a].body.is_empty()
        {
            continue;
        }
        let best = (0..blocks.len())
            .filter(|&b| b != a && blocks[b].term == blocks[a].term)
            .map(|b| (common(&blocks[a], &blocks[b]), b))
            .max_by_key(|&(n, b)| (n, std::cmp::Reverse(b)));
        // With one instruction in common the jump costs as much as is saved, unless a whole block goes.
        let Some((n, b)) = best.filter(|&(n, _)| n > 1 || (n == 1 && blocks[a].body.len() == 1)) else {
            continue;
        };
        let keep = blocks[b].body.len() - n;
        let shared = if keep == 0 {
            b
        } else {
            let tail = EmittedBlock {
                body: blocks[b].body.split_off(keep),
                term: blocks[b].term,
                loc: blocks[b].loc,
            };
            blocks.push(tail);
            blocks[b].term = Terminator::Jump(blocks.len() - 1);
            blocks.len() - 1
        };
        let rest = blocks[a].body.len() - n;
        blocks[a].body.truncate(rest);
        blocks[a].term = Terminator::Jump(shared);
    }
}

/// Of the registers that survive calls, `r6` is the cheapest to save and needs no prefix in 32-bit
/// operations: the one that gains most from it takes its name, and the others theirs in order.
fn rename_saved(blocks: &mut [EmittedBlock]) {
    let mut gain = [0u32; 11];
    let mut legacy = false;
    for e in blocks.iter().flat_map(|b| &b.body) {
        legacy |= matches!(e.insn, Insn::LegacyLoad { .. });
        let short = matches!(
            e.insn,
            Insn::Alu { width: Width::W32, .. } | Insn::Mov { .. } | Insn::Load { .. } | Insn::Store { .. }
        );
        for (r, gain) in gain.iter_mut().enumerate().skip(6).take(4) {
            if effect_of(e) & (1 << r) != 0 {
                *gain += if short { 3 } else { 1 };
            }
        }
    }
    for b in blocks.iter() {
        for (r, gain) in gain.iter_mut().enumerate().skip(6).take(4) {
            if term_reads(b.term) & (1 << r) != 0 {
                *gain += 2;
            }
        }
    }
    if legacy {
        return;
    }
    let mut order = [6usize, 7, 8, 9];
    order.sort_by_key(|&r| std::cmp::Reverse(gain[r]));
    let mut names: [Reg; 11] = std::array::from_fn(|n| Reg::new(n as u8).unwrap_or(Reg::R10));
    for (i, &r) in order.iter().enumerate() {
        names[r] = Reg::new(6 + i as u8).unwrap_or(Reg::R10);
    }
    for b in blocks {
        b.body.iter_mut().for_each(|e| e.insn.rename(|r| names[r.index()]));
        if let Terminator::Branch { dst, src, .. } = &mut b.term {
            *dst = names[dst.index()];
            if let SrcOperand::Reg(r) = src {
                *r = names[r.index()];
            }
        }
    }
}

/// Registers that an instruction mentions.
fn effect_of(e: &EmittedInsn) -> RegSet {
    let (reads, writes) = effect(e);
    reads | writes
}

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

/// Moves whose result nobody reads.
pub(super) fn drop_dead_moves(blocks: &mut [EmittedBlock]) {
    let live = live_in(blocks);
    for b in 0..blocks.len() {
        let mut now = live_out(blocks, &live, b);
        let mut keep = vec![true; blocks[b].body.len()];
        for (i, e) in blocks[b].body.iter().enumerate().rev() {
            let (reads, writes) = effect(e);
            let is_move = matches!(e.insn, Insn::Mov { .. }) && e.core.is_none();
            if is_move && writes & now == 0 {
                keep[i] = false;
                continue;
            }
            now = now & !writes | reads;
        }
        let mut it = keep.iter();
        blocks[b].body.retain(|_| *it.next().unwrap_or(&true));
    }
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

/// Copies between registers that hold the same already, within a block.
fn drop_redundant_copies(blocks: &mut [EmittedBlock]) {
    for block in blocks {
        // Equal numbers, equal contents.
        let mut contents: [u32; 11] = std::array::from_fn(|r| r as u32);
        let mut next = contents.len() as u32;
        block.body.retain(|e| {
            if let Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) } = e.insn {
                let there = contents[dst.index()] == contents[src.index()];
                contents[dst.index()] = contents[src.index()];
                return !there;
            }
            let (_, writes) = effect(e);
            for (r, content) in contents.iter_mut().enumerate() {
                if writes & (1 << r) != 0 {
                    *content = next;
                    next += 1;
                }
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use millstream_isa::helpers::id;

    use super::*;

    fn emitted(insn: Insn) -> EmittedInsn {
        EmittedInsn { insn, sym: None, core: None, loc: 0, args: 0, undef: false }
    }

    fn set(value: i32) -> EmittedInsn {
        emitted(Insn::Mov { width: Width::W64, dst: Reg::R0, src: Operand::Imm(value) })
    }

    /// Instructions that remain of `r0 = 0` where `r0` was found to be 0 after an instruction.
    fn left(insn: Insn, width: Width) -> usize {
        let (taken, fall) = (1, 2);
        let term =
            Terminator::Branch { cond: Cond::Eq, width, dst: Reg::R0, src: SrcOperand::Imm(0), taken, fall };
        let block = |body, term| EmittedBlock { body, term, loc: 0 };
        let mut blocks = vec![
            block(vec![emitted(insn)], term),
            block(vec![set(0)], Terminator::Return),
            block(vec![set(1)], Terminator::Return),
        ];
        drop_redundant_constants(&mut blocks);
        assert_eq!(blocks[2].body.len(), 1);
        blocks[1].body.len()
    }

    #[test]
    fn a_register_that_a_branch_found_to_be_zero_is_not_set_to_it() {
        let load = |size| Insn::Load { size, sext: false, dst: Reg::R0, src: Reg::R6, off: 0 };
        let lookup = Insn::Call(Callee::Helper(id::MAP_LOOKUP_ELEM));
        assert_eq!(left(lookup, Width::W64), 0);
        assert_eq!(left(load(Size::W), Width::W64), 0);
        // The upper half is not known, and 64 bits from memory or from a kernel function may be a pointer.
        assert_eq!(left(lookup, Width::W32), 1);
        assert_eq!(left(load(Size::Dw), Width::W64), 1);
        assert_eq!(left(Insn::Call(Callee::Kfunc { btf_id: 1, fd_idx: 0 }), Width::W64), 1);
    }
}
