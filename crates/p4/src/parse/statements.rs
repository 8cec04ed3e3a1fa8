//! Statements.

use crate::ast::{
    AnnotationTree, BlockSyntax, ConditionalSyntax, DeclarationTree, ForInSyntax, ForLoopSyntax,
    StatementKind, StatementTree, SwitchCase,
};
use crate::diagnostic::SourceDiagnostic;
use crate::expression::{BinaryOperator, ExpressionKind, ExpressionTree};
use crate::parse::{Parsed, SyntaxFailure, SyntaxParser};

impl SyntaxParser<'_> {
    /// Reads statements within braces, in a scope of their own.
    pub(super) fn block(&mut self, annotations: Vec<AnnotationTree>) -> Parsed<BlockSyntax> {
        let start = self.span();
        let inner = if self.is("@") { self.annotations()? } else { Vec::new() };
        let statements = self.scoped(|p| p.braced(Self::statement))?;
        let annotations = annotations.into_iter().chain(inner).collect();
        Ok(BlockSyntax { annotations, statements, span: start.to(self.last_span()) })
    }

    pub(super) fn statement(&mut self) -> Parsed<StatementTree> {
        self.nested(|p| {
            let start = p.span();
            let annotations = p.annotations()?;
            let kind = p.statement_kind(annotations)?;
            Ok(StatementTree { kind, span: start.to(p.last_span()) })
        })
    }

    fn statement_kind(&mut self, annotations: Vec<AnnotationTree>) -> Parsed<StatementKind> {
        let word = self.token().word_or_mark().to_owned();
        let simple = match word.as_str() {
            ";" => StatementKind::Empty,
            "exit" => StatementKind::Exit,
            "break" => StatementKind::Break,
            "continue" => StatementKind::Continue,
            "{" => return Ok(StatementKind::Block(self.block(annotations)?)),
            "if" => return self.conditional(),
            "switch" => return self.switch(),
            "for" => return self.scoped(Self::for_loop),
            "return" => return self.return_statement(),
            "const" => return self.declared(annotations),
            _ if self.begins_declaration() => return self.declaration_or_application(annotations),
            _ => {
                let kind = self.assignment_or_call()?;
                self.expect(";")?;
                return Ok(kind);
            }
        };
        self.advance();
        if word != ";" {
            self.expect(";")?;
        }
        Ok(simple)
    }

    fn declared(&mut self, annotations: Vec<AnnotationTree>) -> Parsed<StatementKind> {
        Ok(StatementKind::Declaration(Box::new(self.local_declaration(annotations)?)))
    }

    /// Tells if a type begins here, or a name that stands where a type has to be: `NAME NAME`.
    pub(super) fn begins_declaration(&self) -> bool {
        let is_error_value = self.is("error") && self.is_ahead(1, ".");
        (self.is_type_keyword() && !is_error_value)
            || self.is_declared_type()
            || (self.is_name_at(0) && self.is_name_at(1))
    }

    fn declaration_or_application(&mut self, annotations: Vec<AnnotationTree>) -> Parsed<StatementKind> {
        let from = self.at;
        let target = self.type_syntax()?;
        if self.is(".") && self.is_ahead(1, "apply") {
            self.advance();
            self.advance();
            let arguments = self.arguments()?;
            self.expect(";")?;
            return Ok(StatementKind::DirectApplication(target, arguments));
        }
        let is_call = self.is(".");
        self.at = from;
        if is_call {
            let kind = self.assignment_or_call()?;
            self.expect(";")?;
            return Ok(kind);
        }
        self.declared(annotations)
    }

    pub(super) fn local_declaration(&mut self, annotations: Vec<AnnotationTree>) -> Parsed<DeclarationTree> {
        let declaration = match self.is("const") {
            true => self.constant(annotations)?,
            false => self.variable_or_instance(annotations)?,
        };
        self.declare(&declaration.name, false);
        Ok(declaration)
    }

    fn assignment_or_call(&mut self) -> Parsed<StatementKind> {
        let left = self.expression()?;
        let operator = self.token().word_or_mark().to_owned();
        if operator == "=" {
            self.advance();
            return Ok(StatementKind::Assignment(left, None, self.expression()?));
        }
        if let Some(binary) = self.compound_operator() {
            return Ok(StatementKind::Assignment(left, Some(binary), self.expression()?));
        }
        match left.kind {
            ExpressionKind::Call(..) => Ok(StatementKind::Call(left)),
            ExpressionKind::Construct(..) => {
                self.fail(SourceDiagnostic::error(left.span, "an instance needs a name"))
            }
            _ if self.is_name_at(0) => {
                self.fail(SourceDiagnostic::error(left.span, "a type is expected here, and this is none"))
            }
            _ => self.unexpected("`=` or a call"),
        }
    }

    /// Reads an operator with an equals sign behind it.
    fn compound_operator(&mut self) -> Option<BinaryOperator> {
        let mark = self.token().word_or_mark();
        if mark == ">" && self.is_ahead(1, ">=") && !self.ahead(1).is_spaced {
            self.advance();
            self.advance();
            return Some(BinaryOperator::ShiftRight);
        }
        let operator = mark.strip_suffix('=').filter(|operator| {
            matches!(*operator, "+" | "-" | "*" | "/" | "%" | "&" | "|" | "^" | "<<" | "|+|" | "|-|")
        })?;
        let (operator, _) = BinaryOperator::of(operator)?;
        self.advance();
        Some(operator)
    }

    fn conditional(&mut self) -> Parsed<StatementKind> {
        self.advance();
        self.expect("(")?;
        let condition = self.expression()?;
        self.expect(")")?;
        let then = self.branch()?;
        let otherwise = if self.take("else") { Some(self.branch()?) } else { None };
        Ok(StatementKind::Conditional(Box::new(ConditionalSyntax { condition, then, otherwise })))
    }

    /// Reads a branch or a loop's body. A declaration alone is none.
    fn branch(&mut self) -> Parsed<StatementTree> {
        let statement = self.scoped(Self::statement)?;
        if matches!(statement.kind, StatementKind::Declaration(_)) {
            self.sink
                .error(statement.span, "a declaration cannot be a branch on its own; braces are missing");
        }
        Ok(statement)
    }

    fn return_statement(&mut self) -> Parsed<StatementKind> {
        self.advance();
        let value = if self.is(";") { None } else { Some(self.expression()?) };
        self.expect(";")?;
        Ok(StatementKind::Return(value))
    }

    fn switch(&mut self) -> Parsed<StatementKind> {
        self.advance();
        self.expect("(")?;
        let value = self.expression()?;
        self.expect(")")?;
        let cases = self.braced(Self::switch_case)?;
        Ok(StatementKind::Switch(value, cases))
    }

    fn switch_case(&mut self) -> Parsed<SwitchCase> {
        let span = self.span();
        let label = if self.take("default") { None } else { Some(self.expression()?) };
        let span = span.to(self.last_span());
        self.expect(":")?;
        let body = if self.is("{") || self.is("@") { Some(self.block(Vec::new())?) } else { None };
        Ok(SwitchCase { label, span, body })
    }

    fn for_loop(&mut self) -> Parsed<StatementKind> {
        self.advance();
        self.expect("(")?;
        if let Some(kind) = self.for_in()? {
            return Ok(kind);
        }
        let mut start = Vec::new();
        while !self.is(";") {
            start.push(self.loop_statement(true)?);
            if !self.take(",") {
                break;
            }
        }
        self.expect(";")?;
        let condition = self.expression()?;
        self.expect(";")?;
        let update = self.list(")", |p| p.loop_statement(false))?;
        let body = self.branch()?;
        Ok(StatementKind::ForLoop(Box::new(ForLoopSyntax { start, condition, update, body })))
    }

    /// Reads an assignment, a call, or a declaration without its semicolon.
    fn loop_statement(&mut self, may_declare: bool) -> Parsed<StatementTree> {
        let span = self.span();
        let annotations = self.annotations()?;
        let kind = if may_declare && self.begins_declaration() {
            let declared_type = self.type_syntax()?;
            let declaration = self.variable_behind(annotations, declared_type, span)?;
            self.declare(&declaration.name, false);
            StatementKind::Declaration(Box::new(declaration))
        } else {
            self.assignment_or_call()?
        };
        Ok(StatementTree { kind, span: span.to(self.last_span()) })
    }

    /// Reads `VARIABLE in COLLECTION) BODY`, or nothing if this is the other loop.
    fn for_in(&mut self) -> Parsed<Option<StatementKind>> {
        let from = self.at;
        let Some((declared_type, variable)) = self.attempt(super::TriedReading::Declaration, |p| {
            p.annotations()?;
            let declared_type = if p.begins_declaration() { Some(p.type_syntax()?) } else { None };
            let variable = p.for_in_variable()?;
            if p.take("in") { Ok((declared_type, variable)) } else { Err(SyntaxFailure) }
        }) else {
            self.at = from;
            return Ok(None);
        };
        if let (Some(_), ExpressionKind::Name(name)) = (&declared_type, &variable.kind) {
            self.declare(&name.name, false);
        }
        let collection = self.range_expression()?;
        self.expect(")")?;
        let body = self.branch()?;
        Ok(Some(StatementKind::ForInLoop(Box::new(ForInSyntax {
            declared_type,
            variable,
            collection,
            body,
        }))))
    }

    fn for_in_variable(&mut self) -> Parsed<ExpressionTree> {
        let name = self.name()?;
        let span = name.span;
        let kind = ExpressionKind::Name(crate::expression::QualifiedName { is_global: false, name });
        self.expression_of(kind, span, 0)
    }
}
