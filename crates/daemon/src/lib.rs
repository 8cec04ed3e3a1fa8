//! Commands that run sessions of run-time specialization: `millstream run` for one program, and
//! `millstream daemon` for many programs on many interfaces, in the background, controlled over a socket.
//!
//! Each program of a daemon has a thread of its own (`worker`) with a session like that of [`mod@run`]; its status
//! and its orders are in its `slot`. `socket` serves the [`protocol`], whose other side is [`client`];
//! `metrics` are for Prometheus, `telemetry` is for a collector of OpenTelemetry, and `page` is for a browser. A
//! program that fails is tried again and disturbs no other.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr, clippy::dbg_macro))]

#[macro_use]
extern crate millstream_console;

pub mod client;
mod config;
mod histograms;
mod metrics;
mod notify;
mod page;
mod program_object;
pub mod protocol;
pub mod run;
mod slot;
mod socket;
mod telemetry;
pub mod top;
mod worker;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use miette::miette;
use millstream_console::{bounded_read, duration_args, exit, input, internal, output, renamed, wrap, xdp};
use millstream_lab::os;
use millstream_service::listening_socket::{ListeningSocket, SocketError};
use millstream_service::metrics as metrics_server;
use millstream_service::page::PageToken;
use millstream_specialize::variant_compiler;

use crate::exit::Exit;
use config::{ConfigError, DaemonConfig, ProgramConfig};
use protocol::{DaemonCommand, DaemonStatus, HistoryRecord, ReplyBody};
use slot::{ManagedProgram, WorkerCommand};

/// Default path of a daemon's socket.
pub(crate) const SOCKET: &str = "/run/millstream/daemon.sock";
/// Default number of records in a history.
const LAST: usize = 50;
/// Records that wait for telemetry at most; more are lost to it.
const RECORDS: usize = 10_000;
/// Interval between two checks for signals.
const TICK: Duration = Duration::from_millis(100);

/// Flags of `millstream daemon`.
#[derive(Debug, clap::Args)]
pub struct DaemonArgs {
    /// Configuration, a TOML file; SIGHUP makes the daemon read it again
    #[arg(long, value_name = "FILE", required_unless_present = "program")]
    config: Option<PathBuf>,
    /// Program without a configuration, or in addition to it: an object file and its interfaces
    #[arg(long, value_name = "IFACE[+IFACE]=OBJECT")]
    program: Vec<String>,
    /// Listen at this socket; default: the configuration's, or /run/millstream/daemon.sock
    #[arg(long, value_name = "PATH", env = "MILLSTREAM_SOCKET")]
    socket: Option<PathBuf>,
    /// Serve Prometheus metrics at this address, at /metrics
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    /// Serve a page for a browser on this machine at this address, which shows programs, lookups and
    /// generations live; the address to open is printed
    #[arg(long, value_name = "ADDR:PORT")]
    web: Option<SocketAddr>,
    /// Token of the page: the first word of this file, which only its owner may read; default: a new one at
    /// each start
    #[arg(long, value_name = "FILE")]
    web_token: Option<PathBuf>,
    #[command(flatten)]
    telemetry: telemetry::TelemetryArgs,
    /// Check that configuration and objects can be used, and end
    #[arg(long)]
    check: bool,
}

