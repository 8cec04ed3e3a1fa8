//! `millstream click` on interfaces.

mod common;
#[path = "common/flat.rs"]
mod flat;
#[path = "common/spoken.rs"]
mod spoken;
#[path = "common/wires.rs"]
mod wires;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use millstream_kernel::{Namespace, PacketSocket, create_veth, interface, set_up_pair, testing};
use serde_json::Value;

use common::Files;
use flat::flat;
use spoken::Spoken;
use wires::wires;

/// Frame that is sent into the interfaces: of a type that nobody else sends.
const FRAME: [u8; 60] = {
    let mut frame = [7; 60];
    (frame[12], frame[13]) = (0x88, 0xb5);
    frame
};

fn click(conf: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.args(["click", conf, "--json"]).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn number(document: &Value, name: &str) -> u64 {
    document[name].as_u64().unwrap_or_else(|| panic!("{name} in {document}"))
}

/// Checks that received + copies = sent + dropped + queued.
fn adds_up(document: &Value) -> bool {
    let rows = document["dropped"].as_array().unwrap().iter();
    let dropped: u64 = rows.map(|row| number(row, "packets")).sum();
    number(document, "received") + number(document, "copies")
        == number(document, "sent") + dropped + number(document, "queued")
}

/// Number of test frames that arrived at each wire.
fn come(wires: &[PacketSocket], tap: bool) -> Vec<usize> {
    let count = |wire: &PacketSocket| {
        let mut come = 0;
        loop {
            match wire.receive() {
                Ok(Some(frame)) => come += usize::from(frame == FRAME),
                Ok(None) => return come,
                // An interface that was created for the run goes with it, which is reported once.
                Err(e) => assert!(tap, "{e}"),
            }
        }
    };
    wires.iter().map(count).collect()
}

/// A configuration between two interfaces serves them over this transport, from one to the other and back,
/// and writes and generates packets.
fn serve(way: &str, files: &Files) -> (Value, Vec<usize>) {
    let (conf, dump) = (files.path("test.click"), files.path("out.pcap"));
    let text = format!(
        "FromDevice(msc0) -> c :: Counter -> Queue -> ToDevice(msc1); \
        FromDevice(msc1) -> t :: Tee(2) -> ToDPDKDevice(msc0);
        t[1] -> ToDump({dump}); InfiniteSource(DATA \\<{}>, LIMIT 5) -> ToDump({dump})",
        "01".repeat(60)
    );
    std::fs::write(&conf, text).unwrap();
    run(&conf, &["--io", way, "--packets", "100", "--handler", "c.count"], way == "tap")
}

/// Runs a configuration between two interfaces, into which frames are sent; returns the report, and the
/// number of frames that came to either end.
fn run(conf: &str, args: &[&str], tap: bool) -> (Value, Vec<usize>) {
    let mut child = click(conf, args).spawn().unwrap();
    let start = Instant::now();
    let wires = wires(if tap { ["msc0", "msc1"] } else { ["msc0far", "msc1far"] }, start);
    let mut back = vec![0; 2];
    while child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(60), "it never ends");
        for wire in &wires {
            let sent = wire.send(&FRAME);
            assert!(sent.is_ok() || tap, "{sent:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
        back.iter_mut().zip(come(&wires, tap)).for_each(|(back, more)| *back += more);
    }
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    (serde_json::from_slice(&stdout).unwrap(), back)
}

#[test]
fn devices_are_interfaces() {
    if !testing::require() {
        return;
    }
    for way in ["raw", "tap", "xdp"] {
        let files = Files::new(&format!("live-{way}"));
        let served = Namespace::new().expect("a namespace").enter(|| {
            for n in 0..if way == "tap" { 0 } else { 2 } {
                let (ours, far) = create_veth(&format!("msc{n}"), &format!("msc{n}far"), 1).expect("a pair");
                set_up_pair((ours, far)).expect("up");
            }
            let served = serve(way, &files);
            if way == "raw" {
                ends_with_its_packets(&files);
                sources_wait(&files);
                rounds_leave_by_an_interface(&files);
            }
            if way != "tap" {
                waits_for_its_time(way, &files);
            }
            served
        });
        let (document, back) = served.expect("entered");
        assert!(number(&document, "received") >= 100 && adds_up(&document), "{document}");
        assert!(back.iter().all(|come| *come > 0), "{way}: {back:?}");
        assert!(document["lost"].is_object(), "{document}");
        assert_eq!(
            document["metadata"] == "copy",
            way == "xdp",
            "files are beside the interfaces: {document}"
        );
        let by = |list: &str, name: &str, value: &str, what: &str| {
            let row = document[list].as_array().unwrap().iter().find(|row| row[name] == value);
            number(row.unwrap_or_else(|| panic!("{value} in {document}")), what)
        };
        let counted: u64 = document["handlers"][0]["value"].as_str().unwrap().parse().unwrap();
        assert_eq!(counted, number(&document["sources"][0], "received"));
        assert_eq!(number(&document["sources"][2], "received"), 5, "what is made up comes, too");
        let written = by("outputs", "output", &files.path("out.pcap"), "packets");
        let length = std::fs::metadata(files.path("out.pcap")).unwrap().len();
        assert!(written > 5 && length >= 24 + written * (16 + 60), "{written} packets, {length} bytes");
    }
}

/// If all devices are AF_XDP interfaces, packets leave from their place, and copies in other frames. This
/// also holds for several workers, which with other transports have sockets or queues of their own.
#[test]
fn devices_exchange_frames() {
    if !testing::require() {
        return;
    }
    let files = Files::new("live-exchange");
    let conf = files.path("test.click");
    let text = "FromDevice(msc0) -> c :: Counter -> Queue -> ToDevice(msc1); FromDevice(msc1) -> t :: Tee(2) \
        -> ToDPDKDevice(msc0); t[1] -> ToDPDKDevice(msc0)";
    std::fs::write(&conf, text).unwrap();
    for (way, workers) in [("xdp", "1"), ("xdp", "2"), ("raw", "2"), ("tap", "2")] {
        let args = ["--io", way, "--packets", "200", "--handler", "c.count", "--workers", workers];
        let served = Namespace::new().expect("a namespace").enter(|| {
            for n in 0..if way == "tap" { 0 } else { 2 } {
                let (ours, far) = create_veth(&format!("msc{n}"), &format!("msc{n}far"), 2).expect("a pair");
                set_up_pair((ours, far)).expect("up");
            }
            run(&conf, &args, way == "tap")
        });
        let (document, back) = served.expect("entered");
        assert_eq!(document["metadata"] == "exchange", way == "xdp", "{document}");
        assert!(number(&document, "received") >= 200 && adds_up(&document), "{document}");
        let received = |at: usize| number(&document["sources"][at], "received");
        assert_eq!(number(&document, "copies"), received(1), "one for each of the second one's");
        assert_eq!(number(&document, "sent"), received(0) + 2 * received(1));
        let counted: u64 = document["handlers"][0]["value"].as_str().unwrap().parse().unwrap();
        assert_eq!(counted, received(0));
        // Others, such as the stack, send into the pairs, too.
        let least = |at: usize, sent: u64| back[at] as u64 > sent / 2 && back[at] as u64 <= sent;
        assert!(least(0, 2 * received(1)) && least(1, received(0)), "{back:?} {document}");
    }
}

/// Two stages serve interfaces, files and generated packets as one worker does: packets behind queues leave
/// by the second one, the rest by the first.
#[test]
fn devices_are_served_in_two_stages() {
    if !testing::require() {
        return;
    }
    let files = Files::new("live-stages");
    let (conf, dump) = (files.path("test.click"), files.path("out.pcap"));
    // Headers that are stripped in front of a queue and put back behind it go through the ring with the
    // packet.
    let text = format!(
        "FromDevice(msc0) -> c :: Counter -> Strip(14) -> Paint(3) -> q :: Queue -> CheckPaint(3) \
        -> Unstrip(14) -> ToDevice(msc1);
        FromDevice(msc1) -> t :: Tee(3) -> ToDPDKDevice(msc0); t[1] -> Queue -> Unqueue \
            -> k :: Classifier(12/88b5, -) -> Queue -> n :: Counter -> ToDevice(msc0);
        k[1] -> Discard; t[2] -> Queue -> ToDump({dump}); InfiniteSource(DATA \\<{}>, LIMIT 5) -> ToDump({dump})",
        "01".repeat(60)
    );
    std::fs::write(&conf, text).unwrap();
    for (way, more) in
        ["raw", "tap", "xdp"].into_iter().flat_map(|way| [(way, None), (way, Some("--pipeline"))])
    {
        let args = ["--io", way, "--packets", "200", "--handler", "c.count", "--handler", "n.count"];
        let args: Vec<&str> = args.into_iter().chain(more).collect();
        let served = Namespace::new().expect("a namespace").enter(|| {
            for n in 0..if way == "tap" { 0 } else { 2 } {
                let (ours, far) = create_veth(&format!("msc{n}"), &format!("msc{n}far"), 1).expect("a pair");
                set_up_pair((ours, far)).expect("up");
            }
            run(&conf, &args, way == "tap")
        });
        let (document, back) = served.expect("entered");
        let received = |at: usize| number(&document["sources"][at], "received");
        assert!(number(&document, "received") >= 200 && adds_up(&document), "{way} {more:?}: {document}");
        assert_eq!(number(&document, "copies"), 2 * received(1), "{document}");
        let [first, second] =
            [0, 1].map(|at| document["handlers"][at]["value"].as_str().unwrap().parse::<u64>().unwrap());
        assert!(first == received(0) && second > 0 && second <= received(1), "{document}");
        let sent = received(0) + 2 * received(1) + second + 5;
        assert_eq!(number(&document, "sent"), sent, "{way} {more:?}: {document}");
        let length = std::fs::metadata(&dump).unwrap().len();
        assert!(length >= 24 + (received(1) + 5) * (16 + 60), "{length} bytes, {document}");
        // Others, such as the stack, send into the pairs, too.
        let least = |at: usize, sent: u64| back[at] as u64 > sent / 2 && back[at] as u64 <= sent;
        assert!(least(0, received(1) + second) && least(1, received(0)), "{back:?} {document}");
        let workers = document["by_worker"].as_array().map_or(0, Vec::len);
        assert_eq!(workers, if more.is_some() { 2 } else { 0 }, "{document}");
        if more.is_some() {
            let of = |at: usize| number(&document["by_worker"][at], "received");
            assert!(of(0) > 0 && number(&document["by_worker"][1], "sent") > 0, "{document}");
        }
    }
}

/// `KernelTun` carries IP packets, both ways, and `KernelTap` frames.
#[test]
fn a_tunnel_has_packets_without_frames() {
    if !testing::require() {
        return;
    }
    let files = Files::new("live-tun");
    let conf = files.path("tun.click");
    let text = "t :: KernelTun(10.9.8.1/24, DEVNAME mstun) -> c :: CheckIPHeader(CHECKSUM false) \
        -> IPMirror -> t; c[1] -> Discard;
        e :: KernelTap(10.9.7.1/24, DEVNAME mstap) -> k :: Classifier(12/88b5, -) -> EtherMirror -> e; k[1] -> Discard";
    std::fs::write(&conf, text).unwrap();
    let (document, back, frames) = Namespace::new()
        .expect("a namespace")
        .enter(|| {
            let mut child =
                click(&conf, &["--io", "tap", "--packets", "60", "--handler", "c.drops"]).spawn().unwrap();
            let start = Instant::now();
            let wires = wires(["mstun", "mstap"], start);
            let packet = [
                &[0x45, 0, 0, 28, 0, 1, 0, 0, 9, 17, 0, 0, 10, 9, 8, 1, 10, 9, 8, 2][..],
                &[0, 5, 0, 6, 0, 8, 0, 0],
            ]
            .concat();
            let (mut back, mut frames) = (0, 0);
            while child.try_wait().unwrap().is_none() {
                assert!(start.elapsed() < Duration::from_secs(60), "it never ends");
                let _ = (wires[0].send(&packet), wires[1].send(&FRAME));
                std::thread::sleep(Duration::from_millis(2));
                while let Ok(Some(came)) = wires[0].receive() {
                    back += usize::from(came.len() == 28 && came[12..20] == [10, 9, 8, 2, 10, 9, 8, 1]);
                }
                while let Ok(Some(came)) = wires[1].receive() {
                    frames += usize::from(came == FRAME);
                }
            }
            let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
            assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
            (serde_json::from_slice::<Value>(&stdout).unwrap(), back, frames)
        })
        .expect("entered");
    assert!(adds_up(&document) && number(&document, "received") >= 60, "{document}");
    assert!(back > 0 && frames > 0, "{back} packets, {frames} frames, {document}");
}

/// Packets wait for elements of time between interfaces, and those that still wait at the limit are sent.
fn waits_for_its_time(way: &str, files: &Files) {
    let conf = files.path("timed.click");
    let text = "FromDevice(msc0) -> q :: Queue -> DelayShaper(5ms) -> ToDevice(msc1);
        FromDevice(msc1) -> Queue -> n :: Counter -> Shaper(2000, BURST_SIZE 2) -> ToDevice(msc0)";
    std::fs::write(&conf, text).unwrap();
    let handlers = ["--handler", "q.highwater_length", "--handler", "n.count", "--handler", "q.length"];
    let (document, back) = run(&conf, &[&["--io", way, "--packets", "60"][..], &handlers].concat(), false);
    assert!(adds_up(&document) && number(&document, "queued") == 0, "{document}");
    assert!(number(&document, "received") >= 60 && back.iter().all(|come| *come > 0), "{back:?} {document}");
    let [highest, counted, length] =
        [0, 1, 2].map(|at| document["handlers"][at]["value"].as_str().unwrap().parse::<u64>().unwrap());
    assert!(highest > 0 && length == 0, "{document}");
    assert_eq!(counted, number(&document["sources"][1], "received"));
}

/// Sources send at their times beside interfaces: one that is polled first, and due last, comes last.
fn sources_wait(files: &Files) {
    let [conf, dump] = ["sources.click", "sources.pcap"].map(|name| files.path(name));
    let text = format!(
        "TimedSource(0.3, bbbbbbbbbbbbbbbb, LIMIT 1) -> d :: ToDump({dump}, SNAPLEN 0);
            RatedSource(aaaaaaaaaaaaaaaa, 100, 3) -> t :: Tee(2) -> d; t[1] -> Queue -> ToDevice(out)"
    );
    std::fs::write(&conf, text).unwrap();
    let out = click(&conf, &["--io", "out=raw:msc0"]).output().unwrap();
    let document: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((number(&document, "received"), number(&document, "sent")), (4, 7), "{document}");
    let frames = millstream_lab::pcap::read(Path::new(&dump), 10).unwrap().frames;
    assert_eq!(frames.iter().map(|frame| frame[0]).collect::<Vec<_>>(), b"aaab");
}

/// Packets are sent round after round by an interface, also if all of them were made before the first round.
fn rounds_leave_by_an_interface(files: &Files) {
    let conf = files.path("rounds.click");
    std::fs::write(&conf, "InfiniteSource(LIMIT 4) -> ReplayUnqueue(STOP 3) -> ToDPDKDevice(out)").unwrap();
    let out = click(&conf, &["--io", "out=raw:msc0"]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let document: Value = serde_json::from_slice(&out.stdout).unwrap();
    let counts = ["received", "sent", "queued"].map(|name| number(&document, name));
    assert!(adds_up(&document) && counts == [4, 12, 0], "{document}");
}

/// Without input from an interface, the run ends with the last packet.
fn ends_with_its_packets(files: &Files) {
    let conf = files.path("finite.click");
    std::fs::write(&conf, "InfiniteSource(LIMIT 7) -> Queue -> ToDevice(out)").unwrap();
    let out = click(&conf, &["--io", "out=raw:msc0"]).output().unwrap();
    let document: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((number(&document, "received"), number(&document, "sent")), (7, 7));
    std::fs::write(
        &conf,
        "InfiniteSource(LIMIT 7) -> Queue(5) -> Shaper(100, BURST_SIZE 1) -> ToDevice(out)",
    )
    .unwrap();
    let out = click(&conf, &["--io", "out=raw:msc0"]).output().unwrap();
    let document: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        [number(&document, "received"), number(&document, "sent"), number(&document, "queued")],
        [7, 5, 0]
    );
    assert_eq!(document["dropped"][0]["reason"], "queue_full");
}

#[test]
fn a_card_has_its_address_for_the_run() {
    if !testing::require() {
        return;
    }
    let files = Files::new("live-address");
    let conf = files.path("test.click");
    std::fs::write(&conf, "FromDPDKDevice(card, MAC 02:00:00:00:0a:77) -> Discard").unwrap();
    for way in ["raw", "xdp"] {
        let ran = Namespace::new().expect("a namespace").enter(|| {
            let (ours, far) = create_veth("msm0", "msm0far", 1).expect("a pair");
            set_up_pair((ours, far)).expect("up");
            let address = || interface(ours).expect("described").address;
            let (before, start) = (address(), Instant::now());
            let mut child =
                click(&conf, &["--io", &format!("{way}:msm0"), "--packets", "5"]).spawn().unwrap();
            let far = PacketSocket::open(far).expect("a socket");
            let mut during = false;
            while child.try_wait().unwrap().is_none() {
                assert!(start.elapsed() < Duration::from_secs(60), "it never ends");
                during |= address() == [2, 0, 0, 0, 10, 0x77];
                if during {
                    far.send(&FRAME).expect("sent");
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            let Output { status, stderr, .. } = child.wait_with_output().unwrap();
            assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
            (during, before == address())
        });
        assert_eq!(ran.expect("entered"), (true, true), "{way}: had the address, and its own one back");
    }
}

#[test]
fn interfaces_that_do_not_fit_are_named() {
    let files = Files::new("live-errors");
    let conf = files.path("test.click");
    std::fs::write(&conf, "FromDevice(a) -> Queue -> ToDevice(b)").unwrap();
    for (args, said) in [
        (&["--io", "raw:mscnothere,lo"][..], "mscnothere"),
        (&["--io", "raw"], "a"),
        (&["--io", "raw:lo"], "1 interfaces for [\"a\", \"b\"]"),
        (&["--io", "a=raw:lo"], "nothing is said of device \"b\""),
        (&["--io", "c=tap"], "no device \"c\"; there are [\"a\", \"b\"]"),
        (&["--io", "raw", "--io", "b=pcap:x"], "do not go together"),
        (&["--io", "a=xdp:lo", "--io", "b=raw:lo", "--workers", "2"], "served by one worker"),
        (&["--io", "rwa:lo"], "raw or tap[:INTERFACE]"),
    ] {
        let out = click(&conf, args).output().unwrap();
        let text = flat(&out.stderr);
        assert!(out.status.code() == Some(2) && text.contains(said), "{args:?}: {text}");
    }
}

#[test]
fn no_configuration_with_another_address_of_a_card_takes_the_place_of_one() {
    if !testing::require() {
        return;
    }
    let files = Files::new("live-address-swapped");
    let conf = |name: &str, address: &str| {
        let path = files.path(name);
        let text = format!("FromDPDKDevice(card, MAC 02:00:00:00:0a:{address}) -> c :: Counter -> Discard");
        std::fs::write(&path, text).unwrap();
        path
    };
    let (first, same, other) = (conf("1.click", "77"), conf("2.click", "77"), conf("3.click", "78"));
    let told = Namespace::new().expect("a namespace").enter(|| {
        let (ours, far) = create_veth("mss0", "mss0far", 1).expect("a pair");
        set_up_pair((ours, far)).expect("up");
        let mut spoken = Spoken::new(&first, &files.path("control"), &["--io", "raw:mss0"]);
        let told = [&other, &same].map(|conf| spoken.say(&format!("SWAP {conf}")).0);
        assert_eq!(interface(ours).expect("described").address, [2, 0, 0, 0, 10, 0x77]);
        assert!(spoken.say("WRITE stop").0.starts_with("200"));
        assert!(spoken.end().status.success());
        told
    });
    let [other, same] = told.expect("entered");
    assert!(other.starts_with("520") && other.contains("other addresses"), "{other}");
    assert!(same.starts_with("200"), "{same}");
}

/// Configurations replace each other while frames come, one without stages is refused, and every frame that
/// was sent comes out at the other end.
#[test]
fn stages_are_replaced_without_losing_a_packet() {
    if !testing::require() {
        return;
    }
    const SENT: u64 = 2_000;
    for (way, stages) in [("raw", "--pipeline=3"), ("tap", "--pipeline")] {
        let files = Files::new(&format!("live-swapped-{way}"));
        let conf = |name: &str, behind: &str| {
            let path = files.path(name);
            // Others, such as the stack, send into the interfaces, too.
            let text = format!(
                "FromDevice(msc0) -> k :: Classifier(12/88b5, -) -> c :: Counter {behind} \
                 -> ToDevice(msc1); k[1] -> Discard"
            );
            std::fs::write(&path, text).unwrap();
            path
        };
        // The annotation checked behind the queue differs: a packet of one configuration in the other would
        // be dropped there.
        let painted = |color: u32| {
            format!("-> Paint({color}) -> Queue -> Unqueue -> CheckPaint({color}) -> n :: Counter -> Queue")
        };
        let confs = [conf("1.click", &painted(3)), conf("2.click", &painted(5))];
        let wrong = files.path("3.click");
        std::fs::write(&wrong, "FromDevice(msc0) -> ToDPDKDevice(msc1)").unwrap();
        let served = Namespace::new().expect("a namespace").enter(|| {
            for n in 0..if way == "tap" { 0 } else { 2 } {
                let (ours, far) = create_veth(&format!("msc{n}"), &format!("msc{n}far"), 1).expect("a pair");
                set_up_pair((ours, far)).expect("up");
            }
            let mut spoken = Spoken::new(&confs[0], &files.path("control"), &["--io", way, stages]);
            let start = Instant::now();
            let wires = wires(if way == "tap" { ["msc0", "msc1"] } else { ["msc0far", "msc1far"] }, start);
            let (mut sent, mut back) = (0, 0);
            std::thread::scope(|scope| {
                let swapping = scope.spawn(|| {
                    for at in 0..6 {
                        let (answer, _) = spoken.say(&format!("SWAP {}", confs[(at + 1) % 2]));
                        assert!(answer.starts_with("200"), "{answer}");
                        let (answer, _) = spoken.say(&format!("SWAP {wrong}"));
                        assert!(
                            answer.starts_with("520") && answer.contains("no packet comes to a queue"),
                            "{answer}"
                        );
                    }
                    spoken
                });
                while sent < SENT || !swapping.is_finished() || back < sent {
                    assert!(start.elapsed() < Duration::from_secs(60), "{back} of {sent}");
                    if sent < SENT || !swapping.is_finished() {
                        // No more are under way than sockets have room for.
                        for _ in 0..4.min(128 - (sent - back)) {
                            sent += u64::from(wires[0].send(&FRAME).is_ok());
                        }
                    }
                    std::thread::sleep(Duration::from_millis(1));
                    back += come(&wires[1..], false)[0] as u64;
                }
                let mut spoken = swapping.join().expect("no panic");
                assert_eq!([spoken.number("c.count"), spoken.number("n.count")], [sent; 2]);
                assert!(spoken.say("WRITE stop").0.starts_with("200"));
                let document: Value = serde_json::from_slice(&spoken.end().stdout).unwrap();
                (document, sent, back)
            })
        });
        let (document, sent, back) = served.expect("entered");
        assert!(adds_up(&document), "{document}");
        assert_eq!(
            (number(&document, "swaps"), number(&document, "sent"), back),
            (6, sent, sent),
            "{document}"
        );
    }
}
