//! `millstream bundle pack`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_bundle::{Bundle, FormProver, FormVerdict, PartRole};
use millstream_isa::generation::{KernelRange, VerifierGeneration};
use millstream_object::Object;
use millstream_opt::{OptimizationGoal, OptimizeOptions, oldest_kernel, optimize};
use millstream_plan::Plan;
use millstream_specializer::saved_profile::SavedProfile;

use super::forms;
use crate::bounded_read;
use crate::input::SectionArgs;
use crate::prove::SolverArgs;

/// Flags of `millstream bundle pack`.
#[derive(Debug, clap::Args)]
pub(super) struct BundlePackArgs {
    /// The object file, a raw program (`X.insns`), or a built-in data plane (`builtin:NAME`)
    object: PathBuf,
    /// Write this OCI image layout: a tar file if the name ends in `.tar`, else a new folder
    #[arg(short, long, value_name = "FILE|FOLDER")]
    output: PathBuf,
    /// Kernels to optimize for, `5.10,6.1`; by default each generation that can load the object
    #[arg(long, value_name = "VERSION", value_delimiter = ',')]
    kernels: Vec<VerifierGeneration>,
    /// Goal of the optimization: `size`, `latency`, `balanced` or `verify`, as of `millstream opt`
    #[arg(long, value_name = "GOAL", default_value_t)]
    goal: OptimizationGoal,
    /// Predict cycles with this table, written by `millstream lab calibrate`, and pack it
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Apply the rules of this store in place of the built-in ones, and pack it; each is proven first
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Pack this plan of `millstream tune`, for `native --plan`
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Pack this profile of lookups of `millstream run --profile`, for the first variant on other machines
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    #[command(flatten)]
    solving: SolverArgs,
    #[command(flatten)]
    section: SectionArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &BundlePackArgs) -> Result<ExitCode> {
    if let Some(costs) = &args.costs {
        crate::opt::install(costs)?;
    }
    let (name, object, bytes) = original(args)?;
    let mut parts = vec![(PartRole::Original, name.clone(), bytes)];
    let solver = args.solving.solver()?;
    let team = crate::rules::prove_rule_files(args.rules.as_slice(), &args.solving)?;
    let mut prover = FormProver::new(&name, &object, solver.as_ref(), args.solving.limits());
    let mut reports = Vec::new();
    for generation in generations(args, &object)? {
        let kernel = generation.to_string();
        let options = OptimizeOptions {
            rules: team.terms.clone(),
            kernels: Some(KernelRange::only(generation)),
            goal: args.goal,
            ..OptimizeOptions::default()
        };
        let form = optimize(&object, &options).into_diagnostic()?.object.write().into_diagnostic()?;
        let report = prover.prove(&kernel, &form);
        if report.verdict == FormVerdict::Proven {
            let proof = serde_json::to_vec(&report).into_diagnostic()?;
            parts.push((PartRole::Optimized { kernel: kernel.clone() }, name.clone(), form));
            parts.push((PartRole::Proof { kernel: kernel.clone() }, format!("{name}.proof.json"), proof));
        }
        reports.push(report);
    }
    parts.extend(attachments(args)?);
    let software = concat!("millstream ", env!("CARGO_PKG_VERSION"));
    let mut bundle = Bundle::new(software, parts).into_diagnostic()?;
    if let Some(key) = args.solving.store_key() {
        bundle = bundle.signed(key);
    }
    bundle.write(&args.output).into_diagnostic().wrap_err("cannot write the bundle")?;
    if args.json {
        let report = serde_json::json!({
            "schema": 1, "bundle": args.output.display().to_string(),
            "signed": bundle.signature().is_some(), "forms": reports,
        });
        outln!("{report:#}");
    } else {
        reports.iter().for_each(|report| out!("{}", forms::text(report)));
        let left_out = reports.iter().filter(|report| report.verdict != FormVerdict::Proven).count();
        let signed = if bundle.signature().is_some() { "signed" } else { "not signed" };
        outln!(
            "{}: {} parts, {signed}; {left_out} forms left out",
            args.output.display(),
            bundle.parts().len()
        );
    }
    Ok(forms::exit(&reports, solver.is_some()).into())
}

/// The object with its file name and its bytes: those of the file, if it is an ELF object.
fn original(args: &BundlePackArgs) -> Result<(String, Object, Vec<u8>)> {
    let (path, name) = (args.object.as_path(), file_name(&args.object));
    let named = || format!("in {}", path.display());
    if path.to_string_lossy().starts_with("builtin:") || name.ends_with(".insns") {
        let object = args.section.read(path)?;
        let bytes = object.write().into_diagnostic().wrap_err_with(named)?;
        return Ok((format!("{}.o", object.name), object, bytes));
    }
    let bytes = bounded_read::bytes(path).into_diagnostic().wrap_err_with(named)?;
    let object = Object::parse(&name, &bytes).into_diagnostic().wrap_err_with(named)?;
    Ok((name, object, bytes))
}

/// The generations to optimize for, each once, in their order.
fn generations(args: &BundlePackArgs, object: &Object) -> Result<Vec<VerifierGeneration>> {
    let oldest = oldest_kernel(object);
    if let Some(old) = args.kernels.iter().find(|kernel| **kernel < oldest) {
        return Err(miette!("--kernels: {old} cannot load the object, which needs {oldest}"));
    }
    let wanted = |generation: &VerifierGeneration| {
        *generation >= oldest && (args.kernels.is_empty() || args.kernels.contains(generation))
    };
    Ok(VerifierGeneration::ALL.into_iter().filter(wanted).collect())
}

/// The files that are packed as they are.
fn attachments(args: &BundlePackArgs) -> Result<Vec<(PartRole, String, Vec<u8>)>> {
    let files = [
        (PartRole::Rules, &args.rules),
        (PartRole::Costs, &args.costs),
        (PartRole::Plan, &args.plan),
        (PartRole::Profile, &args.profile),
    ];
    let mut parts = Vec::new();
    for (role, file) in files {
        let Some(file) = file else { continue };
        let named = || format!("in {}", file.display());
        let text = bounded_read::text(file).into_diagnostic().wrap_err_with(named)?;
        match role {
            PartRole::Plan => drop(text.parse::<Plan>().into_diagnostic().wrap_err_with(named)?),
            PartRole::Profile => drop(SavedProfile::parse(&text).into_diagnostic().wrap_err_with(named)?),
            _ => {}
        }
        parts.push((role, file_name(file), text.into_bytes()));
    }
    Ok(parts)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
