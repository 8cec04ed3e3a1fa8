//! `millstream native` as a user runs it: files in and out, tables, the account, exit codes.

mod common;
#[path = "common/flat.rs"]
mod flat;
#[path = "common/scrape.rs"]
mod scrape;
#[path = "common/wires.rs"]
mod wires;

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use millstream_isa::MapType;
use millstream_kernel::{
    KernelMap, MapSpec, Namespace, PacketSocket, UpdateMode, create_veth, map_flags, query_xdp, set_up_pair,
    testing,
};
use millstream_lab::workload::BuiltinWorkload;
use millstream_object::Object;
use millstream_programs::ROUTER;
use millstream_programs::traffic::FlowLocality;
use serde_json::Value;

use common::Files;
use flat::flat;
use wires::wires;

fn native(arguments: &[&str]) -> (i32, String, String) {
    millstream(&[&["native"], arguments].concat())
}

fn number(document: &Value, name: &str) -> u64 {
    document[name].as_u64().unwrap_or_else(|| panic!("{name} in {document}"))
}

fn dropped(document: &Value) -> u64 {
    document["dropped"].as_array().unwrap().iter().map(|d| number(d, "packets")).sum()
}

/// A capture of frames of these lengths, filled with one byte, which our programs do not take for IP.
fn capture(lengths: &[usize]) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        out.extend(word.to_le_bytes());
    }
    for (at, &len) in lengths.iter().enumerate() {
        for word in [at as u32, 5, len as u32, len as u32] {
            out.extend(word.to_le_bytes());
        }
        out.extend(std::iter::repeat_n(0x77u8, len));
    }
    out
}

#[test]
fn every_packet_from_memory_is_accounted_for() {
    for plane in ["router", "balancer"] {
        let (exit, out, errors) = native(&[&format!("builtin:{plane}"), "--packets", "20000", "--json"]);
        assert_eq!((exit, errors.as_str()), (0, ""));
        let document: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(number(&document, "received"), 20_000);
        assert_eq!(number(&document, "sent") + dropped(&document), 20_000);
        assert!(number(&document, "sent") > 19_000, "{document}");
        assert!(document["ns_per_packet"].as_f64().unwrap() > 0.0);
    }
    let (exit, out, _) = native(&["builtin:router", "--packets", "100"]);
    assert!(exit == 0 && out.contains("received          100"), "{out}");
}

#[test]
fn adaptation_is_reported_and_changes_no_account() {
    let run = |flags: &[&str]| {
        let common = ["builtin:router:20", "--packets", "200000", "--json"];
        let (exit, out, errors) = native(&[&common, flags].concat());
        assert_eq!((exit, errors.as_str()), (0, ""));
        serde_json::from_str::<Value>(&out).unwrap()
    };
    let plain = run(&[]);
    assert!(plain["adaptation"].is_null());
    for (flag, suggests) in [("--adapt", false), ("--adapt=install", false), ("--adapt=suggest", true)] {
        let document = run(&[flag]);
        let adaptation = &document["adaptation"];
        assert_eq!((number(adaptation, "schema"), &adaptation["suggests"]), (1, &suggests.into()));
        assert_eq!((number(adaptation, "differences"), &adaptation["failure"]), (0, &Value::Null));
        assert!(!suggests || number(adaptation, "swaps") == 0);
        for name in ["received", "sent", "dropped"] {
            assert_eq!(document[name], plain[name], "{flag}: {name}");
        }
    }
    let (exit, ..) = native(&["builtin:router:20", "--adapt=perhaps"]);
    assert_eq!(exit, 2);
}

#[test]
fn captures_go_in_and_out() {
    let files = Files::new("native-captures");
    let (input, output) = (files.path("in.pcap"), files.path("out.pcap"));
    std::fs::write(&input, capture(&[60, 9, 64])).unwrap();
    let io = format!("pcap:{input},{output}");
    let (exit, out, errors) = native(&["builtin:router:100", "--io", &io, "--json"]);
    assert_eq!((exit, errors.as_str()), (0, ""));
    let document: Value = serde_json::from_str(&out).unwrap();
    // Frames of 0x77 are not IPv4: they go to the stack. One is too short for any program.
    assert_eq!((number(&document, "received"), number(&document, "sent"), dropped(&document)), (3, 0, 3));
    assert_eq!(std::fs::read(&output).unwrap().len(), 24);

    let (exit, _, errors) = native(&["builtin:router:100", "--io", "pcap:/does/not/exist"]);
    assert!(exit == 2 && errors.contains("/does/not/exist"), "{errors}");
    let (exit, _, errors) = native(&["builtin:router:100", "--io", "wire"]);
    assert!(exit == 2 && errors.contains("pcap:IN"), "{errors}");
}

