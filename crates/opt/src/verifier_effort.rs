//! Programs whose verification might take longer are left as they were.
//!
//! Without a kernel to ask, the effort of its verifier is estimated for both forms of a program, once for each
//! way in which the verifiers of the target's kernels walk. A form that is estimated to take more is not taken,
//! nor is one of a program for which the estimate is not certain: its verifier may be close to its limit of a
//! million instructions.
//!
//! The effort of large originals is estimated first: where it is not certain, nothing can be gained, and the
//! programs are not compiled. Where large programs gain next to nothing, they are left as they were without
//! further estimates, which would take longer than all passes.

use std::collections::{BTreeMap, BTreeSet};

use millstream_bpf::cost::OptimizationGoal;
use millstream_isa::generation::{KernelRange, VerifierGeneration};
use millstream_object::{FuncId, Object};
use millstream_search::{VerificationEffort, verification_effort};

use crate::candidate_selector::{ProgramGroup, functions};
use crate::costs::costs_of_both;
use crate::{FunctionOutcome, OptimizationResult, OptimizeOptions};

/// Estimated instructions below which longer verification does not matter.
const FEW: u64 = 1_000;

/// Slots of a program from which it is not expected to become one that takes few instructions.
const LARGE: usize = 2_000;

/// Instructions after which an estimate is given up: a constant, and a number for each slot of a program.
/// This keeps the time for estimates proportional to the time of the passes.
const MOST: (u64, u64) = (20_000, 100);

/// Instructions that a kernel verifies at most.
pub(crate) const LIMIT: u64 = 1_000_000;

/// Programs that share functions walk together at most as many instructions as so many of them may.
const PROGRAMS: u64 = 4;

/// A large program gains next to nothing by a form with a cost of at least so many thousandths of the
/// original's: in cycles, and in slots.
const SAME: u64 = 995;

/// Greatest effort of a new form, in thousandths of the original's.
const GROWTH: u64 = 1_020;

/// Estimates for the original programs of an object, and decisions that follow from them.
pub(crate) struct EffortEstimates<'a> {
    object: &'a Object,
    /// Small gains in slots or in verification are no goal.
    leaves_small_gains: bool,
    /// A generation for each way in which the target's verifiers walk.
    generations: Vec<VerifierGeneration>,
    groups: Vec<GroupEstimates>,
}

/// Estimates for programs that share functions.
struct GroupEstimates {
    group: ProgramGroup,
    /// The most instructions for one program.
    most: u64,
    /// Instructions that may still be walked, by generation.
    left: BTreeMap<VerifierGeneration, u64>,
    originals: BTreeMap<(FuncId, VerifierGeneration), VerificationEffort>,
    /// No other form would be taken.
    hopeless: bool,
}

impl<'a> EffortEstimates<'a> {
    /// No estimates yet; [`None`] where the effort does not decide.
    pub(crate) fn new(object: &'a Object, options: &OptimizeOptions) -> Option<EffortEstimates<'a>> {
        if !options.searches_forms() {
            return None;
        }
        let generations = walks(options.target(object).kernels);
        let estimates = |group: ProgramGroup| {
            let most = MOST.0 + MOST.1 * group.slots(object) as u64;
            let left = generations.iter().map(|g| (*g, PROGRAMS * most)).collect();
            GroupEstimates { group, most: most.min(LIMIT), left, originals: BTreeMap::new(), hopeless: false }
        };
        let groups = ProgramGroup::all(object).into_iter().map(estimates).collect();
        let leaves_small_gains =
            matches!(options.goal, OptimizationGoal::Balanced | OptimizationGoal::Latency);
        Some(EffortEstimates { object, leaves_small_gains, generations, groups })
    }

    /// Functions of which no other form would be taken, since the effort of the largest program that has them is not
    /// certain.
    pub(crate) fn hopeless_functions(&mut self) -> BTreeSet<u32> {
        let mut hopeless = BTreeSet::new();
        for estimates in &mut self.groups {
            let Some(largest) = estimates.group.largest(self.object) else { continue };
            estimates.hopeless = self
                .generations
                .iter()
                .any(|&generation| !estimates.original(self.object, largest, generation).certain);
            if estimates.hopeless {
                hopeless.extend(&estimates.group.functions);
            }
        }
        hopeless
    }

    /// Puts the original of programs back whose verification might take longer than it did.
    pub(crate) fn revert_costly_programs(&mut self, made: &mut OptimizationResult) {
        let object = self.object;
        for estimates in &mut self.groups {
            let changed = |f: &u32| {
                let f = *f as usize;
                made.object.functions[f].insns != object.functions[f].insns
            };
            let programs = estimates.group.programs.iter().copied();
            let programs: Vec<FuncId> =
                programs.filter(|p| functions(object, *p).iter().any(changed)).collect();
            let is_small = || estimates.gains_nothing(object, &made.object);
            if self.leaves_small_gains && !programs.is_empty() && is_small() {
                estimates.group.put(made, object, object, FunctionOutcome::SmallGain);
                continue;
            }
            let is_costlier = self.generations.iter().any(|&generation| {
                programs.iter().any(|&p| !estimates.is_within((object, &made.object), p, generation))
            });
            if estimates.hopeless || is_costlier {
                estimates.group.put(made, object, object, FunctionOutcome::Costlier);
            }
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

impl ProgramGroup {
    /// The program with the most slots, with all that it calls, if it is a large one.
    fn largest(&self, object: &Object) -> Option<FuncId> {
        let slots = |p: FuncId| -> usize {
            functions(object, p).iter().map(|f| object.functions[*f as usize].insns.len()).sum()
        };
        let (slots, program) =
            self.programs.iter().map(|&p| (slots(p), p)).max_by_key(|(slots, _)| *slots)?;
        (slots >= LARGE).then_some(program)
    }
}

impl GroupEstimates {
    /// Returns true if it has a large program, and none of its programs gains by the form that was made.
    fn gains_nothing(&self, old: &Object, new: &Object) -> bool {
        let is_same = |old: u64, new: u64| 1_000 * new >= SAME * old;
        !self.hopeless
            && self.group.largest(old).is_some()
            && self.group.programs.iter().all(|&program| {
                let [before, after] = costs_of_both(old, new, program);
                is_same(before.cycles, after.cycles) && is_same(before.slots.into(), after.slots.into())
            })
    }

    /// Returns true if the new form of a program takes little effort, or certainly no more than the old one,
    /// up to the error of estimates.
    fn is_within(
        &mut self,
        (old, new): (&Object, &Object),
        program: FuncId,
        generation: VerifierGeneration,
    ) -> bool {
        let few = self.estimate(new, program, generation, FEW);
        if few.certain || few.instructions <= FEW {
            return few.certain;
        }
        let old = self.original(old, program, generation);
        old.certain && self.estimate(new, program, generation, GROWTH * old.instructions / 1_000).certain
    }

    fn original(
        &mut self,
        object: &Object,
        program: FuncId,
        generation: VerifierGeneration,
    ) -> VerificationEffort {
        if let Some(known) = self.originals.get(&(program, generation)) {
            return *known;
        }
        let effort = self.estimate(object, program, generation, self.most);
        self.originals.insert((program, generation), effort);
        effort
    }

    fn estimate(
        &mut self,
        object: &Object,
        program: FuncId,
        generation: VerifierGeneration,
        most: u64,
    ) -> VerificationEffort {
        let left = self.left.entry(generation).or_default();
        let effort = verification_effort(object, program, generation, most.min(*left));
        *left = left.saturating_sub(effort.instructions);
        effort
    }
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
