//! Jump tables, read as decision trees.
//!
//! clang 22 with `-mcpu=v4` makes a table of places in `.jumptables` of a large switch, and for a computed
//! goto a table of labels in constant data; the program loads an entry and jumps to it (`gotox`). Kernels
//! before 6.19 know neither. Such a function is read in another form, which all kernels know: addresses of
//! table entries become offsets in the table, the load of an entry becomes a copy, and the jump becomes a
//! balanced tree of comparisons.
//!
//! The kernel takes no entry from outside of a table, so that the last leaf of the tree needs no test. A
//! function is left as it is if an address of a table is used in any other way, or is in memory.

use std::collections::{BTreeMap, BTreeSet};

use millstream_isa::RawInsn;
use rustc_hash::FxHashMap;

use crate::codes::LD_IMM64;
use crate::elf::{ElfRelocation, STT_SECTION};
use crate::ids::{FuncId, RelocKind};
use crate::image::TableReference;
use crate::model::{LineInfo, MapOrigin, Object};
use crate::read::opaque::{self, JUMP_TABLES};

/// `gotox`: jumps to the place that a register holds.
pub(crate) const GOTOX: u8 = 0x0d;
const MOV64: u8 = 0xbf;
const MOV64_IMM: u8 = 0xb7;
const ADD64: u8 = 0x0f;
const ADD64_IMM: u8 = 0x07;
const LOAD64: u8 = 0x79;
const JGE_IMM: u8 = 0x35;
const JA: u8 = 0x05;
const JA_LONG: u8 = 0x06;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Bytes of a table's entry.
const ENTRY: u32 = 8;

/// A tree of this many parts has jumps that are as far as 16 bits allow.
const MOST_PARTS: usize = 8192;

/// A table: the slots of its function that its entries lead to.
type TableTargets = Vec<u32>;

/// Content of a register, as far as tables are concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TableValue {
    /// Something else.
    Other,
    /// An address in the table of this number.
    Address(usize),
    /// An entry of the table of this number.
    Entry(usize),
}

type RegisterValues = [TableValue; 11];

/// Notes a reference to a table of jumps; `false` if the relocation is none.
pub(crate) fn note_table_reference(object: &mut Object, id: FuncId, r: &ElfRelocation) -> bool {
    let symbol = &object.elf().symbols[r.symbol];
    let section = symbol.section().filter(|s| object.elf().sections[*s].name == JUMP_TABLES);
    let f = &object.functions[id.index()];
    let at = (r.offset / 8) as u32 - f.start;
    let Some(insn) = f.insns.get(at as usize).filter(|i| i.code == LD_IMM64) else { return false };
    let named = symbol.kind() != STT_SECTION && symbol.size > 0;
    let Some(section) = section.filter(|_| named && r.offset.is_multiple_of(8)) else { return false };
    let place = (section, symbol.value, symbol.value.saturating_add(symbol.size));
    let reference = TableReference { place, addend: insn.imm };
    object.image.table_references.entry(id).or_default().insert(at, reference);
    true
}

/// Gives functions with jump tables another form where their use is understood; others are kept.
pub(crate) fn expand_jump_tables(object: &mut Object) {
    let mut expanded = BTreeSet::new();
    for n in 0..object.functions.len() {
        let id = FuncId(n as u32);
        let f = &object.functions[n];
        if f.kept.is_some() || !f.insns.iter().any(|i| i.code == GOTOX) {
            continue;
        }
        let references = references_of(object, id);
        match expand(object, id, &references) {
            Ok(()) => {
                expanded.extend(references.values().map(|r| r.place));
                object.image.table_references.remove(&id);
                let name = &object.functions[n].name;
                object.notes.push(format!("function {name}: a jump table is read as a tree of comparisons"));
            }
            Err(what) => object.keep(id, format!("its jump table: {what}"), false),
        }
    }
    let unused: Vec<FuncId> = object.image.table_references.keys().copied().collect();
    unused.into_iter().for_each(|id| object.keep(id, "it refers to a jump table and has no gotox", false));
    drop_tables(object, &expanded);
}

