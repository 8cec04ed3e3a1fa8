//! Graphs: several sources, several outputs, copies.
//!
//! Sources take turns, a batch each, until all are at their end. With several workers each has the packets of its flows ([`super::steer`]), of
//! all sources, and takes them from source to output itself.
//!
//! Invariant: received + copies = sent + dropped, where the graph counts what it drops itself.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::attention::Attention;
use super::floor::{Floor, NAP, Next};
use super::meter::Meter;
use super::supply::{List, Origin, Record, Supply};
use super::timed::Turns;
use super::{Account, Crew, Reason, joined};
use crate::engine::Engine;
use crate::runtime::packet::{Arrival, Batch, LONGEST_OPEN};
use crate::runtime::worker::Event;

/// Copies that there is room for, for so many packets at once: 16 each, but as many as one packet is likely to become at least.
pub(super) fn copies(packets: usize) -> usize {
    (packets * 16).max(1024)
}

/// Packets that a source has.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'f> {
    /// The frames, over and over.
    pub frames: &'f [Vec<u8>],
    /// Packets in all.
    pub count: u64,
}

/// What a source that is told when to send goes by. Somebody else may change it at any time.
#[derive(Debug)]
pub struct Gate {
    /// It has no packets from this number on.
    pub until: AtomicU64,
    /// It sends none, and the run waits for it.
    pub paused: AtomicBool,
    /// Packets a second, where time is that of packets; [`Gate::UNSAID`] if nobody says so here.
    pub rate: AtomicU64,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate {
            until: AtomicU64::new(u64::MAX),
            paused: AtomicBool::new(false),
            rate: AtomicU64::new(Gate::UNSAID),
        }
    }
}

impl Gate {
    /// No rate.
    pub const UNSAID: u64 = u64::MAX;

    /// Packets a second, if it says so.
    pub fn rate(&self) -> Option<u64> {
        Some(self.rate.load(Ordering::Relaxed)).filter(|rate| *rate != Gate::UNSAID)
    }
}

/// Packets of all sources, and what those go by that are told when to send, at the places of the sources. Behind the last gate are sources
/// without.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'f> {
    /// Packets.
    pub feeds: &'f [Feed<'f>],
    /// When they may go.
    pub gates: &'f [Option<Arc<Gate>>],
    /// What packets are read from, of sources that have no frames. Behind the last one are sources without.
    pub streams: &'f [Option<&'f dyn Origin>],
    /// Who is told of sources that have no packets, if somebody wants to know.
    pub attention: Option<&'f Attention>,
    /// Sources that are pulled by turns: what these call a lane is a source. Where time is that of packets, each group gives one after the other.
    pub pulls: &'f [Turns],
}

impl<'f> From<&'f [Feed<'f>]> for Sources<'f> {
    fn from(feeds: &'f [Feed<'f>]) -> Sources<'f> {
        Sources { feeds, gates: &[], streams: &[], attention: None, pulls: &[] }
    }
}

impl<'f> From<&'f Vec<Feed<'f>>> for Sources<'f> {
    fn from(feeds: &'f Vec<Feed<'f>>) -> Sources<'f> {
        Sources { feeds, gates: &[], streams: &[], attention: None, pulls: &[] }
    }
}

impl<'f, const N: usize> From<&'f [Feed<'f>; N]> for Sources<'f> {
    fn from(feeds: &'f [Feed<'f>; N]) -> Sources<'f> {
        Sources { feeds, gates: &[], streams: &[], attention: None, pulls: &[] }
    }
}

impl<'f> Sources<'f> {
    /// The number from which on a source has no packets for now.
    pub(super) fn until(&self, source: usize) -> u64 {
        match self.gates.get(source).and_then(Option::as_deref) {
            Some(gate) if gate.paused.load(Ordering::Relaxed) => 0,
            Some(gate) => gate.until.load(Ordering::Relaxed),
            None => u64::MAX,
        }
    }

    /// Packets a second of a source that is told.
    pub(super) fn rate(&self, source: usize) -> Option<u64> {
        self.gates.get(source).and_then(Option::as_deref).and_then(Gate::rate)
    }

