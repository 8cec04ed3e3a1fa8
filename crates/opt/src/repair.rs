//! Repair of programs that the kernel rejects although they are safe.
//!
//! A verifier that has lost the range of a number rejects the address or the size that is made of it. Here a
//! check is inserted before that place: the program ends if the number is above a bound. The bound is the
//! greatest with which the kernel goes on. Then the prover compares the result with the original: if it
//! behaves the same on every run, the check never fails, and the original was safe.
//!
//! Invariant: a repaired program is accepted by the kernel and proven equivalent to its original. All others
//! are left as they were.

use std::collections::BTreeSet;
use std::fmt;

use millstream_kernel::{LoadError, Rejection};
use millstream_loader::{ObjectLoader, ProgramError, Session};
use millstream_object::{FuncId, Object};
use millstream_prove::{ProofLimits, ProofVerdict, Solver, prove};
use millstream_search::RangeCheckSite;
use serde::Serialize;

use crate::OptError;
use crate::candidate_selector::functions;

/// Checks that are inserted into one program, at most.
const MOST_CHECKS: usize = 12;

/// A check that was inserted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InsertedCheck {
    /// Function.
    pub function: String,
    /// Slot of the function as it was when the check was inserted.
    pub slot: usize,
    /// The register.
    pub register: String,
    /// Greatest value that passes the check.
    pub most: i32,
    /// Source file, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Source line, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// Outcome of the repair of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairOutcome {
    /// The kernel accepts it as it is.
    Accepted,
    /// It was repaired, and proven equivalent.
    Repaired,
    /// It was accepted with checks, which are not proven to hold on every run: why.
    NotProven(String),
    /// The kernel rejects it, whatever was inserted: its last reason.
    Rejected(String),
    /// It cannot be loaded here: why.
    NotSupported(String),
}

/// The repair of a program.
#[derive(Clone, Debug, Serialize)]
pub struct RepairReport {
    /// Name.
    pub name: String,
    /// Section.
    pub section: String,
    /// The outcome.
    pub outcome: RepairOutcome,
    /// Reason of the kernel's first rejection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Checks that were inserted, or tried.
    pub checks: Vec<InsertedCheck>,
}

impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verdict, why) = match &self.outcome {
            RepairOutcome::Accepted => ("accepted as it is", None),
            RepairOutcome::Repaired => ("repaired and proven equivalent", None),
            RepairOutcome::NotProven(why) => {
                ("not repaired: with these checks the kernel accepts it, but they may fail", Some(why))
            }
            RepairOutcome::Rejected(why) => ("not repaired: no check helps", Some(why)),
            RepairOutcome::NotSupported(why) => ("cannot be loaded here", Some(why)),
        };
        writeln!(f, "{}: {verdict}", self.name)?;
        if let Some(reason) = &self.reason {
            writeln!(f, "  rejected: {reason}")?;
        }
        for check in &self.checks {
            write!(f, "  check: {} <= {} before ", check.register, check.most)?;
            match (&check.file, check.line) {
                (Some(file), Some(line)) => writeln!(f, "{file}:{line}")?,
                _ => writeln!(f, "slot {} of {}", check.slot, check.function)?,
            }
        }
        why.map_or(Ok(()), |why| writeln!(f, "  {}", why.lines().next().unwrap_or_default()))
    }
}

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
    for p in &object.programs {
        let mut report = RepairReport {
            name: p.name.clone(),
            section: p.section.clone(),
            outcome: RepairOutcome::Accepted,
            reason: None,
            checks: Vec::new(),
        };
        let mut attempt =
            RepairAttempt { session: &session, func: p.func, object: repaired.clone(), last: None };
        report.outcome = attempt.run(&mut report);
        if report.outcome == RepairOutcome::Repaired {
            let proof = prove((object, p.func), (&attempt.object, p.func), solver, limits);
            report.outcome = match proof.verdict {
                ProofVerdict::Equivalent => RepairOutcome::Repaired,
                ProofVerdict::Unknown { reason } => RepairOutcome::NotProven(reason),
                ProofVerdict::Differs(found) => RepairOutcome::NotProven(found.to_string()),
            };
        }
        let own: BTreeSet<u32> = functions(object, p.func).into_iter().collect();
        if report.outcome == RepairOutcome::Repaired && own.is_disjoint(&changed) {
            repaired = attempt.object;
            changed.extend(own);
        }
        reports.push(report);
    }
    Ok((repaired, reports))
}

/// The repair of one program in progress.
struct RepairAttempt<'a> {
    session: &'a Session<'a>,
    func: FuncId,
    object: Object,
    /// The form before the last check, and the place of that check.
    last: Option<(Object, RangeCheckSite)>,
}

