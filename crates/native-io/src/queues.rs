//! Workers that have queues of ports, for AF_XDP ([`super::xdp`]) and DPDK.
//!
//! A worker has some queues of every port and a thread of its own: it takes packets from the first step to
//! the last, so that those of one queue keep their order. The port assigns flows to queues. Queues take
//! turns, a batch each. This module processes packets; the trait `PacketDriver` receives and sends them.
//!
//! Invariant: as in [`super`]. A packet for which a port has no room is dropped, and counted, for
//! [`DropReason::NoRoom`]; nothing waits for it.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::batch_timer::BatchTimer;
use super::graph::{GraphPortNumbers, GraphRunStats};
use super::safepoint::{MainThreadTask, Safepoint};
use super::{DropReason, ForwardingDecision, PacketAccounting, RunStats, WorkerHooks, fate, joined};
use millstream_native::{NativeEngine, WorkerState};
use millstream_native_runtime::packet::PacketBatch;
use millstream_native_runtime::worker::ProgramEvent;

/// Owner of the buffers that programs work on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BufferMode {
    /// The port's: descriptors are written over them.
    #[default]
    InPlace,
    /// The program's: packets are copied in, and out into other buffers.
    Copy,
}

/// Parameters of serving ports.
#[derive(Clone, Copy)]
pub struct ServeConfig<'p> {
    /// Maximum number of packets to take at once.
    pub batch: usize,
    /// Overlay or copies.
    pub metadata: BufferMode,
    /// Maximum number of packets to receive; with several workers each may receive up to one batch more.
    pub most: u64,
    /// Returns true to go on; called by all workers after every batch and while nothing comes.
    pub goes_on: &'p (dyn Fn() -> bool + Sync),
}

/// Packets received by a queue.
#[derive(Clone, Copy, Default)]
pub(super) struct ReceiveCounts {
    pub(super) packets: u64,
    /// Packets among them that were not taken into the batch.
    pub(super) unfit: u64,
}

/// A worker's queues, and its packets in flight. Packets to be sent are put on lists, each of which leaves by
/// one port: a list for each port or, for a graph, for each output.
pub(super) trait PacketDriver {
    /// The meter for its packets.
    fn meter() -> BatchTimer;

    /// The port of each queue.
    fn ports(&self) -> Vec<usize>;

    /// The batch that was received last.
    fn batch(&mut self) -> &mut PacketBatch;

    /// Fills the batch with packets received by a queue, as from interface or source `ingress`.
    fn receive(&mut self, queue: usize, most: usize, ingress: u32) -> io::Result<ReceiveCounts>;

    /// Puts packet `at` of the batch, or a copy at these addresses, on a list; it was received by this queue.
    fn forward(&mut self, at: Option<usize>, bounds: Range<u32>, list: usize, queue: usize)
    -> io::Result<()>;

    /// Puts all packets that a graph has sent on the lists of their outputs.
    fn depart(&mut self, queue: usize) -> io::Result<()> {
        for at in 0..self.batch().sent_len() {
            let Some((output, original, bounds)) = self.batch().departure(at) else { continue };
            self.forward(original, bounds, output as usize, queue)?;
        }
        Ok(())
    }

    /// Sends the lists, reports for each how many packets its port takes and how many it does not, and frees
    /// all other packets.
    fn close(&mut self, told: impl FnMut(usize, [u64; 2])) -> io::Result<()>;

    /// Handles a queue by which nothing has come.
    fn idle(&mut self) -> io::Result<()>;

    /// Gives ports some time to send the last packets.
    fn finish(&mut self) -> io::Result<()>;
}

/// Ports as workers see them.
pub(super) struct PollModeServer<'s, L, E> {
    /// Queues of each worker.
    pub(super) lines: Vec<L>,
    /// Makes the worker's [`PacketDriver`] from its queues, on the worker's thread, with lists that leave by
    /// these ports; `true` for a graph.
    pub(super) enter: E,
    /// Interface numbers of ports for XDP programs.
    pub(super) numbers: &'s [u32],
    pub(super) plan: &'s ServeConfig<'s>,
    pub(super) crew: &'s WorkerHooks<'s>,
}

