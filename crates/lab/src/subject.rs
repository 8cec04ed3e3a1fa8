//! A program under test: an object, one XDP program of it, its maps in the kernel.

use millstream_btf::StrOff;
use millstream_interp::ContextKind;
use millstream_isa::helpers::id;
use millstream_isa::{Callee, Insn, MapType, RawInsn, decode_all};
use millstream_kernel::{self as kernel, AttachType, KernelMap, KernelProgram, ProgramType, UpdateMode};
use millstream_loader::{ObjectLoader, ProgramError, Session};
use millstream_object::{FuncId, LineInfo, LinkedProgram, MapId, Object};
use millstream_programs::MapEntry;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::image::{InsnRange, JitImage};
use crate::machine::{InterpreterModel, model};
use crate::measure::LoadAttributes;
use crate::os;

/// Types of maps that programs look things up in.
const TABLES: [MapType; 9] = [
    MapType::HASH,
    MapType::ARRAY,
    MapType::PROG_ARRAY,
    MapType::LRU_HASH,
    MapType::LPM_TRIE,
    MapType::ARRAY_OF_MAPS,
    MapType::HASH_OF_MAPS,
    MapType::DEVMAP,
    MapType::DEVMAP_HASH,
];
/// Entries that are examined to see if a table holds anything.
const LOOKED_AT: usize = 4096;
/// Entries that are written by one system call.
const BATCH: usize = 1024;

/// A program with its maps; any number of copies can be loaded.
#[derive(Debug)]
pub struct ProgramUnderTest<'a> {
    /// Its name in reports.
    pub name: String,
    session: Session<'a>,
    func: FuncId,
    linked: LinkedProgram,
    alike: LoadAttributes,
}

/// Instructions a packet, and in the program's machine code; what cannot be counted is not there.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct InsnCounts {
    /// BPF instructions executed.
    pub executed: Option<f64>,
    /// Conditional branches of these.
    pub branches: Option<f64>,
    /// Calls that look up, write or delete elements of maps, of these.
    pub map_calls: Option<f64>,
    /// Machine instructions executed in the image.
    pub image_executed: Option<InsnRange>,
    /// Machine instructions that the image has.
    pub image_instructions: Option<usize>,
}

impl<'a> ProgramUnderTest<'a> {
    /// Prepares program `program` of an object, or its only XDP program. Maps that `shared` has under the
    /// same name and with the same layout are used in place of its own, global data excepted: both then see
    /// the same tables.
    ///
    /// # Errors
    /// If there is no such program, or its maps cannot be made.
    pub fn prepare(
        name: impl Into<String>,
        object: &'a Object,
        program: Option<&str>,
        shared: Option<&ProgramUnderTest<'_>>,
    ) -> Result<Self> {
        Self::prepare_with(name, object, program, shared, Ok)
    }

    /// As [`ProgramUnderTest::prepare`], with the loader as `adapt` leaves it: sizes of maps, constants.
    ///
    /// # Errors
    /// As for [`ProgramUnderTest::prepare`], and what `adapt` gives.
    pub fn prepare_with(
        name: impl Into<String>,
        object: &'a Object,
        program: Option<&str>,
        shared: Option<&ProgramUnderTest<'_>>,
        adapt: impl FnOnce(ObjectLoader<'a>) -> Result<ObjectLoader<'a>>,
    ) -> Result<Self> {
        let chosen = choose(object, program)?;
        let kind = &chosen.kind;
        let unnamed = kind.program_type != millstream_object::ProgramType::XDP;
        let attach = match kind.attach_type {
            Some(a) if !unnamed => AttachType(a.0),
            _ => AttachType::XDP,
        };
        let alike = LoadAttributes { attach, flags: kind.load_flags() };
        let mut loader = ObjectLoader::new(object).only(&chosen.name)?;
        if unnamed {
            loader = loader.program_type(&chosen.name, ProgramType::XDP, attach)?;
        }
        for (at, map) in object.maps.iter().enumerate() {
            if let Some(map) = shared.map(|s| s.like(object, at)).transpose()?.flatten() {
                loader = loader.reuse_map(&object.maps[at].name, map)?;
            } else if let Some(s) = shared
                && !map.origin.is_global()
                && s.session.map_by_name(&map.name).is_some()
            {
                tracing::warn!("map {:?} differs between the two objects and is not shared", map.name);
            }
        }
        let session = adapt(loader)?.prepare()?;
        let linked = object.link(chosen.func)?;
        Ok(ProgramUnderTest { name: name.into(), session, func: chosen.func, linked, alike })
    }

    /// Our map in the place of map `at` of another object, if it can take it.
    fn like(&self, other: &Object, at: usize) -> Result<Option<KernelMap>> {
        let theirs = &other.maps[at];
        let ours = self.session.object().maps.iter().find(|m| m.name == theirs.name);
        let (Some(ours), Some(map)) = (ours, self.session.map_by_name(&theirs.name)) else { return Ok(None) };
        let (a, b) = (&ours.spec, &theirs.spec);
        let same = (a.map_type, a.key_size, a.value_size, a.max_entries, a.flags)
            == (b.map_type, b.key_size, b.value_size, b.max_entries, b.flags);
        if !same || theirs.origin.is_global() {
            return Ok(None);
        }
        Ok(Some(map.try_clone()?))
    }

    /// Load attributes of its copies.
    pub fn alike(&self) -> LoadAttributes {
        self.alike
    }

    /// Its maps and types.
    pub fn session(&self) -> &Session<'a> {
        &self.session
    }

