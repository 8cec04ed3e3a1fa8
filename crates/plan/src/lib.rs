//! Plans: everything that changes the speed of native code and not its behaviour.
//!
//! [`PlanSettings`] holds the settings, [`Plan`] adds their origin: program, machine, traffic, goal, measured
//! gain and reasons. A setting that is unset is decided by the compiler. Back ends take plans, the performance
//! model proposes them, the tuner searches them, reports print them. [`Schedule`] is the part of them that
//! orders packets and stages.
//!
//! Architecture Invariant: no I/O, and no knowledge of a back end. Nothing in a plan can change the effect of
//! a program, so a wrong plan costs time and never correctness. A damaged text is an error with its line.

mod plan;
mod schedule;
mod text;

pub use plan::{Plan, PlanGain, PlanMismatch, PlanOrigin, PlanSettings, ProgramIdentity, fingerprint};
pub use schedule::{
    BatchReordering, CachedTraversal, CompiledSchedule, PrefetchDecision, PrefetchPolicy, Schedule,
    ScheduleChanges, SchedulePattern, TraversalCaching, TraversalReport, UncachedLookup, nearest,
};
pub use text::PlanError;
