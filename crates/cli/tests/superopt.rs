//! `millstream opt -O super` as a user runs it.

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
fn under_a_latency_goal_one_of_the_best_proven_forms_is_returned_and_all_are_measured() {
    if !millstream_kernel::testing::require() {
        return;
    }
    let (input, output) = (file("latency-in.o"), file("latency-out.o"));
    std::fs::write(&input, millstream_programs::ROUTER.object).unwrap();
    let (from, to) = (input.to_str().unwrap(), output.to_str().unwrap());
    let search = ["opt", "-O", "super", "--goal", "latency", "--budget", "2m", "--rounds", "2"];
    let ran = millstream(&[&search[..], &[from, "-o", to, "--json"]].concat());
    assert_eq!(ran.status.code(), Some(0), "{}", String::from_utf8_lossy(&ran.stderr));
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let measured = &report["measured"];
    assert_eq!(measured["not_measured"], Value::Null, "{measured}");
    let candidates = measured["candidates"].as_array().unwrap();
    let names: Vec<&str> = candidates.iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["searched", "other 1", "other 2", "other 3", "other 4", "static", "original"]);
    // The best five by prediction come first, the best of all in front, and each is proven.
    let cycles: Vec<u64> = candidates.iter().map(|c| c["cost"]["cycles"].as_u64().unwrap()).collect();
    assert!(cycles[..6].is_sorted() && cycles[0] < cycles[5], "{cycles:?}");
    let proven = |c: &Value| c["proof"].as_str().unwrap().contains("equivalent, as a whole");
    assert!(candidates[..6].iter().all(proven), "{measured}");
    // Each was measured beside the first, with an interval.
    let sides = measured["report"]["sides"].as_array().unwrap();
    assert_eq!(sides.iter().map(|s| s["name"].as_str().unwrap()).collect::<Vec<_>>(), names);
    for side in &sides[1..] {
        let number = |n: &Value| n.as_f64().unwrap();
        let (ratio, interval) = (&side["against_first"]["ratio"], &side["against_first"]["interval"]);
        assert!(number(&interval[0]) <= number(ratio) && number(ratio) <= number(&interval[1]), "{side}");
    }
    // The written form is the one reported as returned.
    let returned = candidates.iter().find(|c| c["form"] == measured["returned"]).unwrap();
    let written = millstream(&["inspect", to, "--json"]);
    let written: Value = serde_json::from_slice(&written.stdout).unwrap();
    let functions = written["functions"].as_array().unwrap();
    let slots: u64 = functions.iter().map(|f| f["slots"].as_u64().unwrap()).sum();
    assert_eq!(returned["cost"]["slots"], slots, "{written}");
    assert_eq!(millstream(&["prove", from, to]).status.code(), Some(0));
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

/// A raw program, as a file in a folder that is removed on drop.
struct Case {
    folder: PathBuf,
}

