//! Interfaces, by the system's clock.
//!
//! Due packets are sent before anything is received, but after a full batch of them something is received.
//! While nothing comes the worker sleeps no longer than until the next packet is due. As everything that serves
//! wires, it first looks in vain for a while.

use std::io;
use std::time::{Duration, Instant};

use super::TimedQueues;
use crate::batch_timer::BatchTimer;
use crate::graph::{GraphPortNumbers, GraphRunStats, copies};
use crate::live::{NAP, PacketPort, SPINS, finish, send_with_retry};
use millstream_native::NativeEngine;
use millstream_native_runtime::packet::PacketBatch;

/// Serves the wires of a graph's sources and outputs in batches of this size as long as `goes_on`, which is
/// called before every batch and while nothing comes, returns true; it may replace the engine by another one.
/// Packets wait in a room.
///
/// # Errors
/// If a wire fails, or there is no memory for a batch.
pub fn serve_graph_timed<W: PacketPort>(
    engine: &mut NativeEngine,
    wires: &mut [W],
    ends: &GraphPortNumbers<'_>,
    room: &mut TimedQueues,
    size: usize,
    goes_on: &mut dyn FnMut(&GraphRunStats, &mut NativeEngine, &mut TimedQueues) -> bool,
) -> io::Result<GraphRunStats> {
    let mut batch = PacketBatch::with_copies(size, copies(size))?;
    let (mut ran, mut meter) =
        (GraphRunStats::none(ends.sources.len(), ends.outputs.len()), BatchTimer::default());
    let start = Instant::now();
    room.begin(0);
    let elapsed = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let (mut origins, mut source, mut in_vain) = (Vec::with_capacity(size), 0, 0u32);
    let mut was_full = false;
    while goes_on(&ran, engine, room) {
        batch.clear();
        batch.expect(engine.layout());
        origins.clear();
        let stamp = engine.stamp();
        room.advance_to(elapsed());
        if !was_full {
            room.fill(&mut batch, ends.sources.len() as u32 + 1, &mut origins);
        }
        was_full = batch.len() == batch.capacity();
        if batch.is_empty() && !room.is_full() {
            let wire = &mut wires[ends.sources[source]];
            wire.receive(size, &mut |bytes| {
                ran.received[source] += 1;
                match batch.push_open(bytes, source as u32 + 1) {
                    true => origins.push((source, ran.received[source])),
                    false => ran.unfit += 1,
                }
            })?;
            room.note_source(source, !batch.is_empty());
            source = (source + 1) % ends.sources.len();
        }
        if batch.is_empty() {
            in_vain = in_vain.saturating_add(1);
            let due = room.next().map(|due| Duration::from_nanos(due.saturating_sub(elapsed())));
            rest(wires, in_vain, due)?;
            continue;
        }
        in_vain = 0;
        room.advance_to(elapsed());
        meter.measure(batch.len(), (&mut ran.busy, &mut ran.windows), || engine.run_graph(&mut batch));
        ran.events += engine.take_events().len() as u64;
        ran.copies += batch.copies() as u64 + room.take_copies();
        for (place, (bytes, output, at)) in batch.sent().enumerate() {
            let output = output as usize;
            match ends.outputs.get(output) {
                Some(wire) if send_with_retry(&mut wires[*wire], bytes)? => ran.sent[output] += 1,
                Some(_) => ran.no_room += 1,
                None => {
                    let origin = origins.get(at).copied().unwrap_or_default();
                    room.enter(output - ends.outputs.len(), &batch, place, origin);
                }
            }
        }
        for wire in wires.iter_mut() {
            wire.flush()?;
        }
        ran.held = room.held();
        engine.done(stamp, origins.len() as u64);
        engine.publish_graph_stats(&ran);
    }
    finish(wires)?;
    ran.total = start.elapsed();
    Ok(ran)
}

/// Handles a look in vain: continues to send queued packets, and sleeps if nothing has come for long. `due`
/// is the time until the next packet is due, if any.
fn rest<W: PacketPort>(wires: &mut [W], in_vain: u32, due: Option<Duration>) -> io::Result<()> {
    for wire in wires.iter_mut() {
        wire.flush()?;
    }
    match wires.first_mut() {
        Some(wire) if in_vain > SPINS => match due.map_or(NAP, |due| due.min(NAP)) {
            Duration::ZERO => Ok(()),
            time => wire.wait(time),
        },
        _ => Ok(()),
    }
}
