//! ELF64 relocatable files of either byte order: the whole of one, in memory, to be read, changed and written.
//!
//! The file's own string tables are kept, so names need no rewriting; sections and symbols keep their numbers
//! until they are written, when those marked as deleted drop out and every reference is renumbered. (The
//! `object` crate's builder is not used: it refuses sections that it cannot interpret, such as LLVM's table
//! of address-significant symbols, and this crate has to accept what libbpf accepts.)
//!
//! Invariant: the sections' data together are no longer than the file, so that copies of them are bounded.

use crate::error::{ElfPart, ObjectError};
use millstream_isa::ByteOrder;

const SHT_NULL: u32 = 0;
pub(crate) const SHT_PROGBITS: u32 = 1;
pub(crate) const SHT_SYMTAB: u32 = 2;
pub(crate) const SHT_STRTAB: u32 = 3;
pub(crate) const SHT_RELA: u32 = 4;
pub(crate) const SHT_NOBITS: u32 = 8;
pub(crate) const SHT_REL: u32 = 9;
pub(crate) const SHT_GROUP: u32 = 17;
pub(crate) const SHF_EXECINSTR: u64 = 4;
const SHF_INFO_LINK: u64 = 0x40;

const ET_REL: u16 = 1;
const SHF_WRITE: u64 = 1;
const SHF_ALLOC: u64 = 2;
/// Flags of sections of data, of constants and of instructions.
pub(crate) const DATA_FLAGS: u64 = SHF_WRITE | SHF_ALLOC;
pub(crate) const CONSTANT_FLAGS: u64 = SHF_ALLOC;
pub(crate) const CODE_FLAGS: u64 = SHF_ALLOC | SHF_EXECINSTR;
pub(crate) const STT_OBJECT: u8 = 1;
pub(crate) const STT_NOTYPE: u8 = 0;
pub(crate) const STT_FUNC: u8 = 2;
pub(crate) const STT_SECTION: u8 = 3;
pub(crate) const STB_LOCAL: u8 = 0;
pub(crate) const STB_GLOBAL: u8 = 1;
pub(crate) const STB_WEAK: u8 = 2;
const SHN_LORESERVE: u16 = 0xff00;
const SHN_XINDEX: u16 = 0xffff;

const EM_NONE: u16 = 0;
const EM_BPF: u16 = 247;

const HEADER: usize = 64;
const SECTION_HEADER: usize = 64;
const SYMBOL: usize = 24;
const REL: usize = 16;
const RELA: usize = 24;

/// A section.
#[derive(Clone, Debug, Default)]
pub(crate) struct ElfSection {
    pub(crate) name: String,
    name_offset: u32,
    pub(crate) kind: u32,
    pub(crate) flags: u64,
    addr: u64,
    /// Size in bytes: of the data, or of a section without data (`.bss`).
    pub(crate) size: u64,
    pub(crate) link: u32,
    pub(crate) info: u32,
    pub(crate) align: u64,
    entry_size: u64,
    pub(crate) data: Vec<u8>,
    pub(crate) deleted: bool,
}

impl ElfSection {
    /// Returns true if it holds instructions. As for libbpf, a section that has a meaning by its name has no
    /// other, whatever its flags.
    pub(crate) fn is_code(&self) -> bool {
        const NAMED: [&str; 6] = ["license", "version", "maps", ".maps", ".BTF", ".BTF.ext"];
        self.kind == SHT_PROGBITS
            && self.flags & SHF_EXECINSTR != 0
            && !NAMED.contains(&self.name.as_str())
            && !self.name.starts_with("maps/")
    }

    /// Returns true if it states places of instructions for debuggers, which will be wrong. The name alone
    /// does not decide: sections that are read for another purpose stay.
    pub(crate) fn is_stale(&self) -> bool {
        const DEBUGGING: [&str; 3] = [".debug_", ".zdebug_", ".eh_frame"];
        let dwarf = DEBUGGING.iter().any(|start| self.name.starts_with(start));
        dwarf && !self.is_code() && !matches!(self.kind, SHT_SYMTAB | SHT_STRTAB)
    }

    pub(crate) fn is_relocations(&self) -> bool {
        matches!(self.kind, SHT_REL | SHT_RELA)
    }

    pub(crate) fn set_data(&mut self, data: Vec<u8>) {
        self.size = data.len() as u64;
        self.data = data;
    }
}

