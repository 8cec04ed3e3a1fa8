//! Graphs run by several workers at once.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use millstream_click::{ClickProgram, STATE, flatten, parse};
use millstream_click_elements::compile;
use millstream_native::{NativeEngine, NativeOptions};
use millstream_native_io::WorkerHooks;
use millstream_native_io::graph::{SentPacket, SourceFrames, run_graph_by};

const WORKERS: u32 = 3;
const FLOWS: u16 = 600;
const ROUNDS: u64 = 20;

fn program(text: &str) -> ClickProgram {
    let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    compile(&graph).unwrap_or_else(|e| panic!("{e:?}"))
}

/// A UDP datagram in an Ethernet frame.
fn frame([from, to]: [[u8; 4]; 2], [source, destination]: [u16; 2]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0, 0, 28, 0, 7, 0, 0, 64, 17, 0, 0]);
    frame.extend([from, to].concat());
    frame.extend([source, destination].map(u16::to_be_bytes).concat());
    frame.extend([0, 8, 0, 0]);
    frame
}

/// Addresses and ports of a packet without Ethernet header.
fn ends(packet: &[u8]) -> ([u8; 4], u16, [u8; 4], u16) {
    let address = |at: usize| packet[at..at + 4].try_into().expect("four bytes");
    let port = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    (address(12), port(20), address(16), port(22))
}

/// Packets that a run sends, by source: output, number, bytes.
fn run(engine: &mut NativeEngine, feeds: &[SourceFrames<'_>]) -> Vec<(usize, u64, Vec<u8>)> {
    let sent = Mutex::new(Vec::new());
    let take = |p: SentPacket<'_>| {
        sent.lock().expect("nobody panics").push((p.output, p.number, p.bytes.to_vec()));
        Ok(())
    };
    let goes_on = None::<fn(&mut NativeEngine) -> bool>;
    let ran =
        run_graph_by(engine, feeds, 2, 16, &WorkerHooks { enter: &|_| Ok(()) }, &take, goes_on).expect("run");
    let sent = sent.into_inner().expect("nobody panics");
    assert_eq!(ran.received, feeds.iter().map(|f| f.count).collect::<Vec<_>>());
    assert_eq!(ran.sent.iter().sum::<u64>(), sent.len() as u64);
    sent
}

/// The sum of a number over all workers.
fn total(engine: &mut NativeEngine, at: u32) -> u64 {
    let map = engine.map(STATE).expect("the state");
    let size = map.spec().value_size as usize;
    let all = map.get(&[0; 4]).expect("one value");
    assert_eq!(all.len(), size * WORKERS as usize);
    let word = |copy: &[u8]| u64::from_le_bytes(copy[at as usize..][..8].try_into().expect("eight bytes"));
    all.chunks(size).map(word).sum()
}

#[test]
fn workers_give_every_flow_a_port_of_its_own_and_find_it_again() {
    let program = program(
        "rw :: IPRewriter(pattern 192.0.2.1 1024-65535# - - 0 1, drop);
        FromDevice(in) -> Strip(14) -> c :: Counter -> MarkIPHeader -> [0] rw;
        FromDevice(out) -> Strip(14) -> MarkIPHeader -> [1] rw;
        rw[0] -> ToDPDKDevice(out); rw[1] -> ToDPDKDevice(in)",
    );
    let program = program.for_workers().expect("no element is for one worker");
    let options = NativeOptions { workers: WORKERS, ..NativeOptions::default() };
    let mut engine =
        NativeEngine::of_module(program.code.module.clone(), program.code.entry, &options).expect("compiled");
    let server = [198, 51, 100, 7];
    let there: Vec<Vec<u8>> = (0..FLOWS).map(|n| frame([[10, 0, 0, 5], server], [5000 + n, 53])).collect();
    let nothing = SourceFrames { frames: &[], count: 0 };
    let count = ROUNDS * u64::from(FLOWS);
    let sent = run(&mut engine, &[SourceFrames { frames: &there, count }, nothing]);
    assert_eq!(sent.len() as u64, count);
    let mut ports = BTreeMap::new();
    for (output, number, packet) in &sent {
        let (address, port, ..) = ends(packet);
        assert_eq!((*output, address), (0, [192, 0, 2, 1]));
        let flow = number % u64::from(FLOWS);
        assert_eq!(*ports.entry(flow).or_insert(port), port, "flow {flow} keeps its port");
    }
    let mut given: Vec<u16> = ports.values().copied().collect();
    given.sort_unstable();
    given.dedup();
    assert_eq!(given.len(), usize::from(FLOWS), "no port is given out twice");
    let counter = program.handlers.iter().find(|h| (&*h.element, &*h.name) == ("c", "count")).expect("there");
    let millstream_click::HandlerAccess::Number(at) = counter.access else { panic!("a number") };
    assert_eq!(total(&mut engine, at), count);
    // Answers are handled by other workers than their requests.
    let back: Vec<Vec<u8>> =
        ports.values().map(|&port| frame([server, [192, 0, 2, 1]], [53, port])).collect();
    let sent = run(&mut engine, &[nothing, SourceFrames { frames: &back, count: back.len() as u64 }]);
    assert_eq!(sent.len(), back.len());
    for (output, number, packet) in sent {
        let expected = (server, 53, [10, 0, 0, 5], 5000 + number as u16);
        assert_eq!((output, ends(&packet)), (1, expected), "the flow that has this port");
    }
}

#[test]
fn an_element_that_one_worker_must_run_says_so() {
    let text =
        "FromDevice(in) -> MarkIPHeader -> q :: ARPQuerier(10.0.0.1, 1:1:1:1:1:1) -> ToDPDKDevice(out)";
    let errors = program(text).for_workers().expect_err("it keeps packets");
    assert!(errors[0].message.contains("`ARPQuerier` is for one worker"), "{errors:?}");
    assert_eq!(&text[errors[0].span.start..errors[0].span.end], "q");
}

#[test]
fn a_worker_that_fails_ends_the_run_of_all_and_nobody_waits_for_it() {
    let program = program("FromDevice(in) -> ToDPDKDevice(out)").for_workers().expect("for all");
    let options = NativeOptions { workers: WORKERS, ..NativeOptions::default() };
    let mut engine =
        NativeEngine::of_module(program.code.module.clone(), program.code.entry, &options).expect("compiled");
    let frames: Vec<Vec<u8>> = (0..FLOWS).map(|n| frame([[10, 0, 0, 5]; 2], [n, 53])).collect();
    let feeds = [SourceFrames { frames: &frames, count: u64::MAX }];
    let asked = AtomicU32::new(0);
    // A run that goes on is ended in the end, by whoever is asked.
    let goes_on = |_: &mut NativeEngine| asked.fetch_add(1, Ordering::Relaxed) < 2000;
    let take = |p: SentPacket<'_>| match p.number {
        1000 => panic!("as asked for"),
        _ => Ok(()),
    };
    let crew = WorkerHooks { enter: &|_| Ok(()) };
    let error = run_graph_by(&mut engine, &feeds, 1, 16, &crew, &take, Some(goes_on)).expect_err("it failed");
    assert!(error.to_string().contains("a worker has failed"), "{error}");
    assert!(asked.into_inner() < 2000, "the others went on");
}
