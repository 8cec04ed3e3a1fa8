//! Every way to write a map from user space bumps the version, before the write is seen.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use millstream_isa::MapType;
use millstream_kernel::{
    KernelMap, KernelProgram, MapSpec, UpdateMode, map_flags, probe, run_time_statistics, testing,
};
use millstream_lab::os;
use millstream_specialize::guard::{EventKind, Guard, GuardHook, HOOK_VARIABLE};
use millstream_specializer::guard_state::DeoptMask;

pub(crate) fn hash(entries: u32) -> KernelMap {
    let spec = MapSpec {
        name: "watched",
        map_type: MapType::HASH,
        key_size: 4,
        value_size: 8,
        max_entries: entries,
        ..MapSpec::default()
    };
    KernelMap::create(&spec).unwrap()
}

pub(crate) fn guard(maps: &[&KernelMap]) -> Option<Guard> {
    if !testing::require() {
        return None;
    }
    let mut guard = Guard::attach().unwrap();
    for map in maps {
        guard.watch(map).unwrap();
    }
    Some(guard)
}

pub(crate) fn put(map: &KernelMap, key: u32, value: u64) {
    map.update(&key.to_ne_bytes(), &value.to_ne_bytes(), UpdateMode::Any).unwrap();
}

/// Asserts that `write` is counted in and out on map 1, reported as an event, and bumps the version. Returns
/// the key in the event.
#[track_caller]
pub(crate) fn seen(guard: &mut Guard, write: impl FnOnce()) -> Option<Vec<u8>> {
    guard.events();
    let (version, (started, finished)) = (guard.version(), guard.writes(1));
    write();
    assert!(guard.version() > version, "no bump");
    assert!(guard.writes(1).0 > started && guard.writes(1).1 > finished, "not counted");
    assert_eq!(guard.writes(1).0, guard.writes(1).1, "somebody is still inside");
    assert!(guard.wait(Duration::from_secs(60)).unwrap(), "nobody was woken");
    let events = guard.events();
    let event = events.iter().find(|e| e.kind == EventKind::Write(1)).expect("an event of map 1");
    assert!(event.version > version && event.version <= guard.version());
    event.key.clone()
}

#[test]
fn every_command_that_writes_is_seen() {
    let map = if testing::require() { hash(100) } else { return };
    let Some(mut guard) = guard(&[&map]) else { return };
    let key = |n: u32| Some(n.to_ne_bytes().to_vec());
    assert_eq!(seen(&mut guard, || put(&map, 1, 1)), key(1));
    assert_eq!(seen(&mut guard, || assert!(map.delete(&1u32.to_ne_bytes()).unwrap())), key(1));
    assert_eq!(seen(&mut guard, || map.update_batch(&[0; 8], &[0; 16]).unwrap()), None);
    let taken = || assert!(map.lookup_and_delete(&0u32.to_ne_bytes()).unwrap().is_some());
    assert_eq!(seen(&mut guard, taken), key(0));
    let other = KernelMap::from_id(map.id()).unwrap();
    assert_eq!(seen(&mut guard, || put(&other, 2, 2)), key(2));
}

/// The guard of kernels without atomic exchanges, which loads on all.
#[test]
fn plain_instructions_see_every_write_and_revoke_all() {
    let map = if testing::require() { hash(100) } else { return };
    let mut guard = Guard::attach_at(GuardHook::SystemCalls, false).unwrap();
    guard.watch(&map).unwrap();
    // A map that newer kernels would find behind, alone.
    guard.mark(7, &[(1, DeoptMask::one(0))]);
    for n in 1..100 {
        let look = guard.begin(Duration::from_secs(10), &[]).expect("nobody writes");
        assert_eq!(guard.approve(look, 7 << 32, DeoptMask::one(0), DeoptMask::NONE), Some(DeoptMask::NONE));
        assert!(guard.approved().is_some());
        let key = Some(1u32.to_ne_bytes().to_vec());
        assert_eq!(seen(&mut guard, || put(&map, 1, n)), key);
        assert_eq!(guard.approved(), None, "a write revokes");
        let look = guard.begin(Duration::from_secs(10), &[]).expect("nobody writes");
        put(&map, 2, n);
        assert!(!guard.holds(&look));
        assert_eq!(guard.approve(look, 7 << 32, DeoptMask::one(0), DeoptMask::NONE), None, "written since");
    }
    assert_eq!(seen(&mut guard, || map.update_batch(&[0; 8], &[0; 16]).unwrap()), None);
}

/// `bpf(command, attribute, 32)`, which the kernel may refuse.
fn call(command: u32, attr: &[u64; 4]) -> i64 {
    // SAFETY: the attribute has the size passed; it points to live memory as long as the commands of these
    // tests read.
    unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_ptr(), size_of_val(attr)) }
}

