//! The instruction type, its decoder and its encoder.

use std::fmt;

/// A BPF register, `r0` to `r10`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(u8);

impl Reg {
    /// Return value of functions and helpers.
    pub const R0: Reg = Reg(0);
    /// First argument; the context at the entry of a program.
    pub const R1: Reg = Reg(1);
    /// Second argument.
    pub const R2: Reg = Reg(2);
    /// Third argument.
    pub const R3: Reg = Reg(3);
    /// Fourth argument.
    pub const R4: Reg = Reg(4);
    /// Fifth argument.
    pub const R5: Reg = Reg(5);
    /// First callee-saved register.
    pub const R6: Reg = Reg(6);
    /// Second callee-saved register.
    pub const R7: Reg = Reg(7);
    /// Third callee-saved register.
    pub const R8: Reg = Reg(8);
    /// Fourth callee-saved register.
    pub const R9: Reg = Reg(9);
    /// The read-only frame pointer.
    pub const R10: Reg = Reg(10);

    /// The register of this number; `None` above 10.
    pub const fn new(n: u8) -> Option<Reg> {
        if n <= 10 { Some(Reg(n)) } else { None }
    }

    /// The number, 0 to 10.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// Width of an ALU operation or comparison.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Width {
    /// Reads the low halves and zero-extends the result (`w` registers).
    W32,
    /// The whole register.
    W64,
}

impl Width {
    /// 32 or 64.
    pub const fn bits(self) -> u32 {
        match self {
            Width::W32 => 32,
            Width::W64 => 64,
        }
    }
}

/// Size of a memory access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Size {
    /// One byte.
    B,
    /// Two bytes.
    H,
    /// Four bytes.
    W,
    /// Eight bytes.
    Dw,
}

impl Size {
    /// All sizes, ascending.
    pub const ALL: [Size; 4] = [Size::B, Size::H, Size::W, Size::Dw];

    /// Bytes accessed: 1, 2, 4 or 8.
    pub const fn bytes(self) -> u32 {
        match self {
            Size::B => 1,
            Size::H => 2,
            Size::W => 4,
            Size::Dw => 8,
        }
    }

    /// Bits accessed: 8, 16, 32 or 64.
    pub const fn bits(self) -> u32 {
        self.bytes() * 8
    }

    /// The size of this many bytes, if there is one.
    pub const fn from_bytes(n: u32) -> Option<Size> {
        Some(match n {
            1 => Size::B,
            2 => Size::H,
            4 => Size::W,
            8 => Size::Dw,
            _ => return None,
        })
    }

    const fn code(self) -> u8 {
        match self {
            Size::W => 0x00,
            Size::H => 0x08,
            Size::B => 0x10,
            Size::Dw => 0x18,
        }
    }

    const fn from_code(code: u8) -> Size {
        match code & 0x18 {
            0x00 => Size::W,
            0x08 => Size::H,
            0x10 => Size::B,
            _ => Size::Dw,
        }
    }
}

/// A binary ALU operation. Division and modulo by zero are defined: 0, and the dividend.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum AluOp {
    /// Addition.
    Add,
    /// Subtraction.
    Sub,
    /// Multiplication.
    Mul,
    /// Unsigned division.
    Div,
    /// Signed division (v4).
    SDiv,
    /// Unsigned remainder.
    Mod,
    /// Signed remainder (v4).
    SMod,
    /// Bitwise or.
    Or,
    /// Bitwise and.
    And,
    /// Bitwise exclusive or.
    Xor,
    /// Shift left; the count is taken modulo the width.
    Lsh,
    /// Logical shift right.
    Rsh,
    /// Arithmetic shift right.
    Arsh,
}

/// The condition of a branch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Cond {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Unsigned greater.
    Gt,
    /// Unsigned greater or equal.
    Ge,
    /// Unsigned less.
    Lt,
    /// Unsigned less or equal.
    Le,
    /// Signed greater.
    Sgt,
    /// Signed greater or equal.
    Sge,
    /// Signed less.
    Slt,
    /// Signed less or equal.
    Sle,
    /// Some bit in common.
    Set,
}

/// The second operand of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operand {
    /// A register.
    Reg(Reg),
    /// A constant, sign-extended to 64 bits where the operation is 64-bit.
    Imm(i32),
}

