//! Operators with two operands. Source: P4_16 1.2.5, sections 8.5 to 8.10.

use crate::check::constants::{self, ConstantValue, wrapped};
use crate::check::types::{BOOL, INTEGER, TEXT, TypeId, UNKNOWN, ValueType};
use crate::check::{TypeChecker, TypedValue};
use crate::expression::{BinaryOperator, ExpressionTree};
use crate::parse::WIDEST_VALUE;
use crate::source::SourceSpan;

use BinaryOperator::*;

/// Operators by the operands that they take.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OperatorClass {
    Logical,
    Equality,
    Order,
    Arithmetic,
    Bitwise,
    Saturating,
    Shift,
    Concatenation,
    Set,
}

fn class(operator: BinaryOperator) -> OperatorClass {
    match operator {
        And | Or => OperatorClass::Logical,
        Equal | NotEqual => OperatorClass::Equality,
        Less | Greater | AtMost | AtLeast => OperatorClass::Order,
        Add | Subtract | Multiply | Divide | Remainder => OperatorClass::Arithmetic,
        BitAnd | BitOr | BitXor => OperatorClass::Bitwise,
        AddSaturating | SubtractSaturating => OperatorClass::Saturating,
        ShiftLeft | ShiftRight => OperatorClass::Shift,
        Concatenate => OperatorClass::Concatenation,
        Range | Mask => OperatorClass::Set,
    }
}

