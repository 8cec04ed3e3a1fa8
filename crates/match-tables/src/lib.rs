//! Match tables as code: a tree of comparisons that ends at the first entry that matches, or comparisons in
//! the entries' order.
//!
//! The words of the key are compared one at a time. Rules on one word become a balanced search among the
//! intervals on which the result is the same. Otherwise the comparison that leaves the fewest rules on either
//! side divides them, as in HiCuts (Gupta and McKeown, Hot Interconnects 1999); where none helps, the first
//! rules are tested in order.
//!
//! Invariant: a rule that is needed on both sides of a comparison is copied, but copies are limited to the
//! number of rules, each part of the tree having its share, so that the code stays proportional to the table.
//!
//! Architecture Invariant: no I/O and no back end; the result is IR.

mod plan;
mod rules;
mod split;

use cranelift_entity::PrimaryMap;
use millstream_ir::{
    AluOp, Block, BlockCall, Cond, Function, Inst, Module, Op, Table, TableDecl, Type, Value, Width,
};

pub use plan::{TableComparison, TablePlan, TableStep, table_plan};
pub use rules::{TableRule, TableTest, table_rules, table_widths};

/// Form of the code for a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableForm {
    /// A tree of comparisons.
    Tree,
    /// Entry by entry.
    InOrder,
}

/// Reports whether a function matches tables.
fn has_tables(func: &Function) -> bool {
    func.insts_in_order().any(|(_, inst)| matches!(func.insts[inst].op, Op::TableMatch { .. }))
}

/// The function with its matches expanded to trees, as [`expand_tables`] does; `None` if it has none.
pub fn with_tables_expanded(module: &Module, func: &Function) -> Option<Function> {
    has_tables(func).then(|| {
        let mut func = func.clone();
        expand_tables(&mut func, &module.tables, true, |_| Some(TableForm::Tree));
        func
    })
}

/// Replaces matches of tables by comparisons; returns `true` if there was any. `form` is asked before each,
/// and may leave it. A table of too many entries stays. Without `jmp32`, comparisons are of 64 bits only.
pub fn expand_tables(
    func: &mut Function,
    tables: &PrimaryMap<Table, TableDecl>,
    jmp32: bool,
    mut form: impl FnMut(Table) -> Option<TableForm>,
) -> bool {
    let mut changed = false;
    let mut b = 0;
    while b < func.layout.len() {
        let block = func.layout[b];
        for at in 0..func.blocks[block].insts.len() {
            let inst = func.blocks[block].insts[at];
            let Op::TableMatch { table: number } = func.insts[inst].op else { continue };
            let Some(table) = tables.get(number) else { continue };
            let Some(rules) = table_rules(table) else { continue };
            if let Some(form) = form(number) {
                expand(func, (b, at), inst, (&table_widths(table), rules), (form, jmp32));
                changed = true;
                // What follows is in a block of its own now.
                break;
            }
        }
        b += 1;
    }
    changed
}

/// Replaces one match; `(b, at)` is its place: index in the layout, position in the block.
fn expand(
    func: &mut Function,
    (b, at): (usize, usize),
    inst: Inst,
    (widths, rules): (&[u64], Vec<TableRule>),
    (form, jmp32): (TableForm, bool),
) {
    let data = func.insts[inst].clone();
    let block = func.layout[b];
    let join = func.split_block_at(block, at);
    let words =
        data.args.iter().zip(widths).map(|(&v, &width)| word(func, block, v, width, data.loc)).collect();
    let spare = rules.len() + 16;
    let plan = table_plan(rules, widths, form, spare);
    let blocks: Vec<Block> = plan.steps.iter().map(|_| func.blocks.push(Default::default())).collect();
    let mut emitter = TablePlanEmitter { func, words, loc: data.loc, jmp32 };
    for (&step, &block) in plan.steps.iter().zip(&blocks) {
        match step {
            TableStep::Compare { word, with, yes, no } => {
                emitter.compare(block, word, with, blocks[yes], blocks[no])
            }
            TableStep::Result(result) => emitter.result(block, result, join),
        }
    }
    let mut cursor = func.at_end(block);
    cursor.loc = data.loc;
    cursor.effect(Op::Jump {}, [], [BlockCall::new(blocks[plan.first])]);
    func.layout.splice(b + 1..b + 1, blocks.into_iter().chain([join]));
}

