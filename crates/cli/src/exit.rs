//! Exit codes, the same for every subcommand.

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// Everything asked for was done and came out well.
    Done = 0,
    /// It was done, and the answer is no: a program rejected, a comparison lost, a check failed.
    Negative = 1,
    /// The input or the command line cannot be used.
    Input = 2,
    /// This machine does not permit it (`millstream doctor` says what and why).
    NotPermitted = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// For the end of the help.
pub(crate) const HELP: &str = "Exit codes: 0 done; 1 done, and the answer is no (rejected, failed, lost); \
    2 unusable input or command line; 4 this machine does not permit it.";
