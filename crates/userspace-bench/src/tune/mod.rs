//! `millstream tune`: searches the plan by which a program is fastest on this machine and traffic.
//!
//! `millstream_tune` searches; this module brings the measurements: a process for each candidate
//! (`worker`), with limits (`process`), checked and timed (`trials`). docs/tuning.md.

mod knobs;
mod process;
mod protocol;
mod report;
mod trials;
mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_console::curves::known_curves;
use millstream_lab::{environment, os};
use millstream_plan::{Plan, PlanGain, PlanOrigin, PlanSettings, ProgramIdentity};
use millstream_rng::Rng;
use millstream_tune::{Candidate, SearchMethod, SearchResult, SearchSpace, search};
use serde::Serialize;
use tempfile::NamedTempFile;

use self::knobs::ProgramChoices;
use self::process::{CandidateFailure, CandidateLimits, CandidateProcess};
use self::protocol::{CandidateReply, CandidateRequest};
use self::report::{SearchEffort, TrialRow, TuningReport, TuningVerdict};
use self::trials::{MeasuringJudge, TrialRules, as_plan};
use crate::bench_user::subject::SubjectArgs;
use crate::exit::Exit;
use crate::model::demand;
use crate::progress::Progress;
use crate::{plan, sample};

/// Flags of `millstream tune`.
#[derive(Debug, clap::Args)]
pub struct TuneArgs {
    #[command(flatten)]
    subject: SubjectArgs,
    /// Objective: packets per second, the latency of 99 % of the packets at 70 % of the default's throughput,
    /// or both alike
    #[arg(long = "for", value_name = "GOAL", value_enum, default_value = "throughput")]
    goal: TuningGoal,
    /// Refuse candidates in which 99 % of the packets take longer than this, at 70 % of the default's
    /// throughput: 20us, 1.5ms
    #[arg(long, value_name = "TIME", value_parser = time)]
    p99: Option<Duration>,
    /// Time of the whole search: 1s, 60s, 5m
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    budget: Duration,
    /// Maximum number of candidates, beside the budget
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    trials: u64,
    /// Order in which candidates are tried
    #[arg(long, value_name = "METHOD", value_enum, default_value = "evolution")]
    search: SearchOrder,
    /// Seed of the search
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Memory of a candidate's process, at most: 512M, 4G
    #[arg(long, value_name = "BYTES", default_value = "2G", value_parser = memory)]
    memory: u64,
    /// Also search the number of workers, up to this one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// Also search the number of pipeline stages of a configuration, up to this one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pipeline: u32,
    /// Curves of this machine (`millstream lab calibrate --curves`), from which the search starts; default:
    /// those that were measured last, if any
    #[arg(long, value_name = "FILE")]
    curves: Option<PathBuf>,
    /// Sample a program that runs, by its socket, as `millstream sample` does, and tune for its traffic
    #[arg(long, value_name = "SOCKET", conflicts_with = "recorded")]
    sample: Option<PathBuf>,
    /// Write the plan to this file
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Compile and time one candidate, as the search asks on standard input
    #[arg(long, hide = true)]
    serve_candidate: bool,
    /// Traffic of the candidate, in place of that of the other flags
    #[arg(long, hide = true)]
    candidate_traffic: Option<PathBuf>,
}

/// Objective of the search.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TuningGoal {
    /// Packets per second
    Throughput,
    /// The latency that 99 % of the packets do not exceed
    Latency,
    /// The geometric mean of both
    Weighted,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum SearchOrder {
    /// Selection, crossover and mutation
    Evolution,
    /// Any candidates
    Random,
    /// One setting after the other
    Greedy,
}

impl From<SearchOrder> for SearchMethod {
    fn from(order: SearchOrder) -> SearchMethod {
        match order {
            SearchOrder::Evolution => SearchMethod::Evolution,
            SearchOrder::Random => SearchMethod::Random,
            SearchOrder::Greedy => SearchMethod::Greedy,
        }
    }
}

