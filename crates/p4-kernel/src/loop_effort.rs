//! Loops that the verifier cannot follow to the end.
//!
//! The verifier of Linux follows each iteration of a loop, up to 1,000,000 instructions in all, and the way out of
//! the loop behind each iteration where the number of iterations is not constant. So a loop in a loop over numbers
//! of a packet becomes an object that no kernel loads. [`heaviest_loop`] finds it before.
//!
//! The number of iterations is the largest value of the bound that a counter is compared with. A loop without such
//! a comparison counts as one iteration: an object that is rejected is better than a refusal without a reason.

use millstream_ir::{AluOp, Block, Cfg, DomTree, Function, Inst, Op, Value, ValueDef};
use rustc_hash::FxHashSet;

/// Instructions that the verifier follows at most.
const VERIFIER_LIMIT: u64 = 1_000_000;
/// Times that the verifier follows an iteration of a loop whose bound is not constant: with and without a next one.
const WAYS: u64 = 2;

/// A natural loop.
struct CountedLoop {
    header: Block,
    body: FxHashSet<Block>,
    /// Times that the verifier follows the body.
    times: u64,
}

/// The instruction behind which the innermost of a function's loops begins, if the verifier would follow more
/// instructions than it may.
pub(crate) fn heaviest_loop(func: &Function) -> Option<Inst> {
    let cfg = Cfg::new(func);
    let tree = DomTree::new(func, &cfg);
    let loops: Vec<CountedLoop> =
        cfg.rpo.iter().filter_map(|&header| counted_loop(func, (&cfg, &tree), header)).collect();
    let effort = |&block: &Block| {
        let around = loops.iter().filter(|found| found.body.contains(&block));
        let times = around.fold(1u64, |times, found| times.saturating_mul(found.times));
        times.saturating_mul(instructions(func, block))
    };
    let total = cfg.rpo.iter().fold(0u64, |sum, block| sum.saturating_add(effort(block)));
    if total <= VERIFIER_LIMIT {
        return None;
    }
    let heaviest = cfg.rpo.iter().max_by_key(|block| effort(block))?;
    let innermost =
        loops.iter().filter(|found| found.body.contains(heaviest)).min_by_key(|l| l.body.len())?;
    func.terminator(innermost.header)
}

/// Instructions of a block that become instructions of BPF; constants are operands of others.
fn instructions(func: &Function, block: Block) -> u64 {
    let insts = func.blocks[block].insts.iter();
    insts.filter(|inst| !matches!(func.insts[**inst].op, Op::Const { .. })).count() as u64
}

/// The natural loop of a header.
fn counted_loop(func: &Function, (cfg, tree): (&Cfg, &DomTree), header: Block) -> Option<CountedLoop> {
    let mut work: Vec<Block> =
        cfg.preds[header].iter().copied().filter(|&from| tree.dominates(header, from)).collect();
    if work.is_empty() {
        return None;
    }
    let mut body = FxHashSet::from_iter([header]);
    while let Some(block) = work.pop() {
        if body.insert(block) {
            work.extend(cfg.preds[block].iter().copied());
        }
    }
    let exits = body.iter().filter_map(|&block| exit_times(func, &body, block));
    let times = exits.min().unwrap_or(1);
    Some(CountedLoop { header, body, times })
}

/// Times that the verifier follows a loop which ends by a comparison of this block.
fn exit_times(func: &Function, body: &FxHashSet<Block>, block: Block) -> Option<u64> {
    let data = &func.insts[func.terminator(block)?];
    if !matches!(data.op, Op::Branch { .. }) || data.targets.iter().all(|target| body.contains(&target.block))
    {
        return None;
    }
    let counter = data.args.iter().position(|arg| is_counter(func, body, *arg))?;
    let bound = *data.args.get(1 - counter)?;
    match func.as_const(bound) {
        Some(value) => u64::try_from(value).ok(),
        None => Some(largest(func, bound)?.saturating_mul(WAYS)),
    }
}

/// Tells if a value changes with the iterations of a loop: a parameter of one of its blocks, or made of one.
fn is_counter(func: &Function, body: &FxHashSet<Block>, mut value: Value) -> bool {
    loop {
        match func.defs[value] {
            ValueDef::Param(block, _) => return body.contains(&block),
            ValueDef::Inst(inst) => match func.insts[inst].op {
                Op::Alu { .. } | Op::Zext {} => value = func.insts[inst].args[0],
                _ => return false,
            },
        }
    }
}

/// The largest value that a bound can have.
fn largest(func: &Function, value: Value) -> Option<u64> {
    let inst = &func.insts[func.def_inst(value)?];
    match inst.op {
        Op::Const { value } => u64::try_from(value).ok(),
        Op::Load { size, .. } if size.bytes() < 8 => Some((1 << (8 * size.bytes())) - 1),
        Op::Zext {} => largest(func, inst.args[0]),
        Op::Alu { op: AluOp::And, .. } => inst.args.iter().filter_map(|arg| largest(func, *arg)).min(),
        Op::Alu { op: AluOp::Rsh, .. } => {
            let shift = u32::try_from(func.as_const(inst.args[1])?).ok()?;
            largest(func, inst.args[0])?.checked_shr(shift)
        }
        _ => None,
    }
}
