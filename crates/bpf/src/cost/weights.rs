//! Execution frequencies of blocks.

use std::collections::BTreeMap;

use millstream_isa::MapType;
use millstream_isa::helpers::id;
use millstream_isa::{Callee, Cond, Insn, Operand, Reg, Width};

use super::blocks::BlockGraph;
use super::schedule::operands;
use super::{CostInput, slots};

/// Execution frequencies of the blocks of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BlockFrequencies {
    /// Guessed from the shape of the code.
    ///
    /// Each branch gets a probability from heuristics that hold for programs at large, combined as
    /// independent evidence; frequencies follow. Source: T. Ball, J. Larus, "Branch prediction for free",
    /// PLDI 1993; Y. Wu, J. Larus, "Static branch frequency and program profile analysis", MICRO 1994.
    #[default]
    Static,
    /// Counted: execution counts of the basic blocks, over a number of runs. Blocks are numbered in the order
    /// of the code; they start at the first instruction, at targets of jumps, and after jumps and exits.
    Counts {
        /// One a block.
        blocks: Vec<u64>,
        /// Runs of the function.
        runs: u64,
    },
}

impl BlockFrequencies {
    /// The guesses for one function, as counts: for searches that change only the inside of blocks.
    pub fn guessed(code: CostInput<'_>) -> BlockFrequencies {
        BlockFrequencies::Counts { blocks: guessed(code, &BlockGraph::new(code.insns)), runs: 1024 }
    }

    /// The guesses for one function with some known blocks: `known` maps the first instruction of a block to
    /// its runs for one run of the function.
    pub(super) fn held(code: CostInput<'_>, known: &BTreeMap<usize, f64>) -> BlockFrequencies {
        let blocks = BlockGraph::new(code.insns);
        let held: Vec<Option<f64>> =
            (0..blocks.len()).map(|b| known.get(&blocks.range(b).0).copied()).collect();
        let times = FrequencyEstimate::new(code, &blocks).settled(&blocks, &held);
        BlockFrequencies::Counts { blocks: times.into_iter().map(in_parts).collect(), runs: 1024 }
    }

    /// The blocks of a function, from and to.
    pub(super) fn blocks(insns: &[Insn]) -> Vec<(usize, usize)> {
        let blocks = BlockGraph::new(insns);
        (0..blocks.len()).map(|b| blocks.range(b)).collect()
    }
}

/// A loop goes on with this probability: eight times round.
const GOES_ON: f64 = 0.88;
/// No block is taken to run more often than this for one run of the function.
const MOST: f64 = 10_000.0;
/// Rounds in which frequencies of loops settle, at most.
const ROUNDS: usize = 400;
/// Settled: no frequency changes by more than this part.
const SETTLED: f64 = 1e-4;

impl BlockFrequencies {
    /// Counts of one function, given the count of each instruction.
    pub fn counted(insns: &[Insn], visits: impl Fn(usize) -> u64, runs: u64) -> BlockFrequencies {
        let blocks = BlockGraph::new(insns);
        BlockFrequencies::Counts {
            blocks: (0..blocks.len()).map(|b| visits(blocks.range(b).0)).collect(),
            runs,
        }
    }

    /// Runs of each block for one run of the function, in 1/1024.
    pub(super) fn of(&self, code: CostInput<'_>, blocks: &BlockGraph) -> Vec<u64> {
        match self {
            BlockFrequencies::Static => guessed(code, blocks),
            BlockFrequencies::Counts { blocks: counts, runs } => {
                let count = |b: usize| counts.get(b).copied().unwrap_or(0);
                (0..blocks.len()).map(|b| count(b).saturating_mul(1024) / (*runs).max(1)).collect()
            }
        }
    }
}

fn guessed(code: CostInput<'_>, blocks: &BlockGraph) -> Vec<u64> {
    FrequencyEstimate::new(code, blocks).times.into_iter().map(in_parts).collect()
}

/// In 1/1024.
fn in_parts(times: f64) -> u64 {
    (times * 1024.0).round() as u64
}

/// Guessed runs of the blocks for one run of their function.
struct FrequencyEstimate {
    /// The probability with which the jump at the end of each is taken.
    taken: Vec<f64>,
    times: Vec<f64>,
}

impl FrequencyEstimate {
    fn new(code: CostInput<'_>, blocks: &BlockGraph) -> FrequencyEstimate {
        let (found, to_do) = (finds(code), to_do(code.insns, blocks));
        let taken = |b: usize| probability(code.insns, blocks, b, &found, &to_do);
        let taken = (0..blocks.len()).map(taken).collect();
        let mut guess = FrequencyEstimate { taken, times: vec![0f64; blocks.len()] };
        for _ in 0..ROUNDS {
            let mut changed = false;
            for &b in blocks.order() {
                let into = preds(blocks, b).map(|p| guess.times[p] * guess.part(blocks, p, b));
                let now = (entry(b) + into.sum::<f64>()).min(MOST);
                changed |= now - guess.times[b] > SETTLED * now;
                guess.times[b] = now;
            }
            if !changed {
                break;
            }
        }
        guess
    }

