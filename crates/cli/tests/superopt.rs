//! `millstream opt -O super` as a user has it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("super-{}-{name}", std::process::id()))
}

fn millstream(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millstream")).args(arguments).env("NO_COLOR", "1").output().unwrap()
}

#[test]
fn the_report_says_what_became_of_each_program() {
    let (input, output) = (file("in.o"), file("out.o"));
    std::fs::write(&input, millstream_programs::ROUTER.object).unwrap();
    let (from, to) = (input.to_str().unwrap(), output.to_str().unwrap());
    let ran = millstream(&["opt", "-O", "super", "--budget", "500ms", from, "-o", to, "--json"]);
    assert_eq!(ran.status.code(), Some(0), "{}", String::from_utf8_lossy(&ran.stderr));
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(report["schema"], 1);
    let program = &report["programs"][0];
    let slots = |form: &str| program[form]["slots"].as_u64().unwrap();
    assert!(slots("after") <= slots("fixed") && slots("fixed") <= slots("before"), "{program}");
    assert!(output.exists());
    for path in [input, output] {
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_budget_is_a_time() {
    for bad in ["10 parsecs", "-1s", "fast"] {
        let ran = millstream(&["opt", "-O", "super", &format!("--budget={bad}"), "no.o"]);
        assert_eq!(ran.status.code(), Some(2), "{bad}: {ran:?}");
    }
    let ran = millstream(&["opt", "-O", "7", "no.o"]);
    assert_eq!(ran.status.code(), Some(2), "{ran:?}");
}
