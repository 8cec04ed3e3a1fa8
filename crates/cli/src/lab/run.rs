//! `millstream lab run`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use miette::{IntoDiagnostic, miette};
use millstream_lab::compare::{common, compare_live};
use millstream_lab::curve::{LoadCurve, MOST_SEARCH_RUNS, curve};
use millstream_lab::environment::{Environment, fit_for_timing};
use millstream_lab::measure::MeasurementPlan;
use millstream_lab::subject::ProgramUnderTest;
use millstream_lab::verify::{answers, verify, verify_against};
use millstream_lab::workload::Workload;
use millstream_lab::{Error, RigConfig, TestRig, TrafficSequence, os, pcap};
use millstream_object::Object;
use millstream_userspace::capture;
use millstream_userspace::native::tables::MapDumpFile;

use super::compare::sample;
use super::run_report::{BatchLatency, LabRunReport};
use super::{
    MOST_FRAMES, MapFileArgs, TrafficArgs, emptiness, fill, interrupted, is_length, open, refused, short,
    text, verdict_name,
};
use crate::exit::Exit;
use crate::progress::Progress;

/// Frames whose output is compared with the expected one.
const VERIFIED: usize = 8_192;
/// Frames whose latency is taken, per batch size.
const TIMED: u32 = 400_000;

/// Flags of `millstream lab run`.
#[derive(Debug, clap::Args)]
pub(super) struct LabRunArgs {
    /// Object: FILE.o, FILE.o:PROGRAM or builtin:NAME
    object: String,
    /// The program to run, if the object has several
    #[arg(long, value_name = "NAME")]
    prog: Option<String>,
    #[command(flatten)]
    feed: TrafficArgs,
    #[command(flatten)]
    fillings: MapFileArgs,
    /// Capture of the frames that must come back, each as often as it is in there; by default, the program's
    /// answers to each frame by itself. Sends the frames of `--pcap` or `--packet` once each
    #[arg(long, value_name = "FILE", requires = "recorded")]
    expect: Option<PathBuf>,
    /// Duration of the throughput measurement, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,
    /// Loads of the curve of loss and latency; 0 for none. Needs a second CPU
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u16).range(..=1000))]
    points: u16,
    /// Duration of each load of the curve, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    point_seconds: f64,
    /// CPU to send and receive on; default: the last one
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
    /// Seed of the random choices of the throughput measurement
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A rig with the program under test and its traffic.
struct TestBench<'o> {
    subject: ProgramUnderTest<'o>,
    rig: TestRig,
    load: Rc<RigWorkload>,
}

/// Traffic of a rig.
struct RigWorkload {
    /// The interfaces that the tables refer to.
    ports: [u32; 2],
    workload: Workload,
    order: Vec<u32>,
}

/// Runs the command.
pub(super) fn run(args: &LabRunArgs) -> Result<ExitCode, miette::Report> {
    if !is_length(args.seconds) || !is_length(args.point_seconds) {
        return Err(miette!("lengths must be more than zero and no more than a day"));
    }
    let (object, program) = open(&args.object)?;
    let program = args.prog.clone().or(program);
    let fillings = args.fillings.read()?;
    let bar = Progress::open("filling tables");
    let bench = |config, like| bench(args, (&object, program.as_deref()), &fillings, config, like);
    let main = match bench(RigConfig { cpu: args.cpu, urgent: true, ..RigConfig::default() }, None)? {
        Ok(main) => main,
        Err(e) => return refused(e),
    };
    let stamped = |batch| {
        bench(
            RigConfig { cpu: args.cpu, batch, stamps: true, urgent: true, ..RigConfig::default() },
            Some(&main.load),
        )
    };
    let stamped = match (stamped(64)?, stamped(8)?) {
        (Ok(a), Ok(b)) => [a, b],
        (Err(e), _) | (_, Err(e)) => return refused(e),
    };
    drop(bar);
    let document = match work(args, &main, &stamped) {
        Ok(document) => document,
        Err(e) => return refused(e),
    };
    if os::interrupted() {
        return Ok(interrupted().into());
    }
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&document).into_diagnostic()?);
    } else {
        out!("{}", text::run(&document));
    }
    let good = document.verification.is_good() && document.lost == 0;
    let exit = match (good, document.reliability_warnings.is_empty()) {
        (false, _) => Exit::Negative,
        (true, false) => Exit::Unknown,
        (true, true) => Exit::Done,
    };
    Ok(exit.into())
}

