//! Sizes of memory in proofs.

/// Largest memory argument that is taken byte by byte.
pub(crate) const MOST_BYTES: u64 = 1 << 13;

/// Bytes of a frame.
pub(crate) const STACK_SIZE: i64 = 512;
