//! The kernel's word on each program, before and after, and what to do when it is no.

use millstream_bpf::lower::BlockOrder;
use millstream_kernel::{KernelError, LoadError};
use millstream_loader::{ObjectLoader, ProgramError, Session};
use millstream_object::{EntryProgram, FuncId, LinkedProgram, Object};
use millstream_passes::Fuel;

use crate::candidate_selector::functions;
use crate::regression::RegressionRepair;
use crate::report::{FunctionReport, KernelMetrics, KernelVerdict, ProgramReport};
use crate::verification_goal::{EffortJudge, lower_effort};
use crate::{
    FunctionOutcome, LoweringChoice, OptError, OptimizationGoal, OptimizationResult, OptimizeOptions,
    shortest,
};

/// Rewrites that are dropped one by one before the original is kept.
const MOST_DROPPED: usize = 8;

/// Greatest number of instructions that the verifier may walk, in thousandths of the original's: a result
/// near its limit would be one kernel release away from rejection.
const MOST_VERIFIED: u64 = 1_200;

/// Instructions that the verifier may always walk, however few it walked before.
const FEW_VERIFIED: u64 = 1_000;

/// Greatest size of a program's machine code, in thousandths of the original's.
const MOST_JITED: u64 = 1_020;

/// Other ways to make a program that the kernel measures as too long. The kernel removes code that it finds
/// dead, so that the shortest bytecode need not give the shortest machine code. All of them are tried without
/// inlining, too.
const OTHER_WAYS: [LoweringChoice; 6] = [
    LoweringChoice { form: 0, order: BlockOrder::Given },
    LoweringChoice { form: 0, order: BlockOrder::Chained },
    LoweringChoice { form: 1, order: BlockOrder::Best },
    LoweringChoice { form: 1, order: BlockOrder::Given },
    LoweringChoice { form: 2, order: BlockOrder::Best },
    LoweringChoice { form: 2, order: BlockOrder::Given },
];

/// An optimized object that the kernel has accepted wherever it accepted the original.
#[derive(Debug)]
pub struct CheckedObject {
    /// The result, without the rewrites that led to rejection.
    pub optimized: OptimizationResult,
    /// One a program.
    pub programs: Vec<ProgramReport>,
}

/// Optimizes an object and has the kernel load every program of it, before and after. There always is a
/// result: at worst the object as it was.
///
/// # Errors
/// [`OptError::Loader`], if the kernel cannot be asked, and [`OptError::Forbidden`], if this process may load
/// none of the programs. A rejected program is no error: see [`KernelVerdict`].
pub fn check(object: &Object, options: OptimizeOptions) -> Result<CheckedObject, OptError> {
    check_each(object, options, || {})
}

/// The same, with a call after each program that the kernel has judged, and for the goal `verify` another one
/// after each whose forms were tried.
///
/// # Errors
/// As [`check`].
pub fn check_each(
    object: &Object,
    options: OptimizeOptions,
    mut judged: impl FnMut(),
) -> Result<CheckedObject, OptError> {
    let session = ObjectLoader::new(object).guess_types()?.without_impossible_maps().prepare()?;
    match checked(&session, object, options, &mut judged) {
        Err(e @ (OptError::Loader(_) | OptError::Forbidden(_))) => Err(e),
        Err(why) => Ok(unchanged(&session, object, &why.to_string())),
        done => done,
    }
}

fn checked(
    session: &Session<'_>,
    object: &Object,
    mut options: OptimizeOptions,
    judged: &mut dyn FnMut(),
) -> Result<CheckedObject, OptError> {
    let optimized = shortest(object, &options)?;
    options.inline = Some(optimized.inline);
    let mut checker = AcceptanceChecker { session, object, options, optimized, forbidden: None };
    let mut programs = Vec::new();
    for p in &object.programs {
        programs.push(checker.program(p)?);
        judged();
    }
    if let Some(error) = checker.forbidden.take().filter(|_| programs.iter().all(|p| p.before.is_none())) {
        return Err(OptError::Forbidden(error));
    }
    checker.settle(&mut programs)?;
    checker.mend(&mut programs)?;
    checker.lower_effort(&mut programs, judged)?;
    Ok(CheckedObject { optimized: checker.optimized, programs })
}

