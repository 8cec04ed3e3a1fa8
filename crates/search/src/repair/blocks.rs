//! Blocks that are made several times, and code that nothing reaches.

use std::collections::BTreeSet;

use millstream_isa::{Insn, Operand};

use super::code::FunctionUnderRepair;
use crate::code::{CodeLine, InsnBlock};

fn jump(target: usize) -> CodeLine {
    CodeLine { target: Some(target), ..CodeLine::new(Insn::Jump { off: 0, long: false }) }
}

/// The block's first way in keeps it; each other one gets its own at the end of the function.
pub(super) fn duplicate(function: &mut FunctionUnderRepair, line: usize) -> Option<()> {
    let (block, _) = function.place(line)?;
    let own = function.code.blocks.get(block)?.clone();
    let falls_in =
        block.checked_sub(1).and_then(|b| function.code.blocks.get(b)).is_some_and(InsnBlock::falls_through);
    let mut jumps: Vec<(usize, usize)> = Vec::new();
    for (b, from) in function.code.blocks.iter().enumerate() {
        let to_it = from.lines.iter().enumerate().filter(|(_, l)| l.target == Some(block));
        jumps.extend(to_it.map(|(n, _)| (b, n)));
    }
    let kept = usize::from(!falls_in && block > 0);
    if jumps.len() <= kept || block == 0 {
        return None;
    }
    for (b, n) in jumps.into_iter().skip(kept) {
        let mut copy = InsnBlock { lines: own.lines.clone(), ..InsnBlock::default() };
        if own.falls_through() {
            copy.lines.push(jump(block + 1));
        }
        let at = function.code.blocks.len();
        function.code.blocks.push(copy);
        function.code.blocks.get_mut(b)?.lines.get_mut(n)?.target = Some(at);
    }
    Some(())
}

pub(super) fn drop_unreachable(function: &mut FunctionUnderRepair) -> Option<()> {
    let mut reached = BTreeSet::new();
    let mut work = vec![0usize];
    while let Some(block) = work.pop() {
        if reached.insert(block) {
            work.extend(&function.code.blocks.get(block)?.next);
        }
    }
    if reached.len() == function.code.blocks.len() {
        return None;
    }
    let number = |old: usize| reached.iter().position(|b| *b == old);
    let blocks = reached.iter().filter_map(|b| function.code.blocks.get(*b).cloned());
    let mut blocks: Vec<InsnBlock> = blocks.collect();
    for line in blocks.iter_mut().flat_map(|b| &mut b.lines) {
        if let Some(target) = line.target {
            line.target = Some(number(target)?);
        }
    }
    function.code.blocks = blocks;
    Some(())
}

/// `rX += c` before `if rX == c` or `if rY == 0`, where `rX` is a copy of `rY`: moved to the side that is
/// not null.
pub(super) fn delay_addition(function: &mut FunctionUnderRepair, line: usize) -> Option<()> {
    let (block, at) = function.place(line)?;
    let lines = &function.code.blocks.get(block)?.lines;
    let added = *lines.get(at)?;
    let Insn::Alu { dst: moved, src: Operand::Imm(by), .. } = added.insn else { return None };
    let between = lines.get(at + 1..lines.len() - 1)?;
    let is_used =
        |l: &CodeLine| !matches!(l.insn, Insn::Mov { dst, src: Operand::Imm(_), .. } if dst != moved);
    if between.iter().any(is_used) {
        return None;
    }
    let last = lines.len() - 1;
    let Insn::Branch { width, cond, dst, src: Operand::Imm(k), off } = lines.last()?.insn else {
        return None;
    };
    if k != if dst == moved { by } else { 0 } {
        return None;
    }
    let other = lines.last()?.target?;
    let found = match cond {
        millstream_isa::Cond::Eq => block + 1,
        millstream_isa::Cond::Ne => other,
        _ => return None,
    };
    let null = if found == other { block + 1 } else { other };
    let first = function.code.blocks.get(null)?.first as usize;
    if !function.is_dead(first, moved) {
        return None;
    }
    let lines = &mut function.code.blocks.get_mut(block)?.lines;
    lines.get_mut(last)?.insn = Insn::Branch { width, cond, dst, src: Operand::Imm(0), off };
    lines.remove(at);
    if found == block + 1 {
        function.insert_block(block + 1, InsnBlock { lines: vec![added], ..InsnBlock::default() });
    } else {
        let end = function.code.blocks.len();
        let lines = vec![added, jump(found)];
        function.code.blocks.push(InsnBlock { lines, ..InsnBlock::default() });
        function.code.blocks.get_mut(block)?.lines.last_mut()?.target = Some(end);
    }
    Some(())
}
