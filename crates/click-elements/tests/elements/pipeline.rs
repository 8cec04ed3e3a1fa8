//! A graph in stages has the same effect as in one, with any timing of its workers, and ends when one of them
//! fails.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::yield_now;

use millstream_click::{
    Ablations, ClickProgram, Graph, HandlerAccess, HandlerWriters, STATE, flatten, parse,
};
use millstream_click_elements::{compile, compile_for};
use millstream_native::{NativeEngine, NativeOptions};
use millstream_native_io::WorkerHooks;
use millstream_native_io::graph::{
    GraphRunStats, GraphSources, SentPacket, SourceFrames, SourceGate, run_graph,
};
use millstream_native_io::pipeline::run_graph_pipelined;
use millstream_programs::packet::partly_broken;
use millstream_rng::Rng;

/// Annotations and stripped headers that are needed behind queues, copies, a queue behind another, a path
/// beside all queues, and a table that one stage fills and both look up in.
const QUEUES: &str = "FromDump(a) -> c :: Classifier(12/0800, -); c[1] -> ToDump(1);
    c[0] -> Paint(3) -> Strip(14) -> k :: CheckIPHeader(CHECKSUM false) \
        -> rw :: IPRewriter(pattern 192.0.2.1 1024-65535# - - 0 1)
        -> q :: Queue -> Unqueue -> p :: CheckPaint(3) -> Unstrip(14) -> t :: Tee(2) -> n :: Counter -> ToDump(0);
    t[1] -> Queue(5) -> Unqueue -> Strip(14) -> DecIPTTL -> Queue -> Unqueue -> ToDump(2); p[1] -> Discard; \
        rw[1] -> q; k[1] -> Discard;";

/// No function asks for the engine.
const NEVER: Option<fn(&mut NativeEngine) -> bool> = None;

/// Packets that each output sent, in order.
type Sent = Vec<Vec<(u64, Vec<u8>)>>;

fn graph() -> Graph {
    flatten(&parse(QUEUES).expect("parsed"), &[]).expect("flattened")
}

fn staged(graph: &Graph) -> ClickProgram {
    let general = Ablations { stages: true, ..Ablations::default() };
    let program =
        compile_for(graph, &|_, _| Err(String::new()), HandlerWriters::Scripts, general).expect("compiled");
    assert!(program.stages > 1);
    program.for_workers().expect("for several workers")
}

fn engine(program: &ClickProgram, workers: u32, batch: u32) -> NativeEngine {
    let schedule = format!("batch={batch}").parse().expect("a schedule");
    let options = NativeOptions { workers, schedule, ..NativeOptions::default() };
    NativeEngine::of_module(program.code.module.clone(), program.code.entry, &options).expect("compiled")
}

/// Numbers of elements by where they are, over all workers.
fn numbers(engine: &mut NativeEngine) -> impl Fn(u32) -> u64 + use<> {
    let workers = engine.workers() as usize;
    let state = engine.map(STATE).expect("the state").get(&[0; 4]).expect("the first");
    move |offset| {
        // A copy a worker.
        let copies = state.chunks(state.len() / workers);
        let word =
            |copy: &[u8]| copy[offset as usize..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        copies.map(word).sum()
    }
}

/// Received and copies are sent or dropped.
fn adds_up(program: &ClickProgram, engine: &mut NativeEngine, ran: &GraphRunStats) {
    let number = numbers(engine);
    let dropped: u64 = program.drops.iter().map(|drop| number(drop.offset)).sum();
    let taken = ran.received.iter().sum::<u64>() + ran.copies + number(program.uncloned);
    assert_eq!(taken, ran.sent.iter().sum::<u64>() + dropped);
}

#[test]
fn stages_send_what_one_worker_sends_in_the_same_order() {
    let graph = graph();
    let frames = partly_broken(&mut Rng::new(5), 3_000);
    let feeds = [SourceFrames { frames: &frames, count: frames.len() as u64 }];
    let plain = compile(&graph).expect("compiled");
    let mut one: Sent = vec![Vec::new(); plain.targets.len()];
    let ran = run_graph(&mut engine(&plain, 1, 64), &feeds, plain.targets.len(), 64, |p: SentPacket<'_>| {
        one[p.output].push((p.number, p.bytes.to_vec()));
        Ok(())
    })
    .expect("run");
    assert!(one.iter().all(|sent| sent.len() > 20), "{:?}", ran.sent);
    let program = staged(&graph);
    assert_eq!(program.stages, 4);
    for (stages, batch) in [(2, 1), (2, 7), (2, 64), (2, 200), (3, 1), (3, 64), (4, 7), (4, 64), (5, 64)] {
        let mut engine = engine(&program, stages, batch);
        let sent = Mutex::new(vec![Vec::new(); program.targets.len()]);
        let take = |p: SentPacket<'_>| {
            sent.lock().expect("no panic")[p.output].push((p.number, p.bytes.to_vec()));
            Ok(())
        };
        let crew = WorkerHooks { enter: &|_| Ok(()) };
        let outputs = program.targets.len();
        let found = run_graph_pipelined(&mut engine, &feeds, outputs, batch as usize, &crew, &take, NEVER)
            .expect("run");
        assert_eq!((&found.received, found.copies, &found.sent), (&ran.received, ran.copies, &ran.sent));
        adds_up(&program, &mut engine, &found);
        assert!(sent.into_inner().expect("no panic") == one, "{stages} stages, batches of {batch}");
    }
}

