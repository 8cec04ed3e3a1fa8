//! `millstream p4`: programs, P4Info and tests.

#[path = "p4/acceptance.rs"]
mod acceptance;
mod common;
#[path = "p4/interfaces.rs"]
mod interfaces;

use std::path::Path;
use std::process::{Command, Output};

use common::Files;
use serde_json::Value;

/// Forwards by the destination address; what it does not know is dropped.
const BRIDGE: &str = r#"
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> kind; }
struct headers_t { ethernet_t ethernet; }
struct metadata_t {}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start { packet.extract(hdr.ethernet); transition accept; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Forwarding(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    action forward(bit<9> port) { std.egress_spec = port; }
    action drop() { mark_to_drop(std); }
    table stations {
        key = { hdr.ethernet.dst : exact; }
        actions = { forward; drop; }
        default_action = drop();
        size = 64;
    }
    apply { stations.apply(); }
}
control Sending(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) { apply {} }
control Compute(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.ethernet); } }

V1Switch(Parse(), Verify(), Forwarding(), Sending(), Compute(), Emit()) main;
"#;

const TEST: &str = "add stations hdr.ethernet.dst:0x020000000002 forward(port:2)\n\
                    packet 1 020000000002 020000000001 0800 aabb\n\
                    expect 2 020000000002 020000000001 0800 aabb $\n\
                    packet 1 020000000003 020000000001 0800\n";

