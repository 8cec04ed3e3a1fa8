//! Two forms of one program under the same traffic.
//!
//! Guesses for each form by itself do not compare: a test that is made twice counts twice among the guesses,
//! so that the code behind it seems to run less often in the form that has both. So frequencies are guessed
//! for the rewritten form, which tests least, and carried over to the original at anchors, which rewriting
//! leaves in place: calls and stores that others see, told from each other by their source lines.

use std::collections::{BTreeMap, BTreeSet};

use millstream_isa::{Callee, Insn, Reg};
use millstream_threads::both;

use super::program::{FlatProgram, FunctionCost};
use super::{BlockFrequencies, CodeCost, CostModel};

/// A program of this many instructions takes milliseconds to look at.
const LARGE: usize = 500;

/// A call, store or atomic operation, and its source line: file, line and column.
type ProfileAnchor = ([i64; 2], [u32; 3]);

impl FlatProgram {
    /// Predicted cycles of this program and of another that was made of it, in thousandths, as if the same
    /// traffic went through both. Blocks that cannot be matched with the other program run as often as
    /// guessed.
    pub fn compare_cycles(&self, rewritten: &FlatProgram, table: &CostModel) -> (u64, u64) {
        self.beside(rewritten, &rewritten.functions(table, None), table)
    }

    /// The cost of this program, and that of another that was made of it. The other's cycles are those of
    /// this one, scaled by their ratio under the same traffic.
    pub fn compare_costs(&self, rewritten: &FlatProgram, table: &CostModel) -> [CodeCost; 2] {
        // Frequencies are guessed anew where several blocks have one anchor, so the same code would differ
        // from itself.
        if self.has_code_of(rewritten) {
            return [self.cost(table, None); 2];
        }
        let beside = || {
            let functions = rewritten.functions(table, None);
            (self.beside(rewritten, &functions, table), rewritten.cost_of(&functions))
        };
        // Neither needs the other.
        let (alone, ((before, after), cost)) = match self.insns().len() >= LARGE {
            true => both(|| self.cost(table, None), beside),
            false => (self.cost(table, None), beside()),
        };
        let cycles = (u128::from(alone.cycles) * u128::from(after)).checked_div(u128::from(before));
        let cycles = cycles.and_then(|c| u64::try_from(c).ok()).unwrap_or(cost.cycles);
        [alone, CodeCost { cycles, ..cost }]
    }

    /// Cycles of this program and of another, given the contributions of the other's functions.
    fn beside(&self, rewritten: &FlatProgram, functions: &[FunctionCost], table: &CostModel) -> (u64, u64) {
        let held = self.held(&rewritten.anchors(functions));
        let weights = |f: usize, runs: u64| {
            let (from, to) = self.range(f);
            let alone = |count: u64| count as f64 / runs.max(1) as f64;
            let known: BTreeMap<usize, f64> =
                held.range(from..to).map(|(&at, &count)| (at - from, alone(count))).collect();
            BlockFrequencies::held(self.part(f).code(self.insns_of(f)), &known)
        };
        (FlatProgram::cycles_of(&self.called(table, weights)), FlatProgram::cycles_of(functions))
    }

    /// Execution counts of blocks, keyed by their first instructions, for one run of the program, in 1/1024.
    /// A block that alone has an anchor of some kind runs as often as anchors of that kind run in another
    /// program.
    fn held(&self, runs: &BTreeMap<ProfileAnchor, u64>) -> BTreeMap<usize, u64> {
        let mut places: BTreeMap<ProfileAnchor, BTreeSet<usize>> = BTreeMap::new();
        let blocks = (0..self.len()).flat_map(|f| {
            let (from, _) = self.range(f);
            BlockFrequencies::blocks(self.insns_of(f))
                .into_iter()
                .map(move |(start, end)| (start + from, end + from))
        });
        for (start, end) in blocks {
            for anchor in (start..end).filter_map(|n| self.anchor(n)) {
                places.entry(anchor).or_default().insert(start);
            }
        }
        let single = places.into_iter().filter(|(_, at)| at.len() == 1);
        single.filter_map(|(anchor, at)| Some((*at.first()?, *runs.get(&anchor)?))).collect()
    }

    /// Execution count of each kind of anchor, summed over all blocks that have one.
    fn anchors(&self, functions: &[FunctionCost]) -> BTreeMap<ProfileAnchor, u64> {
        let mut runs = BTreeMap::new();
        for block in functions.iter().flat_map(|f| &f.blocks) {
            let here: BTreeSet<ProfileAnchor> =
                (block.start..block.end).filter_map(|n| self.anchor(n)).collect();
            for anchor in here {
                *runs.entry(anchor).or_default() += block.count;
            }
        }
        runs
    }

    fn anchor(&self, n: usize) -> Option<ProfileAnchor> {
        let kind = match self.insns().get(n)? {
            Insn::Call(Callee::Helper(id)) => [0, i64::from(*id)],
            Insn::Call(Callee::Kfunc { btf_id, fd_idx }) => [1 + i64::from(*fd_idx), i64::from(*btf_id)],
            Insn::Store { dst, .. } if *dst != Reg::R10 => [-1, 0],
            Insn::Atomic { .. } => [-2, 0],
            _ => return None,
        };
        Some((kind, self.line(n)))
    }
}
