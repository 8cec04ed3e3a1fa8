//! Making an object's maps.

use std::os::fd::AsFd;
use std::path::PathBuf;

use millstream_isa::MapType;
use millstream_kernel::{self as kernel, KernelMap, UpdateMode};
use millstream_object::{self as object, InitialValue, MapDefinition, MapId, MapOrigin, Object, Pinning};
use rustc_hash::FxHashMap;

use crate::completion::{self, CompletedMap};
use crate::error::Error;
use crate::kconfig;

/// `BPF_F_RDONLY_PROG`.
const READ_ONLY_TO_PROGRAMS: u32 = 1 << 7;

/// Deviations from the object that the caller wants.
#[derive(Debug, Default)]
pub(crate) struct MapOverrides {
    /// Maps to use in place of the object's.
    pub(crate) reuse: FxHashMap<MapId, KernelMap>,
    /// Initial contents of global data.
    pub(crate) data: FxHashMap<MapId, Vec<u8>>,
    /// Numbers of entries.
    pub(crate) max_entries: FxHashMap<MapId, u32>,
    /// The number of entries of maps to which the object gives none.
    pub(crate) default_entries: Option<u32>,
    /// Directory in which maps that ask for it are pinned, and looked for first.
    pub(crate) pin_root: Option<PathBuf>,
}

/// The maps of an object in the kernel.
#[derive(Debug, Default)]
pub(crate) struct MadeMaps {
    /// One for each map of the object; `None` for those that this loader does not make (`struct_ops`), or
    /// that the kernel does not.
    pub(crate) maps: Vec<Option<KernelMap>>,
    /// Reasons why the kernel did not make a map.
    pub(crate) impossible: FxHashMap<MapId, String>,
}

/// Makes or takes over every map of the object. With `go_on`, goes on without maps that the kernel does not
/// make, unless it refuses for lack of rights.
pub(crate) fn create_all(
    object: &Object,
    btf: Option<&kernel::KernelBtf>,
    mut overrides: MapOverrides,
    notes: &mut Vec<String>,
    go_on: bool,
) -> Result<MadeMaps, Error> {
    let mut out = Vec::with_capacity(object.maps.len());
    let mut impossible = FxHashMap::default();
    for (i, map) in object.maps.iter().enumerate() {
        let id = MapId(i as u32);
        let elsewhere = matches!(map.origin, MapOrigin::StructOps | MapOrigin::Extern);
        if elsewhere || map.spec.map_type == MapType::STRUCT_OPS {
            out.push(None);
            continue;
        }
        let given = overrides.reuse.remove(&id);
        let wanted = PlannedMap::new(id, map, &overrides)?;
        let made = match given {
            Some(given) => {
                same_layout(&map.name, &wanted.spec, &given)?;
                given
            }
            None => {
                notes.extend(wanted.notes.iter().map(|n| format!("map {:?}: {n}", map.name)));
                match open_or_create(object, id, &wanted, btf, &overrides) {
                    Err(e @ (Error::Kernel(_) | Error::Setting { .. })) if go_on && !is_forbidden(&e) => {
                        notes.push(format!("map {:?} cannot be made: {e}", map.name));
                        impossible.insert(id, e.to_string());
                        out.push(None);
                        continue;
                    }
                    made => made?,
                }
            }
        };
        out.push(Some(made));
    }
    put_inner_maps(object, &out)?;
    Ok(MadeMaps { maps: out, impossible })
}

fn is_forbidden(error: &Error) -> bool {
    matches!(error, Error::Kernel(e) if e.errno() == Some(libc::EPERM))
}

/// A map of the object, with all choices made that are left to the loader.
struct PlannedMap<'a> {
    map: &'a object::ObjectMap,
    spec: MapDefinition,
    inner: Option<MapDefinition>,
    notes: Vec<String>,
}

impl<'a> PlannedMap<'a> {
    fn new(id: MapId, map: &'a object::ObjectMap, overrides: &MapOverrides) -> Result<Self, Error> {
        let mut asked = map.spec.clone();
        if let Some(&entries) = overrides.max_entries.get(&id) {
            asked.max_entries = entries;
        }
        let CompletedMap { spec, mut notes } = completion::complete(&asked, overrides.default_entries)?;
        let inner = match &map.inner {
            Some(template) => {
                let c = completion::complete(template, overrides.default_entries)?;
                notes.extend(c.notes.into_iter().map(|n| format!("inner maps: {n}")));
                Some(c.spec)
            }
            None => None,
        };
        Ok(PlannedMap { map, spec, inner, notes })
    }
}

