//! Maps: those that BTF describes, global data, `struct_ops`, and what maps hold from the start.

use crate::elf::{ElfSection, STT_SECTION};
use crate::error::ObjectError;
use crate::ids::{FuncId, MapId};
use crate::model::{InitialValue, MapDefinition, MapOrigin, Object, ObjectMap, Pinning, Variable};
use crate::read::{MAX_NAME, functions};
use millstream_btf::{Btf, KindTag, Member, TypeId, TypeKind};
use millstream_isa::MapType;

/// `BPF_F_RDONLY_PROG`.
const READ_ONLY_TO_PROGRAMS: u32 = 1 << 7;
/// `BPF_F_MMAPABLE`.
const MMAPABLE: u32 = 1 << 10;
const MAPS: &str = ".maps";
/// Global data in the first address space (`__arena`), which is the contents of an arena.
const ARENA_DATA: &str = ".addr_space.1";
const POINTER: u64 = 8;

/// A map's description, and where in its variable the initial values are.
pub(crate) struct ParsedMapDef {
    spec: MapDefinition,
    inner: Option<MapDefinition>,
    values: Option<u64>,
}

/// A map whose definition is not understood is none; what refers to it is kept as it is.
pub(crate) fn read_maps(object: &mut Object) {
    if let Err(e) = read_btf_maps(object) {
        object.notes.push(e.to_string());
    }
    read_global_data(object);
    object.image.arena = find_arena(object);
    if let Err(e) = read_struct_ops(object) {
        object.notes.push(e.to_string());
    }
}

pub(crate) fn push_map(object: &mut Object, map: ObjectMap, section: usize, offset: u64) {
    let id = MapId(object.maps.len() as u32);
    if map.origin.is_global() {
        object.image.data_maps.insert(section, id);
    } else if map.origin != MapOrigin::StructOps {
        object.image.maps_by_place.insert((section, offset), id);
    }
    object.maps.push(map);
    object.image.map_places.push(Some((section, offset)));
}

fn read_btf_maps(object: &mut Object) -> Result<(), ObjectError> {
    let section = object.elf().find(MAPS).filter(|n| object.elf().sections[*n].size > 0);
    let described = object.btf.clone().and_then(|btf| Some((btf.find(KindTag::Datasec, MAPS)?, btf)));
    let Some((id, btf)) = described else {
        return section.map_or(Ok(()), |_| Err(ObjectError::NeedsBtf(MAPS)));
    };
    let symbols = section.map(|n| object.symbols_in(n)).unwrap_or_default();
    let places: Vec<(u64, String)> = symbols.into_iter().map(|(at, _, name)| (at, name.to_owned())).collect();
    let Ok(TypeKind::Datasec(sec)) = btf.ty(id).map(|t| t.kind) else { return Ok(()) };
    for var in sec.vars {
        if let Err(e) = read_btf_map(object, &btf, section, &places, var.ty) {
            object.notes.push(e.to_string());
        }
    }
    Ok(())
}

fn read_btf_map(
    object: &mut Object,
    btf: &Btf,
    section: Option<usize>,
    places: &[(u64, String)],
    var: TypeId,
) -> Result<(), ObjectError> {
    let name = btf.name(var).to_owned();
    let bad = |what: String| ObjectError::BadMap { map: name.clone(), section: MAPS.into(), what };
    let place = places.iter().find(|(_, symbol)| *symbol == name);
    let elsewhere = object.elf().symbols.iter().skip(1).position(|s| s.is_undefined() && s.name == name);
    let Ok(TypeKind::Var { ty, .. }) = btf.ty(var).map(|t| t.kind) else {
        return Err(bad("its type is not that of a variable".into()));
    };
    let ParsedMapDef { spec, inner, values: _ } = describe(btf, ty, true).map_err(bad)?;
    let map = |origin| ObjectMap {
        name: name.clone(),
        section: MAPS.to_owned(),
        origin,
        spec,
        inner,
        initial: Vec::new(),
        data: None,
        variables: Vec::new(),
    };
    match (section.zip(place), elsewhere) {
        (Some((section, (offset, _))), _) => push_map(object, map(MapOrigin::Btf), section, *offset),
        (None, Some(symbol)) => {
            object.image.extern_maps.insert(symbol + 1, MapId(object.maps.len() as u32));
            object.maps.push(map(MapOrigin::Extern));
            object.image.map_places.push(None);
        }
        (None, None) => return Err(bad("it has no symbol".into())),
    }
    Ok(())
}

