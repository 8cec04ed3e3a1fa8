//! Attacks by somebody who can write where Millstream reads: none may become a proof, a program, memory or
//! time.

mod common;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::Files;
use serde_json::Value;

/// A rule that holds for all but one constant, which no test hits: solvers refute it.
const FALSE_RULE: &str = "(eq.64 (mul.64 x y) #a) => false if (eq a 0x3fffffaa00000119)";

/// A program that passes a packet unless a product has the value that the rule excludes.
const PROGRAM: &str = "r2 = *(u32 *)(r1 +12)\nr3 = *(u32 *)(r1 +16)\nr2 *= r3\nr4 = 0x3fffffaa00000119 ll\nr0 = 2\n\
                       if r2 != r4 goto out\nr0 = 1\nout:\nexit\n";

fn raw(files: &Files, name: &str, text: &str) -> String {
    let insns = millstream_isa::asm::assemble(text).unwrap();
    let bytes: Vec<u8> = millstream_isa::encode_all(&insns).iter().flat_map(|raw| raw.to_bytes()).collect();
    let path = files.path(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// The command with a home of the test's own, so that its cache and key are the test's.
fn millstream(files: &Files, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.args(arguments).env("NO_COLOR", "1").env("HOME", &files.0);
    for name in
        ["XDG_CACHE_HOME", "XDG_STATE_HOME", "MILLSTREAM_CACHE", "MILLSTREAM_REDIS", "MILLSTREAM_STORE_KEY"]
    {
        command.env_remove(name);
    }
    command
}

/// Standard output and standard error together.
fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat()
}

/// Returns true if there is a solver; fails if there must be one and is none.
fn has_solver() -> bool {
    let there = Command::new("z3").arg("--version").output().is_ok();
    assert!(there || std::env::var("CI").is_err(), "no z3");
    there
}

/// A server that answers each question with "valid", and serves one store of rules.
struct Liar {
    port: u16,
}

impl Liar {
    fn start(line: fn(key: &str) -> String, store: String) -> Liar {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let store = store.clone();
                std::thread::spawn(move || Liar::answer(stream, line, &store));
            }
        });
        Liar { port }
    }

    fn answer(mut stream: TcpStream, line: fn(&str) -> String, store: &str) {
        let mut bytes = [0; 1 << 16];
        while let Ok(n @ 1..) = stream.read(&mut bytes) {
            let asked = String::from_utf8_lossy(&bytes[..n]).into_owned();
            let words: Vec<&str> = asked.split("\r\n").collect();
            let name = words.iter().find(|w| w.starts_with("millstream:")).copied().unwrap_or_default();
            let value = match (asked.contains("GET"), name.strip_prefix("millstream:proof:")) {
                (true, Some(key)) => line(key),
                (true, None) => store.to_owned(),
                _ => {
                    let _ = stream.write_all(b"+OK\r\n");
                    continue;
                }
            };
            let _ = stream.write_all(format!("${}\r\n{value}\r\n", value.len()).as_bytes());
        }
    }
}

/// Half a SHA-256, as the lines of the cache have it: anybody can compute it.
fn checksum(text: &str) -> String {
    let sum = <sha2::Sha256 as sha2::Digest>::digest(text.as_bytes());
    sum.iter().take(16).map(|b| format!("{b:02x}")).collect()
}

/// The line of an unproven answer, with everything right that is possible without a key.
fn lie(key: &str) -> String {
    let rest = format!("- 2 {} {key} valid 9 - Z3 4.8.12", env!("CARGO_PKG_VERSION"));
    format!("{} {rest}", checksum(&rest))
}

/// The same in the format of version 0.1 before lines were signed.
fn old_lie(key: &str) -> String {
    let rest = format!("1 {key} valid 9 - Z3 4.8.12");
    format!("{} {rest}", checksum(&rest))
}

/// A store with the false rule and the right checksum.
fn false_store(files: &Files) -> String {
    let hash = |text: &str| {
        text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
    };
    // The head of a store as it is written today, with another body.
    let (rules, store) = (files.path("sound.rules"), files.path("sound.store"));
    std::fs::write(&rules, "(xor.w (and.w x y) (or.w x y)) => (xor.w x y)\n").unwrap();
    let sealed = millstream(files, &["rules", "seal", &rules, "-o", &store]).output().unwrap();
    assert_eq!(sealed.status.code(), Some(0), "{}", said(&sealed));
    let sound = std::fs::read_to_string(&store).unwrap();
    let mut lines = sound.lines();
    let (title, sum, rule) = (lines.next().unwrap(), lines.next().unwrap(), lines.next().unwrap());
    let (_, about) = rule.split_once(';').unwrap();
    let body = format!("{FALSE_RULE}   ;{about}\n");
    let (name, _) = sum.rsplit_once(' ').unwrap();
    format!("{title}\n{name} {:016x}\n{body}", hash(&body))
}

