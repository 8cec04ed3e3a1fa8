//! Removal of what cannot be reached any more: programs behind tail calls, functions, maps, constant data.
//!
//! A program that declares itself the target of a tail call, by the declaration tag `tail:MAP/SLOT` as
//! Cilium's programs do, is reached only by tail calls of other programs through that slot. All other
//! programs are attached by somebody. A map is removed if functions of the original referred to it, and none
//! of the result does: maps that no function ever referred to are there for others.

use std::collections::BTreeSet;

use cranelift_entity::EntityRef;
use millstream_bpf::module::lift_supported;
use millstream_btf::{KindTag, TypeKind};
use millstream_ir::{Function, Inst, Op, Prov, Type};
use millstream_isa::helpers::id;
use millstream_object::{FuncId, InitialValue, MapId, Object, RelocKind};
use serde::Serialize;

use crate::OptError;
use crate::contract::reachable_functions;

/// Parts of an object that were removed, which loaders no longer find.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct PruneReport {
    /// Entry programs.
    pub programs: Vec<String>,
    /// Other functions.
    pub functions: Vec<String>,
    /// Maps, and sections of data by the name of their map.
    pub maps: Vec<String>,
    /// Variables of removed sections of data.
    pub variables: Vec<String>,
}

impl PruneReport {
    /// Returns true if nothing was removed.
    pub fn is_empty(&self) -> bool {
        *self == PruneReport::default()
    }
}

/// Slots of program arrays that tail calls may use.
#[derive(Default)]
struct TailCalls {
    /// A tail call may use any slot of any map.
    any: bool,
    /// Maps of which any slot may be used.
    maps: BTreeSet<MapId>,
    /// Slots by their map.
    slots: BTreeSet<(MapId, u32)>,
}

impl TailCalls {
    fn reach(&self, (map, slot): (MapId, u32)) -> bool {
        self.any || self.maps.contains(&map) || self.slots.contains(&(map, slot))
    }
}

/// Removes from an optimized object what its programs do not reach any more, in comparison with the original.
/// An object that is not understood as a whole stays as it is.
///
/// # Errors
/// [`OptError`] if the object cannot be written without the removed parts.
pub fn prune(original: &Object, optimized: &Object) -> Result<(Object, PruneReport), OptError> {
    let mut report = PruneReport::default();
    let mut object = optimized.clone();
    if object.frozen.is_some() {
        return Ok((object, report));
    }
    let live = live_functions(&object);
    let programs: BTreeSet<FuncId> = object.programs.iter().map(|p| p.func).collect();
    let dead = |(n, f): &(usize, &millstream_object::ObjectFunction)| {
        !live.contains(n) && !f.removed && f.kept.is_none() && !object.is_in_data(FuncId(*n as u32))
    };
    let mut dead: Vec<FuncId> =
        object.functions.iter().enumerate().filter(dead).map(|(n, _)| FuncId(n as u32)).collect();
    // What refers to a function goes before it.
    loop {
        let before = dead.len();
        dead.retain(|id| {
            let name = object.functions[id.index()].name.clone();
            let gone = object.remove_function(*id).is_ok();
            if gone {
                if programs.contains(id) { &mut report.programs } else { &mut report.functions }.push(name);
            }
            !gone
        });
        if dead.is_empty() || dead.len() == before {
            break;
        }
    }
    let maps = dead_maps(original, &object);
    for map in maps.iter().filter_map(|m| object.maps.get(m.index())) {
        report.maps.push(map.name.clone());
        report.variables.extend(map.variables.iter().map(|v| v.name.clone()));
    }
    if !report.is_empty() {
        object = object.without_maps(&maps)?;
    }
    Ok((object, report))
}

