//! Lines and tokens of the text form.

use super::ParseError;

/// Unread rest of one line.
pub(super) struct LineScanner<'a> {
    text: &'a str,
    number: u32,
    pos: usize,
}

/// A place in the text.
#[derive(Clone, Copy)]
pub(super) struct TextPosition {
    pub(super) line: u32,
    pub(super) column: u32,
}

impl TextPosition {
    pub(super) fn error(self, message: impl Into<String>) -> ParseError {
        ParseError { line: self.line, column: self.column, message: message.into() }
    }
}

impl<'a> LineScanner<'a> {
    /// The line without its comment.
    pub(super) fn new(text: &'a str, number: u32) -> Self {
        let mut line = LineScanner { text: strip_comment(text).trim_end(), number, pos: 0 };
        line.skip_space();
        line
    }

    fn skip_space(&mut self) {
        let rest = &self.text[self.pos..];
        self.pos += rest.len() - rest.trim_start().len();
    }

    fn rest(&self) -> &'a str {
        &self.text[self.pos..]
    }

    fn advance(&mut self, bytes: usize) {
        self.pos += bytes;
        self.skip_space();
    }

    pub(super) fn at_end(&self) -> bool {
        self.pos == self.text.len()
    }

    /// The place of the next token.
    pub(super) fn place(&self) -> TextPosition {
        TextPosition { line: self.number, column: self.text[..self.pos].chars().count() as u32 + 1 }
    }

    pub(super) fn error(&self, message: impl Into<String>) -> ParseError {
        self.place().error(message)
    }

    /// The next token for messages: up to white space.
    fn found(&self) -> String {
        match self.rest().split_whitespace().next() {
            Some(token) => format!("`{token}`"),
            None => "the end of the line".to_string(),
        }
    }

    /// Takes `token` if the line goes on with it.
    pub(super) fn eat(&mut self, token: &str) -> bool {
        let there = self.rest().starts_with(token);
        if there {
            self.advance(token.len());
        }
        there
    }

    pub(super) fn expect(&mut self, token: &str) -> Result<(), ParseError> {
        if self.eat(token) {
            return Ok(());
        }
        Err(self.error(format!("expected `{token}`, found {}", self.found())))
    }

    pub(super) fn expect_end(&self) -> Result<(), ParseError> {
        if self.at_end() {
            return Ok(());
        }
        Err(self.error(format!("expected the end of the line, found {}", self.found())))
    }

    /// Takes the text before the next white space or one of `stops`; `what` names it in the error if it is
    /// empty.
    pub(super) fn token(&mut self, what: &str, stops: &[char]) -> Result<&'a str, ParseError> {
        let rest = self.rest();
        let len = rest.find(|c: char| c.is_whitespace() || stops.contains(&c)).unwrap_or(rest.len());
        if len == 0 {
            return Err(self.error(format!("expected {what}, found {}", self.found())));
        }
        self.advance(len);
        Ok(&rest[..len])
    }

    /// A word of letters, digits and underscores.
    pub(super) fn word(&mut self, what: &str) -> Result<&'a str, ParseError> {
        let rest = self.rest();
        let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        if len == 0 {
            return Err(self.error(format!("expected {what}, found {}", self.found())));
        }
        self.advance(len);
        Ok(&rest[..len])
    }

    /// A decimal number, maybe negative.
    pub(super) fn number<T: std::str::FromStr>(&mut self, what: &str) -> Result<T, ParseError> {
        let place = self.place();
        let rest = self.rest();
        let sign = usize::from(rest.starts_with('-'));
        let len = sign + rest[sign..].chars().take_while(char::is_ascii_digit).count();
        let number = rest[..len]
            .parse()
            .map_err(|_| place.error(format!("expected {what}, found {}", self.found())))?;
        self.advance(len);
        Ok(number)
    }

    /// The number of an entity: `prefix` followed by digits.
    pub(super) fn entity(&mut self, prefix: &str) -> Result<u32, ParseError> {
        let place = self.place();
        let rest = self.rest();
        let digits = rest.strip_prefix(prefix).unwrap_or("");
        let len = digits.chars().take_while(char::is_ascii_digit).count();
        let number: u32 = digits[..len]
            .parse()
            .map_err(|_| place.error(format!("expected `{prefix}` and a number, found {}", self.found())))?;
        self.advance(prefix.len() + len);
        Ok(number)
    }

    /// Returns true if the line goes on with `prefix` and a digit.
    pub(super) fn at_entity(&self, prefix: &str) -> bool {
        self.rest().strip_prefix(prefix).is_some_and(|r| r.starts_with(|c: char| c.is_ascii_digit()))
    }

    /// A name in double quotes.
    pub(super) fn quoted(&mut self) -> Result<String, ParseError> {
        let start = self.place();
        self.expect("\"")?;
        // `expect` skipped white space that belongs to the name.
        self.pos = self.text[..self.pos].rfind('"').map_or(self.pos, |q| q + 1);
        let mut name = String::new();
        let mut chars = self.rest().char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.advance(at + 1);
                    return Ok(name);
                }
                '\\' => {
                    name.push(unescape(&mut chars).ok_or_else(|| start.error("malformed escape in a name"))?)
                }
                c => name.push(c),
            }
        }
        Err(start.error("the name has no closing quote"))
    }

    /// A type: a word, or a word with a parenthesised part.
    pub(super) fn type_token(&mut self) -> Result<&'a str, ParseError> {
        let rest = self.rest();
        let word = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
        let len = match rest[word..].starts_with('(') {
            true => rest.find(')').ok_or_else(|| self.error("the type has no closing parenthesis"))? + 1,
            false => word,
        };
        if len == 0 {
            return Err(self.error(format!("expected a type, found {}", self.found())));
        }
        self.advance(len);
        Ok(&rest[..len])
    }
}

/// The character that an escape stands for, the backslash already taken.
fn unescape(chars: &mut std::str::CharIndices<'_>) -> Option<char> {
    match chars.next()?.1 {
        'u' => {
            chars.next().filter(|c| c.1 == '{')?;
            let digits: String = chars.map(|c| c.1).take_while(|&c| c != '}').collect();
            char::from_u32(u32::from_str_radix(&digits, 16).ok()?)
        }
        c => Some(c),
    }
}

/// Cuts the line at the first `;` outside of quotes.
fn strip_comment(text: &str) -> &str {
    let mut quoted = false;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ';' if !quoted => return &text[..at],
            _ => {}
        }
    }
    text
}
