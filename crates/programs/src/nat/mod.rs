//! The NAT's control tool: sides, rules and external addresses to map entries, and the removal of idle
//! connections.
//!
//! Layouts are as in `programs/nat/nat.h`.

mod connection;
mod generate;

pub use connection::{FlowDirection, NatFlow, NatMapping, NatTranslation, idle};
pub use generate::{NatTraffic, ProtocolMix, generate, traffic};

use std::net::Ipv4Addr;

use crate::packet::MacAddress;
use crate::router::{devmap_entry, route_key};
use crate::{Ipv4Prefix, MapEntry};

/// Per interface: its side.
pub const PORTS: &str = "ports";
/// Sources that are translated, by longest prefix.
pub const RULES: &str = "rules";
/// Destinations that are not translated to, by longest prefix.
pub const EXEMPT: &str = "exempt";
/// External addresses.
pub const EXTERNALS: &str = "externals";
/// Both directions of each connection: [`NatFlow`] to [`NatTranslation`].
pub const CONNECTIONS: &str = "connections";
/// Time limits and the secret.
pub const SETTINGS: &str = "settings";
/// The devmap of egress interfaces.
pub const TX_PORTS: &str = "tx_ports";
/// Per port and CPU: [`crate::router::PortCounters`].
pub const COUNTERS: &str = "counters";
/// Per event and CPU: a count.
pub const EVENTS: &str = "events";
/// Capacity of the object's map, in directions of connections: two for each.
pub const MAX_CONNECTION_ENTRIES: usize = 1 << 17;
/// Capacity of the object's map, in external addresses.
pub const MAX_EXTERNALS: usize = 256;
/// Ports are interface indices below this.
pub const MAX_PORTS: u32 = 4096;

/// Which side an interface is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum NatSide {
    /// Private addresses.
    Inside = 1,
    /// The rest of the world.
    Outside = 2,
}

/// An address of ours outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NatExternalAddress {
    /// The address.
    pub address: Ipv4Addr,
    /// The lowest transport port to hand out; not 0.
    pub port_min: u16,
    /// The highest.
    pub port_max: u16,
    /// The egress interface's index.
    pub port: u32,
    /// The next router's link-layer address.
    pub dst_mac: MacAddress,
    /// Our own on that link.
    pub src_mac: MacAddress,
}

/// Sources and the external addresses that they get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NatRule {
    /// The sources.
    pub sources: Ipv4Prefix,
    /// Index of the first external address.
    pub first: u32,
    /// Number of external addresses for these sources, from the first on. 0 means that they are not
    /// translated.
    pub count: u32,
}

/// Time in ns without a packet after which a connection is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionTimeouts {
    /// TCP, once both sides have acknowledged.
    pub tcp_established: u64,
    /// TCP, before that and after the end.
    pub tcp_transitory: u64,
    /// UDP.
    pub udp: u64,
    /// ICMP queries.
    pub icmp: u64,
}

impl Default for ConnectionTimeouts {
    /// Values that the RFCs ask for: 5382 REQ-5 (2 h 4 min, 4 min), 4787 REQ-5 (5 min), 5508 REQ-2 (60 s).
    fn default() -> Self {
        const SECOND: u64 = 1_000_000_000;
        Self {
            tcp_established: 7440 * SECOND,
            tcp_transitory: 240 * SECOND,
            udp: 300 * SECOND,
            icmp: 60 * SECOND,
        }
    }
}

impl ConnectionTimeouts {
    /// From the value of [`SETTINGS`]; `None` if it is too short.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let word = |i: usize| Some(u64::from_ne_bytes(value.get(8 * i..8 * i + 8)?.try_into().ok()?));
        Some(Self { tcp_established: word(0)?, tcp_transitory: word(1)?, udp: word(2)?, icmp: word(3)? })
    }
}

/// Everything that the NAT is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NatConfig {
    /// Interfaces, each once.
    pub ports: Vec<(u32, NatSide)>,
    /// Sources that are translated.
    pub rules: Vec<NatRule>,
    /// To what.
    pub externals: Vec<NatExternalAddress>,
    /// Destinations that are not translated to: the networks inside. External addresses are added by
    /// themselves.
    pub exempt: Vec<Ipv4Prefix>,
    /// Time limits.
    pub timeouts: ConnectionTimeouts,
    /// Makes the choice of ports unpredictable; from the system's entropy in service, fixed in tests.
    pub secret: u64,
}

