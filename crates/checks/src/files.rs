//! Files of the repository. Paths are relative to its root and use `/`.

use std::ops::RangeInclusive;

/// A Rust file.
pub(crate) struct RustFile {
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) syntax: syn::File,
    /// True if the whole file is test code.
    pub(crate) is_test: bool,
    /// Lines of items that are test code.
    pub(crate) test_lines: Vec<RangeInclusive<usize>>,
}

impl RustFile {
    /// Reports whether a line is test code.
    pub(crate) fn is_test_line(&self, line: usize) -> bool {
        self.is_test || self.test_lines.iter().any(|range| range.contains(&line))
    }
}

/// A Markdown file.
pub(crate) struct MarkdownPage {
    pub(crate) path: String,
    pub(crate) text: String,
}
