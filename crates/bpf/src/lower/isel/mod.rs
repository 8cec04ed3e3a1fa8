//! Instruction selection: IR to machine instructions.
//!
//! Blocks are visited in postorder and each from its end, so that every use of a value is seen before its
//! definition: a constant that all users took as an immediate, or an address that all folded, is never made.
//!
//! Verifier contract kept here (numbers are sections of the contract page):
//! - context accesses are base + displacement, never a modified base, and constants are stored there from
//!   registers where a kernel wants that (6);
//! - only constants, `r10 + k` and `ld_imm64` are made anew at their uses; loads and pointer sums never (1,
//!   5);
//! - the pointer is the left operand of a sum (7);
//! - comparisons keep their width, and pointers are compared with the immediate 0, never with a register that
//!   holds it (2, 3);
//! - immediate shifts are below the width, and no immediate divisor is 0 (10).

mod memory;

use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{EntityRef, SecondaryMap};
use millstream_ir::{
    AluOp, Block, BlockCall, Cfg, Cond, Core, Function, Inst, Op, Size, Slot, Type, Value, Width, op_group,
};
use millstream_isa::generation::{KernelRange, VerifierGeneration};
use regalloc2::{Block as MBlockId, Operand, PRegSet, RegClass, VReg};

use super::live::{LiveAcrossCalls, is_call};
use super::mir::*;
use super::{LowerError, LoweringStrategy};
use crate::lift::RelocTarget;

/// Selects instructions for a function without critical edges.
pub(super) fn select(
    func: &Function,
    cfg: &Cfg,
    crossing: &LiveAcrossCalls,
    strategy: LoweringStrategy,
    kernels: KernelRange,
) -> Result<MFunc, LowerError> {
    let order: Vec<Block> = func.layout.iter().copied().filter(|&b| cfg.is_reachable(b)).collect();
    let bearing = LoweringStrategy {
        far_constants: true,
        free_r0: true,
        bound_arguments: true,
        ..LoweringStrategy::default()
    };
    let mut select = InstSelector {
        func,
        strategy,
        context_immediates: kernels.all(VerifierGeneration::stores_context_immediates),
        uses: func.use_counts(),
        stored: memory::store_counts(func),
        crossing,
        local: Vec::new(),
        addresses: Vec::new(),
        vregs: SecondaryMap::new(),
        signed: SecondaryMap::new(),
        out: MFunc { bearing, ..MFunc::default() },
        pending: Vec::new(),
        loc: u32::MAX,
    };
    let mut lowered: SecondaryMap<Block, Option<SelectedBlock>> = SecondaryMap::new();
    for &block in cfg.rpo.iter().rev() {
        lowered[block] = Some(select.block(block)?);
    }
    let mut index: SecondaryMap<Block, PackedOption<BlockPosition>> = SecondaryMap::new();
    for (i, &block) in order.iter().enumerate() {
        index[block] = BlockPosition::new(i).into();
    }
    let at = |block: Block| index[block].expand().map(|p| MBlockId::new(p.index()));
    let mut out = select.out;
    let (mut insts, mut operands) = (0, 0);
    for (_, operand, ..) in lowered.values().flatten().flat_map(|s| &s.insts) {
        insts += 1;
        operands += operand.len();
    }
    out.insts.reserve(insts);
    out.operands.reserve(operands);
    for &block in &order {
        let Some(chosen) = lowered[block].take() else { continue };
        let start = out.insts.len() as u32;
        for (op, operands, clobbers, loc) in chosen.insts.into_iter().rev() {
            let first = out.operands.len() as u32;
            out.operands.extend(operands);
            let operands = first..out.operands.len() as u32;
            out.insts.push(MInst { op, operands, clobbers, loc });
        }
        let insts = start..out.insts.len() as u32;
        let succs: Vec<MBlockId> = func.targets(block).iter().filter_map(|t| at(t.block)).collect();
        let preds: Vec<MBlockId> = cfg.preds[block].iter().filter_map(|&p| at(p)).collect();
        out.blocks.push(MBlock { insts, params: chosen.params, succs, preds, args: chosen.args });
    }
    Ok(out)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BlockPosition(u32);
cranelift_entity::entity_impl!(BlockPosition);

type PendingInst = (MOp, Vec<Operand>, PRegSet, u32);

#[derive(Clone)]
struct SelectedBlock {
    /// Last first.
    insts: Vec<PendingInst>,
    params: Vec<VReg>,
    args: Vec<Vec<VReg>>,
}

/// An instruction that prepares an operand.
struct OperandSetup {
    op: MOp,
    from: Option<VReg>,
    to: VReg,
}

struct InstSelector<'f> {
    func: &'f Function,
    strategy: LoweringStrategy,
    /// True if constants may be stored into the context as immediates.
    context_immediates: bool,
    uses: SecondaryMap<Value, u32>,
    /// Number of stores of each value.
    stored: SecondaryMap<Value, u32>,
    crossing: &'f LiveAcrossCalls,
    /// Constants in registers between here and the next call or the end of the block.
    local: Vec<(i64, VReg)>,
    /// Stack addresses that calls of this block take: how often, and the register if one is kept.
    addresses: Vec<((Slot, i32), u32, Option<VReg>)>,
    vregs: SecondaryMap<Value, Option<VReg>>,
    /// Loads that extend the sign in the place of an extension.
    signed: SecondaryMap<Inst, bool>,
    out: MFunc,
    pending: Vec<PendingInst>,
    loc: u32,
}

