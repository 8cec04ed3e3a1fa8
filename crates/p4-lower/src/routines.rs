//! Functions of the module that hash byte strings: `(address, length, state)` to a state.

use millstream_ir::{AluOp, Cond, Function, Linkage, Op, Prov, Size, Type, Value};

use crate::emitter::{Address, Emitter};

/// A function of a byte string and a state.
pub(crate) fn routine_frame(name: &str) -> (Emitter, [Value; 3]) {
    let mut e = Emitter::new(Function::new(name, Linkage::Static));
    let entry = e.block;
    let start = e.parameter(entry, Type::Ptr(Prov::Mem));
    let length = e.parameter(entry, Type::I64);
    let state = e.parameter(entry, Type::I64);
    (e, [start, length, state])
}

/// A reflected CRC, bit by bit.
pub(crate) fn crc(name: &str, polynomial: u64) -> Function {
    let (mut e, [start, length, initial]) = routine_frame(name);
    let (head, body, behind) = (e.new_block(), e.new_block(), e.new_block());
    let (at, state) = (e.parameter(head, Type::I64), e.parameter(head, Type::I64));
    let zero = e.constant(0);
    e.jump_with(head, &[zero, initial]);
    e.enter(head);
    e.branch(Cond::Lt, at, length, body, behind);
    e.enter(body);
    let address = e.offset_pointer(start, at);
    let byte = e.load(Address::pointer(address), Size::B);
    let mut crc = e.alu(AluOp::Xor, state, byte);
    let polynomial = e.constant(polynomial);
    for _ in 0..8 {
        let bit = e.and(crc, 1);
        // A product, and no mask: the kernel's verifier would follow both values of a mask of one bit.
        let feedback = e.alu(AluOp::Mul, bit, polynomial);
        let rest = e.alu_with(AluOp::Rsh, crc, 1);
        crc = e.alu(AluOp::Xor, rest, feedback);
    }
    let next = e.alu_with(AluOp::Add, at, 1);
    e.jump_with(head, &[next, crc]);
    e.enter(behind);
    e.effect(Op::Return {}, &[state]);
    e.finish()
}

/// Joins the 16-bit words of a byte string by an operator; a last odd byte is the upper half of a word.
pub(crate) fn words16(name: &str, op: AluOp) -> Function {
    let (mut e, [start, length, initial]) = routine_frame(name);
    let (head, body, behind) = (e.new_block(), e.new_block(), e.new_block());
    let (at, state) = (e.parameter(head, Type::I64), e.parameter(head, Type::I64));
    let zero = e.constant(0);
    e.jump_with(head, &[zero, initial]);
    e.enter(head);
    e.branch(Cond::Lt, at, length, body, behind);
    e.enter(body);
    let address = e.offset_pointer(start, at);
    let byte = e.load(Address::pointer(address), Size::B);
    let odd = e.and(at, 1);
    let upper = e.alu_with(AluOp::Lsh, byte, 8);
    let part = e.select(odd, byte, upper);
    let joined = e.alu(op, state, part);
    let next = e.alu_with(AluOp::Add, at, 1);
    e.jump_with(head, &[next, joined]);
    e.enter(behind);
    e.effect(Op::Return {}, &[state]);
    e.finish()
}
