//! The order of blocks, and the length of the code in a given order.
//!
//! Two orders are natural: the one that came in, which keeps together what the source kept together, and the
//! one in which each block is followed by the one it falls or jumps to. The cheaper is improved by moving
//! runs of blocks about while that helps: a jump that goes away saves a slot, one that comes into reach of a
//! byte three or four bytes.

use super::assemble::{TerminatorInsn, endings};
use super::code::{EmittedBlock, EmittedInsn, SrcOperand, Terminator, successors};
use super::{CodeLength, CodeLimits};
use crate::jit;
use millstream_isa::{Insn, Operand};

/// Blocks visited by the search for a better order, over all the orders that it looks at.
const MOST_VISITED: usize = 60_000;

/// The instructions of a block without its end: how long they are, and which registers they name.
#[derive(Clone, Copy, Default)]
pub(super) struct BodySize {
    bytes: u32,
    slots: usize,
    mentioned: u16,
}

impl BodySize {
    pub(super) fn of<'e>(insns: impl Iterator<Item = &'e EmittedInsn>) -> BodySize {
        insns.fold(BodySize::default(), |body, e| BodySize {
            bytes: body.bytes + e.bytes(),
            slots: body.slots + e.insn.slots(),
            mentioned: body.mentioned | jit::mentioned(e.insn),
        })
    }
}

/// The lengths of blocks without their ends.
pub(super) struct CodeSizeEstimator<'b> {
    blocks: &'b [EmittedBlock],
    bodies: Vec<BodySize>,
    /// Bytes of what decides at the end of each block.
    deciding: Vec<u32>,
    frame: u32,
}

impl CodeSizeEstimator<'_> {
    pub(super) fn new(blocks: &[EmittedBlock]) -> CodeSizeEstimator<'_> {
        CodeSizeEstimator::of(blocks, blocks.iter().map(|b| BodySize::of(b.body.iter())).collect())
    }

    /// A meter for blocks whose bodies have been measured.
    pub(super) fn of(blocks: &[EmittedBlock], bodies: Vec<BodySize>) -> CodeSizeEstimator<'_> {
        let frame = jit::frame(bodies.iter().fold(0, |set, b| set | b.mentioned));
        let deciding = blocks.iter().map(|b| jit::body(comparison(b.term))).collect();
        CodeSizeEstimator { blocks, bodies, deciding, frame }
    }

    /// Length of the code with the blocks in this order.
    pub(super) fn length(&self, order: &[usize]) -> CodeLength {
        let mut pieces = Vec::with_capacity(2 * order.len());
        let mut first = vec![0; self.blocks.len()];
        let mut exit = None;
        let mut slots = 0;
        for (i, &b) in order.iter().enumerate() {
            first[b] = pieces.len();
            let BodySize { mut bytes, slots: body_slots, .. } = self.bodies[b];
            slots += body_slots;
            let term = self.blocks[b].term;
            for end in endings(term, order.get(i + 1).copied(), false).into_iter().flatten() {
                slots += 1;
                let jump = match end {
                    TerminatorInsn::Exit => match exit {
                        Some(to) => Some(jit::FragmentJump { to, plain: true }),
                        None => {
                            pieces.push(jit::CodeFragment::plain(std::mem::take(&mut bytes)));
                            exit = Some(pieces.len());
                            bytes = jit::EXIT;
                            None
                        }
                    },
                    // Block numbers until all are placed.
                    TerminatorInsn::Goto(to) => Some(jit::FragmentJump { to: !to, plain: true }),
                    TerminatorInsn::If { to, .. } | TerminatorInsn::May(to) => {
                        bytes += self.deciding[b];
                        Some(jit::FragmentJump { to: !to, plain: false })
                    }
                };
                pieces.push(jit::CodeFragment { bytes: std::mem::take(&mut bytes), jump });
            }
            if bytes > 0 {
                pieces.push(jit::CodeFragment::plain(bytes));
            }
        }
        for jump in pieces.iter_mut().filter_map(|p| p.jump.as_mut()) {
            if !jump.to < first.len() {
                jump.to = first[!jump.to];
            }
        }
        CodeLength { slots, jited: jit::relaxed(&pieces) + self.frame }
    }
}