    /// The part of the runs of a block after which another comes.
    fn part(&self, blocks: &BlockGraph, from: usize, to: usize) -> f64 {
        let [taken, falls] = blocks.succs(from);
        let part = |s: Option<usize>, part: f64| if s == Some(to) { part } else { 0.0 };
        part(taken, self.taken[from]) + part(falls, 1.0 - self.taken[from])
    }

    /// Execution frequencies when those of some blocks are known. Blocks that lead to a known one run at
    /// least as often as it needs, divided as guessed; where one side of a branch is known, the rest goes to
    /// the other.
    fn settled(&self, blocks: &BlockGraph, held: &[Option<f64>]) -> Vec<f64> {
        let least = self.least(blocks, held);
        let mut times = vec![0f64; blocks.len()];
        for &b in blocks.order() {
            let flow = |p: usize| {
                let other = blocks.succs(p).into_iter().flatten().find(|&s| s != b && blocks.preds(s) == [p]);
                match other.and_then(|s| held[s]) {
                    Some(away) => (times[p] - away).max(0.0),
                    None => times[p] * self.part(blocks, p, b),
                }
            };
            let ahead = || preds(blocks, b).filter(|&p| !blocks.is_back_edge(p, b));
            let guessed = entry(b) + ahead().map(|p| self.times[p] * self.part(blocks, p, b)).sum::<f64>();
            let into = entry(b) + ahead().map(flow).sum::<f64>();
            let rounds = if guessed > 0.0 { self.times[b] / guessed } else { 0.0 };
            times[b] = held[b].unwrap_or((into * rounds).max(least[b])).min(MOST);
        }
        times
    }

    /// Lower bounds of the execution frequencies, given the known frequencies of successors.
    fn least(&self, blocks: &BlockGraph, held: &[Option<f64>]) -> Vec<f64> {
        let mut least = vec![0f64; blocks.len()];
        for &b in blocks.order().iter().rev() {
            let [taken, falls] = blocks.succs(b);
            let out = [taken, falls.filter(|_| falls != taken)].into_iter().flatten();
            let needs = |s: usize| match self.times[s] {
                0.0 => 0.0,
                all => least[s] * (self.times[b] * self.part(blocks, b, s) / all).min(1.0),
            };
            least[b] =
                held[b].unwrap_or_else(|| out.filter(|&s| !blocks.is_back_edge(b, s)).map(needs).sum());
        }
        least
    }
}

fn entry(b: usize) -> f64 {
    if b == 0 { 1.0 } else { 0.0 }
}

/// The blocks that lead to one; one that does both ways is among its predecessors twice.
fn preds(blocks: &BlockGraph, b: usize) -> impl Iterator<Item = usize> {
    let mut preds = blocks.preds(b).to_vec();
    preds.dedup();
    preds.into_iter()
}

/// Probability that the jump at the end of a block is taken.
fn probability(insns: &[Insn], blocks: &BlockGraph, b: usize, finds: &[usize], to_do: &[u32]) -> f64 {
    let (to, falls) = match blocks.succs(b) {
        [Some(to), Some(falls)] => (to, falls),
        [Some(_), None] => return 1.0,
        _ => return 0.0,
    };
    let (start, end) = blocks.range(b);
    let Insn::Branch { width, cond, dst, src, .. } = insns[end - 1] else { return 0.02 };
    // Loops go round, whatever else may be said; whether the branch jumps back itself or over a jump that
    // does.
    let goes_back = |s: usize| {
        let only_jumps = matches!(insns[blocks.range(s).0], Insn::Jump { .. });
        blocks.is_back_edge(b, s)
            || only_jumps && blocks.succs(s)[0].is_some_and(|next| blocks.is_back_edge(s, next))
    };
    match (goes_back(to), goes_back(falls)) {
        (true, false) => return GOES_ON,
        (false, true) => return 1.0 - GOES_ON,
        _ => {}
    }
    let mut p = 0.5;
    let mut believe = |q: f64| p = p * q / (p * q + (1.0 - p) * (1.0 - q));
    let bound = width == Width::W64
        && matches!(src, Operand::Reg(_))
        && matches!(cond, Cond::Gt | Cond::Ge | Cond::Lt | Cond::Le);
    // Packets are as long as they have to be; and other ways that lead to little are taken less often, too.
    let stays = |shortfall| between(shortfall, if bound { [0.5, 0.8, 0.95] } else { [0.5, 0.6, 0.72] });
    believe(stays(shortfall(to_do[falls], to_do[to])));
    believe(1.0 - stays(shortfall(to_do[to], to_do[falls])));
    let lookup =
        (start..end).rev().find(|&n| matches!(insns[n], Insn::Call(Callee::Helper(id::MAP_LOOKUP_ELEM))));
    let found = |n: usize| insns[n + 1..end].iter().fold(1u16, |set, insn| copied(set, *insn));
    let pointer = lookup.is_some_and(|n| found(n) & 1 << dst.index() != 0);
    let certain = pointer && lookup.is_some_and(|n| finds.contains(&n));
    match (as_equality(cond, src), src) {
        (Cond::Eq, Operand::Imm(0)) if certain => return 0.0,
        (Cond::Ne, Operand::Imm(0)) if certain => return 1.0,
        (Cond::Eq, Operand::Imm(0)) if pointer => believe(0.2),
        (Cond::Ne, Operand::Imm(0)) if pointer => believe(0.8),
        (Cond::Slt, Operand::Imm(0)) | (Cond::Sle, Operand::Imm(0 | -1)) => believe(0.16),
        (Cond::Sge, Operand::Imm(0)) | (Cond::Sgt, Operand::Imm(0 | -1)) => believe(0.84),
        (Cond::Eq, _) => believe(0.375),
        (Cond::Ne, _) => believe(0.625),
        _ => {}
    }
    p
}

