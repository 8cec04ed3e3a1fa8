//! Tail calls into the variants of a chain.

use millstream_ir::{Block, Inst, Op, Prov, Type, Value};
use millstream_isa::helpers::id;

use super::PartialEvaluator;
use crate::transform::eval::AbstractValue;
use crate::transform::tail_calls::array;

/// Goes on in a variant of what an instruction calls, if that is known and it is a tail call.
pub(super) fn call_on(evaluator: &mut PartialEvaluator<'_>, inst: Inst, args: &[AbstractValue], out: Block) {
    // Where tables may have changed, the original's way is gone.
    if !evaluator.mode.active || evaluator.mode.late {
        return;
    }
    let Some(array) = array(evaluator.original.src, inst) else { return };
    let Some(chained) = evaluator.plans.plan.chain.iter().find(|c| c.array == array) else { return };
    let &[ctx, _, index, ..] = args else { return };
    let place = chained.place;
    let ctx = evaluator.materialize(ctx, out);
    let index = evaluator.materialize(index, out);
    let array = evaluator.value(out, Op::MapAddr { map: place }, &[], Type::Ptr(Prov::Map(place)));
    let call: [Value; 3] = [ctx, array, index];
    evaluator.value(out, Op::Helper { id: id::TAIL_CALL }, &call, Type::Any);
}
