//! Bridges in a spanning tree over made-up times: when ports forward, the messages they send, and the
//! messages they believe; between two bridges, and beside the interpreter, which refuses any access outside
//! of a packet.

use crate::common::number;
use millstream_click::{Ablations, ClickProgram, GraphSource, HandlerWriters, STATE, flatten, parse};
use millstream_click_elements::{bridge_text, compile_for};
use millstream_interp::ir::IrInterpreter;
use millstream_interp::{ContextKind, MachineState};
use millstream_ir::Map;
use millstream_native::{ClockSource, NativeEngine, NativeOptions};
use millstream_native_io::graph::{SourceFrames, run_graph};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_000 * SECOND;
/// The bridge's own identifier.
const OWN: u64 = 0xdead_0002_0304_0506;
/// Another one, which is to be the root.
const ROOT: u64 = 0x8000_0000_0000_0001;
const NEIGHBOUR: u64 = 0x9000_0000_0000_0002;

/// A bridge of so many ports, which come from and go to as many files.
fn text(address: &str, ports: usize) -> String {
    let mut text =
        format!("s :: EtherSwitch; in, out :: Suppressor; st :: EtherSpanTree({address}, in, out, s);");
    for port in 0..ports {
        text += &format!(
            "FromDump(p{port}) -> f{port} :: Classifier(14/4242, -); w{port} :: ToDump(w{port});
            f{port}[0] -> [{port}] st [{port}] -> w{port}; f{port}[1] -> [{port}] in [{port}] \
                -> [{port}] s [{port}] -> [{port}] out [{port}] -> w{port};"
        );
    }
    text
}

fn compiled(text: &str) -> Result<ClickProgram, Vec<millstream_click::Error>> {
    let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
    let general = Ablations { time: true, ..Ablations::default() };
    let none = |_: &str, _: Option<&str>| Err("there are no object files".into());
    compile_for(&graph, &none, HandlerWriters::Scripts, general)
}

/// The source of a file, or the clock.
fn source(program: &ClickProgram, port: Option<usize>) -> usize {
    let name = port.map(|port| format!("p{port}"));
    let is = |source: &GraphSource| match (source, &name) {
        (GraphSource::File(file), Some(name)) => file == name,
        (GraphSource::Constant(..), None) => true,
        _ => false,
    };
    program.sources.iter().position(is).expect("the source")
}

fn beat(program: &ClickProgram) -> Vec<u8> {
    match &program.sources[source(program, None)] {
        GraphSource::Constant(bytes, _) => bytes.clone(),
        other => panic!("{other:?}"),
    }
}

struct Bridge {
    program: ClickProgram,
    engine: NativeEngine,
    ports: usize,
}

type Sent = Vec<(usize, Vec<u8>)>;

impl Bridge {
    fn new(address: &str, ports: usize) -> Bridge {
        Bridge::by(address, ports, &NativeOptions::default())
    }

    fn by(address: &str, ports: usize, options: &NativeOptions) -> Bridge {
        let program = compiled(&text(address, ports)).unwrap_or_else(|e| panic!("{e:?}"));
        assert_eq!(millstream_ir::verify::verify_module(&program.code.module), []);
        let engine = NativeEngine::of_module(program.code.module.clone(), program.code.entry, options);
        Bridge { program, engine: engine.expect("compiled"), ports }
    }

    /// Packets sent, and their ports, for a frame that comes to a port, or for a beat of the clock.
    fn takes(&mut self, time: u64, port: Option<usize>, frame: &[u8]) -> Sent {
        self.takes_all(time, port, &[frame.to_vec()])
    }

    fn takes_all(&mut self, time: u64, port: Option<usize>, frames: &[Vec<u8>]) -> Sent {
        self.engine.set_clock(ClockSource::Fixed(time));
        let at = source(&self.program, port);
        let count = |source| if source == at { frames.len() as u64 } else { 0 };
        let feeds: Vec<SourceFrames<'_>> = (0..self.program.sources.len())
            .map(|source| SourceFrames { frames, count: count(source) })
            .collect();
        let mut sent = Vec::new();
        run_graph(&mut self.engine, &feeds, self.program.targets.len(), 16, |p| {
            sent.push((p.output, p.bytes.to_vec()));
            Ok(())
        })
        .expect("memory");
        sent.sort();
        sent
    }

