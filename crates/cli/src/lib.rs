//! The `millstream` command, as a library, so that tests and fuzzers know its definition and can run it in
//! their process.
//!
//! Each subcommand is a module with an `Args` (its flags, each with its help) and a `run` that gives the exit code
//! or a report. JSON goes to standard output and has a `schema` number; everything else that is not the result
//! goes to standard error. All writes to both go through `output`.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr, clippy::dbg_macro))]

#[macro_use]
mod output;

mod bench_user;
mod build;
mod capture;
mod click;
mod clients;
mod completions;
mod control;
mod daemon;
mod demo;
mod diagnostics;
mod doctor;
#[cfg(feature = "dpdk")]
mod dpdk;
#[cfg(not(feature = "dpdk"))]
#[path = "without_dpdk.rs"]
mod dpdk;
mod escape;
mod exec;
mod exit;
mod explain;
mod fastest;
mod input;
mod inspect;
mod internal;
mod lab;
mod layout;
mod learn;
mod lengths;
mod limited;
mod log;
mod man;
mod metrics;
mod native;
mod opt;
mod privileges;
mod progress;
mod prove;
mod rules;
mod run;
mod superopt;
mod supervise;
mod verify;
mod wrap;
mod xdp;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::privileges::Needs;
use exit::Exit;

/// Optimizing compiler and runtime for software data planes
#[derive(Debug, Parser)]
#[command(name = "millstream", version, max_term_width = 100, after_help = exit::help())]
struct Cli {
    #[command(flatten)]
    log: log::LogFlags,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the features that this machine permits, with advice on the rest
    Doctor(doctor::Args),
    /// Run a raw program in the interpreter: hexadecimal in, r0 out
    Exec(exec::Args),
    /// Optimize an object: the same programs, smaller and faster
    Opt(opt::Args),
    /// Show instructions, IR, control-flow graphs and maps of an object
    Inspect(inspect::Args),
    /// Run and compare programs without a NIC: traffic from the kernel, reliable times
    Lab(lab::Args),
    /// Show the main use: a router made faster on live traffic, without a NIC
    Demo(demo::Args),
    /// Prove that the programs of two objects behave the same, or find a difference
    Prove(prove::Args),
    /// Search for new rewrite rules, and prove them
    Learn(learn::Args),
    /// Prove the rewrite rules anew, both the built-in ones and those of a store
    Rules(rules::Args),
    /// Show the differences between a program and its optimized form, side by side, with source lines and
    /// causes
    Explain(explain::Args),
    /// Run a program on an interface, and keep it fast while it runs
    Run(run::Args),
    /// Keep programs on many interfaces fast, in the background: one process, monitored and controlled over a
    /// socket
    Daemon(daemon::Args),
    /// Show the status of the daemon's programs
    Status(daemon::client::StatusArgs),
    /// Follow the daemon's programs in a terminal: pace, gain, lookups by heat, the hottest keys
    Top(daemon::top::Args),
    /// Show the recorded events of the daemon's programs
    History(daemon::client::HistoryArgs),
    /// Stop the daemon from making new code; specialised code runs until the first write that changes it
    Pause(daemon::client::ProgramArgs),
    /// Have the daemon put the original back at once, and make no new code
    Rollback(daemon::client::ProgramArgs),
    /// Have the daemon go on after a pause, a rollback, a stop or a failure
    Resume(daemon::client::ProgramArgs),
    /// Have the daemon give a program's interfaces back as they were; without a name, all of them, and end
    Stop(daemon::client::ProgramArgs),
    /// Make the daemon read its configuration again
    Reload(daemon::client::ReloadArgs),
    /// Put one of our data planes on interfaces, change its tables, maintain it
    Control(control::Args),
    /// Run an XDP program in userspace, as native code: packets from memory or a capture file
    ///
    /// The code does not check accesses: ask the kernel's verifier first (`millstream verify`).
    Native(native::Args),
    /// Inspect and change the maps of a program that `millstream native --control` runs
    Map(native::client::MapArgs),
    /// Show the statistics of a program that `millstream native --control` runs
    Stats(native::client::StatsArgs),
    /// Run a Click configuration as one native program: packets from memory or capture files
    Click(click::Args),
    /// Measure a Click configuration or an XDP program in userspace: time per packet, latency by offered
    /// load, instructions
    ///
    /// Needs no peer, no NIC and no root: packets come from memory.
    BenchUser(Box<bench_user::Args>),
    /// Show the per-packet data of a compiled Click configuration: live annotations, their layout, dead
    /// annotations
    Layout(layout::Args),
    /// Build a standalone executable from a Click configuration or an XDP program, compiled ahead of time
    ///
    /// It runs as `millstream click` and `millstream native` do, with the same flags for packets, and needs
    /// neither LLVM nor this command.
    Build(build::Args),
    /// Load every program of an object into the kernel, and report its answer
    Verify(verify::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// Print or write the manual pages
    Man(man::Args),
}

impl Command {
    /// Returns true if the command can be ended at any moment and leaves nothing behind.
    fn only_prints(&self) -> bool {
        use Command::{
            Click, Completions, Doctor, Explain, History, Inspect, Layout, Man, Stats, Status, Verify,
        };
        match self {
            Doctor(_) | Inspect(_) | Verify(_) | Explain(_) | Layout(_) | Completions(_) | Man(_) => true,
            Status(_) | History(_) | Stats(_) => true,
            Click(args) => args.only_prints(),
            _ => false,
        }
    }
}

/// The definition of the command line, with all subcommands.
#[must_use]
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Runs the command line of this process, or the program that it was built from; returns its exit code.
pub fn main() -> ExitCode {
    diagnostics::install();
    let code = internal::contain(|| {
        build::run_if_built().unwrap_or_else(|| {
            with(std::env::args_os(), |command| {
                let words: Vec<OsString> = std::env::args_os().skip(1).collect();
                privileges::reduce(command.needs(), &words);
            })
        })
    });
    output::finish(code)
}

/// Runs a command line, whose first word is the name of the command, and returns its exit code. The process
/// keeps its privileges.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    with(arguments, |_| {})
}

