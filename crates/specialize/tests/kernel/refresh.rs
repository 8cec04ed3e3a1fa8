//! One route among many is changed: delay until the twin answers again.
//!
//! CI has a generated table. `MILLSTREAM_PREFIXES` names a file of prefixes, one a line, such as those of the
//! global table; `MILLSTREAM_ROUTE_UPDATES` says how many updates there are.

use std::time::{Duration, Instant};

use millstream_kernel::{UpdateMode, testing};
use millstream_programs::Ipv4Prefix;
use millstream_programs::router;
use millstream_rng::Rng;
use millstream_specialize::SessionReport;
use millstream_specialize::report::VariantVerdict;
use serde::Serialize;

use crate::bars::{asked, keep};
use crate::routed::{Beside, HOPS, Wanted, generation, routed};

/// From one update to the next.
const APART: Duration = Duration::from_millis(40);

#[derive(Serialize)]
struct Figures {
    routes: usize,
    updates: usize,
    answered: usize,
    in_step_us: [u64; 3],
    bytes: [u64; 3],
}

/// Median, 99th percentile, largest.
fn spread(mut all: Vec<u64>) -> [u64; 3] {
    all.sort_unstable();
    let at = |percent: usize| all.get((all.len() * percent / 100).min(all.len().saturating_sub(1))).copied();
    [50, 99, 100].map(|percent| at(percent).unwrap_or(0))
}

fn prefixes() -> Vec<Ipv4Prefix> {
    let Ok(path) = std::env::var("MILLSTREAM_PREFIXES") else { return Vec::new() };
    let text = std::fs::read_to_string(path).expect("the prefixes");
    text.lines().filter(|l| !l.contains(':')).map(|l| l.trim().parse().expect("a prefix")).collect()
}

/// Routes of the table, drawn at random, take another next hop, go, and come back.
fn change(beside: &Beside<'_>, updates: u64) {
    let mut rng = Rng::new(5);
    let mut gone = None;
    for _ in 0..updates {
        let route = rng.below(beside.config.routes.len() as u64) as usize;
        match gone.take() {
            Some(route) => beside.set_route(route, rng.below(u64::from(HOPS)) as u32),
            None if rng.below(3) == 0 => {
                beside.remove_route(route);
                gone = Some(route);
            }
            None => beside.set_route(route, rng.below(u64::from(HOPS)) as u32),
        }
        std::thread::sleep(APART);
    }
}

#[test]
fn a_route_among_many_is_followed_at_once() {
    if !testing::require() {
        return;
    }
    let updates = asked("MILLSTREAM_ROUTE_UPDATES", 100);
    let wanted = Wanted {
        prefixes: prefixes(),
        rate: Some(200_000.0),
        // As sessions do by default.
        interval: Duration::from_secs(2),
        ..Wanted::new("refresh", 20_000)
    };
    let ran = routed(
        &wanted,
        |_| (),
        |beside, ()| {
            beside.until("a generation", |r| generation(r).is_some());
            // A key that never was there, and one that cannot be: nothing changes.
            let none = router::route_key(Ipv4Prefix::new([240, 1, 2, 3].into(), 32));
            assert!(!beside.routes.delete(&none).expect("an answer"));
            let long = [&33u32.to_ne_bytes()[..], &[10, 0, 0, 0]].concat();
            beside.routes.update(&long, &[0; 4], UpdateMode::Any).expect_err("no such prefix");
            change(beside, updates);
            beside.settled();
            beside.config.routes.len()
        },
    );
    let of = |get: fn(&SessionReport) -> Option<u64>| spread(ran.told.iter().filter_map(get).collect());
    let figures = Figures {
        routes: ran.result,
        updates: updates as usize,
        answered: ran.told.iter().filter(|r| matches!(r, SessionReport::Refreshed { .. })).count(),
        in_step_us: of(
            |r| if let SessionReport::Refreshed { in_step_us, .. } = r { *in_step_us } else { None },
        ),
        bytes: of(|r| if let SessionReport::Refreshed { bytes, .. } = r { Some(*bytes) } else { None }),
    };
    keep("route-updates.json", &figures);
    assert_eq!(ran.counts.lost(), 0, "packets were lost");
    let made = ran.told.iter().filter(|r| generation(r).is_some()).count();
    assert!(figures.answered >= updates as usize / 2 && made <= 2, "{made} times made anew, {:?}", ran.told);
    // The bytes written depend on the route and not on the table.
    assert!(figures.bytes[0] < 4096, "{:?} bytes", figures.bytes);
}

/// A candidate is made of the routes as they were; while it is judged, others come.
#[test]
fn writes_while_it_is_judged_condemn_nothing() {
    if !testing::require() {
        return;
    }
    let wanted = Wanted { measure: true, ..Wanted::new("churn", 200) };
    let ran = routed(
        &wanted,
        |_| (),
        |beside, ()| {
            let start = Instant::now();
            let made = || beside.told().iter().any(|r| generation(r).is_some());
            for round in 0.. {
                for route in 0..beside.config.routes.len() {
                    beside.set_route(route, (route as u32 + round) % HOPS);
                    std::thread::sleep(Duration::from_millis(2));
                }
                if made() || start.elapsed() > Duration::from_secs(15) {
                    break;
                }
            }
            beside.until("a generation", |r| generation(r).is_some());
        },
    );
    let differs =
        |r: &SessionReport| matches!(r, SessionReport::Judged { outcome: VariantVerdict::Different, .. });
    assert!(!ran.told.iter().any(differs), "{:?}", ran.told);
}
