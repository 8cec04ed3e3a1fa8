//! Tokens of the language, which are also those of the preprocessor.
//!
//! A character that begins no token becomes [`TokenKind::Stray`], which only bodies of annotations may have.
//! Strings may have several lines.
//! `>>` is two marks, as the specification's grammar wants it. Source: P4_16 1.2.5, section 6.3.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::source::{FileId, SourceSpan, Symbol};

/// Kind and text of a token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TokenKind {
    /// A name or a keyword.
    Word(Symbol),
    /// A number as it is written.
    Number(Symbol),
    /// A string, without its quotes and escapes.
    Text(Symbol),
    /// Punctuation.
    Mark(&'static str),
    /// Characters that begin no token, and the reason.
    Stray(&'static str),
    /// The end of the program.
    End,
}

/// A token with its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceToken {
    /// Kind and text.
    pub kind: TokenKind,
    /// Place.
    pub span: SourceSpan,
    /// No token is in front of it on its line.
    pub begins_line: bool,
    /// Blanks, comments or a new line are in front of it.
    pub is_spaced: bool,
}

impl SourceToken {
    /// Text of a word or mark, else nothing.
    pub fn word_or_mark(&self) -> &str {
        match &self.kind {
            TokenKind::Word(text) => text,
            TokenKind::Mark(mark) => mark,
            _ => "",
        }
    }

    /// Description for messages.
    pub(crate) fn describe(&self) -> String {
        match &self.kind {
            TokenKind::Word(text) | TokenKind::Number(text) => format!("`{text}`"),
            TokenKind::Text(text) => format!("the string \"{text}\""),
            TokenKind::Mark(mark) => format!("`{mark}`"),
            TokenKind::Stray(_) => "a stray character".into(),
            TokenKind::End => "the end of the program".into(),
        }
    }
}

/// Longer marks before those that begin them.
const MARKS: [&str; 55] = [
    "|+|=", "|-|=", "&&&", "...", "<<=", "|+|", "|-|", "{#}", "..", "++", "&&", "||", "==", "!=", "<=", ">=",
    "<<", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "##", "+:", "{", "}", "(", ")", "[", "]", "<", ">",
    "=", ";", ":", ",", ".", "+", "-", "*", "/", "%", "&", "|", "^", "~", "!", "?", "@", "#", "_", "$",
];

/// Table of the words of a program.
#[derive(Debug, Default)]
pub(crate) struct SymbolTable(FxHashSet<Symbol>);

impl SymbolTable {
    pub(crate) fn intern(&mut self, text: &str) -> Symbol {
        if let Some(symbol) = self.0.get(text) {
            return symbol.clone();
        }
        let symbol: Symbol = Arc::from(text);
        self.0.insert(symbol.clone());
        symbol
    }
}

/// Splits a file into tokens.
pub(crate) fn tokenize(file: FileId, text: &str, symbols: &mut SymbolTable) -> Vec<SourceToken> {
    let mut lexer = TokenReader { text, at: 0, begins_line: true, is_spaced: true, file };
    let mut tokens = Vec::new();
    while let Some(token) = lexer.next(symbols) {
        tokens.push(token);
    }
    tokens
}

struct TokenReader<'t> {
    text: &'t str,
    at: usize,
    begins_line: bool,
    is_spaced: bool,
    file: FileId,
}

fn in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

impl TokenReader<'_> {
    fn byte(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.at + ahead).copied()
    }

    /// Skips blanks, comments and continued lines; gives the reason if a comment has no end.
    fn skip(&mut self) -> Option<&'static str> {
        while let Some(byte) = self.byte(0) {
            match (byte, self.byte(1)) {
                (b'\n', _) => self.begins_line = true,
                (b'\\', Some(b'\n')) => self.at += 1,
                (b'\\', Some(b'\r')) if self.byte(2) == Some(b'\n') => self.at += 2,
                (b'/', Some(b'/')) => self.line_comment(),
                (b'/', Some(b'*')) => match self.text[self.at + 2..].find("*/") {
                    Some(length) => self.at += length + 3,
                    None => {
                        self.at = self.text.len();
                        return Some("a comment without its end `*/`");
                    }
                },
                (blank, _) if blank.is_ascii_whitespace() || blank == b'\x0b' => {}
                _ => break,
            }
            self.is_spaced = true;
            self.at += 1;
        }
        None
    }

    /// Goes to the last byte before the end of the line.
    fn line_comment(&mut self) {
        let mut length = self.text[self.at..].find('\n').unwrap_or(self.text.len() - self.at);
        while self.text[..self.at + length].ends_with('\\') && self.at + length < self.text.len() {
            let from = self.at + length + 1;
            length += 1 + self.text[from..].find('\n').unwrap_or(self.text.len() - from);
        }
        self.at += length - 1;
    }

    fn next(&mut self, symbols: &mut SymbolTable) -> Option<SourceToken> {
        let start = self.at;
        if let Some(reason) = self.skip() {
            return Some(self.token(start, TokenKind::Stray(reason)));
        }
        let start = self.at;
        let byte = self.byte(0)?;
        let kind = match byte {
            b'"' => self.string(symbols),
            b'_' if !self.byte(1).is_some_and(in_word) => self.mark(),
            _ if in_word(byte) => self.word(symbols),
            _ => self.mark(),
        };
        Some(self.token(start, kind))
    }

    fn token(&mut self, start: usize, kind: TokenKind) -> SourceToken {
        let span = SourceSpan { file: self.file, start: start as u32, end: self.at as u32 };
        let token = SourceToken { kind, span, begins_line: self.begins_line, is_spaced: self.is_spaced };
        self.begins_line = false;
        self.is_spaced = false;
        token
    }

    fn word(&mut self, symbols: &mut SymbolTable) -> TokenKind {
        let start = self.at;
        while self.byte(0).is_some_and(in_word) {
            self.at += 1;
        }
        let text = &self.text[start..self.at];
        let symbol = symbols.intern(text);
        if text.as_bytes()[0].is_ascii_digit() { TokenKind::Number(symbol) } else { TokenKind::Word(symbol) }
    }

    fn mark(&mut self) -> TokenKind {
        let rest = &self.text[self.at..];
        if let Some(mark) = MARKS.iter().find(|mark| rest.starts_with(**mark)) {
            self.at += mark.len();
            return TokenKind::Mark(mark);
        }
        self.at += rest.chars().next().map_or(1, char::len_utf8);
        TokenKind::Stray("a character that begins no token")
    }

    fn string(&mut self, symbols: &mut SymbolTable) -> TokenKind {
        let mut text = String::new();
        let mut from = self.at + 1;
        self.at = from;
        while let Some(byte) = self.byte(0) {
            match byte {
                b'"' => {
                    text.push_str(&self.text[from..self.at]);
                    self.at += 1;
                    return TokenKind::Text(symbols.intern(&text));
                }
                b'\\' if matches!(self.byte(1), Some(b'"' | b'\\')) => {
                    text.push_str(&self.text[from..self.at]);
                    from = self.at + 1;
                    self.at += 2;
                }
                _ => self.at += 1,
            }
        }
        TokenKind::Stray("a string without its closing quote")
    }
}
