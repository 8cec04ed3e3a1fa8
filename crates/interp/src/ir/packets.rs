//! Packets as values: the machine's own, copies of it, and packets taken from queues.
//!
//! The machine's packet goes by any address in it or by the context's; every other one by the address of its
//! first byte.

use millstream_ir::QueueEnd;

use crate::env::SideEffect;
use crate::machine::{DynamicObject, MemoryLocation};
use crate::{Fault, MachineState};

impl MachineState {
    /// The bytes of a packet.
    fn packet_bytes(&mut self, packet: u64) -> Result<Vec<u8>, Fault> {
        match MemoryLocation::of(packet) {
            Some(MemoryLocation::Packet(_) | MemoryLocation::Context(0)) => Ok(self.packet.bytes().to_vec()),
            _ => match self.extra_at(packet) {
                Some(extra) => Ok(extra.bytes.clone()),
                None => Err(Fault::Access { addr: packet, size: 0, write: false, why: "not a packet" }),
            },
        }
    }

    /// Takes a packet away from the program: later accesses fail.
    fn take_packet(&mut self, packet: u64) -> Result<Vec<u8>, Fault> {
        let bytes = self.packet_bytes(packet)?;
        match self.extra_at(packet) {
            Some(extra) => extra.live = false,
            None => {
                self.packet.set(&[]);
                self.sync_context();
            }
        }
        Ok(bytes)
    }

    fn new_packet(&mut self, bytes: Vec<u8>) -> u64 {
        self.add_extra(DynamicObject { bytes, ringbuf: None, live: true })
    }

    pub(super) fn emit_packet(&mut self, packet: u64, port: u64) -> Result<(), Fault> {
        let data = self.take_packet(packet)?;
        self.env.events.push(SideEffect::Emit { port, data });
        Ok(())
    }

    pub(super) fn clone_packet(&mut self, packet: u64) -> Result<u64, Fault> {
        let bytes = self.packet_bytes(packet)?;
        Ok(self.new_packet(bytes))
    }

    pub(super) fn enqueue_packet(&mut self, packet: u64, queue: u64, end: QueueEnd) -> Result<(), Fault> {
        let bytes = self.take_packet(packet)?;
        let queue = self.env.queues.entry(queue).or_default();
        match end {
            QueueEnd::Front => queue.push_front(bytes),
            QueueEnd::Back => queue.push_back(bytes),
        }
        Ok(())
    }

    /// Only the machine's own packet has room on its sides.
    pub(super) fn set_bounds(&mut self, packet: u64, data: u64, end: u64) -> Result<(), Fault> {
        let offset = |address| match MemoryLocation::of(address) {
            Some(MemoryLocation::Packet(offset)) => Ok(offset as usize),
            _ => Err(Fault::Access { addr: address, size: 0, write: false, why: "not in the packet" }),
        };
        let (from, to) = (offset(data)?, offset(end)?);
        let own = matches!(
            MemoryLocation::of(packet),
            Some(MemoryLocation::Packet(_) | MemoryLocation::Context(0))
        );
        if !own || !self.packet.set_bounds(from, to) {
            return Err(Fault::Access { addr: data, size: 0, write: true, why: "no bounds of a packet" });
        }
        self.sync_context();
        Ok(())
    }

    pub(super) fn pull_packet(&mut self, queue: u64) -> u64 {
        let bytes = self.env.queues.get_mut(&queue).and_then(|held| held.pop_front());
        bytes.map_or(0, |bytes| self.new_packet(bytes))
    }
}
