//! Proves rules, several at a time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millstream_ir::AluOp;
use millstream_passes::rules::{Expr, Func, Head, Pattern, Rule, Test};
use millstream_prove::{Decision, Limits, Query, Solver, SolverError};

use crate::claim::{Given, Instance, absurd, claim};

/// Result of a check of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Both sides always compute the same. `form` says that no solver was needed.
    Proven {
        /// No solver was needed.
        form: bool,
    },
    /// They do not, for example for these values and constants.
    Refuted {
        /// At which widths and condition.
        at: Instance,
        /// Values by name.
        values: Vec<(String, u64)>,
    },
    /// Not known, and why.
    Undecided(String),
}

impl Outcome {
    /// Returns true if the rule was proven.
    pub fn is_proven(&self) -> bool {
        matches!(self, Outcome::Proven { .. })
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Proven { form: true } => f.write_str("proven by normal form"),
            Outcome::Proven { form: false } => f.write_str("proven"),
            Outcome::Undecided(why) => write!(f, "undecided: {why}"),
            Outcome::Refuted { at, values } => {
                let list: Vec<String> = values.iter().map(|(n, v)| format!("{n} = {v:#x}")).collect();
                write!(f, "wrong for {} at {at}", list.join(", "))
            }
        }
    }
}

/// A checked rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checked {
    /// The answer.
    pub outcome: Outcome,
    /// Time of the check.
    pub time: Duration,
}

/// Time for a question with all constants open, before cases are told apart.
const FIRST: Duration = Duration::from_millis(400);

/// Proves rules one after the other.
#[derive(Debug)]
pub struct Prover {
    query: Query,
    limits: Limits,
    /// When telling cases apart ends.
    deadline: Option<Instant>,
}

impl Prover {
    /// Asks this solver, if there is one.
    pub fn new(solver: Option<&Solver>, limits: &Limits) -> Prover {
        Prover { query: Query::new(solver, limits), limits: limits.clone(), deadline: None }
    }

    /// Proves a rule, at everything that it can be read at.
    ///
    /// # Errors
    /// If the solver cannot be used.
    pub fn check(&mut self, rule: &Rule) -> Result<Checked, SolverError> {
        let start = Instant::now();
        let mut form = true;
        for at in Instance::all(rule) {
            match self.check_at(rule, at)? {
                Outcome::Proven { form: here } => form &= here,
                outcome => return Ok(Checked { outcome, time: start.elapsed() }),
            }
        }
        Ok(Checked { outcome: Outcome::Proven { form }, time: start.elapsed() })
    }

    /// First with all constants open; then by cases, for shifts by a known count are easy; then with more time.
    fn check_at(&mut self, rule: &Rule, at: Instance) -> Result<Outcome, SolverError> {
        let open = Given::default();
        let outcome = self.ask(rule, at, &open, FIRST)?;
        if !matches!(outcome, Outcome::Undecided(_)) {
            return Ok(outcome);
        }
        let cases = Cases::of(rule);
        self.deadline = Some(Instant::now() + 4 * self.limits.time);
        let outcome = match cases.is_empty() {
            true => outcome,
            false => self.by_cases(rule, at, &cases, 0, open)?,
        };
        match outcome {
            Outcome::Undecided(_) => self.ask(rule, at, &open, self.limits.time),
            decided => Ok(decided),
        }
    }

    fn by_cases(
        &mut self,
        rule: &Rule,
        at: Instance,
        cases: &Cases,
        next: usize,
        mut given: Given,
    ) -> Result<Outcome, SolverError> {
        let Some((i, values)) = cases.0.get(next) else {
            return self.ask(rule, at, &given, self.limits.time);
        };
        let mut form = true;
        for value in values {
            if self.deadline.is_some_and(|end| Instant::now() > end) {
                return Ok(Outcome::Undecided(format!("too many cases at {at}")));
            }
            given[*i] = Some(*value);
            match self.by_cases(rule, at, cases, next + 1, given)? {
                Outcome::Proven { form: here } => form &= here,
                other => return Ok(other),
            }
        }
        // And all other values, which the tests mostly exclude.
        let mut rest = rule.clone();
        let others = values.iter().map(|v| Test::Holds(is_not(*i, *v)));
        rest.tests.extend(others);
        given[*i] = None;
        self.query.begin();
        let absurd = absurd(&mut self.query, &rest, at, &given);
        if matches!(self.query.decide_within(absurd, self.limits.time)?, Decision::Proven { .. }) {
            return Ok(Outcome::Proven { form });
        }
        Ok(match self.ask(&rest, at, &given, self.limits.time)? {
            Outcome::Proven { form: here } => Outcome::Proven { form: form && here },
            other => other,
        })
    }