impl Case {
    fn new(name: &str, text: &str) -> Case {
        let folder = file(name);
        std::fs::create_dir_all(&folder).unwrap();
        let insns = millstream_isa::asm::assemble(text).unwrap();
        let bytes: Vec<u8> =
            millstream_isa::encode_all(&insns).iter().flat_map(|raw| raw.to_bytes()).collect();
        std::fs::write(folder.join("xdp_case.insns"), bytes).unwrap();
        Case { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    /// A script in the folder.
    fn script(&self, name: &str, text: &str) -> String {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.folder.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn command(&self, flags: &[&str]) -> Command {
        let mut command = self.plain();
        command.args(["--cache", "off"]).args(flags);
        command
    }

    /// The same with the default cache.
    fn plain(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.args(["opt", "-O", "super", &self.path("xdp_case.insns"), "-o", &self.path("out.insns")]);
        command.arg("--json").env("NO_COLOR", "1");
        command
    }

    /// Superoptimizes; returns the program's report, and the messages.
    fn done(&self, command: &mut Command) -> (Value, String) {
        let ran = command.output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(0), "{said}");
        let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
        let slots = std::fs::metadata(self.path("out.insns")).unwrap().len() / 8;
        assert_eq!(report["programs"][0]["after"]["slots"], slots, "{report}");
        (report, said)
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The lowest bit of a number and of its square are equal: the result is two.
const ARITHMETIC: &str = "r2 = *(u32 *)(r1 +4)\nr6 = *(u32 *)(r1 +0)\nr3 = r6\nr3 += 16\nr0 = 1\nif r3 > r2 goto out\n\
    r0 = *(u16 *)(r6 +0)\nr4 = r0\nr4 *= r0\nr4 &= 1\nr0 &= 1\nr0 ^= r4\nr0 += 2\nout:\nexit\n";

/// A search that ends after as many rounds, even with slow solvers: its result depends on nothing else.
const ROUNDS: [&str; 4] = ["--rounds", "3", "--budget", "2m"];

#[test]
fn without_a_solver_what_needs_none_is_found_and_the_rest_stays() {
    let case = Case::new("no-solver", ARITHMETIC);
    let (report, said) = case.done(case.command(&["--budget", "300ms"]).env("PATH", &case.folder));
    assert!(said.contains("no solver"), "{said}");
    assert_eq!(report["programs"][0]["search"]["asked"], 0, "{report}");
}

#[test]
fn a_solver_that_crashes_or_lies_proves_nothing_and_breaks_nothing() {
    let case = Case::new("bad-solver", ARITHMETIC);
    let lies = "case \"$1\" in --version) echo 'Z3 version 9.9.9'; exit;; esac\n\
                while read -r line; do case \"$line\" in\n\
                *:name*) echo '(:name \"Z3\")';; *:version*) echo '(:version \"1.0\")';;\n\
                *check-sat*) echo unsat;; *echo*) echo end;; esac; done";
    let scripts = [
        case.script("crashes", "kill -SEGV $$"),
        case.script("z3-lies", lies),
        case.script("says-nothing", "exit 0"),
    ];
    let (alone, _) = case.done(case.command(&ROUNDS).env("PATH", &case.folder));
    for script in scripts {
        let (report, _) = case.done(&mut case.command(&[&ROUNDS[..], &["--solver", &script]].concat()));
        let after = |report: &Value| report["programs"][0]["after"]["slots"].clone();
        assert_eq!(after(&report), after(&alone), "{script}: {report}");
        assert_eq!(report["programs"][0]["proof"], alone["programs"][0]["proof"], "{script}");
    }
}

#[test]
fn a_budget_of_zero_gives_the_static_form() {
    let case = Case::new("zero", ARITHMETIC);
    let (report, _) = case.done(&mut case.command(&["--budget", "0"]));
    let program = &report["programs"][0];
    assert_eq!(program["found"], Value::Array(Vec::new()), "{program}");
    assert_eq!(program["after"]["slots"], program["fixed"]["slots"], "{program}");
}

#[test]
fn a_program_of_10_000_slots_is_left_no_worse_and_in_time() {
    let mut text = String::from("r7 = *(u32 *)(r1 +12)\nr0 = 1\n");
    for n in 0..2500 {
        text += &format!("r0 += {n}\nr0 ^= r7\nif r0 == {} goto skip{n}\nr0 *= 3\nskip{n}:\n", n * 7 + 1);
    }
    let case = Case::new("large", &(text + "exit\n"));
    let start = std::time::Instant::now();
    let (report, _) = case.done(&mut case.command(&["--budget", "2s", "--proof-time", "5"]));
    assert!(start.elapsed().as_secs() < 300, "{:?}", start.elapsed());
    let slots = |form: &str| report["programs"][0][form]["slots"].as_u64().unwrap();
    assert!(slots("before") > 10_000 && slots("after") <= slots("before"), "{}", slots("before"));
}

#[test]
fn ctrl_c_in_mid_search_writes_the_best_so_far_and_exits_with_0() {
    let case = Case::new("interrupt", ARITHMETIC);
    let mut command = case.command(&["--budget", "100s"]);
    let child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
    // Long enough for the handler to be there, and to be in the search.
    std::thread::sleep(std::time::Duration::from_secs(3));
    let start = std::time::Instant::now();
    let signal = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(signal.success());
    let ran = child.wait_with_output().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(report["interrupted"], true, "{report}");
    let slots = std::fs::metadata(case.path("out.insns")).unwrap().len() / 8;
    assert_eq!(report["programs"][0]["after"]["slots"], slots, "{report}");
}

/// A rule of windows that holds, and one that does not.
const PAIR: &str = "*(u32 *)(r0 +0) = {a}; *(u32 *)(r0 +4) = 0 => *(u64 *)(r0 +0) = {a} @ a:[0x0,0x7fffffff] \
    r0:p0.0+0 @ r0 @ here, fires 0";
const WRONG: &str = "r0 += {a} => r0 -= {a} @ a:[0x0,0xff] r0:n0[0x0,0xffff] @ r0 @ here, fires 0";

/// Optimizes with stores of rules and one solver; returns the exit code and the output.
fn with_rules(case: &Case, stores: &[&str], solver: &str) -> (Option<i32>, String) {
    let mut command = case.plain();
    command.args(["--budget", "0", "--solver", solver, "--cache", &case.path("cache")]);
    let ran = command.args(stores.iter().flat_map(|s| ["--rules", s])).output().unwrap();
    (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned())
}

#[test]
fn a_damaged_store_is_refused_and_a_sound_one_holds_for_every_solver() {
    let case = Case::new("stores", ARITHMETIC);
    let terms = "(and.w (add.w x x) 1) => 0\n(xor.w (and.w x y) (or.w x y)) => (xor.w x y)\n".to_owned();
    let windows = format!("; millstream window rules, format 1\n{PAIR}\n");
    let seal = |name: &str, text: &str| {
        let (rules, store) = (case.path(name), case.path(&format!("{name}.sealed")));
        std::fs::write(&rules, text).unwrap();
        (millstream(&["rules", "seal", &rules, "-o", &store, "--cache", "off"]), store)
    };
    let (sealed, terms) = seal("team.rules", &terms);
    assert_eq!(sealed.status.code(), Some(0), "{sealed:?}");
    let (sealed, windows) = seal("team.windows", &windows);
    assert_eq!(sealed.status.code(), Some(0), "{sealed:?}");
    // One cache for both, as where two machines share it.
    for solver in ["z3", "cvc5", "z3"] {
        let there = Command::new(solver).arg("--version").output().is_ok();
        if !there {
            assert!(std::env::var("CI").is_err(), "no {solver}");
            eprintln!("skipped: no {solver}");
            continue;
        }
        let (code, said) = with_rules(&case, &[&terms, &windows], solver);
        assert_eq!(code, Some(0), "{solver}: {said}");
        assert!(!said.contains("not applied") && !said.contains("not proven"), "{solver}: {said}");
    }
    for (store, from, to) in [(&terms, "x y)) => (xor", "x y)) => (and"), (&windows, "+4) = 0", "+4) = 1")] {
        let text = std::fs::read_to_string(store).unwrap();
        std::fs::write(store, text.replace(from, to)).unwrap();
        let (code, said) = with_rules(&case, &[store], "z3");
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("checksum") && said.contains("rules seal"), "{said}");
    }
}

#[test]
fn a_rule_of_windows_whose_proof_cannot_be_made_again_is_named_and_not_applied() {
    let case = Case::new("forged", ARITHMETIC);
    let (rules, store) = (case.path("team.windows"), case.path("sealed.windows"));
    let text = |sum: &str| {
        format!("; millstream window rules, format 1\n; checksum fnv1a-64 {sum}\n{PAIR}\n{WRONG}\n")
    };
    std::fs::write(&rules, text("0")).unwrap();
    let sealed = millstream(&["rules", "seal", &rules, "-o", &store, "--cache", "off"]);
    let said = String::from_utf8_lossy(&sealed.stdout).into_owned();
    assert_eq!(sealed.status.code(), Some(3), "{sealed:?}");
    assert!(said.contains("left out, wrong, for example where") && said.contains("rules: 1 in"), "{said}");
    // Somebody who knows the checksum, which the error message contains.
    let (_, refused) = with_rules(&case, &[&rules], "z3");
    let words = refused.split_whitespace().skip_while(|w| *w != "checksum").collect::<Vec<_>>();
    let sum = words.iter().find(|w| w.len() == 16 && w.chars().all(|c| c.is_ascii_hexdigit())).unwrap();
    std::fs::write(&rules, text(sum)).unwrap();
    let (code, said) = with_rules(&case, &[&rules], "z3");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("team.windows:4: not applied, wrong"), "{said}");
    // Without a solver, equivalence is proven only by equal terms.
    let (code, said) = with_rules(&case, &[&rules], "/nonexistent/z3");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("team.windows:4: not applied, not proven"), "{said}");
}

/// A Redis server of our own, ended on drop.
struct Redis {
    child: std::process::Child,
    url: String,
    port: u16,
}

impl Redis {
    /// [`None`] where there is no server to start.
    fn start() -> Option<Redis> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        let Ok(child) = command.stdout(std::process::Stdio::null()).spawn() else {
            assert!(std::env::var("CI").is_err(), "no redis-server");
            eprintln!("skipped: no redis-server");
            return None;
        };
        let server = Redis { child, url: format!("redis://127.0.0.1:{port}"), port };
        let listens = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        let mut waits = std::iter::repeat_with(|| std::thread::sleep(std::time::Duration::from_millis(20)));
        assert!(waits.by_ref().take(500).any(|()| listens()), "redis-server does not listen");
        Some(server)
    }

