//! `millstream lab` as a user runs it: the binary, its output, its exit codes, and the state that it leaves
//! behind.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millstream_kernel::testing;
use serde_json::Value;

/// One laboratory at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Lock for exclusive use of the laboratory; `None` if the kernel cannot be used.
fn alone() -> Option<MutexGuard<'static, ()>> {
    testing::require().then(|| ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}

fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.arg("lab").args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    lab(arguments).output().unwrap()
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}\n{text}\n{errors}"));
    // `equal` has a list of programs, and an earlier schema.
    assert_eq!(value["schema"], if value["programs"].is_array() { 1 } else { 2 }, "{value:#}");
    assert!(value["environment"]["command"].as_str().unwrap().contains("millstream"), "{value:#}");
    value
}

fn exit(output: &Output) -> i32 {
    output.status.code().unwrap()
}

/// Checks that the command succeeded, perhaps with the doubt that the machine was busy, as it may be while
/// tests run.
fn done(output: &Output, report: &Value) {
    let doubtful = !report["reliability_warnings"].as_array().unwrap().is_empty();
    assert_eq!(exit(output), if doubtful { 3 } else { 0 }, "{report:#}");
}

/// A program that redirects is compared with an empty program that redirects, too.
#[test]
fn programs_that_redirect_are_measured() {
    let Some(_alone) = alone() else { return };
    for plane in ["builtin:switch:50", "builtin:nat:50"] {
        let output = run(&["run", plane, "--flows", "100", "--seconds", "1.5", "--points", "0", "--json"]);
        let report = json(&output);
        done(&output, &report);
        assert_eq!(report["verdict"], "XDP_REDIRECT", "{plane}: {report:#}");
    }
}

#[test]
fn a_run_verifies_measures_and_counts() {
    let Some(_alone) = alone() else { return };
    let output =
        run(&["run", "builtin:router:50", "--flows", "100", "--seconds", "1.5", "--points", "0", "--json"]);
    let report = json(&output);
    done(&output, &report);
    let verification = &report["verification"];
    assert_eq!(verification["returned"], verification["sent"], "{report:#}");
    assert_eq!((&verification["missing"], &report["lost"]), (&0.into(), &0.into()), "{report:#}");
    assert_eq!(report["verdict"], "XDP_TX");
    assert!(report["mpps"].as_f64().unwrap() > 0.0, "{report:#}");
    let side = &report["throughput"]["sides"][0];
    let executed = side["executed_instructions"].as_f64().unwrap();
    assert!((40.0..400.0).contains(&executed), "{report:#}");
    if cfg!(target_arch = "x86_64") {
        let machine = &side["executed_jited"];
        let (least, most) = (machine["least"].as_f64().unwrap(), machine["most"].as_f64().unwrap());
        assert!(executed / 2.0 < least && least <= most && most < 3.0 * executed, "{report:#}");
        assert!(most < 20.0 * side["jited_instructions"].as_f64().unwrap(), "{report:#}");
    }
    let latencies = report["latencies"].as_array().unwrap();
    let batches: Vec<_> = latencies.iter().map(|l| l["batch"].as_u64().unwrap()).collect();
    assert_eq!(batches, [64, 8]);
    assert!(
        latencies.iter().all(|l| l["latency"]["p50"].as_u64() <= l["latency"]["p99"].as_u64()),
        "{report:#}"
    );
}

#[test]
fn the_curve_has_its_points_and_a_rate_without_loss() {
    let Some(_alone) = alone() else { return };
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return;
    }
    let arguments =
        ["--flows", "100", "--seconds", "1.5", "--points", "3", "--point-seconds", "0.1", "--json"];
    let output = run(&[&["run", "builtin:firewall:50"], &arguments[..]].concat());
    let report = json(&output);
    done(&output, &report);
    let curve = &report["curve"];
    assert!(
        curve["loss_free_mpps"].as_f64().unwrap() <= curve["capacity_mpps"].as_f64().unwrap() * 1.21,
        "{report:#}"
    );
    assert_eq!(curve["points"].as_array().unwrap().len(), 3, "{report:#}");
}

#[test]
fn a_comparison_too_short_to_tell_says_so() {
    let Some(_alone) = alone() else { return };
    let output = run(&["compare", "builtin:router:50", "builtin:router:50", "--seconds", "0.5", "--json"]);
    let report = json(&output);
    let b = &report["report"]["sides"][1];
    assert_eq!(b["against_first"]["verdict"], "too_few_generations", "{report:#}");
    assert_eq!(b["answers_differ"], 0, "{report:#}");
    assert_eq!(exit(&output), 3);
}

