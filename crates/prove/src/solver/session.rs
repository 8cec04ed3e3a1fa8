//! Questions to several solvers at once.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::canonical::{CanonicalQuery, canonical};
use super::process::{LineRead, SolverProcess};
use super::query::SolverQuery;
use super::smt::{self, SmtDefinitions};
use super::{BackendStats, Solver, SolverAnswer, SolverBackend, SolverError, SolverModel, SolverUsage};
use crate::ProofLimits;
use crate::cache::{CachedAnswer, CachedVerdict, ProofCache, TrustLevel};
use crate::term::{TermId, TermPool};

/// Longest question, in bytes of SMT-LIB.
const LONGEST: usize = 64 << 20;
/// Extra time for a solver that keeps a time limit itself, before it is killed.
const GRACE: Duration = Duration::from_millis(1000);
/// Time limit for the values of a model.
const MODEL_TIME: Duration = Duration::from_secs(2);
/// Interval at which several solvers are polled.
const TICK: Duration = Duration::from_micros(500);
/// Failures after which a solver is not asked any more.
const MOST_FAILURES: usize = 3;

/// One solver in a session.
#[derive(Debug)]
struct BackendSession {
    backend: SolverBackend,
    process: Option<SolverProcess>,
    defined: SmtDefinitions,
    failures: usize,
    part: BackendStats,
    /// Time at which it was given the question that it has not yet answered.
    since: Option<Instant>,
}

/// Answer of one solver.
enum BackendReply {
    Valid,
    Refuted(SolverModel),
    GaveUp(String),
    Failed(SolverError),
}

/// Running solvers, which remember the definitions sent to them.
#[derive(Debug)]
pub(crate) struct SolverSession {
    lanes: Vec<BackendSession>,
    pub(super) cache: ProofCache,
    memory: u64,
    /// Longest time for a question.
    longest: Duration,
    head_start: Duration,
    agree: bool,
    alone: bool,
    keep: PathBuf,
    asked: usize,
    cached: BTreeMap<String, usize>,
    trusted: usize,
}

impl SolverSession {
    pub(super) fn new(solver: &Solver, limits: &ProofLimits) -> SolverSession {
        let lane = |b: &SolverBackend| BackendSession {
            backend: b.clone(),
            process: None,
            defined: SmtDefinitions::default(),
            failures: 0,
            part: BackendStats { name: b.name(), ..BackendStats::default() },
            since: None,
        };
        SolverSession {
            lanes: solver.backends.iter().map(lane).collect(),
            cache: solver.cache.clone(),
            memory: limits.memory,
            longest: limits.time,
            head_start: solver.head_start,
            agree: solver.agree,
            alone: false,
            keep: solver.keep.clone(),
            asked: 0,
            cached: BTreeMap::new(),
            trusted: 0,
        }
    }

    /// A session for questions that have little in common: each is solved on its own, which is many times as
    /// fast if values are looked for.
    pub(crate) fn for_values(self) -> SolverSession {
        SolverSession { alone: true, ..self }
    }

    /// Forgets all terms that were sent, as a new session would.
    pub(crate) fn reset(&mut self) {
        for lane in &mut self.lanes {
            lane.defined = SmtDefinitions::default();
            if let Some(process) = &mut lane.process {
                process.send("(reset)\n");
                process.send(lane.backend.greeting());
            }
        }
    }

    /// Questions so far, and the solvers that answered them.
    pub(crate) fn answers(&self) -> SolverUsage {
        SolverUsage {
            asked: self.asked,
            cached: self.cached.iter().map(|(who, n)| (who.clone(), *n)).collect(),
            trusted: self.trusted,
            solvers: self.lanes.iter().filter(|l| l.part.asked > 0).map(|l| l.part.clone()).collect(),
        }
    }

