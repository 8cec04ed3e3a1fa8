//! Packets in memory that native code reads: a descriptor each, and a buffer with room on both sides.
//!
//! The descriptor begins with the fields of `struct xdp_md`, of 32 bits each, so that a program reads packet pointers as
//! in the kernel, whatever way the context came to it; buffers therefore lie below 4 GiB. Room before and behind the
//! data is the kernel's for `BPF_PROG_TEST_RUN`, and so are the limits of the helpers that use it.

mod lent;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::region::Region;
use crate::fields::Fields;
#[cfg(feature = "dpdk")]
pub(crate) use lent::FRONT;
pub(crate) use lent::Lying;

/// `XDP_PACKET_HEADROOM`.
pub(crate) const HEADROOM: usize = 256;
/// Bytes of a page that packet and headroom may use, besides `struct skb_shared_info`. An odd number of cache
/// lines, so that the headers of a batch do not compete for one set of the first-level cache.
pub(crate) const BUFFER: usize = 4096 - 320;
/// The longest packet.
pub const LONGEST: usize = BUFFER - HEADROOM;
/// `sizeof(struct xdp_frame)`: headroom that the kernel keeps to itself.
pub(crate) const XDP_FRAME: u32 = 40;
pub(crate) const ETH_HLEN: u32 = 14;
/// What drivers without metadata say, which C libraries do not know.
const ENOTSUPP: i64 = 524;

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
    /// Where its buffer begins, which has [`BUFFER`] bytes.
    start: u32,
    /// What the program returned, cut to 32 bits.
    pub(crate) verdict: u32,
    /// Where to, if that is to redirect: interface or key.
    pub(crate) target: u32,
    /// Which packet of the batch it was, or is a copy of.
    origin: u32,
    /// Whether it is a graph's: [`Packet::data_meta`] says how far there is room in front, and there is no metadata.
    open: bool,
    /// How far fetching ahead has come for it: for code only, which believes nothing of it.
    ahead: [u32; WALKS],
}

/// What packets that came together have alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Came {
    /// The interface, or the source of a graph.
    pub(crate) ingress: u32,
    /// Its queue.
    pub(crate) queue: u32,
    /// Whether they are a graph's.
    pub(crate) open: bool,
}

/// Look-ups that code notes in a packet how far it has fetched for.
pub(crate) const WALKS: usize = 4;

/// A packet that a graph has sent, and by which output.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) packet: *mut Packet,
    pub(crate) output: u64,
}

/// Where a packet lies in its buffer, of which it takes bytes from the beginning to its own end along: what was stripped from it, and what code keeps there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried {
    /// Bytes from the buffer's beginning to where there is room, to the packet, and to its end.
    room: u32,
    data: u32,
    end: u32,
}

impl Carried {
    /// Bytes that are taken along.
    pub(crate) fn length(&self) -> usize {
        self.end as usize
    }

    /// Bytes of the packet itself.
    pub(crate) fn packet_length(&self) -> usize {
        (self.end - self.data) as usize
    }

    /// Bytes in front of it.
    pub(crate) fn front(&self) -> usize {
        self.data as usize
    }

    /// Where the code of graphs keeps so many bytes while a packet waits: in the room that packets never use, if they fit.
    pub(crate) fn kept(&self, bytes: usize) -> usize {
        if bytes <= XDP_FRAME as usize { self.room as usize - bytes } else { self.room as usize }
    }
}

/// Offset of [`Packet::verdict`], for native code.
pub(crate) const VERDICT: usize = std::mem::offset_of!(Packet, verdict);

/// Offset of [`Packet::target`].
pub(crate) const TARGET: usize = std::mem::offset_of!(Packet, target);

/// Offset of [`Packet::ahead`].
pub(crate) const AHEAD: usize = std::mem::offset_of!(Packet, ahead);

/// Bytes of a [`Sent`].
pub(crate) const SENT_SIZE: usize = size_of::<Sent>();

/// Offsets of a packet's first byte and of its end.
pub(crate) const fn bounds_offsets() -> [usize; 2] {
    [std::mem::offset_of!(Packet, data), std::mem::offset_of!(Packet, data_end)]
}

/// Offsets of [`Packet::data_meta`], [`Packet::start`] and [`Packet::open`].
pub(crate) const HEAD: [usize; 3] = [
    std::mem::offset_of!(Packet, data_meta),
    std::mem::offset_of!(Packet, start),
    std::mem::offset_of!(Packet, open),
];

impl Packet {
    /// A packet has come, which lies there, in a buffer that begins at `start`. Of the other fields only those are written that somebody looks at; what the code
    /// writes itself, and what is alike for all packets of this place, was written before.
    #[inline(always)]
    fn come(&mut self, fields: Fields, came: Came, start: u32, place: Range<u32>) {
        (self.data, self.data_end) = (place.start, place.end);
        if fields.has(Fields::ROOM) {
            self.data_meta = if came.open { start.wrapping_add(XDP_FRAME) } else { place.start };
            (self.start, self.open) = (start, came.open);
        }
        if fields.has(Fields::INGRESS) {
            self.ingress = came.ingress;
        }
        if fields.has(Fields::QUEUE) {
            self.rx_queue = came.queue;
        }
        if fields.has(Fields::TARGET) {
            self.target = 0;
        }
    }

