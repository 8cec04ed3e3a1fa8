//! Evaluates operations on constants, by the one description of semantics in [`millstream_isa::semantics`].

use millstream_ir::Op;
use millstream_isa::semantics::eval;

/// The result of a pure operation on integers, if it is arithmetic.
pub(crate) fn eval_op(op: &Op, args: &[u64]) -> Option<u64> {
    Some(match (op, args) {
        (Op::Const { value }, _) => *value as u64,
        (Op::Alu { op, width }, &[a, b]) => eval::alu(*op, *width, a, b),
        (Op::Neg { width }, &[a]) => eval::neg(*width, a),
        (Op::Zext {}, &[a]) => eval::mov(millstream_ir::Width::W32, a),
        (Op::Sext { bits, width }, &[a]) => eval::movsx(*width, u32::from(*bits), a),
        (Op::Swap { kind, bits }, &[a]) => eval::swap(*kind, u32::from(*bits), a),
        (Op::Cmp { cond, width }, &[a, b]) => u64::from(eval::cond(*cond, *width, a, b)),
        (Op::Select {}, &[truth, yes, no]) => {
            if truth != 0 {
                yes
            } else {
                no
            }
        }
        _ => return None,
    })
}
