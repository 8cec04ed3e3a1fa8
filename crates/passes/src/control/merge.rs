//! Merges code that several paths share: equal blocks become one, and edges that bring the same constants to
//! a block meet before it, so that the constants are made once.
//!
//! Two blocks are equal if they do the same to the same values and go on to the same places. As the operands
//! are the same values, or computed alike from them, no instruction sees pointers of different kinds that did
//! not before. Constants are compared by value, not by the place where they were made.

use cranelift_entity::SecondaryMap;
use millstream_ir::{Block, BlockCall, Cfg, DomTree, Function, Inst, Op, Type, Value};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::manager::{FuncPass, PassContext};
use crate::scalar::remove_unreachable;

const NAME: &str = "merge-blocks";

/// Longer blocks are not compared.
const MOST_INSTS: usize = 64;

/// Merges equal blocks and equal edges.
pub(crate) struct MergeBlocks;

impl FuncPass for MergeBlocks {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "merge equal blocks, and edges that bring the same constants"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let mut changed = false;
        // Blocks that went on to equal blocks may be equal in their turn.
        while merge_equal(func, cx) {
            changed = true;
        }
        changed | merge_edges(func, cx)
    }
}

/// An operand as equal blocks have it.
#[derive(PartialEq, Eq, Hash)]
enum CanonicalOperand {
    Param(usize),
    Local(usize),
    Const(i64),
    Outer(Value),
}

type OperandList = SmallVec<[CanonicalOperand; 3]>;
type TargetList = SmallVec<[(Block, OperandList); 2]>;

/// Content of a block, in terms that do not depend on its values' numbers.
#[derive(PartialEq, Eq, Hash)]
struct BlockKey {
    params: Vec<Type>,
    insts: Vec<(Op, OperandList, TargetList)>,
}

fn merge_equal(func: &mut Function, cx: &mut PassContext<'_>) -> bool {
    let escapes = escaping(func);
    let mut seen: FxHashMap<BlockKey, Block> = FxHashMap::default();
    let mut into: SecondaryMap<Block, Option<Block>> = SecondaryMap::new();
    let mut any = false;
    for &block in &func.layout[1..] {
        if !is_comparable(func, block, &escapes) {
            continue;
        }
        match seen.entry(key(func, block)) {
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(block);
            }
            std::collections::hash_map::Entry::Occupied(first) => {
                if cx.fuel(NAME) {
                    into[block] = Some(*first.get());
                    any = true;
                }
            }
        }
    }
    if any {
        redirect(func, &into);
        remove_unreachable(func);
    }
    any
}

/// Blocks with values that are used in another.
fn escaping(func: &Function) -> SecondaryMap<Block, bool> {
    let mut home: SecondaryMap<Value, Option<Block>> = SecondaryMap::new();
    for &block in &func.layout {
        let data = &func.blocks[block];
        data.params.iter().for_each(|&p| home[p] = Some(block));
        data.insts.iter().filter_map(|&i| func.result(i)).for_each(|v| home[v] = Some(block));
    }
    let mut escapes: SecondaryMap<Block, bool> = SecondaryMap::new();
    for (block, inst) in func.insts_in_order() {
        func.for_each_use(inst, |v| {
            if let Some(own) = home[v].filter(|&own| own != block) {
                escapes[own] = true;
            }
        });
    }
    escapes
}

fn is_comparable(func: &Function, block: Block, escapes: &SecondaryMap<Block, bool>) -> bool {
    let insts = &func.blocks[block].insts;
    let term = &func.insts[*insts.last().expect("a block has a terminator")];
    let only_jumps = insts.len() == 1 && matches!(term.op, Op::Jump {}) && term.targets[0].args.is_empty();
    !escapes[block]
        && !only_jumps
        && insts.len() <= MOST_INSTS
        && term.targets.iter().all(|t| t.block != block)
        && !insts.iter().any(|&i| matches!(func.insts[i].op, Op::Undef {}))
}

fn key(func: &Function, block: Block) -> BlockKey {
    let data = &func.blocks[block];
    let mut local: FxHashMap<Value, usize> = FxHashMap::default();
    let mut insts = Vec::with_capacity(data.insts.len());
    for &inst in &data.insts {
        let operand = |v: &Value| match (data.params.iter().position(|p| p == v), func.as_const(*v)) {
            (Some(i), _) => CanonicalOperand::Param(i),
            (None, Some(c)) => CanonicalOperand::Const(c),
            (None, None) => local.get(v).map_or(CanonicalOperand::Outer(*v), |&i| CanonicalOperand::Local(i)),
        };
        let inst_data = &func.insts[inst];
        if matches!(inst_data.op, Op::Const { .. }) {
            continue;
        }
        let args = inst_data.args.iter().map(operand).collect();
        let targets =
            inst_data.targets.iter().map(|t| (t.block, t.args.iter().map(operand).collect())).collect();
        insts.push((inst_data.op.clone(), args, targets));
        if let Some(result) = func.result(inst) {
            local.insert(result, insts.len());
        }
    }
    BlockKey { params: data.params.iter().map(|&p| func.types[p]).collect(), insts }
}

