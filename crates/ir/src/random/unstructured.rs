//! Control flow as a web: each block leads to one or two of the next few, with arguments, or runs itself a
//! few times.

use super::Generator;
use crate::cfg::Cfg;
use crate::entities::{Block, Value};
use crate::func::BlockCall;
use crate::op::Op;
use crate::types::Type;
use crate::{AluOp, Cond, Width};

/// Blocks that an edge may lead to: the next few.
const NEAR: usize = 3;
/// Rounds of a loop.
const ROUNDS: i64 = 3;

impl Generator<'_> {
    pub(super) fn unstructured_function(&mut self) {
        let blocks: Vec<Block> = (0..2 + self.below(6)).map(|_| self.web_block()).collect();
        let zero = self.constant(0);
        self.steps();
        let common = self.ints.clone();
        self.go_on(&blocks, zero);
        for (i, &block) in blocks.iter().enumerate() {
            self.block = block;
            let params = self.func.blocks[block].params.clone();
            self.ints = common.iter().chain(&params).copied().collect();
            self.steps();
            match (params.last(), &blocks[i + 1..]) {
                (_, []) => self.leave(),
                (Some(&counter), after) if self.below(4) == 3 => self.again(block, counter, after[0], zero),
                (_, after) => self.go_on(after, zero),
            }
        }
        let cfg = Cfg::new(&self.func);
        self.func.layout.retain(|&b| cfg.is_reachable(b));
    }

    /// A block whose last parameter counts rounds, if it becomes a loop: edges from before bring 0.
    fn web_block(&mut self) -> Block {
        let block = self.func.add_block();
        for _ in 0..1 + self.below(3) {
            self.func.add_param(block, Type::I64);
        }
        block
    }

    fn steps(&mut self) {
        for _ in 0..2 + self.below(7) {
            match self.below(8) {
                6 => self.access(),
                7 => self.atomic(),
                _ => self.arithmetic(),
            }
        }
    }

    fn call(&mut self, to: Block, counter: Value) -> BlockCall {
        let count = self.func.blocks[to].params.len() - 1;
        let args: Vec<Value> = (0..count).map(|_| self.int()).chain([counter]).collect();
        BlockCall::with(to, args)
    }

    /// Ends the block with a jump or a branch to blocks near by.
    fn go_on(&mut self, after: &[Block], zero: Value) {
        let near = &after[..after.len().min(NEAR)];
        let first = self.pick(near);
        let first = self.call(first, zero);
        if self.below(4) == 3 {
            self.func.at_end(self.block).effect(Op::Jump {}, [], [first]);
            return;
        }
        let second = self.pick(near);
        let second = self.call(second, zero);
        let a = self.int();
        let b = if self.below(2) == 0 { self.int() } else { self.small() };
        let op = Op::Branch { cond: self.pick(&Cond::ALL), width: self.pick(&[Width::W64, Width::W32]) };
        self.func.at_end(self.block).effect(op, [a, b], [first, second]);
    }

    fn small(&mut self) -> Value {
        let value = self.pick(&[0, 1, 2, 8, 255]);
        self.constant(value)
    }

    /// Ends a block that runs itself up to [`ROUNDS`] times.
    fn again(&mut self, block: Block, counter: Value, after: Block, zero: Value) {
        let (one, limit) = (self.constant(1), self.constant(ROUNDS));
        let next = self.value(Op::Alu { op: AluOp::Add, width: Width::W64 }, &[counter, one], Type::I64);
        let targets = [self.call(block, next), self.call(after, zero)];
        let op = Op::Branch { cond: Cond::Lt, width: Width::W64 };
        self.func.at_end(self.block).effect(op, [next, limit], targets);
    }
}
