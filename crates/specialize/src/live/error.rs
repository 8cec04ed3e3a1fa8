//! Why sessions end.

use millstream_kernel::ProgramType;
use millstream_loader::ProgramError;

use crate::guard::GuardError;
use crate::pins::PinError;

/// Why a session cannot start, or must end.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The guard.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// The object.
    #[error(transparent)]
    Load(#[from] millstream_loader::Error),
    /// The program in its original form.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The kernel, or who else holds the hook.
    #[error(transparent)]
    Kernel(#[from] millstream_kernel::Error),
    /// The pins.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// It is not attached.
    #[error("the program is not attached")]
    NotAttached,
    /// It is attached to something else than an interface.
    #[error("program {0:?} is of type {1}; XDP and TC programs are attached to interfaces")]
    Kind(String, ProgramType),
    /// A setting is not one for such a program.
    #[error("{0}")]
    Setting(&'static str),
    /// What is on the interface is not the object's program.
    #[error("{interface} has program {name:?} (id {id}), which is not the object's")]
    Other {
        /// The interface.
        interface: String,
        /// The program's name.
        name: String,
        /// Its id.
        id: u32,
    },
    /// The object is of no use.
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
    /// The interface went, and the attachment with it.
    #[error("interface {0} is gone, or the program was detached from it")]
    Gone(String),
    /// Somebody else's program is where ours was.
    #[error("somebody has put the program of id {id} into the place of ours on {interface}")]
    Replaced {
        /// The interface.
        interface: String,
        /// The program's id.
        id: u32,
    },
    /// The interfaces' programs have maps of their own each.
    #[error("the programs on the interfaces do not share map {0:?}")]
    Apart(String),
    /// What programs execute cannot be counted.
    #[error(transparent)]
    Uncounted(millstream_lab::Error),
    /// Its original was not among what was loaded.
    #[error("the loader left the program out")]
    LeftOut,
}
