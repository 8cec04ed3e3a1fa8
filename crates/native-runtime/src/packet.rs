//! Packets in memory for native code: a descriptor each, and a buffer with room on both sides.
//!
//! A descriptor is words of 32 bits, so that a program reads packet pointers as in the kernel, however the
//! context reached it; buffers therefore lie below 4 GiB. The program's [`DescriptorLayout`] determines its
//! fields and their offsets. Room before and behind the data is the kernel's for `BPF_PROG_TEST_RUN`, and so
//! are the limits of the helpers that use it.
//!
//! Invariant: a batch has the layout of the engine that runs it: each run calls [`PacketBatch::conform`]
//! first.

mod layout;
mod zero_copy;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::region::MemoryRegion;
use crate::fields::DescriptorFieldSet;
pub use layout::WORD;
pub use layout::{DescriptorField, DescriptorLayout, LayoutPolicy};
pub use zero_copy::FRONT;
pub use zero_copy::PacketLocation;

/// `XDP_PACKET_HEADROOM`.
pub(crate) const HEADROOM: usize = 256;
/// Bytes of a page for packet and headroom, without `struct skb_shared_info`. An odd number of cache lines,
/// so that the headers of a batch do not compete for one set of the first-level cache.
pub const BUFFER: usize = 4096 - 320;
/// The longest packet of a program that the kernel could run, and of a graph in buffers of the usual size.
pub const LONGEST: usize = BUFFER - HEADROOM;
/// The longest packet of a program in larger buffers: that of the kernel's test runs, a page and
/// `MAX_SKB_FRAGS` fragments of a page each. Here it is contiguous.
pub const LONGEST_FRAGMENTED: usize = LONGEST + 17 * 4096;
/// The longest packet that graphs take, in larger buffers: the largest snap length of captures.
pub const LONGEST_OPEN: usize = 262_144;
/// Bytes behind such a packet, as in the usual buffer of a page.
const TAILROOM: usize = 320;
/// Maximum size in bytes of all larger buffers of a batch: it has fewer of them then.
const MOST_BYTES: usize = 256 << 20;
/// `sizeof(struct xdp_frame)`: headroom that the kernel reserves for itself.
pub const XDP_FRAME: u32 = 40;
/// Bytes of an Ethernet header.
pub const ETH_HLEN: u32 = 14;
/// Error of drivers without metadata, which C libraries do not define.
const ENOTSUPP: i64 = 524;

/// A cache line, in words.
const LINE: usize = 16;

/// Common properties of packets that arrived together.
#[derive(Clone, Copy, Debug)]
pub struct IngressInfo {
    /// The interface, or the source of a graph.
    pub ingress: u32,
    /// Its queue.
    pub queue: u32,
    /// True if they are a graph's.
    pub open: bool,
}

/// Metadata of a packet at its arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ArrivalMetadata {
    /// Time at which it was captured or made, in nanoseconds; `None` if unknown.
    pub time: Option<u64>,
    /// Bytes of the packet beyond those that were captured.
    pub cut: u32,
}

/// A packet that a graph has sent, and its output.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SentDescriptor {
    /// Address of its descriptor.
    pub(crate) packet: usize,
    pub(crate) output: u64,
}

/// Location of a packet in its buffer, of which the bytes from the beginning to the packet's end are carried:
/// those that were stripped from it, and those that code keeps there.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketExtent {
    /// Bytes from the buffer's beginning to the packet, and to its end.
    data: u32,
    end: u32,
    arrival: ArrivalMetadata,
}

impl PacketExtent {
    /// Number of carried bytes.
    pub fn length(&self) -> usize {
        self.end as usize
    }

    /// Bytes of the packet itself.
    pub fn packet_length(&self) -> usize {
        (self.end - self.data) as usize
    }

    /// Bytes in front of it.
    pub fn front(&self) -> usize {
        self.data as usize
    }

