//! Loops that go through a table become decisions: code tests bits of the packet's words until few turns are
//! left that matter, and tries those in their order.
//!
//! A turn that was selected is a turn of the original loop, begun with the values that it would have begun
//! with. Turns that many packets may reach have copies of their own, in which everything is known that the
//! table and the tests imply.
//!
//! Invariant: a packet reaches the first turn that it would not have passed over
//! ([`crate::transform::table_loop_analysis`]), and no other.

use std::collections::BTreeMap;

use cranelift_entity::EntityRef;
use millstream_ir::{AluOp, Block, BlockCall, Cond, Inst, Op, Size, Type, Value, Width};
use millstream_isa::helpers::id;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::{AbstractEnv, CopyPosition, MergePoint, PartialEvaluator, too_deep};
use crate::transform::eval::{AbstractValue, LookupValue, MergedField, ValueAddress, ValueBytes};
use crate::transform::symbolic_bits::{BitCondition, BitLiteral, BitLiterals, KnownWordBits};
use crate::transform::table_loop_analysis::{self, LoopIteration, possible};

/// Turns that are tried one after the other.
const FEW: usize = 2;
/// Loops with fewer turns that matter stay as they are.
const LEAST: usize = 4;
/// Turns that have copies of their own, if the others can share one.
const COPIES: usize = 64;
/// Instructions by which a turn is tried.
const TRIAL: usize = 8;

/// A loop that becomes decisions.
struct LoopDecisionTree<'s> {
    turns: Vec<LoopIteration>,
    /// The bits that each turn needs.
    literals: Vec<BitLiterals>,
    header: Block,
    /// The header's copy.
    general: Block,
    env: &'s AbstractEnv,
    /// Entry blocks of the turns that some packet may reach, and the number of jumps to each.
    starts: BTreeMap<usize, (Block, usize)>,
}

/// Packets that a sequence of tests has not told apart yet.
struct UndecidedPackets {
    turns: Vec<usize>,
    facts: KnownWordBits,
    out: Block,
    /// Number of turns that may still be tried.
    room: usize,
}

/// Puts decisions in front of a loop, in the place of its header's copy. Returns the new copy of the
/// header; `None` if nothing useful is known of its turns.
pub(super) fn emit_loop_decisions(
    evaluator: &mut PartialEvaluator<'_>,
    header: Block,
    out: Block,
    env: &AbstractEnv,
) -> Option<Block> {
    if !evaluator.mode.active || evaluator.mode.late || evaluator.mode.plain || too_deep(&evaluator.regions) {
        return None;
    }
    let body = table_loop_analysis::loop_of(&evaluator.original.cfg, header);
    if !may_walk(evaluator, &body) {
        return None;
    }
    let turns = table_loop_analysis::turns(evaluator, header, &body, env)?;
    if turns.len() < LEAST {
        return None;
    }
    let room = evaluator.limit.saturating_sub(evaluator.out.insts.len()) / (2 * TRIAL);
    let room = room.min(8 * turns.len() + 64);
    let left = possible(&turns, &(0..turns.len()).collect::<Vec<_>>(), &KnownWordBits::default());
    if left.len() > room {
        return None;
    }
    let general = evaluator.new_block();
    for &param in &evaluator.original.src.blocks[header].params {
        evaluator.out.add_param(general, evaluator.original.src.types[param]);
    }
    evaluator.leads_to(header, general);
    let literals = turns.iter().map(|turn| turn.needs.iter().flat_map(BitCondition::literals).collect());
    let literals = literals.collect();
    let mut sieve = LoopDecisionTree { turns, literals, header, general, env, starts: BTreeMap::new() };
    evaluator.report.walks += 1;
    evaluator.laid_out(out);
    let mut work = vec![UndecidedPackets { turns: left, facts: KnownWordBits::default(), out, room }];
    while let Some(left) = work.pop() {
        match sieve.best(&left) {
            Some(bit) => work.extend(halves(evaluator, &sieve, left, bit)),
            None => trials(evaluator, &mut sieve, &left),
        }
    }
    all_turns(evaluator, &sieve);
    Some(general)
}

