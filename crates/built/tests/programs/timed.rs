//! Elements of time over virtual time: when each packet leaves, in which order, and which are dropped or
//! kept, is exact.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_built::{fill, handlers, queueing};
use millstream_click::{Ablations, ClickProgram, HandlerWriters, STATE, flatten, parse};
use millstream_click_elements::compile_for;
use millstream_native::{NativeEngine, NativeOptions};
use millstream_native_io::graph::{GraphRunStats, GraphSources, SentPacket, SourceFrames, SourceGate};
use millstream_native_io::timed::{ArrivalTimes, SendSchedule, TimedQueues, run_graph_timed};

const MS: u64 = 1_000_000;
/// Time at which the captures of these tests begin.
const START: u64 = 1_700_000_000_000_000_000;

/// A configuration that packets run through, and the packets that were sent: time since the beginning,
/// number, output, and bytes.
struct Bed {
    program: ClickProgram,
    engine: NativeEngine,
    queues: TimedQueues,
    sent: Vec<(u64, u64, usize, Vec<u8>)>,
}

fn compiled(text: &str) -> (ClickProgram, NativeEngine) {
    let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    let general = Ablations { time: true, ..Ablations::default() };
    let none = |_: &str, _: Option<&str>| Err(String::new());
    let program =
        compile_for(&graph, &none, HandlerWriters::Anybody, general).unwrap_or_else(|e| panic!("{e:?}"));
    assert_eq!(millstream_ir::verify::verify_module(&program.code.module), []);
    let mut engine =
        NativeEngine::of_module(program.code.module.clone(), program.code.entry, &NativeOptions::default())
            .expect("compiled");
    fill(&mut engine, &program.code.entries).expect("filled");
    (program, engine)
}

impl Bed {
    fn new(text: &str) -> Bed {
        let (program, mut engine) = compiled(text);
        let queues = TimedQueues::new(&queueing::queue_spec(&program, &mut engine));
        Bed { program, engine, queues, sent: Vec::new() }
    }

    /// Runs frames that come at these times since the beginning. `between` is called after every batch, with
    /// the number of packets sent.
    fn run_while(
        &mut self,
        (times, frames): (&[u64], &[Vec<u8>]),
        mut between: impl FnMut(&mut ClickProgram, &mut NativeEngine, &mut TimedQueues) -> bool,
    ) -> GraphRunStats {
        let Bed { program, engine, queues, sent } = self;
        let stamps: Vec<u64> = times.iter().map(|time| START + time).collect();
        let feeds: Vec<SourceFrames<'_>> =
            program.sources.iter().map(|_| SourceFrames { frames, count: times.len() as u64 }).collect();
        let tables: Vec<_> = feeds
            .iter()
            .map(|_| ArrivalTimes { stamps: &stamps, beat: SendSchedule::Rate(0), paced: true })
            .collect();
        let outputs = program.targets.len();
        let take = |p: SentPacket<'_>, at: u64| {
            sent.push((at - START, p.number, p.output, p.bytes.to_vec()));
            Ok(())
        };
        let sources = GraphSources::from(&feeds);
        let on = |engine: &mut NativeEngine, queues: &mut TimedQueues| {
            queueing::publish_stats(program, engine, queues);
            let on = between(program, engine, queues);
            queueing::apply_settings(program, engine, queues);
            on
        };
        let ran = run_graph_timed(engine, (sources, &tables), queues, (outputs, 32), false, take, on);
        let ran = ran.expect("memory");
        queueing::publish_stats(&self.program, &mut self.engine, &mut self.queues);
        ran
    }

    /// The same, to the end. Every packet received or copied was sent, dropped, or is held.
    fn run(&mut self, times: &[u64], frames: &[Vec<u8>]) -> GraphRunStats {
        let ran = self.run_while((times, frames), |_, _, _| true);
        let received: u64 = ran.received.iter().sum();
        let sent: u64 = ran.sent.iter().sum();
        assert_eq!(received + ran.copies, sent + self.dropped(None) + ran.held);
        assert_eq!(ran.held, self.queues.held());
        ran
    }

    fn dropped(&mut self, reason: Option<&str>) -> u64 {
        let state = handlers::state(&mut self.engine);
        let drops =
            self.program.drops.iter().filter(|drop| reason.is_none_or(|reason| drop.reason == reason));
        drops.map(|drop| handlers::number(&state, drop.offset)).sum()
    }

    fn read(&mut self, name: &str) -> String {
        handlers::read(&self.program, &mut self.engine, name).expect("a handler")
    }

    /// Departure time and number of each packet.
    fn times(&self) -> Vec<(u64, u64)> {
        self.sent.iter().map(|(at, number, ..)| (*at, *number)).collect()
    }
}

