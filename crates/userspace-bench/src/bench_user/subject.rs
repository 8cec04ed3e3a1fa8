//! Subject of the measurement: a configuration, an XDP program or a P4 program, compiled for a number of
//! workers, and run on packets from memory.

use std::fs::File;
use std::io::{self, BufWriter, Read as _};
use std::path::Path;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_built::fill;
use millstream_click::{Ablations, ClickProgram, GraphSource, HandlerWriters};
use millstream_interp::MapKind;
use millstream_lab::os;
use millstream_lab::workload::Workload;
use millstream_native::{
    CompiledSchedule, NativeEngine, NativeOptions, PrefetchDecision, Schedule, VariantCode, VariantOptions,
};
use millstream_native_io::graph::{
    GraphPortNumbers, GraphRunStats, GraphSources, SentPacket, SourceFrames, run_graph, run_graph_by,
};
use millstream_native_io::live::{serve, serve_graph};
use millstream_native_io::packet_source::PacketStreamSource;
use millstream_native_io::pcap::{PcapHeader, PcapWriter};
use millstream_native_io::pipeline::run_graph_pipelined;
use millstream_native_io::{
    NullSink, PacketAccounting, PacketSink, ReplaySource, RunConfig, RunStats as ObjectRan, WorkerHooks,
    run as run_packets, run_by,
};
use millstream_object::Object;

use super::p4_target::{self, P4Target, is_p4};
use super::paced::{self, LatencyHistogram, OfferedLoad, PacedEndpoint, WorkerClock};
use super::traffic::TrafficPattern;
use crate::capture::CaptureFile;
use crate::click::{self, SourcePackets};
use crate::native::{CodegenArgs, bind, is_llvm_missing, seed, tables};
use crate::plan;
use crate::progress::Progress;
use crate::workload_args::{TrafficArgs, open};

/// Interface that packets come in by; an object that redirects gets the next one, too.
const INGRESS: u32 = 1;

/// Bytes of a cache line.
pub(crate) const LINE: u64 = 64;

/// Upper bound on a paced run, in multiples of its length, however little processor time the worker gets.
const PATIENCE: u32 = 30;

/// Program to measure, its tables and its traffic.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SubjectArgs {
    /// Click configuration, XDP program or P4 program to measure: CONF.click, FILE.o, FILE.o:PROGRAM,
    /// builtin:NAME or PROG.p4
    #[arg(value_name = "CONF|OBJECT|PROG.p4")]
    pub(crate) what: String,
    /// Variables of a configuration that win over its `define`; macros of a P4 program
    #[arg(value_name = "NAME=VALUE")]
    pub(crate) variables: Vec<String>,
    /// Fill map NAME from FILE, as `bpftool -j map dump` writes it; may be given several times
    #[arg(long = "map", value_name = "NAME=FILE")]
    maps: Vec<String>,
    /// Fill tables of a P4 program: TABLE=N with generated entries (16M is 16,777,216), TABLE=FILE with the
    /// prefixes that lines begin with, N for all other tables; may be given several times. Packets have keys of
    /// random entries
    #[arg(long, value_name = "[TABLE=]N|FILE")]
    pub(crate) entries: Vec<String>,
    #[command(flatten)]
    pub(crate) feed: TrafficArgs,
}

impl SubjectArgs {
    /// Hash of the program, for plans.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(crate) fn program_hash(&self) -> Result<u64> {
        if is_p4(&self.what) {
            return p4_target::program_hash(&self.what, &self.variables);
        }
        match is_object(&self.what) {
            true => plan::object_hash(&self.what, None),
            false => click::configuration_hash(Path::new(&self.what), &self.variables),
        }
    }

    /// A configuration without variables and tables.
    pub(crate) fn of_configuration(conf: &Path) -> SubjectArgs {
        SubjectArgs {
            what: conf.display().to_string(),
            variables: Vec::new(),
            maps: Vec::new(),
            entries: Vec::new(),
            feed: TrafficArgs::default(),
        }
    }
}

