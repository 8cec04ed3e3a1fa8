//! `millstream bundle show`.

use std::path::PathBuf;
use std::process::ExitCode;

use miette::IntoDiagnostic;
use millstream_bundle::BundlePart;
use serde::Serialize;

use crate::exit::Exit;

/// Flags of `millstream bundle show`.
#[derive(Debug, clap::Args)]
pub(super) struct BundleShowArgs {
    /// The bundle: a folder or a tar file
    bundle: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct BundleList<'a> {
    schema: u32,
    software: &'a str,
    signature: Option<&'a str>,
    parts: &'a [BundlePart],
}

pub(super) fn run(args: &BundleShowArgs) -> Result<ExitCode, miette::Report> {
    let bundle = super::read(&args.bundle)?;
    if args.json {
        let (software, signature) = (bundle.software(), bundle.signature());
        let list = BundleList { schema: 1, software, signature, parts: bundle.parts() };
        outln!("{}", serde_json::to_string_pretty(&list).into_diagnostic()?);
        return Ok(Exit::Done.into());
    }
    for part in bundle.parts() {
        let (role, kernel) = (part.role.name(), part.role.kernel().unwrap_or_default());
        outln!("{role:9}  {kernel:5}  {:9} B  {}  {}", part.size, part.digest, part.name);
    }
    let signed = if bundle.signature().is_some() { "signed, not checked here" } else { "not signed" };
    outln!("packed by {}; {signed}", bundle.software());
    Ok(Exit::Done.into())
}
