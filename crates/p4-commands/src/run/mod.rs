//! `millstream p4 run`: a switch on interfaces or capture files, with its control plane.

mod commands;
mod measure;
mod metrics;
mod packets;
mod ports;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_console::adapt_args::AdaptArgs;
use millstream_lab::os;
use millstream_p4::CompileOptions;
use millstream_p4_switch::TraceCondition;
use millstream_p4runtime_server::{
    ControlProgram, ServerOptions, SwitchHandle, SwitchSettings, TlsFiles, encode_config, load_runtime_file,
    run_command, serve_p4runtime,
};

use super::PreprocessorArgs;
use super::execution::{SwitchExecution, make_executor};
use crate::adaptation::SwitchAdaptation;
use crate::exit::Exit;
pub(crate) use commands::CommandAnswer;
use packets::{FaultCounter, PacketMover};
pub(crate) use ports::PortSpec;
use ports::SwitchPorts;

/// Flags about the encryption of P4Runtime.
#[derive(Debug, clap::Args)]
pub(crate) struct TlsArgs {
    /// Certificate of the P4Runtime server, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key", requires = "grpc")]
    tls_cert: Option<PathBuf>,
    /// Key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Certificates that sign those of controllers, in PEM; controllers then need one
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
}

impl TlsArgs {
    /// The files, if the server encrypts.
    fn files(&self) -> Option<TlsFiles> {
        let (certificate, key) = self.tls_cert.clone().zip(self.tls_key.clone())?;
        Some(TlsFiles { certificate, key, client_authorities: self.tls_client_ca.clone() })
    }
}

/// Flags about what the switch holds before the first packet.
#[derive(Debug, clap::Args)]
pub(crate) struct StartArgs {
    /// Write these entries at the start: a runtime file of the P4 tutorials
    #[arg(long, value_name = "FILE", requires = "program")]
    runtime_json: Option<PathBuf>,
    /// Run these commands before the first packet: the words of `millstream p4 cli`, one command a line
    #[arg(long, value_name = "FILE", requires = "program")]
    commands: Option<PathBuf>,
}

/// Flags about the speed without ports.
#[derive(Debug, clap::Args)]
pub(crate) struct SpeedArgs {
    /// Move the packets of capture files from memory for so many seconds, print the speed, and send nothing
    #[arg(long, value_name = "SECONDS", requires = "program", conflicts_with_all = ["grpc", "trace"])]
    measure: Option<f64>,
    /// Print the speed as JSON
    #[arg(long, requires = "measure")]
    json: bool,
}

/// Flags of `millstream p4 run`.
#[derive(Debug, clap::Args)]
pub(crate) struct P4RunArgs {
    /// The program; without one, a controller has to send it
    #[arg(value_name = "FILE", required_unless_present = "grpc")]
    program: Option<PathBuf>,
    #[command(flatten)]
    preprocessor: PreprocessorArgs,
    /// A port: its number, and an interface or capture files (`0@veth0`, `1@in.pcap:out.pcap`); may be
    /// repeated
    #[arg(short, long = "interface", value_name = "PORT@DEVICE")]
    interface: Vec<PortSpec>,
    /// Serve P4Runtime at this address
    #[arg(long, value_name = "ADDR:PORT")]
    grpc: Option<SocketAddr>,
    /// Number of the device for P4Runtime
    #[arg(long, value_name = "N", default_value_t = 0)]
    device_id: u64,
    /// Port at which the program exchanges packets with controllers [default: 255, if the program has headers
    /// for them]
    #[arg(long, value_name = "PORT")]
    cpu_port: Option<u64>,
    #[command(flatten)]
    tls: TlsArgs,
    /// Listen here for commands of `millstream p4 cli`, which may do everything: give an address that only
    /// operators reach
    #[arg(long, value_name = "ADDR:PORT")]
    cli: Option<SocketAddr>,
    /// Serve Prometheus metrics at http://ADDR:PORT/metrics
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    start: StartArgs,
    /// Write the packets of each interface to `NAME_in.pcap` and `NAME_out.pcap` in this folder
    #[arg(long, value_name = "DIR")]
    capture_dir: Option<PathBuf>,
    /// Print what happens to one packet out of N: states of the parser, headers, tables with key and action,
    /// drops with their lines
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    trace: Option<u64>,
    /// Print the traces of packets that meet all of these conditions; may be repeated: `port=N`,
    /// `table=NAME`, `dropped`, or `FIELD=VALUE` with a number, an IPv4 address or an Ethernet address
    #[arg(long, value_name = "CONDITION", requires = "trace")]
    trace_if: Vec<TraceCondition>,
    #[command(flatten)]
    speed: SpeedArgs,
    /// Execution of the program
    #[arg(long, value_name = "EXECUTION", default_value = "optimized")]
    on: SwitchExecution,
    #[command(flatten)]
    adapt: AdaptArgs,
}

