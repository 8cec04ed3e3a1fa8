//! Match tables as code: a tree of comparisons that ends at the first entry that matches.
//!
//! The words of the key are compared one at a time. Rules on one word become a balanced search among the intervals on
//! which the result is the same. Otherwise the comparison that leaves the fewest rules on either side divides them, as
//! in HiCuts (Gupta and McKeown, Hot Interconnects 1999); where none helps, the first rules are tested in order.
//!
//! Invariant: a rule that is needed on both sides of a comparison is copied, but copies are limited to the number of
//! rules, so that the code stays proportional to the table.

mod rules;
mod split;

use cranelift_entity::PrimaryMap;
use millstream_ir::{
    AluOp, Block, BlockCall, Cond, Function, Inst, Module, Op, Table, TableDecl, Type, Value, ValueDef, Width,
};
use rustc_hash::FxHashMap;

use rules::{Known, Rule, Test};
use split::Split;

/// So few rules are tested in order.
const FEW: usize = 2;

/// Whether a function matches tables.
fn has_tables(func: &Function) -> bool {
    func.insts_in_order().any(|(_, inst)| matches!(func.insts[inst].op, Op::TableMatch { .. }))
}

/// The function with its matches expanded, as [`expand_tables`] does; `None` if it has none.
pub(super) fn expanded(module: &Module, func: &Function) -> Option<Function> {
    has_tables(func).then(|| {
        let mut func = func.clone();
        expand_tables(&mut func, &module.tables, true, || true);
        func
    })
}