/// The object as it was, where all else has failed, and the kernel's measure of it.
fn unchanged(session: &Session<'_>, object: &Object, why: &str) -> CheckedObject {
    tracing::warn!(why, "the object is left as it was");
    let functions = object.functions.iter().map(|f| FunctionReport {
        name: f.name.clone(),
        before: f.insns.len(),
        after: f.insns.len(),
        outcome: FunctionOutcome::Unsupported(why.to_owned()),
    });
    let programs = object.programs.iter().map(|p| {
        let (verdict, measured) = match measure(session, object, p.func) {
            Ok(measured) => (KernelVerdict::Original(why.to_owned()), Some(measured)),
            Err(why) => (KernelVerdict::NotLoadable(why), None),
        };
        let (name, section) = (p.name.clone(), p.section.clone());
        ProgramReport { name, section, verdict, before: measured, after: measured }
    });
    let optimized = OptimizationResult {
        object: object.clone(),
        functions: functions.collect(),
        passes: Vec::new(),
        rewrites: 0,
        inline: false,
        touched: Vec::new(),
        fuel: Fuel::unlimited(),
    };
    CheckedObject { programs: programs.collect(), optimized }
}

/// An object on its way to a form that the kernel takes.
struct AcceptanceChecker<'a> {
    session: &'a Session<'a>,
    object: &'a Object,
    options: OptimizeOptions,
    optimized: OptimizationResult,
    /// Refusal of the first program that this process may not load.
    forbidden: Option<KernelError>,
}

