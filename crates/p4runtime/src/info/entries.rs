//! Entries that a program gives its tables, as a request that writes them. Source: P4Runtime specification
//! 1.4, sections 9.1.4 and 9.1.5; P4_16 1.2.5, section 14.2.1.4, for priorities.

use millstream_p4::ConstantValue;
use millstream_p4::ast::{DeclarationKind, TableEntry, TableKey, TableProperty, TablePropertyValue};
use millstream_p4::expression::{BinaryOperator, ExpressionKind, ExpressionTree};
use num_bigint::BigInt;

use crate::info::annotations::is_hidden;
use crate::info::builder::InfoBuilder;
use crate::info::elaborate::ProgramBlock;
use crate::info::scope::{PlacedDeclaration, ScopeId};
use crate::info::symbols::ObjectKind;
use crate::info::table_syntax::{called_action, table_keys, value_property};
use crate::info::type_specs::padded_bytes;
use crate::info::{InfoError, tables};
use crate::proto::config::v1::{MatchField, match_field};
use crate::proto::v1::{
    self, Action, FieldMatch, TableAction, Update, action, entity, field_match, table_action, update,
};

/// Entries of a table's property.
struct EntryList<'p> {
    scope: Option<ScopeId>,
    table_id: u32,
    keys: Vec<&'p TableKey>,
    /// Fields in P4Info of the keys; selectors have none.
    fields: Vec<Option<MatchField>>,
    entries: &'p [TableEntry],
    is_constant: bool,
}

/// Priorities of the entries of a table.
struct EntryPriorities {
    values: Vec<i32>,
    largest_wins: bool,
}

/// Describes the entries of all tables.
pub(crate) fn initial_entries(builder: &mut InfoBuilder<'_, '_>) -> Result<Vec<Update>, InfoError> {
    let mut updates = Vec::new();
    for block in &builder.elaboration.blocks {
        if let ProgramBlock::Table(placed) = block {
            add_table_entries(builder, *placed, &mut updates)?;
        }
    }
    Ok(updates)
}

fn add_table_entries<'p>(
    builder: &mut InfoBuilder<'_, 'p>,
    placed: PlacedDeclaration<'p>,
    updates: &mut Vec<Update>,
) -> Result<(), InfoError> {
    let declaration = placed.declaration;
    let DeclarationKind::Table(properties) = &declaration.kind else { return Ok(()) };
    let found = properties.iter().find_map(|property| match &property.value {
        TablePropertyValue::Entries(entries) => Some((property.is_constant, entries)),
        _ => None,
    });
    let Some((is_constant, entries)) = found.filter(|_| !is_hidden(&declaration.annotations)) else {
        return Ok(());
    };
    let keys = table_keys(properties);
    let name = builder.elaboration.arena.plane_name(placed);
    let list = EntryList {
        scope: placed.scope,
        table_id: builder.symbols.id(ObjectKind::Table, &name),
        fields: tables::key_fields(builder, placed.scope, &keys)?,
        keys,
        entries,
        is_constant,
    };
    for (entry, priority) in ordered_entries(builder, &list, properties) {
        updates.push(entry_update(builder, &list, entry, priority)?);
    }
    Ok(())
}

/// Entries with their priorities, which are zero in tables without an order; those that win come first.
fn ordered_entries<'p>(
    builder: &InfoBuilder<'_, 'p>,
    list: &EntryList<'p>,
    properties: &'p [TableProperty],
) -> Vec<(&'p TableEntry, i32)> {
    let is_ordered = |key: &&TableKey| matches!(&*key.match_kind.text, "ternary" | "range" | "optional");
    if !list.keys.iter().any(is_ordered) {
        return list.entries.iter().map(|entry| (entry, 0)).collect();
    }
    let priorities = entry_priorities(builder, list, properties);
    let mut entries: Vec<(&TableEntry, i32)> = list.entries.iter().zip(priorities.values).collect();
    match priorities.largest_wins {
        true => entries.sort_by_key(|(_, priority)| std::cmp::Reverse(*priority)),
        false => entries.sort_by_key(|(_, priority)| *priority),
    }
    entries
}

