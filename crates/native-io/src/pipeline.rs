//! A graph in stages, each a worker on a processor of its own: the part in front of queues, the part behind
//! the first queue that a packet reaches, and so on.
//!
//! The first worker takes packets from sources; those that reach a queue go through a ring of bursts to the
//! next one, with their annotations, which the code has put into their buffers. A packet that reaches another
//! queue at the last worker stays with it: nothing goes back, so no worker ever waits for one that waits for
//! it. Packets come from memory ([`run_graph_pipelined`]) or by wires ([`serve_graph_pipelined`]).
//!
//! If a ring is full, the worker in front of it waits (back-pressure): no packet is lost between stages.
//! Packets that arrive at an interface meanwhile wait there; those for which the interface has no room are
//! lost before they are received. A worker that ends, for whatever reason, closes its rings, and the others
//! end, too: those behind it when they have sent the contents of the rings. Somebody else can access the
//! engine exclusively when the first worker has stopped and the others have sent the contents of the rings
//! ([`super::safepoint`]).
//!
//! Invariant: received + copies = sent + dropped, over all stages together, where the graph itself counts the
//! dropped packets. Packets of a flow that take the same path stay in order.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use super::batch_timer::BatchTimer;
use super::graph::{GraphPortNumbers, GraphRunStats, GraphSources, GraphWorker, SentPacket, copies};
use super::live::{self, PacketPort, send_with_retry};
use super::queues::ServeConfig;
use super::safepoint::{NextAction, Safepoint};
use super::{WorkerHooks, joined};
use millstream_native::{NativeEngine, WorkerState};
use millstream_native_runtime::packet::{DescriptorLayout, PacketBatch, PacketExtent};

/// Bursts that a ring holds. Each comes from one batch.
const RING: usize = 16;
/// Number of looks at a ring, or at wires, before the processor is yielded.
const SPINS: u32 = 64;
/// Number of looks before a worker sleeps, and the duration of the sleep. (Sockets have room for packets that
/// arrive meanwhile.)
const YIELDS: u32 = 2_000;
const NAP: Duration = Duration::from_micros(50);

/// A packet on its way from stage to stage.
#[derive(Clone, Copy, Debug)]
struct InFlightPacket {
    /// Offset of its bytes in the burst.
    at: usize,
    carried: PacketExtent,
    source: usize,
    number: u64,
}

/// Packets that a batch has left in queues.
#[derive(Debug, Default)]
struct PacketBurst {
    bytes: Vec<u8>,
    parcels: Vec<InFlightPacket>,
}

impl PacketBurst {
    fn clear(&mut self) {
        self.bytes.clear();
        self.parcels.clear();
    }

    fn put(&mut self, (bytes, carried): (&[u8], PacketExtent), source: usize, number: u64) {
        self.parcels.push(InFlightPacket { at: self.bytes.len(), carried, source, number });
        self.bytes.extend_from_slice(bytes);
    }

    fn get(&self, parcel: &InFlightPacket) -> &[u8] {
        &self.bytes[parcel.at..parcel.at + parcel.carried.length()]
    }
}

/// Ring of bursts from one worker to another, in order. One side pushes, one takes; each slot belongs to one
/// of them at a time, by the two counts, so its lock is never contended.
struct SpscRing<T> {
    slots: Box<[Mutex<T>]>,
    /// Numbers of pushed and of taken bursts.
    pushed: AtomicUsize,
    taken: AtomicUsize,
    /// True if nothing will be pushed any more.
    closed: AtomicBool,
    /// True if nothing will be taken any more.
    gone: AtomicBool,
}

/// Result of a look at a ring.
#[derive(PartialEq, Eq, Debug)]
enum RingPoll {
    /// There was room, or an item.
    Done,
    /// Not now.
    Later,
    /// Never again: the other side has ended.
    Never,
}

impl<T: Default> SpscRing<T> {
    fn new(slots: usize) -> SpscRing<T> {
        SpscRing {
            slots: (0..slots).map(|_| Mutex::default()).collect(),
            pushed: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        }
    }

    /// Checks for room, for the side that pushes.
    fn room(&self) -> RingPoll {
        let free =
            self.pushed.load(Ordering::Relaxed) - self.taken.load(Ordering::Acquire) < self.slots.len();
        match free {
            _ if self.gone.load(Ordering::Acquire) => RingPoll::Never,
            true => RingPoll::Done,
            false => RingPoll::Later,
        }
    }

