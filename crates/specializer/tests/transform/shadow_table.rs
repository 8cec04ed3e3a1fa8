//! Twins against the kernel's own longest-prefix maps, on random tables.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};

use millstream_kernel::UpdateMode;
use millstream_lab::os;
use millstream_programs::Ipv4Prefix;
use millstream_programs::packet::checksum;
use millstream_programs::router::{Route, RouterConfig, flows, generate, route_key};
use millstream_programs::traffic::FlowLocality;
use millstream_programs::{ROUTER, router};
use millstream_rng::Rng;
use millstream_specializer::guard_state::token;
use millstream_specializer::transform::lookup_plan::{LookupPlan, ShadowLookup};
use millstream_specializer::transform::{DeoptMap, FieldConstant, LookupEntry, SitePlan, SpecializationPlan};

use crate::rig::{INGRESS, Rig, compare, packets, run};

const COUNTERS: &[&str] = &["counters", "reasons"];
const HOPS: u64 = 8;
/// The bits of addresses that vary: few, so that prefixes overlap, and in every byte.
const VARIES: u32 = 0x0f07_0303;

fn address(rng: &mut Rng) -> Ipv4Addr {
    Ipv4Addr::from(0x1000_0000 | rng.next_u32() & VARIES)
}

/// Prefixes of all lengths; every other table has a default route.
fn routes(rng: &mut Rng) -> Vec<Route> {
    let mut seen = BTreeSet::new();
    let mut all: Vec<Ipv4Prefix> = (0..=32).map(|length| Ipv4Prefix::new(address(rng), length)).collect();
    if rng.below(2) == 0 {
        all.remove(0);
    }
    for _ in 0..rng.below(300) {
        all.push(Ipv4Prefix::new(address(rng), 1 + rng.below(32) as u8));
    }
    all.retain(|p| seen.insert(route_key(*p)));
    all.into_iter().map(|prefix| Route { prefix, next_hop: rng.below(HOPS) as u32 }).collect()
}