/// Replaces matches of tables by comparisons; `true` if there was any. `allow` is asked before each. A table of too
/// many entries stays. Without `jmp32`, comparisons are of 64 bits only.
pub fn expand_tables(
    func: &mut Function,
    tables: &PrimaryMap<Table, TableDecl>,
    jmp32: bool,
    mut allow: impl FnMut() -> bool,
) -> bool {
    let mut changed = false;
    let mut b = 0;
    while b < func.layout.len() {
        let block = func.layout[b];
        for at in 0..func.blocks[block].insts.len() {
            let inst = func.blocks[block].insts[at];
            let Op::TableMatch { table } = func.insts[inst].op else { continue };
            let Some(table) = tables.get(table) else { continue };
            let Some(rules) = rules::rules(table) else { continue };
            if allow() {
                expand(func, (b, at), inst, &rules::widths(table), rules, jmp32);
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
    widths: &[u64],
    rules: Vec<Rule>,
    jmp32: bool,
) {
    let data = func.insts[inst].clone();
    let Some(result) = data.result.expand() else { return };
    let block = func.layout[b];
    let rest = func.blocks[block].insts.split_off(at + 1);
    func.blocks[block].insts.pop();
    let join = func.blocks.push(Default::default());
    func.blocks[join].insts = rest;
    func.blocks[join].params.push(result);
    func.defs[result] = ValueDef::Param(join, 0);
    let words =
        data.args.iter().zip(widths).map(|(&v, &width)| word(func, block, v, width, data.loc)).collect();
    let spare = rules.len() + 16;
    let mut tree = Tree {
        func,
        words,
        leaves: FxHashMap::default(),
        order: Vec::new(),
        join,
        spare,
        loc: data.loc,
        jmp32,
    };
    let known: Vec<Known> = widths.iter().map(|&w| Known::of_width(w)).collect();
    let root = tree.build(&Rules { rules, otherwise: -1 }, &known);
    let mut order = std::mem::take(&mut tree.order);
    order.push(join);
    let mut cursor = func.at_end(block);
    cursor.loc = data.loc;
    cursor.effect(Op::Jump {}, [], [BlockCall::new(root)]);
    func.layout.splice(b + 1..b + 1, order);
}

/// The argument without bits above the word's width.
fn word(func: &mut Function, block: Block, value: Value, width: u64, loc: u32) -> Word {
    let narrow = width.count_ones() <= 32;
    let fits = func.types[value].int_bits().is_some_and(|bits| bits <= width.count_ones());
    if fits || width == u64::MAX {
        return Word { value, narrow };
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
    Word { value, narrow }
}

/// A word of the key.
#[derive(Clone, Copy)]
struct Word {
    value: Value,
    /// It has no more than 32 bits.
    narrow: bool,
}

/// Rules that each demand something, and the result where none is met.
struct Rules {
    rules: Vec<Rule>,
    otherwise: i64,
}

impl Rules {
    /// What is left where so much is known.
    fn given(&self, known: &[Known]) -> Rules {
        let mut left = Rules { rules: Vec::new(), otherwise: self.otherwise };
        for rule in &self.rules {
            let tests: Option<Vec<Test>> = rule.tests.iter().zip(known).map(|(t, k)| t.given(k)).collect();
            match tests {
                None => {}
                Some(tests) if tests.iter().all(|&t| t == Test::Any) => {
                    left.otherwise = rule.result;
                    break;
                }
                Some(tests) => left.rules.push(Rule { tests, result: rule.result }),
            }
        }
        while left.rules.last().is_some_and(|r| r.result == left.otherwise) {
            left.rules.pop();
        }
        left
    }

    /// The only word that anything is demanded of, if that is always an interval.
    fn single_word(&self) -> Option<usize> {
        let word = self.rules.first()?.tests.iter().position(|&t| t != Test::Any)?;
        let only = |r: &Rule| {
            let others = r.tests.iter().enumerate().all(|(i, &t)| i == word || t == Test::Any);
            others && !matches!(r.tests[word], Test::Masked(..))
        };
        self.rules.iter().all(only).then_some(word)
    }

    /// The intervals, ascending, into which the rules divide a word, by first value; adjacent results differ.
    fn segments(&self, word: usize, known: &Known) -> Vec<(u64, i64)> {
        let mut cuts = vec![known.lo];
        for rule in &self.rules {
            if let Test::Interval(lo, hi) = rule.tests[word] {
                cuts.push(lo);
                cuts.extend(hi.checked_add(1).filter(|&next| next <= known.hi));
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        // From the last rule to the first, each overwrites what it covers.
        let mut results = vec![self.otherwise; cuts.len()];
        for rule in self.rules.iter().rev() {
            let (lo, hi) = match rule.tests[word] {
                Test::Interval(lo, hi) => (lo, hi),
                Test::Any | Test::Masked(..) => (known.lo, known.hi),
            };
            let from = cuts.partition_point(|&c| c < lo);
            let to = cuts.partition_point(|&c| c <= hi);
            results[from..to].fill(rule.result);
        }
        let mut segments: Vec<(u64, i64)> = cuts.into_iter().zip(results).collect();
        segments.dedup_by_key(|s| s.1);
        segments
    }
}

/// The tree under construction.
struct Tree<'f> {
    func: &'f mut Function,
    words: Vec<Word>,
    /// One block a result.
    leaves: FxHashMap<i64, Block>,
    /// The new blocks in layout order.
    order: Vec<Block>,
    join: Block,
    /// How many more rules may be copied.
    spare: usize,
    loc: u32,
    jmp32: bool,
}

impl Tree<'_> {
    fn block(&mut self) -> Block {
        let block = self.func.blocks.push(Default::default());
        self.order.push(block);
        block
    }

    fn leaf(&mut self, result: i64) -> Block {
        if let Some(&leaf) = self.leaves.get(&result) {
            return leaf;
        }
        let (leaf, join) = (self.block(), self.join);
        self.leaves.insert(result, leaf);
        let mut cursor = self.func.at_end(leaf);
        cursor.loc = self.loc;
        let value = cursor.iconst(result);
        cursor.effect(Op::Jump {}, [], [BlockCall::with(join, [value])]);
        leaf
    }

    /// The block that decides among the rules.
    fn build(&mut self, rules: &Rules, known: &[Known]) -> Block {
        let rules = rules.given(known);
        if rules.rules.is_empty() {
            return self.leaf(rules.otherwise);
        }
        if let Some(word) = rules.single_word() {
            return self.search(word, &rules.segments(word, &known[word]));
        }
        if rules.rules.len() > FEW
            && let Some((split, copies)) = split::best(&rules.rules, known, self.spare)
        {
            self.spare -= copies;
            return self.divide(split, &rules, known);
        }
        self.in_order(rules, known)
    }

    fn divide(&mut self, split: Split, rules: &Rules, known: &[Known]) -> Block {
        let block = self.block();
        let (left, right) = split.sides(known);
        let no = self.build(rules, &right);
        let yes = self.build(rules, &left);
        match split {
            Split::Below(word, bound) => self.branch(block, Cond::Lt, word, bound, yes, no),
            Split::Bit(word, bit) => self.branch(block, Cond::Set, word, bit, no, yes),
        }
        block
    }

    /// A balanced search for the segment that a word lies in.
    fn search(&mut self, word: usize, segments: &[(u64, i64)]) -> Block {
        match *segments {
            [] => self.leaf(-1),
            [(_, result)] => self.leaf(result),
            [(_, outside), (lo, inside), (next, also)] if outside == also => {
                let block = self.block();
                let no = self.leaf(outside);
                let yes = self.leaf(inside);
                self.within(block, word, (lo, next - 1), None, yes, no);
                block
            }
            _ => {
                let block = self.block();
                let (left, right) = segments.split_at(segments.len() / 2);
                let no = self.search(word, right);
                let yes = self.search(word, left);
                self.branch(block, Cond::Lt, word, right[0].0, yes, no);
                block
            }
        }
    }

    /// Tests of the first rules in order, then what decides among the others.
    fn in_order(&mut self, mut rules: Rules, known: &[Known]) -> Block {
        let count = if rules.rules.len() <= FEW { rules.rules.len() } else { (rules.rules.len() / 8).max(1) };
        let others = rules.rules.split_off(count);
        let starts: Vec<Block> = rules.rules.iter().map(|_| self.block()).collect();
        let tail = self.build(&Rules { rules: others, otherwise: rules.otherwise }, known);
        for (i, rule) in rules.rules.iter().enumerate() {
            let no = starts.get(i + 1).copied().unwrap_or(tail);
            self.all(starts[i], rule, known, no);
        }
        starts[0]
    }

    /// Goes to the rule's result if all its tests hold, at the first that fails to `no`.
    fn all(&mut self, start: Block, rule: &Rule, known: &[Known], no: Block) {
        let tests: Vec<(usize, Test)> =
            rule.tests.iter().copied().enumerate().filter(|(_, t)| *t != Test::Any).collect();
        let mut block = start;
        for (i, &(word, test)) in tests.iter().enumerate() {
            let yes = if i + 1 == tests.len() { self.leaf(rule.result) } else { self.block() };
            match test {
                Test::Interval(lo, hi) => self.within(block, word, (lo, hi), Some(&known[word]), yes, no),
                Test::Masked(value, mask) => self.masked(block, word, (value, mask), yes, no),
                Test::Any => {}
            }
            block = yes;
        }
    }

    /// Branches on whether a word lies in an interval.
    fn within(
        &mut self,
        block: Block,
        word: usize,
        (lo, hi): (u64, u64),
        known: Option<&Known>,
        yes: Block,
        no: Block,
    ) {
        if lo == hi {
            return self.branch(block, Cond::Eq, word, lo, yes, no);
        }
        if known.is_some_and(|k| k.lo == lo) {
            return self.branch(block, Cond::Le, word, hi, yes, no);
        }
        if known.is_some_and(|k| k.hi == hi) {
            return self.branch(block, Cond::Ge, word, lo, yes, no);
        }
        // Below the interval the difference wraps around to more than any within it.
        let Word { value, narrow } = self.words[word];
        let (width, ty) = if narrow { (Width::W32, Type::I32) } else { (Width::W64, Type::I64) };
        let difference = self.alu(block, AluOp::Sub, (width, ty), value, lo);
        self.compare(block, Cond::Le, Word { value: difference, narrow }, hi - lo, yes, no);
    }

    fn masked(&mut self, block: Block, word: usize, (value, mask): (u64, u64), yes: Block, no: Block) {
        if mask.is_power_of_two() {
            let (yes, no) = if value == 0 { (no, yes) } else { (yes, no) };
            return self.branch(block, Cond::Set, word, mask, yes, no);
        }
        let Word { value: v, narrow } = self.words[word];
        let (width, ty) = if narrow { (Width::W32, Type::I32) } else { (Width::W64, Type::I64) };
        let bits = self.alu(block, AluOp::And, (width, ty), v, mask);
        self.compare(block, Cond::Eq, Word { value: bits, narrow }, value, yes, no);
    }

    fn alu(
        &mut self,
        block: Block,
        op: AluOp,
        (width, ty): (Width, Type),
        value: Value,
        operand: u64,
    ) -> Value {
        let mut cursor = self.func.at_end(block);
        cursor.loc = self.loc;
        let operand = cursor.iconst(operand as i64);
        cursor.value(Op::Alu { op, width }, [value, operand], ty)
    }

    fn branch(&mut self, block: Block, cond: Cond, word: usize, bound: u64, yes: Block, no: Block) {
        self.compare(block, cond, self.words[word], bound, yes, no);
    }

    fn compare(&mut self, block: Block, cond: Cond, word: Word, bound: u64, yes: Block, no: Block) {
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
}