/// Treats a comparison with zero, or of bits, as the equality that it may have been: the same question in
/// other words is no more or less probable. Equality of bits with zero is judged as that of any value.
fn as_equality(cond: Cond, src: Operand) -> Cond {
    match (cond, src) {
        (Cond::Set, _) | (Cond::Gt, Operand::Imm(0)) | (Cond::Ge, Operand::Imm(1)) => Cond::Ne,
        (Cond::Le, Operand::Imm(0)) | (Cond::Lt, Operand::Imm(1)) => Cond::Eq,
        _ => cond,
    }
}

/// The registers that hold a value after an instruction, given those that held it before.
fn copied(set: u16, insn: Insn) -> u16 {
    match insn {
        Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src) } if set & 1 << src.index() != 0 => {
            set | 1 << dst.index()
        }
        _ => set & !operands(insn).1,
    }
}

/// The lookups that find something as far as anybody writes programs: in arrays, whose indices are good. So
/// code costs the same whether it tests their results or not.
fn finds(code: CostInput<'_>) -> Vec<usize> {
    if code.maps.is_empty() {
        return Vec::new();
    }
    let mut array = false;
    let each = code.insns.iter().zip(slots(code.insns)).enumerate();
    each.filter_map(|(n, (insn, slot))| match *insn {
        Insn::LoadImm64 { dst: Reg::R1, .. } => {
            let at = code.maps.binary_search_by_key(&slot, |m| m.0);
            let kind = at.ok().map(|at| code.maps[at].1);
            array = kind.is_some_and(MapType::is_array);
            None
        }
        Insn::Call(callee) => {
            (std::mem::take(&mut array) && callee == Callee::Helper(id::MAP_LOOKUP_ELEM)).then_some(n)
        }
        _ => None,
    })
    .collect()
}

/// Work that follows from each block on, at most: branches, calls and stores to memory that others see.
/// Optimization of instructions and of the order of blocks changes little of that.
fn to_do(insns: &[Insn], blocks: &BlockGraph) -> Vec<u32> {
    let counts = |i: &&Insn| match i {
        Insn::Branch { .. } | Insn::Call(_) | Insn::Atomic { .. } | Insn::StoreRelease { .. } => true,
        Insn::Store { dst, .. } => *dst != Reg::R10,
        _ => false,
    };
    let mut left = vec![0; blocks.len()];
    for &b in blocks.order().iter().rev() {
        let (start, end) = blocks.range(b);
        let own = insns[start..end].iter().filter(counts).count() as u32;
        let ahead = blocks.succs(b).into_iter().flatten().filter(|&s| !blocks.is_back_edge(b, s));
        left[b] = own + ahead.map(|s| left[s]).max().unwrap_or(0);
    }
    left
}

/// Difference of the work on two sides, as a fraction of the larger.
fn shortfall(less: u32, more: u32) -> f64 {
    f64::from(more.saturating_sub(less)) / f64::from(more.max(1))
}

/// The value at a negligible shortfall, at one of about half, and at a nearly complete one, with linear
/// interpolation in between: without steps, so that one store more or less changes little.
fn between(shortfall: f64, [none, half, all]: [f64; 3]) -> f64 {
    const AT: [f64; 3] = [0.2, 0.57, 0.9];
    let part = |n: usize| ((shortfall - AT[n]) / (AT[n + 1] - AT[n])).clamp(0.0, 1.0);
    none + part(0) * (half - none) + part(1) * (all - half)
}