/// Runs a command line; calls `before` between parsing and the command.
fn with(arguments: impl IntoIterator<Item = OsString>, before: impl FnOnce(&Command)) -> ExitCode {
    match parse::<Cli>(arguments) {
        Ok(Cli { log, command }) => {
            log::start(log, command.log_level());
            before(&command);
            command.run()
        }
        Err(code) => code,
    }
}

/// Parses a command line. Prints the error, or the requested help, and returns the exit code.
fn parse<P: Parser>(arguments: impl IntoIterator<Item = OsString>) -> Result<P, ExitCode> {
    P::try_parse_from(arguments).map_err(|error| {
        let text = error.render();
        match (error.use_stderr(), output::is_coloured(), output::are_errors_coloured()) {
            (false, true, _) => out!("{}", text.ansi()),
            (false, false, _) => out!("{text}"),
            (true, _, true) => output::write_error(format_args!("{}", text.ansi())),
            (true, _, false) => output::write_error(format_args!("{text}")),
        }
        if error.use_stderr() { Exit::Input.into() } else { Exit::Done.into() }
    })
}

/// Prints a report, and returns its exit code.
fn unusable(report: &miette::Report) -> ExitCode {
    diagnostics::emit(report);
    exit::of(report).into()
}

impl Command {
    /// Privileges that the command needs.
    fn needs(&self) -> Needs {
        use Command::{
            Click, Control, Daemon, Demo, Doctor, Explain, Lab, Learn, Native, Opt, Prove, Run, Verify,
        };
        match self {
            Opt(args) => args.needs(),
            Explain(args) => args.needs(),
            Prove(args) => args.needs(),
            Learn(args) => args.needs(),
            Lab(args) => args.needs(),
            Click(args) => args.needs(),
            Native(args) => args.needs(),
            Verify(_) => Needs::Kernel,
            Run(_) | Daemon(_) => Needs::Attach,
            // The switch's tender uses packet sockets.
            Control(_) | Demo(_) | Doctor(_) => Needs::Measure,
            _ => Needs::Files,
        }
    }

    /// Default log level.
    fn log_level(&self) -> &'static str {
        if matches!(self, Command::Daemon(_)) { "info" } else { "warn" }
    }

    fn run(self) -> ExitCode {
        if self.only_prints() {
            millstream_lab::os::end_with_the_reader();
        }
        let result = match self {
            Command::Doctor(args) => doctor::run(args),
            Command::Exec(args) => exec::run(&args),
            Command::Opt(args) => opt::run(&args),
            Command::Inspect(args) => inspect::run(&args),
            Command::Lab(args) => lab::run(&args),
            Command::Demo(args) => demo::run(&args),
            Command::Prove(args) => prove::run(&args),
            Command::Learn(args) => learn::run(&args),
            Command::Rules(args) => rules::run(&args),
            Command::Explain(args) => explain::run(&args),
            Command::Run(args) => run::run(&args),
            Command::Daemon(args) => daemon::run(&args),
            Command::Status(args) => daemon::client::status(&args),
            Command::Top(args) => daemon::top::run(&args),
            Command::History(args) => daemon::client::history(&args),
            Command::Pause(args) => daemon::client::pause(&args),
            Command::Rollback(args) => daemon::client::roll_back(&args),
            Command::Resume(args) => daemon::client::resume(&args),
            Command::Stop(args) => daemon::client::stop(&args),
            Command::Reload(args) => daemon::client::reload(&args),
            Command::Control(args) => control::run(&args),
            Command::Native(args) => native::run(&args),
            Command::Map(args) => native::client::map(&args),
            Command::Stats(args) => native::client::stats(&args),
            Command::Click(args) => click::run(&args),
            Command::BenchUser(args) => bench_user::run(&args),
            Command::Layout(args) => layout::run(&args),
            Command::Build(args) => build::run(&args),
            Command::Verify(args) => verify::run(args),
            Command::Completions(args) => completions::run(&args),
            Command::Man(args) => man::run(&args),
        };
        result.unwrap_or_else(|report| unusable(&report))
    }
}