    /// Offset at which the code of graphs keeps this many bytes while a packet waits: in the room that
    /// packets never use, if they fit.
    pub fn kept(bytes: usize) -> usize {
        (XDP_FRAME as usize).checked_sub(bytes).unwrap_or(XDP_FRAME as usize)
    }
}

/// Bytes of a [`SentDescriptor`].
pub const SENT_SIZE: usize = size_of::<SentDescriptor>();

/// Writes the descriptor of a packet at `place`, in a buffer that begins at `start`. Only accessed fields
/// exist and are written; those that the code writes itself, and those that are alike for all packets of this
/// place, were written before.
#[inline(always)]
fn come(layout: &DescriptorLayout, words: &mut [u32], came: IngressInfo, start: u32, place: Range<u32>) {
    layout.set(words, DescriptorField::Data, place.start);
    layout.set(words, DescriptorField::End, place.end);
    layout.set(
        words,
        DescriptorField::Meta,
        if came.open { start.wrapping_add(XDP_FRAME) } else { place.start },
    );
    layout.set(words, DescriptorField::Ingress, came.ingress);
    layout.set(words, DescriptorField::Queue, came.queue);
    layout.set(words, DescriptorField::Start, start);
    layout.set(words, DescriptorField::Open, came.open.into());
    layout.set(words, DescriptorField::Target, 0);
}

/// Copies a packet into bytes of the same length; short ones, which most are, by two moves that may overlap.
#[inline(always)]
fn copy(to: &mut [u8], from: &[u8]) {
    fn twice<const N: usize>(to: &mut [u8], from: &[u8]) {
        if let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>()) {
            let end = to.len() - N;
            to[..N].copy_from_slice(first);
            to[end..].copy_from_slice(last);
        }
    }
    match from.len() {
        32..=64 => twice::<32>(to, from),
        65..=128 => twice::<64>(to, from),
        _ => to.copy_from_slice(from),
    }
}

/// Prefetches the first two cache lines of a packet that is going to be copied into a batch.
#[inline(always)]
#[allow(unsafe_code)]
pub fn prefetch_packet(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE * WORD).take(2) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: it is a hint, which neither reads nor faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// A packet's descriptor. All addresses are of bytes in its buffer.
pub struct PacketDescriptor<'p> {
    /// Layout of its fields.
    pub layout: DescriptorLayout,
    /// Its words.
    pub words: &'p mut [u32],
    /// Bytes of its buffer.
    pub buffer: u32,
}

