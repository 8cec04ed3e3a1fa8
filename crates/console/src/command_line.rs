//! Parsing of command lines, and the report of errors that end them.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use crate::exit::{self, Exit};
use crate::{diagnostics, output, renamed};

/// Parses a command line. Prints the error, or the requested help, and returns the exit code.
///
/// # Errors
/// If there is an error or a request for help.
pub fn parse<P: Parser>(arguments: impl IntoIterator<Item = OsString>) -> Result<P, ExitCode> {
    P::try_parse_from(renamed::with_new_names(arguments)).map_err(|error| {
        let text = error.render();
        match (error.use_stderr(), output::is_coloured(), output::are_errors_coloured()) {
            (false, true, _) => out!("{}", text.ansi()),
            (false, false, _) => out!("{text}"),
            (true, _, true) => output::write_error(format_args!("{}", text.ansi())),
            (true, _, false) => output::write_error(format_args!("{text}")),
        }
        if error.use_stderr() { Exit::Input.into() } else { Exit::Done.into() }
    })
}

/// Prints the report of an error that ends a command, and returns its exit code.
pub fn report_error(report: &miette::Report) -> ExitCode {
    match exit::ExitError::plain_message(report) {
        Some(message) => errln!("{message}"),
        None => diagnostics::emit(report),
    }
    exit::of(report).into()
}
