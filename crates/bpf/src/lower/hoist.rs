//! Constants on the far side of a branch that are better made before it.
//!
//! The gain is known only when all is done: the constants made before the branch, those that are there
//! already then dropped everywhere, the whole measured. So there is a book of what each block adds to that,
//! and a trial touches the few blocks that it changes.

use millstream_isa::{Insn, Reg};

use super::code::{EmittedBlock, SrcOperand, Terminator, successors};
use super::layout::{BodySize, CodeSizeEstimator, chained};
use super::register_sets::{
    RegSet, RegisterConstants, bit, constant, constants_on_entry, constants_on_exit,
    drop_redundant_constants, effect, live_in, live_in_sets, redundant, register_summary, term_reads,
};
use super::{CodeLength, CodeLimits};

/// Blocks whose constants are tried before the branch, per function.
const MOST_TRIED: usize = 300;

/// A block of nothing but constants, reached by branches only, costs its own jump. Where a register is free
/// on the other side of a branch too, the constant may be made before it, once for several branches in a row.
pub(super) fn hoist_constants(blocks: &mut [EmittedBlock], limits: CodeLimits) {
    let mut live = live_in(blocks);
    let mut book = HoistState::default();
    for e in (1..blocks.len()).take(MOST_TRIED) {
        let Terminator::Jump(to) = blocks[e].term else { continue };
        let constants = blocks[e].body.iter().all(|i| constant(i).is_some());
        if blocks[e].body.is_empty() || blocks[e].body.len() > 2 || !constants || to == e {
            continue;
        }
        let Some(before) = branches_to(blocks, &live, e) else { continue };
        let now = *book.now.get_or_insert_with(|| limits.cost(length(blocks)));
        if book.entries.is_empty() {
            book = HoistState { now: Some(now), ..HoistState::of(blocks) };
        }
        let old: Vec<EmittedBlock> = before.iter().map(|&p| blocks[p].clone()).collect();
        let free = before.iter().all(|&p| free_operands(blocks, &live, p, e));
        let then = free.then(|| {
            hoist(blocks, &before, e, to);
            let (length, known) = book.without_redundant(blocks, &before);
            debug_assert_eq!(length, length_without_redundant(blocks), "the book is wrong");
            (limits.cost(length), known)
        });
        match then.filter(|then| then.0 < now) {
            Some((then, known)) => {
                book.settle(blocks, &before, then, known);
                live = book.live(blocks);
            }
            None => before.iter().zip(old).for_each(|(&p, old)| blocks[p] = old),
        }
    }
}

fn length(blocks: &[EmittedBlock]) -> CodeLength {
    CodeSizeEstimator::new(blocks).length(&chained(blocks))
}

/// The length that a book computes, found without one.
fn length_without_redundant(blocks: &[EmittedBlock]) -> CodeLength {
    let mut blocks = blocks.to_vec();
    drop_redundant_constants(&mut blocks);
    length(&blocks)
}

/// Facts about the blocks of a function, as they are without a trial.
#[derive(Default)]
struct HoistState {
    /// Cost of the current code.
    now: Option<usize>,
    entries: Vec<BlockSummary>,
    /// Constants that registers hold on entry of each block.
    known: Vec<Option<RegisterConstants>>,
}

/// Facts about one block.
struct BlockSummary {
    /// Constants that it leaves in registers, and the registers that it writes.
    left: (RegisterConstants, RegSet),
    /// Registers that it reads on entry, and those that it writes.
    sum: (RegSet, RegSet),
    /// True if it makes constants.
    constants: bool,
    /// Its body without the constants that are there already.
    body: BodySize,
}

impl HoistState {
    fn of(blocks: &[EmittedBlock]) -> HoistState {
        let left: Vec<(RegisterConstants, RegSet)> = blocks.iter().map(constants_on_exit).collect();
        let known = constants_on_entry(blocks, &left);
        let entries = left.into_iter().enumerate();
        let entries =
            entries.map(|(b, left)| BlockSummary::of(&blocks[b], left, known[b].as_ref())).collect();
        HoistState { now: None, entries, known }
    }

    /// The length of the code after some blocks have changed, without constants that are there already, and
    /// the constants that registers then hold on entry of each block.
    fn without_redundant(
        &self,
        blocks: &[EmittedBlock],
        changed: &[usize],
    ) -> (CodeLength, Vec<Option<RegisterConstants>>) {
        let mut left: Vec<(RegisterConstants, RegSet)> = self.entries.iter().map(|e| e.left).collect();
        for &b in changed {
            left[b] = constants_on_exit(&blocks[b]);
        }
        let known = constants_on_entry(blocks, &left);
        let body = |b: usize| {
            let entry = &self.entries[b];
            let same = !changed.contains(&b) && (!entry.constants || known[b] == self.known[b]);
            if same { entry.body } else { body_without(&blocks[b], known[b].as_ref()) }
        };
        let bodies = (0..blocks.len()).map(body).collect();
        (CodeSizeEstimator::of(blocks, bodies).length(&chained(blocks)), known)
    }

    /// Registers live on entry of each block, as the book has them.
    fn live(&self, blocks: &[EmittedBlock]) -> Vec<RegSet> {
        let sums: Vec<(RegSet, RegSet)> = self.entries.iter().map(|e| e.sum).collect();
        let live = live_in_sets(blocks, &sums);
        debug_assert!(live == live_in(blocks), "the book is wrong");
        live
    }

