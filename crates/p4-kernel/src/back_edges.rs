//! Back edges that Linux 6.1 rejects: from an instruction that is no jump to the next one.
//!
//! Its `check_cfg` walks depth first, what falls through before what jumps. An edge to an instruction that the walk has
//! not left is a loop, which only jumps may close.

use millstream_isa::Insn;

/// Successors of an instruction by their slots: the one that falls through, and the target of a jump.
fn successors(insn: &Insn, slot: usize) -> [Option<usize>; 2] {
    let next = Some(slot + insn.slots());
    let to = |off: i64| usize::try_from(slot as i64 + 1 + off).ok();
    match *insn {
        Insn::Exit => [None, None],
        Insn::Jump { off, .. } => [None, to(i64::from(off))],
        Insn::Branch { off, .. } | Insn::MayGoto { off } => [next, to(i64::from(off))],
        _ => [next, None],
    }
}

/// State of an instruction in the walk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    New,
    Open,
    Left,
}

/// Tells if the code has such an edge.
pub(crate) fn has_falling_back_edge(insns: &[Insn]) -> bool {
    let mut at_slot = Vec::new();
    for insn in insns {
        at_slot.push(Some(insn));
        at_slot.extend((1..insn.slots()).map(|_| None));
    }
    let mut visits = vec![Visit::New; at_slot.len()];
    let mut open = vec![(0, 0)];
    while let Some((slot, edge)) = open.last_mut() {
        let Some(insn) = at_slot.get(*slot).copied().flatten() else { return false };
        visits[*slot] = Visit::Open;
        let Some(to) = successors(insn, *slot).get(*edge).copied() else {
            visits[*slot] = Visit::Left;
            open.pop();
            continue;
        };
        let falls = *edge == 0 && !matches!(insn, Insn::Branch { .. } | Insn::MayGoto { .. });
        *edge += 1;
        match to.map(|to| (to, visits.get(to))) {
            Some((_, Some(Visit::Open))) if falls => return true,
            Some((to, Some(Visit::New))) => open.push((to, 0)),
            _ => {}
        }
    }
    false
}
