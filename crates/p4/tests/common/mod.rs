//! Any text at all through the front end. The fuzz target `p4` is this, too.

use millstream_p4::{CompileOptions, CompiledProgram, SourceLoader, compile};

/// One file, and what is included beside it.
pub(crate) struct TextLoader<'t> {
    /// Text of `program.p4`.
    pub(crate) text: &'t str,
    /// Folder for other files, if any.
    pub(crate) folder: Option<&'t std::path::Path>,
}

impl SourceLoader for TextLoader<'_> {
    fn load(&mut self, path: &str) -> Option<String> {
        match (path, self.folder) {
            ("program.p4", _) => Some(self.text.to_owned()),
            (_, Some(folder)) => std::fs::read_to_string(folder.join(path)).ok(),
            _ => None,
        }
    }
}

/// Compiles a text, and checks that diagnostics have places.
///
/// # Panics
/// If not.
pub(crate) fn through(text: &str, folder: Option<&std::path::Path>) -> CompiledProgram {
    let program = compile("program.p4", &mut TextLoader { text, folder }, &CompileOptions::default());
    for diagnostic in &program.diagnostics {
        let file = program.sources.file(diagnostic.span.file);
        let range = diagnostic.span.range();
        assert!(range.start <= range.end && range.end <= file.text.len(), "no place: {diagnostic:?}");
        assert!(!diagnostic.render(&program.sources).to_string().is_empty());
    }
    program
}
