//! Expressions of all kinds, and the values of annotations (P4_16 1.2.5, sections 8 and 20).

use crate::ast::{AnnotationBody, AnnotationTree};
use crate::check::{TypeChecker, TypedValue, members, methods, objects};
use rustc_hash::FxHashMap;

use crate::check::constants::{ConstantValue, fits, wrapped};
use crate::check::scope::NamedEntity;
use crate::check::types::{
    ACTION, BOOL, DEFAULT_VALUE, INTEGER, INVALID_HEADER, MATCH_KIND, TEXT, TypeId, UNKNOWN, ValueType,
};
use crate::diagnostic::SourceDiagnostic;
use crate::expression::{ExpressionKind, ExpressionTree, NumberLiteral, QualifiedName, UnaryOperator};
use crate::lex::{SourceToken, TokenKind};
use crate::source::{SourceName, SourceSpan};

/// Checks an expression and keeps its type and value.
pub(crate) fn check_expression(checker: &mut TypeChecker<'_>, expression: &ExpressionTree) -> TypedValue {
    let value = expression_kind(checker, expression);
    checker.record(expression, &value);
    value
}

/// Checks an expression whose value is used as one of a type.
pub(crate) fn expression_as(
    checker: &mut TypeChecker<'_>,
    expression: &ExpressionTree,
    expected: TypeId,
) -> TypedValue {
    let value = check_expression(checker, expression);
    if !checker.expect_type(&value, expected, expression.span) {
        return TypedValue { type_id: expected, ..TypedValue::unknown() };
    }
    let constant = value.constant.as_ref().and_then(|constant| checker.cast_constant(constant, expected));
    if value.type_id == INTEGER {
        warn_if_cut(checker, value.constant.as_ref(), expected, expression.span);
    }
    TypedValue { type_id: expected, constant, ..value }
}

/// Warns about a number that does not fit the type that it is used as.
fn warn_if_cut(
    checker: &mut TypeChecker<'_>,
    constant: Option<&ConstantValue>,
    expected: TypeId,
    span: SourceSpan,
) {
    let format = checker.format(expected);
    let is_cut = constant.and_then(|c| c.number()).is_some_and(|number| !fits(number, format));
    if is_cut {
        let name = checker.types.name(expected);
        checker
            .sink
            .push(SourceDiagnostic::warning(span, format!("this number does not fit `{name}`, and is cut")));
    }
}

fn expression_kind(checker: &mut TypeChecker<'_>, expression: &ExpressionTree) -> TypedValue {
    let span = expression.span;
    match &expression.kind {
        ExpressionKind::Number(literal) => number(checker, literal, span),
        ExpressionKind::Boolean(value) => TypedValue::known(BOOL, Some(ConstantValue::Boolean(*value))),
        ExpressionKind::Text(text) => TypedValue::known(TEXT, Some(ConstantValue::Text(text.clone()))),
        ExpressionKind::Name(name) => name_value(checker, name),
        ExpressionKind::This => this_value(checker, span),
        ExpressionKind::Default => TypedValue::known(DEFAULT_VALUE, None),
        ExpressionKind::Invalid => TypedValue::known(INVALID_HEADER, None),
        ExpressionKind::Anything | ExpressionKind::KeysetTuple(_) => {
            checker.error(span, "a set of values is only allowed in `select` and in entries of tables");
            TypedValue::unknown()
        }
        ExpressionKind::Unary(operator, operand) => unary(checker, *operator, operand, span),
        ExpressionKind::Binary(operator, left, right) => checker.binary(*operator, left, right, span),
        ExpressionKind::Ternary(parts) => ternary(checker, parts, span),
        ExpressionKind::Cast(target, value) => checker.cast(target, value),
        ExpressionKind::Member(base, member) => members::member(checker, base, member),
        ExpressionKind::TypeMember(target, member) => members::type_member(checker, target, member),
        ExpressionKind::Index(base, index) => members::index(checker, base, index),
        ExpressionKind::Slice(parts) => members::slice(checker, parts, span),
        ExpressionKind::WidthSlice(parts) => members::width_slice(checker, parts, span),
        ExpressionKind::List(elements) => list_value(checker, elements),
        ExpressionKind::Record(fields, has_rest) => record_value(checker, fields, *has_rest),
        ExpressionKind::Call(function, types, arguments) => {
            methods::call(checker, function, types, arguments, span)
        }
        ExpressionKind::Construct(target, arguments) => {
            objects::construct_value(checker, target, arguments, span)
        }
    }
}

