//! Members of values and of types, elements of stacks and tuples, and ranges of bits.

use crate::ast::AggregateKind;
use num_bigint::BigInt;

use crate::check::constants::{ConstantValue, wrapped};
use crate::check::types::{BOOL, ERROR_CODE, INTEGER, NominalKind, TypeId, UNKNOWN, ValueType};
use crate::check::{CheckedPart, TypeChecker, TypedValue};
use crate::diagnostic::SourceDiagnostic;
use crate::expression::{ExpressionTree, TypeSyntax, TypeSyntaxKind};
use crate::source::{SourceName, SourceSpan};

pub(crate) fn member(
    checker: &mut TypeChecker<'_>,
    base: &ExpressionTree,
    member: &SourceName,
) -> TypedValue {
    let value = checker.expression(base);
    let type_id = checker.types.shallow(value.type_id);
    match checker.types.kind(type_id).clone() {
        ValueType::Unknown => TypedValue::unknown(),
        ValueType::Stack(element, _) => stack_member(checker, &value, element, member),
        ValueType::TableResult(table) => result_member(checker, table, member),
        ValueType::RecordExpression(fields, _) => {
            match fields.iter().find(|(name, _)| *name == member.text) {
                Some((_, field)) => TypedValue { type_id: *field, constant: None, ..value },
                None => no_member(checker, type_id, member, &[]),
            }
        }
        _ => field(checker, &value, type_id, member),
    }
}

fn field(
    checker: &mut TypeChecker<'_>,
    value: &TypedValue,
    type_id: TypeId,
    member: &SourceName,
) -> TypedValue {
    let Some((index, field_type)) = checker.field_type(type_id, &member.text) else {
        let fields = checker.fields(type_id).map(|(_, fields)| fields).unwrap_or_default();
        let names: Vec<String> = fields.iter().map(|(name, _)| name.to_string()).collect();
        return no_member(checker, type_id, member, &names);
    };
    let constant = match &value.constant {
        Some(ConstantValue::List(list)) => list.get(index).cloned(),
        _ => None,
    };
    let constant = constant.and_then(|constant| checker.cast_constant(&constant, field_type));
    TypedValue { type_id: field_type, constant, ..value.clone() }
}

pub(crate) fn no_member(
    checker: &mut TypeChecker<'_>,
    type_id: TypeId,
    member: &SourceName,
    names: &[String],
) -> TypedValue {
    if type_id != UNKNOWN {
        let name = checker.types.name(type_id);
        let message = format!("`{name}` has no member `{}`", member.text);
        let names = names.iter().map(String::as_str);
        checker.sink.push(SourceDiagnostic::error(member.span, message).nearest(&member.text, names));
    }
    TypedValue::unknown()
}

fn stack_member(
    checker: &mut TypeChecker<'_>,
    value: &TypedValue,
    element: TypeId,
    member: &SourceName,
) -> TypedValue {
    let index = checker.types.add(ValueType::Bits(32));
    let is_header = checker.fields(element).is_some_and(|(kind, _)| kind != AggregateKind::Struct);
    match &*member.text {
        "size" => TypedValue::known(index, stack_size(checker, value.type_id)),
        "next" | "last" | "lastIndex" if !is_header => no_member(checker, value.type_id, member, &[]),
        "next" | "last" | "lastIndex" => {
            if checker.part != CheckedPart::ParserState {
                let message = format!("`{}` is only allowed in parsers", member.text);
                checker.error(member.span, message);
            }
            match &*member.text {
                "lastIndex" => TypedValue::computed(index),
                _ => TypedValue { type_id: element, is_known: false, constant: None, ..value.clone() },
            }
        }
        _ => {
            let names = ["size", "next", "last", "lastIndex"].map(str::to_owned);
            no_member(checker, value.type_id, member, &names)
        }
    }
}

fn stack_size(checker: &TypeChecker<'_>, type_id: TypeId) -> Option<ConstantValue> {
    match checker.types.kind(checker.types.shallow(type_id)) {
        ValueType::Stack(_, size) => Some(ConstantValue::Number((*size).into())),
        _ => None,
    }
}

fn result_member(checker: &mut TypeChecker<'_>, table: u32, member: &SourceName) -> TypedValue {
    match &*member.text {
        "hit" | "miss" => TypedValue::computed(BOOL),
        "action_run" => TypedValue::computed(checker.types.add(ValueType::TableAction(table))),
        _ => {
            let names = ["hit", "miss", "action_run"].map(str::to_owned);
            let type_id = checker.types.add(ValueType::TableResult(table));
            no_member(checker, type_id, member, &names)
        }
    }
}

pub(crate) fn type_member(
    checker: &mut TypeChecker<'_>,
    target: &TypeSyntax,
    member: &SourceName,
) -> TypedValue {
    if matches!(target.kind, TypeSyntaxKind::ErrorCode) {
        return error_member(checker, member);
    }
    let type_id = checker.type_of(target);
    let ValueType::Nominal(nominal, _) = checker.types.kind(type_id).clone() else {
        return no_member(checker, type_id, member, &[]);
    };
    let NominalKind::Enumeration(_, members) = checker.types.nominal(nominal).kind.clone() else {
        return no_member(checker, type_id, member, &[]);
    };
    if members.iter().any(|(name, _)| *name == member.text) {
        return TypedValue::known(type_id, Some(ConstantValue::Member(nominal, member.text.clone())));
    }
    let names: Vec<String> = members.iter().map(|(name, _)| name.to_string()).collect();
    no_member(checker, type_id, member, &names)
}

