//! The machine: all memory that a program can address.
//!
//! An address carries its object in the upper 20 bits and a biased offset in the lower 44, so that arithmetic
//! on it works as on a pointer and an access can be checked against the object it was made for. Packets are
//! object 0: their addresses fit in the 32-bit fields of the context structures, as programs expect.

use std::collections::BTreeMap;

use millstream_isa::ByteOrder;

use crate::made_up_memory::{PAGE, havoc_page};
use crate::maps::MapSet;
use crate::packet::{ContextKind, PacketBuffer};
use crate::{ExecutionEnv, Fault, MapId};

/// Bytes of a stack frame.
pub const STACK_SIZE: usize = 512;
/// Nested frames, as in the kernel.
pub(crate) const MAX_FRAMES: usize = 8;

const OFFSET_BITS: u32 = 44;
/// Offset 0 of every object, so that no object is at address 0.
const BIAS: u64 = 0x1_0000;
const PACKET: u64 = 0;
const CONTEXT: u64 = 1;
const STACKS: u64 = 2;
const FUNCTIONS: u64 = 0x80;
const MAP_OBJECTS: u64 = 0x1_0000;
const MAP_VALUES: u64 = 0x2_0000;
const EXTRAS: u64 = 0x8_0000;
const KERNEL: u64 = 0xf_0000;
/// Extra objects that the address layout has room for.
const MAX_EXTRAS: usize = (KERNEL - EXTRAS) as usize;

const fn address(object: u64, offset: u64) -> u64 {
    (object << OFFSET_BITS) + BIAS + offset
}

/// Object that an address points into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryLocation {
    /// The packet's buffer.
    Packet(u64),
    /// The context.
    Context(u64),
    /// A stack frame, outermost first; offset 0 is its lowest byte.
    Stack(usize, u64),
    /// A function of a program, by slot.
    Function(u64),
    /// A map itself; nothing there can be read.
    Map(MapId),
    /// The values of a map; see [`MapSet`] for the offset.
    Value(MapId, u64),
    /// Another object.
    Extra(usize, u64),
    /// The kernel's memory, by address.
    Kernel(u64),
}

impl MemoryLocation {
    /// Decodes an address; `None` if it is below every offset of its object.
    pub fn of(addr: u64) -> Option<MemoryLocation> {
        let object = addr >> OFFSET_BITS;
        if object >= KERNEL {
            return Some(MemoryLocation::Kernel(addr));
        }
        let offset = (addr & ((1 << OFFSET_BITS) - 1)).checked_sub(BIAS)?;
        Some(match object {
            PACKET => MemoryLocation::Packet(offset),
            CONTEXT => MemoryLocation::Context(offset),
            STACKS..FUNCTIONS => MemoryLocation::Stack((object - STACKS) as usize, offset),
            FUNCTIONS..MAP_OBJECTS => MemoryLocation::Function(offset),
            MAP_OBJECTS..MAP_VALUES => MemoryLocation::Map(MapId((object - MAP_OBJECTS) as u32)),
            MAP_VALUES..EXTRAS => MemoryLocation::Value(MapId((object - MAP_VALUES) as u32), offset),
            _ => MemoryLocation::Extra((object - EXTRAS) as usize, offset),
        })
    }
}

/// A non-standard object: raw memory, a ring buffer record, a callback's key.
#[derive(Clone, Debug)]
pub(crate) struct DynamicObject {
    pub(crate) bytes: Vec<u8>,
    /// The ring buffer that the record belongs to.
    pub(crate) ringbuf: Option<MapId>,
    pub(crate) live: bool,
}

/// All state that a program runs on.
pub struct MachineState {
    /// The packet.
    pub packet: PacketBuffer,
    context: Vec<u8>,
    kind: ContextKind,
    stacks: Vec<[u8; STACK_SIZE]>,
    extras: Vec<DynamicObject>,
    /// Pages of the kernel's memory that were accessed.
    kernel: BTreeMap<u64, Vec<u8>>,
    /// Number of answers given for each helper whose made-up answers may differ from call to call.
    pub(crate) answers: BTreeMap<i32, u64>,
    /// The maps.
    pub maps: MapSet,
    /// Time, randomness, events.
    pub env: ExecutionEnv,
    /// Instructions executed since the machine was made, or since this was last set.
    pub executed: u64,
    /// Instructions that one run may execute.
    pub fuel: u64,
    /// Execution counts of slots of BPF programs, by slot number; slots beyond the vector's length are not
    /// counted.
    pub visits: Vec<u64>,
    pub(crate) tail_calls: u32,
}

