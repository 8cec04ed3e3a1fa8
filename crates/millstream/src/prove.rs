//! Proofs that programs behave alike.
//!
//! ```
//! use millstream::Object;
//! use millstream::prove::{EquivalenceProver, ProofVerdict};
//!
//! # let elf = millstream_programs::ROUTER.object;
//! let object = Object::parse("router.o", elf)?;
//! let proofs = EquivalenceProver::without_solver().prove(&object, &object)?;
//! assert!(proofs.iter().all(|proof| matches!(proof.verdict, ProofVerdict::Equivalent)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::time::Duration;

use millstream_object::{FuncId, Object};
use millstream_prove::{ProofLimits, Solver};

pub use millstream_prove::{Counterexample, ProofVerdict};

/// A program that only one of two objects has.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the other object has no program `{program}`")]
pub struct UnmatchedProgram {
    /// Its name.
    pub program: String,
}

/// The verdict about a program of two objects.
#[derive(Clone, Debug)]
pub struct ProgramProof {
    /// Name of the program in the first object.
    pub program: String,
    /// The verdict.
    pub verdict: ProofVerdict,
}

/// Proves programs equivalent, within limits.
pub struct EquivalenceProver {
    solver: Option<Solver>,
    limits: ProofLimits,
}

impl EquivalenceProver {
    /// A prover that asks the SMT solvers of this machine (z3, cvc5), if there are any. They run as child
    /// processes.
    #[must_use]
    pub fn with_installed_solvers() -> EquivalenceProver {
        EquivalenceProver { solver: Solver::discover(), limits: ProofLimits::default() }
    }

    /// A prover that decides by normal forms alone, without child processes. Most results of the optimizer need
    /// no more.
    #[must_use]
    pub fn without_solver() -> EquivalenceProver {
        EquivalenceProver { solver: None, limits: ProofLimits::default() }
    }

    /// Time for the proof of one program.
    #[must_use]
    pub fn time_limit(mut self, time: Duration) -> EquivalenceProver {
        self.limits.time = time;
        self
    }

    /// Compares the programs of two objects, by name; or the only ones of both, whatever their names.
    ///
    /// # Errors
    /// If a program is in one object only.
    pub fn prove(&self, before: &Object, after: &Object) -> Result<Vec<ProgramProof>, UnmatchedProgram> {
        let proof = |(program, a, b): (String, FuncId, FuncId)| {
            let result = millstream_prove::prove((before, a), (after, b), self.solver.as_ref(), &self.limits);
            ProgramProof { program, verdict: result.verdict }
        };
        Ok(matched_programs(before, after)?.into_iter().map(proof).collect())
    }
}

/// Programs of two objects that correspond.
fn matched_programs(
    before: &Object,
    after: &Object,
) -> Result<Vec<(String, FuncId, FuncId)>, UnmatchedProgram> {
    if let ([a], [b]) = (before.programs.as_slice(), after.programs.as_slice()) {
        return Ok(vec![(a.name.clone(), a.func, b.func)]);
    }
    let find = |object: &Object, name: &str| {
        let found = object.programs.iter().find(|program| program.name == name);
        found.map(|program| program.func).ok_or_else(|| UnmatchedProgram { program: name.to_owned() })
    };
    for program in &after.programs {
        find(before, &program.name)?;
    }
    before.programs.iter().map(|p| Ok((p.name.clone(), p.func, find(after, &p.name)?))).collect()
}
