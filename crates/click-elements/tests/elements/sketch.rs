//! Sketches against exact counts: estimates are within the requested bound, the largest flows are found, and
//! several workers together count the same as one.

use std::collections::BTreeMap;

use crate::common::packet;
use millstream_click::{ClickProgram, FlowKey, FlowSketch, HandlerAccess, flatten, parse};
use millstream_click_elements::compile;
use millstream_native::{NativeEngine, NativeOptions};
use millstream_native_io::WorkerHooks;
use millstream_native_io::graph::{SourceFrames, run_graph_by};
use millstream_rng::Rng;

const PACKETS: usize = 40_000;
const EPSILON: f64 = 0.002;
const DELTA: f64 = 0.05;
const LARGEST: usize = 8;

/// A program, as it is and for so many workers, and how its sketch is read.
fn made(element: &str, workers: u32, schedule: &str) -> (ClickProgram, NativeEngine, FlowSketch) {
    let text = format!("FromDevice(in) -> MarkIPHeader -> s :: {element} -> ToDPDKDevice(out)");
    let graph = flatten(&parse(&text).expect("parsed"), &[]).expect("flattened");
    let mut program = compile(&graph).unwrap_or_else(|e| panic!("{e:?}"));
    if workers > 1 {
        program = program.for_workers().expect("for all");
    }
    let schedule = schedule.parse().expect("a schedule");
    let options = NativeOptions { workers, schedule, ..NativeOptions::default() };
    let engine =
        NativeEngine::of_module(program.code.module.clone(), program.code.entry, &options).expect("compiled");
    let sketch = program.handlers.iter().find_map(|h| match &h.access {
        HandlerAccess::Estimate(sketch) => Some(sketch.clone()),
        _ => None,
    });
    (program, engine, sketch.expect("there is one"))
}

/// A counter: the sum over workers.
fn counter(engine: &mut NativeEngine, sketch: &FlowSketch, at: u32) -> i64 {
    let all = engine.map(&sketch.counters).expect("there").get(&at.to_ne_bytes()).expect("all are there");
    all.chunks_exact(8).map(|copy| i64::from_le_bytes(copy.try_into().expect("eight"))).sum()
}

/// Flows that the code keeps as candidates, with their estimates there.
fn candidates(engine: &mut NativeEngine, sketch: &FlowSketch) -> Vec<(FlowKey, i64)> {
    let map = engine.map(&sketch.candidates).expect("there");
    let all: Vec<u8> = map.keys().iter().flat_map(|key| map.get(key).expect("its own key")).collect();
    let word = |entry: &[u8], at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight"));
    let flow = |e: &[u8]| (FlowKey { addresses: word(e, 0), rest: word(e, 8) }, word(e, 16) as i64);
    all.chunks_exact(24).map(flow).filter(|(_, estimate)| *estimate != 0).collect()
}

/// Packets of some thousand flows, a few of which have most of them; and the count of each flow.
fn traffic() -> (Vec<Vec<u8>>, BTreeMap<FlowKey, i64>) {
    let mut rng = Rng::new(3);
    let mut exact = BTreeMap::new();
    let frames = (0..PACKETS).map(|_| {
        let (group, members) = (1 << rng.below(14), 1 << rng.below(13));
        let flow = (group + rng.below(members)) as u32;
        let [_, a, b, c] = flow.to_be_bytes();
        let protocol = [6, 17][(c & 1) as usize];
        let text = format!("10.{a}.{b}.{c} {} 192.0.2.9 80 {protocol}", 1024 + (flow & 7));
        *exact.entry(FlowKey::parse(&text).expect("a flow")).or_insert(0) += 1;
        packet(protocol, [[10, a, b, c], [192, 0, 2, 9]], [1024 + (flow & 7) as u16, 80], 0)
    });
    (frames.collect(), exact)
}

fn run(engine: &mut NativeEngine, frames: &[Vec<u8>]) {
    let feeds = [SourceFrames { frames, count: frames.len() as u64 }];
    let crew = WorkerHooks { enter: &|_| Ok(()) };
    let goes_on = None::<fn(&mut NativeEngine) -> bool>;
    run_graph_by(engine, &feeds, 1, 64, &crew, &|_| Ok(()), goes_on).expect("run");
}

/// A sketch that has counted, by one worker or several.
fn counted(class: &str, workers: u32, schedule: &str, frames: &[Vec<u8>]) -> (NativeEngine, FlowSketch) {
    let element = format!("{class}(EPSILON {EPSILON}, DELTA {DELTA}, TOP {LARGEST})");
    let (_, mut engine, sketch) = made(&element, workers, schedule);
    run(&mut engine, frames);
    (engine, sketch)
}

