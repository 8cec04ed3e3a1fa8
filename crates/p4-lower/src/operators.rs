//! Operators on scalars.

use millstream_ir::{AluOp, Op, Type, Value, Width};
use millstream_p4::SourceSpan;
use millstream_p4::expression::{BinaryOperator, ExpressionTree, UnaryOperator};

use crate::error::{Lowered, refuse};
use crate::lowerer::Lowerer;
use crate::types::RuntimeType;
use crate::values::Scalar;

/// Widest values that are multiplied, in bits.
const WIDEST_PRODUCT: u32 = 4096;

pub(crate) fn unary<'p>(
    l: &mut Lowerer<'p>,
    operator: UnaryOperator,
    value: &'p ExpressionTree,
    target: &RuntimeType,
) -> Lowered<Scalar> {
    let value = l.scalar(value, Some(target))?;
    let width = value.width();
    let words = match operator {
        UnaryOperator::Not => vec![l.emitter.not(value.words[0])],
        UnaryOperator::Complement => l.emitter.complement(&value.words, width),
        UnaryOperator::Minus => l.emitter.negated(&value.words, width),
        UnaryOperator::Plus => value.words,
    };
    Ok(Scalar { words, value_type: value.value_type })
}

pub(crate) fn ternary<'p>(
    l: &mut Lowerer<'p>,
    parts: &'p [ExpressionTree; 3],
    target: &RuntimeType,
) -> Lowered<Scalar> {
    let condition = l.scalar(&parts[0], None)?;
    let otherwise = l.emitter.split(condition.words[0]);
    let behind = l.emitter.new_block();
    let result: Vec<Value> = (0..target.words()).map(|_| l.emitter.parameter(behind, Type::I64)).collect();
    for (index, part) in parts[1..].iter().enumerate() {
        if index == 1 {
            l.emitter.enter(otherwise);
        }
        let value = l.scalar(part, Some(target))?;
        let value = l.converted(value, target);
        l.emitter.jump_with(behind, &value.words);
    }
    l.emitter.enter(behind);
    Ok(Scalar { words: result, value_type: target.clone() })
}

pub(crate) fn binary<'p>(
    l: &mut Lowerer<'p>,
    operator: BinaryOperator,
    (left, right): (&'p ExpressionTree, &'p ExpressionTree),
    target: &RuntimeType,
    span: SourceSpan,
) -> Lowered<Scalar> {
    use BinaryOperator::*;
    match operator {
        And | Or => short_circuit(l, operator == And, left, right),
        Equal | NotEqual => equality(l, operator == Equal, left, right),
        ShiftLeft | ShiftRight => shift(l, operator == ShiftLeft, left, right, target),
        Concatenate => {
            let (high, low) = (l.scalar(left, None)?, l.scalar(right, None)?);
            let (a, b) = (high.width(), low.width());
            let words = l.emitter.joined((&high.words, a), (&low.words, b));
            Ok(Scalar { words, value_type: RuntimeType::Bits(a + b, high.value_type.is_signed()) })
        }
        Range | Mask => refuse(span, "a set of values is not supported here"),
        _ => {
            let (a, b) = operands(l, left, right, target)?;
            computed(l, operator, &a, &b, span)
        }
    }
}

/// Two operands of the same type; a number without a width takes the type of the other one.
fn operands<'p>(
    l: &mut Lowerer<'p>,
    left: &'p ExpressionTree,
    right: &'p ExpressionTree,
    target: &RuntimeType,
) -> Lowered<(Scalar, Scalar)> {
    let (a, b) = (l.type_of(left)?, l.type_of(right)?);
    let common = match (&a, &b) {
        (RuntimeType::Integer, RuntimeType::Integer) => target.clone(),
        (RuntimeType::Integer, _) => b,
        _ => a,
    };
    let a = l.scalar(left, Some(&common))?;
    let b = l.scalar(right, Some(&common))?;
    Ok((a, b))
}

