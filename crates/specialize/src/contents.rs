//! What maps hold, read through bpf(2) during a snapshot, and remembered: what a variant was made of.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use millstream_ir::Map;
use millstream_ir::usage::Access;
use millstream_kernel::Map as KernelMap;
use millstream_loader::Session;
use rustc_hash::FxHashMap;

use crate::holders;
use crate::transform::Contents;
use crate::variant::{Compiler, object_map};

/// A map that may be specialised on.
#[derive(Debug)]
pub struct Source {
    /// The map.
    pub map: KernelMap,
    /// How far it is read-only to programs.
    pub access: Access,
}

/// The maps that lookups of the program may be specialised on, and why others may not.
pub fn sources(
    compiler: &Compiler,
    session: &Session<'_>,
) -> (FxHashMap<Map, Source>, Vec<(String, String)>) {
    let mut sources = FxHashMap::default();
    let mut refused = Vec::new();
    let maps: BTreeSet<Map> = compiler.sites().iter().map(|s| s.map).collect();
    for map in maps {
        let name = compiler.declaration(map).name.clone();
        let access = compiler.access(map);
        let made = session.map(object_map(map)).and_then(|m| m.try_clone().ok());
        let why = match &made {
            None => Some("it is not made by the loader".to_owned()),
            _ if access == Access::Written => Some("programs write it".to_owned()),
            Some(m) => holders::by_kind(m).map(|w| w.to_string()),
        };
        match (why, made) {
            (None, Some(made)) => drop(sources.insert(map, Source { map: made, access })),
            (why, _) => refused.push((name, why.unwrap_or_default())),
        }
    }
    (sources, refused)
}

/// Keys and values of a whole map.
pub type Table = BTreeMap<Vec<u8>, Vec<u8>>;
/// Whole maps.
pub type Tables = BTreeMap<Map, Table>;
/// What lookups gave, by map and key.
type Lookups = BTreeMap<(Map, Vec<u8>), Option<Vec<u8>>>;

/// The maps, and everything that was read of them.
#[derive(Debug)]
pub struct Observed<'m> {
    sources: &'m FxHashMap<Map, Source>,
    lookups: RefCell<Lookups>,
    tables: RefCell<Tables>,
    twinned: RefCell<Tables>,
}

impl<'m> Observed<'m> {
    /// Nothing was read yet.
    pub fn new(sources: &'m FxHashMap<Map, Source>) -> Self {
        Observed {
            sources,
            lookups: RefCell::default(),
            tables: RefCell::default(),
            twinned: RefCell::default(),
        }
    }

    /// All entries of a map, for code; `None` if it cannot be read.
    pub fn table(&self, map: Map) -> Option<Table> {
        self.remembered(&self.tables, map)
    }

    /// All entries of a map, for its twin; `None` if it cannot be read.
    pub fn twinned(&self, map: Map) -> Option<Table> {
        self.remembered(&self.twinned, map)
    }

    fn remembered(&self, tables: &RefCell<Tables>, map: Map) -> Option<Table> {
        if let Some(known) = tables.borrow().get(&map) {
            return Some(known.clone());
        }
        let table = read_table(self.sources.get(&map)?)?;
        tables.borrow_mut().insert(map, table.clone());
        Some(table)
    }

    /// Gives up the maps, and keeps what was read.
    pub fn into_record(self) -> Record {
        Record {
            lookups: self.lookups.into_inner(),
            tables: self.tables.into_inner(),
            twinned: self.twinned.into_inner(),
        }
    }
}

impl Contents for Observed<'_> {
    fn lookup(&self, map: Map, key: &[u8]) -> Option<Option<Vec<u8>>> {
        let at = (map, key.to_vec());
        if let Some(known) = self.lookups.borrow().get(&at) {
            return Some(known.clone());
        }
        let value = read_value(self.sources.get(&map)?, key)?;
        self.lookups.borrow_mut().insert(at, value.clone());
        Some(value)
    }

    fn constant(&self, map: Map, bytes: Range<u32>) -> bool {
        self.sources.get(&map).is_some_and(|s| constant(&s.access, bytes))
    }
}

fn constant(access: &Access, bytes: Range<u32>) -> bool {
    match access {
        Access::ReadOnly | Access::Unused => true,
        Access::FieldsWritten(written) => {
            written.iter().all(|w| w.end <= bytes.start || bytes.end <= w.start)
        }
        Access::Written => false,
    }
}

/// A value, with zeros where programs write.
fn masked(source: &Source, mut value: Vec<u8>) -> Vec<u8> {
    if let Access::FieldsWritten(written) = &source.access {
        for w in written {
            let end = (w.end as usize).min(value.len());
            value[(w.start as usize).min(end)..end].fill(0);
        }
    }
    value
}

fn read_value(source: &Source, key: &[u8]) -> Option<Option<Vec<u8>>> {
    Some(source.map.lookup(key).ok()?.map(|v| masked(source, v)))
}

fn read_table(source: &Source) -> Option<Table> {
    let entries = source.map.entries().ok()?;
    Some(entries.iter().map(|(k, v)| (k.to_vec(), masked(source, v.to_vec()))).collect())
}

/// What was read for a variant. It holds as long as reading it again gives the same.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Record {
    lookups: Lookups,
    tables: Tables,
    twinned: Tables,
}

/// What became of what was read for a variant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Present {
    /// It holds.
    Same,
    /// What the code was made of holds; the maps with twins have these entries now.
    Twinned(Tables),
    /// It does not hold, or cannot be read.
    Other,
}

impl Record {
    /// Reads everything again.
    pub fn present(&self, sources: &FxHashMap<Map, Source>) -> Present {
        let get = |map: &Map| sources.get(map);
        let in_code = self
            .lookups
            .iter()
            .all(|((map, key), value)| get(map).and_then(|s| read_value(s, key)).as_ref() == Some(value))
            && self.tables.iter().all(|(map, t)| get(map).and_then(read_table).as_ref() == Some(t));
        let twinned = self.twinned.keys().map(|map| Some((*map, get(map).and_then(read_table)?)));
        match twinned.collect::<Option<Tables>>() {
            Some(now) if in_code && now == self.twinned => Present::Same,
            Some(now) if in_code => Present::Twinned(now),
            _ => Present::Other,
        }
    }

    /// The twins have been given these entries.
    pub fn set_twinned(&mut self, now: Tables) {
        self.twinned = now;
    }
}