/// The instruction that decides at the end of a block.
pub(super) fn comparison(term: Terminator) -> Insn {
    match term {
        Terminator::Branch { cond, width, dst, src, .. } => {
            let src = match src {
                SrcOperand::Reg(r) => Operand::Reg(r),
                SrcOperand::Imm(i) => Operand::Imm(i),
            };
            Insn::Branch { width, cond, dst, src, off: 0 }
        }
        Terminator::MayGoto { .. } => Insn::MayGoto { off: 0 },
        Terminator::Jump(_) | Terminator::Return => Insn::Exit,
    }
}

/// The length of blocks in an order that is quickly found.
pub(super) fn quick_length(blocks: &[EmittedBlock]) -> CodeLength {
    CodeSizeEstimator::new(blocks).length(&chained(blocks))
}

/// The best order found.
pub(super) fn best_order(blocks: &[EmittedBlock], limits: CodeLimits) -> Vec<usize> {
    let meter = CodeSizeEstimator::new(blocks);
    let cost = |order: &[usize]| limits.cost(meter.length(order));
    let (given, chained) = (source_order(blocks), chained(blocks));
    let (a, b) = (cost(&given), cost(&chained));
    let (mut order, mut now) = if a <= b { (given, a) } else { (chained, b) };
    let mut visits = MOST_VISITED / order.len().max(1);
    while let Some((better, then)) = moved(blocks, &order, now, &mut visits, &cost) {
        (order, now) = (better, then);
    }
    order
}

/// The order with one run of blocks moved, if that costs less.
fn moved(
    blocks: &[EmittedBlock],
    order: &[usize],
    now: usize,
    visits: &mut usize,
    cost: &dyn Fn(&[usize]) -> usize,
) -> Option<(Vec<usize>, usize)> {
    let falls = |i: usize| match blocks[order[i - 1]].term {
        Terminator::Return => false,
        Terminator::Jump(t) => t == order[i],
        Terminator::Branch { taken, fall, .. } => taken == order[i] || fall == order[i],
        Terminator::MayGoto { fall, .. } => fall == order[i],
    };
    let mut cuts: Vec<usize> = (1..order.len()).filter(|&i| !falls(i)).collect();
    cuts.push(order.len());
    let mut best: Option<(Vec<usize>, usize)> = None;
    for run in cuts.windows(2) {
        let (from, to) = (run[0], run[1]);
        for &at in cuts.iter().filter(|&&at| at < from || at > to) {
            if *visits == 0 {
                return best;
            }
            *visits -= 1;
            let mut other = order.to_vec();
            if at < from {
                other[at..to].rotate_right(to - from);
            } else {
                other[from..at].rotate_left(to - from);
            }
            let then = cost(&other);
            if then < best.as_ref().map_or(now, |b| b.1) {
                best = Some((other, then));
            }
        }
        if best.is_some() {
            return best;
        }
    }
    best
}

/// Jumps to a block that does nothing but leave become exits of their own, which are no longer: one jump less
/// on these ways. A block without predecessors then goes.
pub(super) fn duplicate_exit_blocks(blocks: &mut Vec<EmittedBlock>, order: &mut Vec<usize>) {
    let leaves: Vec<bool> =
        blocks.iter().map(|b| b.body.is_empty() && matches!(b.term, Terminator::Return)).collect();
    let mut left = Vec::with_capacity(order.len());
    for (i, &b) in order.iter().enumerate() {
        left.push(b);
        let next = order.get(i + 1).copied();
        match blocks[b].term {
            Terminator::Jump(to) if leaves[to] && Some(to) != next => blocks[b].term = Terminator::Return,
            Terminator::Branch { cond, width, dst, src, taken, fall }
                if leaves[fall] && Some(fall) != next && Some(taken) != next =>
            {
                let fall = blocks.len();
                blocks.push(EmittedBlock { body: Vec::new(), term: Terminator::Return, loc: blocks[b].loc });
                blocks[b].term = Terminator::Branch { cond, width, dst, src, taken, fall };
                left.push(fall);
            }
            _ => {}
        }
    }
    let reachable = reachable(blocks);
    left.retain(|&b| reachable[b]);
    *order = left;
}

