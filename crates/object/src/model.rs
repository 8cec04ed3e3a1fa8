//! Parts of an object, as plain data.
//!
//! Functions, maps and externs are held in vectors of [`Object`] and named by typed indices into them, which
//! stay valid for the life of the object. A removed function keeps its place and is marked.

use crate::section::SectionKind;
use millstream_btf::{Btf, CoreKind, StrOff, TypeId};
use millstream_isa::MapType;
use millstream_isa::RawInsn;

use crate::ids::{FuncId, MapId, RelocKind};

/// An object file, read.
#[derive(Clone, Debug)]
pub struct Object {
    /// The name that libbpf would give the object: the file's name up to its first dot, at most 15
    /// characters.
    pub name: String,
    /// Contents of the `license` section; empty if there is none.
    pub license: String,
    /// Contents of the `version` section, a kernel version code that kernels before 5.0 wanted.
    pub kernel_version: Option<u32>,
    /// All functions, by section and then by place in it.
    pub functions: Vec<ObjectFunction>,
    /// The entry programs, in the order of their functions.
    pub programs: Vec<EntryProgram>,
    /// All maps: legacy ones, BTF-defined ones, then those that hold global data, settings and `struct_ops`.
    pub maps: Vec<ObjectMap>,
    /// Objects defined elsewhere: kernel functions and variables, settings.
    pub externs: Vec<Extern>,
    /// The program's types, if the object has `.BTF`.
    pub btf: Option<Btf>,
    /// Oddities found while reading, in words, that did not prevent it.
    pub notes: Vec<String>,
    /// Why nothing of it may be changed, if its types or its records of instructions are not understood.
    pub frozen: Option<String>,
    /// Constants that no loader sets any more.
    pub settled: Vec<SettledBytes>,
    pub(crate) image: crate::image::ObjectImage,
}

/// Bytes of constant data that have their final value: see [`Object::settle`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettledBytes {
    /// The map that holds them.
    pub map: MapId,
    /// Their offsets in the map's value.
    pub range: std::ops::Range<u32>,
}

/// An entry program: a function that a loader loads by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryProgram {
    /// Its function.
    pub func: FuncId,
    /// Name of the function.
    pub name: String,
    /// Name of the section, as it is in the file.
    pub section: String,
    /// Type and attachment by the section's name.
    pub kind: SectionKind,
}

/// Visibility of a function to others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Linkage {
    /// By its own file only; verified in the context of each caller.
    Static,
    /// By all; verified by itself if it is a subprogram.
    Global,
    /// By all, and may be replaced by another of its name.
    Weak,
}

/// A function: instructions and what belongs to them. Instructions are counted in 8-byte slots from its
/// start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectFunction {
    /// Name of its symbol; `section+offset` if it has none.
    pub name: String,
    /// Name of its section.
    pub section: String,
    /// Its place in the section, in slots.
    pub start: u32,
    /// Its linkage.
    pub linkage: Linkage,
    /// True if it is known only to the files that it is linked with (`__hidden`): a static function for the
    /// kernel, which other files may refer to as long as they are not linked.
    pub hidden: bool,
    /// True if it is a subprogram and not an entry program.
    pub subprogram: bool,
    /// Its instructions, normalised as described at the top of this crate.
    pub insns: Vec<RawInsn>,
    /// Its relocations, in order of instruction, at most one an instruction.
    pub relocs: Vec<Reloc>,
    /// Its type in the object's BTF, a [`TypeKind::Func`](millstream_btf::TypeKind::Func), if `.BTF.ext`
    /// says.
    pub type_id: Option<TypeId>,
    /// Source lines, in order of instruction.
    pub line_info: Vec<LineInfo>,
    /// CO-RE relocations, in order of instruction.
    pub core_relos: Vec<CoreRelo>,
    /// True if [`Object::remove_function`](crate::Object::remove_function) has removed it.
    pub removed: bool,
    /// Why it is left as it is, if it is not understood.
    pub kept: Option<OpaqueReason>,
}

