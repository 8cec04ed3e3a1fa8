//! Replays packets by their own times.
//!
//! Time is virtual: it leaps to the next arrival or departure, whichever comes first, arrivals before departures of the same moment. So a run takes no longer than
//! its work, ends with empty queues, and is the same every time. On request it waits until the machine's clock is as far along.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use super::{Beat, Room, Sender};
use crate::engine::Engine;
use crate::io::floor::NAP;
use crate::io::graph::{COPIES, Departure, Feed, GraphRan, Sources};
use crate::io::meter::Meter;
use crate::runtime::packet::Batch;
use crate::runtime::worker::Clock;

/// When time begins where no packet says so, in nanoseconds: not at zero, which tables hold where nothing was yet.
const BEGINNING: u64 = 1_000_000_000;

/// When the packets of a source come.
#[derive(Clone, Copy, Debug)]
pub struct Timetable<'t> {
    /// Nanoseconds of each frame, in order; behind the last one the first follows as soon as the second did.
    pub stamps: &'t [u64],
    /// Without these, when they come; a gate may say another rate.
    pub beat: Beat,
}

impl Timetable<'_> {
    /// When time begins for it, if it says so.
    fn beginning(&self) -> Option<u64> {
        self.stamps.iter().min().copied()
    }

    /// When a packet comes, by its stamp, that is not before the others.
    fn of(&self, number: u64) -> Option<u64> {
        let len = self.stamps.len() as u64;
        let stamp = number.checked_rem(len).and_then(|at| self.stamps.get(at as usize))?;
        let [first, second, last] = [0, 1.min(len - 1), len - 1].map(|at| self.stamps[at as usize]);
        let round = (last.saturating_sub(first)).saturating_add(second.saturating_sub(first).max(1));
        Some(stamp.saturating_add((number / len).saturating_mul(round)))
    }
}

/// A source, and how far it is.
struct Line<'f> {
    feed: Feed<'f>,
    table: Timetable<'f>,
    sender: Sender,
    next: u64,
}

impl Line<'_> {
    /// When its next packet comes, if there is one; it has none from number `until` on.
    fn next(&mut self, until: u64, rate: Option<u64>, now: u64) -> Option<u64> {
        let more = !self.feed.frames.is_empty() && self.next < self.feed.count.min(until);
        self.sender.renew(rate.map_or(self.table.beat, Beat::Rate), more, (self.next, now));
        if !more {
            return None;
        }
        self.table.of(self.next).or_else(|| self.sender.when(self.next))
    }
}

/// What is next.
enum Event {
    /// A packet of a source.
    Arrival(usize),
    /// One that waits is due.
    Departure,
}