/// A frame of this length with this first byte.
fn frame(first: u8, length: usize) -> Vec<u8> {
    let mut frame = vec![0; length];
    frame[0] = first;
    frame
}

fn frames(count: u64, length: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| frame(number as u8, length)).collect()
}

#[test]
fn packets_leave_at_their_rate_in_order_and_each_interval_has_its_share() {
    let mut bed =
        Bed::new("FromDump(a) -> q :: Queue(1000) -> RatedUnqueue(1000, BURST_SIZE 1) -> ToDump(o)");
    let times: Vec<u64> = (0..200).map(|at| at * 1_000).collect();
    let ran = bed.run(&times, &frames(200, 60));
    assert_eq!((ran.sent.as_slice(), ran.held), (&[200][..], 0));
    assert_eq!(bed.times(), (0..200).map(|at| (at * MS, at)).collect::<Vec<_>>());
    assert_eq!((bed.read("q.length"), bed.read("q.highwater_length")), ("0".into(), "199".into()));
    // A bucket of 20 ms lets 20 go at once; it is full again after a rest.
    let mut bed = Bed::new("FromDump(a) -> Queue -> Shaper(1000) -> Unqueue -> ToDump(o)");
    let times: Vec<u64> = (0..120).map(|at| if at < 60 { 0 } else { 1_000 * MS }).collect();
    bed.run(&times, &frames(120, 60));
    let until = |from: u64, to: u64| bed.sent.iter().filter(|sent| (from..to).contains(&sent.0)).count();
    assert_eq!([until(0, 1), until(1, 40 * MS + 1), until(1_000 * MS, 1_000 * MS + 1)], [20, 40, 20]);
    assert_eq!(bed.sent.last().map(|sent| sent.0), Some(1_040 * MS));
}

#[test]
fn bytes_leave_at_their_rate() {
    for element in ["BandwidthRatedUnqueue(100000", "BandwidthShaper(800Kbps"] {
        let end = if element.starts_with("BandwidthS") { "-> Unqueue" } else { "" };
        let text = format!("FromDump(a) -> Queue -> {element}, BURST_SIZE 100) {end} -> ToDump(o)");
        let mut bed = Bed::new(&text);
        let frames: Vec<Vec<u8>> = [100, 50, 200, 100, 60].map(|length| frame(1, length)).to_vec();
        bed.run(&[0; 5], &frames);
        // 100 bytes a millisecond. The third one owes 100 bytes, which the fourth one waits for.
        let half = MS / 2;
        assert_eq!(
            bed.times(),
            [(0, 0), (half, 1), (3 * half, 2), (7 * half, 3), (3 * MS + half + 6 * MS / 10, 4)]
        );
    }
}

#[test]
fn full_queues_drop_what_comes_or_what_came_first() {
    for (class, left) in [("Queue", [0, 1, 2, 3, 4]), ("FrontDropQueue", [0, 26, 27, 28, 29])] {
        let mut bed = Bed::new(&format!(
            "FromDump(a) -> q :: {class}(4) -> RatedUnqueue(10, BURST_SIZE 1) -> ToDump(o)"
        ));
        // The first leaves before the others come.
        let times: Vec<u64> = (0..30).map(|at| if at == 0 { 0 } else { 10 }).collect();
        bed.run(&times, &frames(30, 60));
        assert_eq!(
            bed.times(),
            [0, 100, 200, 300, 400].map(|ms| ms * MS).into_iter().zip(left).collect::<Vec<_>>()
        );
        assert_eq!((bed.dropped(Some("queue_full")), bed.read("q.drops")), (25, "25".into()), "{class}");
    }
}

#[test]
fn delays_keep_annotations_and_what_was_stripped() {
    let mut bed = Bed::new(
        "FromDump(a) -> Paint(3) -> Strip(14) -> Queue -> DelayUnqueue(50ms) -> p :: CheckPaint(3) \
         -> Unstrip(14) -> ToDump(o); p[1] -> Discard",
    );
    let times = [0, 7, 20 * MS, 90 * MS];
    bed.run(&times, &frames(4, 80));
    assert_eq!(bed.times(), times.iter().zip(0..).map(|(time, at)| (time + 50 * MS, at)).collect::<Vec<_>>());
    assert!(bed.sent.iter().all(|(_, number, _, bytes)| *bytes == frame(*number as u8, 80)));
}