/// Returns true if a loop may become decisions: lookups in it are planned to go through a table, or it
/// has none.
fn may_walk(evaluator: &PartialEvaluator<'_>, body: &FxHashSet<Block>) -> bool {
    let insts = || body.iter().flat_map(|block| &evaluator.original.src.blocks[*block].insts);
    let is_lookup = |op: &Op| matches!(op, Op::MapLookup { .. } | Op::Helper { id: id::MAP_LOOKUP_ELEM });
    let is_walked = evaluator.plans.sites.iter().any(|(inst, site)| {
        site.lookup.specialization().decides_loop() && insts().any(|other| other == inst)
    });
    is_walked || !insts().any(|inst| is_lookup(&evaluator.original.src.insts[*inst].op))
}

/// Tests a bit; returns the turns left on both sides.
fn halves(
    evaluator: &mut PartialEvaluator<'_>,
    sieve: &LoopDecisionTree<'_>,
    left: UndecidedPackets,
    bit: BitLiteral,
) -> [UndecidedPackets; 2] {
    let sides = [true, false].map(|is| {
        let facts = left.facts.with(BitLiteral { is, ..bit });
        (possible(&sieve.turns, &left.turns, &facts), facts, evaluator.new_block())
    });
    let [taken, fallen] = [&sides[0], &sides[1]].map(|(_, _, out)| BlockCall::new(*out));
    let word = evaluator.materialize(sieve.env[bit.word.index()], left.out);
    let width = if bit.at < 32 { Width::W32 } else { Width::W64 };
    let mask = 1u64 << bit.at;
    let mask =
        evaluator.constant(if bit.at < 32 { i64::from(mask as u32 as i32) } else { mask as i64 }, left.out);
    let branch = Op::Branch { cond: Cond::Set, width };
    evaluator.emit(left.out, branch, &[word, mask], &[taken, fallen], Type::Any);
    let all = (sides[0].0.len() + sides[1].0.len()).max(1);
    sides.map(|(turns, facts, out)| {
        let room = left.room * turns.len() / all;
        UndecidedPackets { turns, facts, out, room }
    })
}

/// Tries the turns that are left.
fn trials(evaluator: &mut PartialEvaluator<'_>, sieve: &mut LoopDecisionTree<'_>, left: &UndecidedPackets) {
    let mut out = left.out;
    for (at, &n) in left.turns.iter().enumerate() {
        let is_last = at + 1 == left.turns.len();
        let needs: Vec<BitCondition> = match is_last {
            true => Vec::new(),
            false => sieve.turns[n].needs.clone(),
        };
        let next = if is_last { out } else { evaluator.new_block() };
        for need in needs.iter().filter(|need| need.under(&left.facts).is_none()) {
            out = trial(evaluator, need, sieve.env, out, next);
        }
        enter(evaluator, sieve, n, out);
        out = next;
    }
}

