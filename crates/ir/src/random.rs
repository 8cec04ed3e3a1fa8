//! Random valid functions that terminate, for tests and fuzzing.
//!
//! The choices are bytes that the caller supplies, so that a property tester can shrink them; when they run out,
//! every choice is the first and the function ends soon.
//!
//! The function is `fn0` of [`module`]: two integers and the address of [`MEMORY`] bytes in, an integer out. It computes
//! with integers, reads and writes that memory, a stack object that it has initialised and values of an array map,
//! branches, and counts loops. No address ever becomes part of a result or of stored bytes, so that runs on machines
//! with other addresses agree.

use cranelift_entity::EntityRef;

use crate::entities::*;
use crate::func::{BlockCall, Function, Linkage, SlotData};
use crate::module::{MapDecl, Module};
use crate::op::{MemFlags, Op};
use crate::types::{Prov, Type};
use crate::{AluOp, AtomicOp, Cond, Size, SwapKind, Width};

/// Bytes behind the third argument.
pub const MEMORY: u32 = 32;
/// Bytes of a value of `map0`.
pub const VALUE: u32 = 16;
/// Entries of `map0`.
pub const ENTRIES: u32 = 4;

const SLOT: u32 = 16;
/// Nesting of branches and loops.
const MAX_DEPTH: usize = 4;
const MAP_ARRAY: u32 = 2;
/// `bpf_map_lookup_elem`.
const LOOKUP: i32 = 1;

const ALU_OPS: [AluOp; 13] = [
    AluOp::Add,
    AluOp::Sub,
    AluOp::Mul,
    AluOp::And,
    AluOp::Or,
    AluOp::Xor,
    AluOp::Lsh,
    AluOp::Rsh,
    AluOp::Arsh,
    AluOp::Div,
    AluOp::Mod,
    AluOp::SDiv,
    AluOp::SMod,
];
const CONDS: [Cond; 11] = [
    Cond::Eq,
    Cond::Ne,
    Cond::Gt,
    Cond::Ge,
    Cond::Lt,
    Cond::Le,
    Cond::Sgt,
    Cond::Sge,
    Cond::Slt,
    Cond::Sle,
    Cond::Set,
];
const SIZES: [Size; 4] = [Size::B, Size::H, Size::W, Size::Dw];
const WIDTHS: [Width; 2] = [Width::W64, Width::W32];
const CONSTS: [i64; 14] =
    [0, 1, -1, 2, 7, 8, 31, 32, 63, 255, 0x7fff_ffff, 0xffff_ffff, i64::MIN, 0x0123_4567_89ab_cdef];
const ATOMICS: [AtomicOp; 5] = [AtomicOp::Add, AtomicOp::Or, AtomicOp::And, AtomicOp::Xor, AtomicOp::Xchg];
const SWAPS: [SwapKind; 3] = [SwapKind::ToLe, SwapKind::ToBe, SwapKind::Swap];

/// A module with one random function.
pub fn module(choices: &[u8]) -> Module {
    let mut module = Module::default();
    module.maps.push(MapDecl {
        name: "values".into(),
        kind: MAP_ARRAY,
        key_size: 4,
        value_size: VALUE,
        max_entries: ENTRIES,
        flags: 0,
        global: None,
        inner: None,
    });
    module.funcs.push(Generator::new(choices).function());
    module
}

struct Generator<'a> {
    choices: std::slice::Iter<'a, u8>,
    func: Function,
    block: Block,
    memory: Value,
    slot: Slot,
    /// Where keys of look-ups are put.
    key: Slot,
    /// Integers that dominate the place where code is being added.
    ints: Vec<Value>,
}

impl<'a> Generator<'a> {
    fn new(choices: &'a [u8]) -> Self {
        let mut func = Function::new("random", Linkage::Static);
        let block = func.add_block();
        let ints = vec![func.add_param(block, Type::I64), func.add_param(block, Type::I64)];
        let memory = func.add_param(block, Type::Any);
        let slot = func.slots.push(SlotData { size: SLOT, align: 8, fixed: None });
        let key = func.slots.push(SlotData { size: 4, align: 4, fixed: None });
        Generator { choices: choices.iter(), func, block, memory, slot, key, ints }
    }

