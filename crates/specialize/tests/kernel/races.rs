//! The interleavings that break a careless guard, forced. A batch of many elements holds its writer inside
//! bpf(2).
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millstream_kernel::{KernelMap, testing};
use millstream_specialize::guard::{Guard, GuardHook, GuardSnapshot};
use millstream_specializer::guard_state::{DeoptMask, token};

use crate::guard::{guard, hash};

pub(crate) const MANY: u32 = 400_000;

struct Batch {
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl Batch {
    fn new() -> Self {
        Batch { keys: (0..MANY).flat_map(u32::to_ne_bytes).collect(), values: vec![1; 8 * MANY as usize] }
    }
}

/// Runs `f` while another thread is inside a batch update of `map`; says whether it still was at the end of
/// `f`.
pub(crate) fn while_inside(map: &KernelMap, f: impl FnOnce()) -> bool {
    let batch = Batch::new();
    let (started, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            started.store(true, Ordering::SeqCst);
            map.update_batch(&batch.keys, &batch.values).unwrap();
            done.store(true, Ordering::SeqCst);
        });
        while !started.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        std::thread::sleep(Duration::from_millis(5));
        f();
        !done.load(Ordering::SeqCst)
    })
}

/// A look, while nobody is inside.
fn begin(guard: &Guard) -> GuardSnapshot {
    guard.begin(Duration::from_secs(5), &[]).expect("nobody is inside")
}

#[test]
fn no_snapshot_begins_while_a_writer_is_inside() {
    let map = if testing::require() { hash(MANY) } else { return };
    let Some(guard) = guard(&[&map]) else { return };
    let before = begin(&guard);
    let mut refused = false;
    let inside = while_inside(&map, || refused = guard.begin(Duration::from_millis(1), &[]).is_none());
    assert!(inside, "the batch was too short for this test");
    assert!(refused, "a snapshot began with a writer inside");
    assert!(!guard.holds(&before), "a snapshot of before the write still holds");
    assert!(guard.holds(&begin(&guard)));
}

#[test]
fn a_write_between_reading_and_approval_voids_the_approval() {
    let map = if testing::require() { hash(100) } else { return };
    let Some(guard) = guard(&[&map]) else { return };
    let snapshot = begin(&guard);
    map.update_batch(&[0; 4], &[0; 8]).unwrap();
    assert!(!guard.holds(&snapshot));
    assert!(guard.approve(snapshot, token(3, 1), DeoptMask::NONE, DeoptMask::NONE).is_none());
    assert_eq!(guard.approved(), None);
    let snapshot = begin(&guard);
    assert!(guard.approve(snapshot, token(3, 1), DeoptMask::NONE, DeoptMask::NONE).is_some());
    assert_eq!(guard.approved(), Some(token(3, 1)));
    map.update_batch(&[0; 4], &[0; 8]).unwrap();
    assert_eq!(guard.approved(), None);
}

#[test]
fn a_writer_from_before_the_guard_bumps_when_it_returns() {
    if !testing::require() {
        return;
    }
    let map = hash(MANY);
    let mut guard = None;
    let mut version = 0;
    let inside = while_inside(&map, || {
        let mut new = Guard::attach().unwrap();
        new.watch(&map).unwrap();
        version = new.version();
        guard = Some(new);
    });
    let guard = guard.expect("attached");
    if !inside {
        eprintln!("skipped: the batch ended before the guard was attached");
        return;
    }
    // At bpf(2) itself it would not see the return: it must not be there while a writer is inside.
    assert_eq!(guard.hook(), GuardHook::SystemCalls);
    assert!(guard.noticed().strays >= 1);
    assert!(guard.version() > version);
}

#[test]
fn a_descriptor_exchanged_under_the_call_is_noticed_before_it_returns() {
    let (map, other) = if testing::require() { (hash(100), hash(MANY)) } else { return };
    let Some(guard) = guard(&[&map]) else { return };
    let number = other.as_fd().as_raw_fd();
    // SAFETY: duplicates a live descriptor.
    let kept = unsafe { libc::dup(number) };
    let version = guard.version();
    let inside = while_inside(&other, || {
        // SAFETY: `number` stays open, for another map; the owner puts it back below.
        assert_eq!(unsafe { libc::dup2(map.as_fd().as_raw_fd(), number) }, number);
    });
    // SAFETY: as above, back to the map that owns the number.
    unsafe {
        libc::dup2(kept, number);
        libc::close(kept);
    }
    assert!(inside, "the batch was too short for this test");
    assert!(guard.noticed().late >= 1);
    assert!(guard.version() > version);
}
