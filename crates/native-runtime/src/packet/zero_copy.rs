//! Packets that are processed in the driver's buffers.
//!
//! The driver's buffers lie in one region. Each packet has the same room around it as a packet in our own
//! buffers, so that programs see no difference.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::{BUFFER, DescriptorLayout, ETH_HLEN, IngressInfo, LONGEST, PacketBatch, come};
use crate::fields::DescriptorFieldSet;
use crate::region::MemoryRegion;

/// Bytes in front of a buffer of DPDK's drivers that packets may also use: with the headroom that drivers
/// keep, `HEADROOM` in all.
pub const FRONT: u16 = 128;

/// Location of a packet.
#[derive(Clone, Copy, Debug)]
pub struct PacketLocation {
    /// Address of its buffer, of which packets have [`BUFFER`] bytes.
    pub start: u32,
    /// Address of its first byte.
    pub data: u32,
    /// Its length in bytes.
    pub len: u32,
}

impl PacketLocation {
    /// A packet that is not contiguous: no batch takes it.
    pub const NOWHERE: PacketLocation = PacketLocation { start: 0, data: 0, len: u32::MAX };
}

/// Common properties of the packets of one burst.
#[derive(Clone, Copy)]
struct BurstContext {
    /// Address of the region of buffers, and its length minus one buffer.
    base: u32,
    reach: u32,
    shortest: u32,
    came: IngressInfo,
}

impl BurstContext {
    /// Writes a packet's location into a descriptor; `false` if the packet must not be used, since it lies
    /// outside of the region or of its buffer's room.
    #[inline(always)]
    fn put(
        &self,
        layout: &DescriptorLayout,
        words: &mut [u32],
        PacketLocation { start, data, len }: PacketLocation,
    ) -> bool {
        come(layout, words, self.came, start, data..data.wrapping_add(len));
        // All checks without a branch: the second is meaningless, and may have any result, if the first one
        // fails.
        (start.wrapping_sub(self.base) < self.reach)
            & (len.wrapping_sub(self.shortest) <= LONGEST as u32 - self.shortest)
            & (data.wrapping_sub(start) <= (BUFFER as u32).wrapping_sub(len))
    }

    /// The same for a whole burst, with descriptors of this many words.
    #[inline(always)]
    fn put_all(
        &self,
        layout: &DescriptorLayout,
        (room, words): (&mut [u32], usize),
        packets: impl Iterator<Item = PacketLocation>,
    ) -> bool {
        // Offsets of fields are within this; the assertion tells LLVM.
        assert!(words >= layout.words());
        let mut fit = true;
        for (words, lying) in room.chunks_exact_mut(words).zip(packets) {
            fit &= self.put(layout, words, lying);
        }
        fit
    }

    /// [`BurstContext::put_all`], by a specialized loop for these [`DescriptorFieldSet`].
    fn put_packed<const FIELDS: u8>(
        &self,
        room: (&mut [u32], usize),
        packets: impl Iterator<Item = PacketLocation>,
    ) -> bool {
        self.put_all(
            const { &DescriptorLayout::packed(DescriptorFieldSet::of_bits(FIELDS), 0) },
            room,
            packets,
        )
    }
}

/// [`BurstContext::put_all`] by the loop for a layout's fields, if it is packed. Fields that code writes
/// itself lie behind these, unless fields are fixed.
macro_rules! put_all {
    ($layout:expr, $burst:expr, $room:expr, $packets:expr; $($bits:literal)*) => {
        match $layout.fields().of_these(DescriptorFieldSet::RECEIVED.and(DescriptorFieldSet::FIXED)).bits() {
            _ if !$layout.is_packed() => $burst.put_all(&$layout, $room, $packets),
            $( $bits => $burst.put_packed::<$bits>($room, $packets), )*
            _ => $burst.put_packed::<{ DescriptorFieldSet::ALL.bits() }>($room, $packets),
        }
    };
}

impl PacketBatch {
    /// A batch with room for `capacity` packets that lie in this region, and for `copies` copies of them.
    ///
    /// # Errors
    /// As for [`PacketBatch::new`].
    pub fn over(lent: &Arc<MemoryRegion>, capacity: usize, copies: usize) -> io::Result<PacketBatch> {
        let buffers = MemoryRegion::low(copies * BUFFER)?;
        Ok(PacketBatch::of_parts((buffers, BUFFER), Some(Arc::clone(lent)), capacity, copies))
    }

