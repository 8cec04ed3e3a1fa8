//! Finding functions in sections of instructions, and giving each its lines and CO-RE relocations.
//!
//! A function starts where a function symbol does, where a call without a relocation leads, and, for objects
//! of compilers before 2018 whose function symbols have no type, at every global symbol and at the start of
//! the section.

use crate::codes::{CALL, PSEUDO_CALL};
use crate::elf::{STB_GLOBAL, STB_LOCAL, STB_WEAK, STT_FUNC, STT_NOTYPE};
use crate::ids::FuncId;
use crate::model::{CoreRelo, GAP, LineInfo, Linkage, Object, ObjectFunction, OpaqueReason};
use millstream_btf::{BtfExt, SectionRecords};
use millstream_isa::RawInsn;
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;
use std::ops::Range;

const SLOT: u64 = 8;

/// Properties of a function by its symbol.
struct FunctionSymbol {
    name: Option<String>,
    linkage: Linkage,
    hidden: bool,
    /// In slots; 0 if not known.
    size: u32,
}

/// A section that is not fully understood has no functions, and is left as it is.
pub(crate) fn read_functions(object: &mut Object) {
    for n in 0..object.elf().sections.len() {
        let section = &object.elf().sections[n];
        if !section.is_code() || section.data.is_empty() {
            continue;
        }
        if let Err(what) = read_section(object, n) {
            let name = object.elf().sections[n].name.clone();
            object.image.kept.sections.push((name, what));
        }
    }
}

fn read_section(object: &mut Object, n: usize) -> Result<(), String> {
    let section = &object.elf().sections[n];
    let odd = || format!("its {} bytes are not a whole number of instructions", section.data.len());
    let insns = RawInsn::slice_from_bytes_in(&section.data, object.byte_order()).ok_or_else(odd)?;
    let starts = function_starts(object, n, &insns)?;
    split(object, n, &insns, &starts);
    Ok(())
}

fn function_starts(
    object: &Object,
    n: usize,
    insns: &[RawInsn],
) -> Result<BTreeMap<u32, FunctionSymbol>, String> {
    let symbols = || object.elf().symbols.iter().enumerate().filter(|(_, s)| s.section() == Some(n));
    let typed = symbols().any(|(_, s)| s.kind() == STT_FUNC);
    let mut starts = BTreeMap::new();
    for (_, s) in symbols() {
        let global = matches!(s.binding(), STB_GLOBAL | STB_WEAK);
        let function = s.kind() == STT_FUNC || !typed && s.kind() == STT_NOTYPE && global;
        if !function {
            continue;
        }
        if !s.value.is_multiple_of(SLOT) || s.value / SLOT >= insns.len() as u64 {
            return Err(format!("function {} lies outside of it", s.name));
        }
        let linkage = match s.binding() {
            STB_LOCAL => Linkage::Static,
            STB_WEAK => Linkage::Weak,
            _ => Linkage::Global,
        };
        let size = u32::try_from(s.size / SLOT).unwrap_or(u32::MAX);
        let hidden = s.is_hidden() && linkage != Linkage::Static;
        let start = FunctionSymbol { name: Some(s.name.clone()), linkage, hidden, size };
        // Of two symbols for one place, the global one names the function.
        let at = (s.value / SLOT) as u32;
        if global || !starts.contains_key(&at) {
            starts.insert(at, start);
        }
    }
    let unnamed = || FunctionSymbol { name: None, linkage: Linkage::Static, hidden: false, size: 0 };
    if starts.is_empty() {
        let start = FunctionSymbol { linkage: Linkage::Global, ..unnamed() };
        starts.insert(0, start);
    }
    for at in call_targets(object, n, insns) {
        starts.entry(at).or_insert_with(unnamed);
    }
    Ok(starts)
}

fn split(object: &mut Object, section: usize, insns: &[RawInsn], starts: &BTreeMap<u32, FunctionSymbol>) {
    let name = object.elf().sections[section].name.clone();
    let ends = starts.keys().skip(1).copied().chain([insns.len() as u32]);
    let mut covered = 0;
    for (n, ((&at, start), end)) in starts.iter().zip(ends).enumerate() {
        add_gap(object, section, covered..at, insns);
        let size = if start.size == 0 { end - at } else { start.size.min(end - at) };
        covered = at + size;
        let outside = start.linkage == Linkage::Static || start.hidden;
        add_function(
            object,
            section,
            ObjectFunction {
                name: start.name.clone().unwrap_or_else(|| unnamed(&name, at)),
                section: name.clone(),
                start: at,
                linkage: start.linkage,
                hidden: start.hidden,
                subprogram: name == ".text" || outside && n > 0,
                insns: insns[at as usize..covered as usize].to_vec(),
                relocs: Vec::new(),
                type_id: None,
                line_info: Vec::new(),
                core_relos: Vec::new(),
                removed: false,
                kept: None,
            },
        );
    }
    add_gap(object, section, covered..insns.len() as u32, insns);
}

/// Instructions between functions are carried along without being understood.
fn add_gap(object: &mut Object, section: usize, slots: Range<u32>, insns: &[RawInsn]) {
    if slots.is_empty() {
        return;
    }
    let name = object.elf().sections[section].name.clone();
    object.notes.push(format!("{name}: instructions {} to {} belong to no function", slots.start, slots.end));
    add_function(
        object,
        section,
        ObjectFunction {
            name: unnamed(&name, slots.start),
            section: name,
            start: slots.start,
            linkage: Linkage::Static,
            hidden: false,
            subprogram: true,
            insns: insns[slots.start as usize..slots.end as usize].to_vec(),
            relocs: Vec::new(),
            type_id: None,
            line_info: Vec::new(),
            core_relos: Vec::new(),
            removed: false,
            kept: Some(OpaqueReason { reason: GAP.to_owned(), loadable: true }),
        },
    );
}

