//! The size of the machine code that the kernel's x86-64 JIT makes of bytecode: an estimate that ranks
//! alternatives.
//!
//! Counted for each instruction as the JIT of 6.18 emits it, short and long jumps included. The verifier's
//! earlier patches (context accesses, checks of kernel pointers) are the same for alternatives of one program
//! and left out, except lookups and tail calls, which are long enough to put jumps out of reach.
//!
//! Source: `arch/x86/net/bpf_jit_comp.c`.

use millstream_isa::helpers::id;
use millstream_isa::{AluOp, AtomicOp, Callee, Cond, Insn, Operand, Reg, Size, SwapKind, Width};

/// Bytes of machine code for a function, about. `symbols` are the slots with a relocation, ascending.
pub fn jited_bytes(insns: &[Insn], symbols: &[u32]) -> u32 {
    let mut slot = Vec::with_capacity(insns.len() + 1);
    let mut at = 0i64;
    for i in insns {
        slot.push(at);
        at += i.slots() as i64;
    }
    slot.push(at);
    let index = |s: i64| slot.partition_point(|&x| x < s).min(insns.len());
    let first_exit = insns.iter().position(|i| matches!(i, Insn::Exit));
    let pieces = insns.iter().zip(&slot).enumerate().map(|(n, (&insn, &s))| match insn {
        Insn::Exit if first_exit == Some(n) => CodeFragment::plain(EXIT),
        Insn::Exit => {
            CodeFragment { bytes: 0, jump: Some(FragmentJump { to: first_exit.unwrap_or(n), plain: true }) }
        }
        _ => {
            let plain = matches!(insn, Insn::Jump { .. });
            let to = |off| FragmentJump { to: index(s + 1 + off), plain };
            let symbol = symbols.binary_search(&(s as u32)).is_ok();
            CodeFragment {
                bytes: if symbol { relocated(insn) } else { body(insn) },
                jump: jump(insn).map(to),
            }
        }
    });
    let pieces: Vec<CodeFragment> = pieces.collect();
    relaxed(&pieces) + frame(insns.iter().fold(0, |set, &i| set | mentioned(i)))
}

/// Bytes of the first `exit`, the registers' restoration apart; each further one jumps to it.
pub(crate) const EXIT: u32 = 6;

/// Machine code of fixed length, and the jump that ends it.
#[derive(Clone, Copy)]
pub(crate) struct CodeFragment {
    pub(crate) bytes: u32,
    pub(crate) jump: Option<FragmentJump>,
}

/// A jump to the start of a piece.
#[derive(Clone, Copy)]
pub(crate) struct FragmentJump {
    pub(crate) to: usize,
    /// Unconditional.
    pub(crate) plain: bool,
}

impl CodeFragment {
    pub(crate) fn plain(bytes: u32) -> CodeFragment {
        CodeFragment { bytes, jump: None }
    }
}

/// The length of pieces one after the other. Jumps start long and are shortened until nothing changes, as the
/// JIT does.
pub(crate) fn relaxed(pieces: &[CodeFragment]) -> u32 {
    // Pieces with their jumps, and the jumps that are long: the piece, and where they go.
    let mut bytes = Vec::with_capacity(pieces.len());
    let mut long = Vec::with_capacity(pieces.len());
    for (i, p) in pieces.iter().enumerate() {
        // A jump to what follows is none, also over what makes no code.
        let follows =
            |to: usize| to > i && pieces[i + 1..to].iter().all(|p| p.bytes == 0 && p.jump.is_none());
        let jump = p.jump.filter(|j| !(j.plain && follows(j.to)));
        long.extend(jump.map(|j| (i, j)));
        bytes.push(p.bytes as i32 + jump.map_or(0, |j| if j.plain { 5 } else { 6 }));
    }
    let mut start = vec![0i32; pieces.len() + 1];
    for _ in 0..6 {
        let mut at = 0;
        for (start, bytes) in start[1..].iter_mut().zip(&bytes) {
            at += bytes;
            *start = at;
        }
        let before = long.len();
        long.retain(|&(i, j)| {
            // The JIT leaves room up to 127, so that its passes converge.
            let near = (-128..=123).contains(&(start[j.to] - start[i + 1]));
            if near {
                bytes[i] -= if j.plain { 3 } else { 4 };
            }
            !near
        });
        if long.len() == before {
            break;
        }
    }
    start[pieces.len()] as u32
}

