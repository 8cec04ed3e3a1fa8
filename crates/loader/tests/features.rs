//! Features that objects need from a loader, tested in the kernel: each object loads as it is and as it is
//! written back, runs, and its results are checked.

#[path = "../../object/tests/objects/common.rs"]
mod common;

use std::path::PathBuf;

use common::{compile, read};
use millstream_btf::{Btf, KindTag};
use millstream_kernel::{KernelMap, TestRun, testing};
use millstream_loader::{Error, KernelTypes, LoadedObject, ObjectLoader, ProgramError};
use millstream_object::Object;

/// A fixture, and the same written and read again.
fn both(name: &str) -> Option<[Object; 2]> {
    if !testing::require() {
        return None;
    }
    let object = read(name, &[])?;
    let again = Object::parse(name, &object.write().expect("can be written")).expect("can be read again");
    Some([object, again])
}

/// The contents of a variable of global data.
fn variable(loaded: &LoadedObject<'_>, name: &str) -> Vec<u8> {
    let object = loaded.session.object();
    let holds = |m: &&millstream_object::ObjectMap| m.variables.iter().any(|v| v.name == name);
    let map = object.maps.iter().find(holds).unwrap_or_else(|| panic!("no variable {name}"));
    let place = map.variables.iter().find(|v| v.name == name).expect("found above");
    let made = loaded.session.map_by_name(&map.name).expect("made");
    let value = made.lookup(&[0; 4]).expect("can be read").expect("has one element");
    value[place.offset as usize..][..place.size as usize].to_vec()
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes"))).collect()
}

/// Loads all programs and runs one, on 64 bytes of zeros where it takes a packet.
fn run<'a>(loader: ObjectLoader<'a>, program: &str, packet: bool) -> (LoadedObject<'a>, u32) {
    let loaded = loader.load().unwrap_or_else(|e| panic!("{e}"));
    let run = if packet { TestRun::packet(&[0; 64]) } else { TestRun { repeat: 0, ..TestRun::default() } };
    let out = loaded.program(program).expect("loaded").test_run(&run).expect("runs");
    (loaded, out.retval)
}

#[test]
fn core_relocations_are_answered_by_the_running_kernel() {
    let Some(objects) = both("core") else { return };
    let types = KernelTypes::running().expect("types");
    let kernel = types.btf();
    let task = kernel.find(KindTag::Struct, "task_struct").expect("every kernel has it");
    let children = kernel.field(task, "children").expect("a structure").expect("its field");
    for object in &objects {
        let local = object.btf.as_ref().expect("types").find(KindTag::Struct, "task_struct").expect("ours");
        let (loaded, _) = run(ObjectLoader::new(object), "probe", false);
        let out = words(&variable(&loaded, "out"));
        let comm = std::fs::read("/proc/thread-self/comm").expect("our name");
        assert_eq!(out[1], u64::from(comm[3]), "comm[3]");
        assert_eq!(out[2..6], [0, 0, 1, 16], "a bit, two that exist or not, a size");
        assert_eq!(out[6], kernel.size_of(task).expect("a size"));
        assert_eq!((out[7], out[8], out[9]), (0, u64::from(task.0), u64::from(local.0)));
        assert_eq!((out[10], out[11]), (1, 0), "enumerators");
        assert_eq!(out[12], u64::from(children.bit_offset / 8) + 8, "the second member of `children`");
        assert_eq!(out[13], 0, "not reached");
    }
}

/// The types of the fixture that stands for another kernel.
fn other_kernel() -> Option<KernelTypes> {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../object/tests/fixtures/other_kernel.c");
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("other-{}.o", std::process::id()));
    let clang = std::env::var("MILLSTREAM_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let mut command = std::process::Command::new(clang);
    let made = command.args(["-O2", "-g", "-target", "bpf", "-c"]).arg(&source).arg("-o").arg(&out).status();
    made.is_ok_and(|s| s.success()).then_some(())?;
    let object = Object::parse("other", &std::fs::read(&out).expect("made")).expect("can be read");
    Some(KernelTypes::new(object.btf.expect("types")))
}