    /// What each of so many workers has of each source.
    pub(super) fn supplies(&self, workers: u32) -> io::Result<Vec<Vec<Supply<'f>>>> {
        let mut all: Vec<Vec<Supply<'f>>> = (0..workers.max(1)).map(|_| Vec::new()).collect();
        for (at, feed) in self.feeds.iter().enumerate() {
            let stream = self.streams.get(at).copied().flatten();
            let list = List { frames: feed.frames, order: None };
            let supplies = Supply::all(list, feed.count, stream, workers)?;
            supplies.into_iter().zip(&mut all).for_each(|(supply, of)| of.push(supply));
        }
        Ok(all)
    }

    /// Whether some source waits for somebody to let it send.
    pub(super) fn waiting(&self) -> bool {
        let paused = self.gates.iter().flatten().any(|gate| gate.paused.load(Ordering::Relaxed));
        paused || self.attention.is_some_and(Attention::holds)
    }

    /// A worker has looked for packets of a source: whether one comes, and whether there are any.
    pub(super) fn looked(&self, source: usize, worker: u32, comes: bool, more: bool) {
        let Some(attention) = self.attention else { return };
        let gate = self.gates.get(source).and_then(Option::as_deref);
        let paused = gate.is_some_and(|gate| gate.paused.load(Ordering::Relaxed));
        attention.looked(source, worker, comes, more || paused);
    }
}

/// Places of ports, of the sources and of the outputs of a graph.
#[derive(Clone, Copy, Debug)]
pub struct Ends<'e> {
    /// A source's.
    pub sources: &'e [usize],
    /// An output's.
    pub outputs: &'e [usize],
}

/// A packet that is sent.
#[derive(Clone, Copy, Debug)]
pub struct Departure<'p> {
    /// Its bytes.
    pub bytes: &'p [u8],
    /// By which output, from 0.
    pub output: usize,
    /// By which source it came, or that which it was copied from.
    pub source: usize,
    /// Which packet of that source it was.
    pub number: u64,
    /// What was known of that packet when it came.
    pub arrival: Arrival,
}

/// What a run found.
#[derive(Clone, Debug, Default)]
pub struct GraphRan {
    /// Taken from each source.
    pub received: Vec<u64>,
    /// Of those, too long for a buffer.
    pub unfit: u64,
    /// Of those that were to be sent, not taken by the device.
    pub no_room: u64,
    /// Copies made.
    pub copies: u64,
    /// Sent by each output.
    pub sent: Vec<u64>,
    /// Packets that still wait for their time.
    pub held: u64,
    /// Records that the program put into rings and traces.
    pub events: u64,
    /// From beginning to end, copying in and out included.
    pub total: Duration,
    /// In the program, batches in full, of all workers.
    pub busy: Duration,
    /// Nanoseconds a packet in the program, one entry a window of [`super::WINDOW`] batches.
    pub windows: Vec<f64>,
}

/// Runs all packets of all sources through a graph with this many outputs, in batches of `size`.
///
/// # Errors
/// If what takes the packets fails, or there is no memory for a batch.
pub fn run_graph<'f>(
    engine: &mut Engine,
    feeds: impl Into<Sources<'f>>,
    outputs: usize,
    size: usize,
    take: impl FnMut(Departure<'_>) -> io::Result<()>,
) -> io::Result<GraphRan> {
    run_graph_while(engine, feeds, outputs, size, take, |_| true)
}

