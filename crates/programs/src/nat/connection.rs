//! Connections as they stand in the map, and when they end.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use super::{CONNECTIONS, ConnectionTimeouts};
use crate::MapEntry;
use crate::packet::{FiveTuple, ICMP, MacAddress, TCP};

/// FIN of [`NatTranslation::tcp`].
const FIN: u16 = 1;
/// RST of [`NatTranslation::tcp`].
const RST: u16 = 4;
/// ACK of [`NatTranslation::tcp`].
const ACK: u16 = 16;

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum FlowDirection {
    /// From inside.
    Outbound = 0,
    /// From outside.
    Inbound = 1,
}

/// The key: a packet as it arrives. An ICMP query's identifier is our side's port, the other port is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NatFlow {
    /// Addresses, ports and protocol.
    pub tuple: FiveTuple,
    /// Which way it goes.
    pub direction: FlowDirection,
}

/// The value: the translation of packets of the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NatTranslation {
    /// The new address: of the source outbound, of the destination inbound.
    pub address: Ipv4Addr,
    /// The new port beside it.
    pub port: u16,
    /// TCP flags that were seen this way.
    pub tcp: u16,
    /// Summand of the translation for the sum of the IP header, as it stands in memory.
    ip_delta: u16,
    /// The same for the transport.
    transport_delta: u16,
    /// Index of the external address.
    pub external: u32,
    /// The egress interface.
    pub out: u32,
    /// Inbound: destination and source of the frame to the host inside.
    pub macs: [MacAddress; 2],
    /// When a packet was last seen this way, `CLOCK_MONOTONIC` in ns.
    pub seen: u64,
}

impl NatFlow {
    /// As it stands in the map: `struct flow`.
    pub fn encode(&self) -> Vec<u8> {
        let t = &self.tuple;
        let mut key = [t.src.octets(), t.dst.octets()].concat();
        key.extend(t.src_port.to_be_bytes());
        key.extend(t.dst_port.to_be_bytes());
        key.extend([t.protocol, self.direction as u8, 0, 0]);
        key
    }

    /// Reads a key; `None` if it is not one.
    pub fn decode(key: &[u8]) -> Option<Self> {
        let address = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(key.get(at..at + 4)?).ok()?));
        let port = |at: usize| Some(u16::from_be_bytes(key.get(at..at + 2)?.try_into().ok()?));
        Some(Self {
            tuple: FiveTuple {
                src: address(0)?,
                dst: address(4)?,
                src_port: port(8)?,
                dst_port: port(10)?,
                protocol: *key.get(12)?,
            },
            direction: match key.get(13)? {
                0 => FlowDirection::Outbound,
                1 => FlowDirection::Inbound,
                _ => return None,
            },
        })
    }

    /// The other direction of the connection whose value for this flow is `connection`.
    pub fn opposite(&self, connection: &NatTranslation) -> Self {
        let t = &self.tuple;
        let ours = (connection.address, connection.port);
        let (theirs, direction) = match self.direction {
            FlowDirection::Outbound => ((t.dst, t.dst_port), FlowDirection::Inbound),
            FlowDirection::Inbound => ((t.src, t.src_port), FlowDirection::Outbound),
        };
        let (src, dst) = match direction {
            FlowDirection::Inbound => (theirs, ours),
            FlowDirection::Outbound => (ours, theirs),
        };
        let protocol = t.protocol;
        Self {
            tuple: FiveTuple { src: src.0, dst: dst.0, src_port: src.1, dst_port: dst.1, protocol },
            direction,
        }
    }
}

