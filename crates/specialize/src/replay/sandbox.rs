//! A program with maps of its own in place of all that it may write: nobody else sees its writes.

use std::os::fd::AsFd;

use millstream_bpf::module;
use millstream_ir::usage::MapAccess;
use millstream_isa::MapType;
use millstream_kernel::{
    KernelMap, KernelProgram, MapInfo, MapSpec, RingBuffer, TestOutput, TestRun, UpdateMode,
};
use millstream_lab::differential::compare::SortedEntries;
use millstream_loader::{ObjectLoader, Session};
use millstream_object::{self as object, FuncId, LinkedProgram, MapId};
use millstream_specializer::guard_state::TOKEN;

use super::replay_stubs::{ReplayStubs, records};
use super::sample::PacketSample;
use super::{ReplayCase, ReplayError};
use crate::caches::EntryCaches;
use crate::guard;

/// Bytes of all maps that are copied, at most.
const MOST_BYTES: usize = 64 << 20;
/// Entries that are copied at most, of a map on which nothing was specialised.
const SOME: usize = 1 << 14;
/// Entries that are written at once.
const BATCH: usize = 1024;

/// Source of a map of a shadow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SandboxMapKind {
    /// The session's map: no program writes it.
    Shared,
    /// A new one, with the contents of the session's.
    Copied,
    /// A new one, with copies of the maps inside the session's.
    Nested,
    /// A new one.
    New,
}

/// Contents of a program array, by slot.
type ProgramSlots = Vec<(Vec<u8>, FuncId)>;

/// A map that is copied: one of the object's, or an inner one, in a slot of one of the object's.
#[derive(Debug)]
pub(super) struct CopiedMap {
    map: MapId,
    slot: Option<Vec<u8>>,
    info: MapInfo,
    /// Entries for which the copy has room.
    capacity: u32,
    pub(super) contents: SortedEntries,
}

impl CopiedMap {
    /// Name of the map, for reports.
    pub(super) fn name(&self, object: &object::Object) -> String {
        let name = &object.maps[self.map.index()].name;
        self.slot.as_ref().map_or_else(|| name.clone(), |key| format!("{name}[{}]", hex::encode(key)))
    }

    /// Bytes of all entries for which there is room.
    fn bytes(&self) -> usize {
        (self.info.key_size as usize + self.info.value_size as usize) * self.capacity as usize
    }
}

/// The contents of the maps to be copied, read one after the other while programs may write them: it only
/// matters that every shadow begins with the same.
#[derive(Debug)]
pub(super) struct InitialMapState {
    roles: Vec<SandboxMapKind>,
    copied: Vec<CopiedMap>,
    /// Program arrays: map, and contents by slot.
    arrays: Vec<(MapId, ProgramSlots)>,
}

impl InitialMapState {
    /// Reads the maps.
    pub(super) fn take(case: &ReplayCase<'_, '_>) -> Result<InitialMapState, ReplayError> {
        let mut moment = InitialMapState { roles: Vec::new(), copied: Vec::new(), arrays: Vec::new() };
        let (mut bytes, object) = (0usize, case.compiler.object());
        for (at, map) in object.maps.iter().enumerate() {
            let id = MapId(at as u32);
            let live = case.session.map(id);
            let role = role(case, id, live)?;
            moment.roles.push(role);
            let Some(live) = live else { continue };
            if live.info().map_type == MapType::PROG_ARRAY && !case.compiler.is_own(id) {
                moment.arrays.push((id, programs(case, map, live)?));
            }
            match role {
                SandboxMapKind::Shared | SandboxMapKind::New => {}
                SandboxMapKind::Copied => {
                    let whole = case.specialised.contains(&module::map(id));
                    let (capacity, contents) = contents(live, whole)?;
                    let entry = (live.info().key_size as usize) + live.value_len()?;
                    let is_array = live.info().map_type.is_array();
                    bytes += entry * if is_array { capacity as usize } else { contents.len() };
                    let info = live.info().clone();
                    moment.copied.push(CopiedMap { map: id, slot: None, info, capacity, contents });
                }
                SandboxMapKind::Nested => {
                    for inner in nested(case, id, live)? {
                        bytes += inner.bytes();
                        moment.copied.push(inner);
                    }
                }
            }
            if bytes > MOST_BYTES {
                return Err(ReplayError::Large(map.name.clone()));
            }
        }
        Ok(moment)
    }

    /// The copied maps, and their contents.
    pub(super) fn copied(&self) -> &[CopiedMap] {
        &self.copied
    }
}

