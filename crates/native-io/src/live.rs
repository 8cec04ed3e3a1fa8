//! Packets from and to interfaces, in real time.
//!
//! Packets are carried by a [`PacketPort`], implemented outside of this crate. One worker (several:
//! [`super::packet_ports`]) takes from all of them in turn, a batch at a time, and sends according to the
//! verdict: back, or out of another one of them; for graphs, by the wire of the output.

use std::io;
use std::time::{Duration, Instant};

use super::batch_timer::BatchTimer;
use super::graph::{GraphPortNumbers, GraphRunStats, copies};
use super::{DropReason, ForwardingDecision, PacketAccounting, RunStats, fate};
use millstream_native::NativeEngine;
use millstream_native_runtime::packet::PacketBatch;
use millstream_native_runtime::worker::ProgramEvent;

/// Receiver of a packet's bytes.
pub type PacketCallback<'t> = &'t mut dyn FnMut(&[u8]);

/// An interface.
pub trait PacketPort {
    /// Its interface number, as programs see it.
    fn index(&self) -> u32;

    /// Hands over at most this many received packets, and returns their number.
    ///
    /// # Errors
    /// If the interface is gone.
    fn receive(&mut self, most: usize, take: PacketCallback<'_>) -> io::Result<usize>;

    /// Queues a packet to be sent; `false` if there is no room.
    fn send(&mut self, packet: &[u8]) -> bool;

    /// Sends queued packets, or continues to; returns true if all of them are sent.
    ///
    /// # Errors
    /// If the interface is gone.
    fn flush(&mut self) -> io::Result<bool>;

    /// Waits for a packet, at most this long.
    ///
    /// # Errors
    /// If the interface is gone.
    fn wait(&mut self, at_most: Duration) -> io::Result<()>;
}

/// Number of looks in vain before it sleeps until something comes.
pub(super) const SPINS: u32 = 2000;
/// Longest sleep before it looks at all wires again.
pub(super) const NAP: Duration = Duration::from_millis(1);
/// Time limit for sending the last packets.
const LAST: Duration = Duration::from_secs(1);

/// Serves interfaces in batches of this size as long as `goes_on`, which is called after every batch and
/// while nothing comes, returns true. Packets that have been received are processed and sent before it
/// returns.
///
/// # Errors
/// If a wire fails, or there is no memory for a batch.
pub fn serve<W: PacketPort>(
    engine: &mut NativeEngine,
    wires: &mut [W],
    size: usize,
    goes_on: &mut dyn FnMut(&PacketAccounting, &mut NativeEngine) -> bool,
    events: &mut dyn FnMut(&ProgramEvent),
) -> io::Result<RunStats> {
    let mut batch = PacketBatch::new(size)?;
    let mut from = Vec::with_capacity(size);
    let (mut ran, mut meter, mut idle) = (RunStats::default(), BatchTimer::default(), PortBackoff::default());
    let start = Instant::now();
    while goes_on(&ran.account, engine) {
        let stamp = engine.stamp();
        batch.expect(engine.layout());
        receive(wires, &mut batch, &mut from, &mut ran.account)?;
        if batch.is_empty() {
            idle.rest(wires)?;
            continue;
        }
        idle = PortBackoff::default();
        meter.run(engine, &mut batch, &mut ran);
        send(wires, &batch, &from, &mut ran.account)?;
        for event in engine.take_events() {
            ran.events += 1;
            events(&event);
        }
        engine.done(stamp, batch.len() as u64);
        engine.publish_stats(&ran);
    }
    finish(wires)?;
    ran.total = start.elapsed();
    Ok(ran)
}

/// Serves the wires of a graph's sources and outputs, as [`serve`] does. `goes_on` is called before every
/// batch and while nothing comes, and may replace the engine by another one.
///
/// # Errors
/// As for [`serve`].
pub fn serve_graph<W: PacketPort>(
    engine: &mut NativeEngine,
    wires: &mut [W],
    ends: &GraphPortNumbers<'_>,
    size: usize,
    goes_on: &mut dyn FnMut(&GraphRunStats, &mut NativeEngine) -> bool,
) -> io::Result<GraphRunStats> {
    let mut batch = PacketBatch::with_copies(size, copies(size))?;
    let mut ran = GraphRunStats::none(ends.sources.len(), ends.outputs.len());
    let (mut meter, mut idle, mut in_vain) = (BatchTimer::default(), PortBackoff::default(), 0);
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
        (idle, in_vain) = (PortBackoff::default(), 0);
        let packets = batch.len();
        meter.measure(packets, (&mut ran.busy, &mut ran.windows), || engine.run_graph(&mut batch));
        ran.events += engine.take_events().len() as u64;
        ran.copies += batch.copies() as u64;
        for (bytes, output, _) in batch.sent() {
            match send_with_retry(&mut wires[ends.outputs[output as usize]], bytes)? {
                true => ran.sent[output as usize] += 1,
                false => ran.no_room += 1,
            }
        }
        for wire in wires.iter_mut() {
            wire.flush()?;
        }
        engine.done(stamp, packets as u64);
        engine.publish_graph_stats(&ran);
    }
    finish(wires)?;
    ran.total = start.elapsed();
    Ok(ran)
}

/// Number of looks in vain.
#[derive(Default)]
struct PortBackoff(u32);

impl PortBackoff {
    /// Handles a look in vain: continues to send queued packets, and sleeps if nothing has come for long.
    fn rest<W: PacketPort>(&mut self, wires: &mut [W]) -> io::Result<()> {
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
pub(super) fn finish<W: PacketPort>(wires: &mut [W]) -> io::Result<()> {
    let end = Instant::now() + LAST;
    for wire in wires {
        while !wire.flush()? && Instant::now() < end {}
    }
    Ok(())
}

/// Gives a packet to a wire, and retries once after flushing it; returns true if the wire takes it.
pub(super) fn send_with_retry<W: PacketPort>(wire: &mut W, bytes: &[u8]) -> io::Result<bool> {
    if wire.send(bytes) {
        return Ok(true);
    }
    wire.flush()?;
    Ok(wire.send(bytes))
}

/// Fills a batch, each wire its share; `from` gets the wire of each packet.
fn receive<W: PacketPort>(
    wires: &mut [W],
    batch: &mut PacketBatch,
    from: &mut Vec<usize>,
    account: &mut PacketAccounting,
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
                false => account.dropped(DropReason::Size),
            }
        })?;
    }
    Ok(())
}

/// Sends or drops each packet of a batch after its run.
fn send<W: PacketPort>(
    wires: &mut [W],
    batch: &PacketBatch,
    from: &[usize],
    account: &mut PacketAccounting,
) -> io::Result<()> {
    for (at, &came) in from.iter().enumerate() {
        let (to, count) = match fate(batch, at) {
            ForwardingDecision::Back => (came, &mut account.transmitted),
            ForwardingDecision::To(index) => match wires.iter().position(|w| w.index() == index) {
                Some(to) => (to, &mut account.redirected),
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
        match send_with_retry(&mut wires[to], batch.bytes(at))? {
            true => *count += 1,
            false => account.dropped(DropReason::NoRoom),
        }
    }
    for wire in wires {
        wire.flush()?;
    }
    Ok(())
}
