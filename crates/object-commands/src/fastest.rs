//! `opt -O super --goal latency`: finds the fastest of the best forms, by interleaved test runs.

use millstream_lab::measure::MeasurementPlan;
use millstream_lab::stats::TimingVerdict;
use millstream_lab::subject::ProgramUnderTest;
use millstream_lab::{compare, os, workload};
use millstream_object::Object;
use millstream_opt::{CostSummary, EquivalenceEvidence, SuperoptimizedObject, costs};
use millstream_programs::packet::{EthernetFrame, TransportHeader};
use serde::Serialize;

use crate::evidence_text::{certainty, first_line};

/// Number of best forms by prediction that are measured, the result of the search among them.
pub(crate) const BEST: usize = 5;

/// Seconds of a measurement, for each form.
const EACH: f64 = 3.0;

/// A form of an object that may be returned: each was proven.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ObjectVariant {
    Searched,
    /// Without the last replacements in a function: the next best by prediction, by its rank.
    Other(usize),
    Static,
    Original,
}

impl ObjectVariant {
    fn name(self) -> String {
        match self {
            ObjectVariant::Searched => "searched".into(),
            ObjectVariant::Other(n) => format!("other {}", n + 1),
            ObjectVariant::Static => "static".into(),
            ObjectVariant::Original => "original".into(),
        }
    }

    /// The object in this form.
    pub(crate) fn of(self, original: &Object, mut done: SuperoptimizedObject) -> Object {
        match self {
            ObjectVariant::Searched => done.object,
            ObjectVariant::Other(n) => done.others.swap_remove(n).object,
            ObjectVariant::Static => done.fixed.object,
            ObjectVariant::Original => original.clone(),
        }
    }
}

/// A measured form, with its predicted cost and its proof.
#[derive(Debug, Serialize)]
struct MeasuredCandidate {
    form: ObjectVariant,
    /// The name of its side of the measurement.
    name: String,
    cost: CostSummary,
    proof: String,
}

/// Measurements of an object's forms.
#[derive(Debug, Serialize)]
pub(crate) struct CandidateTimings {
    pub(crate) returned: ObjectVariant,
    /// All forms that may be returned, the best by prediction first; then static form and original.
    candidates: Vec<MeasuredCandidate>,
    /// Reason why nothing could be measured, so that the prediction decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_measured: Option<String>,
    /// Description of the packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<compare::ComparisonReport>,
}

/// Packets that take different paths through most programs.
fn packets() -> Vec<Vec<u8>> {
    let of = |transport| EthernetFrame { transport, ..EthernetFrame::default() };
    let frames = [
        EthernetFrame::default(),
        of(TransportHeader::Tcp { src: 1024, dst: 80, flags: 16 }),
        of(TransportHeader::Echo { reply: false, id: 1 }),
        EthernetFrame { vlan: Some(7), ..EthernetFrame::default() },
    ];
    frames.iter().map(EthernetFrame::to_bytes).collect()
}

impl CandidateTimings {
    /// Measures the result of a search, the next best forms, the static form and the original by interleaved
    /// test runs, and returns the fastest: the result unless another one is measured faster. Uses only one
    /// packet if not all of them can be repeated (a program that changes the length of some).
    pub(crate) fn measure(original: &Object, done: &SuperoptimizedObject) -> CandidateTimings {
        let mut forms = vec![(ObjectVariant::Searched, &done.object)];
        forms.extend(
            done.others.iter().enumerate().map(|(n, other)| (ObjectVariant::Other(n), &other.object)),
        );
        forms.extend([(ObjectVariant::Static, &done.fixed.object), (ObjectVariant::Original, original)]);
        let measure =
            |load: &workload::Workload| -> Result<compare::ComparisonReport, millstream_lab::Error> {
                millstream_lab::environment::fit_for_timing()?;
                let mut subjects: Vec<ProgramUnderTest<'_>> = Vec::new();
                for (form, object) in &forms {
                    let subject = ProgramUnderTest::prepare(form.name(), object, None, subjects.first())?;
                    subjects.push(subject);
                }
                let cpu = os::allowed_cpus().last().copied().unwrap_or(0);
                let plan = MeasurementPlan::test_run(EACH * forms.len() as f64);
                compare::compare_test_runs(&subjects, &load.flows.packets, cpu, plan)
            };
        let several = workload::plain(packets(), "UDP, TCP, ICMP and tagged UDP");
        let one = workload::plain(Vec::new(), "");
        let measured =
            measure(&several).map(|report| (report, several)).or_else(|_| Ok((measure(&one)?, one)));
        let candidates =
            forms.iter().map(|&(form, object)| candidate(form, object, original, done)).collect();
        match measured.map_err(|e: millstream_lab::Error| e.to_string()) {
            Err(e) => CandidateTimings {
                returned: ObjectVariant::Searched,
                candidates,
                not_measured: Some(e),
                traffic: None,
                report: None,
            },
            Ok((report, load)) => CandidateTimings {
                returned: forms[best(&report)].0,
                candidates,
                not_measured: None,
                traffic: Some(load.description),
                report: Some(report),
            },
        }
    }
}

