//! Blocks of bytecode between register allocation and layout.

use millstream_ir::{Cond, Core, Width};
use millstream_isa::{Insn, Reg};

use crate::jit;
use crate::lift::RelocTarget;

/// An instruction with its relocation and source line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EmittedInsn {
    pub(super) insn: Insn,
    pub(super) sym: Option<RelocTarget>,
    pub(super) core: Option<Core>,
    pub(super) loc: u32,
    /// Registers that a call reads.
    pub(super) args: u16,
    /// Stands for an undefined value: dropped, or made a zero.
    pub(super) undef: bool,
}

impl EmittedInsn {
    /// Bytes of machine code.
    pub(super) fn bytes(&self) -> u32 {
        if self.sym.is_some() { jit::relocated(self.insn) } else { jit::body(self.insn) }
    }
}

/// Terminator of a block; targets are block indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Terminator {
    Return,
    Jump(usize),
    Branch { cond: Cond, width: Width, dst: Reg, src: SrcOperand, taken: usize, fall: usize },
    MayGoto { taken: usize, fall: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SrcOperand {
    Reg(Reg),
    Imm(i32),
}

#[derive(Clone, Debug)]
pub(super) struct EmittedBlock {
    pub(super) body: Vec<EmittedInsn>,
    pub(super) term: Terminator,
    pub(super) loc: u32,
}

/// The blocks that control may go to next.
pub(super) fn successors(term: Terminator) -> impl Iterator<Item = usize> {
    let (a, b) = match term {
        Terminator::Return => (None, None),
        Terminator::Jump(t) => (Some(t), None),
        Terminator::Branch { taken, fall, .. } | Terminator::MayGoto { taken, fall } => {
            (Some(taken), Some(fall))
        }
    };
    a.into_iter().chain(b)
}
