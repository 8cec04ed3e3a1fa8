//! Members of values and of types, elements of stacks and tuples, and ranges of bits.

use crate::ast::AggregateKind;
use num_bigint::BigInt;

use crate::check::constants::{ConstantValue, wrapped};
use crate::check::types::{BOOL, ERROR_CODE, INTEGER, NominalKind, TypeId, UNKNOWN, ValueType};
use crate::check::{CheckedPart, TypeChecker, TypedValue};
use crate::diagnostic::SourceDiagnostic;
use crate::expression::{ExpressionTree, TypeSyntax, TypeSyntaxKind};
use crate::source::{SourceName, SourceSpan};

impl TypeChecker<'_> {
    pub(crate) fn member(&mut self, base: &ExpressionTree, member: &SourceName) -> TypedValue {
        let value = self.expression(base);
        let type_id = self.types.shallow(value.type_id);
        match self.types.kind(type_id).clone() {
            ValueType::Unknown => TypedValue::unknown(),
            ValueType::Stack(element, _) => self.stack_member(&value, element, member),
            ValueType::TableResult(table) => self.result_member(table, member),
            ValueType::RecordExpression(fields, _) => {
                match fields.iter().find(|(name, _)| *name == member.text) {
                    Some((_, field)) => TypedValue { type_id: *field, constant: None, ..value },
                    None => self.no_member(type_id, member, &[]),
                }
            }
            _ => self.field(&value, type_id, member),
        }
    }

    fn field(&mut self, value: &TypedValue, type_id: TypeId, member: &SourceName) -> TypedValue {
        let Some((index, field_type)) = self.field_type(type_id, &member.text) else {
            let fields = self.fields(type_id).map(|(_, fields)| fields).unwrap_or_default();
            let names: Vec<String> = fields.iter().map(|(name, _)| name.to_string()).collect();
            return self.no_member(type_id, member, &names);
        };
        let constant = match &value.constant {
            Some(ConstantValue::List(list)) => list.get(index).cloned(),
            _ => None,
        };
        let constant = constant.and_then(|constant| self.cast_constant(&constant, field_type));
        TypedValue { type_id: field_type, constant, ..value.clone() }
    }

    pub(crate) fn no_member(&mut self, type_id: TypeId, member: &SourceName, names: &[String]) -> TypedValue {
        if type_id != UNKNOWN {
            let name = self.types.name(type_id);
            let message = format!("`{name}` has no member `{}`", member.text);
            let names = names.iter().map(String::as_str);
            self.sink.push(SourceDiagnostic::error(member.span, message).nearest(&member.text, names));
        }
        TypedValue::unknown()
    }

    fn stack_member(&mut self, value: &TypedValue, element: TypeId, member: &SourceName) -> TypedValue {
        let index = self.types.add(ValueType::Bits(32));
        let is_header = self.fields(element).is_some_and(|(kind, _)| kind != AggregateKind::Struct);
        match &*member.text {
            "size" => TypedValue::known(index, self.stack_size(value.type_id)),
            "next" | "last" | "lastIndex" if !is_header => self.no_member(value.type_id, member, &[]),
            "next" | "last" | "lastIndex" => {
                if self.part != CheckedPart::ParserState {
                    let message = format!("`{}` is only allowed in parsers", member.text);
                    self.error(member.span, message);
                }
                match &*member.text {
                    "lastIndex" => TypedValue::computed(index),
                    _ => TypedValue { type_id: element, is_known: false, constant: None, ..value.clone() },
                }
            }
            _ => {
                let names = ["size", "next", "last", "lastIndex"].map(str::to_owned);
                self.no_member(value.type_id, member, &names)
            }
        }
    }

    fn stack_size(&self, type_id: TypeId) -> Option<ConstantValue> {
        match self.types.kind(self.types.shallow(type_id)) {
            ValueType::Stack(_, size) => Some(ConstantValue::Number((*size).into())),
            _ => None,
        }
    }

    fn result_member(&mut self, table: u32, member: &SourceName) -> TypedValue {
        match &*member.text {
            "hit" | "miss" => TypedValue::computed(BOOL),
            "action_run" => TypedValue::computed(self.types.add(ValueType::TableAction(table))),
            _ => {
                let names = ["hit", "miss", "action_run"].map(str::to_owned);
                let type_id = self.types.add(ValueType::TableResult(table));
                self.no_member(type_id, member, &names)
            }
        }
    }

    pub(crate) fn type_member(&mut self, target: &TypeSyntax, member: &SourceName) -> TypedValue {
        if matches!(target.kind, TypeSyntaxKind::ErrorCode) {
            return self.error_member(member);
        }
        let type_id = self.type_of(target);
        let ValueType::Nominal(nominal, _) = self.types.kind(type_id).clone() else {
            return self.no_member(type_id, member, &[]);
        };
        let NominalKind::Enumeration(_, members) = self.types.nominal(nominal).kind.clone() else {
            return self.no_member(type_id, member, &[]);
        };
        if members.iter().any(|(name, _)| *name == member.text) {
            return TypedValue::known(type_id, Some(ConstantValue::Member(nominal, member.text.clone())));
        }
        let names: Vec<String> = members.iter().map(|(name, _)| name.to_string()).collect();
        self.no_member(type_id, member, &names)
    }

    fn error_member(&mut self, member: &SourceName) -> TypedValue {
        if self.errors.contains(&member.text) {
            return TypedValue::known(ERROR_CODE, Some(ConstantValue::ErrorCode(member.text.clone())));
        }
        let names: Vec<String> = self.errors.iter().map(|name| name.to_string()).collect();
        self.no_member(ERROR_CODE, member, &names)
    }
}

