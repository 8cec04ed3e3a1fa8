//! Results of a measurement, as text and JSON.

use std::fmt::Write as _;

use millstream_native::CompiledSchedule;
use serde::Serialize;

use super::BenchUserArgs;
use super::subject::PacedMeasurement;
use super::traffic::TrafficPattern;

/// A point: medians over rounds.
#[derive(Serialize)]
pub(super) struct BenchmarkRow {
    /// Rounds that it was measured in: fewer than asked for if the user interrupted the measurement.
    pub(super) rounds: usize,
    pub(super) batch: u32,
    /// Average per packet.
    pub(super) bytes: f64,
    pub(super) workers: u32,
    /// True for stages with a ring between, false for packets by flow.
    pub(super) pipelined: bool,
    /// Worker's processor time, copying in and out included.
    pub(super) ns_per_packet: f64,
    /// The same in each round: the points of a round are measured one after the other, so their ratios are
    /// free of what all of them suffer.
    pub(super) ns_rounds: Vec<f64>,
    pub(super) ns_min: f64,
    pub(super) ns_max: f64,
    /// Share of the program.
    pub(super) program_ns: f64,
    /// By wall clock, of all workers together.
    pub(super) mpps: f64,
    pub(super) mpps_per_cpu_second: f64,
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) dropped: u64,
}

/// A schedule's point.
#[derive(Serialize)]
pub(super) struct ScheduleRow {
    pub(super) schedule: CompiledSchedule,
    #[serde(flatten)]
    pub(super) row: BenchmarkRow,
}

/// Latency at an offered load.
#[derive(Serialize)]
pub(super) struct LatencyRow {
    load_percent: u32,
    offered_mpps: f64,
    achieved_mpps: f64,
    /// Share of arrivals that found the ring full.
    lost_share: f64,
    /// Share of the time in which the worker did not have its processor.
    off_cpu_share: f64,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    p999_ns: Option<u64>,
}

impl LatencyRow {
    pub(super) fn new(load_percent: u32, offered: f64, ran: &PacedMeasurement) -> LatencyRow {
        let PacedMeasurement { received, lost, time, left_out, latencies } = ran;
        LatencyRow {
            load_percent,
            offered_mpps: offered / 1e6,
            achieved_mpps: *received as f64 / time.as_secs_f64() / 1e6,
            lost_share: *lost as f64 / (received + lost).max(1) as f64,
            off_cpu_share: *left_out,
            p50_ns: latencies.percentile(0.5),
            p99_ns: latencies.percentile(0.99),
            p999_ns: latencies.percentile(0.999),
        }
    }
}

/// A part that was requested but not measured.
#[derive(Serialize)]
pub(super) struct SkippedPart {
    pub(super) part: &'static str,
    pub(super) reason: String,
}

/// All results.
#[derive(Serialize)]
pub(super) struct BenchUserReport {
    schema: u32,
    input: String,
    packets: String,
    seconds: f64,
    rounds: u32,
    /// True if the user ended the measurement before it was complete.
    pub(super) interrupted: bool,
    /// From the file to runnable code.
    compiled_ms: f64,
    pub(super) by_batch: Vec<BenchmarkRow>,
    pub(super) by_size: Vec<BenchmarkRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) by_schedule: Vec<ScheduleRow>,
    pub(super) by_workers: Vec<BenchmarkRow>,
    /// Throughput without pacing, of which loads are percentages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_mpps: Option<f64>,
    pub(super) by_load: Vec<LatencyRow>,
    /// Of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) instructions_per_packet: Option<f64>,
    pub(super) skipped: Vec<SkippedPart>,
}

