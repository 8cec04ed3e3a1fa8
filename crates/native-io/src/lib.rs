//! Sources and sinks of packets, and the account of each packet's fate.
//!
//! A source is packets in memory, replayed in an order, once or repeatedly: the working set is that of the
//! frames and of one batch, however long it runs. Sent packets go to a [`PacketSink`]. Interfaces are
//! [`live`]. With several workers each has the packets of its flows ([`steer`]) from the first to the last
//! step.

mod batch_timer;
mod burst_batches;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod graph;
pub mod idle_sources;
pub mod live;
pub mod packet_ports;
pub mod packet_source;
pub mod pcap;
pub mod pipeline;
pub mod queues;
pub mod safepoint;
pub mod steer;
pub mod timed;
pub mod xdp;

use std::io;
use std::sync::Mutex;
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use batch_timer::BatchTimer;
pub use millstream_native::run_stats::{DropReason, PacketAccounting, RunStats, WINDOW};
pub use millstream_native::worker_stats;
use millstream_native::{NativeEngine, WorkerState};
use millstream_native_runtime::packet::{ArrivalMetadata, LONGEST_FRAGMENTED, PacketBatch};
use millstream_native_runtime::worker::ProgramEvent;
use packet_source::{FrameList, PacketStreamSource, WorkerSource};
use safepoint::{MainThreadTask, Safepoint};

/// Packets in memory, and the order in which they come.
#[derive(Clone, Copy, Debug)]
pub struct ReplaySource<'f> {
    /// The frames.
    pub frames: &'f [Vec<u8>],
    /// Indices of frames, repeated.
    pub order: &'f [u32],
    /// Number of packets in all.
    pub count: u64,
    /// Stream to read them from instead, if they are not in memory.
    pub stream: Option<&'f dyn PacketStreamSource>,
}

/// Receiver of sent packets.
pub trait PacketSink {
    /// Takes a packet. `origin` is its number in the source's order and its metadata at arrival, `port` the
    /// outgoing interface.
    ///
    /// # Errors
    /// If it cannot be written.
    fn send(&mut self, packet: &[u8], origin: (u64, ArrivalMetadata), port: u32) -> io::Result<()>;

    /// Takes a record that a program put into a ring or trace. By default it is only counted.
    ///
    /// # Errors
    /// If it cannot be written.
    fn event(&mut self, event: &ProgramEvent) -> io::Result<()> {
        let _ = event;
        Ok(())
    }
}

/// Discards packets; they are only counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullSink;

impl PacketSink for NullSink {
    fn send(&mut self, _: &[u8], _: (u64, ArrivalMetadata), _: u32) -> io::Result<()> {
        Ok(())
    }
}

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunConfig {
    /// Packets that the program gets at once.
    pub batch: usize,
    /// The incoming interface.
    pub ingress: u32,
}

/// Several workers.
#[derive(Clone, Copy)]
pub struct WorkerHooks<'c> {
    /// Called by each with its number before it begins: to bind it to a processor, for example.
    pub enter: &'c (dyn Fn(u32) -> io::Result<()> + Sync),
}

/// Result of a worker; an error if it panicked.
fn joined<T>(worker: ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    worker.join().unwrap_or_else(|_| Err(io::Error::other("a worker has failed")))
}

/// Runs all packets of a source through the program.
///
/// # Errors
/// If the sink fails, or there is no memory for a batch.
pub fn run(
    engine: &mut NativeEngine,
    source: &ReplaySource<'_>,
    sink: &mut dyn PacketSink,
    plan: RunConfig,
) -> io::Result<RunStats> {
    let mut hand = ReplayWorker::new(source.supplies(1)?.remove(0), plan)?;
    let start = Instant::now();
    engine.with_own_state(|engine, lane| {
        while hand.batch(engine, lane, &mut |step| step(sink))? {}
        Ok::<_, io::Error>(())
    })?;
    Ok(RunStats { total: start.elapsed(), ..hand.ran })
}

/// As [`run`], by all workers of the engine, each a thread. The sink gets packets of a flow in order.
/// `attend` runs beside them.
///
/// # Errors
/// As there, and if a worker cannot begin.
pub fn run_by(
    engine: &mut NativeEngine,
    source: &ReplaySource<'_>,
    sink: &mut (dyn PacketSink + Send),
    plan: RunConfig,
    crew: &WorkerHooks<'_>,
    attend: Option<MainThreadTask<'_>>,
) -> io::Result<RunStats> {
    let sink = Mutex::new(sink);
    let supplies = source.supplies(engine.workers())?;
    let floor = Safepoint::new(engine);
    let start = Instant::now();
    let done = thread::scope(|scope| {
        let spawned: Vec<_> = supplies
            .into_iter()
            .zip(0..)
            .map(|(supply, number)| {
                let (sink, floor) = (&sink, &floor);
                scope.spawn(move || {
                    let begin = |engine: &NativeEngine| {
                        (crew.enter)(number)?;
                        Ok((ReplayWorker::new(supply, plan)?, engine.worker_state(number)))
                    };
                    let (hand, _) = floor.work(begin, |engine, (hand, lane)| {
                        hand.batch(engine, lane, &mut |step| {
                            let mut sink =
                                sink.lock().map_err(|_| io::Error::other("another worker has failed"))?;
                            step(&mut **sink)
                        })
                    })?;
                    Ok(hand.ran)
                })
            })
            .collect();
        if let Some(attend) = attend {
            attend(&floor);
        }
        spawned.into_iter().map(joined).collect::<io::Result<Vec<RunStats>>>()
    })?;
    let mut ran = done.into_iter().reduce(RunStats::and).unwrap_or_default();
    ran.total = start.elapsed();
    Ok(ran)
}

