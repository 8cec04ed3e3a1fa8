//! Figures 4, 5 and 7 and Table 3: time of a packet and the code that it executes, by locality; cost of
//! recording all lookups; time to make and install a variant. Beside it a session that knows the tables and
//! not the traffic, as ESwitch.

use std::time::Duration;

use millstream_kernel::{AttachType, KernelProgram, testing};
use millstream_lab::RigConfig;
use millstream_lab::compare::common;
use millstream_lab::measure::{LiveHarness, LoadAttributes, MeasuredSide, MeasurementPlan, measure};
use millstream_lab::stats::{self, RatioEstimate};
use millstream_lab::subject::InsnCounts;
use millstream_lab::verify::answers;
use millstream_lab::workload::BuiltinWorkload;
use millstream_object::Object;
use millstream_programs::traffic::FlowLocality;
use millstream_rng::Rng;
use millstream_specialize::report::VariantVerdict;
use millstream_specialize::{LiveSession, SessionReport, SpeedComparison};
use serde::Serialize;

use super::{LOCALITIES, plane, planes, seconds, settling};
use crate::bars::keep;
use crate::data_planes::{Placed, patiently};

/// Packets whose instructions are counted.
const SAMPLE: usize = 512;
/// Knowledge that the session uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Knows {
    Tables,
    TablesAndTraffic,
}

/// Times to make a variant and put it to work.
#[derive(Clone, Copy, Debug, Serialize)]
struct Install {
    compile_us: u64,
    load_us: u64,
    swap_us: u64,
    slots: usize,
}

#[derive(Clone, Debug, Serialize)]
struct Judged {
    outcome: VariantVerdict,
    ms: u64,
    ratio: Option<(f64, [f64; 2])>,
    gained_ns: Option<f64>,
    predicted_ns: Option<f64>,
}

/// Times by live frames, interleaved.
#[derive(Debug, Serialize)]
pub(crate) struct Times {
    #[serde(flatten)]
    pub(crate) speed: SpeedComparison,
    /// The variant that records all lookups, over the original, the rig included.
    pub(crate) recording: Option<RatioEstimate>,
}

/// Code that a packet executes.
#[derive(Debug, Serialize)]
struct Code {
    jited_bytes: u32,
    counted: InsnCounts,
}

#[derive(Debug, Serialize)]
struct Point {
    program: &'static str,
    size: usize,
    locality: &'static str,
    knows: Knows,
    installs: Vec<Install>,
    /// Findings of the judge about new shapes.
    judged: Vec<Judged>,
    /// Reasons why variants were not made, or not taken.
    dropped: Vec<String>,
    original: Code,
    /// `None` if no variant was at work in the end.
    specialised: Option<Code>,
    times: Option<Times>,
}

#[test]
fn throughput_by_locality() {
    if !testing::require() {
        return;
    }
    let (planes, all) = planes();
    let mut points = Vec::new();
    for builtin in planes {
        for (name, locality) in if all { &LOCALITIES[..] } else { &LOCALITIES[..1] } {
            for knows in [Knows::Tables, Knows::TablesAndTraffic] {
                points.push(point(builtin, name, *locality, knows));
                keep("specialize-throughput.json", &points);
            }
        }
    }
    let variants = points.iter().filter_map(|p| Some((&p.original, p.specialised.as_ref()?)));
    // The variant is the program counted, and some of its lookups are code.
    let fewer = |(original, variant): (&Code, &Code)| variant.counted.map_calls < original.counted.map_calls;
    assert!(variants.clone().count() > 0 && variants.clone().any(fewer), "{points:?}");
}

fn point(builtin: BuiltinWorkload, name: &'static str, locality: FlowLocality, knows: Knows) -> Point {
    let plane = plane(builtin, locality, RigConfig::default());
    let maps = Object::parse(builtin.program.name, builtin.program.object).expect("ours").maps;
    plane.placed(
        |settings| {
            settings.pace.interval = Duration::from_millis(500);
            if knows == Knows::Tables {
                settings.unprofiled = maps.into_iter().map(|m| m.name).collect();
            }
        },
        |placed, live| {
            let (mut installs, mut judged, mut dropped) = (Vec::new(), Vec::new(), Vec::new());
            let mut tell = |report: &SessionReport| match *report {
                SessionReport::Specialised { compile_us, load_us, swap_us, slots, .. } => {
                    installs.push(Install { compile_us, load_us, swap_us, slots });
                }
                SessionReport::Judged { outcome, ms, ratio, gained_ns, predicted_ns, .. } => {
                    judged.push(Judged { outcome, ms, ratio, gained_ns, predicted_ns });
                }
                SessionReport::Dropped { ref reason } if dropped.last() != Some(reason) => {
                    dropped.push(reason.clone());
                }
                _ => {}
            };
            placed.send(Some(live), settling(), &mut tell, || ());
            let (original, specialised) = codes(placed, live);
            let times = specialised.is_some().then(|| times(placed, live));
            let (program, size) = (builtin.program.name, builtin.size);
            let locality = name;
            Point { program, size, locality, knows, installs, judged, dropped, original, specialised, times }
        },
    )
}

fn codes(placed: &Placed<'_>, live: &LiveSession<'_>) -> (Code, Option<Code>) {
    let sample: Vec<Vec<u8>> = placed.sample(SAMPLE);
    let bytes = |program: &KernelProgram| program.info().expect("its image").jited_len;
    let (original, variant) = live.counted(&sample, placed.rig.test_port()).expect("counted");
    let original = Code { jited_bytes: bytes(live.original()), counted: original };
    let copy = live.copy_of_variant().expect("it loads once more");
    let variant = copy.zip(variant).map(|(copy, counted)| Code { jited_bytes: bytes(&copy), counted });
    (original, variant)
}

/// Measures original and variant beside an empty program; then the recording one, whose tables leave less of
/// the processor's caches to the others.
pub(crate) fn times(placed: &Placed<'_>, live: &mut LiveSession<'_>) -> Times {
    live.detach().expect("the rig is free");
    let told = answers(placed.rig, live.original(), &placed.sample(SAMPLE)).expect("answers");
    let verdict = common(&told.into_iter().map(|(verdict, _)| verdict).collect::<Vec<_>>());
    let plan = MeasurementPlan::live(seconds());
    let speed = patiently(|| live.speed(placed.rig, verdict, &plan));
    let recording = live.instrumented().map(|recording| {
        let [original, _] = live.sides();
        let mut sides = [original, MeasuredSide::new("recording", || Ok(recording.try_clone()?))];
        let alike = LoadAttributes { attach: AttachType::XDP, flags: 0 };
        let mut harness = LiveHarness::new(placed.rig, alike).expect("a harness");
        let plan = MeasurementPlan { seconds: plan.seconds / 2.0, ..plan };
        let found = patiently(|| measure(&mut harness, &mut sides, &plan));
        stats::judge(&found.pairs(0, 1), &mut Rng::new(plan.seed))
    });
    Times { speed, recording }
}
