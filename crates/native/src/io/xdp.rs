//! Packets from and to interfaces by AF_XDP, by several workers.
//!
//! A worker has some queues of every interface, over one memory ([`millstream_ports::Line`]), and the thread that it runs on: packets go from the first step to
//! the last by it, so that those of one queue keep their order. Which flows come by which queue is the interface's business.
//!
//! By exchange ([`Metadata::Exchange`]) the frames that the kernel fills are the program's buffers: descriptors are written over them, and what is to leave
//! is put into the ring of the queue that it leaves by, whichever interface that is of, in place of a frame that comes back from there. Nothing is copied
//! here, and nothing allocated. The memory lies below 2 GiB, where the fields of packets reach; around a packet there is the room that it has
//! everywhere.
//!
//! Invariant: as in [`super`]. What a queue has no room for is dropped, and counted, for [`Reason::NoRoom`]; nothing waits for it.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millstream_ports::{Error, Frame, Interface, Interfaces, Line, Lines, Lost, Memory, Options};

use super::floor::{Attend, Floor};
use super::graph::{COPIES, Ends, GraphRan};
use super::meter::Meter;
use super::{Account, Crew, Fate, Ran, Reason, fate, joined};
use crate::engine::{Engine, Lane};
use crate::runtime::packet::{Batch, Came};
use crate::runtime::region::Region;
use crate::runtime::worker::Event;

/// Whose buffers programs work on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Metadata {
    /// The frames that are shared with the kernel.
    #[default]
    Exchange,
    /// Buffers of the program's: packets are copied in, and out into other frames.
    Copy,
}

/// How interfaces are served.
#[derive(Clone, Copy)]
pub struct Plan<'p> {
    /// Packets that are taken at once, at most.
    pub batch: usize,
    /// Whether they are copied.
    pub metadata: Metadata,
    /// No more packets are received than these, by one worker; by several, a batch each more.
    pub most: u64,
    /// Whether to go on, asked by all workers after every batch and while nothing comes.
    pub goes_on: &'p (dyn Fn() -> bool + Sync),
}

/// Looks in vain, before a worker sleeps until something comes.
const SPINS: u32 = 2000;
/// How long it sleeps before it asks whether to go on.
const NAP: Duration = Duration::from_millis(1);
/// How long the last packets may take to be sent.
const LAST: Duration = Duration::from_secs(1);

/// Interfaces that were taken, with queues for each worker.
pub struct Ports {
    interfaces: Interfaces,
    /// Of each line.
    rooms: Vec<Arc<Region>>,
    busy: bool,
}

impl Ports {
    /// Takes interfaces of this network namespace, for so many workers with batches of this size.
    ///
    /// # Errors
    /// As for [`Interfaces::open`].
    pub fn open(names: &[&str], workers: u32, batch: usize, options: &Options) -> Result<Ports, Error> {
        let mut rooms = Vec::new();
        let mut allot = |length| {
            let room = Region::low(length)?;
            room.prefer_large_pages(length);
            let room = Arc::new(room);
            rooms.push(Arc::clone(&room));
            Ok(room as Arc<dyn Memory>)
        };
        let interfaces = Interfaces::open(names, Lines { workers, at_hand: batch }, options, &mut allot)?;
        // Those of a try that was given up come first.
        let rooms = rooms.split_off(rooms.len() - workers as usize);
        Ok(Ports { interfaces, rooms, busy: options.busy_poll.is_some() })
    }

    /// The interfaces, in the order in which they were named.
    pub fn interfaces(&self) -> &[Interface] {
        self.interfaces.all()
    }

    /// What the kernel has dropped before it came here.
    pub fn lost(&self) -> Lost {
        self.interfaces.lost()
    }

