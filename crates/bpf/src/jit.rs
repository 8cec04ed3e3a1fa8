//! The size of the machine code that the kernel's x86-64 JIT makes of bytecode: an estimate that ranks alternatives.
//!
//! Counted for each instruction as the JIT of 6.18 emits it, short and long jumps included. What the verifier patches
//! in before (context accesses, inlined lookups) is the same for alternatives of one program and left out.
//!
//! Source: `arch/x86/net/bpf_jit_comp.c`.

use millstream_isa::{AluOp, Cond, Insn, Operand, Reg, Size, SwapKind, Width};

/// Bytes of machine code for a function, about.
pub fn jited_bytes(insns: &[Insn]) -> u32 {
    let sizes: Vec<u32> = insns.iter().map(|&i| body(i)).collect();
    let mut slot = Vec::with_capacity(insns.len() + 1);
    let mut at = 0i64;
    for i in insns {
        slot.push(at);
        at += i.slots() as i64;
    }
    slot.push(at);
    let index = |s: i64| slot.partition_point(|&x| x < s).min(insns.len());
    let targets: Vec<Option<usize>> =
        insns.iter().zip(&slot).map(|(&i, &s)| jump(i).map(|off| index(s + 1 + off))).collect();
    let first_exit = insns.iter().position(|i| matches!(i, Insn::Exit));
    // Start with long jumps and shorten until nothing changes, as the JIT does.
    let mut long = vec![true; insns.len()];
    let mut start = vec![0i64; insns.len() + 1];
    for _ in 0..6 {
        for i in 0..insns.len() {
            start[i + 1] =
                start[i] + i64::from(sizes[i]) + i64::from(branch(insns[i], i, first_exit, long[i]));
        }
        let mut changed = false;
        for i in 0..insns.len() {
            let to = match insns[i] {
                Insn::Exit if first_exit != Some(i) => first_exit,
                _ => targets[i],
            };
            let near = to.is_some_and(|t| i8::try_from(start[t] - start[i + 1]).is_ok());
            changed |= long[i] && near;
            long[i] &= !near;
        }
        if !changed {
            break;
        }
    }
    start[insns.len()] as u32 + frame(insns)
}

/// Pushes and pops of the callee-saved registers in use, and the stack pointer's adjustment.
fn frame(insns: &[Insn]) -> u32 {
    let mut used = [false; 11];
    for &i in insns {
        for r in mentioned(i) {
            used[r.index()] = true;
        }
    }
    let saved = u32::from(used[6]) * 2 + (7..10).map(|r| u32::from(used[r]) * 4).sum::<u32>();
    saved + if used[10] { 7 } else { 0 }
}

fn mentioned(insn: Insn) -> impl Iterator<Item = Reg> {
    let op = |o: Operand| if let Operand::Reg(r) = o { Some(r) } else { None };
    let (a, b) = match insn {
        Insn::Alu { dst, src, .. } | Insn::Mov { dst, src, .. } | Insn::Store { dst, src, .. } => {
            (Some(dst), op(src))
        }
        Insn::Branch { dst, src, .. } => (Some(dst), op(src)),
        Insn::MovSx { dst, src, .. }
        | Insn::AddrSpaceCast { dst, src, .. }
        | Insn::Load { dst, src, .. }
        | Insn::Atomic { dst, src, .. }
        | Insn::LoadAcquire { dst, src, .. }
        | Insn::StoreRelease { dst, src, .. } => (Some(dst), Some(src)),
        Insn::Neg { dst, .. } | Insn::Swap { dst, .. } | Insn::LoadImm64 { dst, .. } => (Some(dst), None),
        _ => (None, None),
    };
    a.into_iter().chain(b)
}

fn jump(insn: Insn) -> Option<i64> {
    match insn {
        Insn::Jump { off, .. } => Some(i64::from(off)),
        Insn::Branch { off, .. } | Insn::MayGoto { off } => Some(i64::from(off)),
        _ => None,
    }
}

/// Bytes of the jump at the end of an instruction.
fn branch(insn: Insn, at: usize, first_exit: Option<usize>, long: bool) -> u32 {
    match insn {
        Insn::Branch { .. } | Insn::MayGoto { .. } => {
            if long {
                6
            } else {
                2
            }
        }
        Insn::Jump { off: 0, .. } => 0,
        Insn::Jump { .. } => {
            if long {
                5
            } else {
                2
            }
        }
        Insn::Exit if first_exit == Some(at) => 6,
        Insn::Exit => {
            if long {
                5
            } else {
                2
            }
        }
        _ => 0,
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

fn body(insn: Insn) -> u32 {
    match insn {
        Insn::Alu { width, op, dst, src } => alu(width, op, dst, src),
        Insn::Mov { width: Width::W64, src: Operand::Reg(_), .. } => 3,
        Insn::Mov { dst, src: Operand::Reg(src), .. } => 2 + any_ext(dst, src),
        Insn::Mov { dst, src: Operand::Imm(0), .. } => 2 + ext(dst),
        Insn::Mov { width, dst, src: Operand::Imm(imm) } => {
            if width == Width::W64 && imm < 0 {
                7
            } else {
                5 + ext(dst)
            }
        }
        Insn::MovSx { width: Width::W64, bits, .. } => {
            if bits == 32 {
                3
            } else {
                4
            }
        }
        Insn::MovSx { dst, src, .. } => 3 + any_ext(dst, src),
        Insn::AddrSpaceCast { .. } => 10,
        Insn::Neg { width, dst } => {
            if width == Width::W64 {
                3
            } else {
                2 + ext(dst)
            }
        }
        Insn::Swap { kind: SwapKind::ToLe, bits, dst } => match bits {
            16 => 4 + ext(dst),
            32 => 2 + ext(dst),
            _ => 0,
        },
        Insn::Swap { bits, dst, .. } => match bits {
            16 => 7 + 2 * ext(dst),
            32 => 2 + ext(dst),
            _ => 3,
        },
        Insn::LoadImm64 { dst, pseudo: millstream_isa::Pseudo::None, imm, .. } => match imm {
            0 => 2 + ext(dst),
            _ if u32::try_from(imm).is_ok() => 5 + ext(dst),
            _ if i32::try_from(imm as i64).is_ok() => 7,
            _ => 10,
        },
        Insn::LoadImm64 { .. } => 10,
        Insn::Load { size, sext, dst, src, off } => {
            disp(off)
                + match (size, sext) {
                    (Size::B | Size::H, _) => 3,
                    (Size::W, false) => 1 + any_ext(dst, src),
                    _ => 2,
                }
        }
        Insn::Store { size, dst, off, src } => disp(off) + store(size, dst, src),
        Insn::Atomic { fetch, size, dst, src, off, .. } => {
            let wide = if size == Size::Dw { 1 } else { any_ext(dst, src) };
            disp(off) + 2 + wide + u32::from(fetch)
        }
        Insn::LoadAcquire { .. } | Insn::StoreRelease { .. } => 5,
        Insn::LegacyLoad { .. } => 40,
        Insn::Branch { width, cond, dst, src, .. } => compare(width, cond, dst, src),
        Insn::MayGoto { .. } => 20,
        Insn::Call(_) => 5,
        Insn::Jump { .. } | Insn::Exit => 0,
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
