//! `millstream bundle` and `millstream preflight`: an object, its optimized forms and their proofs as one OCI
//! artifact.

mod extract;
mod forms;
mod pack;
pub mod preflight;
mod show;
mod transfer;
mod verify;

use std::path::Path;
use std::process::ExitCode;

use miette::{IntoDiagnostic, WrapErr};
use millstream_bundle::Bundle;

/// Flags of `millstream bundle`.
#[derive(Debug, clap::Args)]
pub struct BundleArgs {
    #[command(subcommand)]
    command: BundleCommand,
}

#[derive(Debug, clap::Subcommand)]
enum BundleCommand {
    /// Optimize an object for several kernels, prove the results, and pack all into an OCI image layout
    ///
    /// A form that is not proven is left out. The exit code then says so; the bundle is written without it.
    Pack(Box<pack::BundlePackArgs>),
    /// List the parts of a bundle; proves nothing
    Show(show::BundleShowArgs),
    /// Write one part of a bundle to a file; proves nothing
    Extract(extract::BundleExtractArgs),
    /// Check the signature of a bundle, and prove its optimized forms again
    Verify(verify::BundleVerifyArgs),
    /// Upload a bundle to a registry, and print the digest of its manifest
    Push(transfer::BundlePushArgs),
    /// Download a bundle from a registry; its digests are checked, nothing is proven
    Pull(transfer::BundlePullArgs),
}

/// Runs the command.
pub fn run(args: &BundleArgs) -> Result<ExitCode, miette::Report> {
    match &args.command {
        BundleCommand::Pack(args) => pack::run(args),
        BundleCommand::Show(args) => show::run(args),
        BundleCommand::Extract(args) => extract::run(args),
        BundleCommand::Verify(args) => verify::run(args),
        BundleCommand::Push(args) => transfer::push(args),
        BundleCommand::Pull(args) => transfer::pull(args),
    }
}

/// Reads a bundle.
fn read(path: &Path) -> Result<Bundle, miette::Report> {
    Bundle::read(path).into_diagnostic().wrap_err_with(|| format!("in {}", path.display()))
}
