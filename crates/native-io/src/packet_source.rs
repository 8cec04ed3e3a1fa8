//! Packets of a source as one worker sees them: from a list in memory, repeated, or from a stream, which is
//! read on the fly.
//!
//! Each of several workers reads a stream for itself and skips the flows of others. Packets of a stream that is
//! repeated are kept after the first round, up to 128 MB: so memory does not depend on its length.

use std::fmt;
use std::io;
use std::ops::Range;

use super::steer::{WorkerShare, worker_of};
use millstream_native_runtime::packet::{ArrivalMetadata, prefetch_packet};

/// Prefetch distance in a list, in packets.
const AHEAD: usize = 8;
/// Most memory that the workers together use to keep the packets of one repeated stream, in bytes. A longer
/// stream is opened again for each round.
const MOST_KEPT: usize = 128 << 20;

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
            let most = MOST_KEPT / workers as usize;
            let open = |worker| StreamReader::open(origin, count, (worker, workers), most);
            return (0..workers).map(open).collect();
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
            WorkerSource::Read(reading) => reading.advance(),
        }
    }
}

/// A stream, and the position in it.
pub(super) struct StreamReader<'f> {
    origin: &'f dyn PacketStreamSource,
    round: Round,
    /// This worker's packets of the first round, while they are few enough and another round may come.
    kept: Option<KeptPackets>,
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

/// Source of the packets of the current round.
enum Round {
    /// The stream.
    Stream(Box<dyn PacketStream>),
    /// Memory: the index of the next one in [`StreamReader::kept`], and the packets of a round, those of other
    /// workers included.
    Kept(usize, u64),
    /// There are no more rounds.
    Ended,
}

/// Packets in memory, one behind the other.
#[derive(Default)]
struct KeptPackets {
    bytes: Vec<u8>,
    packets: Vec<KeptPacket>,
    /// Limit of the memory for them, in bytes.
    most: usize,
}

struct KeptPacket {
    /// Position in the round.
    place: u64,
    /// Range in [`KeptPackets::bytes`].
    bytes: Range<usize>,
    arrival: ArrivalMetadata,
}

