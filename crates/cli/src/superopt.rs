//! `millstream opt -O super`: the flags of the search, its report, and what Ctrl-C does.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use miette::{IntoDiagnostic, Result};
use millstream_lab::os;
use millstream_object::Object;
use millstream_opt::{Certainty, Kernel, Options, SuperOptions, SuperReport, Superoptimized};
use serde::Serialize;

use crate::exit::Exit;
use crate::prove::Solving;

/// How much is done.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Level {
    /// Static passes: milliseconds
    #[default]
    #[value(name = "2")]
    Two,
    /// Static passes in all their forms, then a search; every result is proven and accepted by the kernel
    Super,
}

/// Flags of the search.
#[derive(clap::Args, Debug)]
pub(crate) struct Searching {
    /// How much is done: `2` for static passes, `super` for a search on top of them
    #[arg(short = 'O', value_name = "LEVEL", default_value = "2")]
    pub(crate) level: Level,
    /// How long to search each program, as `10s` or `500ms`; 0 for static forms only (with `-O super`)
    #[arg(long, value_name = "TIME", default_value = "8s", value_parser = duration)]
    budget: Duration,
    /// Threads of the search; by default as many as there are processors
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Where the randomness of the search begins
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Rounds of the search, at most: with a budget that is not used up, the same rounds give the same result
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
}

/// A time with its unit.
fn duration(text: &str) -> Result<Duration, String> {
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
struct Report<'a> {
    schema: u32,
    object: String,
    goal: String,
    budget_seconds: f64,
    seed: u64,
    interrupted: bool,
    functions: &'a [millstream_opt::FunctionReport],
    programs: &'a [SuperReport],
}

/// Superoptimizes; gives the object, and how it ended.
pub(crate) fn run(
    object: &Object,
    options: Options,
    searching: &Searching,
    solving: &Solving,
    json: bool,
) -> Result<(Object, ExitCode)> {
    // A second signal ends the process at once.
    os::catch_interrupts();
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let goal = options.goal;
    let wanted = SuperOptions {
        options,
        budget: searching.budget,
        rounds: searching.rounds,
        jobs: searching.jobs.unwrap_or(processors),
        seed: searching.seed,
        solver: solving.solver(),
        limits: solving.limits(),
        stop: Some(os::interruption()),
    };
    let done = millstream_opt::superoptimize(object, &wanted).into_diagnostic()?;
    let interrupted = os::interrupted();
    if json {
        let report = Report {
            schema: 1,
            object: object.name.clone(),
            goal: goal.to_string(),
            budget_seconds: searching.budget.as_secs_f64(),
            seed: searching.seed,
            interrupted,
            functions: &done.fixed.functions,
            programs: &done.programs,
        };
        println!("{}", serde_json::to_string(&report).into_diagnostic()?);
    } else {
        print!("{}", text(&done, interrupted));
    }
    let refuted = done.programs.iter().any(|p| matches!(p.proof, Certainty::Refuted(_)));
    let code = if refuted { Exit::Negative.into() } else { ExitCode::SUCCESS };
    Ok((done.object, code))
}

fn text(done: &Superoptimized, interrupted: bool) -> String {
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
            "  search: {} replaced; windows: {}; {} candidates; proven by form {}, solver asked {}; store {} of {} look-ups; {:.2} s",
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
    if interrupted {
        out.push_str("interrupted: the best proven so far\n");
    }
    out
}

fn engine(e: millstream_opt::Engine) -> &'static str {
    use millstream_opt::Engine;
    match e {
        Engine::Store => "the store",
        Engine::Neighbourhood => "its neighbourhood",
        Engine::Enumeration => "enumeration",
        Engine::Chain => "Metropolis-Hastings",
    }
}

fn kernel(k: &Kernel) -> String {
    match k {
        Kernel::Accepted => "accepted".into(),
        Kernel::NotLoadable(why) => format!("original not accepted: {}", first_line(why)),
        Kernel::NotAsked(why) => format!("not asked: {}", first_line(why)),
    }
}

fn certainty(c: &Certainty) -> String {
    match c {
        Certainty::Unchanged => "unchanged".into(),
        Certainty::Whole => "equivalent, as a whole".into(),
        Certainty::Composed(why) => {
            format!("static form and each window proven; as a whole not known: {why}")
        }
        Certainty::Windows(why) => format!("original with proven windows; no static form was proven: {why}"),
        Certainty::Original(why) => format!("original kept; no static form was proven: {why}"),
        Certainty::Refuted(why) => format!("REFUTED, the static form is kept; this is a bug of ours: {why}"),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
