//! From slots to instructions.

use crate::codes::*;
use crate::{
    AluOp, AtomicOp, Callee, Cond, DecodeError, Insn, LegacyMode, Operand, Pseudo, RawInsn, Reg, Size,
    SwapKind, Width,
};

/// Decodes the instruction at slot `at`.
///
/// Strict: reserved fields must be zero, as the kernel demands.
///
/// # Errors
/// [`DecodeError`], located by slot.
pub fn decode(slots: &[RawInsn], at: usize) -> Result<Insn, DecodeError> {
    let raw = *slots.get(at).ok_or(DecodeError::Truncated { at })?;
    let d = Decoder { raw, at };
    match raw.code & 7 {
        CLASS_LD => d.ld(slots.get(at + 1)),
        CLASS_LDX => d.ldx(),
        CLASS_ST => d.st(),
        CLASS_STX => d.stx(),
        CLASS_ALU => d.alu(Width::W32),
        CLASS_ALU64 => d.alu(Width::W64),
        CLASS_JMP => d.jmp(),
        _ => d.branch(Width::W32),
    }
}

/// Decodes a whole program: the instructions with the slot where each starts.
///
/// # Errors
/// The first [`DecodeError`].
pub fn decode_all(slots: &[RawInsn]) -> Result<Vec<(usize, Insn)>, DecodeError> {
    let mut out = Vec::with_capacity(slots.len());
    let mut at = 0;
    while at < slots.len() {
        let insn = decode(slots, at)?;
        out.push((at, insn));
        at += insn.slots();
    }
    Ok(out)
}

struct Decoder {
    raw: RawInsn,
    at: usize,
}

impl Decoder {
    fn unknown(&self) -> DecodeError {
        let RawInsn { code, src, off, imm, .. } = self.raw;
        DecodeError::Opcode { at: self.at, code, src, off, imm }
    }

    fn reserved(&self, bad: bool) -> Result<(), DecodeError> {
        if bad { Err(DecodeError::Reserved { at: self.at, code: self.raw.code }) } else { Ok(()) }
    }

    fn reg(&self, n: u8) -> Result<Reg, DecodeError> {
        Reg::new(n).ok_or(DecodeError::Register { at: self.at, reg: n })
    }

    fn dst(&self) -> Result<Reg, DecodeError> {
        self.reg(self.raw.dst)
    }

    fn src(&self) -> Result<Reg, DecodeError> {
        self.reg(self.raw.src)
    }

    fn operand(&self) -> Result<Operand, DecodeError> {
        if self.raw.code & SRC_X != 0 {
            self.reserved(self.raw.imm != 0)?;
            Ok(Operand::Reg(self.src()?))
        } else {
            self.reserved(self.raw.src != 0)?;
            Ok(Operand::Imm(self.raw.imm))
        }
    }

    fn ld(&self, next: Option<&RawInsn>) -> Result<Insn, DecodeError> {
        let raw = self.raw;
        let size = Size::from_code(raw.code);
        match raw.code & 0xe0 {
            MODE_IMM if size == Size::Dw => {
                let hi = next.filter(|n| n.code == 0 && n.dst == 0 && n.src == 0 && n.off == 0);
                let hi = hi.ok_or(DecodeError::Truncated { at: self.at })?;
                let pseudo = Pseudo::from_code(raw.src).ok_or_else(|| self.unknown())?;
                let imm = u64::from(raw.imm as u32) | u64::from(hi.imm as u32) << 32;
                Ok(Insn::LoadImm64 { dst: self.dst()?, pseudo, imm, off: raw.off })
            }
            mode @ (MODE_ABS | MODE_IND) if size != Size::Dw => {
                self.reserved(raw.dst != 0 || raw.off != 0 || (mode == MODE_ABS && raw.src != 0))?;
                let mode = if mode == MODE_ABS { LegacyMode::Abs } else { LegacyMode::Ind(self.src()?) };
                Ok(Insn::LegacyLoad { size, mode, imm: raw.imm })
            }
            _ => Err(self.unknown()),
        }
    }

    fn ldx(&self) -> Result<Insn, DecodeError> {
        let raw = self.raw;
        let size = Size::from_code(raw.code);
        let sext = match raw.code & 0xe0 {
            MODE_MEM => false,
            MODE_MEMSX if size != Size::Dw => true,
            _ => return Err(self.unknown()),
        };
        self.reserved(raw.imm != 0)?;
        Ok(Insn::Load { size, sext, dst: self.dst()?, src: self.src()?, off: raw.off })
    }

    fn st(&self) -> Result<Insn, DecodeError> {
        let raw = self.raw;
        if raw.code & 0xe0 != MODE_MEM {
            return Err(self.unknown());
        }
        self.reserved(raw.src != 0)?;
        let size = Size::from_code(raw.code);
        Ok(Insn::Store { size, dst: self.dst()?, off: raw.off, src: Operand::Imm(raw.imm) })
    }

    fn stx(&self) -> Result<Insn, DecodeError> {
        let raw = self.raw;
        let size = Size::from_code(raw.code);
        let (dst, src, off) = (self.dst()?, self.src()?, raw.off);
        match raw.code & 0xe0 {
            MODE_MEM => {
                self.reserved(raw.imm != 0)?;
                Ok(Insn::Store { size, dst, off, src: Operand::Reg(src) })
            }
            MODE_ATOMIC => {
                let fetch = raw.imm & ATOMIC_FETCH != 0;
                let op = match raw.imm {
                    ATOMIC_LOAD_ACQ => return Ok(Insn::LoadAcquire { size, dst, src, off }),
                    ATOMIC_STORE_REL => return Ok(Insn::StoreRelease { size, dst, src, off }),
                    ATOMIC_XCHG => AtomicOp::Xchg,
                    ATOMIC_CMPXCHG => AtomicOp::CmpXchg,
                    imm => match imm & !ATOMIC_FETCH {
                        0x00 => AtomicOp::Add,
                        0x40 => AtomicOp::Or,
                        0x50 => AtomicOp::And,
                        0xa0 => AtomicOp::Xor,
                        _ => return Err(self.unknown()),
                    },
                };
                if size.bytes() < 4 {
                    return Err(self.unknown());
                }
                Ok(Insn::Atomic { op, fetch, size, dst, src, off })
            }
            _ => Err(self.unknown()),
        }
    }

