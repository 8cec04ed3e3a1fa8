//! `millstream opt -O super`: the flags of the search, its report, and its handling of Ctrl-C.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use miette::{IntoDiagnostic, Result};
use millstream_lab::os;
use millstream_object::Object;
use millstream_opt::{
    EquivalenceEvidence, KernelAcceptance, OptimizationGoal, OptimizeOptions, SuperOptions, SuperReport,
    SuperoptimizedObject, WindowRules,
};
use serde::Serialize;

use crate::evidence_text::{certainty, first_line};
use crate::exit::Exit;
use crate::fastest::{BEST, CandidateTimings};
use crate::input::SectionArgs;
use crate::privileges::RequiredPrivileges;
use crate::prove::SolverArgs;
use crate::rules::jobs;

/// Optimization level.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum OptLevel {
    /// Static passes: milliseconds
    #[default]
    #[value(name = "2")]
    Two,
    /// Static passes in all their forms, then a search; every result is proven and accepted by the kernel
    Super,
}

/// Flags of all commands that optimize: search, solvers, raw programs, output.
#[derive(clap::Args, Debug)]
pub(crate) struct CommonOptArgs {
    #[command(flatten)]
    pub(crate) searching: SearchArgs,
    #[command(flatten)]
    pub(crate) solving: SolverArgs,
    #[command(flatten)]
    pub(crate) section: SectionArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl CommonOptArgs {
    /// Privileges that the command needs, for these kernels.
    pub(crate) fn needs(&self, asks: bool) -> RequiredPrivileges {
        if asks || self.searching.level == OptLevel::Super {
            RequiredPrivileges::Kernel
        } else {
            RequiredPrivileges::Files
        }
    }
}

/// Flags of the search.
#[derive(clap::Args, Debug)]
pub(crate) struct SearchArgs {
    /// Optimization level: `2` for static passes, `super` for a search on top of them
    #[arg(short = 'O', value_name = "LEVEL", default_value = "2")]
    pub(crate) level: OptLevel,
    /// Time to search each program for, as `10s` or `500ms`; 0 for static forms only; by default 4 to 60
    /// seconds, by its size (with `-O super`)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    budget: Option<Duration>,
    /// Threads of the search; by default the number of CPUs
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Seed of the search's random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Maximum rounds of the search: with a budget that is not used up, the same rounds give the same result
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Leave a part of the search out, to measure its benefit; may be repeated
    #[arg(long, value_name = "PART", hide = true)]
    leave_out: Vec<millstream_opt::SearchAblation>,
}

/// Parses a time with its unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "m" | "min" => 60.0,
        unit => return Err(format!("no unit `{unit}`: there are ms, s and m")),
    };
    let number: f64 = digits.parse().map_err(|_| format!("`{digits}` is no number"))?;
    if !(0.0..=1e6).contains(&number) {
        return Err("out of range".into());
    }
    Ok(Duration::from_secs_f64(number * unit))
}

#[derive(Serialize)]
struct SuperoptReport<'a> {
    schema: u32,
    object: String,
    goal: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget_seconds: Option<f64>,
    seed: u64,
    interrupted: bool,
    /// Under `--goal latency`: the measurements, and the form that is returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<&'a CandidateTimings>,
    functions: &'a [millstream_opt::FunctionReport],
    programs: &'a [SuperReport],
    /// Answers of a trusted store that the proofs rest on and that were not proven here.
    trusted: u64,
}

/// Superoptimizes; returns the object and the exit code.
pub(crate) fn run(
    object: &Object,
    options: OptimizeOptions,
    rules: Option<Arc<WindowRules>>,
    common: &CommonOptArgs,
) -> Result<(Object, ExitCode)> {
    let (goal, searching) = (options.goal, &common.searching);
    let measured = goal == OptimizationGoal::Latency && searching.budget != Some(Duration::ZERO);
    let done = superoptimize(object, options, rules, common, if measured { BEST - 1 } else { 0 })?;
    let interrupted = os::interrupted();
    let timed = (measured && !interrupted).then(|| CandidateTimings::measure(object, &done));
    if common.json {
        let report = SuperoptReport {
            schema: 1,
            object: object.name.clone(),
            goal: goal.to_string(),
            budget_seconds: searching.budget.map(|b| b.as_secs_f64()),
            seed: searching.seed,
            interrupted,
            measured: timed.as_ref(),
            functions: &done.fixed.functions,
            programs: &done.programs,
            trusted: done.trusted,
        };
        outln!("{}", serde_json::to_string(&report).into_diagnostic()?);
    } else {
        out!("{}", text(&done, interrupted));
        if let Some(timed) = &timed {
            outln!("{timed}");
        }
    }
    let refuted = done.programs.iter().any(|p| matches!(p.proof, EquivalenceEvidence::Refuted(_)));
    let code = if refuted { Exit::Negative.into() } else { ExitCode::SUCCESS };
    let object = match timed {
        Some(timed) => timed.returned.of(object, done),
        None => done.object,
    };
    Ok((object, code))
}

