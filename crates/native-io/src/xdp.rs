//! Packets from and to interfaces by AF_XDP, by several workers.
//!
//! A worker's queues ([`super::queues`]) share one memory ([`millstream_ports::XskQueues`]).
//!
//! In place (by exchange, [`BufferMode::InPlace`]) the frames that the kernel fills are the program's
//! buffers: descriptors are written over them, and a frame to be sent is put into the ring of its outgoing
//! queue, of whichever interface, in exchange for a frame that comes back from there. Nothing is copied or
//! allocated. The memory lies below 2 GiB, within the range of the fields of packets; packets have the usual
//! room around them.
//!
//! Invariant: as in [`super::queues`].

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_ports::{
    FrameMemory, PortDropCounts, PortError, UmemFrame, XdpInterface, XdpInterfaces, XskOptions, XskQueues,
    XskQueuesConfig,
};

use super::batch_timer::BatchTimer;
use super::graph::{GraphPortNumbers, GraphRunStats, copies};
use super::live::{NAP, SPINS};
use super::queues::{BufferMode, PacketDriver, PollModeServer, ReceiveCounts, ServeConfig};
use super::safepoint::MainThreadTask;
use super::{RunStats, WorkerHooks};
use millstream_native::NativeEngine;
use millstream_native_runtime::packet::{IngressInfo, PacketBatch, PacketLocation};
use millstream_native_runtime::region::MemoryRegion;

/// Time limit for sending the last packets.
const LAST: Duration = Duration::from_secs(1);

/// Interfaces, with queues for each worker.
pub struct XdpPorts {
    interfaces: XdpInterfaces,
    /// Interface numbers.
    numbers: Vec<u32>,
    /// Memory of each line.
    rooms: Vec<Arc<MemoryRegion>>,
    busy: bool,
}

impl XdpPorts {
    /// Opens interfaces of this network namespace, for this many workers with batches of this size.
    ///
    /// # Errors
    /// As for [`XdpInterfaces::open`].
    pub fn open(
        names: &[&str],
        workers: u32,
        batch: usize,
        options: &XskOptions,
    ) -> Result<XdpPorts, PortError> {
        let mut rooms = Vec::new();
        let mut allot = |length| {
            let room = MemoryRegion::low(length)?;
            room.prefer_large_pages(length);
            let room = Arc::new(room);
            rooms.push(Arc::clone(&room));
            Ok(room as Arc<dyn FrameMemory>)
        };
        let interfaces =
            XdpInterfaces::open(names, XskQueuesConfig { workers, at_hand: batch }, options, &mut allot)?;
        // Those of an abandoned attempt come first.
        let rooms = rooms.split_off(rooms.len() - workers as usize);
        let numbers = interfaces.all().iter().map(XdpInterface::index).collect();
        Ok(XdpPorts { interfaces, numbers, rooms, busy: options.busy_poll.is_some() })
    }

    /// The interfaces, in the order in which they were named.
    pub fn interfaces(&self) -> &[XdpInterface] {
        self.interfaces.all()
    }

    /// Packets that the kernel has dropped before they were received.
    pub fn lost(&self) -> PortDropCounts {
        self.interfaces.lost()
    }

    /// Runs an XDP program on received packets, by all workers of the engine. `attend` runs beside them.
    ///
    /// # Errors
    /// If an interface is gone, or a worker cannot begin.
    pub fn run(
        &mut self,
        engine: &mut NativeEngine,
        plan: &ServeConfig<'_>,
        crew: &WorkerHooks<'_>,
        attend: Option<MainThreadTask<'_>>,
    ) -> io::Result<RunStats> {
        self.served(plan, crew).run(engine, attend)
    }

    /// Runs a graph on the packets received by the interfaces of its sources, by all workers of the engine.
    /// `between` is called between batches; with several workers now and then, when all of them are between
    /// two. It may replace the engine by another one.
    ///
    /// # Errors
    /// As for [`XdpPorts::run`].
    pub fn run_graph(
        &mut self,
        engine: &mut NativeEngine,
        ends: &GraphPortNumbers<'_>,
        plan: &ServeConfig<'_>,
        crew: &WorkerHooks<'_>,
        between: Option<impl FnMut(&mut NativeEngine) -> bool>,
    ) -> io::Result<GraphRunStats> {
        self.served(plan, crew).run_graph(engine, ends, between)
    }

