//! Packets of a source as one worker has them: from a list in memory, over and over, or from a stream, which is read as it goes.
//!
//! A stream is read by each of several workers for itself, who leaves out what is another one's flow: so memory does not depend on how long it is.

use std::fmt;
use std::io;

use super::steer::{Share, worker_of};
use crate::runtime::packet::Arrival;

/// A packet as a source has it.
#[derive(Clone, Copy, Debug)]
pub struct Record<'r> {
    /// Its bytes.
    pub bytes: &'r [u8],
    /// What is known of it beside.
    pub arrival: Arrival,
}

/// Packets that are read one after the other.
pub trait Stream: Send {
    /// The next one; none at the end.
    ///
    /// # Errors
    /// If it cannot be read.
    fn next(&mut self) -> io::Result<Option<Record<'_>>>;
}

/// What packets can be read from, from the first on each time that it is opened.
pub trait Origin: Sync + fmt::Debug {
    /// Begins to read.
    ///
    /// # Errors
    /// If it cannot be read.
    fn open(&self) -> io::Result<Box<dyn Stream>>;
}

/// The packets of one source that one worker has: of a list its share and, once it was looked at, place and number of the next one.
pub(super) enum Supply<'f> {
    Listed(List<'f>, Share, Option<(u32, u64)>),
    Read(Box<Reading<'f>>),
}

/// Frames in memory, in their order or in this one.
#[derive(Clone, Copy)]
pub(super) struct List<'f> {
    pub(super) frames: &'f [Vec<u8>],
    pub(super) order: Option<&'f [u32]>,
}

impl<'f> List<'f> {
    fn len(&self) -> usize {
        self.order.map_or(self.frames.len(), <[u32]>::len)
    }

    /// The frame at a place; none is empty, and so too short to be run.
    fn frame(&self, place: usize) -> &'f [u8] {
        let at = match self.order {
            Some(order) => order.get(place).map(|at| *at as usize),
            None => Some(place),
        };
        at.and_then(|at| self.frames.get(at)).map_or(&[], Vec::as_slice)
    }
}

impl<'f> Supply<'f> {
    /// What each worker has of a source: of a stream, if there is one, else of the list.
    pub(super) fn all(
        list: List<'f>,
        count: u64,
        stream: Option<&'f dyn Origin>,
        workers: u32,
    ) -> io::Result<Vec<Supply<'f>>> {
        let workers = workers.max(1);
        if let Some(origin) = stream {
            return (0..workers).map(|worker| Reading::open(origin, count, (worker, workers))).collect();
        }
        let frames = (0..list.len()).map(|place| list.frame(place));
        let shares = Share::all(frames, count, workers);
        Ok(shares.into_iter().map(|share| Supply::Listed(list, share, None)).collect())
    }

    /// The next packet and its number among all of the source, if that is below `until`. It stays the next one until [`Supply::advance`].
    pub(super) fn peek(&mut self, until: u64) -> io::Result<Option<(Record<'_>, u64)>> {
        match self {
            Supply::Listed(list, share, next) => {
                if next.is_none() {
                    *next = share.next_below(until);
                }
                let Some((place, number)) = next.filter(|(_, number)| *number < until) else {
                    return Ok(None);
                };
                let bytes = list.frame(place as usize);
                Ok(Some((Record { bytes, arrival: Arrival::default() }, number)))
            }
            Supply::Read(reading) => reading.peek(until),
        }
    }

    /// Goes on to the packet behind that.
    pub(super) fn advance(&mut self) {
        match self {
            Supply::Listed(_, _, next) => *next = None,
            Supply::Read(reading) => reading.held = None,
        }
    }
}

/// A stream, and how far it was read.
pub(super) struct Reading<'f> {
    origin: &'f dyn Origin,
    stream: Option<Box<dyn Stream>>,
    worker: u32,
    workers: u32,
    /// Packets in all; without a limit those that there are, once.
    count: u64,
    /// The number of the next packet that is read, and of the first one of this round.
    next: u64,
    base: u64,
    /// The packet that was read and not taken yet: what is known of it, and its number.
    held: Option<(Arrival, u64)>,
    bytes: Vec<u8>,
    times: Times,
}

/// When packets came, in the first round, and what is added in this one.
#[derive(Clone, Copy, Default)]
struct Times {
    first: Option<u64>,
    second: Option<u64>,
    last: u64,
    added: u64,
}

impl Times {
    /// The time of the packet that is this one of the round, in the round at hand.
    fn of(&mut self, place: u64, time: u64) -> u64 {
        match place {
            0 => self.first = self.first.or(Some(time)),
            1 => self.second = self.second.or(Some(time)),
            _ => {}
        }
        self.last = time;
        time.saturating_add(self.added)
    }

    /// Another round begins: its first packet comes as long behind the last one as the second came behind the first.
    fn again(&mut self) {
        let Some(first) = self.first else { return };
        let between = self.second.unwrap_or(first).saturating_sub(first).max(1);
        self.added = self.added.saturating_add(self.last.saturating_sub(first)).saturating_add(between);
    }
}