impl Default for MachineState {
    fn default() -> MachineState {
        MachineState::new(ContextKind::Raw)
    }
}

impl MachineState {
    /// A machine without maps, with an empty packet and a zeroed context of this kind.
    pub fn new(kind: ContextKind) -> MachineState {
        let mut machine = MachineState {
            packet: PacketBuffer::new(&[]),
            context: vec![0; kind.size()],
            kind,
            stacks: vec![[0; STACK_SIZE]; MAX_FRAMES],
            extras: Vec::new(),
            kernel: BTreeMap::new(),
            answers: BTreeMap::new(),
            maps: MapSet::default(),
            env: ExecutionEnv::default(),
            executed: 0,
            fuel: 100_000_000,
            visits: Vec::new(),
            tail_calls: 0,
        };
        machine.sync_context();
        machine
    }

    /// The same machine with memory of this byte order. Maps are added after that.
    pub fn with_byte_order(mut self, order: ByteOrder) -> MachineState {
        self.maps.order = order;
        self.sync_context();
        self
    }

    /// Byte order of the memory.
    pub fn byte_order(&self) -> ByteOrder {
        self.maps.order
    }

    /// Sets the packet and clears what an earlier run left: events, redirect, extra objects.
    pub fn reset(&mut self, packet: &[u8]) {
        self.packet.set(packet);
        self.extras.clear();
        self.kernel.clear();
        self.answers.clear();
        self.env.events.clear();
        self.env.redirect = None;
        self.tail_calls = 0;
        self.maps.quiesce();
        self.sync_context();
    }

    /// The kind of the context.
    pub fn context_kind(&self) -> ContextKind {
        self.kind
    }

    /// The context's bytes.
    pub fn context(&self) -> &[u8] {
        &self.context
    }

    /// The context's bytes, to be set before a run. Packet pointers in it are set by the machine.
    pub fn context_mut(&mut self) -> &mut Vec<u8> {
        &mut self.context
    }

    /// A 32-bit field of the context; 0 outside of it.
    pub(crate) fn context_field(&self, offset: usize) -> u32 {
        let bytes = self.context.get(offset..).and_then(|rest| rest.first_chunk::<4>());
        bytes.map_or(0, |bytes| self.byte_order().number(bytes) as u32)
    }

    /// Sets a 32-bit field of the context, if it has one there.
    pub fn set_context_field(&mut self, offset: usize, value: u32) {
        let order = self.byte_order();
        if let Some(field) = self.context.get_mut(offset..).and_then(|rest| rest.first_chunk_mut()) {
            *field = order.bytes_of_u32(value);
        }
    }

    /// Address of the context.
    pub fn context_address(&self) -> u64 {
        address(CONTEXT, 0)
    }

    /// Address of the packet's first byte.
    pub fn packet_address(&self) -> u64 {
        address(PACKET, self.packet.bounds().1 as u64)
    }

    /// Puts the packet's place into the context.
    pub fn sync_context(&mut self) {
        let Some(fields) = self.kind.packet_fields() else { return };
        let (meta, data, end) = self.packet.bounds();
        for (field, offset) in fields.into_iter().zip([data, end, meta]) {
            self.set_context_field(field, address(PACKET, offset as u64) as u32);
        }
        if self.kind == ContextKind::Skb {
            self.set_context_field(0, (end - data) as u32);
        }
    }

    /// Address just above stack frame `depth`: the frame pointer.
    pub(crate) fn frame_pointer(depth: usize) -> u64 {
        address(STACKS + depth as u64, STACK_SIZE as u64)
    }

    /// Zeroes a frame before use.
    pub(crate) fn clear_frame(&mut self, depth: usize) {
        if let Some(frame) = self.stacks.get_mut(depth) {
            frame.fill(0);
        }
    }

    /// Address of the function that starts at a slot of program `program`.
    pub fn function_address(program: usize, slot: usize) -> u64 {
        address(FUNCTIONS, (program as u64) << 32 | slot as u64)
    }

    /// Program and slot of a function's address.
    pub fn function_at(addr: u64) -> Option<(usize, usize)> {
        match MemoryLocation::of(addr)? {
            MemoryLocation::Function(offset) => Some(((offset >> 32) as usize, offset as u32 as usize)),
            _ => None,
        }
    }

    /// The address that stands for a map.
    pub fn map_address(map: MapId) -> u64 {
        address(MAP_OBJECTS + u64::from(map.0), 0)
    }

    /// The map that an address stands for.
    pub fn map_at(addr: u64) -> Option<MapId> {
        match MemoryLocation::of(addr)? {
            MemoryLocation::Map(map) => Some(map),
            _ => None,
        }
    }

