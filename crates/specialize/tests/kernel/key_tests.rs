//! Tests of words of keys before lookups: for values that no entry has, nothing is looked up.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use millstream_kernel::{UpdateMode, testing};
use millstream_lab::{RigConfig, TestRig, TrafficSequence};
use millstream_programs::packet::{ICMP, TCP, UDP};
use millstream_programs::router;
use millstream_programs::traffic::{FlowLocality, WeightedFlows};
use millstream_rng::Rng;
use millstream_specialize::live::details::LookupMethod;
use millstream_specialize::replay::ReplayVerdict;
use millstream_specialize::replay::sample::PacketSample;
use millstream_specialize::{DetachPolicy, LiveSession, SessionReport, variant_compiler};
use millstream_specializer::policy::Tier;
use millstream_specializer::transform::SpecializationPlan;

use crate::acl::{TX, answer, entry, key};
use crate::fixtures;
use crate::offline::Offline;
use crate::routed::{Routed, alone, generation, settings};
use crate::shadow_tables::run_until;

/// Frames of different pairs of addresses: every third one is TCP, the others are not.
fn flows(count: usize) -> WeightedFlows {
    let config = router::generate(10, &[1], 4, 1);
    let mut flows = router::flows(&config, count, FlowLocality::NONE, 1);
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
    let compiler = variant_compiler(&object, None).expect("prepared");
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
    assert!(matches!(judged.finding, ReplayVerdict::Same(_)) && judged.packets >= 20_000, "{judged:?}");
    let [before, after] = plane.map_calls(&made, &flows.packets[..3_000]);
    assert!(before == 1.0 && (0.3..0.36).contains(&after), "{after} of {before} lookups");
}

/// Operations of packets on tickets, in the fixture `tickets`; the last form adds entries.
const FORMS: [&[&str]; 4] = [&[], &["-DSTORED"], &["-DOVERWRITTEN"], &["-DINSERTED"]];

/// Frames of pairs of addresses, each with three protocols.
fn thrice(count: u32) -> Vec<Vec<u8>> {
    let with = |n: u32| {
        let mut frame = flows(1).packets.remove(0);
        frame[23] = [TCP, UDP, ICMP][n as usize % 3];
        frame[26..30].copy_from_slice(&(0x0a00_0000 + n / 3).to_be_bytes());
        frame
    };
    (0..count).map(with).collect()
}

/// Programs that delete and change entries add none, so words of keys may still be tested. In programs that
/// add entries, none may be.
#[test]
fn words_of_keys_are_tested_where_programs_add_no_entries() {
    if !testing::require() {
        return;
    }
    let frames = thrice(6_000);
    let sample = |frame: &Vec<u8>| PacketSample { packet: frame.clone(), context: Vec::new() };
    let samples: Vec<PacketSample> = frames.iter().map(sample).collect();
    let mut rng = Rng::new(1);
    let mut would = None;
    for flags in FORMS {
        let Some(object) = fixtures::read("tickets", flags) else { return };
        let compiler = variant_compiler(&object, None).expect("prepared");
        for share in [2, 10, 40] {
            let mut plane = Offline::new(&compiler, &[]);
            plane.cached.clear();
            let map = plane.session.map_by_name("tickets").expect("the map");
            for frame in frames.iter().step_by(3) {
                if rng.below(share) == 0 {
                    map.update(&key(frame), &rng.next_u64().to_ne_bytes(), UpdateMode::Any)
                        .expect("an entry");
                }
            }
            // What is in the map now, without the packets of the profile.
            let held = map.entries().expect("entries");
            let (profiles, _) = plane.profile(&frames);
            for (key, value) in held.iter() {
                map.update(key, value, UpdateMode::Any).expect("an entry");
            }
            if flags == ["-DINSERTED"] {
                assert!(plane.sources.is_empty() && profiles.is_empty(), "{profiles:?}");
                continue;
            }
            let mut plan = None;
            let made =
                plane.variant(&profiles, Tier::Quick, |made| plan = Some(made.clone())).expect("a variant");
            let plan = plan.expect("a plan");
            let [test] = &plan.tests[..] else { panic!("{flags:?}: one test: {:?}", plan.tests) };
            assert_eq!((test.piece.offset, &test.values[..]), (8, &[u64::from(TCP)][..]));
            assert!(plan.sites.is_empty() && plan.fields.is_empty(), "{flags:?}: no more is known");
            for valid in [true, false] {
                let judged = plane.compare(&made, &samples, valid, 10_000).expect("compared");
                assert!(matches!(judged.finding, ReplayVerdict::Same(_)), "{flags:?}: {judged:?}");
            }
            let [before, after] = plane.map_calls(&made, &frames[3_000..]);
            assert!((0.6..0.7).contains(&(before - after)), "{flags:?}: {after} of {before} calls");
            would = Some(plan);
            // What passes the test may have a cache.
            plane.cached.extend(compiler.cacheable());
            let both = |plan: &mut SpecializationPlan| {
                assert_eq!((plan.tests.len(), plan.caches.len()), (1, 1), "{flags:?}")
            };
            let made = plane.variant(&profiles, Tier::Thorough, both).expect("a variant");
            let judged = plane.compare(&made, &samples, true, 10_000).expect("compared");
            assert!(matches!(judged.finding, ReplayVerdict::Same(_)), "{flags:?}: {judged:?}");
        }
    }
    // The test is wrong where a packet adds what another is to find.
    let Some(object) = fixtures::read("tickets", &["-DINSERTED"]) else { return };
    let compiler = variant_compiler(&object, None).expect("prepared");
    let plane = Offline::new(&compiler, &[]);
    let map = plane.session.map_by_name("tickets").expect("the map");
    map.update(&key(&frames[0]), &[0; 8], UpdateMode::Any).expect("an entry");
    let wrong = plane.planned(&would.expect("a plan"));
    let judged = plane.compare(&wrong, &samples[..2], true, 2).expect("compared");
    assert!(matches!(judged.finding, ReplayVerdict::Different(_)), "{judged:?}");
}