impl<'f> Reading<'f> {
    fn open(origin: &'f dyn Origin, count: u64, (worker, workers): (u32, u32)) -> io::Result<Supply<'f>> {
        Ok(Supply::Read(Box::new(Reading {
            origin,
            stream: Some(origin.open()?),
            worker,
            workers,
            count,
            next: 0,
            base: 0,
            held: None,
            bytes: Vec::new(),
            times: Times::default(),
        })))
    }

    fn peek(&mut self, until: u64) -> io::Result<Option<(Record<'_>, u64)>> {
        let until = until.min(self.count);
        while self.held.is_none() && self.next < until {
            let Some(stream) = &mut self.stream else { return Ok(None) };
            let Some(record) = stream.next()? else {
                self.round()?;
                continue;
            };
            let number = self.next;
            self.next += 1;
            let time = record.arrival.time.map(|time| self.times.of(number - self.base, time));
            if self.workers == 1 || worker_of(record.bytes, self.workers) == self.worker {
                self.bytes.clear();
                self.bytes.extend_from_slice(record.bytes);
                self.held = Some((Arrival { time, ..record.arrival }, number));
            }
        }
        let held = self.held.filter(|(_, number)| *number < until);
        Ok(held.map(|(arrival, number)| (Record { bytes: &self.bytes, arrival }, number)))
    }

    /// The stream is at its end: begins it again, if there are to be more packets than it has.
    fn round(&mut self) -> io::Result<()> {
        let ends = self.count == u64::MAX || self.next == self.base;
        self.stream = if ends { None } else { Some(self.origin.open()?) };
        self.base = self.next;
        self.times.again();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: super::List<'static> = super::List { frames: &[], order: None };

    /// Packets of one byte each, at these times.
    #[derive(Debug)]
    struct Numbered(Vec<u64>);

    struct Listed {
        times: Vec<u64>,
        at: usize,
        bytes: [u8; 1],
    }

    impl Origin for Numbered {
        fn open(&self) -> io::Result<Box<dyn Stream>> {
            Ok(Box::new(Listed { times: self.0.clone(), at: 0, bytes: [0] }))
        }
    }

    impl Stream for Listed {
        fn next(&mut self) -> io::Result<Option<Record<'_>>> {
            let Some(time) = self.times.get(self.at) else { return Ok(None) };
            self.bytes = [self.at as u8];
            self.at += 1;
            Ok(Some(Record { bytes: &self.bytes, arrival: Arrival { time: Some(*time), cut: 3 } }))
        }
    }

    /// Bytes, times and numbers of all packets.
    fn all(list: &Numbered, count: u64, until: u64) -> Vec<(u8, u64, u64)> {
        let mut supply = Supply::all(NONE, count, Some(list), 1).expect("it opens").remove(0);
        let mut found = Vec::new();
        while let Some((record, number)) = supply.peek(until).expect("it is read") {
            assert_eq!(record.arrival.cut, 3);
            found.push((record.bytes[0], record.arrival.time.expect("a time"), number));
            supply.advance();
        }
        found
    }

    #[test]
    fn a_stream_is_read_once_unless_more_packets_are_wanted_than_it_has() {
        let list = Numbered(vec![100, 110, 150]);
        let once = [(0, 100, 0), (1, 110, 1), (2, 150, 2)];
        assert_eq!(all(&list, u64::MAX, u64::MAX), once);
        assert_eq!(all(&list, 2, u64::MAX), once[..2]);
        assert_eq!(all(&list, u64::MAX, 1), once[..1]);
        let more = [(0, 160, 3), (1, 170, 4), (2, 210, 5), (0, 220, 6)];
        assert_eq!(all(&list, 7, u64::MAX), [&once[..], &more].concat());
        assert_eq!(all(&Numbered(vec![]), 7, u64::MAX), []);
        assert_eq!(all(&Numbered(vec![5]), 3, u64::MAX), [(0, 5, 0), (0, 6, 1), (0, 7, 2)]);
    }

    #[test]
    fn what_was_looked_at_stays_the_next_one() {
        let frames = [vec![1], vec![2]];
        let list = super::List { frames: &frames, order: None };
        let mut supply = Supply::all(list, 3, None, 1).expect("a list").remove(0);
        let byte = |found: Option<(Record<'_>, u64)>| found.map(|(record, number)| (record.bytes[0], number));
        for _ in 0..2 {
            assert_eq!(byte(supply.peek(9).expect("a list")), Some((1, 0)));
        }
        supply.advance();
        assert_eq!(byte(supply.peek(1).expect("a list")), None);
        assert_eq!(byte(supply.peek(9).expect("a list")), Some((2, 1)));
        supply.advance();
        assert_eq!(byte(supply.peek(9).expect("a list")), Some((1, 2)));
        supply.advance();
        assert_eq!(byte(supply.peek(9).expect("a list")), None);
    }

    #[test]
    fn several_workers_have_each_packet_once() {
        let list = Numbered((0..200).collect());
        let mut seen = Vec::new();
        for mut supply in Supply::all(NONE, 400, Some(&list), 3).expect("it opens") {
            while let Some((_, number)) = supply.peek(u64::MAX).expect("it is read") {
                seen.push(number);
                supply.advance();
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..400).collect::<Vec<_>>());
    }
}
