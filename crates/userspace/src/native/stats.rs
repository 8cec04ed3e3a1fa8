//! Statistics of workers, so far or in all, for reports and sockets.

use std::sync::Arc;

use millstream_adapt::AdaptStatus;
use millstream_native_io::DropReason;
use millstream_native_io::worker_stats::{WorkerLatencyHistogram, WorkerStats};
use serde::Serialize;

use super::lost_packets::DropCount;

/// Times of a run.
#[derive(Serialize)]
pub(crate) struct RunSpeed {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency_ns: Option<LatencyPercentiles>,
    /// Time in the program, full batches: mean, and 10th percentile of windows.
    pub(crate) ns_per_packet: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ns_per_packet_p10: Option<f64>,
    /// Includes copying in and out.
    pub(crate) mpps: f64,
}

/// Nanoseconds from when packets are received until their batch is done, for sampled batches.
#[derive(Serialize)]
pub(crate) struct LatencyPercentiles {
    packets: u64,
    p50: u64,
    p99: u64,
    p999: u64,
}

impl LatencyPercentiles {
    /// `None` before any packet was sampled.
    pub(crate) fn of(latency: &WorkerLatencyHistogram) -> Option<LatencyPercentiles> {
        let share = |share| latency.percentile(share);
        Some(LatencyPercentiles {
            packets: latency.packets(),
            p50: share(0.5)?,
            p99: share(0.99)?,
            p999: share(0.999)?,
        })
    }

    /// Description of the latencies.
    pub(crate) fn text(&self) -> String {
        let us = |ns: u64| ns as f64 / 1e3;
        format!(
            "latency {:.1} us, {:.1} at the 99th percentile, {:.1} at the 99.9th, of {} packets",
            us(self.p50),
            us(self.p99),
            us(self.p999),
            self.packets
        )
    }
}

/// A worker's packets.
#[derive(Serialize)]
pub(crate) struct WorkerRow {
    worker: usize,
    received: u64,
    sent: u64,
    dropped: u64,
    ns_per_packet: f64,
}

/// Statistics of each worker.
pub(crate) fn workers(board: &WorkerStats) -> Vec<WorkerRow> {
    let of = |(worker, (account, busy)): (
        usize,
        (millstream_native_io::PacketAccounting, std::time::Duration),
    )| WorkerRow {
        worker,
        received: account.received,
        sent: account.sent(),
        dropped: account.all_dropped(),
        ns_per_packet: match account.received - account.dropped[DropReason::Size as usize] {
            0 => 0.0,
            seen => busy.as_nanos() as f64 / seen as f64,
        },
    };
    board.workers().into_iter().enumerate().map(of).collect()
}

/// Live statistics.
#[derive(Serialize)]
pub(crate) struct LiveStats {
    schema: u32,
    received: u64,
    sent: u64,
    transmitted: u64,
    redirected: u64,
    dropped: Vec<DropCount>,
    ns_per_packet: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ns: Option<LatencyPercentiles>,
    workers: Vec<WorkerRow>,
    /// Specialization, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    adaptation: Option<AdaptStatus>,
}

impl LiveStats {
    /// The present statistics.
    pub(crate) fn of(board: &Arc<WorkerStats>, adaptation: Option<AdaptStatus>) -> LiveStats {
        let all = board.workers();
        let sum = |of: fn(&millstream_native_io::PacketAccounting) -> u64| {
            all.iter().map(|(account, _)| of(account)).sum()
        };
        let dropped =
            |reason: DropReason| all.iter().map(|(account, _)| account.dropped[reason as usize]).sum();
        let busy: u128 = all.iter().map(|(_, busy)| busy.as_nanos()).sum();
        let received: u64 = sum(|account| account.received);
        let seen = received - dropped(DropReason::Size);
        LiveStats {
            schema: 1,
            received,
            sent: sum(|account| account.sent()),
            transmitted: sum(|account| account.transmitted),
            redirected: sum(|account| account.redirected),
            dropped: DropReason::ALL
                .iter()
                .map(|&r| DropCount { reason: r.name(), packets: dropped(r) })
                .collect(),
            ns_per_packet: if seen == 0 { 0.0 } else { busy as f64 / seen as f64 },
            latency_ns: LatencyPercentiles::of(&board.latency()),
            workers: workers(board),
            adaptation,
        }
    }
}
