//! Graphs: several sources, several outputs, copies.
//!
//! Sources take turns, a batch each, until all are at their end. With several workers each has the packets of
//! its flows ([`super::steer`]), from all sources, and takes them from source to output itself.
//!
//! Invariant: received + copies = sent + dropped, where the graph itself counts the dropped packets.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use super::batch_timer::BatchTimer;
use super::idle_sources::IdleSources;
use super::packet_source::{FrameList, PacketRecord, PacketStreamSource, WorkerSource};
use super::safepoint::{NAP, NextAction, Safepoint};
use super::timed::SchedulingPolicy;
use super::{WorkerHooks, joined};
use millstream_native::NativeEngine;
pub use millstream_native::run_stats::GraphRunStats;
use millstream_native_runtime::packet::{ArrivalMetadata, LONGEST_OPEN, PacketBatch};
use millstream_native_runtime::worker::ProgramEvent;

/// Number of copies to reserve for this many packets at once: 16 each, and at least as many as one packet is
/// likely to become.
pub(super) fn copies(packets: usize) -> usize {
    (packets * 16).max(1024)
}

/// Packets that a source has.
#[derive(Clone, Copy, Debug)]
pub struct SourceFrames<'f> {
    /// The frames, repeated.
    pub frames: &'f [Vec<u8>],
    /// Number of packets in all.
    pub count: u64,
}

/// Control of a source that is told when to send. Others may change it at any time.
#[derive(Debug)]
pub struct SourceGate {
    /// Number of the first packet that it must not send.
    pub until: AtomicU64,
    /// True if it sends none, and the run waits for it.
    pub paused: AtomicBool,
    /// Packets per second, where time is that of packets; [`SourceGate::UNSAID`] if not set here.
    pub rate: AtomicU64,
}

impl Default for SourceGate {
    fn default() -> SourceGate {
        SourceGate {
            until: AtomicU64::new(u64::MAX),
            paused: AtomicBool::new(false),
            rate: AtomicU64::new(SourceGate::UNSAID),
        }
    }
}

impl SourceGate {
    /// No rate.
    pub const UNSAID: u64 = u64::MAX;

    /// Packets per second, if set.
    pub fn rate(&self) -> Option<u64> {
        Some(self.rate.load(Ordering::Relaxed)).filter(|rate| *rate != SourceGate::UNSAID)
    }
}

/// Packets of all sources, and the gates of the sources that are told when to send, by number of the source.
/// Sources beyond the last gate have none.
#[derive(Clone, Copy, Debug)]
pub struct GraphSources<'f> {
    /// Packets.
    pub feeds: &'f [SourceFrames<'f>],
    /// Gates of the sources.
    pub gates: &'f [Option<Arc<SourceGate>>],
    /// Streams of the sources that have no frames. Sources beyond the last one have none.
    pub streams: &'f [Option<&'f dyn PacketStreamSource>],
    /// Receiver of reports about sources that have no packets, if any.
    pub attention: Option<&'f IdleSources>,
    /// Sources that are pulled by turns; a lane of these is a source. Where time is that of packets, each
    /// group gives one after the other.
    pub pulls: &'f [SchedulingPolicy],
}

impl<'f> From<&'f [SourceFrames<'f>]> for GraphSources<'f> {
    fn from(feeds: &'f [SourceFrames<'f>]) -> GraphSources<'f> {
        GraphSources { feeds, gates: &[], streams: &[], attention: None, pulls: &[] }
    }
}

impl<'f> From<&'f Vec<SourceFrames<'f>>> for GraphSources<'f> {
    fn from(feeds: &'f Vec<SourceFrames<'f>>) -> GraphSources<'f> {
        GraphSources { feeds, gates: &[], streams: &[], attention: None, pulls: &[] }
    }
}

