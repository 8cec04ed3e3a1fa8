//! Value sets, and headers between controllers and targets. Source: P4Runtime specification 1.4, sections
//! 6.4.7 and 6.4.8.

use millstream_p4::ast::{
    AggregateKind, AnnotationBody, AnnotationTree, DeclarationKind, DeclarationTree, FieldSyntax,
};
use millstream_p4::{ConstantValue, NominalKind};

use crate::info::InfoError;
use crate::info::annotations::{self, field_ids, find_annotation, is_hidden, name_annotation, text};
use crate::info::builder::InfoBuilder;
use crate::info::data_types::{DataType, TypeArguments};
use crate::info::scope::PlacedDeclaration;
use crate::info::symbols::ObjectKind;
use crate::info::type_specs::HeaderField;
use crate::proto::config::v1::{
    ControllerPacketMetadata, MatchField, ValueSet, controller_packet_metadata, match_field,
};

/// Annotation of headers between controllers and targets.
const CONTROLLER_HEADER: &str = "controller_header";

/// Describes a value set.
pub(crate) fn value_set<'p>(
    builder: &mut InfoBuilder<'_, 'p>,
    placed: PlacedDeclaration<'p>,
) -> Result<(), InfoError> {
    let DeclarationKind::ValueSet(element, size) = &placed.declaration.kind else { return Ok(()) };
    let name = builder.elaboration.arena.plane_name(placed);
    let annotations = &placed.declaration.annotations;
    let preamble = Some(builder.preamble(ObjectKind::ValueSet, &name, annotations, &[])?);
    let number = builder.elaboration.index.number(size, builder.constants(placed.scope));
    let error = || builder.elaboration.index.unsupported(size.span, "this size of a value set");
    let size = number.and_then(|size| i32::try_from(size).ok()).ok_or_else(error)?;
    let data_type = builder.written_type(element, placed.scope);
    let unsupported = || builder.elaboration.index.unsupported(element.span, "a value set of this type");
    let r#match = match &data_type {
        DataType::Bits(width) | DataType::SignedBits(width) => vec![exact_field(1, "", *width)],
        DataType::Nominal(id, _) => {
            let declaration = builder.elaboration.index.nominal_declaration(*id);
            match (declaration.map(|d| &d.kind), &builder.elaboration.index.program.types.nominal(*id).kind) {
                (Some(DeclarationKind::Aggregate(syntax)), _) if syntax.kind == AggregateKind::Struct => {
                    set_fields(builder, &syntax.fields, placed)?
                }
                (_, NominalKind::Enumeration(Some(underlying), members)) => {
                    let index = builder.elaboration.index;
                    let underlying = index.found_type(*underlying, &TypeArguments::default());
                    let width = index.width(&underlying).ok_or_else(unsupported)?;
                    member_fields(members, width)
                }
                _ => return Err(unsupported()),
            }
        }
        _ => return Err(unsupported()),
    };
    builder.info.value_sets.push(ValueSet { preamble, r#match, size });
    Ok(())
}

/// Fields of a struct that is the element of a value set.
fn set_fields<'p>(
    builder: &InfoBuilder<'_, 'p>,
    fields: &[FieldSyntax],
    placed: PlacedDeclaration<'p>,
) -> Result<Vec<MatchField>, InfoError> {
    let index = builder.elaboration.index;
    let given =
        fields.iter().map(|f| Ok((&*f.name.text, annotations::id_annotation(index, &f.annotations)?)));
    let ids = field_ids(&given.collect::<Result<Vec<_>, InfoError>>()?)?;
    let describe = |(field, id): (&FieldSyntax, u32)| {
        let (DataType::Bits(width) | DataType::SignedBits(width)) =
            builder.written_type(&field.declared_type, placed.scope)
        else {
            let span = field.declared_type.span;
            return Err(index.unsupported(span, "a field of this type in a value set"));
        };
        let given = name_annotation(&field.annotations);
        let name = given.as_deref().unwrap_or(&field.name.text);
        let lists = annotations::annotation_lists(index, &field.annotations, &["match"])?;
        Ok(MatchField {
            annotations: lists.annotations,
            structured_annotations: lists.structured,
            doc: annotations::documentation(index, &field.annotations)?,
            r#match: Some(annotated_match(builder, &field.annotations)?),
            ..exact_field(id, name, width)
        })
    };
    fields.iter().zip(ids).map(describe).collect()
}

