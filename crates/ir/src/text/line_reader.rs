//! Lines of a text, and pairs in them.

use super::ParseError;
use super::scan::LineScanner;

/// Lines that are not empty without their comments.
pub(super) struct LineReader<'a> {
    lines: std::iter::Enumerate<std::str::Lines<'a>>,
    last: u32,
}

impl<'a> LineReader<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        LineReader { lines: text.lines().enumerate(), last: 0 }
    }

    pub(super) fn next_line(&mut self) -> Option<LineScanner<'a>> {
        for (index, text) in self.lines.by_ref() {
            self.last = index as u32 + 1;
            let line = LineScanner::new(text, self.last);
            if !line.at_end() {
                return Some(line);
            }
        }
        None
    }

    /// The error that the text ends where `what` was expected.
    pub(super) fn ended(&self, what: &str) -> ParseError {
        ParseError { line: self.last, column: 1, message: format!("the text ends before {what}") }
    }
}

/// Takes `key=` and a number.
pub(super) fn pair<T: std::str::FromStr>(line: &mut LineScanner<'_>, key: &str) -> Result<T, ParseError> {
    line.expect(key)?;
    line.expect("=")?;
    line.number("a number")
}
