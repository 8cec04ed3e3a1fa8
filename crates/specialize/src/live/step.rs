//! Points at which a session can be held, for tests of what may come between.
//!
//! What is read at one time and relied on at another is right because of what notes, or undoes, what comes between. A test that waits for
//! that to happen sees it once in a thousand runs; one that holds the session where it is, and does it, sees it in every run. Nobody is called
//! unless a test has asked for it.
//!
//! Invariant: nothing is decided here.

use std::sync::Arc;

use crate::policy::Tier;

/// Where a session is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The look has begun for which a variant of this tier is made, and nothing was read for it.
    Begun(Tier),
    /// Its code is made of what the tables hold; nothing is loaded.
    Coded(Tier),
    /// It is loaded, and may have to be judged.
    Loaded(Tier),
    /// The judge is at work, and asks whether to go on.
    Judging(Tier),
    /// It is to be approved.
    Made(Tier),
    /// What stood by, or was made while tables were written, was brought up to date, and is to be approved.
    CaughtUp,
    /// What runs was held against the tables, and is to be approved.
    Followed,
    /// Something was approved and is not yet on the hook.
    Approved,
    /// The hook is about to change.
    Swapping,
    /// What program arrays hold was read, and is to be put into the session's own.
    Slots,
    /// What program arrays hold was found to be what the profiling variant calls, and is to be said.
    Called,
}

/// Who is called at each step, by the thread that is there.
#[derive(Clone, Default)]
pub struct Steps(Option<Arc<dyn Fn(Step) + Send + Sync>>);

impl Steps {
    /// This is called.
    pub fn new(called: impl Fn(Step) + Send + Sync + 'static) -> Steps {
        Steps(Some(Arc::new(called)))
    }

    pub(super) fn at(&self, step: Step) {
        if let Some(called) = &self.0 {
            called(step);
        }
    }
}

impl std::fmt::Debug for Steps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Steps(called)" } else { "Steps" })
    }
}
