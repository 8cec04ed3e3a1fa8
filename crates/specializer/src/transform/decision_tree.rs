//! Comparisons that find the entry of a key: chains, trees over key words, trees over intervals.
//!
//! A mispredicted branch costs as much as some sixteen comparisons that fall through, so the hottest keys are
//! tried one after the other, and only what is behind them is searched by halves. Every key is compared in
//! full.

use millstream_ir::{AluOp, Block, BlockCall, Cond, Op, Size, Type, Value, Width};
use smallvec::SmallVec;

use super::partial_eval::PartialEvaluator;

/// Keys that are compared one by one before any is searched for by halves.
const CHAIN: usize = 20;
/// Keys at the end of a search that are compared one by one.
const RUN: usize = 6;

/// A key word: its value in the copy, and its size.
pub(super) type KeyWord = (Value, Size);

/// A key and where it leads.
#[derive(Clone, Debug)]
pub(super) struct DecisionCase {
    /// One constant a word.
    pub(super) key: SmallVec<[u64; 4]>,
    pub(super) heat: u64,
    pub(super) target: Block,
}

/// The values from one start to the next, and where they lead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DecisionInterval {
    pub(super) start: u64,
    pub(super) heat: u64,
    pub(super) target: Block,
}

/// Comparisons of this width.
fn width(size: Size) -> Width {
    if size == Size::Dw { Width::W64 } else { Width::W32 }
}

/// A constant as an operand of a comparison of this size: 32-bit comparisons take immediates sign-extended.
fn operand(value: u64, size: Size) -> i64 {
    if size == Size::W { i64::from(value as u32 as i32) } else { value as i64 }
}

/// The words with nothing above their sizes, so that comparisons see no more than a store would have
/// written.
pub(super) fn words(evaluator: &mut PartialEvaluator<'_>, words: &[KeyWord], out: Block) -> Vec<KeyWord> {
    let mut narrow = Vec::with_capacity(words.len());
    for &(value, size) in words {
        let fits = evaluator.out.types[value].int_bits().is_some_and(|b| b <= size.bits());
        // Comparisons of 32 bits look at no more.
        if fits || matches!(size, Size::W | Size::Dw) {
            narrow.push((value, size));
            continue;
        }
        let mask = evaluator.value(out, Op::Const { value: (1 << size.bits()) - 1 }, &[], Type::I64);
        let op = Op::Alu { op: AluOp::And, width: Width::W32 };
        narrow.push((evaluator.value(out, op, &[value, mask], Type::int(size.bits())), size));
    }
    narrow
}

/// Goes to the target of the key that the words equal, else to `default`. Ends the block.
pub(super) fn exact(
    evaluator: &mut PartialEvaluator<'_>,
    words: &[KeyWord],
    mut rows: Vec<DecisionCase>,
    from: Block,
    default: Block,
) {
    rows.sort_by(|a, b| b.heat.cmp(&a.heat).then_with(|| a.key.cmp(&b.key)));
    let length = if rows.len() <= CHAIN + RUN { rows.len() } else { CHAIN };
    let rest = rows.split_off(length);
    if rest.is_empty() {
        return chain(evaluator, words, &rows, from, default);
    }
    let behind = evaluator.new_block();
    chain(evaluator, words, &rows, from, behind);
    tree(evaluator, words, rest, behind, default);
}

fn chain(
    evaluator: &mut PartialEvaluator<'_>,
    words: &[KeyWord],
    rows: &[DecisionCase],
    from: Block,
    default: Block,
) {
    let mut at = from;
    for (n, row) in rows.iter().enumerate() {
        let next = if n + 1 == rows.len() { default } else { evaluator.new_block() };
        compare(evaluator, words, row, at, next);
        at = next;
    }
    if rows.is_empty() {
        evaluator.emit(from, Op::Jump {}, &[], &[BlockCall::new(default)], Type::Any);
    }
}

/// One key: word by word, the last first to succeed.
fn compare(
    evaluator: &mut PartialEvaluator<'_>,
    words: &[KeyWord],
    row: &DecisionCase,
    mut at: Block,
    next: Block,
) {
    let Some((&(last, size), others)) = words.split_last() else {
        evaluator.emit(at, Op::Jump {}, &[], &[BlockCall::new(row.target)], Type::Any);
        return;
    };
    for (n, &(value, size)) in others.iter().enumerate() {
        let on = evaluator.new_block();
        test(evaluator, Cond::Ne, (value, size), row.key[n], at, next, on);
        at = on;
    }
    test(evaluator, Cond::Eq, (last, size), row.key[others.len()], at, row.target, next);
}