impl AcceptanceChecker<'_> {
    fn program(&mut self, p: &EntryProgram) -> Result<ProgramReport, OptError> {
        let mut report = ProgramReport {
            name: p.name.clone(),
            section: p.section.clone(),
            verdict: KernelVerdict::Accepted,
            before: None,
            after: None,
        };
        let before = match self.first_measure(p.func) {
            Ok(m) => m,
            Err(verdict) => {
                report.verdict = verdict;
                return Ok(report);
            }
        };
        report.before = Some(before);
        let mut blamed = Vec::new();
        let accepted =
            self.accepted(p.func, &mut blamed).and_then(|after| self.shortened(p.func, before, after));
        report.verdict = match accepted {
            Err(why) => {
                self.leave(p.func)?;
                KernelVerdict::Original(why)
            }
            Ok(Some(why)) if blamed.is_empty() => KernelVerdict::Remade(why),
            Ok(None) if blamed.is_empty() => KernelVerdict::Accepted,
            Ok(_) => KernelVerdict::Bisected(blamed),
        };
        Ok(report)
    }

    /// The kernel's measure of an original; in place of a measure, why there is none.
    fn first_measure(&mut self, func: FuncId) -> Result<KernelMetrics, KernelVerdict> {
        let Ok(linked) = self.object.link(func) else {
            return measure(self.session, self.object, func).map_err(KernelVerdict::NotSupported);
        };
        match self.session.load(func, &linked) {
            Ok(program) => measure_of(&linked, &program).map_err(KernelVerdict::NotLoadable),
            Err(ProgramError::Load(LoadError::Refused(e))) if e.errno() == Some(libc::EPERM) => {
                let why = e.to_string();
                self.forbidden.get_or_insert(e);
                Err(KernelVerdict::NotSupported(why))
            }
            Err(e) if e.is_environment_error() => Err(KernelVerdict::NotSupported(e.to_string())),
            Err(e) => Err(KernelVerdict::NotLoadable(e.to_string())),
        }
    }

    /// Drops rewrites until the kernel accepts a program. Otherwise returns the kernel's error.
    fn accepted(&mut self, func: FuncId, blamed: &mut Vec<(String, u64)>) -> Result<KernelMetrics, String> {
        loop {
            let why = match measure(self.session, &self.optimized.object, func) {
                Ok(after) => return Ok(after),
                Err(why) => why,
            };
            if blamed.len() >= MOST_DROPPED {
                return Err(why);
            }
            let rewrites = self.optimized.rewrites;
            let Some(number) = culprit(self.session, self.object, &self.options, func, rewrites) else {
                return Err(why);
            };
            let pass = self.optimized.fuel.requester(number).map_or("lower", |r| r.pass);
            blamed.push((pass.to_string(), number));
            let mut options = self.options.clone();
            options.skip.insert(number);
            let Ok(optimized) = shortest(self.object, &options) else { return Err(why) };
            (self.options, self.optimized) = (options, optimized);
        }
    }

    /// Tries other ways to make a program whose lengths are not within bounds, and keeps the best. Returns a
    /// description of the excess if there was a better one. An error, in words, if the verifier has too much
    /// to do in all of them.
    fn shortened(
        &mut self,
        func: FuncId,
        before: KernelMetrics,
        first: KernelMetrics,
    ) -> Result<Option<String>, String> {
        let mut best = (excess(before, first), first, None);
        let functions = match best.0 {
            0 => return Ok(None),
            _ => functions(self.object, func),
        };
        let inlined = self.options.inline == Some(true);
        let usual = OTHER_WAYS.map(|way| (inlined, way));
        let apart = [LoweringChoice::default()].into_iter().chain(OTHER_WAYS).map(|way| (false, way));
        for (inline, way) in usual.into_iter().chain(apart.filter(|_| inlined)) {
            let mut options = self.options.clone();
            options.inline = Some(inline);
            options.ways.extend(functions.iter().map(|&f| (f, way)));
            let Ok(optimized) = shortest(self.object, &options) else { continue };
            let Ok(after) = measure(self.session, &optimized.object, func) else { continue };
            let kept =
                |f: &u32| matches!(optimized.functions[*f as usize].outcome, FunctionOutcome::NoGain { .. });
            // The original is no longer than itself: that is for the end.
            let excess = excess(before, after) + u64::from(functions.iter().any(kept));
            if excess < best.0 {
                best = (excess, after, Some((options, optimized)));
            }
            if excess == 0 {
                break;
            }
        }
        let (_, after, better) = best;
        let remade = better.is_some().then(|| too_long(before, first));
        if let Some((options, optimized)) = better {
            (self.options, self.optimized) = (options, optimized);
        }
        if more_verified(before, after) > 0 { Err(too_long(before, after)) } else { Ok(remade) }
    }

    /// Leaves a program and all it calls as they are.
    fn leave(&mut self, func: FuncId) -> Result<(), OptError> {
        self.options.leave.extend(functions(self.object, func));
        self.optimized = shortest(self.object, &self.options)?;
        Ok(())
    }

    /// Measures all programs in their final form. Changes for one may have changed functions of another: one
    /// that is not accepted any more is left as it was, and all are measured again.
    fn settle(&mut self, programs: &mut [ProgramReport]) -> Result<(), OptError> {
        'again: loop {
            for (p, report) in self.object.programs.iter().zip(programs.iter_mut()) {
                if report.before.is_none() {
                    continue;
                }
                match measure(self.session, &self.optimized.object, p.func) {
                    Ok(after) => report.after = Some(after),
                    Err(_) if matches!(report.verdict, KernelVerdict::Original(_)) => report.after = None,
                    Err(why) => {
                        report.verdict = KernelVerdict::Original(why);
                        self.leave(p.func)?;
                        continue 'again;
                    }
                }
            }
            return Ok(());
        }
    }

    /// Gives programs that are slower than they were by prediction another form, of those that the kernel
    /// takes and that are within all bounds.
    fn mend(&mut self, programs: &mut [ProgramReport]) -> Result<(), OptError> {
        let (session, object) = (self.session, self.object);
        let measured = object.programs.iter().zip(&*programs);
        let before: Vec<(FuncId, KernelMetrics)> =
            measured.filter_map(|(p, report)| Some((p.func, report.before?))).collect();
        let within = |form: &Object, (func, before): &(FuncId, KernelMetrics)| {
            measure(session, form, *func).is_ok_and(|after| excess(*before, after) == 0)
        };
        let mut accepts = |form: &Object, funcs: &[FuncId]| {
            before.iter().filter(|b| funcs.contains(&b.0)).all(|b| within(form, b))
        };
        let mending = RegressionRepair { object, lines: None, options: &self.options };
        if !mending.repair_regressions(&mut self.optimized, &mut accepts)? {
            return Ok(());
        }
        for (p, report) in object.programs.iter().zip(programs).filter(|(_, r)| r.after.is_some()) {
            report.after = measure(session, &self.optimized.object, p.func).ok();
        }
        Ok(())
    }
}

