//! Names and what they stand for.

use rustc_hash::FxHashMap;

use crate::check::constants::ConstantValue;
use crate::check::types::{FunctionType, NominalId, ParameterType, TypeId};
use crate::expression::CallArgument;
use crate::source::{SourceSpan, Symbol};

/// Meaning of a name.
#[derive(Clone, Debug)]
pub(crate) enum NamedEntity {
    /// A declared type, which may have type parameters.
    Nominal(NominalId),
    /// Another name of a type, or a type parameter.
    Alias(TypeId),
    /// A variable, parameter, constant or instance.
    Value(NamedValue),
    /// Functions of the same name: indexes into the checker's list.
    Functions(Vec<usize>),
    /// An action: index into the checker's list.
    Action(usize),
    /// A name whose declaration is being read.
    Undeclared,
}

/// A variable, parameter, constant or instance.
#[derive(Clone, Debug)]
pub(crate) struct NamedValue {
    pub(crate) type_id: TypeId,
    /// It may be written.
    pub(crate) is_writable: bool,
    /// It is known when the program is compiled.
    pub(crate) is_known: bool,
    pub(crate) constant: Option<ConstantValue>,
}

/// A function, and if it is an extern one.
#[derive(Clone, Debug)]
pub(crate) struct FunctionEntity {
    pub(crate) signature: FunctionType,
    pub(crate) is_extern: bool,
}

/// An action.
#[derive(Clone, Debug)]
pub(crate) struct ActionEntity {
    pub(crate) parameters: Vec<ParameterType>,
}

/// A table.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableEntity {
    pub(crate) keys: Vec<KeyEntity>,
    pub(crate) actions: Vec<ListedAction>,
}

/// An element of a key.
#[derive(Clone, Debug)]
pub(crate) struct KeyEntity {
    pub(crate) type_id: TypeId,
    pub(crate) match_kind: Symbol,
}

/// An action of a table.
#[derive(Clone, Debug)]
pub(crate) struct ListedAction {
    pub(crate) name: Symbol,
    /// Index into the checker's list.
    pub(crate) action: usize,
    /// It may only be the default action.
    pub(crate) is_default_only: bool,
    /// It may only be an entry's action.
    pub(crate) is_table_only: bool,
    /// Arguments that the list binds.
    pub(crate) bound: Vec<CallArgument>,
}

/// A name of a scope.
#[derive(Clone, Debug)]
struct ScopeEntry {
    entity: NamedEntity,
    span: SourceSpan,
}

/// Scopes, innermost last.
#[derive(Debug)]
pub(crate) struct ScopeStack {
    scopes: Vec<FxHashMap<Symbol, ScopeEntry>>,
}

impl ScopeStack {
    pub(crate) fn new() -> ScopeStack {
        ScopeStack { scopes: vec![FxHashMap::default()] }
    }

    pub(crate) fn push(&mut self) {
        self.scopes.push(FxHashMap::default());
    }

    pub(crate) fn pop(&mut self) {
        self.scopes.pop();
    }

    pub(crate) fn find(&self, name: &str, is_global: bool) -> Option<&NamedEntity> {
        let scopes = if is_global { &self.scopes[..1] } else { &self.scopes[..] };
        scopes.iter().rev().find_map(|scope| scope.get(name)).map(|entry| &entry.entity)
    }

    /// Finds a name of the innermost scope.
    pub(crate) fn find_innermost(&self, name: &str) -> Option<(&NamedEntity, SourceSpan)> {
        self.scopes.last()?.get(name).map(|entry| (&entry.entity, entry.span))
    }

    /// Finds a name of a scope that is neither the innermost nor the outermost.
    pub(crate) fn find_between(&self, name: &str) -> bool {
        let inner = self.scopes.len().saturating_sub(1);
        self.scopes[..inner].iter().skip(1).any(|scope| scope.contains_key(name))
    }

    pub(crate) fn insert(&mut self, name: Symbol, entity: NamedEntity, span: SourceSpan) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name, ScopeEntry { entity, span });
        }
    }

    /// All names that can be seen.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.scopes.iter().flat_map(|scope| scope.keys()).map(|name| &**name)
    }
}
