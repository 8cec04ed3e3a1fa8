//! Widths of results, as verifiers know them.
//!
//! A type says how wide a value is. Passes and instruction selection drop masks and extensions that a type
//! makes needless, so no type may say more than every verifier that will see the code knows by itself.

use millstream_ir::{AluOp, Function, Op, Type, Value, Width};
use millstream_isa::absint::VerifierRules;

/// Returns true if a verifier knows the width of an operation's result. `constant` says whether an operand is
/// one: the second, or either of an operation that commutes.
pub(crate) fn verifier_knows_width(knowledge: VerifierRules, op: &Op, constant: bool) -> bool {
    match op {
        Op::Alu { op, width: Width::W32 } => match op {
            AluOp::Add | AluOp::Sub | AluOp::And => true,
            AluOp::Or | AluOp::Xor | AluOp::Mul => constant || knowledge.variable_bitwise,
            AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => constant,
            AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod => false,
        },
        Op::Neg { .. } => knowledge.negation,
        Op::Swap { .. } => knowledge.byte_order,
        _ => true,
    }
}

/// Widens the types of values whose width a verifier does not know, and of all that they flow into.
pub fn widen_types(func: &mut Function, knowledge: VerifierRules) {
    let mut open: Vec<Value> = Vec::new();
    let insts: Vec<_> = func.insts_in_order().map(|(_, inst)| inst).collect();
    for inst in &insts {
        let data = &func.insts[*inst];
        let Some(result) = data.result.expand() else { continue };
        let is_const = |at: usize| data.args.get(at).is_some_and(|&v| func.as_const(v).is_some());
        let commutes = matches!(&data.op, Op::Alu { op, .. } if op.commutes());
        let constant = is_const(1) || commutes && is_const(0);
        if !verifier_knows_width(knowledge, &data.op, constant) && is_narrow(func, result) {
            func.types[result] = Type::I64;
            open.push(result);
        }
    }
    if open.is_empty() {
        return;
    }
    // Parameters and choices are as wide as what comes to them.
    loop {
        let mut changed = false;
        for inst in &insts {
            let data = &func.insts[*inst];
            let mut flows: Vec<(Value, Value)> = Vec::new();
            for target in &data.targets {
                let params = &func.blocks[target.block].params;
                flows.extend(target.args.iter().copied().zip(params.iter().copied()));
            }
            if let (Op::Select {}, Some(result)) = (&data.op, data.result.expand()) {
                flows.extend(data.args[1..].iter().map(|&arg| (arg, result)));
            }
            for (from, to) in flows {
                let (source, target) = (func.types[from].int_bits(), func.types[to].int_bits());
                if let (Some(source), Some(target)) = (source, target)
                    && source > target
                    && func.as_const(from).is_none()
                {
                    func.types[to] = func.types[from];
                    changed = true;
                }
            }
        }
        if !changed {
            return;
        }
    }
}

fn is_narrow(func: &Function, value: Value) -> bool {
    func.types[value].int_bits().is_some_and(|bits| bits < 64)
}