/// Code to make.
#[derive(Clone, Copy)]
pub(crate) struct CompileRequest<'r> {
    /// Options, except those that follow.
    pub(crate) tuning: &'r CodegenArgs,
    /// Schedule.
    pub(crate) schedule: &'r Schedule,
    /// Workers, or stages.
    pub(crate) workers: u32,
    /// True if the workers are stages of a pipeline.
    pub(crate) stages: bool,
    /// Seed of an object's hash functions and random numbers, in place of one that nobody can guess.
    pub(crate) seed: Option<u64>,
}

impl<'r> CompileRequest<'r> {
    /// Code for one worker, by these options.
    pub(crate) fn of(tuning: &'r CodegenArgs) -> CompileRequest<'r> {
        CompileRequest { tuning, schedule: &tuning.schedule, workers: 1, stages: false, seed: None }
    }
}

/// Configuration or object to measure.
pub(crate) enum BenchmarkTarget {
    Configuration,
    Object(Box<(Object, Option<String>, Workload, Vec<u32>)>),
    P4(Box<P4Target>),
}

/// Result of compilation.
pub(crate) enum CompileOutcome {
    Ready(Box<BenchmarkRunner>),
    /// LLVM's library is missing.
    NoLlvm(String),
}

/// Returns true if this names an object, not a configuration.
fn is_object(what: &str) -> bool {
    let path = match what.rsplit_once(':') {
        Some((path, program)) if !program.contains('/') && !Path::new(what).exists() => path,
        _ => what,
    };
    let is_elf = || {
        let mut magic = [0; 4];
        let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
        read.is_ok() && magic == *b"\x7fELF"
    };
    what.starts_with("builtin:") || path.ends_with(".o") || is_elf()
}

impl BenchmarkTarget {
    /// Reads an object; a configuration is read when it is compiled. The connections of a workload had their last
    /// packet at the time `now`, in nanoseconds.
    pub(crate) fn read(args: &SubjectArgs, tuning: &CodegenArgs, now: u64) -> Result<BenchmarkTarget> {
        if is_p4(&args.what) {
            tuning.of_objects()?;
            return Ok(BenchmarkTarget::P4(Box::new(P4Target::read(
                &args.what,
                &args.variables,
                (&args.entries, &args.feed),
            )?)));
        }
        if !args.entries.is_empty() {
            return Err(miette!("--entries is for P4 programs; objects have --map and --tables"));
        }
        if !is_object(&args.what) {
            return Ok(BenchmarkTarget::Configuration);
        }
        if let Some(variable) = args.variables.first() {
            return Err(miette!("{variable}: an object has no variables; these are for configurations"));
        }
        tuning.of_objects()?;
        let (object, program) = open(&args.what)?;
        let (load, order) = args.feed.workload_at(&args.what, [INGRESS, INGRESS + 1], now)?;
        Ok(BenchmarkTarget::Object(Box::new((object, program, load, order))))
    }

    /// Packets that devices receive.
    pub(crate) fn traffic(&self, args: &SubjectArgs) -> Result<TrafficPattern> {
        Ok(match self {
            BenchmarkTarget::P4(of) => of.traffic(),
            BenchmarkTarget::Configuration => {
                let (frames, from) = match args.feed.recorded()? {
                    Some((frames, from)) => (frames, from.to_owned()),
                    None => {
                        let frames = click::random_frames(1, args.feed.flows as usize);
                        (frames, format!("{} flows of 64-byte packets", args.feed.flows))
                    }
                };
                if frames.is_empty() {
                    return Err(miette!("there are no packets in what --pcap or --packet names"));
                }
                TrafficPattern { order: (0..frames.len() as u32).collect(), frames, description: from }
            }
            BenchmarkTarget::Object(of) => {
                let (_, _, load, order) = &**of;
                TrafficPattern {
                    frames: load.flows.packets.clone(),
                    order: order.clone(),
                    description: load.description.clone(),
                }
            }
        })
    }

