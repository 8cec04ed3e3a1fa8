//! Rule sets of real size, and traffic through them.
//!
//! The shapes are those that ClassBench (Taylor and Turner, INFOCOM 2005) found in filter sets of the field:
//! few combinations of protocol and ports make up most of a set; prefix lengths of source and destination go
//! together by kind of set; addresses are drawn from few networks, so that prefixes nest. Access lists name
//! both ends; firewalls leave one of them, or the ports, open. The numbers are ours.

use std::collections::HashSet;
use std::net::Ipv4Addr;

use millstream_rng::Rng;

use super::{
    AcceptTarget, FirewallConfig, FirewallModel, FirewallOutcome, FirewallRule, FragmentHandling, PortRange,
    RuleAction,
};
use crate::Ipv4Prefix;
use crate::packet::{FiveTuple, ICMP, TCP, UDP};
use crate::traffic::{FlowLocality, WeightedFlows};

/// The kind of a rule set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleSetKind {
    /// A router's access list: long prefixes on both sides, single destination ports.
    AccessList,
    /// A firewall: one side often open, ranges of ports on both.
    Firewall,
}

/// Ports of a rule, by kind.
#[derive(Clone, Copy)]
enum PortClass {
    Any,
    /// 1024 and above.
    High,
    /// Below 1024.
    Low,
    /// One port of a known service.
    Service,
    /// A range of any size.
    Range,
    /// One port above 1023.
    Single,
}

/// A protocol with kinds of source and destination ports.
type ProtocolPorts = (Option<u8>, PortClass, PortClass);
/// Lengths of source and destination prefixes, drawn from these inclusive ranges.
type PrefixLengthRanges = ((u8, u8), (u8, u8));

/// Choices from which a kind of rule set is made, each with its weight.
struct RuleSetProfile {
    applications: &'static [(ProtocolPorts, u32)],
    lengths: &'static [(PrefixLengthRanges, u32)],
    actions: &'static [(RuleAction, u32)],
    /// Networks that addresses are drawn from: one for this many rules.
    rules_per_network: usize,
}

const ACCESS_LIST: RuleSetProfile = RuleSetProfile {
    applications: &[
        ((Some(TCP), PortClass::Any, PortClass::Service), 46),
        ((Some(TCP), PortClass::Any, PortClass::Single), 17),
        ((Some(TCP), PortClass::Any, PortClass::Any), 6),
        ((Some(TCP), PortClass::Any, PortClass::High), 4),
        ((Some(TCP), PortClass::Any, PortClass::Range), 4),
        ((Some(UDP), PortClass::Any, PortClass::Service), 9),
        ((Some(UDP), PortClass::Any, PortClass::Single), 4),
        ((Some(ICMP), PortClass::Any, PortClass::Any), 4),
        ((None, PortClass::Any, PortClass::Any), 6),
    ],
    lengths: &[
        (((28, 32), (30, 32)), 38),
        (((21, 27), (28, 32)), 26),
        (((16, 24), (24, 32)), 20),
        (((0, 0), (24, 32)), 12),
        (((8, 16), (16, 24)), 3),
        (((16, 32), (0, 0)), 1),
    ],
    actions: &[(RuleAction::Accept, 80), (RuleAction::Drop, 17), (RuleAction::Reject, 3)],
    rules_per_network: 24,
};

const FIREWALL: RuleSetProfile = RuleSetProfile {
    applications: &[
        ((Some(TCP), PortClass::Any, PortClass::Service), 24),
        ((Some(TCP), PortClass::Any, PortClass::Single), 12),
        ((Some(TCP), PortClass::Service, PortClass::Any), 7),
        ((Some(TCP), PortClass::High, PortClass::Service), 9),
        ((Some(TCP), PortClass::High, PortClass::High), 5),
        ((Some(TCP), PortClass::Any, PortClass::Range), 6),
        ((Some(UDP), PortClass::Any, PortClass::Service), 9),
        ((Some(UDP), PortClass::Low, PortClass::Range), 4),
        ((Some(UDP), PortClass::High, PortClass::Single), 5),
        ((Some(ICMP), PortClass::Any, PortClass::Any), 6),
        ((None, PortClass::Any, PortClass::Any), 13),
    ],
    lengths: &[
        (((0, 0), (28, 32)), 34),
        (((24, 32), (0, 0)), 20),
        (((16, 32), (24, 32)), 22),
        (((8, 24), (28, 32)), 14),
        (((28, 32), (8, 24)), 9),
        (((0, 0), (16, 24)), 1),
    ],
    actions: &[(RuleAction::Accept, 65), (RuleAction::Drop, 30), (RuleAction::Reject, 5)],
    rules_per_network: 12,
};

