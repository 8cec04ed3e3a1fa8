//! Handlers of elements as they are read and written between batches.

use millstream_built::fill;
use millstream_built::handlers::{self, HandlerError};
use millstream_click::{Ablations, ClickProgram, HandlerWriters, flatten, parse};
use millstream_click_elements::compile_for;
use millstream_native::{ClockSource, NativeEngine, NativeOptions};
use millstream_native_io::graph::{SourceFrames, run_graph};

const SECOND: u64 = 1_000_000_000;

struct Bed {
    program: ClickProgram,
    engine: NativeEngine,
}

impl Bed {
    fn new(text: &str) -> Bed {
        Bed::by(text, HandlerWriters::Anybody)
    }

    fn by(text: &str, writers: HandlerWriters) -> Bed {
        let graph = flatten(&parse(text).expect("parsed"), &[]).expect("flattened");
        let none = |_: &str, _: Option<&str>| Err("no objects".to_owned());
        let program =
            compile_for(&graph, &none, writers, Ablations::default()).unwrap_or_else(|e| panic!("{e:?}"));
        let engine = NativeEngine::of_module(
            program.code.module.clone(),
            program.code.entry,
            &NativeOptions::default(),
        );
        let mut engine = engine.expect("compiled");
        engine.set_clock(ClockSource::Fixed(1000 * SECOND));
        fill(&mut engine, &program.code.entries).expect("room");
        Bed { program, engine }
    }

    fn read(&mut self, text: &str) -> String {
        handlers::read(&self.program, &mut self.engine, text).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    fn write(&mut self, text: &str) {
        handlers::write(&self.program, &mut self.engine, text).unwrap_or_else(|e| panic!("{text}: {e}"));
    }

    /// Error of a write that is refused.
    fn refused(&mut self, text: &str) -> String {
        handlers::write(&self.program, &mut self.engine, text).expect_err("refused").to_string()
    }

    /// Output and bytes of each frame sent.
    fn sent(&mut self, frames: &[Vec<u8>]) -> Vec<(usize, Vec<u8>)> {
        let feeds = [SourceFrames { frames, count: frames.len() as u64 }];
        let mut sent = Vec::new();
        run_graph(&mut self.engine, &feeds, self.program.targets.len(), 4, |p| {
            sent.push((p.output, p.bytes.to_vec()));
            Ok(())
        })
        .expect("memory");
        sent
    }

    fn outputs(&mut self, frames: &[Vec<u8>]) -> Vec<usize> {
        self.sent(frames).into_iter().map(|(output, _)| output).collect()
    }
}

/// An IP packet to an address.
fn to(address: [u8; 4]) -> Vec<u8> {
    [&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1][..], &address, &[0, 9, 0, 53, 0, 8, 0, 0]]
        .concat()
}

const ROUTED: &str =
    "FromDump(a) -> GetIPAddress(16) -> r :: RadixIPLookup(10.0.0.0/8 0, 10.1.0.0/16 9.9.9.9 1) -> ToDump(0);
    r[1] -> ToDump(1); r[2] -> ToDump(2)";

#[test]
fn routes_are_added_set_removed_and_looked_up() {
    let mut bed = Bed::new(ROUTED);
    assert_eq!(bed.read("r.table"), "10.0.0.0/8\t-\t0\n10.1.0.0/16\t9.9.9.9\t1\n");
    assert_eq!([bed.read("r.lookup 10.1.2.3"), bed.read("r.lookup 11.0.0.1")], ["1 9.9.9.9", "-1"]);
    let frames = [to([10, 1, 2, 3]), to([10, 2, 0, 1]), to([11, 0, 0, 1])];
    assert_eq!(bed.outputs(&frames), [1, 0]);
    bed.write("r.add 11.0.0.0/8 2");
    bed.write("r.set 10.1.0.0/16 0");
    assert_eq!(bed.outputs(&frames), [0, 0, 2]);
    assert!(bed.refused("r.add 11.0.0.0/8 1").contains("conflict with existing route '11.0.0.0/8 - 2'"));
    bed.write("r.remove 10.0.0.0/8");
    assert!(bed.refused("r.remove 10.0.0.0/8").contains("there is no entry `10.0.0.0/8`"));
    assert_eq!(bed.outputs(&frames), [0, 2]);
    assert!(bed.refused("r.add 12.0.0.0/8 3").contains("`3` is no output: they are 0 to 2"));
    assert!(bed.refused("r.add 12.0.0.0 1 2 3").contains("expected ADDRESS/MASK [GATEWAY] OUTPUT"));
    assert!(bed.refused("r.add 1.0.0.0/255.0.255.0 1").contains("is no prefix"));
    bed.write("r.flush");
    assert_eq!((bed.read("r.table"), bed.outputs(&frames)), (String::new(), vec![]));
}