/// Match type that `@match(KIND)` gives; it is exact without.
fn annotated_match(
    builder: &InfoBuilder<'_, '_>,
    annotations: &[AnnotationTree],
) -> Result<match_field::Match, InfoError> {
    let Some(annotation) = find_annotation(annotations, "match") else { return Ok(exact()) };
    let word = match &annotation.body {
        AnnotationBody::Unstructured(tokens) => tokens.first().map(|token| token.word_or_mark()),
        _ => None,
    };
    let kind = word.filter(|word| !word.is_empty()).and_then(crate::info::tables::match_type);
    kind.ok_or_else(|| annotations::broken_annotation(builder.elaboration.index, annotation, "a match kind"))
}

/// Headers between controllers and the target.
pub(crate) fn controller_headers<'p>(builder: &InfoBuilder<'_, 'p>) -> Vec<&'p DeclarationTree> {
    let is_header = |declaration: &&DeclarationTree| match &declaration.kind {
        DeclarationKind::Aggregate(syntax) => syntax.kind == AggregateKind::Header,
        _ => false,
    };
    let headers = builder.elaboration.index.program.declarations.iter().filter(is_header);
    headers.filter(|header| find_annotation(&header.annotations, CONTROLLER_HEADER).is_some()).collect()
}

/// Describes a header between controllers and the target; its name is that of the annotation.
pub(crate) fn controller_header<'p>(
    builder: &mut InfoBuilder<'_, 'p>,
    header: &'p DeclarationTree,
) -> Result<(), InfoError> {
    let index = builder.elaboration.index;
    let annotation = find_annotation(&header.annotations, CONTROLLER_HEADER);
    let Some(annotation) = annotation.filter(|_| !is_hidden(&header.annotations)) else { return Ok(()) };
    let given =
        text(annotation).ok_or_else(|| annotations::broken_annotation(index, annotation, "a string"))?;
    let Some(nominal) = index.nominal(&header.name.text) else { return Ok(()) };
    let symbol = builder.types.type_name(nominal, &[]);
    let mut preamble = builder.preamble(ObjectKind::ControllerHeader, &symbol, &header.annotations, &[])?;
    preamble.name.clone_from(&given);
    preamble.alias = given;
    let fields = builder.types.header_fields(nominal, &[]);
    let id_of = |field: &HeaderField<'p>| {
        let annotation = field.annotations.iter().find(|a| &*a.name.text == "id");
        annotation.map_or(Ok(None), |a| annotations::id_annotation(index, std::slice::from_ref(*a)))
    };
    let given = fields.iter().map(|field| Ok((&*field.name, id_of(field)?)));
    let ids = field_ids(&given.collect::<Result<Vec<_>, InfoError>>()?)?;
    let mut metadata = Vec::new();
    for (field, id) in fields.iter().zip(ids) {
        if field.annotations.iter().any(|a| &*a.name.text == "hidden") {
            continue;
        }
        builder.types.info();
        builder.types.describe(&field.data_type, header.span)?;
        let error = || index.unsupported(header.span, format!("the field `{}`", field.name));
        let own: Vec<AnnotationTree> = field.annotations.iter().map(|a| (*a).clone()).collect();
        let lists = annotations::annotation_lists(index, &own, &[])?;
        metadata.push(controller_packet_metadata::Metadata {
            id,
            name: field.name.clone(),
            annotations: lists.annotations,
            annotation_locations: Vec::new(),
            bitwidth: builder.types.plane_width(&field.data_type).ok_or_else(error)? as i32,
            type_name: builder.types.new_type_name(&field.data_type),
            structured_annotations: lists.structured,
        });
    }
    let described = ControllerPacketMetadata { preamble: Some(preamble), metadata };
    builder.info.controller_packet_metadata.push(described);
    Ok(())
}

fn exact() -> match_field::Match {
    match_field::Match::MatchType(match_field::MatchType::Exact.into())
}

fn exact_field(id: u32, name: &str, width: u32) -> MatchField {
    MatchField {
        id,
        name: name.into(),
        bitwidth: width as i32,
        r#match: Some(exact()),
        ..MatchField::default()
    }
}

fn member_fields(members: &[(millstream_p4::Symbol, Option<ConstantValue>)], width: u32) -> Vec<MatchField> {
    (1..).zip(members).map(|(id, (name, _))| exact_field(id, name, width)).collect()
}
