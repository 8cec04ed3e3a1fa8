//! Text of instructions in the notation of the kernel's verifier and of bpftool.
//!
//! Hexadecimal in `r1 = 0x5` means `ld_imm64`, decimal in `r1 = 5` a move, as there. Fields that the kernel's
//! notation cannot express are added after it, so that [`assemble`](crate::asm::assemble) gives back the same
//! instruction: ` off:N` for the offset field of `ld_imm64`, `+N` for an upper half that its kind does not
//! use.
//!
//! Source: `kernel/bpf/disasm.c`, `tools/bpf/bpftool/xlated_dumper.c`.

use std::fmt::{self, Write};

use crate::helpers::Helper;
use crate::{
    AluOp, AtomicOp, Callee, Cond, Insn, LegacyMode, Operand, Pseudo, RawInsn, Reg, Size, SwapKind, Width,
};

/// Names for what instructions refer to by number. Every method may give `None`: the number is then shown.
pub trait Symbols {
    /// The label of the instruction at a slot, for jumps and calls of local functions.
    fn label(&self, slot: usize) -> Option<String> {
        let _ = slot;
        None
    }

    /// Name of the constant that the `ld_imm64` at slot `at` loads; shown unchanged, as in `map[routes]`.
    fn constant(&self, at: usize, pseudo: Pseudo, imm: u64) -> Option<String> {
        let _ = (at, pseudo, imm);
        None
    }

    /// The kernel function of this BTF id.
    fn kfunc(&self, btf_id: i32, fd_idx: i16) -> Option<String> {
        let _ = (btf_id, fd_idx);
        None
    }
}

/// No names at all: the text assembles to the same instructions.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSymbols;

impl Symbols for NoSymbols {}

/// The text of the instruction at slot `at`.
pub fn disasm(insn: &Insn, at: usize, symbols: &dyn Symbols) -> String {
    InsnText { insn, at, symbols }.to_string()
}

/// The text of a program, a line an instruction: slot, opcode, instruction, as the verifier's log has it.
///
/// `insns` are instructions with their slots, as [`decode_all`](crate::decode_all) gives them.
pub fn disasm_all(insns: &[(usize, Insn)], symbols: &dyn Symbols) -> String {
    let mut out = String::new();
    let mut slots: Vec<RawInsn> = Vec::with_capacity(2);
    for (at, insn) in insns {
        slots.clear();
        insn.encode(&mut slots);
        if let Some(label) = symbols.label(*at) {
            let _ = writeln!(out, "{label}:");
        }
        let code = slots.first().map_or(0, |slot| slot.code);
        let _ = writeln!(out, "{at:4}: ({code:02x}) {}", InsnText { insn, at: *at, symbols });
    }
    out
}

impl fmt::Display for Insn {
    /// The text without any names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        InsnText { insn: self, at: 0, symbols: &NoSymbols }.fmt(f)
    }
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.number())
    }
}

impl AluOp {
    /// All operations.
    pub const ALL: [AluOp; 13] = [
        AluOp::Add,
        AluOp::Sub,
        AluOp::Mul,
        AluOp::Div,
        AluOp::SDiv,
        AluOp::Mod,
        AluOp::SMod,
        AluOp::Or,
        AluOp::And,
        AluOp::Xor,
        AluOp::Lsh,
        AluOp::Rsh,
        AluOp::Arsh,
    ];

    /// The operator: `+`, `s>>`.
    pub const fn symbol(self) -> &'static str {
        match self {
            AluOp::Add => "+",
            AluOp::Sub => "-",
            AluOp::Mul => "*",
            AluOp::Div => "/",
            AluOp::SDiv => "s/",
            AluOp::Mod => "%",
            AluOp::SMod => "s%",
            AluOp::Or => "|",
            AluOp::And => "&",
            AluOp::Xor => "^",
            AluOp::Lsh => "<<",
            AluOp::Rsh => ">>",
            AluOp::Arsh => "s>>",
        }
    }
}

impl Cond {
    /// All conditions.
    pub const ALL: [Cond; 11] = [
        Cond::Eq,
        Cond::Ne,
        Cond::Gt,
        Cond::Ge,
        Cond::Lt,
        Cond::Le,
        Cond::Sgt,
        Cond::Sge,
        Cond::Slt,
        Cond::Sle,
        Cond::Set,
    ];

    /// The operator: `==`, `s>=`, `&`.
    pub const fn symbol(self) -> &'static str {
        match self {
            Cond::Eq => "==",
            Cond::Ne => "!=",
            Cond::Gt => ">",
            Cond::Ge => ">=",
            Cond::Lt => "<",
            Cond::Le => "<=",
            Cond::Sgt => "s>",
            Cond::Sge => "s>=",
            Cond::Slt => "s<",
            Cond::Sle => "s<=",
            Cond::Set => "&",
        }
    }
}

