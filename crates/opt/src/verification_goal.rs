//! Goal `verify`: of the forms of a program, the one that takes the verifier fewest instructions.
//!
//! The forms are the original, the optimized program, and the optimized program with the other choice of
//! inlining. The best of them is edited ([`VerifierEdit`]): sides of branches are swapped, so that the
//! verifier meets the more general state first, and numbers are forgotten where the verifier's states differ
//! in them. Which edits are worth trying, the model of the verifier says; which are kept, a judge decides:
//! the kernel where there is one, else the model.
//!
//! Invariant: by its judge, no program takes more instructions than its original, and no program more than
//! 3 % more predicted cycles.

use std::time::{Duration, Instant};

use millstream_isa::generation::VerifierGeneration;
use millstream_object::{FuncId, Object};
use millstream_search::{
    EditableFunction, StateDifference, VerifierEdit, verification_effort, verification_profile,
};

use crate::candidate_selector::ProgramGroup;
use crate::costs::costs_of_both;
use crate::verifier_effort::LIMIT;
use crate::{FunctionOutcome, OptError, OptimizationResult, OptimizeOptions, shortest};

/// Instructions below which no edits are searched.
const FEW: u64 = 1_000;
/// Greatest number of predicted cycles, in thousandths of the original's.
const MOST_CYCLES: u64 = 1_030;
/// Trials of one group of programs by the kernel, and by the model, which is slower.
const MOST_TRIALS: [u32; 2] = [400, 120];
/// Instructions that all trials of a group may walk, by the kernel and by the model.
const BUDGET: [u64; 2] = [30_000_000, 2_000_000];
/// Time in which the kernel tries the edits of one program, and those of a group at most. The trials of the
/// model are bounded by their number alone, so that its result does not depend on the machine.
const TIME: [Duration; 2] = [Duration::from_secs(20), Duration::from_secs(60)];
/// Instructions that the model walks to find what keeps states apart.
const MOST_PROFILED: u64 = 400_000;
/// Effort above which edits are first tried all together, since a trial takes long.
const LARGE: u64 = 50_000;
/// Rounds of edits, each beginning with the result of the last.
const ROUNDS: usize = 3;
/// Edits that are first tried together.
const TOGETHER: usize = 8;

/// Judge of the effort of verification.
pub(crate) enum EffortJudge<'a> {
    /// The running kernel: instructions of its verifier, if it accepts the program.
    Kernel(&'a dyn Fn(&Object, FuncId) -> Option<u64>),
    /// The model.
    Model,
}

impl EffortJudge<'_> {
    /// Instructions that the verifier walks; [`None`] if the program is rejected, or its effort not known.
    fn effort(&self, object: &Object, func: FuncId, most: u64) -> Option<u64> {
        match self {
            EffortJudge::Kernel(verified) => verified(object, func),
            EffortJudge::Model => {
                let most = most.min(LIMIT);
                let effort = verification_effort(object, func, VerifierGeneration::V6_18, most);
                effort.certain.then_some(effort.instructions)
            }
        }
    }

    /// The effort of several programs together.
    fn total(&self, object: &Object, programs: &[FuncId], most: u64) -> Option<u64> {
        programs.iter().try_fold(0, |sum, p| Some(sum + self.effort(object, *p, most.saturating_sub(sum))?))
    }

    /// Moment after which no edits of these programs are tried.
    fn deadline(&self, programs: usize) -> Option<Instant> {
        let time = TIME[0].saturating_mul(u32::try_from(programs).unwrap_or(u32::MAX)).min(TIME[1]);
        matches!(self, EffortJudge::Kernel(_)).then(|| Instant::now() + time)
    }

    /// Trials, and instructions that they may walk.
    fn budget(&self) -> (u32, u64) {
        let n = usize::from(matches!(self, EffortJudge::Model));
        (MOST_TRIALS[n], BUDGET[n])
    }
}

/// Puts the form of each program into a result that takes the judge's verifier fewest instructions; calls
/// `done` for each program.
///
/// # Errors
/// [`OptError`] if a pass fails.
pub(crate) fn lower_effort(
    object: &Object,
    options: &OptimizeOptions,
    judge: &EffortJudge<'_>,
    made: &mut OptimizationResult,
    done: &mut dyn FnMut(),
) -> Result<(), OptError> {
    let other = shortest(object, &OptimizeOptions { inline: Some(!made.inline), ..options.clone() })?.object;
    for group in ProgramGroup::all(object) {
        let judged = |p: &FuncId| judge.effort(object, *p, u64::MAX).is_some();
        let own: Vec<FuncId> = group.programs.iter().copied().filter(judged).collect();
        let (judge, programs) = match own.is_empty() {
            true => (&EffortJudge::Model, &group.programs),
            false => (judge, &own),
        };
        let Some(original) = judge.total(object, programs, u64::MAX) else {
            group.put(made, object, object, FunctionOutcome::Costlier);
            group.programs.iter().for_each(|_| done());
            continue;
        };
        let forms = [object, &made.object, &other];
        let mut best = (original, object);
        for form in forms.into_iter().skip(1) {
            let effort = judge.total(form, programs, best.0);
            if let Some(effort) = effort.filter(|e| *e < best.0 && is_fast(object, form, programs)) {
                best = (effort, form);
            }
        }
        let deadline = judge.deadline(programs.len());
        let mut search = EditSearch { object, judge, programs, trials: 0, walked: 0, deadline };
        let edited = search.improve(best.1, best.0, &group);
        let result = edited.unwrap_or_else(|| best.1.clone());
        group.put(made, object, &result, FunctionOutcome::Costlier);
        group.programs.iter().for_each(|_| done());
    }
    Ok(())
}

