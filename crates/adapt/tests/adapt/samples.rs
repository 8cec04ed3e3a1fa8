//! Samples of live packets, and the traces that are made of them, beside the traffic as it was.

use millstream_lab::workload::BuiltinWorkload;
use millstream_native::{NativeEngine, NativeOptions, PacketBatch};
use millstream_object::Object;
use millstream_programs::traffic::FlowLocality;
use millstream_traces::{SampledWindow, TraceBuilder, TrafficShape};

/// Packets of a batch.
const BATCH: usize = 32;
/// Packets of the traffic, and of the trace.
const PACKETS: usize = 200_000;
/// Packets of a window, and those from one window to the next: an eighth is sampled.
const WINDOW: u32 = 256;
const PERIOD: usize = 2048;
/// Most difference of the shares of packets by verdict.
const OF_BRANCHES: f64 = 0.02;
/// Most difference of the shares of packets that find their flow in a cache of any size.
const OF_REUSE: f64 = 0.05;
/// Most difference of the number of flows, as a share.
const OF_FLOWS: f64 = 0.35;
/// Most difference of the mean run length, as a share.
const OF_RUNS: f64 = 0.05;

/// A data plane of ours with its tables, and the frames of its flows.
fn data_plane(name: &str, flows: usize, locality: FlowLocality) -> (NativeEngine, Vec<Vec<u8>>, Vec<u32>) {
    let known: BuiltinWorkload = format!("builtin:{name}").parse().expect("known");
    let load = known.workload([1, 2], flows, locality).expect("it fits");
    let object = Object::parse(known.program.name, known.program.object).expect("our own");
    let mut engine = NativeEngine::of_object(&object, None, &NativeOptions::default()).expect("compiled");
    for entry in &load.entries {
        let map = engine.map(entry.map).expect("there");
        assert_eq!(map.update(&entry.key, &entry.value, 0, None), 0);
    }
    (engine, load.flows.packets.clone(), load.flows.sequence(3, PACKETS))
}

/// Runs frames; returns the share of each verdict, and windows that were sampled meanwhile.
fn run<'f>(
    engine: &mut NativeEngine,
    frames: impl Iterator<Item = &'f [u8]>,
) -> ([f64; 5], Vec<SampledWindow>) {
    let mut batch = PacketBatch::new(BATCH).expect("memory");
    let (mut verdicts, mut windows, mut ran) = ([0.0; 5], Vec::new(), 0);
    let mut frames = frames.peekable();
    while frames.peek().is_some() {
        if ran % PERIOD == 0 {
            let packets = engine.sampler().take();
            windows.push(SampledWindow { frames: packets.into_iter().map(|packet| packet.bytes).collect() });
            engine.sampler().request(WINDOW);
        }
        batch.clear();
        batch.expect(engine.layout());
        frames.by_ref().take(BATCH).for_each(|frame| assert!(batch.push(frame, 1)));
        engine.run(&mut batch);
        (0..batch.len()).for_each(|at| verdicts[batch.verdict(at).min(4) as usize] += 1.0);
        ran += BATCH;
    }
    (verdicts.map(|count| count / PACKETS as f64), windows)
}

#[test]
fn windows_are_consecutive_packets_and_as_many_as_asked_for() {
    let (mut engine, frames, order) = data_plane("router:100", 50, FlowLocality::HIGH);
    let traffic = || order.iter().take(4 * PERIOD).map(|flow| &frames[*flow as usize][..]);
    let (_, windows) = run(&mut engine, traffic());
    assert_eq!(windows.len(), 4);
    assert!(windows[0].frames.is_empty());
    for (number, window) in windows[1..].iter().enumerate() {
        let expected = traffic().skip(number * PERIOD).take(WINDOW as usize);
        assert!(window.frames.iter().map(|frame| &frame[..]).eq(expected));
    }
}

#[test]
fn traces_keep_shares_of_branches_flows_runs_and_reuse() {
    for (name, flows, locality) in [
        ("firewall:200", 2_000, FlowLocality::HIGH),
        ("firewall:200", 20_000, FlowLocality::NONE),
        ("router:1000", 20_000, FlowLocality::LOW),
    ] {
        let (mut engine, frames, order) = data_plane(name, flows, locality);
        let traffic = || order.iter().map(|flow| &frames[*flow as usize][..]);
        let (verdicts, windows) = run(&mut engine, traffic());
        let trace = TraceBuilder::new(windows).build(PACKETS, 1);
        let (of_trace, _) = run(&mut engine, trace.iter().map(|frame| &frame[..]));
        for (verdict, (a, b)) in verdicts.iter().zip(of_trace).enumerate() {
            assert!((a - b).abs() <= OF_BRANCHES, "{name}: verdict {verdict}: {a} and {b}");
        }
        let (before, after) =
            (TrafficShape::of(traffic()), TrafficShape::of(trace.iter().map(|frame| &frame[..])));
        println!("{name}, {flows} flows: {before:?}\n{after:?}");
        let share = after.flows as f64 / before.flows as f64;
        assert!((share - 1.0).abs() <= OF_FLOWS, "{name}: {} and {} flows", before.flows, after.flows);
        let runs = after.run_length / before.run_length;
        assert!((runs - 1.0).abs() <= OF_RUNS, "{name}: {} and {}", before.run_length, after.run_length);
        for size in (0..17).map(|power| 1 << power) {
            let (a, b) = (before.hit_share(size), after.hit_share(size));
            assert!((a - b).abs() <= OF_REUSE, "{name}: {size} flows: {a} and {b}");
        }
    }
}
