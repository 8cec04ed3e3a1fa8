//! `millstream opt`: optimizes an object.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;

use miette::{IntoDiagnostic, WrapErr, miette};
use millstream_bpf::cost::CostModel as CycleTable;
use millstream_isa::generation::{KernelRange, VerifierGeneration, VersionError};
use millstream_lab::environment::mitigations;
use millstream_object::Object;
use millstream_opt::{
    CheckedObject, CostSummary, FunctionOutcome, FunctionReport, KernelFeatures, KernelMetrics,
    KernelVerdict, OptimizationGoal, OptimizationResult, OptimizeOptions, PassReport, ProgramCosts,
    ProgramReport, ProofReport, StepReport, ValidationResult,
};
use millstream_passes::registry;
use millstream_passes::rules::RuleSet;
use serde::Serialize;

use crate::exit::{self, Exit};
use crate::input;
use crate::privileges::RequiredPrivileges;
use crate::progress::Progress;
use crate::superopt::{self, CommonOptArgs, OptLevel};

type Result<T, E = miette::Report> = std::result::Result<T, E>;

/// Reads an object file, runs the passes over its programs and writes the same object with new instructions.
#[derive(clap::Args, Debug)]
pub(crate) struct OptArgs {
    /// The object file to read, a raw program (`X.insns`), or a built-in data plane (`builtin:NAME`)
    #[arg(required_unless_present = "list_passes")]
    input: Option<PathBuf>,
    /// Write the result to this file, as a raw program if the name ends so; by default, only report
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Load every program into the kernel before and after, drop rewrites that it rejects, report sizes and
    /// passes
    #[arg(long)]
    stats: bool,
    /// Run this pass instead of the default pipeline; repeat for several, in order
    #[arg(long = "pass", value_name = "NAME")]
    passes: Vec<String>,
    /// List the passes, and do nothing else
    #[arg(long)]
    list_passes: bool,
    /// Print the IR after each run of this pass (`all`: after every pass) to standard error
    #[arg(long, value_name = "PASS")]
    dump_after: Option<String>,
    /// Stop after this many rewrites
    #[arg(long, value_name = "N")]
    fuel: Option<u64>,
    /// Target kernels: all from the oldest that can load the object (`any`), those of one version (`5.10`,
    /// `6.1`, `6.12`, `6.18`, `7.2`; another version counts as the last of these before it), or this
    /// machine's, with maps as large as the object says (`here`)
    #[arg(long = "for", value_name = "KERNEL", default_value = "any")]
    kernels: TargetKernels,
    /// Instruction set version that may be used, 1 to 4; by default that of the object, with `--for here`
    /// that of the kernel
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=4))]
    isa: Option<u8>,
    /// Goal of the optimization: few slots (`size`), time (`latency`), or short code that costs no time
    /// (`balanced`)
    #[arg(long, value_name = "GOAL", default_value_t)]
    goal: OptimizationGoal,
    /// Predict cycles with this table, written by `millstream lab calibrate`; with `--for here` the built-in
    /// table for this kernel's mitigations is the default
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Apply the rules of this store in place of the built-in ones of its kind, terms or windows; each is
    /// proven first, or its proof found in the cache
    #[arg(long, value_name = "FILE")]
    rules: Vec<PathBuf>,
    /// Keep functions that became longer, too
    #[arg(long)]
    keep_longer: bool,
    /// Prove that each program behaves as before; if one does not, nothing is changed and the result is kept
    /// aside
    #[arg(long, value_enum, value_name = "SCOPE", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "whole")]
    prove: Option<ProofScope>,
    #[command(flatten)]
    common: CommonOptArgs,
}

impl OptArgs {
    /// Privileges that the command needs.
    pub(crate) fn needs(&self) -> RequiredPrivileges {
        self.common.needs(self.stats || self.kernels == TargetKernels::Here)
    }
}

/// Scope of the proof.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum ProofScope {
    /// Each program, before and after all passes
    Whole,
    /// The same, and each pass by itself
    Passes,
}

/// A team's rules.
type CustomRuleSet = Option<Arc<RuleSet>>;

