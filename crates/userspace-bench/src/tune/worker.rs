//! A candidate's process: it compiles one plan, and then checks and times it as the tuner asks.
//!
//! A process for each candidate, since code that hangs, crashes or takes all memory must not end the search.

use std::io::{BufRead as _, stdin};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, miette};
use millstream_lab::stats::quantile;
use millstream_plan::{Plan, PlanSettings};

use super::protocol::{CandidateReply, CandidateRequest, TemplateFacts};
use crate::bench_user::outputs::CLOCK;
use crate::bench_user::paced::OfferedLoad;
use crate::bench_user::subject::{
    BenchmarkRunner, BenchmarkTarget, CompileOutcome, CompileRequest, SubjectArgs,
};
use crate::bench_user::traffic::TrafficPattern;
use crate::exit::Exit;
use crate::model::demand;
use crate::native::{CodegenArgs, bind};
use crate::output;

/// Packets that warm up caches and buffers; their time is deducted from that of longer runs.
const WARM: u64 = 2048;
/// Longest step of a paced worker that is counted as its own.
const LONGEST_STEP: Duration = Duration::from_micros(200);
/// Runs that take longer than the shortest by this factor were disturbed.
const DISTURBED: f64 = 1.25;
/// Seed of all candidates, so that they do the same.
const SEED: u64 = 1;

/// Serves the tuner until it closes its end.
pub(super) fn serve(args: &SubjectArgs) -> Result<ExitCode> {
    // The tuner may be killed.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .into_diagnostic()?;
    bind(0).into_diagnostic()?;
    let mut lines = stdin().lock().lines();
    let mut next = || -> Result<Option<CandidateRequest>> {
        let Some(line) = lines.next() else { return Ok(None) };
        serde_json::from_str(&line.into_diagnostic()?).into_diagnostic().map(Some)
    };
    let Some(CandidateRequest::Compile(text)) = next()? else {
        return Err(miette!("a candidate begins with its plan"));
    };
    let settings = text.parse::<Plan>().into_diagnostic()?.settings;
    let mut candidate = match TimedCandidate::compile(args, &settings) {
        Ok(Ok(candidate)) => candidate,
        Ok(Err(reply)) => return answer(&reply).map(|()| Exit::Done.into()),
        Err(report) => {
            let why: Vec<String> = report.chain().map(ToString::to_string).collect();
            return answer(&CandidateReply::Failed(why.join(": "))).map(|()| Exit::Done.into());
        }
    };
    answer(&candidate.description())?;
    while let Some(request) = next()? {
        answer(&candidate.answer(&request)?)?;
    }
    Ok(Exit::Done.into())
}

fn answer(reply: &CandidateReply) -> Result<()> {
    outln!("{}", serde_json::to_string(reply).into_diagnostic()?);
    output::flush();
    Ok(())
}

/// A candidate with its packets.
struct TimedCandidate {
    runner: BenchmarkRunner,
    traffic: TrafficPattern,
    /// Nanoseconds per packet, as far as known.
    level: f64,
}

impl TimedCandidate {
    /// Compiles a candidate; an answer if there is no LLVM.
    fn compile(
        args: &SubjectArgs,
        settings: &PlanSettings,
    ) -> Result<Result<TimedCandidate, CandidateReply>> {
        let tuning = CodegenArgs::default().planned(settings)?;
        // Outputs are compared with those of other processes, at one time of the programs.
        let target = BenchmarkTarget::read(args, &tuning, CLOCK)?;
        let request = CompileRequest {
            workers: tuning.workers()?,
            stages: tuning.pipeline.is_some(),
            seed: Some(SEED),
            ..CompileRequest::of(&tuning)
        };
        let runner = match target.runner(args, request)? {
            CompileOutcome::Ready(runner) => *runner,
            CompileOutcome::NoLlvm(why) => return Ok(Err(CandidateReply::NoLlvm(why))),
        };
        Ok(Ok(TimedCandidate { runner, traffic: target.traffic(args)?, level: 0.0 }))
    }

    fn description(&self) -> CandidateReply {
        let (schedule, templates) = (self.runner.schedule(), self.runner.templates());
        let templates = templates.into_iter().map(|(table, template)| TemplateFacts { table, template });
        CandidateReply::Ready {
            compiled_ms: self.runner.compiled_ms(),
            templates: templates.collect(),
            has_traversals: !schedule.lookups.cached.is_empty(),
            fetchable: schedule.tables.into_iter().map(|decision| decision.table).collect(),
            traffic: self.traffic.description.clone(),
        }
    }

    fn answer(&mut self, request: &CandidateRequest) -> Result<CandidateReply> {
        Ok(match *request {
            CandidateRequest::Compile(_) => return Err(miette!("a candidate is compiled once")),
            CandidateRequest::Check(count) => {
                CandidateReply::Digest(self.runner.digest(&self.traffic, count)?)
            }
            CandidateRequest::Time { micros, runs } => self.time(micros, runs)?,
            CandidateRequest::Pace { rate, millis } => {
                let length = Duration::from_millis(millis);
                let load = OfferedLoad { rate: Some(rate), length, longest_step: LONGEST_STEP };
                let batch = self.runner.batch() as usize;
                let ran = self.runner.paced(&self.traffic, &load, batch)?;
                CandidateReply::Paced(ran.latencies.percentile(0.99))
            }
            CandidateRequest::Demand => {
                let hot = demand::hot(&mut self.runner, &self.traffic)?;
                let tables = demand::tables(&mut self.runner, &self.traffic);
                CandidateReply::Demand { hot, tables }
            }
        })
    }

    /// Nanoseconds of so many packets.
    fn wall(&mut self, count: u64) -> Result<f64> {
        let batch = self.runner.batch() as usize;
        Ok(self.runner.run(&self.traffic, count, batch)?.wall.as_nanos() as f64)
    }

    /// Times runs. Each begins with new buffers, so the time of short runs is deducted.
    fn time(&mut self, micros: u64, runs: u32) -> Result<CandidateReply> {
        if self.level == 0.0 {
            self.wall(WARM)?;
            self.level = (self.wall(2 * WARM)? / (2 * WARM) as f64).max(0.1);
        }
        let count = WARM + ((micros * 1000) as f64 / self.level) as u64;
        let (mut short, mut long) = (Vec::new(), Vec::new());
        let begun = Instant::now();
        for _ in 0..runs {
            short.push(self.wall(WARM)?);
            long.push(self.wall(count)?);
            // A neighbour may have taken the processor for long.
            if begun.elapsed() > Duration::from_micros(micros) * runs * 20 {
                break;
            }
        }
        let least = long.iter().copied().fold(f64::INFINITY, f64::min);
        let disturbed = long.iter().filter(|wall| **wall > least * DISTURBED).count();
        let (short_ns, long_ns) = (quantile(&mut short, 0.1), quantile(&mut long, 0.1));
        let ns = ((long_ns - short_ns) / (count - WARM).max(1) as f64).max(0.01);
        self.level = ns.max(0.1);
        Ok(CandidateReply::Timed { ns, disturbed: disturbed as f64 / long.len().max(1) as f64 })
    }
}
