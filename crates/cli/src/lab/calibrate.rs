//! `millstream lab calibrate`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use miette::{IntoDiagnostic, WrapErr, miette};
use millstream_lab::calibrate::calibrate;
use millstream_lab::os;

use super::{CurveRequest, interrupted, is_length, refused};
use crate::exit::Exit;
use crate::privileges::RequiredPrivileges;
use crate::progress::Progress;

/// Flags of `millstream lab calibrate`.
#[derive(Debug, clap::Args)]
pub(super) struct CalibrateArgs {
    /// Write the table to this file; default: standard output, with --curves the user's cache
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Duration of the measurement, in seconds; it does not depend on the result
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    seconds: f64,
    /// CPU to measure on; default: the last one
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
    /// Measure the curves of memory and I/O in place of instructions, for `millstream model` and
    /// `millstream tune`: needs LLVM, no root and no kernel
    #[arg(long)]
    curves: bool,
}

impl CalibrateArgs {
    /// The measurement of curves, if that is asked for.
    pub(super) fn curves(&self) -> Option<CurveRequest<'_>> {
        let CalibrateArgs { seconds, cpu, ref output, .. } = *self;
        self.curves.then_some(CurveRequest { seconds, cpu, output: output.as_deref() })
    }

    /// Privileges that the measurement needs.
    pub(super) fn needs(&self) -> RequiredPrivileges {
        if self.curves { RequiredPrivileges::Files } else { RequiredPrivileges::Measure }
    }
}

/// Runs the command.
pub(super) fn run(args: &CalibrateArgs) -> Result<ExitCode, miette::Report> {
    if !is_length(args.seconds) {
        return Err(miette!("seconds must be more than zero, and no more than a day"));
    }
    let cpu = args.cpu.or_else(|| os::allowed_cpus().last().copied()).unwrap_or(0);
    let calibration = {
        let _bar = Progress::timed("measuring", Duration::from_secs_f64(args.seconds));
        calibrate(args.seconds, cpu)
    };
    let calibration = match calibration {
        Ok(calibration) => calibration,
        Err(e) => return refused(e),
    };
    if os::interrupted() {
        return Ok(interrupted().into());
    }
    match &args.output {
        Some(path) => std::fs::write(path, calibration.text())
            .into_diagnostic()
            .wrap_err_with(|| path.display().to_string())?,
        None => out!("{}", calibration.text()),
    }
    Ok(Exit::Done.into())
}