/// References of a function to tables: in the section for them, and in constant data.
fn references_of(object: &Object, id: FuncId) -> BTreeMap<u32, TableReference> {
    let mut found = object.image.table_references.get(&id).cloned().unwrap_or_default();
    for r in &object.functions[id.index()].relocs {
        let RelocKind::MapValue { map, offset } = r.kind else { continue };
        let m = &object.maps[map.index()];
        let place = object.image.map_places[map.index()].filter(|_| m.origin == MapOrigin::Rodata);
        let within = |v: &&crate::Variable| v.offset <= offset && offset - v.offset < v.size;
        let Some(((section, _), v)) = place.zip(m.variables.iter().find(within)) else { continue };
        let place = (section, u64::from(v.offset), u64::from(v.offset) + u64::from(v.size));
        if table_targets(object, id, place).is_ok() {
            found.insert(r.insn, TableReference { place, addend: (offset - v.offset) as i32 });
        }
    }
    found
}

/// Slots of a function that the entries of a table lead to.
fn table_targets(object: &Object, id: FuncId, place: (usize, u64, u64)) -> Result<TableTargets, String> {
    let (section, start, end) = place;
    let f = &object.functions[id.index()];
    let code = object.image.function_sections[id.index()];
    let relocated: FxHashMap<usize, u64> = match object.elf().sections[section].name == JUMP_TABLES {
        true => FxHashMap::default(),
        false => {
            let own =
                opaque::data_references(object).into_iter().filter(|r| r.section == section && r.size == 8);
            own.filter(|r| r.target.0 == code).map(|r| (r.offset, r.target.1)).collect()
        }
    };
    let in_data = object.elf().sections[section].name != JUMP_TABLES;
    let size = end - start;
    if !size.is_multiple_of(ENTRY.into()) || size == 0 || size > 1 << 20 {
        return Err("it has no whole number of entries".into());
    }
    let entry = |at: u64| {
        let at = usize::try_from(at).ok()?;
        let byte = match in_data {
            true => *relocated.get(&at)?,
            false => {
                let bytes = object.elf().sections[section].data.get(at..at.checked_add(8)?)?;
                object.byte_order().number(bytes)
            }
        };
        let slot = (byte / 8).checked_sub(u64::from(f.start)).filter(|_| byte.is_multiple_of(8))?;
        u32::try_from(slot).ok().filter(|slot| (*slot as usize) < f.insns.len())
    };
    let entries = (start..end).step_by(ENTRY as usize).map(entry);
    entries.collect::<Option<TableTargets>>().ok_or_else(|| "an entry leads out of the function".into())
}

fn expand(object: &mut Object, id: FuncId, references: &BTreeMap<u32, TableReference>) -> Result<(), String> {
    let places: Vec<_> = references.values().map(|r| r.place).collect();
    let tables = places.iter().map(|p| table_targets(object, id, *p)).collect::<Result<Vec<_>, _>>()?;
    let numbers: FxHashMap<u32, usize> = references.keys().copied().zip(0..).collect();
    let f = &object.functions[id.index()];
    let values = follow(&f.insns, &numbers, &tables)?;
    let form = ExpandedForm::new(&f.insns, references, &tables, &values)?;
    let moved = |insn: u32| form.starts.get(insn as usize).copied().unwrap_or(insn);
    let f = &mut object.functions[id.index()];
    f.relocs.retain(|r| !numbers.contains_key(&r.insn));
    f.relocs.iter_mut().for_each(|r| r.insn = moved(r.insn));
    f.core_relos.iter_mut().for_each(|c| c.insn = moved(c.insn));
    let mut lines: Vec<LineInfo> =
        f.line_info.iter().map(|l| LineInfo { insn: moved(l.insn), ..*l }).collect();
    lines.dedup_by_key(|l| l.insn);
    f.line_info = lines;
    f.insns = form.insns;
    Ok(())
}

/// Drops tables that nothing uses any more: the section for them as a whole, and relocations in constant
/// data, which lead into functions that have changed.
fn drop_tables(object: &mut Object, expanded: &BTreeSet<(usize, u64, u64)>) {
    let needed = |o: &Object, n: usize| {
        let mut users = o.image.table_references.values().flat_map(BTreeMap::values);
        users.any(|r| r.place.0 == n)
    };
    for &(section, ..) in expanded {
        if object.elf().sections[section].name == JUMP_TABLES && !needed(object, section) {
            object.image.elf.sections[section].deleted = true;
        }
    }
    let inside = |section: usize, r: &ElfRelocation| {
        expanded.iter().any(|(s, from, to)| *s == section && (*from..*to).contains(&r.offset))
    };
    for n in 0..object.elf().sections.len() {
        let s = &object.elf().sections[n];
        let target = s.info as usize;
        if !s.is_relocations() || !expanded.iter().any(|(s, ..)| *s == target) {
            continue;
        }
        if let Ok(mut relocations) = object.elf().relocations(n) {
            relocations.retain(|r| !inside(target, r));
            object.image.elf.set_relocations(n, &relocations);
            object.image.elf.sections[n].deleted = relocations.is_empty();
        }
    }
}

