//! Telemetry of the daemon for a collector ([`millstream_service::otlp`] sends it): its metrics, and spans of
//! what its sessions do.
//!
//! Each generation of a program is a trace. Spans are made from the history's records, as they are recorded:
//! their ends are exact to the millisecond, their lengths to the microsecond.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use millstream_service::otlp::{
    AttributeValue, OtlpEndpoint, OtlpExporter, TelemetrySource, TelemetrySpan, TraceIds,
};
use millstream_specialize::SessionReport;
use millstream_specialize::report::VariantVerdict;
use prometheus_client::collector::Collector;
use serde::Serialize;

use super::Daemon;
use super::metrics::DaemonCollector;
use super::protocol::{HistoryEvent, HistoryRecord};

/// Arguments for a collector.
#[derive(Debug, clap::Args)]
pub(super) struct TelemetryArgs {
    /// Send metrics, and spans of each specialization, to the OpenTelemetry collector at this base URL, by OTLP
    /// over HTTP with protobuf; also in OTEL_EXPORTER_OTLP_ENDPOINT
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
}

impl TelemetryArgs {
    /// The collector, if there is one: that of the command line, of the configuration, or of the environment
    /// variables that OpenTelemetry specifies.
    ///
    /// # Errors
    /// A message that names what cannot be used.
    pub(super) fn endpoint(&self, configured: Option<&str>) -> Result<Option<OtlpEndpoint>, String> {
        let variable = |name| std::env::var(name).unwrap_or_default();
        let from_environment = variable("OTEL_EXPORTER_OTLP_ENDPOINT");
        let environment = Some(from_environment.as_str()).filter(|url| !url.is_empty());
        let Some(url) = self.otlp.as_deref().or(configured).or(environment) else { return Ok(None) };
        let endpoint = OtlpEndpoint::new(url, &variable("OTEL_EXPORTER_OTLP_HEADERS"))?;
        let name = Some(variable("OTEL_SERVICE_NAME")).filter(|name| !name.is_empty());
        endpoint.for_service(name.as_deref(), &variable("OTEL_RESOURCE_ATTRIBUTES")).map(Some)
    }
}

/// Starts to export the daemon's telemetry.
pub(super) fn start(
    endpoint: OtlpEndpoint,
    daemon: Arc<Daemon>,
    records: Receiver<HistoryRecord>,
) -> Result<OtlpExporter, String> {
    OtlpExporter::start(endpoint, DaemonTelemetry { daemon, records, ids: TraceIds::default() })
}

struct DaemonTelemetry {
    daemon: Arc<Daemon>,
    records: Receiver<HistoryRecord>,
    ids: TraceIds,
}

impl TelemetrySource for DaemonTelemetry {
    fn collector(&self) -> Box<dyn Collector> {
        Box::new(DaemonCollector(Arc::clone(&self.daemon)))
    }

    fn ended_spans(&mut self) -> Vec<TelemetrySpan> {
        self.records.try_iter().flat_map(|record| spans(&self.ids, &record)).collect()
    }
}

/// Spans that ended with a record.
fn spans(ids: &TraceIds, record: &HistoryRecord) -> Vec<TelemetrySpan> {
    let HistoryEvent::Report(report) = &record.what else { return Vec::new() };
    let end = record.time_ms.saturating_mul(1_000_000);
    let start = |us: u64| end.saturating_sub(us.saturating_mul(1000));
    let span = |generation: u32, name, us: u64| {
        let trace = ids.trace((&record.program, generation));
        TelemetrySpan::root(ids, trace, name, start(us), end)
            .with("millstream.program", AttributeValue::Text(record.program.clone()))
            .with("millstream.generation", AttributeValue::Int(generation.into()))
    };
    match report {
        SessionReport::Specialised {
            generation,
            reason,
            latency_us,
            compile_us,
            load_us,
            swap_us,
            entries,
            slots,
            ns,
            ..
        } => {
            let specialize = span(*generation, "specialize", compile_us + load_us + swap_us)
                .with("millstream.reason", word(reason))
                .with("millstream.entries", AttributeValue::Int((*entries).into()))
                .with("millstream.slots", AttributeValue::Int(i64::try_from(*slots).unwrap_or(i64::MAX)));
            let specialize = match ns {
                Some(ns) => specialize.with("millstream.ns_per_packet", AttributeValue::Float(*ns)),
                None => specialize,
            };
            let phases = [("compile", *compile_us), ("load", *load_us), ("install", *swap_us)];
            let mut all = phases_of(ids, &specialize, start(compile_us + load_us + swap_us), &phases);
            all.push(specialize);
            all.extend(latency_us.map(|us| span(*generation, "write_response", us)));
            all
        }
        SessionReport::StandsBy { generation, compile_us, load_us, slots } => {
            let prepare = span(*generation, "prepare_standby", compile_us + load_us)
                .with("millstream.slots", AttributeValue::Int(i64::try_from(*slots).unwrap_or(i64::MAX)));
            let phases = [("compile", *compile_us), ("load", *load_us)];
            let mut all = phases_of(ids, &prepare, start(compile_us + load_us), &phases);
            all.push(prepare);
            all
        }
        SessionReport::Judged { generation, outcome, packets, ratio, ms, reason, .. } => {
            let mut evaluate = span(*generation, "evaluate", ms.saturating_mul(1000))
                .with("millstream.outcome", word(outcome))
                .with("millstream.packets", AttributeValue::Int(i64::try_from(*packets).unwrap_or(i64::MAX)));
            if let Some((ratio, _)) = ratio {
                evaluate = evaluate.with("millstream.time_ratio", AttributeValue::Float(*ratio));
            }
            if *outcome == VariantVerdict::Different {
                evaluate = evaluate.failed(reason.clone().unwrap_or_default());
            }
            vec![evaluate]
        }
        SessionReport::Confirmed { generation, latency_us, .. } => {
            vec![span(*generation, "write_response", *latency_us)]
        }
        SessionReport::Refreshed { generation, latency_us: Some(us), .. } => {
            vec![span(*generation, "write_response", *us)]
        }
        SessionReport::Withdrawn { generation, reason } => {
            vec![
                span(*generation, "withdraw", 0)
                    .with("millstream.reason", AttributeValue::Text(reason.clone())),
            ]
        }
        SessionReport::Attached { .. }
        | SessionReport::Fused { .. }
        | SessionReport::Unfused { .. }
        | SessionReport::Moved { .. }
        | SessionReport::ProfileLoaded { .. }
        | SessionReport::ProfileFit { .. }
        | SessionReport::Refreshed { .. }
        | SessionReport::Shifted { .. }
        | SessionReport::Dropped { .. }
        | SessionReport::Status { .. }
        | SessionReport::Stopped { .. } => Vec::new(),
    }
}

