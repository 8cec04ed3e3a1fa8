//! Machine instructions before and during register allocation, in the form that `regalloc2` reads.
//!
//! Operands of an instruction are in a fixed order that its [`MOp`] states; after allocation the registers
//! come back in the same order.

use millstream_ir::{AluOp, AtomicOp, Cond, Core, Size, Slot, SwapKind, Width};
use regalloc2::{
    Block, Inst, InstRange, MachineEnv, Operand, OperandConstraint, OperandKind, OperandPos, PReg, PRegSet,
    RegClass, VReg,
};

use super::LoweringStrategy;
use crate::lift::RelocTarget;

/// Base of a memory access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AddressBase {
    /// A register: the first operand.
    Reg,
    /// A byte of a stack object.
    Frame(Slot, i32),
}

/// Target of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CallTarget {
    Helper(i32),
    Sym(RelocTarget),
    /// The address in the first operand.
    Indirect,
}

/// Operation of a machine instruction. The comment gives its operands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum MOp {
    /// defs: parameters in r1...
    Args,
    /// def; emits nothing, or a zero where somebody reads it.
    Undef,
    /// use a, [use b], def = a
    Alu {
        op: AluOp,
        width: Width,
        imm: Option<i32>,
        core: Option<Core>,
    },
    /// use a, def = a
    Neg {
        width: Width,
    },
    /// use a, def = a
    Swap {
        kind: SwapKind,
        bits: u8,
    },
    /// use, def
    Copy,
    /// use, def
    Zext,
    /// use, def
    Sext {
        bits: u8,
        width: Width,
    },
    /// use, def
    Cast {
        spaces: i32,
    },
    /// def
    Imm {
        value: i64,
    },
    /// def
    Sym {
        sym: RelocTarget,
    },
    /// def
    CoreImm {
        core: Core,
        local: i64,
        wide: bool,
    },
    /// def
    Lea {
        slot: Slot,
        offset: i32,
    },
    /// [use base], def
    Load {
        size: Size,
        sext: bool,
        base: AddressBase,
        offset: i32,
        core: Option<Core>,
    },
    /// [use base], [use value]
    Store {
        size: Size,
        base: AddressBase,
        offset: i32,
        imm: Option<i32>,
        core: Option<Core>,
    },
    /// [use base], use value
    Atomic {
        op: AtomicOp,
        size: Size,
        base: AddressBase,
        offset: i32,
    },
    /// [use base], use value, def = value
    AtomicFetch {
        op: AtomicOp,
        size: Size,
        base: AddressBase,
        offset: i32,
    },
    /// [use base], use value, use expected in r0, def in r0
    CmpXchg {
        size: Size,
        base: AddressBase,
        offset: i32,
    },
    /// [use base], def
    LoadAcquire {
        size: Size,
        base: AddressBase,
        offset: i32,
    },
    /// [use base], use value
    StoreRelease {
        size: Size,
        base: AddressBase,
        offset: i32,
    },
    /// use ctx in r6, [use index], def in r0
    Legacy {
        size: Size,
        offset: i32,
        indexed: bool,
    },
    /// [use callee], uses in r1..., [def in r0]
    Call {
        target: CallTarget,
    },
    Jump,
    /// use a, [use b]
    Branch {
        cond: Cond,
        width: Width,
        imm: Option<i32>,
    },
    MayGoto,
    /// [use in r0]
    Return,
    Unreachable,
}

/// A machine instruction: its operation and where its operands and clobbers are.
#[derive(Clone, Debug)]
pub(crate) struct MInst {
    pub(crate) op: MOp,
    pub(crate) operands: std::ops::Range<u32>,
    pub(crate) clobbers: PRegSet,
    pub(crate) loc: u32,
}

/// A block of machine instructions.
#[derive(Clone, Debug)]
pub(crate) struct MBlock {
    pub(crate) insts: std::ops::Range<u32>,
    pub(crate) params: Vec<VReg>,
    pub(crate) succs: Vec<Block>,
    pub(crate) preds: Vec<Block>,
    /// Arguments for each successor.
    pub(crate) args: Vec<Vec<VReg>>,
}