impl<'f, const N: usize> From<&'f [SourceFrames<'f>; N]> for GraphSources<'f> {
    fn from(feeds: &'f [SourceFrames<'f>; N]) -> GraphSources<'f> {
        GraphSources { feeds, gates: &[], streams: &[], attention: None, pulls: &[] }
    }
}

impl<'f> GraphSources<'f> {
    /// Number from which on a source has no packets for now.
    pub(super) fn until(&self, source: usize) -> u64 {
        match self.gates.get(source).and_then(Option::as_deref) {
            Some(gate) if gate.paused.load(Ordering::Relaxed) => 0,
            Some(gate) => gate.until.load(Ordering::Relaxed),
            None => u64::MAX,
        }
    }

    /// Packets per second of a source, if its gate sets them.
    pub(super) fn rate(&self, source: usize) -> Option<u64> {
        self.gates.get(source).and_then(Option::as_deref).and_then(SourceGate::rate)
    }

    /// Supplies of each of this many workers, one per source.
    pub(super) fn supplies(&self, workers: u32) -> io::Result<Vec<Vec<WorkerSource<'f>>>> {
        let mut all: Vec<Vec<WorkerSource<'f>>> = (0..workers.max(1)).map(|_| Vec::new()).collect();
        for (at, feed) in self.feeds.iter().enumerate() {
            let stream = self.streams.get(at).copied().flatten();
            let list = FrameList { frames: feed.frames, order: None };
            let supplies = WorkerSource::all(list, feed.count, stream, workers)?;
            supplies.into_iter().zip(&mut all).for_each(|(supply, of)| of.push(supply));
        }
        Ok(all)
    }

    /// Returns true if some source waits until somebody lets it send.
    pub(super) fn waiting(&self) -> bool {
        let paused = self.gates.iter().flatten().any(|gate| gate.paused.load(Ordering::Relaxed));
        paused || self.attention.is_some_and(IdleSources::holds)
    }

    /// Reports that a worker has looked for packets of a source: whether one comes, and whether there are
    /// more.
    pub(super) fn report_poll(&self, source: usize, worker: u32, comes: bool, more: bool) {
        let Some(attention) = self.attention else { return };
        let gate = self.gates.get(source).and_then(Option::as_deref);
        let paused = gate.is_some_and(|gate| gate.paused.load(Ordering::Relaxed));
        attention.record_poll(source, worker, comes, more || paused);
    }
}

/// Port numbers of the sources and of the outputs of a graph.
#[derive(Clone, Copy, Debug)]
pub struct GraphPortNumbers<'e> {
    /// Ports of the sources.
    pub sources: &'e [usize],
    /// Ports of the outputs.
    pub outputs: &'e [usize],
}

/// A sent packet.
#[derive(Clone, Copy, Debug)]
pub struct SentPacket<'p> {
    /// Its bytes.
    pub bytes: &'p [u8],
    /// Number of its output, from 0.
    pub output: usize,
    /// Number of its source, or of that of the packet that it was copied from.
    pub source: usize,
    /// Number of the packet within its source.
    pub number: u64,
    /// Metadata of that packet at its arrival.
    pub arrival: ArrivalMetadata,
}

/// Runs all packets of all sources through a graph with this many outputs, in batches of `size`.
///
/// # Errors
/// If the receiver of sent packets fails, or there is no memory for a batch.
pub fn run_graph<'f>(
    engine: &mut NativeEngine,
    feeds: impl Into<GraphSources<'f>>,
    outputs: usize,
    size: usize,
    take: impl FnMut(SentPacket<'_>) -> io::Result<()>,
) -> io::Result<GraphRunStats> {
    run_graph_while(engine, feeds, outputs, size, take, |_| true)
}

