//! Handling of writes while something else is under way.

use std::sync::atomic::{AtomicBool, Ordering};

use millstream_specializer::policy::Tier;

use super::state_machine::SessionEvent;
use crate::report::CompileReason;

/// A variant that is being made.
#[derive(Debug)]
pub(super) struct PendingCompile {
    tier: Tier,
    reason: CompileReason,
    /// True if it is no longer needed.
    is_called_off: AtomicBool,
}

impl PendingCompile {
    pub(super) fn new(tier: Tier, reason: CompileReason) -> PendingCompile {
        PendingCompile { tier, reason, is_called_off: AtomicBool::new(false) }
    }

    pub(super) fn is_called_off(&self) -> bool {
        self.is_called_off.load(Ordering::SeqCst)
    }

    pub(super) fn call_off(&self) {
        self.is_called_off.store(true, Ordering::SeqCst);
    }

    /// Notes that the standby variant has taken over. A variant with whole tables in code was made from
    /// others.
    pub(super) fn another_runs(&self) {
        if self.tier != Tier::Quick {
            self.call_off();
        }
    }

    /// Notes that nothing specialised runs until there is new code; this task makes it, or must make room for
    /// it.
    pub(super) fn nothing_runs(&self) {
        if self.reason != CompileReason::Write {
            self.call_off();
        }
    }
}

/// Duties towards writes while something else is under way.
#[derive(Clone, Copy, Debug)]
pub(super) enum WriteHandling<'t> {
    /// The running variant follows them, or the standby variant goes ahead: the hook is being changed, or
    /// measured.
    Follow,
    /// The standby variant takes over as well, while a variant is made.
    Serve(&'t PendingCompile),
}

impl WriteHandling<'_> {
    pub(super) fn event(self) -> SessionEvent {
        match self {
            WriteHandling::Follow => SessionEvent::WriteWhileBusy,
            WriteHandling::Serve(_) => SessionEvent::WriteWhileCompiling,
        }
    }
}