impl PacketDescriptor<'_> {
    /// The value of a field; 0 if the layout has no place for it.
    #[inline(always)]
    pub fn get(&self, field: DescriptorField) -> u32 {
        self.layout.get(self.words, field)
    }

    #[inline(always)]
    pub(crate) fn set(&mut self, field: DescriptorField, value: u32) {
        self.layout.set(self.words, field, value);
    }

    fn is_open(&self) -> bool {
        self.get(DescriptorField::Open) != 0
    }

    /// `bpf_xdp_adjust_head`, without moving the metadata: the new address of the data, or `None` if the
    /// kernel returns `EINVAL`.
    pub(crate) fn head_moved(&self, delta: i32) -> Option<u32> {
        let (old, end) = self.bounds();
        let data = old.checked_add_signed(delta)?;
        let first = self.get(DescriptorField::Start) + XDP_FRAME + (old - self.meta());
        (data >= first && data + ETH_HLEN <= end).then_some(data)
    }

    /// Addresses of data and end.
    pub fn bounds(&self) -> (u32, u32) {
        (self.get(DescriptorField::Data), self.get(DescriptorField::End))
    }

    /// Address of the metadata; that of the data if there is none.
    pub(crate) fn meta(&self) -> u32 {
        self.get(if self.is_open() { DescriptorField::Data } else { DescriptorField::Meta })
    }

    pub(crate) fn set_head(&mut self, meta: u32, data: u32) {
        self.set(DescriptorField::Data, data);
        if !self.is_open() {
            self.set(DescriptorField::Meta, meta);
        }
    }

    /// `bpf_xdp_adjust_tail`: the new end; the caller zeroes the new bytes.
    pub(crate) fn tail_moved(&self, delta: i32) -> Option<u32> {
        let (data, end) = self.bounds();
        let end = end.checked_add_signed(delta)?;
        (end <= self.get(DescriptorField::Start) + self.buffer && end >= data + ETH_HLEN).then_some(end)
    }

    /// Becomes a copy of another packet, at the same offset of its own buffer: returns source and destination
    /// of the bytes to copy, and their number. They include those in front of the packet: stripped bytes may
    /// be needed again.
    pub(crate) fn become_copy(&mut self, other: &PacketDescriptor<'_>) -> (u32, u32, usize) {
        let (from, to) = (other.get(DescriptorField::Start), self.get(DescriptorField::Start));
        for field in [DescriptorField::Data, DescriptorField::End, DescriptorField::Meta] {
            self.set(field, other.get(field) - from + to);
        }
        for field in
            [DescriptorField::Ingress, DescriptorField::Queue, DescriptorField::Origin, DescriptorField::Open]
        {
            self.set(field, other.get(field));
        }
        let (meta, end) = (other.get(DescriptorField::Meta), other.get(DescriptorField::End));
        (meta, self.get(DescriptorField::Meta), (end - meta) as usize)
    }

    /// `bpf_xdp_adjust_meta`; the error is the kernel's.
    pub(crate) fn adjust_meta(&mut self, delta: i32) -> Result<(), i64> {
        if self.is_open() {
            return Err(-ENOTSUPP);
        }
        let (data, start) = (self.get(DescriptorField::Data), self.get(DescriptorField::Start));
        let meta = self.get(DescriptorField::Meta).checked_add_signed(delta);
        let meta = meta.filter(|m| *m >= start + XDP_FRAME && *m <= data);
        let meta = meta.ok_or(-i64::from(libc::EINVAL))?;
        let len = data - meta;
        if !len.is_multiple_of(4) || len > 255 {
            return Err(-i64::from(libc::EACCES));
        }
        self.set(DescriptorField::Meta, meta);
        Ok(())
    }
}

/// The buffers of a batch and their descriptors.
#[derive(Debug)]
pub struct PacketBatch {
    /// Buffers for packets that are copied in, and for copies.
    buffers: MemoryRegion,
    /// Bytes of each buffer.
    buffer: usize,
    /// Region of the driver's buffers, if packets are processed there.
    lent: Option<Arc<MemoryRegion>>,
    /// Descriptors, from the beginning of a cache line on: those of received packets, then those of copies.
    words: Vec<u32>,
    /// Words in front of the first descriptor.
    skipped: usize,
    /// Current layout of descriptors, and the layout for received packets.
    layout: DescriptorLayout,
    expected: DescriptorLayout,
    /// The interface or source of all packets; 0 if there are several.
    ingress: u32,
    capacity: usize,
    /// Descriptors for copies.
    spares: usize,
    len: usize,
    /// Packets that a graph has sent, in order; room for every possible packet.
    sent: Vec<SentDescriptor>,
    sent_len: usize,
    copies: usize,
    /// Metadata of the packets, as far as it is known for any.
    arrivals: Vec<ArrivalMetadata>,
}

impl PacketBatch {
    /// A batch with room for `capacity` packets.
    ///
    /// # Errors
    /// If the system has no memory below 2 GiB.
    pub fn new(capacity: usize) -> io::Result<PacketBatch> {
        PacketBatch::with_copies(capacity, 0)
    }

    /// A batch with room for `capacity` packets of a graph, and for `copies` copies of them.
    ///
    /// # Errors
    /// As for [`PacketBatch::new`].
    pub fn with_copies(capacity: usize, copies: usize) -> io::Result<PacketBatch> {
        let buffers = MemoryRegion::low((capacity + copies) * BUFFER)?;
        Ok(PacketBatch::of_parts((buffers, BUFFER), None, capacity, copies))
    }

