//! Translation validation: each program that came out of the passes against what went in.
//!
//! What cannot be decided is counted and reported, never taken for a proof. What is refuted is a bug of ours: the
//! rewrite to blame is found by bisection over fuel.

use millstream_object::{FuncId, Object};
use millstream_prove::{Counterexample, Limits, Solver, prove};
use serde::Serialize;

use crate::{OptError, Optimized, Options, optimize};

/// What the prover says of a program.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Proven {
    /// It has the instructions that it had.
    Unchanged,
    /// It does what it did.
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
    pub verdict: Proven,
    /// How long it took.
    pub milliseconds: f64,
}

/// Proves that each program of `optimized` does what it does in `object`. `options` are those it was optimized with.
///
/// # Errors
/// [`OptError`] if the passes fail when they run again for the blame. A refuted program is no error.
pub fn validate(
    object: &Object,
    optimized: &Optimized,
    options: &Options,
    solver: Option<&Solver>,
    limits: &Limits,
) -> Result<Vec<ProofReport>, OptError> {
    let mut reports = Vec::new();
    for p in &object.programs {
        let after = &optimized.object;
        let (verdict, milliseconds) = if slots(object, p.func) == slots(after, p.func) {
            (Proven::Unchanged, 0.0)
        } else {
            let proof = prove((object, p.func), (after, p.func), solver, limits);
            let verdict = match proof.verdict {
                millstream_prove::Verdict::Equivalent => Proven::Equivalent,
                millstream_prove::Verdict::Unknown { reason } => Proven::Unknown(reason),
                millstream_prove::Verdict::Differs(found) => Proven::Refuted {
                    blame: blame(object, optimized, options, p.func, &found)?,
                    counterexample: found.to_string(),
                },
            };
            (verdict, proof.time.as_secs_f64() * 1e3)
        };
        reports.push(ProofReport { name: p.name.clone(), verdict, milliseconds });
    }
    Ok(reports)
}

/// The first rewrite after which a counterexample shows; [`None`] if it shows without any, or not again.
fn blame(
    object: &Object,
    optimized: &Optimized,
    options: &Options,
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
    let pass = optimized.fuel.blame(good).map_or("lower", |r| r.pass);
    Ok(Some((pass.to_owned(), good)))
}

/// The instructions of a program and all it calls.
fn slots(object: &Object, func: FuncId) -> Option<Vec<millstream_isa::Raw>> {
    object.link(func).ok().map(|l| l.insns)
}
