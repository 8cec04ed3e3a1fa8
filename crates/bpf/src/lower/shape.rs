//! Blocks of bytecode before layout: undefined values settled, empty and equal blocks merged.

use millstream_isa::{Insn, Operand, Reg};
use rustc_hash::FxHashMap;

use super::code::{Code, Emitted, Src, Term, successors};

/// The kernel rejects a read of a register that no path has written, even where the value does not matter. Undefined
/// values whose register is read become zeros, the others vanish.
pub(super) fn settle_undef(blocks: &mut [Code]) {
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
pub(super) fn thread_empty(blocks: &mut [Code]) {
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
pub(super) fn merge_equal(blocks: &mut [Code]) {
    let same = |a: &Code, b: &Code| {
        let insn = |e: &Emitted| (e.insn, e.sym, e.core);
        a.term == b.term
            && a.body.len() == b.body.len()
            && a.body.iter().zip(&b.body).all(|(x, y)| insn(x) == insn(y) && !touches_memory(x.insn))
    };
    let mut alike: FxHashMap<(Term, usize), Vec<usize>> = FxHashMap::default();
    for b in 1..blocks.len() {
        if blocks[b].body.is_empty() && !matches!(blocks[b].term, Term::Return) {
            continue;
        }
        let earlier = alike.entry((blocks[b].term, blocks[b].body.len())).or_default();
        match earlier.iter().find(|&&a| same(&blocks[a], &blocks[b])) {
            Some(&first) => {
                blocks[b] = Code { body: Vec::new(), term: Term::Jump(first), loc: blocks[b].loc };
            }
            None => earlier.push(b),
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
