//! The tuner's report.

use std::fmt::Write as _;

use millstream_plan::{Plan, PlanSettings};
use millstream_tune::SearchMethod;
use serde::Serialize;

use super::TuningGoal;

/// Answer of the tuner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum TuningVerdict {
    /// A plan is faster than the default.
    Gain,
    /// No candidate is faster beyond doubt.
    NoGain,
    /// The machine was too disturbed, or the budget too short, to tell.
    NoAnswer,
    /// The user interrupted; the best candidate so far was not measured a second time.
    Interrupted,
}

/// Candidate in the report.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TrialRow {
    /// Its settings.
    pub(super) settings: String,
    /// Time over that of the default, as the race saw it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio: Option<f64>,
    /// Reason why it was not timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<String>,
    /// True if it became the best one.
    pub(super) became_best: bool,
}

/// Search that was made.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SearchEffort {
    pub(super) search: SearchMethod,
    pub(super) seed: u64,
    pub(super) budget_s: f64,
    pub(super) seconds: f64,
    /// Number of candidates that there are.
    pub(super) space: f64,
    /// Candidates that the performance model proposed.
    pub(super) proposed: Vec<String>,
}

/// Result of a search.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TuningReport {
    pub(super) schema: u32,
    pub(super) program: String,
    pub(super) traffic: String,
    pub(super) machine: String,
    #[serde(rename = "for")]
    pub(super) goal: TuningGoal,
    #[serde(flatten)]
    pub(super) effort: SearchEffort,
    /// False if the default's own outputs differ between two runs, so that only counts were compared.
    pub(super) outputs_compared: bool,
    /// Share of runs that took much longer than others.
    pub(super) disturbed: f64,
    pub(super) verdict: TuningVerdict,
    /// Speed-up with its 99 % interval, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gain: Option<millstream_plan::PlanGain>,
    pub(super) settings: PlanSettings,
    pub(super) trials: Vec<TrialRow>,
}

/// Rows of the table of trials.
const ROWS: usize = 10;

impl TuningReport {
    /// Text for people.
    pub(super) fn text(&self, plan: &Plan) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = writeln!(out, "{} on {}", self.program, self.traffic);
        let failed = self.trials.iter().filter(|trial| trial.failed.is_some()).count();
        let _ = writeln!(
            out,
            "{} trials of {:.0} candidates in {:.1} s ({} failed), {:.0} % of the runs disturbed",
            self.trials.len(),
            self.effort.space,
            self.effort.seconds,
            failed,
            100.0 * self.disturbed
        );
        if !self.outputs_compared {
            let _ = writeln!(out, "outputs differ from run to run: only packet counts were compared");
        }
        out.push_str(&self.table());
        let _ = match (self.verdict, &self.gain) {
            (TuningVerdict::Gain, Some(gain)) => writeln!(
                out,
                "faster by a factor of {:.3} (99 %: {:.3} to {:.3})",
                gain.factor, gain.interval[0], gain.interval[1]
            ),
            (TuningVerdict::Interrupted, _) => {
                writeln!(out, "interrupted: the best candidate so far was not measured again")
            }
            (TuningVerdict::NoAnswer, _) => {
                writeln!(
                    out,
                    "no answer: the machine was too disturbed or the budget too short; nothing changes"
                )
            }
            _ => writeln!(out, "no candidate is faster beyond doubt: the default stays"),
        };
        let _ = writeln!(out, "plan: {}", plan.settings.summary());
        out
    }

    /// The best trials.
    fn table(&self) -> String {
        let mut timed: Vec<&TrialRow> = self.trials.iter().filter(|trial| trial.ratio.is_some()).collect();
        timed.sort_by(|a, b| a.ratio.unwrap_or(1.0).total_cmp(&b.ratio.unwrap_or(1.0)));
        let mut out = String::new();
        if !timed.is_empty() {
            out.push_str("  time/default  settings\n");
        }
        for trial in timed.into_iter().take(ROWS) {
            let mark = if trial.became_best { '*' } else { ' ' };
            let _ = writeln!(out, "{mark} {:>12.3}  {}", trial.ratio.unwrap_or(1.0), trial.settings);
        }
        out
    }
}
