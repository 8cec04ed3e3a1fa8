//! Arguments that change which packets there are, when they come and how they are handled: the same as
//! FastClick for these configurations.

use std::time::Duration;

use millstream_built::script::{ScriptEnvironment, ScriptRunner};
use millstream_built::{fill, handlers, queueing};
use millstream_click::{
    Ablations, ClickProgram, GraphSource, HandlerWriters, SourceSchedule, flatten, parse,
};
use millstream_click_elements::compile_for;
use millstream_native::{NativeEngine, NativeOptions, ProgramFacts};
use millstream_native_io::graph::{GraphRunStats, GraphSources, SourceFrames};
use millstream_native_io::timed::{self, ArrivalTimes, TimedQueues, run_graph_timed};

/// A run of a configuration on captures of these frames.
struct Run {
    program: ClickProgram,
    engine: NativeEngine,
    ran: GraphRunStats,
    /// Output and bytes of each packet.
    sent: Vec<(usize, Vec<u8>)>,
}

/// Times at which a source sends.
fn beat(program: &ClickProgram, source: usize) -> (timed::SendSchedule, bool) {
    let sender = program.waits.senders.iter().find(|sender| sender.source == source);
    match sender.map(|sender| sender.beat) {
        Some(SourceSchedule::Rate(rate)) => (timed::SendSchedule::Rate(rate), true),
        Some(SourceSchedule::Every(time)) => (timed::SendSchedule::Every(time), true),
        None => (timed::SendSchedule::Rate(1_000_000), false),
    }
}

fn run(text: &str, frames: &[Vec<u8>]) -> Run {
    let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    let none = |_: &str, _: Option<&str>| Err("no objects".to_owned());
    let general = Ablations { time: true, ..Ablations::default() };
    let program = compile_for(&graph, &none, HandlerWriters::Scripts, general)
        .unwrap_or_else(|e| panic!("{text}: {e:?}"));
    let options = NativeOptions {
        facts: ProgramFacts { copies: program.copies, ..ProgramFacts::default() },
        ..NativeOptions::default()
    };
    let mut engine =
        NativeEngine::of_module(program.code.module.clone(), program.code.entry, &options).expect("compiled");
    fill(&mut engine, &program.code.entries).expect("filled");
    let packets: Vec<(Vec<Vec<u8>>, u64)> = program
        .sources
        .iter()
        .map(|source| match source {
            GraphSource::Constant(bytes, limit) => (vec![bytes.clone()], limit.unwrap_or(10_000)),
            GraphSource::Frames(frames, limit) => (frames.clone(), limit.unwrap_or(10_000)),
            GraphSource::File(_) | GraphSource::Device(_) | GraphSource::Summary(_) => {
                (frames.to_vec(), frames.len() as u64)
            }
        })
        .collect();
    let feeds: Vec<SourceFrames<'_>> =
        packets.iter().map(|(frames, count)| SourceFrames { frames, count: *count }).collect();
    let tables: Vec<ArrivalTimes<'_>> = (0..feeds.len())
        .map(|source| {
            let (beat, paced) = beat(&program, source);
            ArrivalTimes { stamps: &[], beat, paced }
        })
        .collect();
    let (pulls, mut sent) = (queueing::pull_schedulers(&program), Vec::new());
    let sources = GraphSources { pulls: &pulls, ..GraphSources::from(&feeds) };
    let mut place = TimedQueues::new(&queueing::queue_spec(&program, &mut engine));
    let mut scripts = ScriptRunner::new(&program);
    let take = |p: millstream_native_io::graph::SentPacket<'_>, _: u64| {
        sent.push((p.output, p.bytes.to_vec()));
        Ok(())
    };
    let (mut out, mut errors) = (Vec::new(), Vec::new());
    let on = |engine: &mut NativeEngine, place: &mut TimedQueues| {
        queueing::publish_stats(&program, engine, place);
        let now = Duration::from_secs(1);
        let mut around =
            ScriptEnvironment { program: &program, engine, now, out: &mut out, errors: &mut errors };
        let on = scripts.run_due(&mut around).expect("memory");
        queueing::apply_settings(&program, engine, place);
        on
    };
    let ran = run_graph_timed(
        &mut engine,
        (sources, &tables),
        &mut place,
        (program.targets.len(), 32),
        false,
        take,
        on,
    )
    .expect("memory");
    queueing::publish_stats(&program, &mut engine, &mut place);
    assert_eq!(String::from_utf8_lossy(&errors), "", "{text}");
    Run { program, engine, ran, sent }
}