    /// The function that is the program.
    pub fn func(&self) -> FuncId {
        self.func
    }

    /// Loads one more copy.
    ///
    /// # Errors
    /// If the kernel does not accept it.
    pub fn load(&self) -> Result<KernelProgram> {
        self.session
            .load(self.func, &self.linked)
            .map_err(|e| Error::Program { name: self.name.clone(), source: Box::new(e) })
    }

    /// Writes entries into the maps. Entries that name an interface need a `namespace` that has it.
    ///
    /// # Errors
    /// If the object lacks a map, or the kernel refuses an entry.
    pub fn apply(&self, entries: &[MapEntry], namespace: &kernel::Namespace) -> Result<()> {
        let mut maps: Vec<(&str, KernelMap)> = Vec::new();
        for entry in entries {
            if maps.iter().any(|(name, _)| *name == entry.map) {
                continue;
            }
            let map = self.session.map_by_name(entry.map).ok_or_else(|| {
                Error::Unusable(format!("{} has no map {:?} for these tables", self.name, entry.map))
            })?;
            maps.push((entry.map, map.try_clone()?));
        }
        namespace.enter(|| {
            for some in entries.chunk_by(|a, b| a.map == b.map).flat_map(|run| run.chunks(BATCH)) {
                let map = maps.iter().find(|(name, _)| *name == some[0].map);
                if let Some((_, map)) = map {
                    write(map, some)?;
                }
                if os::interrupted() {
                    return Err(Error::Unusable("filling the tables was interrupted".into()));
                }
            }
            Ok(())
        })?
    }

    /// Writes entries, as keys and values, into the map of this name. Entries that name an interface need a
    /// `namespace` that has it.
    ///
    /// # Errors
    /// If the object lacks the map, an entry does not fit it, or the kernel refuses one.
    pub fn fill(
        &self,
        name: &str,
        entries: &[(Vec<u8>, Vec<u8>)],
        namespace: &kernel::Namespace,
    ) -> Result<()> {
        let map = self.session.map_by_name(name).ok_or_else(|| {
            let maps = self.session.object().maps.iter().map(|map| map.name.as_str()).collect::<Vec<_>>();
            Error::Unusable(format!("{} has no map {name:?}; there are: {}", self.name, maps.join(", ")))
        })?;
        let (key, value) = (map.info().key_size as usize, map.info().value_size as usize);
        if let Some((k, v)) = entries.iter().find(|(k, v)| (k.len(), v.len()) != (key, value)) {
            let (k, v) = (k.len(), v.len());
            return Err(Error::Unusable(format!(
                "map {name:?} has keys of {key} and values of {value} bytes, not of {k} and {v}"
            )));
        }
        namespace.enter(|| {
            let mut all = entries.iter();
            all.try_for_each(|(key, value)| map.update_all_cpus(key, value, UpdateMode::Any))
        })??;
        Ok(())
    }

