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

use millstream_bpf::cost::OptimizationGoal;
use millstream_bpf::module::LiftedModule;
use millstream_object::{FuncId, Object, RelocKind};

use crate::candidate_selector::{CandidateRank, CandidateSelector, ProgramGroup};
use crate::compile::{FunctionSelection, compile_object};
use crate::{FunctionOutcome, OptError, OptimizationResult, OptimizeOptions};

/// Passes that are left out first: their folds and merges move code to blocks that run more often.
const FIRST_LEFT_OUT: [&str; 3] = ["sccp", "merge-blocks", "forward"];

/// Slots that are compiled again without a pass, all passes together: a long program is not compiled without
/// each.
const MOST_SLOTS: usize = 400;

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
        match compile_object(self.object, lifted, &options, inline, &FunctionSelection::Judged(&judge)) {
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
