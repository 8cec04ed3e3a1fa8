//! Control flow of regions in regions: diamonds, counted loops, look-ups with their test for null.

use millstream_isa::helpers::id;

use super::{Generator, VALUE};
use crate::entities::{Block, Map};
use crate::func::BlockCall;
use crate::op::{MemFlags, Op};
use crate::types::{Prov, Type};
use crate::{AluOp, Cond, Size, Width};

/// Nesting of branches and loops.
const MAX_DEPTH: usize = 4;

impl Generator<'_> {
    pub(super) fn nested(&mut self) {
        self.region(0);
        self.leave();
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

    /// Two ways that meet, each giving a value.
    fn diamond(&mut self, depth: usize) {
        let (a, b) = (self.int(), self.int());
        let (cond, width) = (self.pick(&Cond::ALL), self.pick(&[Width::W64, Width::W32]));
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
        self.join(join);
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
        self.ints.truncate(known);
        self.join(exit);
    }

    /// A look-up, the test for null, and accesses to the value.
    fn map_value(&mut self, depth: usize) {
        let key = self.int();
        let map = Map::from_u32(0);
        let flags = MemFlags::default();
        let place = self.value(Op::StackAddr { slot: self.key, offset: 0 }, &[], Type::Ptr(Prov::Stack));
        self.effect(Op::Store { size: Size::W, offset: 0, flags }, &[place, key]);
        let object = self.value(Op::MapAddr { map }, &[], Type::Ptr(Prov::Map(map)));
        let ty = Type::Ptr(Prov::MapValueOrNull(map));
        let found = self.value(Op::Helper { id: id::MAP_LOOKUP_ELEM }, &[object, place], ty);
        let zero = self.constant(0);
        let (there, join) = (self.func.add_block(), self.func.add_block());
        let op = Op::Branch { cond: Cond::Ne, width: Width::W64 };
        let targets = [BlockCall::new(there), BlockCall::with(join, [zero])];
        self.func.at_end(self.block).effect(op, [found, zero], targets);
        self.block = there;
        let known = self.ints.len();
        for _ in 0..=self.below(3) {
            let size = self.pick(&Size::ALL);
            let offset = self.below((VALUE / size.bytes()) as usize) as i32 * size.bytes() as i32;
            self.access_at(found, offset, size);
        }
        if depth < MAX_DEPTH && self.below(4) == 3 {
            self.region(MAX_DEPTH);
        }
        let value = self.int();
        self.func.at_end(self.block).effect(Op::Jump {}, [], [BlockCall::with(join, [value])]);
        self.ints.truncate(known);
        self.join(join);
    }

    /// Goes on in a block that is given one value, and puts it after those that were made within its region.
    fn join(&mut self, block: Block) {
        self.block = block;
        let param = self.func.add_param(block, Type::I64);
        self.ints.push(param);
        self.func.layout.retain(|&b| b != block);
        self.func.layout.push(block);
    }
}
