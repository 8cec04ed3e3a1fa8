//! `--io dpdk:` as a user runs it: virtual devices of DPDK for files in and out. Built with feature `dpdk`
//! only.
#![cfg(feature = "dpdk")]

mod common;
#[path = "common/spoken.rs"]
mod spoken;
#[path = "common/tail.rs"]
mod tail;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use millstream_lab::workload::BuiltinWorkload;
use millstream_programs::traffic::FlowLocality;
use serde_json::Value;

use common::Files;
use spoken::Spoken;

fn millstream(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_millstream")).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Report of a successful run.
fn document(arguments: &[&str]) -> Value {
    let (exit, out, errors) = millstream(&[arguments, &["--json"]].concat());
    assert_eq!(exit, 0, "{errors}");
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"))
}

fn number(document: &Value, name: &str) -> u64 {
    document[name].as_u64().unwrap_or_else(|| panic!("{name} in {document}"))
}

/// Dropped for any reason, or for this one.
fn dropped(document: &Value, reason: Option<&str>) -> u64 {
    let rows = document["dropped"].as_array().unwrap().iter();
    rows.filter(|row| reason.is_none_or(|r| row["reason"] == r)).map(|row| number(row, "packets")).sum()
}

fn frames(path: &str) -> Vec<Vec<u8>> {
    tail::captured(path)
}

/// A capture of these frames.
fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let word = |n: usize| (n as u32).to_le_bytes();
    let mut out: Vec<u8> = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1].into_iter().flat_map(word).collect();
    for frame in frames {
        out.extend([0, 0, frame.len(), frame.len()].into_iter().flat_map(word));
        out.extend(frame);
    }
    out
}

/// Longer than a buffer can hold with room behind it: the first one is in one piece, the other in two.
const LONG: [usize; 2] = [3521, 5000];

/// Frames of a data plane's own traffic and others, and the same in a file.
fn traffic(files: &Files, plane: &str, count: usize) -> (String, Vec<Vec<u8>>) {
    let plane: BuiltinWorkload = plane.parse().unwrap();
    let load = plane.workload([1, 2], count, FlowLocality::Pareto { alpha: 1.0, beta: 0.0 }).unwrap();
    let mut frames = load.flows.packets;
    frames.extend([60, 3000, LONG[0], 1500, LONG[1], 61].map(|len| vec![0x77; len]));
    let path = files.path("in.pcap");
    std::fs::write(&path, capture(&frames)).unwrap();
    (path, frames)
}

/// Runs a configuration with devices `in` and `out` on a file, with this `--metadata`, and returns the
/// account and the sent packets.
fn replayed(conf: &str, files: &Files, input: &str, count: usize, more: &[&str]) -> (Value, Vec<Vec<u8>>) {
    let output = files.path("dpdk.pcap");
    let (from, to) =
        (format!("in=dpdk:net_pcap0,rx_pcap={input}"), format!("out=dpdk:net_pcap1,tx_pcap={output}"));
    let count = count.to_string();
    let arguments = ["click", conf, "--io", &from, "--io", &to, "--packets", &count];
    let document = document(&[&arguments, more].concat());
    (document, frames(&output))
}

/// Copies, headers in front of packets far beyond the headroom that drivers keep, packets that are shortened
/// and dropped.
const GRAPH: &str = "FromDevice(in) -> c :: Classifier(12/0800, -);
c[0] -> t :: Tee(2);
t[0] -> EtherMirror -> out :: ToDPDKDevice(out);
t[1] -> HEADERS -> out;
c[1] -> Strip(14) -> CheckLength(4000) -> t2 :: Tee(2); t2[0] -> out; t2[1] -> Unstrip(14) -> out;";

#[test]
fn what_leaves_is_what_leaves_by_our_own_files_whether_copied_or_not() {
    let files = Files::new("dpdk-graph");
    let (input, all) = traffic(&files, "builtin:router:100", 200);
    let conf = files.path("test.click");
    let headers = vec!["EtherEncap(0x1234, 1:2:3:4:5:6, 6:5:4:3:2:1)"; 15].join(" -> ");
    std::fs::write(&conf, GRAPH.replace("HEADERS", &headers)).unwrap();
    let expected = files.path("out.pcap");
    let own = document(&["click", &conf, "--io", &format!("pcap:{input},{expected}")]);
    let expected = frames(&expected);
    assert!(expected.len() > 400 && expected.iter().any(|frame| frame.len() > 210), "{own}");
    for model in ["overlay", "copy"] {
        let (ours, sent) = replayed(&conf, &files, &input, all.len(), &["--metadata", model]);
        assert!(sent == expected, "{model}: {} frames for {}: {ours}", sent.len(), expected.len());
        for name in ["received", "copies", "sent"] {
            assert_eq!(number(&ours, name), number(&own, name), "{model}: {name}");
        }
        assert_eq!(dropped(&ours, None), dropped(&own, None), "{model}: {ours}, {own}");
        assert_eq!(dropped(&ours, Some("size")), 0, "{ours}");
    }
}

