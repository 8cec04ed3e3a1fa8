//! Values of expressions within an instance, whose constructor's parameters have values.

use millstream_p4::ConstantValue;
use millstream_p4::expression::{BinaryOperator, ExpressionKind, ExpressionTree, UnaryOperator};
use num_bigint::BigInt;
use rustc_hash::FxHashMap;

use crate::info::data_types::{DataType, TypeArguments};
use crate::info::program::ProgramIndex;

/// Values of the names of an instance.
pub(crate) type NamedConstants<'p> = FxHashMap<&'p str, ConstantValue>;

impl ProgramIndex<'_> {
    /// Evaluates an expression that is known when the program is compiled.
    pub(crate) fn evaluate(
        &self,
        expression: &ExpressionTree,
        names: &NamedConstants<'_>,
    ) -> Option<ConstantValue> {
        if let Some(value) = self.program.facts.constant(expression.id) {
            return Some(value.clone());
        }
        match &expression.kind {
            ExpressionKind::Name(name) => names.get(&*name.name.text).cloned(),
            ExpressionKind::Unary(operator, operand) => match (operator, self.evaluate(operand, names)?) {
                (UnaryOperator::Not, ConstantValue::Boolean(value)) => Some(ConstantValue::Boolean(!value)),
                (UnaryOperator::Minus, ConstantValue::Number(value)) => self.wrapped(expression, -value),
                (UnaryOperator::Plus, value) => Some(value),
                _ => None,
            },
            ExpressionKind::Binary(operator, left, right) => {
                self.binary(expression, *operator, [left, right], names)
            }
            ExpressionKind::Ternary(parts) => match self.evaluate(&parts[0], names)? {
                ConstantValue::Boolean(true) => self.evaluate(&parts[1], names),
                ConstantValue::Boolean(false) => self.evaluate(&parts[2], names),
                _ => None,
            },
            ExpressionKind::Cast(_, value) => match self.evaluate(value, names)? {
                ConstantValue::Number(value) => self.wrapped(expression, value),
                value => Some(value),
            },
            _ => None,
        }
    }

    fn binary(
        &self,
        expression: &ExpressionTree,
        operator: BinaryOperator,
        operands: [&ExpressionTree; 2],
        names: &NamedConstants<'_>,
    ) -> Option<ConstantValue> {
        use BinaryOperator::*;
        let values = operands.map(|operand| self.evaluate(operand, names));
        let boolean = |value: bool| Some(ConstantValue::Boolean(value));
        match (operator, &values) {
            (And, [Some(ConstantValue::Boolean(false)), _] | [_, Some(ConstantValue::Boolean(false))]) => {
                return boolean(false);
            }
            (Or, [Some(ConstantValue::Boolean(true)), _] | [_, Some(ConstantValue::Boolean(true))]) => {
                return boolean(true);
            }
            _ => {}
        }
        let [Some(left), Some(right)] = values else { return None };
        match (operator, &left, &right) {
            (Equal, ..) => return boolean(left == right),
            (NotEqual, ..) => return boolean(left != right),
            (And | Or, ConstantValue::Boolean(_), ConstantValue::Boolean(_)) => {
                return boolean(operator == And);
            }
            _ => {}
        }
        let (ConstantValue::Number(left), ConstantValue::Number(right)) = (left, right) else { return None };
        match operator {
            Less => boolean(left < right),
            Greater => boolean(left > right),
            AtMost => boolean(left <= right),
            AtLeast => boolean(left >= right),
            Add => self.wrapped(expression, left + right),
            Subtract => self.wrapped(expression, left - right),
            Multiply if left.bits() + right.bits() <= 4096 => self.wrapped(expression, left * right),
            _ => None,
        }
    }

    /// Reduces a number to the width of an expression's type.
    fn wrapped(&self, expression: &ExpressionTree, value: BigInt) -> Option<ConstantValue> {
        let type_id = self.program.facts.type_id(expression.id)?;
        match self.underlying(&self.found_type(type_id, &TypeArguments::default())) {
            DataType::Bits(width) => {
                let modulus = BigInt::from(1) << width;
                Some(ConstantValue::Number(((value % &modulus) + &modulus) % modulus))
            }
            DataType::SignedBits(_) => None,
            _ => Some(ConstantValue::Number(value)),
        }
    }

    /// Evaluates a number.
    pub(crate) fn number(&self, expression: &ExpressionTree, names: &NamedConstants<'_>) -> Option<BigInt> {
        match self.evaluate(expression, names)? {
            ConstantValue::Number(value) => Some(value),
            value @ ConstantValue::Member(..) => self.member_number(&value),
            _ => None,
        }
    }

    /// Number of a member of an enumeration with values.
    pub(crate) fn member_number(&self, value: &ConstantValue) -> Option<BigInt> {
        let ConstantValue::Member(id, name) = value else { return None };
        let millstream_p4::NominalKind::Enumeration(Some(_), members) = &self.program.types.nominal(*id).kind
        else {
            return None;
        };
        match members.iter().find(|(member, _)| member == name)?.1.as_ref()? {
            ConstantValue::Number(value) => Some(value.clone()),
            _ => None,
        }
    }
}
