//! Metrics of the daemon, for Prometheus ([`millstream_service::metrics`] serves them).
//!
//! Counters kept elsewhere are read at each scrape; durations are added to histograms when they are reported.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_service::metrics as metrics_server;
use millstream_specialize::live::details::SlotTarget;
use millstream_specialize::report::GuardState;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Unit;

use super::Daemon;
use super::protocol::{DaemonStatus, ProgramState, ProgramStatus};
use super::slot::ManagedProgram;

/// Reads all figures on a scrape.
#[derive(Debug)]
pub(super) struct DaemonCollector(pub(super) Arc<Daemon>);

impl Collector for DaemonCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let (status, slots) = (self.0.status(), self.0.slots());
        of_daemon(&mut encoder, &status)?;
        for metric in METRICS {
            metric.encode(&mut encoder, &status.programs)?;
        }
        interfaces_of(&mut encoder, &status.programs)?;
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

type HistogramGetter = fn(&ManagedProgram) -> &Histogram;

const HISTOGRAMS: &[(&str, &str, HistogramGetter)] = &[
    ("millstream_compile", "Time to read the maps and compile a generation", |s| &s.times.compile),
    ("millstream_load", "Time in which the kernel verifies and compiles a generation", |s| &s.times.load),
    ("millstream_install", "Time of a swap, until no packet is left in the previous program", |s| {
        &s.times.swap
    }),
    (
        "millstream_write_response",
        "Time from a write to a watched map until specialised code runs again",
        |s| &s.times.answer,
    ),
];

/// A figure of each program.
struct ProgramMetric {
    name: &'static str,
    help: &'static str,
    of: MetricGetter,
}

/// Type of a metric, and its reader; `None` if the value is not known.
enum MetricGetter {
    Count(fn(&ProgramStatus) -> Option<u64>),
    Level(fn(&ProgramStatus) -> Option<f64>),
    /// In seconds, from nanoseconds.
    Time(fn(&ProgramStatus) -> Option<f64>),
}

