//! The mapping from code to places of the program: reads the line table that LLVM writes.
//!
//! Lines are numbers that [`crate::emit`] gives to places; files and columns are ignored. Source: DWARF 4,
//! 6.2; System V ABI.

use serde::{Deserialize, Serialize};

use super::errors::ImageLinkError;
use super::link::{ElfFieldReader, SHT_RELA, sections, symbols};

/// `STT_FUNC`.
const FUNCTION: u8 = 2;
/// DWARF version that the code generator is asked for.
const VERSION: u64 = 4;
/// Standard opcodes with one operand that do not affect addresses and lines: `set_file`, `set_column`,
/// `set_isa`.
const IGNORED: [u8; 3] = [4, 5, 12];

/// Lines of code, by offset from the beginning of the code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LineTable {
    /// Size of the code, in bytes.
    pub(crate) size: u64,
    /// Offset from which on the line applies, and the line, 0 for none; ascending.
    rows: Vec<(u64, u32)>,
}

impl LineTable {
    /// Lines of an object file, and the offset in its code of the function `name`; empty without a line
    /// table.
    pub(crate) fn of_object(object: &[u8], name: &str) -> Result<(LineTable, u64), ImageLinkError> {
        let elf = ElfFieldReader(object);
        let sections = sections(elf)?;
        let at = |name: &str| sections.iter().position(|s| s.name == name);
        let text = at(".text").ok_or(ImageLinkError::Malformed)?;
        let symbols = symbols(elf, &sections)?;
        let here = || symbols.iter().filter(|s| usize::from(s.section) == text);
        let own = here().find(|s| s.name == name).ok_or_else(|| ImageLinkError::Missing(name.to_owned()))?;
        let mut lines = LineTable { size: sections[text].size, rows: Vec::new() };
        // Code without lines of its own must not inherit those of the function in front of it.
        lines.rows.extend(here().filter(|s| s.kind == FUNCTION).map(|s| (s.value, 0)));
        if let Some(table) = at(".debug_line") {
            let section = &sections[table];
            let mut relocations = Vec::new();
            for r in sections.iter().filter(|s| s.kind == SHT_RELA && s.info == table as u64) {
                for at in (r.offset..r.offset + r.size).step_by(24) {
                    let symbol =
                        symbols.get(elf.number::<4>(at + 12)? as usize).ok_or(ImageLinkError::Malformed)?;
                    let to = symbol.value.wrapping_add(elf.number::<8>(at + 16)?);
                    relocations.push((elf.number::<8>(at)?, to));
                }
            }
            let bytes = elf.part(section.offset, section.size)?;
            LineTableReader { bytes, at: 0, relocations: &relocations }.rows(&mut lines.rows)?;
        }
        // Stable: if several begin at one offset, the table's last row counts.
        lines.rows.sort_by_key(|(at, _)| *at);
        lines.rows.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                earlier.1 = later.1;
            }
            same
        });
        Ok((lines, own.value))
    }

    /// The line of the code at an offset.
    pub(crate) fn line(&self, offset: u64) -> Option<u32> {
        let behind = self.rows.partition_point(|(at, _)| *at <= offset);
        let (_, line) = self.rows.get(behind.checked_sub(1)?)?;
        (offset < self.size && *line != 0).then_some(*line)
    }
}

/// Reader of a line table.
struct LineTableReader<'t> {
    bytes: &'t [u8],
    at: usize,
    /// Addresses by the offset that they are relocated to.
    relocations: &'t [(u64, u64)],
}

