//! `millstream completions`: completion scripts, made from the definition of the command line.

use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::exit::Exit;

/// Flags of `millstream completions`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell to complete for
    shell: Shell,
}

/// Runs the command.
pub(crate) fn run(args: &CompletionsArgs) -> Result<ExitCode, miette::Report> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "millstream", &mut script);
    out!("{}", String::from_utf8_lossy(&script));
    Ok(Exit::Done.into())
}
