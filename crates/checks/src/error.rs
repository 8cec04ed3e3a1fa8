//! Errors of reading the repository and its limits.

use std::io;

/// Reason why figures cannot be measured or held to their limits.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// A file or folder cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// Path of the file or folder.
        path: String,
        /// Reason that the system gives.
        source: io::Error,
    },
    /// A file is no valid Rust.
    #[error("{path}:{line}: {message}")]
    Syntax {
        /// Path from the root of the repository.
        path: String,
        /// Line of the error.
        line: usize,
        /// Message of the parser.
        message: String,
    },
    /// The file of limits is malformed.
    #[error("limits.toml: {0}")]
    Limits(String),
    /// No figure has this name.
    #[error("there is no figure `{0}`")]
    UnknownFigure(String),
}
