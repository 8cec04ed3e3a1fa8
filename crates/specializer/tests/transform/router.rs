//! The router, specialised on its routes and next hops.

use std::collections::HashMap;

use millstream_programs::ROUTER;
use millstream_programs::packet::checksum;
use millstream_programs::router::{NextHop, RouterConfig, flows, generate};
use millstream_programs::traffic::{FlowLocality, WeightedFlows};
use millstream_rng::Rng;
use millstream_specializer::guard_state::token;
use millstream_specializer::transform::lookup_plan::{LookupPlan, ShadowLookup};
use millstream_specializer::transform::{SitePlan, SpecializationPlan};

use crate::rig::{INGRESS, Rig, compare, hot, packets, run};

const COUNTERS: &[&str] = &["counters", "reasons"];

fn config() -> RouterConfig {
    let mut config = generate(2592, &[INGRESS, 2], 8, 1);
    for (kind, hop) in [(NextHop::Stack, 3), (NextHop::Drop, 5)] {
        config.next_hops[hop] = kind;
    }
    config
}

fn rig(config: &RouterConfig) -> Option<Rig> {
    Rig::new(&ROUTER, &config.entries().unwrap())
}

/// Keys of the route lookup by weight.
fn heat(flows: &WeightedFlows) -> HashMap<Vec<u8>, u64> {
    let mut seen = HashMap::new();
    for (packet, weight) in flows.packets.iter().zip(&flows.weights) {
        let mut key = 32u32.to_ne_bytes().to_vec();
        key.extend(&packet[30..34]);
        *seen.entry(key).or_insert(0) += weight;
    }
    seen
}

fn plan(rig: &Rig, lookup: LookupPlan) -> SpecializationPlan {
    let site = rig.sites_of("routes")[0].id;
    rig.plan(vec![SitePlan { site, lookup }])
}