    fn served<'s>(
        &'s mut self,
        plan: &'s ServeConfig<'s>,
        crew: &'s WorkerHooks<'s>,
    ) -> PollModeServer<
        's,
        WorkerUmem<'s>,
        impl Fn(WorkerUmem<'s>, &[usize], bool) -> io::Result<XskPacketDriver<'s>> + Sync,
    > {
        let busy = self.busy;
        let (interfaces, lines) = self.interfaces.parts();
        let interfaces = interfaces.len();
        let enter = move |room, lists: &[usize], open| {
            XskPacketDriver::new(room, (interfaces, lists), (open, busy), plan)
        };
        PollModeServer {
            lines: lines.iter_mut().zip(&self.rooms).collect(),
            enter,
            numbers: &self.numbers,
            plan,
            crew,
        }
    }
}

/// A line, and its memory.
type WorkerUmem<'w> = (&'w mut XskQueues, &'w Arc<MemoryRegion>);

/// A worker's queues, and its packets in flight.
struct XskPacketDriver<'w> {
    batch: PacketBatch,
    line: &'w mut XskQueues,
    /// Address of the first byte of the line's memory.
    base: u32,
    /// In place: the frames of the packets of the batch, until they are sent.
    came: Vec<Option<UmemFrame>>,
    /// Locations of the received packets.
    places: Vec<PacketLocation>,
    /// The worker's queues of each interface.
    queues: Vec<Vec<usize>>,
    /// The interface of each list, the number of its packets that were sent, and of those that found no room.
    lists: Vec<(usize, [u64; 2])>,
    metadata: BufferMode,
    /// True if packets are a graph's.
    open: bool,
    busy: bool,
    /// Number of looks in vain since something came.
    in_vain: u32,
}

impl<'w> XskPacketDriver<'w> {
    fn new(
        (line, room): WorkerUmem<'w>,
        (interfaces, lists): (usize, &[usize]),
        (open, busy): (bool, bool),
        plan: &ServeConfig<'_>,
    ) -> io::Result<XskPacketDriver<'w>> {
        let copies = if open { self::copies(plan.batch) } else { 0 };
        let batch = match plan.metadata {
            BufferMode::InPlace => PacketBatch::over(room, plan.batch, copies)?,
            BufferMode::Copy => PacketBatch::with_copies(plan.batch, copies)?,
        };
        let queues_of = |at| (0..line.queues()).filter(|&queue| line.queue(queue).0 == at).collect();
        let queues = (0..interfaces).map(queues_of).collect();
        let lists = lists.iter().map(|interface| (*interface, [0; 2])).collect();
        let (came, places) = (Vec::with_capacity(plan.batch), Vec::with_capacity(plan.batch));
        let base = room.address() as u32;
        let metadata = plan.metadata;
        Ok(XskPacketDriver {
            batch,
            line,
            base,
            came,
            places,
            queues,
            lists,
            metadata,
            open,
            busy,
            in_vain: 0,
        })
    }

    /// The worker's queue of an interface for packets received by another queue: always the same for one
    /// incoming queue, so that they stay in order.
    fn queue_to(&self, interface: usize, came: usize) -> usize {
        let queues = &self.queues[interface];
        queues[self.line.queue(came).1 as usize % queues.len()]
    }

    /// Sends packet `at` of the batch, or one at other addresses, by a queue; `false` if that has no room.
    #[inline]
    fn send(&mut self, at: Option<usize>, bounds: Range<u32>, queue: usize) -> io::Result<bool> {
        let frame = at.and_then(|at| self.came.get_mut(at)).and_then(Option::take);
        let Some(frame) = frame else {
            if self.line.send_copy(queue, self.batch.departing(bounds.clone())) {
                return Ok(true);
            }
            self.line.flush(queue)?;
            return Ok(self.line.send_copy(queue, self.batch.departing(bounds)));
        };
        let place = bounds.start.wrapping_sub(self.base)..bounds.end.wrapping_sub(self.base);
        let Err(frame) = self.line.send(queue, frame, place.clone()) else { return Ok(true) };
        self.line.flush(queue)?;
        let Err(frame) = self.line.send(queue, frame, place) else { return Ok(true) };
        self.line.give_back(frame);
        Ok(false)
    }
}