    /// Code with its tables.
    pub(crate) fn runner(&self, args: &SubjectArgs, made: CompileRequest<'_>) -> Result<CompileOutcome> {
        let start = Instant::now();
        let CompileRequest { tuning, schedule, workers, stages, .. } = made;
        let options = NativeOptions { workers, ..tuning.options_by(schedule) };
        let program = match self {
            BenchmarkTarget::Configuration => {
                let general = Ablations { stages, ..tuning.general() };
                let made = (HandlerWriters::Scripts, general);
                let source = click::ConfigSource::of_file(Path::new(&args.what), &args.variables);
                Some(click::compile_to_ir(&source, workers, made)?)
            }
            BenchmarkTarget::Object(_) | BenchmarkTarget::P4(_) => None,
        };
        let engine = match (self, &program) {
            (BenchmarkTarget::Object(of), _) => {
                let options = NativeOptions { seed: made.seed.unwrap_or_else(seed), ..options };
                NativeEngine::of_object(&of.0, of.1.as_deref(), &options)
            }
            (BenchmarkTarget::P4(of), _) => {
                let options = NativeOptions { seed: made.seed.unwrap_or_else(seed), ..of.options(options) };
                NativeEngine::of_module(of.program.module.clone(), of.program.entry, &options)
            }
            (_, Some(program)) => {
                let options = NativeOptions { facts: click::facts(program), ..options };
                NativeEngine::of_module(program.code.module.clone(), program.code.entry, &options)
            }
            (BenchmarkTarget::Configuration, None) => return Err(miette!("{}: no configuration", args.what)),
        };
        let mut engine = match engine {
            Ok(engine) => engine,
            Err(e) if is_llvm_missing(&e) => return Ok(CompileOutcome::NoLlvm(e.to_string())),
            Err(e) => return Err(e).into_diagnostic().wrap_err_with(|| args.what.clone()),
        };
        let compiled = start.elapsed();
        if let Some(program) = &program {
            fill(&mut engine, &program.code.entries).into_diagnostic()?;
        }
        match self {
            BenchmarkTarget::Object(of) => tables::apply(&mut engine, &of.2.entries)?,
            BenchmarkTarget::P4(of) => {
                let _bar = Progress::open("filling tables");
                engine = of.workload.fill(engine).into_diagnostic()?;
            }
            BenchmarkTarget::Configuration => {}
        }
        args.maps.iter().try_for_each(|spec| tables::load(&mut engine, spec))?;
        let made = program.as_ref().map_or(Ok(Vec::new()), own_packets)?;
        Ok(CompileOutcome::Ready(Box::new(BenchmarkRunner {
            program,
            made,
            engine,
            compiled,
            codes: vec![None],
            current: 0,
        })))
    }
}

/// Packets that a configuration generates itself, for each of its sources; `None` for devices.
fn own_packets(program: &ClickProgram) -> Result<Vec<Option<SourcePackets>>> {
    if !program.scripts.is_empty() {
        errln!("the scripts of the configuration are not run");
    }
    let own = |source: &GraphSource| match source {
        GraphSource::Device(_) => Ok(None),
        other => click::source_packets(other, None, None)?.in_memory().map(Some),
    };
    program.sources.iter().map(own).collect()
}

/// Compiled code, ready to run.
pub(crate) struct BenchmarkRunner {
    program: Option<ClickProgram>,
    /// Packets of sources that are not devices.
    made: Vec<Option<SourcePackets>>,
    pub(super) engine: NativeEngine,
    compiled: Duration,
    /// Codes by other schedules, for the same maps; the place of the one that the engine has is empty.
    codes: Vec<Option<VariantCode>>,
    current: usize,
}

/// A table whose look-ups are code.
pub(crate) struct LookupTable {
    pub(crate) name: String,
    /// Bytes when full.
    pub(crate) bytes: u64,
    /// Cache lines that a look-up reads, one after the other.
    pub(crate) lines: u32,
    /// Entries of a hash table now.
    pub(crate) entries: Option<u64>,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub(crate) struct RunMeasurement {
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// Includes dropped copies.
    pub(crate) dropped: u64,
    /// Wall-clock time, processor time, and its share in the program.
    pub(crate) wall: Duration,
    cpu: Duration,
    busy: Duration,
}

impl RunMeasurement {
    fn each(&self, time: Duration) -> f64 {
        time.as_nanos() as f64 / self.received.max(1) as f64
    }

    /// Worker's nanoseconds per packet.
    pub(super) fn ns(&self) -> f64 {
        self.each(self.cpu)
    }

