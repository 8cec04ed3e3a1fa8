//! Lookups in twins, as code. A [`Twin`] lies in the value of an array map of one entry, so that programs address it
//! directly.
//!
//! There may be several twins in the value, its sides: the version that a packet finds in the guard says which one it
//! reads. So a variant follows its map without other code: a side that no packet reads is written, then the guard is
//! given that side's version.
//!
//! Invariant: a side is written only while its version is not in the guard, and no packet is under way that found it
//! there.

use millstream_ir::{AluOp, Block, BlockCall, Cond, MapDecl, Op, Prov, Size, Type, Value, Width};

use super::copy::Copier;
use super::trie::{ABSENT, FIRST_BYTES, GROUP_BYTES, IS_GROUP, Twin};

impl Twin {
    /// Groups for which each of so many sides of the map's value has room, if it can hold twins at all.
    pub(super) fn room(decl: &MapDecl, sides: u32) -> Option<u32> {
        let side = decl.value_size.checked_div(sides)?;
        let groups = side.checked_sub(FIRST_BYTES)? / GROUP_BYTES;
        let fits = decl.kind == super::copy::ARRAY && decl.max_entries == 1;
        let exact = Twin::size(groups).checked_mul(sides) == Some(decl.value_size);
        (fits && exact && groups.is_power_of_two() && groups <= Twin::MOST_GROUPS).then_some(groups)
    }
}

/// A twin as the code sees it.
#[derive(Clone, Copy)]
pub(super) struct InMap {
    pub(super) map: millstream_ir::Map,
    /// Groups for which there is room.
    pub(super) groups: u32,
    /// The whole address.
    pub(super) word: Value,
}

impl Copier<'_> {
    /// Looks the word up in a twin; goes on in `found` with the value as its parameter, or in `absent`. Ends the block.
    pub(super) fn twin(&mut self, twin: InMap, from: Block, found: Block, absent: Block) {
        let InMap { map, groups, word } = twin;
        let side = self.side_of_twin(groups, from);
        let cell = self.new_block();
        let last = self.out.add_param(cell, Type::I16);
        let first = self.masked(word, 0xffff, from);
        let first = self.alu(AluOp::Lsh, first, 1, from);
        let mut at = from;
        let mut value = self.cell(map, 0, [Some(first), side], at);
        for shift in [15, 23] {
            let group = self.new_block();
            let marked = i64::from(IS_GROUP);
            let targets = [BlockCall::new(group), BlockCall::with(cell, [value])];
            self.branch(Cond::Set, value, marked, targets, at);
            let index = self.masked(value, i64::from(groups) - 1, group);
            let start = self.alu(AluOp::Lsh, index, i64::from(GROUP_BYTES.trailing_zeros()), group);
            let byte = self.alu(AluOp::Rsh, word, shift, group);
            let byte = self.masked(byte, 0x1fe, group);
            let offset = self.value(group, alu(AluOp::Add), &[start, byte], Type::I64);
            value = self.cell(map, FIRST_BYTES, [Some(offset), side], group);
            at = group;
        }
        self.emit(at, Op::Jump {}, &[], &[BlockCall::with(cell, [value])], Type::Any);
        let targets = [BlockCall::new(absent), BlockCall::with(found, [last])];
        self.branch(Cond::Eq, last, i64::from(ABSENT), targets, cell);
    }

    /// Where the side begins that the packet reads; `None` if there is but one.
    fn side_of_twin(&mut self, groups: u32, out: Block) -> Option<Value> {
        let side = self.side?;
        let sides = self.plan.guard.map_or(1, |g| g.sides);
        // The guard's comparison has bounded it already; the verifier may have forgotten since.
        let side = self.masked(side, i64::from(sides) - 1, out);
        let size = self.value(out, Op::Const { value: Twin::size(groups).into() }, &[], Type::I64);
        Some(self.value(out, alu(AluOp::Mul), &[side, size], Type::I64))
    }

    fn cell(&mut self, map: millstream_ir::Map, offset: u32, by: [Option<Value>; 2], out: Block) -> Value {
        let ty = Type::Ptr(Prov::MapValue(map));
        let mut address = self.value(out, Op::MapValueAddr { map, offset }, &[], ty);
        for by in by.into_iter().flatten() {
            address = self.value(out, alu(AluOp::Add), &[address, by], ty);
        }
        let load = Op::Load { size: Size::H, sext: false, offset: 0, flags: Default::default() };
        self.value(out, load, &[address], Type::I16)
    }

    fn masked(&mut self, value: Value, mask: i64, out: Block) -> Value {
        self.alu(AluOp::And, value, mask, out)
    }

    fn alu(&mut self, op: AluOp, value: Value, by: i64, out: Block) -> Value {
        let by = self.value(out, Op::Const { value: by }, &[], Type::I64);
        let op = Op::Alu { op, width: if op == AluOp::Lsh { Width::W64 } else { Width::W32 } };
        self.value(out, op, &[value, by], Type::I32)
    }

    fn branch(&mut self, cond: Cond, value: Value, against: i64, targets: [BlockCall; 2], out: Block) {
        let against = self.value(out, Op::Const { value: against }, &[], Type::I64);
        let op = Op::Branch { cond, width: Width::W32 };
        self.emit(out, op, &[value, against], &targets, Type::Any);
    }
}

const fn alu(op: AluOp) -> Op {
    Op::Alu { op, width: Width::W64 }
}
