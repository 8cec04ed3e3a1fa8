//! A load as an object, and an optimized object as the instructions of a load.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use millstream_btf::{Btf, StrOff, TypeId};
use millstream_isa::RawInsn;
use millstream_kernel::{ForeignCode, ForeignLoad, ForeignLoadError, KernelBtf, KernelMap};
use millstream_object::{
    AttachType, FuncId, LineInfo, Linkage, LinkedProgram, LoadableProgram, MapDefinition, MapId, MapOrigin,
    Object, ObjectMap, ProgramType, Reloc, RelocKind, SettledBytes,
};

use crate::process::AskingProcess;

/// `ld_imm64`.
const LD_IMM64: u8 = 0x18;
// Pseudo source registers of `ld_imm64`.
const MAP_FD: u8 = 1;
const MAP_VALUE: u8 = 2;
const BTF_ID: u8 = 3;
const MAP_INDEX: u8 = 5;
const MAP_INDEX_VALUE: u8 = 6;
/// `BPF_F_RDONLY_PROG`.
const READ_ONLY: u32 = 1 << 7;
/// Largest frozen map whose constants are read, in bytes.
const MOST_CONSTANTS: usize = 1 << 20;

/// Reason why a load is left alone.
pub(crate) type Doubt = String;

/// A load with descriptors of this process.
pub(crate) struct TranslatedLoad {
    pub(crate) load: ForeignLoad,
    btf: Option<KernelBtf>,
    target: Option<OwnedFd>,
    maps: Vec<KernelMap>,
    /// The instructions, maps by descriptors of this process.
    insns: Vec<RawInsn>,
    references: Vec<Reloc>,
}

/// Code for a load, to be lent to the kernel.
pub(crate) struct LoadCode {
    insns: Vec<u64>,
    func_info: Vec<u8>,
    line_info: Vec<u8>,
}

impl TranslatedLoad {
    /// Reads the load at an address of a process.
    pub(crate) fn read(process: &AskingProcess, address: u64, size: usize) -> Result<TranslatedLoad, Doubt> {
        let load = ForeignLoad::read(address, size, &mut |at, length| process.read(at, length))
            .map_err(|e: ForeignLoadError| e.to_string())?;
        let bytes: Vec<u8> = load.insns.iter().flat_map(|slot| slot.to_ne_bytes()).collect();
        let insns = RawInsn::slice_from_bytes(&bytes).ok_or("its instructions are incomplete")?;
        let descriptor =
            |fd: i32| process.descriptor(fd).map_err(|e| format!("its descriptor {fd} cannot be had: {e}"));
        let btf = load.btf().map(descriptor).transpose()?.map(KernelBtf::from_fd);
        let target = load.target().map(descriptor).transpose()?;
        let mut translated =
            TranslatedLoad { load, btf, target, maps: Vec::new(), insns, references: Vec::new() };
        translated.translate_maps(process)?;
        Ok(translated)
    }

    /// Finds the instructions that name maps, and names these maps by descriptors of this process.
    fn translate_maps(&mut self, process: &AskingProcess) -> Result<(), Doubt> {
        let mut known: Vec<(i32, MapId)> = Vec::new();
        let mut at = 0;
        while let Some(insn) = self.insns.get(at).copied() {
            let here = at;
            at += 1;
            if insn.code != LD_IMM64 {
                continue;
            }
            at += 1;
            let second = self.insns.get(here + 1).copied().ok_or("it ends inside ld_imm64")?;
            let fd = match insn.src {
                MAP_FD | MAP_VALUE => insn.imm,
                MAP_INDEX | MAP_INDEX_VALUE => self.indexed(process, insn.imm)?,
                BTF_ID if second.imm != 0 => return Err("it names a variable of a module".into()),
                _ => continue,
            };
            let map = match known.iter().find(|(known, _)| *known == fd) {
                Some((_, map)) => *map,
                None => {
                    let map = self.add_map(process, fd)?;
                    known.push((fd, map));
                    map
                }
            };
            let is_value = matches!(insn.src, MAP_VALUE | MAP_INDEX_VALUE);
            let kind = match is_value {
                true => RelocKind::MapValue { map, offset: second.imm as u32 },
                false => RelocKind::Map(map),
            };
            self.references.push(Reloc { insn: here as u32, kind });
            self.insns[here].src = if is_value { MAP_VALUE } else { MAP_FD };
            self.insns[here].imm = self.maps[map.index()].as_fd().as_raw_fd();
        }
        Ok(())
    }

