//! `millstream model`: what bounds a program, and the batch and sub-batch that the performance model proposes.
//!
//! The model is in `millstream_tune`; the machine's curves come from `millstream lab calibrate --curves`.
//! docs/tuning.md.

pub mod calibrate;
pub(crate) mod demand;
mod plot;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_console::curves::known_curves;
use millstream_lab::os;
use millstream_native::Schedule;
use millstream_tune::{BoundShares, IoKind, MachineCurves, ModelPoint, ProgramDemand};
use serde::Serialize;

use crate::bench_user::subject::{
    BenchmarkRunner, BenchmarkTarget, CompileOutcome, CompileRequest, SubjectArgs,
};
use crate::bench_user::traffic::TrafficPattern;
use crate::exit::Exit;
use crate::native::{CodegenArgs, bind};
use crate::progress::Progress;

/// Flags of `millstream model`.
#[derive(Debug, clap::Args)]
pub struct ModelArgs {
    #[command(flatten)]
    subject: SubjectArgs,
    /// Curves of this machine (`millstream lab calibrate --curves`); default: those that were measured last
    #[arg(long, value_name = "FILE")]
    curves: Option<PathBuf>,
    /// Predict for packets from memory, or from one capture file into another
    #[arg(long, value_name = "KIND", value_enum, default_value = "mem")]
    io: ModelIo,
    /// Also measure, with packets from memory, and report the error of the predictions
    #[arg(long)]
    measure: bool,
    /// Write a picture of the throughput over batch and sub-batch to this file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum ModelIo {
    /// From memory; sent packets are counted
    Mem,
    /// From a capture file, and into another one
    Pcap,
}

/// Schedule by which the cost of fetching ahead is measured, where code can be exchanged: whatever is in the caches.
const AHEAD: &str = "pattern=pipelined-groups,from=256,trials=off";

/// Batches and sub-batches that are measured.
const MEASURED: [(u32, u32); 12] = [
    (1, 1),
    (4, 1),
    (16, 1),
    (64, 1),
    (256, 1),
    (16, 4),
    (16, 16),
    (64, 4),
    (64, 8),
    (64, 32),
    (256, 8),
    (256, 32),
];

/// Measured throughput.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct MeasuredPoint {
    batch: u32,
    sub_batch: u32,
    mpps: f64,
    predicted_mpps: f64,
}

/// Error of predictions, as shares of the measured throughput.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct ModelError {
    median: f64,
    largest: f64,
}

/// Result of the command.
#[derive(Clone, Debug, Serialize)]
struct ModelReport {
    schema: u32,
    program: String,
    traffic: String,
    machine: String,
    demand: ProgramDemand,
    bound_by: BoundShares,
    best: ModelPoint,
    /// The schedule that it stands for, as `--schedule` takes it.
    schedule: String,
    grid: Vec<ModelPoint>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    measured: Vec<MeasuredPoint>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ModelError>,
}

/// Runs the command.
pub fn run(args: &ModelArgs) -> Result<ExitCode> {
    os::catch_interrupts();
    if args.measure && args.io == ModelIo::Pcap {
        return Err(miette!("--measure is for packets from memory: leave --io out"));
    }
    let Some(curves) = known_curves(args.curves.as_deref())? else {
        errln!(
            "the curves of this machine are not known: `millstream lab calibrate --curves` measures them, once"
        );
        return Ok(Exit::Unknown.into());
    };
    bind(0).into_diagnostic()?;
    let tuning = CodegenArgs::default();
    let target = BenchmarkTarget::read(&args.subject, &tuning, os::monotonic_ns())?;
    let mut runner = match target.runner(&args.subject, CompileRequest::of(&tuning))? {
        CompileOutcome::Ready(runner) => runner,
        CompileOutcome::NoLlvm(why) => {
            errln!("{why}");
            return Ok(Exit::NotPermitted.into());
        }
    };
    let traffic = target.traffic(&args.subject)?;
    let mut demand = demand_of(&mut runner, (&target, &traffic), &curves)?;
    if args.io == ModelIo::Pcap {
        demand.io = IoKind::Capture;
    }
    let measured = match args.measure {
        true => {
            let measured = (&args.subject, &target, &traffic);
            measure(*runner, measured, |b, s| demand.predict(&curves, b, s).mpps)?
        }
        false => Vec::new(),
    };
    let best = demand.best(&curves);
    let report = ModelReport {
        schema: 1,
        program: args.subject.what.clone(),
        traffic: traffic.description.clone(),
        machine: curves.machine.clone(),
        bound_by: demand.shares(&curves),
        best,
        schedule: schedule_text(&best),
        grid: demand.grid(&curves),
        error: error(&measured),
        demand,
        measured,
    };
    if let Some(path) = &args.plot {
        let at = || path.display().to_string();
        std::fs::write(path, plot::picture(&report)).into_diagnostic().wrap_err_with(at)?;
    }
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&report).into_diagnostic()?),
        false => out!("{}", report.text()),
    }
    if os::interrupted() {
        errln!("interrupted: the report has what was measured until then");
        return Ok(Exit::Unknown.into());
    }
    Ok(Exit::Done.into())
}