    /// A beat so many seconds after the start.
    fn beats(&mut self, seconds: u64) -> Sent {
        let frame = beat(&self.program);
        self.takes(START + seconds * SECOND, None, &frame)
    }

    fn comes(&mut self, seconds: u64, port: usize, frame: &[u8]) -> Sent {
        self.takes(START + seconds * SECOND, Some(port), frame)
    }

    fn dropped(&mut self, reason: &str) -> u64 {
        let state = self.engine.map(STATE).expect("the state").get(&[0; 4]).expect("one value");
        self.program.drops.iter().filter(|d| d.reason == reason).map(|d| number(&state, d.offset)).sum()
    }

    /// Lines of its handler.
    fn says(&mut self) -> Vec<String> {
        let value = self.engine.map("st.tree").expect("the map").get(&[0; 4]).expect("one value");
        bridge_text(&value, self.ports as u32).lines().map(str::to_owned).collect()
    }
}

/// A configuration message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Message {
    flags: u8,
    root: u64,
    cost: u32,
    bridge: u64,
    port: u16,
    /// Age, maximum age, hello time and forward delay.
    times: [u16; 4],
}

impl Message {
    fn of(root: u64, cost: u32, bridge: u64, port: u16) -> Message {
        Message { flags: 0, root, cost, bridge, port, times: [256, 20 * 256, 2 * 256, 15 * 256] }
    }

    fn frame(self) -> Vec<u8> {
        let head = [1, 0x80, 0xc2, 0, 0, 0, 2, 2, 2, 2, 2, 2, 0, 38, 0x42, 0x42, 3, 0, 0, 0, 0, self.flags];
        let mut frame = [&head[..], &self.root.to_be_bytes(), &self.cost.to_be_bytes()].concat();
        frame.extend(self.bridge.to_be_bytes());
        frame.extend(self.port.to_be_bytes());
        frame.extend(self.times.map(u16::to_be_bytes).as_flattened());
        frame.resize(60, 0);
        frame
    }

    /// Of a frame that must be one, but for the source.
    fn read(frame: &[u8]) -> Message {
        let half = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let long = |at: usize| u64::from_be_bytes(frame[at..at + 8].try_into().expect("eight bytes"));
        let message = Message {
            flags: frame[21],
            root: long(22),
            cost: u32::from_be_bytes(frame[30..34].try_into().expect("four bytes")),
            bridge: long(34),
            port: half(42),
            times: [44, 46, 48, 50].map(half),
        };
        let mut whole = message.frame();
        whole[6..12].copy_from_slice(&frame[6..12]);
        assert_eq!(frame, whole);
        message
    }
}

/// A notification of a topology change.
fn notification() -> Vec<u8> {
    let mut frame = Message::of(0, 0, 0, 0).frame();
    frame[13] = 7;
    frame[20..].fill(0);
    frame[20] = 0x80;
    frame
}

fn messages(sent: &Sent) -> Vec<(usize, Message)> {
    sent.iter().map(|(port, frame)| (*port, Message::read(frame))).collect()
}

/// A frame between two hosts.
fn data(to: u8, from: u8) -> Vec<u8> {
    let to = if to == 0xff { [0xff; 6] } else { [2, 0, 0, 0, 0, to] };
    [&to[..], &[2, 0, 0, 0, 0, from], &[8, 0], &[0; 46]].concat()
}

