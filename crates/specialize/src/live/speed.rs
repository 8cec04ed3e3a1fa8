//! Speed of a variant compared with its original, on the traffic of the laboratory's rig, and copies of a
//! session's programs for other measurements.
//!
//! A copy of the original does not count its writes in the caches of a variant. While the session is detached
//! that does no harm: caches are in use then, so that copies of the variant take the time that it takes, and
//! begin anew when it is attached. Otherwise roll the session's own variant back after both have run on the
//! session's maps.

use millstream_kernel::{AttachType, KernelProgram};
use millstream_lab::measure::{
    LiveHarness, LoadAttributes, MeasuredSide, MeasurementPlan, MeasurementResult, empty, measure_until,
};
use millstream_lab::stats::{RatioEstimate, judge};
use millstream_lab::subject::{InsnCounts, ProgramVersion};
use millstream_lab::{Error, TestRig};
use millstream_object::LinkedProgram;
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
    /// Loads one more copy of the program as clang compiled it, for measurements.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn copy_of_original(&self) -> Result<KernelProgram, LiveError> {
        let function = self.guarded.programs.compiler.program();
        let linked =
            self.guarded.programs.compiler.object().link(function).map_err(millstream_loader::Error::from)?;
        Ok(self.guarded.programs.loader.load(function, &linked)?)
    }

    /// Loads one more copy of the active variant, for measurements; `None` if there is none, or the guard
    /// does not let it run.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn copy_of_variant(&self) -> Result<Option<KernelProgram>, LiveError> {
        match self.guarded.generations.active.as_ref().filter(|_| self.guarded.variant_runs()) {
            Some(active) => Ok(Some(
                self.guarded
                    .programs
                    .loader
                    .load(self.guarded.programs.compiler.program(), &active.linked)?,
            )),
            None => Ok(None),
        }
    }

    /// The variant that records keys and packets, if there was a look at the traffic.
    pub fn instrumented(&self) -> Option<&KernelProgram> {
        self.guarded.programs.profiling.as_ref().map(|made| &made.program)
    }

    /// Counts the instructions that original and variant execute for packets that come in at an interface,
    /// with the maps as they are; for the variant only if it is active, and nobody has revoked it meanwhile.
    ///
    /// # Errors
    /// As for [`ProgramVersion::count`].
    pub fn counted(
        &self,
        packets: &[Vec<u8>],
        ingress: u32,
    ) -> Result<(InsnCounts, Option<InsnCounts>), LiveError> {
        let func = self.guarded.programs.compiler.program();
        let count = |linked: &LinkedProgram| {
            let form = ProgramVersion { session: &self.guarded.programs.loader, func, linked };
            form.count(packets, ingress).map_err(LiveError::Uncounted)
        };
        let original =
            self.guarded.programs.compiler.object().link(func).map_err(millstream_loader::Error::from)?;
        let runs = self.guarded.generations.active.as_ref().filter(|_| self.guarded.variant_runs());
        let (original, variant) = (count(&original)?, runs.map(|a| count(&a.linked)).transpose()?);
        // Of a variant that was revoked meanwhile, the original's code was counted.
        Ok((original, variant.filter(|_| self.guarded.variant_runs())))
    }

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
    pub fn speed(
        &self,
        rig: &TestRig,
        verdict: u32,
        plan: &MeasurementPlan,
    ) -> Result<SpeedComparison, Error> {
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
    ) -> Result<SpeedComparison, Error> {
        let alike = LoadAttributes { attach: AttachType::XDP, flags: 0 };
        let mut sides = Vec::from(self.sides());
        sides.push(MeasuredSide::new("empty", || empty(verdict, Some(rig.second_port()), alike)));
        let measured = measure_until(&mut LiveHarness::new(rig, alike)?, &mut sides, plan, most, &mut |m| {
            decided(&SpeedComparison::new(m, plan))
        })?;
        Ok(SpeedComparison::new(&measured, plan))
    }
}
