//! The kernel's word on each program, before and after, and what to do when it is no.

use millstream_loader::{Loader, Session};
use millstream_object::{FuncId, Object};

use crate::report::{Measure, ProgramReport, Verdict};
use crate::{OptError, Optimized, Options, Outcome, optimize};

/// Rewrites that are dropped one by one before the original is kept.
const MOST_DROPPED: usize = 8;

/// How many times as many instructions the verifier may walk: a result near its limit would be one kernel release away
/// from rejection.
const MOST_VERIFIED: u32 = 2;

/// An optimized object that the kernel has accepted wherever it accepted the original.
#[derive(Debug)]
pub struct Check {
    /// The result, without the rewrites that led to rejection.
    pub optimized: Optimized,
    /// One a program.
    pub programs: Vec<ProgramReport>,
}

/// Optimizes an object and has the kernel load every program of it, before and after.
///
/// # Errors
/// [`OptError`]. A rejected program is no error: see [`Verdict`].
pub fn check(object: &Object, options: Options) -> Result<Check, OptError> {
    check_each(object, options, || {})
}

/// The same, with a call after each program that the kernel has judged.
///
/// # Errors
/// As [`check`].
pub fn check_each(
    object: &Object,
    mut options: Options,
    mut judged: impl FnMut(),
) -> Result<Check, OptError> {
    let session = Loader::new(object).guess_types()?.prepare()?;
    let optimized = optimize(object, &options)?;
    options.inline = Some(optimized.inline);
    let mut checker = Checker { object, session, options, optimized };
    let mut programs = Vec::new();
    for p in &object.programs {
        let (verdict, before) = match measure(&checker.session, object, p.func) {
            Ok(before) => (checker.judge(p.func, before)?, Some(before)),
            Err(why) => (Verdict::NotLoadable(why), None),
        };
        let (name, section) = (p.name.clone(), p.section.clone());
        programs.push(ProgramReport { name, section, verdict, before, after: None });
        judged();
    }
    let Checker { session, optimized, .. } = checker;
    for (p, report) in object.programs.iter().zip(&mut programs) {
        if report.before.is_some() {
            report.after = measure(&session, &optimized.object, p.func).ok();
        }
    }
    Ok(Check { optimized, programs })
}

/// An object before and after, and what was learnt so far of how to make the second.
struct Checker<'a> {
    object: &'a Object,
    session: Session<'a>,
    options: Options,
    optimized: Optimized,
}

impl Checker<'_> {
    /// Makes a program that was accepted before, with these figures, be accepted after.
    fn judge(&mut self, func: FuncId, before: Measure) -> Result<Verdict, OptError> {
        let mut blamed = Vec::new();
        if let Some(why) = self.drop_culprits(func, &mut blamed)? {
            return self.keep_original(func, why);
        }
        let Some(why) = self.walks_longer(func, before) else {
            return Ok(if blamed.is_empty() { Verdict::Accepted } else { Verdict::Bisected(blamed) });
        };
        self.options.plain.extend(functions(self.object, func));
        self.optimized = optimize(self.object, &self.options)?;
        let wrong = match measure(&self.session, &self.optimized.object, func) {
            Ok(_) => self.walks_longer(func, before),
            Err(why) => Some(why),
        };
        match wrong {
            Some(why) => self.keep_original(func, why),
            None => Ok(Verdict::Plain(why)),
        }
    }

    /// Drops the rewrites that make the kernel reject the program, one after the other; why it is still rejected, if
    /// it is.
    fn drop_culprits(
        &mut self,
        func: FuncId,
        blamed: &mut Vec<(String, u64)>,
    ) -> Result<Option<String>, OptError> {
        while let Err(why) = measure(&self.session, &self.optimized.object, func) {
            if blamed.len() >= MOST_DROPPED {
                return Ok(Some(why));
            }
            let Some(number) = self.culprit(func)? else { return Ok(Some(why)) };
            let pass = self.optimized.fuel.blame(number).map_or("lower", |r| r.pass);
            blamed.push((pass.to_string(), number));
            self.options.skip.insert(number);
            self.optimized = optimize(self.object, &self.options)?;
        }
        Ok(None)
    }

    fn keep_original(&mut self, func: FuncId, why: String) -> Result<Verdict, OptError> {
        self.options.leave.extend(functions(self.object, func));
        self.optimized = optimize(self.object, &self.options)?;
        Ok(Verdict::Original(why))
    }

    /// The lowest number of rewrites with which the program is rejected, less one: the rewrite that breaks it. `None`
    /// if it is rejected without any: lowering is to blame.
    fn culprit(&self, func: FuncId) -> Result<Option<u64>, OptError> {
        let accepted = |fuel: u64| -> Result<bool, OptError> {
            let limited = Options {
                passes: self.options.passes.clone(),
                fuel: Some(fuel),
                skip: self.options.skip.clone(),
                leave: self.options.leave.clone(),
                plain: self.options.plain.clone(),
                isa: self.options.isa,
                inline: self.options.inline,
                keep_longer: true,
                ..Options::default()
            };
            Ok(measure(&self.session, &optimize(self.object, &limited)?.object, func).is_ok())
        };
        if !accepted(0)? {
            return Ok(None);
        }
        let (mut good, mut bad) = (0, self.optimized.rewrites);
        while good + 1 < bad {
            let middle = good + (bad - good) / 2;
            if accepted(middle)? { good = middle } else { bad = middle }
        }
        Ok(Some(good))
    }

    /// Says so if the verifier walks too many instructions more than before.
    fn walks_longer(&self, func: FuncId, before: Measure) -> Option<String> {
        let after = measure(&self.session, &self.optimized.object, func).ok()?;
        let longer = after.verified > MOST_VERIFIED.saturating_mul(before.verified);
        let said =
            || format!("the verifier walks {} instructions instead of {}", after.verified, before.verified);
        longer.then(said)
    }
}

fn measure(session: &Session<'_>, object: &Object, func: FuncId) -> Result<Measure, String> {
    let linked = object.link(func).map_err(|e| e.to_string())?;
    let program = session.load(func, &linked).map_err(|e| e.to_string())?;
    let info = program.info().map_err(|e| e.to_string())?;
    let verified = program.stats().map_or(0, |s| s.processed);
    Ok(Measure { slots: linked.insns.len(), jited: info.jited_len, verified })
}

/// A program and all it calls.
fn functions(object: &Object, func: FuncId) -> Vec<u32> {
    object.link(func).map_or_else(|_| Vec::new(), |l| l.functions.iter().map(|(_, f)| f.0).collect())
}

impl Check {
    /// Whether every program that the kernel took before was rewritten or left with nothing to do, and none had to
    /// fall back to the original.
    pub fn is_clean(&self) -> bool {
        let fell_back = |p: &ProgramReport| matches!(p.verdict, Verdict::Original(_));
        let unsupported = |o: &Outcome| matches!(o, Outcome::Unsupported(_) | Outcome::Rejected);
        !self.programs.iter().any(fell_back)
            && !self.optimized.functions.iter().any(|f| unsupported(&f.outcome))
    }
}
