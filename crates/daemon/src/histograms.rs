//! Durations of a program's session, as they are counted.

use millstream_specialize::SessionReport;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// Histograms of durations.
#[derive(Debug)]
pub(super) struct DurationHistograms {
    pub(super) compile: Histogram,
    pub(super) load: Histogram,
    pub(super) swap: Histogram,
    pub(super) answer: Histogram,
}

impl Default for DurationHistograms {
    fn default() -> DurationHistograms {
        // From 50 us to 1.6 s.
        let new = || Histogram::new(exponential_buckets(50e-6, 2.0, 16));
        DurationHistograms { compile: new(), load: new(), swap: new(), answer: new() }
    }
}

impl DurationHistograms {
    /// Records the durations in a report.
    pub(super) fn note(&self, report: &SessionReport) {
        let seconds = |us: u64| us as f64 / 1e6;
        let latency = match report {
            SessionReport::Specialised { compile_us, load_us, swap_us, latency_us, .. } => {
                // Code on standby was compiled before.
                if (*compile_us, *load_us) != (0, 0) {
                    self.compile.observe(seconds(*compile_us));
                    self.load.observe(seconds(*load_us));
                }
                self.swap.observe(seconds(*swap_us));
                *latency_us
            }
            SessionReport::Confirmed { latency_us, .. } => Some(*latency_us),
            SessionReport::Refreshed { latency_us, .. } => *latency_us,
            _ => None,
        };
        if let Some(us) = latency {
            self.answer.observe(seconds(us));
        }
    }
}
