//! `millstream p4 build`.

use std::path::PathBuf;
use std::process::ExitCode;

use miette::{IntoDiagnostic, Result, WrapErr, miette};
use millstream_p4_kernel::{KernelHook, build_without, lower_options};
use millstream_p4_lower::lower_with;
use millstream_passes::{find, registry};

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
    /// Disable these passes, to measure their effect or to prove that they change nothing; `passes` for all
    /// but those that a kernel object needs (`millstream opt --list-passes`)
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    without: Vec<String>,
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
    let object = build_without(&lowered, &name, hook, &disabled(&args.without)?).into_diagnostic()?;
    std::fs::write(&args.output, &object.bytes)
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot write {}", args.output.display()))?;
    Ok(Exit::Done.into())
}

/// The names of passes that are disabled.
fn disabled(names: &[String]) -> Result<Vec<&'static str>> {
    let mut disabled = Vec::new();
    for name in names {
        match find(name) {
            Some(pass) => disabled.push(pass.name()),
            None if name == "passes" => disabled.extend(registry().map(|pass| pass.name())),
            None => {
                let help = "`millstream opt --list-passes` lists them; `passes` means all of them";
                return Err(miette!(help = help, "--without: there is no pass `{name}`"));
            }
        }
    }
    Ok(disabled)
}