const SERVICES: [(u16, u32); 16] = [
    (80, 20),
    (443, 20),
    (53, 10),
    (25, 8),
    (22, 8),
    (123, 5),
    (21, 4),
    (110, 3),
    (143, 3),
    (161, 3),
    (389, 3),
    (445, 3),
    (993, 3),
    (3306, 3),
    (3389, 2),
    (8080, 2),
];

/// A set of `count` different rules, more special ones first; accepted packets turn around, all others are
/// dropped.
///
/// The same arguments give the same set.
pub fn generate(flavour: RuleSetKind, count: usize, seed: u64) -> FirewallConfig {
    let profile = match flavour {
        RuleSetKind::AccessList => ACCESS_LIST,
        RuleSetKind::Firewall => FIREWALL,
    };
    let mut rng = Rng::new(seed);
    let networks: Vec<Ipv4Prefix> = (0..count.div_ceil(profile.rules_per_network))
        .map(|_| Ipv4Prefix::new(unicast(&mut rng), [16, 18, 20][rng.below(3) as usize]))
        .collect();
    let mut seen = HashSet::new();
    let mut rules = Vec::with_capacity(count);
    while rules.len() < count {
        let rule = random_rule(&profile, &networks, &mut rng);
        if seen.insert((rule.src, rule.dst, rule.src_ports, rule.dst_ports, rule.protocol)) {
            rules.push(rule);
        }
    }
    rules.sort_by_key(scope);
    FirewallConfig {
        rules,
        default: RuleAction::Drop,
        forward: AcceptTarget::Hairpin,
        fragments: FragmentHandling::Classify,
        non_ipv4: RuleAction::Drop,
    }
}

/// Bits that a rule leaves open, in steps of 16, so that sets stay shuffled within a step.
fn scope(rule: &FirewallRule) -> u32 {
    let ports = |range: PortRange| range.size().ilog2();
    let addresses = 64 - u32::from(rule.src.length()) - u32::from(rule.dst.length());
    let protocol = if rule.protocol.is_none() { 8 } else { 0 };
    (addresses + ports(rule.src_ports) + ports(rule.dst_ports) + protocol) / 16
}

fn random_rule(profile: &RuleSetProfile, networks: &[Ipv4Prefix], rng: &mut Rng) -> FirewallRule {
    let &(protocol, src_ports, dst_ports) =
        rng.weighted(profile.applications).unwrap_or(&(None, PortClass::Any, PortClass::Any));
    let &(src, dst) = rng.weighted(profile.lengths).unwrap_or(&((0, 0), (0, 0)));
    FirewallRule {
        src: random_prefix(src, networks, rng),
        dst: random_prefix(dst, networks, rng),
        src_ports: random_ports(src_ports, rng),
        dst_ports: random_ports(dst_ports, rng),
        protocol,
        action: rng.weighted(profile.actions).copied().unwrap_or_default(),
    }
}

/// A prefix with a length of the range, in one of the networks. Networks early in the list are drawn more
/// often, and so are their first subnets: the smaller of two draws is taken.
fn random_prefix((shortest, longest): (u8, u8), networks: &[Ipv4Prefix], rng: &mut Rng) -> Ipv4Prefix {
    let length = shortest + rng.below(u64::from(longest - shortest) + 1) as u8;
    let network = networks[skewed(networks.len() as u64, rng) as usize];
    let subnet = (skewed(16, rng) as u32) << (32 - u32::from(network.length()) - 4);
    let host = rng.next_u32() & (u32::MAX >> (network.length() + 4));
    Ipv4Prefix::new(network.nth(subnet | host), length)
}

fn skewed(bound: u64, rng: &mut Rng) -> u64 {
    rng.below(bound).min(rng.below(bound))
}

