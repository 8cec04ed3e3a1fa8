//! Accesses in parts, for addresses that are not aligned to their sizes.

use millstream_isa::{AluOp, Insn, Operand, Reg, Size, Width};

use super::code::{FunctionUnderRepair, copy, set};

fn shift(op: AluOp, dst: Reg, bits: u32) -> Insn {
    Insn::Alu { width: Width::W64, op, dst, src: Operand::Imm(bits as i32) }
}

pub(super) fn split_access(function: &mut FunctionUnderRepair, line: usize, part: u8) -> Option<()> {
    let part = Size::from_bytes(part.into())?;
    match function.insn(line)? {
        Insn::Load { size, sext, dst, src, off } if part.bytes() < size.bytes() => {
            split_load(function, line, (size, part), sext, dst, (src, off))
        }
        Insn::Store { size, dst, off, src } if part.bytes() < size.bytes() => {
            split_store(function, line, (size, part), (dst, off), src)
        }
        _ => None,
    }
}

fn split_load(
    function: &mut FunctionUnderRepair,
    line: usize,
    (size, part): (Size, Size),
    sext: bool,
    dst: Reg,
    (base, off): (Reg, i16),
) -> Option<()> {
    let whole = if dst == base { None } else { Some(dst) };
    let other = function.borrow(line, &[base, dst])?;
    let (whole, kept) = match whole {
        Some(whole) => (whole, None),
        None => {
            let kept = function.borrow(line, &[base, other.register])?;
            (kept.register, Some(kept))
        }
    };
    let load = |dst, at: u32| Insn::Load { size: part, sext: false, dst, src: base, off: off + at as i16 };
    let mut insns: Vec<Insn> = other.save().into_iter().chain(kept.and_then(|k| k.save())).collect();
    let parts = size.bytes() / part.bytes();
    insns.push(load(whole, (parts - 1) * part.bytes()));
    for n in (0..parts - 1).rev() {
        insns.push(shift(AluOp::Lsh, whole, part.bits()));
        insns.push(load(other.register, n * part.bytes()));
        let src = Operand::Reg(other.register);
        insns.push(Insn::Alu { width: Width::W64, op: AluOp::Or, dst: whole, src });
    }
    if sext && size != Size::Dw {
        insns.push(shift(AluOp::Lsh, whole, 64 - size.bits()));
        insns.push(shift(AluOp::Arsh, whole, 64 - size.bits()));
    }
    if whole != dst {
        insns.push(copy(dst, whole));
    }
    insns.extend(kept.and_then(|k| k.restore()).into_iter().chain(other.restore()));
    replace(function, line, &insns)
}

fn split_store(
    function: &mut FunctionUnderRepair,
    line: usize,
    (size, part): (Size, Size),
    (base, off): (Reg, i16),
    src: Operand,
) -> Option<()> {
    let source = if let Operand::Reg(r) = src { r } else { base };
    let rest = function.borrow(line, &[base, source])?;
    let first = match src {
        Operand::Reg(r) => copy(rest.register, r),
        Operand::Imm(k) => set(rest.register, k),
    };
    let mut insns: Vec<Insn> = rest.save().into_iter().chain([first]).collect();
    for n in 0..size.bytes() / part.bytes() {
        if n > 0 {
            insns.push(shift(AluOp::Rsh, rest.register, part.bits()));
        }
        let off = off + (n * part.bytes()) as i16;
        insns.push(Insn::Store { size: part, dst: base, off, src: Operand::Reg(rest.register) });
    }
    insns.extend(rest.restore());
    replace(function, line, &insns)
}

fn replace(function: &mut FunctionUnderRepair, line: usize, insns: &[Insn]) -> Option<()> {
    let (block, at) = function.place(line)?;
    function.insert(block, at, insns)?;
    let old = function.code.blocks.get_mut(block)?.lines.remove(at + insns.len());
    old.core.is_none().then_some(())
}
