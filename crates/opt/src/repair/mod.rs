//! Repair of programs that the kernel rejects although they are safe.
//!
//! A rejection names an instruction and a reason. Both give ideas ([`ideas`]): guards that tell the verifier
//! what it has lost, and other forms of the same code. An idea is kept if the kernel goes on beyond the
//! instruction. Of several bounds, the weakest is kept. So it goes on until the kernel accepts the program.
//!
//! Then the prover decides. The result must do what the original does on every run. And no guard may ever
//! fail: the result is compared with itself, each with another marker in the exits of its guards. So a
//! program is not repaired that would be unsafe without its guards, even if the difference cannot be seen.
//!
//! Invariant: a repaired program is accepted by the kernel, proven equivalent to its original, and proven
//! never to leave through a guard. All others are left as they were.

mod ideas;
mod report;

use std::collections::BTreeSet;
use std::time::Instant;

use millstream_isa::generation::VerifierGeneration;
use millstream_kernel::{LoadError, Rejection};
use millstream_loader::{ObjectLoader, ProgramError, Session};
use millstream_object::{EntryProgram, FuncId, Object, RelocKind};
use millstream_prove::{ProofLimits, ProofVerdict, Solver, prove};
use millstream_search::{
    EditableFunction, GuardExit, RangeCheckSite, RepairEdit, StateDifference, VerifierEdit,
    verification_profile,
};

use crate::candidate_selector::functions;
use crate::costs::costs_of_both;
use crate::{OptError, OptimizeOptions, shortest};

use ideas::{RejectedPlace, RepairIdea, WholeForm};

pub use report::{RepairChange, RepairCost, RepairOutcome, RepairReport};

/// Edits of one program, at most.
const MOST_EDITS: usize = 24;
/// Instructions that the model of the verifier walks to find what keeps states apart.
const MOST_WALKED: u64 = 300_000;
/// Numbers that are forgotten in one program, at most.
const MOST_FORGOTTEN: usize = 40;
/// Time for a repair, in times of one proof.
const MOST_PROOFS: u32 = 8;
/// Results of guards that fail, in the two forms that are compared.
const MARKERS: [i32; 2] = [0x5EED_0001, 0x5EED_0002];

/// Repairs the programs of an object that this kernel rejects.
///
/// # Errors
/// [`OptError::Loader`] if the kernel cannot be asked.
pub fn repair(
    object: &Object,
    solver: Option<&Solver>,
    limits: &ProofLimits,
) -> Result<(Object, Vec<RepairReport>), OptError> {
    let session = ObjectLoader::new(object).guess_types()?.without_impossible_maps().prepare()?;
    let mut repaired = object.clone();
    let mut reports = Vec::new();
    // A function that several programs share is changed for the first of them only.
    let mut changed: BTreeSet<u32> = BTreeSet::new();
    for program in &object.programs {
        let prover = RepairProver { solver, limits };
        let start = repaired.clone();
        let mut attempt = RepairAttempt::new(&session, prover, program, &start);
        let mut report = RepairReport::new(program);
        report.outcome = attempt.run(&mut report);
        if report.outcome == RepairOutcome::Repaired {
            report.outcome = attempt.proven(&mut report);
        }
        let own: BTreeSet<u32> = functions(object, program.func).into_iter().collect();
        if report.outcome == RepairOutcome::Repaired {
            if own.is_disjoint(&changed) {
                report.cost = Some(attempt.cost());
                repaired = attempt.object;
                changed.extend(own);
            } else {
                let why = "it shares a function with a program that was repaired";
                report.outcome = RepairOutcome::Rejected(why.to_owned());
            }
        }
        reports.push(report);
    }
    Ok((repaired, reports))
}

/// The prover, with its limits.
#[derive(Clone, Copy)]
struct RepairProver<'a> {
    solver: Option<&'a Solver>,
    limits: &'a ProofLimits,
}

impl RepairProver<'_> {
    /// Reason why two forms of a program are not proven equivalent; [`None`] if they are.
    fn objection(&self, func: FuncId, a: &Object, b: &Object) -> Option<String> {
        match prove((a, func), (b, func), self.solver, self.limits).verdict {
            ProofVerdict::Equivalent => None,
            ProofVerdict::Unknown { reason } => Some(reason),
            ProofVerdict::Differs(found) => Some(found.to_string()),
        }
    }
}

/// An edit that was made.
#[derive(Clone, Debug)]
enum MadeEdit {
    /// An edit of one place.
    Repair(RepairEdit),
    /// Edits against too many states.
    Effort(Vec<VerifierEdit>),
    /// The program was compiled again.
    Whole(WholeForm),
}

