//! A program with maps of its own in the place of all that it may write: what it does to them nobody else sees.

use std::os::fd::AsFd;

use millstream_bpf::module;
use millstream_ir::usage::Access;
use millstream_kernel::{Map, MapType, Program, RingBuffer, TestOutput, TestRun, UpdateMode};
use millstream_lab::equal::compare::Contents;
use millstream_loader::{Loader, Session};
use millstream_object::{self as object, FuncId, LinkedProgram, MapId};

use super::aids::{Aids, records};
use super::sample::Sample;
use super::{Case, Unjudged};
use crate::caches::Caches;
use crate::guard;

/// Bytes of all maps that are copied, at most.
const MOST_BYTES: usize = 64 << 20;
/// Of maps that nothing was specialised on, entries that are copied at most.
const SOME: usize = 1 << 14;
/// Entries that are written at once.
const BATCH: usize = 1024;

/// How a shadow comes by a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// It is the session's: no program writes it.
    Shared,
    /// A new one, with the contents of the session's.
    Copied,
    /// A new one.
    New,
}

/// What a program array holds, by slot.
type Slots = Vec<(Vec<u8>, FuncId)>;

/// The contents of the maps to be copied, read one after the other while programs may write them: what matters is
/// that every shadow begins with the same.
#[derive(Debug)]
pub(super) struct Moment {
    roles: Vec<Role>,
    /// Map, number of entries that it can hold, and contents.
    copied: Vec<(MapId, u32, Contents)>,
    /// Program arrays: map, and what is in which slot.
    arrays: Vec<(MapId, Slots)>,
}

impl Moment {
    /// Reads the maps.
    pub(super) fn take(case: &Case<'_, '_>) -> Result<Moment, Unjudged> {
        let mut moment = Moment { roles: Vec::new(), copied: Vec::new(), arrays: Vec::new() };
        let (mut bytes, object) = (0usize, case.compiler.object());
        for (at, map) in object.maps.iter().enumerate() {
            let id = MapId(at as u32);
            let live = case.session.map(id);
            let role = role(case, id, live)?;
            moment.roles.push(role);
            let Some(live) = live else { continue };
            if live.info().map_type == MapType::PROG_ARRAY {
                moment.arrays.push((id, programs(case, map, live)?));
            }
            if role != Role::Copied {
                continue;
            }
            let (capacity, contents) = contents(case, id, live)?;
            let entry = (live.info().key_size as usize) + live.value_len()?;
            let is_array = matches!(live.info().map_type, MapType::ARRAY | MapType::PERCPU_ARRAY);
            bytes += entry * if is_array { capacity as usize } else { contents.len() };
            if bytes > MOST_BYTES {
                return Err(Unjudged::Large(map.name.clone()));
            }
            moment.copied.push((id, capacity, contents));
        }
        Ok(moment)
    }

    /// The copied maps: number, and what was in them.
    pub(super) fn contents(&self) -> impl Iterator<Item = (MapId, &Contents)> {
        self.copied.iter().map(|(id, _, contents)| (*id, contents))
    }
}

fn role(case: &Case<'_, '_>, id: MapId, live: Option<&Map>) -> Result<Role, Unjudged> {
    let Some(live) = live else { return Ok(Role::New) };
    if case.compiler.is_own(id) {
        // The profile's are not touched; the guard's is to hold another token, twins come with the candidate.
        let profile = id == case.compiler.sketch() || id == case.compiler.samples();
        return Ok(if profile { Role::Shared } else { Role::New });
    }
    let written = matches!(case.compiler.access(module::map(id)), Access::Written | Access::FieldsWritten(_));
    match live.info().map_type {
        MapType::PROG_ARRAY | MapType::PERF_EVENT_ARRAY | MapType::RINGBUF => Ok(Role::New),
        // A lookup makes an entry recent.
        MapType::LRU_HASH | MapType::LRU_PERCPU_HASH => Ok(Role::Copied),
        _ if !written => Ok(Role::Shared),
        MapType::HASH | MapType::ARRAY | MapType::PERCPU_HASH | MapType::PERCPU_ARRAY | MapType::LPM_TRIE => {
            Ok(Role::Copied)
        }
        kind => Err(Unjudged::Map(live.info().name.clone(), kind)),
    }
}

/// What is copied of a map, and for how many entries the copy has room.
fn contents(case: &Case<'_, '_>, id: MapId, live: &Map) -> Result<(u32, Contents), Unjudged> {
    let all = live.entries()?;
    let most = live.info().max_entries;
    let is_array = matches!(live.info().map_type, MapType::ARRAY | MapType::PERCPU_ARRAY);
    let whole = is_array || case.specialised.contains(&module::map(id));
    let taken = if whole { all.len() } else { SOME };
    let contents = all.iter().take(taken).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
    Ok((if whole { most } else { most.min(4 * SOME as u32) }, contents))
}

/// What a program array holds. All must be of the object, or calls would leave the replay.
fn programs(case: &Case<'_, '_>, map: &object::Map, live: &Map) -> Result<Slots, Unjudged> {
    let mut held = Vec::new();
    for (slot, id) in live.entries()?.iter() {
        let id = id.try_into().map(u32::from_ne_bytes).unwrap_or(0);
        let found = case.programs.iter().find(|(_, program)| *program == id);
        let (func, _) = found.ok_or_else(|| Unjudged::Foreign(map.name.clone()))?;
        held.push((slot.to_vec(), *func));
    }
    Ok(held)
}

