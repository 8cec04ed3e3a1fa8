//! Solvers: child processes that are asked in SMT-LIB, side by side, and killed when their time is up.
//!
//! A question goes to the first solver; if it has not answered within a head start, the next is asked as
//! well, and so on. The first answer counts and the other processes are ended. So small questions, which are
//! most, cost one process, and a question that is hard for one solver may be easy for another. Answers are
//! cached ([`ProofCache`]).
//!
//! Invariants: an answer is taken only from a program that has answered two questions with known answers
//! correctly and has the version that it reports. Two contradictory answers give [`SolverAnswer::Unknown`],
//! and the question is kept in a file. A failure of a solver is never an answer.

mod backend;
mod canonical;
mod process;
mod query;
mod session;
mod smt;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::cache::ProofCache;
use crate::term::{TermId, TermPool};
use backend::SolverBackend;
pub(crate) use session::SolverSession;

/// Time that the first solver has a question for itself.
const HEAD_START: Duration = Duration::from_millis(150);
/// Solvers that are looked for if none is named, the one that is mostly faster first.
const KNOWN: [&str; 2] = ["z3", "cvc5"];

/// Reason why a solver did not answer.
#[derive(Debug, thiserror::Error)]
pub enum SolverError {
    /// It could not be started.
    #[error("the solver {program:?}: {source}")]
    Process {
        /// Program that was started.
        program: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It printed something else than an answer.
    #[error("the solver said {0:?}")]
    Strange(String),
    /// It answered the two easy questions wrongly.
    #[error(
        "{name} is no solver to rely on: to two easy questions it said {answers:?}, and not \"sat, unsat\""
    )]
    Wrong {
        /// Name that it reports.
        name: String,
        /// Answers that it gave.
        answers: String,
    },
    /// It reports one version, and then another.
    #[error("the solver says that it is {told:?}, and when asked again that it is {version}")]
    Version {
        /// Version that it reported first.
        told: String,
        /// Version that it reported when asked again.
        version: String,
    },
    /// The question is too large to ask.
    #[error("the question is too large")]
    TooLarge,
    /// None of the solvers can be used any more.
    #[error("{0}")]
    NoneLeft(String),
}

/// Result of a claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SolverAnswer {
    /// It always holds.
    Valid,
    /// It can fail, for example for these values of terms.
    Refuted(SolverModel),
    /// Not decided, with the reason.
    Unknown(String),
}

/// Values of terms.
pub(crate) type SolverModel = FxHashMap<TermId, u64>;

/// Solvers to ask: programs that speak SMT-LIB 2 on standard input, in the order in which they are asked, and
/// their earlier answers.
#[derive(Clone, Debug)]
pub struct Solver {
    backends: Vec<SolverBackend>,
    cache: ProofCache,
    head_start: Duration,
    agree: bool,
    keep: PathBuf,
}

impl Solver {
    /// The solver at this path, or of this name on the path: z3 or cvc5, or one that takes the flags of
    /// either (cvc5's if its name begins with `cvc`).
    pub fn new(program: impl Into<PathBuf>) -> Solver {
        Solver::of([program.into()])
    }

    /// Several solvers, asked side by side.
    pub fn of(programs: impl IntoIterator<Item = PathBuf>) -> Solver {
        Solver {
            backends: programs.into_iter().map(SolverBackend::new).collect(),
            cache: ProofCache::in_memory(),
            head_start: HEAD_START,
            agree: false,
            keep: std::env::temp_dir(),
        }
    }

    /// All known solvers on the path: z3, cvc5. [`None`] if there are none.
    pub fn discover() -> Option<Solver> {
        let mut solver = Solver::of(KNOWN.map(PathBuf::from));
        solver.backends.retain(|b| b.file().is_some());
        (!solver.backends.is_empty()).then_some(solver)
    }

    /// Removes the solvers whose executables do not exist, and returns them.
    pub fn drop_missing(&mut self) -> Vec<PathBuf> {
        let missing = |b: &&SolverBackend| b.file().is_none();
        let gone: Vec<PathBuf> = self.backends.iter().filter(missing).map(|b| b.program.clone()).collect();
        self.backends.retain(|b| !gone.contains(&b.program));
        gone
    }