/// Share of the budget for the search; the rest is for measuring the best candidate once more.
const SEARCHED: f64 = 0.7;
/// Time of one answer of a candidate, at most: a compilation, for example.
const ANSWER: Duration = Duration::from_secs(30);
/// Time for the default's first answers, even if the budget is shorter.
const FIRST_ANSWERS: Duration = Duration::from_secs(60);
/// Share of disturbed runs from which nothing is decided.
const TOO_DISTURBED: f64 = 0.6;

/// A time with its unit.
fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no time, as in 20us, 1.5ms, 60s or 5m");
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0)];
    let (number, unit) =
        units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit))).ok_or_else(wrong)?;
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * unit;
    if seconds > 0.0 && seconds < 1e7 { Ok(Duration::from_secs_f64(seconds)) } else { Err(wrong()) }
}

/// A number of bytes.
fn memory(text: &str) -> Result<u64, String> {
    let shift = match text.chars().last() {
        Some('K') => 10,
        Some('M') => 20,
        Some('G') => 30,
        _ => 0,
    };
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("`{text}` is no number of bytes, as in 512M or 4G"))
}

/// A trace of a running program's traffic, in a file of its own; `None` if no packets come.
fn sampled(socket: &Path) -> Result<Option<NamedTempFile>> {
    let file = NamedTempFile::new().into_diagnostic()?;
    Ok(sample::write_usual_trace(socket, file.path())?.then_some(file))
}

/// Runs the command.
pub fn run(args: &TuneArgs) -> Result<ExitCode> {
    if args.serve_candidate {
        let mut subject = args.subject.clone();
        if let Some(path) = &args.candidate_traffic {
            subject.feed = subject.feed.with_capture(path);
        }
        return worker::serve(&subject);
    }
    os::catch_interrupts();
    let trace = args.sample.as_deref().map(sampled).transpose()?;
    if let Some(None) = trace {
        errln!("no answer: no packets came to be sampled");
        return Ok(Exit::Unknown.into());
    }
    let trace = trace.flatten();
    let traffic = trace.as_ref().map(NamedTempFile::path);
    let begun = Instant::now();
    let hash = args.subject.program_hash()?;
    let outcome = {
        let _bar = Progress::timed("tuning", args.budget);
        Tuning::begin(args, traffic, begun).and_then(Tuning::finish)
    };
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(CandidateFailure::NoLlvm(why)) => {
            errln!("{why}");
            return Ok(Exit::NotPermitted.into());
        }
        Err(CandidateFailure::Over) => {
            errln!("no answer: the search ended before the default was measured; nothing changes");
            return Ok(Exit::Unknown.into());
        }
        Err(failure) => return Err(miette!("{}: {failure}", args.subject.what)),
    };
    let plan = outcome.plan(args, hash);
    let decided = matches!(outcome.report.verdict, TuningVerdict::Gain | TuningVerdict::NoGain);
    let kept = decided || outcome.report.verdict == TuningVerdict::Interrupted;
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&outcome.report).into_diagnostic()?),
        false => out!("{}", outcome.report.text(&plan)),
    }
    if let Some(path) = args.output.as_ref().filter(|_| kept) {
        write(path, &plan)?;
    }
    Ok(if decided { Exit::Done } else { Exit::Unknown }.into())
}

/// Writes a plan; a file that is there is replaced whole or not at all.
fn write(path: &Path, plan: &Plan) -> Result<()> {
    let at = || path.display().to_string();
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let put = || -> std::io::Result<()> {
        let mut new = tempfile::NamedTempFile::new_in(folder)?;
        std::io::Write::write_all(&mut new, plan.to_string().as_bytes())?;
        new.persist(path)?;
        Ok(())
    };
    put().into_diagnostic().wrap_err_with(at)
}

/// A search that is under way.
struct Tuning<'t> {
    args: &'t TuneArgs,
    begun: Instant,
    usual: CandidateProcess,
    traffic: String,
    space: SearchSpace,
    seeds: Vec<Candidate>,
    limits: CandidateLimits<'t>,
}

/// Result of a search.
struct TuningOutcome {
    report: TuningReport,
    why: Vec<String>,
}

