//! `millstream opt`: optimizes an object.

mod repair;
mod settings;
mod text;

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
    CheckedObject, FunctionOutcome, FunctionReport, InstructionSet, KernelFeatures, OptimizationGoal,
    OptimizationResult, OptimizeOptions, PassReport, ProgramCosts, ProgramReport, ProofReport, PruneReport,
    SettledVariable, StepReport, ValidationResult,
};
use millstream_passes::registry;
use millstream_passes::rules::RuleSet;
use serde::Serialize;
use settings::SettingArgs;
use text::{proof_table, step_table, text};

use crate::exit::{self, Exit};
use crate::input;
use crate::privileges::RequiredPrivileges;
use crate::progress::Progress;
use crate::superopt::{self, CommonOptArgs, OptLevel};

type Result<T, E = miette::Report> = std::result::Result<T, E>;

/// Flags about the kernels that the result is for.
#[derive(clap::Args, Debug)]
pub struct TargetArgs {
    /// Target kernels: all from the oldest that can load the object (`any`), those of one version (`5.10`,
    /// `6.1`, `6.12`, `6.18`, `7.2`; another version counts as the last of these before it), or this
    /// machine's, with maps as large as the object says (`here`)
    #[arg(long = "for", value_name = "KERNEL", default_value = "any")]
    kernels: TargetKernels,
    /// Instruction set version that may be used, `v1` to `v4`; `auto` tries all that the target kernels have
    /// and takes the one with fewest slots. By default that of the object, with `--for here` that of the
    /// kernel
    #[arg(long, visible_alias = "isa", value_name = "VERSION")]
    instruction_set: Option<InstructionSet>,
}

/// Reads an object file, runs the passes over its programs and writes the same object with new instructions.
#[derive(clap::Args, Debug)]
pub struct OptArgs {
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
    #[command(flatten)]
    target: TargetArgs,
    /// Goal of the optimization: few slots (`size`), time (`latency`), short code that costs no time
    /// (`balanced`), or few instructions for the verifier (`verify`): it tries forms in this kernel, or in a
    /// model of the verifier where the kernel cannot be asked
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
    /// Do not optimize: insert checks into programs that this kernel rejects, until it accepts them; a result
    /// is kept only if it is proven that no check ever fails
    #[arg(long, conflicts_with_all = ["passes", "fuel", "stats", "prove", "goal", "level"])]
    repair: bool,
    #[command(flatten)]
    loading: SettingArgs,
    #[command(flatten)]
    common: CommonOptArgs,
}

impl OptArgs {
    /// Privileges that the command needs.
    pub fn needs(&self) -> RequiredPrivileges {
        let asks = self.stats || self.repair || self.goal == OptimizationGoal::Verify;
        self.common.needs(asks || self.target.kernels == TargetKernels::Here)
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
    /// Constants that were set, in the order of the flags.
    #[serde(skip_serializing_if = "<[SettledVariable]>::is_empty")]
    settings: &'a [SettledVariable],
    /// Parts that were removed because nothing reaches them any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pruned: Option<&'a PruneReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proofs: Option<&'a [ProofReport]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<&'a [StepReport]>,
}

/// Runs the command.
pub fn run(mut args: OptArgs) -> Result<ExitCode> {
    let Some(input) = args.input.clone().filter(|_| !args.list_passes) else {
        return list_passes(args.common.json);
    };
    let input = input.as_path();
    let known = |name: &str| registry().any(|pass| pass.name() == name);
    let dumped = args.dump_after.iter().filter(|name| *name != "all");
    if let Some(name) = args.passes.iter().chain(dumped).find(|name| !known(name)) {
        let names: Vec<&str> = registry().map(|pass| pass.name()).collect();
        return Err(miette!(help = format!("there are: {}", names.join(", ")), "there is no pass `{name}`"));
    }
    match &args.costs {
        Some(path) => install(path)?,
        None if args.target.kernels == TargetKernels::Here => {
            CycleTable::install(CycleTable::of_mitigations(&mitigations()).clone());
        }
        None => {}
    }
    let mut object = args.common.section.read(input)?;
    let settled =
        args.loading.apply(&mut object).map_err(|e| e.wrap_err(format!("in {}", input.display())))?;
    if args.repair {
        return repair::run(&args.common, &object, args.output.as_deref());
    }
    let team = crate::rules::prove_rule_files(&args.rules, &args.common.solving)?;
    let rules: CustomRuleSet = team.terms.clone();
    if args.target.instruction_set == Some(InstructionSet::Auto) {
        let smallest = millstream_opt::smallest_instruction_set(&object, &options(&args, &rules));
        args.target.instruction_set = Some(InstructionSet::Version(smallest.into_diagnostic()?));
    }
    let args = &args;
    if args.common.searching.level == OptLevel::Super {
        let (made, code) = superopt::run(&object, options(args, &rules), team.windows, &args.common)
            .map_err(|e| e.wrap_err(format!("in {}", input.display())))?;
        let (object, _) = args.loading.prune(&object, made)?;
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
    let costs = millstream_opt::costs(&object, &optimized.object);
    let (written, pruned) = args.loading.prune(&object, optimized.object.clone())?;
    if let Some(path) = &args.output {
        input::write(path, &written)?;
    }
    let report = OptReport {
        schema: 1,
        object: object.name.clone(),
        functions: &optimized.functions,
        programs: &programs,
        costs: &costs,
        passes: &optimized.passes,
        rewrites: optimized.rewrites,
        settings: &settled,
        pruned: pruned.as_ref(),
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
pub(crate) fn install(path: &Path) -> Result<()> {
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
        isa: args.target.instruction_set.map_or(0, InstructionSet::version),
        host: args.target.kernels.host(),
        kernels: args.target.kernels.range(),
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
    if !args.stats && args.goal == OptimizationGoal::Verify {
        match millstream_opt::check(object, options.clone()) {
            Ok(CheckedObject { optimized, .. }) => return Ok((optimized, Vec::new(), true)),
            Err(e) => tracing::warn!("the kernel cannot be asked, a model of its verifier is: {e}"),
        }
    }
    if !args.stats {
        return Ok((millstream_opt::optimize(object, &options).into_diagnostic()?, Vec::new(), true));
    }
    let judgements = if options.goal == OptimizationGoal::Verify { 2 } else { 1 };
    let mut bar = Progress::counted("programs", judgements * object.programs.len());
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
