//! Packets from and to interfaces by AF_XDP, by several workers.
//!
//! A worker's queues ([`super::queues`]) share one memory ([`millstream_ports::XskQueues`]).
//!
//! In place (by exchange, `BufferMode::InPlace`) the frames that the kernel fills are the program's
//! buffers: descriptors are written over them, and a frame to be sent is put into the ring of its outgoing
//! queue, of whichever interface, in exchange for a frame that comes back from there. Nothing is copied or
//! allocated. The memory lies below 2 GiB, within the range of the fields of packets; packets have the usual
//! room around them. A burst with a packet in several frames is copied (`burst_batches`), and a packet
//! longer than a frame is copied into several.
//!
//! Invariant: as in [`super::queues`].

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_ports::{
    FrameMemory, PortDropCounts, PortError, ReceivedPart, UmemFrame, XdpInterface, XdpInterfaces, XskOptions,
    XskQueues, XskQueuesConfig,
};

use super::batch_timer::BatchTimer;
use super::burst_batches::BurstBatches;
use super::graph::{GraphPortNumbers, GraphRunStats};
use super::live::{NAP, SPINS};
use super::queues::{PacketDriver, PollModeServer, ReceiveCounts, ServeConfig};
use super::safepoint::MainThreadTask;
use super::{RunStats, WorkerHooks};
use millstream_native::NativeEngine;
use millstream_native_runtime::packet::{IngressInfo, LONGEST, PacketBatch, PacketLocation};
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
    batches: BurstBatches,
    interfaces: &'w [XdpInterface],
    line: &'w mut XskQueues,
    /// Address of the first byte of the line's memory.
    base: u32,
    /// In place: the frames of the packets of the batch, until they are sent.
    came: Vec<Option<UmemFrame>>,
    /// Locations of the received packets, or of their parts.
    places: Vec<PacketLocation>,
    /// True for the last part of each packet.
    lasts: Vec<bool>,
    /// The worker's queues of each interface.
    queues: Vec<Vec<usize>>,
    /// The interface of each list, the number of its packets that were sent, and of those that found no room.
    lists: Vec<(usize, [u64; 2])>,
    /// True if packets are a graph's.
    open: bool,
    busy: bool,
    /// Number of looks in vain since something came.
    in_vain: u32,
}

