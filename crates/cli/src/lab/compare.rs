//! `millstream lab compare`.

use std::process::ExitCode;
use std::time::Duration;

use miette::{IntoDiagnostic, miette};
use millstream_kernel::{KernelProgram, Namespace};
use millstream_lab::compare::{ComparisonReport, common, compare_live, compare_test_runs};
use millstream_lab::environment::{Environment, fit_for_timing};
use millstream_lab::measure::MeasurementPlan;
use millstream_lab::stats::TimingVerdict;
use millstream_lab::subject::ProgramUnderTest;
use millstream_lab::verify::{answers, is_sent, verdicts};
use millstream_lab::workload::Workload;
use millstream_lab::{Error, RigConfig, TestRig, TrafficSequence, os};
use millstream_object::Object;
use millstream_userspace::native::tables::MapDumpFile;
use serde::Serialize;

use super::{MapFileArgs, TrafficArgs, emptiness, fill, interrupted, is_length, open, refused, short, text};
use crate::exit::Exit;
use crate::progress::Progress;

/// Packets of the traffic on which instructions are counted and verdicts compared.
pub(super) const SAMPLE: usize = 256;

/// Flags of `millstream lab compare`.
#[derive(Debug, clap::Args)]
pub(super) struct CompareArgs {
    /// Objects, as FILE.o, FILE.o:PROGRAM or builtin:NAME; the others are compared with the first
    #[arg(required = true, num_args = 2.., value_name = "OBJECT")]
    objects: Vec<String>,
    #[command(flatten)]
    feed: TrafficArgs,
    #[command(flatten)]
    fillings: MapFileArgs,
    /// Run live frames through devices instead of test runs: many flows, cold branches, less resolution
    #[arg(long)]
    live: bool,
    /// Number of packets per test run, drawn from the traffic; 1 gives the most exact comparison
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "live")]
    packets: usize,
    /// Duration of the measurement, in seconds; it does not depend on the result
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,
    /// Copies of each program per generation; default: 8, or 4 on live frames
    #[arg(long, value_name = "N")]
    copies: Option<usize>,
    /// CPU to measure on; default: the last one
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
    /// Give each object separate maps, even if the first object has the same maps
    #[arg(long)]
    own_maps: bool,
    /// Seed of the random choices
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct CompareReport<'a> {
    schema: u32,
    environment: Environment,
    workload: &'a str,
    shared_maps: bool,
    report: &'a ComparisonReport,
    reliability_warnings: Vec<String>,
    /// Likely mistakes of the user.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
}

/// Runs the command.
pub(super) fn run(args: &CompareArgs) -> Result<ExitCode, miette::Report> {
    if !is_length(args.seconds) || args.packets == 0 || args.copies == Some(0) {
        return Err(miette!(
            "seconds, packets and copies must be more than zero, and seconds no more than a day"
        ));
    }
    let opened: Vec<_> = args.objects.iter().map(|spec| open(spec)).collect::<Result<_, _>>()?;
    let fillings = args.fillings.read()?;
    let outcome =
        if args.live { live(args, &opened, &fillings)? } else { test_runs(args, &opened, &fillings)? };
    let (workload, report, warnings) = match outcome {
        Ok(outcome) => outcome,
        Err(e) => return refused(e),
    };
    if os::interrupted() {
        return Ok(interrupted().into());
    }
    let document = CompareReport {
        schema: 2,
        environment: Environment::now(),
        workload: &workload,
        shared_maps: !args.own_maps,
        report: &report,
        reliability_warnings: report.reliability_warnings(),
        warnings: &warnings,
    };
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&document).into_diagnostic()?);
    } else {
        out!("{}", text::comparison(&document.environment, &workload, &report, &warnings));
    }
    Ok(answer(&report).into())
}

/// Exit code for a comparison.
fn answer(report: &ComparisonReport) -> Exit {
    let any = |verdict| report.sides.iter().any(|s| s.against_first.is_some_and(|r| r.verdict == verdict));
    if !report.reliability_warnings().is_empty() || any(TimingVerdict::TooFewGenerations) {
        Exit::Unknown
    } else if any(TimingVerdict::Slower) {
        Exit::Negative
    } else {
        Exit::Done
    }
}

/// Description of the workload, report, and warnings.
type CompareResult = Result<Result<(String, ComparisonReport, Vec<String>), Error>, miette::Report>;
type ObjectProgram = (Object, Option<String>);

