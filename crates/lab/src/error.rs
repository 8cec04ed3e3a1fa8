//! Errors of the laboratory.

use millstream_isa::asm::AsmError;
use millstream_kernel::LoadError;
use millstream_loader::ProgramError;

/// Result of the laboratory's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Reason why the laboratory could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused something.
    #[error(transparent)]
    Kernel(#[from] millstream_kernel::KernelError),
    /// A program of the laboratory's own was refused.
    #[error("loading the laboratory's program {name:?}")]
    Load {
        /// Which one.
        name: &'static str,
        /// Answer of the kernel.
        source: LoadError,
    },
    /// A program of the laboratory's own does not assemble.
    #[error("assembling the laboratory's program {name:?}")]
    Assemble {
        /// Which one.
        name: &'static str,
        /// Error of the assembler.
        source: AsmError,
    },
    /// The object under test cannot be prepared or loaded.
    #[error(transparent)]
    Loader(#[from] millstream_loader::Error),
    /// A program of the object under test cannot be loaded.
    #[error("program {name:?}")]
    Program {
        /// Its name.
        name: String,
        /// Why.
        source: Box<millstream_loader::ProgramError>,
    },
    /// An object file cannot be read.
    #[error(transparent)]
    Object(#[from] millstream_object::ObjectError),
    /// A file could not be read or written.
    #[error("{doing}: {cause}")]
    Io {
        /// Operation that failed.
        doing: String,
        /// Error of the operation; part of the message, hence no source of its own.
        cause: std::io::Error,
    },
    /// Frames were lost where none may be, so that the timings mean nothing.
    #[error("{0} frames were lost on one CPU, where none may be")]
    Lost(u64),
    /// It was done, and there is no answer.
    #[error("{0}")]
    NoAnswer(String),
    /// The kernel is too old.
    #[error("this kernel lacks {what}, which came with Linux {since}")]
    Missing {
        /// Missing feature.
        what: &'static str,
        /// The first release that has it.
        since: &'static str,
    },
    /// The request cannot be met.
    #[error("{0}")]
    Unusable(String),
}

impl Error {
    pub(crate) fn io(doing: impl Into<String>, source: std::io::Error) -> Self {
        Error::Io { doing: doing.into(), cause: source }
    }

    /// With all that caused it.
    pub fn error_chain(&self) -> String {
        let first: &dyn std::error::Error = self;
        let all = std::iter::successors(Some(first), |e| e.source());
        all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    }

    /// Returns true if the work was done but gave no answer.
    pub fn is_no_answer(&self) -> bool {
        matches!(self, Error::Lost(_) | Error::NoAnswer(_))
    }

    /// Returns true if the kernel forbids it to this process.
    pub fn is_forbidden(&self) -> bool {
        let errno = match self {
            Error::Kernel(e) | Error::Loader(millstream_loader::Error::Kernel(e)) => e.errno(),
            Error::Load { source: LoadError::Refused(e), .. } => e.errno(),
            Error::Program { source, .. } => match &**source {
                ProgramError::Load(LoadError::Refused(e)) => e.errno(),
                _ => None,
            },
            Error::Io { cause, .. } => cause.raw_os_error(),
            _ => None,
        };
        errno == Some(libc::EPERM)
    }

    /// Returns true if this machine is the cause: it does not permit the operation, for want of privilege, or
    /// does not support it.
    pub fn is_environment_error(&self) -> bool {
        /// `ENOTSUPP`, which the kernel gives and the C library does not name.
        const NOT_SUPPORTED: i32 = 524;
        let errno = match self {
            Error::Missing { .. } | Error::Loader(millstream_loader::Error::ByteOrder(_)) => return true,
            Error::Kernel(e) | Error::Loader(millstream_loader::Error::Kernel(e)) => e.errno(),
            Error::Load { source: LoadError::Refused(e), .. } => e.errno(),
            Error::Io { cause, .. } => cause.raw_os_error(),
            _ => None,
        };
        self.is_forbidden()
            || matches!(
                errno,
                Some(
                    libc::EPERM
                        | libc::EACCES
                        | libc::EOPNOTSUPP
                        | libc::ENOSYS
                        | libc::EAFNOSUPPORT
                        | NOT_SUPPORTED
                )
            )
    }
}