impl<'w> XskPacketDriver<'w> {
    fn new(
        (line, room): WorkerUmem<'w>,
        (interfaces, lists): (&'w [XdpInterface], &[usize]),
        (open, busy): (bool, bool),
        plan: &ServeConfig<'_>,
    ) -> io::Result<XskPacketDriver<'w>> {
        let batches = BurstBatches::new(room, plan, open)?;
        let queues_of = |at| (0..line.queues()).filter(|&queue| line.queue(queue).0 == at).collect();
        let queues = (0..interfaces.len()).map(queues_of).collect();
        let lists = lists.iter().map(|interface| (*interface, [0; 2])).collect();
        let (came, places) = (Vec::with_capacity(plan.batch), Vec::with_capacity(plan.batch));
        let base = room.address() as u32;
        Ok(XskPacketDriver {
            batches,
            interfaces,
            line,
            base,
            came,
            places,
            lasts: Vec::with_capacity(plan.batch),
            queues,
            lists,
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

    /// Names the interface that was removed, as the cause of an error.
    fn named(interfaces: &[XdpInterface], e: io::Error) -> io::Error {
        match interfaces.iter().find(|interface| interface.is_removed()) {
            Some(gone) => io::Error::new(e.kind(), format!("the interface {} was removed", gone.name())),
            None => e,
        }
    }

    fn flush(&mut self, queue: usize) -> io::Result<()> {
        self.line.flush(queue).map_err(|e| Self::named(self.interfaces, e))
    }

    /// Sends packet `at` of the batch, or one at other addresses, by a queue; `false` if that has no room.
    #[inline]
    fn send(&mut self, at: Option<usize>, bounds: Range<u32>, queue: usize) -> io::Result<bool> {
        let frame = at.and_then(|at| self.came.get_mut(at)).and_then(Option::take);
        let Some(frame) = frame else {
            let bytes = self.batches.current().departing(bounds);
            if self.line.send_copy(queue, bytes) {
                return Ok(true);
            }
            self.line.flush(queue).map_err(|e| Self::named(self.interfaces, e))?;
            return Ok(self.line.send_copy(queue, bytes));
        };
        let place = bounds.start.wrapping_sub(self.base)..bounds.end.wrapping_sub(self.base);
        let Err(frame) = self.line.send(queue, frame, place.clone()) else { return Ok(true) };
        self.flush(queue)?;
        let Err(frame) = self.line.send(queue, frame, place) else { return Ok(true) };
        self.line.give_back(frame);
        Ok(false)
    }
}

/// The bytes of a received packet, or of a part of one.
fn bytes_of<'f>(line: &'f XskQueues, frame: Option<&'f UmemFrame>, place: PacketLocation) -> &'f [u8] {
    let from = place.data.wrapping_sub(place.start) as usize;
    let bytes = frame.map_or(&[][..], |frame| line.bytes(frame));
    bytes.get(from..from + place.len as usize).unwrap_or_default()
}

impl PacketDriver for XskPacketDriver<'_> {
    fn meter() -> BatchTimer {
        BatchTimer::default()
    }

    fn ports(&self) -> Vec<usize> {
        (0..self.line.queues()).map(|queue| self.line.queue(queue).0).collect()
    }

    fn batch(&mut self) -> &mut PacketBatch {
        self.batches.current()
    }

    #[inline]
    fn receive(&mut self, at: usize, most: usize, ingress: u32) -> io::Result<ReceiveCounts> {
        let XskPacketDriver { batches, interfaces, line, base, came, places, lasts, open, .. } = self;
        came.clear();
        places.clear();
        lasts.clear();
        // Bytes of the longest packet, and of the parts of the current one.
        let (mut longest, mut length, mut is_whole) = (0, 0, true);
        let packets = line.receive(at, most.min(batches.most()), |ReceivedPart { frame, place, is_last }| {
            let (start, len) = (*base + frame.offset(), place.end.wrapping_sub(place.start));
            places.push(PacketLocation { start, data: base.wrapping_add(place.start), len });
            came.push(Some(frame));
            lasts.push(is_last);
            is_whole &= is_last;
            length += len as usize;
            if is_last {
                longest = longest.max(std::mem::take(&mut length));
            }
        });
        let packets = packets.map_err(|e| Self::named(interfaces, e))?;
        self.in_vain = if packets > 0 { 0 } else { self.in_vain.saturating_add(1) };
        let with = IngressInfo { ingress, queue: line.queue(at).1, open: *open };
        let fits = is_whole && longest <= LONGEST;
        let unfit = match if fits { batches.begin_in_place() } else { None } {
            Some(batch) => {
                let mut missed = Vec::new();
                batch.push_external(places.iter().copied(), with, |at| missed.push(at));
                // Positions of packets are those of their frames.
                for at in missed.iter().rev() {
                    came.remove(*at).into_iter().for_each(|frame| line.give_back(frame));
                }
                missed.len()
            }
            None => {
                let batch = batches.begin_copied(longest);
                let (mut unfit, mut first) = (0, 0);
                for end in (1..=lasts.len()).filter(|end| lasts[end - 1]) {
                    let parts = came[first..end].iter().zip(&places[first..end]);
                    let parts = parts.map(|(frame, place)| bytes_of(line, frame.as_ref(), *place));
                    unfit += usize::from(!batch.push_parts(parts, with));
                    first = end;
                }
                came.drain(..).flatten().for_each(|frame| line.give_back(frame));
                unfit
            }
        };
        Ok(ReceiveCounts { packets: packets as u64, unfit: unfit as u64 })
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
        (0..self.line.queues()).try_for_each(|at| self.flush(at))
    }

    fn idle(&mut self) -> io::Result<()> {
        // Packets that the kernel did not take before, and frames that come back.
        (0..self.line.queues()).try_for_each(|at| self.flush(at))?;
        if !self.busy && self.in_vain > SPINS {
            self.line.wait(NAP).map_err(|e| Self::named(self.interfaces, e))?;
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        let end = Instant::now() + LAST;
        while self.line.unsent() > 0 && Instant::now() < end {
            for at in 0..self.line.queues() {
                self.flush(at)?;
            }
        }
        Ok(())
    }
}
