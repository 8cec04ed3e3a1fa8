//! Transfer functions of the verifier's own domain, [`millstream_isa::absint`]: facts about values.

use millstream_ir::{Function, Inst, Op, Type, Value, Width};
use millstream_isa::absint::{AbstractDomain, Scalar};
use millstream_isa::semantics;

/// Facts about the result of an instruction, given those about its operands.
pub(crate) fn transfer(
    mut domain: AbstractDomain,
    func: &Function,
    inst: Inst,
    fact: impl Fn(Value) -> Scalar,
) -> Scalar {
    let data = &func.insts[inst];
    let arg = |i: usize| fact(data.args[i]);
    // The verifier tracks no numbers for pointers, nor for what may be one.
    let numbers = || data.args.iter().all(|&v| func.types[v].is_int());
    let d = &mut domain;
    let value = match &data.op {
        Op::Const { value } => Scalar::constant(*value as u64),
        Op::Alu { op, width } if numbers() => semantics::alu(d, *op, *width, &arg(0), &arg(1)),
        Op::Neg { width } if numbers() => d.neg(*width, &arg(0)),
        Op::Zext {} if numbers() => semantics::mov(d, Width::W32, &arg(0)),
        Op::Sext { bits, width } if numbers() => semantics::movsx(d, *width, u32::from(*bits), &arg(0)),
        Op::Swap { kind, bits } if numbers() => d.swap(*kind, u32::from(*bits), &arg(0)),
        Op::Cmp { cond, width } => match semantics::cond(d, *cond, *width, &arg(0), &arg(1)) {
            Some(truth) => Scalar::constant(u64::from(truth)),
            None => Scalar::of_width(1),
        },
        Op::Select {} => arg(1).join(&arg(2)),
        _ => Scalar::UNKNOWN,
    };
    of_type(domain, value, func.result(inst).map_or(Type::Any, |v| func.types[v]))
}

/// Facts about a value, with what its type says.
pub(crate) fn of_type(domain: AbstractDomain, value: Scalar, ty: Type) -> Scalar {
    match ty.int_bits() {
        Some(bits) if bits < 64 => {
            let by_type = Scalar::of_width(bits);
            if value == Scalar::UNKNOWN {
                by_type
            } else {
                domain.intersect(&value, &by_type).unwrap_or(by_type)
            }
        }
        _ => value,
    }
}

/// Outcome of a branch, if the facts decide it.
pub(crate) fn decide(
    mut domain: AbstractDomain,
    func: &Function,
    term: Inst,
    fact: impl Fn(Value) -> Scalar,
) -> Option<bool> {
    let data = &func.insts[term];
    let Op::Branch { cond, width } = data.op else { return None };
    semantics::cond(&mut domain, cond, width, &fact(data.args[0]), &fact(data.args[1]))
}

/// Facts about the operands of a branch on one of its sides.
pub(crate) enum EdgeFacts {
    /// That side is never taken.
    Never,
    /// It teaches nothing.
    Same,
    /// It teaches this.
    Known([(Value, Scalar); 2]),
}

/// Facts that one side of a terminator establishes.
pub(crate) fn on_side(
    domain: AbstractDomain,
    func: &Function,
    term: Inst,
    side: usize,
    fact: impl Fn(Value) -> Scalar,
) -> EdgeFacts {
    let data = &func.insts[term];
    let Op::Branch { cond, width } = data.op else { return EdgeFacts::Same };
    let (a, b) = (data.args[0], data.args[1]);
    match domain.refine(cond, width, side == 0, &fact(a), &fact(b)) {
        Some((fa, fb)) => EdgeFacts::Known([(a, fa), (b, fb)]),
        None => EdgeFacts::Never,
    }
}