    fn function(mut self) -> Function {
        let zero = self.constant(0);
        for offset in (0..SLOT as i32).step_by(8) {
            let base = self.value(Op::StackAddr { slot: self.slot, offset: 0 }, &[], Type::Ptr(Prov::Stack));
            self.effect(Op::Store { size: Size::Dw, offset, flags: MemFlags::default() }, &[base, zero]);
        }
        self.region(0);
        let mut sum = self.int();
        for _ in 0..3 {
            let other = self.int();
            sum = self.value(Op::Alu { op: AluOp::Xor, width: Width::W64 }, &[sum, other], Type::I64);
        }
        self.effect(Op::Return {}, &[sum]);
        self.func
    }

    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        self.choices.next().map_or(0, |&b| usize::from(b) % n)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn int(&mut self) -> Value {
        // Newer values more often: they are the ones whose computation would else be dead.
        let n = self.ints.len();
        let back = self.below(n.min(12));
        self.ints[n - 1 - back]
    }

    fn value(&mut self, op: Op, args: &[Value], ty: Type) -> Value {
        let args = args.iter().copied();
        self.func.at_end(self.block).value(op, args, ty)
    }

    fn result(&mut self, op: Op, args: &[Value], ty: Type) {
        let value = self.value(op, args, ty);
        self.ints.push(value);
    }

    fn effect(&mut self, op: Op, args: &[Value]) {
        self.func.at_end(self.block).effect(op, args.iter().copied(), []);
    }

    fn constant(&mut self, value: i64) -> Value {
        self.value(Op::Const { value }, &[], Type::I64)
    }

    fn region(&mut self, depth: usize) {
        while self.choices.len() > 0 {
            match self.below(16) {
                0 if depth > 0 => return,
                1 | 2 if depth < MAX_DEPTH => self.diamond(depth),
                3 if depth < MAX_DEPTH => self.counted_loop(depth),
                4 => self.map_value(depth),
                5 | 6 => self.access(),
                7 => self.atomic(),
                _ => self.arithmetic(),
            }
        }
    }

    fn arithmetic(&mut self) {
        let (a, b) = (self.int(), self.int());
        let width = self.pick(&WIDTHS);
        let ty = Type::int(width.bits());
        match self.below(12) {
            0 => {
                let value = self.pick(&CONSTS);
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
                let cond = self.pick(&CONDS);
                let truth = self.value(Op::Cmp { cond, width }, &[a, b], Type::I1);
                let (yes, no) = (self.int(), self.int());
                self.result(Op::Select {}, &[truth, yes, no], Type::I64);
            }
            n => {
                let b = match n {
                    6..=8 => {
                        let value = self.pick(&CONSTS);
                        self.constant(value)
                    }
                    _ => b,
                };
                let op = self.pick(&ALU_OPS);
                self.result(Op::Alu { op, width }, &[a, b], ty);
            }
        }
    }

    /// An address and the displacement of `size` aligned bytes in an object of `total` bytes.
    fn place(&mut self, size: Size) -> (Value, i32) {
        let stack = self.below(2) == 1;
        let total = if stack { SLOT } else { MEMORY };
        let offset = self.below((total / size.bytes()) as usize) as i32 * size.bytes() as i32;
        if !stack {
            return (self.memory, offset);
        }
        let op = Op::StackAddr { slot: self.slot, offset: 0 };
        (self.value(op, &[], Type::Ptr(Prov::Stack)), offset)
    }

    fn access(&mut self) {
        let size = self.pick(&SIZES);
        let (base, offset) = self.place(size);
        self.access_at(base, offset, size);
    }

    fn access_at(&mut self, base: Value, offset: i32, size: Size) {
        let flags = MemFlags::default();
        if self.below(2) == 0 {
            let value = self.int();
            return self.effect(Op::Store { size, offset, flags }, &[base, value]);
        }
        let sext = size != Size::Dw && self.below(3) == 0;
        let ty = if sext { Type::I64 } else { Type::int(size.bits()) };
        self.result(Op::Load { size, sext, offset, flags }, &[base], ty);
    }

    fn atomic(&mut self) {
        let size = self.pick(&[Size::W, Size::Dw]);
        let (base, offset) = self.place(size);
        let (value, expected) = (self.int(), self.int());
        let op = self.pick(&ATOMICS);
        let ty = Type::int(size.bits());
        match self.below(3) {
            0 if op != AtomicOp::Xchg => self.effect(Op::Atomic { op, size, offset }, &[base, value]),
            1 => self.result(Op::CmpXchg { size, offset }, &[base, expected, value], ty),
            _ => self.result(Op::AtomicFetch { op, size, offset }, &[base, value], ty),
        }
    }

