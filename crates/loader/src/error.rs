//! Reasons why an object or one of its programs could not be loaded.

use millstream_btf::BtfError;
use millstream_btf::core::{CoreError, PatchError};
use millstream_isa::ByteOrder;
use millstream_kernel::LoadError;
use millstream_object::ObjectError;

/// Reason why an object could not be prepared: its maps, its settings, its names.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object is for machines of the other byte order.
    #[error("the object is for {0} machines, and the kernel of this machine is {host}", host = ByteOrder::HOST)]
    ByteOrder(ByteOrder),
    /// The kernel refused something.
    #[error(transparent)]
    Kernel(#[from] millstream_kernel::KernelError),
    /// The object has no map, program or variable of that name.
    #[error("the object has no {what} called {name:?}")]
    NoSuch {
        /// Map, program or variable.
        what: &'static str,
        /// The name asked for.
        name: String,
    },
    /// A pinned map that is to replace one of the object's belongs to somebody else.
    #[error("map {map}: {source}")]
    Pin {
        /// The object's name for it.
        map: String,
        /// The reason.
        source: millstream_kernel::PinDirError,
    },
    /// A map that is to replace one of the object's has another layout.
    #[error("map {name} cannot be used in place of the object's: {difference}")]
    Layout {
        /// The object's name for it.
        name: String,
        /// The difference.
        difference: String,
    },
    /// Contents for a variable or map do not fit.
    #[error("{name}: {got} bytes given, {want} needed")]
    Size {
        /// Variable or map.
        name: String,
        /// Bytes given.
        got: usize,
        /// Bytes it has.
        want: usize,
    },
    /// The types of the object or the kernel contradict themselves.
    #[error("{what}: {source}")]
    Btf {
        /// Which BTF.
        what: String,
        /// The error in it.
        source: BtfError,
    },
    /// A file of the system could not be read.
    #[error("reading {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The error.
        source: std::io::Error,
    },
    /// A setting that the object needs is not one of this kernel's, or does not fit its variable.
    #[error("kernel setting {name}: {reason}")]
    Setting {
        /// Its name.
        name: String,
        /// The error.
        reason: String,
    },
    /// The object's functions cannot be linked.
    #[error(transparent)]
    Link(#[from] millstream_object::ObjectError),
    /// One of the object's programs was not loaded.
    #[error("program {name:?}: {source}")]
    Program {
        /// Its name.
        name: String,
        /// The reason.
        source: Box<ProgramError>,
    },
}

/// Reason why a program of an object was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The kernel rejected or refused it.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// It could not be prepared.
    #[error(transparent)]
    Prepare(#[from] Error),
    /// This loader cannot load such a program.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// Its attach target is not named, or not in this kernel.
    #[error("attach target: {0}")]
    Target(String),
    /// A CO-RE relocation cannot be answered.
    #[error("instruction {insn}: {source}")]
    Core {
        /// The instruction.
        insn: u32,
        /// The reason.
        source: CoreError,
    },
    /// A CO-RE relocation cannot be written.
    #[error(transparent)]
    Patch(#[from] PatchError),
    /// It refers to a kernel function or variable that this kernel does not have.
    #[error("this kernel has no {what} {name:?}{note}")]
    Missing {
        /// Function or variable.
        what: &'static str,
        /// Its name.
        name: String,
        /// Anything more that is known.
        note: &'static str,
    },
    /// A relocation does not fit its instruction, or names nothing of the object.
    #[error("instruction {insn}: {reason}")]
    Relocation {
        /// The instruction.
        insn: u32,
        /// The error.
        reason: String,
    },
}

impl ProgramError {
    /// Returns true if this loader or machine lacks something, and nothing is wrong with the program.
    pub fn is_environment_error(&self) -> bool {
        match self {
            ProgramError::Unsupported(_) | ProgramError::Missing { what: "kernel function", .. } => true,
            ProgramError::Prepare(Error::Read { path, .. }) => path.starts_with("/sys/kernel/btf"),
            ProgramError::Prepare(Error::Link(e)) => matches!(e, ObjectError::NotUnderstood { .. }),
            _ => false,
        }
    }

    /// The verifier's rejection, if it is one.
    pub fn rejection(&self) -> Option<&millstream_kernel::Rejection> {
        match self {
            ProgramError::Load(LoadError::Rejected(r)) => Some(r),
            _ => None,
        }
    }
}
