//! Expressions: operators by strength, and what may follow an operand.

use crate::expression::{
    BinaryOperator, CallArgument, ExpressionKind, ExpressionTree, TypeSyntax, UnaryOperator,
};
use crate::parse::{Parsed, SyntaxParser, TriedReading};

/// Strength of the weakest operator of an ordinary expression; masks and ranges are weaker.
const WEAKEST: u8 = 3;

impl SyntaxParser<'_> {
    pub(super) fn expression(&mut self) -> Parsed<ExpressionTree> {
        self.nested(|p| {
            let condition = p.binary(WEAKEST)?;
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
    pub(super) fn range_expression(&mut self) -> Parsed<ExpressionTree> {
        let left = self.expression()?;
        let operator = match self.token().word_or_mark() {
            "&&&" => BinaryOperator::Mask,
            ".." => BinaryOperator::Range,
            _ => return Ok(left),
        };
        self.advance();
        let right = self.expression()?;
        self.binary_of(operator, left, right)
    }

    fn binary_of(
        &mut self,
        operator: BinaryOperator,
        left: ExpressionTree,
        right: ExpressionTree,
    ) -> Parsed<ExpressionTree> {
        let span = left.span.to(right.span);
        let below = left.height.max(right.height);
        self.expression_of(ExpressionKind::Binary(operator, Box::new(left), Box::new(right)), span, below)
    }

    /// Operator that is here, its strength, and its number of tokens.
    fn operator(&self) -> Option<(BinaryOperator, u8, usize)> {
        let is_close = self.is(">");
        let next = self.ahead(1);
        if is_close && self.is_in_size {
            return None;
        }
        if is_close && !next.is_spaced && matches!(next.word_or_mark(), ">" | ">=") {
            let (operator, strength) = BinaryOperator::of(">>")?;
            return (next.word_or_mark() == ">").then_some((operator, strength, 2));
        }
        let (operator, strength) = BinaryOperator::of(self.token().word_or_mark())?;
        Some((operator, strength, 1))
    }

    fn binary(&mut self, weakest: u8) -> Parsed<ExpressionTree> {
        let mut left = self.unary()?;
        while let Some((operator, strength, length)) = self.operator().filter(|(_, s, _)| *s >= weakest) {
            for _ in 0..length {
                self.advance();
            }
            let right = self.binary(strength + 1)?;
            left = self.binary_of(operator, left, right)?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Parsed<ExpressionTree> {
        let operator = match self.token().word_or_mark() {
            "!" => UnaryOperator::Not,
            "~" => UnaryOperator::Complement,
            "-" => UnaryOperator::Minus,
            "+" => UnaryOperator::Plus,
            _ => return self.postfix(),
        };
        let start = self.span();
        self.advance();
        let operand = self.nested(Self::unary)?;
        let (span, below) = (start.to(operand.span), operand.height);
        self.expression_of(ExpressionKind::Unary(operator, Box::new(operand)), span, below)
    }

    /// Reads an operand of the strength of a cast: `(TYPE) OPERAND`.
    pub(super) fn cast(&mut self) -> Parsed<ExpressionTree> {
        let start = self.span();
        self.advance();
        let target = self.type_syntax()?;
        self.expect(")")?;
        if !self.begins_operand() {
            return self.unexpected("the value of the cast");
        }
        let value = self.nested(Self::unary)?;
        let (span, below) = (start.to(value.span), value.height);
        self.expression_of(ExpressionKind::Cast(Box::new(target), Box::new(value)), span, below)
    }

    fn postfix(&mut self) -> Parsed<ExpressionTree> {
        let mut value = self.primary()?;
        loop {
            value = match self.token().word_or_mark() {
                "." => {
                    self.advance();
                    let member = self.name()?;
                    let (span, below) = (value.span.to(member.span), value.height);
                    self.expression_of(ExpressionKind::Member(Box::new(value), member), span, below)?
                }
                "[" => self.index(value)?,
                "(" => self.call(value, Vec::new())?,
                "<" => match self.attempt(TriedReading::TypeArguments, Self::call_types) {
                    Some(types) => self.call(value, types)?,
                    None => return Ok(value),
                },
                _ => return Ok(value),
            };
        }
    }

    /// Reads the type arguments of a call: types that are declared, and a parenthesis behind them.
    fn call_types(&mut self) -> Parsed<Vec<TypeSyntax>> {
        self.expect("<")?;
        let types = self.list(">", |p| match p.is_type_keyword() || p.is_declared_type() || p.is("_") {
            true => p.type_syntax(),
            false => p.reject(),
        })?;
        if self.is("(") { Ok(types) } else { self.reject() }
    }

    fn call(&mut self, function: ExpressionTree, types: Vec<TypeSyntax>) -> Parsed<ExpressionTree> {
        let arguments = self.arguments()?;
        let span = function.span.to(self.last_span());
        let below = arguments_height(&arguments).max(function.height);
        self.expression_of(ExpressionKind::Call(Box::new(function), types, arguments), span, below)
    }

    pub(super) fn arguments(&mut self) -> Parsed<Vec<CallArgument>> {
        self.expect("(")?;
        self.within(false, Self::argument_list)
    }

    fn argument_list(&mut self) -> Parsed<Vec<CallArgument>> {
        self.list(")", |p| {
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

    fn index(&mut self, value: ExpressionTree) -> Parsed<ExpressionTree> {
        self.advance();
        let first = self.within(false, Self::expression)?;
        let close = self.token().word_or_mark().to_owned();
        let below = value.height.max(first.height);
        if close != ":" && close != "+:" {
            self.expect("]")?;
            let span = value.span.to(self.last_span());
            return self.expression_of(ExpressionKind::Index(Box::new(value), Box::new(first)), span, below);
        }
        self.advance();
        let second = self.within(false, Self::expression)?;
        self.expect("]")?;
        let span = value.span.to(self.last_span());
        let below = below.max(second.height);
        let parts = Box::new([value, first, second]);
        let kind =
            if close == ":" { ExpressionKind::Slice(parts) } else { ExpressionKind::WidthSlice(parts) };
        self.expression_of(kind, span, below)
    }
}

/// Greatest height of the values of arguments.
pub(super) fn arguments_height(arguments: &[CallArgument]) -> u32 {
    arguments.iter().filter_map(|a| a.value.as_ref()).map(|value| value.height).max().unwrap_or(0)
}
