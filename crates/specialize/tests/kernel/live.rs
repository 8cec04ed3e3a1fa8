//! A router on the laboratory's rig, specialised while packets flow.

use std::time::{Duration, Instant};

use millstream_kernel::{UpdateMode, testing};
use millstream_lab::TrafficSequence;
use millstream_programs::Ipv4Prefix;
use millstream_programs::router;
use millstream_programs::traffic::FlowLocality;
use millstream_specialize::SessionReport;
use millstream_specialize::report::{CompileReason, GuardState, VariantVerdict};
use serde::Serialize;

use crate::bars::{asked, keep};
use crate::routed::{Beside, HOPS, Wanted, generation, latest, routed};

/// Runs such a router; returns its reports. No packet may be lost.
fn told(wanted: &Wanted, beside: impl FnOnce(&Beside<'_>) + Send) -> Vec<SessionReport> {
    let ran = routed(wanted, |_| (), |it, ()| beside(it));
    assert_eq!(ran.counts.lost(), 0, "packets were lost");
    ran.told
}

#[test]
fn a_router_is_specialised_and_follows_its_table() {
    if !testing::require() {
        return;
    }
    let told = told(&Wanted::new("follows", 200), |beside| {
        beside.until("a generation", |r| generation(r).is_some());
        beside
            .until("a valid guard", |r| matches!(r, SessionReport::Status { guard: GuardState::Valid, .. }));
        let routes = beside.config.routes.len();
        // Every route takes another next hop; some go, and come back as other prefixes would.
        for route in 0..routes {
            beside.set_route(route, (beside.config.routes[route].next_hop + 1) % HOPS);
        }
        for route in (0..routes).step_by(3) {
            beside.remove_route(route);
        }
        beside.settled();
        // On a busy machine a twin may follow before the next packet comes.
        let found = |r: &SessionReport| matches!(r, SessionReport::Refreshed { latency_us: Some(1..), .. });
        for next_hop in (0..HOPS).cycle().take(100) {
            beside.set_route(0, next_hop);
            beside.settled();
            if beside.told().iter().any(found) {
                break;
            }
        }
        assert!(beside.rig.counts().expect("counts").received > 0);
    });
    let generations: Vec<u32> = told.iter().filter_map(generation).collect();
    assert!(generations.is_sorted_by(|a, b| a < b), "{generations:?}");
    assert!(
        told.iter().any(|r| matches!(r, SessionReport::Refreshed { latency_us: Some(1..), .. })),
        "the twin follows, and packets find it: {told:?}"
    );
    let Some(SessionReport::Status { packets, specialised: Some(fast), .. }) = latest(&told) else {
        panic!("a status: {told:?}")
    };
    assert!(0 < *fast && fast < packets, "{fast} of {packets}: the original's are not counted");
}

#[test]
fn a_table_that_outgrows_its_twin_gets_other_code() {
    if !testing::require() {
        return;
    }
    let told = told(&Wanted::new("outgrows", 10), |beside| {
        beside.until("a generation", |r| generation(r).is_some());
        // Each of these needs a group of its own.
        for n in 0..100u8 {
            let prefix = Ipv4Prefix::new([60, n, 1, 0].into(), 24);
            beside
                .routes
                .update(&router::route_key(prefix), &[1, 0, 0, 0], UpdateMode::Any)
                .expect("a route");
        }
        beside.until("other code", |r| {
            matches!(r, SessionReport::Specialised { write_ns: Some(_), reason: CompileReason::Write, .. })
        });
        beside.settled();
    });
    assert!(told.iter().filter_map(generation).count() >= 2, "{told:?}");
}

#[test]
fn rare_packets_are_waited_for() {
    if !testing::require() {
        return;
    }
    for (name, rate) in [("rare", 1_000.0), ("paced", 500_000.0)] {
        let wanted = Wanted { rate: Some(rate), ..Wanted::new(name, 50) };
        told(&wanted, |beside| beside.until("a generation", |r| generation(r).is_some()));
    }
}

#[test]
fn without_packets_nothing_is_touched() {
    if !testing::require() {
        return;
    }
    // One frame an hour: none is due while the test lasts.
    let wanted = Wanted { rate: Some(1.0 / 3600.0), ..Wanted::new("idle", 50) };
    let told = told(&wanted, |beside| {
        beside.until("a status", |r| matches!(r, SessionReport::Status { .. }));
        std::thread::sleep(Duration::from_secs(1));
    });
    let quiet = |r: &SessionReport| matches!(r, SessionReport::Status { generation: 0, packets: 0, .. });
    assert!(told.iter().all(quiet), "{told:?}");
}

/// There is next to nothing to gain, so the outcome depends on the machine.
#[test]
fn a_variant_pays_or_is_taken_back() {
    if !testing::require() {
        return;
    }
    let wanted = Wanted { forwarded: 1, measure: true, ..Wanted::new("pays", 50) };
    let pays = |r: &SessionReport| match r {
        SessionReport::Status { before_ns: Some(before), now_ns: Some(now), generation: 1.., .. } => {
            now < before
        }
        _ => false,
    };
    let refused =
        |r: &SessionReport| matches!(r, SessionReport::Judged { outcome: VariantVerdict::NotFaster, .. });
    let judged = |r: &SessionReport| pays(r) || refused(r) || matches!(r, SessionReport::Withdrawn { .. });
    let told = told(&wanted, |beside| beside.until("the judgement", judged));
    let decided = told.iter().position(judged).expect("waited for");
    let made = told.iter().position(|r| generation(r).is_some());
    assert!(refused(&told[decided]) || made.is_some_and(|made| made < decided), "{told:?}");
}

/// A variant of a new shape is judged before it comes onto the hook; another of the same shape is not judged
/// again.
#[test]
fn a_new_shape_is_judged_once() {
    if !testing::require() {
        return;
    }
    let wanted = Wanted { measure: true, twins: false, ..Wanted::new("judged", 2_000) };
    let judged = |r: &SessionReport| matches!(r, SessionReport::Judged { .. });
    let told = told(&wanted, |beside| {
        beside.until("a judgement", |r| {
            matches!(r, SessionReport::Judged { outcome: VariantVerdict::Faster, .. })
        });
        beside.until("a generation", |r| generation(r).is_some());
        // The hottest route takes another next hop: other constants, and now and then another shape.
        for n in 1..=10 {
            for route in 0..beside.config.routes.len() {
                beside.set_route(route, (beside.config.routes[route].next_hop + n) % HOPS);
            }
            beside.settled();
        }
    });
    let first = told.iter().find(|r| judged(r)).expect("waited for");
    let SessionReport::Judged { packets, ratio: Some((ratio, [low, high])), .. } = first else {
        panic!("{first:?}")
    };
    assert!(*packets >= 512 && low <= ratio && ratio <= high, "{first:?}");
    let made = told.iter().position(|r| generation(r).is_some());
    assert!(told.iter().position(judged) < made, "{told:?}");
    assert!(
        !told.iter().any(|r| matches!(r, SessionReport::Judged { outcome: VariantVerdict::Different, .. })),
        "{told:?}"
    );
    let count = |wanted: &dyn Fn(&SessionReport) -> bool| told.iter().filter(|r| wanted(r)).count();
    let (shapes, generations) = (count(&judged), count(&|r| generation(r).is_some()));
    assert!(shapes < generations, "{shapes} judged, {generations} installed: {told:?}");
}

#[test]
fn what_pays_stays() {
    if !testing::require() {
        return;
    }
    let wanted = Wanted { measure: true, ..Wanted::new("stays", 2_000) };
    let stays = || {
        let told = told(&wanted, |beside| {
            beside.until("a generation", |r| generation(r).is_some());
            // Some more looks at the traffic, at each of which it is judged again.
            std::thread::sleep(Duration::from_secs(2));
        });
        // A look at which too few packets came says nothing.
        let times = told.iter().rev().find_map(|r| match r {
            SessionReport::Status { before_ns: Some(before), now_ns: Some(now), .. } => Some((before, now)),
            _ => None,
        });
        let faster = times.is_some_and(|(before, now)| now < before);
        faster && !told.iter().any(|r| matches!(r, SessionReport::Withdrawn { .. }))
    };
    // Other load on the machine may hide a gain, now and then.
    assert!((0..5).any(|_| stays()), "it was taken back each time, or was not faster");
}

/// Result of changes of the hot flows.
#[derive(Debug, Serialize)]
struct Shifts {
    shifts: usize,
    /// Delay from the change until it was noticed, each time.
    noticed_ms: Vec<f64>,
    /// Delay from the change until code for the new hot flows was at work.
    specialised_ms: Vec<f64>,
}

/// Looks by the timer become rare, so the change is noticed by the fall of the hit rate. The table is too
/// large to become code as a whole.
#[test]
fn a_shift_of_the_hot_flows_is_noticed() {
    if !testing::require() {
        return;
    }
    let shifts = asked("MILLSTREAM_SHIFTS", 3) as usize;
    let interval = Duration::from_secs(1);
    let wanted = Wanted { twins: false, interval, calm: 10, ..Wanted::new("shift", 5_000) };
    let ran = routed(
        &wanted,
        |_| (),
        |beside, ()| {
            let mut found = Shifts { shifts, noticed_ms: Vec::new(), specialised_ms: Vec::new() };
            let count =
                |wanted: &dyn Fn(&SessionReport) -> bool| beside.told().iter().filter(|r| wanted(r)).count();
            let shifted = |r: &SessionReport| matches!(r, SessionReport::Shifted { .. });
            let followed = |r: &SessionReport| {
                matches!(r, SessionReport::Specialised { reason: CompileReason::Traffic, .. })
            };
            let seen = |r: &SessionReport| shifted(r) || followed(r);
            beside.until("a generation", |r| generation(r).is_some());
            for n in 0..shifts {
                // The usual hit rate is known by then.
                std::thread::sleep(Duration::from_secs(2));
                let before = [count(&seen), count(&followed)];
                let flows = router::flows(beside.config, 1_000, FlowLocality::HIGH, 100 + n as u64);
                let sequence = flows.sequence(1, 1 << 14);
                let start = Instant::now();
                beside.rig.load_traffic(&TrafficSequence::new(&flows, &sequence)).expect("traffic");
                let ms = |wanted: &dyn Fn(&SessionReport) -> bool, before: usize| {
                    while count(wanted) == before {
                        assert!(start.elapsed() < Duration::from_secs(60), "not seen: {:?}", beside.told());
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    start.elapsed().as_secs_f64() * 1e3
                };
                found.noticed_ms.push(ms(&seen, before[0]));
                found.specialised_ms.push(ms(&followed, before[1]));
            }
            found
        },
    );
    keep("shifts.json", &ran.result);
    assert_eq!(ran.counts.lost(), 0, "packets were lost");
}
