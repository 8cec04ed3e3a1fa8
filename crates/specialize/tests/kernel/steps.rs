//! Events between two steps of a session are taken into account in what it does afterwards: writes,
//! strangers, and the stand-by variant.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millstream_kernel::{KernelMap, KernelProgram, ProgramSpec, ProgramType, TestRun, UpdateMode, testing};
use millstream_programs::router::{self, Route};
use millstream_specialize::SessionReport;
use millstream_specialize::live::step::SessionStep;
use millstream_specialize::report::CompileReason;
use millstream_specializer::policy::Tier;

use crate::gate::{Absent, Gate, Opened, repeated};
use crate::routed::{Beside, HOPS, Wanted, attached, generation, routed, same_answers};
use crate::writers::{MAP_UPDATE_ELEM, bpf, load, outer};

/// Within this many status reports, a fifth of a second apart, a variant comes if one can be made.
const STANDS: usize = 8;

/// Runs a router whose session is held at `first`, and calls `act` then. Whole tables are put into code only
/// after the stand-by variant has answered a write.
fn held(first: SessionStep, act: impl Fn(&Beside<'_>, &Gate) + Sync) {
    if testing::require() {
        repeated(|| held_once(first, &act));
    }
}

fn held_once(first: SessionStep, act: &(impl Fn(&Beside<'_>, &Gate) + Sync)) {
    let is_thorough = making(Tier::Thorough).contains(&first);
    let gate = if is_thorough { Gate::default() } else { Gate::at(first) };
    let wanted = Wanted { steps: gate.steps(), ..Wanted::new("steps", 200) };
    let ran = routed(
        &wanted,
        |_| (),
        |it, ()| {
            let _opened = Opened(&gate);
            if is_thorough {
                it.until("what stands by", |r| matches!(r, SessionReport::StandsBy { .. }));
                gate.next(first);
                readdress_at(it, 1, TO);
            }
            gate.wait();
            act(it, &gate);
        },
    );
    assert_eq!(ran.counts.lost(), 0, "packets were lost");
}

/// The same; the program that runs in the end is compared with the original.
fn held_at(first: SessionStep, act: impl Fn(&Beside<'_>, &Gate) + Sync) {
    held(first, |it, gate| {
        act(it, gate);
        gate.open();
        it.settled();
    });
}

/// Twenty routes take another next hop, others for each `n`.
fn reroute(it: &Beside<'_>, n: usize) {
    for route in 20 * n..20 * n + 20 {
        it.set_route(route, (it.config.routes[route].next_hop + 1) % HOPS);
    }
}

/// Offsets of the destination address of a next hop, and of both addresses and the bytes between, except the
/// first byte.
const TO: Range<usize> = 1..6;
const BOTH: Range<usize> = 1..12;

/// Gives a next hop unique addresses: the code relied on bytes that all of them had in common.
fn readdress(it: &Beside<'_>, hop: u32) {
    readdress_at(it, hop, BOTH);
}

/// The same, of some of these bytes.
fn readdress_at(it: &Beside<'_>, hop: u32, bytes: Range<usize>) {
    let value = it.next_hops.lookup(&hop.to_ne_bytes()).expect("an answer");
    let mut value = value.expect("a next hop");
    value[bytes].iter_mut().for_each(|byte| *byte ^= 0x55);
    it.next_hops.update(&hop.to_ne_bytes(), &value, UpdateMode::Any).expect("a next hop");
}

/// The variant was already useless when it was ready.
fn is_late(report: &SessionReport) -> bool {
    matches!(report, SessionReport::Dropped { reason } if reason.contains("before it was at work"))
}

fn is_quiet(report: &SessionReport) -> bool {
    matches!(report, SessionReport::Specialised { reason: CompileReason::Quiet, .. })
}

fn stood_in(report: &SessionReport) -> bool {
    matches!(
        report,
        SessionReport::Specialised { reason: CompileReason::Write, compile_us: 0, load_us: 0, .. }
    )
}

/// All steps of making a variant of this tier.
fn making(tier: Tier) -> [SessionStep; 4] {
    [SessionStep::Begun(tier), SessionStep::Coded(tier), SessionStep::Loaded(tier), SessionStep::Made(tier)]
}

#[test]
fn what_twins_must_follow_while_a_variant_is_made_is_in_it() {
    for (tier, is_it) in [
        (Tier::Quick, (|r| generation(r).is_some()) as fn(&SessionReport) -> bool),
        (Tier::Thorough, is_quiet),
    ] {
        let [first, rest @ ..] = making(tier);
        held_at(first, |it, gate| {
            reroute(it, 0);
            for (n, step) in rest.into_iter().enumerate() {
                gate.on_to(step);
                reroute(it, n + 1);
            }
            gate.open();
            it.until("it", is_it);
        });
    }
}

#[test]
fn what_is_in_code_and_written_while_a_variant_is_made_is_in_it() {
    for tier in [Tier::Quick, Tier::Thorough] {
        for step in &making(tier)[1..] {
            held_at(*step, |it, gate| {
                (1..HOPS).for_each(|hop| readdress(it, hop));
                gate.open();
                it.until("a generation", |r| generation(r).is_some());
            });
        }
    }
}

/// A stand-by variant answers only after its tables were written while it was made.
#[test]
fn what_is_written_while_it_is_made_is_in_what_stands_by() {
    let [first, rest @ .., _] = making(Tier::Standby);
    held_at(first, |it, gate| {
        reroute(it, 0);
        for (n, step) in rest.into_iter().enumerate() {
            gate.on_to(step);
            reroute(it, n + 1);
        }
        gate.open();
        it.until("it", |r| matches!(r, SessionReport::StandsBy { .. }));
        (1..HOPS).for_each(|hop| readdress(it, hop));
        it.until("its answer", stood_in);
    });
}

/// Written when all was read and nothing is approved yet, or approved and not on the hook.
#[test]
fn what_is_written_last_is_followed() {
    held_at(SessionStep::Coded(Tier::Quick), |it, gate| {
        reroute(it, 0);
        gate.on_to(SessionStep::CaughtUp);
        reroute(it, 1);
        gate.on_to(SessionStep::Approved);
        reroute(it, 2);
        gate.on_to(SessionStep::Swapping);
        gate.until_seen(SessionStep::Followed, || reroute(it, 3));
        reroute(it, 4);
        gate.open();
        it.until("a generation", |r| generation(r).is_some());
    });
    for step in [SessionStep::Approved, SessionStep::Swapping] {
        held_at(SessionStep::Coded(Tier::Quick), |it, gate| {
            gate.on_to(step);
            (1..HOPS).for_each(|hop| readdress(it, hop));
            gate.open();
            it.until("another", |r| {
                matches!(r, SessionReport::Specialised { reason: CompileReason::Write, .. })
            });
        });
    }
}

/// An approved variant that cannot follow a write any more does not come onto the hook before the stand-by
/// one does.
#[test]
fn what_cannot_follow_any_more_does_not_come_onto_the_hook() {
    held_at(SessionStep::Made(Tier::Thorough), |it, gate| {
        gate.on_to(SessionStep::Approved);
        let before = it.told().len();
        readdress(it, 2);
        gate.open();
        it.until("an answer", |r| {
            matches!(r, SessionReport::Specialised { reason: CompileReason::Write, write_ns: Some(_), .. })
        });
        it.until("what was dropped", is_late);
        let told = it.told();
        let installed = told[before..].iter().find(|r| generation(r).is_some());
        assert!(installed.is_some_and(stood_in), "{installed:?}");
    });
}

/// A write during a change of the hook need not wait for another change of it: the stand-by variant gets the
/// next packet from where it is, and no later write bypasses it.
#[test]
fn what_stands_by_goes_ahead_while_the_hook_changes() {
    held_at(SessionStep::Made(Tier::Thorough), |it, gate| {
        gate.on_to(SessionStep::Approved);
        gate.on_to(SessionStep::Swapping);
        gate.until_seen(SessionStep::CaughtUp, || readdress(it, 2));
        gate.until_seen(SessionStep::CaughtUp, || reroute(it, 1));
        gate.until_seen(SessionStep::CaughtUp, || readdress_at(it, 3, TO));
        let first = |r: &SessionReport| {
            stood_in(r) && matches!(r, SessionReport::Specialised { latency_us: Some(_), .. })
        };
        // Time for a packet, of which millions come.
        std::thread::sleep(Duration::from_millis(20));
        let opened = millstream_lab::os::monotonic_ns();
        gate.open();
        it.until("its answer", first);
        let told = it.told();
        let answer = told.iter().rev().find(|r| first(r));
        let Some(SessionReport::Specialised { write_ns: Some(write), latency_us: Some(us), .. }) = answer
        else {
            panic!("{told:?}")
        };
        assert!(
            write + 1000 * us < opened,
            "its first packet came {us} us after {write}, not before {opened}"
        );
    });
}

/// Packets never have to wait for the making of a stand-by variant.
#[test]
fn what_is_to_stand_by_makes_room_for_an_answer() {
    for step in &making(Tier::Standby)[..3] {
        held_at(*step, |it, gate| {
            // The second look comes after the first one has taken effect.
            gate.until_seen(SessionStep::Followed, || readdress(it, 1));
            gate.until_seen(SessionStep::Followed, || readdress(it, 2));
            gate.open();
            let answer = |r: &SessionReport| {
                matches!(r, SessionReport::Specialised { reason: CompileReason::Write, compile_us: 1.., .. })
            };
            it.until("an answer", answer);
            let told = it.told();
            let before = told.iter().take_while(|r| !answer(r));
            assert!(
                !before.clone().any(|r| matches!(r, SessionReport::StandsBy { .. })),
                "it was called off: {told:?}"
            );
        });
    }
}

/// Another process's program, which sets the next hop of a route when it is run: no call reports that.
fn stranger(routes: &KernelMap, route: &Route, hop: u32) -> KernelProgram {
    let key = router::route_key(route.prefix);
    let word = |at: usize| i32::from_ne_bytes(key[at..at + 4].try_into().expect("four bytes"));
    let text = format!(
        "*(u32 *)(r10 -8) = {}\n*(u32 *)(r10 -4) = {}\n*(u32 *)(r10 -16) = {hop}\nr1 = map[fd:{}]\nr2 = r10\nr2 += -8\n\
         r3 = r10\nr3 += -16\nr4 = 0\ncall map_update_elem\nr0 = 2\nexit",
        word(0),
        word(4),
        routes.as_fd().as_raw_fd()
    );
    let spec = ProgramSpec { name: "stranger", program_type: ProgramType::XDP, ..ProgramSpec::default() };
    // Not by the session's thread, whose programs are the session's own.
    std::thread::scope(|scope| scope.spawn(|| load(&text, &spec)).join().expect("loaded"))
}

fn run(program: &KernelProgram) {
    program.test_run(&TestRun::packet(&[0; 64])).expect("a test run");
}

/// A program that may write a table without a call keeps the table out of variants, also if it comes
/// meanwhile.
#[test]
fn who_comes_while_a_variant_is_made_is_seen() {
    for tier in [Tier::Quick, Tier::Standby, Tier::Thorough] {
        for step in &making(tier)[1..3] {
            held(*step, |it, gate| {
                let route = &it.config.routes[0];
                let program = stranger(&it.routes, route, (route.next_hop + 1) % HOPS);
                let before = it.told().len();
                gate.open();
                // If nothing can be made any more, nothing is reported of it.
                let stands = |r: &&SessionReport| matches!(r, SessionReport::Status { .. });
                while it.told()[before..].iter().filter(stands).count() < STANDS {
                    std::thread::sleep(Duration::from_millis(5));
                }
                // If anything runs that has the route, it is found to be stale.
                run(&program);
            });
        }
    }
}

/// Nobody reads the guard's events, until there is no room for them.
#[test]
fn who_comes_unheard_is_seen() {
    if !testing::require() {
        return;
    }
    attached(
        &Wanted::new("unheard", 200),
        |_| (),
        |it, live, ()| {
            let routes = live.map(router::ROUTES).expect("the routes").try_clone().expect("a descriptor");
            let route = &it.config.routes[0];
            let (key, hop) = (router::route_key(route.prefix), route.next_hop);
            for _ in 0..2_000 {
                routes.update(&key, &hop.to_ne_bytes(), UpdateMode::Any).expect("what is there");
            }
            let program = stranger(&routes, route, (hop + 1) % HOPS);
            assert!(live.guard().noticed().unsent > 0, "there was room for all");
            let (stop, stood) = (AtomicBool::new(false), AtomicUsize::new(0));
            it.run(live, &stop, |report| {
                if matches!(report, SessionReport::Status { .. }) {
                    stop.store(stood.fetch_add(1, Ordering::Relaxed) > STANDS, Ordering::Relaxed);
                }
            });
            // If anything runs that has the route, it is found to be stale.
            run(&program);
            same_answers(live, it.flows);
        },
    );
}

/// A writer who stays inside for longer than the session waits is answered, once he has gone, by the earlier
/// stand-by variant.
#[test]
fn what_stands_by_outlasts_a_writer_who_stays_inside() {
    if !testing::require() {
        return;
    }
    routed(
        &Wanted::new("inside", 200),
        |_| (),
        |it, ()| {
            it.until("what stands by", |r| matches!(r, SessionReport::StandsBy { .. }));
            let (hop, absent) = (2u32, Absent::new());
            let value = it.next_hops.lookup(&hop.to_ne_bytes()).expect("an answer");
            let mut value = value.expect("a next hop");
            value[BOTH].iter_mut().for_each(|byte| *byte ^= 0x55);
            std::thread::scope(|scope| {
                let map = it.next_hops.as_fd().as_raw_fd() as u64;
                let attr = [map, &raw const hop as u64, absent.address(), 0];
                let writer = scope.spawn(move || bpf(MAP_UPDATE_ELEM, &attr));
                it.until(
                    "no answer yet",
                    |r| matches!(r, SessionReport::Dropped { reason } if reason.contains("inside")),
                );
                absent.fill(&value);
                assert_eq!(writer.join().expect("no panic"), 0, "it is written");
            });
            let is_answer = |r: &SessionReport| {
                matches!(r, SessionReport::Specialised { reason: CompileReason::Write, .. })
            };
            it.until("its answer", is_answer);
            let told = it.told();
            let answer = told.iter().find(|r| is_answer(r));
            assert!(answer.is_some_and(stood_in), "{answer:?}");
            it.settled();
        },
    );
}

/// A map of maps takes a table in, by a call that the kernel holds before it is done: programs that reach the
/// table so are seen only afterwards.
#[test]
fn who_is_still_coming_is_waited_for() {
    if !testing::require() {
        return;
    }
    routed(
        &Wanted::new("coming", 200),
        |_| (),
        |it, ()| {
            it.until("a generation", |r| generation(r).is_some());
            it.settled();
            let (outer, absent) = (outer(&it.routes), Absent::new());
            let value = it.routes.as_fd().as_raw_fd();
            std::thread::scope(|scope| {
                let attr = [outer.as_fd().as_raw_fd() as u64, absent.address(), &raw const value as u64, 0];
                let writer = scope.spawn(move || bpf(MAP_UPDATE_ELEM, &attr));
                let is_looked_at = || !it.approved() && it.is_looked_at();
                let start = Instant::now();
                while !is_looked_at() && start.elapsed() < Duration::from_secs(60) {
                    std::thread::yield_now();
                }
                absent.fill(&[0; 4]);
                assert_eq!(writer.join().expect("no panic"), 0, "the table is inside");
            });
            it.until("it", |r| matches!(r, SessionReport::Withdrawn { .. }));
        },
    );
}
