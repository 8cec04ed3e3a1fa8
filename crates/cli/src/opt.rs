//! `millstream opt`: optimizes an object.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use miette::{Context as _, IntoDiagnostic, Result};
use millstream_object::Object;
use millstream_opt::{Check, FunctionReport, Measure, Optimized, Options, Outcome, ProgramReport, Verdict};
use serde::Serialize;

use crate::exit::Exit;

/// Reads an object file, runs the passes over its programs and writes the same object with new instructions.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The object file to read
    input: PathBuf,
    /// Where to write the result; without it, only the report is made
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Ask the kernel: load every program before and after, drop what it rejects, report sizes
    #[arg(long)]
    stats: bool,
    /// Run this pass instead of the default pipeline; repeat for several, in order
    #[arg(long = "pass", value_name = "NAME")]
    passes: Vec<String>,
    /// Print the IR after each run of this pass (`all`: after every pass) to standard error
    #[arg(long, value_name = "PASS")]
    dump_after: Option<String>,
    /// Stop after this many rewrites
    #[arg(long, value_name = "N")]
    fuel: Option<u64>,
    /// Instruction set version that may be used, 1 to 4; by default that of the object
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    isa: u8,
    /// Keep functions that became longer, too
    #[arg(long)]
    keep_longer: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    object: String,
    functions: &'a [FunctionReport],
    programs: &'a [ProgramReport],
    passes: &'a [millstream_opt::PassReport],
    rewrites: u64,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let object = read(&args.input)?;
    let options = Options {
        passes: args.passes.clone(),
        isa: args.isa,
        fuel: args.fuel,
        keep_longer: args.keep_longer,
        dump_after: args.dump_after.clone(),
        ..Options::default()
    };
    let (optimized, programs, clean) = if args.stats {
        let checked = millstream_opt::check(&object, options).into_diagnostic()?;
        let clean = checked.is_clean();
        let Check { optimized, programs } = checked;
        (optimized, programs, clean)
    } else {
        let optimized = millstream_opt::optimize(&object, &options).into_diagnostic()?;
        (optimized, Vec::new(), true)
    };
    if let Some(path) = &args.output {
        let bytes = optimized.object.write().into_diagnostic()?;
        std::fs::write(path, bytes)
            .into_diagnostic()
            .wrap_err_with(|| format!("writing {}", path.display()))?;
    }
    let report = Report {
        schema: 1,
        object: object.name.clone(),
        functions: &optimized.functions,
        programs: &programs,
        passes: &optimized.passes,
        rewrites: optimized.rewrites,
    };
    if args.json {
        println!("{}", serde_json::to_string(&report).into_diagnostic()?);
    } else {
        print(&optimized, &programs);
    }
    Ok(if clean { ExitCode::SUCCESS } else { Exit::Negative.into() })
}

/// Reads an object file; the error says what and where.
fn read(path: &Path) -> Result<Object> {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let data =
        std::fs::read(path).into_diagnostic().wrap_err_with(|| format!("reading {}", path.display()))?;
    Object::parse(&name, &data).into_diagnostic().wrap_err_with(|| path.display().to_string())
}

fn print(optimized: &Optimized, programs: &[ProgramReport]) {
    println!("{:32} {:>7} {:>7}  outcome", "function", "before", "after");
    for f in &optimized.functions {
        println!("{:32} {:>7} {:>7}  {}", f.name, f.before, f.after, outcome(&f.outcome));
    }
    if !programs.is_empty() {
        println!();
        println!("{:32} {:>15} {:>15} {:>17}  kernel", "program", "slots", "jited bytes", "verified");
    }
    for p in programs {
        let pair = |get: fn(&Measure) -> usize| {
            let text = |m: Option<Measure>| m.as_ref().map_or("-".to_string(), |m| get(m).to_string());
            format!("{} -> {}", text(p.before), text(p.after))
        };
        let (slots, jited) = (pair(|m| m.slots), pair(|m| m.jited as usize));
        let verified = pair(|m| m.verified as usize);
        println!("{:32} {slots:>15} {jited:>15} {verified:>17}  {}", p.name, verdict(&p.verdict));
    }
}

fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Rewritten => "rewritten".into(),
        Outcome::NothingToDo => "nothing to do".into(),
        Outcome::NoGain { would_be } => format!("kept: would be {would_be} slots"),
        Outcome::Removed => "removed: nothing calls it".into(),
        Outcome::Unsupported(why) => format!("kept: {why}"),
        Outcome::Rejected => "kept: the kernel rejected the result".into(),
    }
}

fn verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Accepted => "accepted".into(),
        Verdict::NotLoadable(why) => format!("original not accepted: {}", first_line(why)),
        Verdict::Bisected(blamed) => {
            let names: Vec<String> = blamed.iter().map(|(pass, n)| format!("{pass}#{n}")).collect();
            format!("accepted without {}", names.join(", "))
        }
        Verdict::Original(why) => format!("original kept: {}", first_line(why)),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
