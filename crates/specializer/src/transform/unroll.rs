//! Loops over the words of values are peeled: turns are put in front of the loop, so that each has its own
//! word.
//!
//! A classifier by bit vectors goes through the words of the sets that lookups gave. Only for code that is
//! separate for each turn can knowledge about single words be used.
//!
//! Invariant: the loop itself stays behind its peeled turns, and continues where they end, so their number
//! makes no difference. If they are all turns of the loop, nothing leads to it, and later passes remove it.

use cranelift_entity::SecondaryMap;
use millstream_ir::{
    AluOp, Block, BlockCall, Cfg, Cond, DomTree, Function, Inst, Module, Op, Prov, Type, Value, Width,
};
use millstream_isa::semantics::eval;
use rustc_hash::{FxHashMap, FxHashSet};

use super::eval::constant;
use super::table_loop_analysis::loop_of;

/// Turns of a loop, and instructions of all of them.
const MOST: (usize, usize) = (64, 2_000);

/// Unrolls loops over words, as far as they count with numbers that are known.
pub(super) fn unroll(module: &mut Module) {
    for func in module.funcs.values_mut() {
        // Each header once: copies in front of a loop have none.
        let headers = Cfg::new(func).rpo;
        for header in headers {
            let cfg = Cfg::new(func);
            let body = loop_of(&cfg, header);
            if let Some(turns) = turns(func, &cfg, header, &body)
                && close(func, &cfg, &body)
            {
                peel(func, &cfg, header, &body, turns);
            }
        }
    }
}

/// Number of turns of a loop, if it is one over words and the turns are few.
fn turns(func: &Function, cfg: &Cfg, header: Block, body: &FxHashSet<Block>) -> Option<usize> {
    let is_back = |from: &Block| body.contains(from);
    if !cfg.is_reachable(header) || !cfg.preds[header].iter().any(is_back) || !is_over_words(func, body) {
        return None;
    }
    let mut blocks: Vec<Block> = body.iter().copied().collect();
    blocks.sort_unstable_by_key(|block| cfg.rpo_index[*block]);
    // No loop within.
    let goes_round =
        |b: &Block| cfg.preds[*b].iter().any(|p| body.contains(p) && cfg.rpo_index[*p] >= cfg.rpo_index[*b]);
    if blocks.iter().any(|block| *block != header && goes_round(block)) {
        return None;
    }
    let size: usize = blocks.iter().map(|block| func.blocks[*block].insts.len()).sum();
    let mut known: Option<Vec<Option<u64>>> = None;
    let outside = cfg.preds[header].iter().filter(|pred| !body.contains(pred));
    for target in outside.flat_map(|pred| func.targets(*pred)).filter(|target| target.block == header) {
        meet(&mut known, target.args.iter().map(|arg| func.as_const(*arg).map(|c| c as u64)).collect());
    }
    let mut now = known.filter(|params| params.iter().any(Option::is_some))?;
    for turn in 1..=MOST.0.min(MOST.1 / size.max(1)) {
        match next(func, header, body, &blocks, now) {
            None => return (turn > 1).then_some(turn),
            Some(params) => now = params,
        }
    }
    None
}

/// Returns true if a loop reads values of maps, or memory of unknown kind, and has no effects that others can
/// see.
fn is_over_words(func: &Function, body: &FxHashSet<Block>) -> bool {
    let mut reads = false;
    for &inst in body.iter().flat_map(|block| &func.blocks[*block].insts) {
        let data = &func.insts[inst];
        let base = || data.args.first().map_or(Type::Any, |base| func.types[*base]);
        match &data.op {
            Op::Load { .. } => {
                reads |= matches!(base(), Type::Any | Type::Ptr(Prov::MapValue(_) | Prov::MapValueOrNull(_)));
            }
            Op::Store { .. } if data.args.first().is_some_and(|base| is_on_stack(func, *base)) => {}
            op if op.effects().writes || op.effects().calls => return false,
            _ => {}
        }
    }
    reads
}