/// Byte order operation. `ToLe` and `ToBe` are relative to the host; `Swap` is unconditional (v4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SwapKind {
    /// To little endian: truncates on a little-endian machine.
    ToLe,
    /// To big endian: swaps on a little-endian machine.
    ToBe,
    /// Unconditional swap.
    Swap,
}

/// An atomic read-modify-write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AtomicOp {
    /// `*p += src`
    Add,
    /// `*p |= src`
    Or,
    /// `*p &= src`
    And,
    /// `*p ^= src`
    Xor,
    /// `swap(*p, src)`; always fetches.
    Xchg,
    /// `r0 = cmpxchg(*p, r0, src)`; always fetches, into `r0`.
    CmpXchg,
}

/// What the 64-bit constant of `ld_imm64` stands for (its `src` field).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pseudo {
    /// A plain 64-bit constant.
    None,
    /// A map by file descriptor.
    MapFd,
    /// The address of a map's value: fd in the low half, offset in the high half.
    MapValue,
    /// A kernel variable by BTF id.
    BtfId,
    /// The address of a function of this program, relative, in slots.
    Func,
    /// A map by index into `fd_array`.
    MapIdx,
    /// A map value by index into `fd_array`.
    MapIdxValue,
}

impl Pseudo {
    const fn code(self) -> u8 {
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

    const fn from_code(code: u8) -> Option<Pseudo> {
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

/// The addressing mode of the legacy packet loads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LegacyMode {
    /// Offset is the constant.
    Abs,
    /// Offset is the register plus the constant.
    Ind(Reg),
}

/// What a call instruction calls.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Callee {
    /// A helper by number.
    Helper(i32),
    /// A function of this program, relative, in slots.
    Local(i32),
    /// A kernel function: BTF id, and index into `fd_array` (0 for vmlinux).
    Kfunc {
        /// BTF id of the function.
        btf_id: i32,
        /// Module index.
        fd_idx: i16,
    },
    /// The function whose address a register holds (`callx`).
    Register(Reg),
}

/// One decoded instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Insn {
    /// `dst op= src`
    Alu {
        /// Width of the operation.
        width: Width,
        /// The operation.
        op: AluOp,
        /// Destination and first operand.
        dst: Reg,
        /// Second operand.
        src: Operand,
    },
    /// `dst = src`
    Mov {
        /// W32 zero-extends.
        width: Width,
        /// Destination.
        dst: Reg,
        /// Source.
        src: Operand,
    },
    /// `dst = (sN)src`, sign-extending the low `bits` bits to `width` (v4).
    MovSx {
        /// Width of the result.
        width: Width,
        /// 8, 16 or 32 (32 only to 64).
        bits: u8,
        /// Destination.
        dst: Reg,
        /// Source.
        src: Reg,
    },
    /// `dst = (type *) addr_space_cast src`: arena pointers; `imm` is `(from << 16) | to` as encoded.
    AddrSpaceCast {
        /// Destination.
        dst: Reg,
        /// Source.
        src: Reg,
        /// The two address spaces.
        imm: i32,
    },
    /// `dst = -dst`
    Neg {
        /// Width of the operation.
        width: Width,
        /// Destination and operand.
        dst: Reg,
    },
    /// `dst = byteswap(dst)`
    Swap {
        /// Relative to the host, or not.
        kind: SwapKind,
        /// 16, 32 or 64; the result is zero-extended.
        bits: u8,
        /// Destination and operand.
        dst: Reg,
    },
    /// `dst = imm ll`, two slots.
    LoadImm64 {
        /// Destination.
        dst: Reg,
        /// What the constant stands for.
        pseudo: Pseudo,
        /// Low slot's `imm` in the low half, high slot's in the high half.
        imm: u64,
        /// The `off` field of the first slot (fd array bookkeeping; 0 but for kernel-module symbols).
        off: i16,
    },
    /// `dst = *(size *)(src + off)`
    Load {
        /// Bytes read.
        size: Size,
        /// Sign-extend to 64 bits (v4).
        sext: bool,
        /// Destination.
        dst: Reg,
        /// Base.
        src: Reg,
        /// Displacement.
        off: i16,
    },
    /// `*(size *)(dst + off) = src`
    Store {
        /// Bytes written.
        size: Size,
        /// Base.
        dst: Reg,
        /// Displacement.
        off: i16,
        /// What is stored.
        src: Operand,
    },
    /// Atomic read-modify-write of `*(size *)(dst + off)`.
    Atomic {
        /// The operation.
        op: AtomicOp,
        /// Return the old value in `src` (in `r0` for `CmpXchg`).
        fetch: bool,
        /// Bytes accessed; the kernel takes 4 and 8.
        size: Size,
        /// Base.
        dst: Reg,
        /// Operand.
        src: Reg,
        /// Displacement.
        off: i16,
    },
    /// `dst = load_acquire((size *)(src + off))`
    LoadAcquire {
        /// Bytes read.
        size: Size,
        /// Destination.
        dst: Reg,
        /// Base.
        src: Reg,
        /// Displacement.
        off: i16,
    },
    /// `store_release((size *)(dst + off), src)`
    StoreRelease {
        /// Bytes written.
        size: Size,
        /// Base.
        dst: Reg,
        /// What is stored.
        src: Reg,
        /// Displacement.
        off: i16,
    },
    /// `r0 = *(size *)skb[...]`: legacy packet access through `r6`.
    LegacyLoad {
        /// Bytes read, in network order.
        size: Size,
        /// Addressing.
        mode: LegacyMode,
        /// Constant part of the offset.
        imm: i32,
    },
    /// `goto +off`
    Jump {
        /// Slots from the next instruction.
        off: i32,
        /// Encoded as `gotol` (v4, 32-bit offset).
        long: bool,
    },
    /// `if dst cond src goto +off`
    Branch {
        /// Width of the comparison.
        width: Width,
        /// The condition.
        cond: Cond,
        /// Left operand.
        dst: Reg,
        /// Right operand.
        src: Operand,
        /// Slots from the next instruction.
        off: i16,
    },
    /// `may_goto +off`: leaves the loop when its budget is spent.
    MayGoto {
        /// Slots from the next instruction.
        off: i16,
    },
    /// A call; arguments in `r1` to `r5`, result in `r0`.
    Call(Callee),
    /// Return `r0`.
    Exit,
}