impl Run {
    fn read(&mut self, handler: &str) -> String {
        handlers::read(&self.program, &mut self.engine, handler).unwrap_or_else(|e| panic!("{handler}: {e}"))
    }
}

/// Checks the values of handlers after a run.
fn reads(text: &str, frames: &[Vec<u8>], wanted: &[(&str, &str)]) {
    let mut run = run(text, frames);
    for (handler, value) in wanted {
        assert_eq!(run.read(handler), *value, "{handler} of {text}");
    }
    let copied = run.read("list");
    assert!(!copied.is_empty());
}

/// A UDP frame, with a VLAN tag if `tag`.
fn udp(tag: bool) -> Vec<u8> {
    let mut frame = vec![2; 12];
    if tag {
        frame.extend([0x81, 0, 0, 7]);
    }
    frame.extend([8, 0]);
    let mut header = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    header.extend([0, 7, 0, 9, 0, 8, 0, 0]);
    frame.extend(header);
    frame
}

#[test]
fn frames_of_ip_are_found_if_that_is_wanted() {
    let mut arp = udp(false);
    arp[13] = 6;
    let mut cut = udp(false);
    cut.truncate(30);
    let mut old = udp(false);
    old[14] = 0x55;
    let frames = [udp(false), udp(true), arp, cut, old, vec![0; 5]];
    let text =
        "FromDump(a, STOP true, FORCE_IP true) -> i :: IPClassifier(udp, -) -> c :: Counter -> Discard;
        i[1] -> o :: Counter -> Discard;";
    reads(text, &frames, &[("c.count", "2"), ("o.count", "0")]);
    let text = "f :: FromDump(a, FORCE_IP true) -> GetIPAddress(IP dst) -> c :: Counter -> Discard; \
        f[1] -> o :: Counter -> Discard;";
    reads(text, &frames, &[("c.count", "2"), ("o.count", "4")]);
    // Without it, the header's place is unknown.
    let text = "FromDump(a) -> i :: IPClassifier(udp, -) -> c :: Counter -> Discard; i[1] -> o :: Counter -> Discard;";
    reads(text, &frames[..1], &[("c.count", "0")]);
}

#[test]
fn an_unqueue_pulls_until_its_limit() {
    let text = "InfiniteSource(LIMIT 100, STOP true) -> q :: Queue -> u :: Unqueue(LIMIT 1) -> c :: Counter -> Discard";
    reads(text, &[], &[("c.count", "1"), ("q.length", "99"), ("u.count", "1")]);
    let text = "InfiniteSource(LIMIT 100) -> q :: Queue(10) -> Unqueue(LIMIT 3) -> c :: Counter -> Discard";
    // The source waits while the queue is full.
    reads(text, &[], &[("c.count", "3"), ("q.length", "10"), ("q.drops", "0")]);
    let text = "InfiniteSource(LIMIT 100) -> q :: Queue -> Unqueue(ACTIVE false) -> c :: Counter -> Discard";
    reads(text, &[], &[("c.count", "0"), ("q.length", "100")]);
    let text =
        "InfiniteSource(LIMIT 100) -> q :: Queue -> Unqueue(LIMIT -1, BURST 4) -> c :: Counter -> Discard";
    reads(text, &[], &[("c.count", "100"), ("q.length", "0")]);
}

#[test]
fn handlers_are_written_by_the_packet_that_makes_the_number_full() {
    let switch = "InfiniteSource(LIMIT 100, STOP true) -> n :: Counter(COUNT_CALL 5 s.switch 1) \
        -> s :: Switch -> c :: Counter
        -> d :: Discard; s[1] -> o :: Counter -> d;";
    reads(switch, &[], &[("c.count", "4"), ("o.count", "96"), ("s.switch", "1"), ("n.count", "100")]);
    let bytes = "InfiniteSource(LENGTH 100, LIMIT 10) -> Counter(BYTE_COUNT_CALL 450 s.switch -1) \
        -> s :: Switch -> c :: Counter -> Discard;";
    reads(bytes, &[], &[("c.count", "4"), ("s.switch", "-1"), ("s.drops", "6")]);
    let stop = "InfiniteSource(LIMIT 100) -> c :: Counter(COUNT_CALL 7 stop) -> Discard;";
    reads(stop, &[], &[("c.count", "7")]);
    let own = "InfiniteSource(LIMIT 10) -> c :: Counter(COUNT_CALL 8 c.reset) -> Discard;";
    reads(own, &[], &[("c.count", "2")]);
    let script = "InfiniteSource(LIMIT 10) -> c :: Counter(COUNT_CALL 4 s.run) -> Discard; \
        s :: Script(TYPE PASSIVE, write stop);";
    reads(script, &[], &[("c.count", "4")]);
    let within = "elementclass E { input -> Counter(COUNT_CALL 2 s.switch 1) -> s :: Switch -> output; s[1] -> Discard }
        InfiniteSource(LIMIT 9) -> E -> c :: Counter -> Discard;";
    reads(within, &[], &[("c.count", "1")]);
}

