//! A worker's queues of ports, which it polls.

use std::io;
use std::ops::Range;

use super::device::{DpdkQueues, DpdkWorkerQueues, MbufList};
use crate::batch_timer::BatchTimer;
use crate::burst_batches::BurstBatches;
use crate::graph::copies;
use crate::queues::{PacketDriver, ReceiveCounts, ServeConfig};
use millstream_native_runtime::packet::{IngressInfo, PacketBatch};

/// A worker's queues, and its packets in flight. Buffers are returned before the thread leaves.
pub(super) struct DpdkPacketDriver<'d> {
    batches: BurstBatches,
    /// Received packets that are not sent yet.
    came: MbufList<'d>,
    /// Packets to be sent, by list.
    out: Vec<MbufList<'d>>,
    /// The port of each list, and the number of its packets that found no buffer.
    lists: Vec<(usize, u64)>,
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
        let batches = BurstBatches::new(line.room(), plan, open)?;
        let hand = line.enter()?;
        let out = lists.iter().map(|_| hand.buffers(plan.batch + copies)).collect();
        let lists = lists.iter().map(|port| (*port, 0)).collect();
        Ok(DpdkPacketDriver { came: hand.buffers(plan.batch), out, lists, batches, open, hand })
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
        self.batches.current()
    }

    fn receive(&mut self, port: usize, most: usize, ingress: u32) -> io::Result<ReceiveCounts> {
        let DpdkPacketDriver { hand, batches, came, open, .. } = self;
        let received = hand.receive(port, most.min(batches.most()), came);
        let with = IngressInfo { ingress, queue: u32::from(hand.queue()), open: *open };
        let mut unfit = Vec::new();
        let is_in_place = batches.begin_in_place().is_some_and(|batch| {
            batch.push_external(came.packet_locations(), with, |at| unfit.push(at));
            !unfit.iter().any(|&at| came.is_long(at))
        });
        if is_in_place {
            // Positions of packets are those of their buffers.
            unfit.iter().rev().for_each(|&at| came.remove(at));
        } else {
            let longest = (0..received).map(|at| came.packet_length(at)).max();
            let batch = batches.begin_copied(longest.unwrap_or_default());
            unfit = (0..received).filter(|&at| !batch.push_parts(came.parts(at), with)).collect();
            came.free();
        }
        Ok(ReceiveCounts { packets: received as u64, unfit: unfit.len() as u64 })
    }

    #[inline]
    fn forward(&mut self, at: Option<usize>, bounds: Range<u32>, list: usize, _: usize) -> io::Result<()> {
        let DpdkPacketDriver { hand, batches, came, out, lists, .. } = self;
        match at {
            Some(at) if batches.is_in_place() => came.forward(at, bounds, &mut out[list]),
            _ => {
                let (port, missed) = &mut lists[list];
                let bytes = batches.current().departing(bounds);
                *missed += u64::from(!hand.copy(bytes, *port, &mut out[list]));
            }
        }
        Ok(())
    }

    fn depart(&mut self, _: usize) -> io::Result<()> {
        let DpdkPacketDriver { hand, batches, came, out, lists, .. } = self;
        let in_place = batches.is_in_place();
        let batch = batches.current();
        if in_place && batch.copies() == 0 {
            came.forward_all(batch, out);
            return Ok(());
        }
        for (output, original, bounds) in batch.departures() {
            let (list, to) = (output as usize, &mut out[output as usize]);
            match original {
                Some(at) if in_place => came.forward(at, bounds, to),
                _ => {
                    let (port, missed) = &mut lists[list];
                    *missed += u64::from(!hand.copy(batch.departing(bounds), *port, to));
                }
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
