//! Classifiers by bit vectors, as used by packet filters that replace iptables.

use std::collections::BTreeSet;
use std::time::Duration;

use millstream_kernel::{UpdateMode, testing};
use millstream_lab::{RigConfig, TestRig, TrafficSequence};
use millstream_programs::firewall::{self, FirewallConfig, FirewallRule, PortRange, RuleAction, RuleSetKind};
use millstream_programs::packet::{ICMP, TCP, UDP};
use millstream_programs::traffic::{FlowLocality, WeightedFlows};
use millstream_programs::{Ipv4Prefix, MapEntry, router};
use millstream_rng::Rng;
use millstream_specialize::replay::ReplayVerdict;
use millstream_specialize::{DetachPolicy, LiveSession, variant_compiler};
use millstream_specializer::policy::Tier;

use crate::acl::{TX, answer};
use crate::fixtures;
use crate::offline::Offline;
use crate::routed::{Routed, alone, generation, settings};
use crate::shadow_tables::run_until;

const DROP: u32 = 1;

/// The tables of the fixture `bitvector` for a list of rules.
struct Tables<'r> {
    rules: &'r [FirewallRule],
    /// Words of each set.
    words: usize,
    protocols_in_array: bool,
}

impl Tables<'_> {
    fn set(&self, has: impl Fn(&FirewallRule) -> bool) -> Vec<u8> {
        let mut words = vec![0u64; self.words];
        for (n, _) in self.rules.iter().enumerate().filter(|(_, rule)| has(rule)) {
            words[n / 64] |= 1 << (n % 64);
        }
        words.into_iter().flat_map(u64::to_ne_bytes).collect()
    }

    fn prefixes(&self, map: &'static str, of: impl Fn(&FirewallRule) -> Ipv4Prefix) -> Vec<MapEntry> {
        let all: BTreeSet<(u8, u32)> =
            self.rules.iter().map(&of).map(|p| (p.length(), p.nth(0).into())).collect();
        let entry = |(length, address): (u8, u32)| {
            let key = [&u32::from(length).to_ne_bytes()[..], &address.to_be_bytes()].concat();
            let inside = |p: Ipv4Prefix| p.length() <= length && p.contains(address.into());
            MapEntry { map, key, value: self.set(|rule| inside(of(rule))) }
        };
        all.into_iter().map(entry).collect()
    }

    fn ports(&self, map: &'static str, any: u32, of: impl Fn(&FirewallRule) -> PortRange) -> Vec<MapEntry> {
        let named = |rule: &FirewallRule| (of(rule) != PortRange::ANY).then_some(of(rule).first);
        let all: BTreeSet<u16> = self.rules.iter().filter_map(named).collect();
        let value = self.set(|rule| named(rule).is_none());
        let rest = MapEntry { map: "any_port", key: any.to_ne_bytes().to_vec(), value };
        let entry = |port: u16| {
            let value = self.set(|rule| named(rule).is_none_or(|named| named == port));
            MapEntry { map, key: port.to_be_bytes().to_vec(), value }
        };
        all.into_iter().map(entry).chain([rest]).collect()
    }

    fn protocols(&self) -> Vec<MapEntry> {
        let named: BTreeSet<u8> = self.rules.iter().filter_map(|rule| rule.protocol).collect();
        let entry = |protocol: u8| {
            let value = self.set(|rule| rule.protocol.is_none_or(|p| p == protocol));
            let key = match self.protocols_in_array {
                true => u32::from(protocol).to_ne_bytes().to_vec(),
                false => vec![protocol],
            };
            MapEntry { map: "protocols", key, value }
        };
        named.into_iter().map(entry).collect()
    }

    fn actions(&self) -> Vec<MapEntry> {
        let none = 64 * self.words;
        let action = |(n, action): (usize, RuleAction)| {
            let verdict = if action == RuleAction::Accept { TX } else { DROP };
            let value = [verdict.to_ne_bytes(), (n as u32).to_ne_bytes()].concat();
            MapEntry { map: "actions", key: (n as u32).to_ne_bytes().to_vec(), value }
        };
        let all = self.rules.iter().map(|rule| rule.action).enumerate();
        all.chain([(none, RuleAction::Drop)]).map(action).collect()
    }

    fn entries(&self) -> Vec<MapEntry> {
        let parts = [
            self.prefixes("sources", |rule| rule.src),
            self.prefixes("destinations", |rule| rule.dst),
            self.ports("source_ports", 0, |rule| rule.src_ports),
            self.ports("destination_ports", 1, |rule| rule.dst_ports),
            self.protocols(),
            self.actions(),
        ];
        parts.concat()
    }

    /// The number of the rule that decides for a frame, if it accepts.
    fn accepts(&self, frame: &[u8]) -> Option<u32> {
        let word = |at: usize| u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
        let has_ports = [TCP, UDP].contains(&frame[23]);
        let port = |at: usize| if has_ports { u16::from_be_bytes([frame[at], frame[at + 1]]) } else { 0 };
        let is_port = |range: PortRange, port: u16| range == PortRange::ANY || range.first == port;
        let decides = |rule: &&FirewallRule| {
            rule.src.contains(word(26).into())
                && rule.dst.contains(word(30).into())
                && is_port(rule.src_ports, port(34))
                && is_port(rule.dst_ports, port(36))
                && rule.protocol.is_none_or(|protocol| protocol == frame[23])
        };
        let found = self.rules.iter().position(|rule| decides(&rule))?;
        (self.rules[found].action == RuleAction::Accept).then_some(found as u32)
    }
}

