//! Reads capture files: classic ones of either byte order and resolution, and pcapng, plain or packed
//! by gzip, xz or zstd.
//!
//! A file is read as a stream, so that memory does not depend on its length. Of a packet that was cut when it
//! was captured (a snap length), the captured bytes are given, and its original length beside them. If a file
//! ends within a record, as after its writer was killed, the records before that are used, and
//! [`CaptureReader::damage`] says so. The format itself is left to `pcap_parser`.
//!
//! Source: draft-ietf-opsawg-pcap, "PCAP Capture File Format"; draft-ietf-opsawg-pcapng.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use pcap_parser::traits::PcapReaderIterator;
use pcap_parser::{Block, PcapBlockOwned, PcapError, create_reader};

use crate::error::{Error, Result};
use crate::rig::{MAX_FRAME, MIN_FRAME};
use crate::unpack::unpack;

/// Link type of Ethernet.
pub const ETHERNET: u32 = 1;
/// Link type of packets of IP without a header in front, as files have it, and as some hosts write it; the
/// last two are for one version of IP each.
pub const RAW_IP: u32 = 101;
const HOST_RAW_IP: [u32; 4] = [12, 14, 228, 229];
/// Longest packet that is captured: the largest snap length of libpcap.
pub const LONGEST: usize = 262_144;
/// Bytes that are read at once, which a record has room in.
const AT_ONCE: usize = 2 * LONGEST + 4096;
/// Longest block of a pcapng file that is looked at.
const LONGEST_BLOCK: usize = 16 << 20;
/// Bytes of frames that [`read`] keeps in memory, at most.
const MOST_BYTES: usize = 256 << 20;
/// Bytes that a frame in memory takes beside its own.
const BESIDE: usize = 48;
/// Classic files of this minor version and later ones have the captured length first.
const MINOR: u16 = 3;

const NANOSECONDS: u64 = 1_000_000_000;

/// A packet of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PcapRecord<'r> {
    /// The bytes that were captured.
    pub bytes: &'r [u8],
    /// When, in nanoseconds; none if the file does not say.
    pub time: Option<u64>,
    /// Bytes that the packet had behind these.
    pub cut: u32,
}

/// An interface that packets were captured on.
#[derive(Clone, Copy)]
struct PcapInterface {
    link: u32,
    /// Units of a second.
    resolution: u64,
    /// Seconds that are to be added.
    offset: i64,
}

/// A capture file that is being read.
pub struct CaptureReader {
    path: PathBuf,
    reader: Box<dyn PcapReaderIterator + Send>,
    /// Bytes of the block that was read last.
    read: usize,
    link: Option<u32>,
    /// Of the section, of a pcapng file.
    interfaces: Vec<PcapInterface>,
    /// Units of a second, of a classic file.
    resolution: u64,
    bytes: Vec<u8>,
    /// Time and cut bytes of a packet that was read and not handed out yet.
    ahead: Option<(Option<u64>, u32)>,
    packets: u64,
    /// Packets of another link type than the first one's.
    foreign: u64,
    failure: SharedReadError,
    damage: Option<String>,
    ended: bool,
}

/// The error that reading ended with, which the parser does not hand on.
type SharedReadError = Arc<Mutex<Option<io::Error>>>;

/// Fills the whole buffer if there is enough input: the parser takes a short answer for the end of a header.
struct FullReader<R> {
    from: R,
    failure: SharedReadError,
}

impl<R: Read> Read for FullReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.from.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    // The bytes before it are good.
                    if let Ok(mut failure) = self.failure.lock() {
                        *failure = Some(e);
                    }
                    break;
                }
            }
        }
        Ok(filled)
    }
}

impl CaptureReader {
    /// Opens a file.
    ///
    /// # Errors
    /// If it cannot be read or is no such capture.
    pub fn open(path: &Path) -> Result<CaptureReader> {
        let fail = |e| Error::io(format!("reading {}", path.display()), e);
        let file = BufReader::with_capacity(1 << 16, File::open(path).map_err(fail)?);
        CaptureReader::of(path, unpack(file).map_err(fail)?)
    }

