//! `millstream native`: an XDP program in userspace.
//!
//! `millstream_native` provides the code, its maps and the account of packets; this module chooses packets
//! and tables, and prints. docs/native.md.

pub mod client;
pub(crate) mod control;
pub(crate) mod live;
pub(crate) mod lost_packets;
mod maps;
pub(crate) mod metrics;
pub(crate) mod port_options;
mod share;
pub(crate) mod stats;
pub(crate) mod stop_condition;
pub mod tables;
pub(crate) mod transport;
mod without;
mod worker_cpus;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::File;
use std::io::BufWriter;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_adapt::{AdaptStatus, EngineAdaptation, PacketModel};
use millstream_click::Ablations;
use millstream_native::{
    ClassifierTemplate, CompileTimings, CompiledSchedule, HashTemplate, LpmTemplate, NativeEngine,
    NativeError, NativeOptions, Schedule, TableTemplate,
};
use millstream_native_io::packet_source::PacketStreamSource;
use millstream_native_io::pcap::{PcapHeader, PcapWriter};
use millstream_native_io::safepoint::Safepoint;
use millstream_native_io::{
    DropReason, NullSink, PacketSink, ReplaySource, RunConfig, RunStats, WorkerHooks, run as run_packets,
    run_by,
};
use millstream_object::Object;
use millstream_plan::PlanSettings;
use serde::Serialize;

use self::control::MapControlSocket;
use self::live::WorkerPorts;
use self::lost_packets::DropCount;
pub(crate) use self::lost_packets::LostBefore;
use self::port_options::{OpenPorts, WorkerQueues};
use self::stats::{LatencyPercentiles, RunSpeed, WorkerRow};
use self::stop_condition::StopCondition;
use self::transport::PacketTransport;
use self::without::{DisabledOptimization, without};
pub use self::worker_cpus::bind;
use crate::adapt::{engine_adaptation, variant_support};
use crate::capture::CaptureFile;
use crate::dpdk;
use crate::duration_args::positive_seconds;
use crate::exit::Exit;
use crate::plan::{self, PlanArgs, PlanFile};
use crate::privileges::RequiredPrivileges;
use crate::supervise::SuperviseArgs;
use crate::workload_args::{TrafficArgs, open};
use millstream_console::adapt_args::AdaptArgs;
use millstream_console::wrap::wrap;

/// Packets of a run from memory, unless said otherwise.
const USUAL_PACKETS: u64 = 10_000_000;

/// Options for code generation and prefetching.
#[derive(Clone, Debug, clap::Args)]
pub struct CodegenArgs {
    /// Schedule of packets through stages, and prefetching: batch=PACKETS at once,
    /// pattern=fit|packets|groups|pipelined-groups, distance=PACKETS between two stages,
    /// sub-batch=PACKETS|all of a group, unroll=PACKETS of a turn, headers=PACKETS ahead,
    /// fetch=large|nothing|TABLE[+TABLE...], from=BYTES of a large table, trials=on|off of a loop that
    /// fetches beside one that does not, classes=one|ethertype|protocol of packets that run one after the
    /// other, traversals=off|whole|split caches of look-ups, flows=FLOWS of each of them
    #[arg(long, value_name = "KEY=VALUE,...", default_value_t)]
    pub schedule: Schedule,
    /// LLVM's passes, as `opt -passes=` takes them
    #[arg(long, value_name = "PASSES")]
    llvm_passes: Option<String>,
    /// Use this template for hash table, trie or classifier NAME instead of the one that fits its contents;
    /// may be given several times
    #[arg(
        long = "template",
        value_name = "NAME=open|robin-hood|cuckoo|open-keys|robin-hood-keys|cuckoo-keys|\
            open-slots|robin-hood-slots|cuckoo-slots|multibit|packed|lengths|list|\
            linear|tree|cuts|tuples",
        value_parser = template
    )]
    templates: Vec<(String, TemplateArg)>,
    /// Disable optimizations, to measure the effect of each: of configurations `static-graph`, `constants`
    /// and `annotations`; of all code `passes`, `llvm-passes`, `header-prefetch`, `table-prefetch`,
    /// `lookups`, `traversals`, or the name of a pass (`millstream opt --list-passes`)
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = without)]
    without: Vec<DisabledOptimization>,
    /// Number of workers: threads, each on its own CPU, which share the packets by flow
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers: u32,
    /// Number of pipeline stages of a configuration, each run by a worker: up to the first queue that a
    /// packet reaches, up to the second, and so on, with a ring between two stages; 2 without N
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2",
        value_parser = clap::value_parser!(u32).range(2..=64)
    )]
    pub pipeline: Option<u32>,
}