/// Returns true if an address is on the stack, perhaps at an index.
fn is_on_stack(func: &Function, address: Value) -> bool {
    let is_stack = |value: Value| func.types[value] == Type::Ptr(Prov::Stack);
    let is_sum = |op: &Op| matches!(op, Op::Alu { op: AluOp::Add, width: Width::W64 });
    let sum = func.def_inst(address).map(|inst| &func.insts[inst]).filter(|data| is_sum(&data.op));
    is_stack(address) || sum.is_some_and(|data| data.args.iter().any(|arg| is_stack(*arg)))
}

/// The parameters of the header in the next turn, as far as they are known; `None` if there is no next turn.
fn next(
    func: &Function,
    header: Block,
    body: &FxHashSet<Block>,
    blocks: &[Block],
    now: Vec<Option<u64>>,
) -> Option<Vec<Option<u64>>> {
    let mut values: FxHashMap<Value, u64> = FxHashMap::default();
    let mut entered: FxHashMap<Block, Vec<Option<u64>>> = FxHashMap::from_iter([(header, now)]);
    let mut again: Option<Vec<Option<u64>>> = None;
    for &block in blocks {
        let Some(params) = entered.get(&block) else { continue };
        values.extend(
            func.blocks[block].params.iter().zip(params).filter_map(|(p, known)| Some((*p, (*known)?))),
        );
        let value = |values: &FxHashMap<Value, u64>, v: Value| {
            values.get(&v).copied().or_else(|| func.as_const(v).map(|c| c as u64))
        };
        for &inst in &func.blocks[block].insts {
            let data = &func.insts[inst];
            let args: Option<Vec<u64>> = data.args.iter().map(|arg| value(&values, *arg)).collect();
            if let (Some(args), Some(result)) = (&args, data.result.expand())
                && let Some(computed) = constant(&data.op, args)
            {
                values.insert(result, computed);
            }
        }
        let Some(last) = func.terminator(block) else { continue };
        let data = &func.insts[last];
        let taken = match (&data.op, &data.args[..]) {
            (Op::Branch { cond, width }, [a, b]) => {
                decided((*cond, *width), [*a, *b].map(|v| value(&values, v)))
            }
            _ => None,
        };
        for (n, target) in data.targets.iter().enumerate() {
            if taken.is_some_and(|taken| (n == 0) != taken) || !body.contains(&target.block) {
                continue;
            }
            let args = target.args.iter().map(|arg| value(&values, *arg)).collect();
            if target.block == header {
                meet(&mut again, args);
            } else {
                let mut known = entered.remove(&target.block);
                meet(&mut known, args);
                entered.extend(known.map(|known| (target.block, known)));
            }
        }
    }
    again
}

fn decided((cond, width): (Cond, Width), args: [Option<u64>; 2]) -> Option<bool> {
    let [Some(a), Some(b)] = args else { return None };
    Some(eval::cond(cond, width, a, b))
}

/// Keeps the constants on which all paths agree.
fn meet(known: &mut Option<Vec<Option<u64>>>, other: Vec<Option<u64>>) {
    match known {
        Some(known) => {
            known
                .iter_mut()
                .zip(other)
                .for_each(|(known, other)| *known = known.filter(|k| Some(*k) == other));
        }
        None => *known = Some(other),
    }
}

