//! `millstream p4 build`.

use std::path::PathBuf;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_p4_kernel::{KernelHook, build_program, lower_options};
use millstream_p4_lower::lower_with;

use super::PreprocessorArgs;
use crate::exit::Exit;

/// Flags of `millstream p4 build`.
#[derive(Debug, clap::Args)]
pub(crate) struct P4BuildArgs {
    /// The program
    #[arg(value_name = "FILE")]
    program: PathBuf,
    #[command(flatten)]
    preprocessor: PreprocessorArgs,
    /// Object file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Hook of the kernel
    #[arg(long = "for", value_name = "HOOK", default_value = "xdp")]
    hook: HookChoice,
}

/// Hooks of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum HookChoice {
    /// XDP: frames as the driver received them
    Xdp,
    /// Traffic control and tcx: socket buffers
    Tc,
}

pub(super) fn run(args: &P4BuildArgs) -> Result<ExitCode> {
    let program = super::read_accepted(&args.program, &args.preprocessor.options())?;
    let lowered = lower_with(&program, lower_options())
        .map_err(|error| miette!("{}", error.render(&program.sources)))?;
    let hook = match args.hook {
        HookChoice::Xdp => KernelHook::Xdp,
        HookChoice::Tc => KernelHook::Tc,
    };
    let name = args.program.file_stem().unwrap_or_default().to_string_lossy();
    let object = build_program(&lowered, &name, hook).into_diagnostic()?;
    std::fs::write(&args.output, &object.bytes)
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot write {}", args.output.display()))?;
    Ok(Exit::Done.into())
}
