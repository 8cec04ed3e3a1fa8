//! Accesses in parts, for addresses that are not aligned to their sizes.

use millstream_isa::{AluOp, Insn, Operand, Reg, Size, Width};

use super::code::{FunctionUnderRepair, copy, set};

fn shift(op: AluOp, dst: Reg, bits: u32) -> Insn {
    Insn::Alu { width: Width::W64, op, dst, src: Operand::Imm(bits as i32) }
}

impl FunctionUnderRepair {
    pub(super) fn split_access(&mut self, line: usize, part: u8) -> Option<()> {
        let part = Size::from_bytes(part.into())?;
        match self.insn(line)? {
            Insn::Load { size, sext, dst, src, off } if part.bytes() < size.bytes() => {
                self.split_load(line, (size, part), sext, dst, (src, off))
            }
            Insn::Store { size, dst, off, src } if part.bytes() < size.bytes() => {
                self.split_store(line, (size, part), (dst, off), src)
            }
            _ => None,
        }
    }

    fn split_load(
        &mut self,
        line: usize,
        (size, part): (Size, Size),
        sext: bool,
        dst: Reg,
        (base, off): (Reg, i16),
    ) -> Option<()> {
        let whole = if dst == base { None } else { Some(dst) };
        let other = self.borrow(line, &[base, dst])?;
        let (whole, kept) = match whole {
            Some(whole) => (whole, None),
            None => {
                let kept = self.borrow(line, &[base, other.register])?;
                (kept.register, Some(kept))
            }
        };
        let load =
            |dst, at: u32| Insn::Load { size: part, sext: false, dst, src: base, off: off + at as i16 };
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
        self.replace(line, &insns)
    }

    fn split_store(
        &mut self,
        line: usize,
        (size, part): (Size, Size),
        (base, off): (Reg, i16),
        src: Operand,
    ) -> Option<()> {
        let source = if let Operand::Reg(r) = src { r } else { base };
        let rest = self.borrow(line, &[base, source])?;
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
        self.replace(line, &insns)
    }

    fn replace(&mut self, line: usize, insns: &[Insn]) -> Option<()> {
        let (block, at) = self.place(line)?;
        self.insert(block, at, insns)?;
        let old = self.code.blocks.get_mut(block)?.lines.remove(at + insns.len());
        old.core.is_none().then_some(())
    }
}