    /// Decides if a claim always holds. If not, asks for the values of `wanted` for which it fails.
    pub(crate) fn valid(
        &mut self,
        terms: &TermPool,
        claim: TermId,
        wanted: &[TermId],
        time: Duration,
    ) -> Result<SolverAnswer, SolverError> {
        self.asked += 1;
        let form = canonical(terms, claim, wanted);
        let found = form.as_ref().and_then(|form| self.cache.get(&form.key));
        if let (Some(form), Some(found)) = (&form, &found)
            && found.standing != TrustLevel::Hint
            && let Some(answer) = remembered(&found.entry, form)
        {
            *self.cached.entry(found.entry.solver.clone()).or_default() += 1;
            self.trusted += usize::from(found.standing == TrustLevel::Trusted);
            return Ok(answer);
        }
        let start = Instant::now();
        let hint = found.map(|found| found.entry.solver);
        let question = SolverQuery { terms, claim, wanted, time, alone: self.alone };
        let (answer, by) = self.race(&question, hint.as_deref())?;
        if let (Some(form), Some(by)) = (form, by) {
            let solver = self.lanes[by].part.name.clone();
            if let Some(said) = worth_remembering(&answer, &form) {
                self.cache.put(form.key, CachedAnswer { said, solver, time: start.elapsed() });
            }
        }
        Ok(answer)
    }

    /// Asks one solver after the other until one answers; returns the answer and the solver's index. The
    /// solver named by the hint, which is said to have answered before, is asked first.
    fn race(
        &mut self,
        q: &SolverQuery<'_>,
        hint: Option<&str>,
    ) -> Result<(SolverAnswer, Option<usize>), SolverError> {
        let mut deadline = Instant::now() + q.time;
        let mut waiting: Vec<usize> =
            (0..self.lanes.len()).filter(|l| self.lanes[*l].usable()).rev().collect();
        waiting.sort_by_key(|l| hint.is_some_and(|name| self.lanes[*l].is_called(name)));
        let mut said: Vec<(usize, BackendReply)> = Vec::new();
        let mut next_start = Instant::now();
        loop {
            let pending = self.pending();
            if Instant::now() >= deadline {
                waiting.clear();
            }
            if decided(&said, pending.is_empty() && waiting.is_empty(), self.agree) {
                break;
            }
            if (self.agree || pending.is_empty() || Instant::now() >= next_start)
                && let Some(lane) = waiting.pop()
            {
                let before = Instant::now();
                if let Err(e) = self.lanes[lane].ask(q, self.memory, self.longest) {
                    said.push((lane, BackendReply::Failed(e)));
                }
                // The time limit is for the question, not for the start of the solver.
                deadline += before.elapsed();
                next_start = Instant::now() + self.head_start;
                continue;
            }
            let now = Instant::now();
            if now >= deadline + GRACE {
                break;
            }
            let until = match (pending.as_slice(), waiting.is_empty()) {
                ([_], true) => deadline + GRACE,
                ([_], false) => next_start.min(deadline + GRACE),
                _ => now + TICK,
            };
            for lane in pending {
                let word = self.lanes[lane].hear(q, until);
                said.extend(word.map(|w| (lane, w)));
            }
        }
        self.conclude(q, said)
    }

    fn pending(&self) -> Vec<usize> {
        (0..self.lanes.len()).filter(|l| self.lanes[*l].since.is_some()).collect()
    }

    /// Ends the solvers that have not answered, and returns the answer.
    fn conclude(
        &mut self,
        q: &SolverQuery<'_>,
        mut said: Vec<(usize, BackendReply)>,
    ) -> Result<(SolverAnswer, Option<usize>), SolverError> {
        // Another solver may just have given a contradictory answer.
        for lane in self.pending() {
            let word = self.lanes[lane].hear(q, Instant::now());
            said.extend(word.map(|w| (lane, w)));
        }
        let first =
            said.iter().position(|(_, w)| matches!(w, BackendReply::Valid | BackendReply::Refuted(_)));
        for lane in self.pending() {
            self.lanes[lane].cancel(first.is_some());
        }
        let contrary = |a: &BackendReply| {
            matches!(a, BackendReply::Valid) != matches!(said[first.unwrap_or(0)].1, BackendReply::Valid)
        };
        let definite = |w: &BackendReply| matches!(w, BackendReply::Valid | BackendReply::Refuted(_));
        if let Some(at) = first
            && let Some((other, _)) = said.iter().find(|(_, w)| definite(w) && contrary(w))
        {
            let why = self.contradiction(q, said[at].0, *other, matches!(said[at].1, BackendReply::Valid));
            return Ok((SolverAnswer::Unknown(why), None));
        }
        if let Some(at) = first {
            let (lane, word) = said.swap_remove(at);
            let part = &mut self.lanes[lane].part;
            return Ok(match word {
                BackendReply::Refuted(model) => {
                    part.refuted += 1;
                    (SolverAnswer::Refuted(model), Some(lane))
                }
                _ => {
                    part.valid += 1;
                    (SolverAnswer::Valid, Some(lane))
                }
            });
        }
        self.nothing(said)
    }

