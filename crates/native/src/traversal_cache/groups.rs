//! Look-ups that the same fields decide.

use std::collections::BTreeMap;

use cranelift_entity::SecondaryMap;
use millstream_interp::MapKind;
use millstream_ir::usage::{MapAccess, ModuleMapUsage};
use millstream_ir::{
    Block, Cfg, DomTree, Func, Function, Inst, Map, Module, Op, Prov, Type, Value, ValueDef,
};
use millstream_isa::MapType;
use millstream_plan::{CachedTraversal, TraversalCaching, TraversalReport, UncachedLookup};

use super::{MOST_GROUPS, MOST_RESULTS, MOST_WORDS};

/// Type of tables of masks and ranges with priorities.
const PRIORITIES: u32 = MapKind::Priority as u32;
/// Operations between a field and a key, one in the other, at most.
const DEEPEST: u32 = 24;

/// A field that decides look-ups: a value, and the number of its low bits that count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FieldWord {
    pub(crate) value: Value,
    pub(crate) bits: u32,
}

/// Look-ups that have one entry together.
#[derive(Clone, Debug)]
pub(crate) struct TraversalGroup {
    /// The look-ups; the first one dominates the others.
    pub(crate) lookups: Vec<Inst>,
    /// Fields that decide their results, all known in front of the first look-up.
    pub(crate) fields: Vec<FieldWord>,
}

/// Changes of a map's contents, as far as results of look-ups may be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LookupStability {
    /// Only control programs write it.
    Constant,
    /// Programs write fields of values, but entries stay where they are.
    FieldsWritten,
    /// Results may not be kept.
    Changing,
}

/// Stability of each map of a module. Arrays of these names are in memory that others write.
pub(crate) fn stability(module: &Module, shared: &[&str]) -> SecondaryMap<Map, LookupStability> {
    let usage = ModuleMapUsage::new(module);
    let mut all = SecondaryMap::with_default(LookupStability::Changing);
    for (map, decl) in module.maps.iter() {
        let kind = MapType(decl.kind);
        let fits =
            matches!(kind, MapType::ARRAY | MapType::HASH | MapType::LPM_TRIE) || decl.kind == PRIORITIES;
        let is_inner = module.maps.values().any(|outer| outer.inner == Some(map));
        if !fits || is_inner || decl.inner.is_some() || shared.contains(&decl.name.as_str()) {
            continue;
        }
        all[map] = match usage.of_module(map).access(decl) {
            MapAccess::Unused | MapAccess::ReadOnly => LookupStability::Constant,
            MapAccess::FieldsWritten(_) => LookupStability::FieldsWritten,
            MapAccess::Written => LookupStability::Changing,
        };
    }
    all
}

/// Groups of look-ups of a function, and a report that names the look-ups without one.
pub(crate) fn traversals(
    module: &Module,
    entry: Func,
    stability: &SecondaryMap<Map, LookupStability>,
    caching: TraversalCaching,
) -> (Vec<TraversalGroup>, TraversalReport) {
    let search = TraversalSearch::new(module, entry, stability);
    let mut report = TraversalReport::default();
    let mut left = search.sites(&mut report);
    let mut groups = Vec::new();
    while !left.is_empty() {
        let head = left.remove(0);
        let mut cover = FieldCover { search: &search, head, fields: Vec::new() };
        let mut group = Vec::new();
        if cover.covers_lookup(head) {
            group.push(head);
            left.retain(|&site| {
                let before = cover.fields.clone();
                let joins = group.len() < MOST_RESULTS
                    && search.dominates(head, site)
                    && cover.covers_lookup(site)
                    && (caching != TraversalCaching::Split || cover.fields == before);
                match joins {
                    true => group.push(site),
                    false => cover.fields = before,
                }
                !joins
            });
        }
        let pays = group.len() > 1 || group.iter().any(|site| search.is_slow(site.inst));
        match group.first() {
            Some(_) if pays && groups.len() < MOST_GROUPS => {
                let tables = group.iter().map(|site| search.table(site.inst)).collect();
                let bits: u32 = cover.fields.iter().map(|field| field.bits).sum();
                report.cached.push(CachedTraversal { tables, key_bits: bits });
                let lookups = group.iter().map(|site| site.inst).collect();
                groups.push(TraversalGroup { lookups, fields: cover.fields });
            }
            Some(_) if pays => {
                search.refuse(&group, "there are more groups of look-ups than caches", &mut report)
            }
            Some(_) => search.refuse(&group, "no other look-up shares its fields", &mut report),
            None => search.refuse(&[head], "more than a few fields decide it", &mut report),
        }
    }
    (groups, report)
}

/// Place of a look-up.
#[derive(Clone, Copy, Debug)]
struct LookupPlace {
    inst: Inst,
    block: Block,
    /// Number of the instruction in its block.
    at: usize,
}

/// Facts about a function that the search for groups needs.
struct TraversalSearch<'m> {
    module: &'m Module,
    func: &'m Function,
    cfg: Cfg,
    dom: DomTree,
    stability: &'m SecondaryMap<Map, LookupStability>,
    places: BTreeMap<Inst, LookupPlace>,
}

