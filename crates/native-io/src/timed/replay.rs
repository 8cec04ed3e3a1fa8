//! Replays packets by their own times.
//!
//! Time is virtual: it leaps to the next arrival or departure, whichever comes first, arrivals before
//! departures at the same time. So a run takes no longer than its work, ends with empty queues, and is the
//! same every time. On request it waits for the machine's clock.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use super::scheduling::{QueueScheduler, SchedulingPolicy};
use super::{SendSchedule, SendTimer, TimedQueues};
use crate::batch_timer::BatchTimer;
use crate::graph::{AdmitResult, GraphRunStats, GraphSources, SentPacket, admit, copies};
use crate::idle_sources::IdleSources;
use crate::packet_source::{PacketRecord, WorkerSource};
use crate::safepoint::NAP;
use millstream_native::NativeEngine;
use millstream_native_runtime::packet::{ArrivalMetadata, PacketBatch};
use millstream_native_runtime::worker::ClockSource;

/// Beginning of time if no packet has one, in nanoseconds: not zero, which tables hold before anything
/// happened.
const BEGINNING: u64 = 1_000_000_000;

/// Arrival times of a source's packets.
#[derive(Clone, Copy, Debug)]
pub struct ArrivalTimes<'t> {
    /// Nanoseconds of each frame, in order; after the last one the first follows as soon as the second did.
    pub stamps: &'t [u64],
    /// Times without stamps; a gate may set another rate.
    pub beat: SendSchedule,
    /// True if the beat is the source's own.
    pub paced: bool,
}

impl ArrivalTimes<'_> {
    /// Beginning of time for this source, if it has stamps.
    fn beginning(&self) -> Option<u64> {
        self.stamps.iter().min().copied()
    }

    /// Arrival time of a packet by its stamp, which is never before those of earlier packets.
    fn of(&self, number: u64) -> Option<u64> {
        let len = self.stamps.len() as u64;
        let stamp = number.checked_rem(len).and_then(|at| self.stamps.get(at as usize))?;
        let [first, second, last] = [0, 1.min(len - 1), len - 1].map(|at| self.stamps[at as usize]);
        let round = (last.saturating_sub(first)).saturating_add(second.saturating_sub(first).max(1));
        Some(stamp.saturating_add((number / len).saturating_mul(round)))
    }
}

/// A source, and its position.
struct ScheduledSource<'f> {
    supply: WorkerSource<'f>,
    table: ArrivalTimes<'f>,
    sender: SendTimer,
    next: u64,
}

impl ScheduledSource<'_> {
    /// Returns true if its packets have arrival times of their own.
    fn is_paced(&self) -> bool {
        !self.table.stamps.is_empty() || self.table.paced
    }

    /// Arrival time of its next packet, if there is one; it has none from number `until` on.
    fn next(&mut self, until: u64, rate: Option<u64>, now: u64) -> io::Result<Option<u64>> {
        let found = self.supply.peek(until)?.map(|(record, number)| (record.arrival.time, number));
        let next = found.map_or(self.next, |(_, number)| number);
        self.next = next;
        self.sender.renew(rate.map_or(self.table.beat, SendSchedule::Rate), found.is_some(), (next, now));
        Ok(found.and_then(|(time, number)| {
            time.or_else(|| self.table.of(number)).or_else(|| self.sender.send_time(number))
        }))
    }

    /// Beginning of time for it, if its first packet has a time; this packet must be available.
    fn beginning(&mut self) -> io::Result<Option<u64>> {
        let first = self.supply.peek(u64::MAX)?.and_then(|(record, _)| record.arrival.time);
        Ok(first.or_else(|| self.table.beginning()))
    }
}

/// Next event.
enum ReplayEvent {
    /// Arrival of a packet of a source.
    Arrival(usize),
    /// Departure of a waiting packet.
    Departure,
}

