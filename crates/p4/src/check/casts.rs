//! Explicit casts. Source: P4_16 1.2.5, section 8.11.1.

use crate::check::constants::{ConstantValue, wrapped};
use crate::check::types::{BOOL, INTEGER, NominalKind, TypeId, UNKNOWN, ValueType};
use crate::check::{TypeChecker, TypedValue};
use crate::expression::{ExpressionTree, TypeSyntax};

impl TypeChecker<'_> {
    pub(crate) fn cast(&mut self, target: &TypeSyntax, value: &ExpressionTree) -> TypedValue {
        let to = self.type_of(target);
        let source = self.expression(value);
        if to == UNKNOWN || source.type_id == UNKNOWN {
            return TypedValue { type_id: to, ..TypedValue::unknown() };
        }
        if !self.casts(&source, to) {
            let (from, to) = (self.types.name(source.type_id), self.types.name(to));
            self.error(
                target.span.to(value.span),
                format!("a value of type `{from}` cannot be cast to `{to}`"),
            );
        }
        let constant = source.constant.as_ref().and_then(|constant| self.cast_constant(constant, to));
        TypedValue { type_id: to, is_writable: false, is_known: source.is_known, constant }
    }

    fn casts(&mut self, value: &TypedValue, to: TypeId) -> bool {
        use ValueType::*;
        let from = self.types.shallow(value.type_id);
        let is_small = |c: &ConstantValue| {
            c.number().is_some_and(|n| n.bits() <= 1 && n.sign() != num_bigint::Sign::Minus)
        };
        match (self.types.kind(from).clone(), self.types.kind(to).clone()) {
            (Void | Set(_) | Action | Table(_), _) | (_, Void | Text) => false,
            (Bits(_), Bits(_)) | (SignedBits(_), SignedBits(_)) => true,
            (Bits(a), SignedBits(b)) | (SignedBits(a), Bits(b)) => a == b,
            (Bits(1), Bool) | (Bool, Bits(1)) => true,
            (Integer, Bool) => value.constant.as_ref().is_none_or(is_small),
            (Bits(_) | SignedBits(_), Integer) => true,
            _ if self.coerces(from, to) => true,
            (_, Nominal(..)) => match self.wrapped_type(to) {
                Some(inner) if self.underlying(to).is_some() => self.casts(value, inner),
                Some(inner) => self.coerces(from, inner),
                None => false,
            },
            (Nominal(..), _) => match self.wrapped_type(from) {
                Some(inner) => self.casts(&TypedValue { type_id: inner, ..value.clone() }, to),
                None => false,
            },
            _ => false,
        }
    }

    /// Type within a `type` or an enumeration with values.
    fn wrapped_type(&self, id: TypeId) -> Option<TypeId> {
        let ValueType::Nominal(nominal, _) = self.types.kind(id) else { return None };
        match &self.types.nominal(*nominal).kind {
            NominalKind::NewType(inner) => Some(*inner),
            NominalKind::Enumeration(underlying, _) => *underlying,
            _ => None,
        }
    }

    /// Converts a known value to a type.
    pub(crate) fn cast_constant(&mut self, constant: &ConstantValue, to: TypeId) -> Option<ConstantValue> {
        let to = self.types.shallow(to);
        let format = self.format(to);
        Some(match constant {
            ConstantValue::Number(value) if to == BOOL => ConstantValue::Boolean(value.bits() > 0),
            ConstantValue::Number(value) => ConstantValue::Number(wrapped(value.clone(), format)),
            ConstantValue::Boolean(value) if to != BOOL => ConstantValue::Number(u8::from(*value).into()),
            ConstantValue::Member(nominal, name) if format.is_some() || to == INTEGER => {
                let NominalKind::Enumeration(_, members) = &self.types.nominal(*nominal).kind else {
                    return None;
                };
                let value = members.iter().find(|(member, _)| member == name)?.1.clone()?;
                ConstantValue::Number(wrapped(value.number()?.clone(), format))
            }
            other => other.clone(),
        })
    }

    /// Width and sign of the numbers of a type.
    pub(crate) fn format(&self, id: TypeId) -> crate::check::constants::NumberFormat {
        match self.types.kind(self.types.shallow(id)) {
            ValueType::Bits(width) => Some((*width, false)),
            ValueType::SignedBits(width) => Some((*width, true)),
            ValueType::Nominal(..) => self.format(self.wrapped_type(self.types.shallow(id))?),
            _ => None,
        }
    }
}
