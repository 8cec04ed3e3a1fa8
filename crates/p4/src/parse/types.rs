//! Types.

use crate::expression::{QualifiedName, TypeSyntax, TypeSyntaxKind};
use crate::lex::TokenKind;
use crate::parse::{Parsed, SyntaxParser};
use crate::source::SourceName;

/// Most sizes behind a type.
const MOST_DIMENSIONS: usize = 8;

impl SyntaxParser<'_> {
    /// Tells if a type that is no name begins here.
    pub(super) fn is_type_keyword(&self) -> bool {
        let word = self.token().word_or_mark();
        matches!(
            word,
            "bool" | "bit" | "int" | "varbit" | "string" | "void" | "tuple" | "error" | "match_kind"
        ) || (word == "list" && self.is_ahead(1, "<"))
    }

    /// Tells if a declared type's name is here, possibly with a dot in front.
    pub(super) fn is_declared_type(&self) -> bool {
        let is_global = self.is(".");
        match &self.ahead(usize::from(is_global)).kind {
            TokenKind::Word(word) if is_global => self.scopes[0].get(word).copied().unwrap_or(false),
            TokenKind::Word(word) => self.is_type_name(word),
            _ => false,
        }
    }

    pub(super) fn qualified_name(&mut self) -> Parsed<QualifiedName> {
        let is_global = self.take(".");
        Ok(QualifiedName { is_global, name: self.name()? })
    }

    /// Reads a type, and the sizes of stacks behind it.
    pub(super) fn type_syntax(&mut self) -> Parsed<TypeSyntax> {
        self.nested(|p| {
            let start = p.span();
            let syntax = TypeSyntax { kind: p.base_type()?, span: start.to(p.last_span()) };
            p.dimensions(syntax)
        })
    }

    /// Reads sizes of stacks, behind a type or behind a declared name.
    pub(super) fn dimensions(&mut self, mut syntax: TypeSyntax) -> Parsed<TypeSyntax> {
        for _ in 0..MOST_DIMENSIONS {
            if !self.take("[") {
                return Ok(syntax);
            }
            let size = self.within(false, Self::expression)?;
            self.expect("]")?;
            let span = syntax.span.to(self.last_span());
            syntax = TypeSyntax { kind: TypeSyntaxKind::Stack(Box::new(syntax), Box::new(size)), span };
        }
        self.unexpected("a type of fewer dimensions")
    }

    fn base_type(&mut self) -> Parsed<TypeSyntaxKind> {
        let word = self.token().word_or_mark().to_owned();
        let simple = match word.as_str() {
            "bool" => TypeSyntaxKind::Bool,
            "error" => TypeSyntaxKind::ErrorCode,
            "match_kind" => TypeSyntaxKind::MatchKind,
            "string" => TypeSyntaxKind::Text,
            "void" => TypeSyntaxKind::Void,
            "_" => TypeSyntaxKind::Anything,
            "bit" if !self.is_ahead(1, "<") => TypeSyntaxKind::Bits(None),
            "int" if !self.is_ahead(1, "<") => TypeSyntaxKind::Integer,
            _ => return self.sized_or_named_type(&word),
        };
        self.advance();
        Ok(simple)
    }

    fn sized_or_named_type(&mut self, word: &str) -> Parsed<TypeSyntaxKind> {
        let takes_size = matches!(word, "bit" | "int" | "varbit");
        let takes_types = word == "tuple" || (word == "list" && self.is_ahead(1, "<"));
        if takes_size {
            self.advance();
            let size = Box::new(self.size()?);
            return Ok(match word {
                "bit" => TypeSyntaxKind::Bits(Some(size)),
                "int" => TypeSyntaxKind::SignedBits(size),
                _ => TypeSyntaxKind::VariableBits(size),
            });
        }
        if takes_types {
            self.advance();
            let mut arguments = self.type_arguments()?;
            return Ok(match (word, arguments.len()) {
                ("tuple", _) => TypeSyntaxKind::Tuple(arguments),
                (_, 1) => TypeSyntaxKind::List(Box::new(arguments.remove(0))),
                _ => return self.unexpected("one type of the elements of the list"),
            });
        }
        if !self.is(".") && !self.is_name_at(0) {
            return self.unexpected("a type");
        }
        let name = self.qualified_name()?;
        match self.is("<") {
            true => Ok(TypeSyntaxKind::Specialized(name, self.type_arguments()?)),
            false => Ok(TypeSyntaxKind::Named(name)),
        }
    }

    /// Reads `<SIZE>`. The grammar asks for parentheses around what is no number; nothing is ambiguous
    /// without.
    fn size(&mut self) -> Parsed<crate::expression::ExpressionTree> {
        self.expect("<")?;
        let size = self.within(true, Self::expression)?;
        self.expect(">")?;
        Ok(size)
    }

    /// Reads `<TYPES>`.
    pub(super) fn type_arguments(&mut self) -> Parsed<Vec<TypeSyntax>> {
        self.expect("<")?;
        self.list(">", Self::type_syntax)
    }

    /// Reads `<NAMES>`, if it is here, and declares the names as types.
    pub(super) fn type_parameters(&mut self) -> Parsed<Vec<SourceName>> {
        if !self.take("<") {
            return Ok(Vec::new());
        }
        self.list(">", |p| {
            let name = p.name()?;
            p.declare(&name, true);
            Ok(name)
        })
    }
}
