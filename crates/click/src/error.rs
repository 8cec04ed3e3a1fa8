//! Errors in a configuration, with their positions.

/// A range of bytes of the configuration's text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ConfigSpan {
    /// First byte.
    pub start: usize,
    /// Behind the last.
    pub end: usize,
}

impl ConfigSpan {
    /// From the beginning of one to the end of another.
    pub fn to(self, other: ConfigSpan) -> ConfigSpan {
        ConfigSpan { start: self.start, end: other.end.max(self.start) }
    }
}

/// Step at which an error is found. Click's driver words its messages by it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ErrorStage {
    /// The text is read, and classes are looked up.
    #[default]
    Reading,
    /// An element reads its arguments: its name and class, as `NAME :: CLASS`.
    Configuring(Box<str>),
    /// Elements are connected.
    Connecting,
}

/// An error, with its position and help.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Description of the error.
    pub message: String,
    /// Position.
    pub span: ConfigSpan,
    /// A short word for the place.
    pub label: Box<str>,
    /// Help, if there is any.
    pub help: Option<Box<str>>,
    /// Another place that the error is about, and what is there.
    pub note: Option<Box<(ConfigSpan, String)>>,
    /// Step at which it is found.
    pub stage: ErrorStage,
    /// Position of the element that it is about, if Click's driver would name that instead.
    pub element: Option<Box<ConfigSpan>>,
}

impl Error {
    /// An error at a place.
    pub fn new(span: ConfigSpan, message: impl Into<String>) -> Error {
        let (label, stage) = ("here".into(), ErrorStage::Reading);
        Error { message: message.into(), span, label, help: None, note: None, stage, element: None }
    }

    /// The same, about the element that is declared here.
    #[must_use]
    pub fn about(self, element: ConfigSpan) -> Error {
        Error { element: Some(Box::new(element)), ..self }
    }

    /// The same, found at this step.
    #[must_use]
    pub fn at_stage(self, stage: ErrorStage) -> Error {
        Error { stage, ..self }
    }

    /// Adds help.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Error {
        self.help = Some(help.into().into());
        self
    }

    /// Adds another place that the error is about.
    #[must_use]
    pub fn note(mut self, span: ConfigSpan, what: impl Into<String>) -> Error {
        self.note = Some(Box::new((span, what.into())));
        self
    }

    /// Suggests the candidate that is nearest to the text, if one is near.
    #[must_use]
    pub fn nearest<'c>(self, written: &str, candidates: impl IntoIterator<Item = &'c str>) -> Error {
        match nearest(written, candidates) {
            Some(candidate) => self.help(format!("the nearest name is `{candidate}`")),
            None => self,
        }
    }
}

/// Lines of errors as Click's driver words them. `place` is the file and line of a position.
pub fn driver_lines(errors: &[Error], place: impl Fn(ConfigSpan) -> String) -> Vec<String> {
    let mut lines = Vec::new();
    for error in errors {
        let at = place(error.element.as_deref().copied().unwrap_or(error.span));
        match &error.stage {
            ErrorStage::Configuring(element) => {
                lines.push(format!("{at}: While configuring '{element}':"));
                lines.extend(error.message.lines().map(|line| format!("  {line}")));
            }
            ErrorStage::Reading | ErrorStage::Connecting => lines.push(format!("{at}: {}", error.message)),
        }
        lines.extend(error.note.as_deref().map(|(span, note)| format!("{}: {note}", place(*span))));
    }
    // Click says so of configurations that it could read.
    if errors.iter().any(|error| error.stage != ErrorStage::Reading) {
        lines.push("Router could not be initialized!".to_owned());
    }
    lines
}

/// The candidate that is nearest to the text, if one is near.
pub fn nearest<'c>(written: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let same = |c: &str| c.bytes().zip(written.bytes()).filter(|(a, b)| a == b).count();
    let near = candidates.into_iter().map(|c| (distance(written, c), std::cmp::Reverse(same(c)), c)).min();
    near.filter(|(distance, ..)| *distance <= 1 + written.len() / 3).map(|(.., candidate)| candidate)
}

/// Edits between two names, an exchange of neighbours being one; a difference of case alone is none.
fn distance(a: &str, b: &str) -> usize {
    strsim::osa_distance(&a.to_ascii_lowercase(), &b.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::{ConfigSpan, Error, distance};

    #[test]
    fn edits_are_counted_and_case_is_not() {
        assert_eq!(distance("Clasifier", "Classifier"), 1);
        assert_eq!(distance("counter", "Counter"), 0);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("tpc", "tcp"), 1);
    }

    #[test]
    fn a_far_name_is_no_help() {
        let help = |written| Error::new(ConfigSpan::default(), "x").nearest(written, ["Queue", "Paint"]).help;
        assert_eq!(help("Queu").as_deref(), Some("the nearest name is `Queue`"));
        assert_eq!(help("SomethingElse"), None);
    }
}