#[test]
fn the_same_program_twice_answers_alike_and_its_ratio_lies_in_its_interval() {
    let Some(_alone) = alone() else { return };
    let arguments = ["--seconds", "4", "--copies", "2", "--json"];
    let output = run(&[&["compare", "builtin:firewall:50", "builtin:firewall:50"], &arguments[..]].concat());
    let report = json(&output);
    let b = &report["report"]["sides"][1];
    assert_eq!(b["answers_differ"], 0, "{report:#}");
    // The distance from 1 depends on the machine: bench/results has that of a quiet one.
    let ratio = b["against_first"]["ratio"].as_f64().unwrap();
    let [least, most] = [0, 1].map(|end| b["against_first"]["interval"][end].as_f64().unwrap());
    assert!(0.0 < least && least <= ratio && ratio <= most, "{report:#}");
}

#[test]
fn tables_that_a_program_has_no_maps_for_are_refused() {
    let Some(_alone) = alone() else { return };
    let output = run(&["compare", "builtin:router:50", "builtin:balancer:5", "--seconds", "1"]);
    assert_eq!(exit(&output), 2, "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no map"), "{output:?}");
}

/// A classic capture of these frames.
fn capture(frames: &[&[u8]]) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    let mut file = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1]);
    for frame in frames {
        let len = frame.len() as u32;
        file.extend([words(&[0, 0, len, len]), frame.to_vec()].concat());
    }
    file
}

#[test]
fn a_capture_is_replayed_against_tables() {
    let Some(_alone) = alone() else { return };
    let path = std::env::temp_dir().join(format!("millstream-test-{}.pcap", std::process::id()));
    std::fs::write(&path, capture(&[&[0xff; 60], &[2; 100], &[2; 1500]])).unwrap();
    let pcap = path.to_str().unwrap();
    let output =
        run(&["run", "builtin:router:50", "--pcap", pcap, "--seconds", "1.5", "--points", "0", "--json"]);
    std::fs::remove_file(&path).unwrap();
    let report = json(&output);
    done(&output, &report);
    let workload = report["workload"].as_str().unwrap();
    assert!(
        workload.contains("capture") && workload.contains("3 frames") && workload.contains("router:50"),
        "{workload}"
    );
    assert_eq!((&report["verdict"], &report["verification"]["returned"]), (&"XDP_PASS".into(), &0.into()));
}

