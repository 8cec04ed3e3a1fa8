//! Walks one function and records its instructions' uses of maps.

use std::collections::BTreeMap;

use millstream_isa::helpers::{ArgKind, Helper, HelperEffects, id as helper_id};

use super::points::{PointsTo, PointsToSet, ValueOffsets, objects};
use super::{AccessRange, InstSite, MapUse, ValueAccess};
use crate::entities::*;
use crate::func::Function;
use crate::module::Module;
use crate::op::Op;
use crate::op_group;

pub(super) fn function(module: &Module, points: &PointsTo, id: Func) -> BTreeMap<Map, MapUse> {
    let func = &module.funcs[id];
    let mut recorder = UsageRecorder { module, points, id, func, uses: BTreeMap::new() };
    for (_, inst) in func.insts_in_order() {
        recorder.inst(inst);
    }
    recorder.uses
}

struct UsageRecorder<'a> {
    module: &'a Module,
    points: &'a PointsTo,
    id: Func,
    func: &'a Function,
    uses: BTreeMap<Map, MapUse>,
}

/// Kind of access by an instruction through an address.
#[derive(Clone, Copy)]
struct AccessFlags {
    reads: bool,
    writes: bool,
    atomic: bool,
    escapes: bool,
}

const READ: AccessFlags = AccessFlags { reads: true, writes: false, atomic: false, escapes: false };
const WRITE: AccessFlags = AccessFlags { reads: false, writes: true, atomic: false, escapes: false };
const ATOMIC: AccessFlags = AccessFlags { reads: true, writes: true, atomic: true, escapes: false };
const ESCAPE: AccessFlags = AccessFlags { reads: true, writes: true, atomic: false, escapes: true };

impl<'a> UsageRecorder<'a> {
    fn site(&self, inst: Inst) -> InstSite {
        InstSite { func: self.id, inst }
    }