#[test]
fn maps_are_filled_from_files() {
    let files = Files::new("native-maps");
    let (good, short) = (files.path("good.json"), files.path("short.json"));
    let word = |n: u8| format!(r#"["0x{n:02x}","0x00","0x00","0x00"]"#);
    let key = r#"["0x08","0x00","0x00","0x00","0x0a","0x00","0x00","0x00"]"#;
    std::fs::write(&good, format!(r#"[{{"key":{key},"value":{}}}]"#, word(0))).unwrap();
    std::fs::write(&short, format!(r#"[{{"key":{},"value":{}}}]"#, word(1), word(1))).unwrap();
    let run = |map: String| native(&["builtin:router:100", "--packets", "10", "--json", "--map", &map]);
    let (exit, out, errors) = run(format!("routes={good}"));
    assert_eq!((exit, errors.as_str()), (0, ""));
    let document: Value = serde_json::from_str(&out).unwrap();
    let routes = document["maps"].as_array().unwrap().iter().find(|m| m["name"] == "routes").unwrap();
    assert_eq!(number(routes, "entries"), 101);
    for (map, reason) in [
        (format!("routes={short}"), "keys of 8"),
        (format!("nothing={good}"), "no map"),
        (good.clone(), "NAME=FILE"),
        ("routes=/does/not/exist".to_owned(), "/does/not/exist"),
    ] {
        let (exit, _, errors) = run(map);
        assert!(exit == 2 && errors.contains(reason), "{reason}: {errors}");
    }
}

/// A program that runs until this is dropped.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn millstream(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_millstream")).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn maps_of_a_program_that_runs_are_looked_at_and_changed() {
    for (workers, flags) in [("1", &[][..]), ("2", &[]), ("1", &["--adapt"])] {
        let files = Files::new(&format!("native-control-{workers}{}", flags.concat()));
        let socket = files.path("control.sock");
        let command = Command::new(env!("CARGO_BIN_EXE_millstream"))
            .args(["native", "builtin:router:100", "--packets", "1000000000000", "--workers", workers])
            .args(["--control", &socket])
            .args(flags)
            .stdout(Stdio::null())
            .spawn();
        let _running = Running(command.expect("it starts"));
        let ask = |words: &str| {
            let words: Vec<&str> = words.split(' ').collect();
            millstream(&[&["map", "--socket", &socket, "--json"], words.as_slice()].concat())
        };
        let json = |words: &str| {
            let (exit, out, errors) = ask(words);
            assert_eq!(exit, 0, "{words}: {errors}");
            serde_json::from_str::<Value>(&out).unwrap_or_else(|e| panic!("{words}: {e}: {out}"))
        };
        let stats = || {
            let (exit, out, errors) = millstream(&["stats", "--socket", &socket, "--json"]);
            assert_eq!(exit, 0, "{errors}");
            serde_json::from_str::<Value>(&out).expect("JSON")
        };
        let start = Instant::now();
        while ask("list").0 != 0 || number(&stats(), "sent") == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "it never answers");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(stats()["adaptation"].is_object(), !flags.is_empty());
        let maps = json("list");
        let routes =
            maps.as_array().unwrap().iter().find(|m| m["name"] == "routes").expect("no map \"nothing\"");
        assert_eq!((&routes["type"], number(routes, "bytes_key")), (&"lpm_trie".into(), 8));
        assert_eq!(json(&format!("show id {}", routes["id"])), *routes);

        // In the format of `native --map`, which bpftool writes.
        let all = json("dump routes");
        let all = all.as_array().unwrap();
        assert_eq!(all.len(), 100);
        let hex = |bytes: &Value| {
            let bytes = bytes.as_array().unwrap().iter().map(|b| b.as_str().unwrap());
            bytes.collect::<Vec<_>>().join(" ")
        };
        let key = hex(&all[7]["key"]);
        assert_eq!(json(&format!("lookup routes key {key}")), all[7]);
        let next = json(&format!("getnext routes key {key}"));
        assert_eq!((&next["key"], &next["next_key"]), (&all[7]["key"], &all[8]["key"]));
        assert_eq!(json("getnext routes")["next_key"], all[0]["key"]);
        let (exit, _, errors) = ask(&format!("getnext routes key {}", hex(&all[99]["key"])));
        assert!(exit == 1 && errors.contains("ENOENT"), "{exit} {errors}");

        // Packets see the changes.
        for route in all {
            assert_eq!(json(&format!("delete routes key {}", hex(&route["key"]))), Value::Null);
        }
        assert_eq!(json("dump routes"), Value::Array(Vec::new()));
        let sent = number(&stats(), "sent");
        let before = number(&stats(), "received");
        let start = Instant::now();
        while number(&stats(), "received") < before + 100_000 {
            assert!(start.elapsed() < Duration::from_secs(60), "it stands still");
        }
        assert_eq!(number(&stats(), "sent"), sent, "there is no route any more");
        let value = hex(&all[7]["value"]);
        let (exit, _, errors) = ask(&format!("update routes key {key} value {value} exist"));
        assert!(exit == 1 && errors.contains("ENOENT"), "{exit} {errors}");
        assert_eq!(json(&format!("update routes key {key} value {value} noexist")), Value::Null);
        let (exit, _, errors) = ask(&format!("update routes key {key} value {value} noexist"));
        assert!(exit == 1 && errors.contains("EEXIST"), "{exit} {errors}");
        while number(&stats(), "sent") == sent {
            assert!(start.elapsed() < Duration::from_secs(60), "the new route is not found");
        }

        // Errors, and missing entries.
        assert_eq!(ask("lookup routes key 8 0 0 0 1 2 3 4").0, 1);
        for (words, reason) in [
            ("lookup routes key 1", "keys of 8 bytes"),
            ("update routes key 1 2 3 4 5 6 7 8 value 1", "values of 4 bytes"),
            ("dump nothing", "there is no map \"nothing\""),
            ("show id 99", "with id 99"),
            ("frobnicate", "lookup MAP key DATA"),
        ] {
            let (exit, out, errors) = ask(words);
            assert!((exit, out.as_str()) == (2, "") && errors.contains(reason), "{words}: {exit} {errors}");
        }
        let (exit, out, _) = millstream(&["map", "--socket", &socket, "dump", "routes"]);
        assert_eq!((exit, out.lines().count()), (0, 2), "{out}");

        // The account of all workers, and of each.
        let last = stats();
        let each = last["workers"].as_array().unwrap();
        assert_eq!(each.len().to_string(), workers);
        assert!(each.iter().all(|worker| number(worker, "received") > 0), "{last}");
        let latency = &last["latency_ns"];
        let [p50, p99, p999] = ["p50", "p99", "p999"].map(|share| number(latency, share));
        assert!(0 < p50 && p50 <= p99 && p99 <= p999, "{latency}");
    }
}

/// An array of the kernel like the router's next hops.
fn next_hops(flags: u32, more: u32) -> KernelMap {
    let object = Object::parse(ROUTER.name, ROUTER.object).expect("ours");
    let declared =
        object.maps.iter().find(|map| map.name == "next_hops").expect("it has next hops").spec.clone();
    let spec = MapSpec {
        name: "next_hops",
        map_type: MapType::ARRAY,
        key_size: 4,
        value_size: declared.value_size,
        max_entries: declared.max_entries + more,
        flags,
        ..MapSpec::default()
    };
    KernelMap::create(&spec).expect("an array")
}

#[test]
fn metrics_are_those_of_the_statistics() {
    for workers in [1, 2] {
        let address = scrape::free_address();
        let arguments = ["native", "builtin:router:100", "--packets", "1000000000000", "--metrics", &address];
        let command = Command::new(env!("CARGO_BIN_EXE_millstream"))
            .args([&arguments[..], &["--workers", &workers.to_string()]].concat())
            .stdout(Stdio::null())
            .spawn();
        let _running = Running(command.expect("it starts"));
        let start = Instant::now();
        let text = loop {
            let text = scrape::scrape(&address);
            let all_work = (0..workers).all(|w| {
                scrape::value(&text, &format!("millstream_received_total{{worker=\"{w}\"}}")) > 1000.0
            });
            if all_work {
                break text;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{text}");
        };
        let value = |name: &str| scrape::value(&text, name);
        let sum = |name: &str| (0..workers).map(|w| value(&format!("{name}{{worker=\"{w}\"}}"))).sum::<f64>();
        assert!(sum("millstream_sent_total") > 0.0 && sum("millstream_busy_seconds_total") > 0.0, "{text}");
        assert_eq!(value("millstream_map_entries{map=\"routes\"}"), 100.0);
        assert_eq!(value("millstream_dropped_total{element=\"\",reason=\"no_verdict\"}"), 0.0);
        let sampled = value("millstream_latency_seconds_count");
        assert!(sampled > 0.0 && value("millstream_latency_seconds_sum") > 0.0, "{text}");
        assert_eq!(value("millstream_latency_seconds_bucket{le=\"+Inf\"}"), sampled);
    }
}

#[test]
fn an_array_of_the_kernels_is_the_programs_at_once() {
    if !testing::require() {
        return;
    }
    let files = Files::new("native-share");
    let (socket, shared) = (files.path("control.sock"), next_hops(map_flags::MMAPABLE, 0));
    let command = Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(["native", "builtin:router:100", "--packets", "1000000000000", "--control", &socket])
        .args(["--share", &format!("next_hops=id:{}", shared.id())])
        .stdout(Stdio::null())
        .spawn();
    let _running = Running(command.expect("it starts"));
    let ask = |words: &[&str]| {
        let (exit, out, _) = millstream(&[words, &["--socket", &socket, "--json"]].concat());
        (exit == 0).then(|| serde_json::from_str::<Value>(&out).expect("JSON"))
    };
    let start = Instant::now();
    let until = |enough: &dyn Fn(&Value) -> bool| loop {
        if let Some(stats) = ask(&["stats"]).filter(|stats| enough(stats)) {
            break stats;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it never comes to that");
        std::thread::sleep(Duration::from_millis(5));
    };
    let stats = until(&|stats| number(stats, "received") > 10_000);
    assert_eq!(
        number(&stats, "sent"),
        0,
        "there is no next hop: generated ones are not put into a map that others have"
    );
    let router: BuiltinWorkload = "builtin:router:100".parse().expect("a name");
    let load = router.workload([1, 2], 64, FlowLocality::Pareto { alpha: 1.0, beta: 0.0 }).expect("tables");
    for entry in load.entries.iter().filter(|entry| entry.map == "next_hops") {
        shared.update(&entry.key, &entry.value, UpdateMode::Any).expect("the kernel takes it");
    }
    until(&|stats| number(stats, "sent") > 0);
    // The other way.
    let value = vec!["9"; shared.info().value_size as usize];
    let words = [&["map", "update", "next_hops", "key", "0", "0", "0", "0", "value"][..], &value].concat();
    ask(&words).expect("it is set");
    assert_eq!(shared.lookup(&[0; 4]).expect("asked"), Some(vec![9; value.len()]));
}

#[test]
fn maps_that_cannot_be_shared_are_refused_with_the_reason() {
    if !testing::require() {
        return;
    }
    let (plain, longer, good) =
        (next_hops(0, 0), next_hops(map_flags::MMAPABLE, 1), next_hops(map_flags::MMAPABLE, 0));
    let frozen = next_hops(map_flags::MMAPABLE, 0);
    frozen.freeze().expect("it is frozen");
    for (share, reason) in [
        (format!("next_hops=id:{}", plain.id()), "BPF_F_MMAPABLE"),
        (format!("next_hops=id:{}", longer.id()), "entries of"),
        (format!("next_hops=id:{}", frozen.id()), "mapping"),
        (format!("routes=id:{}", good.id()), "of type lpm_trie"),
        (format!("nothing=id:{}", good.id()), "no map \"nothing\""),
        ("next_hops=id:seven".to_owned(), "no id of a map"),
        ("next_hops=/does/not/exist".to_owned(), "/does/not/exist"),
        ("next_hops".to_owned(), "NAME=PATH"),
    ] {
        let (exit, out, errors) = native(&["builtin:router:100", "--packets", "10", "--share", &share]);
        let said = flat(errors.as_bytes());
        assert!((exit, out.as_str()) == (2, "") && said.contains(reason), "{share}: {exit} {errors}");
    }
}

#[test]
fn sockets_that_nobody_listens_at_are_named() {
    let files = Files::new("native-nobody");
    let nobody = files.path("nobody.sock");
    for command in [&["map", "list", "--socket", &nobody][..], &["stats", "--socket", &nobody]] {
        let (exit, out, errors) = millstream(command);
        let said = flat(errors.as_bytes());
        assert!((exit, out.as_str()) == (2, "") && said.contains("no process answers"), "{exit} {errors}");
    }
    let plain = files.path("plain");
    std::fs::write(&plain, "").unwrap();
    let (exit, _, errors) = native(&["builtin:router:100", "--packets", "10", "--control", &plain]);
    assert!(exit == 2 && flat(errors.as_bytes()).contains("is no socket"), "{exit} {errors}");
}

/// Traces of a router and of a configuration, which run meanwhile.
#[test]
fn traces_are_made_of_samples_of_programs_that_run() {
    let files = Files::new("native-sample");
    let configuration = files.path("forward.click");
    std::fs::write(&configuration, "InfiniteSource(LENGTH 60, LIMIT -1) -> c :: Counter -> Discard;")
        .unwrap();
    let socket = files.path("sample.sock");
    for (command, flows) in [
        (vec!["click", &configuration, "-u", &socket, "--packets", "1000000000000"], 1),
        (vec!["native", "builtin:router:100", "--packets", "1000000000000", "--control", &socket], 2),
    ] {
        let running = Command::new(env!("CARGO_BIN_EXE_millstream"))
            .args(&command)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let _running = Running(running.expect("it starts"));
        let trace = files.path("trace.pcap");
        let sample = |more: &[&str]| {
            let request = ["sample", "--socket", &socket, "-o", &trace, "--windows", "8", "--interval", "2"];
            millstream(&[&request[..], &["--packets", "5000", "--json"], more].concat())
        };
        let start = Instant::now();
        let (exit, out, errors) = loop {
            let answer = sample(&[]);
            if answer.0 != 2 {
                break answer;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "it never answers: {}", answer.2);
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(exit, 0, "{command:?}: {errors}");
        let report: Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!((number(&report["estimate"], "windows"), number(&report["trace"], "packets")), (8, 5000));
        assert!(number(&report["trace"], "flows") >= flows, "{report}");
        if flows > 1 {
            let (exit, out, errors) =
                native(&["builtin:router:100", "--traffic", &trace, "--packets", "5000", "--json"]);
            assert_eq!(exit, 0, "{errors}");
            let ran: Value = serde_json::from_str(&out).expect("JSON");
            assert!(number(&ran, "sent") > 4500, "{ran}");
            let tuned =
                ["tune", "builtin:router:100", "--sample", &socket, "--budget", "1s", "--trials", "1"];
            let (exit, _, errors) = millstream(&tuned);
            // On a busy machine the default is not measured in time.
            let is_late = exit == 2 && errors.contains("it took more than");
            assert!(exit == 0 || exit == 3 || is_late, "{exit}: {errors}");
            let (exit, out, errors) = sample(&["--anonymize"]);
            assert_eq!(exit, 0, "{errors}");
            assert!(serde_json::from_str::<Value>(&out).expect("JSON")["anonymized"].as_bool().unwrap());
        }
        std::fs::remove_file(&socket).ok();
    }
}

/// The router serves two interfaces of so many queues over this transport; packets sent into them from
/// elsewhere are forwarded, and counted. Returns the report, and the number of packets that came back.
fn serve(way: &str, queues: u32, more: &[&str]) -> (Value, u64) {
    let served = Namespace::new().expect("a namespace").enter(|| {
        let mut ports = [1; 2];
        if way != "tap" {
            for (n, port) in ports.iter_mut().enumerate() {
                let (ours, far) =
                    create_veth(&format!("msn{n}"), &format!("msn{n}far"), queues).expect("a pair");
                set_up_pair((ours, far)).expect("up");
                *port = ours;
            }
        }
        let router: BuiltinWorkload = "builtin:router:100".parse().expect("a name");
        let load =
            router.workload(ports, 64, FlowLocality::Pareto { alpha: 1.0, beta: 0.0 }).expect("tables");
        let io = format!("{way}:msn0,msn1");
        let command = Command::new(env!("CARGO_BIN_EXE_millstream"))
            .args(["native", "builtin:router:100", "--io", &io, "--packets", "400", "--json"])
            .args(more)
            .stdout(Stdio::piped())
            .spawn();
        let mut child = command.expect("it starts");
        let start = Instant::now();
        let wires = wires(if way == "tap" { ["msn0", "msn1"] } else { ["msn0far", "msn1far"] }, start);
        // Earlier packets are kept, and would come back all at once: more than the sockets have room for.
        while way == "xdp" && ports.iter().any(|&port| query_xdp(port).expect("asked").is_none()) {
            assert!(start.elapsed() < Duration::from_secs(60), "it never takes them");
            std::thread::sleep(Duration::from_millis(5));
        }
        let (mut back, mut rounds) = (0, 0);
        let read = |wires: &[PacketSocket], back: &mut u64| {
            for wire in wires {
                loop {
                    match wire.receive() {
                        Ok(Some(frame)) => {
                            *back += u64::from(load.flows.packets.iter().any(|f| f[26..] == frame[26..]));
                        }
                        Ok(None) => break,
                        // An interface that was created for the run goes with it, which is reported once, in
                        // front of earlier packets.
                        Err(e) => assert!(way == "tap", "{e}"),
                    }
                }
            }
        };
        while child.try_wait().expect("it is ours").is_none() {
            assert!(start.elapsed() < Duration::from_secs(60), "it never ends");
            // An interface that was created for the run keeps packets until it is served.
            if back > 0 || rounds < 8 || way != "tap" {
                rounds += 1;
                for frame in load.flows.packets.iter().take(8) {
                    let sent = wires[0].send(frame);
                    assert!(sent.is_ok() || way == "tap", "{sent:?}");
                }
            }
            std::thread::sleep(Duration::from_millis(2));
            read(&wires, &mut back);
        }
        read(&wires, &mut back);
        let out = child.wait_with_output().expect("it has ended");
        assert!(out.status.success());
        (serde_json::from_slice::<Value>(&out.stdout).expect("JSON"), back)
    });
    served.expect("entered")
}

#[test]
fn interfaces_are_served() {
    if !testing::require() {
        return;
    }
    let exchange: &[&str] = &[];
    for (way, queues, more, metadata) in [
        ("xdp", 1, exchange, "exchange"),
        ("xdp", 1, &["--metadata", "copy"], "copy"),
        ("xdp", 2, &["--zero-copy", "never"], "exchange"),
        ("xdp", 1, &["--busy-poll", "20", "--busy-poll-budget", "16"], "exchange"),
        ("xdp", 2, &["--workers", "2"], "exchange"),
        ("xdp", 3, &["--workers", "2", "--metadata", "copy"], "copy"),
        ("raw", 1, &[], ""),
        ("raw", 1, &["--workers", "2"], ""),
        ("tap", 1, &["--metadata", "copy"], ""),
        ("tap", 1, &["--workers", "2"], ""),
    ] {
        let (document, back) = serve(way, queues, more);
        let said = document["metadata"].as_str().unwrap_or_default();
        assert_eq!(said, metadata, "{way} {more:?}: {document}");
        if way == "xdp" {
            let interface = &document["interfaces"][1];
            assert_eq!((&interface["name"], number(interface, "queues")), (&"msn1".into(), queues.into()));
            assert_eq!((&interface["zero_copy"], &interface["mode"]), (&false.into(), &"driver".into()));
        }
        assert!(number(&document, "received") >= 400, "{document}");
        assert!(number(&document, "sent") >= 300, "{document}");
        assert_eq!(number(&document, "sent") + dropped(&document), number(&document, "received"));
        assert!(
            document["latency_ns"]["p50"].as_u64() <= document["latency_ns"]["p999"].as_u64(),
            "{document}"
        );
        if let Some(workers) = document["by_worker"].as_array() {
            let each = |what: &str| workers.iter().map(|worker| number(worker, what)).sum::<u64>();
            assert_eq!(
                (each("received"), each("sent")),
                (number(&document, "received"), number(&document, "sent"))
            );
            assert_eq!((each("dropped"), workers.len()), (dropped(&document), 2));
        }
        assert_eq!(back, number(&document, "sent"), "{way} {more:?}: all that was sent came back");
    }
}

#[test]
fn an_interface_that_cannot_be_taken_is_named() {
    let (exit, out, errors) = native(&["builtin:router", "--io", "xdp:msnothere"]);
    assert!((exit, out.as_str()) == (2, "") && errors.contains("msnothere"), "{exit} {errors}");
    for (flags, io, reason) in [
        (["--metadata", "exchange"], "mem", "copy is"),
        (["--metadata", "overlay"], "xdp:msnothere", "msnothere"),
        (["--metadata", "exchange"], "tap:msnothere", "copy is"),
        (["--busy-poll", "20"], "raw:msnothere", "--io xdp"),
        (["--zero-copy", "never"], "mem", "--io xdp"),
        (["--busy-poll", "0"], "xdp:msnothere", "1..=1000000"),
    ] {
        let (exit, out, errors) = native(&["builtin:router", "--io", io, flags[0], flags[1]]);
        assert!((exit, out.as_str()) == (2, "") && errors.contains(reason), "{flags:?}: {exit} {errors}");
    }
    let (exit, _, errors) = native(&["builtin:router", "--io", "tape:0"]);
    assert!(exit == 2 && errors.contains("xdp:INTERFACE"), "{exit} {errors}");
}
