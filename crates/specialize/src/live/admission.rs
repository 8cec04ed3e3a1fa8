//! Admission of variants to the hook: shapes that the judge has passed, and new ones once it has.

use std::mem::Discriminant;
use std::time::{Duration, Instant};

use millstream_ir::KeyPiece;
use millstream_lab::stats::{RatioEstimate, TimingVerdict};
use millstream_specializer::gain::gain_ns;
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::transform::{self, LookupPlan, SiteId, SpecializationPlan};
use millstream_specializer::variant::object_map;
use rustc_hash::{FxHashMap, FxHashSet};

use super::LiveSession;
use super::background::PendingCompile;
use super::compile_job::{CompileJob, CompileRequest};
use super::make::VariantCandidate;
use super::step::SessionStep;
use crate::guard::GuardSnapshot;
use crate::predict;
use crate::replay::mismatch::ReplayMismatch;
use crate::replay::{self, ContinueCheck, ReplayCase, ReplayError, ReplayResult, ReplayVerdict, sample};
use crate::report::{SessionReport, VariantVerdict};

/// Least gain in test runs, in nanoseconds: the positions of the copies in memory move the result by half as
/// much.
const LEAST_NS: f64 = 1.0;

/// Properties shared by variants that differ in constants only, or in the number of entries by less than a
/// factor of two.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct VariantShape {
    sites: Vec<(SiteId, Discriminant<LookupPlan>, u32)>,
    fields: usize,
    tests: Vec<(SiteId, KeyPiece, u32)>,
    has_copies: bool,
    /// Number of programs inlined at their calls.
    joined: usize,
}

impl VariantShape {
    pub(super) fn new(plan: &SpecializationPlan, report: &transform::TransformReport) -> VariantShape {
        let entries = |site: SiteId| {
            let found = report.sites.iter().find(|(id, _)| *id == site);
            found.map_or(0, |(_, r)| r.entries.next_power_of_two().ilog2())
        };
        let inner = plan.within.iter().map(|within| &within.plan);
        let sites = plan.sites.iter().chain(inner);
        VariantShape {
            sites: sites.map(|s| (s.site, std::mem::discriminant(&s.lookup), entries(s.site))).collect(),
            fields: plan.fields.len(),
            tests: plan.tests.iter().map(|t| (t.site, t.piece, (t.values.len() + 1).ilog2())).collect(),
            has_copies: report.has_copies(),
            joined: report.joined.len(),
        }
    }
}

/// Verdict of the judge on a shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ShapeVerdict {
    /// It may come.
    Passed,
    /// It may come for live traffic to judge: the replay does not decide.
    Trial,
    /// A variant of it differed: none is tried again.
    Differs,
}

/// Decision on a variant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AdmissionDecision {
    /// It may come onto the hook.
    Granted,
    /// It may not.
    Refused,
    /// The maps changed while it was judged: nothing was learnt about it.
    Void,
}

/// Result of judging a variant.
pub(super) struct CandidateReplay {
    judgement: Result<ReplayResult, ReplayError>,
    /// Predicted gain of its plan, in nanoseconds per packet.
    predicted: Option<f64>,
    time: Duration,
}

impl CandidateReplay {
    /// Measured gain, in nanoseconds per packet.
    fn gained(&self) -> Option<f64> {
        match &self.judgement {
            Ok(ReplayResult { finding: ReplayVerdict::Same(Some(ratio)), .. }) => Some(-ratio.difference_ns),
            _ => None,
        }
    }
}

impl LiveSession<'_> {
    /// Decides if a variant, made from the maps as of a snapshot, may be put onto the hook: its shape is
    /// known, or it was `judged`.
    pub(super) fn admits(
        &mut self,
        candidate: &mut VariantCandidate,
        judged: Option<CandidateReplay>,
        snapshot: &GuardSnapshot,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> AdmissionDecision {
        candidate.active.on_trial = self.judged.get(&candidate.shape) == Some(&ShapeVerdict::Trial);
        let Some(judged) = judged else { return self.by_shape(&candidate.shape, tell) };
        let (generation, gained) = (candidate.active.generation, judged.gained());
        let (outcome, fate) = sentence(&judged.judgement, !candidate.active.caches.is_empty());
        let is_interrupted = matches!(judged.judgement, Err(ReplayError::Interrupted));
        if is_interrupted || outcome == VariantVerdict::Different && !self.guard.holds(snapshot) {
            // The original read other tables than those from which the variant was made.
            return AdmissionDecision::Void;
        }
        let (packets, ratio, reason, file) = match judged.judgement {
            Err(why) => (0, None, Some(why.to_string()), None),
            Ok(ReplayResult { packets, finding: ReplayVerdict::Same(ratio), .. }) => {
                (packets, ratio.map(|r| (r.ratio, r.interval)), None, None)
            }
            Ok(ReplayResult { packets, finding: ReplayVerdict::Different(difference), .. }) => {
                (packets, None, Some(difference.observable.place()), self.write_down(&difference))
            }
        };
        candidate.active.on_trial = fate == Some(ShapeVerdict::Trial);
        if let Some(fate) = fate {
            self.judged.insert(candidate.shape.clone(), fate);
        }
        tell(&SessionReport::Judged {
            generation,
            outcome,
            packets,
            ratio,
            gained_ns: gained,
            predicted_ns: judged.predicted,
            ms: u64::try_from(judged.time.as_millis()).unwrap_or(u64::MAX),
            reason,
            file,
        });
        match outcome {
            VariantVerdict::Different | VariantVerdict::NotFaster => AdmissionDecision::Refused,
            VariantVerdict::Faster
            | VariantVerdict::Same
            | VariantVerdict::Trial
            | VariantVerdict::Unjudged => AdmissionDecision::Granted,
        }
    }

    /// Decides on a variant that was not to be judged.
    fn by_shape(&self, shape: &VariantShape, tell: &mut dyn FnMut(&SessionReport)) -> AdmissionDecision {
        if self.settings.measure && self.judged.get(shape) == Some(&ShapeVerdict::Differs) {
            let reason = "a variant of this shape differed from the original".to_owned();
            tell(&SessionReport::Dropped { reason });
            return AdmissionDecision::Refused;
        }
        AdmissionDecision::Granted
    }

    fn write_down(&self, difference: &ReplayMismatch) -> Option<String> {
        match difference.write(&self.settings.differences) {
            Ok(path) => Some(path.display().to_string()),
            Err(e) => {
                tracing::warn!("writing a difference to {}: {e}", self.settings.differences.display());
                None
            }
        }
    }
}