#[test]
fn core_relocations_stay_open_for_another_kernel() {
    let Some(objects) = both("core") else { return };
    let Some(other) = other_kernel() else { return eprintln!("skipped: no clang") };
    for object in &objects {
        let (loaded, _) = run(ObjectLoader::new(object).core_types(other.clone()), "probe", false);
        let out = words(&variable(&loaded, "out"));
        let btf: &Btf = other.btf();
        let task = btf.find(KindTag::Struct, "task_struct").expect("its types");
        assert_eq!(out[3..6], [1, 1, 24], "a field that this kernel lacks, one that both have, a size");
        assert_eq!((out[6], out[8]), (btf.size_of(task).expect("a size"), u64::from(task.0)));
        assert_eq!(out[10], 123, "an enumerator");
        assert_eq!(out[12], 160, "where `children.prev` is there");
    }
}

#[test]
fn settings_symbols_and_functions_of_the_kernel() {
    let Some(objects) = both("kernel") else { return };
    for object in &objects {
        let (loaded, _) = run(ObjectLoader::new(object), "probe", false);
        let out = words(&variable(&loaded, "out"));
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
        let mut parts = release.split(['.', '-']).map(|p| p.trim().parse::<u64>().expect("a number"));
        let mut part = || parts.next().expect("three numbers");
        assert_eq!(out[0], part() << 16 | part() << 8 | part().min(255), "LINUX_KERNEL_VERSION");
        assert!([100, 250, 300, 1000].contains(&out[1]), "CONFIG_HZ is {}", out[1]);
        assert_eq!(out[2..6], [1, 1, u64::from(b'y'), 0], "tristate, bool, char, and one that is not there");
        let symbols = std::fs::read_to_string("/proc/kallsyms").expect("symbols");
        let line = symbols.lines().find(|l| l.split_whitespace().nth(2) == Some("schedule")).expect("it");
        assert_eq!(format!("{:016x}", out[6]), &line[..16]);
        assert_eq!(out[7..12], [0, 0, 1, 0, 1], "weak ones that are not there, and a function that is");
    }
}

#[test]
fn maps_hold_their_first_contents() {
    let Some(objects) = both("sizes") else { return };
    for object in &objects {
        let (loaded, verdict) = run(ObjectLoader::new(object), "entry", true);
        assert_eq!(verdict, 7, "the program that the array held, and its constant");
        assert_eq!(words(&variable(&loaded, "tails")), [41]);
        assert_eq!(words(&variable(&loaded, "zero")), [1]);
        assert_eq!(words(&variable(&loaded, "runs")), [u64::from(b'w') + 1]);
        assert!(loaded.program("asked").is_none(), "not loaded unasked");
        let entries = |name: &str| loaded.session.map_by_name(name).expect("made").info().max_entries;
        assert_eq!((entries("odd"), entries("untyped")), (8192, 64), "ring buffers in powers of two");
        let asked = ObjectLoader::new(object).only("asked").expect("exists").load().expect("loads");
        assert_eq!(asked.programs.len(), 1);
        let entry = || ObjectLoader::new(object).only("entry").expect("exists");
        let (alone, verdict) = run(entry(), "entry", true);
        assert_eq!((alone.programs.len(), verdict), (1, 0), "the array is empty");
        let (both, verdict) = run(entry().with_program_arrays(), "entry", true);
        assert_eq!((both.programs.len(), verdict), (2, 7), "and the one that it calls");
        let other = ObjectLoader::new(object).set_variable("limit", &2u32.to_le_bytes()).expect("a constant");
        assert_eq!(run(other, "entry", true).1, 2);
    }
}

