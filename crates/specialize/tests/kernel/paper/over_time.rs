//! Figure 9a: packets a second while the traffic changes (all flows alike, then some hot, then others), with a session and without.

use std::time::Duration;

use millstream_kernel::testing;
use millstream_lab::RigConfig;
use millstream_lab::workload::Builtin;
use millstream_programs::ROUTER;
use millstream_programs::traffic::Locality;
use millstream_specialize::Report;
use serde::Serialize;

use super::{plane, seconds};
use crate::bars::keep;

#[derive(Debug, Serialize)]
struct Moment {
    seconds: f64,
    pps: f64,
    generation: u32,
}

#[derive(Debug, Serialize)]
struct OverTime {
    /// Seconds of each of the three kinds of traffic.
    each: f64,
    original: Vec<Moment>,
    specialised: Vec<Moment>,
}

#[test]
fn throughput_while_the_traffic_changes() {
    if !testing::require() {
        return;
    }
    // In less the session has no time to look at each kind of traffic.
    let each = Duration::from_secs_f64(seconds().max(2.0));
    let found =
        OverTime { each: each.as_secs_f64(), original: course(each, true), specialised: course(each, false) };
    keep("specialize-over-time.json", &found);
    assert!(found.original.iter().all(|m| m.generation == 0), "{found:?}");
    assert!(found.specialised.iter().any(|m| m.generation > 0), "{found:?}");
}

/// What is seen ten times a second; with nothing to specialise on if it is to stay the original.
fn course(each: Duration, original: bool) -> Vec<Moment> {
    let builtin = Builtin { program: ROUTER, size: 2_592 };
    let maps = millstream_object::Object::parse(ROUTER.name, ROUTER.object).expect("ours").maps;
    plane(builtin, Locality::NONE, RigConfig::default()).placed(
        |settings| {
            (settings.status, settings.interval) = (Duration::from_millis(100), Duration::from_secs(1));
            // The twin answers all routes alike: without it, traffic matters.
            settings.twins = false;
            if original {
                settings.exclude = maps.into_iter().map(|m| m.name).collect();
            }
        },
        |placed, live| {
            let (mut moments, start) = (Vec::new(), std::time::Instant::now());
            let mut tell = |report: &Report| {
                if let Report::Status { pps, generation, .. } = *report {
                    moments.push(Moment { seconds: start.elapsed().as_secs_f64(), pps, generation });
                }
            };
            placed.send(Some(live), each, &mut tell, || {
                for seed in [1, 2] {
                    std::thread::sleep(each);
                    let flows = placed.load.flows.reweighted(Locality::HIGH, seed);
                    placed.rig.reorder(&flows.sequence(seed, placed.order.len())).expect("another order");
                }
            });
            moments
        },
    )
}
