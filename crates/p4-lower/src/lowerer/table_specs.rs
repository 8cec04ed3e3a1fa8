//! Descriptions of tables: keys, actions, entries, maps.

use millstream_p4::SourceSpan;
use millstream_p4::ast::{
    DeclarationKind, DeclarationTree, ParameterDirection, ParameterSyntax, TableAction, TableEntry, TableKey,
    TableProperty, TablePropertyValue,
};
use millstream_p4::expression::{
    BinaryOperator, CallArgument, ExpressionKind, ExpressionTree, QualifiedName, TypeSyntax,
};
use num_bigint::BigUint;

use crate::arguments::matched;
use crate::constants::reduced;
use crate::error::{Lowered, refuse};
use crate::instances::{self, annotation_text, plane_name};
use crate::keys::{annotated_priority, key_text, lay_out, property, scalar_widths, selectors};
use crate::lowerer::{ARRAY_MAP, HASH_MAP, Lowerer, PREFIX_MAP};
use crate::meters::METER_SIZE;
use crate::pipeline::{
    ActionChoice, ActionSpec, ENTRY_COUNTER, ENTRY_REST, EntryMatch, EntrySpec, KeyMatch, KeySpec,
    ObjectKind, ParameterSpec, SelectorSpec, TableSpec, TableStorage,
};
use crate::scope::{Binding, Instance, TableActionParts, TableParts};
use crate::types::RuntimeType;

/// Type number of maps with priorities; the kernel has none.
pub const PRIORITY_MAP: u32 = 0x1000;
/// Entries of a table that says no size.
const DEFAULT_SIZE: u32 = 1024;
/// Priority above those of constant entries; each has one less than the one in front of it.
const FIRST_PRIORITY: u32 = 1 << 30;

/// Name and arguments of a reference to an action.
fn reference(action: &ExpressionTree) -> Option<(&QualifiedName, &[CallArgument])> {
    match &action.kind {
        ExpressionKind::Name(name) => Some((name, &[])),
        ExpressionKind::Call(function, _, arguments) => match &function.kind {
            ExpressionKind::Name(name) => Some((name, arguments)),
            _ => None,
        },
        _ => None,
    }
}

/// Describes a table of the current instance; gives its number.
pub(crate) fn make_table<'p>(l: &mut Lowerer<'p>, declaration: &'p DeclarationTree) -> Lowered<usize> {
    let DeclarationKind::Table(properties) = &declaration.kind else {
        return refuse(declaration.span, "this is no table");
    };
    let name = instances::local_name(l, &declaration.annotations, &declaration.name);
    let (mut keys, parts, mut storage, mut key_size) = table_keys(l, properties)?;
    let counter = match instances::attached(l, properties, &["counters", "psa_direct_counter"], &name)? {
        Some(counter) => Some(l.pipeline.objects[counter].name.clone()),
        None => None,
    };
    let mut value_size = if counter.is_some() { ENTRY_REST } else { ENTRY_COUNTER };
    let meter = instances::attached(l, properties, &["meters", "psa_direct_meter"], &name)?;
    let meter_name = meter.map(|meter| (l.pipeline.objects[meter].name.clone(), value_size));
    if meter.is_some() {
        value_size += METER_SIZE;
    }
    let (actions, action_parts) = table_actions(l, properties, &mut value_size)?;
    let parts = TableParts { keys: parts, actions: action_parts, selectors: selectors(properties), meter };
    let (entries, is_constant) = table_entries(l, properties, &keys, &parts)?;
    // An entry `_` matches everything, also where the key is exact.
    let is_open = |(condition, key): (&EntryMatch, &KeySpec)| {
        *condition == EntryMatch::Any && key.kind == KeyMatch::Exact
    };
    if entries.iter().any(|entry| entry.matches.iter().zip(&keys).any(is_open)) {
        storage = TableStorage::Priority;
        key_size = lay_out(&mut keys, storage);
    }
    let (default, is_default_constant) = default_action(l, properties, &parts)?;
    let size = match property(properties, "size") {
        Some(TablePropertyValue::Value(value)) => l.known_size(value)?,
        _ => DEFAULT_SIZE,
    };
    let size = size.max(entries.len() as u32).max(1);
    let kind = match storage {
        TableStorage::Hash => HASH_MAP,
        TableStorage::Prefix => PREFIX_MAP,
        TableStorage::Priority => PRIORITY_MAP,
    };
    let value_size = value_size.next_multiple_of(8);
    let selector = selector_of(l, properties, &name, value_size)?;
    let map = l.add_map(&name, kind, (key_size.max(1), value_size), size);
    let default_map = l.add_map(&format!("{name}.default"), ARRAY_MAP, (4, value_size), 1);
    l.pipeline.tables.push(TableSpec {
        name,
        map,
        default_map,
        storage,
        keys,
        key_size: key_size.max(1),
        value_size,
        actions,
        default,
        is_default_constant,
        entries,
        is_constant,
        size,
        counter,
        meter: meter_name,
        selector,
    });
    l.objects.table_parts.push(parts);
    Ok(l.pipeline.tables.len() - 1)
}

