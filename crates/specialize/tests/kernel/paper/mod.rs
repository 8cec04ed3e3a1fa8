//! The evaluation of Morpheus (ASPLOS'22, section 6) on our data planes.
//!
//! CI takes one point of each part, for a second. `bench/run.sh specialize` takes them all: `MILLSTREAM_PLANES` names the data
//! planes, `MILLSTREAM_POINT_SECONDS` says how long each is measured. `bench/plots.py` puts the paper's figures beside them.

mod churn;
mod cores;
mod latency;
mod over_time;
mod profiling;
mod throughput;

use std::time::Duration;

use millstream_lab::RigConfig;
use millstream_lab::workload::Builtin;
use millstream_object::Object;
use millstream_programs::traffic::Locality;
use millstream_programs::{BALANCER, FIREWALL, NAT, Program, ROUTER, SWITCH};

use crate::bars::asked;
use crate::planes::Plane;
use millstream_specialize::Settings;

/// The data planes, with tables of the paper's sizes where it says them.
const PLANES: [(Program, usize); 5] =
    [(ROUTER, 2_592), (SWITCH, 4_000), (FIREWALL, 450), (NAT, 10_000), (BALANCER, 100)];
const FLOWS: usize = 10_000;
const LOCALITIES: [(&str, Locality); 3] =
    [("high", Locality::HIGH), ("low", Locality::LOW), ("none", Locality::NONE)];

/// Seconds that a point is measured.
fn seconds() -> f64 {
    asked("MILLSTREAM_POINT_SECONDS", 1) as f64
}

/// The data planes that are asked for; whether any are.
fn planes() -> (Vec<Builtin>, bool) {
    let names = std::env::var("MILLSTREAM_PLANES").ok();
    let chosen = names.as_deref().unwrap_or(ROUTER.name);
    let wanted = |name: &str| chosen.split_whitespace().any(|n| n == name);
    let all = PLANES.into_iter().filter(|(program, _)| wanted(program.name));
    (all.map(|(program, size)| Builtin { program, size }).collect(), names.is_some())
}

fn plane(builtin: Builtin, locality: Locality, rig: RigConfig) -> Plane {
    Plane { name: "paper", builtin, flows: FLOWS, locality, seed: 1, rig }
}

/// How long a session has to find its form.
const SETTLE: Duration = Duration::from_secs(3);

/// Nanoseconds a packet over so long, with a session that has settled, or with one that may specialise on nothing.
fn spent(plane: &Plane, time: Duration, with: bool, settings: impl FnOnce(&mut Settings) + Send) -> f64 {
    let program = &plane.builtin.program;
    let maps = Object::parse(program.name, program.object).expect("ours").maps;
    plane.placed(
        |s| {
            settings(s);
            if !with {
                s.exclude = maps.into_iter().map(|m| m.name).collect();
            }
        },
        |placed, live| {
            placed.send(Some(live), SETTLE, &mut |_| (), || ());
            placed.spent(Some(live), time, &mut |_| ())
        },
    )
}
