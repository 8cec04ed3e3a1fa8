//! Figure 6: latency of original and variant, at best (all packets are of flows that the variant was made
//! for) and at worst (all flows alike, after it was made). A frame's latency includes its place in the batch
//! and the rig's own latency.

use std::time::Duration;

use millstream_kernel::testing;
use millstream_lab::{FrameLatencies, RigConfig};
use millstream_programs::traffic::FlowLocality;
use serde::Serialize;

use super::{plane, planes, seconds};
use crate::bars::keep;
use crate::data_planes::Placed;

/// Frames for each second of a point.
const FRAMES: f64 = 100_000.0;

#[derive(Debug, Serialize)]
struct Pair {
    original: FrameLatencies,
    specialised: FrameLatencies,
}

#[derive(Debug, Serialize)]
struct Latency {
    program: &'static str,
    batch: u32,
    /// `None` if no variant was at work.
    best: Option<Pair>,
    worst: Option<Pair>,
}

#[test]
fn latency_at_best_and_at_worst() {
    if !testing::require() {
        return;
    }
    let (planes, _) = planes();
    let mut all = Vec::new();
    for builtin in planes {
        for batch in [1, 64] {
            let rig = RigConfig { stamps: true, batch, ..RigConfig::default() };
            let [best, worst] = plane(builtin, FlowLocality::HIGH, rig).placed(
                |settings| settings.pace.interval = Duration::from_millis(500),
                |placed, live| {
                    placed.send(Some(live), Duration::from_secs(3), &mut |_| (), || ());
                    let Some(variant) = live.copy_of_variant().expect("it loads once more") else {
                        return [None, None];
                    };
                    let original = live.copy_of_original().expect("it loads once more");
                    live.detach().expect("the rig is free");
                    let pair =
                        || Pair { original: taken(placed, &original), specialised: taken(placed, &variant) };
                    let best = pair();
                    let uniform = placed.load.flows.reweighted(FlowLocality::NONE, 1);
                    placed.rig.reorder(&uniform.sequence(2, placed.order.len())).expect("another order");
                    let worst = pair();
                    placed.rig.detach();
                    [Some(best), Some(worst)]
                },
            );
            all.push(Latency { program: builtin.program.name, batch, best, worst });
            keep("specialize-latency.json", &all);
        }
    }
    let pairs = all.iter().flat_map(|l| [&l.best, &l.worst]).flatten();
    assert!(pairs.clone().count() > 0, "nothing was specialised");
    assert!(pairs.clone().all(|p| p.original.frames > 0 && p.specialised.frames > 0), "{all:?}");
}

fn taken(placed: &Placed<'_>, program: &millstream_kernel::KernelProgram) -> FrameLatencies {
    placed.rig.attach(program).expect("attached");
    placed.rig.latencies((FRAMES * seconds()) as u32).expect("latencies")
}
