//! The whole of a program's P4Info: symbols first, then each object.

use std::collections::BTreeMap;

use millstream_p4::ast::{AnnotationBody, AnnotationTree, DeclarationKind, DeclarationTree, TableProperty};
use millstream_p4::expression::ExpressionTree;
use millstream_p4::{CompiledProgram, ConstantValue, SourceName, SourceToken, TokenKind};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::info::annotations::{self, find_annotation, parse_number};
use crate::info::architecture::{ExternKind, TargetArchitecture};
use crate::info::builder::InfoBuilder;
use crate::info::elaborate::{ProgramBlock, ProgramElaboration};
use crate::info::evaluate::NamedConstants;
use crate::info::program::ProgramIndex;
use crate::info::scope::{PlacedDeclaration, ScopeId};
use crate::info::symbols::{ObjectKind, SymbolTable};
use crate::info::type_specs::TypeDescriber;
use crate::info::{InfoError, actions, entries, externs, tables, value_sets};
use crate::proto::config::v1::{P4Info, PkgInfo, PlatformProperties, Preamble};
use crate::proto::v1::Update;

/// Annotations of the package that have fields of their own.
const PACKAGE_ANNOTATIONS: [&str; 2] = ["pkginfo", "platform_property"];

/// Makes the P4Info of a program, and the updates that write its entries.
pub(crate) fn build(
    program: &CompiledProgram,
    architecture: TargetArchitecture,
) -> Result<(P4Info, Vec<Update>), InfoError> {
    let index = ProgramIndex::new(program);
    let elaboration = ProgramElaboration::new(&index)?;
    let mut builder = InfoBuilder {
        elaboration: &elaboration,
        architecture,
        symbols: SymbolTable::default(),
        types: TypeDescriber { index: &index, info: None },
        info: P4Info::default(),
        described: FxHashSet::default(),
        unnamed_digests: FxHashMap::default(),
        profile_tables: BTreeMap::new(),
        no_constants: NamedConstants::default(),
    };
    collect(&mut builder)?;
    describe(&mut builder)?;
    check_names(&builder)?;
    let entries = entries::initial_entries(&mut builder)?;
    builder.info.type_info = builder.types.info.take();
    Ok((builder.info, entries))
}

/// Adds the names of all objects.
fn collect(builder: &mut InfoBuilder<'_, '_>) -> Result<(), InfoError> {
    let elaboration = builder.elaboration;
    for block in &elaboration.blocks {
        match *block {
            ProgramBlock::Parser(_) => {}
            ProgramBlock::Control(scope) => collect_control(builder, scope)?,
            ProgramBlock::Extern(placed) => {
                if let Some(object) = externs::extern_object(builder, placed) {
                    add(builder, object.object_kind(), &object.name, object.annotations)?;
                }
            }
            ProgramBlock::Table(placed) => collect_table(builder, placed)?,
            ProgramBlock::ValueSet(placed) => add_placed(builder, ObjectKind::ValueSet, placed)?,
        }
    }
    for header in value_sets::controller_headers(builder) {
        if let Some(nominal) = elaboration.index.nominal(&header.name.text) {
            let name = builder.types.type_name(nominal, &[]);
            add(builder, ObjectKind::ControllerHeader, &name, &header.annotations)?;
        }
    }
    builder.symbols.assign()
}

fn add(
    builder: &mut InfoBuilder<'_, '_>,
    kind: ObjectKind,
    name: &str,
    annotations: &[AnnotationTree],
) -> Result<(), InfoError> {
    let id = annotations::id_annotation(builder.elaboration.index, annotations)?;
    builder.symbols.add(kind, name, id)
}

fn add_placed<'p>(
    builder: &mut InfoBuilder<'_, 'p>,
    kind: ObjectKind,
    placed: PlacedDeclaration<'p>,
) -> Result<(), InfoError> {
    let name = builder.elaboration.arena.plane_name(placed);
    add(builder, kind, &name, &placed.declaration.annotations)
}

