//! `millstream lab equal`.

use std::process::ExitCode;

use miette::{IntoDiagnostic, miette};
use millstream_lab::differential::{
    DifferentialOutcome, DifferentialPlan, DifferentialReport, ObservedDifference, compare_objects,
};
use millstream_lab::environment::Environment;
use millstream_lab::os;
use millstream_object::Object;
use serde::Serialize;

use super::{interrupted, open, refused, short};
use crate::exit::Exit;
use crate::input;
use crate::progress::Progress;

/// Flags of `millstream lab equal`.
#[derive(Debug, clap::Args)]
pub(super) struct EqualArgs {
    /// Reference object: FILE.o, FILE.o:PROGRAM, FILE.insns or builtin:NAME
    first: String,
    /// Object that should behave the same; programs of the same name in both are run
    second: String,
    /// Random packets per program
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    packets: usize,
    /// Seed of packets and tables
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct EqualReport<'a> {
    schema: u32,
    environment: Environment,
    seed: u64,
    programs: &'a [DifferentialReport],
}

/// Runs the command.
pub(super) fn run(args: &EqualArgs) -> Result<ExitCode, miette::Report> {
    let ((first, chosen), (mut second, _)) = (open(&args.first)?, open(&args.second)?);
    input::match_program_names(&first, &mut second);
    let names = common(&first, &second, chosen.as_deref())?;
    let plan = DifferentialPlan { packets: args.packets.max(1), seed: args.seed };
    let mut progress = Progress::counted("programs", names.len());
    let mut answers = Vec::new();
    // Per-CPU maps are compared, so that all runs must be on one CPU.
    if let Some(cpu) = os::allowed_cpus().last() {
        os::pin_to_cpu(*cpu).into_diagnostic()?;
    }
    for name in &names {
        match compare_objects(&first, &second, name, &plan) {
            Ok(answer) => answers.push(answer),
            Err(_) if os::interrupted() => return Ok(interrupted().into()),
            Err(e) => return refused(e),
        }
        progress.step();
    }
    drop(progress);
    if args.json {
        let document =
            EqualReport { schema: 1, environment: Environment::now(), seed: args.seed, programs: &answers };
        outln!("{}", serde_json::to_string_pretty(&document).into_diagnostic()?);
    } else {
        outln!("{} and {}, seed {}", short(&args.first), short(&args.second), args.seed);
        answers.iter().for_each(print);
    }
    Ok(verdict(&answers).into())
}

/// The programs that both have; those that only the first has are an error, since they are missing.
fn common(first: &Object, second: &Object, chosen: Option<&str>) -> Result<Vec<String>, miette::Report> {
    let wanted = |name: &str| chosen.is_none_or(|c| c == name);
    let names: Vec<String> = first.programs.iter().map(|p| p.name.clone()).filter(|n| wanted(n)).collect();
    if let Some(missing) = names.iter().find(|n| !second.programs.iter().any(|p| p.name == **n)) {
        return Err(miette!("the second object has no program {missing:?}"));
    }
    match (names.is_empty(), chosen) {
        (true, Some(name)) => Err(miette!("the first object has no program {name:?}")),
        (true, None) => Err(miette!("the first object has no programs")),
        _ => Ok(names),
    }
}

/// Different if one program is; no answer if none could be tried.
fn verdict(answers: &[DifferentialReport]) -> Exit {
    if answers.iter().any(|a| matches!(a.outcome, DifferentialOutcome::Different(_))) {
        Exit::Negative
    } else if answers.iter().any(|a| matches!(a.outcome, DifferentialOutcome::Equal)) {
        Exit::Done
    } else {
        Exit::Unknown
    }
}

fn print(answer: &DifferentialReport) {
    let DifferentialReport { program, packets, entries, reached, varies, .. } = answer;
    let reached =
        reached.map_or_else(String::new, |[some, all]| format!(", {some} of {all} instructions reached"));
    let tried = format!("{packets} packets, {entries} entries in maps{reached}");
    match &answer.outcome {
        DifferentialOutcome::Equal => outln!("{program:32} no difference: {tried}"),
        DifferentialOutcome::NotTried { reason } => outln!("{program:32} not tried: {}", first_line(reason)),
        DifferentialOutcome::Different(difference) => {
            outln!("{program:32} DIFFERENT: {tried}");
            outln!("    {}", in_words(&difference.observable));
            outln!("    on this packet, after {} others: {}", difference.after, difference.packet);
        }
    }
    for what in varies {
        outln!("    not compared, since the first does not do it alike twice: {what}");
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn in_words(observable: &ObservedDifference) -> String {
    match observable {
        ObservedDifference::Rejected { message } => {
            format!("the second is not accepted: {}", first_line(message))
        }
        ObservedDifference::Run { first: true } => "the second cannot be run on the packet".to_owned(),
        ObservedDifference::Run { first: false } => "the first cannot be run on the packet".to_owned(),
        ObservedDifference::ReturnValue { first, second } => {
            format!("return value {first}, and then {second}")
        }
        ObservedDifference::Packet(bytes) => {
            format!("packet, from byte {}:\n      {}\n      {}", bytes.offset, bytes.first, bytes.second)
        }
        ObservedDifference::Context(bytes) => {
            format!("context, from byte {}:\n      {}\n      {}", bytes.offset, bytes.first, bytes.second)
        }
        ObservedDifference::Told(bytes) => {
            format!(
                "what it tells, from byte {}:\n      {}\n      {}",
                bytes.offset, bytes.first, bytes.second
            )
        }
        ObservedDifference::Map { map, key, first, second } => {
            let value = |v: &Option<String>| v.clone().unwrap_or_else(|| "no such key".to_owned());
            format!("map {map}, key {key}:\n      {}\n      {}", value(first), value(second))
        }
    }
}
