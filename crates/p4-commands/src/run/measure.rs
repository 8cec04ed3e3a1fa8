//! Speed of a switch without its ports: packets of capture files, moved from memory again and again.

use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, miette};
use millstream_lab::os;
use millstream_lab::pcap::CaptureReader;
use serde::Serialize;

use super::packets::{BATCH, PacketMover};
use super::ports::OpenDevice;

/// A packet in memory, with the number of the port that it comes in at.
type HeldPacket = (u64, Vec<u8>);

/// Speed of a switch.
#[derive(Serialize)]
pub(super) struct SwitchSpeed {
    schema: u32,
    /// Packets that were moved.
    packets: u64,
    /// Packets that left.
    sent: u64,
    seconds: f64,
    /// Millions of packets a second.
    mpps: f64,
    /// True if the user ended the measurement before its time was over.
    interrupted: bool,
}

impl SwitchSpeed {
    fn add(&mut self, packets: u64, sent: u64, time: Duration) {
        self.packets += packets;
        self.sent += sent;
        self.seconds += time.as_secs_f64();
        self.mpps = self.packets as f64 / self.seconds / 1e6;
    }
}

impl std::fmt::Display for SwitchSpeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SwitchSpeed { packets, sent, seconds, mpps, .. } = self;
        write!(f, "{packets} packets in {seconds:.3} s, {sent} sent: {mpps:.3} million packets a second")
    }
}

impl PacketMover {
    /// Packets of all capture files, in the order of their times.
    fn held_packets(&self) -> Result<Vec<HeldPacket>> {
        let mut packets = Vec::new();
        for port in &self.ports.all {
            let OpenDevice::Captures { input: Some(path), .. } = &port.device else { continue };
            let mut reader = CaptureReader::open(path).into_diagnostic()?;
            while let Some(record) = reader.next_record() {
                packets.push((record.time.unwrap_or(0), (port.number, record.bytes.to_vec())));
            }
        }
        packets.sort_by_key(|(time, _)| *time);
        Ok(packets.into_iter().map(|(_, packet)| packet).collect())
    }

    /// Moves the packets of all capture files for this time; what leaves is only counted.
    ///
    /// # Errors
    /// If a file cannot be read, there are no packets, or the program fails.
    pub(super) fn measure(&self, time: Duration) -> Result<SwitchSpeed> {
        let held = self.held_packets()?;
        let packets: Vec<(u64, &[u8])> = held.iter().map(|(port, data)| (*port, &data[..])).collect();
        if packets.is_empty() {
            return Err(miette!("--measure needs a capture file with packets: -i PORT@IN.pcap"));
        }
        let mut speed =
            SwitchSpeed { schema: 1, packets: 0, sent: 0, seconds: 0.0, mpps: 0.0, interrupted: false };
        // The first round fills caches.
        for round in 0.. {
            let started = Instant::now();
            let mut sent = 0;
            for batch in packets.chunks(BATCH) {
                sent += self.move_held(batch)?;
            }
            if round == 0 {
                continue;
            }
            speed.add(packets.len() as u64, sent, started.elapsed());
            speed.interrupted = os::interrupted();
            if speed.interrupted || speed.seconds >= time.as_secs_f64() {
                break;
            }
        }
        Ok(speed)
    }

    /// Moves some packets; gives the number of those that left.
    fn move_held(&self, packets: &[(u64, &[u8])]) -> Result<u64> {
        let moved = self.handle.move_packets(|switch| switch.count_batch(packets));
        moved.ok_or_else(|| miette!("the switch has no program"))?.map_err(|error| miette!("{error}"))
    }
}
