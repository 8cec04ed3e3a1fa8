//! `millstream tune`, `millstream model` and `--plan` as a user runs them. No test checks a time.

#[path = "common/capture.rs"]
mod capture;
mod common;

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

use common::Files;

fn run(arguments: &[&str], files: &Files) -> (i32, String, String) {
    // No curves of the machine that the test runs on.
    let command = Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(arguments)
        .env("XDG_CACHE_HOME", files.path("cache"))
        .output();
    let Output { status, stdout, stderr } = command.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn document(out: &str) -> Value {
    serde_json::from_str(out).unwrap_or_else(|e| panic!("{e}: {out}"))
}

const CONFIGURATION: &str = "FromDevice(in) -> Strip(14) -> CheckIPHeader(CHECKSUM false)
    -> rt :: RadixIPLookup(16.0.0.0/4 0, 64.0.0.0/2 1, 0/0 0);
rt[0] -> DecIPTTL -> q :: Unstrip(14) -> ToDPDKDevice(out);
rt[1] -> Paint(1) -> q;";

/// A plan with settings of every kind.
fn plan(settings: &str) -> String {
    format!("millstream plan 1\nprogram: p\nhash: 0\nversion: 0\nmachine: m\n{settings}end\n")
}

fn frames() -> Vec<Vec<u8>> {
    let frame = |n: u32| {
        let mut frame = vec![0u8; 60];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
        frame[26..30].copy_from_slice(&n.wrapping_mul(0x9e37_79b9).to_be_bytes());
        frame[30..34].copy_from_slice(&n.wrapping_mul(0x85eb_ca6b).to_be_bytes());
        frame
    };
    (1..3000).map(frame).collect()
}

#[test]
fn a_plan_changes_the_schedule_and_no_packet() {
    let files = Files::new("tune-equal");
    let (conf, input) = (files.path("conf.click"), files.path("in.pcap"));
    fs::write(&conf, CONFIGURATION).unwrap();
    fs::write(&input, capture::capture(&frames())).unwrap();
    let mut sent = Vec::new();
    let plans = [
        None,
        Some("batch: 16\npattern: groups\nsub-batch: 4\nunroll: 4\nheaders: 0\nclasses: protocol\n"),
        Some("batch: 1\npattern: pipelined-groups\nfrom: 0\ntrials: off\nwithout: lookups\nwithout: gvn\n"),
        Some("batch: 256\nwithout: descriptors\ndistance: 2\npattern: packets\n"),
    ];
    for (number, settings) in plans.iter().enumerate() {
        let (out, path) = (files.path(&format!("out{number}.pcap")), files.path("p.plan"));
        let io = format!("pcap:{input},{out}");
        let mut arguments = vec!["click", conf.as_str(), "--io", io.as_str(), "--json"];
        if let Some(settings) = settings {
            fs::write(&path, plan(settings)).unwrap();
            arguments.extend(["--plan", path.as_str()]);
        }
        let (exit, printed, errors) = run(&arguments, &files);
        assert_eq!(exit, 0, "{errors}");
        let batch = document(&printed)["schedule"]["batch"].as_u64();
        assert_eq!(batch, [Some(64), Some(16), Some(1), Some(256)][number]);
        assert_eq!(errors.contains("made for another program"), settings.is_some(), "{errors}");
        assert_eq!(errors.contains("made on another machine"), settings.is_some(), "{errors}");
        sent.push(fs::read(out).unwrap());
    }
    assert!(sent[0].len() > 10_000 && sent.iter().all(|bytes| *bytes == sent[0]));
}

#[test]
fn damaged_and_unfit_plans_are_refused_with_the_place() {
    let files = Files::new("tune-damaged");
    let (conf, path) = (files.path("conf.click"), files.path("p.plan"));
    fs::write(&conf, CONFIGURATION).unwrap();
    for (text, said) in [
        (plan("batch: none\n"), "line 6: batch=none"),
        (plan("bach: 3\n"), "did you mean `batch`?"),
        (plan("").replace("end\n", ""), "it was cut"),
        (plan("").replace("plan 1", "plan 2"), "line 1: format 2 is not known"),
        (String::new(), "line 1: not a plan"),
        (plan("template: rt=tall\n"), "is none of"),
        (plan("template: elsewhere=packed\n"), "there is no trie"),
        (plan("without: everything\n"), "is none of"),
    ] {
        fs::write(&path, &text).unwrap();
        let (exit, _, errors) = run(&["click", &conf, "--plan", &path, "--packets", "10"], &files);
        let flat = errors.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
        assert!(exit == 2 && flat.contains(said), "{text}: {exit}: {flat}");
    }
    let (exit, _, errors) =
        run(&["native", "builtin:router:20", "--plan", &path, "--schedule", "batch=3"], &files);
    assert!(exit == 2 && errors.contains("cannot be used with"), "{errors}");
    let (exit, ..) = run(&["native", "builtin:router:20", "--plan", "/does/not/exist"], &files);
    assert_eq!(exit, 2);
}

#[test]
fn a_search_ends_with_a_report_and_its_plan_fits() {
    let files = Files::new("tune-search");
    let (conf, path) = (files.path("conf.click"), files.path("found.plan"));
    fs::write(&conf, CONFIGURATION).unwrap();
    for search in ["evolution", "random", "greedy"] {
        let limits = ["--budget", "20s", "--trials", "4", "--json", "--search", search];
        let arguments =
            [&["tune", conf.as_str(), "--flows", "500", "-o", path.as_str()], &limits[..]].concat();
        let (exit, out, errors) = run(&arguments, &files);
        assert!(exit == 0 || exit == 3, "{errors}");
        let found = document(&out);
        assert_eq!((found["schema"].as_u64(), found["search"].as_str()), (Some(1), Some(search)));
        let trials = found["trials"].as_array().unwrap();
        assert!(trials.len() <= 4, "{out}");
        for trial in trials {
            let failed = trial["failed"].as_str().unwrap_or_default();
            assert!(!failed.contains("differ"), "the same packets whatever the plan: {trial}");
        }
        assert_eq!(found["outputs_compared"], true);
        let verdict = found["verdict"].as_str().unwrap();
        assert_eq!(exit == 0, ["gain", "no-gain"].contains(&verdict), "{verdict}");
        assert_eq!(found["gain"].is_object(), verdict == "gain");
        if exit == 0 {
            let (exit, _, errors) = run(&["click", &conf, "--plan", &path, "--packets", "100"], &files);
            assert_eq!((exit, errors.as_str()), (0, ""), "the plan is for this program and machine");
        }
    }
}

/// Its connections hold the time of their last packet.
#[test]
fn outputs_of_programs_with_connections_are_compared() {
    let files = Files::new("tune-nat");
    let limits = ["--budget", "20s", "--trials", "1", "--json"];
    let (exit, out, errors) = run(&[&["tune", "builtin:nat:100"], &limits[..]].concat(), &files);
    assert!(exit == 0 || exit == 3, "{errors}");
    assert_eq!(document(&out)["outputs_compared"], true, "{out}");
}

#[test]
fn short_budgets_and_memory_limits_end_the_search() {
    let files = Files::new("tune-limits");
    let path = files.path("p.plan");
    let (exit, out, errors) =
        run(&["tune", "builtin:switch", "--budget", "1s", "--json", "-o", &path], &files);
    assert!(exit == 0 || exit == 3, "{errors}");
    assert_eq!(exit == 0, fs::exists(&path).unwrap(), "without an answer nothing is written: {out}");
    let (exit, _, errors) = run(&["tune", "builtin:router", "--memory", "1M", "--budget", "5s"], &files);
    assert!(exit == 2 && errors.contains("more than 1 MiB of memory"), "{exit}: {errors}");
    let (exit, _, errors) = run(&["tune", "builtin:router", "--budget", "soon"], &files);
    assert!(exit == 2 && errors.contains("is no time"), "{errors}");
    let (exit, ..) = run(&["tune", "/does/not/exist.click"], &files);
    assert_eq!(exit, 2);
}

/// Curves of a machine that is made up.
fn curves() -> String {
    let mut text = "millstream curves 2\nmachine: another one\ncycle: 0.4\n".to_owned();
    for (bytes, ns) in [(16_384, 1.5), (1_048_576, 6.0), (268_435_456, 90.0)] {
        for sub_batch in [1, 8, 64] {
            text += &format!("memory: {bytes} {sub_batch} {}\n", ns / f64::from(sub_batch.min(8)));
        }
    }
    for kind in ["memory", "trace", "capture"] {
        for (bytes, batch) in [(64, 1), (64, 256), (1472, 1), (1472, 256)] {
            text += &format!("io: {kind} {bytes} {batch} {}\n", 20 + 60 / batch);
        }
    }
    text + "end\n"
}

#[test]
fn the_model_says_what_bounds_a_program_and_draws_it() {
    let files = Files::new("tune-model");
    let (path, plot) = (files.path("curves"), files.path("plot.svg"));
    fs::write(&path, curves()).unwrap();
    let arguments = ["model", "builtin:router", "--curves", &path, "--plot", &plot, "--measure", "--json"];
    let (exit, out, errors) = run(&arguments, &files);
    assert!(exit == 0 && errors.contains("another machine"), "{errors}");
    let found = document(&out);
    let share = |name: &str| found["bound_by"][name].as_f64().unwrap();
    assert!((share("compute") + share("memory") + share("io") - 1.0).abs() < 1e-6);
    assert!(found["best"]["batch"].as_u64().unwrap() >= found["best"]["sub_batch"].as_u64().unwrap());
    assert!(found["error"]["median"].as_f64().unwrap() >= 0.0);
    assert!(found["measured"].as_array().unwrap().len() == 12);
    assert!(fs::read_to_string(plot).unwrap().ends_with("</svg>\n"));
    let schedule = found["schedule"].as_str().unwrap();
    let (exit, _, errors) =
        run(&["native", "builtin:router", "--schedule", schedule, "--packets", "100"], &files);
    assert_eq!(exit, 0, "{errors}");
    let (exit, _, errors) = run(&["model", "builtin:router"], &files);
    assert!(exit == 3 && errors.contains("lab calibrate --curves"), "{errors}");
    fs::write(&path, curves().replace("end\n", "")).unwrap();
    let (exit, _, errors) = run(&["model", "builtin:router", "--curves", &path], &files);
    assert!(exit == 2 && errors.contains("it was cut"), "{errors}");
}

#[test]
fn curves_are_measured_once_and_found_again() {
    let files = Files::new("tune-curves");
    let (exit, out, errors) = run(&["lab", "calibrate", "--curves", "--seconds", "0.2"], &files);
    assert!(exit == 0 && out.contains("points of memory"), "{errors}");
    let (exit, out, errors) = run(&["model", "builtin:switch", "--json"], &files);
    assert_eq!((exit, errors.as_str()), (0, ""), "{out}");
}