#[test]
fn several_changes_of_routes_are_all_made_or_none() {
    let mut bed = Bed::new(ROUTED);
    let before = bed.read("r.table");
    let why =
        bed.refused("r.ctrl add 12.0.0.0/8 2\nset 10.0.0.0/8 2\nremove 10.1.0.0/16\n\nremove 13.0.0.0/8");
    assert!(why.contains("line 5: there is no entry `13.0.0.0/8`"), "{why}");
    assert_eq!(bed.read("r.table"), before);
    assert!(
        bed.refused("r.ctrl add 12.0.0.0/8 2\nput 1.0.0.0/8 1").contains("line 2: there is no command `put`")
    );
    assert_eq!(bed.read("r.table"), before);
    bed.write("r.ctrl add 12.0.0.0/8 2\nremove 10.1.0.0/16");
    assert_eq!(bed.read("r.table"), "10.0.0.0/8\t-\t0\n12.0.0.0/8\t-\t2\n");
}

#[test]
fn a_table_that_is_full_says_so_and_stays_as_it_was() {
    let mut bed = Bed::by(ROUTED, HandlerWriters::Scripts);
    let before = bed.read("r.table");
    assert!(bed.refused("r.add 11.0.0.0/8 2").contains("no room for more than 2 entries"));
    bed.write("r.set 10.0.0.0/8 2");
    assert_ne!(bed.read("r.table"), before, "an entry that is there has room");
}

#[test]
fn routes_of_ipv6_are_written_too() {
    let mut bed = Bed::new(
        "FromDump(a) -> GetIP6Address(24) -> r :: LookupIP6Route(3ffe::/16 0) -> ToDump(0); r[1] -> ToDump(1)",
    );
    let frame = [&[0x60, 0, 0, 0, 0, 0, 59, 9][..], &[0; 16], &[0x20, 1, 0xd, 0xb8], &[0; 11], &[1]].concat();
    assert!(bed.outputs(std::slice::from_ref(&frame)).is_empty());
    bed.write("r.add 2001:db8::/32 3ffe::7 1");
    assert_eq!(bed.read("r.lookup 2001:db8::1"), "1 3ffe::7");
    assert_eq!(bed.outputs(&[frame]), [1]);
    assert_eq!(bed.read("r.table"), "2001:db8::/32\t3ffe::7\t1\n3ffe::/16\t-\t0\n");
}

#[test]
fn next_hops_are_put_in_and_taken_out() {
    let mut bed = Bed::new(
        "FromDump(a) -> GetIPAddress(16) -> q :: ARPQuerier(10.0.0.1, 2:0:0:0:0:1) -> ToDump(0); q[1] -> ToDump(1)",
    );
    let frames = [to([10, 0, 0, 9])];
    assert_eq!(bed.outputs(&frames), [1], "a question");
    bed.write("q.insert 10.0.0.9 2:0:0:0:0:9");
    let sent = bed.sent(&frames);
    assert_eq!((sent[0].0, &sent[0].1[..14]), (0, &[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 8, 0][..]));
    bed.engine.set_clock(ClockSource::Fixed(1002 * SECOND));
    assert_eq!(bed.read("q.table"), "10.0.0.9 1 02-00-00-00-00-09 2.000\n");
    bed.engine.set_clock(ClockSource::Fixed(2000 * SECOND));
    assert!(bed.read("q.table").starts_with("10.0.0.9 0 "), "it is too old");
    bed.write("q.delete 10.0.0.9");
    assert_eq!((bed.read("q.count"), bed.outputs(&frames)), ("0".into(), vec![1]));
    bed.write("q.insert 10.0.0.9 2:0:0:0:0:9");
    bed.write("q.clear");
    assert_eq!(bed.read("q.table"), "");
    assert!(bed.refused("q.insert 10.0.0.9").contains("expected ADDRESS ETHER"));
    assert!(bed.refused("q.insert 10.0.0.9 2:0").contains("is not an Ethernet address"));
}