    /// Makes room for longer packets: the batch, which is empty, gets larger buffers, and fewer if these
    /// would take much memory. Does nothing if they are long enough, or if the packet is longer than any may
    /// be.
    ///
    /// # Errors
    /// As for [`PacketBatch::new`].
    pub fn grow(&mut self, longest: usize) -> io::Result<()> {
        if self.lent.is_some() || self.len > 0 || longest <= self.longest() || longest > LONGEST_OPEN {
            return Ok(());
        }
        let longest = longest.max(2 * self.longest()).min(LONGEST_OPEN);
        // An odd number of cache lines, as for the usual size.
        let lines = (HEADROOM + longest + TAILROOM).div_ceil(LINE * WORD) | 1;
        let buffer = lines * LINE * WORD;
        let of_each = 1 + self.spares.div_ceil(self.capacity.max(1));
        let capacity = self.capacity.min(MOST_BYTES / buffer / of_each).max(1);
        let copies = self.spares.min(capacity * (of_each - 1));
        let buffers = MemoryRegion::low((capacity + copies) * buffer)?;
        let mut grown = PacketBatch::of_parts((buffers, buffer), None, capacity, copies);
        grown.expect(self.expected);
        *self = grown;
        Ok(())
    }

    /// The same for a packet that carries this many bytes of its buffer.
    ///
    /// # Errors
    /// As for [`PacketBatch::new`].
    pub fn grow_to(&mut self, carried: usize) -> io::Result<()> {
        if carried > self.buffer { self.grow(carried.min(LONGEST_OPEN)) } else { Ok(()) }
    }

    /// The longest packet that fits.
    #[inline(always)]
    pub fn longest(&self) -> usize {
        // Larger buffers have room behind packets, too.
        self.buffer - HEADROOM - if self.buffer == BUFFER { 0 } else { TAILROOM }
    }

    /// Bytes of a buffer.
    pub fn buffer(&self) -> usize {
        self.buffer
    }

    fn of_parts(
        (buffers, buffer): (MemoryRegion, usize),
        lent: Option<Arc<MemoryRegion>>,
        capacity: usize,
        copies: usize,
    ) -> PacketBatch {
        let all = capacity + copies;
        let words = vec![0; all * layout::LONGEST + LINE];
        let skipped = words.as_ptr().align_offset(LINE * WORD).min(LINE);
        let none = SentDescriptor { packet: 0, output: 0 };
        let mut batch = PacketBatch {
            buffers,
            buffer,
            lent,
            words,
            skipped,
            layout: DescriptorLayout::WHOLE,
            expected: DescriptorLayout::WHOLE,
            ingress: 0,
            capacity,
            spares: copies,
            len: 0,
            sent: vec![none; if copies == 0 { 0 } else { all }],
            sent_len: 0,
            copies: 0,
            arrivals: Vec::new(),
        };
        batch.lay_out(DescriptorLayout::WHOLE);
        batch
    }

    /// Changes the layout of descriptors; those of packets in the batch keep their fields.
    #[cold]
    fn lay_out(&mut self, layout: DescriptorLayout) {
        let before = std::mem::replace(&mut self.layout, layout);
        let received = layout.fields().of_these(DescriptorFieldSet::RECEIVED);
        assert!(
            self.len == 0 || before.fields().has(received),
            "packets came for a program that looks at less"
        );
        let old = self.words[self.skipped..][..self.len * before.words()].to_vec();
        self.words.fill(0);
        for at in 0..self.capacity + self.spares {
            let start = self.own_start(at).unwrap_or(0);
            let words = self.descriptor_mut(at);
            layout.set(words, DescriptorField::Start, start);
            layout.set(words, DescriptorField::Origin, at as u32);
        }
        for (at, old) in old.chunks_exact(before.words()).enumerate() {
            let words = self.descriptor_mut(at);
            for (field, _) in before.places() {
                layout.set(words, field, before.get(old, field));
            }
        }
    }

    /// Address of the batch's own buffer of a descriptor; `None` if the packet lies in a driver's.
    fn own_start(&self, at: usize) -> Option<u32> {
        let at = if self.lent.is_some() { at.checked_sub(self.capacity)? } else { at };
        Some(self.buffers.address() as u32 + (at * self.buffer) as u32)
    }