/// A function that is called twice makes two lookups, each known by its own keys.
#[test]
fn lookups_of_functions_are_those_of_their_callers() {
    if !testing::require() {
        return;
    }
    let Some(object) = fixtures::read("called", &[]) else { return };
    let compiler = variant_compiler(&object, None).expect("prepared");
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
    assert!(matches!(judged.finding, ReplayVerdict::Same(_)) && judged.packets >= 20_000, "{judged:?}");
    assert_eq!(plane.map_calls(&made, &frames), [2.0, 0.0]);
}

#[test]
fn an_entry_that_no_test_lets_pass_counts_at_once() {
    if !testing::require() {
        return;
    }
    let Some(object) = fixtures::read("acl", &[]) else { return };
    let _alone = alone();
    let rig = TestRig::new(RigConfig::default()).expect("a rig");
    let flows = flows(2_000);
    rig.load_traffic(&TrafficSequence::new(&flows, &flows.sequence(1, 1 << 13))).expect("traffic");
    let compiler = variant_compiler(&object, None).expect("prepared");
    let config = router::generate(1, &[1], 1, 1);
    let it = Routed { rig: &rig, config: &config, flows: &flows, rate: Some(200_000.0) };
    let act = || {
        let mut wanted = settings("before", Duration::from_millis(200));
        wanted.twins = false;
        let mut live = LiveSession::load(&compiler, wanted).expect("loaded");
        let map = live.map("acl").expect("the map").try_clone().expect("a descriptor");
        let put = |n: usize, number: u32| {
            map.update(&key(&flows.packets[n]), &entry(TX, number), UpdateMode::Any).expect("an entry");
        };
        (0..2_000).step_by(6).for_each(|n| put(n, n as u32));
        live.attach(&[rig.test_port()]).expect("attached");
        run_until(&it, &mut live, |r| generation(r).is_some());
        let tested = |live: &LiveSession<'_>| {
            let details = live.details().expect("details");
            details.lookups.iter().any(|l| l.how == LookupMethod::Test && l.answered > 0.5)
        };
        assert!(tested(&live), "{:?}", live.details());
        let given = |live: &LiveSession<'_>| [0, 1, 6].map(|n| answer(live.current(), &flows.packets[n]));
        let missed = live.guard().missed();
        assert_eq!((given(&live), live.guard().missed()), ([Some(0), None, Some(6)], missed));
        // TCP is what the code was made for: it goes on without other code.
        put(0, 1_000);
        assert_eq!(given(&live), [Some(1_000), None, Some(6)]);
        let before = live.status();
        run_until(&it, &mut live, |r| matches!(r, SessionReport::Confirmed { .. }));
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
        live.finish(DetachPolicy::Restored).expect("finished");
    };
    rig.namespace().enter(act).expect("in the namespace");
}

/// Packets take tickets, and the code goes on; a ticket that no test lets pass counts at once.
#[test]
fn tickets_that_packets_take_and_the_control_plane_gives_count_at_once() {
    if !testing::require() {
        return;
    }
    // Wider than values of caches.
    let Some(object) = fixtures::read("tickets", &["-DWIDE"]) else { return };
    let _alone = alone();
    let rig = TestRig::new(RigConfig::default()).expect("a rig");
    let flows = flows(2_000);
    rig.load_traffic(&TrafficSequence::new(&flows, &flows.sequence(1, 1 << 13))).expect("traffic");
    let compiler = variant_compiler(&object, None).expect("prepared");
    let config = router::generate(1, &[1], 1, 1);
    let act = || {
        let mut live =
            LiveSession::load(&compiler, settings("tickets", Duration::from_millis(200))).expect("loaded");
        let map = live.map("tickets").expect("the map").try_clone().expect("a descriptor");
        // Of whom no traffic comes, so that the tickets stay.
        let mine = thrice(300).into_iter().map(|mut frame| {
            frame[26] = 11;
            frame
        });
        let mine: Vec<Vec<u8>> = mine.collect();
        let give = |frame: &[u8]| map.update(&key(frame), &[0; 72], UpdateMode::Any).expect("a ticket");
        mine.iter().step_by(3).for_each(|frame| give(frame));
        live.attach(&[rig.test_port()]).expect("attached");
        let it = Routed { rig: &rig, config: &config, flows: &flows, rate: Some(200_000.0) };
        run_until(&it, &mut live, |r| generation(r).is_some());
        let lookups = live.details().expect("details").lookups;
        assert!(lookups.iter().any(|l| l.how == LookupMethod::Test && l.answered > 0.5), "{lookups:?}");
        let passes = |live: &LiveSession<'_>, n: usize| answer(live.current(), &mine[n]).is_some();
        let missed = live.guard().missed();
        assert_eq!([0, 0, 1, 3].map(|n| passes(&live, n)), [true, false, false, true]);
        assert_eq!(live.guard().missed(), missed, "what packets take turns nobody away");
        // TCP is what the code was made for, UDP is not.
        for n in [0, 1] {
            give(&mine[n]);
            assert_eq!([n, n].map(|n| passes(&live, n)), [true, false]);
            give(&mine[n]);
            let tells = |r: &_| generation(r).is_some() || matches!(r, SessionReport::Confirmed { .. });
            run_until(&it, &mut live, tells);
            assert_eq!([n, n].map(|n| passes(&live, n)), [true, false]);
        }
        live.finish(DetachPolicy::Restored).expect("finished");
    };
    rig.namespace().enter(act).expect("in the namespace");
}
