//! The thread of one program: a sequence of sessions, until it is told to end.
//!
//! Failures stay in this thread. A session that fails, or panics, leaves its original on the interfaces (or
//! the program that it had adopted); the status reports the failure, and another session is tried after a
//! while, which takes over the state that the last one has left.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use millstream_kernel::interface_index;
use millstream_specialize::pins::PinDir;
use millstream_specialize::{
    LiveError, LiveSession, ProfileSettings, SessionReport, SessionSettings, adopt, variant_compiler,
};
use millstream_specializer::saved_profile::SavedProfile;

use super::config::ProgramConfig;
use super::protocol::ProgramState;
use super::slot::{
    CommandReceiver, ManagedProgram, PendingCommand, ProgramAspect, ProgramView, WorkerCommand,
};
use crate::run::advice;
use crate::{internal, program_object};

/// Delay from a failure to the next attempt: at first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Interval between two checks for an interface, or of a paused program.
const LOOK: Duration = Duration::from_secs(1);

/// Normal end of a session, with the order that asked for it.
enum SessionEnd {
    Stopped(PendingCommand),
    ForGood(PendingCommand),
}

/// Reason why a session failed.
struct SessionFailure {
    reason: String,
    advice: Vec<String>,
}

impl SessionFailure {
    fn new(reason: impl Into<String>, advice: impl Into<String>) -> SessionFailure {
        SessionFailure { reason: reason.into(), advice: vec![advice.into()] }
    }
}

/// Keeps a program on its interfaces until the order to end.
pub(super) fn work(slot: &ManagedProgram, orders: &CommandReceiver) {
    let mut retry = RETRY.0;
    loop {
        slot.enter(ProgramState::Starting);
        let start = Instant::now();
        let ended = catch_unwind(AssertUnwindSafe(|| WorkerSession::new(slot, orders).run()));
        let ended = ended.unwrap_or_else(|panic| {
            internal::mark_handled();
            Err(of_panic(&*panic))
        });
        match ended {
            Ok(SessionEnd::ForGood(given)) => {
                slot.enter(ProgramState::Stopped);
                return given.complete(Ok(()));
            }
            Ok(SessionEnd::Stopped(given)) => {
                slot.enter(ProgramState::Stopped);
                given.complete(Ok(()));
                if stay_stopped(orders) {
                    return;
                }
                retry = RETRY.0;
            }
            Err(SessionFailure { reason, advice }) => {
                slot.enter_for(ProgramState::Failed, Some(reason), advice);
                if start.elapsed() > RETRY.1 {
                    retry = RETRY.0;
                }
                if stay_failed(slot, orders, retry) {
                    slot.enter(ProgramState::Stopped);
                    return;
                }
                retry = (2 * retry).min(RETRY.1);
            }
        }
    }
}

/// Waits for the order to resume (`false`) or to end (`true`).
fn stay_stopped(orders: &CommandReceiver) -> bool {
    loop {
        let Some(given) = orders.next(Duration::from_secs(3600)) else { continue };
        let order = given.order;
        match order {
            WorkerCommand::Pause | WorkerCommand::RollBack | WorkerCommand::Look(_) => {
                given.complete(Err("it is stopped".into()))
            }
            WorkerCommand::Stop | WorkerCommand::End | WorkerCommand::Resume => given.complete(Ok(())),
        }
        match order {
            WorkerCommand::Resume => return false,
            WorkerCommand::End => return true,
            _ => {}
        }
    }
}

/// Waits for the next attempt; `true` if there is to be none.
fn stay_failed(slot: &ManagedProgram, orders: &CommandReceiver, time: Duration) -> bool {
    let end = Instant::now() + time;
    loop {
        let Some(left) = end.checked_duration_since(Instant::now()).filter(|l| !l.is_zero()) else {
            return false;
        };
        let Some(given) = orders.next(left) else { return false };
        let order = given.order;
        match order {
            WorkerCommand::Pause | WorkerCommand::RollBack | WorkerCommand::Look(_) => {
                given.complete(Err("it has failed; `millstream status` says why".into()));
            }
            WorkerCommand::Resume => {
                given.complete(Ok(()));
                return false;
            }
            WorkerCommand::Stop | WorkerCommand::End => {
                let result = give_back(slot);
                if order == WorkerCommand::Stop && result.is_err() {
                    given.complete(result);
                    continue;
                }
                slot.enter(ProgramState::Stopped);
                given.complete(Ok(()));
                return order == WorkerCommand::End || stay_stopped(orders);
            }
        }
    }
}

