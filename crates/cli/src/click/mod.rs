//! `millstream click`: a Click configuration as one native program.
//!
//! The configuration is read and compiled by `millstream_click`, run by `millstream_native`; this module maps
//! devices and files to packets, reads and writes handlers, and prints. docs/click.md.

mod control;
mod gates;
mod interfaces;
mod io;
mod live;
mod made;
pub(crate) mod places;
mod report;
mod texts;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Report, Result, Severity, WrapErr, miette};
use millstream_bpf::module::{func, lift_program};
use millstream_built::{fill, handlers, room};
use millstream_click::{
    Access, Capture, Error, Foreign, General, Graph, Handler, Program, Writers, capture_files, compile_for,
    flatten, parse,
};
use millstream_interp::MapKind;
use millstream_ir::Map;
use millstream_native::io::Crew;
use millstream_native::io::attention::Attention;
use millstream_native::io::graph::{Departure, GraphRan, Sources, run_graph_by, run_graph_while};
use millstream_native::io::pipeline::run_graph_pipelined;
use millstream_native::io::timed::{Room, RoomSpec, run_graph_timed};
use millstream_native::{Engine, Options, Prefixes};
use millstream_object::Program as Described;

use self::control::{AtWork, Control};
use self::gates::Gates;
pub(crate) use self::io::{Packets, made, made_up};
use self::texts::Texts;
use crate::capture;
use crate::diagnostics;
use crate::dpdk;
use crate::exit::Exit;
use crate::input;
use crate::native::live::Until;
use crate::native::taken::{self, Kept};
use crate::native::{Tuning, bind, is_llvm_missing, tables};
use crate::privileges::Needs;
use crate::supervise::Watch;

/// Flags of `millstream click`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    configuration: Configuration,
    #[command(flatten)]
    running: Running,
    #[command(flatten)]
    tuning: Tuning,
    /// Print the configuration without compound elements, and stop
    #[arg(long)]
    flat: bool,
    /// Print the program in the IR, and stop
    #[arg(long)]
    ir: bool,
    /// Write LLVM's optimized IR to this file
    #[arg(long, value_name = "FILE")]
    llvm_ir: Option<PathBuf>,
}

impl Args {
    /// Returns true if no packet is run.
    pub(crate) fn only_prints(&self) -> bool {
        self.flat || self.ir
    }

    /// Privileges that the command needs.
    pub(crate) fn needs(&self) -> Needs {
        if self.only_prints() { Needs::Files } else { self.running.needs() }
    }
}

impl Running {
    /// Privileges that the packets need.
    pub(crate) fn needs(&self) -> Needs {
        Needs::of_io(self.io.iter().map(String::as_str))
    }
}

/// A configuration.
#[derive(Debug, clap::Args)]
pub(crate) struct Configuration {
    /// The configuration
    #[arg(value_name = "CONF")]
    pub(crate) conf: PathBuf,
    /// Variables that win over its `define`
    #[arg(value_name = "NAME=VALUE")]
    variables: Vec<String>,
}

impl Configuration {
    /// Reads the configuration, and compiles it to the IR for so many workers.
    pub(crate) fn program(&self, workers: u32, made: (Writers, General)) -> Result<Program> {
        front(&self.conf, &self.variables, workers, made)
    }
}

