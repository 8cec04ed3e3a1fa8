//! A router on the laboratory's rig, specialised while packets flow.

use std::time::Duration;

use millstream_kernel::testing;
use millstream_specialize::Report;
use millstream_specialize::report::GuardState;

use crate::routed::{HOPS, Wanted, generation, routed};

#[test]
fn a_router_is_specialised_and_follows_its_table() {
    if !testing::require() {
        return;
    }
    let wanted = Wanted {
        name: "follows",
        routes: 200,
        flows: 1_000,
        interval: Duration::from_millis(200),
        stamps: false,
    };
    let ran = routed(
        &wanted,
        |_| (),
        |beside, ()| {
            beside.until("a generation", |r| generation(r).is_some());
            beside.until("a valid guard", |r| matches!(r, Report::Status { guard: GuardState::Valid, .. }));
            // Every route takes another next hop: some of them are in code.
            for route in 0..beside.config.routes.len() {
                beside.set_route(route, (beside.config.routes[route].next_hop + 1) % HOPS);
            }
            beside.until("an answer to the writes", |r| {
                matches!(r, Report::Specialised { write_ns: Some(_), .. } | Report::Confirmed { .. })
            });
            assert!(beside.rig.counts().expect("counts").received > 0);
        },
    );
    assert_eq!(ran.counts.lost(), 0, "packets were lost");
    let generations: Vec<u32> = ran.told.iter().filter_map(generation).collect();
    assert!(generations.is_sorted_by(|a, b| a < b), "{generations:?}");
}
