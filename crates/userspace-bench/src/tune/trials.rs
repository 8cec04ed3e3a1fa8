//! Trials: candidates in processes, checked against the default and raced against the best one so far.

use std::time::{Duration, Instant};

use millstream_lab::os;
use millstream_plan::{Plan, PlanSettings};
use millstream_rng::Rng;
use millstream_tune::{
    Candidate, CandidateJudge, CandidateResult, GainCheck, RaceRules, SearchSpace, check_gain, race,
};

use super::TuningGoal;
use super::process::{CandidateFailure, CandidateLimits, CandidateProcess};
use super::protocol::{CandidateReply, CandidateRequest};
use crate::bench_user::outputs::OutputDigest;

/// Packets whose outputs are compared.
const CHECKED: u64 = 8192;
/// Runs of one time.
const RUNS: u32 = 3;
/// Milliseconds of a paced run, and its load: the share of the default's throughput.
const PACED_MS: u64 = 30;
const LOAD: f64 = 0.7;
/// Triples that decide about the gain, at most; fewer than the statistics need decide nothing.
const TRIPLES: usize = 30;
const LEAST_TRIPLES: usize = 10;

/// Objective, and what measuring it needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrialRules<'t> {
    /// Objective.
    pub(super) goal: TuningGoal,
    /// Latency that 99 % of the packets may have, in nanoseconds.
    pub(super) p99_ns: Option<u64>,
    /// Microseconds of a run.
    pub(super) micros: u64,
    /// Limits of each process.
    pub(super) limits: CandidateLimits<'t>,
}

/// A checked candidate that runs.
struct RunningCandidate {
    candidate: Candidate,
    process: CandidateProcess,
}

/// Judge of candidates by measurement.
pub(super) struct MeasuringJudge<'j> {
    space: &'j SearchSpace,
    rules: TrialRules<'j>,
    rng: Rng,
    /// The default, which is kept for the check of the gain.
    usual: CandidateProcess,
    digest: OutputDigest,
    /// True if the default's outputs repeat: else only counts are compared.
    pub(super) outputs_repeat: bool,
    /// Packets per second at which latency is measured.
    rate: f64,
    /// The best one, if it is not the default.
    best: Option<RunningCandidate>,
    /// Times, and the share of disturbed runs.
    times: u64,
    disturbed: f64,
    /// Reason why no candidate can be measured any more.
    pub(super) broken: Option<CandidateFailure>,
}

/// Settings as a plan without an origin, for candidates.
pub(super) fn as_plan(settings: PlanSettings) -> Plan {
    Plan { settings, ..Plan::default() }
}

fn digest(process: &mut CandidateProcess) -> Result<OutputDigest, CandidateFailure> {
    match process.ask(&CandidateRequest::Check(CHECKED))? {
        CandidateReply::Digest(digest) => Ok(digest),
        _ => Err(CandidateFailure::Ended),
    }
}

