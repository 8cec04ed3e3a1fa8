//! The whole of a program's P4Info: symbols first, then each object.

use std::collections::{BTreeMap, BTreeSet};

use millstream_p4::ast::{AnnotationBody, AnnotationTree, DeclarationKind, DeclarationTree, TableProperty};
use millstream_p4::expression::ExpressionTree;
use millstream_p4::{CompiledProgram, ConstantValue, SourceName, SourceToken, TokenKind};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::info::InfoError;
use crate::info::annotations::{find_annotation, parse_number};
use crate::info::architecture::{ExternKind, TargetArchitecture};
use crate::info::elaborate::{ProgramBlock, ProgramElaboration};
use crate::info::evaluate::NamedConstants;
use crate::info::program::ProgramIndex;
use crate::info::scope::{PlacedDeclaration, ScopeId};
use crate::info::symbols::{ObjectKind, SymbolTable};
use crate::info::type_specs::TypeDescriber;
use crate::proto::config::v1::{P4Info, PkgInfo, PlatformProperties, Preamble};
use crate::proto::v1::Update;

/// Annotations of the package that have fields of their own.
const PACKAGE_ANNOTATIONS: [&str; 2] = ["pkginfo", "platform_property"];

/// P4Info that is being made.
pub(crate) struct InfoBuilder<'w, 'p> {
    pub(crate) elaboration: &'w ProgramElaboration<'w, 'p>,
    pub(crate) architecture: TargetArchitecture,
    pub(crate) symbols: SymbolTable,
    pub(crate) types: TypeDescriber<'w, 'p>,
    pub(crate) info: P4Info,
    /// Ids of the actions and digests so far, which can occur several times.
    pub(crate) described: FxHashSet<u32>,
    /// Numbers of digests without a name, by the expressions of their data.
    pub(crate) unnamed_digests: FxHashMap<u32, usize>,
    /// Tables of each action profile.
    pub(crate) profile_tables: BTreeMap<String, BTreeSet<String>>,
    pub(crate) no_constants: NamedConstants<'p>,
}