/// Kernels after 7.1 take a second attribute with every command, announced by a bit in the command. Older
/// ones refuse the bit; the guard, which runs before they do, sees the same call.
#[test]
fn a_command_with_common_attributes_is_the_command() {
    const COMMON: u32 = 1 << 16;
    let map = if testing::require() { hash(100) } else { return };
    for plain in [false, true] {
        let mut guard = match plain {
            true => Guard::attach_at(GuardHook::SystemCalls, false).unwrap(),
            false => Guard::attach().unwrap(),
        };
        guard.watch(&map).unwrap();
        let (key, value) = (5u32, 6u64);
        let attr = [
            map.as_fd().as_raw_fd() as u64,
            std::ptr::from_ref(&key) as u64,
            std::ptr::from_ref(&value) as u64,
            0,
        ];
        assert_eq!(seen(&mut guard, || _ = call(2 | COMMON, &attr)), Some(key.to_ne_bytes().to_vec()));
        assert_eq!(seen(&mut guard, || _ = call(3 | COMMON, &attr)), Some(key.to_ne_bytes().to_vec()));
        // A look-up stays one.
        guard.events();
        let before = guard.version();
        let mut found = 0u64;
        let look_up = [attr[0], attr[1], std::ptr::from_mut(&mut found) as u64, 0];
        call(1 | COMMON, &look_up);
        assert!(!guard.events().iter().any(|e| e.kind == EventKind::Write(1) && e.version > before));
    }
}

#[test]
fn a_command_that_is_not_known_counts_as_a_write_to_everything() {
    let map = if testing::require() { hash(100) } else { return };
    for command in [39, 77, 77 | 1 << 16, 1 << 17, u32::MAX] {
        let Some(mut guard) = guard(&[&map]) else { return };
        guard.events();
        let (version, (started, finished), strangers) = (guard.version(), guard.writes(0), guard.strangers());
        let look = guard.begin(Duration::from_secs(10), &[]).expect("nobody writes");
        call(command, &[0; 4]);
        assert!(!guard.holds(&look), "command {command}");
        assert!(guard.version() > version, "command {command}");
        assert!(guard.writes(0).0 > started && guard.writes(0).1 > finished, "command {command}");
        assert!(guard.strangers() > strangers, "command {command}");
        assert!(guard.events().iter().any(|e| e.kind == EventKind::Foreign), "command {command}");
    }
}

/// One thread increments the key while another, on another processor, writes with it: the event names the key
/// that was written, or says that it is unknown.
#[test]
fn a_key_that_changes_under_the_call_is_not_trusted() {
    /// Calls at most: each makes an entry.
    const CALLS: u32 = 300_000;
    /// So many calls under which the key changed are enough.
    const ENOUGH: u64 = 200;
    let map = if testing::require() { hash(CALLS) } else { return };
    let Some(mut guard) = guard(&[&map]) else { return };
    let (key, stop) = (AtomicU32::new(0), AtomicBool::new(false));
    let cpus = os::allowed_cpus();
    let mut unknown = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            os::pin_to_cpu(cpus[0]).expect("allowed");
            while !stop.load(Ordering::Relaxed) {
                key.fetch_add(1, Ordering::SeqCst);
            }
        });
        let writes = || {
            os::pin_to_cpu(cpus[cpus.len() - 1]).expect("allowed");
            for value in 1..=u64::from(CALLS) {
                if unknown >= ENOUGH {
                    break;
                }
                unknown += u64::from(write_under_change(&map, &mut guard, &key, value));
            }
        };
        let written = scope.spawn(writes).join();
        stop.store(true, Ordering::Relaxed);
        written.expect("what was told holds");
    });
    assert!(unknown >= ENOUGH, "the key changed under {unknown} calls");
}

