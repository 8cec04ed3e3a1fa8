//! The type checker: names, types, and the static rules of the language.
//!
//! Declarations are checked in their order, since a name has to be declared before its use. Bodies of generic
//! declarations are checked once, with their type parameters as opaque types. Source: P4_16 1.2.5.

mod calls;
mod coercion;
pub(crate) mod constants;
mod declarations;
mod expressions;
mod members;
mod methods;
mod numbers;
mod objects;
mod operators;
mod parser_graph;
mod parsers;
mod plane_names;
mod same;
mod scope;
mod statements;
mod tables;
mod type_names;
pub(crate) mod types;

use crate::ast::{AnnotationTree, BlockSyntax, DeclarationKind, DeclarationTree};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::diagnostic::{DiagnosticSink, SourceDiagnostic};
use crate::expression::{ExpressionId, ExpressionTree};
use crate::source::{SourceName, SourceSpan, Symbol};
use constants::ConstantValue;
use plane_names::PlaneNameTable;
use scope::{ActionEntity, FunctionEntity, NamedEntity, NamedValue, ScopeStack, TableEntity};
use types::{NominalId, NominalKind, TypeId, TypeTable, UNKNOWN, ValueType};

/// Part of a program that is being checked; it decides what is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CheckedPart {
    TopLevel,
    Parser,
    ParserState,
    Control,
    ControlApply,
    Action,
    Function,
    /// A method that implements an abstract one.
    Method,
}

/// Result of an expression.
#[derive(Clone, Debug)]
pub(crate) struct TypedValue {
    pub(crate) type_id: TypeId,
    pub(crate) is_writable: bool,
    pub(crate) is_known: bool,
    pub(crate) constant: Option<ConstantValue>,
}

impl TypedValue {
    pub(crate) fn unknown() -> TypedValue {
        TypedValue { type_id: UNKNOWN, is_writable: true, is_known: true, constant: None }
    }

    /// A value that is computed when packets run.
    pub(crate) fn computed(type_id: TypeId) -> TypedValue {
        TypedValue { type_id, is_writable: false, is_known: false, constant: None }
    }

    pub(crate) fn known(type_id: TypeId, constant: Option<ConstantValue>) -> TypedValue {
        TypedValue { type_id, is_writable: false, is_known: true, constant }
    }
}

/// Type and value of an expression.
#[derive(Clone, Debug)]
struct ExpressionFact {
    type_id: TypeId,
    constant: Option<ConstantValue>,
    is_known: bool,
}

/// Types and values of all expressions.
#[derive(Debug, Default)]
pub struct ExpressionFacts {
    facts: Vec<Option<ExpressionFact>>,
}

impl ExpressionFacts {
    /// Returns the type of an expression that was checked.
    pub fn type_id(&self, id: ExpressionId) -> Option<TypeId> {
        self.facts.get(id.0 as usize)?.as_ref().map(|fact| fact.type_id)
    }

    /// Returns the value of an expression, if it is known.
    pub fn constant(&self, id: ExpressionId) -> Option<&ConstantValue> {
        self.facts.get(id.0 as usize)?.as_ref()?.constant.as_ref()
    }

    /// Tells if an expression is known when the program is compiled.
    pub fn is_known(&self, id: ExpressionId) -> bool {
        self.facts.get(id.0 as usize).and_then(Option::as_ref).is_some_and(|fact| fact.is_known)
    }
}

/// Body of the function, method or action that is being checked.
struct CheckedBody {
    /// Type of the result.
    result: TypeId,
    /// Loops around the statement.
    loops: usize,
}

impl CheckedBody {
    /// A body outside of all loops.
    fn new(result: TypeId) -> CheckedBody {
        CheckedBody { result, loops: 0 }
    }
}

