//! The ELF file of an object, as clang writes them for libbpf: the entry program in the section of its hook,
//! static subprograms in `.text`, maps in `.maps`, and BTF.

use std::collections::BTreeSet;

use millstream_bpf::lift::RelocTarget;
use millstream_bpf::lower::LoweredFunction;
use millstream_btf::{BtfExt, FuncInfo, LineInfo, SectionRecords, StrOff};
use millstream_ir::{Func, Map, Module};
use millstream_isa::encode_all;
use millstream_p4_lower::{PRIORITY_MAP, Pipeline};
use rustc_hash::FxHashMap;

use crate::error::KernelBuildError;
use crate::hook::KernelHook;
use crate::map_types::{ObjectTypes, c_name};

/// Parts of an object.
pub(crate) struct ObjectFile<'o> {
    pub(crate) module: &'o Module,
    pub(crate) pipeline: &'o Pipeline,
    pub(crate) hook: KernelHook,
    pub(crate) entry: Func,
    pub(crate) code: &'o [(Func, LoweredFunction)],
}

/// Numbers of ELF (`elf.h`).
mod elf {
    pub(super) const BPF_MACHINE: u16 = 247;
    pub(super) const PROGBITS: u32 = 1;
    pub(super) const SYMTAB: u32 = 2;
    pub(super) const STRTAB: u32 = 3;
    pub(super) const REL: u32 = 9;
    pub(super) const WRITE_ALLOC: u64 = 3;
    pub(super) const ALLOC_EXEC: u64 = 6;
    pub(super) const LOCAL_FUNC: u8 = 2;
    pub(super) const GLOBAL_FUNC: u8 = 0x12;
    pub(super) const GLOBAL_OBJECT: u8 = 0x11;
    /// `R_BPF_64_64`
    pub(super) const ADDRESS: u64 = 1;
    /// `R_BPF_64_32`
    pub(super) const CALL: u64 = 10;
}

/// Bytes of an instruction slot.
const SLOT: u32 = 8;

struct ElfSection {
    name: &'static str,
    kind: u32,
    flags: u64,
    data: Vec<u8>,
    link: u32,
    info: u32,
    entry: u64,
}

impl ElfSection {
    fn new(name: &'static str, kind: u32, flags: u64, data: Vec<u8>) -> ElfSection {
        ElfSection { name, kind, flags, data, link: 0, info: 0, entry: 0 }
    }
}

/// Numbers of the sections in the file.
mod section {
    pub(super) const TEXT: u16 = 1;
    pub(super) const PROGRAM: u16 = 2;
    pub(super) const MAPS: u16 = 3;
    pub(super) const SYMBOLS: u32 = 7;
    pub(super) const STRINGS: u32 = 8;
}

/// A symbol.
struct ElfSymbol {
    name: String,
    info: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// Writes the file; gives also the names of the maps.
///
/// # Errors
/// [`KernelBuildError::Btf`] if the types are too many.
pub(crate) fn write_object(
    file: &ObjectFile<'_>,
) -> Result<(Vec<u8>, FxHashMap<Map, String>), KernelBuildError> {
    let mut layout = ObjectLayout::new(file);
    layout.place_functions();
    let names = layout.place_maps();
    let [text, program] = [section::TEXT, section::PROGRAM].map(|section| layout.code(section));
    let [text_relocations, program_relocations] =
        [section::TEXT, section::PROGRAM].map(|section| layout.relocations(section));
    let ext = layout.records();
    let (maps_size, btf) = layout.types.finish()?;
    let ext = ext.write()?;
    let (symbols, strings, locals) = symbol_table(&layout.symbols);
    let program_name = file.hook.section();
    let relocation_name = match file.hook {
        KernelHook::Xdp => ".relxdp",
        KernelHook::Tc => ".reltc",
    };
    let plain = |name, data| ElfSection::new(name, elf::PROGBITS, 0, data);
    let relocation = |name, data, of: u16| {
        let base = ElfSection::new(name, elf::REL, 0, data);
        ElfSection { link: section::SYMBOLS, info: u32::from(of), entry: 16, ..base }
    };
    let symbol_section = ElfSection::new(".symtab", elf::SYMTAB, 0, symbols);
    let sections = [
        ElfSection::new(".text", elf::PROGBITS, elf::ALLOC_EXEC, text),
        ElfSection::new(program_name, elf::PROGBITS, elf::ALLOC_EXEC, program),
        ElfSection::new(".maps", elf::PROGBITS, elf::WRITE_ALLOC, vec![0; maps_size as usize]),
        ElfSection::new("license", elf::PROGBITS, elf::WRITE_ALLOC, b"GPL\0".to_vec()),
        plain(".BTF", btf),
        plain(".BTF.ext", ext),
        ElfSection { link: section::STRINGS, info: locals, entry: 24, ..symbol_section },
        ElfSection::new(".strtab", elf::STRTAB, 0, strings),
        relocation(".rel.text", text_relocations, section::TEXT),
        relocation(relocation_name, program_relocations, section::PROGRAM),
    ];
    Ok((elf_bytes(&sections), names))
}

/// Places and symbols.
struct ObjectLayout<'o> {
    file: &'o ObjectFile<'o>,
    types: ObjectTypes,
    taken: BTreeSet<String>,
    symbols: Vec<ElfSymbol>,
    /// Section, first byte, symbol and type of each function.
    functions: FxHashMap<Func, PlacedFunction>,
    map_symbols: FxHashMap<Map, usize>,
}