/// Redirects the edges to merged blocks to the blocks that they were merged into, which make their constants
/// themselves.
fn redirect(func: &mut Function, into: &SecondaryMap<Block, Option<Block>>) {
    let mut keepers: Vec<Block> = func.layout.iter().filter_map(|&b| into[b]).collect();
    keepers.sort_unstable();
    keepers.dedup();
    for keeper in keepers {
        own_constants(func, keeper);
    }
    for i in 0..func.layout.len() {
        let Some(term) = func.terminator(func.layout[i]) else { continue };
        for target in &mut func.insts[term].targets {
            target.block = into[target.block].unwrap_or(target.block);
        }
    }
}

/// Gives a block constants of its own in place of those made elsewhere.
fn own_constants(func: &mut Function, block: Block) {
    let insts = std::mem::take(&mut func.blocks[block].insts);
    let mut made: FxHashMap<i64, Value> = FxHashMap::default();
    let mut out: Vec<Inst> = Vec::with_capacity(insts.len());
    for inst in insts {
        let mut data = func.insts[inst].clone();
        let uses = data.args.iter_mut().chain(data.targets.iter_mut().flat_map(|t| t.args.iter_mut()));
        for value in uses {
            let Some(constant) = func.as_const(*value) else { continue };
            let ty = func.types[*value];
            *value = *made.entry(constant).or_insert_with(|| {
                let inst = func.make_inst(Op::Const { value: constant }, [], [], ty);
                out.push(inst);
                func.result(inst).expect("a constant is a value")
            });
        }
        func.insts[inst] = data;
        out.push(inst);
    }
    func.blocks[block].insts = out;
}

/// Edges to one block with equal arguments.
struct EdgeGroup {
    edges: Vec<(Inst, usize)>,
    args: SmallVec<[Value; 4]>,
    // Edges out of branches need a block of their own in any case.
    branches: usize,
}

fn merge_edges(func: &mut Function, cx: &mut PassContext<'_>) -> bool {
    let cfg = Cfg::new(func);
    let dom = DomTree::new(func, &cfg);
    let mut changed = false;
    for block in cfg.rpo.clone() {
        let params = func.blocks[block].params.len();
        let is_header = cfg.preds[block].iter().any(|&p| dom.dominates(block, p));
        if params == 0 || is_header || cfg.preds[block].len() < 3 {
            continue;
        }
        for group in groups(func, &cfg, block) {
            if pays(func, &group) && group.edges.len() < cfg.preds[block].len() && cx.fuel(NAME) {
                join_edges(func, block, &group);
                changed = true;
            }
        }
    }
    changed
}

fn groups(func: &Function, cfg: &Cfg, block: Block) -> Vec<EdgeGroup> {
    let mut preds = cfg.preds[block].clone();
    preds.sort_unstable();
    preds.dedup();
    let mut index: FxHashMap<Vec<CanonicalOperand>, usize> = FxHashMap::default();
    let mut groups: Vec<EdgeGroup> = Vec::new();
    for pred in preds {
        let Some(term) = func.terminator(pred) else { continue };
        let is_branch = func.insts[term].targets.len() > 1;
        for (i, target) in func.insts[term].targets.iter().enumerate().filter(|(_, t)| t.block == block) {
            let operand =
                |v: &Value| func.as_const(*v).map_or(CanonicalOperand::Outer(*v), CanonicalOperand::Const);
            let at = *index.entry(target.args.iter().map(operand).collect()).or_insert_with(|| {
                groups.push(EdgeGroup { edges: Vec::new(), args: target.args.clone(), branches: 0 });
                groups.len() - 1
            });
            groups[at].edges.push((term, i));
            groups[at].branches += usize::from(is_branch);
        }
    }
    groups
}

/// Returns true if the moves of constants that are saved outweigh the block that is added.
fn pays(func: &Function, group: &EdgeGroup) -> bool {
    let constants = group.args.iter().filter(|&&v| func.as_const(v).is_some()).count();
    let jumps = group.edges.len() - group.branches;
    let before = group.branches * (constants + 1) + jumps * constants;
    constants > 0 && group.edges.len() > 1 && before > constants + 1
}

fn join_edges(func: &mut Function, block: Block, group: &EdgeGroup) {
    let new = func.add_block();
    let target = BlockCall { block, args: group.args.clone() };
    func.at_end(new).effect(Op::Jump {}, [], [target]);
    own_constants(func, new);
    for &(term, i) in &group.edges {
        func.insts[term].targets[i] = BlockCall::new(new);
    }
    func.layout.pop();
    let at = func.layout.iter().position(|&b| b == block).unwrap_or(func.layout.len());
    func.layout.insert(at, new);
}
