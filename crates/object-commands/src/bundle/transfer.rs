//! `millstream bundle push` and `pull`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr};
use millstream_bundle::{RegistryAccess, RegistryReference};
use millstream_console::credentials_file;

use crate::exit::Exit;

/// Flags of `millstream bundle push`.
#[derive(Debug, clap::Args)]
pub(super) struct BundlePushArgs {
    /// The bundle: a folder or a tar file
    bundle: PathBuf,
    /// Its place, `REGISTRY/NAME:TAG`
    #[arg(value_name = "REFERENCE")]
    to: RegistryReference,
    #[command(flatten)]
    access: AccessArgs,
}

/// Flags of `millstream bundle pull`.
#[derive(Debug, clap::Args)]
pub(super) struct BundlePullArgs {
    /// The place of the bundle, `REGISTRY/NAME:TAG` or `REGISTRY/NAME@sha256:DIGITS`
    #[arg(value_name = "REFERENCE")]
    from: RegistryReference,
    /// Write it here: a tar file if the name ends in `.tar`, else a new folder
    #[arg(short, long, value_name = "FILE|FOLDER")]
    output: PathBuf,
    #[command(flatten)]
    access: AccessArgs,
}

/// Flags about the access to a registry.
#[derive(Debug, clap::Args)]
struct AccessArgs {
    /// Use HTTP without TLS
    #[arg(long)]
    plain_http: bool,
    /// Log in with `USER:PASSWORD` from this file, which only its owner may read
    #[arg(long, value_name = "FILE", env = "MILLSTREAM_REGISTRY_CREDENTIALS")]
    credentials: Option<PathBuf>,
    /// Seconds for all requests together
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = crate::duration_args::seconds())]
    time: u64,
}

impl AccessArgs {
    fn access(&self) -> Result<RegistryAccess> {
        let credentials = self.credentials.as_deref().map(credentials_file::read).transpose()?;
        Ok(RegistryAccess { time: Duration::from_secs(self.time), plain_http: self.plain_http, credentials })
    }
}

pub(super) fn push(args: &BundlePushArgs) -> Result<ExitCode> {
    let bundle = super::read(&args.bundle)?;
    let digest = args.access.access()?.push(&bundle, &args.to).into_diagnostic()?;
    outln!("{digest}");
    Ok(Exit::Done.into())
}

pub(super) fn pull(args: &BundlePullArgs) -> Result<ExitCode> {
    let bundle = args.access.access()?.pull(&args.from).into_diagnostic()?;
    bundle.write(&args.output).into_diagnostic().wrap_err("cannot write the bundle")?;
    Ok(Exit::Done.into())
}