/// As [`run_graph`], as long as `goes_on`, which is called after every batch, returns true. No packet is in
/// flight then: it may replace the engine by another one.
///
/// # Errors
/// As there.
pub fn run_graph_while<'f>(
    engine: &mut NativeEngine,
    sources: impl Into<GraphSources<'f>>,
    outputs: usize,
    size: usize,
    mut take: impl FnMut(SentPacket<'_>) -> io::Result<()>,
    mut goes_on: impl FnMut(&mut NativeEngine) -> bool,
) -> io::Result<GraphRunStats> {
    let sources = sources.into();
    let mut hand = GraphWorker::new(sources.supplies(1)?.remove(0), outputs, size)?;
    let start = Instant::now();
    'run: loop {
        let mut any = false;
        for source in 0..sources.feeds.len() {
            let stamp = engine.stamp();
            hand.batch.expect(engine.layout());
            let run = |batch: &mut PacketBatch| {
                engine.run_graph(batch);
                engine.take_events()
            };
            any |= hand.batch(source, &sources, run, &mut take)?;
            engine.done(stamp, hand.numbers.len() as u64);
            engine.publish_graph_stats(&hand.ran);
            if !goes_on(engine) {
                break 'run;
            }
        }
        if sources.feeds.is_empty() && !goes_on(engine) {
            break;
        }
        match sources.waiting() {
            _ if any => {}
            true => thread::sleep(NAP),
            false => break,
        }
    }
    hand.ran.total = start.elapsed();
    Ok(hand.ran)
}

/// As [`run_graph_while`], by all workers of the engine, each a thread; `goes_on` is called now and then,
/// when all of them are between two batches. `take` gets packets of a flow in order, and is called by all of
/// them.
///
/// # Errors
/// As there, and if a worker cannot begin.
pub fn run_graph_by<'f>(
    engine: &mut NativeEngine,
    sources: impl Into<GraphSources<'f>>,
    outputs: usize,
    size: usize,
    crew: &WorkerHooks<'_>,
    take: &(impl Fn(SentPacket<'_>) -> io::Result<()> + Sync),
    goes_on: Option<impl FnMut(&mut NativeEngine) -> bool>,
) -> io::Result<GraphRunStats> {
    let sources = sources.into();
    let all = sources.supplies(engine.workers())?;
    let floor = Safepoint::new(engine);
    let start = Instant::now();
    let done = thread::scope(|scope| {
        let spawned: Vec<_> = all
            .into_iter()
            .zip(0..)
            .map(|(supplies, number)| {
                let (floor, enter) = (&floor, crew.enter);
                scope.spawn(move || {
                    let begin = |engine: &NativeEngine| {
                        enter(number)?;
                        Ok((
                            GraphWorker::new(supplies, outputs, size)?.of(number),
                            engine.worker_state(number),
                        ))
                    };
                    let (hand, _) = floor.work(begin, |engine, (hand, lane)| {
                        let mut any = false;
                        for source in 0..sources.feeds.len() {
                            let stamp = lane.stamp();
                            hand.batch.expect(engine.layout());
                            let run = |batch: &mut PacketBatch| {
                                engine.run_graph_by(lane, batch);
                                lane.take_events()
                            };
                            any |= hand.batch(source, &sources, run, &mut &*take)?;
                            lane.done(stamp, hand.numbers.len() as u64);
                            lane.publish_worker_graph_stats(&hand.ran);
                        }
                        Ok(match sources.waiting() {
                            _ if any => NextAction::Batch,
                            true => NextAction::Nap,
                            false => NextAction::End,
                        })
                    })?;
                    Ok(hand.ran)
                })
            })
            .collect();
        if let Some(goes_on) = goes_on {
            floor.ask(goes_on);
        }
        spawned.into_iter().map(joined).collect::<io::Result<Vec<GraphRunStats>>>()
    })?;
    let mut ran = done.into_iter().reduce(GraphRunStats::and).unwrap_or_default();
    ran.total = start.elapsed();
    Ok(ran)
}

/// Packets in flight of one worker.
pub(super) struct GraphWorker<'f> {
    pub(super) batch: PacketBatch,
    worker: u32,
    supplies: Vec<WorkerSource<'f>>,
    /// Numbers of the packets in the batch.
    pub(super) numbers: Vec<u64>,
    pub(super) meter: BatchTimer,
    pub(super) ran: GraphRunStats,
}