pub(crate) struct TypeChecker<'c> {
    pub(crate) types: TypeTable,
    pub(crate) facts: ExpressionFacts,
    sink: &'c mut DiagnosticSink,
    scopes: ScopeStack,
    functions: Vec<FunctionEntity>,
    actions: Vec<ActionEntity>,
    tables: Vec<TableEntity>,
    errors: FxHashSet<Symbol>,
    match_kinds: FxHashSet<Symbol>,
    part: CheckedPart,
    body: CheckedBody,
    /// Type of `this`.
    this_type: Option<TypeId>,
    /// Parsers, controls and packages of the same name, by the first.
    overloads: FxHashMap<NominalId, Vec<NominalId>>,
    /// Absolute names of tables and actions for the control plane.
    plane_names: PlaneNameTable,
    /// `_` may be a type argument here.
    allows_anything: bool,
    /// Types whose parts were found to be allowed.
    valid: FxHashMap<TypeId, bool>,
}

/// Checks a program.
pub(crate) fn check(
    declarations: &[DeclarationTree],
    expressions: u32,
    sink: &mut DiagnosticSink,
) -> (TypeTable, ExpressionFacts) {
    let mut checker = TypeChecker {
        types: TypeTable::new(),
        facts: ExpressionFacts { facts: vec![None; expressions as usize] },
        sink,
        scopes: ScopeStack::new(),
        functions: Vec::new(),
        actions: Vec::new(),
        tables: Vec::new(),
        errors: FxHashSet::default(),
        match_kinds: FxHashSet::default(),
        part: CheckedPart::TopLevel,
        body: CheckedBody::new(types::VOID),
        this_type: None,
        overloads: FxHashMap::default(),
        plane_names: PlaneNameTable::default(),
        allows_anything: false,
        valid: FxHashMap::default(),
    };
    for declaration in declarations {
        checker.declaration(declaration);
    }
    (checker.types, checker.facts)
}