impl<'t> Tuning<'t> {
    /// Compiles the default, and asks the model where to start.
    fn begin(
        args: &'t TuneArgs,
        recorded: Option<&'t Path>,
        begun: Instant,
    ) -> Result<Tuning<'t>, CandidateFailure> {
        let until = begun + args.budget.mul_f64(SEARCHED).max(FIRST_ANSWERS);
        let limits = CandidateLimits { answer: ANSWER, until, memory: args.memory, traffic: recorded };
        let (mut usual, ready) = CandidateProcess::start(&as_plan(PlanSettings::default()), limits)?;
        let CandidateReply::Ready { templates, fetchable, has_traversals, traffic, .. } = ready else {
            return Err(CandidateFailure::Ended);
        };
        let (workers, stages) = (args.workers, args.pipeline);
        let program = ProgramChoices { templates, fetchable, has_traversals, workers, stages };
        let space = knobs::space(&program);
        let seeds = seeds(args, &space, &mut usual)?;
        Ok(Tuning { args, begun, usual, traffic, space, seeds, limits })
    }

    /// Searches, and measures the best candidate once more.
    fn finish(self) -> Result<TuningOutcome, CandidateFailure> {
        let Tuning { args, begun, usual, traffic, space, seeds, limits } = self;
        let micros = (args.budget.as_micros() as u64 / 10_000).clamp(300, 2000);
        let p99_ns = args.p99.map(|limit| limit.as_nanos() as u64);
        let rules = TrialRules { goal: args.goal, p99_ns, micros, limits };
        let mut judge = MeasuringJudge::new((&space, rules), usual, args.seed)?;
        judge.set_end(begun + args.budget.mul_f64(SEARCHED));
        let method = SearchMethod::from(args.search);
        let mut rng = Rng::new(args.seed);
        let found = search(&space, (method, &seeds), &mut rng, &mut judge, args.trials);
        if let Some(failure) = judge.broken.take() {
            return Err(failure);
        }
        let (verdict, gain) = decide(&mut judge, begun + args.budget)?;
        let settings = |candidate: &Candidate| space.settings(candidate).unwrap_or_default();
        let kept = matches!(verdict, TuningVerdict::Gain | TuningVerdict::Interrupted);
        let report = TuningReport {
            schema: 1,
            program: args.subject.what.clone(),
            traffic,
            machine: environment::machine_line(),
            goal: args.goal,
            effort: SearchEffort {
                search: method,
                seed: args.seed,
                budget_s: args.budget.as_secs_f64(),
                seconds: begun.elapsed().as_secs_f64(),
                space: space.size() as f64,
                proposed: seeds.iter().map(|seed| settings(seed).summary()).collect(),
            },
            outputs_compared: judge.outputs_repeat,
            disturbed: judge.disturbed_share(),
            verdict,
            gain,
            settings: if kept { settings(&found.best) } else { PlanSettings::default() },
            trials: rows(&space, &found),
        };
        let why = reasons(&space, &found, verdict);
        Ok(TuningOutcome { report, why })
    }
}

/// Measures the best candidate again, and decides.
fn decide(
    judge: &mut MeasuringJudge<'_>,
    until: Instant,
) -> Result<(TuningVerdict, Option<PlanGain>), CandidateFailure> {
    if os::interrupted() {
        return Ok((TuningVerdict::Interrupted, None));
    }
    let check = match judge.check(until) {
        Err(CandidateFailure::Over) if os::interrupted() => return Ok((TuningVerdict::Interrupted, None)),
        Err(failure @ CandidateFailure::NoLlvm(_)) => return Err(failure),
        // The best candidate does not repeat what it did.
        Err(_) => return Ok((TuningVerdict::NoAnswer, None)),
        Ok(check) => check,
    };
    let noisy = judge.disturbed_share() > TOO_DISTURBED || judge.has_no_times();
    Ok(match check {
        None if noisy => (TuningVerdict::NoAnswer, None),
        None => (TuningVerdict::NoGain, None),
        Some(check) if noisy || check.is_disturbed() => (TuningVerdict::NoAnswer, None),
        Some(check) if !check.is_gain() => (TuningVerdict::NoGain, None),
        Some(check) => {
            let [low, high] = check.best.interval;
            let rounded = |factor: f64| (factor * 1e4).round() / 1e4;
            let interval = [rounded(1.0 / high), rounded(1.0 / low)];
            (TuningVerdict::Gain, Some(PlanGain { factor: rounded(1.0 / check.best.ratio), interval }))
        }
    })
}