/// Optimizes with the false rule and the lies about it; the check must still be there.
fn is_not_applied(files: &Files, arguments: &[&str]) {
    let (from, to) = (raw(files, "xdp_case.insns", PROGRAM), files.path("out.insns"));
    let base = ["opt", &from, "-o", &to, "--prove", "--proof-time", "60"];
    let ran = millstream(files, &[&base, arguments].concat()).output().unwrap();
    let text = said(&ran);
    assert_eq!(ran.status.code(), Some(0), "{text}");
    assert!(text.contains("not applied"), "{text}");
    // An honest run, without lies, finds no difference.
    let ran =
        millstream(files, &["prove", &from, &to, "--cache", "off", "--proof-time", "60"]).output().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{text}\n{}", said(&ran));
    std::fs::remove_file(to).unwrap();
}

#[test]
fn a_server_that_answers_valid_to_everything_proves_nothing() {
    if !has_solver() {
        return;
    }
    let files = Files::new("trust-liar");
    let store = false_store(&files);
    let key = files.path("team.key");
    std::fs::write(&key, "0123456789abcdef0123456789abcdef\n").unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    for line in [lie, old_lie] {
        let liar = Liar::start(line, store.clone());
        let url = format!("redis://127.0.0.1:{}", liar.port);
        let rules = format!("{url}#team");
        is_not_applied(&files, &["--rules", &rules, "--redis", &url, "--cache", "off"]);
        // Nor where a team's store is trusted: the attacker does not have its key.
        let trust = ["--store-key", &key, "--trust-store"];
        is_not_applied(
            &files,
            &[&["--rules", &rules, "--redis", &url, "--cache", "off"], &trust[..]].concat(),
        );
        let checked =
            millstream(&files, &["rules", "check", "--file", &rules, "--redis", &url, "--cache", "off"]);
        let checked = { checked }.output().unwrap();
        assert_eq!(checked.status.code(), Some(1), "{}", said(&checked));
    }
}

#[test]
fn a_forged_file_in_the_cache_folder_proves_nothing() {
    if !has_solver() {
        return;
    }
    let files = Files::new("trust-cache");
    let store = files.path("false.store");
    std::fs::write(&store, false_store(&files)).unwrap();
    let cache = files.path("cache");
    let file = Path::new(&cache).join("proofs.txt");
    // An honest run shows the questions: its answers are in the file, and become lies.
    is_not_applied(&files, &["--rules", &store, "--cache", &cache]);
    let honest = std::fs::read_to_string(&file).unwrap();
    let keys: Vec<&str> = honest
        .split_whitespace()
        .filter(|w| w.len() == 64 && w.chars().all(|c| c.is_ascii_hexdigit()))
        .collect();
    assert!(!keys.is_empty(), "{honest}");
    for line in [lie, old_lie] {
        let forged: Vec<String> = keys.iter().map(|key| line(key)).collect();
        std::fs::write(&file, forged.join("\n") + "\n").unwrap();
        is_not_applied(&files, &["--rules", &store, "--cache", &cache]);
    }
    // A signed line whose answer was inverted.
    let turned = |line: &str| {
        let (_, rest) = line.split_once(' ').unwrap();
        let mut words: Vec<&str> = rest.split(' ').collect();
        (words[4], words[6]) = ("valid", "-");
        let rest = words.join(" ");
        format!("{} {rest}", checksum(&rest))
    };
    std::fs::write(&file, honest.lines().map(turned).collect::<Vec<_>>().join("\n") + "\n").unwrap();
    is_not_applied(&files, &["--rules", &store, "--cache", &cache]);
}

