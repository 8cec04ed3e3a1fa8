//! Two forms of a function side by side: rows of instructions, changes, and the causes of each.

use std::collections::{BTreeMap, BTreeSet};

use millstream_isa::{DecodeError, RawInsn};
use millstream_object::{Object, ObjectFunction, RelocKind, instruction_texts};
use millstream_opt::InsnOrigin;
use millstream_passes::registry;
use serde::Serialize;

use super::align::align;

/// An instruction of one side.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct DiffInstruction {
    pub(super) slot: usize,
    pub(super) text: String,
    /// Index of its source line, among those of the function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) line: Option<usize>,
}

/// A source line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct SourceLine {
    pub(super) file: String,
    pub(super) number: u32,
    pub(super) text: String,
}

/// Difference between the two sides of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum DiffKind {
    /// None, except for the distance of jumps.
    Same,
    /// In registers only.
    Registers,
    /// Any other difference.
    Changed,
    /// Only in the first form.
    Removed,
    /// Only in the second form.
    Added,
    /// In another place in the other form.
    Moved,
}

impl DiffKind {
    pub(super) fn is_change(self) -> bool {
        !matches!(self, DiffKind::Same | DiffKind::Registers)
    }
}

/// A row.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct DiffRow {
    pub(super) kind: DiffKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<DiffInstruction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) after: Option<DiffInstruction>,
}

/// Rows that changed together.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct DiffHunk {
    /// Its first row, and the one behind its last.
    pub(super) rows: (usize, usize),
    /// Slots before and after.
    pub(super) slots: (usize, usize),
    pub(super) causes: Vec<ChangeCause>,
}

/// Cause of a change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct ChangeCause {
    /// A pass, or `lower` for the choice of instructions and registers.
    pub(super) name: String,
    /// Description of the pass.
    pub(super) description: String,
}

/// A function in both forms.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct FunctionDiff {
    pub(super) name: String,
    /// Slots before and after.
    pub(super) slots: (usize, usize),
    pub(super) lines: Vec<SourceLine>,
    pub(super) rows: Vec<DiffRow>,
    pub(super) changes: Vec<DiffHunk>,
}

/// Provenance of the second form.
pub(super) struct CodeProvenance<'a> {
    /// Origin of each slot of the second form.
    pub(super) origins: &'a [Option<InsnOrigin>],
    /// Passes by instruction of the first object.
    pub(super) touched: &'a BTreeMap<InsnOrigin, BTreeSet<&'static str>>,
}

/// One form of a function, with the data for alignment.
struct DiffSide {
    insns: Vec<DiffInstruction>,
    shapes: Vec<InstructionKey>,
    /// Slots of each instruction.
    sizes: Vec<usize>,
}

/// Operation of an instruction, without the distance of jumps.
#[derive(Clone, PartialEq, Eq, Debug)]
struct InstructionKey {
    first: RawInsn,
    second: Option<i32>,
    /// Name of its target.
    refers: Option<String>,
}

impl InstructionKey {
    fn registers_apart(&self) -> InstructionKey {
        InstructionKey { first: RawInsn { dst: 0, src: 0, ..self.first }, ..self.clone() }
    }
}

/// Aligns a function with its second form. `number` is that of the function in the first object.
pub(super) fn compare(
    (a, number): (&Object, u32),
    (b, g): (&Object, &ObjectFunction),
    known: Option<&CodeProvenance<'_>>,
) -> Result<FunctionDiff, DecodeError> {
    let f = &a.functions[number as usize];
    let mut lines = Vec::new();
    let (before, after) = (side(a, f, &mut lines)?, side(b, g, &mut lines)?);
    let origin = |j: usize| known.and_then(|k| *k.origins.get(after.insns[j].slot)?);
    let score = |i: usize, j: usize| {
        let close = similarity(&before.shapes[i], &after.shapes[j]);
        match origin(j) {
            Some(o) if o.func == number && o.slot as usize == before.insns[i].slot => 5 + close,
            Some(_) => 0,
            None if close == 0 => 0,
            None => {
                2 * close
                    + u32::from(before.insns[i].line.is_some() && before.insns[i].line == after.insns[j].line)
            }
        }
    };
    let pairs = align(before.insns.len(), after.insns.len(), &score);
    let mut rows = rows(&before, &after, &pairs);
    if known.is_some() {
        mark_moved(&mut rows, &before, &after, &|j| {
            origin(j).filter(|o| o.func == number).map(|o| o.slot as usize)
        });
    }
    let mut changes = changes(&rows, &before, &after);
    if let Some(known) = known {
        for change in &mut changes {
            change.causes = causes(&rows[change.rows.0..change.rows.1], number, known);
        }
    }
    let slots = (f.insns.len(), g.insns.len());
    Ok(FunctionDiff { name: f.name.clone(), slots, lines, rows, changes })
}

