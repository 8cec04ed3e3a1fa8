//! `millstream opt --repair`: programs that this kernel rejects although they are safe.

use std::path::Path;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result};
use millstream_object::Object;
use millstream_opt::{RepairOutcome, RepairReport};

use crate::exit::{self, Exit};
use crate::input;
use crate::superopt::CommonOptArgs;

/// Repairs an object, writes it, and reports the changes that were made.
pub(super) fn run(common: &CommonOptArgs, object: &Object, output: Option<&Path>) -> Result<ExitCode> {
    let (solver, limits) = (common.solving.solver()?, common.solving.limits());
    let repaired = millstream_opt::repair(object, solver.as_ref(), &limits).map_err(exit::ended)?;
    let (repaired, programs) = repaired;
    if let Some(output) = output {
        input::write(output, &repaired)?;
    }
    if common.json {
        let report = serde_json::json!({ "schema": 2, "object": object.name, "programs": programs });
        outln!("{}", serde_json::to_string(&report).into_diagnostic()?);
    } else {
        programs.iter().for_each(|program| out!("{program}"));
    }
    let done = |p: &&RepairReport| matches!(p.outcome, RepairOutcome::Accepted | RepairOutcome::Repaired);
    let failed: Vec<_> = programs.iter().filter(|p| !done(p)).collect();
    let is_not_supported = |p: &&RepairReport| matches!(p.outcome, RepairOutcome::NotSupported(_));
    Ok(match failed.is_empty() {
        true => Exit::Done,
        false if failed.iter().all(is_not_supported) => Exit::NotPermitted,
        false => Exit::Negative,
    }
    .into())
}
