//! NATs with many connections, and traffic through them.

use std::collections::HashSet;
use std::net::Ipv4Addr;

use millstream_rng::Rng;

use super::{ConnectionTimeouts, NatConfig, NatExternalAddress, NatMapping, NatRule, NatSide};
use crate::packet::{EthernetFrame, FiveTuple, ICMP, MacAddress, TCP, TransportHeader, UDP};
use crate::traffic::{FlowLocality, WeightedFlows};
use crate::{Ipv4Prefix, MapEntry};

/// Connections of each protocol, of a hundred; the rest are ICMP queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolMix {
    /// TCP.
    pub tcp: u8,
    /// UDP.
    pub udp: u8,
}

impl Default for ProtocolMix {
    /// An access network's: most is TCP, a good part QUIC and DNS.
    fn default() -> Self {
        Self { tcp: 70, udp: 28 }
    }
}

/// The router inside, from which the first packets come, and our address towards it.
const INSIDE_MACS: [MacAddress; 2] = [[2, 2, 0, 0, 0, 1], [2, 1, 0, 0, 0, 1]];

/// A NAT between two interfaces, for the sources 10.0.0.0/8, with `externals` addresses from 203.0.113.0 on
/// (at most 256), each with the ports from 1024 up.
pub fn generate(inside: u32, outside: u32, externals: u8, seed: u64) -> NatConfig {
    let external = |n: u8| NatExternalAddress {
        address: Ipv4Addr::new(203, 0, 113, n),
        port_min: 1024,
        port_max: 65535,
        port: outside,
        dst_mac: [2, 2, 0, 0, 0, 2],
        src_mac: [2, 1, 0, 0, 0, 2],
    };
    let sources = Ipv4Prefix::new(Ipv4Addr::new(10, 0, 0, 0), 8);
    NatConfig {
        ports: vec![(inside, NatSide::Inside), (outside, NatSide::Outside)],
        rules: vec![NatRule { sources, first: 0, count: u32::from(externals) }],
        externals: (0..externals).map(external).collect(),
        exempt: vec![sources],
        timeouts: ConnectionTimeouts::default(),
        secret: Rng::new(seed).next_u64(),
    }
}

/// Connections and their packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatTraffic {
    /// One connection per flow; not in the table until its entries are written there.
    pub mappings: Vec<NatMapping>,
    /// Their packets from inside.
    pub outbound: WeightedFlows,
    /// Their packets from outside.
    pub inbound: WeightedFlows,
}

impl NatTraffic {
    /// The entries of all connections, last seen at `seen` (`CLOCK_MONOTONIC`, ns).
    pub fn entries(&self, seen: u64) -> Vec<MapEntry> {
        self.mappings.iter().flat_map(|m| m.entries(seen)).collect()
    }
}

/// `count` connections from hosts inside to hosts outside, in this mix, and a packet of each in both
/// directions.
///
/// Ports outside are handed out one after the other per external address. There are fewer connections where
/// the configuration has no room for more.
pub fn traffic(
    config: &NatConfig,
    count: usize,
    mix: ProtocolMix,
    locality: FlowLocality,
    seed: u64,
) -> NatTraffic {
    let mut rng = Rng::new(seed);
    let side = |side| config.ports.iter().find(|(_, s)| *s == side).map_or(0, |&(port, _)| port);
    let mut seen = HashSet::new();
    let mut mappings = Vec::with_capacity(count);
    let room: usize = config.externals.iter().map(|e| usize::from(e.port_max - e.port_min) + 1).sum();
    while mappings.len() < count.min(room) {
        let inside = random_connection(mix, &mut rng);
        if !seen.insert(inside) {
            continue;
        }
        let n = mappings.len();
        let index = n % config.externals.len();
        let Some((external, port)) = free_port(config, index, n / config.externals.len()) else { break };
        mappings.push(NatMapping {
            inside,
            address: external.address,
            port,
            external: index as u32,
            outside_port: external.port,
            inside_port: side(NatSide::Inside),
            macs: INSIDE_MACS,
        });
    }
    let weights_seed = rng.next_u64();
    let flows = |frame: fn(&NatMapping) -> EthernetFrame| {
        WeightedFlows::new(mappings.iter().map(|m| frame(m).to_bytes()).collect(), locality, weights_seed)
    };
    NatTraffic { outbound: flows(outbound_frame), inbound: flows(inbound_frame), mappings }
}

/// The `n`-th port of an external address.
fn free_port(config: &NatConfig, index: usize, n: usize) -> Option<(&NatExternalAddress, u16)> {
    let external = config.externals.get(index)?;
    let port = u16::try_from(usize::from(external.port_min) + n).ok()?;
    (port <= external.port_max).then_some((external, port))
}

fn random_connection(mix: ProtocolMix, rng: &mut Rng) -> FiveTuple {
    let at = rng.below(100) as u8;
    let protocol = match at {
        _ if at < mix.tcp => TCP,
        _ if at < mix.tcp.saturating_add(mix.udp) => UDP,
        _ => ICMP,
    };
    let [a, b] = [0, 1].map(|_| rng.next_u32());
    FiveTuple {
        // A few thousand hosts inside, anyone in a part of unicast space outside.
        src: Ipv4Addr::from(0x0a00_0000 | a & 0xfff),
        dst: Ipv4Addr::from(0x1400_0000 | b & 0x3fff_ffff),
        src_port: 1024 + rng.below(64_512) as u16,
        dst_port: if protocol == ICMP { 0 } else { [443, 80, 53, 22][rng.below(4) as usize] },
        protocol,
    }
}

fn outbound_frame(mapping: &NatMapping) -> EthernetFrame {
    let [host, us] = mapping.macs;
    EthernetFrame { dst_mac: us, src_mac: host, ..mapping.inside.frame() }
}

fn inbound_frame(mapping: &NatMapping) -> EthernetFrame {
    let t = &mapping.inside;
    let transport = match t.protocol {
        TCP => TransportHeader::Tcp { src: t.dst_port, dst: mapping.port, flags: 0x10 },
        UDP => TransportHeader::Udp { src: t.dst_port, dst: mapping.port },
        _ => TransportHeader::Echo { reply: true, id: mapping.port },
    };
    EthernetFrame { src: t.dst, dst: mapping.address, transport, ..EthernetFrame::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_distinct_both_ways_and_mixed_as_asked() {
        let config = generate(3, 4, 2, 1);
        let traffic = traffic(&config, 50_000, ProtocolMix::default(), FlowLocality::HIGH, 2);
        assert_eq!(traffic.mappings.len(), 50_000);
        let keys: HashSet<_> = traffic.entries(0).into_iter().map(|e| e.key).collect();
        assert_eq!(keys.len(), 100_000);
        let tcp = traffic.mappings.iter().filter(|m| m.inside.protocol == TCP).count();
        assert!((34_000..36_000).contains(&tcp), "{tcp} of 50,000 are TCP");
        assert_eq!(traffic.outbound.weights, traffic.inbound.weights);
        assert!(traffic.outbound.packets.iter().chain(&traffic.inbound.packets).all(|p| p.len() == 64));
    }

    #[test]
    fn no_more_connections_than_ports() {
        let mut config = generate(3, 4, 1, 1);
        config.externals[0].port_max = 1033;
        assert_eq!(traffic(&config, 100, ProtocolMix::default(), FlowLocality::NONE, 2).mappings.len(), 10);
    }
}