/// Makes the maps of a selector, if the table has one.
fn selector_of<'p>(
    l: &mut Lowerer<'p>,
    properties: &'p [TableProperty],
    table: &str,
    value_size: u32,
) -> Lowered<Option<SelectorSpec>> {
    let Some(number) = instances::attached(l, properties, &["implementation", "psa_implementation"], table)?
    else {
        return Ok(None);
    };
    let object = l.pipeline.objects[number].clone();
    let ObjectKind::ActionSelector { .. } = object.kind else { return Ok(None) };
    let group_map = l.add_map(&format!("{table}.groups"), HASH_MAP, (4, 8), object.size);
    let member_map = l.add_map(&format!("{table}.members"), HASH_MAP, (8, value_size), object.size);
    Ok(Some(SelectorSpec { name: object.name, group_map, member_map, size: object.size }))
}

#[expect(clippy::type_complexity)]
fn table_keys<'p>(
    l: &mut Lowerer<'p>,
    properties: &'p [TableProperty],
) -> Lowered<(Vec<KeySpec>, Vec<(&'p ExpressionTree, RuntimeType)>, TableStorage, u32)> {
    let list: &'p [TableKey] = match property(properties, "key") {
        Some(TablePropertyValue::Keys(list)) => list,
        _ => &[],
    };
    let (mut specs, mut parts) = (Vec::new(), Vec::new());
    for key in list {
        let kind = match &*key.match_kind.text {
            "exact" => KeyMatch::Exact,
            "lpm" => KeyMatch::Prefix,
            "ternary" => KeyMatch::Ternary,
            "range" => KeyMatch::Range,
            "optional" => KeyMatch::Optional,
            "selector" => continue,
            other => return refuse(key.match_kind.span, format!("the match kind `{other}`")),
        };
        let value_type = match l.type_of(&key.expression)? {
            RuntimeType::Integer => RuntimeType::Bits(64, false),
            other => other,
        };
        let Some(bits) = value_type.width() else {
            return refuse(key.expression.span, "a key of this type is not supported");
        };
        let name = annotation_text(&key.annotations, "name").map(|text| text.to_string());
        let name = name.unwrap_or_else(|| key_text(&key.expression));
        specs.push(KeySpec { name, bits, kind, offset: 0, size: 0 });
        parts.push((&key.expression, value_type));
    }
    let prefixes = specs.iter().filter(|key| key.kind == KeyMatch::Prefix).count();
    let is_plain = |key: &KeySpec| matches!(key.kind, KeyMatch::Exact | KeyMatch::Prefix);
    let storage = match (prefixes, specs.iter().all(is_plain)) {
        (0, true) => TableStorage::Hash,
        (1, true) => TableStorage::Prefix,
        _ => TableStorage::Priority,
    };
    let size = lay_out(&mut specs, storage);
    if size > u32::from(u16::MAX) {
        let span = list.first().map_or(SourceSpan::default(), |key| key.expression.span);
        return refuse(span, "a key of more than 65535 bytes is not supported");
    }
    Ok((specs, parts, storage, size))
}