/// Action on the sink.
type SinkAction<'s> = &'s mut dyn FnMut(&mut dyn PacketSink) -> io::Result<()>;

/// Packets in flight of one worker.
struct ReplayWorker<'s> {
    supply: WorkerSource<'s>,
    plan: RunConfig,
    batch: PacketBatch,
    /// Packets of the batch: numbers, and metadata at arrival.
    origins: Vec<(u64, ArrivalMetadata)>,
    meter: BatchTimer,
    ran: RunStats,
}

impl<'s> ReplayWorker<'s> {
    fn new(supply: WorkerSource<'s>, plan: RunConfig) -> io::Result<ReplayWorker<'s>> {
        let (batch, origins) = (PacketBatch::new(plan.batch)?, Vec::with_capacity(plan.batch));
        Ok(ReplayWorker {
            supply,
            plan,
            batch,
            origins,
            meter: BatchTimer::default(),
            ran: RunStats::default(),
        })
    }

    /// Takes a batch from the first to the last step; returns true if there may be another. `sink` lends the
    /// sink, for a batch.
    fn batch(
        &mut self,
        engine: &NativeEngine,
        lane: &mut WorkerState,
        sink: &mut dyn FnMut(SinkAction<'_>) -> io::Result<()>,
    ) -> io::Result<bool> {
        let stamp = lane.stamp();
        self.batch.expect(engine.layout());
        let more = self.fill()?;
        let ReplayWorker { plan, batch, origins, meter, ran, .. } = self;
        let packets = batch.len();
        meter.measure(packets, (&mut ran.busy, &mut ran.windows), || engine.run_by(lane, batch));
        let events = lane.take_events();
        ran.events += events.len() as u64;
        sink(&mut |sink| {
            settle(batch, origins, *plan, sink, &mut ran.account)?;
            events.iter().try_for_each(|event| sink.event(event))
        })?;
        lane.done(stamp, packets as u64);
        lane.publish_worker_stats(ran);
        Ok(more)
    }

    /// Fills the batch; returns true if there are more packets.
    fn fill(&mut self) -> io::Result<bool> {
        self.batch.clear();
        self.origins.clear();
        while self.batch.len() < self.batch.capacity() {
            let Some((record, number)) = self.supply.peek(u64::MAX)? else { return Ok(false) };
            let length = record.bytes.len();
            if length > self.batch.longest() && length <= LONGEST_FRAGMENTED {
                if !self.batch.is_empty() {
                    break;
                }
                self.batch.grow(length)?;
            }
            if self.batch.push(record.bytes, self.plan.ingress) {
                self.origins.push((number, record.arrival));
            } else {
                self.ran.account.dropped(DropReason::Size);
            }
            self.ran.account.received += 1;
            self.supply.advance();
        }
        Ok(true)
    }
}

impl<'f> ReplaySource<'f> {
    fn supplies(&self, workers: u32) -> io::Result<Vec<WorkerSource<'f>>> {
        let list = FrameList { frames: self.frames, order: Some(self.order) };
        WorkerSource::all(list, self.count, self.stream, workers)
    }
}

/// Fate of a packet, by the program's verdict.
enum ForwardingDecision {
    /// Out of the incoming port.
    Back,
    /// Out of another interface.
    To(u32),
    /// Not sent.
    Dropped(DropReason),
}

fn fate(batch: &PacketBatch, at: usize) -> ForwardingDecision {
    ForwardingDecision::Dropped(match batch.verdict(at) {
        0 => DropReason::Aborted,
        1 => DropReason::Drop,
        2 => DropReason::Pass,
        3 => return ForwardingDecision::Back,
        4 if batch.target(at) != 0 => return ForwardingDecision::To(batch.target(at)),
        4 => DropReason::NoTarget,
        _ => DropReason::NoVerdict,
    })
}

/// Sends or drops each packet of a batch after its run.
fn settle(
    batch: &PacketBatch,
    origins: &[(u64, ArrivalMetadata)],
    plan: RunConfig,
    sink: &mut dyn PacketSink,
    account: &mut PacketAccounting,
) -> io::Result<()> {
    for (at, &origin) in origins.iter().enumerate() {
        let port = match fate(batch, at) {
            ForwardingDecision::Back => {
                account.transmitted += 1;
                plan.ingress
            }
            ForwardingDecision::To(port) => {
                account.redirected += 1;
                port
            }
            ForwardingDecision::Dropped(reason) => {
                account.dropped(reason);
                continue;
            }
        };
        sink.send(batch.bytes(at), origin, port)?;
    }
    Ok(())
}
