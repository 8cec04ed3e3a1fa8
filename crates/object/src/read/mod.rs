//! Reading an object: ELF, then BTF, then maps, externs, functions, and what instructions refer to.

mod externs;
pub(crate) mod functions;
pub(crate) mod jump_tables;
mod legacy_maps;
mod maps;
pub(crate) mod opaque;
pub(crate) mod relocs;

use crate::elf::{Elf, STT_SECTION};
use crate::error::ObjectError;
use crate::ids::{FuncId, MapId, RelocKind};
use crate::image::ObjectImage;
use crate::kinds::ProgramType;
use crate::model::{EntryProgram, Linkage, Object, OpaqueReason};
use crate::section::SectionKind;
use millstream_btf::{Btf, BtfError, BtfExt};
use millstream_isa::ByteOrder;
use std::collections::BTreeSet;

/// A name is cut so that it and a NUL fit `BPF_OBJ_NAME_LEN`.
pub(crate) const MAX_NAME: usize = 15;

impl Object {
    /// Reads an object file. `file_name` is the file's name, with or without folders; global data is named
    /// after it.
    pub fn parse(file_name: &str, data: &[u8]) -> Result<Object, ObjectError> {
        let elf = Elf::parse(data)?;
        let mut frozen = None;
        let mut understood = |what: ObjectError| frozen = frozen.take().or_else(|| Some(what.to_string()));
        let btf = match read_btf(&elf) {
            Err(e @ ObjectError::Unsupported(_)) => return Err(e),
            btf => btf.unwrap_or_else(|e| {
                understood(e);
                None
            }),
        };
        let ext = read_ext(&elf, btf.as_ref()).unwrap_or_else(|e| {
            understood(e);
            None
        });
        let mut object = Object {
            name: object_name(file_name),
            license: text(&elf, "license"),
            kernel_version: kernel_version(&elf),
            functions: Vec::new(),
            programs: Vec::new(),
            maps: Vec::new(),
            externs: Vec::new(),
            btf,
            notes: Vec::new(),
            frozen,
            settled: Vec::new(),
            image: ObjectImage { elf, ..ObjectImage::default() },
        };
        legacy_maps::read_legacy_maps(&mut object);
        maps::read_maps(&mut object);
        externs::read_externs(&mut object)?;
        functions::read_functions(&mut object);
        relocs::read_relocations(&mut object);
        object.find_programs();
        if let Some(ext) = ext {
            functions::distribute_ext_records(&mut object, &ext);
        }
        maps::read_initial_values(&mut object);
        jump_tables::expand_jump_tables(&mut object);
        opaque::keep_branch_targets(&mut object);
        Ok(object)
    }

    /// Has the object written as it was read, for a reason that names the part that is not understood.
    pub(crate) fn freeze(&mut self, reason: impl ToString) {
        self.frozen.get_or_insert_with(|| reason.to_string());
    }

    /// Has a function written as it was read. The first reason is kept.
    pub(crate) fn keep(&mut self, id: FuncId, reason: impl Into<String>, loadable: bool) {
        let f = &mut self.functions[id.index()];
        let kept = f.kept.get_or_insert_with(|| OpaqueReason { reason: reason.into(), loadable });
        kept.loadable &= loadable;
    }

    /// Parts of the object that are not understood and left as they are, one sentence each.
    pub fn opaque_parts(&self) -> Vec<String> {
        let whole = self.frozen.iter().map(|why| format!("the whole object is left as it is: {why}"));
        let sections = self
            .image
            .kept
            .sections
            .iter()
            .map(|(name, why)| format!("section {name} is left as it is: {why}"));
        let functions = self.functions.iter().filter(|f| !f.is_gap());
        let functions = functions.filter_map(|f| {
            let kept = f.kept.as_ref()?;
            Some(format!("function {} is left as it is: {}", f.name, kept.reason))
        });
        whole.chain(sections).chain(functions).collect()
    }

