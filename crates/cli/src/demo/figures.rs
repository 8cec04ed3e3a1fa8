//! Results of the demo, beside their bars.

use std::fmt::Write;

use millstream_lab::environment::Environment;
use millstream_lab::{FrameCounts, StalenessCounts};
use millstream_programs::router::RouterConfig;
use millstream_programs::traffic::WeightedFlows;
use millstream_specialize::SpeedComparison;
use millstream_specialize::report::{CompileReason, SessionReport};
use serde::Serialize;

/// Packets during route updates.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct RouteUpdateStats {
    pub(super) updates: u64,
    pub(super) packets: u64,
    /// Packets handled by specialised code.
    pub(super) specialised: u64,
}

/// All results.
#[derive(Serialize)]
pub(super) struct DemoReport {
    schema: u32,
    event: &'static str,
    environment: Environment,
    workload: String,
    pub(super) before: Option<SpeedComparison>,
    /// After other flows have become hot.
    pub(super) after: Option<SpeedComparison>,
    /// Medians of the session's measurements, in packets per second: original, specialised.
    live_pps: (f64, f64),
    updates_per_second: u64,
    pub(super) paced_updates: RouteUpdateStats,
    /// Milliseconds from each write to the first packet that finds it in specialised code.
    latencies_ms: Vec<f64>,
    /// Updates in the last phase, as fast as possible.
    pub(super) burst_updates: u64,
    /// Frames that came back after updates.
    pub(super) peer: StalenessCounts,
    sent: u64,
    lost: u64,
}

/// Bar for the ratio of program times, variant to original.
const PROGRAM_TIME: f64 = 1.0 / 3.0;
/// Bar for the gain in packets per second on the rig.
const PACKET_RATE: f64 = 1.4;

/// Result of comparing a figure with its bar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ThresholdVerdict {
    Met,
    Missed,
    /// The interval contains the bar.
    Disturbed,
    NotMeasured,
}

impl ThresholdVerdict {
    /// Verdict on a ratio in this interval, which may be at most `bar`.
    fn at_most(interval: [f64; 2], bar: f64) -> ThresholdVerdict {
        match interval {
            [_, high] if high <= bar => ThresholdVerdict::Met,
            [low, _] if low > bar => ThresholdVerdict::Missed,
            _ => ThresholdVerdict::Disturbed,
        }
    }

    /// Verdict on a count, if there is one.
    fn counted(met: Option<bool>) -> ThresholdVerdict {
        match met {
            Some(true) => ThresholdVerdict::Met,
            Some(false) => ThresholdVerdict::Missed,
            None => ThresholdVerdict::NotMeasured,
        }
    }

    fn text(self) -> &'static str {
        match self {
            ThresholdVerdict::Met => "met",
            ThresholdVerdict::Missed => "MISSED",
            ThresholdVerdict::Disturbed => "undecided",
            ThresholdVerdict::NotMeasured => "unknown",
        }
    }
}

/// Verdicts for the two bars of a measurement: program time, packets per second.
fn verdicts(speed: &SpeedComparison) -> [ThresholdVerdict; 2] {
    [
        ThresholdVerdict::at_most(speed.program_time.interval, PROGRAM_TIME),
        ThresholdVerdict::at_most(speed.plain.interval, 1.0 / PACKET_RATE),
    ]
}

/// Returns true if a measurement shows on which side of its bars the figures are.
pub(super) fn is_decided(speed: &SpeedComparison) -> bool {
    !verdicts(speed).contains(&ThresholdVerdict::Disturbed)
}

/// One line of the table.
struct ThresholdRow {
    what: String,
    figure: String,
    bar: &'static str,
    verdict: ThresholdVerdict,
}

impl DemoReport {
    pub(super) fn new(updates_per_second: u64) -> Self {
        DemoReport {
            schema: 2,
            event: "conclusion",
            environment: Environment::now(),
            workload: String::new(),
            before: None,
            after: None,
            live_pps: (f64::NAN, f64::NAN),
            updates_per_second,
            paced_updates: RouteUpdateStats::default(),
            latencies_ms: Vec::new(),
            burst_updates: 0,
            peer: StalenessCounts::default(),
            sent: 0,
            lost: 0,
        }
    }

    pub(super) fn workload(&mut self, flows: &WeightedFlows, config: &RouterConfig) {
        self.workload = format!(
            "router, {} routes, {} flows of high locality (Pareto, alpha 1, beta 1), hash {:016x}, seeds 1, 2 and 77",
            config.routes.len(),
            flows.packets.len(),
            flows.hash()
        );
    }

    pub(super) fn add_counts(&mut self, counts: FrameCounts) {
        self.sent += counts.sent;
        self.lost += counts.lost();
    }

    /// Adds the rates that the session itself measured.
    pub(super) fn live_rates(&mut self, told: &[SessionReport]) {
        let median_of = |specialised: bool| {
            let rates = told.iter().filter_map(|r| match r {
                SessionReport::Status { pps, generation, .. } if (*generation > 0) == specialised => {
                    Some(*pps)
                }
                _ => None,
            });
            median(rates.collect())
        };
        self.live_pps = (median_of(false), median_of(true));
    }

    /// Adds the latencies from writes to first packets.
    pub(super) fn latencies(&mut self, told: &[SessionReport]) {
        let latency = |r: &SessionReport| match r {
            SessionReport::Specialised { reason: CompileReason::Write, latency_us, .. }
            | SessionReport::Refreshed { write_ns: Some(_), latency_us, .. } => *latency_us,
            _ => None,
        };
        self.latencies_ms = told.iter().filter_map(latency).map(|us| us as f64 / 1000.0).collect();
    }

