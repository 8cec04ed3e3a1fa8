//! Errors.

use millstream_bpf::lower::LowerError;
use millstream_btf::BtfError;
use millstream_passes::PassError;

/// No such entry.
pub(crate) const ENOENT: i32 = 2;

/// Reason why a program does not become a kernel object.
#[derive(Clone, Debug, thiserror::Error)]
pub enum KernelBuildError {
    /// A construct that a kernel program cannot do.
    #[error("{place}: {construct} is not supported in the kernel: {reason}")]
    Refused {
        /// Path and line.
        place: String,
        /// Name of the construct.
        construct: String,
        /// Reason.
        reason: String,
    },
    /// The state of a packet and its variables are larger than a value of a per-CPU array.
    #[error(
        "the packet's state takes {bytes} bytes of memory; a value of a per-CPU array has {most} at most"
    )]
    Memory {
        /// Bytes needed.
        bytes: u32,
        /// Bytes at most.
        most: u32,
    },
    /// The code has no form in BPF.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// A pass has failed.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// The types cannot be written.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// The program lacks a function of its architecture.
    #[error("the program has no function `{0}`")]
    NoStage(&'static str),
}
