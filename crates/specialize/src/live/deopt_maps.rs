//! Maps that the active generation can do without, each by itself, while their twins are behind.

use std::collections::{BTreeMap, BTreeSet};

use millstream_ir::Map;
use millstream_specializer::changes::DirtyKeys;
use millstream_specializer::guard_state::DeoptMask;
use millstream_specializer::transform;
use millstream_specializer::variant::VariantCompiler;
use rustc_hash::FxHashMap;

use crate::snapshot::{Assumptions, SpecializableMap};

/// The maps, each with its index and its slot in the guard.
#[derive(Clone, Debug, Default)]
pub(super) struct DeoptMaps(BTreeMap<Map, (u32, DeoptMask)>);

impl DeoptMaps {
    /// Maps that a variant was to spare and does, if none of their contents are in code elsewhere.
    pub(super) fn new(
        compiler: &VariantCompiler,
        sources: &FxHashMap<Map, SpecializableMap>,
        record: &Assumptions,
        (wanted, done): (&[transform::DeoptMap], &transform::TransformReport),
    ) -> DeoptMaps {
        let maps = record
            .behind_twins()
            .filter(|map| wanted.iter().any(|s| s.map == *map) && !done.unspared.contains(map));
        let place = |map| {
            let index = sources.get(&map)?.index;
            (index > 0).then_some((map, (index, compiler.slot(map)?)))
        };
        DeoptMaps(maps.filter_map(place).collect())
    }

    /// Index and slot of each, as the guard knows them.
    pub(super) fn places(&self) -> Vec<(u32, DeoptMask)> {
        self.0.values().copied().collect()
    }

    pub(super) fn slots(&self) -> DeoptMask {
        self.0.values().fold(DeoptMask::NONE, |all, (_, slot)| all.and(*slot))
    }

    /// The maps that have these slots.
    pub(super) fn maps(&self, slots: DeoptMask) -> BTreeSet<Map> {
        self.0.iter().filter(|(_, (_, slot))| slots.has(*slot)).map(|(map, _)| *map).collect()
    }

    /// Slots of the maps in which something may have changed.
    pub(super) fn touched(&self, dirty: &DirtyKeys) -> DeoptMask {
        let touched = self.0.iter().filter(|(map, _)| dirty.touches(**map));
        touched.fold(DeoptMask::NONE, |all, (_, (_, slot))| all.and(*slot))
    }
}