/// Runs all packets of all sources through a graph with this many outputs, in which packets wait in a room,
/// at the times in `tables`. `take` gets each packet with the time at which it leaves. `goes_on` is called
/// after every batch, and may replace the engine by another one. With `in_real_time` the time between packets
/// passes.
///
/// # Errors
/// If the receiver of sent packets fails, or there is no memory for a batch.
pub fn run_graph_timed<'f>(
    engine: &mut NativeEngine,
    (sources, tables): (GraphSources<'f>, &[ArrivalTimes<'f>]),
    room: &mut TimedQueues,
    (outputs, size): (usize, usize),
    in_real_time: bool,
    mut take: impl FnMut(SentPacket<'_>, u64) -> io::Result<()>,
    mut goes_on: impl FnMut(&mut NativeEngine, &mut TimedQueues) -> bool,
) -> io::Result<GraphRunStats> {
    let line = |(supply, table): (WorkerSource<'f>, &ArrivalTimes<'f>)| ScheduledSource {
        supply,
        table: *table,
        sender: SendTimer::new(table.beat, BEGINNING),
        next: 0,
    };
    let mut lines: Vec<ScheduledSource<'f>> =
        sources.supplies(1)?.remove(0).into_iter().zip(tables).map(line).collect();
    let mut beginnings = Vec::new();
    for line in &mut lines {
        beginnings.extend(line.beginning()?);
    }
    let beginning = beginnings.into_iter().min().unwrap_or(BEGINNING);
    lines.iter_mut().for_each(|line| line.sender = SendTimer::new(line.table.beat, beginning));
    room.begin(beginning);
    room.set_step(PULL_STEP);
    let mut batch = PacketBatch::with_copies(size, copies(size))?;
    let mut ran = GraphRunStats::none(lines.len(), outputs);
    let (mut meter, mut origins) = (BatchTimer::default(), Vec::with_capacity(size));
    let (start, mut now) = (Instant::now(), beginning);
    let mut pulls: Vec<PullGroup> =
        sources.pulls.iter().map(|turns| PullGroup::new(turns, beginning)).collect();
    engine.set_clock(ClockSource::Fixed(now));
    while goes_on(engine, room) {
        let next = next(&mut lines, &pulls, &sources, room, now)?;
        if let Some(attention) = sources.attention {
            attention.waits(next.is_some());
            if next.is_none() {
                attention.mark_blocked();
            }
        }
        // An alarm is handled before the packets of the same time.
        let alarm = room.alarm.map(|alarm| alarm.max(now));
        let first = alarm.filter(|alarm| next.as_ref().is_none_or(|(at, _)| *alarm <= now.max(*at)));
        let (then, event) = match (first, next) {
            (Some(alarm), _) => (alarm, None),
            (None, Some((at, event))) => (now.max(at), Some(event)),
            (None, None) if sources.waiting() => {
                if !sources.attention.is_some_and(IdleSources::holds) {
                    thread::sleep(NAP);
                }
                continue;
            }
            (None, None) => break,
        };
        if in_real_time && !pass(start, then - beginning) {
            continue;
        }
        now = then;
        engine.set_clock(ClockSource::Fixed(now));
        room.advance_to(now);
        let Some(event) = event else { continue };
        batch.clear();
        batch.expect(engine.layout());
        origins.clear();
        let stamp = engine.stamp();
        match event {
            ReplayEvent::Arrival(source) => {
                pulls.iter_mut().for_each(|pull| pull.had(source));
                arrive((&mut lines[source], now), source, &mut batch, &mut origins, &mut ran)?;
            }
            ReplayEvent::Departure => room.fill(&mut batch, lines.len() as u32 + 1, &mut origins),
        }
        meter.measure(batch.len(), (&mut ran.busy, &mut ran.windows), || engine.run_graph(&mut batch));
        ran.events += engine.take_events().len() as u64;
        ran.copies += batch.copies() as u64 + room.take_copies();
        for (place, (bytes, output, at)) in batch.sent().enumerate() {
            let (output, origin) = (output as usize, origins.get(at).copied().unwrap_or_default());
            match ran.sent.get_mut(output) {
                Some(count) => {
                    *count += 1;
                    let arrival = batch.arrival(at);
                    take(SentPacket { bytes, output, source: origin.0, number: origin.1, arrival }, now)?;
                }
                None => room.enter(output - outputs, &batch, place, origin),
            }
        }
        ran.held = room.held();
        engine.done(stamp, origins.len() as u64);
        engine.publish_graph_stats(&ran);
    }
    engine.set_clock(ClockSource::System);
    ran.total = start.elapsed();
    Ok(ran)
}

/// Sources that are pulled by turns, one packet after the other.
struct PullGroup {
    sources: Vec<usize>,
    scheduler: QueueScheduler,
    /// Time of the next pull, and number of pulls so far.
    pulled: SendTimer,
    count: u64,
}

impl PullGroup {
    fn new(turns: &SchedulingPolicy, beginning: u64) -> PullGroup {
        let scheduler = QueueScheduler::from(turns);
        PullGroup { sources: turns.lanes(), scheduler, pulled: SendTimer::new(PULLED, beginning), count: 0 }
    }