#[test]
fn a_bridge_alone_is_the_root_and_forwards_after_thirty_seconds() {
    let mut bridge = Bridge::new("0:2:3:4:5:6", 2);
    let all = data(0xff, 1);
    for second in 0..=80 {
        let sent = bridge.beats(second);
        assert!(sent.iter().all(|(_, frame)| frame[..12] == [1, 0x80, 0xc2, 0, 0, 0, 0, 2, 3, 4, 5, 6]));
        let hello = |port: usize| {
            let times = [0, 20 * 256, 2 * 256, 15 * 256];
            // Ports that forward are a change of 35 s.
            let flags = u8::from((30..65).contains(&second));
            let own = Message { flags, root: OWN, cost: 0, bridge: OWN, port: 0x8001 + port as u16, times };
            (port, own)
        };
        let expected = if second % 2 == 0 { vec![hello(0), hello(1)] } else { Vec::new() };
        assert_eq!(messages(&sent), expected, "{second}");
        let passed = bridge.comes(second, 0, &all);
        assert_eq!(passed, if second < 30 { Vec::new() } else { vec![(1, all.clone())] }, "{second}");
        // One host speaks while its port listens only, the other one while it learns.
        match second {
            14 => assert!(bridge.comes(second, 1, &data(0xff, 3)).is_empty()),
            20 => assert!(bridge.comes(second, 1, &data(0xff, 4)).is_empty()),
            30 => {
                assert_eq!(bridge.comes(second, 1, &data(3, 5)), [(0, data(3, 5))]);
                assert!(bridge.comes(second, 1, &data(4, 5)).is_empty());
                assert_eq!(bridge.dropped("same_port"), 1);
            }
            _ => {}
        }
    }
    assert_eq!(
        bridge.says(),
        ["0 forwarding designated", "1 forwarding designated", "root dead000203040506 cost 0 port -"]
    );
}

#[test]
fn a_better_root_is_believed_relayed_told_of_changes_and_given_up_when_it_is_silent() {
    let mut bridge = Bridge::new("0:2:3:4:5:6", 2);
    (0..40).for_each(|second| drop(bridge.beats(second)));
    let better = Message::of(ROOT, 4, NEIGHBOUR, 0x8007);
    let relayed = |flags: u8, age: u16| {
        let times = [age, 20 * 256, 2 * 256, 15 * 256];
        vec![(1, Message { flags, root: ROOT, cost: 5, bridge: OWN, port: 0x8002, times })]
    };
    // As the root, it announced its own change; now it tells the root.
    let told = |sent: &Sent| {
        let (told, other): (Sent, Sent) = sent.iter().cloned().partition(|(_, frame)| frame[20] == 0x80);
        for (port, frame) in &told {
            let mut whole = notification();
            whole[6..12].copy_from_slice(&[0, 2, 3, 4, 5, 6]);
            assert_eq!((*port, frame), (0, &whole));
        }
        (told.len(), messages(&other))
    };
    assert_eq!(told(&bridge.comes(40, 0, &better.frame())), (1, relayed(0, 257)));
    assert_eq!(bridge.says()[0], "0 forwarding 9000000000000002:8007 tc 4 -> 8000000000000001 20/2/15");
    assert_eq!(bridge.says()[2], "root 8000000000000001 cost 5 port 0");
    assert_eq!([41, 42, 43].map(|second| told(&bridge.beats(second)).0), [0, 1, 0]);
    let acknowledged = Message { flags: 0x81, ..better };
    assert_eq!(told(&bridge.comes(44, 0, &acknowledged.frame())), (0, relayed(1, 257)));
    // Message by message, and not by its own clock.
    assert!([44, 45, 46, 47, 48, 49].iter().all(|second| bridge.beats(*second).is_empty()));
    assert_eq!(
        told(&bridge.comes(50, 0, &Message { times: [512, 5120, 512, 3840], ..better }.frame())),
        (0, relayed(0, 513))
    );
    // It was two seconds old.
    for second in 51..68 {
        assert!(bridge.beats(second).is_empty(), "{second}");
    }
    let sent = messages(&bridge.beats(68));
    assert_eq!(
        sent.iter().map(|(port, m)| (*port, m.root, m.flags)).collect::<Vec<_>>(),
        [(0, OWN, 1), (1, OWN, 1)]
    );
    assert_eq!(bridge.comes(68, 0, &data(0xff, 1)).len(), 1, "neither port stops");
}