impl<L, E, C> PollModeServer<'_, L, E>
where
    L: Send,
    E: Fn(L, &[usize], bool) -> io::Result<C> + Sync,
    C: PacketDriver,
{
    /// Runs an XDP program on received packets, by all workers of the engine. `attend` runs beside them.
    pub(super) fn run(
        self,
        engine: &mut NativeEngine,
        attend: Option<MainThreadTask<'_>>,
    ) -> io::Result<RunStats> {
        let PollModeServer { lines, enter, numbers, plan, crew } = self;
        let total = ReceiveBudget { received: AtomicU64::new(0), plan };
        let lists: Vec<usize> = (0..numbers.len()).collect();
        let start = Instant::now();
        let begin = |line, engine: &NativeEngine, number| {
            let carry = enter(line, &lists, false)?;
            let turn = |(queue, port): (usize, usize)| PolledQueue {
                queue,
                port,
                ingress: numbers[port],
                source: 0,
            };
            let turns = carry.ports().into_iter().enumerate().map(turn).collect();
            Ok((QueuePoller::new(carry, turns), (engine.worker_state(number), RunStats::default())))
        };
        let step =
            |engine: &NativeEngine, round: &mut QueuePoller<C>, (lane, ran): &mut (WorkerState, RunStats)| {
                round.step(&total, |round, turn, most| {
                    let stamp = lane.stamp();
                    let run = |batch: &mut PacketBatch| {
                        engine.run_by(lane, batch);
                        lane.take_events()
                    };
                    round.carry.batch().expect(engine.layout());
                    let received = round.program(turn, most, numbers, ran, run)?;
                    lane.done(stamp, received);
                    if received > 0 {
                        lane.publish_worker_stats(ran);
                    }
                    Ok(received)
                })
            };
        let beside = |floor: &Safepoint<'_>| attend.into_iter().for_each(|attend| attend(floor));
        let done = spread(engine, lines, crew, (begin, step), beside)?;
        let ran = done.into_iter().map(|(_, ran)| ran).reduce(RunStats::and).unwrap_or_default();
        Ok(RunStats { total: start.elapsed(), ..ran })
    }

    /// Runs a graph on the packets received by the ports of its sources, by all workers of the engine.
    /// `between` is called between batches; with several workers now and then, when all of them are between
    /// two. It may replace the engine by another one.
    pub(super) fn run_graph(
        self,
        engine: &mut NativeEngine,
        ends: &GraphPortNumbers<'_>,
        between: Option<impl FnMut(&mut NativeEngine) -> bool>,
    ) -> io::Result<GraphRunStats> {
        match engine.workers() {
            1 => self.run_graph_here(engine, ends, between),
            _ => self.run_graph_by(engine, ends, between),
        }
    }

    fn run_graph_here(
        self,
        engine: &mut NativeEngine,
        ends: &GraphPortNumbers<'_>,
        mut between: Option<impl FnMut(&mut NativeEngine) -> bool>,
    ) -> io::Result<GraphRunStats> {
        let PollModeServer { lines, enter, plan, crew, .. } = self;
        (crew.enter)(0)?;
        let total = ReceiveBudget { received: AtomicU64::new(0), plan };
        let mut ran = GraphRunStats::none(ends.sources.len(), ends.outputs.len());
        let Some(line) = lines.into_iter().next() else { return Ok(ran) };
        let start = Instant::now();
        let mut round = QueuePoller::of_graph(enter(line, ends.outputs, true)?, ends);
        loop {
            let on = round.step(&total, |round, turn, most| {
                let stamp = engine.stamp();
                round.carry.batch().expect(engine.layout());
                let run = |batch: &mut PacketBatch| {
                    engine.run_graph(batch);
                    engine.take_events()
                };
                let received = round.graph(turn, most, &mut ran, run)?;
                engine.done(stamp, received);
                if received > 0 {
                    engine.publish_graph_stats(&ran);
                }
                Ok(received)
            })?;
            if !on || !between.as_mut().is_none_or(|between| between(engine)) {
                break;
            }
        }
        round.carry.finish()?;
        ran.total = start.elapsed();
        Ok(ran)
    }

    fn run_graph_by(
        self,
        engine: &mut NativeEngine,
        ends: &GraphPortNumbers<'_>,
        between: Option<impl FnMut(&mut NativeEngine) -> bool>,
    ) -> io::Result<GraphRunStats> {
        let PollModeServer { lines, enter, plan, crew, .. } = self;
        let total = ReceiveBudget { received: AtomicU64::new(0), plan };
        let none = || GraphRunStats::none(ends.sources.len(), ends.outputs.len());
        let start = Instant::now();
        let begin = |line, engine: &NativeEngine, number| {
            let round = QueuePoller::of_graph(enter(line, ends.outputs, true)?, ends);
            Ok((round, (engine.worker_state(number), none())))
        };
        let step = |engine: &NativeEngine,
                    round: &mut QueuePoller<C>,
                    (lane, ran): &mut (WorkerState, GraphRunStats)| {
            round.step(&total, |round, turn, most| {
                let stamp = lane.stamp();
                let run = |batch: &mut PacketBatch| {
                    engine.run_graph_by(lane, batch);
                    lane.take_events()
                };
                round.carry.batch().expect(engine.layout());
                let received = round.graph(turn, most, ran, run)?;
                lane.done(stamp, received);
                if received > 0 {
                    lane.publish_worker_graph_stats(ran);
                }
                Ok(received)
            })
        };
        let beside = |floor: &Safepoint<'_>| between.into_iter().for_each(|between| floor.ask(between));
        let done = spread(engine, lines, crew, (begin, step), beside)?;
        let ran = done.into_iter().map(|(_, ran)| ran).reduce(GraphRunStats::and).unwrap_or_else(none);
        Ok(GraphRunStats { total: start.elapsed(), ..ran })
    }
}

