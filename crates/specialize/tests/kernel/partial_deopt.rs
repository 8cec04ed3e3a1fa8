//! Writes to maps that a generation can do without, each by itself: every interleaving with looks, approvals
//! and marks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use millstream_kernel::{KernelMap, testing};
use millstream_specialize::guard::{Guard, GuardSnapshot};
use millstream_specializer::guard_state::{DeoptMask, TOKEN, token};

use crate::guard::{guard, hash, put};
use crate::races::{MANY, while_inside};
use crate::routed::is_fresh;

/// The first map's index and slot.
const SPARED: [(u32, DeoptMask); 1] = [(1, DeoptMask::one(3))];
const SLOT: DeoptMask = SPARED[0].1;
const NONE: DeoptMask = DeoptMask::NONE;

/// A map that generation 3 can do without, one that it cannot, and the guard.
fn two() -> Option<(KernelMap, KernelMap, Guard)> {
    let (map, other) = if testing::require() { (hash(100), hash(100)) } else { return None };
    let guard = guard(&[&map, &other])?;
    Some((map, other, guard))
}

/// Runs a scenario that begins with generation 3 approved. Calls by other processes that may write any map
/// are seen by all guards; then it runs once more.
fn undisturbed<R>(guard: &Guard, mut scenario: impl FnMut() -> R) -> R {
    loop {
        let (any, approved) = (guard.writes(0), guard.approve(look(guard), token(3, 0), SLOT, NONE));
        guard.mark(3, &SPARED);
        let result = scenario();
        if approved == Some(NONE) && guard.writes(0) == any {
            return result;
        }
    }
}

fn look(guard: &Guard) -> GuardSnapshot {
    guard.begin(Duration::from_secs(5), &[]).expect("nobody is inside")
}

fn behind(generation: u32) -> Option<u64> {
    Some(token(generation, 0) | SLOT.behind())
}

#[test]
fn a_write_to_a_spared_map_stops_nothing_else() {
    let Some((map, other, guard)) = two() else { return };
    let seen = undisturbed(&guard, || {
        let before = guard.approved();
        put(&map, 1, 1);
        let one = guard.approved();
        map.update_batch(&[0; 8], &[0; 16]).unwrap();
        let many = guard.approved();
        put(&other, 1, 1);
        [before, one, many, guard.approved()]
    });
    assert_eq!(seen, [Some(token(3, 0)), behind(3), behind(3), None]);
}

/// A call that may write any map may write this one too.
#[test]
#[allow(unsafe_code)]
fn what_may_write_any_map_stops_all() {
    let Some((_, _, guard)) = two() else { return };
    undisturbed(&guard, || ());
    // SAFETY: the kernel refuses an attribute that it cannot read.
    assert_eq!(unsafe { libc::syscall(libc::SYS_bpf, 2, 8usize, 32) }, -1);
    assert_eq!(guard.approved(), None);
}

/// A writer reads the mark of one generation; when it comes to the token, another has been approved.
#[test]
fn a_mark_counts_for_its_own_generation_only() {
    let Some((map, _, guard)) = two() else { return };
    let seen = undisturbed(&guard, || {
        let approved = guard.approve(look(&guard), token(4, 0), NONE, NONE);
        put(&map, 1, 1);
        (approved, guard.approved())
    });
    assert_eq!(seen, (Some(NONE), None), "the mark is that of generation 3");
}

#[test]
fn a_write_between_reading_and_approval_leaves_the_map_behind() {
    let Some((map, _, guard)) = two() else { return };
    let seen = undisturbed(&guard, || {
        let snapshot = look(&guard);
        put(&map, 1, 1);
        let holds = guard.holds(&snapshot);
        (holds, guard.approve(snapshot, token(4, 0), SLOT, NONE), guard.approved())
    });
    assert_eq!(seen, (false, Some(SLOT), behind(4)));
}

#[test]
fn a_generation_that_cannot_do_without_what_was_written_is_not_approved() {
    let Some((map, _, guard)) = two() else { return };
    let seen = undisturbed(&guard, || {
        let snapshot = look(&guard);
        put(&map, 1, 1);
        (guard.approve(snapshot, token(4, 0), NONE, NONE), guard.approved())
    });
    assert_eq!(seen, (None, behind(3)), "what runs goes on");
}

/// The bit is set already, so that the second write changes nothing that packets see; the look still ends.
#[test]
fn a_second_write_during_a_look_leaves_the_map_behind() {
    let Some((map, _, guard)) = two() else { return };
    let seen = undisturbed(&guard, || {
        put(&map, 1, 1);
        let (snapshot, before) = (look(&guard), guard.approved());
        put(&map, 1, 2);
        (before, guard.approved(), guard.approve(snapshot, token(3, 1), SLOT, NONE))
    });
    assert_eq!(seen, (behind(3), behind(3), Some(SLOT)));
}