impl CompileJob<'_> {
    /// Returns true if a variant must be judged before it may come onto the hook.
    pub(super) fn is_new(&self, shape: &VariantShape) -> bool {
        self.measures && !self.fates.contains_key(shape)
    }

    /// Compares a variant with the original, unless the task is called off.
    pub(super) fn judge(
        &mut self,
        candidate: &VariantCandidate,
        order: &CompileRequest,
        task: &PendingCompile,
    ) -> CandidateReplay {
        let (start, mut ids) = (Instant::now(), FxHashSet::default());
        let goes_on = || {
            self.steps.at(SessionStep::Judging(order.tier));
            !task.is_called_off()
        };
        let mut ours = |id| {
            ids.insert(id);
        };
        let judgement = self.judgement(candidate, ContinueCheck(&goes_on), &mut ours);
        let mut judged = CandidateReplay { judgement, predicted: None, time: Duration::ZERO };
        if judged.gained().is_some() {
            judged.predicted = Some(self.predicted(&candidate.plan, &order.profiles, &mut ours));
        }
        ids.into_iter().for_each(|id| self.note_loaded(id));
        judged.time = start.elapsed();
        judged
    }

    /// Predicts the gain of a plan, in nanoseconds per packet, from the cost of lookups in the maps as they
    /// are.
    fn predicted(
        &self,
        plan: &SpecializationPlan,
        profiles: &[SiteProfile],
        ours: &mut dyn FnMut(u32),
    ) -> f64 {
        let mut lookups = FxHashMap::default();
        for profile in profiles {
            let site = self.compiler.sites().iter().find(|s| s.id == profile.site);
            let Some(source) = site.and_then(|s| self.sources.get(&s.map)) else { continue };
            let Some(map) = site.map(|s| s.map).filter(|map| !lookups.contains_key(map)) else { continue };
            let keys = predict::keys(&source.map, profile).unwrap_or_default();
            match predict::lookup_ns(&source.map, &keys, ours) {
                Ok(ns) => drop(lookups.insert(map, ns)),
                Err(why) => tracing::debug!("a lookup in {:?} is not timed: {why}", source.map.info().name),
            }
        }
        gain_ns(plan, self.compiler, profiles, self.profiled, &lookups)
    }

    fn judgement(
        &self,
        candidate: &VariantCandidate,
        goes_on: ContinueCheck<'_>,
        ours: &mut dyn FnMut(u32),
    ) -> Result<ReplayResult, ReplayError> {
        let mut programs = self.programs.clone();
        for (func, id) in candidate.active.chain.known() {
            if !programs.iter().any(|(_, known)| *known == id) {
                programs.push((func, id));
            }
        }
        let twins =
            candidate.active.twins.maps().filter_map(|(of, map)| Some((self.compiler.twin(of)?, map)));
        let case = ReplayCase {
            compiler: self.compiler,
            session: &self.session,
            programs: &programs,
            specialised: self.sources.iter().filter(|(_, s)| s.is_known()).map(|(map, _)| *map).collect(),
            candidate: &candidate.active.linked,
            callees: candidate.active.chain.linked(),
            arrays: self.arrays.iter().map(|&(of, place, _)| (object_map(of), place)).collect(),
            twins: twins.collect(),
            insides: candidate.active.insides.maps().collect(),
            caches: candidate.plan.caches.clone(),
            token: candidate.active.token(),
            samples: &self.samples,
            cpu: self.idlest()?,
            goes_on,
        };
        replay::judge(&case, ours)
    }

    /// The CPU with the fewest packets when they were counted last.
    fn idlest(&self) -> Result<usize, millstream_kernel::KernelError> {
        let samples = self.session.map(self.compiler.samples());
        Ok(samples.map(sample::idlest).transpose()?.flatten().unwrap_or(0))
    }
}

