//! Writes to maps whose contents are in code, answered by a stand-by variant.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millstream_kernel::{KernelMap, UpdateMode, testing};
use millstream_programs::router;
use millstream_specialize::live::step::{SessionStep, StepCallback};
use millstream_specialize::report::{CompileReason, GuardState};
use millstream_specialize::{LiveSession, SessionReport};
use millstream_specializer::policy::Tier;

use crate::routed::{HOPS, Routed, Wanted, attached, generation, same_answers};

/// Offsets of the addresses in a next hop, except the first byte of each.
const TO: usize = 1;
const FROM: usize = 7;

/// A router with equal fields of its next hops in code, and its reports.
struct Stage<'s, 'l, 'c> {
    it: &'s Routed<'s>,
    live: &'l mut LiveSession<'c>,
    told: Vec<SessionReport>,
    next_hops: KernelMap,
    routes: KernelMap,
}

/// Runs such a router for as long as `act` takes.
fn stage<R: Send>(name: &'static str, act: impl FnOnce(&mut Stage<'_, '_, '_>) -> R + Send) -> R {
    staged(Wanted { interval: Duration::from_secs(1), ..Wanted::new(name, 200) }, act)
}

fn staged<R: Send>(wanted: Wanted, act: impl FnOnce(&mut Stage<'_, '_, '_>) -> R + Send) -> R {
    let act = |it: &Routed<'_>, live: &mut LiveSession<'_>, (): &()| {
        let map = |name| live.map(name).expect(name).try_clone().expect("a descriptor");
        let (next_hops, routes) = (map(router::NEXT_HOPS), map(router::ROUTES));
        act(&mut Stage { it, live, told: Vec::new(), next_hops, routes })
    };
    let (result, counts) = attached(&wanted, |_| (), act);
    assert_eq!(counts.lost(), 0, "packets were lost");
    result
}

impl Stage<'_, '_, '_> {
    /// Runs until this is reported, and returns it; `beside` runs meanwhile, again and again.
    fn until(&mut self, wanted: impl Fn(&SessionReport) -> bool, beside: impl Fn() + Sync) -> SessionReport {
        let (stop, start, from) = (AtomicBool::new(false), Instant::now(), self.told.len());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    beside();
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            let told = &mut self.told;
            self.it.run(self.live, &stop, |report| {
                told.push(report.clone());
                let is_late = start.elapsed() > Duration::from_secs(60);
                if is_late || wanted(report) {
                    stop.store(true, Ordering::Relaxed);
                }
            });
        });
        let found = self.told[from..].iter().find(|r| wanted(r));
        found.unwrap_or_else(|| panic!("not told; of late: {:?}", self.late())).clone()
    }

    /// The last reports, without status reports.
    fn late(&self) -> Vec<&SessionReport> {
        let told: Vec<&SessionReport> =
            self.told.iter().filter(|r| !matches!(r, SessionReport::Status { .. })).collect();
        told[told.len().saturating_sub(8)..].to_vec()
    }

    fn stands_by(&mut self) -> u32 {
        match self.until(|r| matches!(r, SessionReport::StandsBy { .. }), || ()) {
            SessionReport::StandsBy { generation, .. } => generation,
            other => panic!("{other:?}"),
        }
    }

    /// Gives a next hop a unique part of an address, from `from` on: the code relied on all of them having
    /// the same bytes there.
    fn readdress(&self, hop: u32, from: usize) {
        let value = self.next_hops.lookup(&hop.to_ne_bytes()).expect("an answer");
        let mut value = value.expect("a next hop");
        value[from..from + 5].iter_mut().for_each(|byte| *byte ^= 0x55);
        self.next_hops.update(&hop.to_ne_bytes(), &value, UpdateMode::Any).expect("a next hop");
    }

    fn set_route(&self, route: usize, hop: u32) {
        set_route(&self.routes, self.it, route, hop);
    }

    /// Something runs, as soon as nobody else loads programs, and does what the original does.
    fn answers(&mut self) {
        self.until(|r| matches!(r, SessionReport::Status { guard: GuardState::Valid, .. }), || ());
        assert!(same_answers(self.live, self.it.flows), "nothing runs: {:?}", self.late());
    }

    /// Asserts that this generation runs and does the same as the original.
    fn is_right(&self, wanted: u32) {
        assert_eq!(self.told.iter().rev().find_map(generation), Some(wanted), "{:?}", self.late());
        assert!(same_answers(self.live, self.it.flows), "nothing runs: {:?}", self.late());
    }
}

fn set_route(routes: &KernelMap, it: &Routed<'_>, route: usize, hop: u32) {
    let key = router::route_key(it.config.routes[route].prefix);
    routes.update(&key, &hop.to_ne_bytes(), UpdateMode::Any).expect("a route");
}

/// A write was answered, without anything that had to be made.
fn stood_in(report: &SessionReport) -> bool {
    matches!(
        report,
        SessionReport::Specialised { reason: CompileReason::Write, compile_us: 0, load_us: 0, .. }
    )
}

/// Twins follow.
fn followed(report: &SessionReport) -> bool {
    matches!(report, SessionReport::Refreshed { .. })
}

fn is_quiet(report: &SessionReport) -> bool {
    matches!(report, SessionReport::Specialised { reason: CompileReason::Quiet, .. })
}

#[test]
fn what_stands_by_has_every_write_since_it_was_made() {
    if !testing::require() {
        return;
    }
    stage("stands_by", |it| {
        let standby = it.stands_by();
        // The variant at work follows these by its own twin; they are in the stand-by variant only if they
        // were noted for it.
        for route in 0..100 {
            it.set_route(route, (it.it.config.routes[route].next_hop + 1) % HOPS);
        }
        it.until(followed, || ());
        (1..HOPS).for_each(|hop| it.readdress(hop, TO));
        it.until(stood_in, || ());
        it.is_right(standby);
        // From now on it follows by its twin alone.
        for route in 0..100 {
            it.set_route(route, 0);
        }
        it.until(followed, || ());
        it.is_right(standby);
    });
}

