//! Code that a session leaves at work is not slower than the original, and looking after it costs next to
//! nothing.
//!
//! CI draws a few scenarios; `bench/run.sh slower offers overhead` as many as the bars say
//! (`MILLSTREAM_SCENARIOS`, `MILLSTREAM_OFFERS`, `MILLSTREAM_SLICES`).

use std::time::{Duration, Instant};

use millstream_kernel::{AttachType, KernelMap, UpdateMode, testing};
use millstream_lab::measure::{LiveHarness, LoadAttributes, MeasurementPlan, measure, measure_windows};
use millstream_lab::stats::{self, RatioEstimate, TimingVerdict};
use millstream_lab::workload::BuiltinWorkload;
use millstream_lab::{RigConfig, TrafficSequence};
use millstream_programs::traffic::FlowLocality;
use millstream_programs::{BALANCER, FIREWALL, NAT, ROUTER, SWITCH};
use millstream_rng::Rng;
use millstream_specialize::{LiveSession, SessionReport};
use serde::Serialize;

use crate::bars::{asked, keep};
use crate::data_planes::{Placed, Plane, in_turn, patiently};
use crate::paper::throughput::times;

/// Changes while a session runs.
#[derive(Clone, Copy, Debug, Serialize)]
enum Change {
    Nothing,
    /// Other flows are hot.
    Traffic,
    /// Entries of a table go and come back, twenty times per second.
    Tables,
}

/// From one look at the traffic to the next.
const INTERVAL: Duration = Duration::from_millis(500);

/// Result of one scenario.
#[derive(Debug, Serialize)]
struct Scenario {
    program: &'static str,
    size: usize,
    flows: usize,
    locality: String,
    change: Change,
    /// True if a variant was at work in the end, and so measured.
    installed: bool,
    generations: usize,
    /// Time of the variant over the original's.
    ratio: Option<RatioEstimate>,
    /// The same again, with a fresh seed and other copies, where the first seemed slower.
    again: Option<RatioEstimate>,
}

impl Scenario {
    fn is_slower(&self) -> bool {
        let slower =
            |r: &Option<RatioEstimate>| r.as_ref().is_some_and(|r| r.verdict == TimingVerdict::Slower);
        slower(&self.ratio) && slower(&self.again)
    }
}

/// Program, tables and traffic of a scenario.
struct Drawn {
    plane: Plane,
    change: Change,
}

impl Drawn {
    fn new(seed: u64) -> Drawn {
        let mut rng = Rng::new(seed);
        let any = |rng: &mut Rng, n: usize| rng.below(n as u64) as usize;
        let (program, sizes) = [
            (ROUTER, [50, 400, 2_592]),
            (SWITCH, [50, 500, 4_000]),
            (FIREWALL, [50, 450, 2_000]),
            (NAT, [100, 1_000, 10_000]),
            (BALANCER, [5, 20, 100]),
        ][any(&mut rng, 5)];
        let size = sizes[any(&mut rng, 3)];
        let locality = [FlowLocality::HIGH, FlowLocality::LOW, FlowLocality::NONE][any(&mut rng, 3)];
        let flows = [500, 2_000, 10_000][any(&mut rng, 3)];
        let change = [Change::Nothing, Change::Traffic, Change::Tables][any(&mut rng, 3)];
        let builtin = BuiltinWorkload::generated(program, size);
        let plane = Plane { name: "slower", builtin, flows, locality, seed, rig: RigConfig::default() };
        Drawn { plane, change }
    }
}

fn scenario(seed: u64) -> Scenario {
    let Drawn { plane, change } = Drawn::new(seed);
    let (generations, [ratio, again]) = plane.placed(
        |settings| settings.pace.interval = INTERVAL,
        |placed, live| {
            let mut generations = 0;
            let mut tell = |r: &SessionReport| {
                generations += usize::from(matches!(r, SessionReport::Specialised { .. }))
            };
            placed.send(Some(live), Duration::from_secs(2), &mut tell, || ());
            // Where the tables are to change, one that user space fills.
            let map = placed.load.entries.iter().rfind(|e| e.key.len() > 4).or(placed.load.entries.last());
            let map = map.map(|e| live.map(e.map).expect("a map").try_clone().expect("a descriptor"));
            placed.send(Some(live), Duration::from_secs(2), &mut tell, || {
                change.happen(placed, map.as_ref(), seed)
            });
            (generations, ratios(placed, live, seed))
        },
    );
    let installed = ratio.is_some();
    let Plane { builtin, flows, locality, .. } = plane;
    let (program, size, locality) = (builtin.program.name, builtin.size, format!("{locality:?}"));
    Scenario { program, size, flows, locality, change, installed, generations, ratio, again }
}

