//! Packets from and to interfaces, as they come.
//!
//! What carries packets is a [`Wire`]; who implements it is not this crate's business. One worker takes from all of them in
//! turn, a batch at a time, and sends what the program says: back, or out of another one of them.

use std::io;
use std::time::{Duration, Instant};

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
const SPINS: u32 = 2000;
/// How long it sleeps before it looks at all wires again.
const NAP: Duration = Duration::from_millis(1);
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
    goes_on: &mut dyn FnMut(&Account) -> bool,
    events: &mut dyn FnMut(&Event),
) -> io::Result<Ran> {
    let mut batch = Batch::new(size)?;
    let mut from = Vec::with_capacity(size);
    let (mut ran, mut meter, mut idle) = (Ran::default(), Meter::default(), 0);
    let start = Instant::now();
    while goes_on(&ran.account) {
        receive(wires, &mut batch, &mut from, &mut ran.account)?;
        if batch.is_empty() {
            idle += 1;
            for wire in wires.iter_mut() {
                wire.flush()?;
            }
            if idle > SPINS
                && let Some(wire) = wires.first_mut()
            {
                wire.wait(NAP)?;
            }
            continue;
        }
        idle = 0;
        meter.run(engine, &mut batch, &mut ran);
        send(wires, &batch, &from, &mut ran.account)?;
        for event in engine.take_events() {
            ran.events += 1;
            events(&event);
        }
    }
    let end = Instant::now() + LAST;
    for wire in wires.iter_mut() {
        while !wire.flush()? && Instant::now() < end {}
    }
    ran.total = start.elapsed();
    Ok(ran)
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
        let (wire, bytes) = (&mut wires[to], batch.bytes(at));
        let mut taken = wire.send(bytes);
        if !taken {
            wire.flush()?;
            taken = wire.send(bytes);
        }
        match taken {
            true => *count += 1,
            false => account.dropped(Reason::NoRoom),
        }
    }
    for wire in wires {
        wire.flush()?;
    }
    Ok(())
}
