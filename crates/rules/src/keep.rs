//! Between rules and stores: proven rules are written down, rules of a store are proven before they are
//! applied, and applications are counted.

use std::sync::Arc;

use millstream_bpf::module::lift_object;
use millstream_object::Object;
use millstream_passes::rules::{Entry, Origin, Rule, RuleSet, Store};
use millstream_passes::{Pipeline, Session, Target};
use millstream_prove::{Limits, Solver, SolverError};

use crate::check::{Outcome, check_all};

/// A store after all its rules were put to the proof.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// Those that were proven, in order.
    pub entries: Vec<Entry>,
    /// Those that were not, and the outcomes of their checks.
    pub refused: Vec<(Rule, Outcome)>,
}

/// Proves entries that are to be written into a store, or applied from one. Answers that the solver's cache
/// has are found again.
///
/// # Errors
/// If the solver cannot be used.
pub fn admit(
    entries: Vec<Entry>,
    solver: Option<&Solver>,
    limits: &Limits,
    jobs: usize,
    done: impl Fn() + Sync,
) -> Result<Admitted, SolverError> {
    let rules: Vec<Rule> = entries.iter().map(|e| e.rule.clone()).collect();
    let checked = check_all(&rules, solver, limits, jobs, |_, _| done())?;
    let version = solver.and_then(|s| s.version().ok()).unwrap_or_default().replace(", ", " or ");
    let mut admitted = Admitted { entries: Vec::new(), refused: Vec::new() };
    for (entry, checked) in entries.into_iter().zip(checked) {
        match checked.outcome {
            Outcome::Proven { form } => {
                let prover = if form { "form".to_owned() } else { version.replace(';', "") };
                let seconds = checked.time.as_secs_f64();
                admitted.entries.push(Entry { prover, seconds, ..entry });
            }
            outcome => admitted.refused.push((entry.rule, outcome)),
        }
    }
    Ok(admitted)
}

/// A rule that was just found, as it stands in a store before it is proven.
pub fn found(rule: Rule, origin: Origin) -> Entry {
    Entry { rule: Rule { learnt: true, ..rule }, origin, prover: String::new(), seconds: 0.0, fires: 0 }
}

/// The rules of a store behind those written by hand.
pub fn rule_set(store: &Store) -> RuleSet {
    RuleSet::new([RuleSet::written(), store.rules()].concat())
}

/// Number of times that the default passes apply each rule of a set to an object's programs; [`None`] if it
/// cannot be lifted.
pub fn firings(object: &Object, rules: &Arc<RuleSet>, target: &Target) -> Option<Vec<u64>> {
    let mut module = lift_object(object).ok()?.module;
    let mut session = Session::new(target.clone());
    session.verify = false;
    session.rules = Some(Arc::clone(rules));
    Pipeline::default_o2().run(&mut module, &mut session).ok()?;
    let mut out = vec![0; rules.rules().len()];
    for (rule, times) in session.fired() {
        out[rule] = times;
    }
    Some(out)
}