    /// Names of its tables that hold nothing: no entry, or nothing but zeros.
    ///
    /// # Errors
    /// If the kernel refuses to show one that can be walked.
    pub fn empty_tables(&self) -> Result<Vec<String>> {
        let mut empty = Vec::new();
        for (at, map) in self.session.object().maps.iter().enumerate() {
            let kind = map.spec.map_type;
            // Skips counters, which are zero at first, and maps that have no entries to be walked.
            if map.origin.is_global() || kind.is_percpu() || !TABLES.contains(&kind) {
                continue;
            }
            let Some(in_kernel) = self.session.map(MapId(at as u32)) else { continue };
            if is_empty(in_kernel)? {
                empty.push(map.name.clone());
            }
        }
        Ok(empty)
    }

    /// The form for counting its instructions.
    pub fn form(&self) -> ProgramVersion<'_, 'a> {
        ProgramVersion { session: &self.session, func: self.func, linked: &self.linked }
    }

    /// [`ProgramVersion::count`].
    ///
    /// # Errors
    /// As for that.
    pub fn count(&self, packets: &[Vec<u8>], ingress: u32) -> Result<InsnCounts> {
        self.form().count(packets, ingress)
    }

    /// Executions of each slot on these packets, by our interpreter. `None` as for [`ProgramVersion::count`].
    ///
    /// # Errors
    /// If the maps cannot be read.
    pub fn visits(&self, packets: &[Vec<u8>], ingress: u32) -> Result<Option<Vec<u64>>> {
        let form = self.form();
        Ok(form.run(&form.slots()?, packets, ingress)?.map(|(_, visits)| visits))
    }
}

/// Number of times that packets are run, the last time counted: after the first, tables know the flows, and
/// after the second, caches hold copies of the entries that the first one wrote.
const TIMES: u32 = 3;

/// One form of a program, with the maps that it is loaded with.
#[derive(Clone, Copy, Debug)]
pub struct ProgramVersion<'f, 'o> {
    /// Its maps and types.
    pub session: &'f Session<'o>,
    /// The function that is the program.
    pub func: FuncId,
    /// The form.
    pub linked: &'f LinkedProgram,
}

impl ProgramVersion<'_, '_> {
    /// Instructions executed on each packet, with the maps as they are once these packets have gone through:
    /// of BPF by our interpreter, and of the image that the JIT makes of the program. Deterministic. Without
    /// the executed instructions if the interpreter does not model all that the program needs.
    ///
    /// # Errors
    /// If the maps cannot be read, or the kernel refuses a program that it accepted before.
    pub fn count(self, packets: &[Vec<u8>], ingress: u32) -> Result<InsnCounts> {
        let slots = self.slots()?;
        let image = self.image(&slots)?;
        let mut counted =
            InsnCounts { image_instructions: image.as_ref().map(JitImage::len), ..InsnCounts::default() };
        if let Some((executed, visits)) = self.run(&slots, packets, ingress)? {
            let each = |total: u64| total as f64 / packets.len().max(1) as f64;
            let of = |wanted: fn(&Insn) -> bool| {
                let insns = decode_all(&raw(&slots)).unwrap_or_default();
                insns.iter().filter(|(_, insn)| wanted(insn)).map(|(slot, _)| visits[*slot]).sum::<u64>()
            };
            counted.executed = Some(each(executed));
            counted.branches = Some(each(of(|insn| matches!(insn, Insn::Branch { .. }))));
            counted.map_calls = Some(each(of(is_map_call)));
            counted.image_executed = image.map(|i| i.executed(&visits, packets.len()));
        }
        Ok(counted)
    }

    /// Instructions executed on all packets together, and how often each slot was.
    fn run(self, slots: &[u64], packets: &[Vec<u8>], ingress: u32) -> Result<Option<(u64, Vec<u64>)>> {
        let Some(InterpreterModel { mut machine, program, .. }) =
            model(self.session, slots, ContextKind::Xdp)?
        else {
            return Ok(None);
        };
        let interpreter =
            millstream_interp::bytecode::BytecodeInterpreter::new(std::slice::from_ref(&program));
        for _ in 0..TIMES {
            (machine.visits, machine.executed) = (vec![0; slots.len()], 0);
            for packet in packets {
                machine.reset(packet);
                // `ingress_ifindex` of `struct xdp_md`.
                machine.set_context_field(12, ingress);
                if interpreter.run_context(&mut machine, 0).is_err() {
                    return Ok(None);
                }
            }
        }
        Ok(Some((machine.executed, machine.visits)))
    }