impl BenchUserReport {
    pub(super) fn new(
        input: &str,
        traffic: &TrafficPattern,
        args: &BenchUserArgs,
        compiled_ms: f64,
    ) -> BenchUserReport {
        BenchUserReport {
            schema: 2,
            input: input.to_owned(),
            packets: traffic.description.clone(),
            seconds: args.seconds,
            rounds: args.rounds,
            interrupted: false,
            compiled_ms,
            by_batch: Vec::new(),
            by_size: Vec::new(),
            by_schedule: Vec::new(),
            by_workers: Vec::new(),
            max_mpps: None,
            by_load: Vec::new(),
            instructions_per_packet: None,
            skipped: Vec::new(),
        }
    }

    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = writeln!(out, "{} on {}", self.input, self.packets);
        let _ = writeln!(out, "compiled in {:.1} ms; medians of {} rounds", self.compiled_ms, self.rounds);
        if self.interrupted {
            let rows = [&self.by_batch, &self.by_size, &self.by_workers].into_iter().flatten();
            let rows = rows.chain(self.by_schedule.iter().map(|schedule| &schedule.row));
            let fewest = rows.map(|row| row.rounds).min().unwrap_or(0);
            let _ =
                writeln!(out, "interrupted: parts are missing, and some rows are medians of {fewest} rounds");
        }
        for (what, rows) in
            [("batch", &self.by_batch), ("size", &self.by_size), ("workers", &self.by_workers)]
        {
            if !rows.is_empty() {
                rows_text(&mut out, what, rows);
            }
        }
        if !self.by_schedule.is_empty() {
            let _ =
                writeln!(out, "\n{:>9} {:>19} {:>11}  schedule", "ns/packet", "(min to max)", "program ns");
        }
        for ScheduleRow { schedule, row } in &self.by_schedule {
            let range = format!("({:.2} to {:.2})", row.ns_min, row.ns_max);
            let _ = writeln!(
                out,
                "{:>9.2} {range:>19} {:>11.2}  {}",
                row.ns_per_packet, row.program_ns, schedule.schedule
            );
        }
        if let Some(most) = self.max_mpps {
            let _ = writeln!(
                out,
                "\nlatency by offered load, in percent of {most:.2} Mpps (the maximum); rates in Mpps"
            );
            let _ = writeln!(
                out,
                "{:>6} {:>9} {:>9} {:>8} {:>10} {:>10} {:>10} {:>8}",
                "load", "offered", "achieved", "lost", "p50", "p99", "p99.9", "off CPU"
            );
            for row in &self.by_load {
                let us = |ns: Option<u64>| {
                    ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.2} us", ns as f64 / 1e3))
                };
                let percent = |share: f64| format!("{:.2} %", 100.0 * share);
                let (lost, off_cpu) = (percent(row.lost_share), percent(row.off_cpu_share));
                let load = format!("{} %", row.load_percent);
                let _ = writeln!(
                    out,
                    "{load:>6} {:>9.2} {:>9.2} {lost:>8} {:>10} {:>10} {:>10} {off_cpu:>8}",
                    row.offered_mpps,
                    row.achieved_mpps,
                    us(row.p50_ns),
                    us(row.p99_ns),
                    us(row.p999_ns)
                );
            }
        }
        if let Some(instructions) = self.instructions_per_packet {
            let _ = writeln!(out, "\n{instructions:.1} instructions per packet in the program");
        }
        for SkippedPart { part, reason } in &self.skipped {
            let _ = writeln!(out, "\n{part} skipped: {reason}");
        }
        out
    }
}

fn rows_text(out: &mut String, what: &str, rows: &[BenchmarkRow]) {
    let _ = writeln!(
        out,
        "\n{what:>8} {:>10} {:>19} {:>11} {:>8} {:>11} {:>7}",
        "ns/packet", "(min to max)", "program ns", "Mpps", "Mpps/CPU-s", "sent"
    );
    for row in rows {
        let label = match what {
            "batch" => row.batch.to_string(),
            "size" => format!("{:.0} B", row.bytes),
            _ if row.pipelined => format!("{} stages", row.workers),
            _ => row.workers.to_string(),
        };
        let range = format!("({:.2} to {:.2})", row.ns_min, row.ns_max);
        let sent = format!("{:.1} %", 100.0 * row.sent as f64 / row.received.max(1) as f64);
        let _ = writeln!(
            out,
            "{label:>8} {:>10.2} {range:>19} {:>11.2} {:>8.2} {:>11.2} {sent:>7}",
            row.ns_per_packet, row.program_ns, row.mpps, row.mpps_per_cpu_second
        );
    }
}

/// Median of some numbers.
pub(super) fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = numbers.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}