impl AcceptanceChecker<'_> {
    /// For the goal `verify`: takes the forms that this kernel verifies with fewest instructions.
    fn lower_effort(
        &mut self,
        programs: &mut [ProgramReport],
        judged: &mut dyn FnMut(),
    ) -> Result<(), OptError> {
        if self.options.goal != OptimizationGoal::Verify || !self.options.searches_forms() {
            return Ok(());
        }
        let session = self.session;
        let verified = |object: &Object, func| Some(measure(session, object, func).ok()?.verified.into());
        let judge = EffortJudge::Kernel(&verified);
        lower_effort(self.object, &self.options, &judge, &mut self.optimized, judged)?;
        for (p, report) in self.object.programs.iter().zip(programs) {
            if report.before.is_some() {
                report.after = measure(self.session, &self.optimized.object, p.func).ok();
            }
        }
        Ok(())
    }
}

/// Excess of a program over its bounds, in thousandths.
fn excess(before: KernelMetrics, after: KernelMetrics) -> u64 {
    let ratio = |after: u64, before: u64| (1000 * after).div_ceil(before.max(1));
    let jited = ratio(after.jited.into(), before.jited.into());
    let slots = ratio(after.slots as u64, before.slots as u64);
    jited.saturating_sub(MOST_JITED) + more_verified(before, after) + 10 * slots.saturating_sub(1000)
}

/// Excess of the instructions that the verifier walks over their bound, in thousandths.
fn more_verified(before: KernelMetrics, after: KernelMetrics) -> u64 {
    let (before, after) = (u64::from(before.verified), u64::from(after.verified));
    let few = after <= FEW_VERIFIED;
    if few { 0 } else { (1000 * after).div_ceil(before.max(1)).saturating_sub(MOST_VERIFIED) }
}

/// Description of the excess over its bounds.
fn too_long(before: KernelMetrics, after: KernelMetrics) -> String {
    let beyond = |after: u64, before: u64, most: u64| 1000 * after > most * before;
    if more_verified(before, after) > 0 {
        format!("the verifier walks {} instructions instead of {}", after.verified, before.verified)
    } else if beyond(after.slots as u64, before.slots as u64, 1000) {
        format!("{} slots instead of {}", after.slots, before.slots)
    } else {
        format!("{} bytes of machine code instead of {}", after.jited, before.jited)
    }
}

pub(crate) fn measure(session: &Session<'_>, object: &Object, func: FuncId) -> Result<KernelMetrics, String> {
    let linked = object.link(func).map_err(|e| e.to_string())?;
    let program = session.load(func, &linked).map_err(|e| e.to_string())?;
    measure_of(&linked, &program)
}

fn measure_of(
    linked: &LinkedProgram,
    program: &millstream_kernel::KernelProgram,
) -> Result<KernelMetrics, String> {
    let info = program.info().map_err(|e| e.to_string())?;
    let verified = program.stats().map_or(0, |s| s.processed);
    Ok(KernelMetrics { slots: linked.insns.len(), jited: info.jited_len, verified })
}

/// The lowest number of rewrites with which the program is rejected, less one: the rewrite that breaks it.
/// `None` if it is rejected without any: lowering is to blame. What cannot be made counts as rejected.
fn culprit(
    session: &Session<'_>,
    object: &Object,
    options: &OptimizeOptions,
    func: FuncId,
    rewrites: u64,
) -> Option<u64> {
    let accepted = |fuel: u64| {
        let limited = OptimizeOptions { keep_longer: true, ..options.limited(fuel, options.inline) };
        shortest(object, &limited).is_ok_and(|made| measure(session, &made.object, func).is_ok())
    };
    if !accepted(0) {
        return None;
    }
    let (mut good, mut bad) = (0, rewrites);
    while good + 1 < bad {
        let middle = good + (bad - good) / 2;
        if accepted(middle) { good = middle } else { bad = middle }
    }
    Some(good)
}

impl CheckedObject {
    /// Returns true if the kernel took every program before, and each was rewritten or left with nothing to
    /// do, so that none had to fall back to the original.
    pub fn is_clean(&self) -> bool {
        let fell_back = |p: &ProgramReport| {
            matches!(p.verdict, KernelVerdict::Original(_) | KernelVerdict::NotLoadable(_))
        };
        let unsupported =
            |o: &FunctionOutcome| matches!(o, FunctionOutcome::Unsupported(_) | FunctionOutcome::Rejected);
        !self.programs.iter().any(fell_back)
            && !self.optimized.functions.iter().any(|f| unsupported(&f.outcome))
    }
}