impl Default for CodegenArgs {
    fn default() -> CodegenArgs {
        CodegenArgs {
            schedule: Schedule::default(),
            llvm_passes: None,
            templates: Vec::new(),
            without: Vec::new(),
            workers: 1,
            pipeline: None,
        }
    }
}

impl CodegenArgs {
    /// The defaults with another schedule.
    pub fn of_schedule(schedule: Schedule) -> CodegenArgs {
        CodegenArgs { schedule, ..CodegenArgs::default() }
    }

    /// Number of workers, one per stage of a pipeline.
    pub fn workers(&self) -> Result<u32> {
        match (self.pipeline, self.workers) {
            (Some(stages), 1) => Ok(stages),
            (Some(_), _) => Err(miette!("--pipeline has a worker for each stage: leave --workers out")),
            (None, workers) => Ok(workers),
        }
    }

    /// The default options with these changes.
    pub fn options(&self) -> NativeOptions {
        self.options_by(&self.schedule)
    }

    /// The same with another schedule.
    pub fn options_by(&self, schedule: &Schedule) -> NativeOptions {
        let usual = NativeOptions::default();
        let llvm_passes = self.llvm_passes.clone().unwrap_or(usual.llvm_passes.clone());
        let (schedule, workers) = (schedule.clone(), self.workers);
        let (mut tables, mut tries, mut classifiers) = (Vec::new(), Vec::new(), Vec::new());
        for (name, pin) in self.templates.iter().cloned() {
            match pin {
                TemplateArg::Index(template) => tables.push((name, template)),
                TemplateArg::Trie(trie) => tries.push((name, trie)),
                TemplateArg::Classifier(classifier) => classifiers.push((name, classifier)),
            }
        }
        let options = NativeOptions { schedule, llvm_passes, workers, tables, tries, classifiers, ..usual };
        without::options(&self.without, options)
    }

    /// The options with the settings of a plan, if there is one; `hash` is that of the program.
    ///
    /// # Errors
    /// If the plan cannot be read, or has settings that this version does not know.
    pub fn with_plan(
        &self,
        plan: &PlanArgs,
        hash: impl FnOnce() -> Result<u64>,
    ) -> Result<Cow<'_, CodegenArgs>> {
        let Some(PlanFile { path, settings }) = plan.read(hash)? else { return Ok(Cow::Borrowed(self)) };
        let at = || format!("{}: the plan does not fit", path.display());
        self.planned(&settings).map(Cow::Owned).wrap_err_with(at)
    }

    /// The same with the settings of a plan. A number of workers or stages that a flag gives wins.
    ///
    /// # Errors
    /// If a template or an optimization is unknown.
    pub fn planned(&self, settings: &PlanSettings) -> Result<CodegenArgs> {
        let mut planned = self.clone();
        planned.schedule = settings.schedule.apply(&self.schedule);
        for (table, name) in &settings.templates {
            let pin = template(&format!("{table}={name}")).map_err(|e| miette!("template: {e}"))?;
            planned.templates.push(pin);
        }
        for name in &settings.without {
            planned.without.push(without(name).map_err(|e| miette!("without: {e}"))?);
        }
        if self.workers == 1 && self.pipeline.is_none() {
            planned.workers = settings.workers.unwrap_or(1);
            planned.pipeline = settings.stages.filter(|stages| *stages > 1);
        }
        Ok(planned)
    }

    /// Optimizations that a configuration leaves out.
    pub fn general(&self) -> Ablations {
        Ablations { stages: self.pipeline.is_some(), ..without::general(&self.without) }
    }

    /// Fails if an option is for configurations only.
    pub fn of_objects(&self) -> Result<()> {
        if self.pipeline.is_some() {
            return Err(miette!("--pipeline is for configurations: an object has no queues"));
        }
        if self.general() == Ablations::default() {
            return Ok(());
        }
        Err(miette!(
            "--without static-graph, constants and annotations are for configurations: an object has none of these"
        ))
    }
}