/// The section of an arena's global data, and the arena: libbpf takes the only one of the object.
fn find_arena(object: &Object) -> Option<(usize, MapId)> {
    let section = object.elf().find(ARENA_DATA)?;
    let is_arena = |n: &usize| object.maps[*n].spec.map_type == MapType::ARENA;
    let mut arenas = (0..object.maps.len()).filter(is_arena);
    let arena = arenas.next()?;
    arenas.next().is_none().then_some((section, MapId(arena as u32)))
}

fn read_global_data(object: &mut Object) {
    for n in 0..object.elf().sections.len() {
        let s = &object.elf().sections[n];
        let Some(origin) = data_origin(s) else { continue };
        let Ok(value_size) = u32::try_from(s.size) else {
            object.notes.push(format!("section {} holds more than 4 GiB of global data", s.name));
            continue;
        };
        let read_only = origin == MapOrigin::Rodata;
        let map = ObjectMap {
            name: data_map_name(object, &s.name),
            section: s.name.clone(),
            origin,
            spec: MapDefinition {
                map_type: MapType::ARRAY,
                key_size: 4,
                value_size,
                max_entries: 1,
                flags: if read_only { READ_ONLY_TO_PROGRAMS | MMAPABLE } else { MMAPABLE },
                value_type: object.btf.as_ref().and_then(|b| b.find(KindTag::Datasec, &s.name)),
                ..MapDefinition::default()
            },
            inner: None,
            initial: Vec::new(),
            data: (origin != MapOrigin::Bss).then(|| s.data.clone()),
            variables: variables(object, n),
        };
        push_map(object, map, n, 0);
    }
}

fn variables(object: &Object, section: usize) -> Vec<Variable> {
    let fits = |n: u64| u32::try_from(n).ok();
    let variable = |(at, size, name): (u64, u64, &str)| {
        Some(Variable { name: name.to_owned(), offset: fits(at)?, size: fits(size)? })
    };
    object.symbols_in(section).into_iter().filter_map(variable).collect()
}

/// The name libbpf gives: the object's name, cut so that the section's fits, and the section's; of a
/// section with two dots, the section's alone. Characters that the kernel does not allow in names become
/// `_`.
pub(crate) fn data_map_name(object: &Object, section: &str) -> String {
    let suffix_len = section.len().clamp(7, MAX_NAME);
    let custom = section.get(1..).is_some_and(|s| s.contains('.'));
    let prefix_len = if custom { 0 } else { object.name.len().min(MAX_NAME - suffix_len) };
    let name = object.name.bytes().take(prefix_len).chain(section.bytes().take(suffix_len));
    let allowed = |b: u8| if b.is_ascii_alphanumeric() || b"_.".contains(&b) { char::from(b) } else { '_' };
    name.map(allowed).collect()
}

