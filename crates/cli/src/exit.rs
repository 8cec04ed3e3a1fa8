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
    /// It was done, and there is no answer: a measurement too short or too disturbed to tell.
    Unknown = 3,
    /// This machine does not permit or support it (`millstream doctor` says what and why).
    NotPermitted = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// For the end of the help.
pub(crate) const HELP: &str = "Exit codes: 0 done; 1 done, and the answer is no (rejected, failed, lost); \
    2 unusable input or command line; 3 no answer (too short or too disturbed to tell); 4 this machine does not permit \
    or support it.";
