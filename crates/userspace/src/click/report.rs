//! Result of a run.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use millstream_adapt::AdaptStatus;
use millstream_built::handlers::number;
use millstream_click::{ClickProgram, DropCounter, GraphSink, GraphSource, SummaryInput};
use millstream_native::{CompiledSchedule, NativeEngine, TableTemplate};
use millstream_native_io::DropReason;
use millstream_native_io::graph::GraphRunStats;
use serde::Serialize;

use super::control::ActiveConfiguration;
use super::io::SourcePackets;
use crate::native::port_options::OpenPorts;
use crate::native::stats::{self, LatencyPercentiles, RunSpeed, WorkerRow};
use crate::native::{LostBefore, schedule_line, template_lines};

#[derive(Serialize)]
struct ClickCompileTimes {
    click_ms: f64,
    passes_ms: f64,
    emit_ms: f64,
    llvm_ms: f64,
    link_ms: f64,
    total_ms: f64,
    object_bytes: usize,
}

#[derive(Serialize)]
struct SourceRow {
    source: String,
    packets: String,
    received: u64,
}

#[derive(Serialize)]
struct SentRow {
    output: String,
    packets: u64,
}

#[derive(Serialize)]
struct DropRow {
    element: String,
    reason: Cow<'static, str>,
    packets: u64,
}

#[derive(Serialize)]
struct HandlerRow {
    handler: String,
    value: String,
}

/// Packets of a run.
#[derive(Serialize)]
pub(super) struct ClickCounts {
    sources: Vec<SourceRow>,
    received: u64,
    copies: u64,
    sent: u64,
    outputs: Vec<SentRow>,
    dropped: Vec<DropRow>,
    /// Packets that still waited at the end.
    queued: u64,
}

/// Full result of a run. received + copies = sent + dropped + queued.
#[derive(Serialize)]
pub(super) struct ClickReport {
    schema: u32,
    configuration: String,
    workers: u32,
    #[serde(flatten)]
    account: ClickCounts,
    /// Properties of the interfaces, with AF_XDP.
    #[serde(flatten)]
    taken: Option<OpenPorts>,
    /// Packets of interfaces that the kernel dropped before they arrived here.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<LostBefore>,
    /// Records that elements put into rings and traces.
    events: u64,
    /// Configurations that were replaced.
    swaps: u32,
    /// Crashes of earlier processes, if this one is supervised.
    #[serde(skip_serializing_if = "Option::is_none")]
    crashes: Option<u32>,
    /// Counts of each worker, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    by_worker: Vec<WorkerRow>,
    #[serde(flatten)]
    speed: RunSpeed,
    /// `None` if compiled ahead of time.
    #[serde(skip_serializing_if = "Option::is_none")]
    compiled: Option<ClickCompileTimes>,
    /// Implementations of look-ups in tables and classifiers, with reasons.
    templates: Vec<TableTemplate>,
    /// Order of packets through stages, with reasons.
    schedule: CompiledSchedule,
    handlers: Vec<HandlerRow>,
    /// Specialization while it ran, if it was wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    adaptation: Option<AdaptStatus>,
}

fn dropped(
    program: &ClickProgram,
    state: &[u8],
    left: &[(DropCounter, u64)],
    of_devices: [(DropReason, u64); 2],
) -> Vec<DropRow> {
    let row = |d: &DropCounter| DropRow {
        element: d.element.clone(),
        reason: d.reason.clone(),
        packets: number(state, d.offset),
    };
    let mut rows: Vec<DropRow> = program.drops.iter().map(row).filter(|r| r.packets > 0).collect();
    rows.extend(left.iter().map(|(d, packets)| DropRow { packets: *packets, ..row(d) }));
    let of_devices = of_devices.into_iter().filter(|(_, packets)| *packets > 0);
    rows.extend(of_devices.map(|(reason, packets)| DropRow {
        element: String::new(),
        reason: reason.name().into(),
        packets,
    }));
    rows
}