/// A configuration that the maps cannot hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NatError {
    /// A port beyond the maps, or 0.
    #[error("{0} is not the index of an interface below {MAX_PORTS}")]
    BadPort(u32),
    /// A range of transport ports that is empty or has port 0 in it.
    #[error("{address} has no transport ports between {min} and {max}")]
    BadRange {
        /// The external address.
        address: Ipv4Addr,
        /// Its lowest port.
        min: u16,
        /// Its highest.
        max: u16,
    },
    /// A rule names external addresses that are not there.
    #[error("the rule for {sources} names external addresses {first} to {last}, of {count}")]
    NoSuchExternal {
        /// The rule's sources.
        sources: Ipv4Prefix,
        /// Its first address.
        first: u32,
        /// Its last.
        last: u64,
        /// Number of external addresses.
        count: usize,
    },
    /// More external addresses than the map holds.
    #[error("{0} external addresses are more than the NAT's {MAX_EXTERNALS}")]
    TooManyExternals(usize),
}

impl NatExternalAddress {
    /// As it stands in the map: `struct external`.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = self.address.octets().to_vec();
        value.extend(self.port_min.to_ne_bytes());
        value.extend(self.port_max.to_ne_bytes());
        value.extend(self.port.to_ne_bytes());
        value.extend(self.dst_mac);
        value.extend(self.src_mac);
        value
    }
}

impl NatConfig {
    /// Everything to write into the maps; interfaces become active last. Entries of [`TX_PORTS`] name
    /// interfaces, which must exist where they are written.
    pub fn entries(&self) -> Result<Vec<MapEntry>, NatError> {
        self.check()?;
        let index = |i: usize| (i as u32).to_ne_bytes();
        let mut entries = vec![MapEntry::new(SETTINGS, index(0), self.settings())];
        entries.extend(self.ports.iter().map(|&(port, _)| devmap_entry(TX_PORTS, port)));
        for (i, external) in self.externals.iter().enumerate() {
            entries.push(MapEntry::new(EXTERNALS, index(i), external.encode()));
        }
        let own = self.externals.iter().map(|e| Ipv4Prefix::new(e.address, 32));
        entries.extend(
            self.exempt.iter().copied().chain(own).map(|p| MapEntry::new(EXEMPT, route_key(p), index(1))),
        );
        for rule in &self.rules {
            let value = [rule.first, rule.count].map(u32::to_ne_bytes).concat();
            entries.push(MapEntry::new(RULES, route_key(rule.sources), value));
        }
        for &(port, side) in &self.ports {
            entries.push(MapEntry::new(PORTS, port.to_ne_bytes(), (side as u32).to_ne_bytes()));
        }
        Ok(entries)
    }

    fn settings(&self) -> Vec<u8> {
        let t = &self.timeouts;
        [t.tcp_established, t.tcp_transitory, t.udp, t.icmp, self.secret].map(u64::to_ne_bytes).concat()
    }

    fn check(&self) -> Result<(), NatError> {
        let mut ports = self.ports.iter().map(|&(port, _)| port).chain(self.externals.iter().map(|e| e.port));
        if let Some(port) = ports.find(|&port| port == 0 || port >= MAX_PORTS) {
            return Err(NatError::BadPort(port));
        }
        let count = self.externals.len();
        if count > MAX_EXTERNALS {
            return Err(NatError::TooManyExternals(count));
        }
        if let Some(e) = self.externals.iter().find(|e| e.port_min == 0 || e.port_min > e.port_max) {
            return Err(NatError::BadRange { address: e.address, min: e.port_min, max: e.port_max });
        }
        let end = |r: &NatRule| u64::from(r.first) + u64::from(r.count);
        match self.rules.iter().find(|r| r.count > 0 && end(r) > count as u64) {
            Some(r) => {
                Err(NatError::NoSuchExternal { sources: r.sources, first: r.first, last: end(r) - 1, count })
            }
            None => Ok(()),
        }
    }
}