    /// Drops the constants that are there already after a trial that paid, and says so in the book.
    fn settle(
        &mut self,
        blocks: &mut [EmittedBlock],
        changed: &[usize],
        now: usize,
        known: Vec<Option<RegisterConstants>>,
    ) {
        // What registers hold on entry of blocks does not change by that, unless a branch then tests what
        // another instruction has written.
        let mut tested = false;
        for (b, entry) in self.entries.iter_mut().enumerate() {
            let hoisted = changed.contains(&b);
            if !hoisted && !entry.constants {
                continue;
            }
            let EmittedBlock { body, term, .. } = &mut blocks[b];
            let (before, read) = (body.len(), term_reads(*term));
            if let Some(mut now) = known[b] {
                body.retain(|e| {
                    let dropped = redundant(&mut now, e);
                    tested |= dropped && effect(e).1 & read != 0;
                    !dropped
                });
            }
            if hoisted || body.len() != before || known[b] != self.known[b] {
                *entry = BlockSummary::of(&blocks[b], constants_on_exit(&blocks[b]), known[b].as_ref());
            }
        }
        self.known = known;
        if tested {
            *self = HoistState::of(blocks);
        }
        self.now = Some(now);
        debug_assert!(self.known == HoistState::of(blocks).known, "the book is wrong");
    }
}

impl BlockSummary {
    fn of(
        block: &EmittedBlock,
        left: (RegisterConstants, RegSet),
        known: Option<&RegisterConstants>,
    ) -> BlockSummary {
        let constants = block.body.iter().any(|e| constant(e).is_some());
        BlockSummary { left, sum: register_summary(block), constants, body: body_without(block, known) }
    }
}

/// A block without constants that registers hold already, given their contents on entry if it is reached.
fn body_without(block: &EmittedBlock, known: Option<&RegisterConstants>) -> BodySize {
    match known {
        None => BodySize::of(block.body.iter()),
        Some(known) => {
            let mut now = *known;
            BodySize::of(block.body.iter().filter(|e| !redundant(&mut now, e)))
        }
    }
}

/// The blocks that branch to `e`, if its constants may be made before all of them.
fn branches_to(blocks: &[EmittedBlock], live: &[RegSet], e: usize) -> Option<Vec<usize>> {
    let written: RegSet = blocks[e].body.iter().filter_map(constant).fold(0, |acc, (r, _)| acc | bit(r));
    let mut preds = Vec::new();
    for (b, block) in blocks.iter().enumerate() {
        let hit = |t: usize| t == e;
        match block.term {
            Terminator::Branch { taken, fall, .. } if hit(taken) || hit(fall) => {
                let other = if hit(taken) { fall } else { taken };
                if other == e || live[other] & written != 0 {
                    return None;
                }
                preds.push(b);
            }
            Terminator::Jump(t) if hit(t) => return None,
            Terminator::MayGoto { taken, fall } if hit(taken) || hit(fall) => return None,
            _ => {}
        }
    }
    (!preds.is_empty()).then_some(preds)
}

/// Frees the operands of a block's branch of the registers that the constants of block `e` write: an operand
/// may be made in another register, if it is made in the block and for the branch alone.
fn free_operands(blocks: &mut [EmittedBlock], live: &[RegSet], block: usize, e: usize) -> bool {
    let written: RegSet = blocks[e].body.iter().filter_map(constant).fold(0, |acc, (r, _)| acc | bit(r));
    let taken = term_reads(blocks[block].term) & written;
    if taken == 0 {
        return true;
    }
    let out = successors(blocks[block].term).fold(0, |acc, s| acc | live[s]);
    let Terminator::Branch { dst, src, .. } = blocks[block].term else { return false };
    if taken != bit(dst) || src == SrcOperand::Reg(dst) || out & bit(dst) != 0 {
        return false;
    }
    let mut used = out | written | term_reads(blocks[block].term);
    for i in (0..blocks[block].body.len()).rev() {
        let (reads, writes) = effect(&blocks[block].body[i]);
        if writes & bit(dst) == 0 {
            if reads & bit(dst) != 0 {
                return false;
            }
            used |= reads | writes;
            continue;
        }
        let Some(spare) = (0..5u8).find(|r| used & 1 << r == 0).and_then(Reg::new) else { return false };
        let (Insn::Load { dst: made, .. } | Insn::Mov { dst: made, .. }) = &mut blocks[block].body[i].insn
        else {
            return false;
        };
        *made = spare;
        if let Terminator::Branch { dst, .. } = &mut blocks[block].term {
            *dst = spare;
        }
        return true;
    }
    false
}

/// Moves the constants of block `e`, which jumps to `to`, before the branches to it.
fn hoist(blocks: &mut [EmittedBlock], before: &[usize], e: usize, to: usize) {
    let body = blocks[e].body.clone();
    for &p in before {
        blocks[p].body.extend(body.iter().cloned());
        if let Terminator::Branch { taken, fall, .. } = &mut blocks[p].term {
            for t in [taken, fall] {
                if *t == e {
                    *t = to;
                }
            }
        }
    }
}
