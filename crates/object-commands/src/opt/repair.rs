//! `millstream opt --repair`: programs that this kernel rejects although they are safe.

use std::path::Path;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result};
use millstream_object::Object;
use millstream_opt::{RepairOutcome, RepairReport};

use crate::exit::{self, Exit};
use crate::input;
use crate::superopt::CommonOptArgs;

/// Repairs an object, writes it, and reports the checks that were inserted.
pub(super) fn run(common: &CommonOptArgs, object: &Object, output: Option<&Path>) -> Result<ExitCode> {
    let (solver, limits) = (common.solving.solver()?, common.solving.limits());
    let repaired = millstream_opt::repair(object, solver.as_ref(), &limits).map_err(exit::ended)?;
    let (repaired, programs) = repaired;
    if let Some(output) = output {
        input::write(output, &repaired)?;
    }
    if common.json {
        let report = serde_json::json!({ "schema": 1, "object": object.name, "programs": programs });
        outln!("{}", serde_json::to_string(&report).into_diagnostic()?);
    } else {
        programs.iter().for_each(|program| out!("{program}"));
    }
    let done = |p: &&RepairReport| matches!(p.outcome, RepairOutcome::Accepted | RepairOutcome::Repaired);
    let mut failed = programs.iter().filter(|p| !done(p)).peekable();
    Ok(match failed.peek() {
        None => Exit::Done,
        Some(_) if failed.all(|p| matches!(p.outcome, RepairOutcome::NotSupported(_))) => Exit::NotPermitted,
        Some(_) => Exit::Negative,
    }
    .into())
}
