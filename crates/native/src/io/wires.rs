//! Packets of interfaces that come through [`Wire`]s, by several workers: each has a wire of every interface;
//! whoever makes these assigns flows to them.
//!
//! Invariant: as in [`super::queues`].

use std::io;
use std::ops::Range;

use super::floor::Attend;
use super::graph::{Ends, GraphRan, copies};
use super::live::{NAP, SPINS, Wire, finish, hand};
use super::meter::Meter;
use super::queues::{Carry, Plan, Received, Served};
use super::{Crew, Ran};
use crate::engine::Engine;
use crate::runtime::packet::Batch;

/// Runs an XDP program on received packets, by all workers of the engine, each of which has its wires.
/// Packets are copied, whatever `plan` says. `attend` runs beside them.
///
/// # Errors
/// If a wire fails, or a worker cannot begin.
pub fn serve_by<W: Wire + Send>(
    engine: &mut Engine,
    wires: &mut [Vec<W>],
    plan: &Plan<'_>,
    crew: &Crew<'_>,
    attend: Option<Attend<'_>>,
) -> io::Result<Ran> {
    let numbers: Vec<u32> = wires.first().into_iter().flatten().map(Wire::index).collect();
    let enter = |wires, lists: &[usize], open| Way::new(wires, lists, open, plan);
    Served { lines: wires.iter_mut().collect(), enter, numbers: &numbers, plan, crew }.run(engine, attend)
}

/// The same for a graph, by the wires of its sources and outputs. `between` is called now and then, when all
/// workers are between two batches.
///
/// # Errors
/// As for [`serve_by`].
pub fn serve_graph_by<W: Wire + Send>(
    engine: &mut Engine,
    wires: &mut [Vec<W>],
    ends: &Ends<'_>,
    (plan, crew): (&Plan<'_>, &Crew<'_>),
    between: Option<impl FnMut(&mut Engine) -> bool>,
) -> io::Result<GraphRan> {
    let enter = |wires, lists: &[usize], open| Way::new(wires, lists, open, plan);
    let served = Served { lines: wires.iter_mut().collect(), enter, numbers: &[], plan, crew };
    served.run_graph(engine, ends, between)
}

/// A worker's wires, and its packets in flight.
struct Way<'w, W> {
    batch: Batch,
    wires: &'w mut Vec<W>,
    /// The wire of each list, the number of its packets that were sent, and of those that found no room.
    lists: Vec<(usize, [u64; 2])>,
    /// True if packets are a graph's.
    open: bool,
    /// Number of looks in vain since something came.
    in_vain: u32,
}

impl<'w, W: Wire> Way<'w, W> {
    fn new(wires: &'w mut Vec<W>, lists: &[usize], open: bool, plan: &Plan<'_>) -> io::Result<Way<'w, W>> {
        let batch = Batch::with_copies(plan.batch, if open { copies(plan.batch) } else { 0 })?;
        let lists = lists.iter().map(|wire| (*wire, [0; 2])).collect();
        Ok(Way { batch, wires, lists, open, in_vain: 0 })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.wires.iter_mut().try_for_each(|wire| wire.flush().map(|_| ()))
    }
}

impl<W: Wire> Carry for Way<'_, W> {
    fn meter() -> Meter {
        Meter::default()
    }

    fn ports(&self) -> Vec<usize> {
        (0..self.wires.len()).collect()
    }

    fn batch(&mut self) -> &mut Batch {
        &mut self.batch
    }

    fn receive(&mut self, wire: usize, most: usize, ingress: u32) -> io::Result<Received> {
        let Way { batch, wires, open, .. } = self;
        batch.clear();
        let push = if *open { Batch::push_open } else { Batch::push };
        let mut received = Received::default();
        wires[wire].receive(most, &mut |bytes| {
            received.packets += 1;
            received.unfit += u64::from(!push(batch, bytes, ingress));
        })?;
        self.in_vain = if received.packets > 0 { 0 } else { self.in_vain.saturating_add(1) };
        Ok(received)
    }

    fn forward(&mut self, _: Option<usize>, bounds: Range<u32>, list: usize, _: usize) -> io::Result<()> {
        let (wire, counts) = &mut self.lists[list];
        let found_room = hand(&mut self.wires[*wire], self.batch.departing(bounds))?;
        counts[usize::from(!found_room)] += 1;
        Ok(())
    }

    fn close(&mut self, mut told: impl FnMut(usize, [u64; 2])) -> io::Result<()> {
        let lists = self.lists.iter_mut().enumerate();
        lists.for_each(|(at, (_, counts))| told(at, std::mem::take(counts)));
        self.flush()
    }

    fn idle(&mut self) -> io::Result<()> {
        self.flush()?;
        match self.wires.first_mut() {
            Some(wire) if self.in_vain > SPINS => wire.wait(NAP),
            _ => Ok(()),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        finish(self.wires)
    }
}