#[test]
fn of_two_ways_to_the_root_one_is_blocked() {
    let mut bridge = Bridge::new("0:2:3:4:5:6", 2);
    let both = [0x8001, 0x8002].map(|port| Message::of(ROOT, 4, NEIGHBOUR, port).frame());
    for second in 0..70 {
        bridge.beats(second);
        for (port, message) in both.iter().enumerate() {
            bridge.comes(second, port, message);
            let sent = bridge.comes(second, port, &data(0xff, 1));
            assert!(sent.is_empty(), "{second}");
        }
    }
    let line = |port: usize, state: &str| {
        format!("{port} {state} {NEIGHBOUR:016x}:{:04x} tc 4 -> {ROOT:016x} 20/2/15", 0x8001 + port)
    };
    assert_eq!(bridge.says()[..2], [line(0, "forwarding"), line(1, "blocked")]);
    // A worse message from the blocked port is from a bridge that is not to send there; when no bridge sends,
    // the port is needed.
    let late = Message::of(ROOT, 9, NEIGHBOUR, 0x8002).frame();
    assert!(bridge.comes(70, 1, &late).is_empty());
    assert_eq!(bridge.dropped("inferior"), 1);
    for second in 70..90 {
        bridge.comes(second, 0, &both[0]);
        bridge.beats(second);
    }
    assert_eq!(bridge.says()[1], "1 listening designated");
}

#[test]
fn who_sends_what_is_worse_hears_what_is_better() {
    let mut bridge = Bridge::new("0:2:3:4:5:6", 2);
    bridge.beats(0);
    let worse = Message::of(OWN + 1, 0, OWN + 1, 0x8001).frame();
    assert!(bridge.comes(0, 1, &worse).is_empty(), "a second has not passed");
    let answer = messages(&bridge.beats(1));
    assert_eq!(answer.iter().map(|(port, m)| (*port, m.root)).collect::<Vec<_>>(), [(1, OWN)]);
    assert_eq!(messages(&bridge.comes(5, 1, &worse)).len(), 2, "a hello was due, too");
    assert_eq!(messages(&bridge.comes(6, 1, &worse)).len(), 1);
    assert_eq!(bridge.says()[1], "1 listening designated");
}

#[test]
fn what_another_port_of_the_bridge_sends_leads_to_no_root_and_blocks_one_of_both() {
    let mut bridge = Bridge::new("0:2:3:4:5:6", 2);
    // A line between both ports, which may tell of a root that has gone.
    let own = Message::of(ROOT, 4, OWN, 0x8001).frame();
    for second in 0..40 {
        bridge.beats(second);
        assert!(bridge.comes(second, 1, &own).is_empty(), "{second}");
    }
    assert_eq!(bridge.says()[2], format!("root {OWN:016x} cost 0 port -"));
    let mut bridge = Bridge::new("0:2:3:4:5:6", 2);
    let [first, second] = [0x8001, 0x8002].map(|port| Message::of(OWN, 0, OWN, port).frame());
    for time in 0..40 {
        bridge.beats(time);
        bridge.comes(time, 1, &first);
        bridge.comes(time, 0, &second);
    }
    let states: Vec<String> = bridge.says()[..2].iter().map(|line| line[..11].to_owned()).collect();
    assert_eq!(states, ["0 forwardin", "1 blocked d"]);
}

#[test]
fn a_message_that_is_too_old_by_then_is_believed_and_not_relayed() {
    let mut bridge = Bridge::new("0:2:3:4:5:6", 2);
    bridge.beats(0);
    let relayed = |bridge: &mut Bridge, second, age| {
        let message = Message { times: [age, 5120, 512, 3840], ..Message::of(ROOT, 4, NEIGHBOUR, 0x8007) };
        let sent = bridge.comes(second, 0, &message.frame());
        sent.iter().filter(|(port, _)| *port == 1).count()
    };
    assert_eq!(relayed(&mut bridge, 3, 5119), 0);
    assert_eq!(bridge.says()[2], "root 8000000000000001 cost 5 port 0");
    assert_eq!(relayed(&mut bridge, 5, 5118), 1);
}

#[test]
fn no_root_makes_ports_forward_before_four_seconds_of_listening_and_of_learning() {
    let mut bridge = Bridge::new("0:2:3:4:5:6", 2);
    let hasty = Message { times: [0, 5120, 512, 256], ..Message::of(ROOT, 4, NEIGHBOUR, 0x8007) }.frame();
    let states: Vec<bool> = (0..12)
        .map(|second| {
            bridge.beats(second);
            bridge.comes(second, 0, &hasty);
            bridge.says()[0].starts_with("0 forwarding")
        })
        .collect();
    assert_eq!(states.iter().position(|forwards| *forwards), Some(8));
}

