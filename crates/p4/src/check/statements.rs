//! Statements. Source: P4_16 1.2.5, section 12.

use crate::ast::{
    BlockSyntax, ConditionalSyntax, DeclarationKind, ForInSyntax, ForLoopSyntax, StatementKind,
    StatementTree, SwitchCase,
};
use crate::check::calls::CallSite;
use crate::check::constants::ConstantValue;
use crate::check::declarations::variable;
use crate::check::types::{INTEGER, TypeId, UNKNOWN, VOID, ValueType};
use crate::check::{CheckedPart, TypeChecker, TypedValue, methods, objects};
use crate::diagnostic::SourceDiagnostic;
use crate::expression::{BinaryOperator, CallArgument, ExpressionKind, ExpressionTree, TypeSyntax};
use crate::source::{SourceName, SourceSpan, Symbol};

/// Checks statements in the current scope; tells if they always return or exit.
pub(crate) fn block_statements(checker: &mut TypeChecker<'_>, block: &BlockSyntax) -> bool {
    let mut ends = false;
    for statement in &block.statements {
        ends |= check_statement(checker, statement);
    }
    ends
}

/// Checks a statement; tells if it always returns or exits.
pub(crate) fn check_statement(checker: &mut TypeChecker<'_>, statement: &StatementTree) -> bool {
    let span = statement.span;
    match &statement.kind {
        StatementKind::Empty => {}
        StatementKind::Assignment(left, operator, right) => assignment(checker, left, *operator, right),
        StatementKind::Call(call) => {
            checker.expression(call);
        }
        StatementKind::DirectApplication(target, arguments) => {
            direct_application(checker, target, arguments, span);
        }
        StatementKind::Conditional(conditional) => return check_conditional(checker, conditional),
        StatementKind::Block(block) => return checker.scoped(|c| block_statements(c, block)),
        StatementKind::Switch(value, cases) => return switch(checker, value, cases, span),
        StatementKind::Return(value) => {
            return_statement(checker, value.as_ref(), span);
            return true;
        }
        StatementKind::Exit => {
            if !matches!(checker.part, CheckedPart::ControlApply | CheckedPart::Action) {
                checker.error(span, "`exit` is only allowed in controls and actions");
            }
            return true;
        }
        StatementKind::Break | StatementKind::Continue => {
            if checker.body.loops == 0 {
                checker.error(span, "`break` and `continue` are only allowed in loops");
            }
        }
        StatementKind::ForLoop(syntax) => checker.scoped(|c| for_loop(c, syntax)),
        StatementKind::ForInLoop(syntax) => checker.scoped(|c| for_in_loop(c, syntax)),
        StatementKind::Declaration(declaration) => {
            let is_instance = matches!(declaration.kind, DeclarationKind::Instance(_));
            if is_instance && checker.part == CheckedPart::ParserState {
                checker.error(span, "no instance can be made in a state");
            }
            checker.declaration(declaration);
        }
    }
    false
}

fn assignment(
    checker: &mut TypeChecker<'_>,
    left: &ExpressionTree,
    operator: Option<BinaryOperator>,
    right: &ExpressionTree,
) {
    let target = checker.expression(left);
    if target.type_id == UNKNOWN {
        checker.expression(right);
        return;
    }
    if !target.is_writable {
        checker.error(left.span, "this cannot be written");
    }
    if !checker.is_runtime_data(target.type_id) {
        let name = checker.types.name(target.type_id);
        checker.error(left.span, format!("a value of type `{name}` cannot be assigned"));
    }
    match operator {
        None => {
            checker.expression_as(right, target.type_id);
        }
        Some(operator) => {
            let value = checker.expression(right);
            let span = left.span.to(right.span);
            let result = checker.binary_values(operator, &target, &value, span);
            checker.expect_type(&result, target.type_id, span);
        }
    }
}

