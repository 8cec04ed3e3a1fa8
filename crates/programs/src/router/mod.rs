//! The router's control tool: routes and next hops to map entries, and back from an operator's files.
//!
//! Layouts are as in `programs/router/router.h`.

mod generate;
mod model;

pub use generate::{flows, generate, next_hops};
pub use model::{RouterModel, RouterOutcome};

use crate::packet::MacAddress;
use crate::{Ipv4Prefix, MapEntry};

/// The longest-prefix-match map.
pub const ROUTES: &str = "routes";
/// The next hops.
pub const NEXT_HOPS: &str = "next_hops";
/// The devmap of egress interfaces.
pub const TX_PORTS: &str = "tx_ports";
/// Per port and CPU: [`PortCounters`].
pub const COUNTERS: &str = "counters";
/// Per reason and CPU: a count of packets that were not forwarded.
pub const REASONS: &str = "reasons";
/// Capacity of the object's map, in next hops.
pub const MAX_NEXT_HOPS: usize = 4096;
/// Capacity of the object's map, in routes.
pub const MAX_ROUTES: usize = 1 << 20;
/// Ports are interface indices below this.
pub const MAX_PORTS: u32 = 4096;

/// Treatment of packets of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NextHop {
    /// The kernel's stack has them: local addresses, and networks whose hosts are still to be resolved by
    /// ARP.
    Stack,
    /// A blackhole.
    Drop,
    /// Another router or a host on a link.
    Forward {
        /// Its link-layer address.
        dst_mac: MacAddress,
        /// Our own on that link.
        src_mac: MacAddress,
        /// The egress interface's index; where it is the ingress interface's, the packet turns around there.
        port: u32,
        /// Longest IP packet that the link takes.
        mtu: u16,
    },
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destinations.
    pub prefix: Ipv4Prefix,
    /// Index into [`RouterConfig::next_hops`].
    pub next_hop: u32,
}

/// Everything that the router is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouterConfig {
    /// Possible destinations of packets.
    pub next_hops: Vec<NextHop>,
    /// Which way they take. Of two routes with one prefix the later counts.
    pub routes: Vec<Route>,
}

/// A configuration that the maps cannot hold, or a file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouterError {
    /// A route names a next hop that is not there.
    #[error("route {prefix} names next hop {next_hop}, of {count}")]
    NoSuchNextHop {
        /// The route.
        prefix: Ipv4Prefix,
        /// Next hop that it names.
        next_hop: u32,
        /// Number of next hops.
        count: usize,
    },
    /// A port beyond the maps.
    #[error("interface index {0} is beyond the router's {MAX_PORTS} ports")]
    PortTooLarge(u32),
    /// More entries than a map holds.
    #[error("{count} {what} are more than the router's {limit}")]
    TooMany {
        /// Routes or next hops.
        what: &'static str,
        /// Number given.
        count: usize,
        /// Number that fits.
        limit: usize,
    },
    /// A line of a file of prefixes.
    #[error("line {line}: {error}")]
    Line {
        /// Counted from one.
        line: usize,
        /// Error in it.
        error: crate::PrefixError,
    },
}

impl NextHop {
    /// As it stands in the map: `struct next_hop`.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = vec![0; 24];
        match *self {
            Self::Stack => {}
            Self::Drop => value[12..14].copy_from_slice(&2u16.to_ne_bytes()),
            Self::Forward { dst_mac, src_mac, port, mtu } => {
                value[..6].copy_from_slice(&dst_mac);
                value[6..12].copy_from_slice(&src_mac);
                value[12..14].copy_from_slice(&1u16.to_ne_bytes());
                value[14..16].copy_from_slice(&mtu.to_ne_bytes());
                value[16..20].copy_from_slice(&port.to_ne_bytes());
            }
        }
        value
    }

    /// Reads a value of [`NEXT_HOPS`]; `None` if it is none.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let half = |at: usize| Some(u16::from_ne_bytes(value.get(at..at + 2)?.try_into().ok()?));
        Some(match half(12)? {
            0 => Self::Stack,
            1 => Self::Forward {
                dst_mac: value.get(..6)?.try_into().ok()?,
                src_mac: value.get(6..12)?.try_into().ok()?,
                port: u32::from_ne_bytes(value.get(16..20)?.try_into().ok()?),
                mtu: half(14)?,
            },
            2 => Self::Drop,
            _ => return None,
        })
    }
}

impl Route {
    /// As it stands in the map: `struct route_key` and the next hop's index.
    pub fn entry(&self) -> MapEntry {
        MapEntry::new(ROUTES, route_key(self.prefix), self.next_hop.to_ne_bytes())
    }

    /// Reads an entry of [`ROUTES`]; `None` if it is none.
    pub fn decode(key: &[u8], value: &[u8]) -> Option<Self> {
        let word = |bytes: &[u8]| <[u8; 4]>::try_from(bytes.get(..4)?).ok();
        let length = u32::from_ne_bytes(word(key)?);
        let address = word(key.get(4..)?)?;
        let length = u8::try_from(length).ok().filter(|l| *l <= 32)?;
        Some(Self {
            prefix: Ipv4Prefix::new(address.into(), length),
            next_hop: u32::from_ne_bytes(word(value)?),
        })
    }
}