    fn alu(&self, width: Width) -> Result<Insn, DecodeError> {
        let raw = self.raw;
        let dst = self.dst()?;
        let signed = match raw.off {
            0 => false,
            1 => true,
            _ => false,
        };
        let op = match raw.code & 0xf0 {
            0x00 => AluOp::Add,
            0x10 => AluOp::Sub,
            0x20 => AluOp::Mul,
            0x30 if signed => AluOp::SDiv,
            0x30 => AluOp::Div,
            0x40 => AluOp::Or,
            0x50 => AluOp::And,
            0x60 => AluOp::Lsh,
            0x70 => AluOp::Rsh,
            0x80 => {
                self.reserved(raw.code & SRC_X != 0 || raw.src != 0 || raw.off != 0 || raw.imm != 0)?;
                return Ok(Insn::Neg { width, dst });
            }
            0x90 if signed => AluOp::SMod,
            0x90 => AluOp::Mod,
            0xa0 => AluOp::Xor,
            0xb0 => return self.mov(width, dst),
            0xc0 => AluOp::Arsh,
            0xd0 => return self.swap(width, dst),
            _ => return Err(self.unknown()),
        };
        let divides = matches!(op, AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod);
        self.reserved(raw.off != 0 && !(divides && raw.off == 1))?;
        Ok(Insn::Alu { width, op, dst, src: self.operand()? })
    }

    fn mov(&self, width: Width, dst: Reg) -> Result<Insn, DecodeError> {
        let raw = self.raw;
        let by_reg = raw.code & SRC_X != 0;
        match raw.off {
            0 => Ok(Insn::Mov { width, dst, src: self.operand()? }),
            1 if by_reg && width == Width::W64 => {
                Ok(Insn::AddrSpaceCast { dst, src: self.src()?, imm: raw.imm })
            }
            8 | 16 | 32 if by_reg && (raw.off != 32 || width == Width::W64) => {
                self.reserved(raw.imm != 0)?;
                Ok(Insn::MovSx { width, bits: raw.off as u8, dst, src: self.src()? })
            }
            _ => Err(self.unknown()),
        }
    }

    fn swap(&self, width: Width, dst: Reg) -> Result<Insn, DecodeError> {
        let raw = self.raw;
        self.reserved(raw.src != 0 || raw.off != 0)?;
        let by_reg = raw.code & SRC_X != 0;
        let kind = match (width, by_reg) {
            (Width::W32, false) => SwapKind::ToLe,
            (Width::W32, true) => SwapKind::ToBe,
            (Width::W64, false) => SwapKind::Swap,
            (Width::W64, true) => return Err(self.unknown()),
        };
        match raw.imm {
            16 | 32 | 64 => Ok(Insn::Swap { kind, bits: raw.imm as u8, dst }),
            _ => Err(self.unknown()),
        }
    }

    fn jmp(&self) -> Result<Insn, DecodeError> {
        let raw = self.raw;
        match raw.code {
            0x05 => {
                self.reserved(raw.dst != 0 || raw.src != 0 || raw.imm != 0)?;
                Ok(Insn::Jump { off: i32::from(raw.off), long: false })
            }
            0x85 => self.call(),
            0x8d => {
                self.reserved(raw.src != 0 || raw.off != 0 || raw.imm != 0)?;
                Ok(Insn::Call(Callee::Register(self.dst()?)))
            }
            0x95 => {
                self.reserved(raw.dst != 0 || raw.src != 0 || raw.off != 0 || raw.imm != 0)?;
                Ok(Insn::Exit)
            }
            0xe5 => {
                self.reserved(raw.dst != 0 || raw.src != 0 || raw.imm != 0)?;
                Ok(Insn::MayGoto { off: raw.off })
            }
            _ => self.branch(Width::W64),
        }
    }

    fn call(&self) -> Result<Insn, DecodeError> {
        let raw = self.raw;
        self.reserved(raw.dst != 0 || (raw.off != 0 && raw.src != 2))?;
        Ok(Insn::Call(match raw.src {
            0 => Callee::Helper(raw.imm),
            1 => Callee::Local(raw.imm),
            2 => Callee::Kfunc { btf_id: raw.imm, fd_idx: raw.off },
            _ => return Err(self.unknown()),
        }))
    }

    fn branch(&self, width: Width) -> Result<Insn, DecodeError> {
        let raw = self.raw;
        let cond = match raw.code & 0xf0 {
            0x00 if raw.code == 0x06 => {
                self.reserved(raw.dst != 0 || raw.src != 0 || raw.off != 0)?;
                return Ok(Insn::Jump { off: raw.imm, long: true });
            }
            0x10 => Cond::Eq,
            0x20 => Cond::Gt,
            0x30 => Cond::Ge,
            0x40 => Cond::Set,
            0x50 => Cond::Ne,
            0x60 => Cond::Sgt,
            0x70 => Cond::Sge,
            0xa0 => Cond::Lt,
            0xb0 => Cond::Le,
            0xc0 => Cond::Slt,
            0xd0 => Cond::Sle,
            _ => return Err(self.unknown()),
        };
        Ok(Insn::Branch { width, cond, dst: self.dst()?, src: self.operand()?, off: raw.off })
    }
}
