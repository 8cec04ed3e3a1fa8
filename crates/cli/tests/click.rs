//! `millstream click` as a user calls it.

#[path = "common/capture.rs"]
mod capture;
mod common;
#[path = "common/flat.rs"]
mod flat;
#[path = "common/scrape.rs"]
mod scrape;
#[path = "common/spoken.rs"]
mod spoken;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

use capture::capture;
use common::Files;
use flat::flat;
use millstream_kernel::{Namespace, interface_index, set_up, testing};
use spoken::Spoken;

/// Runs this configuration; `name` is the test's.
fn click(name: &str, text: &str, args: &[&str]) -> Output {
    let files = Files::new(&format!("click-{name}"));
    let conf = files.path("test.click");
    std::fs::write(&conf, text).expect("written");
    Command::new(env!("CARGO_BIN_EXE_millstream")).arg("click").arg(&conf).args(args).output().expect("run")
}

#[test]
fn a_configuration_runs_and_its_account_adds_up() {
    let text = "define($n 1000) InfiniteSource(DATA \\<00 01>, LIMIT $n) -> t :: Tee(2) -> c :: Counter \
        -> Queue -> ToDevice(eth0); t[1] -> Discard";
    let out = click("account", text, &["n=500", "--json", "--handler", "c.count", "--handler", "c.class"]);
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let dropped: u64 =
        report["dropped"].as_array().expect("rows").iter().map(|r| r["packets"].as_u64().expect("n")).sum();
    assert_eq!((report["received"].as_u64(), report["copies"].as_u64()), (Some(500), Some(500)));
    assert_eq!((report["sent"].as_u64(), dropped), (Some(500), 500));
    assert_eq!(
        (report["handlers"][0]["value"].as_str(), report["handlers"][1]["value"].as_str()),
        (Some("500"), Some("Counter"))
    );
}