/// A symbol.
#[derive(Clone, Debug, Default)]
pub(crate) struct ElfSymbol {
    pub(crate) name: String,
    name_offset: u32,
    info: u8,
    other: u8,
    /// Section number, or a reserved value: see [`ElfSymbol::section`].
    shndx: u16,
    pub(crate) value: u64,
    pub(crate) size: u64,
    pub(crate) deleted: bool,
}

impl ElfSymbol {
    pub(crate) fn kind(&self) -> u8 {
        self.info & 0xf
    }

    pub(crate) fn binding(&self) -> u8 {
        self.info >> 4
    }

    /// Returns true if its visibility is hidden or internal: static, as far as the kernel is concerned.
    pub(crate) fn is_hidden(&self) -> bool {
        matches!(self.other & 3, 1 | 2)
    }

    /// The section it is defined in.
    pub(crate) fn section(&self) -> Option<usize> {
        (self.shndx != 0 && self.shndx < SHN_LORESERVE).then_some(usize::from(self.shndx))
    }

    pub(crate) fn is_undefined(&self) -> bool {
        self.shndx == 0
    }
}

/// A relocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ElfRelocation {
    pub(crate) offset: u64,
    pub(crate) symbol: usize,
    pub(crate) kind: u32,
    pub(crate) addend: i64,
}

/// A file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Elf {
    header: Vec<u8>,
    /// Byte order of the file, and of the machine that it is for.
    pub(crate) order: ByteOrder,
    names: usize,
    pub(crate) sections: Vec<ElfSection>,
    pub(crate) symbols: Vec<ElfSymbol>,
    symbol_table: usize,
}

/// Bytes with a place for messages; reads outside are errors.
#[derive(Clone, Copy)]
struct ElfBytes<'a> {
    data: &'a [u8],
    order: ByteOrder,
    part: ElfPart,
}

impl<'a> ElfBytes<'a> {
    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], ObjectError> {
        let bytes = at.checked_add(N).and_then(|end| self.data.get(at..end));
        let bytes = bytes.and_then(|b| b.try_into().ok());
        bytes.ok_or(ObjectError::Truncated { part: self.part, at, need: N, have: self.data.len() })
    }
    fn u16(&self, at: usize) -> Result<u16, ObjectError> {
        self.array::<2>(at).map(|bytes| self.order.number(&bytes) as u16)
    }
    fn u32(&self, at: usize) -> Result<u32, ObjectError> {
        self.array::<4>(at).map(|bytes| self.order.number(&bytes) as u32)
    }
    fn u64(&self, at: usize) -> Result<u64, ObjectError> {
        self.array::<8>(at).map(|bytes| self.order.number(&bytes))
    }
}

/// The string at `offset` of a string table; bytes that are not UTF-8 are replaced, as are those that would
/// end a line of a report.
fn string(table: &[u8], offset: u32) -> String {
    let rest = table.get(offset as usize..).unwrap_or_default();
    let text = rest.split(|b| *b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).replace(['\n', '\r', '\t', '\x0b', '\x0c'], "?")
}

impl Elf {
    /// A file without sections of its own: only symbols and names.
    pub(crate) fn empty(order: ByteOrder) -> Elf {
        let mut header = vec![0; HEADER];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        if order == ByteOrder::Big {
            header[5] = 2;
        }
        let halves = [(16, ET_REL), (18, EM_BPF), (20, 1), (52, HEADER as u16), (58, SECTION_HEADER as u16)];
        for (at, half) in halves {
            let at = if order == ByteOrder::Big && at == 20 { 22 } else { at };
            order.put(u64::from(half), &mut header[at..at + 2]);
        }
        let mut elf = Elf { header, order, names: 1, symbol_table: 2, ..Elf::default() };
        elf.sections.push(ElfSection::default());
        let strings =
            ElfSection { kind: SHT_STRTAB, align: 1, data: vec![0], size: 1, ..ElfSection::default() };
        elf.sections.push(strings);
        let symbols = ElfSection {
            kind: SHT_SYMTAB,
            link: 1,
            align: 8,
            entry_size: SYMBOL as u64,
            ..ElfSection::default()
        };
        elf.sections.push(symbols);
        for (n, name) in [(1, ".strtab"), (2, ".symtab")] {
            elf.sections[n].name_offset = elf.add_name(name);
            name.clone_into(&mut elf.sections[n].name);
        }
        elf.symbols.push(ElfSymbol::default());
        elf
    }