    /// Takes received packets in place; `unfit` gets the positions of those that are not taken: if the packet
    /// is in several pieces, if the batch is full, if the packet is too short or too long, as for
    /// [`PacketBatch::push`] and, for a graph, [`PacketBatch::push_open`], or if it does not lie in the
    /// region of this batch.
    #[inline]
    pub fn push_external(
        &mut self,
        packets: impl ExactSizeIterator<Item = PacketLocation> + Clone,
        came: IngressInfo,
        unfit: impl FnMut(usize),
    ) {
        let Some(region) = &self.lent else { return };
        let (base, length) = (region.address() as u32, region.bytes().len() as u32);
        // The last byte of the region is at most that of a buffer.
        let reach = (length + 1).saturating_sub(BUFFER as u32);
        let burst = BurstContext { base, reach, shortest: if came.open { 0 } else { ETH_HLEN }, came };
        self.ingress = came.ingress;
        let (layout, count) = (self.layout, packets.len());
        let (words, free) = (layout.words(), self.capacity - self.len);
        let room = (&mut self.words[self.skipped + self.len * words..][..free * words], words);
        let fit = count <= free
            && put_all!(layout, burst, room, packets.clone(); 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        match fit {
            true => self.len += count,
            false => self.push_some(&burst, packets, unfit),
        }
    }

    /// Takes those packets of a burst that fit.
    #[cold]
    fn push_some(
        &mut self,
        burst: &BurstContext,
        packets: impl Iterator<Item = PacketLocation>,
        mut unfit: impl FnMut(usize),
    ) {
        let layout = self.layout;
        for (at, lying) in packets.enumerate() {
            if self.len < self.capacity && burst.put(&layout, self.descriptor_mut(self.len), lying) {
                self.len += 1;
            } else {
                unfit(at);
            }
        }
    }

    /// Current addresses of received packet `at`.
    #[inline]
    pub fn bounds(&self, at: usize) -> Range<u32> {
        assert!(at < self.len, "packet {at} of {}", self.len);
        self.place(at)
    }

    /// A packet that a graph has sent, by its number: its output, its number in the batch unless it is a
    /// copy, and its current addresses.
    #[inline]
    pub fn departure(&self, number: usize) -> Option<(u64, Option<usize>, Range<u32>)> {
        let (at, output) = self.sent_which(number)?;
        Some((output, (at < self.capacity).then_some(at), self.place(at)))
    }

    /// As [`PacketBatch::departure`], for all sent packets.
    #[inline]
    pub fn departures(&self) -> impl Iterator<Item = (u64, Option<usize>, Range<u32>)> + '_ {
        let all = self.leaving(self.capacity + self.spares);
        all.map(|(at, output, bounds)| (output, (at < self.capacity).then_some(at), bounds))
    }

