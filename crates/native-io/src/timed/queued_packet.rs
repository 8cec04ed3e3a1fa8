//! A packet that waits.

use millstream_native_runtime::packet::PacketExtent;

/// A waiting packet.
#[derive(Debug)]
pub(super) struct QueuedPacket {
    pub(super) bytes: Vec<u8>,
    pub(super) carried: PacketExtent,
    pub(super) source: usize,
    pub(super) number: u64,
    pub(super) came: u64,
    /// Its lane, or its last one.
    pub(super) lane: usize,
}

impl QueuedPacket {
    pub(super) fn length(&self) -> usize {
        self.carried.packet_length()
    }
}
