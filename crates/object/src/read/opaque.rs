//! Functions that are not understood: they are written as they were read.
//!
//! Such a function may move within its section, for those before it become shorter. Its references to places
//! in instructions move with them: relocations against sections, calls without a relocation, tables of jumps.
//! A reference into the inside of a function, from such a function or from data, has that function kept, too:
//! only an unchanged function has an inside that can be followed.

use crate::codes::{CALL, LD_IMM64, PSEUDO_CALL, PSEUDO_FUNC};
use crate::elf::{Elf, ElfRelocation, STT_SECTION};
use crate::ids::FuncId;
use crate::model::Object;
use crate::read::functions;
use millstream_isa::RawInsn;
use rustc_hash::{FxHashMap, FxHashSet};

/// Section of tables of places to jump to, which clang writes since version 22: offsets in bytes into the
/// section of the function that refers to them, 8 bytes each, without relocations.
pub(crate) const JUMP_TABLES: &str = ".jumptables";
/// `R_BPF_64_ABS32` and `R_BPF_64_NODYLD32`: fields of 4 bytes in data.
const NARROW: [u32; 2] = [3, 4];

/// A place in instructions: a section, and a byte of it.
pub(crate) type CodePlace = (usize, u64);

/// An instruction that says where another one is.
pub(crate) struct CodeReference {
    /// The instruction, in slots from the start of its function.
    pub(crate) insn: usize,
    /// Bytes that a unit of its immediate stands for.
    pub(crate) unit: i64,
    /// Place that its immediate counts from, if that moves.
    pub(crate) base: Option<CodePlace>,
    /// Referenced place.
    pub(crate) target: CodePlace,
}

/// A field of data that says where an instruction is.
pub(crate) struct DataReference {
    /// Section of the data.
    pub(crate) section: usize,
    /// Offset of the field.
    pub(crate) offset: usize,
    /// Size of the field, in bytes.
    pub(crate) size: usize,
    /// Place that its number counts from, if that moves.
    pub(crate) base: Option<CodePlace>,
    /// Referenced place.
    pub(crate) target: CodePlace,
}

/// The number in a field of a section; nothing if it lies outside.
fn field(elf: &Elf, section: usize, offset: usize, size: usize) -> Option<u64> {
    let bytes = elf.sections.get(section)?.data.get(offset..offset.checked_add(size)?)?;
    Some(elf.order.number(bytes))
}

/// Keeps functions that something not understood leads into, and notes the relocations of all that are
/// kept.
pub(crate) fn keep_branch_targets(object: &mut Object) {
    for r in data_references(object) {
        let name = object.elf().sections[r.section].name.clone();
        keep_inside(object, r.base, &format!("section {name}"));
        keep_inside(object, Some(r.target), &format!("section {name}"));
        let (section, byte) = r.target;
        object.image.in_data.extend(functions::function_around(object, section, byte / 8));
    }
    object.image.in_data.extend(called_from_left_sections(object));
    let mut relocations = relocations_by_function(object);
    let mut work: Vec<FuncId> = kept_functions(object).collect();
    while let Some(id) = work.pop() {
        if object.image.kept.relocs.contains_key(&id) {
            continue;
        }
        object.image.kept.relocs.insert(id, relocations.remove(&id).unwrap_or_default());
        let name = format!("function {}", object.functions[id.index()].name);
        for r in code_references(object, id) {
            work.extend(keep_inside(object, r.base, &name));
            work.extend(keep_inside(object, Some(r.target), &name));
        }
        for r in jump_tables(object, id) {
            work.extend(keep_inside(object, Some(r.target), &format!("a table of jumps of {name}")));
        }
    }
}

/// Functions that are written as they were read.
pub(crate) fn kept_functions(object: &Object) -> impl Iterator<Item = FuncId> {
    let kept = object.functions.iter().enumerate().filter(|(_, f)| f.kept.is_some());
    kept.map(|(n, _)| FuncId(n as u32))
}

/// Keeps the function that a place is inside of.
fn keep_inside(object: &mut Object, place: Option<CodePlace>, who: &str) -> Option<FuncId> {
    let (section, byte) = place?;
    if byte.is_multiple_of(8) && functions::function_at(object, section, byte / 8).is_some() {
        return None;
    }
    let id = functions::function_around(object, section, byte / 8)?;
    object.keep(id, format!("{who} leads into it"), true);
    Some(id)
}

/// The relocations of each function as the file has them, by bytes from its start.
fn relocations_by_function(object: &Object) -> FxHashMap<FuncId, Vec<ElfRelocation>> {
    let mut all: FxHashMap<FuncId, Vec<ElfRelocation>> = FxHashMap::default();
    for (n, s) in object.elf().sections.iter().enumerate() {
        let section = s.info as usize;
        if !s.is_relocations() || !object.elf().sections.get(section).is_some_and(|t| t.is_code()) {
            continue;
        }
        for r in object.elf().relocations(n).unwrap_or_default() {
            if let Some(id) = functions::function_around(object, section, r.offset / 8) {
                let start = u64::from(object.functions[id.index()].start) * 8;
                all.entry(id).or_default().push(ElfRelocation { offset: r.offset - start, ..r });
            }
        }
    }
    all
}

/// The instructions of a function as the file has them.
pub(crate) fn bytes_of(object: &Object, id: FuncId) -> Vec<RawInsn> {
    let f = &object.functions[id.index()];
    let data = &object.elf().sections[object.image.function_sections[id.index()]].data;
    let start = f.start as usize * 8;
    let bytes = data.get(start..start + f.insns.len() * 8).unwrap_or_default();
    RawInsn::slice_from_bytes_in(bytes, object.byte_order()).unwrap_or_default()
}

