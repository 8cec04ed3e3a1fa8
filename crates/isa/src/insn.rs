//! The instruction type and its parts.

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

    /// The number, 0 to 10, as encoded.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The number, 0 to 10, as an index.
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
///
/// The host is little-endian here. Programs of big-endian machines are read so that they do the same on it:
/// see [`RawInsn::from_bytes_in`](crate::RawInsn::from_bytes_in).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SwapKind {
    /// To little endian: truncates.
    ToLe,
    /// To big endian: swaps.
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

/// Meaning of the 64-bit constant of `ld_imm64` (its `src` field).
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

/// The addressing mode of the legacy packet loads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LegacyMode {
    /// Offset is the constant.
    Abs,
    /// Offset is the register plus the constant.
    Ind(Reg),
}

/// Target of a call instruction.
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
        /// Meaning of the constant.
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
        /// Value to store.
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
        /// Value to store.
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

impl AluOp {
    /// Returns true if the operands may be exchanged.
    pub const fn commutes(self) -> bool {
        matches!(self, AluOp::Add | AluOp::Mul | AluOp::Or | AluOp::And | AluOp::Xor)
    }
}

impl Cond {
    /// The condition that holds exactly when this one does not; `None` for [`Cond::Set`], which has no
    /// opposite.
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

impl Insn {
    /// Gives every register that the instruction names another name. Registers that it uses without naming
    /// them, as a call does, stay.
    pub fn rename(&mut self, name: impl Fn(Reg) -> Reg) {
        let operand = |o: &mut Operand| {
            if let Operand::Reg(r) = o {
                *r = name(*r);
            }
        };
        match self {
            Insn::Alu { dst, src, .. }
            | Insn::Mov { dst, src, .. }
            | Insn::Store { dst, src, .. }
            | Insn::Branch { dst, src, .. } => {
                *dst = name(*dst);
                operand(src);
            }
            Insn::MovSx { dst, src, .. }
            | Insn::AddrSpaceCast { dst, src, .. }
            | Insn::Load { dst, src, .. }
            | Insn::Atomic { dst, src, .. }
            | Insn::LoadAcquire { dst, src, .. }
            | Insn::StoreRelease { dst, src, .. } => {
                *dst = name(*dst);
                *src = name(*src);
            }
            Insn::Neg { dst, .. } | Insn::Swap { dst, .. } | Insn::LoadImm64 { dst, .. } => *dst = name(*dst),
            Insn::LegacyLoad { mode: LegacyMode::Ind(r), .. } | Insn::Call(Callee::Register(r)) => {
                *r = name(*r)
            }
            Insn::LegacyLoad { mode: LegacyMode::Abs, .. }
            | Insn::Call(_)
            | Insn::Jump { .. }
            | Insn::MayGoto { .. }
            | Insn::Exit => {}
        }
    }
}