fn side(object: &Object, f: &ObjectFunction, lines: &mut Vec<SourceLine>) -> Result<DiffSide, DecodeError> {
    let text = instruction_texts(object, &f.insns, &f.relocs)?;
    let ends = text.iter().skip(1).map(|t| t.0).chain([f.insns.len()]);
    let sizes: Vec<usize> = text.iter().zip(ends).map(|((at, _), end)| end - at).collect();
    let shapes = text.iter().map(|(at, _)| shape(object, f, *at)).collect();
    let of_slot = source_lines(object, f, lines);
    let line = |at: usize| of_slot.range(..=at).next_back().map(|(_, line)| *line);
    let insns =
        text.into_iter().map(|(slot, text)| DiffInstruction { line: line(slot), slot, text }).collect();
    Ok(DiffSide { insns, shapes, sizes })
}

/// Source lines of a function by their first slot; adds them to those of both sides.
fn source_lines(object: &Object, f: &ObjectFunction, lines: &mut Vec<SourceLine>) -> BTreeMap<usize, usize> {
    let Some(btf) = &object.btf else { return BTreeMap::new() };
    let mut found = BTreeMap::new();
    for l in &f.line_info {
        let file = btf.str(l.file).rsplit('/').next().unwrap_or_default().to_owned();
        let line = SourceLine { file, number: l.line, text: btf.str(l.text).trim().to_owned() };
        let at = lines.iter().position(|other| *other == line).unwrap_or_else(|| {
            lines.push(line);
            lines.len() - 1
        });
        found.insert(l.insn as usize, at);
    }
    found
}

fn shape(object: &Object, f: &ObjectFunction, at: usize) -> InstructionKey {
    const JUMP: u8 = 5;
    const JUMP32: u8 = 6;
    const CALL: u8 = 0x85;
    const LONG: u8 = 0x06;
    let mut first = f.insns[at];
    if matches!(first.code & 7, JUMP | JUMP32) && first.code != CALL {
        first.off = 0;
        if first.code == LONG {
            first.imm = 0;
        }
    }
    let reloc = f.relocs.binary_search_by_key(&(at as u32), |r| r.insn).ok().map(|n| f.relocs[n].kind);
    if reloc.is_some() {
        first.imm = 0;
    }
    let second = (first.code == 0x18).then(|| f.insns.get(at + 1).map_or(0, |s| s.imm));
    InstructionKey { first, second, refers: reloc.map(|r| name(object, r)) }
}

fn name(object: &Object, kind: RelocKind) -> String {
    match kind {
        RelocKind::Map(m) => object.maps[m.index()].name.clone(),
        RelocKind::MapValue { map, offset } => format!("{}+{offset}", object.maps[map.index()].name),
        RelocKind::Call(f) | RelocKind::FuncAddr(f) => object.functions[f.index()].name.clone(),
        RelocKind::Extern(e) => object.externs[e.index()].name.clone(),
    }
}

/// 0 for nothing in common, 3 for the same.
fn similarity(a: &InstructionKey, b: &InstructionKey) -> u32 {
    if a == b {
        3
    } else if a.registers_apart() == b.registers_apart() {
        2
    } else {
        u32::from(a.first.code == b.first.code && a.refers == b.refers)
    }
}

