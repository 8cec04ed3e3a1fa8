//! Small repairs after register allocation, on blocks of bytecode that are not laid out yet: moves that do
//! nothing, constants that are there already, equal ends of blocks, names of registers.

use millstream_isa::{Insn, Operand, Reg, Width};
use rustc_hash::FxHashMap;

use super::code::{EmittedBlock, EmittedInsn, SrcOperand, Terminator, successors};
use super::hoist::hoist_constants;
use super::layout::quick_length;
use super::reassign_registers::reassign_webs;
use super::register_sets::{RegSet, drop_redundant_constants, effect, live_in, live_out, term_reads};
use super::{CodeLimits, copy_propagation};

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
    // Blocks by their ends; those whose end has become another remain in the list of the old one, too.
    let mut by_end: FxHashMap<Terminator, Vec<usize>> = FxHashMap::default();
    for (b, block) in blocks.iter().enumerate() {
        by_end.entry(block.term).or_default().push(b);
    }
    for a in 1..blocks.len() {
        if matches!(blocks[a].term, Terminator::Branch { .. } | Terminator::MayGoto { .. })
            || blocks[a].body.is_empty()
        {
            continue;
        }
        let same_end = by_end.get(&blocks[a].term).into_iter().flatten().copied();
        let best = same_end
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
            by_end.entry(tail.term).or_default().push(blocks.len());
            blocks.push(tail);
            blocks[b].term = Terminator::Jump(blocks.len() - 1);
            by_end.entry(blocks[b].term).or_default().push(b);
            blocks.len() - 1
        };
        let rest = blocks[a].body.len() - n;
        blocks[a].body.truncate(rest);
        blocks[a].term = Terminator::Jump(shared);
        by_end.entry(blocks[a].term).or_default().push(a);
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
    use millstream_ir::Cond;
    use millstream_isa::helpers::id;
    use millstream_isa::{Callee, Size};

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
