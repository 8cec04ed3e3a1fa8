//! Tables: keys, actions, properties and entries. Source: P4_16 1.2.5, section 14.2.

use crate::ast::{ParameterDirection, TableAction, TableEntry, TableKey, TableProperty, TablePropertyValue};
use crate::check::{CheckedPart, TypeChecker, calls, declarations, parsers};
use crate::source::SourceName;
use rustc_hash::FxHashSet;

use crate::check::calls::matched;
use crate::check::constants::ConstantValue;
use crate::check::declarations::variable;
use crate::check::scope::{KeyEntity, ListedAction, NamedEntity, NamedValue, TableEntity};
use crate::check::types::{BOOL, INTEGER, ParameterType, TypeId, UNKNOWN, ValueType};
use crate::diagnostic::SourceDiagnostic;
use crate::expression::{BinaryOperator, CallArgument, ExpressionKind, ExpressionTree, QualifiedName};
use num_bigint::BigInt;

pub(crate) fn table(checker: &mut TypeChecker<'_>, name: &SourceName, properties: &[TableProperty]) {
    checker.distinct("the property", properties.iter().map(|property| &property.name));
    let mut table = TableEntity::default();
    declarations::reserve(checker, name);
    checker.within(CheckedPart::ControlApply, |c| {
        for property in properties {
            match &property.value {
                TablePropertyValue::Keys(keys) => {
                    table.keys = keys.iter().filter_map(|k| key(c, k)).collect()
                }
                TablePropertyValue::Actions(actions) => table.actions = listed_actions(c, actions),
                _ => {}
            }
        }
    });
    let has_actions = properties.iter().any(|p| matches!(p.value, TablePropertyValue::Actions(_)));
    let has_default = properties.iter().any(|p| &*p.name.text == "default_action");
    if !has_default && !may_default_to_no_action(checker) {
        checker.error(name.span, "the default action `NoAction` has to be an action without parameters");
    }
    if !has_actions {
        checker.error(name.span, format!("the table `{}` has no actions", name.text));
    }
    check_property_order(checker, properties);
    for property in properties {
        checker.annotations(&property.annotations);
        check_property(checker, &table, property);
    }
    check_priorities(checker, properties);
    checker.tables.push(table);
    let type_id = checker.types.add(ValueType::Table(checker.tables.len() as u32 - 1));
    checker.declare_value(name, NamedValue { is_writable: false, is_known: true, ..variable(type_id) });
}

/// Checks that entries and the default action are behind what they refer to.
fn check_property_order(checker: &mut TypeChecker<'_>, properties: &[TableProperty]) {
    let place = |name: &str| properties.iter().position(|property| &*property.name.text == name);
    for (late, early) in [("entries", "key"), ("entries", "actions"), ("default_action", "actions")] {
        if let (Some(late_at), Some(early_at)) = (place(late), place(early))
            && late_at < early_at
        {
            checker.error(properties[late_at].name.span, format!("`{late}` has to be behind `{early}`"));
        }
    }
}

/// Tells if `NoAction` is not declared, or is an action without parameters.
fn may_default_to_no_action(checker: &TypeChecker<'_>) -> bool {
    match checker.scopes.find("NoAction", false) {
        None => true,
        Some(NamedEntity::Action(action)) => checker.actions[*action].parameters.is_empty(),
        Some(_) => false,
    }
}

fn key(checker: &mut TypeChecker<'_>, key: &TableKey) -> Option<KeyEntity> {
    let value = checker.expression(&key.expression);
    if !checker.is_matched(value.type_id)
        && !matches!(checker.types.kind(value.type_id), ValueType::VariableBits(_))
    {
        let name = checker.types.name(value.type_id);
        checker.error(key.expression.span, format!("a value of type `{name}` cannot be a key"));
    }
    checker.annotations(&key.annotations);
    let is_named = key.annotations.iter().any(|annotation| &*annotation.name.text == "name");
    if !is_named && !has_simple_name(&key.expression) {
        checker.error(key.expression.span, "a computed key needs a name: `@name(...)`");
    }
    let kind = &key.match_kind;
    if !checker.match_kinds.contains(&kind.text) {
        let message = format!("the match kind `{}` is not declared", kind.text);
        let known: Vec<String> = checker.match_kinds.iter().map(|name| name.to_string()).collect();
        let names = known.iter().map(String::as_str);
        checker.sink.push(SourceDiagnostic::error(kind.span, message).nearest(&kind.text, names));
    }
    let is_ordered = matches!(&*kind.text, "lpm" | "range");
    let type_id = checker.types.shallow(value.type_id);
    if is_ordered && value.type_id != UNKNOWN && checker.format(type_id).is_none() {
        let name = checker.types.name(type_id);
        checker.error(key.expression.span, format!("`{}` cannot match values of type `{name}`", kind.text));
    }
    Some(KeyEntity { type_id, match_kind: kind.text.clone() })
}