#[test]
fn packets_without_a_destination_are_dropped_by_those_who_would_ask_for_it() {
    let ask = |to: &str, more: &str| {
        format!(
            "FromDump(a) -> Strip(14) -> MarkIPHeader(0) \
             -> {to} a :: ARPQuerier(1.0.0.1/24, 2:1:1:1:1:1{more}) -> o :: ToDump(o); Idle -> [1] a;"
        )
    };
    let sent = |text: &str| {
        run(text, &[udp(false)]).sent.into_iter().map(|(_, bytes)| bytes[..6].to_vec()).collect::<Vec<_>>()
    };
    assert!(sent(&ask("", "")).is_empty());
    assert!(sent(&ask("SetIPAddress(0.0.0.0) ->", "")).is_empty());
    assert_eq!(sent(&ask("SetIPAddress(255.255.255.255) ->", "")), [[0xff; 6]]);
    assert_eq!(sent(&ask("SetIPAddress(1.0.0.255) ->", "")), [[0xff; 6]]);
    assert_eq!(sent(&ask("SetIPAddress(1.0.0.7) ->", ", BROADCAST 1.0.0.7")), [[0xff; 6]]);
    assert_eq!(sent(&ask("SetIPAddress(224.129.2.3) ->", "")), [[1, 0, 0x5e, 1, 2, 3]]);
    let questions = run(&ask("SetIPAddress(1.0.0.9) ->", ""), &[udp(false)]).sent;
    assert_eq!(questions[0].1[12..14], [8, 6], "asked for");
}

#[test]
fn data_may_be_empty() {
    for class in [
        "InfiniteSource(DATA \"\", LIMIT 1, STOP true)",
        "RatedSource(DATA \"\", LIMIT 1)",
        "InfiniteSource(LENGTH 0, LIMIT 1)",
    ] {
        reads(
            &format!("{class} -> c :: Counter -> Discard"),
            &[],
            &[("c.count", "1"), ("c.byte_count", "0")],
        );
    }
    reads("InfiniteSource(LIMIT 1) -> c :: Counter -> Discard", &[], &[("c.byte_count", "69")]);
    reads("InfiniteSource(abc, LENGTH 7, LIMIT 1) -> c :: Counter -> Discard", &[], &[("c.byte_count", "7")]);
}

/// First byte of each packet sent, in order.
fn order(text: &str) -> Vec<u8> {
    run(text, &[]).sent.into_iter().map(|(_, bytes)| bytes[0]).collect()
}

#[test]
fn schedulers_pull_from_sources_by_turns() {
    let three = "i1 :: InfiniteSource(\\<01>, LIMIT 10) i2 :: InfiniteSource(\\<02>, LIMIT 10) \
        i3 :: InfiniteSource(\\<03>, LIMIT 10)";
    let by = |scheduler: &str| {
        order(&format!("{three} s :: {scheduler} i1 -> [0] s; i2 -> [1] s; i3 -> [2] s; s -> ToDump(o)"))
    };
    let strides = by("StrideSched(4, 2, 1)");
    assert_eq!(strides[..14], [1, 1, 2, 1, 1, 2, 3, 1, 1, 2, 1, 1, 2, 3]);
    assert_eq!(strides.len(), 30);
    assert_eq!(by("RoundRobinSched")[..6], [1, 2, 3, 1, 2, 3]);
    assert_eq!(by("PrioSched"), [[1; 10], [2; 10], [3; 10]].concat());
    // Schedulers behind one another, and a source that is pushed beside them.
    let nested = format!(
        "{three} a :: RoundRobinSched i1 -> [0] a; i2 -> [1] a; p :: PrioSched i3 -> [0] p; \
         a -> Null -> [1] p; p -> ToDump(o)"
    );
    assert_eq!(order(&nested), [vec![3; 10], [1, 2].repeat(10)].concat());
}

