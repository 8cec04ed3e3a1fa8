//! Memory of a packet: one value of a per-CPU array.
//!
//! It holds the packet's state, the deparser's output, a record of what became of the packet, and stack
//! objects that do not fit the stack. An offset that is not known is masked ([`crate::bounds`]), so the value
//! is larger than what is used: every masked access stays inside.

use cranelift_entity::SecondaryMap;
use millstream_ir::{Function, Map, Op, Slot, Type, Value, ValueDef};
use millstream_p4_lower::StateLayout;

use crate::error::KernelBuildError;

/// Largest value of a per-CPU array (`PCPU_MIN_UNIT_SIZE` of `include/linux/percpu.h`).
const LARGEST_VALUE: u32 = 32 << 10;
/// Bytes of the stack objects of a function that stay on the stack. The rest is for spills, keys of maps and
/// the frames of other functions.
const STACK_BYTES: u32 = 96;

/// Places in a packet's memory, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketMemory {
    /// Array with the memory.
    pub(crate) map: Map,
    /// Bytes of the packet's state, which begins at 0.
    pub(crate) state_size: u32,
    /// Record of the last packet: [`RECORD_DECIDED`], [`RECORD_PORT`].
    pub(crate) record: u32,
    /// Bytes in use.
    pub(crate) used: u32,
}

/// Offset in the record of a word that says what the program decided (32 bits): 0 before, or for a drop,
/// [`DECIDED_PORT`] or [`DECIDED_NO_FRAME`].
pub(crate) const RECORD_DECIDED: u32 = 0;
/// The packet leaves by the port of the record, or stays in the kernel.
pub(crate) const DECIDED_PORT: u32 = 1;
/// The packet was dropped because the kernel makes no frame of its new length.
pub(crate) const DECIDED_NO_FRAME: u32 = 2;
/// Offset in the record of the port to which the packet goes (32 bits).
pub(crate) const RECORD_PORT: u32 = 4;
const RECORD_SIZE: u32 = 8;

impl PacketMemory {
    pub(crate) fn new(map: Map, layout: &StateLayout) -> PacketMemory {
        let output = layout.output.map_or(0, |output| (output.capacity + 8).next_multiple_of(8));
        let record = layout.size + output;
        PacketMemory { map, state_size: layout.size, record, used: record + RECORD_SIZE }
    }

    /// Makes room for the stack objects that the functions have before the passes: so an object without the
    /// passes has the same memory, and can be proven equivalent. Does nothing if there is no such room.
    pub(crate) fn reserve<'f>(&mut self, functions: impl Iterator<Item = &'f Function>) {
        let mut with = *self;
        for func in functions {
            let mut func = func.clone();
            if let Some(state) = state_parameter(&mut func, self.map) {
                with.take_slots(&mut func, state);
            }
        }
        if with.value_size().is_ok() {
            *self = with;
        }
    }

    /// Mask of offsets that are not known.
    pub(crate) fn mask(&self) -> u32 {
        self.used.next_power_of_two() - 1
    }

    /// Bytes of the array's value.
    ///
    /// # Errors
    /// [`KernelBuildError::Memory`].
    pub(crate) fn value_size(&self) -> Result<u32, KernelBuildError> {
        let bytes = self.used + self.mask() + 9;
        match bytes <= LARGEST_VALUE {
            true => Ok(bytes.next_multiple_of(8)),
            false => Err(KernelBuildError::Memory { bytes, most: LARGEST_VALUE }),
        }
    }

    /// Moves stack objects of a function to the memory: those whose address is computed, and the largest of
    /// the others until the rest fits the stack. `state` is the memory's address. Functions that run one after
    /// the other use the same bytes.
    pub(crate) fn take_slots(&mut self, func: &mut Function, state: Value) {
        let mut at = self.record + RECORD_SIZE;
        let uses = SlotUses::new(func);
        let mut kept: Vec<Slot> = func.slots.keys().filter(|slot| uses.is_plain[*slot]).collect();
        kept.sort_by_key(|slot| func.slots[*slot].size);
        let mut stack = 0;
        kept.retain(|slot| {
            stack += func.slots[*slot].size.next_multiple_of(8);
            stack <= STACK_BYTES
        });
        let mut places: SecondaryMap<Slot, Option<u32>> = SecondaryMap::new();
        for slot in func.slots.keys() {
            if uses.is_used[slot] && !kept.contains(&slot) {
                places[slot] = Some(at);
                at += func.slots[slot].size.next_multiple_of(8);
            }
        }
        self.used = self.used.max(at);
        move_slots(func, state, &places);
    }
}

/// Uses of a function's stack objects.
struct SlotUses {
    is_used: SecondaryMap<Slot, bool>,
    /// Only aligned loads and stores at known places, and calls.
    is_plain: SecondaryMap<Slot, bool>,
}

impl SlotUses {
    fn new(func: &Function) -> SlotUses {
        let mut uses = SlotUses { is_used: SecondaryMap::new(), is_plain: SecondaryMap::with_default(true) };
        let slot_of = |value: Value| match func.def_op(value) {
            Some(Op::StackAddr { slot, .. }) => Some(*slot),
            _ => None,
        };
        for (_, inst) in func.insts_in_order() {
            let data = &func.insts[inst];
            for (at, value) in data.args.iter().enumerate() {
                let Some(slot) = slot_of(*value) else { continue };
                uses.is_used[slot] = true;
                let is_base = at == 0 && is_aligned_access(func, &data.op, *value);
                uses.is_plain[slot] &= is_base || matches!(data.op, Op::Helper { .. } | Op::Call { .. });
            }
            for value in data.targets.iter().flat_map(|target| &target.args) {
                if let Some(slot) = slot_of(*value) {
                    (uses.is_used[slot], uses.is_plain[slot]) = (true, false);
                }
            }
        }
        uses
    }
}

/// Tells if an operation loads or stores aligned bytes of a stack object, as the verifier wants.
fn is_aligned_access(func: &Function, op: &Op, address: Value) -> bool {
    let Some(Op::StackAddr { offset: start, .. }) = func.def_op(address) else { return false };
    match op {
        Op::Load { size, offset, .. } | Op::Store { size, offset, .. } => {
            (i64::from(*start) + i64::from(*offset)).rem_euclid(i64::from(size.bytes())) == 0
        }
        _ => false,
    }
}

/// Replaces the addresses of stack objects by places behind `state`.
fn move_slots(func: &mut Function, state: Value, places: &SecondaryMap<Slot, Option<u32>>) {
    let ty = func.types[state];
    for block in func.layout.clone() {
        let mut at = 0;
        while let Some(&inst) = func.blocks[block].insts.get(at) {
            at += 1;
            let Op::StackAddr { slot, offset } = func.insts[inst].op else { continue };
            let (Some(place), Some(result)) = (places[slot], func.result(inst)) else { continue };
            let bytes = i64::from(place) + i64::from(offset);
            let constant = func.at(block, at - 1).iconst(bytes);
            at += 1;
            let data = &mut func.insts[inst];
            data.op = Op::Alu { op: millstream_ir::AluOp::Add, width: millstream_ir::Width::W64 };
            data.args = [state, constant].into_iter().collect();
            func.types[result] = ty;
        }
    }
}

/// Retypes the first parameter of a function of the pipeline: the state is a value of the memory's map.
pub(crate) fn state_parameter(func: &mut Function, map: Map) -> Option<Value> {
    let state = *func.blocks[func.entry()].params.first()?;
    debug_assert!(matches!(func.defs[state], ValueDef::Param(..)));
    func.types[state] = Type::Ptr(millstream_ir::Prov::MapValue(map));
    Some(state)
}