impl RepairAttempt<'_> {
    /// The rejection of a form; [`None`] if it is accepted.
    fn rejection(&self, object: &Object) -> Result<Option<Box<Rejection>>, String> {
        let linked = object.link(self.func).map_err(|e| e.to_string())?;
        match self.session.load(self.func, &linked) {
            Ok(_) => Ok(None),
            Err(ProgramError::Load(LoadError::Rejected(r))) => Ok(Some(r)),
            Err(e) => Err(e.to_string()),
        }
    }

    /// Inserts checks until the kernel accepts the program.
    fn run(&mut self, report: &mut RepairReport) -> RepairOutcome {
        loop {
            let rejection = match self.rejection(&self.object) {
                Ok(None) if report.checks.is_empty() => return RepairOutcome::Accepted,
                Ok(None) => return RepairOutcome::Repaired,
                Ok(Some(rejection)) => rejection,
                Err(why) => return RepairOutcome::NotSupported(why),
            };
            let reason = rejection.reason().to_owned();
            report.reason.get_or_insert_with(|| reason.clone());
            if report.checks.len() >= MOST_CHECKS {
                return RepairOutcome::Rejected(reason);
            }
            let Some((site, most, object)) = self.weakest_check(&rejection) else {
                return RepairOutcome::Rejected(reason);
            };
            if let Some((before, first, object)) = self.stricter(&site, most) {
                report.checks.pop();
                report.checks.push(describe(&before, &first, most));
                (self.object, self.last) = (object, Some((before, first)));
                continue;
            }
            report.checks.push(describe(&self.object, &site, most));
            let before = std::mem::replace(&mut self.object, object);
            self.last = Some((before, site));
        }
    }

    /// One check in place of the last one and another that stands behind it: the form before both, the place,
    /// and the form with it.
    fn stricter(&self, site: &RangeCheckSite, most: i32) -> Option<(Object, RangeCheckSite, Object)> {
        let (before, first) = self.last.as_ref()?;
        let same = first.func == site.func && first.register == site.register && first.line + 1 == site.line;
        let object = first.check(before, most).filter(|_| same)?;
        let slot = site.slot(&self.object)?;
        let further = self.rejection(&object).ok()?.is_none_or(|r| r.slot().is_some_and(|at| at > slot));
        further.then(|| (before.clone(), *first, object))
    }

    /// The weakest check with which the kernel gets further, with the form that has it.
    fn weakest_check(&self, rejection: &Rejection) -> Option<(RangeCheckSite, i32, Object)> {
        let slot = rejection.slot()?;
        let linked = self.object.link(self.func).ok()?;
        let (start, func) =
            *linked.functions.iter().take_while(|(start, _)| *start as usize <= slot).last()?;
        let sites = RangeCheckSite::before_slot(&self.object, func.0, slot - start as usize);
        let mut best: Option<(RangeCheckSite, i32, Object)> = None;
        for site in sites {
            let bounds = self.bounds();
            // A stricter check is accepted wherever a weaker one is.
            let mut found = None;
            let (mut low, mut high) = (0, bounds.len());
            while low < high {
                let middle = usize::midpoint(low, high);
                match bounds.get(middle).and_then(|most| self.accepts(&site, *most, slot)) {
                    Some(object) => (found, high) = (Some((bounds[middle], object)), middle),
                    None => low = middle + 1,
                }
            }
            if let Some((most, object)) = found
                && best.as_ref().is_none_or(|(_, known, _)| most > *known)
            {
                best = Some((site, most, object));
            }
        }
        best
    }

    /// The form with a check, if the kernel gets further with it.
    fn accepts(&self, site: &RangeCheckSite, most: i32, slot: usize) -> Option<Object> {
        let object = site.check(&self.object, most)?;
        match self.rejection(&object).ok()? {
            None => Some(object),
            // The check has moved everything behind it by one slot.
            Some(rejection) => (rejection.slot()? > slot + 1).then_some(object),
        }
    }

    /// Bounds to try, the weakest first: powers of two less one, and what is left of map values and frames.
    fn bounds(&self) -> Vec<i32> {
        let sizes = self.object.maps.iter().map(|m| m.spec.value_size).filter(|size| *size <= 1 << 16);
        let ends = sizes.flat_map(|size| (0..=8).map(move |less| size as i32 - less));
        let mut bounds: Vec<i32> = (0..=16).map(|k| (1i32 << k) - 1).chain(ends).chain(0..512).collect();
        bounds.retain(|b| *b >= 0);
        bounds.sort_unstable_by_key(|b| std::cmp::Reverse(*b));
        bounds.dedup();
        bounds
    }
}

fn describe(object: &Object, site: &RangeCheckSite, most: i32) -> InsertedCheck {
    let function = object.functions.get(site.func as usize);
    let slot = site.slot(object).unwrap_or(0);
    let lines = function.map_or(&[][..], |f| &f.line_info);
    let line = lines.iter().take_while(|l| l.insn as usize <= slot).last();
    let file = line.and_then(|l| Some(object.btf.as_ref()?.str(l.file).trim().to_owned()));
    InsertedCheck {
        function: function.map(|f| f.name.clone()).unwrap_or_default(),
        slot,
        register: format!("{:?}", site.register),
        most,
        file,
        line: line.map(|l| l.line),
    }
}
