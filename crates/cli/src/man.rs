//! `millstream man`: manual pages, made from the definition of the command line.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_mangen::Man;

use crate::exit::Exit;

/// Flags of `millstream man`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write a page for the command and one for each subcommand into this folder; without it, the command's own page
    /// goes to standard output
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, miette::Report> {
    let mut command = crate::Cli::command();
    command.build();
    let Some(dir) = &args.dir else {
        page(command, &mut io::stdout()).map_err(|e| miette::miette!("standard output: {e}"))?;
        return Ok(Exit::Done.into());
    };
    let subcommands = command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help");
    let pages: Vec<_> = subcommands.map(|c| (format!("millstream-{}", c.get_name()), c.clone())).collect();
    for (name, sub) in [("millstream".to_owned(), command)].into_iter().chain(pages) {
        let path = dir.join(format!("{name}.1"));
        File::create(&path)
            .and_then(|mut file| page(sub.display_name(name), &mut file))
            .map_err(|e| miette::miette!("{}: {e}", path.display()))?;
    }
    Ok(Exit::Done.into())
}

fn page(command: clap::Command, out: &mut dyn Write) -> io::Result<()> {
    Man::new(command).render(out)
}
