//! Raw programs (`X.insns` with `X.maps` and `X.desc`) on the command line: the same commands, results in the
//! same form.

mod common;

use std::process::{Command, Output};

use millstream_isa::asm::assemble;
use millstream_isa::{RawInsn, encode_all};

use common::Files;

/// Increments a counter that it looks up, with a detour that opt removes.
const SOURCE: &str = concat!(include_str!("count.s"), "out:\nr0 = 2\nexit");
const MAPS: &str = "counts { type = 6, key_size = 4, value_size = 8, max_entries = 4, fd = 3\n";
const DESC: &str = "{ pgm_input_type = 2, }\n{ max_pkt_sz = 64, }";

/// A folder with a raw program in it, `count.insns`.
fn with_program(name: &str) -> Files {
    let folder = Files::new(&format!("raw-{name}"));
    let mut slots = encode_all(&assemble(SOURCE).unwrap());
    (slots[5].src, slots[5].imm) = (1, 3);
    let bytes: Vec<u8> = slots.into_iter().flat_map(RawInsn::to_bytes).collect();
    let put = |name: &str, data: &[u8]| std::fs::write(folder.0.join(name), data).unwrap();
    put("count.insns", &bytes);
    put("count.maps", MAPS.as_bytes());
    put("count.desc", DESC.as_bytes());
    folder
}

fn read(folder: &Files, name: &str) -> Vec<u8> {
    std::fs::read(folder.0.join(name)).unwrap()
}

fn millstream(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millstream")).args(arguments).env("NO_COLOR", "1").output().unwrap()
}

fn done(arguments: &[&str]) -> String {
    let output = millstream(arguments);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_raw_program_is_optimized_into_raw_files_that_are_proven() {
    let folder = with_program("opt");
    let (input, output) = (folder.path("count.insns"), folder.path("better.insns"));
    done(&["opt", &input, "-o", &output]);
    let (before, after) = (read(&folder, "count.insns"), read(&folder, "better.insns"));
    assert!(after.len() < before.len(), "{} bytes, {} before", after.len(), before.len());
    assert_eq!((read(&folder, "better.maps"), read(&folder, "better.desc")), (MAPS.into(), DESC.into()));
    let map = after.chunks(8).find(|i| i[0] == 0x18).expect("the map is still named");
    assert_eq!((map[1] >> 4, map[4]), (1, 3), "by its fd");
    assert!(done(&["prove", &input, &output]).starts_with("equivalent"));
}

#[test]
fn a_raw_program_and_an_object_can_be_held_against_each_other() {
    let folder = with_program("mixed");
    let (raw, elf, again) = (folder.path("count.insns"), folder.path("better.o"), folder.path("again.insns"));
    done(&["opt", &raw, "-o", &elf]);
    assert!(read(&folder, "better.o").starts_with(b"\x7fELF"));
    assert!(done(&["prove", &raw, &elf]).starts_with("equivalent"));
    done(&["opt", &elf, "-o", &again]);
    assert!(done(&["prove", &again, &raw]).starts_with("equivalent"));
    let maps = String::from_utf8(read(&folder, "again.maps")).unwrap();
    assert_eq!(maps, "counts { type = 6, key_size = 4, value_size = 8, max_entries = 4, fd = 0 }\n");
}

#[test]
fn the_type_of_a_raw_program_can_be_said() {
    let folder = with_program("section");
    let input = folder.path("count.insns");
    let kind = |more: &[&str]| {
        let mut arguments = vec!["inspect", &input, "--json"];
        arguments.extend(more);
        let report: serde_json::Value = serde_json::from_str(&done(&arguments)).unwrap();
        report["functions"][0]["program_type"].as_str().map(str::to_owned)
    };
    assert_eq!(kind(&[]).as_deref(), Some("xdp"));
    assert_eq!(kind(&["--section", "cgroup/recvmsg4"]).as_deref(), Some("cgroup_sock_addr"));
}

#[test]
fn what_is_wrong_with_a_raw_program_is_said_with_its_place() {
    let folder = with_program("wrong");
    std::fs::write(folder.0.join("count.maps"), "counts { type = 6 }\n").unwrap();
    let output = millstream(&["opt", &folder.path("count.insns")]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains(".maps file, line 1: `key_size` is missing"), "{error}");
    std::fs::remove_file(folder.0.join("count.maps")).unwrap();
    let error = String::from_utf8(millstream(&["opt", &folder.path("count.insns")]).stderr).unwrap();
    assert!(error.contains("no map of the .maps file has fd = 3"), "{error}");
}
