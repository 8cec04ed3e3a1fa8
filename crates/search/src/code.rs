//! A function as blocks of instructions whose jumps name blocks, so that lines can be inserted and removed.

use millstream_isa::{Insn, decode_all, encode_all};
use millstream_object::{CoreRelo, LineInfo, NewFunction, ObjectFunction, Reloc, RelocKind};
use rustc_hash::FxHashMap;

/// An instruction with its target, relocations and source line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CodeLine {
    pub(crate) insn: Insn,
    /// The block that a jump or branch goes to.
    pub(crate) target: Option<usize>,
    pub(crate) reloc: Option<RelocKind>,
    pub(crate) core: Option<CoreRelo>,
    pub(crate) source: Option<LineInfo>,
}

impl CodeLine {
    /// A new instruction without any of these.
    pub(crate) fn new(insn: Insn) -> CodeLine {
        CodeLine { insn, target: None, reloc: None, core: None, source: None }
    }
}

/// A basic block: it is entered at its first instruction only.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct InsnBlock {
    pub(crate) lines: Vec<CodeLine>,
    /// Successors.
    pub(crate) next: Vec<usize>,
    /// Predecessors.
    pub(crate) before: Vec<usize>,
    /// Number of the first line among all lines.
    pub(crate) first: u32,
}

impl InsnBlock {
    /// Returns true if control may fall through into the next block.
    pub(crate) fn falls_through(&self) -> bool {
        !matches!(self.lines.last(), Some(CodeLine { insn: Insn::Jump { .. } | Insn::Exit, .. }))
    }
}

/// Records by their slots; of several for one slot, the first.
fn first_by_slot<T>(records: &[T], slot: impl Fn(&T) -> u32) -> FxHashMap<u32, &T> {
    let mut first = FxHashMap::default();
    records.iter().for_each(|record| _ = first.entry(slot(record)).or_insert(record));
    first
}

/// A function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FunctionCode {
    pub(crate) blocks: Vec<InsnBlock>,
}

impl FunctionCode {
    /// The blocks of a function; [`None`] if it has invalid jumps.
    pub(crate) fn new(f: &ObjectFunction) -> Option<FunctionCode> {
        let insns = decode_all(&f.insns).ok()?;
        let goal = |slot: usize, insn: &Insn| {
            let off = match insn {
                Insn::Jump { off, .. } => i64::from(*off),
                Insn::Branch { off, .. } | Insn::MayGoto { off } => i64::from(*off),
                _ => return None,
            };
            Some(slot as i64 + insn.slots() as i64 + off)
        };
        let mut starts = vec![0usize];
        for (slot, insn) in &insns {
            let ends = goal(*slot, insn).map(|to| starts.push(to.max(0) as usize)).is_some();
            if ends || matches!(insn, Insn::Exit) {
                starts.push(slot + insn.slots());
            }
        }
        starts.sort_unstable();
        starts.dedup();
        starts.retain(|&s| s < f.insns.len());
        let relocs = first_by_slot(&f.relocs, |r| r.insn);
        let cores = first_by_slot(&f.core_relos, |c| c.insn);
        let sources = first_by_slot(&f.line_info, |l| l.insn);
        let mut blocks: Vec<InsnBlock> = Vec::new();
        for (slot, insn) in &insns {
            if starts.binary_search(slot).is_ok() {
                blocks.push(InsnBlock::default());
            }
            let target = match goal(*slot, insn) {
                Some(to) => Some(starts.binary_search(&usize::try_from(to).ok()?).ok()?),
                None => None,
            };
            let at = *slot as u32;
            let line = CodeLine {
                insn: *insn,
                target,
                reloc: relocs.get(&at).map(|r| r.kind),
                core: cores.get(&at).map(|c| **c),
                source: sources.get(&at).map(|l| **l),
            };
            blocks.last_mut()?.lines.push(line);
        }
        if blocks.len() != starts.len() {
            return None;
        }
        let mut code = FunctionCode { blocks };
        code.link();
        Some(code)
    }

    /// Updates the edges between blocks.
    pub(crate) fn link(&mut self) {
        for b in &mut self.blocks {
            b.next.clear();
            b.before.clear();
        }
        let mut first = 0;
        for b in &mut self.blocks {
            b.first = first;
            first += b.lines.len() as u32;
        }
        for n in 0..self.blocks.len() {
            let mut next: Vec<usize> = self.blocks[n].lines.iter().filter_map(|l| l.target).collect();
            if self.blocks[n].falls_through() && n + 1 < self.blocks.len() {
                next.push(n + 1);
            }
            next.dedup();
            for &to in &next {
                self.blocks[to].before.push(n);
            }
            self.blocks[n].next = next;
        }
    }

    /// All instructions in order.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &CodeLine> {
        self.blocks.iter().flat_map(|b| &b.lines)
    }

    /// The slot of a line.
    pub(crate) fn slot(&self, block: usize, line: usize) -> u32 {
        let before =
            self.blocks[..block].iter().flat_map(|b| &b.lines).chain(&self.blocks[block].lines[..line]);
        before.map(|l| l.insn.slots() as u32).sum()
    }

    /// Lines, by block and place in it, as assembly, with their jumps resolved.
    pub(crate) fn text(&self, places: &[(usize, usize)]) -> Vec<String> {
        let (insns, _) = self.linearize();
        places.iter().map(|(b, line)| insns[self.blocks[*b].first as usize + line].to_string()).collect()
    }

    /// The instructions with their jumps resolved, and the slots with a relocation.
    pub(crate) fn linearize(&self) -> (Vec<Insn>, Vec<(u32, RelocKind)>) {
        let mut start = Vec::with_capacity(self.blocks.len() + 1);
        let mut at = 0i64;
        for b in &self.blocks {
            start.push(at);
            at += b.lines.iter().map(|l| l.insn.slots() as i64).sum::<i64>();
        }
        let (mut insns, mut symbols, mut slot) = (Vec::new(), Vec::new(), 0i64);
        for line in self.lines() {
            let mut insn = line.insn;
            let next = slot + insn.slots() as i64;
            symbols.extend(line.reloc.map(|kind| (slot as u32, kind)));
            if let Some(to) = line.target {
                let by = start[to] - next;
                match &mut insn {
                    Insn::Jump { off, .. } => *off = by as i32,
                    Insn::Branch { off, .. } | Insn::MayGoto { off } => *off = by as i16,
                    _ => {}
                }
            }
            insns.push(insn);
            slot = next;
        }
        (insns, symbols)
    }

    /// The function's new contents.
    pub(crate) fn function(&self) -> NewFunction {
        let (insns, _) = self.linearize();
        let mut new = NewFunction { insns: encode_all(&insns), ..NewFunction::default() };
        let mut slot = 0;
        for line in self.lines() {
            new.relocs.extend(line.reloc.map(|kind| Reloc { insn: slot, kind }));
            new.core_relos.extend(line.core.map(|core| CoreRelo { insn: slot, ..core }));
            new.line_info.extend(line.source.map(|source| LineInfo { insn: slot, ..source }));
            slot += line.insn.slots() as u32;
        }
        new
    }
}
