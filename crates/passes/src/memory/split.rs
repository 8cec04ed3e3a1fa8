//! `split-stack`: partitions stack objects into independent ones.
//!
//! The frame of a lifted function is one object of 512 bytes. Here the bytes that some single use may access
//! together form a group, and each group becomes an object of its own, at an offset equal to the old one
//! modulo 8. Then promotion, dead store elimination and a new layout see variables, keys and buffers apart.
//!
//! Invariant: an access that stayed within a group's bytes stays so, and the distance between two addresses
//! into one group is kept. If any use may access bytes below its address without bound, the object stays
//! whole.

use cranelift_entity::SecondaryMap;
use millstream_ir::{Func, Function, Inst, Module, Op, Prov, Slot, SlotData, Type, Value};
use rustc_hash::FxHashMap;

use super::address::{ResolvedAddresses, RootedAddress};
use super::footprint::{AddressUse, FootprintAnalysis, ParamSpans, param_spans};
use crate::manager::{ModulePass, PassSession};

const NAME: &str = "split-stack";

/// The pass.
pub(crate) struct SplitStack;

impl ModulePass for SplitStack {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> &'static str {
        "partition the stack frame into independent objects"
    }

    fn run(&self, module: &mut Module, session: &mut PassSession) -> bool {
        if module.funcs.values().all(|f| f.slots.is_empty()) {
            return false;
        }
        let spans = param_spans(module);
        let ids: Vec<Func> = module.funcs.keys().collect();
        let mut changed = false;
        for id in ids {
            let func = &module.funcs[id];
            if func.layout.is_empty() || func.slots.values().all(|s| s.size == 0) {
                continue;
            }
            let plans = plan(module, func, &spans);
            for plan in plans {
                if session.fuel(NAME) {
                    apply(&mut module.funcs[id], &plan);
                    changed = true;
                }
            }
        }
        changed
    }
}

/// New places of the bytes of an object.
struct SplitPlan {
    slot: Slot,
    // Group of each byte, by index in `groups`; `NONE` where no access goes.
    group_of: Vec<u16>,
    groups: Vec<SlotData>,
    // First byte of the old object that each group's object covers.
    starts: Vec<i64>,
    // The byte by which each use of an address finds its group.
    anchors: FxHashMap<OperandPosition, i64>,
}

const NONE: u16 = u16::MAX;

/// An operand: an argument, or an argument of a branch target.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum OperandPosition {
    Arg(Inst, u32),
    Target(Inst, u32, u32),
}

/// Bytes that one use accesses together.
struct AccessExtent {
    slot: Slot,
    lo: i64,
    hi: i64,
    align: u32,
}

fn plan(module: &Module, func: &Function, params: &ParamSpans) -> Vec<SplitPlan> {
    let uses = FootprintAnalysis::new(module, func, params, false);
    let spans = uses.spans();
    let addresses = ResolvedAddresses::new(func);
    let mut touches = Vec::new();
    let mut anchors: SecondaryMap<Slot, FxHashMap<OperandPosition, i64>> = SecondaryMap::new();
    let mut whole: SecondaryMap<Slot, bool> = SecondaryMap::new();
    for_each_exact_use(&uses, &addresses, |place, addr, slot, what| {
        let span = match what {
            AddressUse::Touch(span) => span,
            AddressUse::Derive(to, by) => spans[to].shifted(by),
        };
        let size = i64::from(func.slots[slot].size);
        if span.open_below() {
            whole[slot] = true;
        }
        let (lo, hi) = match span.is_empty() {
            true => (addr.offset.clamp(0, size - 1), addr.offset.clamp(0, size - 1) + 1),
            false => {
                (addr.offset.saturating_add(span.lo).max(0), addr.offset.saturating_add(span.hi).min(size))
            }
        };
        if lo >= hi {
            // Out of the object altogether: such a program is not valid, and not ours to judge.
            whole[slot] = true;
            return;
        }
        touches.push(AccessExtent { slot, lo, hi, align: alignment(func, place) });
        anchors[slot].insert(place, lo);
    });
    let candidates = func.slots.keys().filter(|&s| !whole[s] && func.slots[s].size > 0);
    candidates.filter_map(|slot| group(func, slot, &touches, std::mem::take(&mut anchors[slot]))).collect()
}

/// Calls `f` on each use of a value that is a known byte of a stack object, unless the use only makes another
/// such.
fn for_each_exact_use(
    uses: &FootprintAnalysis<'_>,
    addresses: &ResolvedAddresses,
    mut f: impl FnMut(OperandPosition, RootedAddress, Slot, AddressUse),
) {
    let func = uses.func;
    for (_, inst) in func.insts_in_order() {
        let data = &func.insts[inst];
        for (i, &arg) in data.args.iter().enumerate() {
            let addr = addresses.of(arg);
            let Some(slot) = addr.slot() else { continue };
            let what = uses.argument(inst, i);
            if matches!(what, AddressUse::Derive(to, _) if addresses.of(to).slot().is_some()) {
                continue;
            }
            f(OperandPosition::Arg(inst, i as u32), addr, slot, what);
        }
        for (t, target) in data.targets.iter().enumerate() {
            for (i, &arg) in target.args.iter().enumerate() {
                let addr = addresses.of(arg);
                let Some(slot) = addr.slot() else { continue };
                let param = func.blocks[target.block].params[i];
                f(
                    OperandPosition::Target(inst, t as u32, i as u32),
                    addr,
                    slot,
                    AddressUse::Derive(param, (0, 0)),
                );
            }
        }
    }
}