/// Target kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TargetKernels {
    /// All kernels that can load the original.
    Any,
    /// The kernel of this machine.
    Here,
    /// The kernels of one generation.
    Version(VerifierGeneration),
}

impl FromStr for TargetKernels {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<TargetKernels, VersionError> {
        match text {
            "any" => Ok(TargetKernels::Any),
            "here" => Ok(TargetKernels::Here),
            version => Ok(TargetKernels::Version(version.parse()?)),
        }
    }
}

impl TargetKernels {
    /// This machine's kernel, if it is the target.
    pub(crate) fn host(self) -> Option<KernelFeatures> {
        (self == TargetKernels::Here).then(KernelFeatures::probe)
    }

    /// The kernels of a version, if one is the target.
    pub(crate) fn range(self) -> Option<KernelRange> {
        match self {
            TargetKernels::Version(generation) => Some(KernelRange::only(generation)),
            TargetKernels::Any | TargetKernels::Here => None,
        }
    }
}

#[derive(Serialize)]
struct OptReport<'a> {
    schema: u32,
    object: String,
    functions: &'a [FunctionReport],
    programs: &'a [ProgramReport],
    /// Predicted cost of each program; bytes of machine code are the kernel's in `programs`.
    costs: &'a [ProgramCosts],
    passes: &'a [PassReport],
    rewrites: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    proofs: Option<&'a [ProofReport]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<&'a [StepReport]>,
}

/// Runs the command.
pub(crate) fn run(args: &OptArgs) -> Result<ExitCode> {
    let Some(input) = args.input.as_ref().filter(|_| !args.list_passes) else {
        return list_passes(args.common.json);
    };
    let known = |name: &str| registry().any(|pass| pass.name() == name);
    let dumped = args.dump_after.iter().filter(|name| *name != "all");
    if let Some(name) = args.passes.iter().chain(dumped).find(|name| !known(name)) {
        let names: Vec<&str> = registry().map(|pass| pass.name()).collect();
        return Err(miette!(help = format!("there are: {}", names.join(", ")), "there is no pass `{name}`"));
    }
    match &args.costs {
        Some(path) => install(path)?,
        None if args.kernels == TargetKernels::Here => {
            CycleTable::install(CycleTable::of_mitigations(&mitigations()).clone());
        }
        None => {}
    }
    let object = args.common.section.read(input)?;
    let team = crate::rules::prove_rule_files(&args.rules, &args.common.solving)?;
    let rules: CustomRuleSet = team.terms.clone();
    if args.common.searching.level == OptLevel::Super {
        let (object, code) = superopt::run(&object, options(args, &rules), team.windows, &args.common)
            .map_err(|e| e.wrap_err(format!("in {}", input.display())))?;
        if let Some(path) = &args.output {
            input::write(path, &object)?;
        }
        return Ok(code);
    }
    let (mut optimized, programs, clean) =
        optimize(args, &rules, &object).map_err(|e| e.wrap_err(format!("in {}", input.display())))?;
    let proofs = if args.prove.is_some() { Some(validate(args, &rules, &object, &optimized)?) } else { None };
    let steps = match args.prove {
        Some(ProofScope::Passes) => Some(validate_passes(args, &rules, input, &object, &optimized)?),
        _ => None,
    };
    warn_left_alone(&object, &optimized.functions);
    let refuted = steps.iter().flatten().any(|s| matches!(s.verdict, ValidationResult::Refuted { .. }));
    let refuted =
        refuted || proofs.iter().flatten().any(|p| matches!(p.verdict, ValidationResult::Refuted { .. }));
    if refuted {
        let aside = aside(args.output.as_deref().unwrap_or(input));
        input::write(&aside, &optimized.object)?;
        errln!("refuted: this is a bug of ours; the result is in {}, the original is kept", aside.display());
        optimized.object = object.clone();
    }
    if let Some(path) = &args.output {
        input::write(path, &optimized.object)?;
    }
    let costs = millstream_opt::costs(&object, &optimized.object);
    let report = OptReport {
        schema: 1,
        object: object.name.clone(),
        functions: &optimized.functions,
        programs: &programs,
        costs: &costs,
        passes: &optimized.passes,
        rewrites: optimized.rewrites,
        proofs: proofs.as_deref(),
        steps: steps.as_deref(),
    };
    if args.common.json {
        outln!("{}", serde_json::to_string(&report).into_diagnostic()?);
    } else {
        out!("{}", text(&optimized, &programs, &costs, args.stats));
        if let Some(proofs) = &proofs {
            out!("\n{}", proof_table(proofs));
        }
        if let Some(steps) = &steps {
            out!("\n{}", step_table(steps));
        }
    }
    Ok(if clean && !refuted { ExitCode::SUCCESS } else { Exit::Negative.into() })
}

