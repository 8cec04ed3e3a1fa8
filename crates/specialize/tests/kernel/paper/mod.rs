//! The evaluation of Morpheus (ASPLOS'22, section 6) on our data planes.
//!
//! CI takes one point of each part, for a second. `bench/run.sh specialize` takes them all:
//! `MILLSTREAM_PLANES` names the data planes (`firewall`, or of one size `firewall:4500`),
//! `MILLSTREAM_POINT_SECONDS` is the time for each point, and `MILLSTREAM_ROUTES` is a file of prefixes, one
//! a line, of a router's table as large as those of the Internet. `bench/plots.py` puts the paper's figures
//! beside them.

mod churn;
mod cores;
mod latency;
mod over_time;
mod profiling;
mod responses;
pub(crate) mod throughput;

use std::time::Duration;

use millstream_lab::RigConfig;
use millstream_lab::workload::BuiltinWorkload;
use millstream_object::Object;
use millstream_programs::traffic::FlowLocality;
use millstream_programs::{BALANCER, DataPlaneProgram, FIREWALL, NAT, ROUTER, SWITCH};

use crate::bars::asked;
use crate::data_planes::Plane;
use millstream_specialize::SessionSettings;

/// The data planes, with tables of the paper's sizes as far as it gives them.
const PLANES: [(DataPlaneProgram, usize); 6] =
    [(ROUTER, 2_592), (SWITCH, 4_000), (FIREWALL, 450), (FIREWALL, 4_500), (NAT, 10_000), (BALANCER, 100)];
const FLOWS: usize = 10_000;
const LOCALITIES: [(&str, FlowLocality); 3] =
    [("high", FlowLocality::HIGH), ("low", FlowLocality::LOW), ("none", FlowLocality::NONE)];

/// Seconds that a point is measured.
fn seconds() -> f64 {
    asked("MILLSTREAM_POINT_SECONDS", 1) as f64
}

/// The data planes that the environment names; true if it names any.
fn planes() -> (Vec<BuiltinWorkload>, bool) {
    let names = std::env::var("MILLSTREAM_PLANES").ok();
    let chosen = names.as_deref().unwrap_or(ROUTER.name);
    let of_size = |name: &str, size: usize| format!("{name}:{size}");
    let wanted = |name: &str, size| chosen.split_whitespace().any(|n| n == name || n == of_size(name, size));
    let all = PLANES.into_iter().filter(|(program, size)| wanted(program.name, *size));
    let mut all: Vec<BuiltinWorkload> =
        all.map(|(program, size)| BuiltinWorkload::generated(program, size)).collect();
    if let Some(text) =
        std::env::var_os("MILLSTREAM_ROUTES").map(|file| std::fs::read_to_string(file).expect("routes"))
    {
        let prefixes: &'static str = text.leak();
        let size = prefixes.lines().filter(|line| !line.contains(':')).count();
        all.push(BuiltinWorkload { prefixes: Some(prefixes), ..BuiltinWorkload::generated(ROUTER, size) });
    }
    (all, names.is_some())
}

fn plane(builtin: BuiltinWorkload, locality: FlowLocality, rig: RigConfig) -> Plane {
    Plane { name: "paper", builtin, flows: FLOWS, locality, seed: 1, rig }
}

/// Time for a session to settle: long enough for a figure where one is wanted, else for what happens.
fn settling() -> Duration {
    let is_measured = std::env::var_os("MILLSTREAM_POINT_SECONDS").is_some();
    Duration::from_secs(if is_measured { 3 } else { 1 })
}

/// Nanoseconds a packet over this time, with a session that has settled, or with one that may specialise on
/// nothing.
fn spent(
    plane: &Plane,
    time: Duration,
    with: bool,
    settings: impl FnOnce(&mut SessionSettings) + Send,
) -> f64 {
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
            placed.send(Some(live), settling(), &mut |_| (), || ());
            placed.spent(Some(live), time, &mut |_| ())
        },
    )
}