fn listed_actions(checker: &mut TypeChecker<'_>, actions: &[TableAction]) -> Vec<ListedAction> {
    let mut listed: Vec<ListedAction> = Vec::new();
    let mut seen = FxHashSet::default();
    for entry in actions {
        checker.annotations(&entry.annotations);
        let Some((name, arguments)) = action_reference(&entry.action) else { continue };
        if !seen.insert(name.name.text.clone()) {
            checker.error(name.name.span, format!("the action `{}` is listed twice", name.name.text));
        }
        let Some(action) = find_action(checker, name) else { continue };
        let parameters = checker.actions[action].parameters.clone();
        let bound: Vec<ParameterType> = parameters.into_iter().filter(has_direction).collect();
        bind_arguments(checker, &bound, arguments, entry.action.span);
        let is_annotated = |text: &str| entry.annotations.iter().any(|a| &*a.name.text == text);
        listed.push(ListedAction {
            name: name.name.text.clone(),
            action,
            is_default_only: is_annotated("defaultonly"),
            is_table_only: is_annotated("tableonly"),
            bound: arguments.to_vec(),
        });
    }
    listed
}

/// Checks the arguments that a list of actions binds: those with a direction, and no others.
fn bind_arguments(
    checker: &mut TypeChecker<'_>,
    bound: &[ParameterType],
    arguments: &[CallArgument],
    span: crate::source::SourceSpan,
) {
    if matched(bound, arguments).is_none() {
        checker.error(span, "the list of actions has to bind the parameters with a direction, and no others");
        return;
    }
    let kind = crate::check::calls::CalleeKind::Action;
    calls::check_arguments(checker, kind, bound, arguments, span);
}

pub(crate) fn find_action(checker: &mut TypeChecker<'_>, name: &QualifiedName) -> Option<usize> {
    match checker.scopes.find(&name.name.text, name.is_global) {
        Some(NamedEntity::Action(action)) => Some(*action),
        Some(_) => {
            checker.error(name.name.span, format!("`{}` is no action", name.name.text));
            None
        }
        None => {
            checker.undeclared("the action", &name.name);
            None
        }
    }
}

fn check_property(checker: &mut TypeChecker<'_>, table: &TableEntity, property: &TableProperty) {
    let span = property.name.span;
    match (&property.value, &*property.name.text) {
        (TablePropertyValue::Entries(entries), _) => check_entries(checker, table, property, entries),
        (TablePropertyValue::Value(value), "default_action") => default_action(checker, table, value),
        (TablePropertyValue::Value(value), "size") => {
            let size = checker.expression(value);
            if !size.is_known || size.type_id != INTEGER && !checker.is_number(size.type_id) {
                checker.error(value.span, "the size of a table has to be a number that is known");
            }
        }
        (TablePropertyValue::Value(value), "largest_priority_wins") => {
            let checked = checker.expression(value);
            if checked.type_id != BOOL || !checked.is_known {
                checker.error(value.span, "`largest_priority_wins` has to be `true` or `false`");
            }
        }
        (TablePropertyValue::Value(value), "priority_delta") => {
            checker.known_size(value, "`priority_delta`", 1, u32::MAX);
        }
        (TablePropertyValue::Value(value), _) => {
            custom_property(checker, value);
        }
        (TablePropertyValue::Keys(_) | TablePropertyValue::Actions(_), _) if property.is_constant => {
            checker.error(span, format!("`{}` cannot be `const`", property.name.text));
        }
        _ => {}
    }
}

/// Checks the value of a property that an architecture defines.
fn custom_property(checker: &mut TypeChecker<'_>, value: &ExpressionTree) {
    checker.expression(value);
}

fn default_action(checker: &mut TypeChecker<'_>, table: &TableEntity, value: &ExpressionTree) {
    let Some((name, arguments)) = action_reference(value) else {
        checker.error(value.span, "the default action has to be an action of the table");
        return;
    };
    let Some(listed) = listed(checker, table, name) else { return };
    if listed.is_table_only {
        checker.error(value.span, format!("`{}` may only be an action of entries", name.name.text));
    }
    action_arguments(checker, &listed, arguments, value.span);
}

/// Finds an action among those of the table.
pub(crate) fn listed(
    checker: &mut TypeChecker<'_>,
    table: &TableEntity,
    name: &QualifiedName,
) -> Option<ListedAction> {
    let action = find_action(checker, name)?;
    let listed = table.actions.iter().find(|listed| listed.action == action);
    if listed.is_none() {
        let message = format!("`{}` is no action of the table", name.name.text);
        let names = table.actions.iter().map(|listed| &*listed.name);
        let diagnostic = SourceDiagnostic::error(name.name.span, message);
        checker.sink.push(diagnostic.nearest(&name.name.text, names));
    }
    listed.cloned()
}

