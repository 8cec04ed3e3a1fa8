//! Programs whose verification might take longer are left as they were.
//!
//! Without a kernel to ask, the effort of its verifier is estimated for both forms of a program. A form that
//! is estimated to take more is not taken, nor is one of a program for which the estimate is not certain: its
//! verifier may be close to its limit of a million instructions.

use millstream_object::Object;
use millstream_search::{VerificationEffort, verification_effort};

use crate::candidate_selector::ProgramGroup;
use crate::{FunctionOutcome, OptimizationResult, OptimizeOptions};

/// Estimated instructions below which longer verification does not matter.
const FEW: u64 = 1_000;

/// Instructions after which an estimate is given up: a constant, and a number for each slot of a program.
/// This keeps the time for estimates proportional to the time of the passes.
const MOST: (u64, u64) = (20_000, 100);

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
    for family in ProgramGroup::all(object) {
        let most = MOST.0 + MOST.1 * family.slots(object) as u64;
        let same = |f: &u32| {
            let f = *f as usize;
            made.object.functions[f].insns == object.functions[f].insns
        };
        if family.functions.iter().all(same) {
            continue;
        }
        let risky = family.programs.iter().any(|&p| {
            let new = verification_effort(&made.object, p, most);
            let small = new.certain && new.instructions <= FEW;
            !small && !is_within(new, verification_effort(object, p, most))
        });
        if risky {
            family.put(made, object, object, FunctionOutcome::Costlier);
        }
    }
}

/// Returns true if a form certainly takes no more effort than another, up to the error of estimates.
fn is_within(new: VerificationEffort, old: VerificationEffort) -> bool {
    new.certain && old.certain && 1_000 * new.instructions <= GROWTH * old.instructions
}