#[test]
fn a_team_trusts_its_store_only_if_told_to_and_the_verdict_says_so() {
    if !has_solver() {
        return;
    }
    let there = Command::new("redis-server").arg("--version").output().is_ok();
    assert!(there || std::env::var("CI").is_err(), "no redis-server");
    if !there {
        return;
    }
    let files = Files::new("trust-team");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = Command::new("redis-server");
    server.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]).stdout(Stdio::null());
    let mut server = server.spawn().unwrap();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(server.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    let url = format!("redis://127.0.0.1:{port}");
    let (a, b) = (
        raw(&files, "a.insns", PROGRAM),
        raw(&files, "b.insns", &PROGRAM.replace("r2 *= r3", "r3 *= r2\nr2 = r3")),
    );
    let rules = files.path("team.rules");
    // Needs a solver, whatever the normal form knows.
    std::fs::write(
        &rules,
        "(xor.w (and.w x y) (or.w x y)) => (xor.w x y)\n(eq.64 (mul.64 x x) 2) => false\n",
    )
    .unwrap();
    let key = files.path("team.key");
    std::fs::write(&key, "0123456789abcdef0123456789abcdef\n").unwrap();
    let check = |arguments: &[&str]| {
        let base = ["rules", "check", "--file", &rules, "--cache", "off", "--redis", &url, "--json"];
        let ran = millstream(&files, &[&base, arguments].concat()).output().unwrap();
        (ran.status.code(), serde_json::from_slice::<Value>(&ran.stdout).unwrap_or_default(), said(&ran))
    };
    // Others may read the key: it is refused.
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let (code, _, text) = check(&["--store-key", &key]);
    assert!(code == Some(2) && text.contains("chmod 0600"), "{text}");
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    // The owner of the key signs; a run that trusts believes; another proves again.
    let (code, first, text) = check(&["--store-key", &key]);
    assert!(code == Some(0) && first["trusted"] == 0, "{text}");
    let (code, again, text) = check(&["--store-key", &key]);
    assert!(code == Some(0) && again["trusted"] == 0, "{text}");
    let (code, trusting, text) = check(&["--store-key", &key, "--trust-store"]);
    assert!(code == Some(0) && trusting["trusted"].as_u64() > Some(0), "{text}");
    // Trust without a key, or in a server that somebody on the way can impersonate, is refused.
    let (code, _, text) = check(&["--trust-store"]);
    assert!(code == Some(2) && text.contains("--store-key"), "{text}");
    let far = [
        "prove",
        &a,
        &b,
        "--cache",
        "off",
        "--redis",
        "redis://192.0.2.1",
        "--store-key",
        &key,
        "--trust-store",
    ];
    let ran = millstream(&files, &far).output().unwrap();
    assert!(ran.status.code() == Some(2) && said(&ran).contains("rediss://"), "{}", said(&ran));
    let _ = server.kill();
    let _ = server.wait();
}

/// A server that sends a byte now and then is given up; the proof has its full time all the same. The bound
/// is far below the duration of the trickle.
#[test]
fn a_server_that_trickles_does_not_hold_a_proof() {
    if !has_solver() {
        return;
    }
    let files = Files::new("trust-trickle");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://127.0.0.1:{}", listener.local_addr().unwrap().port());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                for byte in b"$1000000\r\n".iter().chain(std::iter::repeat(&b'x')) {
                    if stream.write_all(&[*byte]).is_err() {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
        }
    });
    let rules = files.path("team.rules");
    std::fs::write(&rules, "(eq.64 (mul.64 x x) 2) => false\n".repeat(3)).unwrap();
    let start = Instant::now();
    let check = ["rules", "check", "--file", &rules, "--cache", "off", "--redis", &url, "--proof-time", "3"];
    let ran = millstream(&files, &check).output().unwrap();
    assert!(said(&ran).contains("going on without it"), "{}", said(&ran));
    assert!(start.elapsed() < Duration::from_secs(600), "{:?}", start.elapsed());
}

#[test]
fn a_huge_file_is_refused_in_little_memory() {
    let files = Files::new("trust-huge");
    let huge = |name: &str| {
        let path = files.path(name);
        std::fs::File::create(&path).unwrap().set_len(2 << 30).unwrap();
        path
    };
    let (object, text) = (huge("huge.o"), huge("huge.txt"));
    let small = files.path("small.o");
    std::fs::write(&small, millstream_programs::ROUTER.object).unwrap();
    let commands: &[&[&str]] = &[
        &["opt", &object],
        &["inspect", &object],
        &["verify", &object],
        &["prove", &object, &object],
        &["explain", &object],
        &["opt", &small, "--rules", &text],
        &["opt", &small, "--costs", &text],
        &["rules", "check", "--file", &text],
        &["click", &text],
        &["daemon", "--check", "--config", &text],
        &["control", "router", "up", &text],
        &["opt", "/dev/zero"],
    ];
    for arguments in commands {
        // A tenth of the file, with all that the process maps: reading the whole file would fail.
        let limit = "ulimit -v 1500000; exec \"$0\" \"$@\"";
        let command = millstream(&files, arguments);
        let mut limited = Command::new("sh");
        limited.args(["-c", limit]).arg(command.get_program()).args(command.get_args()).env("HOME", &files.0);
        let ran = limited.output().unwrap();
        assert_eq!(ran.status.code(), Some(2), "{arguments:?}: {}", said(&ran));
        assert!(said(&ran).contains("larger than 128 MiB"), "{arguments:?}: {}", said(&ran));
    }
}