/// Candidates to start from: what the model says, if this machine's curves are known, and other batches.
fn seeds(
    args: &TuneArgs,
    space: &SearchSpace,
    usual: &mut CandidateProcess,
) -> Result<Vec<Candidate>, CandidateFailure> {
    let mut seeds = Vec::new();
    let curves = known_curves(args.curves.as_deref())
        .map_err(|report| CandidateFailure::Refused(report.to_string()))?;
    if let Some(curves) = curves {
        let CandidateReply::Demand { hot, tables } = usual.ask(&CandidateRequest::Demand)? else {
            return Err(CandidateFailure::Ended);
        };
        let demand = demand::of(&curves, hot, tables);
        seeds.push(space.with_values(&demand.best(&curves).schedule()));
    }
    for batch in ["128", "32", "256"] {
        seeds.push(space.with_values(&[("batch", batch.to_owned())]));
    }
    seeds.dedup();
    Ok(seeds)
}

fn rows(space: &SearchSpace, found: &SearchResult) -> Vec<TrialRow> {
    let row = |trial: &millstream_tune::TrialRecord| TrialRow {
        settings: space.settings(&trial.candidate).unwrap_or_default().summary(),
        ratio: trial.result.as_ref().ok().copied(),
        failed: trial.result.as_ref().err().cloned(),
        became_best: trial.became_best,
    };
    found.trials.iter().map(row).collect()
}

/// Reasons for the plan's settings: the steps by which the search came to them.
fn reasons(space: &SearchSpace, found: &SearchResult, verdict: TuningVerdict) -> Vec<String> {
    let step = |trial: &millstream_tune::TrialRecord| {
        let ratio = trial.result.as_ref().ok()?;
        let settings = space.settings(&trial.candidate).unwrap_or_default();
        Some(format!("{:.3} of the default's time: {}", ratio, settings.summary()))
    };
    match verdict {
        TuningVerdict::Gain => {
            found.trials.iter().filter(|trial| trial.became_best).filter_map(step).collect()
        }
        TuningVerdict::NoGain => vec!["no candidate was faster beyond doubt".to_owned()],
        TuningVerdict::Interrupted => {
            vec!["the search was interrupted: the gain was not measured a second time".to_owned()]
        }
        TuningVerdict::NoAnswer => Vec::new(),
    }
}

impl TuningOutcome {
    fn plan(&self, args: &TuneArgs, hash: u64) -> Plan {
        let report = &self.report;
        let goal = match (args.goal, args.p99) {
            (TuningGoal::Throughput, None) => "throughput".to_owned(),
            (TuningGoal::Throughput, Some(limit)) => format!("throughput, 99 % within {limit:?}"),
            (TuningGoal::Latency, _) => "latency".to_owned(),
            (TuningGoal::Weighted, _) => "throughput and latency".to_owned(),
        };
        Plan {
            origin: PlanOrigin {
                program: ProgramIdentity { name: report.program.clone(), hash },
                version: plan::VERSION.to_owned(),
                machine: report.machine.clone(),
                traffic: report.traffic.clone(),
                goal,
                trials: report.trials.len() as u64,
            },
            gain: report.gain,
            why: self.why.clone(),
            settings: report.settings.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_have_units() {
        assert_eq!(time("20us"), Ok(Duration::from_micros(20)));
        assert_eq!(
            (time("1.5ms"), time("5m")),
            (Ok(Duration::from_micros(1500)), Ok(Duration::from_secs(300)))
        );
        assert!(time("20").is_err() && time("-1s").is_err() && time("manys").is_err());
        assert_eq!((memory("512M"), memory("77")), (Ok(512 << 20), Ok(77)));
        assert!(memory("0").is_err() && memory("4T").is_err() && memory("99999999999999999999G").is_err());
    }
}
