//! Expressions: operators by strength, what may follow an operand, operands, and sets of values.

use crate::diagnostic::SourceDiagnostic;
use crate::expression::{
    BinaryOperator, CallArgument, ExpressionKind, ExpressionTree, TypeSyntax, TypeSyntaxKind, UnaryOperator,
};
use crate::lex::TokenKind;
use crate::parse::literals::number;
use crate::parse::{Parsed, SyntaxParser, TriedReading, types};

/// Strength of the weakest operator of an ordinary expression; masks and ranges are weaker.
const WEAKEST: u8 = 3;

pub(super) fn expression(parser: &mut SyntaxParser<'_>) -> Parsed<ExpressionTree> {
    parser.nested(|p| {
        let condition = binary(p, WEAKEST)?;
        if !p.take("?") {
            return Ok(condition);
        }
        let then = p.expression()?;
        p.expect(":")?;
        let otherwise = p.expression()?;
        let span = condition.span.to(otherwise.span);
        let below = condition.height.max(then.height).max(otherwise.height);
        p.expression_of(ExpressionKind::Ternary(Box::new([condition, then, otherwise])), span, below)
    })
}

/// Reads an expression, or a mask or range of two.
pub(super) fn range_expression(parser: &mut SyntaxParser<'_>) -> Parsed<ExpressionTree> {
    let left = expression(parser)?;
    let operator = match parser.token().word_or_mark() {
        "&&&" => BinaryOperator::Mask,
        ".." => BinaryOperator::Range,
        _ => return Ok(left),
    };
    parser.advance();
    let right = expression(parser)?;
    binary_of(parser, operator, left, right)
}

fn binary_of(
    parser: &mut SyntaxParser<'_>,
    operator: BinaryOperator,
    left: ExpressionTree,
    right: ExpressionTree,
) -> Parsed<ExpressionTree> {
    let span = left.span.to(right.span);
    let below = left.height.max(right.height);
    parser.expression_of(ExpressionKind::Binary(operator, Box::new(left), Box::new(right)), span, below)
}

/// Operator that is here, its strength, and its number of tokens.
fn operator(parser: &SyntaxParser<'_>) -> Option<(BinaryOperator, u8, usize)> {
    let is_close = parser.is(">");
    let next = parser.ahead(1);
    if is_close && parser.is_in_size {
        return None;
    }
    if is_close && !next.is_spaced && matches!(next.word_or_mark(), ">" | ">=") {
        let (operator, strength) = BinaryOperator::of(">>")?;
        return (next.word_or_mark() == ">").then_some((operator, strength, 2));
    }
    let (operator, strength) = BinaryOperator::of(parser.token().word_or_mark())?;
    Some((operator, strength, 1))
}

fn binary(parser: &mut SyntaxParser<'_>, weakest: u8) -> Parsed<ExpressionTree> {
    let mut left = unary(parser)?;
    while let Some((operator, strength, length)) = operator(parser).filter(|(_, s, _)| *s >= weakest) {
        for _ in 0..length {
            parser.advance();
        }
        let right = binary(parser, strength + 1)?;
        left = binary_of(parser, operator, left, right)?;
    }
    Ok(left)
}

fn unary(parser: &mut SyntaxParser<'_>) -> Parsed<ExpressionTree> {
    let operator = match parser.token().word_or_mark() {
        "!" => UnaryOperator::Not,
        "~" => UnaryOperator::Complement,
        "-" => UnaryOperator::Minus,
        "+" => UnaryOperator::Plus,
        _ => return postfix(parser),
    };
    let start = parser.span();
    parser.advance();
    let operand = parser.nested(unary)?;
    let (span, below) = (start.to(operand.span), operand.height);
    parser.expression_of(ExpressionKind::Unary(operator, Box::new(operand)), span, below)
}

/// Reads an operand of the strength of a cast: `(TYPE) OPERAND`.
pub(super) fn cast(parser: &mut SyntaxParser<'_>) -> Parsed<ExpressionTree> {
    let start = parser.span();
    parser.advance();
    let target = types::type_syntax(parser)?;
    parser.expect(")")?;
    if !begins_operand(parser) {
        return parser.unexpected("the value of the cast");
    }
    let value = parser.nested(unary)?;
    let (span, below) = (start.to(value.span), value.height);
    parser.expression_of(ExpressionKind::Cast(Box::new(target), Box::new(value)), span, below)
}