/// An ARP request for an address.
fn request(address: [u8; 4]) -> Vec<u8> {
    let head = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 7], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &[2, 0, 0, 0, 0, 7]];
    [&head.concat()[..], &[10, 0, 0, 7], &[0; 6], &address].concat()
}

#[test]
fn addresses_that_are_answered_for_come_and_go_and_the_first_prefix_answers() {
    let text = "FromDump(a) -> r :: ARPResponder(10.1.0.0/16 2:2:2:2:2:2, 10.0.0.0/8 1:1:1:1:1:1, \
        10.0.0.0/8 3:3:3:3:3:3, 10.2.3.4 5:5:5:5:5:5) -> ToDump(0)";
    let answer = |bed: &mut Bed, address| bed.sent(&[request(address)]).first().map(|(_, bytes)| bytes[6]);
    for writers in [HandlerWriters::Scripts, HandlerWriters::Anybody] {
        let mut bed = Bed::by(text, writers);
        let asked = [[10, 1, 0, 1], [10, 2, 0, 1], [10, 2, 3, 4]].map(|address| answer(&mut bed, address));
        assert_eq!(asked, [Some(2), Some(1), Some(1)], "the first that matches: {writers:?}");
        assert_eq!(answer(&mut bed, [11, 0, 0, 1]), None);
        let mut lines: Vec<String> = bed.read("r.table").lines().map(str::to_owned).collect();
        lines.sort();
        assert_eq!(lines, ["10.0.0.0/8 01-01-01-01-01-01", "10.1.0.0/16 02-02-02-02-02-02"]);
    }
    let mut bed = Bed::new(text);
    bed.write("r.add 11.0.0.0/8 12.0.0.1/32 4:4:4:4:4:4");
    assert_eq!(bed.sent(&[request([12, 0, 0, 1])])[0].1[22..32], [4, 4, 4, 4, 4, 4, 12, 0, 0, 1]);
    assert_eq!(bed.read("r.lookup 11.2.3.4"), "04-04-04-04-04-04");
    bed.write("r.remove 10.1.0.0/16");
    assert_eq!(answer(&mut bed, [10, 1, 0, 1]), Some(1));
    assert!(bed.refused("r.remove 10.1.0.0/16").contains("there is no entry"));
}

#[test]
fn stations_and_flows_are_shown_and_forgotten() {
    let mut bed = Bed::new(
        "FromDump(a) -> c :: Classifier(11/01, -); c[0] -> [0] s :: EtherSwitch; c[1] -> [1] s; \
         s[0] -> ToDump(0); s[1] -> ToDump(1)",
    );
    let frame = |to: u8, from: u8| [&[0, 0, 0, 0, 0, to, 0, 0, 0, 0, 0, from][..], &[0; 48]].concat();
    assert_eq!(bed.outputs(&[frame(2, 1), frame(1, 2)]), [1, 0]);
    assert_eq!(bed.read("s.table"), "00-00-00-00-00-01 0\n00-00-00-00-00-02 1\n");
    bed.write("s.clear");
    assert_eq!(bed.read("s.count"), "0");

    let mut bed = Bed::new(
        "FromDump(a) -> MarkIPHeader -> n :: IPRewriter(pattern 192.0.2.1 1024-65535# - - 0 0) -> ToDump(0)",
    );
    bed.sent(&[to([10, 0, 0, 9])]);
    let flow = "udp (10.0.0.1, 9, 10.0.0.9, 53) => (192.0.2.1, 1024, 10.0.0.9, 53) [0] 0.000\n";
    assert!(bed.read("n.table").contains(flow), "{}", bed.read("n.table"));
    assert_eq!(bed.read("n.size"), "2");
    bed.write("n.clear");
    assert_eq!(bed.read("n.table"), "");
}