/// Writes `value` under a key that somebody changes meanwhile. The event must name the key that was written,
/// or none; returns true if it names none.
fn write_under_change(map: &KernelMap, guard: &mut Guard, key: &AtomicU32, value: u64) -> bool {
    guard.events();
    let before = key.load(Ordering::SeqCst);
    let pointers = [std::ptr::from_ref(key) as u64, std::ptr::from_ref(&value) as u64];
    let attr = [map.as_fd().as_raw_fd() as u64, pointers[0], pointers[1], 0];
    // SAFETY: BPF_MAP_UPDATE_ELEM reads 4 bytes of key and 8 of value, which outlive the call.
    let done = unsafe { libc::syscall(libc::SYS_bpf, 2, attr.as_ptr(), size_of_val(&attr)) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    let after = key.load(Ordering::SeqCst);
    let holds = |k: &u32| map.lookup(&k.to_ne_bytes()).unwrap() == Some(value.to_ne_bytes().to_vec());
    let written = (before..=after).find(holds).expect("it is somewhere").to_ne_bytes();
    let told: Vec<_> = guard.events().into_iter().map(|e| e.key).collect();
    let known = |key: &Option<Vec<u8>>| key.as_ref().is_none_or(|k| *k == written);
    assert!(told.iter().any(known), "{written:?} was written, {told:?} was told");
    told.contains(&None)
}

#[test]
fn other_processes_are_seen_also_through_pins() {
    let map = if testing::require() { hash(100) } else { return };
    let Some(mut guard) = guard(&[&map]) else { return };
    let pin = format!("/sys/fs/bpf/millstream_guard_test_{}", std::process::id());
    map.pin(pin.as_ref()).unwrap();
    let tool = |name: &str, what: &str| {
        let args = ["map", "update", name, what, "key", "1", "0", "0", "0", "value"];
        let done = Command::new("bpftool").args(args).args(["7"; 8]).output();
        done.is_ok_and(|o| o.status.success())
    };
    let _ = seen(&mut guard, || assert!(tool("id", &map.id().to_string()), "bpftool by id"));
    let _ = seen(&mut guard, || assert!(tool("pinned", &pin), "bpftool by pin"));
    std::fs::remove_file(&pin).unwrap();
}

#[test]
fn reads_and_other_maps_leave_it_alone() {
    let (map, other) = if testing::require() { (hash(100), hash(100)) } else { return };
    let Some(mut guard) = guard(&[&map]) else { return };
    guard.events();
    let counts = guard.writes(1);
    put(&other, 1, 1);
    assert!(map.lookup(&1u32.to_ne_bytes()).unwrap().is_none());
    assert_eq!(map.entries().unwrap().len(), 0);
    assert!(other.delete(&1u32.to_ne_bytes()).unwrap());
    assert_eq!(guard.writes(1), counts);
    assert!(!guard.events().iter().any(|e| e.kind == EventKind::Write(1)));
}

/// `BPF_MAP_UPDATE_ELEM` by the 32-bit entry, with everything that it points to below 4 GiB.
pub(crate) fn update_by_int80(map: &KernelMap, key: &[u8], value: &[u8]) -> i32 {
    assert!(key.len() <= 64 && value.len() <= 64);
    // SAFETY: a fresh private page in the low 2 GiB.
    let page = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
        libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0)
    };
    assert_ne!(page, libc::MAP_FAILED);
    let address = page as u64;
    let attr = [map.as_fd().as_raw_fd() as u64, address + 64, address + 128, 0];
    // SAFETY: inside the page just made, which nobody else knows.
    unsafe {
        page.cast::<[u64; 4]>().write(attr);
        std::ptr::copy_nonoverlapping(key.as_ptr(), page.cast::<u8>().add(64), key.len());
        std::ptr::copy_nonoverlapping(value.as_ptr(), page.cast::<u8>().add(128), value.len());
    }
    let result: i32;
    // SAFETY: the system call reads the page and nothing else; `rbx` is put back, for the compiler reserves
    // it.
    unsafe {
        std::arch::asm!(
            "push rbx", "mov ebx, 2", "int 0x80", "pop rbx",
            inout("eax") 357 => result, in("ecx") address as u32, in("edx") 32,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
        libc::munmap(page, 4096);
    }
    result
}

#[test]
fn the_32_bit_system_call_is_seen() {
    let map = if testing::require() { hash(100) } else { return };
    let Some(mut guard) = guard(&[&map]) else { return };
    let update = |value: u64| update_by_int80(&map, &1u32.to_ne_bytes(), &value.to_ne_bytes());
    if update(1) == -libc::ENOSYS {
        eprintln!("skipped: this kernel has no 32-bit system calls");
        return;
    }
    let _ = seen(&mut guard, || assert_eq!(update(77), 0));
    assert_eq!(map.lookup(&1u32.to_ne_bytes()).unwrap(), Some(77u64.to_ne_bytes().to_vec()));
}

