//! Finding functions in sections of instructions, and giving each its lines and CO-RE relocations.
//!
//! A function starts where a function symbol does, where a call without a relocation leads, and, for objects of
//! compilers before 2018 whose function symbols have no type, at every global symbol and at the start of the section.

use crate::elf::{STB_GLOBAL, STB_LOCAL, STB_WEAK, STT_FUNC, STT_NOTYPE};
use crate::error::ObjectError;
use crate::model::{CoreRelo, FuncId, Function, LineInfo, Linkage, Object};
use crate::read::relocs::{CALL, PSEUDO_CALL};
use millstream_btf::{BtfExt, SectionRecords};
use millstream_isa::Raw;
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;

const SLOT: u64 = 8;

/// What a symbol says of a function.
struct Start {
    name: Option<String>,
    linkage: Linkage,
    /// In slots; 0 if not known.
    size: u32,
}

impl Object {
    pub(crate) fn read_functions(&mut self) -> Result<(), ObjectError> {
        for n in 0..self.elf().sections.len() {
            let section = &self.elf().sections[n];
            if !section.is_code() || section.data.is_empty() {
                continue;
            }
            let insns = Raw::slice_from_bytes(&section.data).ok_or_else(|| ObjectError::BadSection {
                section: section.name.clone(),
                what: format!("its {} bytes are not a whole number of instructions", section.data.len()),
            })?;
            let starts = self.function_starts(n, &insns)?;
            self.split(n, &insns, &starts)?;
        }
        Ok(())
    }

    fn function_starts(&self, n: usize, insns: &[Raw]) -> Result<BTreeMap<u32, Start>, ObjectError> {
        let symbols = || self.elf().symbols.iter().enumerate().filter(|(_, s)| s.section() == Some(n));
        let typed = symbols().any(|(_, s)| s.kind() == STT_FUNC);
        let mut starts = BTreeMap::new();
        for (number, s) in symbols() {
            let global = matches!(s.binding(), STB_GLOBAL | STB_WEAK);
            let function = s.kind() == STT_FUNC || !typed && s.kind() == STT_NOTYPE && global;
            if !function {
                continue;
            }
            if !s.value.is_multiple_of(SLOT) || s.value / SLOT >= insns.len() as u64 {
                return Err(ObjectError::BadSymbol {
                    symbol: number,
                    what: "is a function outside its section",
                });
            }
            let linkage = match s.binding() {
                STB_LOCAL => Linkage::Static,
                _ if s.is_hidden() => Linkage::Static,
                STB_WEAK => Linkage::Weak,
                _ => Linkage::Global,
            };
            let size = u32::try_from(s.size / SLOT).unwrap_or(u32::MAX);
            let start = Start { name: Some(s.name.clone()), linkage, size };
            // Of two symbols for one place, the global one names the function.
            let at = (s.value / SLOT) as u32;
            if global || !starts.contains_key(&at) {
                starts.insert(at, start);
            }
        }
        let unnamed = || Start { name: None, linkage: Linkage::Static, size: 0 };
        if starts.is_empty() {
            let start = Start { linkage: Linkage::Global, ..unnamed() };
            starts.insert(0, start);
        }
        for at in self.call_targets(n, insns)? {
            starts.entry(at).or_insert_with(unnamed);
        }
        Ok(starts)
    }

    fn split(
        &mut self,
        section: usize,
        insns: &[Raw],
        starts: &BTreeMap<u32, Start>,
    ) -> Result<(), ObjectError> {
        let name = self.elf().sections[section].name.clone();
        let ends = starts.keys().skip(1).copied().chain([insns.len() as u32]);
        let mut covered = 0;
        for (n, ((&at, start), end)) in starts.iter().zip(ends).enumerate() {
            if at > covered {
                self.notes.push(format!("{name}: instructions {covered} to {at} belong to no function"));
            }
            let size = if start.size == 0 { end - at } else { start.size.min(end - at) };
            covered = at + size;
            let body = insns[at as usize..covered as usize].to_vec();
            self.functions.push(Function {
                name: start.name.clone().unwrap_or_else(|| format!("{name}+{:#x}", u64::from(at) * SLOT)),
                section: name.clone(),
                start: at,
                linkage: start.linkage,
                subprogram: name == ".text" || start.linkage == Linkage::Static && n > 0,
                insns: body,
                relocs: Vec::new(),
                type_id: None,
                line_info: Vec::new(),
                core_relos: Vec::new(),
                removed: false,
            });
            let id = FuncId(self.image.function_sections.len() as u32);
            self.image.function_places.insert((section, u64::from(at)), id);
            self.image.function_sections.push(section);
        }
        Ok(())
    }

