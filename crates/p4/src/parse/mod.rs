//! The parser: tokens to syntax trees.
//!
//! A parser of this language has to know which names are types: `(a) - b` and `f(a < b, c > (d))` read in two
//! ways. So declared names are tracked by scope. Where only what follows decides, the parser tries a reading
//! and goes back; a place where a reading failed is remembered, which keeps the time bounded.
//!
//! Invariant: recursion and the height of trees are bounded, and nothing panics. A syntax error skips to the
//! end of the statement or declaration, so that one run finds several. Source: P4_16 1.2.5, appendix "P4
//! grammar".

mod declarations;
mod expressions;
pub(crate) mod literals;
mod objects;
mod statements;
mod tables;
mod types;

use crate::ast::{
    AggregateKind, AnnotationBody, AnnotationTree, BlockSyntax, DeclarationKind, DeclarationTree,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::diagnostic::{DiagnosticSink, SourceDiagnostic};
use crate::expression::{ExpressionId, ExpressionKind, ExpressionTree};
use crate::lex::{SourceToken, TokenKind};
use crate::source::{SourceName, SourceSpan, Symbol};

/// A syntax error that is reported already.
#[derive(Debug)]
pub(crate) struct SyntaxFailure;

pub(crate) use literals::WIDEST_VALUE;

type Parsed<T> = Result<T, SyntaxFailure>;

/// Deepest nesting of expressions, types and statements.
const DEEPEST_NESTING: usize = 160;
/// Greatest height of an expression, which a chain of operators reaches without nesting.
const HIGHEST_TREE: u32 = 400;

/// Words that cannot be names.
const RESERVED: [&str; 40] = [
    "abstract",
    "action",
    "bit",
    "bool",
    "break",
    "const",
    "continue",
    "control",
    "default",
    "else",
    "enum",
    "error",
    "exit",
    "extern",
    "false",
    "for",
    "header",
    "header_union",
    "if",
    "in",
    "inout",
    "int",
    "match_kind",
    "out",
    "package",
    "parser",
    "return",
    "select",
    "string",
    "struct",
    "switch",
    "table",
    "this",
    "transition",
    "true",
    "tuple",
    "typedef",
    "value_set",
    "varbit",
    "void",
];

pub(crate) struct SyntaxParser<'p> {
    tokens: &'p [SourceToken],
    at: usize,
    sink: &'p mut DiagnosticSink,
    /// Declared names, and which of them are types, innermost scope last.
    scopes: Vec<FxHashMap<Symbol, bool>>,
    /// Places where a tried reading failed.
    failed: FxHashSet<(usize, TriedReading)>,
    next_id: u32,
    depth: usize,
    /// Declarations within `typedef`, which go in front of it.
    nested_declarations: Vec<DeclarationTree>,
    /// The next `>` ends a size, and compares nothing.
    is_in_size: bool,
}

/// Readings that the parser tries.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum TriedReading {
    TypeArguments,
    Cast,
    KeysetTuple,
    Declaration,
}

/// Parses a program. Gives the number of expressions, too.
pub(crate) fn parse(tokens: &[SourceToken], sink: &mut DiagnosticSink) -> (Vec<DeclarationTree>, u32) {
    let mut parser = SyntaxParser {
        tokens,
        at: 0,
        sink,
        scopes: vec![FxHashMap::default()],
        failed: FxHashSet::default(),
        next_id: 0,
        depth: 0,
        nested_declarations: Vec::new(),
        is_in_size: false,
    };
    let declarations = parser.program();
    (declarations, parser.next_id)
}

