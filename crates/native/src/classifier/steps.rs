//! A tree of comparisons as data: what would be much code is a table of steps, and a loop that goes from one to the next.
//!
//! A step has a word's place in the key, a mask, a bound, a span, and two steps that may follow: it goes on with the first one where the word under the mask is the bound or more, by no
//! more than the span. So every comparison has one form, and the way on is a select, which no processor guesses wrong. Numbers have 32 bits where all words of the key do.

use cranelift_entity::{EntityRef, PrimaryMap};
use millstream_bpf::lower::{TableComparison, TableForm, TablePlan, TableRule, TableStep, table_plan};
use millstream_interp::MapKind;
use millstream_ir::{
    AluOp, Block, BlockCall, Cond, Cursor, Function, GlobalData, Map, MapDecl, MemFlags, Op, Prov, Size,
    Slot, SlotData, Type, Value, Width,
};

use crate::image::{First, Initial};

/// `BPF_F_RDONLY_PROG`.
const READ_ONLY: u32 = 1 << 7;
/// In what follows: no step, but what the match gives, in the other bits.
const RESULT: u32 = 1 << 31;
/// So many times a rule is in a tree, on average, at most.
const COPIES: usize = 16;

/// Steps of a table.
pub(super) struct Steps {
    plan: TablePlan,
    widths: Vec<u64>,
    map: Option<Map>,
}

/// Mask, bound and span of a comparison of a word of this width.
fn form(with: TableComparison, all: u64) -> [u64; 3] {
    match with {
        TableComparison::Below(bound) => [all, 0, bound.saturating_sub(1)],
        TableComparison::AtMost(most) => [all, 0, most],
        TableComparison::AtLeast(least) => [all, least, all - least],
        TableComparison::Equal(value) => [all, value, 0],
        TableComparison::Bit(bit) => [bit, bit, 0],
        TableComparison::Within(least, most) => [all, least, most - least],
        TableComparison::Masked(value, mask) => [mask, value, 0],
    }
}

impl Steps {
    /// Of rules over words of these widths.
    pub(super) fn new(rules: Vec<TableRule>, widths: Vec<u64>) -> Steps {
        let spare = COPIES * rules.len();
        Steps { plan: table_plan(rules, &widths, TableForm::Tree, spare), widths, map: None }
    }

    /// Of a mask, a bound, a span, and of a word in the key.
    fn size(&self) -> Size {
        if self.widths.iter().all(|width| *width <= u64::from(u32::MAX)) { Size::W } else { Size::Dw }
    }

    /// Bytes of a step: three numbers, the word's offset in the key, and two steps' offsets.
    fn step_bytes(&self) -> u32 {
        (3 * self.size().bytes() + 12).next_multiple_of(self.size().bytes())
    }

    /// What stands for a step in those before it.
    fn place(&self, step: usize) -> u32 {
        match self.plan.steps[step] {
            TableStep::Result(result) => RESULT | result as u32,
            TableStep::Compare { .. } => step as u32 * self.step_bytes(),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let (size, mut all) = (self.size().bytes(), Vec::new());
        for step in &self.plan.steps {
            let start = all.len();
            if let TableStep::Compare { word, with, yes, no } = *step {
                for number in form(with, self.widths[word]) {
                    all.extend_from_slice(&number.to_le_bytes()[..size as usize]);
                }
                for number in [word as u32 * size, self.place(yes), self.place(no)] {
                    all.extend_from_slice(&number.to_le_bytes());
                }
            }
            all.resize(start + self.step_bytes() as usize, 0);
        }
        all
    }

    /// Makes the map, unless it is there.
    pub(super) fn declare(
        &mut self,
        name: &str,
        maps: &mut PrimaryMap<Map, MapDecl>,
        initial: &mut Vec<Initial>,
    ) {
        if self.map.is_some() {
            return;
        }
        let bytes = self.bytes();
        let map = maps.push(MapDecl {
            name: format!("{name}.steps"),
            kind: MapKind::Array as u32,
            key_size: 4,
            value_size: bytes.len() as u32,
            max_entries: 1,
            flags: READ_ONLY,
            global: Some(GlobalData::Rodata),
            inner: None,
        });
        initial.push(Initial { map: map.index(), key: vec![0; 4], value: First::Bytes(bytes) });
        self.map = Some(map);
    }

    /// Replaces the match at a place: index in the layout, position in the block.
    pub(super) fn search(&self, func: &mut Function, (b, at): (usize, usize)) {
        let Some(map) = self.map else { return };
        let start = func.layout[b];
        let data = func.insts[func.blocks[start].insts[at]].clone();
        let join = func.cut_at(start, at);
        let (size, bytes) = (self.size(), self.size().bytes());
        let slots = (self.widths.len() as u32 * bytes).max(bytes);
        let key = func.slots.push(SlotData { size: slots, align: bytes, fixed: None });
        let mut cursor = func.at_end(start);
        cursor.loc = data.loc;
        for (at, &word) in data.args.iter().enumerate() {
            let place = cursor.value(Op::StackAddr { slot: key, offset: 0 }, [], Type::Ptr(Prov::Stack));
            let store = Op::Store { size, offset: (at as u32 * bytes) as i32, flags: MemFlags::default() };
            cursor.effect(store, [place, word], []);
        }
        let [round, done] = [(); 2].map(|()| func.blocks.push(Default::default()));
        let [step, result] = [round, done].map(|block| func.add_param(block, Type::I64));
        let mut writer = Writer { func, loc: data.loc, map, size, key };
        let first = self.place(self.plan.first);
        let place = writer.cursor(start).iconst(i64::from(first));
        let to = if first & RESULT == 0 { round } else { done };
        writer.cursor(start).effect(Op::Jump {}, [], [BlockCall::with(to, [place])]);
        let next = writer.next(round, step);
        let last = writer.cursor(round).iconst(i64::from(RESULT));
        let set = Op::Branch { cond: Cond::Set, width: Width::W64 };
        let targets = [BlockCall::with(done, [next]), BlockCall::with(round, [next])];
        writer.cursor(round).effect(set, [next, last], targets);
        let number = writer.result(done, result);
        writer.cursor(done).effect(Op::Jump {}, [], [BlockCall::with(join, [number])]);
        func.layout.splice(b + 1..b + 1, [round, done, join]);
    }
}

/// Writes the blocks of a search.
struct Writer<'f> {
    func: &'f mut Function,
    loc: u32,
    map: Map,
    size: Size,
    key: Slot,
}