/// The repair of one program in progress.
struct RepairAttempt<'a> {
    session: &'a Session<'a>,
    prover: RepairProver<'a>,
    program: &'a EntryProgram,
    original: &'a Object,
    object: Object,
    edits: Vec<MadeEdit>,
    /// Moment after which no further edit is tried.
    deadline: Instant,
}

impl<'a> RepairAttempt<'a> {
    fn new(
        session: &'a Session<'a>,
        prover: RepairProver<'a>,
        program: &'a EntryProgram,
        original: &'a Object,
    ) -> RepairAttempt<'a> {
        let deadline = Instant::now() + MOST_PROOFS * prover.limits.time;
        let object = original.clone();
        RepairAttempt { session, prover, program, original, object, edits: Vec::new(), deadline }
    }

    /// The rejection of a form, or the instructions that the verifier walks if it is accepted.
    fn load(&self, object: &Object) -> Result<Result<u32, Box<Rejection>>, String> {
        let func = self.program.func;
        let linked = object.link(func).map_err(|e| e.to_string())?;
        match self.session.load(func, &linked) {
            Ok(program) => Ok(Ok(program.stats().map_or(0, |s| s.processed))),
            Err(ProgramError::Load(LoadError::Rejected(r))) => Ok(Err(r)),
            Err(e) => Err(e.to_string()),
        }
    }

    /// Makes edits until the kernel accepts the program.
    fn run(&mut self, report: &mut RepairReport) -> RepairOutcome {
        loop {
            let rejection = match self.load(&self.object) {
                Ok(Ok(_)) if self.edits.is_empty() => return RepairOutcome::Accepted,
                Ok(Ok(_)) => return RepairOutcome::Repaired,
                Ok(Err(rejection)) => rejection,
                Err(why) => return RepairOutcome::NotSupported(why),
            };
            let reason = rejection.reason().to_owned();
            report.reason.get_or_insert_with(|| reason.clone());
            let place = RejectedPlace::new(&self.object, self.program, &rejection);
            if self.edits.len() >= MOST_EDITS || self.is_late() || !self.step(&place, report) {
                report.advice = Some(ideas::advice(&place).to_owned());
                report.nearest = place.describe(&self.object);
                return RepairOutcome::Rejected(reason);
            }
        }
    }

    /// Makes the first edit with which the kernel gets further.
    fn step(&mut self, place: &RejectedPlace, report: &mut RepairReport) -> bool {
        if self.stricter(place, report) {
            return true;
        }
        let mut best: Option<(Vec<RepairEdit>, i32, Object)> = None;
        for idea in ideas::edits(&self.object, self.program, place) {
            let rank = idea.rank();
            if best.as_ref().is_some_and(|(_, known, _)| rank.is_none_or(|rank| rank <= *known)) {
                continue;
            }
            let Some((edits, object)) = self.weakest(&idea, place) else { continue };
            let bound = edits.last().and_then(bound_of);
            if best.as_ref().is_none_or(|(_, known, _)| bound.is_some_and(|bound| bound > *known)) {
                best = Some((edits, bound.unwrap_or(i32::MAX), object));
            }
            if bound.is_none() {
                break;
            }
        }
        if let Some((edits, _, object)) = best {
            for edit in edits {
                report.changes.push(RepairChange::new(&self.object, &edit));
                self.edits.push(MadeEdit::Repair(edit));
            }
            self.object = object;
            return true;
        }
        ideas::whole_forms(place).into_iter().any(|form| self.remake(form, place, report))
    }

    /// The weakest of an idea's edits with which the kernel gets further, with the form that has it.
    fn weakest(&self, idea: &RepairIdea, place: &RejectedPlace) -> Option<(Vec<RepairEdit>, Object)> {
        let base = match &idea.first {
            Some(first) => first.apply(&self.object, GuardExit::Leave)?,
            None => self.object.clone(),
        };
        let with = |edit: &RepairEdit| {
            let edits: Vec<RepairEdit> = idea.first.into_iter().chain([*edit]).collect();
            let edit = idea.first.map_or(*edit, |first| ideas::behind(first, *edit));
            let object = edit.apply(&base, GuardExit::Leave)?;
            let edits = [&edits[..edits.len() - 1], &[edit]].concat();
            self.is_further(&object, place, &edits).then_some((edits, object))
        };
        if idea.proven {
            // The first that is proven, too.
            let mut found = idea.alternatives.iter().take_while(|_| !self.is_late()).filter_map(with);
            let limits =
                ProofLimits { time: self.prover.limits.time / 4, tries: 20, ..self.prover.limits.clone() };
            let prover = RepairProver { limits: &limits, ..self.prover };
            return found.find(|(edits, _)| self.objection(edits, prover).is_none());
        }
        // A stricter guard is accepted wherever a weaker one is.
        let (mut found, mut low, mut high) = (None, 0, idea.alternatives.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            match idea.alternatives.get(middle).and_then(&with) {
                Some(form) => (found, high) = (Some(form), middle),
                None => low = middle + 1,
            }
        }
        found
    }

    /// One guard in place of the last one and another that stands behind it.
    fn stricter(&mut self, place: &RejectedPlace, report: &mut RepairReport) -> bool {
        let Some(MadeEdit::Repair(RepairEdit::Guard { site, cond, value: weak })) =
            self.edits.last().cloned()
        else {
            return false;
        };
        let guarded = RangeCheckSite { line: site.line + 1, ..site };
        let sites = place.slot.map(|slot| RangeCheckSite::before_slot(&self.object, place.func, slot));
        let at = !place.is_misaligned() && sites.is_some_and(|sites| sites.contains(&guarded));
        let weaker: Vec<i32> = ideas::bounds(&self.object).into_iter().filter(|b| *b < weak).collect();
        if !at || cond != millstream_isa::Cond::Gt {
            return false;
        }
        let Some(before) = self.replayed(&self.edits[..self.edits.len() - 1], GuardExit::Leave) else {
            return false;
        };
        let edit = |value| RepairEdit::Guard { site, cond, value };
        let (mut found, mut low, mut high) = (None, 0, weaker.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            let value = weaker[middle];
            let object = edit(value).apply(&before, GuardExit::Leave);
            match object.filter(|o| self.is_beyond(o, place)) {
                Some(object) => (found, high) = (Some((value, object)), middle),
                None => low = middle + 1,
            }
        }
        let Some((value, object)) = found else { return false };
        self.edits.pop();
        report.changes.pop();
        report.changes.push(RepairChange::new(&before, &edit(value)));
        self.edits.push(MadeEdit::Repair(edit(value)));
        self.object = object;
        true
    }

    /// Returns true if the kernel accepts a form, or rejects it behind the place, in a form whose slots are
    /// those of the place.
    fn is_beyond(&self, object: &Object, place: &RejectedPlace) -> bool {
        match self.load(object) {
            Ok(Ok(_)) => true,
            Ok(Err(rejection)) => {
                let now = RejectedPlace::new(object, self.program, &rejection);
                now.func != place.func || now.slot != place.slot && !place.is_exit(now.slot, 0)
            }
            Err(_) => false,
        }
    }

    /// Returns true if the kernel accepts a form with edits, or rejects it elsewhere.
    fn is_further(&self, object: &Object, place: &RejectedPlace, edits: &[RepairEdit]) -> bool {
        let rejection = match self.load(object) {
            Ok(Ok(_)) => return true,
            Ok(Err(rejection)) => rejection,
            Err(_) => return false,
        };
        let now = RejectedPlace::new(object, self.program, &rejection);
        now.func != place.func || !place.is_same(&now, edits)
    }

    /// The original with edits.
    fn replayed(&self, edits: &[MadeEdit], exit: GuardExit) -> Option<Object> {
        let mut object = self.original.clone();
        for edit in edits {
            object = match edit {
                MadeEdit::Repair(edit) => edit.apply(&object, exit)?,
                MadeEdit::Effort(edits) => with_effort_edits(&object, self.program.func, edits)?,
                MadeEdit::Whole(form) => remade(&object, *form)?,
            };
        }
        Some(object)
    }

    fn is_late(&self) -> bool {
        Instant::now() > self.deadline
    }

    /// Reason why it is not proven that the guards, with further ones, never fail; [`None`] if it is.
    fn objection(&self, further: &[RepairEdit], prover: RepairProver<'_>) -> Option<String> {
        let edits: Vec<MadeEdit> =
            self.edits.iter().cloned().chain(further.iter().copied().map(MadeEdit::Repair)).collect();
        let marked = MARKERS.map(|marker| self.replayed(&edits, GuardExit::Marker(marker)));
        let [Some(one), Some(two)] = marked else {
            return Some("the edits cannot be made again".to_owned());
        };
        let why = prover.objection(self.program.func, &one, &two)?;
        let (first, run) = why.split_once('\n').unwrap_or((&why, ""));
        match MARKERS.iter().all(|marker| first.contains(&marker.to_string())) {
            true => Some(format!("there is a run on which a check fails\n{run}")),
            false => Some(why),
        }
    }

    /// Makes the program in another way as a whole, if the kernel gets further then.
    fn remake(&mut self, form: WholeForm, place: &RejectedPlace, report: &mut RepairReport) -> bool {
        let (made, object) = match form {
            WholeForm::Forget | WholeForm::ExploreOther => {
                let edits = effort_edits(&self.object, self.program.func, form);
                let object = with_effort_edits(&self.object, self.program.func, &edits);
                (MadeEdit::Effort(edits), object)
            }
            WholeForm::Inlined => (MadeEdit::Whole(form), remade(&self.object, form)),
        };
        let Some(object) = object else { return false };
        let done = match self.load(&object) {
            Ok(Ok(_)) => true,
            Ok(Err(rejection)) => rejection.reason() != place.reason,
            Err(_) => false,
        };
        if done {
            report.changes.push(RepairChange::whole(self.program, form));
            self.edits.push(made);
            self.object = object;
        }
        done
    }

    /// The outcome of the proofs.
    fn proven(&self, report: &mut RepairReport) -> RepairOutcome {
        let assumes = |e: &MadeEdit| matches!(e, MadeEdit::Repair(e) if e.is_assumption());
        let objection = match self.edits.iter().any(assumes) {
            true => self.objection(&[], self.prover),
            false => None,
        };
        // Guards that never fail change nothing; other edits must say the same in another way.
        let others = || !self.edits.iter().all(assumes);
        let compared = || self.prover.objection(self.program.func, self.original, &self.object);
        let objection = objection.or_else(|| others().then(compared).flatten());
        match objection {
            None => RepairOutcome::Repaired,
            Some(why) => {
                report.advice = Some(ideas::NOT_PROVEN.to_owned());
                RepairOutcome::NotProven(why)
            }
        }
    }

    /// Cost of the repair.
    fn cost(&self) -> RepairCost {
        let [before, after] = costs_of_both(self.original, &self.object, self.program.func);
        let verified = self.load(&self.object).ok().and_then(Result::ok).unwrap_or(0);
        RepairCost { slots: [before.slots, after.slots], cycles: [before.cycles, after.cycles], verified }
    }
}