/// Runs the command.
pub fn run(args: &DaemonArgs) -> Result<ExitCode, miette::Report> {
    let sources = ConfigSources { file: args.config.clone(), flags: args.program.clone() };
    let config = sources.read().map_err(|e| miette!(help = e.help.clone(), "{e}"))?;
    let collector = args.telemetry.endpoint(config.otlp.as_deref()).map_err(|error| {
        miette!(help = "--otlp, or the key `otlp`, is the base URL of an OpenTelemetry collector", "{error}")
    })?;
    if args.check {
        return check(&config);
    }
    let path = args.socket.clone().or_else(|| config.socket.clone()).unwrap_or_else(|| SOCKET.into());
    let socket = match ListeningSocket::bind(&path) {
        Ok(socket) => socket,
        Err(error) => return Ok(without_socket(&error).into()),
    };
    let address = args.metrics.or(config.metrics);
    let metrics = match metrics_server::listen(address) {
        Ok(listener) => listener,
        Err(error) => {
            errln!("{error}");
            return Ok(Exit::Negative.into());
        }
    };
    let web = match args.web.or(config.web) {
        Some(address) => match web_page(address, args.web_token.as_deref()) {
            Ok(web) => Some(web),
            Err(error) => {
                errln!("{error}");
                return Ok(Exit::Negative.into());
            }
        },
        None if args.web_token.is_some() => {
            return Err(miette!(
                help = "give --web an address, too",
                "--web-token is for a page, and there is none"
            ));
        }
        None => None,
    };
    os::catch_interrupts();
    os::catch_hangups();
    let telemetry = collector.map(|endpoint| (endpoint, sync_channel(RECORDS)));
    let records = telemetry.as_ref().map(|(_, (sender, _))| sender.clone());
    let daemon = Arc::new(Daemon::new(sources, records));
    daemon.take_up(config.entries);
    serve(&daemon, &socket, metrics)?;
    outln!("millstream {}: listening at {}", env!("CARGO_PKG_VERSION"), path.display());
    if let Some((listener, token)) = web {
        if let Ok(address) = listener.local_addr() {
            outln!("page: http://{address}/#{token}");
        }
        page::start(listener, token, Arc::clone(&daemon));
    }
    let exporter = telemetry.and_then(|(endpoint, (_, records))| {
        let started = telemetry::start(endpoint, Arc::clone(&daemon), records);
        started.inspect_err(|error| tracing::error!("telemetry: {error}")).ok()
    });
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %path.display(), "listening");
    notify::sd_notify("READY=1");
    daemon.until_the_end();
    if let Some(exporter) = exporter {
        exporter.end();
    }
    Ok(Exit::Done.into())
}

/// Listens for viewers of the page; or returns the error and advice.
fn web_page(address: SocketAddr, token: Option<&Path>) -> Result<(TcpListener, PageToken), String> {
    let token = match token {
        Some(path) => PageToken::read(path).map_err(|error| format!("{}: {error}", path.display()))?,
        None => PageToken::random().map_err(|error| format!("no token for the page: {error}"))?,
    };
    Ok((millstream_service::page::listen(address)?, token))
}

/// Starts the servers, in threads that end with the process.
fn serve(
    daemon: &Arc<Daemon>,
    socket: &ListeningSocket,
    metrics: Option<TcpListener>,
) -> Result<(), miette::Report> {
    let listener = socket.listener.try_clone().map_err(|e| miette!("the socket: {e}"))?;
    let answering = Arc::clone(daemon);
    std::thread::spawn(move || socket::serve(&listener, &answering));
    if let Some(listener) = metrics {
        let answering = Arc::clone(daemon);
        std::thread::spawn(move || {
            let text = Arc::new(move || metrics::text(&answering));
            if let Err(error) = metrics_server::serve(listener, text) {
                tracing::warn!("metrics: {error}");
            }
        });
    }
    Ok(())
}

fn without_socket(error: &SocketError) -> Exit {
    errln!("{error}");
    let (advice, exit) = match error {
        SocketError::Busy { .. } => (
            "`millstream status` asks it, `millstream stop` ends it; --socket takes another path",
            Exit::Negative,
        ),
        SocketError::Other { .. } => ("--socket takes another path", Exit::Input),
        SocketError::Exposed { .. } => (
            "give --socket a path in a directory that only you, or root, may write to, such as /run/millstream",
            Exit::NotPermitted,
        ),
        SocketError::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            ("run as root, or give --socket a path that may be written", Exit::NotPermitted)
        }
        SocketError::Io { .. } => ("--socket takes another path", Exit::Input),
    };
    errln!("  {advice}");
    exit
}

/// Reports for each program if it can be used.
fn check(config: &DaemonConfig) -> Result<ExitCode, miette::Report> {
    let mut exit = Exit::Done;
    for entry in &config.entries {
        match usable(entry) {
            Ok(sites) => outln!("{}: {} can be used: {sites} lookups", entry.name, entry.object.display()),
            Err(error) => {
                errln!("{}: {error:?}", entry.name);
                exit = Exit::Input;
            }
        }
    }
    Ok(exit.into())
}

/// Reads an entry's object; returns the number of lookups in its program.
fn usable(entry: &ProgramConfig) -> Result<usize, miette::Report> {
    let object = program_object::read(&entry.object, &entry.bundles)?.object;
    entry.check_object(&object).map_err(|e| miette!(help = e.help.clone(), "{e}"))?;
    let compiler = variant_compiler(&object, entry.program.as_deref())
        .map_err(|e| miette!(help = "name one by `program`", "{}: {e}", entry.object.display()))?;
    Ok(compiler.sites().len())
}

/// Sources of the configuration, for each time that it is read.
#[derive(Clone, Debug)]
struct ConfigSources {
    file: Option<PathBuf>,
    flags: Vec<String>,
}

