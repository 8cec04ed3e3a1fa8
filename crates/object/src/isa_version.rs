//! The version of the instruction set that an object needs.

use millstream_isa::{AluOp, Cond, Insn, Size, SwapKind, Width, decode_all};

use crate::Object;

/// The lowest instruction set version that has all instructions of the object: what its loader's kernels
/// know.
pub fn isa_version(object: &Object) -> u8 {
    let insns = object.functions.iter().filter_map(|f| decode_all(&f.insns).ok()).flatten();
    insns.map(|(_, insn)| needed_version(insn)).max().unwrap_or(1)
}

fn needed_version(insn: Insn) -> u8 {
    match insn {
        Insn::MovSx { .. } | Insn::Load { sext: true, .. } | Insn::Jump { long: true, .. } => 4,
        Insn::Swap { kind: SwapKind::Swap, .. } | Insn::MayGoto { .. } => 4,
        Insn::Alu { op: AluOp::SDiv | AluOp::SMod, .. }
        | Insn::LoadAcquire { .. }
        | Insn::StoreRelease { .. } => 4,
        Insn::Branch { width: Width::W32, .. } | Insn::Atomic { fetch: true, .. } => 3,
        Insn::Atomic { size: Size::W, .. } => 3,
        Insn::Branch { cond: Cond::Lt | Cond::Le | Cond::Slt | Cond::Sle, .. } => 2,
        _ => 1,
    }
}