impl InstSelector<'_> {
    fn fresh(&mut self) -> VReg {
        self.out.vregs += 1;
        VReg::new(self.out.vregs - 1, RegClass::Int)
    }

    /// The register of a value that some instruction needs in one.
    fn vreg(&mut self, value: Value) -> VReg {
        let value = self.through_copies(value);
        if let (Some(c), false) = (self.func.as_const(value), self.strategy.far_constants) {
            return self.local_constant(c);
        }
        if let Some(v) = self.vregs[value] {
            return v;
        }
        let v = self.fresh();
        self.vregs[value] = Some(v);
        v
    }

    fn local_constant(&mut self, c: i64) -> VReg {
        if let Some(&(_, v)) = self.local.iter().find(|l| l.0 == c) {
            return v;
        }
        let v = self.fresh();
        self.local.push((c, v));
        v
    }

    /// The register that holds a stack address through the block, if calls take it so often that it pays.
    fn kept_address(&mut self, value: Value) -> Option<VReg> {
        let address = self.frame(value)?;
        let at = self.addresses.iter().position(|a| a.0 == address && a.1 > 2)?;
        self.out.bearing.kept_addresses = true;
        if !self.strategy.kept_addresses {
            return None;
        }
        let v = match self.addresses[at].2 {
            Some(v) => v,
            None => self.fresh(),
        };
        self.addresses[at].2 = Some(v);
        Some(v)
    }

    /// Counts the stack addresses that calls of a block take, and accesses whose displacement is relocated.
    fn count_addresses(&mut self, block: Block) {
        self.addresses.clear();
        let func = self.func;
        for &inst in &func.blocks[block].insts {
            let data = &func.insts[inst];
            let takers = match data.op {
                Op::Load { flags, .. } | Op::Store { flags, .. } if flags.core.is_some() => &data.args[..1],
                ref op if is_call(op) => &data.args[..],
                _ => continue,
            };
            let taken: Vec<(Slot, i32)> = takers.iter().filter_map(|&a| self.frame(a)).collect();
            for address in taken {
                match self.addresses.iter_mut().find(|a| a.0 == address) {
                    Some(found) => found.1 += 1,
                    None => self.addresses.push((address, 1, None)),
                }
            }
        }
    }

    /// Makes the constants that are wanted from here on.
    fn flush_constants(&mut self) {
        for (value, v) in std::mem::take(&mut self.local) {
            self.push(MOp::Imm { value }, vec![defined(v)]);
        }
    }

    /// Looks through zero-extensions of narrow values.
    fn through_copies(&self, value: Value) -> Value {
        let mut value = value;
        while let Some(inst) = self.func.def_inst(value) {
            let data = &self.func.insts[inst];
            let narrow = |v: Value| self.func.types[v].int_bits().is_some_and(|b| b <= 32);
            match data.op {
                Op::Zext {} if narrow(data.args[0]) => value = data.args[0],
                _ => break,
            }
        }
        value
    }

    fn push(&mut self, op: MOp, operands: Vec<Operand>) {
        self.pending.push((op, operands, PRegSet::empty(), self.loc));
    }

    fn constant(&self, value: Value) -> Option<i64> {
        self.func.as_const(self.through_copies(value))
    }

    /// A stack address, sums with constants followed.
    fn frame(&self, value: Value) -> Option<(Slot, i32)> {
        let data = &self.func.insts[self.func.def_inst(value)?];
        match data.op {
            Op::StackAddr { slot, offset } => Some((slot, offset)),
            Op::Alu { op: AluOp::Add, width: Width::W64 } => {
                let (slot, offset) = self.frame(data.args[0])?;
                let c = i32::try_from(self.func.as_const(data.args[1])?).ok()?;
                Some((slot, offset.checked_add(c)?))
            }
            _ => None,
        }
    }

    /// Instructions that compute `value` into a register of their own, where that is cheaper than to keep it.
    /// They come before the instruction pushed last, so the caller pushes that one first: blocks are built
    /// backwards.
    fn remake(&self, value: Value) -> Option<MOp> {
        if let Some((slot, offset)) = self.frame(value) {
            return Some(MOp::Lea { slot, offset });
        }
        let value = self.through_copies(value);
        let inst = self.func.def_inst(value)?;
        let single = self.uses[value] == 1;
        match self.func.insts[inst].op {
            Op::Const { value } => Some(MOp::Imm { value }),
            Op::MapAddr { map } => Some(MOp::Sym { sym: RelocTarget::Map(map) }),
            Op::MapValueAddr { map, offset } if single => {
                Some(MOp::Sym { sym: RelocTarget::MapValue(map, offset) })
            }
            Op::FuncAddr { func } if single => Some(MOp::Sym { sym: RelocTarget::Func(func) }),
            Op::ExternAddr { ext } if single => Some(MOp::Sym { sym: RelocTarget::Extern(ext) }),
            Op::CoreConst { core, local, wide } if single => Some(MOp::CoreImm { core, local, wide }),
            _ => None,
        }
    }

    fn is_undef(&self, value: Value) -> bool {
        matches!(self.func.def_op(value), Some(Op::Undef {}))
    }

    fn block(&mut self, block: Block) -> Result<SelectedBlock, LowerError> {
        self.pending = Vec::with_capacity(self.func.blocks[block].insts.len());
        self.count_addresses(block);
        let func = self.func;
        let mut args = Vec::new();
        let targets = func.targets(block);
        let mut edge = Vec::new();
        for target in targets {
            args.push(self.edge_args(target, targets.len() == 1, &mut edge));
        }
        for &inst in func.blocks[block].insts.iter().rev() {
            self.loc = func.insts[inst].loc;
            if is_call(&func.insts[inst].op) {
                self.flush_constants();
            }
            self.inst(inst)?;
            if func.insts[inst].op.is_terminator() {
                for (op, v) in std::mem::take(&mut edge) {
                    self.push(op, vec![defined(v)]);
                }
            }
        }
        self.flush_constants();
        for ((slot, offset), _, v) in std::mem::take(&mut self.addresses) {
            if let Some(v) = v {
                self.push(MOp::Lea { slot, offset }, vec![defined(v)]);
            }
        }
        let params: Vec<VReg> = if block == func.entry() {
            self.arguments(block);
            Vec::new()
        } else {
            func.blocks[block].params.iter().map(|&p| self.vreg(p)).collect()
        };
        Ok(SelectedBlock { insts: std::mem::take(&mut self.pending), params, args })
    }

    fn arguments(&mut self, entry: Block) {
        let mut operands = Vec::new();
        for (i, &p) in self.func.blocks[entry].params.iter().enumerate() {
            let Some(v) = self.vregs[p] else { continue };
            operands.push(defined_in(self.copied_out(p, v), i + 1));
        }
        self.push(MOp::Args, operands);
    }

    /// The register in which a fixed register delivers a value: one of its own with a copy, if the value
    /// outlives calls.
    fn copied_out(&mut self, value: Value, v: VReg) -> VReg {
        if self.strategy.bound_arguments || !self.crossing.contains(value) {
            return v;
        }
        let delivered = self.fresh();
        self.push(MOp::Copy, vec![used(delivered), defined(v)]);
        delivered
    }

    /// The register that a fixed register takes a value from: a copy, if the value outlives calls.
    fn copied_in(&mut self, value: Value, before: &mut Vec<OperandSetup>) -> VReg {
        let value = self.through_copies(value);
        let v = self.vreg(value);
        if self.strategy.bound_arguments || !self.crossing.contains(value) {
            return v;
        }
        let taken = self.fresh();
        before.push(OperandSetup { op: MOp::Copy, from: Some(v), to: taken });
        taken
    }

    fn edge_args(&mut self, target: &BlockCall, alone: bool, edge: &mut Vec<(MOp, VReg)>) -> Vec<VReg> {
        let mut args = Vec::with_capacity(target.args.len());
        for &arg in &target.args {
            let bare_frame = matches!(self.func.def_op(arg), Some(Op::StackAddr { .. }));
            let constant = self.constant(arg).is_some() && !self.strategy.far_constants;
            let wanted = alone && (constant || bare_frame);
            let anew = if wanted { self.remake(arg) } else { None };
            args.push(match anew {
                Some(op) => {
                    let v = self.fresh();
                    edge.push((op, v));
                    v
                }
                None => self.vreg(arg),
            });
        }
        args
    }

    fn inst(&mut self, inst: Inst) -> Result<(), LowerError> {
        let data = &self.func.insts[inst];
        let result = data.result.expand();
        if let Some(v) = result {
            let aliased = self.through_copies(v) != v;
            let unused = self.vregs[v].is_none() && data.op.effects().is_removable();
            if aliased || unused {
                return Ok(());
            }
        }
        let arg = |i: usize| data.args[i];
        match data.op {
            Op::Const { value } => self.define(result, MOp::Imm { value }),
            Op::Undef {} => self.define(result, MOp::Undef),
            Op::CoreConst { core, local, wide } => self.define(result, MOp::CoreImm { core, local, wide }),
            Op::MapAddr { map } => self.define(result, MOp::Sym { sym: RelocTarget::Map(map) }),
            Op::MapValueAddr { map, offset } => {
                self.define(result, MOp::Sym { sym: RelocTarget::MapValue(map, offset) })
            }
            Op::FuncAddr { func } => self.define(result, MOp::Sym { sym: RelocTarget::Func(func) }),
            Op::ExternAddr { ext } => self.define(result, MOp::Sym { sym: RelocTarget::Extern(ext) }),
            Op::StackAddr { slot, offset } => self.define(result, MOp::Lea { slot, offset }),
            Op::Alu { op, width } => self.alu(op, width, result, arg(0), arg(1)),
            Op::Neg { width } => self.unary_in_place(MOp::Neg { width }, result, arg(0)),
            Op::Swap { kind, bits } => self.unary_in_place(MOp::Swap { kind, bits }, result, arg(0)),
            Op::Zext {} => self.unary(MOp::Zext, result, arg(0)),
            Op::Sext { bits, width: Width::W64 } if self.extends_load(arg(0), bits, result) => {}
            Op::Sext { bits, width } => self.unary(MOp::Sext { bits, width }, result, arg(0)),
            Op::AddrSpaceCast { spaces } => self.unary(MOp::Cast { spaces }, result, arg(0)),
            Op::Helper { id } => self.call(CallTarget::Helper(id), result, &data.args),
            Op::Kfunc { ext } => self.call(CallTarget::Sym(RelocTarget::Extern(ext)), result, &data.args),
            Op::Call { func } => self.call(CallTarget::Sym(RelocTarget::Func(func)), result, &data.args),
            Op::CallIndirect {} => self.call(CallTarget::Indirect, result, &data.args),
            Op::LegacyLoad { size, offset } => self.legacy(size, offset, result, &data.args),
            Op::Jump {} => self.push(MOp::Jump, vec![]),
            Op::MayGoto {} => self.push(MOp::MayGoto, vec![]),
            Op::Unreachable {} => self.push(MOp::Unreachable, vec![]),
            Op::Branch { cond, width } => self.branch(cond, width, arg(0), arg(1)),
            Op::Return {} => self.ret(data.args.first().copied()),
            op_group!(access) => self.memory(inst)?,
            Op::Verdict { .. } | Op::Cmp { .. } | Op::Select {} | op_group!(table) => {
                return Err(self.not_bpf(inst));
            }
            Op::Emit {} | Op::ClonePacket {} | Op::Hold { .. } | Op::Pull {} | Op::SetBounds {} => {
                return Err(self.not_bpf(inst));
            }
        }
        Ok(())
    }

    fn not_bpf(&self, inst: Inst) -> LowerError {
        let op = self.func.insts[inst].op.mnemonic();
        LowerError::NotBpf { op, function: self.func.name.clone() }
    }

    fn define(&mut self, result: Option<Value>, op: MOp) {
        if let Some(v) = result {
            let v = self.vreg(v);
            self.push(op, vec![defined(v)]);
        }
    }

    /// A register for an operand: the value's own, or one made for this use.
    fn operand(&mut self, value: Value, before: &mut Vec<OperandSetup>) -> VReg {
        let resolved = self.through_copies(value);
        let anew = match self.func.def_op(resolved) {
            Some(Op::Const { .. }) if self.uses[resolved] == 1 => self.remake(resolved),
            _ => self.frame(resolved).map(|(slot, offset)| MOp::Lea { slot, offset }),
        };
        match anew {
            Some(op) => {
                let v = self.fresh();
                before.push(OperandSetup { op, from: None, to: v });
                v
            }
            None => self.vreg(value),
        }
    }

    fn finish(&mut self, op: MOp, operands: Vec<Operand>, before: Vec<OperandSetup>) {
        self.push(op, operands);
        self.push_before(before);
    }

    fn push_before(&mut self, before: Vec<OperandSetup>) {
        for OperandSetup { op, from, to } in before {
            let operands = from.map(used).into_iter().chain([defined(to)]).collect();
            self.push(op, operands);
        }
    }

    fn unary(&mut self, op: MOp, result: Option<Value>, a: Value) {
        let Some(result) = result else { return };
        let dst = self.vreg(result);
        let src = self.vreg(a);
        self.push(op, vec![used(src), defined(dst)]);
    }

    /// Reports whether a load that only this extension uses extends the sign itself, into the register of the
    /// result.
    fn extends_load(&mut self, loaded: Value, bits: u8, result: Option<Value>) -> bool {
        let (Some(result), Some(load)) = (result, self.func.def_inst(loaded)) else { return false };
        let Op::Load { size, sext: false, .. } = self.func.insts[load].op else { return false };
        if self.uses[loaded] != 1 || size.bits() != u32::from(bits) || size == Size::Dw {
            return false;
        }
        self.vregs[loaded] = Some(self.vreg(result));
        self.signed[load] = true;
        true
    }

    fn unary_in_place(&mut self, op: MOp, result: Option<Value>, a: Value) {
        let Some(result) = result else { return };
        let dst = self.vreg(result);
        let mut before = Vec::new();
        let src = self.operand(a, &mut before);
        self.finish(op, vec![used(src), redefined(dst, 0)], before);
    }

    fn alu(&mut self, op: AluOp, width: Width, result: Option<Value>, a: Value, b: Value) {
        let Some(result) = result else { return };
        if let Some((slot, offset)) = self.frame(result) {
            return self.define(Some(result), MOp::Lea { slot, offset });
        }
        let dst = self.vreg(result);
        let (mut a, mut b) = (a, b);
        let swap = match (op, width) {
            (AluOp::Add, Width::W64) => self.pointer_on_the_left(a, b),
            _ => None,
        };
        if op.commutes() && swap.unwrap_or_else(|| self.better_swapped(result, a, b)) {
            std::mem::swap(&mut a, &mut b);
        }
        let mut before = Vec::new();
        let core = self.single_core(b);
        let imm = match core {
            Some((_, local)) => Some(local),
            None => self.constant(b).and_then(|c| alu_imm(op, width, c)),
        };
        let src = self.operand(a, &mut before);
        let mut operands = vec![used(src)];
        if imm.is_none() {
            operands.push(used(self.operand(b, &mut before)));
        }
        operands.push(redefined(dst, 0));
        self.finish(MOp::Alu { op, width, imm, core: core.map(|c| c.0) }, operands, before);
    }

    /// Returns true if the operands of a sum must be exchanged, so that the operand that is or may be a
    /// pointer is the one that is overwritten; `None` if both are numbers. Of `number += pointer` the
    /// verifier forgets which frame a pointer to the stack is in. Two that may be pointers stay as the
    /// program had them.
    fn pointer_on_the_left(&self, a: Value, b: Value) -> Option<bool> {
        let rank = |v: Value| match self.func.types[v] {
            Type::Ptr(_) => 2,
            _ if self.constant(v).is_some() => 0,
            ty => u8::from(!ty.is_int()),
        };
        let (a, b) = (rank(a), rank(b));
        (a.max(b) > 0).then_some(b > a)
    }

    /// Returns true if the second operand should be the one that is overwritten.
    fn better_swapped(&self, result: Value, a: Value, b: Value) -> bool {
        match (self.constant(a), self.constant(b)) {
            (Some(_), None) => return true,
            (None, Some(_)) => return false,
            _ => {}
        }
        if self.single_core(b).is_some() || self.uses[b] > 1 {
            return false;
        }
        // Of two that end here, the one whose register serves the result as well: it outlives calls, or it
        // does not.
        let crosses = |v: Value| self.crossing.contains(self.through_copies(v));
        self.uses[a] > 1 || (crosses(a) != crosses(result) && crosses(b) == crosses(result))
    }

    /// A CO-RE constant that only this instruction uses, and that fits it.
    fn single_core(&self, value: Value) -> Option<(Core, i32)> {
        match self.func.def_op(value)? {
            Op::CoreConst { core, local, wide: false } if self.uses[value] == 1 => {
                Some((*core, i32::try_from(*local).ok()?))
            }
            _ => None,
        }
    }

    fn branch(&mut self, cond: Cond, width: Width, a: Value, b: Value) {
        let (mut cond, mut a, mut b) = (cond, a, b);
        if self.constant(a).is_some() && self.constant(b).is_none() {
            std::mem::swap(&mut a, &mut b);
            cond = cond.swapped();
        }
        let imm = self.constant(b).and_then(|c| match width {
            Width::W64 => i32::try_from(c).ok(),
            Width::W32 => Some(c as i32),
        });
        let mut before = Vec::new();
        let mut operands = vec![used(self.operand(a, &mut before))];
        if imm.is_none() {
            operands.push(used(self.operand(b, &mut before)));
        }
        self.finish(MOp::Branch { cond, width, imm }, operands, before);
    }

    fn ret(&mut self, value: Option<Value>) {
        let mut before = Vec::new();
        let operands = match value {
            // An undefined one as well: the kernel reads r0 at every exit of a program.
            Some(v) => vec![used_in(self.fixed_operand(v, &mut before), 0)],
            None => vec![],
        };
        self.finish(MOp::Return, operands, before);
    }

    /// A register for an operand that must be in a given one: made anew if that is cheap.
    fn fixed_operand(&mut self, value: Value, before: &mut Vec<OperandSetup>) -> VReg {
        match self.remake(value) {
            Some(op) => {
                let v = self.fresh();
                before.push(OperandSetup { op, from: None, to: v });
                v
            }
            None => self.copied_in(value, before),
        }
    }

    fn call(&mut self, target: CallTarget, result: Option<Value>, args: &[Value]) {
        let mut operands = Vec::new();
        let mut before = Vec::new();
        let mut args = args;
        if target == CallTarget::Indirect {
            operands.push(used(self.vreg(args[0])));
            args = &args[1..];
        }
        for (i, &arg) in args.iter().enumerate() {
            if self.is_undef(arg) {
                continue;
            }
            let v = match self.kept_address(arg) {
                Some(kept) => {
                    let taken = self.fresh();
                    before.push(OperandSetup { op: MOp::Copy, from: Some(kept), to: taken });
                    taken
                }
                None => self.fixed_operand(arg, &mut before),
            };
            operands.push(used_in(v, i + 1));
        }
        // Made in the order of the arguments: the last one pushed comes first.
        before.reverse();
        let mut clobbers = call_clobbers();
        match result.and_then(|r| self.vregs[r].map(|v| (r, v))) {
            Some((r, v)) => operands.push(defined_in(self.copied_out(r, v), 0)),
            None => clobbers.add(preg(0)),
        }
        self.pending.push((MOp::Call { target }, operands, clobbers, self.loc));
        self.push_before(before);
    }

    fn legacy(&mut self, size: Size, offset: i32, result: Option<Value>, args: &[Value]) {
        let mut operands = vec![used_in(self.vreg(args[0]), 6)];
        if let Some(&index) = args.get(1) {
            operands.push(used(self.vreg(index)));
        }
        let mut clobbers = call_clobbers();
        match result.and_then(|r| self.vregs[r]) {
            Some(v) => operands.push(defined_in(v, 0)),
            None => clobbers.add(preg(0)),
        }
        let op = MOp::Legacy { size, offset, indexed: args.len() > 1 };
        self.pending.push((op, operands, clobbers, self.loc));
    }

    fn result_vreg(&mut self, result: Option<Value>) -> VReg {
        match result {
            Some(v) => self.vreg(v),
            None => self.fresh(),
        }
    }
}

