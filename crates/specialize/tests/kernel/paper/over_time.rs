//! Figures 9a and 9b: packets per second while the traffic changes, with a session and without. All flows
//! alike, then some hot, then others; and a capture (`MILLSTREAM_TRACE`, or the plane's own packets), part
//! after part.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use millstream_kernel::testing;
use millstream_lab::workload::BuiltinWorkload;
use millstream_lab::{RigConfig, TrafficSequence, pcap};
use millstream_object::Object;
use millstream_programs::ROUTER;
use millstream_programs::traffic::FlowLocality;
use millstream_specialize::SessionReport;
use serde::Serialize;

use super::{plane, seconds};
use crate::bars::keep;
use crate::data_planes::Placed;

/// Parts that a capture is sent in, each as long as it takes to look at it; and those of the plane's own packets.
const PARTS: usize = 6;
const OWN_PARTS: usize = 3;
/// Frames of a capture at most.
const MOST_FRAMES: usize = 1 << 17;

#[derive(Debug, Serialize)]
struct Moment {
    seconds: f64,
    pps: f64,
    generation: u32,
}

#[derive(Debug, Serialize)]
struct OverTime {
    /// Seconds of each kind of traffic, or of each part of the capture.
    each: f64,
    original: Vec<Moment>,
    specialised: Vec<Moment>,
}

/// Traffic to send: orders of these frames, one after another; of the plane's own frames if there are none.
struct Course {
    frames: Vec<Vec<u8>>,
    orders: Vec<Vec<u32>>,
}

#[test]
fn throughput_while_the_traffic_changes() {
    if !testing::require() {
        return;
    }
    over_time("specialize-over-time.json", |placed| {
        let order =
            |seed| placed.load.flows.reweighted(FlowLocality::HIGH, seed).sequence(seed, placed.order.len());
        Course { frames: Vec::new(), orders: [1, 2].map(order).to_vec() }
    });
}

#[test]
fn throughput_on_a_capture() {
    if !testing::require() {
        return;
    }
    let capture = std::env::var_os("MILLSTREAM_TRACE")
        .map(|path| pcap::read(Path::new(&path), MOST_FRAMES).expect("a capture").frames);
    over_time("specialize-capture.json", |placed| {
        // Without one, packets of the plane's own flows as if they had been captured.
        let frames = capture.clone().unwrap_or_else(|| placed.sample(placed.order.len()));
        let all: Vec<u32> = (0..frames.len() as u32).collect();
        let parts = if capture.is_some() { PARTS } else { OWN_PARTS };
        let orders = all.chunks_exact(frames.len() / parts).map(<[u32]>::to_vec).collect();
        Course { frames, orders }
    });
}

fn over_time(file: &str, course: impl Fn(&Placed<'_>) -> Course + Sync) {
    // In less the session has no time to look at each kind of traffic.
    let each = Duration::from_secs_f64(seconds().max(2.0));
    // The figure shows which variants are faster.
    let judged = AtomicU32::new(0);
    let [original, specialised] = [true, false].map(|original| run(&course, each, original, &judged));
    let found = OverTime { each: each.as_secs_f64(), original, specialised };
    keep(file, &found);
    assert!(found.original.iter().all(|m| m.generation == 0), "{found:?}");
    assert!(!found.specialised.is_empty() && judged.into_inner() > 0, "{found:?}");
}

/// Samples the rate ten times per second; with nothing to specialise on if it is to stay the original. Counts
/// judgements.
fn run(
    course: &(impl Fn(&Placed<'_>) -> Course + Sync),
    each: Duration,
    original: bool,
    judged: &AtomicU32,
) -> Vec<Moment> {
    let builtin = BuiltinWorkload::generated(ROUTER, 2_592);
    let maps = Object::parse(ROUTER.name, ROUTER.object).expect("ours").maps;
    plane(builtin, FlowLocality::NONE, RigConfig::default()).placed(
        |settings| {
            (settings.pace.status, settings.pace.interval) =
                (Duration::from_millis(100), Duration::from_secs(1));
            // The twin answers all routes alike: without it, traffic matters.
            settings.twins = false;
            if original {
                settings.exclude = maps.into_iter().map(|m| m.name).collect();
            }
        },
        |placed, live| {
            let Course { frames, mut orders } = course(placed);
            if !frames.is_empty() {
                let first = orders.remove(0);
                let traffic = TrafficSequence { frames: &frames, sequence: &first };
                placed.rig.load_traffic(&traffic).expect("traffic");
            }
            let (mut moments, start) = (Vec::new(), Instant::now());
            let mut tell = |report: &SessionReport| match *report {
                SessionReport::Status { pps, generation, .. } => {
                    moments.push(Moment { seconds: start.elapsed().as_secs_f64(), pps, generation });
                }
                SessionReport::Judged { .. } => drop(judged.fetch_add(1, Ordering::Relaxed)),
                _ => {}
            };
            placed.send(Some(live), each, &mut tell, || {
                for order in &orders {
                    std::thread::sleep(each);
                    placed.rig.reorder(order).expect("another order");
                }
            });
            moments
        },
    )
}
