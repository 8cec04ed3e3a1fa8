//! Copies of registers after allocation: read the source of a copy instead of the copy, and make the copy
//! where it is needed first. Equal registers stay equal to the verifier too: a check of one copy is a check
//! of all.

use std::cell::Cell;

use millstream_isa::{AluOp, Insn, Operand, Reg, Size, Width};

use super::code::{EmittedBlock, EmittedInsn, SrcOperand, Terminator, successors};
use super::register_sets::{bit, effect, live_in, live_out, term_reads};

/// A copy of a whole register: destination and source.
fn copy(e: &EmittedInsn) -> Option<(Reg, Reg)> {
    match e.insn {
        Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) } if src != Reg::R10 => Some((dst, src)),
        _ => None,
    }
}

/// Reads of a copy read the register that was copied, as long as it still holds the value.
pub(super) fn forward(blocks: &mut [EmittedBlock]) {
    let preds = lone_predecessors(blocks);
    let mut after: Vec<Option<[usize; 10]>> = vec![None; blocks.len()];
    for b in 0..blocks.len() {
        // For each register the one that has held its value longest.
        let mut root = preds[b].and_then(|p| after[p]).unwrap_or(std::array::from_fn(|r| r));
        for e in &mut blocks[b].body {
            replace_sources(&mut e.insn, &root);
            if let Some((dst, src)) = copy(e) {
                if dst != src {
                    forget(&mut root, bit(dst));
                    root[dst.index()] = root[src.index()];
                }
            } else {
                forget(&mut root, effect(e).1);
            }
        }
        if let Terminator::Branch { dst, src, .. } = &mut blocks[b].term {
            let named = |r: Reg| if r == Reg::R10 { r } else { Reg::new(root[r.index()] as u8).unwrap_or(r) };
            *dst = named(*dst);
            if let SrcOperand::Reg(r) = src {
                *r = named(*r);
            }
        }
        after[b] = Some(root);
    }
}

/// A stack address that another register holds already is copied from there.
pub(super) fn share_addresses(blocks: &mut [EmittedBlock]) {
    for block in blocks {
        let mut held: [Option<i32>; 10] = [None; 10];
        let mut i = 0;
        while i < block.body.len() {
            if let Some((dst, offset)) = address(&block.body[i..]) {
                let holder = (0..10u8).find(|&r| held[usize::from(r)] == Some(offset)).and_then(Reg::new);
                if let Some(src) = holder {
                    block.body[i].insn = Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) };
                    block.body.remove(i + 1);
                } else {
                    i += 1;
                }
                held[dst.index()] = Some(offset);
            } else {
                let written = effect(&block.body[i]).1;
                for (r, held) in held.iter_mut().enumerate() {
                    *held = held.filter(|_| written & 1 << r == 0);
                }
            }
            i += 1;
        }
    }
}

/// `r = r10; r += offset` at the start of a list.
fn address(body: &[EmittedInsn]) -> Option<(Reg, i32)> {
    match (body.first()?.insn, body.get(1)?) {
        (
            Insn::Mov { width: Width::W64, dst, src: Operand::Reg(Reg::R10) },
            EmittedInsn {
                insn: Insn::Alu { width: Width::W64, op, dst: to, src: Operand::Imm(c) },
                core: None,
                ..
            },
        ) if *op == AluOp::Add && *to == dst => Some((dst, *c)),
        _ => None,
    }
}

/// Registers in a set get other values; copies of them have no older copy any more.
fn forget(root: &mut [usize; 10], written: u16) {
    for w in (0..10).filter(|w| written & 1 << w != 0) {
        let heir = (0..10).find(|&r| r != w && root[r] == w && written & 1 << r == 0);
        for (r, older) in root.iter_mut().enumerate() {
            if *older == w {
                *older = heir.unwrap_or(r);
            }
        }
        root[w] = w;
    }
}

/// Puts older copies in the place of registers that an instruction only reads.
fn replace_sources(insn: &mut Insn, root: &[usize; 10]) {
    // The destination is visited first; that of a store is read only.
    let both = matches!(insn, Insn::Store { .. } | Insn::StoreRelease { .. });
    let one_field = matches!(
        insn,
        Insn::Neg { .. }
            | Insn::Swap { .. }
            | Insn::LoadImm64 { .. }
            | Insn::Call(_)
            | Insn::LegacyLoad { .. }
    );
    if one_field || matches!(insn, Insn::Atomic { .. }) {
        return;
    }
    let first = Cell::new(true);
    insn.rename(|r| {
        let keep = first.replace(false) && !both;
        if keep || r == Reg::R10 { r } else { Reg::new(root[r.index()] as u8).unwrap_or(r) }
    });
}