fn read_struct_ops(object: &mut Object) -> Result<(), ObjectError> {
    for n in 0..object.elf().sections.len() {
        let s = &object.elf().sections[n];
        if !s.name.starts_with(".struct_ops") && !s.name.starts_with("?.struct_ops") || s.is_relocations() {
            continue;
        }
        let (section, data) = (s.name.clone(), s.data.clone());
        let btf = object.btf.clone().ok_or(ObjectError::NeedsBtf(".struct_ops"))?;
        let variables: Vec<(u64, u64, String)> =
            object.symbols_in(n).into_iter().map(|(a, b, c)| (a, b, c.to_owned())).collect();
        for (at, size, name) in variables {
            let var = btf.find(KindTag::Var, &name).and_then(|v| btf.ty(v).ok());
            let value_type = match var.map(|v| v.kind) {
                Some(TypeKind::Var { ty, .. }) => Some(ty),
                _ => None,
            };
            let range = usize::try_from(at).ok().zip(usize::try_from(size).ok());
            let value = range.and_then(|(a, len)| data.get(a..a.checked_add(len)?));
            let map = ObjectMap {
                name,
                section: section.clone(),
                origin: MapOrigin::StructOps,
                spec: MapDefinition {
                    map_type: MapType::STRUCT_OPS,
                    key_size: 4,
                    value_size: u32::try_from(size).unwrap_or(u32::MAX),
                    max_entries: 1,
                    value_type,
                    ..MapDefinition::default()
                },
                inner: None,
                initial: Vec::new(),
                data: value.map(<[u8]>::to_vec),
                variables: Vec::new(),
            };
            push_map(object, map, n, at);
        }
    }
    Ok(())
}

/// Values that relocations put into the variables of maps: inner maps, programs of a program array, and
/// functions of `struct_ops`, where the "slot" is the offset of the member in bytes.
pub(crate) fn read_initial_values(object: &mut Object) {
    for n in 0..object.elf().sections.len() {
        let s = &object.elf().sections[n];
        let target = s.info as usize;
        let holds_maps = |m: &Option<(usize, u64)>| m.is_some_and(|(section, _)| section == target);
        if !s.is_relocations() || !object.image.map_places.iter().any(holds_maps) {
            continue;
        }
        for r in object.elf().relocations(n).unwrap_or_default() {
            if let Some((map, slot)) = initial_slot(object, target, r.offset)
                && let Some(value) = initial_value(object, r.symbol)
            {
                object.maps[map].initial.push((slot, value));
            }
        }
    }
    for m in &mut object.maps {
        m.initial.sort_by_key(|(slot, _)| *slot);
    }
}

/// The map and slot that an offset in a section of maps is.
fn initial_slot(object: &Object, section: usize, offset: u64) -> Option<(usize, u32)> {
    let places = object.image.map_places.iter().enumerate();
    let before = places.filter_map(|(n, p)| p.filter(|p| p.0 == section && p.1 <= offset).map(|p| (p.1, n)));
    let (start, map) = before.max()?;
    let inside = offset - start;
    match object.maps[map].origin {
        MapOrigin::StructOps => Some((map, u32::try_from(inside).ok()?)),
        MapOrigin::Btf => {
            let btf = object.btf.as_ref()?;
            let id = btf.find(KindTag::Var, &object.maps[map].name)?;
            let TypeKind::Var { ty, .. } = btf.ty(id).ok()?.kind else { return None };
            let values = describe(btf, ty, true).ok()?.values?;
            Some((map, u32::try_from(inside.checked_sub(values)? / POINTER).ok()?))
        }
        _ => None,
    }
}

fn initial_value(object: &Object, symbol: usize) -> Option<InitialValue> {
    let s = &object.elf().symbols[symbol];
    if s.kind() == STT_SECTION {
        return None;
    }
    if let Some(id) = object.image.maps_by_place.get(&(s.section()?, s.value)) {
        return Some(InitialValue::Map(*id));
    }
    let id: FuncId = functions::function_at(object, s.section()?, s.value / 8)?;
    Some(InitialValue::Program(id))
}

/// Kind of global data that a section holds, if any.
fn data_origin(s: &ElfSection) -> Option<MapOrigin> {
    let is =
        |base: &str| s.name.strip_prefix(base).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let origin = match () {
        () if is(".data") => MapOrigin::Data,
        () if is(".rodata") => MapOrigin::Rodata,
        () if is(".bss") => MapOrigin::Bss,
        () => return None,
    };
    (s.size > 0 && !s.is_relocations()).then_some(origin)
}