impl TypeChecker<'_> {
    pub(crate) fn index(&mut self, base: &ExpressionTree, index: &ExpressionTree) -> TypedValue {
        let value = self.expression(base);
        let position = self.expression(index);
        if value.type_id == UNKNOWN || position.type_id == UNKNOWN {
            return TypedValue::unknown();
        }
        let kind = self.operand_type(position.type_id);
        if kind != INTEGER && !self.is_number(kind) {
            self.error(index.span, "an index has to be a number");
            return TypedValue::unknown();
        }
        let known = position.constant.as_ref().and_then(|c| c.number()).cloned();
        match self.types.kind(self.types.shallow(value.type_id)).clone() {
            ValueType::Stack(element, size) => {
                if known.is_some_and(|n| n < BigInt::ZERO || size > 0 && n >= BigInt::from(size)) {
                    self.error(
                        index.span,
                        format!("this index is outside of the stack, which has {size} elements"),
                    );
                }
                TypedValue { type_id: element, constant: None, ..value }
            }
            ValueType::Tuple(elements) => self.tuple_element(&value, &elements, known, index.span),
            ValueType::ListExpression(elements) => self.tuple_element(&value, &elements, known, index.span),
            _ => {
                let name = self.types.name(value.type_id);
                self.error(base.span, format!("a value of type `{name}` has no elements"));
                TypedValue::unknown()
            }
        }
    }

    fn tuple_element(
        &mut self,
        value: &TypedValue,
        elements: &[TypeId],
        index: Option<BigInt>,
        span: SourceSpan,
    ) -> TypedValue {
        let Some(index) = index else {
            self.error(span, "the index of a tuple has to be known when the program is compiled");
            return TypedValue::unknown();
        };
        let at = usize::try_from(&index).unwrap_or(usize::MAX);
        let Some(element) = elements.get(at) else {
            self.error(
                span,
                format!("this index is outside of the tuple, which has {} elements", elements.len()),
            );
            return TypedValue::unknown();
        };
        let constant = match &value.constant {
            Some(ConstantValue::List(list)) => list.get(at).cloned(),
            _ => None,
        };
        TypedValue { type_id: *element, constant, ..value.clone() }
    }

    pub(crate) fn slice(&mut self, parts: &[ExpressionTree; 3], span: SourceSpan) -> TypedValue {
        let [base, high, low] = parts;
        let value = self.expression(base);
        let bounds = (self.bound(high), self.bound(low));
        let (Some(high), Some(low)) = bounds else { return TypedValue::unknown() };
        self.bits(&value, high, low, span)
    }

    pub(crate) fn width_slice(&mut self, parts: &[ExpressionTree; 3], span: SourceSpan) -> TypedValue {
        let [base, low, width] = parts;
        let value = self.expression(base);
        let start = self.expression(low);
        let Some(width) = self.bound(width) else { return TypedValue::unknown() };
        if width == 0 {
            self.error(span, "a slice has at least one bit");
            return TypedValue::unknown();
        }
        let known = start.constant.as_ref().and_then(|c| c.number()).and_then(|n| u32::try_from(n).ok());
        if let Some(low) = known {
            return self.bits(&value, low.saturating_add(width - 1), low, span);
        }
        let start_type = self.operand_type(start.type_id);
        if !self.is_number(start_type) {
            self.error(low.span, "the lowest bit of a slice has to be a number of bits");
        }
        let value = self.bits(&value, width - 1, 0, span);
        TypedValue { is_known: false, constant: None, ..value }
    }

    /// Evaluates a bound of a slice.
    fn bound(&mut self, bound: &ExpressionTree) -> Option<u32> {
        self.known_size(bound, "a bound of a slice", 0, crate::parse::WIDEST_VALUE)
    }

    fn bits(&mut self, value: &TypedValue, high: u32, low: u32, span: SourceSpan) -> TypedValue {
        if value.type_id == UNKNOWN {
            return TypedValue::unknown();
        }
        let operand = self.operand_type(value.type_id);
        let width = match self.types.kind(operand) {
            ValueType::Bits(width) | ValueType::SignedBits(width) => *width,
            ValueType::Integer if value.constant.is_some() => u32::MAX,
            _ => {
                let name = self.types.name(value.type_id);
                self.error(span, format!("a value of type `{name}` has no bits to take"));
                return TypedValue::unknown();
            }
        };
        if high < low || high >= width {
            self.error(span, format!("the bits {high} to {low} are not within a value of {width} bits"));
            return TypedValue::unknown();
        }
        let type_id = self.types.add(ValueType::Bits(high - low + 1));
        let number = value.constant.as_ref().and_then(|c| c.number());
        let constant =
            number.map(|n| ConstantValue::Number(wrapped(n.clone() >> low, Some((high - low + 1, false)))));
        TypedValue { type_id, is_writable: value.is_writable, is_known: value.is_known, constant }
    }
}