fn test_runs(args: &CompareArgs, opened: &[ObjectProgram], fillings: &[MapDumpFile]) -> CompareResult {
    const LOOPBACK: u32 = 1;
    let (load, order) = args.feed.workload(&args.objects[0], [LOOPBACK; 2])?;
    let packets: Vec<_> =
        order.iter().take(args.packets).map(|&i| load.flows.packets[i as usize].clone()).collect();
    let measure = || {
        fit_for_timing()?;
        let subjects = subjects(args, opened, (&load, fillings), &Namespace::current()?)?;
        let cpu = args.cpu.or_else(|| os::allowed_cpus().last().copied()).unwrap_or(0);
        let _bar = Progress::timed("measuring", Duration::from_secs_f64(args.seconds));
        let report =
            compare_test_runs(&subjects, &packets, cpu, plan(args, MeasurementPlan::test_run(args.seconds)))?;
        let warnings = silent(&subjects, |program| verdicts(program, &packets))?;
        Ok((load.description.clone(), report, warnings))
    };
    Ok(measure())
}

fn live(args: &CompareArgs, opened: &[ObjectProgram], fillings: &[MapDumpFile]) -> CompareResult {
    let rig = match TestRig::new(RigConfig { cpu: args.cpu, ..RigConfig::default() }) {
        Ok(rig) => rig,
        Err(e) => return Ok(Err(e)),
    };
    let (load, order) = args.feed.workload(&args.objects[0], [rig.test_port(), rig.second_port()])?;
    let measure = || {
        fit_for_timing()?;
        let subjects = subjects(args, opened, (&load, fillings), rig.namespace())?;
        rig.load_traffic(&TrafficSequence::new(&load.flows, &order))?;
        let sample = sample(&load, &order);
        let verdicts: Vec<u32> =
            answers(&rig, &subjects[0].load()?, &sample)?.into_iter().map(|(v, _)| v).collect();
        let _bar = Progress::timed("measuring", Duration::from_secs_f64(args.seconds));
        let plan = plan(args, MeasurementPlan::live(args.seconds));
        let report = compare_live(&subjects, &rig, &sample, common(&verdicts), plan)?;
        let of = |program: &KernelProgram| {
            Ok(answers(&rig, program, &sample)?.into_iter().map(|(v, _)| v).collect())
        };
        let warnings = silent(&subjects, of)?;
        Ok((load.description.clone(), report, warnings))
    };
    Ok(measure())
}

/// Warnings about programs that send none of some frames, by their verdicts, and have empty tables.
fn silent(
    subjects: &[ProgramUnderTest<'_>],
    verdicts: impl Fn(&KernelProgram) -> Result<Vec<u32>, Error>,
) -> Result<Vec<String>, Error> {
    let mut warnings = Vec::new();
    for subject in subjects {
        if !verdicts(&subject.load()?)?.into_iter().any(is_sent) {
            warnings.extend(emptiness(subject)?);
        }
    }
    Ok(warnings)
}

/// The first packets of the traffic.
pub(super) fn sample(load: &Workload, order: &[u32]) -> Vec<Vec<u8>> {
    order.iter().take(SAMPLE).map(|&i| load.flows.packets[i as usize].clone()).collect()
}

fn subjects<'o>(
    args: &CompareArgs,
    opened: &'o [ObjectProgram],
    (load, fillings): (&Workload, &[MapDumpFile]),
    namespace: &Namespace,
) -> Result<Vec<ProgramUnderTest<'o>>, Error> {
    let _bar = Progress::open("filling tables");
    let mut out: Vec<ProgramUnderTest<'o>> = Vec::new();
    for (spec, (object, program)) in args.objects.iter().zip(opened) {
        let shared = if args.own_maps { None } else { out.first() };
        let subject = ProgramUnderTest::prepare(short(spec), object, program.as_deref(), shared)?;
        fill(&subject, load, fillings, namespace)?;
        out.push(subject);
    }
    Ok(out)
}

fn plan(args: &CompareArgs, usual: MeasurementPlan) -> MeasurementPlan {
    MeasurementPlan {
        copies: args.copies.unwrap_or(usual.copies),
        seed: args.seed.unwrap_or(usual.seed),
        ..usual
    }
}
