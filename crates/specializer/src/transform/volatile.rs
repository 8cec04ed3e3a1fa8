//! Accesses to words that change under the program.

use millstream_ir::{MemFlags, Op, Size};

pub(super) fn volatile_load(offset: u32) -> Op {
    Op::Load { size: Size::Dw, sext: false, offset: offset as i32, flags: volatile() }
}

/// The guard's words change under the program.
pub(super) fn volatile() -> MemFlags {
    MemFlags { core: None, volatile: true }
}
