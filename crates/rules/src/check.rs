//! Proves rules, several at a time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millstream_ir::AluOp;
use millstream_passes::rules::{ConstExpr, Func, PatternOp, RewriteRule, RuleCondition, RulePattern};
use millstream_prove::{ProofLimits, QueryResult, SmtQuery, Solver, SolverError};

use crate::claim::{FixedConstants, RuleInstance, claim, unsatisfiable_tests};

/// Result of a check of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RuleVerdict {
    /// Both sides always compute the same. `form` says that no solver was needed.
    Proven {
        /// No solver was needed.
        form: bool,
    },
    /// They do not, for example for these values and constants.
    Refuted {
        /// At which widths and condition.
        at: RuleInstance,
        /// Values by name.
        values: Vec<(String, u64)>,
    },
    /// Not known, and why.
    Undecided(String),
}

impl RuleVerdict {
    /// Returns true if the rule was proven.
    pub fn is_proven(&self) -> bool {
        matches!(self, RuleVerdict::Proven { .. })
    }
}

impl std::fmt::Display for RuleVerdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RuleVerdict::Proven { form: true } => f.write_str("proven by normal form"),
            RuleVerdict::Proven { form: false } => f.write_str("proven"),
            RuleVerdict::Undecided(why) => write!(f, "undecided: {why}"),
            RuleVerdict::Refuted { at, values } => {
                let list: Vec<String> = values.iter().map(|(n, v)| format!("{n} = {v:#x}")).collect();
                write!(f, "wrong for {} at {at}", list.join(", "))
            }
        }
    }
}

/// A checked rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckedRule {
    /// The answer.
    pub outcome: RuleVerdict,
    /// Time of the check.
    pub time: Duration,
}

/// Time for a question with all constants open, before cases are told apart.
const FIRST: Duration = Duration::from_millis(400);

/// Proves rules one after the other.
#[derive(Debug)]
pub struct RuleProver {
    query: SmtQuery,
    limits: ProofLimits,
    /// When telling cases apart ends.
    deadline: Option<Instant>,
}

impl RuleProver {
    /// Asks this solver, if there is one.
    pub fn new(solver: Option<&Solver>, limits: &ProofLimits) -> RuleProver {
        RuleProver { query: SmtQuery::new(solver, limits), limits: limits.clone(), deadline: None }
    }

    /// Proves a rule, at everything that it can be read at.
    ///
    /// # Errors
    /// If the solver cannot be used.
    pub fn check(&mut self, rule: &RewriteRule) -> Result<CheckedRule, SolverError> {
        let start = Instant::now();
        let mut form = true;
        for at in RuleInstance::all(rule) {
            match self.check_at(rule, at)? {
                RuleVerdict::Proven { form: here } => form &= here,
                outcome => return Ok(CheckedRule { outcome, time: start.elapsed() }),
            }
        }
        Ok(CheckedRule { outcome: RuleVerdict::Proven { form }, time: start.elapsed() })
    }

    /// First with all constants open; then by cases, for shifts by a known count are easy; then with more
    /// time.
    fn check_at(&mut self, rule: &RewriteRule, at: RuleInstance) -> Result<RuleVerdict, SolverError> {
        let open = FixedConstants::default();
        let outcome = self.ask(rule, at, &open, FIRST)?;
        if !matches!(outcome, RuleVerdict::Undecided(_)) {
            return Ok(outcome);
        }
        let cases = CaseSplit::of(rule);
        self.deadline = Some(Instant::now() + 4 * self.limits.time);
        let outcome = match cases.is_empty() {
            true => outcome,
            false => self.by_cases(rule, at, &cases, 0, open)?,
        };
        match outcome {
            RuleVerdict::Undecided(_) => self.ask(rule, at, &open, self.limits.time),
            decided => Ok(decided),
        }
    }