    fn of(&self, value: Value) -> &'a PointsToSet {
        self.points.of(self.id, value)
    }

    fn inst(&mut self, inst: Inst) {
        let data = &self.func.insts[inst];
        let site = self.site(inst);
        match &data.op {
            Op::MapLookup { map, .. } => self.uses.entry(*map).or_default().lookups.push(site),
            Op::MapUpdate { map, .. } => self.uses.entry(*map).or_default().updates.push(site),
            Op::MapDelete { map, .. } => self.uses.entry(*map).or_default().deletes.push(site),
            Op::Load { size, offset, .. } | Op::LoadAcquire { size, offset } => {
                self.touch(inst, data.args[0], i64::from(*offset), Some(size.bytes()), READ);
            }
            Op::Store { size, offset, .. } | Op::StoreRelease { size, offset } => {
                self.touch(inst, data.args[0], i64::from(*offset), Some(size.bytes()), WRITE);
            }
            Op::Atomic { size, offset, .. }
            | Op::AtomicFetch { size, offset, .. }
            | Op::CmpXchg { size, offset } => {
                self.touch(inst, data.args[0], i64::from(*offset), Some(size.bytes()), ATOMIC);
            }
            Op::Helper { id } => self.helper(inst, *id),
            Op::Kfunc { .. } | Op::CallIndirect {} => {
                for &arg in &data.args {
                    self.touch(inst, arg, 0, None, ESCAPE);
                    self.any_map_use(inst, arg);
                }
            }
            // Callees of this module are recorded as functions of their own.
            Op::Call { .. } | Op::TableMatch { .. } => {}
            op_group!(constant) | op_group!(arithmetic) | op_group!(packet) | op_group!(terminator) => {}
        }
    }

    /// Records every kind of use for the maps that `arg` may be.
    fn any_map_use(&mut self, inst: Inst, arg: Value) {
        let site = self.site(inst);
        // An unknown word is a map only where the callee expects one; only named maps count.
        for &map in &self.of(arg).objects {
            let uses = self.uses.entry(map).or_default();
            uses.updates.push(site);
            uses.deletes.push(site);
        }
    }

    fn helper(&mut self, inst: Inst, id: i32) {
        let args = &self.func.insts[inst].args;
        let Some(helper) = Helper::get(id) else {
            for &arg in args {
                self.touch(inst, arg, 0, None, ESCAPE);
                self.any_map_use(inst, arg);
            }
            return;
        };
        if id == helper_id::SYS_BPF {
            let site = self.site(inst);
            self.module.maps.keys().for_each(|map| self.uses.entry(map).or_default().updates.push(site));
        }
        for (i, (&arg, kind)) in args.iter().zip(helper.args).enumerate() {
            if *kind == ArgKind::ConstMap {
                for map in objects(self.of(arg), self.module) {
                    self.map_argument(inst, id, helper, map);
                }
            }
            if *kind == ArgKind::StackOrNull && matches!(id, helper_id::FOR_EACH_MAP_ELEM | helper_id::LOOP) {
                continue;
            }
            let (reads, mut writes) = (kind.reads_memory(), kind.writes_memory());
            writes |= id == helper_id::DYNPTR_FROM_MEM && matches!(kind, ArgKind::Mem { .. });
            if reads || writes {
                let size = self.argument_size(*kind, args.get(i + 1).copied());
                let how = AccessFlags { reads, writes, atomic: false, escapes: true };
                self.touch(inst, arg, 0, size, how);
            }
        }
    }

    /// Bytes behind a memory argument; `None` if not known.
    fn argument_size(&self, kind: ArgKind, next: Option<Value>) -> Option<u32> {
        match kind {
            ArgKind::Mem { .. } => {
                next.and_then(|n| self.func.as_const(n)).and_then(|n| u32::try_from(n).ok())
            }
            ArgKind::Fixed { bytes, .. } => Some(u32::from(bytes)),
            ArgKind::SpinLock => Some(4),
            ArgKind::Timer => Some(16),
            ArgKind::KptrSlot => Some(8),
            _ => None,
        }
    }

    fn map_argument(&mut self, inst: Inst, id: i32, helper: &Helper, map: Map) {
        let site = self.site(inst);
        let uses = self.uses.entry(map).or_default();
        match id {
            1 | 195 => uses.lookups.push(site),
            helper_id::FOR_EACH_MAP_ELEM => uses.others.push(site),
            2 => uses.updates.push(site),
            3 => uses.deletes.push(site),
            _ if helper.effects.contains(HelperEffects::WRITES_MAP) => uses.updates.push(site),
            _ => uses.others.push(site),
        }
    }

    fn touch(&mut self, inst: Inst, base: Value, offset: i64, size: Option<u32>, how: AccessFlags) {
        let points = self.of(base);
        let site = self.site(inst);
        if points.unknown {
            for (map, decl) in &self.module.maps {
                let range = AccessRange { start: 0, end: decl.value_size };
                add(self.uses.entry(map).or_default(), site, range, how);
            }
            return;
        }
        for (&map, offsets) in &points.values {
            let whole = self.module.maps[map].value_size;
            let uses = self.uses.entry(map).or_default();
            match offsets {
                ValueOffsets::Any => add(uses, site, AccessRange { start: 0, end: whole }, how),
                ValueOffsets::Known(set) => {
                    for at in set {
                        add(uses, site, range(at.wrapping_add(offset), size, whole), how);
                    }
                }
            }
        }
    }
}

/// The bytes from `start` on; the whole value where they are not known to lie within.
fn range(start: i64, size: Option<u32>, whole: u32) -> AccessRange {
    let within = u32::try_from(start).ok().and_then(|start| {
        let end = start.checked_add(size?)?;
        (end <= whole).then_some(AccessRange { start, end })
    });
    within.unwrap_or(AccessRange { start: 0, end: whole })
}

fn add(uses: &mut MapUse, site: InstSite, range: AccessRange, how: AccessFlags) {
    let touch = ValueAccess { site, range, atomic: how.atomic, escapes: how.escapes };
    if how.reads {
        uses.reads.push(touch);
    }
    if how.writes {
        uses.writes.push(touch);
    }
}