/// Options for running a configuration, whenever it was compiled.
#[derive(Debug, clap::Args)]
pub(crate) struct Running {
    /// Source and sink of devices' packets: `mem` (random flows; sent packets are counted), or
    /// `pcap:IN[,OUT]`; `DEVICE=pcap:IN[,OUT]` for one device; may be given several times. Until --packets or
    /// Ctrl-C: `raw` (raw sockets), `tap` (TAP interfaces, created for the run) or `xdp` (AF_XDP) where
    /// devices are named after their interfaces, `raw:INTERFACE[,INTERFACE...]` for all devices in order,
    /// `DEVICE=raw:INTERFACE` for one; in builds with DPDK `DEVICE=dpdk:DEVICE` each, or
    /// `dpdk:DEVICE[;DEVICE...]` for all in order
    #[arg(long, value_name = "SPEC", default_value = "mem")]
    io: Vec<String>,
    /// Print a handler after the run: ELEMENT.HANDLER; may be given several times
    #[arg(long = "handler", value_name = "ELEMENT.HANDLER")]
    handlers: Vec<String>,
    /// Fill map NAME (of an element `BPF`: ELEMENT.MAP) from FILE, as `bpftool -j map dump` writes it; may be
    /// given several times
    #[arg(long = "map", value_name = "NAME=FILE")]
    maps: Vec<String>,
    /// Listen at this Unix socket, as Click's ControlSocket does: READ and WRITE handlers, SWAP the
    /// configuration for another
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Serve Prometheus metrics at this address while it runs, at /metrics
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    /// Let the time between packets pass when elements of time replay packets from memory and files. By
    /// default, time jumps to the next event
    #[arg(long)]
    real_time: bool,
    /// Packets per device; default: 10,000,000 from memory, all of a file. In all for interfaces; default: no
    /// limit
    #[arg(long, value_name = "N")]
    packets: Option<u64>,
    #[command(flatten)]
    taking: taken::Taking,
    #[command(flatten)]
    dpdk: dpdk::Flags,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) watch: Watch,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(code) = args.running.watch.begin()? {
        return Ok(code);
    }
    let Configuration { conf, variables } = &args.configuration;
    let at = || conf.display().to_string();
    if args.flat {
        let texts = Texts::read(conf)?;
        out!("{}", graph(&texts, variables)?);
        return Ok(Exit::Done.into());
    }
    let start = Instant::now();
    let writers = if args.running.control.is_some() { Writers::Anybody } else { Writers::Scripts };
    let workers = args.tuning.workers()?;
    let general = of_time(args.tuning.general());
    let program = args.configuration.program(workers, (writers, general))?;
    let click = start.elapsed();
    if args.ir {
        out!("{}", program.module);
        return Ok(Exit::Done.into());
    }
    let (keep_text, places) = (args.llvm_ir.is_some(), places(&program));
    let prefixes = prefixes(&program);
    let copies = program.copies;
    let options = Options { keep_text, places, prefixes, workers, copies, ..args.tuning.options() };
    let mut engine = match Engine::of_module(program.module.clone(), program.entry, &options) {
        Ok(engine) => engine,
        Err(e) if is_llvm_missing(&e) => {
            errln!("{e}");
            return Ok(Exit::NotPermitted.into());
        }
        Err(e) => return Err(e).into_diagnostic().wrap_err_with(at),
    };
    if let (Some(path), Some(texts)) = (&args.llvm_ir, &engine.texts) {
        std::fs::write(path, &texts.after).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
    }
    fill(&mut engine, &program.entries).into_diagnostic()?;
    let made = Made { front: click, options, general };
    execute(&at(), &args.running, program, &mut engine, Some(made))
}

/// With a clock, except for stages, between which packets do not wait.
pub(crate) fn of_time(general: General) -> General {
    General { time: !general.stages, ..general }
}

/// Reads a configuration and compiles it to the IR for so many workers, with handlers that `Writers` may
/// write, and without the optimizations that `General` leaves out.
pub(crate) fn front(
    conf: &Path,
    variables: &[String],
    workers: u32,
    (writers, general): (Writers, General),
) -> Result<Program> {
    let texts = Texts::read(conf)?;
    let mut graph = graph(&texts, variables)?;
    graph.interfaces = interfaces::of(&graph);
    graph.captures = captures(&graph);
    let mut program =
        compile_for(&graph, &foreign, writers, general).map_err(|all| rendered(&all, &texts))?;
    let config = Access::Text(texts.whole.clone());
    program.handlers.push(Handler { element: String::new(), name: "config".into(), access: config });
    for element in &mut program.elements {
        element.name = format!("{}, {}", element.name, texts.place(element.span));
    }
    for warning in &program.warnings {
        diagnostics::emit(&texts.report(warning, Severity::Warning));
    }
    if general.stages && program.stages < workers {
        let conf = conf.display();
        return Err(match program.stages {
            1 => {
                miette!("{conf}: no packet comes to a queue that one puller has: there is nothing behind one")
            }
            stages => miette!(
                "{conf}: no packet comes to more than {} queues that one puller has each: --pipeline={stages} at most",
                stages - 1
            ),
        });
    }
    match workers {
        1 => Ok(program),
        _ => program.for_workers().map_err(|all| rendered(&all, &texts)),
    }
}