fn number(checker: &mut TypeChecker<'_>, literal: &NumberLiteral, span: SourceSpan) -> TypedValue {
    let type_id = match literal.width {
        None => INTEGER,
        Some((0, true)) => {
            checker.error(span, "a signed number needs at least one bit");
            UNKNOWN
        }
        Some((width, true)) => checker.types.add(ValueType::SignedBits(width)),
        Some((width, false)) => checker.types.add(ValueType::Bits(width)),
    };
    if !fits(&literal.value, literal.width) {
        let message = "this number does not fit its width, and is cut";
        checker.sink.push(SourceDiagnostic::warning(span, message));
    }
    let value = wrapped(literal.value.clone(), literal.width);
    TypedValue::known(type_id, Some(ConstantValue::Number(value)))
}

fn this_value(checker: &mut TypeChecker<'_>, span: SourceSpan) -> TypedValue {
    match checker.this_type {
        Some(type_id) => TypedValue::known(type_id, None),
        None => {
            checker.error(span, "`this` is only allowed in methods that implement abstract ones");
            TypedValue::unknown()
        }
    }
}

pub(crate) fn name_value(checker: &mut TypeChecker<'_>, name: &QualifiedName) -> TypedValue {
    let text = &name.name.text;
    match checker.scopes.find(text, name.is_global).cloned() {
        Some(NamedEntity::Value(value)) => TypedValue {
            type_id: value.type_id,
            is_writable: value.is_writable,
            is_known: value.is_known,
            constant: value.constant,
        },
        Some(NamedEntity::Action(_)) => TypedValue::known(ACTION, None),
        Some(NamedEntity::Undeclared) => {
            checker.error(name.name.span, format!("`{text}` is used in its own declaration"));
            TypedValue::unknown()
        }
        Some(NamedEntity::Functions(_)) => {
            checker.error(name.name.span, format!("`{text}` is a function, and has no value without a call"));
            TypedValue::unknown()
        }
        Some(NamedEntity::Nominal(_) | NamedEntity::Alias(_)) => {
            checker.error(name.name.span, format!("`{text}` is a type, and no value"));
            TypedValue::unknown()
        }
        None if checker.match_kinds.contains(text) => TypedValue::known(MATCH_KIND, None),
        None => {
            checker.undeclared("the name", &name.name);
            TypedValue::unknown()
        }
    }
}

fn unary(
    checker: &mut TypeChecker<'_>,
    operator: UnaryOperator,
    operand: &ExpressionTree,
    span: SourceSpan,
) -> TypedValue {
    let value = check_expression(checker, operand);
    if value.type_id == UNKNOWN {
        return value;
    }
    let type_id = checker.operand_type(value.type_id);
    let is_allowed = match operator {
        UnaryOperator::Not => type_id == BOOL,
        UnaryOperator::Complement => checker.is_number(type_id),
        UnaryOperator::Minus | UnaryOperator::Plus => type_id == INTEGER || checker.is_number(type_id),
    };
    if !is_allowed {
        let name = checker.types.name(value.type_id);
        checker.error(span, format!("this operator takes no value of type `{name}`"));
        return TypedValue::unknown();
    }
    let format = checker.format(type_id);
    let constant = value.constant.as_ref().map(|constant| match (operator, constant) {
        (UnaryOperator::Not, ConstantValue::Boolean(b)) => ConstantValue::Boolean(!b),
        (UnaryOperator::Minus, ConstantValue::Number(n)) => ConstantValue::Number(wrapped(-n, format)),
        (UnaryOperator::Complement, ConstantValue::Number(n)) => {
            ConstantValue::Number(wrapped(!n.clone(), format))
        }
        (_, other) => other.clone(),
    });
    TypedValue { type_id, is_writable: false, is_known: value.is_known, constant }
}

fn ternary(checker: &mut TypeChecker<'_>, parts: &[ExpressionTree; 3], span: SourceSpan) -> TypedValue {
    let [condition, then, otherwise] = parts;
    let condition_value = check_expression(checker, condition);
    checker.expect_boolean(&condition_value, condition.span);
    let (left, right) = (check_expression(checker, then), check_expression(checker, otherwise));
    let type_id = if checker.coerces(left.type_id, right.type_id) {
        right.type_id
    } else if checker.coerces(right.type_id, left.type_id) {
        left.type_id
    } else {
        let (left, right) = (checker.types.name(left.type_id), checker.types.name(right.type_id));
        checker.error(span, format!("the branches have different types: `{left}` and `{right}`"));
        return TypedValue::unknown();
    };
    let is_known = condition_value.is_known && left.is_known && right.is_known;
    let constant = match condition_value.constant {
        Some(ConstantValue::Boolean(true)) => left.constant,
        Some(ConstantValue::Boolean(false)) => right.constant,
        _ => None,
    };
    let constant = constant.and_then(|constant| checker.cast_constant(&constant, type_id));
    TypedValue { type_id, is_writable: false, is_known, constant }
}