fn millstream(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millstream")).args(arguments).env("NO_COLOR", "1").output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[track_caller]
fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

fn file(files: &Files, name: &str, content: &str) -> String {
    let path = files.path(name);
    std::fs::write(&path, content).unwrap();
    path
}

#[test]
fn programs_are_accepted_or_rejected_with_their_places() {
    let files = Files::new("p4-check");
    let good = file(&files, "bridge.p4", BRIDGE);
    let ran = millstream(&["p4", "check", &good]);
    assert_eq!((ran.status.code(), text(&ran.stdout)), (Some(0), &*format!("{good}: accepted\n")));

    let wrong = BRIDGE.replace("forward; drop;", "foward; drop;");
    let line = 1 + wrong.lines().position(|l| l.contains("foward")).unwrap();
    let bad = file(&files, "wrong.p4", &wrong);
    let ran = millstream(&["p4", "check", &bad]);
    assert_eq!(ran.status.code(), Some(1));
    let said = text(&ran.stderr);
    assert!(
        said.contains("foward") && said.contains("`forward`") && said.contains(&format!(":{line}:")),
        "{said}"
    );

    // A folder has all, and JSON has the places.
    let folder = std::path::Path::new(&good).parent().unwrap().to_str().unwrap();
    let report = json(&millstream(&["p4", "check", "--json", folder]));
    assert_eq!(
        (&report["schema"], &report["accepted"], &report["rejected"]),
        (&1.into(), &1.into(), &1.into())
    );
    let found = &report["programs"][1]["diagnostics"][0];
    assert_eq!((&found["severity"], &found["line"]), (&"error".into(), &line.into()));
}

#[test]
fn included_files_and_macros_come_from_the_command_line() {
    let files = Files::new("p4-include");
    std::fs::create_dir(files.path("more")).unwrap();
    file(&files, "more/types.p4", "typedef bit<WIDTH> number_t;\n");
    let program = file(&files, "program.p4", "#include <types.p4>\nconst number_t ONE = 1;\n");
    assert_eq!(millstream(&["p4", "check", &program]).status.code(), Some(1));
    let ran = millstream(&["p4", "check", "-I", &files.path("more"), "-D", "WIDTH=8", &program]);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    assert_eq!(millstream(&["p4", "check", "-D", "8=1", &program]).status.code(), Some(2));
}

#[test]
fn the_p4info_of_a_program_is_text_binary_or_json() {
    let files = Files::new("p4-info");
    let program = file(&files, "bridge.p4", BRIDGE);
    let ran = millstream(&["p4", "info", &program]);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    let shown = text(&ran.stdout);
    assert!(shown.contains("Forwarding.stations") && shown.contains("size: 64"), "{shown}");

    let output = files.path("bridge.json");
    assert_eq!(millstream(&["p4", "info", &program, "-o", &output]).status.code(), Some(0));
    let info: Value = serde_json::from_slice(&std::fs::read(&output).unwrap()).unwrap();
    assert_eq!(info["tables"][0]["preamble"]["name"], "Forwarding.stations");
    let binary = millstream(&["p4", "info", &program, "--format", "binary"]);
    assert!(binary.status.success() && !binary.stdout.is_empty() && binary.stdout != ran.stdout);

    let wrong = file(&files, "wrong.p4", &BRIDGE.replace("mark_to_drop(std)", "mark_to_dro(std)"));
    assert_eq!(millstream(&["p4", "info", &wrong]).status.code(), Some(2));
}

#[test]
fn tests_pass_fail_or_are_refused_with_the_reason() {
    let files = Files::new("p4-test");
    file(&files, "bridge.p4", BRIDGE);
    let test = file(&files, "bridge.stf", TEST);
    let both = millstream(&["p4", "test", &test, "--on", "optimized,native"]);
    assert_eq!(both.status.code(), Some(0), "{}", text(&both.stderr));
    assert!(text(&both.stdout).contains("(native): passed\npassed: 2, failed: 0"), "{}", text(&both.stdout));
    for execution in ["interpreter", "optimized", "native"] {
        let ran = millstream(&["p4", "test", &test, "--on", execution]);
        assert_eq!(ran.status.code(), Some(0), "{}{}", text(&ran.stdout), text(&ran.stderr));
        assert!(
            text(&ran.stdout).contains("passed: 1, failed: 0, refused: 0, unusable: 0"),
            "{}",
            text(&ran.stdout)
        );
    }

    let wrong = file(&files, "wrong.stf", &TEST.replace("aabb $", "aabc $"));
    let ran = millstream(&["p4", "test", "--program", &files.path("bridge.p4"), "--json", &wrong]);
    assert_eq!(ran.status.code(), Some(1));
    let report = json(&ran);
    assert_eq!(report["tests"][0]["verdict"], "failed");
    assert!(report["tests"][0]["reason"].as_str().unwrap().contains("line 3"), "{report:#}");

    let own = "extern void own(in bit<48> address);\n";
    let extended = BRIDGE
        .replace("\nheader ethernet_t", &format!("\n{own}header ethernet_t"))
        .replace("apply { stations.apply(); }", "apply { own(hdr.ethernet.dst); stations.apply(); }");
    let program = file(&files, "extended.p4", &extended);
    let report = json(&millstream(&["p4", "test", "--program", &program, "--json", &test]));
    assert_eq!(report["tests"][0]["verdict"], "refused", "{report:#}");
    assert!(report["tests"][0]["reason"].as_str().unwrap().contains("own"), "{report:#}");

    // What cannot be read is no verdict.
    assert_eq!(millstream(&["p4", "test", &files.path("none.stf")]).status.code(), Some(2));
    let lonely = file(&files, "lonely.stf", TEST);
    assert_eq!(millstream(&["p4", "test", &lonely]).status.code(), Some(2));
    let nonsense = file(&files, "bridge-bmv2.stf", "send 1 aabb\n");
    let ran = millstream(&["p4", "test", &nonsense]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(text(&ran.stdout).contains("unusable: line 1"), "{}", text(&ran.stdout));
    // The others of a folder are run.
    let folder = std::path::Path::new(&test).parent().unwrap().to_str().unwrap();
    let ran = millstream(&["p4", "test", folder]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(
        text(&ran.stdout).contains("passed: 1, failed: 0, refused: 0, unusable: 3"),
        "{}",
        text(&ran.stdout)
    );
}

/// Entries of the bridge, as the tutorials write them.
const ENTRIES: &str = r#"{"table_entries": [{"table": "Forwarding.stations", "match":
    {"hdr.ethernet.dst": "02:00:00:00:00:02"}, "action_name": "Forwarding.forward", "action_params": {"port": 2}}]}"#;

