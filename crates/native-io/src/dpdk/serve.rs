//! A worker's queues of ports, which it polls.

use std::io;
use std::ops::Range;

use super::device::{DpdkQueues, DpdkWorkerQueues, MbufList};
use crate::batch_timer::BatchTimer;
use crate::graph::copies;
use crate::queues::{BufferMode, PacketDriver, ReceiveCounts, ServeConfig};
use millstream_native_runtime::packet::{IngressInfo, PacketBatch};

/// A worker's queues, and its packets in flight. Buffers are returned before the thread leaves.
pub(super) struct DpdkPacketDriver<'d> {
    batch: PacketBatch,
    /// Received packets that are not sent yet.
    came: MbufList<'d>,
    /// Packets to be sent, by list.
    out: Vec<MbufList<'d>>,
    /// The port of each list, and the number of its packets that found no buffer.
    lists: Vec<(usize, u64)>,
    metadata: BufferMode,
    /// True if packets are a graph's.
    open: bool,
    hand: DpdkWorkerQueues<'d>,
}

impl<'d> DpdkPacketDriver<'d> {
    /// Takes a queue of all ports for this thread. Lists leave by these ports.
    pub(super) fn enter(
        line: DpdkQueues<'d>,
        lists: &[usize],
        open: bool,
        plan: &ServeConfig<'_>,
    ) -> io::Result<DpdkPacketDriver<'d>> {
        let copies = if open { self::copies(plan.batch) } else { 0 };
        let batch = match plan.metadata {
            BufferMode::InPlace => PacketBatch::over(line.room(), plan.batch, copies)?,
            BufferMode::Copy => PacketBatch::with_copies(plan.batch, copies)?,
        };
        let hand = line.enter()?;
        let out = lists.iter().map(|_| hand.buffers(plan.batch + copies)).collect();
        let lists = lists.iter().map(|port| (*port, 0)).collect();
        Ok(DpdkPacketDriver {
            came: hand.buffers(plan.batch),
            out,
            lists,
            batch,
            metadata: plan.metadata,
            open,
            hand,
        })
    }
}

impl PacketDriver for DpdkPacketDriver<'_> {
    fn meter() -> BatchTimer {
        BatchTimer::sampling()
    }

    fn ports(&self) -> Vec<usize> {
        (0..self.hand.ports()).collect()
    }

    fn batch(&mut self) -> &mut PacketBatch {
        &mut self.batch
    }

    fn receive(&mut self, port: usize, most: usize, ingress: u32) -> io::Result<ReceiveCounts> {
        let DpdkPacketDriver { hand, batch, came, open, .. } = self;
        batch.clear();
        let received = hand.receive(port, most, came);
        let mut unfit = Vec::new();
        match self.metadata {
            BufferMode::InPlace => {
                let with = IngressInfo { ingress, queue: u32::from(hand.queue()), open: *open };
                batch.push_external(came.packet_locations(), with, |at| unfit.push(at));
            }
            BufferMode::Copy => {
                let push = if *open { PacketBatch::push_open } else { PacketBatch::push };
                unfit.extend(
                    (0..received)
                        .filter(|&at| !came.bytes(at).is_some_and(|bytes| push(batch, bytes, ingress))),
                );
            }
        }
        // Positions of packets are those of their buffers.
        unfit.iter().rev().for_each(|&at| came.remove(at));
        if self.metadata == BufferMode::Copy {
            came.free();
        }
        Ok(ReceiveCounts { packets: received as u64, unfit: unfit.len() as u64 })
    }

    #[inline]
    fn forward(&mut self, at: Option<usize>, bounds: Range<u32>, list: usize, _: usize) -> io::Result<()> {
        let DpdkPacketDriver { hand, batch, came, out, lists, metadata, .. } = self;
        match at {
            Some(at) if *metadata == BufferMode::InPlace => came.forward(at, bounds, &mut out[list]),
            _ => lists[list].1 += u64::from(!hand.copy(batch.departing(bounds), &mut out[list])),
        }
        Ok(())
    }

    fn depart(&mut self, _: usize) -> io::Result<()> {
        let DpdkPacketDriver { hand, batch, came, out, lists, metadata, .. } = self;
        let in_place = *metadata == BufferMode::InPlace;
        if in_place && batch.copies() == 0 {
            came.forward_all(batch, out);
            return Ok(());
        }
        for (output, original, bounds) in batch.departures() {
            let (list, to) = (output as usize, &mut out[output as usize]);
            match original {
                Some(at) if in_place => came.forward(at, bounds, to),
                _ => lists[list].1 += u64::from(!hand.copy(batch.departing(bounds), to)),
            }
        }
        Ok(())
    }

    fn close(&mut self, mut told: impl FnMut(usize, [u64; 2])) -> io::Result<()> {
        let DpdkPacketDriver { hand, came, out, lists, .. } = self;
        came.free();
        for (at, (list, (port, missed))) in out.iter_mut().zip(lists).enumerate() {
            let all = list.len();
            let sent = if all == 0 { 0 } else { hand.send(*port, list) };
            told(at, [sent as u64, (all - sent) as u64 + std::mem::take(missed)]);
        }
        Ok(())
    }

    fn idle(&mut self) -> io::Result<()> {
        std::hint::spin_loop();
        Ok(())
    }

    /// Nothing waits: packets that a driver does not take are not kept.
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}
