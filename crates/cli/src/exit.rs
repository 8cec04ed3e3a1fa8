//! Exit codes, the same for every subcommand.

use std::process::ExitCode;

use millstream_opt::OptError;

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// Everything asked for was done and came out well.
    Done = 0,
    /// It was done, and the answer is no: a program rejected, a comparison lost, a check failed.
    Negative = 1,
    /// The input or the command line cannot be used.
    Input = 2,
    /// It was done, and there is no answer: a measurement too short or too disturbed to tell, a proof not found.
    Unknown = 3,
    /// This machine does not permit or support it (`millstream doctor` says what and why).
    NotPermitted = 4,
    /// The program of packets that was run has crashed.
    Crashed = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// What each code says, for the help and the manual pages.
pub(crate) const CODES: [(Exit, &str); 6] = [
    (Exit::Done, "done"),
    (Exit::Negative, "done, and the answer is no (rejected, failed, lost)"),
    (Exit::Input, "unusable input or command line"),
    (Exit::Unknown, "no answer (too short or too disturbed to tell, not proven)"),
    (Exit::NotPermitted, "this machine does not permit or support it; millstream doctor says what and why"),
    (
        Exit::Crashed,
        "the packet program that was run has crashed; standard error says where and at which packet",
    ),
];

/// What this process may not do, or the machine does not support.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[error("{error}")]
#[diagnostic(help("{}", hint.unwrap_or("run as root; `millstream doctor` says what this machine permits")))]
struct Forbidden {
    error: String,
    hint: Option<&'static str>,
}

/// An error of the optimizer as it is shown.
pub(crate) fn report(error: OptError) -> miette::Report {
    match error.refusal() {
        Some(refusal) if refusal.errno() == Some(libc::EPERM) => {
            Forbidden { error: error.to_string(), hint: refusal.hint() }.into()
        }
        _ => miette::Report::from_err(error),
    }
}

/// The exit code of an error that ends a command.
pub(crate) fn of(report: &miette::Report) -> Exit {
    if report.chain().any(|e| e.is::<Forbidden>()) { Exit::NotPermitted } else { Exit::Input }
}

/// For the end of the help.
pub(crate) fn help() -> String {
    let codes: Vec<String> = CODES.iter().map(|(exit, text)| format!("  {}  {text}", *exit as u8)).collect();
    format!("Exit codes:\n{}", codes.join("\n"))
}