/// Why a function is neither changed nor removed: it is written byte for byte as it was read, except for
/// references to instructions that move.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpaqueReason {
    /// Part that is not understood, in words.
    pub reason: String,
    /// True if all references of its instructions are known, so that it can be linked and loaded.
    pub loadable: bool,
}

/// Why instructions between functions are kept.
pub(crate) const GAP: &str = "its instructions belong to no function";

impl ObjectFunction {
    /// Returns true if it is not a function but a gap between functions.
    pub(crate) fn is_gap(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.reason == GAP)
    }

    /// Marks it as removed.
    pub(crate) fn clear(&mut self) {
        self.removed = true;
        self.insns.clear();
        self.relocs.clear();
        self.line_info.clear();
        self.core_relos.clear();
    }
}

/// A relocation of one instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reloc {
    /// The instruction: for `ld_imm64`, its first slot.
    pub insn: u32,
    /// Referenced object.
    pub kind: RelocKind,
}

/// The source line that an instruction and those after it come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineInfo {
    /// The instruction.
    pub insn: u32,
    /// Name of the source file, in the object's BTF.
    pub file: StrOff,
    /// Text of the line, in the object's BTF.
    pub text: StrOff,
    /// Number of the line, from 1.
    pub line: u32,
    /// Number of the column, from 1.
    pub column: u32,
}

/// A CO-RE relocation of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoreRelo {
    /// The instruction.
    pub insn: u32,
    /// The type, in the object's BTF.
    pub type_id: TypeId,
    /// The path into the type, in the object's BTF.
    pub access: StrOff,
    /// Wanted property of it.
    pub kind: CoreKind,
}

impl CoreRelo {
    /// The relocation as [`millstream_btf::core::resolve`] takes it.
    pub fn to_btf(self) -> millstream_btf::CoreRelo {
        millstream_btf::CoreRelo {
            insn_off: self.insn.saturating_mul(8),
            type_id: self.type_id,
            access: self.access,
            kind: self.kind,
        }
    }
}

/// A map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectMap {
    /// Its name: of its variable; for global data, as libbpf names it (`object.rodata`, cut to 15
    /// characters).
    pub name: String,
    /// Name of the section that defines it.
    pub section: String,
    /// Form of its definition.
    pub origin: MapOrigin,
    /// Parameters of its creation.
    pub spec: MapDefinition,
    /// For a map of maps: what its inner maps are created as.
    pub inner: Option<MapDefinition>,
    /// For a map of maps or of programs: its initial contents.
    pub initial: Vec<(u32, InitialValue)>,
    /// For global data and settings: the initial value. [`None`] is all zero (`.bss`), and other kinds of
    /// maps.
    pub data: Option<Vec<u8>>,
    /// For global data and settings: its variables, in order of offset. The symbols say where they are; BTF
    /// does not, for clang leaves that to the loader.
    pub variables: Vec<Variable>,
}

/// A variable of global data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its offset in the map's value, in bytes.
    pub offset: u32,
    /// Its size in bytes.
    pub size: u32,
}

/// Form of a map's definition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MapOrigin {
    /// By a variable in `.maps` whose type describes it.
    Btf,
    /// By a `struct bpf_map_def` in `maps`.
    Legacy,
    /// By a `struct bpf_elf_map` in `maps`, as iproute2 has it.
    Iproute2,
    /// By a section of initialised global data that programs may write (`.data*`).
    Data,
    /// By a section of constants (`.rodata*`): the loader freezes it.
    Rodata,
    /// By a section of zeroed global data (`.bss*`).
    Bss,
    /// By externs in `.kconfig`: the loader fills it in and freezes it.
    Kconfig,
    /// By a variable in `.struct_ops*`.
    StructOps,
    /// By another file, with which this one is to be linked; described by its extern declaration.
    Extern,
}

impl MapOrigin {
    /// Returns true if it holds global variables: an array of one element that programs address directly.
    pub fn is_global(self) -> bool {
        matches!(self, MapOrigin::Data | MapOrigin::Rodata | MapOrigin::Bss | MapOrigin::Kconfig)
    }
}

