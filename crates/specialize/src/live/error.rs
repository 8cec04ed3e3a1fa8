//! Reasons why sessions end.

use millstream_kernel::ProgramType;
use millstream_loader::ProgramError;

use crate::guard::GuardError;
use crate::pins::PinError;

/// Reason why a session cannot start, or must end.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The guard.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// The object.
    #[error(transparent)]
    Load(#[from] millstream_loader::Error),
    /// The original program.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The kernel, or another holder of the hook.
    #[error(transparent)]
    Kernel(#[from] millstream_kernel::KernelError),
    /// The pins.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// It is not attached.
    #[error("the program is not attached")]
    NotAttached,
    /// It is attached to something other than an interface.
    #[error("program {0:?} is of type {1}; XDP and TC programs are attached to interfaces")]
    Kind(String, ProgramType),
    /// A setting does not suit such a program.
    #[error("{0}")]
    Setting(&'static str),
    /// The program on the interface is not the object's.
    #[error("{interface} has program {name:?} (id {id}), which is not the object's")]
    Other {
        /// The interface.
        interface: String,
        /// The program's name.
        name: String,
        /// Its id.
        id: u32,
    },
    /// The object is unsuited.
    #[error("{0}")]
    Unsuited(String),
    /// There is no program to be adopted.
    #[error("no program is on the interface that could be adopted")]
    NothingToAdopt,
    /// There are several programs of which none is likelier than the others.
    #[error("{interface} has several programs that could be adopted: {}", names.join(", "))]
    Several {
        /// The interface.
        interface: String,
        /// The programs' names.
        names: Vec<String>,
    },
    /// The interface no longer exists, and neither does the attachment.
    #[error("interface {0} is gone, or the program was detached from it")]
    Gone(String),
    /// Somebody has replaced the session's program.
    #[error("somebody has put the program of id {id} into the place of ours on {interface}")]
    Replaced {
        /// The interface.
        interface: String,
        /// The program's id.
        id: u32,
    },
    /// The interfaces' programs have a map each that they should share.
    #[error("the programs on the interfaces do not share map {0:?}")]
    Apart(String),
    /// The instructions that programs execute cannot be counted.
    #[error(transparent)]
    Uncounted(millstream_lab::Error),
    /// The loader did not load the original.
    #[error("the loader left the program out")]
    LeftOut,
}

/// A rejection, with the verifier's last word.
pub(super) fn explain(error: &ProgramError) -> String {
    match error.rejection() {
        Some(r) => format!("{} ({})", r.reason(), r.log_tail(3).join(" | ")),
        None => error.to_string(),
    }
}
