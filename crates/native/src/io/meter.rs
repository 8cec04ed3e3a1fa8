//! The time that a program takes for its packets.

use std::time::{Duration, Instant};

use super::{Ran, WINDOW};
use crate::engine::Engine;
use crate::runtime::packet::Batch;

/// Runs batches, and adds up what they take.
#[derive(Debug, Default)]
pub(super) struct Meter {
    window: Duration,
    packets: u64,
    batches: u32,
}

impl Meter {
    /// Runs a batch.
    pub(super) fn run(&mut self, engine: &mut Engine, batch: &mut Batch, ran: &mut Ran) {
        let packets = batch.len();
        self.measure(packets, (&mut ran.busy, &mut ran.windows), || engine.run(batch));
    }

    /// Measures what runs a batch of so many packets: adds to the time in all, and to the windows.
    pub(super) fn measure(
        &mut self,
        packets: usize,
        (busy, windows): (&mut Duration, &mut Vec<f64>),
        run: impl FnOnce(),
    ) {
        let before = Instant::now();
        run();
        let took = before.elapsed();
        *busy += took;
        self.window += took;
        self.packets += packets as u64;
        self.batches += 1;
        if self.batches == WINDOW {
            if self.packets > 0 {
                windows.push(self.window.as_nanos() as f64 / self.packets as f64);
            }
            *self = Meter::default();
        }
    }
}