/// Warns about the parts of an object that are not understood, and therefore written as they were read.
pub(crate) fn warn_left_alone(object: &Object, functions: &[FunctionReport]) {
    for what in object.opaque_parts() {
        tracing::warn!("{what}");
    }
    let known = |n: usize| object.frozen.is_some() || object.functions[n].kept.is_some();
    for (_, function) in functions.iter().enumerate().filter(|(n, _)| !known(*n)) {
        if let FunctionOutcome::NotUnderstood(why) = &function.outcome {
            tracing::warn!("function {} is left as it is: {why}", function.name);
        }
    }
}

/// Installs a cost table from a file.
fn install(path: &Path) -> Result<()> {
    let named = || path.display().to_string();
    let text = crate::bounded_read::text(path).into_diagnostic().wrap_err_with(named)?;
    let table = CycleTable::parse(&text).into_diagnostic().wrap_err_with(named)?;
    CycleTable::install(table);
    Ok(())
}

/// Path for a refuted result: beside the output, in the same format.
fn aside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".refuted");
    if let Some(ending) = path.extension().filter(|e| *e == "insns") {
        name.push(".");
        name.push(ending);
    }
    path.with_file_name(name)
}

fn options(args: &OptArgs, rules: &CustomRuleSet) -> OptimizeOptions {
    OptimizeOptions {
        rules: rules.clone(),
        passes: args.passes.clone(),
        isa: args.isa.unwrap_or_default(),
        host: args.kernels.host(),
        kernels: args.kernels.range(),
        fuel: args.fuel,
        goal: args.goal,
        keep_longer: args.keep_longer,
        dump_after: args.dump_after.clone(),
        ..OptimizeOptions::default()
    }
}

fn validate(
    args: &OptArgs,
    rules: &CustomRuleSet,
    object: &Object,
    optimized: &OptimizationResult,
) -> Result<Vec<ProofReport>> {
    let solver = args.common.solving.solver()?;
    let without_dumps = OptimizeOptions { dump_after: None, ..options(args, rules) };
    let limits = args.common.solving.limits();
    millstream_opt::validate(object, optimized, &without_dumps, solver.as_ref(), &limits).into_diagnostic()
}

fn validate_passes(
    args: &OptArgs,
    rules: &CustomRuleSet,
    input: &Path,
    object: &Object,
    optimized: &OptimizationResult,
) -> Result<Vec<StepReport>> {
    let solver = args.common.solving.solver()?;
    let options = OptimizeOptions { dump_after: None, ..options(args, rules) };
    let limits = args.common.solving.limits();
    let aside = aside(args.output.as_deref().unwrap_or(input));
    let mut problem = None;
    let differs = |_: &Object, after: &Object| {
        errln!("refuted: what a pass made is in {}", aside.display());
        problem = input::write(&aside, after).err();
    };
    let steps =
        millstream_opt::validate_passes(object, optimized, &options, solver.as_ref(), &limits, differs)
            .into_diagnostic()?;
    problem.map_or(Ok(steps), |e| Err(e.into()))
}

/// The result, the kernel's answers, and `true` if no program fell back.
fn optimize(
    args: &OptArgs,
    rules: &CustomRuleSet,
    object: &Object,
) -> Result<(OptimizationResult, Vec<ProgramReport>, bool)> {
    let options = options(args, rules);
    if !args.stats {
        return Ok((millstream_opt::optimize(object, &options).into_diagnostic()?, Vec::new(), true));
    }
    let mut bar = Progress::counted("programs", object.programs.len());
    let checked = millstream_opt::check_each(object, options, || bar.step()).map_err(exit::ended)?;
    let clean = checked.is_clean();
    let CheckedObject { optimized, programs } = checked;
    Ok((optimized, programs, clean))
}