impl Size {
    /// `u8`, `u16`, `u32`, `u64`.
    pub const fn name(self) -> &'static str {
        match self {
            Size::B => "u8",
            Size::H => "u16",
            Size::W => "u32",
            Size::Dw => "u64",
        }
    }
}

impl AtomicOp {
    /// All operations.
    pub const ALL: [AtomicOp; 6] =
        [AtomicOp::Add, AtomicOp::Or, AtomicOp::And, AtomicOp::Xor, AtomicOp::Xchg, AtomicOp::CmpXchg];

    /// `add`, `cmpxchg`.
    pub const fn name(self) -> &'static str {
        match self {
            AtomicOp::Add => "add",
            AtomicOp::Or => "or",
            AtomicOp::And => "and",
            AtomicOp::Xor => "xor",
            AtomicOp::Xchg => "xchg",
            AtomicOp::CmpXchg => "cmpxchg",
        }
    }

    /// The operator of the form without fetch; `None` for the exchanges.
    pub const fn symbol(self) -> Option<&'static str> {
        Some(match self {
            AtomicOp::Add => "+",
            AtomicOp::Or => "|",
            AtomicOp::And => "&",
            AtomicOp::Xor => "^",
            AtomicOp::Xchg | AtomicOp::CmpXchg => return None,
        })
    }
}

/// A register as an operand of this width: `w1` or `r1`.
struct SizedReg(Width, Reg);

impl fmt::Display for SizedReg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.0 == Width::W32 { 'w' } else { 'r' }, self.1.number())
    }
}

/// A memory operand: `(u32 *)(r1 +4)`, to be preceded by `*` where it is accessed plainly.
struct MemoryOperand {
    size: Size,
    signed: bool,
    base: Reg,
    off: i16,
}

impl fmt::Display for MemoryOperand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.signed { self.size.name().replace('u', "s") } else { self.size.name().to_owned() };
        write!(f, "({name} *)({} {:+})", self.base, self.off)
    }
}

struct InsnText<'a> {
    insn: &'a Insn,
    at: usize,
    symbols: &'a dyn Symbols,
}

impl fmt::Display for InsnText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = |size, base, off| MemoryOperand { size, signed: false, base, off };
        match *self.insn {
            Insn::Alu { width, op, dst, src } => {
                write!(f, "{} {}= ", SizedReg(width, dst), op.symbol())?;
                operand(f, width, src)
            }
            Insn::Mov { width, dst, src } => {
                write!(f, "{} = ", SizedReg(width, dst))?;
                operand(f, width, src)
            }
            Insn::MovSx { width, bits, dst, src } => {
                write!(f, "{} = (s{bits}){}", SizedReg(width, dst), SizedReg(width, src))
            }
            Insn::AddrSpaceCast { dst, src, imm } => {
                write!(f, "{dst} = addr_space_cast({src}, {}, {})", imm as u32 >> 16, imm as u32 & 0xffff)
            }
            Insn::Neg { width, dst } => write!(f, "{0} = -{0}", SizedReg(width, dst)),
            Insn::Swap { kind, bits, dst } => write!(f, "{dst} = {}{bits} {dst}", kind.name()),
            Insn::LoadImm64 { dst, pseudo, imm, off } => self.load_imm64(f, dst, pseudo, imm, off),
            Insn::Load { size, sext, dst, src, off } => {
                write!(f, "{dst} = *{}", MemoryOperand { size, signed: sext, base: src, off })
            }
            Insn::Store { size, dst, off, src } => {
                write!(f, "*{} = ", memory(size, dst, off))?;
                operand(f, Width::W64, src)
            }
            Insn::Atomic { op, fetch, size, dst, src, off } => {
                atomic(f, op, fetch, &memory(size, dst, off), src)
            }
            Insn::LoadAcquire { size, dst, src, off } => {
                write!(f, "{dst} = load_acquire({})", memory(size, src, off))
            }
            Insn::StoreRelease { size, dst, src, off } => {
                write!(f, "store_release({}, {src})", memory(size, dst, off))
            }
            Insn::LegacyLoad { size, mode, imm } => {
                write!(f, "r0 = *({} *)skb[", size.name())?;
                match mode {
                    LegacyMode::Abs => write!(f, "{imm}]"),
                    LegacyMode::Ind(reg) => write!(f, "{reg} + {imm}]"),
                }
            }
            Insn::Jump { off, long } => {
                f.write_str(if long { "gotol " } else { "goto " })?;
                self.target(f, i64::from(off))
            }
            Insn::Branch { width, cond, dst, src, off } => {
                compare(f, width, cond, dst, src)?;
                f.write_str(" goto ")?;
                self.target(f, i64::from(off))
            }
            Insn::MayGoto { off } => {
                f.write_str("may_goto ")?;
                self.target(f, i64::from(off))
            }
            Insn::Call(callee) => self.call(f, callee),
            Insn::Exit => f.write_str("exit"),
        }
    }
}

