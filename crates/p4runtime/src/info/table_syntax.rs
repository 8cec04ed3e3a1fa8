//! Parts of tables, actions and constructor calls, as they are written.

use millstream_p4::ast::{
    ParameterDirection, ParameterSyntax, TableAction, TableKey, TableProperty, TablePropertyValue,
};
use millstream_p4::expression::{
    CallArgument, ExpressionKind, ExpressionTree, QualifiedName, TypeSyntax, TypeSyntaxKind,
};
use rustc_hash::FxHashMap;

/// An action in the list of a table.
pub(crate) struct ActionReference<'p> {
    pub(crate) name: &'p QualifiedName,
    pub(crate) element: &'p TableAction,
}

/// Lists the actions of a table.
pub(crate) fn action_references(properties: &[TableProperty]) -> Vec<ActionReference<'_>> {
    let mut references = Vec::new();
    for property in properties {
        if let TablePropertyValue::Actions(list) = &property.value {
            let named = list.iter().filter_map(|element| Some((called_action(&element.action)?.0, element)));
            references.extend(named.map(|(name, element)| ActionReference { name, element }));
        }
    }
    references
}

/// Name and arguments of an action that is referred to.
pub(crate) fn called_action(value: &ExpressionTree) -> Option<(&QualifiedName, &[CallArgument])> {
    match &value.kind {
        ExpressionKind::Name(name) => Some((name, &[])),
        ExpressionKind::Call(function, _, arguments) => match &function.kind {
            ExpressionKind::Name(name) => Some((name, arguments)),
            _ => None,
        },
        _ => None,
    }
}

/// Finds a property whose value is an expression.
pub(crate) fn value_property<'p>(
    properties: &'p [TableProperty],
    name: &str,
) -> Option<(&'p TableProperty, &'p ExpressionTree)> {
    let property = properties.iter().find(|property| &*property.name.text == name)?;
    match &property.value {
        TablePropertyValue::Value(value) => Some((property, value)),
        _ => None,
    }
}

/// The default action that a table names.
pub(crate) fn default_action(properties: &[TableProperty]) -> Option<(&TableProperty, &ExpressionTree)> {
    value_property(properties, "default_action")
}

/// Expressions of a table: keys, values of properties, and entries.
pub(crate) fn table_expressions(properties: &[TableProperty]) -> Vec<&ExpressionTree> {
    let mut expressions = Vec::new();
    for property in properties {
        match &property.value {
            TablePropertyValue::Keys(keys) => expressions.extend(keys.iter().map(|key| &key.expression)),
            TablePropertyValue::Actions(_) => {}
            TablePropertyValue::Entries(entries) => {
                expressions.extend(entries.iter().map(|entry| &entry.action));
            }
            TablePropertyValue::Value(value) => expressions.push(value),
        }
    }
    expressions
}

/// Elements of a table's key.
pub(crate) fn table_keys(properties: &[TableProperty]) -> Vec<&TableKey> {
    let keys = properties.iter().filter_map(|property| match &property.value {
        TablePropertyValue::Keys(keys) => Some(keys),
        _ => None,
    });
    keys.flatten().collect()
}

/// Parameters of an action that entries give.
pub(crate) fn entry_parameters(parameters: &[ParameterSyntax]) -> impl Iterator<Item = &ParameterSyntax> {
    parameters.iter().filter(|parameter| parameter.direction == ParameterDirection::Directionless)
}

/// Type arguments of a type that is written by name.
pub(crate) fn type_arguments(target: &TypeSyntax) -> &[TypeSyntax] {
    match &target.kind {
        TypeSyntaxKind::Specialized(_, arguments) => arguments,
        _ => &[],
    }
}

/// Values of parameters, in their order: arguments by name or position, or default values.
pub(crate) fn ordered_arguments<'p>(
    parameters: &'p [ParameterSyntax],
    arguments: &'p [CallArgument],
) -> Vec<Option<&'p ExpressionTree>> {
    let named: FxHashMap<&str, &CallArgument> =
        arguments.iter().filter_map(|a| Some((&*a.name.as_ref()?.text, a))).collect();
    let value = |(at, parameter): (usize, &'p ParameterSyntax)| {
        let argument = match named.get(&*parameter.name.text) {
            Some(argument) => Some(*argument),
            None => arguments.get(at).filter(|argument| argument.name.is_none()),
        };
        argument.and_then(|argument| argument.value.as_ref()).or(parameter.default.as_ref())
    };
    parameters.iter().enumerate().map(value).collect()
}