#[derive(Serialize)]
struct PassRow {
    name: &'static str,
    description: &'static str,
}

fn list_passes(json: bool) -> Result<ExitCode> {
    let mut passes: Vec<PassRow> =
        registry().map(|pass| PassRow { name: pass.name(), description: pass.describe() }).collect();
    passes.sort_unstable_by_key(|pass| pass.name);
    if json {
        let report = serde_json::json!({ "schema": 2, "passes": passes });
        outln!("{report}");
    } else {
        passes.iter().for_each(|pass| outln!("{:16} {}", pass.name, pass.description));
    }
    Ok(ExitCode::SUCCESS)
}

/// Lines of cells; all columns but the first and the last are aligned to the right.
#[derive(Default)]
struct TextTable(Vec<Vec<String>>);

impl TextTable {
    fn row(&mut self, cells: impl IntoIterator<Item = impl ToString>) {
        self.0.push(cells.into_iter().map(|cell| cell.to_string()).collect());
    }
}

impl std::fmt::Display for TextTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| self.0.iter().filter_map(|row| row.get(c)).map(|t| t.chars().count()).max();
        let widths: Vec<usize> = (0..columns).filter_map(width).collect();
        for row in &self.0 {
            let cell = |(c, text): (usize, &String)| match c {
                0 => format!("{text:w$}", w = widths[c]),
                _ if c + 1 == columns => text.clone(),
                _ => format!("{text:>w$}", w = widths[c]),
            };
            let line: Vec<String> = row.iter().enumerate().map(cell).collect();
            writeln!(f, "{}", line.join("  ").trim_end())?;
        }
        Ok(())
    }
}

fn text(
    optimized: &OptimizationResult,
    programs: &[ProgramReport],
    costs: &[ProgramCosts],
    stats: bool,
) -> String {
    if optimized.functions.is_empty() {
        return "there are no programs in it\n".into();
    }
    let mut functions = TextTable::default();
    functions.row(["function", "slots before", "after", "outcome"]);
    for f in &optimized.functions {
        functions.row([&f.name, &f.before.to_string(), &f.after.to_string(), &outcome(&f.outcome)]);
    }
    if !stats {
        return format!("{functions}\n{}", cost_table(costs));
    }
    let parts = [functions, program_table(programs), cost_table(costs), pass_table(&optimized.passes)];
    parts.map(|table| table.to_string()).join("\n")
}

fn program_table(programs: &[ProgramReport]) -> TextTable {
    let mut table = TextTable::default();
    table.row(["program", "slots", "jited bytes", "verified instructions", "kernel"]);
    for p in programs {
        let pair = |get: fn(&KernelMetrics) -> usize| {
            let text = |m: Option<KernelMetrics>| m.as_ref().map_or("-".to_string(), |m| get(m).to_string());
            format!("{} -> {}", text(p.before), text(p.after))
        };
        let (jited, verified) = (pair(|m| m.jited as usize), pair(|m| m.verified as usize));
        table.row([&p.name, &pair(|m| m.slots), &jited, &verified, &verdict(&p.verdict)]);
    }
    table
}

fn cost_table(costs: &[ProgramCosts]) -> TextTable {
    let mut table = TextTable::default();
    table.row(["predicted", "slots", "jited bytes", "cycles", ""]);
    for p in costs {
        let pair = |get: fn(&CostSummary) -> String| format!("{} -> {}", get(&p.before), get(&p.after));
        let (slots, jited) = (pair(|c| c.slots.to_string()), pair(|c| c.jited.to_string()));
        let cycles = pair(|c| format!("{}.{}", c.cycles / 1000, c.cycles % 1000 / 100));
        table.row([&p.name, &slots, &jited, &cycles, ""]);
    }
    table
}