/// An operator with operands of the same type.
pub(crate) fn computed(
    l: &mut Lowerer<'_>,
    operator: BinaryOperator,
    a: &Scalar,
    b: &Scalar,
    span: SourceSpan,
) -> Lowered<Scalar> {
    use BinaryOperator::*;
    let (width, is_signed) = (a.width(), a.value_type.is_signed());
    let e = &mut l.emitter;
    let (x, y) = (&a.words[..], &b.words[..]);
    let truth = match operator {
        Less => Some(e.less_words(x, y, width, is_signed)),
        Greater => Some(e.less_words(y, x, width, is_signed)),
        AtMost => {
            let above = e.less_words(y, x, width, is_signed);
            Some(e.not(above))
        }
        AtLeast => {
            let below = e.less_words(x, y, width, is_signed);
            Some(e.not(below))
        }
        _ => None,
    };
    if let Some(truth) = truth {
        return Ok(Scalar::truth(truth));
    }
    let words = match operator {
        BitAnd => e.bitwise(AluOp::And, x, y),
        BitOr => e.bitwise(AluOp::Or, x, y),
        BitXor => e.bitwise(AluOp::Xor, x, y),
        Add => e.add_words(x, y, width),
        Subtract => e.subtract_words(x, y, width),
        Multiply if width > WIDEST_PRODUCT => {
            return refuse(span, format!("a product of more than {WIDEST_PRODUCT} bits is not supported"));
        }
        Multiply => e.multiply_words(x, y, width),
        AddSaturating => e.saturating(true, (x, y), width, is_signed),
        SubtractSaturating => e.saturating(false, (x, y), width, is_signed),
        Divide | Remainder if width > 64 || is_signed => {
            return refuse(span, "division of signed values or of more than 64 bits is not supported");
        }
        Divide | Remainder => {
            let op = if operator == Divide { AluOp::Div } else { AluOp::Mod };
            vec![e.value(Op::Alu { op, width: Width::W64 }, &[x[0], y[0]], Type::I64)]
        }
        _ => return refuse(span, format!("`{}` is not supported here", operator.text())),
    };
    Ok(Scalar { words, value_type: a.value_type.clone() })
}

fn short_circuit<'p>(
    l: &mut Lowerer<'p>,
    is_and: bool,
    left: &'p ExpressionTree,
    right: &'p ExpressionTree,
) -> Lowered<Scalar> {
    let first = l.scalar(left, None)?;
    let (more, behind) = (l.emitter.new_block(), l.emitter.new_block());
    let result = l.emitter.parameter(behind, Type::I1);
    let known = l.emitter.truth(!is_and);
    let short = l.emitter.new_block();
    match is_and {
        true => l.emitter.branch_if(first.words[0], more, short),
        false => l.emitter.branch_if(first.words[0], short, more),
    }
    l.emitter.enter(short);
    l.emitter.jump_with(behind, &[known]);
    l.emitter.enter(more);
    let second = l.scalar(right, None)?;
    let truth = l.emitter.as_truth(second.words[0]);
    l.emitter.jump_with(behind, &[truth]);
    l.emitter.enter(behind);
    Ok(Scalar::truth(result))
}

fn equality<'p>(
    l: &mut Lowerer<'p>,
    is_equal: bool,
    left: &'p ExpressionTree,
    right: &'p ExpressionTree,
) -> Lowered<Scalar> {
    let (a, b) = (l.type_of(left)?, l.type_of(right)?);
    let is_known = |t: &RuntimeType| match t {
        RuntimeType::Integer | RuntimeType::Other => false,
        other => other.record().is_none_or(|record| record.nominal.is_some()),
    };
    let common = if is_known(&a) { a } else { b };
    let truth = match common.is_scalar() || common == RuntimeType::Integer {
        true => {
            let a = l.scalar(left, Some(&common))?;
            let b = l.scalar(right, Some(&common))?;
            l.emitter.equal_words(&a.words, &b.words)
        }
        false => {
            let a = l.memory(left, Some(&common))?;
            let b = l.memory(right, Some(&common))?;
            l.equal_places(&a, &b)
        }
    };
    Ok(Scalar::truth(if is_equal { truth } else { l.emitter.not(truth) }))
}

fn shift<'p>(
    l: &mut Lowerer<'p>,
    is_left: bool,
    left: &'p ExpressionTree,
    right: &'p ExpressionTree,
    target: &RuntimeType,
) -> Lowered<Scalar> {
    let value = l.scalar(left, Some(target))?;
    let by = l.scalar(right, Some(&RuntimeType::Bits(32, false)))?;
    Ok(shifted(l, is_left, value, &by))
}

pub(crate) fn shifted(l: &mut Lowerer<'_>, is_left: bool, value: Scalar, by: &Scalar) -> Scalar {
    let (width, fills) = (value.width(), value.value_type.is_signed());
    let e = &mut l.emitter;
    let known: Option<Vec<u64>> = by.words.iter().map(|word| e.known(*word)).collect();
    let words = match known {
        Some(words) => {
            let is_far = words[1..].iter().any(|word| *word != 0);
            let by = if is_far { u32::MAX } else { u32::try_from(words[0]).unwrap_or(u32::MAX) };
            match is_left {
                true => e.shifted_up(&value.words, by, width),
                false => e.shifted_down(&value.words, by, width, fills),
            }
        }
        None => e.shifted_by(&value.words, &by.words, (width, fills), is_left),
    };
    Scalar { words, value_type: value.value_type }
}