    /// Adds a string to the table of names.
    fn add_name(&mut self, name: &str) -> u32 {
        let table = &mut self.sections[self.names];
        let at = table.data.len() as u32;
        let mut data = std::mem::take(&mut table.data);
        data.extend(name.bytes().filter(|b| *b != 0).chain([0]));
        table.set_data(data);
        at
    }

    /// Adds a section of a file that [`Elf::empty`] began; gives its number.
    pub(crate) fn add_section(&mut self, name: &str, kind: u32, flags: u64, data: Vec<u8>) -> usize {
        let name_offset = self.add_name(name);
        let (name, size) = (name.to_owned(), data.len() as u64);
        let section =
            ElfSection { name, name_offset, kind, flags, size, align: 8, data, ..ElfSection::default() };
        self.sections.push(section);
        self.sections.len() - 1
    }

    /// Adds a symbol of a file that [`Elf::empty`] began; gives its number.
    pub(crate) fn add_symbol(
        &mut self,
        name: &str,
        (binding, kind): (u8, u8),
        place: (usize, u64),
        size: u64,
    ) -> usize {
        let name_offset = self.add_name(name);
        self.symbols.push(ElfSymbol {
            name: name.to_owned(),
            name_offset,
            info: binding << 4 | kind,
            shndx: place.0 as u16,
            value: place.1,
            size,
            ..ElfSymbol::default()
        });
        self.symbols.len() - 1
    }

    pub(crate) fn parse(file: &[u8]) -> Result<Elf, ObjectError> {
        let order = byte_order(file)?;
        let head = ElfBytes { data: file, order, part: ElfPart::Header };
        check_machine(&head)?;
        let mut elf = Elf { header: file[..HEADER].to_vec(), order, ..Elf::default() };
        let (table, entry, count) = (head.u64(40)?, head.u16(58)?, head.u16(60)?);
        elf.names = usize::from(head.u16(62)?);
        if usize::from(entry) != SECTION_HEADER || count == 0 {
            return Err(ObjectError::BadElf("it has no table of sections of the right shape"));
        }
        let mut total = 0u64;
        for n in 0..usize::from(count) {
            let section = read_section(file, order, table, n)?;
            total = total.saturating_add(section.data.len() as u64);
            if total > file.len() as u64 {
                return Err(ObjectError::BadElf("its sections overlap"));
            }
            elf.sections.push(section);
        }
        elf.check_table()?;
        elf.name_sections()?;
        elf.read_symbols()?;
        Ok(elf)
    }

    /// Checks the first entry of the table of sections, and the table of their names: writing numbers
    /// sections anew and relies on both.
    fn check_table(&self) -> Result<(), ObjectError> {
        if self.sections.first().is_none_or(|s| s.kind != SHT_NULL) {
            return Err(ObjectError::BadElf("its first section is not the empty one"));
        }
        let names = self.sections.get(self.names);
        if names.is_none_or(|s| !matches!(s.kind, SHT_STRTAB | SHT_NULL)) {
            return Err(ObjectError::BadElf("the names of its sections are in no table of strings"));
        }
        Ok(())
    }

    /// Name lookups are bounded by the file's size each; a hostile file may share one long name among all
    /// sections.
    fn name_sections(&mut self) -> Result<(), ObjectError> {
        let table = self.sections.get(self.names).map(|s| s.data.clone()).unwrap_or_default();
        let mut budget = NAMES_LIMIT;
        for s in &mut self.sections {
            s.name = limited(string(&table, s.name_offset), &mut budget)?;
        }
        Ok(())
    }