/// Neither waiting for a time nor stages work with DPDK: the command says so before anything is sent.
#[test]
fn elements_of_time_and_stages_are_refused() {
    let files = Files::new("dpdk-refused");
    let (input, all) = traffic(&files, "builtin:router:100", 20);
    let (conf, output) = (files.path("test.click"), files.path("dpdk.pcap"));
    let (from, to) =
        (format!("in=dpdk:net_pcap0,rx_pcap={input}"), format!("out=dpdk:net_pcap1,tx_pcap={output}"));
    let count = all.len().to_string();
    let timed = ["DelayUnqueue(1ms)", "RatedUnqueue(5)", "BandwidthShaper(1000Bps) -> Unqueue"];
    let cases = timed.map(|element| (element, &[][..], "packets wait for elements of time"));
    for (element, more, said) in cases.into_iter().chain([("Unqueue", &["--pipeline"][..], "--pipeline has")])
    {
        std::fs::write(&conf, format!("FromDevice(in) -> Queue -> {element} -> ToDPDKDevice(out)")).unwrap();
        let arguments = ["click", &conf, "--io", &from, "--io", &to, "--packets", &count];
        let (exit, out, errors) = millstream(&[&arguments, more].concat());
        assert_eq!((exit, out.as_str()), (4, ""), "{element}: {errors}");
        assert!(errors.contains(said) && errors.contains("--io raw, tap or xdp"), "{element}: {errors}");
        let written = Path::new(&output).exists() && !frames(&output).is_empty();
        assert!(!written, "{element}: something was sent");
    }
}

const NAT: &str = "builtin:nat:100";

#[test]
fn an_xdp_program_sends_from_port_to_port() {
    let files = Files::new("dpdk-native");
    let (input, all) = traffic(&files, NAT, 300);
    let expected = files.path("out.pcap");
    let own = document(&["native", NAT, "--flows", "300", "--io", &format!("pcap:{input},{expected}")]);
    for model in ["overlay", "copy"] {
        let outs = [files.path("a.pcap"), files.path("b.pcap")];
        let io = format!("dpdk:net_pcap0,rx_pcap={input},tx_pcap={};net_pcap1,tx_pcap={}", outs[0], outs[1]);
        let count = all.len().to_string();
        let arguments = ["--flows", "300", "--io", &io, "--packets", &count, "--metadata", model];
        let ours = document(&[&["native", NAT][..], &arguments].concat());
        for name in ["received", "sent", "transmitted", "redirected"] {
            assert_eq!(number(&ours, name), number(&own, name), "{model}: {name}");
        }
        assert_eq!(number(&ours, "received"), number(&ours, "sent") + dropped(&ours, None));
        assert!(number(&ours, "redirected") >= 100, "{ours}");
        assert_eq!(dropped(&ours, Some("pass")), dropped(&own, Some("pass")));
        let mut sent: Vec<_> = outs.iter().flat_map(|path| frames(path)).collect();
        let mut expected = frames(&expected);
        sent.sort();
        expected.sort();
        assert!(sent == expected, "{model}: {} frames for {}", sent.len(), expected.len());
    }
}

