//! State of an object's file, kept for writing it back.

use crate::elf::{Elf, ElfRelocation};
use crate::ids::{ExternId, FuncId, MapId, RelocKind};
use millstream_btf::{StrOff, StrangeCore};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// Parts that are not understood and written as they were read.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptParts {
    /// Relocations of functions that are left as they are, by function; offsets are in bytes from its start.
    pub(crate) relocs: FxHashMap<FuncId, Vec<ElfRelocation>>,
    /// CO-RE relocations of kinds that are not known, by function and instruction, as the file has them.
    pub(crate) strange_cores: Vec<(FuncId, u32, StrangeCore)>,
    /// Sections of instructions that have no known function, by name, and why.
    pub(crate) sections: Vec<(String, String)>,
}

/// The file and where in it the described things are.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectImage {
    pub(crate) elf: Elf,
    /// Section number of each function.
    pub(crate) function_sections: Vec<usize>,
    /// Symbol of each extern.
    pub(crate) extern_symbols: Vec<Option<usize>>,
    /// Section number of each map and its offset in it; settings have no section.
    pub(crate) map_places: Vec<Option<(usize, u64)>>,
    /// Form in the file of each reference of its instructions.
    pub(crate) forms: FxHashMap<RelocKind, SymbolReference>,
    /// Offsets in the BTF of the names of the sections that `.BTF.ext` has records of.
    pub(crate) ext_names: FxHashMap<String, StrOff>,
    /// The start of each function in its section as read, by section and slot.
    pub(crate) function_places: FxHashMap<(usize, u64), FuncId>,
    /// The extern of each undefined symbol.
    pub(crate) externs_by_symbol: FxHashMap<usize, ExternId>,
    /// The map at a place in a section.
    pub(crate) maps_by_place: FxHashMap<(usize, u64), MapId>,
    /// The map of each undefined symbol that is one.
    pub(crate) extern_maps: FxHashMap<usize, MapId>,
    pub(crate) kept: KeptParts,
    /// References to jump tables, by function and instruction.
    pub(crate) table_references: FxHashMap<FuncId, BTreeMap<u32, TableReference>>,
    /// Functions whose addresses are in data.
    pub(crate) in_data: FxHashSet<FuncId>,
    /// The map that a section of global data is.
    pub(crate) data_maps: FxHashMap<usize, MapId>,
    /// Section of the global data of an arena, and that map.
    pub(crate) arena: Option<(usize, MapId)>,
    /// Contents of its raw files, if it was read from such.
    pub(crate) raw: Option<Box<RawSourceFiles>>,
}

/// A reference as the file has it: a symbol, and the addend of the instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SymbolReference {
    pub(crate) symbol: usize,
    pub(crate) immediate: i32,
}

/// A reference of an instruction to a jump table.
#[derive(Clone, Debug)]
pub(crate) struct TableReference {
    /// Section of the table, and its range in bytes.
    pub(crate) place: (usize, u64, u64),
    /// Offset that the instruction adds.
    pub(crate) addend: i32,
}

/// Files of an object that was raw.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawSourceFiles {
    pub(crate) maps: Option<Vec<u8>>,
    pub(crate) desc: Option<Vec<u8>>,
    /// The number that instructions have for each map.
    pub(crate) fds: Vec<i32>,
}
