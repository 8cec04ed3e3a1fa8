//! A program that writes its stack before anything else.
//!
//! Linux 6.3 and later let programs read bytes of the stack that nobody has written, and pass them on. Such bytes
//! are left over from the kernel's own calls: the same twice in a row, and still no behaviour of the program.
//! With this form as the second run of the first program, results that depend on them vary.

use millstream_isa::{Insn, Operand, RawInsn, Reg, Size, decode_all, encode_all};
use millstream_object::LinkedProgram;

/// Value of each four bytes.
const PATTERN: i32 = 0x5eed_b10c;
/// Bytes of a frame.
const FRAME: i32 = 512;

/// The same program, with each slot of the stack that it names written at the start of its first function; [`None`]
/// if it names none.
pub(super) fn with_written_stack(linked: &LinkedProgram) -> Option<LinkedProgram> {
    let end = linked.functions.get(1).map_or(linked.insns.len(), |(start, _)| *start as usize);
    let insns = decode_all(linked.insns.get(..end)?).ok()?;
    let slots = insns.iter().filter_map(|(_, insn)| depth(*insn)).max()?.unsigned_abs().div_ceil(8) as i32;
    let store = |n: i32| Insn::Store {
        size: Size::Dw,
        dst: Reg::R10,
        off: (-8 * n) as i16,
        src: Operand::Imm(PATTERN),
    };
    let start: Vec<RawInsn> = encode_all(&(1..=slots).map(store).collect::<Vec<_>>());
    let by = start.len() as u32;
    // What is said of the program's start stays there.
    let moved = |insn: u32| if insn == 0 { 0 } else { insn + by };
    let mut made = linked.clone();
    made.insns.splice(0..0, start);
    made.relocs.iter_mut().for_each(|r| r.insn += by);
    made.core_relos.iter_mut().for_each(|r| r.insn += by);
    made.functions.iter_mut().for_each(|(insn, _)| *insn = moved(*insn));
    made.func_info.iter_mut().for_each(|(insn, _)| *insn = moved(*insn));
    made.line_info.iter_mut().for_each(|l| l.insn = moved(l.insn));
    Some(made)
}

/// Bytes of the stack that an instruction may name: those of an access below any base, which may be a copy of R10, and
/// those below a sum.
fn depth(insn: Insn) -> Option<i32> {
    let off = match insn {
        Insn::Load { off, .. }
        | Insn::LoadAcquire { off, .. }
        | Insn::Store { off, .. }
        | Insn::StoreRelease { off, .. }
        | Insn::Atomic { off, .. } => i32::from(off),
        Insn::Alu { src: Operand::Imm(by), .. } => by,
        _ => return None,
    };
    (-FRAME..0).contains(&off).then_some(-off)
}

#[cfg(test)]
mod tests {
    use millstream_isa::asm::assemble;
    use millstream_object::FuncId;

    use super::*;

    fn linked(text: &str) -> LinkedProgram {
        let insns = encode_all(&assemble(text).expect("it assembles"));
        LinkedProgram { insns, functions: vec![(0, FuncId(0))], ..LinkedProgram::default() }
    }

    #[test]
    fn slots_that_a_program_names_are_written_first() {
        let written = |text: &str| with_written_stack(&linked(text)).map(|made| made.insns.len());
        assert_eq!(written("r0 = 0\n exit"), None);
        assert_eq!(written("r0 = *(u64 *)(r10 -8)\n exit"), Some(3));
        assert_eq!(written("r1 = r10\n r0 = *(u64 *)(r1 -16)\n exit"), Some(5));
        assert_eq!(written("r1 = r10\n r1 += -20\n r0 = *(u32 *)(r1 +0)\n exit"), Some(7));
    }
}