/// Frames of the flows, some of them broken, some with a good checksum.
fn frames(flows: &WeightedFlows, count: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(seed);
    let mut frames = Vec::with_capacity(count);
    for at in flows.sequence(seed, count) {
        let mut frame = flows.packets[at as usize].clone();
        for _ in 0..rng.below(3) {
            frame[rng.below(34) as usize] = rng.next_u32() as u8;
        }
        if rng.below(4) != 0 && frame[14] & 15 >= 5 {
            frame[24..26].fill(0);
            let header = (14 + 4 * usize::from(frame[14] & 15)).min(frame.len());
            let sum = checksum(&frame[14..header], 0);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        frames.push(frame);
    }
    frames
}

#[test]
fn hot_routes_behave_as_the_original_whatever_the_guard_says() {
    let config = config();
    let Some(rig) = rig(&config) else { return };
    let flows = flows(&config, 10_000, FlowLocality::HIGH, 2);
    let frames = frames(&flows, packets(), 3);
    let site = rig.sites_of("routes").remove(0);
    for most in [1, 16, 64] {
        let (variant, report) = rig.variant(&plan(&rig, hot(&rig, &site, &heat(&flows), most)));
        assert_eq!(report.sites[0].1.entries, most as u32);
        assert!(report.folded_lookups > 0, "the next hops follow from the routes: {report:?}");
        for version in [7, 8] {
            rig.set_guard(version);
            compare(&rig, &variant, &frames, COUNTERS);
        }
    }
}

#[test]
fn the_whole_table_as_code_behaves_as_the_original() {
    let config = config();
    let Some(rig) = rig(&config) else { return };
    let flows = flows(&config, 10_000, FlowLocality::NONE, 2);
    let frames = frames(&flows, packets(), 5);
    rig.set_guard(7);
    let mut plan = plan(&rig, rig.whole("routes"));
    let (variant, report) = rig.variant(&plan);
    assert_eq!(report.sites[0].1.dropped, 0, "{report:?}");
    compare(&rig, &variant, &frames, COUNTERS);
    // Without room for copies the values meet in one.
    plan.budget.code = 0;
    let (variant, report) = rig.variant(&plan);
    assert!(report.sites[0].1.merged > 2000, "{report:?}");
    compare(&rig, &variant, &frames, COUNTERS);
}

#[test]
fn a_twin_behaves_as_the_original_with_and_without_hot_keys() {
    let config = config();
    let Some(rig) = rig(&config) else { return };
    let flows = flows(&config, 10_000, FlowLocality::LOW, 2);
    let frames = frames(&flows, packets(), 7);
    let site = rig.sites_of("routes").remove(0);
    for side in [0, 1] {
        rig.fill_twin("routes", side);
    }
    let map = rig.map_id("ms_twin");
    for most in [0, 8] {
        let hot = hot(&rig, &site, &heat(&flows), most).entries().to_vec();
        let plan = SpecializationPlan {
            guard: Some(rig.sided_guard(7)),
            ..plan(&rig, LookupPlan::Twin(ShadowLookup { map, hot }))
        };
        let (variant, _) = rig.variant(&plan);
        for token in [token(7, 0), token(7, 1), token(8, 0)] {
            rig.set_token(token);
            compare(&rig, &variant, &frames, COUNTERS);
        }
    }
}

#[test]
fn a_stale_variant_follows_the_tables_that_are_there_now() {
    let config = config();
    let Some(rig) = rig(&config) else { return };
    let flows = flows(&config, 1000, FlowLocality::HIGH, 2);
    let site = rig.sites_of("routes").remove(0);
    rig.set_guard(7);
    let (variant, _) = rig.variant(&plan(&rig, hot(&rig, &site, &heat(&flows), 64)));
    // All routes lead elsewhere now, which the variants cannot know before the guard says so.
    rig.set_guard(8);
    for route in &config.routes {
        let key = millstream_programs::router::route_key(route.prefix);
        let value = ((route.next_hop + 1) % config.next_hops.len() as u32).to_ne_bytes();
        rig.map("routes").update(&key, &value, millstream_kernel::UpdateMode::Any).unwrap();
    }
    compare(&rig, &variant, &flows.packets, COUNTERS);
    rig.set_guard(7);
    let differs = |f: &Vec<u8>| run(&variant, f) != run(&rig.original, f);
    assert!(flows.packets.iter().any(differs), "the variant was built on the old table");
}

#[test]
fn packets_are_left_to_the_generation_that_stands_by_if_it_may_run() {
    let config = config();
    let Some(rig) = rig(&config) else { return };
    let flows = flows(&config, 1000, FlowLocality::HIGH, 2);
    let site = rig.sites_of("routes").remove(0);
    let of = |guard| {
        rig.variant(&SpecializationPlan {
            guard: Some(guard),
            ..plan(&rig, hot(&rig, &site, &heat(&flows), 64))
        })
        .0
    };
    // The stand-by variant knows the present routes, which change below: so the answers show if it was the
    // one that ran.
    let (variant, standby) = (of(rig.leaving_guard(7)), of(rig.guard(8)));
    for route in &config.routes {
        let key = millstream_programs::router::route_key(route.prefix);
        let value = ((route.next_hop + 1) % config.next_hops.len() as u32).to_ne_bytes();
        rig.map("routes").update(&key, &value, millstream_kernel::UpdateMode::Any).unwrap();
    }
    let differs = || flows.packets.iter().any(|f| run(&variant, f) != run(&rig.original, f));
    let named = 8 << 32;
    rig.set_words(token(8, 0), named);
    compare(&rig, &variant, &flows.packets, COUNTERS);
    rig.map("ms_standby").update_fd(&[0; 4], std::os::fd::AsFd::as_fd(&standby)).unwrap();
    assert!(differs(), "it was left to what stands by");
    // Of another slot, of another generation, and while none may run.
    for (token, standby) in
        [(token(8, 0), named | 1), (token(8, 0), 0), (token(9, 0), named), (token(9, 0), 9 << 32)]
    {
        rig.set_words(token, standby);
        compare(&rig, &variant, &flows.packets, COUNTERS);
    }
}

#[test]
fn the_instrumented_variant_counts_true_keys_and_changes_nothing() {
    let config = config();
    let Some(rig) = rig(&config) else { return };
    let flows = flows(&config, 1000, FlowLocality::HIGH, 2);
    let site = rig.sites_of("routes").remove(0);
    let variant = rig.instrumented(&[site.id]);
    let frames: Vec<Vec<u8>> =
        flows.sequence(9, 5000).iter().map(|&at| flows.packets[at as usize].clone()).collect();
    compare(&rig, &variant, &frames, COUNTERS);
    let mut truth: HashMap<Vec<u8>, u64> = HashMap::new();
    for frame in &frames {
        let mut key = 32u32.to_ne_bytes().to_vec();
        key.extend(&frame[30..34]);
        *truth.entry(key).or_insert(0) += 1;
    }
    let (recorded, total) = rig.recorded(0, 8);
    assert_eq!(total, frames.len() as u64);
    let mut found: HashMap<&Vec<u8>, u64> = HashMap::new();
    recorded.iter().for_each(|(key, count)| *found.entry(key).or_default() += count);
    for (key, count) in &found {
        let real = truth.get(*key).copied().unwrap_or(0);
        assert!(real > 0 && *count <= real, "{key:?}: {count} of {real}");
    }
    // With this many slots, a key with one lookup in a hundred has most of its slot's.
    for (key, real) in truth.iter().filter(|(_, n)| **n * 100 > total) {
        let count = found.get(key).copied().unwrap_or(0);
        assert!(count * 10 >= real * 9, "{key:?}: {count} of {real}");
    }
}
