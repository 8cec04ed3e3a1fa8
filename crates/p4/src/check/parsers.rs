//! Parsers: states, transitions, value sets, and sets of values. Source: P4_16 1.2.5, sections 8.15 and 13.

use crate::ast::{ParserBody, ParserState, ParserSyntax, StateTransition};
use rustc_hash::FxHashSet;

use crate::check::declarations::variable;
use crate::check::scope::NamedValue;
use crate::check::types::{NominalKind, TypeId, UNKNOWN, ValueType};
use crate::check::{CheckedPart, TypeChecker};
use crate::diagnostic::SourceDiagnostic;
use crate::expression::{ExpressionKind, ExpressionTree, TypeSyntax};
use crate::source::{SourceName, Symbol};

impl TypeChecker<'_> {
    pub(crate) fn parser(&mut self, name: &SourceName, syntax: &ParserSyntax) {
        let constructor = syntax.body.as_ref().map(|body| &body.constructor[..]);
        let (type_parameters, block) = self.scoped(|c| {
            let block = c.block_parameters(&syntax.type_parameters, &syntax.parameters, constructor, true);
            if let Some(body) = &syntax.body {
                c.within(CheckedPart::Parser, |c| c.scoped(|c| c.parser_body(name, body)));
            }
            block
        });
        self.declare_nominal(name, type_parameters, NominalKind::Block(block));
    }

    fn parser_body(&mut self, name: &SourceName, body: &ParserBody) {
        for local in &body.locals {
            self.declaration(local);
        }
        self.distinct("the state", body.states.iter().map(|state| &state.name));
        let mut states: FxHashSet<Symbol> = body.states.iter().map(|state| state.name.text.clone()).collect();
        if !states.contains("start") {
            self.error(name.span, format!("the parser `{}` has no state `start`", name.text));
        }
        for state in &body.states {
            if matches!(&*state.name.text, "accept" | "reject") {
                self.error(state.name.span, format!("the state `{}` cannot be declared", state.name.text));
            }
        }
        states.extend(["accept".into(), "reject".into()]);
        if let Some(state) = crate::check::parser_graph::endless_state(&body.states) {
            let message = format!("the parser never ends from the state `{}` on", state.name.text);
            self.error(state.name.span, message);
        }
        for state in &body.states {
            self.within(CheckedPart::ParserState, |c| c.scoped(|c| c.state(state, &states)));
        }
    }

    fn state(&mut self, state: &ParserState, states: &FxHashSet<Symbol>) {
        for statement in &state.statements {
            self.statement(statement);
        }
        match &state.transition {
            None => {
                let message =
                    format!("the state `{}` has no transition, and goes to `reject`", state.name.text);
                self.sink.push(SourceDiagnostic::warning(state.name.span, message));
            }
            Some(StateTransition::Direct(target)) => self.check_state(target, states),
            Some(StateTransition::Select(values, cases, _)) => {
                let types: Vec<TypeId> = values.iter().map(|value| self.selected_type(value)).collect();
                let last = cases.iter().position(|case| matches_all(&case.keyset)).unwrap_or(cases.len());
                for case in cases.iter().skip(last + 1) {
                    let message = "this case never matches: one in front of it matches everything";
                    self.sink.push(SourceDiagnostic::warning(case.keyset.span, message));
                }
                // Sets of a select expression need not be known (specification, section 13.6).
                for case in cases {
                    self.keyset(&case.keyset, &types, false);
                    self.check_state(&case.state, states);
                }
            }
        }
    }

    fn check_state(&mut self, target: &SourceName, states: &FxHashSet<Symbol>) {
        if !states.contains(&target.text) {
            let message = format!("the state `{}` is not declared", target.text);
            let names = states.iter().map(|state| &**state);
            self.sink.push(SourceDiagnostic::error(target.span, message).nearest(&target.text, names));
        }
    }

    /// Type of a value of `select`, which has to be a number, an enumeration, an error or a boolean.
    fn selected_type(&mut self, expression: &ExpressionTree) -> TypeId {
        let value = self.expression(expression);
        if value.type_id == crate::check::types::INTEGER || !self.is_selected(value.type_id) {
            let name = self.types.name(value.type_id);
            self.error(expression.span, format!("a value of type `{name}` cannot be selected on"));
            return UNKNOWN;
        }
        match self.types.kind(self.types.shallow(value.type_id)).clone() {
            ValueType::ListExpression(elements) => self.types.add(ValueType::Tuple(elements)),
            _ => self.types.shallow(value.type_id),
        }
    }

    /// Tells if values of a type can be selected on: lists can, whose elements can. Structs cannot, as in the
    /// reference compiler.
    fn is_selected(&self, id: TypeId) -> bool {
        if self.is_matched(id) {
            return true;
        }
        match self.types.kind(self.types.shallow(id)).clone() {
            ValueType::Tuple(list) | ValueType::ListExpression(list) => {
                list.into_iter().all(|id| self.is_selected(id))
            }
            ValueType::Integer => true,
            _ => false,
        }
    }

    /// Tells if values of a type can be compared with sets.
    pub(crate) fn is_matched(&self, id: TypeId) -> bool {
        let id = self.types.shallow(id);
        match self.types.kind(id) {
            ValueType::Bits(_) | ValueType::SignedBits(_) | ValueType::Bool | ValueType::ErrorCode => true,
            ValueType::Unknown | ValueType::Parameter(..) => true,
            ValueType::Nominal(nominal, _) => match self.types.nominal(*nominal).kind {
                NominalKind::Enumeration(..) => true,
                NominalKind::NewType(inner) => self.is_matched(inner),
                _ => false,
            },
            _ => false,
        }
    }

    pub(crate) fn value_set(&mut self, name: &SourceName, element: &TypeSyntax, size: &ExpressionTree) {
        let element_type = self.type_of(element);
        let size_value = self.expression(size);
        let is_number =
            size_value.type_id == crate::check::types::INTEGER || self.is_number(size_value.type_id);
        if !self.is_runtime_data(element_type) {
            self.error(element.span, "the values of a value set cannot have this type");
        }
        if !is_number || !size_value.is_known {
            self.error(size.span, "the size of a value set has to be a number that is known");
        }
        let type_id = self.types.add(ValueType::Set(element_type));
        self.declare_value(name, NamedValue { is_writable: false, is_known: true, ..variable(type_id) });
    }
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

