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
    let mut optimized = optimize(object, &options)?;
    options.inline = Some(optimized.inline);
    let mut programs = Vec::new();
    for p in &object.programs {
        let mut report = ProgramReport {
            name: p.name.clone(),
            section: p.section.clone(),
            verdict: Verdict::Accepted,
            before: None,
            after: None,
        };
        match measure(&session, object, p.func) {
            Ok(m) => report.before = Some(m),
            Err(why) => {
                report.verdict = Verdict::NotLoadable(why);
                programs.push(report);
                judged();
                continue;
            }
        }
        let mut blamed = Vec::new();
        let mut last = None;
        while let Err(why) = measure(&session, &optimized.object, p.func) {
            last = Some(why);
            if blamed.len() >= MOST_DROPPED {
                break;
            }
            let Some(number) = culprit(&session, object, &options, p.func, optimized.rewrites)? else {
                break;
            };
            let pass = optimized.fuel.blame(number).map_or("lower", |r| r.pass);
            blamed.push((pass.to_string(), number));
            options.skip.insert(number);
            optimized = optimize(object, &options)?;
            last = None;
        }
        let longer = |optimized: &Optimized| walks_longer(&session, optimized, p.func, report.before);
        let mut plain = None;
        if last.is_none()
            && let Some(why) = longer(&optimized)
        {
            options.plain.extend(functions(object, p.func));
            optimized = optimize(object, &options)?;
            last = match measure(&session, &optimized.object, p.func) {
                Ok(_) => longer(&optimized),
                Err(why) => Some(why),
            };
            plain = Some(why);
        }
        report.verdict = match (last, plain) {
            (Some(why), _) => {
                options.leave.extend(functions(object, p.func));
                optimized = optimize(object, &options)?;
                Verdict::Original(why)
            }
            (None, Some(why)) => Verdict::Plain(why),
            (None, None) if blamed.is_empty() => Verdict::Accepted,
            (None, None) => Verdict::Bisected(blamed),
        };
        programs.push(report);
        judged();
    }
    for (p, report) in object.programs.iter().zip(&mut programs) {
        if report.before.is_some() {
            report.after = measure(&session, &optimized.object, p.func).ok();
        }
    }
    Ok(Check { optimized, programs })
}

fn measure(session: &Session<'_>, object: &Object, func: FuncId) -> Result<Measure, String> {
    let linked = object.link(func).map_err(|e| e.to_string())?;
    let program = session.load(func, &linked).map_err(|e| e.to_string())?;
    let info = program.info().map_err(|e| e.to_string())?;
    let verified = program.stats().map_or(0, |s| s.processed);
    Ok(Measure { slots: linked.insns.len(), jited: info.jited_len, verified })
}

/// The lowest number of rewrites with which the program is rejected, less one: the rewrite that breaks it. `None` if
/// it is rejected without any: lowering is to blame.
fn culprit(
    session: &Session<'_>,
    object: &Object,
    options: &Options,
    func: FuncId,
    rewrites: u64,
) -> Result<Option<u64>, OptError> {
    let accepted = |fuel: u64| -> Result<bool, OptError> {
        let limited = Options {
            passes: options.passes.clone(),
            fuel: Some(fuel),
            skip: options.skip.clone(),
            leave: options.leave.clone(),
            plain: options.plain.clone(),
            isa: options.isa,
            inline: options.inline,
            keep_longer: true,
            ..Options::default()
        };
        Ok(measure(session, &optimize(object, &limited)?.object, func).is_ok())
    };
    if !accepted(0)? {
        return Ok(None);
    }
    let (mut good, mut bad) = (0, rewrites);
    while good + 1 < bad {
        let middle = good + (bad - good) / 2;
        if accepted(middle)? { good = middle } else { bad = middle }
    }
    Ok(Some(good))
}

/// Says so if the verifier walks too many instructions more than before.
fn walks_longer(
    session: &Session<'_>,
    optimized: &Optimized,
    func: FuncId,
    before: Option<Measure>,
) -> Option<String> {
    let (before, after) = (before?, measure(session, &optimized.object, func).ok()?);
    let longer = after.verified > MOST_VERIFIED.saturating_mul(before.verified);
    longer
        .then(|| format!("the verifier walks {} instructions instead of {}", after.verified, before.verified))
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