/// Most time that a variant with copies of entries may take in a replay, relative to the original, for live
/// traffic to be tried: it may take less there.
const MOST_WITH_COPIES: f64 = 1.5;

/// Derives the decision on a variant, and on its shape, from a judgement.
///
/// A variant that was measured to be slower is not installed, with one exception. A replay keeps the entries
/// of its few packets in the processor's caches, where a lookup is as quick as reading a copy of its result,
/// so the copies of a variant can only cost there, although they save half of a packet's time on traffic of
/// 10,000 flows. Such a variant is put on trial: live traffic is measured with it and without it, and it is
/// taken back unless it is measured to be faster.
fn sentence(
    judged: &Result<ReplayResult, ReplayError>,
    has_caches: bool,
) -> (VariantVerdict, Option<ShapeVerdict>) {
    match judged {
        // The next look at the traffic may bring packets.
        Err(ReplayError::NoPackets) => (VariantVerdict::Unjudged, None),
        Err(_) => (VariantVerdict::Unjudged, Some(ShapeVerdict::Passed)),
        Ok(ReplayResult { finding: ReplayVerdict::Different(_), .. }) => {
            (VariantVerdict::Different, Some(ShapeVerdict::Differs))
        }
        Ok(ReplayResult { finding: ReplayVerdict::Same(None), .. }) => {
            (VariantVerdict::Same, Some(ShapeVerdict::Passed))
        }
        Ok(ReplayResult { finding: ReplayVerdict::Same(Some(ratio)), .. }) if faster(ratio) => {
            (VariantVerdict::Faster, Some(ShapeVerdict::Passed))
        }
        Ok(ReplayResult { finding: ReplayVerdict::Same(Some(ratio)), .. })
            if has_caches && ratio.ratio <= MOST_WITH_COPIES =>
        {
            if ratio.verdict == TimingVerdict::Slower {
                (VariantVerdict::Trial, Some(ShapeVerdict::Trial))
            } else {
                (VariantVerdict::Same, Some(ShapeVerdict::Passed))
            }
        }
        // On other packets it may be.
        Ok(_) => (VariantVerdict::NotFaster, None),
    }
}

fn faster(ratio: &RatioEstimate) -> bool {
    ratio.verdict == TimingVerdict::Faster && ratio.difference_ns <= -LEAST_NS
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn same(ratio: Option<(TimingVerdict, f64)>) -> Result<ReplayResult, ReplayError> {
        let ratio = ratio.map(|(verdict, difference_ns)| RatioEstimate {
            ratio: 1.0 + difference_ns / 50.0,
            interval: [0.0, 2.0],
            difference_ns,
            limit_ns: 0.1,
            verdict,
        });
        Ok(ReplayResult { packets: 1, varies: BTreeSet::new(), finding: ReplayVerdict::Same(ratio) })
    }

    #[test]
    fn only_what_is_faster_by_more_than_placement_passes() {
        assert_eq!(sentence(&same(Some((TimingVerdict::Faster, -5.0))), false).0, VariantVerdict::Faster);
        assert_eq!(
            sentence(&same(Some((TimingVerdict::Faster, -0.6))), false),
            (VariantVerdict::NotFaster, None)
        );
        assert_eq!(
            sentence(&same(Some((TimingVerdict::Slower, 5.0))), false),
            (VariantVerdict::NotFaster, None)
        );
        assert_eq!(sentence(&same(None), false), (VariantVerdict::Same, Some(ShapeVerdict::Passed)));
    }

    #[test]
    fn copies_that_only_cost_in_a_replay_are_tried_on_live_traffic() {
        let unclear = same(Some((TimingVerdict::NoDifferenceMeasurable, 0.4)));
        assert_eq!(sentence(&unclear, true), (VariantVerdict::Same, Some(ShapeVerdict::Passed)));
        assert_eq!(sentence(&unclear, false), (VariantVerdict::NotFaster, None));
        let slower = |ns| same(Some((TimingVerdict::Slower, ns)));
        assert_eq!(sentence(&slower(5.0), true), (VariantVerdict::Trial, Some(ShapeVerdict::Trial)));
        assert_eq!(sentence(&slower(5.0), false), (VariantVerdict::NotFaster, None));
        assert_eq!(sentence(&slower(30.0), true), (VariantVerdict::NotFaster, None), "six tenths more");
        assert_eq!(sentence(&same(Some((TimingVerdict::Faster, -5.0))), true).0, VariantVerdict::Faster);
    }

    #[test]
    fn what_cannot_be_judged_is_left_to_live_traffic() {
        assert_eq!(sentence(&Err(ReplayError::NoPackets), false), (VariantVerdict::Unjudged, None));
        let effect = Err(ReplayError::Effect("bpf_clone_redirect".to_owned()));
        assert_eq!(sentence(&effect, false), (VariantVerdict::Unjudged, Some(ShapeVerdict::Passed)));
    }
}
