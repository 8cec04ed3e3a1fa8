//! Which map values and map objects each value may point to.
//!
//! One fixed point over all functions, without regard to calling context. Memory is one cell: any 8-byte load
//! may give any pointer that is stored anywhere.

use std::collections::{BTreeMap, BTreeSet};

use cranelift_entity::{EntityRef, SecondaryMap};
use millstream_isa::helpers::{ArgKind, Helper, HelperEffects, RetKind};

use crate::entities::*;
use crate::func::{Function, InstData, Linkage};
use crate::module::Module;
use crate::op::Op;
use crate::op_group;
use crate::types::{Prov, Type};
use crate::{AluOp, Size, Width};

/// Offsets in a value of a map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ValueOffsets {
    /// One of these.
    Known(BTreeSet<i64>),
    /// Any.
    Any,
}

/// More offsets than this become [`ValueOffsets::Any`].
const MAX_OFFSETS: usize = 16;
/// Parameters of a callback.
const MAX_ARGS: usize = 5;

/// Possible targets of a value, among maps and their values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PointsToSet {
    /// Values of maps.
    pub values: BTreeMap<Map, ValueOffsets>,
    /// Map objects.
    pub objects: BTreeSet<Map>,
    /// A value of any map, or any map object.
    pub unknown: bool,
}

impl PointsToSet {
    fn value(map: Map, offset: i64) -> PointsToSet {
        let offsets = ValueOffsets::Known(BTreeSet::from([offset]));
        PointsToSet { values: BTreeMap::from([(map, offsets)]), ..PointsToSet::default() }
    }

    fn object(map: Map) -> PointsToSet {
        PointsToSet { objects: BTreeSet::from([map]), ..PointsToSet::default() }
    }

    fn unknown() -> PointsToSet {
        PointsToSet { unknown: true, ..PointsToSet::default() }
    }

    /// Returns true if it points to no map value and no map.
    pub fn is_none(&self) -> bool {
        self.values.is_empty() && self.objects.is_empty() && !self.unknown
    }

    /// Adds what `other` may point to; `true` if anything is new.
    fn join(&mut self, other: &PointsToSet) -> bool {
        let mut changed = other.unknown && !self.unknown;
        self.unknown |= other.unknown;
        for map in &other.objects {
            changed |= self.objects.insert(*map);
        }
        for (map, offsets) in &other.values {
            changed |= match self.values.get_mut(map) {
                Some(mine) => mine.join(offsets),
                None => self.values.insert(*map, offsets.clone()).is_none(),
            };
        }
        changed
    }

    /// The same pointers, displaced; `None` stands for an unknown distance.
    fn moved(&self, by: Option<i64>) -> PointsToSet {
        let mut moved = self.clone();
        for offsets in moved.values.values_mut() {
            *offsets = match (&*offsets, by) {
                (ValueOffsets::Known(set), Some(by)) => {
                    ValueOffsets::Known(set.iter().map(|o| o.wrapping_add(by)).collect())
                }
                _ => ValueOffsets::Any,
            };
        }
        moved
    }
}

impl ValueOffsets {
    fn join(&mut self, other: &ValueOffsets) -> bool {
        match (&mut *self, other) {
            (ValueOffsets::Any, _) => false,
            (ValueOffsets::Known(mine), ValueOffsets::Known(theirs)) => {
                let before = mine.len();
                mine.extend(theirs);
                let changed = mine.len() != before;
                if mine.len() > MAX_OFFSETS {
                    *self = ValueOffsets::Any;
                }
                changed
            }
            (_, ValueOffsets::Any) => {
                *self = ValueOffsets::Any;
                true
            }
        }
    }
}

/// Possible targets of every value of a module.
#[derive(Clone, Debug)]
pub struct PointsTo {
    values: SecondaryMap<Func, SecondaryMap<Value, PointsToSet>>,
    /// Targets of the functions' results.
    returned: SecondaryMap<Func, PointsToSet>,
    /// Targets of pointers stored somewhere in memory.
    stored: PointsToSet,
    changed: bool,
}

impl PointsTo {
    /// Analyses a module, which must be valid.
    pub fn new(module: &Module) -> PointsTo {
        let mut this = PointsTo {
            values: SecondaryMap::new(),
            returned: SecondaryMap::new(),
            stored: PointsToSet::default(),
            changed: true,
        };
        for (_, func) in &module.funcs {
            for callee in stray_functions(func) {
                (0..MAX_ARGS).for_each(|i| this.param(module, callee, i, &PointsToSet::unknown()));
            }
        }
        while std::mem::take(&mut this.changed) {
            for (id, func) in &module.funcs {
                for (_, inst) in func.insts_in_order() {
                    this.inst(module, id, inst);
                }
            }
        }
        this
    }

