//! Edits of a function's code that change what its verification costs, and nothing that it does.
//!
//! [`VerifierEdit::ExploreOther`] swaps the sides of a branch: the verifier walks the side first to which
//! control falls through, and the state of that side should be the more general one. [`VerifierEdit::Forget`]
//! sends a number through the stack in such a way that the verifier knows no more of it than its greatest
//! value. Where paths meet with different numbers, it then walks the rest once and not once for each number.
//!
//! The bound comes from a dataflow analysis of all paths, so that it never changes the number.

use millstream_isa::absint::Scalar;
use millstream_isa::{AluOp, Cond, Insn, Operand, Reg, Size, Width};
use millstream_object::{FuncId, Object};

use crate::code::{CodeLine, FunctionCode, InsnBlock};
use crate::facts::{FunctionContext, RegisterKind, analyze};

/// Bytes of stack that a function may use.
pub(crate) const FRAME: i64 = 512;

/// An edit of a function.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum VerifierEdit {
    /// Swaps the sides of the branch at the end of a block.
    ExploreOther {
        /// The function.
        func: u32,
        /// The block, counted in the function as it was.
        block: usize,
    },
    /// Makes the verifier forget a number at the beginning of a block.
    Forget {
        /// The function.
        func: u32,
        /// The block, counted in the function as it was.
        block: usize,
        /// The register.
        register: Reg,
        /// Greatest value of the number: a power of two less one, below 2^32.
        most: u32,
    },
}

impl VerifierEdit {
    /// The function.
    pub fn func(&self) -> u32 {
        match self {
            VerifierEdit::ExploreOther { func, .. } | VerifierEdit::Forget { func, .. } => *func,
        }
    }
}

/// An object whose functions can be edited again and again.
#[derive(Debug)]
pub struct EditableFunction {
    func: u32,
    code: FunctionCode,
    /// Least offset from the frame's upper end that is free.
    free: Option<i64>,
    /// Numbers at the beginning of blocks, by register: their greatest values.
    bounds: Vec<[Option<u32>; 10]>,
}

impl EditableFunction {
    /// Reads a function; [`None`] if it is not understood.
    pub fn new(object: &Object, func: u32) -> Option<EditableFunction> {
        let function = object.functions.get(func as usize).filter(|f| !f.removed && f.kept.is_none())?;
        let code = FunctionCode::new(function)?;
        let free = lowest_offset(&code).map(|low| low.div_euclid(8) * 8 - 8).filter(|at| *at >= -FRAME);
        let bounds = bounds(object, func, &code);
        Some(EditableFunction { func, code, free, bounds })
    }

    /// The function.
    pub fn func(&self) -> u32 {
        self.func
    }

    /// The edit that swaps the sides of the branch at the end of each block.
    pub fn swaps(&self) -> impl Iterator<Item = VerifierEdit> {
        let last = |n: &usize| self.code.blocks.get(*n).and_then(|b| b.lines.last());
        let swappable = move |n: &usize| {
            *n + 1 < self.code.blocks.len()
                && last(n).is_some_and(|l| matches!(l.insn, Insn::Branch { cond, .. } if cond != Cond::Set))
        };
        (0..self.code.blocks.len())
            .filter(swappable)
            .map(|block| VerifierEdit::ExploreOther { func: self.func, block })
    }

    /// The block that contains a line.
    pub fn block_of(&self, line: usize) -> Option<usize> {
        self.code.blocks.iter().rposition(|b| b.first as usize <= line)
    }

    /// The edit that forgets a number at the beginning of a block; [`None`] if it is not known to be small.
    pub fn forget(&self, block: usize, register: u8) -> Option<VerifierEdit> {
        self.free?;
        let register = Reg::new(register)?;
        let most = (*self.bounds.get(block)?.get(register.index())?)?;
        Some(VerifierEdit::Forget { func: self.func, block, register, most })
    }

