//! Writes classic capture files of Ethernet frames, with times in nanoseconds.
//!
//! Source: draft-ietf-opsawg-pcap, "PCAP Capture File Format".

use std::io::{self, Write};

use super::Sink;

/// Nanosecond resolution, in the machine's byte order.
const MAGIC: u32 = 0xa1b2_3c4d;
const VERSION: [u16; 2] = [2, 4];
const SNAPLEN: u32 = 65_535;
const ETHERNET: u32 = 1;

/// A capture file that is being written. Each packet gets the time of the one that it was when it came in.
pub struct Writer<'t, W: Write> {
    out: W,
    times: &'t [u64],
    most: usize,
}

impl<'t, W: Write> Writer<'t, W> {
    /// Begins a file. `times` are the nanoseconds of each packet of the source, over and over; without any all are 0.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn new(mut out: W, times: &'t [u64]) -> io::Result<Self> {
        let mut header = MAGIC.to_ne_bytes().to_vec();
        VERSION.iter().for_each(|v| header.extend(v.to_ne_bytes()));
        [0, 0, SNAPLEN, ETHERNET].iter().for_each(|v: &u32| header.extend(v.to_ne_bytes()));
        out.write_all(&header)?;
        Ok(Writer { out, times, most: usize::MAX })
    }

    /// Keeps only this many bytes of each packet.
    #[must_use]
    pub fn cut_at(self, most: usize) -> Self {
        Writer { most, ..self }
    }

    /// Writes what is still in the way to the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<W: Write> Writer<'_, W> {
    /// Writes a packet with this time, in nanoseconds.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&mut self, packet: &[u8], time: u64) -> io::Result<()> {
        let (seconds, rest) = ((time / 1_000_000_000) as u32, (time % 1_000_000_000) as u32);
        let kept = &packet[..packet.len().min(self.most)];
        for word in [seconds, rest, kept.len() as u32, packet.len() as u32] {
            self.out.write_all(&word.to_ne_bytes())?;
        }
        self.out.write_all(kept)
    }
}

impl<W: Write> Sink for Writer<'_, W> {
    fn send(&mut self, packet: &[u8], origin: u64, _: u32) -> io::Result<()> {
        let time = match self.times.len() as u64 {
            0 => 0,
            len => self.times[(origin % len) as usize],
        };
        self.write(packet, time)
    }
}