/// Priorities of entries in the order of the program: those that are written, and others by steps of
/// `priority_delta`.
fn entry_priorities<'p>(
    builder: &InfoBuilder<'_, 'p>,
    list: &EntryList<'p>,
    properties: &'p [TableProperty],
) -> EntryPriorities {
    let count = i32::try_from(list.entries.len()).unwrap_or(i32::MAX);
    if list.is_constant {
        return EntryPriorities { values: (1..=count).rev().collect(), largest_wins: true };
    }
    let constants = builder.constants(list.scope);
    let index = builder.elaboration.index;
    let largest_wins = value_property(properties, "largest_priority_wins")
        .is_none_or(|(_, value)| index.evaluate(value, constants) != Some(ConstantValue::Boolean(false)));
    let number =
        |value: &ExpressionTree| index.number(value, constants).and_then(|number| i32::try_from(number).ok());
    let delta = value_property(properties, "priority_delta").and_then(|(_, value)| number(value));
    let delta = delta.unwrap_or(1);
    let step = if largest_wins { delta.saturating_neg() } else { delta };
    let has_priority = list.entries.iter().any(|entry| entry.priority.is_some());
    let mut next = match has_priority || !largest_wins {
        true => 1,
        false => (count - 1).saturating_mul(delta).saturating_add(1),
    };
    let mut priority = |entry: &TableEntry| {
        let priority = entry.priority.as_ref().and_then(number).unwrap_or(next);
        next = priority.saturating_add(step);
        priority
    };
    EntryPriorities { values: list.entries.iter().map(&mut priority).collect(), largest_wins }
}