fn postfix(parser: &mut SyntaxParser<'_>) -> Parsed<ExpressionTree> {
    let mut value = primary(parser)?;
    loop {
        value = match parser.token().word_or_mark() {
            "." => {
                parser.advance();
                let member = parser.name()?;
                let (span, below) = (value.span.to(member.span), value.height);
                parser.expression_of(ExpressionKind::Member(Box::new(value), member), span, below)?
            }
            "[" => index(parser, value)?,
            "(" => call(parser, value, Vec::new())?,
            "<" => match parser.attempt(TriedReading::TypeArguments, call_types) {
                Some(types) => call(parser, value, types)?,
                None => return Ok(value),
            },
            _ => return Ok(value),
        };
    }
}

/// Reads the type arguments of a call: types that are declared, and a parenthesis behind them.
fn call_types(parser: &mut SyntaxParser<'_>) -> Parsed<Vec<TypeSyntax>> {
    parser.expect("<")?;
    let types =
        parser.list(">", |p| match types::is_type_keyword(p) || types::is_declared_type(p) || p.is("_") {
            true => types::type_syntax(p),
            false => p.reject(),
        })?;
    if parser.is("(") { Ok(types) } else { parser.reject() }
}

fn call(
    parser: &mut SyntaxParser<'_>,
    function: ExpressionTree,
    types: Vec<TypeSyntax>,
) -> Parsed<ExpressionTree> {
    let arguments = arguments(parser)?;
    let span = function.span.to(parser.last_span());
    let below = arguments_height(&arguments).max(function.height);
    parser.expression_of(ExpressionKind::Call(Box::new(function), types, arguments), span, below)
}

pub(super) fn arguments(parser: &mut SyntaxParser<'_>) -> Parsed<Vec<CallArgument>> {
    parser.expect("(")?;
    parser.within(false, argument_list)
}

fn argument_list(parser: &mut SyntaxParser<'_>) -> Parsed<Vec<CallArgument>> {
    parser.list(")", |p| {
        let start = p.span();
        let is_named = p.is_name_at(0) && p.is_ahead(1, "=");
        let name = if is_named { Some(p.name()?) } else { None };
        if is_named {
            p.advance();
        }
        let value = if p.take("_") { None } else { Some(p.expression()?) };
        Ok(CallArgument { name, value, span: start.to(p.last_span()) })
    })
}

fn index(parser: &mut SyntaxParser<'_>, value: ExpressionTree) -> Parsed<ExpressionTree> {
    parser.advance();
    let first = parser.within(false, expression)?;
    let close = parser.token().word_or_mark().to_owned();
    let below = value.height.max(first.height);
    if close != ":" && close != "+:" {
        parser.expect("]")?;
        let span = value.span.to(parser.last_span());
        return parser.expression_of(ExpressionKind::Index(Box::new(value), Box::new(first)), span, below);
    }
    parser.advance();
    let second = parser.within(false, expression)?;
    parser.expect("]")?;
    let span = value.span.to(parser.last_span());
    let below = below.max(second.height);
    let parts = Box::new([value, first, second]);
    let kind = if close == ":" { ExpressionKind::Slice(parts) } else { ExpressionKind::WidthSlice(parts) };
    parser.expression_of(kind, span, below)
}

/// Greatest height of the values of arguments.
pub(super) fn arguments_height(arguments: &[CallArgument]) -> u32 {
    arguments.iter().filter_map(|a| a.value.as_ref()).map(|value| value.height).max().unwrap_or(0)
}

pub(super) fn begins_operand(parser: &SyntaxParser<'_>) -> bool {
    match &parser.token().kind {
        TokenKind::Word(_) | TokenKind::Number(_) | TokenKind::Text(_) => true,
        TokenKind::Mark(mark) => {
            matches!(*mark, "(" | "{" | "{#}" | "..." | "." | "!" | "~" | "-" | "+" | "_")
        }
        _ => false,
    }
}

pub(super) fn primary(parser: &mut SyntaxParser<'_>) -> Parsed<ExpressionTree> {
    let span = parser.span();
    let kind = match parser.token().kind.clone() {
        TokenKind::Number(text) => match number(&text) {
            Ok(literal) => ExpressionKind::Number(literal),
            Err(reason) => return parser.fail(SourceDiagnostic::error(span, reason)),
        },
        TokenKind::Text(text) => ExpressionKind::Text(text),
        _ => match parser.token().word_or_mark() {
            "true" => ExpressionKind::Boolean(true),
            "false" => ExpressionKind::Boolean(false),
            "this" => ExpressionKind::This,
            "..." => ExpressionKind::Default,
            "{#}" => ExpressionKind::Invalid,
            "{" => return parser.within(false, braces),
            "(" => return parser.within(false, parentheses),
            _ => return named_operand(parser),
        },
    };
    parser.advance();
    parser.expression_of(kind, span, 0)
}

