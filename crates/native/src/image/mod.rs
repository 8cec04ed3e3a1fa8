//! A program as machine code outside of any process: compiled ahead of time, run without a compiler.
//!
//! The code contains the addresses of its maps, as all native code does. Here they are fixed ones
//! ([`AddressAllocator`](millstream_native_runtime::region::AddressAllocator)), which compiling and running
//! assign to the same maps in the same order. An [`NativeImage`] consists of the code, the maps' declarations,
//! and their initial contents. Functions of the runtime are called through slots that loading fills ([`link`]).

mod errors;
mod imported_function;
mod line_table;
mod link;
pub(crate) mod table;

use millstream_bpf::module::func;
use millstream_interp::MapKind;
use millstream_ir::{Func, MapDecl};
use millstream_object::{InitialValue, Object};
use serde::{Deserialize, Serialize};

use crate::crash;
use crate::llvm::ObjectFile;
use crate::mapped_code::MappedCode;
use crate::templates::{TableHints, TableTemplate};
use millstream_native_runtime::helpers;
use millstream_native_runtime::index::HashTemplate;
use millstream_native_runtime::lpm::LpmTemplate;
use millstream_native_runtime::packet::DescriptorLayout;
use millstream_plan::CompiledSchedule;

pub use errors::{ImageLinkError, ImageLoadError};
use imported_function::ImportedFunction;
pub(crate) use line_table::LineTable;

/// Kinds of hash tables.
pub(crate) const HASHES: [MapKind; 6] = [
    MapKind::Hash,
    MapKind::PercpuHash,
    MapKind::LruHash,
    MapKind::LruPercpuHash,
    MapKind::HashOfMaps,
    MapKind::DevmapHash,
];

/// A map's declaration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageMapSpec {
    /// Its name.
    pub name: String,
    /// `enum bpf_map_type`.
    pub kind: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Maximum number of entries.
    pub max_entries: u32,
    /// Flags of `bpf_attr`.
    pub flags: u32,
    /// Template of the index, for a hash table.
    pub template: HashTemplate,
    /// Template, for a trie.
    pub trie: LpmTemplate,
    /// True if writes to it are counted, because caches keep results of its look-ups.
    pub is_counted: bool,
}

impl ImageMapSpec {
    /// The shape of a declaration, by its number; and the chosen template, for a hash table or a trie.
    pub(crate) fn of(
        at: usize,
        map: &MapDecl,
        known: &TableHints<'_>,
    ) -> (ImageMapSpec, Option<TableTemplate>) {
        let (entries, name) = (map.max_entries, &map.name);
        let (template, for_hash) = known.table(at, name, (entries, map.key_size));
        let (trie, for_trie) = known.trie(name, entries);
        let chosen = |template: &str, why| {
            Some(TableTemplate { table: name.clone(), template: template.to_owned(), why })
        };
        let chosen = match MapKind::from_number(map.kind) {
            Some(kind) if HASHES.contains(&kind) => chosen(template.name(), for_hash),
            Some(MapKind::LpmTrie) => chosen(trie.name(), for_trie),
            _ => None,
        };
        let shape = ImageMapSpec {
            template,
            trie,
            name: map.name.clone(),
            kind: map.kind,
            key_size: map.key_size,
            value_size: map.value_size,
            max_entries: map.max_entries,
            flags: map.flags,
            is_counted: false,
        };
        (shape, chosen)
    }
}

/// An initial entry of a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InitialMapEntry {
    pub(crate) map: usize,
    pub(crate) key: Vec<u8>,
    pub(crate) value: InitialMapValue,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum InitialMapValue {
    Bytes(Vec<u8>),
    /// The address of a map, by number.
    Map(usize),
    /// The address of a program, by its position among those that tail calls reach.
    Program(usize),
}

/// Initial contents that an object declares for its maps; `programs` are those that tail calls reach, in
/// order.
pub(crate) fn initial(object: &Object, programs: &[Func]) -> Vec<InitialMapEntry> {
    let mut all = Vec::new();
    for (map, declared) in object.maps.iter().enumerate() {
        all.extend(declared.data.iter().map(|data| InitialMapEntry {
            map,
            key: 0u32.to_ne_bytes().to_vec(),
            value: InitialMapValue::Bytes(data.clone()),
        }));
        for (key, value) in &declared.initial {
            let value = match value {
                InitialValue::Map(inner) => Some(InitialMapValue::Map(inner.index())),
                InitialValue::Program(id) => {
                    programs.iter().position(|f| *f == func(*id)).map(InitialMapValue::Program)
                }
            };
            all.extend(value.map(|value| InitialMapEntry { map, key: key.to_ne_bytes().to_vec(), value }));
        }
    }
    all
}

/// A compiled program with its maps. Everything except the code can be serialized by `serde`; the code is
/// bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeImage {
    pub(crate) maps: Vec<ImageMapSpec>,
    pub(crate) initial: Vec<InitialMapEntry>,
    pub(crate) templates: Vec<TableTemplate>,
    /// Layout of packets' descriptors.
    pub(crate) layout: DescriptorLayout,
    pub(crate) schedule: CompiledSchedule,
    pub(crate) seed: u64,
    /// Number of workers that run it at once.
    pub(crate) workers: u32,
    /// Offsets of the loops over a batch, then of the programs that tail calls reach.
    pub(crate) places: Vec<u64>,
    pub(crate) loops: usize,
    /// Area of the fixed addresses of its maps.
    pub(crate) area: u8,
    pub(crate) imports: Vec<ImportedFunction>,
    /// Processor features that the code needs, as the system names them.
    pub(crate) needs: Vec<String>,
    /// Offset of the machine code, its line table, and the names of source places: for crash reports.
    pub(crate) text: u64,
    pub(crate) lines: LineTable,
    pub(crate) names: Vec<String>,
    #[serde(skip)]
    pub(crate) code: Vec<u8>,
}

