//! Packets longer than a buffer, through files and AF_XDP.

#[path = "common/capture.rs"]
mod capture;
mod common;
#[path = "common/tail.rs"]
mod tail;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use millstream_kernel::{Namespace, PacketSocket, create_veth, query_xdp, set_mtu, set_up_pair, testing};
use serde_json::Value;

use common::Files;

/// Around the ends of buffers: 3,520 bytes in place, 3,840 in a frame of AF_XDP that is received, 4,096 in one
/// that is sent.
const LENGTHS: [usize; 12] = [60, 1500, 3520, 3521, 3840, 3841, 4096, 4097, 7681, 8192, 8193, 9014];

fn number(document: &Value, name: &str) -> u64 {
    document[name].as_u64().unwrap_or_else(|| panic!("{name} in {document}"))
}

fn dropped(document: &Value) -> u64 {
    document["dropped"].as_array().unwrap().iter().map(|d| number(d, "packets")).sum()
}

#[test]
fn long_packets_of_files_pass_through_a_program() {
    let files = Files::new("long-packets-pcap");
    let (program, input, output) =
        (files.path("tail_xdp.insns"), files.path("in.pcap"), files.path("out.pcap"));
    let lengths = [60, 3520, 3521, 9014, 61, 65_535, 73_152, 73_153, 62];
    let frames: Vec<Vec<u8>> = lengths.iter().map(|&length| tail::packet(length, length)).collect();
    std::fs::write(&program, tail::program()).unwrap();
    std::fs::write(&input, capture::capture(&frames)).unwrap();
    for workers in ["1", "2"] {
        let io = format!("pcap:{input},{output}");
        let arguments = ["native", &program, "--io", &io, "--workers", workers, "--json"];
        let out = Command::new(env!("CARGO_BIN_EXE_millstream")).args(arguments).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let document: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!((number(&document, "received"), number(&document, "sent")), (9, 8), "{document}");
        let too_long = document["dropped"].as_array().unwrap().iter().find(|d| d["reason"] == "size");
        assert_eq!(too_long.map(|d| number(d, "packets")), Some(1), "{document}");
        let mut sent = tail::captured(&output);
        sent.sort();
        let mut expected: Vec<_> =
            frames.iter().filter(|f| f.len() != 73_153).map(|f| tail::answer(f)).collect();
        expected.sort();
        assert!(sent == expected, "{:?}", sent.iter().map(Vec::len).collect::<Vec<_>>());
    }
}

/// Runs `command` on `msl0`, whose MTU is 9,000, sends it packets from the other end, a round of each length
/// at a time, and compares what comes back with `answer`. Returns the report.
fn exchanged(command: &[&str], rounds: usize, answer: fn(&[u8]) -> Vec<u8>) -> Value {
    let served = Namespace::new().expect("a namespace").enter(|| {
        let (ours, far) = create_veth("msl0", "msl1", 2).expect("a pair");
        for end in [ours, far] {
            set_mtu(end, 9000).expect("an MTU that veth has");
        }
        set_up_pair((ours, far)).expect("up");
        let child = Command::new(env!("CARGO_BIN_EXE_millstream"))
            .args(command)
            .arg("--json")
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let (wire, start) = (PacketSocket::open(far).expect("a socket"), Instant::now());
        while query_xdp(ours).expect("asked").is_none() {
            assert!(start.elapsed() < Duration::from_secs(60), "it never takes the interface");
            std::thread::sleep(Duration::from_millis(5));
        }
        for round in 0..rounds {
            let sent: Vec<_> = LENGTHS.iter().map(|&length| tail::packet(round + length, length)).collect();
            sent.iter().for_each(|frame| wire.send(frame).expect("it sends"));
            let mut back = Vec::new();
            while back.len() < sent.len() {
                assert!(start.elapsed() < Duration::from_secs(120), "round {round}: {} of them", back.len());
                match wire.receive().expect("it receives") {
                    Some(frame) if frame[12..14] == [0x88, 0xb5] => back.push(frame),
                    Some(_) => {}
                    None => std::thread::sleep(Duration::from_micros(50)),
                }
            }
            // Packets of several queues may overtake one another.
            let mut expected: Vec<_> = sent.iter().map(|frame| answer(frame)).collect();
            back.sort();
            expected.sort();
            assert!(back == expected, "round {round}: {:?}", back.iter().map(Vec::len).collect::<Vec<_>>());
        }
        let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(interrupt.expect("it is ours").success());
        let out = child.wait_with_output().expect("it has ended");
        assert!(out.status.success());
        serde_json::from_slice::<Value>(&out.stdout).expect("JSON")
    });
    served.expect("entered")
}

#[test]
fn long_packets_of_interfaces_pass_through_programs_and_graphs() {
    if !testing::require() {
        return;
    }
    let files = Files::new("long-packets-xdp");
    let (program, conf) = (files.path("tail_xdp.insns"), files.path("mirror.click"));
    std::fs::write(&program, tail::program()).unwrap();
    // A copy of each packet stays behind the one that is sent.
    std::fs::write(
        &conf,
        "FromDevice(msl0) -> c :: Classifier(12/88b5, -) -> t :: Tee(2);
         t[0] -> Queue -> ToDevice(msl0); t[1] -> n :: Counter -> Discard; c[1] -> Discard;",
    )
    .unwrap();
    for more in [&[][..], &["--metadata", "copy"], &["--workers", "2"]] {
        let run = [&["native", &program, "--io", "xdp:msl0"], more].concat();
        let document = exchanged(&run, 300, tail::answer);
        let interface = &document["interfaces"][0];
        if interface["several_buffers"] != true {
            assert!(interface["several_buffers_refused"].is_string(), "{document}");
            return;
        }
        let count = 300 * LENGTHS.len() as u64;
        assert_eq!(number(&document, "sent"), count, "{more:?}: {document}");
        assert_eq!(number(&document, "received"), count + dropped(&document), "{document}");
        let run = [&["click", &conf, "--io", "msl0=xdp:msl0", "--handler", "n.count"], more].concat();
        let document = exchanged(&run, 300, <[u8]>::to_vec);
        assert_eq!(number(&document, "sent"), count, "{more:?}: {document}");
        assert_eq!(document["handlers"][0]["value"], count.to_string(), "{document}");
    }
}
