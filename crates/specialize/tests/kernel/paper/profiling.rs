//! Figure 8: packets per second by the share of time in which lookups are recorded.
//!
//! A packet is recorded while the instrumented variant runs; Morpheus samples packets, here it is bursts. A
//! burst in every 2 seconds, the default, is 0.2 per cent of the packets.

use std::time::Duration;

use millstream_kernel::testing;
use millstream_lab::RigConfig;
use millstream_lab::workload::BuiltinWorkload;
use millstream_programs::traffic::FlowLocality;
use millstream_programs::{DataPlaneProgram, FIREWALL, ROUTER};
use serde::Serialize;

use super::{plane, seconds, spent};
use crate::bars::{asked, keep};
use crate::data_planes::in_turn;

const PLANES: [(DataPlaneProgram, usize); 2] = [(ROUTER, 2_592), (FIREWALL, 450)];
/// Shares of the time, in per cent.
const SHARES: [f64; 5] = [0.2, 1.0, 5.0, 25.0, 100.0];

#[derive(Debug, Serialize)]
struct Point {
    program: &'static str,
    size: usize,
    recorded_percent: f64,
    /// Nanoseconds a packet: without a session, with one.
    pairs: Vec<(f64, f64)>,
}

#[test]
fn throughput_by_how_much_is_recorded() {
    if !testing::require() {
        return;
    }
    let rounds = asked("MILLSTREAM_ROUNDS", 1) as usize;
    let (planes, shares) =
        if rounds > 1 { (&PLANES[..], &SHARES[..]) } else { (&PLANES[..1], &SHARES[2..3]) };
    let time = Duration::from_secs_f64(seconds());
    let mut points = Vec::new();
    for &(program, size) in planes {
        let plane = plane(BuiltinWorkload::generated(program, size), FlowLocality::LOW, RigConfig::default());
        for &share in shares {
            let pairs = in_turn(rounds, |with| {
                spent(&plane, time, with, |settings| {
                    settings.pace.interval = settings.pace.burst.mul_f64(100.0 / share);
                    settings.pace.calm = 0;
                    // Twins answer all entries alike: without them, traffic matters.
                    settings.twins = false;
                })
            });
            points.push(Point { program: program.name, size, recorded_percent: share, pairs });
            keep("specialize-profiling.json", &points);
        }
    }
    assert!(points.iter().all(|point| point.pairs.len() == rounds), "{points:?}");
}