/// Flags of `millstream native`.
#[derive(Debug, clap::Args)]
pub struct NativeArgs {
    /// Object: FILE.o, FILE.o:PROGRAM or builtin:NAME
    object: String,
    /// The program to run, if the object has several
    #[arg(long, value_name = "NAME")]
    prog: Option<String>,
    /// Set the size of map NAME to N entries, as a loader of the object may; may be given several times
    #[arg(long, value_name = "NAME=N", value_parser = sized)]
    max_entries: Vec<(String, u32)>,
    #[command(flatten)]
    running: NativeRunArgs,
    #[command(flatten)]
    tuning: CodegenArgs,
    #[command(flatten)]
    plan: PlanArgs,
    #[command(flatten)]
    adapt: AdaptArgs,
    /// Use an array of the kernel, made with BPF_F_MMAPABLE, as array NAME: its pin, or `id:N`; may be given
    /// several times
    #[arg(long = "share", value_name = "NAME=PATH|NAME=id:N")]
    shares: Vec<String>,
    /// Write LLVM's optimized IR to this file
    #[arg(long, value_name = "FILE")]
    llvm_ir: Option<PathBuf>,
}

impl NativeArgs {
    /// Privileges that the command needs.
    pub fn needs(&self) -> RequiredPrivileges {
        let shares =
            if self.shares.is_empty() { RequiredPrivileges::Files } else { RequiredPrivileges::Kernel };
        self.running.needs().max(shares)
    }
}

impl NativeRunArgs {
    /// Privileges that the packets need.
    pub(crate) fn needs(&self) -> RequiredPrivileges {
        RequiredPrivileges::of_io([self.io.as_str()])
    }
}

/// Options for running a program, whenever it was compiled.
#[derive(Debug, clap::Args)]
pub(crate) struct NativeRunArgs {
    /// Source and sink of packets: `mem` (replayed from memory, over and over; sent packets are counted),
    /// `pcap:IN[,OUT]` (a capture file once; sent packets are written to OUT), or until --packets, --seconds
    /// or Ctrl-C all that interfaces receive: `xdp:INTERFACE[,INTERFACE...]` (through AF_XDP),
    /// `dpdk:DEVICE[;DEVICE...]` (in builds with DPDK); for convenience `raw:INTERFACE[,...]` (copies of
    /// received packets, by raw sockets) and `tap:NAME[,...]` (TAP interfaces, created for the run)
    #[arg(long, value_name = "SPEC", default_value = "mem")]
    io: String,
    /// Fill map NAME from FILE, as `bpftool -j map dump` writes it; may be given several times
    #[arg(long = "map", value_name = "NAME=FILE")]
    maps: Vec<String>,
    /// Listen at this Unix socket: maps can be read and changed (`millstream map`), statistics read
    /// (`millstream stats`) while the program runs
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Serve Prometheus metrics at this address while the program runs, at /metrics
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    feed: TrafficArgs,
    /// Packets to run; default: 10,000,000 from memory, all of a file, no limit from interfaces
    #[arg(long, value_name = "N")]
    packets: Option<u64>,
    /// Seconds to serve interfaces for
    #[arg(long, value_name = "SECONDS", value_parser = positive_seconds)]
    seconds: Option<f64>,
    /// Interface index of packets from memory or a file, and of the first port of DPDK
    #[arg(long, value_name = "N", default_value_t = 1)]
    ifindex: u32,
    #[command(flatten)]
    taking: port_options::PortOptions,
    #[command(flatten)]
    dpdk: dpdk::DpdkArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) watch: SuperviseArgs,
}

/// Template chosen for a map.
#[derive(Clone, Copy, Debug)]
enum TemplateArg {
    Index(HashTemplate),
    Trie(LpmTemplate),
    Classifier(ClassifierTemplate),
}

