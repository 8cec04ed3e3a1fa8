//! Metrics of the daemon, for Prometheus ([`crate::metrics`] answers it).
//!
//! What is counted elsewhere is read at each scrape; durations are put into histograms when they are told.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_specialize::Report;
use millstream_specialize::live::details::Runs;
use millstream_specialize::report::GuardState;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Unit;

use super::Daemon;
use super::protocol::{ProgramStatus, State, Status};
use super::slot::Slot;

/// How long things took.
#[derive(Debug)]
pub(super) struct Times {
    compile: Histogram,
    load: Histogram,
    swap: Histogram,
    answer: Histogram,
}

impl Default for Times {
    fn default() -> Times {
        // From 50 us to 1.6 s.
        let new = || Histogram::new(exponential_buckets(50e-6, 2.0, 16));
        Times { compile: new(), load: new(), swap: new(), answer: new() }
    }
}

impl Times {
    /// Takes up what a report says of times.
    pub(super) fn note(&self, report: &Report) {
        let seconds = |us: u64| us as f64 / 1e6;
        let latency = match report {
            Report::Specialised { compile_us, load_us, swap_us, latency_us, .. } => {
                // What stood by was made before.
                if (*compile_us, *load_us) != (0, 0) {
                    self.compile.observe(seconds(*compile_us));
                    self.load.observe(seconds(*load_us));
                }
                self.swap.observe(seconds(*swap_us));
                *latency_us
            }
            Report::Confirmed { latency_us, .. } => Some(*latency_us),
            Report::Refreshed { latency_us, .. } => *latency_us,
            _ => None,
        };
        if let Some(us) = latency {
            self.answer.observe(seconds(us));
        }
    }
}

/// Reads everything when it is asked.
#[derive(Debug)]
struct Reader(Arc<Daemon>);

impl Collector for Reader {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let (status, slots) = (self.0.status(), self.0.slots());
        of_daemon(&mut encoder, &status)?;
        for metric in METRICS {
            metric.encode(&mut encoder, &status.programs)?;
        }
        slots_of(&mut encoder, &status.programs)?;
        for (name, help, of) in HISTOGRAMS {
            let mut family = encoder.encode_descriptor(
                name,
                help,
                Some(&Unit::Seconds),
                prometheus_client::metrics::MetricType::Histogram,
            )?;
            for slot in &slots {
                of(slot).encode(family.encode_family(&[("program", slot.entry.name.as_str())])?)?;
            }
        }
        Ok(())
    }
}

type OfSlot = fn(&Slot) -> &Histogram;

const HISTOGRAMS: &[(&str, &str, OfSlot)] = &[
    ("millstream_compile", "Reading the maps and making the code of a generation", |s| &s.times.compile),
    ("millstream_load", "Verification and compilation of a generation by the kernel", |s| &s.times.load),
    (
        "millstream_install",
        "From one program on the hook to the next, until no packet is left in the first",
        |s| &s.times.swap,
    ),
    ("millstream_write_answer", "From a write to a watched map to specialised code again", |s| {
        &s.times.answer
    }),
];

/// A figure of each program's.
struct Metric {
    name: &'static str,
    help: &'static str,
    of: Figure,
}

/// What it is, and how it is read; `None` where it is not known.
enum Figure {
    Count(fn(&ProgramStatus) -> Option<u64>),
    Level(fn(&ProgramStatus) -> Option<f64>),
}

