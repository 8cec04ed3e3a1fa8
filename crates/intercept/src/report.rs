//! Reports of loads.

use serde::Serialize;

/// A program that the loader has loaded, or tried to load.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LoadReport {
    /// The process that loaded it.
    pub process: u32,
    /// Name of the program; empty if it was not read.
    pub program: String,
    /// Its type, as the kernel names it; empty if it was not read.
    pub program_type: String,
    /// Result.
    #[serde(flatten)]
    pub outcome: LoadOutcome,
    /// Microseconds that the loader waited for the decision.
    pub micros: u64,
}

/// Result of an intercepted load.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum LoadOutcome {
    /// The loader got the optimized program.
    Optimized {
        /// Slots before, with all functions.
        slots_before: u32,
        /// Slots after.
        slots_after: u32,
        /// Predicted cycles of one run before, in thousandths.
        millicycles_before: u64,
        /// Predicted cycles of one run after, in thousandths.
        millicycles_after: u64,
        /// True if the two were proven to behave alike.
        proven: bool,
    },
    /// The loader's own call went on, for a reason.
    Kept {
        /// The reason.
        reason: String,
    },
}
