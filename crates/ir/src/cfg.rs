//! Control-flow graph, dominator tree and loops, computed on demand.

use cranelift_entity::SecondaryMap;
use cranelift_entity::packed_option::PackedOption;

use crate::entities::Block;
use crate::func::Function;

/// Predecessors and a reverse postorder of the reachable blocks.
#[derive(Clone, Debug)]
pub struct Cfg {
    /// Predecessors, one entry an edge, so that a block may occur twice.
    pub preds: SecondaryMap<Block, Vec<Block>>,
    /// Reachable blocks in reverse postorder, the entry first.
    pub rpo: Vec<Block>,
    /// Position in `rpo`, or `u32::MAX` for unreachable blocks.
    pub rpo_index: SecondaryMap<Block, u32>,
}

impl Cfg {
    /// Computes the graph of a function.
    pub fn new(func: &Function) -> Cfg {
        let mut preds: SecondaryMap<Block, Vec<Block>> = SecondaryMap::with_capacity(func.blocks.len());
        let mut rpo = postorder(func);
        rpo.reverse();
        let mut rpo_index = SecondaryMap::with_default(u32::MAX);
        for (i, &block) in rpo.iter().enumerate() {
            rpo_index[block] = i as u32;
            for target in func.targets(block) {
                preds[target.block].push(block);
            }
        }
        Cfg { preds, rpo, rpo_index }
    }

    /// Returns true if control can reach the block.
    pub fn is_reachable(&self, block: Block) -> bool {
        self.rpo_index[block] != u32::MAX
    }
}

fn postorder(func: &Function) -> Vec<Block> {
    let mut order = Vec::with_capacity(func.layout.len());
    let mut seen: SecondaryMap<Block, bool> = SecondaryMap::with_capacity(func.blocks.len());
    let mut stack = vec![(func.entry(), 0)];
    seen[func.entry()] = true;
    while let Some((block, next)) = stack.last_mut() {
        // The taken side first, so that the fall-through side of a branch follows it in reverse postorder.
        let Some(target) = func.targets(*block).get(*next).map(|t| t.block) else {
            order.push(*block);
            stack.pop();
            continue;
        };
        *next += 1;
        if !seen[target] {
            seen[target] = true;
            stack.push((target, 0));
        }
    }
    order
}

/// Immediate dominators (Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm").
#[derive(Clone, Debug)]
pub struct DomTree {
    idom: SecondaryMap<Block, PackedOption<Block>>,
    // Preorder and postorder numbers in the tree: ancestor tests in constant time.
    span: SecondaryMap<Block, (u32, u32)>,
    children: SecondaryMap<Block, Vec<Block>>,
}

impl DomTree {
    /// Computes the tree.
    pub fn new(func: &Function, cfg: &Cfg) -> DomTree {
        let mut idom: SecondaryMap<Block, PackedOption<Block>> = SecondaryMap::new();
        let entry = func.entry();
        idom[entry] = entry.into();
        let mut changed = true;
        while changed {
            changed = false;
            for &block in &cfg.rpo[1..] {
                let known = cfg.preds[block].iter().copied().filter(|&p| idom[p].is_some());
                let new = known.reduce(|a, b| intersect(&idom, cfg, a, b));
                if idom[block].expand() != new {
                    idom[block] = new.into();
                    changed = true;
                }
            }
        }
        idom[entry] = None.into();
        let mut tree = DomTree { idom, span: SecondaryMap::new(), children: SecondaryMap::new() };
        for &block in &cfg.rpo[1..] {
            if let Some(parent) = tree.idom[block].expand() {
                tree.children[parent].push(block);
            }
        }
        tree.number(entry);
        tree
    }

    fn number(&mut self, entry: Block) {
        let mut clock = 1;
        self.span[entry].0 = clock;
        let mut stack = vec![(entry, 0)];
        while let Some((block, next)) = stack.last_mut() {
            clock += 1;
            if let Some(&child) = self.children[*block].get(*next) {
                *next += 1;
                self.span[child].0 = clock;
                stack.push((child, 0));
            } else {
                self.span[*block].1 = clock;
                stack.pop();
            }
        }
    }

    /// The immediate dominator; `None` for the entry and for unreachable blocks.
    pub fn idom(&self, block: Block) -> Option<Block> {
        self.idom[block].expand()
    }

    /// Blocks that this one dominates immediately.
    pub fn children(&self, block: Block) -> &[Block] {
        &self.children[block]
    }

    /// Returns true if every path from the entry to `b` passes `a`; a block dominates itself.
    pub fn dominates(&self, a: Block, b: Block) -> bool {
        let (a, b) = (self.span[a], self.span[b]);
        a.0 != 0 && b.0 != 0 && a.0 <= b.0 && b.1 <= a.1
    }
}

fn intersect(idom: &SecondaryMap<Block, PackedOption<Block>>, cfg: &Cfg, a: Block, b: Block) -> Block {
    let (mut a, mut b) = (a, b);
    while a != b {
        let later = if cfg.rpo_index[a] > cfg.rpo_index[b] { &mut a } else { &mut b };
        *later = idom[*later].expand().expect("a processed block has a dominator");
    }
    a
}

/// Natural loops: headers and nesting depth.
#[derive(Clone, Debug)]
pub struct Loops {
    /// Number of loops that a block lies in.
    pub depth: SecondaryMap<Block, u32>,
    /// True if a back edge leads to the block.
    pub is_header: SecondaryMap<Block, bool>,
}

impl Loops {
    /// Finds the natural loops. Irreducible cycles count as no loop.
    pub fn new(cfg: &Cfg, dom: &DomTree) -> Loops {
        let mut loops = Loops { depth: SecondaryMap::new(), is_header: SecondaryMap::new() };
        for &header in &cfg.rpo {
            let latches: Vec<Block> =
                cfg.preds[header].iter().copied().filter(|&p| dom.dominates(header, p)).collect();
            if latches.is_empty() {
                continue;
            }
            loops.is_header[header] = true;
            let mut body: SecondaryMap<Block, bool> = SecondaryMap::new();
            body[header] = true;
            loops.depth[header] += 1;
            let mut work = latches;
            while let Some(block) = work.pop() {
                if !body[block] {
                    body[block] = true;
                    loops.depth[block] += 1;
                    work.extend(cfg.preds[block].iter().copied());
                }
            }
        }
        loops
    }
}