/// Instructions with a slot of their own.
fn instructions(insns: &[RawInsn]) -> impl Iterator<Item = (usize, RawInsn)> + '_ {
    let mut second = false;
    insns.iter().copied().enumerate().filter(move |(_, insn)| {
        let is_second = second;
        second = !is_second && insn.code == LD_IMM64;
        !is_second
    })
}

fn is_jump(insn: RawInsn) -> bool {
    matches!(insn.code & 7, 5 | 6) && !matches!(insn.code, CALL | EXIT | GOTOX | 0x8d)
}

/// The slot that a jump leads to.
fn target(at: usize, insn: RawInsn) -> Option<usize> {
    let by = if insn.code == JA_LONG { insn.imm as isize } else { isize::from(insn.off) };
    at.checked_add_signed(by)?.checked_add(1)
}

/// Contents of the registers before each instruction.
fn follow(
    insns: &[RawInsn],
    numbers: &FxHashMap<u32, usize>,
    tables: &[TableTargets],
) -> Result<Vec<Option<RegisterValues>>, String> {
    let mut values: Vec<Option<RegisterValues>> = vec![None; insns.len()];
    let mut work = vec![(0, [TableValue::Other; 11])];
    while let Some((at, new)) = work.pop() {
        let Some(place) = values.get_mut(at) else { return Err("control leaves the function".into()) };
        let met = place.map_or(new, |old| meet(&old, &new));
        if *place == Some(met) {
            continue;
        }
        *place = Some(met);
        let insn = insns[at];
        let after = step(at, insn, met, numbers)?;
        let next = at + if insn.code == LD_IMM64 { 2 } else { 1 };
        match insn.code {
            EXIT => {}
            GOTOX => match met[usize::from(insn.dst.min(10))] {
                TableValue::Entry(n) => work.extend(tables[n].iter().map(|t| (*t as usize, after))),
                // It may be an entry once all ways to it have been followed.
                _ => return Err("the place that gotox jumps to is in no known table".into()),
            },
            JA | JA_LONG => work.extend(target(at, insn).map(|t| (t, after))),
            _ if is_jump(insn) => {
                work.extend(target(at, insn).map(|t| (t, after)));
                work.push((next, after));
            }
            _ => work.push((next, after)),
        }
    }
    Ok(values)
}

fn meet(a: &RegisterValues, b: &RegisterValues) -> RegisterValues {
    std::array::from_fn(|n| if a[n] == b[n] { a[n] } else { TableValue::Other })
}

/// Contents of the registers after an instruction; an error if it uses a table in an unknown way.
fn step(
    at: usize,
    insn: RawInsn,
    mut values: RegisterValues,
    numbers: &FxHashMap<u32, usize>,
) -> Result<RegisterValues, String> {
    use TableValue::{Address, Entry, Other};
    let (dst, src) = (usize::from(insn.dst.min(10)), usize::from(insn.src.min(10)));
    let strange = || Err(format!("slot {at} uses its address or an entry in an unknown way"));
    let (class, by_register) = (insn.code & 7, insn.code & 8 != 0);
    values[dst] = match (insn.code, values[dst], values[src]) {
        (LD_IMM64, ..) => numbers.get(&(at as u32)).map_or(Other, |n| Address(*n)),
        (MOV64, _, value) if insn.off == 0 => value,
        (ADD64, Address(n), Other) | (ADD64, Other, Address(n)) => Address(n),
        (ADD64_IMM, Address(n), _) => Address(n),
        (LOAD64, _, Address(n)) => Entry(n),
        (GOTOX, value @ Entry(_), _) => value,
        (CALL | 0x8d, ..) => {
            values[..=5].fill(Other);
            return Ok(values);
        }
        (EXIT | JA | JA_LONG, ..) => return Ok(values),
        (_, old, from) => match class {
            // Loads.
            0 | 1 if from == Other => Other,
            // Stores, and atomics, which may write the source register.
            2 | 3 if old == Other && (from == Other || class == 2) => return Ok(values),
            // Jumps.
            5 | 6 if old == Other && (from == Other || !by_register) => return Ok(values),
            // Arithmetic.
            4 | 7 if insn.code & 0xf0 == 0xb0 && (from == Other || !by_register) => Other,
            4 | 7 if old == Other && (from == Other || !by_register) => Other,
            _ => return strange(),
        },
    };
    Ok(values)
}