fn direct_application(
    checker: &mut TypeChecker<'_>,
    target: &TypeSyntax,
    arguments: &[CallArgument],
    span: SourceSpan,
) {
    let type_id = objects::direct_instance(checker, target);
    if type_id == UNKNOWN {
        return;
    }
    let apply = SourceName { text: "apply".into(), span };
    methods::block_call(checker, type_id, &apply, CallSite { types: &[], arguments, span });
}

fn check_conditional(checker: &mut TypeChecker<'_>, conditional: &ConditionalSyntax) -> bool {
    let condition = checker.expression(&conditional.condition);
    checker.expect_boolean(&condition, conditional.condition.span);
    let then = checker.scoped(|c| check_statement(c, &conditional.then));
    let otherwise = match &conditional.otherwise {
        Some(otherwise) => checker.scoped(|c| check_statement(c, otherwise)),
        None => false,
    };
    then && otherwise
}

fn return_statement(checker: &mut TypeChecker<'_>, value: Option<&ExpressionTree>, span: SourceSpan) {
    match (checker.part, value) {
        (CheckedPart::Function | CheckedPart::Method, Some(value)) if checker.body.result != VOID => {
            checker.expression_as(value, checker.body.result);
        }
        (CheckedPart::Function | CheckedPart::Method, None) if checker.body.result != VOID => {
            let name = checker.types.name(checker.body.result);
            checker.error(span, format!("a value of type `{name}` has to be returned"));
        }
        (CheckedPart::ParserState, _) => checker.error(span, "`return` is not allowed in parsers"),
        (_, Some(value)) => {
            checker.expression(value);
            checker.error(span, "no value can be returned here");
        }
        (_, None) => {}
    }
}

fn for_loop(checker: &mut TypeChecker<'_>, syntax: &ForLoopSyntax) {
    for statement in &syntax.start {
        check_statement(checker, statement);
    }
    let condition = checker.expression(&syntax.condition);
    checker.expect_boolean(&condition, syntax.condition.span);
    for statement in &syntax.update {
        check_statement(checker, statement);
    }
    loop_body(checker, &syntax.body);
}

fn loop_body(checker: &mut TypeChecker<'_>, body: &StatementTree) {
    checker.body.loops += 1;
    checker.scoped(|c| check_statement(c, body));
    checker.body.loops -= 1;
}

fn for_in_loop(checker: &mut TypeChecker<'_>, syntax: &ForInSyntax) {
    let collection = checker.expression(&syntax.collection);
    let declared = syntax.declared_type.as_ref().map(|declared| checker.type_of(declared));
    let target = match (declared, &syntax.variable.kind) {
        (Some(type_id), ExpressionKind::Name(name)) => {
            checker.declare_value(&name.name, variable(type_id));
            let value = TypedValue { is_writable: true, ..TypedValue::computed(type_id) };
            checker.record(&syntax.variable, &value);
            value
        }
        _ => checker.expression(&syntax.variable),
    };
    if !target.is_writable {
        checker.error(syntax.variable.span, "the variable of the loop cannot be written");
    }
    check_elements(checker, &collection, (target.type_id, declared.is_some()), syntax.collection.span);
    loop_body(checker, &syntax.body);
}

/// Checks that the elements of a collection fit the variable of a loop.
fn check_elements(
    checker: &mut TypeChecker<'_>,
    collection: &TypedValue,
    (variable, is_declared): (TypeId, bool),
    span: SourceSpan,
) {
    let elements = match checker.types.kind(checker.types.shallow(collection.type_id)).clone() {
        ValueType::Set(element) | ValueType::Stack(element, _) | ValueType::List(element) => {
            vec![element]
        }
        ValueType::ListExpression(elements) => elements,
        ValueType::Unknown => return,
        _ => {
            let name = checker.types.name(collection.type_id);
            checker.error(span, format!("a value of type `{name}` has no elements to loop over"));
            return;
        }
    };
    let is_range = matches!(checker.types.kind(checker.types.shallow(collection.type_id)), ValueType::Set(_));
    for element in elements {
        let is_unsized_range = element == INTEGER && is_range && !is_declared;
        if is_unsized_range || !checker.coerces(element, variable) {
            let (from, to) = (checker.types.name(element), checker.types.name(variable));
            checker
                .error(span, format!("the elements are of type `{from}`, and the variable of type `{to}`"));
            return;
        }
    }
}