/// The greatest value that a guard lets pass.
fn bound_of(edit: &RepairEdit) -> Option<i32> {
    match edit {
        RepairEdit::Guard { cond: millstream_isa::Cond::Gt, value, .. } => Some(*value),
        _ => None,
    }
}

/// The program compiled again.
fn remade(object: &Object, form: WholeForm) -> Option<Object> {
    if form != WholeForm::Inlined || is_recursive(object) {
        return None;
    }
    let options = OptimizeOptions { inline: Some(true), keep_longer: true, ..OptimizeOptions::default() };
    Some(shortest(object, &options).ok()?.object)
}

/// Returns true if a function calls itself, through others or not.
fn is_recursive(object: &Object) -> bool {
    let callees = |f: u32| {
        let relocs = object.functions.get(f as usize).map_or(&[][..], |f| &f.relocs);
        relocs.iter().filter_map(|r| if let RelocKind::Call(to) = r.kind { Some(to.0) } else { None })
    };
    (0..object.functions.len() as u32).any(|f| {
        let mut seen = BTreeSet::new();
        let mut work: Vec<u32> = callees(f).collect();
        while let Some(next) = work.pop() {
            if seen.insert(next) {
                work.extend(callees(next));
            }
        }
        seen.contains(&f)
    })
}

/// Edits of all functions of a program against too many states.
fn effort_edits(object: &Object, program: FuncId, form: WholeForm) -> Vec<VerifierEdit> {
    let editable: Vec<EditableFunction> =
        functions(object, program).into_iter().filter_map(|f| EditableFunction::new(object, f)).collect();
    if form == WholeForm::ExploreOther {
        return editable.iter().flat_map(EditableFunction::swaps).collect();
    }
    let mut edits: Vec<VerifierEdit> = Vec::new();
    for miss in verification_profile(object, program, VerifierGeneration::V6_18, MOST_WALKED).1 {
        let StateDifference::Register(register) = miss.difference else { continue };
        let function = editable.iter().find(|f| f.func() == miss.func);
        let edit = function.and_then(|f| f.forget(f.block_of(miss.line)?, register));
        edits.extend(edit.filter(|e| !edits.contains(e)));
        if edits.len() >= MOST_FORGOTTEN {
            break;
        }
    }
    edits
}

fn with_effort_edits(object: &Object, program: FuncId, edits: &[VerifierEdit]) -> Option<Object> {
    let mut edited = object.clone();
    for f in functions(object, program) {
        if let Some(function) = EditableFunction::new(object, f)
            && !function.apply(&mut edited, edits)
        {
            return None;
        }
    }
    (!edits.is_empty()).then_some(edited)
}
