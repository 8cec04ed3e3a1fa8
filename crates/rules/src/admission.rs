//! Between rules and stores: proven rules are written down, rules of a store are proven before they are
//! applied, and applications are counted.

use std::sync::Arc;

use millstream_bpf::module::lift_object;
use millstream_object::Object;
use millstream_passes::rules::{RewriteRule, RuleOrigin, RuleSet, RuleStore, StoredRule};
use millstream_passes::{PassPipeline, PassSession, TargetInfo};
use millstream_prove::{ProofLimits, Solver, SolverError};

use crate::check::{RuleVerdict, check_all};

/// A store after all its rules were put to the proof.
#[derive(Clone, Debug)]
pub struct AdmittedRules {
    /// Those that were proven, in order.
    pub entries: Vec<StoredRule>,
    /// Those that were not, and the outcomes of their checks.
    pub refused: Vec<(RewriteRule, RuleVerdict)>,
}

/// Proves entries that are to be written into a store, or applied from one. Answers that the solver's cache
/// has are found again.
///
/// # Errors
/// If the solver cannot be used.
pub fn admit(
    entries: Vec<StoredRule>,
    solver: Option<&Solver>,
    limits: &ProofLimits,
    jobs: usize,
    done: impl Fn() + Sync,
) -> Result<AdmittedRules, SolverError> {
    let rules: Vec<RewriteRule> = entries.iter().map(|e| e.rule.clone()).collect();
    let checked = check_all(&rules, solver, limits, jobs, |_, _| done())?;
    let version = solver.and_then(|s| s.version().ok()).unwrap_or_default().replace(", ", " or ");
    let mut admitted = AdmittedRules { entries: Vec::new(), refused: Vec::new() };
    for (entry, checked) in entries.into_iter().zip(checked) {
        match checked.outcome {
            RuleVerdict::Proven { form } => {
                let prover = if form { "form".to_owned() } else { version.replace(';', "") };
                let seconds = checked.time.as_secs_f64();
                admitted.entries.push(StoredRule { prover, seconds, ..entry });
            }
            outcome => admitted.refused.push((entry.rule, outcome)),
        }
    }
    Ok(admitted)
}

/// A rule that was just found, as it stands in a store before it is proven.
pub fn unproven_entry(rule: RewriteRule, origin: RuleOrigin) -> StoredRule {
    StoredRule {
        rule: RewriteRule { learnt: true, ..rule },
        origin,
        prover: String::new(),
        seconds: 0.0,
        fires: 0,
    }
}

/// The rules of a store behind those written by hand.
pub fn rule_set(store: &RuleStore) -> RuleSet {
    RuleSet::new([RuleSet::written(), store.rules()].concat())
}

/// Number of times that the default passes apply each rule of a set to an object's programs; [`None`] if it
/// cannot be lifted.
pub fn application_counts(object: &Object, rules: &Arc<RuleSet>, target: &TargetInfo) -> Option<Vec<u64>> {
    let mut module = lift_object(object).ok()?.module;
    let mut session = PassSession::new(target.clone());
    session.verify = false;
    session.rules = Some(Arc::clone(rules));
    PassPipeline::default_o2().run(&mut module, &mut session).ok()?;
    let mut out = vec![0; rules.rules().len()];
    for (rule, times) in session.fired() {
        out[rule] = times;
    }
    Some(out)
}
