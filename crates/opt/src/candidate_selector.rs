//! Ranks of the forms in which functions can be made, by the predicted cost of the programs with them.

use std::collections::BTreeSet;

use millstream_bpf::cost::{CodeCost, OptimizationGoal};
use millstream_object::{FuncId, Object};

use crate::costs::{costs_of_both, costs_of_function};
use crate::trace::unmark;
use crate::{FunctionOutcome, OptimizationResult};

/// A program is slower if it takes more cycles by more than one part in `CERTAIN`: guesses of frequencies
/// that are carried over from one form to the other err by that.
const CERTAIN: u64 = 1_000;

/// Slots of all programs of a family together, times its functions, up to which each form of each function is
/// judged by the cost of the programs with it. In larger families it is judged by the cost of the function by
/// itself, so that the effort grows with the family and not with its square.
const MOST_JUDGED: usize = 4_000;

/// Programs that share functions, with all of these: only together can they be made in another way.
pub(crate) struct ProgramGroup {
    pub(crate) programs: Vec<FuncId>,
    pub(crate) functions: BTreeSet<u32>,
    /// Slots of all programs together, each with all that it calls.
    pub(crate) slots: usize,
}

impl ProgramGroup {
    /// The families of an object.
    pub(crate) fn all(object: &Object) -> Vec<ProgramGroup> {
        let mut families: Vec<ProgramGroup> = Vec::new();
        for p in &object.programs {
            let functions: BTreeSet<u32> = functions(object, p.func).into_iter().collect();
            let slots = functions.iter().map(|&f| object.functions[f as usize].insns.len()).sum();
            let mut own = ProgramGroup { programs: vec![p.func], functions, slots };
            families.retain(|other| {
                let apart = other.functions.is_disjoint(&own.functions);
                if !apart {
                    own.programs.extend(&other.programs);
                    own.functions.extend(&other.functions);
                    own.slots += other.slots;
                }
                apart
            });
            families.push(own);
        }
        families
    }

    /// Slots of its functions.
    pub(crate) fn slots(&self, object: &Object) -> usize {
        self.functions.iter().map(|&f| object.functions[f as usize].insns.len()).sum()
    }

    /// Returns true if the cost of its programs cannot be computed for each form of each function.
    pub(crate) fn is_large(&self) -> bool {
        self.functions.len() > 1 && self.slots * self.functions.len() > MOST_JUDGED
    }

    /// Puts the functions of the family as they are in another form into a result; `kept` says why one is as
    /// it was in the original.
    pub(crate) fn put(
        &self,
        made: &mut OptimizationResult,
        original: &Object,
        form: &Object,
        kept: FunctionOutcome,
    ) {
        for &f in &self.functions {
            let f = f as usize;
            made.object.functions[f] = form.functions[f].clone();
            let (function, report) = (&form.functions[f], &mut made.functions[f]);
            report.after = function.insns.len();
            report.outcome = match function.insns == original.functions[f].insns {
                _ if function.removed => FunctionOutcome::Removed,
                true if matches!(
                    report.outcome,
                    FunctionOutcome::NotUnderstood(_) | FunctionOutcome::Marked
                ) =>
                {
                    continue;
                }
                true => kept.clone(),
                false => FunctionOutcome::Rewritten,
            };
        }
    }
}

/// Rank of a form; less is better.
pub(crate) type CandidateRank = (u64, [u64; 5]);

/// Functions to be made, and what their forms are chosen by.
pub(crate) struct CandidateSelector<'a> {
    pub(crate) original: &'a Object,
    /// The original with its own source lines, where in `original` marks are in their place.
    pub(crate) lines: Option<&'a Object>,
    pub(crate) goal: OptimizationGoal,
    pub(crate) families: &'a [&'a ProgramGroup],
    /// A pass that they are made without.
    pub(crate) left_out: Option<&'a str>,
}

impl CandidateSelector<'_> {
    /// Returns true if a function is to be made.
    pub(crate) fn includes(&self, function: u32) -> bool {
        self.families.iter().any(|f| f.functions.contains(&function))
    }

    /// Rank of an object for the programs that have a function, as far as the function determines it.
    pub(crate) fn rank(&self, object: &Object, function: u32) -> Option<CandidateRank> {
        let family = self.families.iter().find(|f| f.functions.contains(&function))?;
        if family.is_large() { self.rank_alone(object, function) } else { Some(self.rank_of(object, family)) }
    }

    /// Slowdown of a function; then by the goal.
    pub(crate) fn rank_alone(&self, object: &Object, function: u32) -> Option<CandidateRank> {
        self.with_lines(object, |original, object| {
            let [old, new] = costs_of_function(original, object, function)?;
            Some((slower(old, new), self.goal.rank(new, old)))
        })
    }

    /// Slowdown of the programs, all together; then by the goal.
    pub(crate) fn rank_of(&self, object: &Object, family: &ProgramGroup) -> CandidateRank {
        self.with_lines(object, |original, object| {
            let (mut slowdown, mut base, mut cost) = (0, CodeCost::default(), CodeCost::default());
            for &p in &family.programs {
                let [old, new] = costs_of_both(original, object, p);
                slowdown += slower(old, new);
                (base, cost) = (base.plus(old), cost.plus(new));
            }
            (slowdown, self.goal.rank(cost, base))
        })
    }

    /// Calls with the original and another object, both with their own source lines.
    fn with_lines<T>(&self, object: &Object, judge: impl FnOnce(&Object, &Object) -> T) -> T {
        let Some(lines) = self.lines else { return judge(self.original, object) };
        let mut unmarked = object.clone();
        unmark(lines, &mut unmarked);
        judge(lines, &unmarked)
    }
}

/// Slowdown in cycles, as far as can be told.
fn slower(old: CodeCost, new: CodeCost) -> u64 {
    new.cycles.saturating_sub(old.cycles + old.cycles / CERTAIN)
}

/// A program and all it calls.
pub(crate) fn functions(object: &Object, func: FuncId) -> Vec<u32> {
    object.link(func).map_or_else(|_| Vec::new(), |l| l.functions.iter().map(|(_, f)| f.0).collect())
}
