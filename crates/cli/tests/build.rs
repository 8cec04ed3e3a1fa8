//! `millstream build` as a user calls it: its executables behave like `millstream click` and
//! `millstream native`.

mod common;

use std::path::Path;
use std::process::Command;

use common::Files;

const MILLSTREAM: &str = env!("CARGO_BIN_EXE_millstream");

/// Output of a command that must succeed.
fn says(program: impl AsRef<Path>, args: &[&str]) -> String {
    let out = Command::new(program.as_ref()).args(args).output().expect("run");
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

/// A report without the parts that vary from run to run, and without the description of the compilation.
fn account(text: &str) -> serde_json::Value {
    let mut report: serde_json::Value = serde_json::from_str(text).expect("JSON");
    let fields = report.as_object_mut().expect("an object");
    for field in ["ns_per_packet", "ns_per_packet_p10", "mpps", "compiled", "latency_ns"] {
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
        -> ToDump($out); t[1] -> Discard; \
            rt[1] -> nat :: IPRewriter(pattern 192.0.2.1 1024-65535# - - 0 0) -> ToDump($out);
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
    assert!(help.contains("--io") && !help.contains("--schedule"), "{help}");
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

/// Compiles a C source around a header, with warnings as errors.
fn compiled_by_c(files: &Files, name: &str, source: &str) {
    let (from, to) = (files.path(&format!("{name}.c")), files.path(&format!("{name}.o")));
    std::fs::write(&from, source).expect("written");
    let out =
        Command::new("cc").args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-c", &from, "-o", &to]).output();
    let out = out.expect("a C compiler");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Global names that an object file defines.
fn defined(object: &str) -> Vec<String> {
    let data = std::fs::read(object).expect("written");
    assert_eq!((&data[..4], &data[16..18]), (&b"\x7fELF"[..], &[1, 0][..]), "it is to be linked");
    let listed = says("nm", &["--defined-only", "--extern-only", object]);
    listed.lines().filter_map(|line| line.split(' ').next_back()).map(str::to_owned).collect()
}

#[test]
fn an_object_file_has_one_name_and_a_header_that_c_takes() {
    let files = Files::new("build-obj");
    let (conf, object) = (files.path("my router.click"), files.path("a-router.o"));
    std::fs::write(&conf, "FromDevice($dev) -> c :: Counter -> ToDPDKDevice(out); Idle -> Discard")
        .expect("written");
    let said = says(MILLSTREAM, &["build", &conf, "dev=eth7", "--emit", "obj", "-o", &object]);
    assert!(said.contains("a-router.o") && said.contains("a-router.h"), "{said}");
    assert_eq!(defined(&object), ["a_router_program"]);
    let header = std::fs::read_to_string(files.path("a-router.h")).expect("its header");
    let (from, to) =
        ("#define A_ROUTER_PROGRAM_FROM_0 1 /* eth7 */", "#define A_ROUTER_PROGRAM_TO_0 0 /* out */");
    assert!(header.contains(from) && header.contains(to) && header.contains("read c.count"), "{header}");
    let source = format!(
        "#include \"{}\"\n#include \"{}\"\nconst void *p(void) {{ \
         return A_ROUTER_PROGRAM_FROM_0 ? &a_router_program : 0; }}\n",
        files.path("a-router.h"),
        files.path("a-router.h")
    );
    compiled_by_c(&files, "user", &source);
    // The C program finds the symbol.
    let (user, whole) = (files.path("user.o"), files.path("whole.o"));
    says("ld", &["-r", &user, &object, "-o", &whole]);
    assert_eq!(says("nm", &["--undefined-only", &whole]).matches("a_router_program").count(), 0);
}

#[test]
fn an_object_file_of_an_object_is_made_for_what_it_is_said_and_nothing_is_left_of_a_failure() {
    let files = Files::new("build-obj-native");
    let object = files.path("nat.o");
    says(MILLSTREAM, &["build", "builtin:nat", "--emit", "obj", "--cpu", "x86-64", "-o", &object]);
    assert_eq!(defined(&object), ["nat_program"]);
    let source =
        format!("#include \"{}\"\nconst void *p(void) {{ return &nat_program; }}\n", files.path("nat.h"));
    compiled_by_c(&files, "user", &source);
    let wrong = files.path("wrong.o");
    for args in [["build", "builtin:nobody", "--emit", "obj"], ["build", "builtin:nat", "--emit", "dll"]] {
        let failed = Command::new(MILLSTREAM).args(args).args(["-o", &wrong]).output().expect("run");
        assert_eq!(failed.status.code(), Some(2), "{}", String::from_utf8_lossy(&failed.stderr));
    }
    assert!(!Path::new(&wrong).exists() && !Path::new(&files.path("wrong.h")).exists());
}
