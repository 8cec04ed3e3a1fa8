//! Classifiers that go through their rules one by one, in loops.

use std::time::Duration;

use millstream_kernel::{UpdateMode, testing};
use millstream_lab::{RigConfig, TestRig, TrafficSequence};
use millstream_programs::firewall::{self, FirewallConfig, FirewallRule, PortRange, RuleAction, RuleSetKind};
use millstream_programs::packet::{TCP, UDP};
use millstream_programs::traffic::{FlowLocality, WeightedFlows};
use millstream_programs::{Ipv4Prefix, MapEntry, router};
use millstream_rng::Rng;
use millstream_specialize::replay::ReplayVerdict;
use millstream_specialize::replay::sample::PacketSample;
use millstream_specialize::{DetachPolicy, LiveSession, variant_compiler};
use millstream_specializer::policy::Tier;

use crate::acl::{TX, answer};
use crate::bars::asked;
use crate::fixtures;
use crate::offline::Offline;
use crate::routed::{Routed, alone, generation, settings};
use crate::shadow_tables::run_until;

const DROP: u32 = 1;
/// Bytes of a rule of the fixture `linear`.
const RULE: usize = 36;

/// Forms of the fixture: compiler flags, and true if all rules are in one value.
const FORMS: [(&[&str], bool); 3] = [(&[], false), (&["-DIN_ONE"], true), (&["-DCALLED"], false)];

/// A rule, as the fixture has it; `None` ends them.
fn encoded(rule: Option<&FirewallRule>, number: usize) -> [u8; RULE] {
    let mut bytes = [0; RULE];
    let Some(rule) = rule else {
        bytes[26] = 1;
        return bytes;
    };
    for (at, prefix) in [(0, rule.src), (8, rule.dst)] {
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix.length())).unwrap_or(0);
        bytes[at..at + 4].copy_from_slice(&u32::from(prefix.nth(0)).to_be_bytes());
        bytes[at + 4..at + 8].copy_from_slice(&mask.to_be_bytes());
    }
    let ports = [rule.src_ports.first, rule.src_ports.last, rule.dst_ports.first, rule.dst_ports.last];
    for (at, port) in (16..).step_by(2).zip(ports) {
        bytes[at..at + 2].copy_from_slice(&port.to_ne_bytes());
    }
    bytes[24] = rule.protocol.unwrap_or(0);
    bytes[25] = u8::from(rule.protocol.is_none());
    let verdict = if rule.action == RuleAction::Accept { TX } else { DROP };
    bytes[28..32].copy_from_slice(&verdict.to_ne_bytes());
    bytes[32..36].copy_from_slice(&(number as u32).to_ne_bytes());
    bytes
}

/// The rules, in a table with `room` entries.
fn entries(rules: &[FirewallRule], room: usize, in_one: bool) -> Vec<MapEntry> {
    let all = (0..room).map(|n| encoded(rules.get(n), n));
    match in_one {
        true => vec![MapEntry::new("rules", vec![0; 4], all.flatten().collect::<Vec<u8>>())],
        false => {
            let key = |n: usize| (n as u32).to_ne_bytes().to_vec();
            all.enumerate().map(|(n, rule)| MapEntry::new("rules", key(n), rule.to_vec())).collect()
        }
    }
}

/// The number of the rule that decides for a frame, if it accepts.
fn accepts(rules: &[FirewallRule], frame: &[u8]) -> Option<u32> {
    let word = |at: usize| u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
    let has_ports = [TCP, UDP].contains(&frame[23]);
    let port = |at: usize| if has_ports { u16::from_be_bytes([frame[at], frame[at + 1]]) } else { 0 };
    let is_in = |range: PortRange, port: u16| (range.first..=range.last).contains(&port);
    let found = rules.iter().position(|rule| {
        rule.src.contains(word(26).into())
            && rule.dst.contains(word(30).into())
            && is_in(rule.src_ports, port(34))
            && is_in(rule.dst_ports, port(36))
            && rule.protocol.is_none_or(|protocol| protocol == frame[23])
    })?;
    (rules[found].action == RuleAction::Accept).then_some(found as u32)
}

/// Frames that match rules, except that some have one arbitrary field.
fn frames(rules: &[FirewallRule], count: usize, seed: u64) -> WeightedFlows {
    let config =
        FirewallConfig { rules: rules.to_vec(), ..firewall::generate(RuleSetKind::AccessList, 1, 1) };
    let mut flows = firewall::flows(&config, count, FlowLocality::NONE, seed, |_| true);
    let mut rng = Rng::new(seed);
    for frame in flows.packets.iter_mut().step_by(3) {
        frame[26 + rng.below(12) as usize] = rng.next_u32() as u8;
    }
    flows
}

fn rules_of(flavour: RuleSetKind, count: usize, seed: u64) -> Vec<FirewallRule> {
    firewall::generate(flavour, count, seed).rules
}

/// The loop is gone: a packet meets a handful of branches, and no table but that of counters.
#[test]
fn loops_through_rules_become_decisions() {
    if !testing::require() {
        return;
    }
    for (flags, in_one) in FORMS {
        for (room, most) in [("-DRULES=65", 0.2), ("-DRULES=451", 0.1)] {
            let flags = [flags, &[room]].concat();
            let Some(object) = fixtures::read("linear", &flags) else { return };
            let compiler = variant_compiler(&object, None).expect("prepared");
            let room: usize = room[8..].parse().expect("a number");
            let rules = rules_of(RuleSetKind::AccessList, room - 1, 1);
            let mut plane = Offline::new(&compiler, &entries(&rules, room, in_one));
            let flows = frames(&rules, 4_000, 1);
            let (profiles, samples) = plane.profile(&flows.packets);
            let made = plane.variant(&profiles, Tier::Thorough, |_| ()).expect("a variant");
            assert_eq!(made.report.walks, 1, "{flags:?}");
            let judged = plane.compare(&made, &samples, true, 10_000).expect("compared");
            assert!(matches!(judged.finding, ReplayVerdict::Same(_)), "{flags:?}: {judged:?}");
            let [before, after] = plane.executed(&made, &flows.packets[..500]);
            assert!(after < most * before, "{flags:?}: {after} of {before} instructions");
            let [_, calls] = plane.map_calls(&made, &flows.packets[..500]);
            assert!(calls < 1.5, "{flags:?}: {calls} lookups");
        }
    }
}