impl NativeImage {
    /// Links object code; the first `loops` of `symbols` are loops over a batch, the others programs.
    pub(crate) fn link(
        object: &ObjectFile,
        symbols: &[String],
        loops: usize,
        cpu: CodegenCpu,
    ) -> Result<NativeImage, ImageLinkError> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err(ImageLinkError::Machine);
        }
        let link::LinkedBlock { code, imports, places, text } = link::link(&object.bytes, symbols)?;
        let (lines, _) = LineTable::of_object(&object.bytes, &symbols[0])?;
        Ok(NativeImage { places, loops, imports, code, text, lines, ..NativeImage::without_code(cpu) })
    }

    /// An image without code, which is stored elsewhere.
    pub(crate) fn without_code(cpu: CodegenCpu) -> NativeImage {
        NativeImage {
            maps: Vec::new(),
            initial: Vec::new(),
            templates: Vec::new(),
            layout: DescriptorLayout::WHOLE,
            schedule: CompiledSchedule::default(),
            seed: 0,
            workers: 1,
            places: Vec::new(),
            loops: 0,
            area: 0,
            imports: Vec::new(),
            needs: cpu.needs(),
            text: 0,
            lines: LineTable::default(),
            names: Vec::new(),
            code: Vec::new(),
        }
    }

    /// Its maps.
    pub fn maps(&self) -> &[ImageMapSpec] {
        &self.maps
    }

    /// The machine code.
    pub fn code(&self) -> &[u8] {
        &self.code
    }

    /// The image with its machine code, which was stored separately.
    #[must_use]
    pub fn with_code(self, code: Vec<u8>) -> NativeImage {
        NativeImage { code, ..self }
    }

    /// Checks that this processor has the features that the code needs.
    pub(crate) fn check_cpu_features(&self) -> Result<(), ImageLoadError> {
        let has = flags();
        let missing: Vec<String> = self.needs.iter().filter(|need| !has.contains(need)).cloned().collect();
        if missing.is_empty() { Ok(()) } else { Err(ImageLoadError::Processor(missing)) }
    }

    /// Source places of the code, if it lies at this address.
    pub(crate) fn debug_info(&self, start: usize) -> crash::CodeDebugInfo {
        let (lines, names) = (self.lines.clone(), self.names.clone());
        crash::CodeDebugInfo { start: start as u64 + self.text, lines, names }
    }

    /// Loads the code into this process; returns the addresses of the loops and programs, and the owner of
    /// the mapping.
    pub(crate) fn load(&self) -> Result<(Vec<usize>, MappedCode), ImageLoadError> {
        self.check_cpu_features()?;
        let mut code = self.code.clone();
        for import in &self.imports {
            let address = helpers::address(&import.symbol);
            let address = address.ok_or_else(|| ImageLoadError::Import(import.symbol.clone()))?;
            let slot = code.get_mut(import.at as usize..import.at as usize + 8);
            slot.ok_or_else(|| ImageLoadError::Import(import.symbol.clone()))?
                .copy_from_slice(&(address as u64).to_le_bytes());
        }
        let loaded = MappedCode::new(&code)?;
        let places = self.places.iter().map(|at| loaded.address() + *at as usize).collect();
        Ok((places, loaded))
    }
}

/// Target processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CodegenCpu {
    /// This machine's processor.
    #[default]
    Native,
    /// Any processor of this level of the x86-64 ABI, 1 to 4.
    Level(u8),
}

/// Extensions by level, as the system names them, from level 2 on.
const LEVELS: [&[&str]; 3] = [
    &["cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"],
    &["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"],
    &["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"],
];
/// Other extensions that a compiler may use.
const OTHERS: &[&str] = &[
    "adx",
    "aes",
    "avx512_bitalg",
    "avx512_vbmi2",
    "avx512ifma",
    "avx512vbmi",
    "gfni",
    "pclmulqdq",
    "sha_ni",
];

impl CodegenCpu {
    /// LLVM's name; `None` for this machine's processor.
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            CodegenCpu::Native => None,
            CodegenCpu::Level(2) => Some("x86-64-v2"),
            CodegenCpu::Level(3) => Some("x86-64-v3"),
            CodegenCpu::Level(4) => Some("x86-64-v4"),
            CodegenCpu::Level(_) => Some("x86-64"),
        }
    }

    /// Processor features that code for it needs.
    fn needs(self) -> Vec<String> {
        let has = flags();
        let levels = LEVELS.iter().copied().flatten();
        match self {
            CodegenCpu::Native => levels
                .chain(OTHERS)
                .filter(|f| has.iter().any(|h| h == *f))
                .map(|f| (*f).to_owned())
                .collect(),
            CodegenCpu::Level(level) => {
                let some = usize::from(level).saturating_sub(1).min(LEVELS.len());
                LEVELS[..some].iter().copied().flatten().map(|f| (*f).to_owned()).collect()
            }
        }
    }
}

/// Features of this machine's processor, as the system names them.
fn flags() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("flags"));
    let all = line.and_then(|line| line.split_once(':')).map_or("", |(_, all)| all);
    all.split_whitespace().map(str::to_owned).collect()
}
