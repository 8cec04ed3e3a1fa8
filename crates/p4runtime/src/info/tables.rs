//! Tables. Source: P4Runtime specification 1.4, section 6.4.1.

use millstream_p4::ast::{DeclarationKind, ParameterSyntax, TableKey, TableProperty, TablePropertyValue};
use millstream_p4::expression::{CallArgument, ExpressionKind, ExpressionTree};
use millstream_p4::{ConstantValue, SourceSpan};
use num_bigint::BigInt;

use crate::info::annotations::{field_ids, find_annotation, is_hidden, name_annotation};
use crate::info::architecture::ExternKind;
use crate::info::builder::InfoBuilder;
use crate::info::data_types::{DataType, TypeArguments};
use crate::info::scope::{PlacedDeclaration, ScopeId};
use crate::info::symbols::ObjectKind;
use crate::info::table_syntax::{
    action_references, called_action, default_action, entry_parameters, table_keys, value_property,
};
use crate::info::type_specs::padded_bytes;
use crate::info::{InfoError, annotations, externs, key_names};
use crate::proto::config::v1::{
    ActionRef, MatchField, Table, TableActionCall, action_ref, match_field, table, table_action_call,
};

/// Number of entries of a table that gives none.
const DEFAULT_SIZE: i64 = 1024;

/// Match type of a match kind; selectors are no part of P4Info.
pub(crate) fn match_type(kind: &str) -> Option<match_field::Match> {
    use match_field::MatchType;
    let standard = match kind {
        "selector" => return None,
        "exact" => MatchType::Exact,
        "lpm" => MatchType::Lpm,
        "ternary" => MatchType::Ternary,
        "range" => MatchType::Range,
        "optional" => MatchType::Optional,
        other => return Some(match_field::Match::OtherMatchType(other.into())),
    };
    Some(match_field::Match::MatchType(standard.into()))
}

/// Describes a table, and the objects that only it has.
pub(crate) fn table<'p>(
    builder: &mut InfoBuilder<'_, 'p>,
    placed: PlacedDeclaration<'p>,
) -> Result<(), InfoError> {
    let declaration = placed.declaration;
    let DeclarationKind::Table(properties) = &declaration.kind else { return Ok(()) };
    if is_hidden(&declaration.annotations) {
        return Ok(());
    }
    builder.types.info();
    let name = builder.elaboration.arena.plane_name(placed);
    let preamble = builder.preamble(ObjectKind::Table, &name, &declaration.annotations, &[])?;
    let entries = properties.iter().find_map(|property| match &property.value {
        TablePropertyValue::Entries(entries) => Some((property.is_constant, entries)),
        _ => None,
    });
    let mut table = Table {
        match_fields: match_fields(builder, placed.scope, properties)?,
        action_refs: action_refs(builder, placed.scope, properties)?,
        size: table_size(builder, placed.scope, properties),
        is_const_table: entries.is_some_and(|(is_constant, _)| is_constant),
        has_initial_entries: entries.is_some_and(|(_, entries)| !entries.is_empty()),
        idle_timeout_behavior: idle_timeout(builder, placed.scope, properties).into(),
        preamble: Some(preamble),
        ..Table::default()
    };
    describe_default_action(builder, placed.scope, properties, &mut table)?;
    table_objects(builder, &name, placed, properties, &mut table)?;
    builder.info.tables.push(table);
    Ok(())
}

fn table_size(builder: &InfoBuilder<'_, '_>, scope: Option<ScopeId>, properties: &[TableProperty]) -> i64 {
    let map = builder.architecture.map_property().and_then(|name| value_property(properties, name));
    let map_size = match map.map(|(_, value)| &value.kind) {
        Some(ExpressionKind::Construct(_, arguments)) => arguments.first(),
        _ => None,
    };
    let size = value_property(properties, "size")
        .map(|(_, value)| value)
        .or(map_size.and_then(|argument| argument.value.as_ref()))
        .and_then(|value| builder.elaboration.index.number(value, builder.constants(scope)))
        .and_then(|size| i64::try_from(size).ok());
    size.filter(|size| *size != 0).unwrap_or(DEFAULT_SIZE)
}

fn idle_timeout(
    builder: &InfoBuilder<'_, '_>,
    scope: Option<ScopeId>,
    properties: &[TableProperty],
) -> table::IdleTimeoutBehavior {
    let value = builder
        .architecture
        .timeout_property()
        .and_then(|name| value_property(properties, name))
        .and_then(|(_, value)| builder.elaboration.index.evaluate(value, builder.constants(scope)));
    match value {
        Some(ConstantValue::Boolean(true)) => table::IdleTimeoutBehavior::NotifyControl,
        Some(ConstantValue::Member(_, name)) if &*name == "NOTIFY_CONTROL" => {
            table::IdleTimeoutBehavior::NotifyControl
        }
        _ => table::IdleTimeoutBehavior::NoTimeout,
    }
}

