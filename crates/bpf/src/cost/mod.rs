//! The cost of bytecode: slots, bytes of machine code, and predicted cycles.
//!
//! Cycles are those of a small out-of-order machine (`schedule`) that runs what the kernel's x86-64 JIT emits
//! for each instruction (`table`), block after block, each weighted by how often it runs (`weights`): guessed
//! from the shape of the code, or counted. They rank alternatives of one program. Not modelled: mispredicted
//! branches, cache misses, the place of the image in memory, and the verifier's patches.
//!
//! Invariant: integers only where results are compared, so that a cost is the same wherever it is computed.

mod blocks;
mod goal;
mod profile_matching;
mod program;
mod schedule;
mod table;
mod weights;

use millstream_isa::Insn;
use millstream_isa::MapType;

use crate::jit::{jited_bytes, mentioned};
use blocks::BlockGraph;
use schedule::CpuScoreboard;

pub use goal::{CodeCost, OptimizationGoal, UnknownGoal};
pub use program::{ExecutionCounts, FlatProgram, FunctionCost};
pub(crate) use schedule::operands;
pub use table::{CostModel, ExecutionUnit, InsnTiming, Kind, TableError};
pub use weights::BlockFrequencies;

/// A function whose cost is asked for.
#[derive(Clone, Copy, Debug)]
pub struct CostInput<'a> {
    /// Its instructions.
    pub insns: &'a [Insn],
    /// The slots with a relocation, ascending.
    pub symbols: &'a [u32],
    /// The slots that load maps, ascending, with the types of the maps; those that are not known may be left
    /// out.
    pub maps: &'a [(u32, MapType)],
}

impl CostInput<'_> {
    /// Its cost by a table.
    pub fn cost(&self, table: &CostModel, weights: &BlockFrequencies) -> CodeCost {
        CodeCost {
            slots: self.insns.iter().map(|i| i.slots() as u32).sum(),
            jited: jited_bytes(self.insns, self.symbols),
            cycles: self.cycles(table, weights),
        }
    }

    /// Predicted thousandths of a cycle for one run.
    pub fn cycles(&self, table: &CostModel, weights: &BlockFrequencies) -> u64 {
        let total: u64 = self.blocks(table, weights).iter().map(BlockCost::weighted).sum();
        self.frame(table) + total / 1024
    }

    /// Thousandths of a cycle for entry and return.
    pub fn frame(&self, table: &CostModel) -> u64 {
        let saved = self.insns.iter().fold(0, |set, &i| set | mentioned(i)) & SAVED;
        u64::from(table.timing(Kind::Frame).latency)
            + u64::from(table.timing(Kind::Saved).latency) * u64::from(saved.count_ones())
    }

    /// The basic blocks in the order of the code, with what each contributes.
    pub fn blocks(&self, table: &CostModel, weights: &BlockFrequencies) -> Vec<BlockCost> {
        let blocks = BlockGraph::new(self.insns);
        let counts = weights.of(*self, &blocks);
        let times = self.each(table, &blocks, &counts);
        let block = |b: usize| {
            let (start, end) = blocks.range(b);
            BlockCost { start, end, count: counts[b], cycles: times[b] }
        };
        (0..blocks.len()).map(block).collect()
    }

    /// Thousandths of a cycle that each block takes for one run of it.
    ///
    /// A block starts in the machine state at the end of its most frequent predecessor, so that latencies
    /// overlap as they do when it runs. Loops are walked twice, so that they begin in the state in which they
    /// end.
    fn each(&self, table: &CostModel, blocks: &BlockGraph, counts: &[u64]) -> Vec<u64> {
        let mut after: Vec<Option<CpuScoreboard>> = vec![None; blocks.len()];
        let mut times = vec![0; blocks.len()];
        let slots = if self.maps.is_empty() { Vec::new() } else { slots(self.insns) };
        for _ in 0..if blocks.has_loops() { 2 } else { 1 } {
            for &b in blocks.order() {
                let known = blocks.preds(b).iter().filter(|&&p| after[p].is_some());
                let before = known.max_by_key(|&&p| blocks.passes(p, b, counts)).copied();
                let mut machine = before.and_then(|p| after[p].clone()).unwrap_or_default();
                machine.rebase();
                let start = machine.elapsed(table);
                if before.is_some_and(|p| blocks.succs(p)[0] == Some(b) && p + 1 != b) {
                    machine.jumps(table);
                }
                let (from, to) = blocks.range(b);
                for n in from..to {
                    machine.run(table, self.insns[n]);
                    if let (Some(slot), Insn::LoadImm64 { dst, .. }) = (slots.get(n), self.insns[n])
                        && let Ok(at) = self.maps.binary_search_by_key(slot, |m| m.0)
                    {
                        machine.holds_map(dst, self.maps[at].1);
                    }
                }
                times[b] = machine.elapsed(table) - start;
                after[b] = Some(machine);
            }
        }
        times
    }
}

/// Contribution of a basic block to the cycles of its function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockCost {
    /// Index of its first instruction.
    pub start: usize,
    /// Index of the one behind its last.
    pub end: usize,
    /// Runs of the block for one run of the function, in 1/1024.
    pub count: u64,
    /// Thousandths of a cycle for one run of it, behind the block that most often runs before it.
    pub cycles: u64,
}

impl BlockCost {
    fn weighted(&self) -> u64 {
        self.cycles.saturating_mul(self.count)
    }
}

/// r6 to r9, which the machine's function pushes and pops.
const SAVED: u16 = 0b11_1100_0000;

/// The slot of each instruction.
fn slots(insns: &[Insn]) -> Vec<u32> {
    let mut at = 0;
    let slot = |i: &Insn| {
        let here = at;
        at += i.slots() as u32;
        here
    };
    insns.iter().map(slot).collect()
}

/// Predicted thousandths of a cycle for straight-line code by itself, its inputs ready at the start.
pub fn window_cycles(insns: &[Insn]) -> u64 {
    let table = CostModel::current();
    let mut machine = CpuScoreboard::default();
    for insn in insns {
        machine.run(table, *insn);
    }
    machine.elapsed(table)
}

#[cfg(test)]
mod tests;
