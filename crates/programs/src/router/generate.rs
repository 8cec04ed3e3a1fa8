//! Tables of real size, and traffic over them.

use std::collections::HashSet;
use std::net::Ipv4Addr;

use millstream_rng::Rng;

use super::{NextHop, Route, RouterConfig, RouterModel, RouterOutcome};
use crate::packet::{FiveTuple, TCP, UDP};
use crate::traffic::{FlowLocality, WeightedFlows};
use crate::{Ipv4Prefix, packet::MacAddress};

/// Numbers of prefixes by length in a backbone router of a campus, of 1,613: the shape of a real table of the
/// size that we generate (Stanford's `boza`; the default route apart).
const LENGTHS: [(u8, u32); 21] = [
    (4, 2),
    (8, 3),
    (12, 2),
    (13, 2),
    (14, 3),
    (16, 10),
    (17, 1),
    (18, 2),
    (19, 1),
    (20, 16),
    (21, 13),
    (22, 48),
    (23, 91),
    (24, 356),
    (25, 67),
    (26, 102),
    (27, 133),
    (28, 112),
    (29, 56),
    (30, 5),
    (32, 588),
];

/// Percentage of the longer prefixes that lie inside an existing one.
const NESTED_PERCENT: u64 = 60;

/// A locally administered link-layer address: ours on a port, or a neighbour's, distinguished by their last
/// bytes.
fn mac(kind: u8, port: u32, n: u8) -> MacAddress {
    let [_, _, a, b] = port.to_be_bytes();
    [2, kind, 0, a, b, n]
}

/// So many next hops on each port.
pub fn next_hops(ports: &[u32], hops_per_port: u8) -> Vec<NextHop> {
    let on = |port: u32| {
        (0..hops_per_port).map(move |n| NextHop::Forward {
            dst_mac: mac(2, port, n),
            src_mac: mac(1, port, 0),
            port,
            mtu: 1500,
        })
    };
    ports.iter().flat_map(|&port| on(port)).collect()
}

/// A table of `routes` distinct prefixes, the default route among them, over `hops_per_port` next hops on
/// each port.
///
/// The same arguments give the same table.
pub fn generate(routes: usize, ports: &[u32], hops_per_port: u8, seed: u64) -> RouterConfig {
    let next_hops = next_hops(ports, hops_per_port);
    let mut rng = Rng::new(seed);
    let mut seen = HashSet::new();
    let mut table: Vec<Route> = Vec::with_capacity(routes);
    let mut next = Ipv4Prefix::new(Ipv4Addr::UNSPECIFIED, 0);
    while table.len() < routes && !next_hops.is_empty() {
        if seen.insert(next) {
            table.push(Route { prefix: next, next_hop: rng.below(next_hops.len() as u64) as u32 });
        }
        next = random_prefix(&table, &mut rng);
    }
    RouterConfig { next_hops, routes: table }
}

/// A prefix of unicast space, often inside one of the table.
fn random_prefix(table: &[Route], rng: &mut Rng) -> Ipv4Prefix {
    loop {
        let len = rng.weighted(&LENGTHS).copied().unwrap_or(24);
        let mut address = Ipv4Addr::from(rng.next_u32());
        if len > 20 && rng.below(100) < NESTED_PERCENT {
            let outer = table[rng.below(table.len() as u64) as usize].prefix;
            if (8..len).contains(&outer.length()) {
                address = outer.nth(rng.next_u32());
            }
        }
        let prefix = Ipv4Prefix::new(address, len);
        if is_unicast(prefix.nth(0)) && is_unicast(prefix.nth(u32::MAX)) {
            return prefix;
        }
    }
}

/// True for an address that a router forwards to: not 0/8, 127/8, nor 224/3.
fn is_unicast(address: Ipv4Addr) -> bool {
    !matches!(address.octets()[0], 0 | 127 | 224..)
}

/// `count` flows to addresses that the table forwards, in TCP and UDP, 64 bytes each.
///
/// As ClassBench draws headers from filters: a route is drawn evenly, then an address inside it. Where a
/// longer prefix covers the address and does not forward, another address is drawn; a table that forwards
/// nothing has no flows.
pub fn flows(config: &RouterConfig, count: usize, locality: FlowLocality, seed: u64) -> WeightedFlows {
    let mut rng = Rng::new(seed);
    let model = RouterModel::new(config);
    let mut packets = Vec::with_capacity(count);
    let mut failures = 0;
    while packets.len() < count && failures < 1000 && !config.routes.is_empty() {
        let route = config.routes[rng.below(config.routes.len() as u64) as usize];
        let frame = random_flow(route.prefix, &mut rng).frame().to_bytes();
        if matches!(model.process(&frame), RouterOutcome::Forward { .. }) {
            packets.push(frame);
            failures = 0;
        } else {
            failures += 1;
        }
    }
    WeightedFlows::new(packets, locality, rng.next_u64())
}

/// A flow to somewhere in the prefix, from anywhere.
fn random_flow(prefix: Ipv4Prefix, rng: &mut Rng) -> FiveTuple {
    let src = loop {
        let src = Ipv4Addr::from(rng.next_u32());
        if is_unicast(src) {
            break src;
        }
    };
    FiveTuple {
        src,
        dst: prefix.nth(rng.next_u32()),
        src_port: 1024 + rng.below(64_512) as u16,
        dst_port: [80, 443, 53, 8080][rng.below(4) as usize],
        protocol: [TCP, UDP][rng.below(2) as usize],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_the_size_and_shape_asked() {
        for size in [20, 500, 2592] {
            let config = generate(size, &[3, 4], 8, 1);
            let prefixes: HashSet<Ipv4Prefix> = config.routes.iter().map(|r| r.prefix).collect();
            assert_eq!(prefixes.len(), size);
            assert!(config.entries().is_ok());
        }
        let config = generate(2592, &[3, 4], 8, 1);
        let share = |len| config.routes.iter().filter(|r| r.prefix.length() == len).count();
        assert!((450..700).contains(&share(24)), "/24: {}", share(24));
        assert!((800..1100).contains(&share(32)), "/32: {}", share(32));
        assert_eq!(config, generate(2592, &[3, 4], 8, 1));
        assert_ne!(config, generate(2592, &[3, 4], 8, 2));
    }

    #[test]
    fn every_flow_is_forwarded_and_most_routes_are_hit() {
        let config = generate(500, &[3], 16, 1);
        let flows = flows(&config, 10_000, FlowLocality::NONE, 2);
        assert_eq!(flows.packets.len(), 10_000);
        let model = RouterModel::new(&config);
        let hit: HashSet<_> = flows.packets.iter().filter_map(|p| model.route_of(p)).collect();
        assert!(hit.len() > 450, "{} of 500 routes are hit", hit.len());
        assert!(flows.packets.iter().all(|p| p.len() == 64));
    }

    #[test]
    fn a_table_that_forwards_nothing_has_no_flows() {
        let config = RouterConfig {
            next_hops: vec![NextHop::Stack],
            routes: vec![Route { prefix: "10.0.0.0/8".parse().unwrap(), next_hop: 0 }],
        };
        assert!(flows(&config, 10, FlowLocality::NONE, 1).packets.is_empty());
    }
}
