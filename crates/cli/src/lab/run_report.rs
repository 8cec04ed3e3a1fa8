//! Report of `millstream lab run`.

use millstream_lab::compare::ComparisonReport;
use millstream_lab::curve::LoadCurve;
use millstream_lab::environment::Environment;
use millstream_lab::verify::FrameVerification;
use millstream_lab::{FrameCounts, FrameLatencies};
use serde::Serialize;

/// Latencies for one batch size: they measure the position in the batch.
#[derive(Clone, Copy, Serialize)]
pub(super) struct BatchLatency {
    pub(super) batch: u32,
    pub(super) latency: FrameLatencies,
}

/// Result of a run.
#[derive(Serialize)]
pub(super) struct LabRunReport {
    pub(super) schema: u32,
    pub(super) environment: Environment,
    pub(super) object: String,
    pub(super) workload: String,
    /// The most frequent verdict, that of the empty program.
    pub(super) verdict: &'static str,
    pub(super) verification: FrameVerification,
    /// Whole path, one CPU, in millions of packets per second.
    pub(super) mpps: f64,
    pub(super) throughput: ComparisonReport,
    /// Of the throughput run.
    pub(super) counts: FrameCounts,
    pub(super) lost: u64,
    pub(super) latencies: Vec<BatchLatency>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) curve: Option<LoadCurve>,
    pub(super) reliability_warnings: Vec<String>,
    /// Likely mistakes of the user.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
}