#[test]
fn maps_of_maps_hold_their_inner_maps() {
    let Some(objects) = both("maps") else { return };
    for object in &objects {
        let loaded = ObjectLoader::new(object).load().unwrap_or_else(|e| panic!("{e}"));
        let map = |name: &str| loaded.session.map_by_name(name).expect("made");
        let inner = |slot: u32| {
            let id = map("outer").lookup(&slot.to_ne_bytes()).expect("can be read");
            id.map(|id| u32::from_ne_bytes(id.try_into().expect("an id")))
        };
        assert_eq!(inner(0), Some(map("inner_a").id()));
        assert_eq!(inner(3), Some(map("inner_b").id()));
        assert_eq!(inner(1), None);
    }
    let Some(legacy) = read("sections", &["-g0"]) else { return };
    ObjectLoader::new(&legacy).load().unwrap_or_else(|e| panic!("{e}"));
    let Some(iproute2) = read("iproute2", &["-g0"]) else { return };
    let loaded =
        ObjectLoader::new(&iproute2).guess_types().expect("tried").load().unwrap_or_else(|e| panic!("{e}"));
    let place = loaded.session.map_by_name("outer").expect("made").lookup(&2u32.to_ne_bytes());
    assert!(place.expect("can be read").is_some(), "connected by number");
}

/// A folder of the BPF file system that goes when dropped.
struct Pins(PathBuf);

impl Pins {
    fn new(name: &str) -> Pins {
        let folder = PathBuf::from(format!("/sys/fs/bpf/millstream-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for pins");
        Pins(folder)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn maps_are_pinned_by_name_and_found_again() {
    let Some([object, again]) = both("maps") else { return };
    let pins = Pins::new("pins");
    let load = |o| ObjectLoader::new(o).pin_root(&pins.0).prepare();
    let id = |s: &millstream_loader::Session<'_>| s.map_by_name("flows").expect("made").id();
    let first = id(&load(&object).expect("made and pinned"));
    let names: Vec<_> =
        std::fs::read_dir(&pins.0).expect("a folder").flatten().map(|e| e.file_name()).collect();
    assert_eq!(names, ["flows"], "the one that asks for it");
    assert_eq!(id(&load(&again).expect("found")), first);

    for (entries, difference) in [
        (10, "its number of entries is 1024 there, 10 in the object"),
        (1024, "its type is array there, hash in the object"),
    ] {
        if entries == 1024 {
            std::fs::remove_file(pins.0.join("flows")).expect("unpinned");
            let array = millstream_kernel::MapSpec {
                name: "flows",
                map_type: millstream_isa::MapType::ARRAY,
                key_size: 4,
                value_size: 16,
                max_entries: 1024,
                ..Default::default()
            };
            KernelMap::create(&array)
                .and_then(|m| m.pin(&pins.0.join("flows")))
                .expect("another map of that name");
        }
        let loader =
            ObjectLoader::new(&object).pin_root(&pins.0).max_entries("flows", entries).expect("exists");
        let error = loader.prepare().expect_err("another layout");
        assert!(matches!(&error, Error::Layout { name, .. } if name.contains("millstream-pins")), "{error}");
        assert!(error.to_string().contains(difference), "{error}");
        assert!(pins.0.join("flows").exists(), "left as it was");
    }
}

#[test]
fn a_missing_function_of_the_kernel_is_named() {
    if !testing::require() {
        return;
    }
    let Some((_, mut data)) = compile("kernel", &[]) else { return };
    let old = b"bpf_rdonly_cast\0";
    for at in 0..data.len() - old.len() {
        if data[at..].starts_with(old) {
            data[at..at + 4].copy_from_slice(b"xyz_");
        }
    }
    let object = Object::parse("kernel", &data).expect("can be read");
    let error = ObjectLoader::new(&object).load().expect_err("this kernel has no such function");
    let Error::Program { source, .. } = &error else { panic!("{error}") };
    assert!(matches!(&**source, ProgramError::Missing { name, .. } if name == "xyz_rdonly_cast"), "{error}");
}
