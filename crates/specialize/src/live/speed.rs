//! Speed of a variant compared with its original, on the traffic of the laboratory's rig.

use millstream_kernel::AttachType;
use millstream_lab::measure::{
    LiveHarness, LoadAttributes, MeasuredSide, MeasurementPlan, MeasurementResult, empty, measure_until,
};
use millstream_lab::stats::{RatioEstimate, judge};
use millstream_lab::{Error, Result, TestRig};
use millstream_rng::Rng;
use serde::Serialize;

use super::{LiveError, LiveSession};

/// Times of original and variant on the same traffic, by the laboratory's protocol.
#[derive(Clone, Debug, Serialize)]
pub struct SpeedComparison {
    /// Median, nanoseconds per packet, with the harness in it.
    pub original_ns: f64,
    /// As `original_ns`, for the variant.
    pub specialised_ns: f64,
    /// The harness: an empty program of the same verdict.
    pub empty_ns: f64,
    /// Specialised to original, the harness deducted: program time.
    pub program_time: RatioEstimate,
    /// As `program_time`, with the harness: its inverse is the ratio of packets per second.
    pub plain: RatioEstimate,
    /// Generations measured.
    pub generations: usize,
    /// Generations in which a copy had too few runs.
    pub dropped: usize,
    /// Share of disturbed runs.
    pub disturbed: f64,
    /// Plan of the measurement.
    pub plan: MeasurementPlan,
}

impl SpeedComparison {
    /// Takes sides in this order: original, variant, empty.
    fn new(measured: &MeasurementResult, plan: &MeasurementPlan) -> Self {
        let mut rng = Rng::new(plan.seed ^ 1);
        let net: Vec<(f64, f64)> = measured.generations.iter().map(|g| (g[0] - g[2], g[1] - g[2])).collect();
        SpeedComparison {
            original_ns: measured.median(0),
            specialised_ns: measured.median(1),
            empty_ns: measured.median(2),
            program_time: judge(&net, &mut rng),
            plain: judge(&measured.pairs(0, 1), &mut rng),
            generations: measured.generations.len(),
            dropped: measured.dropped,
            disturbed: measured.disturbed_share(),
            plan: *plan,
        }
    }
}

impl LiveSession<'_> {
    /// Copies of the original and of its variant, to be measured; there must be a variant.
    pub fn sides(&self) -> [MeasuredSide<'_>; 2] {
        let unusable = |e: LiveError| Error::Unusable(e.to_string());
        let gone = || Error::Unusable("the variant was taken back".into());
        [
            MeasuredSide::new("original", move || self.copy_of_original().map_err(unusable)),
            MeasuredSide::new("specialised", move || {
                self.copy_of_variant().map_err(unusable)?.ok_or_else(gone)
            }),
        ]
    }

    /// Measures copies of both and an empty XDP program of this verdict, interleaved; the rig must be free.
    ///
    /// # Errors
    /// Errors of the kernel; also if there is no variant.
    pub fn speed(&self, rig: &TestRig, verdict: u32, plan: &MeasurementPlan) -> Result<SpeedComparison> {
        self.speed_until(rig, verdict, plan, 1, |_| true)
    }

    /// As [`LiveSession::speed`], for the plan's length and again that long until `decided` says that the
    /// result tells enough, at most `most` times in all.
    ///
    /// # Errors
    /// As for [`LiveSession::speed`].
    pub fn speed_until(
        &self,
        rig: &TestRig,
        verdict: u32,
        plan: &MeasurementPlan,
        most: u32,
        mut decided: impl FnMut(&SpeedComparison) -> bool,
    ) -> Result<SpeedComparison> {
        let alike = LoadAttributes { attach: AttachType::XDP, flags: 0 };
        let mut sides = Vec::from(self.sides());
        sides.push(MeasuredSide::new("empty", || empty(verdict, Some(rig.second_port()), alike)));
        let measured = measure_until(&mut LiveHarness::new(rig, alike)?, &mut sides, plan, most, &mut |m| {
            decided(&SpeedComparison::new(m, plan))
        })?;
        Ok(SpeedComparison::new(&measured, plan))
    }
}
