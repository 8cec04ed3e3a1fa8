//! Packets from and to interfaces, as they come.
//!
//! What carries packets is a [`Wire`]; who implements it is not this crate's business. One worker (several: [`super::wires`]) takes from all of them in
//! turn, a batch at a time, and sends what the program says: back, or out of another one of them; of graphs, by the wire of the output.

use std::io;
use std::time::{Duration, Instant};

use super::graph::{Ends, GraphRan, copies};
use super::meter::Meter;
use super::{Account, Fate, Ran, Reason, fate};
use crate::engine::Engine;
use crate::runtime::packet::Batch;
use crate::runtime::worker::Event;

/// Takes bytes of a packet.
pub type Take<'t> = &'t mut dyn FnMut(&[u8]);

/// An interface.
pub trait Wire {
    /// Its number, by which programs name it.
    fn index(&self) -> u32;

    /// Hands over at most so many packets that have come, and says how many these were.
    ///
    /// # Errors
    /// If it has gone.
    fn receive(&mut self, most: usize, take: Take<'_>) -> io::Result<usize>;

    /// Takes a packet to be sent; `false` if it has no room.
    fn send(&mut self, packet: &[u8]) -> bool;

    /// Sends what it has taken, or goes on to; whether all of it is sent.
    ///
    /// # Errors
    /// If it has gone.
    fn flush(&mut self) -> io::Result<bool>;

    /// Waits for a packet, at most so long.
    ///
    /// # Errors
    /// If it has gone.
    fn wait(&mut self, at_most: Duration) -> io::Result<()>;
}

/// Looks in vain, before it sleeps until something comes.
pub(super) const SPINS: u32 = 2000;
/// How long it sleeps before it looks at all wires again.
pub(super) const NAP: Duration = Duration::from_millis(1);
/// How long the last packets may take to be sent.
const LAST: Duration = Duration::from_secs(1);

/// Serves interfaces in batches of this size for as long as `goes_on` says, which is asked after every batch and while
/// nothing comes. Packets that have been received are processed and sent before it returns.
///
/// # Errors
/// If a wire fails, or there is no memory for a batch.
pub fn serve<W: Wire>(
    engine: &mut Engine,
    wires: &mut [W],
    size: usize,
    goes_on: &mut dyn FnMut(&Account, &mut Engine) -> bool,
    events: &mut dyn FnMut(&Event),
) -> io::Result<Ran> {
    let mut batch = Batch::new(size)?;
    let mut from = Vec::with_capacity(size);
    let (mut ran, mut meter, mut idle) = (Ran::default(), Meter::default(), Idle::default());
    let start = Instant::now();
    while goes_on(&ran.account, engine) {
        let stamp = engine.stamp();
        batch.expect(engine.layout());
        receive(wires, &mut batch, &mut from, &mut ran.account)?;
        if batch.is_empty() {
            idle.rest(wires)?;
            continue;
        }
        idle = Idle::default();
        meter.run(engine, &mut batch, &mut ran);
        send(wires, &batch, &from, &mut ran.account)?;
        for event in engine.take_events() {
            ran.events += 1;
            events(&event);
        }
        engine.done(stamp, batch.len() as u64);
        engine.show(&ran);
    }
    finish(wires)?;
    ran.total = start.elapsed();
    Ok(ran)
}

/// Serves the wires of a graph's sources and outputs, as [`serve`] does. `goes_on` is asked before every batch and while nothing comes, and
/// may put another engine in the place of this one.
///
/// # Errors
/// As for [`serve`].
pub fn serve_graph<W: Wire>(
    engine: &mut Engine,
    wires: &mut [W],
    ends: &Ends<'_>,
    size: usize,
    goes_on: &mut dyn FnMut(&GraphRan, &mut Engine) -> bool,
) -> io::Result<GraphRan> {
    let mut batch = Batch::with_copies(size, copies(size))?;
    let mut ran = GraphRan::none(ends.sources.len(), ends.outputs.len());
    let (mut meter, mut idle, mut in_vain) = (Meter::default(), Idle::default(), 0);
    let start = Instant::now();
    for source in (0..ends.sources.len()).cycle() {
        if !goes_on(&ran, engine) {
            break;
        }
        batch.clear();
        batch.expect(engine.layout());
        let stamp = engine.stamp();
        wires[ends.sources[source]].receive(size, &mut |bytes| {
            ran.received[source] += 1;
            ran.unfit += u64::from(!batch.push_open(bytes, source as u32 + 1));
        })?;
        if batch.is_empty() {
            in_vain += 1;
            if in_vain >= ends.sources.len() {
                idle.rest(wires)?;
                in_vain = 0;
            }
            continue;
        }
        (idle, in_vain) = (Idle::default(), 0);
        let packets = batch.len();
        meter.measure(packets, (&mut ran.busy, &mut ran.windows), || engine.run_graph(&mut batch));
        ran.events += engine.take_events().len() as u64;
        ran.copies += batch.copies() as u64;
        for (bytes, output, _) in batch.sent() {
            match hand(&mut wires[ends.outputs[output as usize]], bytes)? {
                true => ran.sent[output as usize] += 1,
                false => ran.no_room += 1,
            }
        }
        for wire in wires.iter_mut() {
            wire.flush()?;
        }
        engine.done(stamp, packets as u64);
        engine.show_graph(&ran);
    }
    finish(wires)?;
    ran.total = start.elapsed();
    Ok(ran)
}

/// How often it was looked in vain.
#[derive(Default)]
struct Idle(u32);

impl Idle {
    /// Nothing has come: sends on what waits, and sleeps if that is so for long.
    fn rest<W: Wire>(&mut self, wires: &mut [W]) -> io::Result<()> {
        self.0 = self.0.saturating_add(1);
        for wire in wires.iter_mut() {
            wire.flush()?;
        }
        match wires.first_mut() {
            Some(wire) if self.0 > SPINS => wire.wait(NAP),
            _ => Ok(()),
        }
    }
}

/// Gives wires some time to send the last packets.
pub(super) fn finish<W: Wire>(wires: &mut [W]) -> io::Result<()> {
    let end = Instant::now() + LAST;
    for wire in wires {
        while !wire.flush()? && Instant::now() < end {}
    }
    Ok(())
}

/// Gives a wire a packet, twice if it has to send others first; whether it takes it.
pub(super) fn hand<W: Wire>(wire: &mut W, bytes: &[u8]) -> io::Result<bool> {
    if wire.send(bytes) {
        return Ok(true);
    }
    wire.flush()?;
    Ok(wire.send(bytes))
}

/// Fills a batch, each wire its share; `from` says which wire each packet came by.
fn receive<W: Wire>(
    wires: &mut [W],
    batch: &mut Batch,
    from: &mut Vec<usize>,
    account: &mut Account,
) -> io::Result<()> {
    batch.clear();
    from.clear();
    let share = batch.capacity().div_ceil(wires.len().max(1));
    for (at, wire) in wires.iter_mut().enumerate() {
        let room = share.min(batch.capacity() - batch.len());
        let index = wire.index();
        wire.receive(room, &mut |bytes| {
            account.received += 1;
            match batch.push(bytes, index) {
                true => from.push(at),
                false => account.dropped(Reason::Size),
            }
        })?;
    }
    Ok(())
}

/// Sends or drops each packet of a batch that was run.
fn send<W: Wire>(wires: &mut [W], batch: &Batch, from: &[usize], account: &mut Account) -> io::Result<()> {
    for (at, &came) in from.iter().enumerate() {
        let (to, count) = match fate(batch, at) {
            Fate::Back => (came, &mut account.transmitted),
            Fate::To(index) => match wires.iter().position(|w| w.index() == index) {
                Some(to) => (to, &mut account.redirected),
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
        match hand(&mut wires[to], batch.bytes(at))? {
            true => *count += 1,
            false => account.dropped(Reason::NoRoom),
        }
    }
    for wire in wires {
        wire.flush()?;
    }
    Ok(())
}