/// The predecessor of each block that has only one and comes after it.
fn lone_predecessors(blocks: &[EmittedBlock]) -> Vec<Option<usize>> {
    let mut count = vec![0u32; blocks.len()];
    let mut last = vec![0; blocks.len()];
    count[0] = 1;
    for (b, block) in blocks.iter().enumerate() {
        for s in successors(block.term) {
            count[s] += 1;
            last[s] = b;
        }
    }
    (0..blocks.len()).map(|b| (b > 0 && count[b] == 1).then_some(last[b])).collect()
}

/// Copies to registers that survive calls are made only before the first instruction that needs them: until
/// then the register may serve something else.
pub(super) fn sink(blocks: &mut [EmittedBlock]) {
    let preds = lone_predecessors(blocks);
    let mut live = live_in(blocks);
    let mut work: Vec<usize> = (0..blocks.len()).rev().collect();
    // Each copy goes down a path without joins, which ends; but for unreachable cycles.
    for _ in 0..8 * blocks.len() {
        let Some(b) = work.pop() else { break };
        let mut i = 0;
        while i < blocks[b].body.len() {
            if let Some((dst, src)) = copy(&blocks[b].body[i]).filter(|c| c.0.index() >= 6 && c.1.index() < 6)
                && let Some(to) = sink_one(blocks, &preds, &live, b, i, (dst, src))
            {
                live[to] = live[to] & !bit(dst) | bit(src);
                work.push(to);
                continue;
            }
            i += 1;
        }
    }
}

/// Moves one copy down; the block to which it went, if it left its own.
fn sink_one(
    blocks: &mut [EmittedBlock],
    preds: &[Option<usize>],
    live: &[u16],
    b: usize,
    i: usize,
    (dst, src): (Reg, Reg),
) -> Option<usize> {
    let touched = |e: &EmittedInsn| {
        let (reads, writes) = effect(e);
        (reads | writes) & bit(dst) != 0 || writes & bit(src) != 0
    };
    let body = &mut blocks[b].body;
    if let Some(n) = body[i + 1..].iter().position(touched) {
        body[i..=i + n].rotate_left(1);
        return None;
    }
    body[i..].rotate_left(1);
    let term = blocks[b].term;
    if term_reads(term) & bit(dst) != 0 {
        return None;
    }
    let mut needing = successors(term).filter(|&s| live[s] & bit(dst) != 0);
    let to = needing.next().filter(|&s| preds[s] == Some(b) && s != b)?;
    if needing.next().is_some() {
        return None;
    }
    let copy = blocks[b].body.pop()?;
    blocks[to].body.insert(0, copy);
    Some(to)
}

/// A zero that is stored as an immediate takes two bytes more of machine code than one from a register. Where
/// a register is free and that pays, the zero is put there first.
pub(super) fn share_zeros(blocks: &mut [EmittedBlock], cost: &dyn Fn(&[EmittedBlock]) -> usize) {
    let is_zero = |e: &EmittedInsn| {
        matches!(e.insn, Insn::Store { size: Size::W | Size::Dw, src: Operand::Imm(0), .. })
            && e.core.is_none()
    };
    if !blocks.iter().any(|b| b.body.iter().any(is_zero)) {
        return;
    }
    let live = live_in(blocks);
    let mut now = cost(blocks);
    for b in 0..blocks.len() {
        let mut free = Vec::with_capacity(blocks[b].body.len());
        let mut alive = live_out(blocks, &live, b);
        for e in blocks[b].body.iter().rev() {
            let (reads, writes) = effect(e);
            free.push(!(alive | writes | reads));
            alive = alive & !writes | reads;
        }
        free.reverse();
        for i in (0..blocks[b].body.len()).rev() {
            let spare = (0..5u8).find(|r| free[i] & 1 << r != 0).and_then(Reg::new);
            let (Some(zero), true) = (spare, is_zero(&blocks[b].body[i])) else { continue };
            let old = blocks[b].body[i].clone();
            let mut set = old.clone();
            set.insn = Insn::Mov { width: Width::W64, dst: zero, src: Operand::Imm(0) };
            if let Insn::Store { src, .. } = &mut blocks[b].body[i].insn {
                *src = Operand::Reg(zero);
            }
            blocks[b].body.insert(i, set);
            let then = cost(blocks);
            if then < now {
                now = then;
            } else {
                blocks[b].body.remove(i);
                blocks[b].body[i] = old;
            }
        }
    }
}
