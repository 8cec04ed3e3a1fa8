//! An object file from LLVM as one position-independent block of bytes.
//!
//! Code is position-independent, so all distances inside are known; each function outside is called through a
//! slot, which holds its address once the block is in a process. Source: System V ABI for x86-64, 4.4; ELF
//! gABI.

use super::errors::ImageLinkError;
use super::imported_function::ImportedFunction;

const SHT_SYMTAB: u32 = 2;
pub(super) const SHT_RELA: u32 = 4;
const SHT_NOBITS: u32 = 8;
const SHF_ALLOC: u64 = 2;
const SHN_UNDEF: u16 = 0;
const R_PC32: u32 = 2;
const R_PLT32: u32 = 4;
const R_GOTPCREL: [u32; 3] = [9, 41, 42];
/// `jmp *slot(%rip)`, with its distance, and padding.
const STUB: [u8; 8] = [0xff, 0x25, 0, 0, 0, 0, 0xcc, 0xcc];

/// A block of code, its imports, and the offsets of the requested symbols.
pub(super) struct LinkedBlock {
    pub(super) code: Vec<u8>,
    pub(super) imports: Vec<ImportedFunction>,
    pub(super) places: Vec<u64>,
    /// Offset of the machine code.
    pub(super) text: u64,
}

/// Little-endian fields of an ELF file.
#[derive(Clone, Copy)]
pub(super) struct ElfFieldReader<'b>(pub(super) &'b [u8]);

impl<'b> ElfFieldReader<'b> {
    pub(super) fn part(self, at: u64, len: u64) -> Result<&'b [u8], ImageLinkError> {
        let (at, len) = (at as usize, len as usize);
        at.checked_add(len).and_then(|end| self.0.get(at..end)).ok_or(ImageLinkError::Malformed)
    }

    pub(super) fn number<const N: usize>(self, at: u64) -> Result<u64, ImageLinkError> {
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(self.part(at, N as u64)?);
        Ok(u64::from_le_bytes(wide))
    }

    fn text(self, at: u64) -> Result<&'b str, ImageLinkError> {
        let rest = self.0.get(at as usize..).ok_or(ImageLinkError::Malformed)?;
        let len = rest.iter().position(|b| *b == 0).ok_or(ImageLinkError::Malformed)?;
        std::str::from_utf8(&rest[..len]).map_err(|_| ImageLinkError::Malformed)
    }
}

#[derive(Clone)]
pub(super) struct LinkSection<'b> {
    pub(super) name: &'b str,
    pub(super) kind: u32,
    flags: u64,
    pub(super) offset: u64,
    pub(super) size: u64,
    link: u64,
    pub(super) info: u64,
    align: u64,
    /// Offset in the block, if it is part of it.
    place: Option<u64>,
}

pub(super) struct LinkSymbol<'b> {
    pub(super) name: &'b str,
    /// `STT_*`.
    pub(super) kind: u8,
    pub(super) section: u16,
    pub(super) value: u64,
}

/// Lays out an object's code and constants, and resolves all references inside.
pub(super) fn link(object: &[u8], wanted: &[String]) -> Result<LinkedBlock, ImageLinkError> {
    let elf = ElfFieldReader(object);
    let mut sections = sections(elf)?;
    let mut code = Vec::new();
    for section in sections.iter_mut().filter(|s| s.flags & SHF_ALLOC != 0 && s.name != ".eh_frame") {
        code.resize(code.len().next_multiple_of(section.align.clamp(1, 4096) as usize), 0);
        section.place = Some(code.len() as u64);
        match section.kind {
            SHT_NOBITS => code.resize(code.len() + section.size as usize, 0),
            _ => code.extend_from_slice(elf.part(section.offset, section.size)?),
        }
    }
    let symbols = symbols(elf, &sections)?;
    let place = |symbol: &LinkSymbol<'_>| {
        let section = sections.get(usize::from(symbol.section))?;
        Some(section.place? + symbol.value)
    };
    let mut linker = ImageLinker { elf, code, slots: Vec::new() };
    linker.code.resize(linker.code.len().next_multiple_of(8), 0);
    for section in sections.iter().filter(|s| s.kind == SHT_RELA) {
        let Some(base) = sections.get(section.info as usize).and_then(|s| s.place) else { continue };
        for at in (section.offset..section.offset + section.size).step_by(24) {
            linker.relocate(at, base, &symbols, &place)?;
        }
    }
    let find = |name: &String| {
        let symbol = symbols.iter().find(|s| s.name == name && s.section != SHN_UNDEF);
        symbol.and_then(place).ok_or_else(|| ImageLinkError::Missing(name.clone()))
    };
    let places = wanted.iter().map(find).collect::<Result<_, _>>()?;
    let imports =
        linker.slots.into_iter().map(|(symbol, at)| ImportedFunction { symbol, at: at + 8 }).collect();
    let text = sections.iter().find(|s| s.name == ".text").and_then(|s| s.place).unwrap_or(0);
    Ok(LinkedBlock { code: linker.code, imports, places, text })
}