    /// Reads uncompressed input; `path` is for messages.
    ///
    /// # Errors
    /// As for [`CaptureReader::open`].
    pub fn of(path: &Path, from: impl Read + Send + 'static) -> Result<CaptureReader> {
        let failure = SharedReadError::default();
        let from = FullReader { from, failure: Arc::clone(&failure) };
        let wrong = |what: String| Error::Unusable(format!("{}: {what}", path.display()));
        let reader = match create_reader(AT_ONCE, from) {
            Ok(reader) => reader,
            Err(error) => {
                if let Some(e) = failure.lock().ok().and_then(|mut failure| failure.take()) {
                    return Err(Error::io(format!("reading {}", path.display()), e));
                }
                return Err(wrong(match error {
                    PcapError::Eof => "empty: no capture file".to_owned(),
                    PcapError::Incomplete(_) => "cut inside its header".to_owned(),
                    _ => "no capture file".to_owned(),
                }));
            }
        };
        let mut capture = CaptureReader {
            path: path.to_owned(),
            reader,
            read: 0,
            link: None,
            interfaces: Vec::new(),
            resolution: 1_000_000,
            bytes: Vec::new(),
            ahead: None,
            packets: 0,
            foreign: 0,
            failure,
            damage: None,
            ended: false,
        };
        capture.header().map_err(wrong)?;
        Ok(capture)
    }

    /// Reads the header of a classic file. (A pcapng file says its link types where it has packets.)
    fn header(&mut self) -> std::result::Result<(), String> {
        if let Ok((read, PcapBlockOwned::LegacyHeader(header))) = self.reader.next() {
            if header.version_major != 2 || header.version_minor < MINOR {
                let (major, minor) = (header.version_major, header.version_minor);
                return Err(format!("a capture file of version {major}.{minor}, not 2.{MINOR} or later"));
            }
            // The upper half may say how long frame check sequences are.
            self.link = Some(canonical(header.network.0 as u32 & 0xffff));
            self.resolution = if header.is_nanosecond_precision() { NANOSECONDS } else { 1_000_000 };
            self.read = read;
        }
        Ok(())
    }

    /// Link type of the packets, if the file has said so by now: a classic one has.
    pub fn link(&self) -> Option<u32> {
        self.link
    }

    /// Damage found in the file so far, if any: a cut, or unreadable parts.
    pub fn damage(&self) -> Option<String> {
        let foreign = (self.foreign > 0)
            .then(|| format!("{} packets of other link types than the first are left out", self.foreign));
        let all: Vec<String> = self.damage.clone().into_iter().chain(foreign).collect();
        (!all.is_empty()).then(|| format!("{}: {}", self.path.display(), all.join("; ")))
    }

    /// Returns true if there is another packet.
    pub fn has_next(&mut self) -> bool {
        if self.ahead.is_none() {
            self.ahead = self.advance();
        }
        self.ahead.is_some()
    }

    /// The next packet; none at the end of the file, or where it is damaged.
    pub fn next_record(&mut self) -> Option<PcapRecord<'_>> {
        let (time, cut) = self.ahead.take().or_else(|| self.advance())?;
        self.packets += 1;
        Some(PcapRecord { bytes: &self.bytes, time, cut })
    }

    fn advance(&mut self) -> Option<(Option<u64>, u32)> {
        while !self.ended {
            self.reader.consume(std::mem::take(&mut self.read));
            let found = match self.reader.next() {
                Ok((read, block)) => {
                    self.read = read;
                    let known = (&mut self.interfaces, &mut self.link, &mut self.foreign);
                    found(&block, self.resolution, known, &mut self.bytes)
                }
                Err(PcapError::Eof) => Err(None),
                Err(PcapError::Incomplete(_)) => {
                    let _ = self.reader.refill();
                    continue;
                }
                Err(PcapError::BufferTooSmall) => {
                    // The remaining bytes may fit in the place of those already read.
                    let _ = self.reader.refill();
                    let size = self.reader.data().len();
                    let larger = (2 * size).max(AT_ONCE);
                    match larger <= LONGEST_BLOCK && self.reader.grow(larger) {
                        true => continue,
                        false => Err(Some("a record is longer than any can be".to_owned())),
                    }
                }
                Err(PcapError::UnexpectedEof) => Err(Some("cut inside a record".to_owned())),
                Err(_) => Err(Some("a record that is none".to_owned())),
            };
            match found {
                Ok(Some(found)) => return Some(found),
                Ok(None) => {}
                Err(what) => self.end(what),
            }
        }
        None
    }

    /// Nothing more is read, for this reason if it is none of order.
    fn end(&mut self, what: Option<String>) {
        self.ended = true;
        let failure = self.failure.lock().ok().and_then(|mut failure| failure.take());
        let what = failure.map(|e| format!("reading failed ({e})")).or(what);
        self.damage = what.map(|what| format!("{what}: the {} packets before that are used", self.packets));
    }
}