fn named_operand(parser: &mut SyntaxParser<'_>) -> Parsed<ExpressionTree> {
    let span = parser.span();
    if types::is_type_keyword(parser) {
        let target = types::type_syntax(parser)?;
        return type_operand(parser, target);
    }
    if !types::is_declared_type(parser) {
        if !parser.is(".") && !parser.is_name_at(0) {
            return parser.unexpected("an expression");
        }
        let name = types::qualified_name(parser)?;
        let span = span.to(parser.last_span());
        return parser.expression_of(ExpressionKind::Name(name), span, 0);
    }
    let name = types::qualified_name(parser)?;
    let kind = match parser.is("<") {
        true => TypeSyntaxKind::Specialized(name, types::type_arguments(parser)?),
        false => TypeSyntaxKind::Named(name),
    };
    type_operand(parser, TypeSyntax { kind, span: span.to(parser.last_span()) })
}

/// Reads what follows a type within an expression: a member, or the arguments of a constructor.
fn type_operand(parser: &mut SyntaxParser<'_>, target: TypeSyntax) -> Parsed<ExpressionTree> {
    let start = target.span;
    if parser.take(".") {
        let member = parser.name()?;
        let span = start.to(member.span);
        return parser.expression_of(ExpressionKind::TypeMember(Box::new(target), member), span, 0);
    }
    if !parser.is("(") {
        return parser.unexpected("`.` or `(` behind the type");
    }
    let arguments = arguments(parser)?;
    let span = start.to(parser.last_span());
    let below = arguments_height(&arguments);
    parser.expression_of(ExpressionKind::Construct(Box::new(target), arguments), span, below)
}

/// Reads a cast, or an expression in parentheses.
fn parentheses(parser: &mut SyntaxParser<'_>) -> Parsed<ExpressionTree> {
    parser.advance();
    let may_be_type = types::is_type_keyword(parser) || types::is_declared_type(parser);
    parser.at -= 1;
    if may_be_type && let Some(cast) = parser.attempt(TriedReading::Cast, cast) {
        return Ok(cast);
    }
    parser.advance();
    let value = range_expression(parser)?;
    parser.expect(")")?;
    Ok(value)
}

/// Reads a list, or names with values.
fn braces(parser: &mut SyntaxParser<'_>) -> Parsed<ExpressionTree> {
    let start = parser.span();
    parser.advance();
    if parser.is_name_at(0) && parser.is_ahead(1, "=") {
        return record(parser, start);
    }
    let list = parser.list("}", expression)?;
    let below = list.iter().map(|value| value.height).max().unwrap_or(0);
    let span = start.to(parser.last_span());
    if let Some(rest) = list.iter().rev().skip(1).find(|v| matches!(v.kind, ExpressionKind::Default)) {
        parser.sink.error(rest.span, "`...` is only allowed at the end of a list");
    }
    parser.expression_of(ExpressionKind::List(list), span, below)
}

fn record(parser: &mut SyntaxParser<'_>, start: crate::source::SourceSpan) -> Parsed<ExpressionTree> {
    let mut has_rest = false;
    let mut fields = Vec::new();
    while !parser.is("}") {
        if parser.take("...") {
            has_rest = true;
            break;
        }
        let name = parser.name()?;
        parser.expect("=")?;
        fields.push((name, expression(parser)?));
        if !parser.take(",") {
            break;
        }
    }
    parser.expect("}")?;
    let below = fields.iter().map(|(_, value)| value.height).max().unwrap_or(0);
    let span = start.to(parser.last_span());
    parser.expression_of(ExpressionKind::Record(fields, has_rest), span, below)
}

/// Reads a set of values: a tuple of sets in parentheses, or one set.
pub(super) fn keyset(parser: &mut SyntaxParser<'_>) -> Parsed<ExpressionTree> {
    if parser.is("(")
        && let Some(tuple) = parser.attempt(TriedReading::KeysetTuple, keyset_tuple)
    {
        return Ok(tuple);
    }
    simple_keyset(parser)
}

fn keyset_tuple(parser: &mut SyntaxParser<'_>) -> Parsed<ExpressionTree> {
    let start = parser.span();
    parser.advance();
    let mut list = parser.list(")", simple_keyset)?;
    if !parser.is(":") {
        return parser.reject();
    }
    if list.len() == 1 {
        return list.pop().map_or_else(|| parser.reject(), Ok);
    }
    let below = list.iter().map(|value| value.height).max().unwrap_or(0);
    let span = start.to(parser.last_span());
    parser.expression_of(ExpressionKind::KeysetTuple(list), span, below)
}

fn simple_keyset(parser: &mut SyntaxParser<'_>) -> Parsed<ExpressionTree> {
    if parser.is("_") || parser.is("default") {
        let span = parser.span();
        parser.advance();
        return parser.expression_of(ExpressionKind::Anything, span, 0);
    }
    range_expression(parser)
}