    /// Share of the program.
    pub(super) fn program_ns(&self) -> f64 {
        self.each(self.busy)
    }

    /// Millions of packets per second of wall-clock time.
    pub(super) fn mpps(&self) -> f64 {
        1e3 / self.each(self.wall).max(1e-9)
    }

    /// Millions of packets per second of the workers' processor time.
    pub(super) fn mpps_per_cpu_second(&self) -> f64 {
        1e3 / self.each(self.cpu).max(1e-9)
    }
}

/// Result of a paced run.
pub(crate) struct PacedMeasurement {
    pub(crate) received: u64,
    /// Packets that found the ring full.
    pub(crate) lost: u64,
    /// Worker's time, without that left out.
    pub(crate) time: Duration,
    /// Share of all the time.
    pub(crate) left_out: f64,
    pub(crate) latencies: LatencyHistogram,
}

impl BenchmarkRunner {
    /// Compiles a P4 program by another schedule for the tables of this one; gives the number of the code, or
    /// `None` for what cannot share tables.
    ///
    /// # Errors
    /// If there is no code.
    pub(crate) fn add_code(
        &mut self,
        target: &BenchmarkTarget,
        made: &CompileRequest<'_>,
    ) -> Result<Option<usize>> {
        let BenchmarkTarget::P4(_) = target else { return Ok(None) };
        let Some(builder) = self.engine.variant_builder() else { return Ok(None) };
        let NativeOptions { schedule, .. } = made.tuning.options_by(made.schedule);
        let module = builder.module().clone();
        let options = VariantOptions { schedule: Some(schedule), ..VariantOptions::default() };
        let code = builder.compile(module, &options).into_diagnostic()?;
        self.codes.push(Some(code));
        Ok(Some(self.codes.len() - 1))
    }

    /// Runs the program by another schedule from now on, on the same tables; does nothing if they cannot be shared.
    ///
    /// # Errors
    /// If there is no code.
    pub(crate) fn reschedule(&mut self, target: &BenchmarkTarget, made: &CompileRequest<'_>) -> Result<bool> {
        let Some(number) = self.add_code(target, made)? else { return Ok(false) };
        self.select(number);
        (self.codes, self.current) = (vec![None], 0);
        Ok(true)
    }

    /// Runs this code from now on; 0 is the one that it was made with.
    pub(crate) fn select(&mut self, number: usize) {
        if let Some(code) = self.codes.get_mut(number).and_then(Option::take) {
            // The code was made by the engine's builder, so it is not refused.
            let before = self.engine.exchange(code);
            if let Some(place) = self.codes.get_mut(self.current) {
                *place = before.ok();
            }
            self.current = number;
        }
    }

    pub(crate) fn workers(&self) -> u32 {
        self.engine.workers()
    }

    /// Returns true if its workers are pipeline stages.
    pub(super) fn pipelined(&self) -> bool {
        self.program.as_ref().is_some_and(|program| program.stages > 1)
    }

    /// Batch size that it was compiled for.
    pub(crate) fn batch(&self) -> u32 {
        self.engine.batch()
    }

    /// Schedule that it was compiled with.
    pub(crate) fn schedule(&self) -> CompiledSchedule {
        self.engine.schedule.clone()
    }

    /// Tables whose template can be chosen, each with its template.
    pub(crate) fn templates(&self) -> Vec<(String, String)> {
        let templates = self.engine.templates.iter();
        templates.map(|chosen| (chosen.table.clone(), chosen.template.clone())).collect()
    }

    /// Tables whose look-ups are code.
    pub(crate) fn lookup_tables(&mut self) -> Vec<LookupTable> {
        let tables = std::mem::take(&mut self.engine.schedule.tables);
        let mut found = Vec::new();
        for PrefetchDecision { table, .. } in &tables {
            let lines = self.engine.lookup_lines(table).unwrap_or(1);
            let Some(map) = self.engine.map(table) else { continue };
            let Some(bytes) = map.lookup_bytes() else { continue };
            let (name, held) = (table.clone(), map.len() as u64);
            let (entries, below) = match map.spec().kind {
                MapKind::Hash | MapKind::LruHash => (Some(held), 0),
                // Behind the root, a walk reads lines of its own.
                MapKind::LpmTrie => (None, held * u64::from(lines - 1) * LINE),
                _ => (None, 0),
            };
            found.push(LookupTable { name, bytes: bytes + below, lines, entries });
        }
        self.engine.schedule.tables = tables;
        found
    }

