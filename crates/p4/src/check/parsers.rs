//! Parsers: states, transitions, value sets, and sets of values. Source: P4_16 1.2.5, sections 8.15 and 13.

use crate::ast::{ParserBody, ParserState, ParserSyntax, StateTransition};
use crate::check::{CheckedPart, TypeChecker, declarations, objects, statements};
use rustc_hash::FxHashSet;

use crate::check::declarations::variable;
use crate::check::scope::NamedValue;
use crate::check::types::{NominalKind, TypeId, UNKNOWN, ValueType};
use crate::diagnostic::SourceDiagnostic;
use crate::expression::{ExpressionKind, ExpressionTree, TypeSyntax};
use crate::source::{SourceName, Symbol};

pub(crate) fn parser(checker: &mut TypeChecker<'_>, name: &SourceName, syntax: &ParserSyntax) {
    let constructor = syntax.body.as_ref().map(|body| &body.constructor[..]);
    let (type_parameters, block) = checker.scoped(|c| {
        let block =
            objects::block_parameters(c, &syntax.type_parameters, &syntax.parameters, constructor, true);
        if let Some(body) = &syntax.body {
            c.within(CheckedPart::Parser, |c| c.scoped(|c| parser_body(c, name, body)));
        }
        block
    });
    declarations::declare_nominal(checker, name, type_parameters, NominalKind::Block(block));
}

fn parser_body(checker: &mut TypeChecker<'_>, name: &SourceName, body: &ParserBody) {
    for local in &body.locals {
        checker.declaration(local);
    }
    checker.distinct("the state", body.states.iter().map(|state| &state.name));
    let mut states: FxHashSet<Symbol> = body.states.iter().map(|state| state.name.text.clone()).collect();
    if !states.contains("start") {
        checker.error(name.span, format!("the parser `{}` has no state `start`", name.text));
    }
    for state in &body.states {
        if matches!(&*state.name.text, "accept" | "reject") {
            checker.error(state.name.span, format!("the state `{}` cannot be declared", state.name.text));
        }
    }
    states.extend(["accept".into(), "reject".into()]);
    if let Some(state) = crate::check::parser_graph::endless_state(&body.states) {
        let message = format!("the parser never ends from the state `{}` on", state.name.text);
        checker.error(state.name.span, message);
    }
    for state in &body.states {
        checker.within(CheckedPart::ParserState, |c| c.scoped(|c| check_parser_state(c, state, &states)));
    }
}

fn check_parser_state(checker: &mut TypeChecker<'_>, state: &ParserState, states: &FxHashSet<Symbol>) {
    for statement in &state.statements {
        statements::check_statement(checker, statement);
    }
    match &state.transition {
        None => {
            let message = format!("the state `{}` has no transition, and goes to `reject`", state.name.text);
            checker.sink.push(SourceDiagnostic::warning(state.name.span, message));
        }
        Some(StateTransition::Direct(target)) => check_state(checker, target, states),
        Some(StateTransition::Select(values, cases, _)) => {
            let types: Vec<TypeId> = values.iter().map(|value| selected_type(checker, value)).collect();
            let last = cases.iter().position(|case| matches_all(&case.keyset)).unwrap_or(cases.len());
            for case in cases.iter().skip(last + 1) {
                let message = "this case never matches: one in front of it matches everything";
                checker.sink.push(SourceDiagnostic::warning(case.keyset.span, message));
            }
            // Sets of a select expression need not be known (specification, section 13.6).
            for case in cases {
                keyset(checker, &case.keyset, &types, false);
                check_state(checker, &case.state, states);
            }
        }
    }
}

fn check_state(checker: &mut TypeChecker<'_>, target: &SourceName, states: &FxHashSet<Symbol>) {
    if !states.contains(&target.text) {
        let message = format!("the state `{}` is not declared", target.text);
        let names = states.iter().map(|state| &**state);
        checker.sink.push(SourceDiagnostic::error(target.span, message).nearest(&target.text, names));
    }
}

/// Type of a value of `select`, which has to be a number, an enumeration, an error or a boolean.
fn selected_type(checker: &mut TypeChecker<'_>, expression: &ExpressionTree) -> TypeId {
    let value = checker.expression(expression);
    if value.type_id == crate::check::types::INTEGER || !is_selected(checker, value.type_id) {
        let name = checker.types.name(value.type_id);
        checker.error(expression.span, format!("a value of type `{name}` cannot be selected on"));
        return UNKNOWN;
    }
    match checker.types.kind(checker.types.shallow(value.type_id)).clone() {
        ValueType::ListExpression(elements) => checker.types.add(ValueType::Tuple(elements)),
        _ => checker.types.shallow(value.type_id),
    }
}

/// Tells if values of a type can be selected on: lists can, whose elements can. Structs cannot, as in the
/// reference compiler.
fn is_selected(checker: &TypeChecker<'_>, id: TypeId) -> bool {
    if checker.is_matched(id) {
        return true;
    }
    match checker.types.kind(checker.types.shallow(id)).clone() {
        ValueType::Tuple(list) | ValueType::ListExpression(list) => {
            list.into_iter().all(|id| is_selected(checker, id))
        }
        ValueType::Integer => true,
        _ => false,
    }
}

