//! `millstream p4`: P4_16 programs: checking, P4Info, kernel objects, tests, and switches that run.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr, clippy::dbg_macro))]

#[macro_use]
extern crate millstream_console;

mod adaptation;
mod build;
mod check;
mod commands;
mod execution;
mod info;
mod run;
mod stf;
pub mod wrappers;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use miette::{IntoDiagnostic, LabeledSpan, MietteDiagnostic, Report, Result, Severity, WrapErr, miette};
use millstream_console::{bounded_read, diagnostics, exit, output, privileges};
use millstream_p4::{CompileOptions, CompiledProgram, SourceDiagnostic, SourceLoader, SourceMap, compile};
use millstream_service::metrics;

use crate::diagnostics::TextExcerpt;
use crate::privileges::RequiredPrivileges;

/// Flags of `millstream p4`.
#[derive(Debug, clap::Args)]
pub struct P4Args {
    #[command(subcommand)]
    command: P4Command,
}

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
enum P4Command {
    /// Check programs: syntax, types and the rules of their architecture
    Check(check::P4CheckArgs),
    /// Print the P4Info of a program, which controllers need
    Info(info::P4InfoArgs),
    /// Make a kernel object: an XDP or TC program with BTF-defined maps, for libbpf, bpftool and `run`
    Build(build::P4BuildArgs),
    /// Run tests in the language of the simple test framework (STF): packets in, packets out
    Test(stf::P4TestArgs),
    /// Run a program as a switch on interfaces or capture files, controlled by P4Runtime
    Run(Box<run::P4RunArgs>),
    /// Send commands to a running switch: table_add, register_read and the other words of the reference
    /// switch's command line
    Cli(commands::P4CliArgs),
}

/// Flags of all commands that read programs.
#[derive(Debug, clap::Args)]
struct PreprocessorArgs {
    /// Folder in which included files are searched; may be repeated. Architecture files are built in
    #[arg(short = 'I', long = "include", value_name = "DIR")]
    include: Vec<PathBuf>,
    /// Define a macro; may be repeated
    #[arg(short = 'D', long = "define", value_name = "NAME[=VALUE]", value_parser = definition)]
    define: Vec<(String, String)>,
}

impl PreprocessorArgs {
    fn options(&self) -> CompileOptions {
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        CompileOptions {
            search_paths: self.include.iter().map(text).collect(),
            definitions: self.define.clone(),
        }
    }
}

/// Reads a macro; one without a value is 1.
fn definition(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').unwrap_or((text, "1"));
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then(|| (name.to_owned(), value.to_owned())).ok_or(format!("`{name}` is no name of a macro"))
}

/// Runs the command.
pub fn run(args: &P4Args) -> Result<ExitCode> {
    match &args.command {
        P4Command::Check(args) => check::run(args),
        P4Command::Info(args) => info::run(args),
        P4Command::Build(args) => build::run(args),
        P4Command::Test(args) => stf::run(args),
        P4Command::Run(args) => run::run(args),
        P4Command::Cli(args) => commands::run(args),
    }
}

impl P4Args {
    /// Returns true if the command can be ended at any moment and leaves nothing behind.
    pub fn only_prints(&self) -> bool {
        match &self.command {
            P4Command::Check(_) | P4Command::Test(_) => true,
            P4Command::Info(args) => args.only_prints(),
            P4Command::Build(_) | P4Command::Run(_) | P4Command::Cli(_) => false,
        }
    }

    /// Privileges that the command needs.
    pub fn needs(&self) -> RequiredPrivileges {
        match &self.command {
            P4Command::Test(args) => args.needs(),
            P4Command::Run(args) if args.needs_interfaces() => RequiredPrivileges::Interfaces,
            _ => RequiredPrivileges::Files,
        }
    }
}

/// Files of the machine. The first error other than "not found" is kept.
#[derive(Default)]
struct FileLoader {
    failed: Option<(String, std::io::Error)>,
}

