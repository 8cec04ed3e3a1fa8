//! `--plan`: settings that change speed and not behaviour, from a file that `millstream tune` wrote.

use std::path::{Path, PathBuf};

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_lab::environment;
use millstream_plan::{Plan, PlanMismatch, PlanSettings, fingerprint};

use crate::bounded_read;

/// Version that plans name.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The flag of commands that take a plan.
#[derive(Clone, Debug, clap::Args)]
pub struct PlanArgs {
    /// Take the schedule, the templates of tables, the optimizations to leave out and the number of workers
    /// from this plan, which `millstream tune` wrote
    #[arg(long, value_name = "FILE", conflicts_with_all = ["schedule", "templates", "without"])]
    plan: Option<PathBuf>,
}

/// A plan that was read, and its file.
pub struct PlanFile {
    /// File.
    pub path: PathBuf,
    /// Settings.
    pub settings: PlanSettings,
}

impl PlanArgs {
    /// The plan, if there is one; `hash` is that of the program. Warns if the plan was made for something
    /// else.
    ///
    /// # Errors
    /// If the plan cannot be read, or the program.
    pub fn read(&self, hash: impl FnOnce() -> Result<u64>) -> Result<Option<PlanFile>> {
        let Some(path) = &self.plan else { return Ok(None) };
        let plan = read(path)?;
        warn(path, &plan, hash()?);
        Ok(Some(PlanFile { path: path.clone(), settings: plan.settings }))
    }
}

/// Reads a plan.
///
/// # Errors
/// If there is no such file, or it is damaged: then the error names the line.
fn read(path: &Path) -> Result<Plan> {
    let at = || path.display().to_string();
    let bytes = bounded_read::bytes(path).into_diagnostic().wrap_err_with(at)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| miette!("{}: not a plan: it is not text", at()))?;
    text.parse::<Plan>().map_err(|error| miette!("{}, {error}", at()))
}

/// Warns of a plan that was made for another program, version or machine. Its settings are used all the same:
/// they cannot change what a program does.
fn warn(path: &Path, plan: &Plan, hash: u64) {
    for mismatch in plan.mismatches(hash, VERSION, &environment::machine_line()) {
        let advice = match mismatch {
            PlanMismatch::Program { .. } => "it may be slower than no plan",
            PlanMismatch::Version { .. } | PlanMismatch::Machine { .. } => "its gain may not hold",
        };
        errln!("warning: {}: {mismatch}: {advice}; `millstream tune` makes a new one", path.display());
    }
}

/// Hash of an object and the program of it that runs, for plans.
///
/// # Errors
/// If the file cannot be read.
pub fn object_hash(what: &str, program: Option<&str>) -> Result<u64> {
    let program = program.unwrap_or_default().as_bytes();
    if what.starts_with("builtin:") {
        return Ok(fingerprint([what.as_bytes(), program]));
    }
    let (path, named) = match what.rsplit_once(':') {
        Some((path, program)) if !program.contains('/') => (path, program.as_bytes()),
        _ => (what, program),
    };
    let bytes = bounded_read::bytes(Path::new(path)).into_diagnostic().wrap_err_with(|| path.to_owned())?;
    Ok(fingerprint([bytes.as_slice(), if program.is_empty() { named } else { program }]))
}