fn collect_control(builder: &mut InfoBuilder<'_, '_>, scope: ScopeId) -> Result<(), InfoError> {
    for action in builder.elaboration.actions(scope) {
        add_placed(builder, ObjectKind::Action, action.placed)?;
    }
    if builder.architecture == TargetArchitecture::V1Model {
        for call in builder.elaboration.digest_calls(scope).digests {
            let (_, name) = actions::digest_type(builder, call);
            builder.symbols.add(ObjectKind::Digest, &name, None)?;
        }
    }
    Ok(())
}

fn collect_table<'p>(
    builder: &mut InfoBuilder<'_, 'p>,
    placed: PlacedDeclaration<'p>,
) -> Result<(), InfoError> {
    add_placed(builder, ObjectKind::Table, placed)?;
    let DeclarationKind::Table(properties) = &placed.declaration.kind else { return Ok(()) };
    let kinds = [ExternKind::ActionProfile, ExternKind::DirectCounter, ExternKind::DirectMeter];
    for kind in kinds {
        collect_property(builder, placed, properties, kind)?;
    }
    Ok(())
}

fn collect_property<'p>(
    builder: &mut InfoBuilder<'_, 'p>,
    placed: PlacedDeclaration<'p>,
    properties: &'p [TableProperty],
    kind: ExternKind,
) -> Result<(), InfoError> {
    let Some(object) = externs::property_object(builder, placed.scope, properties, kind)? else {
        return Ok(());
    };
    if object.is_in_place {
        builder.symbols.add(object.object_kind(), &object.name, None)?;
    }
    if kind == ExternKind::ActionProfile {
        let table = builder.elaboration.arena.plane_name(placed);
        builder.profile_tables.entry(object.name).or_default().insert(table);
    }
    Ok(())
}

fn describe(builder: &mut InfoBuilder<'_, '_>) -> Result<(), InfoError> {
    let elaboration = builder.elaboration;
    for block in &elaboration.blocks {
        match *block {
            ProgramBlock::Parser(_) => {}
            ProgramBlock::Control(scope) => describe_control(builder, scope)?,
            ProgramBlock::Extern(placed) => externs::extern_instance(builder, placed)?,
            ProgramBlock::Table(placed) => tables::table(builder, placed)?,
            ProgramBlock::ValueSet(placed) => value_sets::value_set(builder, placed)?,
        }
    }
    for header in value_sets::controller_headers(builder) {
        value_sets::controller_header(builder, header)?;
    }
    if let Some(main) = elaboration.index.find("main") {
        builder.info.pkg_info = Some(package_info(builder, main)?);
    }
    Ok(())
}

fn describe_control(builder: &mut InfoBuilder<'_, '_>, scope: ScopeId) -> Result<(), InfoError> {
    for action in builder.elaboration.actions(scope) {
        actions::action(builder, &action)?;
    }
    if builder.architecture == TargetArchitecture::V1Model {
        let calls = builder.elaboration.digest_calls(scope);
        if calls.has_extern_call {
            builder.types.info();
        }
        for call in calls.digests {
            actions::digest_call(builder, call)?;
        }
    }
    Ok(())
}

/// Checks that no two objects of a kind have the same name.
fn check_names(builder: &InfoBuilder<'_, '_>) -> Result<(), InfoError> {
    fn distinct<'m>(preambles: impl Iterator<Item = &'m Option<Preamble>>) -> Result<(), InfoError> {
        let mut names = FxHashSet::default();
        for preamble in preambles.flatten() {
            if !names.insert(&preamble.name) {
                return Err(InfoError::DuplicateName { name: preamble.name.clone() });
            }
        }
        Ok(())
    }
    let info = &builder.info;
    distinct(info.tables.iter().map(|object| &object.preamble))?;
    distinct(info.actions.iter().map(|object| &object.preamble))?;
    distinct(info.action_profiles.iter().map(|object| &object.preamble))?;
    distinct(info.counters.iter().map(|object| &object.preamble))?;
    distinct(info.direct_counters.iter().map(|object| &object.preamble))?;
    distinct(info.meters.iter().map(|object| &object.preamble))?;
    distinct(info.direct_meters.iter().map(|object| &object.preamble))?;
    distinct(info.controller_packet_metadata.iter().map(|object| &object.preamble))?;
    distinct(info.value_sets.iter().map(|object| &object.preamble))?;
    distinct(info.registers.iter().map(|object| &object.preamble))?;
    distinct(info.digests.iter().map(|object| &object.preamble))
}

