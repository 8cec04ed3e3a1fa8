//! `millstream exec-with`: loaders see what they would have seen, and their programs are faster.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use millstream_kernel::testing;
use millstream_programs::{FIREWALL, NAT, ROUTER};
use serde_json::Value;

use crate::common::Files;

/// Time for each program, in milliseconds: builds for tests are slow.
const TIME: &str = "--time-limit=60000";

/// Runs a loader, watched; returns its output, and the report's lines.
fn watched(files: &Files, loader: &[&str]) -> (Output, Vec<Value>) {
    let report = files.path("report.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.args(["exec-with", TIME, "--json"]).arg(format!("--report={report}"));
    let output = command.arg("--").args(loader).output().expect("started");
    let lines = std::fs::read_to_string(&report).unwrap_or_default();
    (output, lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect())
}

fn outcomes(report: &[Value]) -> Vec<(&str, &str)> {
    report.iter().map(|l| (l["program"].as_str().unwrap(), l["outcome"].as_str().unwrap())).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_static_loader_sees_what_it_would_have_seen() {
    if !testing::require() {
        return;
    }
    let files = Files::new("exec-with-static");
    let program = files.path("static_loader");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/loaders/static_loader.c");
    let cc = Command::new("cc")
        .args(["-static", "-Wall", "-Werror", "-o", &program])
        .arg(source)
        .output()
        .unwrap();
    assert!(cc.status.success(), "{}", text(&cc.stderr));
    let alone = Command::new(&program).output().unwrap();
    let (output, report) = watched(&files, &[&program]);
    assert_eq!(text(&output.stdout), text(&alone.stdout), "{report:?}");
    assert_eq!((output.status.code(), alone.status.code()), (Some(3), Some(3)));
    let expected = [
        ("wasteful", "optimized"),
        ("with_log", "optimized"),
        ("wrong", "kept"),
        ("probe", "kept"),
        ("with_map", "optimized"),
        ("", "kept"),
    ];
    assert_eq!(outcomes(&report), expected, "{report:#?}");
    assert!(report[5]["reason"].as_str().unwrap().contains("credentials"), "{report:#?}");
    assert_eq!(
        (&report[0]["slots_before"], &report[0]["slots_after"]),
        (&6.into(), &2.into()),
        "{report:#?}"
    );
}

/// A folder of the BPF file system that is removed on drop.
struct Pins(PathBuf);

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn programs_that_bpftool_loads_are_optimized_and_behave_as_before() {
    if !testing::require() {
        return;
    }
    if Command::new("bpftool").arg("version").output().is_err() {
        eprintln!("skipped: there is no bpftool");
        return;
    }
    let files = Files::new("exec-with-bpftool");
    let pins = Pins(PathBuf::from(format!("/sys/fs/bpf/millstream-exec-with-{}", std::process::id())));
    std::fs::create_dir_all(&pins.0).unwrap();
    std::fs::write(files.path("packet"), [0u8; 64]).unwrap();
    let (mut optimized, mut reports) = (0, Vec::new());
    for plane in [&ROUTER, &NAT, &FIREWALL] {
        let (object, pin) = (files.path("object.o"), pins.0.join("program").display().to_string());
        std::fs::write(&object, plane.object).unwrap();
        let load = ["bpftool", "prog", "load", &object, &pin];
        let run = || {
            let packet = files.path("packet");
            let run =
                Command::new("bpftool").args(["prog", "run", "pinned", &pin, "data_in", &packet]).output();
            let ran = text(&run.unwrap().stdout);
            ran.split(", duration").next().unwrap_or_default().to_owned()
        };
        assert!(Command::new(load[0]).args(&load[1..]).status().unwrap().success());
        let before = run();
        std::fs::remove_file(&pin).unwrap();
        let (output, report) = watched(&files, &load);
        assert!(output.status.success(), "{}", text(&output.stderr));
        optimized += report.iter().filter(|l| l["outcome"] == "optimized").count();
        reports.push(report);
        assert_eq!(run(), before, "{}", plane.name);
        std::fs::remove_file(&pin).unwrap();
    }
    // What there is to gain depends on the processor.
    assert!(optimized >= 1, "{reports:#?}");
}

#[test]
fn exit_codes_are_those_of_the_loader() {
    if !testing::require() {
        return;
    }
    let files = Files::new("exec-with-codes");
    for (command, code) in [("exit 7", 7), ("kill -TERM $$", 143), ("true", 0)] {
        let (output, report) = watched(&files, &["sh", "-c", command]);
        assert_eq!((output.status.code(), report.len()), (Some(code), 0), "{}", text(&output.stderr));
    }
    let (output, _) = watched(&files, &["no-such-loader"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("no-such-loader"));
}
