//! K2's raw form of a program: instructions in one file, its maps and its input in two others of the same
//! name.
//!
//! | file | contents |
//! |---|---|
//! | `X.insns` | instructions, 8 bytes each (`struct bpf_insn`); `ld_imm64` with source register 1 holds a map's `fd` |
//! | `X.maps` | a line for each map: `name { type = 1, key_size = 4, value_size = 8, max_entries = 16, fd = 0 }` |
//! | `X.desc` | `{ pgm_input_type = 2, }`: the program's input; `{ max_pkt_sz = 64, }`: bytes of K2's test packets |
//!
//! Source: the inputs of K2 (SIGCOMM 2021), github.com/smartnic/superopt-input-bm. What such files do not say
//! is filled in: see [`defaults`] for maps, [`section`] for the type of program. The licence is taken to be
//! GPL, so that all helpers can be called.
//!
//! A raw program is read by making the ELF object that it would have come from ([`elf`]) and reading that; so
//! there is one reader of programs, and a raw program can be written as ELF. Invariant: the size of the made
//! object is bounded by the length of the files.

mod defaults;
mod elf;
mod section;
mod text;
mod write;

use crate::codes::{CALL, LD_IMM64, PSEUDO_KFUNC_CALL, PSEUDO_MAP_FD};
use crate::error::ObjectError;
use crate::image::RawSourceFiles;
use crate::model::Object;
use millstream_isa::RawInsn;
use rustc_hash::FxHashMap;

pub use write::RawFiles;

/// The files of a raw program, as they are. Only the instructions have to be there.
#[derive(Clone, Copy, Debug, Default)]
pub struct RawInput<'a> {
    /// Contents of `X.insns`.
    pub insns: &'a [u8],
    /// Contents of `X.maps`.
    pub maps: Option<&'a [u8]>,
    /// Contents of `X.desc`.
    pub desc: Option<&'a [u8]>,
}

/// A map, as a line says.
#[derive(Clone, PartialEq, Eq, Debug)]
struct RawMap {
    name: String,
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    fd: i32,
}

impl Object {
    /// Reads a raw program. `file_name` is the file of the instructions, with or without folders; the program
    /// is named after it. `section` is the section of the ELF object which the program is from, and gives its
    /// type; without it the type comes from the file's name, then from the description. If none gives a type,
    /// it is left open, as in an ELF object whose sections give no type.
    ///
    /// # Errors
    /// [`ObjectError`], which names the file and the line or instruction that is wrong.
    pub fn parse_raw(
        file_name: &str,
        files: RawInput<'_>,
        section: Option<&str>,
    ) -> Result<Object, ObjectError> {
        let base = file_name.rsplit('/').next().unwrap_or_default();
        let stem = base.strip_suffix(".insns").unwrap_or(base);
        let name = if stem.is_empty() { "program" } else { stem };
        let insns = instructions(name, files.insns)?;
        let maps = files.maps.map_or(Ok(Vec::new()), text::maps)?;
        let mut notes = Vec::new();
        let input = files.desc.map_or(Ok(None), |d| text::description(d, &mut notes))?;
        let section = section.map_or_else(|| section::of(name, input), str::to_owned);
        let relocs = relocations(name, &insns, &maps)?;
        let image = elf::image(&elf::ObjectParts {
            name,
            section: &section,
            insns: &insns,
            relocs: &relocs,
            maps: &maps,
        });
        let mut object = Object::parse(name, &image)?;
        if object.programs.is_empty() {
            let what = "a section of this name holds no programs".to_owned();
            return Err(ObjectError::BadSection { section, what });
        }
        object.notes.extend(notes);
        let fds = maps.iter().map(|m| m.fd).collect();
        let origin = RawSourceFiles {
            maps: files.maps.map(<[u8]>::to_vec),
            desc: files.desc.map(<[u8]>::to_vec),
            fds,
        };
        object.image.raw = Some(Box::new(origin));
        Ok(object)
    }

    /// The object's program in the raw form.
    ///
    /// # Errors
    /// [`ObjectError::Unwritable`] if it has several programs, or one with references that the raw form
    /// cannot express: global variables, kernel functions, maps that are made with flags of their own.
    pub fn write_raw(&self) -> Result<RawFiles, ObjectError> {
        write::write_raw(self)
    }
}

fn instructions(name: &str, data: &[u8]) -> Result<Vec<RawInsn>, ObjectError> {
    let bad = |what: &str| ObjectError::BadFunction {
        function: name.to_owned(),
        insn: u32::try_from(data.len() / 8).unwrap_or(u32::MAX),
        what: what.to_owned(),
    };
    let insns = RawInsn::slice_from_bytes(data).ok_or_else(|| bad("the file ends inside it"))?;
    if insns.is_empty() {
        return Err(bad("the file is empty"));
    }
    Ok(insns)
}

/// The instructions that refer to maps, each with the number of its map among `maps`.
fn relocations(name: &str, insns: &[RawInsn], maps: &[RawMap]) -> Result<Vec<(u32, usize)>, ObjectError> {
    let by_fd: FxHashMap<i32, usize> = maps.iter().enumerate().map(|(n, m)| (m.fd, n)).collect();
    let bad = |at: usize, what: String| {
        let insn = u32::try_from(at).unwrap_or(u32::MAX);
        ObjectError::BadFunction { function: name.to_owned(), insn, what }
    };
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(insn) = insns.get(at) {
        let wide = insn.code == LD_IMM64;
        if wide && at + 1 == insns.len() {
            return Err(bad(at, "ld_imm64 without its second slot".into()));
        }
        match insn.src {
            PSEUDO_MAP_FD if wide => {
                let map = by_fd.get(&insn.imm);
                let none = || bad(at, format!("no map of the .maps file has fd = {}", insn.imm));
                found.push((u32::try_from(at).unwrap_or(u32::MAX), *map.ok_or_else(none)?));
            }
            1.. if wide => {
                let what = format!(
                    "ld_imm64 with source register {} refers to what raw files do not name",
                    insn.src
                );
                return Err(bad(at, what));
            }
            PSEUDO_KFUNC_CALL if insn.code == CALL => {
                return Err(bad(at, "a call of a kernel function, which raw files do not name".into()));
            }
            _ => {}
        }
        at += if wide { 2 } else { 1 };
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
