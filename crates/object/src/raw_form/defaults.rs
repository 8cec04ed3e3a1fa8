//! Properties of maps that raw files do not give, and the kernel needs.

use millstream_isa::MapType;

use super::RawMap;

/// `BPF_F_NO_PREALLOC`: the kernel makes no trie without it.
const NO_PREALLOC: u32 = 1;

/// Kinds of maps that a map of maps may hold by default, the likeliest first: caches for each CPU, as Katran
/// has them.
const INNER: [MapType; 6] = [
    MapType::LRU_HASH,
    MapType::LRU_PERCPU_HASH,
    MapType::HASH,
    MapType::PERCPU_HASH,
    MapType::ARRAY,
    MapType::PERCPU_ARRAY,
];

/// The flags with which a map of this type is made.
pub(super) fn flags(map_type: u32) -> u32 {
    if MapType(map_type) == MapType::LPM_TRIE { NO_PREALLOC } else { 0 }
}

/// For a map of maps: the number of the map of the same file that its inner maps are taken to be like.
pub(super) fn inner(maps: &[RawMap], outer: usize) -> Option<usize> {
    if !MapType(maps.get(outer)?.map_type).is_map_of_maps() {
        return None;
    }
    INNER.iter().find_map(|kind| maps.iter().position(|m| m.map_type == kind.0))
}