impl<'j> MeasuringJudge<'j> {
    /// A judge that starts with the default's process.
    ///
    /// # Errors
    /// If the default cannot be run, or no packet comes.
    pub(super) fn new(
        (space, rules): (&'j SearchSpace, TrialRules<'j>),
        mut usual: CandidateProcess,
        seed: u64,
    ) -> Result<MeasuringJudge<'j>, CandidateFailure> {
        let found = digest(&mut usual)?;
        if found.received == 0 {
            return Err(CandidateFailure::Refused("no packet comes".to_owned()));
        }
        // Another process says whether outputs depend on more than the packets.
        let (mut twin, _) = CandidateProcess::start(&as_plan(PlanSettings::default()), rules.limits)?;
        let again = digest(&mut twin)?;
        let mut judge = MeasuringJudge {
            space,
            rules,
            rng: Rng::new(seed),
            usual,
            digest: found,
            outputs_repeat: found.agrees(&again),
            rate: 0.0,
            best: None,
            times: 0,
            disturbed: 0.0,
            broken: None,
        };
        if judge.needs_latency() {
            let (ns, _) = time(&mut judge.usual, &rules)?;
            judge.rate = LOAD * 1e9 / ns.max(1.0);
        }
        Ok(judge)
    }

    fn needs_latency(&self) -> bool {
        self.rules.goal != TuningGoal::Throughput || self.rules.p99_ns.is_some()
    }

    /// Sets the end of the search.
    pub(super) fn set_end(&mut self, until: Instant) {
        self.rules.limits.until = until;
        self.usual.set_end(until);
    }

    /// Returns true if nothing was timed.
    pub(super) fn has_no_times(&self) -> bool {
        self.times == 0
    }

    /// Share of runs that were disturbed.
    pub(super) fn disturbed_share(&self) -> f64 {
        self.disturbed / self.times.max(1) as f64
    }

    fn note(&mut self, disturbed: &[f64]) {
        self.times += disturbed.len() as u64;
        self.disturbed += disturbed.iter().sum::<f64>();
    }

    /// Compiles a candidate, and checks that it does what the default does.
    fn prepare(&mut self, candidate: &Candidate) -> Result<CandidateProcess, CandidateFailure> {
        let settings = self.space.settings(candidate).map_err(CandidateFailure::Refused)?;
        let (mut process, _) = CandidateProcess::start(&as_plan(settings), self.rules.limits)?;
        let found = digest(&mut process)?;
        let same = match self.outputs_repeat {
            true => found.agrees(&self.digest),
            false => found.counts_agree(&self.digest),
        };
        if !same {
            return Err(CandidateFailure::Refused("its outputs differ from the default's".to_owned()));
        }
        if let Some(most) = self.rules.p99_ns {
            let p99 = latency(&mut process, self.rate)?;
            if p99 > most as f64 {
                let found = format!("99 % of the packets take up to {:.1} us", p99 / 1e3);
                return Err(CandidateFailure::Refused(found));
            }
        }
        Ok(process)
    }

    /// Races a candidate against the best one so far: ratio of times, and true if it is faster.
    fn try_out(&mut self, candidate: &Candidate) -> Result<(f64, bool), CandidateFailure> {
        let mut process = self.prepare(candidate)?;
        let (rules, rate) = (self.rules, self.rate);
        let (mut order, mut rng) = (Rng::new(self.rng.next_u64()), Rng::new(self.rng.next_u64()));
        let reference = self.best.as_mut().map_or(&mut self.usual, |best| &mut best.process);
        let mut noted = Vec::new();
        let raced = race(RaceRules::default(), &mut rng, || {
            let mut times = [0.0; 2];
            let from = order.below(2) as usize;
            for at in [from, 1 - from] {
                let measured = if at == 0 { &mut *reference } else { &mut process };
                let (cost, disturbed) = cost(measured, &rules, rate)?;
                times[at] = cost;
                noted.push(disturbed);
            }
            Ok::<_, CandidateFailure>(Some((times[0], times[1])))
        });
        self.note(&noted);
        let outcome = raced?;
        if outcome.is_better() {
            self.best = Some(RunningCandidate { candidate: candidate.clone(), process });
        }
        Ok((outcome.estimate.ratio, outcome.is_better()))
    }

    /// Measures the best candidate once more beside two processes of the default, until `until`; `None` if no
    /// candidate was better.
    ///
    /// # Errors
    /// If a process fails.
    pub(super) fn check(&mut self, until: Instant) -> Result<Option<GainCheck>, CandidateFailure> {
        let Some(best) = self.best.take() else { return Ok(None) };
        // What must be measured is measured, even if that takes longer.
        let late = until + Duration::from_secs(10);
        self.rules.limits.until = late;
        self.usual.set_end(late);
        let (mut twin, _) = CandidateProcess::start(&as_plan(PlanSettings::default()), self.rules.limits)?;
        // Another process has its code in another place: a gain by luck is lost.
        let mut process = self.prepare(&best.candidate)?;
        digest(&mut twin)?;
        let mut triples = Vec::new();
        while triples.len() < TRIPLES && !os::interrupted() {
            if triples.len() >= LEAST_TRIPLES && Instant::now() > until {
                break;
            }
            let mut times = [0.0; 3];
            let from = self.rng.below(3) as usize;
            for at in (0..3).map(|step| (from + step) % 3) {
                let measured = match at {
                    0 => &mut self.usual,
                    1 => &mut twin,
                    _ => &mut process,
                };
                let (found, disturbed) = cost(measured, &self.rules, self.rate)?;
                times[at] = found;
                self.note(&[disturbed]);
            }
            triples.push(times);
        }
        Ok(Some(check_gain(&triples, &mut self.rng)))
    }
}

/// Cost of a packet in a process, as the objective counts it, and the share of disturbed runs.
fn cost(
    process: &mut CandidateProcess,
    rules: &TrialRules<'_>,
    rate: f64,
) -> Result<(f64, f64), CandidateFailure> {
    Ok(match rules.goal {
        TuningGoal::Throughput => time(process, rules)?,
        TuningGoal::Latency => (latency(process, rate)?, 0.0),
        TuningGoal::Weighted => {
            let (ns, disturbed) = time(process, rules)?;
            ((ns * latency(process, rate)?).sqrt(), disturbed)
        }
    })
}

/// Nanoseconds per packet, and the share of disturbed runs.
fn time(process: &mut CandidateProcess, rules: &TrialRules<'_>) -> Result<(f64, f64), CandidateFailure> {
    match process.ask(&CandidateRequest::Time { micros: rules.micros, runs: RUNS })? {
        CandidateReply::Timed { ns, disturbed } => Ok((ns, disturbed)),
        _ => Err(CandidateFailure::Ended),
    }
}

/// 99th percentile of a packet's latency, in nanoseconds.
fn latency(process: &mut CandidateProcess, rate: f64) -> Result<f64, CandidateFailure> {
    match process.ask(&CandidateRequest::Pace { rate, millis: PACED_MS })? {
        CandidateReply::Paced(Some(ns)) => Ok((ns as f64).max(1.0)),
        CandidateReply::Paced(None) => Err(CandidateFailure::Refused("no packet came in time".to_owned())),
        _ => Err(CandidateFailure::Ended),
    }
}

impl CandidateJudge for MeasuringJudge<'_> {
    fn compare(&mut self, candidate: &Candidate, _: &Candidate) -> CandidateResult {
        if os::interrupted() || Instant::now() > self.rules.limits.until {
            return CandidateResult::Over;
        }
        match self.try_out(candidate) {
            Ok((ratio, better)) => CandidateResult::Compared(ratio, better),
            Err(CandidateFailure::Over) => CandidateResult::Over,
            Err(failure @ CandidateFailure::NoLlvm(_)) => {
                self.broken = Some(failure);
                CandidateResult::Over
            }
            Err(failure) => CandidateResult::Failed(failure.to_string()),
        }
    }
}
