//! Reports, in the form in which they are printed as JSON.

use std::fmt;

use millstream_passes::PassSession;
use serde::Serialize;

/// Outcome for a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FunctionOutcome {
    /// It has new instructions.
    Rewritten,
    /// Lifting and lowering gave the same instructions again.
    NothingToDo,
    /// The new instructions would have been more: the original is kept.
    NoGain {
        /// Slots it would have had.
        would_be: usize,
    },
    /// All other forms would have taken more predicted cycles: the original is kept.
    Slower,
    /// The original declares the effects allowed to programs that replace it (`freplace`), and is kept.
    Marked,
    /// The verifier might have taken longer for any other form: the original is kept.
    Costlier,
    /// Its large program would have gained less than the check of the verifier's effort is worth: the
    /// original is kept.
    SmallGain,
    /// Nothing calls it any more.
    Removed,
    /// It, or one of its references, is not understood: it is kept byte for byte.
    NotUnderstood(String),
    /// It cannot be lowered: the original is kept.
    Unsupported(String),
    /// The kernel rejected the new instructions: the original is kept.
    Rejected,
}

impl fmt::Display for FunctionOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FunctionOutcome::Rewritten => f.write_str("rewritten"),
            FunctionOutcome::NothingToDo => f.write_str("nothing to do"),
            FunctionOutcome::NoGain { would_be } => write!(f, "kept: would be {would_be} slots"),
            FunctionOutcome::Costlier => f.write_str("kept: the verifier might take longer for another form"),
            FunctionOutcome::SmallGain => f.write_str("kept: its large program would gain less than 0.5 %"),
            FunctionOutcome::Slower => f.write_str("kept: every other form would be slower by prediction"),
            FunctionOutcome::Marked => f.write_str("kept: it says what a program that replaces it may do"),
            FunctionOutcome::Removed => f.write_str("removed: nothing calls it"),
            FunctionOutcome::Unsupported(why) | FunctionOutcome::NotUnderstood(why) => {
                write!(f, "kept: {why}")
            }
            FunctionOutcome::Rejected => f.write_str("kept: the kernel rejected the result"),
        }
    }
}

/// A function before and after, in slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionReport {
    /// Name.
    pub name: String,
    /// Slots before.
    pub before: usize,
    /// Slots after.
    pub after: usize,
    /// Its outcome.
    pub outcome: FunctionOutcome,
}

/// Statistics of a pass.
#[derive(Clone, Debug, Serialize)]
pub struct PassReport {
    /// Name.
    pub name: &'static str,
    /// Number of its runs over a function or module.
    pub runs: u32,
    /// Rewrites granted.
    pub rewrites: u64,
    /// Time, in microseconds.
    pub micros: u64,
}

/// The kernel's measure of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KernelMetrics {
    /// Slots, subprograms included.
    pub slots: usize,
    /// Bytes of machine code.
    pub jited: u32,
    /// Instructions that the verifier walked.
    pub verified: u32,
}

/// Verdict of the kernel on a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelVerdict {
    /// Accepted before and after.
    Accepted,
    /// The original was not accepted, so that nothing can be said: why.
    NotLoadable(String),
    /// The original cannot be loaded here at all: why.
    NotSupported(String),
    /// Accepted after some rewrites were left out: the passes to blame, with the rewrites' numbers.
    Bisected(Vec<(String, u64)>),
    /// Accepted, made in another way than the one of the shortest bytecode: the excess of that one.
    Remade(String),
    /// No way was found; the original is kept: why.
    Original(String),
}

/// A program before and after.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramReport {
    /// Name.
    pub name: String,
    /// Section.
    pub section: String,
    /// The kernel's verdict on it.
    pub verdict: KernelVerdict,
    /// The original.
    pub before: Option<KernelMetrics>,
    /// The result.
    pub after: Option<KernelMetrics>,
}

pub(crate) fn passes(session: &PassSession) -> Vec<PassReport> {
    let report = |(name, s): (&'static str, millstream_passes::PassStat)| PassReport {
        name,
        runs: s.runs,
        rewrites: s.rewrites,
        micros: s.time.as_micros() as u64,
    };
    session.stats().into_iter().map(report).collect()
}
