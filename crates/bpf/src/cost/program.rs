//! The cost of a whole program: its function, and those that it calls as often as it calls them.

use std::collections::BTreeMap;

use millstream_isa::{Callee, DecodeError, Insn, MapType, Pseudo, RawInsn, decode_all};
use millstream_object::{LinkedProgram, Object, RelocKind};

use super::{BlockCost, BlockFrequencies, CodeCost, CostInput, CostModel, slots};
use crate::jit::jited_bytes;

/// Execution counts of the instructions, over a number of runs of the program.
#[derive(Clone, Copy, Debug)]
pub struct ExecutionCounts<'a> {
    /// One a slot.
    pub slots: &'a [u64],
    /// Runs of the program.
    pub runs: u64,
}

/// A program of one vector of instructions, its calls resolved.
#[derive(Clone, Debug)]
pub struct FlatProgram {
    insns: Vec<Insn>,
    /// The slot of each.
    slots: Vec<u32>,
    symbols: Vec<u32>,
    maps: Vec<(u32, MapType)>,
    /// Indices at which the functions begin, the program's own first; and the end.
    starts: Vec<usize>,
    /// Which functions each calls, by number, and at which instruction.
    calls: Vec<Vec<(usize, usize)>>,
    /// Source lines by the slots where they begin: file, line and column.
    lines: Vec<(u32, [u32; 3])>,
}

/// Facts about a function beside its instructions.
pub(super) struct FunctionSymbols {
    symbols: Vec<u32>,
    maps: Vec<(u32, MapType)>,
}

impl FunctionSymbols {
    pub(super) fn code<'a>(&'a self, insns: &'a [Insn]) -> CostInput<'a> {
        CostInput { insns, symbols: &self.symbols, maps: &self.maps }
    }
}

/// Contribution of one function to the cost of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FunctionCost {
    /// Slot of its first instruction.
    pub slot: u32,
    /// Runs of the function for one run of the program, in 1/1024.
    pub runs: u64,
    /// Thousandths of a cycle for entry and return, each time.
    pub frame: u64,
    /// Its blocks; their instructions are counted from the beginning of the program, and so is how often they
    /// run.
    pub blocks: Vec<BlockCost>,
}

/// A function runs no more often than this for one run of the program, in 1/1024.
const MOST: u64 = 1 << 30;

impl FlatProgram {
    /// A linked program of an object.
    ///
    /// # Errors
    /// [`DecodeError`], if it is no valid bytecode.
    pub fn of_linked(object: &Object, linked: &LinkedProgram) -> Result<FlatProgram, DecodeError> {
        let map = |reloc: &millstream_object::Reloc| match reloc.kind {
            RelocKind::Map(id) => Some((reloc.insn, object.maps[id.index()].spec.map_type)),
            _ => None,
        };
        let maps = linked.relocs.iter().filter_map(map).collect();
        let mut whole =
            FlatProgram::new(&linked.insns, linked.relocs.iter().map(|r| r.insn).collect(), maps)?;
        whole.lines = linked.line_info.iter().map(|l| (l.insn, [l.file.0, l.line, l.column])).collect();
        Ok(whole)
    }

    /// A program by its slots, with those that have a relocation, and of those the maps with their types.
    ///
    /// # Errors
    /// [`DecodeError`], if it is no valid bytecode.
    pub fn new(
        raw: &[RawInsn],
        mut symbols: Vec<u32>,
        mut maps: Vec<(u32, MapType)>,
    ) -> Result<FlatProgram, DecodeError> {
        let insns: Vec<Insn> = decode_all(raw)?.into_iter().map(|(_, i)| i).collect();
        let slots = slots(&insns);
        symbols.sort_unstable();
        maps.sort_unstable();
        let mut called = Vec::new();
        for (n, (insn, slot)) in insns.iter().zip(&slots).enumerate() {
            let off = match *insn {
                Insn::Call(Callee::Local(off)) => off,
                Insn::LoadImm64 { pseudo: Pseudo::Func, imm, .. } => imm as u32 as i32,
                _ => continue,
            };
            let target = u32::try_from(i64::from(*slot) + 1 + i64::from(off));
            if let Some(to) = target.ok().and_then(|t| slots.binary_search(&t).ok()) {
                called.push((n, to));
            }
        }
        let mut starts: Vec<usize> = [0].into_iter().chain(called.iter().map(|c| c.1)).collect();
        starts.sort_unstable();
        starts.dedup();
        let function = |n: usize| starts.partition_point(|&s| s <= n) - 1;
        let mut calls = vec![Vec::new(); starts.len()];
        for (at, to) in called {
            calls[function(at)].push((function(to), at));
        }
        starts.push(insns.len());
        Ok(FlatProgram { insns, slots, symbols, maps, starts, calls, lines: Vec::new() })
    }

