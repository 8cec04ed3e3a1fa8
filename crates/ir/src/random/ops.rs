//! Operations of random functions: arithmetic, accesses to memory, atomics.

use super::{Generator, MEMORY, SLOT};
use crate::entities::Value;
use crate::op::{MemFlags, Op};
use crate::types::{Prov, Type};
use crate::{AluOp, AtomicOp, Cond, Size, SwapKind, Width};

const WIDTHS: [Width; 2] = [Width::W64, Width::W32];
const CONSTS: [i64; 14] =
    [0, 1, -1, 2, 7, 8, 31, 32, 63, 255, 0x7fff_ffff, 0xffff_ffff, i64::MIN, 0x0123_4567_89ab_cdef];
const ATOMICS: [AtomicOp; 5] = [AtomicOp::Add, AtomicOp::Or, AtomicOp::And, AtomicOp::Xor, AtomicOp::Xchg];
const SWAPS: [SwapKind; 3] = [SwapKind::ToLe, SwapKind::ToBe, SwapKind::Swap];

impl Generator<'_> {
    /// A number, biased to those that rewrite rules look for.
    fn number(&mut self) -> i64 {
        let k = self.below(64);
        match self.below(4) {
            0 | 1 => self.pick(&CONSTS),
            2 => 1 << k,
            _ => ((1u64 << k) - 1) as i64,
        }
    }

    pub(super) fn arithmetic(&mut self) {
        let (a, b) = (self.int(), self.int());
        let width = self.pick(&WIDTHS);
        let ty = Type::int(width.bits());
        match self.below(12) {
            0 => {
                let value = self.number();
                self.result(Op::Const { value }, &[], Type::I64);
            }
            1 => self.result(Op::Neg { width }, &[a], ty),
            2 => self.result(Op::Zext {}, &[a], Type::I32),
            3 => {
                let bits = self.pick(&[8, 16, 32]);
                self.result(Op::Sext { bits, width }, &[a], ty);
            }
            4 => {
                let (kind, bits) = (self.pick(&SWAPS), self.pick(&[16, 32, 64]));
                self.result(Op::Swap { kind, bits }, &[a], Type::int(u32::from(bits)));
            }
            5 => {
                let cond = self.pick(&Cond::ALL);
                let truth = self.value(Op::Cmp { cond, width }, &[a, b], Type::I1);
                let (yes, no) = (self.int(), self.int());
                self.result(Op::Select {}, &[truth, yes, no], Type::I64);
            }
            n => {
                let b = match n {
                    6..=8 => {
                        let value = self.number();
                        self.constant(value)
                    }
                    _ => b,
                };
                let op = self.pick(&AluOp::ALL);
                self.result(Op::Alu { op, width }, &[a, b], ty);
            }
        }
    }

    /// An address and the displacement of `size` aligned bytes in an object of `total` bytes.
    fn place(&mut self, size: Size) -> (Value, i32) {
        let stack = self.below(2) == 1;
        let total = if stack { SLOT } else { MEMORY };
        let offset = self.below((total / size.bytes()) as usize) as i32 * size.bytes() as i32;
        let (base, ty) = match stack {
            true => {
                let (op, ty) = (Op::StackAddr { slot: self.slot, offset: 0 }, Type::Ptr(Prov::Stack));
                (self.value(op, &[], ty), ty)
            }
            false => (self.memory, self.func.types[self.memory]),
        };
        if self.below(4) != 3 {
            return (base, offset);
        }
        let by = self.constant(i64::from(offset));
        (self.value(Op::Alu { op: AluOp::Add, width: Width::W64 }, &[base, by], ty), 0)
    }

    pub(super) fn access(&mut self) {
        let size = self.pick(&Size::ALL);
        let (base, offset) = self.place(size);
        self.access_at(base, offset, size);
    }

    pub(super) fn access_at(&mut self, base: Value, offset: i32, size: Size) {
        let flags = MemFlags::default();
        if self.below(2) == 0 {
            let value = self.int();
            return self.effect(Op::Store { size, offset, flags }, &[base, value]);
        }
        let sext = size != Size::Dw && self.below(3) == 0;
        let ty = if sext { Type::I64 } else { Type::int(size.bits()) };
        self.result(Op::Load { size, sext, offset, flags }, &[base], ty);
    }

    pub(super) fn atomic(&mut self) {
        let size = self.pick(&[Size::W, Size::Dw]);
        let (base, offset) = self.place(size);
        let (value, expected) = (self.int(), self.int());
        let op = self.pick(&ATOMICS);
        let ty = Type::int(size.bits());
        match self.below(3) {
            0 if !matches!(op, AtomicOp::Xchg) => {
                self.effect(Op::Atomic { op, size, offset }, &[base, value])
            }
            1 => self.result(Op::CmpXchg { size, offset }, &[base, expected, value], ty),
            _ => self.result(Op::AtomicFetch { op, size, offset }, &[base, value], ty),
        }
    }
}