impl<'m> TraversalSearch<'m> {
    fn new(
        module: &'m Module,
        entry: Func,
        stability: &'m SecondaryMap<Map, LookupStability>,
    ) -> TraversalSearch<'m> {
        let func = &module.funcs[entry];
        let cfg = Cfg::new(func);
        let dom = DomTree::new(func, &cfg);
        let mut places = BTreeMap::new();
        for &block in &cfg.rpo {
            for (at, &inst) in func.blocks[block].insts.iter().enumerate() {
                places.insert(inst, LookupPlace { inst, block, at });
            }
        }
        TraversalSearch { module, func, cfg, dom, stability, places }
    }

    /// Look-ups whose results may be kept, in an order in which dominators come first. Notes the others.
    fn sites(&self, report: &mut TraversalReport) -> Vec<LookupPlace> {
        let mut sites = Vec::new();
        for &block in &self.cfg.rpo {
            for (at, &inst) in self.func.blocks[block].insts.iter().enumerate() {
                let place = LookupPlace { inst, block, at };
                match self.func.insts[inst].op {
                    Op::TableMatch { .. } => sites.push(place),
                    // A look-up in an array takes no longer than one in a cache.
                    Op::MapLookup { map, .. } if MapType(self.module.maps[map].kind).is_array() => {}
                    Op::MapLookup { map, .. } => match self.stability[map] {
                        LookupStability::Changing => {
                            self.refuse(&[place], "programs write it, or share it with others", report);
                        }
                        _ => sites.push(place),
                    },
                    _ => {}
                }
            }
        }
        sites
    }

    fn refuse(&self, sites: &[LookupPlace], why: &str, report: &mut TraversalReport) {
        let named = sites.iter().map(|site| self.table(site.inst));
        for table in named {
            let refused = UncachedLookup { table, why: why.to_owned() };
            if !report.refused.contains(&refused) {
                report.refused.push(refused);
            }
        }
    }

    /// Name of the table that is looked up in.
    fn table(&self, inst: Inst) -> String {
        match self.func.insts[inst].op {
            Op::MapLookup { map, .. } => self.module.maps[map].name.clone(),
            Op::TableMatch { table } => self.module.tables[table].name.clone(),
            _ => String::new(),
        }
    }

    /// Returns true if a look-up takes longer than one in a cache.
    fn is_slow(&self, inst: Inst) -> bool {
        match self.func.insts[inst].op {
            Op::MapLookup { map, .. } => MapType(self.module.maps[map].kind) != MapType::HASH,
            _ => true,
        }
    }

    fn dominates(&self, head: LookupPlace, site: LookupPlace) -> bool {
        match head.block == site.block {
            true => head.at < site.at,
            false => self.dom.dominates(head.block, site.block),
        }
    }

    /// Returns true if a value is known in front of a look-up.
    fn is_known(&self, value: Value, head: LookupPlace) -> bool {
        match self.func.defs[value] {
            ValueDef::Param(block, _) => self.dom.dominates(block, head.block),
            ValueDef::Inst(inst) => self.places.get(&inst).is_some_and(|def| self.dominates(*def, head)),
        }
    }
}

/// Fields that decide some look-ups.
struct FieldCover<'s, 'm> {
    search: &'s TraversalSearch<'m>,
    /// Look-up in front of which the fields must be known.
    head: LookupPlace,
    fields: Vec<FieldWord>,
}

impl FieldCover<'_, '_> {
    /// Adds the fields that decide a look-up; returns false if that is impossible.
    fn covers_lookup(&mut self, site: LookupPlace) -> bool {
        let data = &self.search.func.insts[site.inst];
        let covered = match &data.op {
            Op::MapLookup { key, .. } => {
                data.args.iter().zip(key).all(|(&arg, piece)| self.covers(arg, piece.size.bits(), 0))
            }
            _ => data.args.iter().all(|&arg| self.covers(arg, 64, 0)),
        };
        covered && words(&self.fields).len() <= MOST_WORDS
    }

    /// Adds the fields that decide the low bits of a value.
    fn covers(&mut self, value: Value, bits: u32, depth: u32) -> bool {
        let TraversalSearch { func, module, stability, .. } = self.search;
        if func.as_const(value).is_some() {
            return true;
        }
        let ty = func.types[value];
        if ty.prov().is_none() && self.search.is_known(value, self.head) {
            self.add(FieldWord { value, bits: bits.min(ty.int_bits().unwrap_or(64)) });
            return true;
        }
        let Some(inst) = func.def_inst(value).filter(|_| depth < DEEPEST) else { return false };
        let data = &func.insts[inst];
        let base = data.args.first().map(|&base| func.types[base]);
        let follows = match (&data.op, base) {
            (Op::TableMatch { .. } | Op::MapValueAddr { .. }, _) => true,
            (Op::MapLookup { map, .. }, _) => stability[*map] != LookupStability::Changing,
            (Op::Load { flags, .. }, Some(Type::Ptr(Prov::MapValue(map) | Prov::MapValueOrNull(map)))) => {
                !flags.volatile && module.maps.is_valid(map) && stability[map] == LookupStability::Constant
            }
            (op, _) => op.effects().is_pure() && !matches!(op, Op::Undef {}),
        };
        follows && data.args.iter().all(|&arg| self.covers(arg, 64, depth + 1))
    }

    fn add(&mut self, field: FieldWord) {
        match self.fields.iter_mut().find(|known| known.value == field.value) {
            Some(known) => known.bits = known.bits.max(field.bits),
            None => self.fields.push(field),
        }
    }
}

/// Fields of each 64-bit word of a key, with the bit at which each begins.
pub(super) fn words(fields: &[FieldWord]) -> Vec<Vec<(FieldWord, u32)>> {
    let mut words: Vec<(u32, Vec<(FieldWord, u32)>)> = Vec::new();
    for &field in fields {
        match words.iter_mut().find(|(used, _)| used + field.bits <= 64) {
            Some((used, word)) => {
                word.push((field, *used));
                *used += field.bits;
            }
            None => words.push((field.bits, vec![(field, 0)])),
        }
    }
    words.into_iter().map(|(_, word)| word).collect()
}
