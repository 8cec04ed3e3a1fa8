//! Run-time specialization of loaded programs.
//!
//! [`transform`] makes variants of programs, as transforms of the IR. [`guard`] sees control-plane writes before the
//! kernel applies them; [`holders`] knows who else may write a map.

pub mod guard;
pub mod holders;
pub mod transform;