fn error_member(checker: &mut TypeChecker<'_>, member: &SourceName) -> TypedValue {
    if checker.errors.contains(&member.text) {
        return TypedValue::known(ERROR_CODE, Some(ConstantValue::ErrorCode(member.text.clone())));
    }
    let names: Vec<String> = checker.errors.iter().map(|name| name.to_string()).collect();
    no_member(checker, ERROR_CODE, member, &names)
}

pub(crate) fn index(
    checker: &mut TypeChecker<'_>,
    base: &ExpressionTree,
    index: &ExpressionTree,
) -> TypedValue {
    let value = checker.expression(base);
    let position = checker.expression(index);
    if value.type_id == UNKNOWN || position.type_id == UNKNOWN {
        return TypedValue::unknown();
    }
    let kind = checker.operand_type(position.type_id);
    if kind != INTEGER && !checker.is_number(kind) {
        checker.error(index.span, "an index has to be a number");
        return TypedValue::unknown();
    }
    let known = position.constant.as_ref().and_then(|c| c.number()).cloned();
    match checker.types.kind(checker.types.shallow(value.type_id)).clone() {
        ValueType::Stack(element, size) => {
            if known.is_some_and(|n| n < BigInt::ZERO || size > 0 && n >= BigInt::from(size)) {
                checker.error(
                    index.span,
                    format!("this index is outside of the stack, which has {size} elements"),
                );
            }
            TypedValue { type_id: element, constant: None, ..value }
        }
        ValueType::Tuple(elements) => tuple_element(checker, &value, &elements, known, index.span),
        ValueType::ListExpression(elements) => tuple_element(checker, &value, &elements, known, index.span),
        _ => {
            let name = checker.types.name(value.type_id);
            checker.error(base.span, format!("a value of type `{name}` has no elements"));
            TypedValue::unknown()
        }
    }
}

fn tuple_element(
    checker: &mut TypeChecker<'_>,
    value: &TypedValue,
    elements: &[TypeId],
    index: Option<BigInt>,
    span: SourceSpan,
) -> TypedValue {
    let Some(index) = index else {
        checker.error(span, "the index of a tuple has to be known when the program is compiled");
        return TypedValue::unknown();
    };
    let at = usize::try_from(&index).unwrap_or(usize::MAX);
    let Some(element) = elements.get(at) else {
        checker.error(
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

pub(crate) fn slice(
    checker: &mut TypeChecker<'_>,
    parts: &[ExpressionTree; 3],
    span: SourceSpan,
) -> TypedValue {
    let [base, high, low] = parts;
    let value = checker.expression(base);
    let bounds = (bound(checker, high), bound(checker, low));
    let (Some(high), Some(low)) = bounds else { return TypedValue::unknown() };
    bits(checker, &value, high, low, span)
}

pub(crate) fn width_slice(
    checker: &mut TypeChecker<'_>,
    parts: &[ExpressionTree; 3],
    span: SourceSpan,
) -> TypedValue {
    let [base, low, width] = parts;
    let value = checker.expression(base);
    let start = checker.expression(low);
    let Some(width) = bound(checker, width) else { return TypedValue::unknown() };
    if width == 0 {
        checker.error(span, "a slice has at least one bit");
        return TypedValue::unknown();
    }
    let known = start.constant.as_ref().and_then(|c| c.number()).and_then(|n| u32::try_from(n).ok());
    if let Some(low) = known {
        return bits(checker, &value, low.saturating_add(width - 1), low, span);
    }
    let start_type = checker.operand_type(start.type_id);
    if !checker.is_number(start_type) {
        checker.error(low.span, "the lowest bit of a slice has to be a number of bits");
    }
    let value = bits(checker, &value, width - 1, 0, span);
    TypedValue { is_known: false, constant: None, ..value }
}

/// Evaluates a bound of a slice.
fn bound(checker: &mut TypeChecker<'_>, bound: &ExpressionTree) -> Option<u32> {
    checker.known_size(bound, "a bound of a slice", 0, crate::parse::WIDEST_VALUE)
}

fn bits(
    checker: &mut TypeChecker<'_>,
    value: &TypedValue,
    high: u32,
    low: u32,
    span: SourceSpan,
) -> TypedValue {
    if value.type_id == UNKNOWN {
        return TypedValue::unknown();
    }
    let operand = checker.operand_type(value.type_id);
    let width = match checker.types.kind(operand) {
        ValueType::Bits(width) | ValueType::SignedBits(width) => *width,
        ValueType::Integer if value.constant.is_some() => u32::MAX,
        _ => {
            let name = checker.types.name(value.type_id);
            checker.error(span, format!("a value of type `{name}` has no bits to take"));
            return TypedValue::unknown();
        }
    };
    if high < low || high >= width {
        checker.error(span, format!("the bits {high} to {low} are not within a value of {width} bits"));
        return TypedValue::unknown();
    }
    let type_id = checker.types.add(ValueType::Bits(high - low + 1));
    let number = value.constant.as_ref().and_then(|c| c.number());
    let constant =
        number.map(|n| ConstantValue::Number(wrapped(n.clone() >> low, Some((high - low + 1, false)))));
    TypedValue { type_id, is_writable: value.is_writable, is_known: value.is_known, constant }
}
