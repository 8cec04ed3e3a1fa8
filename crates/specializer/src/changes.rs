//! Changes of maps since they were read, and what shadow tables take over of them.

use std::collections::{BTreeMap, BTreeSet};

use millstream_ir::Map;

use crate::transform::ShadowTable;

/// Contents that may have changed since they were read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DirtyKeys {
    /// Everything.
    all: bool,
    /// Keys of maps, or any of their keys.
    maps: BTreeMap<Map, Option<BTreeSet<Vec<u8>>>>,
}

/// More keys of a map than this are taken for all of them.
const KEYS: usize = 256;

impl DirtyKeys {
    /// Anything may have changed.
    pub fn everything() -> DirtyKeys {
        DirtyKeys { all: true, ..DirtyKeys::default() }
    }

    /// Returns true if anything may have changed, in whatever map.
    pub fn is_everything(&self) -> bool {
        self.all
    }

    /// Records that this key of a map may have changed; any key if it is `None`.
    pub fn note(&mut self, map: Map, key: Option<Vec<u8>>) {
        let keys = self.maps.entry(map).or_insert_with(|| Some(BTreeSet::new()));
        match (keys.as_mut(), key) {
            (Some(known), Some(key)) if known.len() < KEYS => drop(known.insert(key)),
            _ => *keys = None,
        }
    }

    /// Adds the changes of another.
    pub fn merge(&mut self, other: DirtyKeys) {
        self.all |= other.all;
        for (map, keys) in other.maps {
            match keys {
                Some(keys) => keys.into_iter().for_each(|key| self.note(map, Some(key))),
                None => self.note(map, None),
            }
        }
    }

    /// Splits into changes of these maps, and changes of others; `None` if it is unknown which maps have
    /// changed.
    pub fn split(&self, maps: &BTreeSet<Map>) -> Option<(DirtyKeys, DirtyKeys)> {
        let (of, others) = self.maps.clone().into_iter().partition(|(map, _)| maps.contains(map));
        (!self.all).then_some((DirtyKeys { all: false, maps: of }, DirtyKeys { all: false, maps: others }))
    }

    /// Returns true if nothing may have changed.
    pub fn is_empty(&self) -> bool {
        !self.all && self.maps.is_empty()
    }

    /// Returns true if something may have changed in a map.
    pub fn touches(&self, map: Map) -> bool {
        !matches!(self.of(map), TouchedKeys::Nothing)
    }

    /// Changes of a map: nothing, some keys, any key.
    pub fn of(&self, map: Map) -> TouchedKeys<'_> {
        match self.maps.get(&map) {
            _ if self.all => TouchedKeys::Any,
            None => TouchedKeys::Nothing,
            Some(None) => TouchedKeys::Any,
            Some(Some(keys)) => TouchedKeys::Keys(keys),
        }
    }
}

/// Keys of a map that may have changed.
#[derive(Clone, Copy, Debug)]
pub enum TouchedKeys<'d> {
    /// None.
    Nothing,
    /// These.
    Keys(&'d BTreeSet<Vec<u8>>),
    /// Any.
    Any,
}

/// Change that a twin must take over.
#[derive(Debug)]
pub enum ShadowUpdate {
    /// These keys have these values now, or none.
    Keys(Vec<(Vec<u8>, Option<Vec<u8>>)>),
    /// Everything.
    Whole(Box<ShadowTable>),
}

/// Changes that twins must take over, by the maps that they are twins of.
pub type ShadowUpdates = BTreeMap<Map, ShadowUpdate>;
