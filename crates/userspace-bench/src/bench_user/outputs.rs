//! Outputs of a program, as numbers that can be compared: two ways to make its code must not differ in them.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use miette::Result;
use millstream_interp::MapKind;
use millstream_native::{ArrivalMetadata, ClockSource, NativeEngine};
use millstream_native_io::PacketSink;
use millstream_native_io::graph::SentPacket;
use millstream_plan::fingerprint;
use serde::{Deserialize, Serialize};

use super::subject::BenchmarkRunner;
use super::traffic::TrafficPattern;

/// Time that programs see while their outputs are compared, in nanoseconds.
pub(crate) const CLOCK: u64 = 1_000_000_000_000;
/// Maps with more entries are not compared.
const MOST_ENTRIES: usize = 1 << 16;

/// Outputs of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct OutputDigest {
    /// Packets that came.
    pub(crate) received: u64,
    /// Packets that were sent.
    pub(crate) sent: u64,
    /// Sum of hashes of sent packets, each with its output and the number of the packet that it was.
    packets: u64,
    /// Sum of hashes of the entries of maps that the program may write, with one worker.
    maps: Option<u64>,
}

impl OutputDigest {
    /// Returns true if the same packets came, and the same number was sent.
    pub(crate) fn counts_agree(&self, other: &OutputDigest) -> bool {
        (self.received, self.sent) == (other.received, other.sent)
    }

    /// Returns true if everything is equal. Maps are left out if only one of both has them.
    pub(crate) fn agrees(&self, other: &OutputDigest) -> bool {
        let maps = match (self.maps, other.maps) {
            (Some(own), Some(others)) => own == others,
            _ => true,
        };
        self.counts_agree(other) && self.packets == other.packets && maps
    }
}

/// Hashes of an object's sent packets.
struct DigestSink<'s>(&'s AtomicU64);

fn add(sum: &AtomicU64, bytes: &[u8], number: u64, output: u64) {
    let hash = fingerprint([bytes, &number.to_le_bytes(), &output.to_le_bytes()]);
    // Workers send in any order, so the order has no part in it.
    sum.fetch_add(hash, Ordering::Relaxed);
}

impl PacketSink for DigestSink<'_> {
    fn send(&mut self, packet: &[u8], origin: (u64, ArrivalMetadata), port: u32) -> io::Result<()> {
        add(self.0, packet, origin.0, u64::from(port));
        Ok(())
    }
}

impl BenchmarkRunner {
    /// Runs so many packets at a fixed time, and returns a digest of what was sent and of what maps hold.
    ///
    /// # Errors
    /// If there is no memory for a batch.
    pub(crate) fn digest(&mut self, traffic: &TrafficPattern, count: u64) -> Result<OutputDigest> {
        let (sum, batch) = (AtomicU64::new(0), self.batch() as usize);
        self.engine.set_clock(ClockSource::Fixed(CLOCK));
        let take = |packet: SentPacket<'_>| {
            let source = (packet.source as u64) << 48;
            add(&sum, packet.bytes, source | packet.number, packet.output as u64);
            Ok(())
        };
        let ran = self.run_into(traffic, (count, batch), &mut DigestSink(&sum), &take)?;
        self.engine.set_clock(ClockSource::System);
        let maps = (self.engine.workers() == 1).then(|| contents(&mut self.engine));
        Ok(OutputDigest {
            received: ran.received,
            sent: ran.sent,
            packets: sum.load(Ordering::Relaxed),
            maps,
        })
    }
}

/// Digest of the entries that programs may have written. Maps that forget entries as they like are left out.
fn contents(engine: &mut NativeEngine) -> u64 {
    let mut sum = 0u64;
    for map in engine.maps() {
        let forgets = matches!(map.spec().kind, MapKind::LruHash | MapKind::LruPercpuHash);
        let compared = map.is_written() && !map.holds_addresses() && !map.is_external() && !forgets;
        if !compared || map.len() > MOST_ENTRIES {
            continue;
        }
        let name = map.name().to_owned();
        for key in map.keys() {
            if let Some(value) = map.get(&key) {
                sum = sum.wrapping_add(fingerprint([name.as_bytes(), key.as_slice(), value.as_slice()]));
            }
        }
    }
    sum
}
