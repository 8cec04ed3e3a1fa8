//! `millstream click`: a Click configuration as one native program.
//!
//! The configuration is read and compiled by `millstream_click`, run by `millstream_native`; this module maps
//! devices and files to packets, reads and writes handlers, and prints. docs/click.md.

mod card_addresses;
mod config_input;
mod control;
pub(crate) mod device_ports;
mod driver;
mod gates;
mod interfaces;
mod io;
mod live;
mod report;
mod run_graph;
mod source_map;
mod summary;
mod synthetic_source;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_bpf::module::{func, lift_program};
use millstream_built::{fill, handlers, queueing};
use millstream_click::{
    Ablations, BpfElementProgram, CaptureInfo, ClickProgram, Graph, GraphSource, Handler, HandlerAccess,
    HandlerWriters, flatten, parse, with_alignment, without_dead_elements,
};
use millstream_click_elements::{capture_files, compile_for};
use millstream_console::adapt_args::AdaptArgs;
use millstream_ir::Map;
use millstream_isa::MapType;
use millstream_native::{NativeEngine, NativeOptions, PrefixStats, ProgramFacts, VariantSupport};
use millstream_native_io::graph::GraphSources;
use millstream_native_io::idle_sources::IdleSources;
use millstream_native_io::timed::TimedQueues;
use millstream_object::EntryProgram as Described;
use millstream_plan::fingerprint;

pub use self::config_input::{ClickConfigArgs, ConfigSource};
use self::control::{ActiveConfiguration, HandlerSocket, SwapOptions};
use self::driver::{ControlPort, DriverArgs, FlatArgs, RunClock};
use self::gates::SourceGates;
pub use self::io::{SourcePackets, random_frames, source_packets};
use self::run_graph::{RunGraph, RunPace, RunResult};
use self::source_map::SourceMap;
use crate::adapt::variant_support;
use crate::exit::Exit;
use crate::native::port_options::{self, MetadataMode};
use crate::native::{CodegenArgs, is_llvm_missing, tables};
use crate::plan::PlanArgs;
use crate::privileges::RequiredPrivileges;
use crate::supervise::SuperviseArgs;
use crate::{capture, dpdk, input, output};

/// Flags of `millstream click`.
#[derive(Debug, clap::Args)]
pub struct ClickArgs {
    #[command(flatten)]
    configuration: ClickConfigArgs,
    #[command(flatten)]
    running: ClickRunArgs,
    #[command(flatten)]
    tuning: CodegenArgs,
    #[command(flatten)]
    plan: PlanArgs,
    #[command(flatten)]
    adapt: AdaptArgs,
    #[command(flatten)]
    flat: FlatArgs,
    /// Print the program in the IR, and stop
    #[arg(long)]
    ir: bool,
    /// Write LLVM's optimized IR to this file
    #[arg(long, value_name = "FILE")]
    llvm_ir: Option<PathBuf>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl ClickArgs {
    /// Returns true if no packet is run.
    pub fn only_prints(&self) -> bool {
        self.flat.flat || self.ir || self.running.driver.quit
    }

    /// Privileges that the command needs.
    pub fn needs(&self) -> RequiredPrivileges {
        if self.only_prints() { RequiredPrivileges::Files } else { self.running.needs() }
    }
}

impl ClickRunArgs {
    /// Privileges that the packets need.
    pub(crate) fn needs(&self) -> RequiredPrivileges {
        RequiredPrivileges::of_io(self.io(None).iter().map(String::as_str))
    }

    /// Sources and sinks of devices' packets; Click's driver uses interfaces if the program has devices.
    fn io(&self, program: Option<&ClickProgram>) -> Vec<String> {
        let has_devices = program.is_none_or(|program| !device_ports::devices(program).is_empty());
        match (self.io.is_empty(), self.driver.driver && has_devices) {
            (true, true) => vec!["raw".to_owned()],
            (true, false) => vec!["mem".to_owned()],
            (false, _) => self.io.clone(),
        }
    }

