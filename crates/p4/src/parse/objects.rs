//! Externs, parsers and controls.

use crate::ast::{
    AnnotationTree, ControlBody, ControlSyntax, DeclarationKind, DeclarationTree, ExternSyntax, MethodSyntax,
    ParameterSyntax, ParserBody, ParserState, ParserSyntax, SelectCase, StateTransition,
};
use crate::parse::{Parsed, SyntaxParser, declarations, expressions, statements, tables, types};
use crate::source::SourceName;

/// Reads an extern type or an extern function.
pub(super) fn external(
    parser: &mut SyntaxParser<'_>,
    annotations: Vec<AnnotationTree>,
) -> Parsed<DeclarationTree> {
    let start = parser.span();
    parser.advance();
    if parser.is_name_at(0) && (parser.is_ahead(1, "{") || is_extern_type_with_parameters(parser)) {
        let name = parser.name()?;
        parser.declare(&name, true);
        let (type_parameters, methods) = parser.scoped(|p| {
            let type_parameters = types::type_parameters(p)?;
            Ok((type_parameters, p.braced(|p| method(p, &name))?))
        })?;
        let kind = DeclarationKind::Extern(ExternSyntax { type_parameters, methods });
        return Ok(parser.declaration(annotations, name, kind, start));
    }
    let result = types::type_syntax(parser)?;
    let name = parser.name()?;
    parser.declare(&name, false);
    let signature = parser.scoped(|p| declarations::signature(p, Some(result)))?;
    parser.expect(";")?;
    Ok(parser.declaration(annotations, name, DeclarationKind::ExternFunction(signature), start))
}

/// Tells `extern NAME<A, B> {` from a function with a generic result.
fn is_extern_type_with_parameters(parser: &SyntaxParser<'_>) -> bool {
    let mut at = 1;
    while matches!(parser.ahead(at).word_or_mark(), "<" | ",") && parser.is_name_at(at + 1) {
        at += 2;
    }
    at > 1 && parser.is_ahead(at, ">") && parser.is_ahead(at + 1, "{")
}

fn method(parser: &mut SyntaxParser<'_>, owner: &SourceName) -> Parsed<MethodSyntax> {
    let annotations = parser.annotations()?;
    let is_abstract = parser.take("abstract");
    let is_constructor = parser.token().word_or_mark() == &*owner.text && parser.is_ahead(1, "(");
    let result = if is_constructor { None } else { Some(types::type_syntax(parser)?) };
    let name = parser.name()?;
    let signature = parser.scoped(|p| declarations::signature(p, result))?;
    parser.expect(";")?;
    Ok(MethodSyntax { annotations, name, is_abstract, signature })
}

pub(super) fn parser(
    parser: &mut SyntaxParser<'_>,
    annotations: Vec<AnnotationTree>,
) -> Parsed<DeclarationTree> {
    let start = parser.span();
    parser.advance();
    let name = parser.name()?;
    parser.declare(&name, true);
    let syntax = parser.scoped(|p| {
        let type_parameters = types::type_parameters(p)?;
        let parameters = declarations::parameters(p)?;
        if p.take(";") {
            return Ok(ParserSyntax { type_parameters, parameters, body: None });
        }
        let constructor = constructor_parameters(p)?;
        let body = p.scoped(|p| parser_body(p, constructor))?;
        Ok(ParserSyntax { type_parameters, parameters, body: Some(body) })
    })?;
    Ok(parser.declaration(annotations, name, DeclarationKind::Parser(syntax), start))
}

fn constructor_parameters(parser: &mut SyntaxParser<'_>) -> Parsed<Vec<ParameterSyntax>> {
    if parser.is("(") { declarations::parameters(parser) } else { Ok(Vec::new()) }
}

fn parser_body(parser: &mut SyntaxParser<'_>, constructor: Vec<ParameterSyntax>) -> Parsed<ParserBody> {
    let mut body = ParserBody { constructor, locals: Vec::new(), states: Vec::new() };
    let elements = parser.braced(|p| {
        let annotations = p.annotations()?;
        Ok(match p.token().word_or_mark() {
            "state" => ParserElement::State(state(p, annotations)?),
            "value_set" => ParserElement::Local(value_set(p, annotations)?),
            _ => ParserElement::Local(statements::local_declaration(p, annotations)?),
        })
    })?;
    for element in elements {
        match element {
            ParserElement::State(state) => body.states.push(state),
            ParserElement::Local(local) => {
                if !body.states.is_empty() {
                    parser.sink.error(local.span, "declarations have to be in front of the states");
                }
                body.locals.push(local);
            }
        }
    }
    Ok(body)
}