    /// Runs an XDP program on what comes, by as many workers as the engine is for. `attend` goes on beside them.
    ///
    /// # Errors
    /// If an interface has gone, or a worker cannot begin.
    pub fn run(
        &mut self,
        engine: &mut Engine,
        plan: &Plan<'_>,
        crew: &Crew<'_>,
        attend: Option<Attend<'_>>,
    ) -> io::Result<Ran> {
        let total = Total { received: AtomicU64::new(0), plan };
        let start = Instant::now();
        let begin = |engine: &Engine, number| (engine.lane(number), Ran::default(), Meter::default());
        let step = |engine: &Engine, way: &mut Way<'_>, own: &mut (Lane, Ran, Meter)| {
            let (lane, ran, meter) = own;
            way.step(&total, |way, at, most| {
                let stamp = lane.stamp();
                let Received { packets, unfit } = way.receive(at, most, None)?;
                if packets == 0 {
                    return Ok(0);
                }
                ran.account.received += packets;
                ran.account.dropped[Reason::Size as usize] += unfit;
                let batch = &mut way.batch;
                let run = || engine.run_by(lane, batch);
                meter.measure((packets - unfit) as usize, (&mut ran.busy, &mut ran.windows), run);
                ran.events += lane.take_events().len() as u64;
                way.settle(at, &mut ran.account)?;
                lane.done(stamp, packets);
                lane.show(ran);
                Ok(packets)
            })
        };
        let work = Work { open: false, plan, begin, step };
        let beside = |floor: &Floor<'_>| attend.into_iter().for_each(|attend| attend(floor));
        let done = self.spread(engine, crew, &work, beside)?;
        let ran = done.into_iter().map(|(_, ran, _)| ran).reduce(Ran::and).unwrap_or_default();
        Ok(Ran { total: start.elapsed(), ..ran })
    }

    /// Runs a graph on what comes by the interfaces of its sources, by one worker. `between` is asked between batches, and may put another engine in the place
    /// of this one.
    ///
    /// # Errors
    /// As for [`Ports::run`].
    pub fn run_graph(
        &mut self,
        engine: &mut Engine,
        ends: &Ends<'_>,
        plan: &Plan<'_>,
        crew: &Crew<'_>,
        mut between: impl FnMut(&mut Engine) -> bool,
    ) -> io::Result<GraphRan> {
        (crew.enter)(0)?;
        let total = Total { received: AtomicU64::new(0), plan };
        let mut ran = GraphRan::none(ends.sources.len(), ends.outputs.len());
        let (start, mut meter) = (Instant::now(), Meter::default());
        let (interfaces, lines) = self.interfaces.parts();
        let Some((line, room)) = lines.iter_mut().zip(&self.rooms).next() else { return Ok(ran) };
        let mut way = Way::new(line, room, interfaces, (true, self.busy), plan)?;
        loop {
            let on = way.step(&total, |way, at, most| {
                let stamp = engine.stamp();
                let run = |batch: &mut Batch| {
                    engine.run_graph(batch);
                    engine.take_events()
                };
                let received = way.turn(at, (ends, most), (&mut ran, &mut meter), run)?;
                engine.done(stamp, received);
                Ok(received)
            })?;
            engine.show_graph(&ran);
            if !on || !between(engine) {
                break;
            }
        }
        way.finish()?;
        ran.total = start.elapsed();
        Ok(ran)
    }

    /// As [`Ports::run_graph`], by as many workers as the engine is for; `goes_on` is asked now and then, when all of them are between two batches.
    ///
    /// # Errors
    /// As there.
    pub fn run_graph_by(
        &mut self,
        engine: &mut Engine,
        ends: &Ends<'_>,
        plan: &Plan<'_>,
        crew: &Crew<'_>,
        goes_on: Option<impl FnMut(&mut Engine) -> bool>,
    ) -> io::Result<GraphRan> {
        let total = Total { received: AtomicU64::new(0), plan };
        let none = || GraphRan::none(ends.sources.len(), ends.outputs.len());
        let start = Instant::now();
        let begin = |engine: &Engine, number| (engine.lane(number), none(), Meter::default());
        let step = |engine: &Engine, way: &mut Way<'_>, own: &mut (Lane, GraphRan, Meter)| {
            let (lane, ran, meter) = own;
            let on = way.step(&total, |way, at, most| {
                let stamp = lane.stamp();
                let run = |batch: &mut Batch| {
                    engine.run_graph_by(lane, batch);
                    lane.take_events()
                };
                let received = way.turn(at, (ends, most), (ran, meter), run)?;
                lane.done(stamp, received);
                Ok(received)
            })?;
            lane.show_graph(ran);
            Ok(on)
        };
        let work = Work { open: true, plan, begin, step };
        let beside = |floor: &Floor<'_>| goes_on.into_iter().for_each(|goes_on| floor.ask(goes_on));
        let done = self.spread(engine, crew, &work, beside)?;
        let ran = done.into_iter().map(|(_, ran, _)| ran).reduce(GraphRan::and).unwrap_or_else(none);
        Ok(GraphRan { total: start.elapsed(), ..ran })
    }

    /// Has each worker do its part, in a thread of its own, and gives what they have of it; `beside` is done meanwhile.
    fn spread<S: Send, B, T>(
        &mut self,
        engine: &mut Engine,
        crew: &Crew<'_>,
        work: &Work<'_, B, T>,
        beside: impl FnOnce(&Floor<'_>),
    ) -> io::Result<Vec<S>>
    where
        B: Fn(&Engine, u32) -> S + Sync,
        T: Fn(&Engine, &mut Way<'_>, &mut S) -> io::Result<bool> + Sync,
    {
        let (interfaces, lines) = self.interfaces.parts();
        let busy = self.busy;
        let floor = Floor::new(engine);
        thread::scope(|scope| {
            let all = lines.iter_mut().zip(&self.rooms).zip(0..);
            let spawned: Vec<_> = all
                .map(|((line, room), number)| {
                    let floor = &floor;
                    scope.spawn(move || {
                        let (mut way, own) = floor.work(
                            |engine| {
                                (crew.enter)(number)?;
                                let way = Way::new(line, room, interfaces, (work.open, busy), work.plan)?;
                                Ok((way, (work.begin)(engine, number)))
                            },
                            |engine, (way, own)| (work.step)(engine, way, own),
                        )?;
                        way.finish()?;
                        Ok(own)
                    })
                })
                .collect();
            beside(&floor);
            spawned.into_iter().map(joined).collect()
        })
    }
}

/// What workers do: `begin` makes what each has to itself, `step` takes a batch from the first to the last step.
struct Work<'p, B, T> {
    /// Whether packets are a graph's.
    open: bool,
    plan: &'p Plan<'p>,
    begin: B,
    step: T,
}

