//! The file of a fused chain: sections, symbols and types as clang writes them for libbpf. The program is in the
//! section of the host's program, all other functions in `.text`, maps in `.maps`.
//!
//! The contents of functions are not here: writing fills them in, as for a file that was read.

use millstream_btf::{
    Array, Btf, BtfBuilder, BtfError, Composite, Datasec, Member, SectionVar, StrOff, Type, TypeId, TypeKind,
    VarLinkage,
};

use crate::elf::{
    CODE_FLAGS, CONSTANT_FLAGS, DATA_FLAGS, Elf, SHT_NOBITS, SHT_PROGBITS, STB_GLOBAL, STB_LOCAL, STT_FUNC,
    STT_OBJECT,
};
use crate::ids::{FuncId, RelocKind};
use crate::image::{ObjectImage, SymbolReference};
use crate::model::{Linkage, MapDefinition, MapOrigin, Object, ObjectMap, Pinning};

/// Bytes of a member of a map's definition in `.maps`.
const POINTER: u32 = 8;

/// Gives an object its types, and a file if one can hold all of it.
pub(crate) fn give_file(object: &mut Object, mut types: BtfBuilder, whole: bool) -> Result<(), BtfError> {
    let order = object.byte_order();
    let fits = |m: &ObjectMap| {
        m.inner.is_none()
            && !matches!(m.origin, MapOrigin::Kconfig | MapOrigin::StructOps | MapOrigin::Extern)
            && matches!(m.spec.pinning, Pinning::None | Pinning::ByName)
            && u32::try_from(m.spec.map_extra).is_ok()
    };
    let has_file = whole
        && object.externs.is_empty()
        && !object.programs[0].section.is_empty()
        && object.maps.iter().all(fits)
        && object.functions.iter().all(|f| f.removed || f.type_id.is_some());
    object.image = ObjectImage::default();
    object.image.elf.order = order;
    if has_file {
        forget_sections(&mut types);
        object.image.elf = Elf::empty(order);
        place_functions(object, &mut types);
        place_maps(object, &mut types);
    }
    let bytes = types.write()?;
    object.btf = Some(Btf::from_vec(bytes.clone())?);
    if has_file {
        let elf = &mut object.image.elf;
        let license = object.license.bytes().chain([0]).collect();
        let license = elf.add_section("license", SHT_PROGBITS, DATA_FLAGS, license);
        elf.add_symbol("_license", (STB_GLOBAL, STT_OBJECT), (license, 0), object.license.len() as u64 + 1);
        elf.add_section(".BTF", SHT_PROGBITS, 0, bytes);
        elf.add_section(".BTF.ext", SHT_PROGBITS, 0, Vec::new());
    }
    Ok(())
}

/// Sections of the host's variables are not those of the file. A type without a name stays in each place.
fn forget_sections(types: &mut BtfBuilder) {
    for id in (1..types.next_id().0).map(TypeId) {
        if let Some(ty) = types.get_mut(id)
            && matches!(ty.kind, TypeKind::Datasec(_))
        {
            *ty = Type { name: StrOff(0), kind: TypeKind::Ptr(TypeId(0)) };
        }
    }
}

/// Makes sections and symbols for the functions.
fn place_functions(object: &mut Object, types: &mut BtfBuilder) {
    let main = object.programs[0].func;
    let elf = &mut object.image.elf;
    let text = elf.add_section(".text", SHT_PROGBITS, CODE_FLAGS, Vec::new());
    let program = &object.programs[0].section;
    let code = elf.add_section(program, SHT_PROGBITS, CODE_FLAGS, Vec::new());
    for name in [".text", program] {
        object.image.ext_names.insert(name.to_owned(), types.string(name));
    }
    // Places are set anew when the file is written; until then each function has one of its own.
    let mut next = 0;
    for (n, f) in object.functions.iter_mut().enumerate() {
        let is_main = n == main.index();
        let section = if is_main { code } else { text };
        f.start = if is_main { 0 } else { next };
        object.image.function_sections.push(section);
        if f.removed {
            continue;
        }
        if !is_main {
            next += f.insns.len() as u32;
        }
        let (id, is_global) = (FuncId(n as u32), is_main || (f.linkage != Linkage::Static && !f.hidden));
        let binding = if is_global { STB_GLOBAL } else { STB_LOCAL };
        let (value, size) = (u64::from(f.start) * 8, f.insns.len() as u64 * 8);
        let symbol = object.image.elf.add_symbol(&f.name, (binding, STT_FUNC), (section, value), size);
        // Names need not be unique, so that references are by symbol.
        object.image.forms.insert(RelocKind::Call(id), SymbolReference { symbol, immediate: -1 });
        object.image.forms.insert(RelocKind::FuncAddr(id), SymbolReference { symbol, immediate: 0 });
        object.image.function_places.insert((section, u64::from(f.start)), id);
    }
}

