//! How control flows in one function of a program: the order of its blocks, from where it soon ends, and which registers
//! and bytes of the stack are still read.

use std::collections::BTreeSet;

use millstream_isa::{Callee, Insn, LegacyMode, Operand, Reg};
use rustc_hash::FxHashMap;

use crate::Unknown;
use crate::program::Program;
use crate::stack::Stack;

/// Longest end of a program that is followed for each state by itself, in instructions.
const LONGEST_TAIL: usize = 16;

/// A place in a function. Places come in the order in which they are visited.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Place {
    /// Where its block stands in reverse postorder.
    pub(crate) order: usize,
    pub(crate) slot: usize,
    /// The function.
    pub(crate) entry: usize,
}

/// The flow of control in one function.
#[derive(Debug)]
pub(crate) struct Flow {
    entry: usize,
    /// Where each block stands in reverse postorder, by its first slot.
    pub(crate) order: FxHashMap<usize, usize>,
    /// Blocks from which the program ends within a few instructions, without a call.
    tails: BTreeSet<usize>,
    /// Registers that are read from each slot on, as bits.
    live: FxHashMap<usize, u16>,
    /// What is known of the frame; [`None`] if all of it may be read anywhere.
    stack: Option<Stack>,
    /// Loops, by where their blocks stand in the order: the first and the last of each.
    loops: Vec<(usize, usize)>,
}

impl Flow {
    /// That of the function at `entry`.
    pub(crate) fn new(p: &Program, entry: usize) -> Result<Flow, Unknown> {
        // All slots that some jump leads to begin a block; so do those after a branch.
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
        let (live, stack) = (live(p, &edges)?, Stack::new(p, entry, &edges));
        let mut flow = Flow { entry, order, tails: BTreeSet::new(), live, stack, loops };
        flow.tails = leaders.into_iter().filter(|l| is_tail(p, *l, &edges)).collect();
        Ok(flow)
    }

    /// Its first place.
    pub(crate) fn start(&self) -> Result<Place, Unknown> {
        self.at(self.entry)
    }

    fn at(&self, slot: usize) -> Result<Place, Unknown> {
        let order = self.order.get(&slot).copied();
        let order = order.ok_or_else(|| Unknown::new(format!("no block begins at slot {slot}")))?;
        Ok(Place { order, slot, entry: self.entry })
    }

    /// The place of a slot: of a block if one begins there, else further in the block of `from`.
    pub(crate) fn place(&self, slot: usize, from: Place) -> Result<Place, Unknown> {
        if self.order.contains_key(&slot) { self.at(slot) } else { Ok(Place { slot, ..from }) }
    }

    /// Whether the program ends soon from the block at this slot.
    pub(crate) fn is_tail(&self, slot: usize) -> bool {
        self.tails.contains(&slot)
    }

    /// Whether a block may be reached again from itself, by where it stands in the order; it may be said of others too.
    pub(crate) fn is_in_loop(&self, order: usize) -> bool {
        self.loops.iter().any(|(first, last)| (*first..=*last).contains(&order))
    }

    /// Whether a block lies further in a loop than the head of that.
    pub(crate) fn is_within(&self, head: usize, order: usize) -> bool {
        self.loops.iter().any(|(first, last)| *first == head && head < order && order <= *last)
    }

    /// Whether some jump backward leads to a block.
    pub(crate) fn is_header(&self, order: usize) -> bool {
        self.loops.iter().any(|(first, _)| *first == order)
    }

    /// Whether a byte of the frame may be read from a slot on before it is written.
    pub(crate) fn is_byte_live(&self, slot: usize, at: i64) -> bool {
        self.stack.as_ref().is_none_or(|stack| stack.is_live(slot, at))
    }

    /// Whether a register is read from a slot on before it is written.
    pub(crate) fn is_live(&self, slot: usize, reg: usize) -> bool {
        reg == 10 || self.live.get(&slot).is_none_or(|live| live >> reg & 1 != 0)
    }
}

/// What may follow each slot, and whether it is a jump.
pub(crate) type Edges = FxHashMap<usize, (Vec<usize>, bool)>;

/// What may follow a slot, and whether it is a jump.
fn targets(p: &Program, slot: usize) -> Result<(Vec<usize>, bool), Unknown> {
    let insn = p.insn(slot)?;
    let after = slot + insn.slots();
    let to = |off: i64| {
        usize::try_from(after as i64 + off)
            .map_err(|_| Unknown::new(format!("a jump out of the program at {slot}")))
    };
    Ok(match insn {
        Insn::Exit => (Vec::new(), true),
        Insn::Jump { off, .. } => (vec![to(i64::from(off))?], true),
        Insn::Branch { off, .. } | Insn::MayGoto { off } => (vec![after, to(i64::from(off))?], true),
        _ => (vec![after], false),
    })
}

/// Reverse postorder of the blocks.
fn order(entry: usize, leaders: &BTreeSet<usize>, edges: &Edges) -> FxHashMap<usize, usize> {
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

/// Jumps backward in the order of blocks: where the target stands, and where the block that jumps.
fn loops(order: &FxHashMap<usize, usize>, edges: &Edges) -> Vec<(usize, usize)> {
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

/// Whether the function returns within a few instructions of a slot, without a call or a jump back.
fn is_tail(p: &Program, slot: usize, edges: &Edges) -> bool {
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
fn live(p: &Program, edges: &Edges) -> Result<FxHashMap<usize, u16>, Unknown> {
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

/// Registers that an instruction reads and that it writes, as bits. What calls return in the registers of arguments nobody
/// reads.
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
