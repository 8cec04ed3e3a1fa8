//! Blocks of bytecode before layout: empty and equal blocks merged.

use millstream_isa::Insn;
use rustc_hash::FxHashMap;

use super::code::{EmittedBlock, EmittedInsn, Terminator};

/// Jumps to a block that only jumps on go to its target.
pub(super) fn thread_empty_blocks(blocks: &mut [EmittedBlock]) {
    let resolve = |blocks: &[EmittedBlock], start: usize| {
        let mut b = start;
        for _ in 0..blocks.len() {
            match blocks[b] {
                EmittedBlock { ref body, term: Terminator::Jump(next), .. }
                    if body.is_empty() && next != b =>
                {
                    b = next
                }
                _ => break,
            }
        }
        b
    };
    for b in 0..blocks.len() {
        let mut term = blocks[b].term;
        match &mut term {
            Terminator::Return => {}
            Terminator::Jump(t) => *t = resolve(blocks, *t),
            Terminator::Branch { taken, fall, .. } | Terminator::MayGoto { taken, fall } => {
                *taken = resolve(blocks, *taken);
                *fall = resolve(blocks, *fall);
            }
        }
        // Before Linux 6.14, `may_goto` to the next instruction is refused.
        if let Terminator::Branch { taken, fall, .. } | Terminator::MayGoto { taken, fall } = term
            && taken == fall
        {
            term = Terminator::Jump(taken);
        }
        blocks[b].term = term;
    }
}

/// Blocks that are equal but for their place become one. Source lines may differ: the first one's are kept.
pub(super) fn merge_equal(blocks: &mut [EmittedBlock]) {
    let same = |a: &EmittedBlock, b: &EmittedBlock| {
        let insn = |e: &EmittedInsn| (e.insn, e.sym, e.core);
        a.term == b.term
            && a.body.len() == b.body.len()
            && a.body.iter().zip(&b.body).all(|(x, y)| insn(x) == insn(y) && !touches_memory(x.insn))
    };
    let mut alike: FxHashMap<(Terminator, usize), Vec<usize>> = FxHashMap::default();
    for b in 1..blocks.len() {
        if blocks[b].body.is_empty() && !matches!(blocks[b].term, Terminator::Return) {
            continue;
        }
        let earlier = alike.entry((blocks[b].term, blocks[b].body.len())).or_default();
        match earlier.iter().find(|&&a| same(&blocks[a], &blocks[b])) {
            Some(&first) => {
                blocks[b] =
                    EmittedBlock { body: Vec::new(), term: Terminator::Jump(first), loc: blocks[b].loc };
            }
            None => earlier.push(b),
        }
    }
    thread_empty_blocks(blocks);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_between_two_ways_to_one_place_is_none() {
        let block = |term| EmittedBlock { body: Vec::new(), term, loc: 0 };
        let may = Terminator::MayGoto { taken: 1, fall: 2 };
        let mut blocks = [block(may), block(Terminator::Jump(2)), block(Terminator::Return)];
        thread_empty_blocks(&mut blocks);
        assert_eq!(blocks[0].term, Terminator::Jump(2));
    }
}