#[test]
fn links_carry_one_packet_after_the_other() {
    let mut bed = Bed::new("FromDump(a) -> Queue -> LinkUnqueue(10ms, 1MBps) -> ToDump(o)");
    bed.run(&[0, 0, 5 * MS], &frames(3, 1000));
    assert_eq!(bed.times(), [(11 * MS, 0), (12 * MS, 1), (16 * MS, 2)]);
}

#[test]
fn what_pulls_now_and_then_has_its_burst_each_time() {
    let mut bed = Bed::new("FromDump(a) -> Queue -> TimedUnqueue(10ms, 2) -> ToDump(o)");
    bed.run(&[0, 1, 1, 1, 35 * MS], &frames(5, 60));
    assert_eq!(bed.times(), [(0, 0), (10 * MS, 1), (10 * MS, 2), (20 * MS, 3), (40 * MS, 4)]);
    let mut bed = Bed::new("FromDump(a) -> Queue -> s :: TimedSink(1)");
    let ran = bed.run(&[0; 5], &frames(5, 60));
    assert_eq!((ran.held, bed.read("s.count")), (0, "5".into()));
}

#[test]
fn schedulers_choose_when_packets_leave() {
    let classes = "FromDump(a) -> c :: Classifier(0/01, -);";
    let order = |scheduler: &str| {
        let mut bed = Bed::new(&format!(
            "{classes} c[0] -> Queue -> [0] s :: {scheduler}; c[1] -> Queue -> n :: Counter -> [1] s \
             -> RatedUnqueue(1000, BURST_SIZE 1) -> ToDump(o)"
        ));
        let frames: Vec<Vec<u8>> = (0..8).map(|at| frame(u8::from(at >= 4), 60)).collect();
        bed.run(&[0; 8], &frames);
        assert_eq!(bed.times().iter().map(|(at, _)| at / MS).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
        assert_eq!(bed.read("n.count"), "4");
        bed.sent.iter().map(|(_, number, ..)| *number).collect::<Vec<_>>()
    };
    assert_eq!(order("PrioSched"), [4, 5, 6, 7, 0, 1, 2, 3]);
    assert_eq!(order("RoundRobinSched"), [4, 0, 5, 1, 6, 2, 7, 3]);
    assert_eq!(order("StrideSched(3, 1)"), [4, 5, 6, 0, 7, 1, 2, 3]);
}

#[test]
fn an_element_that_pulls_from_another_one_holds_it_up() {
    let mut bed = Bed::new(
        "FromDump(a) -> q :: Queue(3) -> DelayShaper(5ms) -> Shaper(100, BURST_SIZE 1) -> Unqueue -> ToDump(o)",
    );
    bed.run(&[0, 1, 2, 3, 4], &frames(5, 60));
    // Three fit; the first one leaves the queue when its delay is over, the others when the one before them
    // has left.
    assert_eq!(bed.times(), [(5 * MS, 0), (15 * MS, 1), (25 * MS, 2)]);
    assert_eq!(bed.dropped(Some("queue_full")), 2);
}

#[test]
fn sources_that_are_pulled_from_wait_and_lose_nothing() {
    let mut bed = Bed::new("FromDump(a) -> RatedUnqueue(1000000, BURST_SIZE 1) -> ToDump(o)");
    let ran = bed.run(&[0; 3_000], &frames(3_000, 60));
    assert_eq!((ran.sent.as_slice(), bed.dropped(None)), (&[3_000][..], 0));
    assert!(bed.times().iter().zip(0..).all(|(sent, at)| *sent == (at * 1_000, at)));
}

#[test]
fn a_rate_that_is_set_holds_from_then_on_and_what_never_leaves_is_held() {
    let text = "FromDump(a) -> q :: Queue -> r :: RatedUnqueue(1000, BURST_SIZE 1) -> ToDump(o)";
    let mut bed = Bed::new(text);
    let mut batches = 0;
    let ran = bed.run_while((&[0; 10], &frames(10, 60)), |program, engine, _| {
        batches += 1;
        // Ten arrivals and four departures.
        if batches == 15 {
            handlers::write(program, engine, "r.rate 0").expect("written");
        }
        true
    });
    assert_eq!((bed.sent.len(), ran.held), (4, 6));
    assert_eq!(bed.read("q.length"), "6");
    // The time of the next packet was half over.
    let mut bed = Bed::new(text);
    let mut batches = 0;
    bed.run_while((&[0, 0, 0, MS / 2], &frames(4, 60)), |program, engine, _| {
        batches += 1;
        if batches == 6 {
            handlers::write(program, engine, "r.rate 100").expect("written");
        }
        true
    });
    assert_eq!(bed.times(), [(0, 0), (11 * MS / 2, 1), (31 * MS / 2, 2), (51 * MS / 2, 3)]);
}

#[test]
fn replays_send_copies_of_all_packets_in_every_round() {
    let mut bed = Bed::new("FromDump(a) -> r :: ReplayUnqueue(STOP 3) -> ToDump(o)");
    let ran = bed.run(&[0, 7, 20], &frames(3, 60));
    assert_eq!(bed.times(), (0..9).map(|at| (20 + 1_000 * at, at % 3)).collect::<Vec<_>>());
    assert_eq!((ran.copies, ran.held), (6, 0));
    assert_eq!(["r.stop", "r.active", "r.loaded"].map(|name| bed.read(name)), ["0", "false", "true"]);
    // Annotations and bytes are those that each packet came with, in every round.
    let mut bed = Bed::new(
        "FromDump(a) -> Paint(3) -> ReplayUnqueue(STOP 2) -> p :: CheckPaint(3) -> StoreData(1, x) -> Paint(4) \
         -> ToDump(o); p[1] -> Discard",
    );
    bed.run(&[0, 0], &frames(2, 60));
    assert_eq!(
        bed.sent.iter().map(|sent| (sent.3[0], sent.3[1])).collect::<Vec<_>>(),
        [(0, b'x'), (1, b'x')].repeat(2)
    );
}

#[test]
fn replays_take_so_many_packets_and_keep_times_by_a_factor() {
    let mut bed = Bed::new("FromDump(a) -> ReplayUnqueue(STOP 2, LIMIT 2) -> ToDump(o)");
    let ran = bed.run(&[0; 5], &frames(5, 60));
    assert_eq!((ran.received.as_slice(), ran.sent.as_slice()), (&[2][..], &[4][..]));
    let mut bed = Bed::new("FromDump(a) -> ReplayUnqueue(STOP 2, TIMING 200) -> ToDump(o)");
    bed.run(&[0, 6 * MS, 20 * MS], &frames(3, 60));
    let rounds = [20 * MS, 30 * MS + 1_000].map(|began| [0, 3 * MS, 10 * MS].map(|at| began + at));
    assert_eq!(bed.times().iter().map(|(at, _)| *at).collect::<Vec<_>>(), rounds.concat());
}

#[test]
fn replays_end_after_a_time_that_packets_wait_for() {
    let mut bed = Bed::new("FromDump(a) -> r :: ReplayUnqueue(STOP 5, STOP_TIME 2, TIMING 100) -> ToDump(o)");
    bed.run(&[0, 400 * MS, 1500 * MS], &frames(3, 60));
    let began = 1500 * MS;
    let wanted = [(0, 0), (400, 1), (1500, 2), (1500, 0), (1900, 1)];
    let rounds = wanted.map(|(at, number)| (began + at * MS, number));
    let is_near =
        |((time, number), (at, of)): (&(u64, u64), &(u64, u64))| number == of && time.abs_diff(*at) < MS;
    assert!(bed.times().len() == 5 && bed.times().iter().zip(&rounds).all(is_near), "{:?}", bed.times());
    assert_eq!(bed.read("r.stop"), "0");
}

#[test]
fn a_replay_that_begins_again_drops_what_it_never_sent() {
    let mut bed = Bed::new("FromDump(a) -> q :: Queue -> r :: ReplayUnqueue(STOP 2, LIMIT 3) -> ToDump(o)");
    let mut is_reset = false;
    let ran = bed.run_while((&[0; 6], &frames(6, 60)), |program, engine, _| {
        let loaded = handlers::read(program, engine, "r.loaded").expect("read") == "true";
        if loaded && !std::mem::replace(&mut is_reset, loaded) {
            handlers::write(program, engine, "r.reset").expect("written");
        }
        true
    });
    assert_eq!(bed.times().iter().map(|(_, number)| *number).collect::<Vec<_>>(), [0, 3, 4, 5, 3, 4, 5]);
    assert_eq!((ran.copies, ran.held, bed.dropped(Some("reset"))), (3, 0, 2));
}

#[test]
fn splitters_go_by_the_times_of_packets() {
    let mut bed =
        Bed::new("FromDump(a) -> s :: RatedSplitter(1000, BURST_SIZE 1) -> ToDump(o); s[1] -> Discard");
    let times: Vec<u64> = (0..100).map(|at| at * MS / 4).collect();
    bed.run(&times, &frames(100, 60));
    assert_eq!(bed.times(), (0..25).map(|at| (at * MS, 4 * at)).collect::<Vec<_>>());
}

#[test]
fn ways_to_pull_that_lead_back_have_an_end() {
    let text = "FromDump(a) -> Queue -> [0] s :: RoundRobinSched -> p :: PathSpinlock; p[0] -> [1] s; \
        p[1] -> [2] s; p[2] -> RatedUnqueue(1000) -> ToDump(o)";
    let mut bed = Bed::new(text);
    let ran = bed.run(&[0; 3], &frames(3, 60));
    assert_eq!((ran.sent.as_slice(), bed.dropped(Some("endless"))), (&[0][..], 3));
}

#[test]
fn meters_choose_by_what_came_lately() {
    let mut bed = Bed::new(
        "FromDump(a) -> m :: Meter(1000, 3000); m[0] -> ToDump(slow); m[1] -> ToDump(some); m[2] -> ToDump(fast)",
    );
    // 2,000 a second for 200 ms, 8,000 for as long, nothing for a second, 500 for 200 ms.
    let spell = |from: u64, every: u64| (0..200 * MS / every).map(move |at| from + at * every);
    let times: Vec<u64> =
        spell(0, MS / 2).chain(spell(200 * MS, MS / 8)).chain(spell(1_400 * MS, 2 * MS)).collect();
    bed.run(&times, &frames(times.len() as u64, 60));
    // 1 - (15/16)^n is more than 1/2 from n = 11 on; of 2,000 and 6,000 more a sixth has come after 3.
    // Nothing is left after a second.
    let first = |from: u64, output: usize| {
        bed.sent.iter().find(|sent| sent.0 >= from && sent.2 == output).map(|sent| sent.0 / MS)
    };
    assert_eq!([first(0, 0), first(0, 1), first(0, 2)], [Some(0), Some(11), Some(203)]);
    assert_eq!([first(1_400 * MS, 0), first(1_400 * MS, 1), first(1_400 * MS, 2)], [Some(1_400), None, None]);
    assert!(bed.sent.iter().all(|sent| sent.2 == 1 || sent.0 < 11 * MS || sent.0 >= 203 * MS));
    let rate: f64 = bed.read("m.rate").parse().expect("a number");
    assert!((400.0..600.0).contains(&rate), "{rate}");
    let mut bed =
        Bed::new("FromDump(a) -> m :: BandwidthMeter(100KBps); m[0] -> ToDump(slow); m[1] -> ToDump(fast)");
    bed.run(&(0..1_000).map(|at| at * MS / 4).collect::<Vec<_>>(), &frames(1_000, 50));
    // 200,000 bytes per second.
    assert_eq!(bed.sent.iter().find(|sent| sent.2 == 1).map(|sent| sent.0 / MS), Some(11));
}

#[test]
fn a_configuration_that_takes_anothers_place_has_its_packets() {
    let mut bed = Bed::new(
        "FromDump(a) -> Paint(3) -> q :: Queue -> l :: LinkUnqueue(100ms, 60000) -> p :: CheckPaint(3) \
         -> ToDump(o); p[1] -> Discard",
    );
    // Annotations lie elsewhere in the new one, which looks at more of them, and it delivers twice as fast.
    let (program, mut engine) = compiled(
        "FromDump(a) -> Paint(3) -> SetIPAddress(1.2.3.4) -> q :: Queue -> Counter \
            -> l :: LinkUnqueue(100ms, 120000) -> p :: CheckPaint(3) -> Counter
            -> StoreIPAddress(16) -> ToDump(o); p[1] -> Discard",
    );
    assert_ne!(program.waits.kept, bed.program.waits.kept);
    let mut new = Some((program, engine));
    let mut batches = 0;
    let ran = bed.run_while((&[0; 6], &frames(6, 60)), |program, old, queues| {
        batches += 1;
        // Six have come, and two have left the queue for the line by the time that the first one arrives.
        if batches == 8
            && let Some((next, mut engine)) = new.take()
        {
            engine.adopt(old, &[STATE]);
            let mut state = handlers::state(&mut engine);
            assert_eq!(next.import_state(&mut state, program, &handlers::state(old)), []);
            handlers::set_state(&mut engine, &state);
            let spec = queueing::queue_spec(&next, &mut engine);
            assert_eq!(queues.reconfigure(&spec), []);
            (*program, *old) = (next, engine);
        }
        true
    });
    assert_eq!((ran.sent.as_slice(), ran.held), (&[6][..], 0));
    assert_eq!(bed.sent.iter().map(|sent| sent.1).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(bed.dropped(None), 0);
    // One without these elements has no place for the packets, and says how many.
    let mut bed = Bed::new("FromDump(a) -> q :: Queue -> RatedUnqueue(0, BURST_SIZE 1) -> ToDump(o)");
    bed.run(&[0; 4], &frames(4, 60));
    (_, engine) = compiled("FromDump(a) -> ToDump(o)");
    let (other, _) = compiled("FromDump(a) -> other :: Queue -> RatedUnqueue(1) -> ToDump(o)");
    let spec = queueing::queue_spec(&other, &mut engine);
    assert_eq!(bed.queues.reconfigure(&spec), [("q".to_owned(), 3)]);
    assert_eq!(bed.queues.held(), 0);
    // Nor has one whose element of that name sends each packet once; those in the queue go on.
    let mut bed = Bed::new("FromDump(a) -> q :: Queue -> r :: ReplayUnqueue(STOP 2, LIMIT 3) -> ToDump(o)");
    bed.run_while((&[0; 6], &frames(6, 60)), |program, engine, _| {
        handlers::read(program, engine, "r.loaded").expect("read") == "false"
    });
    assert_eq!((bed.sent.len(), bed.queues.held()), (1, 5));
    let (other, mut engine) = compiled("FromDump(a) -> q :: Queue -> r :: RatedUnqueue(1) -> ToDump(o)");
    let spec = queueing::queue_spec(&other, &mut engine);
    assert_eq!(bed.queues.reconfigure(&spec), [("r".to_owned(), 2)]);
    assert_eq!(bed.queues.held(), 3);
}

#[test]
fn a_source_whose_rate_is_set_or_that_rests_makes_nothing_up_for() {
    let mut bed = Bed::new("FromDump(a) -> ToDump(o)");
    let frames = frames(1, 60);
    // Beside it another one, whose packets let time go on.
    let (own, clock) =
        (SourceFrames { frames: &frames, count: 9 }, SourceFrames { frames: &frames, count: 100 });
    let gate = Arc::new(SourceGate::default());
    let tables =
        [10, 20].map(|rate| ArrivalTimes { stamps: &[], beat: SendSchedule::Rate(rate), paced: true });
    let (mut sent, mut ran, mut beginning) = (Vec::new(), 0, None);
    let take = |p: SentPacket<'_>, at: u64| {
        let at = at - *beginning.get_or_insert(at);
        if p.source == 0 {
            sent.push(at / MS);
        }
        Ok(())
    };
    let gates = [Some(Arc::clone(&gate))];
    let feeds = [own, clock];
    let sources = GraphSources { gates: &gates, ..GraphSources::from(&feeds) };
    let on = |_: &mut NativeEngine, _: &mut TimedQueues| {
        ran += 1;
        // Batches of one packet: by turns two of the clock's and one of its own, which come at one time.
        match ran {
            8 => gate.rate.store(100, Ordering::Relaxed),
            14 => gate.paused.store(true, Ordering::Relaxed),
            20 => gate.paused.store(false, Ordering::Relaxed),
            _ => {}
        }
        true
    };
    run_graph_timed(&mut bed.engine, (sources, &tables), &mut bed.queues, (1, 32), false, take, on)
        .expect("memory");
    let rest = sent.windows(2).position(|pair| pair[1] - pair[0] > 100).expect("it rested");
    assert_eq!(sent[..3], [0, 100, 200]);
    assert!(sent[3..=rest].windows(2).all(|pair| pair[1] - pair[0] == 10), "{sent:?}");
    assert!(sent[rest + 1..].windows(2).all(|pair| pair[1] - pair[0] == 10), "{sent:?}");
    assert_eq!(sent.len(), 9);
}