fn match_fields<'p>(
    builder: &mut InfoBuilder<'_, 'p>,
    scope: Option<ScopeId>,
    properties: &'p [TableProperty],
) -> Result<Vec<MatchField>, InfoError> {
    let fields = key_fields(builder, scope, &table_keys(properties))?;
    Ok(fields.into_iter().flatten().collect())
}

/// Describes the elements of a key; selectors are no part of P4Info.
pub(crate) fn key_fields<'p>(
    builder: &mut InfoBuilder<'_, 'p>,
    scope: Option<ScopeId>,
    keys: &[&'p TableKey],
) -> Result<Vec<Option<MatchField>>, InfoError> {
    let index = builder.elaboration.index;
    let given = keys
        .iter()
        .map(|key| Ok((&*key.match_kind.text, annotations::id_annotation(index, &key.annotations)?)));
    let ids = field_ids(&given.collect::<Result<Vec<_>, InfoError>>()?)?;
    let mut fields = Vec::new();
    for (key, id) in keys.iter().zip(ids) {
        fields.push(match match_type(&key.match_kind.text) {
            Some(kind) => Some(match_field(builder, scope, key, id, kind)?),
            None => None,
        });
    }
    Ok(fields)
}

fn match_field(
    builder: &mut InfoBuilder<'_, '_>,
    scope: Option<ScopeId>,
    key: &TableKey,
    id: u32,
    kind: match_field::Match,
) -> Result<MatchField, InfoError> {
    let index = builder.elaboration.index;
    let span = key.expression.span;
    let given = name_annotation(&key.annotations);
    let name = given.or_else(|| key_names::key_name(index, &key.expression));
    let name = name.ok_or_else(|| index.unsupported(span, "a key without a name"))?;
    let data_type = expression_type(builder, scope, &key.expression);
    let width = builder.types.plane_width(&data_type);
    let width = width.ok_or_else(|| index.unsupported(span, "a key of this type"))?;
    builder.types.describe(&data_type, span)?;
    let lists = annotations::annotation_lists(index, &key.annotations, &[])?;
    Ok(MatchField {
        id,
        name,
        annotations: lists.annotations,
        annotation_locations: Vec::new(),
        bitwidth: width as i32,
        doc: annotations::documentation(index, &key.annotations)?,
        type_name: builder.types.new_type_name(&data_type),
        structured_annotations: lists.structured,
        r#match: Some(kind),
    })
}

/// Type of an expression within an instance.
pub(crate) fn expression_type(
    builder: &InfoBuilder<'_, '_>,
    scope: Option<ScopeId>,
    expression: &ExpressionTree,
) -> DataType {
    let none = TypeArguments::default();
    let arguments = scope.map_or(&none, |scope| &builder.elaboration.arena.get(scope).type_arguments);
    let index = builder.elaboration.index;
    let found = index.program.facts.type_id(expression.id);
    found.map_or(DataType::Unknown, |id| index.found_type(id, arguments))
}

fn action_refs<'p>(
    builder: &InfoBuilder<'_, 'p>,
    scope: Option<ScopeId>,
    properties: &'p [TableProperty],
) -> Result<Vec<ActionRef>, InfoError> {
    let elaboration = builder.elaboration;
    let mut list = Vec::new();
    let mut listed = Vec::new();
    for reference in action_references(properties) {
        let Some(placed) = elaboration.arena.find_action(elaboration.index, scope, reference.name) else {
            continue;
        };
        let annotations = &reference.element.annotations;
        let has = |name: &str| find_annotation(annotations, name).is_some();
        let scope = match (has("tableonly"), has("defaultonly")) {
            (true, _) => action_ref::Scope::TableOnly,
            (_, true) => action_ref::Scope::DefaultOnly,
            _ => action_ref::Scope::TableAndDefault,
        };
        let lists = annotations::annotation_lists(elaboration.index, annotations, &[])?;
        listed.push(&*placed.declaration.name.text);
        list.push(ActionRef {
            id: builder.action_id(placed),
            scope: scope.into(),
            annotations: lists.annotations,
            annotation_locations: Vec::new(),
            structured_annotations: lists.structured,
        });
    }
    if let Some(implied) = elaboration.implied_no_action(scope, properties)
        && !listed.contains(&"NoAction")
    {
        list.push(ActionRef {
            id: builder.action_id(implied),
            scope: action_ref::Scope::DefaultOnly.into(),
            annotations: vec!["@defaultonly".into()],
            ..ActionRef::default()
        });
    }
    Ok(list)
}

