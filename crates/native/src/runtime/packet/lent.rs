//! Packets that are worked on where a driver put them.
//!
//! The driver's buffers lie in one region. Around each packet there is the room that a packet in a buffer of ours has, so that programs
//! find no difference.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::{BUFFER, Batch, ETH_HLEN, LONGEST, Packet, Sent, WALKS, XDP_FRAME};
use crate::runtime::region::Region;

/// Bytes in front of a driver's buffer that packets may use, too: with the headroom that drivers keep, [`super::HEADROOM`] in all.
#[cfg(feature = "dpdk")]
pub(crate) const FRONT: u16 = 128;

/// Where a packet lies.
#[cfg(feature = "dpdk")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lying {
    /// Where its buffer begins, [`FRONT`] not included.
    pub(crate) buffer: u32,
    pub(crate) data: u32,
    pub(crate) len: u32,
}

#[cfg(feature = "dpdk")]
impl Lying {
    /// Of what is not in one piece: no batch takes it.
    pub(crate) const NOWHERE: Lying = Lying { buffer: 0, data: 0, len: u32::MAX };
}

/// What packets of one burst have in common.
#[cfg(feature = "dpdk")]
#[derive(Clone, Copy)]
struct Burst {
    /// Where the region of the driver's buffers begins, and its length but for one buffer.
    base: u32,
    reach: u32,
    shortest: u32,
    ingress: u32,
    open: bool,
}

#[cfg(feature = "dpdk")]
impl Burst {
    /// Has a descriptor say where a packet lies; `false` if it must not be used, since that is outside of the region or of what a buffer has room
    /// for. What is not written is as [`Batch::over`] made it, or written by whoever runs the packet.
    #[inline(always)]
    fn put(&self, packet: &mut Packet, Lying { buffer, data, len }: Lying) -> bool {
        let start = buffer.wrapping_sub(u32::from(FRONT));
        packet.data = data;
        packet.data_end = data.wrapping_add(len);
        packet.data_meta = if self.open { start.wrapping_add(XDP_FRAME) } else { data };
        packet.ingress = self.ingress;
        packet.start = start;
        packet.target = 0;
        packet.open = self.open;
        // All of them without a branch: the second is of no worth where the first does not hold, and may be anything.
        (start.wrapping_sub(self.base) < self.reach)
            & (len.wrapping_sub(self.shortest) <= LONGEST as u32 - self.shortest)
            & (data.wrapping_sub(start) <= (BUFFER as u32).wrapping_sub(len))
    }
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

    /// Takes a packet where it lies: `start` is where its buffer begins, of which packets have [`BUFFER`] bytes, `place` that of its bytes. `false` if the batch is full, the
    /// packet too short or too long, as for [`Batch::push`] and, for a graph, [`Batch::push_open`], or not where packets of this batch are.
    #[inline]
    pub(crate) fn push_frame(&mut self, start: u32, place: Range<u32>, came: Came) -> bool {
        let Some(region) = &self.lent else { return false };
        let len = place.end.wrapping_sub(place.start);
        let Came { ingress, queue, open } = came;
        let shortest = if open { 0 } else { ETH_HLEN };
        let inside = region.holds(start)
            && len.wrapping_sub(shortest) <= LONGEST as u32 - shortest
            && place.start.wrapping_sub(start) <= BUFFER as u32 - len;
        let Some(packet) = self.packets[..self.capacity].get_mut(self.len).filter(|_| inside) else {
            return false;
        };
        *packet = Packet {
            data: place.start,
            data_end: place.end,
            data_meta: if open { start + XDP_FRAME } else { place.start },
            ingress,
            rx_queue: queue,
            egress: 0,
            start,
            verdict: 0,
            target: 0,
            origin: self.len as u32,
            open,
            ahead: [0; WALKS],
        };
        self.len += 1;
        true
    }

    /// Takes packets where they lie, as received on interface `ingress`; `unfit` is told the places of those that are not taken: if there is none (it is in
    /// several pieces), the batch is full, the packet too short or too long, as for [`Batch::push`] and, for a graph, [`Batch::push_open`], or not where packets of
    /// this batch are.
    #[cfg(feature = "dpdk")]
    #[inline]
    pub(crate) fn push_lent(
        &mut self,
        packets: impl ExactSizeIterator<Item = Lying> + Clone,
        (ingress, open): (u32, bool),
        unfit: impl FnMut(usize),
    ) {
        let Some(region) = &self.lent else { return };
        let (base, length) = (region.address() as u32, region.bytes().len() as u32);
        let reach = length.saturating_sub(BUFFER as u32);
        let burst = Burst { base, reach, shortest: if open { 0 } else { ETH_HLEN }, ingress, open };
        let room = &mut self.packets[self.len..self.capacity];
        let count = packets.len();
        let mut fit = count <= room.len();
        for (packet, lying) in room.iter_mut().zip(packets.clone()) {
            fit &= burst.put(packet, lying);
        }
        match fit {
            true => self.len += count,
            false => self.push_some(&burst, packets, unfit),
        }
    }

