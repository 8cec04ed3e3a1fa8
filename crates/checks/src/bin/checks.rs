//! The `checks` executable: prints the figures of this repository, and lowers their limits.

use std::io::{self, Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use millstream_checks::{CheckError, FigureLimits, SourceRepository, json, list, measure, table};

/// Exit code for a figure above its limit.
const ABOVE: u8 = 1;
/// Exit code for input that cannot be read, or output that cannot be written.
const UNUSABLE: u8 = 2;

/// Measures this repository's source and pages. Exits with 1 if a figure is above its limit
#[derive(Parser)]
#[command(name = "checks")]
struct CheckArguments {
    /// Print all figures with all places as JSON
    #[arg(long, conflicts_with = "list")]
    json: bool,
    /// Print the places behind one figure
    #[arg(long, value_name = "FIGURE")]
    list: Option<String>,
    /// Lower the limits to today's figures; none is raised
    #[arg(long)]
    bless: bool,
    /// Root of the repository
    #[arg(long, value_name = "FOLDER", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))]
    root: PathBuf,
}

fn main() -> ExitCode {
    let arguments = CheckArguments::parse();
    match run(&arguments) {
        Ok((text, is_above)) => match print(&text) {
            Ok(()) if is_above => ExitCode::from(ABOVE),
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::from(UNUSABLE),
        },
        Err(error) => clap::Error::raw(clap::error::ErrorKind::Io, format!("{error}\n")).exit(),
    }
}

/// Returns the text to print, and whether a figure is above its limit.
fn run(arguments: &CheckArguments) -> Result<(String, bool), CheckError> {
    let root: &Path = &arguments.root;
    let figures = measure(&SourceRepository::read(root)?);
    let mut limits = FigureLimits::read(root)?;
    if arguments.bless {
        limits.bless(&figures);
        limits.write(root)?;
    }
    let text = match &arguments.list {
        Some(name) => list(&figures, name)?,
        None if arguments.json => json(&figures, &limits),
        None => table(&figures, &limits)?,
    };
    let mut is_above = false;
    for figure in &figures {
        is_above |= !limits.excesses(figure)?.is_empty();
    }
    Ok((text, is_above))
}

/// Writes to standard output. A reader that has gone is no error.
#[expect(
    clippy::disallowed_methods,
    reason = "its errors are handled here, and this tool depends on no other crate"
)]
fn print(text: &str) -> io::Result<()> {
    let mut output = stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}
