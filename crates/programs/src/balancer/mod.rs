//! The balancer's control tool: services and real servers to map entries.
//!
//! Layouts are as in `programs/balancer/balancer.h`.

mod encode;
mod generate;
mod model;
mod ring;
mod wire;

pub use encode::ring_entries;
pub use generate::{QUIC_CONFIG, ServiceMix, flows, generate};
pub use model::{BalancerModel, BalancerOutcome};
pub use ring::ring;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::packet::MacAddress;

/// Policies.
pub const SETTINGS: &str = "settings";
/// Services of IPv4 addresses.
pub const VIPS4: &str = "vips4";
/// Services of IPv6 addresses.
pub const VIPS6: &str = "vips6";
/// Addresses that answer pings.
pub const VIP_ADDRESSES: &str = "vip_addresses";
/// One row of [`RING_SIZE`] entries for each service.
pub const RINGS: &str = "rings";
/// Real servers.
pub const REALS: &str = "reals";
/// The connection table of IPv4.
pub const FLOWS4: &str = "flows4";
/// The connection table of IPv6.
pub const FLOWS6: &str = "flows6";
/// Servers by what QUIC connection ids say.
pub const QUIC_SERVERS: &str = "quic_servers";
/// Per service and CPU: packets and bytes, as two `u64`.
pub const VIP_COUNTERS: &str = "vip_counters";
/// Per real and CPU: packets and bytes, as two `u64`.
pub const REAL_COUNTERS: &str = "real_counters";
/// Per [`BalancerEvent`] and CPU: a count of packets.
pub const REASONS: &str = "reasons";

/// Capacity of the object's maps, in services.
pub const MAX_SERVICES: usize = 64;
/// Capacity of the object's maps, in reals. Index 0, which is none, is not counted.
pub const MAX_REALS: usize = 4095;
/// Capacity of [`QUIC_SERVERS`], in entries.
pub const MAX_QUIC_SERVERS: usize = 4096;
/// Entries of a service's ring; a prime.
pub const RING_SIZE: u32 = 65_537;

/// A real server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BalancerReal {
    /// Destination of encapsulated packets; its family is that of the outer header.
    pub address: IpAddr,
    /// Encapsulated in UDP (GUE), else in IP.
    pub gue: bool,
    /// It takes packets.
    pub up: bool,
}

/// A connection that the data plane remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalancerConnection {
    /// The client's address and port; port 0 stands for all of them, where the service keeps a client to one
    /// real.
    pub client: (IpAddr, u16),
    /// The service's; port 0 as in the service.
    pub service: (IpAddr, u16),
    /// Its protocol.
    pub protocol: u8,
    /// Place of the real in [`REALS`]: one more than its place in [`BalancerConfig::reals`].
    pub real: u32,
}

/// A virtual service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancerService {
    /// Its address.
    pub address: IpAddr,
    /// Its port; 0 for all that have no service of their own.
    pub port: u16,
    /// IP protocol number: TCP or UDP.
    pub protocol: u8,
    /// All connections of a client go to one real.
    pub client_affinity: bool,
    /// No connection table: the ring alone decides.
    pub stateless: bool,
    /// UDP payload is QUIC with connection ids that name servers.
    pub quic: bool,
    /// Indices into [`BalancerConfig::reals`], each with its weight.
    pub reals: Vec<(u32, u32)>,
}

/// A server that QUIC connection ids name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuicServer {
    /// The configuration in the top three bits of an id; below 7.
    pub config: u8,
    /// The server's id, as a number of the configuration's length.
    pub id: u32,
    /// Index into [`BalancerConfig::reals`].
    pub real: u32,
}

/// Everything that the balancer is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancerConfig {
    /// The services.
    pub services: Vec<BalancerService>,
    /// The real servers. In the maps, the first has index 1.
    pub reals: Vec<BalancerReal>,
    /// Servers of QUIC connection ids.
    pub quic_servers: Vec<QuicServer>,
    /// Octets, 1 to 4, of a server's id for each configuration; 0 for those not in use.
    pub quic_id_length: [u8; 8],
    /// Next hop of encapsulated frames.
    pub gateway: MacAddress,
    /// UDP port of GUE.
    pub gue_port: u16,
    /// Outer source address of IPv4.
    pub source4: Ipv4Addr,
    /// Its bits that take the flow's hash.
    pub source4_hash_mask: u32,
    /// Outer source address of IPv6; the hash is mixed into its last 32 bits.
    pub source6: Ipv6Addr,
    /// UDP connections that were silent for longer are forgotten.
    pub udp_idle_ns: u64,
    /// The longest packet, outer header included, that the way to the reals takes.
    pub max_length: u32,
    /// Fragments go to the stack; else they are dropped.
    pub fragments_to_stack: bool,
    /// New connections remembered per second and CPU; 0 for no limit.
    pub new_flow_limit: u32,
    /// ICMP errors sent per second and CPU.
    pub icmp_limit: u32,
}