impl PacketDriver for XskPacketDriver<'_> {
    fn meter() -> BatchTimer {
        BatchTimer::default()
    }

    fn ports(&self) -> Vec<usize> {
        (0..self.line.queues()).map(|queue| self.line.queue(queue).0).collect()
    }

    fn batch(&mut self) -> &mut PacketBatch {
        &mut self.batch
    }

    #[inline]
    fn receive(&mut self, at: usize, most: usize, ingress: u32) -> io::Result<ReceiveCounts> {
        let XskPacketDriver { batch, line, base, came, places, metadata, open, .. } = self;
        batch.clear();
        came.clear();
        let with = IngressInfo { ingress, queue: line.queue(at).1, open: *open };
        let mut unfit = Vec::new();
        let packets = match metadata {
            BufferMode::InPlace => {
                places.clear();
                let packets = line.receive(at, most, |frame, place| {
                    let (start, len) = (*base + frame.offset(), place.end.wrapping_sub(place.start));
                    places.push(PacketLocation { start, data: base.wrapping_add(place.start), len });
                    came.push(Some(frame));
                })?;
                let mut missed = Vec::new();
                batch.push_external(places.iter().copied(), with, |at| missed.push(at));
                // Positions of packets are those of their frames.
                unfit.extend(missed.into_iter().rev().filter_map(|at| came.remove(at)));
                packets
            }
            BufferMode::Copy => {
                let mut places = Vec::with_capacity(most);
                let packets = line.receive(at, most, |frame, place| places.push((frame, place)))?;
                let push = if *open { PacketBatch::push_open } else { PacketBatch::push };
                for (frame, Range { start, end }) in places {
                    let first = frame.offset();
                    let bytes = line.bytes(&frame).get((start - first) as usize..(end - first) as usize);
                    match push(batch, bytes.unwrap_or_default(), ingress) {
                        true => line.give_back(frame),
                        false => unfit.push(frame),
                    }
                }
                packets
            }
        };
        let received = ReceiveCounts { packets: packets as u64, unfit: unfit.len() as u64 };
        unfit.into_iter().for_each(|frame| line.give_back(frame));
        self.in_vain = if packets > 0 { 0 } else { self.in_vain.saturating_add(1) };
        Ok(received)
    }

    #[inline]
    fn forward(&mut self, at: Option<usize>, bounds: Range<u32>, list: usize, came: usize) -> io::Result<()> {
        let interface = self.lists[list].0;
        let is_back = self.line.queue(came).0 == interface;
        let queue = if is_back { came } else { self.queue_to(interface, came) };
        let found_room = self.send(at, bounds, queue)?;
        self.lists[list].1[usize::from(!found_room)] += 1;
        Ok(())
    }

    fn close(&mut self, mut told: impl FnMut(usize, [u64; 2])) -> io::Result<()> {
        let XskPacketDriver { line, came, lists, .. } = self;
        lists.iter_mut().enumerate().for_each(|(at, (_, counts))| told(at, std::mem::take(counts)));
        came.drain(..).flatten().for_each(|frame| line.give_back(frame));
        (0..line.queues()).try_for_each(|at| line.flush(at))
    }

    fn idle(&mut self) -> io::Result<()> {
        // Packets that the kernel did not take before, and frames that come back.
        (0..self.line.queues()).try_for_each(|at| self.line.flush(at))?;
        if !self.busy && self.in_vain > SPINS {
            self.line.wait(NAP)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        let end = Instant::now() + LAST;
        while self.line.unsent() > 0 && Instant::now() < end {
            for at in 0..self.line.queues() {
                self.line.flush(at)?;
            }
        }
        Ok(())
    }
}