    /// Clock of a run; packets of interfaces and those of several workers are not replayed.
    fn pace(&self, program: &ClickProgram, is_live: bool) -> RunPace {
        let replayed = !is_live && (program.waits.is_timed() || self.driver.simtime);
        // Click's driver waits, unless it simulates. Captures have their own times, for which it does not
        // wait.
        let waits = self.driver.driver && !self.driver.simtime;
        let is_file = |source: &GraphSource| match source {
            GraphSource::File(_) => true,
            GraphSource::Summary(summary) => !summary.timing,
            _ => false,
        };
        let has_files = program.sources.iter().any(is_file);
        RunPace { replayed, real: self.real_time || waits && !has_files, leaps: !replayed && !waits }
    }

    /// Returns true if clients may write handlers.
    fn has_clients(&self) -> bool {
        self.control.is_some() || self.driver.has_ports()
    }

    /// Packets of sources without a limit of their own.
    fn packets(&self) -> Option<u64> {
        self.packets.or(self.driver.driver.then_some(u64::MAX))
    }
}

/// Options for running a configuration, whenever it was compiled.
#[derive(Debug, clap::Args)]
pub(crate) struct ClickRunArgs {
    /// Source and sink of devices' packets: `mem` (random flows; sent packets are counted; the default), or
    /// `pcap:IN[,OUT]`; `DEVICE=pcap:IN[,OUT]` for one device; may be given several times. Until --packets or
    /// Ctrl-C: `raw` (raw sockets), `tap` (TAP interfaces, created for the run) or `xdp` (AF_XDP) where
    /// devices are named after their interfaces, `raw:INTERFACE[,INTERFACE...]` for all devices in order,
    /// `DEVICE=raw:INTERFACE` for one; in builds with DPDK `DEVICE=dpdk:DEVICE` each, or
    /// `dpdk:DEVICE[;DEVICE...]` for all in order
    #[arg(long, value_name = "SPEC")]
    io: Vec<String>,
    /// Print a handler after the run: ELEMENT.HANDLER; may be given several times
    #[arg(short = 'h', long = "handler", value_name = "ELEMENT.HANDLER")]
    handlers: Vec<String>,
    /// Fill map NAME (of an element `BPF`: ELEMENT.MAP) from FILE, as `bpftool -j map dump` writes it; may be
    /// given several times
    #[arg(long = "map", value_name = "NAME=FILE")]
    maps: Vec<String>,
    /// Listen at this Unix socket, as Click's ControlSocket does: READ and WRITE handlers, SWAP the
    /// configuration for another
    #[arg(short = 'u', long, visible_alias = "unix-socket", value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Serve Prometheus metrics at this address while it runs, at /metrics
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    /// Run in real time when timed elements replay packets from memory and files. By default, time jumps to
    /// the next event
    #[arg(long)]
    real_time: bool,
    /// Packets per device; default: 10,000,000 from memory, all of a file. In all for interfaces; default: no
    /// limit
    #[arg(long, value_name = "N")]
    packets: Option<u64>,
    #[command(flatten)]
    taking: port_options::PortOptions,
    #[command(flatten)]
    dpdk: dpdk::DpdkArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) driver: DriverArgs,
    #[command(flatten)]
    pub(crate) watch: SuperviseArgs,
}

