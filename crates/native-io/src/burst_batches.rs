//! Batches of a worker whose ports have buffers of their own.
//!
//! A burst is processed in the port's buffers, or copied: if the user wants so, or if one of its packets lies
//! in several buffers, or fills one so far that there is no room behind it. Copied packets are contiguous, in
//! buffers that grow with the longest packet so far. Programs therefore see the whole of each packet between
//! `data` and `data_end`.

use std::io;
use std::sync::Arc;

use super::graph::copies;
use super::queues::{BufferMode, ServeConfig};
use millstream_native_runtime::packet::{LONGEST_FRAGMENTED, PacketBatch};
use millstream_native_runtime::region::MemoryRegion;

/// Most packets of a burst of a graph that may have to be copied: all of their copies have large buffers, too.
const MOST_OPEN: usize = 128;

/// A worker's batches.
pub(super) struct BurstBatches {
    /// Batch over the port's buffers; `None` if all packets are copied.
    in_place: Option<PacketBatch>,
    copied: PacketBatch,
    /// True if the current burst is copied.
    is_copied: bool,
}

impl BurstBatches {
    /// Batches for ports whose buffers lie in this region; `open` for a graph.
    pub(super) fn new(
        room: &Arc<MemoryRegion>,
        plan: &ServeConfig<'_>,
        open: bool,
    ) -> io::Result<BurstBatches> {
        let copies = |batch| if open { self::copies(batch) } else { 0 };
        let in_place = match plan.metadata {
            BufferMode::InPlace => Some(PacketBatch::over(room, plan.batch, copies(plan.batch))?),
            BufferMode::Copy => None,
        };
        let most = if open { plan.batch.min(MOST_OPEN) } else { plan.batch };
        let copied = PacketBatch::with_copies(most, copies(most))?;
        let is_copied = in_place.is_none();
        Ok(BurstBatches { in_place, copied, is_copied })
    }

    /// The most packets of a burst.
    #[inline]
    pub(super) fn most(&self) -> usize {
        self.copied.capacity()
    }

    /// The batch of the current burst.
    #[inline]
    pub(super) fn current(&mut self) -> &mut PacketBatch {
        match &mut self.in_place {
            Some(batch) if !self.is_copied => batch,
            _ => &mut self.copied,
        }
    }

    /// Returns true if the current burst is processed in the port's buffers.
    #[cfg(feature = "dpdk")]
    #[inline]
    pub(super) fn is_in_place(&self) -> bool {
        !self.is_copied
    }

    /// Begins a burst in the port's buffers; `None` if all packets are copied.
    #[inline]
    pub(super) fn begin_in_place(&mut self) -> Option<&mut PacketBatch> {
        let layout = self.current().expected();
        let batch = self.in_place.as_mut()?;
        self.is_copied = false;
        batch.expect(layout);
        batch.clear();
        Some(batch)
    }

    /// Begins a burst that is copied, whose longest packet has this many bytes. If there is no memory for
    /// larger buffers the batch takes no packet that needs one.
    pub(super) fn begin_copied(&mut self, longest: usize) -> &mut PacketBatch {
        let layout = self.current().expected();
        self.is_copied = true;
        let batch = &mut self.copied;
        batch.expect(layout);
        batch.clear();
        if longest > batch.longest() && longest <= LONGEST_FRAGMENTED {
            // The batch is as before, then.
            let _ = batch.grow(longest);
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_native_runtime::packet::IngressInfo;

    #[test]
    fn a_burst_is_copied_into_buffers_that_its_longest_packet_fits_in() {
        let room = Arc::new(MemoryRegion::low(1 << 16).expect("memory"));
        for open in [false, true] {
            for metadata in [BufferMode::InPlace, BufferMode::Copy] {
                let plan = ServeConfig { batch: 8, metadata, most: 1, goes_on: &|| true };
                let mut batches = BurstBatches::new(&room, &plan, open).expect("memory");
                assert_eq!(batches.begin_in_place().is_some(), metadata == BufferMode::InPlace);
                let came = IngressInfo { ingress: 5, queue: 3, open };
                let parts: Vec<Vec<u8>> = (1..=18).map(|n| vec![n; 4000]).collect();
                for (count, length) in [(1, 4000), (3, 12_000), (18, 72_000), (1, 4000)] {
                    let batch = batches.begin_copied(length);
                    for _ in 0..8 {
                        assert!(batch.push_parts(parts[..count].iter().map(Vec::as_slice), came));
                    }
                    assert_eq!(batch.bytes(7), parts[..count].concat());
                    assert_eq!(batches.current().ingress(), 5);
                }
                let none = batches.begin_copied(LONGEST_FRAGMENTED + 1);
                assert!((72_000..=LONGEST_FRAGMENTED).contains(&none.longest()));
            }
        }
    }
}