/// Reads the structure that describes a map. Numbers are the lengths of arrays that members point to.
fn describe(btf: &Btf, ty: TypeId, outer: bool) -> Result<ParsedMapDef, String> {
    let def = btf.composite(ty).map_err(|e| e.to_string())?;
    let mut d = ParsedMapDef { spec: MapDefinition::default(), inner: None, values: None };
    let mut sizes = (None, None);
    for m in &def.members {
        let name = btf.str(m.name);
        let number = || member_number(btf, m).ok_or_else(|| format!("{name} is not a number"));
        let small = || number().and_then(|n| u32::try_from(n).map_err(|_| format!("{name} is too large")));
        match name {
            "type" => d.spec.map_type = MapType(small()?),
            "max_entries" => d.spec.max_entries = small()?,
            "map_flags" => d.spec.flags = small()?,
            "numa_node" => d.spec.numa_node = Some(small()?),
            "map_extra" => d.spec.map_extra = number()?,
            "key_size" => sizes.0 = Some(small()?),
            "value_size" => sizes.1 = Some(small()?),
            "pinning" => {
                d.spec.pinning = match small()? {
                    0 => Pinning::None,
                    1 => Pinning::ByName,
                    n => Pinning::Other(n),
                }
            }
            "key" => (d.spec.key_type, d.spec.key_size) = pointed(btf, m)?,
            "value" => (d.spec.value_type, d.spec.value_size) = pointed(btf, m)?,
            "values" if outer => {
                d.values = Some(u64::from(m.bit_offset / 8));
                d.inner = inner(btf, m)?;
            }
            _ => return Err(format!("has a member {name}, which maps do not have")),
        }
    }
    if d.values.is_some() {
        d.spec.value_size = 4;
    }
    d.spec.key_size = sizes.0.unwrap_or(d.spec.key_size);
    d.spec.value_size = sizes.1.unwrap_or(d.spec.value_size);
    Ok(d)
}

/// `int (*name)[N]` states N; so does an enumerator of the member's type, for numbers that do not fit an
/// array's length.
fn member_number(btf: &Btf, m: &Member) -> Option<u64> {
    let ty = match btf.resolved(m.ty).ok()?.kind {
        TypeKind::Ptr(to) => to,
        _ => m.ty,
    };
    match btf.resolved(ty).ok()?.kind {
        TypeKind::Array(a) => match btf.resolved(a.element).ok()?.kind {
            TypeKind::Enum(e) => e.values.first().map(|v| v.value),
            _ => Some(u64::from(a.len)),
        },
        TypeKind::Enum(e) => e.values.first().map(|v| v.value),
        _ => None,
    }
}

/// The type that a member points to, and its size.
fn pointed(btf: &Btf, m: &Member) -> Result<(Option<TypeId>, u32), String> {
    let name = btf.str(m.name);
    let Ok(TypeKind::Ptr(to)) = btf.resolved(m.ty).map(|t| t.kind) else {
        return Err(format!("its {name} is not a pointer"));
    };
    let size = btf.size_of(to).map_err(|e| format!("its {name}: {e}"))?;
    let size = u32::try_from(size).map_err(|_| format!("its {name} is too large"))?;
    Ok((Some(to), size))
}

/// Parameters of the creation of inner maps: `values` is an array of pointers, to structures that describe
/// maps or to functions.
fn inner(btf: &Btf, m: &Member) -> Result<Option<MapDefinition>, String> {
    let shape = || "its values are not an array of pointers".to_owned();
    let Ok(TypeKind::Array(a)) = btf.resolved(m.ty).map(|t| t.kind) else { return Err(shape()) };
    let Ok(TypeKind::Ptr(to)) = btf.resolved(a.element).map(|t| t.kind) else { return Err(shape()) };
    match btf.resolved(to).map(|t| t.kind) {
        Ok(TypeKind::Struct(_)) => Ok(Some(describe(btf, to, false)?.spec)),
        _ => Ok(None),
    }
}
