//! P4Info that is being made, and what the descriptions of all kinds of objects need of it.

use std::collections::{BTreeMap, BTreeSet};

use millstream_p4::ast::AnnotationTree;
use millstream_p4::expression::TypeSyntax;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::info::architecture::TargetArchitecture;
use crate::info::data_types::{DataType, TypeArguments};
use crate::info::elaborate::ProgramElaboration;
use crate::info::evaluate::NamedConstants;
use crate::info::scope::{PlacedDeclaration, ScopeId};
use crate::info::symbols::{ObjectKind, SymbolTable};
use crate::info::type_specs::TypeDescriber;
use crate::info::{InfoError, annotations};
use crate::proto::config::v1::{P4Info, Preamble};

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
    /// Id, names and annotations of an object.
    pub(crate) fn preamble(
        &self,
        kind: ObjectKind,
        name: &str,
        annotations: &[AnnotationTree],
        left_out: &[&str],
    ) -> Result<Preamble, InfoError> {
        let lists = annotations::annotation_lists(self.elaboration.index, annotations, left_out)?;
        Ok(Preamble {
            id: self.symbols.id(kind, name),
            name: name.into(),
            alias: self.symbols.alias(name),
            annotations: lists.annotations,
            annotation_locations: Vec::new(),
            doc: annotations::documentation(self.elaboration.index, annotations)?,
            structured_annotations: lists.structured,
        })
    }

    /// Values of an instance's parameters.
    pub(crate) fn constants(&self, scope: Option<ScopeId>) -> &NamedConstants<'p> {
        scope.map_or(&self.no_constants, |scope| &self.elaboration.arena.get(scope).constants)
    }

    /// Resolves a type that an instance has.
    pub(crate) fn written_type(&self, syntax: &TypeSyntax, scope: Option<ScopeId>) -> DataType {
        let none = TypeArguments::default();
        let arguments = scope.map_or(&none, |scope| &self.elaboration.arena.get(scope).type_arguments);
        self.elaboration.index.data_type(syntax, arguments)
    }

    pub(crate) fn action_id(&self, placed: PlacedDeclaration<'p>) -> u32 {
        self.symbols.id(ObjectKind::Action, &self.elaboration.arena.plane_name(placed))
    }
}