/// Names of templates.
fn pins() -> Vec<(&'static str, TemplateArg)> {
    let indices = HashTemplate::ALL.map(|template| (template.name(), TemplateArg::Index(template)));
    let tries = [LpmTemplate::Multibit, LpmTemplate::Packed, LpmTemplate::Lengths, LpmTemplate::List];
    let tries = tries.map(|trie| (trie.name(), TemplateArg::Trie(trie)));
    let classifiers = [
        ClassifierTemplate::Linear,
        ClassifierTemplate::Tree,
        ClassifierTemplate::Cuts,
        ClassifierTemplate::Tuples,
    ];
    let classifiers = classifiers.map(|classifier| (classifier.name(), TemplateArg::Classifier(classifier)));
    indices.into_iter().chain(tries).chain(classifiers).collect()
}

fn template(text: &str) -> Result<(String, TemplateArg), String> {
    let pins = pins();
    let known = |said: &str| pins.iter().find(|(word, _)| *word == said).map(|(_, pin)| *pin);
    let said = text.rsplit_once('=').and_then(|(name, word)| Some((name.to_owned(), known(word)?)));
    let words = || pins.iter().map(|(word, _)| format!("NAME={word}")).collect::<Vec<_>>().join(", ");
    said.ok_or_else(|| format!("`{text}` is none of {}", words()))
}

fn sized(text: &str) -> Result<(String, u32), String> {
    let said = text.rsplit_once('=').and_then(|(name, n)| Some((name.to_owned(), n.parse().ok()?)));
    said.filter(|(_, n)| *n > 0)
        .ok_or_else(|| format!("`{text}` is not NAME=N, with N from 1 to {}", u32::MAX))
}

/// Final state of a map.
#[derive(Serialize)]
struct MapState {
    name: String,
    entries: usize,
}

/// Milliseconds of each stage.
#[derive(Serialize)]
struct NativeCompileTimes {
    lift_ms: f64,
    passes_ms: f64,
    emit_ms: f64,
    llvm_ms: f64,
    link_ms: f64,
    object_bytes: usize,
}

/// Packets of a run.
#[derive(Serialize)]
struct NativeCounts {
    received: u64,
    sent: u64,
    transmitted: u64,
    redirected: u64,
    dropped: Vec<DropCount>,
}

/// Result of a run.
#[derive(Serialize)]
struct NativeReport {
    schema: u32,
    object: String,
    packets: String,
    workers: u32,
    #[serde(flatten)]
    account: NativeCounts,
    /// Properties of the interfaces, with AF_XDP.
    #[serde(flatten)]
    taken: Option<OpenPorts>,
    /// Packets of interfaces that the kernel or a driver dropped before they arrived here.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<LostBefore>,
    events: u64,
    /// Crashes of earlier processes, if this one is supervised.
    #[serde(skip_serializing_if = "Option::is_none")]
    crashes: Option<u32>,
    /// Counts of each worker, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    by_worker: Vec<WorkerRow>,
    #[serde(flatten)]
    speed: RunSpeed,
    /// `None` if compiled ahead of time.
    #[serde(skip_serializing_if = "Option::is_none")]
    compiled: Option<NativeCompileTimes>,
    maps: Vec<MapState>,
    /// Implementations of look-ups in hash tables and tries, with reasons.
    templates: Vec<TableTemplate>,
    /// Order of packets through stages, with reasons.
    schedule: CompiledSchedule,
    /// Specialization while it ran, if it was wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    adaptation: Option<AdaptStatus>,
}