    /// Checks for an item, for the side that takes. `closed` is read first: everything pushed before that is
    /// seen then.
    fn filled(&self) -> RingPoll {
        let closed = self.closed.load(Ordering::Acquire);
        let filled = self.pushed.load(Ordering::Acquire) != self.taken.load(Ordering::Relaxed);
        match (filled, closed) {
            (true, _) => RingPoll::Done,
            (false, false) => RingPoll::Later,
            (false, true) => RingPoll::Never,
        }
    }

    /// Swaps an item with the slot of number `at`, which belongs to the caller.
    fn exchange(&self, at: usize, with: &mut T) {
        if let Ok(mut slot) = self.slots[at % self.slots.len()].lock() {
            std::mem::swap(&mut *slot, with);
        }
    }

    /// Pushes an item, and takes out the one that the other side has left there for reuse; only if the result
    /// is [`RingPoll::Done`].
    fn push(&self, what: &mut T) -> RingPoll {
        let look = self.room();
        if look == RingPoll::Done {
            let at = self.pushed.load(Ordering::Relaxed);
            self.exchange(at, what);
            self.pushed.store(at + 1, Ordering::Release);
        }
        look
    }

    /// The same for the side that takes.
    fn take(&self, what: &mut T) -> RingPoll {
        let look = self.filled();
        if look == RingPoll::Done {
            let at = self.taken.load(Ordering::Relaxed);
            self.exchange(at, what);
            self.taken.store(at + 1, Ordering::Release);
        }
        look
    }
}

/// One side of a ring: when it is dropped, the other one is told.
struct RingEndGuard<'r>(&'r AtomicBool);

impl Drop for RingEndGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Number of a worker's looks in vain.
#[derive(Default)]
struct StageBackoff(u32);

impl StageBackoff {
    fn rest(&mut self) {
        self.0 = self.0.saturating_add(1);
        match self.0 {
            looks if looks <= SPINS => std::hint::spin_loop(),
            looks if looks <= YIELDS => thread::yield_now(),
            _ => thread::sleep(NAP),
        }
    }
}

/// Retries until it is done; returns false if that never happens.
fn until_done(mut attempt: impl FnMut() -> RingPoll) -> bool {
    let mut idle = StageBackoff::default();
    loop {
        match attempt() {
            RingPoll::Done => return true,
            RingPoll::Never => return false,
            RingPoll::Later => idle.rest(),
        }
    }
}

/// Sources and sinks of packets. All workers use it.
trait PipelineIo: Sync {
    /// State of the first worker, for this many packets at once.
    fn hand(&self, size: usize) -> io::Result<GraphWorker<'_>>;