    /// The function with edits, put into an object.
    pub fn apply(&self, object: &mut Object, edits: &[VerifierEdit]) -> bool {
        let mut code = self.code.clone();
        let mut own: Vec<VerifierEdit> = edits.iter().filter(|e| e.func() == self.func).copied().collect();
        if own.is_empty() {
            return true;
        }
        // Later blocks first: an edit moves only what follows it.
        own.sort_unstable_by_key(|e| match e {
            VerifierEdit::ExploreOther { block, .. } => (std::cmp::Reverse(*block), 0),
            VerifierEdit::Forget { block, .. } => (std::cmp::Reverse(*block), 1),
        });
        for edit in own {
            match edit {
                VerifierEdit::ExploreOther { block, .. } => swap_sides(&mut code, block),
                VerifierEdit::Forget { block, register, most, .. } => {
                    let (Some(at), Some(block)) = (self.free, code.blocks.get_mut(block)) else {
                        return false;
                    };
                    let source = block.lines.first().and_then(|l| l.source);
                    let lines = forgetting(register, most, at as i16)
                        .map(|insn| CodeLine { source, ..CodeLine::new(insn) });
                    block.lines.splice(0..0, lines);
                }
            }
        }
        code.link();
        object.replace_function(FuncId(self.func), code.function()).is_ok()
    }
}

/// Instructions after which the verifier knows only the greatest value of a number.
///
/// The number plus one is stored where a spilled register cannot be, so that it becomes bytes of unknown
/// value. Zero would stay zero: hence the one.
fn forgetting(r: Reg, most: u32, slot: i16) -> impl Iterator<Item = Insn> {
    let off = slot + 4;
    let alu = move |width, op, imm| Insn::Alu { width, op, dst: r, src: Operand::Imm(imm) };
    let mask = i32::try_from(most).ok().map(|most| alu(Width::W64, AluOp::And, most));
    let through = [
        alu(Width::W32, AluOp::Add, 1),
        Insn::Store { size: Size::W, dst: Reg::R10, off, src: Operand::Reg(r) },
        Insn::Load { size: Size::W, sext: false, dst: r, src: Reg::R10, off },
        alu(Width::W32, AluOp::Sub, 1),
    ];
    through.into_iter().chain(mask)
}

fn swap_sides(code: &mut FunctionCode, block: usize) {
    let Some(line) = code.blocks.get_mut(block).and_then(|b| b.lines.last_mut()) else { return };
    let (Insn::Branch { width, cond, dst, src, .. }, Some(target)) = (line.insn, line.target) else { return };
    let Some(cond) = negated(cond) else { return };
    line.insn = Insn::Branch { width, cond, dst, src, off: 0 };
    line.target = Some(block + 1);
    let jump = CodeLine {
        target: Some(target),
        source: line.source,
        ..CodeLine::new(Insn::Jump { off: 0, long: false })
    };
    let inserted = InsnBlock { lines: vec![jump], ..InsnBlock::default() };
    code.blocks.insert(block + 1, inserted);
    for line in code.blocks.iter_mut().flat_map(|b| &mut b.lines) {
        if let Some(to) = &mut line.target
            && *to > block
        {
            *to += 1;
        }
    }
}

