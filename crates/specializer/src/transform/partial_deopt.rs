//! Lookups that are made in a map because its twin is out of date, while the rest of the variant goes on.
//!
//! A packet that has read its token sees one state of all maps, except those whose twins are out of date:
//! entries found there may be newer. So that nothing it learns afterwards is older, it reads the token again
//! after such a lookup. If the token has changed, tables may have changed: the code that follows is copied
//! once more, and makes all lookups.
//!
//! Invariant: everything that the variant knows of a spared map stands behind this test, or the report says
//! that it does not.

use millstream_ir::{AluOp, Block, BlockCall, Cond, Inst, Map, Op, Type, Value, Width};

use super::abstract_key::AbstractKey;
use super::eval::AbstractValue;
use super::partial_eval::{AbstractEnv, CopyPosition, PartialEvaluator};
use super::volatile::volatile_load;

/// Size of the copy, in instructions, from which no more is copied for this.
const MOST: usize = 12_000;

/// Tests if the twin of a map is out of date, if the map is to be spared. Returns the blocks for no and
/// yes.
pub(super) fn emit_deopt_test(
    evaluator: &mut PartialEvaluator<'_>,
    map: Map,
    out: Block,
) -> Option<[Block; 2]> {
    let behind = evaluator.plans.plan.spared.iter().find(|s| s.map == map)?.behind;
    let token = evaluator.token.filter(|_| evaluator.out.insts.len() < MOST);
    let Some(token) = token else {
        evaluator.report.unspared.insert(map);
        return None;
    };
    let blocks = [evaluator.new_block(), evaluator.new_block()];
    let [in_step, made] = blocks;
    evaluator.branch(
        Cond::Set,
        token,
        i64::from(behind),
        [BlockCall::new(made), BlockCall::new(in_step)],
        out,
    );
    Some(blocks)
}

/// Makes the lookup. Returns the entry and the block in which there is one; packets without an entry go
/// to `absent`.
pub(super) fn emit_map_lookup(
    evaluator: &mut PartialEvaluator<'_>,
    inst: Inst,
    map: Map,
    key: &AbstractKey,
    absent: Block,
    at: CopyPosition,
    env: &AbstractEnv,
) -> (Value, Block) {
    let entry = evaluator.residual_lookup(inst, map, key, at.out);
    let [late, on, there] = std::array::from_fn(|_| evaluator.new_block());
    if let (Some(token), Some(guard)) = (evaluator.token, evaluator.plans.plan.guard) {
        let address = evaluator.guard_word(&guard, guard.offset, at.out);
        let now = evaluator.value(at.out, volatile_load(0), &[address], Type::I64);
        let differs = evaluator.both(AluOp::Xor, now, token, at.out);
        let seen = evaluator.by(AluOp::And, differs, !guard.unseen, at.out);
        let none = evaluator.constant(0, at.out);
        let branch = Op::Branch { cond: Cond::Ne, width: Width::W64 };
        let targets = [BlockCall::new(late), BlockCall::new(on)];
        evaluator.emit(at.out, branch, &[seen, none], &targets, Type::Any);
    }
    evaluator.if_absent(entry, [BlockCall::new(absent), BlockCall::new(there)], on);
    let mut env = env.clone();
    evaluator.define(inst, AbstractValue::Val(entry), &mut env);
    evaluator.mode.late = true;
    evaluator.region(CopyPosition { next: at.next + 1, out: late, ..at }, env);
    evaluator.mode.late = false;
    (entry, there)
}