impl InsnText<'_> {
    fn load_imm64(
        &self,
        f: &mut fmt::Formatter<'_>,
        dst: Reg,
        pseudo: Pseudo,
        imm: u64,
        off: i16,
    ) -> fmt::Result {
        write!(f, "{dst} = ")?;
        match self.symbols.constant(self.at, pseudo, imm) {
            Some(name) => f.write_str(&name)?,
            None => constant(f, pseudo, imm)?,
        }
        if off == 0 { Ok(()) } else { write!(f, " off:{off}") }
    }

    /// A jump target: its label, or the distance.
    fn target(&self, f: &mut fmt::Formatter<'_>, off: i64) -> fmt::Result {
        let slot = self.at as i64 + self.insn.slots() as i64 + off;
        match usize::try_from(slot).ok().and_then(|slot| self.symbols.label(slot)) {
            Some(label) => f.write_str(&label),
            None => write!(f, "pc{off:+}"),
        }
    }

    fn call(&self, f: &mut fmt::Formatter<'_>, callee: Callee) -> fmt::Result {
        match callee {
            Callee::Helper(id) => match Helper::get(id) {
                Some(helper) => write!(f, "call bpf_{}#{id}", helper.name),
                None => write!(f, "call unknown#{id}"),
            },
            Callee::Local(off) => {
                f.write_str("call ")?;
                self.target(f, i64::from(off))
            }
            Callee::Kfunc { btf_id, fd_idx } => {
                match self.symbols.kfunc(btf_id, fd_idx) {
                    Some(name) => write!(f, "call {name}#{btf_id}")?,
                    None => write!(f, "call kernel-function#{btf_id}")?,
                }
                if fd_idx == 0 { Ok(()) } else { write!(f, " off:{fd_idx}") }
            }
            Callee::Register(reg) => write!(f, "callx {reg}"),
        }
    }
}

impl SwapKind {
    /// `le`, `be`, `bswap`.
    pub const fn name(self) -> &'static str {
        match self {
            SwapKind::ToLe => "le",
            SwapKind::ToBe => "be",
            SwapKind::Swap => "bswap",
        }
    }
}

fn operand(f: &mut fmt::Formatter<'_>, width: Width, src: Operand) -> fmt::Result {
    match src {
        Operand::Reg(reg) => write!(f, "{}", SizedReg(width, reg)),
        Operand::Imm(imm) => write!(f, "{imm}"),
    }
}

fn compare(f: &mut fmt::Formatter<'_>, width: Width, cond: Cond, dst: Reg, src: Operand) -> fmt::Result {
    write!(f, "if {} {} ", SizedReg(width, dst), cond.symbol())?;
    match src {
        Operand::Reg(reg) => write!(f, "{}", SizedReg(width, reg)),
        Operand::Imm(imm) => write!(f, "{imm:#x}"),
    }
}

fn constant(f: &mut fmt::Formatter<'_>, pseudo: Pseudo, imm: u64) -> fmt::Result {
    let (low, high) = (imm as i32, (imm >> 32) as u32);
    match pseudo {
        Pseudo::None => return write!(f, "{imm:#x}"),
        Pseudo::MapFd => write!(f, "map[fd:{low}]")?,
        Pseudo::MapValue => write!(f, "map[fd:{low}][0]")?,
        Pseudo::MapIdx => write!(f, "map[idx:{low}]")?,
        Pseudo::MapIdxValue => write!(f, "map[idx:{low}][0]")?,
        Pseudo::BtfId => write!(f, "btf[{low}]")?,
        Pseudo::Func => write!(f, "subprog[{low:+}]")?,
    }
    if high == 0 { Ok(()) } else { write!(f, "+{high}") }
}

fn atomic(
    f: &mut fmt::Formatter<'_>,
    op: AtomicOp,
    fetch: bool,
    memory: &MemoryOperand,
    src: Reg,
) -> fmt::Result {
    let wide = if memory.size == Size::Dw { "64" } else { "" };
    match (op, op.symbol()) {
        (_, Some(symbol)) if !fetch => write!(f, "lock *{memory} {symbol}= {src}"),
        (AtomicOp::CmpXchg, _) => write!(f, "r0 = atomic{wide}_cmpxchg({memory}, r0, {src})"),
        (AtomicOp::Xchg, _) => write!(f, "{src} = atomic{wide}_xchg({memory}, {src})"),
        _ => write!(f, "{src} = atomic{wide}_fetch_{}({memory}, {src})", op.name()),
    }
}