/// Pushes and pops of the callee-saved registers in a set of mentioned ones, and the stack pointer's
/// adjustment.
pub(crate) fn frame(mentioned: u16) -> u32 {
    let used = |r: u32| u32::from(mentioned & 1 << r != 0);
    used(6) * 2 + (7..10).map(|r| used(r) * 4).sum::<u32>() + used(10) * 7
}

/// The registers that an instruction names, as bits.
pub(crate) fn mentioned(insn: Insn) -> u16 {
    let op = |o: Operand| if let Operand::Reg(r) = o { 1 << r.index() } else { 0 };
    match insn {
        Insn::Alu { dst, src, .. }
        | Insn::Mov { dst, src, .. }
        | Insn::Store { dst, src, .. }
        | Insn::Branch { dst, src, .. } => 1 << dst.index() | op(src),
        Insn::MovSx { dst, src, .. }
        | Insn::AddrSpaceCast { dst, src, .. }
        | Insn::Load { dst, src, .. }
        | Insn::Atomic { dst, src, .. }
        | Insn::LoadAcquire { dst, src, .. }
        | Insn::StoreRelease { dst, src, .. } => 1 << dst.index() | 1 << src.index(),
        Insn::Neg { dst, .. } | Insn::Swap { dst, .. } | Insn::LoadImm64 { dst, .. } => 1 << dst.index(),
        _ => 0,
    }
}

fn jump(insn: Insn) -> Option<i64> {
    match insn {
        Insn::Jump { off, .. } => Some(i64::from(off)),
        Insn::Branch { off, .. } | Insn::MayGoto { off } => Some(i64::from(off)),
        _ => None,
    }
}

/// Registers that need a prefix: r8 and r13 to r15 of the machine.
fn ext(r: Reg) -> u32 {
    u32::from(matches!(r.index(), 5 | 7 | 8 | 9))
}

fn any_ext(a: Reg, b: Reg) -> u32 {
    ext(a).max(ext(b))
}

fn is_imm8(v: i32) -> bool {
    i8::try_from(v).is_ok()
}

/// ModRM with displacement.
fn disp(off: i16) -> u32 {
    if i8::try_from(off).is_ok() { 2 } else { 5 }
}

/// Bytes of an instruction whose constant is a symbol, not known yet but an address of the kernel.
pub(crate) fn relocated(insn: Insn) -> u32 {
    if let Insn::LoadImm64 { .. } = insn { 10 } else { body(insn) }
}

/// Bytes of an instruction, the jump that ends it apart.
pub(crate) fn body(insn: Insn) -> u32 {
    match insn {
        Insn::Alu { width, op, dst, src } => alu(width, op, dst, src),
        Insn::Mov { width, dst, src } => mov(width, dst, src),
        Insn::MovSx { width: Width::W64, bits, .. } => 3 + u32::from(bits != 32),
        Insn::MovSx { dst, src, .. } => 3 + any_ext(dst, src),
        Insn::AddrSpaceCast { .. } => 10,
        Insn::Neg { width: Width::W64, .. } => 3,
        Insn::Neg { dst, .. } => 2 + ext(dst),
        Insn::Swap { kind, bits, dst } => swap(kind, bits, dst),
        Insn::LoadImm64 { dst, pseudo: millstream_isa::Pseudo::None, imm, .. } => match imm {
            0 => 2 + ext(dst),
            _ if u32::try_from(imm).is_ok() => 5 + ext(dst),
            _ if i32::try_from(imm as i64).is_ok() => 7,
            _ => 10,
        },
        Insn::LoadImm64 { .. } => 10,
        Insn::Load { size: Size::B | Size::H, off, .. } => disp(off) + 3,
        Insn::Load { size: Size::W, sext: false, dst, src, off } => disp(off) + 1 + any_ext(dst, src),
        Insn::Load { off, .. } => disp(off) + 2,
        Insn::Store { size, dst, off, src } => disp(off) + store(size, dst, src),
        Insn::Atomic { op, fetch, size, dst, src, off } => {
            let wide = if size == Size::Dw { 1 } else { any_ext(dst, src) };
            disp(off) + 2 + wide + u32::from(fetch && op != AtomicOp::Xchg)
        }
        Insn::LoadAcquire { .. } | Insn::StoreRelease { .. } => 5,
        Insn::LegacyLoad { .. } => 40,
        Insn::Branch { width, cond, dst, src, .. } => compare(width, cond, dst, src),
        Insn::MayGoto { .. } => 20,
        // The verifier puts the lookup in an array in its place, or a call with a test of the result.
        Insn::Call(Callee::Helper(id::MAP_LOOKUP_ELEM)) => 24,
        Insn::Call(Callee::Helper(id::TAIL_CALL)) => 55,
        Insn::Call(_) => 5,
        Insn::Jump { .. } | Insn::Exit => 0,
    }
}

