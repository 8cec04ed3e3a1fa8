//! Externs: undefined symbols, and what BTF says of them in its sections `.ksyms` and `.kconfig`.

use crate::elf::STB_WEAK;
use crate::error::ObjectError;
use crate::ids::{ExternId, MapId, RelocKind};
use crate::model::{Extern, ExternKind, MapDefinition, MapOrigin, Object, ObjectMap, Variable};
use crate::read::maps;
use millstream_btf::{Btf, BtfError, KindTag, TypeId, TypeKind};
use millstream_isa::MapType;
use rustc_hash::FxHashMap;

const KCONFIG: &str = ".kconfig";
/// `BPF_F_RDONLY_PROG` and `BPF_F_MMAPABLE`: what libbpf creates the map of settings with.
const KCONFIG_FLAGS: u32 = 1 << 7 | 1 << 10;

/// A setting before its place is known.
struct KconfigVariable {
    symbol: usize,
    name: String,
    type_id: TypeId,
    size: u32,
    align: u32,
}

pub(crate) fn read_externs(object: &mut Object) -> Result<(), ObjectError> {
    let Some(btf) = object.btf.clone() else { return Ok(()) };
    let mut settings = Vec::new();
    read_section_externs(object, &btf, &mut settings).map_err(in_btf)?;
    if !settings.is_empty() {
        place_settings(object, settings)?;
    }
    Ok(())
}

fn read_section_externs(
    object: &mut Object,
    btf: &Btf,
    settings: &mut Vec<KconfigVariable>,
) -> Result<(), BtfError> {
    let symbols = object.elf().symbols.iter().enumerate().skip(1);
    let undefined: FxHashMap<String, usize> =
        symbols.filter(|(_, s)| s.is_undefined()).map(|(n, s)| (s.name.clone(), n)).collect();
    for id in btf.ids().filter(|id| btf.tag(*id) == Ok(KindTag::Datasec)) {
        let (TypeKind::Datasec(sec), section) = (btf.ty(id)?.kind, btf.name(id)) else { continue };
        if !matches!(section, ".ksyms" | KCONFIG) {
            continue;
        }
        for var in sec.vars {
            let name = btf.name(var.ty).to_owned();
            let Some(&symbol) = undefined.get(&name) else { continue };
            let weak = object.elf().symbols[symbol].binding() == STB_WEAK;
            let kind = match btf.ty(var.ty)?.kind {
                TypeKind::Func { .. } => ExternKind::Kfunc { type_id: var.ty },
                TypeKind::Var { ty, .. } if section == KCONFIG => {
                    let size = u32::try_from(btf.size_of(ty)?).map_err(|_| BtfError::SizeOverflow(ty.0))?;
                    settings.push(KconfigVariable {
                        symbol,
                        name,
                        type_id: ty,
                        size,
                        align: btf.align_of(ty)?,
                    });
                    continue;
                }
                TypeKind::Var { ty, .. } => {
                    let typed = !btf.resolve(ty)?.is_void();
                    ExternKind::Ksym { type_id: typed.then_some(ty) }
                }
                _ => continue,
            };
            add_extern(object, Extern { name, kind, weak }, symbol);
        }
    }
    Ok(())
}

/// Settings are laid out as libbpf does: by falling alignment, then falling size, then name.
fn place_settings(object: &mut Object, mut settings: Vec<KconfigVariable>) -> Result<(), ObjectError> {
    settings.sort_by(|a, b| (b.align, b.size, &a.name).cmp(&(a.align, a.size, &b.name)));
    let map = MapId(object.maps.len() as u32);
    let mut end = 0u64;
    let mut variables = Vec::new();
    for s in settings {
        let start = end.next_multiple_of(u64::from(s.align.max(1)));
        end = start + u64::from(s.size);
        let offset = u32::try_from(start).map_err(|_| in_btf(BtfError::SizeOverflow(s.type_id.0)))?;
        let weak = object.elf().symbols[s.symbol].binding() == STB_WEAK;
        variables.push(Variable { name: s.name.clone(), offset, size: s.size });
        let kind = ExternKind::Kconfig { map, offset, size: s.size, type_id: s.type_id };
        add_extern(object, Extern { name: s.name, kind, weak }, s.symbol);
    }
    let value_size = u32::try_from(end).map_err(|_| in_btf(BtfError::SizeOverflow(0)))?;
    let value_type = object.btf.as_ref().and_then(|b| b.find(KindTag::Datasec, KCONFIG));
    object.maps.push(ObjectMap {
        name: maps::data_map_name(object, KCONFIG),
        section: KCONFIG.to_owned(),
        origin: MapOrigin::Kconfig,
        spec: MapDefinition {
            map_type: MapType::ARRAY,
            key_size: 4,
            value_size,
            max_entries: 1,
            flags: KCONFIG_FLAGS,
            value_type,
            ..MapDefinition::default()
        },
        inner: None,
        initial: Vec::new(),
        data: None,
        variables,
    });
    object.image.map_places.push(None);
    Ok(())
}

/// An undefined symbol that BTF does not describe.
pub(crate) fn add_unknown_extern(object: &mut Object, symbol: usize) -> RelocKind {
    let s = &object.elf().symbols[symbol];
    let (name, weak) = (s.name.clone(), s.binding() == STB_WEAK);
    object.notes.push(format!("{name} is defined nowhere, and nothing says what it is"));
    RelocKind::Extern(add_extern(object, Extern { name, kind: ExternKind::Unknown, weak }, symbol))
}

fn add_extern(object: &mut Object, e: Extern, symbol: usize) -> ExternId {
    let id = ExternId(object.externs.len() as u32);
    object.externs.push(e);
    object.image.extern_symbols.push(Some(symbol));
    object.image.externs_by_symbol.insert(symbol, id);
    id
}

fn in_btf(error: BtfError) -> ObjectError {
    ObjectError::Btf { section: ".BTF", error }
}