/// Checks the arguments of an entry's action or of the default action.
pub(crate) fn action_arguments(
    checker: &mut TypeChecker<'_>,
    listed: &ListedAction,
    arguments: &[CallArgument],
    span: crate::source::SourceSpan,
) {
    let parameters = checker.actions[listed.action].parameters.clone();
    let rest: Vec<ParameterType> = parameters.iter().filter(|p| !has_direction(p)).cloned().collect();
    let is_whole = !listed.bound.is_empty() && arguments.len() > rest.len();
    let expected = if is_whole { &parameters } else { &rest };
    let kind = crate::check::calls::CalleeKind::Action;
    if !calls::check_arguments(checker, kind, expected, arguments, span) {
        return;
    }
    let is_same = |(given, bound)| crate::check::same::same_argument(given, bound);
    if is_whole && !arguments.iter().zip(&listed.bound).all(is_same) {
        checker.error(span, "the arguments differ from those that the list of actions binds");
    }
    let places = matched(expected, arguments).unwrap_or_default();
    for (parameter, argument) in expected.iter().zip(places) {
        let value = argument.and_then(|argument| argument.value.as_ref());
        let is_known = value.is_none_or(|value| checker.facts.is_known(value.id));
        if !is_known && !has_direction(parameter) {
            checker.error(span, "the arguments of this action have to be known when the program is compiled");
        }
    }
}

fn has_direction(parameter: &ParameterType) -> bool {
    parameter.direction != ParameterDirection::Directionless
}

/// Name and arguments of an action that is referred to.
pub(crate) fn action_reference(value: &ExpressionTree) -> Option<(&QualifiedName, &[CallArgument])> {
    match &value.kind {
        ExpressionKind::Name(name) => Some((name, &[])),
        ExpressionKind::Call(function, _, arguments) => match &function.kind {
            ExpressionKind::Name(name) => Some((name, arguments)),
            _ => None,
        },
        _ => None,
    }
}

/// Tells if the control plane's name of a key follows from its expression.
fn has_simple_name(key: &ExpressionTree) -> bool {
    use crate::expression::BinaryOperator;
    match &key.kind {
        ExpressionKind::Name(_)
        | ExpressionKind::Number(_)
        | ExpressionKind::Boolean(_)
        | ExpressionKind::This => true,
        ExpressionKind::Member(base, _) | ExpressionKind::Index(base, _) => has_simple_name(base),
        ExpressionKind::Slice(parts) | ExpressionKind::WidthSlice(parts) => has_simple_name(&parts[0]),
        ExpressionKind::Binary(BinaryOperator::BitAnd, left, _) => has_simple_name(left),
        ExpressionKind::Call(function, _, _) => match &function.kind {
            ExpressionKind::Member(base, member) => &*member.text == "isValid" && has_simple_name(base),
            _ => false,
        },
        _ => false,
    }
}

pub(crate) fn check_entries(
    checker: &mut TypeChecker<'_>,
    table: &TableEntity,
    property: &TableProperty,
    entries: &[TableEntry],
) {
    if table.keys.is_empty() && !entries.is_empty() {
        checker.error(property.name.span, "a table without a key has no entries");
        return;
    }
    let types: Vec<TypeId> = table.keys.iter().map(|key| key.type_id).collect();
    for entry in entries {
        checker.annotations(&entry.annotations);
        parsers::keyset(checker, &entry.keyset, &types, true);
        check_match_kinds(checker, table, &entry.keyset);
        entry_action(checker, table, entry);
        priority(checker, table, entry, property.is_constant);
    }
    check_first_priority(checker, entries);
    check_duplicates(checker, table, entries);
}

/// Checks that the first entry has a priority if any has one.
fn check_first_priority(checker: &mut TypeChecker<'_>, entries: &[TableEntry]) {
    let has_priority = |entry: &TableEntry| entry.priority.is_some();
    if let Some(first) =
        entries.first().filter(|first| !has_priority(first) && entries.iter().any(has_priority))
    {
        checker.error(first.keyset.span, "the first entry needs a priority if another has one");
    }
}

