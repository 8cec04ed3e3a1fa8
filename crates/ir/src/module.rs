//! Modules: declarations shared by functions.

use cranelift_entity::PrimaryMap;

use crate::entities::*;
use crate::func::Function;

/// Section of global data that a map stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GlobalData {
    /// `.data`: writable.
    Data,
    /// `.rodata`: constant once loaded; loaders may set it before.
    Rodata,
    /// `.bss`: writable, zero at start.
    Bss,
    /// `.kconfig`: constant, filled by the loader.
    Kconfig,
}

/// A map, as its declaration says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapDecl {
    /// Name.
    pub name: String,
    /// `enum bpf_map_type`.
    pub kind: u32,
    /// Bytes in a key.
    pub key_size: u32,
    /// Bytes in a value.
    pub value_size: u32,
    /// Capacity in entries.
    pub max_entries: u32,
    /// `BPF_F_*` creation flags.
    pub flags: u32,
    /// Set where the map is a section of global data.
    pub global: Option<GlobalData>,
    /// Template of the inner maps of a map of maps.
    pub inner: Option<Map>,
}

/// Kind of an external symbol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ExternKind {
    /// A kernel variable.
    Ksym,
    /// A kernel function.
    Kfunc,
    /// A configuration value.
    Kconfig,
}

/// A symbol that the kernel or the loader supplies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExternDecl {
    /// Name.
    pub name: String,
    /// Its kind.
    pub kind: ExternKind,
    /// True if the symbol may be absent.
    pub weak: bool,
}

/// A CO-RE relocation, by its index in the front end's own table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CoreDecl {
    /// Index in the front end's table.
    pub index: u32,
}

/// Comparison of a field of a match table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MatchKind {
    /// All bits equal.
    Exact,
    /// The leading bits equal, longest first.
    Prefix,
    /// Between two bounds, inclusive.
    Range,
    /// Equal under a mask.
    Ternary,
}

/// One field of a match table's key. Fields wider than 64 bits take several arguments, most significant
/// first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FieldDecl {
    /// Name.
    pub name: String,
    /// Width in bits.
    pub bits: u32,
    /// Comparison of the field.
    pub kind: MatchKind,
}

impl FieldDecl {
    /// Arguments of 64 bits that carry the field.
    pub fn words(&self) -> usize {
        self.bits.div_ceil(64) as usize
    }
}

/// Condition of one entry on one field; words most significant first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FieldMatch {
    /// Equality.
    Exact(Vec<u64>),
    /// This many leading bits of the value.
    Prefix(Vec<u64>, u32),
    /// From and to, inclusive.
    Range(Vec<u64>, Vec<u64>),
    /// Value and mask.
    Ternary(Vec<u64>, Vec<u64>),
}

/// A typed match table, as made of P4 tables and packet classifiers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableDecl {
    /// Name.
    pub name: String,
    /// The key.
    pub fields: Vec<FieldDecl>,
    /// Entries, highest priority first.
    pub entries: Vec<Vec<FieldMatch>>,
    /// Result of a match of each entry, below 2^30; empty if the result is the entry's index.
    pub results: Vec<u32>,
}

impl TableDecl {
    /// The result of a match whose first matching entry is this one.
    pub fn result(&self, entry: usize) -> u32 {
        self.results.get(entry).copied().unwrap_or(entry as u32)
    }
}

/// Everything that is compiled together: one object, one configuration.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// Name, for messages.
    pub name: String,
    /// Maps.
    pub maps: PrimaryMap<Map, MapDecl>,
    /// Match tables.
    pub tables: PrimaryMap<Table, TableDecl>,
    /// External symbols.
    pub externs: PrimaryMap<Extern, ExternDecl>,
    /// CO-RE relocations.
    pub cores: PrimaryMap<Core, CoreDecl>,
    /// Functions.
    pub funcs: PrimaryMap<Func, Function>,
}