/// Demand of a packet, for packets from memory.
fn demand_of(
    runner: &mut BenchmarkRunner,
    (target, traffic): (&BenchmarkTarget, &TrafficPattern),
    curves: &MachineCurves,
) -> Result<ProgramDemand> {
    let hot = demand::hot(runner, traffic)?;
    let demand = demand::of(curves, hot, demand::tables(runner, traffic));
    let schedule = AHEAD.parse::<Schedule>().map_err(|error| miette!("{error}"))?;
    let tuning = CodegenArgs::of_schedule(schedule);
    let Some(code) = runner.add_code(target, &CompileRequest::of(&tuning))? else { return Ok(demand) };
    runner.select(code);
    let ahead = demand::hot(runner, traffic)?;
    runner.select(0);
    Ok(ProgramDemand { ahead_ns: Some((ahead.ns - hot.ns).max(0.0)), ..demand })
}

/// The schedule of a point, as `--schedule` takes it.
fn schedule_text(point: &ModelPoint) -> String {
    let parts: Vec<String> =
        point.schedule().into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    parts.join(",")
}

/// The schedule that the model chooses for a program, if the curves of this machine are known.
///
/// # Errors
/// If the curves are damaged, or the program cannot run.
pub(crate) fn chosen_schedule(
    runner: &mut BenchmarkRunner,
    target: &BenchmarkTarget,
    traffic: &TrafficPattern,
) -> Result<Option<Schedule>> {
    let Some(curves) = known_curves(None)? else { return Ok(None) };
    let best = demand_of(runner, (target, traffic), &curves)?.best(&curves);
    schedule_text(&best).parse().map(Some).map_err(|error: String| miette!("{error}"))
}

/// Measures the throughput by some batches and sub-batches.
fn measure(
    mut runner: BenchmarkRunner,
    (subject, target, traffic): (&SubjectArgs, &BenchmarkTarget, &TrafficPattern),
    predict: impl Fn(u32, u32) -> f64,
) -> Result<Vec<MeasuredPoint>> {
    let mut bar = Progress::counted("measuring", MEASURED.len());
    let mut found = Vec::new();
    for (batch, sub_batch) in MEASURED {
        if os::interrupted() {
            break;
        }
        let text = match sub_batch {
            1 => format!("batch={batch},pattern=packets,fetch=nothing"),
            b => format!("batch={batch},pattern=pipelined-groups,sub-batch={b},from=0,trials=off"),
        };
        let schedule = text.parse::<Schedule>().map_err(|e| miette!("{e}"))?;
        let tuning = CodegenArgs::of_schedule(schedule);
        let request = CompileRequest::of(&tuning);
        let is_ready = match runner.reschedule(target, &request)? {
            true => true,
            false => match target.runner(subject, request)? {
                CompileOutcome::Ready(other) => {
                    runner = *other;
                    true
                }
                CompileOutcome::NoLlvm(_) => false,
            },
        };
        if is_ready {
            let mpps = 1e3 / demand::time(&mut runner, traffic, batch)?;
            found.push(MeasuredPoint { batch, sub_batch, mpps, predicted_mpps: predict(batch, sub_batch) });
        }
        bar.step();
    }
    Ok(found)
}

fn error(measured: &[MeasuredPoint]) -> Option<ModelError> {
    let mut errors: Vec<f64> =
        measured.iter().map(|point| (point.predicted_mpps / point.mpps - 1.0).abs()).collect();
    errors.sort_unstable_by(f64::total_cmp);
    Some(ModelError { median: *errors.get(errors.len() / 2)?, largest: *errors.last()? })
}

impl ModelReport {
    /// Text for people.
    fn text(&self) -> String {
        let (mut out, best, shares) = (String::new(), &self.best, &self.bound_by);
        // Writing to a string does not fail.
        let _ = writeln!(out, "{} on {}", self.program, self.traffic);
        let _ = writeln!(
            out,
            "bound by: processor {:.0} %, memory {:.0} %, I/O {:.0} %",
            100.0 * shares.compute,
            100.0 * shares.memory,
            100.0 * shares.io
        );
        let _ = writeln!(out, "processing {:.1} ns per packet", self.demand.compute_ns);
        for lookup in &self.demand.lookups {
            let kib = lookup.bytes.div_ceil(1024);
            let _ = writeln!(out, "table {}: {} lines in {kib} KiB", lookup.table, lookup.lines);
        }
        let _ = writeln!(out, "bound min(c, f_io, f_mem): {:.2} Mpps", best.bound_mpps);
        let _ = writeln!(
            out,
            "best: B = {}, b = {}: {:.2} Mpps, {:.1} us of latency",
            best.batch,
            best.sub_batch,
            best.mpps,
            best.latency_ns / 1e3
        );
        let _ = writeln!(out, "--schedule {}", self.schedule);
        if let Some(error) = &self.error {
            let _ = writeln!(out, "     B     b  measured  predicted (Mpps)");
            for MeasuredPoint { batch, sub_batch, mpps, predicted_mpps } in &self.measured {
                let _ = writeln!(out, "{batch:>6}{sub_batch:>6}{mpps:>10.2}{predicted_mpps:>11.2}");
            }
            let (median, largest) = (100.0 * error.median, 100.0 * error.largest);
            let _ = writeln!(out, "error: {median:.1} % at the median, {largest:.1} % at most");
        }
        out
    }
}