    fn read_symbols(&mut self) -> Result<(), ObjectError> {
        let Some(table) = self.sections.iter().position(|s| s.kind == SHT_SYMTAB) else { return Ok(()) };
        if self.sections.iter().filter(|s| s.kind == SHT_SYMTAB).count() > 1 {
            return Err(ObjectError::BadElf("it has several symbol tables"));
        }
        let section = &self.sections[table];
        let strings = self.sections.get(section.link as usize).filter(|s| s.kind == SHT_STRTAB);
        let strings = strings.ok_or(ObjectError::BadElf("its symbol table has no string table"))?;
        let mut budget = NAMES_LIMIT;
        let mut symbols = Vec::with_capacity(section.data.len() / SYMBOL);
        for n in 0..section.data.len() / SYMBOL {
            let mut symbol = read_symbol(&section.data, self.order, n)?;
            if symbol.shndx == SHN_XINDEX
                || usize::from(symbol.shndx) >= self.sections.len() && symbol.shndx < SHN_LORESERVE
            {
                return Err(ObjectError::BadSymbol {
                    symbol: n,
                    what: "is in a section that does not exist",
                });
            }
            symbol.name = limited(string(&strings.data, symbol.name_offset), &mut budget)?;
            if symbol.kind() == STT_SECTION && symbol.name.is_empty() {
                symbol.name = symbol.section().map(|s| self.sections[s].name.clone()).unwrap_or_default();
            }
            symbols.push(symbol);
        }
        self.symbols = symbols;
        self.symbol_table = table;
        Ok(())
    }

    /// The number of the first section of this name that holds data, and not a table of the file's own.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.sections.iter().position(|s| s.name == name && s.kind == SHT_PROGBITS)
    }

    /// The relocations in a section of relocations.
    pub(crate) fn relocations(&self, section: usize) -> Result<Vec<ElfRelocation>, ObjectError> {
        let s = &self.sections[section];
        let (size, part) = if s.kind == SHT_RELA { (RELA, true) } else { (REL, false) };
        let bytes = ElfBytes { data: &s.data, order: self.order, part: ElfPart::Section(section) };
        if !s.data.len().is_multiple_of(size) {
            return Err(ObjectError::BadSection {
                section: s.name.clone(),
                what: "is not a whole number of relocations".into(),
            });
        }
        (0..s.data.len() / size)
            .map(|n| {
                let at = n * size;
                let info = bytes.u64(at + 8)?;
                let symbol = (info >> 32) as usize;
                if symbol >= self.symbols.len() {
                    return Err(ObjectError::BadSymbol {
                        symbol,
                        what: "is used by a relocation and does not exist",
                    });
                }
                let addend = if part { bytes.u64(at + 16)? as i64 } else { 0 };
                Ok(ElfRelocation { offset: bytes.u64(at)?, symbol, kind: info as u32, addend })
            })
            .collect()
    }

    /// Sets a section's relocations, in the form without addends where there are none.
    pub(crate) fn set_relocations(&mut self, section: usize, relocs: &[ElfRelocation]) {
        let addends = relocs.iter().any(|r| r.addend != 0);
        let size = if addends { RELA } else { REL };
        let mut data = Vec::with_capacity(relocs.len() * size);
        for r in relocs {
            data.extend(self.order.bytes_of_u64(r.offset));
            data.extend(self.order.bytes_of_u64((r.symbol as u64) << 32 | u64::from(r.kind)));
            if addends {
                data.extend(self.order.bytes_of_u64(r.addend as u64));
            }
        }
        let s = &mut self.sections[section];
        s.kind = if addends { SHT_RELA } else { SHT_REL };
        s.entry_size = size as u64;
        s.set_data(data);
    }

    /// Adds an empty section of relocations for section `target`.
    pub(crate) fn add_relocation_section(&mut self, target: usize) -> Result<usize, ObjectError> {
        let name = format!(".rel{}", self.sections[target].name);
        let table = self.sections.get_mut(self.names).filter(|s| s.kind == SHT_STRTAB);
        let table = table.ok_or(ObjectError::Unwritable("it has no table of section names".into()))?;
        let name_offset = u32::try_from(table.data.len()).unwrap_or(u32::MAX);
        let mut names = std::mem::take(&mut table.data);
        names.extend(name.as_bytes());
        names.push(0);
        table.set_data(names);
        self.sections.push(ElfSection {
            name,
            name_offset,
            kind: SHT_REL,
            flags: SHF_INFO_LINK,
            link: self.symbol_table as u32,
            info: target as u32,
            align: 8,
            ..ElfSection::default()
        });
        Ok(self.sections.len() - 1)
    }

    /// The symbol that stands for a section; made if there is none. Numbers of symbols stay valid: a new one
    /// is put last here, and among the local ones when written.
    pub(crate) fn section_symbol(&mut self, section: usize) -> usize {
        let found = |s: &ElfSymbol| s.kind() == STT_SECTION && s.section() == Some(section) && !s.deleted;
        if let Some(n) = self.symbols.iter().position(found) {
            return n;
        }
        self.symbols.push(ElfSymbol {
            name: self.sections[section].name.clone(),
            info: STB_LOCAL << 4 | STT_SECTION,
            shndx: section as u16,
            ..ElfSymbol::default()
        });
        self.symbols.len() - 1
    }

    /// The file. Relocations of sections and symbols that are deleted must have been deleted too.
    pub(crate) fn write(&self) -> Result<Vec<u8>, ObjectError> {
        let mut out = ElfWriter::new(self);
        let mut sections = self.sections.clone();
        out.write_symbols(&mut sections);
        out.renumber_relocations(&mut sections)?;
        out.finish(&sections)
    }
}

