//! Maps that a program writes and that can have caches: all their writers must be known, so that each can
//! count itself.

use millstream_ir::usage::{self, AccessRange, MapAccess, MapUse, ModuleMapUsage};
use millstream_ir::{Func, Inst, Map, Module, Op};
use millstream_isa::MapType;
use millstream_isa::helpers::id;

use crate::transform::{self, CacheLayout};

/// Bytes of keys and of values, at most.
const WIDEST: (u32, u32) = (48, 64);
/// Slots of a lookup for each CPU, at most.
const SLOTS: u32 = 1 << 15;
/// Slots for each entry that the map has room for: a slot holds one key, so that keys with one slot evict
/// each other.
const SPARE: u32 = 4;
/// Bytes of one cache, at most.
const BYTES: u64 = 32 << 20;
/// Flag of `bpf_map_update_elem` for an entry that must not be there yet.
const NO_EXIST: i64 = 1;
/// Its flag for an entry that must be there already.
const EXIST: i64 = 2;

/// A map that the program writes, or the inner maps that it looks up, and how they are written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StatefulMap {
    /// The instructions of the program by which it writes the map.
    pub(crate) writers: Vec<Inst>,
    /// The same instructions of functions that it calls.
    pub(crate) callees: Vec<(Func, Vec<Inst>)>,
    /// Bytes of values that the program itself reads.
    pub(crate) read: Vec<AccessRange>,
}

/// Collects the properties of a map that a cache needs; `None` if it can have none. A template stands for all
/// inner maps of its shape.
pub(crate) fn stateful(
    module: &Module,
    usage: &ModuleMapUsage,
    program: Func,
    map: Map,
) -> Option<StatefulMap> {
    let decl = &module.maps[map];
    let kind = MapType(decl.kind);
    let is_inner = transform::is_template(module, map);
    // A write to any map of the shape may be a write to an inner one.
    let all: Vec<Map> = if is_inner { transform::of_shape(module, map).collect() } else { vec![map] };
    let uses = |of: &dyn Fn(Map) -> MapUse| {
        let mut sum = MapUse::default();
        all.iter().for_each(|map| sum.absorb(&of(*map)));
        sum
    };
    let fits = matches!(kind, MapType::HASH | MapType::LRU_HASH)
        && decl.key_size <= WIDEST.0
        && decl.value_size <= WIDEST.1;
    // The contents of a map that is only read may be known, those of inner ones may not.
    if !fits || !is_inner && uses(&|map| usage.of_module(map)).access(decl) != MapAccess::Written {
        return None;
    }
    let writes = |u: &MapUse| !u.updates.is_empty() || !u.deletes.is_empty() || !u.writes.is_empty();
    let foreign = |func: Func| func != program && writes(&uses(&|map| usage.of_program(func, map)));
    if usage::programs(module).any(foreign) {
        return None;
    }
    let writers = |func: Func| {
        let own = uses(&|map| usage.of_function(func, map));
        let changes = own.updates.iter().filter(|site| kind != MapType::HASH || !is_new(module, site));
        let stored = own.writes.iter().map(|touch| &touch.site);
        let mut insts: Vec<Inst> = changes.chain(&own.deletes).chain(stored).map(|site| site.inst).collect();
        insts.sort_unstable();
        insts.dedup();
        insts
    };
    for func in module.funcs.values() {
        for (_, inst) in func.insts_in_order() {
            match func.insts[inst].op {
                // Its callers are unknown.
                Op::FuncAddr { func } if foreign(func) => return None,
                // It sends at once: the program may run on another interface before this run goes on, and
                // fill the slot anew.
                Op::Helper { id: id::CLONE_REDIRECT } => return None,
                _ => {}
            }
        }
    }
    let callees = module.funcs.keys().filter(|func| *func != program).map(|func| (func, writers(func)));
    Some(StatefulMap {
        callees: callees.filter(|(_, insts)| !insts.is_empty()).collect(),
        writers: writers(program),
        read: usage.of_function(program, map).bytes_read(),
    })
}