/// This many rules, each of which names its protocol.
fn rules(count: usize, seed: u64) -> Vec<FirewallRule> {
    let mut rules = firewall::generate(RuleSetKind::AccessList, count + count / 4, seed).rules;
    rules.retain(|rule| rule.protocol.is_some());
    rules.truncate(count);
    rules
}

/// A protocol that no rule names.
const ESP: u8 = 50;

/// Frames that match rules, except that every third has another protocol, and some have one arbitrary field.
fn frames(rules: &[FirewallRule], count: usize, seed: u64) -> WeightedFlows {
    let config =
        FirewallConfig { rules: rules.to_vec(), ..firewall::generate(RuleSetKind::AccessList, 1, 1) };
    let mut flows = firewall::flows(&config, count, FlowLocality::NONE, seed, |_| true);
    let mut rng = Rng::new(seed);
    for (n, frame) in flows.packets.iter_mut().enumerate() {
        match n % 6 {
            0 | 3 => frame[23] = ESP,
            1 => frame[26 + rng.below(12) as usize] = rng.next_u32() as u8,
            _ => {}
        }
    }
    flows
}

/// Forms of the fixture: compiler flags, and the place of the protocols.
const FORMS: [(&[&str], bool); 6] = [
    (&[], false),
    (&["-DSTAGED"], false),
    (&["-DPROTOCOLS_IN_ARRAY"], true),
    (&["-DSTAGED", "-DPROTOCOLS_IN_ARRAY"], true),
    (&["-DLOOPS"], false),
    (&["-DLOOPS", "-DSTAGED", "-DPROTOCOLS_IN_ARRAY"], true),
];

/// A frame with a protocol that no rule names needs no lookup of any other field; of the words of sets, only
/// those are compared that contain some rule.
#[test]
fn what_no_rule_is_about_costs_no_lookup() {
    if !testing::require() {
        return;
    }
    for (flags, protocols_in_array) in FORMS {
        let Some(object) = fixtures::read("bitvector", flags) else { return };
        let compiler = variant_compiler(&object, None).expect("prepared");
        let rules = rules(450, 1);
        let tables = Tables { rules: &rules, words: 16, protocols_in_array };
        let mut plane = Offline::new(&compiler, &tables.entries());
        let flows = frames(&rules, 6_000, 1);
        let (profiles, samples) = plane.profile(&flows.packets);
        let mut plan = None;
        let made =
            plane.variant(&profiles, Tier::Thorough, |made| plan = Some(made.clone())).expect("a variant");
        let plan = plan.expect("planned");
        let [test] = &plan.tests[..] else { panic!("{flags:?}: one test: {:?}", plan.tests) };
        assert_eq!((test.at.0, &test.values[..]), (0, &[ICMP, TCP, UDP].map(u64::from)[..]), "{flags:?}");
        assert_eq!(test.otherwise, protocols_in_array.then(|| vec![0; 128]), "{flags:?}");
        for map in ["sources", "destinations", "destination_ports"] {
            let is_zero = |f: &&millstream_specializer::transform::FieldConstant| {
                compiler.declaration(f.map).name == map && f.offset <= 64 && f.bytes.len() >= 64
            };
            let field = plan.fields.iter().find(is_zero);
            let field = field.unwrap_or_else(|| panic!("{flags:?} {map}: {:?}", plan.fields));
            assert!(field.bytes.iter().all(|byte| *byte == 0), "{field:?}");
        }
        let judged = plane.compare(&made, &samples, true, 20_000).expect("compared");
        assert!(matches!(judged.finding, ReplayVerdict::Same(_)) && judged.packets >= 20_000, "{judged:?}");
        let other: Vec<Vec<u8>> = flows.packets.iter().filter(|f| f[23] == ESP).take(500).cloned().collect();
        let [whole, short] = plane.executed(&made, &flows.packets[..500]);
        // Sets of 16 words, of which 8 have rules; the overhead of loops over words is gone.
        assert!(short < 200.0, "{flags:?}: {short} of {whole} instructions");
        let [before, after] = plane.map_calls(&made, &other);
        // Except the action, if the rule is not known.
        assert!(before >= 3.0 && after <= 1.0, "{flags:?}: {after} of {before} lookups");
    }
}

