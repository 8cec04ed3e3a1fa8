//! `millstream click --driver`, which behaves as Click's driver, and the configurations in `conf/`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::Files;

/// Runs Click's wrapper of this name in a folder, with this text on standard input.
pub(crate) fn wrapper(name: &str, folder: &Path, args: &[&str], input: &str) -> Output {
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
pub(crate) fn click(args: &[&str], input: &str) -> (Option<i32>, String, String) {
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
    let unused = "<stdin>:1: 'p :: Print' output 0 unused\nRouter could not be initialized!\n";
    assert_eq!(error("Idle -> p :: Print"), unused);
    let (code, _, said) = click(&["-e", "Idle -> h :: Hub(3)"], "");
    let wrong = "config:1: While configuring 'h :: Hub':\n  `Hub` has no further argument\n\
        Router could not be initialized!\n";
    assert_eq!((code, said.as_str()), (Some(2), wrong));
}

/// Standard output of a configuration in simulated time.
pub(crate) fn simulated(text: &str) -> String {
    let (code, out, said) = click(&["--simtime"], text);
    assert_eq!(code, Some(0), "{said}");
    out
}

#[test]
fn a_script_chooses_the_output_of_each_packet() {
    let text = "InfiniteSource(LIMIT 5, STOP true) \
        -> s :: Script(TYPE PACKET, init n 0, set n $(add $n 1), return $(mod $n 2)) -> c :: Counter -> Discard; \
        s [1] -> d :: Counter -> Discard";
    assert_eq!(click(&["-h", "c.count", "-h", "d.count"], text).1, "c.count:\n2\n\nd.count:\n3\n\n");
}

#[test]
fn queues_hold_what_nothing_pulls_and_sources_wait_for_them() {
    let text = "s :: InfiniteSource -> q :: Queue(10) -> Idle; \
        Script(wait 1, print $(s.count) $(q.length) $(q.drops), write q.capacity 4, wait 1, \
            print $(q.length), stop)";
    assert_eq!(simulated(text), "10 10 0\n4\n");
    let held = "InfiniteSource(LIMIT 3) -> q :: Queue -> r :: ReplayUnqueue(STOP 1, ACTIVE false) \
        -> c :: Counter -> Discard; \
        Script(wait 1, print $(q.length) $(c.count), write r.active true, wait 1, \
            print $(q.length) $(c.count), stop)";
    assert_eq!(simulated(held), "3 0\n0 3\n");
}

#[test]
fn replays_begin_when_they_are_told_and_ask_for_the_end_of_the_run() {
    let text = "s :: InfiniteSource(LIMIT 3) -> r :: ReplayUnqueue(STOP 2, ACTIVE false) -> c :: Counter -> Discard; \
        DriverManager(wait 1, print $(s.count) $(c.count) $(r.loaded), write r.active true, pause, \
            print $(c.count) $(r.stop) $(r.active) $(r.loaded), write r.stop 4, write r.active true, pause, \
            print $(c.count))";
    assert_eq!(simulated(text), "0 0 false\n6 0 false true\n18\n");
    let endless = "InfiniteSource(LIMIT 2) -> r :: ReplayUnqueue -> c :: Counter -> Discard; \
        Script(wait 1, set n $(c.count), wait 1ms, print $(sub $(c.count) $n), stop)";
    assert_eq!(simulated(endless), "1000\n");
}

#[test]
fn the_earliest_packet_leaves_first_and_one_for_the_front_before_others() {
    let files = Files::new("driver-sorted");
    let summary = |name: &str, lines: &str| {
        let path = files.0.join(name);
        std::fs::write(&path, format!("!data timestamp ip_id\n{lines}")).expect("written");
        path.display().to_string()
    };
    let (odd, even) = (summary("odd", "1 1\n3 3\n"), summary("even", "2 2\n4 4\n"));
    let text = format!(
        "FromIPSummaryDump({odd}, STOP true) -> Queue -> t :: TimeSortedSched; \
         FromIPSummaryDump({even}, STOP true) -> Queue -> [1] t -> Unqueue \
         -> ToIPSummaryDump(-, FIELDS ip_id, HEADER false)"
    );
    assert_eq!(simulated(&text), "1\n2\n3\n4\n");
    let late = summary("late", "3 3\n2 2\n1 1\n5 5\n");
    let windowed = |buffer: u32| {
        let text = format!(
            "FromIPSummaryDump({late}, STOP true) -> t :: TimeSortedSched(BUFFER {buffer}) \
             -> ToIPSummaryDump(-, FIELDS ip_id, HEADER false); DriverManager(pause, print $(t.well_ordered))"
        );
        simulated(&text)
    };
    assert_eq!(windowed(2), "false\n2\n1\n3\n5\n");
    assert_eq!(windowed(3), "true\n1\n2\n3\n5\n");
    let mixed = "InfiniteSource(DATA abcd, LIMIT 1) -> q :: MixedQueue -> u :: Unqueue(ACTIVE false) \
        -> Print(x, CONTENTS ASCII) -> Discard; b :: InfiniteSource(DATA ABCD, LIMIT 1, ACTIVE false) -> [1] q; \
        Script(wait 1, write b.active true, wait 1, write u.active true, wait 1, stop)";
    let printed = click(&["--simtime"], mixed).2;
    assert_eq!(printed, "x:    4 |  ABCD\nx:    4 |  abcd\n");
}

#[test]
fn a_range_of_times_grows_while_the_packet_behind_it_waits() {
    let files = Files::new("driver-times");
    let path = files.0.join("times");
    std::fs::write(&path, "!data timestamp ip_id\n5 1\n6.5 2\n8 3\n9 4\n20 5\n").expect("written");
    let source = format!("FromIPSummaryDump({}, STOP true)", path.display());
    let dump = "ToIPSummaryDump(-, FIELDS ip_id, HEADER false)";
    let passed = |arguments: &str| simulated(&format!("{source} -> TimeFilter({arguments}) -> {dump}"));
    assert_eq!(passed("6, 9"), "2\n3\n");
    assert_eq!(passed("START_AFTER 1, INTERVAL 2s"), "2\n");
    assert_eq!(passed("END_AFTER 3.5"), "1\n2\n3\n");
    assert_eq!(passed("START 0"), "1\n2\n3\n4\n5\n");
    let late = format!("{source} -> t :: TimeFilter(6, 9); t -> Discard; t [1] -> {dump}");
    assert_eq!(simulated(&late), "1\n4\n5\n");
    let more = format!(
        "{source} -> t :: TimeFilter(END 6, END_CALL more.run $t) -> {dump}; \
         more :: Script(TYPE PASSIVE, print $1, goto end $(ge $1 9), write t.extend_interval 1, label end)"
    );
    // Every second is added for itself; the last time is too late.
    assert_eq!(simulated(&more), "6.500000\n8.000000\n8.000000\n9.000000\n1\n2\n3\n");
    let handlers = format!(
        "{source} -> t :: TimeFilter(START_AFTER 1, INTERVAL 3) -> Discard; \
         DriverManager(print $(t.start) $(t.end), pause, print $(t.start) $(t.end) $(t.interval), \
             write t.end 30, print $(t.interval), stop)"
    );
    assert_eq!(simulated(&handlers), "1.000000 4.000000\n6.000000 9.000000 3.000000\n24.000000\n");
}

#[test]
fn a_script_writes_the_data_of_a_source() {
    let text = "s :: InfiniteSource(DATA abc, LIMIT 1) -> Print(x, CONTENTS ASCII) -> Discard; \
        Script(wait 1, write s.data hello!!!, print $(s.data) $(s.length), write s.reset, wait 1, \
            write s.length 12, write s.reset, wait 1, stop)";
    let (_, out, said) = click(&["--simtime"], text);
    assert_eq!(out, "hello!!! 8\n");
    assert_eq!(said, "x:    3 |  abc\nx:    8 |  hello!!!\nx:   12 |  hello!!! hell\n");
}

#[test]
fn optimizers_leave_the_configuration_to_the_compiler() {
    let text = "Idle -> c :: Classifier(12/0800, -) -> Discard; c [1] -> Discard";
    let flat = wrapper("click-flatten", Path::new("/tmp"), &[], text).stdout;
    for name in ["click-fastclassifier", "click-devirtualize"] {
        let out = wrapper(name, Path::new("/tmp"), &[], text);
        assert_eq!((out.status.code(), &out.stdout), (Some(0), &flat), "{name}");
    }
    let align =
        wrapper("click-align", Path::new("/tmp"), &["-e", "s :: X -> c :: CheckIPHeader -> d :: Y"], "");
    let aligned = "s :: X;\nc :: CheckIPHeader;\nd :: Y;\nAlign@click_align@4 :: Align(4, 0);\n\
        AlignmentInfo@click_align@5 :: AlignmentInfo(c  4 0);\n\n\
        s -> Align@click_align@4\n    -> c\n    -> d;\n";
    assert_eq!(String::from_utf8_lossy(&align.stdout), aligned);
    let program = " 0  12/08000000%ffff0000  yes->[0]  no->[1]\nsafe length 14\nalignment offset 0\n";
    assert_eq!(click(&["-qh", "c.program"], text).1, program);
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
