//! Contents of maps, read through bpf(2) during a snapshot, and recorded: the inputs of a variant.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use millstream_ir::usage::{self, MapAccess};
use millstream_ir::{KeyPiece, Map, Size};
use millstream_isa::MapType;
use millstream_kernel::{BatchEntries, KernelMap};
use millstream_loader::Session;
use millstream_object::MapId;
use millstream_specializer::changes::{DirtyKeys, ShadowUpdate, ShadowUpdates, TouchedKeys};
use millstream_specializer::snapshot::{EntriesByMap, FewValues, MapEntries, SnapshotReader, word};
use millstream_specializer::transform::{MapContents, PerfectHashTable, RowLayout, ShadowTable};
use millstream_specializer::variant::{VariantCompiler, object_map};
use rustc_hash::FxHashMap;

use crate::guard::{Guard, GuardError};
use crate::map_users::{self, MapRejection, MapUsers, OwnPrograms};
use crate::watched_inner_maps::WatchedInnerMaps;

/// A map that may be specialised on.
#[derive(Debug)]
pub struct SpecializableMap {
    /// The map.
    pub map: KernelMap,
    /// Access of programs to it. A map that they write is a hash map to which they add no entries: it is
    /// known which keys are absent, and nothing else.
    pub access: MapAccess,
    /// Index by which the guard knows it; 0 if it is not watched.
    pub index: u32,
    /// True if nobody can write it, so that it needs no guard.
    pub is_constant: bool,
    /// For a map of maps, true if the contents of its inner maps may be read for code: programs do not write
    /// them, each inner map is watched, and nobody else holds it.
    pub knows_inside: bool,
    /// For a map of maps, the object's own maps that may be inside, by their ids.
    own: BTreeMap<u32, Map>,
}

impl SpecializableMap {
    /// Creates the source for a map that is not watched yet.
    pub fn new(map: KernelMap, access: MapAccess) -> SpecializableMap {
        let is_constant = map_users::is_constant(&map);
        let access = if is_constant { MapAccess::ReadOnly } else { access };
        SpecializableMap { map, access, index: 0, is_constant, knows_inside: false, own: BTreeMap::new() }
    }

    /// Returns true if its contents are known, and not only which keys are absent.
    pub fn is_known(&self) -> bool {
        self.access != MapAccess::Written
    }

    /// Returns true if a write of one entry may remove others: LRU maps make room.
    pub fn evicts(&self) -> bool {
        self.map.info().map_type == MapType::LRU_HASH
    }

    /// Returns true if it is a map of maps.
    fn is_outer(&self) -> bool {
        self.map.info().map_type.is_map_of_maps()
    }

    /// Reason why others may write it, if they may. Only system calls write maps of maps.
    pub fn foreign(&self, holders: &MapUsers, ours: &OwnPrograms) -> Option<MapRejection> {
        if self.is_constant || self.is_outer() { None } else { holders.foreign(self.map.id(), ours) }
    }
}

/// Finds the maps that lookups of the program may be specialised on, and the reasons why others may not. The
/// operator states for the `approximate` LRU maps that lookups need not count as use.
pub fn sources(
    compiler: &VariantCompiler,
    session: &Session<'_>,
    approximate: &BTreeSet<String>,
) -> (FxHashMap<Map, SpecializableMap>, Vec<(String, String)>) {
    let mut sources = FxHashMap::default();
    let mut refused = Vec::new();
    for map in compiler.maps() {
        let name = compiler.declaration(map).name.clone();
        let access = compiler.access(map);
        let made = session.map(object_map(map)).and_then(|m| m.try_clone().ok());
        let is_lost = |m: &KernelMap| m.info().map_type != MapType::HASH || compiler.adds(map);
        let why = match &made {
            None => Some("it is not made by the loader".to_owned()),
            Some(m) if access == MapAccess::Written && !map_users::is_constant(m) && is_lost(m) => {
                Some("programs write it".to_owned())
            }
            Some(m) => map_users::by_kind(m, approximate.contains(&name)).map(|w| w.to_string()),
        };
        match (why, made) {
            (None, Some(made)) => {
                let own = compiler.may_be_inside(map).into_iter();
                let own =
                    own.filter_map(|inner| Some((session.map(object_map(inner))?.id(), inner))).collect();
                sources.insert(map, SpecializableMap { own, ..SpecializableMap::new(made, access) });
            }
            (why, _) => refused.push((name, why.unwrap_or_default())),
        }
    }
    (sources, refused)
}