impl SourceLoader for FileLoader {
    fn load(&mut self, path: &str) -> Option<String> {
        match crate::bounded_read::bytes(Path::new(path)) {
            Ok(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => {
                let absent = [std::io::ErrorKind::NotFound, std::io::ErrorKind::NotADirectory];
                if !absent.contains(&error.kind()) && self.failed.is_none() {
                    self.failed = Some((path.to_owned(), error));
                }
                None
            }
        }
    }
}

/// Reads and checks a program.
///
/// # Errors
/// If the file, or one that it includes, cannot be read. A wrong program is no error here.
fn read(path: &Path, options: &CompileOptions) -> Result<CompiledProgram> {
    let name = path.to_string_lossy();
    let mut loader = FileLoader::default();
    if let Err(error) = std::fs::metadata(path) {
        return Err(error).into_diagnostic().wrap_err_with(|| format!("cannot read {name}"));
    }
    let program = compile(&name, &mut loader, options);
    match loader.failed {
        Some((path, error)) => Err(error).into_diagnostic().wrap_err_with(|| format!("cannot read {path}")),
        None => Ok(program),
    }
}

/// Reads a program that must be right. Its diagnostics are shown.
///
/// # Errors
/// As for [`read`], and if the program has errors.
fn read_accepted(path: &Path, options: &CompileOptions) -> Result<CompiledProgram> {
    let program = read(path, options)?;
    emit_all(&program);
    if program.is_accepted() {
        return Ok(program);
    }
    let errors = program.diagnostics.iter().filter(|d| d.is_error()).count();
    Err(miette!("{}: {errors} {}", path.display(), if errors == 1 { "error" } else { "errors" }))
}

/// Reads a program that must be right, with macros as `NAME=VALUE`.
///
/// # Errors
/// As for `read_accepted`, and if a macro has no name.
pub fn read_program(path: &Path, macros: &[String]) -> Result<CompiledProgram> {
    let define = macros.iter().map(|text| definition(text)).collect::<Result<_, _>>();
    let define = define.map_err(|error| miette!("{error}"))?;
    read_accepted(path, &PreprocessorArgs { include: Vec::new(), define }.options())
}

/// Writes all diagnostics of a program to standard error.
fn emit_all(program: &CompiledProgram) {
    for diagnostic in &program.diagnostics {
        diagnostics::emit(&report(&program.sources, diagnostic));
    }
}

/// A diagnostic with its place.
fn report(sources: &SourceMap, diagnostic: &SourceDiagnostic) -> Report {
    let severity = if diagnostic.is_error() { Severity::Error } else { Severity::Warning };
    let file = sources.file(diagnostic.span.file);
    let source = TextExcerpt::new(&file.path, &file.text);
    let range = diagnostic.span.range();
    let label = LabeledSpan::new_with_span(Some("here".to_owned()), source.place(range.start, range.end));
    let mut shown =
        MietteDiagnostic::new(diagnostic.message.clone()).with_label(label).with_severity(severity);
    if let Some(help) = &diagnostic.help {
        shown = shown.with_help(help.clone());
    }
    Report::new(shown).with_source_code(source)
}

/// The files of these paths: of a folder those below it with this ending, by name.
///
/// # Errors
/// If a path does not exist, a folder cannot be read, or holds no such file.
fn files(paths: &[PathBuf], ending: &str) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in paths {
        let meta = std::fs::metadata(path)
            .into_diagnostic()
            .wrap_err_with(|| format!("cannot read {}", path.display()))?;
        if !meta.is_dir() {
            all.push(path.clone());
            continue;
        }
        let before = all.len();
        for entry in walkdir::WalkDir::new(path).sort_by_file_name() {
            let entry = entry.into_diagnostic()?;
            if entry.file_type().is_file() && entry.path().extension().is_some_and(|e| e == ending) {
                all.push(entry.into_path());
            }
        }
        if all.len() == before {
            return Err(miette!("{}: no file that ends in .{ending}", path.display()));
        }
    }
    Ok(all)
}
