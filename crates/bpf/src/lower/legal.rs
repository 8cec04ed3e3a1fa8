//! Makes a function fit for instruction selection: operations that BPF lacks become control flow, and no edge
//! leads from a block with several successors to one with several predecessors.

use millstream_ir::{Block, BlockCall, Cfg, Cond, Function, Inst, Op, PacketVerdict, Type, Width};

/// Replaces verdicts by the numbers of XDP, and truth values and selections by branches.
pub(super) fn legalize(func: &mut Function) {
    let mut b = 0;
    while b < func.layout.len() {
        let block = func.layout[b];
        let mut at = 0;
        while at < func.blocks[block].insts.len() {
            let inst = func.blocks[block].insts[at];
            match func.insts[inst].op {
                Op::Verdict { verdict } => func.insts[inst].op = Op::Const { value: xdp(verdict) },
                Op::Cmp { .. } | Op::Select {} => {
                    branch_instead(func, b, at, inst);
                    break;
                }
                _ => {}
            }
            at += 1;
        }
        b += 1;
    }
}

/// `enum xdp_action`.
fn xdp(verdict: PacketVerdict) -> i64 {
    match verdict {
        PacketVerdict::Aborted => 0,
        PacketVerdict::Drop => 1,
        PacketVerdict::Pass => 2,
        PacketVerdict::Tx => 3,
        PacketVerdict::Redirect => 4,
    }
}

/// Splits the block at a comparison or selection: a branch to a join with the result as its parameter.
fn branch_instead(func: &mut Function, b: usize, at: usize, inst: Inst) {
    let block = func.layout[b];
    let rest = func.blocks[block].insts.split_off(at + 1);
    func.blocks[block].insts.pop();
    let join = func.blocks.push(Default::default());
    func.layout.insert(b + 1, join);
    func.blocks[join].insts = rest;
    let data = func.insts[inst].clone();
    let Some(result) = data.result.expand() else { return };
    func.blocks[join].params.push(result);
    func.defs[result] = millstream_ir::ValueDef::Param(join, 0);
    let mut cursor = func.at_end(block);
    cursor.loc = data.loc;
    let (op, args, yes, no) = match data.op {
        Op::Cmp { cond, width } => {
            let yes = cursor.value(Op::Const { value: 1 }, [], Type::I1);
            let no = cursor.value(Op::Const { value: 0 }, [], Type::I1);
            (Op::Branch { cond, width }, [data.args[0], data.args[1]], yes, no)
        }
        _ => {
            let zero = cursor.iconst(0);
            (
                Op::Branch { cond: Cond::Ne, width: Width::W64 },
                [data.args[0], zero],
                data.args[1],
                data.args[2],
            )
        }
    };
    cursor.effect(op, args, [BlockCall::with(join, [yes]), BlockCall::with(join, [no])]);
}

/// Puts a block on every critical edge. Blocks that stay empty vanish at emission.
pub(super) fn split_critical_edges(func: &mut Function) {
    let cfg = Cfg::new(func);
    for block in func.layout.clone() {
        let Some(term) = func.terminator(block) else { continue };
        if func.insts[term].targets.len() < 2 || !cfg.is_reachable(block) {
            continue;
        }
        for t in 0..func.insts[term].targets.len() {
            let target = func.insts[term].targets[t].clone();
            if cfg.preds[target.block].len() > 1 {
                let edge = split(func, block, term, target);
                func.insts[term].targets[t] = BlockCall::new(edge);
            }
        }
    }
}

fn split(func: &mut Function, after: Block, term: Inst, target: BlockCall) -> Block {
    let edge = func.blocks.push(Default::default());
    let at = func.layout.iter().position(|&b| b == after).map_or(func.layout.len(), |i| i + 1);
    func.layout.insert(at, edge);
    let loc = func.insts[term].loc;
    let mut cursor = func.at_end(edge);
    cursor.loc = loc;
    cursor.effect(Op::Jump {}, [], [target]);
    edge
}