impl ProgramMetric {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>, programs: &[ProgramStatus]) -> std::fmt::Result {
        use prometheus_client::metrics::MetricType::{Counter, Gauge};
        let kind = if matches!(self.of, MetricGetter::Count(_)) { Counter } else { Gauge };
        let unit = matches!(self.of, MetricGetter::Time(_)).then_some(&Unit::Seconds);
        let mut family = encoder.encode_descriptor(self.name, self.help, unit, kind)?;
        for program in programs {
            let labels = [("program", program.name.as_str())];
            match self.of {
                MetricGetter::Count(of) => {
                    let Some(n) = of(program) else { continue };
                    ConstCounter::new(n).encode(family.encode_family(&labels)?)?;
                }
                MetricGetter::Level(of) => {
                    let Some(n) = of(program) else { continue };
                    ConstGauge::new(n).encode(family.encode_family(&labels)?)?;
                }
                MetricGetter::Time(of) => {
                    let Some(ns) = of(program) else { continue };
                    ConstGauge::new(ns / 1e9).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

const fn count(
    name: &'static str,
    help: &'static str,
    of: fn(&ProgramStatus) -> Option<u64>,
) -> ProgramMetric {
    ProgramMetric { name, help, of: MetricGetter::Count(of) }
}

const fn level(
    name: &'static str,
    help: &'static str,
    of: fn(&ProgramStatus) -> Option<f64>,
) -> ProgramMetric {
    ProgramMetric { name, help, of: MetricGetter::Level(of) }
}

const fn time(
    name: &'static str,
    help: &'static str,
    of: fn(&ProgramStatus) -> Option<f64>,
) -> ProgramMetric {
    ProgramMetric { name, help, of: MetricGetter::Time(of) }
}

const METRICS: &[ProgramMetric] = &[
    level("millstream_up", "1 in state running, else 0", |p| {
        Some(f64::from(u8::from(p.state == ProgramState::Running)))
    }),
    level("millstream_interfaces", "Interfaces that the program is attached to", |p| {
        Some(p.attachment.interfaces.len() as f64)
    }),
    level("millstream_generation", "Number of the active generation; 0: the original program", |p| {
        Some(f64::from(p.generation))
    }),
    level("millstream_guard_valid", "1 while the guard lets specialised code run, else 0", |p| {
        p.guard.map(|g| f64::from(u8::from(matches!(g, GuardState::Valid | GuardState::Behind))))
    }),
    count("millstream_guard_revocations", "Writes that invalidated specialised code", |p| {
        p.guard.map(|_| p.writes)
    }),
    count("millstream_packets_specialised", "Packets that specialised code handled", |p| {
        p.traffic.specialised
    }),
    time("millstream_original_packet", "Time per packet of the original program, when last measured", |p| {
        p.times.original_ns
    }),
    time("millstream_current_packet", "Time per packet of the attached program, when last measured", |p| {
        p.times.current_ns
    }),
    level("millstream_gain_ratio", "Fraction of the original program's time that is saved", |p| {
        p.times
            .original_ns
            .zip(p.times.current_ns)
            .filter(|(before, _)| *before > 0.0)
            .map(|(before, now)| 1.0 - now / before)
    }),
    count("millstream_installs", "Generations installed", |p| Some(p.counts.installs)),
    count("millstream_withdrawals", "Generations withdrawn", |p| Some(p.counts.withdrawals)),
    count("millstream_rollbacks", "Rollbacks on request", |p| Some(p.counts.rollbacks)),
    count("millstream_confirmations", "Writes that needed no new code", |p| Some(p.counts.confirmations)),
    count("millstream_shadow_table_updates", "Writes that needed only an update of shadow tables", |p| {
        Some(p.counts.refreshes)
    }),
    count("millstream_dropped_generations", "Generations that were not made or not used", |p| {
        Some(p.counts.dropped)
    }),
    count("millstream_failures", "Sessions that failed", |p| Some(p.counts.failures)),
];

/// Slots of program arrays, by the kind of program that is called in their place.
fn slots_of(encoder: &mut DescriptorEncoder<'_>, programs: &[ProgramStatus]) -> std::fmt::Result {
    let gauge = prometheus_client::metrics::MetricType::Gauge;
    let help = "Filled slots of program arrays, by the program that is called: the label target";
    let mut family = encoder.encode_descriptor("millstream_program_array_slots", help, None, gauge)?;
    for program in programs {
        let mut counts: BTreeMap<SlotTarget, i64> = BTreeMap::new();
        program.chain.iter().for_each(|slot| *counts.entry(slot.runs).or_default() += 1);
        for (runs, n) in counts {
            let labels = [("program", program.name.clone()), ("target", runs.to_string())];
            ConstGauge::new(n).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// Interfaces, attached and awaited, and the packets of each.
fn interfaces_of(encoder: &mut DescriptorEncoder<'_>, programs: &[ProgramStatus]) -> std::fmt::Result {
    use prometheus_client::metrics::MetricType::{Counter, Gauge};
    let help = "1 while the program is attached to the interface, 0 while it waits for it";
    let mut family = encoder.encode_descriptor("millstream_interface_up", help, None, Gauge)?;
    for program in programs {
        let on = program
            .attachment
            .interfaces
            .iter()
            .map(|at| (&at.interface, at.mode.as_deref().unwrap_or_default(), 1));
        let missing = program.attachment.missing.iter().map(|name| (name, "", 0));
        for (interface, mode, up) in on.chain(missing) {
            let labels =
                [("program", program.name.as_str()), ("interface", interface.as_str()), ("mode", mode)];
            ConstGauge::<i64>::new(up).encode(family.encode_family(&labels)?)?;
        }
    }
    let help =
        "Packets received on the interface since the program was attached; for TC egress, packets sent";
    let mut family = encoder.encode_descriptor("millstream_packets", help, None, Counter)?;
    for program in programs.iter().filter(|program| program.guard.is_some()) {
        for (interface, packets) in &program.traffic.received {
            let labels = [("program", program.name.as_str()), ("interface", interface.as_str())];
            ConstCounter::new(*packets).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn of_daemon(encoder: &mut DescriptorEncoder<'_>, status: &DaemonStatus) -> std::fmt::Result {
    let cpu = ConstCounter::new(status.cpu_s);
    let help = "User and system time of the daemon";
    cpu.encode(encoder.encode_descriptor("process_cpu", help, Some(&Unit::Seconds), cpu.metric_type())?)?;
    let memory = ConstGauge::new(status.rss_bytes as i64);
    let help = "Resident memory of the daemon";
    let unit = Some(&Unit::Bytes);
    memory.encode(encoder.encode_descriptor("process_resident_memory", help, unit, memory.metric_type())?)
}

/// All metrics as text.
pub(super) fn text(daemon: &Arc<Daemon>) -> String {
    metrics_server::text(Box::new(DaemonCollector(Arc::clone(daemon))))
}

#[cfg(test)]
mod tests {
    use millstream_specialize::live::details::SlotDetails;

    use super::*;
    use crate::histograms::DurationHistograms;
    use crate::protocol::{AttachmentStatus, PacketTimes, TrafficStatus};

    /// All metrics of some programs.
    #[derive(Debug)]
    struct All(Vec<ProgramStatus>);

    impl Collector for All {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
            of_daemon(&mut encoder, &DaemonStatus::default())?;
            METRICS.iter().try_for_each(|metric| metric.encode(&mut encoder, &self.0))?;
            interfaces_of(&mut encoder, &self.0)?;
            slots_of(&mut encoder, &self.0)?;
            for (name, help, _) in HISTOGRAMS {
                let kind = prometheus_client::metrics::MetricType::Histogram;
                let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), kind)?;
                let times = DurationHistograms::default();
                times.swap.observe(0.001);
                times.swap.encode(family.encode_family(&[("program", "edge")])?)?;
            }
            Ok(())
        }
    }

    fn edge() -> ProgramStatus {
        use millstream_specialize::report::AttachedInterface;
        let at = |interface: &str| AttachedInterface {
            ifindex: 2,
            interface: interface.into(),
            mode: Some("native".into()),
        };
        ProgramStatus {
            name: "edge".into(),
            guard: Some(GuardState::Valid),
            attachment: AttachmentStatus { interfaces: vec![at("eth0")], missing: vec!["eth1".into()] },
            traffic: TrafficStatus {
                received: vec![("eth0".into(), 7), ("eth1".into(), 3)],
                specialised: Some(5),
                ..TrafficStatus::default()
            },
            times: PacketTimes { original_ns: Some(150.0), current_ns: Some(60.0) },
            ..ProgramStatus::default()
        }
    }

    #[test]
    fn metrics_are_in_base_units_and_packets_are_counted_by_interface() {
        let text = metrics_server::text(Box::new(All(vec![edge()])));
        assert_eq!(metrics_server::faults(&text), [""; 0], "{text}");
        for line in [
            "millstream_interface_up{program=\"edge\",interface=\"eth0\",mode=\"native\"} 1",
            "millstream_interface_up{program=\"edge\",interface=\"eth1\",mode=\"\"} 0",
            "millstream_packets_total{program=\"edge\",interface=\"eth0\"} 7",
            "millstream_packets_total{program=\"edge\",interface=\"eth1\"} 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        let name = "millstream_original_packet_seconds{program=\"edge\"} ";
        let seconds = text.lines().find_map(|line| line.strip_prefix(name)?.parse::<f64>().ok());
        assert!(seconds.is_some_and(|seconds| (seconds - 150e-9).abs() < 1e-15), "{text}");
    }

    #[test]
    fn promtool_finds_no_fault() {
        use std::io::Write as _;
        use std::process::{Command, Stdio};
        let text = metrics_server::text(Box::new(All(vec![edge(), ProgramStatus::default()])));
        let started = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut promtool) = started else { return errln!("skipped: there is no promtool") };
        promtool.stdin.take().expect("its input").write_all(text.as_bytes()).unwrap();
        let ended = promtool.wait_with_output().unwrap();
        assert!(ended.status.success(), "{}\n{text}", String::from_utf8_lossy(&ended.stderr));
    }

    fn monitoring(file: &str) -> std::path::PathBuf {
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/monitoring").join(file)
    }

    /// Names of metrics in a text: words with one of our prefixes.
    fn metric_names(text: &str) -> std::collections::BTreeSet<&str> {
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
        words.filter(|word| word.starts_with("millstream_") || word.starts_with("process_")).collect()
    }

    /// The dashboard and the rules would show nothing, without an error, if a metric had another name.
    #[test]
    fn dashboard_and_rules_name_metrics_that_exist() {
        let program = ProgramStatus {
            chain: vec![SlotDetails {
                array: "stages".into(),
                slot: 0,
                program: "route".into(),
                runs: SlotTarget::Variant,
            }],
            ..edge()
        };
        let text = metrics_server::text(Box::new(All(vec![program])));
        let there = metric_names(&text);
        for file in ["millstream-grafana.json", "millstream.rules.yml"] {
            let text = std::fs::read_to_string(monitoring(file)).expect("a file of the package");
            let named = metric_names(&text);
            assert!(named.len() > 8, "{file}: {named:?}");
            let unknown: Vec<_> = named.difference(&there).collect();
            assert!(unknown.is_empty(), "{file}: {unknown:?}");
        }
    }

    #[test]
    fn dashboard_panels_do_not_overlap() {
        let text = std::fs::read_to_string(monitoring("millstream-grafana.json")).expect("the dashboard");
        let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let mut taken = std::collections::HashSet::new();
        for panel in dashboard["panels"].as_array().expect("panels") {
            let at = |name: &str| panel["gridPos"][name].as_u64().expect("a number");
            assert!(at("x") + at("w") <= 24, "{}", panel["title"]);
            for y in at("y")..at("y") + at("h") {
                for x in at("x")..at("x") + at("w") {
                    assert!(taken.insert((x, y)), "{} lies on another panel", panel["title"]);
                }
            }
        }
    }

    #[test]
    fn promtool_accepts_the_rules() {
        let mut promtool = std::process::Command::new("promtool");
        let Ok(out) = promtool.args(["check", "rules"]).arg(monitoring("millstream.rules.yml")).output()
        else {
            return errln!("skipped: there is no promtool");
        };
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }

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
        let chain =
            vec![slot(0, SlotTarget::Variant), slot(1, SlotTarget::Original), slot(4, SlotTarget::Variant)];
        let program = ProgramStatus { name: "edge".into(), chain, ..ProgramStatus::default() };
        let text = metrics_server::text(Box::new(Programs(vec![program, ProgramStatus::default()])));
        let lines: Vec<&str> =
            text.lines().filter(|line| line.starts_with("millstream_program_array_slots{")).collect();
        let of =
            |runs, n| format!("millstream_program_array_slots{{program=\"edge\",target=\"{runs}\"}} {n}");
        assert_eq!(lines, [of("specialised", 2), of("original", 1)]);
    }
}
