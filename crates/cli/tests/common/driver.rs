//! `millstream click --driver`, which behaves as Click's driver, and the configurations in `conf/`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::Files;

/// Runs Click's wrapper of this name in a folder, with this text on standard input.
fn wrapper(name: &str, folder: &Path, args: &[&str], input: &str) -> Output {
    let path = root().join("dist/click").join(name);
    let mut command = Command::new(path);
    command.env("MILLSTREAM", env!("CARGO_BIN_EXE_millstream")).args(args).current_dir(folder);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().expect("the wrapper runs");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("written");
    child.wait_with_output().expect("it ends")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Exit code, standard output and standard error of `click`.
fn click(args: &[&str], input: &str) -> (Option<i32>, String, String) {
    let out = wrapper("click", Path::new("/tmp"), args, input);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (out.status.code(), text(out.stdout), text(out.stderr))
}

const COUNTED: &str = "InfiniteSource(LIMIT 5, STOP true) -> c :: Counter -> d :: Discard";

#[test]
fn handlers_are_printed_alone_or_under_their_names() {
    let done = |out: &str| (Some(0), out.to_owned(), String::new());
    assert_eq!(click(&["-e", COUNTED, "-h", "c.count"], ""), done("5\n"));
    assert_eq!(click(&["-h", "Counter.count"], COUNTED), done("5\n"));
    let both = "c.count:\n5\n\nd.count:\n5\n\n";
    assert_eq!(click(&["-h", "c.count", "-h", "d.count", "-"], COUNTED), done(both));
    assert_eq!(click(&["-h", "?.count"], COUNTED), done(both));
    assert_eq!(click(&["-qh", "c.count"], COUNTED), done("0\n"));
}

#[test]
fn a_handler_may_be_the_exit_code() {
    assert_eq!(click(&["-x", "c.count"], COUNTED).0, Some(5));
    let script = |value: &str| format!("{COUNTED}; s :: Script(export done {value})");
    assert_eq!(
        [script("true"), script("false")].map(|text| click(&["-x", "s.done"], &text).0),
        [Some(0), Some(1)]
    );
}

#[test]
fn the_flat_form_is_that_of_clicks_tools() {
    let text = "require(a) elementclass P { input -> Null -> Paint(1) -> output } \
        Idle -> x :: P -> t :: Tee -> d :: Discard; t [1] -> Discard";
    let flat = "require(a);\n\nIdle@1 :: Idle;\nt :: Tee;\nd :: Discard;\nDiscard@5 :: Discard;\n\
        x/Null@1 :: Null;\nx/Paint@2 :: Paint(1);\n\n\
        Idle@1 -> x/Null@1\n    -> x/Paint@2\n    -> t\n    -> d;\nt [1] -> Discard@5;\n";
    let out = wrapper("click-flatten", Path::new("/tmp"), &[], text);
    assert_eq!(String::from_utf8_lossy(&out.stdout), flat);
    assert_eq!(click(&["-qo-"], text).1, flat);
    assert_eq!(click(&["-qo-"], flat).1, flat);
}

#[test]
fn errors_are_lines_with_their_places() {
    let error = |text: &str| click(&["-q"], text).2;
    assert_eq!(error("\n-> Null;"), "<stdin>:2: syntax error near '->'\n");
    let twice = "x :: Idle;\n# 7 \"b\"\nx :: Idle;";
    assert_eq!(
        error(twice),
        "b:7: redeclaration of element 'x'\n<stdin>:1: element 'x' previously declared here\n"
    );
    assert_eq!(error("Idle -> p :: Print"), "<stdin>:1: 'p :: Print' output 0 unused\n");
}

#[test]
fn scripts_print_alone_and_time_is_real_unless_it_is_simulated() {
    let text = "Script(set x $(now), wait 50ms, print $(ge $(sub $(now) $x) 0.05), stop)";
    let start = std::time::Instant::now();
    assert_eq!(click(&[], text), (Some(0), "true\n".into(), String::new()));
    assert!(start.elapsed().as_millis() >= 50);
    let hour = text.replace("50ms", "1000hr");
    assert_eq!(click(&["--simtime"], &hour), (Some(0), "true\n".into(), String::new()));
}

#[test]
fn every_example_begins_with_a_description_and_runs() {
    let files = Files::new("driver-conf");
    let folder = std::fs::read_dir(root().join("conf")).expect("a folder");
    let all: Vec<PathBuf> = folder.map(|entry| entry.expect("an entry").path()).collect();
    assert!(all.len() >= 20, "{all:?}");
    for path in all {
        let text = std::fs::read_to_string(&path).expect("read");
        let description = text.lines().take_while(|line| line.starts_with("// ")).count();
        assert!(description >= 2, "{}", path.display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        let out = command.arg("click").arg(&path).args(["--packets", "2000"]).current_dir(&files.0).output();
        let out = out.expect("it runs");
        assert!(out.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&out.stderr));
    }
}
