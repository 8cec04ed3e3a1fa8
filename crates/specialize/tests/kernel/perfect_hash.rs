//! Twins of hash maps: they answer as the map does, without a call, and follow it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use millstream_kernel::{KernelProgram, UpdateMode, query_xdp, testing};
use millstream_lab::{RigConfig, TestRig, TrafficSequence};
use millstream_programs::traffic::{FlowLocality, WeightedFlows};
use millstream_programs::{BALANCER, balancer, router};
use millstream_rng::Rng;
use millstream_specialize::replay::ReplayVerdict;
use millstream_specialize::{DetachPolicy, LiveSession, SessionReport, variant_compiler};
use millstream_specializer::policy::Tier;
use millstream_specializer::transform::LookupPlan;

use crate::acl::{TX, answer, entry, key};
use crate::fixtures;
use crate::offline::{Offline, compiler};
use crate::routed::{End, alone, generation, settings};

/// Frames between addresses that differ in few bits, so that pairs are near one another.
fn flows(count: usize) -> WeightedFlows {
    let config = router::generate(10, &[1], 4, 1);
    let mut flows = router::flows(&config, count, FlowLocality::NONE, 1);
    for (n, frame) in (0u32..).zip(&mut flows.packets) {
        frame[26..30].copy_from_slice(&(0x0a00_0000 | n & 0xff).to_be_bytes());
        frame[30..34].copy_from_slice(&(0x0a01_0000 | n >> 8).to_be_bytes());
    }
    flows
}

#[test]
fn a_twin_answers_as_the_hash_map_does_and_no_lookup_is_left() {
    if !testing::require() {
        return;
    }
    let Some(object) = fixtures::read("acl", &[]) else { return };
    let compiler = variant_compiler(&object, None).expect("prepared");
    let mut plane = Offline::new(&compiler, &[]);
    let flows = flows(30_000);
    let map = plane.session.map_by_name("acl").expect("the map");
    // Every third pair has no rule.
    for (n, frame) in (0u32..).zip(&flows.packets).filter(|(n, _)| n % 3 != 0) {
        map.update(&key(frame), &entry(1 + n % 3, n), UpdateMode::Any).expect("an entry");
    }
    let frames: Vec<Vec<u8>> =
        flows.sequence(3, 20_000).into_iter().map(|at| flows.packets[at as usize].clone()).collect();
    let (profiles, samples) = plane.profile(&frames);
    let made = plane.variant(&profiles, Tier::Quick, |_| ()).expect("a variant");
    assert_eq!((made.twins.maps().count(), made.report.sites.len()), (1, 1), "{:?}", made.report);
    let judged = plane.compare(&made, &samples, true, 20_000).expect("compared");
    assert!(matches!(judged.finding, ReplayVerdict::Same(_)) && judged.packets >= 20_000, "{judged:?}");
    let judged = plane.judge(&made, &samples).expect("judged");
    assert!(matches!(judged.finding, ReplayVerdict::Same(Some(_))), "{judged:?}");
    assert_eq!(plane.map_calls(&made, &frames[..1_000]), [1.0, 0.0]);
}

/// One service becomes a comparison; branch prediction cannot tell which of ten it is.
#[test]
fn several_services_are_found_in_a_twin_and_one_by_code() {
    if !testing::require() {
        return;
    }
    for (services, has_twin) in [(1, false), (10, true)] {
        let config = balancer::generate(balancer::ServiceMix::Web, services, 3, 1);
        let flows = balancer::flows(&config, 500, FlowLocality::NONE, 2);
        let compiler = compiler(&BALANCER);
        let plane = Offline::new(&compiler, &config.entries().expect("entries"));
        let (profiles, samples) = plane.profile(&flows.packets);
        let mut looked_up = Vec::new();
        let made = plane.variant(&profiles, Tier::Thorough, |plan| {
            let of = |site| compiler.sites().iter().find(|s| s.id == site).expect("of the program").map;
            let services = plan.sites.iter().filter(|p| compiler.declaration(of(p.site)).name == "vips4");
            looked_up.extend(services.map(|p| matches!(p.lookup, LookupPlan::Twin(_))));
        });
        assert!(!looked_up.is_empty() && looked_up.iter().all(|twin| *twin == has_twin), "{looked_up:?}");
        let judged = plane.compare(&made.expect("a variant"), &samples, true, 2_000).expect("compared");
        assert!(matches!(judged.finding, ReplayVerdict::Same(_)), "{judged:?}");
    }
}