/// A side of the replay.
#[derive(Debug)]
pub(super) struct Shadow<'c> {
    session: Session<'c>,
    aids: Aids,
    rings: Vec<RingBuffer>,
    program: Program,
    /// Programs that tail calls reach.
    others: Vec<(FuncId, Program)>,
    answer: Answer,
}

/// What one packet gave.
#[derive(Debug, Default)]
pub(super) struct Answer {
    ran: bool,
    output: TestOutput,
    /// What it told: records, each behind its length.
    pub(super) told: Vec<u8>,
}

impl Answer {
    /// What came out; `None` if the program cannot be run on the packet.
    pub(super) fn output(&self) -> Option<&TestOutput> {
        self.ran.then_some(&self.output)
    }
}

impl<'c> Shadow<'c> {
    /// Loads `linked` as the program, with maps as they were at the moment.
    pub(super) fn new(
        case: &Case<'c, '_>,
        moment: &Moment,
        linked: &LinkedProgram,
    ) -> Result<Shadow<'c>, Unjudged> {
        let session = session(case, moment)?;
        let aids = Aids::new()?;
        let (compiler, object) = (case.compiler, case.compiler.object());
        let load = |func: FuncId, linked: &LinkedProgram| -> Result<Program, Unjudged> {
            let (slots, _) = session.slots(linked)?;
            Ok(session.load_raw(func, &aids.rewrite(&slots)?)?)
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
        let rings =
            (0..object.maps.len()).filter_map(ring).map(Map::ring_buffer).collect::<Result<_, _>>()?;
        Ok(Shadow { aids, rings, program, others, session, answer: Answer::default() })
    }

    /// Ids of its programs.
    pub(super) fn ids(&self) -> Result<Vec<u32>, Unjudged> {
        let all = std::iter::once(&self.program).chain(self.others.iter().map(|(_, p)| p));
        Ok(all.map(Program::id).collect::<Result<_, _>>()?)
    }

    /// Runs it on a packet.
    pub(super) fn run(&mut self, sample: &Sample, time: u64, random: u64) {
        self.aids.set(time, random);
        let run = TestRun { context: &sample.context, ..TestRun::packet(&sample.packet) };
        let answer = &mut self.answer;
        let mut out = self.program.test_run_into(&run, &mut answer.output);
        while matches!(&out, Err(e) if e.errno() == Some(libc::EINTR)) {
            out = self.program.test_run_into(&run, &mut answer.output);
        }
        answer.ran = out.is_ok();
        answer.told.clear();
        self.aids.told(&mut answer.told);
        self.rings.iter_mut().for_each(|ring| records(ring, &mut answer.told));
    }

    /// What the last packet gave.
    pub(super) fn answer(&self) -> &Answer {
        &self.answer
    }

    /// What one of the copied maps holds.
    pub(super) fn contents(&self, map: MapId) -> Result<Contents, Unjudged> {
        let Some(map) = self.session.map(map) else { return Ok(Contents::new()) };
        let mut all: Contents = map.entries()?.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        all.sort_unstable();
        Ok(all)
    }

    /// The maps and types, for more copies.
    pub(super) fn session(&self) -> &Session<'c> {
        &self.session
    }
}

/// Maps as they were at the moment.
fn session<'c>(case: &Case<'c, '_>, moment: &Moment) -> Result<Session<'c>, Unjudged> {
    let object = case.compiler.object();
    let mut loader = Loader::new(object).only(&case.compiler.described().name)?;
    for (at, map) in object.maps.iter().enumerate() {
        let Some(live) = case.session.map(MapId(at as u32)) else { continue };
        match moment.roles[at] {
            Role::Shared => {
                loader = loader.reuse_map(&map.name, live.try_clone()?)?;
            }
            _ if map.origin.is_global() || case.compiler.is_own(MapId(at as u32)) => {}
            _ => {
                let copied = moment.copied.iter().find(|(id, _, _)| id.index() == at);
                let entries = copied.map_or(live.info().max_entries, |(_, capacity, _)| *capacity);
                loader = loader.max_entries(&map.name, entries)?;
            }
        }
    }
    let mut session = loader.prepare()?;
    for (place, twin) in &case.twins {
        session.replace_map(*place, twin.try_clone()?);
    }
    let mut caches = Caches::new(case.caches.iter().map(|c| (c.of, c.shape)))?;
    // Nobody has run yet.
    caches.close();
    for (of, map) in caches.maps() {
        if let Some(place) = case.compiler.cache(of) {
            session.replace_map(place, map.try_clone()?);
        }
    }
    if let Some(map) = session.map(case.compiler.guard_map()) {
        map.mmap(true)?.write(guard::TOKEN as usize, &u64::from(case.token).to_ne_bytes());
    }
    for (id, _, contents) in &moment.copied {
        if let Some(map) = session.map(*id) {
            fill(map, contents)?;
        }
    }
    Ok(session)
}

fn fill(map: &Map, contents: &Contents) -> Result<(), Unjudged> {
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