#[test]
fn what_comes_out_is_held_against_what_is_expected() {
    let Some(_alone) = alone() else { return };
    let file = |name: &str, frames: &[&[u8]]| {
        let path = std::env::temp_dir().join(format!("millstream-test-{}-{name}.pcap", std::process::id()));
        std::fs::write(&path, capture(frames)).unwrap();
        path
    };
    // The switch does not know these stations: it learns, and passes everything up.
    let sent = file("sent", &[&[2; 60], &[4; 60]]);
    let (nothing, something) = (file("nothing", &[]), file("something", &[&[2; 60]]));
    let held = |expected: &Path| {
        let files = ["--pcap", sent.to_str().unwrap(), "--expect", expected.to_str().unwrap()];
        let output =
            run(&[&["run", "builtin:switch:50", "--seconds", "1.5", "--points", "0", "--json"], &files[..]]
                .concat());
        (exit(&output), json(&output)["verification"].clone())
    };
    let (good, _) = held(&nothing);
    assert!(good == 0 || good == 3, "{good}");
    let (bad, verification) = held(&something);
    assert_eq!((bad, &verification["missing"], &verification["sent"]), (1, &1.into(), &2.into()));
    for path in [sent, nothing, something] {
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn unusable_input_is_refused_with_its_name() {
    for arguments in [
        &["compare", "/does/not/exist.o", "builtin:router"][..],
        &["run", "builtin:teapot"],
        &["run", "builtin:router", "--locality", "middling"],
        &["run", "builtin:router", "--seconds", "0"],
        &["run", "builtin:router", "--flows", "0"],
        &["run", "builtin:router", "--cpu", "100000"],
    ] {
        let output = run(arguments);
        assert_eq!(exit(&output), 2, "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
}

/// Namespaces of laboratories.
fn names() -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let ours =
        |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("millstream-lab-"));
    entries.map(|e| e.path()).filter(ours).collect()
}

/// The namespace of the laboratory of process `pid`.
fn wait_for(pid: u32) -> PathBuf {
    let deadline = Instant::now() + Duration::from_secs(30);
    let prefix = format!("millstream-lab-{pid}-");
    let is_its = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&prefix));
    loop {
        if let Some(path) = names().into_iter().find(is_its) {
            return path;
        }
        assert!(Instant::now() < deadline, "no namespace of process {pid}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn long() -> std::process::Child {
    let mut command =
        lab(&["run", "builtin:router:50", "--flows", "100", "--seconds", "60", "--points", "0"]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn is_gone(path: &Path) -> bool {
    !path.exists()
}

#[test]
fn an_interrupted_run_cleans_up_and_says_that_there_is_no_answer() {
    let Some(_alone) = alone() else { return };
    let mut child = long();
    let name = wait_for(child.id());
    std::thread::sleep(Duration::from_millis(500));
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let start = Instant::now();
    let status = child.wait().unwrap();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(status.code(), Some(3));
    assert!(is_gone(&name));
}

#[test]
fn what_a_killed_run_leaves_is_cleaned_at_the_next_start_or_by_hand() {
    let Some(_alone) = alone() else { return };
    let mut child = long();
    let name = wait_for(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!is_gone(&name));
    let output = run(&["clean"]);
    assert_eq!(exit(&output), 0);
    assert!(is_gone(&name));
}

/// Sends back frames whose destination ends in a byte that is in its table, and drops others.
const ALLOWED: &str = r#"
struct context { unsigned data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex; };
struct {
    int (*type)[1];
    unsigned *key;
    unsigned *value;
    int (*max_entries)[16];
} allowed __attribute__((section(".maps"), used));
static void *(*lookup)(void *, const void *) = (void *)1;
__attribute__((section("xdp"), used)) int reflect(struct context *c)
{
    unsigned char *data = (void *)(long)c->data, *end = (void *)(long)c->data_end;
    unsigned key;
    if (data + 34 > end)
        return 1;
    key = data[33];
    return lookup(&allowed, &key) ? 3 : 1;
}
char _license[] __attribute__((section("license"), used)) = "GPL";
"#;

#[test]
fn maps_are_filled_from_files_and_empty_ones_of_silent_programs_are_named() {
    let Some(_alone) = alone() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (source, object, frame, table) = (path("x.c"), path("x.o"), path("frame"), path("allowed.json"));
    std::fs::write(&source, ALLOWED).unwrap();
    let clang = std::env::var("MILLSTREAM_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let arguments = ["-O2", "-g", "-target", "bpf", "-c", &source, "-o", &object];
    assert!(Command::new(clang).args(arguments).status().unwrap().success());
    let mut bytes = [0x45; 64];
    bytes[33] = 5;
    std::fs::write(&frame, bytes).unwrap();
    let word = |n: u8| format!(r#"["0x{n:02x}","0x00","0x00","0x00"]"#);
    std::fs::write(&table, format!(r#"[{{"key":{},"value":{}}}]"#, word(5), word(1))).unwrap();
    let filled = format!("allowed={table}");
    let runs: [&[&str]; 3] = [
        &["run", &object, "--points", "0"],
        &["compare", &object, &object],
        &["compare", &object, &object, "--live"],
    ];
    for words in runs {
        let of = |more: &[&str]| {
            let common = ["--packet", &frame, "--seconds", "1", "--json"];
            run(&[words, &common, more].concat())
        };
        let warnings = json(&of(&[]))["warnings"].to_string();
        assert!(
            warnings.contains("no frame comes back") && warnings.contains("allowed"),
            "{words:?}: {warnings}"
        );
        let report = json(&of(&["--map", &filled]));
        assert_eq!(report["warnings"], Value::Null, "{words:?}: {report:#}");
        if words[0] == "run" {
            assert_eq!(report["verdict"], "XDP_TX");
        }
        for (map, reason) in [("none=x", "x"), ("allowed", "NAME=FILE"), (&format!("none={table}"), "no map")]
        {
            let output = of(&["--map", map]);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(exit(&output) == 2 && errors.contains(reason), "{words:?}, {map}: {errors}");
        }
    }
}