/// Runs each worker in a thread of its own, and returns the state of each: `begin` makes it, `step` takes a
/// batch from the first to the last step. `beside` runs meanwhile.
fn spread<L: Send, C: PacketDriver, S: Send>(
    engine: &mut NativeEngine,
    lines: Vec<L>,
    crew: &WorkerHooks<'_>,
    (begin, step): (
        impl Fn(L, &NativeEngine, u32) -> io::Result<(QueuePoller<C>, S)> + Sync,
        impl Fn(&NativeEngine, &mut QueuePoller<C>, &mut S) -> io::Result<bool> + Sync,
    ),
    beside: impl FnOnce(&Safepoint<'_>),
) -> io::Result<Vec<S>> {
    let floor = Safepoint::new(engine);
    thread::scope(|scope| {
        let spawned: Vec<_> = lines
            .into_iter()
            .zip(0..)
            .map(|(line, number)| {
                let (floor, begin, step) = (&floor, &begin, &step);
                scope.spawn(move || {
                    let (mut round, own) = floor.work(
                        |engine| {
                            (crew.enter)(number)?;
                            begin(line, engine, number)
                        },
                        |engine, (round, own)| step(engine, round, own),
                    )?;
                    round.carry.finish()?;
                    Ok(own)
                })
            })
            .collect();
        beside(&floor);
        spawned.into_iter().map(joined).collect()
    })
}

/// Packets that all workers have received.
struct ReceiveBudget<'p> {
    received: AtomicU64,
    plan: &'p ServeConfig<'p>,
}

impl ReceiveBudget<'_> {
    /// Number of packets that may be received at once; `None` if it is enough.
    fn most(&self) -> Option<usize> {
        let left = self.plan.most.saturating_sub(self.received.load(Ordering::Relaxed));
        (left > 0 && (self.plan.goes_on)()).then(|| left.min(self.plan.batch as u64) as usize)
    }

    fn add(&self, received: u64) {
        // Workers need not share a cache line for a number that nothing depends on.
        if self.plan.most != u64::MAX {
            self.received.fetch_add(received, Ordering::Relaxed);
        }
    }
}

/// A queue to serve, its port, and the interface and source numbers of its packets.
#[derive(Clone, Copy)]
struct PolledQueue {
    queue: usize,
    port: usize,
    ingress: u32,
    source: usize,
}

/// A worker's queues, by turns.
struct QueuePoller<C> {
    carry: C,
    turns: Vec<PolledQueue>,
    next: usize,
    meter: BatchTimer,
}

impl<C: PacketDriver> QueuePoller<C> {
    fn new(carry: C, turns: Vec<PolledQueue>) -> QueuePoller<C> {
        QueuePoller { carry, turns, next: 0, meter: C::meter() }
    }

    /// The queues of the ports of sources: other ports are only for sending.
    fn of_graph(carry: C, ends: &GraphPortNumbers<'_>) -> QueuePoller<C> {
        let ports = carry.ports();
        let of = |(source, wanted): (usize, &usize)| {
            let (wanted, queues) = (*wanted, ports.iter().enumerate());
            queues.filter(move |(_, port)| **port == wanted).map(move |(queue, port)| PolledQueue {
                queue,
                port: *port,
                ingress: source as u32 + 1,
                source,
            })
        };
        let turns = ends.sources.iter().enumerate().flat_map(of).collect();
        QueuePoller::new(carry, turns)
    }

