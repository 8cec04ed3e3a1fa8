//! Accesses to memory, and their addresses.

use cranelift_entity::SecondaryMap;
use millstream_ir::{AluOp, Function, Inst, MemFlags, Op, Prov, Size, Type, Value, Width};
use regalloc2::Operand;

use super::{InstSelector, LowerError, MOp, OperandSetup};
use crate::lower::LoweringStrategy;
use crate::lower::mir::*;

impl InstSelector<'_> {
    /// Base and displacement of an access: stack objects are addressed from the frame pointer, and a constant
    /// sum that only this access uses, or that hides the context, is taken apart.
    fn address(&mut self, base: Value, offset: i32, operands: &mut Vec<Operand>) -> (AddressBase, i32) {
        if let Some((slot, at)) = self.frame(base) {
            return (AddressBase::Frame(slot, at), offset);
        }
        let (mut base, mut offset) = (base, offset);
        while let Some(inst) = self.func.def_inst(base) {
            let data = &self.func.insts[inst];
            let is_sum = data.op == Op::Alu { op: AluOp::Add, width: Width::W64 };
            let wanted = self.uses[base] == 1 || self.func.types[base] == Type::Ptr(Prov::Ctx);
            let Some(sum) = is_sum
                .then(|| self.func.as_const(data.args[1]))
                .flatten()
                .and_then(|c| i16::try_from(i64::from(offset) + c).ok())
                .filter(|_| wanted)
            else {
                break;
            };
            (base, offset) = (data.args[0], i32::from(sum));
        }
        operands.push(used(self.vreg(base)));
        (AddressBase::Reg, offset)
    }

    pub(super) fn memory(&mut self, inst: Inst) -> Result<(), LowerError> {
        let data = &self.func.insts[inst];
        let result = data.result.expand();
        let base = data.args[0];
        let mut operands = Vec::new();
        let mut before = Vec::new();
        match data.op {
            Op::Load { size, sext, offset, flags } => {
                let (base, offset) = self.flagged_address(base, offset, flags, &mut operands, &mut before);
                operands.push(defined(self.result_vreg(result)));
                let sext = sext || self.signed[inst];
                self.finish(MOp::Load { size, sext, base, offset, core: flags.core }, operands, before);
            }
            Op::Store { size, offset, flags } => {
                let value = self.through_copies(data.args[1]);
                let at_hand = self.strategy.far_constants && self.vregs[value].is_some();
                let often = self.stored[value] > 1 || at_hand;
                let imm = self.constant(data.args[1]).and_then(|c| store_imm(size, c));
                let imm = imm.filter(|_| self.context_immediates || !self.may_be_context(base));
                let imm = imm.filter(|_| self.stores_immediates(often));
                let (base, offset) = self.flagged_address(base, offset, flags, &mut operands, &mut before);
                if imm.is_none() {
                    operands.push(used(self.operand(data.args[1], &mut before)));
                }
                self.finish(MOp::Store { size, base, offset, imm, core: flags.core }, operands, before);
            }
            Op::Atomic { op, size, offset } => {
                let (base, offset) = self.address(base, offset, &mut operands);
                operands.push(used(self.operand(data.args[1], &mut before)));
                self.finish(MOp::Atomic { op, size, base, offset }, operands, before);
            }
            Op::AtomicFetch { op, size, offset } => {
                let (base, offset) = self.address(base, offset, &mut operands);
                operands.push(used(self.operand(data.args[1], &mut before)));
                let reuse = operands.len() - 1;
                operands.push(redefined(self.result_vreg(result), reuse));
                self.finish(MOp::AtomicFetch { op, size, base, offset }, operands, before);
            }
            Op::CmpXchg { size, offset } => {
                let (base, offset) = self.address(base, offset, &mut operands);
                operands.push(used(self.operand(data.args[2], &mut before)));
                operands.push(used_in(self.operand(data.args[1], &mut before), 0));
                operands.push(defined_in(self.result_vreg(result), 0));
                self.finish(MOp::CmpXchg { size, base, offset }, operands, before);
            }
            Op::LoadAcquire { size, offset } => {
                let (base, offset) = self.address(base, offset, &mut operands);
                operands.push(defined(self.result_vreg(result)));
                self.push(MOp::LoadAcquire { size, base, offset }, operands);
            }
            Op::StoreRelease { size, offset } => {
                let (base, offset) = self.address(base, offset, &mut operands);
                operands.push(used(self.operand(data.args[1], &mut before)));
                self.finish(MOp::StoreRelease { size, base, offset }, operands, before);
            }
            _ => return Err(self.not_bpf(inst)),
        }
        Ok(())
    }

    /// A relocated displacement stays as it is.
    fn flagged_address(
        &mut self,
        base: Value,
        offset: i32,
        flags: MemFlags,
        operands: &mut Vec<Operand>,
        before: &mut Vec<OperandSetup>,
    ) -> (AddressBase, i32) {
        if flags.core.is_none() {
            return self.address(base, offset, operands);
        }
        let base = match self.kept_address(base) {
            Some(kept) => kept,
            None => self.operand(base, before),
        };
        operands.push(used(base));
        (AddressBase::Reg, offset)
    }
}

impl InstSelector<'_> {
    /// Returns true if an address may be one of the context: only the context itself and values that may have
    /// brought it here, such as an argument, a choice or a word of memory.
    fn may_be_context(&self, base: Value) -> bool {
        let mut base = base;
        loop {
            match self.func.types[base] {
                Type::Ptr(prov) => return prov == Prov::Ctx,
                ty if ty.is_int() => return false,
                _ => {}
            }
            let Some(inst) = self.func.def_inst(base) else { return true };
            let data = &self.func.insts[inst];
            match data.op {
                Op::Alu { op: AluOp::Add | AluOp::Sub, .. } => base = data.args[0],
                Op::Load { .. } | Op::Select {} | Op::Call { .. } | Op::CallIndirect {} => return true,
                _ => return false,
            }
        }
    }
}

/// Number of stores of each value.
pub(super) fn store_counts(func: &Function) -> SecondaryMap<Value, u32> {
    let mut counts = SecondaryMap::new();
    for (_, inst) in func.insts_in_order() {
        let data = &func.insts[inst];
        if let Op::Store { .. } = data.op {
            counts[data.args[1]] += 1;
        }
    }
    counts
}

impl InstSelector<'_> {
    /// Returns true if a constant is stored as an immediate although it is stored often, or is at hand in a
    /// register.
    fn stores_immediates(&mut self, often: bool) -> bool {
        let LoweringStrategy { immediate_stores, register_stores, .. } = self.strategy;
        let stores = |immediate: bool, register: bool| (!often || immediate) && !register;
        let now = stores(immediate_stores, register_stores);
        self.out.bearing.immediate_stores |= stores(!immediate_stores, register_stores) != now;
        self.out.bearing.register_stores |= stores(immediate_stores, !register_stores) != now;
        now
    }
}

/// The constant as an immediate to store, if there is a form for it.
fn store_imm(size: Size, c: i64) -> Option<i32> {
    match size {
        Size::Dw => i32::try_from(c).ok(),
        _ => Some(c as i32),
    }
}
