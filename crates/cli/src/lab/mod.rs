//! `millstream lab`: runs and compares XDP programs without a NIC.
//!
//! Objects are files (`FILE.o` or `FILE.o:PROGRAM`, `FILE.insns`) or our own data planes (`builtin:NAME`).
//! `millstream_lab` takes all figures; this module chooses the workload and prints.

mod calibrate;
mod compare;
mod equal;
mod run;
mod run_report;
mod text;

use std::process::ExitCode;

use clap::Subcommand;
use millstream_kernel::Namespace;
use millstream_lab::subject::ProgramUnderTest;
use millstream_lab::workload::Workload;
use millstream_lab::{Error, os, stale_resources};
use millstream_userspace::native::tables::MapDumpFile;
use millstream_userspace::workload_args::{MOST_FRAMES, TrafficArgs, interrupted, is_length, open};
use millstream_userspace_bench::model::calibrate::CurveRequest;

use crate::exit::{Exit, ended};
use crate::privileges::RequiredPrivileges;

/// Flags of `millstream lab`.
#[derive(Debug, clap::Args)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Run a program on live frames: speed, loss, latency, behaviour under load, correctness of the output
    Run(run::LabRunArgs),
    /// Compare the speed of programs, with confidence intervals
    Compare(compare::CompareArgs),
    /// Compare two objects on random packets and tables, run in the kernel
    Equal(equal::EqualArgs),
    /// Measure the time of each kind of instruction and call on this machine, or the curves of memory and I/O:
    /// the tables that predictions rest on
    Calibrate(calibrate::CalibrateArgs),
    /// Remove what killed laboratories left behind
    Clean,
}

impl LabArgs {
    /// The measurement of curves, if that is asked for.
    pub(crate) fn curves(&self) -> Option<CurveRequest<'_>> {
        match &self.command {
            LabCommand::Calibrate(args) => args.curves(),
            _ => None,
        }
    }

    /// Privileges that the command needs.
    pub(crate) fn needs(&self) -> RequiredPrivileges {
        match &self.command {
            LabCommand::Equal(_) => RequiredPrivileges::Kernel,
            LabCommand::Calibrate(args) => args.needs(),
            _ => RequiredPrivileges::Measure,
        }
    }
}

/// Initial contents of maps, beside generated tables.
#[derive(Debug, clap::Args)]
pub(crate) struct MapFileArgs {
    /// Fill map NAME from FILE, as `bpftool -j map dump` writes it; may be given several times
    #[arg(long = "map", value_name = "NAME=FILE")]
    maps: Vec<String>,
}

impl MapFileArgs {
    /// Reads the files.
    fn read(&self) -> Result<Vec<MapDumpFile>, miette::Report> {
        self.maps.iter().map(|spec| MapDumpFile::read(spec)).collect()
    }
}

/// Fills the maps of a program that is to be run: generated tables first, then those of files.
fn fill(
    subject: &ProgramUnderTest<'_>,
    load: &Workload,
    fillings: &[MapDumpFile],
    at: &Namespace,
) -> Result<(), Error> {
    subject.apply(&load.entries, at)?;
    fillings.iter().try_for_each(|filling| subject.fill(&filling.name, &filling.entries, at))
}

/// Advice about a program that sends no frame: the names of its empty tables.
fn emptiness(subject: &ProgramUnderTest<'_>) -> Result<Option<String>, Error> {
    let empty = subject.empty_tables()?;
    Ok((!empty.is_empty()).then(|| {
        format!(
            "no frame comes back from {}, and these maps are empty: {}; fill them by --map NAME=FILE or --tables",
            subject.name,
            empty.join(", ")
        )
    }))
}

/// Runs the command.
pub(crate) fn run(args: &LabArgs) -> Result<ExitCode, miette::Report> {
    os::catch_interrupts();
    match &args.command {
        LabCommand::Run(args) => run::run(args),
        LabCommand::Compare(args) => compare::run(args),
        LabCommand::Equal(args) => equal::run(args),
        LabCommand::Calibrate(args) => calibrate::run(args),
        LabCommand::Clean => clean(),
    }
}

fn clean() -> Result<ExitCode, miette::Report> {
    let removed = match stale_resources::clean() {
        Ok(removed) => removed,
        Err(e) => return refused(e),
    };
    for path in &removed {
        outln!("removed {}", path.display());
    }
    outln!("{} left behind and removed", removed.len());
    Ok(Exit::Done.into())
}

/// Name of an object in a table: its file's name.
fn short(spec: &str) -> &str {
    let name = spec.rsplit('/').next().unwrap_or(spec);
    name.trim_end_matches(".o").trim_end_matches(".bpf")
}

/// Exit code for an error of the laboratory.
fn refused(e: Error) -> Result<ExitCode, miette::Report> {
    if os::interrupted() {
        return Ok(interrupted().into());
    }
    if e.is_environment_error() {
        errln!(
            "{}\n  `millstream doctor` says what this machine permits and what to do about the rest",
            e.error_chain()
        );
        return Ok(Exit::NotPermitted.into());
    }
    Err(ended(e))
}

/// An XDP verdict by its name.
fn verdict_name(verdict: u32) -> &'static str {
    ["XDP_ABORTED", "XDP_DROP", "XDP_PASS", "XDP_TX", "XDP_REDIRECT"]
        .get(verdict as usize)
        .copied()
        .unwrap_or("no XDP verdict")
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn objects_are_named_by_file() {
        assert_eq!(short("/a/b/router.bpf.o"), "router");
        assert_eq!(short("x.o:main"), "x.o:main");
    }
}
