//! Objects written back.

use crate::common::{compile, read};
use crate::{ALL, LIBBPF};
use millstream_isa::RawInsn;
use millstream_object::{FuncId, LineInfo, NewFunction, Object, Reloc, RelocKind};
use std::path::Path;
use std::process::Command;

const NOP: RawInsn = RawInsn { code: 0x05, dst: 0, src: 0, off: 0, imm: 0 };

fn same(a: &Object, b: &Object) {
    assert_eq!(a.functions, b.functions);
    assert_eq!(a.programs, b.programs);
    assert_eq!(a.maps, b.maps);
    assert_eq!(a.externs, b.externs);
    assert_eq!(a.btf.as_ref().map(|b| b.bytes()), b.btf.as_ref().map(|b| b.bytes()));
    assert_eq!((&a.license, a.kernel_version), (&b.license, b.kernel_version));
}

#[test]
fn what_is_written_reads_the_same() {
    for name in ALL {
        for flags in [&["-mcpu=v1"][..], &["-mcpu=v3"], &["-mcpu=v4"], &["-g0", "-mcpu=v2"]] {
            if flags[0] == "-g0" && LIBBPF.contains(&name) {
                continue; // described by BTF
            }
            let Some(o) = read(name, flags) else { return };
            let written = o.write().expect("can be written");
            let again = Object::parse(name, &written).expect("can be read again");
            assert_eq!(again.name, name);
            same(&o, &again);
            assert_eq!(again.write().expect("can be written again"), written, "{name}: a fixed point");
        }
    }
}

/// cilium/ebpf reads the place of CO-RE relocations even if there are none.
#[test]
fn the_header_of_ext_has_all_three_parts() {
    for name in ["calls", "core"] {
        let Some(o) = read(name, &[]) else { return };
        let written = o.write().expect("can be written");
        let ext = written.windows(8).position(|w| w == [0x9f, 0xeb, 1, 0, 32, 0, 0, 0]).expect("its header");
        let word =
            |n: usize| u32::from_le_bytes(written[ext + 8 + 4 * n..][..4].try_into().expect("4 bytes"));
        assert_eq!((word(0), word(2), word(4)), (0, word(1), word(2) + word(3)), "{name}: one after another");
        let relocations = o.functions.iter().map(|f| f.core_relos.len() as u32).sum::<u32>();
        let expected = if relocations == 0 { 0 } else { 4 + 8 + 16 * relocations };
        assert_eq!(word(5), expected, "{name}");
    }
}

/// Every function gets an instruction in front: everything moves.
fn shifted(o: &Object) -> Object {
    let mut new = o.clone();
    for (n, f) in o.functions.iter().enumerate() {
        let mut insns = vec![NOP];
        insns.extend(&f.insns);
        let mut line_info: Vec<LineInfo> = f
            .line_info
            .iter()
            .map(|l| LineInfo { insn: if l.insn == 0 { 0 } else { l.insn + 1 }, ..*l })
            .collect();
        line_info.dedup_by_key(|l| l.insn);
        let relocs = f.relocs.iter().map(|r| Reloc { insn: r.insn + 1, kind: r.kind }).collect();
        let core_relos =
            f.core_relos.iter().map(|c| millstream_object::CoreRelo { insn: c.insn + 1, ..*c }).collect();
        let contents = NewFunction { insns, relocs, line_info, core_relos };
        new.replace_function(FuncId(n as u32), contents).expect("fits");
    }
    new
}

#[test]
fn functions_that_grow_take_all_references_along() {
    for name in ALL {
        let Some(o) = read(name, &[]) else { return };
        let new = shifted(&o);
        let again = Object::parse(name, &new.write().expect("can be written")).expect("can be read again");
        for (f, g) in new.functions.iter().zip(&again.functions) {
            let moved = millstream_object::ObjectFunction { start: g.start, ..f.clone() };
            assert_eq!(&moved, g, "{name}");
        }
        assert_eq!(new.maps, again.maps);
    }
}

#[test]
fn removed_functions_are_gone() {
    let Some(mut o) = read("calls", &[]) else { return };
    let id =
        |o: &Object, name: &str| FuncId(o.functions.iter().position(|f| f.name == name).expect(name) as u32);
    let error = o.remove_function(id(&o, "each")).expect_err("first refers to it");
    assert!(error.to_string().contains("first"), "{error}");
    for name in ["first", "each", "weak_one"] {
        o.remove_function(id(&o, name)).expect("nothing refers to it any more");
    }
    let again = Object::parse("calls", &o.write().expect("can be written")).expect("can be read again");
    let names: Vec<_> = again.functions.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["global_sum", "twice", "second", "third"]);
    assert!(o.link(id(&o, "each")).is_err());
}