    #[inline(always)]
    fn descriptor(&self, at: usize) -> &[u32] {
        let words = self.layout.words();
        &self.words[self.skipped + at * words..][..words]
    }

    #[inline(always)]
    fn descriptor_mut(&mut self, at: usize) -> &mut [u32] {
        let words = self.layout.words();
        &mut self.words[self.skipped + at * words..][..words]
    }

    /// A field of received packet `at`.
    #[inline(always)]
    fn get(&self, at: usize, field: DescriptorField) -> u32 {
        assert!(at < self.len, "packet {at} of {}", self.len);
        self.layout.get(self.descriptor(at), field)
    }

    /// A field of received packet `at`; 0 if the program does not access it.
    pub fn received_field(&self, at: usize, field: DescriptorField) -> u32 {
        self.get(at, field)
    }

    /// Number of packets that it has room for, with all copies that they become.
    pub fn capacity(&self) -> usize {
        match self.expected.copies() as usize {
            0 => self.capacity,
            copies => (self.spares / copies).clamp(1, self.capacity.max(1)),
        }
    }

    /// Packets in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.len = 0;
        self.arrivals.clear();
        self.conform(self.expected);
    }

    /// Sets the layout of the descriptors of packets received from now on: as a program wants it, with only
    /// the fields that it accesses.
    pub fn expect(&mut self, layout: DescriptorLayout) {
        self.expected = layout;
        self.conform(layout);
    }

    /// The layout of the descriptors of packets received from now on.
    pub fn expected(&self) -> DescriptorLayout {
        self.expected
    }

    /// Changes the layout of descriptors to that of the program that will run.
    ///
    /// # Panics
    /// If there are packets that were received for a program that accesses fewer fields.
    #[inline]
    pub fn conform(&mut self, layout: DescriptorLayout) {
        if self.layout != layout {
            self.lay_out(layout);
        }
    }

    /// The interface or source of all packets; 0 if there are several.
    pub fn ingress(&self) -> u32 {
        self.ingress
    }

    /// Metadata of packet `at`, or of the original of a copy.
    #[inline]
    pub fn arrival(&self, at: usize) -> ArrivalMetadata {
        self.arrivals.get(at).copied().unwrap_or_default()
    }

    /// Metadata of all packets that have any.
    pub fn arrivals(&self) -> &[ArrivalMetadata] {
        &self.arrivals
    }

    /// Sets the metadata of the last pushed packet.
    fn arrived(&mut self, arrival: ArrivalMetadata) {
        if arrival != ArrivalMetadata::default() && self.len > 0 {
            self.arrivals.resize(self.len - 1, ArrivalMetadata::default());
            self.arrivals.push(arrival);
        }
    }

    /// Copies a packet in, as received on interface `ingress`; `false` if the batch is full or the packet
    /// shorter than an Ethernet header or longer than [`PacketBatch::longest`] or [`LONGEST_FRAGMENTED`].
    pub fn push(&mut self, bytes: &[u8], ingress: u32) -> bool {
        self.push_parts(std::iter::once(bytes), IngressInfo { ingress, queue: 0, open: false })
    }

    /// As [`PacketBatch::push`] for a graph, which takes packets of any length and may use the room in front
    /// of them.
    #[inline]
    pub fn push_open(&mut self, bytes: &[u8], ingress: u32) -> bool {
        self.push_parts(std::iter::once(bytes), IngressInfo { ingress, queue: 0, open: true })
    }

    /// As [`PacketBatch::push_open`], for a packet with metadata.
    pub fn push_arrived(&mut self, bytes: &[u8], ingress: u32, arrival: ArrivalMetadata) -> bool {
        let taken = self.push_open(bytes, ingress);
        if taken {
            self.arrived(arrival);
        }
        taken
    }

    /// As [`PacketBatch::push`] and [`PacketBatch::push_open`], for a packet that lies in these parts.
    #[inline(always)]
    pub fn push_parts<'p>(
        &mut self,
        parts: impl Iterator<Item = &'p [u8]> + Clone,
        came: IngressInfo,
    ) -> bool {
        let length: usize = parts.clone().map(<[u8]>::len).sum();
        let lengths = match came.open {
            true => 0..=self.longest(),
            false => ETH_HLEN as usize..=self.longest().min(LONGEST_FRAGMENTED),
        };
        if self.len == self.capacity || !lengths.contains(&length) {
            return false;
        }
        let from = self.len * self.buffer;
        let start = self.buffers.address() as u32 + from as u32;
        let data = start + HEADROOM as u32;
        let mut room = &mut self.buffers.bytes_mut()[from + HEADROOM..][..length];
        for part in parts {
            let (to, rest) = room.split_at_mut(part.len());
            copy(to, part);
            room = rest;
        }
        let layout = self.layout;
        come(&layout, self.descriptor_mut(self.len), came, start, data..data + length as u32);
        let ingress = came.ingress;
        self.ingress = if self.len == 0 || self.ingress == ingress { ingress } else { 0 };
        self.len += 1;
        true
    }

    /// The bytes of packet `at` as they are now.
    pub fn bytes(&self, at: usize) -> &[u8] {
        assert!(at < self.len, "packet {at} of {}", self.len);
        self.bytes_between(self.place(at))
    }

    /// Addresses of the packet of a descriptor.
    #[inline(always)]
    fn place(&self, at: usize) -> Range<u32> {
        let words = self.descriptor(at);
        self.layout.get(words, DescriptorField::Data)..self.layout.get(words, DescriptorField::End)
    }

    #[inline(always)]
    fn bytes_between(&self, bounds: Range<u32>) -> &[u8] {
        let region = match &self.lent {
            Some(lent) if lent.holds(bounds.start) => lent,
            _ => &self.buffers,
        };
        let from = bounds.start - region.address() as u32;
        region.part(from as usize, (bounds.end - bounds.start) as usize)
    }

    /// The program's verdict on packet `at`; 0 for a program that sends packets itself.
    pub fn verdict(&self, at: usize) -> u32 {
        self.get(at, DescriptorField::Verdict)
    }

    /// Redirect target of packet `at`: the interface; 0 if the program never sets it.
    pub fn target(&self, at: usize) -> u32 {
        self.get(at, DescriptorField::Target)
    }

    /// The descriptors, for native code.
    pub fn packets_mut(&mut self) -> &mut [u32] {
        &mut self.words[self.skipped..][..self.len * self.layout.words()]
    }

    /// For a graph: the descriptors of received packets, those for copies and their number, and the list of
    /// sent packets.
    pub fn parts(&mut self) -> (&mut [u32], (&mut [u32], usize), &mut [SentDescriptor]) {
        let words = self.layout.words();
        let (all, copies) = self.words[self.skipped..].split_at_mut(self.capacity * words);
        (&mut all[..self.len * words], (copies, self.spares), &mut self.sent)
    }

    /// Sets the results of a graph: the numbers of sent packets and of copies.
    pub fn set_done(&mut self, sent: usize, copies: usize) {
        (self.sent_len, self.copies) = (sent, copies);
    }

    /// Number of copies that the graph has made.
    pub fn copies(&self) -> usize {
        self.copies
    }

    /// Packets that the graph has sent, in order: bytes, output, and the packet's number in the batch.
    pub fn sent(&self) -> SentPackets<'_> {
        SentPackets(self.leaving(self.capacity + self.spares))
    }

    /// Sent packets, in order, that have one of the first `most` descriptors.
    #[inline(always)]
    fn leaving(&self, most: usize) -> SentPacketIter<'_> {
        SentPacketIter {
            batch: self,
            left: self.sent[..self.sent_len].iter(),
            descriptors: &self.words[self.skipped..][..most * self.layout.words()],
            bounds: self.layout.bounds().map(|byte| byte / WORD),
        }
    }

    /// The sent packet with this number.
    #[inline(always)]
    pub fn sent_at(&self, at: usize) -> Option<(&[u8], u64, usize)> {
        let (at, output) = self.sent_which(at)?;
        Some((self.bytes_between(self.place(at)), output, self.origin(at)))
    }

    /// Number in the batch of a packet, or of the original of a copy.
    #[inline(always)]
    fn origin(&self, at: usize) -> usize {
        if at < self.capacity {
            at
        } else {
            self.layout.get(self.descriptor(at), DescriptorField::Origin) as usize
        }
    }

    /// Index of the descriptor of a sent packet, below the capacity unless it is a copy, and its output.
    #[inline(always)]
    fn sent_which(&self, at: usize) -> Option<(usize, u64)> {
        let sent = self.sent[..self.sent_len].get(at)?;
        let at = self.number(sent);
        (at < self.capacity + self.spares).then_some((at, sent.output))
    }

    /// Index of the descriptor of a sent packet.
    #[inline(always)]
    fn number(&self, sent: &SentDescriptor) -> usize {
        let first = self.words[self.skipped..].as_ptr() as usize;
        self.layout.number(sent.packet.wrapping_sub(first))
    }

    /// All bytes that a sent packet carries to another batch; `None` if it lies in a driver's buffer.
    pub fn carried(&self, at: usize) -> Option<(&[u8], PacketExtent)> {
        let (at, _) = self.sent_which(at)?;
        let (start, Range { start: data, end }) = (self.own_start(at)?, self.place(at));
        let arrival = self.arrival(self.origin(at));
        Some((self.bytes_between(start..end), PacketExtent { data: data - start, end: end - start, arrival }))
    }

    /// Takes a packet with all bytes that it carries; `false` if the batch is full, or its buffers are too
    /// short.
    pub fn push_carried(&mut self, bytes: &[u8], carried: PacketExtent, ingress: u32) -> bool {
        if self.len == self.capacity || bytes.len() > self.buffer {
            return false;
        }
        let from = self.len * self.buffer;
        let start = self.buffers.address() as u32 + from as u32;
        self.buffers.bytes_mut()[from..from + bytes.len()].copy_from_slice(bytes);
        let (came, place) =
            (IngressInfo { ingress, queue: 0, open: true }, start + carried.data..start + carried.end);
        let layout = self.layout;
        come(&layout, self.descriptor_mut(self.len), came, start, place);
        self.ingress = if self.len == 0 || self.ingress == ingress { ingress } else { 0 };
        self.len += 1;
        self.arrived(carried.arrival);
        true
    }

    /// Number of packets that the graph has sent.
    pub fn sent_len(&self) -> usize {
        self.sent_len
    }
}

