//! State machine of a session: its answers to each event, by the state of the code on the hook.
//!
//! [`responses`] is the whole table. The session tries the responses of a row in order, until one of them has
//! dealt with the event; a response that does not apply, or fails, leaves the event to the next.
//!
//! | state | new write | unanswered write | write while the hook is busy | write while code is made | quiet |
//! |---|---|---|---|---|---|
//! | original | - | - | - | - | - |
//! | current | - | - | - | - | standby, wait, recompile |
//! | stale | follow, standby, recompile | standby, recompile | follow, redirect | follow, standby | as above |
//! | redirected | standby, recompile | standby, recompile | redirect | redirect | as above |
//!
//! An inspection of the traffic finds variants that were turned off and whose event was lost: it answers as if
//! there were a new write.
//!
//! Invariant: nothing is done here. A row names no response that could let a variant run without a snapshot.

/// State of the code on the hook.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SessionState {
    /// No variant is active.
    Original,
    /// The active variant runs, and is up to date.
    Current,
    /// The guard turns packets away from the active variant, or from its code for some maps.
    Stale,
    /// The standby variant handles packets from its slot, in place of the active one.
    Redirected,
}

/// Event that a session answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SessionEvent {
    /// Somebody has written a map, or may have.
    Write,
    /// A write that the active variant could not follow, while something else was under way.
    UnansweredWrite,
    /// A write while the hook is changed, or measured.
    WriteWhileBusy,
    /// A write while a variant is made.
    WriteWhileCompiling,
    /// The traffic is inspected.
    Inspection,
    /// There was no write for long enough.
    Quiet,
}

/// Answer to an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SessionResponse {
    /// The active variant is brought up to date, and goes on.
    Follow,
    /// The standby variant comes onto the hook.
    ActivateFallback,
    /// The standby variant handles packets from its slot until the hook can be changed.
    RedirectToFallback,
    /// A variant is made from the current maps.
    Recompile,
    /// A standby variant is made, if there is none.
    MakeFallback,
    /// Nothing is made while all maps that could be in code change too often.
    AwaitStableMaps,
    /// A variant with whole tables in code is made.
    RecompileThoroughly,
}

/// Lists the answers to an event, in the order in which they are tried.
pub(super) fn responses(state: SessionState, event: SessionEvent) -> &'static [SessionResponse] {
    use SessionEvent::{Inspection, Quiet, UnansweredWrite, Write, WriteWhileBusy, WriteWhileCompiling};
    use SessionResponse::{
        ActivateFallback, AwaitStableMaps, Follow, MakeFallback, Recompile, RecompileThoroughly,
        RedirectToFallback,
    };
    use SessionState::{Current, Original, Redirected, Stale};
    match (state, event) {
        (Original, _) => &[],
        (_, Quiet) => &[MakeFallback, AwaitStableMaps, RecompileThoroughly],
        (Current, _) => &[],
        (Stale, Write | Inspection) => &[Follow, ActivateFallback, Recompile],
        (Stale, WriteWhileBusy) => &[Follow, RedirectToFallback],
        (Stale, WriteWhileCompiling) => &[Follow, ActivateFallback],
        (Redirected, WriteWhileBusy | WriteWhileCompiling) => &[RedirectToFallback],
        (Stale, UnansweredWrite) | (Redirected, Write | UnansweredWrite | Inspection) => {
            &[ActivateFallback, Recompile]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [SessionState; 4] =
        [SessionState::Original, SessionState::Current, SessionState::Stale, SessionState::Redirected];
    const EVENTS: [SessionEvent; 6] = [
        SessionEvent::Write,
        SessionEvent::UnansweredWrite,
        SessionEvent::WriteWhileBusy,
        SessionEvent::WriteWhileCompiling,
        SessionEvent::Inspection,
        SessionEvent::Quiet,
    ];

    #[test]
    fn without_a_variant_nothing_is_done() {
        assert!(EVENTS.iter().all(|event| responses(SessionState::Original, *event).is_empty()));
    }

    #[test]
    fn a_variant_that_is_up_to_date_is_left_alone_by_writes() {
        let writes = EVENTS.iter().filter(|event| **event != SessionEvent::Quiet);
        assert!(writes.clone().all(|event| responses(SessionState::Current, *event).is_empty()));
    }

    #[test]
    fn new_code_is_the_last_resort_and_never_made_while_the_session_is_busy() {
        for (state, event) in STATES.iter().flat_map(|s| EVENTS.iter().map(move |e| (*s, *e))) {
            let answers = responses(state, event);
            let at = answers.iter().position(|answer| *answer == SessionResponse::Recompile);
            assert!(at.is_none_or(|at| at + 1 == answers.len()), "{state:?} {event:?}");
            let is_busy = matches!(event, SessionEvent::WriteWhileBusy | SessionEvent::WriteWhileCompiling);
            assert!(!is_busy || at.is_none(), "{state:?} {event:?}");
        }
    }

    #[test]
    fn a_variant_that_was_redirected_is_not_brought_up_to_date() {
        let follows = |event: &&SessionEvent| {
            responses(SessionState::Redirected, **event).contains(&SessionResponse::Follow)
        };
        assert_eq!(EVENTS.iter().find(follows), None);
    }
}
