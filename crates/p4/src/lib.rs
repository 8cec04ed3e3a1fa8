//! The P4_16 front end: source files to a typed program.
//!
//! [`compile()`] preprocesses, parses and checks a program. Files come through a [`SourceLoader`];
//! architecture files ([`architecture_file()`]) are part of the crate. The language is that of the P4_16
//! language specification, version 1.2.5.
//!
//! Architecture Invariant: no I/O here, and nothing of the IR or of a back end.
//!
//! Architecture Invariant: programs are hostile: nothing panics, recursion is bounded, and memory is linear
//! in the text.

mod architecture;
pub mod ast;
mod check;
mod diagnostic;
pub mod expression;
mod lex;
mod parse;
mod preprocess;
mod source;

pub use architecture::architecture_file;
pub use check::ExpressionFacts;
pub use check::constants::ConstantValue;
pub use check::types::{
    BlockType, FunctionType, MethodType, NominalId, NominalKind, NominalType, ParameterType, TypeId,
    TypeTable, ValueType,
};
pub use diagnostic::{DiagnosticSeverity, RenderedDiagnostic, SourceDiagnostic};
pub use lex::{SourceToken, TokenKind};
pub use parse::literals::number as number_literal;
pub use preprocess::SourceLoader;
pub use source::{FileId, LinePlace, SourceFile, SourceMap, SourceName, SourceSpan, Symbol};

use ast::DeclarationTree;
use diagnostic::DiagnosticSink;

/// Settings of a run.
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    /// Folders in which included files are searched.
    pub search_paths: Vec<String>,
    /// Macros that are defined from the start, with their text.
    pub definitions: Vec<(String, String)>,
}

/// A program, with what was found about it.
#[derive(Debug)]
pub struct CompiledProgram {
    /// Source files.
    pub sources: SourceMap,
    /// Declarations of the outermost level.
    pub declarations: Vec<DeclarationTree>,
    /// Types.
    pub types: TypeTable,
    /// Types and values of expressions.
    pub facts: ExpressionFacts,
    /// Errors and warnings.
    pub diagnostics: Vec<SourceDiagnostic>,
}

impl CompiledProgram {
    /// Tells if the program has no errors.
    pub fn is_accepted(&self) -> bool {
        !self.diagnostics.iter().any(SourceDiagnostic::is_error)
    }
}

/// Reads and checks the program of a path.
pub fn compile(path: &str, loader: &mut dyn SourceLoader, options: &CompileOptions) -> CompiledProgram {
    let mut sources = SourceMap::default();
    let mut sink = DiagnosticSink::default();
    let settings = (&options.search_paths[..], &options.definitions[..]);
    let tokens = preprocess::preprocess(path, loader, settings, &mut sources, &mut sink);
    let (declarations, expressions) = parse::parse(&tokens, &mut sink);
    let (types, facts) = check::check(&declarations, expressions, &mut sink);
    CompiledProgram { sources, declarations, types, facts, diagnostics: sink.list }
}