/// Finds the maps that programs write and that may have caches, if nobody else writes them; no inner ones.
pub fn cacheable(compiler: &VariantCompiler, session: &Session<'_>) -> FxHashMap<Map, SpecializableMap> {
    let made = |map| session.map(object_map(map)).and_then(|m| m.try_clone().ok());
    let source = |map| Some((map, SpecializableMap::new(made(map)?, MapAccess::Written)));
    let own = compiler.cacheable().filter(|map| compiler.inner(*map).0.is_empty());
    own.filter_map(source).filter(|(_, source)| !source.is_constant).collect()
}

/// Finds the inner maps that may have caches, or be known, by the templates that stand for them. A template
/// is left out if one of the maps in which lookups may be made is excluded by name.
///
/// # Errors
/// If the guard can watch no more maps.
pub fn nested(
    compiler: &VariantCompiler,
    session: &Session<'_>,
    excluded: &[String],
    guard: &mut Guard,
) -> Result<FxHashMap<Map, WatchedInnerMaps>, GuardError> {
    let mut nested = FxHashMap::default();
    // Maps of one shape may replace each other, so the guard has one index for all.
    let mut indices: Vec<(Vec<MapId>, u32)> = Vec::new();
    for template in compiler.templates() {
        let (has_caches, is_known) = (compiler.cache(template).is_some(), compiler.knows_inside(template));
        let (outer, others) = compiler.inner(template);
        let is_free = |id: &MapId| !excluded.contains(&compiler.object().maps[id.index()].name);
        if !(has_caches || is_known) || !outer.iter().chain(&others).all(is_free) {
            continue;
        }
        let index = match indices.iter().find(|(of, _)| *of == outer) {
            Some((_, index)) => *index,
            None => match guard.reserve(compiler.declaration(template).key_size) {
                // They are looked up, then.
                Err(GuardError::TooMany) if !has_caches => continue,
                reserved => reserved?,
            },
        };
        indices.push((outer.clone(), index));
        let made = |ids: Vec<MapId>| -> Option<Vec<KernelMap>> {
            ids.into_iter().map(|id| session.map(id)?.try_clone().ok()).collect()
        };
        if let (Some(outer), Some(others)) = (made(outer), made(others)) {
            let mut inner = WatchedInnerMaps::new(outer, others, index);
            (inner.has_caches, inner.is_known) = (has_caches, is_known);
            nested.insert(template, inner);
        }
    }
    Ok(nested)
}

/// Runs of bytes that are equal in all values of a map, by their offset.
type ConstantRanges = BTreeMap<Map, Vec<(u32, Vec<u8>)>>;
/// Words of keys that have few values.
type FewValuesByMap = BTreeMap<Map, Vec<FewValues>>;
/// Results of lookups, by map and key.
type LookupResults = BTreeMap<(Map, Vec<u8>), Option<Vec<u8>>>;

/// Most values of a word that count as few.
const FEW: usize = 8;
/// The key of an array.
const INDEX: KeyPiece = KeyPiece { offset: 0, size: Size::W };

/// An inner map of a map of maps that code has a name for, and whose contents it knows.
#[derive(Clone, Debug)]
struct InnerMapSource {
    source: Arc<SpecializableMap>,
    /// The template that stands for the maps of its shape: events do not say which of them is written.
    template: Map,
}

