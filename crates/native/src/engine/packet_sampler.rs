//! Copies of packets that workers are about to run, for whoever asks.
//!
//! Invariant: a worker reads one number for each batch while nobody asks, and never waits.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use millstream_native_runtime::packet::{ArrivalMetadata, DescriptorField, PacketBatch};

/// A packet as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledPacket {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Interface or source.
    pub ingress: u32,
    /// Metadata at arrival.
    pub arrival: ArrivalMetadata,
}

/// Bytes of packets that nobody has taken, at most.
const MOST_BYTES: usize = 4 << 20;

/// Number of packets that somebody wants copies of, and the copies.
#[derive(Debug, Default)]
pub struct PacketSampler {
    wanted: AtomicU32,
    taken: Mutex<TakenPackets>,
}

/// Copies, and the worker that makes them.
#[derive(Debug, Default)]
struct TakenPackets {
    packets: Vec<SampledPacket>,
    bytes: usize,
    worker: Option<u32>,
}

impl PacketSampler {
    /// Asks for copies of this many of the next packets, which come one behind the other at one worker. Copies that
    /// nobody has taken are kept.
    pub fn request(&self, packets: u32) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).worker = None;
        self.wanted.store(packets, Ordering::Relaxed);
    }

    /// Takes the copies so far.
    pub fn take(&self) -> Vec<SampledPacket> {
        std::mem::take(&mut *self.taken.lock().unwrap_or_else(PoisonError::into_inner)).packets
    }

    /// Copies packets of a batch that a worker is about to run, if somebody wants some.
    #[inline]
    pub(super) fn sample(&self, batch: &PacketBatch, worker: u32) {
        let wanted = self.wanted.load(Ordering::Relaxed) as usize;
        if wanted > 0 {
            self.copy(batch, worker, wanted);
        }
    }

    #[cold]
    fn copy(&self, batch: &PacketBatch, worker: u32, wanted: usize) {
        // Another worker copies: that is enough.
        let Ok(mut taken) = self.taken.try_lock() else { return };
        if *taken.worker.get_or_insert(worker) != worker {
            return;
        }
        let count = batch.len().min(wanted);
        for at in 0..count {
            let bytes = batch.bytes(at).to_vec();
            taken.bytes += bytes.len();
            taken.packets.push(SampledPacket {
                bytes,
                ingress: came_from(batch, at),
                arrival: batch.arrival(at),
            });
        }
        let left = if taken.bytes > MOST_BYTES { 0 } else { wanted - count };
        self.wanted.store(left as u32, Ordering::Relaxed);
    }
}

/// Interface or source of a packet that has come; 0 if the program does not ask.
fn came_from(batch: &PacketBatch, at: usize) -> u32 {
    match batch.ingress() {
        0 => batch.received_field(at, DescriptorField::Ingress),
        ingress => ingress,
    }
}
