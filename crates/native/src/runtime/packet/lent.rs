//! Packets that are worked on where a driver put them.
//!
//! The driver's buffers lie in one region. Around each packet there is the room that a packet in a buffer of ours has, so that programs
//! find no difference.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::{BUFFER, Batch, Came, ETH_HLEN, LONGEST, Packet, Sent};
use crate::fields::Fields;
use crate::runtime::region::Region;

/// Bytes in front of a buffer of DPDK's drivers that packets may use, too: with the headroom that drivers keep, [`super::HEADROOM`] in all.
#[cfg(feature = "dpdk")]
pub(crate) const FRONT: u16 = 128;

/// Where a packet lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lying {
    /// Where its buffer begins, of which packets have [`BUFFER`] bytes.
    pub(crate) start: u32,
    pub(crate) data: u32,
    pub(crate) len: u32,
}

impl Lying {
    /// Of what is not in one piece: no batch takes it.
    #[cfg(feature = "dpdk")]
    pub(crate) const NOWHERE: Lying = Lying { start: 0, data: 0, len: u32::MAX };
}

/// What packets of one burst have in common.
#[derive(Clone, Copy)]
struct Burst {
    /// Where the region of buffers begins, and its length but for one buffer.
    base: u32,
    reach: u32,
    shortest: u32,
    came: Came,
}

impl Burst {
    /// Has a descriptor say where a packet lies; `false` if it must not be used, since that is outside of the region or of what a buffer has room
    /// for.
    #[inline(always)]
    fn put(&self, fields: Fields, packet: &mut Packet, Lying { start, data, len }: Lying) -> bool {
        packet.come(fields, self.came, start, data..data.wrapping_add(len));
        // All of them without a branch: the second is of no worth where the first does not hold, and may be anything.
        (start.wrapping_sub(self.base) < self.reach)
            & (len.wrapping_sub(self.shortest) <= LONGEST as u32 - self.shortest)
            & (data.wrapping_sub(start) <= (BUFFER as u32).wrapping_sub(len))
    }

    /// The same of a whole burst, by a loop of its own for these [`Fields`].
    fn put_all<const FIELDS: u8>(&self, room: &mut [Packet], packets: impl Iterator<Item = Lying>) -> bool {
        let mut fit = true;
        for (packet, lying) in room.iter_mut().zip(packets) {
            fit &= self.put(const { Fields::of_bits(FIELDS) }, packet, lying);
        }
        fit
    }
}

/// [`Burst::put_all`] for fields that are known when it runs.
macro_rules! put_all {
    ($fields:expr, $burst:expr, $room:expr, $packets:expr; $($bits:literal)*) => {
        match $fields.bits() {
            $( $bits => $burst.put_all::<$bits>($room, $packets), )*
            _ => $burst.put_all::<{ Fields::ALL.bits() }>($room, $packets),
        }
    };
}

impl Batch {
    /// Room for `capacity` packets that lie in this region, and for `copies` copies of them.
    ///
    /// # Errors
    /// As for [`Batch::new`].
    pub(crate) fn over(lent: &Arc<Region>, capacity: usize, copies: usize) -> io::Result<Batch> {
        let mut batch = Batch::with_copies(0, copies)?;
        let packet = |at: usize| Packet { origin: at as u32, ..Packet::default() };
        batch.packets.splice(0..0, (0..capacity).map(packet));
        if copies > 0 {
            batch.sent.resize(capacity + copies, Sent { packet: std::ptr::null_mut(), output: 0 });
        }
        Ok(Batch { lent: Some(Arc::clone(lent)), capacity, ..batch })
    }

    /// Takes packets where they lie, as they came; `unfit` is told the places of those that are not taken: if there is none (it is in several pieces), the batch is
    /// full, the packet too short or too long, as for [`Batch::push`] and, for a graph, [`Batch::push_open`], or not where packets of this batch are.
    #[inline]
    pub(crate) fn push_lent(
        &mut self,
        packets: impl ExactSizeIterator<Item = Lying> + Clone,
        came: Came,
        unfit: impl FnMut(usize),
    ) {
        let Some(region) = &self.lent else { return };
        let (base, length) = (region.address() as u32, region.bytes().len() as u32);
        // The last byte of the region is that of a buffer, at the most.
        let reach = (length + 1).saturating_sub(BUFFER as u32);
        let burst = Burst { base, reach, shortest: if came.open { 0 } else { ETH_HLEN }, came };
        self.ingress = came.ingress;
        let room = &mut self.packets[self.len..self.capacity];
        let count = packets.len();
        let fit = count <= room.len()
            && put_all!(self.fields, burst, room, packets.clone(); 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
        match fit {
            true => self.len += count,
            false => self.push_some(&burst, packets, unfit),
        }
    }

    /// Takes those packets of a burst that can be taken.
    #[cold]
    fn push_some(
        &mut self,
        burst: &Burst,
        packets: impl Iterator<Item = Lying>,
        mut unfit: impl FnMut(usize),
    ) {
        let (room, fields) = (&mut self.packets[..self.capacity], self.fields);
        for (at, lying) in packets.enumerate() {
            if room.get_mut(self.len).is_some_and(|packet| burst.put(fields, packet, lying)) {
                self.len += 1;
            } else {
                unfit(at);
            }
        }
    }

    /// Where packet `at` of those that came in lies now: addresses.
    #[inline]
    pub(crate) fn bounds(&self, at: usize) -> Range<u32> {
        let packet = &self.packets[..self.len][at];
        packet.data..packet.data_end
    }

    /// What a graph has sent, by its number: by which output, which packet of the batch it is, unless a copy, and where it lies now: addresses.
    #[inline]
    pub(crate) fn departure(&self, number: usize) -> Option<(u64, Option<usize>, Range<u32>)> {
        let (at, output) = self.sent_which(number)?;
        let packet = &self.packets[at];
        Some((output, (at < self.capacity).then_some(at), packet.data..packet.data_end))
    }

    /// As [`Batch::departure`], all of it.
    #[cfg(feature = "dpdk")]
    #[inline]
    pub(crate) fn departures(&self) -> impl Iterator<Item = (u64, Option<usize>, Range<u32>)> + '_ {
        let (first, capacity) = (self.packets.as_ptr() as usize, self.capacity);
        self.sent[..self.sent_len].iter().filter_map(move |sent| {
            let at = (sent.packet as usize).wrapping_sub(first) / size_of::<Packet>();
            let packet = self.packets.get(at)?;
            Some((sent.output, (at < capacity).then_some(at), packet.data..packet.data_end))
        })
    }

