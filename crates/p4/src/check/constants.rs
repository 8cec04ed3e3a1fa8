//! Values that are known when the program is compiled.

use num_bigint::BigInt;

use crate::check::numbers::NominalId;
use crate::expression::BinaryOperator;
use crate::source::Symbol;

/// Largest number of bits of a value of type `int`.
const MOST_BITS: u64 = 65_536;

/// A value.
#[derive(Clone, PartialEq, Debug)]
pub enum ConstantValue {
    /// A boolean.
    Boolean(bool),
    /// A number of any type.
    Number(BigInt),
    /// A string.
    Text(Symbol),
    /// An error.
    ErrorCode(Symbol),
    /// A member of an enumeration.
    Member(NominalId, Symbol),
    /// Values of a list, tuple, struct or header in order.
    List(Vec<ConstantValue>),
}

impl ConstantValue {
    pub(crate) fn number(&self) -> Option<&BigInt> {
        match self {
            ConstantValue::Number(value) => Some(value),
            _ => None,
        }
    }
}

/// Format of numbers of a type: their width and sign; `int` has no width.
pub(crate) type NumberFormat = Option<(u32, bool)>;

/// Reduces a number to a width.
pub(crate) fn wrapped(value: BigInt, format: NumberFormat) -> BigInt {
    let Some((width, is_signed)) = format else { return value };
    let modulus = BigInt::from(1) << width;
    let mut reduced = value % &modulus;
    if reduced < BigInt::ZERO {
        reduced += &modulus;
    }
    if is_signed && width > 0 && reduced >= (BigInt::from(1) << (width - 1)) {
        reduced -= modulus;
    }
    reduced
}

/// Tells if a number has a value of its own in a format.
pub(crate) fn fits(value: &BigInt, format: NumberFormat) -> bool {
    wrapped(value.clone(), format) == *value
}

/// Limits a number to the range of a width.
fn saturated(value: BigInt, (width, is_signed): (u32, bool)) -> BigInt {
    let one = BigInt::from(1);
    let (low, high) = match is_signed {
        true => (-(one.clone() << width.saturating_sub(1)), (one.clone() << width.saturating_sub(1)) - one),
        false => (BigInt::ZERO, (one.clone() << width) - one),
    };
    value.clamp(low, high)
}

/// Result of an operator on two numbers, or the reason why there is none.
pub(crate) fn binary(
    operator: BinaryOperator,
    left: &BigInt,
    right: &BigInt,
    format: NumberFormat,
) -> Result<ConstantValue, &'static str> {
    use BinaryOperator::*;
    let number = match operator {
        Equal => return Ok(ConstantValue::Boolean(left == right)),
        NotEqual => return Ok(ConstantValue::Boolean(left != right)),
        Less => return Ok(ConstantValue::Boolean(left < right)),
        Greater => return Ok(ConstantValue::Boolean(left > right)),
        AtMost => return Ok(ConstantValue::Boolean(left <= right)),
        AtLeast => return Ok(ConstantValue::Boolean(left >= right)),
        Divide | Remainder => return divided(operator, left, right),
        ShiftLeft | ShiftRight => shifted(operator, left, right, format)?,
        Add => left + right,
        Subtract => left - right,
        Multiply => left * right,
        BitAnd => left & right,
        BitOr => left | right,
        BitXor => left ^ right,
        AddSaturating | SubtractSaturating => {
            let sum = if operator == AddSaturating { left + right } else { left - right };
            format.map_or(sum.clone(), |format| saturated(sum, format))
        }
        Range | Mask | Or | And | Concatenate => return Err("this operator takes no numbers"),
    };
    if number.bits() > MOST_BITS {
        return Err("this number becomes too large");
    }
    Ok(ConstantValue::Number(wrapped(number, format)))
}

fn divided(operator: BinaryOperator, left: &BigInt, right: &BigInt) -> Result<ConstantValue, &'static str> {
    if *right == BigInt::ZERO {
        return Err("division by zero");
    }
    if *right < BigInt::ZERO || *left < BigInt::ZERO {
        return Err("division is not defined for negative numbers");
    }
    Ok(ConstantValue::Number(if operator == BinaryOperator::Divide { left / right } else { left % right }))
}

fn shifted(
    operator: BinaryOperator,
    left: &BigInt,
    right: &BigInt,
    format: NumberFormat,
) -> Result<BigInt, &'static str> {
    if *right < BigInt::ZERO {
        return Err("a shift by a negative number");
    }
    let most = format.map_or(MOST_BITS, |(width, _)| u64::from(width));
    let amount = u64::try_from(right).unwrap_or(u64::MAX);
    match operator {
        BinaryOperator::ShiftRight => Ok(left >> amount.min(MOST_BITS)),
        _ if amount <= most => Ok(left << amount),
        _ if format.is_some() || *left == BigInt::ZERO => Ok(BigInt::ZERO),
        _ => Err("this number becomes too large"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_to_their_width() {
        for (value, format, result) in [
            (256, Some((8, false)), 0),
            (-1, Some((8, false)), 255),
            (200, Some((8, true)), -56),
            (7, None, 7),
        ] {
            assert_eq!(wrapped(value.into(), format), result.into(), "{value} {format:?}");
        }
    }

    #[test]
    fn saturating_operators_stop_at_the_ends() {
        let run = |operator, left: i32, right: i32, format| {
            binary(operator, &left.into(), &right.into(), Some(format)).ok()
        };
        let number = |value: i32| Some(ConstantValue::Number(value.into()));
        assert_eq!(run(BinaryOperator::AddSaturating, 200, 100, (8, false)), number(255));
        assert_eq!(run(BinaryOperator::SubtractSaturating, 2, 3, (8, false)), number(0));
        assert_eq!(run(BinaryOperator::AddSaturating, 100, 100, (8, true)), number(127));
    }
}
