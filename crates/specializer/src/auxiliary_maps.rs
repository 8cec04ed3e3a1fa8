//! The maps that are added to an object, beside its own, before variants of a program are made: the guard's
//! state, the profile, and placeholders for twins, caches and program arrays, which are made when their size
//! is known.
//!
//! Invariant: they come after the object's own, whose numbers stay.

use millstream_bpf::module;
use millstream_ir as ir;
use millstream_object::{self as obj, MapId, MapOrigin, Object};

use crate::guard_state;
use crate::transform::{MultibitTrie, PacketKind, PerfectHashTable, SampleBuffer, TRIE_VALUE};

const GUARD_NAME: &str = "ms.guard";
const SKETCH_NAME: &str = "ms.sketch";
const MISSES_NAME: &str = "ms.misses";
const SAMPLES_NAME: &str = "ms.samples";
/// Packets that are kept for the judge, on all CPUs together, and the least a CPU.
const KEPT: (usize, u32) = (256, 16);
const TWIN_NAME: &str = "ms.twin";
const CACHE_NAME: &str = "ms.cache";
const CHAIN_NAME: &str = "ms.chain";
const STANDBY_NAME: &str = "ms.standby";
const INSIDE_NAME: &str = "ms.inside";
/// Maps inside one map of maps that code can name, at most.
const INSIDE: u32 = 8;
/// Types of inner maps that code can name.
const INSIDE_KINDS: [millstream_isa::MapType; 7] = [
    millstream_isa::MapType::HASH,
    millstream_isa::MapType::LRU_HASH,
    millstream_isa::MapType::PERCPU_HASH,
    millstream_isa::MapType::LRU_PERCPU_HASH,
    millstream_isa::MapType::ARRAY,
    millstream_isa::MapType::PERCPU_ARRAY,
    millstream_isa::MapType::LPM_TRIE,
];
const MMAPABLE: u32 = 1 << 10;

/// The maps that were added; those that belong to another map are paired with it.
#[derive(Debug)]
pub(crate) struct AuxiliaryMaps {
    pub(crate) guard: MapId,
    pub(crate) sketch: MapId,
    pub(crate) samples: SampleBuffer,
    pub(crate) misses: MapId,
    /// Placeholders of twins.
    pub(crate) twins: Vec<(ir::Map, MapId)>,
    /// Placeholders of caches; for maps of maps, of the inner ones.
    pub(crate) caches: Vec<(ir::Map, MapId)>,
    /// Placeholders of inner maps, for each map of maps.
    pub(crate) insides: Vec<(ir::Map, Vec<MapId>)>,
    /// Placeholders of program arrays that hold variants.
    pub(crate) chains: Vec<(ir::Map, MapId)>,
    /// The program array of the standby variant.
    pub(crate) standby: MapId,
}

impl AuxiliaryMaps {
    /// Adds them, for a machine with so many CPUs.
    pub(crate) fn to(object: &mut Object, possible_cpus: usize) -> AuxiliaryMaps {
        let guard =
            add_map(object, GUARD_NAME, millstream_isa::MapType::ARRAY, guard_state::STATE_SIZE, 1, MMAPABLE);
        let sketch = add_map(object, SKETCH_NAME, millstream_isa::MapType::PERCPU_ARRAY, 8, 1, 0);
        let samples = add_samples(object, possible_cpus);
        let misses = add_map(object, MISSES_NAME, millstream_isa::MapType::PERCPU_ARRAY, 8, 1, 0);
        let twins = add_twins(object);
        let caches = add_caches(object);
        let insides = add_insides(object);
        let chains = add_chains(object);
        let standby = add_map(object, STANDBY_NAME, millstream_isa::MapType::PROG_ARRAY, 4, 1, 0);
        AuxiliaryMaps { guard, sketch, samples, misses, twins, caches, insides, chains, standby }
    }
}

fn add_map(
    object: &mut Object,
    name: &str,
    map_type: millstream_isa::MapType,
    value_size: u32,
    max_entries: u32,
    flags: u32,
) -> MapId {
    object.maps.push(obj::ObjectMap {
        name: name.into(),
        section: ".maps".into(),
        origin: MapOrigin::Btf,
        spec: obj::MapDefinition {
            map_type,
            key_size: 4,
            value_size,
            max_entries,
            flags,
            ..Default::default()
        },
        inner: None,
        initial: Vec::new(),
        data: None,
        variables: Vec::new(),
    });
    MapId(object.maps.len() as u32 - 1)
}