/// Packets to run: frames, their order and count, and the file for sent ones.
struct PacketInput {
    frames: Vec<Vec<u8>>,
    order: Vec<u32>,
    /// File to read them from instead.
    file: Option<CaptureFile>,
    count: u64,
    description: String,
    out: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &NativeArgs) -> Result<ExitCode> {
    if let Some(code) = args.running.watch.begin()? {
        return Ok(code);
    }
    let tuning =
        args.tuning.with_plan(&args.plan, || plan::object_hash(&args.object, args.prog.as_deref()))?;
    tuning.of_objects()?;
    let (mut object, program) = open(&args.object)?;
    resize(&mut object, &args.max_entries).wrap_err_with(|| args.object.clone())?;
    let program = args.prog.clone().or(program);
    let (keep_text, lent) = (args.llvm_ir.is_some(), share::open(&object, &args.shares)?);
    let variants = variant_support(args.adapt);
    let options = NativeOptions { keep_text, lent, seed: seed(), variants, ..tuning.options() };
    let mut engine = match NativeEngine::of_object(&object, program.as_deref(), &options) {
        Ok(engine) => engine,
        Err(e) if is_llvm_missing(&e) => {
            errln!("{e}");
            return Ok(Exit::NotPermitted.into());
        }
        Err(e) => return Err(e).into_diagnostic().wrap_err_with(|| args.object.clone()),
    };
    if let (Some(path), Some(texts)) = (&args.llvm_ir, &engine.texts) {
        std::fs::write(path, &texts.after).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
    }
    execute(&args.object, &args.running, &mut engine, Some(args.adapt))
}

/// Changes the maximum number of entries of maps.
fn resize(object: &mut Object, sizes: &[(String, u32)]) -> Result<()> {
    for (name, entries) in sizes {
        let Some(map) = object.maps.iter_mut().find(|map| map.name == *name) else {
            let names: Vec<&str> = object.maps.iter().map(|map| map.name.as_str()).collect();
            return Err(miette!(
                "--max-entries {name}={entries}: there is no map {name:?}; there are: {}",
                names.join(", ")
            ));
        };
        if map.origin.is_global() {
            return Err(miette!("--max-entries {name}={entries}: {name:?} is global data, of one entry"));
        }
        map.spec.max_entries = *entries;
    }
    Ok(())
}

/// Returns true if code cannot be made because LLVM's library is missing.
pub fn is_llvm_missing(error: &NativeError) -> bool {
    matches!(error, NativeError::Llvm(millstream_native::llvm::LlvmError::Library(_)))
}

/// Runs a program of this name on packets, and prints the result. `made`: flags of code that was compiled in this
/// process.
pub(crate) fn execute(
    name: &str,
    args: &NativeRunArgs,
    engine: &mut NativeEngine,
    made: Option<AdaptArgs>,
) -> Result<ExitCode> {
    let adaptation = &mut engine_adaptation(made.unwrap_or_default());
    let served = match (args.io.split_once(':'), PacketTransport::of(&args.io)) {
        (_, Some((PacketTransport::Xdp, names))) => {
            Some(serve_queues((name, args), engine, names, adaptation)?)
        }
        (_, Some(which)) => {
            args.taking.of_copies(which.0.word())?;
            Some(serve((name, args), engine, which, adaptation)?)
        }
        (Some(("dpdk", devices)), None) => Some(serve_dpdk((name, args), engine, devices, adaptation)?),
        _ => {
            args.taking.of_copies("mem or pcap:...")?;
            None
        }
    };
    let mut taken = None;
    let (description, ran, lost) = match served {
        Some(Ok((description, by, ran, lost))) => {
            taken = by;
            (description, ran, Some(lost))
        }
        Some(Err(code)) => return Ok(code),
        None => {
            let packets = packets(name, args, engine)?;
            for spec in &args.maps {
                tables::load(engine, spec)?;
            }
            adaptation.begin(engine, PacketModel::Verdicts).into_diagnostic()?;
            let ran = feed(args, engine, &packets, adaptation)?;
            (packets.description, ran, None)
        }
    };
    let mut document = document(engine, (name, &description), &ran);
    document.compiled = document.compiled.filter(|_| made.is_some());
    document.adaptation = adaptation.finish();
    (document.lost, document.crashes, document.taken) = (lost, args.watch.crashed(), taken);
    print(args, &document)
}

/// Fills the tables for packets that come from interfaces, of which the first two have these indices.
fn prepare(
    (name, args): (&str, &NativeRunArgs),
    engine: &mut NativeEngine,
    ports: [u32; 2],
    adaptation: &mut EngineAdaptation,
) -> Result<()> {
    let (load, _) = args.feed.workload(name, ports)?;
    tables::apply(engine, &load.entries)?;
    args.maps.iter().try_for_each(|spec| tables::load(engine, spec))?;
    adaptation.begin(engine, PacketModel::Verdicts).into_diagnostic()
}