fn table_actions<'p>(
    l: &mut Lowerer<'p>,
    properties: &'p [TableProperty],
    value_size: &mut u32,
) -> Lowered<(Vec<ActionSpec>, Vec<TableActionParts<'p>>)> {
    let list: &'p [TableAction] = match property(properties, "actions") {
        Some(TablePropertyValue::Actions(list)) => list,
        _ => &[],
    };
    let start = value_size.next_multiple_of(8);
    let (mut specs, mut parts) = (Vec::new(), Vec::new());
    for action in list {
        let (spec, part) = table_action(l, action, start, value_size)?;
        specs.push(spec);
        parts.push(part);
    }
    Ok((specs, parts))
}

fn table_action<'p>(
    l: &mut Lowerer<'p>,
    action: &'p TableAction,
    start: u32,
    value_size: &mut u32,
) -> Lowered<(ActionSpec, TableActionParts<'p>)> {
    let span = action.action.span;
    let Some((name, bound)) = reference(&action.action) else { return refuse(span, "no action") };
    let local = match name.is_global {
        true => None,
        false => l.scope.find(&name.name.text),
    };
    let (declaration, is_global, scope) = match local {
        Some((Binding::Action(declaration), found)) => (declaration, false, found),
        _ => match l.global(&name.name.text) {
            Some(declaration) => (declaration, true, l.root.clone()),
            None => return refuse(span, "this action is not known"),
        },
    };
    let DeclarationKind::Action(parameters, _) = &declaration.kind else {
        return refuse(span, "this is no action");
    };
    let mut offset = start;
    let (mut specs, mut list) = (Vec::new(), Vec::new());
    for parameter in &parameters[directed(parameters).max(bound.len()).min(parameters.len())..] {
        let value_type = l.in_scope(scope.clone(), |l| l.type_of_syntax(&parameter.declared_type))?;
        let Some(bits) = value_type.width() else {
            return refuse(parameter.name.span, "a parameter of this type cannot be set by an entry");
        };
        offset = offset.next_multiple_of(value_type.align());
        specs.push(ParameterSpec { name: parameter.name.text.to_string(), bits, offset });
        list.push((parameter, value_type.clone(), offset));
        offset += value_type.size();
    }
    *value_size = (*value_size).max(offset);
    let path = scope.owner.as_ref().map_or("", |owner| owner.path.as_str());
    let has = |name: &str| action.annotations.iter().any(|a| &*a.name.text == name);
    let spec = ActionSpec {
        name: plane_name(path, &declaration.annotations, &declaration.name),
        parameters: specs,
        is_default_only: has("defaultonly"),
        is_table_only: has("tableonly"),
    };
    Ok((spec, TableActionParts { declaration, is_global, bound, parameters: list }))
}

/// An action with arguments that are known.
fn choice<'p>(
    l: &mut Lowerer<'p>,
    parts: &TableParts<'p>,
    action: &'p ExpressionTree,
) -> Lowered<ActionChoice> {
    let Some((name, arguments)) = reference(action) else { return refuse(action.span, "no action") };
    let same = |part: &TableActionParts<'p>| part.declaration.name.text == name.name.text;
    let Some(number) = parts.actions.iter().position(same) else {
        return refuse(action.span, format!("`{}` is no action of the table", name.name.text));
    };
    let part = &parts.actions[number];
    let DeclarationKind::Action(parameters, _) = &part.declaration.kind else {
        return refuse(action.span, "this is no action");
    };
    let skipped = parameters.len() - part.parameters.len();
    let wanted = match arguments.len() == parameters.len() {
        true => parameters,
        false => &parameters[skipped..],
    };
    let Some(places) = matched(wanted, arguments) else {
        return refuse(action.span, "the arguments do not match the parameters");
    };
    let mut values = Vec::new();
    for (parameter, value_type, _) in &part.parameters {
        let at = wanted.iter().position(|p| p.name.text == parameter.name.text);
        let value = at.and_then(|at| places[at]).and_then(|argument| argument.value.as_ref());
        let value = value.or(parameter.default.as_ref());
        let Some(value) = value else { return refuse(action.span, "an argument is missing") };
        let number = l.known_number(value)?;
        values.push(reduced(&number, value_type.width().unwrap_or(0)));
    }
    Ok(ActionChoice { action: number, arguments: values })
}

