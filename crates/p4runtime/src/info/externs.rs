//! Counters, meters, registers, action profiles and digests. Source: P4Runtime specification 1.4, sections
//! 6.4.3 to 6.4.9.

use millstream_p4::ast::{AnnotationTree, DeclarationKind, MethodSyntax, TableProperty};
use millstream_p4::expression::{CallArgument, ExpressionKind, ExpressionTree, TypeSyntax, TypeSyntaxKind};
use millstream_p4::{ConstantValue, SourceSpan};

use crate::info::InfoError;
use crate::info::annotations::{self, find_annotation, name_annotation, number, text};
use crate::info::architecture::{ExternKind, counter_unit, meter_unit};
use crate::info::builder::InfoBuilder;
use crate::info::data_types::DataType;
use crate::info::program::type_name;
use crate::info::scope::{PlacedDeclaration, ScopeId};
use crate::info::symbols::ObjectKind;
use crate::info::table_syntax::{ordered_arguments, value_property};
use crate::proto::config::v1::{
    ActionProfile, Counter, CounterSpec, Digest, DirectCounter, DirectMeter, Meter, MeterSpec, P4NamedType,
    Register, action_profile,
};

/// Annotations of action profiles that have fields of their own.
const PROFILE_ANNOTATIONS: [&str; 3] = ["max_group_size", "selector_size_semantics", "max_member_weight"];

/// An instance of an extern.
pub(crate) struct ExternObject<'p> {
    pub(crate) name: String,
    pub(crate) kind: ExternKind,
    pub(crate) annotations: &'p [AnnotationTree],
    type_arguments: &'p [TypeSyntax],
    /// Values of the constructor's parameters.
    parameters: Vec<(&'p str, &'p ExpressionTree)>,
    scope: Option<ScopeId>,
    span: SourceSpan,
    /// A table's property makes it.
    pub(crate) is_in_place: bool,
}

impl ExternObject<'_> {
    /// Kind of its id.
    pub(crate) fn object_kind(&self) -> ObjectKind {
        match self.kind {
            ExternKind::Counter => ObjectKind::Counter,
            ExternKind::DirectCounter => ObjectKind::DirectCounter,
            ExternKind::Meter => ObjectKind::Meter,
            ExternKind::DirectMeter => ObjectKind::DirectMeter,
            ExternKind::Register => ObjectKind::Register,
            ExternKind::ActionProfile | ExternKind::ActionSelector => ObjectKind::ActionProfile,
            ExternKind::Digest => ObjectKind::Digest,
        }
    }
}

/// Finds what an instance is, if controllers see it.
pub(crate) fn extern_object<'p>(
    builder: &InfoBuilder<'_, 'p>,
    placed: PlacedDeclaration<'p>,
) -> Option<ExternObject<'p>> {
    let DeclarationKind::Instance(instance) = &placed.declaration.kind else { return None };
    let kind = builder.architecture.extern_kind(type_name(&instance.object_type)?)?;
    Some(ExternObject {
        name: builder.elaboration.arena.plane_name(placed),
        kind,
        annotations: &placed.declaration.annotations,
        type_arguments: specialized(&instance.object_type),
        parameters: parameter_values(builder, &instance.object_type, &instance.arguments),
        scope: placed.scope,
        span: placed.declaration.span,
        is_in_place: false,
    })
}