impl Change {
    fn happen(self, placed: &Placed<'_>, map: Option<&KernelMap>, seed: u64) {
        match (self, map) {
            (Change::Traffic, _) => {
                let mut flows = placed.load.flows.clone();
                flows.weights.reverse();
                let sequence = flows.sequence(seed + 1, 1 << 14);
                placed.rig.load_traffic(&TrafficSequence::new(&flows, &sequence)).expect("traffic");
            }
            (Change::Tables, Some(map)) => {
                let held: Vec<_> =
                    placed.load.entries.iter().filter(|e| e.map == map.info().name).take(20).collect();
                for entry in &held {
                    // Elements of arrays stay.
                    let _ = map.delete(&entry.key);
                    std::thread::sleep(Duration::from_millis(50));
                    map.update_all_cpus(&entry.key, &entry.value, UpdateMode::Any).expect("it comes back");
                }
            }
            (Change::Nothing | Change::Tables, _) => {}
        }
    }
}

/// Measures the program at work beside the original on the traffic of the rig; once more if it seems slower.
/// `None` if there is none, or if it was taken back before it could be measured (by a write of the packets
/// themselves, say).
fn ratios(placed: &Placed<'_>, live: &mut LiveSession<'_>, seed: u64) -> [Option<RatioEstimate>; 2] {
    if live.copy_of_variant().expect("it loads once more").is_none() {
        return [None, None];
    }
    live.detach().expect("the rig is free");
    let alike = LoadAttributes { attach: AttachType::XDP, flags: 0 };
    let mut harness = LiveHarness::new(placed.rig, alike).expect("a harness");
    let mut sides = live.sides();
    let plan = MeasurementPlan { generation: 0.15, seed, ..MeasurementPlan::live(0.0) };
    let found = measured(live, || measure_windows(&mut harness, &mut sides, &plan, 12, &|| true));
    let Some(found) = found else { return [None, None] };
    let first = stats::judge(&found.pairs(0, 1), &mut Rng::new(seed));
    if first.verdict != TimingVerdict::Slower {
        return [Some(first), None];
    }
    let plan = MeasurementPlan { seed: seed + 1, ..MeasurementPlan::live(8.0) };
    let found = measured(live, || measure(&mut harness, &mut sides, &plan));
    let again = found.map(|found| stats::judge(&found.pairs(0, 1), &mut Rng::new(seed + 1)));
    [Some(first), again]
}

/// As [`patiently`]; `None` if there is no variant any more.
fn measured<T, E: std::fmt::Debug>(
    live: &LiveSession<'_>,
    mut measure: impl FnMut() -> Result<T, E>,
) -> Option<T> {
    let at_work = || live.copy_of_variant().expect("it loads once more").is_some();
    patiently(|| match measure() {
        Ok(found) => Ok(Some(found)),
        Err(_) if !at_work() => Ok(None),
        Err(error) => Err(error),
    })
}

#[test]
fn what_is_installed_is_not_slower() {
    if !testing::require() {
        return;
    }
    let count = asked("MILLSTREAM_SCENARIOS", 3);
    let all: Vec<Scenario> = (0..count).map(|n| scenario(1000 + n)).collect();
    keep("slower.json", &all);
    let slower: Vec<&Scenario> = all.iter().filter(|s| s.is_slower()).collect();
    assert!(slower.is_empty(), "{slower:?}");
    assert!(all.iter().any(|s| s.installed), "{all:?}");
}

/// Possible gain of a variant, and the time when it came.
#[derive(Debug, Serialize)]
struct Offer {
    program: &'static str,
    size: usize,
    flows: usize,
    locality: String,
    /// Time of the variant that is made without a judge, over the original's.
    unjudged: Option<RatioEstimate>,
    /// Seconds from the start of a session that judges to its first variant at work.
    installed_after_s: Option<f64>,
    /// True if a variant was at work in the end.
    at_work: bool,
}

