//! What the demo showed, beside what it should.

use std::fmt::Write;

use millstream_lab::environment::Environment;
use millstream_lab::{Counts, Staleness};
use millstream_programs::router::Config;
use millstream_programs::traffic::Flows;
use millstream_specialize::Speed;
use millstream_specialize::report::{Reason, Report};
use serde::Serialize;

/// What became of packets while routes were updated.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Updates {
    pub(super) updates: u64,
    pub(super) packets: u64,
    /// Of these, those that specialised code took.
    pub(super) specialised: u64,
}

/// All of it.
#[derive(Serialize)]
pub(super) struct Figures {
    schema: u32,
    event: &'static str,
    environment: Environment,
    workload: String,
    pub(super) before: Option<Speed>,
    /// After other flows have become hot.
    pub(super) after: Option<Speed>,
    /// Medians of what the session saw, packets a second: original, specialised.
    live_pps: (f64, f64),
    updates_per_second: u64,
    pub(super) few: Updates,
    /// Milliseconds from each write to the first packet that finds it in specialised code.
    latencies_ms: Vec<f64>,
    /// Updates as fast as they go.
    pub(super) many: u64,
    /// What came back after updates.
    pub(super) far_end: Staleness,
    sent: u64,
    lost: u64,
}

/// One line of the table.
struct Bar {
    what: &'static str,
    figure: String,
    bar: &'static str,
    met: Option<bool>,
}

impl Figures {
    pub(super) fn new(updates_per_second: u64) -> Self {
        Figures {
            schema: 1,
            event: "conclusion",
            environment: Environment::now(),
            workload: String::new(),
            before: None,
            after: None,
            live_pps: (f64::NAN, f64::NAN),
            updates_per_second,
            few: Updates::default(),
            latencies_ms: Vec::new(),
            many: 0,
            far_end: Staleness::default(),
            sent: 0,
            lost: 0,
        }
    }

    pub(super) fn workload(&mut self, flows: &Flows, config: &Config) {
        self.workload = format!(
            "router, {} routes, {} flows of high locality (Pareto, alpha 1, beta 1), hash {:016x}, seeds 1, 2 and 77",
            config.routes.len(),
            flows.packets.len(),
            flows.hash()
        );
    }

    pub(super) fn add_counts(&mut self, counts: Counts) {
        self.sent += counts.sent;
        self.lost += counts.lost();
    }

    /// The rates that the session itself saw.
    pub(super) fn live_rates(&mut self, told: &[Report]) {
        let median_of = |specialised: bool| {
            let rates = told.iter().filter_map(|r| match r {
                Report::Status { pps, generation, .. } if (*generation > 0) == specialised => Some(*pps),
                _ => None,
            });
            median(rates.collect())
        };
        self.live_pps = (median_of(false), median_of(true));
    }

    /// From writes to first packets.
    pub(super) fn latencies(&mut self, told: &[Report]) {
        let latency = |r: &Report| match r {
            Report::Specialised { reason: Reason::Write, latency_us, .. }
            | Report::Refreshed { write_ns: Some(_), latency_us, .. } => *latency_us,
            _ => None,
        };
        self.latencies_ms = told.iter().filter_map(latency).map(|us| us as f64 / 1000.0).collect();
    }

    /// Whether every packet was handled rightly, and that was counted.
    pub(super) fn right(&self) -> bool {
        self.far_end.stale == 0 && self.lost == 0 && self.counted()
    }

    fn counted(&self) -> bool {
        self.far_end.fresh > 0 && self.far_end.unstamped == 0
    }

    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    fn bars(&self) -> Vec<Bar> {
        let time = |speed: &Option<Speed>| {
            let of = |s: &Speed| {
                let [low, high] = s.program_time.interval;
                format!("{:.3} of the original's ({low:.3} to {high:.3})", s.program_time.ratio)
            };
            speed.as_ref().map_or_else(none, of)
        };
        let rate = |speed: &Option<Speed>| {
            speed.as_ref().map_or_else(none, |s| format!("{:.2} x", 1.0 / s.plain.ratio))
        };
        let share = self.few.specialised as f64 / self.few.packets.max(1) as f64;
        let latency = median(self.latencies_ms.clone());
        let bar = |what, figure, bar, met| Bar { what, figure, bar, met };
        let third = |s: &Option<Speed>| s.as_ref().map(|s| s.program_time.ratio <= 1.0 / 3.0);
        let faster = |s: &Option<Speed>| s.as_ref().map(|s| 1.0 / s.plain.ratio >= 1.4);
        vec![
            bar("program time", time(&self.before), "at most 0.333", third(&self.before)),
            bar("  after other flows became hot", time(&self.after), "at most 0.333", third(&self.after)),
            bar("packets a second on the rig", rate(&self.before), "at least 1.40 x", faster(&self.before)),
            bar("  after other flows became hot", rate(&self.after), "at least 1.40 x", faster(&self.after)),
            bar(
                "from a write to the first packet",
                format!("{latency:.1} ms at the median of {}", self.latencies_ms.len()),
                "at most 20 ms",
                (!self.latencies_ms.is_empty()).then_some(latency <= 20.0),
            ),
            bar(
                "packets in specialised code",
                format!("{:.2} % at {} updates a second", 100.0 * share, self.updates_per_second),
                "at least 90 %",
                (self.few.packets > 0).then_some(share >= 0.9),
            ),
            bar(
                "stale packets",
                format!(
                    "{} of {} after {} updates",
                    self.far_end.stale,
                    self.far_end.stale + self.far_end.fresh,
                    self.few.updates + self.many
                ),
                "0",
                self.counted().then_some(self.far_end.stale == 0),
            ),
            bar("lost packets", format!("{} of {}", self.lost, self.sent), "0", Some(self.lost == 0)),
        ]
    }

    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = writeln!(out, "{:<34}{:<44}{:<18}", "", "figure", "bar");
        for Bar { what, figure, bar, met } in self.bars() {
            let met = match met {
                Some(true) => "met",
                Some(false) => "MISSED",
                None => "NOT MEASURED",
            };
            let _ = writeln!(out, "{what:<34}{figure:<44}{bar:<18}{met}");
        }
        let _ = writeln!(out);
        for (when, speed) in [("at first", &self.before), ("at last", &self.after)] {
            if let Some(s) = speed {
                let (original, specialised) = (s.original_ns - s.empty_ns, s.specialised_ns - s.empty_ns);
                let _ = writeln!(
                    out,
                    "program time {when}: {original:.1} ns, specialised {specialised:.1} ns; with the rig's {:.1} ns: \
                     {:.1} and {:.1} ns ({} generations, {:.0} % of the runs disturbed)",
                    s.empty_ns,
                    s.original_ns,
                    s.specialised_ns,
                    s.generations,
                    100.0 * s.disturbed
                );
            }
        }
        let (before, after) = self.live_pps;
        let _ = writeln!(
            out,
            "while it ran: {:.3} M packets a second, specialised {:.3} M",
            before / 1e6,
            after / 1e6
        );
        out
    }
}

fn none() -> String {
    "no variant was at work".to_owned()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