impl<'p> InfoBuilder<'_, 'p> {
    /// Makes the P4Info of a program, and the updates that write its entries.
    pub(crate) fn build(
        program: &'p CompiledProgram,
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
        builder.collect()?;
        builder.describe()?;
        builder.check_names()?;
        let entries = builder.initial_entries()?;
        builder.info.type_info = builder.types.info.take();
        Ok((builder.info, entries))
    }

    /// Adds the names of all objects.
    fn collect(&mut self) -> Result<(), InfoError> {
        let elaboration = self.elaboration;
        for block in &elaboration.blocks {
            match *block {
                ProgramBlock::Parser(_) => {}
                ProgramBlock::Control(scope) => self.collect_control(scope)?,
                ProgramBlock::Extern(placed) => {
                    if let Some(object) = self.extern_object(placed) {
                        self.add(object.object_kind(), &object.name, object.annotations)?;
                    }
                }
                ProgramBlock::Table(placed) => self.collect_table(placed)?,
                ProgramBlock::ValueSet(placed) => self.add_placed(ObjectKind::ValueSet, placed)?,
            }
        }
        for header in self.controller_headers() {
            if let Some(nominal) = elaboration.index.nominal(&header.name.text) {
                let name = self.types.type_name(nominal, &[]);
                self.add(ObjectKind::ControllerHeader, &name, &header.annotations)?;
            }
        }
        self.symbols.assign()
    }

    fn add(&mut self, kind: ObjectKind, name: &str, annotations: &[AnnotationTree]) -> Result<(), InfoError> {
        let id = self.elaboration.index.id_annotation(annotations)?;
        self.symbols.add(kind, name, id)
    }

    fn add_placed(&mut self, kind: ObjectKind, placed: PlacedDeclaration<'p>) -> Result<(), InfoError> {
        let name = self.elaboration.arena.plane_name(placed);
        self.add(kind, &name, &placed.declaration.annotations)
    }

    fn collect_control(&mut self, scope: ScopeId) -> Result<(), InfoError> {
        for action in self.elaboration.actions(scope) {
            self.add_placed(ObjectKind::Action, action.placed)?;
        }
        if self.architecture == TargetArchitecture::V1Model {
            for call in self.elaboration.digest_calls(scope).digests {
                let (_, name) = self.digest_type(call);
                self.symbols.add(ObjectKind::Digest, &name, None)?;
            }
        }
        Ok(())
    }

    fn collect_table(&mut self, placed: PlacedDeclaration<'p>) -> Result<(), InfoError> {
        self.add_placed(ObjectKind::Table, placed)?;
        let DeclarationKind::Table(properties) = &placed.declaration.kind else { return Ok(()) };
        let kinds = [ExternKind::ActionProfile, ExternKind::DirectCounter, ExternKind::DirectMeter];
        for kind in kinds {
            self.collect_property(placed, properties, kind)?;
        }
        Ok(())
    }

    fn collect_property(
        &mut self,
        placed: PlacedDeclaration<'p>,
        properties: &'p [TableProperty],
        kind: ExternKind,
    ) -> Result<(), InfoError> {
        let Some(object) = self.property_object(placed.scope, properties, kind)? else { return Ok(()) };
        if object.is_in_place {
            self.symbols.add(object.object_kind(), &object.name, None)?;
        }
        if kind == ExternKind::ActionProfile {
            let table = self.elaboration.arena.plane_name(placed);
            self.profile_tables.entry(object.name).or_default().insert(table);
        }
        Ok(())
    }

    fn describe(&mut self) -> Result<(), InfoError> {
        let elaboration = self.elaboration;
        for block in &elaboration.blocks {
            match *block {
                ProgramBlock::Parser(_) => {}
                ProgramBlock::Control(scope) => self.describe_control(scope)?,
                ProgramBlock::Extern(placed) => self.extern_instance(placed)?,
                ProgramBlock::Table(placed) => self.table(placed)?,
                ProgramBlock::ValueSet(placed) => self.value_set(placed)?,
            }
        }
        for header in self.controller_headers() {
            self.controller_header(header)?;
        }
        if let Some(main) = elaboration.index.find("main") {
            self.info.pkg_info = Some(self.package_info(main)?);
        }
        Ok(())
    }

    fn describe_control(&mut self, scope: ScopeId) -> Result<(), InfoError> {
        for action in self.elaboration.actions(scope) {
            self.action(&action)?;
        }
        if self.architecture == TargetArchitecture::V1Model {
            let calls = self.elaboration.digest_calls(scope);
            if calls.has_extern_call {
                self.types.info();
            }
            for call in calls.digests {
                self.digest_call(call)?;
            }
        }
        Ok(())
    }

    /// Id, names and annotations of an object.
    pub(crate) fn preamble(
        &self,
        kind: ObjectKind,
        name: &str,
        annotations: &[AnnotationTree],
        left_out: &[&str],
    ) -> Result<Preamble, InfoError> {
        let lists = self.elaboration.index.annotation_lists(annotations, left_out)?;
        Ok(Preamble {
            id: self.symbols.id(kind, name),
            name: name.into(),
            alias: self.symbols.alias(name),
            annotations: lists.annotations,
            annotation_locations: Vec::new(),
            doc: self.elaboration.index.documentation(annotations)?,
            structured_annotations: lists.structured,
        })
    }

    /// Checks that no two objects of a kind have the same name.
    fn check_names(&self) -> Result<(), InfoError> {
        fn distinct<'m>(preambles: impl Iterator<Item = &'m Option<Preamble>>) -> Result<(), InfoError> {
            let mut names = FxHashSet::default();
            for preamble in preambles.flatten() {
                if !names.insert(&preamble.name) {
                    return Err(InfoError::DuplicateName { name: preamble.name.clone() });
                }
            }
            Ok(())
        }
        let info = &self.info;
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
    fn package_info(&self, main: &DeclarationTree) -> Result<PkgInfo, InfoError> {
        let index = self.elaboration.index;
        let lists = index.annotation_lists(&main.annotations, &PACKAGE_ANNOTATIONS)?;
        let mut package = PkgInfo {
            arch: self.architecture.name().into(),
            doc: index.documentation(&main.annotations)?,
            annotations: lists.annotations,
            structured_annotations: lists.structured,
            ..PkgInfo::default()
        };
        if let Some(annotation) = find_annotation(&main.annotations, "pkginfo") {
            for (key, value) in self.annotation_pairs(annotation) {
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
                    _ => return Err(index.broken_annotation(annotation, "strings")),
                }
            }
        }
        if let Some(annotation) = find_annotation(&main.annotations, "platform_property") {
            let mut properties = PlatformProperties::default();
            for (key, value) in self.annotation_pairs(annotation) {
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
                *field = number.ok_or_else(|| index.broken_annotation(annotation, "numbers of 31 bits"))?;
            }
            package.platform_properties = Some(properties);
        }
        Ok(package)
    }

    /// Names with values, within brackets or parentheses.
    fn annotation_pairs<'a>(&self, annotation: &'a AnnotationTree) -> Vec<(&'a str, Option<ConstantValue>)> {
        match &annotation.body {
            AnnotationBody::Pairs(pairs) => {
                let value = |(key, value): &'a (SourceName, ExpressionTree)| {
                    (&*key.text, self.elaboration.index.program.facts.constant(value.id).cloned())
                };
                pairs.iter().map(value).collect()
            }
            AnnotationBody::Unstructured(tokens) => {
                tokens.split(|token| token.word_or_mark() == ",").filter_map(token_pair).collect()
            }
            AnnotationBody::Expressions(_) => Vec::new(),
        }
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