/// Returns true if the programs take hardly more predicted cycles than they did.
fn is_fast(original: &Object, form: &Object, programs: &[FuncId]) -> bool {
    programs.iter().all(|p| {
        let [old, new] = costs_of_both(original, form, *p);
        1_000 * new.cycles <= MOST_CYCLES * old.cycles
    })
}

/// A search for edits that lower the effort of some programs.
struct EditSearch<'a> {
    object: &'a Object,
    judge: &'a EffortJudge<'a>,
    programs: &'a [FuncId],
    trials: u32,
    walked: u64,
    deadline: Option<Instant>,
}

/// A form, the edits that are kept, and its effort with them.
struct EditedForm<'a> {
    base: &'a Object,
    functions: Vec<EditableFunction>,
    /// The form in which edits are tried.
    trial: Object,
    kept: Vec<VerifierEdit>,
    effort: u64,
}

impl EditedForm<'_> {
    /// Makes the trial form one with the given edits.
    fn apply(&mut self, edits: &[VerifierEdit]) -> bool {
        for f in &self.functions {
            let n = f.func() as usize;
            self.trial.functions[n] = self.base.functions[n].clone();
        }
        self.functions.iter().all(|f| f.apply(&mut self.trial, edits))
    }
}

impl EditSearch<'_> {
    /// The form with the edits that are worth it, if there are such.
    fn improve(&mut self, form: &Object, effort: u64, group: &ProgramGroup) -> Option<Object> {
        let (mut best, mut effort) = (None, effort);
        for _ in 0..ROUNDS {
            if effort <= FEW || self.is_spent() {
                break;
            }
            let base = best.as_ref().unwrap_or(form);
            let functions = group.functions.iter().filter_map(|f| EditableFunction::new(base, *f)).collect();
            let mut edited = EditedForm { base, functions, trial: base.clone(), kept: Vec::new(), effort };
            let forgets = self.forgets(&edited);
            let (first, rest) = forgets.split_at(forgets.len().min(3 * TOGETHER));
            match effort > LARGE {
                true => self.try_together(&mut edited, first),
                false => {
                    first.iter().for_each(|edit| self.try_together(&mut edited, std::slice::from_ref(edit)))
                }
            }
            let swaps: Vec<VerifierEdit> =
                edited.functions.iter().flat_map(EditableFunction::swaps).collect();
            for edits in swaps.chunks(TOGETHER).chain(rest.chunks(TOGETHER / 2)) {
                self.try_together(&mut edited, edits);
            }
            let (before, after, kept) = (effort, edited.effort, edited.kept.clone());
            if kept.is_empty() || !edited.apply(&kept) {
                break;
            }
            let trial = edited.trial;
            (best, effort) = (Some(trial), after);
            if 50 * after > 49 * before {
                break;
            }
        }
        best
    }

    fn is_spent(&self) -> bool {
        let (trials, walked) = self.judge.budget();
        let is_late = self.deadline.is_some_and(|deadline| Instant::now() > deadline);
        self.trials >= trials || self.walked >= walked || is_late
    }

    /// The numbers that keep states of the verifier apart, most frequent first.
    fn forgets(&mut self, form: &EditedForm<'_>) -> Vec<VerifierEdit> {
        let mut edits = Vec::new();
        let mut places = Vec::new();
        let most = (20_000 + 2 * form.effort).min(MOST_PROFILED);
        for p in self.programs {
            places.extend(verification_profile(form.base, *p, VerifierGeneration::V6_18, most).1);
        }
        places.sort_by_key(|m| (std::cmp::Reverse(m.count), m.func, m.line));
        for miss in places {
            let StateDifference::Register(register) = miss.difference else { continue };
            let function = form.functions.iter().find(|f| f.func() == miss.func);
            let edit = function.and_then(|f| f.forget(f.block_of(miss.line)?, register));
            edits.extend(edit.filter(|e| !edits.contains(e)));
        }
        edits
    }

    /// Keeps edits that lower the effort together; where they do not, parts of them.
    fn try_together(&mut self, form: &mut EditedForm<'_>, edits: &[VerifierEdit]) {
        if edits.is_empty() || self.is_spent() {
            return;
        }
        let mut with = form.kept.clone();
        with.extend_from_slice(edits);
        if form.apply(&with) {
            self.trials += 1;
            let effort = self.judge.total(&form.trial, self.programs, form.effort);
            self.walked += effort.unwrap_or(form.effort / 2);
            let better = effort.filter(|e| *e < form.effort);
            if let Some(effort) = better.filter(|_| is_fast(self.object, &form.trial, self.programs)) {
                (form.kept, form.effort) = (with, effort);
                return;
            }
        }
        if edits.len() > 1 {
            let (left, right) = edits.split_at(edits.len() / 2);
            self.try_together(form, left);
            self.try_together(form, right);
        }
    }
}
