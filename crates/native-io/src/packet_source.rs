//! Packets of a source as one worker sees them: from a list in memory, repeated, or from a stream, which is
//! read on the fly.
//!
//! Each of several workers reads a stream for itself and skips the flows of others: so memory does not depend
//! on its length.

use std::fmt;
use std::io;

use super::steer::{WorkerShare, worker_of};
use millstream_native_runtime::packet::{ArrivalMetadata, prefetch_packet};

/// Prefetch distance in a list, in packets.
const AHEAD: usize = 8;

/// A packet of a source.
#[derive(Clone, Copy, Debug)]
pub struct PacketRecord<'r> {
    /// Its bytes.
    pub bytes: &'r [u8],
    /// Its metadata.
    pub arrival: ArrivalMetadata,
}

/// Packets that are read sequentially.
pub trait PacketStream: Send {
    /// The next one; `None` at the end.
    ///
    /// # Errors
    /// If it cannot be read.
    fn next(&mut self) -> io::Result<Option<PacketRecord<'_>>>;
}

/// Origin of a stream, which begins with the first packet each time it is opened.
pub trait PacketStreamSource: Sync + fmt::Debug {
    /// Opens the stream.
    ///
    /// # Errors
    /// If it cannot be read.
    fn open(&self) -> io::Result<Box<dyn PacketStream>>;
}

/// The packets of one source for one worker; for a list, its share and, once looked at, place and number of
/// the next one.
pub(super) enum WorkerSource<'f> {
    Listed(FrameList<'f>, WorkerShare, Option<(u32, u64)>),
    Read(Box<StreamReader<'f>>),
}

/// Frames in memory, in their own order or in this one.
#[derive(Clone, Copy)]
pub(super) struct FrameList<'f> {
    pub(super) frames: &'f [Vec<u8>],
    pub(super) order: Option<&'f [u32]>,
}

impl<'f> FrameList<'f> {
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

impl<'f> WorkerSource<'f> {
    /// Supplies of each worker for a source: from a stream, if there is one, else from the list.
    pub(super) fn all(
        list: FrameList<'f>,
        count: u64,
        stream: Option<&'f dyn PacketStreamSource>,
        workers: u32,
    ) -> io::Result<Vec<WorkerSource<'f>>> {
        let workers = workers.max(1);
        if let Some(origin) = stream {
            return (0..workers).map(|worker| StreamReader::open(origin, count, (worker, workers))).collect();
        }
        let frames = (0..list.len()).map(|place| list.frame(place));
        let shares = WorkerShare::all(frames, count, workers);
        Ok(shares.into_iter().map(|share| WorkerSource::Listed(list, share, None)).collect())
    }

    /// The next packet and its number among all of the source, if that is below `until`. It stays the next
    /// one until [`WorkerSource::advance`].
    pub(super) fn peek(&mut self, until: u64) -> io::Result<Option<(PacketRecord<'_>, u64)>> {
        match self {
            WorkerSource::Listed(list, share, next) => {
                if next.is_none() {
                    *next = share.next_below(until);
                    if let Some(place) = share.later(AHEAD) {
                        prefetch_packet(list.frame(place as usize));
                    }
                }
                let Some((place, number)) = next.filter(|(_, number)| *number < until) else {
                    return Ok(None);
                };
                let bytes = list.frame(place as usize);
                Ok(Some((PacketRecord { bytes, arrival: ArrivalMetadata::default() }, number)))
            }
            WorkerSource::Read(reading) => reading.peek(until),
        }
    }

    /// Goes on to the following packet.
    pub(super) fn advance(&mut self) {
        match self {
            WorkerSource::Listed(_, _, next) => *next = None,
            WorkerSource::Read(reading) => reading.held = None,
        }
    }
}

/// A stream, and the position in it.
pub(super) struct StreamReader<'f> {
    origin: &'f dyn PacketStreamSource,
    stream: Option<Box<dyn PacketStream>>,
    worker: u32,
    workers: u32,
    /// Number of packets in all; without a limit, those of one round.
    count: u64,
    /// Number of the next packet to read, and of the first one of this round.
    next: u64,
    base: u64,
    /// The packet that was read but not yet taken: its metadata, and its number.
    held: Option<(ArrivalMetadata, u64)>,
    bytes: Vec<u8>,
    times: ReplayTimestamps,
}

/// Times of packets in the first round, and the offset of this one.
#[derive(Clone, Copy, Default)]
struct ReplayTimestamps {
    first: Option<u64>,
    second: Option<u64>,
    last: u64,
    added: u64,
}

impl ReplayTimestamps {
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

impl<'f> StreamReader<'f> {
    fn open(
        origin: &'f dyn PacketStreamSource,
        count: u64,
        (worker, workers): (u32, u32),
    ) -> io::Result<WorkerSource<'f>> {
        Ok(WorkerSource::Read(Box::new(StreamReader {
            origin,
            stream: Some(origin.open()?),
            worker,
            workers,
            count,
            next: 0,
            base: 0,
            held: None,
            bytes: Vec::new(),
            times: ReplayTimestamps::default(),
        })))
    }

    fn peek(&mut self, until: u64) -> io::Result<Option<(PacketRecord<'_>, u64)>> {
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
                self.held = Some((ArrivalMetadata { time, ..record.arrival }, number));
            }
        }
        let held = self.held.filter(|(_, number)| *number < until);
        Ok(held.map(|(arrival, number)| (PacketRecord { bytes: &self.bytes, arrival }, number)))
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

    const NONE: super::FrameList<'static> = super::FrameList { frames: &[], order: None };

    /// Packets of one byte each, at these times.
    #[derive(Debug)]
    struct Numbered(Vec<u64>);

    struct Listed {
        times: Vec<u64>,
        at: usize,
        bytes: [u8; 1],
    }

    impl PacketStreamSource for Numbered {
        fn open(&self) -> io::Result<Box<dyn PacketStream>> {
            Ok(Box::new(Listed { times: self.0.clone(), at: 0, bytes: [0] }))
        }
    }

    impl PacketStream for Listed {
        fn next(&mut self) -> io::Result<Option<PacketRecord<'_>>> {
            let Some(time) = self.times.get(self.at) else { return Ok(None) };
            self.bytes = [self.at as u8];
            self.at += 1;
            Ok(Some(PacketRecord {
                bytes: &self.bytes,
                arrival: ArrivalMetadata { time: Some(*time), cut: 3 },
            }))
        }
    }

    /// Bytes, times and numbers of all packets.
    fn all(list: &Numbered, count: u64, until: u64) -> Vec<(u8, u64, u64)> {
        let mut supply = WorkerSource::all(NONE, count, Some(list), 1).expect("it opens").remove(0);
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
        let list = super::FrameList { frames: &frames, order: None };
        let mut supply = WorkerSource::all(list, 3, None, 1).expect("a list").remove(0);
        let byte =
            |found: Option<(PacketRecord<'_>, u64)>| found.map(|(record, number)| (record.bytes[0], number));
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
        for mut supply in WorkerSource::all(NONE, 400, Some(&list), 3).expect("it opens") {
            while let Some((_, number)) = supply.peek(u64::MAX).expect("it is read") {
                seen.push(number);
                supply.advance();
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..400).collect::<Vec<_>>());
    }
}
