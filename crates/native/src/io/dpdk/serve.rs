//! Workers that poll ports.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use super::device::{Buffers, Device, Hand, Line};
use super::{Metadata, Plan};
use crate::crash::Stack;
use crate::engine::Engine;
use crate::io::graph::{COPIES, Ends, GraphRan};
use crate::io::meter::Meter;
use crate::io::{Account, Crew, Fate, Ran, Reason, fate, joined};
use crate::runtime::packet::Batch;
use crate::runtime::worker::Event;

/// A worker's queues, and the packets that are under way by it. Buffers are given back before the thread leaves.
struct Way<'d> {
    batch: Batch,
    /// What came, as long as it is not sent.
    came: Buffers<'d>,
    /// What is to leave by each port.
    out: Vec<Buffers<'d>>,
    metadata: Metadata,
    /// Whether packets are a graph's.
    open: bool,
    hand: Hand<'d>,
}

impl<'d> Way<'d> {
    /// Takes a queue as this thread. What is sent goes to this many lists first.
    fn enter(line: Line<'d>, lists: usize, plan: &Plan<'_>, open: bool) -> io::Result<Way<'d>> {
        let copies = if open { plan.batch * COPIES } else { 0 };
        let batch = match plan.metadata {
            Metadata::Overlay => Batch::over(line.room(), plan.batch, copies)?,
            Metadata::Copy => Batch::with_copies(plan.batch, copies)?,
        };
        let hand = line.enter()?;
        let out = (0..lists).map(|_| hand.buffers(plan.batch + copies)).collect();
        Ok(Way { came: hand.buffers(plan.batch), out, batch, metadata: plan.metadata, open, hand })
    }

    /// Fills the batch with what has come by a port: how many packets came, and how many of them fit no buffer.
    fn receive(&mut self, port: usize, most: u64, ingress: u32) -> (u64, u64) {
        let Way { hand, batch, came, .. } = self;
        batch.clear();
        let received = hand.receive(port, usize::try_from(most).unwrap_or(usize::MAX), came);
        let mut unfit = Vec::new();
        match self.metadata {
            Metadata::Overlay => {
                batch.push_lent(came.lying(), (ingress, self.open), |at| unfit.push(at));
            }
            Metadata::Copy => {
                let push = if self.open { Batch::push_open } else { Batch::push };
                unfit.extend(
                    (0..received)
                        .filter(|&at| !came.bytes(at).is_some_and(|bytes| push(batch, bytes, ingress))),
                );
            }
        }
        // Places of packets are those of their buffers.
        unfit.iter().rev().for_each(|&at| came.remove(at));
        if self.metadata == Metadata::Copy {
            came.free();
        }
        (received as u64, unfit.len() as u64)
    }

    /// Puts packet `at` of the batch to those that leave by a port; `false` if there is no buffer for it.
    #[inline]
    fn forward(&mut self, at: usize, port: usize) -> bool {
        let Way { hand, batch, came, out, .. } = self;
        match self.metadata {
            Metadata::Overlay => {
                came.forward(at, batch.bounds(at), &mut out[port]);
                true
            }
            Metadata::Copy => hand.copy(batch.bytes(at), &mut out[port]),
        }
    }

    /// Sends a list by a port: how many the driver takes, and how many it does not.
    fn send(&mut self, list: usize, port: usize) -> (u64, u64) {
        let all = self.out[list].len();
        let sent = if all == 0 { 0 } else { self.hand.send(port, &mut self.out[list]) };
        (sent as u64, (all - sent) as u64)
    }

    /// Does with the packets of a batch what a program has said: they came by a port, and ports are to it interfaces from `first` on.
    fn settle(&mut self, came: usize, first: u32, account: &mut Account) {
        for at in 0..self.batch.len() {
            let port = match fate(&self.batch, at) {
                Fate::Back => came,
                Fate::To(index) => match index.checked_sub(first).map(|port| port as usize) {
                    Some(port) if port < self.out.len() => port,
                    _ => {
                        account.dropped(Reason::NoTarget);
                        continue;
                    }
                },
                Fate::Dropped(reason) => {
                    account.dropped(reason);
                    continue;
                }
            };
            if !self.forward(at, port) {
                account.dropped(Reason::NoRoom);
            }
        }
        self.came.free();
        for port in 0..self.out.len() {
            let (sent, left) = self.send(port, port);
            *if port == came { &mut account.transmitted } else { &mut account.redirected } += sent;
            account.dropped[Reason::NoRoom as usize] += left;
        }
    }

    /// Sends what a graph has sent, by the ports of its outputs.
    fn leave(&mut self, outputs: &[usize], ran: &mut GraphRan) {
        let Way { hand, batch, came, out, metadata, .. } = self;
        let overlay = *metadata == Metadata::Overlay;
        if overlay && batch.copies() == 0 {
            came.forward_all(batch.departures_of_originals(), batch.len(), out);
        } else {
            for (output, original, bounds) in batch.departures() {
                let to = &mut out[output as usize];
                match original {
                    Some(at) if overlay => came.forward(at, bounds, to),
                    _ => ran.no_room += u64::from(!hand.copy(batch.departing(bounds), to)),
                }
            }
        }
        came.free();
        for (list, port) in outputs.iter().enumerate() {
            let (sent, left) = self.send(list, *port);
            ran.sent[list] += sent;
            ran.no_room += left;
        }
    }

    /// Takes a batch from a source of a graph through it, by `run`, which gives what was put into rings.
    fn turn(
        &mut self,
        source: usize,
        (ends, most): (&Ends<'_>, u64),
        (ran, meter): (&mut GraphRan, &mut Meter),
        run: impl FnOnce(&mut Batch) -> Vec<Event>,
    ) -> u64 {
        let (received, unfit) = self.receive(ends.sources[source], most, source as u32 + 1);
        if received == 0 {
            return 0;
        }
        ran.received[source] += received;
        ran.unfit += unfit;
        let (batch, mut events) = (&mut self.batch, Vec::new());
        meter.measure(batch.len(), (&mut ran.busy, &mut ran.windows), || events = run(batch));
        ran.events += events.len() as u64;
        ran.copies += batch.copies() as u64;
        self.leave(ends.outputs, ran);
        received
    }
}