/// Makes sections, symbols and definitions of the maps.
fn place_maps(object: &mut Object, types: &mut BtfBuilder) {
    let int = types.int("int", 4, true);
    let mut vars = Vec::new();
    let mut size = 0;
    let elf = &mut object.image.elf;
    let definitions = elf.add_section(".maps", SHT_PROGBITS, DATA_FLAGS, Vec::new());
    for map in &mut object.maps {
        if map.origin.is_global() {
            object.image.map_places.push(Some((place_data(elf, map), 0)));
            continue;
        }
        let ty = definition(types, int, &map.spec);
        let bytes = members(&map.spec).len() as u32 * POINTER;
        let ty = types.add(&map.name, TypeKind::Var { ty, linkage: VarLinkage::Global });
        vars.push(SectionVar { ty, offset: size, size: bytes });
        let place = (definitions, u64::from(size));
        elf.add_symbol(&map.name, (STB_GLOBAL, STT_OBJECT), place, u64::from(bytes));
        object.image.map_places.push(Some(place));
        size += bytes;
    }
    if vars.is_empty() {
        elf.sections[definitions].deleted = true;
        return;
    }
    types.add(".maps", TypeKind::Datasec(Datasec { size, vars }));
    elf.sections[definitions].set_data(vec![0; size as usize]);
}

/// The section of a map that holds global variables; of several of one name, each has its number too. libbpf
/// knows one `.bss`, so that others become sections of data.
fn place_data(elf: &mut Elf, map: &mut ObjectMap) -> usize {
    let is_taken = |name: &str| elf.sections.iter().any(|s| s.name == name);
    if map.origin == MapOrigin::Bss && is_taken(&map.section) {
        map.origin = MapOrigin::Data;
        map.data = Some(vec![0; map.spec.value_size as usize]);
        ".data".clone_into(&mut map.section);
    }
    let suffixes = (2..).map(|n| format!("{}.{n}", map.section));
    let name = std::iter::once(map.section.clone()).chain(suffixes).find(|name| !is_taken(name));
    map.section = name.unwrap_or_default();
    let (kind, flags) = match map.origin {
        MapOrigin::Bss => (SHT_NOBITS, DATA_FLAGS),
        MapOrigin::Rodata => (SHT_PROGBITS, CONSTANT_FLAGS),
        _ => (SHT_PROGBITS, DATA_FLAGS),
    };
    let section = elf.add_section(&map.section, kind, flags, map.data.clone().unwrap_or_default());
    elf.sections[section].size = u64::from(map.spec.value_size);
    section
}

/// Members of a map's definition: the name, and a number or a type.
fn members(spec: &MapDefinition) -> Vec<(&'static str, Result<u32, TypeId>)> {
    let pinning = u32::from(spec.pinning == Pinning::ByName);
    let numbers = [
        ("type", spec.map_type.0),
        ("max_entries", spec.max_entries),
        ("map_flags", spec.flags),
        ("map_extra", u32::try_from(spec.map_extra).unwrap_or_default()),
        ("pinning", pinning),
        ("numa_node", spec.numa_node.unwrap_or_default()),
    ];
    let mut members: Vec<_> =
        numbers.into_iter().filter(|(_, n)| *n != 0).map(|(name, n)| (name, Ok(n))).collect();
    let sides = [
        ("key", "key_size", spec.key_type, spec.key_size),
        ("value", "value_size", spec.value_type, spec.value_size),
    ];
    for (name, size_name, ty, size) in sides {
        match ty {
            Some(ty) => members.push((name, Err(ty))),
            None if size > 0 => members.push((size_name, Ok(size))),
            None => {}
        }
    }
    members
}

/// The structure that describes a map.
fn definition(types: &mut BtfBuilder, int: TypeId, spec: &MapDefinition) -> TypeId {
    let mut fields = Vec::new();
    for (name, value) in members(spec) {
        let target = match value {
            Ok(len) => types.add("", TypeKind::Array(Array { element: int, index: int, len })),
            Err(ty) => ty,
        };
        let ty = types.add("", TypeKind::Ptr(target));
        let bit_offset = fields.len() as u32 * 8 * POINTER;
        fields.push(Member { name: types.string(name), ty, bit_offset, bit_size: 0 });
    }
    let size = fields.len() as u32 * POINTER;
    types.add("", TypeKind::Struct(Composite { size, bit_fields: false, members: fields }))
}
