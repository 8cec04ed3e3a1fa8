//! Instances of parsers and controls: names, arguments and what is reached.

use millstream_p4::ConstantValue;
use millstream_p4::ast::{AnnotationTree, BlockSyntax, DeclarationKind, DeclarationTree, ParserState};
use millstream_p4::expression::{CallArgument, QualifiedName, TypeSyntax};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::info::annotations::name_annotation;
use crate::info::data_types::TypeArguments;
use crate::info::liveness::LivePart;
use crate::info::program::ProgramIndex;

/// Number of an instance of a parser or control.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ScopeId(pub(crate) usize);

/// A declaration within an instance, or of the outermost level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedDeclaration<'p> {
    pub(crate) scope: Option<ScopeId>,
    pub(crate) declaration: &'p DeclarationTree,
}

/// Code of an instance.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BlockCode<'p> {
    Control(&'p BlockSyntax),
    Parser(&'p [ParserState]),
}

/// An instance of a parser or control.
#[derive(Debug)]
pub(crate) struct BlockScope<'p> {
    /// Names of the instances around it, and its own, joined by dots.
    pub(crate) prefix: String,
    pub(crate) locals: Vec<&'p DeclarationTree>,
    pub(crate) names: FxHashMap<&'p str, &'p DeclarationTree>,
    pub(crate) code: BlockCode<'p>,
    /// Values of the constructor's parameters.
    pub(crate) constants: FxHashMap<&'p str, ConstantValue>,
    /// Objects that are the constructor's arguments.
    pub(crate) objects: FxHashMap<&'p str, PlacedDeclaration<'p>>,
    pub(crate) type_arguments: TypeArguments,
    /// Code that packets can reach, in order.
    pub(crate) live: Vec<LivePart<'p>>,
    /// Locals that this code reaches.
    pub(crate) used: FxHashSet<&'p str>,
    /// Actions that tables or statements of the block run.
    pub(crate) table_actions: FxHashSet<&'p str>,
    pub(crate) called_actions: FxHashSet<&'p str>,
    /// Instances within this one.
    pub(crate) children: FxHashMap<&'p str, ScopeId>,
    /// Instances that are applied without a name.
    pub(crate) direct: Vec<(&'p TypeSyntax, ScopeId)>,
}

/// All instances.
#[derive(Debug, Default)]
pub(crate) struct ScopeArena<'p> {
    scopes: Vec<BlockScope<'p>>,
}

impl<'p> ScopeArena<'p> {
    pub(crate) fn add(&mut self, scope: BlockScope<'p>) -> ScopeId {
        self.scopes.push(scope);
        ScopeId(self.scopes.len() - 1)
    }

    pub(crate) fn len(&self) -> usize {
        self.scopes.len()
    }

    pub(crate) fn get(&self, id: ScopeId) -> &BlockScope<'p> {
        &self.scopes[id.0]
    }

    pub(crate) fn get_mut(&mut self, id: ScopeId) -> &mut BlockScope<'p> {
        &mut self.scopes[id.0]
    }

    /// Name of a declaration for the control plane.
    pub(crate) fn plane_name(&self, placed: PlacedDeclaration<'p>) -> String {
        let declaration = placed.declaration;
        self.joined_name(placed.scope, &declaration.annotations, &declaration.name.text)
    }

    /// Name for the control plane of something with annotations: a name that begins with a dot is absolute.
    pub(crate) fn joined_name(
        &self,
        scope: Option<ScopeId>,
        annotations: &[AnnotationTree],
        name: &str,
    ) -> String {
        let prefix = scope.map(|scope| &*self.get(scope).prefix).unwrap_or_default();
        joined(prefix, name_annotation(annotations).as_deref().unwrap_or(name))
    }

    /// Finds what a name means within an instance.
    pub(crate) fn find(
        &self,
        index: &ProgramIndex<'p>,
        scope: Option<ScopeId>,
        name: &QualifiedName,
    ) -> Option<PlacedDeclaration<'p>> {
        let text = &*name.name.text;
        let local = scope.filter(|_| !name.is_global).map(|id| (id, self.get(id)));
        if let Some((id, block)) = local {
            if let Some(declaration) = block.names.get(text) {
                return Some(PlacedDeclaration { scope: Some(id), declaration });
            }
            if let Some(object) = block.objects.get(text) {
                return Some(*object);
            }
        }
        index.find(text).map(|declaration| PlacedDeclaration { scope: None, declaration })
    }

    /// Finds an action by name.
    pub(crate) fn find_action(
        &self,
        index: &ProgramIndex<'p>,
        scope: Option<ScopeId>,
        name: &QualifiedName,
    ) -> Option<PlacedDeclaration<'p>> {
        let placed = self.find(index, scope, name)?;
        matches!(placed.declaration.kind, DeclarationKind::Action(..)).then_some(placed)
    }
}

/// Joins a prefix and a name; a name that begins with a dot is absolute.
pub(crate) fn joined(prefix: &str, name: &str) -> String {
    match name.strip_prefix('.') {
        Some(absolute) => absolute.into(),
        None if prefix.is_empty() => name.into(),
        None => format!("{prefix}.{name}"),
    }
}

/// A constructor with its arguments.
pub(crate) struct ConstructorCall<'a, 'p> {
    pub(crate) declaration: &'p DeclarationTree,
    pub(crate) type_arguments: &'p [TypeSyntax],
    pub(crate) arguments: &'p [CallArgument],
    /// Instance in which the call is.
    pub(crate) caller: Option<ScopeId>,
    pub(crate) prefix: &'a str,
}