/// A capture file in classic form, with microseconds.
fn capture(packets: &[&[u8]]) -> Vec<u8> {
    let mut bytes = 0xa1b2_c3d4u32.to_le_bytes().to_vec();
    [2u16, 4].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    [0u32, 0, 65535, 1].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    for packet in packets {
        let length = packet.len() as u32;
        [1, 2, length, length].iter().for_each(|word: &u32| bytes.extend(word.to_le_bytes()));
        bytes.extend_from_slice(packet);
    }
    bytes
}

const KNOWN: &[u8] = &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0xaa, 0xbb];
const UNKNOWN: &[u8] = &[2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 1, 8, 0];

#[test]
fn a_switch_moves_the_packets_of_capture_files_and_traces_them() {
    let files = Files::new("p4-run");
    let program = file(&files, "bridge.p4", BRIDGE);
    let entries = file(&files, "runtime.json", ENTRIES);
    let (input, output) = (files.path("in.pcap"), files.path("out.pcap"));
    std::fs::write(&input, capture(&[KNOWN, UNKNOWN])).unwrap();
    let ports = [format!("1@{input}"), format!("2@:{output}")];
    let ran = millstream(&[
        "p4",
        "run",
        &program,
        "-i",
        &ports[0],
        "-i",
        &ports[1],
        "--runtime-json",
        &entries,
        "--trace",
        "1",
    ]);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    let written = std::fs::read(&output).unwrap();
    assert_eq!(&written[40..], KNOWN);
    let trace = text(&ran.stdout);
    let line_of = |words: &str| 1 + BRIDGE.lines().position(|line| line.contains(words)).unwrap();
    let state = format!("packet 0: state start ({program}:{})", line_of("state start"));
    let dropped = format!(
        "packet 1: dropped: `egress_spec` is the drop port behind ingress ({program}:{})",
        line_of("mark_to_drop")
    );
    for line in [
        &*state,
        &*dropped,
        "packet 0: port 1: 16 bytes came in",
        "packet 0: end of parser, valid headers: headers.ethernet",
        "packet 0: table Forwarding.stations: hdr.ethernet.dst=0x20000000002: hit, Forwarding.forward(port=0x2)",
        "packet 0: port 2: 16 bytes leave",
        "packet 1: table Forwarding.stations: hdr.ethernet.dst=0x20000000003: miss",
        "packet 1: table Forwarding.stations: default, Forwarding.drop()",
    ] {
        assert!(trace.lines().any(|own| own == line), "{line}\n{trace}");
    }
    // The same natively, and of packets that meet a condition alone.
    for (condition, wanted) in [("dropped", "packet 1: "), ("ethernet.dst=02:00:00:00:00:02", "packet 0: ")] {
        let run = ["p4", "run", &program, "-i", &ports[0], "--runtime-json", &entries, "--on", "native"];
        let ran = millstream(&[&run[..], &["--trace", "1", "--trace-if", condition]].concat());
        let own: Vec<&str> = trace.lines().filter(|line| line.starts_with(wanted)).collect();
        assert_eq!(text(&ran.stdout).lines().collect::<Vec<_>>(), own, "{}", text(&ran.stderr));
    }
    let wrong = file(&files, "wrong.json", &ENTRIES.replace("stations", "station"));
    let ran = millstream(&["p4", "run", &program, "-i", &ports[0], "--runtime-json", &wrong]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(text(&ran.stderr).contains("table_entries 1"), "{}", text(&ran.stderr));
}

#[test]
fn commands_of_a_file_run_before_the_first_packet() {
    let files = Files::new("p4-run-commands");
    let program = file(&files, "bridge.p4", BRIDGE);
    let commands =
        file(&files, "commands.txt", "\n# The station.\ntable_add stations forward 02:00:00:00:00:02 => 2\n");
    let (input, output) = (files.path("in.pcap"), files.path("out.pcap"));
    std::fs::write(&input, capture(&[KNOWN, UNKNOWN])).unwrap();
    let ports = [format!("1@{input}"), format!("2@:{output}")];
    let ran = millstream(&["p4", "run", &program, "-i", &ports[0], "-i", &ports[1], "--commands", &commands]);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    let written = std::fs::read(&output).unwrap();
    assert_eq!(&written[40..], KNOWN);
    let ran =
        millstream(&["p4", "run", &program, "-i", &ports[0], "--commands", &commands, "--measure", "0.01"]);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    // One of two packets leaves.
    let said = text(&ran.stdout);
    let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(numbers[0] > 0 && numbers[0] == 2 * numbers[1], "{said}");
    let measured = ["--measure", "0.01", "--json"];
    let ran = millstream(
        &[&["p4", "run", &program, "-i", &ports[0], "--commands", &commands], &measured[..]].concat(),
    );
    let speed: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    let number = |name: &str| speed[name].as_u64().unwrap();
    assert_eq!(number("schema"), 1);
    assert!(number("packets") > 0 && number("packets") == 2 * number("sent"), "{speed}");
    let rate = number("packets") as f64 / speed["seconds"].as_f64().unwrap() / 1e6;
    assert!((speed["mpps"].as_f64().unwrap() / rate - 1.0).abs() < 1e-9, "{speed}");
    let refused = millstream(&["p4", "run", &program, "-i", &ports[0], "--json"]);
    assert_eq!(refused.status.code(), Some(2), "there is nothing to print as JSON");
    let wrong = file(&files, "wrong.txt", "show_tables\ntable_add station forward 1 => 2\n");
    let ran = millstream(&["p4", "run", &program, "-i", &ports[0], "--commands", &wrong]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(text(&ran.stderr).contains("wrong.txt:2"), "{}", text(&ran.stderr));
}

#[test]
fn only_native_code_that_runs_in_batches_is_adapted() {
    let router = concat!(env!("CARGO_MANIFEST_DIR"), "/../../programs/p4/router.p4");
    let refused = millstream(&["p4", "run", router, "-i", "0@none.pcap", "--adapt"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("--on native"), "{}", text(&refused.stderr));
    let traffic = concat!(env!("CARGO_MANIFEST_DIR"), "/../p4-switch/tests/programs/traffic.p4");
    let files = Files::new("p4-adapt");
    let empty = files.path("empty.pcap");
    std::fs::write(&empty, capture(&[])).unwrap();
    let port = format!("0@{empty}");
    let refused = millstream(&["p4", "run", traffic, "-i", &port, "--on", "native", "--adapt"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("cannot run in batches"), "{}", text(&refused.stderr));
    let ran = millstream(&["p4", "run", traffic, "-i", &port, "--on", "native"]);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
}

#[test]
fn commands_reach_a_running_switch() {
    use std::io::{BufRead as _, BufReader};
    let files = Files::new("p4-cli");
    let program = file(&files, "bridge.p4", BRIDGE);
    let mut switch = Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(["p4", "run", &program, "--cli", "127.0.0.1:0"])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(switch.stderr.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.find(|line| line.starts_with("commands at ")).unwrap();
    let address = line.trim_start_matches("commands at ").to_owned();
    let add = "table_add stations forward 02:00:00:00:00:02 => 2";
    let ran =
        millstream(&["p4", "cli", "--address", &address, "-c", add, "-c", "table_num_entries stations"]);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    assert_eq!(text(&ran.stdout), "Entry has been added with handle 0\n1\n");
    let commands =
        file(&files, "commands.txt", "# a comment\ntable_add stations forward 1 => 1000\nshow_tables\n");
    let ran = millstream(&["p4", "cli", "--address", &address, "--json", &commands]);
    assert_eq!(ran.status.code(), Some(1));
    let answers: Vec<Value> =
        text(&ran.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((answers[0]["failed"].as_bool(), answers[1]["failed"].as_bool()), (Some(true), Some(false)));
    switch.kill().unwrap();
    switch.wait().unwrap();
    let ran = millstream(&["p4", "cli", "--address", &address, "-c", "help"]);
    assert_eq!(ran.status.code(), Some(2));
}

#[test]
fn a_program_is_written_with_all_files_that_it_includes() {
    let files = Files::new("p4-config");
    std::fs::create_dir_all(files.path("more")).unwrap();
    file(&files, "more/types.p4", "typedef bit<WIDTH> port_t;\n");
    let including = BRIDGE.replace("\nheader ethernet_t", "\n#include <types.p4>\nheader ethernet_t");
    let program =
        file(&files, "bridge.p4", &including.replace("forward(bit<9> port)", "forward(port_t port)"));
    let (folder, config) = (files.path("more"), files.path("bridge.config"));
    let ran = millstream(&["p4", "info", "-I", &folder, "-D", "WIDTH=9", &program, "--config-out", &config]);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    std::fs::remove_dir_all(&folder).unwrap();
    let bytes = std::fs::read(&config).unwrap();
    let read = millstream_p4runtime_server::ControlProgram::from_config(&bytes).unwrap();
    assert_eq!(read.description.info.tables.len(), 1);
}

/// Passes change nothing: the object is proven equivalent to one without them. The memory of a packet does not
/// count, and everything else does.
#[test]
fn objects_are_proven_equivalent_to_those_without_passes() {
    let files = Files::new("p4-proofs");
    let build = |source: &str, name: &str, flags: &[&str]| {
        let object = files.path(name);
        let mut arguments = vec!["p4", "build", source, "-o", &object];
        arguments.extend(flags);
        let out = millstream(&arguments);
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        object
    };
    let router = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../programs/p4/router.p4");
    let bridge = file(&files, "bridge.p4", BRIDGE);
    // A search through masks, which loops.
    let ternary = file(&files, "ternary.p4", &BRIDGE.replace("dst : exact", "dst : ternary"));
    for program in [router.to_str().unwrap(), &bridge, &ternary] {
        let plain = build(program, "same.plain.o", &["--without", "passes"]);
        let object = build(program, "same.o", &[]);
        let out = millstream(&[
            "prove",
            "--json",
            "--proof-time",
            "600",
            "--scratch",
            "p4_packet",
            &plain,
            &object,
        ]);
        let report = json(&out);
        let [row] = &report["programs"].as_array().unwrap()[..] else { panic!("{report}") };
        assert_eq!(row["verdict"], "equivalent", "{program}: {report}");
        assert!(row["slots"][0].as_u64() > row["slots"][1].as_u64(), "nothing was optimized: {report}");
        let assumed = report["assumptions"].as_array().unwrap().iter();
        assert!(assumed.clone().any(|a| a.as_str().unwrap().contains("\"p4_packet\"")), "{report}");
    }
    // Two programs that send to different ports.
    let one = file(&files, "one.p4", &SWITCH.replace("PORT", "1"));
    let two = file(&files, "two.p4", &SWITCH.replace("PORT", "2"));
    let [one, two] = [(one, "a.o"), (two, "b.o")].map(|(source, name)| build(&source, name, &[]));
    let out = millstream(&["prove", "--scratch", "p4_packet", &one, &two]);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stdout));
    let out = millstream(&["prove", "--scratch", "no_such_map", &one, &two]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stdout));
    assert!(text(&out.stderr).contains("no_such_map"), "{}", text(&out.stderr));
    let out = millstream(&["p4", "build", &bridge, "-o", &files.path("x.o"), "--without", "dcee"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("there is no pass `dcee`"), "{}", text(&out.stderr));
}

/// A v1model program that sends every packet to PORT.
const SWITCH: &str = "#include <core.p4>
#include <v1model.p4>
struct H {}
struct M {}
parser P(packet_in p, out H h, inout M m, inout standard_metadata_t s) { state start { transition accept; } }
control V(inout H h, inout M m) { apply {} }
control I(inout H h, inout M m, inout standard_metadata_t s) { apply { s.egress_spec = PORT; } }
control E(inout H h, inout M m, inout standard_metadata_t s) { apply {} }
control C(inout H h, inout M m) { apply {} }
control D(packet_out p, in H h) { apply {} }
V1Switch(P(), V(), I(), E(), C(), D()) main;
";
