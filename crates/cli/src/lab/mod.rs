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

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use miette::{IntoDiagnostic, WrapErr};
use millstream_kernel::Namespace;
use millstream_lab::subject::ProgramUnderTest;
use millstream_lab::workload::{BuiltinWorkload, Workload, locality, plain};
use millstream_lab::{Error, os, pcap, stale_resources};
use millstream_object::Object;

pub(crate) use self::calibrate::CurveRequest;
use crate::capture;
use crate::exit::{Exit, ended};
use crate::native::tables::MapDumpFile;
use crate::privileges::RequiredPrivileges;
use crate::{bounded_read, input};

/// Frames of a capture file that are replayed, at most.
const MOST_FRAMES: usize = 1 << 20;

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

/// Traffic and tables for programs.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TrafficArgs {
    /// Fill the maps with generated tables, and draw the packets from them: `builtin:NAME[:SIZE]` with a NAME
    /// of router, switch, firewall, nat, balancer. This is the default for built-in data planes
    #[arg(long, value_name = "TABLES")]
    tables: Option<String>,
    /// Flows to draw from the tables
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1..=MOST_FRAMES as i64)
    )]
    pub(crate) flows: u32,
    /// Distribution of packets over flows: `high`, `low`, `none` (ClassBench's Pareto rule) or
    /// `zipf:EXPONENT`
    #[arg(long, value_name = "RULE", default_value = "high")]
    locality: String,
    /// Replay this capture (pcap or pcapng, plain or gzip) in place of packets drawn from the tables
    #[arg(long, visible_alias = "traffic", value_name = "FILE", group = "recorded")]
    pcap: Option<PathBuf>,
    /// Send this frame, a file with its bytes, in place of packets drawn from the tables
    #[arg(long, value_name = "FILE", group = "recorded")]
    packet: Option<PathBuf>,
}

impl Default for TrafficArgs {
    fn default() -> TrafficArgs {
        TrafficArgs { tables: None, flows: 10_000, locality: "high".to_owned(), pcap: None, packet: None }
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

/// Recorded frames, and a description of their source.
pub(crate) type RecordedFrames = (Vec<Vec<u8>>, &'static str);

impl TrafficArgs {
    /// The workload for a program with these two ports, and the order of its frames.
    pub(crate) fn workload(
        &self,
        object: &str,
        ports: [u32; 2],
    ) -> Result<(Workload, Vec<u32>), miette::Report> {
        self.workload_at(object, ports, os::monotonic_ns())
    }

    /// The same, whose connections had their last packet at this time (`CLOCK_MONOTONIC`, nanoseconds).
    pub(crate) fn workload_at(
        &self,
        object: &str,
        ports: [u32; 2],
        now: u64,
    ) -> Result<(Workload, Vec<u32>), miette::Report> {
        const DRAWS: usize = 1 << 16;
        const SEED: u64 = 44;
        let own = object.starts_with("builtin:").then(|| object.to_owned());
        let tables: Option<BuiltinWorkload> =
            self.tables.clone().or(own).map(|t| t.parse()).transpose().into_diagnostic()?;
        let rule = locality(&self.locality).into_diagnostic()?;
        let mut load = match &tables {
            Some(tables) => tables.workload_at(ports, self.flows as usize, rule, now).into_diagnostic()?,
            None => plain(Vec::new(), ""),
        };
        if let Some((frames, from)) = self.recorded()? {
            let order = (0..frames.len() as u32).collect();
            let recorded = plain(frames, from);
            load.flows = recorded.flows;
            let tables =
                if tables.is_some() { format!("; tables of {}", load.description) } else { String::new() };
            load.description = recorded.description + &tables;
            return Ok((load, order));
        }
        if tables.is_none() {
            return Ok((load, vec![0]));
        }
        load.description += &format!(", locality {}, order seed {SEED}", self.locality);
        let order = load.flows.sequence(SEED, DRAWS);
        Ok((load, order))
    }

    /// Frames from a file, and a description of their source.
    pub(crate) fn recorded(&self) -> Result<Option<RecordedFrames>, miette::Report> {
        if let Some(path) = &self.packet {
            let frame =
                bounded_read::bytes(path).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
            return Ok(Some((vec![frame], "one frame from a file")));
        }
        let Some(path) = &self.pcap else { return Ok(None) };
        let capture = pcap::read(path, MOST_FRAMES).into_diagnostic()?;
        capture::warn(&capture);
        if capture.left_out > 0 {
            errln!("{}: frames that cannot be sent: {}", path.display(), capture.left_out);
        }
        Ok(Some((capture.frames, "a capture in its order")))
    }
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

/// An object file, or one of our own; and the program that is named behind the colon.
pub(crate) fn open(spec: &str) -> Result<(Object, Option<String>), miette::Report> {
    if spec.starts_with("builtin:") {
        let builtin: BuiltinWorkload = spec.parse().into_diagnostic()?;
        return Ok((input::read(Path::new(spec))?, Some(builtin.program.function.to_owned())));
    }
    let (path, program) = match spec.rsplit_once(':') {
        Some((path, program)) if !program.contains('/') => (path, Some(program.to_owned())),
        _ => (spec, None),
    };
    Ok((input::read(Path::new(path))?, program))
}

/// Returns true for an acceptable measurement time, in seconds.
pub(crate) fn is_length(seconds: f64) -> bool {
    seconds > 0.0 && seconds <= 86_400.0
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

/// Exit code after an interruption by the user, when everything was cleaned up.
pub(crate) fn interrupted() -> Exit {
    errln!("interrupted: no answer");
    Exit::Unknown
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
    use super::{open, short};

    #[test]
    fn objects_are_named_by_file_and_program() {
        assert_eq!(short("/a/b/router.bpf.o"), "router");
        assert_eq!(short("x.o:main"), "x.o:main");
        let (object, program) = open("builtin:router:10").unwrap();
        assert_eq!((object.programs.len(), program.as_deref()), (1, Some("router")));
        assert!(open("builtin:none").is_err());
        assert!(open("/does/not/exist.o:x").unwrap_err().to_string().contains("/does/not/exist.o"));
    }
}
