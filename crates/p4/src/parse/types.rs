//! Types.

use crate::expression::{QualifiedName, TypeSyntax, TypeSyntaxKind};
use crate::lex::TokenKind;
use crate::parse::{Parsed, SyntaxParser};
use crate::source::SourceName;

/// Most sizes behind a type.
const MOST_DIMENSIONS: usize = 8;

/// Tells if a type that is no name begins here.
pub(super) fn is_type_keyword(parser: &SyntaxParser<'_>) -> bool {
    let word = parser.token().word_or_mark();
    matches!(word, "bool" | "bit" | "int" | "varbit" | "string" | "void" | "tuple" | "error" | "match_kind")
        || (word == "list" && parser.is_ahead(1, "<"))
}

/// Tells if a declared type's name is here, possibly with a dot in front.
pub(super) fn is_declared_type(parser: &SyntaxParser<'_>) -> bool {
    let is_global = parser.is(".");
    match &parser.ahead(usize::from(is_global)).kind {
        TokenKind::Word(word) if is_global => parser.scopes[0].get(word).copied().unwrap_or(false),
        TokenKind::Word(word) => parser.is_type_name(word),
        _ => false,
    }
}

pub(super) fn qualified_name(parser: &mut SyntaxParser<'_>) -> Parsed<QualifiedName> {
    let is_global = parser.take(".");
    Ok(QualifiedName { is_global, name: parser.name()? })
}

/// Reads a type, and the sizes of stacks behind it.
pub(super) fn type_syntax(parser: &mut SyntaxParser<'_>) -> Parsed<TypeSyntax> {
    parser.nested(|p| {
        let start = p.span();
        let syntax = TypeSyntax { kind: base_type(p)?, span: start.to(p.last_span()) };
        dimensions(p, syntax)
    })
}

/// Reads sizes of stacks, behind a type or behind a declared name.
pub(super) fn dimensions(parser: &mut SyntaxParser<'_>, mut syntax: TypeSyntax) -> Parsed<TypeSyntax> {
    for _ in 0..MOST_DIMENSIONS {
        if !parser.take("[") {
            return Ok(syntax);
        }
        let size = parser.within(false, SyntaxParser::expression)?;
        parser.expect("]")?;
        let span = syntax.span.to(parser.last_span());
        syntax = TypeSyntax { kind: TypeSyntaxKind::Stack(Box::new(syntax), Box::new(size)), span };
    }
    parser.unexpected("a type of fewer dimensions")
}

fn base_type(parser: &mut SyntaxParser<'_>) -> Parsed<TypeSyntaxKind> {
    let word = parser.token().word_or_mark().to_owned();
    let simple = match word.as_str() {
        "bool" => TypeSyntaxKind::Bool,
        "error" => TypeSyntaxKind::ErrorCode,
        "match_kind" => TypeSyntaxKind::MatchKind,
        "string" => TypeSyntaxKind::Text,
        "void" => TypeSyntaxKind::Void,
        "_" => TypeSyntaxKind::Anything,
        "bit" if !parser.is_ahead(1, "<") => TypeSyntaxKind::Bits(None),
        "int" if !parser.is_ahead(1, "<") => TypeSyntaxKind::Integer,
        _ => return sized_or_named_type(parser, &word),
    };
    parser.advance();
    Ok(simple)
}

fn sized_or_named_type(parser: &mut SyntaxParser<'_>, word: &str) -> Parsed<TypeSyntaxKind> {
    let takes_size = matches!(word, "bit" | "int" | "varbit");
    let takes_types = word == "tuple" || (word == "list" && parser.is_ahead(1, "<"));
    if takes_size {
        parser.advance();
        let size = Box::new(size(parser)?);
        return Ok(match word {
            "bit" => TypeSyntaxKind::Bits(Some(size)),
            "int" => TypeSyntaxKind::SignedBits(size),
            _ => TypeSyntaxKind::VariableBits(size),
        });
    }
    if takes_types {
        parser.advance();
        let mut arguments = type_arguments(parser)?;
        return Ok(match (word, arguments.len()) {
            ("tuple", _) => TypeSyntaxKind::Tuple(arguments),
            (_, 1) => TypeSyntaxKind::List(Box::new(arguments.remove(0))),
            _ => return parser.unexpected("one type of the elements of the list"),
        });
    }
    if !parser.is(".") && !parser.is_name_at(0) {
        return parser.unexpected("a type");
    }
    let name = qualified_name(parser)?;
    match parser.is("<") {
        true => Ok(TypeSyntaxKind::Specialized(name, type_arguments(parser)?)),
        false => Ok(TypeSyntaxKind::Named(name)),
    }
}

/// Reads `<SIZE>`. The grammar asks for parentheses around what is no number; nothing is ambiguous
/// without.
fn size(parser: &mut SyntaxParser<'_>) -> Parsed<crate::expression::ExpressionTree> {
    parser.expect("<")?;
    let size = parser.within(true, SyntaxParser::expression)?;
    parser.expect(">")?;
    Ok(size)
}

/// Reads `<TYPES>`.
pub(super) fn type_arguments(parser: &mut SyntaxParser<'_>) -> Parsed<Vec<TypeSyntax>> {
    parser.expect("<")?;
    parser.list(">", type_syntax)
}

/// Reads `<NAMES>`, if it is here, and declares the names as types.
pub(super) fn type_parameters(parser: &mut SyntaxParser<'_>) -> Parsed<Vec<SourceName>> {
    if !parser.take("<") {
        return Ok(Vec::new());
    }
    parser.list(">", |p| {
        let name = p.name()?;
        p.declare(&name, true);
        Ok(name)
    })
}
