//! Workers that have queues of ports, whatever brings the packets: AF_XDP ([`super::xdp`]) or DPDK.
//!
//! A worker has some queues of every port and the thread that it runs on: packets go from the first step to the last by it, so that those of one queue keep
//! their order. Which flows come by which queue is the port's business. Queues take turns, a batch each; what packets are for is here, how they come and go
//! is the trait's `Carry`.
//!
//! Invariant: as in [`super`]. What a port has no room for is dropped, and counted, for [`Reason::NoRoom`]; nothing waits for it.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::floor::{Attend, Floor};
use super::graph::{Ends, GraphRan};
use super::meter::Meter;
use super::{Account, Crew, Fate, Ran, Reason, fate, joined};
use crate::engine::{Engine, Lane};
use crate::runtime::packet::Batch;
use crate::runtime::worker::Event;

/// Whose buffers programs work on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Metadata {
    /// Those that packets come in: descriptors are written over them.
    #[default]
    InPlace,
    /// The program's: packets are copied in, and out into other buffers.
    Copy,
}

/// How ports are served.
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

/// What came by a queue.
#[derive(Clone, Copy, Default)]
pub(super) struct Received {
    pub(super) packets: u64,
    /// Of those, not taken into the batch.
    pub(super) unfit: u64,
}

/// A worker's queues, and the packets that are under way by it. What is to leave is put to lists, each of which leaves by one port: a list for each port or, of
/// a graph, for each output.
pub(super) trait Carry {
    /// What times its packets.
    fn meter() -> Meter;

    /// The port of each queue.
    fn ports(&self) -> Vec<usize>;

    /// The batch that was received last.
    fn batch(&mut self) -> &mut Batch;

    /// Fills the batch with what has come by a queue, as received by interface or source `ingress`.
    fn receive(&mut self, queue: usize, most: usize, ingress: u32) -> io::Result<Received>;

    /// Puts packet `at` of the batch, or a copy of one, which lies there, to a list; it came by this queue.
    fn forward(&mut self, at: Option<usize>, bounds: Range<u32>, list: usize, queue: usize)
    -> io::Result<()>;

    /// Puts all packets that a graph has sent to the lists of their outputs.
    fn depart(&mut self, queue: usize) -> io::Result<()> {
        for at in 0..self.batch().sent_len() {
            let Some((output, original, bounds)) = self.batch().departure(at) else { continue };
            self.forward(original, bounds, output as usize, queue)?;
        }
        Ok(())
    }

    /// Sends what is in the lists, tells of each how many its port takes and how many it does not, and is done with all others.
    fn close(&mut self, told: impl FnMut(usize, [u64; 2])) -> io::Result<()>;

    /// Nothing has come by a queue.
    fn idle(&mut self) -> io::Result<()>;

    /// Gives ports some time to send the last packets.
    fn finish(&mut self) -> io::Result<()>;
}

/// Ports as workers have them.
pub(super) struct Served<'s, L, E> {
    /// What each worker gets.
    pub(super) lines: Vec<L>,
    /// Makes of that, on the worker's thread, what carries packets, with lists that leave by these ports; `true`: of a graph.
    pub(super) enter: E,
    /// The numbers of ports to XDP programs.
    pub(super) numbers: &'s [u32],
    pub(super) plan: &'s Plan<'s>,
    pub(super) crew: &'s Crew<'s>,
}