/// A jump of the new form, whose distance is filled in last: its place, and its target as an old slot.
type PendingJump = (usize, usize);

/// The new instructions of a function.
#[derive(Default)]
struct ExpandedForm {
    insns: Vec<RawInsn>,
    /// New slot of each old one.
    starts: Vec<u32>,
    pending: Vec<PendingJump>,
}

impl ExpandedForm {
    fn new(
        old: &[RawInsn],
        references: &BTreeMap<u32, TableReference>,
        tables: &[TableTargets],
        values: &[Option<RegisterValues>],
    ) -> Result<ExpandedForm, String> {
        let mut form = ExpandedForm { starts: vec![0; old.len()], ..ExpandedForm::default() };
        for (at, insn) in instructions(old) {
            form.starts[at] = form.insns.len() as u32;
            let register = |n: u8| values[at].map(|v| v[usize::from(n.min(10))]);
            match (insn.code, references.get(&(at as u32)), register(insn.src)) {
                (LD_IMM64, Some(reference), _) => {
                    let imm = reference.addend;
                    form.insns.push(RawInsn { code: MOV64_IMM, dst: insn.dst, src: 0, off: 0, imm });
                }
                (LOAD64, _, Some(TableValue::Address(_))) => {
                    form.insns.push(RawInsn { code: MOV64, off: 0, imm: 0, ..insn });
                    let imm = i32::from(insn.off);
                    if imm != 0 {
                        form.insns.push(RawInsn { code: ADD64_IMM, dst: insn.dst, src: 0, off: 0, imm });
                    }
                }
                (GOTOX, ..) => {
                    let Some(TableValue::Entry(n)) = register(insn.dst) else {
                        return Err("a gotox cannot be reached".into());
                    };
                    let parts = runs(&tables[n]);
                    if parts.len() > MOST_PARTS {
                        return Err("it is too long for a tree".into());
                    }
                    form.tree(insn.dst, &parts);
                }
                _ => {
                    if is_jump(insn) {
                        let to = target(at, insn).filter(|t| *t < old.len());
                        let to = to.ok_or("a jump leads out of the function")?;
                        form.pending.push((form.insns.len(), to));
                    }
                    form.insns.push(insn);
                    if insn.code == LD_IMM64 {
                        form.insns.extend(old.get(at + 1));
                    }
                }
            }
        }
        form.fill_in_jumps()?;
        Ok(form)
    }

    /// A tree for parts of a table: the offset where each begins, and the old slot that it leads to.
    fn tree(&mut self, register: u8, parts: &[(u32, u32)]) {
        let (left, right) = parts.split_at(parts.len() / 2);
        let Some(&(begin, to)) = right.first() else { return };
        if left.is_empty() {
            self.pending.push((self.insns.len(), to as usize));
            self.insns.push(RawInsn { code: JA, dst: 0, src: 0, off: 0, imm: 0 });
            return;
        }
        let test = self.insns.len();
        self.insns.push(RawInsn { code: JGE_IMM, dst: register, src: 0, off: 0, imm: begin as i32 });
        self.tree(register, left);
        // Each part takes at most two slots.
        self.insns[test].off = i16::try_from(self.insns.len() - test - 1).unwrap_or(i16::MAX);
        self.tree(register, right);
    }

    fn fill_in_jumps(&mut self) -> Result<(), String> {
        for &(at, to) in &self.pending {
            let distance = i64::from(self.starts[to]) - at as i64 - 1;
            let insn = &mut self.insns[at];
            match (insn.code, i16::try_from(distance)) {
                (JA_LONG, _) => insn.imm = distance as i32,
                (_, Ok(off)) => insn.off = off,
                (JA, Err(_)) => *insn = RawInsn { code: JA_LONG, imm: distance as i32, ..*insn },
                (_, Err(_)) => return Err("without it, a jump would be too far".into()),
            }
        }
        Ok(())
    }
}

/// Parts of a table that lead to the same place: the offset of each in the table, and the place.
fn runs(table: &TableTargets) -> Vec<(u32, u32)> {
    let mut parts: Vec<(u32, u32)> = table.iter().zip(0..).map(|(to, n)| (n * ENTRY, *to)).collect();
    parts.dedup_by_key(|(_, to)| *to);
    parts
}