/// The maps, and everything that was read from them.
#[derive(Debug)]
pub struct MapSnapshot<'m> {
    sources: &'m FxHashMap<Map, SpecializableMap>,
    lookups: RefCell<LookupResults>,
    hot: RefCell<LookupResults>,
    tables: RefCell<EntriesByMap>,
    twinned: RefCell<BTreeMap<Map, Vec<usage::AccessRange>>>,
    equal: RefCell<ConstantRanges>,
    few: RefCell<FewValuesByMap>,
    /// Inner maps, by their names.
    inner: RefCell<BTreeMap<Map, InnerMapSource>>,
    /// Whole maps that were read for other purposes than code.
    entries: RefCell<BTreeMap<Map, Rc<BatchEntries>>>,
    /// Maps that are in no code: twins may answer their lookups.
    restless: BTreeSet<Map>,
}

impl<'m> MapSnapshot<'m> {
    /// Begins without any contents.
    pub fn new(sources: &'m FxHashMap<Map, SpecializableMap>) -> Self {
        MapSnapshot::without(sources, BTreeSet::new())
    }

    /// Begins without any contents; none of these maps will be in code.
    pub fn without(sources: &'m FxHashMap<Map, SpecializableMap>, restless: BTreeSet<Map>) -> Self {
        MapSnapshot {
            restless,
            sources,
            lookups: RefCell::default(),
            hot: RefCell::default(),
            tables: RefCell::default(),
            twinned: RefCell::default(),
            equal: RefCell::default(),
            few: RefCell::default(),
            inner: RefCell::default(),
            entries: RefCell::default(),
        }
    }

    /// Allows everything in code from now on; returns true if anything was excluded.
    pub fn leave_nothing_out(&mut self) -> bool {
        !std::mem::take(&mut self.restless).is_empty()
    }

    /// The map, if code may depend on its contents.
    fn for_code(&self, map: Map) -> Option<&'m SpecializableMap> {
        self.sources.get(&map).filter(|source| source.is_known() && !self.is_churning(map))
    }

    fn read(&self, known: &RefCell<LookupResults>, map: Map, key: &[u8]) -> Option<Option<Vec<u8>>> {
        let at = (map, key.to_vec());
        if let Some(known) = known.borrow().get(&at) {
            return Some(known.clone());
        }
        let inner = self.inner.borrow().get(&map).map(|inner| Arc::clone(&inner.source));
        let value = read_value(inner.as_deref().or_else(|| self.for_code(map))?, key)?;
        known.borrow_mut().insert(at, value.clone());
        Some(value)
    }

    fn entries(&self, map: Map) -> Option<Rc<BatchEntries>> {
        if let Some(known) = self.entries.borrow().get(&map) {
            return Some(Rc::clone(known));
        }
        let entries = Rc::new(self.sources.get(&map)?.map.entries().ok()?);
        self.entries.borrow_mut().insert(map, Rc::clone(&entries));
        Some(entries)
    }

    /// Gives up the maps, and keeps the contents that were read.
    pub fn into_record(self) -> Assumptions {
        Assumptions {
            lookups: self.lookups.into_inner(),
            hot: self.hot.into_inner(),
            tables: self.tables.into_inner(),
            twinned: self.twinned.into_inner(),
            equal: self.equal.into_inner(),
            few: self.few.into_inner(),
            inner: self.inner.into_inner(),
        }
    }
}