    /// The cost of the program, by guessed frequencies or by counts.
    pub fn cost(&self, table: &CostModel, visits: Option<ExecutionCounts<'_>>) -> CodeCost {
        self.cost_of(&self.functions(table, visits))
    }

    /// The same, given what its functions contribute.
    pub(super) fn cost_of(&self, functions: &[FunctionCost]) -> CodeCost {
        let jited = |f: usize| {
            let (from, to) = (self.starts[f], self.starts[f + 1]);
            jited_bytes(&self.insns[from..to], &self.symbols_of(f))
        };
        CodeCost {
            slots: self.insns.iter().map(|i| i.slots() as u32).sum(),
            jited: (0..self.len()).map(jited).sum(),
            cycles: FlatProgram::cycles_of(functions),
        }
    }

    /// Thousandths of a cycle of all functions together.
    pub(super) fn cycles_of(functions: &[FunctionCost]) -> u64 {
        let one = |f: &FunctionCost| {
            let blocks: u64 = f.blocks.iter().map(|b| b.cycles.saturating_mul(b.count)).sum();
            (f.frame.saturating_mul(f.runs) + blocks) / 1024
        };
        functions.iter().map(one).sum()
    }

    /// Contribution of each function.
    pub fn functions(&self, table: &CostModel, visits: Option<ExecutionCounts<'_>>) -> Vec<FunctionCost> {
        let Some(visits) = visits else {
            return self.called(table, |f, _| BlockFrequencies::guessed(self.part(f).code(self.insns_of(f))));
        };
        let visited =
            |n: usize| self.slots.get(n).and_then(|&s| visits.slots.get(s as usize)).copied().unwrap_or(0);
        let one = |f: usize| {
            let (from, _) = self.range(f);
            let weights = BlockFrequencies::counted(self.insns_of(f), |n| visited(from + n), visits.runs);
            let runs = visited(from).saturating_mul(1024) / visits.runs.max(1);
            self.alone(table, f, runs, &weights)
        };
        (0..self.len()).map(one).collect()
    }

    /// Contribution of each function, weighted by the number of its calls. `weights` gives the weights of a
    /// function for one run of it, given its number and its runs. Callers come first, for there is no
    /// recursion.
    pub(super) fn called(
        &self,
        table: &CostModel,
        weights: impl Fn(usize, u64) -> BlockFrequencies,
    ) -> Vec<FunctionCost> {
        let mut runs = vec![0u64; self.len()];
        runs[0] = 1024;
        let mut costs: Vec<Option<FunctionCost>> = vec![None; self.len()];
        for f in self.callers_first() {
            let mut cost = self.alone(table, f, runs[f], &weights(f, runs[f]));
            for b in &mut cost.blocks {
                b.count = (b.count.saturating_mul(runs[f]) / 1024).min(MOST);
            }
            for &(callee, at) in &self.calls[f] {
                let block = cost.blocks.iter().find(|b| (b.start..b.end).contains(&at));
                runs[callee] = (runs[callee] + block.map_or(0, |b| b.count)).min(MOST);
            }
            costs[f] = Some(cost);
        }
        let never = |f: usize| FunctionCost {
            slot: self.slots[self.starts[f]],
            runs: 0,
            frame: 0,
            blocks: Vec::new(),
        };
        costs.into_iter().enumerate().map(|(f, cost)| cost.unwrap_or_else(|| never(f))).collect()
    }