/// Describes the package `main`.
fn package_info(builder: &InfoBuilder<'_, '_>, main: &DeclarationTree) -> Result<PkgInfo, InfoError> {
    let index = builder.elaboration.index;
    let lists = annotations::annotation_lists(index, &main.annotations, &PACKAGE_ANNOTATIONS)?;
    let mut package = PkgInfo {
        arch: builder.architecture.name().into(),
        doc: annotations::documentation(index, &main.annotations)?,
        annotations: lists.annotations,
        structured_annotations: lists.structured,
        ..PkgInfo::default()
    };
    if let Some(annotation) = find_annotation(&main.annotations, "pkginfo") {
        for (key, value) in annotation_pairs(builder, annotation) {
            let field = match key {
                "name" => &mut package.name,
                "version" => &mut package.version,
                "arch" => &mut package.arch,
                "organization" => &mut package.organization,
                "contact" => &mut package.contact,
                "url" => &mut package.url,
                _ => continue,
            };
            match value {
                Some(ConstantValue::Text(text)) => *field = text.to_string(),
                _ => return Err(annotations::broken_annotation(index, annotation, "strings")),
            }
        }
    }
    if let Some(annotation) = find_annotation(&main.annotations, "platform_property") {
        let mut properties = PlatformProperties::default();
        for (key, value) in annotation_pairs(builder, annotation) {
            let field = match key {
                "multicast_group_table_size" => &mut properties.multicast_group_table_size,
                "multicast_group_table_total_replicas" => {
                    &mut properties.multicast_group_table_total_replicas
                }
                "multicast_group_table_max_replicas_per_entry" => {
                    &mut properties.multicast_group_table_max_replicas_per_entry
                }
                _ => continue,
            };
            let number = match value {
                Some(ConstantValue::Number(number)) => i32::try_from(number).ok(),
                _ => None,
            };
            *field = number
                .ok_or_else(|| annotations::broken_annotation(index, annotation, "numbers of 31 bits"))?;
        }
        package.platform_properties = Some(properties);
    }
    Ok(package)
}

/// Names with values, within brackets or parentheses.
fn annotation_pairs<'a>(
    builder: &InfoBuilder<'_, '_>,
    annotation: &'a AnnotationTree,
) -> Vec<(&'a str, Option<ConstantValue>)> {
    match &annotation.body {
        AnnotationBody::Pairs(pairs) => {
            let value = |(key, value): &'a (SourceName, ExpressionTree)| {
                (&*key.text, builder.elaboration.index.program.facts.constant(value.id).cloned())
            };
            pairs.iter().map(value).collect()
        }
        AnnotationBody::Unstructured(tokens) => {
            tokens.split(|token| token.word_or_mark() == ",").filter_map(token_pair).collect()
        }
        AnnotationBody::Expressions(_) => Vec::new(),
    }
}

/// Reads `NAME = VALUE` from tokens.
fn token_pair(tokens: &[SourceToken]) -> Option<(&str, Option<ConstantValue>)> {
    let [key, equal, value] = tokens else { return None };
    let constant = match &value.kind {
        TokenKind::Text(text) => Some(ConstantValue::Text(text.clone())),
        TokenKind::Number(digits) => parse_number(digits).map(|n| ConstantValue::Number(n.into())),
        _ => None,
    };
    (equal.word_or_mark() == "=").then(|| (key.word_or_mark(), constant))
}
