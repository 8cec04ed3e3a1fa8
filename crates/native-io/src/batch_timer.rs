//! The time that a program takes for its packets.

use std::time::{Duration, Instant};

use super::{RunStats, WINDOW};
use millstream_native::NativeEngine;
use millstream_native_runtime::packet::PacketBatch;

/// Number of batches per timed one, for a [`BatchTimer::sampling`].
#[cfg(feature = "dpdk")]
const SAMPLED: u32 = 8;

/// Runs batches, and adds up their times.
#[derive(Debug)]
pub(super) struct BatchTimer {
    window: Duration,
    packets: u64,
    batches: u32,
    /// One batch in this many is timed.
    every: u32,
    /// Batches until the next timed one.
    left: u32,
    /// Picoseconds per packet of the last timed batch.
    last: u64,
}

impl Default for BatchTimer {
    fn default() -> BatchTimer {
        BatchTimer { window: Duration::ZERO, packets: 0, batches: 0, every: 1, left: 0, last: 0 }
    }
}

impl BatchTimer {
    /// A meter that times some batches and assumes that the others are alike: for packets that take so little
    /// time that reading the clock would matter.
    #[cfg(feature = "dpdk")]
    pub(super) fn sampling() -> BatchTimer {
        BatchTimer { every: SAMPLED, ..BatchTimer::default() }
    }

    /// Runs a batch.
    pub(super) fn run(&mut self, engine: &mut NativeEngine, batch: &mut PacketBatch, ran: &mut RunStats) {
        let packets = batch.len();
        self.measure(packets, (&mut ran.busy, &mut ran.windows), || engine.run(batch));
    }

    /// Measures a closure that runs a batch of this many packets: adds to the total time, and to the windows.
    pub(super) fn measure(
        &mut self,
        packets: usize,
        (busy, windows): (&mut Duration, &mut Vec<f64>),
        run: impl FnOnce(),
    ) {
        if self.left > 0 {
            self.left -= 1;
            *busy += Duration::from_nanos(self.last * packets as u64 / 1000);
            return run();
        }
        self.left = self.every - 1;
        let before = Instant::now();
        run();
        let took = before.elapsed();
        *busy += took;
        self.last = took.as_nanos() as u64 * 1000 / packets.max(1) as u64;
        self.window += took;
        self.packets += packets as u64;
        self.batches += 1;
        if self.batches == WINDOW {
            if self.packets > 0 {
                windows.push(self.window.as_nanos() as f64 / self.packets as f64);
            }
            (self.window, self.packets, self.batches) = (Duration::ZERO, 0, 0);
        }
    }
}

#[cfg(all(test, feature = "dpdk"))]
mod tests {
    use super::*;

    #[test]
    fn batches_that_are_not_timed_count_like_the_last_one_that_was() {
        let (mut meter, mut busy, mut windows) = (BatchTimer::sampling(), Duration::ZERO, Vec::new());
        let mut runs = 0;
        for _ in 0..SAMPLED * WINDOW {
            meter.measure(4, (&mut busy, &mut windows), || {
                runs += 1;
                std::hint::black_box(Instant::now());
            });
        }
        assert_eq!((runs, windows.len()), (SAMPLED * WINDOW, 1));
        let timed = windows[0] * f64::from(4 * WINDOW);
        assert_eq!(busy.as_nanos() as f64, timed * f64::from(SAMPLED));
    }
}
