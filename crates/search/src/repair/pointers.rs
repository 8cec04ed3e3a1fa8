//! Accesses through pointers that were moved by constants.

use millstream_isa::{AluOp, Insn, Operand, Width};

use super::code::FunctionUnderRepair;

pub(super) fn move_back(function: &mut FunctionUnderRepair, line: usize, by: i16) -> Option<()> {
    let (block, at) = function.place(line)?;
    let lines = &mut function.code.blocks.get_mut(block)?.lines;
    let insn = &mut lines.get_mut(at)?.insn;
    let (base, is_lost) = match insn {
        Insn::Load { src, dst, off, .. } => {
            *off = off.checked_add(by)?;
            (*src, src == dst)
        }
        Insn::Store { dst, off, .. } | Insn::Atomic { dst, off, .. } => {
            *off = off.checked_add(by)?;
            (*dst, false)
        }
        _ => return None,
    };
    let add =
        |by: i16| Insn::Alu { width: Width::W64, op: AluOp::Add, dst: base, src: Operand::Imm(by.into()) };
    if !is_lost {
        function.insert(block, at + 1, &[add(by)])?;
    }
    function.insert(block, at, &[add(by.checked_neg()?)])
}
