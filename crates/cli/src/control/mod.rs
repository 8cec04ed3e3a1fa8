//! `millstream control`: our data planes for an operator: attaches, changes, monitors and detaches them.
//!
//! Running data planes are pinned in a directory of a BPF file system: `maps/NAME`, and `link_IFACE` for each
//! interface. They keep running when this command ends. `millstream run --pin DIR` pins maps in the same way,
//! so that `set`, `show` and `tend` work on its programs, too.

mod config;
mod list;
mod place;
mod show;
mod tend;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use miette::{IntoDiagnostic, WrapErr, miette};
use millstream_programs::{BALANCER, FIREWALL, NAT, Program, ROUTER, SWITCH};

use crate::exit::Exit;
use crate::limited;
use crate::xdp::Mode;

/// Flags of `millstream control`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Data plane to control
    plane: Plane,
    #[command(subcommand)]
    command: Command,
    /// Directory of its pins; by default /sys/fs/bpf/millstream/PLANE
    #[arg(long, value_name = "DIR", global = true)]
    pin: Option<PathBuf>,
}

/// A data plane of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Plane {
    /// IPv4 router
    Router,
    /// Ethernet switch with VLANs
    Switch,
    /// Packet filter of 5-tuple rules
    Firewall,
    /// Source NAT
    Nat,
    /// Layer 4 load balancer
    Balancer,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Fill the tables from a configuration and attach the program to the interfaces that it names
    Up(Up),
    /// Change the tables to those of a configuration, under traffic; learned entries stay
    Set(Configuration),
    /// Print the contents of the tables, and the counters
    Show(Output),
    /// Print the entries: routes (router), stations (switch), connections (nat, balancer), rules that matched
    /// (firewall)
    List(Output),
    /// Do the work that the data plane leaves to user space, until interrupted: flood and age (switch),
    /// forget idle connections (nat)
    Tend(Tend),
    /// Take the program off its interfaces and remove the tables
    Down,
    /// Write the program as an object file, for `millstream run` and other loaders
    Object(ObjectFile),
}

#[derive(Debug, clap::Args)]
struct Configuration {
    /// The configuration, in JSON (docs/control.md); `-` for standard input
    #[arg(value_name = "CONFIG")]
    config: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Up {
    #[command(flatten)]
    configuration: Configuration,
    /// Place in the receive path to attach to
    #[arg(long, value_name = "MODE", default_value = "any")]
    mode: Mode,
}

#[derive(Debug, clap::Args)]
struct Output {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Tend {
    /// Do one round, then end
    #[arg(long)]
    once: bool,
    /// Seconds after which a learned station that sent nothing is forgotten (switch)
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = crate::lengths::seconds())]
    age: u64,
}

#[derive(Debug, clap::Args)]
struct ObjectFile {
    /// The file to write
    #[arg(value_name = "FILE")]
    output: PathBuf,
}

impl Plane {
    pub(super) fn program(self) -> Program {
        match self {
            Plane::Router => ROUTER,
            Plane::Switch => SWITCH,
            Plane::Firewall => FIREWALL,
            Plane::Nat => NAT,
            Plane::Balancer => BALANCER,
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, miette::Report> {
    let plane = args.plane;
    let usual = || Path::new("/sys/fs/bpf/millstream").join(plane.program().name);
    let place = place::Place::new(args.pin.clone().unwrap_or_else(usual));
    if !matches!(args.command, Command::Object(_))
        && let Err(e) = place.check()
    {
        return Ok(failed(&e).into());
    }
    let done = match &args.command {
        Command::Up(up) => tables(plane, &up.configuration).map(|t| place.up(plane, &t, up.mode)),
        Command::Set(configuration) => tables(plane, configuration).map(|t| place.set(plane, &t)),
        Command::Show(output) => Ok(show::show(plane, &place, output.json)),
        Command::List(output) => Ok(list::list(plane, &place, output.json)),
        Command::Tend(tend) => Ok(tend::tend(plane, &place, tend.age, tend.once)),
        Command::Down => Ok(place.down()),
        Command::Object(file) => return object(plane, &file.output),
    }?;
    match done {
        Ok(()) => Ok(Exit::Done.into()),
        Err(e) => Ok(failed(&e).into()),
    }
}

fn tables(plane: Plane, configuration: &Configuration) -> Result<config::Tables, miette::Report> {
    let path = &configuration.config;
    let text = match path.as_os_str() == "-" {
        true => limited::text_of_input(),
        false => limited::text(path),
    };
    let named = || path.display().to_string();
    let text = text.into_diagnostic().wrap_err_with(named)?;
    config::read(plane, &text).wrap_err_with(named)
}

fn object(plane: Plane, path: &Path) -> Result<ExitCode, miette::Report> {
    let written = std::fs::write(path, plane.program().object);
    written.map_err(|e| miette!("{}: {e}", path.display()))?;
    Ok(Exit::Done.into())
}

fn failed(error: &place::Error) -> Exit {
    errln!("{error}");
    if let Some(hint) = error.hint() {
        errln!("  {hint}");
    }
    match error.is_permission() {
        true => {
            errln!("  `millstream doctor` says what this machine permits and what to do about the rest");
            Exit::NotPermitted
        }
        false if error.is_refusal() => Exit::Negative,
        false => Exit::Input,
    }
}