/// As [`run_graph`], for as long as `goes_on` says, which is asked after every batch. No packet is under way then: it may put another engine
/// in the place of this one.
///
/// # Errors
/// As there.
pub fn run_graph_while<'f>(
    engine: &mut Engine,
    sources: impl Into<Sources<'f>>,
    outputs: usize,
    size: usize,
    mut take: impl FnMut(Departure<'_>) -> io::Result<()>,
    mut goes_on: impl FnMut(&mut Engine) -> bool,
) -> io::Result<GraphRan> {
    let sources = sources.into();
    let mut hand = Hand::new(sources.supplies(1)?.remove(0), outputs, size)?;
    let start = Instant::now();
    'run: loop {
        let mut any = false;
        for source in 0..sources.feeds.len() {
            let stamp = engine.stamp();
            hand.batch.expect(engine.layout());
            let run = |batch: &mut Batch| {
                engine.run_graph(batch);
                engine.take_events()
            };
            any |= hand.batch(source, &sources, run, &mut take)?;
            engine.done(stamp, hand.numbers.len() as u64);
            engine.show_graph(&hand.ran);
            if !goes_on(engine) {
                break 'run;
            }
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

/// As [`run_graph_while`], by as many workers as the engine is for, each a thread; `goes_on` is asked now and then, when all of them are
/// between two batches. `take` has packets of a flow in order, and is called by all of them.
///
/// # Errors
/// As there, and if a worker cannot begin.
pub fn run_graph_by<'f>(
    engine: &mut Engine,
    sources: impl Into<Sources<'f>>,
    outputs: usize,
    size: usize,
    crew: &Crew<'_>,
    take: &(impl Fn(Departure<'_>) -> io::Result<()> + Sync),
    goes_on: Option<impl FnMut(&mut Engine) -> bool>,
) -> io::Result<GraphRan> {
    let sources = sources.into();
    let all = sources.supplies(engine.workers())?;
    let floor = Floor::new(engine);
    let start = Instant::now();
    let done = thread::scope(|scope| {
        let spawned: Vec<_> = all
            .into_iter()
            .zip(0..)
            .map(|(supplies, number)| {
                let (floor, enter) = (&floor, crew.enter);
                scope.spawn(move || {
                    let begin = |engine: &Engine| {
                        enter(number)?;
                        Ok((Hand::new(supplies, outputs, size)?.of(number), engine.lane(number)))
                    };
                    let (hand, _) = floor.work(begin, |engine, (hand, lane)| {
                        let mut any = false;
                        for source in 0..sources.feeds.len() {
                            let stamp = lane.stamp();
                            hand.batch.expect(engine.layout());
                            let run = |batch: &mut Batch| {
                                engine.run_graph_by(lane, batch);
                                lane.take_events()
                            };
                            any |= hand.batch(source, &sources, run, &mut &*take)?;
                            lane.done(stamp, hand.numbers.len() as u64);
                            lane.show_graph(&hand.ran);
                        }
                        Ok(match sources.waiting() {
                            _ if any => Next::Batch,
                            true => Next::Nap,
                            false => Next::End,
                        })
                    })?;
                    Ok(hand.ran)
                })
            })
            .collect();
        if let Some(goes_on) = goes_on {
            floor.ask(goes_on);
        }
        spawned.into_iter().map(joined).collect::<io::Result<Vec<GraphRan>>>()
    })?;
    let mut ran = done.into_iter().reduce(GraphRan::and).unwrap_or_default();
    ran.total = start.elapsed();
    Ok(ran)
}

/// A worker's packets, on their way.
pub(super) struct Hand<'f> {
    pub(super) batch: Batch,
    worker: u32,
    supplies: Vec<Supply<'f>>,
    /// Of the packets in the batch.
    pub(super) numbers: Vec<u64>,
    pub(super) meter: Meter,
    pub(super) ran: GraphRan,
}

impl<'f> Hand<'f> {
    pub(super) fn new(supplies: Vec<Supply<'f>>, outputs: usize, size: usize) -> io::Result<Hand<'f>> {
        let ran = GraphRan::none(supplies.len(), outputs);
        let batch = Batch::with_copies(size, copies(size))?;
        let (numbers, meter) = (Vec::with_capacity(size), Meter::default());
        Ok(Hand { batch, worker: 0, supplies, numbers, meter, ran })
    }

    /// That of the worker with this number.
    fn of(self, worker: u32) -> Hand<'f> {
        Hand { worker, ..self }
    }

    /// Takes a batch from a source through the graph, by `run`, which gives what was put into rings; whether there was any packet.
    fn batch(
        &mut self,
        source: usize,
        sources: &Sources<'_>,
        run: impl FnOnce(&mut Batch) -> Vec<Event>,
        take: &mut impl FnMut(Departure<'_>) -> io::Result<()>,
    ) -> io::Result<bool> {
        self.fill(source, sources)?;
        let Hand { batch, ran, numbers, meter, .. } = self;
        let mut events = Vec::new();
        meter.measure(batch.len(), (&mut ran.busy, &mut ran.windows), || events = run(batch));
        ran.events += events.len() as u64;
        ran.copies += batch.copies() as u64;
        for (bytes, output, at) in batch.sent() {
            let (output, number) = (output as usize, numbers.get(at).copied().unwrap_or(0));
            if let Some(count) = ran.sent.get_mut(output) {
                *count += 1;
            }
            take(Departure { bytes, output, source, number, arrival: batch.arrival(at) })?;
        }
        Ok(!numbers.is_empty())
    }

    /// Takes a batch from a source; `numbers` are those of the packets in it.
    pub(super) fn fill(&mut self, source: usize, sources: &Sources<'_>) -> io::Result<()> {
        self.batch.clear();
        self.numbers.clear();
        let until = sources.until(source);
        let supply = &mut self.supplies[source];
        while self.batch.len() < self.batch.capacity() {
            let Some((record, number)) = supply.peek(until)? else { break };
            match admit(&mut self.batch, record, source as u32 + 1)? {
                Admitted::Taken => self.numbers.push(number),
                Admitted::Later => break,
                Admitted::Unfit => self.ran.unfit += 1,
            }
            self.ran.received[source] += 1;
            supply.advance();
        }
        let full = self.batch.len() == self.batch.capacity();
        let comes = full || supply.peek(until)?.is_some();
        sources.looked(source, self.worker, comes, false);
        Ok(())
    }
}

/// What became of a packet that was to come into a batch.
pub(super) enum Admitted {
    Taken,
    /// It is longer than those before it: an empty batch takes it.
    Later,
    /// No batch takes it.
    Unfit,
}

/// Takes a packet into a batch, which gets larger buffers for a longer one than it has.
pub(super) fn admit(batch: &mut Batch, record: Record<'_>, ingress: u32) -> io::Result<Admitted> {
    let length = record.bytes.len();
    if length > batch.longest() && length <= LONGEST_OPEN {
        if !batch.is_empty() {
            return Ok(Admitted::Later);
        }
        batch.grow(length)?;
    }
    Ok(match batch.push_arrived(record.bytes, ingress, record.arrival) {
        true => Admitted::Taken,
        false => Admitted::Unfit,
    })
}

impl GraphRan {
    /// A run that ended before any packet of so many sources came to any of so many outputs.
    pub fn none(sources: usize, outputs: usize) -> GraphRan {
        GraphRan { received: vec![0; sources], sent: vec![0; outputs], ..GraphRan::default() }
    }

    /// Nanoseconds a packet in the program that this share of the windows are below.
    pub fn percentile(&self, share: f64) -> Option<f64> {
        super::percentile(&self.windows, share)
    }

    /// What became of the packets as far as it is seen here: what the graph dropped itself is not among it.
    pub(crate) fn account(&self) -> Account {
        let mut account = Account {
            received: self.received.iter().sum(),
            redirected: self.sent.iter().sum(),
            ..Account::default()
        };
        account.dropped[Reason::Size as usize] = self.unfit;
        account.dropped[Reason::NoRoom as usize] = self.no_room;
        account
    }

    /// With what another worker found.
    pub(super) fn and(mut self, other: GraphRan) -> GraphRan {
        let add = |to: &mut [u64], from: &[u64]| to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        add(&mut self.received, &other.received);
        add(&mut self.sent, &other.sent);
        self.unfit += other.unfit;
        self.no_room += other.no_room;
        self.copies += other.copies;
        self.held += other.held;
        self.events += other.events;
        self.busy += other.busy;
        self.windows.extend(other.windows);
        self
    }
}
