//! The ELF object that a raw program would have come from: its section of instructions, legacy definitions of
//! its maps, a licence, and symbols and relocations between them.

use super::{RawMap, defaults};
use crate::codes::R_64_64;
use crate::elf::{SHF_EXECINSTR, SHT_PROGBITS, SHT_REL, SHT_STRTAB, SHT_SYMTAB, STB_GLOBAL, STT_FUNC};
use millstream_isa::RawInsn;

const STT_OBJECT: u8 = 1;
const SHF_WRITE_ALLOC: u64 = 3;
const SHF_ALLOC: u64 = 2;
const ET_REL: u16 = 1;
const EM_BPF: u16 = 247;

// Numbers of sections, in the order in which they are written.
const STRINGS: u16 = 1;
const CODE: u16 = 2;
const MAPS: u16 = 4;
const LICENSE: u16 = 5;
const SYMBOLS: u16 = 6;

/// Bytes of a map's definition in the kernel's samples: the last words are the number of the inner map and
/// the memory node.
const DEFINITION: usize = 28;

/// Parts of the object.
pub(super) struct ObjectParts<'a> {
    pub(super) name: &'a str,
    pub(super) section: &'a str,
    pub(super) insns: &'a [RawInsn],
    /// Instructions, each with the map that it refers to.
    pub(super) relocs: &'a [(u32, usize)],
    pub(super) maps: &'a [RawMap],
}

/// Strings, each ended by a zero.
struct StringTable(Vec<u8>);

impl StringTable {
    fn add(&mut self, text: &str) -> u32 {
        let at = self.0.len() as u32;
        self.0.extend(text.bytes().filter(|b| *b != 0).chain([0]));
        at
    }
}

/// A section's header, but for its place.
struct SectionHeader {
    name: u32,
    kind: u32,
    flags: u64,
    link: u32,
    info: u32,
    align: u64,
    entry: u64,
    data: Vec<u8>,
}

/// The object's bytes.
pub(super) fn image(parts: &ObjectParts<'_>) -> Vec<u8> {
    let mut strings = StringTable(vec![0]);
    let symbols = symbols(parts, &mut strings);
    let code = parts.insns.iter().flat_map(|i| i.to_bytes()).collect();
    let plain = |name, kind, flags, data| SectionHeader {
        name,
        kind,
        flags,
        link: 0,
        info: 0,
        align: 8,
        entry: 0,
        data,
    };
    let code_name = strings.add(parts.section);
    let maps = plain(strings.add("maps"), SHT_PROGBITS, SHF_WRITE_ALLOC, definitions(parts.maps));
    let license = plain(strings.add("license"), SHT_PROGBITS, SHF_WRITE_ALLOC, b"GPL\0".to_vec());
    let table = |name, kind, info, link, entry, data| SectionHeader {
        link,
        info,
        entry,
        ..plain(name, kind, 0, data)
    };
    let relocs_name = strings.add(&format!(".rel{}", parts.section));
    let relocs =
        table(relocs_name, SHT_REL, u32::from(CODE), u32::from(SYMBOLS), 16, relocations(parts.relocs));
    let symbols = table(strings.add(".symtab"), SHT_SYMTAB, 1, u32::from(STRINGS), 24, symbols);
    let strings_name = strings.add(".strtab");
    let sections = [
        plain(0, 0, 0, Vec::new()),
        plain(strings_name, SHT_STRTAB, 0, strings.0),
        plain(code_name, SHT_PROGBITS, SHF_EXECINSTR | SHF_ALLOC, code),
        relocs,
        maps,
        license,
        symbols,
    ];
    file(&sections)
}

fn symbols(parts: &ObjectParts<'_>, strings: &mut StringTable) -> Vec<u8> {
    let mut out = vec![0; 24];
    let mut add = |name: &str, kind: u8, section: u16, at: usize, size: usize| {
        out.extend(strings.add(name).to_le_bytes());
        out.extend([STB_GLOBAL << 4 | kind, 0]);
        out.extend(section.to_le_bytes());
        out.extend((at as u64).to_le_bytes());
        out.extend((size as u64).to_le_bytes());
    };
    for (n, map) in parts.maps.iter().enumerate() {
        add(&map.name, STT_OBJECT, MAPS, n * DEFINITION, DEFINITION);
    }
    // No size: what calls lead to are functions of their own.
    add(parts.name, STT_FUNC, CODE, 0, 0);
    add("_license", STT_OBJECT, LICENSE, 0, 4);
    out
}

fn definitions(maps: &[RawMap]) -> Vec<u8> {
    let mut out = Vec::with_capacity(maps.len() * DEFINITION);
    for (n, m) in maps.iter().enumerate() {
        let inner = defaults::inner(maps, n).map_or(u32::MAX, |i| i as u32);
        let flags = defaults::flags(m.map_type);
        for word in [m.map_type, m.key_size, m.value_size, m.max_entries, flags, inner, 0] {
            out.extend(word.to_le_bytes());
        }
    }
    out
}

fn relocations(relocs: &[(u32, usize)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(relocs.len() * 16);
    for (insn, map) in relocs {
        out.extend((u64::from(*insn) * 8).to_le_bytes());
        // Symbol 0 is the empty one, followed by the symbols of maps.
        out.extend(((*map as u64 + 1) << 32 | u64::from(R_64_64)).to_le_bytes());
    }
    out
}

fn file(sections: &[SectionHeader]) -> Vec<u8> {
    const HEADER: usize = 64;
    let mut out = vec![0; HEADER];
    let mut headers = Vec::new();
    for s in sections {
        out.resize(out.len().next_multiple_of(8), 0);
        let at = if s.kind == 0 { 0 } else { out.len() as u64 };
        headers.extend(s.name.to_le_bytes());
        headers.extend(s.kind.to_le_bytes());
        for field in [s.flags, 0, at, s.data.len() as u64] {
            headers.extend(field.to_le_bytes());
        }
        headers.extend(s.link.to_le_bytes());
        headers.extend(s.info.to_le_bytes());
        headers.extend(s.align.to_le_bytes());
        headers.extend(s.entry.to_le_bytes());
        out.extend(&s.data);
    }
    out.resize(out.len().next_multiple_of(8), 0);
    out[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    let table = (out.len() as u64).to_le_bytes();
    out[40..48].copy_from_slice(&table);
    let halves =
        [(16, ET_REL), (18, EM_BPF), (20, 1), (52, 64), (58, 64), (60, sections.len() as u16), (62, STRINGS)];
    for (at, half) in halves {
        out[at..at + 2].copy_from_slice(&half.to_le_bytes());
    }
    out.extend(headers);
    out
}