impl P4RunArgs {
    /// Returns true if a port is an interface.
    pub(super) fn needs_interfaces(&self) -> bool {
        self.interface.iter().any(PortSpec::is_interface)
    }

    /// Returns true if something beside packets keeps the switch running.
    fn has_controllers(&self) -> bool {
        self.grpc.is_some() || self.cli.is_some()
    }
}

/// Reads and lowers the program of a file.
fn load(path: &std::path::Path, options: &CompileOptions) -> Result<Arc<ControlProgram>> {
    if path.extension().is_some_and(|ending| ending == "json") {
        return Err(miette!(
            help = "give the P4 source in place of what was compiled for the reference switch",
            "{}: this is not P4 source",
            path.display()
        ));
    }
    let program = super::read_accepted(path, options)?;
    let config = encode_config(&program, options);
    ControlProgram::new(&program, config).map(Arc::new).map_err(|error| miette!("{error}"))
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).into_diagnostic().wrap_err_with(|| format!("cannot listen at {address}"))
}

pub(super) fn run(args: &P4RunArgs) -> Result<ExitCode> {
    let adaptation = SwitchAdaptation::new(args.adapt).map(Arc::new);
    if adaptation.is_some() && args.on != SwitchExecution::Native {
        return Err(miette!("--adapt is for native code: add --on native"));
    }
    let program = args.program.as_ref().map(|path| load(path, &args.preprocessor.options())).transpose()?;
    let ports = Arc::new(SwitchPorts::open(&args.interface, args.capture_dir.as_deref())?);
    let sink = Arc::clone(&ports);
    let (on, adapted) = (args.on, adaptation.clone());
    let handle = SwitchHandle::new(
        args.device_id,
        Arc::new(move |program| make_executor(on, program, adapted.as_deref())),
        SwitchSettings { cpu_port: args.cpu_port },
        Arc::new(move |packets| sink.send(packets, os::now_ns())),
    );
    if let Some(program) = program {
        handle.load(program).map_err(|error| miette!("{error}"))?;
    }
    if let Some(path) = &args.start.runtime_json {
        load_entries(&handle, path)?;
    }
    if let Some(path) = &args.start.commands {
        run_commands(&handle, path)?;
    }
    os::catch_interrupts();
    let server = args.grpc.map(|address| serve(args, address, &handle)).transpose()?;
    if let Some(address) = args.cli {
        let (listener, handle) = (listen(address)?, handle.clone());
        errln!("commands at {}", listener.local_addr().into_diagnostic()?);
        std::thread::spawn(move || commands::serve(listener, handle));
    }
    let mover = Arc::new(PacketMover {
        handle: handle.clone(),
        ports: Arc::clone(&ports),
        faults: FaultCounter::new(0),
        ends: AtomicBool::new(false),
        trace: args.trace,
        conditions: args.trace_if.clone(),
        moved: AtomicU64::new(0),
        adaptation: adaptation.clone(),
    });
    if let Some(listener) = crate::metrics::listen(args.metrics).map_err(|error| miette!("{error}"))? {
        metrics::serve(listener, Arc::clone(&mover));
    }
    if let Some(seconds) = args.speed.measure {
        let time = Duration::try_from_secs_f64(seconds).into_diagnostic().wrap_err("--measure")?;
        let speed = mover.measure(time)?;
        match args.speed.json {
            true => outln!("{}", serde_json::to_string_pretty(&speed).into_diagnostic()?),
            false => outln!("{speed}"),
        }
        return Ok(Exit::Done.into());
    }
    let moved = move_packets(args, &mover);
    if let Some((stop, thread)) = server {
        _ = stop.send(());
        let ended = thread.join().map_err(|_| miette!("the P4Runtime server failed"))?;
        ended.map_err(|error| miette!("P4Runtime: {error}"))?;
    }
    ports.finish().into_diagnostic().wrap_err("cannot write a capture file")?;
    moved?;
    report(&ports, &mover);
    if let Some(status) = adaptation.and_then(|adaptation| adaptation.finish()) {
        errln!("{}", status.text().trim_end());
    }
    Ok(Exit::Done.into())
}

