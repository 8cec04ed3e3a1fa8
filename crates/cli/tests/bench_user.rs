//! `millstream bench-user` as a user runs it. No test checks a time, only that there is one.

mod common;

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use common::Files;

fn bench(arguments: &[&str]) -> (i32, String, String) {
    answer(Command::new(env!("CARGO_BIN_EXE_millstream")).arg("bench-user").args(arguments))
}

fn answer(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn rows<'d>(document: &'d Value, name: &str) -> &'d [Value] {
    document[name].as_array().unwrap_or_else(|| panic!("{name} in {document}"))
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("{name} in {row}"))
}

/// Few, short rounds.
const SHORT: [&str; 5] = ["--seconds", "0.02", "--rounds", "2", "--json"];

fn measured(what: &[&str], more: &[&str]) -> Value {
    let (exit, out, errors) = bench(&[what, more, &SHORT[..]].concat());
    assert_eq!((exit, errors.as_str()), (0, ""));
    serde_json::from_str(&out).unwrap()
}

const MIRROR: &str = "FromDevice(in) -> EtherMirror -> ToDPDKDevice(out);";

fn configuration(files: &Files, text: &str) -> String {
    let path = files.path("conf.click");
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_configuration_is_measured_by_batch_size_and_workers() {
    let files = Files::new("bench-user-graph");
    let conf = configuration(&files, MIRROR);
    let more =
        ["--parts", "batches,sizes,workers", "--batches", "1,32", "--sizes", "64,700", "--workers", "2"];
    let found = measured(&[&conf], &more);
    assert_eq!((number(&found, "schema"), found["input"].as_str()), (2.0, Some(conf.as_str())));
    assert_eq!(rows(&found, "by_load").len() + rows(&found, "skipped").len(), 0);
    let of = |rows: &[Value], field: &str| rows.iter().map(|row| number(row, field)).collect::<Vec<_>>();
    assert_eq!(of(rows(&found, "by_batch"), "batch"), [1.0, 32.0]);
    assert_eq!(of(rows(&found, "by_size"), "bytes"), [64.0, 700.0]);
    assert_eq!(of(rows(&found, "by_workers"), "workers"), [1.0, 2.0]);
    for row in ["by_batch", "by_size", "by_workers"].iter().flat_map(|part| rows(&found, part)) {
        assert!(number(row, "received") > 0.0 && number(row, "received") == number(row, "sent"), "{row}");
        let (least, most) = (number(row, "ns_min"), number(row, "ns_max"));
        assert!(
            0.0 < least && least <= number(row, "ns_per_packet") && number(row, "ns_per_packet") <= most,
            "{row}"
        );
        assert!(number(row, "program_ns") > 0.0 && number(row, "mpps_per_cpu_second") > 0.0, "{row}");
    }
}

/// A program of the evaluation, with packets and entries for it.
fn p4_program(name: &str) -> String {
    format!("{}/../../programs/p4/{name}.p4", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn p4_programs_are_measured_by_schedules_and_all_packets_hit_their_entries() {
    let schedules =
        "batch=32,pattern=packets,fetch=nothing;batch=32,pattern=groups,sub-batch=all,from=256,trials=off";
    let first = ["--schedule", "batch=1,pattern=packets,fetch=nothing", "--schedules", schedules];
    for (name, macros, entries) in
        [("l2", "ENTRIES=4096", "4000"), ("ipv4", "ENTRIES=1000", "routes=900"), ("l2_crypto", "X=1", "1")]
    {
        let what = [&p4_program(name), macros, "--entries", entries, "--flows", "500"];
        let found = measured(&what, &[&["--parts", "schedules,workers"], &first[..]].concat());
        let measured = rows(&found, "by_schedule");
        assert_eq!(measured.len(), 3, "{name}");
        for row in measured.iter().chain(rows(&found, "by_workers")) {
            assert_eq!(
                (number(row, "sent"), number(row, "dropped")),
                (number(row, "received"), 0.0),
                "{row}"
            );
            assert_eq!(rows(row, "ns_rounds").len(), 2);
        }
        let fetched: Vec<u64> =
            measured.iter().filter_map(|row| row["schedule"]["stages"].as_u64()).collect();
        assert!(fetched[..2] == [0, 0] && (fetched[2] > 0) == (name != "l2_crypto"), "{name}: {fetched:?}");
    }
}

#[test]
fn p4_programs_that_cannot_be_measured_are_refused_with_the_reason() {
    let files = Files::new("bench-user-p4");
    let path = files.path("clone.p4");
    let text = std::fs::read_to_string(p4_program("l2")).unwrap();
    let text = text.replace("known = source", "known = true; clone(CloneType.I2E, 5); known = source");
    std::fs::write(&path, text).unwrap();
    for (arguments, said) in [
        (&[path.as_str()][..], "clones packets in ingress"),
        (&[&p4_program("l2"), "--entries", "none=4"], "no table \"none\""),
        (&[&p4_program("l2"), "ENTRIES=10", "--entries", "source=11"], "11 entries are more than 10"),
        (&[&p4_program("ndn")], "no packet that was tried"),
        (&["builtin:router", "--entries", "4"], "--entries is for P4 programs"),
    ] {
        let (exit, _, errors) = bench(arguments);
        let plain = errors.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(exit == 2 && plain.contains(said), "{arguments:?}: {exit} {errors}");
    }
}

#[test]
fn latency_is_measured_by_offered_load() {
    let files = Files::new("bench-user-latency");
    for what in [&*configuration(&files, MIRROR), "builtin:router:100"] {
        let found = measured(&[what], &["--parts", "latency", "--loads", "5,400"]);
        assert!(number(&found, "max_mpps") > 0.0);
        let [few, many] = rows(&found, "by_load") else { panic!("{found}") };
        assert!(number(few, "p50_ns") > 0.0 && number(few, "p50_ns") <= number(few, "p999_ns"), "{few}");
        // Four times the capacity: the ring is full, and a packet waits for all of it.
        assert!(number(many, "lost_share") > 0.3, "{many}");
        assert!(number(many, "p50_ns") > number(few, "p50_ns"), "{found}");
    }
}

#[test]
fn an_object_with_its_tables_is_measured() {
    let found =
        measured(&["builtin:router:100"], &["--parts", "batches,sizes", "--batches", "64", "--sizes", "256"]);
    for part in ["by_batch", "by_size"] {
        let [row] = rows(&found, part) else { panic!("{found}") };
        assert!(number(row, "sent") > 0.0, "{row}");
        assert_eq!(number(row, "received"), number(row, "sent") + number(row, "dropped"));
    }
}

#[test]
fn what_cannot_be_measured_is_said() {
    let files = Files::new("bench-user-without");
    let own = configuration(&files, "InfiniteSource(LENGTH 64) -> Discard;");
    let found = measured(&[&own], &["--parts", "sizes,batches", "--batches", "8"]);
    let [left_out] = rows(&found, "skipped") else { panic!("{found}") };
    assert_eq!(left_out["part"], "sizes");
    assert_eq!(rows(&found, "by_batch").len(), 1);

    let mut bare = Command::new(env!("CARGO_BIN_EXE_millstream"));
    let (exit, out, errors) =
        answer(bare.args(["bench-user", "builtin:router:100", "--parts", "instructions"]).env("PATH", ""));
    assert_eq!(exit, 0, "{errors}");
    assert!(out.contains("instructions skipped: there is no valgrind"), "{out}");

    for (arguments, said) in [
        (&["/does/not/exist.click"][..], "/does/not/exist.click"),
        (&["/does/not/exist.o"][..], "/does/not/exist.o"),
        (&["builtin:router:100", "x=1"][..], "x=1"),
        (&["builtin:router:100", "--parts", "speed"][..], "batches"),
        (&["builtin:router:100", "--sizes", "20"][..], "60"),
        (&["builtin:router:100", "--batches", "0"][..], "1"),
    ] {
        let (exit, _, errors) = bench(arguments);
        assert!(exit == 2 && errors.contains(said), "{arguments:?}: {errors}");
    }
}

#[test]
fn what_was_measured_is_kept_when_the_user_interrupts() {
    let files = Files::new("bench-user-interrupted");
    let conf = configuration(&files, MIRROR);
    // A quarter of a second per round and point: far from done when the signal comes.
    let run = Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(["bench-user", &conf, "--parts", "batches,sizes,latency", "--batches", "1,32"])
        .args(["--seconds", "250", "--rounds", "1000", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It has measured something once it has used the processor for a while.
    let stat = format!("/proc/{}/stat", run.id());
    let used = || {
        let text = std::fs::read_to_string(&stat).unwrap();
        let field = text.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(11));
        field.and_then(|ticks| ticks.parse::<u64>().ok()).unwrap()
    };
    while used() < 500 {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let pid = rustix::process::Pid::from_child(&run);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let Output { status, stdout, stderr } = run.wait_with_output().unwrap();
    assert_eq!(status.code(), Some(3));
    assert!(String::from_utf8_lossy(&stderr).contains("interrupted"), "{stderr:?}");
    let found: Value = serde_json::from_slice(&stdout).unwrap();
    assert_eq!(found["interrupted"], true);
    let batches = rows(&found, "by_batch");
    assert!(!batches.is_empty(), "{found}");
    for row in batches {
        assert!(number(row, "rounds") >= 1.0 && number(row, "received") > 0.0, "{row}");
    }
    assert_eq!(rows(&found, "by_load").len(), 0);
}
