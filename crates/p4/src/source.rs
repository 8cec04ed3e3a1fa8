//! Source files and places in them.

use std::fmt::{self, Display, Formatter};
use std::ops::Range;
use std::sync::Arc;

/// A word of a program. Equal words of one program share their text.
pub type Symbol = Arc<str>;

/// A file of a [`SourceMap`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FileId(pub u32);

/// A range of bytes of a file. Tokens of a macro's body have the place of the macro's use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SourceSpan {
    /// The file.
    pub file: FileId,
    /// First byte.
    pub start: u32,
    /// Byte behind the last.
    pub end: u32,
}

/// A name with its place.
#[derive(Clone, Debug)]
pub struct SourceName {
    /// The word.
    pub text: Symbol,
    /// Its place.
    pub span: SourceSpan,
}

impl SourceSpan {
    /// Joins two places of a file: from the beginning of one to the end of the other.
    #[must_use]
    pub fn to(self, other: SourceSpan) -> SourceSpan {
        match self.file == other.file {
            true => SourceSpan { end: other.end.max(self.end), ..self },
            false => self,
        }
    }

    /// Bytes of the file, for reports.
    pub fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Text of a file, with its lines.
#[derive(Debug)]
pub struct SourceFile {
    /// Path as it was found.
    pub path: String,
    /// Text.
    pub text: String,
    /// Offset of each line.
    lines: Vec<u32>,
    /// Offsets from which `#line` numbers lines anew: the number of the next line, and the file's name.
    renumbered: Vec<(u32, u32, Option<String>)>,
}

/// All files of a program.
#[derive(Debug, Default)]
pub struct SourceMap {
    files: Vec<SourceFile>,
}

/// A place for people: file, line and column, from 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinePlace {
    /// Path, or the name that `#line` gave.
    pub path: String,
    /// Line.
    pub line: u32,
    /// Column, in bytes.
    pub column: u32,
}

impl Display for LinePlace {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.path, self.line, self.column)
    }
}

impl SourceMap {
    /// Adds a file.
    pub fn add(&mut self, path: String, text: String) -> FileId {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let lines = std::iter::once(0).chain(breaks.map(|(at, _)| at as u32 + 1)).collect();
        self.files.push(SourceFile { path, text, lines, renumbered: Vec::new() });
        FileId(self.files.len() as u32 - 1)
    }

    /// Counts the files.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns a file.
    pub fn file(&self, id: FileId) -> &SourceFile {
        &self.files[id.0 as usize]
    }

    /// Returns all files in the order in which they were read.
    pub fn files(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter()
    }

    /// Renumbers the lines behind an offset, as `#line` does.
    pub(crate) fn renumber(&mut self, file: FileId, offset: u32, line: u32, name: Option<String>) {
        self.files[file.0 as usize].renumbered.push((offset, line, name));
    }

    /// Finds line and column.
    pub fn place(&self, span: SourceSpan) -> LinePlace {
        let file = self.file(span.file);
        let line = file.line(span.start);
        let column = span.start - file.lines[line as usize] + 1;
        let mark = file.renumbered.iter().rev().find(|(offset, ..)| *offset <= span.start);
        match mark {
            Some((offset, number, name)) => LinePlace {
                path: name.clone().unwrap_or_else(|| file.path.clone()),
                line: (line - file.line(*offset)).saturating_sub(1).saturating_add(*number),
                column,
            },
            None => LinePlace { path: file.path.clone(), line: line + 1, column },
        }
    }
}

impl SourceFile {
    /// Index of the line that an offset is in.
    fn line(&self, offset: u32) -> u32 {
        self.lines.partition_point(|start| *start <= offset) as u32 - 1
    }
}