impl SyntaxParser<'_> {
    fn token(&self) -> &SourceToken {
        self.ahead(0)
    }

    fn ahead(&self, count: usize) -> &SourceToken {
        &self.tokens[(self.at + count).min(self.tokens.len() - 1)]
    }

    fn span(&self) -> SourceSpan {
        self.token().span
    }

    /// Place of the token that was read last.
    fn last_span(&self) -> SourceSpan {
        self.tokens[self.at.saturating_sub(1).min(self.tokens.len() - 1)].span
    }

    fn is_end(&self) -> bool {
        self.token().kind == TokenKind::End
    }

    fn is(&self, text: &str) -> bool {
        self.token().word_or_mark() == text
    }

    fn is_ahead(&self, count: usize, text: &str) -> bool {
        self.ahead(count).word_or_mark() == text
    }

    fn advance(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len() - 1);
    }

    fn take(&mut self, text: &str) -> bool {
        let is = self.is(text);
        if is {
            self.advance();
        }
        is
    }

    fn fail<T>(&mut self, diagnostic: SourceDiagnostic) -> Parsed<T> {
        self.sink.push(diagnostic);
        Err(SyntaxFailure)
    }

    fn unexpected<T>(&mut self, expected: &str) -> Parsed<T> {
        let message = match self.token().kind {
            TokenKind::Stray(reason) => reason.to_owned(),
            _ => format!("expected {expected}, found {}", self.token().describe()),
        };
        self.fail(SourceDiagnostic::error(self.span(), message))
    }

    fn expect(&mut self, text: &str) -> Parsed<()> {
        if self.take(text) { Ok(()) } else { self.unexpected(&format!("`{text}`")) }
    }

    /// Reads within a size, or within brackets.
    fn within<T>(&mut self, is_in_size: bool, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        let outer = std::mem::replace(&mut self.is_in_size, is_in_size);
        let result = read(self);
        self.is_in_size = outer;
        result
    }

    /// Runs a reading one level deeper.
    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= DEEPEST_NESTING {
            let span = self.span();
            return self.fail(SourceDiagnostic::error(span, "the program nests too deeply here"));
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    /// Tries a reading; if it fails, nothing was read.
    fn attempt<T>(&mut self, reading: TriedReading, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Option<T> {
        let from = self.at;
        if self.failed.contains(&(from, reading)) {
            return None;
        }
        let kept = std::mem::take(&mut self.sink.list);
        let result = read(self).ok();
        let found = std::mem::replace(&mut self.sink.list, kept);
        if result.is_some() {
            self.sink.list.extend(found);
        } else {
            self.at = from;
            self.failed.insert((from, reading));
        }
        result
    }

    /// Fails a reading that is tried, without a message.
    fn reject<T>(&self) -> Parsed<T> {
        Err(SyntaxFailure)
    }

    fn is_name_at(&self, count: usize) -> bool {
        match &self.ahead(count).kind {
            TokenKind::Word(word) => !RESERVED.contains(&&**word),
            _ => false,
        }
    }

    fn name(&mut self) -> Parsed<SourceName> {
        if let (TokenKind::Word(text), true) = (&self.token().kind, self.is_name_at(0)) {
            let name = SourceName { text: text.clone(), span: self.span() };
            self.advance();
            return Ok(name);
        }
        self.unexpected("a name")
    }

    fn declare(&mut self, name: &SourceName, is_type: bool) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.text.clone(), is_type);
        }
    }

    fn is_type_name(&self, word: &str) -> bool {
        self.scopes.iter().rev().find_map(|scope| scope.get(word)).copied().unwrap_or(false)
    }

    fn scoped<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.scopes.push(FxHashMap::default());
        let result = read(self);
        self.scopes.pop();
        result
    }

    fn expression_of(
        &mut self,
        kind: ExpressionKind,
        span: SourceSpan,
        below: u32,
    ) -> Parsed<ExpressionTree> {
        let height = below + 1;
        if height > HIGHEST_TREE {
            return self.fail(SourceDiagnostic::error(span, "this expression has too many operators"));
        }
        self.next_id += 1;
        Ok(ExpressionTree { id: ExpressionId(self.next_id - 1), kind, span, height })
    }

    /// Reads elements up to a closing mark, with separators between them; a last separator may follow.
    fn list<T>(&mut self, close: &str, mut read: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut list = Vec::new();
        while !self.is(close) {
            list.push(read(self)?);
            if !self.take(",") {
                break;
            }
        }
        self.expect(close)?;
        Ok(list)
    }

    /// Skips to the end of a statement or declaration: behind a semicolon, behind braces, or in front of the
    /// brace that closes the surrounding one.
    fn recover(&mut self) {
        let mut depth = 0usize;
        while !self.is_end() {
            match self.token().word_or_mark() {
                "{" => depth += 1,
                "}" if depth == 0 => return,
                "}" => {
                    depth -= 1;
                    if depth == 0 {
                        self.advance();
                        self.take(";");
                        return;
                    }
                }
                ";" if depth == 0 => {
                    self.advance();
                    return;
                }
                _ => {}
            }
            self.advance();
        }
    }

    /// Reads elements up to a closing brace, and goes on behind those that are wrong.
    fn braced<T>(&mut self, mut read: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        self.expect("{")?;
        let mut list = Vec::new();
        while !self.is("}") && !self.is_end() {
            match read(self) {
                Ok(element) => list.push(element),
                Err(SyntaxFailure) => self.recover(),
            }
        }
        self.expect("}")?;
        Ok(list)
    }

    fn annotations(&mut self) -> Parsed<Vec<AnnotationTree>> {
        let mut annotations = Vec::new();
        while self.take("@") {
            annotations.push(self.annotation()?);
        }
        Ok(annotations)
    }

    fn annotation(&mut self) -> Parsed<AnnotationTree> {
        let TokenKind::Word(text) = &self.token().kind else {
            return self.unexpected("an annotation's name");
        };
        let name = SourceName { text: text.clone(), span: self.span() };
        self.advance();
        let body = match self.token().word_or_mark() {
            _ if &*name.text == "pragma" => AnnotationBody::Unstructured(self.rest_of_line()),
            "(" => AnnotationBody::Unstructured(self.parenthesized_tokens()?),
            "[" => self.structured_annotation()?,
            _ => AnnotationBody::Unstructured(Vec::new()),
        };
        Ok(AnnotationTree { name, body })
    }

    fn rest_of_line(&mut self) -> Vec<SourceToken> {
        let mut tokens = Vec::new();
        while !self.is_end() && !self.token().begins_line {
            tokens.push(self.token().clone());
            self.advance();
        }
        tokens
    }

    fn parenthesized_tokens(&mut self) -> Parsed<Vec<SourceToken>> {
        let open = self.span();
        self.advance();
        let mut tokens = Vec::new();
        let mut depth = 0usize;
        while !self.is_end() {
            match self.token().word_or_mark() {
                "(" => depth += 1,
                ")" if depth == 0 => {
                    self.advance();
                    return Ok(tokens);
                }
                ")" => depth -= 1,
                _ => {}
            }
            tokens.push(self.token().clone());
            self.advance();
        }
        self.fail(SourceDiagnostic::error(open, "this annotation has no closing parenthesis"))
    }

    fn structured_annotation(&mut self) -> Parsed<AnnotationBody> {
        self.advance();
        if self.is_name_at(0) && self.is_ahead(1, "=") {
            let pairs = self.list("]", |p| {
                let name = p.name()?;
                p.expect("=")?;
                Ok((name, p.expression()?))
            })?;
            return Ok(AnnotationBody::Pairs(pairs));
        }
        Ok(AnnotationBody::Expressions(self.list("]", Self::expression)?))
    }

    /// Reads all declarations, and goes on behind those that have errors.
    pub(super) fn program(&mut self) -> Vec<DeclarationTree> {
        let mut declarations = Vec::new();
        while !self.is_end() {
            if self.take(";") {
                continue;
            }
            self.scopes.truncate(1);
            match self.top_declaration() {
                Ok(declaration) => {
                    declarations.append(&mut self.nested_declarations);
                    declarations.push(declaration);
                }
                Err(SyntaxFailure) => {
                    self.recover();
                    self.take("}");
                }
            }
        }
        declarations
    }

    /// Reads a declaration of the outermost level.
    fn top_declaration(&mut self) -> Parsed<DeclarationTree> {
        let annotations = self.annotations()?;
        let word = self.token().word_or_mark().to_owned();
        match word.as_str() {
            "const" => {
                let constant = declarations::constant(self, annotations)?;
                self.declare(&constant.name, false);
                Ok(constant)
            }
            "extern" => objects::external(self, annotations),
            "action" => declarations::action(self, annotations),
            "parser" => objects::parser(self, annotations),
            "control" => objects::control(self, annotations),
            "package" => declarations::package(self, annotations),
            "struct" => declarations::aggregate(self, annotations, AggregateKind::Struct),
            "header" => declarations::aggregate(self, annotations, AggregateKind::Header),
            "header_union" => declarations::aggregate(self, annotations, AggregateKind::HeaderUnion),
            "enum" => declarations::enumeration(self, annotations),
            "error" if self.is_ahead(1, "{") => declarations::member_names(self, annotations),
            "match_kind" if self.is_ahead(1, "{") => declarations::member_names(self, annotations),
            "typedef" => declarations::type_alias(self, annotations),
            "type" if !self.is_ahead(1, "(") => declarations::type_alias(self, annotations),
            _ => declarations::function_or_instance(self, annotations),
        }
    }

    /// Makes a declaration whose parts were read.
    pub(super) fn declaration(
        &self,
        annotations: Vec<AnnotationTree>,
        name: SourceName,
        kind: DeclarationKind,
        start: SourceSpan,
    ) -> DeclarationTree {
        DeclarationTree { annotations, name, kind, span: start.to(self.last_span()) }
    }

    /// Reads an expression.
    pub(crate) fn expression(&mut self) -> Parsed<ExpressionTree> {
        expressions::expression(self)
    }

    /// Reads statements within braces, in a scope of their own.
    fn block(&mut self, annotations: Vec<AnnotationTree>) -> Parsed<BlockSyntax> {
        statements::block(self, annotations)
    }
}
