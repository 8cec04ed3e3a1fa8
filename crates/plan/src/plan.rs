//! A plan: settings, and their origin.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use crate::schedule::ScheduleChanges;

/// Settings that change speed and not behaviour. What is unset, the compiler decides.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct PlanSettings {
    /// Changes of the default schedule: batch, sub-batch, pattern, distance, unrolling, prefetching, order of
    /// classes.
    pub schedule: ScheduleChanges,
    /// Templates of hash tables, tries and classifiers, by the table's name.
    pub templates: BTreeMap<String, String>,
    /// Optimizations that are left out, by their names.
    pub without: BTreeSet<String>,
    /// Workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// Stages of a pipeline, each run by a worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages: Option<u32>,
}

impl PlanSettings {
    /// Maximum number of workers and of stages.
    pub const MOST_WORKERS: u32 = 64;

    /// True if the compiler decides everything.
    pub fn is_default(&self) -> bool {
        *self == PlanSettings::default()
    }

    /// Short description for tables: the settings, one after the other.
    pub fn summary(&self) -> String {
        if self.is_default() {
            return "default".to_owned();
        }
        let mut parts: Vec<String> = Vec::new();
        parts.extend(Some(self.schedule.to_string()).filter(|text| !text.is_empty()));
        parts.extend(self.templates.iter().map(|(table, template)| format!("{table}={template}")));
        parts.extend(self.without.iter().map(|name| format!("without {name}")));
        parts.extend(self.workers.map(|workers| format!("workers {workers}")));
        parts.extend(self.stages.map(|stages| format!("stages {stages}")));
        parts.join(" ")
    }
}

/// Program that a plan was made for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct ProgramIdentity {
    /// The file's name, or `builtin:NAME`.
    pub name: String,
    /// [`fingerprint`] of its text or bytes, with variables.
    pub hash: u64,
}

/// Circumstances in which a plan was made.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct PlanOrigin {
    /// Program.
    pub program: ProgramIdentity,
    /// Version of the compiler.
    pub version: String,
    /// Processor, number of processors, and sizes of caches, in one line.
    pub machine: String,
    /// Traffic, in one line.
    pub traffic: String,
    /// Objective of the search.
    pub goal: String,
    /// Candidates that were tried.
    pub trials: u64,
}

/// Measured gain: time of the default divided by the plan's time.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct PlanGain {
    /// The factor.
    pub factor: f64,
    /// Its 99 % interval.
    pub interval: [f64; 2],
}

impl fmt::Display for PlanGain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PlanGain { factor, interval: [low, high] } = self;
        write!(f, "{factor} ({low} to {high})")
    }
}

/// Settings with their origin, gain and reasons. The text form is written by `Display` and read by `FromStr`.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Plan {
    /// Circumstances in which it was made.
    pub origin: PlanOrigin,
    /// Gain over the default, if one was measured.
    pub gain: Option<PlanGain>,
    /// Reasons for the settings, a line each.
    pub why: Vec<String>,
    /// The settings.
    pub settings: PlanSettings,
}

/// Difference between the circumstances in which a plan was made and those in which it is used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PlanMismatch {
    /// The program is another one, or has changed.
    Program {
        /// Program of the plan.
        planned: String,
    },
    /// The compiler has another version.
    Version {
        /// Version of the plan.
        planned: String,
    },
    /// The machine is another one.
    Machine {
        /// Machine of the plan.
        planned: String,
        /// This machine.
        here: String,
    },
}

impl fmt::Display for PlanMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanMismatch::Program { planned } => {
                write!(f, "the plan was made for another program, or for another state of it ({planned})")
            }
            PlanMismatch::Version { planned } => write!(f, "the plan was made by version {planned}"),
            PlanMismatch::Machine { planned, here } => {
                write!(f, "the plan was made on another machine ({planned}; this is {here})")
            }
        }
    }
}

impl Plan {
    /// Differences from the circumstances in which it is used.
    pub fn mismatches(&self, program: u64, version: &str, machine: &str) -> Vec<PlanMismatch> {
        let origin = &self.origin;
        let mut found = Vec::new();
        if origin.program.hash != program {
            found.push(PlanMismatch::Program { planned: origin.program.name.clone() });
        }
        if origin.version != version {
            found.push(PlanMismatch::Version { planned: origin.version.clone() });
        }
        if origin.machine != machine {
            let (planned, here) = (origin.machine.clone(), machine.to_owned());
            found.push(PlanMismatch::Machine { planned, here });
        }
        found
    }
}

/// Fowler, Noll and Vo's hash, variant 1a, of 64 bits, over parts and their lengths. It tells programs apart
/// that nobody made to collide: a plan of another program costs time only.
pub fn fingerprint<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> u64 {
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    parts.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, part| {
        let hash = (part.len() as u64).to_le_bytes().iter().fold(hash, add);
        part.iter().fold(hash, add)
    })
}
