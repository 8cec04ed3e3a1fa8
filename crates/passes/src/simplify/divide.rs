//! Division and remainder by constants as multiplication and shift.
//!
//! For `x < 2^n` and a divisor `c`, with `m = ceil(2^s / c)` and `e = m c - 2^s`, the quotient is `x m >> s`
//! whenever `x e < 2^s` for every `x` (Granlund and Montgomery, "Division by Invariant Integers using
//! Multiplication", PLDI 1994); it must also not overflow 64 bits. The verifier knows nothing of a quotient
//! but bounds a product, so this only adds to its knowledge. It costs slots: a driver that counts them can
//! leave this pass out.

use millstream_ir::{AluOp, Function, Inst, Op, Type, Value, Width};

use crate::manager::{FuncPass, PassContext};

const NAME: &str = "divide";

/// Replaces divisions by constants.
pub(crate) struct DivideByConst;

impl FuncPass for DivideByConst {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "multiply and shift instead of dividing by a constant"
    }

    fn run(&self, func: &mut Function, cx: &mut PassContext<'_>) -> bool {
        let mut changed = false;
        for i in 0..func.layout.len() {
            let block = func.layout[i];
            let mut at = 0;
            while at < func.blocks[block].insts.len() {
                let inst = func.blocks[block].insts[at];
                if let Some(plan) = plan(func, cx, inst)
                    && cx.fuel(NAME)
                {
                    expand(func, block, at, &plan);
                    changed = true;
                }
                at += 1;
            }
        }
        changed
    }
}

/// Plan of one division.
struct MagicDivision {
    inst: Inst,
    dividend: Value,
    // Only the low half of the dividend counts and its high half may not be zero.
    extend: bool,
    divisor: u64,
    factor: u64,
    shift: u32,
    remainder: bool,
}

fn plan(func: &Function, cx: &PassContext<'_>, inst: Inst) -> Option<MagicDivision> {
    let data = &func.insts[inst];
    let Op::Alu { op, width } = data.op else { return None };
    let remainder = match op {
        AluOp::Div => false,
        AluOp::Mod => true,
        _ => return None,
    };
    let dividend = data.args[0];
    let constant = func.as_const(data.args[1])? as u64;
    let divisor = if width == Width::W32 { constant & 0xffff_ffff } else { constant };
    if divisor < 3 || divisor.is_power_of_two() || divisor > i32::MAX as u64 {
        return None;
    }
    let known = func.types[dividend].int_bits().unwrap_or(64);
    let bits = known.min(width.bits());
    let (factor, shift) = reciprocal(divisor, bits)?;
    let costs = &cx.target().costs;
    let extend = known > bits;
    let quotient = costs.mul + 1 + u32::from(extend) + cx.target().const_cost(factor as i64);
    let cost = if remainder { quotient + costs.mul + 1 } else { quotient };
    (cost < costs.div).then_some(MagicDivision { inst, dividend, extend, divisor, factor, shift, remainder })
}

/// Factor and shift that divide every value of `bits` bits by `divisor`, the smallest there are.
fn reciprocal(divisor: u64, bits: u32) -> Option<(u64, u32)> {
    let greatest = u128::from(u64::MAX >> (64 - bits.clamp(1, 64)));
    (1..64).find_map(|shift| {
        let power = 1u128 << shift;
        let factor = power.div_ceil(u128::from(divisor));
        let excess = factor * u128::from(divisor) - power;
        let exact = greatest * excess < power;
        let fits = greatest * factor <= u128::from(u64::MAX);
        (exact && fits).then_some((factor as u64, shift))
    })
}

fn expand(func: &mut Function, block: millstream_ir::Block, at: usize, plan: &MagicDivision) {
    let mut cursor = func.at(block, at);
    cursor.loc = cursor.func.insts[plan.inst].loc;
    let wide = |op| Op::Alu { op, width: Width::W64 };
    let x = match plan.extend {
        true => cursor.value(Op::Zext {}, [plan.dividend], Type::I32),
        false => plan.dividend,
    };
    let factor = cursor.iconst(plan.factor as i64);
    let product = cursor.value(wide(AluOp::Mul), [x, factor], Type::I64);
    let shift = cursor.iconst(i64::from(plan.shift));
    let (last, args) = if plan.remainder {
        let quotient = cursor.value(wide(AluOp::Rsh), [product, shift], Type::I64);
        let divisor = cursor.iconst(plan.divisor as i64);
        let multiple = cursor.value(wide(AluOp::Mul), [quotient, divisor], Type::I64);
        (AluOp::Sub, [x, multiple])
    } else {
        (AluOp::Rsh, [product, shift])
    };
    func.insts[plan.inst].op = wide(last);
    func.insts[plan.inst].args = args.into_iter().collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reciprocals_divide_the_values_around_each_multiple() {
        for divisor in [3u64, 5, 6, 7, 10, 11, 60, 100, 641, 1000, 4093, 65537, 1_000_000_007] {
            for bits in [8, 16, 31, 32] {
                let Some((factor, shift)) = reciprocal(divisor, bits) else { continue };
                let top = u64::MAX >> (64 - bits);
                let samples = (0..2000u64).flat_map(|i| {
                    [i, top - i.min(top), (i * divisor).min(top), (i * divisor + divisor - 1).min(top)]
                });
                for x in samples.filter(|x| *x <= top) {
                    assert_eq!((x * factor) >> shift, x / divisor, "{x} / {divisor} at {bits} bits");
                }
            }
        }
        assert!(reciprocal(10, 16).is_some() && reciprocal(10, 32).is_some());
    }
}
