//! Firewall, balancer and switch: every lookup of a read-only map specialised on the keys that traffic
//! brings.

use millstream_programs::traffic::{FlowLocality, WeightedFlows};
use millstream_programs::{
    BALANCER, DataPlaneProgram, FIREWALL, MapEntry, SWITCH, balancer, firewall, switch,
};
use millstream_rng::Rng;
use millstream_specializer::transform::{FieldConstant, KeyForm, SiteId, SitePlan, SpecializationPlan};

use crate::rig::{INGRESS, Rig, compare, compare_apart, packets};

/// Traffic, some of it broken.
fn frames(flows: &WeightedFlows, count: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(seed);
    let frame = |at: u32| {
        let mut frame = flows.packets[at as usize].clone();
        if rng.below(3) == 0 {
            let at = 12 + rng.below(frame.len() as u64 - 12) as usize;
            frame[at] = rng.next_u32() as u8;
        }
        frame
    };
    flows.sequence(seed, count).into_iter().map(frame).collect()
}

/// Original and variant, each with tables of its own, since programs may change them.
fn check(
    program: &DataPlaneProgram,
    entries: &[MapEntry],
    flows: &WeightedFlows,
    most: usize,
    counters: &[&str],
) {
    let Some(original) = Rig::new(program, entries) else { return };
    let Some(rig) = Rig::new(program, entries) else { return };
    let Some(probe) = Rig::new(program, entries) else { return };
    let frames = frames(flows, packets(), 4);
    let wanted = probe.read_only_sites();
    let sites = probe.profiled(&wanted, &frames[..frames.len() / 2], most);
    assert!(sites.iter().any(|s| !s.lookup.entries().is_empty()), "traffic brings keys to {wanted:?}");
    let (variant, report) = rig.variant(&rig.plan(sites));
    assert!(!report.sites.is_empty(), "{report:?}");
    for version in [7, 8] {
        rig.set_guard(version);
        compare_apart((&original, &original.original), (&rig, &variant), &frames, counters);
    }
}

#[test]
fn the_firewall_behaves_as_the_original() {
    let mut config = firewall::generate(firewall::RuleSetKind::AccessList, 450, 1);
    config.forward = firewall::AcceptTarget::Hairpin;
    let flows = firewall::flows(&config, 2000, FlowLocality::HIGH, 2, |_| true);
    check(&FIREWALL, &config.entries().unwrap(), &flows, 8, &["counters", "stats"]);
}

#[test]
fn the_balancer_behaves_as_the_original() {
    let config = balancer::BalancerConfig {
        icmp_limit: u32::MAX,
        ..balancer::generate(balancer::ServiceMix::Mixed, 8, 20, 3)
    };
    let flows = balancer::flows(&config, 2000, FlowLocality::HIGH, 2);
    check(&BALANCER, &config.entries().unwrap(), &flows, 8, &["real_counters"]);
}

#[test]
fn the_switch_behaves_as_the_original() {
    let config = switch::generate(200, &[INGRESS, 2], &[10, 20], switch::VlanLayout::Trunk, 1);
    let flows = switch::flows(&config, INGRESS, 2000, FlowLocality::HIGH, 2);
    check(&SWITCH, &config.entries().unwrap(), &flows, 8, &[]);
}

/// A VLAN's membership in a port is a bit of a word of the port's value, and the packet selects the word. A
/// few distinct words become constants, and the port is not looked up. If there are many, the word is loaded.
#[test]
fn words_that_the_packet_chooses_are_constants_where_few_differ() {
    let folded = [&[10, 20][..], &[10, 70], &[10, 100, 1000, 2000, 3000]].map(|vlans| {
        let config = switch::generate(200, &[INGRESS, 2], vlans, switch::VlanLayout::Trunk, 1);
        let entries = config.entries().unwrap();
        let original = Rig::new(&SWITCH, &entries)?;
        let rig = Rig::new(&SWITCH, &entries)?;
        let whole = |site: SiteId| SitePlan { site, lookup: rig.whole("ports") };
        let sites = rig.sites_of("ports").iter().map(|s| whole(s.id)).collect();
        let (variant, report) = rig.variant(&rig.plan(sites));
        let flows = switch::flows(&config, INGRESS, 2000, FlowLocality::LOW, 2);
        let mut frames = frames(&flows, packets(), 4);
        // All VLANs, also unknown ones.
        let tagged = frames.iter_mut().filter(|f| f[12..14] == [0x81, 0]);
        tagged.step_by(3).zip(0u16..).for_each(|(f, n)| f[14..16].copy_from_slice(&(n % 4096).to_be_bytes()));
        for version in [7, 8] {
            rig.set_guard(version);
            compare_apart((&original, &original.original), (&rig, &variant), &frames, &[]);
        }
        Some(report.folded_loads)
    });
    let [Some(one), Some(two), Some(many)] = folded else { return };
    assert!(one == two && two > many, "{one}, {two}, {many}");
}

/// The compiler lets the keys of VIPs and flows share memory, and passes it to functions, too.
#[test]
fn keys_that_share_memory_are_read_back() {
    let config = balancer::BalancerConfig {
        icmp_limit: u32::MAX,
        ..balancer::generate(balancer::ServiceMix::Mixed, 8, 20, 3)
    };
    let entries = config.entries().unwrap();
    let Some(original) = Rig::new(&BALANCER, &entries) else { return };
    let Some(rig) = Rig::new(&BALANCER, &entries) else { return };
    let mut sites = Vec::new();
    for map in ["vips4", "vips6"] {
        let found = rig.sites_of(map);
        assert!(found.iter().any(|s| matches!(s.key, KeyForm::Stack(_))), "{map}: {found:?}");
        let plan = |site: SiteId| SitePlan { site, lookup: rig.whole(map) };
        sites.extend(found.iter().map(|s| plan(s.id)));
    }
    let (variant, report) = rig.variant(&rig.plan(sites));
    assert!(report.sites.iter().filter(|(_, s)| s.entries > 0).count() >= 2, "{report:?}");
    let flows = balancer::flows(&config, 2000, FlowLocality::LOW, 2);
    let frames = frames(&flows, packets(), 4);
    for version in [7, 8] {
        rig.set_guard(version);
        compare_apart((&original, &original.original), (&rig, &variant), &frames, &["real_counters"]);
    }
}

/// No rule stands behind the 4,096th, so the second words of all summaries are 0, and constants are
/// constants.
#[test]
fn equal_fields_are_constants() {
    let mut config = firewall::generate(firewall::RuleSetKind::AccessList, 450, 1);
    config.forward = firewall::AcceptTarget::Hairpin;
    let flows = firewall::flows(&config, 2000, FlowLocality::LOW, 2, |_| true);
    let Some(rig) = Rig::new(&FIREWALL, &config.entries().unwrap()) else { return };
    let sets = ["src_sets", "dst_sets", "sport_sets", "dport_sets", "proto_sets"];
    let zero = |map| FieldConstant { map: rig.map_id(map), offset: 8, bytes: vec![0; 8] };
    let plan = SpecializationPlan { fields: sets.map(zero).to_vec(), ..rig.plan(Vec::new()) };
    let (variant, report) = rig.variant(&plan);
    assert!(report.folded_loads >= 5, "{report:?}");
    let frames = frames(&flows, packets(), 4);
    for version in [7, 8] {
        rig.set_guard(version);
        compare(&rig, &variant, &frames, &["counters", "stats"]);
    }
}