fn test(
    evaluator: &mut PartialEvaluator<'_>,
    cond: Cond,
    word: KeyWord,
    against: u64,
    at: Block,
    taken: Block,
    fall: Block,
) {
    let (value, size) = word;
    let constant = evaluator.value(at, Op::Const { value: operand(against, size) }, &[], Type::I64);
    let op = Op::Branch { cond, width: width(size) };
    evaluator.emit(at, op, &[value, constant], &[BlockCall::new(taken), BlockCall::new(fall)], Type::Any);
}

/// Halves by the word that tells most keys apart.
fn tree(
    evaluator: &mut PartialEvaluator<'_>,
    words: &[KeyWord],
    mut rows: Vec<DecisionCase>,
    from: Block,
    default: Block,
) {
    let distinct = |n: usize| {
        let mut all: Vec<u64> = rows.iter().map(|r| r.key[n]).collect();
        all.sort_unstable();
        all.dedup();
        all.len()
    };
    let best = (0..words.len()).max_by_key(|&n| distinct(n));
    let Some(word) = best.filter(|&n| rows.len() > RUN && distinct(n) > 1) else {
        return chain(evaluator, words, &rows, from, default);
    };
    rows.sort_by_key(|r| r.key[word]);
    let middle = rows.len() / 2;
    let pivot = rows[middle].key[word];
    let mut cut = rows.partition_point(|r| r.key[word] < pivot);
    let pivot = if cut == 0 {
        cut = rows.partition_point(|r| r.key[word] <= pivot);
        rows[cut].key[word]
    } else {
        pivot
    };
    let high = rows.split_off(cut);
    let (low_block, high_block) = (evaluator.new_block(), evaluator.new_block());
    test(evaluator, Cond::Ge, words[word], pivot, from, high_block, low_block);
    for (mut rows, block) in [(rows, low_block), (high, high_block)] {
        rows.sort_by_key(|r| std::cmp::Reverse(r.heat));
        tree(evaluator, words, rows, block, default);
    }
}

/// Goes to the target of the interval that the word lies in; the first starts at 0. Ends the block.
pub(super) fn intervals(
    evaluator: &mut PartialEvaluator<'_>,
    word: KeyWord,
    all: &[DecisionInterval],
    from: Block,
) {
    let mut work: Vec<(&[DecisionInterval], Block)> = vec![(all, from)];
    while let Some((part, at)) = work.pop() {
        if let [only] = part {
            evaluator.emit(at, Op::Jump {}, &[], &[BlockCall::new(only.target)], Type::Any);
            continue;
        }
        let cut = balance(part);
        let (low, high) = part.split_at(cut);
        let side = |part: &[DecisionInterval], copier: &mut PartialEvaluator| match part {
            [only] => (only.target, false),
            _ => (copier.new_block(), true),
        };
        let (low_block, low_more) = side(low, evaluator);
        let (high_block, high_more) = side(high, evaluator);
        test(evaluator, Cond::Ge, word, high[0].start, at, high_block, low_block);
        work.extend(high_more.then_some((high, high_block)));
        work.extend(low_more.then_some((low, low_block)));
    }
}

/// Finds the index at which to split so that both sides are looked up about as often. Each interval has some
/// weight, so that the tree stays shallow.
fn balance(part: &[DecisionInterval]) -> usize {
    let total: u64 = part.iter().map(|i| i.heat).sum();
    let floor = total / part.len() as u64 + 1;
    let all = total + floor * part.len() as u64;
    let mut sum = 0;
    for (n, interval) in part.iter().enumerate() {
        let with = sum + interval.heat + floor;
        if 2 * with >= all {
            // On which side the one in the middle goes: where it leaves less imbalance.
            let cut = if 2 * with - all <= all - 2 * sum { n + 1 } else { n };
            return cut.clamp(1, part.len() - 1);
        }
        sum = with;
    }
    part.len() / 2
}