/// One number for what hosts write in several ways.
fn canonical(link: u32) -> u32 {
    if HOST_RAW_IP.contains(&link) { RAW_IP } else { link }
}

/// The packet of a block, if it has one: copied to `bytes`, with its time and the number of bytes cut.
/// Otherwise the error.
#[allow(clippy::type_complexity)]
fn found(
    block: &PcapBlockOwned<'_>,
    resolution: u64,
    (interfaces, link, foreign): (&mut Vec<PcapInterface>, &mut Option<u32>, &mut u64),
    bytes: &mut Vec<u8>,
) -> std::result::Result<Option<(Option<u64>, u32)>, Option<String>> {
    let (data, caplen, origlen, time, own) = match block {
        PcapBlockOwned::Legacy(packet) => {
            let time = nanoseconds(u64::from(packet.ts_sec), u64::from(packet.ts_usec), resolution);
            (packet.data, packet.caplen, packet.origlen, Some(time), *link)
        }
        PcapBlockOwned::NG(Block::SectionHeader(_)) => {
            interfaces.clear();
            return Ok(None);
        }
        PcapBlockOwned::NG(Block::InterfaceDescription(said)) => {
            let resolution = said.ts_resolution().filter(|resolution| *resolution > 0).unwrap_or(1_000_000);
            let own = canonical(said.linktype.0 as u32 & 0xffff);
            interfaces.push(PcapInterface { link: own, resolution, offset: said.ts_offset() });
            return Ok(None);
        }
        PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
            let Some(interface) = interfaces.get(packet.if_id as usize) else {
                return Err(Some("a packet of an interface that is not described".to_owned()));
            };
            let units = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
            let seconds = (units / interface.resolution).saturating_add_signed(interface.offset);
            let time = nanoseconds(seconds, units % interface.resolution, interface.resolution);
            (packet.data, packet.caplen, packet.origlen, Some(time), Some(interface.link))
        }
        PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
            let Some(interface) = interfaces.first() else {
                return Err(Some("a packet of an interface that is not described".to_owned()));
            };
            let captured = packet.origlen.min(packet.data.len() as u32);
            (packet.data, captured, packet.origlen, None, Some(interface.link))
        }
        _ => return Ok(None),
    };
    if *link.get_or_insert(own.unwrap_or(ETHERNET)) != own.unwrap_or(ETHERNET) {
        *foreign += 1;
        return Ok(None);
    }
    // Some writers say one byte more than there was, and libpcap takes the lesser of both.
    let captured = caplen.min(origlen) as usize;
    if captured > LONGEST {
        return Err(Some("a record is longer than any can be".to_owned()));
    }
    bytes.clear();
    bytes.extend_from_slice(data.get(..captured).unwrap_or(data));
    Ok(Some((time, origlen - captured as u32)))
}

/// Nanoseconds of seconds and units.
fn nanoseconds(seconds: u64, units: u64, resolution: u64) -> u64 {
    let part = u128::from(units) * u128::from(NANOSECONDS) / u128::from(resolution.max(1));
    seconds.saturating_mul(NANOSECONDS).saturating_add(part as u64)
}

/// Frames of a capture file in memory, for what sends them again and again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PcapFrames {
    /// Bytes that were captured, in the order of the file.
    pub frames: Vec<Vec<u8>>,
    /// When each was captured, in nanoseconds.
    pub times: Vec<u64>,
    /// Not among these: shorter than an Ethernet header, or longer than a page takes.
    pub left_out: usize,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Reads at most `most` frames of a file of Ethernet frames, as many as memory is given for.
///
/// # Errors
/// If it cannot be read, is no such capture, or has no frame that could be sent.
pub fn read(path: &Path, most: usize) -> Result<PcapFrames> {
    let capture = read_any(path, most)?;
    match capture.frames.is_empty() {
        true => Err(Error::Unusable(format!("{}: no frame that could be sent", path.display()))),
        false => Ok(capture),
    }
}

/// As [`read`], of a file that may have no frames.
///
/// # Errors
/// If it cannot be read or is no such capture.
pub fn read_any(path: &Path, most: usize) -> Result<PcapFrames> {
    collect(CaptureReader::open(path)?, most, MOST_BYTES)
}