    /// Fills the batch from a source, and counts received packets.
    fn fill(&self, hand: &mut GraphWorker<'_>, source: usize) -> io::Result<()>;

    /// Takes a sent packet; `false` if there is no room for it.
    fn take(&self, packet: SentPacket<'_>) -> io::Result<bool>;

    /// Sends queued packets, or continues to.
    fn flush(&self) -> io::Result<()>;

    /// Next action of the first worker after a round of all sources: `any` if some had packets, `received` in
    /// all.
    fn next(&self, any: bool, received: u64) -> NextAction;
}

/// Packets in memory, and the receiver of sent packets.
struct MemoryPipelineIo<'m, T> {
    sources: GraphSources<'m>,
    outputs: usize,
    take: &'m T,
}

impl<T: Fn(SentPacket<'_>) -> io::Result<()> + Sync> PipelineIo for MemoryPipelineIo<'_, T> {
    fn hand(&self, size: usize) -> io::Result<GraphWorker<'_>> {
        GraphWorker::new(self.sources.supplies(1)?.remove(0), self.outputs, size)
    }

    fn fill(&self, hand: &mut GraphWorker<'_>, source: usize) -> io::Result<()> {
        hand.fill(source, &self.sources)
    }

    fn take(&self, packet: SentPacket<'_>) -> io::Result<bool> {
        (self.take)(packet).map(|()| true)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn next(&self, any: bool, _: u64) -> NextAction {
        match self.sources.waiting() {
            _ if any => NextAction::Batch,
            true => NextAction::Nap,
            false => NextAction::End,
        }
    }
}

/// Wires of sources and outputs. A wire is locked while a worker receives a batch by it or sends a packet,
/// and no longer: nobody sleeps with the lock.
struct PortPipelineIo<'w, W> {
    wires: Vec<Mutex<&'w mut W>>,
    ends: GraphPortNumbers<'w>,
    plan: &'w ServeConfig<'w>,
}

impl<'w, W> PortPipelineIo<'w, W> {
    fn wire(&self, at: usize) -> io::Result<MutexGuard<'_, &'w mut W>> {
        self.wires[at].lock().map_err(|_| io::Error::other("another worker has failed"))
    }
}

impl<W: PacketPort + Send> PipelineIo for PortPipelineIo<'_, W> {
    fn hand(&self, size: usize) -> io::Result<GraphWorker<'_>> {
        let (sources, outputs) = (self.ends.sources.len(), self.ends.outputs.len());
        let mut hand = GraphWorker::new(Vec::new(), outputs, size)?;
        hand.ran = GraphRunStats::none(sources, outputs);
        Ok(hand)
    }

    fn fill(&self, hand: &mut GraphWorker<'_>, source: usize) -> io::Result<()> {
        let GraphWorker { batch, numbers, ran, .. } = hand;
        batch.clear();
        numbers.clear();
        self.wire(self.ends.sources[source])?.receive(batch.capacity(), &mut |bytes| {
            match batch.push_open(bytes, source as u32 + 1) {
                true => numbers.push(ran.received[source]),
                false => ran.unfit += 1,
            }
            ran.received[source] += 1;
        })?;
        Ok(())
    }

    fn take(&self, packet: SentPacket<'_>) -> io::Result<bool> {
        send_with_retry(&mut **self.wire(self.ends.outputs[packet.output])?, packet.bytes)
    }

    fn flush(&self) -> io::Result<()> {
        (0..self.wires.len()).try_for_each(|at| self.wire(at)?.flush().map(|_| ()))
    }

    fn next(&self, _: bool, received: u64) -> NextAction {
        (received < self.plan.most && (self.plan.goes_on)()).into()
    }
}

