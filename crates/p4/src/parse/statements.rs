//! Statements.

use crate::ast::{
    AnnotationTree, BlockSyntax, ConditionalSyntax, DeclarationTree, ForInSyntax, ForLoopSyntax,
    StatementKind, StatementTree, SwitchCase,
};
use crate::diagnostic::SourceDiagnostic;
use crate::expression::{BinaryOperator, ExpressionKind, ExpressionTree};
use crate::parse::{Parsed, SyntaxFailure, SyntaxParser, declarations, expressions, types};

/// Reads statements within braces, in a scope of their own.
pub(super) fn block(parser: &mut SyntaxParser<'_>, annotations: Vec<AnnotationTree>) -> Parsed<BlockSyntax> {
    let start = parser.span();
    let inner = if parser.is("@") { parser.annotations()? } else { Vec::new() };
    let statements = parser.scoped(|p| p.braced(statement))?;
    let annotations = annotations.into_iter().chain(inner).collect();
    Ok(BlockSyntax { annotations, statements, span: start.to(parser.last_span()) })
}

pub(super) fn statement(parser: &mut SyntaxParser<'_>) -> Parsed<StatementTree> {
    parser.nested(|p| {
        let start = p.span();
        let annotations = p.annotations()?;
        let kind = statement_kind(p, annotations)?;
        Ok(StatementTree { kind, span: start.to(p.last_span()) })
    })
}

fn statement_kind(parser: &mut SyntaxParser<'_>, annotations: Vec<AnnotationTree>) -> Parsed<StatementKind> {
    let word = parser.token().word_or_mark().to_owned();
    let simple = match word.as_str() {
        ";" => StatementKind::Empty,
        "exit" => StatementKind::Exit,
        "break" => StatementKind::Break,
        "continue" => StatementKind::Continue,
        "{" => return Ok(StatementKind::Block(block(parser, annotations)?)),
        "if" => return conditional(parser),
        "switch" => return switch(parser),
        "for" => return parser.scoped(for_loop),
        "return" => return return_statement(parser),
        "const" => return declared(parser, annotations),
        _ if begins_declaration(parser) => return declaration_or_application(parser, annotations),
        _ => {
            let kind = assignment_or_call(parser)?;
            parser.expect(";")?;
            return Ok(kind);
        }
    };
    parser.advance();
    if word != ";" {
        parser.expect(";")?;
    }
    Ok(simple)
}

fn declared(parser: &mut SyntaxParser<'_>, annotations: Vec<AnnotationTree>) -> Parsed<StatementKind> {
    Ok(StatementKind::Declaration(Box::new(local_declaration(parser, annotations)?)))
}

/// Tells if a type begins here, or a name that stands where a type has to be: `NAME NAME`.
pub(super) fn begins_declaration(parser: &SyntaxParser<'_>) -> bool {
    let is_error_value = parser.is("error") && parser.is_ahead(1, ".");
    (types::is_type_keyword(parser) && !is_error_value)
        || types::is_declared_type(parser)
        || (parser.is_name_at(0) && parser.is_name_at(1))
}

fn declaration_or_application(
    parser: &mut SyntaxParser<'_>,
    annotations: Vec<AnnotationTree>,
) -> Parsed<StatementKind> {
    let from = parser.at;
    let target = types::type_syntax(parser)?;
    if parser.is(".") && parser.is_ahead(1, "apply") {
        parser.advance();
        parser.advance();
        let arguments = expressions::arguments(parser)?;
        parser.expect(";")?;
        return Ok(StatementKind::DirectApplication(target, arguments));
    }
    let is_call = parser.is(".");
    parser.at = from;
    if is_call {
        let kind = assignment_or_call(parser)?;
        parser.expect(";")?;
        return Ok(kind);
    }
    declared(parser, annotations)
}

pub(super) fn local_declaration(
    parser: &mut SyntaxParser<'_>,
    annotations: Vec<AnnotationTree>,
) -> Parsed<DeclarationTree> {
    let declaration = match parser.is("const") {
        true => declarations::constant(parser, annotations)?,
        false => declarations::variable_or_instance(parser, annotations)?,
    };
    parser.declare(&declaration.name, false);
    Ok(declaration)
}

fn assignment_or_call(parser: &mut SyntaxParser<'_>) -> Parsed<StatementKind> {
    let left = parser.expression()?;
    let operator = parser.token().word_or_mark().to_owned();
    if operator == "=" {
        parser.advance();
        return Ok(StatementKind::Assignment(left, None, parser.expression()?));
    }
    if let Some(binary) = compound_operator(parser) {
        return Ok(StatementKind::Assignment(left, Some(binary), parser.expression()?));
    }
    match left.kind {
        ExpressionKind::Call(..) => Ok(StatementKind::Call(left)),
        ExpressionKind::Construct(..) => {
            parser.fail(SourceDiagnostic::error(left.span, "an instance needs a name"))
        }
        _ if parser.is_name_at(0) => {
            parser.fail(SourceDiagnostic::error(left.span, "a type is expected here, and this is none"))
        }
        _ => parser.unexpected("`=` or a call"),
    }
}

