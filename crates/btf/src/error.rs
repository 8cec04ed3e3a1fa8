//! Errors in BTF, with their offsets.

use thiserror::Error;

/// Why BTF or BTF.ext was refused, or a query on it had no answer. Offsets are in bytes from the start of the
/// section that was being read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BtfError {
    /// The data ends inside a structure.
    #[error("{what} at offset {at:#x} needs {need} bytes, {have} are left")]
    Truncated {
        /// The structure being read.
        what: &'static str,
        /// Offset of its first byte.
        at: usize,
        /// Bytes that it needs.
        need: usize,
        /// Bytes left.
        have: usize,
    },
    /// The first two bytes are not BTF's magic number.
    #[error("magic number is {0:#06x}, not 0xeb9f")]
    BadMagic(u16),
    /// The version is not 1.
    #[error("version {0} is not supported")]
    BadVersion(u8),
    /// A header field contradicts the size of the data or another field.
    #[error("header: {0}")]
    BadHeader(&'static str),
    /// Type data do not start with an own string: ids and strings continue another BTF's.
    #[error("this is split BTF, which builds on another BTF; it is not supported")]
    SplitBtf,
    /// A type's kind is unknown, and no layout section gives its size.
    #[error("type [{id}] at offset {at:#x} has unknown kind {kind}")]
    UnknownKind {
        /// Number of the type.
        id: u32,
        /// Offset of its first byte in the type section.
        at: usize,
        /// Its kind.
        kind: u8,
    },
    /// A type refers to a type or string that does not exist, or has a field no kind allows.
    #[error("type [{id}] at offset {at:#x}: {what}")]
    BadType {
        /// Number of the type.
        id: u32,
        /// Offset of its first byte in the type section.
        at: usize,
        /// The violation.
        what: String,
    },
    /// More types than ids.
    #[error("more than {0} types")]
    TooManyTypes(u32),
    /// No type has this number.
    #[error("there is no type [{0}]")]
    NoSuchType(u32),
    /// A chain of references is longer than any real one: a cycle.
    #[error("type [{0}] refers to itself, or is nested too deep")]
    TooDeep(u32),
    /// The type has no size (void, a function, a forward declaration).
    #[error("type [{0}] has no size")]
    NoSize(u32),
    /// The type is of another kind than the query needs.
    #[error("type [{id}] is not {want}")]
    WrongKind {
        /// Number of the type.
        id: u32,
        /// The kind that the query needs.
        want: &'static str,
    },
    /// A size does not fit in 64 bits.
    #[error("the size of type [{0}] overflows")]
    SizeOverflow(u32),
    /// A `.BTF.ext` record or section header is wrong.
    #[error(".BTF.ext at offset {at:#x}: {what}")]
    BadExt {
        /// Offset of its first byte.
        at: usize,
        /// The violation.
        what: String,
    },
    /// The data to write do not fit the format.
    #[error("cannot be written: {0}")]
    Unwritable(&'static str),
}