/// Bytes of names in one table. The longest real tables, of objects with many templates, are below 1 MiB.
const NAMES_LIMIT: usize = 64 << 20;

fn limited(name: String, budget: &mut usize) -> Result<String, ObjectError> {
    *budget = budget.checked_sub(name.len()).ok_or(ObjectError::BadElf("its names are too long"))?;
    Ok(name)
}

/// Byte order of a file with a whole header.
fn byte_order(file: &[u8]) -> Result<ByteOrder, ObjectError> {
    if !file.starts_with(b"\x7fELF") {
        return Err(ObjectError::NotElf);
    }
    let head = ElfBytes { data: file, order: ByteOrder::Little, part: ElfPart::Header };
    let header: [u8; HEADER] = head.array(0)?;
    if header[4] != 2 {
        return Err(ObjectError::BadElf("it is a 32-bit file"));
    }
    match header[5] {
        1 => Ok(ByteOrder::Little),
        2 => Ok(ByteOrder::Big),
        _ => Err(ObjectError::BadElf("its byte order is neither of the two")),
    }
}

fn check_machine(head: &ElfBytes<'_>) -> Result<(), ObjectError> {
    match head.u16(18)? {
        // Compilers of before 2016 had no number for BPF.
        EM_BPF | EM_NONE => Ok(()),
        machine => Err(ObjectError::NotBpf(machine)),
    }
}

fn read_section(file: &[u8], order: ByteOrder, table: u64, n: usize) -> Result<ElfSection, ObjectError> {
    let bytes = ElfBytes { data: file, order, part: ElfPart::SectionTable };
    let outside = ObjectError::BadElf("its table of sections lies outside the file");
    let at = usize::try_from(table).ok().and_then(|t| t.checked_add(n * SECTION_HEADER)).ok_or(outside)?;
    let mut s = ElfSection {
        name_offset: bytes.u32(at)?,
        kind: bytes.u32(at + 4)?,
        flags: bytes.u64(at + 8)?,
        addr: bytes.u64(at + 16)?,
        size: bytes.u64(at + 32)?,
        link: bytes.u32(at + 40)?,
        info: bytes.u32(at + 44)?,
        align: bytes.u64(at + 48)?,
        entry_size: bytes.u64(at + 56)?,
        ..ElfSection::default()
    };
    if s.kind != SHT_NOBITS && s.kind != 0 {
        let offset = bytes.u64(at + 24)?;
        let range = usize::try_from(offset).ok().zip(usize::try_from(s.size).ok());
        let data = range.and_then(|(o, len)| file.get(o..o.checked_add(len)?));
        let data = data.ok_or(ObjectError::SectionOutside { section: n, offset, size: s.size })?;
        s.data = data.to_vec();
    }
    Ok(s)
}

fn read_symbol(table: &[u8], order: ByteOrder, n: usize) -> Result<ElfSymbol, ObjectError> {
    let bytes = ElfBytes { data: table, order, part: ElfPart::Symbols };
    let at = n * SYMBOL;
    let [info, other] = bytes.array(at + 4)?;
    Ok(ElfSymbol {
        name: String::new(),
        name_offset: bytes.u32(at)?,
        info,
        other,
        shndx: bytes.u16(at + 6)?,
        value: bytes.u64(at + 8)?,
        size: bytes.u64(at + 16)?,
        deleted: false,
    })
}

/// Renumbers and lays out.
struct ElfWriter<'a> {
    elf: &'a Elf,
    /// New number of each section that stays.
    section_numbers: Vec<Option<u16>>,
    /// New number of each symbol that stays.
    symbol_numbers: Vec<Option<u32>>,
}

