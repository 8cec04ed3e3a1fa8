//! The firewall in the kernel against its model: verdicts, and counters of rules.

use std::collections::HashMap;

use crate::rig::{Rig, Verdict};
use millstream_programs::FIREWALL;
use millstream_programs::firewall::{
    self, AcceptTarget, DEFAULT_RULE, FirewallConfig, FirewallModel, FirewallStats, FragmentHandling,
    RuleAction, RuleSetKind, flows, generate,
};
use millstream_programs::packet::{EthernetFrame, TransportHeader};
use millstream_programs::traffic::FlowLocality;
use millstream_rng::Rng;

fn expected(verdict: firewall::FirewallXdpVerdict) -> Verdict {
    match verdict {
        firewall::FirewallXdpVerdict::Drop => Verdict::Drop,
        firewall::FirewallXdpVerdict::Pass => Verdict::Pass,
        firewall::FirewallXdpVerdict::Transmit => Verdict::Tx,
        firewall::FirewallXdpVerdict::Redirect => Verdict::Redirect,
    }
}

/// Runs all frames, and compares each verdict, and in the end the counters of all rules.
fn compare(config: &FirewallConfig, frames: &[Vec<u8>]) {
    let Some(rig) = Rig::new(&FIREWALL, &config.entries().unwrap()) else { return };
    let model = FirewallModel::new(config);
    let mut counted: HashMap<u32, [u64; 2]> = HashMap::new();
    let mut actions: HashMap<Option<RuleAction>, u64> = HashMap::new();
    for frame in frames {
        let outcome = model.process(frame);
        let (verdict, after) = rig.run(frame);
        assert_eq!(verdict, expected(outcome.verdict), "{outcome:?} for {frame:02x?}");
        assert_eq!(&after, frame, "a filter changes nothing");
        if let Some(rule) = outcome.rule {
            let [packets, bytes] = counted.entry(rule).or_default();
            *packets += 1;
            *bytes += frame.len() as u64;
        }
        *actions.entry(outcome.action).or_default() += 1;
    }
    for rule in (0..config.rules.len() as u32).chain([DEFAULT_RULE]) {
        let counted = counted.get(&rule).copied().unwrap_or_default();
        assert_eq!(rig.sums("counters", rule), counted, "counters of rule {rule}");
    }
    let words: Vec<u8> = rig.sums("stats", 0).iter().flat_map(|word| word.to_ne_bytes()).collect();
    let stats = FirewallStats::decode(&words).unwrap();
    let count = |action| actions.get(&action).copied().unwrap_or(0);
    assert_eq!(stats.received, frames.len() as u64);
    assert_eq!(stats.accepted, count(Some(RuleAction::Accept)));
    assert_eq!(stats.dropped, count(Some(RuleAction::Drop)));
    assert_eq!(stats.rejected, count(Some(RuleAction::Reject)));
}

/// Traffic of the rules, and the same with one thing wrong or unusual in each frame.
fn frames(config: &FirewallConfig, count: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(seed);
    let mut frames = flows(config, count, FlowLocality::NONE, seed, |_| true).packets;
    let strange: Vec<Vec<u8>> = frames.iter().map(|frame| disturb(frame.clone(), &mut rng)).collect();
    frames.extend(strange);
    frames
}

fn disturb(mut frame: Vec<u8>, rng: &mut Rng) -> Vec<u8> {
    match rng.below(7) {
        0 => frame.truncate(14 + rng.below(30) as usize),
        1 => tag(&mut frame, &[0x8100]),
        2 => tag(&mut frame, &[0x88a8, 0x8100]),
        3 => tag(&mut frame, &[0x8100, 0x8100, 0x8100]),
        4 => {
            let fragment = [0x2000, 0x2001, 0x0001, 0x00b9, 0x4000, 0x20ff][rng.below(6) as usize] as u16;
            frame[20..22].copy_from_slice(&fragment.to_be_bytes());
        }
        5 => frame[14] = 0x40 | rng.below(16) as u8,
        _ => {
            let at = 12 + rng.below(26) as usize;
            frame[at] = rng.next_u32() as u8;
        }
    }
    frame
}

