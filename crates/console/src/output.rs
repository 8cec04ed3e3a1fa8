//! The only way to standard output and standard error.
//!
//! Invariant: nothing here panics, and no other module of any command writes to these streams (`clippy.toml`
//! forbids it). The macros of the standard library panic if a stream is closed or its disk is full. Here the
//! first failure of standard output is recorded, later output is discarded, and [`finish`] turns the failure
//! into the exit code. A closed pipe (`| head`) is no failure: the command goes on, with the same exit code.
//! Failures of standard error are ignored.

#![allow(clippy::disallowed_methods)] // This module is the one that may.

use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::escape::escape;
use crate::exit::Exit;

/// Writes formatted text to standard output.
#[macro_export]
macro_rules! out {
    ($($argument:tt)*) => { $crate::output::write_out(format_args!($($argument)*)) };
}

/// Writes formatted text and the end of the line to standard output.
#[macro_export]
macro_rules! outln {
    ($($argument:tt)*) => { $crate::output::write_out(format_args!("{}\n", format_args!($($argument)*))) };
}

/// Writes formatted text and the end of the line to standard error.
#[macro_export]
macro_rules! errln {
    ($($argument:tt)*) => { $crate::output::write_error(format_args!("{}\n", format_args!($($argument)*))) };
}

/// First failure of standard output.
static FAILURE: Mutex<Option<io::Error>> = Mutex::new(None);

fn failure() -> MutexGuard<'static, Option<io::Error>> {
    FAILURE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Standard output as a writer whose calls never fail: see [`finish`].
#[derive(Clone, Copy, Debug)]
pub struct StdoutWriter;

/// Standard error as a writer whose calls never fail.
#[derive(Clone, Copy, Debug)]
pub struct StderrWriter;

impl Write for StdoutWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut failure = failure();
        if failure.is_none() {
            *failure = io::stdout().write_all(bytes).err();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut failure = failure();
        if failure.is_none() {
            *failure = io::stdout().flush().err();
        }
        Ok(())
    }
}

impl Write for StderrWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = io::stderr().flush();
        Ok(())
    }
}

/// Writes to standard output, with control characters escaped; for the macros.
pub fn write_out(text: fmt::Arguments<'_>) {
    let mut written = String::new();
    // A value whose formatting fails has written what it could.
    let _ = fmt::write(&mut written, text);
    let _ = StdoutWriter.write_all(escape(&written, is_coloured()).as_bytes());
}

/// Writes to standard error, with control characters escaped, in one write, so that lines of several threads
/// and processes stay whole; for the macros.
pub fn write_error(text: fmt::Arguments<'_>) {
    let mut line = String::new();
    // A value whose formatting fails has written what it could.
    let _ = fmt::write(&mut line, text);
    let _ = StderrWriter.write_all(escape(&line, are_errors_coloured()).as_bytes());
}

/// Flushes standard output.
pub fn flush() {
    let _ = StdoutWriter.flush();
}

/// Returns true if standard output is a terminal that shows colours.
pub fn is_coloured() -> bool {
    is_terminal() && colours_wanted()
}

/// Returns true if standard output is a terminal.
pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Returns true if standard error is a terminal.
pub fn is_error_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Returns true if standard error is a terminal that shows colours.
pub fn are_errors_coloured() -> bool {
    is_error_terminal() && colours_wanted()
}

/// See <https://no-color.org>.
fn colours_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// Flushes the output, and returns the exit code of a command that ends with `code`, or that of a failed
/// write.
pub fn finish(code: ExitCode) -> ExitCode {
    flush();
    match &*failure() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            errln!("cannot write to standard output: {error}");
            let answers = [Exit::Done, Exit::Negative, Exit::Unknown];
            if answers.iter().any(|&exit| code == exit.into()) { Exit::Input.into() } else { code }
        }
        _ => code,
    }
}
