//! Contents of tables for code, and a record of which of them code depends on.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use millstream_ir::Map;
use millstream_isa::MapType;
use millstream_native::NativeEngine;
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::snapshot::MapEntries;
use millstream_specializer::transform::MapContents;

use crate::program::AdaptableProgram;

/// Tables of more entries are not read as a whole.
const MOST_READ: usize = 16_384;

/// Known contents of a table.
#[derive(Debug)]
pub(crate) struct KnownTable {
    /// All entries, unless there are too many.
    pub(crate) whole: Option<MapEntries>,
    /// Results of look-ups of hot keys.
    asked: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

/// Contents of tables at one moment.
#[derive(Debug)]
pub(crate) struct TableSnapshot<'p> {
    program: &'p AdaptableProgram,
    tables: BTreeMap<Map, KnownTable>,
    /// Tables whose contents were taken.
    used: RefCell<BTreeSet<Map>>,
}

impl<'p> TableSnapshot<'p> {
    /// Reads tables of an engine, but not these; of large tables only the hot keys.
    pub(crate) fn read(
        program: &'p AdaptableProgram,
        engine: &mut NativeEngine,
        profiles: &[SiteProfile],
        excluded: &BTreeSet<usize>,
    ) -> TableSnapshot<'p> {
        let mut tables = BTreeMap::new();
        for &map in program.tables().keys() {
            let number = map.as_u32() as usize;
            let Some(native) = engine.map_at(map).filter(|_| !excluded.contains(&number)) else {
                continue;
            };
            let whole = (native.len() <= MOST_READ).then(|| {
                let keys = native.keys();
                keys.into_iter().filter_map(|key| Some((key.clone(), native.get(&key)?))).collect()
            });
            let of_map = |profile: &&SiteProfile| {
                program.sites().iter().any(|site| site.id == profile.site && site.map == map)
            };
            let hot = profiles.iter().filter(of_map).flat_map(|profile| &profile.keys);
            let asked = hot.map(|(key, _)| (key.clone(), native.look_up(key))).collect();
            tables.insert(map, KnownTable { whole, asked });
        }
        TableSnapshot { program, tables, used: RefCell::default() }
    }

    /// Known contents of a table; code that is made of it depends on the table.
    pub(crate) fn table(&self, map: Map) -> Option<&KnownTable> {
        self.tables.get(&map)
    }

    /// Makes code depend on a table.
    pub(crate) fn depend_on(&self, map: Map) {
        self.used.borrow_mut().insert(map);
    }

    /// Takes the tables on which code has come to depend.
    pub(crate) fn take_used(&self) -> BTreeSet<Map> {
        self.used.take()
    }

    /// Bytes that are equal in all values of a table, among those that programs read and do not write, as runs.
    /// Empty if the table is empty or large.
    pub(crate) fn equal_fields(&self, map: Map) -> Vec<(u32, Vec<u8>)> {
        let (Some(table), Some(stable)) = (self.tables.get(&map), self.program.tables().get(&map)) else {
            return Vec::new();
        };
        let Some(mut values) = table.whole.as_ref().map(|whole| whole.values()) else { return Vec::new() };
        let Some(first) = values.next() else { return Vec::new() };
        let mut is_equal = vec![true; first.len()];
        for value in values {
            is_equal.iter_mut().zip(value.iter().zip(first)).for_each(|(equal, (a, b))| *equal &= a == b);
        }
        let mut runs: Vec<(u32, Vec<u8>)> = Vec::new();
        for at in stable.read.iter().cloned().flatten() {
            let here = (at as usize, at..at + 1);
            if !is_equal.get(here.0).copied().unwrap_or(false) || !stable.is_constant(&here.1) {
                continue;
            }
            let byte = first[here.0];
            match runs.last_mut() {
                Some((start, bytes)) if *start + bytes.len() as u32 == at => bytes.push(byte),
                _ => runs.push((at, vec![byte])),
            }
        }
        runs
    }
}

impl MapContents for TableSnapshot<'_> {
    fn lookup(&self, map: Map, key: &[u8]) -> Option<Option<Vec<u8>>> {
        let (table, kind) = (self.tables.get(&map)?, self.program.tables().get(&map)?.kind);
        let found = match (table.asked.get(key), &table.whole, kind) {
            (Some(found), ..) => found.clone(),
            (None, Some(whole), MapType::ARRAY | MapType::HASH) => whole.get(key).cloned(),
            _ => return None,
        };
        self.depend_on(map);
        Some(found)
    }

    fn constant(&self, map: Map, bytes: Range<u32>) -> bool {
        let known = self.tables.contains_key(&map);
        known && self.program.tables().get(&map).is_some_and(|table| table.is_constant(&bytes))
    }
}
