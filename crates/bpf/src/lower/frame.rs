//! The stack frame: where objects and spilled values lie.
//!
//! Near the frame pointer displacements take one byte, so small and busy things come first. Spill slots are 8 bytes,
//! 8-aligned, one value each, and share no bytes with objects.

use cranelift_entity::SecondaryMap;
use millstream_ir::{Function, Slot};
use regalloc2::{Allocation, Edit, Output};

use super::mir::{Base, MFunc, MOp};

/// Where stack objects and spills lie, as offsets from the frame pointer.
pub(super) struct Frame {
    pub(super) slots: SecondaryMap<Slot, i32>,
    spills: Vec<i32>,
    pub(super) size: u32,
}

/// What wants a place.
#[derive(Clone, Copy)]
enum Thing {
    Object(Slot),
    Spill(usize),
}

struct Wish {
    thing: Thing,
    size: u32,
    align: u32,
    uses: u32,
}

impl Frame {
    pub(super) fn new(func: &Function, mir: &MFunc, out: &Output) -> Frame {
        let uses = object_uses(mir);
        let mut frame = Frame { slots: SecondaryMap::new(), spills: vec![0; out.num_spillslots], size: 0 };
        let mut low = 0;
        for (slot, data) in &func.slots {
            if let (true, Some(at)) = (uses[slot] > 0, data.fixed) {
                frame.slots[slot] = at;
                low = low.min(at);
            }
        }
        low = low.div_euclid(8) * 8;
        let objects = func.slots.iter().filter(|&(s, data)| uses[s] > 0 && data.fixed.is_none());
        let objects = objects.map(|(slot, data)| Wish {
            thing: Thing::Object(slot),
            size: data.size,
            align: data.align.max(8),
            uses: uses[slot],
        });
        let spills = spill_uses(out).into_iter().enumerate();
        let spills = spills.map(|(n, uses)| Wish { thing: Thing::Spill(n), size: 8, align: 8, uses });
        let mut wishes: Vec<Wish> = spills.chain(objects).collect();
        wishes.sort_by_key(|w| w.size.max(8) / w.uses.max(1));
        for wish in wishes {
            let align = wish.align as i32;
            low = (low - wish.size as i32).div_euclid(align) * align;
            match wish.thing {
                Thing::Object(slot) => frame.slots[slot] = low,
                Thing::Spill(n) => frame.spills[n] = low,
            }
        }
        frame.size = -low as u32;
        frame
    }

    /// The displacement of a spill slot; `None` for a register.
    pub(super) fn spill(&self, alloc: Allocation) -> Option<i16> {
        Some(self.spills[alloc.as_stack()?.index()] as i16)
    }
}

/// How many instructions address each stack object.
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
            MOp::Lea { slot, .. } => Base::Frame(slot, 0),
            _ => continue,
        };
        if let Base::Frame(slot, _) = base {
            uses[slot] += 1;
        }
    }
    uses
}

/// How many moves go to or come from each spill slot.
fn spill_uses(out: &Output) -> Vec<u32> {
    let mut uses = vec![0; out.num_spillslots];
    for (_, Edit::Move { from, to }) in &out.edits {
        for slot in [from, to].into_iter().filter_map(|a| a.as_stack()) {
            uses[slot.index()] += 1;
        }
    }
    uses
}
