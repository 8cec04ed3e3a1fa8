//! The numbers of the encoding: classes, modes, operation codes.
//!
//! Source: `include/uapi/linux/bpf.h`.

use crate::{AluOp, AtomicOp, Cond, Pseudo, Size};

pub(crate) const CLASS_LD: u8 = 0;
pub(crate) const CLASS_LDX: u8 = 1;
pub(crate) const CLASS_ST: u8 = 2;
pub(crate) const CLASS_STX: u8 = 3;
pub(crate) const CLASS_ALU: u8 = 4;
pub(crate) const CLASS_JMP: u8 = 5;
pub(crate) const CLASS_JMP32: u8 = 6;
pub(crate) const CLASS_ALU64: u8 = 7;
pub(crate) const SRC_X: u8 = 8;
pub(crate) const MODE_IMM: u8 = 0x00;
pub(crate) const MODE_ABS: u8 = 0x20;
pub(crate) const MODE_IND: u8 = 0x40;
pub(crate) const MODE_MEM: u8 = 0x60;
pub(crate) const MODE_MEMSX: u8 = 0x80;
pub(crate) const MODE_ATOMIC: u8 = 0xc0;
pub(crate) const ATOMIC_FETCH: i32 = 1;
pub(crate) const ATOMIC_XCHG: i32 = 0xe0 | ATOMIC_FETCH;
pub(crate) const ATOMIC_CMPXCHG: i32 = 0xf0 | ATOMIC_FETCH;
pub(crate) const ATOMIC_LOAD_ACQ: i32 = 0x100;
pub(crate) const ATOMIC_STORE_REL: i32 = 0x110;

impl AluOp {
    pub(crate) const fn code(self) -> u8 {
        match self {
            AluOp::Add => 0x00,
            AluOp::Sub => 0x10,
            AluOp::Mul => 0x20,
            AluOp::Div | AluOp::SDiv => 0x30,
            AluOp::Or => 0x40,
            AluOp::And => 0x50,
            AluOp::Lsh => 0x60,
            AluOp::Rsh => 0x70,
            AluOp::Mod | AluOp::SMod => 0x90,
            AluOp::Xor => 0xa0,
            AluOp::Arsh => 0xc0,
        }
    }
}

impl Cond {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Cond::Eq => 0x10,
            Cond::Gt => 0x20,
            Cond::Ge => 0x30,
            Cond::Set => 0x40,
            Cond::Ne => 0x50,
            Cond::Sgt => 0x60,
            Cond::Sge => 0x70,
            Cond::Lt => 0xa0,
            Cond::Le => 0xb0,
            Cond::Slt => 0xc0,
            Cond::Sle => 0xd0,
        }
    }
}

impl AtomicOp {
    pub(crate) const fn code(self) -> i32 {
        match self {
            AtomicOp::Add => 0x00,
            AtomicOp::Or => 0x40,
            AtomicOp::And => 0x50,
            AtomicOp::Xor => 0xa0,
            AtomicOp::Xchg => ATOMIC_XCHG,
            AtomicOp::CmpXchg => ATOMIC_CMPXCHG,
        }
    }
}

impl Size {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Size::W => 0x00,
            Size::H => 0x08,
            Size::B => 0x10,
            Size::Dw => 0x18,
        }
    }

    pub(crate) const fn from_code(code: u8) -> Size {
        match code & 0x18 {
            0x00 => Size::W,
            0x08 => Size::H,
            0x10 => Size::B,
            _ => Size::Dw,
        }
    }
}

impl Pseudo {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Pseudo::None => 0,
            Pseudo::MapFd => 1,
            Pseudo::MapValue => 2,
            Pseudo::BtfId => 3,
            Pseudo::Func => 4,
            Pseudo::MapIdx => 5,
            Pseudo::MapIdxValue => 6,
        }
    }

    pub(crate) const fn from_code(code: u8) -> Option<Pseudo> {
        Some(match code {
            0 => Pseudo::None,
            1 => Pseudo::MapFd,
            2 => Pseudo::MapValue,
            3 => Pseudo::BtfId,
            4 => Pseudo::Func,
            5 => Pseudo::MapIdx,
            6 => Pseudo::MapIdxValue,
            _ => return None,
        })
    }
}
