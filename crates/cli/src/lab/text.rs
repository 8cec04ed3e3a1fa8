//! The laboratory's results as text.

use std::fmt::Write as _;

use millstream_lab::FrameLatencies;
use millstream_lab::compare::{ComparisonReport, SideReport, TimingMode};
use millstream_lab::curve::LoadCurve;
use millstream_lab::environment::Environment;
use millstream_lab::stats::{RatioEstimate, TimingVerdict};

use super::run_report::LabRunReport;
use super::verdict_name;

/// A comparison.
pub(super) fn comparison(
    environment: &Environment,
    workload: &str,
    report: &ComparisonReport,
    warned: &[String],
) -> String {
    let mut out = head(environment, workload);
    times(&mut out, report);
    for side in &report.sides[1..] {
        if let Some(ratio) = &side.against_first {
            verdict(&mut out, side, ratio, report.sides.len() > 2);
        }
    }
    tail(&mut out, report);
    reliability(&mut out, &report.reliability_warnings());
    warnings(&mut out, warned);
    out
}

/// A run.
pub(super) fn run(d: &LabRunReport) -> String {
    let mut out = head(&d.environment, &d.workload);
    let v = &d.verification;
    let good = if v.is_good() { "as expected" } else { "NOT as expected" };
    let _ = writeln!(
        out,
        "output      {good}: {} sent, {} returned of {} expected, {} missing, {} unexpected",
        v.sent, v.returned, v.expected, v.missing, v.unexpected
    );
    let _ = writeln!(
        out,
        "throughput  {:.2} Mpps whole path on one CPU; {} sent, {} lost",
        d.mpps, d.counts.sent, d.lost
    );
    times(&mut out, &d.throughput);
    tail(&mut out, &d.throughput);
    for l in &d.latencies {
        let _ = writeln!(out, "latency     batch {:3}: {}", l.batch, latency(&l.latency));
    }
    if let Some(curve) = &d.curve {
        load(&mut out, curve);
    }
    reliability(&mut out, &d.reliability_warnings);
    warnings(&mut out, &d.warnings);
    out
}

fn head(e: &Environment, workload: &str) -> String {
    format!("{}  kernel {}  {} x {}\ntraffic     {workload}\n", e.when, e.kernel, e.cpus, e.cpu)
}

fn times(out: &mut String, report: &ComparisonReport) {
    let width = report.sides.iter().map(|s| s.name.len()).max().unwrap_or(0).max(5);
    for side in &report.sides {
        let _ = write!(
            out,
            "{:width$}  {:8.2} ns  {:8.2} net  {:6} B jited",
            side.name, side.ns, side.net_ns, side.jited_bytes
        );
        if let Some(n) = side.executed_instructions {
            let _ = write!(out, "  {n:7.1} BPF");
        }
        if let Some(n) = side.executed_jited {
            let _ = match n.most - n.least < 0.05 {
                true => write!(out, "  {:7.1} x86", n.least),
                false => write!(out, "  {:.1} to {:.1} x86", n.least, n.most),
            };
        }
        if side.executed_instructions.is_some() {
            out.push_str(" instructions");
        }
        out.push('\n');
    }
    let (name, verdict) = ("empty", verdict_name(report.empty_verdict));
    let _ = writeln!(out, "{name:width$}  {:8.2} ns  harness, in all of them ({verdict})", report.empty_ns);
}

fn verdict(out: &mut String, side: &SideReport, r: &RatioEstimate, several: bool) {
    let name = if several { format!("{}: ", side.name) } else { String::new() };
    let words = match r.verdict {
        TimingVerdict::Faster => format!("faster by {:.2} ns", -r.difference_ns),
        TimingVerdict::Slower => format!("SLOWER by {:.2} ns", r.difference_ns),
        TimingVerdict::NoDifferenceMeasurable => {
            format!("no difference measurable (limit {:.2} ns)", r.limit_ns)
        }
        TimingVerdict::TooFewGenerations => "too few generations: run longer".to_owned(),
    };
    let [low, high] = r.interval;
    let _ = writeln!(out, "verdict     {name}{words}; ratio {:.4}, 99 % {low:.4} to {high:.4}", r.ratio);
    if let Some(differ @ 1..) = side.answers_differ {
        let _ =
            writeln!(out, "            {name}WARNING: packets with another result than the first: {differ}");
    }
}

fn tail(out: &mut String, report: &ComparisonReport) {
    let how = match report.mode {
        TimingMode::TestRun => format!("test runs on {} packets in turn", report.packets),
        TimingMode::Live => "live frames".to_owned(),
    };
    let _ = writeln!(
        out,
        "measured    by {how}: {:.0} s, generations: {} of {} copies, dropped: {}\n            \
         runs: {}, disturbed: {:.0} %, seed: {}",
        report.plan.seconds,
        report.generations,
        report.plan.copies,
        report.dropped,
        report.runs,
        100.0 * report.disturbed,
        report.plan.seed
    );
}

fn warnings(out: &mut String, warnings: &[String]) {
    for warning in warnings {
        let _ = writeln!(out, "warning     {warning}");
    }
}

fn reliability(out: &mut String, warnings: &[String]) {
    for warning in warnings {
        let _ = writeln!(out, "unreliable  {warning}");
    }
}

fn latency(l: &FrameLatencies) -> String {
    if l.frames == 0 {
        return "no frame came back".to_owned();
    }
    let us = |ns: u64| match ns {
        FrameLatencies::LONGEST.. => "over 1048".to_owned(),
        _ => format!("{:.1}", ns as f64 / 1e3),
    };
    format!(
        "p50 {}, p90 {}, p99 {}, p99.9 {}, p99.99 {} us of {} frames",
        us(l.p50),
        us(l.p90),
        us(l.p99),
        us(l.p999),
        us(l.p9999),
        l.frames
    )
}

fn load(out: &mut String, curve: &LoadCurve) {
    let _ = writeln!(
        out,
        "under load  sender CPU {}, receiver CPU {}, bursts of {}: capacity {:.2} Mpps, loss-free up to {:.2} Mpps",
        curve.sender_cpu, curve.receiver_cpu, curve.batch, curve.capacity_mpps, curve.loss_free_mpps
    );
    for p in &curve.points {
        let _ = writeln!(
            out,
            "  offered {:6.3} Mpps  received {:6.3}  loss {:7.3} %  {}",
            p.offered_mpps,
            p.received_mpps,
            100.0 * p.loss,
            latency(&p.latency)
        );
    }
}