fn role(
    case: &ReplayCase<'_, '_>,
    id: MapId,
    live: Option<&KernelMap>,
) -> Result<SandboxMapKind, ReplayError> {
    let Some(live) = live else { return Ok(SandboxMapKind::New) };
    if case.compiler.is_own(id) {
        // The profile's maps are not touched; the guard's holds another token, twins come with the candidate.
        let profile = id == case.compiler.sketch() || id == case.compiler.samples();
        return Ok(if profile { SandboxMapKind::Shared } else { SandboxMapKind::New });
    }
    let written =
        matches!(case.compiler.access(module::map(id)), MapAccess::Written | MapAccess::FieldsWritten(_));
    match live.info().map_type {
        MapType::PROG_ARRAY | MapType::PERF_EVENT_ARRAY | MapType::RINGBUF => Ok(SandboxMapKind::New),
        // A lookup makes an entry recent.
        MapType::LRU_HASH | MapType::LRU_PERCPU_HASH => Ok(SandboxMapKind::Copied),
        kind if kind.is_map_of_maps() => Ok(match case.compiler.inside(id) {
            Some((MapType::LRU_HASH | MapType::LRU_PERCPU_HASH, _))
            | Some((_, MapAccess::Written | MapAccess::FieldsWritten(_))) => SandboxMapKind::Nested,
            _ => SandboxMapKind::Shared,
        }),
        _ if !written => Ok(SandboxMapKind::Shared),
        MapType::HASH | MapType::ARRAY | MapType::PERCPU_HASH | MapType::PERCPU_ARRAY | MapType::LPM_TRIE => {
            Ok(SandboxMapKind::Copied)
        }
        kind => Err(ReplayError::Map(live.info().name.clone(), kind)),
    }
}

/// Reads the inner maps of a map of maps. Each must be there once, and none may be the object's.
fn nested(case: &ReplayCase<'_, '_>, outer: MapId, live: &KernelMap) -> Result<Vec<CopiedMap>, ReplayError> {
    let mut found: Vec<(u32, CopiedMap)> = Vec::new();
    let own = |id| {
        let all = (0..case.compiler.object().maps.len() as u32).map(MapId);
        // A map that code names is in the place of one of the session's.
        let mut others = all.filter(|at| !case.compiler.is_own(*at));
        others.any(|at| case.session.map(at).is_some_and(|map| map.id() == id))
    };
    for (slot, id) in live.entries()?.iter() {
        let id = id.try_into().map(u32::from_ne_bytes).unwrap_or(0);
        let inner = KernelMap::from_id(id)?;
        let info = inner.info().clone();
        if own(id) || found.iter().any(|(other, _)| *other == id) {
            return Err(ReplayError::Map(info.name, info.map_type));
        }
        let (capacity, contents) = contents(&inner, false)?;
        found.push((id, CopiedMap { map: outer, slot: Some(slot.to_vec()), info, capacity, contents }));
    }
    Ok(found.into_iter().map(|(_, copied)| copied).collect())
}

/// Reads the entries of a map that are copied, all of them or as many as are enough, and the number for which
/// the copy has room.
fn contents(live: &KernelMap, whole: bool) -> Result<(u32, SortedEntries), ReplayError> {
    let all = live.entries()?;
    let most = live.info().max_entries;
    let is_array = live.info().map_type.is_array();
    let whole = is_array || whole;
    let taken = if whole { all.len() } else { SOME };
    let contents = all.iter().take(taken).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
    Ok((if whole { most } else { most.min(4 * SOME as u32) }, contents))
}

/// Reads a program array. All programs must belong to the object, or calls would leave the replay.
fn programs(
    case: &ReplayCase<'_, '_>,
    map: &object::ObjectMap,
    live: &KernelMap,
) -> Result<ProgramSlots, ReplayError> {
    let mut held = Vec::new();
    for (slot, id) in live.entries()?.iter() {
        let id = id.try_into().map(u32::from_ne_bytes).unwrap_or(0);
        let found = case.programs.iter().find(|(_, program)| *program == id);
        let (func, _) = found.ok_or_else(|| ReplayError::Foreign(map.name.clone()))?;
        held.push((slot.to_vec(), *func));
    }
    Ok(held)
}

/// A side of the replay.
#[derive(Debug)]
pub(super) struct ReplaySandbox<'c> {
    session: Session<'c>,
    /// Inner maps, in the order of the moment's.
    inner: Vec<KernelMap>,
    aids: ReplayStubs,
    rings: Vec<RingBuffer>,
    program: KernelProgram,
    /// Programs that tail calls reach.
    others: Vec<(FuncId, KernelProgram)>,
    answer: PacketResult,
}

/// Result of one packet.
#[derive(Debug, Default)]
pub(super) struct PacketResult {
    ran: bool,
    output: TestOutput,
    /// Its records, each behind its length.
    pub(super) told: Vec<u8>,
}

impl PacketResult {
    /// Output of the test run; `None` if the program cannot be run on the packet.
    pub(super) fn output(&self) -> Option<&TestOutput> {
        self.ran.then_some(&self.output)
    }
}

