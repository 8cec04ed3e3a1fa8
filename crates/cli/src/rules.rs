//! `millstream rules`: proves rewrite rules anew.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use miette::{IntoDiagnostic, WrapErr, miette};
use millstream_passes::rules::{Rule, RuleSet, parse};
use millstream_rules::{Checked, Outcome, check_all, questions};
use serde::Serialize;

use crate::exit::Exit;
use crate::prove::Solving;

/// Flags of `millstream rules`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Prove every rule anew: those written by hand and those of the store, or those of a file
    Check(Check),
}

/// Flags of `millstream rules check`.
#[derive(Debug, clap::Args)]
struct Check {
    /// Prove the rules of this file instead of those that are shipped
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Ask nobody: write each question into this directory as SMT-LIB, for any solver; the answer must be `unsat`
    #[arg(long, value_name = "DIR")]
    smt: Option<PathBuf>,
    /// Proofs made at the same time
    #[arg(long, value_name = "N", default_value_t = jobs())]
    jobs: usize,
    #[command(flatten)]
    solving: Solving,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn jobs() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    rule: String,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Whether a solver was needed.
    solver: bool,
    milliseconds: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    proven: usize,
    refuted: usize,
    undecided: usize,
    rules: Vec<Row>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, miette::Report> {
    match &args.command {
        Command::Check(args) => check(args),
    }
}

fn check(args: &Check) -> Result<ExitCode, miette::Report> {
    let rules = match &args.file {
        Some(file) => read(file)?,
        None => RuleSet::shipped().rules().to_vec(),
    };
    if let Some(directory) = &args.smt {
        return write_questions(&rules, directory);
    }
    let solver = args.solving.solver();
    let limits = args.solving.limits();
    let checked = check_all(&rules, solver.as_ref(), &limits, args.jobs, |_, _| {}).into_diagnostic()?;
    let report = report(&rules, &checked);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report).into_diagnostic()?);
    } else {
        for row in report.rules.iter().filter(|r| r.verdict != "proven") {
            println!("{}  {}: {}", row.name, row.rule, row.reason.as_deref().unwrap_or_default());
        }
        println!(
            "{} rules: {} proven, {} wrong, {} undecided",
            report.rules.len(),
            report.proven,
            report.refuted,
            report.undecided
        );
    }
    Ok(match (report.refuted, report.undecided, &solver) {
        (0, 0, _) => Exit::Done,
        (0, _, Some(_)) => Exit::Unknown,
        (0, _, None) => Exit::NotPermitted,
        _ => Exit::Negative,
    }
    .into())
}

fn read(file: &Path) -> Result<Vec<Rule>, miette::Report> {
    let shown = file.display();
    let text =
        std::fs::read_to_string(file).into_diagnostic().wrap_err_with(|| format!("reading {shown}"))?;
    parse(&shown.to_string(), &text).map_err(|e| miette!("{e}"))
}

fn report(rules: &[Rule], checked: &[Checked]) -> Report {
    let rows = rules.iter().zip(checked).map(|(rule, checked)| {
        let (verdict, reason, solver) = match &checked.outcome {
            Outcome::Proven { form } => ("proven", None, !form),
            wrong @ Outcome::Refuted { .. } => ("refuted", Some(wrong.to_string()), true),
            other @ Outcome::Undecided(_) => ("undecided", Some(other.to_string()), true),
        };
        let milliseconds = checked.time.as_secs_f64() * 1e3;
        Row { name: rule.name.clone(), rule: rule.to_string(), verdict, reason, solver, milliseconds }
    });
    let rules: Vec<Row> = rows.collect();
    let count = |verdict| rules.iter().filter(|r| r.verdict == verdict).count();
    Report {
        schema: 1,
        proven: count("proven"),
        refuted: count("refuted"),
        undecided: count("undecided"),
        rules,
    }
}

/// One file a question, named after the rule and what it is read at.
fn write_questions(rules: &[Rule], directory: &Path) -> Result<ExitCode, miette::Report> {
    let shown = directory.display();
    std::fs::create_dir_all(directory).into_diagnostic().wrap_err_with(|| format!("making {shown}"))?;
    let mut files = 0;
    for rule in rules {
        let stem: String =
            rule.name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
        for (at, text) in questions(rule) {
            let file = directory.join(format!("{stem}-{at}.smt2"));
            std::fs::write(&file, text)
                .into_diagnostic()
                .wrap_err_with(|| format!("writing {}", file.display()))?;
            files += 1;
        }
    }
    println!("{files} questions of {} rules in {shown}", rules.len());
    Ok(Exit::Done.into())
}
