//! Whole packets for the judge: the instrumented variant keeps some of them, with fields of their context.
//!
//! Each CPU has slots of its own in a per-CPU array. The first packets fill them; of those that follow, one
//! in [`ONE_IN`] takes the place of another at random, so that a burst leaves packets from all of its length.
//! A packet that is not kept costs one lookup in an array.
//!
//! Invariant: behaviour does not change; the map of the samples is the only memory written.

use millstream_ir::{
    AluOp, Block, BlockCall, Cond, Func, FuncCursor, Function, KeyPiece, Map, Module, Op, Prov, Size, Type,
    Value, Width,
};
use millstream_isa::helpers::id;

use super::error::TransformError;
use super::instrument::{add, branch, insert_block, load, split_block, store};

/// Once all slots are full, one packet in this many is kept; a power of two.
const ONE_IN: i64 = 64;
/// An Ethernet header: shorter packets cannot be replayed.
const SHORTEST: i64 = 14;

/// Context of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketKind {
    /// `struct xdp_md`.
    Xdp,
    /// `struct __sk_buff`.
    Skb,
}

impl PacketKind {
    /// Offsets of the 32-bit fields of the context that are kept, beside the packet.
    pub const fn fields(self) -> &'static [u32] {
        match self {
            // ingress_ifindex, rx_queue_index
            PacketKind::Xdp => &[12, 16],
            // mark, priority, cb
            PacketKind::Skb => &[8, 32, 48, 52, 56, 60, 64],
        }
    }
}

/// Data kept about packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SampleMode {
    /// Some of them, whole.
    Packets,
    /// Only their number.
    Count,
}

/// Storage for packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SampleBuffer {
    /// A per-CPU array of `slots` values of [`SampleBuffer::VALUE_SIZE`] bytes.
    pub map: Map,
    /// Slots a CPU, a power of two.
    pub slots: u32,
    /// Context of the program.
    pub kind: PacketKind,
}

impl SampleBuffer {
    /// In the first slot: offset of the 64-bit number of packets seen.
    pub const COUNT: u32 = 0;
    /// Offset of the 32-bit length; 0: the slot is empty.
    pub const LENGTH: u32 = 8;
    /// Offset of the fields of the context, in the order of [`PacketKind::fields`].
    pub const FIELDS: u32 = 12;
    /// Offset of the packet.
    pub const DATA: u32 = 48;
    /// Longer packets are not kept.
    pub const LONGEST: u32 = 2000;
    /// Bytes of a slot.
    pub const VALUE_SIZE: u32 = Self::DATA + Self::LONGEST;
}

/// Makes a function keep packets at its entry.
///
/// # Errors
/// If the map is not one for samples, or the function has no context. Nothing has changed then.
pub fn keep_packets(
    module: &mut Module,
    func: Func,
    samples: &SampleBuffer,
    keep: SampleMode,
) -> Result<(), TransformError> {
    let unfit = |what| Err(TransformError::UnfitMap { map: samples.map, what });
    let Some(decl) = module.maps.get(samples.map) else { return unfit("it does not exist") };
    if decl.value_size < SampleBuffer::VALUE_SIZE || decl.max_entries < samples.slots || decl.key_size != 4 {
        return unfit("it has no room for packets");
    }
    if !samples.slots.is_power_of_two() {
        return unfit("its slots are not a power of two");
    }
    let body = &mut module.funcs[func];
    let entry = body.entry();
    let Some(&context) = body.blocks[entry].params.first() else {
        return unfit("the program has no context to keep packets of");
    };
    SampleEmitter { samples, context }.insert(body, entry, keep);
    Ok(())
}

struct SampleEmitter<'s> {
    samples: &'s SampleBuffer,
    context: Value,
}

