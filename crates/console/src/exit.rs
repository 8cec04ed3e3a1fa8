//! Exit codes, the same for every subcommand.

use std::process::ExitCode;

/// Outcome of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// The command did everything, with a good result.
    Done = 0,
    /// The command ran, and the answer is no: a program rejected, a comparison lost, a check failed.
    Negative = 1,
    /// The input or the command line cannot be used, or the output cannot be written.
    Input = 2,
    /// The command ran, and there is no answer: a measurement too short or too disturbed to tell, a proof not
    /// found.
    Unknown = 3,
    /// This machine does not permit or support it (`millstream doctor` says what and why).
    NotPermitted = 4,
    /// The packet program has crashed.
    Crashed = 5,
    /// A defect of Millstream: a panic. The number is `EX_SOFTWARE` of sysexits.h.
    Internal = 70,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// An error that ends a command with a code of its own, in place of that for unusable input.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ExitError {
    message: String,
    /// The code.
    pub exit: Exit,
    /// True if the message is printed as it is.
    is_plain: bool,
}

impl miette::Diagnostic for ExitError {}

impl ExitError {
    /// An error whose message is printed as it is.
    pub fn plain(message: String, exit: Exit) -> ExitError {
        ExitError { message, exit, is_plain: true }
    }

    /// The message of a report, if it is printed as it is.
    pub fn plain_message(report: &miette::Report) -> Option<&str> {
        report.downcast_ref().filter(|error: &&ExitError| error.is_plain).map(|error| error.message.as_str())
    }
}

/// An error whose code is known.
pub trait WithExitCode: std::error::Error {
    /// The code of a command that ends with it.
    fn exit(&self) -> Exit;
}

/// The report of an error whose code is known.
pub fn ended<E: WithExitCode>(error: E) -> miette::Report {
    let first: &dyn std::error::Error = &error;
    let all: Vec<String> =
        std::iter::successors(Some(first), |e| e.source()).map(ToString::to_string).collect();
    ExitError { message: all.join(": "), exit: error.exit(), is_plain: false }.into()
}

/// Exit code of a command that ends with a report: the report's own, or "not permitted" if an error of the
/// kernel below it says so, or else "unusable input".
pub fn of(report: &miette::Report) -> Exit {
    if let Some(ended) = report.chain().find_map(|e| e.downcast_ref::<ExitError>()) {
        return ended.exit;
    }
    let other_order = |e: &(dyn std::error::Error + 'static)| {
        matches!(e.downcast_ref(), Some(millstream_loader::Error::ByteOrder(_)))
    };
    if report.chain().any(other_order) {
        return Exit::NotPermitted;
    }
    let errno = |error: &millstream_kernel::KernelError| match error {
        // The map is frozen, for everybody.
        millstream_kernel::KernelError::Call { call: "bpf(MAP_UPDATE_ELEM)", .. } => None,
        error => error.errno(),
    };
    let mut refused = report.chain().filter_map(|error| error.downcast_ref().and_then(errno));
    let is_lacking = |errno: i32| [libc::EPERM, libc::ENOSYS].contains(&errno);
    if refused.any(is_lacking) { Exit::NotPermitted } else { Exit::Input }
}

impl WithExitCode for millstream_lab::virtual_kernel::VirtualKernelError {
    fn exit(&self) -> Exit {
        match self {
            millstream_lab::virtual_kernel::VirtualKernelError::NoAnswer { .. } => Exit::Unknown,
            _ => Exit::NotPermitted,
        }
    }
}

impl WithExitCode for millstream_lab::Error {
    fn exit(&self) -> Exit {
        use millstream_lab::Error as E;
        match self {
            e if e.is_environment_error() => Exit::NotPermitted,
            e if e.is_no_answer() => Exit::Unknown,
            E::Kernel(_) | E::Load { .. } | E::Program { .. } => Exit::Negative,
            E::Loader(millstream_loader::Error::Kernel(_)) => Exit::Negative,
            _ => Exit::Input,
        }
    }
}

impl WithExitCode for millstream_opt::OptError {
    fn exit(&self) -> Exit {
        match self {
            Self::Loader(millstream_loader::Error::ByteOrder(_)) => Exit::NotPermitted,
            // A lack of rights is the kernel's; any other error is the object's.
            _ => self.kernel_error().map_or(Exit::Input, WithExitCode::exit),
        }
    }
}

impl WithExitCode for millstream_kernel::KernelError {
    fn exit(&self) -> Exit {
        match self.errno() {
            Some(libc::EPERM | libc::EACCES | libc::EOPNOTSUPP | libc::ENOSYS) => Exit::NotPermitted,
            Some(_) => Exit::Negative,
            None => Exit::Input,
        }
    }
}

/// Meaning of each code, for the help and the manual pages.
pub const CODES: [(Exit, &str); 7] = [
    (Exit::Done, "done"),
    (Exit::Negative, "done, and the answer is no (rejected, failed, lost)"),
    (Exit::Input, "unusable input or command line, or output that cannot be written"),
    (Exit::Unknown, "no answer (too short or too disturbed to tell, not proven)"),
    (Exit::NotPermitted, "this machine does not permit or support it; millstream doctor says what and why"),
    (
        Exit::Crashed,
        "the packet program that was run has crashed; standard error says where and at which packet",
    ),
    (Exit::Internal, "internal error: a defect of Millstream's, which standard error tells how to report"),
];

/// Text for the end of the help.
pub fn help() -> String {
    let codes: Vec<String> = CODES.iter().map(|(exit, text)| format!("  {}  {text}", *exit as u8)).collect();
    format!("Exit codes:\n{}", codes.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_lab::Error as LabError;

    #[test]
    fn an_error_says_how_its_command_ends() {
        let code = |e: LabError| of(&ended(e));
        assert_eq!(code(LabError::Lost(5)), Exit::Unknown);
        assert_eq!(code(LabError::NoAnswer("too slow".to_owned())), Exit::Unknown);
        assert_eq!(code(LabError::Unusable("no packet".to_owned())), Exit::Input);
        let refused = millstream_kernel::KernelMap::create(&millstream_kernel::MapSpec::default());
        if let Err(e) = refused {
            assert!(matches!(e.exit(), Exit::Negative | Exit::NotPermitted), "{e}");
        }
        assert_eq!(of(&miette::miette!("anything else")), Exit::Input);
    }
}
