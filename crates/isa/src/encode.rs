//! From instructions to slots.

use crate::codes::*;
use crate::{AluOp, Callee, Insn, LegacyMode, Operand, RawInsn, Reg, Size, SwapKind, Width};

fn raw(code: u8, dst: Reg, src: u8, off: i16, imm: i32) -> RawInsn {
    RawInsn { code, dst: dst.number(), src, off, imm }
}

fn with_operand(code: u8, dst: Reg, src: Operand, off: i16) -> RawInsn {
    match src {
        Operand::Reg(src) => raw(code | SRC_X, dst, src.number(), off, 0),
        Operand::Imm(imm) => raw(code, dst, 0, off, imm),
    }
}

impl Insn {
    /// Slots taken: 2 for `ld_imm64`, else 1.
    pub const fn slots(self) -> usize {
        if matches!(self, Insn::LoadImm64 { .. }) { 2 } else { 1 }
    }

    /// Appends the encoded slots.
    pub fn encode(self, out: &mut Vec<RawInsn>) {
        let class = |width| if width == Width::W64 { CLASS_ALU64 } else { CLASS_ALU };
        let r0 = Reg::R0;
        let atomic = |size: Size, dst, src: Reg, off, imm| {
            raw(CLASS_STX | MODE_ATOMIC | size.code(), dst, src.number(), off, imm)
        };
        let slot = match self {
            Insn::Alu { width, op, dst, src } => {
                let signed = matches!(op, AluOp::SDiv | AluOp::SMod);
                with_operand(class(width) | op.code(), dst, src, i16::from(signed))
            }
            Insn::Mov { width, dst, src } => with_operand(class(width) | 0xb0, dst, src, 0),
            Insn::MovSx { width, bits, dst, src } => {
                raw(class(width) | 0xb0 | SRC_X, dst, src.number(), i16::from(bits), 0)
            }
            Insn::AddrSpaceCast { dst, src, imm } => {
                raw(CLASS_ALU64 | 0xb0 | SRC_X, dst, src.number(), 1, imm)
            }
            Insn::Neg { width, dst } => raw(class(width) | 0x80, dst, 0, 0, 0),
            Insn::Swap { kind, bits, dst } => raw(swap_code(kind), dst, 0, 0, i32::from(bits)),
            Insn::LoadImm64 { dst, pseudo, imm, off } => {
                out.push(raw(CLASS_LD | MODE_IMM | Size::Dw.code(), dst, pseudo.code(), off, imm as i32));
                raw(0, r0, 0, 0, (imm >> 32) as i32)
            }
            Insn::Load { size, sext, dst, src, off } => {
                let mode = if sext { MODE_MEMSX } else { MODE_MEM };
                raw(CLASS_LDX | mode | size.code(), dst, src.number(), off, 0)
            }
            Insn::Store { size, dst, off, src: Operand::Reg(src) } => {
                raw(CLASS_STX | MODE_MEM | size.code(), dst, src.number(), off, 0)
            }
            Insn::Store { size, dst, off, src: Operand::Imm(imm) } => {
                raw(CLASS_ST | MODE_MEM | size.code(), dst, 0, off, imm)
            }
            Insn::Atomic { op, fetch, size, dst, src, off } => {
                atomic(size, dst, src, off, op.code() | i32::from(fetch))
            }
            Insn::LoadAcquire { size, dst, src, off } => atomic(size, dst, src, off, ATOMIC_LOAD_ACQ),
            Insn::StoreRelease { size, dst, src, off } => atomic(size, dst, src, off, ATOMIC_STORE_REL),
            Insn::LegacyLoad { size, mode, imm } => match mode {
                LegacyMode::Abs => raw(CLASS_LD | MODE_ABS | size.code(), r0, 0, 0, imm),
                LegacyMode::Ind(src) => raw(CLASS_LD | MODE_IND | size.code(), r0, src.number(), 0, imm),
            },
            Insn::Jump { off, long: true } => raw(CLASS_JMP32, r0, 0, 0, off),
            Insn::Jump { off, long: false } => raw(CLASS_JMP, r0, 0, off as i16, 0),
            Insn::Branch { width, cond, dst, src, off } => {
                let class = if width == Width::W64 { CLASS_JMP } else { CLASS_JMP32 };
                with_operand(class | cond.code(), dst, src, off)
            }
            Insn::MayGoto { off } => raw(0xe5, r0, 0, off, 0),
            Insn::Call(callee) => call(callee),
            Insn::Exit => raw(0x95, r0, 0, 0, 0),
        };
        out.push(slot);
    }
}

const fn swap_code(kind: SwapKind) -> u8 {
    match kind {
        SwapKind::ToLe => CLASS_ALU | 0xd0,
        SwapKind::ToBe => CLASS_ALU | 0xd0 | SRC_X,
        SwapKind::Swap => CLASS_ALU64 | 0xd0,
    }
}

fn call(callee: Callee) -> RawInsn {
    match callee {
        Callee::Helper(id) => raw(0x85, Reg::R0, 0, 0, id),
        Callee::Local(rel) => raw(0x85, Reg::R0, 1, 0, rel),
        Callee::Kfunc { btf_id, fd_idx } => raw(0x85, Reg::R0, 2, fd_idx, btf_id),
        Callee::Register(reg) => raw(0x8d, reg, 0, 0, 0),
    }
}

/// Encodes a sequence of instructions.
pub fn encode_all(insns: &[Insn]) -> Vec<RawInsn> {
    let mut out = Vec::with_capacity(insns.len());
    for insn in insns {
        insn.encode(&mut out);
    }
    out
}
