//! Writers that do not use a plain call: batches, programs that the kernel runs for user space, iterators,
//! maps of maps. Each is seen before its writes are, or keeps the map from being specialised on. Writes that
//! count for all maps disturb other tests' sessions, too.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use millstream_btf::{Btf, KindTag};
use millstream_isa::{MapType, asm, encode_all};
use millstream_kernel::{
    AttachType, KernelMap, KernelProgram, MapSpec, ProgramSpec, ProgramType, UpdateMode, prog_flags, testing,
};
use millstream_specialize::guard::{EventKind, Guard};
use millstream_specialize::map_users::{MapRejection, MapUsers, OwnPrograms};

use crate::gate::Absent;
use crate::guard::{guard, hash, put, seen};
use crate::routed::alone;

pub(crate) const MAP_UPDATE_ELEM: i32 = 2;
const PROG_TEST_RUN: i32 = 10;
const LOOKUP_AND_DELETE_BATCH: i32 = 25;
const DELETE_BATCH: i32 = 27;
const LINK_CREATE: i32 = 28;
const ITER_CREATE: i32 = 33;

/// bpf(2) with an attribute of these words.
pub(crate) fn bpf(command: i32, attr: &[u64]) -> i64 {
    // SAFETY: the attribute outlives the call, and what it points to the caller's.
    unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_ptr(), size_of_val(attr)) }
}