    pub(crate) fn compiled_ms(&self) -> f64 {
        self.compiled.as_secs_f64() * 1e3
    }

    /// Returns true if any packets come from outside.
    pub(crate) fn takes_traffic(&self) -> bool {
        self.program.is_none() || self.made.iter().any(Option::is_none)
    }

    /// Runs so many packets.
    pub(crate) fn run(
        &mut self,
        traffic: &TrafficPattern,
        count: u64,
        batch: usize,
    ) -> Result<RunMeasurement> {
        let before = os::processor_ns();
        let ran = self.run_into(traffic, (count, batch), &mut NullSink, &|_| Ok(()));
        let cpu = Duration::from_nanos(os::processor_ns().saturating_sub(before));
        ran.map(|ran| RunMeasurement { cpu, ..ran })
    }

    /// Runs so many packets, and hands over what is sent: by an object to `sink`, by a configuration to
    /// `take`.
    pub(super) fn run_into(
        &mut self,
        traffic: &TrafficPattern,
        (count, batch): (u64, usize),
        sink: &mut (dyn PacketSink + Send),
        take: &(impl Fn(SentPacket<'_>) -> io::Result<()> + Sync),
    ) -> Result<RunMeasurement> {
        match &self.program {
            None => self.object(traffic, (count, batch), sink),
            Some(program) => {
                let (outputs, stages) = (program.targets.len(), program.stages > 1);
                self.graph(traffic, (count, batch), (outputs, stages), take)
            }
        }
    }

    fn object(
        &mut self,
        traffic: &TrafficPattern,
        (count, batch): (u64, usize),
        sink: &mut (dyn PacketSink + Send),
    ) -> Result<RunMeasurement> {
        let source = ReplaySource { frames: &traffic.frames, order: &traffic.order, count, stream: None };
        let plan = RunConfig { batch, ingress: INGRESS };
        let ran: ObjectRan = match self.engine.workers() {
            1 => run_packets(&mut self.engine, &source, sink, plan),
            _ => run_by(&mut self.engine, &source, sink, plan, &WorkerHooks { enter: &bind }, None),
        }
        .into_diagnostic()?;
        let (received, sent) = (ran.account.received, ran.account.sent());
        Ok(RunMeasurement {
            received,
            sent,
            dropped: ran.account.all_dropped(),
            wall: ran.total,
            cpu: Duration::ZERO,
            busy: ran.busy,
        })
    }

    fn graph(
        &mut self,
        traffic: &TrafficPattern,
        (count, batch): (u64, usize),
        (outputs, stages): (usize, bool),
        take: &(impl Fn(SentPacket<'_>) -> io::Result<()> + Sync),
    ) -> Result<RunMeasurement> {
        let each = count / self.made.len().max(1) as u64;
        let outside = SourceFrames { frames: &traffic.frames, count: each };
        let with_count = |feed| SourceFrames { count: each, ..feed };
        let feeds: Vec<SourceFrames<'_>> = self
            .made
            .iter()
            .map(|made| made.as_ref().map_or(outside, |own| with_count(own.feed())))
            .collect();
        let (crew, never) = (WorkerHooks { enter: &bind }, None::<fn(&mut NativeEngine) -> bool>);
        let engine = &mut self.engine;
        let ran: GraphRunStats = match engine.workers() {
            _ if stages => run_graph_pipelined(engine, &feeds, outputs, batch, &crew, take, never),
            1 => run_graph(engine, &feeds, outputs, batch, |packet: SentPacket<'_>| take(packet)),
            _ => run_graph_by(engine, &feeds, outputs, batch, &crew, take, never),
        }
        .into_diagnostic()?;
        let (received, sent) = (ran.received.iter().sum::<u64>(), ran.sent.iter().sum::<u64>());
        let dropped = received + ran.copies - sent;
        Ok(RunMeasurement { received, sent, dropped, wall: ran.total, cpu: Duration::ZERO, busy: ran.busy })
    }

    /// Runs packets of a capture file through a configuration with one source, and writes what is sent into
    /// another one. Returns the time and the packets.
    pub(crate) fn run_capture(
        &mut self,
        from: &CaptureFile,
        to: File,
        batch: usize,
    ) -> Result<(Duration, u64)> {
        let outputs = self.program.as_ref().map_or(1, |program| program.targets.len());
        let feeds = [SourceFrames { frames: &[], count: u64::MAX }];
        let streams: [Option<&dyn PacketStreamSource>; 1] = [Some(from)];
        let sources = GraphSources { streams: &streams, ..GraphSources::from(&feeds) };
        let mut writer = PcapWriter::new(BufWriter::new(to), PcapHeader::default()).into_diagnostic()?;
        let ran = run_graph(&mut self.engine, sources, outputs, batch, |packet: SentPacket<'_>| {
            writer.write(packet.bytes, 0, 0)
        });
        let ran = ran.into_diagnostic()?;
        writer.finish().into_diagnostic()?;
        Ok((ran.total, ran.received.iter().sum()))
    }

    /// Runs packets that come at a pace, by one worker.
    pub(crate) fn paced(
        &mut self,
        traffic: &TrafficPattern,
        pace: &OfferedLoad,
        batch: usize,
    ) -> Result<PacedMeasurement> {
        let own: Vec<Option<TrafficPattern>> =
            self.made.iter().map(|made| made.as_ref().map(of_own)).collect();
        let sources: Vec<&TrafficPattern> = match &self.program {
            None => vec![traffic],
            Some(_) => own.iter().map(|own| own.as_ref().unwrap_or(traffic)).collect(),
        };
        let each = OfferedLoad { rate: pace.rate.map(|rate| rate / sources.len() as f64), ..*pace };
        let count = sources.len();
        let clock = WorkerClock::new(pace.longest_step);
        let source = |(seed, traffic)| {
            PacedEndpoint::Source(Box::new(paced::PacedSource::new(traffic, &clock, &each, seed)))
        };
        let mut wires: Vec<PacedEndpoint<'_>> =
            (0..).zip(sources).map(source).chain([PacedEndpoint::Sink]).collect();
        // The worker's own time decides, unless it gets hardly any.
        let (start, length) = (Instant::now(), pace.length.as_nanos() as f64);
        let goes_on = || clock.now() < length && start.elapsed() < pace.length * PATIENCE;
        let (received, wall) = match &self.program {
            None => {
                // Each wire has its share of a batch, the sink, too.
                let (size, goes_on) =
                    (batch * wires.len(), &mut |_: &PacketAccounting, _: &mut NativeEngine| goes_on());
                let ran =
                    serve(&mut self.engine, &mut wires, size, goes_on, &mut |_| {}).into_diagnostic()?;
                (ran.account.received, ran.total)
            }
            Some(program) => {
                let (from, to) = ((0..count).collect::<Vec<_>>(), vec![count; program.targets.len()]);
                let ends = GraphPortNumbers { sources: &from, outputs: &to };
                let goes_on = &mut |_: &GraphRunStats, _: &mut NativeEngine| goes_on();
                let ran =
                    serve_graph(&mut self.engine, &mut wires, &ends, batch, goes_on).into_diagnostic()?;
                (ran.received.iter().sum(), ran.total)
            }
        };
        let (mut lost, mut latencies) = (0, LatencyHistogram::default());
        for wire in &wires {
            if let PacedEndpoint::Source(source) = wire {
                lost += source.lost;
                latencies.and(&source.latencies);
            }
        }
        let time = wall.saturating_sub(Duration::from_nanos(clock.left_out() as u64));
        let left_out = clock.left_out() / wall.as_nanos().max(1) as f64;
        Ok(PacedMeasurement { received, lost, time, left_out, latencies })
    }
}

/// Packets that a configuration generates, in order.
fn of_own(packets: &SourcePackets) -> TrafficPattern {
    let frames = packets.feed().frames.to_vec();
    TrafficPattern {
        order: (0..frames.len() as u32).collect(),
        frames,
        description: packets.description.clone(),
    }
}