    /// Takes those packets of a burst that can be taken.
    #[cfg(feature = "dpdk")]
    #[cold]
    fn push_some(
        &mut self,
        burst: &Burst,
        packets: impl Iterator<Item = Lying>,
        mut unfit: impl FnMut(usize),
    ) {
        let room = &mut self.packets[..self.capacity];
        for (at, lying) in packets.enumerate() {
            if room.get_mut(self.len).is_some_and(|packet| burst.put(packet, lying)) {
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
    use super::*;

    #[test]
    fn a_frame_is_taken_where_its_packet_has_all_its_room() {
        let region = Arc::new(Region::low(2 * 4096).unwrap());
        let start = region.address() as u32 + 4096;
        let mut batch = Batch::over(&region, 2, 0).unwrap();
        let came = Came { ingress: 7, queue: 3, open: false };
        let good = start + 256..start + 316;
        for (start, bad) in [
            (start + 4096, start + 4096 + 256..start + 4096 + 316),
            (start, start - 1..start + 60),
            (start, start + 256..start + 269),
            (start, start + 256..start + 257 + LONGEST as u32),
            (start, start + BUFFER as u32 - 59..start + BUFFER as u32 + 1),
        ] {
            assert!(!batch.push_frame(start, bad.clone(), came), "{bad:?}");
        }
        assert!(batch.push_frame(start, good.clone(), came) && batch.push_frame(start, good.clone(), came));
        assert!(!batch.push_frame(start, good.clone(), came), "the batch is full");
        let packet = batch.packets[1];
        assert_eq!((packet.ingress, packet.rx_queue, packet.origin), (7, 3, 1));
        assert_eq!(packet.start, start);
        assert_eq!((batch.bounds(1), batch.bytes(1).len()), (good, 60));
    }

    #[cfg(feature = "dpdk")]
    fn is_taken(batch: &mut Batch, lying: Lying) -> bool {
        let mut taken = true;
        batch.push_lent(std::iter::once(lying), (1, false), |_| taken = false);
        taken
    }

    #[cfg(feature = "dpdk")]
    #[test]
    fn only_what_lies_in_the_region_with_all_its_room_is_taken() {
        let region = Arc::new(Region::low(2 * BUFFER).unwrap());
        let base = region.address() as u32;
        let mut batch = Batch::over(&region, 2, 0).unwrap();
        let at = |buffer: u32, data: u32, len: u32| Lying { buffer, data, len };
        let front = u32::from(FRONT);
        let good = at(base + front, base + 2 * front, 64);
        for bad in [
            at(base, base + front, 64),
            at(base + BUFFER as u32 + front + 1, base + BUFFER as u32 + 2 * front, 64),
            at(base + front, base - 1, 64),
            at(base + front, base + BUFFER as u32 - 63, 64),
            at(base + front, base + 2 * front, 13),
            at(base + front, base + 2 * front, LONGEST as u32 + 1),
            at(0, 0, 64),
            at(u32::MAX, u32::MAX, 64),
        ] {
            assert!(!is_taken(&mut batch, bad), "{bad:?}");
        }
        assert!(!is_taken(&mut batch, Lying::NOWHERE), "in several pieces");
        assert!(is_taken(&mut batch, good) && is_taken(&mut batch, good));
        assert!(!is_taken(&mut batch, good), "the batch is full");
        assert_eq!((batch.bounds(1), batch.bytes(1).len()), (good.data..good.data + 64, 64));
    }

    #[cfg(feature = "dpdk")]
    #[test]
    fn of_a_burst_those_that_fit_are_taken_and_keep_their_order() {
        let region = Arc::new(Region::low(8 * BUFFER).unwrap());
        let buffer = region.address() as u32 + u32::from(FRONT);
        let at = |place: u32| Lying { buffer, data: buffer + place, len: 64 };
        let mut batch = Batch::over(&region, 3, 0).unwrap();
        for _ in 0..2 {
            batch.clear();
            let mut unfit = Vec::new();
            let burst = [Lying::NOWHERE, at(1), at(2), Lying { data: 0, ..at(0) }, at(3), at(4)];
            batch.push_lent(burst.into_iter(), (7, true), |at| unfit.push(at));
            assert_eq!((unfit, batch.len()), (vec![0, 3, 5], 3));
            for (number, packet) in (0..).zip(&batch.packets[..3]) {
                assert_eq!((packet.data, packet.ingress, packet.open), (buffer + number + 1, 7, true));
                assert_eq!((packet.origin, packet.target), (number, 0));
            }
            // What the one before left is not the next one's.
            batch.packets[1].target = 9;
        }
    }
}
