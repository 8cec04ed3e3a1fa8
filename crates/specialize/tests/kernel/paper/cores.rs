//! Figure 10: the router on one and more cores, each with a generator of its own, with a session and without.

use std::thread::available_parallelism;
use std::time::Duration;

use millstream_kernel::testing;
use millstream_lab::RigConfig;
use millstream_lab::workload::BuiltinWorkload;
use millstream_programs::ROUTER;
use millstream_programs::traffic::FlowLocality;
use serde::Serialize;

use super::{plane, seconds, spent};
use crate::bars::{asked, keep};
use crate::data_planes::in_turn;

#[derive(Debug, Serialize)]
struct Point {
    cores: usize,
    /// Nanoseconds a packet of all cores together: without a session, with one.
    pairs: Vec<(f64, f64)>,
}

#[test]
fn throughput_by_cores() {
    if !testing::require() {
        return;
    }
    let most = available_parallelism().expect("CPUs").get();
    let time = Duration::from_secs_f64(seconds());
    let mut points = Vec::new();
    let rounds = asked("MILLSTREAM_ROUNDS", 1) as usize;
    let fewest = if rounds > 1 { 1 } else { most };
    for cores in fewest..=most {
        let builtin = BuiltinWorkload::generated(ROUTER, 2_592);
        let plane = plane(builtin, FlowLocality::LOW, RigConfig { lanes: cores, ..RigConfig::default() });
        let pairs = in_turn(rounds, |with| spent(&plane, time, with, |_| ()));
        points.push(Point { cores, pairs });
        keep("specialize-cores.json", &points);
    }
    assert!(points.iter().all(|point| point.pairs.len() == rounds), "{points:?}");
}