/// Runs all packets of all sources through a graph that was compiled in stages, with this many outputs beside
/// that of its queues, by the engine's workers, each a stage. `take` is called by all. `between` is called
/// now and then, when all are between two batches and the rings are empty: it may replace the engine by
/// another one, of a graph in stages; `false` ends the run.
///
/// # Errors
/// If the receiver of sent packets fails, there is no memory for a batch, a worker cannot begin, or there is
/// only one worker.
pub fn run_graph_pipelined<'f>(
    engine: &mut NativeEngine,
    sources: impl Into<GraphSources<'f>>,
    outputs: usize,
    size: usize,
    crew: &WorkerHooks<'_>,
    take: &(impl Fn(SentPacket<'_>) -> io::Result<()> + Sync),
    between: Option<impl FnMut(&mut NativeEngine) -> bool>,
) -> io::Result<GraphRunStats> {
    let sources = sources.into();
    let memory = MemoryPipelineIo { sources, outputs, take };
    run(engine, &memory, (sources.feeds.len(), outputs), (size, crew), between)
}

/// Serves the wires of such a graph's sources and outputs as long as `plan` says. The first worker receives;
/// each sends the packets that leave by its stage. Received packets are processed and sent before this
/// returns. `between` is called as there.
///
/// # Errors
/// As for [`run_graph_pipelined`], and if a wire fails.
pub fn serve_graph_pipelined<W: PacketPort + Send>(
    engine: &mut NativeEngine,
    wires: &mut [W],
    ends: &GraphPortNumbers<'_>,
    (plan, crew): (&ServeConfig<'_>, &WorkerHooks<'_>),
    between: Option<impl FnMut(&mut NativeEngine) -> bool>,
) -> io::Result<GraphRunStats> {
    let counts = (ends.sources.len(), ends.outputs.len());
    let carry = PortPipelineIo { wires: wires.iter_mut().map(Mutex::new).collect(), ends: *ends, plan };
    let ran = run(engine, &carry, counts, (plan.batch, crew), between)?;
    live::finish(wires)?;
    Ok(ran)
}

fn run(
    engine: &mut NativeEngine,
    carry: &impl PipelineIo,
    (sources, outputs): (usize, usize),
    (size, crew): (usize, &WorkerHooks<'_>),
    between: Option<impl FnMut(&mut NativeEngine) -> bool>,
) -> io::Result<GraphRunStats> {
    let stages = engine.workers();
    let rings: Vec<SpscRing<PacketBurst>> = (1..stages).map(|_| SpscRing::new(RING)).collect();
    let Some(ring) = rings.first() else {
        return Err(io::Error::other("stages are two workers and more: this engine is for one"));
    };
    let floor = Safepoint::of_stages(engine);
    let start = Instant::now();
    let done = thread::scope(|scope| {
        let (rings, floor, enter) = (&rings, &floor, crew.enter);
        let first = scope.spawn(move || {
            let _side = RingEndGuard(&ring.closed);
            let begin = |engine: &NativeEngine| {
                enter(0)?;
                Ok((
                    carry.hand(size)?,
                    engine.worker_state(0),
                    PacketBurst::default(),
                    StageBackoff::default(),
                ))
            };
            let (hand, ..) = floor.work_as(0, begin, |engine, (hand, lane, burst, idle)| {
                let mut any = false;
                for source in 0..sources {
                    let stamp = lane.stamp();
                    if !in_front(engine, lane, hand, (source, carry, outputs), burst)? {
                        continue;
                    }
                    any = true;
                    lane.done(stamp, hand.numbers.len() as u64);
                    if !burst.parcels.is_empty() && !until_done(|| ring.push(burst)) {
                        // A worker behind this one has failed, and reports the error.
                        return Ok(NextAction::End);
                    }
                    burst.clear();
                    lane.publish_worker_graph_stats(&hand.ran);
                }
                let next = carry.next(any, hand.ran.received.iter().sum());
                if any {
                    *idle = StageBackoff::default();
                } else if matches!(next, NextAction::Batch) {
                    carry.flush()?;
                    idle.rest();
                }
                Ok(next)
            })?;
            Ok(hand.ran)
        });
        let behind = |(stage, number): (usize, u32)| {
            scope.spawn(move || {
                let (ring, onward) = (&rings[stage - 1], rings.get(stage));
                let _sides = (RingEndGuard(&ring.gone), onward.map(|onward| RingEndGuard(&onward.closed)));
                let begin = |engine: &NativeEngine| {
                    enter(number)?;
                    DownstreamWorker::new(engine, number, (sources, outputs), size)
                };
                let behind = floor.work_as(stage, begin, |engine, behind| {
                    match behind.next(ring, engine.layout())? {
                        RingPoll::Done => behind.run(engine, carry, onward).map(NextAction::from),
                        RingPoll::Later => {
                            behind.idle.rest();
                            Ok(NextAction::Dry)
                        }
                        RingPoll::Never => Ok(NextAction::End),
                    }
                })?;
                Ok(behind.ran)
            })
        };
        let spawned: Vec<_> = std::iter::once(first).chain((1..).zip(1..stages).map(behind)).collect();
        if let Some(between) = between {
            floor.ask(between);
        }
        spawned.into_iter().map(joined).collect::<io::Result<Vec<GraphRunStats>>>()
    })?;
    let mut ran = done.into_iter().reduce(GraphRunStats::and).unwrap_or_default();
    ran.total = start.elapsed();
    Ok(ran)
}

/// Takes a batch from a source to the outputs, and to queues: those packets go into the burst. Returns true
/// if any packet was received.
fn in_front(
    engine: &NativeEngine,
    lane: &mut WorkerState,
    hand: &mut GraphWorker<'_>,
    (source, carry, queue): (usize, &impl PipelineIo, usize),
    burst: &mut PacketBurst,
) -> io::Result<bool> {
    let before = hand.ran.received[source];
    hand.batch.expect(engine.layout());
    carry.fill(hand, source)?;
    let GraphWorker { batch, ran, numbers, meter, .. } = hand;
    if numbers.is_empty() {
        return Ok(ran.received[source] > before);
    }
    let mut events = Vec::new();
    meter.measure(batch.len(), (&mut ran.busy, &mut ran.windows), || {
        engine.run_graph_by(lane, batch);
        events = lane.take_events();
    });
    ran.events += events.len() as u64;
    ran.copies += batch.copies() as u64;
    let origin = |at: usize| (source, numbers.get(at).copied().unwrap_or(0));
    settle(batch, (ran, queue), &origin, burst, carry)?;
    Ok(true)
}

/// Sends the packets that a batch has sent, except those in queues, which go into the burst. `origin` returns
/// source and number of the packet received at a place.
fn settle(
    batch: &PacketBatch,
    (ran, queue): (&mut GraphRunStats, usize),
    origin: &impl Fn(usize) -> (usize, u64),
    burst: &mut PacketBurst,
    carry: &impl PipelineIo,
) -> io::Result<()> {
    for (place, (bytes, output, at)) in batch.sent().enumerate() {
        let (output, (source, number)) = (output as usize, origin(at));
        if output == queue {
            if let Some(carried) = batch.carried(place) {
                burst.put(carried, source, number);
            }
            continue;
        }
        match carry.take(SentPacket { bytes, output, source, number, arrival: batch.arrival(at) })? {
            true => ran.sent[output] += 1,
            false => ran.no_room += 1,
        }
    }
    carry.flush()
}

/// State of a worker behind others.
struct DownstreamWorker {
    lane: WorkerState,
    batch: PacketBatch,
    /// Sources and numbers of the packets in the batch.
    origins: Vec<(usize, u64)>,
    /// The current burst, and the number of its packets that were run.
    burst: PacketBurst,
    done: usize,
    /// Packets that the current batch has left in queues, and those of them that wait if there is no stage
    /// behind.
    left: PacketBurst,
    again: VecDeque<PacketBurst>,
    /// Source number for packets from queues, and output number for packets to queues.
    ingress: u32,
    queue: usize,
    idle: StageBackoff,
    meter: BatchTimer,
    ran: GraphRunStats,
}

impl DownstreamWorker {
    fn new(
        engine: &NativeEngine,
        number: u32,
        (sources, outputs): (usize, usize),
        size: usize,
    ) -> io::Result<DownstreamWorker> {
        Ok(DownstreamWorker {
            lane: engine.worker_state(number),
            batch: PacketBatch::with_copies(size, copies(size))?,
            origins: Vec::with_capacity(size),
            burst: PacketBurst::default(),
            done: 0,
            left: PacketBurst::default(),
            again: VecDeque::new(),
            ingress: sources as u32 + 1,
            queue: outputs,
            idle: StageBackoff::default(),
            meter: BatchTimer::default(),
            ran: GraphRunStats::none(sources, outputs),
        })
    }

    /// Fills a batch with the packets that have waited longest, if any, with descriptors in this layout.
    fn next(&mut self, ring: &SpscRing<PacketBurst>, layout: DescriptorLayout) -> io::Result<RingPoll> {
        self.batch.clear();
        self.batch.expect(layout);
        self.origins.clear();
        if self.done == self.burst.parcels.len() {
            self.done = 0;
            match self.again.pop_front() {
                Some(burst) => self.burst = burst,
                None => {
                    self.burst.clear();
                    let look = ring.take(&mut self.burst);
                    if look != RingPoll::Done {
                        return Ok(look);
                    }
                }
            }
        }
        self.idle = StageBackoff::default();
        if let Some(first) = self.burst.parcels.get(self.done) {
            // A batch may bring longer packets than those before.
            self.batch.grow_to(first.carried.length())?;
        }
        for parcel in &self.burst.parcels[self.done..] {
            if !self.batch.push_carried(self.burst.get(parcel), parcel.carried, self.ingress) {
                break;
            }
            self.origins.push((parcel.source, parcel.number));
        }
        self.done += self.origins.len();
        Ok(RingPoll::Done)
    }

    /// Takes the batch to the outputs, and to queues: those packets go to the next stage, if there is one.
    /// Returns true to go on.
    fn run(
        &mut self,
        engine: &NativeEngine,
        carry: &impl PipelineIo,
        onward: Option<&SpscRing<PacketBurst>>,
    ) -> io::Result<bool> {
        let DownstreamWorker { lane, batch, origins, left, again, queue, meter, ran, .. } = self;
        let stamp = lane.stamp();
        let mut events = Vec::new();
        meter.measure(batch.len(), (&mut ran.busy, &mut ran.windows), || {
            engine.run_graph_by(lane, batch);
            events = lane.take_events();
        });
        ran.events += events.len() as u64;
        ran.copies += batch.copies() as u64;
        let origin = |at: usize| origins.get(at).copied().unwrap_or_default();
        settle(batch, (ran, *queue), &origin, left, carry)?;
        lane.done(stamp, origins.len() as u64);
        lane.publish_worker_graph_stats(ran);
        match onward {
            _ if left.parcels.is_empty() => {}
            Some(ring) if until_done(|| ring.push(left)) => left.clear(),
            // A worker behind this one has failed, and reports the error.
            Some(_) => return Ok(false),
            None => again.push_back(std::mem::take(left)),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of the side that pushes three numbers and ends, and of the side that takes until there is
    /// nothing more, in one of many orders.
    struct Run {
        ring: SpscRing<u32>,
        pushed: u32,
        /// True between a look and the exchange that follows it.
        looked: [bool; 2],
        swapped: [bool; 2],
        taken: Vec<u32>,
        ended: [bool; 2],
    }

    const PUSHED: u32 = 3;

    impl Run {
        fn new(slots: usize) -> Run {
            let ring = SpscRing::new(slots);
            Run {
                ring,
                pushed: 0,
                looked: [false; 2],
                swapped: [false; 2],
                taken: Vec::new(),
                ended: [false; 2],
            }
        }

        /// A step of one side, as `push` and `take` make them: a look, an exchange, a count.
        fn step(&mut self, taker: bool) {
            let side = usize::from(taker);
            if self.ended[side] {
                return;
            }
            if !self.looked[side] {
                if !taker && self.pushed == PUSHED {
                    self.ring.closed.store(true, Ordering::Release);
                    self.ended[side] = true;
                    return;
                }
                match if taker { self.ring.filled() } else { self.ring.room() } {
                    RingPoll::Done => self.looked[side] = true,
                    RingPoll::Later => {}
                    RingPoll::Never => self.ended[side] = true,
                }
            } else if !self.swapped[side] {
                let count = if taker { &self.ring.taken } else { &self.ring.pushed };
                let mut what = if taker { 0 } else { self.pushed + 1 };
                self.ring.exchange(count.load(Ordering::Relaxed), &mut what);
                if taker {
                    self.taken.push(what);
                } else {
                    assert_eq!(what, 0, "what is there was taken");
                    self.pushed += 1;
                }
                self.swapped[side] = true;
            } else {
                let count = if taker { &self.ring.taken } else { &self.ring.pushed };
                count.fetch_add(1, Ordering::Release);
                (self.looked[side], self.swapped[side]) = (false, false);
            }
        }
    }

    #[test]
    fn in_every_order_of_steps_all_is_taken_once_in_order_and_both_sides_end() {
        const STEPS: u32 = 16;
        for slots in [1, 2, 3] {
            for order in 0..1u32 << STEPS {
                let mut run = Run::new(slots);
                (0..STEPS).for_each(|step| run.step(order >> step & 1 == 1));
                // Then alternately: every run ends, however it has begun.
                for _ in 0..40 {
                    [true, false].into_iter().for_each(|taker| run.step(taker));
                }
                assert_eq!(
                    (run.taken.as_slice(), run.ended),
                    (&[1, 2, 3][..], [true; 2]),
                    "{slots} {order:b}"
                );
            }
        }
    }

    #[test]
    fn two_threads_pass_all_in_order_through_a_ring_of_two() {
        let ring = SpscRing::<u64>::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                let _side = RingEndGuard(&ring.closed);
                for number in 1..=100_000u64 {
                    let mut what = number;
                    assert!(until_done(|| ring.push(&mut what)));
                }
            });
            let (mut what, mut last) = (0, 0);
            while until_done(|| ring.take(&mut what)) {
                assert_eq!(what, last + 1);
                last = std::mem::take(&mut what);
            }
            assert_eq!(last, 100_000);
        });
    }

    #[test]
    fn whoever_pushes_ends_when_nobody_takes_any_more() {
        let ring = SpscRing::<u64>::new(1);
        assert_eq!(ring.push(&mut 1), RingPoll::Done);
        thread::scope(|scope| {
            let pushing = scope.spawn(|| until_done(|| ring.push(&mut 2)));
            drop(RingEndGuard(&ring.gone));
            assert!(!pushing.join().expect("no panic"));
        });
    }
}