/// Opens `--control` and `--metrics`.
fn listening(
    args: &NativeRunArgs,
    engine: &NativeEngine,
    adaptation: &EngineAdaptation,
) -> Result<Option<MapControlSocket>> {
    let metrics = crate::metrics::listen(args.metrics).map_err(|error| miette!("{error}"))?;
    match (&args.control, metrics) {
        (None, None) => Ok(None),
        (path, metrics) => {
            MapControlSocket::open(path.as_deref(), metrics, engine, adaptation.reader()).map(Some)
        }
    }
}

/// Result for packets of interfaces: description of the source, interface properties, counts, and losses; or
/// the exit code if that is not permitted.
type InterfaceRunResult = Result<(String, Option<OpenPorts>, RunStats, LostBefore), ExitCode>;

/// Runs packets from the queues of interfaces, by AF_XDP.
fn serve_queues(
    (name, args): (&str, &NativeRunArgs),
    engine: &mut NativeEngine,
    names: &str,
    adaptation: &mut EngineAdaptation,
) -> Result<InterfaceRunResult> {
    prepare((name, args), engine, WorkerPorts::pair(names)?, adaptation)?;
    // Last of all, since packets come from then on.
    let names: Vec<&str> = names.split(',').collect();
    let mut queues = match WorkerQueues::open(&names, engine.workers(), engine.batch(), &args.taking)? {
        Ok(queues) => queues,
        Err(code) => return Ok(Err(code)),
    };
    let control = listening(args, engine, adaptation)?;
    let until = StopCondition::begin(args.packets, args.seconds);
    let (ran, taken) = (queues.run(engine, &until, control.as_ref())?, queues.open_ports());
    let description =
        taken.interfaces.iter().map(port_options::PortInfo::text).collect::<Vec<_>>().join(", ");
    Ok(Ok((description, Some(taken), ran, queues.lost())))
}

/// Runs packets of DPDK's ports, which are interfaces from `--ifindex` on.
fn serve_dpdk(
    (name, args): (&str, &NativeRunArgs),
    engine: &mut NativeEngine,
    devices: &str,
    adaptation: &mut EngineAdaptation,
) -> Result<InterfaceRunResult> {
    let kept = args.taking.of_dpdk()?;
    prepare((name, args), engine, [args.ifindex, args.ifindex + 1], adaptation)?;
    let mut ports = match dpdk::of_program(&args.dpdk, devices, engine.workers(), args.ifindex)? {
        Ok(ports) => ports,
        Err(code) => return Ok(Err(code)),
    };
    let control = listening(args, engine, adaptation)?;
    let until = StopCondition::begin(args.packets, args.seconds);
    let ran = ports.run(engine, (engine.batch(), kept), &until, control.as_ref())?;
    Ok(Ok((ports.description(), None, ran, ports.lost())))
}

/// Runs packets of interfaces. Returns the source's description, counts and losses; or the exit code if that
/// is not permitted.
fn serve(
    (name, args): (&str, &NativeRunArgs),
    engine: &mut NativeEngine,
    (way, names): (PacketTransport, &str),
    adaptation: &mut EngineAdaptation,
) -> Result<InterfaceRunResult> {
    let workers = engine.workers();
    let made = if way == PacketTransport::Tap { Some(WorkerPorts::open(way, names, workers)) } else { None };
    if let Some(Err(refused)) = made {
        return refused.exit().map(Err);
    }
    prepare((name, args), engine, WorkerPorts::pair(names)?, adaptation)?;
    // Last of all, since packets come from then on, except for interfaces that nobody knows yet.
    let mut ports = match made.unwrap_or_else(|| WorkerPorts::open(way, names, workers)) {
        Ok(ports) => ports,
        Err(refused) => return refused.exit().map(Err),
    };
    let control = listening(args, engine, adaptation)?;
    let until = StopCondition::begin(args.packets, args.seconds);
    let (ran, lost) = ports.serve(engine, engine.batch() as usize, &until, control.as_ref())?;
    let lost = LostBefore { no_room: lost.no_room, unfit: lost.unfit };
    Ok(Ok((ports.description(), None, ran, lost)))
}

