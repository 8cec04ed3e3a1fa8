//! `millstream explain`: differences between two forms of a program, side by side, with their causes.

mod align;
mod diff;
mod html;
#[cfg(test)]
mod tests;
mod text;
mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_bpf::cost::OptimizationGoal;
use millstream_object::{FuncId, Object};
use millstream_opt::{
    EquivalenceEvidence, InsnOrigin, OptimizeOptions, SuperReport, TracedObject, mark, trace, unmark,
};
use millstream_prove::{ProofVerdict, prove};
use serde::Serialize;

use crate::evidence_text;
use crate::exit::Exit;
use crate::input;
use crate::opt::TargetKernels;
use crate::privileges::RequiredPrivileges;
use crate::superopt::{self, CommonOptArgs, OptLevel};

/// Flags of `millstream explain`.
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// Object file, or raw program (`X.insns`)
    a: PathBuf,
    /// Its other form; by default, the result of `millstream opt`, with the passes behind each change
    b: Option<PathBuf>,
    /// Show this function only; may be repeated
    #[arg(long, value_name = "NAME")]
    prog: Vec<String>,
    /// Goal of the optimization: see `millstream opt`
    #[arg(long, value_name = "GOAL", default_value_t)]
    goal: OptimizationGoal,
    /// Kernels to optimize for: see `millstream opt`
    #[arg(long = "for", value_name = "KERNEL", default_value = "any")]
    kernels: TargetKernels,
    /// Show all instructions, even unchanged ones
    #[arg(long)]
    all: bool,
    /// Write the report as a self-contained HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    common: CommonOptArgs,
}

impl ExplainArgs {
    /// Privileges that the command needs.
    pub fn needs(&self) -> RequiredPrivileges {
        self.common.needs(self.kernels == TargetKernels::Here)
    }
}

/// Result of the prover for a program.
#[derive(Clone, Debug, Serialize)]
struct ProgramProof {
    program: String,
    verdict: &'static str,
    /// Reason why it is not known, or the difference.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Observables with equal terms, and questions that a solver answered.
    same: usize,
    queries: usize,
}

#[derive(Debug, Serialize)]
struct ExplainReport {
    schema: u32,
    a: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    b: Option<String>,
    /// True if causes are known; false where the line information that tracks them would change the
    /// compiler's output.
    causes_known: bool,
    proofs: Vec<ProgramProof>,
    functions: Vec<diff::FunctionDiff>,
    /// Functions that only the first form has: inlined, or not called any more.
    removed: Vec<String>,
    /// Windows that the search replaced, but that are not in the result: later rewrites replaced them again.
    windows: Vec<windows::ReplacedWindow>,
}

/// Runs the command.
pub fn run(args: &ExplainArgs) -> Result<ExitCode> {
    let a = args.common.section.read(&args.a)?;
    let made = match &args.b {
        Some(path) => {
            let mut b = args.common.section.read(path)?;
            input::match_program_names(&a, &mut b);
            OptimizedObject { object: b, origins: None, touched: BTreeMap::new(), searched: None }
        }
        None => make(args, &a)?,
    };
    let report = report(args, &a, made)?;
    if let Some(path) = &args.html {
        std::fs::write(path, html::page(&report))
            .into_diagnostic()
            .wrap_err_with(|| format!("cannot write {}", path.display()))?;
    }
    let out = if args.common.json {
        serde_json::to_string_pretty(&report).into_diagnostic()? + "\n"
    } else if args.html.is_some() {
        text::summary(&report)
    } else {
        let colour = crate::output::is_coloured();
        text::text(&report, &text::DiffStyle { colour, all: args.all, ..text::DiffStyle::default() })
    };
    out!("{out}");
    let refuted = report.proofs.iter().any(|p| matches!(p.verdict, "differs" | "refuted"));
    Ok(if refuted { Exit::Negative.into() } else { ExitCode::SUCCESS })
}

/// The second form, and its provenance.
struct OptimizedObject {
    object: Object,
    /// Origin of each slot, and the passes that touched each instruction.
    origins: Option<Vec<Vec<Option<InsnOrigin>>>>,
    touched: BTreeMap<InsnOrigin, BTreeSet<&'static str>>,
    /// Reports of the search, if there was one.
    searched: Option<Vec<SuperReport>>,
}

