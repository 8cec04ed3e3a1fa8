//! Externs, parsers and controls.

use crate::ast::{
    AnnotationTree, ControlBody, ControlSyntax, DeclarationKind, DeclarationTree, ExternSyntax, MethodSyntax,
    ParameterSyntax, ParserBody, ParserState, ParserSyntax, SelectCase, StateTransition,
};
use crate::parse::{Parsed, SyntaxParser};
use crate::source::SourceName;

impl SyntaxParser<'_> {
    /// Reads an extern type or an extern function.
    pub(super) fn external(&mut self, annotations: Vec<AnnotationTree>) -> Parsed<DeclarationTree> {
        let start = self.span();
        self.advance();
        if self.is_name_at(0) && (self.is_ahead(1, "{") || self.is_extern_type_with_parameters()) {
            let name = self.name()?;
            self.declare(&name, true);
            let (type_parameters, methods) = self.scoped(|p| {
                let type_parameters = p.type_parameters()?;
                Ok((type_parameters, p.braced(|p| p.method(&name))?))
            })?;
            let kind = DeclarationKind::Extern(ExternSyntax { type_parameters, methods });
            return Ok(self.declaration(annotations, name, kind, start));
        }
        let result = self.type_syntax()?;
        let name = self.name()?;
        self.declare(&name, false);
        let signature = self.scoped(|p| p.signature(Some(result)))?;
        self.expect(";")?;
        Ok(self.declaration(annotations, name, DeclarationKind::ExternFunction(signature), start))
    }

    /// Tells `extern NAME<A, B> {` from a function with a generic result.
    fn is_extern_type_with_parameters(&self) -> bool {
        let mut at = 1;
        while matches!(self.ahead(at).word_or_mark(), "<" | ",") && self.is_name_at(at + 1) {
            at += 2;
        }
        at > 1 && self.is_ahead(at, ">") && self.is_ahead(at + 1, "{")
    }

    fn method(&mut self, owner: &SourceName) -> Parsed<MethodSyntax> {
        let annotations = self.annotations()?;
        let is_abstract = self.take("abstract");
        let is_constructor = self.token().word_or_mark() == &*owner.text && self.is_ahead(1, "(");
        let result = if is_constructor { None } else { Some(self.type_syntax()?) };
        let name = self.name()?;
        let signature = self.scoped(|p| p.signature(result))?;
        self.expect(";")?;
        Ok(MethodSyntax { annotations, name, is_abstract, signature })
    }

    pub(super) fn parser(&mut self, annotations: Vec<AnnotationTree>) -> Parsed<DeclarationTree> {
        let start = self.span();
        self.advance();
        let name = self.name()?;
        self.declare(&name, true);
        let parser = self.scoped(|p| {
            let type_parameters = p.type_parameters()?;
            let parameters = p.parameters()?;
            if p.take(";") {
                return Ok(ParserSyntax { type_parameters, parameters, body: None });
            }
            let constructor = p.constructor_parameters()?;
            let body = p.scoped(|p| p.parser_body(constructor))?;
            Ok(ParserSyntax { type_parameters, parameters, body: Some(body) })
        })?;
        Ok(self.declaration(annotations, name, DeclarationKind::Parser(parser), start))
    }

    fn constructor_parameters(&mut self) -> Parsed<Vec<ParameterSyntax>> {
        if self.is("(") { self.parameters() } else { Ok(Vec::new()) }
    }

    fn parser_body(&mut self, constructor: Vec<ParameterSyntax>) -> Parsed<ParserBody> {
        let mut body = ParserBody { constructor, locals: Vec::new(), states: Vec::new() };
        let elements = self.braced(|p| {
            let annotations = p.annotations()?;
            Ok(match p.token().word_or_mark() {
                "state" => ParserElement::State(p.state(annotations)?),
                "value_set" => ParserElement::Local(p.value_set(annotations)?),
                _ => ParserElement::Local(p.local_declaration(annotations)?),
            })
        })?;
        for element in elements {
            match element {
                ParserElement::State(state) => body.states.push(state),
                ParserElement::Local(local) => {
                    if !body.states.is_empty() {
                        self.sink.error(local.span, "declarations have to be in front of the states");
                    }
                    body.locals.push(local);
                }
            }
        }
        Ok(body)
    }

    fn value_set(&mut self, annotations: Vec<AnnotationTree>) -> Parsed<DeclarationTree> {
        let start = self.span();
        self.advance();
        self.expect("<")?;
        let element = self.type_syntax()?;
        self.expect(">")?;
        self.expect("(")?;
        let size = self.expression()?;
        self.expect(")")?;
        let name = self.name()?;
        self.declare(&name, false);
        self.expect(";")?;
        Ok(self.declaration(annotations, name, DeclarationKind::ValueSet(element, size), start))
    }

    fn state(&mut self, annotations: Vec<AnnotationTree>) -> Parsed<ParserState> {
        self.advance();
        let name = self.name()?;
        let (statements, transition) = self.scoped(|p| {
            p.expect("{")?;
            let mut statements = Vec::new();
            while !p.is("}") && !p.is("transition") && !p.is_end() {
                match p.statement() {
                    Ok(statement) => statements.push(statement),
                    Err(_) => p.recover(),
                }
            }
            let transition = if p.take("transition") { Some(p.transition()?) } else { None };
            p.expect("}")?;
            Ok((statements, transition))
        })?;
        Ok(ParserState { annotations, name, statements, transition })
    }

    fn transition(&mut self) -> Parsed<StateTransition> {
        if !self.is("select") {
            let state = self.name()?;
            self.expect(";")?;
            return Ok(StateTransition::Direct(state));
        }
        let start = self.span();
        self.advance();
        self.expect("(")?;
        let values = self.list(")", Self::expression)?;
        let span = start.to(self.last_span());
        let cases = self.braced(|p| {
            let keyset = p.keyset()?;
            p.expect(":")?;
            let state = p.name()?;
            p.expect(";")?;
            Ok(SelectCase { keyset, state })
        })?;
        self.take(";");
        Ok(StateTransition::Select(values, cases, span))
    }

    pub(super) fn control(&mut self, annotations: Vec<AnnotationTree>) -> Parsed<DeclarationTree> {
        let start = self.span();
        self.advance();
        let name = self.name()?;
        self.declare(&name, true);
        let control = self.scoped(|p| {
            let type_parameters = p.type_parameters()?;
            let parameters = p.parameters()?;
            if p.take(";") {
                return Ok(ControlSyntax { type_parameters, parameters, body: None });
            }
            let constructor = p.constructor_parameters()?;
            let body = p.scoped(|p| p.control_body(constructor))?;
            Ok(ControlSyntax { type_parameters, parameters, body: Some(body) })
        })?;
        Ok(self.declaration(annotations, name, DeclarationKind::Control(control), start))
    }

    fn control_body(&mut self, constructor: Vec<ParameterSyntax>) -> Parsed<ControlBody> {
        self.expect("{")?;
        let mut locals = Vec::new();
        while !self.is_end() && !self.is("}") && !self.is("apply") {
            match self.control_local() {
                Ok(local) => locals.push(local),
                Err(_) => self.recover(),
            }
        }
        self.expect("apply")?;
        let apply = self.block(Vec::new())?;
        self.expect("}")?;
        Ok(ControlBody { constructor, locals, apply })
    }

    fn control_local(&mut self) -> Parsed<DeclarationTree> {
        let annotations = self.annotations()?;
        match self.token().word_or_mark() {
            "action" => self.action(annotations),
            "table" => self.table(annotations),
            _ => self.local_declaration(annotations),
        }
    }
}

/// A part of a parser's body.
enum ParserElement {
    Local(DeclarationTree),
    State(ParserState),
}