impl ClickReport {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn new(
        name: &str,
        at_work: &ActiveConfiguration,
        packets: &[SourcePackets],
        engine: &NativeEngine,
        (ran, lost, taken): (&GraphRunStats, Option<LostBefore>, Option<OpenPorts>),
        state: &[u8],
        click: Option<Duration>,
        handlers: Vec<(String, String)>,
    ) -> ClickReport {
        let ActiveConfiguration { program, swaps, left, crashes, .. } = at_work;
        let unfit = ran.unfit;
        let received: u64 = ran.received.iter().sum();
        let sources = program.sources.iter().zip(packets).zip(&ran.received);
        let output = |target: &GraphSink| match target {
            GraphSink::Device(name) | GraphSink::File(name, _) => name.clone(),
        };
        let seen = received - ran.unfit;
        ClickReport {
            schema: 2,
            configuration: name.to_owned(),
            workers: engine.workers(),
            account: ClickCounts {
                sources: sources
                    .map(|((source, packets), received)| SourceRow {
                        source: named(source),
                        packets: packets.description.clone(),
                        received: *received,
                    })
                    .collect(),
                received,
                copies: ran.copies + number(state, program.uncloned),
                sent: ran.sent.iter().sum(),
                outputs: program
                    .targets
                    .iter()
                    .zip(&ran.sent)
                    .map(|(target, packets)| SentRow { output: output(target), packets: *packets })
                    .collect(),
                dropped: dropped(
                    program,
                    state,
                    left,
                    [(DropReason::Size, unfit), (DropReason::NoRoom, ran.no_room)],
                ),
                queued: ran.held,
            },
            taken,
            lost,
            events: ran.events,
            swaps: *swaps,
            crashes: *crashes,
            by_worker: if engine.workers() > 1 { stats::workers(engine.stats()) } else { Vec::new() },
            speed: RunSpeed {
                latency_ns: LatencyPercentiles::of(&engine.stats().latency()),
                ns_per_packet: if seen == 0 { 0.0 } else { ran.busy.as_nanos() as f64 / seen as f64 },
                ns_per_packet_p10: ran.percentile(0.1),
                mpps: 1e3 * received as f64 / ran.total.as_nanos().max(1) as f64,
            },
            compiled: click.map(|click| compiled(engine, click)),
            templates: engine.templates.clone(),
            schedule: engine.schedule.clone(),
            handlers: handlers.into_iter().map(|(handler, value)| HandlerRow { handler, value }).collect(),
            adaptation: at_work.adaptation.status(),
        }
    }

    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = writeln!(out, "{}", self.configuration);
        if let Some(c) = &self.compiled {
            let _ = writeln!(
                out,
                "compiled in {:.1} ms: {:.1} to the IR, {:.1} in passes, {:.1} in LLVM, {:.1} linking",
                c.total_ms,
                c.click_ms,
                c.passes_ms + c.emit_ms,
                c.llvm_ms,
                c.link_ms
            );
        }
        out.push_str(&template_lines(&self.templates));
        out.push_str(&schedule_line(&self.schedule));
        out.extend(self.adaptation.as_ref().map(AdaptStatus::text));
        for source in &self.account.sources {
            let _ = writeln!(out, "received {:>12}   {}, {}", source.received, source.source, source.packets);
        }
        if self.account.copies > 0 {
            let _ = writeln!(out, "copied   {:>12}", self.account.copies);
        }
        for row in &self.account.outputs {
            let _ = writeln!(out, "sent     {:>12}   {}", row.packets, row.output);
        }
        for row in &self.account.dropped {
            let _ = writeln!(out, "dropped  {:>12}   {} {}", row.packets, row.element, row.reason);
        }
        if self.account.queued > 0 {
            let _ = writeln!(out, "queued   {:>12}   waiting in elements", self.account.queued);
        }
        if let Some(lost) = self.lost.as_ref().and_then(LostBefore::text) {
            let _ = writeln!(out, "{lost}");
        }
        let low = self
            .speed
            .ns_per_packet_p10
            .map_or(String::new(), |ns| format!(", {ns:.2} at the 10th percentile"));
        let _ = writeln!(
            out,
            "{:.2} ns per packet in the program{low}; {:.2} Mpps with copying in and out",
            self.speed.ns_per_packet, self.speed.mpps
        );
        for row in &self.handlers {
            let _ = writeln!(out, "{}: {}", row.handler, row.value);
        }
        out
    }
}

/// Describes a source.
fn named(source: &GraphSource) -> String {
    let limit = |limit: &Option<u64>| limit.map_or(String::new(), |limit| format!(", {limit} in all"));
    match source {
        GraphSource::Device(name) | GraphSource::File(name) => name.clone(),
        GraphSource::Summary(summary) => match &summary.input {
            SummaryInput::File(name) => name.clone(),
            SummaryInput::Text(_) => "lines of the configuration".to_owned(),
        },
        GraphSource::Constant(bytes, most) => format!("a packet of {} bytes{}", bytes.len(), limit(most)),
        GraphSource::Frames(frames, most) => format!("generated packets: {}{}", frames.len(), limit(most)),
    }
}

fn compiled(engine: &NativeEngine, click: Duration) -> ClickCompileTimes {
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let t = &engine.timings;
    ClickCompileTimes {
        click_ms: ms(click),
        passes_ms: ms(t.passes),
        emit_ms: ms(t.emit),
        llvm_ms: ms(t.llvm),
        link_ms: ms(t.link),
        total_ms: ms(click + t.passes + t.emit + t.llvm + t.link),
        object_bytes: t.bytes,
    }
}
