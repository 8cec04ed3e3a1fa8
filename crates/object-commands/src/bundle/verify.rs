//! `millstream bundle verify`.

use std::path::PathBuf;
use std::process::ExitCode;

use miette::{IntoDiagnostic, WrapErr, miette};
use millstream_bundle::{Bundle, FormProver, FormReport, PartRole, SignatureState};
use millstream_object::Object;
use serde::Serialize;

use super::forms;
use crate::exit::Exit;
use crate::prove::SolverArgs;

/// Flags of `millstream bundle verify`.
#[derive(Debug, clap::Args)]
pub(super) struct BundleVerifyArgs {
    /// The bundle: a folder or a tar file
    bundle: PathBuf,
    #[command(flatten)]
    solving: SolverArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct BundleVerdict {
    schema: u32,
    bundle: String,
    signature: SignatureState,
    forms: Vec<FormReport>,
}

pub(super) fn run(args: &BundleVerifyArgs) -> Result<ExitCode, miette::Report> {
    let bundle = super::read(&args.bundle)?;
    let key = args.solving.store_key();
    let signature = SignatureState::of(&bundle, key);
    let trusted = args.solving.trusts_store() && signature == SignatureState::Valid;
    let solver = if trusted { None } else { args.solving.solver()? };
    let original = original(&bundle)?;
    let mut prover = FormProver::new(&original.0, &original.1, solver.as_ref(), args.solving.limits());
    let mut reports = Vec::new();
    for part in bundle.parts() {
        let PartRole::Optimized { kernel } = &part.role else { continue };
        let form = bundle.data(part);
        reports.push(if trusted { FormReport::trusted(kernel) } else { prover.prove(kernel, form) });
    }
    let missing = key.is_some() && signature != SignatureState::Valid;
    let exit = if missing { Exit::Negative } else { forms::exit(&reports, solver.is_some()) };
    let verdict =
        BundleVerdict { schema: 1, bundle: args.bundle.display().to_string(), signature, forms: reports };
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&verdict).into_diagnostic()?);
    } else {
        verdict.forms.iter().for_each(|form| out!("{}", forms::text(form)));
        outln!("signature: {}", signature.words());
    }
    Ok(exit.into())
}

/// Name and description of the original object.
fn original(bundle: &Bundle) -> Result<(String, Object), miette::Report> {
    let part = bundle.original().ok_or_else(|| miette!("the bundle has no original"))?;
    let object = Object::parse(&part.name, bundle.data(part)).into_diagnostic();
    Ok((part.name.clone(), object.wrap_err("in the original object of the bundle")?))
}
