//! Tables: keys, actions and properties. Source: P4_16 1.2.5, section 14.2.

use crate::ast::{ParameterDirection, TableAction, TableKey, TableProperty, TablePropertyValue};
use crate::source::SourceName;
use rustc_hash::FxHashSet;

use crate::check::calls::matched;
use crate::check::declarations::variable;
use crate::check::scope::{KeyEntity, ListedAction, NamedEntity, NamedValue, TableEntity};
use crate::check::types::{BOOL, INTEGER, ParameterType, UNKNOWN, ValueType};
use crate::check::{CheckedPart, TypeChecker};
use crate::diagnostic::SourceDiagnostic;
use crate::expression::{CallArgument, ExpressionKind, ExpressionTree, QualifiedName};

impl TypeChecker<'_> {
    pub(crate) fn table(&mut self, name: &SourceName, properties: &[TableProperty]) {
        self.distinct("the property", properties.iter().map(|property| &property.name));
        let mut table = TableEntity::default();
        self.reserve(name);
        self.within(CheckedPart::ControlApply, |c| {
            for property in properties {
                match &property.value {
                    TablePropertyValue::Keys(keys) => {
                        table.keys = keys.iter().filter_map(|k| c.key(k)).collect()
                    }
                    TablePropertyValue::Actions(actions) => table.actions = c.listed_actions(actions),
                    _ => {}
                }
            }
        });
        let has_actions = properties.iter().any(|p| matches!(p.value, TablePropertyValue::Actions(_)));
        let has_default = properties.iter().any(|p| &*p.name.text == "default_action");
        if !has_default && !self.may_default_to_no_action() {
            self.error(name.span, "the default action `NoAction` has to be an action without parameters");
        }
        if !has_actions {
            self.error(name.span, format!("the table `{}` has no actions", name.text));
        }
        self.check_property_order(properties);
        for property in properties {
            self.annotations(&property.annotations);
            self.property(&table, property);
        }
        self.check_priorities(properties);
        self.tables.push(table);
        let type_id = self.types.add(ValueType::Table(self.tables.len() as u32 - 1));
        self.declare_value(name, NamedValue { is_writable: false, is_known: true, ..variable(type_id) });
    }

    /// Checks that entries and the default action are behind what they refer to.
    fn check_property_order(&mut self, properties: &[TableProperty]) {
        let place = |name: &str| properties.iter().position(|property| &*property.name.text == name);
        for (late, early) in [("entries", "key"), ("entries", "actions"), ("default_action", "actions")] {
            if let (Some(late_at), Some(early_at)) = (place(late), place(early))
                && late_at < early_at
            {
                self.error(properties[late_at].name.span, format!("`{late}` has to be behind `{early}`"));
            }
        }
    }

    /// Tells if `NoAction` is not declared, or is an action without parameters.
    fn may_default_to_no_action(&self) -> bool {
        match self.scopes.find("NoAction", false) {
            None => true,
            Some(NamedEntity::Action(action)) => self.actions[*action].parameters.is_empty(),
            Some(_) => false,
        }
    }

    fn key(&mut self, key: &TableKey) -> Option<KeyEntity> {
        let value = self.expression(&key.expression);
        if !self.is_matched(value.type_id)
            && !matches!(self.types.kind(value.type_id), ValueType::VariableBits(_))
        {
            let name = self.types.name(value.type_id);
            self.error(key.expression.span, format!("a value of type `{name}` cannot be a key"));
        }
        self.annotations(&key.annotations);
        let is_named = key.annotations.iter().any(|annotation| &*annotation.name.text == "name");
        if !is_named && !has_simple_name(&key.expression) {
            self.error(key.expression.span, "a computed key needs a name: `@name(...)`");
        }
        let kind = &key.match_kind;
        if !self.match_kinds.contains(&kind.text) {
            let message = format!("the match kind `{}` is not declared", kind.text);
            let known: Vec<String> = self.match_kinds.iter().map(|name| name.to_string()).collect();
            let names = known.iter().map(String::as_str);
            self.sink.push(SourceDiagnostic::error(kind.span, message).nearest(&kind.text, names));
        }
        let is_ordered = matches!(&*kind.text, "lpm" | "range");
        let type_id = self.types.shallow(value.type_id);
        if is_ordered && value.type_id != UNKNOWN && self.format(type_id).is_none() {
            let name = self.types.name(type_id);
            self.error(key.expression.span, format!("`{}` cannot match values of type `{name}`", kind.text));
        }
        Some(KeyEntity { type_id, match_kind: kind.text.clone() })
    }

    fn listed_actions(&mut self, actions: &[TableAction]) -> Vec<ListedAction> {
        let mut listed: Vec<ListedAction> = Vec::new();
        let mut seen = FxHashSet::default();
        for entry in actions {
            self.annotations(&entry.annotations);
            let Some((name, arguments)) = action_reference(&entry.action) else { continue };
            if !seen.insert(name.name.text.clone()) {
                self.error(name.name.span, format!("the action `{}` is listed twice", name.name.text));
            }
            let Some(action) = self.find_action(name) else { continue };
            let parameters = self.actions[action].parameters.clone();
            let bound: Vec<ParameterType> = parameters.into_iter().filter(has_direction).collect();
            self.bind_arguments(&bound, arguments, entry.action.span);
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
        &mut self,
        bound: &[ParameterType],
        arguments: &[CallArgument],
        span: crate::source::SourceSpan,
    ) {
        if matched(bound, arguments).is_none() {
            self.error(
                span,
                "the list of actions has to bind the parameters with a direction, and no others",
            );
            return;
        }
        let kind = crate::check::calls::CalleeKind::Action;
        self.check_arguments(kind, bound, arguments, span);
    }

    pub(crate) fn find_action(&mut self, name: &QualifiedName) -> Option<usize> {
        match self.scopes.find(&name.name.text, name.is_global) {
            Some(NamedEntity::Action(action)) => Some(*action),
            Some(_) => {
                self.error(name.name.span, format!("`{}` is no action", name.name.text));
                None
            }
            None => {
                self.undeclared("the action", &name.name);
                None
            }
        }
    }

    fn property(&mut self, table: &TableEntity, property: &TableProperty) {
        let span = property.name.span;
        match (&property.value, &*property.name.text) {
            (TablePropertyValue::Entries(entries), _) => self.entries(table, property, entries),
            (TablePropertyValue::Value(value), "default_action") => self.default_action(table, value),
            (TablePropertyValue::Value(value), "size") => {
                let size = self.expression(value);
                if !size.is_known || size.type_id != INTEGER && !self.is_number(size.type_id) {
                    self.error(value.span, "the size of a table has to be a number that is known");
                }
            }
            (TablePropertyValue::Value(value), "largest_priority_wins") => {
                let checked = self.expression(value);
                if checked.type_id != BOOL || !checked.is_known {
                    self.error(value.span, "`largest_priority_wins` has to be `true` or `false`");
                }
            }
            (TablePropertyValue::Value(value), "priority_delta") => {
                self.known_size(value, "`priority_delta`", 1, u32::MAX);
            }
            (TablePropertyValue::Value(value), _) => {
                self.custom_property(value);
            }
            (TablePropertyValue::Keys(_) | TablePropertyValue::Actions(_), _) if property.is_constant => {
                self.error(span, format!("`{}` cannot be `const`", property.name.text));
            }
            _ => {}
        }
    }

    /// Checks the value of a property that an architecture defines.
    fn custom_property(&mut self, value: &ExpressionTree) {
        self.expression(value);
    }

    fn default_action(&mut self, table: &TableEntity, value: &ExpressionTree) {
        let Some((name, arguments)) = action_reference(value) else {
            self.error(value.span, "the default action has to be an action of the table");
            return;
        };
        let Some(listed) = self.listed(table, name) else { return };
        if listed.is_table_only {
            self.error(value.span, format!("`{}` may only be an action of entries", name.name.text));
        }
        self.action_arguments(&listed, arguments, value.span);
    }

    /// Finds an action among those of the table.
    pub(crate) fn listed(&mut self, table: &TableEntity, name: &QualifiedName) -> Option<ListedAction> {
        let action = self.find_action(name)?;
        let listed = table.actions.iter().find(|listed| listed.action == action);
        if listed.is_none() {
            let message = format!("`{}` is no action of the table", name.name.text);
            let names = table.actions.iter().map(|listed| &*listed.name);
            let diagnostic = SourceDiagnostic::error(name.name.span, message);
            self.sink.push(diagnostic.nearest(&name.name.text, names));
        }
        listed.cloned()
    }

    /// Checks the arguments of an entry's action or of the default action.
    pub(crate) fn action_arguments(
        &mut self,
        listed: &ListedAction,
        arguments: &[CallArgument],
        span: crate::source::SourceSpan,
    ) {
        let parameters = self.actions[listed.action].parameters.clone();
        let rest: Vec<ParameterType> = parameters.iter().filter(|p| !has_direction(p)).cloned().collect();
        let is_whole = !listed.bound.is_empty() && arguments.len() > rest.len();
        let expected = if is_whole { &parameters } else { &rest };
        let kind = crate::check::calls::CalleeKind::Action;
        if !self.check_arguments(kind, expected, arguments, span) {
            return;
        }
        let is_same = |(given, bound)| crate::check::same::same_argument(given, bound);
        if is_whole && !arguments.iter().zip(&listed.bound).all(is_same) {
            self.error(span, "the arguments differ from those that the list of actions binds");
        }
        let places = matched(expected, arguments).unwrap_or_default();
        for (parameter, argument) in expected.iter().zip(places) {
            let value = argument.and_then(|argument| argument.value.as_ref());
            let is_known = value.is_none_or(|value| self.facts.is_known(value.id));
            if !is_known && !has_direction(parameter) {
                self.error(
                    span,
                    "the arguments of this action have to be known when the program is compiled",
                );
            }
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
