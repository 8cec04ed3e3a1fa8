//! Turning an object's BTF into a form that the kernel accepts.
//!
//! Compilers leave to the loader: sizes of sections and offsets of variables in them; extern variables and
//! functions, which the kernel does not know; functions that are hidden, and so verified as static ones. No
//! type changes its id, so everything that refers to the BTF stays right.

use millstream_btf::{
    Btf, BtfBuilder, BtfError, Datasec, FuncLinkage, KindTag, SectionVar, TypeId, TypeKind, VarLinkage,
};
use millstream_object::{Linkage, Object};
use rustc_hash::FxHashMap;

/// Returns the bytes to load. Section variables without an offset in the BTF get that of their symbols.
pub(crate) fn to_loadable_btf(object: &Object, btf: &Btf) -> Result<Vec<u8>, BtfError> {
    let mut out = BtfBuilder::from_btf(btf)?;
    let mut dummies = DummyKsyms::default();
    for id in btf.ids() {
        match btf.tag(id)? {
            KindTag::Datasec => section(object, btf, &mut out, &mut dummies, id)?,
            KindTag::Var => variable(btf, &mut out, id)?,
            KindTag::Func => extern_function(btf, &mut out, id)?,
            _ => {}
        }
    }
    for f in &object.functions {
        let Some(id) = f.type_id.filter(|_| f.linkage == Linkage::Static || f.hidden) else { continue };
        if let Some(ty) = out.get_mut(id)
            && let TypeKind::Func { linkage, .. } = &mut ty.kind
        {
            *linkage = FuncLinkage::Static;
        }
    }
    out.write()
}

/// Stand-ins for kernel symbols in `.ksyms`: the kernel wants variables of some size there.
#[derive(Default)]
struct DummyKsyms {
    var: Option<(TypeId, TypeId)>,
}

impl DummyKsyms {
    /// An integer of 4 bytes and a variable of that type.
    fn get(&mut self, out: &mut BtfBuilder) -> (TypeId, TypeId) {
        *self.var.get_or_insert_with(|| {
            let int = out.int("int", 4, true);
            (int, out.add("dummy_ksym", TypeKind::Var { ty: int, linkage: VarLinkage::Global }))
        })
    }
}

fn variable(btf: &Btf, out: &mut BtfBuilder, id: TypeId) -> Result<(), BtfError> {
    if let TypeKind::Var { ty, linkage: VarLinkage::Extern } = btf.ty(id)?.kind
        && let Some(slot) = out.get_mut(id)
        // Section `.ksyms` may have made a stand-in of it already.
        && slot.kind == (TypeKind::Var { ty, linkage: VarLinkage::Extern })
    {
        slot.kind = TypeKind::Var { ty, linkage: VarLinkage::Global };
    }
    Ok(())
}

/// An extern function becomes a global one, whose parameters must have names.
fn extern_function(btf: &Btf, out: &mut BtfBuilder, id: TypeId) -> Result<(), BtfError> {
    let TypeKind::Func { proto, linkage: FuncLinkage::Extern } = btf.ty(id)?.kind else { return Ok(()) };
    if let Some(slot) = out.get_mut(id) {
        slot.kind = TypeKind::Func { proto, linkage: FuncLinkage::Global };
    }
    let name = out.string("param");
    if let Some(slot) = out.get_mut(proto)
        && let TypeKind::FuncProto(p) = &mut slot.kind
    {
        for parameter in &mut p.params {
            if parameter.name.0 == 0 && !parameter.ty.is_void() {
                parameter.name = name;
            }
        }
    }
    Ok(())
}

fn section(
    object: &Object,
    btf: &Btf,
    out: &mut BtfBuilder,
    dummies: &mut DummyKsyms,
    id: TypeId,
) -> Result<(), BtfError> {
    let TypeKind::Datasec(d) = btf.ty(id)?.kind else { return Ok(()) };
    let fixed = if btf.name(id) == ".ksyms" {
        symbols(btf, out, dummies, &d)?
    } else {
        placed(object, btf, btf.name(id), d)?
    };
    if let Some(slot) = out.get_mut(id) {
        slot.kind = TypeKind::Datasec(fixed);
    }
    Ok(())
}

fn symbols(
    btf: &Btf,
    out: &mut BtfBuilder,
    dummies: &mut DummyKsyms,
    d: &Datasec,
) -> Result<Datasec, BtfError> {
    let (int, dummy) = dummies.get(out);
    let mut vars = Vec::with_capacity(d.vars.len());
    for (i, v) in d.vars.iter().enumerate() {
        let ty = if btf.tag(v.ty)? == KindTag::Var { v.ty } else { dummy };
        if let Some(slot) = out.get_mut(v.ty).filter(|_| ty == v.ty) {
            slot.kind = TypeKind::Var { ty: int, linkage: VarLinkage::Global };
        }
        vars.push(SectionVar { ty, offset: 4 * i as u32, size: 4 });
    }
    Ok(Datasec { size: 4 * d.vars.len() as u32, vars })
}

/// Places the variables by their symbols; those of sections that are no maps (`.maps`, `license`) one after
/// another, which suffices, because nothing uses their offsets.
fn placed(object: &Object, btf: &Btf, name: &str, mut d: Datasec) -> Result<Datasec, BtfError> {
    let map = object.maps.iter().find(|m| m.origin.is_global() && m.section == name);
    let known: FxHashMap<&str, u32> =
        map.iter().flat_map(|m| &m.variables).map(|v| (v.name.as_str(), v.offset)).collect();
    let mut end = 0u32;
    for v in &mut d.vars {
        v.offset = match known.get(btf.name(v.ty)) {
            Some(&offset) => offset,
            None if map.is_some() => v.offset,
            None => end.next_multiple_of(8),
        };
        if v.size == 0 {
            v.size = u32::try_from(btf.size_of(v.ty)?).map_err(|_| BtfError::SizeOverflow(v.ty.0))?;
        }
        end = end.max(v.offset.saturating_add(v.size));
    }
    d.vars.sort_by_key(|v| v.offset);
    d.size = d.size.max(end).max(map.map_or(0, |m| m.spec.value_size));
    Ok(d)
}
