//! Tests as text files: a module in the text form, directives in comments that say what to do with it, and what to
//! expect.
//!
//! | directive | meaning |
//! |---|---|
//! | `; test parse` | read and print; the output is the module |
//! | `; test verify` | run the IR verifier; the output is its errors, one a line, and none is expected unless stated |
//! | `; test passes(a, b)` | verify, run these passes in order, verify; the output is the module |
//! | `; target bpf(3)`, `; target native` | the target of the passes; `bpf(4)` unless stated |
//! | `; fuel 2` | the passes may make this many rewrites |
//! | `; check: text` | a line of the output contains the text, after the line that the check before it found |
//! | `; not: text` | no line of the output contains the text |
//! | `; expect:` | the comment lines that follow are the whole output |
//!
//! Directives are read from the whole file, in any order; `expect` is last. A `parse` or `passes` test needs an
//! expectation. [`Options::bless`] writes it: it replaces what follows `; expect:`, or adds it to a file that has
//! neither `expect` nor `check` nor `not`.

mod case;
mod compare;
mod execute;

use std::path::{Path, PathBuf};

pub use case::{Case, CaseError, Test};

/// How tests are run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Write expectations instead of comparing with them.
    pub bless: bool,
}

/// Why a test failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
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
    /// The text does not read back to what it was printed from.
    #[error("printing what was printed and read gives another text")]
    RoundTrip,
    /// The output is not what was expected.
    #[error("{0}")]
    Mismatch(String),
}

/// Runs one test file.
///
/// # Errors
/// Why it failed.
pub fn run_file(path: &Path, options: Options) -> Result<(), Failure> {
    let text = std::fs::read_to_string(path)?;
    let case = Case::parse(&text)?;
    let output = execute::run(&case, &text)?;
    match compare::compare(&case, &output) {
        Err(_) if options.bless && case.can_bless() => {
            Ok(std::fs::write(path, case.blessed(&text, &output))?)
        }
        Err(message) => Err(Failure::Mismatch(message)),
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