impl SnapshotReader for MapSnapshot<'_> {
    fn knows(&self, map: Map) -> bool {
        self.sources.get(&map).is_some_and(SpecializableMap::is_known)
    }

    fn knows_keys(&self, map: Map) -> bool {
        self.sources.contains_key(&map)
    }

    fn is_churning(&self, map: Map) -> bool {
        self.restless.contains(&map)
    }

    fn own(&self, outer: Map, id: u32) -> Option<Map> {
        self.sources.get(&outer)?.own.get(&id).copied()
    }

    fn knows_inside(&self, outer: Map, template: Map) -> bool {
        self.sources.get(&outer).is_some_and(|source| source.knows_inside) && !self.is_churning(template)
    }

    fn table_inside(
        &self,
        (outer, template): (Map, Map),
        (id, place): (u32, Map),
        most: (u32, u64),
    ) -> Option<MapEntries> {
        if !self.knows_inside(outer, template) {
            return None;
        }
        // Plans that were given up may have had the name for another map.
        if let Some(known) = self.inner.borrow().get(&place) {
            let is_it = known.source.map.id() == id && known.template == template;
            return self.tables.borrow().get(&place).filter(|_| is_it).cloned();
        }
        let map = KernelMap::from_id(id).ok()?;
        let info = map.info();
        let bytes = u64::from(info.max_entries) * (u64::from(info.key_size) + u64::from(info.value_size));
        if map_users::by_kind(&map, false).is_some() || info.max_entries > most.0 || bytes > most.1 {
            return None;
        }
        let source = SpecializableMap::new(map, MapAccess::ReadOnly);
        let table = read_table(&source)?;
        self.inner.borrow_mut().insert(place, InnerMapSource { source: Arc::new(source), template });
        self.tables.borrow_mut().insert(place, table.clone());
        Some(table)
    }

    fn before_twin(&self, map: Map, key: &[u8]) -> Option<Option<Vec<u8>>> {
        self.read(&self.hot, map, key)
    }

    fn count(&self, map: Map) -> Option<usize> {
        Some(self.entries(map)?.len())
    }

    fn table(&self, map: Map) -> Option<MapEntries> {
        if let Some(known) = self.tables.borrow().get(&map) {
            return Some(known.clone());
        }
        let table = read_table(self.for_code(map)?)?;
        self.tables.borrow_mut().insert(map, table.clone());
        Some(table)
    }

    fn twin(&self, map: Map, read: &[usage::AccessRange]) -> Option<ShadowTable> {
        let entries = self.entries(map).filter(|_| self.knows(map))?;
        let twin = twin_of(self.sources.get(&map)?, &entries, read)?;
        self.twinned.borrow_mut().insert(map, read.to_vec());
        Some(twin)
    }

    fn equal(&self, map: Map, read: &[usage::AccessRange]) -> Option<Vec<(u32, Vec<u8>)>> {
        let (source, entries) = (self.for_code(map)?, self.entries(map)?);
        let (_, first) = entries.iter().next()?;
        let known = |at: &usize| {
            let at = *at as u32;
            read.iter().any(|r| r.start <= at && at < r.end) && constant(&source.access, at..at + 1)
        };
        let mut alike: Vec<usize> = (0..first.len()).filter(known).collect();
        for (_, value) in entries.iter() {
            alike.retain(|&at| value.get(at) == first.get(at));
        }
        let runs: Vec<(u32, Vec<u8>)> = alike
            .chunk_by(|a, b| a + 1 == *b)
            .map(|run| (run[0] as u32, run.iter().map(|&at| first[at]).collect()))
            .collect();
        self.equal.borrow_mut().insert(map, runs.clone());
        Some(runs)
    }

    fn few(&self, map: Map, pieces: &[KeyPiece]) -> Option<Vec<FewValues>> {
        let entries = self.entries(map).filter(|_| !self.is_churning(map))?;
        if entries.is_empty() {
            return None;
        }
        let mut all: Vec<FewValues> =
            pieces.iter().map(|&piece| FewValues { piece, values: BTreeSet::new() }).collect();
        for (key, _) in entries.iter() {
            all.iter_mut().for_each(|few| few.values.extend(word(key, few.piece)));
            all.retain(|few| few.values.len() <= FEW);
        }
        Some(all)
    }

    fn common(&self, map: Map) -> Option<(FewValues, Vec<u8>)> {
        let source = self.for_code(map)?;
        let entries = self.entries(map)?;
        let values: Vec<(u64, Vec<u8>)> = entries
            .iter()
            .map(|(key, value)| Some((word(key, INDEX)?, masked(source, value.to_vec()))))
            .collect::<Option<_>>()?;
        let mut counts: BTreeMap<&[u8], usize> = BTreeMap::new();
        values.iter().for_each(|(_, value)| *counts.entry(value).or_default() += 1);
        let (common, _) = counts.into_iter().max_by_key(|(_, n)| *n)?;
        let others: BTreeSet<u64> =
            values.iter().filter(|(_, value)| value != common).map(|(index, _)| *index).collect();
        (others.len() <= FEW).then(|| (FewValues { piece: INDEX, values: others }, common.to_vec()))
    }

    fn rely(&self, map: Map, few: FewValues) {
        self.few.borrow_mut().entry(map).or_default().push(few);
    }
}