    /// Serves the queue whose turn it is; returns true to go on. `take` takes at most this many packets of a
    /// queue from the first to the last step, and returns their number.
    fn step(
        &mut self,
        total: &ReceiveBudget<'_>,
        take: impl FnOnce(&mut Self, PolledQueue, usize) -> io::Result<u64>,
    ) -> io::Result<bool> {
        let (Some(most), Some(turn)) = (total.most(), self.turns.get(self.next).copied()) else {
            return Ok(false);
        };
        self.next = if self.next + 1 < self.turns.len() { self.next + 1 } else { 0 };
        match take(self, turn, most)? {
            0 => self.carry.idle()?,
            received => total.add(received),
        }
        Ok(true)
    }

    /// Takes a batch from a queue through a program, by `run`, which returns the records put into rings;
    /// returns the number of received packets.
    fn program(
        &mut self,
        turn: PolledQueue,
        most: usize,
        numbers: &[u32],
        ran: &mut RunStats,
        run: impl FnOnce(&mut PacketBatch) -> Vec<ProgramEvent>,
    ) -> io::Result<u64> {
        let QueuePoller { carry, meter, .. } = self;
        let ReceiveCounts { packets, unfit } = carry.receive(turn.queue, most, turn.ingress)?;
        if packets == 0 {
            return Ok(0);
        }
        ran.account.received += packets;
        ran.account.dropped[DropReason::Size as usize] += unfit;
        ran.events += measured(carry, meter, (&mut ran.busy, &mut ran.windows), run);
        settle(carry, turn, numbers, &mut ran.account)?;
        Ok(packets)
    }

    /// The same for a graph.
    fn graph(
        &mut self,
        turn: PolledQueue,
        most: usize,
        ran: &mut GraphRunStats,
        run: impl FnOnce(&mut PacketBatch) -> Vec<ProgramEvent>,
    ) -> io::Result<u64> {
        let QueuePoller { carry, meter, .. } = self;
        let ReceiveCounts { packets, unfit } = carry.receive(turn.queue, most, turn.ingress)?;
        if packets == 0 {
            return Ok(0);
        }
        ran.received[turn.source] += packets;
        ran.unfit += unfit;
        ran.events += measured(carry, meter, (&mut ran.busy, &mut ran.windows), run);
        ran.copies += carry.batch().copies() as u64;
        carry.depart(turn.queue)?;
        carry.close(|output, [sent, left]| {
            ran.sent[output] += sent;
            ran.no_room += left;
        })?;
        Ok(packets)
    }
}

/// Runs the current batch; returns the number of records put into rings.
fn measured(
    carry: &mut impl PacketDriver,
    meter: &mut BatchTimer,
    times: (&mut Duration, &mut Vec<f64>),
    run: impl FnOnce(&mut PacketBatch) -> Vec<ProgramEvent>,
) -> u64 {
    let (batch, mut events) = (carry.batch(), 0);
    meter.measure(batch.len(), times, || events = run(batch).len());
    events as u64
}

/// Handles the packets of a batch by the program's verdicts.
fn settle(
    carry: &mut impl PacketDriver,
    turn: PolledQueue,
    numbers: &[u32],
    account: &mut PacketAccounting,
) -> io::Result<()> {
    // Packets that leave by the incoming port without a redirect to it.
    let mut back = 0;
    for at in 0..carry.batch().len() {
        let list = match fate(carry.batch(), at) {
            ForwardingDecision::Back => {
                back += 1;
                turn.port
            }
            ForwardingDecision::To(index) => match numbers.iter().position(|number| *number == index) {
                Some(port) => port,
                None => {
                    account.dropped(DropReason::NoTarget);
                    continue;
                }
            },
            ForwardingDecision::Dropped(reason) => {
                account.dropped(reason);
                continue;
            }
        };
        let bounds = carry.batch().bounds(at);
        carry.forward(Some(at), bounds, list, turn.queue)?;
    }
    carry.close(|port, [sent, left]| {
        let returned = if port == turn.port { sent.min(back) } else { 0 };
        account.transmitted += returned;
        account.redirected += sent - returned;
        account.dropped[DropReason::NoRoom as usize] += left;
    })
}
