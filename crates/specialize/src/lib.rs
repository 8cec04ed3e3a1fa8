//! Run-time specialization of loaded programs.

pub mod transform;