/// Parameters of a map's creation. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MapDefinition {
    /// The type of map.
    pub map_type: MapType,
    /// Size of a key.
    pub key_size: u32,
    /// Size of a value.
    pub value_size: u32,
    /// Number of entries; 0 where the loader decides (per-CPU perf event arrays).
    pub max_entries: u32,
    /// `BPF_F_*` of map creation.
    pub flags: u32,
    /// Place where it is pinned.
    pub pinning: Pinning,
    /// The memory node it is on, if it says so.
    pub numa_node: Option<u32>,
    /// Extra parameter, whose meaning depends on the type (`map_extra`).
    pub map_extra: u64,
    /// Type of the key, in the object's BTF.
    pub key_type: Option<TypeId>,
    /// Type of the value, in the object's BTF.
    pub value_type: Option<TypeId>,
}

/// Place where a map is pinned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Pinning {
    /// Nowhere.
    #[default]
    None,
    /// Under its name (libbpf's `LIBBPF_PIN_BY_NAME`).
    ByName,
    /// Per object (iproute2's `PIN_OBJECT_NS`).
    ObjectNs,
    /// For all objects (iproute2's `PIN_GLOBAL_NS`).
    GlobalNs,
    /// Otherwise.
    Other(u32),
}

/// Initial contents of a slot of a map.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum InitialValue {
    /// A map.
    Map(MapId),
    /// An entry program.
    Program(FuncId),
}

/// Something defined elsewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extern {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: ExternKind,
    /// True if a program works without it: its address is then 0.
    pub weak: bool,
}

/// Kind of an extern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExternKind {
    /// A kernel function.
    Kfunc {
        /// Its type in the object's BTF: a [`TypeKind::Func`](millstream_btf::TypeKind::Func).
        type_id: TypeId,
    },
    /// A kernel variable.
    Ksym {
        /// Its type in the object's BTF; [`None`] for `const void`, whose address comes from
        /// `/proc/kallsyms`.
        type_id: Option<TypeId>,
    },
    /// A setting of the kernel's configuration, or a value the loader provides (`LINUX_KERNEL_VERSION`).
    Kconfig {
        /// The map that holds it.
        map: MapId,
        /// Its offset in the map's value, in bytes.
        offset: u32,
        /// Its size in bytes.
        size: u32,
        /// Its type in the object's BTF.
        type_id: TypeId,
    },
    /// Named by a relocation, but of unknown kind.
    Unknown,
}

/// New contents of a function. Instructions are counted in slots from its start; lists are in order of
/// instruction.
///
/// The contents of an instruction in the places that a relocation fills in (immediate, source register) do
/// not matter, except that a relocated `ld_imm64` or `call` must be one. Calls and function addresses inside
/// the object must have a relocation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NewFunction {
    /// The instructions.
    pub insns: Vec<RawInsn>,
    /// Their relocations.
    pub relocs: Vec<Reloc>,
    /// Their source lines: strings of the object's BTF. Either none, or one for the first instruction too.
    pub line_info: Vec<LineInfo>,
    /// Their CO-RE relocations: types and strings of the object's BTF.
    pub core_relos: Vec<CoreRelo>,
}

/// A program and all the functions it reaches, in one vector, as the kernel wants it.
///
/// Calls and function addresses between them are in place. What remains symbolic are maps and externs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LinkedProgram {
    /// The instructions.
    pub insns: Vec<RawInsn>,
    /// Relocations: none of kind [`RelocKind::Call`] or [`RelocKind::FuncAddr`].
    pub relocs: Vec<Reloc>,
    /// Start of each function, the program's own first, in order of start.
    pub functions: Vec<(u32, FuncId)>,
    /// Each function's first instruction and type; empty unless known for all, for the kernel wants all or
    /// none.
    pub func_info: Vec<(u32, TypeId)>,
    /// Source lines; empty unless the first instruction of every function has one, which the kernel demands.
    pub line_info: Vec<LineInfo>,
    /// CO-RE relocations.
    pub core_relos: Vec<CoreRelo>,
}