/// Link types of the capture files that packets come from. A missing file is an error when it is read.
fn captures(graph: &Graph) -> Vec<Capture> {
    let link = |name: String| Some(Capture { link: capture::link(Path::new(&name))?, name });
    capture_files(graph).into_iter().filter_map(link).collect()
}

/// Prefixes in tables of routes.
pub(crate) fn prefixes(program: &Program) -> Vec<(String, Prefixes)> {
    const LPM_TRIE: u32 = MapKind::LpmTrie as u32;
    let tries = program.module.maps.values().filter(|map| map.kind == LPM_TRIE);
    let held = |name: &str| {
        let keys = program.entries.iter().filter(|entry| entry.map == name).map(|entry| &*entry.key);
        Prefixes::of(keys)
    };
    let known = tries.filter(|map| program.entries.iter().any(|entry| entry.map == map.name));
    known.map(|map| (map.name.clone(), held(&map.name))).collect()
}

/// Names of elements, to which the source lines of a program's instructions refer.
pub(crate) fn places(program: &Program) -> Vec<String> {
    program.elements.iter().map(|element| element.name.clone()).collect()
}

/// Reads a program for an element, by its name or that of its section.
fn foreign(file: &str, wanted: Option<&str>) -> Result<Foreign, String> {
    let object = input::read(Path::new(file)).map_err(|e| e.to_string())?;
    let fits = |p: &&Described| wanted.is_none_or(|name| p.name == name || p.section == name);
    let mut all = object.programs.iter().filter(fits);
    let names = || object.programs.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
    let program = match (all.next(), all.next()) {
        (Some(program), None) => program,
        (None, _) => return Err(format!("there is no such program; there are: {}", names())),
        (Some(_), Some(_)) => return Err(format!("there are several programs, name one: {}", names())),
    };
    let lifted = lift_program(&object, func(program.func)).map_err(|e| e.to_string())?;
    let mut contents = Vec::new();
    for (at, declared) in object.maps.iter().enumerate() {
        if !declared.initial.is_empty() {
            return Err(format!("map `{}` holds maps or programs at first", declared.name));
        }
        let data = declared.data.iter().map(|data| (Map::from_u32(at as u32), vec![0; 4], data.clone()));
        contents.extend(data);
    }
    Ok(Foreign { module: lifted.module, program: func(program.func), contents })
}

fn graph(texts: &Texts, variables: &[String]) -> Result<Graph> {
    let variables: Vec<(String, String)> = variables
        .iter()
        .filter_map(|v| v.split_once('='))
        .map(|(name, value)| (name.trim_start_matches('$').to_owned(), value.to_owned()))
        .collect();
    let graph = parse(&texts.whole).and_then(|statements| flatten(&statements, &variables));
    graph.map_err(|e| rendered(&[e], texts))
}

/// Reports all errors; the last one is the result.
fn rendered(errors: &[Error], texts: &Texts) -> Report {
    let mut reports: Vec<Report> = errors.iter().map(|e| texts.report(e, Severity::Error)).collect();
    let last = reports.pop();
    for report in reports {
        diagnostics::emit(&report);
    }
    last.unwrap_or_else(|| miette!("the configuration is wrong"))
}

/// Record of the compilation.
pub(crate) struct Made {
    /// Time of the front end.
    front: Duration,
    options: Options,
    general: General,
}

/// Opens `--control` and `--metrics`.
fn listening(args: &Running, engine: &Engine, made: Option<(Options, General)>) -> Result<Option<Control>> {
    let metrics = crate::metrics::listen(args.metrics).map_err(|error| miette!("{error}"))?;
    match (&args.control, metrics) {
        (None, None) => Ok(None),
        (path, metrics) => Control::open(path.as_deref(), metrics, engine, made).map(Some),
    }
}