/// One 8-byte slot, the kernel's `struct bpf_insn`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Raw {
    /// Opcode.
    pub code: u8,
    /// Destination register, 4 bits.
    pub dst: u8,
    /// Source register, 4 bits.
    pub src: u8,
    /// Offset.
    pub off: i16,
    /// Immediate.
    pub imm: i32,
}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x} dst={} src={} off={} imm={:#x}", self.code, self.dst, self.src, self.off, self.imm)
    }
}

impl Raw {
    /// The slot in the little-endian form of the kernel.
    pub fn to_bytes(self) -> [u8; 8] {
        let [o0, o1] = self.off.to_le_bytes();
        let [i0, i1, i2, i3] = self.imm.to_le_bytes();
        [self.code, self.src << 4 | self.dst & 15, o0, o1, i0, i1, i2, i3]
    }

    /// Reads one little-endian slot.
    pub fn from_bytes(b: [u8; 8]) -> Raw {
        Raw {
            code: b[0],
            dst: b[1] & 15,
            src: b[1] >> 4,
            off: i16::from_le_bytes([b[2], b[3]]),
            imm: i32::from_le_bytes([b[4], b[5], b[6], b[7]]),
        }
    }

    /// Splits a byte string into slots; `None` if its length is no multiple of 8.
    pub fn slice_from_bytes(bytes: &[u8]) -> Option<Vec<Raw>> {
        let (slots, rest) = bytes.as_chunks::<8>();
        rest.is_empty().then(|| slots.iter().map(|s| Raw::from_bytes(*s)).collect())
    }
}