/// Returns true if programs may add entries to a hash map: by an update that does not require an existing
/// entry. Deleting and overwriting add none.
pub(crate) fn adds(module: &Module, usage: &ModuleMapUsage, map: Map) -> bool {
    // The flags may ask for a lock, too.
    let overwrites =
        |site: &usage::InstSite| flags(module, site).is_some_and(|f| f & (NO_EXIST | EXIST) == EXIST);
    !usage.of_module(map).updates.iter().all(overwrites)
}

/// Returns true if an update adds an entry and changes none.
fn is_new(module: &Module, site: &usage::InstSite) -> bool {
    flags(module, site) == Some(NO_EXIST)
}

/// The flags of an update, if they are known.
fn flags(module: &Module, site: &usage::InstSite) -> Option<i64> {
    let func = &module.funcs[site.func];
    let data = &func.insts[site.inst];
    let flags = match data.op {
        Op::Helper { id: id::MAP_UPDATE_ELEM } => data.args.get(3),
        Op::MapUpdate { .. } => data.args.last(),
        _ => None,
    };
    flags.and_then(|f| func.as_const(*f))
}

/// Size of a cache of a map with room for so many entries, or of inner maps, however large; `None` if so many
/// CPUs would take too much memory.
pub(crate) fn shape((key, value): (u32, u32), entries: Option<u32>, cpus: u32) -> Option<CacheLayout> {
    let wanted = entries.map_or(SLOTS, |n| n.saturating_mul(SPARE));
    let slots = wanted.clamp(CacheLayout::LEAST_SLOTS, SLOTS).next_power_of_two();
    let (cpus, is_inner) = (cpus.next_power_of_two(), entries.is_none());
    let mut shape = CacheLayout { key, value, slots, cpus, is_inner };
    while shape.bytes() > BYTES && shape.slots > CacheLayout::LEAST_SLOTS {
        shape.slots /= 2;
    }
    (shape.bytes() <= BYTES).then_some(shape)
}

#[cfg(test)]
mod tests {
    use millstream_object::Object;
    use millstream_passes::{PassSession, TargetInfo};
    use millstream_programs::NAT;

    use super::*;
    use crate::transform;

    #[test]
    fn memory_is_bounded_however_many_cpus_there_are() {
        for cpus in [1, 2, 24, 96, 512, 8192] {
            let found = shape((16, 32), Some(1 << 20), cpus);
            assert!(found.is_none_or(|s| s.bytes() <= BYTES), "{found:?}");
            assert_eq!(found.is_some(), cpus <= 96, "{cpus}: {found:?}");
        }
    }

    /// A packet that is sent during a run would run the program within the program, with the same slots.
    #[test]
    fn programs_that_send_on_the_way_have_no_caches() {
        let object = Object::parse(NAT.name, NAT.object).unwrap();
        let mut module = millstream_bpf::module::lift_object(&object).unwrap().module;
        transform::prepare(
            &mut module,
            transform::CallbackMode::Unfolded,
            &mut PassSession::new(TargetInfo::bpf(3)),
        )
        .unwrap();
        let cacheable = |module: &Module| {
            let (usage, program) = (ModuleMapUsage::new(module), usage::programs(module).next().unwrap());
            module.maps.keys().filter(|map| stateful(module, &usage, program, *map).is_some()).count()
        };
        assert!(cacheable(&module) > 0);
        let clock = module.funcs.values_mut().find_map(|body| {
            let call = body.insts_in_order().find(|(_, i)| body.insts[*i].op == (Op::Helper { id: 160 }));
            call.map(|(_, inst)| &mut body.insts[inst].op)
        });
        *clock.unwrap() = Op::Helper { id: id::CLONE_REDIRECT };
        assert_eq!(cacheable(&module), 0);
    }
}
