//! Why an object was refused, and where.

use millstream_btf::BtfError;
use std::fmt;
use thiserror::Error;

/// A part of an ELF file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ElfPart {
    /// The header at its start.
    Header,
    /// The table of sections.
    SectionTable,
    /// The symbol table.
    Symbols,
    /// The section of this number.
    Section(usize),
}

impl fmt::Display for ElfPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ElfPart::Header => f.write_str("the header"),
            ElfPart::SectionTable => f.write_str("the table of sections"),
            ElfPart::Symbols => f.write_str("the symbol table"),
            ElfPart::Section(n) => write!(f, "section {n}"),
        }
    }
}

/// Why an object was refused or cannot be written. Offsets are in bytes from the start of the part named.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ObjectError {
    /// The file does not start as ELF files do.
    #[error("not an ELF file")]
    NotElf,
    /// It is for another machine.
    #[error("an ELF file for machine {0}, not for BPF (247)")]
    NotBpf(u16),
    /// It is of a kind that this crate knows and does not read.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// It ends inside something.
    #[error("{part}: {need} bytes at offset {at:#x} are needed, it has {have}")]
    Truncated {
        /// Part of the file.
        part: ElfPart,
        /// Offset of the part that is cut off.
        at: usize,
        /// Number of bytes needed.
        need: usize,
        /// Number of bytes available.
        have: usize,
    },
    /// It contradicts itself.
    #[error("not a BPF object file: {0}")]
    BadElf(&'static str),
    /// A section is not inside the file.
    #[error("section {section} ({size} bytes at offset {offset:#x}) lies outside the file")]
    SectionOutside {
        /// Its number.
        section: usize,
        /// Offset in the file.
        offset: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// A symbol is wrong.
    #[error("symbol {symbol} {what}")]
    BadSymbol {
        /// Its number.
        symbol: usize,
        /// Error in it.
        what: &'static str,
    },
    /// A section's contents are wrong.
    #[error("section {section}: {what}")]
    BadSection {
        /// Its name.
        section: String,
        /// Error in it.
        what: String,
    },
    /// A relocation is wrong, or of a kind that BPF loaders do not know.
    #[error("relocation of {section} at offset {offset:#x}: {what}")]
    BadRelocation {
        /// The section that is relocated.
        section: String,
        /// Offset in it.
        offset: u64,
        /// Error in it.
        what: String,
    },
    /// A map's definition is wrong.
    #[error("map {map} in section {section}: {what}")]
    BadMap {
        /// Its name.
        map: String,
        /// The section that defines it.
        section: String,
        /// Error in it.
        what: String,
    },
    /// A text file that belongs to a raw program is wrong.
    #[error("{file} file, line {line}: {what}")]
    BadText {
        /// Its ending: `.maps` or `.desc`.
        file: &'static str,
        /// The line, from 1.
        line: usize,
        /// Error in it.
        what: String,
    },
    /// Types are needed and the object has none.
    #[error("section {0} is described by BTF, and the object has none")]
    NeedsBtf(&'static str),
    /// The types are wrong.
    #[error("section {section}: {error}")]
    Btf {
        /// `.BTF` or `.BTF.ext`.
        section: &'static str,
        /// Error in them.
        #[source]
        error: BtfError,
    },
    /// A function's new contents are wrong.
    #[error("function {function}, instruction {insn}: {what}")]
    BadFunction {
        /// Its name.
        function: String,
        /// The instruction, in slots.
        insn: u32,
        /// Error in them.
        what: String,
    },
    /// A function is left as it is, because it is not understood.
    #[error("function {function} is not understood: {what}")]
    NotUnderstood {
        /// Its name.
        function: String,
        /// Part that is not understood.
        what: String,
    },
    /// The object cannot be written.
    #[error("the object cannot be written: {0}")]
    Unwritable(String),
}
