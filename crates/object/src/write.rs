//! Writing an object back: the file as it was, with other instructions.
//!
//! Functions keep their order within their section and close up. A reference has the form that the file used
//! for the same reference elsewhere; otherwise the form that every loader takes: named symbols for global
//! functions and data, the section's symbol and an offset for static ones, no relocation for static functions
//! of the same section.

use crate::codes::{CALL, LD_IMM64, PSEUDO_CALL, R_64_32, R_64_64};
use crate::elf::{Elf, ElfRelocation, SHT_GROUP, STT_SECTION};
use crate::error::ObjectError;
use crate::ids::{FuncId, MapId, RelocKind};
use crate::image::SymbolReference;
use crate::model::{Linkage, Object, ObjectFunction};
use crate::read::functions;
use crate::read::opaque::{self, CodePlace};
use crate::{LinkedProgram, link};
use millstream_btf::{BtfExt, CoreRelo, FuncInfo, LineInfo, SectionRecords, StrOff, StrangeCore};
use millstream_isa::RawInsn;
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;

/// LLVM's table of address-significant symbols, by their numbers, which change.
const SHT_LLVM_ADDRSIG: u32 = 0x6fff_4c03;
const SLOT: u32 = 8;

impl Object {
    /// The object file: as it was read, with the functions as they are now. Other changes are listed at the
    /// top of this crate.
    pub fn write(&self) -> Result<Vec<u8>, ObjectError> {
        if self.image.elf.sections.is_empty() {
            return Err(ObjectError::Unwritable("it comes from no file".to_owned()));
        }
        if self.frozen.is_some() {
            return self.image.elf.write();
        }
        let mut out = ObjectWriter { object: self, elf: self.image.elf.clone(), starts: self.new_starts() };
        out.delete_stale();
        out.move_symbols();
        out.move_addresses_in_data();
        for section in self.code_sections() {
            out.write_code(section)?;
        }
        out.write_ext()?;
        out.elf.write()
    }

    /// Sections that have functions.
    fn code_sections(&self) -> Vec<usize> {
        let mut sections = self.image.function_sections.clone();
        sections.sort_unstable();
        sections.dedup();
        sections
    }

    /// New start of each function in its section, in slots.
    fn new_starts(&self) -> Vec<u32> {
        let mut ends = BTreeMap::new();
        let place = |(section, f): (&usize, &ObjectFunction)| {
            let end = ends.entry(*section).or_insert(0);
            *end += f.insns.len() as u32;
            *end - f.insns.len() as u32
        };
        self.image.function_sections.iter().zip(&self.functions).map(place).collect()
    }

    /// Links the program whose function is `program`.
    pub fn link(&self, program: FuncId) -> Result<LinkedProgram, ObjectError> {
        link::link(self, program)
    }
}

struct ObjectWriter<'a> {
    object: &'a Object,
    elf: Elf,
    starts: Vec<u32>,
}