fn entry_update<'p>(
    builder: &InfoBuilder<'_, 'p>,
    list: &EntryList<'p>,
    entry: &'p TableEntry,
    priority: i32,
) -> Result<Update, InfoError> {
    let parts = match &entry.keyset.kind {
        ExpressionKind::KeysetTuple(parts) | ExpressionKind::List(parts) => parts.iter().collect(),
        _ => vec![&entry.keyset],
    };
    let mut matches = Vec::new();
    for (part, field) in parts.into_iter().zip(&list.fields) {
        if let Some(field) = field
            && let Some(value) = match_value(builder, list.scope, part, field)?
        {
            matches.push(FieldMatch { field_id: field.id, field_match_type: Some(value) });
        }
    }
    let described = v1::TableEntry {
        table_id: list.table_id,
        r#match: matches,
        action: Some(entry_action(builder, list.scope, &entry.action)?),
        priority,
        is_const: list.is_constant || entry.is_constant,
        ..v1::TableEntry::default()
    };
    let entity = v1::Entity { entity: Some(entity::Entity::TableEntry(described)) };
    Ok(Update { r#type: update::Type::Insert.into(), entity: Some(entity) })
}

fn entry_action<'p>(
    builder: &InfoBuilder<'_, 'p>,
    scope: Option<ScopeId>,
    call: &'p ExpressionTree,
) -> Result<TableAction, InfoError> {
    let index = builder.elaboration.index;
    let named = called_action(call).and_then(|(name, arguments)| {
        Some((builder.elaboration.arena.find_action(index, scope, name)?, arguments))
    });
    let (placed, arguments) = named.ok_or_else(|| index.unsupported(call.span, "this action"))?;
    let arguments = tables::default_arguments(builder, scope, placed, (arguments, call.span))?;
    let params = arguments
        .into_iter()
        .map(|argument| action::Param { param_id: argument.param_id, value: argument.value });
    let action = Action { action_id: builder.action_id(placed), params: params.collect() };
    Ok(TableAction { r#type: Some(table_action::Type::Action(action)) })
}

/// Value of an element of a key; sets of all values have none.
fn match_value<'p>(
    builder: &InfoBuilder<'_, 'p>,
    scope: Option<ScopeId>,
    part: &'p ExpressionTree,
    field: &MatchField,
) -> Result<Option<field_match::FieldMatchType>, InfoError> {
    use field_match::FieldMatchType;
    use match_field::MatchType;
    let width = field.bitwidth.unsigned_abs();
    let all_ones = (BigInt::from(1) << width) - 1;
    let number = |value: &'p ExpressionTree| {
        let value = entry_number(builder, scope, value);
        value.map(|value| value & &all_ones)
    };
    let bytes = |value: &BigInt| padded_bytes(value, width);
    if let Some(ConstantValue::ErrorCode(name)) =
        builder.elaboration.index.evaluate(part, builder.constants(scope))
    {
        return error_value(builder, &name, field, part).map(Some);
    }
    let (low, high, mask) = match &part.kind {
        ExpressionKind::Anything | ExpressionKind::Default => return Ok(None),
        ExpressionKind::Binary(BinaryOperator::Mask, value, mask) => {
            let (value, mask) = (number(value)?, number(mask)?);
            (&value & &mask, value, mask)
        }
        ExpressionKind::Binary(BinaryOperator::Range, low, high) => {
            (number(low)?, number(high)?, all_ones.clone())
        }
        _ => {
            let value = number(part)?;
            (value.clone(), value, all_ones.clone())
        }
    };
    Ok(Some(match match_kind(field) {
        Some(MatchType::Exact) => FieldMatchType::Exact(field_match::Exact { value: bytes(&low) }),
        Some(MatchType::Optional) => FieldMatchType::Optional(field_match::Optional { value: bytes(&low) }),
        Some(MatchType::Lpm | MatchType::Ternary) if mask == BigInt::ZERO => return Ok(None),
        Some(MatchType::Lpm) => {
            let prefix_len = (mask.bits() - mask.trailing_zeros().unwrap_or(0)) as i32;
            FieldMatchType::Lpm(field_match::Lpm { value: bytes(&low), prefix_len })
        }
        Some(MatchType::Ternary) => {
            FieldMatchType::Ternary(field_match::Ternary { value: bytes(&low), mask: bytes(&mask) })
        }
        Some(MatchType::Range) if low == BigInt::ZERO && high == all_ones => return Ok(None),
        Some(MatchType::Range) => {
            FieldMatchType::Range(field_match::Range { low: bytes(&low), high: bytes(&high) })
        }
        Some(MatchType::Unspecified) | None => {
            return Err(builder.elaboration.index.unsupported(part.span, "an entry of this match kind"));
        }
    }))
}

/// Value of an element of a key that is an error: its name.
fn error_value(
    builder: &InfoBuilder<'_, '_>,
    name: &str,
    field: &MatchField,
    part: &ExpressionTree,
) -> Result<field_match::FieldMatchType, InfoError> {
    let value = name.as_bytes().to_vec();
    match match_kind(field) {
        Some(match_field::MatchType::Exact) => {
            Ok(field_match::FieldMatchType::Exact(field_match::Exact { value }))
        }
        Some(match_field::MatchType::Optional) => {
            Ok(field_match::FieldMatchType::Optional(field_match::Optional { value }))
        }
        _ => Err(builder.elaboration.index.unsupported(part.span, "an error in an entry with masks")),
    }
}

fn entry_number(
    builder: &InfoBuilder<'_, '_>,
    scope: Option<ScopeId>,
    value: &ExpressionTree,
) -> Result<BigInt, InfoError> {
    let index = builder.elaboration.index;
    let number = match index.evaluate(value, builder.constants(scope)) {
        Some(ConstantValue::Boolean(value)) => Some(BigInt::from(u8::from(value))),
        Some(ConstantValue::Number(number)) => Some(number),
        Some(member) => index.member_number(&member),
        None => None,
    };
    number.ok_or_else(|| index.unsupported(value.span, "this value of an entry"))
}

fn match_kind(field: &MatchField) -> Option<match_field::MatchType> {
    match &field.r#match {
        Some(match_field::Match::MatchType(kind)) => match_field::MatchType::try_from(*kind).ok(),
        _ => None,
    }
}