/// The fastest side; the first one unless another is measured faster.
fn best(report: &compare::ComparisonReport) -> usize {
    let faster = report.sides.iter().enumerate().filter(|(_, side)| {
        report.reliability_warnings().is_empty()
            && side.against_first.is_some_and(|r| r.verdict == TimingVerdict::Faster)
    });
    faster.min_by(|a, b| a.1.ns.total_cmp(&b.1.ns)).map_or(0, |(n, _)| n)
}

fn candidate(
    form: ObjectVariant,
    object: &Object,
    original: &Object,
    done: &SuperoptimizedObject,
) -> MeasuredCandidate {
    let mut cost = CostSummary::default();
    for program in costs(original, object) {
        cost.slots += program.after.slots;
        cost.jited += program.after.jited;
        cost.cycles += program.after.cycles;
    }
    let mut proofs: Vec<String> = match form {
        ObjectVariant::Searched => done.programs.iter().map(|p| certainty(&p.proof)).collect(),
        ObjectVariant::Other(n) => done.others[n].proofs.iter().map(certainty).collect(),
        // Only static forms that are proven as a whole are used.
        ObjectVariant::Static => vec![certainty(&EquivalenceEvidence::Whole)],
        ObjectVariant::Original => vec![certainty(&EquivalenceEvidence::Unchanged)],
    };
    proofs.dedup();
    MeasuredCandidate { form, name: form.name(), cost, proof: proofs.join("; ") }
}

impl std::fmt::Display for CandidateTimings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(report) = &self.report else {
            let why = self.not_measured.as_deref().unwrap_or_default();
            return write!(f, "not measured ({}): the prediction decides", first_line(why));
        };
        let traffic = self.traffic.as_deref().unwrap_or_default();
        write!(f, "measured on {traffic}, tables empty:")?;
        for side in &report.sides {
            write!(f, " {} {:.2} ns", side.name, side.ns)?;
            match side.against_first {
                Some(r) => write!(
                    f,
                    " ({:.3} of the first, {:.3} to {:.3}),",
                    r.ratio, r.interval[0], r.interval[1]
                )?,
                None => write!(f, ",")?,
            }
        }
        write!(f, " returned: {}", self.returned.name())
    }
}

#[cfg(test)]
mod tests {
    use millstream_lab::compare::{ComparisonReport, SideReport, TimingMode};
    use millstream_lab::measure::MeasurementPlan;
    use millstream_lab::stats::{RatioEstimate, TimingVerdict};

    use super::best;

    fn report(sides: &[(f64, TimingVerdict)]) -> ComparisonReport {
        let side = |n: usize, &(ns, verdict): &(f64, TimingVerdict)| {
            let ratio = RatioEstimate {
                ratio: 1.0,
                interval: [1.0, 1.0],
                difference_ns: 0.0,
                limit_ns: 0.0,
                verdict,
            };
            SideReport {
                name: n.to_string(),
                ns,
                net_ns: ns,
                jited_bytes: 0,
                jited_instructions: None,
                executed_instructions: None,
                executed_jited: None,
                against_first: (n > 0).then_some(ratio),
                answers_differ: None,
            }
        };
        ComparisonReport {
            mode: TimingMode::TestRun,
            plan: MeasurementPlan::test_run(1.0),
            sides: sides.iter().enumerate().map(|(n, s)| side(n, s)).collect(),
            empty_ns: 1.0,
            empty_verdict: 2,
            generations: 20,
            dropped: 0,
            runs: 100,
            disturbed: 0.0,
            packets: 1,
        }
    }

    #[test]
    fn the_best_measured_form_is_returned_and_the_best_predicted_one_where_none_is_measured_faster() {
        use TimingVerdict::{Faster, NoDifferenceMeasurable, Slower};
        let first = (20.0, NoDifferenceMeasurable);
        let two_faster = report(&[first, (18.0, Faster), (17.0, Faster), (25.0, Slower)]);
        assert_eq!(best(&two_faster), 2);
        let within_the_limit = report(&[first, (19.9, NoDifferenceMeasurable), (25.0, Slower)]);
        assert_eq!(best(&within_the_limit), 0);
        let doubtful = ComparisonReport { dropped: 1, ..two_faster };
        assert_eq!(best(&doubtful), 0);
    }
}