impl Writer<'_> {
    fn cursor(&mut self, block: Block) -> Cursor<'_> {
        let loc = self.loc;
        let mut cursor = self.func.at_end(block);
        cursor.loc = loc;
        cursor
    }

    fn value(&mut self, block: Block, op: Op, args: &[Value], ty: Type) -> Value {
        self.cursor(block).value(op, args.iter().copied(), ty)
    }

    fn load(&mut self, block: Block, size: Size, base: Value, offset: u32) -> Value {
        let op = Op::Load { size, sext: false, offset: offset as i32, flags: MemFlags::default() };
        self.value(block, op, &[base], Type::int(8 * size.bytes()))
    }

    /// What follows a step.
    fn next(&mut self, block: Block, step: Value) -> Value {
        let (size, bytes) = (self.size, self.size.bytes());
        let width = if size == Size::W { Width::W32 } else { Width::W64 };
        let number = Type::int(8 * bytes);
        let add = Op::Alu { op: AluOp::Add, width: Width::W64 };
        let steps = Type::Ptr(Prov::MapValue(self.map));
        let all = self.value(block, Op::MapValueAddr { map: self.map, offset: 0 }, &[], steps);
        let here = self.value(block, add.clone(), &[all, step], steps);
        let [mask, bound, span] = [0, 1, 2].map(|at| self.load(block, size, here, at * bytes));
        let [offset, yes, no] = [0, 4, 8].map(|at| self.load(block, Size::W, here, 3 * bytes + at));
        let stack = Type::Ptr(Prov::Stack);
        let words = self.value(block, Op::StackAddr { slot: self.key, offset: 0 }, &[], stack);
        let place = self.value(block, add, &[words, offset], stack);
        let word = self.load(block, size, place, 0);
        let bits = self.value(block, Op::Alu { op: AluOp::And, width }, &[word, mask], number);
        let above = self.value(block, Op::Alu { op: AluOp::Sub, width }, &[bits, bound], number);
        let most = Op::Cmp { cond: Cond::Le, width: Width::W64 };
        let holds = self.value(block, most, &[above, span], Type::I1);
        self.value(block, Op::Select {}, &[holds, yes, no], Type::I32)
    }

    /// What the match gives where this follows the last step.
    fn result(&mut self, block: Block, last: Value) -> Value {
        let one = self.cursor(block).iconst(1);
        // The bit below is the sign.
        let up = self.value(block, Op::Alu { op: AluOp::Lsh, width: Width::W32 }, &[last, one], Type::I32);
        let signed = self.value(block, Op::Sext { bits: 32, width: Width::W64 }, &[up], Type::I64);
        self.value(block, Op::Alu { op: AluOp::Arsh, width: Width::W64 }, &[signed, one], Type::I64)
    }
}