#[test]
fn a_change_elsewhere_is_acknowledged_passed_on_and_stations_are_forgotten() {
    let mut bridge = Bridge::new("0:2:3:4:5:6", 2);
    (0..70).for_each(|second| drop(bridge.beats(second)));
    bridge.comes(70, 0, &data(0xff, 1));
    assert!(bridge.comes(71, 0, &data(1, 2)).is_empty());
    let sent = messages(&bridge.comes(71, 1, &notification()));
    assert_eq!(sent.iter().map(|(port, m)| (*port, m.flags)).collect::<Vec<_>>(), [(0, 1), (1, 0x81)]);
    let flags = |sent: Sent| messages(&sent).iter().map(|(_, m)| m.flags).collect::<Vec<_>>();
    assert_eq!(flags(bridge.beats(73)), [1, 1], "once");
    assert!(bridge.comes(84, 0, &data(1, 2)).is_empty(), "for as long as the forward delay");
    (74..87).for_each(|second| drop(bridge.beats(second)));
    assert_eq!(bridge.comes(87, 0, &data(1, 2)), [(1, data(1, 2))]);
    (88..110).for_each(|second| drop(bridge.beats(second)));
    assert_eq!(bridge.comes(110, 0, &data(1, 2)), [(1, data(1, 2))], "and it stays forgotten");
    bridge.comes(110, 0, &data(0xff, 1));
    assert!(bridge.comes(111, 0, &data(1, 2)).is_empty());
}

