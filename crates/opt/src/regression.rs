//! Programs that became slower by prediction are made in another way.
//!
//! The static compiler decides by length, and shorter code is not always faster: a constant that is made
//! before a branch is made for both of its sides, a block that two paths share is one more jump away from one
//! of them, and a fold moves code to a block that runs more often. Here each program of a result is compared
//! with its original. One that takes more cycles is made again, lowered in all ways that there are, chosen by
//! its cycles in place of its length; then, if it is short, without one pass at a time; then with those of
//! its functions as they were that are slower by themselves. Of the forms that are no slower, the best by the
//! goal is taken, and if there is none, the original.
//!
//! Invariant: but for the goal `size`, no program of a result takes more predicted cycles than its original,
//! by more than a thousandth.

use std::collections::BTreeSet;

use millstream_bpf::cost::{CodeCost, OptimizationGoal};
use millstream_bpf::module::LiftedModule;
use millstream_object::{FuncId, Object, RelocKind};

use crate::check::functions;
use crate::compile::compile_object;
use crate::costs::{costs_of_both, costs_of_function};
use crate::trace::unmark;
use crate::{FunctionOutcome, OptError, OptimizationResult, OptimizeOptions};

/// Passes that are left out first: their folds and merges move code to blocks that run more often.
const FIRST_LEFT_OUT: [&str; 3] = ["sccp", "merge-blocks", "forward"];

/// A program is slower if it takes more cycles by more than one part in `CERTAIN`: guesses of frequencies
/// that are carried over from one form to the other err by that.
const CERTAIN: u64 = 1_000;

/// Slots that are compiled again without a pass, all passes together: a long program is not compiled without
/// each.
const MOST_SLOTS: usize = 400;

/// Slots of all programs of a family together, times its functions, up to which each form of each function is
/// judged by the cost of the programs with it. In larger families it is judged by the cost of the function by
/// itself, so that the effort grows with the family and not with its square.
const MOST_JUDGED: usize = 4_000;

/// Programs that share functions, with all of these: only together can they be made in another way.
pub(crate) struct ProgramGroup {
    pub(crate) programs: Vec<FuncId>,
    pub(crate) functions: BTreeSet<u32>,
    /// Slots of all programs together, each with all that it calls.
    slots: usize,
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
    fn is_large(&self) -> bool {
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
    original: &'a Object,
    /// The original with its own source lines, where in `original` marks are in their place.
    lines: Option<&'a Object>,
    goal: OptimizationGoal,
    families: &'a [&'a ProgramGroup],
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
    fn rank_alone(&self, object: &Object, function: u32) -> Option<CandidateRank> {
        self.with_lines(object, |original, object| {
            let [old, new] = costs_of_function(original, object, function)?;
            Some((slower(old, new), self.goal.rank(new, old)))
        })
    }

    /// Slowdown of the programs, all together; then by the goal.
    fn rank_of(&self, object: &Object, family: &ProgramGroup) -> CandidateRank {
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

/// Inputs for making slower programs again.
pub(crate) struct RegressionRepair<'a> {
    /// The original.
    pub(crate) object: &'a Object,
    /// The original with its own source lines, where in `object` marks are in their place.
    pub(crate) lines: Option<&'a Object>,
    pub(crate) options: &'a OptimizeOptions,
}

impl RegressionRepair<'_> {
    /// Gives programs of a result that are slower than they were another form, of those that `accepts` has no
    /// objection to; returns true if there were such.
    ///
    /// # Errors
    /// [`OptError`] if a pass fails.
    pub(crate) fn repair_regressions(
        &self,
        made: &mut OptimizationResult,
        accepts: &mut dyn FnMut(&Object, &[FuncId]) -> bool,
    ) -> Result<bool, OptError> {
        let options = self.options;
        let asked = options.fuel.is_some() || options.keep_longer || !options.passes.is_empty();
        if asked || options.goal == OptimizationGoal::Size {
            return Ok(false);
        }
        let families = ProgramGroup::all(self.object);
        let mut slow: Vec<&ProgramGroup> = families.iter().collect();
        let same = |made: &Object, f: u32| {
            made.functions[f as usize].insns == self.object.functions[f as usize].insns
        };
        slow.retain(|f| !f.functions.iter().all(|&f| same(&made.object, f)));
        slow.retain(|f| self.judge(&[], None).rank_of(&made.object, f).0 > 0);
        if slow.is_empty() {
            return Ok(false);
        }
        let lifted = self.options.lift(self.object);
        self.again(&lifted, made, &mut slow, vec![None], accepts)?;
        let mut passes: Vec<&str> = made.passes.iter().filter(|p| p.rewrites > 0).map(|p| p.name).collect();
        passes.sort_by_key(|name| !FIRST_LEFT_OUT.contains(name));
        self.again(&lifted, made, &mut slow, passes.into_iter().map(Some).collect(), accepts)?;
        for family in slow {
            if !self.mix(&lifted, made, family, accepts)? {
                family.put(made, self.object, self.object, FunctionOutcome::Slower);
            }
        }
        Ok(true)
    }