impl<L, E, C> Served<'_, L, E>
where
    L: Send,
    E: Fn(L, &[usize], bool) -> io::Result<C> + Sync,
    C: Carry,
{
    /// Runs an XDP program on what comes, by as many workers as the engine is for. `attend` goes on beside them.
    pub(super) fn run(self, engine: &mut Engine, attend: Option<Attend<'_>>) -> io::Result<Ran> {
        let Served { lines, enter, numbers, plan, crew } = self;
        let total = Total { received: AtomicU64::new(0), plan };
        let lists: Vec<usize> = (0..numbers.len()).collect();
        let start = Instant::now();
        let begin = |line, engine: &Engine, number| {
            let carry = enter(line, &lists, false)?;
            let turn =
                |(queue, port): (usize, usize)| Turn { queue, port, ingress: numbers[port], source: 0 };
            let turns = carry.ports().into_iter().enumerate().map(turn).collect();
            Ok((Round::new(carry, turns), (engine.lane(number), Ran::default())))
        };
        let step = |engine: &Engine, round: &mut Round<C>, (lane, ran): &mut (Lane, Ran)| {
            round.step(&total, |round, turn, most| {
                let stamp = lane.stamp();
                let run = |batch: &mut Batch| {
                    engine.run_by(lane, batch);
                    lane.take_events()
                };
                round.carry.batch().expect(engine.layout());
                let received = round.program(turn, most, numbers, ran, run)?;
                lane.done(stamp, received);
                if received > 0 {
                    lane.show(ran);
                }
                Ok(received)
            })
        };
        let beside = |floor: &Floor<'_>| attend.into_iter().for_each(|attend| attend(floor));
        let done = spread(engine, lines, crew, (begin, step), beside)?;
        let ran = done.into_iter().map(|(_, ran)| ran).reduce(Ran::and).unwrap_or_default();
        Ok(Ran { total: start.elapsed(), ..ran })
    }

    /// Runs a graph on what comes by the ports of its sources, by as many workers as the engine is for. `between` is asked between batches, of several
    /// workers now and then, when all of them are between two; it may put another engine in the place of this one.
    pub(super) fn run_graph(
        self,
        engine: &mut Engine,
        ends: &Ends<'_>,
        between: Option<impl FnMut(&mut Engine) -> bool>,
    ) -> io::Result<GraphRan> {
        match engine.workers() {
            1 => self.run_graph_here(engine, ends, between),
            _ => self.run_graph_by(engine, ends, between),
        }
    }

    fn run_graph_here(
        self,
        engine: &mut Engine,
        ends: &Ends<'_>,
        mut between: Option<impl FnMut(&mut Engine) -> bool>,
    ) -> io::Result<GraphRan> {
        let Served { lines, enter, plan, crew, .. } = self;
        (crew.enter)(0)?;
        let total = Total { received: AtomicU64::new(0), plan };
        let mut ran = GraphRan::none(ends.sources.len(), ends.outputs.len());
        let Some(line) = lines.into_iter().next() else { return Ok(ran) };
        let start = Instant::now();
        let mut round = Round::of_graph(enter(line, ends.outputs, true)?, ends);
        loop {
            let on = round.step(&total, |round, turn, most| {
                let stamp = engine.stamp();
                round.carry.batch().expect(engine.layout());
                let run = |batch: &mut Batch| {
                    engine.run_graph(batch);
                    engine.take_events()
                };
                let received = round.graph(turn, most, &mut ran, run)?;
                engine.done(stamp, received);
                if received > 0 {
                    engine.show_graph(&ran);
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
        engine: &mut Engine,
        ends: &Ends<'_>,
        between: Option<impl FnMut(&mut Engine) -> bool>,
    ) -> io::Result<GraphRan> {
        let Served { lines, enter, plan, crew, .. } = self;
        let total = Total { received: AtomicU64::new(0), plan };
        let none = || GraphRan::none(ends.sources.len(), ends.outputs.len());
        let start = Instant::now();
        let begin = |line, engine: &Engine, number| {
            let round = Round::of_graph(enter(line, ends.outputs, true)?, ends);
            Ok((round, (engine.lane(number), none())))
        };
        let step = |engine: &Engine, round: &mut Round<C>, (lane, ran): &mut (Lane, GraphRan)| {
            round.step(&total, |round, turn, most| {
                let stamp = lane.stamp();
                let run = |batch: &mut Batch| {
                    engine.run_graph_by(lane, batch);
                    lane.take_events()
                };
                round.carry.batch().expect(engine.layout());
                let received = round.graph(turn, most, ran, run)?;
                lane.done(stamp, received);
                if received > 0 {
                    lane.show_graph(ran);
                }
                Ok(received)
            })
        };
        let beside = |floor: &Floor<'_>| between.into_iter().for_each(|between| floor.ask(between));
        let done = spread(engine, lines, crew, (begin, step), beside)?;
        let ran = done.into_iter().map(|(_, ran)| ran).reduce(GraphRan::and).unwrap_or_else(none);
        Ok(GraphRan { total: start.elapsed(), ..ran })
    }
}

/// Has each worker do its part, in a thread of its own, and gives what each has of it: `begin` makes what a worker has to itself, `step` takes a batch from the
/// first to the last step. `beside` is done meanwhile.
fn spread<L: Send, C: Carry, S: Send>(
    engine: &mut Engine,
    lines: Vec<L>,
    crew: &Crew<'_>,
    (begin, step): (
        impl Fn(L, &Engine, u32) -> io::Result<(Round<C>, S)> + Sync,
        impl Fn(&Engine, &mut Round<C>, &mut S) -> io::Result<bool> + Sync,
    ),
    beside: impl FnOnce(&Floor<'_>),
) -> io::Result<Vec<S>> {
    let floor = Floor::new(engine);
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

/// A queue that is served, and what its packets are to the program.
#[derive(Clone, Copy)]
struct Turn {
    queue: usize,
    port: usize,
    ingress: u32,
    source: usize,
}

/// A worker's queues, by turns.
struct Round<C> {
    carry: C,
    turns: Vec<Turn>,
    next: usize,
    meter: Meter,
}

impl<C: Carry> Round<C> {
    fn new(carry: C, turns: Vec<Turn>) -> Round<C> {
        Round { carry, turns, next: 0, meter: C::meter() }
    }

    /// The queues of the ports of sources: another port is for sending.
    fn of_graph(carry: C, ends: &Ends<'_>) -> Round<C> {
        let ports = carry.ports();
        let of = |(source, wanted): (usize, &usize)| {
            let (wanted, queues) = (*wanted, ports.iter().enumerate());
            queues.filter(move |(_, port)| **port == wanted).map(move |(queue, port)| Turn {
                queue,
                port: *port,
                ingress: source as u32 + 1,
                source,
            })
        };
        let turns = ends.sources.iter().enumerate().flat_map(of).collect();
        Round::new(carry, turns)
    }

    /// Serves the queue whose turn it is; whether to go on. `take` takes at most so many packets of a queue from the first to the last step, and says how
    /// many these were.
    fn step(
        &mut self,
        total: &Total<'_>,
        take: impl FnOnce(&mut Self, Turn, usize) -> io::Result<u64>,
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

    /// Takes a batch from a queue through a program, by `run`, which gives what was put into rings: how many packets were received.
    fn program(
        &mut self,
        turn: Turn,
        most: usize,
        numbers: &[u32],
        ran: &mut Ran,
        run: impl FnOnce(&mut Batch) -> Vec<Event>,
    ) -> io::Result<u64> {
        let Round { carry, meter, .. } = self;
        let Received { packets, unfit } = carry.receive(turn.queue, most, turn.ingress)?;
        if packets == 0 {
            return Ok(0);
        }
        ran.account.received += packets;
        ran.account.dropped[Reason::Size as usize] += unfit;
        ran.events += measured(carry, meter, (&mut ran.busy, &mut ran.windows), run);
        settle(carry, turn, numbers, &mut ran.account)?;
        Ok(packets)
    }

    /// The same with a graph.
    fn graph(
        &mut self,
        turn: Turn,
        most: usize,
        ran: &mut GraphRan,
        run: impl FnOnce(&mut Batch) -> Vec<Event>,
    ) -> io::Result<u64> {
        let Round { carry, meter, .. } = self;
        let Received { packets, unfit } = carry.receive(turn.queue, most, turn.ingress)?;
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

/// Runs the batch at hand: how many records were put into rings.
fn measured(
    carry: &mut impl Carry,
    meter: &mut Meter,
    times: (&mut Duration, &mut Vec<f64>),
    run: impl FnOnce(&mut Batch) -> Vec<Event>,
) -> u64 {
    let (batch, mut events) = (carry.batch(), 0);
    meter.measure(batch.len(), times, || events = run(batch).len());
    events as u64
}

/// Does with the packets of a batch what a program has said.
fn settle(carry: &mut impl Carry, turn: Turn, numbers: &[u32], account: &mut Account) -> io::Result<()> {
    // Of what leaves by the port that it came by: those that were not redirected there.
    let mut back = 0;
    for at in 0..carry.batch().len() {
        let list = match fate(carry.batch(), at) {
            Fate::Back => {
                back += 1;
                turn.port
            }
            Fate::To(index) => match numbers.iter().position(|number| *number == index) {
                Some(port) => port,
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
        let bounds = carry.batch().bounds(at);
        carry.forward(Some(at), bounds, list, turn.queue)?;
    }
    carry.close(|port, [sent, left]| {
        let returned = if port == turn.port { sent.min(back) } else { 0 };
        account.transmitted += returned;
        account.redirected += sent - returned;
        account.dropped[Reason::NoRoom as usize] += left;
    })
}