#[test]
fn settings_are_loaded_where_somebody_may_write_them_and_constants_elsewhere() {
    let text = "FromDump(a) -> s :: Switch(1) -> p :: Paint(3) -> k :: CheckPaint(3) -> ToDump(0); \
        s[1] -> ToDump(1); k[1] -> ToDump(2)";
    let mut bed = Bed::new(text);
    let one = [vec![0u8; 60]];
    assert_eq!((bed.outputs(&one), bed.read("s.switch")), (vec![1], "1".into()));
    bed.write("s.switch 0");
    assert_eq!(bed.outputs(&one), [0]);
    bed.write("p.color 0x04");
    assert_eq!((bed.outputs(&one), bed.read("p.color")), (vec![2], "4".into()));
    bed.write("s.switch -1");
    assert!(bed.outputs(&one).is_empty());
    assert!(bed.refused("s.switch 2").contains("it takes a number from -1 to 1"));
    assert_eq!(bed.read("s.switch"), "-1");

    let fixed = Bed::by(text, HandlerWriters::Scripts);
    let loads =
        |bed: &Bed| bed.program.code.module.maps.values().any(|map| map.name == millstream_click::SETTINGS);
    assert!(loads(&bed) && !loads(&fixed), "what nobody writes is in the code");
    let mut fixed = fixed;
    assert_eq!(fixed.read("s.switch"), "1");
    assert!(fixed.refused("s.switch 0").contains("a constant of the code"));
    let script = Bed::by(&format!("{text}; Script(write s.switch 0)"), HandlerWriters::Scripts);
    assert!(loads(&script));
}

/// Frames that a graph of these elements sends for a frame of 60 bytes, after writes to handlers of `e`, the
/// first element.
fn sent_with(elements: &str, writers: HandlerWriters, writes: &[&str]) -> Vec<Vec<u8>> {
    let mut bed = Bed::by(&format!("FromDump(a) -> e :: {elements} -> ToDump(0)"), writers);
    writes.iter().for_each(|write| bed.write(&format!("e.{write}")));
    bed.sent(&[(0..60).collect()]).into_iter().map(|(_, bytes)| bytes).collect()
}

#[test]
fn what_handlers_write_into_headers_is_what_arguments_would() {
    for (before, writes, after) in [
        (
            "EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2)",
            &["src 3:4:5:6:7:8", "dst ff:1:2:3:4:5", "ethertype 0x86dd"][..],
            "EtherEncap(0x86dd, 3:4:5:6:7:8, ff:1:2:3:4:5)",
        ),
        (
            "EtherRewrite(1:1:1:1:1:1, 2:2:2:2:2:2)",
            &["src 3:4:5:6:7:8", "dst ff:1:2:3:4:5"],
            "EtherRewrite(3:4:5:6:7:8, ff:1:2:3:4:5)",
        ),
        ("VLANEncap(VLAN_ID 7)", &["vlan_pcp 5", "vlan_id 9"], "VLANEncap(VLAN_ID 9, VLAN_PCP 5)"),
        ("VLANEncap(VLAN_ID 7, VLAN_PCP 1)", &["vlan_tci 0x6009"], "VLANEncap(VLAN_TCI 0x6009)"),
        (
            "SetVLANAnno(VLAN_ID 7) -> VLANEncap(ANNO)",
            &["vlan_pcp 2", "vlan_id 4095"],
            "SetVLANAnno(VLAN_ID 4095, VLAN_PCP 2) -> VLANEncap(ANNO)",
        ),
        (
            "UDPIPEncap(1.2.3.4, 5, 6.7.8.9, 10)",
            &["src 250.1.0.1", "sport 65535", "dst 5.4.3.2", "dport 12"],
            "UDPIPEncap(250.1.0.1, 65535, 5.4.3.2, 12)",
        ),
        (
            "IPEncap(udp, 1.2.3.4, 6.7.8.9)",
            &["src 250.1.0.1", "dst 5.4.3.2"],
            "IPEncap(udp, 250.1.0.1, 5.4.3.2)",
        ),
        (
            "SetIPAddress(1.2.3.4) -> IPEncap(udp, 1.1.1.1, DST_ANNO)",
            &["addr 250.6.7.8"],
            "SetIPAddress(250.6.7.8) -> IPEncap(udp, 1.1.1.1, DST_ANNO)",
        ),
    ] {
        let fixed = |elements| sent_with(elements, HandlerWriters::Scripts, &[]);
        assert_eq!(sent_with(before, HandlerWriters::Anybody, &[]), fixed(before), "{before}");
        assert_eq!(sent_with(before, HandlerWriters::Anybody, writes), fixed(after), "{after}");
        assert_ne!(fixed(before), fixed(after), "{before}");
    }
}