/// Frames to random addresses, with a good checksum.
fn frames(template: &[u8], rng: &mut Rng, count: usize) -> Vec<Vec<u8>> {
    let mut frame = || {
        let mut frame = template.to_vec();
        frame[30..34].copy_from_slice(&address(rng).octets());
        frame[24..26].fill(0);
        let sum = checksum(&frame[14..34], 0);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    (0..count).map(|_| frame()).collect()
}

fn config(rng: &mut Rng) -> RouterConfig {
    RouterConfig { routes: routes(rng), ..generate(10, &[INGRESS, 2], HOPS as u8, 1) }
}

/// Deletes some routes, gives others another next hop, and adds some.
fn change(rig: &Rig, config: &RouterConfig, rng: &mut Rng) {
    let map = rig.map(router::ROUTES);
    for route in &config.routes {
        let key = route_key(route.prefix);
        match rng.below(4) {
            0 => drop(map.delete(&key).unwrap()),
            1 => {
                map.update(&key, &(rng.below(HOPS) as u32).to_ne_bytes(), UpdateMode::Any).unwrap();
            }
            _ => {}
        }
    }
    for route in routes(rng).into_iter().take(40) {
        map.update(&route_key(route.prefix), &route.next_hop.to_ne_bytes(), UpdateMode::Any).unwrap();
    }
}

/// A twin for the lookup of routes, with a guard of generation 20.
fn plan(rig: &Rig) -> SpecializationPlan {
    let lookup = LookupPlan::Twin(ShadowLookup { map: rig.map_id("ms_twin"), hot: Vec::new() });
    let site = SitePlan { site: rig.sites_of("routes")[0].id, lookup };
    SpecializationPlan { guard: Some(rig.sided_guard(20)), ..rig.plan(vec![site]) }
}

#[test]
fn twins_agree_with_the_kernel_before_and_after_changes() {
    for seed in 1..=6 {
        let mut rng = Rng::new(seed);
        let config = config(&mut rng);
        let Some(rig) = Rig::new(&ROUTER, &config.entries().unwrap()) else { return };
        let template = flows(&generate(10, &[INGRESS], 1, 1), 1, FlowLocality::NONE, 1).packets.remove(0);
        let frames = frames(&template, &mut rng, packets() / 4);
        let plan = plan(&rig);
        let (variant, report) = rig.variant(&plan);
        assert_eq!(report.sites.len(), 1, "the twin answers: {report:?}");
        // The same code follows the map from one side of the twin to the other and back.
        for side in [0, 1, 0] {
            rig.fill_twin("routes", side);
            rig.set_token(token(20, side));
            compare(&rig, &variant, &frames, COUNTERS);
            change(&rig, &config, &mut rng);
        }
        // And any other generation leaves it for the map itself.
        rig.set_guard(22);
        compare(&rig, &variant, &frames, COUNTERS);
    }
}

#[test]
fn a_side_that_was_not_written_is_not_read() {
    let mut rng = Rng::new(9);
    let config = config(&mut rng);
    let Some(rig) = Rig::new(&ROUTER, &config.entries().unwrap()) else { return };
    let template = flows(&generate(10, &[INGRESS], 1, 1), 1, FlowLocality::NONE, 1).packets.remove(0);
    let frames = frames(&template, &mut rng, 500);
    let (variant, _) = rig.variant(&plan(&rig));
    rig.fill_twin("routes", 1);
    // The first side holds zeros, which would send everything to next hop 0.
    rig.set_token(token(20, 1));
    compare(&rig, &variant, &frames, COUNTERS);
    rig.set_guard(20);
    let differs = |f: &Vec<u8>| crate::rig::run(&variant, f) != crate::rig::run(&rig.original, f);
    assert!(frames.iter().any(differs), "the other token reads the other side");
}

/// The bit that marks the routes as out of date, and one with another meaning.
const ROUTES: u32 = 1 << 4;
const OTHER: u32 = 1 << 9;

/// Bytes of a next hop that hold the action and the MTU.
const ACTION_AND_MTU: std::ops::Range<usize> = 12..16;

/// The same, with the fields that all next hops have in common in code, and routes that can be done without.
fn spared(rig: &Rig, hot: Vec<LookupEntry>) -> SpecializationPlan {
    let lookup = LookupPlan::Twin(ShadowLookup { map: rig.map_id("ms_twin"), hot });
    let mut plan = rig.plan(vec![SitePlan { site: rig.sites_of("routes")[0].id, lookup }]);
    let alike = rig.snapshot("next_hops")[0].1[ACTION_AND_MTU].to_vec();
    let map = rig.map_id("next_hops");
    plan.fields = vec![FieldConstant { map, offset: ACTION_AND_MTU.start as u32, bytes: alike }];
    plan.guard = Some(rig.sided_guard(20));
    plan.spared = vec![DeoptMap { map: rig.map_id("routes"), behind: ROUTES }];
    plan
}

#[test]
fn a_map_that_is_behind_is_looked_up_itself() {
    for seed in 1..=3 {
        let mut rng = Rng::new(seed);
        let config = config(&mut rng);
        let Some(rig) = Rig::new(&ROUTER, &config.entries().unwrap()) else { return };
        let template = flows(&generate(10, &[INGRESS], 1, 1), 1, FlowLocality::NONE, 1).packets.remove(0);
        let frames = frames(&template, &mut rng, packets() / 4);
        let hot: Vec<LookupEntry> = if seed == 3 { hot_routes(&rig, &frames) } else { Vec::new() };
        let has_hot = !hot.is_empty();
        let (variant, report) = rig.variant(&spared(&rig, hot));
        assert!(report.sites.len() == 1 && report.unspared.is_empty(), "{report:?}");
        for behind in [u64::from(ROUTES | OTHER), u64::from(ROUTES)] {
            // Nothing was ever written to the twin.
            rig.set_token(token(20, 0) | behind);
            compare(&rig, &variant, &frames, COUNTERS);
            change(&rig, &config, &mut rng);
        }
        // A map whose contents are in code has changed: it stays behind.
        if !has_hot {
            rig.fill_twin("routes", 1);
            rig.set_token(token(20, 1) | u64::from(OTHER));
            compare(&rig, &variant, &frames, COUNTERS);
        }
    }
}

fn hot_routes(rig: &Rig, frames: &[Vec<u8>]) -> Vec<LookupEntry> {
    let keys: BTreeSet<Vec<u8>> =
        frames.iter().take(4).map(|f| [&32u32.to_ne_bytes()[..], &f[30..34]].concat()).collect();
    let value = |key: &Vec<u8>| rig.map("routes").lookup(key).unwrap();
    keys.into_iter().map(|key| LookupEntry { value: value(&key), key, heat: 1 }).collect()
}

/// A packet that has looked a map up itself may have seen newer entries than anything in code: if the token
/// has changed by then, nothing in code counts any more.
#[test]
fn what_follows_a_lookup_after_which_the_token_is_another_is_looked_up_too() {
    const MOST: u32 = 2_000_000;
    let mut rng = Rng::new(1);
    let config = config(&mut rng);
    let Some(rig) = Rig::new(&ROUTER, &config.entries().unwrap()) else { return };
    let template = flows(&generate(10, &[INGRESS], 1, 1), 1, FlowLocality::NONE, 1).packets.remove(0);
    let (variant, _) = rig.variant(&spared(&rig, Vec::new()));
    let frame = frames(&template, &mut rng, 200).into_iter().find(|f| run(&rig.original, f).0 == 3);
    let frame = frame.expect("one that is sent back");
    let in_code = run(&rig.original, &frame);
    // Nobody tells the guard, so that values in code can be told from those looked up.
    for (id, mut value) in rig.snapshot("next_hops") {
        value[ACTION_AND_MTU.end - 2..][..2].copy_from_slice(&20u16.to_ne_bytes());
        rig.map("next_hops").update(&id, &value, UpdateMode::Any).unwrap();
    }
    let looked_up = run(&rig.original, &frame);
    assert_ne!(in_code, looked_up);
    let behind = token(20, 0) | u64::from(ROUTES);
    for same in [behind, behind | u64::from(OTHER)] {
        rig.set_token(same);
        assert!((0..1000).all(|_| run(&variant, &frame) == in_code), "the token stays as it is");
    }
    let (done, guard) = (AtomicBool::new(false), rig.map("ms_guard").try_clone().unwrap());
    let cpus = os::allowed_cpus();
    let found = std::thread::scope(|scope| {
        scope.spawn(|| {
            os::pin_to_cpu(cpus[0]).expect("allowed");
            for n in 0u64.. {
                let token = behind | (n % 2 * u64::from(OTHER));
                guard.update(&[0; 4], &[token, 0].map(u64::to_ne_bytes).concat(), UpdateMode::Any).unwrap();
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let packets = scope.spawn(|| {
            os::pin_to_cpu(cpus[cpus.len() - 1]).expect("allowed");
            let found = (0..MOST).map(|_| run(&variant, &frame)).find(|found| *found != in_code);
            done.store(true, Ordering::Relaxed);
            found
        });
        packets.join().expect("it runs")
    });
    assert_eq!(found, Some(looked_up));
}