/// Finds the object that a table's property names or makes.
///
/// # Errors
/// If the property makes an object without a name, or its value is no such object.
pub(crate) fn property_object<'p>(
    builder: &InfoBuilder<'_, 'p>,
    scope: Option<ScopeId>,
    properties: &'p [TableProperty],
    kind: ExternKind,
) -> Result<Option<ExternObject<'p>>, InfoError> {
    let elaboration = builder.elaboration;
    let Some(name) = builder.architecture.table_property(kind) else { return Ok(None) };
    let Some((property, value)) = value_property(properties, name) else { return Ok(None) };
    let made = match &value.kind {
        ExpressionKind::Construct(target, arguments) => Some((&**target, &arguments[..])),
        _ => None,
    };
    let object = match (&value.kind, made) {
        (ExpressionKind::Name(given), _) => {
            let placed = elaboration.arena.find(elaboration.index, scope, given);
            placed.and_then(|placed| extern_object(builder, placed))
        }
        (_, Some((target, arguments))) => {
            object_in_place(builder, scope, (target, arguments, value.span), &property.annotations)?
        }
        _ => None,
    };
    let is_right = |found: ExternKind| {
        found == kind || kind == ExternKind::ActionProfile && found == ExternKind::ActionSelector
    };
    match object.filter(|object| is_right(object.kind)) {
        Some(object) => Ok(Some(object)),
        None => Err(elaboration.index.unsupported(value.span, format!("this value of `{name}`"))),
    }
}

fn object_in_place<'p>(
    builder: &InfoBuilder<'_, 'p>,
    scope: Option<ScopeId>,
    (target, arguments, span): (&'p TypeSyntax, &'p [CallArgument], SourceSpan),
    annotations: &'p [AnnotationTree],
) -> Result<Option<ExternObject<'p>>, InfoError> {
    let kind = type_name(target).and_then(|name| builder.architecture.extern_kind(name));
    let Some(kind) = kind else { return Ok(None) };
    if name_annotation(annotations).is_none() {
        return Err(builder.elaboration.index.unsupported(span, "an object of a property without `@name`"));
    }
    let is_profile = matches!(kind, ExternKind::ActionProfile | ExternKind::ActionSelector);
    Ok(Some(ExternObject {
        name: builder.elaboration.arena.joined_name(None, annotations, ""),
        kind,
        annotations: if is_profile { annotations } else { &[] },
        type_arguments: specialized(target),
        parameters: parameter_values(builder, target, arguments),
        scope,
        span,
        is_in_place: true,
    }))
}

/// Values of a constructor's parameters by name.
fn parameter_values<'p>(
    builder: &InfoBuilder<'_, 'p>,
    target: &'p TypeSyntax,
    arguments: &'p [CallArgument],
) -> Vec<(&'p str, &'p ExpressionTree)> {
    let declaration = type_name(target).and_then(|name| builder.elaboration.index.find(name));
    let Some(DeclarationKind::Extern(syntax)) = declaration.map(|d| &d.kind) else { return Vec::new() };
    let constructors = || syntax.methods.iter().filter(|method| method.signature.result.is_none());
    let fits = |method: &&'p MethodSyntax| method.signature.parameters.len() == arguments.len();
    let Some(constructor) = constructors().find(fits).or_else(|| constructors().next()) else {
        return Vec::new();
    };
    let parameters = &constructor.signature.parameters;
    let values = parameters.iter().zip(ordered_arguments(parameters, arguments));
    values.filter_map(|(parameter, value)| Some((&*parameter.name.text, value?))).collect()
}

fn parameter<'p>(
    builder: &InfoBuilder<'_, 'p>,
    object: &ExternObject<'p>,
    name: &str,
) -> Option<ConstantValue> {
    let (_, value) = object.parameters.iter().find(|(parameter, _)| *parameter == name)?;
    builder.elaboration.index.evaluate(value, builder.constants(object.scope))
}

fn size<'p>(builder: &InfoBuilder<'_, 'p>, object: &ExternObject<'p>) -> Result<i64, InfoError> {
    let names = ["size", "n_counters", "n_meters"];
    let value = object.parameters.iter().find(|(parameter, _)| names.contains(parameter));
    let number =
        value.and_then(|(_, value)| builder.elaboration.index.number(value, builder.constants(object.scope)));
    let size = number.and_then(|number| i64::try_from(number).ok());
    let limit = |size: &i64| i32::try_from(*size).is_ok();
    let error = || builder.elaboration.index.unsupported(object.span, "the size of this object");
    size.filter(limit).ok_or_else(error)
}