/// Gives back the interfaces that failed or killed sessions have left, unless they are to be kept.
fn give_back(slot: &ManagedProgram) -> Result<(), String> {
    if slot.entry.keep {
        return Ok(());
    }
    let given = millstream_specialize::restore_hooks(&PinDir::new(&slot.entry.pins), &present(&slot.entry));
    given.map_err(|error| {
        tracing::warn!(program = slot.entry.name, "what is on its interfaces cannot be given back: {error}");
        error.to_string()
    })
}

/// Its interfaces that exist.
fn present(entry: &ProgramConfig) -> Vec<u32> {
    entry.interfaces.iter().filter_map(|name| interface_index(name).ok()).collect()
}

fn of_panic(panic: &(dyn std::any::Any + Send)) -> SessionFailure {
    SessionFailure::new(
        format!("internal error: {}", internal::message(panic)),
        "this is a defect of Millstream's: please report it",
    )
}

/// An error with its causes.
fn chain_text(error: &miette::Report) -> String {
    error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// One session of a program.
struct WorkerSession<'s> {
    slot: &'s ManagedProgram,
    orders: &'s CommandReceiver,
    state: ProgramState,
}

impl WorkerSession<'_> {
    fn new<'s>(slot: &'s ManagedProgram, orders: &'s CommandReceiver) -> WorkerSession<'s> {
        WorkerSession { slot, orders, state: ProgramState::Running }
    }

    fn run(mut self) -> Result<SessionEnd, SessionFailure> {
        let entry = &self.slot.entry;
        let read = program_object::read(&entry.object, &entry.bundles)
            .map_err(|e| SessionFailure::new(chain_text(&e), "give another object"))?;
        let mut object = read.object;
        self.slot.store_form(read.form);
        let profile = self.profile(read.profile);
        entry.check_object(&object).map_err(|e| SessionFailure::new(e.to_string(), e.help))?;
        let present = match self.wait_for_interfaces() {
            Ok(present) => present,
            Err(ended) => {
                // An order to end is obeyed in any case.
                let _ = give_back(self.slot);
                return Ok(ended);
            }
        };
        let program = entry.program.as_deref();
        if entry.adopt.is_some() {
            adopt::fit(&mut object, program, &present, entry.egress, &entry.pins)
                .map_err(|e| self.failure(&e))?;
        }
        let compiler = variant_compiler(&object, program).map_err(|e| {
            let help = "`millstream inspect` shows the object's programs; name one by `program`";
            SessionFailure::new(format!("{}: {e}", entry.object.display()), help)
        })?;
        let settings = SessionSettings { profile, ..entry.settings(&present) };
        let mut live = LiveSession::load(&compiler, settings).map_err(|e| self.failure(&e))?;
        self.attach(&mut live, &present)?;
        loop {
            match self.step(&mut live) {
                Ok(Some(given)) => return self.end(live, given),
                Ok(None) => {}
                // Maps keep their contents until the interface is back. An adopted program does not come
                // back.
                Err(LiveError::Gone(_)) if entry.adopt.is_none() => {
                    self.slot.record_report(&SessionReport::Moved { interfaces: Vec::new() });
                    match self.wait_for_interfaces() {
                        Ok(present) => self.attach(&mut live, &present)?,
                        Err(SessionEnd::Stopped(given) | SessionEnd::ForGood(given)) => {
                            return self.end(live, given);
                        }
                    }
                }
                Err(error) => return Err(self.failure(&error)),
            }
        }
    }

    /// Profiles of the session. A file that cannot be used is left alone, and the program runs without it.
    fn profile(&self, bundled: Option<SavedProfile>) -> ProfileSettings {
        let entry = &self.slot.entry;
        if let Some(folder) = entry.profile.as_ref().and_then(|file| file.parent()) {
            // If it fails, the settings have no such folder, and say so.
            let _ = DirBuilder::new().mode(0o700).recursive(true).create(folder);
        }
        program_object::profile_settings(entry.profile.as_deref(), bundled.clone()).unwrap_or_else(|error| {
            tracing::warn!(program = entry.name, "{}", chain_text(&error));
            ProfileSettings { start: bundled, file: None }
        })
    }

    fn attach(&mut self, live: &mut LiveSession<'_>, interfaces: &[u32]) -> Result<(), SessionFailure> {
        let report = live.attach(interfaces).map_err(|e| self.failure(&e))?;
        self.slot.record_report(&report);
        self.slot.enter(self.state);
        Ok(())
    }

    /// Waits until one of the interfaces exists.
    fn wait_for_interfaces(&self) -> Result<Vec<u32>, SessionEnd> {
        let names = &self.slot.entry.interfaces;
        loop {
            let present = present(&self.slot.entry);
            if !present.is_empty() {
                return Ok(present);
            }
            let reason = format!("there is no interface {}", names.join(", "));
            self.slot.enter_for(
                ProgramState::Waiting,
                Some(reason),
                vec!["`ip link` lists the interfaces".into()],
            );
            let Some(given) = self.orders.next(LOOK) else { continue };
            match given.order {
                WorkerCommand::Stop => return Err(SessionEnd::Stopped(given)),
                WorkerCommand::End => return Err(SessionEnd::ForGood(given)),
                WorkerCommand::Resume => given.complete(Ok(())),
                WorkerCommand::Pause | WorkerCommand::RollBack | WorkerCommand::Look(_) => {
                    given.complete(Err("its interface is not there".into()));
                }
            }
        }
    }

    /// Executes the next order, or the session's pending work; returns the order to end.
    fn step(&mut self, live: &mut LiveSession<'_>) -> Result<Option<PendingCommand>, LiveError> {
        self.slot.interrupt.store(false, Ordering::SeqCst);
        let running = self.state == ProgramState::Running;
        if let Some(given) = self.orders.next(if running { Duration::ZERO } else { LOOK }) {
            return self.carry_out(live, given);
        }
        if running {
            let slot = self.slot;
            live.run(&slot.interrupt, &mut |report| {
                slot.record_report(report);
                if matches!(report, SessionReport::Status { .. }) && !slot.returned_interfaces().is_empty() {
                    slot.interrupt.store(true, Ordering::SeqCst);
                }
            })?;
        } else {
            live.check_place(&mut |report| self.slot.record_report(report))?;
            self.slot.record_report(&live.status());
        }
        for ifindex in self.slot.returned_interfaces() {
            if let Err(error) = live.join(ifindex, &mut |report| self.slot.record_report(report)) {
                tracing::warn!(program = self.slot.entry.name, "interface {ifindex}: {error}");
            }
        }
        Ok(None)
    }

    fn carry_out(
        &mut self,
        live: &mut LiveSession<'_>,
        given: PendingCommand,
    ) -> Result<Option<PendingCommand>, LiveError> {
        match given.order {
            WorkerCommand::Stop | WorkerCommand::End => return Ok(Some(given)),
            WorkerCommand::Look(aspect) => {
                let found = match aspect {
                    ProgramAspect::Lookups => live.details().map(ProgramView::Lookups),
                    ProgramAspect::Code => live.code().map(ProgramView::Code),
                };
                given.complete(found.map(|view| self.slot.store_view(view)).map_err(|e| e.to_string()));
                return Ok(None);
            }
            WorkerCommand::Pause if self.state == ProgramState::RolledBack => {}
            WorkerCommand::Pause => self.state = ProgramState::Paused,
            WorkerCommand::Resume => self.state = ProgramState::Running,
            WorkerCommand::RollBack => {
                let slot = self.slot;
                if let Err(error) = live.roll_back("as asked for", &mut |report| slot.record_report(report)) {
                    given.complete(Err(error.to_string()));
                    return Err(error);
                }
                self.state = ProgramState::RolledBack;
            }
        }
        self.slot.enter(self.state);
        self.slot.record_report(&live.status());
        given.complete(Ok(()));
        Ok(None)
    }

    fn end(&self, live: LiveSession<'_>, given: PendingCommand) -> Result<SessionEnd, SessionFailure> {
        let report = match live.finish(self.slot.entry.leave()) {
            Ok(report) => report,
            Err(error) => {
                let failure = self.failure(&error);
                // An order to end is obeyed in any case.
                if given.order == WorkerCommand::End {
                    tracing::warn!(program = self.slot.entry.name, "{}", failure.reason);
                    return Ok(SessionEnd::ForGood(given));
                }
                given.complete(Err(failure.reason.clone()));
                return Err(failure);
            }
        };
        self.slot.record_report(&report);
        Ok(if given.order == WorkerCommand::End {
            SessionEnd::ForGood(given)
        } else {
            SessionEnd::Stopped(given)
        })
    }

    fn failure(&self, error: &LiveError) -> SessionFailure {
        let entry = &self.slot.entry;
        let (advice, _) = advice::on(&entry.interfaces.join(", "), &entry.pins, error);
        SessionFailure { reason: error.to_string(), advice }
    }
}