/// Reads an operator with an equals sign behind it.
fn compound_operator(parser: &mut SyntaxParser<'_>) -> Option<BinaryOperator> {
    let mark = parser.token().word_or_mark();
    if mark == ">" && parser.is_ahead(1, ">=") && !parser.ahead(1).is_spaced {
        parser.advance();
        parser.advance();
        return Some(BinaryOperator::ShiftRight);
    }
    let operator = mark.strip_suffix('=').filter(|operator| {
        matches!(*operator, "+" | "-" | "*" | "/" | "%" | "&" | "|" | "^" | "<<" | "|+|" | "|-|")
    })?;
    let (operator, _) = BinaryOperator::of(operator)?;
    parser.advance();
    Some(operator)
}

fn conditional(parser: &mut SyntaxParser<'_>) -> Parsed<StatementKind> {
    parser.advance();
    parser.expect("(")?;
    let condition = parser.expression()?;
    parser.expect(")")?;
    let then = branch(parser)?;
    let otherwise = if parser.take("else") { Some(branch(parser)?) } else { None };
    Ok(StatementKind::Conditional(Box::new(ConditionalSyntax { condition, then, otherwise })))
}

/// Reads a branch or a loop's body. A declaration alone is none.
fn branch(parser: &mut SyntaxParser<'_>) -> Parsed<StatementTree> {
    let statement = parser.scoped(statement)?;
    if matches!(statement.kind, StatementKind::Declaration(_)) {
        parser.sink.error(statement.span, "a declaration cannot be a branch on its own; braces are missing");
    }
    Ok(statement)
}

fn return_statement(parser: &mut SyntaxParser<'_>) -> Parsed<StatementKind> {
    parser.advance();
    let value = if parser.is(";") { None } else { Some(parser.expression()?) };
    parser.expect(";")?;
    Ok(StatementKind::Return(value))
}

fn switch(parser: &mut SyntaxParser<'_>) -> Parsed<StatementKind> {
    parser.advance();
    parser.expect("(")?;
    let value = parser.expression()?;
    parser.expect(")")?;
    let cases = parser.braced(switch_case)?;
    Ok(StatementKind::Switch(value, cases))
}

fn switch_case(parser: &mut SyntaxParser<'_>) -> Parsed<SwitchCase> {
    let span = parser.span();
    let label = if parser.take("default") { None } else { Some(parser.expression()?) };
    let span = span.to(parser.last_span());
    parser.expect(":")?;
    let body = if parser.is("{") || parser.is("@") { Some(block(parser, Vec::new())?) } else { None };
    Ok(SwitchCase { label, span, body })
}

fn for_loop(parser: &mut SyntaxParser<'_>) -> Parsed<StatementKind> {
    parser.advance();
    parser.expect("(")?;
    if let Some(kind) = for_in(parser)? {
        return Ok(kind);
    }
    let mut start = Vec::new();
    while !parser.is(";") {
        start.push(loop_statement(parser, true)?);
        if !parser.take(",") {
            break;
        }
    }
    parser.expect(";")?;
    let condition = parser.expression()?;
    parser.expect(";")?;
    let update = parser.list(")", |p| loop_statement(p, false))?;
    let body = branch(parser)?;
    Ok(StatementKind::ForLoop(Box::new(ForLoopSyntax { start, condition, update, body })))
}

/// Reads an assignment, a call, or a declaration without its semicolon.
fn loop_statement(parser: &mut SyntaxParser<'_>, may_declare: bool) -> Parsed<StatementTree> {
    let span = parser.span();
    let annotations = parser.annotations()?;
    let kind = if may_declare && begins_declaration(parser) {
        let declared_type = types::type_syntax(parser)?;
        let declaration = declarations::variable_behind(parser, annotations, declared_type, span)?;
        parser.declare(&declaration.name, false);
        StatementKind::Declaration(Box::new(declaration))
    } else {
        assignment_or_call(parser)?
    };
    Ok(StatementTree { kind, span: span.to(parser.last_span()) })
}

/// Reads `VARIABLE in COLLECTION) BODY`, or nothing if this is the other loop.
fn for_in(parser: &mut SyntaxParser<'_>) -> Parsed<Option<StatementKind>> {
    let from = parser.at;
    let Some((declared_type, variable)) = parser.attempt(super::TriedReading::Declaration, |p| {
        p.annotations()?;
        let declared_type = if begins_declaration(p) { Some(types::type_syntax(p)?) } else { None };
        let variable = for_in_variable(p)?;
        if p.take("in") { Ok((declared_type, variable)) } else { Err(SyntaxFailure) }
    }) else {
        parser.at = from;
        return Ok(None);
    };
    if let (Some(_), ExpressionKind::Name(name)) = (&declared_type, &variable.kind) {
        parser.declare(&name.name, false);
    }
    let collection = expressions::range_expression(parser)?;
    parser.expect(")")?;
    let body = branch(parser)?;
    Ok(Some(StatementKind::ForInLoop(Box::new(ForInSyntax { declared_type, variable, collection, body }))))
}

fn for_in_variable(parser: &mut SyntaxParser<'_>) -> Parsed<ExpressionTree> {
    let name = parser.name()?;
    let span = name.span;
    let kind = ExpressionKind::Name(crate::expression::QualifiedName { is_global: false, name });
    parser.expression_of(kind, span, 0)
}