fn pass_table(passes: &[PassReport]) -> TextTable {
    let mut table = TextTable::default();
    table.row(["pass", "runs", "rewrites", "ms", ""]);
    for p in passes {
        let ms = format!("{:.2}", p.micros as f64 / 1000.0);
        table.row([p.name, &p.runs.to_string(), &p.rewrites.to_string(), &ms, ""]);
    }
    table
}

fn step_table(steps: &[StepReport]) -> String {
    let mut table = TextTable::default();
    table.row(["pass", "steps", "proven", "unknown", "refuted", "ms", ""]);
    let mut passes: Vec<&str> = steps.iter().map(|s| s.pass).collect();
    passes.sort_unstable();
    passes.dedup();
    for pass in passes {
        let of = || steps.iter().filter(|s| s.pass == pass);
        let count = |is: fn(&ValidationResult) -> bool| of().filter(|s| is(&s.verdict)).count().to_string();
        let ms: f64 = of().map(|s| s.milliseconds).sum();
        let proven = count(|v| matches!(v, ValidationResult::Equivalent));
        let unknown = count(|v| matches!(v, ValidationResult::Unknown(_)));
        let refuted = count(|v| matches!(v, ValidationResult::Refuted { .. }));
        table.row([pass, &of().count().to_string(), &proven, &unknown, &refuted, &format!("{ms:.1}"), ""]);
    }
    let trusted = steps.iter().map(|s| s.trusted as u64).sum();
    let words = crate::prove::rests_on(trusted).map_or(String::new(), |words| format!("this {words}\n"));
    format!("{table}{words}")
}

fn proof_table(proofs: &[ProofReport]) -> String {
    let mut table = TextTable::default();
    table.row(["program", "ms", "proof"]);
    let mut unknown = 0;
    for p in proofs {
        let text = match &p.verdict {
            ValidationResult::Unchanged => "unchanged".into(),
            ValidationResult::Equivalent => match crate::prove::rests_on(p.trusted as u64) {
                Some(words) => format!("equivalent, {words}"),
                None => "equivalent".into(),
            },
            ValidationResult::Unknown(why) => {
                unknown += 1;
                format!("not known: {why}")
            }
            ValidationResult::Refuted { counterexample, blame } => {
                let pass = blame.as_ref().map_or("lowering".to_owned(), |(pass, n)| format!("{pass}#{n}"));
                format!("REFUTED, {pass} is to blame: {counterexample}")
            }
        };
        table.row([&p.name, &format!("{:.1}", p.milliseconds), &text]);
    }
    format!("{table}programs: {}, unknown: {unknown}\n", proofs.len())
}

fn outcome(outcome: &FunctionOutcome) -> String {
    match outcome {
        FunctionOutcome::Rewritten => "rewritten".into(),
        FunctionOutcome::NothingToDo => "nothing to do".into(),
        FunctionOutcome::NoGain { would_be } => format!("kept: would be {would_be} slots"),
        FunctionOutcome::Costlier => "kept: the verifier might take longer for another form".into(),
        FunctionOutcome::Slower => "kept: every other form would be slower by prediction".into(),
        FunctionOutcome::Marked => "kept: it says what a program that replaces it may do".into(),
        FunctionOutcome::Removed => "removed: nothing calls it".into(),
        FunctionOutcome::Unsupported(why) | FunctionOutcome::NotUnderstood(why) => format!("kept: {why}"),
        FunctionOutcome::Rejected => "kept: the kernel rejected the result".into(),
    }
}

fn verdict(verdict: &KernelVerdict) -> String {
    match verdict {
        KernelVerdict::Accepted => "accepted".into(),
        KernelVerdict::NotSupported(why) => format!("not supported here: {}", first_line(why)),
        KernelVerdict::NotLoadable(why) => format!("original not accepted: {}", first_line(why)),
        KernelVerdict::Bisected(blamed) => {
            let names: Vec<String> = blamed.iter().map(|(pass, n)| format!("{pass}#{n}")).collect();
            format!("accepted without {}", names.join(", "))
        }
        KernelVerdict::Remade(why) => format!("accepted, made otherwise: {}", first_line(why)),
        KernelVerdict::Original(why) => format!("original kept: {}", first_line(why)),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
