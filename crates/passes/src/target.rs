//! Properties of the target that passes must know.

use millstream_ir::{AluOp, Op};
use millstream_isa::ByteOrder;
use millstream_isa::absint::AbstractDomain;
use millstream_isa::generation::{KernelRange, VerifierGeneration};

/// Relative costs of operations, a register-to-register operation being 1 unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpCosts {
    /// A multiplication.
    pub mul: u32,
    /// A division or remainder.
    pub div: u32,
    /// A constant that does not fit a signed 32-bit immediate.
    pub wide_const: u32,
    /// A conditional branch.
    pub branch: u32,
    /// A comparison that gives a truth value: there is no such instruction in BPF, it takes a branch and
    /// moves.
    pub cmp: u32,
}

/// The rules of a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetInfo {
    /// The code will face the kernel's verifier: facts that it has learnt from the original code must stay
    /// visible.
    pub keep_verifier_facts: bool,
    /// Memory accesses must be aligned to their size.
    pub strict_alignment: bool,
    /// Byte order of memory.
    pub byte_order: ByteOrder,
    /// BPF instruction set version, 1 to 4: which operations may be introduced.
    pub isa: u8,
    /// Kernels whose verifiers will see the code: facts that they have learnt must stay visible to each of
    /// them.
    pub kernels: KernelRange,
    /// Maps have as many entries as the object says: the code is loaded where it is made, or no loader
    /// changes them.
    pub map_sizes_hold: bool,
    /// The verifier finds out that a lookup of a constant index below the size of an array finds an entry
    /// (Linux 6.14 and later, `can_elide_value_nullness` of `kernel/bpf/verifier.c`), so that its result need
    /// not be tested.
    pub elides_null_checks: bool,
    /// A slot counts more than the time that its instruction takes.
    pub slots_first: bool,
    /// Costs.
    pub costs: OpCosts,
}

impl TargetInfo {
    /// The verifier of Linux 6.18 and its x86-64 JIT, for instruction set `isa`.
    pub const fn bpf(isa: u8) -> TargetInfo {
        TargetInfo {
            keep_verifier_facts: true,
            strict_alignment: false,
            byte_order: ByteOrder::Little,
            isa,
            kernels: KernelRange::only(VerifierGeneration::V6_18),
            map_sizes_hold: false,
            elides_null_checks: false,
            slots_first: false,
            costs: OpCosts { mul: 3, div: 25, wide_const: 2, branch: 2, cmp: 4 },
        }
    }

    /// Native code, which no verifier sees.
    pub const fn native() -> TargetInfo {
        TargetInfo {
            keep_verifier_facts: false,
            strict_alignment: false,
            byte_order: ByteOrder::HOST,
            isa: 4,
            kernels: KernelRange::only(VerifierGeneration::NEWEST),
            map_sizes_hold: false,
            elides_null_checks: true,
            slots_first: false,
            costs: OpCosts { mul: 3, div: 25, wide_const: 1, branch: 2, cmp: 1 },
        }
    }

    /// The same target for other kernels.
    pub const fn on(self, kernels: KernelRange) -> TargetInfo {
        TargetInfo { kernels, ..self }
    }

    /// The domain of what all verifiers that will see the code know of values.
    pub const fn domain(&self) -> AbstractDomain {
        AbstractDomain::new(self.kernels.common_knowledge())
    }

    /// Returns true if a verifier will see the code that knows less of values than the newest ones.
    pub fn targets_older_verifiers(&self) -> bool {
        self.keep_verifier_facts && self.domain().knowledge != VerifierGeneration::NEWEST.knowledge()
    }

    /// Cost of having `value` at hand as an operand: 0 where it is an immediate.
    pub const fn const_cost(&self, value: i64) -> u32 {
        if value == value as i32 as i64 { 0 } else { self.costs.wide_const }
    }

    /// Cost of an operation whose operands are at hand. A comparison as a value takes a branch and moves.
    pub fn op_cost(&self, op: &Op) -> u32 {
        match op {
            Op::Alu { op: AluOp::Mul, .. } => self.costs.mul,
            Op::Alu { op: AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod, .. } => self.costs.div,
            Op::Cmp { .. } => self.costs.cmp,
            Op::Branch { .. } => self.costs.branch,
            Op::Select {} => self.costs.branch + 1,
            // Up and down again.
            Op::Sext { .. } if !self.has_v4() => 2,
            Op::Const { value } => self.const_cost(*value),
            _ => 1,
        }
    }

    /// Returns true if sign extension in registers (`movsx`) and unconditional byte swap exist.
    pub const fn has_v4(&self) -> bool {
        self.isa >= 4
    }

    /// Returns true if 32-bit compare-and-branch exists.
    pub const fn has_jmp32(&self) -> bool {
        self.isa >= 3
    }
}