    /// Possible targets of a value.
    pub fn of(&self, func: Func, value: Value) -> &PointsToSet {
        &self.values[func][value]
    }

    fn add(&mut self, func: Func, value: Value, points: &PointsToSet) {
        if !points.is_none() {
            self.changed |= self.values[func][value].join(points);
        }
    }

    fn inst(&mut self, module: &Module, id: Func, inst: Inst) {
        let func = &module.funcs[id];
        let data = &func.insts[inst];
        for target in &data.targets {
            for (&arg, &param) in target.args.iter().zip(&func.blocks[target.block].params) {
                let points = self.of(id, arg).clone();
                self.add(id, param, &points);
            }
        }
        match &data.op {
            Op::Store { size: Size::Dw, .. } | Op::StoreRelease { size: Size::Dw, .. } => {
                self.store(id, data.args[1])
            }
            Op::AtomicFetch { size: Size::Dw, .. } => self.store(id, data.args[1]),
            Op::CmpXchg { size: Size::Dw, .. } => self.store(id, data.args[2]),
            Op::Return {} => {
                for &value in &data.args {
                    let points = self.of(id, value).clone();
                    self.changed |= self.returned[id].join(&points);
                }
            }
            Op::Call { func: callee } => self.pass(module, *callee, id, &data.args),
            Op::Helper { id: helper } => self.callbacks(module, id, data, *helper),
            // The callees are in `stray_functions`.
            Op::CallIndirect {} => {}
            // Maps keep no addresses that a program could read again, nor does what a narrow store writes.
            Op::MapLookup { .. } | Op::MapUpdate { .. } | Op::MapDelete { .. } | Op::TableMatch { .. } => {}
            Op::Kfunc { .. } => {}
            op_group!(constant) | op_group!(arithmetic) | op_group!(access) | op_group!(packet) => {}
            Op::Jump {} | Op::Branch { .. } | Op::MayGoto {} | Op::Unreachable {} => {}
        }
        if let Some(result) = data.result.expand() {
            let points = self.result(module, id, func, data);
            self.add(id, result, &points);
        }
    }

    fn store(&mut self, id: Func, value: Value) {
        let points = self.of(id, value).clone();
        self.changed |= self.stored.join(&points);
    }

    /// Arguments become parameters.
    fn pass(&mut self, module: &Module, callee: Func, id: Func, args: &[Value]) {
        for (i, &arg) in args.iter().enumerate() {
            let points = self.of(id, arg).clone();
            self.param(module, callee, i, &points);
        }
    }

    fn param(&mut self, module: &Module, callee: Func, index: usize, points: &PointsToSet) {
        let func = &module.funcs[callee];
        let entry = func.layout.first().map(|&b| &func.blocks[b].params);
        if let Some(&param) = entry.and_then(|params| params.get(index)) {
            self.add(callee, param, points);
        }
    }

    /// Passes a helper's callback arguments to the callback's parameters.
    fn callbacks(&mut self, module: &Module, id: Func, data: &InstData, helper: i32) {
        let func = &module.funcs[id];
        let opaque = Helper::get(helper).is_none_or(|h| h.effects.contains(HelperEffects::CALLBACK));
        let callees = data.args.iter().filter_map(|&arg| match func.def_op(arg) {
            Some(Op::FuncAddr { func }) => Some(*func),
            _ => None,
        });
        for callee in callees.collect::<Vec<_>>() {
            let arg =
                |i: usize| data.args.get(i).map_or_else(PointsToSet::unknown, |&a| self.of(id, a).clone());
            let passed = match helper {
                // bpf_for_each_map_elem: map, key, value, context.
                164 => vec![arg(0), PointsToSet::default(), self.values_of(module, &arg(0)), arg(2)],
                // bpf_loop: index, context.
                181 => vec![PointsToSet::default(), arg(2)],
                _ if opaque => vec![PointsToSet::unknown(); MAX_ARGS],
                _ => Vec::new(),
            };
            for (i, points) in passed.iter().enumerate() {
                self.param(module, callee, i, points);
            }
        }
    }

    /// Results of a lookup in one of these maps.
    fn values_of(&self, module: &Module, maps: &PointsToSet) -> PointsToSet {
        let mut found = PointsToSet { unknown: maps.unknown, ..PointsToSet::default() };
        for &map in &maps.objects {
            found.join(&match module.maps[map].inner {
                Some(inner) => PointsToSet::object(inner),
                None => PointsToSet::value(map, 0),
            });
        }
        found
    }