/// The descriptors of sent packets, in order: index, output, and addresses of the packet.
// Not an iterator with a closure: loops over packets would call it.
#[derive(Debug)]
struct SentPacketIter<'b> {
    batch: &'b PacketBatch,
    left: std::slice::Iter<'b, SentDescriptor>,
    descriptors: &'b [u32],
    /// Offsets in each descriptor of the packet's beginning and end.
    bounds: [usize; 2],
}

impl Iterator for SentPacketIter<'_> {
    type Item = (usize, u64, Range<u32>);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let SentPacketIter { batch, left, descriptors, bounds: [data, end] } = self;
        loop {
            let sent = left.next()?;
            let at = batch.number(sent);
            let from = at * batch.layout.words();
            if let (Some(data), Some(end)) = (descriptors.get(from + *data), descriptors.get(from + *end)) {
                return Some((at, sent.output, *data..*end));
            }
        }
    }
}

/// Packets of a batch that a graph has sent, in order.
#[derive(Debug)]
pub struct SentPackets<'b>(SentPacketIter<'b>);

impl<'b> Iterator for SentPackets<'b> {
    type Item = (&'b [u8], u64, usize);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let (at, output, bounds) = self.0.next()?;
        let batch = self.0.batch;
        Some((batch.bytes_between(bounds), output, batch.origin(at)))
    }
}