/// Packets that all workers have received.
struct Total<'p> {
    received: AtomicU64,
    plan: &'p Plan<'p>,
}

impl Total<'_> {
    /// How many may be received at once; none if it is enough.
    fn most(&self) -> Option<usize> {
        let left = self.plan.most.saturating_sub(self.received.load(Ordering::Relaxed));
        (left > 0 && (self.plan.goes_on)()).then(|| left.min(self.plan.batch as u64) as usize)
    }

    fn add(&self, received: u64) {
        // Workers need not share a line for a number that nothing depends on.
        if self.plan.most != u64::MAX {
            self.received.fetch_add(received, Ordering::Relaxed);
        }
    }
}

/// What came by a queue.
#[derive(Clone, Copy, Default)]
struct Received {
    packets: u64,
    /// Of those, not taken into the batch.
    unfit: u64,
}

/// A worker's queues, and the packets that are under way by it.
struct Way<'w> {
    batch: Batch,
    line: &'w mut Line,
    /// Where the line's memory begins.
    base: u32,
    /// By exchange: the frames of the packets of the batch, as long as they are not sent.
    came: Vec<Option<Frame>>,
    /// Numbers of interfaces, and the worker's queues of each.
    interfaces: Vec<(u32, Vec<usize>)>,
    metadata: Metadata,
    /// Whether packets are a graph's.
    open: bool,
    busy: bool,
    /// The queue whose turn it is, and how often nothing has come since something did.
    next: usize,
    in_vain: u32,
}