    /// Result if no solver has answered.
    fn nothing(
        &self,
        said: Vec<(usize, BackendReply)>,
    ) -> Result<(SolverAnswer, Option<usize>), SolverError> {
        let (mut reasons, mut failed) = (Vec::new(), None);
        for (lane, word) in said {
            match word {
                BackendReply::GaveUp(why) => reasons.push(format!("{}: {why}", self.lanes[lane].part.name)),
                BackendReply::Failed(e) => failed = failed.or(Some(e)),
                BackendReply::Valid | BackendReply::Refuted(_) => {}
            }
        }
        let running = self.lanes.iter().filter(|l| l.usable()).count();
        match failed {
            _ if !reasons.is_empty() => Ok((SolverAnswer::Unknown(reasons.join("; ")), None)),
            Some(e) => Err(e),
            None if running > 0 => Ok((SolverAnswer::Unknown("the solver ran out of time".into()), None)),
            None => {
                let troubles = self.lanes.iter().filter_map(|l| l.part.trouble.clone());
                let why = troubles.collect::<Vec<_>>().join("; ");
                Err(SolverError::NoneLeft(if why.is_empty() { "no solver at hand".into() } else { why }))
            }
        }
    }

    /// Keeps a question with two contradictory answers.
    fn contradiction(&self, q: &SolverQuery<'_>, a: usize, b: usize, a_holds: bool) -> String {
        let (holds, fails) = if a_holds { (a, b) } else { (b, a) };
        let (holds, fails) = (&self.lanes[holds].part.name, &self.lanes[fails].part.name);
        let said = format!("{holds} says that it holds, {fails} that it does not");
        let mut text = format!("; {said}\n(set-logic QF_UFBV)\n{}", smt::PRELUDE);
        smt::define(q.terms, q.claim, &mut SmtDefinitions::default(), &mut text);
        let _ = writeln!(text, "(assert (not {}))\n(check-sat)", smt::name(q.claim));
        let key = canonical(q.terms, q.claim, &[]).map_or_else(|| "large".to_owned(), |c| c.key.to_string());
        let file = self.keep.join(format!("millstream-contradiction-{:.16}.smt2", key));
        let kept = keep(&self.keep, &file, &text);
        match kept {
            Ok(()) => format!("{said}; the question is kept in {}", file.display()),
            Err(e) => format!("{said}; the question could not be kept in {}: {e}", file.display()),
        }
    }
}

/// Writes a file with a predictable name: an existing file, for example a link, is replaced and never
/// followed.
fn keep(folder: &Path, file: &Path, text: &str) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    std::io::Write::write_all(&mut new, text.as_bytes())?;
    new.persist(file)?;
    Ok(())
}

/// Returns true if there is no need to wait.
fn decided(said: &[(usize, BackendReply)], all: bool, agree: bool) -> bool {
    all || !agree && said.iter().any(|(_, w)| matches!(w, BackendReply::Valid | BackendReply::Refuted(_)))
}

/// Answer of a cache entry to this question.
fn remembered(entry: &CachedAnswer, form: &CanonicalQuery) -> Option<SolverAnswer> {
    Some(match &entry.said {
        CachedVerdict::Valid => SolverAnswer::Valid,
        CachedVerdict::Refuted(values) => {
            let value = |(at, v): &(u32, u64)| Some((*form.order.get(*at as usize)?, *v));
            SolverAnswer::Refuted(values.iter().map(value).collect::<Option<SolverModel>>()?)
        }
    })
}

fn worth_remembering(answer: &SolverAnswer, form: &CanonicalQuery) -> Option<CachedVerdict> {
    match answer {
        SolverAnswer::Valid => Some(CachedVerdict::Valid),
        SolverAnswer::Refuted(model) => {
            let value = |(at, t): (usize, &TermId)| Some((at as u32, *model.get(t)?));
            Some(CachedVerdict::Refuted(form.order.iter().enumerate().filter_map(value).collect()))
        }
        SolverAnswer::Unknown(_) => None,
    }
}

impl BackendSession {
    /// Returns true if it is the same kind of solver as one of this name and version.
    fn is_called(&self, solver: &str) -> bool {
        let make = |name: &str| name.split_whitespace().next().unwrap_or_default().to_ascii_lowercase();
        make(&self.part.name) == make(solver)
    }

