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
    /// Write a page for the command and one for each subcommand, at any depth, into this folder; without it, the command's own page
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
    let mut pages = Vec::new();
    collect("millstream".to_owned(), &command, &mut pages);
    for (name, command) in pages {
        let path = dir.join(format!("{name}.1"));
        File::create(&path)
            .and_then(|mut file| page(command.display_name(name), &mut file))
            .map_err(|e| miette::miette!("{}: {e}", path.display()))?;
    }
    Ok(Exit::Done.into())
}

/// A command with all that is below it, each by its name with hyphens.
fn collect(name: String, command: &clap::Command, pages: &mut Vec<(String, clap::Command)>) {
    for sub in command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        collect(format!("{name}-{}", sub.get_name()), sub, pages);
    }
    pages.push((name, command.clone()));
}

fn page(command: clap::Command, out: &mut dyn Write) -> io::Result<()> {
    Man::new(command).render(out)
}
