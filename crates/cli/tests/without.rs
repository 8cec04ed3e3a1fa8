//! `--without` and `--schedule`: whatever optimisation is left out, and in whatever order packets go through
//! stages, a program behaves the same; and the reported options are in force.

#[path = "common/capture.rs"]
mod capture;
mod common;

use std::process::{Command, Output};

use millstream_programs::packet::partly_broken;
use millstream_rng::Rng;
use serde_json::Value;

use capture::capture;
use common::Files;

/// Headers that are stripped and put back, copies, an annotation that is read, packets with errors reported,
/// a translated flow.
const GRAPH: &str = "
    FromDump($IN, STOP true) -> c :: Classifier(12/0800, -);
    c[1] -> t :: Tee(2) -> Discard; t[1] -> Strip(4) -> bad :: Counter -> Unstrip(4) -> ToDump($OTHER, SNAPLEN 0);
    c[0] -> Paint(7) -> Strip(14) -> k :: CheckIPHeader(CHECKSUM true) \
        -> rt :: RadixIPLookup(0.0.0.0/1 10.0.0.2 0, 128.0.0.0/1 10.0.0.3 1);
    k[1] -> Unstrip(14) -> ToDump($OTHER, SNAPLEN 0);
    rt[0] -> DecIPTTL -> p :: CheckPaint(7) -> EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) \
        -> out :: ToDump($OUT, SNAPLEN 0);
    rt[1] -> rw :: IPRewriter(pattern 192.0.2.1 1024-65535# - - 0 0) -> l :: Counter -> Unstrip(14) -> out;
    p[1] -> Discard;";

const LEFT_OUT: [&str; 15] = [
    "static-graph",
    "constants",
    "annotations",
    "static-graph,constants,annotations",
    "annotations,static-graph",
    "passes",
    "llvm-passes",
    "passes,llvm-passes",
    "header-prefetch",
    "table-prefetch",
    "lookups",
    "descriptors",
    "sccp",
    "gvn,dse,forward",
    "static-graph,constants,annotations,passes,llvm-passes,header-prefetch,lookups",
];

fn millstream(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_millstream")).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Tables of all sizes are fetched for.
const SCHEDULES: [&str; 6] = [
    "batch=1",
    "fetch=rt.routes+rw.flows,trials=off,pattern=packets,distance=3",
    "from=0,trials=off,pattern=packets,unroll=4,headers=0",
    "from=0,trials=off,batch=100,pattern=groups,sub-batch=7,unroll=2",
    "from=0,pattern=groups,sub-batch=all",
    "from=0,trials=off,pattern=pipelined-groups,sub-batch=10",
];

#[test]
fn a_configuration_sends_the_same_packets_whatever_is_left_out_and_by_any_schedule() {
    let files = Files::new("without");
    let [conf, input] = ["conf.click", "in.pcap"].map(|name| files.path(name));
    std::fs::write(&conf, GRAPH).unwrap();
    std::fs::write(&input, capture(&partly_broken(&mut Rng::new(5), 600))).unwrap();
    let run = |name: &str, more: &[&str]| {
        let [out, other] = ["out", "other"].map(|kind| files.path(&format!("{name}-{kind}.pcap")));
        let variables = [format!("IN={input}"), format!("OUT={out}"), format!("OTHER={other}")];
        let [a, b, c] = variables.each_ref().map(String::as_str);
        let handlers = ["--handler", "bad.count", "--handler", "l.count", "--json"];
        let (exit, report, errors) = millstream(&[&["click", &conf, a, b, c], &handlers[..], more].concat());
        assert_eq!((exit, errors.as_str()), (0, ""), "{name}");
        let report: Value = serde_json::from_str(&report).unwrap();
        let account = ["received", "copies", "sent", "dropped", "handlers"].map(|part| report[part].clone());
        (account, std::fs::read(out).unwrap(), std::fs::read(other).unwrap())
    };
    let usual = run("usual", &[]);
    // All ways are taken.
    assert!(usual.1.len() > 20_000 && usual.2.len() > 1_000, "{} {}", usual.1.len(), usual.2.len());
    for (at, left_out) in LEFT_OUT.iter().enumerate() {
        assert!(run(&at.to_string(), &["--without", left_out]) == usual, "without {left_out}");
    }
    for (at, schedule) in SCHEDULES.iter().enumerate() {
        assert!(run(&format!("by{at}"), &["--schedule", schedule]) == usual, "by {schedule}");
    }
}

#[test]
fn what_is_left_out_is_not_in_the_code() {
    let files = Files::new("without-code");
    let conf = files.path("conf.click");
    std::fs::write(&conf, "FromDevice(in) -> Strip(14) -> Paint(3) -> CheckPaint(3) -> ToDPDKDevice(out);")
        .unwrap();
    let ir = |more: &[&str]| {
        let (exit, text, errors) = millstream(&[&["click", &conf, "--ir"], more].concat());
        assert_eq!((exit, errors.as_str()), (0, ""));
        text
    };
    assert!(!ir(&[]).contains("click.numbers"), "{}", ir(&[]));
    for left_out in ["static-graph", "constants"] {
        assert!(ir(&["--without", left_out]).contains("click.numbers"), "without {left_out}");
    }
    let stores = |text: &str| text.matches("store").count();
    assert!(stores(&ir(&["--without", "annotations"])) > stores(&ir(&[])) + 20);
}

#[test]
fn reports_say_which_schedule_was_in_force_and_why() {
    let schedule = |more: &[&str]| {
        let first = ["native", "builtin:router:100", "--packets", "1000", "--json"];
        let (exit, report, errors) = millstream(&[&first[..], more].concat());
        assert_eq!((exit, errors.as_str()), (0, ""));
        serde_json::from_str::<Value>(&report).unwrap()["schedule"].clone()
    };
    let usual = schedule(&[]);
    assert_eq!((&usual["batch"], &usual["pattern"]), (&64.into(), &"packets".into()), "{usual}");
    let table = |schedule: &Value, name: &str| {
        let all = schedule["tables"].as_array().unwrap();
        all.iter().find(|table| table["table"] == name).unwrap()["fetched"] == true
    };
    assert!(table(&usual, "routes") && !table(&usual, "next_hops"), "{usual}");
    let said = schedule(&["--schedule", "batch=16,fetch=next_hops,pattern=groups,sub-batch=8"]);
    assert_eq!((&said["batch"], &said["sub_batch"], &said["why"]), (&16.into(), &8.into(), &"said".into()));
    assert!(table(&said, "next_hops") && !table(&said, "routes"), "{said}");
}

#[test]
fn names_that_nothing_has_are_refused() {
    for (arguments, said) in [
        (&["click", "x.click", "--without", "speed"][..], "static-graph, constants, annotations"),
        (&["native", "builtin:router:100", "--without", "static-graph"], "for configurations"),
        (&["native", "builtin:router:100", "--without", "lower-keys"], "there is no code"),
        (&["bench-user", "builtin:router:100", "--without", "constants"], "for configurations"),
        (&["native", "builtin:router:100", "--schedule", "sub_batch=4"], "did you mean `sub-batch`?"),
        (&["native", "builtin:router:100", "--schedule", "fetch=route"], "did you mean \"routes\"?"),
        (&["bench-user", "x.click", "--schedule", "batch=2000"], "at most 1024 packets at once"),
    ] {
        let (exit, _, errors) = millstream(arguments);
        assert!(exit == 2 && errors.contains(said), "{arguments:?}: {errors}");
    }
    let (exit, _, errors) =
        millstream(&["native", "builtin:router:100", "--packets", "1000", "--without", "lookups,passes"]);
    assert_eq!((exit, errors.as_str()), (0, ""));
}