#[test]
fn numbers_of_headers_are_read_as_they_are_written_and_others_are_refused() {
    let mut bed = Bed::new(
        "FromDump(a) -> e :: EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> v :: VLANEncap(VLAN_ID 7, VLAN_PCP 2)
            -> u :: UDPIPEncap(1.2.3.4, 5, 6.7.8.9, 10) -> ToDump(0)",
    );
    bed.write("e.src 3:4:5:6:7:ff");
    bed.write("v.vlan_id 12");
    bed.write("u.dst 9.9.9.9");
    let read = ["e.src", "e.ethertype", "v.vlan_tci", "v.vlan_id", "v.vlan_pcp", "u.dst", "u.sport"];
    assert_eq!(
        read.map(|name| bed.read(name)),
        ["03-04-05-06-07-FF", "2048", "16396", "12", "2", "9.9.9.9", "5"]
    );
    for (text, takes) in [
        ("e.src 10.0.0.1", "an address like 00:11:22:33:44:55"),
        ("v.vlan_id 4096", "a number from 0 to 4095"),
        ("v.vlan_pcp -1", "a number from 0 to 7"),
        ("u.dst 1.2.3", "an address like 10.0.0.1"),
    ] {
        let why = bed.refused(text);
        assert!(why.contains(takes), "{text}: {why}");
    }
}

#[test]
fn tickets_are_given_and_taken_while_packets_come() {
    let mut bed = Bed::new(
        "FromDump(a) -> s :: StrideSwitch(1, 0, 1) -> ToDump(0); s[1] -> ToDump(1); s[2] -> ToDump(2)",
    );
    let frames = vec![vec![0; 60]; 24];
    let mut counts = |writes: &[&str]| {
        writes.iter().for_each(|write| bed.write(write));
        let outputs = bed.outputs(&frames);
        [0, 1, 2].map(|output| outputs.iter().filter(|o| **o == output).count())
    };
    assert_eq!(counts(&[]), [12, 0, 12]);
    assert_eq!(counts(&["s.tickets0 0", "s.tickets2 0"]), [0, 0, 0]);
    assert_eq!(counts(&["s.tickets1 4"]), [0, 24, 0]);
}

#[test]
fn what_makes_no_difference_is_remembered_for_scripts_that_tune_it() {
    let mut bed = Bed::new(
        "s :: RatedSource(RATE 10, LIMIT 4) -> q :: Queue(7) -> h :: Shaper(100) \
            -> b :: BandwidthShaper(1Mbps) -> Unqueue
            -> p :: Print(ACTIVE false) -> CheckLength(10) -> Discard;
            Idle -> r :: RED(5, 50, 0.02) -> Queue -> Discard",
    );
    let read = |bed: &mut Bed| {
        ["s.rate", "q.capacity", "h.rate", "b.rate", "p.active", "r.max_thresh"].map(|name| bed.read(name))
    };
    assert_eq!(read(&mut bed), ["10", "7", "100", "125000", "false", "50"]);
    ["s.rate 5", "q.capacity 9", "h.rate 200", "b.rate 250000", "p.active true", "r.max_thresh 60"]
        .iter()
        .for_each(|text| bed.write(text));
    assert_eq!(read(&mut bed), ["5", "9", "200", "250000", "true", "60"]);
}

#[test]
fn drops_are_told_by_reason() {
    let mut bed = Bed::new("FromDump(a) -> c :: CheckIPHeader(CHECKSUM false) -> ToDump(0)");
    let short = vec![vec![0x45; 8]; 3];
    assert!(bed.outputs(&short).is_empty());
    let details = bed.read("c.drop_details");
    let line = details.lines().find(|line| line.starts_with('3')).unwrap_or_else(|| panic!("{details}"));
    assert_eq!((bed.read("c.drops").as_str(), line.split_whitespace().count()), ("3", 2));
}