impl ObjectWriter<'_> {
    /// Marks sections as deleted that state places of instructions or numbers of symbols, and their
    /// relocations.
    fn delete_stale(&mut self) {
        let ext = self.elf.find(".BTF.ext");
        for n in 0..self.elf.sections.len() {
            let s = &self.elf.sections[n];
            let stale = s.is_stale() || matches!(s.kind, SHT_LLVM_ADDRSIG | SHT_GROUP);
            self.elf.sections[n].deleted |= stale;
        }
        for n in 0..self.elf.sections.len() {
            let s = &self.elf.sections[n];
            let target = s.info as usize;
            let gone = self.elf.sections.get(target).is_some_and(|t| t.deleted) || Some(target) == ext;
            if s.is_relocations() && gone {
                self.elf.sections[n].deleted = true;
            }
        }
    }

    /// Function symbols move with their functions, and labels with functions that are kept. Other labels go.
    fn move_symbols(&mut self) {
        let sections = self.object.code_sections();
        for n in 0..self.elf.symbols.len() {
            let s = &self.elf.symbols[n];
            let Some(section) = s.section().filter(|s| sections.contains(s)) else { continue };
            if s.kind() == STT_SECTION {
                continue;
            }
            let function = functions::function_at(self.object, section, s.value / u64::from(SLOT));
            let present = function.filter(|f| !self.object.functions[f.index()].removed);
            let inside = functions::function_around(self.object, section, s.value / u64::from(SLOT));
            let inside = inside.is_some_and(|f| self.object.functions[f.index()].kept.is_some());
            let place = self.moved((section, s.value));
            let had_size = s.size > 0;
            let s = &mut self.elf.symbols[n];
            match present {
                _ if inside => s.value = place,
                Some(id) => {
                    s.value = u64::from(self.starts[id.index()]) * u64::from(SLOT);
                    let size = self.object.functions[id.index()].insns.len() as u64 * u64::from(SLOT);
                    s.size = if had_size { size } else { 0 };
                }
                None => s.deleted = true,
            }
        }
    }

    /// New place of an instruction of the file: of any instruction of a function that is kept, of the first
    /// of others.
    fn moved(&self, (section, byte): CodePlace) -> u64 {
        let slot = byte / u64::from(SLOT);
        let Some(id) = functions::function_around(self.object, section, slot) else { return byte };
        let f = &self.object.functions[id.index()];
        let stays = f.kept.is_some() || u64::from(f.start) == slot;
        let by = (i64::from(self.starts[id.index()]) - i64::from(f.start)) * i64::from(SLOT);
        if stays { byte.wrapping_add_signed(by) } else { byte }
    }

    /// Change, in bytes, of the distance of a place from the base that it is counted from.
    fn stretch(&self, base: Option<CodePlace>, target: CodePlace) -> i64 {
        let by = |place: CodePlace| self.moved(place).wrapping_sub(place.1) as i64;
        by(target) - base.map_or(0, by)
    }

    /// Data may hold addresses of functions, and of instructions in functions that are kept.
    fn move_addresses_in_data(&mut self) {
        let kept = opaque::kept_functions(self.object).flat_map(|id| opaque::jump_tables(self.object, id));
        let mut done = FxHashSet::default();
        for r in opaque::data_references(self.object).into_iter().chain(kept) {
            if !done.insert((r.section, r.offset)) {
                continue;
            }
            let by = self.stretch(r.base, r.target);
            let field = self.elf.sections[r.section].data.get_mut(r.offset..r.offset + r.size);
            let Some(field) = field else { continue };
            let old = self.elf.order.number(field);
            self.elf.order.put(old.wrapping_add_signed(by), field);
        }
    }

    /// A function that is kept: as the file has it, with references that follow what moved.
    fn kept(&self, id: FuncId, relocs: &mut Vec<ElfRelocation>) -> Vec<RawInsn> {
        let start = u64::from(self.starts[id.index()] * SLOT);
        let own = self.object.image.kept.relocs.get(&id).into_iter().flatten();
        relocs.extend(own.map(|r| ElfRelocation { offset: start + r.offset, ..*r }));
        let mut insns = opaque::bytes_of(self.object, id);
        for r in opaque::code_references(self.object, id) {
            let by = self.stretch(r.base, r.target) / r.unit;
            if let Some(insn) = insns.get_mut(r.insn) {
                insn.imm = insn.imm.wrapping_add(by as i32);
            }
        }
        insns
    }

    fn write_code(&mut self, section: usize) -> Result<(), ObjectError> {
        let order = self.elf.order;
        let mut data = Vec::new();
        let mut relocs = Vec::new();
        for n in 0..self.object.functions.len() {
            let f = &self.object.functions[n];
            if self.object.image.function_sections[n] != section || f.removed {
                continue;
            }
            if f.kept.is_some() {
                let insns = self.kept(FuncId(n as u32), &mut relocs);
                data.extend(insns.into_iter().flat_map(|insn| insn.to_bytes_in(order)));
                continue;
            }
            let mut insns = f.insns.clone();
            for r in &f.relocs {
                let at = self.starts[n] + r.insn;
                let insn = &mut insns[r.insn as usize];
                let is_call = insn.code == CALL;
                let (symbol, immediate) = self.reference(section, at, r.kind, is_call)?;
                insn.imm = immediate;
                insn.src = if is_call { PSEUDO_CALL } else { 0 };
                if insn.code == LD_IMM64 {
                    insns[r.insn as usize + 1].imm = 0;
                }
                if let Some(symbol) = symbol {
                    let kind = if is_call { R_64_32 } else { R_64_64 };
                    relocs.push(ElfRelocation { offset: u64::from(at * SLOT), symbol, kind, addend: 0 });
                }
            }
            data.extend(insns.into_iter().flat_map(|insn| insn.to_bytes_in(order)));
        }
        self.elf.sections[section].set_data(data);
        self.write_relocations(section, &relocs)
    }

    fn write_relocations(&mut self, section: usize, relocs: &[ElfRelocation]) -> Result<(), ObjectError> {
        let sections = &mut self.elf.sections;
        let mine =
            |s: &crate::elf::ElfSection| s.is_relocations() && s.info as usize == section && !s.deleted;
        let mut found = (0..sections.len()).filter(|n| mine(&sections[*n])).collect::<Vec<_>>().into_iter();
        let target = match found.next() {
            Some(n) => n,
            None if relocs.is_empty() => return Ok(()),
            None => self.elf.add_relocation_section(section)?,
        };
        for n in found {
            self.elf.sections[n].deleted = true;
        }
        self.elf.set_relocations(target, relocs);
        self.elf.sections[target].deleted = relocs.is_empty();
        Ok(())
    }

    /// The symbol, if one is needed, and the immediate that express a reference from slot `at` of a section.
    fn reference(
        &mut self,
        section: usize,
        at: u32,
        kind: RelocKind,
        is_call: bool,
    ) -> Result<(Option<usize>, i32), ObjectError> {
        let form = self.object.image.forms.get(&kind).copied();
        match kind {
            RelocKind::Call(f) => Ok(self.call(section, at, f, form)),
            RelocKind::FuncAddr(f) => {
                let start = self.starts[f.index()];
                match self.named(f, form) {
                    Some(symbol) => Ok((Some(symbol), 0)),
                    None => {
                        let home = self.object.image.function_sections[f.index()];
                        Ok((Some(self.elf.section_symbol(home)), (start * SLOT) as i32))
                    }
                }
            }
            RelocKind::Extern(e) => {
                let symbol = self.object.image.extern_symbols[e.index()];
                Ok((symbol, if is_call { -1 } else { 0 }))
            }
            RelocKind::Map(map) => self.place(map, 0, form, false),
            RelocKind::MapValue { map, offset } => self.place(map, offset, form, true),
        }
    }

    fn call(
        &mut self,
        section: usize,
        at: u32,
        f: FuncId,
        form: Option<SymbolReference>,
    ) -> (Option<usize>, i32) {
        let home = self.object.image.function_sections[f.index()];
        let start = self.starts[f.index()];
        let named = self.named(f, form);
        if home == section && (named.is_none() || form.is_none()) {
            return (None, start as i32 - at as i32 - 1);
        }
        match named {
            Some(symbol) => (Some(symbol), -1),
            None => (Some(self.elf.section_symbol(home)), start as i32 - 1),
        }
    }

    /// The symbol that names a function to others.
    fn named(&self, f: FuncId, form: Option<SymbolReference>) -> Option<usize> {
        let used = form.map(|f| f.symbol).filter(|s| self.elf.symbols[*s].kind() != STT_SECTION);
        let function = &self.object.functions[f.index()];
        let by_name = || {
            let home = self.object.image.function_sections[f.index()];
            let is = |n: &usize| {
                let s = &self.elf.symbols[*n];
                s.section() == Some(home) && s.kind() != STT_SECTION && s.name == function.name
            };
            (0..self.elf.symbols.len()).find(is)
        };
        used.or_else(|| if function.linkage == Linkage::Static { None } else { by_name() })
    }

    fn place(
        &mut self,
        map: MapId,
        offset: u32,
        form: Option<SymbolReference>,
        is_value: bool,
    ) -> Result<(Option<usize>, i32), ObjectError> {
        if let Some(SymbolReference { symbol, immediate }) = form {
            return Ok((Some(symbol), immediate));
        }
        let name = &self.object.maps[map.index()].name;
        let arena = self.object.image.arena.filter(|(_, arena)| is_value && *arena == map);
        let no_place = || ObjectError::Unwritable(format!("map {name} has no place in the file to refer to"));
        let known = arena.map(|(section, _)| (section, 0)).or(self.object.image.map_places[map.index()]);
        let (section, start) = known.ok_or_else(no_place)?;
        let value = start + u64::from(offset);
        let exact = |n: &usize| {
            let s = &self.elf.symbols[*n];
            s.section() == Some(section) && s.kind() != STT_SECTION && s.value == value && !s.deleted
        };
        if let Some(symbol) = (0..self.elf.symbols.len()).find(exact) {
            return Ok((Some(symbol), 0));
        }
        Ok((Some(self.elf.section_symbol(section)), value as i32))
    }

    /// Makes `.BTF.ext` anew from the records of the functions.
    fn write_ext(&mut self) -> Result<(), ObjectError> {
        let Some(n) = self.elf.find(".BTF.ext") else { return Ok(()) };
        let mut ext = BtfExt { order: self.elf.order, ..BtfExt::default() };
        for section in self.object.code_sections() {
            let name = &self.elf.sections[section].name;
            let Some(name) = self.object.image.ext_names.get(name).copied() else { continue };
            self.section_records(section, name, &mut ext);
        }
        let data = ext.write().map_err(|error| ObjectError::Btf { section: ".BTF.ext", error })?;
        self.elf.sections[n].set_data(data);
        Ok(())
    }

    fn section_records(&self, section: usize, name: StrOff, ext: &mut BtfExt) {
        let (mut functions, mut lines, mut relos) = (Vec::new(), Vec::new(), Vec::new());
        let all = self.object.functions.iter().zip(&self.object.image.function_sections).zip(&self.starts);
        for ((f, _), start) in all.filter(|((f, home), _)| **home == section && !f.removed) {
            let offset = |insn: u32| (start + insn) * SLOT;
            functions.extend(f.type_id.map(|type_id| FuncInfo { insn_off: offset(0), type_id }));
            lines.extend(f.line_info.iter().map(|l| LineInfo {
                insn_off: offset(l.insn),
                file: l.file,
                text: l.text,
                line: l.line,
                column: l.column,
            }));
            relos.extend(f.core_relos.iter().map(|c| CoreRelo { insn_off: offset(c.insn), ..c.to_btf() }));
        }
        let strange = self.object.image.kept.strange_cores.iter();
        let strange = strange.filter(|(f, ..)| self.object.image.function_sections[f.index()] == section);
        let strange = strange
            .map(|(f, insn, core)| StrangeCore { insn_off: (self.starts[f.index()] + insn) * SLOT, ..*core });
        add(&mut ext.strange_cores, name, strange.collect());
        add(&mut ext.func_info, name, functions);
        add(&mut ext.line_info, name, lines);
        add(&mut ext.core_relos, name, relos);
    }
}

fn add<T>(lists: &mut Vec<SectionRecords<T>>, section: StrOff, records: Vec<T>) {
    if !records.is_empty() {
        lists.push(SectionRecords { section, records });
    }
}