/// An object whose names of a program, a map and a section would clear the screen, ring, and write backwards.
fn hostile_object(files: &Files) -> String {
    let replace = |bytes: Vec<u8>, from: &str, to: &[u8]| {
        assert_eq!(from.len(), to.len());
        let mut out = bytes;
        let mut at = 0;
        while let Some(found) = out[at..].windows(from.len()).position(|w| w == from.as_bytes()) {
            out[at + found..at + found + to.len()].copy_from_slice(to);
            at += found + to.len();
        }
        assert!(at > 0, "{from}");
        out
    };
    let object = millstream_programs::ROUTER.object.to_vec();
    let object = replace(object, "next_hops", b"\x1b[2J\x07\r\nho");
    let object = replace(object, "tx_ports", "\u{9b}31m\u{202e}".as_bytes());
    let object = replace(object, "routes", b"r\x1b]0;x");
    let path = files.path("hostile.o");
    std::fs::write(&path, object).unwrap();
    path
}

#[test]
fn names_from_objects_cannot_control_a_terminal() {
    let files = Files::new("trust-names");
    let object = hostile_object(&files);
    let plain = files.path("plain.o");
    std::fs::write(&plain, millstream_programs::ROUTER.object).unwrap();
    let commands: &[&[&str]] = &[
        &["opt", &object],
        &["opt", &object, "--stats"],
        &["opt", &object, "--json"],
        &["inspect", &object],
        &["inspect", &object, "--maps"],
        &["inspect", &object, "--disasm"],
        &["inspect", &object, "--ir"],
        &["inspect", &object, "--json"],
        &["verify", &object],
        &["prove", &object, &plain],
        &["explain", &object],
        &["native", &object, "--packets", "10"],
        &["native", &object, "--packets", "10", "--map", "x\x1b[2J=/nonexistent"],
        &["lab", "equal", &object, &plain],
        &["click", "/no\x1b[2Jsuch"],
    ];
    let mut named = false;
    for arguments in commands {
        let ran = millstream(&files, arguments).output().unwrap();
        let text = said(&ran);
        named |= text.contains("\\x1b[2J");
        let obeyed = |c: char| c.is_control() && !"\n\t".contains(c) || matches!(c, '\u{202a}'..='\u{202e}');
        assert!(!text.contains(obeyed), "{arguments:?}: {text:?}");
        if arguments.contains(&"--json") && ran.status.success() {
            let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
            assert!(report.is_object(), "{report}");
        }
    }
    assert!(named, "the names are shown somewhere");
}

/// Commands that need no root privileges hold none while they run, nor do the solvers that they start.
#[test]
fn a_command_on_files_has_no_capabilities_and_no_way_to_new_ones() {
    let files = Files::new("trust-privileges");
    // In place of a solver: reports its privileges, and waits to be ended.
    let status = files.path("status");
    let script = files.path("z3");
    let text = format!("#!/bin/sh\ncat /proc/self/status > {status}.new\nmv {status}.new {status}\nexit 0\n");
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let (a, b) = (
        raw(&files, "a.insns", PROGRAM),
        raw(&files, "b.insns", &PROGRAM.replace("0x3fffffaa00000119", "3")),
    );
    let rules = files.path("team.rules");
    std::fs::write(&rules, format!("{FALSE_RULE}\n")).unwrap();
    let commands: &[&[&str]] = &[
        &["rules", "check", "--file", &rules],
        &["prove", &a, &b],
        &["opt", &a, "--prove", "--rules", &rules],
    ];
    for arguments in commands {
        let _ = std::fs::remove_file(&status);
        let ran =
            millstream(&files, &[arguments, &["--cache", "off", "--solver", &script][..]].concat()).output();
        let told = std::fs::read_to_string(&status);
        // If no question was asked, there is nothing to see.
        let Ok(told) = told else {
            assert_eq!(arguments[0], "opt", "{arguments:?}: {ran:?}");
            continue;
        };
        let of =
            |name: &str| told.lines().find_map(|l| l.strip_prefix(name)).map(str::trim).unwrap_or_default();
        for set in ["CapPrm:", "CapEff:", "CapInh:", "CapAmb:"] {
            assert_eq!(u64::from_str_radix(of(set), 16), Ok(0), "{arguments:?}: {set} {told}");
        }
        assert_eq!(of("NoNewPrivs:"), "1", "{arguments:?}: {told}");
        assert_eq!(of("Seccomp:"), "2", "{arguments:?}: {told}");
    }
}
