//! Capture files as sources of packets, read on demand.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use miette::{IntoDiagnostic, Result, miette};
use millstream_lab::pcap::{self, CaptureReader, ETHERNET, PcapFrames};
use millstream_native::ArrivalMetadata;
use millstream_native_io::packet_source::{PacketRecord, PacketStream, PacketStreamSource};

use crate::diagnostics;

/// A capture file.
#[derive(Clone, Debug)]
pub struct CaptureFile {
    path: PathBuf,
    /// True if an error in the file was reported: each worker reads it, and each would report it.
    told: Arc<AtomicBool>,
}

impl CaptureFile {
    /// Opens a file of packets of any link type.
    pub fn open(path: &str) -> Result<CaptureFile> {
        let path = PathBuf::from(path);
        CaptureReader::open(&path).into_diagnostic()?;
        Ok(CaptureFile { path, told: Arc::default() })
    }

    /// Opens a file of Ethernet frames.
    pub fn of_ethernet(path: &str) -> Result<CaptureFile> {
        let file = CaptureFile::open(path)?;
        match link(Path::new(path)) {
            Some(link) if link != ETHERNET => {
                Err(miette!("{path}: frames of link type {link}, not Ethernet"))
            }
            _ => Ok(file),
        }
    }

    /// Number of packets; reads the file to its end.
    pub fn count(&self) -> Result<u64> {
        let mut reader = CaptureReader::open(&self.path).into_diagnostic()?;
        let mut count = 0;
        while reader.next_record().is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// Frames of the file in memory, at most `most`.
    pub fn in_memory(&self, most: usize) -> Result<Vec<Vec<u8>>> {
        let capture = pcap::read_any(&self.path, most).into_diagnostic()?;
        warn(&capture);
        Ok(capture.frames)
    }
}

impl PacketStreamSource for CaptureFile {
    fn open(&self) -> io::Result<Box<dyn PacketStream>> {
        let reader = CaptureReader::open(&self.path).map_err(io::Error::other)?;
        Ok(Box::new(CaptureStream { reader, told: Arc::clone(&self.told) }))
    }
}

/// A capture file that is being read.
struct CaptureStream {
    reader: CaptureReader,
    told: Arc<AtomicBool>,
}

impl PacketStream for CaptureStream {
    fn next(&mut self) -> io::Result<Option<PacketRecord<'_>>> {
        // The borrow of a packet would last too long.
        if !self.reader.has_next() {
            if let Some(damage) = self.reader.damage()
                && !self.told.swap(true, Ordering::Relaxed)
            {
                diagnostics::warn(&damage);
            }
            return Ok(None);
        }
        let found = self.reader.next_record();
        Ok(found.map(|record| {
            let arrival = ArrivalMetadata { time: record.time, cut: record.cut };
            PacketRecord { bytes: record.bytes, arrival }
        }))
    }
}

/// Prints the warnings about a file that was read.
pub fn warn(capture: &PcapFrames) {
    capture.warnings.iter().for_each(|warning| diagnostics::warn(warning));
}

/// Link type of a capture file's packets; `None` if it is not a capture file, or has no packets that name
/// one.
pub fn link(path: &Path) -> Option<u32> {
    let mut reader = CaptureReader::open(path).ok()?;
    reader.link().or_else(|| {
        reader.has_next();
        reader.link()
    })
}