    /// A descriptor of the process's array.
    fn indexed(&self, process: &AskingProcess, index: i32) -> Result<i32, Doubt> {
        let array = self.load.fd_array();
        let place =
            u64::try_from(index).ok().and_then(|index| array.checked_add(index * 4)).filter(|_| array != 0);
        let bytes = process.read(place.ok_or("it names a map by an index, without an array")?, 4);
        let bytes = bytes.map_err(|e| format!("its array of descriptors cannot be read: {e}"))?;
        Ok(bytes.try_into().map_or(-1, i32::from_ne_bytes))
    }

    fn add_map(&mut self, process: &AskingProcess, fd: i32) -> Result<MapId, Doubt> {
        let copy = process.descriptor(fd).map_err(|e| format!("its map {fd} cannot be had: {e}"))?;
        self.maps.push(KernelMap::from_fd(copy).map_err(|e| e.to_string())?);
        Ok(MapId(self.maps.len() as u32 - 1))
    }

    /// The load as an object.
    pub(crate) fn object(&self) -> Result<Object, Doubt> {
        let btf = self.btf.as_ref().map(|btf| btf.bytes().map_err(|e| e.to_string())).transpose()?;
        let btf = btf.map(|bytes| Btf::from_vec(bytes).map_err(|e| e.to_string())).transpose()?;
        let global = |map: MapId| {
            self.references.iter().any(|r| matches!(r.kind, RelocKind::MapValue { map: m, .. } if m == map))
        };
        let (mut maps, mut settled) = (Vec::new(), Vec::new());
        for (id, map) in (0..).map(MapId).zip(&self.maps) {
            let described = describe(map, global(id));
            if let Some(data) = &described.data {
                settled.push(SettledBytes { map: id, range: 0..data.len() as u32 });
            }
            maps.push(described);
        }
        let program = LoadableProgram {
            name: self.load.name(),
            license: self.load.license(),
            program_type: ProgramType(self.load.program_type().0),
            attach_type: AttachType(self.load.attach_type().0),
            insns: self.insns.clone(),
            references: self.references.clone(),
            maps,
            settled,
            btf,
            func_info: words(&self.load.func_info).map(|[insn, type_id]| (insn, TypeId(type_id))).collect(),
            line_info: words(&self.load.line_info).map(line).collect(),
        };
        let object = program.into_object().map_err(|e| e.to_string())?;
        // The optimizer may remove a function, or rely on its code; `freplace` finds and replaces functions later.
        match object.functions.iter().any(|f| f.subprogram && f.linkage == Linkage::Global) {
            true => Err("it has global functions, which another program may replace later".into()),
            false => Ok(object),
        }
    }

    /// The program as it was asked for, with descriptors of this process.
    pub(crate) fn original(&self) -> LoadCode {
        LoadCode {
            insns: slots(&self.insns),
            func_info: self.load.func_info.clone(),
            line_info: self.load.line_info.clone(),
        }
    }

    /// The program of an object that was made of this load's.
    pub(crate) fn code(&self, object: &Object) -> Result<LoadCode, Doubt> {
        let linked = object.link(FuncId(0)).map_err(|e| e.to_string())?;
        let lost = |before: &[u8], after: usize| !before.is_empty() && after == 0;
        if lost(&self.load.func_info, linked.func_info.len())
            || lost(&self.load.line_info, linked.line_info.len())
        {
            return Err("the types of its functions or its source lines would be lost".into());
        }
        let mut insns = linked.insns.clone();
        for reloc in &linked.relocs {
            let constant = match reloc.kind {
                RelocKind::Map(map) | RelocKind::MapValue { map, .. } => {
                    self.maps.get(map.index()).map(|map| map.as_fd().as_raw_fd())
                }
                RelocKind::Extern(id) => object.externs.get(id.index()).and_then(|e| e.name.parse().ok()),
                RelocKind::Call(_) | RelocKind::FuncAddr(_) => None,
            };
            let insn = insns.get_mut(reloc.insn as usize).zip(constant);
            let (insn, constant) = insn.ok_or("a reference of the optimized program leads nowhere")?;
            insn.imm = constant;
        }
        Ok(LoadCode {
            insns: slots(&insns),
            func_info: linked.func_info.iter().flat_map(|(insn, id)| bytes([*insn, id.0])).collect(),
            line_info: lines(&linked),
        })
    }

