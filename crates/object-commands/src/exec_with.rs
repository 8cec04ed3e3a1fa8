//! `millstream exec-with`: runs a loader, and optimizes the programs that it loads.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use miette::{IntoDiagnostic as _, WrapErr as _, miette};
use millstream_bpf::cost::CostModel as CycleTable;
use millstream_intercept::{InterceptError, InterceptOptions, LoadOutcome, LoadReport, run_loader};
use millstream_lab::environment::mitigations;
use serde::Serialize;

use crate::exit::Exit;

/// The version of the report's JSON lines.
const SCHEMA: u32 = 1;

/// Flags of `millstream exec-with`.
#[derive(Debug, clap::Args)]
pub struct ExecWithArgs {
    /// The loader and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "LOADER")]
    command: Vec<OsString>,
    /// Print a line for each program that is loaded: to standard error, or into this file
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    report: Option<PathBuf>,
    /// Print the report as JSON lines
    #[arg(long, requires = "report")]
    json: bool,
    /// Longest time for the optimization of one program; after it, the program is loaded as it is
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = crate::duration_args::milliseconds())]
    time_limit: u64,
    /// Use a result only if it is proven, within the time limit, that it behaves as before
    #[arg(long)]
    prove: bool,
}

/// Runs the command; the exit code is the loader's.
pub fn run(args: &ExecWithArgs) -> Result<ExitCode, miette::Report> {
    let [program, arguments @ ..] = args.command.as_slice() else {
        return Err(miette!("there is no loader to run"));
    };
    let mut output = args.report.as_deref().map(ReportOutput::open).transpose()?;
    CycleTable::install(CycleTable::of_mitigations(&mitigations()).clone());
    let options = InterceptOptions { time_limit: Duration::from_millis(args.time_limit), prove: args.prove };
    let ended = run_loader(program, arguments, options, &mut |report| {
        if let Some(output) = &mut output {
            output.print(&if args.json { json(report) } else { text(report) });
        }
    });
    match ended {
        Ok(status) => Ok(code(status)),
        Err(error) => Ok(failed(&error).into()),
    }
}

/// The loader's exit code; of one that a signal has killed, as shells give it.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn failed(error: &InterceptError) -> Exit {
    errln!("{error}");
    let InterceptError::Launch { source, .. } = error else { return Exit::NotPermitted };
    match source.kind() {
        std::io::ErrorKind::NotFound => Exit::Input,
        std::io::ErrorKind::PermissionDenied => {
            errln!("  it takes root (CAP_SYS_ADMIN), and a file that may be executed");
            Exit::NotPermitted
        }
        std::io::ErrorKind::ResourceBusy => {
            errln!("  another program watches the system calls of this one already: run it outside of that");
            Exit::NotPermitted
        }
        _ => Exit::NotPermitted,
    }
}

/// Place of the report.
enum ReportOutput {
    Terminal,
    File { path: PathBuf, file: File },
}

impl ReportOutput {
    fn open(path: &Path) -> Result<ReportOutput, miette::Report> {
        if path == Path::new("-") {
            return Ok(ReportOutput::Terminal);
        }
        let file = File::create(path).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
        Ok(ReportOutput::File { path: path.to_owned(), file })
    }

    fn print(&mut self, line: &str) {
        match self {
            ReportOutput::Terminal => errln!("millstream: {line}"),
            ReportOutput::File { path, file } => {
                // The loader goes on.
                if let Err(error) = writeln!(file, "{line}") {
                    errln!("{}: {error}", path.display());
                }
            }
        }
    }
}

fn json(report: &LoadReport) -> String {
    #[derive(Serialize)]
    struct ReportLine<'r> {
        schema: u32,
        #[serde(flatten)]
        report: &'r LoadReport,
    }
    serde_json::to_string(&ReportLine { schema: SCHEMA, report }).unwrap_or_default()
}

fn text(report: &LoadReport) -> String {
    let LoadReport { program, program_type, outcome, micros, .. } = report;
    let name = match (program.as_str(), program_type.as_str()) {
        ("", "") => "a program".to_owned(),
        ("", kind) => format!("a program of type {kind}"),
        (name, kind) => format!("{name} ({kind})"),
    };
    let milliseconds = *micros as f64 / 1000.0;
    match outcome {
        LoadOutcome::Kept { reason } => format!("{name}: as it is: {reason}; {milliseconds:.1} ms"),
        LoadOutcome::Optimized {
            slots_before,
            slots_after,
            millicycles_before,
            millicycles_after,
            proven,
        } => format!(
            "{name}: optimized{}: {slots_before} -> {slots_after} slots, {:.1} -> {:.1} cycles; {milliseconds:.1} ms",
            if *proven { " and proven" } else { "" },
            *millicycles_before as f64 / 1000.0,
            *millicycles_after as f64 / 1000.0
        ),
    }
}
