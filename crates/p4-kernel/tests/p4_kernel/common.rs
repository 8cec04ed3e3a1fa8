//! Programs of the tests: those of the switch's tests, and from text.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_p4::{CompileOptions, SourceLoader, compile};
use millstream_p4_kernel::{KernelExecutor, KernelHook, build_program, lower_options};
use millstream_p4_lower::{LowerOptions, LoweredProgram, lower_with};
use millstream_p4_switch::stf::{StfLine, parse_stf};
use millstream_p4_switch::{InterpreterExecutor, Switch};

/// Files of a folder, and one program that is text.
struct TestLoader<'t>(&'t str);

impl SourceLoader for TestLoader<'_> {
    fn load(&mut self, path: &str) -> Option<String> {
        match path {
            "test.p4" => Some(self.0.to_owned()),
            _ => std::fs::read_to_string(path).ok(),
        }
    }
}

pub(crate) fn lowered(path: &str, text: &str, options: LowerOptions) -> Arc<LoweredProgram> {
    let program = compile(path, &mut TestLoader(text), &CompileOptions::default());
    let error = program.diagnostics.iter().find(|diagnostic| diagnostic.is_error());
    assert!(error.is_none(), "{path}: {:?}", error.map(|e| e.render(&program.sources).to_string()));
    match lower_with(&program, options) {
        Ok(lowered) => Arc::new(lowered),
        Err(error) => panic!("{}", error.render(&program.sources)),
    }
}

/// A program of the switch's tests, and its commands.
pub(crate) fn test_files(name: &str) -> (PathBuf, Vec<StfLine>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../p4-switch/tests/programs");
    let text = std::fs::read_to_string(folder.join(format!("{name}.stf"))).unwrap();
    (folder.join(format!("{name}.p4")), parse_stf(&text).unwrap())
}

/// A switch whose packets go through the kernel, or the reason of a refusal.
pub(crate) fn kernel_switch(path: &Path, hook: KernelHook) -> Result<Switch<KernelExecutor>, String> {
    let program = lowered(&path.to_string_lossy(), "", lower_options());
    let object = build_program(&program, "test", hook).map_err(|error| error.to_string())?;
    let executor = KernelExecutor::load(object, &program.pipeline).map_err(|error| error.to_string())?;
    Switch::new(program, executor).map_err(|error| error.to_string())
}

/// A switch that runs the same program in the interpreter, with the same limit on states of parsers.
pub(crate) fn interpreter_switch(path: &Path) -> Switch<InterpreterExecutor> {
    let options = LowerOptions { most_steps: lower_options().most_steps, ..LowerOptions::default() };
    let program = lowered(&path.to_string_lossy(), "", options);
    Switch::new(program.clone(), InterpreterExecutor::new(program)).unwrap()
}