/// Member of the enumeration of units that an object has.
fn unit<'p>(builder: &InfoBuilder<'_, 'p>, object: &ExternObject<'p>) -> String {
    match parameter(builder, object, "type") {
        Some(ConstantValue::Member(_, name)) => name.to_string(),
        _ => String::new(),
    }
}

fn index_type<'p>(
    builder: &mut InfoBuilder<'_, 'p>,
    object: &ExternObject<'p>,
) -> Result<Option<P4NamedType>, InfoError> {
    let argument = builder.architecture.index_argument(object.kind);
    let Some(syntax) = argument.and_then(|at| object.type_arguments.get(at)) else { return Ok(None) };
    let data_type = builder.written_type(syntax, object.scope);
    builder.types.describe(&data_type, object.span)?;
    Ok(builder.types.new_type_name(&data_type))
}

/// Describes an instance that is no part of a table.
pub(crate) fn extern_instance<'p>(
    builder: &mut InfoBuilder<'_, 'p>,
    placed: PlacedDeclaration<'p>,
) -> Result<(), InfoError> {
    builder.types.info();
    let Some(object) = extern_object(builder, placed) else { return Ok(()) };
    let kind = object.object_kind();
    match object.kind {
        ExternKind::DirectCounter | ExternKind::DirectMeter => {}
        ExternKind::ActionProfile | ExternKind::ActionSelector => action_profile(builder, &object)?,
        ExternKind::Counter => {
            let unit = counter_unit(&unit(builder, &object)).into();
            let counter = Counter {
                preamble: Some(builder.preamble(kind, &object.name, object.annotations, &[])?),
                spec: Some(CounterSpec { unit }),
                size: size(builder, &object)?,
                index_type_name: index_type(builder, &object)?,
            };
            builder.info.counters.push(counter);
        }
        ExternKind::Meter => {
            let unit = meter_unit(&unit(builder, &object)).into();
            let meter = Meter {
                preamble: Some(builder.preamble(kind, &object.name, object.annotations, &[])?),
                spec: Some(MeterSpec { unit, r#type: 0 }),
                size: size(builder, &object)?,
                index_type_name: index_type(builder, &object)?,
            };
            builder.info.meters.push(meter);
        }
        ExternKind::Register => register(builder, &object)?,
        ExternKind::Digest => digest(builder, &object)?,
    }
    Ok(())
}

fn first_type<'p>(builder: &mut InfoBuilder<'_, 'p>, object: &ExternObject<'p>) -> DataType {
    let first = object.type_arguments.first();
    first.map_or(DataType::Unknown, |syntax| builder.written_type(syntax, object.scope))
}

fn register<'p>(builder: &mut InfoBuilder<'_, 'p>, object: &ExternObject<'p>) -> Result<(), InfoError> {
    let data_type = first_type(builder, object);
    let register = Register {
        preamble: Some(builder.preamble(ObjectKind::Register, &object.name, object.annotations, &[])?),
        type_spec: Some(builder.types.describe(&data_type, object.span)?),
        size: size(builder, object)? as i32,
        index_type_name: index_type(builder, object)?,
    };
    builder.info.registers.push(register);
    Ok(())
}

fn digest<'p>(builder: &mut InfoBuilder<'_, 'p>, object: &ExternObject<'p>) -> Result<(), InfoError> {
    let data_type = first_type(builder, object);
    let digest = Digest {
        preamble: Some(builder.preamble(ObjectKind::Digest, &object.name, object.annotations, &[])?),
        type_spec: Some(builder.types.describe(&data_type, object.span)?),
    };
    builder.info.digests.push(digest);
    Ok(())
}