/// Rules are added, changed and deleted while packets flow. After each change the program on the hook answers
/// by the table, and most changes need no new code.
#[test]
fn a_twin_follows_its_hash_map() {
    if !testing::require() {
        return;
    }
    let Some(object) = fixtures::read("acl", &[]) else { return };
    let _alone = alone();
    let rig = TestRig::new(RigConfig::default()).expect("a rig");
    let flows = flows(2_000);
    let sequence = flows.sequence(1, 1 << 13);
    rig.load_traffic(&TrafficSequence::new(&flows, &sequence)).expect("traffic");
    let compiler = variant_compiler(&object, None).expect("prepared");
    let (told, stop) = (Mutex::new(Vec::<SessionReport>::new()), AtomicBool::new(false));
    rig.namespace()
        .enter(|| {
            let mut live =
                LiveSession::load(&compiler, settings("rows", Duration::from_millis(200))).expect("loaded");
            let map = live.map("acl").expect("the map").try_clone().expect("a descriptor");
            let mut table = BTreeMap::new();
            for (n, frame) in (0u32..).zip(&flows.packets) {
                map.update(&key(frame), &entry(TX, n), UpdateMode::Any).expect("an entry");
                table.insert(key(frame), n);
            }
            live.attach(&[rig.test_port()]).expect("attached");
            std::thread::scope(|scope| {
                scope.spawn(|| rig.generator_loop(&stop, Some(200_000.0)));
                let script = scope.spawn(|| {
                    let _end = End(&stop);
                    changed(&rig, &flows, &map, table, &told);
                });
                live.run(&stop, &mut |r| told.lock().expect("no panic").push(r.clone())).expect("runs");
                script.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            });
            live.finish(DetachPolicy::Restored).expect("finished");
        })
        .expect("in the namespace");
    let told = told.into_inner().expect("no panic");
    let refreshed = told.iter().filter(|r| matches!(r, SessionReport::Refreshed { .. })).count();
    let made = told.iter().filter(|r| generation(r).is_some()).count();
    assert!(refreshed > 100 && made < 20, "{refreshed} times without other code, {made} generations");
}

fn changed(
    rig: &TestRig,
    flows: &WeightedFlows,
    map: &millstream_kernel::KernelMap,
    mut table: BTreeMap<[u8; 12], u32>,
    told: &Mutex<Vec<SessionReport>>,
) {
    let start = Instant::now();
    while !told.lock().expect("no panic").iter().any(|r| generation(r).is_some()) {
        assert!(start.elapsed() < Duration::from_secs(60), "no generation: {told:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (mut rng, ingress) = (Rng::new(1), rig.test_port());
    for n in 0..600u32 {
        let frame = &flows.packets[rng.below(flows.packets.len() as u64) as usize];
        if table.contains_key(&key(frame)) && rng.below(2) == 0 {
            table.remove(&key(frame));
            map.delete(&key(frame)).expect("it was there");
        } else {
            table.insert(key(frame), 100_000 + n);
            map.update(&key(frame), &entry(TX, 100_000 + n), UpdateMode::Any).expect("an entry");
        }
        for wait in [0, 3] {
            std::thread::sleep(Duration::from_millis(wait));
            let held = rig.namespace().enter(|| query_xdp(ingress)).expect("the namespace");
            let id = held.expect("an answer").expect("a program is there").program_id;
            let program = KernelProgram::from_id(id).expect("a descriptor");
            for frame in [frame, &flows.packets[rng.below(2_000) as usize]] {
                let given = rig.namespace().enter(|| answer(&program, frame)).expect("the namespace");
                assert_eq!(given, table.get(&key(frame)).copied(), "after change {n}");
            }
        }
    }
}