    /// As [`Batch::departures`], for a batch without copies: by which output, which packet, and where it lies.
    #[cfg(feature = "dpdk")]
    #[inline]
    pub(crate) fn departures_of_originals(&self) -> impl Iterator<Item = (u64, usize, Range<u32>)> + '_ {
        let (first, packets) = (self.packets.as_ptr() as usize, &self.packets[..self.len]);
        self.sent[..self.sent_len].iter().filter_map(move |sent| {
            let at = (sent.packet as usize).wrapping_sub(first) / size_of::<Packet>();
            packets.get(at).map(|packet| (sent.output, at, packet.data..packet.data_end))
        })
    }

    /// The bytes of what lies at addresses that [`Batch::departure`] gave.
    pub(crate) fn departing(&self, bounds: Range<u32>) -> &[u8] {
        self.bytes_between(bounds)
    }
}

#[cfg(test)]
mod tests {
    use super::super::XDP_FRAME;
    use super::*;

    fn is_taken(batch: &mut Batch, lying: Lying) -> bool {
        let mut taken = true;
        batch
            .push_lent(std::iter::once(lying), Came { ingress: 1, queue: 0, open: false }, |_| taken = false);
        taken
    }

    #[test]
    fn only_what_lies_in_the_region_with_all_its_room_is_taken() {
        let region = Arc::new(Region::low(2 * BUFFER).unwrap());
        let base = region.address() as u32;
        let mut batch = Batch::over(&region, 2, 0).unwrap();
        let at = |start: u32, data: u32, len: u32| Lying { start, data, len };
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
        let region = Arc::new(Region::low(8 * BUFFER).unwrap());
        let start = region.address() as u32;
        let at = |place: u32| Lying { start, data: start + place, len: 64 };
        let nowhere = Lying { start: 0, data: 0, len: u32::MAX };
        let mut batch = Batch::over(&region, 3, 0).unwrap();
        for _ in 0..2 {
            batch.clear();
            let mut unfit = Vec::new();
            let burst = [nowhere, at(1), at(2), Lying { data: 0, ..at(0) }, at(3), at(4)];
            let came = Came { ingress: 7, queue: 3, open: true };
            batch.push_lent(burst.into_iter(), came, |at| unfit.push(at));
            assert_eq!((unfit, batch.len(), batch.ingress()), (vec![0, 3, 5], 3, 7));
            for (number, packet) in (0..).zip(&batch.packets[..3]) {
                assert_eq!((packet.data, packet.ingress, packet.open), (start + number + 1, 7, true));
                assert_eq!((packet.rx_queue, packet.origin, packet.target), (3, number, 0));
                assert_eq!((packet.start, packet.data_meta), (start, start + XDP_FRAME));
            }
            // What the one before left is not the next one's.
            batch.packets[1].target = 9;
        }
    }

    #[test]
    fn fields_that_nobody_looks_at_are_not_written() {
        let region = Arc::new(Region::low(8 * BUFFER).unwrap());
        let start = region.address() as u32;
        for bits in 0..=Fields::ALL.bits() {
            let fields = Fields::of_bits(bits);
            let mut batch = Batch::over(&region, 1, 0).unwrap();
            batch.expect(fields);
            batch.packets[0].target = 9;
            let lying = Lying { start, data: start + 300, len: 64 };
            batch.push_lent(std::iter::once(lying), Came { ingress: 7, queue: 3, open: false }, |_| {});
            let packet = batch.packets[0];
            let of = |field: Fields, value: u32, else_: u32| if fields.has(field) { value } else { else_ };
            assert_eq!(batch.bounds(0), start + 300..start + 364);
            assert_eq!(
                (packet.start, packet.data_meta),
                (of(Fields::ROOM, start, 0), of(Fields::ROOM, start + 300, 0))
            );
            assert_eq!(
                (packet.ingress, packet.rx_queue),
                (of(Fields::INGRESS, 7, 0), of(Fields::QUEUE, 3, 0))
            );
            assert_eq!(packet.target, of(Fields::TARGET, 0, 9));
        }
    }
}
