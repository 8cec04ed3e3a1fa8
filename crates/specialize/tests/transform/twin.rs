//! Twins against the kernel's own longest-prefix maps, on random tables.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use millstream_kernel::UpdateMode;
use millstream_programs::Prefix;
use millstream_programs::packet::checksum;
use millstream_programs::rng::Rng;
use millstream_programs::router::{Config, Route, flows, generate, route_key};
use millstream_programs::traffic::Locality;
use millstream_programs::{ROUTER, router};
use millstream_specialize::transform::{Lookup, Plan, SitePlan};

use crate::rig::{INGRESS, Rig, compare, packets};

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
    let mut all: Vec<Prefix> = (0..=32).map(|length| Prefix::new(address(rng), length)).collect();
    if rng.below(2) == 0 {
        all.remove(0);
    }
    for _ in 0..rng.below(300) {
        all.push(Prefix::new(address(rng), 1 + rng.below(32) as u8));
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

fn config(rng: &mut Rng) -> Config {
    Config { routes: routes(rng), ..generate(10, &[INGRESS, 2], HOPS as u8, 1) }
}

/// Deletes some routes, gives others another next hop, and adds some.
fn change(rig: &Rig, config: &Config, rng: &mut Rng) {
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

/// A twin for the lookup of routes, with a guard of two versions from 20 on.
fn plan(rig: &Rig) -> Plan {
    let lookup = Lookup::Twin { map: rig.map_id("ms_twin"), hot: Vec::new() };
    let site = SitePlan { site: rig.sites_of("routes")[0].id, lookup };
    Plan { guard: Some(rig.sided_guard(20)), ..rig.plan(vec![site]) }
}

#[test]
fn twins_agree_with_the_kernel_before_and_after_changes() {
    for seed in 1..=6 {
        let mut rng = Rng::new(seed);
        let config = config(&mut rng);
        let Some(rig) = Rig::new(&ROUTER, &config.entries().unwrap()) else { return };
        let template = flows(&generate(10, &[INGRESS], 1, 1), 1, Locality::NONE, 1).packets.remove(0);
        let frames = frames(&template, &mut rng, packets() / 4);
        let plan = plan(&rig);
        let (variant, report) = rig.variant(&plan);
        assert_eq!(report.sites.len(), 1, "the twin answers: {report:?}");
        // The same code follows the map from one side of the twin to the other and back.
        for side in [0, 1, 0] {
            rig.fill_twin("routes", side);
            rig.set_guard(20 + u64::from(side));
            compare(&rig, &variant, &frames, COUNTERS);
            change(&rig, &config, &mut rng);
        }
        // And any other version leaves it for the map itself.
        rig.set_guard(22);
        compare(&rig, &variant, &frames, COUNTERS);
    }
}

#[test]
fn a_side_that_was_not_written_is_not_read() {
    let mut rng = Rng::new(9);
    let config = config(&mut rng);
    let Some(rig) = Rig::new(&ROUTER, &config.entries().unwrap()) else { return };
    let template = flows(&generate(10, &[INGRESS], 1, 1), 1, Locality::NONE, 1).packets.remove(0);
    let frames = frames(&template, &mut rng, 500);
    let (variant, _) = rig.variant(&plan(&rig));
    rig.fill_twin("routes", 1);
    // The first side holds zeros, which would send everything to next hop 0.
    rig.set_guard(21);
    compare(&rig, &variant, &frames, COUNTERS);
    rig.set_guard(20);
    let differs = |f: &Vec<u8>| crate::rig::run(&variant, f) != crate::rig::run(&rig.original, f);
    assert!(frames.iter().any(differs), "the other version reads the other side");
}