fn default_action<'p>(
    l: &mut Lowerer<'p>,
    properties: &'p [TableProperty],
    parts: &TableParts<'p>,
) -> Lowered<(ActionChoice, bool)> {
    let found = properties.iter().find(|property| &*property.name.text == "default_action");
    match found {
        Some(TableProperty { is_constant, value: TablePropertyValue::Value(action), .. }) => {
            Ok((choice(l, parts, action)?, *is_constant))
        }
        _ => {
            let nothing = parts.actions.iter().position(|a| &*a.declaration.name.text == "NoAction");
            let action = nothing.unwrap_or(parts.actions.len());
            Ok((ActionChoice { action, arguments: Vec::new() }, false))
        }
    }
}

fn table_entries<'p>(
    l: &mut Lowerer<'p>,
    properties: &'p [TableProperty],
    keys: &[KeySpec],
    parts: &TableParts<'p>,
) -> Lowered<(Vec<EntrySpec>, bool)> {
    let found = properties.iter().find(|property| &*property.name.text == "entries");
    let Some(TableProperty { is_constant, value: TablePropertyValue::Entries(list), .. }) = found else {
        return Ok((Vec::new(), false));
    };
    let smallest_wins = known_flag(l, properties, "largest_priority_wins") == Some(false);
    let delta = match property(properties, "priority_delta") {
        Some(TablePropertyValue::Value(value)) => l.known_size(value)?,
        _ => 1,
    };
    let has_priorities = list.iter().any(|entry| entry.priority.is_some());
    let mut entries = Vec::new();
    let mut last: Option<u32> = None;
    for (index, entry) in list.iter().enumerate() {
        let mut written = match &entry.priority {
            Some(value) => Some(l.known_size(value)?),
            None => last.map(|last| match smallest_wins {
                true => last.saturating_add(delta),
                false => last.saturating_sub(delta),
            }),
        };
        if !has_priorities {
            written = None;
        }
        last = written;
        let priority = match written {
            Some(value) if smallest_wins => FIRST_PRIORITY.saturating_sub(value),
            Some(value) => value,
            None => {
                let annotated = annotated_priority(entry).unwrap_or(index as u32 + 1);
                FIRST_PRIORITY.saturating_sub(annotated)
            }
        };
        entries.push(table_entry(l, entry, keys, parts, priority)?);
    }
    Ok((entries, *is_constant))
}

fn known_flag<'p>(l: &mut Lowerer<'p>, properties: &'p [TableProperty], name: &str) -> Option<bool> {
    match property(properties, name)? {
        TablePropertyValue::Value(value) => match l.known(value)? {
            millstream_p4::ConstantValue::Boolean(value) => Some(value),
            _ => None,
        },
        _ => None,
    }
}

fn table_entry<'p>(
    l: &mut Lowerer<'p>,
    entry: &'p TableEntry,
    keys: &[KeySpec],
    parts: &TableParts<'p>,
    priority: u32,
) -> Lowered<EntrySpec> {
    let sets: &'p [ExpressionTree] = match &entry.keyset.kind {
        ExpressionKind::KeysetTuple(parts) => parts,
        ExpressionKind::List(parts) if keys.len() == parts.len() => parts,
        _ => std::slice::from_ref(&entry.keyset),
    };
    let mut matches = Vec::new();
    if sets.len() == 1 && keys.len() > 1 && matches!(sets[0].kind, ExpressionKind::Anything) {
        matches = vec![EntryMatch::Any; keys.len()];
    } else if sets.len() != keys.len() {
        return refuse(entry.keyset.span, "this set has another number of values than the key");
    }
    for (set, key) in sets.iter().zip(keys).skip(matches.len()) {
        matches.push(entry_match(l, set, key)?);
    }
    Ok(EntrySpec { matches, choice: choice(l, parts, &entry.action)?, priority, group: None })
}

