//! The stack frame: where objects and spilled values lie.
//!
//! Near the frame pointer displacements take one byte, so small and busy things come first. Spill slots are 8
//! bytes, 8-aligned, one value each, and share no bytes with objects. Objects have bytes of their own as long
//! as there is room; where there is not, those share them that never hold something at the same time. The
//! frame of a function takes room from the functions that it calls.

use cranelift_entity::SecondaryMap;
use millstream_ir::{Cfg, Function, Op, Slot};
use regalloc2::{Allocation, Edit, Output};

use super::mir::{AddressBase, MFunc, MOp};
use super::stack_interference::SlotInterference;

/// Places of stack objects and spills, as offsets from the frame pointer.
pub(super) struct StackLayout {
    pub(super) slots: SecondaryMap<Slot, i32>,
    pub(super) spills: Vec<i32>,
    pub(super) size: u32,
}

/// An object or a spill that needs a place.
#[derive(Clone, Copy)]
enum FrameObject {
    Object(Slot),
    Spill(usize),
}

struct PlacementRequest {
    thing: FrameObject,
    size: u32,
    align: u32,
    uses: u32,
}

/// Bytes of stack that the kernel gives.
pub(super) const MOST: u32 = 512;

impl StackLayout {
    pub(super) fn new(func: &Function, cfg: &Cfg, mir: &MFunc, out: &Output) -> StackLayout {
        let frame = StackLayout::apart(func, mir, out);
        if frame.size <= MOST && !calls(func) { frame } else { StackLayout::shared(func, cfg, mir, out) }
    }

    /// Nobody shares anything.
    fn apart(func: &Function, mir: &MFunc, out: &Output) -> StackLayout {
        let uses = object_uses(mir);
        let mut frame =
            StackLayout { slots: SecondaryMap::new(), spills: vec![0; out.num_spillslots], size: 0 };
        let mut low = 0;
        for (slot, data) in &func.slots {
            if let (true, Some(at)) = (uses[slot] > 0, data.fixed) {
                frame.slots[slot] = at;
                low = low.min(at);
            }
        }
        low = low.div_euclid(8) * 8;
        for wish in wishes(func, out, &uses) {
            let align = wish.align as i32;
            low = (low - wish.size as i32).div_euclid(align) * align;
            frame.give(wish.thing, low);
        }
        frame.size = -low as u32;
        frame
    }

    /// Each comes as near to the frame pointer as those let it that it meets.
    fn shared(func: &Function, cfg: &Cfg, mir: &MFunc, out: &Output) -> StackLayout {
        let lifetimes = SlotInterference::new(func, cfg);
        let uses = object_uses(mir);
        let mut frame =
            StackLayout { slots: SecondaryMap::new(), spills: vec![0; out.num_spillslots], size: 0 };
        let mut placed: Vec<PlacedObject> = Vec::new();
        for (slot, data) in &func.slots {
            if let (true, Some(at)) = (uses[slot] > 0, data.fixed) {
                frame.slots[slot] = at;
                placed.push(PlacedObject {
                    thing: FrameObject::Object(slot),
                    low: at,
                    high: at + data.size as i32,
                });
            }
        }
        let is_fixed = |slot: Slot| func.slots[slot].fixed.is_some();
        let meets = |a: FrameObject, b: FrameObject| match (a, b) {
            (FrameObject::Object(a), FrameObject::Object(b)) => is_fixed(a) || lifetimes.interferes(a, b),
            _ => true,
        };
        for PlacementRequest { thing, size, align, .. } in wishes(func, out, &uses) {
            let below = |at: i32| (at - size as i32).div_euclid(align as i32) * align as i32;
            let mut low = below(0);
            let in_the_way = |low: i32| {
                let over =
                    |p: &&PlacedObject| p.low < low + size as i32 && low < p.high && meets(p.thing, thing);
                placed.iter().filter(over).map(|p| p.low).max()
            };
            while let Some(at) = in_the_way(low) {
                low = below(at);
            }
            placed.push(PlacedObject { thing, low, high: low + size as i32 });
            frame.give(thing, low);
        }
        let low = placed.iter().map(|p| p.low).min().unwrap_or(0);
        frame.size = -(low.div_euclid(8) * 8) as u32;
        frame
    }

    fn give(&mut self, thing: FrameObject, low: i32) {
        match thing {
            FrameObject::Object(slot) => self.slots[slot] = low,
            FrameObject::Spill(n) => self.spills[n] = low,
        }
    }

    /// The displacement of a spill slot; `None` for a register.
    pub(super) fn spill(&self, alloc: Allocation) -> Option<i16> {
        Some(self.spills[alloc.as_stack()?.index()] as i16)
    }
}

/// Returns true if other functions have their frames below this one.
fn calls(func: &Function) -> bool {
    let is_call = |op: &Op| matches!(op, Op::Call { .. } | Op::CallIndirect {} | Op::FuncAddr { .. });
    func.insts_in_order().any(|(_, inst)| is_call(&func.insts[inst].op))
}

/// Place of an object or a spill.
struct PlacedObject {
    thing: FrameObject,
    low: i32,
    high: i32,
}

/// Objects and spills that need a place, in the order in which they get one.
fn wishes(func: &Function, out: &Output, uses: &SecondaryMap<Slot, u32>) -> Vec<PlacementRequest> {
    let objects = func.slots.iter().filter(|&(s, data)| uses[s] > 0 && data.fixed.is_none());
    let objects = objects.map(|(slot, data)| PlacementRequest {
        thing: FrameObject::Object(slot),
        size: data.size,
        align: data.align.max(8),
        uses: uses[slot],
    });
    let spills = spill_uses(out).into_iter().enumerate();
    let spills =
        spills.map(|(n, uses)| PlacementRequest { thing: FrameObject::Spill(n), size: 8, align: 8, uses });
    let mut wishes: Vec<PlacementRequest> = spills.chain(objects).collect();
    wishes.sort_by_key(|w| w.size.max(8) / w.uses.max(1));
    wishes
}

/// Number of instructions that address each stack object.
fn object_uses(mir: &MFunc) -> SecondaryMap<Slot, u32> {
    let mut uses: SecondaryMap<Slot, u32> = SecondaryMap::new();
    for inst in &mir.insts {
        let base = match inst.op {
            MOp::Load { base, .. }
            | MOp::Store { base, .. }
            | MOp::Atomic { base, .. }
            | MOp::AtomicFetch { base, .. }
            | MOp::CmpXchg { base, .. }
            | MOp::LoadAcquire { base, .. }
            | MOp::StoreRelease { base, .. } => base,
            MOp::Lea { slot, .. } => AddressBase::Frame(slot, 0),
            _ => continue,
        };
        if let AddressBase::Frame(slot, _) = base {
            uses[slot] += 1;
        }
    }
    uses
}

/// Number of moves to or from each spill slot.
fn spill_uses(out: &Output) -> Vec<u32> {
    let mut uses = vec![0; out.num_spillslots];
    for (_, Edit::Move { from, to }) in &out.edits {
        for slot in [from, to].into_iter().filter_map(|a| a.as_stack()) {
            uses[slot.index()] += 1;
        }
    }
    uses
}