fn rows(before: &DiffSide, after: &DiffSide, pairs: &[(usize, usize)]) -> Vec<DiffRow> {
    let mut rows = Vec::new();
    let (mut i, mut j) = (0, 0);
    let alone = |kind, before: Option<&DiffInstruction>, after: Option<&DiffInstruction>| DiffRow {
        kind,
        before: before.cloned(),
        after: after.cloned(),
    };
    for &(p, q) in pairs.iter().chain([&(before.insns.len(), after.insns.len())]) {
        rows.extend(before.insns[i..p].iter().map(|insn| alone(DiffKind::Removed, Some(insn), None)));
        rows.extend(after.insns[j..q].iter().map(|insn| alone(DiffKind::Added, None, Some(insn))));
        if let (Some(a), Some(b)) = (before.insns.get(p), after.insns.get(q)) {
            let kind = match similarity(&before.shapes[p], &after.shapes[q]) {
                3 => DiffKind::Same,
                2 => DiffKind::Registers,
                _ => DiffKind::Changed,
            };
            rows.push(alone(kind, Some(a), Some(b)));
        }
        (i, j) = (p + 1, q + 1);
    }
    rows
}

/// Marks an added and a removed instruction as moved if the added one was made of the removed one and is
/// still the same.
fn mark_moved(
    rows: &mut [DiffRow],
    before: &DiffSide,
    after: &DiffSide,
    origin: &dyn Fn(usize) -> Option<usize>,
) {
    let position = |side: &DiffSide, slot: usize| side.insns.binary_search_by_key(&slot, |i| i.slot).ok();
    let alone = |r: &DiffRow| r.before.as_ref().filter(|_| r.kind == DiffKind::Removed).map(|i| i.slot);
    let removed: BTreeMap<usize, usize> =
        rows.iter().enumerate().filter_map(|(n, r)| Some((alone(r)?, n))).collect();
    for n in 0..rows.len() {
        let Some(insn) = rows[n].after.as_ref().filter(|_| rows[n].kind == DiffKind::Added) else { continue };
        let Some(j) = position(after, insn.slot) else { continue };
        let from = origin(j).and_then(|slot| Some((*removed.get(&slot)?, position(before, slot)?)));
        if let Some((row, _)) = from.filter(|(_, i)| similarity(&before.shapes[*i], &after.shapes[j]) >= 2) {
            rows[row].kind = DiffKind::Moved;
            rows[n].kind = DiffKind::Moved;
        }
    }
}

/// Runs of changed rows. A single unchanged row between two of them belongs to them.
fn changes(rows: &[DiffRow], before: &DiffSide, after: &DiffSide) -> Vec<DiffHunk> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (n, _) in rows.iter().enumerate().filter(|(_, r)| r.kind.is_change()) {
        match runs.last_mut() {
            Some(run) if n <= run.1 + 1 => run.1 = n + 1,
            _ => runs.push((n, n + 1)),
        }
    }
    let size = |side: &DiffSide, insn: Option<&DiffInstruction>| {
        let at = insn.and_then(|i| side.insns.binary_search_by_key(&i.slot, |x| x.slot).ok());
        at.map_or(0, |at| side.sizes[at])
    };
    let change = |(from, to): (usize, usize)| {
        let rows = &rows[from..to];
        let slots = (
            rows.iter().map(|r| size(before, r.before.as_ref())).sum(),
            rows.iter().map(|r| size(after, r.after.as_ref())).sum(),
        );
        DiffHunk { rows: (from, to), slots, causes: Vec::new() }
    };
    runs.into_iter().map(change).collect()
}

/// The passes that touched the instructions in the rows, by name; the choice of instructions if there are
/// none.
fn causes(rows: &[DiffRow], number: u32, known: &CodeProvenance<'_>) -> Vec<ChangeCause> {
    let mut places = BTreeSet::new();
    for row in rows.iter().filter(|r| r.kind.is_change()) {
        places.extend(row.before.iter().map(|i| InsnOrigin { func: number, slot: i.slot as u32 }));
        places.extend(row.after.iter().filter_map(|i| *known.origins.get(i.slot)?));
    }
    let names: BTreeSet<&str> =
        places.iter().filter_map(|p| known.touched.get(p)).flatten().copied().collect();
    let does = |name: &str| registry().find(|p| p.name() == name).map_or("", |p| p.describe());
    let mut causes: Vec<ChangeCause> = names
        .into_iter()
        .map(|n| ChangeCause { name: n.to_owned(), description: does(n).to_owned() })
        .collect();
    if causes.is_empty() {
        causes.push(ChangeCause {
            name: "lower".into(),
            description: "choose instructions and registers".into(),
        });
    }
    causes
}
