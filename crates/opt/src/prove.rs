//! Translation validation: each program that came out of the passes against what went in.
//!
//! Undecided programs are counted and reported, never taken for proven. A refuted program is a bug of ours:
//! the rewrite to blame is found by bisection over fuel.

use millstream_object::{FuncId, Object};
use millstream_prove::{Counterexample, ProofLimits, Solver, prove};
use serde::Serialize;

use crate::{OptError, OptimizationResult, OptimizeOptions, optimize};

/// Answer of the prover on a program.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ValidationResult {
    /// It has the instructions that it had.
    Unchanged,
    /// It behaves as before.
    Equivalent,
    /// Not decided: why.
    Unknown(String),
    /// It does something else.
    Refuted {
        /// A run that shows it.
        counterexample: String,
        /// The pass and the number of the rewrite after which it does; none if lowering is to blame.
        blame: Option<(String, u64)>,
    },
}

/// A program before and after.
#[derive(Clone, Debug, Serialize)]
pub struct ProofReport {
    /// Name.
    pub name: String,
    /// The answer.
    pub verdict: ValidationResult,
    /// Answers of a trusted store that it rests on and that were not proven here.
    pub trusted: usize,
    /// Duration of the proof.
    pub milliseconds: f64,
}

/// Proves that each program of `optimized` does the same as in `object`. `options` are those it was optimized
/// with.
///
/// # Errors
/// [`OptError`] if the passes fail when they run again for the blame. A refuted program is no error.
pub fn validate(
    object: &Object,
    optimized: &OptimizationResult,
    options: &OptimizeOptions,
    solver: Option<&Solver>,
    limits: &ProofLimits,
) -> Result<Vec<ProofReport>, OptError> {
    let mut reports = Vec::new();
    for p in &object.programs {
        let after = &optimized.object;
        let (verdict, trusted, milliseconds) = if slots(object, p.func) == slots(after, p.func) {
            (ValidationResult::Unchanged, 0, 0.0)
        } else {
            let proof = prove((object, p.func), (after, p.func), solver, limits);
            let verdict = match proof.verdict {
                millstream_prove::ProofVerdict::Equivalent => ValidationResult::Equivalent,
                millstream_prove::ProofVerdict::Unknown { reason } => ValidationResult::Unknown(reason),
                millstream_prove::ProofVerdict::Differs(found) => ValidationResult::Refuted {
                    blame: blame(object, optimized, options, p.func, &found)?,
                    counterexample: found.to_string(),
                },
            };
            (verdict, proof.answers.trusted, proof.time.as_secs_f64() * 1e3)
        };
        reports.push(ProofReport { name: p.name.clone(), verdict, trusted, milliseconds });
    }
    Ok(reports)
}

/// Changes of a pass to a program in one go, and their proof.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// The pass; `lower` for what lifting and lowering alone change.
    pub pass: &'static str,
    /// Its rewrites: numbers of the first and of the one after the last.
    pub rewrites: (u64, u64),
    /// The program.
    pub program: String,
    /// The answer.
    pub verdict: ValidationResult,
    /// Answers of a trusted store that it rests on and that were not proven here.
    pub trusted: usize,
    /// Duration of the proof.
    pub milliseconds: f64,
}

/// Proves the changes of an object pass by pass: each run of rewrites by one pass, lowered before and after
/// it. Programs that a run does not change are not reported. `differs` is shown the object before and after a
/// run that is refuted.
///
/// # Errors
/// [`OptError`] if the passes fail when they run again.
pub fn validate_passes(
    object: &Object,
    optimized: &OptimizationResult,
    options: &OptimizeOptions,
    solver: Option<&Solver>,
    limits: &ProofLimits,
    mut differs: impl FnMut(&Object, &Object),
) -> Result<Vec<StepReport>, OptError> {
    // Whatever a pass makes is looked at, though it may be longer than it was.
    let keep = OptimizeOptions { keep_longer: true, ..options.clone() };
    let mut ends: Vec<(&'static str, u64)> = vec![("lower", 0)];
    for run in optimized.fuel.runs() {
        if let Some(last) = ends.last_mut() {
            last.1 = run.number;
        }
        ends.push((run.pass, optimized.rewrites));
    }
    let (mut reports, mut before, mut first) = (Vec::new(), object.clone(), 0);
    for (pass, end) in ends {
        let after = optimize(object, &keep.limited(end, optimized.inline))?.object;
        let mut refuted = false;
        for p in &object.programs {
            if slots(&before, p.func) == slots(&after, p.func) {
                continue;
            }
            let proof = prove((&before, p.func), (&after, p.func), solver, limits);
            let verdict = match proof.verdict {
                millstream_prove::ProofVerdict::Equivalent => ValidationResult::Equivalent,
                millstream_prove::ProofVerdict::Unknown { reason } => ValidationResult::Unknown(reason),
                millstream_prove::ProofVerdict::Differs(found) => {
                    refuted = true;
                    ValidationResult::Refuted {
                        blame: Some((pass.to_owned(), first)),
                        counterexample: found.to_string(),
                    }
                }
            };
            let milliseconds = proof.time.as_secs_f64() * 1e3;
            let (program, trusted) = (p.name.clone(), proof.answers.trusted);
            let rewrites = (first, end);
            reports.push(StepReport { pass, rewrites, program, verdict, trusted, milliseconds });
        }
        if refuted {
            differs(&before, &after);
        }
        (before, first) = (after, end);
    }
    Ok(reports)
}

/// The first rewrite after which a counterexample shows; [`None`] if it shows without any, or not again.
fn blame(
    object: &Object,
    optimized: &OptimizationResult,
    options: &OptimizeOptions,
    func: FuncId,
    found: &Counterexample,
) -> Result<Option<(String, u64)>, OptError> {
    let shows = |fuel: u64| -> Result<bool, OptError> {
        let limited = options.limited(fuel, optimized.inline);
        let out = optimize(object, &limited)?;
        Ok(found.shows((object, func), (&out.object, func)))
    };
    if shows(0)? {
        return Ok(None);
    }
    if !shows(optimized.rewrites)? {
        return Ok(None);
    }
    let (mut good, mut bad) = (0, optimized.rewrites);
    while good + 1 < bad {
        let middle = good + (bad - good) / 2;
        if shows(middle)? { bad = middle } else { good = middle }
    }
    let pass = optimized.fuel.requester(good).map_or("lower", |r| r.pass);
    Ok(Some((pass.to_owned(), good)))
}

/// The instructions of a program and all it calls.
fn slots(object: &Object, func: FuncId) -> Option<Vec<millstream_isa::RawInsn>> {
    object.link(func).ok().map(|l| l.insns)
}