    /// A function, its blocks weighted as said.
    fn alone(&self, table: &CostModel, f: usize, runs: u64, weights: &BlockFrequencies) -> FunctionCost {
        let (from, _) = self.range(f);
        let part = self.part(f);
        let code = part.code(self.insns_of(f));
        let mut blocks = code.blocks(table, weights);
        for b in &mut blocks {
            (b.start, b.end) = (b.start + from, b.end + from);
        }
        FunctionCost {
            slot: self.slots.get(from).copied().unwrap_or(0),
            runs,
            frame: code.frame(table),
            blocks,
        }
    }

    /// Number of functions.
    pub(super) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// The instructions of a function, from and to.
    pub(super) fn range(&self, f: usize) -> (usize, usize) {
        (self.starts[f], self.starts[f + 1])
    }

    pub(super) fn insns_of(&self, f: usize) -> &[Insn] {
        &self.insns[self.starts[f]..self.starts[f + 1]]
    }

    /// Returns true if another program has the same instructions, maps and symbols.
    pub(super) fn has_code_of(&self, other: &FlatProgram) -> bool {
        self.insns == other.insns && self.symbols == other.symbols && self.maps == other.maps
    }

    pub(super) fn insns(&self) -> &[Insn] {
        &self.insns
    }

    pub(super) fn part(&self, f: usize) -> FunctionSymbols {
        let first = self.slots.get(self.starts[f]).copied().unwrap_or(0);
        let inside = self.maps.iter().filter(|m| m.0 >= first);
        let maps = inside.map(|&(slot, map_type)| (slot - first, map_type)).collect();
        FunctionSymbols { symbols: self.symbols_of(f), maps }
    }

    /// The source line of an instruction: file, line and column; zeros if it is not known.
    pub(super) fn line(&self, n: usize) -> [u32; 3] {
        let begun = self.slots.get(n).map_or(0, |&slot| self.lines.partition_point(|l| l.0 <= slot));
        begun.checked_sub(1).map_or([0; 3], |at| self.lines[at].1)
    }

    fn callers_first(&self) -> Vec<usize> {
        // One more than the number of calls on the longest way to it; a cycle, which no kernel takes, ends
        // the search.
        let mut depth: BTreeMap<usize, usize> = BTreeMap::from([(0, 0)]);
        for _ in 0..self.calls.len() {
            let mut changed = false;
            for (f, calls) in self.calls.iter().enumerate() {
                let Some(&at) = depth.get(&f) else { continue };
                for &(callee, _) in calls {
                    let deeper = depth.get(&callee).is_none_or(|&d| d <= at);
                    if deeper && at < self.calls.len() {
                        depth.insert(callee, at + 1);
                        changed = true;
                    }
                }
            }
            if !changed {
                break;
            }
        }
        let mut order: Vec<usize> = depth.keys().copied().collect();
        order.sort_by_key(|f| depth[f]);
        order
    }

    fn symbols_of(&self, f: usize) -> Vec<u32> {
        let slot = |n: usize| self.slots.get(n).copied().unwrap_or(u32::MAX);
        let (first, end) = (slot(self.starts[f]), slot(self.starts[f + 1]));
        self.symbols.iter().filter(|s| (first..end).contains(s)).map(|s| s - first).collect()
    }

    /// Calls of helpers and kernel functions among the instructions from one index to another.
    pub fn calls_of(&self, start: usize, end: usize) -> usize {
        let is_call = |i: &&Insn| matches!(i, Insn::Call(c) if !matches!(c, Callee::Local(_)));
        self.insns.get(start..end).unwrap_or_default().iter().filter(is_call).count()
    }

    /// The slots of the instructions from one index to another.
    pub fn slots_of(&self, start: usize, end: usize) -> &[u32] {
        self.slots.get(start..end).unwrap_or_default()
    }
}
