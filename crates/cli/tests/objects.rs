//! `millstream opt` and `millstream inspect` as a user runs them: the binary, its output, its exit codes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use millstream_object::Object;
use serde_json::Value;

/// A file that is removed on drop.
struct File(PathBuf);

impl File {
    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // It may never have been written.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn file(name: &str) -> File {
    File(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id())))
}

/// The router's object as a file.
fn router(name: &str) -> File {
    let file = file(name);
    std::fs::write(&file.0, millstream_programs::ROUTER.object).unwrap();
    file
}

fn millstream(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millstream")).args(arguments).env("NO_COLOR", "1").output().unwrap()
}

fn done(arguments: &[&str]) -> String {
    let output = millstream(arguments);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains('\u{1b}'), "no colours: {text}");
    text
}

/// Error message of a command whose input cannot be used.
fn refused(arguments: &[&str]) -> String {
    let output = millstream(arguments);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

/// The router's object for a big-endian machine.
fn big_endian_router(name: &str) -> File {
    let object = file(name);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let clang = std::env::var("MILLSTREAM_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let headers = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let arguments =
        ["-O2", "-g", "-target", "bpfeb", "-mcpu=v3", "-fno-strict-aliasing", "-Iprograms/include"];
    let mut command = Command::new(clang);
    command.current_dir(root).args(arguments).args(["-idirafter", &headers]);
    let source = "programs/router/router.bpf.c";
    assert!(command.args(["-c", source, "-o", object.path()]).status().unwrap().success());
    object
}

#[test]
fn big_endian_objects_are_optimized_and_proven_and_not_loaded() {
    let (object, output) = (big_endian_router("big.o"), file("big-out.o"));
    let proven = done(&["opt", object.path(), "--prove", "-o", output.path()]);
    assert!(proven.contains("equivalent"), "{proven}");
    let written = std::fs::read(output.path()).unwrap();
    assert_eq!(written[..6], *b"\x7fELF\x02\x02", "as the input");
    assert!(done(&["inspect", object.path()]).contains("for big-endian machines"));
    for arguments in [
        &["verify", object.path()][..],
        &["opt", object.path(), "--stats"],
        &["opt", object.path(), "--repair"],
        &["run", object.path(), "--dev", "lo"],
        &["native", object.path(), "--packets", "1"],
    ] {
        let answer = millstream(arguments);
        let errors = String::from_utf8_lossy(&answer.stderr);
        assert_eq!(answer.status.code(), Some(4), "{arguments:?}: {errors}");
        assert!(errors.contains("big-endian"), "{arguments:?}: {errors}");
    }
}

#[test]
fn a_big_endian_program_runs_on_memory_of_its_order() {
    use std::io::Write as _;
    // r0 = *(u32 *)(r1 + 0); r0 = be16 r0; exit
    let program = b"61 01 00 00 00 00 00 00 dc 00 00 00 00 00 00 10 95 00 00 00 00 00 00 00";
    for flags in [&[][..], &["--optimize"], &["--terms"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_millstream"))
            .args(["exec", "--big-endian", "01020304"])
            .args(flags)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(program).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "304", "{flags:?}");
    }
}

#[test]
fn our_data_planes_are_objects_by_name() {
    let output = file("builtin-out.o");
    done(&["opt", "builtin:router", "-o", output.path()]);
    let written = Object::parse("out.o", &std::fs::read(output.path()).unwrap()).unwrap();
    let embedded = Object::parse("router", millstream_programs::ROUTER.object).unwrap();
    assert_eq!(written.programs.len(), embedded.programs.len());
    let problem = refused(&["opt", "builtin:ruter"]);
    assert!(problem.contains("builtin:ruter") && problem.contains("router"), "{problem}");
}

#[test]
fn opt_writes_an_object_that_its_report_describes() {
    let (input, output) = (router("written.o"), file("written-out.o"));
    let report = done(&["opt", input.path(), "-o", output.path(), "--json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["schema"], 1);
    let written = Object::parse("router.o", &std::fs::read(output.path()).unwrap()).unwrap();
    let slots = |name: &str| written.functions.iter().find(|f| f.name == name).map_or(0, |f| f.insns.len());
    for function in report["functions"].as_array().unwrap() {
        let after = function["after"].as_u64().unwrap();
        assert_eq!(after, slots(function["name"].as_str().unwrap()) as u64, "{function}");
        assert!(after <= function["before"].as_u64().unwrap(), "{function}");
    }
}

#[test]
fn opt_says_what_each_program_costs_before_and_after() {
    let (input, table) = (router("costs.o"), file("slow.costs"));
    let costs = |arguments: &[&str]| {
        let report: Value = serde_json::from_str(&done(arguments)).unwrap();
        report["costs"].as_array().unwrap()[0].clone()
    };
    let at = |row: &Value, when: &str, what: &str| row[when][what].as_u64().unwrap();
    let row = costs(&["opt", input.path(), "--json"]);
    for what in ["slots", "jited"] {
        assert!(at(&row, "after", what) <= at(&row, "before", what), "{row}");
    }
    std::fs::write(table.path(), "# loads that take long\nload 500 400\n").unwrap();
    let slow = costs(&["opt", input.path(), "--json", "--costs", table.path()]);
    assert!(at(&slow, "before", "cycles") > 2 * at(&row, "before", "cycles"), "{slow} against {row}");
    std::fs::write(table.path(), "\nload fast").unwrap();
    assert!(refused(&["opt", input.path(), "--costs", table.path()]).contains("line 2"));
}

#[test]
fn opt_names_the_passes_that_there_are() {
    let passes = done(&["opt", "--list-passes", "--json"]);
    let passes: Value = serde_json::from_str(&passes).unwrap();
    for pass in passes["passes"].as_array().unwrap() {
        let name = pass["name"].as_str().unwrap();
        assert!(done(&["opt", "--list-passes"]).lines().any(|line| line.starts_with(name)), "{name}");
    }
    let input = router("passes.o");
    for flag in ["--pass", "--dump-after"] {
        let error = refused(&["opt", input.path(), flag, "no-such-pass"]);
        assert!(error.contains("no-such-pass") && error.contains("jump-threading"), "{error}");
    }
}

#[test]
fn opt_runs_single_passes_and_dumps_the_ir_after_them() {
    let input = router("dump.o");
    let output = millstream(&["opt", input.path(), "--pass", "gvn", "--pass", "dce", "--dump-after", "dce"]);
    let dumped = String::from_utf8(output.stderr).unwrap();
    assert!(dumped.starts_with("; after dce\n"), "{dumped}");
    assert!(!dumped.contains("; after gvn"), "{dumped}");
    assert!(dumped.contains("block0("), "{dumped}");
}

#[test]
fn inspect_shows_what_programs_do_to_maps() {
    let input = router("maps.o");
    let report: Value = serde_json::from_str(&done(&["inspect", input.path(), "--maps", "--json"])).unwrap();
    let access = |name: &str| {
        let maps = report["maps"].as_array().unwrap();
        maps.iter().find(|m| m["name"] == name).map(|m| m["access"].as_str().unwrap().to_string())
    };
    assert_eq!(access(millstream_programs::router::ROUTES).as_deref(), Some("read-only"));
    assert_eq!(access(millstream_programs::router::NEXT_HOPS).as_deref(), Some("read-only"));
    assert_eq!(access(millstream_programs::router::COUNTERS).as_deref(), Some("written"));
    let text = done(&["inspect", input.path(), "--maps"]);
    assert!(text.contains("1 lookup\n") && !text.contains(" 1 lookups"), "{text}");
}

#[test]
fn inspect_shows_instructions_ir_and_graphs() {
    let input = router("shown.o");
    let text = done(&["inspect", input.path(), "--disasm", "--ir", "--cfg"]);
    assert!(
        text.contains("call bpf_map_lookup_elem#1") && text.contains("block0(") && text.contains("exit"),
        "{text}"
    );
    assert!(done(&["inspect", input.path(), "--cfg", "dot"]).starts_with("digraph"));
    let object = Object::parse("router.o", millstream_programs::ROUTER.object).unwrap();
    let name = &object.programs[0].name;
    let picture = done(&["inspect", input.path(), "--prog", name, "--cfg", "svg"]);
    assert!(picture.starts_with("<svg ") && picture.trim_end().ends_with("</svg>"), "{picture}");
    let error = refused(&["inspect", input.path(), "--prog", "nobody"]);
    assert!(error.contains("nobody") && error.contains(name.as_str()), "{error}");
}

#[test]
fn an_object_without_programs_is_said_to_have_none() {
    let input = file("data.o");
    let source = file("data.c");
    std::fs::write(&source.0, "int x = 1;").unwrap();
    let clang = std::env::var("MILLSTREAM_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let arguments = ["-g", "-target", "bpf", "-c", source.path(), "-o", input.path()];
    assert!(Command::new(clang).args(arguments).status().unwrap().success());
    assert_eq!(done(&["opt", input.path()]), "there are no programs in it\n");
    let overview = done(&["inspect", input.path()]);
    assert!(overview.contains("there are no programs in it\n"), "{overview}");
    assert!(overview.contains("1 entry"), "{overview}");
}

#[test]
fn instruction_set_versions_are_those_that_exist() {
    let input = router("isa.o");
    assert!(refused(&["opt", input.path(), "--isa", "5"]).contains("1 to 4"));
    assert!(done(&["opt", input.path(), "--isa", "4"]).contains("slots before"));
}

/// Compiles text, or a fixture of the crate that reads objects.
fn compiled(name: &str, source: Option<&str>) -> File {
    let (object, text) = (file(&format!("{name}.o")), file(&format!("{name}.c")));
    let fixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../object/tests/fixtures/{name}.bpf.c"));
    let path = match source {
        Some(source) => {
            std::fs::write(&text.0, source).unwrap();
            text.path()
        }
        None => fixture.to_str().unwrap(),
    };
    let clang = std::env::var("MILLSTREAM_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let machine = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let arguments = ["-O2", "-g", "-target", "bpf", "-mcpu=v3", &machine, "-c", path, "-o", object.path()];
    assert!(Command::new(clang).args(arguments).status().unwrap().success());
    object
}

#[test]
fn one_bad_program_keeps_no_other_from_being_optimized_or_shown() {
    let (input, output) = (compiled("strange", None), file("strange-out.o"));
    let made = millstream(&["opt", input.path(), "-o", output.path(), "--json"]);
    let errors = String::from_utf8(made.stderr).unwrap();
    assert_eq!(made.status.code(), Some(0), "{errors}");
    for name in ["jumps", "last", "foreign"] {
        assert!(errors.contains(&format!("function {name} is left as it is")), "{name}: {errors}");
    }
    let report: Value = serde_json::from_slice(&made.stdout).unwrap();
    let plain = report["functions"].as_array().unwrap().iter().find(|f| f["name"] == "plain").unwrap();
    assert!(plain["outcome"]["not_understood"].is_null(), "{plain}");
    let data = std::fs::read(output.path()).unwrap();
    let (was, is) = (
        Object::parse("a.o", &std::fs::read(input.path()).unwrap()).unwrap(),
        Object::parse("a.o", &data).unwrap(),
    );
    let insns = |o: &Object, name: &str| o.functions.iter().find(|f| f.name == name).unwrap().insns.clone();
    for name in ["jumps", "last", "foreign"] {
        assert_eq!(insns(&was, name), insns(&is, name), "{name}");
    }
    let shown = done(&["inspect", input.path()]);
    assert!(shown.contains("plain") && shown.contains("jumps is not understood"), "{shown}");
}

/// A program that the verifier rejects, one that it accepts, and one that loaders load only on request.
const THREE: &str = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n
    SEC(\"xdp\") int bad(struct xdp_md *ctx) { return *(char *)(long)ctx->data; }
    SEC(\"xdp\") int good(struct xdp_md *ctx) { return ctx->rx_queue_index & 1; }
    SEC(\"?xdp\") int later(struct xdp_md *ctx) { return 2; }
    char _license[] SEC(\"license\") = \"GPL\";";

#[test]
fn an_original_that_the_kernel_rejects_is_a_no() {
    if !millstream_kernel::testing::require() {
        return;
    }
    let (input, output) = (compiled("three", Some(THREE)), file("three-out.o"));
    let made = millstream(&["opt", "--stats", input.path(), "-o", output.path()]);
    assert_eq!(made.status.code(), Some(1), "{made:?}");
    assert!(output.0.exists(), "an object is written all the same");
    let asked = millstream(&["verify", input.path()]);
    let text = String::from_utf8(asked.stdout).unwrap();
    assert!(text.contains("later") && text.contains("skipped"), "{text}");
    let asked = millstream(&["verify", "--all", input.path()]);
    let text = String::from_utf8(asked.stdout).unwrap();
    assert!(text.contains("2 accepted, 1 not"), "{text}");
}

#[test]
fn without_rights_nothing_is_asked_and_the_exit_code_says_so() {
    let input = router("without-rights.o");
    let bin = env!("CARGO_BIN_EXE_millstream");
    let same = input.path();
    for arguments in
        [&["opt", "--stats", same][..], &["verify", same], &["lab", "equal", same, same], &["demo"]]
    {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-all", "--inh-caps=-all", "--", bin]).args(arguments);
        let Ok(out) = command.output() else { return eprintln!("skipped: no setpriv") };
        if String::from_utf8_lossy(&out.stderr).contains("setpriv:") {
            return eprintln!("skipped: {}", String::from_utf8_lossy(&out.stderr));
        }
        assert_eq!(out.status.code(), Some(4), "{arguments:?}: {out:?}");
    }
}