fn offer(seed: u64) -> Offer {
    let plane = Drawn::new(seed).plane;
    let unjudged = plane.placed(
        |settings| (settings.pace.interval, settings.measure) = (INTERVAL, false),
        |placed, live| {
            placed.send(Some(live), Duration::from_secs(3), &mut |_| (), || ());
            let [first, _] = ratios(placed, live, seed);
            first
        },
    );
    let (installed_after_s, at_work) = plane.placed(
        |settings| settings.pace.interval = INTERVAL,
        |placed, live| {
            let (start, mut after) = (Instant::now(), None);
            let mut tell = |r: &SessionReport| {
                if matches!(r, SessionReport::Specialised { .. }) {
                    after.get_or_insert(start.elapsed().as_secs_f64());
                }
            };
            placed.send(Some(live), Duration::from_secs(4), &mut tell, || ());
            (after, live.copy_of_variant().expect("it loads once more").is_some())
        },
    );
    let Plane { builtin, flows, locality, .. } = plane;
    let (program, size, locality) = (builtin.program.name, builtin.size, format!("{locality:?}"));
    Offer { program, size, flows, locality, unjudged, installed_after_s, at_work }
}

#[test]
fn what_gains_is_installed_by_itself() {
    if !testing::require() {
        return;
    }
    let count = asked("MILLSTREAM_OFFERS", 2);
    let all: Vec<Offer> = (0..count).map(|n| offer(2000 + n)).collect();
    keep("offers.json", &all);
    // How many of them, and how soon, `bench/bars.py` says.
    assert!(all.iter().any(|o| o.unjudged.is_some()), "{all:?}");
}

/// Cost of looking after a variant.
#[derive(Debug, Serialize)]
struct Overhead {
    slice_s: f64,
    /// Nanoseconds a packet in each slice without a session, and with one.
    slices: Vec<(f64, f64)>,
    /// Time a packet with a session, over that without.
    ratio: RatioEstimate,
    /// Share of packets, while a session is beside it, that the variant did not get: they were recorded, or
    /// took the original so that both could be timed.
    elsewhere: f64,
    /// The variant, and the recording one, over the original, the rig included.
    specialised: RatioEstimate,
    recording: RatioEstimate,
    /// Cost of those packets if all of them were recorded: more precise than any two slices, between which
    /// the machine drifts.
    accounted: f64,
}

/// The same variant, with a session that looks after it and without, in turn.
#[test]
fn looking_after_a_variant_costs_next_to_nothing() {
    if !testing::require() {
        return;
    }
    let slices = asked("MILLSTREAM_SLICES", 2) as usize;
    // Short slices, since the load of the machine drifts.
    let slice = Duration::from_secs(1);
    let builtin = BuiltinWorkload::generated(ROUTER, 5_000);
    let plane = Plane {
        name: "overhead",
        builtin,
        flows: 10_000,
        locality: FlowLocality::HIGH,
        seed: 1,
        rig: RigConfig::default(),
    };
    let found = plane.placed(
        |settings| {
            (settings.twins, settings.pace.first, settings.count) = (false, settings.pace.interval, true)
        },
        |placed, live| {
            let mut generations = 0;
            let mut tell = |r: &SessionReport| {
                generations += usize::from(matches!(r, SessionReport::Specialised { .. }))
            };
            placed.send(Some(live), Duration::from_secs(8), &mut tell, || ());
            let slices = in_turn(slices, |with| placed.spent(with.then_some(&mut *live), slice, &mut |_| ()));
            let before = live.packets();
            placed.send(Some(live), slice * slices.len() as u32, &mut |_| (), || ());
            let after = live.packets();
            let elsewhere = 1.0 - (after.1 - before.1) as f64 / (after.0 - before.0) as f64;
            (generations, slices, elsewhere, times(placed, live))
        },
    );
    let (generations, slices, elsewhere, times) = found;
    assert!(generations > 0, "no variant to look after");
    let ratio = stats::judge(&slices, &mut Rng::new(1));
    let (specialised, recording) = (times.speed.plain, times.recording.expect("a look at the traffic"));
    let accounted = elsewhere * (recording.ratio / specialised.ratio - 1.0);
    let slice_s = slice.as_secs_f64();
    keep("overhead.json", &Overhead { slice_s, slices, ratio, elsewhere, specialised, recording, accounted });
    // The cost itself is a figure for `bench/bars.py`.
    assert!(ratio.ratio.is_finite() && ratio.ratio > 0.0, "{ratio:?}");
    assert!((0.0..1.0).contains(&elsewhere), "{elsewhere}");
}
