//! `millstream control`: our data planes for an operator: attaches, changes, monitors and detaches them.
//!
//! Running data planes are pinned in a directory of a BPF file system: `maps/NAME`, and `link_IFACE` for each
//! interface. They keep running when this command ends. `millstream run --pin DIR` pins maps in the same way,
//! so that `set`, `show` and `maintain` work on its programs, too.

mod config;
mod list;
mod pin_directory;
mod show;
mod tend;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use miette::{IntoDiagnostic, WrapErr, miette};
use millstream_programs::{BALANCER, DataPlaneProgram, FIREWALL, NAT, ROUTER, SWITCH};

use crate::bounded_read;
use crate::exit::Exit;
use crate::xdp::AttachMode;

/// Flags of `millstream control`.
#[derive(Debug, clap::Args)]
pub(crate) struct ControlArgs {
    /// Data plane to control
    plane: DataPlane,
    #[command(subcommand)]
    command: ControlCommand,
    /// Directory of its pins; by default /sys/fs/bpf/millstream/PLANE
    #[arg(long, value_name = "DIR", global = true)]
    pin: Option<PathBuf>,
}

/// A data plane of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum DataPlane {
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
enum ControlCommand {
    /// Fill the tables from a configuration and attach the program to the interfaces that it names
    Up(ControlUpArgs),
    /// Change the tables to those of a configuration, under traffic; learned entries stay
    Set(ControlConfigArgs),
    /// Print the contents of the tables, and the counters
    Show(ControlOutputArgs),
    /// Print the entries: routes (router), stations (switch), connections (nat, balancer), rules that matched
    /// (firewall)
    List(ControlOutputArgs),
    /// Do the work that the data plane leaves to user space, until interrupted: flood and age (switch),
    /// forget idle connections (nat)
    #[command(alias = "tend")]
    Maintain(ControlTendArgs),
    /// Detach the program from its interfaces and remove the tables
    Down,
    /// Write the program as an object file, for `millstream run` and other loaders
    Object(ObjectFile),
}

#[derive(Debug, clap::Args)]
struct ControlConfigArgs {
    /// The configuration, in JSON (docs/control.md); `-` for standard input
    #[arg(value_name = "CONFIG")]
    config: PathBuf,
}

#[derive(Debug, clap::Args)]
struct ControlUpArgs {
    #[command(flatten)]
    configuration: ControlConfigArgs,
    /// Place in the receive path to attach to
    #[arg(long, value_name = "MODE", default_value = "any")]
    mode: AttachMode,
}

#[derive(Debug, clap::Args)]
struct ControlOutputArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct ControlTendArgs {
    /// Do one round, then end
    #[arg(long)]
    once: bool,
    /// Seconds after which a learned station that sent nothing is forgotten (switch)
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = crate::duration_args::seconds())]
    age: u64,
}

#[derive(Debug, clap::Args)]
struct ObjectFile {
    /// The file to write
    #[arg(value_name = "FILE")]
    output: PathBuf,
}

impl DataPlane {
    pub(super) fn program(self) -> DataPlaneProgram {
        match self {
            DataPlane::Router => ROUTER,
            DataPlane::Switch => SWITCH,
            DataPlane::Firewall => FIREWALL,
            DataPlane::Nat => NAT,
            DataPlane::Balancer => BALANCER,
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &ControlArgs) -> Result<ExitCode, miette::Report> {
    let plane = args.plane;
    let usual = || Path::new("/sys/fs/bpf/millstream").join(plane.program().name);
    let place = pin_directory::PinDirectory::new(args.pin.clone().unwrap_or_else(usual));
    if !matches!(args.command, ControlCommand::Object(_))
        && let Err(e) = place.check()
    {
        return Ok(failed(&e).into());
    }
    let done = match &args.command {
        ControlCommand::Up(up) => tables(plane, &up.configuration).map(|t| place.up(plane, &t, up.mode)),
        ControlCommand::Set(configuration) => tables(plane, configuration).map(|t| place.set(plane, &t)),
        ControlCommand::Show(output) => Ok(show::show(plane, &place, output.json)),
        ControlCommand::List(output) => Ok(list::list(plane, &place, output.json)),
        ControlCommand::Maintain(tend) => Ok(tend::tend(plane, &place, tend.age, tend.once)),
        ControlCommand::Down => Ok(place.down()),
        ControlCommand::Object(file) => return object(plane, &file.output),
    }?;
    match done {
        Ok(()) => Ok(Exit::Done.into()),
        Err(e) => Ok(failed(&e).into()),
    }
}

fn tables(
    plane: DataPlane,
    configuration: &ControlConfigArgs,
) -> Result<config::DataPlaneTables, miette::Report> {
    let path = &configuration.config;
    let text = match path.as_os_str() == "-" {
        true => bounded_read::text_of_input(),
        false => bounded_read::text(path),
    };
    let named = || path.display().to_string();
    let text = text.into_diagnostic().wrap_err_with(named)?;
    config::read(plane, &text).wrap_err_with(named)
}

fn object(plane: DataPlane, path: &Path) -> Result<ExitCode, miette::Report> {
    let written = std::fs::write(path, plane.program().object);
    written.map_err(|e| miette!("{}: {e}", path.display()))?;
    Ok(Exit::Done.into())
}

fn failed(error: &pin_directory::ControlError) -> Exit {
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