impl ConfigSources {
    fn read(&self) -> Result<DaemonConfig, ConfigError> {
        config::read(self.file.as_deref(), &self.flags)
    }
}

/// The programs, and the state of the daemon as a whole.
#[derive(Debug)]
struct Daemon {
    start: Instant,
    sources: ConfigSources,
    /// Takes the records of all programs, for telemetry.
    records: Option<SyncSender<HistoryRecord>>,
    running: Mutex<Vec<ProgramThread>>,
    /// True if the daemon was told to end, and has given everything back.
    ending: AtomicBool,
    /// True if the client that told it to end has got the answer.
    stop: AtomicBool,
}

/// A program and its thread.
#[derive(Debug)]
struct ProgramThread {
    slot: Arc<ManagedProgram>,
    thread: JoinHandle<()>,
}

impl ProgramThread {
    /// Starts a program's thread.
    fn start(
        entry: ProgramConfig,
        records: Option<SyncSender<HistoryRecord>>,
    ) -> std::io::Result<ProgramThread> {
        let (slot, orders) = ManagedProgram::new(entry, records);
        let slot = Arc::new(slot);
        let working = Arc::clone(&slot);
        // The kernel shows only 15 bytes of the name.
        let name = format!("ms-{}", slot.entry.name);
        let thread = std::thread::Builder::new().name(name).spawn(move || worker::work(&working, &orders))?;
        Ok(ProgramThread { slot, thread })
    }

    /// Ends the program, and waits until it has given its interfaces back.
    fn end(self) {
        match self.slot.order(WorkerCommand::End) {
            Ok(()) => drop(self.thread.join()),
            // Its attachments are pinned and guarded; the next daemon takes them over.
            Err(why) => tracing::error!(program = self.slot.entry.name, "it does not end: {why}"),
        }
    }
}

impl Daemon {
    fn new(sources: ConfigSources, records: Option<SyncSender<HistoryRecord>>) -> Daemon {
        let (ending, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        Daemon { start: Instant::now(), sources, records, running: Mutex::default(), ending, stop }
    }

    fn running(&self) -> MutexGuard<'_, Vec<ProgramThread>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The programs.
    fn slots(&self) -> Vec<Arc<ManagedProgram>> {
        self.running().iter().map(|r| Arc::clone(&r.slot)).collect()
    }

    /// Replaces the programs: ends those that are gone, and leaves unchanged ones undisturbed. Returns the
    /// names of those that were started or ended.
    fn take_up(&self, entries: Vec<ProgramConfig>) -> Vec<String> {
        let mut running = self.running();
        let (stay, end): (Vec<_>, Vec<_>) = running.drain(..).partition(|r| entries.contains(&r.slot.entry));
        let mut changed: Vec<String> = end.iter().map(|r| r.slot.entry.name.clone()).collect();
        end.into_iter().for_each(ProgramThread::end);
        *running = stay;
        for entry in entries {
            if running.iter().any(|r| r.slot.entry == entry) {
                continue;
            }
            changed.push(entry.name.clone());
            match ProgramThread::start(entry, self.records.clone()) {
                Ok(new) => running.push(new),
                Err(error) => tracing::error!("starting a thread: {error}"),
            }
        }
        changed.sort_unstable();
        changed.dedup();
        changed
    }

    /// Reads the configuration again. If it cannot be used, nothing changes.
    fn reload(&self) -> ReplyBody {
        match self.sources.read() {
            Ok(config) => ReplyBody::Done { programs: self.take_up(config.entries) },
            Err(error) => {
                let message = format!("{error}; all stays as it was");
                tracing::error!("{message}");
                ReplyBody::Refused { message, help: Some(error.help) }
            }
        }
    }

    /// Handles signals until one of them, or an order, ends the daemon; then gives everything back.
    fn until_the_end(&self) {
        while !os::interrupted() && !self.stop.load(Ordering::SeqCst) {
            std::thread::sleep(TICK);
            if os::take_hangup() {
                self.reload();
            }
        }
        notify::sd_notify("STOPPING=1");
        self.take_up(Vec::new());
    }

    fn status(&self) -> DaemonStatus {
        let (cpu_s, rss_bytes) = usage();
        DaemonStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.start.elapsed().as_secs_f64(),
            cpu_s,
            rss_bytes,
            programs: self.slots().iter().map(|s| s.status()).collect(),
        }
    }