/// Largest batch: each packet may be copied.
const MOST_BATCH: u32 = 1024;

/// Checks that a configuration may get so many packets at once.
pub(crate) fn of_batch(batch: u32) -> Result<()> {
    match batch {
        ..=MOST_BATCH => Ok(()),
        _ => Err(miette!("batch={batch}: configurations take at most {MOST_BATCH} packets at once")),
    }
}

/// Values of handlers, by name.
fn values(
    names: &[String],
    program: &Program,
    engine: &mut Engine,
) -> Result<Vec<(String, String)>, handlers::Error> {
    names.iter().map(|name| Ok((name.clone(), handlers::read(program, engine, name)?))).collect()
}

/// Queues for the packets that wait for elements of time. Returns the exit code if they are not supported.
fn room_of(name: &str, program: &Program, engine: &mut Engine, by_dpdk: bool) -> Result<Room, ExitCode> {
    let room = Room::new(&room::spec(program, engine));
    if by_dpdk && !room.is_empty() {
        errln!(
            "{name}: packets wait for elements of time, which by DPDK they do not: use --io raw, tap or xdp"
        );
        return Err(Exit::NotPermitted.into());
    }
    Ok(room)
}

/// Prepares an engine for graphs, and fills its maps.
fn prepared(args: &Running, engine: &mut Engine) -> Result<()> {
    of_batch(engine.batch())?;
    args.maps.iter().try_for_each(|spec| tables::load(engine, spec))
}

/// Buffers that programs work in.
fn kept(taking: &taken::Taking, by_dpdk: bool, live: bool) -> Result<Kept> {
    match (by_dpdk, live) {
        (true, _) => taking.of_dpdk(),
        (false, true) => Ok(Kept::Copy),
        (false, false) => taking.of_copies("mem or pcap:...").map(|()| Kept::Copy),
    }
}

