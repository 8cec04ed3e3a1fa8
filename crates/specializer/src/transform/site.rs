//! Sites: lookups of a prepared function in maps, and in inner maps of maps of maps.

use std::collections::BTreeSet;

use millstream_ir::{
    Block, Cfg, DomTree, Func, Function, Inst, KeyLayout, Map, Module, Op, Prov, Type, Value, ValueDef,
};
use millstream_isa::helpers::id;
use rustc_hash::FxHashSet;

use super::stack_key;

/// A lookup of a prepared function, by its number in layout order. The same object prepared in the same way
/// has the same sites.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SiteId(pub u32);

/// Form in which a lookup gets its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyForm {
    /// As values, one for each piece.
    Values(KeyLayout),
    /// On the stack, in these pieces.
    Stack(KeyLayout),
    /// In the value of a map: a chained table.
    MapValue(Map),
    /// In other memory.
    Memory,
}

/// A lookup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LookupSite {
    /// Its number.
    pub id: SiteId,
    /// The function.
    pub func: Func,
    /// The instruction.
    pub inst: Inst,
    /// Its block.
    pub block: Block,
    /// The map; of a lookup in an inner map, the template of those that it may be.
    pub map: Map,
    /// True if the map is an inner one, selected by the packet.
    pub is_inner: bool,
    /// Its key.
    pub key: KeyForm,
    /// Bytes of the key.
    pub key_size: u32,
}

impl LookupSite {
    /// The pieces of a key that is known as values, or can be read back.
    pub fn layout(&self) -> Option<&KeyLayout> {
        match &self.key {
            KeyForm::Values(layout) | KeyForm::Stack(layout) => Some(layout),
            KeyForm::MapValue(_) | KeyForm::Memory => None,
        }
    }

    /// Returns true if the key is known in pieces without a gap, so that it can be compared and recorded.
    pub fn is_comparable(&self) -> bool {
        self.layout().is_some_and(|l| l.iter().map(|p| p.size.bytes()).sum::<u32>() == self.key_size)
    }
}

/// The lookups of a prepared function, numbered from `first` on, after those of other programs of a chain.
pub fn sites(module: &Module, func: Func, first: u32) -> Vec<LookupSite> {
    let body = &module.funcs[func];
    let cfg = Cfg::new(body);
    let dom = DomTree::new(body, &cfg);
    let mut found = Vec::new();
    for (block, inst) in body.insts_in_order() {
        let Some(LookupInst { map, object, key }) = lookup(module, body, &cfg, inst) else { continue };
        let key = match key {
            LookupKey::Values(layout) => KeyForm::Values(layout.clone()),
            LookupKey::Pointer(p) => match body.types[p] {
                Type::Ptr(Prov::MapValue(m) | Prov::MapValueOrNull(m)) => KeyForm::MapValue(m),
                _ => stack_key::on_stack(body, (&cfg, &dom), block, inst, module.maps[map].key_size)
                    .map_or(KeyForm::Memory, |pieces| KeyForm::Stack(stack_key::layout(&pieces))),
            },
        };
        let id = SiteId(first + found.len() as u32);
        let (is_inner, key_size) = (object.is_some(), module.maps[map].key_size);
        found.push(LookupSite { id, func, inst, block, map, is_inner, key, key_size });
    }
    found
}

/// The key of a lookup instruction.
pub(super) enum LookupKey<'f> {
    Values(&'f KeyLayout),
    Pointer(Value),
}

/// A lookup instruction.
pub(super) struct LookupInst<'f> {
    /// The map, or the template of the inner maps that it may be.
    pub(super) map: Map,
    /// Address of the map, if it is an inner one.
    pub(super) object: Option<Value>,
    pub(super) key: LookupKey<'f>,
}

/// Map and key, if the instruction is a lookup in a known map, or in an inner map.
pub(super) fn lookup<'f>(
    module: &Module,
    func: &'f Function,
    cfg: &Cfg,
    inst: Inst,
) -> Option<LookupInst<'f>> {
    let data = &func.insts[inst];
    match &data.op {
        Op::MapLookup { map, key } => {
            Some(LookupInst { map: *map, object: None, key: LookupKey::Values(key) })
        }
        Op::Helper { id: id::MAP_LOOKUP_ELEM } => {
            let (object, key) = (*data.args.first()?, LookupKey::Pointer(*data.args.get(1)?));
            match func.def_op(object) {
                Some(Op::MapAddr { map }) => Some(LookupInst { map: *map, object: None, key }),
                _ => template(module, func, cfg, object).map(|map| LookupInst {
                    map,
                    object: Some(object),
                    key,
                }),
            }
        }
        _ => None,
    }
}

/// The maps of the same shape as this one, with it: user space may put each of them into a map of maps that
/// has room for one.
pub(crate) fn of_shape(module: &Module, map: Map) -> impl Iterator<Item = Map> + '_ {
    let shape = |m: Map| {
        let decl = &module.maps[m];
        (decl.kind, decl.key_size, decl.value_size)
    };
    let wanted = shape(map);
    module.maps.keys().filter(move |m| shape(*m) == wanted)
}

/// Returns true if a map is the template for the inner maps of a map of maps.
pub(crate) fn is_template(module: &Module, map: Map) -> bool {
    module.maps.values().any(|outer| outer.inner == Some(map))
}

/// The template of the inner maps whose address a pointer may hold, also if it may hold the address of
/// another map of their shape; `None` if it may be any other map.
fn template(module: &Module, func: &Function, cfg: &Cfg, pointer: Value) -> Option<Map> {
    let (mut seen, mut work, mut found) = (FxHashSet::default(), vec![pointer], BTreeSet::new());
    while let Some(value) = work.pop() {
        if !seen.insert(value) {
            continue;
        }
        match func.defs[value] {
            ValueDef::Param(block, _) if cfg.preds[block].is_empty() => return None,
            ValueDef::Param(block, n) => {
                for &pred in &cfg.preds[block] {
                    let edges = func.targets(pred).iter().filter(|target| target.block == block);
                    work.extend(edges.filter_map(|target| target.args.get(usize::from(n))));
                }
            }
            ValueDef::Inst(inst) => drop(found.insert(object_of(module, func, inst)?)),
        }
    }
    let template = *found.iter().find(|map| is_template(module, **map))?;
    let same = of_shape(module, template).filter(|map| found.contains(map)).count() == found.len();
    same.then_some(template)
}

/// The map whose address an instruction gives; of a lookup in a map of maps, the template.
fn object_of(module: &Module, func: &Function, inst: Inst) -> Option<Map> {
    let data = &func.insts[inst];
    match &data.op {
        Op::MapAddr { map } => Some(*map),
        Op::MapLookup { map, .. } => module.maps[*map].inner,
        Op::Helper { id: id::MAP_LOOKUP_ELEM } => match func.def_op(*data.args.first()?)? {
            Op::MapAddr { map } => module.maps[*map].inner,
            _ => None,
        },
        _ => None,
    }
}
