//! The `millstream` command.
//!
//! Each subcommand is a module with an `Args` (its flags, each with its help) and a `run` that gives the exit code
//! or a report. JSON goes to standard output and has a `schema` number; everything else that is not the result
//! goes to standard error.

#[macro_use]
mod escape;

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
mod exec;
mod exit;
mod explain;
mod fastest;
mod input;
mod inspect;
mod lab;
mod layout;
mod learn;
mod limited;
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
mod xdp;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::privileges::Needs;

/// The static compiler makes many small things: with the system's allocator it takes a quarter longer. Without huge pages (a
/// feature of the crate), since the kernel clears two megabytes for each, of which a short run uses little.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Optimizing compiler and runtime for software data planes
#[derive(Debug, Parser)]
#[command(name = "millstream", version, max_term_width = 100, after_help = exit::help())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what this machine permits, and what to do about the rest
    Doctor(doctor::Args),
    /// Run a raw program in the interpreter: hexadecimal in, r0 out
    Exec(exec::Args),
    /// Optimize an object: the same programs, smaller and faster
    Opt(opt::Args),
    /// Show instructions, IR, control-flow graphs and maps of an object
    Inspect(inspect::Args),
    /// Run and compare programs without a NIC: traffic from the kernel, times that can be relied on
    Lab(lab::Args),
    /// Show the main job: a router made faster on live traffic, without a NIC
    Demo(demo::Args),
    /// Prove that the programs of two objects do the same, or find where they differ
    Prove(prove::Args),
    /// Look for rewrite rules that are not there yet, and prove them
    Learn(learn::Args),
    /// Prove the rewrite rules anew, those written by hand and those of a store
    Rules(rules::Args),
    /// Show what changed between a program and its optimized form, side by side, with source lines and causes
    Explain(explain::Args),
    /// Run a program on an interface, and keep it fast while it runs
    Run(run::Args),
    /// Keep programs on many interfaces fast, in the background: one process, watched and steered over a socket
    Daemon(daemon::Args),
    /// Show how the daemon's programs stand
    Status(daemon::client::StatusArgs),
    /// Follow the daemon's programs in a terminal: pace, gain, lookups by heat, the hottest keys
    Top(daemon::top::Args),
    /// Show what happened to the daemon's programs
    History(daemon::client::HistoryArgs),
    /// Have the daemon make nothing new; what is specialised goes on until the first write that changes it
    Pause(daemon::client::ProgramArgs),
    /// Have the daemon put the original back at once, and make nothing new
    Rollback(daemon::client::ProgramArgs),
    /// Have the daemon go on after a pause, a rollback, a stop or a failure
    Resume(daemon::client::ProgramArgs),
    /// Have the daemon give a program's interfaces back as they were; without a name, all of them, and end
    Stop(daemon::client::ProgramArgs),
    /// Have the daemon read its configuration again
    Reload(daemon::client::ReloadArgs),
    /// Put one of our data planes on interfaces, change its tables, look after it
    Control(control::Args),
    /// Run an XDP program in userspace, as native code: packets from memory or a capture file
    ///
    /// The code checks no access: have the kernel's verifier look at the program first (`millstream verify`).
    Native(native::Args),
    /// Look at the maps of a program that `millstream native --control` runs, and change them
    Map(native::client::MapArgs),
    /// Show what a program has done so far that `millstream native --control` runs
    Stats(native::client::StatsArgs),
    /// Run a Click configuration as one native program: packets from memory or capture files
    Click(click::Args),
    /// Measure a Click configuration or an XDP program in userspace: time a packet, latency by offered load, instructions
    ///
    /// Needs no peer, no NIC and no root: packets come from memory.
    BenchUser(Box<bench_user::Args>),
    /// Show what a Click configuration, compiled, keeps of a packet beside its bytes: live annotations, where they lie, what is dead
    Layout(layout::Args),
    /// Build an executable of its own from a Click configuration or an XDP program, compiled ahead of time
    ///
    /// It runs as `millstream click` and `millstream native` do, with the same flags for packets, and needs neither LLVM nor this
    /// command.
    Build(build::Args),
    /// Ask the kernel to load every program of an object, and say what it answers
    Verify(verify::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// Print or write the manual pages
    Man(man::Args),
}

impl Command {
    /// Whether it leaves nothing behind when it is ended at any moment.
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

impl Command {
    /// Privileges that it takes.
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
            Run(_) | Daemon(_) | Control(_) => Needs::Attach,
            Demo(_) | Doctor(_) => Needs::Measure,
            _ => Needs::Files,
        }
    }
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("MILLSTREAM_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
    if let Some(code) = build::run_if_built() {
        return code;
    }
    let command = Cli::parse().command;
    privileges::reduce(command.needs(), &std::env::args_os().skip(1).collect::<Vec<_>>());
    if command.only_prints() {
        millstream_lab::os::end_with_the_reader();
    }
    let result = match command {
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
    result.unwrap_or_else(|report| {
        diagnostics::emit(&report);
        exit::of(&report).into()
    })
}