    fn ask(
        &mut self,
        rule: &Rule,
        at: Instance,
        given: &Given,
        time: Duration,
    ) -> Result<Outcome, SolverError> {
        self.query.begin();
        let claim = claim(&mut self.query, rule, at, given);
        Ok(match self.query.decide_within(claim, time)? {
            Decision::Proven { form } => Outcome::Proven { form },
            Decision::Refuted(mut values) => {
                let names = ["a", "b", "c", "d"].iter().zip(given);
                values.extend(names.filter_map(|(name, v)| v.map(|v| ((*name).to_owned(), v))));
                Outcome::Refuted { at, values }
            }
            Decision::Undecided(why) => Outcome::Undecided(format!("{why} at {at}")),
        })
    }
}

fn is_not(i: usize, value: u64) -> Expr {
    Expr::Apply(Func::Ne, vec![Expr::Const(i), Expr::Number(value as i64)])
}

/// Constants that have few values, with these: counts of shifts, and powers of two.
struct Cases(Vec<(usize, Vec<u64>)>);

impl Cases {
    fn of(rule: &Rule) -> Cases {
        let mut counts = Vec::new();
        shift_counts(&rule.pattern, &mut counts);
        let mut cases: Vec<(usize, Vec<u64>)> = Vec::new();
        for test in &rule.tests {
            if let Test::Holds(Expr::Apply(Func::Pow2, args)) = test
                && let [Expr::Const(i)] = args[..]
            {
                cases.push((i, (0..64).map(|n| 1 << n).collect()));
            }
        }
        for i in counts {
            if cases.iter().all(|(k, _)| *k != i) {
                cases.push((i, (0..64).collect()));
            }
        }
        Cases(cases)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn shift_counts(pattern: &Pattern, out: &mut Vec<usize>) {
    let Pattern::Node { head, args, .. } = pattern else { return };
    if let (Head::Alu(AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, _), Some(Pattern::Const(i))) =
        (head, args.get(1))
    {
        out.push(*i);
    }
    args.iter().for_each(|arg| shift_counts(arg, out));
}

/// The questions of a rule as SMT-LIB, each with the name of its instance.
pub fn questions(rule: &Rule) -> Vec<(String, String)> {
    let mut query = Query::new(None, &Limits::default());
    let one = |at: Instance| {
        query.begin();
        let claim = claim(&mut query, rule, at, &Given::default());
        let text = query.smt(claim);
        (
            at.to_string(),
            format!("; {rule}\n; {}, {at}: the rule is right if the answer is unsat\n{text}", rule.name),
        )
    };
    Instance::all(rule).into_iter().map(one).collect()
}

/// Proves rules in `jobs` threads, each with a solver of its own; the answers are in the order of the rules.
///
/// `done` is called after each rule with its position.
///
/// # Errors
/// If the solver cannot be used.
pub fn check_all(
    rules: &[Rule],
    solver: Option<&Solver>,
    limits: &Limits,
    jobs: usize,
    done: impl Fn(usize, &Checked) + Sync,
) -> Result<Vec<Checked>, SolverError> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(vec![None; rules.len()]);
    let work = || -> Result<(), SolverError> {
        let mut prover = Prover::new(solver, limits);
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(rule) = rules.get(at) else { return Ok(()) };
            let checked = prover.check(rule)?;
            done(at, &checked);
            if let Ok(mut results) = results.lock() {
                results[at] = Some(checked);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|t| match t.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    let results = results.into_inner().unwrap_or_default();
    Ok(results.into_iter().flatten().collect())
}