impl TypeChecker<'_> {
    pub(crate) fn binary(
        &mut self,
        operator: BinaryOperator,
        left: &ExpressionTree,
        right: &ExpressionTree,
        span: SourceSpan,
    ) -> TypedValue {
        let left_value = self.expression(left);
        let right_value = self.expression(right);
        self.binary_values(operator, &left_value, &right_value, span)
    }

    pub(crate) fn binary_values(
        &mut self,
        operator: BinaryOperator,
        left: &TypedValue,
        right: &TypedValue,
        span: SourceSpan,
    ) -> TypedValue {
        if left.type_id == UNKNOWN || right.type_id == UNKNOWN {
            return TypedValue::unknown();
        }
        match self.operand_and_result(operator, left, right) {
            Some((operand, result)) => {
                let constant = self.fold(operator, (left, right), (operand, result), span);
                let is_known = left.is_known && right.is_known;
                TypedValue { type_id: result, is_writable: false, is_known, constant }
            }
            None => {
                let (left, right) = (self.types.name(left.type_id), self.types.name(right.type_id));
                let text = operator.text();
                self.error(span, format!("`{text}` takes no operands of types `{left}` and `{right}`"));
                TypedValue::unknown()
            }
        }
    }

    /// Type of an operand: enumerations with values become their values.
    pub(crate) fn operand_type(&self, id: TypeId) -> TypeId {
        let id = self.types.shallow(id);
        self.underlying(id).map_or(id, |under| self.types.shallow(under))
    }

    /// Type of numbers that two operands can both have.
    pub(crate) fn common_number(&mut self, left: TypeId, right: TypeId) -> Option<TypeId> {
        let (left, right) = (self.operand_type(left), self.operand_type(right));
        match (left == INTEGER, right == INTEGER) {
            (true, true) => Some(INTEGER),
            (true, false) => self.is_number(right).then_some(right),
            (false, true) => self.is_number(left).then_some(left),
            (false, false) => (left == right && self.is_number(left)).then_some(left),
        }
    }

    fn operand_and_result(
        &mut self,
        operator: BinaryOperator,
        left: &TypedValue,
        right: &TypedValue,
    ) -> Option<(TypeId, TypeId)> {
        let is_boolean = left.type_id == BOOL && right.type_id == BOOL;
        let common = self.common_number(left.type_id, right.type_id);
        let sized = common.filter(|id| *id != INTEGER);
        match class(operator) {
            OperatorClass::Logical => is_boolean.then_some((BOOL, BOOL)),
            OperatorClass::Equality => self.compared(left.type_id, right.type_id).map(|id| (id, BOOL)),
            OperatorClass::Order => common.map(|id| (id, BOOL)),
            OperatorClass::Arithmetic if matches!(operator, Divide | Remainder) => common
                .filter(|id| !matches!(self.types.kind(*id), ValueType::SignedBits(_)))
                .map(|id| (id, id)),
            OperatorClass::Arithmetic => common.map(|id| (id, id)),
            OperatorClass::Bitwise => common.map(|id| (id, id)),
            OperatorClass::Saturating => sized.map(|id| (id, id)),
            OperatorClass::Shift => self.shift(left, right),
            OperatorClass::Concatenation => self.concatenation(left, right).map(|id| (id, id)),
            OperatorClass::Set => common.map(|id| (id, self.types.add(ValueType::Set(id)))),
        }
    }

    /// Type as which two values are compared.
    pub(crate) fn compared(&mut self, left: TypeId, right: TypeId) -> Option<TypeId> {
        let common = self.common_number(left, right);
        if common.is_some() && left != right {
            return common;
        }
        let (left, right) = (self.types.shallow(left), self.types.shallow(right));
        let type_id = if self.coerces(left, right) {
            right
        } else if self.coerces(right, left) {
            left
        } else {
            return None;
        };
        let kind = self.types.kind(type_id);
        let has_equality = !matches!(
            kind,
            ValueType::Parameter(..)
                | ValueType::Void
                | ValueType::Set(_)
                | ValueType::TableResult(_)
                | ValueType::TableAction(_)
        );
        let has_equality = has_equality && !self.has_unsized_elements(type_id);
        (has_equality && self.is_data(type_id)).then_some(type_id)
    }

    /// Tells if a list or record has numbers without a width, so that its type is not known.
    fn has_unsized_elements(&self, id: TypeId) -> bool {
        match self.types.kind(id) {
            ValueType::ListExpression(elements) => elements.contains(&INTEGER),
            ValueType::RecordExpression(fields, _) => fields.iter().any(|(_, id)| *id == INTEGER),
            _ => false,
        }
    }

    fn shift(&mut self, left: &TypedValue, right: &TypedValue) -> Option<(TypeId, TypeId)> {
        let (value, amount) = (self.operand_type(left.type_id), self.operand_type(right.type_id));
        let is_unsigned = matches!(self.types.kind(amount), ValueType::Bits(_));
        let is_negative =
            right.constant.as_ref().and_then(|c| c.number()).is_some_and(|n| *n < num_bigint::BigInt::ZERO);
        let is_known_amount = right.is_known && self.is_number(amount);
        let is_amount = is_unsigned || (amount == INTEGER || is_known_amount) && !is_negative;
        let is_value = self.is_number(value) || value == INTEGER && right.is_known;
        (is_amount && is_value).then_some((value, value))
    }

    fn concatenation(&mut self, left: &TypedValue, right: &TypedValue) -> Option<TypeId> {
        let (left_type, right_type) = (self.operand_type(left.type_id), self.operand_type(right.type_id));
        if left_type == TEXT && right_type == TEXT {
            return (left.is_known && right.is_known).then_some(TEXT);
        }
        let (Some((a, is_signed)), Some((b, _))) = (self.format(left_type), self.format(right_type)) else {
            return None;
        };
        if !self.is_number(left_type) || !self.is_number(right_type) || a + b > WIDEST_VALUE {
            return None;
        }
        Some(self.types.add(if is_signed { ValueType::SignedBits(a + b) } else { ValueType::Bits(a + b) }))
    }

    /// Value of an operator whose operands are known.
    fn fold(
        &mut self,
        operator: BinaryOperator,
        (left, right): (&TypedValue, &TypedValue),
        (operand, result): (TypeId, TypeId),
        span: SourceSpan,
    ) -> Option<ConstantValue> {
        let is_negative = |value: &TypedValue| {
            value.constant.as_ref().and_then(|c| c.number()).is_some_and(|n| *n < num_bigint::BigInt::ZERO)
        };
        if matches!(operator, Divide | Remainder) && (is_negative(left) || is_negative(right)) {
            self.error(span, "division is not defined for negative numbers");
            return None;
        }
        if operator == Range
            && let (Some(low), Some(high)) = (&left.constant, &right.constant)
            && low.number() > high.number()
        {
            let message = "this range is empty: its end is below its beginning";
            self.sink.push(crate::diagnostic::SourceDiagnostic::warning(span, message));
        }
        let by_zero = matches!(operator, Divide | Remainder)
            && right
                .constant
                .as_ref()
                .and_then(|c| c.number())
                .is_some_and(|n| *n == num_bigint::BigInt::ZERO);
        if by_zero {
            self.error(span, "division by zero");
            return None;
        }
        let (left_constant, right_constant) = (left.constant.as_ref()?, right.constant.as_ref()?);
        let folded = match class(operator) {
            OperatorClass::Set => return None,
            OperatorClass::Logical | OperatorClass::Equality => {
                let left = self.cast_constant(left_constant, operand)?;
                let right = self.cast_constant(right_constant, operand)?;
                return logical(operator, &left, &right);
            }
            OperatorClass::Concatenation => return self.concatenated(left, right, result),
            OperatorClass::Shift => {
                let left = self.cast_constant(left_constant, operand)?;
                constants::binary(operator, left.number()?, right_constant.number()?, self.format(operand))
            }
            _ => {
                let left = self.cast_constant(left_constant, operand)?;
                let right = self.cast_constant(right_constant, operand)?;
                constants::binary(operator, left.number()?, right.number()?, self.format(operand))
            }
        };
        match folded {
            Ok(constant) => Some(constant),
            Err(reason) => {
                self.error(span, reason);
                None
            }
        }
    }

    fn concatenated(
        &mut self,
        left: &TypedValue,
        right: &TypedValue,
        result: TypeId,
    ) -> Option<ConstantValue> {
        match (left.constant.as_ref()?, right.constant.as_ref()?) {
            (ConstantValue::Text(a), ConstantValue::Text(b))
                if a.len() + b.len() <= WIDEST_VALUE as usize =>
            {
                Some(ConstantValue::Text(format!("{a}{b}").into()))
            }
            (ConstantValue::Number(a), ConstantValue::Number(b)) => {
                let (width, _) = self.format(self.operand_type(right.type_id))?;
                let low = wrapped(b.clone(), Some((width, false)));
                Some(ConstantValue::Number(wrapped((a.clone() << width) | low, self.format(result))))
            }
            _ => None,
        }
    }
}

fn logical(operator: BinaryOperator, left: &ConstantValue, right: &ConstantValue) -> Option<ConstantValue> {
    let value = match (operator, left, right) {
        (And, ConstantValue::Boolean(a), ConstantValue::Boolean(b)) => *a && *b,
        (Or, ConstantValue::Boolean(a), ConstantValue::Boolean(b)) => *a || *b,
        (Equal, a, b) => a == b,
        (NotEqual, a, b) => a != b,
        _ => return None,
    };
    Some(ConstantValue::Boolean(value))
}