impl<'c> ReplaySandbox<'c> {
    /// Loads `linked` as the program, with maps as they were at the moment. It calls `callees` through arrays
    /// of its own.
    pub(super) fn new(
        case: &ReplayCase<'c, '_>,
        moment: &InitialMapState,
        linked: &LinkedProgram,
        callees: &[(FuncId, &LinkedProgram)],
    ) -> Result<ReplaySandbox<'c>, ReplayError> {
        let (session, inner) = session(case, moment)?;
        let aids = ReplayStubs::new()?;
        let (compiler, object) = (case.compiler, case.compiler.object());
        let load = |func: FuncId, linked: &LinkedProgram| -> Result<KernelProgram, ReplayError> {
            let (slots, _) = session.slots(linked)?;
            let (slots, appended) = aids.rewrite(&slots)?;
            Ok(session.load_rewritten(func, &slots, linked, &appended)?)
        };
        let program = load(compiler.program(), linked)?;
        let mut others = Vec::new();
        for func in moment.arrays.iter().flat_map(|(_, held)| held.iter().map(|(_, func)| *func)) {
            if !others.iter().any(|(f, _)| *f == func) {
                let linked = object.link(func).map_err(millstream_loader::Error::from)?;
                others.push((func, load(func, &linked)?));
            }
        }
        for (array, held) in &moment.arrays {
            let Some(array) = session.map(*array) else { continue };
            for (slot, func) in held {
                if let Some((_, program)) = others.iter().find(|(f, _)| f == func) {
                    array.update_fd(slot, program.as_fd())?;
                }
            }
        }
        let ring = |at| session.map(MapId(at as u32)).filter(|m| m.info().map_type == MapType::RINGBUF);
        let mut variants = Vec::new();
        for (func, linked) in callees {
            variants.push((*func, load(*func, linked)?));
        }
        for (array, held) in moment.arrays.iter().filter(|_| !variants.is_empty()) {
            let place = case.arrays.iter().find(|(of, _)| of == array);
            let Some(place) = place.and_then(|(_, place)| session.map(*place)) else { continue };
            for (slot, func) in held {
                // A program without a variant is left to the call through the array itself.
                let first = (*func == compiler.program()).then_some(&program);
                let variant = variants.iter().find(|(f, _)| f == func).map(|(_, p)| p);
                if let Some(variant) = variant.or(first) {
                    place.update_fd(slot, variant.as_fd())?;
                }
            }
        }
        others.extend(variants);
        let rings =
            (0..object.maps.len()).filter_map(ring).map(KernelMap::ring_buffer).collect::<Result<_, _>>()?;
        Ok(ReplaySandbox { aids, rings, program, others, session, inner, answer: PacketResult::default() })
    }

    /// Ids of its programs.
    pub(super) fn ids(&self) -> Result<Vec<u32>, ReplayError> {
        let all = std::iter::once(&self.program).chain(self.others.iter().map(|(_, p)| p));
        Ok(all.map(KernelProgram::id).collect::<Result<_, _>>()?)
    }

    /// Runs it on a packet.
    pub(super) fn run(&mut self, sample: &PacketSample, time: u64, random: u64) {
        self.aids.set(time, random);
        let run = TestRun { context: &sample.context, ..TestRun::packet(&sample.packet) };
        let answer = &mut self.answer;
        let mut out = self.program.test_run_into(&run, &mut answer.output);
        while matches!(&out, Err(e) if e.errno() == Some(libc::EINTR)) {
            out = self.program.test_run_into(&run, &mut answer.output);
        }
        answer.ran = out.is_ok();
        answer.told.clear();
        self.aids.take_records(&mut answer.told);
        self.rings.iter_mut().for_each(|ring| records(ring, &mut answer.told));
    }

    /// Result of the last packet.
    pub(super) fn answer(&self) -> &PacketResult {
        &self.answer
    }

    /// Reads the contents of the copied maps, in the order of the moment's.
    pub(super) fn contents(&self, moment: &InitialMapState) -> Result<Vec<SortedEntries>, ReplayError> {
        let mut inner = self.inner.iter();
        let mut held = |copied: &CopiedMap| {
            let map = if copied.slot.is_some() { inner.next() } else { self.session.map(copied.map) };
            let Some(map) = map else { return Ok(SortedEntries::new()) };
            let mut all: SortedEntries =
                map.entries()?.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
            all.sort_unstable();
            Ok(all)
        };
        moment.copied.iter().map(&mut held).collect()
    }

    /// The maps and types, for more copies.
    pub(super) fn session(&self) -> &Session<'c> {
        &self.session
    }
}