#[test]
fn what_is_no_message_is_dropped_by_reason() {
    let mut bridge = Bridge::new("0:2:3:4:5:6", 2);
    bridge.beats(0);
    let good = Message::of(ROOT, 4, NEIGHBOUR, 0x8001).frame();
    let with = |at: usize, bytes: &[u8]| {
        let mut frame = good.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    for (frame, reason) in [
        (good[..20].to_vec(), "too_short"),
        (good[..51].to_vec(), "too_short"),
        (with(12, &[0, 37]), "too_short"),
        (with(12, &[0, 6, 0x42, 0x42, 3, 0, 0, 0, 0x80]), "too_short"),
        (with(16, &[0xf3]), "not_bpdu"),
        (with(18, &[1]), "not_bpdu"),
        (with(20, &[2]), "unknown_type"),
        (with(44, &[20, 0]), "stale"),
        (with(30, &[0xff; 4]), "bad_cost"),
        (Message::of(OWN, 0, OWN, 0x8001).frame(), "own"),
    ] {
        let before = bridge.dropped(reason);
        assert!(bridge.comes(2, 0, &frame).is_empty(), "{frame:02x?}");
        assert_eq!(bridge.dropped(reason), before + 1, "{reason}: {frame:02x?}");
    }
    assert_eq!(
        bridge.says(),
        ["0 listening designated", "1 listening designated", "root dead000203040506 cost 0 port -"]
    );
    // No padding is needed, and nothing of a long frame is sent on.
    let mut long = good[..52].to_vec();
    long.resize(1500, 0xaa);
    assert_eq!(messages(&bridge.comes(3, 0, &long)).len(), 1);
    assert_eq!(messages(&bridge.comes(4, 0, &good[..52])).len(), 1);
}

/// Two bridges with lines between their first two ports, and hosts at the third.
struct Loop {
    bridges: [Bridge; 2],
    lines: [bool; 2],
    /// Frames that a host got.
    got: Vec<(usize, Vec<u8>)>,
}

impl Loop {
    /// Carries packets over the lines until none is left.
    fn carry(&mut self, time: u64, from: usize, sent: Sent) {
        let mut open: Vec<(usize, usize, Vec<u8>)> =
            sent.into_iter().map(|(port, frame)| (from, port, frame)).collect();
        let mut carried = 0;
        while let Some((from, port, frame)) = open.pop() {
            carried += 1;
            assert!(carried < 100, "a loop: {frame:02x?}");
            match self.lines.get(port) {
                None => self.got.push((from, frame)),
                Some(false) => {}
                Some(true) => {
                    let to = 1 - from;
                    let sent = self.bridges[to].takes(time, Some(port), &frame);
                    open.extend(sent.into_iter().map(|(port, frame)| (to, port, frame)));
                }
            }
        }
    }

    fn run(&mut self, seconds: std::ops::Range<u64>) {
        for second in seconds {
            for at in [0, 1] {
                // One's clock runs behind.
                let time = START + second * SECOND + at as u64 * SECOND / 3;
                let frame = beat(&self.bridges[at].program);
                let sent = self.bridges[at].takes(time, None, &frame);
                self.carry(time, at, sent);
                let sent = self.bridges[at].takes(time, Some(2), &data(0xff, 1 + at as u8));
                self.carry(time, at, sent);
            }
        }
    }

    /// Number of frames of the other's host that each host got.
    fn heard(&mut self) -> [usize; 2] {
        let got = std::mem::take(&mut self.got);
        [0, 1].map(|at| got.iter().filter(|(to, frame)| *to == at && frame[12] == 8).count())
    }
}

#[test]
fn two_bridges_with_two_lines_make_no_loop_and_take_the_other_line_when_one_breaks() {
    let bridges = ["0:0:0:0:0:1", "0:0:0:0:0:2"].map(|address| Bridge::new(address, 3));
    let mut all = Loop { bridges, lines: [true; 2], got: Vec::new() };
    all.run(0..30);
    assert_eq!(all.heard(), [0, 0]);
    all.run(31..61);
    let states = |all: &mut Loop, at: usize| -> Vec<String> {
        all.bridges[at]
            .says()
            .iter()
            .take(3)
            .map(|line| line.split(' ').nth(1).unwrap_or("").to_owned())
            .collect()
    };
    assert_eq!(states(&mut all, 0), ["forwarding"; 3]);
    assert_eq!(states(&mut all, 1), ["forwarding", "blocked", "forwarding"]);
    all.heard();
    all.run(61..71);
    assert_eq!(all.heard(), [10, 10]);
    all.lines[0] = false;
    all.run(71..121);
    all.heard();
    all.run(121..131);
    assert_eq!(states(&mut all, 1)[1], "forwarding");
    assert_eq!(all.heard(), [10, 10]);
    // A line that comes back makes no loop, either.
    all.lines[0] = true;
    all.run(131..200);
    assert_eq!(states(&mut all, 1), ["forwarding", "blocked", "forwarding"]);
}

#[test]
fn what_does_not_fit_is_refused_with_a_place() {
    let whole = text("0:2:3:4:5:6", 2);
    let refused = |text: &str| {
        let errors = compiled(text).err().unwrap_or_default();
        let first = errors.first().unwrap_or_else(|| panic!("compiled: {text}"));
        (first.message.clone(), first.help.clone().unwrap_or_default())
    };
    for (was, is, message, help) in [
        ("5:6, in,", "5:6, ins,", "no `Suppressor` of the name `ins`", "the nearest name is `in`"),
        ("out, s)", "out, in)", "no `EtherSwitch` of the name `in`", ""),
        ("in, out, s)", "in, in, s)", "`in` goes by a spanning tree already", ""),
        ("[1] st [1] -> w1", "[1] st; Idle -> w1", "2 inputs and 1 outputs", ""),
        ("0:2:3:4:5:6", "0:2", "", ""),
    ] {
        let (found, near) = refused(&whole.replacen(was, is, 1));
        assert!(found.contains(message) && near.contains(help), "{found} {near}");
    }
    assert!(refused(&text("0:2:3:4:5:6", 17)).0.contains("17 ports: there may be 16"));
    assert!(compiled(&text("0:2:3:4:5:6", 16)).is_ok());
}

#[test]
fn without_a_clock_ports_stay_blocked_and_a_warning_says_so() {
    let graph = flatten(&parse(&text("0:2:3:4:5:6", 2)).expect("parsed"), &[]).expect("flattened");
    let program = millstream_click_elements::compile(&graph).expect("compiled");
    assert!(program.code.warnings.iter().any(|w| w.message.contains("its ports stay blocked")));
    assert!(matches!(program.sources[source(&program, None)], GraphSource::Constant(_, Some(0))));
}

/// A message that is right, but for a byte here and there; or a beat.
fn event() -> impl Strategy<Value = (u64, Option<usize>, Vec<u8>)> {
    let priority = || prop::sample::select(vec![ROOT, NEIGHBOUR, OWN, OWN + 1]);
    let message = (priority(), 0u32..3, priority(), 0x8000u16..0x8004, any::<u8>(), 0u16..6000).prop_map(
        |(root, cost, bridge, port, flags, age)| {
            let times = [age, 20 * 256, 2 * 256, 15 * 256];
            Message { flags, times, ..Message::of(root, cost, bridge, port) }.frame()
        },
    );
    let changed = (message, prop::option::weighted(0.2, (12usize..52, any::<u8>())), 0usize..70).prop_map(
        |(mut frame, change, length)| {
            if let Some((at, byte)) = change {
                frame[at] = byte;
            }
            // The interpreter has no room for copies: an announced change stays unsent.
            frame[21] &= 0x7f;
            frame.truncate(if length > 60 { length - 10 } else { 60 });
            frame
        },
    );
    let frame = prop_oneof![4 => changed, 1 => Just(notification()), 1 => Just(data(0xff, 1))];
    (0..3 * SECOND, prop::option::of(0usize..2), frame)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn native_code_believes_what_the_interpreter_does(events in prop::collection::vec(event(), 1..60)) {
        let mut bridge = Bridge::new("0:2:3:4:5:6", 2);
        let program = bridge.program.clone();
        let mut machine = MachineState::new(ContextKind::Xdp);
        machine.env.tick = 0;
        let interpreter = IrInterpreter::new(&program.code.module, &mut machine);
        let (tree, _) = program.code.module.maps.iter().find(|(_, map)| map.name == "st.tree").expect("the map");
        let tree: Map = tree;
        let tree = interpreter.map(tree).expect("a map");
        let mut time = START;
        for (later, port, frame) in events {
            time += later;
            let frame = if port.is_none() { beat(&program) } else { frame };
            // The interpreter has no room for copies: a message was sent just now, and the root is told
            // later.
            let (_, mut value) = machine.maps.entries(tree).remove(0);
            for (at, number) in [(24, 1), (32, u64::MAX), (128 + 104, time), (256 + 104, time)] {
                value[at..at + 8].copy_from_slice(&number.to_le_bytes());
            }
            machine.maps.set(tree, &[0; 4], &value, 0).expect("room");
            assert!(bridge.engine.map("st.tree").expect("the map").write(&[0; 4], &value));
            bridge.takes(time, port, &frame);
            machine.env.time = time;
            machine.reset(&frame);
            machine.set_context_field(12, source(&program, port) as u32 + 1);
            let done = interpreter.run_context(&mut machine, program.code.entry);
            done.unwrap_or_else(|fault| panic!("{fault}: {frame:02x?}"));
            let native = bridge.engine.map("st.tree").expect("the map").get(&[0; 4]).expect("one value");
            let (_, interpreted) = machine.maps.entries(tree).remove(0);
            prop_assert_eq!(bridge_text(&native, 2), bridge_text(&interpreted, 2));
            prop_assert_eq!(native, interpreted);
        }
    }

    /// Orders of packets and stages make no difference: a message is believed as a whole.
    #[test]
    fn messages_of_a_batch_are_taken_one_after_the_other(
        frames in prop::collection::vec(event().prop_map(|(_, _, frame)| frame), 1..30),
        schedule in prop::sample::select(&[
            "batch=8,from=0,trials=off,pattern=packets,distance=2",
            "batch=32,from=0,trials=off,pattern=groups,sub-batch=5,unroll=2",
            "batch=21,from=0,trials=off,pattern=pipelined-groups,sub-batch=4,unroll=3",
        ]),
    ) {
        let options = NativeOptions { schedule: schedule.parse().expect("a schedule"), ..NativeOptions::default() };
        let mut bridges = [Bridge::by("0:2:3:4:5:6", 2, &options), Bridge::new("0:2:3:4:5:6", 2)];
        bridges.iter_mut().for_each(|bridge| drop(bridge.beats(0)));
        let together = bridges[0].takes_all(START + SECOND, Some(0), &frames);
        let mut single: Sent =
            frames.iter().flat_map(|frame| bridges[1].takes(START + SECOND, Some(0), frame)).collect();
        single.sort();
        prop_assert_eq!(together, single);
        prop_assert_eq!(bridges[0].says(), bridges[1].says());
    }
}
