//! The order of blocks, and how long the code is in a given order.
//!
//! Two orders are natural: the one that came in, which keeps together what the source kept together, and the one in
//! which each block is followed by the one it falls or jumps to. The cheaper is improved by moving runs of blocks about
//! while that helps: a jump that goes away saves a slot, one that comes into reach of a byte three or four bytes.

use super::assemble::{Ending, endings};
use super::code::{Code, Src, Term, successors};
use super::{Length, Limits};
use crate::jit;
use millstream_isa::{Insn, Operand};

/// Blocks visited by the search for a better order, over all the orders that it looks at.
const MOST_VISITED: usize = 60_000;

/// The lengths of blocks without their ends.
pub(super) struct Meter<'b> {
    blocks: &'b [Code],
    bodies: Vec<(u32, usize)>,
    frame: u32,
}

impl Meter<'_> {
    pub(super) fn new(blocks: &[Code]) -> Meter<'_> {
        let mut mentioned = 0;
        let bodies = blocks.iter().map(|b| {
            b.body.iter().fold((0, 0), |(bytes, slots), e| {
                mentioned |= jit::mentioned(e.insn);
                (bytes + e.bytes(), slots + e.insn.slots())
            })
        });
        let bodies = bodies.collect();
        Meter { blocks, bodies, frame: jit::frame(mentioned) }
    }

    /// How long the code is with the blocks in this order.
    pub(super) fn length(&self, order: &[usize]) -> Length {
        let mut pieces = Vec::with_capacity(2 * order.len());
        let mut first = vec![0; self.blocks.len()];
        let mut exit = None;
        let mut slots = 0;
        for (i, &b) in order.iter().enumerate() {
            first[b] = pieces.len();
            let (mut bytes, body_slots) = self.bodies[b];
            slots += body_slots;
            let term = self.blocks[b].term;
            for end in endings(term, order.get(i + 1).copied(), false).into_iter().flatten() {
                slots += 1;
                let jump = match end {
                    Ending::Exit => match exit {
                        Some(to) => Some(jit::Jump { to, plain: true }),
                        None => {
                            pieces.push(jit::Piece::plain(std::mem::take(&mut bytes)));
                            exit = Some(pieces.len());
                            bytes = jit::EXIT;
                            None
                        }
                    },
                    // Block numbers until all are placed.
                    Ending::Goto(to) => Some(jit::Jump { to: !to, plain: true }),
                    Ending::If { to, .. } | Ending::May(to) => {
                        bytes += jit::body(comparison(term));
                        Some(jit::Jump { to: !to, plain: false })
                    }
                };
                pieces.push(jit::Piece { bytes: std::mem::take(&mut bytes), jump });
            }
            if bytes > 0 {
                pieces.push(jit::Piece::plain(bytes));
            }
        }
        for jump in pieces.iter_mut().filter_map(|p| p.jump.as_mut()) {
            if !jump.to < first.len() {
                jump.to = first[!jump.to];
            }
        }
        Length { slots, jited: jit::relaxed(&pieces) + self.frame }
    }
}

/// The instruction that decides at the end of a block.
pub(super) fn comparison(term: Term) -> Insn {
    match term {
        Term::Branch { cond, width, dst, src, .. } => {
            let src = match src {
                Src::Reg(r) => Operand::Reg(r),
                Src::Imm(i) => Operand::Imm(i),
            };
            Insn::Branch { width, cond, dst, src, off: 0 }
        }
        Term::MayGoto { .. } => Insn::MayGoto { off: 0 },
        Term::Jump(_) | Term::Return => Insn::Exit,
    }
}

/// The length of blocks in an order that is quickly found.
pub(super) fn quick_length(blocks: &[Code]) -> Length {
    Meter::new(blocks).length(&chained(blocks))
}

/// The best order found.
pub(super) fn best(blocks: &[Code], limits: Limits) -> Vec<usize> {
    let meter = Meter::new(blocks);
    let cost = |order: &[usize]| limits.cost(meter.length(order));
    let (given, chained) = (given(blocks), chained(blocks));
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
    blocks: &[Code],
    order: &[usize],
    now: usize,
    visits: &mut usize,
    cost: &dyn Fn(&[usize]) -> usize,
) -> Option<(Vec<usize>, usize)> {
    let falls = |i: usize| match blocks[order[i - 1]].term {
        Term::Return => false,
        Term::Jump(t) => t == order[i],
        Term::Branch { taken, fall, .. } => taken == order[i] || fall == order[i],
        Term::MayGoto { fall, .. } => fall == order[i],
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

fn reachable(blocks: &[Code]) -> Vec<bool> {
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
pub(super) fn given(blocks: &[Code]) -> Vec<usize> {
    let reachable = reachable(blocks);
    (0..blocks.len()).filter(|&b| reachable[b]).collect()
}

/// An order in which few jumps are needed: each block is followed by the one it falls or jumps to, if that is still free
/// and nobody else must fall into it.
pub(super) fn chained(blocks: &[Code]) -> Vec<usize> {
    let reachable = reachable(blocks);
    let mut fallers = vec![0u32; blocks.len()];
    for (block, _) in blocks.iter().zip(&reachable).filter(|(_, reachable)| **reachable) {
        if let Term::Branch { fall, .. } | Term::MayGoto { fall, .. } = block.term {
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
                Term::Return => break,
                Term::Jump(t) if fallers[t] > 0 => break,
                Term::Jump(t) => t,
                Term::Branch { fall, .. } | Term::MayGoto { fall, .. } => {
                    fallers[fall] -= 1;
                    fall
                }
            };
        }
    }
    order
}
