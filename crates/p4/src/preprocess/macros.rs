//! Macros: definition and expansion.
//!
//! Expansion follows Prosser's algorithm: a token remembers the macros that it came from, which do not expand
//! it again.

use std::rc::Rc;

use crate::diagnostic::SourceDiagnostic;
use crate::lex::{SourceToken, TokenKind, tokenize};
use crate::preprocess::definition::MacroDefinition;
use crate::preprocess::{Preprocessor, spelling};
use crate::source::{SourceSpan, Symbol};

/// Macros that do not expand a token, as a list.
type HideSet = Option<Rc<HiddenMacro>>;

struct HiddenMacro {
    name: Symbol,
    next: HideSet,
}

fn hides(mut set: &HideSet, name: &str) -> bool {
    while let Some(hidden) = set {
        if &*hidden.name == name {
            return true;
        }
        set = &hidden.next;
    }
    false
}

/// Tokens that are still to be expanded, the next one last.
type PendingTokens = Vec<(SourceToken, HideSet)>;

/// Longest list of macros that hide a token; what nests more deeply is an error.
const DEEPEST_EXPANSION: usize = 200;

impl Preprocessor<'_> {
    pub(super) fn define(&mut self, span: SourceSpan, rest: &[SourceToken]) {
        let Some(name) = self.macro_name(span, rest) else { return };
        let is_function = rest.get(1).is_some_and(|t| t.kind == TokenKind::Mark("(") && !t.is_spaced);
        let definition = match is_function {
            false => MacroDefinition { parameters: None, body: rest[1..].to_vec() },
            true => {
                let Some(close) = rest.iter().position(|t| t.kind == TokenKind::Mark(")")) else {
                    self.sink.error(span, "the parameters of the macro have no closing parenthesis");
                    return;
                };
                let parameters = rest[2..close].iter().filter_map(|token| match &token.kind {
                    TokenKind::Word(name) => Some(name.clone()),
                    TokenKind::Mark("...") => Some(Symbol::from("__VA_ARGS__")),
                    _ => None,
                });
                MacroDefinition { parameters: Some(parameters.collect()), body: rest[close + 1..].to_vec() }
            }
        };
        self.macros.insert(name, definition);
    }

    /// Expands all macros in a sequence of tokens.
    pub(super) fn expand(&mut self, tokens: &[SourceToken]) -> Vec<SourceToken> {
        self.expand_nested(tokens, 0)
    }

    fn expand_nested(&mut self, tokens: &[SourceToken], depth: usize) -> Vec<SourceToken> {
        let mut pending: PendingTokens = tokens.iter().rev().map(|token| (token.clone(), None)).collect();
        let mut output = Vec::new();
        while let Some((token, hidden)) = pending.pop() {
            match self.macro_of(&token, &hidden) {
                Some((name, definition)) if self.budget > 0 && depth < DEEPEST_EXPANSION => {
                    self.replace(&token, (name, definition), hidden, &mut pending, &mut output, depth);
                }
                Some(_) => {
                    // Nothing more is expanded, which ends the work on all levels.
                    self.budget = 0;
                    self.sink.error(token.span, "macros expand to too many tokens, or too deeply");
                    return output;
                }
                None => output.push(token),
            }
        }
        output
    }

    fn macro_of(&self, token: &SourceToken, hidden: &HideSet) -> Option<(Symbol, MacroDefinition)> {
        let TokenKind::Word(name) = &token.kind else { return None };
        if hides(hidden, name) {
            return None;
        }
        Some((name.clone(), self.macros.get(name)?.clone()))
    }

    fn replace(
        &mut self,
        token: &SourceToken,
        (name, definition): (Symbol, MacroDefinition),
        hidden: HideSet,
        pending: &mut PendingTokens,
        output: &mut Vec<SourceToken>,
        depth: usize,
    ) {
        let body = match &definition.parameters {
            None => definition.body,
            Some(parameters) => {
                if pending.last().is_none_or(|(next, _)| next.kind != TokenKind::Mark("(")) {
                    output.push(token.clone());
                    return;
                }
                let Some(arguments) = arguments(pending) else {
                    self.sink.error(
                        token.span,
                        format!("the use of the macro `{name}` has no closing parenthesis"),
                    );
                    return;
                };
                let Some(arguments) = self.matched(token.span, &name, parameters, arguments) else { return };
                let given: usize = arguments.iter().map(Vec::len).sum();
                self.budget = self.budget.saturating_sub(given);
                self.substitute(&definition.body, parameters, &arguments, depth)
            }
        };
        self.budget = self.budget.saturating_sub(body.len() + 1);
        let hidden = Some(Rc::new(HiddenMacro { name, next: hidden }));
        for (index, mut part) in body.into_iter().enumerate().rev() {
            part.span = token.span;
            part.begins_line = index == 0 && token.begins_line;
            pending.push((part, hidden.clone()));
        }
    }

    /// Brings arguments to the number of parameters.
    fn matched(
        &mut self,
        span: SourceSpan,
        name: &str,
        parameters: &[Symbol],
        mut arguments: Vec<Vec<SourceToken>>,
    ) -> Option<Vec<Vec<SourceToken>>> {
        let is_variadic = parameters.last().is_some_and(|last| &**last == "__VA_ARGS__");
        if is_variadic && arguments.len() > parameters.len() {
            let rest = arguments.split_off(parameters.len() - 1);
            arguments.push(rest.join(&SourceToken {
                kind: TokenKind::Mark(","),
                span,
                begins_line: false,
                is_spaced: false,
            }));
        }
        if parameters.is_empty() && arguments.len() == 1 && arguments[0].is_empty() {
            arguments.clear();
        }
        if is_variadic && arguments.len() + 1 == parameters.len() {
            arguments.push(Vec::new());
        }
        if arguments.len() == parameters.len() {
            return Some(arguments);
        }
        let message =
            format!("the macro `{name}` takes {} arguments, not {}", parameters.len(), arguments.len());
        self.sink.push(SourceDiagnostic::error(span, message));
        None
    }

    fn substitute(
        &mut self,
        body: &[SourceToken],
        parameters: &[Symbol],
        arguments: &[Vec<SourceToken>],
        depth: usize,
    ) -> Vec<SourceToken> {
        let argument = |token: &SourceToken| match &token.kind {
            TokenKind::Word(name) => parameters.iter().position(|p| p == name).and_then(|n| arguments.get(n)),
            _ => None,
        };
        let mut output: Vec<SourceToken> = Vec::new();
        let mut at = 0;
        while let Some(token) = body.get(at) {
            let next = body.get(at + 1);
            let pastes = |token: Option<&SourceToken>| token.is_some_and(|t| t.kind == TokenKind::Mark("##"));
            if output.len() > self.budget {
                return output;
            }
            match (&token.kind, next.and_then(argument)) {
                (TokenKind::Mark("#"), Some(text)) => {
                    let kind = TokenKind::Text(self.symbols.intern(&spelled(text)));
                    output.push(SourceToken { kind, ..token.clone() });
                    at += 1;
                }
                (TokenKind::Mark("##"), _) if next.is_some() && !output.is_empty() => {
                    let right =
                        next.map(|next| argument(next).cloned().unwrap_or_else(|| vec![next.clone()]));
                    self.paste(&mut output, right.unwrap_or_default());
                    at += 1;
                }
                _ => match argument(token) {
                    Some(text) if pastes(next) => output.extend(text.iter().cloned()),
                    Some(text) => output.extend(self.expand_nested(text, depth + 1)),
                    None => output.push(token.clone()),
                },
            }
            at += 1;
        }
        output
    }

    /// Makes one token of the last one and the first of those on the right.
    fn paste(&mut self, output: &mut Vec<SourceToken>, right: Vec<SourceToken>) {
        let mut right = right.into_iter();
        let Some(first) = right.next() else {
            // A comma in front of no variable arguments goes away, as in GNU C.
            output.pop_if(|last| last.kind == TokenKind::Mark(","));
            return;
        };
        let Some(last) = output.pop() else { return };
        let text = spelling(&last) + &spelling(&first);
        let mut joined = tokenize(last.span.file, &text, &mut self.symbols);
        for token in &mut joined {
            token.span = last.span;
            token.is_spaced = last.is_spaced;
        }
        output.extend(joined);
        output.extend(right);
    }
}

/// Text of an argument, with a blank where there are any.
fn spelled(tokens: &[SourceToken]) -> String {
    let blank = |n: usize| if n > 0 && tokens[n].is_spaced { " " } else { "" };
    tokens.iter().enumerate().map(|(n, token)| format!("{}{}", blank(n), spelling(token))).collect()
}

/// Takes the arguments of a macro, which begin with a parenthesis.
fn arguments(pending: &mut PendingTokens) -> Option<Vec<Vec<SourceToken>>> {
    pending.pop();
    let mut arguments = vec![Vec::new()];
    let mut depth = 0usize;
    loop {
        let (token, _) = pending.pop()?;
        match token.word_or_mark() {
            ")" if depth == 0 => return Some(arguments),
            "," if depth == 0 => {
                arguments.push(Vec::new());
                continue;
            }
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => {}
        }
        if let Some(last) = arguments.last_mut() {
            last.push(token);
        }
    }
}
