//! Reasons why objects cannot be run natively.

use std::io;

use millstream_bpf::lift::LiftError;
use millstream_passes::PassError;

use crate::emit::EmitError;
use crate::image::{ImageLinkError, ImageLoadError};
use crate::llvm;

/// Reason why an object cannot be run natively.
#[derive(Debug, thiserror::Error)]
pub enum NativeError {
    /// No such program, or several programs and no name.
    #[error("{0}")]
    Choose(String),
    /// Bytecode that no verifier would accept.
    #[error(transparent)]
    Lift(#[from] LiftError),
    /// A pass failed.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// Unsupported construct.
    #[error(transparent)]
    Emit(#[from] EmitError),
    /// LLVM is missing or refuses the code.
    #[error(transparent)]
    Llvm(#[from] llvm::LlvmError),
    /// No memory for a map.
    #[error("map {map:?}: {source}")]
    Memory {
        /// The map.
        map: String,
        /// The system's error.
        source: io::Error,
    },
    /// The code cannot be linked ahead of time.
    #[error(transparent)]
    Unlinkable(#[from] ImageLinkError),
    /// Code that was compiled ahead of time cannot run here.
    #[error(transparent)]
    Unloadable(#[from] ImageLoadError),
    /// Initial contents of a map cannot be set.
    #[error("map {map:?}: entry {key:02x?} cannot be set: error {errno}")]
    Initial {
        /// The map.
        map: String,
        /// Its key.
        key: Vec<u8>,
        /// The kernel's error number.
        errno: i64,
    },
}