/// Describes the direct counter or meter of a table, and returns its id.
pub(crate) fn direct_object<'p>(
    builder: &mut InfoBuilder<'_, 'p>,
    kind: ExternKind,
    object: &ExternObject<'p>,
    table: &str,
) -> Result<u32, InfoError> {
    let object_kind = object.object_kind();
    let preamble = Some(builder.preamble(object_kind, &object.name, object.annotations, &[])?);
    let direct_table_id = builder.symbols.id(ObjectKind::Table, table);
    let unit = unit(builder, object);
    match kind {
        ExternKind::DirectCounter => {
            let spec = Some(CounterSpec { unit: counter_unit(&unit).into() });
            builder.info.direct_counters.push(DirectCounter { preamble, spec, direct_table_id });
        }
        _ => {
            let spec = Some(MeterSpec { unit: meter_unit(&unit).into(), r#type: 0 });
            builder.info.direct_meters.push(DirectMeter { preamble, spec, direct_table_id });
        }
    }
    Ok(builder.symbols.id(object_kind, &object.name))
}

/// Describes an action profile or selector.
pub(crate) fn action_profile<'p>(
    builder: &mut InfoBuilder<'_, 'p>,
    object: &ExternObject<'p>,
) -> Result<(), InfoError> {
    let kind = ObjectKind::ActionProfile;
    let preamble = builder.preamble(kind, &object.name, object.annotations, &PROFILE_ANNOTATIONS)?;
    let with_selector = object.kind == ExternKind::ActionSelector;
    let tables = builder.profile_tables.get(&object.name).into_iter().flatten();
    let mut profile = ActionProfile {
        preamble: Some(preamble),
        table_ids: tables.map(|name| builder.symbols.id(ObjectKind::Table, name)).collect(),
        with_selector,
        size: size(builder, object)?,
        ..ActionProfile::default()
    };
    if with_selector {
        let annotated = |name: &str| annotation_number(builder, object.annotations, name);
        profile.max_group_size = annotated("max_group_size")?.unwrap_or(0);
        let weight = annotated("max_member_weight")?;
        profile.selector_size_semantics = size_semantics(builder, object.annotations, weight)?;
    }
    builder.info.action_profiles.push(profile);
    Ok(())
}

fn annotation_number(
    builder: &InfoBuilder<'_, '_>,
    annotations: &[AnnotationTree],
    name: &str,
) -> Result<Option<i32>, InfoError> {
    let Some(annotation) = find_annotation(annotations, name) else { return Ok(None) };
    let value = number(annotation).and_then(|value| i32::try_from(value).ok());
    let error =
        || annotations::broken_annotation(builder.elaboration.index, annotation, "a number of 31 bits");
    value.map(Some).ok_or_else(error)
}

fn size_semantics(
    builder: &InfoBuilder<'_, '_>,
    annotations: &[AnnotationTree],
    max_member_weight: Option<i32>,
) -> Result<Option<action_profile::SelectorSizeSemantics>, InfoError> {
    use action_profile::{SelectorSizeSemantics, SumOfMembers, SumOfWeights};
    let Some(annotation) = find_annotation(annotations, "selector_size_semantics") else {
        return Ok(None);
    };
    match text(annotation).map(|text| text.to_ascii_lowercase()).as_deref() {
        Some("sum_of_weights") => Ok(Some(SelectorSizeSemantics::SumOfWeights(SumOfWeights {}))),
        Some("sum_of_members") => {
            let max_member_weight = max_member_weight.unwrap_or(0);
            Ok(Some(SelectorSizeSemantics::SumOfMembers(SumOfMembers { max_member_weight })))
        }
        _ => {
            let expected = "\"sum_of_weights\" or \"sum_of_members\"";
            Err(annotations::broken_annotation(builder.elaboration.index, annotation, expected))
        }
    }
}

fn specialized(target: &TypeSyntax) -> &[TypeSyntax] {
    match &target.kind {
        TypeSyntaxKind::Specialized(_, arguments) => arguments,
        _ => &[],
    }
}
