//! The hash `lookup3` of the uBPF model: `hashlittle` of Bob Jenkins, 2006, with an initial value of 0.
//!
//! Bytes are added one by one, which gives the same sums as the words of the original, and nothing behind the
//! end is read.

use millstream_ir::{AluOp, Cond, Function, Op, Type, Value};

use crate::emitter::{Address, Emitter};
use crate::routines::routine_frame;

const START: u64 = 0xdead_beef;
const MASK: u64 = 0xffff_ffff;
/// Bytes of a block.
const BLOCK: u64 = 12;

fn rotated(emitter: &mut Emitter, word: Value, by: u64) -> Value {
    let up = emitter.alu_with(AluOp::Lsh, word, by);
    let down = emitter.alu_with(AluOp::Rsh, word, 32 - by);
    let both = emitter.alu(AluOp::Or, up, down);
    emitter.and(both, MASK)
}

fn short_sum(emitter: &mut Emitter, a: Value, b: Value) -> Value {
    let sum = emitter.alu(AluOp::Add, a, b);
    emitter.and(sum, MASK)
}

fn short_difference(emitter: &mut Emitter, a: Value, b: Value) -> Value {
    let difference = emitter.alu(AluOp::Sub, a, b);
    emitter.and(difference, MASK)
}

/// `mix` of the original.
fn mixed(emitter: &mut Emitter, words: [Value; 3]) -> [Value; 3] {
    let mut words = words;
    for (round, by) in [4, 6, 8, 16, 19, 4].into_iter().enumerate() {
        let (x, y, z) = (round % 3, (round + 1) % 3, (round + 2) % 3);
        let difference = short_difference(emitter, words[x], words[z]);
        let turned = rotated(emitter, words[z], by);
        words[x] = emitter.alu(AluOp::Xor, difference, turned);
        words[z] = short_sum(emitter, words[z], words[y]);
    }
    words
}

/// `final` of the original; gives its last word.
fn finished_words(emitter: &mut Emitter, words: [Value; 3]) -> Value {
    let mut words = words;
    for (round, by) in [14, 11, 25, 16, 4, 14, 24].into_iter().enumerate() {
        let (x, y) = ((round + 2) % 3, (round + 1) % 3);
        let joined = emitter.alu(AluOp::Xor, words[x], words[y]);
        let turned = rotated(emitter, words[y], by);
        words[x] = short_difference(emitter, joined, turned);
    }
    words[2]
}

/// The function; its state is not used.
pub(crate) fn lookup3(name: &str) -> Function {
    let (mut e, [start, length, _]) = routine_frame(name);
    let (head, body, behind) = (e.new_block(), e.new_block(), e.new_block());
    let at = e.parameter(head, Type::I64);
    let words = [(); 3].map(|()| e.parameter(head, Type::I64));
    let (zero, first) = (e.constant(0), e.alu_with(AluOp::Add, length, START));
    let first = e.and(first, MASK);
    e.jump_with(head, &[zero, first, first, first]);
    e.enter(head);
    e.branch(Cond::Lt, at, length, body, behind);
    e.enter(body);
    let address = e.offset_pointer(start, at);
    let byte = e.load(Address::pointer(address), millstream_ir::Size::B);
    let shift = e.and(at, 3);
    let shift = e.alu_with(AluOp::Lsh, shift, 3);
    let part = e.alu(AluOp::Lsh, byte, shift);
    let block = e.constant(BLOCK);
    let op = Op::Alu { op: AluOp::Mod, width: millstream_ir::Width::W64 };
    let place = e.value(op, &[at, block], Type::I64);
    let word = e.alu_with(AluOp::Rsh, place, 2);
    let mut added = words;
    for (index, to) in added.iter_mut().enumerate() {
        let sum = short_sum(&mut e, *to, part);
        let is_this = e.compare_with(Cond::Eq, word, index as u64);
        *to = e.select(is_this, sum, *to);
    }
    let next = e.alu_with(AluOp::Add, at, 1);
    let is_full = e.compare_with(Cond::Eq, place, BLOCK - 1);
    let goes_on = e.compare(Cond::Lt, next, length);
    let mixes = e.both(is_full, goes_on);
    let mixed = mixed(&mut e, added);
    let kept = [0, 1, 2].map(|index| e.select(mixes, mixed[index], added[index]));
    e.jump_with(head, &[next, kept[0], kept[1], kept[2]]);
    e.enter(behind);
    let last = finished_words(&mut e, words);
    let is_empty = e.compare_with(Cond::Eq, length, 0);
    let result = e.select(is_empty, words[2], last);
    e.effect(Op::Return {}, &[result]);
    e.finish()
}