/// Passes values that a loop computes and that are used behind it as parameters to the exit blocks. Returns
/// false, with nothing changed, if that cannot be done.
fn close(func: &mut Function, cfg: &Cfg, body: &FxHashSet<Block>) -> bool {
    let dom = DomTree::new(func, cfg);
    let mut inside: FxHashSet<Value> = FxHashSet::default();
    for &block in body {
        let data = &func.blocks[block];
        inside.extend(data.params.iter().copied().chain(data.insts.iter().filter_map(|i| func.result(*i))));
    }
    let leaves = |block: &Block| func.targets(*block).iter().map(|t| t.block).filter(|b| !body.contains(b));
    let exits: FxHashSet<Block> = body.iter().flat_map(leaves).collect();
    // The uses behind the loop, and the exit that is on every way to each.
    let mut uses: Vec<(Inst, Value, Block)> = Vec::new();
    for &block in cfg.rpo.iter().filter(|block| !body.contains(block)) {
        for &inst in &func.blocks[block].insts {
            let mut used = FxHashSet::default();
            func.for_each_use(inst, |value| used.extend(inside.get(&value)));
            for value in used {
                let own = |exit: &&Block| {
                    dom.dominates(**exit, block) && cfg.preds[**exit].iter().all(|pred| body.contains(pred))
                };
                let Some(exit) = exits.iter().find(own) else { return false };
                uses.push((inst, value, *exit));
            }
        }
    }
    let mut params: FxHashMap<(Block, Value), Value> = FxHashMap::default();
    for (inst, value, exit) in uses {
        let param = *params.entry((exit, value)).or_insert_with(|| {
            let ty = func.types[value];
            let param = func.add_param(exit, ty);
            for &from in body {
                let Some(last) = func.terminator(from) else { continue };
                let targets = func.insts[last].targets.iter_mut();
                targets.filter(|t| t.block == exit).for_each(|target| target.args.push(value));
            }
            param
        });
        let data = &mut func.insts[inst];
        let args = data.args.iter_mut().chain(data.targets.iter_mut().flat_map(|t| t.args.iter_mut()));
        args.filter(|arg| **arg == value).for_each(|arg| *arg = param);
    }
    true
}

/// Puts copies of a loop in front of it. Values that it computes are used behind it only by parameters.
fn peel(func: &mut Function, cfg: &Cfg, header: Block, body: &FxHashSet<Block>, turns: usize) {
    let mut order: Vec<Block> = body.iter().copied().collect();
    order.sort_unstable_by_key(|block| cfg.rpo_index[*block]);
    // From the last turn to the first: each leads to the one behind it.
    let mut behind = header;
    for _ in 0..turns {
        behind = copy(func, &order, header, behind);
    }
    let outside: Vec<Block> = cfg.preds[header].iter().filter(|pred| !body.contains(pred)).copied().collect();
    for from in outside {
        let Some(last) = func.terminator(from) else { continue };
        let targets = func.insts[last].targets.iter_mut();
        targets.filter(|target| target.block == header).for_each(|target| target.block = behind);
    }
}

/// A copy of one turn, which goes on at another header; its own header.
fn copy(func: &mut Function, order: &[Block], header: Block, behind: Block) -> Block {
    let mut blocks: SecondaryMap<Block, Option<Block>> = SecondaryMap::new();
    let mut values: FxHashMap<Value, Value> = FxHashMap::default();
    for &block in order {
        let new = func.add_block();
        blocks[block] = Some(new);
        for param in func.blocks[block].params.clone() {
            let ty = func.types[param];
            values.insert(param, func.add_param(new, ty));
        }
    }
    for &block in order {
        let Some(new) = blocks[block] else { continue };
        for inst in func.blocks[block].insts.clone() {
            let data = func.insts[inst].clone();
            let of = |value: &Value| values.get(value).copied().unwrap_or(*value);
            let target = |target: &BlockCall| {
                let to = if target.block == header { Some(behind) } else { blocks[target.block] };
                BlockCall::with(to.unwrap_or(target.block), target.args.iter().map(of))
            };
            let ty = data.result.expand().map_or(Type::Any, |result| func.types[result]);
            let args: Vec<Value> = data.args.iter().map(of).collect();
            let targets: Vec<BlockCall> = data.targets.iter().map(target).collect();
            let made = func.make_inst(data.op, args, targets, ty);
            func.insts[made].loc = data.loc;
            func.blocks[new].insts.push(made);
            if let (Some(before), Some(result)) = (data.result.expand(), func.result(made)) {
                values.insert(before, result);
            }
        }
    }
    blocks[header].unwrap_or(behind)
}