/// Writes the entries of a runtime file.
fn load_entries(handle: &SwitchHandle, path: &std::path::Path) -> Result<()> {
    let text = crate::bounded_read::text(path)
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot read {}", path.display()))?;
    let count = load_runtime_file(handle, &text).map_err(|error| miette!("{}: {error}", path.display()))?;
    tracing::info!("{count} entries of {}", path.display());
    Ok(())
}

/// Runs the commands of a file, up to the first that is refused.
fn run_commands(handle: &SwitchHandle, path: &std::path::Path) -> Result<()> {
    let text = crate::bounded_read::text(path)
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot read {}", path.display()))?;
    for (line, number) in text.lines().zip(1..) {
        let outcome = run_command(handle, line);
        if outcome.failed {
            return Err(miette!("{}:{number}: {}", path.display(), outcome.text));
        }
        outcome.text.lines().for_each(|line| tracing::info!("{line}"));
    }
    Ok(())
}

type ServerThread = (
    tokio::sync::oneshot::Sender<()>,
    std::thread::JoinHandle<Result<(), millstream_p4runtime_server::ServerError>>,
);

/// Starts the P4Runtime server.
fn serve(args: &P4RunArgs, address: SocketAddr, handle: &SwitchHandle) -> Result<ServerThread> {
    let listener = listen(address)?;
    let local = listener.local_addr().into_diagnostic()?;
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let (handle, options) = (handle.clone(), ServerOptions { tls: args.tls.files() });
    let thread = std::thread::spawn(move || serve_p4runtime(listener, &handle, &options, stopped));
    errln!("P4Runtime at {local}, device {}", args.device_id);
    Ok((stop, thread))
}

/// Moves packets until Ctrl-C, or the end of all capture files if nothing else keeps the switch running.
fn move_packets(args: &P4RunArgs, mover: &PacketMover) -> Result<()> {
    std::thread::scope(|scope| {
        for (at, _) in args.interface.iter().enumerate().filter(|(_, spec)| spec.is_interface()) {
            scope.spawn(move || mover.serve_interface(at));
        }
        let captures = scope.spawn(|| mover.serve_captures());
        let only_captures = !args.needs_interfaces() && !args.has_controllers();
        let is_done = || os::interrupted() || captures.is_finished() && only_captures;
        while !is_done() {
            std::thread::sleep(Duration::from_millis(20));
        }
        mover.ends.store(true, Ordering::Relaxed);
        captures.join().map_err(|_| miette!("the reader of capture files failed"))?
    })
}

/// Prints the counters of all ports.
fn report(ports: &SwitchPorts, mover: &PacketMover) {
    for port in &ports.all {
        let counters = &port.counters;
        let [received, sent, unsent] =
            [&counters.received, &counters.sent, &counters.unsent].map(|count| count.load(Ordering::Relaxed));
        let missed = port.missed();
        errln!("port {}: {received} received, {missed} missed, {sent} sent, {unsent} not sent", port.number);
    }
    let faults = mover.faults.load(Ordering::Relaxed);
    if faults > 0 {
        errln!("{faults} packets made the program fail");
    }
}