fn value_set(parser: &mut SyntaxParser<'_>, annotations: Vec<AnnotationTree>) -> Parsed<DeclarationTree> {
    let start = parser.span();
    parser.advance();
    parser.expect("<")?;
    let element = types::type_syntax(parser)?;
    parser.expect(">")?;
    parser.expect("(")?;
    let size = parser.expression()?;
    parser.expect(")")?;
    let name = parser.name()?;
    parser.declare(&name, false);
    parser.expect(";")?;
    Ok(parser.declaration(annotations, name, DeclarationKind::ValueSet(element, size), start))
}

fn state(parser: &mut SyntaxParser<'_>, annotations: Vec<AnnotationTree>) -> Parsed<ParserState> {
    parser.advance();
    let name = parser.name()?;
    let (statements, transition) = parser.scoped(|p| {
        p.expect("{")?;
        let mut statements = Vec::new();
        while !p.is("}") && !p.is("transition") && !p.is_end() {
            match statements::statement(p) {
                Ok(statement) => statements.push(statement),
                Err(_) => p.recover(),
            }
        }
        let transition = if p.take("transition") { Some(transition(p)?) } else { None };
        p.expect("}")?;
        Ok((statements, transition))
    })?;
    Ok(ParserState { annotations, name, statements, transition })
}

fn transition(parser: &mut SyntaxParser<'_>) -> Parsed<StateTransition> {
    if !parser.is("select") {
        let state = parser.name()?;
        parser.expect(";")?;
        return Ok(StateTransition::Direct(state));
    }
    let start = parser.span();
    parser.advance();
    parser.expect("(")?;
    let values = parser.list(")", SyntaxParser::expression)?;
    let span = start.to(parser.last_span());
    let cases = parser.braced(|p| {
        let keyset = expressions::keyset(p)?;
        p.expect(":")?;
        let state = p.name()?;
        p.expect(";")?;
        Ok(SelectCase { keyset, state })
    })?;
    parser.take(";");
    Ok(StateTransition::Select(values, cases, span))
}

pub(super) fn control(
    parser: &mut SyntaxParser<'_>,
    annotations: Vec<AnnotationTree>,
) -> Parsed<DeclarationTree> {
    let start = parser.span();
    parser.advance();
    let name = parser.name()?;
    parser.declare(&name, true);
    let control = parser.scoped(|p| {
        let type_parameters = types::type_parameters(p)?;
        let parameters = declarations::parameters(p)?;
        if p.take(";") {
            return Ok(ControlSyntax { type_parameters, parameters, body: None });
        }
        let constructor = constructor_parameters(p)?;
        let body = p.scoped(|p| control_body(p, constructor))?;
        Ok(ControlSyntax { type_parameters, parameters, body: Some(body) })
    })?;
    Ok(parser.declaration(annotations, name, DeclarationKind::Control(control), start))
}

fn control_body(parser: &mut SyntaxParser<'_>, constructor: Vec<ParameterSyntax>) -> Parsed<ControlBody> {
    parser.expect("{")?;
    let mut locals = Vec::new();
    while !parser.is_end() && !parser.is("}") && !parser.is("apply") {
        match control_local(parser) {
            Ok(local) => locals.push(local),
            Err(_) => parser.recover(),
        }
    }
    parser.expect("apply")?;
    let apply = parser.block(Vec::new())?;
    parser.expect("}")?;
    Ok(ControlBody { constructor, locals, apply })
}

fn control_local(parser: &mut SyntaxParser<'_>) -> Parsed<DeclarationTree> {
    let annotations = parser.annotations()?;
    match parser.token().word_or_mark() {
        "action" => declarations::action(parser, annotations),
        "table" => tables::table(parser, annotations),
        _ => statements::local_declaration(parser, annotations),
    }
}

/// A part of a parser's body.
enum ParserElement {
    Local(DeclarationTree),
    State(ParserState),
}