/// Checks a `switch`; tells if all its cases return or exit.
pub(crate) fn switch(
    checker: &mut TypeChecker<'_>,
    value: &ExpressionTree,
    cases: &[SwitchCase],
    span: SourceSpan,
) -> bool {
    match checker.part {
        CheckedPart::ParserState => checker.error(span, "`switch` is not allowed in parsers"),
        // Specification, section 14.1: a semantic check rejects what the grammar permits.
        CheckedPart::Action => checker.error(span, "`switch` is not allowed in actions"),
        _ => {}
    }
    let switched = checker.expression(value);
    let table = match checker.types.kind(checker.types.shallow(switched.type_id)) {
        ValueType::TableAction(table) => Some(*table),
        _ => None,
    };
    if table.is_none() && !checker.is_matched(switched.type_id) {
        let name = checker.types.name(switched.type_id);
        checker.error(value.span, format!("a value of type `{name}` cannot be switched on"));
    }
    check_default(checker, cases);
    let mut actions = Vec::new();
    let mut values = Vec::new();
    for case in cases {
        match (&case.label, table) {
            (None, _) => {}
            (Some(label), Some(table)) => action_label(checker, label, table, &mut actions),
            (Some(label), None) => value_label(checker, label, switched.type_id, &mut values),
        }
    }
    case_bodies(checker, cases)
}

/// Checks the statements of all cases; tells if all of them return or exit.
fn case_bodies(checker: &mut TypeChecker<'_>, cases: &[SwitchCase]) -> bool {
    let mut all_end = cases.iter().any(|case| case.label.is_none());
    for body in cases.iter().filter_map(|case| case.body.as_ref()) {
        all_end &= checker.scoped(|c| block_statements(c, body));
    }
    if let Some(last) = cases.last().filter(|case| case.body.is_none()) {
        let message = "the last case has no statements";
        checker.sink.push(SourceDiagnostic::warning(last.span, message));
        return false;
    }
    all_end
}

fn check_default(checker: &mut TypeChecker<'_>, cases: &[SwitchCase]) {
    let defaults: Vec<&SwitchCase> = cases.iter().filter(|case| case.label.is_none()).collect();
    if let [_, second, ..] = defaults[..] {
        checker.error(second.span, "`default` occurs twice");
    }
    if let Some(position) = cases.iter().position(|case| case.label.is_none())
        && position + 1 < cases.len()
    {
        checker.error(cases[position].span, "`default` has to be the last case");
    }
}

fn action_label(checker: &mut TypeChecker<'_>, label: &ExpressionTree, table: u32, seen: &mut Vec<Symbol>) {
    let ExpressionKind::Name(name) = &label.kind else {
        checker.error(label.span, "an action of the table is expected");
        return;
    };
    let text = &name.name.text;
    let known: Vec<Symbol> = checker.tables[table as usize].actions.iter().map(|a| a.name.clone()).collect();
    if !known.contains(text) {
        let message = format!("`{text}` is no action of the table");
        let names = known.iter().map(|name| &**name);
        checker.sink.push(SourceDiagnostic::error(label.span, message).nearest(text, names));
    }
    if seen.contains(text) {
        checker.error(label.span, format!("the case `{text}` occurs twice"));
    }
    seen.push(text.clone());
}

fn value_label(
    checker: &mut TypeChecker<'_>,
    label: &ExpressionTree,
    type_id: TypeId,
    seen: &mut Vec<ConstantValue>,
) {
    let value = checker.expression_as(label, type_id);
    if !value.is_known {
        checker.error(label.span, "a case has to be known when the program is compiled");
    }
    if let Some(constant) = value.constant {
        if seen.contains(&constant) {
            checker.error(label.span, "this case occurs twice");
        }
        seen.push(constant);
    }
}