fn reachable(blocks: &[EmittedBlock]) -> Vec<bool> {
    let mut reachable = vec![false; blocks.len()];
    let mut work = vec![0];
    reachable[0] = true;
    while let Some(b) = work.pop() {
        for s in successors(blocks[b].term) {
            if !std::mem::replace(&mut reachable[s], true) {
                work.push(s);
            }
        }
    }
    reachable
}

/// The reachable blocks in the order in which they came.
pub(super) fn source_order(blocks: &[EmittedBlock]) -> Vec<usize> {
    let reachable = reachable(blocks);
    (0..blocks.len()).filter(|&b| reachable[b]).collect()
}

/// An order in which few jumps are needed: each block is followed by the one it falls or jumps to, if that is
/// still free and nobody else must fall into it.
pub(super) fn chained(blocks: &[EmittedBlock]) -> Vec<usize> {
    let reachable = reachable(blocks);
    let mut fallers = vec![0u32; blocks.len()];
    for (block, _) in blocks.iter().zip(&reachable).filter(|(_, reachable)| **reachable) {
        if let Terminator::Branch { fall, .. } | Terminator::MayGoto { fall, .. } = block.term {
            fallers[fall] += 1;
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
                Terminator::Return => break,
                Terminator::Jump(t) if fallers[t] > 0 => break,
                Terminator::Jump(t) => t,
                Terminator::Branch { fall, .. } | Terminator::MayGoto { fall, .. } => {
                    fallers[fall] -= 1;
                    fall
                }
            };
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_isa::{Cond, Reg, Width};

    fn set(value: i32) -> EmittedInsn {
        let insn = Insn::Mov { width: Width::W64, dst: Reg::R0, src: Operand::Imm(value) };
        EmittedInsn { insn, sym: None, core: None, loc: 0, args: 0, undef: false }
    }

    fn branch(taken: usize, fall: usize) -> Terminator {
        Terminator::Branch {
            cond: Cond::Eq,
            width: Width::W64,
            dst: Reg::R1,
            src: SrcOperand::Imm(0),
            taken,
            fall,
        }
    }

    #[test]
    fn who_jumps_to_a_block_that_only_leaves_leaves_at_once() {
        let block = |body: Vec<EmittedInsn>, term| EmittedBlock { body, term, loc: 0 };
        let leave = || block(vec![], Terminator::Return);
        // One falls into it, one jumps there.
        let mut blocks = vec![
            block(vec![], branch(1, 2)),
            block(vec![set(1)], Terminator::Jump(3)),
            block(vec![set(2)], Terminator::Jump(3)),
            leave(),
        ];
        let mut order = vec![0, 2, 1, 3];
        let before = CodeSizeEstimator::new(&blocks).length(&order).slots;
        duplicate_exit_blocks(&mut blocks, &mut order);
        assert_eq!((blocks[1].term, blocks[2].term), (Terminator::Jump(3), Terminator::Return));
        assert_eq!(
            (order.as_slice(), CodeSizeEstimator::new(&blocks).length(&order).slots),
            ([0, 2, 1, 3].as_slice(), before)
        );
        // All come by a jump, one behind a branch neither of whose sides follows: nobody needs it.
        let mut blocks = vec![
            block(vec![], branch(2, 1)),
            block(vec![set(1)], branch(4, 3)),
            block(vec![set(2)], Terminator::Return),
            leave(),
            block(vec![set(4)], Terminator::Jump(3)),
        ];
        let mut order = vec![0, 1, 2, 3, 4];
        let before = CodeSizeEstimator::new(&blocks).length(&order).slots;
        duplicate_exit_blocks(&mut blocks, &mut order);
        assert_eq!((blocks[1].term, blocks[4].term), (branch(4, 5), Terminator::Return));
        assert_eq!(order, [0, 1, 5, 2, 4]);
        assert_eq!(CodeSizeEstimator::new(&blocks).length(&order).slots, before - 1);
    }
}