impl<'a> ElfWriter<'a> {
    fn new(elf: &'a Elf) -> ElfWriter<'a> {
        let mut next = 0u16;
        let section_numbers = elf.sections.iter().map(|s| {
            (!s.deleted).then(|| {
                next += 1;
                next - 1
            })
        });
        ElfWriter {
            elf,
            section_numbers: section_numbers.collect(),
            symbol_numbers: vec![None; elf.symbols.len()],
        }
    }

    /// Local symbols come first, as the format demands; otherwise order is kept.
    fn write_symbols(&mut self, sections: &mut [ElfSection]) {
        if self.elf.symbols.is_empty() {
            return;
        }
        let stays =
            |s: &ElfSymbol| !s.deleted && s.section().is_none_or(|n| self.section_numbers[n].is_some());
        let local = |s: &ElfSymbol| s.binding() == STB_LOCAL;
        let all = self.elf.symbols.iter().enumerate().filter(|(_, s)| stays(s));
        let (locals, others): (Vec<_>, Vec<_>) = all.partition(|(_, s)| local(s));
        let order = self.elf.order;
        let mut data = Vec::new();
        for (new, (old, s)) in locals.iter().chain(&others).enumerate() {
            self.symbol_numbers[*old] = Some(new as u32);
            let shndx = s.section().and_then(|n| self.section_numbers[n]).unwrap_or(s.shndx);
            data.extend(order.bytes_of_u32(s.name_offset));
            data.extend([s.info, s.other]);
            data.extend(order.bytes_of_u16(shndx));
            data.extend(order.bytes_of_u64(s.value));
            data.extend(order.bytes_of_u64(s.size));
        }
        let table = &mut sections[self.elf.symbol_table];
        table.set_data(data);
        table.info = locals.len() as u32;
    }

    fn renumber_relocations(&self, sections: &mut [ElfSection]) -> Result<(), ObjectError> {
        let order = self.elf.order;
        for s in sections.iter_mut().filter(|s| s.is_relocations() && !s.deleted) {
            let size = if s.kind == SHT_RELA { RELA } else { REL };
            for r in s.data.chunks_exact_mut(size) {
                let info = order.number(&r[8..16]);
                let Some(new) = self.symbol_numbers.get((info >> 32) as usize).copied() else { continue };
                let gone =
                    || ObjectError::Unwritable(format!("{} refers to a symbol that was removed", s.name));
                let info = u64::from(new.ok_or_else(gone)?) << 32 | u64::from(info as u32);
                order.put(info, &mut r[8..16]);
            }
        }
        Ok(())
    }

    fn renumber(&self, section: u32) -> u32 {
        self.section_numbers.get(section as usize).copied().flatten().map_or(0, u32::from)
    }

    fn finish(&self, sections: &[ElfSection]) -> Result<Vec<u8>, ObjectError> {
        let order = self.elf.order;
        let mut out = self.elf.header.clone();
        let mut headers = Vec::new();
        for s in sections.iter().filter(|s| !s.deleted) {
            let align = s.align.clamp(1, 4096) as usize;
            while !out.len().is_multiple_of(align) {
                out.push(0);
            }
            let info_is_section = s.is_relocations() || s.flags & SHF_INFO_LINK != 0;
            let info = if info_is_section { self.renumber(s.info) } else { s.info };
            let offset = if s.kind == 0 { 0 } else { out.len() as u64 };
            headers.extend([s.name_offset, s.kind].map(|field| order.bytes_of_u32(field)).concat());
            let place = [s.flags, s.addr, offset, s.size];
            headers.extend(place.map(|field| order.bytes_of_u64(field)).concat());
            headers.extend([self.renumber(s.link), info].map(|field| order.bytes_of_u32(field)).concat());
            headers.extend([s.align, s.entry_size].map(|field| order.bytes_of_u64(field)).concat());
            out.extend(&s.data);
        }
        while !out.len().is_multiple_of(8) {
            out.push(0);
        }
        let count = (headers.len() / SECTION_HEADER) as u16;
        let names = self.section_numbers.get(self.elf.names).copied().flatten().unwrap_or(0);
        let table = out.len() as u64;
        out.extend(headers);
        // No program headers: an object file has none, or they describe the old layout.
        out[32..40].fill(0);
        out[54..58].fill(0);
        order.put(table, &mut out[40..48]);
        order.put(count.into(), &mut out[60..62]);
        order.put(names.into(), &mut out[62..64]);
        Ok(out)
    }
}
