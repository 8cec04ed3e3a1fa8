//! Packets that lines of text describe, read on demand, and files of packets of either kind.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::sync::Arc;

use miette::{IntoDiagnostic, Result, WrapErr};
use millstream_click::{SummaryInput, SummaryPacket, SummaryReader, SummarySource};
use millstream_native::ArrivalMetadata;
use millstream_native_io::packet_source::{PacketRecord, PacketStream, PacketStreamSource};

use crate::capture::CaptureFile;

/// Bytes of a line, at most.
const MOST_LINE: u64 = 1 << 20;
/// Bytes of lines from standard input, at most.
const MOST_INPUT: u64 = 1 << 30;

/// A file of packets.
pub(super) enum PacketFile {
    /// A capture.
    Capture(CaptureFile),
    /// Lines that describe packets.
    Summary(SummaryFile),
}

impl PacketFile {
    /// Its packets.
    pub(super) fn stream(&self) -> &dyn PacketStreamSource {
        match self {
            PacketFile::Capture(file) => file,
            PacketFile::Summary(file) => file,
        }
    }

    /// Number of packets; reads the file to its end.
    pub(super) fn count(&self) -> Result<u64> {
        match self {
            PacketFile::Capture(file) => file.count(),
            PacketFile::Summary(file) => Ok(file.frames(usize::MAX)?.len() as u64),
        }
    }

    /// Frames in memory, at most `most`.
    pub(super) fn in_memory(&self, most: usize) -> Result<Vec<Vec<u8>>> {
        match self {
            PacketFile::Capture(file) => file.in_memory(most),
            PacketFile::Summary(file) => file.frames(most),
        }
    }
}

/// Lines that describe packets.
#[derive(Debug)]
pub(super) struct SummaryFile {
    source: SummarySource,
    /// The lines, unless they are in a file that can be read again.
    text: Option<Arc<[u8]>>,
}

impl SummaryFile {
    /// Opens the lines of a source.
    pub(super) fn open(source: &SummarySource) -> Result<SummaryFile> {
        let text = match &source.input {
            SummaryInput::Text(text) => Some(Arc::from(text.as_bytes())),
            SummaryInput::File(name) if name == "-" => {
                let mut all = Vec::new();
                io::stdin().lock().take(MOST_INPUT).read_to_end(&mut all).into_diagnostic()?;
                Some(Arc::from(all))
            }
            SummaryInput::File(name) => {
                File::open(name).into_diagnostic().wrap_err_with(|| name.clone())?;
                None
            }
        };
        Ok(SummaryFile { source: source.clone(), text })
    }

    fn frames(&self, most: usize) -> Result<Vec<Vec<u8>>> {
        let mut stream = PacketStreamSource::open(self).into_diagnostic()?;
        let mut frames = Vec::new();
        while frames.len() < most
            && let Some(record) = stream.next().into_diagnostic()?
        {
            frames.push(record.bytes.to_vec());
        }
        Ok(frames)
    }
}

impl PacketStreamSource for SummaryFile {
    fn open(&self) -> io::Result<Box<dyn PacketStream>> {
        let (name, lines): (String, Box<dyn BufRead + Send>) = match (&self.text, &self.source.input) {
            (None, SummaryInput::File(name)) => {
                let lines =
                    Box::new(BufReader::new(millstream_lab::unpack(BufReader::new(File::open(name)?))?));
                (name.clone(), lines)
            }
            (text, _) => {
                let text = text.clone().unwrap_or_default();
                ("lines of a summary".to_owned(), Box::new(Cursor::new(text)))
            }
        };
        let reader = SummaryReader::new(&self.source);
        let stream = SummaryStream { name, lines, reader, number: 0, packet: None, left: 0, time: None };
        Ok(match self.source.window {
            0 | 1 => Box::new(stream),
            window => Box::new(SortedStream { stream, window, waiting: VecDeque::new(), packet: Vec::new() }),
        })
    }
}

/// Lines that are being read.
struct SummaryStream {
    name: String,
    lines: Box<dyn BufRead + Send>,
    reader: SummaryReader,
    /// Number of lines read.
    number: u64,
    /// The packet of the last line, and how often it is still to come.
    packet: Option<SummaryPacket>,
    left: u64,
    /// Time of the last packet that said one.
    time: Option<u64>,
}

impl SummaryStream {
    /// Reads the packet of the next line that describes one. Returns false at the end.
    fn advance(&mut self) -> io::Result<bool> {
        loop {
            let mut line = Vec::new();
            if (&mut self.lines).take(MOST_LINE).read_until(b'\n', &mut line)? == 0 {
                return Ok(false);
            }
            self.number += 1;
            let wrong = |what: &str| {
                let message = format!("{}, line {}: {what}", self.name, self.number);
                io::Error::new(io::ErrorKind::InvalidData, message)
            };
            if line.len() as u64 == MOST_LINE {
                return Err(wrong("the line is too long"));
            }
            let text = String::from_utf8_lossy(&line);
            if let Some(packet) = self.reader.line(&text).map_err(|what| wrong(&what))? {
                self.time = packet.time.or(self.time);
                (self.left, self.packet) = (packet.count, Some(packet));
                return Ok(true);
            }
        }
    }
}

impl PacketStream for SummaryStream {
    fn next(&mut self) -> io::Result<Option<PacketRecord<'_>>> {
        if self.left == 0 && !self.advance()? {
            return Ok(None);
        }
        self.left -= 1;
        let arrival = ArrivalMetadata { time: self.time, cut: 0 };
        Ok(self.packet.as_ref().map(|packet| PacketRecord { bytes: &packet.bytes, arrival }))
    }
}

/// A stream of which the earliest of the next packets comes first.
struct SortedStream {
    stream: SummaryStream,
    /// Number of packets among which the earliest is looked for.
    window: usize,
    waiting: VecDeque<(ArrivalMetadata, Vec<u8>)>,
    /// The last packet that came.
    packet: Vec<u8>,
}

impl PacketStream for SortedStream {
    fn next(&mut self) -> io::Result<Option<PacketRecord<'_>>> {
        while self.waiting.len() < self.window
            && let Some(PacketRecord { bytes, arrival }) = self.stream.next()?
        {
            self.waiting.push_back((arrival, bytes.to_vec()));
        }
        let times = self.waiting.iter().enumerate().map(|(at, (arrival, _))| (arrival.time, at));
        let Some((_, first)) = times.min() else { return Ok(None) };
        let Some((arrival, bytes)) = self.waiting.remove(first) else { return Ok(None) };
        self.packet = bytes;
        Ok(Some(PacketRecord { bytes: &self.packet, arrival }))
    }
}
