//! Points at which a session can be held, for tests of concurrent events.
//!
//! Contents that are read at one time and relied on at another are right because events in between are noted,
//! or undone. A test that waits for such an event sees it once in a thousand runs; one that holds the session
//! at the point, and causes the event, sees it in every run. Nothing is called unless a test has asked for
//! it.
//!
//! Invariant: nothing is decided here.

use std::sync::Arc;

use millstream_specializer::policy::Tier;

/// Points in a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionStep {
    /// The look has begun for which a variant of this tier is made, and nothing has been read for it.
    Begun(Tier),
    /// Its code is made from the contents of the tables; nothing is loaded.
    Coded(Tier),
    /// It is loaded, and may have to be judged.
    Loaded(Tier),
    /// The judge is running, and asks if it should go on.
    Judging(Tier),
    /// It is to be approved.
    Made(Tier),
    /// A standby variant, or one made while tables were written, was brought up to date, and is to be
    /// approved.
    CaughtUp,
    /// The running variant was compared with the tables, and is to be approved.
    Followed,
    /// A variant was approved and is not yet on the hook.
    Approved,
    /// The hook is about to change.
    Swapping,
    /// The contents of the program arrays were read, and are to be put into the session's own.
    Slots,
    /// The contents of the program arrays were found to match the calls of the profiling variant, and the
    /// guard is to be told.
    Called,
}

/// Callback at each step, called by the thread that is there.
#[derive(Clone, Default)]
pub struct StepCallback(Option<Arc<dyn Fn(SessionStep) + Send + Sync>>);

impl StepCallback {
    /// Calls `called` at each step.
    pub fn new(called: impl Fn(SessionStep) + Send + Sync + 'static) -> StepCallback {
        StepCallback(Some(Arc::new(called)))
    }

    pub(super) fn at(&self, step: SessionStep) {
        if let Some(called) = &self.0 {
            called(step);
        }
    }
}

impl std::fmt::Debug for StepCallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Steps(called)" } else { "Steps" })
    }
}