/// Goes to the block that it returns if a condition holds, else to `other`.
fn trial(
    evaluator: &mut PartialEvaluator<'_>,
    need: &BitCondition,
    env: &AbstractEnv,
    mut out: Block,
    other: Block,
) -> Block {
    let on = evaluator.new_block();
    match need {
        BitCondition::All(literals) => {
            for (word, mask, is) in masks(literals) {
                let met = evaluator.new_block();
                bits_are(evaluator, (word, mask, is), Cond::Ne, env, (out, other, met));
                out = met;
            }
            evaluator.emit(out, Op::Jump {}, &[], &[BlockCall::new(on)], Type::Any);
        }
        BitCondition::Any(literals) => {
            for (word, mask, is) in masks(literals) {
                let unmet = evaluator.new_block();
                // None of these is what it should be.
                bits_are(evaluator, (word, mask, mask & !is), Cond::Ne, env, (out, on, unmet));
                out = unmet;
            }
            evaluator.emit(out, Op::Jump {}, &[], &[BlockCall::new(other)], Type::Any);
        }
        BitCondition::Within { word, bits, first, last } => {
            let width = if *bits == 64 { Width::W64 } else { Width::W32 };
            let value = low(evaluator, (*word, *bits), env, out);
            let (cond, end) = if *first == 0 { (Cond::Gt, *last) } else { (Cond::Lt, *first) };
            let end = if width == Width::W32 { i64::from(end as u32 as i32) } else { end as i64 };
            let end = evaluator.constant(end, out);
            let targets = [BlockCall::new(other), BlockCall::new(on)];
            evaluator.emit(out, Op::Branch { cond, width }, &[value, end], &targets, Type::Any);
        }
        // Decided, or not among what turns need.
        BitCondition::Always(_) | BitCondition::Open => {
            evaluator.emit(out, Op::Jump {}, &[], &[BlockCall::new(on)], Type::Any);
        }
    }
    on
}

/// Compares some bits of a word.
fn bits_are(
    evaluator: &mut PartialEvaluator<'_>,
    (word, mask, is): (Value, u64, u64),
    cond: Cond,
    env: &AbstractEnv,
    (out, taken, fallen): (Block, Block, Block),
) {
    let bits = 64 - mask.leading_zeros();
    let (width, size) = if bits > 32 { (Width::W64, Size::Dw) } else { (Width::W32, Size::W) };
    let operand = |of: u64| if size == Size::W { i64::from(of as u32 as i32) } else { of as i64 };
    let mut value = evaluator.materialize(env[word.index()], out);
    let has = evaluator.original.src.types[word].int_bits().unwrap_or(64).min(size.bits());
    if mask != u64::MAX >> (64 - has) {
        let mask = evaluator.constant(operand(mask), out);
        value =
            evaluator.value(out, Op::Alu { op: AluOp::And, width }, &[value, mask], Type::int(size.bits()));
    }
    let is = evaluator.constant(operand(is), out);
    let targets = [BlockCall::new(taken), BlockCall::new(fallen)];
    evaluator.emit(out, Op::Branch { cond, width }, &[value, is], &targets, Type::Any);
}

/// The lowest bits of a word, as comparisons of 32 bits see them, or all of them.
fn low(
    evaluator: &mut PartialEvaluator<'_>,
    (word, bits): (Value, u32),
    env: &AbstractEnv,
    out: Block,
) -> Value {
    let value = evaluator.materialize(env[word.index()], out);
    if bits >= 32 || evaluator.original.src.types[word].int_bits().is_some_and(|has| has <= bits) {
        return value;
    }
    let mask = evaluator.constant((1 << bits) - 1, out);
    evaluator.value(out, Op::Alu { op: AluOp::And, width: Width::W32 }, &[value, mask], Type::I32)
}

/// Jumps to a turn.
fn enter(evaluator: &mut PartialEvaluator<'_>, sieve: &mut LoopDecisionTree<'_>, n: usize, out: Block) {
    let (start, places) = sieve.starts.entry(n).or_insert_with(|| (evaluator.new_block(), 0));
    *places += 1;
    evaluator.emit(out, Op::Jump {}, &[], &[BlockCall::new(*start)], Type::Any);
}

/// Emits the turns: copies of those that most places jump to, one shared copy for the others, and the
/// original loop if nothing can be copied any more.
fn all_turns(evaluator: &mut PartialEvaluator<'_>, sieve: &LoopDecisionTree<'_>) {
    let mut all: Vec<(usize, Block, usize)> =
        sieve.starts.iter().map(|(n, (start, places))| (*n, *start, *places)).collect();
    all.sort_by_key(|(_, _, places)| std::cmp::Reverse(*places));
    let is_shared = all.len() > COPIES + 1 && evaluator.original.module.maps.keys().next().is_some();
    let shared = if is_shared { counters(sieve, &all) } else { None };
    let own = if shared.is_some() { COPIES } else { all.len() };
    let rest = all.split_off(own.min(all.len()));
    for (n, start, _) in all {
        if evaluator.out.insts.len() < evaluator.limit {
            turn(evaluator, sieve, n, start);
        } else {
            general_turn(evaluator, sieve, n, start);
        }
    }
    if let Some(counters) = shared {
        shared_turn(evaluator, sieve, &rest, &counters);
    }
}

