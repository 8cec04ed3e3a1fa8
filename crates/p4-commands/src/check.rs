//! `millstream p4 check`.

use std::path::PathBuf;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result};
use millstream_p4::CompiledProgram;
use serde::Serialize;

use super::PreprocessorArgs;
use crate::exit::Exit;

/// Flags of `millstream p4 check`.
#[derive(Debug, clap::Args)]
pub(crate) struct P4CheckArgs {
    /// Programs, or folders of which every `.p4` file is checked
    #[arg(required = true, value_name = "FILE")]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    preprocessor: PreprocessorArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct P4CheckReport {
    schema: u32,
    accepted: usize,
    rejected: usize,
    programs: Vec<CheckedProgram>,
}

#[derive(Debug, Serialize)]
struct CheckedProgram {
    file: String,
    accepted: bool,
    diagnostics: Vec<PlacedDiagnostic>,
}

#[derive(Debug, Serialize)]
struct PlacedDiagnostic {
    severity: &'static str,
    file: String,
    line: u32,
    column: u32,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<String>,
}

impl CheckedProgram {
    fn new(file: String, program: &CompiledProgram) -> CheckedProgram {
        let placed = program.diagnostics.iter().map(|diagnostic| {
            let place = program.sources.place(diagnostic.span);
            PlacedDiagnostic {
                severity: if diagnostic.is_error() { "error" } else { "warning" },
                file: place.path,
                line: place.line,
                column: place.column,
                message: diagnostic.message.clone(),
                help: diagnostic.help.clone(),
            }
        });
        CheckedProgram { file, accepted: program.is_accepted(), diagnostics: placed.collect() }
    }
}

pub(super) fn run(args: &P4CheckArgs) -> Result<ExitCode> {
    let files = super::files(&args.paths, "p4")?;
    let options = args.preprocessor.options();
    let mut report = P4CheckReport { schema: 1, accepted: 0, rejected: 0, programs: Vec::new() };
    for path in &files {
        let program = super::read(path, &options)?;
        match program.is_accepted() {
            true => report.accepted += 1,
            false => report.rejected += 1,
        }
        let name = path.display().to_string();
        if args.json {
            report.programs.push(CheckedProgram::new(name, &program));
            continue;
        }
        super::emit_all(&program);
        outln!("{name}: {}", if program.is_accepted() { "accepted" } else { "rejected" });
    }
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&report).into_diagnostic()?),
        false if files.len() > 1 => outln!("accepted: {}, rejected: {}", report.accepted, report.rejected),
        false => {}
    }
    Ok(if report.rejected == 0 { Exit::Done } else { Exit::Negative }.into())
}
