//! Packets of a source as one worker sees them: from a list in memory, repeated, or from a stream, which is
//! read on the fly.
//!
//! Each of several workers reads a stream for itself and skips the flows of others: so memory does not depend
//! on its length.

use std::fmt;
use std::io;

use super::steer::{Share, worker_of};
use crate::runtime::packet::Arrival;

/// A packet of a source.
#[derive(Clone, Copy, Debug)]
pub struct Record<'r> {
    /// Its bytes.
    pub bytes: &'r [u8],
    /// Its metadata.
    pub arrival: Arrival,
}

/// Packets that are read sequentially.
pub trait Stream: Send {
    /// The next one; `None` at the end.
    ///
    /// # Errors
    /// If it cannot be read.
    fn next(&mut self) -> io::Result<Option<Record<'_>>>;
}

/// Origin of a stream, which begins with the first packet each time it is opened.
pub trait Origin: Sync + fmt::Debug {
    /// Opens the stream.
    ///
    /// # Errors
    /// If it cannot be read.
    fn open(&self) -> io::Result<Box<dyn Stream>>;
}

/// The packets of one source for one worker; for a list, its share and, once looked at, place and number of
/// the next one.
pub(super) enum Supply<'f> {
    Listed(List<'f>, Share, Option<(u32, u64)>),
    Read(Box<Reading<'f>>),
}

/// Frames in memory, in their own order or in this one.
#[derive(Clone, Copy)]
pub(super) struct List<'f> {
    pub(super) frames: &'f [Vec<u8>],
    pub(super) order: Option<&'f [u32]>,
}

impl<'f> List<'f> {
    fn len(&self) -> usize {
        self.order.map_or(self.frames.len(), <[u32]>::len)
    }

    /// The frame at a place; an empty slice if there is none, which is too short to be run.
    fn frame(&self, place: usize) -> &'f [u8] {
        let at = match self.order {
            Some(order) => order.get(place).map(|at| *at as usize),
            None => Some(place),
        };
        at.and_then(|at| self.frames.get(at)).map_or(&[], Vec::as_slice)
    }
}

impl<'f> Supply<'f> {
    /// Supplies of each worker for a source: from a stream, if there is one, else from the list.
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

    /// The next packet and its number among all of the source, if that is below `until`. It stays the next
    /// one until [`Supply::advance`].
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

    /// Goes on to the following packet.
    pub(super) fn advance(&mut self) {
        match self {
            Supply::Listed(_, _, next) => *next = None,
            Supply::Read(reading) => reading.held = None,
        }
    }
}

/// A stream, and the position in it.
pub(super) struct Reading<'f> {
    origin: &'f dyn Origin,
    stream: Option<Box<dyn Stream>>,
    worker: u32,
    workers: u32,
    /// Number of packets in all; without a limit, those of one round.
    count: u64,
    /// Number of the next packet to read, and of the first one of this round.
    next: u64,
    base: u64,
    /// The packet that was read but not yet taken: its metadata, and its number.
    held: Option<(Arrival, u64)>,
    bytes: Vec<u8>,
    times: Times,
}

/// Times of packets in the first round, and the offset of this one.
#[derive(Clone, Copy, Default)]
struct Times {
    first: Option<u64>,
    second: Option<u64>,
    last: u64,
    added: u64,
}

impl Times {
    /// The time of a packet, by its position in the round, in the current round.
    fn of(&mut self, place: u64, time: u64) -> u64 {
        match place {
            0 => self.first = self.first.or(Some(time)),
            1 => self.second = self.second.or(Some(time)),
            _ => {}
        }
        self.last = time;
        time.saturating_add(self.added)
    }

    /// Begins another round: its first packet comes as long after the last one as the second came after the
    /// first.
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

    /// Handles the end of the stream: begins it again, if more packets are wanted than it has.
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
