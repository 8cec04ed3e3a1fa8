//! Values that are known when the program is compiled.

use millstream_p4::expression::{BinaryOperator, ExpressionKind, ExpressionTree, UnaryOperator};
use millstream_p4::{ConstantValue, NominalKind};
use num_bigint::{BigInt, BigUint};

use crate::error::{Lowered, refuse};
use crate::lowerer::Lowerer;
use crate::scope::Binding;
use crate::types::{RuntimeType, words_of};
use crate::values::Scalar;

/// Largest amount of a shift between numbers without a width.
const LARGEST_SHIFT: u32 = 65_536;

/// Reduces a number to a width; the result is not negative.
pub(crate) fn reduced(value: &BigInt, width: u32) -> BigUint {
    let modulus = BigInt::from(1) << width;
    let rest = ((value % &modulus) + &modulus) % &modulus;
    rest.to_biguint().unwrap_or_default()
}

/// Reads a number with the sign of its type.
fn signed(value: &BigInt, value_type: &RuntimeType) -> BigInt {
    let RuntimeType::Bits(width, is_signed) = value_type else { return value.clone() };
    let unsigned = BigInt::from(reduced(value, *width));
    match *is_signed && *width > 0 && unsigned >= (BigInt::from(1) << (width - 1)) {
        true => unsigned - (BigInt::from(1) << width),
        false => unsigned,
    }
}

impl<'p> Lowerer<'p> {
    /// The value of an expression, if it is known.
    pub(crate) fn known(&mut self, expression: &'p ExpressionTree) -> Option<ConstantValue> {
        if let Some(value) = self.source.program.facts.constant(expression.id) {
            return Some(value.clone());
        }
        match &expression.kind {
            ExpressionKind::Number(number) => Some(ConstantValue::Number(number.value.clone())),
            ExpressionKind::Boolean(value) => Some(ConstantValue::Boolean(*value)),
            ExpressionKind::Text(text) => Some(ConstantValue::Text(text.clone())),
            ExpressionKind::Name(name) => match self.scope.find(&name.name.text) {
                Some((Binding::Constant(value, _, scope), found)) if !name.is_global => {
                    self.known_in(value, scope.unwrap_or(found))
                }
                _ => None,
            },
            ExpressionKind::Cast(_, value) => {
                let target = self.type_of(expression).ok()?;
                match (self.known(value)?, &target) {
                    (ConstantValue::Number(n), RuntimeType::Bool) => {
                        Some(ConstantValue::Boolean(n != BigInt::ZERO))
                    }
                    (ConstantValue::Boolean(b), RuntimeType::Bits(..)) => {
                        Some(ConstantValue::Number(u8::from(b).into()))
                    }
                    (ConstantValue::Number(n), _) => Some(ConstantValue::Number(signed(&n, &target))),
                    (other, _) => Some(other),
                }
            }
            ExpressionKind::Unary(operator, value) => {
                let target = self.type_of(expression).ok()?;
                self.known_unary(*operator, value, &target)
            }
            ExpressionKind::Binary(operator, left, right) => {
                let target = self.type_of(expression).ok()?;
                if *operator == BinaryOperator::Concatenate {
                    return self.known_joined(left, right, &target);
                }
                let (left, right) = (self.known(left)?, self.known(right)?);
                known_binary(*operator, &left, &right, &target)
            }
            ExpressionKind::Ternary(parts) => match self.known(&parts[0])? {
                ConstantValue::Boolean(true) => self.known(&parts[1]),
                ConstantValue::Boolean(false) => self.known(&parts[2]),
                _ => None,
            },
            ExpressionKind::Member(base, member) => self.known_member(base, &member.text),
            _ => None,
        }
    }

    fn known_in(
        &mut self,
        value: &'p ExpressionTree,
        scope: std::rc::Rc<crate::scope::Scope<'p>>,
    ) -> Option<ConstantValue> {
        let known = self.deeper(value.span, |l| l.in_scope(scope, |l| Ok(l.known(value))));
        known.ok().flatten()
    }

    fn known_member(&mut self, base: &'p ExpressionTree, member: &str) -> Option<ConstantValue> {
        let ConstantValue::List(list) = self.known(base)? else { return None };
        let base_type = self.type_of(base).ok()?;
        let index = base_type.record()?.fields.iter().position(|field| &*field.name == member)?;
        list.get(index).cloned()
    }

    fn known_joined(
        &mut self,
        left: &'p ExpressionTree,
        right: &'p ExpressionTree,
        target: &RuntimeType,
    ) -> Option<ConstantValue> {
        let low = self.type_of(right).ok()?.width()?;
        let (ConstantValue::Number(a), ConstantValue::Number(b)) = (self.known(left)?, self.known(right)?)
        else {
            return None;
        };
        let joined = (a << low) + BigInt::from(reduced(&b, low));
        Some(ConstantValue::Number(signed(&joined, target)))
    }