fn add_function(object: &mut Object, section: usize, function: ObjectFunction) {
    let id = FuncId(object.functions.len() as u32);
    object.image.function_places.insert((section, u64::from(function.start)), id);
    object.image.function_sections.push(section);
    object.functions.push(function);
}

/// Slots that calls in the section lead to, of the calls that have no relocation.
fn call_targets(object: &Object, section: usize, insns: &[RawInsn]) -> Vec<u32> {
    let mut relocated = FxHashSet::default();
    for (n, s) in object.elf().sections.iter().enumerate() {
        if s.is_relocations() && s.info as usize == section {
            // What cannot be read is said where it is wanted.
            let relocations = object.elf().relocations(n).unwrap_or_default();
            relocated.extend(relocations.iter().map(|r| r.offset / SLOT));
        }
    }
    let calls = insns.iter().enumerate().filter(|(_, i)| i.code == CALL && i.src == PSEUDO_CALL);
    let resolved = calls.filter(|(at, _)| !relocated.contains(&(*at as u64)));
    let targets = resolved.map(|(at, i)| at as i64 + 1 + i64::from(i.imm));
    let inside = |t: i64| u32::try_from(t).ok().filter(|t| (*t as usize) < insns.len());
    targets.filter_map(inside).collect()
}

/// The function that began at a slot of a section when the file was read.
pub(crate) fn function_at(object: &Object, section: usize, slot: u64) -> Option<FuncId> {
    object.image.function_places.get(&(section, slot)).copied()
}

/// The function that has the slot of a section.
pub(crate) fn function_around(object: &Object, section: usize, slot: u64) -> Option<FuncId> {
    let key = |n: usize| (object.image.function_sections[n], u64::from(object.functions[n].start));
    // Functions are in order of section and start.
    let (mut low, mut high) = (0, object.functions.len());
    while low < high {
        let mid = (low + high) / 2;
        if key(mid) <= (section, slot) { low = mid + 1 } else { high = mid }
    }
    let n = low.checked_sub(1)?;
    let f = &object.functions[n];
    let inside = key(n).0 == section && slot - u64::from(f.start) < f.insns.len() as u64;
    inside.then_some(FuncId(n as u32))
}

/// Hands out the records of `.BTF.ext`. Records of places that are in no function are dropped.
pub(crate) fn distribute_ext_records(object: &mut Object, ext: &BtfExt) {
    for (f, insn, info) in placed(object, &ext.func_info, |f| f.insn_off) {
        if insn == 0 {
            object.functions[f.index()].type_id = Some(info.type_id);
        }
    }
    for (f, insn, l) in placed(object, &ext.line_info, |l| l.insn_off) {
        let line = LineInfo { insn, file: l.file, text: l.text, line: l.line, column: l.column };
        object.functions[f.index()].line_info.push(line);
    }
    for (f, insn, c) in placed(object, &ext.core_relos, |c| c.insn_off) {
        let core = CoreRelo { insn, type_id: c.type_id, access: c.access, kind: c.kind };
        object.functions[f.index()].core_relos.push(core);
    }
    for (f, insn, c) in placed(object, &ext.strange_cores, |c| c.insn_off) {
        object.keep(f, format!("CO-RE relocation of kind {} at slot {insn}", c.words[2]), false);
        object.image.kept.strange_cores.push((f, insn, c));
    }
    for f in &mut object.functions {
        f.line_info.sort_by_key(|l| l.insn);
        f.line_info.dedup_by_key(|l| l.insn);
        f.core_relos.sort_by_key(|c| c.insn);
    }
}

/// The function and slot of each record.
fn placed<T: Copy>(
    object: &mut Object,
    lists: &[SectionRecords<T>],
    offset: impl Fn(&T) -> u32,
) -> Vec<(FuncId, u32, T)> {
    let mut placed = Vec::new();
    for list in lists {
        let Some(name) = object.btf.as_ref().map(|btf| btf.str(list.section).to_owned()) else { continue };
        object.image.ext_names.insert(name.clone(), list.section);
        let code = |n: &usize| object.elf().sections[*n].is_code();
        let Some(section) = object.elf().find(&name).filter(code) else {
            object.notes.push(format!(".BTF.ext has records for {name}, which has no instructions"));
            continue;
        };
        if object.image.kept.sections.iter().any(|(left, _)| *left == name) {
            object.freeze(format!(".BTF.ext has records for section {name}, which is not understood"));
        }
        for r in &list.records {
            let at = u64::from(offset(r));
            if !at.is_multiple_of(SLOT) {
                object.freeze(format!(
                    ".BTF.ext has a record for byte {at:#x} of {name}, where no instruction starts"
                ));
            } else if let Some(id) = function_around(object, section, at / SLOT) {
                placed.push((id, (at / SLOT) as u32 - object.functions[id.index()].start, *r));
            }
        }
    }
    placed
}

/// Stand-in for the name of a function that has no symbol.
fn unnamed(section: &str, slot: u32) -> String {
    format!("{section}+{:#x}", u64::from(slot) * SLOT)
}