#[test]
fn a_write_while_nothing_runs_leaves_the_map_behind() {
    let Some((map, other, guard)) = two() else { return };
    let seen = undisturbed(&guard, || {
        put(&other, 1, 1);
        let snapshot = look(&guard);
        put(&map, 1, 1);
        let nothing = guard.approved();
        let first = guard.approve(snapshot, token(3, 0), SLOT, NONE);
        put(&other, 1, 2);
        let snapshot = look(&guard);
        put(&other, 1, 3);
        put(&map, 1, 2);
        (nothing, first, guard.approve(snapshot, token(3, 0), SLOT, NONE))
    });
    assert_eq!(seen, (None, Some(SLOT), None), "the other map was written too");
}

#[test]
fn only_the_latest_look_counts() {
    let Some((map, _, guard)) = two() else { return };
    let seen = undisturbed(&guard, || {
        let first = look(&guard);
        put(&map, 1, 1);
        let second = look(&guard);
        let hold = [guard.holds(&first), guard.holds(&second)];
        let approved = [first, second].map(|s| guard.approve(s, token(3, 0), SLOT, NONE));
        (hold, approved)
    });
    assert_eq!(seen, ([false, true], [None, Some(NONE)]));
}

#[test]
fn what_is_to_stay_behind_does() {
    let Some((map, other, guard)) = two() else { return };
    let seen = undisturbed(&guard, || {
        put(&map, 1, 1);
        put(&other, 1, 1);
        let first = guard.approve(look(&guard), token(3, 0), SLOT, SLOT);
        let after = guard.approved();
        (first, after, guard.approve(look(&guard), token(3, 0), SLOT, NONE), guard.approved())
    });
    assert_eq!(seen, (Some(SLOT), behind(3), Some(NONE), Some(token(3, 0))));
}

/// A batch of many routes may take long: other maps are looked at meanwhile.
#[test]
fn a_writer_inside_a_spared_map_holds_up_nothing_else() {
    let (map, other) = if testing::require() { (hash(MANY), hash(100)) } else { return };
    let Some(guard) = guard(&[&map, &other]) else { return };
    let seen = undisturbed(&guard, || {
        let mut seen = None;
        let inside = while_inside(&map, || {
            put(&other, 1, 1);
            let snapshot = guard.begin(Duration::from_secs(60), &SPARED).expect("it is not waited for");
            seen =
                Some((snapshot.busy(), guard.approve(snapshot, token(3, 0), SLOT, NONE), guard.approved()));
        });
        assert!(inside, "the batch was too short for this test");
        seen
    });
    assert_eq!(seen, Some((SLOT, Some(SLOT), behind(3))));
}

/// Two maps are written without end; every other generation can do without one of them, none without the
/// other, while generations made of both are approved one after the other. Code that finds a token finds at
/// least the values that had been written when it looked.
#[test]
fn what_was_made_of_a_map_is_never_older_than_its_last_write() {
    const GENERATIONS: u32 = 4_000;
    let Some((map, other, guard)) = two() else { return };
    undisturbed(&guard, || ());
    let written: [AtomicU64; 2] = Default::default();
    let made: Vec<[AtomicU64; 2]> = (0..GENERATIONS + 10).map(|_| Default::default()).collect();
    let (done, state) = (AtomicBool::new(false), guard.state().mmap(true).expect("the guard's state"));
    let (mut fresh, mut late) = (0, 0);
    std::thread::scope(|scope| {
        for (map, written, pause) in [(&map, &written[0], 20), (&other, &written[1], 90)] {
            let done = &done;
            scope.spawn(move || {
                for n in 1.. {
                    put(map, 1, n);
                    written.store(n, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_micros(pause));
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let packets = scope.spawn(|| {
            let mut seen = (0, 0);
            while !done.load(Ordering::Relaxed) {
                let before = written.each_ref().map(|w| w.load(Ordering::SeqCst));
                let token = state.atomic_u64(TOKEN as usize).load(Ordering::SeqCst);
                if !is_fresh(token & !SLOT.behind()) {
                    continue;
                }
                let of = &made[(token >> 32) as usize].each_ref().map(|m| m.load(Ordering::SeqCst));
                assert!(of[1] >= before[1], "the other map: {of:?} {before:?}");
                if token & SLOT.behind() == 0 {
                    assert!(of[0] >= before[0], "{of:?} {before:?}");
                    seen.0 += 1;
                } else {
                    seen.1 += 1;
                }
            }
            seen
        });
        for n in 4..GENERATIONS {
            let Some(snapshot) = guard.begin(Duration::from_secs(5), &[]) else { continue };
            for (map, made) in [&map, &other].into_iter().zip(&made[n as usize]) {
                let value = map.lookup(&1u32.to_ne_bytes()).unwrap();
                let value = value.map_or(0, |v| u64::from_ne_bytes(v.try_into().unwrap()));
                made.store(value, Ordering::SeqCst);
            }
            let spared = if n.is_multiple_of(2) { SLOT } else { NONE };
            if guard.approve(snapshot, token(n, 0), spared, NONE).is_some() {
                guard.mark(n, if spared.is_empty() { &[] } else { &SPARED });
            }
            std::thread::yield_now();
        }
        done.store(true, Ordering::SeqCst);
        (fresh, late) = packets.join().expect("no packet is stale");
    });
    assert!(fresh > 100 && late > 100, "{fresh} looks in step, {late} behind");
}
