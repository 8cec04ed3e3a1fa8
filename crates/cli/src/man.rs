//! `millstream man`: manual pages, made from the definition of the command line.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;

use crate::exit::{CODES, Exit};
use crate::output::Output;

/// Flags of `millstream man`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write a page for the command and one for each subcommand into this folder, which is created if needed;
    /// by default, print the command's own page
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, miette::Report> {
    let mut command = crate::Cli::command().disable_help_subcommand(true);
    command.build();
    let Some(dir) = &args.dir else {
        page(command, &mut Output).map_err(|e| miette::miette!("standard output: {e}"))?;
        return Ok(Exit::Done.into());
    };
    std::fs::create_dir_all(dir).map_err(|e| miette::miette!("{}: {e}", dir.display()))?;
    for command in with_subcommands(&command) {
        let path = dir.join(format!("{}.1", name(&command)));
        File::create(&path)
            .and_then(|mut file| page(command, &mut file))
            .map_err(|e| miette::miette!("{}: {e}", path.display()))?;
    }
    Ok(Exit::Done.into())
}

/// The command and all below it.
fn with_subcommands(command: &Command) -> Vec<Command> {
    let mut all = vec![command.clone()];
    for sub in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        all.extend(with_subcommands(sub));
    }
    all
}

/// The name of its page: that of the command and of those above it, joined.
fn name(command: &Command) -> String {
    command.get_display_name().unwrap_or(command.get_name()).to_owned()
}

fn page(command: Command, out: &mut dyn Write) -> io::Result<()> {
    let others = others(&command);
    let subcommands = command.has_subcommands();
    // The end of the help is in sections of its own.
    let command = command.after_help(None::<&str>).version(env!("CARGO_PKG_VERSION"));
    let man =
        Man::new(command).source(concat!("Millstream ", env!("CARGO_PKG_VERSION"))).manual("Millstream");
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if subcommands {
        man.render_subcommands_section(out)?;
    }
    out.write_all(sections(&others).as_bytes())
}

/// The pages of the commands above and beside it.
fn others(command: &Command) -> Vec<String> {
    let name = name(command);
    let parent = name.rsplit_once('-').map(|(parent, _)| parent.to_owned());
    let doctor = (name != "millstream-doctor").then(|| "millstream-doctor".to_owned());
    let mut out: Vec<String> = parent.into_iter().chain(doctor).collect();
    out.dedup();
    out
}

/// Sections at the end of every page.
fn sections(others: &[String]) -> String {
    let mut out = String::from(".SH \"EXIT STATUS\"\n");
    for (exit, text) in CODES {
        let _ = writeln!(out, ".TP\n\\fB{}\\fR\n{text}", exit as u8);
    }
    out.push_str(
        ".SH ENVIRONMENT\n.TP\n\\fBMILLSTREAM_LOG\\fR, \\fBRUST_LOG\\fR\n\
         what is logged to standard error, by the first that is set: \\fIerror\\fR, \
         \\fIwarn\\fR (if none is set), \\fIinfo\\fR (if none is set, of the daemon), \
         \\fIdebug\\fR or \\fItrace\\fR, or these by module, as in \\fIinfo,millstream_loader=debug\\fR\n\
         .TP\n\\fBNO_COLOR\\fR\nif it is set, nothing is printed in colours\n",
    );
    let pages: Vec<String> =
        others.iter().map(|page| format!("\\fB{}\\fR(1)", page.replace('-', "\\-"))).collect();
    let _ = writeln!(out, ".SH \"SEE ALSO\"\n{}", pages.join(", "));
    out
}