/// Runs all packets of all sources through a graph with this many outputs, in which packets wait in a room, at the times that `tables` say. `take` has each
/// packet with the time at which it leaves. `goes_on` is asked after every batch, and may put another engine in the place of this one. With `in_real_time` the
/// time between packets passes.
///
/// # Errors
/// If what takes the packets fails, or there is no memory for a batch.
pub fn run_graph_timed<'f>(
    engine: &mut Engine,
    (sources, tables): (Sources<'f>, &[Timetable<'f>]),
    room: &mut Room,
    (outputs, size): (usize, usize),
    in_real_time: bool,
    mut take: impl FnMut(Departure<'_>, u64) -> io::Result<()>,
    mut goes_on: impl FnMut(&mut Engine, &mut Room) -> bool,
) -> io::Result<GraphRan> {
    let beginning = tables.iter().filter_map(Timetable::beginning).min().unwrap_or(BEGINNING);
    let line = |(feed, table): (&Feed<'f>, &Timetable<'f>)| Line {
        feed: *feed,
        table: *table,
        sender: Sender::new(table.beat, beginning),
        next: 0,
    };
    let mut lines: Vec<Line<'f>> = sources.feeds.iter().zip(tables).map(line).collect();
    room.begin(beginning);
    let mut batch = Batch::with_copies(size, size * COPIES)?;
    let mut ran = GraphRan::none(lines.len(), outputs);
    let (mut meter, mut origins) = (Meter::default(), Vec::with_capacity(size));
    let (start, mut now) = (Instant::now(), beginning);
    while goes_on(engine, room) {
        let Some((at, event)) = next(&mut lines, &sources, room, now) else {
            if !sources.waiting() {
                break;
            }
            thread::sleep(NAP);
            continue;
        };
        let then = now.max(at);
        if in_real_time && !pass(start, then - beginning) {
            continue;
        }
        now = then;
        engine.set_clock(Clock::Fixed(now));
        room.at(now);
        batch.clear();
        batch.expect(engine.layout());
        origins.clear();
        let stamp = engine.stamp();
        match event {
            Event::Arrival(source) => arrive(&mut lines[source], source, &mut batch, &mut origins, &mut ran),
            Event::Departure => room.fill(&mut batch, lines.len() as u32 + 1, &mut origins),
        }
        meter.measure(batch.len(), (&mut ran.busy, &mut ran.windows), || engine.run_graph(&mut batch));
        ran.events += engine.take_events().len() as u64;
        ran.copies += batch.copies() as u64;
        for (place, (bytes, output, at)) in batch.sent().enumerate() {
            let (output, origin) = (output as usize, origins.get(at).copied().unwrap_or_default());
            match ran.sent.get_mut(output) {
                Some(count) => {
                    *count += 1;
                    take(Departure { bytes, output, source: origin.0, number: origin.1 }, now)?;
                }
                None => room.enter(output - outputs, &batch, place, origin),
            }
        }
        ran.held = room.held();
        engine.done(stamp, origins.len() as u64);
        engine.show_graph(&ran);
    }
    engine.set_clock(Clock::System);
    ran.total = start.elapsed();
    Ok(ran)
}

/// What is next, and when.
fn next(lines: &mut [Line<'_>], sources: &Sources<'_>, room: &Room, now: u64) -> Option<(u64, Event)> {
    let due = room.next();
    let arrival = lines.iter_mut().enumerate().filter_map(|(source, line)| {
        Some((line.next(sources.until(source), sources.rate(source), now)?, source))
    });
    match (arrival.min(), due) {
        // What is full is emptied first; where nothing ever leaves it, nothing more comes.
        (_, due) if room.is_full() => Some((due?, Event::Departure)),
        (Some((at, source)), due) if due.is_none_or(|due| at <= due) => Some((at, Event::Arrival(source))),
        (_, due) => Some((due?, Event::Departure)),
    }
}

/// The next packet of a source.
fn arrive(
    line: &mut Line<'_>,
    source: usize,
    batch: &mut Batch,
    origins: &mut Vec<(usize, u64)>,
    ran: &mut GraphRan,
) {
    let frame = &line.feed.frames[(line.next % line.feed.frames.len() as u64) as usize];
    ran.received[source] += 1;
    match batch.push_open(frame, source as u32 + 1) {
        true => origins.push((source, line.next)),
        false => ran.unfit += 1,
    }
    line.next += 1;
}

/// Lets so many nanoseconds pass since the start, but not more than a moment at once; whether they have.
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
    use super::{Beat, Timetable};

    #[test]
    fn captures_are_repeated_with_the_time_between_their_first_two_packets() {
        let table = Timetable { stamps: &[100, 110, 150], beat: Beat::Rate(0) };
        let times = [100, 110, 150, 160, 170, 220].map(Some);
        assert_eq!([0, 1, 2, 3, 4, 6].map(|number| table.of(number)), times);
        let alone = Timetable { stamps: &[100], beat: Beat::Rate(0) };
        assert_eq!([0, 1, 2].map(|number| alone.of(number)), [100, 101, 102].map(Some));
    }
}