    /// Puts the functions of a family that are slower by themselves back as they were, and keeps the new
    /// forms of the others; returns true if the result is no slower and better than the original.
    fn mix(
        &self,
        lifted: &LiftedModule,
        made: &mut OptimizationResult,
        family: &ProgramGroup,
        accepts: &mut dyn FnMut(&Object, &[FuncId]) -> bool,
    ) -> Result<bool, OptError> {
        if family.functions.len() < 2 {
            return Ok(false);
        }
        // Functions by themselves compare only where none has become a part of another.
        let apart = if made.inline { self.form(lifted, &[family], None, false)? } else { None };
        let Some(mut form) = apart.or_else(|| (!made.inline).then(|| made.object.clone())) else {
            return Ok(false);
        };
        let judge = self.judge(&[], None);
        let is_slower = |f: &&u32| judge.rank_alone(&form, **f).is_none_or(|rank| rank.0 > 0);
        let slower: Vec<u32> = family.functions.iter().filter(is_slower).copied().collect();
        for f in slower {
            form.functions[f as usize] = self.object.functions[f as usize].clone();
        }
        self.restore_callees(&mut form, family);
        Ok(self.take(made, family, &[form], accepts))
    }

    /// Puts functions back that were removed and are referred to again.
    fn restore_callees(&self, form: &mut Object, family: &ProgramGroup) {
        loop {
            let relocs = family.functions.iter().flat_map(|&f| &form.functions[f as usize].relocs);
            let missing = relocs.filter_map(|r| match r.kind {
                RelocKind::Call(f) | RelocKind::FuncAddr(f) => Some(f.index()),
                _ => None,
            });
            let Some(f) = missing.into_iter().find(|f| form.functions[*f].removed) else { return };
            form.functions[f] = self.object.functions[f].clone();
        }
    }

    /// Makes families again, each time without one of some passes, until the limit on compiled slots is
    /// reached; leaves in `slow` those for which nothing was found.
    fn again(
        &self,
        lifted: &LiftedModule,
        made: &mut OptimizationResult,
        slow: &mut Vec<&ProgramGroup>,
        left_out: Vec<Option<&str>>,
        accepts: &mut dyn FnMut(&Object, &[FuncId]) -> bool,
    ) -> Result<(), OptError> {
        let mut forms = Vec::new();
        for (n, left_out) in left_out.into_iter().enumerate() {
            let room =
                |f: &&&ProgramGroup| left_out.is_none() || (n + 1) * f.slots(self.object) <= MOST_SLOTS;
            let families: Vec<&ProgramGroup> = slow.iter().filter(room).copied().collect();
            if families.is_empty() {
                break;
            }
            forms.extend(self.form(lifted, &families, left_out, made.inline)?);
        }
        slow.retain(|family| !self.take(made, family, &forms, accepts));
        Ok(())
    }

    fn judge<'b>(
        &'b self,
        families: &'b [&'b ProgramGroup],
        left_out: Option<&'b str>,
    ) -> CandidateSelector<'b> {
        CandidateSelector {
            original: self.object,
            lines: self.lines,
            goal: self.options.goal,
            families,
            left_out,
        }
    }

    /// Some families made again without a pass; nothing if they cannot be without the rest of the object.
    fn form(
        &self,
        lifted: &LiftedModule,
        families: &[&ProgramGroup],
        left_out: Option<&str>,
        inline: bool,
    ) -> Result<Option<Object>, OptError> {
        let options = OptimizeOptions { dump_after: None, record: false, ..self.options.clone() };
        let judge = self.judge(families, left_out);
        match compile_object(self.object, lifted, &options, inline, Some(&judge)) {
            Ok(made) => Ok(Some(made.object)),
            Err(OptError::Object(_)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Takes the best of some forms that is no slower and better than the original; returns true if there was
    /// one.
    fn take(
        &self,
        made: &mut OptimizationResult,
        family: &ProgramGroup,
        forms: &[Object],
        accepts: &mut dyn FnMut(&Object, &[FuncId]) -> bool,
    ) -> bool {
        let judge = self.judge(&[], None);
        let mut ranked: Vec<(CandidateRank, &Object)> =
            forms.iter().map(|form| (judge.rank_of(form, family), form)).collect();
        ranked.sort_by_key(|r| r.0);
        let original = judge.rank_of(self.object, family);
        let good = ranked.into_iter().take_while(|(rank, _)| rank.0 == 0 && *rank < original);
        let mut good = good.filter(|(_, form)| accepts(form, &family.programs));
        let Some((_, form)) = good.next() else { return false };
        family.put(made, self.object, form, FunctionOutcome::Slower);
        true
    }
}