pub(crate) fn list_value(checker: &mut TypeChecker<'_>, elements: &[ExpressionTree]) -> TypedValue {
    let values: Vec<TypedValue> = elements.iter().map(|e| data_expression(checker, e)).collect();
    let type_id = checker.types.add(ValueType::ListExpression(values.iter().map(|v| v.type_id).collect()));
    let is_known = values.iter().all(|value| value.is_known);
    let constants: Option<Vec<ConstantValue>> = values.into_iter().map(|value| value.constant).collect();
    TypedValue { type_id, is_writable: false, is_known, constant: constants.map(ConstantValue::List) }
}

pub(crate) fn record_value(
    checker: &mut TypeChecker<'_>,
    fields: &[(SourceName, ExpressionTree)],
    has_rest: bool,
) -> TypedValue {
    checker.distinct("the field", fields.iter().map(|(name, _)| name));
    let values: Vec<TypedValue> = fields.iter().map(|(_, value)| data_expression(checker, value)).collect();
    let types = fields.iter().zip(&values).map(|((name, _), value)| (name.text.clone(), value.type_id));
    let type_id = checker.types.add(ValueType::RecordExpression(types.collect(), has_rest));
    TypedValue { type_id, is_writable: false, is_known: values.iter().all(|v| v.is_known), constant: None }
}

/// Checks an expression that has to have a value.
fn data_expression(checker: &mut TypeChecker<'_>, expression: &ExpressionTree) -> TypedValue {
    let value = check_expression(checker, expression);
    let kind = checker.types.kind(checker.types.shallow(value.type_id));
    if matches!(kind, ValueType::Void | ValueType::Set(_) | ValueType::Action | ValueType::Table(_)) {
        checker.error(expression.span, "this has no value");
        return TypedValue::unknown();
    }
    value
}

pub(crate) fn annotations(checker: &mut TypeChecker<'_>, annotations: &[AnnotationTree]) {
    let mut structured: FxHashMap<&str, bool> = FxHashMap::default();
    for annotation in annotations {
        let is_structured = !matches!(annotation.body, AnnotationBody::Unstructured(_));
        let name = &annotation.name;
        let earlier = structured.insert(&name.text, is_structured);
        if earlier.is_some_and(|earlier| earlier || is_structured) {
            checker.error(name.span, format!("the structured annotation `@{}` occurs twice", name.text));
        }
        check_annotation(checker, annotation);
    }
}

fn check_annotation(checker: &mut TypeChecker<'_>, annotation: &AnnotationTree) {
    match &annotation.body {
        AnnotationBody::Unstructured(tokens) => defined_annotation(checker, annotation, tokens),
        AnnotationBody::Expressions(list) => list.iter().for_each(|value| annotation_value(checker, value)),
        AnnotationBody::Pairs(pairs) => {
            checker.distinct("the key", pairs.iter().map(|(name, _)| name));
            pairs.iter().for_each(|(_, value)| annotation_value(checker, value));
        }
    }
}

fn defined_annotation(checker: &mut TypeChecker<'_>, annotation: &AnnotationTree, tokens: &[SourceToken]) {
    let name = &annotation.name;
    let is_right = match &*name.text {
        "name" | "deprecated" => is_string(tokens),
        "match" => matches!(tokens, [one] if matches!(one.kind, TokenKind::Word(_))),
        "pkginfo" => !tokens.is_empty(),
        _ => true,
    };
    if !is_right {
        let expected = match &*name.text {
            "match" => "a match kind in parentheses",
            "pkginfo" => "keys and values in brackets",
            _ => "a string in parentheses",
        };
        checker.error(name.span, format!("`@{}` takes {expected}", name.text));
    }
}

fn annotation_value(checker: &mut TypeChecker<'_>, expression: &ExpressionTree) {
    let value = check_expression(checker, expression);
    if !matches!(value.type_id, BOOL | INTEGER | TEXT | UNKNOWN) && checker.format(value.type_id).is_none() {
        checker.error(expression.span, "values of annotations are numbers, booleans and strings");
    }
    if !value.is_known {
        checker.error(
            expression.span,
            "the values of annotations have to be known when the program is compiled",
        );
    }
}

/// Tells if tokens are strings with `++` between them.
fn is_string(tokens: &[SourceToken]) -> bool {
    let is_text = |(n, token): (usize, &SourceToken)| match n % 2 {
        0 => matches!(token.kind, TokenKind::Text(_)),
        _ => token.kind == TokenKind::Mark("++"),
    };
    tokens.len() % 2 == 1 && tokens.iter().enumerate().all(is_text)
}