#[test]
fn interfaces_of_this_machine_lend_their_names() {
    if !testing::require() {
        return;
    }
    let text = "InfiniteSource(LIMIT 1) -> MarkIPHeader \
        -> rt :: LinearIPLookup(lo 0, lo:ipnet 0, lo:bcast 0) -> Discard";
    let run = || {
        set_up(interface_index("lo").unwrap()).unwrap();
        click("interfaces", text, &["--json", "--handler", "rt.table"])
    };
    let out = Namespace::new().unwrap().enter(run).unwrap();
    assert!(out.status.success(), "{}", flat(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let table = report["handlers"][0]["value"].as_str().expect("text");
    let mut routes: Vec<&str> =
        table.lines().filter_map(|line| line.split_once('\t')).map(|(to, _)| to).collect();
    routes.sort_unstable();
    assert_eq!(routes, ["127.0.0.0/8", "127.0.0.1/32", "127.255.255.255/32"]);
}

/// Annotations and stripped headers that are needed behind queues, copies, a queue behind another, a path
/// beside all queues, and a table that one stage fills and the other one reads.
const QUEUES: &str =
    "FromDump($IN, STOP true) -> c :: Classifier(12/0800, -); c[1] -> ToDump($OTHER, SNAPLEN 0);
    c[0] -> Paint(3) -> Strip(14) -> k :: CheckIPHeader(CHECKSUM false) \
        -> rw :: IPRewriter(pattern 192.0.2.1 1024-65535# - - 0 1) -> q :: Queue -> Unqueue
        -> p :: CheckPaint(3) -> Unstrip(14) -> t :: Tee(2) -> n :: Counter -> ToDump($OUT, SNAPLEN 0);
    t[1] -> Queue(5) -> Unqueue -> Strip(14) -> m :: Counter -> DecIPTTL -> Discard; p[1] -> Discard; \
        rw[1] -> q; k[1] -> Discard;";

#[test]
fn what_stages_send_is_what_one_worker_does() {
    let files = Files::new("click-pipeline");
    let [conf, input] = ["conf.click", "in.pcap"].map(|name| files.path(name));
    std::fs::write(&conf, QUEUES).expect("written");
    let frames = millstream_programs::packet::partly_broken(&mut millstream_rng::Rng::new(5), 5_000);
    std::fs::write(&input, capture(&frames)).expect("written");
    let run = |name: &str, more: &[&str]| {
        let [out, other] = ["out", "other"].map(|kind| files.path(&format!("{name}-{kind}.pcap")));
        let variables = [format!("IN={input}"), format!("OUT={out}"), format!("OTHER={other}")];
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        let handlers = ["--handler", "n.count", "--handler", "m.count", "--json"];
        let done =
            command.arg("click").arg(&conf).args(&variables).args(handlers).args(more).output().expect("run");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
        let dropped: u64 = report["dropped"]
            .as_array()
            .expect("rows")
            .iter()
            .map(|r| r["packets"].as_u64().expect("n"))
            .sum();
        let [received, copies, sent] =
            ["received", "copies", "sent"].map(|part| report[part].as_u64().expect("n"));
        assert_eq!(received + copies, sent + dropped, "{name}");
        let kept = ["received", "copies", "sent", "dropped", "handlers"].map(|part| report[part].clone());
        (kept, std::fs::read(out).expect("there"), std::fs::read(other).expect("there"))
    };
    let one = run("one", &[]);
    assert!(one.1.len() > 50_000 && one.2.len() > 1_000, "{} {}", one.1.len(), one.2.len());
    for (stages, batch) in [("", "1"), ("=2", "7"), ("=3", "1"), ("=3", "64")] {
        let (flag, schedule) = (format!("--pipeline{stages}"), format!("batch={batch}"));
        let more = [&*flag, "--schedule", &schedule];
        assert!(run(&format!("stages{stages}-{batch}"), &more) == one, "{more:?}");
    }
}

#[test]
fn packets_wait_for_elements_of_time_the_same_in_every_run() {
    let files = Files::new("click-timed");
    let [conf, input] = ["conf.click", "in.pcap"].map(|name| files.path(name));
    // Ten packets, a second apart. The file shows the delay of a fifth of a second, and packets that find a
    // queue full are dropped.
    let text =
        "FromDump($IN, STOP true) -> t :: Tee(3) -> Queue -> DelayUnqueue(200ms) -> ToDump($OUT, SNAPLEN 0);
        t[1] -> q :: Queue(2) -> RatedUnqueue(1, BURST_SIZE 1) -> Discard; \
            t[2] -> Queue(5) -> Shaper(0, BURST_SIZE 1) -> Unqueue -> Discard";
    std::fs::write(&conf, text).expect("written");
    let frames: Vec<Vec<u8>> = (0..10).map(|n| vec![n; 60]).collect();
    std::fs::write(&input, capture(&frames)).expect("written");
    let run = |name: &str, more: &[&str]| {
        let out = files.path(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.arg("click").arg(&conf).args([format!("IN={input}"), format!("OUT={out}")]);
        let done = command.args(["--json", "--handler", "q.drops"]).args(more).output().expect("run");
        assert_eq!((done.status.code(), flat(&done.stderr)), (Some(0), String::new()));
        let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
        let part = |name: &str| report[name].clone();
        let parts = ["received", "copies", "sent", "dropped", "queued", "handlers"].map(part);
        (parts, std::fs::read(out).expect("there"))
    };
    let (parts, written) = run("one.pcap", &[]);
    let dropped: u64 =
        parts[3].as_array().expect("rows").iter().map(|row| row["packets"].as_u64().expect("n")).sum();
    // 10 leave late and 10 at their rate; of those at rate zero one leaves, as the bucket is full at first,
    // and five stay.
    assert_eq!([&parts[0], &parts[1], &parts[2], &parts[4]].map(|n| n.as_u64()), [10, 20, 10, 5].map(Some));
    assert_eq!((dropped, parts[5][0]["value"].as_str()), (10 + 1 + 4, Some("0")));
    let times = written[24..].chunks(16 + 60).map(|packet| {
        let word = |at: usize| packet[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        (word(0), word(4), packet[16])
    });
    // Times in the file are in microseconds, and written ones in nanoseconds.
    let late = (0..10).map(|n| (u32::from(n), 200_005_000, n));
    assert_eq!(times.collect::<Vec<_>>(), late.collect::<Vec<_>>());
    assert!(run("two.pcap", &[]) == (parts, written));
}

#[test]
fn time_between_packets_passes_where_somebody_wants_it_and_makes_no_difference() {
    let text =
        "InfiniteSource(LIMIT 20) -> q :: Queue(10) -> RatedUnqueue(1000, BURST_SIZE 1) -> d :: Discard";
    let run = |name: &str, args: &[&str]| {
        let handlers = ["--json", "--handler", "q.drops", "--handler", "d.count"];
        let out = click(name, text, &[&handlers[..], args].concat());
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
        [0, 1].map(|at| report["handlers"][at]["value"].as_str().map(str::to_owned))
    };
    let virtually = run("virtual", &[]);
    // The source waits while the queue is full.
    assert_eq!(virtually, ["0", "20"].map(|n| Some(n.to_owned())));
    assert_eq!(run("real", &["--real-time"]), virtually);
    let out = click("timed-workers", text, &["--workers", "2"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(flat(&out.stderr).contains("packets wait for their time in one order"), "{}", flat(&out.stderr));
}

#[test]
fn sources_send_at_their_times_and_no_time_passes_unless_it_is_asked_for() {
    const MS: u64 = 1_000_000;
    let files = Files::new("click-sources-files");
    let [input, ticks, echoes, flows, both] =
        ["in.pcap", "ticks.pcap", "echoes.pcap", "flows.pcap", "both.pcap"].map(|name| files.path(name));
    std::fs::write(&input, capture(&vec![vec![7; 60]; 3])).expect("written");
    let read = |path: &str| {
        let capture = millstream_lab::pcap::read(Path::new(path), 1000).expect("a capture");
        let first = capture.frames.iter().map(|frame| frame[0]).collect::<Vec<_>>();
        let since = capture.times.iter().map(|time| time - capture.times[0]).collect::<Vec<_>>();
        (first, since, capture.times[0])
    };
    // Beside a capture time begins with that: 5 us, 1.000005 s and 2.000005 s.
    let text = format!(
        "r :: RatedSource(RATE 10, LIMIT 50) -> ToDevice(out); TimedSource(0.25, LIMIT 8) -> ToDump({ticks}, SNAPLEN 0);
            ICMPPingSource(10.0.0.1, 10.0.0.2, LIMIT 3) -> ToDump({echoes}, SNAPLEN 0); \
                FromDump({input}, STOP true) -> b :: ToDump({both}, SNAPLEN 0);
            RatedSource(RATE 2, LIMIT 4) -> b; FastUDPFlows(RATE 3, LIMIT 4, LENGTH 64, SRCETH 1:1:1:1:1:1, \
                DSTETH 2:2:2:2:2:2, SRCIP 10.0.0.1,
            DSTIP 10.0.0.2, FLOWS 4, FLOWSIZE 8) -> ToDump({flows}, SNAPLEN 0)"
    );
    let rated = files.path("rated.pcap");
    let io = format!("pcap:,{rated}");
    let out = click("sources", &text, &["--io", &io, "--json"]);
    assert_eq!((out.status.code(), flat(&out.stderr)), (Some(0), String::new()));
    let times = |count: u64, apart: u64| (0..count).map(|n| n * apart).collect::<Vec<_>>();
    assert_eq!(read(&rated).1, times(50, 100 * MS));
    assert_eq!((read(&ticks).1, read(&ticks).2), (times(8, 250 * MS), 250_005_000));
    assert_eq!((read(&echoes).1, read(&echoes).2), (times(3, 1000 * MS), 1_000_005_000));
    assert_eq!(read(&flows).1, [0, 333_333_334, 666_666_667, 1_000_000_000]);
    let (first, since, begin) = read(&both);
    assert_eq!((first.iter().filter(|byte| **byte == 7).count(), begin), (3, 5000));
    assert_eq!(since, [0, 0, 500, 1000, 1000, 1500, 2000].map(|ms| ms * MS));
    let quick = "s :: RatedSource(RATE 1000, LIMIT 20) -> c :: Counter -> Discard";
    let out = click("sources-real", quick, &["--real-time", "--json", "--handler", "c.count"]);
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(report["handlers"][0]["value"], "20");
    let out = click("sources-never", "RatedSource(RATE 0, LIMIT 20) -> Discard", &["--json"]);
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!((out.status.code(), report["received"].as_u64()), (Some(0), Some(0)));
    let out = click("sources-workers", quick, &["--workers", "2"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(flat(&out.stderr).contains("it sends at times of its own"), "{}", flat(&out.stderr));
}

#[test]
fn a_pipeline_is_for_configurations_with_queues() {
    let refused = |name: &str, text: &str, args: &[&str], said: &str| {
        let out = click(name, text, args);
        let errors = flat(&out.stderr);
        assert!(out.status.code() == Some(2) && errors.contains(said), "{args:?}: {errors}");
    };
    refused("no-queue", "InfiniteSource(LIMIT 5) -> Discard", &["--pipeline"], "no packet comes to a queue");
    let queue = "InfiniteSource(LIMIT 5) -> Queue -> Unqueue -> Discard";
    refused("workers", queue, &["--pipeline", "--workers", "2"], "leave --workers out");
    refused("stages", queue, &["--pipeline=3"], "--pipeline=2 at most");
}

#[test]
fn an_error_shows_the_line_and_the_nearest_name() {
    let out = click("error", "FromDevice(a)\n -> Cuonter\n -> Discard;\n", &[]);
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success());
    for part in ["there is no element class `Cuonter`", "the nearest name is `Counter`", ":2:", "-> Cuonter"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn what_is_wrong_is_shown_wherever_it_is() {
    let filled = "x".repeat(70_000);
    for (name, text, wrong) in [
        ("bracket", "a :: {".to_owned(), "a :: {"),
        ("end", "a ::".to_owned(), "a ::"),
        ("long", format!("/*{filled}*/ Idle -> Nothing(1) -> Discard; /*{filled}*/"), "Nothing(1)"),
    ] {
        let out = click(name, &text, &[]);
        assert_eq!(out.status.code(), Some(2), "{name}: {}", flat(&out.stderr));
        assert!(
            out.stderr.len() < 4_000 && flat(&out.stderr).contains(wrong),
            "{name}: {}",
            flat(&out.stderr)
        );
    }
}

#[test]
fn reports_name_sources_in_words() {
    let text = "InfiniteSource(LENGTH 1500, LIMIT 1, STOP true) -> Discard";
    let report: serde_json::Value =
        serde_json::from_slice(&click("words", text, &["--json"]).stdout).expect("JSON");
    assert_eq!(report["sources"][0]["source"], "a packet of 1500 bytes, 1 in all");
}

#[test]
fn libraries_are_read_and_their_errors_are_theirs() {
    let files = Files::new("click-library");
    std::fs::create_dir_all(files.path("lib")).expect("made");
    let write = |name: &str, text: &str| std::fs::write(files.path(name), text).expect("written");
    // Each requires the other: both are read once, and names of files are those beside the file that has
    // them.
    write("lib/one.click", "require(library two.click) elementclass One { -> Two -> Strip($cut) -> }");
    write("lib/two.click", "require(library one.click)\ndefine($cut 2)\nelementclass Two { -> Counter -> }");
    write("test.click", "require(library lib/one.click) require(click) Idle -> One -> Discard");
    let run = |flag: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        let out = command.args(["click", &files.path("test.click"), flag]).output().expect("run");
        [out.stdout, out.stderr].map(|text| String::from_utf8(text).expect("text"))
    };
    let [text, _] = run("--flat");
    assert!(text.contains(":: Strip(2);") && text.contains(":: Counter;"), "{text}");
    write("lib/two.click", "require(library one.click)\ndefine($cut 2)\nelementclass Two { -> Cuonter -> }");
    let [_, errors] = run("--ir");
    assert!(errors.contains("two.click:3:") && errors.contains("Cuonter"), "{errors}");
    write("lib/two.click", "require(library three.click)");
    let [_, errors] = run("--ir");
    assert!(
        errors.contains("there is no library `three.click`") && errors.contains("two.click:1:"),
        "{errors}"
    );
}

#[test]
fn the_flat_form_is_a_configuration() {
    let out = click("flat", "elementclass C { -> Strip(1) -> } Idle -> C -> Discard", &["--flat"]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(text.contains("@2/Strip@1 :: Strip(1);"), "{text}");
}

#[test]
fn the_layout_says_what_is_kept_and_what_is_dead() {
    let files = Files::new("click-layout");
    let conf = files.path("test.click");
    let text = "FromDevice(a) -> Paint($color) -> t :: Tee(2) -> ToDPDKDevice(b); \
        t[1] -> CheckPaint(3) -> ToDPDKDevice(c)";
    std::fs::write(&conf, text).expect("written");
    let run = |flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        let out = command.args(["layout", &conf, "color=3"]).args(flags).output().expect("run");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    };
    let report: serde_json::Value = serde_json::from_slice(&run(&["--json"])).expect("JSON");
    let paint = &report["annotations"][0];
    assert_eq!((paint["annotation"].as_str(), paint["kept_at"].as_u64()), (Some("paint"), Some(1)));
    assert_eq!((paint["kept_bytes"].as_u64(), paint["kept_for"].as_u64()), (Some(1), Some(1)));
    assert_eq!(report["kept_bytes"], 4);
    assert_eq!(report["waiting"]["unpacked_bytes"], 68, "a word for each annotation and the number");
    let fields = report["fields"].as_array().expect("rows").iter();
    let places: Vec<(&str, Option<u64>)> =
        fields.map(|f| (f["field"].as_str().expect("a name"), f["offset"].as_u64())).collect();
    // It has one source, and copies: these need the room around packets, too. It is not a program with a
    // verdict.
    let expected = [
        ("data", Some(0)),
        ("end", Some(4)),
        ("headroom start", Some(8)),
        ("buffer", Some(12)),
        ("resizable", Some(16)),
        ("origin", Some(20)),
        ("ingress", None),
        ("queue", None),
    ];
    assert_eq!(places, expected, "{report}");
    let descriptor = |name: &str| report["descriptor"][name].as_u64().expect("a number");
    assert_eq!(["stride", "received", "lines"].map(descriptor), [24, 20, 24]);
    assert!(report["dead"].as_array().expect("names").iter().any(|name| name == "destination"));
    let text = String::from_utf8(run(&[])).expect("text");
    assert!(text.contains("annotations of a queued packet: 4 bytes of its buffer"), "{text}");
}

#[test]
fn several_workers_count_together_unless_an_element_is_for_one() {
    let nat = "FromDevice(in) -> Strip(14) -> CheckIPHeader(CHECKSUM true) -> c :: Counter
        -> IPRewriter(pattern 192.0.2.1 1024-65535# - - 0 0) -> ToDPDKDevice(out)";
    let flags = ["--workers", "3", "--packets", "200000", "--json", "--handler", "c.count"];
    let out = click("workers", nat, &flags);
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let numbers = [&report["workers"], &report["received"], &report["sent"]].map(serde_json::Value::as_u64);
    assert_eq!(numbers, [Some(3), Some(200_000), Some(200_000)]);
    assert_eq!(report["handlers"][0]["value"], "200000");
    let asks = "FromDevice(in) -> MarkIPHeader -> ARPQuerier(10.0.0.1, 1:1:1:1:1:1) -> ToDPDKDevice(out)";
    let out = click("workers-alone", asks, &flags);
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && text.contains("`ARPQuerier` is for one worker"), "{text}");
}

#[test]
fn what_tables_hold_says_how_they_are_searched_and_the_report_says_why() {
    let hosts: Vec<String> = (1..40).map(|n| format!("2001:db8::{n:x}/128 0")).collect();
    let rules: Vec<String> = (1..80).map(|n| format!("allow src host 10.0.0.{n}")).collect();
    let text = format!(
        "FromDevice(in) -> c :: Classifier(12/0800, -) -> Strip(14) \
            -> r :: RadixIPLookup(10.0.0.0/8 0, 0/0 0) -> MarkIPHeader
            -> a :: IPFilter({rules}) -> b :: IPFilter({rules}) \
                -> EtherEncap(0x800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> out :: ToDPDKDevice(out);
        c[1] -> Strip(14) -> GetIP6Address(24) -> six :: LookupIP6Route({hosts}) -> out",
        rules = rules.join(", "),
        hosts = hosts.join(", ")
    );
    let out = click("templates", &text, &["--packets", "64", "--json", "--template", "b=linear"]);
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let row = |row: &serde_json::Value| {
        ["table", "template", "why"].map(|name| row[name].as_str().expect("text").to_owned())
    };
    let mut rows: Vec<[String; 3]> = report["templates"].as_array().expect("rows").iter().map(row).collect();
    rows.sort_unstable();
    let expected = [
        ["a", "cuts", "79 rules, in trees of height 1"],
        ["b", "linear", "pinned"],
        ["r.routes", "multibit", "2 prefixes, 0.0 nodes below the root on average"],
        ["six.routes", "lengths", "39 prefixes of 1 lengths, 14.0 nodes of a trie away on average"],
    ];
    assert_eq!(rows, expected.map(|row| row.map(str::to_owned)));
}

#[test]
fn a_running_configuration_is_asked_and_replaced_without_losing_a_packet() {
    replaced("one", &[], "");
}

#[test]
fn one_that_adapts_is_asked_and_replaced_too() {
    replaced("adapt", &["--adapt"], "");
}

#[test]
fn one_that_several_workers_run_is_asked_and_replaced_too() {
    replaced("three", &["--workers", "3"], "");
}

#[test]
fn one_that_runs_in_stages_is_asked_and_replaced_too_by_one_with_a_queue() {
    replaced("stages", &["--pipeline"], "-> Queue -> Unqueue");
}

/// `queue` is the element that packets pass and that each configuration counts at.
fn replaced(name: &str, flags: &[&str], queue: &str) {
    let files = Files::new(&format!("click-control-{name}"));
    let (first, second) = (files.path("first.click"), files.path("second.click"));
    let nat = "rw :: IPRewriter(pattern 192.0.2.1 1024-65535# - - 0 0) -> ToDPDKDevice(out)";
    let head = "FromDevice(in) -> Strip(14) -> CheckIPHeader(CHECKSUM false) -> c :: Counter";
    let queued = format!("{head} {queue}");
    // In the first one every other packet is dropped by an element that the second has not.
    let split = "-> half :: IPClassifier(src net 0.0.0.0/1, -) -> old :: Counter -> Discard; half[1] -> ";
    std::fs::write(&first, format!("{queued} {split} {nat}")).expect("written");
    std::fs::write(&second, format!("{queued} -> new :: Counter -> {nat}")).expect("written");
    let mut spoken = Spoken::new(&first, &files.path("control"), flags);
    while spoken.number("old.count") < 1000 {}
    let before = spoken.number("c.count");
    let (answer, _) = spoken.say("SWAP nowhere.click");
    assert!(answer.starts_with("520"), "{answer}");
    assert!(spoken.say("READ nobody.count").0.starts_with("510"));
    if !queue.is_empty() {
        let third = files.path("third.click");
        std::fs::write(&third, format!("{head} -> {nat}")).expect("written");
        let (answer, _) = spoken.say(&format!("SWAP {third}"));
        assert!(answer.starts_with("520") && answer.contains("no packet comes to a queue"), "{answer}");
        let old = spoken.number("old.count");
        while spoken.number("old.count") < old + 1000 {}
    }
    assert_eq!(spoken.say(&format!("SWAP {second}")).0, format!("200 Swap '{second}' OK\r\n"));
    assert!(spoken.number("c.count") >= before, "counts go on");
    while spoken.number("new.count") < 1000 {}
    assert!(spoken.say("READ old.count").0.starts_with("510"));
    assert!(spoken.say("WRITE new.reset_counts").0.starts_with("200"));
    assert!(spoken.say("WRITE c.class").0.starts_with("530"));
    assert!(spoken.say("WRITE stop").0.starts_with("200"));
    let out = spoken.end();
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let rows = report["dropped"].as_array().expect("rows");
    let dropped: u64 = rows.iter().map(|row| number(&row["packets"])).sum();
    assert_eq!(number(&report["swaps"]), 1);
    assert_eq!(number(&report["received"]) + number(&report["copies"]), number(&report["sent"]) + dropped);
    assert!(rows.iter().any(|row| number(&row["packets"]) >= 1000), "what the first one dropped: {rows:?}");
    assert!(!Path::new(&files.path("control")).exists(), "the socket has gone");
}

#[test]
fn packets_that_wait_stay_where_the_next_configuration_has_their_queue() {
    let files = Files::new("click-swapped");
    let conf = |name: &str, text: &str| {
        let path = files.path(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let first = conf(
        "1.click",
        "FromDevice(in) -> Paint(2) -> q :: Queue(100) -> r :: RatedUnqueue(0, BURST_SIZE 1) \
         -> k :: CheckPaint(2) -> c :: Counter -> Discard; k[1] -> Discard",
    );
    let second = conf(
        "2.click",
        "FromDevice(in) -> Paint(2) -> SetIPAddress(1.2.3.4) -> q :: Queue(100) -> Strip(14) \
            -> r :: RatedUnqueue(1000000, BURST_SIZE 1)
            -> p :: CheckPaint(2) -> StoreIPAddress(16) -> c :: Counter -> Discard; p[1] -> d :: Discard",
    );
    let third = conf("3.click", "FromDevice(in) -> Discard");
    let mut spoken = Spoken::new(&first, &files.path("control"), &[]);
    while spoken.number("q.drops") < 1000 {}
    assert_eq!([spoken.number("q.length"), spoken.number("c.count")], [100, 1]);
    assert!(spoken.say(&format!("SWAP {second}")).0.starts_with("200"));
    while spoken.number("c.count") < 1000 {}
    assert_eq!(spoken.number("d.count"), 0, "annotations are kept");
    assert!(spoken.say("WRITE r.rate 0").0.starts_with("200"));
    while spoken.number("q.length") < 100 {}
    assert!(spoken.say(&format!("SWAP {third}")).0.starts_with("200"));
    let (answer, _) = spoken.say(&format!("SWAP {first}"));
    assert!(answer.starts_with("520") && answer.contains("would wait"), "{answer}");
    assert!(spoken.say("WRITE stop true").0.starts_with("200"));
    let report: serde_json::Value = serde_json::from_slice(&spoken.end().stdout).expect("JSON");
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let rows = report["dropped"].as_array().expect("rows");
    let dropped: u64 = rows.iter().map(|row| number(&row["packets"])).sum();
    assert_eq!([number(&report["received"]), number(&report["queued"])], [dropped, 0]);
    let away: Vec<u64> = rows
        .iter()
        .filter(|row| row["reason"] == "swapped_away")
        .map(|row| number(&row["packets"]))
        .collect();
    assert_eq!(away, [100]);
}

#[test]
fn what_handlers_set_and_what_was_left_out_is_kept_by_the_next_configuration() {
    let files = Files::new("click-kept");
    let (first, second, third) = (files.path("1.click"), files.path("2.click"), files.path("3.click"));
    let text = |routes: &str, paint: u32, name: &str| {
        format!(
            "FromDevice(in) -> s :: Switch(0) -> Strip(14) -> CheckIPHeader(CHECKSUM false) -> p :: Paint({paint})
                -> r :: RadixIPLookup({routes}) -> {name} :: Counter -> Discard; r[1] -> Discard; s[1] -> Discard"
        )
    };
    std::fs::write(&first, text("0/0 0", 1, "a")).expect("written");
    std::fs::write(&second, text("0/0 0", 2, "b")).expect("written");
    std::fs::write(&third, text("0/0 1", 2, "c")).expect("written");
    let address = scrape::free_address();
    let flags = ["--without", "static-graph,constants", "--workers", "2", "--metrics", &address];
    let mut spoken = Spoken::new(&first, &files.path("control"), &flags);
    // Constants that are kept out of the code are numbers in memory, in a map of their own.
    let general = || scrape::scrape(&address).contains("millstream_map_entries{map=\"click.numbers\"}");
    assert!(general());
    let write = |spoken: &mut Spoken, line: &str| {
        let (answer, _) = spoken.say(line);
        assert!(answer.starts_with("200"), "{line}: {answer}");
    };
    for line in ["WRITE s.switch 1", "WRITE p.color 7", "WRITE r.add 10.0.0.0/8 1", "WRITE r.set 0/0 1"] {
        write(&mut spoken, line);
    }
    let table = spoken.say("READ r.table").1;
    assert!(table.contains("10.0.0.0/8"), "{table}");
    write(&mut spoken, &format!("SWAP {second}"));
    assert!(general(), "constants are left out of this one, too");
    assert_eq!(spoken.number("s.switch"), 1, "nobody has said otherwise");
    assert_eq!(spoken.number("p.color"), 2, "the new configuration says so, where the old one said 1");
    assert_eq!(spoken.say("READ r.table").1, table);
    write(&mut spoken, &format!("SWAP {third}"));
    assert!(!spoken.say("READ r.table").1.contains("10.0.0.0/8"), "it has other routes");
    assert_eq!(spoken.number("s.switch"), 1);
    write(&mut spoken, "WRITE stop");
    assert!(spoken.end().status.success());
}

#[test]
fn metrics_say_what_elements_count_and_drop() {
    metrics("workers", &["--workers", "2"]);
    metrics("stages", &["--pipeline"]);
}

fn metrics(name: &str, flags: &[&str]) {
    let files = Files::new(&format!("click-metrics-{name}"));
    let (conf, address) = (files.path("test.click"), scrape::free_address());
    let text = "FromDevice(in) -> Strip(14) -> CheckIPHeader(CHECKSUM false) -> c :: Counter -> Queue \
        -> Unqueue -> d :: Discard";
    std::fs::write(&conf, text).expect("written");
    let flags = [flags, &["--metrics", &address]].concat();
    let mut spoken = Spoken::new(&conf, &files.path("control"), &flags);
    while spoken.number("c.count") < 1000 {}
    let before = spoken.number("c.count") as f64;
    let text = scrape::scrape(&address);
    let after = spoken.number("c.count") as f64;
    for name in [
        "millstream_element_total{element=\"c\",handler=\"count\"}",
        "millstream_dropped_total{element=\"d\",reason=\"discarded\"}",
    ] {
        let value = scrape::value(&text, name);
        assert!((before..=after).contains(&value), "{name}: {before} {value} {after}");
    }
    assert!(spoken.say("WRITE stop").0.starts_with("200"));
    assert!(spoken.end().status.success());
}

#[test]
fn settings_and_tables_are_changed_while_packets_come() {
    settings("workers", &["--workers", "2"]);
    settings("stages", &["--pipeline"]);
    settings("three", &["--pipeline=3"]);
    settings("adapt", &["--adapt"]);
}

fn settings(name: &str, flags: &[&str]) {
    let files = Files::new(&format!("click-settings-{name}"));
    let conf = files.path("test.click");
    let text = "FromDevice(in) -> s :: Switch -> Strip(14) -> CheckIPHeader(CHECKSUM false) -> Queue \
        -> Unqueue -> r :: RadixIPLookup(0/0 0) -> Queue -> Unqueue -> a :: Counter -> Discard;
        r[1] -> b :: Counter -> Discard; s[1] -> c :: Counter -> Discard;
        InfiniteSource(LIMIT 5) -> i :: Counter -> Discard; p :: InfiniteSource(LIMIT 7, ACTIVE false) \
            -> j :: Counter -> Discard";
    std::fs::write(&conf, text).expect("written");
    let mut spoken = Spoken::new(&conf, &files.path("control"), flags);
    while spoken.number("a.count") < 1000 {}
    // On any worker, once it has begun.
    while spoken.number("i.count") < 5 {}
    assert_eq!([spoken.number("i.count"), spoken.number("j.count"), spoken.number("b.count")], [5, 0, 0]);
    let both = "add 0.0.0.0/1 1\nadd 128.0.0.0/1 1";
    let data = format!("WRITEDATA r.ctrl {}\r\n{both}", both.len());
    spoken.socket.get_mut().write_all(data.as_bytes()).expect("sent");
    assert_eq!(spoken.say("").0, "200 Write handler 'r.ctrl' OK\r\n");
    let before = spoken.number("a.count");
    while spoken.number("b.count") < 1000 {}
    assert_eq!(spoken.number("a.count"), before, "no packet goes the old way");
    assert!(spoken.say("WRITE s.switch 1").0.starts_with("200"));
    let before = spoken.number("b.count");
    while spoken.number("c.count") < 1000 {}
    assert_eq!(spoken.number("b.count"), before);
    for (line, answer) in [
        ("WRITE s.switch 2", "520"),
        ("READ s.swich", "511"),
        ("WRITE r.table", "530"),
        ("CHECKWRITE s.switch", "200"),
        ("CHECKREAD r.ctrl", "530"),
        ("WRITEDATA s.switch", "500"),
        ("WRITE p.active true", "200"),
    ] {
        let said = spoken.say(line).0;
        assert!(said.starts_with(answer), "{line}: {said}");
    }
    while spoken.number("j.count") < 7 {}
    assert!(spoken.say("WRITE p.reset").0.starts_with("200"));
    while spoken.number("j.count") < 14 {}
    assert_eq!([spoken.number("p.count"), spoken.number("j.count")], [7, 14]);
    assert!(spoken.say("READ flatconfig").1.contains("r :: RadixIPLookup(0/0 0);"));
    assert_eq!(spoken.say("READ config").1.trim_end(), text);
    assert!(spoken.say("WRITE stop").0.starts_with("200"));
    assert!(spoken.end().status.success());
}

#[test]
fn scripts_print_write_handlers_and_end_the_run() {
    let text = "InfiniteSource(LIMIT 640) -> Queue -> Unqueue -> c :: Counter -> Discard; \
        Script(print \"begins with $(c.count)\", write c.reset);
        DriverManager(wait, print \"$(c.count) packets\", print $(mul 2 $(c.count)))";
    let said = |name: &str, text: &str, args: &[&str]| {
        let out = click(name, text, args);
        let [one, two] = [out.stdout, out.stderr].map(|text| String::from_utf8(text).expect("text"));
        (one, two)
    };
    for args in [&[][..], &["--workers", "2"], &["--pipeline"]] {
        let (out, _) = said("script", text, args);
        assert!(out.starts_with("begins with 0\n640 packets\n1280\n"), "{args:?}: {out}");
    }
    // The result has standard output to itself.
    let (out, errors) = said("script-json", text, &["--json"]);
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((report["received"].as_u64(), errors.contains("640 packets\n1280\n")), (Some(640), true));
    let (out, _) = said(
        "script-stop",
        "InfiniteSource(LIMIT 640) -> c :: Counter -> Discard; Script(stop)",
        &["--json"],
    );
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["received"].as_u64(), Some(0), "it ends before it begins");
}

#[test]
fn flows_that_are_made_up_are_sent_as_often_as_said() {
    let flows = |limit: &str| {
        format!(
            "flows :: FastUDPFlows(RATE 0, LIMIT {limit}, LENGTH 64, SRCETH 1:1:1:1:1:1, DSTETH 2:2:2:2:2:2, \
                SRCIP 10.0.0.1, DSTIP 10.0.0.2,
                FLOWS 4, FLOWSIZE 8) -> Strip(14) -> CheckIPHeader(CHECKSUM true) -> CheckUDPHeader \
                    -> c :: Counter -> Discard"
        )
    };
    for (limit, args, expected) in [("20000", &[][..], 20_000), ("-1", &["--packets", "17000"], 17_000)] {
        let asked =
            ["count", "limit", "active", "rate"].map(|name| ["--handler".into(), format!("flows.{name}")]);
        let asked: Vec<&str> = asked.as_flattened().iter().map(String::as_str).collect();
        let args = [&["--json", "--handler", "c.count"], &asked[..], args].concat();
        let out = click("flows", &flows(limit), &args);
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
        let rows = report["handlers"].as_array().expect("rows").iter();
        let values: Vec<_> = rows.map(|row| row["value"].as_str().expect("text")).collect();
        let counted = expected.to_string();
        assert_eq!(report["received"].as_u64(), Some(expected));
        assert_eq!(values, [counted.as_str(), &counted, limit, "true", "0"]);
        assert!(out.stdout.len() < 10_000, "not all the packets are told");
    }
}
