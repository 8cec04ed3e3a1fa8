//! Tests as text files: a module in the text form, with directives in comments that name the test and its
//! expected output.
//!
//! | directive | meaning |
//! |---|---|
//! | `; test parse` | read and print; the output is the module |
//! | `; test verify` | run the IR verifier; the output is its errors, one a line, and none is expected unless stated |
//! | `; test passes(a, b)` | verify, run these passes in order, verify; the output is the module |
//! | `; test run` | only the runs |
//! | `; run: fn0(1, mem="00ff") == 0x2a, mem="01ff"` | call a function and hold result and state against this |
//! | `; map: map0["01000000"]="2a"` | contents of a map before each run |
//! | `; target bpf(3)`, `; target native` | the target of the passes; `bpf(4)` unless stated |
//! | `; target here`, `; target short` | a kernel whose features were probed; one for which slots come first |
//! | `; fuel 2` | the passes may make this many rewrites |
//! | `; check: text` | a line of the output contains the text, after the line that the check before it found |
//! | `; not: text` | no line of the output contains the text |
//! | `; expect:` | the comment lines that follow are the whole output |
//!
//! Runs go with any test. They are done on the module as it stands and, where passes run, again after them;
//! each by the IR's interpreter and, if all operations have a form in BPF, by the bytecode's on the lowered
//! module. An argument is a number, `mem="HEX"` (the address of these bytes) or `packet="HEX"` (the address
//! of the context of this packet); the result is a number or `fault`. After it, separated by commas:
//! `mem="HEX"` for the memory arguments in order, `packet="HEX"`, `mapN["HEX"]="HEX"`, `mapN["HEX"]=none`.
//!
//! Directives are read from the whole file, in any order; `expect` is last. A `parse` or `passes` test needs
//! an expectation. [`FiletestOptions::bless`] writes it: it replaces the lines after `; expect:`, or adds
//! them to a file that has neither `expect` nor `check` nor `not`.

mod case;
mod compare;
mod differential;
mod engine;
mod execute;
mod runs;

use std::path::{Path, PathBuf};

pub use case::{CaseError, TestCase, TestCommand};
pub use differential::{check_passes, check_random};
pub use runs::{CallArg, MapEntrySpec, RunDirective, RunPostcondition};

/// Options of a test run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FiletestOptions {
    /// Write expectations instead of comparing with them.
    pub bless: bool,
}

/// Why a test failed.
#[derive(Debug, thiserror::Error)]
pub enum FiletestError {
    /// The file cannot be read or written.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The directives are not as they should be.
    #[error(transparent)]
    Case(#[from] CaseError),
    /// The module is not in the text form.
    #[error("{0}")]
    Parse(#[from] millstream_ir::text::ParseError),
    /// The module is invalid, `when` says at which moment.
    #[error("the IR verifier rejects the module {when}:\n{errors}")]
    Verify {
        /// Before or after the passes.
        when: &'static str,
        /// Its errors, one a line.
        errors: String,
    },
    /// A pass does not exist.
    #[error("{0}")]
    Pass(#[from] millstream_passes::PassError),
    /// The text does not read back to the module that it was printed from.
    #[error("printing what was printed and read gives another text")]
    RoundTrip,
    /// A run gave something else than it should.
    #[error("run of line {line}, {message}")]
    Run {
        /// Line of the directive.
        line: usize,
        /// At which moment, on which engine, what happened.
        message: String,
    },
    /// The output differs from the expectation.
    #[error("{0}")]
    Mismatch(String),
}

/// Runs one test file.
///
/// # Errors
/// Why it failed.
pub fn run_file(path: &Path, options: FiletestOptions) -> Result<(), FiletestError> {
    let text = std::fs::read_to_string(path)?;
    let case = TestCase::parse(&text)?;
    let output = execute::run(&case, &text)?;
    match compare::compare(&case, &output) {
        Err(_) if options.bless && case.can_bless() => {
            Ok(std::fs::write(path, case.with_expectation(&text, &output))?)
        }
        Err(message) => Err(FiletestError::Mismatch(message)),
        Ok(()) => Ok(()),
    }
}

/// All test files under a directory, in order of their names.
///
/// # Errors
/// If a directory cannot be read.
pub fn find_files(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| e == "ir") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}
