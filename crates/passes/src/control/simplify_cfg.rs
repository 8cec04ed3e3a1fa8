//! Simplifies the control-flow graph: branches whose sides are one, branches on constants, blocks that only
//! jump on, and blocks with a single predecessor that jumps to them.

use cranelift_entity::SecondaryMap;
use millstream_ir::{Block, BlockCall, Function, Inst, Op, Value};

use crate::fold::eval_op;
use crate::manager::{FuncPass, PassContext};
use crate::rewrite::{ValueSubst, edge_counts, make_jump};
use crate::scalar::remove_unreachable;

const NAME: &str = "simplify-cfg";

/// Simplifies the control-flow graph.
pub(crate) struct SimplifyCfg;

impl FuncPass for SimplifyCfg {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "merge blocks, follow jumps to jumps, decide constant branches"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let mut changed = decide_branches(func, cx);
        changed |= remove_unreachable(func);
        changed |= forward_empty_blocks(func, cx);
        changed |= decide_branches(func, cx);
        changed |= remove_unreachable(func);
        changed | merge_chains(func, cx)
    }
}

/// Turns branches that can only go one way into jumps.
fn decide_branches(func: &mut Function, cx: &mut PassContext<'_>) -> bool {
    let mut changed = false;
    for i in 0..func.layout.len() {
        let Some(term) = func.terminator(func.layout[i]) else { continue };
        let Some(side) = decided(func, term) else { continue };
        if cx.fuel(NAME) {
            let target = func.insts[term].targets[side].clone();
            make_jump(func, term, target);
            changed = true;
        }
    }
    changed
}

/// The side that a branch always takes.
fn decided(func: &Function, term: Inst) -> Option<usize> {
    let data = &func.insts[term];
    let Op::Branch { cond, width } = data.op else { return None };
    if data.targets[0] == data.targets[1] {
        return Some(0);
    }
    let (a, b) = (func.as_const(data.args[0])?, func.as_const(data.args[1])?);
    let taken = eval_op(&Op::Cmp { cond, width }, &[a as u64, b as u64])?;
    Some(if taken != 0 { 0 } else { 1 })
}

/// Sends edges to blocks that hold only a jump on to where these lead.
fn forward_empty_blocks(func: &mut Function, cx: &mut PassContext<'_>) -> bool {
    let uses = func.use_counts();
    let empty = empty_blocks(func, &uses);
    let mut changed = false;
    for i in 0..func.layout.len() {
        let block = func.layout[i];
        let Some(term) = func.terminator(block) else { continue };
        for side in 0..func.insts[term].targets.len() {
            let target = func.insts[term].targets[side].clone();
            let Some(on) = follow(func, &empty, &target) else { continue };
            if on != target && cx.fuel(NAME) {
                func.insts[term].targets[side] = on;
                changed = true;
            }
        }
    }
    changed
}

/// Blocks without instructions but a jump elsewhere, whose parameters only that jump uses. One that several
/// edges share and that brings values of its own stays: it holds their moves once.
fn empty_blocks(func: &Function, uses: &SecondaryMap<Value, u32>) -> SecondaryMap<Block, bool> {
    let mut empty = SecondaryMap::new();
    let edges = edge_counts(func);
    for &block in &func.layout[1..] {
        let data = &func.blocks[block];
        let [only] = data.insts[..] else { continue };
        let jump = &func.insts[only];
        let own = |p: Value| jump.targets.iter().flat_map(|t| &t.args).filter(|&&a| a == p).count() as u32;
        let passes_on = jump.targets.iter().flat_map(|t| &t.args).all(|a| data.params.contains(a));
        empty[block] = matches!(jump.op, Op::Jump {})
            && (passes_on || edges[block] == 1)
            && jump.targets[0].block != block
            && data.params.iter().all(|&p| uses[p] == own(p));
    }
    empty
}

/// Final destination of an edge, past empty blocks. A cycle of empty blocks is left alone.
fn follow(func: &Function, empty: &SecondaryMap<Block, bool>, from: &BlockCall) -> Option<BlockCall> {
    let mut target = from.clone();
    for _ in 0..func.layout.len() {
        if !empty[target.block] {
            return Some(target);
        }
        let params = &func.blocks[target.block].params;
        let jump = &func.insts[func.terminator(target.block)?].targets[0];
        let args =
            jump.args.iter().map(|a| params.iter().position(|p| p == a).map_or(*a, |i| target.args[i]));
        target = BlockCall::with(jump.block, args);
    }
    None
}

/// Appends a block to its only predecessor, where that one only jumps to it.
fn merge_chains(func: &mut Function, cx: &mut PassContext<'_>) -> bool {
    let edges = edge_counts(func);
    let mut subst = ValueSubst::default();
    let mut gone: SecondaryMap<Block, bool> = SecondaryMap::new();
    let mut changed = false;
    for i in 0..func.layout.len() {
        let block = func.layout[i];
        if gone[block] {
            continue;
        }
        while let Some(next) = sole_successor(func, block, &edges) {
            if !cx.fuel(NAME) {
                break;
            }
            let jump = func.blocks[block].insts.pop().expect("a block has a terminator");
            let args = std::mem::take(&mut func.insts[jump].targets[0].args);
            for (&param, arg) in func.blocks[next].params.iter().zip(args) {
                subst.insert(param, arg);
            }
            let tail = std::mem::take(&mut func.blocks[next].insts);
            func.blocks[block].insts.extend(tail);
            gone[next] = true;
            changed = true;
        }
    }
    subst.apply(func);
    func.layout.retain(|&b| !gone[b]);
    changed
}

fn sole_successor(func: &Function, block: Block, edges: &SecondaryMap<Block, u32>) -> Option<Block> {
    let term = func.terminator(block)?;
    let [target] = &func.insts[term].targets[..] else { return None };
    let next = target.block;
    (next != block && next != func.entry() && edges[next] == 1).then_some(next)
}
