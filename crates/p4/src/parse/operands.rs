//! Operands of expressions, and sets of values.

use crate::diagnostic::SourceDiagnostic;
use crate::expression::{ExpressionKind, ExpressionTree, TypeSyntax, TypeSyntaxKind};
use crate::lex::TokenKind;
use crate::parse::expressions::arguments_height;
use crate::parse::literals::number;
use crate::parse::{Parsed, SyntaxParser, TriedReading};

impl SyntaxParser<'_> {
    pub(super) fn begins_operand(&self) -> bool {
        match &self.token().kind {
            TokenKind::Word(_) | TokenKind::Number(_) | TokenKind::Text(_) => true,
            TokenKind::Mark(mark) => {
                matches!(*mark, "(" | "{" | "{#}" | "..." | "." | "!" | "~" | "-" | "+" | "_")
            }
            _ => false,
        }
    }

    pub(super) fn primary(&mut self) -> Parsed<ExpressionTree> {
        let span = self.span();
        let kind = match self.token().kind.clone() {
            TokenKind::Number(text) => match number(&text) {
                Ok(literal) => ExpressionKind::Number(literal),
                Err(reason) => return self.fail(SourceDiagnostic::error(span, reason)),
            },
            TokenKind::Text(text) => ExpressionKind::Text(text),
            _ => match self.token().word_or_mark() {
                "true" => ExpressionKind::Boolean(true),
                "false" => ExpressionKind::Boolean(false),
                "this" => ExpressionKind::This,
                "..." => ExpressionKind::Default,
                "{#}" => ExpressionKind::Invalid,
                "{" => return self.within(false, Self::braces),
                "(" => return self.within(false, Self::parentheses),
                _ => return self.named_operand(),
            },
        };
        self.advance();
        self.expression_of(kind, span, 0)
    }

    fn named_operand(&mut self) -> Parsed<ExpressionTree> {
        let span = self.span();
        if self.is_type_keyword() {
            let target = self.type_syntax()?;
            return self.type_operand(target);
        }
        if !self.is_declared_type() {
            if !self.is(".") && !self.is_name_at(0) {
                return self.unexpected("an expression");
            }
            let name = self.qualified_name()?;
            let span = span.to(self.last_span());
            return self.expression_of(ExpressionKind::Name(name), span, 0);
        }
        let name = self.qualified_name()?;
        let kind = match self.is("<") {
            true => TypeSyntaxKind::Specialized(name, self.type_arguments()?),
            false => TypeSyntaxKind::Named(name),
        };
        self.type_operand(TypeSyntax { kind, span: span.to(self.last_span()) })
    }

    /// Reads what follows a type within an expression: a member, or the arguments of a constructor.
    fn type_operand(&mut self, target: TypeSyntax) -> Parsed<ExpressionTree> {
        let start = target.span;
        if self.take(".") {
            let member = self.name()?;
            let span = start.to(member.span);
            return self.expression_of(ExpressionKind::TypeMember(Box::new(target), member), span, 0);
        }
        if !self.is("(") {
            return self.unexpected("`.` or `(` behind the type");
        }
        let arguments = self.arguments()?;
        let span = start.to(self.last_span());
        let below = arguments_height(&arguments);
        self.expression_of(ExpressionKind::Construct(Box::new(target), arguments), span, below)
    }

    /// Reads a cast, or an expression in parentheses.
    fn parentheses(&mut self) -> Parsed<ExpressionTree> {
        self.advance();
        let may_be_type = self.is_type_keyword() || self.is_declared_type();
        self.at -= 1;
        if may_be_type && let Some(cast) = self.attempt(TriedReading::Cast, Self::cast) {
            return Ok(cast);
        }
        self.advance();
        let value = self.range_expression()?;
        self.expect(")")?;
        Ok(value)
    }

    /// Reads a list, or names with values.
    fn braces(&mut self) -> Parsed<ExpressionTree> {
        let start = self.span();
        self.advance();
        if self.is_name_at(0) && self.is_ahead(1, "=") {
            return self.record(start);
        }
        let list = self.list("}", Self::expression)?;
        let below = list.iter().map(|value| value.height).max().unwrap_or(0);
        let span = start.to(self.last_span());
        if let Some(rest) = list.iter().rev().skip(1).find(|v| matches!(v.kind, ExpressionKind::Default)) {
            self.sink.error(rest.span, "`...` is only allowed at the end of a list");
        }
        self.expression_of(ExpressionKind::List(list), span, below)
    }

    fn record(&mut self, start: crate::source::SourceSpan) -> Parsed<ExpressionTree> {
        let mut has_rest = false;
        let mut fields = Vec::new();
        while !self.is("}") {
            if self.take("...") {
                has_rest = true;
                break;
            }
            let name = self.name()?;
            self.expect("=")?;
            fields.push((name, self.expression()?));
            if !self.take(",") {
                break;
            }
        }
        self.expect("}")?;
        let below = fields.iter().map(|(_, value)| value.height).max().unwrap_or(0);
        let span = start.to(self.last_span());
        self.expression_of(ExpressionKind::Record(fields, has_rest), span, below)
    }

    /// Reads a set of values: a tuple of sets in parentheses, or one set.
    pub(super) fn keyset(&mut self) -> Parsed<ExpressionTree> {
        if self.is("(")
            && let Some(tuple) = self.attempt(TriedReading::KeysetTuple, Self::keyset_tuple)
        {
            return Ok(tuple);
        }
        self.simple_keyset()
    }

    fn keyset_tuple(&mut self) -> Parsed<ExpressionTree> {
        let start = self.span();
        self.advance();
        let mut list = self.list(")", Self::simple_keyset)?;
        if !self.is(":") {
            return self.reject();
        }
        if list.len() == 1 {
            return list.pop().map_or_else(|| self.reject(), Ok);
        }
        let below = list.iter().map(|value| value.height).max().unwrap_or(0);
        let span = start.to(self.last_span());
        self.expression_of(ExpressionKind::KeysetTuple(list), span, below)
    }

    fn simple_keyset(&mut self) -> Parsed<ExpressionTree> {
        if self.is("_") || self.is("default") {
            let span = self.span();
            self.advance();
            return self.expression_of(ExpressionKind::Anything, span, 0);
        }
        self.range_expression()
    }
}
