//! Programs of the tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_p4::{CompileOptions, SourceLoader, compile};
use millstream_p4_lower::{LoweredProgram, lower};
use millstream_p4_native::NativeExecutor;

use crate::comparison::{Comparison, EngineLimits};

/// Files of the machine, and one program that is text.
struct TestLoader(Option<String>);

impl SourceLoader for TestLoader {
    fn load(&mut self, path: &str) -> Option<String> {
        match (&self.0, path) {
            (Some(text), "test.p4") => Some(text.clone()),
            _ => std::fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        }
    }
}

/// Compares native code with the interpreter; `samples` are packets to begin with.
pub(crate) fn native_comparison(
    program: &Arc<LoweredProgram>,
    samples: Vec<Vec<u8>>,
) -> Result<Comparison<NativeExecutor>, String> {
    let native = NativeExecutor::new(program).map_err(|error| error.to_string())?;
    Comparison::new(program, (program, native), samples, EngineLimits::default())
}

/// Compiles and lowers a file, or the text of `test.p4`.
pub(crate) fn lowered(path: &Path, text: Option<String>) -> Result<Arc<LoweredProgram>, String> {
    let program = compile(&path.to_string_lossy(), &mut TestLoader(text), &CompileOptions::default());
    match program.diagnostics.iter().find(|diagnostic| diagnostic.is_error()) {
        Some(error) => Err(error.render(&program.sources).to_string()),
        None => lower(&program).map(Arc::new).map_err(|error| error.render(&program.sources)),
    }
}

/// Programs of the switch's own tests.
pub(crate) fn own_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../p4-switch/tests/programs")
}

/// Folders of programs of others, as the environment names them.
pub(crate) fn extra_folders() -> Vec<PathBuf> {
    let folders = std::env::var("MILLSTREAM_P4_PROGRAMS").unwrap_or_default();
    folders.split(':').filter(|folder| !folder.is_empty()).map(PathBuf::from).collect()
}

/// Files of a folder and those below it with an extension, sorted.
pub(crate) fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let found = walkdir::WalkDir::new(folder).sort_by_file_name().into_iter().filter_map(Result::ok);
    let paths = found.map(|entry| entry.into_path());
    paths.filter(|path| path.extension().is_some_and(|e| e == extension)).collect()
}