impl MapContents for MapSnapshot<'_> {
    fn lookup(&self, map: Map, key: &[u8]) -> Option<Option<Vec<u8>>> {
        self.read(&self.lookups, map, key)
    }

    fn constant(&self, map: Map, bytes: Range<u32>) -> bool {
        if let Some(inner) = self.inner.borrow().get(&map) {
            return constant(&inner.source.access, bytes);
        }
        // Programs find a map in a map of maps, and not the id that system calls return.
        self.sources.get(&map).is_some_and(|s| !s.is_outer() && constant(&s.access, bytes))
    }
}

fn constant(access: &MapAccess, bytes: Range<u32>) -> bool {
    match access {
        MapAccess::ReadOnly | MapAccess::Unused => true,
        MapAccess::FieldsWritten(written) => {
            written.iter().all(|w| w.end <= bytes.start || bytes.end <= w.start)
        }
        MapAccess::Written => false,
    }
}

/// Sets the bytes of a value that programs write to zero.
fn masked(source: &SpecializableMap, mut value: Vec<u8>) -> Vec<u8> {
    if let MapAccess::FieldsWritten(written) = &source.access {
        for w in written {
            let end = (w.end as usize).min(value.len());
            value[(w.start as usize).min(end)..end].fill(0);
        }
    }
    value
}

fn read_value(source: &SpecializableMap, key: &[u8]) -> Option<Option<Vec<u8>>> {
    Some(source.map.lookup(key).ok()?.map(|v| masked(source, v)))
}

fn read_table(source: &SpecializableMap) -> Option<MapEntries> {
    let entries = source.map.entries().ok()?;
    Some(entries.iter().map(|(k, v)| (k.to_vec(), masked(source, v.to_vec()))).collect())
}

/// Bytes of one side of a twin of a hash map, at most.
const ROWS: u64 = 16 << 20;

fn twin_of(
    source: &SpecializableMap,
    entries: &BatchEntries,
    read: &[usage::AccessRange],
) -> Option<ShadowTable> {
    let info = source.map.info();
    let row = RowLayout { key: info.key_size, value: info.value_size };
    match info.map_type {
        MapType::LPM_TRIE => ShadowTable::of_prefixes(row, || entries.iter(), entries.len(), read, ROWS),
        _ => PerfectHashTable::of(row, entries.iter(), entries.len(), ROWS).map(ShadowTable::Rows),
    }
}

/// Reads the entry of a map for this very key: in a longest-prefix map, for the prefix and not for a longer
/// or shorter one. `None` if it cannot be read.
fn read_entry(source: &SpecializableMap, key: &[u8]) -> Option<Option<Vec<u8>>> {
    if source.map.info().map_type == MapType::LPM_TRIE {
        // For the key after an absent prefix, the kernel returns the first one, which comes after none.
        let first = source.map.next_key(None).ok()?;
        if first.is_none() || source.map.next_key(Some(key)).ok()? == first {
            return Some(None);
        }
    }
    read_value(source, key)
}

/// Contents that were read for a variant. The record holds as long as reading them again gives the same.
#[derive(Clone, Debug, Default)]
pub struct Assumptions {
    lookups: LookupResults,
    /// Lookups that code compares before it searches a twin.
    hot: LookupResults,
    tables: EntriesByMap,
    /// With the bytes of values that programs read.
    twinned: BTreeMap<Map, Vec<usage::AccessRange>>,
    equal: ConstantRanges,
    few: FewValuesByMap,
    /// Inner maps that it covers, by their names.
    inner: BTreeMap<Map, InnerMapSource>,
}

/// Result of reading the contents for a variant again.
#[derive(Debug)]
pub enum Revalidation {
    /// The record holds.
    Same,
    /// The contents in code hold; the maps with twins have changed, or may have.
    Twinned(ShadowUpdates),
    /// The record does not hold, or cannot be read.
    Other,
}