/// Runs the command.
pub fn run(args: &ClickArgs) -> Result<ExitCode> {
    if let Some(code) = args.running.watch.begin()? {
        return Ok(code);
    }
    let source = args.configuration.source(args.running.driver.driver)?;
    let at = || source.input.name();
    if args.flat.flat {
        let output = args.flat.output.as_deref().unwrap_or(Path::new("-"));
        let whole = graph(&SourceMap::read(&source)?, &source.variables)?;
        let alive = if args.flat.undead { without_dead_elements(whole) } else { whole };
        let printed = if args.flat.align { with_alignment(alive) } else { alive };
        driver::write_flat(output, &printed)?;
        return Ok(Exit::Done.into());
    }
    let start = Instant::now();
    let texts = SourceMap::read(&source)?;
    let tuning = args.tuning.with_plan(&args.plan, || Ok(text_hash(&texts, &source.variables)))?;
    let workers = tuning.workers()?;
    let general = with_clock(tuning.general());
    let graph = graph(&texts, &source.variables)?;
    if let Some(output) = &args.flat.output {
        driver::write_flat(output, &graph)?;
    }
    let sockets = driver::control_sockets(&graph);
    let has_clients = args.running.has_clients() || args.running.driver.driver && !sockets.is_empty();
    let writers = if has_clients { HandlerWriters::Anybody } else { HandlerWriters::Scripts };
    let program = compile_graph(&texts, graph, workers, (writers, general))?;
    let click = start.elapsed();
    if args.ir {
        out!("{}", program.code.module);
        return Ok(Exit::Done.into());
    }
    let keep_text = args.llvm_ir.is_some();
    let facts = facts(&program);
    let variants = variants(args.adapt, &program)?;
    let options = NativeOptions { keep_text, facts, workers, variants, ..tuning.options() };
    let mut engine = match NativeEngine::of_module(program.code.module.clone(), program.code.entry, &options)
    {
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
    fill(&mut engine, &program.code.entries).into_diagnostic()?;
    let made = CompileInfo { front: click, options, general, sockets, adapt: args.adapt };
    execute(&at(), &args.running, program, &mut engine, Some(made))
}

/// With a clock, except for stages, between which packets do not wait.
pub fn with_clock(general: Ablations) -> Ablations {
    Ablations { time: !general.stages, ..general }
}

/// Reads a configuration and compiles it to the IR for so many workers, with handlers that `HandlerWriters`
/// may write, and without the optimizations that `Ablations` leaves out.
pub fn compile_to_ir(
    source: &ConfigSource,
    workers: u32,
    made: (HandlerWriters, Ablations),
) -> Result<ClickProgram> {
    let texts = SourceMap::read(source)?;
    let graph = graph(&texts, &source.variables)?;
    compile_graph(&texts, graph, workers, made)
}

/// Compiles the graph of a configuration to the IR.
fn compile_graph(
    texts: &SourceMap,
    mut graph: Graph,
    workers: u32,
    (writers, general): (HandlerWriters, Ablations),
) -> Result<ClickProgram> {
    graph.interfaces = interfaces::of(&graph);
    graph.captures = captures(&graph);
    let mut program = compile_for(&graph, &foreign, writers, general).map_err(|all| texts.failure(&all))?;
    let is_compact = graph.requirements.iter().any(|requirement| requirement.text == "compact_config");
    let config = HandlerAccess::Text(if is_compact { graph.to_string() } else { texts.whole.clone() });
    program.handlers.push(Handler { element: String::new(), name: "config".into(), access: config });
    for element in &mut program.code.elements {
        element.name = format!("{}, {}", element.name, texts.place(element.span));
    }
    for warning in &program.code.warnings {
        texts.warn(warning);
    }
    if general.stages && program.stages < workers {
        let conf = texts.name();
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
        _ => program.for_workers().map_err(|all| texts.failure(&all)),
    }
}

/// Hash of a configuration with its libraries and variables, for plans.
pub fn configuration_hash(conf: &Path, variables: &[String]) -> Result<u64> {
    Ok(text_hash(&SourceMap::read(&ConfigSource::of_file(conf, variables))?, variables))
}

/// The same of texts that were read.
fn text_hash(texts: &SourceMap, variables: &[String]) -> u64 {
    fingerprint([texts.whole.as_bytes()].into_iter().chain(variables.iter().map(String::as_bytes)))
}

/// Link types of the capture files that packets come from. A missing file is an error when it is read.
fn captures(graph: &Graph) -> Vec<CaptureInfo> {
    let link = |name: String| Some(CaptureInfo { link: capture::link(Path::new(&name))?, name });
    capture_files(graph).into_iter().filter_map(link).collect()
}

/// Facts about a program for its compilation.
pub fn facts(program: &ClickProgram) -> ProgramFacts {
    ProgramFacts { prefixes: prefixes(program), copies: program.copies, places: element_names(program) }
}

/// Prefixes in tables of routes.
fn prefixes(program: &ClickProgram) -> Vec<(String, PrefixStats)> {
    let tries = program.code.module.maps.values().filter(|map| map.kind == MapType::LPM_TRIE.0);
    let held = |name: &str| {
        let keys = program.code.entries.iter().filter(|entry| entry.map == name).map(|entry| &*entry.key);
        PrefixStats::of(keys)
    };
    let known = tries.filter(|map| program.code.entries.iter().any(|entry| entry.map == map.name));
    known.map(|map| (map.name.clone(), held(&map.name))).collect()
}

/// Names of elements, to which the source lines of a program's instructions refer.
fn element_names(program: &ClickProgram) -> Vec<String> {
    program.code.elements.iter().map(|element| element.name.clone()).collect()
}

/// Reads a program for an element, by its name or that of its section.
fn foreign(file: &str, wanted: Option<&str>) -> Result<BpfElementProgram, String> {
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
    Ok(BpfElementProgram { module: lifted.module, program: func(program.func), contents })
}

fn graph(texts: &SourceMap, variables: &[String]) -> Result<Graph> {
    let variables: Vec<(String, String)> = variables
        .iter()
        .filter_map(|v| v.split_once('='))
        .map(|(name, value)| (name.trim_start_matches('$').to_owned(), value.to_owned()))
        .collect();
    let graph = parse(&texts.whole).and_then(|statements| flatten(&statements, &variables));
    graph.map_err(|e| texts.failure(&[e]))
}

/// Record of the compilation.
pub(crate) struct CompileInfo {
    /// Time of the front end.
    front: Duration,
    options: NativeOptions,
    general: Ablations,
    /// TCP ports of its elements `ControlSocket`, by element.
    sockets: Vec<(String, String)>,
    adapt: AdaptArgs,
}

/// Returns true if a configuration is to be adapted.
fn variants(args: AdaptArgs, program: &ClickProgram) -> Result<VariantSupport> {
    match args.choice().is_some() && program.stages > 1 {
        true => {
            Err(miette!("--adapt is for configurations that are not cut into stages: leave --pipeline out"))
        }
        false => Ok(variant_support(args)),
    }
}

/// Opens the sockets for clients, and `--metrics`.
fn listening(
    args: &ClickRunArgs,
    ports: Vec<ControlPort>,
    engine: &NativeEngine,
    compile: Option<(NativeOptions, Ablations)>,
) -> Result<Option<HandlerSocket>> {
    let metrics = crate::metrics::listen(args.metrics).map_err(|error| miette!("{error}"))?;
    if args.control.is_none() && metrics.is_none() && ports.is_empty() {
        return Ok(None);
    }
    let listeners = ports.into_iter().map(|port| port.listener).collect();
    let swaps = SwapOptions { compile, hotconfig: args.driver.allow_reconfigure };
    HandlerSocket::open((args.control.as_deref(), listeners), metrics, engine, swaps).map(Some)
}

/// Largest batch: each packet may be copied.
const MOST_BATCH: u32 = 1024;

/// Checks that a configuration may get so many packets at once.
pub fn check_batch_size(batch: u32) -> Result<()> {
    match batch {
        ..=MOST_BATCH => Ok(()),
        _ => Err(miette!("batch={batch}: configurations take at most {MOST_BATCH} packets at once")),
    }
}

/// Values of handlers, by name.
fn values(
    names: &[String],
    program: &ClickProgram,
    engine: &mut NativeEngine,
) -> Result<Vec<(String, String)>, handlers::HandlerError> {
    names.iter().map(|name| Ok((name.clone(), handlers::read(program, engine, name)?))).collect()
}

/// Queues for the packets that wait for elements of time. Returns the exit code if they are not supported.
fn room_of(
    name: &str,
    program: &ClickProgram,
    engine: &mut NativeEngine,
    by_dpdk: bool,
) -> Result<TimedQueues, ExitCode> {
    let queues = TimedQueues::new(&queueing::queue_spec(program, engine));
    if by_dpdk && !queues.is_empty() {
        errln!(
            "{name}: packets wait for elements of time, which by DPDK they do not: use --io raw, tap or xdp"
        );
        return Err(Exit::NotPermitted.into());
    }
    Ok(queues)
}

/// Prepares an engine for graphs, and fills its maps.
fn prepared(args: &ClickRunArgs, engine: &mut NativeEngine) -> Result<()> {
    check_batch_size(engine.batch())?;
    args.maps.iter().try_for_each(|spec| tables::load(engine, spec))
}

/// Buffers that programs work in.
fn kept(taking: &port_options::PortOptions, by_dpdk: bool, live: bool) -> Result<MetadataMode> {
    match (by_dpdk, live) {
        (true, _) => taking.of_dpdk(),
        (false, true) => Ok(MetadataMode::Copy),
        (false, false) => taking.of_copies("mem or pcap:...").map(|()| MetadataMode::Copy),
    }
}

/// Runs a program on packets, and prints the result. `made` describes the compilation, unless that was ahead
/// of time.
pub(crate) fn execute(
    name: &str,
    args: &ClickRunArgs,
    mut program: ClickProgram,
    engine: &mut NativeEngine,
    made: Option<CompileInfo>,
) -> Result<ExitCode> {
    prepared(args, engine)?;
    let clock = RunClock::start();
    if args.driver.quit {
        return print_handlers(args, &program, engine, &clock);
    }
    let control_ports = args.driver.open_ports(made.as_ref().map_or(&[], |made| &made.sockets))?;
    program.handlers.extend(control_ports.iter().map(ControlPort::handler));
    let adapt = made.as_ref().map_or_else(AdaptArgs::default, |made| made.adapt);
    let (click, options) = made.map(|made| (made.front, (made.options, made.general))).unzip();
    let RunEnds { mut ports, gates, interfaces, mut queues } = match open_ends(name, args, &program, engine)?
    {
        Ok(ends) => ends,
        Err(code) => return Ok(code),
    };
    let by_interfaces = ports.is_some() || interfaces.is_some();
    let pace = args.pace(&program, by_interfaces || engine.workers() > 1);
    let kept = kept(&args.taking, ports.is_some(), interfaces.is_some())?;
    let packets = packets_of(args, &program, &gates, ports.as_ref(), interfaces.as_ref())?;
    let of_files = || io::CaptureSinks::open(&packets, &program);
    let sinks = if interfaces.is_some() { io::CaptureSinks::none() } else { of_files()? };
    let feeds: Vec<_> = packets.iter().map(io::SourcePackets::feed).collect();
    let streams: Vec<_> = packets.iter().map(io::SourcePackets::origin).collect();
    let control = listening(args, control_ports, engine, options)?;
    let pulls = queueing::pull_schedulers(&program);
    let (stages, outputs) = (program.stages > 1, program.targets.len());
    let is_calling = !program.calls.is_empty();
    let mut at_work = ActiveConfiguration::new(program, engine, args, adapt)?;
    let scripted = at_work.has_scripts();
    let attention = IdleSources::new(packets.len(), if stages { 1 } else { engine.workers() }, scripted);
    // A script that cannot print ends the run.
    let mut failed = None;
    let serve = |engine: &mut NativeEngine, queues: &mut TimedQueues| {
        queueing::publish_stats(&at_work.program, engine, queues);
        let on = if scripted { at_work.scripts(engine, &attention, pace.leaps) } else { Ok(true) };
        queues.set_alarm(at_work.due());
        let on = on.unwrap_or_else(|e| {
            failed = Some(e);
            false
        });
        let on = on && control.as_ref().is_none_or(|c| c.serve(&mut at_work, engine, queues));
        gates.renew(&at_work.program, engine);
        queueing::apply_settings(&at_work.program, engine, queues);
        on
    };
    let sources = GraphSources {
        feeds: &feeds,
        gates: gates.all(),
        streams: &streams,
        attention: scripted.then_some(&attention),
        pulls: &pulls,
    };
    let is_asked = scripted || control.is_some();
    let graph = RunGraph {
        args,
        sources,
        sinks: &sinks,
        packets: &packets,
        outputs,
        stages,
        kept,
        is_asked,
        is_calling,
    };
    let ends = (ports.as_mut(), interfaces, &mut queues);
    let result = graph.run(engine, ends, &pace, serve)?;
    at_work.finish(engine).into_diagnostic()?;
    failed.map_or(Ok(()), Err).into_diagnostic()?;
    queueing::publish_stats(&at_work.program, engine, &mut queues);
    sinks.finish()?;
    if args.driver.driver {
        let names = driver::expand(&args.handlers, &at_work.program);
        return args.driver.finish(&names, &clock, |name| at_work.read_handler(engine, name));
    }
    let read = values(&args.handlers, &at_work.program, engine).into_diagnostic()?;
    let state = handlers::state(engine);
    let RunResult { ran, lost, taken } = result;
    let document =
        report::ClickReport::new(name, &at_work, &packets, engine, (&ran, lost, taken), &state, click, read);
    printed(&document, args.json, scripted)?;
    args.driver.exit_code(|name| at_work.read_handler(engine, name))
}

/// Prints the handlers of a program that is not run.
fn print_handlers(
    args: &ClickRunArgs,
    program: &ClickProgram,
    engine: &mut NativeEngine,
    clock: &RunClock,
) -> Result<ExitCode> {
    let names = driver::expand(&args.handlers, program);
    args.driver.finish(&names, clock, |name| handlers::read(program, engine, name).into_diagnostic())
}

/// Ends of a run: sources and sinks that are no files, gates of sources, and queues.
struct RunEnds {
    ports: Option<dpdk::DpdkDevicePorts>,
    gates: SourceGates,
    interfaces: Option<live::GraphPorts>,
    queues: TimedQueues,
}

/// Opens the ends of a run. Returns the exit code if they are not permitted or not supported.
fn open_ends(
    name: &str,
    args: &ClickRunArgs,
    program: &ClickProgram,
    engine: &mut NativeEngine,
) -> Result<Result<RunEnds, ExitCode>> {
    let ports = match dpdk::of_graph(&args.dpdk, &args.io(Some(program)), program, engine.workers())? {
        Ok(ports) => ports,
        Err(code) => return Ok(Err(code)),
    };
    let gates = SourceGates::new(program, args.packets());
    let interfaces = match live::of_graph(args, program, engine, &gates)? {
        Ok(interfaces) => interfaces,
        Err(code) => return Ok(Err(code)),
    };
    let queues = room_of(name, program, engine, ports.is_some());
    Ok(queues.map(|queues| RunEnds { ports, gates, interfaces, queues }))
}

/// The packets of a run: of DPDK ports, of interfaces, or of memory and files.
fn packets_of(
    args: &ClickRunArgs,
    program: &ClickProgram,
    gates: &SourceGates,
    ports: Option<&dpdk::DpdkDevicePorts>,
    interfaces: Option<&live::GraphPorts>,
) -> Result<Vec<io::SourcePackets>> {
    match (ports, interfaces) {
        (Some(ports), _) => Ok(io::of_ports(ports.descriptions())),
        (None, Some(interfaces)) => Ok(interfaces.packets()),
        (None, None) => {
            io::open(&args.io(Some(program)), program, (args.packets(), args.driver.driver), gates)
        }
    }
}

/// Prints the result of a run: to standard error if standard output is that of scripts.
fn printed(document: &report::ClickReport, json: bool, scripted: bool) -> Result<()> {
    match (json, scripted) {
        (true, _) => outln!("{}", serde_json::to_string_pretty(document).into_diagnostic()?),
        (false, true) => output::write_error(format_args!("{}", document.text())),
        (false, false) => out!("{}", document.text()),
    }
    Ok(())
}
