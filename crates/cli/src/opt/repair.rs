//! `millstream opt --repair`: programs that this kernel rejects although they are safe.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use miette::IntoDiagnostic;
use millstream_object::Object;
use millstream_opt::{RepairOutcome, RepairReport};
use serde::Serialize;

use super::{OptArgs, Result};
use crate::exit::{self, Exit};
use crate::input;

#[derive(Serialize)]
struct RepairSummary<'a> {
    schema: u32,
    object: &'a str,
    programs: &'a [RepairReport],
}

/// Repairs an object, writes it, and reports the checks that were inserted.
pub(super) fn run(args: &OptArgs, object: &Object, path: &Path) -> Result<ExitCode> {
    let solver = args.common.solving.solver()?;
    let (repaired, programs) = millstream_opt::repair(object, solver.as_ref(), &args.common.solving.limits())
        .map_err(exit::ended)?;
    if let Some(output) = &args.output {
        input::write(output, &repaired)?;
    }
    if args.common.json {
        let summary = RepairSummary { schema: 1, object: &path.display().to_string(), programs: &programs };
        outln!("{}", serde_json::to_string(&summary).into_diagnostic()?);
    } else {
        programs.iter().for_each(|program| out!("{}", text(program)));
    }
    let done = |p: &RepairReport| matches!(p.outcome, RepairOutcome::Accepted | RepairOutcome::Repaired);
    let supported = |p: &RepairReport| !matches!(p.outcome, RepairOutcome::NotSupported(_));
    Ok(match programs.iter().all(done) {
        true => Exit::Done,
        false if programs.iter().any(|p| supported(p) && !done(p)) => Exit::Negative,
        false => Exit::NotPermitted,
    }
    .into())
}

fn text(program: &RepairReport) -> String {
    let (verdict, why) = match &program.outcome {
        RepairOutcome::Accepted => ("accepted as it is", None),
        RepairOutcome::Repaired => ("repaired and proven equivalent", None),
        RepairOutcome::NotProven(why) => {
            ("not repaired: with these checks the kernel accepts it, but they may fail", Some(why))
        }
        RepairOutcome::Rejected(why) => ("not repaired: no check helps", Some(why)),
        RepairOutcome::NotSupported(why) => ("cannot be loaded here", Some(why)),
    };
    let mut text = format!("{}: {verdict}\n", program.name);
    if let Some(reason) = &program.reason {
        let _ = writeln!(text, "  rejected: {reason}");
    }
    for check in &program.checks {
        let place = match (&check.file, check.line) {
            (Some(file), Some(line)) => format!("{file}:{line}"),
            _ => format!("slot {} of {}", check.slot, check.function),
        };
        let _ = writeln!(text, "  check: {} <= {} before {place}", check.register, check.most);
    }
    if let Some(why) = why {
        let _ = writeln!(text, "  {}", why.lines().next().unwrap_or_default());
    }
    text
}