/// Checks that the priorities of entries that have none written do not become negative.
pub(crate) fn check_priorities(checker: &mut TypeChecker<'_>, properties: &[TableProperty]) {
    let value = |name: &str| {
        let property = properties.iter().find(|property| &*property.name.text == name)?;
        let TablePropertyValue::Value(value) = &property.value else { return None };
        checker.facts.constant(value.id).cloned()
    };
    if value("largest_priority_wins") == Some(ConstantValue::Boolean(false)) {
        return;
    }
    let delta = value("priority_delta").and_then(|delta| delta.number().cloned()).unwrap_or_else(|| 1.into());
    let entries = properties.iter().find_map(|property| match &property.value {
        TablePropertyValue::Entries(entries) => Some(entries),
        _ => None,
    });
    let mut last: Option<BigInt> = None;
    for entry in entries.into_iter().flatten() {
        let written =
            entry.priority.as_ref().and_then(|p| checker.facts.constant(p.id)).and_then(|c| c.number());
        last = written.cloned().or_else(|| last.map(|last| last - &delta));
        if last.as_ref().is_some_and(|priority| *priority < BigInt::ZERO) {
            checker.error(entry.keyset.span, "the priority of this entry becomes negative");
            return;
        }
    }
}

/// Checks that no two entries have the same values, in a table whose keys are all exact.
fn check_duplicates(checker: &mut TypeChecker<'_>, table: &TableEntity, entries: &[TableEntry]) {
    if table.keys.iter().any(|key| &*key.match_kind != "exact") {
        return;
    }
    let mut seen = FxHashSet::default();
    for entry in entries {
        let values: Vec<String> = parts(&entry.keyset)
            .into_iter()
            .filter_map(|part| checker.facts.constant(part.id))
            .map(|c| format!("{c:?}"))
            .collect();
        if values.len() == table.keys.len() && !seen.insert(values) {
            checker.error(entry.keyset.span, "another entry has these values");
        }
    }
}

/// Checks that value and mask of an entry are those of a prefix.
fn check_prefix(checker: &mut TypeChecker<'_>, keyset: &ExpressionTree, key: TypeId) {
    let ExpressionKind::Binary(BinaryOperator::Mask, value, mask) = &keyset.kind else { return };
    let number = |part: &ExpressionTree| checker.facts.constant(part.id).and_then(|c| c.number()).cloned();
    let (Some(value), Some(mask), Some((width, _))) = (number(value), number(mask), checker.format(key))
    else {
        return;
    };
    let ones = (BigInt::from(1) << width) - 1;
    let inverse: BigInt = &ones ^ &mask;
    let is_prefix = (&inverse & (&inverse + 1)) == BigInt::ZERO;
    if value > ones || mask > ones || !is_prefix {
        checker.error(keyset.span, "the value and the mask are not those of a prefix");
    }
}

fn entry_action(checker: &mut TypeChecker<'_>, table: &TableEntity, entry: &TableEntry) {
    let Some((name, arguments)) = action_reference(&entry.action) else { return };
    let Some(listed) = listed(checker, table, name) else { return };
    if listed.is_default_only {
        checker.error(entry.action.span, format!("`{}` may only be the default action", name.name.text));
    }
    action_arguments(checker, &listed, arguments, entry.action.span);
}

/// Checks that each part of a set suits the match kind of its key.
fn check_match_kinds(checker: &mut TypeChecker<'_>, table: &TableEntity, keyset: &ExpressionTree) {
    let parts = parts(keyset);
    if parts.len() != table.keys.len() {
        return;
    }
    for (part, key) in parts.into_iter().zip(&table.keys) {
        let is_allowed = match (&part.kind, &*key.match_kind) {
            (ExpressionKind::Anything, kind) => kind != "exact",
            (ExpressionKind::Binary(BinaryOperator::Mask, ..), kind) => {
                !matches!(kind, "exact" | "range" | "optional")
            }
            (ExpressionKind::Binary(BinaryOperator::Range, ..), kind) => {
                !matches!(kind, "exact" | "lpm" | "ternary" | "optional")
            }
            _ => true,
        };
        if &*key.match_kind == "lpm" {
            check_prefix(checker, part, key.type_id);
        }
        if !is_allowed {
            checker
                .error(part.span, format!("a key that matches by `{}` cannot have this set", key.match_kind));
        }
    }
}

fn priority(checker: &mut TypeChecker<'_>, table: &TableEntity, entry: &TableEntry, is_constant: bool) {
    let Some(priority) = &entry.priority else { return };
    checker.known_size(priority, "a priority", 1, i32::MAX as u32);
    if is_constant {
        checker
            .error(priority.span, "constant entries have no priorities: the first one that matches counts");
    }
    let has_order = table.keys.iter().any(|key| !matches!(&*key.match_kind, "exact" | "lpm"));
    if !has_order {
        checker.error(priority.span, "entries of this table have no priorities: no two can match");
    }
}

/// Sets of the elements of a key.
fn parts(keyset: &ExpressionTree) -> Vec<&ExpressionTree> {
    match &keyset.kind {
        ExpressionKind::KeysetTuple(parts) => parts.iter().collect(),
        _ => vec![keyset],
    }
}