    /// `bpf_xdp_adjust_head`, but for moving the metadata: the new place of the data, or `None` where the kernel says
    /// `EINVAL`.
    pub(crate) fn head_moved(&self, delta: i32) -> Option<u32> {
        let metadata = if self.open { 0 } else { self.data - self.data_meta };
        let data = self.data.checked_add_signed(delta)?;
        (data >= self.start + XDP_FRAME + metadata && data + ETH_HLEN <= self.data_end).then_some(data)
    }

    /// Where its bytes are, and how many.
    pub(crate) fn extent(&self) -> (u32, usize) {
        (self.data, self.data_end.wrapping_sub(self.data) as usize)
    }

    /// Which packet of its batch it was, or is a copy of.
    pub(crate) fn origin(&self) -> u32 {
        self.origin
    }

    /// Addresses of metadata, data and end.
    pub(crate) fn bounds(&self) -> (u32, u32, u32) {
        (if self.open { self.data } else { self.data_meta }, self.data, self.data_end)
    }

    pub(crate) fn set_head(&mut self, meta: u32, data: u32) {
        self.data = data;
        if !self.open {
            self.data_meta = meta;
        }
    }

    /// `bpf_xdp_adjust_tail`: the new end; what is new is to be zeroed by the caller.
    pub(crate) fn tail_moved(&self, delta: i32) -> Option<u32> {
        let end = self.data_end.checked_add_signed(delta)?;
        (end <= self.start + BUFFER as u32 && end >= self.data + ETH_HLEN).then_some(end)
    }

    pub(crate) fn set_end(&mut self, end: u32) {
        self.data_end = end;
    }

    /// Becomes a copy of another packet, at the same place of its own buffer: from where to where bytes are to be copied, and how many. Those in front
    /// of the packet are among them: what was stripped may be wanted again.
    pub(crate) fn become_copy(&mut self, other: &Packet) -> (u32, u32, usize) {
        let moved = |address: u32| address - other.start + self.start;
        (self.data, self.data_end, self.data_meta) =
            (moved(other.data), moved(other.data_end), moved(other.data_meta));
        (self.ingress, self.origin, self.open) = (other.ingress, other.origin, other.open);
        (other.data_meta, self.data_meta, (other.data_end - other.data_meta) as usize)
    }

    /// `bpf_xdp_adjust_meta`; the error is the kernel's.
    pub(crate) fn adjust_meta(&mut self, delta: i32) -> Result<(), i64> {
        if self.open {
            return Err(-ENOTSUPP);
        }
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
    /// For packets that are copied in, and for copies.
    buffers: Region,
    /// Where packets lie that are worked on in the buffers of a driver.
    lent: Option<Arc<Region>>,
    /// Those that come in, then those that copies are made in.
    packets: Vec<Packet>,
    /// What is written of descriptors beside where packets lie.
    fields: Fields,
    /// The interface or source that all came by; 0 where each descriptor says its own.
    ingress: u32,
    capacity: usize,
    len: usize,
    /// What a graph has sent, in order; room for every packet there can be.
    sent: Vec<Sent>,
    sent_len: usize,
    copies: usize,
}

impl Batch {
    /// Room for `capacity` packets.
    ///
    /// # Errors
    /// If the system has no room below 2 GiB.
    pub fn new(capacity: usize) -> io::Result<Batch> {
        Batch::with_copies(capacity, 0)
    }

    /// Room for `capacity` packets of a graph, and for `copies` copies of them.
    ///
    /// # Errors
    /// As for [`Batch::new`].
    pub fn with_copies(capacity: usize, copies: usize) -> io::Result<Batch> {
        let all = capacity + copies;
        let buffers = Region::low(all * BUFFER)?;
        let base = buffers.address() as u32;
        let packet = |at: usize| {
            let start = base + (at * BUFFER) as u32;
            Packet { start, origin: at as u32, ..Packet::default() }
        };
        let none = Sent { packet: std::ptr::null_mut(), output: 0 };
        Ok(Batch {
            buffers,
            lent: None,
            packets: (0..all).map(packet).collect(),
            fields: Fields::ALL,
            ingress: 0,
            capacity,
            len: 0,
            sent: vec![none; if copies == 0 { 0 } else { all }],
            sent_len: 0,
            copies: 0,
        })
    }

    /// Packets that it has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
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

    /// Of the descriptors of what comes from now on only these fields are written, since a program looks at no others.
    pub fn expect(&mut self, fields: Fields) {
        self.fields = fields;
    }