impl<'w> Way<'w> {
    fn new(
        line: &'w mut Line,
        room: &Arc<Region>,
        interfaces: &[Interface],
        (open, busy): (bool, bool),
        plan: &Plan<'_>,
    ) -> io::Result<Way<'w>> {
        let copies = if open { plan.batch * COPIES } else { 0 };
        let batch = match plan.metadata {
            Metadata::Exchange => Batch::over(room, plan.batch, copies)?,
            Metadata::Copy => Batch::with_copies(plan.batch, copies)?,
        };
        let queues_of = |at| (0..line.queues()).filter(|&queue| line.queue(queue).0 == at).collect();
        let interfaces = interfaces.iter().enumerate().map(|(at, i)| (i.index(), queues_of(at))).collect();
        let came = Vec::with_capacity(plan.batch);
        let base = room.address() as u32;
        let metadata = plan.metadata;
        Ok(Way { batch, line, base, came, interfaces, metadata, open, busy, next: 0, in_vain: 0 })
    }

    /// Serves the queue whose turn it is; whether to go on. `turn` takes at most so many packets of a queue from the first to the last step, and says how
    /// many these were.
    fn step(
        &mut self,
        total: &Total<'_>,
        turn: impl FnOnce(&mut Self, usize, usize) -> io::Result<u64>,
    ) -> io::Result<bool> {
        let Some(most) = total.most() else { return Ok(false) };
        let at = self.next;
        self.next = (at + 1) % self.line.queues().max(1);
        let received = turn(self, at, most)?;
        total.add(received);
        if received > 0 {
            self.in_vain = 0;
            return Ok(true);
        }
        self.in_vain = self.in_vain.saturating_add(1);
        // What the kernel did not take before, and frames that come back.
        self.line.flush(at)?;
        if !self.busy && self.in_vain > SPINS && self.next == 0 {
            self.line.wait(NAP)?;
        }
        Ok(true)
    }

    /// Gives the kernel some time to send the last packets.
    fn finish(&mut self) -> io::Result<()> {
        let end = Instant::now() + LAST;
        while self.line.unsent() > 0 && Instant::now() < end {
            for at in 0..self.line.queues() {
                self.line.flush(at)?;
            }
        }
        Ok(())
    }

    /// Fills the batch with what has come by a queue, as received by its interface or by a source of a graph.
    #[inline]
    fn receive(&mut self, at: usize, most: usize, source: Option<u32>) -> io::Result<Received> {
        let Way { batch, line, base, came, interfaces, metadata, open, .. } = self;
        batch.clear();
        came.clear();
        let (interface, queue) = line.queue(at);
        let ingress = source.unwrap_or(interfaces[interface].0);
        let with = Came { ingress, queue, open: *open };
        let mut unfit = Vec::new();
        let packets = match metadata {
            Metadata::Exchange => line.receive(at, most, |frame, place| {
                let moved = *base + place.start..*base + place.end;
                match batch.push_frame(*base + frame.offset(), moved, with) {
                    true => came.push(Some(frame)),
                    false => unfit.push(frame),
                }
            })?,
            Metadata::Copy => {
                let mut places = Vec::with_capacity(most);
                let packets = line.receive(at, most, |frame, place| places.push((frame, place)))?;
                let push = if *open { Batch::push_open } else { Batch::push };
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
        let received = Received { packets: packets as u64, unfit: unfit.len() as u64 };
        unfit.into_iter().for_each(|frame| line.give_back(frame));
        Ok(received)
    }

    /// The worker's queue of an interface by which what came by another queue leaves: of one queue always the same, so that it stays in order.
    fn queue_to(&self, interface: usize, came: usize) -> usize {
        let queues = &self.interfaces[interface].1;
        queues[self.line.queue(came).1 as usize % queues.len()]
    }

    /// Sends packet `at` of the batch, or one that lies elsewhere, by a queue; `false` if that has no room.
    #[inline]
    fn forward(&mut self, at: Option<usize>, bounds: Range<u32>, queue: usize) -> io::Result<bool> {
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

    /// Takes back the frames of packets that were not sent, and has the kernel send the others.
    fn close(&mut self) -> io::Result<()> {
        let Way { line, came, .. } = self;
        came.drain(..).flatten().for_each(|frame| line.give_back(frame));
        (0..line.queues()).try_for_each(|at| line.flush(at))
    }

    /// Does with the packets of a batch that came by a queue what the program has said.
    fn settle(&mut self, queue: usize, account: &mut Account) -> io::Result<()> {
        for at in 0..self.batch.len() {
            let (to, count) = match fate(&self.batch, at) {
                Fate::Back => (queue, &mut account.transmitted),
                Fate::To(index) => match self.interfaces.iter().position(|(known, _)| *known == index) {
                    Some(interface) => (self.queue_to(interface, queue), &mut account.redirected),
                    None => {
                        account.dropped(Reason::NoTarget);
                        continue;
                    }
                },
                Fate::Dropped(reason) => {
                    account.dropped(reason);
                    continue;
                }
            };
            let bounds = self.batch.bounds(at);
            match self.forward(Some(at), bounds, to)? {
                true => *count += 1,
                false => account.dropped(Reason::NoRoom),
            }
        }
        self.close()
    }

    /// Takes a batch from a queue through a graph, by `run`, which gives what was put into rings.
    fn turn(
        &mut self,
        queue: usize,
        (ends, most): (&Ends<'_>, usize),
        (ran, meter): (&mut GraphRan, &mut Meter),
        run: impl FnOnce(&mut Batch) -> Vec<Event>,
    ) -> io::Result<u64> {
        let interface = self.line.queue(queue).0;
        // An interface that is no source is for sending.
        let Some(source) = ends.sources.iter().position(|end| *end == interface) else { return Ok(0) };
        let Received { packets, unfit } = self.receive(queue, most, Some(source as u32 + 1))?;
        if packets == 0 {
            return Ok(0);
        }
        ran.received[source] += packets;
        ran.unfit += unfit;
        let (batch, mut events) = (&mut self.batch, Vec::new());
        let run = || events = run(batch);
        meter.measure((packets - unfit) as usize, (&mut ran.busy, &mut ran.windows), run);
        ran.events += events.len() as u64;
        ran.copies += self.batch.copies() as u64;
        for at in 0..self.batch.sent_len() {
            let Some((output, original, bounds)) = self.batch.departure(at) else { continue };
            let to = self.queue_to(ends.outputs[output as usize], queue);
            match self.forward(original, bounds, to)? {
                true => ran.sent[output as usize] += 1,
                false => ran.no_room += 1,
            }
        }
        self.close()?;
        Ok(packets)
    }
}