#[test]
fn what_stood_in_stands_by_again() {
    if !testing::require() {
        return;
    }
    stage("again", |it| {
        let standby = it.stands_by();
        it.readdress(1, TO);
        it.until(stood_in, || ());
        // Constants are in code again, if of fewer fields.
        it.until(is_quiet, || ());
        for route in 0..100 {
            it.set_route(route, (it.it.config.routes[route].next_hop + 1) % HOPS);
        }
        it.until(followed, || ());
        it.readdress(3, FROM);
        for route in 50..150 {
            it.set_route(route, 2);
        }
        it.until(stood_in, || ());
        it.is_right(standby);
    });
}

/// Tables are written while they are read, while the variant is loaded, and before it is known to stand by.
#[test]
fn writes_while_it_is_made_are_in_what_stands_by() {
    if !testing::require() {
        return;
    }
    // A burst at each step. Writes while nothing is made would put the making off.
    let due = Arc::new(AtomicUsize::new(0));
    let steps = StepCallback::new({
        let due = Arc::clone(&due);
        move |step| {
            use SessionStep::{Begun, CaughtUp, Coded, Loaded, Made};
            if matches!(step, Begun(Tier::Standby) | Coded(Tier::Standby) | Loaded(Tier::Standby))
                || matches!(step, Made(Tier::Standby) | CaughtUp)
            {
                due.store(20, Ordering::Relaxed);
            }
        }
    });
    let interval = Duration::from_secs(1);
    staged(Wanted { interval, steps, ..Wanted::new("made", 200) }, |it| {
        let (routes, routed, round) =
            (it.routes.try_clone().expect("a descriptor"), it.it, AtomicUsize::new(0));
        let write = || {
            if due.load(Ordering::Relaxed) > 0 {
                due.fetch_sub(1, Ordering::Relaxed);
                let n = round.fetch_add(1, Ordering::Relaxed);
                set_route(&routes, routed, n % 150, (n / 150) as u32 % HOPS);
            }
        };
        it.until(|r| matches!(r, SessionReport::StandsBy { .. }), write);
        // By now the variant at work has followed.
        it.until(|r| matches!(r, SessionReport::Status { .. }), || ());
        it.readdress(1, TO);
        it.until(stood_in, || ());
        it.answers();
    });
}

/// Making, loading and judging delay no answer to a write, and writes that running code can follow do not end
/// them: a write during the judging of a variant is answered before the verdict.
#[test]
fn writes_while_it_is_judged_are_answered_meanwhile() {
    if !testing::require() {
        return;
    }
    // A write each time that a judge asks if it should go on, and none at any other time: that would end the
    // making.
    let due = Arc::new(AtomicUsize::new(0));
    let steps = StepCallback::new({
        let due = Arc::clone(&due);
        move |step| {
            if matches!(step, SessionStep::Judging(_)) {
                due.store(1, Ordering::Relaxed);
            }
        }
    });
    let interval = Duration::from_secs(1);
    staged(Wanted { interval, measure: true, steps, ..Wanted::new("meanwhile", 200) }, |it| {
        let (routes, routed, round) =
            (it.routes.try_clone().expect("a descriptor"), it.it, AtomicUsize::new(0));
        // Set by a write, and cleared by each verdict.
        let written = AtomicBool::new(false);
        let write = || {
            if due.swap(0, Ordering::Relaxed) > 0 {
                let n = round.fetch_add(1, Ordering::Relaxed);
                // The value that is there already: if packets found different values, the judge would have to
                // begin anew.
                set_route(&routes, routed, n % 150, routed.config.routes[n % 150].next_hop);
                written.store(true, Ordering::Relaxed);
            }
        };
        // Read as reported, not when it is looked for again.
        let (answered, meanwhile) = (AtomicBool::new(false), AtomicBool::new(false));
        let judged = |report: &SessionReport| {
            match report {
                SessionReport::Refreshed { write_ns: Some(_), .. } | SessionReport::Confirmed { .. } => {
                    answered.fetch_or(written.load(Ordering::Relaxed), Ordering::Relaxed);
                }
                SessionReport::Judged { .. } => {
                    written.store(false, Ordering::Relaxed);
                    meanwhile.fetch_or(answered.swap(false, Ordering::Relaxed), Ordering::Relaxed);
                }
                _ => {}
            }
            meanwhile.load(Ordering::Relaxed)
        };
        it.until(judged, write);
        // The verdict depends on the machine, and with it whether something stands by.
        it.readdress(1, TO);
        it.answers();
    });
}

/// A map that changes again and again is no longer in code: writes to it affect no variant.
#[test]
fn what_changes_often_is_left_out_of_code() {
    if !testing::require() {
        return;
    }
    stage("often", |it| {
        it.stands_by();
        it.readdress(1, TO);
        it.until(stood_in, || ());
        it.until(is_quiet, || ());
        it.readdress(3, FROM);
        it.until(stood_in, || ());
        // Longer than it takes until constants are in code again.
        for _ in 0..6 {
            it.until(|r| matches!(r, SessionReport::Status { .. }), || ());
        }
        it.readdress(5, FROM);
        let answer = it.until(|r| !matches!(r, SessionReport::Status { .. }), || ());
        assert!(matches!(answer, SessionReport::Confirmed { .. }), "it is in code again: {:?}", it.late());
        it.answers();
    });
}
