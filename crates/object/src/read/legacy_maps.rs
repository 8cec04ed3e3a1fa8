//! Maps of the years before BTF: structures of numbers in a section `maps`, or each in one of its own
//! (`maps/name`).
//!
//! Loaders agreed on the first four numbers (type, sizes, entries) and mostly on a fifth (flags). The rest
//! depends on the header that was used, which only the structure's size tells:
//!
//! | bytes | defined by | after the flags |
//! |---|---|---|
//! | 16, 20 | libbpf | |
//! | 24 | kernel's samples of 2017 | numa node |
//! | 28 | kernel's samples and self tests | number of the inner map among all, numa node |
//! | 32, 36 | iproute2 (`bpf_elf_map`) | id, pinning, id of the inner map, place in the outer map |
//! | 280 and more | gobpf | pinning, name space |

use millstream_isa::{ByteOrder, MapType};

use crate::elf::STT_SECTION;
use crate::error::ObjectError;
use crate::ids::MapId;
use crate::model::{InitialValue, MapDefinition, MapOrigin, Object, ObjectMap, Pinning};
use crate::read::maps;

/// iproute2's "no place in an outer map".
const NOWHERE: u32 = u32::MAX;

/// A definition, and its references to other maps.
#[derive(Default)]
struct LegacyMapDef {
    spec: MapDefinition,
    iproute2: bool,
    /// Number of the inner map, counted through all sections.
    inner_index: Option<u32>,
    /// iproute2's number for this map, and for its inner map or tail calls.
    id: u32,
    inner_id: u32,
    /// Its place in the outer map.
    inner_place: u32,
}

pub(crate) fn read_legacy_maps(object: &mut Object) {
    let is_legacy = |name: &str| name == "maps" || name.starts_with("maps/");
    let mut definitions = Vec::new();
    for n in 0..object.elf().sections.len() {
        let s = &object.elf().sections[n];
        if is_legacy(&s.name) && !s.is_relocations() && !s.data.is_empty() {
            read_legacy_section(object, n, &mut definitions);
        }
    }
    connect(object, &definitions);
}

fn read_legacy_section(object: &mut Object, n: usize, definitions: &mut Vec<(MapId, LegacyMapDef)>) {
    let section = object.elf().sections[n].clone();
    let mut symbols: Vec<(u64, u64, String)> = Vec::new();
    for s in object.elf().symbols.iter().filter(|s| s.section() == Some(n) && s.kind() != STT_SECTION) {
        // Two names for one map: the first will do.
        if !symbols.iter().any(|(at, ..)| *at == s.value) {
            symbols.push((s.value, s.size, s.name.clone()));
        }
    }
    symbols.sort();
    let ends: Vec<u64> = symbols.iter().skip(1).map(|s| s.0).chain([section.size]).collect();
    for ((at, size, name), end) in symbols.into_iter().zip(ends) {
        let room = end.saturating_sub(at);
        let size = if size == 0 || size > room { room } else { size };
        let range = usize::try_from(at).ok().zip(usize::try_from(size).ok());
        let bytes = range.and_then(|(a, len)| section.data.get(a..a.checked_add(len)?));
        let bytes = bytes.ok_or_else(|| "its definition lies outside the section".to_owned());
        let definition = match bytes.and_then(|bytes| definition(bytes, object.byte_order())) {
            Ok(definition) => definition,
            Err(what) => {
                let bad = ObjectError::BadMap { map: name, section: section.name.clone(), what };
                object.notes.push(bad.to_string());
                continue;
            }
        };
        let map = ObjectMap {
            name,
            section: section.name.clone(),
            origin: if definition.iproute2 { MapOrigin::Iproute2 } else { MapOrigin::Legacy },
            spec: definition.spec.clone(),
            inner: None,
            initial: Vec::new(),
            data: None,
            variables: Vec::new(),
        };
        definitions.push((MapId(object.maps.len() as u32), definition));
        maps::push_map(object, map, n, at);
    }
}

/// Gives maps of maps their inner maps.
fn connect(object: &mut Object, definitions: &[(MapId, LegacyMapDef)]) {
    for (id, d) in definitions {
        if !d.spec.map_type.is_map_of_maps() {
            continue;
        }
        let by_index = d.inner_index.and_then(|i| definitions.get(i as usize));
        let by_id = || {
            let same = |(other, o): &&(MapId, LegacyMapDef)| other != id && o.id == d.inner_id;
            definitions.iter().filter(|_| d.iproute2 && d.inner_id != 0).find(same)
        };
        let Some((_, inner)) = by_index.or_else(by_id) else { continue };
        object.maps[id.index()].inner = Some(inner.spec.clone());
        let placed = definitions
            .iter()
            .filter(|(other, o)| d.iproute2 && other != id && o.id == d.inner_id && o.inner_place != NOWHERE);
        let initial = placed.map(|(other, o)| (o.inner_place, InitialValue::Map(*other))).collect();
        object.maps[id.index()].initial = initial;
    }
}

fn definition(bytes: &[u8], order: ByteOrder) -> Result<LegacyMapDef, String> {
    let words: Vec<u32> = bytes.chunks_exact(4).map(|b| order.number(b) as u32).collect();
    let word = |n: usize| words.get(n).copied().unwrap_or(0);
    if words.len() < 4 {
        return Err(format!("its definition has {} bytes, the least there is has 16", bytes.len()));
    }
    let mut d = LegacyMapDef {
        spec: MapDefinition {
            map_type: MapType(word(0)),
            key_size: word(1),
            value_size: word(2),
            max_entries: word(3),
            flags: word(4),
            ..MapDefinition::default()
        },
        inner_place: NOWHERE,
        ..LegacyMapDef::default()
    };
    const NUMA_NODE: u32 = 1 << 2;
    let node = |n: usize| (word(4) & NUMA_NODE != 0).then(|| word(n));
    match bytes.len() {
        24 => d.spec.numa_node = node(5),
        28 => {
            d.inner_index = Some(word(5));
            d.spec.numa_node = node(6);
        }
        32..280 => {
            d.iproute2 = true;
            d.id = word(5);
            d.spec.pinning = match word(6) {
                0 => Pinning::None,
                1 => Pinning::ObjectNs,
                2 => Pinning::GlobalNs,
                n => Pinning::Other(n),
            };
            d.inner_id = word(7);
            d.inner_place = if bytes.len() >= 36 { word(8) } else { NOWHERE };
        }
        280.. => {
            d.spec.pinning = match word(5) {
                0 => Pinning::None,
                n => Pinning::Other(n),
            }
        }
        _ => {}
    }
    Ok(d)
}
