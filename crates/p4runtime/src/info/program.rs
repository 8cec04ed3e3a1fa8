//! Declarations of a program by name.

use millstream_p4::ast::{DeclarationKind, DeclarationTree};
use millstream_p4::expression::{CallArgument, TypeSyntax, TypeSyntaxKind};
use millstream_p4::{CompiledProgram, NominalId, SourceSpan};
use rustc_hash::FxHashMap;

use crate::info::InfoError;

/// Declarations of the outermost level.
pub(crate) struct ProgramIndex<'p> {
    pub(crate) program: &'p CompiledProgram,
    /// Declarations by name; parsers, controls and packages can have several.
    declarations: FxHashMap<&'p str, Vec<&'p DeclarationTree>>,
    nominals: FxHashMap<&'p str, NominalId>,
    /// Errors of all declarations, in order.
    pub(crate) errors: Vec<&'p str>,
}

impl<'p> ProgramIndex<'p> {
    pub(crate) fn new(program: &'p CompiledProgram) -> ProgramIndex<'p> {
        let mut declarations: FxHashMap<&str, Vec<&DeclarationTree>> = FxHashMap::default();
        let mut errors = Vec::new();
        for declaration in &program.declarations {
            match &declaration.kind {
                DeclarationKind::Errors(names) => errors.extend(names.iter().map(|name| &*name.text)),
                _ => declarations.entry(&declaration.name.text).or_default().push(declaration),
            }
        }
        let ids = (0..).map(NominalId);
        let nominals = program.types.nominals.iter().zip(ids).map(|(nominal, id)| (&*nominal.name, id));
        ProgramIndex { program, declarations, nominals: nominals.collect(), errors }
    }

    /// Finds a declaration by name.
    pub(crate) fn find(&self, name: &str) -> Option<&'p DeclarationTree> {
        self.declarations.get(name)?.first().copied()
    }

    /// Finds a declared type by name.
    pub(crate) fn nominal(&self, name: &str) -> Option<NominalId> {
        self.nominals.get(name).copied()
    }

    /// Finds the declaration of a declared type.
    pub(crate) fn nominal_declaration(&self, id: NominalId) -> Option<&'p DeclarationTree> {
        self.find(&self.program.types.nominal(id).name)
    }

    /// Finds what a constructor makes: the declaration whose parameters fit the arguments.
    pub(crate) fn constructed(
        &self,
        target: &TypeSyntax,
        arguments: &[CallArgument],
    ) -> Option<&'p DeclarationTree> {
        let candidates = self.declarations.get(type_name(target)?)?;
        let fits = |declaration: &&&DeclarationTree| fits_constructor(declaration, arguments);
        candidates.iter().find(fits).or(candidates.first()).copied()
    }

    /// Place of a construct, for errors.
    pub(crate) fn place(&self, span: SourceSpan) -> String {
        self.program.sources.place(span).to_string()
    }

    /// Error about a construct that P4Info cannot describe.
    pub(crate) fn unsupported(&self, span: SourceSpan, construct: impl Into<String>) -> InfoError {
        InfoError::Unsupported { place: self.place(span), construct: construct.into() }
    }
}

/// Name of a type that is written by name.
pub(crate) fn type_name(syntax: &TypeSyntax) -> Option<&str> {
    match &syntax.kind {
        TypeSyntaxKind::Named(name) | TypeSyntaxKind::Specialized(name, _) => Some(&name.name.text),
        _ => None,
    }
}

/// Parameters of the constructor of a parser, control or package.
pub(crate) fn constructor_parameters(
    declaration: &DeclarationTree,
) -> Option<&[millstream_p4::ast::ParameterSyntax]> {
    match &declaration.kind {
        DeclarationKind::Parser(parser) => parser.body.as_ref().map(|body| &body.constructor[..]),
        DeclarationKind::Control(control) => control.body.as_ref().map(|body| &body.constructor[..]),
        DeclarationKind::Package(_, parameters) => Some(parameters),
        _ => None,
    }
}

fn fits_constructor(declaration: &DeclarationTree, arguments: &[CallArgument]) -> bool {
    let Some(parameters) = constructor_parameters(declaration) else { return false };
    let is_named = |argument: &CallArgument| {
        argument.name.as_ref().is_none_or(|name| parameters.iter().any(|p| p.name.text == name.text))
    };
    let is_optional = |p: &millstream_p4::ast::ParameterSyntax| {
        p.default.is_some() || p.annotations.iter().any(|a| &*a.name.text == "optional")
    };
    let required = parameters.iter().filter(|p| !is_optional(p)).count();
    (required..=parameters.len()).contains(&arguments.len()) && arguments.iter().all(is_named)
}