#[test]
fn new_contents_are_checked() {
    let Some(mut o) = read("calls", &[]) else { return };
    let call = RawInsn { code: 0x85, dst: 0, src: 1, off: 0, imm: 0 };
    let exit = RawInsn { code: 0x95, dst: 0, src: 0, off: 0, imm: 0 };
    let before = o.functions.clone();
    let bad =
        |relocs: Vec<Reloc>, insns: Vec<RawInsn>| NewFunction { insns, relocs, ..NewFunction::default() };
    let call_to = |f: u32| Reloc { insn: 0, kind: RelocKind::Call(FuncId(f)) };
    for new in [
        bad(vec![], vec![]),
        bad(vec![], vec![call, exit]),
        bad(vec![call_to(1)], vec![exit, call]),
        bad(vec![call_to(99)], vec![call, exit]),
        bad(vec![call_to(1), call_to(1)], vec![call, exit]),
        bad(vec![Reloc { insn: 7, ..call_to(1) }], vec![call, exit]),
    ] {
        o.replace_function(FuncId(0), new).expect_err("not a function");
    }
    assert_eq!(o.functions, before);
}

/// Runs a tool; `None` if it is not there.
fn tool(name: &str, args: &[&str]) -> Option<(bool, String)> {
    let out = Command::new(name).args(args).output().ok()?;
    let text = [out.stdout, out.stderr].concat();
    Some((out.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

#[test]
fn readelf_has_nothing_to_say() {
    for name in ALL {
        let Some((path, data)) = compile(name, &[]) else { return };
        let o = Object::parse(name, &data).expect("can be read");
        for (suffix, object) in [("same", &o), ("shifted", &shifted(&o))] {
            let out = path.with_extension(suffix);
            std::fs::write(&out, object.write().expect("can be written")).expect("a file");
            let Some((ok, text)) = tool("llvm-readelf-19", &["-a", &out.to_string_lossy()]) else {
                assert!(std::env::var("CI").is_err(), "llvm-readelf-19 is missing");
                return eprintln!("skipped: no llvm-readelf-19");
            };
            assert!(ok && !text.contains("warning:") && !text.contains("error:"), "{name}: {text}");
        }
    }
}

/// The instructions of all programs of an object, as the kernel has them when bpftool (libbpf) has loaded it,
/// with what differs from load to load taken out.
fn loaded_by_libbpf(object: &Path, tag: &str) -> Result<Vec<String>, String> {
    let pins = format!("/sys/fs/bpf/millstream-object-{tag}-{}", std::process::id());
    let loaded = tool("bpftool", &["prog", "loadall", &object.to_string_lossy(), &pins]).unwrap_or_default();
    let mut dumps = Vec::new();
    if loaded.0 {
        let mut names: Vec<_> = std::fs::read_dir(&pins).map_err(|e| e.to_string())?.flatten().collect();
        names.sort_by_key(|e| e.file_name());
        for pin in names {
            let path = pin.path();
            let dump =
                tool("bpftool", &["prog", "dump", "xlated", "pinned", &path.to_string_lossy(), "opcodes"]);
            dumps.push(without_numbers(&dump.unwrap_or_default().1));
        }
    }
    let _ = std::fs::remove_dir_all(&pins);
    if loaded.0 { Ok(dumps) } else { Err(loaded.1) }
}

/// Leaves out map and program ids, and lines of opcodes, which hold addresses.
fn without_numbers(dump: &str) -> String {
    let instructions = dump.lines().filter(|l| l.contains(": (") || l.trim_start().starts_with(';'));
    let words = |l: &str| -> String {
        let known = |w: &&str| !w.contains("[id:") && !w.starts_with("0x") && !w.contains("bpf_prog_");
        l.split_whitespace().filter(known).collect::<Vec<_>>().join(" ")
    };
    instructions.map(words).collect::<Vec<_>>().join("\n")
}

#[test]
fn libbpf_loads_what_is_written_as_it_loads_the_original() {
    for name in LIBBPF {
        let Some((path, data)) = compile(name, &["-DWITHOUT_PINS"]) else { return };
        let original = match loaded_by_libbpf(&path, name) {
            Ok(dumps) => dumps,
            Err(why) => {
                assert!(std::env::var("CI").is_err(), "{name}: {why}");
                eprintln!("skipped: bpftool cannot load {name}: {why}");
                continue;
            }
        };
        assert!(!original.is_empty() && original.iter().all(|d| d.lines().count() > 2));
        let o = Object::parse(&path.to_string_lossy(), &data).expect("can be read");
        let same = path.with_file_name("same").join(format!("{name}.bpf.o"));
        std::fs::create_dir_all(same.parent().expect("a folder")).expect("a folder");
        std::fs::write(&same, o.write().expect("can be written")).expect("a file");
        assert_eq!(loaded_by_libbpf(&same, name).as_ref(), Ok(&original), "{name}");
        std::fs::write(&same, shifted(&o).write().expect("can be written")).expect("a file");
        let moved = loaded_by_libbpf(&same, name).unwrap_or_else(|why| panic!("{name}, shifted: {why}"));
        assert_eq!(moved.len(), original.len());
    }
}
