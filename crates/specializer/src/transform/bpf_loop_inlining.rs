//! Calls of `bpf_loop` that go through a table become loops, so that the work that the callback does for an
//! index is visible in the caller.
//!
//! A callback that looks up entries of an array, and calls nothing else, is only the body of a loop. The pass
//! that inlines functions with one call site then inlines it.
//!
//! Invariant: the loop calls the function as the helper does, with 0, 1 and so on until it returns nonzero,
//! and yields the number of calls.

use millstream_ir::{AluOp, Block, BlockCall, Cond, Func, Function, Linkage, Module, Op, Type, Value, Width};
use millstream_isa::MapType;
use millstream_isa::helpers::id;

/// Calls of one callback, at most: the kernel's verifier follows each of them in a loop, but not through the
/// helper.
const CALLS: i64 = 512;
/// Instructions of a callback.
const SIZE: usize = 120;

/// A call of `bpf_loop` that may become a loop.
struct BpfLoopCall {
    block: Block,
    at: usize,
    calls: i64,
    callback: Func,
    context: Value,
}

/// Treatment of callbacks that can be loops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallbackMode {
    /// They become loops.
    Unfolded,
    /// They are called: the verifier follows all turns of a loop, on all paths that it cannot prune, and may
    /// give up.
    Called,
}

/// Returns true if some callback can become a loop.
pub fn unfolds(module: &Module) -> bool {
    module.funcs.keys().any(|id| find(module, id).is_some())
}

/// Turns all callbacks that can be loops into loops.
pub(super) fn unfold(module: &mut Module) {
    for id in module.funcs.keys().collect::<Vec<_>>() {
        while let Some(rounds) = find(module, id) {
            unfold_one(&mut module.funcs[id], &rounds);
        }
    }
}

fn find(module: &Module, id: Func) -> Option<BpfLoopCall> {
    let func = &module.funcs[id];
    let calls = func.layout.iter().flat_map(|block| {
        let insts = &func.blocks[*block].insts;
        (0..insts.len()).map(move |at| (*block, at, &func.insts[insts[at]]))
    });
    let mut found = calls.filter_map(|(block, at, data)| {
        let (Op::Helper { id: id::LOOP }, [count, callback, context, flags]) = (&data.op, &data.args[..])
        else {
            return None;
        };
        let &Op::FuncAddr { func: callback } = func.def_op(*callback)? else { return None };
        let calls = func.as_const(*count).filter(|calls| (1..=CALLS).contains(calls))?;
        let may = func.as_const(*flags) == Some(0)
            && only_looks_up(module, callback)
            && references(module, callback) == 1;
        may.then_some(BpfLoopCall { block, at, calls, callback, context: *context })
    });
    found.next()
}

/// Returns true if a function looks up entries of arrays, and calls nothing else.
fn only_looks_up(module: &Module, callback: Func) -> bool {
    let func = &module.funcs[callback];
    let mut looks_up = false;
    for (_, inst) in func.insts_in_order() {
        let data = &func.insts[inst];
        match &data.op {
            Op::Helper { id: id::MAP_LOOKUP_ELEM } => {
                let map = data.args.first().and_then(|map| func.def_op(*map));
                let Some(Op::MapAddr { map }) = map else { return false };
                if module.maps[*map].kind != MapType::ARRAY.0 {
                    return false;
                }
                looks_up = true;
            }
            op if op.effects().calls => return false,
            _ => {}
        }
    }
    looks_up && func.linkage == Linkage::Static && func.insts_in_order().count() <= SIZE
}

/// Number of references to a function.
fn references(module: &Module, callback: Func) -> usize {
    let named = |func: &Function| {
        let is = |op: &Op| matches!(op, Op::FuncAddr { func } | Op::Call { func } if *func == callback);
        func.insts_in_order().filter(|(_, inst)| is(&func.insts[*inst].op)).count()
    };
    module.funcs.values().map(named).sum()
}

fn unfold_one(func: &mut Function, rounds: &BpfLoopCall) {
    let &BpfLoopCall { block, at, calls, callback, context } = rounds;
    let position = func.layout.iter().position(|b| *b == block).unwrap_or(0);
    let behind = func.split_block_at(block, at);
    // Who asks for no number is not given one.
    if func.blocks[behind].params.is_empty() {
        func.add_param(behind, Type::I64);
    }
    let [round, again] = std::array::from_fn(|_| func.add_block());
    func.layout.truncate(func.layout.len() - 2);
    func.layout.splice(position + 1..position + 1, [round, again, behind]);
    let index = func.add_param(round, Type::I64);
    let mut end = func.at_end(block);
    let zero = end.iconst(0);
    end.effect(Op::Jump {}, [], [BlockCall::with(round, [zero])]);
    let mut end = func.at_end(round);
    let enough = end.value(Op::Call { func: callback }, [index, context], Type::Any);
    let one = end.iconst(1);
    let done = end.value(Op::Alu { op: AluOp::Add, width: Width::W64 }, [index, one], Type::I64);
    let zero = end.iconst(0);
    let branch = Op::Branch { cond: Cond::Ne, width: Width::W64 };
    end.effect(branch.clone(), [enough, zero], [BlockCall::with(behind, [done]), BlockCall::new(again)]);
    let mut end = func.at_end(again);
    let all = end.iconst(calls);
    end.effect(branch, [done, all], [BlockCall::with(round, [done]), BlockCall::with(behind, [done])]);
    // Nobody else has its address: that the helper was given is gone.
    let is_address = |op: &Op| matches!(op, Op::FuncAddr { func } if *func == callback);
    for block in func.layout.clone() {
        let insts = std::mem::take(&mut func.blocks[block].insts);
        func.blocks[block].insts =
            insts.into_iter().filter(|inst| !is_address(&func.insts[*inst].op)).collect();
    }
}
