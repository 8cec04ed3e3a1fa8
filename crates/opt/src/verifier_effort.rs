//! Programs whose verification might take longer are left as they were.
//!
//! Without a kernel to ask, the effort of its verifier is estimated for both forms of a program, once for each
//! way in which the verifiers of the target's kernels walk. A form that is estimated to take more is not taken,
//! nor is one of a program for which the estimate is not certain: its verifier may be close to its limit of a
//! million instructions.

use millstream_isa::generation::{KernelRange, VerifierGeneration};
use millstream_object::{FuncId, Object};
use millstream_search::{VerificationEffort, verification_effort};

use crate::candidate_selector::{ProgramGroup, functions};
use crate::{FunctionOutcome, OptimizationResult, OptimizeOptions};

/// Estimated instructions below which longer verification does not matter.
const FEW: u64 = 1_000;

/// Instructions after which an estimate is given up: a constant, and a number for each slot of a program.
/// This keeps the time for estimates proportional to the time of the passes.
const MOST: (u64, u64) = (20_000, 100);

/// Programs that share functions walk together at most as many instructions as so many of them may.
const PROGRAMS: u64 = 4;

/// Greatest effort of a new form, in thousandths of the original's.
const GROWTH: u64 = 1_020;

/// Puts the original of programs back whose verification might take longer than it did.
pub(crate) fn revert_costly_programs(
    object: &Object,
    options: &OptimizeOptions,
    made: &mut OptimizationResult,
) {
    if options.fuel.is_some() || options.keep_longer || !options.passes.is_empty() {
        return;
    }
    let generations = walks(options.target(object).kernels);
    for family in ProgramGroup::all(object) {
        let most = MOST.0 + MOST.1 * family.slots(object) as u64;
        let mut estimates = EffortEstimates { most, left: 0 };
        let changed = |f: &u32| {
            let f = *f as usize;
            made.object.functions[f].insns != object.functions[f].insns
        };
        let programs = || family.programs.iter().filter(|p| functions(object, **p).iter().any(changed));
        let costlier = generations.iter().any(|&generation| {
            estimates.left = PROGRAMS * most;
            programs().any(|&p| !estimates.is_within((object, &made.object), p, generation))
        });
        if costlier {
            family.put(made, object, object, FunctionOutcome::Costlier);
        }
    }
}

/// A generation for each way in which verifiers of these kernels walk, the newest first: its model is exact
/// most often.
fn walks(kernels: KernelRange) -> Vec<VerifierGeneration> {
    let older = kernels.generations().rfind(|g| *g <= VerifierGeneration::V6_1);
    let newer = kernels.generations().any(|g| g >= VerifierGeneration::V6_12);
    newer.then_some(VerifierGeneration::V6_18).into_iter().chain(older).collect()
}

/// Estimates for programs that share functions, with the instructions that they may still walk.
struct EffortEstimates {
    /// At most for one program.
    most: u64,
    /// For all of them together.
    left: u64,
}

impl EffortEstimates {
    /// Returns true if the new form of a program takes little effort, or certainly no more than the old one.
    fn is_within(
        &mut self,
        (old, new): (&Object, &Object),
        program: FuncId,
        generation: VerifierGeneration,
    ) -> bool {
        let new = self.estimate(new, program, generation);
        // The old form decides only where the new one is known.
        new.certain && (new.instructions <= FEW || is_within(new, self.estimate(old, program, generation)))
    }

    fn estimate(
        &mut self,
        object: &Object,
        program: FuncId,
        generation: VerifierGeneration,
    ) -> VerificationEffort {
        let effort = verification_effort(object, program, generation, self.most.min(self.left));
        self.left = self.left.saturating_sub(effort.instructions);
        effort
    }
}

/// Returns true if a form certainly takes no more effort than another, up to the error of estimates.
fn is_within(new: VerificationEffort, old: VerificationEffort) -> bool {
    new.certain && old.certain && 1_000 * new.instructions <= GROWTH * old.instructions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_of_the_walk_is_estimated_once() {
        use VerifierGeneration::{V5_10, V6_1, V6_12, V6_18, V7_2};
        assert_eq!(walks(KernelRange::ALL), [V6_18, V6_1]);
        assert_eq!(walks(KernelRange::since(V6_12)), [V6_18]);
        assert_eq!(walks(KernelRange::only(V5_10)), [V5_10]);
        assert_eq!(walks(KernelRange::only(V7_2)), [V6_18]);
    }
}