/// Whatever the rules are.
#[test]
fn specialised_classifiers_are_the_originals() {
    if !testing::require() {
        return;
    }
    for (n, (flags, protocols_in_array)) in FORMS.into_iter().enumerate() {
        let Some(object) = fixtures::read("bitvector", flags) else { return };
        let compiler = variant_compiler(&object, None).expect("prepared");
        // The stack frame has no room for all intermediate values between two fields if sets have many words.
        let most = if flags.contains(&"-DSTAGED") { 450 } else { 1000 };
        for (count, seed) in [(3, 1), (40, 2), (450, 3), (most, 4)] {
            let rules = rules(count, seed + n as u64);
            let tables = Tables { rules: &rules, words: 16, protocols_in_array };
            let plane = Offline::new(&compiler, &tables.entries());
            let flows = frames(&rules, 2_000, seed);
            let (profiles, samples) = plane.profile(&flows.packets);
            for tier in [Tier::Quick, Tier::Thorough] {
                let Some(made) = plane.variant(&profiles, tier, |_| ()) else { continue };
                for valid in [true, false] {
                    let judged = plane.compare(&made, &samples, valid, 3_000).expect("compared");
                    assert!(
                        matches!(judged.finding, ReplayVerdict::Same(_)),
                        "{flags:?} {count}: {judged:?}"
                    );
                }
            }
            let wrong = flows.packets.iter().find(|f| answer(&plane.original, f) != tables.accepts(f));
            assert!(wrong.is_none(), "the fixture: {wrong:?}");
        }
    }
}

/// Rules come and go: from the moment at which one is written, every packet is decided by it.
#[test]
fn rules_that_are_written_count_at_once() {
    if !testing::require() {
        return;
    }
    let _alone = alone();
    for (flags, protocols_in_array) in [FORMS[0], FORMS[3], FORMS[4]] {
        let Some(object) = fixtures::read("bitvector", flags) else { return };
        let rig = TestRig::new(RigConfig::default()).expect("a rig");
        let mut rules = rules(450, 1);
        let flows = frames(&rules, 1_500, 1);
        rig.load_traffic(&TrafficSequence::new(&flows, &flows.sequence(1, 1 << 13))).expect("traffic");
        let compiler = variant_compiler(&object, None).expect("prepared");
        let config = router::generate(1, &[1], 1, 1);
        let it = Routed { rig: &rig, config: &config, flows: &flows, rate: Some(200_000.0) };
        let act = || {
            let mut live = LiveSession::load(&compiler, settings("bitvector", Duration::from_millis(200)))
                .expect("loaded");
            let write = |live: &LiveSession<'_>, rules: &[FirewallRule]| {
                for entry in (Tables { rules, words: 16, protocols_in_array }).entries() {
                    let map = live.map(entry.map).expect("the map");
                    map.update(&entry.key, &entry.value, UpdateMode::Any).expect("an entry");
                }
            };
            let check = |live: &LiveSession<'_>, rules: &[FirewallRule]| {
                let tables = Tables { rules, words: 16, protocols_in_array };
                let wrong = flows.packets.iter().find(|f| answer(live.current(), f) != tables.accepts(f));
                assert!(wrong.is_none(), "{flags:?}: {wrong:?}");
            };
            write(&live, &rules);
            live.attach(&[rig.test_port()]).expect("attached");
            run_until(&it, &mut live, |r| generation(r).is_some());
            check(&live, &rules);
            for n in 0..3 {
                // A rule about what none was about, beyond the words that others are in; then about
                // everything.
                let last = rules.len();
                let mut rule = rules[n];
                rule.protocol = if n == 2 { Some(1) } else { Some(ESP) };
                if n == 1 {
                    (rule.src_ports, rule.dst_ports) = (PortRange::ANY, PortRange::ANY);
                    (rule.src, rule.dst) = (Ipv4Prefix::new(0.into(), 0), Ipv4Prefix::new(0.into(), 0));
                }
                rule.action = RuleAction::Accept;
                rules.extend(vec![
                    FirewallRule { action: RuleAction::Drop, ..rules[0] };
                    530 * usize::from(last < 500)
                ]);
                rules.push(rule);
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