/// The loop as it is, from a turn on.
fn general_turn(evaluator: &mut PartialEvaluator<'_>, sieve: &LoopDecisionTree<'_>, n: usize, out: Block) {
    let params = sieve.turns[n].params.clone();
    let args: SmallVec<[Value; 4]> = params.into_iter().map(|abs| evaluator.materialize(abs, out)).collect();
    let target = BlockCall { block: sieve.general, args };
    evaluator.emit(out, Op::Jump {}, &[], &[target], Type::Any);
}

/// A copy of a turn, and of what follows.
fn turn(evaluator: &mut PartialEvaluator<'_>, sieve: &LoopDecisionTree<'_>, n: usize, out: Block) {
    let mut env = sieve.env.clone();
    let turn = &sieve.turns[n];
    for (param, abs) in evaluator.original.src.blocks[sieve.header].params.iter().zip(&turn.params) {
        env[param.index()] = *abs;
    }
    copied_turn(evaluator, sieve.header, turn.path.iter().copied().collect(), out, env);
}

fn copied_turn(
    evaluator: &mut PartialEvaluator<'_>,
    header: Block,
    decided: FxHashMap<Inst, bool>,
    out: Block,
    env: AbstractEnv,
) {
    let before = std::mem::replace(&mut evaluator.forced, decided);
    evaluator.turn_of(CopyPosition { block: header, next: 0, out }, env);
    evaluator.forced = before;
}

/// The parameters of the header that are numbers which differ from turn to turn; `None` if others differ.
fn counters(sieve: &LoopDecisionTree<'_>, turns: &[(usize, Block, usize)]) -> Option<Vec<usize>> {
    let params = |n: usize| &sieve.turns[n].params;
    let (first, _, _) = turns.first()?;
    let differs = |at: &usize| turns.iter().any(|(n, ..)| params(*n)[*at] != params(*first)[*at]);
    let counters: Vec<usize> = (0..params(*first).len()).filter(differs).collect();
    let is_number = |abs: &AbstractValue| matches!(abs, AbstractValue::Const(_));
    let are_numbers = turns.iter().all(|(n, ..)| counters.iter().all(|at| is_number(&params(*n)[*at])));
    are_numbers.then_some(counters)
}

/// One copy for several turns: their counters, and the values found by them, are its parameters.
fn shared_turn(
    evaluator: &mut PartialEvaluator<'_>,
    sieve: &LoopDecisionTree<'_>,
    turns: &[(usize, Block, usize)],
    counters: &[usize],
) {
    let (Some(map), Some(&(first, ..)), Some(&origin)) = (
        evaluator.original.module.maps.keys().next(),
        turns.first(),
        evaluator.original.src.blocks[sieve.header].insts.first(),
    ) else {
        return;
    };
    let head = evaluator.new_block();
    let merge = evaluator.lookups.merges.push(MergePoint { head });
    let number = |n: usize, at: usize| match sieve.turns[n].params[at] {
        AbstractValue::Const(number) => number,
        _ => 0,
    };
    let value = |n: usize| counters.iter().flat_map(|at| number(n, *at).to_le_bytes()).collect();
    let values = turns.iter().map(|(n, ..)| value(*n)).collect();
    // The numbers are no entry of a map: nothing but these fields is ever taken from them.
    let bytes = ValueBytes::Merged(merge, values);
    let known = evaluator.lookups.known.push(LookupValue { map, origin, bytes, address: ValueAddress::None });
    let mut env = sieve.env.clone();
    for (at, param) in evaluator.original.src.blocks[sieve.header].params.iter().enumerate() {
        env[param.index()] = match counters.iter().position(|counter| *counter == at) {
            Some(n) => AbstractValue::Val(
                evaluator
                    .field(merge, MergedField { known, offset: 8 * n as u32, size: Size::Dw, sext: false }),
            ),
            None => sieve.turns[first].params[at],
        };
    }
    // No room is left: lookups inside stay as they are unless their keys are known.
    let limit = std::mem::replace(&mut evaluator.limit, 0);
    copied_turn(evaluator, sieve.header, sieve.agreed(turns), head, env);
    evaluator.limit = limit;
    let starts: Vec<Block> = turns.iter().map(|(_, start, _)| *start).collect();
    evaluator.lead_to(head, &starts);
}