impl LineTableReader<'_> {
    fn byte(&mut self) -> Result<u8, ImageLinkError> {
        let byte = *self.bytes.get(self.at).ok_or(ImageLinkError::Malformed)?;
        self.at += 1;
        Ok(byte)
    }

    fn number(&mut self, bytes: u32) -> Result<u64, ImageLinkError> {
        (0..bytes).try_fold(0, |number, at| Ok(number | u64::from(self.byte()?) << (8 * at)))
    }

    /// LEB128: the number, and the number of its bits that were read.
    fn leb(&mut self) -> Result<(u64, u32), ImageLinkError> {
        let (mut number, mut bits) = (0, 0);
        loop {
            let byte = self.byte()?;
            if bits < u64::BITS {
                number |= u64::from(byte & 0x7f) << bits;
                bits += 7;
            }
            if byte & 0x80 == 0 {
                return Ok((number, bits));
            }
        }
    }

    fn signed(&mut self) -> Result<i64, ImageLinkError> {
        let (number, bits) = self.leb()?;
        let unused = u64::BITS.saturating_sub(bits);
        Ok((number << unused) as i64 >> unused)
    }

    /// Reads all units.
    fn rows(mut self, rows: &mut Vec<(u64, u32)>) -> Result<(), ImageLinkError> {
        while self.at < self.bytes.len() {
            let length = self.number(4)? as usize;
            let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len());
            let end = end.ok_or(ImageLinkError::Malformed)?;
            if self.number(2)? != VERSION {
                return Err(ImageLinkError::Malformed);
            }
            let header = self.number(4)? as usize;
            let program = self.at + header;
            let least = u64::from(self.byte()?);
            // Operations per instruction, and the default for beginnings of statements.
            self.number(2)?;
            let (base, range, first) = (self.byte()? as i8, self.byte()?.max(1), self.byte()?);
            let mut operands = Vec::new();
            for _ in 1..first {
                operands.push(self.byte()?);
            }
            self.at = program;
            self.unit(end, &LineProgramHeader { least, base, range, first, operands }, rows)?;
            self.at = end;
        }
        Ok(())
    }

    fn unit(
        &mut self,
        end: usize,
        header: &LineProgramHeader,
        rows: &mut Vec<(u64, u32)>,
    ) -> Result<(), ImageLinkError> {
        let LineProgramHeader { least, base, range, first, ref operands } = *header;
        let (mut address, mut line) = (0u64, 1u32);
        while self.at < end {
            let opcode = self.byte()?;
            match opcode {
                0 => {
                    let length = self.leb()?.0 as usize;
                    let behind = self.at.saturating_add(length);
                    match self.byte()? {
                        1 => {
                            rows.push((address, 0));
                            (address, line) = (0, 1);
                        }
                        2 => {
                            let known = self.relocations.iter().find(|(at, _)| *at == self.at as u64);
                            address = known.ok_or(ImageLinkError::Malformed)?.1;
                        }
                        _ => {}
                    }
                    self.at = behind;
                }
                special if special >= first => {
                    let step = special - first;
                    address += u64::from(step / range) * least;
                    line = line.wrapping_add_signed(i32::from(base) + i32::from(step % range));
                    rows.push((address, line));
                }
                1 => rows.push((address, line)),
                2 => address += self.leb()?.0 * least,
                3 => line = line.wrapping_add_signed(self.signed()? as i32),
                8 => address += u64::from((255 - first) / range) * least,
                9 => address += self.number(2)?,
                ignored if IGNORED.contains(&ignored) => {
                    self.leb()?;
                }
                other => {
                    for _ in 0..operands.get(usize::from(other) - 1).copied().unwrap_or(0) {
                        self.leb()?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Header of a unit's line program.
struct LineProgramHeader {
    /// Minimum instruction length, in bytes.
    least: u64,
    base: i8,
    range: u8,
    /// The first special opcode.
    first: u8,
    operands: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_table_gives_the_line_of_each_address() {
        let mut bytes = vec![0, 0, 0, 0, 4, 0, 0, 0, 0, 0];
        // Shortest instruction, operations, statements, line base -5, range 14, first special opcode 13.
        bytes.extend([1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0]);
        let header = (bytes.len() - 10) as u8;
        bytes[6] = header;
        let set = bytes.len() as u64 + 3;
        bytes.extend([0, 9, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
        // Line 3 at once, 4 bytes and 300 lines further, 200 bytes to the end.
        bytes.extend([3, 2, 1, 2, 4, 3, 0xac, 2, 1, 2, 0xc8, 1, 0, 1, 1]);
        let length = (bytes.len() - 4) as u8;
        bytes[0] = length;
        let mut rows = Vec::new();
        let read = |bytes: &[u8], rows: &mut Vec<_>| {
            LineTableReader { bytes, at: 0, relocations: &[(set, 0x40)] }.rows(rows)
        };
        read(&bytes, &mut rows).expect("it is a table");
        assert_eq!(rows, [(0x40, 3), (0x44, 303), (0x10c, 0)]);
        let lines = LineTable { size: 0x200, rows };
        let found = [0x3f, 0x40, 0x43, 0x44, 0x10b, 0x10c].map(|at| lines.line(at));
        assert_eq!(found, [None, Some(3), Some(3), Some(303), Some(303), None]);
        for cut in 0..bytes.len() {
            // Reading ends, however the table is truncated.
            let _ = read(&bytes[..cut], &mut Vec::new());
        }
    }
}