#[test]
fn long_packets_pass_through_in_chains() {
    let files = Files::new("dpdk-long");
    let (program, input) = (files.path("tail_xdp.insns"), files.path("in.pcap"));
    // 3,648 bytes fit a buffer of the driver. More packets than there are buffers.
    let lengths = [60, 3520, 3521, 3648, 3649, 7296, 7297, 9014];
    let all: Vec<_> = (0..4000).map(|n| tail::packet(n, lengths[n % lengths.len()])).collect();
    std::fs::write(&program, tail::program()).unwrap();
    std::fs::write(&input, capture(&all)).unwrap();
    let (count, expected) = (all.len().to_string(), all.iter().map(|p| tail::answer(p)).collect::<Vec<_>>());
    for model in ["overlay", "copy"] {
        let output = files.path("out.pcap");
        let io = format!("dpdk:net_pcap0,rx_pcap={input},tx_pcap={output}");
        let arguments = ["native", &program, "--io", &io, "--packets", &count, "--metadata", model];
        let ran = document(&arguments);
        assert_eq!((number(&ran, "received"), number(&ran, "sent")), (4000, 4000), "{model}: {ran}");
        assert!(frames(&output) == expected, "{model}");
        // There and back through a ring: chains of ours are received again.
        let ring = format!("dpdk:net_pcap0,rx_pcap={input},infinite_rx=0;net_ring0");
        let conf = files.path("ring.click");
        let text = "FromDevice(in) -> ToDPDKDevice(ring); FromDevice(ring) -> c :: Counter -> Discard;";
        std::fs::write(&conf, text).unwrap();
        let twice = (2 * all.len()).to_string();
        let arguments = ["click", &conf, "--io", &ring, "--packets", &twice, "--metadata", model];
        let ran = document(&[&arguments[..], &["--handler", "c.byte_count"]].concat());
        let bytes: usize = all.iter().map(Vec::len).sum();
        assert_eq!((number(&ran, "received"), number(&ran, "sent")), (8000, 4000), "{model}: {ran}");
        assert_eq!(ran["handlers"][0]["value"], bytes.to_string(), "{model}: {ran}");
    }
}

#[test]
fn what_a_driver_takes_no_more_is_dropped_and_counted() {
    let files = Files::new("dpdk-full");
    let (input, frames) = traffic(&files, "builtin:router:100", 100);
    let short: Vec<_> = frames.into_iter().filter(|frame| frame.len() < LONG[0]).collect();
    std::fs::write(&input, capture(&short)).unwrap();
    let conf = files.path("test.click");
    std::fs::write(&conf, "FromDevice(in) -> ToDPDKDevice(out)").unwrap();
    for model in ["overlay", "copy"] {
        // A ring that nobody empties.
        let io = format!("dpdk:net_pcap0,rx_pcap={input},infinite_rx=1;net_ring0");
        let ran = document(&["click", &conf, "--io", &io, "--packets", "5000", "--metadata", model]);
        assert_eq!(number(&ran, "received"), 5000);
        let full = dropped(&ran, Some("no_room"));
        assert!(full > 3000 && number(&ran, "sent") > 500, "{ran}");
        assert_eq!(number(&ran, "sent") + full, 5000, "{model}: {ran}");
    }
}

#[test]
fn workers_have_a_queue_each() {
    let files = Files::new("dpdk-workers");
    let (input, all) = traffic(&files, "builtin:router:100", 100);
    let conf = files.path("test.click");
    std::fs::write(&conf, "FromDevice(in) -> c :: Counter -> ToDPDKDevice(in)").unwrap();
    let outs = [files.path("a.pcap"), files.path("b.pcap")];
    let io =
        format!("dpdk:net_pcap0,rx_pcap={input},rx_pcap={input},tx_pcap={},tx_pcap={}", outs[0], outs[1]);
    let count = (2 * all.len()).to_string();
    let arguments = ["--io", &io, "--packets", &count, "--workers", "2", "--handler", "c.count"];
    let ran = document(&[&["click", &conf], &arguments[..]].concat());
    assert_eq!(
        (number(&ran, "received"), number(&ran, "sent")),
        (2 * all.len() as u64, 2 * all.len() as u64)
    );
    assert_eq!(ran["handlers"][0]["value"], (2 * all.len()).to_string());
    for out in outs {
        assert!(frames(&out) == all, "each queue has its file's packets, in order");
    }
}

/// A file over and over, to so many queues, and a port that all packets may be sent to.
fn endless(input: &str, queues: usize) -> String {
    let files = vec![format!("rx_pcap={input}"); queues].join(",");
    format!("dpdk:net_pcap0,{files},infinite_rx=1;net_null0,no-rx=1")
}

/// Frames of a data plane's own traffic in a file, all of which a buffer takes.
fn short(files: &Files, plane: &str) -> String {
    let (input, frames) = traffic(files, plane, 100);
    let short: Vec<_> = frames.into_iter().filter(|frame| frame.len() < LONG[0]).collect();
    std::fs::write(&input, capture(&short)).unwrap();
    input
}