impl Assumptions {
    /// Maps that code knows only by their twins, and by the keys that it compares before it searches these.
    pub fn behind_twins(&self) -> impl Iterator<Item = Map> {
        self.twinned.keys().copied().filter(move |map| !self.is_elsewhere(*map))
    }

    /// Returns true if code knows something of a map other than by its twin, or by the keys that it compares
    /// before it searches that.
    fn is_elsewhere(&self, map: Map) -> bool {
        self.lookups.keys().any(|(of, _)| *of == map)
            || self.tables.contains_key(&map)
            || self.equal.get(&map).is_some_and(|runs| !runs.is_empty())
            || self.few.contains_key(&map)
    }

    /// The map under which writes to this one are reported: for inner maps, the template.
    fn told_as(&self, map: Map) -> Map {
        self.inner.get(&map).map_or(map, |inner| inner.template)
    }

    /// Changes of a map.
    fn touched<'d>(&self, dirty: &'d DirtyKeys, map: Map) -> TouchedKeys<'d> {
        dirty.of(self.told_as(map))
    }

    /// Source from which a map can be read.
    fn source<'s>(
        &'s self,
        sources: &'s FxHashMap<Map, SpecializableMap>,
        map: Map,
    ) -> Option<&'s SpecializableMap> {
        self.inner.get(&map).map(|inner| &*inner.source).or_else(|| sources.get(&map))
    }

    /// Maps with contents in code; for inner maps, the templates.
    pub fn in_code(&self) -> BTreeSet<Map> {
        let all = self.lookups.keys().chain(self.hot.keys()).map(|(map, _)| map);
        let all = all.chain(self.tables.keys()).chain(self.equal.keys()).chain(self.few.keys());
        let is_in_code = |map: &Map| self.is_elsewhere(*map) || self.hot.keys().any(|(of, _)| of == map);
        let all: BTreeSet<Map> = all.copied().collect();
        all.into_iter().filter(is_in_code).map(|map| self.told_as(map)).collect()
    }

    /// Finds the maps in code that were written, as far as it is known which were, and that no longer match
    /// the code. For maps of maps that is never known.
    pub fn changed(&self, sources: &FxHashMap<Map, SpecializableMap>, dirty: &DirtyKeys) -> BTreeSet<Map> {
        let is_outer = |map: &Map| sources.get(map).is_some_and(SpecializableMap::is_outer);
        let is_touched = |map: &Map| dirty.touches(*map) && (!dirty.is_everything() || is_outer(map));
        let changed = |map: &Map| self.of(*map).holds(sources, dirty) != Some(true);
        self.in_code().into_iter().filter(is_touched).filter(changed).collect()
    }

    /// The part of it that covers one map, in code.
    fn of(&self, map: Map) -> Assumptions {
        let lookups = |known: &LookupResults| {
            let own = known.iter().filter(|((of, _), _)| self.told_as(*of) == map);
            own.map(|(at, value)| (at.clone(), value.clone())).collect()
        };
        Assumptions {
            lookups: lookups(&self.lookups),
            hot: lookups(&self.hot),
            tables: {
                let own = self.tables.iter().filter(|(of, _)| self.told_as(**of) == map);
                own.map(|(of, table)| (*of, table.clone())).collect()
            },
            twinned: BTreeMap::new(),
            equal: self.equal.get(&map).map(|e| (map, e.clone())).into_iter().collect(),
            few: self.few.get(&map).map(|f| (map, f.clone())).into_iter().collect(),
            inner: self.inner.clone(),
        }
    }

    /// Reads again the contents that may have changed.
    pub fn present(&self, sources: &FxHashMap<Map, SpecializableMap>, dirty: &DirtyKeys) -> Revalidation {
        match (self.holds(sources, dirty), self.changes(sources, dirty)) {
            (Some(true), Some(changes)) if changes.is_empty() => Revalidation::Same,
            (Some(true), Some(changes)) => Revalidation::Twinned(changes),
            _ => Revalidation::Other,
        }
    }

    /// Returns true if the contents in code match the maps.
    fn holds(&self, sources: &FxHashMap<Map, SpecializableMap>, dirty: &DirtyKeys) -> Option<bool> {
        for ((map, key), value) in self.lookups.iter().chain(&self.hot) {
            // A prefix matches many keys.
            let is_touched = !matches!(self.touched(dirty, *map), TouchedKeys::Nothing);
            if is_touched && read_value(self.source(sources, *map)?, key)? != *value {
                return Some(false);
            }
        }
        for (map, table) in &self.tables {
            let source = || self.source(sources, *map);
            let same = match self.touched(dirty, *map) {
                TouchedKeys::Nothing => true,
                TouchedKeys::Keys(keys) if source()?.map.info().map_type != MapType::LPM_TRIE => {
                    let now = keys.iter().map(|k| Some(read_entry(source()?, k)?.as_ref() == table.get(k)));
                    now.collect::<Option<Vec<bool>>>()?.into_iter().all(|same| same)
                }
                // A prefix may be written in several ways.
                TouchedKeys::Keys(_) | TouchedKeys::Any => read_table(source()?)? == *table,
            };
            if !same {
                return Some(false);
            }
        }
        self.still_equal(sources, dirty)
    }

    /// Returns true if all values still have the equal bytes.
    fn still_equal(&self, sources: &FxHashMap<Map, SpecializableMap>, dirty: &DirtyKeys) -> Option<bool> {
        for (map, runs) in &self.equal {
            let source = || sources.get(map);
            let has = |value: &[u8]| runs.iter().all(|(at, run)| value[*at as usize..].starts_with(run));
            let same = match dirty.of(*map) {
                TouchedKeys::Nothing => true,
                TouchedKeys::Keys(keys) => {
                    let now = keys.iter().map(|key| read_entry(source()?, key));
                    now.collect::<Option<Vec<_>>>()?.iter().flatten().all(|value| has(value))
                }
                TouchedKeys::Any => source()?.map.entries().ok()?.iter().all(|(_, value)| has(value)),
            };
            if !same {
                return Some(false);
            }
        }
        self.still_few(sources, dirty)
    }

    /// Returns true if words of keys still have no other values.
    fn still_few(&self, sources: &FxHashMap<Map, SpecializableMap>, dirty: &DirtyKeys) -> Option<bool> {
        for (map, few) in &self.few {
            let source = sources.get(map)?;
            let allowed = |key: &[u8]| few.iter().all(|f| f.has(key));
            let same = match dirty.of(*map) {
                TouchedKeys::Nothing => true,
                TouchedKeys::Keys(keys) => {
                    let now = keys.iter().map(|key| Some((key, read_entry(source, key)?)));
                    let now = now.collect::<Option<Vec<_>>>()?;
                    // A removed entry changes nothing.
                    now.iter().all(|(key, value)| value.is_none() || allowed(key))
                }
                TouchedKeys::Any => source.map.entries().ok()?.iter().all(|(key, _)| allowed(key)),
            };
            if !same {
                return Some(false);
            }
        }
        Some(true)
    }

    fn changes(
        &self,
        sources: &FxHashMap<Map, SpecializableMap>,
        dirty: &DirtyKeys,
    ) -> Option<ShadowUpdates> {
        let mut changes = ShadowUpdates::new();
        for (map, read) in &self.twinned {
            let change = match dirty.of(*map) {
                TouchedKeys::Nothing => continue,
                TouchedKeys::Any => {
                    let source = sources.get(map)?;
                    ShadowUpdate::Whole(Box::new(twin_of(source, &source.map.entries().ok()?, read)?))
                }
                TouchedKeys::Keys(keys) => {
                    let source = sources.get(map)?;
                    let now = keys.iter().map(|key| Some((key.clone(), read_entry(source, key)?)));
                    ShadowUpdate::Keys(now.collect::<Option<_>>()?)
                }
            };
            changes.insert(*map, change);
        }
        Some(changes)
    }
}