    fn set(&self, key: &str, text: &str) {
        use std::io::{Read as _, Write as _};
        let mut raw = std::net::TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let command = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n{text}\r\n", key.len(), text.len());
        raw.write_all(command.as_bytes()).unwrap();
        let mut answer = [0; 5];
        raw.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"+OK\r\n");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_team_shares_a_store_of_rules_over_redis() {
    let Some(server) = Redis::start() else { return };
    let case = Case::new("shared-store", ARITHMETIC);
    let there = format!("{}#team", server.url);
    let rules = case.path("team.windows");
    std::fs::write(&rules, format!("; millstream window rules, format 1\n{PAIR}\n{WRONG}\n")).unwrap();
    // Only proven rules get there.
    let sealed = millstream(&["rules", "seal", &rules, "-o", &there, "--cache", "off"]);
    assert_eq!(sealed.status.code(), Some(3), "{sealed:?}");
    let checked = millstream(&["rules", "check", "--file", &there, "--cache", "off"]);
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    assert!(String::from_utf8_lossy(&checked.stdout).starts_with("rules: 1, proven: 1"), "{checked:?}");
    let (code, said) = with_rules(&case, &[&there], "z3");
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("not applied"), "{said}");
    // A missing store, a damaged one, and one on a server that is gone.
    let (code, said) = with_rules(&case, &[&format!("{}#nobody", server.url)], "z3");
    assert!(code == Some(2) && said.contains("there is no"), "{code:?} {said}");
    server.set("millstream:rules:team", &format!("; millstream window rules, format 1\n{WRONG}\n"));
    let (code, said) = with_rules(&case, &[&there], "z3");
    assert!(code == Some(2) && said.contains("rules seal"), "{code:?} {said}");
    drop(server);
    let (code, said) = with_rules(&case, &[&there], "z3");
    assert!(code == Some(2) && said.contains("Redis server"), "{code:?} {said}");
}