    /// The packet that is pulled next, of those of its sources with their arrival times; and the time of the
    /// pull.
    fn next(&self, there: &[(u64, usize)]) -> Option<(u64, usize)> {
        let first = there.iter().map(|(at, _)| *at).min()?;
        let at = self.pulled.send_time(self.count)?.max(first);
        let has = |source: usize| there.iter().any(|(time, of)| *of == source && *time <= at);
        Some((at, self.scheduler.next(&has)?))
    }

    /// Records that a packet of a source was pulled.
    fn had(&mut self, source: usize) {
        self.count += u64::from(self.scheduler.charge(source));
    }
}

/// Rate of pulls if nothing else sets one.
const PULLED: SendSchedule = SendSchedule::Rate(1_000_000);
/// Nanoseconds between pulls at that rate.
const PULL_STEP: u64 = 1000;

/// The next event, and its time.
fn next(
    lines: &mut [ScheduledSource<'_>],
    pulls: &[PullGroup],
    sources: &GraphSources<'_>,
    room: &mut TimedQueues,
    now: u64,
) -> io::Result<Option<(u64, ReplayEvent)>> {
    let mut arrival: Option<(u64, usize)> = None;
    let mut pulled = vec![Vec::new(); pulls.len()];
    for (source, line) in lines.iter_mut().enumerate() {
        // A source that is held goes on from the time at which it may.
        let until = if room.is_held(source) { 0 } else { sources.until(source) };
        let comes = line.next(until, sources.rate(source), now)?.map(|at| (at, source));
        room.note_source(source, comes.is_some());
        sources.report_poll(source, 0, comes.is_some(), line.supply.peek(sources.until(source))?.is_some());
        match pulls.iter().position(|pull| pull.sources.contains(&source)) {
            // A source without times of its own has packets at any time.
            Some(pull) => {
                let paced = line.is_paced();
                pulled[pull].extend(comes.map(|(at, source)| (if paced { at } else { 0 }, source)));
            }
            None => arrival = arrival.into_iter().chain(comes).min(),
        }
    }
    let pulled = pulls.iter().zip(&pulled).filter_map(|(pull, there)| pull.next(there));
    let arrival = pulled.chain(arrival).min();
    let due = room.next();
    Ok(match (arrival, due) {
        // A full lane is emptied first; if nothing ever leaves it, nothing more comes.
        (_, due) if room.is_full() => due.map(|due| (due, ReplayEvent::Departure)),
        (Some((at, source)), due) if due.is_none_or(|due| at <= due) => {
            Some((at, ReplayEvent::Arrival(source)))
        }
        (_, due) => due.map(|due| (due, ReplayEvent::Departure)),
    })
}

/// Processes the next packet of a source, which arrives at this time.
fn arrive(
    (line, at): (&mut ScheduledSource<'_>, u64),
    source: usize,
    batch: &mut PacketBatch,
    origins: &mut Vec<(usize, u64)>,
    ran: &mut GraphRunStats,
) -> io::Result<()> {
    let Some((PacketRecord { bytes, arrival }, number)) = line.supply.peek(u64::MAX)? else { return Ok(()) };
    let arrival = ArrivalMetadata { time: arrival.time.or(Some(at)), ..arrival };
    ran.received[source] += 1;
    match admit(batch, PacketRecord { bytes, arrival }, source as u32 + 1)? {
        AdmitResult::Taken => origins.push((source, number)),
        AdmitResult::Later | AdmitResult::Unfit => ran.unfit += 1,
    }
    line.supply.advance();
    line.next = number + 1;
    Ok(())
}

/// Waits until this many nanoseconds have passed since the start, but only a moment at a time; returns true
/// once they have.
fn pass(start: Instant, nanoseconds: u64) -> bool {
    let left = Duration::from_nanos(nanoseconds).saturating_sub(start.elapsed());
    if left.is_zero() {
        return true;
    }
    thread::sleep(left.min(NAP));
    left <= NAP
}

#[cfg(test)]
mod tests {
    use super::{ArrivalTimes, SendSchedule};

    #[test]
    fn captures_are_repeated_with_the_time_between_their_first_two_packets() {
        let table = ArrivalTimes { stamps: &[100, 110, 150], beat: SendSchedule::Rate(0), paced: true };
        let times = [100, 110, 150, 160, 170, 220].map(Some);
        assert_eq!([0, 1, 2, 3, 4, 6].map(|number| table.of(number)), times);
        let alone = ArrivalTimes { stamps: &[100], beat: SendSchedule::Rate(0), paced: true };
        assert_eq!([0, 1, 2].map(|number| alone.of(number)), [100, 101, 102].map(Some));
    }
}