/// Functions that programs reach that somebody attaches, by calls and tail calls.
fn live_functions(object: &Object) -> BTreeSet<usize> {
    let lifted = lift_supported(object);
    let targets = tail_targets(object);
    let declared = |func: FuncId| targets.iter().filter(move |(f, ..)| *f == func);
    let initial = object.maps.iter().flat_map(|m| &m.initial).filter_map(|(_, v)| match v {
        InitialValue::Program(id) => Some(*id),
        InitialValue::Map(_) => None,
    });
    let attached = object.programs.iter().map(|p| p.func).filter(|f| declared(*f).next().is_none());
    let mut work: Vec<FuncId> = attached.chain(initial).collect();
    let all = object.functions.iter().enumerate();
    let kept = all.filter(|(n, f)| f.kept.is_some() || object.is_in_data(FuncId(*n as u32)));
    work.extend(kept.map(|(n, _)| FuncId(n as u32)));
    let mut live = BTreeSet::new();
    let mut calls = TailCalls::default();
    loop {
        while let Some(func) = work.pop() {
            for n in reachable_functions(object, func.index()) {
                if live.insert(n) {
                    match lifted.module.funcs.get(millstream_ir::Func::new(n)) {
                        Some(f) if !f.layout.is_empty() => add_tail_calls(f, &mut calls),
                        _ => calls.any = true,
                    }
                }
            }
        }
        let reached =
            targets.iter().filter(|(f, map, slot)| !live.contains(&f.index()) && calls.reach((*map, *slot)));
        work.extend(reached.map(|(f, ..)| *f));
        if work.is_empty() {
            return live;
        }
    }
}

/// Programs that declare themselves the target of a tail call, with the map and the slot.
fn tail_targets(object: &Object) -> Vec<(FuncId, MapId, u32)> {
    let Some(btf) = &object.btf else { return Vec::new() };
    let tags = btf.ids().filter(|id| btf.tag(*id) == Ok(KindTag::DeclTag));
    let target = |id| {
        let (map, slot) = btf.name(id).strip_prefix("tail:")?.split_once('/')?;
        let TypeKind::DeclTag { ty, component: -1, .. } = btf.ty(id).ok()?.kind else { return None };
        let map = object.maps.iter().position(|m| m.name == map)?;
        let is_program = |p: &&millstream_object::EntryProgram| {
            object.functions.get(p.func.index()).is_some_and(|f| f.type_id == Some(ty))
        };
        let program = object.programs.iter().find(is_program)?;
        Some((program.func, MapId(map as u32), slot.parse().ok()?))
    };
    tags.filter_map(target).collect()
}

fn add_tail_calls(func: &Function, calls: &mut TailCalls) {
    let is_tail_call = |inst: &Inst| matches!(func.insts[*inst].op, Op::Helper { id: id::TAIL_CALL });
    for inst in func.insts_in_order().map(|(_, inst)| inst).filter(is_tail_call) {
        let args = &func.insts[inst].args;
        let map = args.get(1).and_then(|v| match func.types[*v] {
            Type::Ptr(Prov::Map(map)) => Some(MapId(map.index() as u32)),
            _ => None,
        });
        let slot = args.get(2).and_then(|v| func.as_const(*v)).map(|slot| slot as u32);
        match (map, slot) {
            (Some(map), Some(slot)) => drop(calls.slots.insert((map, slot))),
            (Some(map), None) => drop(calls.maps.insert(map)),
            (None, _) => calls.any = true,
        }
    }
}

/// Maps that functions of the original refer to, directly or by the initial values of other maps, and nothing
/// refers to now.
fn dead_maps(original: &Object, object: &Object) -> BTreeSet<MapId> {
    let before = with_inner_maps(original, named_maps(original));
    let all = (0..object.maps.len() as u32).map(MapId);
    let unnamed = all.filter(|map| !before.contains(map));
    let now = with_inner_maps(object, unnamed.chain(named_maps(object)).collect());
    before.difference(&now).copied().filter(|map| object.is_removable_map(*map)).collect()
}

/// Maps that instructions refer to.
fn named_maps(object: &Object) -> Vec<MapId> {
    let relocs = object.functions.iter().flat_map(|f| &f.relocs);
    let map = |kind| match kind {
        RelocKind::Map(map) | RelocKind::MapValue { map, .. } => Some(map),
        _ => None,
    };
    relocs.filter_map(|r| map(r.kind)).collect()
}

/// These maps, and those that are in them from the start.
fn with_inner_maps(object: &Object, mut work: Vec<MapId>) -> BTreeSet<MapId> {
    let mut reached = BTreeSet::new();
    while let Some(map) = work.pop() {
        if reached.insert(map)
            && let Some(m) = object.maps.get(map.index())
        {
            work.extend(m.initial.iter().filter_map(|(_, v)| match v {
                InitialValue::Map(inner) => Some(*inner),
                InitialValue::Program(_) => None,
            }));
        }
    }
    reached
}