/// The key of a prefix in [`ROUTES`].
pub fn route_key(prefix: Ipv4Prefix) -> Vec<u8> {
    let mut key = u32::from(prefix.length()).to_ne_bytes().to_vec();
    key.extend(prefix.address().octets());
    key
}

impl RouterConfig {
    /// Everything to write into the maps, in an order that never shows a route before its next hop.
    ///
    /// Entries of [`TX_PORTS`] name interfaces, which must exist where they are written.
    pub fn entries(&self) -> Result<Vec<MapEntry>, RouterError> {
        self.check()?;
        let mut entries = Vec::with_capacity(self.next_hops.len() + self.routes.len());
        for port in self.ports() {
            entries.push(devmap_entry(TX_PORTS, port));
        }
        for (index, hop) in self.next_hops.iter().enumerate() {
            entries.push(MapEntry::new(NEXT_HOPS, (index as u32).to_ne_bytes(), hop.encode()));
        }
        entries.extend(self.routes.iter().map(Route::entry));
        Ok(entries)
    }

    /// The egress interfaces, each once, in ascending order.
    pub fn ports(&self) -> Vec<u32> {
        let mut ports: Vec<u32> = self
            .next_hops
            .iter()
            .filter_map(|hop| match hop {
                NextHop::Forward { port, .. } => Some(*port),
                NextHop::Stack | NextHop::Drop => None,
            })
            .collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    fn check(&self) -> Result<(), RouterError> {
        for (what, count, limit) in
            [("routes", self.routes.len(), MAX_ROUTES), ("next hops", self.next_hops.len(), MAX_NEXT_HOPS)]
        {
            if count > limit {
                return Err(RouterError::TooMany { what, count, limit });
            }
        }
        if let Some(&port) = self.ports().last().filter(|&&port| port >= MAX_PORTS) {
            return Err(RouterError::PortTooLarge(port));
        }
        let count = self.next_hops.len();
        match self.routes.iter().find(|route| route.next_hop as usize >= count) {
            Some(&Route { prefix, next_hop }) => Err(RouterError::NoSuchNextHop { prefix, next_hop, count }),
            None => Ok(()),
        }
    }

    /// Routes from a text with a prefix a line, dealt to the next hops in turn.
    ///
    /// The words after the prefix on a line are the name of its next hop: lines with the same words share
    /// one, `attached` and `receive` mean the stack, `drop` a blackhole. IPv6 prefixes, empty lines and a
    /// line that starts with `Ipv4Prefix` or `#` are left out.
    pub fn from_prefixes(text: &str, hops: &[NextHop]) -> Result<Self, RouterError> {
        let mut config = Self { next_hops: hops.to_vec(), routes: Vec::new() };
        let mut names: Vec<&str> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let mut columns = line.split_whitespace();
            let Some(prefix) = columns.next().filter(|p| is_ipv4_line(p)) else { continue };
            let prefix = prefix.parse().map_err(|error| RouterError::Line { line: number + 1, error })?;
            let next_hop = match columns.next() {
                Some("attached" | "receive") => config.index_of(NextHop::Stack),
                Some("drop") => config.index_of(NextHop::Drop),
                Some(name) => {
                    let at = names.iter().position(|&n| n == name).unwrap_or_else(|| {
                        names.push(name);
                        names.len() - 1
                    });
                    (at % hops.len().max(1)) as u32
                }
                None => (config.routes.len() % hops.len().max(1)) as u32,
            };
            config.routes.push(Route { prefix, next_hop });
        }
        config.check()?;
        Ok(config)
    }

    /// The index of this next hop, which is added if it is new.
    fn index_of(&mut self, hop: NextHop) -> u32 {
        let at = self.next_hops.iter().position(|&h| h == hop).unwrap_or_else(|| {
            self.next_hops.push(hop);
            self.next_hops.len() - 1
        });
        at as u32
    }
}

fn is_ipv4_line(first: &str) -> bool {
    first != "Prefix" && !first.starts_with('#') && !first.contains(':')
}

/// An entry of a devmap that is keyed by interface index: the interface, and no egress program.
pub(crate) fn devmap_entry(map: &'static str, port: u32) -> MapEntry {
    let mut value = port.to_ne_bytes().to_vec();
    value.extend((-1i32).to_ne_bytes());
    MapEntry::new(map, port.to_ne_bytes(), value)
}

/// Counters of one CPU for one port: `struct port_counters`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets that came in.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Packets that were sent by the fast path.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
}

impl PortCounters {
    /// Reads one CPU's value; `None` if it is too short.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let word = |i: usize| Some(u64::from_ne_bytes(value.get(8 * i..8 * i + 8)?.try_into().ok()?));
        Some(Self { rx_packets: word(0)?, rx_bytes: word(1)?, tx_packets: word(2)?, tx_bytes: word(3)? })
    }
}