/// Why a slot is no instruction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The opcode is not known.
    #[error("slot {at}: unknown opcode {code:#04x} (src {src}, off {off}, imm {imm:#x})")]
    Opcode {
        /// Slot index.
        at: usize,
        /// Opcode byte.
        code: u8,
        /// Source field.
        src: u8,
        /// Offset field.
        off: i16,
        /// Immediate field.
        imm: i32,
    },
    /// A register number above 10.
    #[error("slot {at}: register r{reg} does not exist")]
    Register {
        /// Slot index.
        at: usize,
        /// Offending number.
        reg: u8,
    },
    /// The second slot of `ld_imm64` is missing or is not one.
    #[error("slot {at}: ld_imm64 without its second slot")]
    Truncated {
        /// Slot index.
        at: usize,
    },
    /// A field that must be zero is not.
    #[error("slot {at}: reserved field set in opcode {code:#04x}")]
    Reserved {
        /// Slot index.
        at: usize,
        /// Opcode byte.
        code: u8,
    },
}

const CLASS_LD: u8 = 0;
const CLASS_LDX: u8 = 1;
const CLASS_ST: u8 = 2;
const CLASS_STX: u8 = 3;
const CLASS_ALU: u8 = 4;
const CLASS_JMP: u8 = 5;
const CLASS_JMP32: u8 = 6;
const CLASS_ALU64: u8 = 7;
const SRC_X: u8 = 8;
const MODE_IMM: u8 = 0x00;
const MODE_ABS: u8 = 0x20;
const MODE_IND: u8 = 0x40;
const MODE_MEM: u8 = 0x60;
const MODE_MEMSX: u8 = 0x80;
const MODE_ATOMIC: u8 = 0xc0;
const ATOMIC_FETCH: i32 = 1;
const ATOMIC_XCHG: i32 = 0xe0 | ATOMIC_FETCH;
const ATOMIC_CMPXCHG: i32 = 0xf0 | ATOMIC_FETCH;
const ATOMIC_LOAD_ACQ: i32 = 0x100;
const ATOMIC_STORE_REL: i32 = 0x110;

