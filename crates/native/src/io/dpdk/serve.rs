//! A worker's queues of ports, which it polls.

use std::io;
use std::ops::Range;

use super::device::{Buffers, Hand, Line};
use crate::io::graph::copies;
use crate::io::meter::Meter;
use crate::io::queues::{Carry, Metadata, Plan, Received};
use crate::runtime::packet::{Batch, Came};

/// A worker's queues, and its packets in flight. Buffers are returned before the thread leaves.
pub(super) struct Way<'d> {
    batch: Batch,
    /// Received packets that are not sent yet.
    came: Buffers<'d>,
    /// Packets to be sent, by list.
    out: Vec<Buffers<'d>>,
    /// The port of each list, and the number of its packets that found no buffer.
    lists: Vec<(usize, u64)>,
    metadata: Metadata,
    /// True if packets are a graph's.
    open: bool,
    hand: Hand<'d>,
}

impl<'d> Way<'d> {
    /// Takes a queue of all ports for this thread. Lists leave by these ports.
    pub(super) fn enter(line: Line<'d>, lists: &[usize], open: bool, plan: &Plan<'_>) -> io::Result<Way<'d>> {
        let copies = if open { self::copies(plan.batch) } else { 0 };
        let batch = match plan.metadata {
            Metadata::InPlace => Batch::over(line.room(), plan.batch, copies)?,
            Metadata::Copy => Batch::with_copies(plan.batch, copies)?,
        };
        let hand = line.enter()?;
        let out = lists.iter().map(|_| hand.buffers(plan.batch + copies)).collect();
        let lists = lists.iter().map(|port| (*port, 0)).collect();
        Ok(Way { came: hand.buffers(plan.batch), out, lists, batch, metadata: plan.metadata, open, hand })
    }
}

impl Carry for Way<'_> {
    fn meter() -> Meter {
        Meter::sampling()
    }

    fn ports(&self) -> Vec<usize> {
        (0..self.hand.ports()).collect()
    }

    fn batch(&mut self) -> &mut Batch {
        &mut self.batch
    }

    fn receive(&mut self, port: usize, most: usize, ingress: u32) -> io::Result<Received> {
        let Way { hand, batch, came, open, .. } = self;
        batch.clear();
        let received = hand.receive(port, most, came);
        let mut unfit = Vec::new();
        match self.metadata {
            Metadata::InPlace => {
                let with = Came { ingress, queue: u32::from(hand.queue()), open: *open };
                batch.push_lent(came.lying(), with, |at| unfit.push(at));
            }
            Metadata::Copy => {
                let push = if *open { Batch::push_open } else { Batch::push };
                unfit.extend(
                    (0..received)
                        .filter(|&at| !came.bytes(at).is_some_and(|bytes| push(batch, bytes, ingress))),
                );
            }
        }
        // Positions of packets are those of their buffers.
        unfit.iter().rev().for_each(|&at| came.remove(at));
        if self.metadata == Metadata::Copy {
            came.free();
        }
        Ok(Received { packets: received as u64, unfit: unfit.len() as u64 })
    }

    #[inline]
    fn forward(&mut self, at: Option<usize>, bounds: Range<u32>, list: usize, _: usize) -> io::Result<()> {
        let Way { hand, batch, came, out, lists, metadata, .. } = self;
        match at {
            Some(at) if *metadata == Metadata::InPlace => came.forward(at, bounds, &mut out[list]),
            _ => lists[list].1 += u64::from(!hand.copy(batch.departing(bounds), &mut out[list])),
        }
        Ok(())
    }

    fn depart(&mut self, _: usize) -> io::Result<()> {
        let Way { hand, batch, came, out, lists, metadata, .. } = self;
        let in_place = *metadata == Metadata::InPlace;
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
        let Way { hand, came, out, lists, .. } = self;
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
