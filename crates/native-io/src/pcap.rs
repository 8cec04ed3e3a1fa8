//! Writer of classic capture files, with times in nanoseconds.
//!
//! Source: draft-ietf-opsawg-pcap, "PCAP Capture File Format".

use std::io::{self, Write};

use super::PacketSink;
use millstream_native_runtime::packet::{ArrivalMetadata, LONGEST_OPEN};

/// Nanosecond resolution, in the machine's byte order.
const MAGIC: u32 = 0xa1b2_3c4d;
const VERSION: [u16; 2] = [2, 4];
/// Link type of Ethernet.
pub const ETHERNET: u32 = 1;

/// Global properties of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PcapHeader {
    /// Their link type.
    pub link: u32,
    /// Maximum number of bytes kept of each packet.
    pub most: usize,
    /// True if the recorded length includes bytes that were cut off before the packet arrived.
    pub whole: bool,
}

impl Default for PcapHeader {
    /// Frames of Ethernet, in full.
    fn default() -> PcapHeader {
        PcapHeader { link: ETHERNET, most: LONGEST_OPEN, whole: true }
    }
}

/// A capture file that is being written. Each packet gets the arrival time of its original.
pub struct PcapWriter<W: Write> {
    out: W,
    form: PcapHeader,
}

impl<W: Write> PcapWriter<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn new(mut out: W, form: PcapHeader) -> io::Result<Self> {
        let mut header = MAGIC.to_ne_bytes().to_vec();
        VERSION.iter().for_each(|v| header.extend(v.to_ne_bytes()));
        let snap = u32::try_from(form.most).unwrap_or(u32::MAX);
        [0, 0, snap, form.link].iter().for_each(|v: &u32| header.extend(v.to_ne_bytes()));
        out.write_all(&header)?;
        Ok(PcapWriter { out, form })
    }

    /// Writes buffered data to the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Writes buffered data to the file, which goes on.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Writes a packet with this time, in nanoseconds; `cut` is the number of bytes that were cut off before
    /// it arrived.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&mut self, packet: &[u8], time: u64, cut: u32) -> io::Result<()> {
        let (seconds, rest) = ((time / 1_000_000_000) as u32, (time % 1_000_000_000) as u32);
        let kept = &packet[..packet.len().min(self.form.most)];
        let length = packet.len() as u32 + if self.form.whole { cut } else { 0 };
        let words = [seconds, rest, kept.len() as u32, length];
        let mut header = [0; 16];
        for (place, word) in header.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        self.out.write_all(&header)?;
        self.out.write_all(kept)
    }
}

impl<W: Write> PacketSink for PcapWriter<W> {
    fn send(&mut self, packet: &[u8], (_, arrival): (u64, ArrivalMetadata), _: u32) -> io::Result<()> {
        self.write(packet, arrival.time.unwrap_or(0), arrival.cut)
    }
}
