//! Constants on the far side of a branch that are better made before it.
//!
//! The gain is known only when all is done: the constants made before the branch, those that are there
//! already then dropped everywhere, the whole measured. So there is a book of what each block adds to that,
//! and a trial touches the few blocks that it changes.

use millstream_isa::{Insn, Reg};

use super::code::{Code, Src, Term, successors};
use super::layout::{Body, Meter, chained};
use super::tidy::{
    Known, RegSet, bit, constant, drop_redundant_constants, effect, known_behind, left_by, live_behind,
    live_in, redundant, sum, term_reads,
};
use super::{Length, Limits};

/// Blocks whose constants are tried before the branch, per function.
const MOST_TRIED: usize = 300;

/// A block of nothing but constants, reached by branches only, costs its own jump. Where a register is free on the
/// other side of a branch too, the constant may be made before it, once for several branches in a row.
pub(super) fn hoist_constants(blocks: &mut [Code], limits: Limits) {
    let mut live = live_in(blocks);
    let mut book = Book::default();
    for e in (1..blocks.len()).take(MOST_TRIED) {
        let Term::Jump(to) = blocks[e].term else { continue };
        let constants = blocks[e].body.iter().all(|i| constant(i).is_some());
        if blocks[e].body.is_empty() || blocks[e].body.len() > 2 || !constants || to == e {
            continue;
        }
        let Some(before) = branches_to(blocks, &live, e) else { continue };
        let now = *book.now.get_or_insert_with(|| limits.cost(length(blocks)));
        if book.entries.is_empty() {
            book = Book { now: Some(now), ..Book::of(blocks) };
        }
        let old: Vec<Code> = before.iter().map(|&p| blocks[p].clone()).collect();
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

fn length(blocks: &[Code]) -> Length {
    Meter::new(blocks).length(&chained(blocks))
}

/// The length that a book computes, found without one.
fn length_without_redundant(blocks: &[Code]) -> Length {
    let mut blocks = blocks.to_vec();
    drop_redundant_constants(&mut blocks);
    length(&blocks)
}

/// Facts about the blocks of a function, as they are without a trial.
#[derive(Default)]
struct Book {
    /// Cost of the current code.
    now: Option<usize>,
    entries: Vec<Entry>,
    /// Constants that registers hold on entry of each block.
    known: Vec<Option<Known>>,
}

/// Facts about one block.
struct Entry {
    /// Constants that it leaves in registers, and the registers that it writes.
    left: (Known, RegSet),
    /// Registers that it reads on entry, and those that it writes.
    sum: (RegSet, RegSet),
    /// True if it makes constants.
    constants: bool,
    /// Its body without the constants that are there already.
    body: Body,
}

impl Book {
    fn of(blocks: &[Code]) -> Book {
        let left: Vec<(Known, RegSet)> = blocks.iter().map(left_by).collect();
        let known = known_behind(blocks, &left);
        let entries = left.into_iter().enumerate();
        let entries = entries.map(|(b, left)| Entry::of(&blocks[b], left, known[b].as_ref())).collect();
        Book { now: None, entries, known }
    }

    /// The length of the code after some blocks have changed, without constants that are there already, and
    /// the constants that registers then hold on entry of each block.
    fn without_redundant(&self, blocks: &[Code], changed: &[usize]) -> (Length, Vec<Option<Known>>) {
        let mut left: Vec<(Known, RegSet)> = self.entries.iter().map(|e| e.left).collect();
        for &b in changed {
            left[b] = left_by(&blocks[b]);
        }
        let known = known_behind(blocks, &left);
        let body = |b: usize| {
            let entry = &self.entries[b];
            let same = !changed.contains(&b) && (!entry.constants || known[b] == self.known[b]);
            if same { entry.body } else { body_without(&blocks[b], known[b].as_ref()) }
        };
        let bodies = (0..blocks.len()).map(body).collect();
        (Meter::of(blocks, bodies).length(&chained(blocks)), known)
    }

    /// Registers live on entry of each block, as the book has them.
    fn live(&self, blocks: &[Code]) -> Vec<RegSet> {
        let sums: Vec<(RegSet, RegSet)> = self.entries.iter().map(|e| e.sum).collect();
        let live = live_behind(blocks, &sums);
        debug_assert!(live == live_in(blocks), "the book is wrong");
        live
    }

    /// Drops the constants that are there already after a trial that paid, and says so in the book.
    fn settle(&mut self, blocks: &mut [Code], changed: &[usize], now: usize, known: Vec<Option<Known>>) {
        // What registers hold on entry of blocks does not change by that, unless a branch then tests what another
        // instruction has written.
        let mut tested = false;
        for (b, entry) in self.entries.iter_mut().enumerate() {
            let hoisted = changed.contains(&b);
            if !hoisted && !entry.constants {
                continue;
            }
            let Code { body, term, .. } = &mut blocks[b];
            let (before, read) = (body.len(), term_reads(*term));
            if let Some(mut now) = known[b] {
                body.retain(|e| {
                    let dropped = redundant(&mut now, e);
                    tested |= dropped && effect(e).1 & read != 0;
                    !dropped
                });
            }
            if hoisted || body.len() != before || known[b] != self.known[b] {
                *entry = Entry::of(&blocks[b], left_by(&blocks[b]), known[b].as_ref());
            }
        }
        self.known = known;
        if tested {
            *self = Book::of(blocks);
        }
        self.now = Some(now);
        debug_assert!(self.known == Book::of(blocks).known, "the book is wrong");
    }
}

impl Entry {
    fn of(block: &Code, left: (Known, RegSet), known: Option<&Known>) -> Entry {
        let constants = block.body.iter().any(|e| constant(e).is_some());
        Entry { left, sum: sum(block), constants, body: body_without(block, known) }
    }
}

/// A block without constants that registers hold already, given their contents on entry if it is reached.
fn body_without(block: &Code, known: Option<&Known>) -> Body {
    match known {
        None => Body::of(block.body.iter()),
        Some(known) => {
            let mut now = *known;
            Body::of(block.body.iter().filter(|e| !redundant(&mut now, e)))
        }
    }
}

/// The blocks that branch to `e`, if its constants may be made before all of them.
fn branches_to(blocks: &[Code], live: &[RegSet], e: usize) -> Option<Vec<usize>> {
    let written: RegSet = blocks[e].body.iter().filter_map(constant).fold(0, |acc, (r, _)| acc | bit(r));
    let mut preds = Vec::new();
    for (b, block) in blocks.iter().enumerate() {
        let hit = |t: usize| t == e;
        match block.term {
            Term::Branch { taken, fall, .. } if hit(taken) || hit(fall) => {
                let other = if hit(taken) { fall } else { taken };
                if other == e || live[other] & written != 0 {
                    return None;
                }
                preds.push(b);
            }
            Term::Jump(t) if hit(t) => return None,
            Term::MayGoto { taken, fall } if hit(taken) || hit(fall) => return None,
            _ => {}
        }
    }
    (!preds.is_empty()).then_some(preds)
}

/// Frees the operands of a block's branch of the registers that the constants of block `e` write: an operand
/// may be made in another register, if it is made in the block and for the branch alone.
fn free_operands(blocks: &mut [Code], live: &[RegSet], block: usize, e: usize) -> bool {
    let written: RegSet = blocks[e].body.iter().filter_map(constant).fold(0, |acc, (r, _)| acc | bit(r));
    let taken = term_reads(blocks[block].term) & written;
    if taken == 0 {
        return true;
    }
    let out = successors(blocks[block].term).fold(0, |acc, s| acc | live[s]);
    let Term::Branch { dst, src, .. } = blocks[block].term else { return false };
    if taken != bit(dst) || src == Src::Reg(dst) || out & bit(dst) != 0 {
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
        if let Term::Branch { dst, .. } = &mut blocks[block].term {
            *dst = spare;
        }
        return true;
    }
    false
}

/// Moves the constants of block `e`, which jumps to `to`, before the branches to it.
fn hoist(blocks: &mut [Code], before: &[usize], e: usize, to: usize) {
    let body = blocks[e].body.clone();
    for &p in before {
        blocks[p].body.extend(body.iter().cloned());
        if let Term::Branch { taken, fall, .. } = &mut blocks[p].term {
            for t in [taken, fall] {
                if *t == e {
                    *t = to;
                }
            }
        }
    }
}