/// A function of machine instructions. Blocks are in layout order.
#[derive(Clone, Debug, Default)]
pub(crate) struct MFunc {
    pub(crate) insts: Vec<MInst>,
    pub(crate) operands: Vec<Operand>,
    pub(crate) blocks: Vec<MBlock>,
    pub(crate) vregs: usize,
    /// The choices that bear on the selected code: the others make no difference.
    pub(crate) bearing: LoweringStrategy,
}

/// The register `rN`.
pub(crate) fn preg(n: usize) -> PReg {
    PReg::new(n, RegClass::Int)
}

/// `r1` to `r5`, gone after every call.
pub(crate) fn call_clobbers() -> PRegSet {
    (1..=5).fold(PRegSet::empty(), |set, n| set.with(preg(n)))
}

/// The registers that may be allocated. Those that survive calls come second: using one costs a push and a
/// pop. So does `r0`, which calls and returns want, unless it is `free`.
pub(crate) fn machine_env(free_r0: bool) -> MachineEnv {
    let set = |range: std::ops::RangeInclusive<usize>| range.fold(PRegSet::empty(), |s, n| s.with(preg(n)));
    let (first, second) =
        if free_r0 { (set(0..=5), set(6..=9)) } else { (set(1..=5), set(6..=9).with(preg(0))) };
    MachineEnv {
        preferred_regs_by_class: [first, PRegSet::empty(), PRegSet::empty()],
        non_preferred_regs_by_class: [second, PRegSet::empty(), PRegSet::empty()],
        scratch_by_class: [None, None, None],
        fixed_stack_slots: Vec::new(),
    }
}

/// Operand constructors, named for their role.
pub(crate) fn used(v: VReg) -> Operand {
    Operand::reg_use(v)
}

/// A use in a given register.
pub(crate) fn used_in(v: VReg, n: usize) -> Operand {
    Operand::reg_fixed_use(v, preg(n))
}

/// A result in any register.
pub(crate) fn defined(v: VReg) -> Operand {
    Operand::reg_def(v)
}

/// A result in a given register.
pub(crate) fn defined_in(v: VReg, n: usize) -> Operand {
    Operand::reg_fixed_def(v, preg(n))
}

/// A result in the register of an operand.
pub(crate) fn redefined(v: VReg, operand: usize) -> Operand {
    Operand::new(v, OperandConstraint::Reuse(operand), OperandKind::Def, OperandPos::Late)
}

impl regalloc2::Function for MFunc {
    fn num_insts(&self) -> usize {
        self.insts.len()
    }

    fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    fn entry_block(&self) -> Block {
        Block::new(0)
    }

    fn block_insns(&self, block: Block) -> InstRange {
        let range = &self.blocks[block.index()].insts;
        InstRange::new(Inst::new(range.start as usize), Inst::new(range.end as usize))
    }

    fn block_succs(&self, block: Block) -> &[Block] {
        &self.blocks[block.index()].succs
    }

    fn block_preds(&self, block: Block) -> &[Block] {
        &self.blocks[block.index()].preds
    }

    fn block_params(&self, block: Block) -> &[VReg] {
        &self.blocks[block.index()].params
    }

    fn is_ret(&self, inst: Inst) -> bool {
        matches!(self.insts[inst.index()].op, MOp::Return | MOp::Unreachable)
    }

    fn is_branch(&self, inst: Inst) -> bool {
        matches!(self.insts[inst.index()].op, MOp::Jump | MOp::Branch { .. } | MOp::MayGoto)
    }

    fn branch_blockparams(&self, block: Block, _inst: Inst, succ: usize) -> &[VReg] {
        &self.blocks[block.index()].args[succ]
    }

    fn inst_operands(&self, inst: Inst) -> &[Operand] {
        let range = &self.insts[inst.index()].operands;
        &self.operands[range.start as usize..range.end as usize]
    }

    fn inst_clobbers(&self, inst: Inst) -> PRegSet {
        self.insts[inst.index()].clobbers
    }

    fn num_vregs(&self) -> usize {
        self.vregs
    }

    fn spillslot_size(&self, _class: RegClass) -> usize {
        1
    }
}