    /// The interface or source that all packets came by, if none of their descriptors has to say so.
    pub(crate) fn ingress(&self) -> u32 {
        self.ingress
    }

    /// Copies a packet in, as received on interface `ingress`; `false` if the batch is full or the packet shorter than an
    /// Ethernet header or longer than [`LONGEST`].
    pub fn push(&mut self, bytes: &[u8], ingress: u32) -> bool {
        let fits = (ETH_HLEN as usize..=LONGEST).contains(&bytes.len());
        fits && self.put(bytes, ingress, false)
    }

    /// As [`Batch::push`] for a graph, which takes packets of any length and may use the room in front of them.
    pub fn push_open(&mut self, bytes: &[u8], ingress: u32) -> bool {
        bytes.len() <= LONGEST && self.put(bytes, ingress, true)
    }

    fn put(&mut self, bytes: &[u8], ingress: u32, open: bool) -> bool {
        if self.len == self.capacity {
            return false;
        }
        let from = self.len * BUFFER;
        let start = self.buffers.address() as u32 + from as u32;
        let data = start + HEADROOM as u32;
        let at = from + HEADROOM;
        self.buffers.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        let (came, place) = (Came { ingress, queue: 0, open }, data..data + bytes.len() as u32);
        // Each says by itself where it came from: others may be in the batch.
        self.packets[self.len].come(self.fields.and(Fields::INGRESS), came, start, place);
        self.ingress = 0;
        self.len += 1;
        true
    }

    /// The bytes of packet `at` as they are now.
    pub fn bytes(&self, at: usize) -> &[u8] {
        self.bytes_of(&self.packets[..self.len][at])
    }

    fn bytes_of(&self, packet: &Packet) -> &[u8] {
        self.bytes_between(packet.data..packet.data_end)
    }

    fn bytes_between(&self, bounds: Range<u32>) -> &[u8] {
        let region = match &self.lent {
            Some(lent) if lent.holds(bounds.start) => lent,
            _ => &self.buffers,
        };
        let from = bounds.start - region.address() as u32;
        region.part(from as usize, (bounds.end - bounds.start) as usize)
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

    /// For a graph: the descriptors of what came in, those for copies, and the list of what is sent.
    pub(crate) fn parts(&mut self) -> (&mut [Packet], &mut [Packet], &mut [Sent]) {
        let (all, copies) = self.packets.split_at_mut(self.capacity);
        (&mut all[..self.len], copies, &mut self.sent)
    }

    /// What a graph has done: how many packets it sent, how many copies it made.
    pub(crate) fn set_done(&mut self, sent: usize, copies: usize) {
        (self.sent_len, self.copies) = (sent, copies);
    }

    /// Copies that the graph has made.
    pub fn copies(&self) -> usize {
        self.copies
    }

    /// What the graph has sent, in order: bytes, output, and which packet of the batch it was.
    pub fn sent(&self) -> impl Iterator<Item = (&[u8], u64, usize)> {
        (0..self.sent_len).filter_map(|at| self.sent_at(at))
    }

    /// Of these the one with this number.
    pub fn sent_at(&self, at: usize) -> Option<(&[u8], u64, usize)> {
        let (at, output) = self.sent_which(at)?;
        let packet = &self.packets[at];
        Some((self.bytes_of(packet), output, packet.origin as usize))
    }

    /// Of these the place of its descriptor, below the capacity unless it is a copy, and the output.
    fn sent_which(&self, at: usize) -> Option<(usize, u64)> {
        let sent = self.sent[..self.sent_len].get(at)?;
        let at = (sent.packet as usize - self.packets.as_ptr() as usize) / size_of::<Packet>();
        (at < self.packets.len()).then_some((at, sent.output))
    }

    /// Of what the graph has sent, all that a packet takes along to another batch.
    pub(crate) fn carried(&self, at: usize) -> Option<(&[u8], Carried)> {
        let (at, _) = self.sent_which(at)?;
        let Packet { data, data_end, data_meta, start, .. } = self.packets[at];
        let carried = Carried { room: data_meta - start, data: data - start, end: data_end - start };
        Some((self.bytes_between(start..data_end), carried))
    }

    /// Takes a packet with all that it takes along; `false` if the batch is full.
    pub(crate) fn push_carried(&mut self, bytes: &[u8], carried: Carried, ingress: u32) -> bool {
        if self.len == self.capacity || bytes.len() > BUFFER {
            return false;
        }
        let from = self.len * BUFFER;
        let start = self.buffers.address() as u32 + from as u32;
        self.buffers.bytes_mut()[from..from + bytes.len()].copy_from_slice(bytes);
        self.packets[self.len] = Packet {
            data: start + carried.data,
            data_end: start + carried.end,
            data_meta: start + carried.room,
            ingress,
            start,
            origin: self.len as u32,
            open: true,
            ..Packet::default()
        };
        self.len += 1;
        true
    }

    /// How many packets the graph has sent.
    pub fn sent_len(&self) -> usize {
        self.sent_len
    }
}
