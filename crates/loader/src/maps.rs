//! Making an object's maps.

use std::os::fd::AsFd;
use std::path::PathBuf;

use millstream_kernel::{self as kernel, Map, UpdateMode, possible_cpus};
use millstream_object::{self as object, InitialValue, MapId, MapOrigin, MapSpec, MapType, Object, Pinning};
use rustc_hash::FxHashMap;

use crate::error::Error;
use crate::kconfig;

/// What the caller wants otherwise than the object says.
#[derive(Debug, Default)]
pub(crate) struct Overrides {
    /// Maps to use in the place of the object's.
    pub(crate) reuse: FxHashMap<MapId, Map>,
    /// Initial contents of global data.
    pub(crate) data: FxHashMap<MapId, Vec<u8>>,
    /// Numbers of entries.
    pub(crate) max_entries: FxHashMap<MapId, u32>,
    /// Where maps that ask for it are pinned, and looked for first.
    pub(crate) pin_root: Option<PathBuf>,
}

/// Makes or takes over every map of the object. `None` for those that this loader does not make (`struct_ops`).
pub(crate) fn create_all(
    object: &Object,
    btf: Option<&kernel::Btf>,
    mut overrides: Overrides,
) -> Result<Vec<Option<Map>>, Error> {
    let mut out = Vec::with_capacity(object.maps.len());
    for (i, map) in object.maps.iter().enumerate() {
        let id = MapId(i as u32);
        if map.origin == MapOrigin::StructOps || map.spec.map_type == MapType::STRUCT_OPS {
            out.push(None);
            continue;
        }
        let made = match overrides.reuse.remove(&id) {
            Some(given) => {
                same_layout(&map.name, &map.spec, &given)?;
                given
            }
            None => open_or_create(object, id, map, btf, &overrides)?,
        };
        out.push(Some(made));
    }
    put_inner_maps(object, &out)?;
    Ok(out)
}

fn open_or_create(
    object: &Object,
    id: MapId,
    map: &object::Map,
    btf: Option<&kernel::Btf>,
    overrides: &Overrides,
) -> Result<Map, Error> {
    let pin = match (&overrides.pin_root, map.spec.pinning) {
        (_, Pinning::None) | (None, _) => None,
        (Some(root), _) => Some(root.join(&map.name)),
    };
    if let Some(path) = &pin
        && path.exists()
    {
        let found = Map::from_pin(path)?;
        same_layout(&map.name, &map.spec, &found)?;
        return Ok(found);
    }
    let entries = overrides.max_entries.get(&id).copied().unwrap_or(map.spec.max_entries);
    let made = create(map, entries, btf)?;
    if map.origin.is_global() {
        fill(object, id, map, &made, overrides)?;
    }
    if let Some(path) = &pin {
        made.pin(path)?;
    }
    Ok(made)
}

fn create(map: &object::Map, max_entries: u32, btf: Option<&kernel::Btf>) -> Result<Map, Error> {
    let inner = match &map.inner {
        Some(spec) => Some(create_one("", spec, spec.max_entries, None, btf)?),
        None => None,
    };
    create_one(&map.name, &map.spec, max_entries, inner.as_ref(), btf)
}

fn create_one(
    name: &str,
    spec: &MapSpec,
    max_entries: u32,
    inner: Option<&Map>,
    btf: Option<&kernel::Btf>,
) -> Result<Map, Error> {
    let types = btf.filter(|_| takes_btf(spec.map_type)).and_then(|b| {
        let value = spec.value_type?.0;
        Some((b, spec.key_type.map_or(0, |t| t.0), value))
    });
    let wanted = kernel::MapSpec {
        name,
        map_type: kernel::MapType(spec.map_type.0),
        key_size: spec.key_size,
        value_size: spec.value_size,
        max_entries: entries(spec.map_type, max_entries)?,
        flags: spec.flags,
        inner,
        numa_node: spec.numa_node,
        btf: types,
        extra: spec.map_extra,
    };
    match Map::create(&wanted) {
        // A type that does not describe the map (libbpf, too, goes on without).
        Err(e) if types.is_some() && e.errno() != Some(libc::EPERM) => {
            Ok(Map::create(&kernel::MapSpec { btf: None, ..wanted })?)
        }
        other => Ok(other?),
    }
}

/// Types of maps that the kernel refuses BTF for, as libbpf lists them.
fn takes_btf(map_type: MapType) -> bool {
    !matches!(
        map_type,
        MapType::PERF_EVENT_ARRAY
            | MapType::CGROUP_ARRAY
            | MapType::STACK_TRACE
            | MapType::ARRAY_OF_MAPS
            | MapType::HASH_OF_MAPS
            | MapType::DEVMAP
            | MapType::DEVMAP_HASH
            | MapType::CPUMAP
            | MapType::XSKMAP
            | MapType::SOCKMAP
            | MapType::SOCKHASH
            | MapType::QUEUE
            | MapType::STACK
            | MapType::ARENA
    )
}

/// The number of entries to ask for: perf event arrays without one get one a CPU, ring buffers a power of two of
/// whole pages.
fn entries(map_type: MapType, n: u32) -> Result<u32, Error> {
    const PAGE: u32 = 4096;
    Ok(match map_type {
        MapType::PERF_EVENT_ARRAY if n == 0 => possible_cpus()? as u32,
        MapType::RINGBUF | MapType::USER_RINGBUF if n != 0 => {
            n.checked_next_power_of_two().unwrap_or(n).max(PAGE)
        }
        _ => n,
    })
}

/// Gives global data its contents; constants and settings are then frozen.
fn fill(
    object: &Object,
    id: MapId,
    map: &object::Map,
    made: &Map,
    overrides: &Overrides,
) -> Result<(), Error> {
    let computed = match overrides.data.get(&id) {
        Some(bytes) => Some(bytes.clone()),
        None if map.origin == MapOrigin::Kconfig => Some(kconfig::contents(object, id, map)?),
        None => map.data.clone(),
    };
    if let Some(bytes) = computed {
        let want = map.spec.value_size as usize;
        if bytes.len() != want {
            return Err(Error::Size { name: map.name.clone(), got: bytes.len(), want });
        }
        made.update(&[0; 4], &bytes, UpdateMode::Any)?;
    }
    if matches!(map.origin, MapOrigin::Rodata | MapOrigin::Kconfig) {
        made.freeze()?;
    }
    Ok(())
}

fn put_inner_maps(object: &Object, made: &[Option<Map>]) -> Result<(), Error> {
    for (map, outer) in object.maps.iter().zip(made) {
        let Some(outer) = outer else { continue };
        for (slot, value) in &map.initial {
            let InitialValue::Map(inner) = value else { continue };
            if let Some(Some(inner)) = made.get(inner.index()) {
                outer.update_fd(&slot.to_ne_bytes(), inner.as_fd())?;
            }
        }
    }
    Ok(())
}

/// Refuses a map whose layout programs of this object would misread.
fn same_layout(name: &str, want: &MapSpec, found: &Map) -> Result<(), Error> {
    let info = found.info();
    let pairs = [
        ("type", want.map_type.0, info.map_type.0),
        ("key size", want.key_size, info.key_size),
        ("value size", want.value_size, info.value_size),
    ];
    for (what, object, there) in pairs {
        if object != there {
            let difference = format!("{what} is {there} there, {object} in the object");
            return Err(Error::Layout { name: name.to_owned(), difference });
        }
    }
    Ok(())
}
