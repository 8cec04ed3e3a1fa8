//! Reasons why a program is not lowered.

use millstream_p4::{SourceMap, SourceSpan};

/// A construct that is not lowered, with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LowerError {
    /// Place in the program.
    pub span: SourceSpan,
    /// Name of the construct, and the reason.
    pub message: String,
}

impl LowerError {
    /// Renders place and message in one line.
    pub fn render(&self, sources: &SourceMap) -> String {
        format!("{}: {}", sources.place(self.span), self.message)
    }
}

/// Result of a step.
pub(crate) type Lowered<T> = Result<T, LowerError>;

/// Fails with a message.
pub(crate) fn refuse<T>(span: SourceSpan, message: impl Into<String>) -> Lowered<T> {
    Err(LowerError { span, message: message.into() })
}
