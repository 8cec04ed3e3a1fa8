//! `millstream verify` as a user runs it: exit codes, JSON, and messages about files that are not objects.

mod common;
#[path = "loaders/mod.rs"]
mod loaders;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use millstream_kernel::testing;
use millstream_programs::{FIREWALL, GUARD, ROUTER};
use serde_json::Value;

use common::Files;

fn put(files: &Files, name: &str, contents: &[u8]) -> PathBuf {
    let path = files.0.join(name);
    std::fs::write(&path, contents).unwrap();
    path
}

fn verify(arguments: &[&Path]) -> (i32, String, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_millstream")).arg("verify").args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn what_is_no_object_is_refused_with_a_reason() {
    let files = Files::new("verify-no-object");
    let object = ROUTER.object;
    let mut foreign = object.to_vec();
    foreign[18] = 62;
    for (path, reason) in [
        (put(&files, "empty.o", b""), "not an ELF file"),
        (put(&files, "text.o", b"hello"), "not an ELF file"),
        (put(&files, "foreign.o", &foreign), "an ELF file for machine 62, not for BPF (247)"),
        (put(&files, "cut.o", &object[..object.len() / 2]), "bytes at offset"),
        (files.0.clone(), "cannot be read"),
        (files.path("missing.o").into(), "No such file"),
    ] {
        let (exit, out, errors) = verify(&[&path]);
        assert_eq!((exit, out.as_str()), (2, ""), "{}", path.display());
        assert!(errors.starts_with(&*path.to_string_lossy()) && errors.contains(reason), "{errors}");
    }
}

#[test]
fn several_objects_are_answered_for_together() {
    if !testing::require() {
        return;
    }
    let files = Files::new("verify-several");
    let (router, firewall) =
        (put(&files, "router.o", ROUTER.object), put(&files, "firewall.o", FIREWALL.object));
    let (exit, out, errors) = verify(&[&router]);
    assert_eq!((exit, errors.as_str()), (0, ""), "{out}");
    assert!(out.contains("accepted") && out.ends_with(" accepted, 0 not\n"), "{out}");

    let text = put(&files, "text.o", b"hello");
    let (exit, out, errors) = verify(&[Path::new("--json"), &router, &text, &firewall]);
    assert_eq!(exit, 2, "one could not be read");
    assert!(errors.contains("not an ELF file"), "{errors}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&report["schema"], &report["failed"]), (&1.into(), &0.into()), "{report:#}");
    assert_eq!(report["errors"][0]["object"], text.to_string_lossy().as_ref());
    let programs: Vec<&Value> = report["objects"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|o| o["programs"].as_array().unwrap())
        .collect();
    assert!(programs.len() >= 2, "{report:#}");
    for p in programs {
        assert_eq!(p["verdict"], "accepted");
        assert!(p["verified_insns"].as_u64().unwrap() > 0 && p["jited_bytes"].as_u64().unwrap() > 0, "{p:#}");
    }
}

/// A bounds check of the router, changed into one that never fails: the packet is then read without a check.
#[test]
fn a_rejection_says_where_and_why() {
    if !testing::require() {
        return;
    }
    let mut object = millstream_object::Object::parse("router.o", ROUTER.object).unwrap();
    let func = object.programs[0].func;
    let f = &object.functions[func.index()];
    let mut insns = f.insns.clone();
    // `if rX > rY goto` in 64 bits: the first is the check of the Ethernet header.
    let check = insns.iter().position(|i| i.code == 0x2d).expect("a check");
    insns[check].off = 0;
    let contents = millstream_object::NewFunction {
        insns,
        relocs: f.relocs.clone(),
        line_info: f.line_info.clone(),
        core_relos: f.core_relos.clone(),
    };
    object.replace_function(func, contents).unwrap();
    let files = Files::new("verify-rejected");
    let path = put(&files, "router.o", &object.write().unwrap());
    let (exit, out, _) = verify(&[&path]);
    assert_eq!(exit, 1, "{out}");
    assert!(out.contains("rejected") && out.contains("invalid access to packet"), "{out}");
    assert!(out.contains("router.bpf.c:"), "the source line: {out}");
    let (_, out, _) = verify(&[Path::new("--json"), &path]);
    let report: Value = serde_json::from_str(&out).unwrap();
    let row = &report["programs"][0];
    assert_eq!((&row["verdict"], &row["errno"]), (&"rejected".into(), &"EACCES".into()), "{row:#}");
    assert!(
        row["place"]["line"].as_u64().unwrap() > 0 && row["log"].as_array().unwrap().len() > 2,
        "{row:#}"
    );
}

/// Without root the answer is advice. (The tests themselves run as root.)
#[test]
fn without_permission_the_answer_is_what_to_do() {
    if !testing::require() {
        return;
    }
    let files = Files::new("verify-nobody");
    let path = put(&files, "router.o", ROUTER.object);
    let command = ["--bounding-set=-all", "--inh-caps=-all", "--"];
    let out = Command::new("setpriv")
        .args(command)
        .arg(env!("CARGO_BIN_EXE_millstream"))
        .arg("verify")
        .arg(&path)
        .output();
    let Ok(out) = out else { return eprintln!("skipped: no setpriv") };
    let errors = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(4), "{errors}");
    assert!(errors.contains("run as root") && errors.contains("millstream doctor"), "{errors}");
}

/// A program with CO-RE relocations, on a kernel without BTF: that is a fault of the machine, not of the
/// program.
#[test]
fn without_types_of_the_kernel_the_answer_is_that_they_are_missing() {
    if !testing::require() {
        return;
    }
    let files = Files::new("verify-no-btf");
    let path = put(&files, "guard.o", GUARD.object);
    let hidden = format!(
        "mount -t tmpfs none /sys/kernel/btf && exec {} verify {}",
        env!("CARGO_BIN_EXE_millstream"),
        path.display()
    );
    let out = Command::new("unshare").args(["--mount", "sh", "-c", &hidden]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert_eq!(out.status.code(), Some(4), "{text}");
    for said in ["unsupported", "/sys/kernel/btf/vmlinux", "CONFIG_DEBUG_INFO_BTF", "millstream doctor"] {
        assert!(text.contains(said), "{said}: {text}");
    }
}

#[test]
fn a_command_ends_in_silence_when_nobody_reads_on() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let out = Command::new(env!("CARGO_BIN_EXE_millstream")).arg("man").stdout(writer).output().unwrap();
    assert_eq!((out.status.signal(), out.stderr.as_slice()), (Some(libc::SIGPIPE), &b""[..]));
}

/// Solvers that end before they have read a query: the pipe to them has no reader then.
#[test]
fn a_command_goes_on_without_its_solvers() {
    let files = Files::new("dying-solvers");
    for name in ["z3", "cvc5", "bitwuzla", "boolector", "yices-smt2"] {
        let path = files.path(name);
        std::fs::write(&path, "#!/bin/sh\nexec 0<&-\nsleep 0.2\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let folders = [files.path(""), std::env::var("PATH").unwrap_or_default()].join(":");
    let out = Command::new(env!("CARGO_BIN_EXE_millstream"))
        .args(["explain", "builtin:router", "-O", "super", "--budget", "3s"])
        .env("PATH", folders)
        .output()
        .unwrap();
    let code = out.status.code();
    assert!(matches!(code, Some(0 | 1 | 3)), "{}: {}", out.status, String::from_utf8_lossy(&out.stderr));
}