/// Has each worker do its part, in a thread of its own, and puts together what they found.
fn spread<R: Send>(
    device: &mut Device,
    crew: &Crew<'_>,
    work: impl Fn(u32, Line<'_>) -> io::Result<R> + Sync,
) -> io::Result<Vec<R>> {
    let lines = device.lines();
    thread::scope(|scope| {
        let spawned: Vec<_> = lines
            .into_iter()
            .zip(0..)
            .map(|(line, number)| {
                let work = &work;
                scope.spawn(move || {
                    let _stack = Stack::new()?;
                    (crew.enter)(number)?;
                    work(number, line)
                })
            })
            .collect();
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
    fn most(&self) -> Option<u64> {
        let left = self.plan.most.saturating_sub(self.received.load(Ordering::Relaxed));
        (left > 0 && (self.plan.goes_on)()).then(|| left.min(self.plan.batch as u64))
    }

    fn add(&self, received: u64) {
        if received > 0 {
            // Workers need not share a line for a number that nothing depends on.
            if self.plan.most == u64::MAX {
                return;
            }
            self.received.fetch_add(received, Ordering::Relaxed);
        } else {
            std::hint::spin_loop();
        }
    }
}

/// [`super::Ports::run`].
pub(super) fn programs(
    device: &mut Device,
    engine: &Engine,
    first: u32,
    plan: &Plan<'_>,
    crew: &Crew<'_>,
) -> io::Result<Ran> {
    let total = Total { received: AtomicU64::new(0), plan };
    let (start, ports) = (Instant::now(), device.ports());
    let done = spread(device, crew, |number, line| {
        let mut way = Way::enter(line, ports, plan, false)?;
        let mut lane = engine.lane(number);
        let (mut ran, mut meter) = (Ran::default(), Meter::sampling());
        for port in (0..ports).cycle() {
            let Some(most) = total.most() else { break };
            let (received, unfit) = way.receive(port, most, first + port as u32);
            total.add(received);
            if received == 0 {
                continue;
            }
            ran.account.received += received;
            ran.account.dropped[Reason::Size as usize] += unfit;
            let batch = &mut way.batch;
            let (packets, run) = (batch.len(), || engine.run_by(&mut lane, batch));
            meter.measure(packets, (&mut ran.busy, &mut ran.windows), run);
            ran.events += lane.take_events().len() as u64;
            way.settle(port, first, &mut ran.account);
        }
        Ok(ran)
    })?;
    let ran = done.into_iter().reduce(Ran::and).unwrap_or_default();
    Ok(Ran { total: start.elapsed(), ..ran })
}

/// [`super::Ports::run_graph`].
pub(super) fn graph(
    device: &mut Device,
    engine: &mut Engine,
    ends: &Ends<'_>,
    plan: &Plan<'_>,
    crew: &Crew<'_>,
    mut between: impl FnMut(&mut Engine) -> bool,
) -> io::Result<GraphRan> {
    (crew.enter)(0)?;
    let total = Total { received: AtomicU64::new(0), plan };
    let mut ran = GraphRan::none(ends.sources.len(), ends.outputs.len());
    let (start, mut meter) = (Instant::now(), Meter::sampling());
    let Some(line) = device.lines().into_iter().next() else { return Ok(ran) };
    let mut way = Way::enter(line, ends.outputs.len(), plan, true)?;
    for source in (0..ends.sources.len()).cycle() {
        let Some(most) = total.most() else { break };
        let run = |batch: &mut Batch| {
            engine.run_graph(batch);
            engine.take_events()
        };
        total.add(way.turn(source, (ends, most), (&mut ran, &mut meter), run));
        if !between(engine) {
            break;
        }
    }
    ran.total = start.elapsed();
    Ok(ran)
}

/// [`super::Ports::run_graph_by`].
pub(super) fn graph_by(
    device: &mut Device,
    engine: &Engine,
    ends: &Ends<'_>,
    plan: &Plan<'_>,
    crew: &Crew<'_>,
) -> io::Result<GraphRan> {
    let total = Total { received: AtomicU64::new(0), plan };
    let none = || GraphRan::none(ends.sources.len(), ends.outputs.len());
    let start = Instant::now();
    let done = spread(device, crew, |number, line| {
        let mut way = Way::enter(line, ends.outputs.len(), plan, true)?;
        let mut lane = engine.lane(number);
        let (mut ran, mut meter) = (none(), Meter::sampling());
        for source in (0..ends.sources.len()).cycle() {
            let Some(most) = total.most() else { break };
            let run = |batch: &mut Batch| {
                engine.run_graph_by(&mut lane, batch);
                lane.take_events()
            };
            total.add(way.turn(source, (ends, most), (&mut ran, &mut meter), run));
        }
        Ok(ran)
    })?;
    let ran = done.into_iter().reduce(GraphRan::and).unwrap_or_else(none);
    Ok(GraphRan { total: start.elapsed(), ..ran })
}