impl TypeChecker<'_> {
    /// Checks a set against the types of the values that it is compared with.
    pub(crate) fn keyset(&mut self, keyset: &ExpressionTree, types: &[TypeId], needs_known: bool) {
        match (&keyset.kind, types) {
            (ExpressionKind::Anything, _) => {}
            (ExpressionKind::KeysetTuple(elements), _) => {
                if elements.len() != types.len() {
                    let message = format!("this set has {} parts for {} values", elements.len(), types.len());
                    self.error(keyset.span, message);
                    return;
                }
                for (element, expected) in elements.iter().zip(types) {
                    self.simple_keyset(element, *expected, needs_known);
                }
            }
            (_, [expected]) => self.simple_keyset(keyset, *expected, needs_known),
            _ => {
                let tuple = self.types.add(ValueType::Tuple(types.to_vec()));
                self.simple_keyset(keyset, tuple, needs_known);
            }
        }
    }

    fn simple_keyset(&mut self, keyset: &ExpressionTree, expected: TypeId, needs_known: bool) {
        if matches!(keyset.kind, ExpressionKind::Anything) {
            return;
        }
        let value = self.expression(keyset);
        if value.type_id == UNKNOWN || expected == UNKNOWN {
            return;
        }
        let (element, is_set) = match self.types.kind(self.types.shallow(value.type_id)) {
            ValueType::Set(element) => (*element, true),
            _ => (value.type_id, false),
        };
        let element = self.only_element(element, expected);
        let is_default = matches!(keyset.kind, ExpressionKind::Default | ExpressionKind::Record(..));
        let fits = !is_default && self.is_comparable(element, expected, is_set);
        if !fits {
            let (from, to) = (self.types.name(value.type_id), self.types.name(expected));
            self.error(keyset.span, format!("values of type `{to}` cannot be in a set of type `{from}`"));
        }
        let is_list = matches!(keyset.kind, ExpressionKind::List(_));
        if needs_known && !is_list && !value.is_known {
            self.error(keyset.span, "the keys of an entry have to be known when the program is compiled");
        }
    }

    /// Type of the element of a list that has only one, where no list is expected.
    fn only_element(&self, element: TypeId, expected: TypeId) -> TypeId {
        match (self.types.kind(self.types.shallow(element)), self.types.kind(self.types.shallow(expected))) {
            (ValueType::ListExpression(list), ValueType::Bits(_) | ValueType::SignedBits(_))
                if list.len() == 1 =>
            {
                list[0]
            }
            _ => element,
        }
    }

    fn is_comparable(&mut self, element: TypeId, expected: TypeId, is_set: bool) -> bool {
        if self.coerces(element, expected) {
            return true;
        }
        let values = self.operand_type(expected);
        is_set && (self.coerces(element, values) || self.has_compared_fields(element, expected))
    }

    /// Tells if a value set's type is a struct whose fields are the values that are compared.
    fn has_compared_fields(&mut self, element: TypeId, expected: TypeId) -> bool {
        let mut types = Vec::new();
        self.flatten(element, &mut types);
        let expected = match self.types.kind(self.types.shallow(expected)).clone() {
            ValueType::Tuple(expected) => expected,
            _ => vec![expected],
        };
        types.len() == expected.len() && types.iter().zip(&expected).all(|(a, b)| self.unify(*a, *b))
    }

    /// Collects the types of fields, those of structs within structs included.
    fn flatten(&mut self, id: TypeId, types: &mut Vec<TypeId>) {
        match self.fields(id) {
            Some((_, fields)) if types.len() < MOST_FIELDS => {
                for (_, field) in fields {
                    self.flatten(field, types);
                }
            }
            _ => types.push(id),
        }
    }
}
