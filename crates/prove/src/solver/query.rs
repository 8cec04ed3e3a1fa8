//! Questions to solvers.

use std::time::Duration;

use crate::term::{TermId, TermPool};

/// A question.
pub(super) struct SolverQuery<'a> {
    pub(super) terms: &'a TermPool,
    pub(super) claim: TermId,
    pub(super) wanted: &'a [TermId],
    pub(super) time: Duration,
    /// True if it is solved on its own, without lemmas learnt from earlier questions.
    pub(super) alone: bool,
}