/// Makes maps as they were at the moment, and the inner ones.
fn session<'c>(
    case: &ReplayCase<'c, '_>,
    moment: &InitialMapState,
) -> Result<(Session<'c>, Vec<KernelMap>), ReplayError> {
    let object = case.compiler.object();
    let mut loader = ObjectLoader::new(object).only(&case.compiler.described().name)?;
    for (at, map) in object.maps.iter().enumerate() {
        let Some(live) = case.session.map(MapId(at as u32)) else { continue };
        match moment.roles[at] {
            SandboxMapKind::Shared => {
                loader = loader.reuse_map(&map.name, live.try_clone()?)?;
            }
            _ if map.origin.is_global() || case.compiler.is_own(MapId(at as u32)) => {}
            SandboxMapKind::Nested => {
                loader = match moment.copied.iter().find(|c| c.map.index() == at) {
                    Some(inner) => loader.reuse_map(&map.name, outer_like(live.info(), inner)?)?,
                    None => loader.max_entries(&map.name, live.info().max_entries)?,
                };
            }
            _ => {
                let copied = moment.copied.iter().find(|c| c.map.index() == at && c.slot.is_none());
                let entries = copied.map_or(live.info().max_entries, |c| c.capacity);
                loader = loader.max_entries(&map.name, entries)?;
            }
        }
    }
    let mut session = loader.prepare()?;
    for (place, twin) in &case.twins {
        session.replace_map(*place, twin.try_clone()?);
    }
    let mut caches = EntryCaches::new(case.caches.iter().map(|c| (c.of, c.shape)))?;
    // Nobody has run yet.
    caches.close();
    for (of, map) in caches.maps() {
        if let Some(place) = case.compiler.cache(of) {
            session.replace_map(place, map.try_clone()?);
        }
    }
    if let Some(map) = session.map(case.compiler.guard_map()) {
        map.mmap(true)?.write(TOKEN as usize, &case.token.to_ne_bytes());
    }
    let mut inner = Vec::new();
    for copied in &moment.copied {
        let Some(map) = session.map(copied.map) else { continue };
        let Some(slot) = &copied.slot else {
            fill(map, &copied.contents)?;
            continue;
        };
        let made = KernelMap::create(&like(copied))?;
        fill(&made, &copied.contents)?;
        map.update_fd(slot, made.as_fd())?;
        inner.push(made);
    }
    for (place, live) in &case.insides {
        let map = inside(case, moment, &inner, (*place, live))?.try_clone()?;
        session.replace_map(*place, map);
    }
    Ok((session, inner))
}

/// Map that a shadow has in place of one that code names: the copy, if there are copies.
fn inside<'m>(
    case: &ReplayCase<'_, '_>,
    moment: &InitialMapState,
    copies: &'m [KernelMap],
    (place, live): (MapId, &'m KernelMap),
) -> Result<&'m KernelMap, ReplayError> {
    let originals = moment.copied.iter().filter(|copied| copied.slot.is_some());
    if let Some((_, copy)) = originals.zip(copies).find(|(original, _)| original.info.id == live.id()) {
        return Ok(copy);
    }
    let is_copied = moment.roles.iter().enumerate().any(|(at, role)| {
        *role == SandboxMapKind::Nested
            && case.compiler.places(module::map(MapId(at as u32))).contains(&place)
    });
    // It has been removed since, and only live programs may write it.
    if is_copied { Err(ReplayError::Map(live.info().name.clone(), live.info().map_type)) } else { Ok(live) }
}

/// Makes a map of maps like another, for inner maps like this one. Guards know it by its name: filling it is
/// no event for sessions of this process.
fn outer_like(live: &MapInfo, inner: &CopiedMap) -> Result<KernelMap, ReplayError> {
    let MapInfo { map_type, key_size, value_size, max_entries, flags, .. } = *live;
    let template = KernelMap::create(&like(inner))?;
    let inner = Some(&template);
    let name = guard::SHADOW;
    let spec =
        MapSpec { name, map_type, key_size, value_size, max_entries, flags, inner, ..MapSpec::default() };
    Ok(KernelMap::create(&spec)?)
}

/// Describes an inner map like the one that is copied.
fn like(copied: &CopiedMap) -> MapSpec<'_> {
    let MapInfo { map_type, key_size, value_size, flags, ref name, .. } = copied.info;
    MapSpec {
        name,
        map_type,
        key_size,
        value_size,
        max_entries: copied.capacity,
        flags,
        ..MapSpec::default()
    }
}

fn fill(map: &KernelMap, contents: &SortedEntries) -> Result<(), ReplayError> {
    for chunk in contents.chunks(BATCH) {
        let keys: Vec<u8> = chunk.iter().flat_map(|(k, _)| k).copied().collect();
        let values: Vec<u8> = chunk.iter().flat_map(|(_, v)| v).copied().collect();
        if map.update_batch(&keys, &values).is_ok() {
            continue;
        }
        for (key, value) in chunk {
            map.update(key, value, UpdateMode::Any)?;
        }
    }
    Ok(())
}
