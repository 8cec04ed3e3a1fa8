//! Tokens of the language, and the raw text of configuration strings.
//!
//! The meaning of a left parenthesis depends on the token before it, so the parser asks for a configuration
//! string where it expects one. Source: click(5), "Lexical issues".

use crate::error::{ConfigSpan, Error};

/// A token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token<'t> {
    /// Letters, digits, underscores, at-signs and slashes: a name, or a number.
    Word(&'t str),
    /// A variable, without its dollar sign.
    Variable(&'t str),
    /// Punctuation.
    Mark(&'static str),
    /// The end of the text.
    End,
}

impl Token<'_> {
    /// For messages.
    pub(crate) fn describe(self) -> String {
        match self {
            Token::Word(word) => format!("`{word}`"),
            Token::Variable(name) => format!("`${name}`"),
            Token::Mark(mark) => format!("`{mark}`"),
            Token::End => "the end".to_owned(),
        }
    }
}

/// Longer marks before those that begin them.
const MARKS: [&str; 14] = ["...", "->", "=>", "::", "||", ";", ",", "(", ")", "[", "]", "{", "}", "|"];

#[derive(Clone)]
pub(crate) struct Lexer<'t> {
    text: &'t str,
    at: usize,
}

fn in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'@'
}

impl<'t> Lexer<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        Lexer { text, at: 0 }
    }

    fn bytes(&self) -> &'t [u8] {
        self.text.as_bytes()
    }

    fn byte(&self, ahead: usize) -> Option<u8> {
        self.bytes().get(self.at + ahead).copied()
    }

    /// Skips white space, comments and line directives.
    fn skip(&mut self) -> Result<(), Error> {
        while let Some(byte) = self.byte(0) {
            let begins_line = self.at == 0 || self.bytes()[self.at - 1] == b'\n';
            match byte {
                b'/' if matches!(self.byte(1), Some(b'/' | b'*')) => self.comment()?,
                b'#' if begins_line => self.at = line_end(self.bytes(), self.at),
                _ if byte.is_ascii_whitespace() => self.at += 1,
                _ => break,
            }
        }
        Ok(())
    }

    fn comment(&mut self) -> Result<(), Error> {
        let from = self.at;
        self.at = comment_end(self.bytes(), from).ok_or_else(|| {
            Error::new(ConfigSpan { start: from, end: from + 2 }, "a comment without an end")
        })?;
        Ok(())
    }

    /// The next token and its place.
    pub(crate) fn next(&mut self) -> Result<(Token<'t>, ConfigSpan), Error> {
        self.skip()?;
        let start = self.at;
        let Some(byte) = self.byte(0) else { return Ok((Token::End, ConfigSpan { start, end: start })) };
        let token = if in_word(byte) {
            self.word()
        } else if byte == b'$' {
            self.at += 1;
            let name = self.word_of(|b| b.is_ascii_alphanumeric() || b == b'_');
            if name.is_empty() {
                return Err(Error::new(ConfigSpan { start, end: self.at }, "a `$` without a name behind it"));
            }
            Token::Variable(name)
        } else {
            let rest = self.text.get(start..).unwrap_or_default();
            // A hyphen between port numbers.
            let mark = MARKS.iter().chain([&"-"]).find(|mark| rest.starts_with(**mark));
            let Some(mark) = mark else {
                let character = rest.chars().next().map_or(1, char::len_utf8);
                let span = ConfigSpan { start, end: start + character };
                return Err(Error::new(span, "a character that begins nothing"));
            };
            self.at += mark.len();
            Token::Mark(mark)
        };
        Ok((token, ConfigSpan { start, end: self.at }))
    }

    fn word_of(&mut self, in_word: impl Fn(u8) -> bool) -> &'t str {
        let start = self.at;
        while self.byte(0).is_some_and(&in_word) {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    /// A slash belongs to a word if it is inside one, and begins no comment.
    fn word(&mut self) -> Token<'t> {
        let start = self.at;
        loop {
            self.word_of(in_word);
            if self.byte(0) != Some(b'/') || !self.byte(1).is_some_and(in_word) {
                break Token::Word(&self.text[start..self.at]);
            }
            self.at += 1;
        }
    }

    /// The text behind a left parenthesis that was just read, up to the one that balances it.
    pub(crate) fn config(&mut self) -> Result<(&'t str, ConfigSpan), Error> {
        let start = self.at;
        let mut depth = 0usize;
        while let Some(byte) = self.byte(0) {
            match byte {
                b'(' => depth += 1,
                b')' if depth == 0 => {
                    let span = ConfigSpan { start, end: self.at };
                    self.at += 1;
                    return Ok((&self.text[start..span.end], span));
                }
                b')' => depth -= 1,
                _ => {}
            }
            self.at = step(self.bytes(), self.at);
        }
        let span = ConfigSpan { start: start.saturating_sub(1), end: start };
        Err(Error::new(span, "a configuration string without its closing parenthesis"))
    }
}

/// Behind the line that `at` is in, its end not included.
fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|&b| b == b'\n').map_or(bytes.len(), |n| at + n)
}

/// Behind the comment that begins at `at`.
fn comment_end(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at + 1) {
        Some(b'/') => Some(line_end(bytes, at)),
        _ => bytes[at + 2..].windows(2).position(|w| w == b"*/").map(|n| at + 2 + n + 2),
    }
}

/// Skips one item that begins at `at` in a configuration string: a comment, a quoted string, an escape, or
/// one byte. An item without an end goes on to the end of the text.
pub(crate) fn step(bytes: &[u8], at: usize) -> usize {
    match bytes[at] {
        b'/' if matches!(bytes.get(at + 1), Some(b'/' | b'*')) => {
            comment_end(bytes, at).unwrap_or(bytes.len())
        }
        b'\'' => bytes[at + 1..].iter().position(|&b| b == b'\'').map_or(bytes.len(), |n| at + n + 2),
        b'"' => double_quoted_end(bytes, at),
        b'\\' if bytes.get(at + 1) == Some(&b'<') => data_end(bytes, at),
        _ => at + 1,
    }
}

/// Behind the data that `\<` at `from` begins; comments may stand in it.
fn data_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from + 2;
    while at < bytes.len() {
        at = match bytes[at] {
            b'>' => return at + 1,
            b'/' => step(bytes, at),
            _ => at + 1,
        };
    }
    bytes.len()
}

fn double_quoted_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}