fn tag(frame: &mut Vec<u8>, ether_types: &[u16]) {
    for ether_type in ether_types.iter().rev() {
        let [high, low] = ether_type.to_be_bytes();
        frame.splice(12..12, [high, low, 0, 7]);
    }
}

#[test]
fn access_lists_and_firewalls_of_all_sizes_filter_as_the_rules_say() {
    for (flavour, count, packets) in [
        (RuleSetKind::AccessList, 450, 20_000),
        (RuleSetKind::Firewall, 450, 20_000),
        (RuleSetKind::AccessList, 4500, 5_000),
        (RuleSetKind::Firewall, 4500, 5_000),
        (RuleSetKind::Firewall, 8192, 2_000),
    ] {
        let config = generate(flavour, count, 1);
        compare(&config, &frames(&config, packets, 2));
    }
}

#[test]
fn every_policy_does_what_it_says() {
    let mut config = generate(RuleSetKind::Firewall, 64, 5);
    for forward in [AcceptTarget::Stack, AcceptTarget::Hairpin, AcceptTarget::Ports(vec![(1, 1)])] {
        for fragments in [FragmentHandling::Drop, FragmentHandling::Accept, FragmentHandling::Classify] {
            for policy in [RuleAction::Drop, RuleAction::Accept, RuleAction::Reject] {
                (config.forward, config.fragments) = (forward.clone(), fragments);
                (config.default, config.non_ipv4) = (policy, policy);
                compare(&config, &frames(&config, 300, 6));
            }
        }
    }
}

#[test]
fn without_rules_the_default_counts() {
    let config = FirewallConfig { default: RuleAction::Accept, ..FirewallConfig::default() };
    compare(&config, &[EthernetFrame::default().to_bytes()]);
}

#[test]
fn corner_cases() {
    let mut config = FirewallConfig {
        default: RuleAction::Reject,
        fragments: FragmentHandling::Classify,
        ..FirewallConfig::default()
    };
    config
        .read_rules(
            "accept tcp 10.0.0.0/8 0-0 192.0.2.1/32 65535\n\
             drop udp 0.0.0.0/0 any 0.0.0.0/0 1-65535\n\
             accept 132 0.0.0.0/0 any 0.0.0.0/0 any\n\
             accept icmp 10.1.0.0/16 any 0.0.0.0/0 any\n\
             drop any 10.1.2.3/32 any 0.0.0.0/0 any\n",
        )
        .unwrap();
    let tcp = EthernetFrame {
        src: [10, 1, 2, 3].into(),
        dst: [192, 0, 2, 1].into(),
        transport: TransportHeader::Tcp { src: 0, dst: 65535, flags: 2 },
        ..EthernetFrame::default()
    };
    let raw = |protocol, bytes: &[u8]| TransportHeader::Raw { protocol, bytes: bytes.to_vec() };
    let udp = |src, dst| TransportHeader::Udp { src, dst };
    let with = |transport| EthernetFrame { transport, ..tcp.clone() }.to_bytes();
    let mut arp = tcp.to_bytes();
    arp[12..14].copy_from_slice(&[8, 6]);
    let mut ipv6 = tcp.to_bytes();
    ipv6[12..14].copy_from_slice(&[0x86, 0xdd]);
    compare(
        &config,
        &[
            tcp.to_bytes(),
            EthernetFrame { options: vec![1; 40], length: 120, ..tcp.clone() }.to_bytes(),
            EthernetFrame { fragment: 0x2000, ..tcp.clone() }.to_bytes(),
            EthernetFrame { fragment: 0x0010, ..tcp.clone() }.to_bytes(),
            with(udp(1, 0)),
            with(udp(1, 1)),
            with(TransportHeader::Echo { reply: true, id: 0 }),
            with(raw(132, &[0, 1, 0, 2])),
            with(raw(132, &[0, 1, 0])),
            with(raw(6, &[])),
            with(raw(47, &[0; 8])),
            arp,
            ipv6,
        ],
    );
}