impl Metric {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>, programs: &[ProgramStatus]) -> std::fmt::Result {
        use prometheus_client::metrics::MetricType::{Counter, Gauge};
        let kind = if matches!(self.of, Figure::Count(_)) { Counter } else { Gauge };
        let mut family = encoder.encode_descriptor(self.name, self.help, None, kind)?;
        for program in programs {
            let labels = [("program", program.name.as_str())];
            match self.of {
                Figure::Count(of) => {
                    let Some(n) = of(program) else { continue };
                    ConstCounter::new(n).encode(family.encode_family(&labels)?)?;
                }
                Figure::Level(of) => {
                    let Some(n) = of(program) else { continue };
                    ConstGauge::new(n).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

const fn count(name: &'static str, help: &'static str, of: fn(&ProgramStatus) -> Option<u64>) -> Metric {
    Metric { name, help, of: Figure::Count(of) }
}

const fn level(name: &'static str, help: &'static str, of: fn(&ProgramStatus) -> Option<f64>) -> Metric {
    Metric { name, help, of: Figure::Level(of) }
}

const METRICS: &[Metric] = &[
    level("millstream_up", "1 while the program is kept fast", |p| {
        Some(f64::from(u8::from(p.state == State::Running)))
    }),
    level("millstream_interfaces", "Interfaces that the program is on", |p| Some(p.interfaces.len() as f64)),
    level("millstream_generation", "The generation at work; 0: the original", |p| {
        Some(f64::from(p.generation))
    }),
    level("millstream_guard_valid", "1 while specialised code may run", |p| {
        p.guard.map(|g| f64::from(u8::from(matches!(g, GuardState::Valid | GuardState::Behind))))
    }),
    count("millstream_guard_revocations", "Writes that turned specialised code off", |p| {
        p.guard.map(|_| p.writes)
    }),
    count("millstream_packets", "Packets received on the interfaces", |p| p.guard.map(|_| p.packets)),
    count("millstream_packets_specialised", "Packets that specialised code took", |p| p.specialised),
    level("millstream_original_nanoseconds", "Time a packet of the original, when last measured", |p| {
        p.before_ns
    }),
    level("millstream_current_nanoseconds", "Time a packet of what runs, when last measured", |p| p.now_ns),
    level("millstream_gain_ratio", "Part of the original's time that is saved", |p| {
        p.before_ns.zip(p.now_ns).filter(|(before, _)| *before > 0.0).map(|(before, now)| 1.0 - now / before)
    }),
    count("millstream_installs", "Generations put to work", |p| Some(p.counts.installs)),
    count("millstream_withdrawals", "Generations taken back", |p| Some(p.counts.withdrawals)),
    count("millstream_rollbacks", "Rollbacks that were asked for", |p| Some(p.counts.rollbacks)),
    count("millstream_confirmations", "Writes that needed no new code", |p| Some(p.counts.confirmations)),
    count("millstream_refreshes", "Writes that needed new twins only", |p| Some(p.counts.refreshes)),
    count("millstream_dropped", "Generations that could not be made", |p| Some(p.counts.dropped)),
    count("millstream_failures", "Sessions that failed", |p| Some(p.counts.failures)),
];

/// Slots of program arrays, by what is called in the place of the program in them.
fn slots_of(encoder: &mut DescriptorEncoder<'_>, programs: &[ProgramStatus]) -> std::fmt::Result {
    let gauge = prometheus_client::metrics::MetricType::Gauge;
    let help = "Slots of program arrays, by what is called in the place of the program in them";
    let mut family = encoder.encode_descriptor("millstream_slots", help, None, gauge)?;
    for program in programs {
        let mut counts: BTreeMap<Runs, i64> = BTreeMap::new();
        program.chain.iter().for_each(|slot| *counts.entry(slot.runs).or_default() += 1);
        for (runs, n) in counts {
            let labels = [("program", program.name.clone()), ("runs", runs.to_string())];
            ConstGauge::new(n).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn of_daemon(encoder: &mut DescriptorEncoder<'_>, status: &Status) -> std::fmt::Result {
    let cpu = ConstCounter::new(status.cpu_s);
    let help = "User and system time of the daemon";
    cpu.encode(encoder.encode_descriptor("process_cpu", help, Some(&Unit::Seconds), cpu.metric_type())?)?;
    let memory = ConstGauge::new(status.rss_bytes as i64);
    let help = "Resident memory of the daemon";
    let unit = Some(&Unit::Bytes);
    memory.encode(encoder.encode_descriptor("process_resident_memory", help, unit, memory.metric_type())?)
}

/// Everything as text.
pub(super) fn text(daemon: &Arc<Daemon>) -> String {
    crate::metrics::text(Box::new(Reader(Arc::clone(daemon))))
}

#[cfg(test)]
mod tests {
    use millstream_specialize::live::details::SlotDetails;

    use super::*;

    #[test]
    fn slots_are_counted_by_what_is_called() {
        #[derive(Debug)]
        struct Programs(Vec<ProgramStatus>);
        impl Collector for Programs {
            fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
                slots_of(&mut encoder, &self.0)
            }
        }
        let slot = |slot, runs| SlotDetails { array: "stages".into(), slot, program: "route".into(), runs };
        let chain = vec![slot(0, Runs::Variant), slot(1, Runs::Original), slot(4, Runs::Variant)];
        let program = ProgramStatus { name: "edge".into(), chain, ..ProgramStatus::default() };
        let text = crate::metrics::text(Box::new(Programs(vec![program, ProgramStatus::default()])));
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("millstream_slots{")).collect();
        let of = |runs, n| format!("millstream_slots{{program=\"edge\",runs=\"{runs}\"}} {n}");
        assert_eq!(lines, [of("specialised", 2), of("original", 1)]);
    }
}