/// References of a function that is kept to places in instructions.
pub(crate) fn code_references(object: &Object, id: FuncId) -> Vec<CodeReference> {
    let section = object.image.function_sections[id.index()];
    let start = u64::from(object.functions[id.index()].start) * 8;
    let relocs = object.image.kept.relocs.get(&id).map(Vec::as_slice).unwrap_or_default();
    let relocated: FxHashSet<u64> = relocs.iter().map(|r| r.offset / 8).collect();
    let insns = bytes_of(object, id);
    let mut found = Vec::new();
    for r in relocs {
        let symbol = &object.elf().symbols[r.symbol];
        let code = symbol.section().filter(|s| object.elf().sections[*s].is_code());
        let (Some(home), Some(insn)) = (code, insns.get((r.offset / 8) as usize)) else { continue };
        let base = (symbol.kind() != STT_SECTION).then_some((home, symbol.value));
        let unit = match insn.code {
            CALL => 8,
            LD_IMM64 => 1,
            _ => continue,
        };
        let after = if insn.code == CALL { 8 } else { 0 };
        let target = symbol.value as i64 + unit * (i64::from(insn.imm) + r.addend) + after;
        if let Ok(target) = u64::try_from(target) {
            found.push(CodeReference { insn: (r.offset / 8) as usize, unit, base, target: (home, target) });
        }
    }
    for (at, insn) in insns.iter().enumerate() {
        let local =
            insn.code == CALL && insn.src == PSEUDO_CALL || insn.code == LD_IMM64 && insn.src == PSEUDO_FUNC;
        let target = start as i64 + 8 * (at as i64 + 1 + i64::from(insn.imm));
        if local
            && !relocated.contains(&(at as u64))
            && let Ok(target) = u64::try_from(target)
        {
            let base = Some((section, start));
            found.push(CodeReference { insn: at, unit: 8, base, target: (section, target) });
        }
    }
    found
}

/// Fields of tables of jumps that a function which is kept refers to.
pub(crate) fn jump_tables(object: &Object, id: FuncId) -> Vec<DataReference> {
    let code = object.image.function_sections[id.index()];
    let table = |r: &ElfRelocation| {
        let symbol = &object.elf().symbols[r.symbol];
        let section = symbol.section().filter(|s| object.elf().sections[*s].name == JUMP_TABLES)?;
        let end = object.elf().sections[section].data.len() as u64;
        // A section's symbol stands for all of its tables.
        let size = if symbol.size == 0 { end } else { symbol.size };
        Some((section, symbol.value, symbol.value.saturating_add(size).min(end)))
    };
    let relocs = object.image.kept.relocs.get(&id).map(Vec::as_slice).unwrap_or_default();
    let mut tables: Vec<(usize, u64, u64)> = relocs.iter().filter_map(table).collect();
    tables.sort_unstable();
    let mut found = Vec::new();
    let mut next = (0, 0);
    for (section, start, end) in tables {
        let start = if next.0 == section { start.max(next.1) } else { start };
        for at in (start..end).step_by(8) {
            let offset = at as usize;
            if let Some(number) = field(object.elf(), section, offset, 8) {
                let target = (code, number);
                found.push(DataReference { section, offset, size: 8, base: None, target });
            }
            next = (section, at + 8);
        }
    }
    found
}

/// Functions in sections that instructions of sections without functions refer to.
fn called_from_left_sections(object: &Object) -> Vec<FuncId> {
    let elf = object.elf();
    let left = |s: &&crate::elf::ElfSection| {
        let code = elf.sections.get(s.info as usize).is_some_and(|t| t.is_code());
        s.is_relocations()
            && code
            && object.image.function_sections.binary_search(&(s.info as usize)).is_err()
    };
    let tables = elf.sections.iter().enumerate().filter(|(_, s)| left(s));
    let relocations = tables.flat_map(|(n, _)| elf.relocations(n).unwrap_or_default());
    let homes: FxHashSet<usize> = relocations.filter_map(|r| elf.symbols[r.symbol].section()).collect();
    let ids = object.image.function_sections.iter().enumerate().filter(|(_, home)| homes.contains(home));
    ids.map(|(n, _)| FuncId(n as u32)).collect()
}

/// Fields of data with a relocation against instructions.
pub(crate) fn data_references(object: &Object) -> Vec<DataReference> {
    let elf = object.elf();
    let mut found = Vec::new();
    for (n, s) in elf.sections.iter().enumerate() {
        let section = s.info as usize;
        let Some(t) = elf.sections.get(section) else { continue };
        let stale = t.name.starts_with(".BTF") || t.is_stale();
        if !s.is_relocations() || t.is_code() || stale {
            continue;
        }
        for r in elf.relocations(n).unwrap_or_default() {
            let symbol = &elf.symbols[r.symbol];
            let code = symbol.section().filter(|c| elf.sections[*c].is_code());
            let (Some(code), Ok(offset)) = (code, usize::try_from(r.offset)) else { continue };
            let size = if NARROW.contains(&r.kind) { 4 } else { 8 };
            let Some(number) = field(elf, section, offset, size) else { continue };
            let base = (symbol.kind() != STT_SECTION).then_some((code, symbol.value));
            let target = symbol.value.wrapping_add(number).wrapping_add(r.addend as u64);
            found.push(DataReference { section, offset, size, base, target: (code, target) });
        }
    }
    found
}