impl NatTranslation {
    /// As it stands in the map: `struct connection`.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = self.address.octets().to_vec();
        value.extend(self.port.to_be_bytes());
        for half in [self.tcp, self.ip_delta, self.transport_delta] {
            value.extend(half.to_ne_bytes());
        }
        value.extend(self.external.to_ne_bytes());
        value.extend(self.out.to_ne_bytes());
        value.extend(self.macs.as_flattened());
        value.extend(self.seen.to_ne_bytes());
        value
    }

    /// Reads a value; `None` if it is too short.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let bytes = |at: usize| <[u8; 4]>::try_from(value.get(at..at + 4)?).ok();
        let half = |at: usize| Some(u16::from_ne_bytes(value.get(at..at + 2)?.try_into().ok()?));
        Some(Self {
            address: bytes(0)?.into(),
            port: u16::from_be(half(4)?),
            tcp: half(6)?,
            ip_delta: half(8)?,
            transport_delta: half(10)?,
            external: u32::from_ne_bytes(bytes(12)?),
            out: u32::from_ne_bytes(bytes(16)?),
            macs: [value.get(20..26)?.try_into().ok()?, value.get(26..32)?.try_into().ok()?],
            seen: u64::from_ne_bytes(value.get(32..40)?.try_into().ok()?),
        })
    }
}

/// A connection as an operator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NatMapping {
    /// Its packets from inside, before translation. For ICMP queries the source port is the identifier.
    pub inside: FiveTuple,
    /// The external address.
    pub address: Ipv4Addr,
    /// The port (or identifier) there.
    pub port: u16,
    /// The index of the external address.
    pub external: u32,
    /// The egress interface outside.
    pub outside_port: u32,
    /// The interface inside.
    pub inside_port: u32,
    /// Destination and source of frames to the host inside.
    pub macs: [MacAddress; 2],
}

impl NatMapping {
    /// The two directions: outbound, then inbound.
    pub fn directions(&self, seen: u64) -> [(NatFlow, NatTranslation); 2] {
        let t = &self.inside;
        let outbound = NatTranslation {
            address: self.address,
            port: self.port,
            tcp: if t.protocol == TCP { ACK } else { 0 },
            ip_delta: fold(u64::from(address_delta(t.src, self.address)) + u64::from(ONE_HOP)),
            transport_delta: transport_delta(t.protocol, (t.src, t.src_port), (self.address, self.port)),
            external: self.external,
            out: self.outside_port,
            macs: [[0; 6]; 2],
            seen,
        };
        let inbound = NatTranslation {
            address: t.src,
            port: t.src_port,
            ip_delta: fold(u64::from(address_delta(self.address, t.src)) + u64::from(ONE_HOP)),
            transport_delta: transport_delta(t.protocol, (self.address, self.port), (t.src, t.src_port)),
            out: self.inside_port,
            macs: self.macs,
            ..outbound
        };
        let flow = NatFlow { tuple: self.inside, direction: FlowDirection::Outbound };
        [(flow, outbound), (flow.opposite(&outbound), inbound)]
    }

    /// Both directions as map entries, last seen at `seen` (`CLOCK_MONOTONIC`, ns).
    pub fn entries(&self, seen: u64) -> [MapEntry; 2] {
        self.directions(seen).map(|(flow, c)| MapEntry::new(CONNECTIONS, flow.encode(), c.encode()))
    }
}

/// Summand of one hop less for the sum of an IP header.
const ONE_HOP: u16 = !0x0100u16.to_be();

/// Summand for the transport's sum when one end of a connection is replaced by another; the sum of ICMP has
/// no addresses.
fn transport_delta(protocol: u8, from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)) -> u16 {
    let ports = fold(u64::from(!u32::from(from.1.to_be())) + u64::from(to.1.to_be()));
    match protocol {
        ICMP => ports,
        _ => fold(u64::from(ports) + u64::from(address_delta(from.0, to.0))),
    }
}

fn address_delta(from: Ipv4Addr, to: Ipv4Addr) -> u16 {
    let [from, to] = [from, to].map(|a| u32::from_ne_bytes(a.octets()));
    fold(u64::from(!from) + u64::from(to))
}

