//! Conditions of `#if` and `#elif`: integers of 64 bits with the operators of C.

use crate::lex::{SourceToken, TokenKind};
use crate::preprocess::Preprocessor;
use crate::source::SourceSpan;

/// Deepest nesting of a condition.
const DEEPEST_CONDITION: usize = 100;

impl Preprocessor<'_> {
    /// Evaluates a condition; one that is wrong does not hold.
    pub(super) fn condition(&mut self, span: SourceSpan, tokens: &[SourceToken]) -> bool {
        let replaced = self.replace_defined(tokens);
        let expanded = self.expand(&replaced);
        let mut parser = ConditionParser { tokens: &expanded, at: 0, depth: 0 };
        let value = parser.binary(0);
        match value {
            Some(value) if parser.at == expanded.len() => value != 0,
            _ => {
                self.sink.error(span, "this condition is not an expression over integers");
                false
            }
        }
    }

    /// Replaces `defined NAME` and `defined(NAME)` by 0 or 1.
    fn replace_defined(&mut self, tokens: &[SourceToken]) -> Vec<SourceToken> {
        let mut output = Vec::new();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            if token.word_or_mark() != "defined" {
                output.push(token.clone());
                continue;
            }
            let is_nested = tokens.get(at).is_some_and(|t| t.word_or_mark() == "(");
            at += usize::from(is_nested);
            let is_defined = tokens.get(at).is_some_and(|t| self.macros.contains_key(t.word_or_mark()));
            at += 1 + usize::from(is_nested);
            let kind = TokenKind::Number(self.symbols.intern(if is_defined { "1" } else { "0" }));
            output.push(SourceToken { kind, ..token.clone() });
        }
        output
    }
}

struct ConditionParser<'t> {
    tokens: &'t [SourceToken],
    at: usize,
    depth: usize,
}

/// Operators by strength, the weakest first.
const LEVELS: [&[&str]; 10] = [
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<", "<=", ">", ">="],
    &["<<"],
    &["+", "-"],
    &["*", "/", "%"],
];

impl ConditionParser<'_> {
    fn mark(&self) -> &str {
        self.tokens.get(self.at).map_or("", |token| token.word_or_mark())
    }

    fn binary(&mut self, level: usize) -> Option<i64> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        while let Some(operator) = operators.iter().find(|operator| **operator == self.mark()) {
            self.at += 1;
            let right = self.binary(level + 1)?;
            left = apply(operator, left, right)?;
        }
        Some(left)
    }

    fn unary(&mut self) -> Option<i64> {
        self.depth += 1;
        let value = if self.depth > DEEPEST_CONDITION { None } else { self.unary_within() };
        self.depth -= 1;
        value
    }

    fn unary_within(&mut self) -> Option<i64> {
        let token = self.tokens.get(self.at)?;
        self.at += 1;
        match &token.kind {
            TokenKind::Number(text) => integer(text),
            TokenKind::Word(_) => Some(0),
            TokenKind::Mark("!") => Some(i64::from(self.unary()? == 0)),
            TokenKind::Mark("-") => Some(self.unary()?.wrapping_neg()),
            TokenKind::Mark("+") => self.unary(),
            TokenKind::Mark("~") => Some(!self.unary()?),
            TokenKind::Mark("(") => {
                let value = self.binary(0)?;
                self.at += 1;
                (self.tokens.get(self.at - 1)?.kind == TokenKind::Mark(")")).then_some(value)
            }
            _ => None,
        }
    }
}

fn integer(text: &str) -> Option<i64> {
    let text = text.trim_end_matches(['u', 'U', 'l', 'L']);
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn apply(operator: &str, left: i64, right: i64) -> Option<i64> {
    Some(match operator {
        "||" => i64::from(left != 0 || right != 0),
        "&&" => i64::from(left != 0 && right != 0),
        "|" => left | right,
        "^" => left ^ right,
        "&" => left & right,
        "==" => i64::from(left == right),
        "!=" => i64::from(left != right),
        "<" => i64::from(left < right),
        "<=" => i64::from(left <= right),
        ">" => i64::from(left > right),
        ">=" => i64::from(left >= right),
        "<<" => left.checked_shl(u32::try_from(right).ok()?)?,
        "+" => left.wrapping_add(right),
        "-" => left.wrapping_sub(right),
        "*" => left.wrapping_mul(right),
        "/" => left.checked_div(right)?,
        _ => left.checked_rem(right)?,
    })
}