#[derive(Clone, Copy)]
struct PlacedFunction {
    section: u16,
    start: u32,
    symbol: usize,
    type_id: millstream_btf::TypeId,
}

impl<'o> ObjectLayout<'o> {
    fn new(file: &'o ObjectFile<'o>) -> ObjectLayout<'o> {
        ObjectLayout {
            file,
            types: ObjectTypes::new(),
            taken: BTreeSet::new(),
            symbols: Vec::new(),
            functions: FxHashMap::default(),
            map_symbols: FxHashMap::default(),
        }
    }

    /// Local symbols come first, so the entry program's is the last one of the functions.
    fn place_functions(&mut self) {
        let file = self.file;
        let entry_name = c_name(&file.module.funcs[file.entry].name, &mut self.taken);
        let mut text = 0;
        let others = file.code.iter().filter(|(func, _)| *func != file.entry);
        let entry = file.code.iter().filter(|(func, _)| *func == file.entry);
        for (func, code) in others.chain(entry) {
            let function = &file.module.funcs[*func];
            let is_entry = *func == file.entry;
            let name = match is_entry {
                true => entry_name.clone(),
                false => c_name(&function.name, &mut self.taken),
            };
            let size = code.slots() as u32 * SLOT;
            let (section, start, info) = match is_entry {
                true => (section::PROGRAM, 0, elf::GLOBAL_FUNC),
                false => (section::TEXT, text, elf::LOCAL_FUNC),
            };
            if !is_entry {
                text += size;
            }
            let parameters = function.blocks[function.entry()].params.len();
            let type_id = self.types.add_function(&name, parameters, is_entry);
            let symbol = self.symbols.len() + 1;
            self.symbols.push(ElfSymbol {
                name,
                info,
                section,
                value: u64::from(start),
                size: u64::from(size),
            });
            self.functions.insert(*func, PlacedFunction { section, start, symbol, type_id });
        }
    }

    fn place_maps(&mut self) -> FxHashMap<Map, String> {
        let mut names = FxHashMap::default();
        for (map, decl) in self.file.module.maps.iter().filter(|(_, decl)| decl.kind != PRIORITY_MAP) {
            let name = c_name(&decl.name, &mut self.taken);
            let (offset, size) = self.types.add_map(&name, decl);
            self.map_symbols.insert(map, self.symbols.len() + 1);
            names.insert(map, name.clone());
            let (value, size) = (u64::from(offset), u64::from(size));
            self.symbols.push(ElfSymbol {
                name,
                info: elf::GLOBAL_OBJECT,
                section: section::MAPS,
                value,
                size,
            });
        }
        names
    }

    fn in_section(&self, section: u16) -> Vec<(PlacedFunction, &'o LoweredFunction)> {
        let placed = self.file.code.iter().filter_map(|(func, code)| {
            let place = *self.functions.get(func)?;
            (place.section == section).then_some((place, code))
        });
        placed.collect()
    }

    fn code(&self, section: u16) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (_, code) in self.in_section(section) {
            let mut raw = encode_all(&code.insns);
            for (slot, target) in &code.syms {
                // A call refers to the symbol's own first instruction; an address has no addend.
                if let (RelocTarget::Func(_), Some(raw)) = (target, raw.get_mut(*slot as usize)) {
                    raw.imm = -1;
                }
            }
            bytes.extend(raw.iter().flat_map(|raw| raw.to_bytes()));
        }
        bytes
    }

    fn relocations(&self, section: u16) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (place, code) in self.in_section(section) {
            for (slot, target) in &code.syms {
                let (symbol, kind) = match target {
                    RelocTarget::Map(map) | RelocTarget::MapValue(map, _) => {
                        (self.map_symbols.get(map).copied(), elf::ADDRESS)
                    }
                    RelocTarget::Func(func) => (self.functions.get(func).map(|f| f.symbol), elf::CALL),
                    RelocTarget::Extern(_) => (None, elf::ADDRESS),
                };
                let Some(symbol) = symbol else { continue };
                let at = u64::from(place.start + slot * SLOT);
                bytes.extend(at.to_le_bytes());
                bytes.extend(((symbol as u64) << 32 | kind).to_le_bytes());
            }
        }
        bytes
    }

    /// Functions and source lines of the instructions.
    fn records(&mut self) -> BtfExt {
        let mut ext = BtfExt::default();
        for (number, name) in [(section::TEXT, ".text"), (section::PROGRAM, self.file.hook.section())] {
            let section = self.types.string(name);
            let (mut functions, mut lines) = (Vec::new(), Vec::new());
            for (place, code) in self.in_section(number) {
                functions.push(FuncInfo { insn_off: place.start, type_id: place.type_id });
                lines.extend(self.lines(place, code));
            }
            if !functions.is_empty() {
                ext.func_info.push(SectionRecords { section, records: functions });
                ext.line_info.push(SectionRecords { section, records: lines });
            }
        }
        ext
    }

    /// Lines of a function. Its first instruction has one in any case, which the kernel demands.
    fn lines(&mut self, place: PlacedFunction, code: &LoweredFunction) -> Vec<LineInfo> {
        let sources = &self.file.pipeline.lines;
        let mut lines: Vec<LineInfo> = Vec::new();
        let mut records: Vec<(u32, u32)> = code.lines.clone();
        if records.first().is_none_or(|(slot, _)| *slot != 0) {
            let first = records.first().map_or(0, |(_, record)| *record);
            records.insert(0, (0, first));
        }
        for (slot, record) in records {
            let source = sources.get(record as usize);
            let (path, line) = source.map_or(("p4", 1), |source| (source.path.as_str(), source.line));
            let file = self.types.string(path);
            lines.push(LineInfo {
                insn_off: place.start + slot * SLOT,
                file,
                text: StrOff(0),
                line,
                column: 1,
            });
        }
        lines
    }
}