    fn known_unary(
        &mut self,
        operator: UnaryOperator,
        value: &'p ExpressionTree,
        target: &RuntimeType,
    ) -> Option<ConstantValue> {
        Some(match (operator, self.known(value)?) {
            (UnaryOperator::Not, ConstantValue::Boolean(b)) => ConstantValue::Boolean(!b),
            (UnaryOperator::Complement, ConstantValue::Number(n)) => {
                ConstantValue::Number(signed(&(-n - 1), target))
            }
            (UnaryOperator::Minus, ConstantValue::Number(n)) => ConstantValue::Number(signed(&-n, target)),
            (UnaryOperator::Plus, value) => value,
            _ => return None,
        })
    }

    /// A number that has to be known.
    pub(crate) fn known_number(&mut self, expression: &'p ExpressionTree) -> Lowered<BigInt> {
        match self.known(expression) {
            Some(ConstantValue::Number(value)) => Ok(value),
            Some(ConstantValue::Boolean(value)) => Ok(u8::from(value).into()),
            Some(ConstantValue::Member(id, name)) => Ok(self.member_number(id, &name)),
            Some(ConstantValue::ErrorCode(name)) => {
                Ok(self.source.errors.get(&name).copied().unwrap_or_default().into())
            }
            _ => refuse(expression.span, "this value has to be known when the program is compiled"),
        }
    }

    /// A size that has to be known, in 32 bits.
    pub(crate) fn known_size(&mut self, expression: &'p ExpressionTree) -> Lowered<u32> {
        let number = self.known_number(expression)?;
        match u32::try_from(&number) {
            Ok(number) => Ok(number),
            Err(_) => refuse(expression.span, format!("{number} is out of range")),
        }
    }

    /// Number of a member of an enumeration: its value, or its index.
    pub(crate) fn member_number(&self, id: millstream_p4::NominalId, name: &millstream_p4::Symbol) -> BigInt {
        if let NominalKind::Enumeration(Some(_), members) = &self.source.program.types.nominal(id).kind
            && let Some((_, Some(ConstantValue::Number(value)))) = members.iter().find(|(n, _)| n == name)
        {
            return value.clone();
        }
        self.member_index(id, name).unwrap_or_default().into()
    }

    /// A known scalar as words.
    pub(crate) fn constant_scalar(&mut self, value: &ConstantValue, to: &RuntimeType) -> Option<Scalar> {
        let number = match value {
            ConstantValue::Number(number) => number.clone(),
            ConstantValue::Boolean(value) => u8::from(*value).into(),
            ConstantValue::Member(id, name) => self.member_number(*id, name),
            ConstantValue::ErrorCode(name) => self.source.errors.get(name).copied()?.into(),
            _ => return None,
        };
        let width = to.width()?;
        let digits = reduced(&number, width).to_u64_digits();
        let mut words = Vec::new();
        for n in 0..words_of(width) {
            words.push(self.emitter.constant(digits.get(n).copied().unwrap_or(0)));
        }
        Some(Scalar { words, value_type: to.clone() })
    }
}

fn known_binary(
    operator: BinaryOperator,
    left: &ConstantValue,
    right: &ConstantValue,
    target: &RuntimeType,
) -> Option<ConstantValue> {
    use BinaryOperator::*;
    use ConstantValue::{Boolean, Number};
    let (Number(a), Number(b)) = (left, right) else {
        return match (operator, left, right) {
            (And, Boolean(a), Boolean(b)) => Some(Boolean(*a && *b)),
            (Or, Boolean(a), Boolean(b)) => Some(Boolean(*a || *b)),
            (Equal, a, b) => Some(Boolean(a == b)),
            (NotEqual, a, b) => Some(Boolean(a != b)),
            _ => None,
        };
    };
    let shift = || u32::try_from(b).ok().filter(|by| *by <= LARGEST_SHIFT);
    let number = match operator {
        Equal => return Some(Boolean(a == b)),
        NotEqual => return Some(Boolean(a != b)),
        Less => return Some(Boolean(a < b)),
        Greater => return Some(Boolean(a > b)),
        AtMost => return Some(Boolean(a <= b)),
        AtLeast => return Some(Boolean(a >= b)),
        Add => a + b,
        Subtract => a - b,
        Multiply => a * b,
        Divide if *b > BigInt::ZERO => a / b,
        Remainder if *b > BigInt::ZERO => a % b,
        BitAnd => a & b,
        BitOr => a | b,
        BitXor => a ^ b,
        ShiftLeft => a << shift()?,
        ShiftRight => a >> shift()?,
        _ => return None,
    };
    Some(Number(signed(&number, target)))
}