impl<'f> GraphWorker<'f> {
    pub(super) fn new(
        supplies: Vec<WorkerSource<'f>>,
        outputs: usize,
        size: usize,
    ) -> io::Result<GraphWorker<'f>> {
        let ran = GraphRunStats::none(supplies.len(), outputs);
        let batch = PacketBatch::with_copies(size, copies(size))?;
        let (numbers, meter) = (Vec::with_capacity(size), BatchTimer::default());
        Ok(GraphWorker { batch, worker: 0, supplies, numbers, meter, ran })
    }

    /// Sets the number of the worker.
    fn of(self, worker: u32) -> GraphWorker<'f> {
        GraphWorker { worker, ..self }
    }

    /// Takes a batch from a source through the graph, by `run`, which returns the records put into rings.
    /// Returns true if there was any packet.
    fn batch(
        &mut self,
        source: usize,
        sources: &GraphSources<'_>,
        run: impl FnOnce(&mut PacketBatch) -> Vec<ProgramEvent>,
        take: &mut impl FnMut(SentPacket<'_>) -> io::Result<()>,
    ) -> io::Result<bool> {
        self.fill(source, sources)?;
        let GraphWorker { batch, ran, numbers, meter, .. } = self;
        let mut events = Vec::new();
        meter.measure(batch.len(), (&mut ran.busy, &mut ran.windows), || events = run(batch));
        ran.events += events.len() as u64;
        ran.copies += batch.copies() as u64;
        for (bytes, output, at) in batch.sent() {
            let (output, number) = (output as usize, numbers.get(at).copied().unwrap_or(0));
            if let Some(count) = ran.sent.get_mut(output) {
                *count += 1;
            }
            take(SentPacket { bytes, output, source, number, arrival: batch.arrival(at) })?;
        }
        Ok(!numbers.is_empty())
    }

    /// Fills the batch from a source; `numbers` are those of the packets in it.
    pub(super) fn fill(&mut self, source: usize, sources: &GraphSources<'_>) -> io::Result<()> {
        self.batch.clear();
        self.numbers.clear();
        let until = sources.until(source);
        let supply = &mut self.supplies[source];
        while self.batch.len() < self.batch.capacity() {
            let Some((record, number)) = supply.peek(until)? else { break };
            match admit(&mut self.batch, record, source as u32 + 1)? {
                AdmitResult::Taken => self.numbers.push(number),
                AdmitResult::Later => break,
                AdmitResult::Unfit => self.ran.unfit += 1,
            }
            self.ran.received[source] += 1;
            supply.advance();
        }
        let full = self.batch.len() == self.batch.capacity();
        let comes = full || supply.peek(until)?.is_some();
        sources.report_poll(source, self.worker, comes, false);
        Ok(())
    }
}

/// Outcome of adding a packet to a batch.
pub(super) enum AdmitResult {
    Taken,
    /// It is longer than those before it: an empty batch can take it.
    Later,
    /// No batch can take it.
    Unfit,
}

/// Adds a packet to a batch, which gets larger buffers if the packet needs them.
pub(super) fn admit(
    batch: &mut PacketBatch,
    record: PacketRecord<'_>,
    ingress: u32,
) -> io::Result<AdmitResult> {
    let length = record.bytes.len();
    if length > batch.longest() && length <= LONGEST_OPEN {
        if !batch.is_empty() {
            return Ok(AdmitResult::Later);
        }
        batch.grow(length)?;
    }
    Ok(match batch.push_arrived(record.bytes, ingress, record.arrival) {
        true => AdmitResult::Taken,
        false => AdmitResult::Unfit,
    })
}
