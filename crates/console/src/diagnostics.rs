//! Diagnostics on standard error: each in one write. Places in texts are shown as a few lines, and of a long
//! line only the part around the place.
//!
//! The renderer counts columns in 16 bits and is slow with long lines, and a configuration may be one line of
//! megabytes. So it is never given more than `MOST` bytes on either side of a place, whatever the text is.

use std::sync::Arc;

use miette::{
    MietteError, MietteHandlerOpts, MietteSpanContents, Report, SourceCode, SourceSpan, SpanContents,
};

/// Bytes shown in front of a place and behind its beginning.
const MOST: usize = 160;

/// Sets the form of reports of this process. Messages are wrapped at the columns of a terminal only: in a
/// file or a pipe, a line break inside a message would keep people and scripts from finding it.
pub fn install() {
    if !crate::output::is_error_terminal() {
        // It fails if a hook is there already, which wraps its messages.
        let _ = miette::set_hook(Box::new(|_| Box::new(MietteHandlerOpts::new().wrap_lines(false).build())));
    }
}

/// Writes a report to standard error, in one write. A closed stream is ignored.
pub fn emit(report: &Report) {
    errln!("{report:?}");
}

/// Writes a warning to standard error, as one line.
pub fn warn(text: &str) {
    errln!("warning: {text}");
}

/// A text and its name, of which only a part is shown.
#[derive(Clone, Debug)]
pub struct TextExcerpt {
    name: String,
    text: Arc<str>,
}

impl TextExcerpt {
    /// A text of a file with this name.
    pub fn new(name: &str, text: &str) -> TextExcerpt {
        TextExcerpt { name: name.to_owned(), text: text.into() }
    }

    /// The span from one byte to another for the renderer: inside the text, not beyond the shown part of its
    /// line, on character boundaries.
    pub fn place(&self, from: usize, to: usize) -> SourceSpan {
        let from = self.boundary_before(from);
        let line_end = self.text[from..].find('\n').map_or(self.text.len(), |at| from + at);
        let to = self.boundary_before(to.clamp(from, line_end.min(from + MOST)));
        (from, to - from).into()
    }

    /// Last character boundary at or before a byte.
    fn boundary_before(&self, at: usize) -> usize {
        let at = at.min(self.text.len());
        (0..=at).rev().find(|at| self.text.is_char_boundary(*at)).unwrap_or(0)
    }

    /// Start of the excerpt in front of a byte: so many lines before its own, unless these are long.
    fn first(&self, at: usize, lines: usize) -> usize {
        let floor = self.boundary_before(at.saturating_sub(MOST));
        let mut newlines = self.text[floor..at].rmatch_indices('\n').map(|(place, _)| floor + place + 1);
        match newlines.nth(lines) {
            Some(begin) => begin,
            None if floor == 0 => 0,
            // A truncated line is left out, unless it is the place's own.
            None => self.text[floor..at].find('\n').map_or(floor, |place| floor + place + 1),
        }
    }

    /// End of the excerpt behind a byte.
    fn last(&self, at: usize, lines: usize) -> usize {
        let ceiling = self.boundary_before(at + MOST);
        let shown = &self.text[at..ceiling];
        match shown.match_indices('\n').nth(lines) {
            Some((place, _)) => at + place + 1,
            None if ceiling == self.text.len() => ceiling,
            None => shown.rfind('\n').map_or(ceiling, |place| at + place + 1),
        }
    }
}

impl SourceCode for TextExcerpt {
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        before: usize,
        after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let from = self.boundary_before(span.offset());
        let to = self.boundary_before(from.saturating_add(span.len())).max(from);
        // Without lines in front, miette asks for the column of the place itself.
        let first = if before == 0 { from } else { self.first(from, before) };
        let last = self.last(to, after);
        let begin = self.text[..first].rfind('\n').map_or(0, |at| at + 1);
        let line = self.text[..first].matches('\n').count();
        let column = self.text[begin..first].chars().count();
        let lines = self.text[first..last].lines().count();
        let shown = (first, last - first).into();
        Ok(Box::new(MietteSpanContents::new_named(
            self.name.clone(),
            self.text[first..last].as_bytes(),
            shown,
            line,
            column,
            lines,
        )))
    }
}

#[cfg(test)]
mod tests {
    use miette::{LabeledSpan, MietteDiagnostic, Report};

    use super::{MOST, TextExcerpt};

    /// Excerpt for a text whose bytes `from..to` are wrong.
    fn shown(text: &str, from: usize, to: usize) -> String {
        let source = TextExcerpt::new("a.click", text);
        let label = LabeledSpan::new_with_span(Some("here".into()), source.place(from, to));
        let report = Report::new(MietteDiagnostic::new("wrong").with_label(label)).with_source_code(source);
        format!("{report:?}")
    }

    #[test]
    fn short_lines_are_shown_with_those_around_them() {
        let text = "one\ntwo\nthree\nfour\nfive\n";
        let shown = shown(text, 8, 13);
        assert!(shown.contains("a.click:3:1"), "{shown}");
        for (line, is_there) in
            [("one", false), ("two", true), ("three", true), ("four", true), ("five", false)]
        {
            assert_eq!(shown.contains(line), is_there, "{line}: {shown}");
        }
    }

    #[test]
    fn of_a_long_line_the_part_around_the_place_is_shown_with_its_column() {
        for length in [1_000, 65_535, 65_536, 70_000, 1_000_000] {
            let text = format!("first\n/*{}*/ wrong {}\nlast", "x".repeat(length), "y".repeat(length));
            let from = text.find("wrong").expect("it is there");
            let shown = shown(&text, from, from + 5);
            assert!(shown.contains("wrong") && shown.len() < 12 * MOST, "{length}: {shown}");
            assert!(shown.contains(&format!("a.click:2:{}", from - 6 + 1)), "{length}: {shown}");
        }
    }

    #[test]
    fn any_place_of_any_text_is_shown() {
        for text in ["", "a", "a\n", "\n\n", "\u{e9}\u{e9}", &"\u{e9}".repeat(500), &"ab\n".repeat(300)] {
            for from in 0..=text.len() + 2 {
                for to in [0, from, from + 1, from + 500, usize::MAX] {
                    assert!(shown(text, from, to).contains("wrong"), "{from} to {to} of {text:?}");
                }
            }
        }
    }
}
