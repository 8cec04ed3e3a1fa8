//! Packets in memory that native code reads: a descriptor each, and a buffer with room on both sides.
//!
//! The descriptor begins with the fields of `struct xdp_md`, of 32 bits each, so that a program reads packet pointers as
//! in the kernel, whatever way the context came to it; buffers therefore lie below 4 GiB. Room before and behind the
//! data is the kernel's for `BPF_PROG_TEST_RUN`, and so are the limits of the helpers that use it.

use std::io;

use super::region::Region;

/// `XDP_PACKET_HEADROOM`.
pub(crate) const HEADROOM: usize = 256;
/// Bytes of a page that packet and headroom may use, besides `struct skb_shared_info`. An odd number of cache
/// lines, so that the headers of a batch do not compete for one set of the first-level cache.
pub(crate) const BUFFER: usize = 4096 - 320;
/// The longest packet.
pub const LONGEST: usize = BUFFER - HEADROOM;
/// `sizeof(struct xdp_frame)`: headroom that the kernel keeps to itself.
const XDP_FRAME: u32 = 40;
const ETH_HLEN: u32 = 14;

/// A packet's descriptor. All addresses are of bytes in its buffer.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Packet {
    data: u32,
    data_end: u32,
    data_meta: u32,
    /// `ingress_ifindex`.
    pub(crate) ingress: u32,
    rx_queue: u32,
    egress: u32,
    start: u32,
    limit: u32,
    /// What the program returned, cut to 32 bits.
    pub(crate) verdict: u32,
    /// Where to, if that is to redirect: interface or key.
    pub(crate) target: u32,
}

/// Offset of [`Packet::verdict`], for native code.
pub(crate) const VERDICT: usize = std::mem::offset_of!(Packet, verdict);

/// Offset of [`Packet::target`].
pub(crate) const TARGET: usize = std::mem::offset_of!(Packet, target);

impl Packet {
    /// `bpf_xdp_adjust_head`, but for moving the metadata: the new place of the data, or `None` where the kernel says
    /// `EINVAL`.
    pub(crate) fn head_moved(&self, delta: i32) -> Option<u32> {
        let metadata = self.data - self.data_meta;
        let data = self.data.checked_add_signed(delta)?;
        (data >= self.start + XDP_FRAME + metadata && data + ETH_HLEN <= self.data_end).then_some(data)
    }

    /// Addresses of metadata, data and end.
    pub(crate) fn bounds(&self) -> (u32, u32, u32) {
        (self.data_meta, self.data, self.data_end)
    }

    pub(crate) fn set_head(&mut self, meta: u32, data: u32) {
        (self.data_meta, self.data) = (meta, data);
    }

    /// `bpf_xdp_adjust_tail`: the new end; what is new is to be zeroed by the caller.
    pub(crate) fn tail_moved(&self, delta: i32) -> Option<u32> {
        let end = self.data_end.checked_add_signed(delta)?;
        (end <= self.limit && end >= self.data + ETH_HLEN).then_some(end)
    }

    pub(crate) fn set_end(&mut self, end: u32) {
        self.data_end = end;
    }

    /// `bpf_xdp_adjust_meta`; the error is the kernel's.
    pub(crate) fn adjust_meta(&mut self, delta: i32) -> Result<(), i64> {
        let meta = self.data_meta.checked_add_signed(delta);
        let meta = meta.filter(|m| *m >= self.start + XDP_FRAME && *m <= self.data);
        let meta = meta.ok_or(-i64::from(libc::EINVAL))?;
        let len = self.data - meta;
        if !len.is_multiple_of(4) || len > 255 {
            return Err(-i64::from(libc::EACCES));
        }
        self.data_meta = meta;
        Ok(())
    }
}

/// The buffers of a batch and their descriptors.
#[derive(Debug)]
pub struct Batch {
    buffers: Region,
    packets: Vec<Packet>,
    len: usize,
}

impl Batch {
    /// Room for `capacity` packets.
    ///
    /// # Errors
    /// If the system has no room below 2 GiB.
    pub fn new(capacity: usize) -> io::Result<Batch> {
        let buffers = Region::low(capacity * BUFFER)?;
        Ok(Batch { buffers, packets: vec![Packet::default(); capacity], len: 0 })
    }

    /// Packets that it has room for.
    pub fn capacity(&self) -> usize {
        self.packets.len()
    }

    /// Packets in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Copies a packet in, as received on interface `ingress`; `false` if the batch is full or the packet shorter than an
    /// Ethernet header or longer than [`LONGEST`].
    pub fn push(&mut self, bytes: &[u8], ingress: u32) -> bool {
        let fits = (ETH_HLEN as usize..=LONGEST).contains(&bytes.len());
        if self.len == self.packets.len() || !fits {
            return false;
        }
        let from = self.len * BUFFER;
        let start = self.buffers.address() as u32 + from as u32;
        let data = start + HEADROOM as u32;
        let at = from + HEADROOM;
        self.buffers.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        self.packets[self.len] = Packet {
            data,
            data_end: data + bytes.len() as u32,
            data_meta: data,
            ingress,
            start,
            limit: start + BUFFER as u32,
            ..Packet::default()
        };
        self.len += 1;
        true
    }

    /// The bytes of packet `at` as they are now.
    pub fn bytes(&self, at: usize) -> &[u8] {
        let packet = &self.packets[..self.len][at];
        let base = self.buffers.address() as u32;
        &self.buffers.bytes()[(packet.data - base) as usize..(packet.data_end - base) as usize]
    }

    /// What the program said of packet `at`.
    pub fn verdict(&self, at: usize) -> u32 {
        self.packets[..self.len][at].verdict
    }

    /// Where packet `at` goes, if its verdict is to redirect: the interface.
    pub fn target(&self, at: usize) -> u32 {
        self.packets[..self.len][at].target
    }

    /// The descriptors, for native code.
    pub(crate) fn packets_mut(&mut self) -> &mut [Packet] {
        &mut self.packets[..self.len]
    }
}