/// A guard at bpf(2) itself, where the kernel permits that.
fn guard_at_calls() -> Option<Guard> {
    if !testing::require() {
        return None;
    }
    match Guard::attach_at(GuardHook::Calls, probe::fetching_atomics().is_yes()) {
        Ok(guard) => Some(guard),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

#[test]
fn a_guard_is_at_bpf_wherever_the_kernel_permits_that() {
    let permitted = guard_at_calls().is_some();
    if testing::require() && std::env::var_os(HOOK_VARIABLE).is_none() {
        let hook = Guard::attach().unwrap().hook();
        assert_eq!(hook == GuardHook::Calls, permitted);
    }
}

/// Runs of all programs of a guard, while the kernel counts them.
fn runs(guard: &Guard) -> u64 {
    let info = |id: &u32| KernelProgram::from_id(*id).unwrap().info().unwrap();
    guard.programs().iter().map(|id| info(id).run_count).sum()
}

#[test]
fn a_guard_at_bpf_does_not_run_in_other_system_calls() {
    let Some(guard) = guard_at_calls() else { return };
    let map = hash(1);
    let _counted = run_time_statistics().unwrap();
    // Others on the machine may call bpf(2) meanwhile, but not in every round.
    let is_quiet = || {
        let before = runs(&guard);
        let between = runs(&guard);
        for _ in 0..1_000_000 {
            // SAFETY: changes nothing.
            unsafe { libc::syscall(libc::SYS_getppid) };
        }
        let after = runs(&guard);
        put(&map, 1, 1);
        let end = runs(&guard);
        // Reading the counts takes calls of bpf(2).
        let reading = between - before;
        after - between == reading && end - after == reading + 2
    };
    assert!((0..50).any(|_| is_quiet()), "the guard runs in other system calls");
}

#[test]
fn what_cannot_be_resolved_counts_for_all() {
    let map = if testing::require() { hash(100) } else { return };
    let Some(mut guard) = guard(&[&map]) else { return };
    guard.events();
    let (version, any) = (guard.version(), guard.writes(0));
    // SAFETY: the kernel refuses an attribute that it cannot read.
    let r = unsafe { libc::syscall(libc::SYS_bpf, 2, 8usize, 32) };
    assert_eq!(r, -1);
    let attr = [99_999u64, 0, 0, 0];
    // SAFETY: an attribute that names a descriptor that is not open.
    assert_eq!(unsafe { libc::syscall(libc::SYS_bpf, 2, attr.as_ptr(), 32) }, -1);
    assert!(guard.version() >= version + 2);
    assert!(guard.writes(0).0 >= any.0 + 2);
    assert!(guard.events().iter().filter(|e| e.kind == EventKind::Any).count() >= 2);
}

#[test]
fn programs_of_others_that_reach_a_watched_map_are_told() {
    let map = if testing::require() { hash(100) } else { return };
    let Some(mut guard) = guard(&[&map]) else { return };
    let told = |guard: &mut Guard| guard.events().iter().any(|e| e.kind == EventKind::Foreign);
    let pin = format!("/sys/fs/bpf/millstream_guard_map_{}", std::process::id());
    let program = format!("/sys/fs/bpf/millstream_guard_prog_{}", std::process::id());
    let object = std::env::temp_dir().join(format!("millstream_guard_{}.o", std::process::id()));
    std::fs::write(&object, millstream_programs::STALE.object).unwrap();
    let stale = MapSpec {
        name: "stale",
        map_type: MapType::ARRAY,
        key_size: 4,
        value_size: 72,
        max_entries: 1,
        flags: map_flags::MMAPABLE,
        ..MapSpec::default()
    };
    let stale = KernelMap::create(&stale).unwrap();
    guard.watch(&stale).unwrap();
    stale.pin(pin.as_ref()).unwrap();
    let version = guard.version();
    let load = Command::new("bpftool")
        .args(["prog", "load"])
        .args([object.as_os_str(), program.as_ref()])
        .args(["map", "name", "stale", "pinned", &pin])
        .output();
    let loaded = load.is_ok_and(|o| o.status.success());
    for path in [pin.as_str(), &program] {
        let _ = std::fs::remove_file(path);
    }
    std::fs::remove_file(&object).unwrap();
    assert!(loaded, "bpftool did not load it");
    assert!(guard.version() > version);
    assert!(told(&mut guard));
}

/// A reader that sees the n-th value sees the n-th bump: never the other way round.
#[test]
fn the_bump_comes_before_the_write() {
    let map = if testing::require() { hash(100) } else { return };
    let Some(guard) = guard(&[&map]) else { return };
    put(&map, 1, 0);
    let (base, done) = (guard.version(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=20_000 {
                put(&map, 1, n);
            }
            done.store(true, Ordering::SeqCst);
        });
        let mut value = [0; 8];
        let mut seen = 0;
        while !done.load(Ordering::SeqCst) {
            map.lookup_into(&1u32.to_ne_bytes(), &mut value).unwrap();
            let (n, version) = (u64::from_ne_bytes(value), guard.version());
            assert!(version >= base + n, "value {n} at version {}", version - base);
            seen += 1;
        }
        assert!(seen > 100, "looked only {seen} times");
    });
}