    /// Returns true if there is no solver.
    pub fn is_empty(&self) -> bool {
        self.backends.is_empty()
    }

    /// Only the solver that is asked first: its answers do not depend on which solver is faster.
    #[must_use]
    pub(crate) fn first(&self) -> Solver {
        let backends = self.backends.iter().take(1).cloned().collect();
        Solver { backends, ..self.clone() }
    }

    /// Uses this cache of answers. Clones of a solver share it.
    #[must_use]
    pub fn with_cache(self, cache: ProofCache) -> Solver {
        Solver { cache, ..self }
    }

    /// The cache of answers.
    pub fn cache(&self) -> &ProofCache {
        &self.cache
    }

    /// Asks all solvers every question and waits for all, so that a wrong one is contradicted by another.
    #[must_use]
    pub fn agreeing(self, agree: bool) -> Solver {
        Solver { agree, ..self }
    }

    /// Sets the time that each solver has a question for itself before the next is asked.
    #[must_use]
    pub fn with_head_start(self, head_start: Duration) -> Solver {
        Solver { head_start, ..self }
    }

    /// Sets the folder for questions to which two solvers gave contradictory answers.
    #[must_use]
    pub fn with_disagreement_dir(self, keep: impl Into<PathBuf>) -> Solver {
        Solver { keep: keep.into(), ..self }
    }

    /// Versions that the solvers report, in the order in which they are asked.
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn version(&self) -> Result<String, SolverError> {
        let versions: Result<Vec<String>, SolverError> =
            self.backends.iter().map(SolverBackend::version).collect();
        let first = |v: &String| v.lines().next().unwrap_or_default().to_owned();
        Ok(versions?.iter().map(first).collect::<Vec<_>>().join(", "))
    }

    /// A session, which starts the solvers when they are asked.
    pub(crate) fn start(&self, limits: &crate::ProofLimits) -> Result<SolverSession, SolverError> {
        Ok(SolverSession::new(self, limits))
    }
}

/// The question whether a claim about words can fail, as a script of its own: `unsat` if it always holds.
pub(crate) fn question(terms: &TermPool, claim: TermId) -> String {
    let mut out = String::from("(set-logic QF_BV)\n");
    smt::define(terms, claim, &mut smt::SmtDefinitions::default(), &mut out);
    out.push_str(&format!("(assert (not {}))\n(check-sat)\n", smt::name(claim)));
    out
}

/// Questions of a proof, and the solvers that answered them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SolverUsage {
    /// Questions.
    pub asked: usize,
    /// Answers from the cache, by the solver that gave them.
    pub cached: Vec<(String, usize)>,
    /// Of these, answers by others that were believed because their store is trusted: nothing here has proven
    /// them.
    pub trusted: usize,
    /// Each solver's share.
    pub solvers: Vec<BackendStats>,
}

/// Share of one solver.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BackendStats {
    /// Name and version, if it was ever started.
    pub name: String,
    /// Questions that it was asked.
    pub asked: usize,
    /// Its answers that counted: the claim holds.
    pub valid: usize,
    /// Its answers that counted: the claim can fail.
    pub refuted: usize,
    /// Questions that it gave up, or that timed out.
    pub gave_up: usize,
    /// Questions that another solver answered first.
    pub slower: usize,
    /// Total time that it worked on questions.
    pub time: Duration,
    /// Its last failure.
    pub trouble: Option<String>,
}

impl SolverUsage {
    /// Adds the answers of another proof.
    pub fn add(&mut self, other: &SolverUsage) {
        self.asked += other.asked;
        self.trusted += other.trusted;
        for (who, count) in &other.cached {
            match self.cached.iter_mut().find(|(w, _)| w == who) {
                Some((_, n)) => *n += count,
                None => self.cached.push((who.clone(), *count)),
            }
        }
        for part in &other.solvers {
            let Some(p) = self.solvers.iter_mut().find(|p| p.name == part.name) else {
                self.solvers.push(part.clone());
                continue;
            };
            p.asked += part.asked;
            p.valid += part.valid;
            p.refuted += part.refuted;
            p.gave_up += part.gave_up;
            p.slower += part.slower;
            p.time += part.time;
            if part.trouble.is_some() {
                p.trouble.clone_from(&part.trouble);
            }
        }
    }
}