/// Symbol table, its strings, and the number of the first symbol that is not local.
fn symbol_table(symbols: &[ElfSymbol]) -> (Vec<u8>, Vec<u8>, u32) {
    let (mut table, mut strings) = (vec![0; 24], vec![0]);
    for symbol in symbols {
        table.extend((strings.len() as u32).to_le_bytes());
        table.extend([symbol.info, 0]);
        table.extend(symbol.section.to_le_bytes());
        table.extend(symbol.value.to_le_bytes());
        table.extend(symbol.size.to_le_bytes());
        strings.extend(symbol.name.as_bytes());
        strings.push(0);
    }
    let locals = symbols.iter().take_while(|symbol| symbol.info == elf::LOCAL_FUNC).count() as u32 + 1;
    (table, strings, locals)
}

/// Header, contents and section headers. The names of sections are in a section of their own, the last one.
fn elf_bytes(sections: &[ElfSection]) -> Vec<u8> {
    const HEADER: u64 = 64;
    let mut names = vec![0];
    let mut body = Vec::new();
    let mut headers = vec![0; 64];
    let count = sections.len() as u16 + 2;
    let mut add = |section: &ElfSection, names: &mut Vec<u8>| {
        while !body.len().is_multiple_of(8) {
            body.push(0);
        }
        let at = HEADER + body.len() as u64;
        headers.extend((names.len() as u32).to_le_bytes());
        names.extend(section.name.as_bytes());
        names.push(0);
        let data = if section.name == ".shstrtab" { names.clone() } else { section.data.clone() };
        headers.extend(section.kind.to_le_bytes());
        for word in [section.flags, 0, at, data.len() as u64] {
            headers.extend(word.to_le_bytes());
        }
        headers.extend([section.link.to_le_bytes(), section.info.to_le_bytes()].concat());
        headers.extend([8u64.to_le_bytes(), section.entry.to_le_bytes()].concat());
        body.extend(data);
    };
    for section in sections {
        add(section, &mut names);
    }
    add(&ElfSection::new(".shstrtab", elf::STRTAB, 0, Vec::new()), &mut names);
    while !body.len().is_multiple_of(8) {
        body.push(0);
    }
    let mut out = b"\x7fELF\x02\x01\x01".to_vec();
    out.resize(16, 0);
    out.extend([1u16.to_le_bytes(), elf::BPF_MACHINE.to_le_bytes()].concat());
    out.extend(1u32.to_le_bytes());
    for word in [0, 0, HEADER + body.len() as u64] {
        out.extend(word.to_le_bytes());
    }
    out.extend(0u32.to_le_bytes());
    for half in [HEADER as u16, 0, 0, 64, count, count - 1] {
        out.extend(half.to_le_bytes());
    }
    out.extend(body);
    out.extend(headers);
    out
}