fn print(args: &NativeRunArgs, document: &NativeReport) -> Result<ExitCode> {
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(document).into_diagnostic()?),
        false => out!("{}", text(document)),
    }
    Ok(Exit::Done.into())
}

/// A seed that no sender of packets can guess.
pub fn seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0)
}

/// The packets; fills the tables that belong to them.
fn packets(name: &str, args: &NativeRunArgs, engine: &mut NativeEngine) -> Result<PacketInput> {
    if let Some(files) = args.io.strip_prefix("pcap:") {
        let (from, to) = match files.split_once(',') {
            Some((from, to)) => (from, Some(PathBuf::from(to))),
            None => (files, None),
        };
        let (load, _) = args.feed.workload(name, [args.ifindex, args.ifindex + 1])?;
        tables::apply(engine, &load.entries)?;
        return Ok(PacketInput {
            frames: Vec::new(),
            order: Vec::new(),
            file: Some(CaptureFile::of_ethernet(from)?),
            count: args.packets.unwrap_or(u64::MAX),
            description: from.to_owned(),
            out: to,
        });
    }
    if args.io != "mem" {
        return Err(miette!(
            "--io {:?} is none of mem, pcap:IN[,OUT], xdp:INTERFACE[,INTERFACE...] \
             (or raw:, tap:) and dpdk:DEVICE[;DEVICE...]",
            args.io
        ));
    }
    let (load, order) = args.feed.workload(name, [args.ifindex, args.ifindex + 1])?;
    tables::apply(engine, &load.entries)?;
    Ok(PacketInput {
        frames: load.flows.packets,
        order,
        file: None,
        count: args.packets.unwrap_or(USUAL_PACKETS),
        description: load.description,
        out: None,
    })
}

fn feed(
    args: &NativeRunArgs,
    engine: &mut NativeEngine,
    packets: &PacketInput,
    adaptation: &EngineAdaptation,
) -> Result<RunStats> {
    let stream = packets.file.as_ref().map(|file| file as &dyn PacketStreamSource);
    let source =
        ReplaySource { frames: &packets.frames, order: &packets.order, count: packets.count, stream };
    let plan = RunConfig { batch: engine.batch() as usize, ingress: args.ifindex };
    let control = listening(args, engine, adaptation)?;
    let mut run = |sink: &mut (dyn PacketSink + Send)| match (engine.workers(), &control) {
        (1, None) => run_packets(engine, &source, sink, plan),
        (_, control) => {
            let mut attend =
                |floor: &Safepoint<'_>| control.iter().for_each(|control| control.serve_until_done(floor));
            run_by(engine, &source, sink, plan, &WorkerHooks { enter: &bind }, Some(&mut attend))
        }
    };
    let Some(path) = &packets.out else { return run(&mut NullSink).into_diagnostic() };
    let at = || path.display().to_string();
    let file = File::create(path).into_diagnostic().wrap_err_with(at)?;
    let mut writer =
        PcapWriter::new(BufWriter::new(file), PcapHeader::default()).into_diagnostic().wrap_err_with(at)?;
    let ran = run(&mut writer).into_diagnostic().wrap_err_with(at)?;
    writer.finish().into_diagnostic().wrap_err_with(at)?;
    Ok(ran)
}