fn bench<'o>(
    args: &LabRunArgs,
    (object, program): (&'o Object, Option<&str>),
    fillings: &[MapDumpFile],
    config: RigConfig,
    like: Option<&Rc<RigWorkload>>,
) -> Result<Result<TestBench<'o>, Error>, miette::Report> {
    let rig = match TestRig::new(config) {
        Ok(rig) => rig,
        Err(e) => return Ok(Err(e)),
    };
    let ports = [rig.test_port(), rig.second_port()];
    let load = match like {
        Some(load) if load.ports == ports => Rc::clone(load),
        _ => {
            let (workload, order) = args.feed.workload(&args.object, ports)?;
            Rc::new(RigWorkload { ports, workload, order })
        }
    };
    let prepare = || {
        let subject = ProgramUnderTest::prepare(short(&args.object), object, program, None)?;
        fill(&subject, &load.workload, fillings, rig.namespace())?;
        rig.load_traffic(&TrafficSequence::new(&load.workload.flows, &load.order))?;
        Ok(subject)
    };
    let subject = prepare();
    Ok(subject.map(|subject| TestBench { subject, rig, load }))
}

fn work(
    args: &LabRunArgs,
    main: &TestBench<'_>,
    stamped: &[TestBench<'_>; 2],
) -> Result<LabRunReport, Error> {
    fit_for_timing()?;
    let RigWorkload { workload, order, .. } = &*main.load;
    let program = main.subject.load()?;
    let expected = answers(&main.rig, &program, &workload.flows.packets)?;
    let traffic = TrafficSequence::new(&workload.flows, order);
    let verification = match &args.expect {
        None => verify(&main.rig, &traffic, &expected, VERIFIED)?,
        Some(path) => {
            let due = pcap::read_any(path, MOST_FRAMES)?;
            capture::warn(&due);
            if due.left_out > 0 {
                let (path, n) = (path.display(), due.left_out);
                return Err(Error::Unusable(format!(
                    "{path}: {n} frames are of no length that could come back"
                )));
            }
            let due: Vec<&[u8]> = due.frames.iter().map(Vec::as_slice).collect();
            verify_against(&main.rig, &due, order.len())?
        }
    };

    let verdicts: Vec<u32> = order.iter().take(VERIFIED).map(|&i| expected[i as usize].0).collect();
    let verdict = common(&verdicts);
    let before = main.rig.counts()?;
    let sample = sample(workload, order);
    let subjects = std::slice::from_ref(&main.subject);
    let usual = MeasurementPlan::live(args.seconds);
    let plan = MeasurementPlan { seed: args.seed.unwrap_or(usual.seed), ..usual };
    let bar = Progress::timed("throughput", Duration::from_secs_f64(args.seconds));
    let throughput = compare_live(subjects, &main.rig, &sample, verdict, plan)?;
    let counts = main.rig.counts()? - before;
    drop(bar);

    let mut latencies = Vec::new();
    for bench in stamped {
        bench.rig.attach(&bench.subject.load()?)?;
        let latency = bench.rig.latencies(TIMED)?;
        latencies.push(BatchLatency { batch: bench.rig.batch(), latency });
    }
    let curve = if args.points > 0 && os::allowed_cpus().len() > 1 && !os::interrupted() {
        main.rig.attach(&program)?;
        let runs = MOST_SEARCH_RUNS + 2 * usize::from(args.points);
        let _bar = Progress::timed(
            "behaviour under load",
            Duration::from_secs_f64(runs as f64 * args.point_seconds),
        );
        Some(curve(&main.rig, &stamped[0].rig, args.points.into(), args.point_seconds)?)
    } else {
        None
    };
    let comes_back = verification.returned > 0 || counts.returned > 0;
    let warning = if comes_back { None } else { emptiness(&main.subject)? };
    Ok(LabRunReport {
        schema: 2,
        warnings: warning.into_iter().collect(),
        environment: Environment::now(),
        object: args.object.clone(),
        workload: workload.description.clone(),
        verdict: verdict_name(verdict),
        verification,
        mpps: 1e3 / throughput.sides[0].ns,
        reliability_warnings: throughput
            .reliability_warnings()
            .into_iter()
            .chain(curve.as_ref().and_then(LoadCurve::reliability_warning))
            .collect(),
        throughput,
        counts,
        lost: counts.lost(),
        latencies,
        curve,
    })
}