#[test]
fn rates_have_units_wherever_they_are_bandwidths() {
    let text = "RatedSource(LENGTH 100, RATE 10, LIMIT 20) \
        -> s :: BandwidthRatedSplitter(RATE 200Bps, BURST_BYTES 100) -> c :: Counter -> Discard; \
        s[1] -> Discard;";
    let mut run = run(text, &[]);
    let passed: u64 = run.read("c.count").parse().expect("a number");
    assert!(
        (4..=6).contains(&passed),
        "{passed} of 20 packets of 100 bytes in two seconds at 200 bytes per second"
    );
    for rate in ["200Bps", "1600bps", "1.6kbps", "0.2kB/s", "200"] {
        reads(
            &format!("Idle -> s :: BandwidthRatedSplitter({rate}) -> Discard; s[1] -> Discard;"),
            &[],
            &[("s.rate", "200")],
        );
    }
}

#[test]
fn there_are_buffers_for_all_copies() {
    let outputs = |t: &str, to: &str| (0..24).map(|at| format!("{t}[{at}] -> {to}; ")).collect::<String>();
    let once = format!("FromDump(a) -> t :: Tee(24); {} d :: Counter -> x :: Discard;", outputs("t", "d"));
    let frames: Vec<Vec<u8>> = (0..64).map(|_| udp(false)).collect();
    for batch in [32, 256] {
        let text = once.clone();
        let graph = flatten(&parse(&text).expect("parsed"), &[]).expect("flattened");
        let program = millstream_click_elements::compile(&graph).expect("compiled");
        assert_eq!(program.copies, 23);
        let options = NativeOptions {
            facts: ProgramFacts { copies: program.copies, ..ProgramFacts::default() },
            ..NativeOptions::default()
        };
        let mut engine = NativeEngine::of_module(program.code.module.clone(), program.code.entry, &options)
            .expect("compiled");
        let feeds = [SourceFrames { frames: &frames, count: 64 }];
        millstream_native_io::graph::run_graph(&mut engine, &feeds, 0, batch, |_| Ok(())).expect("memory");
        assert_eq!(handlers::read(&program, &mut engine, "d.count").expect("a handler"), "1536");
    }
    let twice = format!(
        "FromDump(a) -> t :: Tee(24); {} u :: Tee(24); {} d :: Counter -> Discard;",
        outputs("t", "u"),
        outputs("u", "d")
    );
    reads(&twice, &frames[..3], &[("d.count", "1728")]);
    assert_eq!(run(&once, &frames).ran.copies, 23 * 64);
}

#[test]
fn an_interface_gives_whole_frames_unless_told_otherwise() {
    let text = "FromDevice(eth0, SNAPLEN 20) -> c :: Counter -> Discard; Idle -> DelayUnqueue(1) -> Discard";
    reads(text, &[udp(false), vec![0; 15]], &[("c.count", "2"), ("c.byte_count", "35")]);
    let text =
        "FromDevice(eth0, PROTOCOL 0x0800) -> c :: Counter -> Discard; Idle -> DelayUnqueue(1) -> Discard";
    reads(text, &[udp(false), udp(true), vec![0; 5]], &[("c.count", "1")]);
}

#[test]
fn an_interface_gives_what_its_filter_matches() {
    let count = |filter: &str, frames: &[Vec<u8>]| {
        let text = format!(
            "FromDevice(eth0, METHOD PCAP, BPF_FILTER \"{filter}\") -> c :: Counter -> Discard; \
             Idle -> DelayUnqueue(1) -> Discard"
        );
        run(&text, frames).read("c.count")
    };
    let mut later = udp(false);
    later[21] = 1;
    let mut arp = udp(false);
    arp[13] = 6;
    let frames = [udp(false), udp(true), later, arp, udp(false)[..36].to_vec()];
    for (filter, matched) in [
        ("", "5"),
        ("udp", "3"),
        ("tcp port 80", "0"),
        ("udp port 9", "1"),
        ("port 7 or port 1000", "2"),
        ("src port 9", "0"),
        ("udp and not port 9", "1"),
        ("not udp", "2"),
        ("host 10.0.0.2", "3"),
        ("src net 10.0.0.0/31 and dst host 10.0.0.2", "3"),
        ("src host 10.0.0.2", "0"),
        ("arp", "1"),
        ("udp[0:2] = 7", "2"),
        ("ip[0] & 0xf > 5", "0"),
        ("len <= 36", "1"),
        ("ether host 2:2:2:2:2:2", "5"),
        ("ether[12:2] = 0x8100", "1"),
        ("portrange 5-8 and ip proto \\udp", "2"),
    ] {
        assert_eq!(count(filter, &frames), matched, "{filter}");
    }
}
