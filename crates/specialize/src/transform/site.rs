//! Where a prepared function looks up maps.

use millstream_ir::{Block, Cfg, Func, Function, Inst, Layout, Map, Module, Op, Prov, Type, Value};

use super::stack_key;

/// `bpf_map_lookup_elem`.
pub(super) const LOOKUP: i32 = 1;

/// A lookup of a prepared function, by its number in layout order. The same object prepared in the same way has the
/// same sites.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SiteId(pub u32);

/// How a lookup is given its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Key {
    /// As values, one for each piece.
    Values(Layout),
    /// On the stack, in these pieces.
    Stack(Layout),
    /// In the value of a map: a chained table.
    MapValue(Map),
    /// In other memory.
    Memory,
}

/// A lookup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Site {
    /// Its number.
    pub id: SiteId,
    /// The instruction.
    pub inst: Inst,
    /// Its block.
    pub block: Block,
    /// The map.
    pub map: Map,
    /// Its key.
    pub key: Key,
    /// Bytes of the key.
    pub key_size: u32,
}

impl Site {
    /// The pieces of a key that is known as values, or can be read back.
    pub fn layout(&self) -> Option<&Layout> {
        match &self.key {
            Key::Values(layout) | Key::Stack(layout) => Some(layout),
            Key::MapValue(_) | Key::Memory => None,
        }
    }

    /// Whether the key is known in pieces without a gap, so that it can be compared and recorded.
    pub fn is_comparable(&self) -> bool {
        self.layout().is_some_and(|l| l.iter().map(|p| p.size.bytes()).sum::<u32>() == self.key_size)
    }
}

/// The lookups of a prepared function.
pub fn sites(module: &Module, func: Func) -> Vec<Site> {
    let body = &module.funcs[func];
    let cfg = Cfg::new(body);
    let mut found = Vec::new();
    for (block, inst) in body.insts_in_order() {
        let Some((map, key)) = lookup(body, inst) else { continue };
        let key = match key {
            LookupKey::Values(layout) => Key::Values(layout.clone()),
            LookupKey::Pointer(p) => match body.types[p] {
                Type::Ptr(Prov::MapValue(m) | Prov::MapValueOrNull(m)) => Key::MapValue(m),
                _ => stack_key::on_stack(body, &cfg, block, inst, module.maps[map].key_size)
                    .map_or(Key::Memory, |pieces| Key::Stack(stack_key::layout(&pieces))),
            },
        };
        let id = SiteId(found.len() as u32);
        found.push(Site { id, inst, block, map, key, key_size: module.maps[map].key_size });
    }
    found
}

/// The key of a lookup instruction.
pub(super) enum LookupKey<'f> {
    Values(&'f Layout),
    Pointer(Value),
}

/// Map and key, if the instruction is a lookup in a known map.
pub(super) fn lookup(func: &Function, inst: Inst) -> Option<(Map, LookupKey<'_>)> {
    let data = &func.insts[inst];
    match &data.op {
        Op::MapLookup { map, key } => Some((*map, LookupKey::Values(key))),
        Op::Helper { id: LOOKUP } => {
            let Some(Op::MapAddr { map }) = func.def_op(*data.args.first()?) else { return None };
            Some((*map, LookupKey::Pointer(*data.args.get(1)?)))
        }
        _ => None,
    }
}
