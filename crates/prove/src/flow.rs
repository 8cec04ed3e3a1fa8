//! Control flow in one function of a program: the order of its blocks, the blocks that soon end, and the live
//! registers and stack bytes.

use std::collections::BTreeSet;

use millstream_isa::{Callee, Insn, LegacyMode, Operand, Reg};
use rustc_hash::FxHashMap;

use crate::ProofError;
use crate::program::ProofProgram;
use crate::stack::{FrameLiveness, SlotSuccessors};

/// Longest tail of a program that is followed for each state by itself, in instructions.
const LONGEST_TAIL: usize = 16;

/// A place in a function. Places come in the order in which they are visited.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ProgramPoint {
    /// Position of its block in reverse postorder.
    pub(crate) order: usize,
    pub(crate) slot: usize,
    /// The function.
    pub(crate) entry: usize,
}

/// Control flow in one function.
#[derive(Debug)]
pub(crate) struct FunctionCfg {
    entry: usize,
    /// Position of each block in reverse postorder, by its first slot.
    pub(crate) order: FxHashMap<usize, usize>,
    /// Blocks from which the program ends within a few instructions, without a call.
    tails: BTreeSet<usize>,
    /// Live registers at each slot, as bits.
    live: FxHashMap<usize, u16>,
    /// Facts about the frame; [`None`] if all of it may be read anywhere.
    stack: Option<FrameLiveness>,
    /// Loops, as the positions of their first and last blocks.
    loops: Vec<(usize, usize)>,
}

impl FunctionCfg {
    /// Analyses the function at `entry`.
    pub(crate) fn new(p: &ProofProgram, entry: usize) -> Result<FunctionCfg, ProofError> {
        // All targets of jumps begin a block; so do the slots after a branch.
        let mut edges: FxHashMap<usize, (Vec<usize>, bool)> = FxHashMap::default();
        let mut leaders = BTreeSet::from([entry]);
        let mut todo = vec![entry];
        while let Some(slot) = todo.pop() {
            if edges.contains_key(&slot) {
                continue;
            }
            let (targets, jumps) = targets(p, slot)?;
            if jumps {
                leaders.extend(&targets);
            }
            todo.extend(&targets);
            edges.insert(slot, (targets, jumps));
        }
        let order = order(entry, &leaders, &edges);
        let loops = loops(&order, &edges);
        let (live, stack) = (live(p, &edges)?, FrameLiveness::new(p, entry, &edges));
        let mut flow = FunctionCfg { entry, order, tails: BTreeSet::new(), live, stack, loops };
        flow.tails = leaders.into_iter().filter(|l| is_tail(p, *l, &edges)).collect();
        Ok(flow)
    }

    /// Its first place.
    pub(crate) fn start(&self) -> Result<ProgramPoint, ProofError> {
        self.at(self.entry)
    }

    fn at(&self, slot: usize) -> Result<ProgramPoint, ProofError> {
        let order = self.order.get(&slot).copied();
        let order = order.ok_or_else(|| ProofError::new(format!("no block begins at slot {slot}")))?;
        Ok(ProgramPoint { order, slot, entry: self.entry })
    }

    /// Place of a slot: in a block of its own if one begins there, else further in the block of `from`.
    pub(crate) fn place(&self, slot: usize, from: ProgramPoint) -> Result<ProgramPoint, ProofError> {
        if self.order.contains_key(&slot) { self.at(slot) } else { Ok(ProgramPoint { slot, ..from }) }
    }

    /// Returns true if the program ends soon after it enters the block at this slot.
    pub(crate) fn is_tail(&self, slot: usize) -> bool {
        self.tails.contains(&slot)
    }

    /// Returns true if a block may be reached again from itself, by its position; may also return true for
    /// other blocks.
    pub(crate) fn is_in_loop(&self, order: usize) -> bool {
        self.loops.iter().any(|(first, last)| (*first..=*last).contains(&order))
    }

    /// Returns true if a block lies in the loop with this head, after the head.
    pub(crate) fn is_within(&self, head: usize, order: usize) -> bool {
        self.loops.iter().any(|(first, last)| *first == head && head < order && order <= *last)
    }

    /// Returns true if a block is the target of a backward jump.
    pub(crate) fn is_header(&self, order: usize) -> bool {
        self.loops.iter().any(|(first, _)| *first == order)
    }

    /// Returns true if a byte of the frame may be read before it is written, from a slot on.
    pub(crate) fn is_byte_live(&self, slot: usize, at: i64) -> bool {
        self.stack.as_ref().is_none_or(|stack| stack.is_live(slot, at))
    }

    /// Returns true if a register is live at a slot.
    pub(crate) fn is_live(&self, slot: usize, reg: usize) -> bool {
        reg == 10 || self.live.get(&slot).is_none_or(|live| live >> reg & 1 != 0)
    }
}

/// Successors of a slot, and true if it is a jump.
fn targets(p: &ProofProgram, slot: usize) -> Result<(Vec<usize>, bool), ProofError> {
    let insn = p.insn(slot)?;
    let after = slot + insn.slots();
    let to = |off: i64| {
        usize::try_from(after as i64 + off)
            .map_err(|_| ProofError::new(format!("a jump out of the program at {slot}")))
    };
    Ok(match insn {
        Insn::Exit => (Vec::new(), true),
        Insn::Jump { off, .. } => (vec![to(i64::from(off))?], true),
        Insn::Branch { off, .. } | Insn::MayGoto { off } => (vec![after, to(i64::from(off))?], true),
        _ => (vec![after], false),
    })
}