#[track_caller]
fn descriptor(result: i64) -> OwnedFd {
    assert!(result >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the kernel has just made it, for us.
    unsafe { OwnedFd::from_raw_fd(result as i32) }
}

pub(crate) fn load(text: &str, spec: &ProgramSpec<'_>) -> KernelProgram {
    let insns = encode_all(&asm::assemble(text).expect("assembled"));
    let slots: Vec<u64> = insns.iter().map(|r| u64::from_ne_bytes(r.to_bytes())).collect();
    KernelProgram::load(&ProgramSpec { insns: &slots, license: "GPL", ..*spec }).expect("accepted")
}

/// Two descriptors in one word, as attributes have them.
fn pair(low: i32, high: i32) -> u64 {
    u64::from(low as u32) | u64::from(high as u32) << 32
}

#[test]
fn batches_that_take_away_are_seen() {
    let map = if testing::require() { hash(100) } else { return };
    (1..=3).for_each(|n| put(&map, n, u64::from(n)));
    let Some(mut guard) = guard(&[&map]) else { return };
    let keys: Vec<u8> = [1u32].into_iter().flat_map(u32::to_ne_bytes).collect();
    let fd = map.as_fd().as_raw_fd();
    // in_batch, out_batch, keys, values, count and map_fd, flags
    let delete = [0, 0, keys.as_ptr() as u64, 0, pair(1, fd), 0, 0];
    let key = seen(&mut guard, || assert_eq!(bpf(DELETE_BATCH, &delete), 0));
    assert_eq!((key, map.lookup(&1u32.to_ne_bytes()).unwrap()), (None, None));
    let (mut keys, mut values, mut next) = ([0u8; 400], [0u8; 800], [0u8; 8]);
    let (keys, values, next) =
        (keys.as_mut_ptr() as u64, values.as_mut_ptr() as u64, next.as_mut_ptr() as u64);
    let take = [0, next, keys, values, pair(100, fd), 0, 0];
    // The end of the map is told by ENOENT, after all was taken.
    let key = seen(&mut guard, || assert_eq!(bpf(LOOKUP_AND_DELETE_BATCH, &take), -1));
    assert_eq!((key, map.entries().unwrap().len()), (None, 0));
}

/// Loaded before the guard was there, so that only its run can tell.
#[test]
fn a_syscall_program_that_writes_is_seen() {
    let _alone = alone();
    let map = if testing::require() { hash(100) } else { return };
    let text = format!(
        "*(u32 *)(r10 -4) = 1\n*(u64 *)(r10 -16) = 77\nr1 = map[fd:{}]\nr2 = r10\nr2 += -4\n\
         r3 = r10\nr3 += -16\nr4 = 0\n\
         call map_update_elem\nr0 = 0\nexit",
        map.as_fd().as_raw_fd()
    );
    let writer = load(
        &text,
        &ProgramSpec {
            name: "writer",
            program_type: ProgramType::SYSCALL,
            flags: prog_flags::SLEEPABLE,
            ..ProgramSpec::default()
        },
    );
    let Some(mut guard) = guard(&[&map]) else { return };
    guard.events();
    let (version, before, strangers) = (guard.version(), guard.writes(0), guard.strangers());
    let mut attr = [0u64; 10];
    attr[0] = pair(writer.as_fd().as_raw_fd(), 0);
    assert_eq!(bpf(PROG_TEST_RUN, &attr), 0, "{}", std::io::Error::last_os_error());
    assert_eq!(map.lookup(&1u32.to_ne_bytes()).unwrap(), Some(77u64.to_ne_bytes().to_vec()));
    assert!(guard.version() > version);
    assert!(guard.writes(0).0 > before.0 && guard.writes(0).0 == guard.writes(0).1);
    // It may have loaded a program that writes later.
    assert!(guard.events().iter().any(|e| e.kind == EventKind::Foreign) && guard.strangers() > strangers);
    // And it holds the map, which is reason enough to leave that alone.
    let stranger = MapUsers::look().unwrap().foreign(map.id(), &OwnPrograms::default());
    assert!(matches!(stranger, Some(MapRejection::Program { .. })), "{stranger:?}");
}

/// A program that is tied to the map only by the iterator's link, and writes it when that is read.
#[test]
fn an_iterator_is_told_before_it_can_write() {
    let _alone = alone();
    let map = if testing::require() { hash(100) } else { return };
    put(&map, 1, 1);
    let types = std::fs::read("/sys/kernel/btf/vmlinux").expect("the kernel's types");
    let types = Btf::from_vec(types).expect("BTF");
    let function = types.find(KindTag::Func, "bpf_iter_bpf_map_elem").expect("iterators of elements");
    // The value is the fourth member of its context.
    let writer = load(
        "r2 = *(u64 *)(r1 +24)\nif r2 == 0 goto out\nr3 = 77\n*(u64 *)(r2 +0) = r3\nout:\nr0 = 0\nexit",
        &ProgramSpec {
            name: "walker",
            program_type: ProgramType::TRACING,
            expected_attach: AttachType::TRACE_ITER,
            attach_btf_id: function.0,
            ..ProgramSpec::default()
        },
    );
    let Some(mut guard) = guard(&[&map]) else { return };
    guard.events();
    let walker = || MapUsers::look().unwrap().foreign(map.id(), &OwnPrograms::new(guard.programs()));
    assert_eq!(walker(), None);
    let version = guard.version();
    let target = [pair(map.as_fd().as_raw_fd(), 0)];
    let attr = [
        pair(writer.as_fd().as_raw_fd(), 0),
        pair(AttachType::TRACE_ITER.0 as i32, 0),
        target.as_ptr() as u64,
        4,
        0,
    ];
    let link = descriptor(bpf(LINK_CREATE, &attr));
    assert!(guard.version() > version, "the link is not seen");
    assert!(matches!(walker(), Some(MapRejection::Iterator(_))));
    assert!(guard.events().iter().any(|e| e.kind == EventKind::Foreign));
    let walk = descriptor(bpf(ITER_CREATE, &[pair(link.as_raw_fd(), 0)]));
    std::io::Read::read_to_end(&mut std::fs::File::from(walk), &mut Vec::new()).expect("walked");
    assert_eq!(map.lookup(&1u32.to_ne_bytes()).unwrap(), Some(77u64.to_ne_bytes().to_vec()));
}

/// An array of maps like this one.
pub(crate) fn outer(inner: &KernelMap) -> KernelMap {
    outer_named("outer", inner)
}

fn outer_named(name: &str, inner: &KernelMap) -> KernelMap {
    let spec = MapSpec {
        name,
        map_type: MapType::ARRAY_OF_MAPS,
        key_size: 4,
        value_size: 4,
        max_entries: 2,
        inner: Some(inner),
        ..MapSpec::default()
    };
    KernelMap::create(&spec).expect("a map of maps")
}

/// Copies that sessions make for themselves are recognised by name and process: not other maps of maps, and
/// nobody else's.
#[test]
fn copies_that_sessions_of_one_process_fill_are_no_news_to_each_other() {
    let _alone = alone();
    let map = if testing::require() { hash(100) } else { return };
    let (copy, other) = (outer_named("ms.shadow", &map), outer(&map));
    let Some(guard) = guard(&[&map]) else { return };
    let by_another_thread = |into: &KernelMap| {
        std::thread::scope(|scope| {
            scope.spawn(|| into.update_fd(&[0; 4], map.as_fd()).unwrap());
        });
    };
    let version = guard.version();
    by_another_thread(&copy);
    assert_eq!(guard.version(), version);
    by_another_thread(&other);
    assert!(guard.version() > version);
    let version = guard.version();
    let mut tool = std::process::Command::new("bpftool");
    tool.args(["map", "update", "id", &copy.id().to_string(), "key", "1", "0", "0", "0", "value"]);
    assert!(tool.args(["id", &map.id().to_string()]).status().expect("bpftool").success());
    assert!(guard.version() > version);
}

#[test]
fn a_map_of_maps_that_is_changed_is_told_and_its_holder_found() {
    let _alone = alone();
    let map = if testing::require() { hash(100) } else { return };
    let (outer, other) = (outer(&map), hash(100));
    outer.update_fd(&[0; 4], other.as_fd()).unwrap();
    let Some(mut guard) = guard(&[&map]) else { return };
    guard.events();
    let holder =
        |guard: &Guard| MapUsers::look().unwrap().foreign(map.id(), &OwnPrograms::new(guard.programs()));
    assert_eq!(holder(&guard), None);
    let version = guard.version();
    outer.update_fd(&[0; 4], map.as_fd()).unwrap();
    assert!(guard.version() > version);
    assert!(guard.wait(Duration::from_secs(60)).unwrap(), "nobody was woken");
    assert!(guard.events().iter().any(|e| e.kind == EventKind::Foreign));
    assert!(matches!(holder(&guard), Some(MapRejection::Outer(id)) if id == outer.id()));
    // A program that reaches the map so and writes it is seen by the map's own id.
    let inner = u32::from_ne_bytes(outer.lookup(&[0; 4]).unwrap().expect("its id").try_into().unwrap());
    let reached = KernelMap::from_id(inner).unwrap();
    let write = || reached.update(&[0; 4], &[1; 8], UpdateMode::Any).unwrap();
    assert_eq!(seen(&mut guard, write), Some(vec![0; 4]));
}

/// An attribute that is not there when the call begins: the maps that it names are known when it returns.
#[test]
fn a_map_of_maps_that_is_named_late_is_told() {
    let _alone = alone();
    let map = if testing::require() { hash(100) } else { return };
    let outer = outer(&map);
    let Some(mut guard) = guard(&[&map]) else { return };
    guard.events();
    let (absent, version, strangers) = (Absent::new(), guard.version(), guard.strangers());
    let (key, value) = (0u32, map.as_fd().as_raw_fd());
    let attr = [outer.as_fd().as_raw_fd() as u64, &raw const key as u64, &raw const value as u64, 0];
    std::thread::scope(|scope| {
        // SAFETY: the kernel waits for the attribute, which outlives the call, as all that it points to.
        let write =
            || unsafe { libc::syscall(libc::SYS_bpf, MAP_UPDATE_ELEM, absent.address(), size_of_val(&attr)) };
        let writer = scope.spawn(write);
        while guard.version() == version {
            std::thread::yield_now();
        }
        assert!(guard.events().iter().all(|e| e.kind == EventKind::Any), "it is not known what it is");
        absent.fill(&attr.map(u64::to_ne_bytes).concat());
        assert_eq!(writer.join().unwrap(), 0);
    });
    assert!(guard.strangers() > strangers && guard.events().iter().any(|e| e.kind == EventKind::Foreign));
}