    /// As [`PacketBatch::departures`], for a batch without copies: packet, output, and addresses.
    #[inline]
    pub fn departures_of_originals(&self) -> impl Iterator<Item = (usize, u64, Range<u32>)> + '_ {
        self.leaving(self.len)
    }

    /// The bytes at addresses from [`PacketBatch::departure`].
    pub fn departing(&self, bounds: Range<u32>) -> &[u8] {
        self.bytes_between(bounds)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DescriptorField, XDP_FRAME};
    use super::*;

    fn is_taken(batch: &mut PacketBatch, lying: PacketLocation) -> bool {
        let mut taken = true;
        batch.push_external(
            std::iter::once(lying),
            IngressInfo { ingress: 1, queue: 0, open: false },
            |_| taken = false,
        );
        taken
    }

    #[test]
    fn only_what_lies_in_the_region_with_all_its_room_is_taken() {
        let region = Arc::new(MemoryRegion::low(2 * BUFFER).unwrap());
        let base = region.address() as u32;
        let mut batch = PacketBatch::over(&region, 2, 0).unwrap();
        let at = |start: u32, data: u32, len: u32| PacketLocation { start, data, len };
        let last = base + region.bytes().len() as u32 - BUFFER as u32;
        for bad in [
            at(base - 1, base + 256, 64),
            at(last + 1, last + 257, 64),
            at(base, base - 1, 64),
            at(base, base + BUFFER as u32 - 63, 64),
            at(base, base + 256, 13),
            at(base, base + 256, LONGEST as u32 + 1),
            at(0, 0, 64),
            at(u32::MAX, u32::MAX, 64),
            at(0, 0, u32::MAX),
        ] {
            assert!(!is_taken(&mut batch, bad), "{bad:?}");
        }
        let (good, edge) = (at(base, base + 256, 64), at(last, last + BUFFER as u32 - 64, 64));
        assert!(is_taken(&mut batch, good) && is_taken(&mut batch, edge));
        assert!(!is_taken(&mut batch, good), "the batch is full");
        assert_eq!((batch.bounds(1), batch.bytes(1).len()), (edge.data..edge.data + 64, 64));
    }

    #[test]
    fn of_a_burst_those_that_fit_are_taken_and_keep_their_order() {
        let region = Arc::new(MemoryRegion::low(8 * BUFFER).unwrap());
        let start = region.address() as u32;
        let at = |place: u32| PacketLocation { start, data: start + place, len: 64 };
        let nowhere = PacketLocation { start: 0, data: 0, len: u32::MAX };
        let mut batch = PacketBatch::over(&region, 3, 0).unwrap();
        for _ in 0..2 {
            batch.clear();
            let mut unfit = Vec::new();
            let burst = [nowhere, at(1), at(2), PacketLocation { data: 0, ..at(0) }, at(3), at(4)];
            let came = IngressInfo { ingress: 7, queue: 3, open: true };
            batch.push_external(burst.into_iter(), came, |at| unfit.push(at));
            assert_eq!((unfit, batch.len(), batch.ingress()), (vec![0, 3, 5], 3, 7));
            for number in 0..3 {
                let of = |field| batch.get(number as usize, field);
                assert_eq!(
                    [DescriptorField::Data, DescriptorField::Ingress, DescriptorField::Open].map(of),
                    [start + number + 1, 7, 1]
                );
                assert_eq!(
                    [DescriptorField::Queue, DescriptorField::Origin, DescriptorField::Target].map(of),
                    [3, number, 0]
                );
                assert_eq!(
                    [DescriptorField::Start, DescriptorField::Meta].map(of),
                    [start, start + XDP_FRAME]
                );
            }
            // Data left by the one before must not be the next one's.
            let layout = batch.layout;
            layout.set(batch.descriptor_mut(1), DescriptorField::Target, 9);
        }
    }

    /// Layouts of each set of fields.
    fn layouts() -> impl Iterator<Item = DescriptorLayout> {
        (0..=DescriptorFieldSet::ALL.bits()).map(DescriptorFieldSet::of_bits).flat_map(|fields| {
            let shuffled = (0..4).map(move |seed| DescriptorLayout::shuffled(fields, 2, seed));
            shuffled.chain([DescriptorLayout::packed(fields, 1)])
        })
    }

    #[test]
    fn all_that_a_program_looks_at_is_written_and_nothing_else() {
        let region = Arc::new(MemoryRegion::low(8 * BUFFER).unwrap());
        let start = region.address() as u32;
        let expected = [
            (DescriptorField::Data, start + 300),
            (DescriptorField::End, start + 364),
            (DescriptorField::Meta, start + 300),
            (DescriptorField::Ingress, 7),
            (DescriptorField::Queue, 3),
            (DescriptorField::Start, start),
            (DescriptorField::Target, 0),
        ];
        let mut batch = PacketBatch::over(&region, 3, 0).unwrap();
        for layout in layouts() {
            batch.clear();
            batch.expect(layout);
            batch.words.fill(u32::MAX);
            let lying = PacketLocation { start, data: start + 300, len: 64 };
            let came = IngressInfo { ingress: 7, queue: 3, open: false };
            batch.push_external([lying; 2].into_iter(), came, |_| {});
            let mut left = batch.packets_mut().to_vec();
            for words in left.chunks_exact_mut(layout.words()) {
                for (field, value) in expected.into_iter().chain([(DescriptorField::Open, 0)]) {
                    assert!(
                        layout.offset(field).is_none() || layout.get(words, field) == value,
                        "{layout:?}"
                    );
                    layout.set(words, field, u32::MAX);
                }
            }
            assert!(left.iter().all(|word| *word == u32::MAX), "{layout:?}");
            let behind = batch.words[batch.skipped..][2 * layout.words()..].iter();
            assert!(behind.copied().all(|word| word == u32::MAX), "{layout:?}");
        }
    }

    #[test]
    fn what_packets_say_stays_when_descriptors_come_to_lie_in_another_way() {
        for layout in layouts() {
            let mut batch = PacketBatch::with_copies(3, 2).unwrap();
            assert!(batch.push(&[1; 60], 5) && batch.push_open(&[2; 61], 6));
            let all = |batch: &PacketBatch| -> Vec<u32> {
                let fields = layout.places().map(|(field, _)| field).collect::<Vec<_>>();
                (0..2).flat_map(|at| fields.iter().map(move |field| batch.get(at, *field))).collect()
            };
            let before = all(&batch);
            batch.conform(layout);
            assert_eq!(all(&batch), before, "{layout:?}");
            assert_eq!((batch.bytes(0), batch.bytes(1)), (&[1; 60][..], &[2; 61][..]));
            batch.clear();
            assert_eq!(batch.layout, DescriptorLayout::WHOLE);
        }
    }

    #[test]
    #[should_panic(expected = "looks at less")]
    fn packets_that_came_for_one_program_are_not_run_by_one_that_looks_at_more() {
        let mut batch = PacketBatch::new(1).unwrap();
        batch.expect(DescriptorLayout::packed(DescriptorFieldSet::NONE, 0));
        assert!(batch.push(&[0; 60], 1));
        batch.conform(DescriptorLayout::packed(DescriptorFieldSet::INGRESS, 0));
    }
}