/// Superoptimizes, with these rules of windows in place of the built-in ones, and keeps so many other forms
/// beside the result; Ctrl-C ends the search with the best form so far.
pub(crate) fn superoptimize(
    object: &Object,
    options: OptimizeOptions,
    rules: Option<Arc<WindowRules>>,
    common: &CommonOptArgs,
    others: usize,
) -> Result<SuperoptimizedObject> {
    let (searching, solving) = (&common.searching, &common.solving);
    let rules = match rules {
        Some(rules) => rules,
        None => Arc::new(WindowRules::builtin().into_diagnostic()?),
    };
    // A second signal ends the process at once.
    os::catch_interrupts();
    let wanted = SuperOptions {
        options,
        budget: searching.budget,
        rounds: searching.rounds,
        jobs: searching.jobs.unwrap_or_else(jobs),
        seed: searching.seed,
        solver: solving.solver()?,
        without: searching.leave_out.clone(),
        rules,
        learn: false,
        others,
        limits: solving.limits(),
        stop: Some(os::interruption()),
    };
    millstream_opt::superoptimize(object, &wanted).into_diagnostic()
}

fn text(done: &SuperoptimizedObject, interrupted: bool) -> String {
    let mut out = String::new();
    for p in &done.programs {
        let cycles = |c: u64| format!("{:.1}", c as f64 / 1000.0);
        let _ = writeln!(
            out,
            "{}: {} -> {} -> {} slots, {} -> {} -> {} jited bytes, {} -> {} -> {} predicted cycles",
            p.name,
            p.before.slots,
            p.fixed.slots,
            p.after.slots,
            p.before.jited,
            p.fixed.jited,
            p.after.jited,
            cycles(p.before.cycles),
            cycles(p.fixed.cycles),
            cycles(p.after.cycles),
        );
        let _ = writeln!(out, "  kernel: {}", kernel(&p.kernel));
        let _ = writeln!(out, "  proof: {}", certainty(&p.proof));
        let s = &p.search;
        let windows: Vec<String> = s.windows.iter().map(|(e, n)| format!("{n} by {}", engine(*e))).collect();
        let _ = writeln!(
            out,
            "  search: {} replaced; windows: {}; {} candidates; proven by form {}, solver asked {}; \
             store {} of {} look-ups; {:.2} s",
            p.found.len(),
            if windows.is_empty() { "none".into() } else { windows.join(", ") },
            s.candidates,
            s.by_form,
            s.asked,
            s.hits,
            s.lookups,
            p.search_seconds,
        );
        for f in &p.found {
            let _ = writeln!(out, "  at slot {}, by {}:", f.slot, engine(f.engine));
            for (sign, lines) in [('-', &f.before), ('+', &f.after)] {
                for line in lines {
                    let _ = writeln!(out, "    {sign} {line}");
                }
            }
        }
    }
    if let Some(words) = crate::prove::rests_on(done.trusted) {
        let _ = writeln!(out, "all this {words}");
    }
    if interrupted {
        out.push_str("interrupted: the best proven so far\n");
    }
    out
}

pub(crate) fn engine(e: millstream_opt::SearchEngine) -> &'static str {
    use millstream_opt::SearchEngine;
    match e {
        SearchEngine::Rules => "a rule",
        SearchEngine::Store => "the store",
        SearchEngine::Neighbourhood => "its neighbourhood",
        SearchEngine::Enumeration => "enumeration",
        SearchEngine::Cegis => "a sketch that a solver completed",
        SearchEngine::Chain => "Metropolis-Hastings",
    }
}

fn kernel(k: &KernelAcceptance) -> String {
    match k {
        KernelAcceptance::Accepted => "accepted".into(),
        KernelAcceptance::NotLoadable(why) => format!("original not accepted: {}", first_line(why)),
        KernelAcceptance::NotAsked(why) => format!("not asked: {}", first_line(why)),
    }
}