fn collect(mut reader: CaptureReader, most: usize, most_bytes: usize) -> Result<PcapFrames> {
    let mut out = PcapFrames::default();
    let mut held = 0;
    while out.frames.len() < most {
        let Some(record) = reader.next_record() else { break };
        if !(MIN_FRAME..=MAX_FRAME).contains(&record.bytes.len()) {
            out.left_out += 1;
            continue;
        }
        held += record.bytes.len() + BESIDE;
        if held > most_bytes {
            let (frames, path) = (out.frames.len(), reader.path.display());
            out.warnings.push(format!(
                "{path}: the first {frames} frames are used, which take {most_bytes} bytes of memory"
            ));
            break;
        }
        out.times.push(record.time.unwrap_or(0));
        out.frames.push(record.bytes.to_vec());
    }
    if let Some(link) = reader.link().filter(|link| *link != ETHERNET) {
        let path = reader.path.display();
        return Err(Error::Unusable(format!("{path}: frames of link type {link}, not Ethernet")));
    }
    out.warnings.extend(reader.damage());
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use flate2::bufread::MultiGzDecoder;
    use flate2::write::GzEncoder;

    use super::*;

    fn file(order: fn(u32) -> [u8; 4], magic: u32, frames: &[(usize, usize)]) -> Vec<u8> {
        let mut out = Vec::new();
        let version = if order(1) == 1u32.to_be_bytes() { 0x0002_0004 } else { 0x0004_0002 };
        for word in [magic, version, 0, 0, 65_535, 1] {
            out.extend(order(word));
        }
        for &(captured, wire) in frames {
            for word in [7, 8, captured as u32, wire as u32] {
                out.extend(order(word));
            }
            out.extend((0..captured).map(|i| i as u8));
        }
        out
    }

    fn reader(bytes: Vec<u8>) -> Result<CaptureReader> {
        CaptureReader::of(Path::new("a.pcap"), Cursor::new(bytes))
    }

    fn parse(bytes: &[u8], most: usize) -> Result<PcapFrames> {
        collect(reader(bytes.to_vec())?, most, MOST_BYTES)
    }

    /// Captured lengths, and the bytes cut.
    fn lengths(mut reader: CaptureReader) -> (Vec<(usize, u32)>, Option<String>) {
        let mut all = Vec::new();
        while let Some(record) = reader.next_record() {
            all.push((record.bytes.len(), record.cut));
        }
        (all, reader.damage())
    }

    #[test]
    fn both_byte_orders_and_resolutions() {
        for magic in [0xa1b2_c3d4, 0xa1b2_3c4d] {
            let little = parse(&file(u32::to_le_bytes, magic, &[(60, 60), (64, 64)]), 10).unwrap();
            let big = parse(&file(u32::to_be_bytes, magic, &[(60, 60), (64, 64)]), 10).unwrap();
            assert_eq!(little, big);
            assert_eq!(little.frames.iter().map(Vec::len).collect::<Vec<_>>(), [60, 64]);
            let fraction = if magic == 0xa1b2_c3d4 { 8_000 } else { 8 };
            assert_eq!(little.times, [7_000_000_000 + fraction; 2]);
        }
    }

    #[test]
    fn a_snap_length_leaves_what_was_captured_and_how_long_it_was() {
        let snapped = file(u32::to_le_bytes, 0xa1b2_c3d4, &[(96, 1500), (60, 60), (62, 61)]);
        assert_eq!(lengths(reader(snapped).unwrap()), (vec![(96, 1404), (60, 0), (61, 0)], None));
    }

    #[test]
    fn packets_may_be_as_long_as_any_that_is_captured() {
        for length in [9_000, 65_535, LONGEST] {
            let all = file(
                u32::to_le_bytes,
                0xa1b2_c3d4,
                &[(60, 60), (length, length), (length, length), (61, 61)],
            );
            let expected = vec![(60, 0), (length, 0), (length, 0), (61, 0)];
            assert_eq!(lengths(reader(all).unwrap()), (expected, None), "{length}");
        }
        let longer = file(u32::to_le_bytes, 0xa1b2_c3d4, &[(60, 60), (LONGEST + 1, LONGEST + 1)]);
        let (found, damage) = lengths(reader(longer).unwrap());
        assert_eq!((found.len(), damage.is_some()), (1, true));
    }

    #[test]
    fn what_cannot_be_sent_is_left_out_and_counted() {
        let c = parse(&file(u32::to_le_bytes, 0xa1b2_c3d4, &[(10, 10), (60, 60), (5000, 5000)]), 10).unwrap();
        assert_eq!((c.frames.len(), c.left_out), (1, 2));
        let all = file(u32::to_le_bytes, 0xa1b2_c3d4, &[(60, 60); 5]);
        assert_eq!(parse(&all, 3).unwrap().frames.len(), 3);
        let some = collect(reader(all).unwrap(), 5, 3 * (60 + BESIDE)).unwrap();
        assert_eq!((some.frames.len(), some.warnings.len()), (3, 1));
    }

    #[test]
    fn of_a_file_that_is_cut_what_is_whole_is_used_with_a_warning() {
        let whole = file(u32::to_le_bytes, 0xa1b2_c3d4, &[(60, 60), (61, 61)]);
        let ends = [24, 24 + 76, whole.len()];
        for cut in 0..whole.len() {
            let result = reader(whole[..cut].to_vec());
            assert_eq!(result.is_ok(), cut >= 24, "{cut}");
            let Ok(found) = result else { continue };
            let (found, damage) = lengths(found);
            let complete = ends.iter().filter(|end| **end <= cut).count() - 1;
            assert_eq!(
                (found.len(), damage.is_some()),
                (complete, !ends.contains(&cut)),
                "{cut}: {damage:?}"
            );
        }
        let mut huge = whole.clone();
        huge[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
        let (found, damage) = lengths(reader(huge).unwrap());
        assert_eq!((found.len(), damage.is_some()), (0, true));
    }

    #[test]
    fn packed_files_are_read_also_where_they_are_cut() {
        let whole = file(u32::to_le_bytes, 0xa1b2_c3d4, &[(1000, 1000); 200]);
        let mut packer = GzEncoder::new(Vec::new(), flate2::Compression::none());
        packer.write_all(&whole).unwrap();
        let packed = packer.finish().unwrap();
        let unpack = |bytes: &[u8]| reader_of_packed(bytes.to_vec());
        assert_eq!(lengths(unpack(&packed)).0.len(), 200);
        let (found, damage) = lengths(unpack(&packed[..packed.len() / 2]));
        assert!((50..150).contains(&found.len()) && damage.is_some(), "{} {damage:?}", found.len());
    }

    fn reader_of_packed(bytes: Vec<u8>) -> CaptureReader {
        CaptureReader::of(Path::new("a.pcap.gz"), MultiGzDecoder::new(Cursor::new(bytes))).unwrap()
    }

    #[test]
    fn pcapng_has_its_times_and_lengths_by_interface() {
        let block = |kind: u32, body: &[u8]| {
            let padded = body.len().next_multiple_of(4);
            let length = (padded + 12) as u32;
            let mut out = [kind.to_le_bytes(), length.to_le_bytes()].concat();
            out.extend_from_slice(body);
            out.resize(8 + padded, 0);
            out.extend(length.to_le_bytes());
            out
        };
        let words = |all: &[u32]| all.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let mut all = block(0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]));
        // Nanoseconds by an option; then Ethernet in microseconds; then another link type.
        all.extend(block(1, &words(&[1, 0, 1 << 16 | 9, 9, 0])));
        all.extend(block(1, &words(&[1, 0])));
        all.extend(block(1, &words(&[101, 0])));
        let packet = |interface: u32, captured: u32, wire: u32| {
            let mut body = words(&[interface, 0, 2_000_000_000, captured, wire]);
            body.extend(vec![7; captured as usize]);
            block(6, &body)
        };
        all.extend([packet(0, 61, 100), packet(1, 60, 60), packet(2, 60, 60)].concat());
        let mut reader = reader(all).unwrap();
        let seen = |record: Option<PcapRecord<'_>>| record.map(|r| (r.bytes.len(), r.time, r.cut));
        assert_eq!(seen(reader.next_record()), Some((61, Some(2_000_000_000), 39)));
        assert_eq!(seen(reader.next_record()), Some((60, Some(2_000_000_000_000), 0)));
        assert_eq!((seen(reader.next_record()), reader.link()), (None, Some(ETHERNET)));
        assert!(reader.damage().is_some_and(|what| what.contains("1 packets of other link types")));
    }
}