fn document(engine: &mut NativeEngine, (name, description): (&str, &str), ran: &RunStats) -> NativeReport {
    let account = &ran.account;
    let seen = account.received - account.dropped[DropReason::Size as usize];
    let per = |d: Duration, n: u64| if n == 0 { 0.0 } else { d.as_nanos() as f64 / n as f64 };
    NativeReport {
        schema: 1,
        object: name.to_owned(),
        packets: description.to_owned(),
        workers: engine.workers(),
        account: NativeCounts {
            received: account.received,
            sent: account.sent(),
            transmitted: account.transmitted,
            redirected: account.redirected,
            dropped: DropReason::ALL
                .iter()
                .map(|&r| DropCount { reason: r.name(), packets: account.dropped[r as usize] })
                .collect(),
        },
        taken: None,
        lost: None,
        crashes: None,
        events: ran.events,
        by_worker: if engine.workers() > 1 { stats::workers(engine.stats()) } else { Vec::new() },
        speed: RunSpeed {
            latency_ns: LatencyPercentiles::of(&engine.stats().latency()),
            ns_per_packet: per(ran.busy, seen),
            ns_per_packet_p10: ran.percentile(0.1),
            mpps: 1e3 * account.received as f64 / ran.total.as_nanos().max(1) as f64,
        },
        compiled: Some(compiled(&engine.timings)),
        templates: engine.templates.clone(),
        schedule: engine.schedule.clone(),
        adaptation: None,
        maps: engine.maps().map(|m| MapState { name: m.name().to_owned(), entries: m.len() }).collect(),
    }
}

/// A line for each table that has a template.
pub(crate) fn template_lines(templates: &[TableTemplate]) -> String {
    templates.iter().map(|t| format!("table {}: {}: {}\n", t.table, t.template, t.why)).collect()
}

/// The schedule, and the look-ups that it prefetches.
pub(crate) fn schedule_line(schedule: &CompiledSchedule) -> String {
    let fetched = schedule.tables.iter().filter(|table| table.fetched);
    let fetched: String = fetched.map(|t| format!("\nlook-ups in {} fetched: {}", t.table, t.why)).collect();
    let settings = wrap(&format!("    {}", schedule.schedule).replace(',', ", "), 80, 0);
    let settings = settings.join("\n").replace(", ", ",");
    format!("schedule: {}\n{settings}{fetched}\n", schedule.why)
}

fn compiled(timings: &CompileTimings) -> NativeCompileTimes {
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    NativeCompileTimes {
        lift_ms: ms(timings.lift),
        passes_ms: ms(timings.passes),
        emit_ms: ms(timings.emit),
        llvm_ms: ms(timings.llvm),
        link_ms: ms(timings.link),
        object_bytes: timings.bytes,
    }
}

fn text(d: &NativeReport) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(out, "{} on {}", d.object, d.packets);
    if let Some(c) = &d.compiled {
        let front = c.lift_ms + c.passes_ms + c.emit_ms;
        let _ = writeln!(
            out,
            "compiled in {:.1} ms: {front:.1} to LLVM's IR, {:.1} in LLVM, {:.1} linking",
            front + c.llvm_ms + c.link_ms,
            c.llvm_ms,
            c.link_ms
        );
    }
    out.push_str(&template_lines(&d.templates));
    out.push_str(&schedule_line(&d.schedule));
    out.extend(d.adaptation.as_ref().map(AdaptStatus::text));
    let _ = writeln!(out, "received {:>12}", d.account.received);
    let _ = writeln!(
        out,
        "sent     {:>12}   transmitted {}, redirected {}",
        d.account.sent, d.account.transmitted, d.account.redirected
    );
    let dropped: u64 = d.account.dropped.iter().map(|r| r.packets).sum();
    let why: Vec<String> = d
        .account
        .dropped
        .iter()
        .filter(|r| r.packets > 0)
        .map(|r| format!("{} {}", r.reason, r.packets))
        .collect();
    let _ = writeln!(out, "dropped  {dropped:>12}   {}", why.join(", "));
    if let Some(lost) = d.lost.as_ref().and_then(LostBefore::text) {
        let _ = writeln!(out, "{lost}");
    }
    let low =
        d.speed.ns_per_packet_p10.map_or(String::new(), |ns| format!(", {ns:.2} at the 10th percentile"));
    let _ = writeln!(
        out,
        "{:.2} ns per packet in the program{low}; {:.2} Mpps with copying in and out",
        d.speed.ns_per_packet, d.speed.mpps
    );
    if let Some(latency) = &d.speed.latency_ns {
        let _ = writeln!(out, "{}", latency.text());
    }
    if let Some(crashes) = d.crashes.filter(|crashes| *crashes > 0) {
        let _ = writeln!(out, "{crashes} crashes of processes before this one");
    }
    if d.events > 0 {
        let _ = writeln!(out, "{} records in rings and traces", d.events);
    }
    out
}