/// Whatever the rules are, and whatever else the loop does; `MILLSTREAM_LISTS` of each kind.
#[test]
fn specialised_lists_of_rules_are_the_originals() {
    if !testing::require() {
        return;
    }
    let others: [(&[&str], bool); 5] = [
        (&["-DEITHER"], false),
        (&["-DEITHER", "-DCALLED"], false),
        (&["-DCOUNTED"], false),
        (&["-DWITHIN", "-DIN_ONE"], true),
        (&["-DIN_ONE", "-DLAST"], true),
    ];
    for (flags, in_one) in FORMS.into_iter().chain(others) {
        let Some(object) = fixtures::read("linear", flags) else { return };
        let compiler = variant_compiler(&object, None).expect("prepared");
        let flavours = [RuleSetKind::AccessList, RuleSetKind::Firewall];
        let few = [0, 1, 3, 40, 127, 128].into_iter().enumerate();
        let few = few.filter(|(_, n)| FORMS.contains(&(flags, in_one)) || [40, 128].contains(n));
        let more = (6..).map(|n| (n, 128 - n % 8)).take(2 * asked("MILLSTREAM_LISTS", 0) as usize);
        for (n, count) in few.chain(more) {
            let flavour = flavours[n % 2];
            let rules = rules_of(flavour, count, n as u64);
            let plane = Offline::new(&compiler, &entries(&rules, 128, in_one));
            let about = if rules.is_empty() { rules_of(flavour, 3, 1) } else { rules.clone() };
            let flows = frames(&about, 2_000, n as u64);
            let (profiles, _) = plane.profile(&flows.packets);
            let samples: Vec<PacketSample> = flows
                .packets
                .iter()
                .map(|f| PacketSample { packet: f.clone(), context: Vec::new() })
                .collect();
            let made = plane.variant(&profiles, Tier::Thorough, |_| ()).expect("a variant");
            for valid in [true, false] {
                let judged = plane.compare(&made, &samples, valid, 3_000).expect("compared");
                assert!(matches!(judged.finding, ReplayVerdict::Same(_)), "{flags:?} {count}: {judged:?}");
            }
            let wrong = flows.packets.iter().find(|f| answer(&plane.original, f) != accepts(&rules, f));
            assert!(!FORMS.contains(&(flags, in_one)) || wrong.is_none(), "the fixture: {wrong:?}");
        }
    }
}

/// Rules come and go: from the moment at which one is written, every packet is decided by it.
#[test]
fn rules_of_a_list_that_are_written_count_at_once() {
    if !testing::require() {
        return;
    }
    let _alone = alone();
    for (flags, in_one) in FORMS {
        let Some(object) = fixtures::read("linear", flags) else { return };
        let rig = TestRig::new(RigConfig::default()).expect("a rig");
        let mut rules = rules_of(RuleSetKind::AccessList, 100, 1);
        let flows = frames(&rules, 1_500, 1);
        rig.load_traffic(&TrafficSequence::new(&flows, &flows.sequence(1, 1 << 13))).expect("traffic");
        let compiler = variant_compiler(&object, None).expect("prepared");
        let config = router::generate(1, &[1], 1, 1);
        let it = Routed { rig: &rig, config: &config, flows: &flows, rate: Some(200_000.0) };
        let act = || {
            let mut live =
                LiveSession::load(&compiler, settings("linear", Duration::from_millis(200))).expect("loaded");
            let write = |live: &LiveSession<'_>, rules: &[FirewallRule]| {
                for entry in entries(rules, 128, in_one) {
                    let map = live.map(entry.map).expect("the map");
                    map.update(&entry.key, &entry.value, UpdateMode::Any).expect("an entry");
                }
            };
            let check = |live: &LiveSession<'_>, rules: &[FirewallRule]| {
                let wrong = flows.packets.iter().find(|f| answer(live.current(), f) != accepts(rules, f));
                assert!(wrong.is_none(), "{flags:?}: {wrong:?}");
            };
            write(&live, &rules);
            live.attach(&[rig.test_port()]).expect("attached");
            run_until(&it, &mut live, |r| generation(r).is_some());
            check(&live, &rules);
            for n in 0..3 {
                // One ahead of all, about everything, about what another was about; and one less.
                let any = Ipv4Prefix::new(0.into(), 0);
                let mut rule = rules[7 * n];
                rule.action =
                    if rule.action == RuleAction::Accept { RuleAction::Drop } else { RuleAction::Accept };
                if n == 1 {
                    (rule.src, rule.dst, rule.protocol) = (any, any, None);
                }
                rules.insert(0, rule);
                rules.remove(20);
                write(&live, &rules);
                check(&live, &rules);
                run_until(&it, &mut live, |r| generation(r).is_some());
                check(&live, &rules);
            }
            live.finish(DetachPolicy::Restored).expect("finished");
        };
        rig.namespace().enter(act).expect("in the namespace");
    }
}
