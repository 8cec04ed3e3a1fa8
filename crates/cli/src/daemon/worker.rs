//! The thread of one program: a sequence of sessions, until it is told to end.
//!
//! Failures stay in this thread. A session that fails, or panics, leaves its original on the interfaces (or
//! the program that it had adopted); the status reports the failure, and another session is tried after a
//! while, which takes over the state that the last one has left.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use millstream_kernel::interface_index;
use millstream_specialize::pins::Pins;
use millstream_specialize::{Compiler, Live, LiveError, Report, adopt};

use super::config::Entry;
use super::protocol::State;
use super::slot::{Given, Order, Orders, Slot};
use crate::run::advice;
use crate::{input, internal};

/// Delay from a failure to the next attempt: at first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Interval between two checks for an interface, or of a paused program.
const LOOK: Duration = Duration::from_secs(1);

/// Normal end of a session, with the order that asked for it.
enum Ended {
    Stopped(Given),
    ForGood(Given),
}

/// Reason why a session failed.
struct Failure {
    reason: String,
    advice: Vec<String>,
}

impl Failure {
    fn new(reason: impl Into<String>, advice: impl Into<String>) -> Failure {
        Failure { reason: reason.into(), advice: vec![advice.into()] }
    }
}

/// Keeps a program on its interfaces until the order to end.
pub(super) fn work(slot: &Slot, orders: &Orders) {
    let mut retry = RETRY.0;
    loop {
        slot.enter(State::Starting);
        let start = Instant::now();
        let ended = catch_unwind(AssertUnwindSafe(|| Session::new(slot, orders).run()));
        let ended = ended.unwrap_or_else(|panic| {
            internal::was_dealt_with();
            Err(of_panic(&*panic))
        });
        match ended {
            Ok(Ended::ForGood(given)) => {
                slot.enter(State::Stopped);
                return given.done(Ok(()));
            }
            Ok(Ended::Stopped(given)) => {
                slot.enter(State::Stopped);
                given.done(Ok(()));
                if stay_stopped(orders) {
                    return;
                }
                retry = RETRY.0;
            }
            Err(Failure { reason, advice }) => {
                slot.enter_for(State::Failed, Some(reason), advice);
                if start.elapsed() > RETRY.1 {
                    retry = RETRY.0;
                }
                if stay_failed(slot, orders, retry) {
                    slot.enter(State::Stopped);
                    return;
                }
                retry = (2 * retry).min(RETRY.1);
            }
        }
    }
}

/// Waits for the order to resume (`false`) or to end (`true`).
fn stay_stopped(orders: &Orders) -> bool {
    loop {
        let Some(given) = orders.next(Duration::from_secs(3600)) else { continue };
        let order = given.order;
        match order {
            Order::Pause | Order::RollBack | Order::Look => given.done(Err("it is stopped".into())),
            Order::Stop | Order::End | Order::Resume => given.done(Ok(())),
        }
        match order {
            Order::Resume => return false,
            Order::End => return true,
            _ => {}
        }
    }
}

/// Waits for the next attempt; `true` if there is to be none.
fn stay_failed(slot: &Slot, orders: &Orders, time: Duration) -> bool {
    let end = Instant::now() + time;
    loop {
        let Some(left) = end.checked_duration_since(Instant::now()).filter(|l| !l.is_zero()) else {
            return false;
        };
        let Some(given) = orders.next(left) else { return false };
        let order = given.order;
        match order {
            Order::Pause | Order::RollBack | Order::Look => {
                given.done(Err("it has failed; `millstream status` says why".into()));
            }
            Order::Resume => {
                given.done(Ok(()));
                return false;
            }
            Order::Stop | Order::End => {
                let result = give_back(slot);
                if order == Order::Stop && result.is_err() {
                    given.done(result);
                    continue;
                }
                slot.enter(State::Stopped);
                given.done(Ok(()));
                return order == Order::End || stay_stopped(orders);
            }
        }
    }
}

/// Gives back the interfaces that failed or killed sessions have left, unless they are to be kept.
fn give_back(slot: &Slot) -> Result<(), String> {
    if slot.entry.keep {
        return Ok(());
    }
    let given = millstream_specialize::give_back(&Pins::new(&slot.entry.pins), &present(&slot.entry));
    given.map_err(|error| {
        tracing::warn!(program = slot.entry.name, "what is on its interfaces cannot be given back: {error}");
        error.to_string()
    })
}

/// Its interfaces that exist.
fn present(entry: &Entry) -> Vec<u32> {
    entry.interfaces.iter().filter_map(|name| interface_index(name).ok()).collect()
}

fn of_panic(panic: &(dyn std::any::Any + Send)) -> Failure {
    Failure::new(
        format!("internal error: {}", internal::message(panic)),
        "this is a defect of Millstream's: please report it",
    )
}

/// One session of a program.
struct Session<'s> {
    slot: &'s Slot,
    orders: &'s Orders,
    state: State,
}

