//! `--metrics ADDR:PORT` of `millstream native` and `millstream click`: counters of a running program, for
//! Prometheus.
//!
//! Counters on the workers' board are read while they run. The counters of maps and elements are requested,
//! through a channel, from the owner of the engine, who answers between two batches. If he does not answer
//! for a moment (the run is at its end), the rest is reported without them.

use std::fmt;
use std::net::TcpListener;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use millstream_native::NativeEngine;
use millstream_native_io::DropReason;
use millstream_native_io::worker_stats::WorkerStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use crate::metrics;

/// Time limit for the answer of the engine's owner.
const PATIENCE: Duration = Duration::from_secs(1);

/// Figures that are available between two batches only.
#[derive(Debug, Default)]
pub(crate) struct EngineMetrics {
    /// Entries of each map.
    pub(crate) maps: Vec<(String, u64)>,
    /// Packets that elements have dropped, by element and reason.
    pub(crate) dropped: Vec<(String, String, u64)>,
    /// Other counters of elements, by element and handler.
    pub(crate) counted: Vec<(String, String, u64)>,
}

impl EngineMetrics {
    /// Figures of an engine's maps.
    pub(crate) fn of_maps(engine: &mut NativeEngine) -> EngineMetrics {
        let maps = engine.maps().map(|map| (map.name().to_owned(), map.len() as u64));
        EngineMetrics { maps: maps.collect(), ..EngineMetrics::default() }
    }
}

/// Requests for figures, which the engine's owner answers.
pub(crate) type MetricsRequests = Receiver<Sender<EngineMetrics>>;

/// Serves Prometheus metrics at an address, for as long as the process lives.
pub(crate) fn open(listener: TcpListener, board: &Arc<WorkerStats>) -> MetricsRequests {
    let (ask, asked) = mpsc::channel();
    let (board, ask) = (Arc::clone(board), Arc::new(Mutex::new(ask)));
    let text =
        move || metrics::text(Box::new(EngineCollector { board: Arc::clone(&board), ask: Arc::clone(&ask) }));
    thread::spawn(move || {
        if let Err(error) = metrics::serve(listener, Arc::new(text)) {
            tracing::warn!("metrics: {error}");
        }
    });
    asked
}

/// Reads all figures on a scrape.
struct EngineCollector {
    board: Arc<WorkerStats>,
    ask: Arc<Mutex<Sender<Sender<EngineMetrics>>>>,
}

impl fmt::Debug for EngineCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reader")
    }
}

impl EngineCollector {
    fn figures(&self) -> Option<EngineMetrics> {
        let (answer, answered) = mpsc::channel();
        self.ask.lock().ok()?.send(answer).ok()?;
        answered.recv_timeout(PATIENCE).ok()
    }
}

/// Counters with these labels.
fn counters<'l, const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    rows: impl IntoIterator<Item = ([(&'l str, String); N], u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, count) in rows {
        ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

impl Collector for EngineCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (workers, figures) = (self.board.workers(), self.figures().unwrap_or_default());
        let each = |of: fn(&millstream_native_io::PacketAccounting) -> u64| {
            let row =
                |(worker, (account, _)): (usize, &(_, _))| ([("worker", worker.to_string())], of(account));
            workers.iter().enumerate().map(row).collect::<Vec<_>>()
        };
        let encoder = &mut encoder;
        counters(encoder, ("millstream_received", "Packets received"), each(|account| account.received))?;
        counters(encoder, ("millstream_sent", "Packets sent"), each(|account| account.sent()))?;
        let mut dropped: Vec<_> = DropReason::ALL
            .iter()
            .map(|&reason| {
                let packets = workers.iter().map(|(account, _)| account.dropped[reason as usize]).sum();
                ([("element", String::new()), ("reason", reason.name().to_owned())], packets)
            })
            .collect();
        dropped.extend(
            figures
                .dropped
                .into_iter()
                .map(|(element, reason, n)| ([("element", element), ("reason", reason)], n)),
        );
        counters(encoder, ("millstream_dropped", "Packets dropped, by element and reason"), dropped)?;
        let counted = figures
            .counted
            .into_iter()
            .map(|(element, handler, n)| ([("element", element), ("handler", handler)], n));
        counters(encoder, ("millstream_element", "What elements count, by handler"), counted)?;
        let help = "Time of workers in the program";
        let mut family =
            encoder.encode_descriptor("millstream_busy", help, Some(&Unit::Seconds), MetricType::Counter)?;
        for (worker, (_, busy)) in workers.iter().enumerate() {
            let labels = [("worker", worker.to_string())];
            ConstCounter::new(busy.as_secs_f64()).encode(family.encode_family(&labels)?)?;
        }
        let help = "Entries of maps";
        let mut family =
            encoder.encode_descriptor("millstream_map_entries", help, None, MetricType::Gauge)?;
        for (map, entries) in figures.maps {
            ConstGauge::new(entries as i64).encode(family.encode_family(&[("map", map)])?)?;
        }
        let help = "From when a batch is taken from where it comes until all is done with it, a packet";
        latencies(
            encoder.encode_descriptor(
                "millstream_latency",
                help,
                Some(&Unit::Seconds),
                MetricType::Histogram,
            )?,
            &self.board,
        )
    }
}

/// Latencies of sampled packets, as a histogram.
fn latencies(mut encoder: MetricEncoder<'_>, board: &WorkerStats) -> fmt::Result {
    let latency = board.latency();
    let seconds = |ns: u64| ns as f64 / 1e9;
    let (mut sum, mut buckets) = (0.0, Vec::new());
    for (most, packets, ns) in latency.magnitudes() {
        sum += seconds(ns);
        buckets.push((seconds(most), packets));
    }
    // The last bucket takes everything that is longer.
    if let Some(last) = buckets.last_mut() {
        last.0 = f64::MAX;
    }
    encoder.encode_histogram::<NoLabelSet>(sum, latency.packets(), &buckets, None)
}
