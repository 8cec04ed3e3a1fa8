//! Errors and warnings, with their places.

use std::fmt::{self, Display, Formatter};

use crate::source::{SourceMap, SourceSpan};

/// Weight of a diagnostic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiagnosticSeverity {
    /// The program is wrong.
    Error,
    /// The program is right, and may surprise.
    Warning,
}

/// A finding, with its place and help.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct SourceDiagnostic {
    /// Weight.
    pub severity: DiagnosticSeverity,
    /// Description.
    pub message: String,
    /// Place.
    pub span: SourceSpan,
    /// Help, if there is any.
    pub help: Option<String>,
}

impl SourceDiagnostic {
    /// Makes an error.
    pub fn error(span: SourceSpan, message: impl Into<String>) -> SourceDiagnostic {
        SourceDiagnostic { severity: DiagnosticSeverity::Error, message: message.into(), span, help: None }
    }

    /// Makes a warning.
    pub fn warning(span: SourceSpan, message: impl Into<String>) -> SourceDiagnostic {
        SourceDiagnostic { severity: DiagnosticSeverity::Warning, ..SourceDiagnostic::error(span, message) }
    }

    /// Adds help.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> SourceDiagnostic {
        self.help = Some(help.into());
        self
    }

    /// Suggests the candidate that is nearest to the text, if one is near.
    #[must_use]
    pub fn nearest<'c>(
        self,
        written: &str,
        candidates: impl IntoIterator<Item = &'c str>,
    ) -> SourceDiagnostic {
        match nearest(written, candidates) {
            Some(candidate) => self.help(format!("the nearest name is `{candidate}`")),
            None => self,
        }
    }

    /// Tells errors from warnings.
    pub fn is_error(&self) -> bool {
        self.severity == DiagnosticSeverity::Error
    }

    /// Renders the diagnostic as one line, and a second one for help.
    pub fn render(&self, sources: &SourceMap) -> RenderedDiagnostic {
        let kind = if self.is_error() { "error" } else { "warning" };
        let mut text = format!("{}: {kind}: {}", sources.place(self.span), self.message);
        if let Some(help) = &self.help {
            text.push_str("\n  help: ");
            text.push_str(help);
        }
        RenderedDiagnostic(text)
    }
}

/// A diagnostic as text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RenderedDiagnostic(String);

impl Display for RenderedDiagnostic {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Finds the candidate that is nearest to the text, if one is near.
pub(crate) fn nearest<'c>(written: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let written = written.to_ascii_lowercase();
    let distance = |c: &str| strsim::osa_distance(&written, &c.to_ascii_lowercase());
    let near =
        candidates.into_iter().filter(|c| c.len() < 2 * written.len() + 2).map(|c| (distance(c), c)).min();
    near.filter(|(distance, _)| *distance <= (written.len() + 1) / 3).map(|(_, candidate)| candidate)
}

/// Most errors that are kept, and most warnings.
const MOST: usize = 100;

/// Diagnostics of one run.
#[derive(Debug, Default)]
pub(crate) struct DiagnosticSink {
    pub(crate) list: Vec<SourceDiagnostic>,
}

impl DiagnosticSink {
    /// Keeps a diagnostic, unless there are too many or its place has one of the same weight already.
    pub(crate) fn push(&mut self, diagnostic: SourceDiagnostic) {
        let mut alike = self.list.iter().filter(|d| d.severity == diagnostic.severity);
        let has_room = alike.clone().count() < MOST;
        if has_room && !alike.any(|d| d.span == diagnostic.span) {
            self.list.push(diagnostic);
        }
    }

    /// Tells if no further errors are kept.
    pub(crate) fn is_full(&self) -> bool {
        self.list.len() >= MOST && self.list.iter().filter(|d| d.is_error()).count() >= MOST
    }

    pub(crate) fn error(&mut self, span: SourceSpan, message: impl Into<String>) {
        self.push(SourceDiagnostic::error(span, message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_warnings_do_not_hide_errors() {
        let mut sink = DiagnosticSink::default();
        for start in 0..1000 {
            sink.push(SourceDiagnostic::warning(SourceSpan { start, ..SourceSpan::default() }, "warning"));
        }
        sink.error(SourceSpan::default(), "error");
        assert_eq!(sink.list.len(), MOST + 1);
        assert!(sink.list.iter().any(SourceDiagnostic::is_error) && !sink.is_full());
    }
}