pub(super) fn sections(elf: ElfFieldReader<'_>) -> Result<Vec<LinkSection<'_>>, ImageLinkError> {
    let (table, size) = (elf.number::<8>(0x28)?, elf.number::<2>(0x3a)?);
    let (count, names) = (elf.number::<2>(0x3c)?, elf.number::<2>(0x3e)?);
    let names = elf.number::<8>(table + names * size + 0x18)?;
    (0..count)
        .map(|at| {
            let at = table + at * size;
            Ok(LinkSection {
                name: elf.text(names + elf.number::<4>(at)?)?,
                kind: elf.number::<4>(at + 4)? as u32,
                flags: elf.number::<8>(at + 8)?,
                offset: elf.number::<8>(at + 0x18)?,
                size: elf.number::<8>(at + 0x20)?,
                link: elf.number::<4>(at + 0x28)?,
                info: elf.number::<4>(at + 0x2c)?,
                align: elf.number::<8>(at + 0x30)?,
                place: None,
            })
        })
        .collect()
}

pub(super) fn symbols<'b>(
    elf: ElfFieldReader<'b>,
    sections: &[LinkSection<'b>],
) -> Result<Vec<LinkSymbol<'b>>, ImageLinkError> {
    let table = sections.iter().find(|s| s.kind == SHT_SYMTAB).ok_or(ImageLinkError::Malformed)?;
    let names = sections.get(table.link as usize).ok_or(ImageLinkError::Malformed)?.offset;
    (table.offset..table.offset + table.size)
        .step_by(24)
        .map(|at| {
            Ok(LinkSymbol {
                name: elf.text(names + elf.number::<4>(at)?)?,
                kind: elf.number::<1>(at + 4)? as u8 & 0xf,
                section: elf.number::<2>(at + 6)? as u16,
                value: elf.number::<8>(at + 8)?,
            })
        })
        .collect()
}

struct ImageLinker<'b> {
    elf: ElfFieldReader<'b>,
    code: Vec<u8>,
    /// Imported symbols, and the offsets of their stubs; the slot is behind the stub.
    slots: Vec<(String, u64)>,
}

impl ImageLinker<'_> {
    /// The stub of an external symbol.
    fn stub(&mut self, name: &str) -> u64 {
        if let Some((_, at)) = self.slots.iter().find(|(known, _)| known == name) {
            return *at;
        }
        let at = self.code.len() as u64;
        let mut stub = STUB;
        // Relative to the end of the six-byte jump; the slot follows the stub.
        stub[2..6].copy_from_slice(&2u32.to_le_bytes());
        self.code.extend_from_slice(&stub);
        self.code.extend_from_slice(&[0; 8]);
        self.slots.push((name.to_owned(), at));
        at
    }

    /// Resolves the relocation at `at`, of the section at `base`.
    fn relocate(
        &mut self,
        at: u64,
        base: u64,
        symbols: &[LinkSymbol<'_>],
        place: &dyn Fn(&LinkSymbol<'_>) -> Option<u64>,
    ) -> Result<(), ImageLinkError> {
        let elf = self.elf;
        let (offset, kind) = (elf.number::<8>(at)?, elf.number::<4>(at + 8)? as u32);
        let (symbol, addend) = (elf.number::<4>(at + 12)?, elf.number::<8>(at + 16)?);
        let symbol = symbols.get(symbol as usize).ok_or(ImageLinkError::Malformed)?;
        let from = base + offset;
        let outside = symbol.section == SHN_UNDEF;
        let to = match kind {
            R_PC32 | R_PLT32 if outside => self.stub(symbol.name),
            R_PC32 | R_PLT32 => place(symbol).ok_or(ImageLinkError::Malformed)?,
            kind if R_GOTPCREL.contains(&kind) && outside => self.stub(symbol.name) + STUB.len() as u64,
            kind => return Err(ImageLinkError::Relocation { kind, symbol: symbol.name.to_owned() }),
        };
        let distance = to.wrapping_add(addend).wrapping_sub(from) as u32;
        let field = self.code.get_mut(from as usize..from as usize + 4).ok_or(ImageLinkError::Malformed)?;
        field.copy_from_slice(&distance.to_le_bytes());
        Ok(())
    }
}
