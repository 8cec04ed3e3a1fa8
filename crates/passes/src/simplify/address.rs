//! Address arithmetic: constants move into displacements and into the addresses of stack objects and global
//! data.
//!
//! A constant added to a pointer leaves the verifier's facts about it untouched, so every access can be
//! written as one base value and a displacement; for the context this is the only form that is accepted.

use millstream_ir::{AluOp, Inst, Op, Prov, Size, Type, Value, Width};

use super::{InstSimplifier, NAME, is_plain_pointer};

impl InstSimplifier<'_, '_> {
    /// One step towards base and displacement.
    pub(super) fn fold_address(&mut self, inst: Inst) -> bool {
        self.fold_displacement(inst) || self.fold_sum(inst) || self.strip_stored(inst)
    }

    /// `[(p + c) + d]` is `[p + (c + d)]`, unless a relocation will overwrite the displacement.
    fn fold_displacement(&mut self, inst: Inst) -> bool {
        let Some(&base) = self.func.insts[inst].args.first() else { return false };
        let Some(offset) = self.func.insts[inst].op.displacement_mut().map(|o| *o) else { return false };
        let Some((inner, constant)) = self.sum(base) else { return false };
        let total = i64::from(offset).checked_add(constant);
        let Some(total) = total.and_then(|t| i16::try_from(t).ok()) else { return false };
        if !self.cx.fuel(NAME) {
            return false;
        }
        let mut args = self.func.insts[inst].args.clone();
        args[0] = inner;
        self.set_args(inst, &args);
        if let Some(offset) = self.func.insts[inst].op.displacement_mut() {
            *offset = i32::from(total);
        }
        true
    }

    /// `(p + a) + b` is `p + (a + b)` for pointers; an address plus a constant is an address.
    fn fold_sum(&mut self, inst: Inst) -> bool {
        let data = &self.func.insts[inst];
        let Op::Alu { op: AluOp::Add, width: Width::W64 } = data.op else { return false };
        let (base, Some(b)) = (data.args[0], self.func.as_const(data.args[1])) else { return false };
        if let Some(op) = self.moved_address(base, b) {
            if !self.cx.fuel(NAME) {
                return false;
            }
            self.set_args(inst, &[]);
            self.func.insts[inst].op = op;
            return true;
        }
        let Some((inner, a)) = self.sum(base) else { return false };
        let Some(total) = a.checked_add(b).filter(|t| t.unsigned_abs() < 1 << 28) else { return false };
        if !is_plain_pointer(self.func.types[inner]) || !self.cx.fuel(NAME) {
            return false;
        }
        let total = self.constant(inst, total);
        self.set_args(inst, &[inner, total]);
        true
    }

    /// The address `base + by` as one operation; global data only inside its value.
    fn moved_address(&self, base: Value, by: i64) -> Option<Op> {
        match *self.func.def_op(base)? {
            Op::StackAddr { slot, offset } => {
                let offset = i32::try_from(i64::from(offset).checked_add(by)?).ok()?;
                Some(Op::StackAddr { slot, offset })
            }
            Op::MapValueAddr { map, offset } => {
                let offset = u32::try_from(i64::from(offset).checked_add(by)?).ok()?;
                let inside = self.cx.info.maps.get(map).is_some_and(|decl| offset < decl.value_size);
                inside.then_some(Op::MapValueAddr { map, offset })
            }
            _ => None,
        }
    }

    /// `p + c`, taken apart.
    fn sum(&self, value: Value) -> Option<(Value, i64)> {
        let inst = self.func.def_inst(value)?;
        let data = &self.func.insts[inst];
        let Op::Alu { op: AluOp::Add, width: Width::W64 } = data.op else { return None };
        let base = self.subst.resolve(data.args[0]);
        let constant = self.func.as_const(self.subst.resolve(data.args[1]))?;
        Some((base, constant))
    }

    /// A narrow store cuts off what masks and extensions would have cut off; not on the stack, where the
    /// verifier tracks the value that is stored.
    fn strip_stored(&mut self, inst: Inst) -> bool {
        let data = &self.func.insts[inst];
        let Op::Store { size, .. } = data.op else { return false };
        let (base, value) = (data.args[0], data.args[1]);
        if size == Size::Dw || matches!(self.func.types[base], Type::Ptr(Prov::Stack) | Type::Any) {
            return false;
        }
        let Some(inner) = self.low_part(value, size.bits()) else { return false };
        if self.uses[value] > 1 || !self.func.types[inner].is_int() || !self.cx.fuel(NAME) {
            return false;
        }
        self.set_args(inst, &[base, inner]);
        true
    }

    /// A value with the same low bits, if `value` is an extension or a masking of it.
    fn low_part(&self, value: Value, bits: u32) -> Option<Value> {
        let data = &self.func.insts[self.func.def_inst(value)?];
        let low = u64::MAX >> (64 - bits);
        let same = match data.op {
            Op::Zext {} => bits <= 32,
            Op::Sext { bits: from, .. } => bits <= u32::from(from),
            Op::Alu { op: AluOp::And, .. } => {
                let mask = self.func.as_const(self.subst.resolve(data.args[1]))?;
                mask as u64 & low == low
            }
            _ => false,
        };
        same.then(|| self.subst.resolve(data.args[0]))
    }
}