    fn answer(&self, command: DaemonCommand) -> ReplyBody {
        match command {
            DaemonCommand::Status => ReplyBody::Status(self.status()),
            DaemonCommand::Details { program } => {
                self.look(&program, |slot| slot.details().map(|details| ReplyBody::Details { details }))
            }
            DaemonCommand::Code { program } => {
                self.look(&program, |slot| slot.code().map(|code| ReplyBody::Code { code }))
            }
            DaemonCommand::History { program, last } => {
                self.history(program.as_deref(), last.unwrap_or(LAST))
            }
            DaemonCommand::Pause { program } => self.order(program.as_deref(), WorkerCommand::Pause),
            DaemonCommand::Rollback { program } => self.order(program.as_deref(), WorkerCommand::RollBack),
            DaemonCommand::Resume { program } => self.order(program.as_deref(), WorkerCommand::Resume),
            DaemonCommand::Stop { program: None } => {
                let programs = self.slots().iter().map(|s| s.entry.name.clone()).collect();
                // Done now, so that the answer comes afterwards.
                self.take_up(Vec::new());
                self.ending.store(true, Ordering::SeqCst);
                ReplyBody::Done { programs }
            }
            DaemonCommand::Stop { program } => self.order(program.as_deref(), WorkerCommand::Stop),
            DaemonCommand::Reload => self.reload(),
        }
    }

    /// Notes that an answer has been sent.
    fn answered(&self) {
        if self.ending.load(Ordering::SeqCst) {
            self.stop.store(true, Ordering::SeqCst);
        }
    }

    /// The programs of this name, or all.
    fn named(&self, name: Option<&str>) -> Result<Vec<Arc<ManagedProgram>>, ReplyBody> {
        let slots = self.slots();
        let Some(name) = name else { return Ok(slots) };
        let names: Vec<&str> = slots.iter().map(|s| s.entry.name.as_str()).collect();
        let help = Some(format!("there are: {}", names.join(", ")));
        let found: Vec<_> = slots.iter().filter(|s| s.entry.name == name).cloned().collect();
        if found.is_empty() {
            return Err(ReplyBody::Refused { message: format!("there is no program {name:?}"), help });
        }
        Ok(found)
    }

    fn order(&self, name: Option<&str>, order: WorkerCommand) -> ReplyBody {
        let slots = match self.named(name) {
            Ok(slots) => slots,
            Err(refused) => return refused,
        };
        // All of them, and concurrently: a slow one does not keep the others waiting.
        let outcomes: Vec<Result<String, String>> = std::thread::scope(|scope| {
            let each = |slot: &Arc<ManagedProgram>| {
                let slot = Arc::clone(slot);
                scope.spawn(move || match slot.order(order) {
                    Ok(()) => Ok(slot.entry.name.clone()),
                    Err(why) => Err(format!("{}: {why}", slot.entry.name)),
                })
            };
            let threads: Vec<_> = slots.iter().map(each).collect();
            let joined = threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("it failed".into())));
            joined.collect()
        });
        let failed: Vec<String> = outcomes.iter().filter_map(|o| o.clone().err()).collect();
        if failed.is_empty() {
            return ReplyBody::Done { programs: outcomes.into_iter().flatten().collect() };
        }
        let help = Some("`millstream status` says how each stands".to_owned());
        ReplyBody::Refused { message: failed.join("; "), help }
    }

    /// Looks at the program of this name.
    fn look(&self, name: &str, look: impl FnOnce(&ManagedProgram) -> Result<ReplyBody, String>) -> ReplyBody {
        let slots = match self.named(Some(name)) {
            Ok(slots) => slots,
            Err(refused) => return refused,
        };
        let found = slots.first().map_or(Err("it has gone".to_owned()), |slot| look(slot));
        found.unwrap_or_else(|message| ReplyBody::Refused { message, help: None })
    }

    fn history(&self, name: Option<&str>, last: usize) -> ReplyBody {
        match self.named(name) {
            Err(refused) => refused,
            Ok(slots) => {
                let mut records: Vec<_> = slots.iter().flat_map(|s| s.history()).collect();
                records.sort_unstable_by_key(|r| r.number);
                let records = records.split_off(records.len().saturating_sub(last));
                ReplyBody::History { records }
            }
        }
    }
}

/// Processor time of this process in seconds, and its resident memory in bytes.
fn usage() -> (f64, u64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name may hold anything, so count from its closing bracket: fields 14 and 15 are in ticks of 10 ms.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    ((ticks(11) + ticks(12)) as f64 / 100.0, pages * rustix::param::page_size() as u64)
}
