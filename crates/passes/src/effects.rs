//! Effects of calls, narrowed by the callee.
//!
//! [`millstream_ir::Op::effects`] must assume the worst of a call. Here a helper's row in
//! [`millstream_isa::helpers`] and a callee's body say what it really does. A result that may differ between
//! two calls (time, randomness) counts as a read, so that no pass takes such a call for pure.

use cranelift_entity::{PrimaryMap, SecondaryMap};
use millstream_ir::{
    Core, CoreDecl, Effects, Extern, ExternDecl, Func, Function, Inst, Linkage, Map, MapDecl, Module, Op,
    Prov, Table, TableDecl,
};
use millstream_isa::MapType;
use millstream_isa::helpers::{Helper, HelperEffects};

/// Parts of the module around the function that a function pass may read.
#[derive(Clone, Copy)]
pub struct ModuleInfo<'m> {
    /// Maps.
    pub maps: &'m PrimaryMap<Map, MapDecl>,
    /// Match tables.
    pub tables: &'m PrimaryMap<Table, TableDecl>,
    /// External symbols.
    pub externs: &'m PrimaryMap<Extern, ExternDecl>,
    /// CO-RE relocations.
    pub cores: &'m PrimaryMap<Core, CoreDecl>,
    /// Effects of the module's functions.
    pub summaries: &'m EffectSummaries,
}

impl<'m> ModuleInfo<'m> {
    /// A view of parts of a module.
    pub fn of(
        maps: &'m PrimaryMap<Map, MapDecl>,
        tables: &'m PrimaryMap<Table, TableDecl>,
        externs: &'m PrimaryMap<Extern, ExternDecl>,
        cores: &'m PrimaryMap<Core, CoreDecl>,
        summaries: &'m EffectSummaries,
    ) -> Self {
        ModuleInfo { maps, tables, externs, cores, summaries }
    }
}

/// Effects of the functions of a module, over all that they call.
#[derive(Clone, Debug, Default)]
pub struct EffectSummaries {
    effects: SecondaryMap<Func, Effects>,
}

impl EffectSummaries {
    /// Computes the effects of every function to a fixed point. Nothing is known about a global one: another
    /// program may replace it once it is loaded (`freplace`), another definition when it is linked.
    pub fn new(module: &Module) -> EffectSummaries {
        let mut known = EffectSummaries::default();
        loop {
            let mut changed = false;
            for (id, func) in &module.funcs {
                let info =
                    ModuleInfo::of(&module.maps, &module.tables, &module.externs, &module.cores, &known);
                let new = match func.linkage {
                    Linkage::Global => Effects::OPAQUE,
                    _ => body_effects(func, &info),
                };
                if new != known.effects[id] {
                    known.effects[id] = new;
                    changed = true;
                }
            }
            if !changed {
                return known;
            }
        }
    }

    /// Effects of calling a function.
    pub fn of(&self, func: Func) -> Effects {
        self.effects[func]
    }
}

fn body_effects(func: &Function, info: &ModuleInfo<'_>) -> Effects {
    func.insts_in_order().fold(Effects::PURE, |sum, (_, inst)| union(sum, call_effects(func, inst, info)))
}

fn union(a: Effects, b: Effects) -> Effects {
    Effects {
        reads: a.reads || b.reads,
        writes: a.writes || b.writes,
        calls: a.calls || b.calls,
        moves_packet: a.moves_packet || b.moves_packet,
        terminates: false,
    }
}

/// The effects of an instruction: those of its operation, or for a call the known effects of its callee.
pub fn call_effects(func: &Function, inst: Inst, info: &ModuleInfo<'_>) -> Effects {
    let data = &func.insts[inst];
    match data.op {
        Op::Helper { id } => helper_effects(func, inst, id, info),
        Op::Call { func: callee } => info.summaries.of(callee),
        Op::MapLookup { map, .. } if lookup_only_reads(info, map) => Effects::READS,
        _ => data.op.effects(),
    }
}

fn helper_effects(func: &Function, inst: Inst, id: i32, info: &ModuleInfo<'_>) -> Effects {
    let Some(helper) = Helper::get(id) else { return Effects::OPAQUE };
    let has = |e: HelperEffects| helper.effects.intersects(e);
    if has(HelperEffects::CALLBACK) {
        return Effects::OPAQUE;
    }
    let is_lookup = helper.effects == HelperEffects::READS_MAP && helper.ret.is_pointer();
    let refreshes = is_lookup && !called_map(func, inst).is_some_and(|map| lookup_only_reads(info, map));
    Effects {
        reads: has(HelperEffects::READS_MAP.or(HelperEffects::READS_PACKET).or(HelperEffects::VOLATILE))
            || helper.reads_memory(),
        writes: has(HelperEffects::WRITES_MAP.or(HelperEffects::WRITES_PACKET)) || helper.writes_memory(),
        calls: refreshes || !helper.removable(),
        moves_packet: helper.may_change_packet(),
        terminates: false,
    }
}

/// The map in the first argument, where it is known.
fn called_map(func: &Function, inst: Inst) -> Option<Map> {
    let first = *func.insts[inst].args.first()?;
    match (func.def_op(first), func.types[first].prov()) {
        (Some(Op::MapAddr { map }), _) => Some(*map),
        (_, Some(Prov::Map(map))) => Some(map),
        _ => None,
    }
}

/// Returns true if a lookup leaves no trace: not in LRU maps, whose entries it refreshes, nor in socket maps,
/// which hand out references.
fn lookup_only_reads(info: &ModuleInfo<'_>, map: Map) -> bool {
    info.maps.get(map).is_some_and(|decl| {
        matches!(
            MapType(decl.kind),
            MapType::HASH
                | MapType::ARRAY
                | MapType::PERCPU_HASH
                | MapType::PERCPU_ARRAY
                | MapType::LPM_TRIE
                | MapType::ARRAY_OF_MAPS
                | MapType::HASH_OF_MAPS
                | MapType::DEVMAP
                | MapType::CPUMAP
                | MapType::DEVMAP_HASH
        )
    })
}