#[test]
fn maps_and_statistics_of_a_program_are_there_while_it_runs() {
    for workers in [1, 2] {
        let files = Files::new(&format!("dpdk-control-{workers}"));
        let (io, socket) =
            (endless(&short(&files, "builtin:router:100"), workers), files.path("control.sock"));
        let workers = workers.to_string();
        let command = Command::new(env!("CARGO_BIN_EXE_millstream"))
            .args(["native", "builtin:router:100", "--io", &io, "--workers", &workers])
            .args(["--control", &socket, "--json"])
            .stdout(Stdio::piped())
            .spawn();
        let running = command.unwrap();
        let ask = |words: &[&str]| {
            let (exit, out, _) = millstream(&[words, &["--socket", &socket, "--json"]].concat());
            (exit == 0).then(|| serde_json::from_str::<Value>(&out).unwrap())
        };
        let start = Instant::now();
        let until = |enough: &dyn Fn(&Value) -> bool| loop {
            match ask(&["stats"]) {
                Some(stats) if enough(&stats) => break stats,
                _ => assert!(start.elapsed() < Duration::from_secs(60), "it never comes to that"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let each =
            |stats: &Value| stats["workers"].as_array().unwrap().iter().all(|w| number(w, "received") > 0);
        let stats = until(&|stats| number(stats, "sent") > 10_000 && each(stats));
        assert!(number(&stats["latency_ns"], "p50") > 0, "{stats}");
        for route in ask(&["map", "dump", "routes"]).unwrap().as_array().unwrap() {
            let key = route["key"].as_array().unwrap().iter().map(|byte| byte.as_str().unwrap());
            let words: Vec<&str> = ["map", "delete", "routes", "key", "hex"].into_iter().chain(key).collect();
            assert_eq!(ask(&words), Some(Value::Null));
        }
        let (sent, received) = (number(&ask(&["stats"]).unwrap(), "sent"), number(&stats, "received"));
        let stats = until(&|stats| number(stats, "received") > received + 100_000);
        assert_eq!(number(&stats, "sent"), sent, "there is no route any more");
        // As Ctrl-C does.
        assert!(Command::new("kill").args(["-INT", &running.id().to_string()]).status().unwrap().success());
        let out = running.wait_with_output().unwrap();
        let report: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(number(&report, "received"), number(&report, "sent") + dropped(&report, None));
        assert_eq!(number(&report, "sent"), sent);
    }
}

#[test]
fn a_configuration_of_several_workers_is_asked_and_replaced() {
    let files = Files::new("dpdk-swap");
    let (first, second) = (files.path("first.click"), files.path("second.click"));
    let text =
        |name: &str| format!("FromDevice(in) -> c :: Counter -> {name} :: Counter -> ToDPDKDevice(out)");
    std::fs::write(&first, text("old")).unwrap();
    std::fs::write(&second, text("new")).unwrap();
    let io = endless(&short(&files, "builtin:router:100"), 2);
    let mut spoken = Spoken::new(&first, &files.path("control"), &["--workers", "2", "--io", &io]);
    while spoken.number("old.count") < 1000 {}
    let before = spoken.number("c.count");
    assert!(spoken.say(&format!("SWAP {second}")).0.starts_with("200"));
    while spoken.number("new.count") < 1000 {}
    assert!(spoken.number("c.count") >= before + 1000, "counts go on");
    assert!(spoken.say("WRITE stop").0.starts_with("200"));
    let out = spoken.end();
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(number(&report, "swaps"), 1);
    assert_eq!(number(&report, "received"), number(&report, "sent") + dropped(&report, None), "{report}");
}

#[test]
fn bad_arguments_and_devices_are_told() {
    let io = ["native", "builtin:router:100", "--io"];
    let run = |more: &[&str]| millstream(&[&io[..], more].concat());
    for (arguments, says) in [
        (&["dpdk:net_null0", "--eal", "--nonsense"][..], "EAL does not start with `--nonsense"),
        (&["dpdk:net_nothing0"], "No such device"),
        (&["dpdk:net_pcap0,rx_pcap=/does/not/exist"], "no port \"net_pcap0\""),
        (&["dpdk:"], "names no device"),
        (&["dpdk:net_null0;;net_null1"], "names no device"),
    ] {
        let (exit, out, errors) = run(arguments);
        assert!(
            (exit, out.as_str()) == (2, "") && errors.contains(says),
            "{arguments:?}: {exit} {out} {errors}"
        );
    }
    // More memory than any machine has, by far.
    let (exit, out, errors) = run(&["dpdk:net_null0", "--eal", "--no-huge --no-shconf -m 1000000000"]);
    assert!(
        (exit, out.as_str()) == (4, "") && errors.contains("EAL does not start"),
        "{exit} {out} {errors}"
    );
}