/// Optimizes as `millstream opt` does with the same flags.
fn make(args: &ExplainArgs, a: &Object) -> Result<OptimizedObject> {
    let (host, kernels) = (args.kernels.host(), args.kernels.range());
    let options = OptimizeOptions { goal: args.goal, host, kernels, ..OptimizeOptions::default() };
    let traced = trace(a, &options).into_diagnostic()?;
    if args.common.searching.level == OptLevel::Two {
        let TracedObject { optimized, origins, touched } = traced;
        return Ok(OptimizedObject { object: optimized.object, origins, touched, searched: None });
    }
    let done = superopt::superoptimize(&mark(a), options, None, &args.common, 0)?;
    let mut object = done.object;
    let origins = Some(unmark(a, &mut object));
    Ok(OptimizedObject { object, origins, touched: traced.touched, searched: Some(done.programs) })
}

fn report(args: &ExplainArgs, a: &Object, made: OptimizedObject) -> Result<ExplainReport> {
    let OptimizedObject { object: b, origins, touched, searched } = made;
    let (mut functions, mut removed) = (Vec::new(), Vec::new());
    let wanted = |name: &String| args.prog.is_empty() || args.prog.contains(name);
    for (n, f) in a.functions.iter().enumerate().filter(|(_, f)| wanted(&f.name)) {
        let Some(at) = counterpart(a, n, &b, args.b.is_none()) else {
            removed.push(f.name.clone());
            continue;
        };
        let known =
            origins.as_ref().map(|origins| diff::CodeProvenance { origins: &origins[at], touched: &touched });
        let both = diff::compare((a, n as u32), (&b, &b.functions[at]), known.as_ref());
        functions.push(both.into_diagnostic().wrap_err_with(|| format!("in function {}", f.name))?);
    }
    if functions.is_empty() && removed.is_empty() {
        let names: Vec<&str> = a.functions.iter().map(|f| f.name.as_str()).collect();
        return Err(miette!(help = format!("there are: {}", names.join(", ")), "there is no such function"));
    }
    let chosen = |p: &&SuperReport| wanted(&p.name);
    let proofs = match &searched {
        Some(programs) => programs.iter().filter(chosen).map(ProgramProof::of_search).collect(),
        None => proofs(args, a, &b)?,
    };
    let found = searched.iter().flatten().filter(chosen).flat_map(|p| &p.found);
    let windows = windows::place(found, &mut functions);
    Ok(ExplainReport {
        schema: 2,
        a: args.a.display().to_string(),
        b: args.b.as_ref().map(|b| b.display().to_string()),
        causes_known: origins.is_some(),
        proofs,
        functions,
        removed,
        windows,
    })
}

impl ProgramProof {
    /// Proof of a program that was searched.
    fn of_search(p: &SuperReport) -> ProgramProof {
        let (verdict, reason) = match &p.proof {
            EquivalenceEvidence::Unchanged => ("unchanged", None),
            EquivalenceEvidence::Whole => ("equivalent", None),
            EquivalenceEvidence::Refuted(_) => ("refuted", Some(evidence_text::certainty(&p.proof))),
            other => ("composed", Some(evidence_text::certainty(other))),
        };
        ProgramProof { program: p.name.clone(), verdict, reason, same: 0, queries: p.search.asked as usize }
    }
}

/// The second object's counterpart of a function: by number if the second was made from the first, else by
/// name.
fn counterpart(a: &Object, n: usize, b: &Object, same_numbers: bool) -> Option<usize> {
    let present = |at: &usize| b.functions.get(*at).is_some_and(|f| !f.removed && !f.insns.is_empty());
    let named = || b.functions.iter().position(|g| g.name == a.functions[n].name);
    if same_numbers { Some(n) } else { named() }.filter(present)
}

fn proofs(args: &ExplainArgs, a: &Object, b: &Object) -> Result<Vec<ProgramProof>> {
    let solver = args.common.solving.solver()?;
    let limits = args.common.solving.limits();
    let mut proofs = Vec::new();
    for p in a.programs.iter().filter(|p| args.prog.is_empty() || args.prog.contains(&p.name)) {
        let Some(q) = b.programs.iter().find(|q| q.name == p.name) else { continue };
        let code = |o: &Object, f: FuncId| o.link(f).ok().map(|l| l.insns);
        let same = code(a, p.func) == code(b, q.func);
        let mut proof =
            ProgramProof { program: p.name.clone(), verdict: "unchanged", reason: None, same: 0, queries: 0 };
        if !same {
            let found = prove((a, p.func), (b, q.func), solver.as_ref(), &limits);
            (proof.same, proof.queries) = (found.same, found.asked);
            let trusted = crate::prove::rests_on(found.answers.trusted as u64);
            (proof.verdict, proof.reason) = match found.verdict {
                ProofVerdict::Equivalent => ("equivalent", trusted),
                ProofVerdict::Differs(c) => ("differs", Some(c.to_string())),
                ProofVerdict::Unknown { reason } => ("unknown", Some(reason)),
            };
        }
        proofs.push(proof);
    }
    Ok(proofs)
}
