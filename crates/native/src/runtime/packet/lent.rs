//! Packets that are worked on where a driver put them.
//!
//! The driver's buffers lie in one region. Around each packet there is the room that a packet in a buffer of ours has, so that programs
//! find no difference.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::{BUFFER, Batch, ETH_HLEN, LONGEST, Packet, Sent, XDP_FRAME};
use crate::runtime::region::Region;

/// Bytes in front of a driver's buffer that packets may use, too: with the headroom that drivers keep, [`super::HEADROOM`] in all.
pub(crate) const FRONT: u16 = 128;

/// Where a packet lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lying {
    /// Where its buffer begins, [`FRONT`] not included.
    pub(crate) buffer: u32,
    pub(crate) data: u32,
    pub(crate) len: u32,
}

impl Batch {
    /// Room for `capacity` packets that lie in this region, and for `copies` copies of them.
    ///
    /// # Errors
    /// As for [`Batch::new`].
    pub(crate) fn over(lent: &Arc<Region>, capacity: usize, copies: usize) -> io::Result<Batch> {
        let mut batch = Batch::with_copies(0, copies)?;
        batch.packets.splice(0..0, std::iter::repeat_n(Packet::default(), capacity));
        if copies > 0 {
            batch.sent.resize(capacity + copies, Sent { packet: std::ptr::null_mut(), output: 0 });
        }
        Ok(Batch { lent: Some(Arc::clone(lent)), capacity, ..batch })
    }

    /// Takes a packet where it lies, as received on interface `ingress`; `false` if the batch is full, the packet too short or too long, as
    /// for [`Batch::push`] and, for a graph, [`Batch::push_open`], or not where packets of this batch are.
    #[inline]
    pub(crate) fn push_lent(&mut self, lying: Lying, ingress: u32, open: bool) -> bool {
        let Some(region) = &self.lent else { return false };
        let Lying { buffer, data, len } = lying;
        let start = buffer.wrapping_sub(u32::from(FRONT));
        let limit = start.wrapping_add(BUFFER as u32);
        let shortest = if open { 0 } else { ETH_HLEN };
        let fits = (shortest..=LONGEST as u32).contains(&len) && self.len < self.capacity;
        let inside =
            region.holds(start) && region.holds(limit) && (start..=limit - len.min(limit)).contains(&data);
        if !(fits && inside) {
            return false;
        }
        self.packets[self.len] = Packet {
            data,
            data_end: data + len,
            data_meta: if open { start + XDP_FRAME } else { data },
            ingress,
            start,
            limit,
            origin: self.len as u32,
            open,
            ..Packet::default()
        };
        self.len += 1;
        true
    }

    /// Where packet `at` of those that came in lies now: addresses.
    #[inline]
    pub(crate) fn bounds(&self, at: usize) -> Range<u32> {
        let packet = &self.packets[..self.len][at];
        packet.data..packet.data_end
    }

    /// Of the packets that a graph has sent the one with this number: by which output, and which packet of the batch it is, unless a copy.
    #[inline]
    pub(crate) fn sent_original(&self, at: usize) -> Option<(u64, Option<usize>)> {
        let (at, output) = self.sent_which(at)?;
        Some((output, (at < self.capacity).then_some(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert!(!batch.push_lent(bad, 1, false), "{bad:?}");
        }
        assert!(batch.push_lent(good, 1, false) && batch.push_lent(good, 1, false));
        assert!(!batch.push_lent(good, 1, false), "the batch is full");
        assert_eq!((batch.bounds(1), batch.bytes(1).len()), (good.data..good.data + 64, 64));
    }
}
