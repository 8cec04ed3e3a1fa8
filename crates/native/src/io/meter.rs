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
        let before = Instant::now();
        engine.run(batch);
        let took = before.elapsed();
        ran.busy += took;
        self.window += took;
        self.packets += batch.len() as u64;
        self.batches += 1;
        if self.batches == WINDOW {
            if self.packets > 0 {
                ran.windows.push(self.window.as_nanos() as f64 / self.packets as f64);
            }
            *self = Meter::default();
        }
    }
}