#[test]
fn all_elements_say_what_they_are_and_unknown_names_have_a_nearest_one() {
    let mut bed = Bed::new(
        "require(fastclick); FromDevice(a) -> q :: Queue(7) -> c :: Counter -> Unqueue -> d :: Discard",
    );
    assert_eq!([bed.read("c.class"), bed.read("c.name"), bed.read("q.config")], ["Counter", "c", "7"]);
    assert_eq!(bed.read("c.ports"), "1 input\npull~\t-\tq [0]\n1 output\npull~\t-\tUnqueue@4 [0]\n");
    let listed = bed.read("c.handlers");
    assert!(listed.contains("count\tr\n") && listed.contains("reset\tw\n"), "{listed}");
    assert_eq!([bed.read("q.capacity"), bed.read("q.length")], ["7", "0"]);
    assert_eq!(bed.read("list"), "5\nFromDevice@1\nq\nc\nUnqueue@4\nd\n");
    assert_eq!(bed.read("requirements"), "fastclick\n");
    assert!(bed.read("classes").contains("\nCounter\n") && bed.read("flatconfig").contains("q :: Queue(7);"));
    assert!(bed.read("version").starts_with(|c: char| c.is_ascii_digit()));
    let wrong =
        |bed: &mut Bed, text: &str| handlers::read(&bed.program, &mut bed.engine, text).expect_err(text);
    let HandlerError::Unknown { near, .. } = wrong(&mut bed, "c.cuont") else { panic!("known") };
    assert_eq!(near.as_deref(), Some("count"));
    let message = wrong(&mut bed, "cc.count").to_string();
    assert!(message.starts_with("there is no element \"cc\" (the nearest name is \"c\")"), "{message}");
    assert_eq!(wrong(&mut bed, "c.reset"), HandlerError::Unreadable("c.reset".into()));
    assert_eq!(handlers::check(&bed.program, "c.reset", true), Ok(()));
    assert!(handlers::check(&bed.program, "c.count", true).is_err());
}

#[test]
fn the_latest_times_are_kept_for_percentiles() {
    let mut bed = Bed::new(
        "FromDump(a) -> c :: Classifier(0/00, -) -> NumberPacket(8) -> r :: RecordTimestamp(N 16, OFFSET 8)
        -> ToDump(0); c[1] -> d :: TimestampDiff(r, OFFSET 8, N 4) -> ToDump(1); d[1] -> ToDump(2)",
    );
    let sent = bed.sent(&vec![vec![0; 16]; 6]);
    assert_eq!(
        ["d.index", "d.median", "d.last", "d.dump"].map(|name| bed.read(name)),
        ["-1", "0.000", "0.000", ""]
    );
    for (number, (_, packet)) in (1..).zip(sent) {
        bed.engine.set_clock(ClockSource::Fixed(1000 * SECOND + number * 1500));
        assert_eq!(bed.outputs(&[[&[1], &packet[1..]].concat()]), [1]);
    }
    let sums = ["d.count", "d.average", "d.min", "d.max"].map(|name| bed.read(name));
    assert_eq!(sums, ["6", "5.250", "1.500", "9.000"], "of all times");
    let kept = ["d.perc00", "d.perc 25", "d.median", "d.perc100", "d.median 4", "d.perc 0 9"];
    assert_eq!(kept.map(|name| bed.read(name)), ["4.500", "6.000", "7.500", "9.000", "9.000", "0.000"]);
    assert_eq!(["d.index", "d.last", "d.stddev"].map(|name| bed.read(name)), ["5", "9.000", "1.677"]);
    assert_eq!(bed.read("d.dump_list"), "4.500\n6.000\n7.500\n9.000\n");
    assert_eq!(bed.read("d.dump"), "2: 4.500\n3: 6.000\n4: 7.500\n5: 9.000\n");
    for wrong in ["d.perc", "d.perc x", "d.perc 101", "d.median x"] {
        assert!(handlers::read(&bed.program, &mut bed.engine, wrong).is_err(), "{wrong}");
    }
    bed.write("d.reset");
    assert_eq!(["d.index", "d.perc99", "d.dump_list"].map(|name| bed.read(name)), ["-1", "0.000", ""]);
}

#[test]
fn the_address_of_a_card_is_a_handler_if_the_configuration_sets_it() {
    let mut bed =
        Bed::new("f :: FromDPDKDevice(0, MAC 02:00:00:00:0a:77) -> Discard; FromDPDKDevice(1) -> Discard");
    assert_eq!(bed.read("f.mac"), "02-00-00-00-0A-77");
    assert_eq!(bed.program.devices.addresses, [("0".to_owned(), [2, 0, 0, 0, 10, 0x77])]);
}
