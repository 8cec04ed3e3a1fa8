//! `millstream prove`: whether the programs of two objects do the same.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use miette::{IntoDiagnostic, miette};
use millstream_object::{FuncId, Object};
use millstream_prove::{Limits, Proof, Solver, Verdict, prove};
use serde::Serialize;

use crate::exit::Exit;
use crate::input::{self, Section};

/// Flags of `millstream prove`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// An object file, or a raw program (`X.insns`)
    a: PathBuf,
    /// Another, with programs of the same names; they do not matter where both have one
    b: PathBuf,
    /// Look at this program only; may be repeated
    #[arg(long, value_name = "NAME")]
    prog: Vec<String>,
    #[command(flatten)]
    solving: Solving,
    #[command(flatten)]
    section: Section,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Flags of all that proves something.
#[derive(Debug, clap::Args)]
pub(crate) struct Solving {
    /// Seconds that the proof of one program may take
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    proof_time: u64,
    /// Memory that the solver may take, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    solver_memory: u64,
    /// The solver: z3, or one that takes its flags
    #[arg(long, value_name = "PROGRAM", default_value = "z3", env = "MILLSTREAM_SOLVER")]
    solver: PathBuf,
}

impl Solving {
    /// The solver; none, with a warning, if it cannot be started: much is proven without.
    pub(crate) fn solver(&self) -> Option<Solver> {
        let solver = Solver::new(&self.solver);
        match solver.version() {
            Ok(_) => Some(solver),
            Err(e) => {
                tracing::warn!("{e}; only what needs no solver is proven");
                None
            }
        }
    }

    /// How much may be spent on a program.
    pub(crate) fn limits(&self) -> Limits {
        Limits { time: Duration::from_secs(self.proof_time), memory: self.solver_memory, ..Limits::default() }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    verdict: &'static str,
    /// What can differ, or why it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Observables that came out as the same term.
    same: usize,
    /// Questions put to the solver.
    asked: usize,
    terms: usize,
    milliseconds: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    a: String,
    b: String,
    /// What the proofs rest on.
    assumptions: &'static [&'static str],
    programs: Vec<Row>,
}

const ASSUMPTIONS: &[&str] = &[
    "the kernel's verifier accepts both programs",
    "maps have the sizes that the objects say, and both programs the same maps",
    "nobody else writes maps or the packet while a program runs",
    "a lookup changes nothing: not which entry of an LRU map is evicted next",
    "the linear part of a packet is shorter than 64 KiB, its metadata than 256 bytes",
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, miette::Report> {
    let (a, mut b) = (args.section.read(&args.a)?, args.section.read(&args.b)?);
    input::call_alike(&a, &mut b);
    let solver = args.solving.solver();
    let limits = args.solving.limits();
    let mut programs = Vec::new();
    for (name, f, g) in pairs(&a, &b, &args.prog)? {
        programs.push(row(name, &prove((&a, f), (&b, g), solver.as_ref(), &limits)));
    }
    let report = Report {
        schema: 1,
        a: args.a.display().to_string(),
        b: args.b.display().to_string(),
        assumptions: ASSUMPTIONS,
        programs,
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report).into_diagnostic()?);
    } else {
        print!("{}", text(&report));
    }
    let any = |v: &str| report.programs.iter().any(|r| r.verdict == v);
    Ok(if any("differs") {
        Exit::Negative
    } else if any("unknown") && solver.is_none() {
        Exit::NotPermitted
    } else if any("unknown") {
        Exit::Unknown
    } else {
        Exit::Done
    }
    .into())
}

/// The programs that both have, by name.
fn pairs(a: &Object, b: &Object, only: &[String]) -> Result<Vec<(String, FuncId, FuncId)>, miette::Report> {
    let mut out = Vec::new();
    for p in &a.programs {
        if !only.is_empty() && !only.contains(&p.name) {
            continue;
        }
        let other = b.programs.iter().find(|q| q.name == p.name);
        let other = other.ok_or_else(|| miette!("the second object has no program {:?}", p.name))?;
        out.push((p.name.clone(), p.func, other.func));
    }
    if out.is_empty() {
        return Err(miette!("there is no program to look at"));
    }
    Ok(out)
}

fn row(name: String, proof: &Proof) -> Row {
    let (verdict, reason) = match &proof.verdict {
        Verdict::Equivalent => ("equivalent", None),
        Verdict::Differs(found) => ("differs", Some(found.to_string())),
        Verdict::Unknown { reason } => ("unknown", Some(reason.clone())),
    };
    let milliseconds = proof.time.as_secs_f64() * 1e3;
    Row { name, verdict, reason, same: proof.same, asked: proof.asked, terms: proof.terms, milliseconds }
}

fn text(report: &Report) -> String {
    let mut out = String::new();
    let width = report.programs.iter().map(|r| r.name.len()).max().unwrap_or(0);
    for r in &report.programs {
        let _ = write!(out, "{:10}  {:width$}  {:8.1} ms", r.verdict, r.name, r.milliseconds);
        let _ = writeln!(out, "  {}", r.reason.as_deref().unwrap_or_default());
    }
    out
}
