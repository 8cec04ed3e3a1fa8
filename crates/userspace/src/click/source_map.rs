//! The text of a configuration, with those of the libraries that it requires.
//!
//! `require(library FILE)` inserts the file's text, once, in front of the file that requires it. The front
//! end reads all as one text; this module maps each place to its file.

use std::path::{Path, PathBuf};

use miette::{IntoDiagnostic, LabeledSpan, MietteDiagnostic, Report, Result, Severity, WrapErr};
use millstream_click::ast::Statement;
use millstream_click::{ConfigSpan, Error, ErrorStage, decoded, driver_lines, parse};

use super::config_input::{ConfigInput, ConfigSource};
use crate::diagnostics::{self, TextExcerpt};
use crate::exit::{Exit, ExitError};

/// Concatenated texts of files.
#[derive(Default)]
pub(super) struct SourceMap {
    pub(super) whole: String,
    parts: Vec<SourceFile>,
    /// Folders of libraries.
    folders: Vec<PathBuf>,
    /// True if diagnostics are lines as Click prints them.
    plain: bool,
    /// True if warnings are not printed.
    quiet: bool,
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
        let label = LabeledSpan::new_with_span(Some(error.label.to_string()), self.source.place(from, to));
        let note = error.note.as_deref().map(|(span, note)| {
            let (from, to) = (span.start.saturating_sub(self.from), span.end.saturating_sub(self.from));
            LabeledSpan::new_with_span(Some(note.clone()), self.source.place(from, to))
        });
        let labels = [Some(label), note].into_iter().flatten();
        let diagnostic =
            MietteDiagnostic::new(error.message.clone()).with_labels(labels).with_severity(severity);
        let diagnostic = match &error.help {
            Some(help) => diagnostic.with_help(help.to_string()),
            None => diagnostic,
        };
        Report::new(diagnostic).with_source_code(self.source.clone())
    }
}

impl SourceMap {
    /// Reads a configuration and its libraries.
    pub(super) fn read(source: &ConfigSource) -> Result<SourceMap> {
        let (folders, plain, quiet) = (source.folders.clone(), source.plain, source.quiet);
        let mut texts = SourceMap { folders, plain, quiet, ..SourceMap::default() };
        texts.add(&source.input, &mut Vec::new())?;
        Ok(texts)
    }

    fn add(&mut self, input: &ConfigInput, seen: &mut Vec<PathBuf>) -> Result<()> {
        let name = input.name();
        let bytes = input.read().into_diagnostic().wrap_err_with(|| name.clone())?;
        let text = decoded(&bytes);
        seen.extend(input.path().and_then(|path| path.canonicalize().ok()));
        let folder = input.path().and_then(Path::parent).unwrap_or(Path::new(""));
        for (library, span) in libraries(&text) {
            let mut places = vec![folder.join(&library), PathBuf::from(&library)];
            places.extend(self.folders.iter().map(|folder| folder.join(&library)));
            let Some(found) = places.iter().find(|place| place.is_file()) else {
                let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
                let error = Error::new(span, format!("there is no library `{library}`"))
                    .help(format!("it is looked for as {}", places.join(" and ")));
                self.parts.push(SourceFile::new(name, &text, self.whole.len()));
                self.whole.push_str(&text);
                let from = self.parts.last().map_or(0, |part| part.from);
                let span = ConfigSpan { start: span.start + from, end: span.end + from };
                return Err(self.failure(&[Error { span, ..error }]));
            };
            let known = found.canonicalize().is_ok_and(|found| seen.contains(&found));
            if !known {
                self.add(&ConfigInput::File(found.clone()), seen)?;
            }
        }
        self.parts.push(SourceFile::new(name, &text, self.whole.len()));
        self.whole.push_str(&text);
        self.whole.push('\n');
        Ok(())
    }

    /// Name of the configuration.
    pub(super) fn name(&self) -> &str {
        self.parts.last().map_or("", |part| &part.name)
    }

    /// The file that a place is in.
    fn part(&self, span: ConfigSpan) -> Option<&SourceFile> {
        self.parts.iter().rev().find(|part| part.from <= span.start)
    }

    /// `FILE:LINE`, by the line directives in front of the place.
    pub(super) fn place(&self, span: ConfigSpan) -> String {
        let Some(part) = self.part(span) else { return String::new() };
        let before = self.whole.get(part.from..span.start).unwrap_or_default();
        let (mut name, mut line) = (part.name.as_str(), 1);
        for text in before.split_inclusive('\n').filter(|text| text.ends_with('\n')) {
            match line_directive(text) {
                Some((number, file)) => (line, name) = (number, file.unwrap_or(name)),
                None => line += 1,
            }
        }
        format!("{name}:{line}")
    }

    /// Report of an error, at its place.
    fn report(&self, error: &Error, severity: Severity) -> Report {
        match self.part(error.span) {
            Some(part) => part.report(error, severity),
            None => Report::msg(error.message.clone()),
        }
    }

    /// Prints a warning, unless that is not wanted.
    pub(super) fn warn(&self, warning: &Error) {
        match (self.quiet, self.plain) {
            (true, _) => {}
            (false, true) if warning.stage != ErrorStage::Reading => {
                let lines = driver_lines(std::slice::from_ref(warning), |span| self.place(span));
                errln!("{}", lines[..lines.len() - 1].join("\n"));
            }
            (false, true) => errln!("{}: warning: {}", self.place(warning.span), warning.message),
            (false, false) => diagnostics::emit(&self.report(warning, Severity::Warning)),
        }
    }

    /// Report of all errors; the last one, if they are printed one by one.
    pub(super) fn failure(&self, errors: &[Error]) -> Report {
        if self.plain {
            let lines = driver_lines(errors, |span| self.place(span));
            return ExitError::plain(lines.join("\n"), Exit::Input).into();
        }
        let mut reports: Vec<Report> = errors.iter().map(|e| self.report(e, Severity::Error)).collect();
        let last = reports.pop();
        for report in reports {
            diagnostics::emit(&report);
        }
        last.unwrap_or_else(|| Report::msg("the configuration is wrong"))
    }
}

/// Number of the next line, and its file, if a line is a directive `#line NUMBER "FILE"` or `# NUMBER "FILE"`.
fn line_directive(line: &str) -> Option<(usize, Option<&str>)> {
    let rest = line.strip_prefix('#')?.trim_start();
    let rest = rest.strip_prefix("line").unwrap_or(rest).trim_start();
    let (number, rest) = rest.split_once(|c: char| !c.is_ascii_digit())?;
    let file = rest.trim_start().strip_prefix('"').and_then(|file| file.split_once('"'));
    Some((number.parse().ok()?, file.map(|(file, _)| file)))
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
    use super::{libraries, line_directive};

    #[test]
    fn line_directives_name_the_next_line() {
        assert_eq!(line_directive("# 100 \"a.click\"\n"), Some((100, Some("a.click"))));
        assert_eq!(line_directive("#line 7\n"), Some((7, None)));
        assert_eq!([line_directive("# text\n"), line_directive("a # 1 \"b\"\n")], [None, None]);
    }

    #[test]
    fn one_statement_may_require_several_libraries() {
        let text =
            "require(library lib_a, library lib_b) require(fastclick, library sub/c.click); require(library)";
        let names: Vec<String> = libraries(text).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["lib_a", "lib_b", "sub/c.click"]);
    }
}