#[test]
fn loops_without_a_bound_that_anybody_sees_end_the_search_in_order() {
    let endless = "r2 = *(u32 *)(r1 +12)\nr0 = 0\nagain:\nr0 += 1\nr3 = r0\nr3 *= r3\nr3 ^= r2\nr3 &= 1\nr3 *= 4\n\
                   if r3 != 7 goto again\nexit\n";
    let counted = "r2 = *(u32 *)(r1 +12)\nr0 = 0\nr4 = 0\nagain:\nr4 += 1\nr3 = r4\nr3 *= r3\nr3 &= 1\nr0 += r3\n\
                   r0 ^= r2\nif r4 != 60000 goto again\nexit\n";
    for (name, text) in [("endless", endless), ("counted", counted)] {
        let case = Case::new(name, text);
        let (report, _) = case.done(&mut case.command(&["--rounds", "2", "--proof-time", "5"]));
        let program = &report["programs"][0];
        let slots = |form: &str| program[form]["slots"].as_u64().unwrap();
        assert!(slots("after") <= slots("before"), "{name}: {program}");
        assert!(!program["proof"].to_string().contains("refuted"), "{name}: {program}");
    }
}

#[test]
fn a_solver_that_takes_all_memory_is_ended_and_proves_nothing() {
    let case = Case::new("hungry-solver", ARITHMETIC);
    let hungry = case.script(
        "z3-hungry",
        "exec python3 -c 'import time; b = [bytearray(1 << 24) for _ in range(128)]; time.sleep(600)'",
    );
    let (alone, _) = case.done(case.command(&ROUNDS).env("PATH", &case.folder));
    let solver = ["--solver", &hungry, "--solver-memory", "256"];
    let (report, _) = case.done(&mut case.command(&[&ROUNDS[..], &solver].concat()));
    assert_eq!(report["programs"][0]["after"], alone["programs"][0]["after"], "{report}");
}