/// Decodes the instruction at slot `at`.
///
/// Strict: reserved fields must be zero, as the kernel demands.
///
/// # Errors
/// [`DecodeError`], located by slot.
pub fn decode(slots: &[Raw], at: usize) -> Result<Insn, DecodeError> {
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
pub fn decode_all(slots: &[Raw]) -> Result<Vec<(usize, Insn)>, DecodeError> {
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
    raw: Raw,
    at: usize,
}

impl Decoder {
    fn unknown(&self) -> DecodeError {
        let Raw { code, src, off, imm, .. } = self.raw;
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

    fn ld(&self, next: Option<&Raw>) -> Result<Insn, DecodeError> {
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

impl AluOp {
    const fn code(self) -> u8 {
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

    /// Whether the operands may be exchanged.
    pub const fn commutes(self) -> bool {
        matches!(self, AluOp::Add | AluOp::Mul | AluOp::Or | AluOp::And | AluOp::Xor)
    }
}

impl Cond {
    const fn code(self) -> u8 {
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

    /// The condition that holds exactly when this one does not; `None` for [`Cond::Set`], which has no opposite.
    pub const fn negated(self) -> Option<Cond> {
        Some(match self {
            Cond::Eq => Cond::Ne,
            Cond::Ne => Cond::Eq,
            Cond::Gt => Cond::Le,
            Cond::Ge => Cond::Lt,
            Cond::Lt => Cond::Ge,
            Cond::Le => Cond::Gt,
            Cond::Sgt => Cond::Sle,
            Cond::Sge => Cond::Slt,
            Cond::Slt => Cond::Sge,
            Cond::Sle => Cond::Sgt,
            Cond::Set => return None,
        })
    }

    /// The condition that says the same with the operands exchanged.
    pub const fn swapped(self) -> Cond {
        match self {
            Cond::Gt => Cond::Lt,
            Cond::Ge => Cond::Le,
            Cond::Lt => Cond::Gt,
            Cond::Le => Cond::Ge,
            Cond::Sgt => Cond::Slt,
            Cond::Sge => Cond::Sle,
            Cond::Slt => Cond::Sgt,
            Cond::Sle => Cond::Sge,
            same => same,
        }
    }
}

impl AtomicOp {
    const fn code(self) -> i32 {
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

fn raw(code: u8, dst: Reg, src: u8, off: i16, imm: i32) -> Raw {
    Raw { code, dst: dst.0, src, off, imm }
}

fn with_operand(code: u8, dst: Reg, src: Operand, off: i16) -> Raw {
    match src {
        Operand::Reg(src) => raw(code | SRC_X, dst, src.0, off, 0),
        Operand::Imm(imm) => raw(code, dst, 0, off, imm),
    }
}

impl Insn {
    /// Slots taken: 2 for `ld_imm64`, else 1.
    pub const fn slots(self) -> usize {
        if matches!(self, Insn::LoadImm64 { .. }) { 2 } else { 1 }
    }

    /// Appends the encoded slots.
    pub fn encode(self, out: &mut Vec<Raw>) {
        let class = |width| if width == Width::W64 { CLASS_ALU64 } else { CLASS_ALU };
        let r0 = Reg::R0;
        let atomic = |size: Size, dst, src: Reg, off, imm| {
            raw(CLASS_STX | MODE_ATOMIC | size.code(), dst, src.0, off, imm)
        };
        let slot = match self {
            Insn::Alu { width, op, dst, src } => {
                let signed = matches!(op, AluOp::SDiv | AluOp::SMod);
                with_operand(class(width) | op.code(), dst, src, i16::from(signed))
            }
            Insn::Mov { width, dst, src } => with_operand(class(width) | 0xb0, dst, src, 0),
            Insn::MovSx { width, bits, dst, src } => {
                raw(class(width) | 0xb0 | SRC_X, dst, src.0, i16::from(bits), 0)
            }
            Insn::AddrSpaceCast { dst, src, imm } => raw(CLASS_ALU64 | 0xb0 | SRC_X, dst, src.0, 1, imm),
            Insn::Neg { width, dst } => raw(class(width) | 0x80, dst, 0, 0, 0),
            Insn::Swap { kind, bits, dst } => {
                let code = match kind {
                    SwapKind::ToLe => CLASS_ALU | 0xd0,
                    SwapKind::ToBe => CLASS_ALU | 0xd0 | SRC_X,
                    SwapKind::Swap => CLASS_ALU64 | 0xd0,
                };
                raw(code, dst, 0, 0, i32::from(bits))
            }
            Insn::LoadImm64 { dst, pseudo, imm, off } => {
                out.push(raw(CLASS_LD | MODE_IMM | Size::Dw.code(), dst, pseudo.code(), off, imm as i32));
                raw(0, r0, 0, 0, (imm >> 32) as i32)
            }
            Insn::Load { size, sext, dst, src, off } => {
                let mode = if sext { MODE_MEMSX } else { MODE_MEM };
                raw(CLASS_LDX | mode | size.code(), dst, src.0, off, 0)
            }
            Insn::Store { size, dst, off, src: Operand::Reg(src) } => {
                raw(CLASS_STX | MODE_MEM | size.code(), dst, src.0, off, 0)
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
                LegacyMode::Ind(src) => raw(CLASS_LD | MODE_IND | size.code(), r0, src.0, 0, imm),
            },
            Insn::Jump { off, long: true } => raw(CLASS_JMP32, r0, 0, 0, off),
            Insn::Jump { off, long: false } => raw(CLASS_JMP, r0, 0, off as i16, 0),
            Insn::Branch { width, cond, dst, src, off } => {
                let class = if width == Width::W64 { CLASS_JMP } else { CLASS_JMP32 };
                with_operand(class | cond.code(), dst, src, off)
            }
            Insn::MayGoto { off } => raw(0xe5, r0, 0, off, 0),
            Insn::Call(callee) => match callee {
                Callee::Helper(id) => raw(0x85, r0, 0, 0, id),
                Callee::Local(rel) => raw(0x85, r0, 1, 0, rel),
                Callee::Kfunc { btf_id, fd_idx } => raw(0x85, r0, 2, fd_idx, btf_id),
                Callee::Register(reg) => raw(0x8d, reg, 0, 0, 0),
            },
            Insn::Exit => raw(0x95, r0, 0, 0, 0),
        };
        out.push(slot);
    }
}

/// Encodes a sequence of instructions.
pub fn encode_all(insns: &[Insn]) -> Vec<Raw> {
    let mut out = Vec::with_capacity(insns.len());
    for insn in insns {
        insn.encode(&mut out);
    }
    out
}
