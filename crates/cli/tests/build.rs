//! `millstream build` as a user calls it: what it writes does what `millstream click` and `millstream native` do.

mod common;

use std::path::Path;
use std::process::Command;

use common::Files;

const MILLSTREAM: &str = env!("CARGO_BIN_EXE_millstream");

/// What a command that must succeed says.
fn says(program: impl AsRef<Path>, args: &[&str]) -> String {
    let out = Command::new(program.as_ref()).args(args).output().expect("run");
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

/// A report without what differs from run to run, and without how the code was made.
fn account(text: &str) -> serde_json::Value {
    let mut report: serde_json::Value = serde_json::from_str(text).expect("JSON");
    let fields = report.as_object_mut().expect("an object");
    for field in ["ns_per_packet", "ns_per_packet_p10", "mpps", "compiled"] {
        fields.remove(field);
    }
    report
}

#[test]
fn a_built_configuration_writes_the_same_packets_and_account() {
    let files = Files::new("build-click");
    let (conf, built) = (files.path("router.click"), files.path("router"));
    let text = "define($out x.pcap) FromDevice(in) -> Strip(14) -> CheckIPHeader(CHECKSUM false)
        -> rt :: RadixIPLookup(10.0.0.0/8 0, 192.168.0.0/16 10.0.0.1 1, 0.0.0.0/0 2) -> DecIPTTL -> t :: Tee
        -> ToDump($out); t[1] -> Discard; rt[1] -> nat :: IPRewriter(pattern 192.0.2.1 1024-65535# - - 0 0) -> ToDump($out);
        rt[2] -> c :: Counter -> Discard";
    std::fs::write(&conf, text).expect("written");
    let sent = |name: &str| format!("out={}", files.path(name));
    let flags = ["--packets", "5000", "--json", "--handler", "c.count"];
    let here = says(MILLSTREAM, &[&["click", &conf, &sent("here.pcap")], &flags[..]].concat());
    says(MILLSTREAM, &["build", &conf, &sent("built.pcap"), "-o", &built]);
    let there = says(&built, &flags);
    let name = |text: &str| text.replace("built.pcap", "here.pcap");
    assert_eq!(account(&name(&there)), account(&here));
    let bytes = |name: &str| std::fs::read(files.path(name)).expect("packets");
    assert!(bytes("here.pcap").len() > 1000 && bytes("here.pcap") == bytes("built.pcap"));
    assert!(!there.contains("compiled"), "nothing is compiled then");
}

#[test]
fn a_built_object_has_its_tables_and_needs_no_command() {
    let files = Files::new("build-native");
    let built = files.path("nat");
    says(MILLSTREAM, &["build", "builtin:nat", "--cpu", "x86-64-v2", "-o", &built]);
    let flags = ["--packets", "20000", "--json"];
    let here = says(MILLSTREAM, &[&["native", "builtin:nat"], &flags[..]].concat());
    assert_eq!(account(&says(&built, &flags)), account(&here));
    let help = says(&built, &["--help"]);
    assert!(help.contains("--io") && !help.contains("--ahead"), "{help}");
    let wrong = Command::new(&built).arg("native").output().expect("run");
    assert!(!wrong.status.success(), "it has no commands");
}

#[test]
fn what_stands_beside_a_built_program_stays_as_it_is() {
    let files = Files::new("build-beside");
    let directory = files.path("out");
    let inside = |name: &str| format!("{directory}/{name}");
    std::fs::create_dir_all(inside("taken")).expect("directories");
    std::fs::write(inside("nat.new"), "mine").expect("written");
    says(MILLSTREAM, &["build", "builtin:nat", "-o", &inside("nat")]);
    let failed = Command::new(MILLSTREAM)
        .args(["build", "builtin:nat", "-o", &inside("taken")])
        .output()
        .expect("run");
    assert_eq!(failed.status.code(), Some(2), "a directory is no place for a program");
    assert_eq!(std::fs::read(inside("nat.new")).expect("it is there"), b"mine");
    let entries = std::fs::read_dir(&directory).expect("read").map(|e| e.expect("an entry").file_name());
    let mut names: Vec<_> = entries.collect();
    names.sort();
    assert_eq!(names, ["nat", "nat.new", "taken"]);
}