    /// Two ways that meet, each giving a value.
    fn diamond(&mut self, depth: usize) {
        let (a, b) = (self.int(), self.int());
        let (cond, width) = (self.pick(&CONDS), self.pick(&WIDTHS));
        let join = self.func.add_block();
        let arms = [self.func.add_block(), self.func.add_block()];
        let targets = arms.map(BlockCall::new);
        self.func.at_end(self.block).effect(Op::Branch { cond, width }, [a, b], targets);
        let known = self.ints.len();
        for arm in arms {
            self.block = arm;
            self.region(depth + 1);
            let value = self.int();
            self.func.at_end(self.block).effect(Op::Jump {}, [], [BlockCall::with(join, [value])]);
            self.ints.truncate(known);
        }
        self.block = join;
        let param = self.func.add_param(join, Type::I64);
        self.ints.push(param);
        self.order_last(join);
    }

    /// A loop of a few rounds that carries one value.
    fn counted_loop(&mut self, depth: usize) {
        let rounds = 1 + self.below(4) as i64;
        let (start, zero) = (self.int(), self.constant(0));
        let (head, exit) = (self.func.add_block(), self.func.add_block());
        self.func.at_end(self.block).effect(Op::Jump {}, [], [BlockCall::with(head, [zero, start])]);
        self.block = head;
        let counter = self.func.add_param(head, Type::I64);
        let carried = self.func.add_param(head, Type::I64);
        let known = self.ints.len();
        self.ints.extend([counter, carried]);
        self.region(depth + 1);
        let next = self.int();
        let one = self.constant(1);
        let count = self.value(Op::Alu { op: AluOp::Add, width: Width::W64 }, &[counter, one], Type::I64);
        let limit = self.constant(rounds);
        let op = Op::Branch { cond: Cond::Lt, width: Width::W64 };
        let targets = [BlockCall::with(head, [count, next]), BlockCall::with(exit, [next])];
        self.func.at_end(self.block).effect(op, [count, limit], targets);
        self.block = exit;
        self.ints.truncate(known);
        let param = self.func.add_param(exit, Type::I64);
        self.ints.push(param);
        self.order_last(exit);
    }

    /// A look-up, the test for null, and accesses to the value.
    fn map_value(&mut self, depth: usize) {
        let key = self.int();
        let map = Map::new(0);
        let flags = MemFlags::default();
        let place = self.value(Op::StackAddr { slot: self.key, offset: 0 }, &[], Type::Ptr(Prov::Stack));
        self.effect(Op::Store { size: Size::W, offset: 0, flags }, &[place, key]);
        let object = self.value(Op::MapAddr { map }, &[], Type::Ptr(Prov::Map(map)));
        let ty = Type::Ptr(Prov::MapValueOrNull(map));
        let found = self.value(Op::Helper { id: LOOKUP }, &[object, place], ty);
        let zero = self.constant(0);
        let (there, join) = (self.func.add_block(), self.func.add_block());
        let op = Op::Branch { cond: Cond::Ne, width: Width::W64 };
        let targets = [BlockCall::new(there), BlockCall::with(join, [zero])];
        self.func.at_end(self.block).effect(op, [found, zero], targets);
        self.block = there;
        let known = self.ints.len();
        for _ in 0..=self.below(3) {
            let size = self.pick(&SIZES);
            let offset = self.below((VALUE / size.bytes()) as usize) as i32 * size.bytes() as i32;
            self.access_at(found, offset, size);
        }
        if depth < MAX_DEPTH && self.below(4) == 3 {
            self.region(MAX_DEPTH);
        }
        let value = self.int();
        self.func.at_end(self.block).effect(Op::Jump {}, [], [BlockCall::with(join, [value])]);
        self.ints.truncate(known);
        self.block = join;
        let param = self.func.add_param(join, Type::I64);
        self.ints.push(param);
        self.order_last(join);
    }

    /// Puts a block after those that were made within its region.
    fn order_last(&mut self, block: Block) {
        self.func.layout.retain(|&b| b != block);
        self.func.layout.push(block);
    }
}
