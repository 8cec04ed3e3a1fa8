//! The tuner: it searches plans for the one that makes a program fastest on a machine and a traffic.
//!
//! [`SearchSpace`] says what varies. [`search()`] runs an evolutionary, random or greedy search, whose
//! candidates a [`CandidateJudge`] measures against the best one so far, by [`race()`]s of interleaved pairs.
//! [`MachineCurves`] and [`ProgramDemand`] are the performance model of APSys'17 (section 3.5), from which the
//! search starts. The search is that of NFMorph (HotNets'18, section 3.2).
//!
//! Architecture Invariant: no I/O, no clock and no native code: whoever searches brings the measurements, and
//! so tests are deterministic.
//!
//! Architecture Invariant: nothing is called a gain whose 99 % interval includes none.

mod curves;
mod model;
mod race;
mod search;
mod space;

pub use curves::{CurveError, IoCurvePoint, IoKind, MachineCurves, MemoryCurvePoint};
pub use model::{BATCHES, BoundShares, LookupDemand, ModelPoint, ProgramDemand};
pub use race::{GainCheck, RaceOutcome, RaceRules, check_gain, race};
pub use search::{CandidateJudge, CandidateResult, SearchMethod, SearchResult, TrialRecord, search};
pub use space::{Candidate, SearchSpace, TuningKnob};