/// A word, as the history has it in JSON.
fn word(value: &impl Serialize) -> AttributeValue {
    let word = serde_json::to_value(value).ok();
    AttributeValue::Text(word.as_ref().and_then(|word| word.as_str()).unwrap_or_default().to_owned())
}

/// Consecutive parts of a span, with their lengths in microseconds. Those that took no time are left out.
fn phases_of(
    ids: &TraceIds,
    parent: &TelemetrySpan,
    mut start_ns: u64,
    phases: &[(&'static str, u64)],
) -> Vec<TelemetrySpan> {
    let mut all = Vec::new();
    for &(name, us) in phases.iter().filter(|(_, us)| *us > 0) {
        let end_ns = start_ns.saturating_add(us.saturating_mul(1000));
        all.push(parent.child(ids, name, start_ns, end_ns));
        start_ns = end_ns;
    }
    all
}

#[cfg(test)]
mod tests {
    use millstream_specialize::report::CompileReason;

    use super::*;

    fn of(report: SessionReport) -> Vec<TelemetrySpan> {
        let what = HistoryEvent::Report(report);
        let record = HistoryRecord { number: 1, time_ms: 1_000, program: "edge".into(), what };
        spans(&TraceIds::default(), &record)
    }

    fn timed(spans: &[TelemetrySpan]) -> Vec<(&str, u64, u64)> {
        spans.iter().map(|span| (span.name(), span.start_ns() / 1000, span.end_ns() / 1000)).collect()
    }

    #[test]
    fn a_generation_is_a_span_with_its_phases() {
        let spans = of(SessionReport::Specialised {
            generation: 3,
            reason: CompileReason::Write,
            write_ns: Some(1),
            latency_us: Some(9_000),
            compile_us: 2_000,
            load_us: 3_000,
            swap_us: 500,
            entries: 6,
            slots: 7,
            ns: Some(8.5),
        });
        assert_eq!(
            timed(&spans),
            [
                ("compile", 994_500, 996_500),
                ("load", 996_500, 999_500),
                ("install", 999_500, 1_000_000),
                ("specialize", 994_500, 1_000_000),
                ("write_response", 991_000, 1_000_000),
            ]
        );
        assert!(spans.iter().all(|span| span.trace() == spans[0].trace()));
        assert!(spans[..3].iter().all(|span| span.parent() == Some(spans[3].id())));
    }

    #[test]
    fn code_on_standby_was_compiled_before() {
        let standby = SessionReport::StandsBy { generation: 2, compile_us: 3, load_us: 4, slots: 5 };
        assert_eq!(
            timed(&of(standby)),
            [
                ("compile", 999_993, 999_996),
                ("load", 999_996, 1_000_000),
                ("prepare_standby", 999_993, 1_000_000)
            ]
        );
        assert_eq!(word(&VariantVerdict::NotFaster), AttributeValue::Text("not_faster".to_owned()));
        let withdrawn = SessionReport::Withdrawn { generation: 2, reason: "slower".into() };
        assert_eq!(timed(&of(withdrawn)), [("withdraw", 1_000_000, 1_000_000)]);
        assert!(of(SessionReport::Dropped { reason: "nothing".into() }).is_empty());
    }
}