/// One's complement sum in 16 bits.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// The keys to remove at `now` (`CLOCK_MONOTONIC`, ns): both directions of each connection that has been idle
/// for longer than its limit. A direction whose other half is gone goes by its own time.
pub fn idle(
    table: &HashMap<NatFlow, NatTranslation>,
    timeouts: &ConnectionTimeouts,
    now: u64,
) -> Vec<NatFlow> {
    let mut keys: Vec<NatFlow> = table
        .iter()
        .filter(|(flow, half)| {
            let other = table.get(&flow.opposite(half));
            let seen = half.seen.max(other.map_or(0, |o| o.seen));
            now.saturating_sub(seen) > limit(flow.tuple.protocol, half, other, timeouts)
        })
        .map(|(flow, _)| *flow)
        .collect();
    keys.sort_unstable();
    keys
}

/// Longest idle time of the connection.
fn limit(
    protocol: u8,
    half: &NatTranslation,
    other: Option<&NatTranslation>,
    timeouts: &ConnectionTimeouts,
) -> u64 {
    let other = other.map_or(0, |o| o.tcp);
    let (both, either) = (half.tcp & other, half.tcp | other);
    match protocol {
        ICMP => timeouts.icmp,
        TCP if both & ACK != 0 && both & FIN == 0 && either & RST == 0 => timeouts.tcp_established,
        TCP => timeouts.tcp_transitory,
        _ => timeouts.udp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::UDP;

    fn mapping(protocol: u8) -> NatMapping {
        NatMapping {
            inside: FiveTuple {
                src: Ipv4Addr::new(10, 0, 0, 1),
                dst: Ipv4Addr::new(198, 51, 100, 7),
                src_port: 5000,
                dst_port: 443,
                protocol,
            },
            address: Ipv4Addr::new(203, 0, 113, 1),
            port: 40000,
            external: 0,
            outside_port: 4,
            inside_port: 3,
            macs: [[1; 6], [2; 6]],
        }
    }

    #[test]
    fn keys_and_values_survive_the_map() {
        for (flow, connection) in mapping(TCP).directions(77) {
            assert_eq!((flow.encode().len(), connection.encode().len()), (16, 40));
            assert_eq!(NatFlow::decode(&flow.encode()), Some(flow));
            assert_eq!(NatTranslation::decode(&connection.encode()), Some(connection));
        }
    }

    #[test]
    fn the_directions_name_each_other() {
        let [(out, a), (inn, b)] = mapping(UDP).directions(0);
        assert_eq!(out.opposite(&a), inn);
        assert_eq!(inn.opposite(&b), out);
        assert_eq!((inn.tuple.dst, inn.tuple.dst_port), (Ipv4Addr::new(203, 0, 113, 1), 40000));
    }

    #[test]
    fn connections_end_by_their_own_limits() {
        let t = ConnectionTimeouts::default();
        let gone_after = |protocol, flags: [u16; 2], wait: u64| {
            let mut halves = mapping(protocol).directions(1_000);
            halves[0].1.tcp = flags[0];
            halves[1].1.tcp = flags[1];
            idle(&halves.into_iter().collect(), &t, 1_000 + wait).len()
        };
        assert_eq!(gone_after(UDP, [0, 0], t.udp), 0);
        assert_eq!(gone_after(UDP, [0, 0], t.udp + 1), 2);
        assert_eq!(gone_after(TCP, [ACK, ACK], t.tcp_established), 0, "established");
        assert_eq!(gone_after(TCP, [ACK, 0], t.tcp_transitory + 1), 2, "never answered");
        assert_eq!(gone_after(TCP, [ACK | FIN, ACK | FIN], t.tcp_transitory + 1), 2, "closed by both");
        assert_eq!(gone_after(TCP, [ACK | FIN, ACK], t.tcp_transitory + 1), 0, "closed by one");
        assert_eq!(gone_after(TCP, [ACK | RST, ACK], t.tcp_transitory + 1), 2, "reset");
        assert_eq!(gone_after(ICMP, [0, 0], t.icmp + 1), 2);
    }

    #[test]
    fn a_packet_one_way_keeps_both_halves() {
        let t = ConnectionTimeouts::default();
        let mut halves = mapping(UDP).directions(0);
        halves[1].1.seen = t.udp;
        assert_eq!(idle(&halves.into_iter().collect(), &t, t.udp + 1), []);
    }
}