    /// Maps that the program of an object made of this load's does not name any more.
    pub(crate) fn unnamed_maps<'t>(&'t self, object: &Object) -> impl Iterator<Item = &'t KernelMap> {
        let mut named = vec![false; self.maps.len()];
        for reloc in object.functions.iter().flat_map(|f| &f.relocs) {
            if let RelocKind::Map(map) | RelocKind::MapValue { map, .. } = reloc.kind
                && let Some(named) = named.get_mut(map.index())
            {
                *named = true;
            }
        }
        self.maps.iter().zip(named).filter(|(_, named)| !named).map(|(map, _)| map)
    }

    /// Loads code in place of the program: see [`ForeignLoad::load`].
    pub(crate) fn load(&self, code: &LoadCode, log: &mut [u8]) -> Result<(OwnedFd, u32), i32> {
        let code = ForeignCode {
            insns: &code.insns,
            func_info: &code.func_info,
            line_info: &code.line_info,
            btf: self.btf.as_ref().map(AsFd::as_fd),
            target: self.target.as_ref().map(|fd| -> BorrowedFd<'_> { fd.as_fd() }),
            fd_array: &[],
        };
        self.load.load(&code, log)
    }
}

impl LoadCode {
    /// Number of slots.
    pub(crate) fn slots(&self) -> usize {
        self.insns.len()
    }

    /// Returns true if it has other instructions.
    pub(crate) fn differs(&self, other: &LoadCode) -> bool {
        self.insns != other.insns
    }
}

/// A map of the kernel as an object describes it. Constants that nobody can change any more are its data.
fn describe(map: &KernelMap, is_global: bool) -> ObjectMap {
    let info = map.info();
    let is_constant = is_global && info.flags & READ_ONLY != 0;
    let is_final =
        is_constant && map.is_frozen().unwrap_or(false) && info.value_size as usize <= MOST_CONSTANTS;
    let data = if is_final { map.lookup(&[0; 4]).ok().flatten() } else { None };
    let origin = match (is_global, is_constant) {
        (false, _) => MapOrigin::Btf,
        (true, true) => MapOrigin::Rodata,
        (true, false) => MapOrigin::Data,
    };
    let spec = MapDefinition {
        map_type: info.map_type,
        key_size: info.key_size,
        value_size: info.value_size,
        max_entries: info.max_entries,
        flags: info.flags,
        map_extra: info.extra,
        ..MapDefinition::default()
    };
    let name = format!("{}_{}", info.name, info.id);
    let section = String::new();
    ObjectMap { name, section, origin, spec, inner: None, initial: Vec::new(), data, variables: Vec::new() }
}

fn slots(insns: &[RawInsn]) -> Vec<u64> {
    insns.iter().map(|insn| u64::from_ne_bytes(insn.to_bytes())).collect()
}

/// Records of so many words.
fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u32; N]> + '_ {
    bytes.chunks_exact(4 * N).map(|record| {
        let mut words = [0; N];
        let (parts, _) = record.as_chunks::<4>();
        words.iter_mut().zip(parts).for_each(|(word, part)| *word = u32::from_ne_bytes(*part));
        words
    })
}

fn bytes<const N: usize>(words: [u32; N]) -> impl Iterator<Item = u8> {
    words.into_iter().flat_map(u32::to_ne_bytes)
}

/// A record of `struct bpf_line_info`.
fn line([insn, file, text, place]: [u32; 4]) -> LineInfo {
    LineInfo { insn, file: StrOff(file), text: StrOff(text), line: place >> 10, column: place & 1023 }
}

fn lines(linked: &LinkedProgram) -> Vec<u8> {
    let record = |l: &LineInfo| bytes([l.insn, l.file.0, l.text.0, l.line << 10 | l.column.min(1023)]);
    linked.line_info.iter().flat_map(record).collect()
}