impl KeptPackets {
    /// Adds a packet; returns false if it does not fit.
    fn push(&mut self, place: u64, record: PacketRecord<'_>) -> bool {
        let from = self.bytes.len();
        let beside = (self.packets.len() + 1) * size_of::<KeptPacket>();
        let fits = from + record.bytes.len() + beside <= self.most;
        if fits {
            self.bytes.extend_from_slice(record.bytes);
            self.packets.push(KeptPacket { place, bytes: from..self.bytes.len(), arrival: record.arrival });
        }
        fits
    }
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
        self.again_at(time)
    }

    /// The time in the current round of a packet of the first one.
    fn again_at(&self, time: u64) -> u64 {
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
        most: usize,
    ) -> io::Result<WorkerSource<'f>> {
        Ok(WorkerSource::Read(Box::new(StreamReader {
            origin,
            round: Round::Stream(origin.open()?),
            kept: (count != u64::MAX).then(|| KeptPackets { most, ..KeptPackets::default() }),
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
            let stream = match &mut self.round {
                Round::Stream(stream) => stream,
                Round::Kept(..) => return Ok(self.peek_kept(until)),
                Round::Ended => return Ok(None),
            };
            let Some(record) = stream.next()? else {
                self.end_of_stream()?;
                continue;
            };
            let number = self.next;
            self.next += 1;
            let place = number - self.base;
            let time = record.arrival.time.map(|time| self.times.of(place, time));
            if self.workers == 1 || worker_of(record.bytes, self.workers) == self.worker {
                if self.base == 0 && self.kept.as_mut().is_some_and(|kept| !kept.push(place, record)) {
                    self.kept = None;
                }
                self.bytes.clear();
                self.bytes.extend_from_slice(record.bytes);
                self.held = Some((ArrivalMetadata { time, ..record.arrival }, number));
            }
        }
        let held = self.held.filter(|(_, number)| *number < until);
        Ok(held.map(|(arrival, number)| (PacketRecord { bytes: &self.bytes, arrival }, number)))
    }

    /// As [`StreamReader::peek`], from the packets that were kept.
    fn peek_kept(&mut self, until: u64) -> Option<(PacketRecord<'_>, u64)> {
        let Round::Kept(at, length) = &mut self.round else { return None };
        let kept = self.kept.as_ref()?;
        if *at == kept.packets.len() && *at > 0 {
            *at = 0;
            self.base += *length;
            self.times.again();
        }
        let packet = kept.packets.get(*at)?;
        let number = self.base + packet.place;
        let time = packet.arrival.time.map(|time| self.times.again_at(time));
        let record = PacketRecord {
            bytes: &kept.bytes[packet.bytes.clone()],
            arrival: ArrivalMetadata { time, ..packet.arrival },
        };
        (number < until).then_some((record, number))
    }

    /// Goes on to the following packet.
    fn advance(&mut self) {
        match &mut self.round {
            Round::Kept(at, _) => *at += 1,
            Round::Stream(_) | Round::Ended => self.held = None,
        }
    }

    /// Handles the end of the stream: begins it again, if more packets are wanted than it has.
    fn end_of_stream(&mut self) -> io::Result<()> {
        let length = self.next - self.base;
        self.round = match (&self.kept, self.count == u64::MAX || length == 0) {
            (_, true) => Round::Ended,
            (Some(_), false) => Round::Kept(0, length),
            (None, false) => Round::Stream(self.origin.open()?),
        };
        self.base = self.next;
        self.times.again();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const NONE: super::FrameList<'static> = super::FrameList { frames: &[], order: None };

    /// Packets of one byte each, at these times; how often they were opened.
    #[derive(Debug)]
    struct Numbered(Vec<u64>, AtomicU32);

    struct Listed {
        times: Vec<u64>,
        at: usize,
        bytes: [u8; 1],
    }

    impl PacketStreamSource for Numbered {
        fn open(&self) -> io::Result<Box<dyn PacketStream>> {
            self.1.fetch_add(1, Ordering::Relaxed);
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

    impl Numbered {
        fn at(times: impl IntoIterator<Item = u64>) -> Numbered {
            Numbered(times.into_iter().collect(), AtomicU32::new(0))
        }
    }

    /// Bytes, times and numbers of all packets.
    fn all_of(mut source: WorkerSource<'_>, until: u64) -> Vec<(u8, u64, u64)> {
        let mut found = Vec::new();
        while let Some((record, number)) = source.peek(until).expect("it is read") {
            assert_eq!(record.arrival.cut, 3);
            found.push((record.bytes[0], record.arrival.time.expect("a time"), number));
            source.advance();
        }
        found
    }

    fn all(list: &Numbered, count: u64, until: u64) -> Vec<(u8, u64, u64)> {
        all_of(WorkerSource::all(NONE, count, Some(list), 1).expect("it opens").remove(0), until)
    }

    #[test]
    fn a_stream_is_read_once_unless_more_packets_are_wanted_than_it_has() {
        let list = Numbered::at([100, 110, 150]);
        let once = [(0, 100, 0), (1, 110, 1), (2, 150, 2)];
        assert_eq!(all(&list, u64::MAX, u64::MAX), once);
        assert_eq!(all(&list, 2, u64::MAX), once[..2]);
        assert_eq!(all(&list, u64::MAX, 1), once[..1]);
        let more = [(0, 160, 3), (1, 170, 4), (2, 210, 5), (0, 220, 6)];
        assert_eq!(all(&list, 7, u64::MAX), [&once[..], &more].concat());
        assert_eq!(all(&list, 7, 5), [&once[..], &more[..2]].concat());
        assert_eq!(all(&Numbered::at([]), 7, u64::MAX), []);
        assert_eq!(all(&Numbered::at([5]), 3, u64::MAX), [(0, 5, 0), (0, 6, 1), (0, 7, 2)]);
    }

    #[test]
    fn a_repeated_stream_is_opened_again_only_if_it_is_too_long_to_keep() {
        let list = Numbered::at([100, 110, 150]);
        let opened = |most| {
            list.1.store(0, Ordering::Relaxed);
            let found = all_of(StreamReader::open(&list, 10, (0, 1), most).expect("it opens"), u64::MAX);
            (found, list.1.load(Ordering::Relaxed))
        };
        let (kept, once) = opened(MOST_KEPT);
        let (read, often) = opened(2 * size_of::<KeptPacket>() + 2);
        assert_eq!((once, often), (1, 4));
        assert_eq!(kept, read);
        assert_eq!(kept.len(), 10);
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
        let list = Numbered::at(0..200);
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