fn random_ports(kind: PortClass, rng: &mut Rng) -> PortRange {
    match kind {
        PortClass::Any => PortRange::ANY,
        PortClass::High => PortRange { first: 1024, last: u16::MAX },
        PortClass::Low => PortRange { first: 0, last: 1023 },
        PortClass::Service => PortRange::one(rng.weighted(&SERVICES).copied().unwrap_or(80)),
        PortClass::Single => PortRange::one(1024 + skewed(8192, rng) as u16),
        PortClass::Range => {
            let first = 1024 + 16 * skewed(2048, rng) as u16;
            PortRange { first, last: first + ((1u16 << (1 + rng.below(10))) - 1) }
        }
    }
}

fn unicast(rng: &mut Rng) -> Ipv4Addr {
    let [_, b, c, d] = rng.next_u32().to_be_bytes();
    Ipv4Addr::new(1 + rng.below(126) as u8, b, c, d)
}

/// `count` flows of 64-byte packets, each to a rule drawn evenly, its header at random inside it, as
/// ClassBench draws headers from filters. Only flows whose outcome `keep` likes are taken; if it likes none
/// of a thousand in a row, there are as few flows as there are.
pub fn flows(
    config: &FirewallConfig,
    count: usize,
    locality: FlowLocality,
    seed: u64,
    keep: impl Fn(&FirewallOutcome) -> bool,
) -> WeightedFlows {
    let mut rng = Rng::new(seed);
    let model = FirewallModel::new(config);
    let mut packets = Vec::with_capacity(count);
    let mut failures = 0;
    while packets.len() < count && failures < 1000 && !config.rules.is_empty() {
        let rule = config.rules[rng.below(config.rules.len() as u64) as usize];
        let frame = random_header(&rule, &mut rng).frame().to_bytes();
        if keep(&model.process(&frame)) {
            packets.push(frame);
            failures = 0;
        } else {
            failures += 1;
        }
    }
    WeightedFlows::new(packets, locality, rng.next_u64())
}

fn random_header(rule: &FirewallRule, rng: &mut Rng) -> FiveTuple {
    let port = |range: PortRange, rng: &mut Rng| range.first + rng.below(range.size().into()) as u16;
    FiveTuple {
        src: rule.src.nth(rng.next_u32()),
        dst: rule.dst.nth(rng.next_u32()),
        src_port: port(rule.src_ports, rng),
        dst_port: port(rule.dst_ports, rng),
        protocol: rule.protocol.unwrap_or([TCP, UDP][rng.below(2) as usize]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_have_the_size_and_shape_asked() {
        for count in [450, 4500] {
            let access = generate(RuleSetKind::AccessList, count, 1);
            let firewall = generate(RuleSetKind::Firewall, count, 1);
            for config in [&access, &firewall] {
                let distinct: HashSet<String> = config.rules.iter().map(|r| r.to_string()).collect();
                assert_eq!(distinct.len(), count);
            }
            let open = |config: &FirewallConfig| {
                config.rules.iter().filter(|r| r.src.length() == 0 || r.dst.length() == 0).count()
            };
            assert!(open(&access) * 5 < count, "{}", open(&access));
            assert!(open(&firewall) * 5 > 2 * count, "{}", open(&firewall));
            assert_eq!(access, generate(RuleSetKind::AccessList, count, 1));
            assert_ne!(access, generate(RuleSetKind::AccessList, count, 2));
        }
    }

    #[test]
    fn flows_hit_most_rules() {
        let config = generate(RuleSetKind::AccessList, 450, 1);
        let flows = flows(&config, 10_000, FlowLocality::NONE, 2, |_| true);
        let model = FirewallModel::new(&config);
        let hit: HashSet<u32> = flows.packets.iter().filter_map(|p| model.process(p).rule).collect();
        assert_eq!(flows.packets.len(), 10_000);
        assert!(hit.len() > 400, "{} of 450 rules are hit", hit.len());
    }

    #[test]
    fn a_wish_that_cannot_be_met_ends() {
        let config = generate(RuleSetKind::Firewall, 20, 1);
        assert!(flows(&config, 10, FlowLocality::NONE, 1, |_| false).packets.is_empty());
    }
}
