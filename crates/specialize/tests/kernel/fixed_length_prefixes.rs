//! Twins of longest-prefix maps whose prefixes have one length: keys of the map itself, found by a hash.
//! Another length makes them useless at once.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use millstream_kernel::{KernelMap, UpdateMode, testing};
use millstream_lab::{RigConfig, TestRig, TrafficSequence};
use millstream_programs::router;
use millstream_programs::traffic::{FlowLocality, WeightedFlows};
use millstream_rng::Rng;
use millstream_specialize::replay::ReplayVerdict;
use millstream_specialize::{DetachPolicy, LiveSession, SessionReport, variant_compiler};
use millstream_specializer::policy::Tier;
use millstream_specializer::transform::ShadowCapacity;

use crate::acl::{TX, answer, entry};
use crate::fixtures;
use crate::offline::Offline;
use crate::routed::{Routed, alone, generation, settings};
use crate::shadow_tables::run_until;

/// Numbers of /32 routes to random addresses that are too many for a trie: each takes groups of its own.
const HOSTS: usize = 20_000;
const NETS: usize = 5_000;

fn key4(length: u32, address: u32) -> Vec<u8> {
    [length.to_ne_bytes(), address.to_be_bytes()].concat()
}

fn key6(length: u32, address: u128) -> Vec<u8> {
    [&length.to_ne_bytes()[..], &address.to_be_bytes()].concat()
}

/// A frame to an address.
fn frame4(address: u32) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[30..34].copy_from_slice(&address.to_be_bytes());
    frame
}

fn frame6(address: u128) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    frame[38..54].copy_from_slice(&address.to_be_bytes());
    frame
}

fn put(map: &KernelMap, key: &[u8], n: u32) {
    map.update(key, &entry(TX, n), UpdateMode::Any).expect("a route");
}

#[test]
fn prefixes_of_one_length_are_found_by_their_keys() {
    if !testing::require() {
        return;
    }
    let Some(object) = fixtures::read("hosts", &[]) else { return };
    let compiler = variant_compiler(&object, None).expect("prepared");
    let mut plane = Offline::new(&compiler, &[]);
    let mut rng = Rng::new(1);
    let mut frames = Vec::new();
    let hosts = plane.session.map_by_name("hosts4").expect("the map");
    for n in 0..HOSTS as u32 {
        let address = rng.next_u32();
        put(hosts, &key4(32, address), n);
        frames.extend([frame4(address), frame4(address ^ 1)]);
    }
    let nets = plane.session.map_by_name("nets6").expect("the map");
    for n in 0..NETS as u32 {
        let address = u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64());
        // A length within a byte.
        put(nets, &key6(61, address), n);
        frames.extend([frame6(address ^ 7), frame6(address ^ 1 << 64), frame6(address ^ 1 << 67)]);
    }
    let (profiles, samples) = plane.profile(&frames);
    let made = plane.variant(&profiles, Tier::Quick, |_| ()).expect("a variant");
    let lengths: Vec<u32> = made
        .twins
        .rooms()
        .filter_map(
            |(_, room)| if let ShadowCapacity::OneLength(_, length) = room { Some(length) } else { None },
        )
        .collect();
    assert_eq!((lengths, made.report.sites.len()), (vec![32, 61], 2), "{:?}", made.report);
    let judged = plane.compare(&made, &samples, true, 20_000).expect("compared");
    assert!(matches!(judged.finding, ReplayVerdict::Same(_)) && judged.packets >= 20_000, "{judged:?}");
    assert_eq!(plane.map_calls(&made, &frames[..1_000]), [1.0, 0.0]);
    assert_eq!(plane.map_calls(&made, &frames[2 * HOSTS..][..1_000]), [1.0, 0.0]);
}

/// Two loads of a trie are less than a hash and two of many rows.
#[test]
fn short_prefixes_have_a_trie() {
    if !testing::require() {
        return;
    }
    let Some(object) = fixtures::read("hosts", &[]) else { return };
    let compiler = variant_compiler(&object, None).expect("prepared");
    let plane = Offline::new(&compiler, &[]);
    let hosts = plane.session.map_by_name("hosts4").expect("the map");
    (0..5_000u32).for_each(|n| put(hosts, &key4(16, n << 16), n));
    let (profiles, _) = plane.profile(&[frame4(1)]);
    let made = plane.variant(&profiles, Tier::Quick, |_| ()).expect("a variant");
    assert!(made.twins.rooms().any(|(_, room)| matches!(room, ShadowCapacity::Trie { .. })));
}

#[test]
fn a_prefix_of_another_length_counts_at_once() {
    if !testing::require() {
        return;
    }
    let Some(object) = fixtures::read("hosts", &[]) else { return };
    let _alone = alone();
    let rig = TestRig::new(RigConfig::default()).expect("a rig");
    let mut rng = Rng::new(2);
    let nets: Vec<u128> = (0..500).map(|_| u128::from(rng.next_u64()) << 64).collect();
    let packets: Vec<Vec<u8>> = nets.iter().map(|net| frame6(net | 5)).collect();
    let flows = WeightedFlows::new(packets, FlowLocality::NONE, 1);
    rig.load_traffic(&TrafficSequence::new(&flows, &flows.sequence(1, 1 << 12))).expect("traffic");
    let compiler = variant_compiler(&object, None).expect("prepared");
    let config = router::generate(1, &[1], 1, 1);
    let it = Routed { rig: &rig, config: &config, flows: &flows, rate: Some(100_000.0) };
    let act = || {
        let wanted = settings("lengths", Duration::from_millis(200));
        let mut live = LiveSession::load(&compiler, wanted).expect("loaded");
        let map = live.map("nets6").expect("the map").try_clone().expect("a descriptor");
        nets.iter().zip(0..).for_each(|(net, n)| put(&map, &key6(64, *net), n));
        live.attach(&[rig.test_port()]).expect("attached");
        run_until(&it, &mut live, |r| generation(r).is_some());
        let answers = |live: &LiveSession<'_>, expected: [u32; 2]| {
            let given = [0, 1].map(|n| answer(live.current(), &flows.packets[n]));
            assert_eq!(given, expected.map(Some));
        };
        let missed = live.guard().missed();
        answers(&live, [0, 1]);
        assert_eq!(live.guard().missed(), missed, "the twin answers");
        // One of the same length: the twin takes it over.
        put(&map, &key6(64, nets[0]), 1000);
        answers(&live, [1000, 1]);
        run_until(&it, &mut live, |r| matches!(r, SessionReport::Refreshed { write_ns: Some(_), .. }));
        answers(&live, [1000, 1]);
        // A longer one: there is no such twin any more.
        put(&map, &key6(72, nets[1] | 5), 2000);
        answers(&live, [1000, 2000]);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_secs(2));
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            it.run(&mut live, &stop, |_| ());
        });
        answers(&live, [1000, 2000]);
        assert!(map.delete(&key6(72, nets[1] | 5)).expect("a route less"));
        answers(&live, [1000, 1]);
        live.finish(DetachPolicy::Restored).expect("finished");
    };
    rig.namespace().enter(act).expect("in the namespace");
}