/// Bits of words, word by word, and what they are.
fn masks(literals: &[BitLiteral]) -> SmallVec<[(Value, u64, u64); 4]> {
    let mut masks: SmallVec<[(Value, u64, u64); 4]> = SmallVec::new();
    for literal in literals {
        let bit = 1u64 << literal.at;
        let is = if literal.is { bit } else { 0 };
        match masks.iter_mut().find(|(word, ..)| *word == literal.word) {
            Some((_, mask, all)) => (*mask, *all) = (*mask | bit, *all | is),
            None => masks.push((literal.word, bit, is)),
        }
    }
    masks
}

impl LoopDecisionTree<'_> {
    /// The branches that all of the turns take alike: the turns that follow an open one are unknown.
    fn agreed(&self, turns: &[(usize, Block, usize)]) -> FxHashMap<Inst, bool> {
        let turns = || turns.iter().map(|(n, ..)| &self.turns[*n]);
        let mut decided: FxHashMap<Inst, Option<bool>> = FxHashMap::default();
        for &(branch, is_taken) in turns().flat_map(|turn| &turn.path) {
            let known = decided.entry(branch).or_insert(Some(is_taken));
            *known = known.filter(|known| *known == is_taken);
        }
        let is_known = |branch: Inst| {
            turns().filter(|turn| turn.is_open).all(|turn| turn.path.iter().any(|(b, _)| *b == branch))
        };
        let agreed = decided.into_iter().filter_map(|(branch, is_taken)| Some((branch, is_taken?)));
        agreed.filter(|(branch, _)| is_known(*branch)).collect()
    }

    /// The bit whose test leaves the fewest turns on both sides, if there are too many and the test helps.
    fn best(&self, left: &UndecidedPackets) -> Option<BitLiteral> {
        if left.turns.len() <= FEW {
            return None;
        }
        let mut counts: FxHashMap<(Value, u8), [usize; 2]> = FxHashMap::default();
        let passable = left.turns.iter().filter(|n| self.turns[**n].may_pass);
        for literal in passable.flat_map(|n| &self.literals[*n]) {
            counts.entry((literal.word, literal.at)).or_default()[usize::from(literal.is)] += 1;
        }
        let all = left.turns.len();
        let cost = |(&(word, at), [zeros, ones]): (&(Value, u8), &[usize; 2])| {
            // A turn that needs the bit set is not reached where it is clear, and the other way round.
            let sides = [all - ones, all - zeros];
            (sides[0].max(sides[1]), sides[0] + sides[1], word, at)
        };
        let known = |(word, at): (Value, u8)| {
            let is_known = |is| {
                BitCondition::All(BitLiterals::from_iter([BitLiteral { word, at, is }])).under(&left.facts)
            };
            is_known(true).is_some()
        };
        let (most, sum, word, at) = counts.iter().filter(|(bit, _)| !known(**bit)).map(cost).min()?;
        (most < all && sum <= left.room).then_some(BitLiteral { word, at, is: true })
    }
}