pub(crate) fn value_set(
    checker: &mut TypeChecker<'_>,
    name: &SourceName,
    element: &TypeSyntax,
    size: &ExpressionTree,
) {
    let element_type = checker.type_of(element);
    let size_value = checker.expression(size);
    let is_number =
        size_value.type_id == crate::check::types::INTEGER || checker.is_number(size_value.type_id);
    if !checker.is_runtime_data(element_type) {
        checker.error(element.span, "the values of a value set cannot have this type");
    }
    if !is_number || !size_value.is_known {
        checker.error(size.span, "the size of a value set has to be a number that is known");
    }
    let type_id = checker.types.add(ValueType::Set(element_type));
    checker.declare_value(name, NamedValue { is_writable: false, is_known: true, ..variable(type_id) });
}

/// Tells if a set has all values.
fn matches_all(keyset: &ExpressionTree) -> bool {
    match &keyset.kind {
        ExpressionKind::Anything => true,
        ExpressionKind::KeysetTuple(parts) => parts.iter().all(matches_all),
        _ => false,
    }
}

/// Most values that a value set's type has.
const MOST_FIELDS: usize = 1024;

/// Checks a set against the types of the values that it is compared with.
pub(crate) fn keyset(
    checker: &mut TypeChecker<'_>,
    keyset: &ExpressionTree,
    types: &[TypeId],
    needs_known: bool,
) {
    match (&keyset.kind, types) {
        (ExpressionKind::Anything, _) => {}
        (ExpressionKind::KeysetTuple(elements), _) => {
            if elements.len() != types.len() {
                let message = format!("this set has {} parts for {} values", elements.len(), types.len());
                checker.error(keyset.span, message);
                return;
            }
            for (element, expected) in elements.iter().zip(types) {
                simple_keyset(checker, element, *expected, needs_known);
            }
        }
        (_, [expected]) => simple_keyset(checker, keyset, *expected, needs_known),
        _ => {
            let tuple = checker.types.add(ValueType::Tuple(types.to_vec()));
            simple_keyset(checker, keyset, tuple, needs_known);
        }
    }
}

fn simple_keyset(
    checker: &mut TypeChecker<'_>,
    keyset: &ExpressionTree,
    expected: TypeId,
    needs_known: bool,
) {
    if matches!(keyset.kind, ExpressionKind::Anything) {
        return;
    }
    let value = checker.expression(keyset);
    if value.type_id == UNKNOWN || expected == UNKNOWN {
        return;
    }
    let (element, is_set) = match checker.types.kind(checker.types.shallow(value.type_id)) {
        ValueType::Set(element) => (*element, true),
        _ => (value.type_id, false),
    };
    let element = only_element(checker, element, expected);
    let is_default = matches!(keyset.kind, ExpressionKind::Default | ExpressionKind::Record(..));
    let fits = !is_default && is_comparable(checker, element, expected, is_set);
    if !fits {
        let (from, to) = (checker.types.name(value.type_id), checker.types.name(expected));
        checker.error(keyset.span, format!("values of type `{to}` cannot be in a set of type `{from}`"));
    }
    let is_list = matches!(keyset.kind, ExpressionKind::List(_));
    if needs_known && !is_list && !value.is_known {
        checker.error(keyset.span, "the keys of an entry have to be known when the program is compiled");
    }
}

/// Type of the element of a list that has only one, where no list is expected.
fn only_element(checker: &TypeChecker<'_>, element: TypeId, expected: TypeId) -> TypeId {
    match (
        checker.types.kind(checker.types.shallow(element)),
        checker.types.kind(checker.types.shallow(expected)),
    ) {
        (ValueType::ListExpression(list), ValueType::Bits(_) | ValueType::SignedBits(_))
            if list.len() == 1 =>
        {
            list[0]
        }
        _ => element,
    }
}

fn is_comparable(checker: &mut TypeChecker<'_>, element: TypeId, expected: TypeId, is_set: bool) -> bool {
    if checker.coerces(element, expected) {
        return true;
    }
    let values = checker.operand_type(expected);
    is_set && (checker.coerces(element, values) || has_compared_fields(checker, element, expected))
}

/// Tells if a value set's type is a struct whose fields are the values that are compared.
fn has_compared_fields(checker: &mut TypeChecker<'_>, element: TypeId, expected: TypeId) -> bool {
    let mut types = Vec::new();
    flatten(checker, element, &mut types);
    let expected = match checker.types.kind(checker.types.shallow(expected)).clone() {
        ValueType::Tuple(expected) => expected,
        _ => vec![expected],
    };
    types.len() == expected.len() && types.iter().zip(&expected).all(|(a, b)| checker.unify(*a, *b))
}

/// Collects the types of fields, those of structs within structs included.
fn flatten(checker: &mut TypeChecker<'_>, id: TypeId, types: &mut Vec<TypeId>) {
    match checker.fields(id) {
        Some((_, fields)) if types.len() < MOST_FIELDS => {
            for (_, field) in fields {
                flatten(checker, field, types);
            }
        }
        _ => types.push(id),
    }
}