/// The map of the packets that are kept.
fn add_samples(object: &mut Object, possible_cpus: usize) -> SampleBuffer {
    let slots = ((KEPT.0 / possible_cpus.max(1)) as u32).max(KEPT.1).next_power_of_two();
    let map = add_map(
        object,
        SAMPLES_NAME,
        millstream_isa::MapType::PERCPU_ARRAY,
        SampleBuffer::VALUE_SIZE,
        slots,
        0,
    );
    SampleBuffer { map: module::map(map), slots, kind: PacketKind::Xdp }
}

/// Adds a map for the twin of each map that can have one. It is created when its size is known; until then it
/// is only a number.
fn add_twins(object: &mut Object) -> Vec<(ir::Map, MapId)> {
    // Tries with keys of a length and 4 bytes; rows; with values that are not too wide.
    let twinned = |m: &obj::ObjectMap| {
        let (key, value) = (m.spec.key_size, m.spec.value_size);
        let in_rows = key <= PerfectHashTable::WIDEST.0 && value <= PerfectHashTable::WIDEST.1;
        match m.spec.map_type {
            millstream_isa::MapType::LPM_TRIE => in_rows || key == MultibitTrie::KEY && value <= TRIE_VALUE,
            millstream_isa::MapType::HASH | millstream_isa::MapType::LRU_HASH => in_rows,
            _ => false,
        }
    };
    let wanted: Vec<u32> = (0..).zip(&object.maps).filter(|(_, m)| twinned(m)).map(|(n, _)| n).collect();
    let mut add = |n: u32| {
        let name = format!("{TWIN_NAME}{n}");
        (module::map(MapId(n)), add_map(object, &name, millstream_isa::MapType::ARRAY, 8, 1, MMAPABLE))
    };
    wanted.into_iter().map(&mut add).collect()
}

/// Adds placeholders for inner maps: of the template's shape, and as small as possible, because another map
/// replaces them. An array of one entry would be taken for one whose value has a known address.
fn add_insides(object: &mut Object) -> Vec<(ir::Map, Vec<MapId>)> {
    let named =
        |m: &obj::ObjectMap| m.inner.as_ref().filter(|inner| INSIDE_KINDS.contains(&inner.map_type)).cloned();
    let wanted: Vec<(u32, u32, obj::MapDefinition)> =
        (0..).zip(&object.maps).filter_map(|(n, m)| Some((n, m.spec.max_entries, named(m)?))).collect();
    let mut add = |(n, entries, spec): (u32, u32, obj::MapDefinition)| {
        let mut place = |at: u32| {
            let name = format!("{INSIDE_NAME}{n}.{at}");
            let id = add_map(object, &name, spec.map_type, spec.value_size, 2, spec.flags);
            object.maps[id.index()].spec.key_size = spec.key_size;
            id
        };
        (module::map(MapId(n)), (0..entries.min(INSIDE)).map(&mut place).collect())
    };
    wanted.into_iter().map(&mut add).collect()
}

/// Adds a placeholder for each program array.
fn add_chains(object: &mut Object) -> Vec<(ir::Map, MapId)> {
    let is_array = |m: &&obj::ObjectMap| m.spec.map_type == millstream_isa::MapType::PROG_ARRAY;
    let arrays: Vec<(u32, u32)> =
        (0..).zip(&object.maps).filter(|(_, m)| is_array(m)).map(|(n, m)| (n, m.spec.max_entries)).collect();
    let mut add = |(n, entries): (u32, u32)| {
        let place = add_map(
            object,
            &format!("{CHAIN_NAME}{n}"),
            millstream_isa::MapType::PROG_ARRAY,
            4,
            entries.max(1),
            0,
        );
        (module::map(MapId(n)), place)
    };
    arrays.into_iter().map(&mut add).collect()
}

/// Adds a map for the cache of each map that may have one, made like those of twins. For maps of maps it is
/// for the inner ones.
fn add_caches(object: &mut Object) -> Vec<(ir::Map, MapId)> {
    let kinds = [millstream_isa::MapType::HASH, millstream_isa::MapType::LRU_HASH];
    let cached = |m: &obj::ObjectMap| kinds.contains(&m.inner.as_ref().unwrap_or(&m.spec).map_type);
    let wanted: Vec<u32> = (0..).zip(&object.maps).filter(|(_, m)| cached(m)).map(|(n, _)| n).collect();
    let mut add = |n: u32| {
        let name = format!("{CACHE_NAME}{n}");
        (module::map(MapId(n)), add_map(object, &name, millstream_isa::MapType::ARRAY, 8, 1, MMAPABLE))
    };
    wanted.into_iter().map(&mut add).collect()
}