    fn result(&self, module: &Module, id: Func, func: &Function, data: &InstData) -> PointsToSet {
        let arg = |i: usize| self.of(id, data.args[i]);
        match &data.op {
            Op::MapAddr { map } => PointsToSet::object(*map),
            Op::MapValueAddr { map, offset } => PointsToSet::value(*map, i64::from(*offset)),
            Op::MapLookup { map, .. } => self.values_of(module, &PointsToSet::object(*map)),
            Op::Helper { id: helper } => self.helper_result(module, id, data, *helper),
            Op::Call { func: callee } => self.returned[*callee].clone(),
            Op::CallIndirect {} => PointsToSet::unknown(),
            Op::Load { size: Size::Dw, .. } if is_iterator_field(func, data.args[0]) => {
                PointsToSet::unknown()
            }
            Op::Load { size: Size::Dw, .. } | Op::LoadAcquire { size: Size::Dw, .. } => self.stored.clone(),
            Op::AtomicFetch { size: Size::Dw, .. } | Op::CmpXchg { size: Size::Dw, .. } => {
                self.stored.clone()
            }
            Op::Alu { op: op @ (AluOp::Add | AluOp::Sub), width: Width::W64 } => {
                let sign = |c: i64| if *op == AluOp::Sub { c.wrapping_neg() } else { c };
                let mut sum = arg(0).moved(func.as_const(data.args[1]).map(sign));
                sum.join(&arg(1).moved(func.as_const(data.args[0])));
                sum
            }
            Op::Select {} => {
                let mut either = arg(1).clone();
                either.join(arg(2));
                either
            }
            // The verifier allows no other arithmetic on pointers, but if a privileged program does it anyway
            // the result is still based on one of its operands.
            Op::Alu { .. } | Op::Neg { .. } | Op::AddrSpaceCast { .. } => {
                let mut any = PointsToSet::default();
                data.args.iter().for_each(|&a| {
                    any.join(&self.of(id, a).moved(None));
                });
                any
            }
            Op::Zext {} | Op::Sext { .. } | Op::Swap { .. } | Op::Cmp { .. } => PointsToSet::default(),
            Op::Const { .. } | Op::Undef {} | Op::CoreConst { .. } | Op::Verdict { .. } => {
                PointsToSet::default()
            }
            Op::FuncAddr { .. } | Op::ExternAddr { .. } | Op::StackAddr { .. } => PointsToSet::default(),
            Op::MapUpdate { .. } | Op::MapDelete { .. } | Op::TableMatch { .. } | Op::Kfunc { .. } => {
                PointsToSet::default()
            }
            // Of less than 8 bytes.
            op_group!(access) => PointsToSet::default(),
            op_group!(packet) | op_group!(terminator) => PointsToSet::default(),
        }
    }

    fn helper_result(&self, module: &Module, id: Func, data: &InstData, helper: i32) -> PointsToSet {
        let Some(helper) = Helper::get(helper) else { return PointsToSet::unknown() };
        match helper.ret {
            RetKind::MapValue | RetKind::MapValueOrNull => {
                let at = helper.args.iter().position(|a| *a == ArgKind::ConstMap);
                match at.and_then(|i| data.args.get(i)) {
                    Some(&map) => self.values_of(module, self.of(id, map)),
                    None => PointsToSet::unknown(),
                }
            }
            _ => PointsToSet::default(),
        }
    }
}

/// Functions whose address goes elsewhere than directly into a helper: their callers and arguments are not
/// known.
fn stray_functions(func: &Function) -> Vec<Func> {
    let mut stray = Vec::new();
    for (_, inst) in func.insts_in_order() {
        if !matches!(func.insts[inst].op, Op::Helper { .. }) {
            func.for_each_use(inst, |value| {
                if let Some(Op::FuncAddr { func: callee }) = func.def_op(value) {
                    stray.push(*callee);
                }
            });
        }
    }
    stray
}

/// Returns true if this is the context of a tracing program: an iterator's holds addresses of map values.
fn is_iterator_field(func: &Function, base: Value) -> bool {
    const TRACING: u32 = 26;
    func.linkage == Linkage::Program { prog_type: TRACING } && func.types[base] == Type::Ptr(Prov::Ctx)
}

/// All maps whose map object `points` may stand for.
pub(super) fn objects<'a>(points: &'a PointsToSet, module: &'a Module) -> impl Iterator<Item = Map> + 'a {
    (0..module.maps.len()).map(Map::new).filter(|m| points.unknown || points.objects.contains(m))
}
