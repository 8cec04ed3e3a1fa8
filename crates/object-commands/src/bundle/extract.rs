//! `millstream bundle extract`.

use std::path::PathBuf;
use std::process::ExitCode;

use miette::{IntoDiagnostic, WrapErr, miette};
use millstream_bundle::{BundlePart, PartRole};

use crate::exit::Exit;

/// Flags of `millstream bundle extract`.
#[derive(Debug, clap::Args)]
pub(super) struct BundleExtractArgs {
    /// The bundle: a folder or a tar file
    bundle: PathBuf,
    /// Role of the part, as `millstream bundle show` prints it
    #[arg(value_enum)]
    role: RoleName,
    /// Kernel of the part: forms and proofs have one
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<String>,
    /// Write the part to this file
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Roles of parts, without the kernels of some.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum RoleName {
    Original,
    Optimized,
    Proof,
    Rules,
    Costs,
    Plan,
    Profile,
}

impl RoleName {
    fn is_of(self, role: &PartRole) -> bool {
        matches!(
            (self, role),
            (RoleName::Original, PartRole::Original)
                | (RoleName::Optimized, PartRole::Optimized { .. })
                | (RoleName::Proof, PartRole::Proof { .. })
                | (RoleName::Rules, PartRole::Rules)
                | (RoleName::Costs, PartRole::Costs)
                | (RoleName::Plan, PartRole::Plan)
                | (RoleName::Profile, PartRole::Profile)
        )
    }
}

pub(super) fn run(args: &BundleExtractArgs) -> Result<ExitCode, miette::Report> {
    let bundle = super::read(&args.bundle)?;
    let wanted = |part: &&BundlePart| {
        args.role.is_of(&part.role) && (args.kernel.is_none() || part.role.kernel() == args.kernel.as_deref())
    };
    let found: Vec<&BundlePart> = bundle.parts().iter().filter(wanted).collect();
    let part = match found.as_slice() {
        [part] => *part,
        [] => {
            errln!(
                "{} has no such part; `millstream bundle show` lists those that it has",
                args.bundle.display()
            );
            return Ok(Exit::Negative.into());
        }
        several => {
            let kernels: Vec<&str> = several.iter().filter_map(|part| part.role.kernel()).collect();
            let help = match kernels.as_slice() {
                [] => {
                    "`bundle extract` writes one part; those of a folder are its files by digest".to_owned()
                }
                kernels => format!("choose one by --kernel: {}", kernels.join(", ")),
            };
            return Err(miette!(
                help = help,
                "{} has {} of these parts",
                args.bundle.display(),
                several.len()
            ));
        }
    };
    let written = std::fs::write(&args.output, bundle.data(part));
    written.into_diagnostic().wrap_err_with(|| format!("cannot write {}", args.output.display()))?;
    Ok(Exit::Done.into())
}