impl Default for BalancerConfig {
    fn default() -> Self {
        Self {
            services: Vec::new(),
            reals: Vec::new(),
            quic_servers: Vec::new(),
            quic_id_length: [0; 8],
            gateway: [2, 0, 0, 0, 0, 9],
            gue_port: 6080,
            source4: Ipv4Addr::new(10, 200, 0, 0),
            source4_hash_mask: 0xffff,
            source6: Ipv6Addr::new(0xfd00, 0x200, 0, 0, 0, 0, 0, 0),
            udp_idle_ns: 30_000_000_000,
            max_length: 1500,
            fragments_to_stack: false,
            new_flow_limit: 0,
            icmp_limit: 1000,
        }
    }
}

/// A configuration that the maps cannot hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BalancerError {
    /// More entries than a map holds.
    #[error("{count} {what} are more than the balancer's {limit}")]
    TooMany {
        /// Services, reals or QUIC servers.
        what: &'static str,
        /// Number given.
        count: usize,
        /// Number that fits.
        limit: usize,
    },
    /// A real that is not there.
    #[error("{what} names real {real}, of {count}")]
    NoSuchReal {
        /// Object that names it.
        what: String,
        /// Its index.
        real: u32,
        /// Number of reals.
        count: usize,
    },
    /// A QUIC server's id does not fit its configuration.
    #[error("QUIC server {id} does not fit configuration {config}, whose ids have {octets} octets")]
    QuicId {
        /// The configuration.
        config: u8,
        /// The id.
        id: u32,
        /// Octets of the configuration's ids; 0 if it is not in use.
        octets: u8,
    },
}

/// Why a packet took another way than the shortest: the index into [`REASONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are those of `enum reason` in balancer.h, which explains them")]
pub enum BalancerEvent {
    Malformed,
    Fragment,
    NoReal,
    NoRoom,
    TooBig,
    NotIp,
    OtherProtocol,
    NoVip,
    Echo,
    TooBigAnswered,
    Syn,
    TableMiss,
    NotRemembered,
    QuicRouted,
    QuicUnknownServer,
    IcmpError,
}

impl BalancerEvent {
    /// All of them, in the order of their keys.
    pub const ALL: [Self; 16] = [
        Self::Malformed,
        Self::Fragment,
        Self::NoReal,
        Self::NoRoom,
        Self::TooBig,
        Self::NotIp,
        Self::OtherProtocol,
        Self::NoVip,
        Self::Echo,
        Self::TooBigAnswered,
        Self::Syn,
        Self::TableMiss,
        Self::NotRemembered,
        Self::QuicRouted,
        Self::QuicUnknownServer,
        Self::IcmpError,
    ];
}

/// Hash of the client's end of a connection, as the data plane computes it: part of the contract, since rings
/// and outer source addresses follow from it, and all balancers of a group must agree.
pub fn hash_client(client: IpAddr, port: u16) -> u32 {
    const MIX_1: u64 = 0xd6e8_feb8_6659_fd93;
    const MIX_2: u64 = 0xa076_1d64_78bd_642f;
    let mix = |word: u64| {
        let word = (word ^ word >> 32).wrapping_mul(MIX_1);
        (word ^ word >> 29).wrapping_mul(MIX_2)
    };
    let port = u64::from(u16::from_ne_bytes(port.to_be_bytes())) << 32;
    let word = |octets: &[u8]| u64::from(u32::from_ne_bytes([octets[0], octets[1], octets[2], octets[3]]));
    let hash = match client {
        IpAddr::V4(address) => mix(port | word(&address.octets())),
        IpAddr::V6(address) => {
            let octets = address.octets();
            let hash = mix(port | word(&octets[..4]));
            let hash = mix(hash ^ (word(&octets[4..8]) << 32 | word(&octets[8..12])));
            mix(hash ^ word(&octets[12..]))
        }
    };
    (hash >> 32) as u32
}

/// The place in the ring of a hash.
pub fn ring_slot(hash: u32) -> u32 {
    ((u64::from(hash) * u64::from(RING_SIZE)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_spread_neighbouring_clients_over_the_ring() {
        let mut buckets = [0u32; 64];
        for host in 0..64_000u32 {
            let client = IpAddr::from(Ipv4Addr::from(0x0a00_0000 + host / 16));
            let slot = ring_slot(hash_client(client, 1024 + (host % 16) as u16));
            buckets[(slot * 64 / RING_SIZE) as usize] += 1;
        }
        // 1,000 expected in each; five standard deviations are 158.
        assert!(buckets.iter().all(|&n| (842..1158).contains(&n)), "{buckets:?}");
    }
}