fn negated(cond: Cond) -> Option<Cond> {
    Some(match cond {
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

/// The lowest offset from the frame pointer that a function uses; [`None`] if it may use any.
pub(crate) fn lowest_offset(code: &FunctionCode) -> Option<i64> {
    let mut low = 0i64;
    for block in &code.blocks {
        let mut copies = [false; 11];
        copies[10] = true;
        for line in &block.lines {
            match line.insn {
                Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) } => {
                    copies[dst.index()] = copies[src.index()]
                }
                Insn::Alu { op: AluOp::Add, dst, src: Operand::Imm(k), .. } if copies[dst.index()] => {
                    low = low.min(k.into());
                    // Further additions are relative to this one.
                    copies[dst.index()] = k >= 0;
                }
                Insn::Alu { dst, src: Operand::Reg(r), .. } if copies[dst.index()] || copies[r.index()] => {
                    return None;
                }
                Insn::Load { src: Reg::R10, off, .. } => low = low.min(off.into()),
                Insn::Store { dst: Reg::R10, off, .. }
                | Insn::Atomic { dst: Reg::R10, off, .. }
                | Insn::StoreRelease { dst: Reg::R10, off, .. } => low = low.min(off.into()),
                _ => {}
            }
        }
    }
    Some(low)
}

/// Greatest values of the numbers at the beginning of each block, as powers of two less one.
fn bounds(object: &Object, func: u32, code: &FunctionCode) -> Vec<[Option<u32>; 10]> {
    let mut world = FunctionContext::new(object, FuncId(func));
    let bound = |x: Scalar| {
        let most = x.unsigned().1;
        u32::try_from(u64::MAX >> most.max(1).leading_zeros()).ok()
    };
    let facts = analyze(code, &mut world);
    facts
        .into_iter()
        .map(|state| {
            let Some(state) = state else { return [None; 10] };
            std::array::from_fn(|n| match state.regs[n].kind {
                RegisterKind::Number(x) => bound(x),
                _ => None,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use millstream_isa::asm::assemble;
    use millstream_isa::generation::VerifierGeneration;
    use millstream_isa::{RawInsn, encode_all};
    use millstream_object::RawInput;
    use millstream_prove::{ProofLimits, ProofVerdict, prove};

    use super::*;
    use crate::{StateDifference, verification_effort, verification_profile};

    fn object(text: &str) -> Object {
        let insns = encode_all(&assemble(text).expect("it assembles"));
        let insns: Vec<u8> = insns.into_iter().flat_map(RawInsn::to_bytes).collect();
        let files = RawInput { insns: &insns, ..RawInput::default() };
        Object::parse_raw("edit_xdp.insns", files, None).expect("a program")
    }

    fn effort(object: &Object) -> u64 {
        let effort = verification_effort(object, FuncId(0), VerifierGeneration::V6_18, 100_000);
        assert!(effort.certain);
        effort.instructions
    }

    fn edited(object: &Object, function: &EditableFunction, edits: &[VerifierEdit]) -> Object {
        let mut edited = object.clone();
        assert!(function.apply(&mut edited, edits));
        let proof = prove((object, FuncId(0)), (&edited, FuncId(0)), None, &ProofLimits::default());
        assert!(!matches!(proof.verdict, ProofVerdict::Differs(_)), "{:?}", proof.verdict);
        edited
    }

    const END: &str = "r1 = r10\n r1 += -64\n r1 += r6\n r2 = 1\n *(u8 *)(r1 +0) = r2\n r0 = 2\n exit";

    #[test]
    fn numbers_that_are_forgotten_at_joins_keep_no_states_apart() {
        let step = "r6 += 0\n".repeat(10);
        let diamond = |n: usize| {
            let bit = 1 << n;
            format!("call get_prandom_u32\n if r0 > 5 goto other{n}\n r6 ^= {bit}\n other{n}:\n {step}")
        };
        let all: String = (0..6).map(diamond).collect();
        let object = object(&format!("r6 = 0\n {all} r6 &= 63\n {END}"));
        let function = EditableFunction::new(&object, 0).expect("a function");
        let (_, misses) = verification_profile(&object, FuncId(0), VerifierGeneration::V6_18, 100_000);
        let mut edits = Vec::new();
        for miss in misses {
            if let StateDifference::Register(r) = miss.difference {
                let edit = function.block_of(miss.line).and_then(|block| function.forget(block, r));
                edits.extend(edit.filter(|e| !edits.contains(e)));
            }
        }
        assert!(!edits.is_empty());
        assert!(2 * effort(&edited(&object, &function, &edits)) < effort(&object));
    }

    #[test]
    fn the_more_general_side_of_a_branch_covers_the_other_one() {
        // The verifier keeps states only behind several jumps.
        let step = "r6 += 0\n".repeat(10);
        let tail: String = (0..6).map(|n| format!("{step} goto t{n}\n t{n}:\n")).collect();
        let text = format!(
            "call get_prandom_u32\n r6 = r0\n r6 &= 7\n if r6 > 5 goto join\n r6 = 6\n join:\n {tail} {END}"
        );
        let object = object(&text);
        let function = EditableFunction::new(&object, 0).expect("a function");
        let swap: Vec<VerifierEdit> = function.swaps().collect();
        assert_eq!(swap.len(), 1);
        let swapped = edited(&object, &function, &swap);
        assert!(effort(&swapped) < effort(&object), "{} {}", effort(&swapped), effort(&object));
    }

    #[test]
    fn a_function_without_free_stack_forgets_nothing() {
        let full =
            object("r6 = 0\n *(u64 *)(r10 -512) = r6\n if r6 > 5 goto on\n r6 = 1\n on:\n r0 = r6\n exit");
        let function = EditableFunction::new(&full, 0).expect("a function");
        assert_eq!(function.forget(2, 6), None);
    }
}