fn entry_match<'p>(l: &mut Lowerer<'p>, set: &'p ExpressionTree, key: &KeySpec) -> Lowered<EntryMatch> {
    let number = |l: &mut Lowerer<'p>, value: &'p ExpressionTree| -> Lowered<BigUint> {
        Ok(reduced(&l.known_number(value)?, key.bits))
    };
    Ok(match &set.kind {
        ExpressionKind::Anything | ExpressionKind::Default => EntryMatch::Any,
        ExpressionKind::Binary(BinaryOperator::Mask, value, mask) => {
            let (value, mask) = (number(l, value)?, number(l, mask)?);
            match key.kind {
                KeyMatch::Prefix => EntryMatch::Prefix(value, mask.count_ones() as u32),
                _ => EntryMatch::Ternary(value, mask),
            }
        }
        ExpressionKind::Binary(BinaryOperator::Range, low, high) => {
            EntryMatch::Range(number(l, low)?, number(l, high)?)
        }
        _ => {
            let value = number(l, set)?;
            match key.kind {
                KeyMatch::Prefix => EntryMatch::Prefix(value, key.bits),
                _ => EntryMatch::Exact(value),
            }
        }
    })
}

/// Number of the action that a label of `switch` names.
pub(crate) fn action_number<'p>(
    l: &mut Lowerer<'p>,
    table: usize,
    label: &'p ExpressionTree,
) -> Lowered<u64> {
    let Some((name, _)) = reference(label) else { return refuse(label.span, "this is no action") };
    let parts = &l.objects.table_parts[table];
    let same = |part: &TableActionParts<'p>| part.declaration.name.text == name.name.text;
    match parts.actions.iter().position(same) {
        Some(number) => Ok(number as u64),
        None => refuse(label.span, "this is no action of the table"),
    }
}

/// Makes a value set; its key is the value's scalars, each at its alignment.
pub(crate) fn value_set<'p>(
    l: &mut Lowerer<'p>,
    syntax: &'p TypeSyntax,
    size: &'p ExpressionTree,
    name: String,
) -> Lowered<std::rc::Rc<Instance<'p>>> {
    let value_type = l.type_of_syntax(syntax)?;
    let mut bits = Vec::new();
    if !scalar_widths(&value_type, &mut bits) {
        return refuse(syntax.span, "a value set of this type is not supported");
    }
    let mut specs: Vec<KeySpec> = bits
        .iter()
        .map(|bits| {
            let name = String::new();
            KeySpec { name, bits: *bits, kind: KeyMatch::Exact, offset: 0, size: 0 }
        })
        .collect();
    lay_out(&mut specs, TableStorage::Hash);
    let key_size = specs.last().map_or(1, |key| key.offset + key.size);
    if key_size > u32::from(u16::MAX) {
        return refuse(syntax.span, "a value of more than 65,535 bytes in a value set is not supported");
    }
    let size = l.known_size(size)?.max(1);
    let map = l.add_map(&name, HASH_MAP, (key_size, 8), size);
    let number = l.add_object(name, ObjectKind::ValueSet { bits }, Some(map), size);
    Ok(std::rc::Rc::new(Instance::ValueSet(number)))
}

/// Number of parameters that have a direction; they come first.
pub(crate) fn directed(parameters: &[ParameterSyntax]) -> usize {
    parameters.iter().take_while(|p| p.direction != ParameterDirection::Directionless).count()
}