/// Why a packet was not forwarded; the discriminant is the key in [`REASONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum RouterEvent {
    /// Dropped: wrong version, or a header length below 20.
    BadHeader,
    /// Dropped: the total length is below the header's or beyond the frame's.
    BadLength,
    /// Dropped: the header's checksum is wrong.
    BadChecksum,
    /// Dropped: an address that cannot be.
    Martian,
    /// Dropped: a blackhole route.
    Blackhole,
    /// To the stack: the interface is none of the router's.
    NoPort,
    /// To the stack: another protocol, or a VLAN tag.
    NotIpv4,
    /// To the stack: a broadcast or a group.
    NotUnicast,
    /// To the stack: options.
    Options,
    /// To the stack, which answers: no hops left.
    Ttl,
    /// To the stack, which answers: no route.
    NoRoute,
    /// To the stack: a local address, or one that is not resolved yet.
    Local,
    /// To the stack, which fragments or answers: longer than the link takes.
    TooBig,
}

impl RouterEvent {
    /// All of them, in the order of their keys.
    pub const ALL: [Self; 13] = [
        Self::BadHeader,
        Self::BadLength,
        Self::BadChecksum,
        Self::Martian,
        Self::Blackhole,
        Self::NoPort,
        Self::NotIpv4,
        Self::NotUnicast,
        Self::Options,
        Self::Ttl,
        Self::NoRoute,
        Self::Local,
        Self::TooBig,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOP: NextHop = NextHop::Forward { dst_mac: [1; 6], src_mac: [2; 6], port: 7, mtu: 1500 };

    #[test]
    fn entries_are_laid_out_as_the_header_says() {
        let route = Route { prefix: "192.0.2.0/24".parse().unwrap(), next_hop: 0 };
        let config = RouterConfig { next_hops: vec![HOP, NextHop::Drop], routes: vec![route] };
        let entries = config.entries().unwrap();
        let bytes = |a: &[&[u8]]| a.concat();
        let [one, two] = [1u16, 2].map(u16::to_ne_bytes);
        let [zero, idx1, seven, len] = [0u32, 1, 7, 24].map(u32::to_ne_bytes);
        assert_eq!(
            entries,
            [
                MapEntry::new(TX_PORTS, seven, bytes(&[&seven, &(-1i32).to_ne_bytes()])),
                MapEntry::new(
                    NEXT_HOPS,
                    zero,
                    bytes(&[&[1; 6], &[2; 6], &one, &1500u16.to_ne_bytes(), &seven, &zero])
                ),
                MapEntry::new(NEXT_HOPS, idx1, bytes(&[&[0; 12], &two, &[0; 10]])),
                MapEntry::new(ROUTES, bytes(&[&len, &[192, 0, 2, 0]]), zero),
            ]
        );
    }

    #[test]
    fn a_router_table_as_text() {
        let text = "Prefix Next Hop Interface\n0.0.0.0/0 172.20.4.1 Te2/1\n10.0.0.0/8 172.20.4.9 Te2/2\n\
                    10.1.0.0/16 172.20.4.1 Te2/1\n10.2.0.1/32 receive\n0.0.0.0/8 drop\n2001:db8::/32\n\n10.3.0.0/24";
        let other = NextHop::Forward { dst_mac: [3; 6], src_mac: [2; 6], port: 8, mtu: 1500 };
        let config = RouterConfig::from_prefixes(text, &[HOP, other]).unwrap();
        assert_eq!(config.next_hops, [HOP, other, NextHop::Stack, NextHop::Drop]);
        let hops: Vec<u32> = config.routes.iter().map(|r| r.next_hop).collect();
        assert_eq!(hops, [0, 1, 0, 2, 3, 1]);
        assert_eq!(config.ports(), [7, 8]);
    }

    #[test]
    fn what_was_written_is_read_back() {
        let config = generate(50, &[3, 9], 2, 1);
        for hop in config.next_hops.iter().chain(&[NextHop::Stack, NextHop::Drop]) {
            assert_eq!(NextHop::decode(&hop.encode()), Some(*hop));
        }
        for route in &config.routes {
            let entry = route.entry();
            assert_eq!(Route::decode(&entry.key, &entry.value), Some(*route));
        }
        assert_eq!(Route::decode(&[33, 0, 0, 0, 1, 2, 3, 4], &[0; 4]), None, "no such length");
        assert_eq!(NextHop::decode(&[3; 24]), None);
    }

    #[test]
    fn errors_name_the_place() {
        let bad = RouterConfig::from_prefixes("10.0.0.0/8\n10.0.0.0/99", &[HOP]);
        assert!(matches!(bad, Err(RouterError::Line { line: 2, .. })), "{bad:?}");
        assert!(matches!(
            RouterConfig::from_prefixes("10.0.0.0/8", &[]),
            Err(RouterError::NoSuchNextHop { .. })
        ));
        let far = NextHop::Forward { dst_mac: [0; 6], src_mac: [0; 6], port: 4096, mtu: 1500 };
        let config = RouterConfig { next_hops: vec![far], routes: vec![] };
        assert_eq!(config.entries(), Err(RouterError::PortTooLarge(4096)));
    }
}
