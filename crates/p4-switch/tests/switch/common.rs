//! Programs of the tests: from files of `tests/programs`, and from text.

use std::path::Path;
use std::sync::Arc;

use millstream_p4::{CompileOptions, SourceLoader, compile};
use millstream_p4_lower::{LoweredProgram, lower};
use millstream_p4_switch::{InterpreterExecutor, Switch};
use millstream_rng::Rng;

/// Files of a folder, and one program that is text.
pub(crate) struct TestLoader(pub(crate) Option<String>);

impl SourceLoader for TestLoader {
    fn load(&mut self, path: &str) -> Option<String> {
        match (&self.0, path) {
            (Some(text), "test.p4") => Some(text.clone()),
            _ => std::fs::read_to_string(path).ok(),
        }
    }
}

/// Compiles and lowers a program, and verifies its code.
pub(crate) fn lowered(path: &str, text: Option<String>) -> Result<Arc<LoweredProgram>, String> {
    let program = compile(path, &mut TestLoader(text), &CompileOptions::default());
    if let Some(error) = program.diagnostics.iter().find(|diagnostic| diagnostic.is_error()) {
        return Err(error.render(&program.sources).to_string());
    }
    let lowered = lower(&program).map_err(|error| error.render(&program.sources))?;
    match millstream_ir::verify::verify_module(&lowered.module).first() {
        Some(error) => Err(error.to_string()),
        None => Ok(Arc::new(lowered)),
    }
}

/// A switch that runs a program in the interpreter.
pub(crate) fn switch(program: &Arc<LoweredProgram>) -> Switch<InterpreterExecutor> {
    Switch::new(program.clone(), InterpreterExecutor::new(program.clone())).unwrap()
}

/// Files of `tests/programs` with an extension, sorted.
pub(crate) fn program_files(extension: &str) -> Vec<std::path::PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    files.sort();
    files
}

/// Random bytes.
pub(crate) fn bytes(random: &mut Rng, count: usize) -> Vec<u8> {
    (0..count).map(|_| random.next_u64() as u8).collect()
}