    fn by_cases(
        &mut self,
        rule: &RewriteRule,
        at: RuleInstance,
        cases: &CaseSplit,
        next: usize,
        mut given: FixedConstants,
    ) -> Result<RuleVerdict, SolverError> {
        let Some((i, values)) = cases.0.get(next) else {
            return self.ask(rule, at, &given, self.limits.time);
        };
        let mut form = true;
        for value in values {
            if self.deadline.is_some_and(|end| Instant::now() > end) {
                return Ok(RuleVerdict::Undecided(format!("too many cases at {at}")));
            }
            given[*i] = Some(*value);
            match self.by_cases(rule, at, cases, next + 1, given)? {
                RuleVerdict::Proven { form: here } => form &= here,
                other => return Ok(other),
            }
        }
        // And all other values, which the tests mostly exclude.
        let mut rest = rule.clone();
        let others = values.iter().map(|v| RuleCondition::Holds(is_not(*i, *v)));
        rest.tests.extend(others);
        given[*i] = None;
        self.query.begin();
        let absurd = unsatisfiable_tests(&mut self.query, &rest, at, &given);
        if matches!(self.query.decide_within(absurd, self.limits.time)?, QueryResult::Proven { .. }) {
            return Ok(RuleVerdict::Proven { form });
        }
        Ok(match self.ask(&rest, at, &given, self.limits.time)? {
            RuleVerdict::Proven { form: here } => RuleVerdict::Proven { form: form && here },
            other => other,
        })
    }

    fn ask(
        &mut self,
        rule: &RewriteRule,
        at: RuleInstance,
        given: &FixedConstants,
        time: Duration,
    ) -> Result<RuleVerdict, SolverError> {
        self.query.begin();
        let claim = claim(&mut self.query, rule, at, given);
        Ok(match self.query.decide_within(claim, time)? {
            QueryResult::Proven { form } => RuleVerdict::Proven { form },
            QueryResult::Refuted(mut values) => {
                let names = ["a", "b", "c", "d"].iter().zip(given);
                values.extend(names.filter_map(|(name, v)| v.map(|v| ((*name).to_owned(), v))));
                RuleVerdict::Refuted { at, values }
            }
            QueryResult::Undecided(why) => RuleVerdict::Undecided(format!("{why} at {at}")),
        })
    }
}

fn is_not(i: usize, value: u64) -> ConstExpr {
    ConstExpr::Apply(Func::Ne, vec![ConstExpr::Const(i), ConstExpr::Number(value as i64)])
}

/// Constants that have few values, with these: counts of shifts, and powers of two.
struct CaseSplit(Vec<(usize, Vec<u64>)>);

impl CaseSplit {
    fn of(rule: &RewriteRule) -> CaseSplit {
        let mut counts = Vec::new();
        shift_counts(&rule.pattern, &mut counts);
        let mut cases: Vec<(usize, Vec<u64>)> = Vec::new();
        for test in &rule.tests {
            if let RuleCondition::Holds(ConstExpr::Apply(Func::Pow2, args)) = test
                && let [ConstExpr::Const(i)] = args[..]
            {
                cases.push((i, (0..64).map(|n| 1 << n).collect()));
            }
        }
        for i in counts {
            if cases.iter().all(|(k, _)| *k != i) {
                cases.push((i, (0..64).collect()));
            }
        }
        CaseSplit(cases)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn shift_counts(pattern: &RulePattern, out: &mut Vec<usize>) {
    let RulePattern::Node { head, args, .. } = pattern else { return };
    if let (PatternOp::Alu(AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, _), Some(RulePattern::Const(i))) =
        (head, args.get(1))
    {
        out.push(*i);
    }
    args.iter().for_each(|arg| shift_counts(arg, out));
}

/// The questions of a rule as SMT-LIB, each with the name of its instance.
pub fn questions(rule: &RewriteRule) -> Vec<(String, String)> {
    let mut query = SmtQuery::new(None, &ProofLimits::default());
    let one = |at: RuleInstance| {
        query.begin();
        let claim = claim(&mut query, rule, at, &FixedConstants::default());
        let text = query.smt(claim);
        (
            at.to_string(),
            format!("; {rule}\n; {}, {at}: the rule is right if the answer is unsat\n{text}", rule.name),
        )
    };
    RuleInstance::all(rule).into_iter().map(one).collect()
}

/// Proves rules in `jobs` threads, each with a solver of its own; the answers are in the order of the rules.
///
/// `done` is called after each rule with its position.
///
/// # Errors
/// If the solver cannot be used.
pub fn check_all(
    rules: &[RewriteRule],
    solver: Option<&Solver>,
    limits: &ProofLimits,
    jobs: usize,
    done: impl Fn(usize, &CheckedRule) + Sync,
) -> Result<Vec<CheckedRule>, SolverError> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(vec![None; rules.len()]);
    let work = || -> Result<(), SolverError> {
        let mut prover = RuleProver::new(solver, limits);
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