    /// Slots that calls in the section lead to, of the calls that have no relocation.
    fn call_targets(&self, section: usize, insns: &[Raw]) -> Result<Vec<u32>, ObjectError> {
        let mut relocated = FxHashSet::default();
        for (n, s) in self.elf().sections.iter().enumerate() {
            if s.is_relocations() && s.info as usize == section {
                relocated.extend(self.elf().relocations(n)?.iter().map(|r| r.offset / SLOT));
            }
        }
        let calls = insns.iter().enumerate().filter(|(_, i)| i.code == CALL && i.src == PSEUDO_CALL);
        let resolved = calls.filter(|(at, _)| !relocated.contains(&(*at as u64)));
        let targets = resolved.map(|(at, i)| at as i64 + 1 + i64::from(i.imm));
        let inside = |t: i64| u32::try_from(t).ok().filter(|t| (*t as usize) < insns.len());
        Ok(targets.filter_map(inside).collect())
    }

    /// The function that began at a slot of a section when the file was read.
    pub(crate) fn function_at(&self, section: usize, slot: u64) -> Option<FuncId> {
        self.image.function_places.get(&(section, slot)).copied()
    }

    /// The function that has the slot of a section.
    pub(crate) fn function_around(&self, section: usize, slot: u64) -> Option<FuncId> {
        let key = |n: usize| (self.image.function_sections[n], u64::from(self.functions[n].start));
        // Functions are in order of section and start.
        let (mut low, mut high) = (0, self.functions.len());
        while low < high {
            let mid = (low + high) / 2;
            if key(mid) <= (section, slot) { low = mid + 1 } else { high = mid }
        }
        let n = low.checked_sub(1)?;
        let f = &self.functions[n];
        let inside = key(n).0 == section && slot - u64::from(f.start) < f.insns.len() as u64;
        inside.then_some(FuncId(n as u32))
    }

    /// Hands out the records of `.BTF.ext`. Records of places that are in no function are dropped.
    pub(crate) fn distribute(&mut self, ext: &BtfExt) -> Result<(), ObjectError> {
        self.each(
            &ext.func_info,
            |f| f.insn_off,
            |f, insn, info| {
                if insn == 0 {
                    f.type_id = Some(info.type_id);
                }
            },
        )?;
        self.each(
            &ext.line_info,
            |l| l.insn_off,
            |f, insn, l| {
                f.line_info.push(LineInfo {
                    insn,
                    file: l.file,
                    text: l.text,
                    line: l.line,
                    column: l.column,
                });
            },
        )?;
        self.each(
            &ext.core_relos,
            |c| c.insn_off,
            |f, insn, c| {
                f.core_relos.push(CoreRelo { insn, type_id: c.type_id, access: c.access, kind: c.kind });
            },
        )?;
        for f in &mut self.functions {
            f.line_info.sort_by_key(|l| l.insn);
            f.line_info.dedup_by_key(|l| l.insn);
            f.core_relos.sort_by_key(|c| c.insn);
        }
        Ok(())
    }

    fn each<T>(
        &mut self,
        lists: &[SectionRecords<T>],
        offset: impl Fn(&T) -> u32,
        put: impl Fn(&mut Function, u32, &T),
    ) -> Result<(), ObjectError> {
        let Some(btf) = &self.btf else { return Ok(()) };
        let names: Vec<String> = lists.iter().map(|l| btf.str(l.section).to_owned()).collect();
        for (list, name) in lists.iter().zip(names) {
            self.image.ext_names.insert(name.clone(), list.section);
            let code = |n: &usize| self.elf().sections[*n].is_code();
            let Some(section) = self.elf().find(&name).filter(code) else {
                self.notes.push(format!(".BTF.ext has records for {name}, which has no instructions"));
                continue;
            };
            for r in &list.records {
                let at = u64::from(offset(r));
                if !at.is_multiple_of(SLOT) {
                    let what = format!(".BTF.ext has a record for byte {at:#x}, where no instruction starts");
                    return Err(ObjectError::BadSection { section: name, what });
                }
                if let Some(id) = self.function_around(section, at / SLOT) {
                    let f = &mut self.functions[id.index()];
                    put(f, (at / SLOT) as u32 - f.start, r);
                }
            }
        }
        Ok(())
    }
}