/// Alignment that a use needs of the byte it accesses, as far as the offset decides it.
fn alignment(func: &Function, place: OperandPosition) -> u32 {
    match place {
        // Helpers take buffers at any alignment.
        OperandPosition::Arg(inst, _) if matches!(func.insts[inst].op, Op::Helper { .. }) => 1,
        OperandPosition::Arg(inst, 0) => func.insts[inst].op.access().map_or(8, |(_, size)| size.bytes()),
        _ => 8,
    }
}

/// Unites bytes that are accessed together.
fn group(
    func: &Function,
    slot: Slot,
    touches: &[AccessExtent],
    anchors: FxHashMap<OperandPosition, i64>,
) -> Option<SplitPlan> {
    let old = &func.slots[slot];
    let mut mine: Vec<&AccessExtent> = touches.iter().filter(|t| t.slot == slot).collect();
    mine.sort_unstable_by_key(|t| t.lo);
    let mut merged: Vec<(i64, i64, u32)> = Vec::new();
    for touch in mine {
        match merged.last_mut() {
            Some(last) if touch.lo < last.1 => {
                last.1 = last.1.max(touch.hi);
                last.2 = last.2.max(touch.align);
            }
            _ => merged.push((touch.lo, touch.hi, touch.align)),
        }
    }
    if let [(0, hi, _)] = merged[..]
        && hi == i64::from(old.size)
        && old.fixed.is_none()
    {
        return None;
    }
    let mut group_of = vec![NONE; old.size as usize];
    let (mut groups, mut starts) = (Vec::new(), Vec::new());
    for (i, &(lo, hi, align)) in merged.iter().enumerate() {
        group_of[lo as usize..hi as usize].fill(i as u16);
        // The object starts where the old offset is a multiple of the alignment, so that offsets keep their
        // remainder. At a multiple of 8, an alignment of 8 is asked for: there the verifier tracks stored
        // values.
        let align = if lo % 8 == 0 { 8 } else { align.min(old.align) };
        let start = lo - lo.rem_euclid(i64::from(align));
        groups.push(SlotData { size: (hi - start) as u32, align, fixed: None });
        starts.push(start);
    }
    Some(SplitPlan { slot, group_of, groups, starts, anchors })
}

fn apply(func: &mut Function, plan: &SplitPlan) {
    let addresses = ResolvedAddresses::new(func);
    let slots: Vec<Slot> = plan.groups.iter().map(|g| func.slots.push(g.clone())).collect();
    let mut made: FxHashMap<(Slot, i64), Value> = FxHashMap::default();
    let mut new = Vec::new();
    let mut places: Vec<(OperandPosition, i64)> = plan.anchors.iter().map(|(&p, &a)| (p, a)).collect();
    places.sort_unstable_by_key(|&(p, _)| order(p));
    for (place, anchor) in places {
        let group = usize::from(plan.group_of[anchor as usize]);
        let slot = slots[group];
        let offset = addresses.of(operand(func, place)).offset - plan.starts[group];
        let base = match place {
            OperandPosition::Arg(inst, 0) => fold_displacement(func, inst, offset),
            _ => offset,
        };
        let value = *made.entry((slot, base)).or_insert_with(|| {
            let op = Op::StackAddr { slot, offset: base as i32 };
            let inst = func.make_inst(op, [], [], Type::Ptr(Prov::Stack));
            new.push(inst);
            func.insts[inst].result.expand().expect("an address is a value")
        });
        set_operand(func, place, value);
    }
    let entry = func.entry();
    func.blocks[entry].insts.splice(0..0, new);
    sweep(func, plan.slot, &addresses);
}

fn order(place: OperandPosition) -> (Inst, u32, u32) {
    match place {
        OperandPosition::Arg(inst, i) => (inst, 0, i),
        OperandPosition::Target(inst, t, i) => (inst, t + 1, i),
    }
}

/// Moves the offset of an address into the displacement of the access; what remains is the address to give
/// it.
fn fold_displacement(func: &mut Function, inst: Inst, offset: i64) -> i64 {
    let op = &mut func.insts[inst].op;
    let total = op.access().and_then(|(by, _)| i32::try_from(i64::from(by) + offset).ok());
    match (total, op.displacement_mut()) {
        (Some(total), Some(displacement)) => {
            *displacement = total;
            0
        }
        _ => offset,
    }
}

fn operand(func: &Function, place: OperandPosition) -> Value {
    match place {
        OperandPosition::Arg(inst, i) => func.insts[inst].args[i as usize],
        OperandPosition::Target(inst, t, i) => func.insts[inst].targets[t as usize].args[i as usize],
    }
}

fn set_operand(func: &mut Function, place: OperandPosition, value: Value) {
    match place {
        OperandPosition::Arg(inst, i) => func.insts[inst].args[i as usize] = value,
        OperandPosition::Target(inst, t, i) => func.insts[inst].targets[t as usize].args[i as usize] = value,
    }
}

/// Removes the addresses of an object that nothing uses any more, and gives the object no bytes.
fn sweep(func: &mut Function, slot: Slot, addresses: &ResolvedAddresses) {
    for i in 0..func.layout.len() {
        let block = func.layout[i];
        let mut insts = std::mem::take(&mut func.blocks[block].insts);
        insts.retain(|&inst| {
            let result = func.insts[inst].result.expand();
            result.is_none_or(|r| addresses.of(r).slot() != Some(slot))
        });
        func.blocks[block].insts = insts;
    }
    func.slots[slot] = SlotData { size: 0, align: 1, fixed: None };
}
