//! The `millstream` command, as a library, so that tests and fuzzers know its definition and can run it in
//! their process.
//!
//! Each subcommand is a module with a type of its flags (`RunArgs`, `OptArgs`) and a `run` that gives the exit
//! code or a report. Most are in crates of their own, by what they work on. JSON goes to standard output and has
//! a `schema` number; everything else that is not the result goes to standard error. All writes to both go
//! through `millstream_console::output`.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr, clippy::dbg_macro))]

#[macro_use]
extern crate millstream_console;

mod completions;
mod control;
mod demo;
mod doctor;
mod lab;
mod man;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use millstream_cluster as cluster;
use millstream_console::command_line::{parse, report_error};
use millstream_console::exit::Exit;
use millstream_console::privileges::RequiredPrivileges;
use millstream_console::{
    bounded_read, diagnostics, duration_args, exit, input, internal, log, output, privileges, progress, xdp,
};
use millstream_daemon::{self as daemon, run};
use millstream_object_commands::{
    bundle, exec, exec_with, explain, fuse, inspect, learn, opt, prove, rules, verify,
};
use millstream_p4_commands as p4;
use millstream_userspace::{build, click, dpdk, layout, native, sample};
use millstream_userspace_bench::{bench_user, model, tune};

/// Optimizing compiler and runtime for software data planes
#[derive(Debug, Parser)]
#[command(name = "millstream", version, max_term_width = 80, after_help = exit::help())]
struct Cli {
    #[command(flatten)]
    log: log::LogFlags,
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Show the features that this machine permits, with advice on the rest
    Doctor(doctor::DoctorArgs),
    /// Run a raw program in the interpreter: reads hexadecimal bytes, prints r0
    Exec(exec::ExecArgs),
    /// Run a loader, and optimize the programs that it loads into the kernel
    ///
    /// The loader is any command that calls bpf(2), linked statically or not. On any doubt, its program is loaded as
    /// it is. The exit code is the loader's.
    ExecWith(exec_with::ExecWithArgs),
    /// Optimize the programs of an object file
    Opt(opt::OptArgs),
    /// Make one program of an XDP dispatcher and the programs behind it
    ///
    /// Priorities and verdicts are those that the components declare, as for xdp-loader.
    Fuse(fuse::FuseArgs),
    /// Show instructions, IR, control-flow graphs and maps of an object
    Inspect(inspect::InspectArgs),
    /// Run and compare programs without a NIC, on traffic that the kernel sends
    Lab(lab::LabArgs),
    /// Demonstrate run-time specialization of a router on live traffic, without a NIC
    Demo(demo::DemoArgs),
    /// Check P4_16 programs, print their P4Info, run their tests
    P4(p4::P4Args),
    /// Prove that the programs of two objects behave the same, or find a difference
    Prove(prove::ProveArgs),
    /// Pack an object with its optimized forms and their proofs; show and verify what others have packed
    Bundle(bundle::BundleArgs),
    /// Say on which kernels a bundle loads, in which form and at which verification cost, before it is rolled out
    Preflight(bundle::preflight::PreflightArgs),
    /// Search for new rewrite rules, and prove them
    Learn(learn::LearnArgs),
    /// Prove, count and seal rewrite rules, built-in or of a store
    Rules(rules::RulesArgs),
    /// Show the differences between a program and its optimized form, side by side, with source lines and
    /// causes
    Explain(explain::ExplainArgs),
    /// Attach a program to an interface, and specialize it to its tables and traffic
    Run(run::RunArgs),
    /// Attach and specialize programs on many interfaces, as a service that is controlled over a socket
    Daemon(daemon::DaemonArgs),
    /// Show the status of the daemon's programs
    Status(daemon::client::StatusArgs),
    /// Watch the daemon's programs in a terminal: rates, gains, lookups by frequency, the hottest keys
    Top(daemon::top::TopArgs),
    /// Show the recorded events of the daemon's programs
    History(daemon::client::HistoryArgs),
    /// Make no new variants; specialised code runs until the first write that changes it
    Pause(daemon::client::ProgramArgs),
    /// Attach the original program at once, and make no new variants
    Rollback(daemon::client::ProgramArgs),
    /// Continue after a pause, a rollback, a stop or a failure
    Resume(daemon::client::ProgramArgs),
    /// Restore the interfaces of a program; without a name, those of all programs, and end the daemon
    Stop(daemon::client::ProgramArgs),
    /// Make the daemon read its configuration again
    Reload(daemon::client::ReloadArgs),
    /// Many nodes under Kubernetes: agents of nodes, staged rollouts, one switch for all originals
    Cluster(cluster::ClusterArgs),
    /// Attach a built-in data plane to interfaces, change its tables, maintain it
    Control(control::ControlArgs),
    /// Run an XDP program in userspace, as native code: packets from memory or a capture file
    ///
    /// The code does not check accesses: ask the kernel's verifier first (`millstream verify`).
    Native(native::NativeArgs),
    /// Inspect and change the maps of a program that `millstream native --control` runs
    Map(native::client::MapArgs),
    /// Show the statistics of a program that `millstream native --control` runs
    Stats(native::client::StatsArgs),
    /// Make a trace of what a program in userspace receives: samples with the flows, volumes and order of the
    /// traffic, for `tune --traffic`
    Sample(sample::SampleArgs),
    /// Run a Click configuration as one native program: packets from memory or capture files
    // -h is Click's: it reads a handler.
    #[command(disable_help_flag = true)]
    Click(click::ClickArgs),
    /// Measure a Click configuration, an XDP program or a P4 program in userspace: time per packet, latency by
    /// offered load, instructions
    ///
    /// Needs no peer, no NIC and no root: packets come from memory.
    BenchUser(Box<bench_user::BenchUserArgs>),
    /// Search the settings by which a configuration or an XDP program is fastest in userspace, on this machine
    /// and traffic
    ///
    /// The plan that it writes is for `--plan` of `click`, `native` and `build`. Settings change speed only.
    Tune(Box<tune::TuneArgs>),
    /// Predict what bounds a configuration, an XDP program or a P4 program in userspace: processor, memory or I/O;
    /// and the best batch and sub-batch
    Model(model::ModelArgs),
    /// Show the per-packet data of a compiled Click configuration: live annotations, their layout, dead
    /// annotations
    Layout(layout::LayoutArgs),
    /// Build a standalone executable from a Click configuration or an XDP program, compiled ahead of time
    ///
    /// It runs as `millstream click` and `millstream native` do, with the same flags for packets, and needs
    /// neither LLVM nor this command.
    Build(build::BuildArgs),
    /// Load every program of an object into the kernel, and report whether the verifier accepts it
    Verify(verify::VerifyArgs),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
    /// Print or write the manual pages
    Man(man::ManArgs),
}