impl TypeChecker<'_> {
    fn error(&mut self, span: SourceSpan, message: impl Into<String>) {
        self.sink.error(span, message);
    }

    /// Reports that a name is not declared, with the nearest one.
    fn undeclared(&mut self, kind: &str, name: &SourceName) {
        // The search for the nearest name takes time that grows with the program.
        if self.sink.is_full() {
            return;
        }
        let diagnostic =
            SourceDiagnostic::error(name.span, format!("{kind} `{}` is not declared", name.text));
        let diagnostic = diagnostic.nearest(&name.text, self.scopes.names());
        self.sink.push(diagnostic);
    }

    /// Gives a name a meaning in the innermost scope.
    fn declare(&mut self, name: &SourceName, entity: NamedEntity) {
        if &*name.text == "main" && self.part == CheckedPart::TopLevel && !self.is_package_instance(&entity) {
            self.error(name.span, "`main` has to be the instance of a package");
        }
        let existing = self.scopes.find_innermost(&name.text).map(|(entity, _)| entity);
        if existing.is_some_and(|entity| !matches!(entity, NamedEntity::Undeclared)) {
            self.error(name.span, format!("`{}` is declared twice", name.text));
        } else if self.scopes.find_between(&name.text) {
            let message = format!("`{}` hides a declaration of the same name", name.text);
            self.sink.push(SourceDiagnostic::warning(name.span, message));
        }
        self.scopes.insert(name.text.clone(), entity, name.span);
    }

    fn is_package_instance(&self, entity: &NamedEntity) -> bool {
        let value = match entity {
            NamedEntity::Value(value) => value,
            other => return matches!(other, NamedEntity::Functions(_)),
        };
        match self.types.kind(value.type_id) {
            ValueType::Nominal(nominal, _) => {
                matches!(self.types.nominal(*nominal).kind, NominalKind::Package(_))
            }
            kind => *kind == ValueType::Unknown,
        }
    }

    fn declare_value(&mut self, name: &SourceName, value: NamedValue) {
        self.declare(name, NamedEntity::Value(value));
    }

    fn scoped<T>(&mut self, check: impl FnOnce(&mut Self) -> T) -> T {
        self.scopes.push();
        let result = check(self);
        self.scopes.pop();
        result
    }

    /// Checks within a part of the program.
    fn within<T>(&mut self, part: CheckedPart, check: impl FnOnce(&mut Self) -> T) -> T {
        let outer = std::mem::replace(&mut self.part, part);
        let result = check(self);
        self.part = outer;
        result
    }

    fn record(&mut self, expression: &ExpressionTree, value: &TypedValue) {
        let type_id = self.types.resolve(value.type_id);
        if let Some(fact) = self.facts.facts.get_mut(expression.id.0 as usize) {
            *fact =
                Some(ExpressionFact { type_id, constant: value.constant.clone(), is_known: value.is_known });
        }
    }

    /// Checks that names of a list differ.
    fn distinct<'n>(&mut self, what: &str, names: impl IntoIterator<Item = &'n SourceName>) {
        let mut seen = FxHashSet::default();
        for name in names {
            if !seen.insert(&name.text) {
                self.error(name.span, format!("{what} `{}` is declared twice", name.text));
            }
        }
    }

    /// Checks a declaration of any kind.
    pub(crate) fn declaration(&mut self, declaration: &DeclarationTree) {
        let name = &declaration.name;
        self.annotations(&declaration.annotations);
        if let Some(taken) = self.plane_names.add(declaration, self.part != CheckedPart::TopLevel) {
            self.error(
                name.span,
                format!("another declaration has the name `{taken}` for the control plane"),
            );
        }
        match &declaration.kind {
            DeclarationKind::Constant(declared, value) => declarations::constant(self, name, declared, value),
            DeclarationKind::Variable(declared, value) => {
                declarations::declare_variable(self, name, declared, value.as_ref())
            }
            DeclarationKind::Instance(instance) => objects::instance(self, name, instance, declaration.span),
            DeclarationKind::Function(function) => declarations::function(self, name, function),
            DeclarationKind::ExternFunction(signature) => {
                if let Some(signature) = declarations::signature(self, name, signature, CheckedPart::TopLevel)
                {
                    declarations::declare_function(self, name, signature, true);
                }
            }
            DeclarationKind::Extern(syntax) => objects::extern_type(self, name, syntax),
            DeclarationKind::Action(parameters, body) => declarations::action(self, name, parameters, body),
            DeclarationKind::Table(properties) => tables::table(self, name, properties),
            DeclarationKind::ValueSet(element, size) => parsers::value_set(self, name, element, size),
            DeclarationKind::Parser(parser) => parsers::parser(self, name, parser),
            DeclarationKind::Control(control) => objects::control(self, name, control),
            DeclarationKind::Package(types, parameters) => objects::package(self, name, types, parameters),
            DeclarationKind::Aggregate(aggregate) => declarations::aggregate(self, name, aggregate),
            DeclarationKind::Enumeration(underlying, members) => {
                objects::enumeration(self, name, underlying.as_ref(), members);
            }
            DeclarationKind::Errors(members) => declarations::member_names(self, members, true),
            DeclarationKind::MatchKinds(members) => declarations::member_names(self, members, false),
            DeclarationKind::TypeAlias(target) => {
                let type_id = self.type_of(target);
                self.declare(name, NamedEntity::Alias(type_id));
            }
            DeclarationKind::NewType(target) => declarations::new_type(self, name, target),
        }
    }

    /// Checks an expression and keeps its type and value.
    pub(crate) fn expression(&mut self, expression: &ExpressionTree) -> TypedValue {
        expressions::check_expression(self, expression)
    }

    /// Checks an expression whose value is used as one of a type.
    pub(crate) fn expression_as(&mut self, expression: &ExpressionTree, expected: TypeId) -> TypedValue {
        expressions::expression_as(self, expression, expected)
    }

    /// Checks annotations and the expressions in them.
    pub(crate) fn annotations(&mut self, annotations: &[AnnotationTree]) {
        expressions::annotations(self, annotations)
    }

    /// Checks statements in the current scope; tells if they always return or exit.
    fn block_statements(&mut self, block: &BlockSyntax) -> bool {
        statements::block_statements(self, block)
    }
}