/// Runs a program on packets, and prints the result. `made` describes the compilation, unless that was ahead
/// of time.
pub(crate) fn execute(
    name: &str,
    args: &Running,
    program: Program,
    engine: &mut Engine,
    made: Option<Made>,
) -> Result<ExitCode> {
    let (click, options) = made.map(|made| (made.front, (made.options, made.general))).unzip();
    prepared(args, engine)?;
    let mut ports = match dpdk::of_graph(&args.dpdk, &args.io, &program, engine.workers())? {
        Ok(ports) => ports,
        Err(code) => return Ok(code),
    };
    let gates = Gates::new(&program, args.packets);
    let interfaces = match live::of_graph(args, &program, engine, &gates)? {
        Ok(interfaces) => interfaces,
        Err(code) => return Ok(code),
    };
    let mut room = match room_of(name, &program, engine, ports.is_some()) {
        Ok(room) => room,
        Err(code) => return Ok(code),
    };
    let replayed =
        ports.is_none() && interfaces.is_none() && engine.workers() == 1 && program.waits.is_timed();
    let kept = kept(&args.taking, ports.is_some(), interfaces.is_some())?;
    let packets = packets_of(args, &program, &gates, ports.as_ref(), interfaces.as_ref())?;
    let sinks = match interfaces {
        Some(_) => io::Sinks::none(),
        None => io::Sinks::open(&packets, &program)?,
    };
    let feeds: Vec<_> = packets.iter().map(io::Packets::feed).collect();
    let streams: Vec<_> = packets.iter().map(io::Packets::origin).collect();
    let (batch, size) = (engine.batch(), engine.batch() as usize);
    let control = listening(args, engine, options)?;
    let pulls = room::pulls(&program);
    let (stages, outputs) = (program.stages > 1, program.targets.len());
    let mut at_work = AtWork::new(program, engine, args.json, args.watch.crashed()).into_diagnostic()?;
    let take = |p: Departure<'_>| sinks.take(&p);
    let scripted = at_work.has_scripts();
    let attention = Attention::new(packets.len(), if stages { 1 } else { engine.workers() }, scripted);
    // A script that cannot print ends the run.
    let mut failed = None;
    let mut serve = |engine: &mut Engine, room: &mut Room| {
        room::tell(&at_work.program, engine, room);
        let on = if scripted { at_work.scripts(engine, &attention, !replayed) } else { Ok(true) };
        room.set_alarm(at_work.due());
        let on = on.unwrap_or_else(|e| {
            failed = Some(e);
            false
        });
        let on = on && control.as_ref().is_none_or(|c| c.serve(&mut at_work, engine, room));
        gates.renew(&at_work.program, engine);
        room::renew(&at_work.program, engine, room);
        on
    };
    // Scripts begin before any packet comes: by the clock of replays, where these have one.
    let begun = replayed || serve(engine, &mut room);
    let is_asked = scripted || control.is_some();
    let (mut none, real) = (Room::new(&RoomSpec::default()), args.real_time);
    let untimed = |engine: &mut Engine| serve(engine, &mut none);
    let asked = |serve| is_asked.then_some(serve);
    let (mut lost, mut taken) = (None, None);
    let watched = scripted.then_some(&attention);
    let sources =
        Sources { feeds: &feeds, gates: gates.all(), streams: &streams, attention: watched, pulls: &pulls };
    let ran = match (engine.workers(), &mut ports, interfaces) {
        _ if !begun => Ok(GraphRan::none(feeds.len(), outputs)),
        (_, Some(ports), _) => {
            let until = Until::begin(args.packets, None);
            let ran = ports.run_graph(engine, (batch, kept), &until, asked(untimed));
            lost = Some(ports.lost());
            ran
        }
        (_, None, Some(interfaces)) => {
            taken = interfaces.taken();
            let asked = is_asked.then_some(serve);
            let (ran, before) = interfaces.run(engine, batch, args.packets, &mut room, asked)?;
            lost = Some(before);
            Ok(ran)
        }
        _ if stages => {
            let crew = Crew { enter: &bind };
            run_graph_pipelined(engine, sources, outputs, size, &crew, &take, asked(untimed))
        }
        _ if replayed => {
            let tables = io::timetables(&packets);
            let take = |p: Departure<'_>, time: u64| sinks.take_at(&p, time);
            let serve = |engine: &mut Engine, room: &mut Room| !is_asked || serve(engine, room);
            run_graph_timed(engine, (sources, &tables), &mut room, (outputs, size), real, take, serve)
        }
        (1, None, None) => run_graph_while(engine, sources, outputs, size, take, untimed),
        _ => run_graph_by(engine, sources, outputs, size, &Crew { enter: &bind }, &take, asked(untimed)),
    };
    let ran = ran.into_diagnostic()?;
    at_work.finish(engine).into_diagnostic()?;
    failed.map_or(Ok(()), Err).into_diagnostic()?;
    room::tell(&at_work.program, engine, &mut room);
    sinks.finish()?;
    let read = values(&args.handlers, &at_work.program, engine).into_diagnostic()?;
    let state = handlers::state(engine);
    let document =
        report::Document::new(name, &at_work, &packets, engine, (&ran, lost, taken), &state, click, read);
    printed(&document, args.json)
}

/// The packets of a run: of DPDK ports, of interfaces, or of memory and files.
fn packets_of(
    args: &Running,
    program: &Program,
    gates: &Gates,
    ports: Option<&dpdk::Ports>,
    interfaces: Option<&live::Ports>,
) -> Result<Vec<io::Packets>> {
    match (ports, interfaces) {
        (Some(ports), _) => Ok(io::of_ports(ports.descriptions())),
        (None, Some(interfaces)) => Ok(interfaces.packets()),
        (None, None) => io::open(&args.io, program, args.packets, gates),
    }
}

/// Prints the result of a run.
fn printed(document: &report::Document, json: bool) -> Result<ExitCode> {
    match json {
        true => outln!("{}", serde_json::to_string_pretty(document).into_diagnostic()?),
        false => out!("{}", document.text()),
    }
    Ok(Exit::Done.into())
}