    /// The final instructions.
    fn slots(self) -> Result<Vec<u64>> {
        let slots = self.session.slots(self.linked);
        slots.map(|(slots, _)| slots).map_err(|e| self.refused(e))
    }

    /// The machine code of a copy, divided by instructions. `None` for objects without types, which can have
    /// no line information.
    fn image(self, slots: &[u64]) -> Result<Option<JitImage>> {
        if self.session.object().btf.is_none() {
            return Ok(None);
        }
        let Ok(insns) = decode_all(&raw(slots)) else { return Ok(None) };
        let marked = with_slot_lines(self.linked, insns.iter().map(|(slot, _)| *slot as u32));
        let program = self.session.load(self.func, &marked).map_err(|e| self.refused(e))?;
        JitImage::read(&program, slots)
    }

    fn refused(self, error: ProgramError) -> Error {
        let name = self.session.object().functions[self.func.index()].name.clone();
        Error::Program { name, source: Box::new(error) }
    }
}

fn raw(slots: &[u64]) -> Vec<RawInsn> {
    slots.iter().map(|s| RawInsn::from_bytes(s.to_ne_bytes())).collect()
}

/// Returns true if the instruction calls `bpf_map_lookup_elem`, `bpf_map_update_elem` or
/// `bpf_map_delete_elem`.
fn is_map_call(insn: &Insn) -> bool {
    matches!(
        insn,
        Insn::Call(Callee::Helper(id::MAP_LOOKUP_ELEM | id::MAP_UPDATE_ELEM | id::MAP_DELETE_ELEM))
    )
}

/// A linked program with one record of line information for each of these slots, the slot as the line.
pub(crate) fn with_slot_lines(linked: &LinkedProgram, slots: impl Iterator<Item = u32>) -> LinkedProgram {
    let (file, text) = (StrOff(0), StrOff(0));
    let line_info = slots.map(|slot| LineInfo { insn: slot, file, text, line: slot, column: 0 }).collect();
    LinkedProgram { line_info, ..linked.clone() }
}

/// The program of this name, or the only one that is XDP or has no known type.
fn choose<'o>(object: &'o Object, name: Option<&str>) -> Result<&'o millstream_object::EntryProgram> {
    use millstream_object::ProgramType as Type;
    let fits = |p: &&millstream_object::EntryProgram| match name {
        Some(name) => p.name == name,
        None => matches!(p.kind.program_type, Type::XDP | Type::UNSPEC),
    };
    let mut found = object.programs.iter().filter(fits);
    let names = || object.programs.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
    match (found.next(), found.next(), name) {
        (Some(program), None, _) => Ok(program),
        (Some(_), Some(_), _) => {
            Err(Error::Unusable(format!("several XDP programs, choose one: {}", names())))
        }
        (None, _, Some(name)) => Err(Error::Unusable(format!("no program {name:?}; there are: {}", names()))),
        (None, _, None) => Err(Error::Unusable(format!("no XDP program; there are: {}", names()))),
    }
}

/// Reports whether all of a map's first entries are zero.
fn is_empty(map: &KernelMap) -> Result<bool> {
    let mut key = None;
    for _ in 0..LOOKED_AT {
        key = map.next_key(key.as_deref())?;
        let Some(key) = &key else { return Ok(true) };
        if map.lookup(key)?.is_some_and(|value| value.iter().any(|byte| *byte != 0)) {
            return Ok(false);
        }
        // An entry of zeros says something where it is there by itself.
        if map.info().map_type != MapType::ARRAY && map.lookup(key)?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes entries that are all of this map.
fn write(map: &KernelMap, entries: &[MapEntry]) -> Result<()> {
    let (key_len, value_len) = (map.info().key_size as usize, map.info().value_size as usize);
    let fits = |e: &MapEntry| e.key.len() == key_len && e.value.len() == value_len;
    if map.info().map_type.is_percpu() || !entries.iter().all(fits) {
        let one = |e: &MapEntry| map.update_all_cpus(&e.key, &e.value, UpdateMode::Any);
        return Ok(entries.iter().try_for_each(one)?);
    }
    let keys: Vec<u8> = entries.iter().flat_map(|e| e.key.iter().copied()).collect();
    let values: Vec<u8> = entries.iter().flat_map(|e| e.value.iter().copied()).collect();
    Ok(map.update_batch(&keys, &values)?)
}
