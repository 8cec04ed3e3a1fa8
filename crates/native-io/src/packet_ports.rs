//! Packets of interfaces that come through [`PacketPort`]s, by several workers: each has a wire of every
//! interface; whoever makes these assigns flows to them.
//!
//! Invariant: as in [`super::queues`].

use std::io;
use std::ops::Range;

use super::batch_timer::BatchTimer;
use super::graph::{GraphPortNumbers, GraphRunStats, copies};
use super::live::{NAP, PacketPort, SPINS, finish, send_with_retry};
use super::queues::{PacketDriver, PollModeServer, ReceiveCounts, ServeConfig};
use super::safepoint::MainThreadTask;
use super::{RunStats, WorkerHooks};
use millstream_native::NativeEngine;
use millstream_native_runtime::packet::PacketBatch;

/// Runs an XDP program on received packets, by all workers of the engine, each of which has its wires.
/// Packets are copied, whatever `plan` says. `attend` runs beside them.
///
/// # Errors
/// If a wire fails, or a worker cannot begin.
pub fn serve_by<W: PacketPort + Send>(
    engine: &mut NativeEngine,
    wires: &mut [Vec<W>],
    plan: &ServeConfig<'_>,
    crew: &WorkerHooks<'_>,
    attend: Option<MainThreadTask<'_>>,
) -> io::Result<RunStats> {
    let numbers: Vec<u32> = wires.first().into_iter().flatten().map(PacketPort::index).collect();
    let enter = |wires, lists: &[usize], open| PortPacketDriver::new(wires, lists, open, plan);
    PollModeServer { lines: wires.iter_mut().collect(), enter, numbers: &numbers, plan, crew }
        .run(engine, attend)
}

/// The same for a graph, by the wires of its sources and outputs. `between` is called now and then, when all
/// workers are between two batches.
///
/// # Errors
/// As for [`serve_by`].
pub fn serve_graph_by<W: PacketPort + Send>(
    engine: &mut NativeEngine,
    wires: &mut [Vec<W>],
    ends: &GraphPortNumbers<'_>,
    (plan, crew): (&ServeConfig<'_>, &WorkerHooks<'_>),
    between: Option<impl FnMut(&mut NativeEngine) -> bool>,
) -> io::Result<GraphRunStats> {
    let enter = |wires, lists: &[usize], open| PortPacketDriver::new(wires, lists, open, plan);
    let served = PollModeServer { lines: wires.iter_mut().collect(), enter, numbers: &[], plan, crew };
    served.run_graph(engine, ends, between)
}

/// A worker's wires, and its packets in flight.
struct PortPacketDriver<'w, W> {
    batch: PacketBatch,
    wires: &'w mut Vec<W>,
    /// The wire of each list, the number of its packets that were sent, and of those that found no room.
    lists: Vec<(usize, [u64; 2])>,
    /// True if packets are a graph's.
    open: bool,
    /// Number of looks in vain since something came.
    in_vain: u32,
}

impl<'w, W: PacketPort> PortPacketDriver<'w, W> {
    fn new(
        wires: &'w mut Vec<W>,
        lists: &[usize],
        open: bool,
        plan: &ServeConfig<'_>,
    ) -> io::Result<PortPacketDriver<'w, W>> {
        let batch = PacketBatch::with_copies(plan.batch, if open { copies(plan.batch) } else { 0 })?;
        let lists = lists.iter().map(|wire| (*wire, [0; 2])).collect();
        Ok(PortPacketDriver { batch, wires, lists, open, in_vain: 0 })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.wires.iter_mut().try_for_each(|wire| wire.flush().map(|_| ()))
    }
}

impl<W: PacketPort> PacketDriver for PortPacketDriver<'_, W> {
    fn meter() -> BatchTimer {
        BatchTimer::default()
    }

    fn ports(&self) -> Vec<usize> {
        (0..self.wires.len()).collect()
    }

    fn batch(&mut self) -> &mut PacketBatch {
        &mut self.batch
    }

    fn receive(&mut self, wire: usize, most: usize, ingress: u32) -> io::Result<ReceiveCounts> {
        let PortPacketDriver { batch, wires, open, .. } = self;
        batch.clear();
        let push = if *open { PacketBatch::push_open } else { PacketBatch::push };
        let mut received = ReceiveCounts::default();
        wires[wire].receive(most, &mut |bytes| {
            received.packets += 1;
            received.unfit += u64::from(!push(batch, bytes, ingress));
        })?;
        self.in_vain = if received.packets > 0 { 0 } else { self.in_vain.saturating_add(1) };
        Ok(received)
    }

    fn forward(&mut self, _: Option<usize>, bounds: Range<u32>, list: usize, _: usize) -> io::Result<()> {
        let (wire, counts) = &mut self.lists[list];
        let found_room = send_with_retry(&mut self.wires[*wire], self.batch.departing(bounds))?;
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
