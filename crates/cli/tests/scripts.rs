//! Scripts and the time of runs, and output of elements, for a user.

mod common;
#[path = "common/driver.rs"]
mod driver;
#[path = "common/flat.rs"]
mod flat;
#[path = "common/pulled.rs"]
mod pulled;

use std::process::{Command, Output};

use common::Files;
use flat::flat;

fn click(name: &str, text: &str, args: &[&str]) -> Output {
    let files = Files::new(&format!("scripts-{name}"));
    let conf = files.path("test.click");
    std::fs::write(&conf, text).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.args(["click", &conf, "--json"]).args(args).current_dir(&files.0).output().expect("run")
}

/// Value of a handler at the end, and the output on standard error.
fn run(name: &str, text: &str, handler: &str) -> (String, String) {
    let out = click(name, text, &["--handler", handler]);
    assert!(out.status.success(), "{}", flat(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let value = report["handlers"][0]["value"].as_str().expect("text").to_owned();
    (value, String::from_utf8(out.stderr).expect("text"))
}

#[test]
fn a_script_lets_packets_come_when_there_are_no_others() {
    let text = "i :: InfiniteSource(ACTIVE false, LIMIT 5) -> c :: Counter -> Discard; \
        DriverManager(wait 0.1s, write i.active true, wait 0.1s)";
    assert_eq!(run("active", text, "c.count"), ("5".into(), String::new()));
    let again = "i :: InfiniteSource(LIMIT 5) -> c :: Counter -> Discard;
        Script(wait 1s, write i.reset, wait 1s, write i.reset, wait 1s, print c.count, stop)";
    assert_eq!(run("again", again, "c.count"), ("15".into(), "15\n".into()));
    let timed = "i :: RatedSource(RATE 10, LIMIT 5, ACTIVE false) -> c :: Counter -> Discard;
        Script(wait 3s, write i.active true, wait 0.25s, print c.count, wait 10s, print c.count)";
    assert_eq!(run("timed", timed, "c.count"), ("5".into(), "3\n5\n".into()));
}

#[test]
fn scripts_and_elements_go_by_one_clock() {
    let text = "RatedSource(RATE 100, LIMIT 1000) -> c :: Counter -> Discard; \
        Script(wait 5s, print c.count, print $(sub $(now) 1), stop)";
    assert_eq!(run("wait", text, "c.count"), ("500".into(), "500\n5\n".into()));
    let times = "RatedSource(RATE 1, LIMIT 3) -> Print(TIMESTAMP true, CONTENTS none) -> Discard; \
        Script(label l, wait 1s, print $(now), goto l)";
    let (_, printed) = run("times", times, "version");
    assert_eq!(printed, "1.000000:   69\n2.000000\n2.000000:   69\n3.000000\n3.000000:   69\n4.000000\n");
}

#[test]
fn a_handler_is_called_at_the_end_of_a_source() {
    let text = "InfiniteSource(LIMIT 10, END_CALL s.run) -> c :: Counter -> Discard; \
        s :: Script(TYPE PASSIVE, print \"done $(c.count)\", write stop)";
    assert_eq!(run("end", text, "c.count"), ("10".into(), "done 10\n".into()));
    let on = "InfiniteSource(LIMIT 2, END_CALL i.active true) -> Discard; \
        i :: InfiniteSource(LIMIT 3, ACTIVE false) -> c :: Counter -> Discard";
    assert_eq!(run("on", on, "c.count"), ("3".into(), String::new()));
    let out = click("both", "InfiniteSource(LIMIT 1, STOP true, END_CALL s.run) -> Discard", &[]);
    assert_eq!(out.status.code(), Some(2), "{}", flat(&out.stderr));
}

#[test]
fn the_end_of_a_source_may_be_that_of_the_run() {
    let script = "-> c :: Counter -> Discard; Script(wait 1s, print \"late\"); \
        DriverManager(wait 9s, print c.count, wait 1s, print \"end\")";
    let stops = format!("InfiniteSource(LIMIT 4, STOP true) {script}");
    assert_eq!(run("stop", &stops, "c.count"), ("4".into(), "4\nlate\nend\n".into()));
    let goes_on = format!("InfiniteSource(LIMIT 4) {script}");
    assert_eq!(run("on", &goes_on, "c.count"), ("4".into(), "late\n4\nend\n".into()));
    let alone =
        "InfiniteSource(LIMIT 4, STOP true) -> c :: Counter -> Discard; Script(wait 1s, print \"never\")";
    assert_eq!(run("alone", alone, "c.count"), ("4".into(), String::new()));
}

#[test]
fn elements_print_on_standard_error_and_to_files() {
    let files = Files::new("scripts-print");
    let conf = files.path("test.click");
    let text = "InfiniteSource(DATA \\<45000014 00000000 40630000 01000001 01000002>, LIMIT 2) \
        -> MarkIPHeader -> p :: Print(a)
        -> IPPrint(b, TIMESTAMP false, OUTFILE out.txt) -> Discard; Script(write p.active false)";
    std::fs::write(&conf, text).expect("written");
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        let out = command.args(["click", &conf]).args(more).current_dir(&files.0).output().expect("run");
        assert!(out.status.success(), "{}", flat(&out.stderr));
        // Standard error has the report, too, for there is a script.
        let text = String::from_utf8(out.stderr).expect("text");
        let printed = text.split_inclusive('\n').filter(|line| line.starts_with("a:"));
        (printed.collect::<String>(), std::fs::read_to_string(files.path("out.txt")).expect("a file"))
    };
    let line = "b: 1.0.0.1 > 1.0.0.2: ip-proto-99\n";
    assert_eq!(run(&[]), (String::new(), line.repeat(2)));
    std::fs::write(&conf, text.replace("false)", "true)").replace("TIMESTAMP true", "TIMESTAMP false"))
        .expect("written");
    let line = "a:   20 | 45000014 00000000 40630000 01000001 01000002\n";
    assert_eq!(run(&[]).0, line.repeat(2));
    assert_eq!(run(&["--workers", "2"]).0, line.repeat(2));
}
