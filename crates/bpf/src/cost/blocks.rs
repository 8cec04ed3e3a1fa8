//! Basic blocks of bytecode.

use millstream_isa::Insn;

/// The blocks of a function, in the order of the code.
pub(super) struct BlockGraph {
    /// Index of each block's first instruction, and the number of instructions.
    starts: Vec<usize>,
    /// Successors of each block: the target of the taken jump, then the fall-through.
    succs: Vec<[Option<usize>; 2]>,
    preds: Vec<Vec<usize>>,
    order: Vec<usize>,
    /// Each block's place in the order.
    position: Vec<usize>,
}

impl BlockGraph {
    pub(super) fn new(insns: &[Insn]) -> BlockGraph {
        let mut slots = Vec::with_capacity(insns.len());
        let mut at = 0i64;
        for i in insns {
            slots.push(at);
            at += i.slots() as i64;
        }
        let index = |slot: i64| slots.partition_point(|&s| s < slot);
        let target = |n: usize| jump(insns[n]).map(|off| index(slots[n] + 1 + off));
        let mut leader = vec![false; insns.len() + 1];
        leader[0] = true;
        for (n, insn) in insns.iter().enumerate() {
            if let Some(to) = target(n) {
                leader[to.min(insns.len())] = true;
            }
            leader[n + 1] |= jump(*insn).is_some() || matches!(insn, Insn::Exit);
        }
        leader[insns.len()] = true;
        let starts: Vec<usize> = (0..=insns.len()).filter(|&n| leader[n]).collect();
        let count = starts.len() - 1;
        let block = |n: usize| starts.binary_search(&n).ok().filter(|&b| b < count);
        let succs: Vec<[Option<usize>; 2]> = (0..count)
            .map(|b| {
                let last = starts[b + 1] - 1;
                let falls = !matches!(insns[last], Insn::Exit | Insn::Jump { .. });
                [target(last).and_then(block), falls.then(|| block(last + 1)).flatten()]
            })
            .collect();
        let mut preds = vec![Vec::new(); count];
        for (b, to) in succs.iter().enumerate() {
            for &s in to.iter().flatten() {
                preds[s].push(b);
            }
        }
        let order = reverse_postorder(&succs);
        let mut position = vec![0; count];
        for (n, &b) in order.iter().enumerate() {
            position[b] = n;
        }
        BlockGraph { starts, succs, preds, order, position }
    }

    pub(super) fn len(&self) -> usize {
        self.succs.len()
    }

    /// The instructions of a block, from and to.
    pub(super) fn range(&self, b: usize) -> (usize, usize) {
        (self.starts[b], self.starts[b + 1])
    }

    /// Successors of a block: the target of the taken jump, then the fall-through.
    pub(super) fn succs(&self, b: usize) -> [Option<usize>; 2] {
        self.succs[b]
    }

    pub(super) fn preds(&self, b: usize) -> &[usize] {
        &self.preds[b]
    }

    /// Number of times that one block is entered from another, given the count of each block. The number is
    /// exact where all other flow in or out is known, else an upper bound.
    pub(super) fn passes(&self, from: usize, to: usize, counts: &[u64]) -> u64 {
        let other = |b: usize| self.succs[b].into_iter().flatten().find(|&s| s != to);
        let only = |b: usize| self.preds[b].iter().all(|&p| p == from);
        let Some(away) = other(from) else { return counts[from] };
        if only(to) {
            return counts[to];
        }
        if only(away) {
            return counts[from].saturating_sub(counts[away]);
        }
        let certain = self.preds[to].iter().filter(|&&p| p != from && other(p).is_none());
        counts[to].saturating_sub(certain.map(|&p| counts[p]).sum()).min(counts[from])
    }

    /// Reports whether an edge is a back edge: one that goes back in the order, as only loops do.
    pub(super) fn is_back_edge(&self, from: usize, to: usize) -> bool {
        self.position[to] <= self.position[from]
    }

    pub(super) fn has_loops(&self) -> bool {
        let back = |b: usize| self.succs[b].iter().flatten().any(|&s| self.is_back_edge(b, s));
        self.order.iter().any(|&b| back(b))
    }

    /// Reachable blocks in reverse postorder.
    pub(super) fn order(&self) -> &[usize] {
        &self.order
    }
}

fn jump(insn: Insn) -> Option<i64> {
    match insn {
        Insn::Jump { off, .. } => Some(i64::from(off)),
        Insn::Branch { off, .. } | Insn::MayGoto { off } => Some(i64::from(off)),
        _ => None,
    }
}

fn reverse_postorder(succs: &[[Option<usize>; 2]]) -> Vec<usize> {
    let mut seen = vec![false; succs.len()];
    let mut order = Vec::with_capacity(succs.len());
    let mut stack = Vec::new();
    if !succs.is_empty() {
        seen[0] = true;
        stack.push((0, 0));
    }
    while let Some((b, next)) = stack.pop() {
        let Some(&to) = succs[b].get(next) else {
            order.push(b);
            continue;
        };
        stack.push((b, next + 1));
        if let Some(s) = to.filter(|&s| !seen[s]) {
            seen[s] = true;
            stack.push((s, 0));
        }
    }
    order.reverse();
    order
}
