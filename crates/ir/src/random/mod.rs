//! Random valid functions that terminate, for tests and fuzzing.
//!
//! The choices are bytes that the caller supplies, so that a property tester can shrink them; when they run
//! out, every choice is the first and the function ends soon. [`SeededRng`] makes them from a number.
//!
//! The function is `fn0` of [`module`]: two integers and the address of [`MEMORY`] bytes in, an integer out.
//! It computes with integers, reads and writes that memory, a stack object that it has initialised and values
//! of an array map, branches, and counts loops. The first choice says which shape its control flow has:
//! regions in regions (`nested`), or edges from each block to any of the next few, with block parameters
//! (`unstructured`). No address ever becomes part of a result or of stored bytes, so that runs on machines
//! with other addresses agree.

mod nested;
mod ops;
mod seed;
mod unstructured;

use millstream_isa::MapType;

use crate::entities::*;
use crate::func::{Function, Linkage, SlotData};
use crate::module::{MapDecl, Module};
use crate::op::{MemFlags, Op};
use crate::types::{Prov, Type};
use crate::{AluOp, Size, Width};

pub use seed::SeededRng;

/// Bytes behind the third argument.
pub const MEMORY: u32 = 32;
/// Bytes of a value of `map0`.
pub const VALUE: u32 = 16;
/// Entries of `map0`.
pub const ENTRIES: u32 = 4;

const SLOT: u32 = 16;

/// A module with one random function.
pub fn module(choices: &[u8]) -> Module {
    let mut module = Module::default();
    module.maps.push(MapDecl {
        name: "values".into(),
        kind: MapType::ARRAY.0,
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
    /// Block to which code is being added.
    block: Block,
    memory: Value,
    slot: Slot,
    /// Stack object for keys of look-ups.
    key: Slot,
    /// Integers that dominate the place to which code is being added.
    ints: Vec<Value>,
}

impl<'a> Generator<'a> {
    fn new(choices: &'a [u8]) -> Self {
        let mut func = Function::new("random", Linkage::Global);
        let block = func.add_block();
        let ints = vec![func.add_param(block, Type::I64), func.add_param(block, Type::I64)];
        let memory = func.add_param(block, Type::Any);
        let slot = func.slots.push(SlotData { size: SLOT, align: 8, fixed: None });
        let key = func.slots.push(SlotData { size: 4, align: 4, fixed: None });
        Generator { choices: choices.iter(), func, block, memory, slot, key, ints }
    }

    fn function(mut self) -> Function {
        let shape = self.below(4);
        if shape % 2 == 1 {
            // Passes may do more where they know what the address is of.
            self.func.types[self.memory] = Type::Ptr(Prov::Packet);
        }
        let zero = self.constant(0);
        for offset in (0..SLOT as i32).step_by(8) {
            let base = self.value(Op::StackAddr { slot: self.slot, offset: 0 }, &[], Type::Ptr(Prov::Stack));
            self.effect(Op::Store { size: Size::Dw, offset, flags: MemFlags::default() }, &[base, zero]);
        }
        if shape < 2 {
            self.nested()
        } else {
            self.unstructured_function()
        }
        self.func
    }

    /// Ends the block with the return of a result that depends on several values.
    fn leave(&mut self) {
        let mut sum = self.int();
        for _ in 0..3 {
            let other = self.int();
            sum = self.value(Op::Alu { op: AluOp::Xor, width: Width::W64 }, &[sum, other], Type::I64);
        }
        self.effect(Op::Return {}, &[sum]);
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
}
