//! Tests of words of keys before lookups: for what no entry has, nothing is looked up.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use millstream_kernel::{UpdateMode, testing};
use millstream_lab::{Rig, RigConfig, Traffic};
use millstream_programs::packet::{ICMP, TCP, UDP};
use millstream_programs::router;
use millstream_programs::traffic::{Flows, Locality};
use millstream_specialize::judge::Finding;
use millstream_specialize::live::details::How;
use millstream_specialize::policy::Tier;
use millstream_specialize::{Compiler, Leave, Live};

use crate::acl::{TX, answer, entry, key};
use crate::fixtures;
use crate::offline::Offline;
use crate::routed::{Routed, alone, generation, settings};
use crate::twins::run_until;

/// Frames of different pairs of addresses: every third one is TCP, the others are not.
fn flows(count: usize) -> Flows {
    let config = router::generate(10, &[1], 4, 1);
    let mut flows = router::flows(&config, count, Locality::NONE, 1);
    for (n, frame) in (0u32..).zip(&mut flows.packets) {
        frame[23] = if n % 3 == 0 { TCP } else { [UDP, ICMP][n as usize % 2] };
        frame[26..30].copy_from_slice(&(0x0a00_0000 | n).to_be_bytes());
    }
    flows
}

#[test]
fn what_no_entry_has_is_not_looked_up() {
    if !testing::require() {
        return;
    }
    let Some(object) = fixtures::read("acl", &[]) else { return };
    let compiler = Compiler::new(&object, None).expect("prepared");
    let mut plane = Offline::new(&compiler, &[]);
    plane.unfit = compiler.sites().iter().map(|s| s.id).collect();
    let flows = flows(9_000);
    let map = plane.session.map_by_name("acl").expect("the map");
    for (n, frame) in (0u32..).zip(&flows.packets).filter(|(n, _)| n % 6 == 0) {
        map.update(&key(frame), &entry(TX, n), UpdateMode::Any).expect("an entry");
    }
    let (profiles, samples) = plane.profile(&flows.packets);
    let mut tests = Vec::new();
    let made =
        plane.variant(&profiles, Tier::Quick, |plan| tests.clone_from(&plan.tests)).expect("a variant");
    let [test] = &tests[..] else { panic!("one test: {tests:?}") };
    assert_eq!((test.piece.offset, &test.values[..]), (8, &[u64::from(TCP)][..]));
    let judged = plane.compare(&made, &samples, true, 20_000).expect("compared");
    assert!(matches!(judged.finding, Finding::Same(_)) && judged.packets >= 20_000, "{judged:?}");
    let [before, after] = plane.map_calls(&made, &flows.packets[..3_000]);
    assert!(before == 1.0 && (0.3..0.36).contains(&after), "{after} of {before} lookups");
}

/// A function that is called twice makes two lookups, each known by its own keys.
#[test]
fn lookups_of_functions_are_those_of_their_callers() {
    if !testing::require() {
        return;
    }
    let Some(object) = fixtures::read("called", &[]) else { return };
    let compiler = Compiler::new(&object, None).expect("prepared");
    let main = compiler.program().index() as u32;
    let sites: Vec<_> = compiler.sites().iter().map(|s| (s.func.as_u32(), s.is_comparable())).collect();
    assert_eq!(sites, [(main, true), (main, true)]);
    let mut plane = Offline::new(&compiler, &[]);
    let hosts = plane.session.map_by_name("hosts").expect("the map");
    for n in 0..8u32 {
        let value = [(n % 3).to_ne_bytes(), (n + 1).to_ne_bytes()].concat();
        hosts.update(&n.to_ne_bytes(), &value, UpdateMode::Any).expect("a host");
    }
    // Some are not in the map.
    let frame = |n: u32| [&[0; 26][..], &(n % 9).to_ne_bytes(), &(n % 11).to_ne_bytes(), &[0; 30]].concat();
    let frames: Vec<Vec<u8>> = (0..2_000).map(frame).collect();
    let (profiles, samples) = plane.profile(&frames);
    let made = plane.variant(&profiles, Tier::Thorough, |_| ()).expect("a variant");
    let judged = plane.compare(&made, &samples, true, 20_000).expect("compared");
    assert!(matches!(judged.finding, Finding::Same(_)) && judged.packets >= 20_000, "{judged:?}");
    assert_eq!(plane.map_calls(&made, &frames), [2.0, 0.0]);
}

#[test]
fn an_entry_that_no_test_lets_pass_counts_at_once() {
    if !testing::require() {
        return;
    }
    let Some(object) = fixtures::read("acl", &[]) else { return };
    let _alone = alone();
    let rig = Rig::new(RigConfig::default()).expect("a rig");
    let flows = flows(2_000);
    rig.load_traffic(&Traffic::new(&flows, &flows.sequence(1, 1 << 13))).expect("traffic");
    let compiler = Compiler::new(&object, None).expect("prepared");
    let config = router::generate(1, &[1], 1, 1);
    let it = Routed { rig: &rig, config: &config, flows: &flows, rate: Some(200_000.0) };
    let act = || {
        let mut wanted = settings("before", Duration::from_millis(200));
        wanted.twins = false;
        let mut live = Live::load(&compiler, wanted).expect("loaded");
        let map = live.map("acl").expect("the map").try_clone().expect("a descriptor");
        let put = |n: usize, number: u32| {
            map.update(&key(&flows.packets[n]), &entry(TX, number), UpdateMode::Any).expect("an entry");
        };
        (0..2_000).step_by(6).for_each(|n| put(n, n as u32));
        live.attach(&[rig.test_port()]).expect("attached");
        run_until(&it, &mut live, |r| generation(r).is_some());
        let tested = |live: &Live<'_>| {
            let details = live.details().expect("details");
            details.lookups.iter().any(|l| l.how == How::Test && l.answered > 0.5)
        };
        assert!(tested(&live), "{:?}", live.details());
        let given = |live: &Live<'_>| [0, 1, 6].map(|n| answer(live.current(), &flows.packets[n]));
        let missed = live.guard().missed();
        assert_eq!((given(&live), live.guard().missed()), ([Some(0), None, Some(6)], missed));
        // TCP is what the code was made for: it goes on without other code.
        put(0, 1_000);
        assert_eq!(given(&live), [Some(1_000), None, Some(6)]);
        let before = live.status();
        run_until(&it, &mut live, |r| matches!(r, millstream_specialize::Report::Confirmed { .. }));
        assert!(tested(&live), "{before:?}");
        assert_eq!(given(&live), [Some(1_000), None, Some(6)]);
        // This is not.
        put(1, 2_000);
        assert_eq!(given(&live), [Some(1_000), Some(2_000), Some(6)]);
        for _ in 0..2 {
            let (start, stop) = (std::time::Instant::now(), AtomicBool::new(false));
            it.run(&mut live, &stop, |_| {
                if start.elapsed() > Duration::from_secs(1) {
                    stop.store(true, std::sync::atomic::Ordering::Relaxed);
                }
            });
            assert_eq!(given(&live), [Some(1_000), Some(2_000), Some(6)]);
        }
        live.finish(Leave::Restored).expect("finished");
    };
    rig.namespace().enter(act).expect("in the namespace");
}