/// Events that the NAT counts; the discriminant is the key in [`EVENTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum NatEvent {
    /// Dropped: wrong version, or a header length below 20.
    BadHeader,
    /// Dropped: shorter than its headers, or longer than its frame.
    BadLength,
    /// Dropped: the IP header's checksum is wrong.
    BadChecksum,
    /// Dropped: a source that cannot be.
    Martian,
    /// Dropped: a later fragment without its first, or of no connection.
    OrphanFragment,
    /// Dropped: all ports that were tried are taken.
    NoFreePort,
    /// Dropped: no room for another connection.
    TableFull,
    /// To the stack: the interface is on no side.
    NoPort,
    /// To the stack: another protocol, or a VLAN tag.
    NotIpv4,
    /// To the stack: a broadcast or a group.
    NotUnicast,
    /// To the stack: options.
    Options,
    /// To the stack, which answers: no hops left.
    Ttl,
    /// To the stack: nothing that has ports or identifiers.
    Protocol,
    /// To the stack: not to be translated.
    NoRule,
    /// To the stack: from outside, and of no connection.
    NoConnection,
    /// A connection was made.
    Created,
    /// An idle connection made way for another.
    Reclaimed,
    /// An ICMP error was translated.
    IcmpError,
}

impl NatEvent {
    /// All of them, in the order of their keys.
    pub const ALL: [Self; 18] = [
        Self::BadHeader,
        Self::BadLength,
        Self::BadChecksum,
        Self::Martian,
        Self::OrphanFragment,
        Self::NoFreePort,
        Self::TableFull,
        Self::NoPort,
        Self::NotIpv4,
        Self::NotUnicast,
        Self::Options,
        Self::Ttl,
        Self::Protocol,
        Self::NoRule,
        Self::NoConnection,
        Self::Created,
        Self::Reclaimed,
        Self::IcmpError,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> NatConfig {
        let external = NatExternalAddress {
            address: Ipv4Addr::new(203, 0, 113, 1),
            port_min: 1024,
            port_max: 65535,
            port: 4,
            dst_mac: [3; 6],
            src_mac: [4; 6],
        };
        NatConfig {
            ports: vec![(3, NatSide::Inside), (4, NatSide::Outside)],
            rules: vec![NatRule { sources: "10.0.0.0/8".parse().unwrap(), first: 0, count: 1 }],
            externals: vec![external],
            exempt: vec!["10.0.0.0/8".parse().unwrap()],
            timeouts: ConnectionTimeouts::default(),
            secret: 9,
        }
    }

    #[test]
    fn entries_are_laid_out_as_the_header_says() {
        let entries = config().entries().unwrap();
        let lengths: Vec<_> = entries.iter().map(|e| (e.map, e.key.len(), e.value.len())).collect();
        assert_eq!(
            lengths,
            [
                (SETTINGS, 4, 40),
                (TX_PORTS, 4, 8),
                (TX_PORTS, 4, 8),
                (EXTERNALS, 4, 24),
                (EXEMPT, 8, 4),
                (EXEMPT, 8, 4),
                (RULES, 8, 8),
                (PORTS, 4, 4),
                (PORTS, 4, 4),
            ]
        );
        assert_eq!(ConnectionTimeouts::decode(&entries[0].value), Some(ConnectionTimeouts::default()));
        assert_eq!(entries[3].value[..4], [203, 0, 113, 1]);
        assert_eq!(entries[3].value[8..12], 4u32.to_ne_bytes());
        assert_eq!(
            entries[5].key,
            [&32u32.to_ne_bytes()[..], &[203, 0, 113, 1]].concat(),
            "we do not NAT to ourselves"
        );
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let mut c = config();
        c.rules[0].count = 2;
        assert!(matches!(c.entries(), Err(NatError::NoSuchExternal { last: 1, count: 1, .. })));
        let mut c = config();
        c.externals[0].port_min = 0;
        assert!(matches!(c.entries(), Err(NatError::BadRange { min: 0, .. })));
        let mut c = config();
        c.ports.push((0, NatSide::Inside));
        assert_eq!(c.entries(), Err(NatError::BadPort(0)));
    }
}