#[test]
fn a_stage_that_fails_ends_the_others() {
    let program = staged(&graph());
    let frames = partly_broken(&mut Rng::new(6), 2_000);
    let feeds = [SourceFrames { frames: &frames, count: 10_000_000 }];
    // Output 1 is the first stage's, output 0 the second one's, output 2 the last one's.
    for (failing, stages) in [(0, 2), (1, 2), (0, 4), (1, 4), (2, 4)] {
        let mut engine = engine(&program, stages, 32);
        let take = |p: SentPacket<'_>| match p.output == failing && p.number > 500 {
            true => Err(io::Error::other("full")),
            false => Ok(()),
        };
        let crew = WorkerHooks { enter: &|_| Ok(()) };
        let ran = run_graph_pipelined(&mut engine, &feeds, program.targets.len(), 32, &crew, &take, NEVER);
        assert_eq!(ran.expect_err("it fails").to_string(), "full");
    }
}

/// Elements put marks into packets in front of queues and check them behind, different from graph to graph;
/// packets with wrong marks go to output 1.
fn painted(color: u32, more: [&str; 2]) -> ClickProgram {
    let text = format!(
        "FromDump(a) -> Paint({color}) {} -> Queue -> Unqueue -> p :: CheckPaint({color}) -> a :: Counter \
         -> Queue -> Unqueue -> {} b :: Counter -> ToDump(0); p[1] -> ToDump(1)",
        more[0], more[1]
    );
    staged(&flatten(&parse(&text).expect("parsed"), &[]).expect("flattened"))
}

/// A caller with exclusive access to the engine finds that every packet that was received was sent, and may
/// replace the graph; no packet of the previous one reaches the new one. Tested with a full ring, an empty
/// one, and a source that waits.
#[test]
fn between_batches_of_stages_no_packet_is_under_way() {
    let programs =
        [painted(3, [""; 2]), painted(5, ["-> SetIPAddress(1.2.3.4) -> Strip(14)", "Unstrip(14) ->"])];
    let frames = vec![vec![7; 60]; 64];
    let feeds = [SourceFrames { frames: &frames, count: u64::MAX }];
    // Number of times the last stage yields before it sends a packet, and true if the source waits every
    // other time.
    for (stages, yields, waits) in
        [(2, 3, false), (2, 0, true), (2, 0, false), (3, 3, false), (3, 0, true), (3, 0, false)]
    {
        let sent = AtomicU64::new(0);
        let take = |p: SentPacket<'_>| {
            (0..yields).for_each(|_| yield_now());
            assert_eq!((p.output, p.number), (0, sent.fetch_add(1, Ordering::Relaxed)));
            Ok(())
        };
        let gate = Arc::new(SourceGate::default());
        let gates = [Some(Arc::clone(&gate))];
        let mut engine = engine(&programs[0], stages, 16);
        let (mut swaps, mut counted) = (0, 0);
        let between = |engine: &mut NativeEngine| {
            let program = &programs[swaps % 2];
            let received: u64 = engine.stats().workers().iter().map(|(account, _)| account.received).sum();
            let departed: u64 = engine.stats().workers().iter().map(|(account, _)| account.redirected).sum();
            let number = numbers(engine);
            let counter = |name: &str| {
                let found = program.handlers.iter().find(|h| (&*h.element, &*h.name) == (name, "count"));
                let Some(HandlerAccess::Number(at)) = found.map(|h| &h.access) else {
                    panic!("{name} counts")
                };
                number(*at)
            };
            let all =
                [departed, sent.load(Ordering::Relaxed), counted + counter("a"), counted + counter("b")];
            assert_eq!(all, [received; 4], "{stages} {yields} {waits}");
            counted = received;
            swaps += 1;
            gate.paused.store(waits && swaps % 2 == 1, Ordering::Relaxed);
            let mut new = self::engine(&programs[swaps % 2], stages, 16);
            new.adopt(engine, &[STATE]);
            *engine = new;
            // On a busy machine the stages may not have run yet.
            swaps < 12 || received == 0 && swaps < 10_000
        };
        let crew = WorkerHooks { enter: &|_| Ok(()) };
        let sources = GraphSources { gates: &gates, ..GraphSources::from(&feeds) };
        let ran = run_graph_pipelined(&mut engine, sources, 2, 16, &crew, &take, Some(between)).expect("run");
        let sent = sent.into_inner();
        assert!(sent > 0);
        assert_eq!((ran.received, ran.sent), (vec![sent], vec![sent, 0]));
    }
}

/// Only queues one behind another count, not those that a packet passes again in a cycle, or beside each
/// other, or that several pull from.
#[test]
fn there_are_as_many_stages_as_queues_one_behind_another_and_one() {
    let stages = |text: &str| {
        let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
        let general = Ablations { stages: true, ..Ablations::default() };
        compile_for(&graph, &|_, _| Err(String::new()), HandlerWriters::Scripts, general)
            .expect("compiled")
            .stages
    };
    for (expected, text) in [
        (1, "FromDump(a) -> Discard"),
        (2, "FromDump(a) -> Queue -> Unqueue -> Discard"),
        (2, "FromDump(a) -> t :: Tee(2) -> Queue -> Unqueue -> d :: Discard; t[1] -> Queue -> Unqueue -> d"),
        (3, "FromDump(a) -> t :: Tee(2) -> Queue -> Unqueue -> q :: Queue -> Unqueue -> Discard; t[1] -> q"),
        (2, "FromDump(a) -> k :: CheckPaint(1) -> Discard; k[1] -> Queue -> Unqueue -> Paint(1) -> k"),
        (1, "FromDump(a) -> q :: Queue -> Unqueue -> d :: Discard; q -> Unqueue -> d"),
    ] {
        assert_eq!(stages(text), expected, "{text}");
    }
}
