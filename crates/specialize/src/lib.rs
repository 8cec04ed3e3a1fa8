//! Run-time specialization of loaded programs.