    /// Address of a byte of the first value of a map: what `ld_imm64` of a map value loads.
    pub fn value_address_of(map: MapId, offset: u32) -> u64 {
        MachineState::value_address(map, u64::from(offset))
    }

    /// Address of an offset among the values of a map.
    pub(crate) fn value_address(map: MapId, offset: u64) -> u64 {
        address(MAP_VALUES + u64::from(map.0), offset)
    }

    /// Adds an object of its own and gives its address; 0 if there is no room for more.
    pub fn add_memory(&mut self, bytes: Vec<u8>) -> u64 {
        self.add_extra(DynamicObject { bytes, ringbuf: None, live: true })
    }

    pub(crate) fn add_extra(&mut self, extra: DynamicObject) -> u64 {
        if self.extras.len() >= MAX_EXTRAS {
            return 0;
        }
        self.extras.push(extra);
        address(EXTRAS + self.extras.len() as u64 - 1, 0)
    }

    /// The extra object that starts at an address.
    pub(crate) fn extra_at(&mut self, addr: u64) -> Option<&mut DynamicObject> {
        match MemoryLocation::of(addr)? {
            MemoryLocation::Extra(at, 0) => self.extras.get_mut(at).filter(|extra| extra.live),
            _ => None,
        }
    }

    /// The `len` bytes at an address.
    ///
    /// # Errors
    /// [`Fault::Access`] where they are not all within one object.
    pub fn bytes(&mut self, addr: u64, len: u64, write: bool) -> Result<&mut [u8], Fault> {
        let fault = |why| Fault::Access { addr, size: len, write, why };
        let place = MemoryLocation::of(addr)
            .ok_or_else(|| fault(if addr < BIAS { "null" } else { "before its object" }))?;
        let size = usize::try_from(len).map_err(|_| fault("too long"))?;
        match place {
            MemoryLocation::Packet(off) => {
                self.packet.at(off as usize, size).ok_or_else(|| fault("outside of the packet"))
            }
            MemoryLocation::Context(off) => {
                part(&mut self.context, off, size).ok_or_else(|| fault("outside of the context"))
            }
            MemoryLocation::Stack(depth, off) => {
                let frame = self.stacks.get_mut(depth).ok_or_else(|| fault("no such frame"))?;
                part(frame, off, size).ok_or_else(|| fault("outside of the stack frame"))
            }
            MemoryLocation::Value(map, off) => {
                self.maps.value_at(map, off, size, write).ok_or_else(|| fault("outside of the map value"))
            }
            MemoryLocation::Extra(at, off) => {
                let extra = self.extras.get_mut(at).filter(|extra| extra.live);
                let extra = extra.ok_or_else(|| fault("no such object"))?;
                part(&mut extra.bytes, off, size).ok_or_else(|| fault("outside of its object"))
            }
            MemoryLocation::Kernel(addr) => {
                let seed = self.env.made_up.filter(|_| !write);
                let seed = seed.ok_or_else(|| fault("the kernel's memory"))?;
                let (start, off) = (addr - addr % PAGE, addr % PAGE);
                let order = self.maps.order;
                let bytes = self.kernel.entry(start).or_insert_with(|| havoc_page(seed, start, order));
                part(bytes, off, size).ok_or_else(|| fault("beyond a page of the kernel's memory"))
            }
            MemoryLocation::Function(_) => Err(fault("a function")),
            MemoryLocation::Map(_) => Err(fault("a map")),
        }
    }

    /// Reads 1, 2, 4 or 8 bytes, zero-extended.
    ///
    /// # Errors
    /// [`Fault::Access`].
    pub fn read(&mut self, addr: u64, size: millstream_isa::Size) -> Result<u64, Fault> {
        let order = self.byte_order();
        let bytes = self.bytes(addr, u64::from(size.bytes()), false)?;
        Ok(order.number(bytes))
    }

    /// Writes the low 1, 2, 4 or 8 bytes of a value.
    ///
    /// # Errors
    /// [`Fault::Access`].
    pub fn write(&mut self, addr: u64, size: millstream_isa::Size, value: u64) -> Result<(), Fault> {
        let order = self.byte_order();
        order.put(value, self.bytes(addr, u64::from(size.bytes()), true)?);
        Ok(())
    }
}

fn part(bytes: &mut [u8], offset: u64, len: usize) -> Option<&mut [u8]> {
    let start = usize::try_from(offset).ok()?;
    bytes.get_mut(start..start.checked_add(len)?)
}