    /// Functions of `.text` and static ones are subprograms; a lone function of `.text` is a program all the
    /// same, as in libbpf. What another function calls, in a section that names no type of programs, is a
    /// subprogram, too, as in cilium/ebpf; libbpf refuses such objects. As in cilium/ebpf again, a static
    /// function in a section of a type is a program if no function refers to it: Cilium's targets of tail
    /// calls are.
    fn find_programs(&mut self) {
        let lone = self.functions.iter().filter(|f| !f.is_gap()).count() == 1;
        let relocs = self.functions.iter().flat_map(|f| &f.relocs);
        let called: BTreeSet<usize> = relocs
            .filter_map(|r| match r.kind {
                RelocKind::Call(callee) => Some(callee.index()),
                _ => None,
            })
            .collect();
        let addresses = self.functions.iter().flat_map(|f| &f.relocs).filter_map(|r| match r.kind {
            RelocKind::FuncAddr(f) => Some(f.index()),
            _ => None,
        });
        let referred: BTreeSet<usize> = addresses.chain(called.iter().copied()).collect();
        let all_known = self.functions.iter().all(|f| f.kept.is_none() || f.is_gap());
        for (n, f) in self.functions.iter_mut().enumerate() {
            let typed = SectionKind::parse(&f.section).program_type != ProgramType::UNSPEC;
            let unnamed = f.name.contains('+');
            if all_known && typed && f.linkage == Linkage::Static && !unnamed && !referred.contains(&n) {
                f.subprogram = false;
            }
            f.subprogram = f.is_gap() || !lone && (f.subprogram || !typed && called.contains(&n));
            if !f.subprogram {
                self.programs.push(EntryProgram {
                    func: crate::FuncId(n as u32),
                    name: f.name.clone(),
                    section: f.section.clone(),
                    kind: SectionKind::parse(&f.section),
                });
            }
        }
    }

    /// Byte order of the machine that the object is for.
    pub fn byte_order(&self) -> ByteOrder {
        self.elf().order
    }

    /// Returns true if data, or instructions that are not understood as functions, have the address of a
    /// function.
    pub fn is_in_data(&self, id: FuncId) -> bool {
        self.image.in_data.contains(&id)
    }

    /// The arena with the object's global data in the first address space, and that data.
    pub fn arena_data(&self) -> Option<(MapId, &[u8])> {
        let (section, arena) = self.image.arena?;
        Some((arena, &self.elf().sections[section].data))
    }

    pub(crate) fn elf(&self) -> &Elf {
        &self.image.elf
    }

    /// Offset and name of each named symbol defined in a section, by offset.
    pub(crate) fn symbols_in(&self, section: usize) -> Vec<(u64, u64, &str)> {
        let inside = self.elf().symbols.iter().filter(|s| s.section() == Some(section));
        let named = inside.filter(|s| s.kind() != STT_SECTION && !s.name.is_empty());
        let mut found: Vec<_> = named.map(|s| (s.value, s.size, s.name.as_str())).collect();
        found.sort_unstable();
        found
    }
}

/// The file's name without folders, up to its first dot, at most 15 characters.
fn object_name(file_name: &str) -> String {
    let base = file_name.rsplit('/').next().unwrap_or_default();
    let stem = base.split('.').next().unwrap_or_default();
    let end = stem.char_indices().map(|(i, c)| i + c.len_utf8()).take_while(|e| *e <= MAX_NAME).last();
    stem[..end.unwrap_or(0)].to_owned()
}

fn text(elf: &Elf, section: &str) -> String {
    let data = elf.find(section).map(|n| elf.sections[n].data.as_slice()).unwrap_or_default();
    let text = data.split(|b| *b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

fn kernel_version(elf: &Elf) -> Option<u32> {
    let data = &elf.sections[elf.find("version")?].data;
    Some(elf.order.number(data.get(..4)?) as u32)
}

fn read_btf(elf: &Elf) -> Result<Option<Btf>, ObjectError> {
    let Some(n) = elf.find(".BTF") else { return Ok(None) };
    if elf.find(".BTF.base").is_some() {
        return Err(ObjectError::Unsupported("split BTF (section .BTF.base), as kernel modules have it"));
    }
    let btf = Btf::parse(&elf.sections[n].data);
    let same = btf.and_then(|btf| same_order(elf, btf.order()).map(|()| btf));
    same.map(Some).map_err(|error| ObjectError::Btf { section: ".BTF", error })
}

fn read_ext(elf: &Elf, btf: Option<&Btf>) -> Result<Option<BtfExt>, ObjectError> {
    let Some((n, btf)) = elf.find(".BTF.ext").zip(btf) else { return Ok(None) };
    let ext = BtfExt::parse(&elf.sections[n].data, btf);
    let same = ext.and_then(|ext| same_order(elf, ext.order).map(|()| ext));
    same.map(Some).map_err(|error| ObjectError::Btf { section: ".BTF.ext", error })
}

fn same_order(elf: &Elf, order: ByteOrder) -> Result<(), BtfError> {
    let other = BtfError::BadHeader("it is not of the byte order of the file");
    if order == elf.order { Ok(()) } else { Err(other) }
}

#[cfg(test)]
mod tests {
    use super::object_name;

    #[test]
    fn objects_are_named_after_their_file() {
        assert_eq!(object_name("a/b/router.bpf.o"), "router");
        assert_eq!(object_name("a_name_that_is_too_long.o"), "a_name_that_is_");
        assert_eq!(object_name(""), "");
    }
}
