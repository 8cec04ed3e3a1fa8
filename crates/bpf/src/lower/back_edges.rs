//! Back edges that verifiers before Linux 6.7 reject: from an instruction that is no jump to the next one.
//!
//! Their `check_cfg` walks depth first, what falls through before what jumps. An edge to an instruction that the
//! walk has not left is a loop, which only a jump may close (`loop_ok` of `push_insn`, `kernel/bpf/verifier.c`).

use millstream_isa::generation::{KernelRange, VerifierGeneration};

use super::assemble::{TerminatorInsn, endings};
use super::code::{EmittedBlock, Terminator};

/// State of a block in the walk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    New,
    Open,
    Left,
}

/// Blocks, laid out in an order, that need a jump to the next one for these kernels.
pub(super) fn blocks_closed_by_jumps(
    blocks: &[EmittedBlock],
    order: &[usize],
    kernels: KernelRange,
) -> Vec<bool> {
    let mut closed = vec![false; blocks.len()];
    let (Some(&entry), true) = (order.first(), kernels.generations().any(|g| g <= VerifierGeneration::V6_1))
    else {
        return closed;
    };
    let mut next = vec![None; blocks.len()];
    order.windows(2).for_each(|pair| next[pair[0]] = Some(pair[1]));
    let mut visits = vec![Visit::New; blocks.len()];
    let mut open = vec![(entry, 0)];
    while let Some((block, edge)) = open.last_mut() {
        let block = *block;
        visits[block] = Visit::Open;
        let Some(&to) = successors(blocks[block].term, next[block]).get(*edge) else {
            visits[block] = Visit::Left;
            open.pop();
            continue;
        };
        *edge += 1;
        let Some(to) = to else { continue };
        match visits[to] {
            Visit::New => open.push((to, 0)),
            Visit::Open if blocks[block].term == Terminator::Jump(to) && next[block] == Some(to) => {
                closed[block] = true;
            }
            Visit::Open | Visit::Left => {}
        }
    }
    closed
}

/// Successors of a block in the order of the walk: where the code goes on behind a conditional jump, and its target.
fn successors(term: Terminator, next: Option<usize>) -> [Option<usize>; 2] {
    let (mut falls, mut jumps) = (next, None);
    for end in endings(term, next, false).into_iter().flatten() {
        match end {
            TerminatorInsn::Exit => falls = None,
            TerminatorInsn::Goto(to) => falls = Some(to),
            TerminatorInsn::If { to, .. } | TerminatorInsn::May(to) => jumps = Some(to),
        }
    }
    [falls, jumps]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::code::SrcOperand;
    use millstream_ir::{Cond, Width};
    use millstream_isa::Reg;

    #[test]
    fn a_block_that_falls_into_the_header_of_its_loop_needs_a_jump_for_old_kernels() {
        let block = |term| EmittedBlock { body: Vec::new(), term, loc: 0 };
        let (cond, width, dst, src) = (Cond::Lt, Width::W64, Reg::R1, SrcOperand::Imm(9));
        let header = Terminator::Branch { cond, width, dst, src, taken: 1, fall: 3 };
        let blocks = [Terminator::Jump(2), Terminator::Jump(2), header, Terminator::Return].map(block);
        let closed = |order: &[usize], kernels| blocks_closed_by_jumps(&blocks, order, kernels);
        let of_61 = KernelRange::only(VerifierGeneration::V6_1);
        assert_eq!(closed(&[0, 1, 2, 3], of_61), [false, true, false, false]);
        assert_eq!(closed(&[0, 1, 2, 3], KernelRange::ALL), [false, true, false, false]);
        assert_eq!(closed(&[0, 1, 2, 3], KernelRange::since(VerifierGeneration::V6_12)), [false; 4]);
        // Here the loop's end jumps back as it is.
        assert_eq!(closed(&[0, 2, 1, 3], of_61), [false; 4]);
        // So does it as the last block.
        assert_eq!(closed(&[0, 2, 3, 1], of_61), [false; 4]);
    }
}
