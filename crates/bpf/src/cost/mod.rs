//! The cost of bytecode: slots, bytes of machine code, and predicted cycles.
//!
//! Cycles are those of a small out-of-order machine (`schedule`) that runs what the kernel's x86-64 JIT emits for each
//! instruction (`table`), block after block, each weighted by how often it runs (`weights`): guessed from the shape of
//! the code, or counted. They rank alternatives of one program. What they leave out: mispredicted branches, cache
//! misses, where the image lies in memory, and what the verifier patches in.
//!
//! Invariant: integers only where results are compared, so that a cost is the same wherever it is computed.

mod blocks;
mod goal;
mod schedule;
mod table;
mod weights;

use millstream_isa::Insn;

use crate::jit::jited_bytes;
use blocks::Blocks;
use schedule::Machine;

pub use goal::{Cost, Goal, UnknownGoal};
pub use table::{Kind, Table, Timing, Unit};
pub use weights::Weights;

/// The cost of a function by the built-in table. `symbols` are the slots with a relocation, ascending.
pub fn cost(insns: &[Insn], symbols: &[u32], weights: &Weights) -> Cost {
    cost_by(Table::built_in(), insns, symbols, weights)
}

/// The cost of a function by a given table.
pub fn cost_by(table: &Table, insns: &[Insn], symbols: &[u32], weights: &Weights) -> Cost {
    Cost {
        slots: insns.iter().map(|i| i.slots() as u32).sum(),
        jited: jited_bytes(insns, symbols),
        cycles: cycles(table, insns, weights),
    }
}

/// Predicted thousandths of a cycle for one run of a function.
pub fn cycles(table: &Table, insns: &[Insn], weights: &Weights) -> u64 {
    let blocks = Blocks::new(insns);
    let counts = weights.of(insns, &blocks);
    let frame = u64::from(table.timing(Kind::Frame).latency);
    let total: u64 =
        each(table, insns, &blocks, &counts).zip(&counts).map(|(t, c)| t.saturating_mul(*c)).sum();
    frame + total / 1024
}

/// Thousandths of a cycle that each block takes for one run of it.
///
/// A block goes on where the one that most often runs before it ended, so that latencies overlap as they do. Loops are
/// walked a second time, to begin where they end.
fn each(table: &Table, insns: &[Insn], blocks: &Blocks, counts: &[u64]) -> impl Iterator<Item = u64> {
    let mut after: Vec<Option<Machine>> = vec![None; blocks.len()];
    let mut times = vec![0; blocks.len()];
    for _ in 0..if blocks.has_loops() { 2 } else { 1 } {
        for &b in blocks.order() {
            let before = blocks.preds(b).iter().filter(|&&p| after[p].is_some()).max_by_key(|&&p| counts[p]);
            let mut machine = before.and_then(|&p| after[p].clone()).unwrap_or_default();
            machine.rebase();
            let start = machine.elapsed();
            let (from, to) = blocks.range(b);
            for &insn in &insns[from..to] {
                machine.run(table, insn);
            }
            times[b] = machine.elapsed() - start;
            after[b] = Some(machine);
        }
    }
    times.into_iter()
}

/// Predicted thousandths of a cycle for straight-line code by itself, its inputs ready at the start.
pub fn window_cycles(insns: &[Insn]) -> u64 {
    let mut machine = Machine::default();
    for insn in insns {
        machine.run(Table::built_in(), *insn);
    }
    machine.elapsed()
}

#[cfg(test)]
mod tests;
