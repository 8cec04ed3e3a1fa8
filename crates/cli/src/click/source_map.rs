//! The text of a configuration, with those of the libraries that it requires.
//!
//! `require(library FILE)` inserts the file's text, once, in front of the file that requires it. The front
//! end reads all as one text; this module maps each place to its file.

use std::path::{Path, PathBuf};

use miette::{IntoDiagnostic, LabeledSpan, MietteDiagnostic, Report, Result, Severity, WrapErr};
use millstream_click::ast::Statement;
use millstream_click::{ConfigSpan, Error, decoded, parse};

use crate::diagnostics::TextExcerpt;

/// Concatenated texts of files.
#[derive(Default)]
pub(super) struct SourceMap {
    pub(super) whole: String,
    parts: Vec<SourceFile>,
}

/// A file, and its offset in the whole text.
struct SourceFile {
    name: String,
    from: usize,
    source: TextExcerpt,
}

impl SourceFile {
    fn new(name: String, text: &str, from: usize) -> SourceFile {
        let source = TextExcerpt::new(&name, text);
        SourceFile { name, from, source }
    }

    fn report(&self, error: &Error, severity: Severity) -> Report {
        let (from, to) =
            (error.span.start.saturating_sub(self.from), error.span.end.saturating_sub(self.from));
        let label = LabeledSpan::new_with_span(Some(error.label.clone()), self.source.place(from, to));
        let diagnostic =
            MietteDiagnostic::new(error.message.clone()).with_label(label).with_severity(severity);
        let diagnostic = match &error.help {
            Some(help) => diagnostic.with_help(help.clone()),
            None => diagnostic,
        };
        Report::new(diagnostic).with_source_code(self.source.clone())
    }
}

impl SourceMap {
    /// Reads a configuration and its libraries.
    pub(super) fn read(conf: &Path) -> Result<SourceMap> {
        let mut texts = SourceMap::default();
        texts.add(conf, &mut Vec::new())?;
        Ok(texts)
    }

    fn add(&mut self, path: &Path, seen: &mut Vec<PathBuf>) -> Result<()> {
        let name = path.display().to_string();
        let bytes = crate::bounded_read::bytes(path).into_diagnostic().wrap_err_with(|| name.clone())?;
        let text = decoded(&bytes);
        seen.extend(path.canonicalize());
        let folder = path.parent().unwrap_or(Path::new(""));
        for (library, span) in libraries(&text) {
            let places = [folder.join(&library), PathBuf::from(&library)];
            let Some(found) = places.iter().find(|place| place.is_file()) else {
                let error = Error::new(span, format!("there is no library `{library}`")).help(format!(
                    "it is looked for as {} and {}",
                    places[0].display(),
                    places[1].display()
                ));
                return Err(SourceFile::new(name, &text, 0).report(&error, Severity::Error));
            };
            let known = found.canonicalize().is_ok_and(|found| seen.contains(&found));
            if !known {
                self.add(found, seen)?;
            }
        }
        self.parts.push(SourceFile::new(name, &text, self.whole.len()));
        self.whole.push_str(&text);
        self.whole.push('\n');
        Ok(())
    }

    /// The file that a place is in.
    fn part(&self, span: ConfigSpan) -> Option<&SourceFile> {
        self.parts.iter().rev().find(|part| part.from <= span.start)
    }

    /// `FILE:LINE`.
    pub(super) fn place(&self, span: ConfigSpan) -> String {
        let Some(part) = self.part(span) else { return String::new() };
        let before = self.whole.get(part.from..span.start).unwrap_or_default();
        format!("{}:{}", part.name, 1 + before.bytes().filter(|byte| *byte == b'\n').count())
    }

    /// Report of an error, at its place.
    pub(super) fn report(&self, error: &Error, severity: Severity) -> Report {
        match self.part(error.span) {
            Some(part) => part.report(error, severity),
            None => Report::msg(error.message.clone()),
        }
    }
}

/// The libraries that a text requires, each with its place. A text with errors has none: the error is
/// reported when the whole is read.
fn libraries(text: &str) -> Vec<(String, ConfigSpan)> {
    let statements = parse(text).unwrap_or_default();
    let mut all = Vec::new();
    for statement in statements {
        let Statement::Require(config) = statement else { continue };
        // One statement may require several things.
        for requirement in config.text.split(',') {
            let library = requirement.trim().strip_prefix("library").unwrap_or_default();
            if library.starts_with(char::is_whitespace) && !library.trim().is_empty() {
                all.push((library.trim().to_owned(), config.span));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::libraries;

    #[test]
    fn one_statement_may_require_several_libraries() {
        let text =
            "require(library lib_a, library lib_b) require(fastclick, library sub/c.click); require(library)";
        let names: Vec<String> = libraries(text).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["lib_a", "lib_b", "sub/c.click"]);
    }
}