/// The argument without bits above the word's width.
fn word(func: &mut Function, block: Block, value: Value, width: u64, loc: u32) -> TableKeyWord {
    let narrow = width.count_ones() <= 32;
    let fits = func.types[value].int_bits().is_some_and(|bits| bits <= width.count_ones());
    if fits || width == u64::MAX {
        return TableKeyWord { value, narrow };
    }
    let mut cursor = func.at_end(block);
    cursor.loc = loc;
    let ty = Type::int(width.count_ones());
    let value = if width == u64::from(u32::MAX) {
        cursor.value(Op::Zext {}, [value], ty)
    } else {
        let mask = cursor.iconst(width as i64);
        cursor.value(Op::Alu { op: AluOp::And, width: Width::W64 }, [value, mask], ty)
    };
    TableKeyWord { value, narrow }
}

/// A word of the key.
#[derive(Clone, Copy)]
struct TableKeyWord {
    value: Value,
    /// It has no more than 32 bits.
    narrow: bool,
}

/// Writes steps as blocks.
struct TablePlanEmitter<'f> {
    func: &'f mut Function,
    words: Vec<TableKeyWord>,
    loc: u32,
    jmp32: bool,
}

impl TablePlanEmitter<'_> {
    fn result(&mut self, block: Block, result: i64, join: Block) {
        let mut cursor = self.func.at_end(block);
        cursor.loc = self.loc;
        let value = cursor.iconst(result);
        cursor.effect(Op::Jump {}, [], [BlockCall::with(join, [value])]);
    }

    fn compare(&mut self, block: Block, word: usize, with: TableComparison, yes: Block, no: Block) {
        let word = self.words[word];
        let (cond, word, bound) = match with {
            TableComparison::Below(bound) => (Cond::Lt, word, bound),
            TableComparison::AtMost(bound) => (Cond::Le, word, bound),
            TableComparison::AtLeast(bound) => (Cond::Ge, word, bound),
            TableComparison::Equal(value) => (Cond::Eq, word, value),
            TableComparison::Bit(bit) => (Cond::Set, word, bit),
            // Below the interval the difference wraps around to more than any within it.
            TableComparison::Within(lo, hi) => (Cond::Le, self.alu(block, AluOp::Sub, word, lo), hi - lo),
            TableComparison::Masked(value, mask) => {
                (Cond::Eq, self.alu(block, AluOp::And, word, mask), value)
            }
        };
        // Only of 32 bits such a bound is an immediate.
        let short = word.narrow && self.jmp32 && bound > i32::MAX as u64;
        let width = if short { Width::W32 } else { Width::W64 };
        let mut cursor = self.func.at_end(block);
        cursor.loc = self.loc;
        let bound = cursor.iconst(bound as i64);
        cursor.effect(
            Op::Branch { cond, width },
            [word.value, bound],
            [BlockCall::new(yes), BlockCall::new(no)],
        );
    }

    fn alu(
        &mut self,
        block: Block,
        op: AluOp,
        TableKeyWord { value, narrow }: TableKeyWord,
        operand: u64,
    ) -> TableKeyWord {
        let (width, ty) = if narrow { (Width::W32, Type::I32) } else { (Width::W64, Type::I64) };
        let mut cursor = self.func.at_end(block);
        cursor.loc = self.loc;
        let operand = cursor.iconst(operand as i64);
        let value = cursor.value(Op::Alu { op, width }, [value, operand], ty);
        TableKeyWord { value, narrow }
    }
}