    fn usable(&self) -> bool {
        self.failures < MOST_FAILURES
    }

    /// Sends a question to the solver.
    fn ask(&mut self, q: &SolverQuery<'_>, memory: u64, longest: Duration) -> Result<(), SolverError> {
        if self.process.is_none() {
            self.defined = SmtDefinitions::default();
            match self.backend.start(memory, longest.max(q.time)) {
                Ok(process) => self.process = Some(process),
                Err(e) => {
                    // It would fail again.
                    self.failures = MOST_FAILURES;
                    self.part.asked += 1;
                    self.part.trouble = Some(e.to_string());
                    return Err(e);
                }
            }
            if let Some(identity) = self.backend.identity() {
                identity.clone_into(&mut self.part.name);
            }
        }
        let mut script = String::new();
        for t in q.wanted.iter().chain([&q.claim]) {
            smt::define(q.terms, *t, &mut self.defined, &mut script);
        }
        if script.len() > LONGEST {
            self.process = None;
            return Err(SolverError::TooLarge);
        }
        script.push_str("(push 1)\n");
        script.push_str(&self.backend.limit(q.time));
        let _ = writeln!(script, "(assert (not {}))\n{}", smt::name(q.claim), self.backend.check(q));
        if let Some(process) = &mut self.process {
            process.send(script);
        }
        self.part.asked += 1;
        self.since = Some(Instant::now());
        Ok(())
    }

    /// Answer of the solver, if it comes before the deadline.
    fn hear(&mut self, q: &SolverQuery<'_>, until: Instant) -> Option<BackendReply> {
        let process = self.process.as_mut()?;
        let heard = if until <= Instant::now() { process.poll() } else { process.wait(until) };
        let word = match heard {
            LineRead::Nothing => return None,
            LineRead::End => {
                BackendReply::Failed(SolverError::Strange(format!("nothing: {}", process.ending())))
            }
            LineRead::Line(line) => match line.trim() {
                "unsat" => BackendReply::Valid,
                "sat" => self.model(q.wanted),
                "unknown" | "timeout" | "(:reason-unknown timeout)" => {
                    BackendReply::GaveUp("ran out of time".into())
                }
                strange => BackendReply::Failed(SolverError::Strange(strange.chars().take(200).collect())),
            },
        };
        self.stop();
        match &word {
            BackendReply::Failed(e) => {
                self.process = None;
                self.failures += 1;
                self.part.trouble = Some(e.to_string());
            }
            BackendReply::GaveUp(_) => {
                self.part.gave_up += 1;
                self.pop();
            }
            BackendReply::Valid | BackendReply::Refuted(_) => self.pop(),
        }
        Some(word)
    }

    fn stop(&mut self) {
        if let Some(since) = self.since.take() {
            self.part.time += since.elapsed();
        }
    }

    fn pop(&mut self) {
        if let Some(process) = &mut self.process {
            process.send("(pop 1)\n");
        }
    }

    /// Kills the solver while it works.
    fn cancel(&mut self, beaten: bool) {
        self.stop();
        self.process = None;
        if beaten {
            self.part.slower += 1;
        } else {
            self.part.gave_up += 1;
        }
    }

    /// Values of terms under the last assignment found.
    fn model(&mut self, wanted: &[TermId]) -> BackendReply {
        let Some(process) = self.process.as_mut().filter(|_| !wanted.is_empty()) else {
            return BackendReply::Refuted(SolverModel::default());
        };
        let names: Vec<String> = wanted.iter().map(|t| smt::name(*t)).collect();
        process.send(format!("(get-value ({}))\n(echo \"end\")\n", names.join(" ")));
        let deadline = Instant::now() + MODEL_TIME;
        let mut text = String::new();
        loop {
            match process.line(deadline) {
                Some(l) if l.trim().trim_matches('"') == "end" => break,
                Some(l) if text.len() <= LONGEST => text.push_str(&l),
                _ => {
                    return BackendReply::Failed(SolverError::Strange(format!(
                        "sat, but no values; {}",
                        process.ending()
                    )));
                }
            }
        }
        let model = smt::values(&text);
        if wanted.iter().all(|t| model.contains_key(t)) {
            BackendReply::Refuted(model)
        } else {
            BackendReply::Failed(SolverError::Strange(text.chars().take(200).collect()))
        }
    }
}