/// Reverse postorder of the blocks.
fn order(entry: usize, leaders: &BTreeSet<usize>, edges: &SlotSuccessors) -> FxHashMap<usize, usize> {
    let leave = |mut slot: usize| loop {
        let (targets, jumps) = &edges[&slot];
        if *jumps || targets.is_empty() {
            return targets.clone();
        }
        slot = targets[0];
        if leaders.contains(&slot) {
            return vec![slot];
        }
    };
    let mut post = Vec::new();
    let mut visited = BTreeSet::from([entry]);
    let mut stack = vec![(entry, leave(entry))];
    while let Some((block, targets)) = stack.last_mut() {
        match targets.pop() {
            Some(t) => {
                if visited.insert(t) {
                    stack.push((t, leave(t)));
                }
            }
            None => {
                post.push(*block);
                stack.pop();
            }
        }
    }
    post.into_iter().rev().enumerate().map(|(at, slot)| (slot, at)).collect()
}

/// Backward jumps, as the positions of the target block and of the block that jumps.
fn loops(order: &FxHashMap<usize, usize>, edges: &SlotSuccessors) -> Vec<(usize, usize)> {
    let mut out = Vec::new();
    for (start, from) in order {
        let mut slot = *start;
        let targets = loop {
            let (targets, jumps) = &edges[&slot];
            match targets.first() {
                Some(next) if !jumps && !order.contains_key(next) => slot = *next,
                _ => break targets,
            }
        };
        let back = targets.iter().filter_map(|t| order.get(t)).filter(|to| *to <= from);
        out.extend(back.map(|to| (*to, *from)));
    }
    out
}

/// Returns true if the function returns within a few instructions of a slot, without a call or a backward
/// jump.
fn is_tail(p: &ProofProgram, slot: usize, edges: &SlotSuccessors) -> bool {
    let (mut seen, mut todo) = (BTreeSet::new(), vec![slot]);
    while let Some(slot) = todo.pop() {
        if !seen.insert(slot) {
            continue;
        }
        let targets = &edges[&slot].0;
        let plain =
            !matches!(p.insn(slot), Ok(Insn::Call(_) | Insn::MayGoto { .. } | Insn::LegacyLoad { .. }));
        if seen.len() > LONGEST_TAIL || !plain || targets.iter().any(|t| *t <= slot) {
            return false;
        }
        todo.extend(targets);
    }
    true
}

/// Registers live at each slot, as bits.
fn live(p: &ProofProgram, edges: &SlotSuccessors) -> Result<FxHashMap<usize, u16>, ProofError> {
    let mut slots: Vec<usize> = edges.keys().copied().collect();
    slots.sort_unstable_by(|a, b| b.cmp(a));
    let mut live: FxHashMap<usize, u16> = FxHashMap::default();
    loop {
        let mut changed = false;
        for slot in &slots {
            let (reads, writes) = registers(p.insn(*slot)?);
            let after = edges[slot].0.iter().fold(0, |all, t| all | live.get(t).copied().unwrap_or(0));
            let before = after & !writes | reads;
            changed |= live.insert(*slot, before) != Some(before);
        }
        if !changed {
            return Ok(live);
        }
    }
}

/// Registers that an instruction reads and those that it writes, as bits. Nobody reads the values that calls
/// leave in argument registers.
fn registers(insn: Insn) -> (u16, u16) {
    const ARGUMENTS: u16 = 0b11_1110;
    let bit = |r: Reg| 1u16 << r.index();
    let operand = |o: Operand| match o {
        Operand::Reg(r) => bit(r),
        Operand::Imm(_) => 0,
    };
    match insn {
        Insn::Alu { dst, src, .. } => (bit(dst) | operand(src), bit(dst)),
        Insn::Mov { dst, src, .. } => (operand(src), bit(dst)),
        Insn::MovSx { dst, src, .. }
        | Insn::AddrSpaceCast { dst, src, .. }
        | Insn::Load { dst, src, .. }
        | Insn::LoadAcquire { dst, src, .. } => (bit(src), bit(dst)),
        Insn::Neg { dst, .. } | Insn::Swap { dst, .. } => (bit(dst), bit(dst)),
        Insn::LoadImm64 { dst, .. } => (0, bit(dst)),
        Insn::Store { dst, src, .. } => (bit(dst) | operand(src), 0),
        Insn::StoreRelease { dst, src, .. } => (bit(dst) | bit(src), 0),
        Insn::Atomic { dst, src, .. } => (bit(dst) | bit(src) | 1, 0),
        Insn::LegacyLoad { mode: LegacyMode::Ind(r), .. } => (bit(r) | 1 << 6, ARGUMENTS | 1),
        Insn::LegacyLoad { mode: LegacyMode::Abs, .. } => (1 << 6, ARGUMENTS | 1),
        Insn::Branch { dst, src, .. } => (bit(dst) | operand(src), 0),
        Insn::Call(Callee::Register(r)) => (ARGUMENTS | bit(r), ARGUMENTS | 1),
        Insn::Call(_) => (ARGUMENTS, ARGUMENTS | 1),
        Insn::Exit => (1, 0),
        Insn::Jump { .. } | Insn::MayGoto { .. } => (0, 0),
    }
}