impl CliCommand {
    /// Returns true if the command can be ended at any moment and leaves nothing behind: neither files nor
    /// children, to whose pipes it would write.
    fn only_prints(&self) -> bool {
        use CliCommand::{Click, Completions, History, Inspect, Layout, Man, P4, Stats, Status};
        match self {
            Inspect(_) | Layout(_) | Completions(_) | Man(_) => true,
            Status(_) | History(_) | Stats(_) => true,
            Click(args) => args.only_prints(),
            P4(args) => args.only_prints(),
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
    let code = internal::catch_panics(|| {
        build::run_if_built().unwrap_or_else(|| {
            let arguments = match as_reference_switch(std::env::args_os().collect()) {
                Ok(arguments) => arguments,
                Err(code) => return code,
            };
            let words: Vec<OsString> = arguments.iter().skip(1).cloned().collect();
            with(arguments, |command| privileges::reduce(command.needs(), &words))
        })
    });
    output::finish(code)
}

/// Translates a command line of the reference P4 switch, if this is one of its names.
fn as_reference_switch(arguments: Vec<OsString>) -> Result<Vec<OsString>, ExitCode> {
    match p4::wrappers::translate(&arguments) {
        None => Ok(arguments),
        Some(Ok(command)) => {
            command.warnings.iter().for_each(|warning| diagnostics::warn(warning));
            Ok(command.words)
        }
        Some(Err(reason)) => {
            errln!("{}: {reason}", arguments.first().map(|name| name.to_string_lossy()).unwrap_or_default());
            Err(Exit::Input.into())
        }
    }
}

/// Runs a command line, whose first word is the name of the command, and returns its exit code. The process
/// keeps its privileges.
pub fn run_command_line(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    with(arguments, |_| {})
}

/// Runs a command line; calls `before` between parsing and the command.
fn with(arguments: impl IntoIterator<Item = OsString>, before: impl FnOnce(&CliCommand)) -> ExitCode {
    match parse::<Cli>(arguments) {
        Ok(Cli { log, command }) => {
            log::start(log, command.log_level());
            before(&command);
            command.run()
        }
        Err(code) => code,
    }
}

impl CliCommand {
    /// Privileges that the command needs.
    fn needs(&self) -> RequiredPrivileges {
        use CliCommand::{
            Click, Control, Daemon, Demo, Doctor, ExecWith, Explain, Lab, Learn, Native, Opt, P4, Prove, Run,
            Verify,
        };
        match self {
            Opt(args) => args.needs(),
            Explain(args) => args.needs(),
            Prove(args) => args.needs(),
            Learn(args) => args.needs(),
            Lab(args) => args.needs(),
            Click(args) => args.needs(),
            Native(args) => args.needs(),
            P4(args) => args.needs(),
            Verify(args) => args.needs(),
            Run(_) | Daemon(_) => RequiredPrivileges::Attach,
            // The loader is to have all that it would have without us.
            ExecWith(_) => RequiredPrivileges::Devices,
            // The switch's tender uses packet sockets.
            Control(_) | Demo(_) | Doctor(_) => RequiredPrivileges::Measure,
            _ => RequiredPrivileges::Files,
        }
    }

    /// Default log level.
    fn log_level(&self) -> &'static str {
        if matches!(self, CliCommand::Daemon(_)) { "info" } else { "warn" }
    }

    fn run(self) -> ExitCode {
        if self.only_prints() {
            millstream_lab::os::restore_default_sigpipe();
        }
        let result = match self {
            CliCommand::Doctor(args) => doctor::run(args),
            CliCommand::Exec(args) => exec::run(&args),
            CliCommand::ExecWith(args) => exec_with::run(&args),
            CliCommand::Opt(args) => opt::run(args),
            CliCommand::Fuse(args) => fuse::run(&args),
            CliCommand::Inspect(args) => inspect::run(&args),
            CliCommand::Lab(args) => match args.curves() {
                Some(request) => model::calibrate::run(request),
                None => lab::run(&args),
            },
            CliCommand::Demo(args) => demo::run(&args),
            CliCommand::Prove(args) => prove::run(&args),
            CliCommand::Bundle(args) => bundle::run(&args),
            CliCommand::Preflight(args) => bundle::preflight::run(&args),
            CliCommand::Learn(args) => learn::run(&args),
            CliCommand::Rules(args) => rules::run(&args),
            CliCommand::Explain(args) => explain::run(&args),
            CliCommand::Run(args) => run::run(&args),
            CliCommand::Daemon(args) => daemon::run(&args),
            CliCommand::Status(args) => daemon::client::status(&args),
            CliCommand::Top(args) => daemon::top::run(&args),
            CliCommand::History(args) => daemon::client::history(&args),
            CliCommand::Pause(args) => daemon::client::pause(&args),
            CliCommand::Rollback(args) => daemon::client::roll_back(&args),
            CliCommand::Resume(args) => daemon::client::resume(&args),
            CliCommand::Stop(args) => daemon::client::stop(&args),
            CliCommand::Reload(args) => daemon::client::reload(&args),
            CliCommand::Cluster(args) => cluster::run(&args),
            CliCommand::Control(args) => control::run(&args),
            CliCommand::Native(args) => native::run(&args),
            CliCommand::Map(args) => native::client::map(&args),
            CliCommand::Stats(args) => native::client::stats(&args),
            CliCommand::Sample(args) => sample::run(&args),
            CliCommand::Click(args) => click::run(&args),
            CliCommand::BenchUser(args) => bench_user::run(&args),
            CliCommand::Tune(args) => tune::run(&args),
            CliCommand::Model(args) => model::run(&args),
            CliCommand::Layout(args) => layout::run(&args),
            CliCommand::Build(args) => build::run(&args),
            CliCommand::P4(args) => p4::run(&args),
            CliCommand::Verify(args) => verify::run(args),
            CliCommand::Completions(args) => completions::run(&args),
            CliCommand::Man(args) => man::run(&args),
        };
        result.unwrap_or_else(|report| report_error(&report))
    }
}

#[cfg(test)]
mod tests {
    use millstream_console::renamed::FLAGS;

    #[test]
    fn no_subcommand_has_an_old_name_and_one_has_each_new_one() {
        fn flags(command: &clap::Command, into: &mut Vec<String>) {
            into.extend(command.get_arguments().filter_map(|a| a.get_long()).map(|long| format!("--{long}")));
            command.get_subcommands().for_each(|sub| flags(sub, into));
        }
        let mut known = Vec::new();
        flags(&super::definition(), &mut known);
        for (old, new) in FLAGS {
            assert!(!known.iter().any(|flag| flag == old), "{old}");
            assert!(known.iter().any(|flag| flag == new), "{new}");
        }
    }
}