/// The constant as an immediate operand, if the operation takes it.
fn alu_imm(op: AluOp, width: Width, c: i64) -> Option<i32> {
    let imm = match width {
        Width::W64 => i32::try_from(c).ok()?,
        Width::W32 => c as i32,
    };
    match op {
        AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => Some((c as u64 & u64::from(width.bits() - 1)) as i32),
        AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod if imm == 0 => None,
        _ => Some(imm),
    }
}

#[cfg(test)]
mod tests {
    use millstream_ir::text::parse_module;
    use millstream_isa::{AluOp, Insn, Operand, Reg, Width};

    use crate::lower::{CHOICES, LoweringStrategy, lower_with};

    /// Lowers a static function by each strategy and follows the pointer in `r1`: each sum with it must have
    /// it on the left.
    fn pointer_stays_on_the_left(body: &str) {
        let text = format!("fn0 \"f\" static returns {{\n{body}}}\n");
        let module = parse_module(&text).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
        for choice in 0..CHOICES.len() {
            let func = module.funcs.values().next().expect("there is one");
            let code = lower_with(func, LoweringStrategy::default().with(choice)).expect("it can be lowered");
            let mut holds = [false; 11];
            holds[1] = true;
            let mut sums = 0;
            for insn in &code.insns {
                match *insn {
                    Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) } => {
                        holds[dst.index()] = holds[src.index()];
                    }
                    Insn::Alu { width: Width::W64, op: AluOp::Add, dst, src: Operand::Reg(src) } => {
                        assert!(
                            !holds[src.index()],
                            "{insn} has the pointer on the right:\n{:#?}",
                            code.insns
                        );
                        sums += usize::from(holds[dst.index()]);
                    }
                    Insn::Mov { dst, .. } | Insn::Alu { dst, .. } | Insn::Load { dst, .. }
                        if dst != Reg::R10 =>
                    {
                        holds[dst.index()] = false;
                    }
                    _ => {}
                }
            }
            assert!(sums > 0, "no sum with the pointer:\n{:#?}", code.insns);
        }
    }

    #[test]
    fn a_pointer_is_the_left_operand_of_a_sum() {
        // The pointer is used again, the number ends with the sum: exchanging them would save a move.
        for ty in ["any", "ptr(stack)"] {
            for sum in ["v0, v3", "v3, v0"] {
                pointer_stays_on_the_left(&format!(
                    "block0(v0: {ty}, v1: any):\n  v2: i64 = const.56\n  v3: i64 = alu.and.w64 v1, v2\n  \
                     v4: any = alu.add.w64 {sum}\n  v5: i64 = load.dw.u.0.plain v4\n  \
                     v6: i64 = load.dw.u.8.plain v0\n  v7: i64 = alu.add.w64 v5, v6\n  return v7\n"
                ));
            }
        }
    }

    #[test]
    fn two_that_may_be_pointers_stay_in_order() {
        pointer_stays_on_the_left(
            "block0(v0: any, v1: any):\n  v4: any = alu.add.w64 v0, v1\n  v5: i64 = load.dw.u.0.plain v4\n  \
             v6: i64 = load.dw.u.8.plain v0\n  v7: i64 = alu.add.w64 v5, v6\n  return v7\n",
        );
    }
}