/// Numbers of flows whose estimates are wrong by more than `bound`, and of those that are too small.
fn wrong(
    engine: &mut NativeEngine,
    sketch: &FlowSketch,
    exact: &BTreeMap<FlowKey, i64>,
    bound: f64,
) -> (usize, usize) {
    let (mut far, mut below) = (0, 0);
    for (flow, count) in exact {
        let error = sketch.estimate(*flow, |at| counter(engine, sketch, at)) - count;
        far += usize::from(error.abs() as f64 > bound);
        below += usize::from(error < 0);
    }
    (far, below)
}

#[test]
fn estimates_are_as_near_as_asked_for() {
    let (frames, exact) = traffic();
    assert!(exact.len() > 4_000, "{} flows are too few to meet in counters", exact.len());
    let few = (DELTA * exact.len() as f64) as usize;
    let (mut engine, sketch) = counted("CountMinSketch", 1, "", &frames);
    let (far, below) = wrong(&mut engine, &sketch, &exact, EPSILON * PACKETS as f64);
    assert!(far <= few && below == 0, "{far} of {} are too far off, {below} too small", exact.len());
    let exactly = wrong(&mut engine, &sketch, &exact, 0.0).0;
    assert!(exactly > 0, "there is nothing to be wrong about");
    let norm = exact.values().map(|count| (count * count) as f64).sum::<f64>().sqrt();
    let element = format!("CountSketch(EPSILON 0.05, DELTA {DELTA}, TOP {LARGEST})");
    let (_, mut engine, sketch) = made(&element, 1, "");
    run(&mut engine, &frames);
    let (far, below) = wrong(&mut engine, &sketch, &exact, 0.05 * norm);
    assert!(far <= few && below > 0, "{far} of {} are too far off, {below} too small", exact.len());
}

#[test]
fn the_largest_flows_are_found_with_what_the_code_says_of_them() {
    let (frames, exact) = traffic();
    let mut by_count: Vec<(i64, FlowKey)> = exact.iter().map(|(flow, count)| (*count, *flow)).collect();
    by_count.sort_unstable_by_key(|(count, flow)| (-count, *flow));
    for class in ["CountMinSketch", "CountSketch"] {
        let (mut engine, sketch) = counted(class, 1, "", &frames);
        let known = candidates(&mut engine, &sketch);
        let largest = sketch.largest(known.iter().map(|(f, _)| *f), |at| counter(&mut engine, &sketch, at));
        assert_eq!(largest.len(), LARGEST);
        let least = by_count[LARGEST - 1].0 as f64 - EPSILON * PACKETS as f64;
        for (estimate, flow) in &largest {
            assert!(exact[flow] as f64 >= least, "{class}: {flow} has {}, not {estimate}", exact[flow]);
        }
        assert!(largest.iter().any(|(_, flow)| *flow == by_count[0].1), "{class}");
        // The last packet's estimate is that of all.
        let (last, _) = largest[0];
        let other = packet(6, [[9, 9, 9, 9], [8, 8, 8, 8]], [1, 2], 0);
        let flow = FlowKey::parse("9.9.9.9 1 8.8.8.8 2 tcp").expect("a flow");
        let many = vec![other; last as usize + 500];
        run(&mut engine, &many);
        let said =
            candidates(&mut engine, &sketch).into_iter().find(|(f, _)| *f == flow).expect("the largest");
        assert_eq!(said.1, sketch.estimate(flow, |at| counter(&mut engine, &sketch, at)), "{class}");
    }
}

#[test]
fn workers_together_count_what_one_does_and_so_does_code_that_fetches_ahead() {
    let (frames, _) = traffic();
    for class in ["CountMinSketch", "CountSketch"] {
        let all = |engine: &mut NativeEngine, sketch: &FlowSketch| -> Vec<i64> {
            let entries = engine.map(&sketch.counters).expect("there").spec().max_entries;
            (0..entries).map(|at| counter(engine, sketch, at)).collect()
        };
        let (mut engine, sketch) = counted(class, 1, "", &frames);
        let expected = all(&mut engine, &sketch);
        assert!(expected.iter().any(|count| *count != 0));
        let ahead = "pattern=packets,distance=4,from=0,trials=off";
        for (workers, schedule) in [(1, ahead), (3, ""), (3, ahead)] {
            let (mut engine, sketch) = counted(class, workers, schedule, &frames);
            assert!(all(&mut engine, &sketch) == expected, "{class}, {workers} workers");
        }
    }
}

#[test]
fn sketches_that_are_too_large_are_refused() {
    let text =
        "FromDevice(in) -> MarkIPHeader -> s :: CountMinSketch(EPSILON 0.00000001) -> ToDPDKDevice(out)";
    let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    let errors = compile(&graph).expect_err("too large");
    assert!(errors[0].message.contains("67108864 counters in 15 rows at most"), "{errors:?}");
}