fn open_or_create(
    object: &Object,
    id: MapId,
    wanted: &PlannedMap<'_>,
    btf: Option<&kernel::KernelBtf>,
    overrides: &MapOverrides,
) -> Result<KernelMap, Error> {
    let map = wanted.map;
    let pin = match (&overrides.pin_root, map.spec.pinning) {
        (_, Pinning::None) | (None, _) => None,
        (Some(root), _) => Some(root.join(&map.name)),
    };
    if let Some(path) = &pin
        && path.exists()
    {
        // Its maker can write it, and so change data that the session's programs take for their own.
        kernel::check_pin(path).map_err(|e| Error::Pin { map: map.name.clone(), source: e })?;
        let found = KernelMap::from_pin(path)?;
        let pinned = format!("{} (pinned at {})", map.name, path.display());
        same_layout(&pinned, &wanted.spec, &found)?;
        same_capacity(&pinned, &wanted.spec, &found)?;
        return Ok(found);
    }
    let inner = match &wanted.inner {
        Some(spec) => Some(create_one("", spec, None, btf)?),
        None => None,
    };
    let made = create_one(&map.name, &wanted.spec, inner.as_ref(), btf)?;
    if map.origin.is_global() {
        fill(object, id, map, &made, overrides)?;
    }
    if map.spec.map_type == MapType::ARENA {
        let data = object.arena_data().filter(|(arena, _)| *arena == id).map_or(&[][..], |(_, data)| data);
        // One with an address of its own has a place already.
        if !data.is_empty() || map.spec.map_extra == 0 {
            made.place_arena(data)?;
        }
    }
    if let Some(path) = &pin {
        made.pin(path)?;
    }
    Ok(made)
}

fn create_one(
    name: &str,
    spec: &MapDefinition,
    inner: Option<&KernelMap>,
    btf: Option<&kernel::KernelBtf>,
) -> Result<KernelMap, Error> {
    let types = btf.filter(|_| takes_btf(spec.map_type)).and_then(|b| {
        let value = spec.value_type?.0;
        Some((b, spec.key_type.map_or(0, |t| t.0), value))
    });
    let wanted = kernel::MapSpec {
        name,
        map_type: spec.map_type,
        key_size: spec.key_size,
        value_size: spec.value_size,
        max_entries: spec.max_entries,
        flags: spec.flags,
        inner,
        numa_node: spec.numa_node,
        btf: types,
        extra: spec.map_extra,
    };
    match KernelMap::create(&wanted) {
        // The type does not describe the map (libbpf, too, goes on without).
        Err(e) if types.is_some() && e.errno() != Some(libc::EPERM) => {
            Ok(KernelMap::create(&kernel::MapSpec { btf: None, ..wanted })?)
        }
        other => Ok(other?),
    }
}

/// Returns false for the types of maps for which the kernel refuses BTF, as libbpf lists them.
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

/// Gives global data its contents; constants and settings are then frozen.
fn fill(
    object: &Object,
    id: MapId,
    map: &object::ObjectMap,
    made: &KernelMap,
    overrides: &MapOverrides,
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

fn put_inner_maps(object: &Object, made: &[Option<KernelMap>]) -> Result<(), Error> {
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
fn same_layout(name: &str, want: &MapDefinition, found: &KernelMap) -> Result<(), Error> {
    let info = found.info();
    if want.map_type != info.map_type {
        let difference = format!("its type is {} there, {} in the object", info.map_type, want.map_type);
        return Err(Error::Layout { name: name.to_owned(), difference });
    }
    equal(
        name,
        &[("key size", want.key_size, info.key_size), ("value size", want.value_size, info.value_size)],
    )
}

/// Refuses a pinned map that was made differently from the object's, as libbpf does: its maker had another
/// version of the object.
fn same_capacity(name: &str, want: &MapDefinition, found: &KernelMap) -> Result<(), Error> {
    let info = found.info();
    // The kernel makes device maps read-only to programs, whatever was asked for.
    let implied = match want.map_type {
        kind if kind.is_devmap() => READ_ONLY_TO_PROGRAMS,
        _ => 0,
    };
    let pairs = [
        ("number of entries", want.max_entries, info.max_entries),
        ("flags", want.flags | implied, info.flags | implied),
    ];
    equal(name, &pairs)
}

/// Refuses differences: name of the property, value in the object, value found.
fn equal(name: &str, pairs: &[(&str, u32, u32)]) -> Result<(), Error> {
    for (what, object, there) in pairs {
        if object != there {
            let difference = format!("its {what} is {there} there, {object} in the object");
            return Err(Error::Layout { name: name.to_owned(), difference });
        }
    }
    Ok(())
}
