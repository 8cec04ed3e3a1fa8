//! Maps of least recent use that no program writes: their contents are known if the operator says that
//! lookups need not count as use.

use std::time::Duration;

use millstream_kernel::{KernelMap, UpdateMode, testing};
use millstream_lab::{RigConfig, TestRig, TrafficSequence};
use millstream_programs::MapEntry;
use millstream_programs::router;
use millstream_programs::traffic::{FlowLocality, WeightedFlows};
use millstream_rng::Rng;
use millstream_specialize::replay::ReplayVerdict;
use millstream_specialize::{DetachPolicy, LiveSession, SessionReport};
use millstream_specializer::policy::Tier;
use millstream_specializer::variant::VariantCompiler;

use crate::acl::answer;
use crate::offline::{Offline, prepared};
use crate::routed::{Routed, alone, generation, settings};
use crate::shadow_tables::run_until;

/// Sends back packets that have a session, with its number.
const PROGRAM: &str = "
    r6 = *(u32 *)(r1 + 0)
    r3 = *(u32 *)(r1 + 4)
    r4 = r6
    r4 += 34
    if r4 > r3 goto absent
    r5 = *(u32 *)(r6 + 30)
    *(u32 *)(r10 - 4) = r5
    r1 = 0 ll
    r2 = r10
    r2 += -4
    call bpf_map_lookup_elem#1
    if r0 == 0 goto absent
    r1 = *(u32 *)(r0 + 0)
    *(u32 *)(r6 + 0) = r1
    r0 = 3
    exit
absent:
    r0 = 1
    exit";
const NAME: &str = "sessions";
const ROOM: u32 = 1024;

fn compiler() -> VariantCompiler {
    let maps = format!("{NAME} {{ type = 9, key_size = 4, value_size = 8, max_entries = {ROOM}, fd = 3 }}\n");
    prepared(PROGRAM, &maps)
}

fn frame(n: u32) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[30..34].copy_from_slice(&n.to_ne_bytes());
    frame
}

fn value(n: u32) -> Vec<u8> {
    u64::from(n ^ 0x5555).to_ne_bytes().to_vec()
}

#[test]
fn lookups_that_need_not_count_as_use_are_code() {
    if !testing::require() {
        return;
    }
    let compiler = compiler();
    let entries: Vec<MapEntry> =
        (0..ROOM / 2).map(|n| MapEntry::new(NAME, n.to_ne_bytes().to_vec(), value(n))).collect();
    let mut rng = Rng::new(3);
    let frames: Vec<Vec<u8>> = (0..400).map(|_| frame(rng.below(u64::from(ROOM)) as u32)).collect();
    let exact = Offline::new(&compiler, &entries);
    assert!(exact.sources.is_empty(), "nobody has said so");
    let mut plane = Offline::approximate(&compiler, &entries, &[NAME]);
    let (profiles, samples) = plane.profile(&frames);
    for tier in [Tier::Quick, Tier::Thorough] {
        let made = plane.variant(&profiles, tier, |_| ()).expect("a variant");
        let judged = plane.compare(&made, &samples, true, samples.len()).expect("compared");
        assert!(matches!(judged.finding, ReplayVerdict::Same(_)), "{judged:?}");
        assert_eq!(plane.map_calls(&made, &frames), [1.0, 0.0]);
    }
}

/// The kernel evicts entries without a write to their keys: a write says nothing of the key that goes.
#[test]
fn what_is_evicted_is_not_found() {
    if !testing::require() {
        return;
    }
    let _alone = alone();
    let rig = TestRig::new(RigConfig::default()).expect("a rig");
    let flows = WeightedFlows::new((0..64).map(frame).collect(), FlowLocality::HIGH, 1);
    rig.load_traffic(&TrafficSequence::new(&flows, &flows.sequence(1, 1 << 12))).expect("traffic");
    let compiler = compiler();
    let config = router::generate(1, &[1], 1, 1);
    let it = Routed { rig: &rig, config: &config, flows: &flows, rate: Some(100_000.0) };
    let act = || {
        let mut wanted = settings("recency", Duration::from_millis(200));
        wanted.approximate.insert(NAME.to_owned());
        let mut live = LiveSession::load(&compiler, wanted).expect("loaded");
        let map: KernelMap = live.map(NAME).expect("the map").try_clone().expect("a descriptor");
        let put = |n: u32| map.update(&n.to_ne_bytes(), &value(n), UpdateMode::Any).expect("written");
        let has = |n: u32| map.lookup(&n.to_ne_bytes()).expect("readable").is_some();
        (0..ROOM).for_each(put);
        live.attach(&[rig.test_port()]).expect("attached");
        run_until(&it, &mut live, |r| generation(r).is_some());
        let missed = live.guard().missed();
        assert_eq!(answer(live.current(), &frame(5)), Some(5 ^ 0x5555));
        assert_eq!(live.guard().missed(), missed, "code answers");
        let same = |live: &LiveSession<'_>| {
            (0..ROOM)
                .for_each(|n| assert_eq!(answer(live.current(), &frame(n)).is_some(), has(n), "session {n}"));
        };
        let gone = || (0..ROOM).filter(|n| !has(*n)).count();
        (ROOM..ROOM + 64).for_each(put);
        assert!(gone() > 0, "there is no room for more");
        same(&live);
        // Until code that knows of it runs, and then.
        run_until(&it, &mut live, |r| {
            matches!(r, SessionReport::Specialised { .. } | SessionReport::Refreshed { .. })
        });
        assert!(gone() > 0);
        same(&live);
        live.finish(DetachPolicy::Restored).expect("finished");
    };
    rig.namespace().enter(act).expect("in the namespace");
}