fn mov(width: Width, dst: Reg, src: Operand) -> u32 {
    match (width, src) {
        (Width::W64, Operand::Reg(_)) => 3,
        (Width::W32, Operand::Reg(src)) => 2 + any_ext(dst, src),
        (_, Operand::Imm(0)) => 2 + ext(dst),
        (Width::W64, Operand::Imm(..0)) => 7,
        (_, Operand::Imm(_)) => 5 + ext(dst),
    }
}

fn swap(kind: SwapKind, bits: u8, dst: Reg) -> u32 {
    match (kind, bits) {
        (SwapKind::ToLe, 16) => 3 + ext(dst),
        (SwapKind::ToLe, 64) => 0,
        (_, 16) => 7 + 2 * ext(dst),
        (_, 32) => 2 + ext(dst),
        _ => 3,
    }
}

fn alu(width: Width, op: AluOp, dst: Reg, src: Operand) -> u32 {
    let wide = width == Width::W64;
    let prefix = if wide { 1 } else { ext(dst) };
    match (op, src) {
        (AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod, _) => 22,
        (AluOp::Mul, Operand::Imm(imm)) => 2 + prefix + if is_imm8(imm) { 1 } else { 4 },
        (AluOp::Mul, Operand::Reg(src)) => 3 + if wide { 1 } else { any_ext(dst, src) },
        (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, Operand::Imm(imm)) => 2 + prefix + u32::from(imm != 1),
        (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, Operand::Reg(src)) => {
            if src == Reg::R4 {
                2 + prefix
            } else {
                5
            }
        }
        (_, Operand::Imm(imm)) if is_imm8(imm) => 3 + prefix,
        (_, Operand::Imm(_)) => {
            if dst == Reg::R0 {
                5 + prefix
            } else {
                6 + prefix
            }
        }
        (_, Operand::Reg(src)) => 2 + if wide { 1 } else { any_ext(dst, src) },
    }
}

fn store(size: Size, dst: Reg, src: Operand) -> u32 {
    match (size, src) {
        (Size::B, Operand::Imm(_)) => 2 + ext(dst),
        (Size::H, Operand::Imm(_)) => 4 + ext(dst),
        (Size::W, Operand::Imm(_)) => 5 + ext(dst),
        (Size::Dw, Operand::Imm(_)) => 6,
        (Size::B, Operand::Reg(src)) => {
            // The low bytes of rdi and rsi need a prefix too.
            1 + any_ext(dst, src).max(u32::from(matches!(src.index(), 1 | 2)))
        }
        (Size::H, Operand::Reg(src)) => 2 + any_ext(dst, src),
        (Size::W, Operand::Reg(src)) => 1 + any_ext(dst, src),
        (Size::Dw, Operand::Reg(_)) => 2,
    }
}

fn compare(width: Width, cond: Cond, dst: Reg, src: Operand) -> u32 {
    let wide = width == Width::W64;
    let prefix = if wide { 1 } else { ext(dst) };
    match (cond, src) {
        (_, Operand::Reg(src)) => 2 + if wide { 1 } else { any_ext(dst, src) },
        (Cond::Set, Operand::Imm(_)) => 6 + prefix,
        (_, Operand::Imm(0)) => 2 + prefix,
        (_, Operand::Imm(imm)) if is_imm8(imm) => 3 + prefix,
        (_, Operand::Imm(_)) => 6 + prefix,
    }
}

#[cfg(test)]
mod tests {
    use millstream_isa::asm::assemble;

    use super::*;

    fn bytes(text: &str) -> u32 {
        jited_bytes(&assemble(text).expect("it assembles"), &[])
    }

    #[test]
    fn a_jump_over_what_makes_no_code_is_none() {
        let nothing = "r0 = le64 r0";
        assert_eq!(bytes(&format!("goto pc+1\n{nothing}\nexit")), bytes(&format!("{nothing}\nexit")));
        assert_eq!(bytes("goto pc+0\nexit"), bytes("exit"));
        assert_eq!(bytes("goto pc+1\nr0 = 0\nexit"), bytes("r0 = 0\nexit") + 2);
    }
}