    /// Returns true if every packet was handled correctly, and the counts are complete.
    pub(super) fn right(&self) -> bool {
        self.peer.stale == 0 && self.lost == 0 && self.counted()
    }

    fn counted(&self) -> bool {
        self.peer.fresh > 0 && self.peer.unstamped == 0
    }

    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    fn bars(&self) -> Vec<ThresholdRow> {
        let time = |speed: &Option<SpeedComparison>| {
            let of = |s: &SpeedComparison| {
                let [low, high] = s.program_time.interval;
                format!("{:.3} ({low:.3} to {high:.3})", s.program_time.ratio)
            };
            speed.as_ref().map_or_else(none, of)
        };
        let rate = |speed: &Option<SpeedComparison>| {
            let of = |s: &SpeedComparison| {
                let [low, high] = s.plain.interval;
                format!("{:.2} ({:.2} to {:.2})", 1.0 / s.plain.ratio, 1.0 / high, 1.0 / low)
            };
            speed.as_ref().map_or_else(none, of)
        };
        let verdict = |speed: &Option<SpeedComparison>, which: usize| {
            speed.as_ref().map_or(ThresholdVerdict::NotMeasured, |s| verdicts(s)[which])
        };
        let share = self.paced_updates.specialised as f64 / self.paced_updates.packets.max(1) as f64;
        let latency = median(self.latencies_ms.clone());
        let bar = |what, figure, bar, verdict| ThresholdRow { what, figure, bar, verdict };
        let later = |what: &str| format!("{what}, then");
        let (time_bar, rate_bar) = ("at most 0.333", "at least 1.40");
        let (program, packets) = ("program time / original's", "packets/s / original's");
        vec![
            bar(program.to_owned(), time(&self.before), time_bar, verdict(&self.before, 0)),
            bar(later(program), time(&self.after), time_bar, verdict(&self.after, 0)),
            bar(packets.to_owned(), rate(&self.before), rate_bar, verdict(&self.before, 1)),
            bar(later(packets), rate(&self.after), rate_bar, verdict(&self.after, 1)),
            bar(
                "write to first packet, median".to_owned(),
                format!("{latency:.1} ms ({} writes)", self.latencies_ms.len()),
                "at most 20 ms",
                ThresholdVerdict::counted((!self.latencies_ms.is_empty()).then_some(latency <= 20.0)),
            ),
            bar(
                format!("in specialised code, {} writes/s", self.updates_per_second),
                format!("{:.2} %", 100.0 * share),
                "at least 90 %",
                ThresholdVerdict::counted((self.paced_updates.packets > 0).then_some(share >= 0.9)),
            ),
            bar(
                format!("stale packets, {} writes", self.paced_updates.updates + self.burst_updates),
                format!("{} of {}", self.peer.stale, self.peer.stale + self.peer.fresh),
                "0",
                ThresholdVerdict::counted(self.counted().then_some(self.peer.stale == 0)),
            ),
            bar(
                "lost packets".to_owned(),
                format!("{} of {}", self.lost, self.sent),
                "0",
                ThresholdVerdict::counted(Some(self.lost == 0)),
            ),
        ]
    }

    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = writeln!(out, "{:<32} {:<24} {:<14}", "", "figure (99 % interval)", "bar");
        let bars = self.bars();
        for ThresholdRow { what, figure, bar, verdict } in &bars {
            let _ = writeln!(out, "{what:<32} {figure:<24} {bar:<14} {}", verdict.text());
        }
        if bars.iter().any(|bar| bar.verdict == ThresholdVerdict::Disturbed) {
            let _ = writeln!(
                out,
                "\nundecided: the interval holds the bar; the machine is too disturbed to tell. What\n\
                 else runs on it? Try again when it is idle, or with a longer --measure."
            );
        }
        let _ = writeln!(out);
        for (when, speed) in [("at first", &self.before), ("at last", &self.after)] {
            if let Some(s) = speed {
                let (original, specialised) = (s.original_ns - s.empty_ns, s.specialised_ns - s.empty_ns);
                let _ = writeln!(
                    out,
                    "program time {when}: {original:.1} ns, specialised {specialised:.1} ns; {:.1} and {:.1} ns with\n\
                     the rig's {:.1} ns ({} generations, {:.0} % of the runs disturbed)",
                    s.original_ns,
                    s.specialised_ns,
                    s.empty_ns,
                    s.generations,
                    100.0 * s.disturbed
                );
            }
        }
        let (before, after) = self.live_pps;
        let _ = writeln!(
            out,
            "while it ran: {:.3} M packets per second, specialised {:.3} M",
            before / 1e6,
            after / 1e6
        );
        out
    }
}

fn none() -> String {
    "no variant was active".to_owned()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_inside_the_interval_is_neither_met_nor_missed() {
        assert_eq!(ThresholdVerdict::at_most([0.30, 0.32], PROGRAM_TIME), ThresholdVerdict::Met);
        assert_eq!(ThresholdVerdict::at_most([0.34, 0.36], PROGRAM_TIME), ThresholdVerdict::Missed);
        assert_eq!(ThresholdVerdict::at_most([0.30, 0.36], PROGRAM_TIME), ThresholdVerdict::Disturbed);
        assert_eq!(ThresholdVerdict::counted(None), ThresholdVerdict::NotMeasured);
    }
}