fn describe_default_action<'p>(
    builder: &InfoBuilder<'_, 'p>,
    scope: Option<ScopeId>,
    properties: &'p [TableProperty],
    table: &mut Table,
) -> Result<(), InfoError> {
    let elaboration = builder.elaboration;
    let mut call = TableActionCall::default();
    match default_action(properties) {
        None => {
            let implied = elaboration.implied_no_action(scope, properties);
            call.action_id = implied.map_or(0, |placed| builder.action_id(placed));
        }
        Some((property, value)) => {
            let named = called_action(value).and_then(|(name, arguments)| {
                Some((elaboration.arena.find_action(elaboration.index, scope, name)?, arguments))
            });
            let Some((placed, arguments)) = named else { return Ok(()) };
            call.action_id = builder.action_id(placed);
            call.arguments = default_arguments(builder, scope, placed, (arguments, value.span))?;
            if property.is_constant {
                table.const_default_action_id = call.action_id;
            }
        }
    }
    table.initial_default_action = Some(call);
    Ok(())
}

pub(crate) fn default_arguments<'p>(
    builder: &InfoBuilder<'_, 'p>,
    scope: Option<ScopeId>,
    placed: PlacedDeclaration<'p>,
    (arguments, span): (&'p [CallArgument], SourceSpan),
) -> Result<Vec<table_action_call::Argument>, InfoError> {
    let DeclarationKind::Action(all, _) = &placed.declaration.kind else { return Ok(Vec::new()) };
    let parameters: Vec<&ParameterSyntax> = entry_parameters(all).collect();
    // Arguments for parameters with a direction are bound by the list of actions.
    let bound = if arguments.len() > parameters.len() { all.len() - parameters.len() } else { 0 };
    let index = builder.elaboration.index;
    let given =
        parameters.iter().map(|p| Ok((&*p.name.text, annotations::id_annotation(index, &p.annotations)?)));
    let ids = field_ids(&given.collect::<Result<Vec<_>, InfoError>>()?)?;
    let mut list = Vec::new();
    for (at, (parameter, id)) in parameters.into_iter().zip(ids).enumerate() {
        let named = arguments
            .iter()
            .find(|argument| argument.name.as_ref().is_some_and(|name| name.text == parameter.name.text));
        let positional = arguments.get(bound + at).filter(|argument| argument.name.is_none());
        let value = named.or(positional).and_then(|argument| argument.value.as_ref());
        let Some(value) = value.or(parameter.default.as_ref()) else { continue };
        let data_type = builder.written_type(&parameter.declared_type, placed.scope);
        let constant = index.evaluate(value, builder.constants(scope));
        let bytes = value_bytes(builder, constant, &data_type);
        let bytes = bytes.ok_or_else(|| index.unsupported(span, "this default action's argument"))?;
        list.push(table_action_call::Argument { param_id: id, value: bytes });
    }
    Ok(list)
}

/// Bytes of a value, in all bytes of its type.
fn value_bytes(
    builder: &InfoBuilder<'_, '_>,
    constant: Option<ConstantValue>,
    data_type: &DataType,
) -> Option<Vec<u8>> {
    let index = builder.elaboration.index;
    let width = builder.types.plane_width(data_type).filter(|width| *width > 0)?;
    let value = match constant? {
        ConstantValue::Boolean(value) => BigInt::from(u8::from(value)),
        ConstantValue::Number(value) => value,
        member => index.member_number(&member)?,
    };
    let modulus = BigInt::from(1) << width;
    Some(padded_bytes(&(((value % &modulus) + &modulus) % modulus), width))
}

/// Describes action profile, direct counter and direct meter of a table.
fn table_objects<'p>(
    builder: &mut InfoBuilder<'_, 'p>,
    name: &str,
    placed: PlacedDeclaration<'p>,
    properties: &'p [TableProperty],
    table: &mut Table,
) -> Result<(), InfoError> {
    let profile = externs::property_object(builder, placed.scope, properties, ExternKind::ActionProfile)?;
    if let Some(object) = profile {
        table.implementation_id = builder.symbols.id(ObjectKind::ActionProfile, &object.name);
        if object.is_in_place {
            externs::action_profile(builder, &object)?;
        }
    }
    for kind in [ExternKind::DirectCounter, ExternKind::DirectMeter] {
        if let Some(object) = externs::property_object(builder, placed.scope, properties, kind)? {
            table.direct_resource_ids.push(externs::direct_object(builder, kind, &object, name)?);
        }
    }
    Ok(())
}
