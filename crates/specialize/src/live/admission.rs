//! Admission of variants to the hook: shapes that the judge has passed, and new ones once it has.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use millstream_lab::stats::{RatioEstimate, TimingVerdict};

use super::candidate::{VariantCandidate, VariantShape};
use super::settings::SessionSettings;
use crate::guard::{Guard, GuardSnapshot};
use crate::replay::mismatch::ReplayMismatch;
use crate::replay::{ReplayError, ReplayResult, ReplayVerdict};
use crate::report::{SessionReport, VariantVerdict};

/// Least gain in test runs, in nanoseconds: the positions of the copies in memory move the result by half as
/// much.
const LEAST_NS: f64 = 1.0;

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
    pub(super) judgement: Result<ReplayResult, ReplayError>,
    /// Predicted gain of its plan, in nanoseconds per packet.
    pub(super) predicted: Option<f64>,
    pub(super) time: Duration,
}

impl CandidateReplay {
    /// Measured gain, in nanoseconds per packet.
    pub(super) fn gained(&self) -> Option<f64> {
        match &self.judgement {
            Ok(ReplayResult { finding: ReplayVerdict::Same(Some(ratio)), .. }) => Some(-ratio.difference_ns),
            _ => None,
        }
    }
}

/// Judge of variants, and its verdicts.
#[derive(Debug, Default)]
pub(super) struct VariantJudge {
    /// Verdicts on shapes of variants.
    pub(super) verdicts: HashMap<VariantShape, ShapeVerdict>,
    /// Looks at which too few packets came to judge the variant.
    pub(super) unjudged: u32,
    /// Consecutive comparisons with the original that a write ended.
    pub(super) disturbed: u32,
}

impl VariantJudge {
    /// Decides if a variant, made from the maps as of a snapshot, may be put onto the hook: its shape is
    /// known, or it was `judged`.
    pub(super) fn admits(
        &mut self,
        candidate: &mut VariantCandidate,
        judged: Option<CandidateReplay>,
        guarded: (&Guard, &GuardSnapshot),
        settings: &SessionSettings,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> AdmissionDecision {
        candidate.active.on_trial = self.verdicts.get(&candidate.shape) == Some(&ShapeVerdict::Trial);
        let Some(judged) = judged else { return self.by_shape(&candidate.shape, settings.measure, tell) };
        let (generation, gained) = (candidate.active.generation, judged.gained());
        let (outcome, fate) = sentence(&judged.judgement, !candidate.active.caches.is_empty());
        let is_interrupted = matches!(judged.judgement, Err(ReplayError::Interrupted));
        if is_interrupted || outcome == VariantVerdict::Different && !guarded.0.holds(guarded.1) {
            // The original read other tables than those from which the variant was made.
            return AdmissionDecision::Void;
        }
        let (packets, ratio, reason, file) = match judged.judgement {
            Err(why) => (0, None, Some(why.to_string()), None),
            Ok(ReplayResult { packets, finding: ReplayVerdict::Same(ratio), .. }) => {
                (packets, ratio.map(|r| (r.ratio, r.interval)), None, None)
            }
            Ok(ReplayResult { packets, finding: ReplayVerdict::Different(difference), .. }) => (
                packets,
                None,
                Some(difference.observable.place()),
                write_down(&difference, &settings.differences),
            ),
        };
        candidate.active.on_trial = fate == Some(ShapeVerdict::Trial);
        if let Some(fate) = fate {
            self.verdicts.insert(candidate.shape.clone(), fate);
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
    fn by_shape(
        &self,
        shape: &VariantShape,
        measures: bool,
        tell: &mut dyn FnMut(&SessionReport),
    ) -> AdmissionDecision {
        if measures && self.verdicts.get(shape) == Some(&ShapeVerdict::Differs) {
            let reason = "a variant of this shape differed from the original".to_owned();
            tell(&SessionReport::Dropped { reason });
            return AdmissionDecision::Refused;
        }
        AdmissionDecision::Granted
    }
}

fn write_down(difference: &ReplayMismatch, folder: &Path) -> Option<String> {
    match difference.write(folder) {
        Ok(path) => Some(path.display().to_string()),
        Err(e) => {
            tracing::warn!("writing a difference to {}: {e}", folder.display());
            None
        }
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