impl Session<'_> {
    fn new<'s>(slot: &'s Slot, orders: &'s Orders) -> Session<'s> {
        Session { slot, orders, state: State::Running }
    }

    fn run(mut self) -> Result<Ended, Failure> {
        let entry = &self.slot.entry;
        let mut object =
            input::read(&entry.object).map_err(|e| Failure::new(format!("{e}"), "give another object"))?;
        entry.check_object(&object).map_err(|e| Failure::new(e.to_string(), e.help))?;
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
        let compiler = Compiler::new(&object, program).map_err(|e| {
            let help = "`millstream inspect` shows the object's programs; name one by `program`";
            Failure::new(format!("{}: {e}", entry.object.display()), help)
        })?;
        let mut live = Live::load(&compiler, entry.settings(&present)).map_err(|e| self.failure(&e))?;
        self.attach(&mut live, &present)?;
        loop {
            match self.step(&mut live) {
                Ok(Some(given)) => return self.end(live, given),
                Ok(None) => {}
                // Maps keep their contents until the interface is back. An adopted program does not come
                // back.
                Err(LiveError::Gone(_)) if entry.adopt.is_none() => {
                    self.slot.tell(&Report::Moved { interfaces: Vec::new() });
                    match self.wait_for_interfaces() {
                        Ok(present) => self.attach(&mut live, &present)?,
                        Err(Ended::Stopped(given) | Ended::ForGood(given)) => return self.end(live, given),
                    }
                }
                Err(error) => return Err(self.failure(&error)),
            }
        }
    }

    fn attach(&mut self, live: &mut Live<'_>, interfaces: &[u32]) -> Result<(), Failure> {
        let report = live.attach(interfaces).map_err(|e| self.failure(&e))?;
        self.slot.tell(&report);
        self.slot.enter(self.state);
        Ok(())
    }

    /// Waits until one of the interfaces exists.
    fn wait_for_interfaces(&self) -> Result<Vec<u32>, Ended> {
        let names = &self.slot.entry.interfaces;
        loop {
            let present = present(&self.slot.entry);
            if !present.is_empty() {
                return Ok(present);
            }
            let reason = format!("there is no interface {}", names.join(", "));
            self.slot.enter_for(State::Waiting, Some(reason), vec!["`ip link` lists the interfaces".into()]);
            let Some(given) = self.orders.next(LOOK) else { continue };
            match given.order {
                Order::Stop => return Err(Ended::Stopped(given)),
                Order::End => return Err(Ended::ForGood(given)),
                Order::Resume => given.done(Ok(())),
                Order::Pause | Order::RollBack | Order::Look => {
                    given.done(Err("its interface is not there".into()));
                }
            }
        }
    }

    /// Executes the next order, or the session's pending work; returns the order to end.
    fn step(&mut self, live: &mut Live<'_>) -> Result<Option<Given>, LiveError> {
        self.slot.interrupt.store(false, Ordering::SeqCst);
        let running = self.state == State::Running;
        if let Some(given) = self.orders.next(if running { Duration::ZERO } else { LOOK }) {
            return self.carry_out(live, given);
        }
        if running {
            let slot = self.slot;
            live.run(&slot.interrupt, &mut |report| {
                slot.tell(report);
                if matches!(report, Report::Status { .. }) && !slot.back().is_empty() {
                    slot.interrupt.store(true, Ordering::SeqCst);
                }
            })?;
        } else {
            live.check_place(&mut |report| self.slot.tell(report))?;
            self.slot.tell(&live.status());
        }
        for ifindex in self.slot.back() {
            if let Err(error) = live.join(ifindex, &mut |report| self.slot.tell(report)) {
                tracing::warn!(program = self.slot.entry.name, "interface {ifindex}: {error}");
            }
        }
        Ok(None)
    }

    fn carry_out(&mut self, live: &mut Live<'_>, given: Given) -> Result<Option<Given>, LiveError> {
        match given.order {
            Order::Stop | Order::End => return Ok(Some(given)),
            Order::Look => {
                let found = live.details().map(|details| self.slot.found(details));
                given.done(found.map_err(|e| e.to_string()));
                return Ok(None);
            }
            Order::Pause if self.state == State::RolledBack => {}
            Order::Pause => self.state = State::Paused,
            Order::Resume => self.state = State::Running,
            Order::RollBack => {
                let slot = self.slot;
                if let Err(error) = live.roll_back("as asked for", &mut |report| slot.tell(report)) {
                    given.done(Err(error.to_string()));
                    return Err(error);
                }
                self.state = State::RolledBack;
            }
        }
        self.slot.enter(self.state);
        self.slot.tell(&live.status());
        given.done(Ok(()));
        Ok(None)
    }

    fn end(&self, live: Live<'_>, given: Given) -> Result<Ended, Failure> {
        let report = match live.finish(self.slot.entry.leave()) {
            Ok(report) => report,
            Err(error) => {
                let failure = self.failure(&error);
                // An order to end is obeyed in any case.
                if given.order == Order::End {
                    tracing::warn!(program = self.slot.entry.name, "{}", failure.reason);
                    return Ok(Ended::ForGood(given));
                }
                given.done(Err(failure.reason.clone()));
                return Err(failure);
            }
        };
        self.slot.tell(&report);
        Ok(if given.order == Order::End { Ended::ForGood(given) } else { Ended::Stopped(given) })
    }

    fn failure(&self, error: &LiveError) -> Failure {
        let entry = &self.slot.entry;
        let (advice, _) = advice::on(&entry.interfaces.join(", "), &entry.pins, error);
        Failure { reason: error.to_string(), advice }
    }
}
