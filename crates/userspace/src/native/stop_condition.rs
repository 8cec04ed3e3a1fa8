//! Limits of a run on interfaces or files.

use std::io;
use std::time::{Duration, Instant};

use millstream_lab::os;
use millstream_native_io::WorkerHooks;
use millstream_native_io::queues::{BufferMode, ServeConfig};

use super::worker_cpus::bind;
use crate::progress::Progress;

/// Limits of a run: a number of packets, a time, and Ctrl-C.
pub(crate) struct StopCondition {
    packets: Option<u64>,
    end: Option<Instant>,
    _bar: Progress,
}

impl StopCondition {
    /// Starts the time, and catches Ctrl-C from now on.
    pub(crate) fn begin(packets: Option<u64>, seconds: Option<f64>) -> StopCondition {
        os::catch_interrupts();
        let time = seconds.map(Duration::from_secs_f64);
        let bar = match time {
            Some(time) => Progress::timed("serving", time),
            None => Progress::open("serving, until Ctrl-C"),
        };
        StopCondition { packets, end: time.map(|time| Instant::now() + time), _bar: bar }
    }

    /// Returns true if the run goes on after so many received packets.
    pub(crate) fn should_continue(&self, received: u64) -> bool {
        !os::interrupted()
            && self.packets.is_none_or(|n| received < n)
            && self.end.is_none_or(|end| Instant::now() < end)
    }

    /// Serves queues, by workers with processors of their own and batches of this size, until the limit.
    pub(crate) fn run_until<R>(
        &self,
        (batch, metadata): (usize, BufferMode),
        run: impl FnOnce(&ServeConfig<'_>, &WorkerHooks<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        let goes_on = || self.should_continue(0);
        let most = self.packets.unwrap_or(u64::MAX);
        run(&ServeConfig { batch, metadata, most, goes_on: &goes_on }, &WorkerHooks { enter: &bind })
    }
}