impl SampleEmitter<'_> {
    fn insert(&self, func: &mut Function, entry: Block, keep: SampleMode) {
        let rest = split_block(func, entry, 0);
        let counted = insert_block(func, rest);
        let mut at = func.at_end(entry);
        let zero = at.iconst(0);
        let first = self.slot(&mut at, zero);
        unless(&mut at, Cond::Eq, first, zero, rest, counted);
        let mut at = func.at_end(counted);
        let count = load(&mut at, first, SampleBuffer::COUNT, Size::Dw);
        add(&mut at, first, SampleBuffer::COUNT, 1);
        match keep {
            SampleMode::Packets => self.choose(func, counted, count, rest),
            SampleMode::Count => {
                at.effect(Op::Jump {}, [], [BlockCall::new(rest)]);
            }
        }
    }

    /// Decides if this packet is kept, and in which slot.
    fn choose(&self, func: &mut Function, counted: Block, count: Value, rest: Block) {
        let [late, lucky, keep] = std::array::from_fn(|_| insert_block(func, rest));
        let mut at = func.at_end(counted);
        let slots = at.iconst(self.samples.slots.into());
        let targets = [BlockCall { block: keep, args: [count].into_iter().collect() }, BlockCall::new(late)];
        at.effect(branch(Cond::Lt, Size::Dw), [count, slots], targets);
        let mut at = func.at_end(late);
        let random = at.value(Op::Helper { id: id::GET_PRANDOM_U32 }, [], Type::I64);
        let mask = at.iconst(ONE_IN - 1);
        let drawn = at.value(alu(AluOp::And), [random, mask], Type::I64);
        let zero = at.iconst(0);
        unless(&mut at, Cond::Ne, drawn, zero, rest, lucky);
        let mut at = func.at_end(lucky);
        let (shift, mask) =
            (at.iconst(ONE_IN.trailing_zeros().into()), at.iconst(i64::from(self.samples.slots) - 1));
        let high = at.value(alu(AluOp::Rsh), [random, shift], Type::I64);
        let slot = at.value(alu(AluOp::And), [high, mask], Type::I64);
        at.effect(Op::Jump {}, [], [BlockCall { block: keep, args: [slot].into_iter().collect() }]);
        let slot = func.add_param(keep, Type::I64);
        self.keep(func, keep, slot, rest);
    }

    /// Writes the packet into a slot, and goes to `rest`.
    fn keep(&self, func: &mut Function, keep: Block, slot: Value, rest: Block) {
        let [sized, long, copy, kept] = std::array::from_fn(|_| insert_block(func, rest));
        let mut at = func.at_end(keep);
        let address = self.slot(&mut at, slot);
        let zero = at.iconst(0);
        unless(&mut at, Cond::Eq, address, zero, rest, sized);
        let mut at = func.at_end(sized);
        let length = match self.samples.kind {
            PacketKind::Xdp => at.value(Op::Helper { id: id::XDP_GET_BUFF_LEN }, [self.context], Type::I64),
            PacketKind::Skb => load(&mut at, self.context, 0, Size::W),
        };
        let shortest = at.iconst(SHORTEST);
        unless(&mut at, Cond::Lt, length, shortest, rest, long);
        let mut at = func.at_end(long);
        let longest = at.iconst(SampleBuffer::LONGEST.into());
        unless(&mut at, Cond::Gt, length, longest, rest, copy);
        let mut at = func.at_end(copy);
        let (zero, offset) = (at.iconst(0), at.iconst(SampleBuffer::DATA.into()));
        let data = at.value(alu(AluOp::Add), [address, offset], Type::Ptr(Prov::MapValue(self.samples.map)));
        // Both take context, offset, destination and length.
        let id = if self.samples.kind == PacketKind::Xdp { id::XDP_LOAD_BYTES } else { id::SKB_LOAD_BYTES };
        let failed = at.value(Op::Helper { id }, [self.context, zero, data, length], Type::I64);
        unless(&mut at, Cond::Ne, failed, zero, rest, kept);
        let mut at = func.at_end(kept);
        for (n, &field) in (0..).zip(self.samples.kind.fields()) {
            let value = load(&mut at, self.context, field, Size::W);
            store(&mut at, address, SampleBuffer::FIELDS + 4 * n, Size::W, value);
        }
        store(&mut at, address, SampleBuffer::LENGTH, Size::W, length);
        at.effect(Op::Jump {}, [], [BlockCall::new(rest)]);
    }

    fn slot(&self, at: &mut FuncCursor<'_>, number: Value) -> Value {
        let key = [KeyPiece { offset: 0, size: Size::W }].into_iter().collect();
        let map = self.samples.map;
        at.value(Op::MapLookup { map, key }, [number], Type::Ptr(Prov::MapValueOrNull(map)))
    }
}

const fn alu(op: AluOp) -> Op {
    Op::Alu { op, width: Width::W64 }
}

/// Goes to `leave` if the condition holds, else to `stay`.
fn unless(at: &mut FuncCursor<'_>, cond: Cond, a: Value, b: Value, leave: Block, stay: Block) {
    at.effect(branch(cond, Size::Dw), [a, b], [BlockCall::new(leave), BlockCall::new(stay)]);
}
